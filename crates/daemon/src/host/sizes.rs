//! Sizes of files in mode `posix` that are open on this host while their shard is on another: the
//! host's half of `metadata::files::size_coherence`.
//!
//! The shard asks for unreported writes of this host, and reports truncates. Truncates that clients
//! of this host request are counted as the request and its reply pass through this daemon. The
//! fields of a vnode change as a worker of this host would change them (`shm::host::sizes`): the
//! truncate epoch is odd while a truncate is in progress.
//!
//! Bytes written under the previous epoch may be in flight to other hosts. They are counted
//! (`shm::host::in_flight`), and messages that announce a new epoch wait until they have arrived.
//! So no write that began before a truncate arrives after it.
//!
//! Reading a vnode and sending a message about it is one step under one lock: the shard relies on
//! this host's messages and replies to arrive in the order in which the vnode changed.
//!
//! A request that cannot be sent is returned with the reply that its sender gets; `shared::delivery`
//! delivers it when the lock is released.

use crate::host::links::HostLinks;
use crate::host::size_request::SizeRequest;
use crate::sessions::client_session::ClientSession;
use crate::shared::network::encode_request;
use crate::shared::reply::{FULL_MICROS, LOST_MICROS, ReplyTo, encode_reply};
use metadata::HostMessage;
use shm::host::{HostSegment, TruncateEpoch};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use wire::codec::{Malformed, Reader};
use wire::errno::{Errno, Result};
use wire::reply::{TRUNCATE_EPOCH_OF_FIRST_DAEMON, TRUNCATE_EPOCH_OF_HOST};
use wire::{DaemonIndex, Header, Inode, Reply, Request, ShardIndex};

/// Files with a truncate in progress.
pub(crate) struct RemoteTruncates {
    truncates: Mutex<BTreeMap<Inode, RemoteTruncate>>,
    /// Bound on every wait of a client.
    timeout: Duration,
}

/// Truncates of one file.
#[derive(Default)]
struct RemoteTruncate {
    /// Unanswered truncates requested by clients of this host.
    own_pending: u32,
    /// The reply to one of these was lost, so that it may or may not have been carried out, or will
    /// be retried. Assumed to be in progress until this time.
    lost: Option<Instant>,
    /// Token of a truncate whose begin, but not end, the shard has reported.
    token: Option<u64>,
    /// One of them has truncated the file.
    is_truncated: bool,
    /// Messages to be sent when no bytes are in flight: replies to the shard, and requests.
    held: Vec<HeldMessage>,
}

/// A message that waits until bytes in flight have arrived.
enum HeldMessage {
    Answer(ShardIndex, Vec<u8>),
    Request(DaemonIndex, Vec<u8>, ReplyTo),
}

impl RemoteTruncate {
    const fn is_over(&self) -> bool {
        self.own_pending == 0 && self.lost.is_none() && self.token.is_none()
    }

    /// A pending request of this host may still truncate what its clients write.
    const fn is_requested_here(&self) -> bool {
        self.own_pending != 0 || self.lost.is_some()
    }
}

/// Why a request was not sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NotSent {
    /// Its sender must retry after this many microseconds.
    Retry(u32),
    /// It is refused.
    Refused(Errno),
    /// There is nothing to report.
    Needless,
}

/// A request that was not sent; its sender is not answered yet.
pub(crate) type Unsent = (ReplyTo, NotSent);

/// Effects of a reply on its way to a client.
#[derive(Default)]
pub(crate) struct NotedReply {
    /// Takes the place of the reply.
    pub(crate) replacement: Option<Vec<u8>>,
    /// Requests that waited for it and whose peer is lost.
    pub(crate) lost: Vec<ReplyTo>,
}

impl RemoteTruncates {
    /// No truncate is in progress.
    pub(crate) const fn new(timeout: Duration) -> RemoteTruncates {
        RemoteTruncates { truncates: Mutex::new(BTreeMap::new()), timeout }
    }

    fn files(&self) -> MutexGuard<'_, BTreeMap<Inode, RemoteTruncate>> {
        self.truncates.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Handles a message of a shard on another host.
    pub(crate) fn take_message(
        &self,
        links: HostLinks<'_>,
        bytes: &[u8],
    ) -> core::result::Result<(), Malformed> {
        let HostLinks { segment, net, .. } = links;
        let (message, host) = (HostMessage::decode(bytes)?, net.host_number);
        let mut truncates = self.files();
        match message {
            HostMessage::Glimpse { from, token, inode } => {
                let end = segment.unreported(inode);
                send(links, from, HostMessage::glimpsed(host, token, inode, end));
            }
            HostMessage::SizeReported { inode, end } => segment.note_reported(inode, end),
            HostMessage::BeginTruncate { from, token, inode, size } => {
                let truncate = truncates.entry(inode).or_default();
                let is_new = truncate.token != Some(token);
                if is_new {
                    (truncate.token, truncate.is_truncated) = (Some(token), true);
                    segment.begin_truncate(inode, size);
                }
                let answer = HostMessage::truncate_begun(host, token, inode);
                match (segment.has_transfers(inode), is_new) {
                    (false, _) => send(links, from, answer),
                    (true, true) => truncate.held.push(HeldMessage::Answer(from, answer)),
                    // Repeated message; the reply is already waiting.
                    (true, false) => {}
                }
            }
            HostMessage::EndTruncate { from, token, inode, .. } => {
                match truncates.get_mut(&inode) {
                    // Or of an earlier truncate, whose end message was lost before the service
                    // restarted.
                    Some(truncate) if truncate.token.is_none_or(|begun| begun <= token) => {
                        truncate.token = None;
                        end_truncates(segment, &mut truncates, inode);
                    }
                    Some(_) => {}
                    // This daemon received the begin message before it was restarted, or receives
                    // the end message twice.
                    None => segment.end_remote_truncate(inode, true),
                }
                send(links, from, HostMessage::truncate_ended(host, token, inode));
            }
        }
        Ok(())
    }

    /// Forwards a client's request to another host, to inspect the reply.
    ///
    /// # Errors
    /// A request that was not sent.
    pub(crate) fn send_request(
        &self,
        HostLinks { segment, net, inboxes }: HostLinks<'_>,
        (peer, bytes): (DaemonIndex, Vec<u8>),
        (client, slot): (&Arc<ClientSession>, u16),
        request: SizeRequest,
    ) -> core::result::Result<(), Unsent> {
        let client = Arc::clone(client);
        let mut truncates = self.files();
        match request {
            SizeRequest::Truncate { inode, .. } => {
                segment.begin_remote_truncate(inode);
                let truncate = truncates.entry(inode).or_default();
                truncate.own_pending += 1;
                if segment.has_transfers(inode) {
                    let to = ReplyTo::Size { client, slot, request };
                    truncate.held.push(HeldMessage::Request(peer, bytes, to));
                    return Ok(());
                }
            }
            SizeRequest::Range { .. } => {}
            SizeRequest::Bytes { inode, truncate_epoch: count } => {
                if let Err(errno) = admit_bytes(segment, inode, count) {
                    return Err((ReplyTo::Slot { client, slot }, NotSent::Refused(errno)));
                }
            }
        }
        let to = ReplyTo::Size { client, slot, request };
        net.request(inboxes, peer, &bytes, to).map_err(lost)
    }

    /// Admits a client's transfer to or from another host, unless the file was truncated since. Its
    /// reply must then be inspected.
    ///
    /// # Errors
    /// `EAGAIN`: the file was truncated.
    pub(crate) fn admit_transfer(&self, segment: &HostSegment, request: SizeRequest) -> Result<()> {
        let _truncates = self.files();
        match request {
            SizeRequest::Bytes { inode, truncate_epoch } => {
                admit_bytes(segment, inode, truncate_epoch)
            }
            _ => Ok(()),
        }
    }

    /// Inspects the reply of a shard on another host.
    pub(crate) fn note_reply(
        &self,
        HostLinks { segment, net, inboxes }: HostLinks<'_>,
        request: SizeRequest,
        bytes: &[u8],
    ) -> NotedReply {
        let mut noted = NotedReply::default();
        let reply = Reply::decode(&mut Reader::new(bytes));
        let mut truncates = self.files();
        match (request, reply) {
            (
                SizeRequest::Range { inode },
                Ok(Reply::Range { offset, truncate_epoch: TRUNCATE_EPOCH_OF_HOST }),
            ) => {
                let truncate_epoch = epoch_of_range(segment, &truncates, inode);
                let replacement = encode_reply(&Reply::Range { offset, truncate_epoch }, 0);
                noted.replacement = Some(replacement);
            }
            (SizeRequest::Range { .. }, _) => {}
            (SizeRequest::Bytes { inode, .. }, _) => {
                segment.end_transfer(inode);
                let links = HostLinks { segment, net, inboxes };
                noted.lost = send_held(links, &mut truncates, inode);
            }
            (SizeRequest::Truncate { inode, size }, reply) => {
                let truncate = truncates.entry(inode).or_default();
                truncate.own_pending = truncate.own_pending.saturating_sub(1);
                truncate.lost = match reply {
                    Ok(Reply::Busy { .. } | Reply::Stale { .. }) => {
                        Some(Instant::now() + self.timeout)
                    }
                    _ => None,
                };
                if let Ok(Reply::Attributes { .. }) = reply {
                    truncate.is_truncated = true;
                    segment.remote_truncate_to(inode, size);
                }
                end_truncates(segment, &mut truncates, inode);
            }
        }
        noted
    }

    /// Reports the current unreported size of a file to its shard on another host. The size that
    /// the client read may be outdated by a truncate: the truncating client clears the vnode before
    /// it sends the request, which also passes through here.
    ///
    /// # Errors
    /// A report that was not sent, or is not needed.
    pub(crate) fn send_report(
        &self,
        HostLinks { segment, net, inboxes }: HostLinks<'_>,
        (peer, header): (DaemonIndex, &Header),
        inode: Inode,
        to: ReplyTo,
    ) -> core::result::Result<(), Unsent> {
        let truncates = self.files();
        if truncates.get(&inode).is_some_and(RemoteTruncate::is_requested_here) {
            return Err((to, NotSent::Retry(FULL_MICROS)));
        }
        let end = segment.unreported(inode);
        if end == 0 {
            return Err((to, NotSent::Needless));
        }
        let bytes = encode_request(header, &Request::Extend { inode, size: end });
        net.request(inboxes, peer, &bytes, to).map_err(lost)
    }

    /// Gives up truncates whose reply was lost long ago. Returns the microseconds until the next is
    /// due.
    pub(crate) fn tick(&self, segment: &HostSegment) -> Option<u64> {
        let mut truncates = self.files();
        let now = Instant::now();
        let late = |truncate: &RemoteTruncate| truncate.lost.is_some_and(|until| until <= now);
        let inodes: Vec<Inode> = truncates
            .iter()
            .filter(|(_, truncate)| late(truncate))
            .map(|(&inode, _)| inode)
            .collect();
        for inode in inodes {
            if let Some(truncate) = truncates.get_mut(&inode) {
                truncate.lost = None;
            }
            end_truncates(segment, &mut truncates, inode);
        }
        let next = truncates.values().filter_map(|truncate| truncate.lost).min()?;
        u64::try_from(next.saturating_duration_since(now).as_micros()).ok()
    }
}

/// A request to a lost peer is retried.
const fn lost(to: ReplyTo) -> Unsent {
    (to, NotSent::Retry(LOST_MICROS))
}

fn send(HostLinks { net, inboxes, .. }: HostLinks<'_>, to: ShardIndex, message: Vec<u8>) {
    net.send_to_shard(inboxes, to, message);
}

/// Ends a file's truncate epoch if no truncate is in progress.
fn end_truncates(
    segment: &HostSegment,
    truncates: &mut BTreeMap<Inode, RemoteTruncate>,
    inode: Inode,
) {
    if truncates.get(&inode).is_some_and(RemoteTruncate::is_over)
        && let Some(truncate) = truncates.remove(&inode)
    {
        segment.end_remote_truncate(inode, truncate.is_truncated);
    }
}

/// Counts a transfer as in flight if `count` is the current epoch. The caller holds the lock.
fn admit_bytes(segment: &HostSegment, inode: Inode, count: u64) -> Result<()> {
    let is_current = || segment.truncate_epoch(inode).map(TruncateEpoch::number) == Some(count);
    if !is_current() {
        return Err(Errno::EAGAIN);
    }
    segment.begin_transfer(inode);
    // Other daemons of this host change the epoch first and check transfers in flight afterwards.
    if !is_current() {
        segment.end_transfer(inode);
        return Err(Errno::EAGAIN);
    }
    Ok(())
}

/// Sends held messages if no bytes are in flight. Returns requests whose peer is lost.
fn send_held(
    links: HostLinks<'_>,
    truncates: &mut BTreeMap<Inode, RemoteTruncate>,
    inode: Inode,
) -> Vec<ReplyTo> {
    let mut lost = Vec::new();
    let Some(truncate) = truncates.get_mut(&inode) else { return lost };
    if links.segment.has_transfers(inode) {
        return lost;
    }
    for held in std::mem::take(&mut truncate.held) {
        match held {
            HeldMessage::Answer(to, bytes) => send(links, to, bytes),
            HeldMessage::Request(peer, bytes, to) => {
                lost.extend(links.net.request(links.inboxes, peer, &bytes, to).err());
            }
        }
    }
    lost
}

/// Truncate epoch of a file at the moment when its shard, on another host, allocated the range in
/// the passing reply. If the epoch is odd, a client of this host has requested a truncate, which the
/// shard performs after the allocation: bytes written to the range before it are truncated, and
/// later ones would overlap ranges appended since. But a truncate that the shard has announced
/// precedes the range.
fn epoch_of_range(
    segment: &HostSegment,
    in_progress: &BTreeMap<Inode, RemoteTruncate>,
    inode: Inode,
) -> u64 {
    let Some(epoch) = segment.truncate_epoch(inode) else {
        return TRUNCATE_EPOCH_OF_FIRST_DAEMON;
    };
    let is_from_shard =
        |truncate: &RemoteTruncate| truncate.token.is_some() && !truncate.is_requested_here();
    let is_behind = in_progress.get(&inode).is_some_and(is_from_shard);
    if is_behind { epoch.after().number() } else { epoch.before().number() }
}

//! The size of a file of the mode `posix` while several hosts have it open.
//!
//! A host records in shared memory what it writes, and reports it late (`shm::host::sizes`). A
//! request for the size or the modification time is answered after all hosts that may write to the
//! file have reported: a *glimpse*. And a file is truncated after all hosts that have it open have
//! counted that in their open inode (truncate epoch): then a write begun before records no size,
//! and begins anew.
//!
//! States of a truncation: begun (hosts count its beginning) -> the targets truncate -> over (hosts
//! count its end). Both messages are resent until they are answered; only the first is waited for.
//!
//! Messages and answers of a host, and requests of its clients, arrive in the order of their
//! sending, because they share a connection. Hence
//! 1. A report sent before the host counted the beginning of a truncation is from before the
//!    truncation: it is ignored while that answer is outstanding, and if the truncation began after
//!    the query.
//! 2. A host knows of the end of a truncation before its clients get any later answer.
//! 3. The host that requests a truncation is not notified; its own daemon counts it as the request
//!    and its answer pass by (`set::COUNTED`).
//!
//! A host that does not answer for the timeout of the instance is *silent*: it is still queried,
//! but not waited for. Its unreported size arrives when it answers.
//!
//! Where another daemon goes on with the service, the host of the first owner is one that may write to
//! all files from before (`Context::unknown_opener`): its daemon answers also without the service.

use std::collections::BTreeMap;

use wire::limits::FILE_BYTES_MAX;
use wire::{Attributes, DaemonIndex, Inode};

use crate::core::context::Context;
use crate::core::effect::Effect;
use crate::core::job::{Call, Fact, RESEND_NANOS, Resend, Step, Stop, Wait};
use crate::core::peer_messages::Message;
use crate::core::record::Record;
use crate::files::Files;
use crate::files::host_messages::HostMessage;
use crate::files::openings::{Opening, put_hosts};
use crate::files::target_ops::send_to_targets;
use crate::kernel_cache::notices::Changing;

/// A host that was not queried for this time starts afresh, because no request waited for it.
const FORGOTTEN_NANOS: i64 = 10_000_000_000;

/// A query of unreported sizes to hosts, for one job.
#[derive(Clone, Debug)]
struct Glimpse {
    inode: Inode,
    /// 0: not parked yet.
    job: u64,
    /// Hosts that have not answered.
    left: Vec<u16>,
    /// The file was truncated since: the answers are stale.
    is_void: bool,
    resend: Resend,
}

/// The last truncation of a file, while an answer of a host is outstanding.
#[derive(Clone, Debug)]
struct Truncation {
    /// Identifies it in messages and answers; also the token of the operation on targets.
    token: u64,
    size: u64,
    /// Hosts that have not counted its beginning.
    begin: Vec<u16>,
    /// Hosts that have not counted its end.
    end: Vec<u16>,
    /// The targets are truncating, or have truncated.
    is_sent: bool,
    /// The targets have truncated.
    is_over: bool,
    resend: Resend,
}

/// Since when an answer of a host is outstanding, and when it was last requested.
#[derive(Clone, Copy, Debug)]
struct Outstanding {
    since: i64,
    last_request: i64,
}

/// Volatile state of the protocol; see the module.
#[derive(Default)]
pub(crate) struct Sizes {
    glimpses: BTreeMap<u64, Glimpse>,
    truncations: BTreeMap<Inode, Truncation>,
    outstanding: BTreeMap<u16, Outstanding>,
}

impl Sizes {
    /// A job waits for a glimpse; false if it is over.
    pub(crate) fn note_job(&mut self, token: u64, job: u64) -> bool {
        let glimpse = self.glimpses.get_mut(&token);
        glimpse.is_some_and(|glimpse| {
            glimpse.job = job;
            true
        })
    }

    fn note_request(&mut self, host: u16, now: i64) {
        let outstanding =
            self.outstanding.entry(host).or_insert(Outstanding { since: now, last_request: now });
        if now.saturating_sub(outstanding.last_request) > FORGOTTEN_NANOS {
            outstanding.since = now;
        }
        outstanding.last_request = now;
    }

    fn is_silent(&self, cx: &Context, host: u16) -> bool {
        let silence = cx.config.silence_nanos;
        let outstanding = self.outstanding.get(&host);
        outstanding.is_some_and(|outstanding| cx.now.saturating_sub(outstanding.since) > silence)
    }

    fn glimpse(&mut self, cx: &mut Context, call: &Call<'_>, inode: Inode) -> Step<()> {
        let hosts = cx.writers_but(inode, call.header.host);
        if hosts.is_empty() {
            return Ok(());
        }
        let (token, now) = (cx.new_sequence(), cx.now);
        let resend = Resend::after(now, RESEND_NANOS);
        let left: Vec<u16> =
            hosts.iter().copied().filter(|&host| !self.is_silent(cx, host)).collect();
        for &host in &hosts {
            self.query_host(cx, host, &HostMessage::Glimpse { from: cx.address, token, inode });
        }
        if left.is_empty() {
            return Ok(());
        }
        let glimpse = Glimpse { inode, job: 0, left, is_void: false, resend };
        self.glimpses.insert(token, glimpse);
        cx.wake_at(resend.at);
        Err(Stop::Wait(Wait::Glimpse(token)))
    }

    fn query_host(&mut self, cx: &mut Context, host: u16, message: &HostMessage) {
        self.note_request(host, cx.now);
        send_to_host(cx, host, message);
    }

    /// If all hosts have answered, the job proceeds.
    fn end_glimpse(&mut self, cx: &mut Context, token: u64) {
        let is_over = |glimpse: &Glimpse| glimpse.left.iter().all(|&host| self.is_silent(cx, host));
        if !self.glimpses.get(&token).is_some_and(is_over) {
            return;
        }
        let Some(glimpse) = self.glimpses.remove(&token) else { return };
        if let Some(job) = cx.jobs.get_mut(&glimpse.job) {
            job.facts.push(Fact::Glimpsed(glimpse.inode));
            cx.woken.insert(glimpse.job);
        }
    }

    /// Before the targets truncate a file: the hosts that have it open count that. True if they
    /// have, or there is none. `by`: the requesting host.
    pub(crate) fn begin_remote_truncate(
        &mut self,
        cx: &mut Context,
        inode: Inode,
        token: u64,
        size: u64,
        by: u16,
    ) -> bool {
        let Some(node) = cx.state.inodes.get(inode) else { return true };
        if !node.attributes.is_posix() {
            return true;
        }
        let glimpses = self.glimpses.values_mut();
        glimpses
            .filter(|glimpse| glimpse.inode == inode)
            .for_each(|glimpse| glimpse.is_void = true);
        let begin = cx.openers_but(inode, by);
        // The requester may not know of the end of the previous truncation.
        let before =
            self.truncations.remove(&inode).map_or(Vec::new(), |truncation| truncation.end);
        let mut end = begin.clone();
        end.extend(before.into_iter().filter(|&host| host == by));
        if end.is_empty() {
            return true;
        }
        for &host in &begin {
            let from = cx.address;
            self.query_host(cx, host, &HostMessage::BeginTruncate { from, token, inode, size });
        }
        let is_sent = begin.iter().all(|&host| self.is_silent(cx, host));
        if is_sent {
            note_uncounted(cx, inode, &begin);
        }
        let resend = Resend::after(cx.now, RESEND_NANOS);
        cx.wake_at(resend.at);
        let truncation = Truncation { token, size, begin, end, is_sent, is_over: false, resend };
        self.truncations.insert(inode, truncation);
        is_sent
    }

    /// A host has counted the beginning of a truncation.
    fn truncate_begun(&mut self, cx: &mut Context, host: u16, token: u64, inode: Inode) {
        self.outstanding.remove(&host);
        let Some(truncation) = self.truncations.get_mut(&inode) else { return };
        if truncation.token != token || !truncation.begin.contains(&host) {
            return;
        }
        forget_uncounted(cx, inode, host);
        truncation.begin.retain(|&other| other != host);
        let (is_over, size) = (truncation.is_over, truncation.size);
        if is_over {
            // It was silent; the others know already.
            self.send_end(cx, host, token, inode, size);
        }
        self.resume_truncate(cx, inode);
    }

    /// If all hosts have counted the beginning, the targets truncate.
    fn resume_truncate(&mut self, cx: &mut Context, inode: Inode) {
        let is_due = |truncation: &Truncation| {
            !truncation.is_sent && truncation.begin.iter().all(|&host| self.is_silent(cx, host))
        };
        if !self.truncations.get(&inode).is_some_and(is_due) {
            return;
        }
        if let Some(truncation) = self.truncations.get_mut(&inode) {
            truncation.is_sent = true;
            note_uncounted(cx, inode, &truncation.begin);
            send_to_targets(cx, truncation.token);
        }
    }

    /// The targets have truncated: hosts count the end.
    pub(crate) fn end_remote_truncate(&mut self, cx: &mut Context, inode: Inode, token: u64) {
        let Some(truncation) = self.truncations.get_mut(&inode) else { return };
        if truncation.token != token {
            return;
        }
        truncation.is_over = true;
        truncation.resend = Resend::after(cx.now, RESEND_NANOS);
        let (size, at) = (truncation.size, truncation.resend.at);
        let hosts: Vec<u16> = truncation
            .end
            .iter()
            .copied()
            .filter(|host| !truncation.begin.contains(host))
            .collect();
        cx.wake_at(at);
        hosts.into_iter().for_each(|host| self.send_end(cx, host, token, inode, size));
    }

    fn send_end(&mut self, cx: &mut Context, host: u16, token: u64, inode: Inode, size: u64) {
        let from = cx.address;
        self.query_host(cx, host, &HostMessage::EndTruncate { from, token, inode, size });
    }

    /// A host has counted the end of a truncation.
    fn truncate_ended(&mut self, host: u16, token: u64, inode: Inode) {
        self.outstanding.remove(&host);
        let Some(truncation) = self.truncations.get_mut(&inode) else { return };
        if truncation.token == token && !truncation.begin.contains(&host) {
            truncation.end.retain(|&other| other != host);
            if truncation.end.is_empty() && truncation.is_over {
                self.truncations.remove(&inode);
            }
        }
    }

    /// True if a host's report was sent before it counted a truncation that has begun here: then it
    /// is stale.
    pub(crate) fn is_before_truncate(&self, host: u16, inode: Inode) -> bool {
        self.truncations.get(&inode).is_some_and(|truncation| truncation.begin.contains(&host))
    }

    /// A host no longer has a file open: nothing about its size is outstanding there.
    pub(crate) fn forget_sizes(&mut self, cx: &mut Context, host: u16, inode: Inode) {
        let glimpses = self.glimpses.iter_mut();
        let mut tokens = Vec::new();
        for (&token, glimpse) in glimpses.filter(|(_, glimpse)| glimpse.inode == inode) {
            glimpse.left.retain(|&other| other != host);
            tokens.push(token);
        }
        tokens.into_iter().for_each(|token| self.end_glimpse(cx, token));
        if let Some(truncation) = self.truncations.get_mut(&inode) {
            truncation.begin.retain(|&other| other != host);
            truncation.end.retain(|&other| other != host);
            if truncation.end.is_empty() && truncation.is_over {
                self.truncations.remove(&inode);
                return;
            }
        }
        self.resume_truncate(cx, inode);
    }

    /// Timer: resends to hosts that do not answer, and waits for them no longer than the instance's
    /// timeout.
    pub(crate) fn send_sizes_again(&mut self, cx: &mut Context) {
        let (now, from) = (cx.now, cx.address);
        let jobs = &cx.jobs;
        self.glimpses.retain(|_, glimpse| jobs.contains_key(&glimpse.job));
        let (mut messages, mut tokens, mut inodes) = (Vec::new(), Vec::new(), Vec::new());
        for (&token, glimpse) in &mut self.glimpses {
            let inode = glimpse.inode;
            if glimpse.resend.is_due(now) {
                let message = HostMessage::Glimpse { from, token, inode };
                messages.extend(glimpse.left.iter().map(|&host| (host, message)));
            }
            tokens.push((token, glimpse.resend.at));
        }
        for (&inode, truncation) in &mut self.truncations {
            let (token, size) = (truncation.token, truncation.size);
            if truncation.resend.is_due(now) {
                let begin = HostMessage::BeginTruncate { from, token, inode, size };
                messages.extend(truncation.begin.iter().map(|&host| (host, begin)));
                let end = HostMessage::EndTruncate { from, token, inode, size };
                let is_reported =
                    |host: &&u16| truncation.is_over && !truncation.begin.contains(host);
                messages.extend(truncation.end.iter().filter(is_reported).map(|&host| (host, end)));
            }
            inodes.push((inode, truncation.resend.at));
        }
        for (host, message) in messages {
            self.query_host(cx, host, &message);
        }
        for (token, at) in tokens {
            cx.wake_at(at);
            self.end_glimpse(cx, token);
        }
        for (inode, at) in inodes {
            cx.wake_at(at);
            self.resume_truncate(cx, inode);
        }
    }

    /// At a start: it is unknown which hosts counted the beginning of a truncation and not its end.
    /// Truncations that targets perform again are announced again; for all other files the end is.
    pub(crate) fn begin_sizes(&mut self, cx: &mut Context) {
        let pending: Vec<Inode> = cx.state.pending.values().map(|one| one.inode).collect();
        let resend = Resend::after(cx.now, 0);
        let open: Vec<(Inode, Vec<u16>, u64)> = cx
            .state
            .hosts
            .iter()
            .filter(|(inode, _)| !pending.contains(inode))
            .filter_map(|(&inode, hosts)| {
                let attributes = cx.state.inodes.get(inode)?.attributes;
                let hosts = hosts.iter().map(|known| known.host).collect();
                attributes.is_posix().then_some((inode, hosts, attributes.size))
            })
            .collect();
        for (inode, end, size) in open {
            let token = cx.new_sequence();
            let begin = Vec::new();
            let truncation =
                Truncation { token, size, begin, end, is_sent: true, is_over: true, resend };
            self.truncations.insert(inode, truncation);
        }
    }
}

impl Files {
    /// Before an answer or decision that depends on the size or modification time of a file:
    /// proceeds when all hosts have reported. The requester's own host knows its unreported size,
    /// and has reported it.
    pub(crate) fn settle_size(&mut self, call: &Call<'_>, inode: Inode) -> Step<()> {
        let Some(node) = self.cx.state.inodes.get(inode) else { return Ok(()) };
        let attributes = node.attributes;
        if !is_glimpsed(&attributes) {
            return Ok(());
        }
        if self.cx.busy.contains_key(&inode) {
            return Err(Stop::Wait(Wait::Data(inode)));
        }
        if !call.facts.contains(&Fact::Glimpsed(inode)) {
            self.sizes.glimpse(&mut self.cx, call, inode)?;
        }
        self.take_unreported(call, &attributes)
    }

    /// As `settle_size`, for an answer that may omit the file: false then.
    pub(crate) fn is_settled(&mut self, call: &Call<'_>, attributes: &Attributes) -> bool {
        let inode = attributes.inode;
        if !is_glimpsed(attributes) {
            return true;
        }
        let is_known = !self.cx.busy.contains_key(&inode)
            && self.cx.writers_but(inode, call.header.host).is_empty();
        is_known && self.take_unreported(call, attributes).is_ok()
    }

    /// Takes the unreported size of this host, for a requester on another host.
    fn take_unreported(&mut self, call: &Call<'_>, attributes: &Attributes) -> Step<()> {
        if call.header.host == self.cx.config.host {
            return Ok(());
        }
        let inode = attributes.inode;
        let Some(end) = call.host_view.unreported(inode).filter(|&end| end != 0) else {
            return Ok(());
        };
        self.cx.check_vnode(inode)?;
        take_reported_size(&mut self.cx, attributes, end);
        self.caches.notify_mounts_of(&mut self.cx, call, inode);
        self.cx.io.push(Effect::SizeReported { inode, end });
        Ok(())
    }

    /// Takes a host's message about the size of a file.
    pub(crate) fn take_size(&mut self, message: &Message<'_>) {
        match *message {
            Message::Glimpsed { host, token, inode, end } => {
                self.glimpsed(host, token, inode, end);
            }
            Message::TruncateBegun { host, token, inode } => {
                self.sizes.truncate_begun(&mut self.cx, host, token, inode);
            }
            Message::TruncateEnded { host, token, inode } => {
                self.sizes.truncate_ended(host, token, inode);
            }
            _ => {}
        }
    }

    /// A host reports the unreported size of a file; 0: nothing.
    fn glimpsed(&mut self, host: u16, token: u64, inode: Inode, end: u64) {
        self.sizes.outstanding.remove(&host);
        let owes = self
            .sizes
            .truncations
            .get(&inode)
            .is_some_and(|truncation| truncation.begin.contains(&host));
        let Some(glimpse) = self.sizes.glimpses.get_mut(&token) else { return };
        if glimpse.inode != inode || !glimpse.left.contains(&host) {
            return;
        }
        glimpse.left.retain(|&other| other != host);
        let counts = end != 0 && !glimpse.is_void && !owes;
        if counts && let Some(node) = self.cx.state.inodes.get(inode) {
            let attributes = node.attributes;
            take_reported_size(&mut self.cx, &attributes, end);
            self.caches.remote.notify_remote_mounts(
                &mut self.cx,
                &mut self.caches.local,
                None,
                &Changing::Attributes(inode),
            );
            send_to_host(&mut self.cx, host, &HostMessage::SizeReported { inode, end });
        }
        self.sizes.end_glimpse(&mut self.cx, token);
    }
}

/// The targets are about to truncate a file before the host of the first owner has counted that, which
/// does not answer. It is recorded as one that has the file open, until it has counted that or has the
/// service again (`Service::meet_host`).
fn note_uncounted(cx: &mut Context, inode: Inode, begin: &[u16]) {
    let unknown = cx.unknown_opener(inode).filter(|host| begin.contains(host));
    let mut hosts = cx.state.hosts.get(&inode).cloned().unwrap_or_default();
    if let Some(host) = unknown.filter(|host| hosts.iter().all(|known| known.host != *host)) {
        hosts.push(Opening { host, open_sequence: 0, writes: true, caches: false });
        put_hosts(cx, inode, &hosts);
    }
}

/// The host of the first owner has counted it now.
fn forget_uncounted(cx: &mut Context, inode: Inode, host: u16) {
    let is_noted = |known: &Opening| known.host == host && known.open_sequence == 0;
    let Some(hosts) = cx.state.hosts.get(&inode).filter(|hosts| hosts.iter().any(is_noted)) else {
        return;
    };
    if cx.unknown_opener(inode) == Some(host) {
        let left: Vec<Opening> = hosts.iter().copied().filter(|known| !is_noted(known)).collect();
        put_hosts(cx, inode, &left);
    }
}

/// A file was written up to `end`.
fn take_reported_size(cx: &mut Context, old: &Attributes, end: u64) {
    let mut attributes = *old;
    attributes.size = old.size.max(end.min(FILE_BYTES_MAX));
    attributes.changed = cx.stamp(old.changed);
    attributes.modified = attributes.changed;
    cx.put(&Record::PutAttributes { attributes });
}

fn send_to_host(cx: &mut Context, host: u16, message: &HostMessage) {
    let bytes = message.encode();
    cx.io.push(Effect::Host { to: DaemonIndex(host), bytes });
}

/// True if hosts may know more of the file's size than its shard.
const fn is_glimpsed(attributes: &Attributes) -> bool {
    attributes.is_posix() && attributes.is_regular() && !attributes.is_inline()
}

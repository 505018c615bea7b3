//! Destinations of replies, and the encoding of replies. Their delivery is in `delivery`.

use crate::host::size_request::SizeRequest;
use crate::sessions::client_session::ClientSession;
use crate::threads::elsewhere::OwnFetch;
use crate::units::{DividedAsk, PassedAsk, PushAttempt};
use shm::host::releases::ReleaseIndex;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use wire::codec::{Reader, Writer};
use wire::errno::{Errno, Result};
use wire::{DaemonIndex, Header, Inode, Reply, ShardIndex, reply};

/// Retry delay for a request to a lost peer, which needs at least this long to come back.
pub(crate) const LOST_MICROS: u32 = 10_000;
/// Retry delay for a request that found a full queue.
pub(crate) const FULL_MICROS: u32 = 1_000;

/// Removed files at a target, of which it frees the space by one message.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct RemovalPlace {
    pub(crate) target: DaemonIndex,
    /// Of which number of copies they are, as their numbers say (`Inode::copies`).
    pub(crate) copies: u8,
}

/// Identity of a request: client id of its sender, and sequence number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Sender {
    pub(crate) client_id: u64,
    pub(crate) sequence: u64,
}

impl Sender {
    /// Identity of an encoded request. A request that cannot be decoded is refused anyway.
    pub(crate) fn of(bytes: &[u8]) -> Sender {
        let header = Header::decode(&mut Reader::new(bytes));
        header.map_or(Sender { client_id: 0, sequence: 0 }, |header| Sender {
            client_id: header.client_id,
            sequence: header.sequence,
        })
    }
}

/// Destination of a reply.
pub(crate) enum ReplyTo {
    /// A request slot or reply slot of a session.
    Slot { client: Arc<ClientSession>, slot: u16 },
    /// As `Slot`; another daemon's reply to a walk may also grant leases (`leases`).
    Walk { client: Arc<ClientSession>, slot: u16, sent_nanos: i64, request: Vec<u8> },
    /// As `Slot`; another daemon's reply is inspected first (`sizes`).
    Size { client: Arc<ClientSession>, slot: u16, request: SizeRequest },
    /// A session, for a request for bytes with copies (`units`).
    Passed(PassedAsk),
    /// A request of a service that was divided (`units`): this is the answer to a part.
    Divided(Arc<DividedAsk>),
    /// The units of this daemon: an attempt of a write that has returned.
    PushedCopy(PushAttempt),
    /// The units of this daemon: how old the file of a request is.
    KnownLoss { ticket: u64 },
    /// The units of this daemon: the target's answer to bytes of a copy.
    StoredCopy { ticket: u64 },
    /// Another daemon, for the sender of the request.
    Peer(net::ReplyHandle, Sender),
    /// A part of a job of a worker of this daemon.
    Part { worker: usize, job: u64, daemon: u16 },
    /// The removals of a worker of this daemon.
    Removals { worker: usize, place: RemovalPlace },
    /// The target of this daemon: owners of files.
    Owners { query: u64 },
    /// The target of this daemon: the backing location of a file.
    LocateBacking { inode: Inode },
    /// The target of this daemon: whether a file is clean.
    IsClean { inode: Inode, number: u64 },
    /// The target of this daemon: whether a service has freed space.
    SpaceReport { round: u64, shard: ShardIndex },
    /// The target of this daemon: release of a spilled extent.
    SpilledReleased { slot: u32 },
    /// A fetch of a client of this host, whose extent migrated to this daemon.
    OwnFetch(Box<OwnFetch>),
    /// A peer's transfer that waits for its extent.
    Visit(net::bulk::Visit),
    /// A lock release of a dead process.
    Release { entry: ReleaseIndex },
    /// A thread that waits for it on this channel, which has room for it.
    Thread(SyncSender<Vec<u8>>),
    /// No one waits; the clone counts the requests in flight (`unreported`).
    UnreportedSizes(Arc<()>),
    /// No one waits for it.
    Nobody,
}

/// A target's answer to its part of a job.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PartAnswer {
    /// Done, or refused permanently.
    Ended(Result<()>),
    /// To be repeated after this many microseconds.
    Again(u64),
}

/// The answer to a part of a job that a reply holds.
pub(crate) fn part_answer(bytes: &[u8]) -> PartAnswer {
    match Reply::decode(&mut Reader::new(bytes)) {
        Ok(Reply::Busy { retry_micros }) => PartAnswer::Again(u64::from(retry_micros)),
        Ok(Reply::Stale { .. }) => PartAnswer::Again(u64::from(LOST_MICROS)),
        Ok(Reply::Refused { errno }) => PartAnswer::Ended(Err(errno)),
        Ok(_) => PartAnswer::Ended(Ok(())),
        Err(_) => PartAnswer::Ended(Err(Errno::EIO)),
    }
}

/// Buffer size for a reply with `payload` bytes of data.
pub(crate) const fn reply_capacity(payload: usize) -> usize {
    payload + 64
}

/// Encodes extents, of a request that waited for so long for space.
pub(crate) fn encode_extents(extents: &[reply::Extent], waited_micros: u32) -> Vec<u8> {
    use wire::codec::Field;
    let mut list = vec![0; extents.len() * reply::Extent::BYTES];
    let mut writer = Writer::new(&mut list);
    for extent in extents {
        extent.put(&mut writer);
    }
    let reply = match waited_micros {
        0 => Reply::Extents { extents: &list },
        _ => Reply::ExtentsAfterWait { waited_micros, extents: &list },
    };
    encode_reply(&reply, list.len())
}

/// Encodes a reply whose variable part is `payload` bytes long.
pub(crate) fn encode_reply(reply: &Reply<'_>, payload: usize) -> Vec<u8> {
    let mut bytes = vec![0; reply_capacity(payload)];
    let mut writer = Writer::new(&mut bytes);
    reply.encode(&mut writer);
    let length = writer.finish().unwrap_or(0);
    bytes.truncate(length);
    bytes
}

/// Encodes a reply without a variable part.
pub(crate) fn encode_short<'a>(reply: &Reply<'_>, bytes: &'a mut [u8; 256]) -> &'a [u8] {
    let mut writer = Writer::new(bytes);
    reply.encode(&mut writer);
    let length = writer.finish().unwrap_or(0);
    bytes.get(..length).unwrap_or_default()
}

//! What all threads of the daemon reach: the router, the bells, the inboxes, the host segment.
//!
//! Nothing here is a core's state; figures are for looking at only.

use crate::accounts::Books;
use crate::below::Below;
use crate::bulk::BulkEnds;
use crate::inbox::{Inbox, Note};
use crate::leases::Held;
use crate::lend::Desk;
use crate::open::Open;
use crate::origins::Origins;
use crate::releases::Releases;
use crate::reply::{FULL_MICROS, LOST_MICROS, ReplyTo};
use crate::sizes::Sizes;
use crate::untold::Untold;
use gateway::{Admitted, Route, Router, Session};
use net::Haste;
use placement::map::WORKER_OF_TARGET;
use shm::doorbell::Doorbells;
use shm::host::HostSegment;
use shm::posts::Posts;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64};
use std::time::{Duration, Instant};
use wire::codec::Writer;
use wire::limits::SLOT_BYTES;
use wire::quota::Account;
use wire::{Credentials, Header, Inode, Reply, Request, ShardIndex};

/// A session with its memory.
pub(crate) struct Guest {
    /// Who it is.
    pub(crate) session: Session,
    /// Its slots.
    pub(crate) slots: shm::session::Session,
}

/// Figures of one worker, for `status`.
#[derive(Default)]
pub(crate) struct Figures {
    /// Requests answered or passed on.
    pub(crate) requests: AtomicU64,
    /// Inodes.
    pub(crate) files: AtomicU64,
    /// Origins whose last request is remembered.
    pub(crate) outcomes: AtomicU64,
    /// Length of the log.
    pub(crate) log_bytes: AtomicU64,
}

/// Space of the target, for `status`.
#[derive(Default)]
pub(crate) struct SpaceFigures {
    pub(crate) memory_total: AtomicU64,
    pub(crate) memory_free: AtomicU64,
    pub(crate) ssd_total: AtomicU64,
    pub(crate) ssd_free: AtomicU64,
    /// Bytes that moved from memory to the SSD.
    pub(crate) bytes_sunk: AtomicU64,
    /// Microseconds that copying them took.
    pub(crate) sunk_micros: AtomicU64,
    /// Bytes of pieces that writers had made.
    pub(crate) bytes_made: AtomicU64,
    /// Of these, bytes for which memory had no room.
    pub(crate) bytes_missed: AtomicU64,
    /// Bytes that sank and were wanted again.
    pub(crate) bytes_returned: AtomicU64,
    /// With less memory free, what is idle sinks, and anything.
    pub(crate) room_below: AtomicU64,
    /// See `room_below`.
    pub(crate) reserve_below: AtomicU64,
    /// Why, a `data::thresholds::Reason`.
    pub(crate) thresholds_reason: AtomicU8,
    /// Bytes that moved from the SSD to memory.
    pub(crate) bytes_risen: AtomicU64,
    /// Bytes of memory in pinned files.
    pub(crate) bytes_pinned: AtomicU64,
    /// Bytes of this target in the memory of others.
    pub(crate) bytes_abroad: AtomicU64,
    /// Bytes of others here.
    pub(crate) bytes_kept: AtomicU64,
    /// Such moves, either way, that were ended by use.
    pub(crate) moves_cancelled: AtomicU64,
    /// Users who have pieces in memory that may go, as far as they are known.
    pub(crate) memory_users: AtomicU64,
    /// Writes that wait for room now.
    pub(crate) writers_waiting: AtomicU64,
    /// Writes that waited, till now.
    pub(crate) waits: AtomicU64,
    /// For how long, all together.
    pub(crate) wait_micros: AtomicU64,
    /// And at most.
    pub(crate) wait_micros_max: AtomicU64,
    /// Bytes that were dropped, as they lie in the backing directory.
    pub(crate) bytes_dropped: AtomicU64,
}

/// Of the history of a job.
#[derive(Debug, Default)]
pub(crate) struct HistoryFigures {
    /// Files whose first use was noted.
    pub(crate) noted: AtomicU64,
    /// Files that the last run's names, and of those that were used how many it did and did not.
    pub(crate) named: AtomicU64,
    pub(crate) right: AtomicU64,
    pub(crate) wrong: AtomicU64,
    /// 1: it is not followed any more.
    pub(crate) given_up: AtomicU64,
}

/// What all threads reach.
pub(crate) struct Shared {
    /// See there.
    pub(crate) history: HistoryFigures,
    /// Who answers what.
    pub(crate) router: Router,
    /// The number of this host.
    pub(crate) host_number: u16,
    /// Daemons of this host.
    pub(crate) host_count: u16,
    /// Bells of the workers.
    pub(crate) bells: Doorbells,
    /// Inboxes of the workers.
    pub(crate) inboxes: Vec<Inbox>,
    /// The other daemons.
    pub(crate) net: net::Sender<ReplyTo>,
    /// Bytes from and to the other daemons.
    pub(crate) bulk: fabric::bulk::Doors<BulkEnds>,
    /// Open files of this host.
    pub(crate) host: HostSegment,
    /// The thread of `net` is awake and takes the rings of workers that sleep.
    pub(crate) net_watches: AtomicBool,
    /// Operations that clients completed by themselves.
    pub(crate) posts: Posts,
    /// What this host's clients may believe of other hosts' directories.
    pub(crate) leases: Held,
    /// Sizes of files of other hosts' shards that are open here.
    pub(crate) sizes: Sizes,
    /// See there. `None`: files that are written to can not be saved.
    pub(crate) untold: Option<Untold>,
    /// What was given to sessions, and is gone.
    pub(crate) origins: Origins,
    /// Sessions whose clients may pin.
    pub(crate) open: Open,
    /// Locks that are to end.
    pub(crate) releases: Releases,
    /// Whose the target's bytes are.
    pub(crate) books: Books,
    /// How much memory is lent.
    pub(crate) lend: Desk,
    /// The backing directory, if there is one.
    pub(crate) below: Option<Below>,
    /// Bound on every wait of a client.
    pub(crate) timeout: Duration,
    /// How long a write waits for room at most.
    pub(crate) patience_millis: u32,
    /// Set once: everybody ends what he does.
    pub(crate) stopping: AtomicBool,
    /// When this daemon began.
    pub(crate) begun: Instant,
    /// For each worker.
    pub(crate) figures: Vec<Figures>,
    /// Of the target.
    pub(crate) space: SpaceFigures,
}

/// Kinds of messages between daemons: the first byte.
pub(crate) mod message {
    /// For the metadata service of a shard (two bytes); the rest is its own.
    pub(crate) const METADATA: u8 = 1;
    /// Origins that are gone: first and count, eight bytes each.
    pub(crate) const ORIGIN_GONE: u8 = 2;
    /// A request whose answer nobody waits for, header first.
    pub(crate) const REQUEST: u8 = 3;
    /// A word of a metadata service about leases; the rest is its own.
    pub(crate) const LEASES: u8 = 4;
    /// A request whose sender is dead: origin and number, eight bytes each.
    pub(crate) const WITHDRAWN: u8 = 5;
    /// A file that is kept because the receiver's host has it open, eight bytes: has it?
    pub(crate) const IS_OPEN: u8 = 6;
    /// For the metadata service of a worker (one byte); the rest is its own.
    pub(crate) const SERVICE: u8 = 7;
    /// Origins of the receiver's sessions, eight bytes each: which of them are gone?
    pub(crate) const ORIGINS: u8 = 8;
    /// A word of a metadata service about the size of a file; the rest is its own.
    pub(crate) const SIZES: u8 = 16;
}

/// Encodes header and request.
pub(crate) fn encode_request(header: &Header, request: &Request<'_>) -> Vec<u8> {
    let mut bytes = [0; SLOT_BYTES];
    let mut writer = Writer::new(&mut bytes);
    header.encode(&mut writer);
    request.encode(&mut writer);
    let length = writer.finish().unwrap_or(0);
    bytes.get(..length).unwrap_or_default().to_vec()
}

impl Shared {
    /// Tells a worker something that its inbox always takes, or that may be lost.
    pub(crate) fn tell(&self, worker: usize, note: Note) {
        if self.try_tell(worker, note).is_err() {
            tracing::debug!(worker, "inbox full, message dropped");
        }
    }

    /// Tells a worker something.
    ///
    /// # Errors
    /// The note, if the inbox is full.
    pub(crate) fn try_tell(&self, worker: usize, note: Note) -> Result<(), Note> {
        let Some(inbox) = self.inboxes.get(worker) else { return Err(note) };
        inbox.put(note)?;
        // The worker exists, so it has a bell.
        let _ = self.bells.kick(worker);
        Ok(())
    }

    /// The target wants so many bytes more for an account.
    pub(crate) fn draw_space(&self, account: Account, wanted: u64) {
        self.tell(WORKER_OF_TARGET, Note::DrawSpace { account, wanted });
    }

    /// Hands an admitted request, header first, to a worker.
    pub(crate) fn hand_to_worker(&self, worker: usize, bytes: Vec<u8>, to: ReplyTo) {
        if let Err(Note::Request { to, .. }) = self.try_tell(worker, Note::Request { bytes, to }) {
            self.busy(to, FULL_MICROS);
        }
    }

    /// Hands an admitted request, header first, to another daemon. It waits for `net.flush`.
    pub(crate) fn hand_to_peer(&self, peer: wire::DaemonIndex, bytes: &[u8], to: ReplyTo) {
        if let Err(to) = self.net.request(peer, bytes, to) {
            self.busy(to, LOST_MICROS);
        }
    }

    /// Hands an admitted request whose answer nobody waits for to another daemon. It has time:
    /// nothing depends on it but what is sent after it.
    pub(crate) fn tell_peer(&self, peer: wire::DaemonIndex, admitted: &Admitted<'_>, to: ReplyTo) {
        let mut bytes = admitted.encode();
        bytes.insert(0, message::REQUEST);
        // Lost with a lost peer, or with one that takes nothing any more.
        if self.net.message(peer, &bytes, Haste::WithOthers).is_err() {
            tracing::debug!(peer = peer.0, "message dropped");
        }
        self.answer_with(to, &Reply::Done {});
    }

    /// Hands a request of this daemon's own to whoever answers it; see `hand_to_peer`.
    pub(crate) fn hand_in(&self, header: &Header, request: &Request<'_>, to: ReplyTo) {
        let bytes = encode_request(header, request);
        match self.router.route(header, gateway::route::From::Session) {
            Ok(Route::Worker(worker)) => self.hand_to_worker(worker, bytes, to),
            Ok(Route::Peer(peer)) => match *request {
                Request::Extend { inode, .. } => self.tell_untold(peer, header, inode, to),
                _ => self.hand_to_peer(peer, &bytes, to),
            },
            Ok(Route::Stale(epoch)) => self.answer_with(to, &Reply::Stale { epoch }),
            Ok(Route::Wait) => self.busy(to, LOST_MICROS),
            Err(errno) => self.refuse(to, errno),
        }
    }

    /// A file of a shard of another host was counted out here, or is asked for: tells the shard, unless
    /// somebody has it open.
    pub(crate) fn tell_if_closed(&self, inode: Inode) {
        if !self.is_on_host(inode.shard())
            && let Some(turn) = self.host.draw_turn_of_close(inode)
        {
            let close = Request::Close { inode, turn };
            self.hand_in(&self.own_header(inode.shard()), &close, ReplyTo::Nobody);
        }
    }

    /// The header of a request of this daemon's own.
    pub(crate) fn own_header(&self, shard: ShardIndex) -> Header {
        Header {
            shard: shard.0,
            daemon: self.router.map.owner(shard).0,
            epoch: self.router.map.epoch,
            origin: u64::MAX,
            sequence: 0,
            host: self.host_number,
            mount: 0,
            who: Credentials::ROOT,
        }
    }

    /// True if the owner of a shard is on this host, where it sees the host segment.
    pub(crate) fn is_on_host(&self, shard: ShardIndex) -> bool {
        let place = self.router.map.owner(shard).0.checked_sub(self.host_number);
        place.is_some_and(|place| place < self.host_count)
    }

    /// Files of this daemon.
    pub(crate) fn files(&self) -> u64 {
        self.figures.iter().map(|figures| figures.files.load(Relaxed)).sum()
    }
}

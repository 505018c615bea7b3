//! Messages of other threads to a worker; those to a service that was taken over are in `taken_inbox`.
//!
//! Requests and messages of peers are bounded: if the inbox is full, they are refused at once. The
//! number of other messages is bounded by their causes (a part of a job, a preallocation) or by the
//! number of sessions.

use crate::backing::fetch::FetchOutcome;
use crate::backing::list::ListingPart;
use crate::sessions::client_session::ClientSession;
use crate::sessions::settlement::Settlement;
use crate::shared::gone_hosts::GoneHost;
use crate::shared::reply::{PartAnswer, RemovalPlace, ReplyTo};
use crate::shared::taken_inbox::TakenInbox;
use crate::shares::inbox::StartTicket;
use crate::units::StoreOrder;
use cluster::shipping::Lane;
use data::tiering::lending_policy::AllowanceReason;
use metadata::SnapshotCursor;
use placement::map::WORKER_OF_TARGET;
use shm::session::Doorbells;
use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use store::Journal;
use wire::errno::Result;
use wire::quota::Account;
use wire::reply::Extent;
use wire::{DaemonIndex, Inode, ShardIndex};

/// Maximum number of messages in an inbox beyond which requests and peer messages are refused.
pub(super) const WAITING_MAX: usize = 16 * 1024;

/// A message to a worker.
pub(crate) enum WorkerMessage {
    /// A session opens; precedes every ring of it.
    Opened(Arc<ClientSession>),
    /// The session with this index has ended.
    Closed(u16),
    /// The request of a slot that had to wait for its share starts.
    Released { client: Arc<ClientSession>, slot: u16, ticket: Option<StartTicket> },
    /// An admitted request, header first, for this worker.
    Request { bytes: Vec<u8>, to: ReplyTo },
    /// A message of another metadata service for a shard of this worker.
    Peer(Vec<u8>),
    /// Client ids that will send nothing any more.
    ClientGone { first: u64, count: u64 },
    /// Requests of killed processes of this host are to be over.
    Settle(Arc<Settlement>),
    /// The instance has more daemons: the services of those do not know limits and pools.
    Grown,
    /// The sender of a request is dead: its client id and sequence number.
    Withdrawn { client_id: u64, sequence: u64 },
    /// Units of file data have lost all their copies, the last ones in this version of their table.
    UnitsLost { loss: u64 },
    /// The service of this worker is about to leave this host for good: `TakenInbox::pause`.
    Leave { pause: u64 },
    /// Another service of this daemon leaves it, with notices for mounts.
    DoubtNotices,
    /// The host of a service's first owner, which this daemon took the service over from, is gone.
    HostGone { host: u16 },
    /// A host is gone, and another one comes in its place.
    HostLost(GoneHost),
    /// A target answered its part of a job of this worker.
    Part { job: u64, daemon: u16, answer: PartAnswer },
    /// A target answered a removal of this worker.
    Removals { place: RemovalPlace, answer: PartAnswer },
    /// The target must count space by account.
    Count,
    /// A shard reports the owners of files.
    Owners { query: u64, answer: Vec<u8> },
    /// A shard reports the backing location of a file.
    BackingLocated { inode: Inode, answer: Vec<u8> },
    /// A shard reports whether a file is clean.
    IsClean { inode: Inode, number: u64, is_clean: bool },
    /// Result of fetching bytes from the backing store for the target.
    Fetched { ticket: u64, outcome: FetchOutcome },
    /// Entries of a backing directory, or an error.
    ListingPart { directory: Inode, outcome: Result<ListingPart> },
    /// Result of probing a name in the backing store.
    Looked { key: u128, outcome: Result<Box<Option<backing::Entry>>> },
    /// A service, named by one of its shards, has freed space in a round.
    GaveBack { by: (u64, ShardIndex), answer: Vec<u8> },
    /// The target wants so many bytes more for an account.
    DrawSpace { account: Account, requested: u64 },
    /// The allowance of an account has changed, or (`denied`) an increase was denied.
    Allowed { account: Account, denied: bool },
    /// Followers have all records up to a ticket of this worker.
    Replicated { ticket: u64 },
    /// A follower needs the next slice of the service's snapshot.
    Slice { lane: Lane, cursor: SnapshotCursor },
    /// Whether a device has provisioned the requested space.
    Provisioned(Result<()>),
    /// New maximum number of bytes in the arena, and the reason for it.
    Lend { bytes: u64, reason: AllowanceReason },
    /// Whether a block of the arena was released to the system.
    GivenBack { place: u64, length_log2: u8, outcome: Result<()> },
    /// The clean extents of a file are to be evicted, because one of them is damaged.
    Evict { inode: Inode },
    /// Whether an extent was copied between tiers.
    Copied { ticket: u64, outcome: Result<()> },
    /// Bytes of a spilled extent for a reader, or an error.
    ReadSpilled { ticket: u64, extent: Extent, outcome: Result<Vec<u8>> },
    /// Bytes of a copy for the target.
    StoreCopy(StoreOrder),
    /// A service says that the target is slow, and which others are not.
    Slow { others: Vec<DaemonIndex> },
    /// A spill host answered the release of a spilled extent.
    SpilledReleased { slot: u32, answer: PartAnswer },
}

impl WorkerMessage {
    pub(super) const fn is_bounded(&self) -> bool {
        matches!(self, WorkerMessage::Request { .. } | WorkerMessage::Peer(_))
    }
}

/// The inbox of one worker.
#[derive(Default)]
pub(crate) struct Inbox {
    queue: Mutex<VecDeque<WorkerMessage>>,
}

impl Inbox {
    /// Queues a message.
    ///
    /// # Errors
    /// The message, if the inbox is full.
    pub(crate) fn put(&self, note: WorkerMessage) -> std::result::Result<(), WorkerMessage> {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        if note.is_bounded() && queue.len() >= WAITING_MAX {
            return Err(note);
        }
        queue.push_back(note);
        Ok(())
    }

    /// True if no message waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    /// Takes all messages; `emptied` is an empty queue whose memory is reused.
    pub(crate) fn take(&self, emptied: &mut VecDeque<WorkerMessage>) {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::swap(&mut *queue, emptied);
    }
}

/// The inboxes of all workers, with the doorbells that wake them; behind them by number (`owners`) those
/// of services that this daemon may take over.
pub(crate) struct Inboxes {
    /// Doorbells of the workers.
    pub(crate) bells: Doorbells,
    inboxes: Vec<Inbox>,
    /// When the services of the workers are theirs.
    own: Vec<TakenInbox>,
    taken_over: Vec<TakenInbox>,
    /// Numbers of those that run, for messages to all.
    running: Mutex<BTreeSet<usize>>,
}

impl Inboxes {
    /// Empty inboxes of `workers` workers, and of `services` that may be taken over.
    pub(crate) fn new(bells: Doorbells, workers: usize, services: usize) -> Inboxes {
        Inboxes {
            bells,
            inboxes: (0..workers).map(|_| Inbox::default()).collect(),
            own: (0..workers).map(|_| TakenInbox::default()).collect(),
            taken_over: (0..services).map(|_| TakenInbox::default()).collect(),
            running: Mutex::default(),
        }
    }

    /// The inbox of a service that may be taken over, by its number.
    fn taken_over(&self, number: usize) -> Option<&TakenInbox> {
        self.taken_over.get(number.checked_sub(self.inboxes.len())?)
    }

    /// When the service of this number is served here. That of a worker has its messages elsewhere.
    pub(crate) fn tenure(&self, number: usize) -> Option<&TakenInbox> {
        self.own.get(number).or_else(|| self.taken_over(number))
    }

    fn running(&self) -> MutexGuard<'_, BTreeSet<usize>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The log of a service is replayed, in this epoch.
    pub(crate) fn note_replayed(&self, number: usize, epoch: u64) {
        if let Some(tenure) = self.tenure(number) {
            tenure.replayed(epoch);
        }
    }

    /// A service that was taken over begins to take messages, in this epoch.
    pub(crate) fn note_ready(&self, number: usize, epoch: u64) {
        if let Some(inbox) = self.taken_over(number) {
            self.running().insert(number);
            inbox.ready(epoch);
        }
    }

    /// A service has ended here, and gives up its log. Returns the messages that it has not taken.
    pub(crate) fn note_end(&self, number: usize, log: Option<Journal>) -> VecDeque<WorkerMessage> {
        self.running().remove(&number);
        self.tenure(number).map_or_else(VecDeque::new, |tenure| tenure.end(log))
    }

    /// The log of a service cannot be replayed in this epoch.
    pub(crate) fn note_failure(&self, number: usize, epoch: u64, why: String) {
        if let Some(tenure) = self.tenure(number) {
            tenure.fail(epoch, why);
        }
    }

    /// Has all services that were taken over end.
    pub(crate) fn give_up_taken_over(&self) {
        self.taken_over.iter().for_each(TakenInbox::give_up);
    }

    /// The daemon ends: nothing waits to begin.
    pub(crate) fn give_up_all(&self) {
        self.own.iter().for_each(TakenInbox::give_up);
        self.give_up_taken_over();
    }

    /// Client ids are gone: tells the services that were taken over.
    pub(crate) fn client_gone_elsewhere(&self, first: u64, count: u64) {
        for number in self.running().clone() {
            self.send_to_worker(number, WorkerMessage::ClientGone { first, count });
        }
    }

    /// As `client_gone_elsewhere`, and tells the workers.
    pub(crate) fn client_gone(&self, first: u64, count: u64) {
        for worker in 0..self.inboxes.len() {
            self.send_to_worker(worker, WorkerMessage::ClientGone { first, count });
        }
        self.client_gone_elsewhere(first, count);
    }

    /// The sender of a request is dead: tells the services that were taken over.
    pub(crate) fn withdrawn_elsewhere(&self, client_id: u64, sequence: u64) {
        for number in self.running().clone() {
            self.send_to_worker(number, WorkerMessage::Withdrawn { client_id, sequence });
        }
    }

    /// As `withdrawn_elsewhere`, and tells the workers.
    pub(crate) fn withdrawn(&self, client_id: u64, sequence: u64) {
        for worker in 0..self.inboxes.len() {
            self.send_to_worker(worker, WorkerMessage::Withdrawn { client_id, sequence });
        }
        self.withdrawn_elsewhere(client_id, sequence);
    }

    /// Units of file data have lost all their copies: tells all services here.
    pub(crate) fn units_lost(&self, loss: u64) {
        let running = self.running().clone();
        for number in (0..self.inboxes.len()).chain(running) {
            self.send_to_worker(number, WorkerMessage::UnitsLost { loss });
        }
    }

    /// The inbox of a worker.
    pub(crate) fn of(&self, worker: usize) -> Option<&Inbox> {
        self.inboxes.get(worker)
    }

    /// Sends a message to a worker, or to a service that was taken over. It must be of a kind that the
    /// inbox always accepts, or that may be lost.
    pub(crate) fn send_to_worker(&self, worker: usize, note: WorkerMessage) {
        if self.try_send_to_worker(worker, note).is_err() {
            tracing::debug!(worker, "inbox full, or closed: message dropped");
        }
    }

    /// Has all workers handle a settlement.
    pub(crate) fn settle(&self, settlement: &Arc<Settlement>) {
        for worker in 0..self.inboxes.len() {
            self.send_to_worker(worker, WorkerMessage::Settle(Arc::clone(settlement)));
        }
    }

    /// Sends a message to the worker that owns the target; see `send_to_worker`.
    pub(crate) fn send_to_target(&self, note: WorkerMessage) {
        self.send_to_worker(WORKER_OF_TARGET, note);
    }

    /// Sends a message to a worker, or to a service that was taken over.
    ///
    /// # Errors
    /// The message, if the inbox is full, or the service does not run here.
    pub(crate) fn try_send_to_worker(
        &self,
        worker: usize,
        note: WorkerMessage,
    ) -> std::result::Result<(), WorkerMessage> {
        let Some(inbox) = self.inboxes.get(worker) else {
            return match self.taken_over(worker) {
                Some(inbox) => inbox.put(note),
                None => Err(note),
            };
        };
        inbox.put(note)?;
        // The worker exists, so it has a doorbell.
        let _ = self.bells.wake(worker);
        Ok(())
    }

    /// The target needs `requested` more bytes for an account.
    pub(crate) fn draw_space(&self, account: Account, requested: u64) {
        self.send_to_target(WorkerMessage::DrawSpace { account, requested });
    }
}

//! Messages to the dispatcher, among them requests that wait, and the tickets of those that started.

use crate::sessions::client_session::ClientSession;
use crate::shares::accounts::{JobAccount, ShareRange};
use crate::shares::device::WayTicket;
use crate::shares::pool_limits::Way;
use cluster::membership::{Member, Membership};
use qos::scheduler::Work;
use std::collections::{BTreeSet, VecDeque};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use wire::DaemonIndex;

/// A request that waits to start.
pub(crate) struct HeldRequest {
    /// Its session.
    pub(crate) client: Arc<ClientSession>,
    /// Its slot there.
    pub(crate) slot: u16,
    /// The worker that carries it out.
    pub(crate) worker: usize,
    /// User and job, and the rule that limits them.
    pub(crate) account: Arc<JobAccount>,
    /// Kind of work.
    pub(crate) work: Work,
    /// The daemon that it goes to, and the pool of its file.
    pub(crate) way: Way,
    /// Bytes that it moves.
    pub(crate) bytes: u64,
    /// The part of a file that it reads or writes.
    pub(crate) range: Option<ShareRange>,
}

/// The daemons of the instance, as far as shares need them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct KnownDaemons {
    /// The arbiter of the rules, which divides caps, too: the first one that is not to leave.
    pub(crate) arbiter: u16,
    /// Number of all that there are or were.
    pub(crate) count: u16,
    /// Those that have left.
    pub(crate) left: BTreeSet<u16>,
}

impl KnownDaemons {
    /// Those of a membership.
    pub(crate) fn of(membership: &Membership) -> KnownDaemons {
        let mut daemons = membership.daemons();
        let stays = |member: &Member| !member.is_to_leave() && !member.has_left();
        let arbiter = daemons.find(|(_, member)| stays(member)).map_or(0, |(arbiter, _)| arbiter.0);
        let (mut count, mut left) = (0, BTreeSet::new());
        for (daemon, member) in membership.daemons() {
            count = daemon.0 + 1;
            if member.has_left() {
                left.insert(daemon.0);
            }
        }
        KnownDaemons { arbiter, count, left }
    }
}

/// A message to the dispatcher.
pub(crate) enum DispatcherMessage {
    /// A request waits.
    Held(HeldRequest),
    /// A request that was started is complete.
    Ended(WayTicket),
    /// A message of another daemon.
    Peer(DaemonIndex, Vec<u8>),
    /// A pool has these targets now, each with its `max_perf`.
    Pool(u8, Vec<(DaemonIndex, u64)>),
    /// A daemon is connected.
    Up(DaemonIndex),
    /// The instance has these daemons now.
    Daemons(KnownDaemons),
    /// A command, or a question; the answer is one line of JSON.
    Asked(String, SyncSender<String>),
}

/// Messages to the dispatcher. Their number is bounded by the slots of the sessions, and by the commands.
#[derive(Default)]
pub(crate) struct DispatcherInbox {
    queue: Mutex<VecDeque<DispatcherMessage>>,
    pub(super) arrived: Condvar,
}

impl DispatcherInbox {
    pub(super) fn lock(&self) -> MutexGuard<'_, VecDeque<DispatcherMessage>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn put(&self, message: DispatcherMessage) {
        self.lock().push_back(message);
        self.arrived.notify_one();
    }

    /// Waits for messages until `until` (`None`: without end), and takes them all.
    pub(super) fn take(&self, until: Option<Instant>, taken: &mut VecDeque<DispatcherMessage>) {
        let mut queue = self.lock();
        while queue.is_empty() {
            let Some(until) = until else {
                queue = self.arrived.wait(queue).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let waited = self.arrived.wait_timeout(queue, left);
            queue = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        std::mem::swap(&mut *queue, taken);
    }
}

/// A request that was started; when it is dropped, the request is complete.
pub(crate) struct StartTicket {
    pub(super) inbox: Arc<DispatcherInbox>,
    pub(super) ticket: WayTicket,
}

impl Drop for StartTicket {
    fn drop(&mut self) {
        self.inbox.put(DispatcherMessage::Ended(self.ticket));
    }
}

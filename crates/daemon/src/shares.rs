//! Shares and limits of users and jobs (`qos`). Requests of this host's processes that move bytes to or
//! from other hosts, and requests that a rule limits, wait here until they may start. Without rules none
//! does.
//!
//! - `rule_set`: the rules in force, and their file in the data directory.
//! - `accounts`: user and job of requests. `inbox`: requests that wait, and other messages.
//! - `gate`: on the threads of workers: which requests wait, and for which account.
//! - `dispatcher`: the thread that owns everything below: `account_line` (what limits hold back),
//!   `device` (shares on the way to a daemon), `caps` (parts of caps that hold over all daemons),
//!   `pool_limits` (limits of pools), `local` (bytes for which no request is made), `spread` (rules reach
//!   all daemons), `sums` (shares of jobs, for their reports).
//! - `places`: which of the directories that rules name a file is in; `resolver` finds it out.
//! - `answering`: the command `forebay qos`.
//!
//! ```text
//!   slot of a session --gate--> dispatcher --Released--> worker: carried out, with a `StartTicket`
//!                      |           ^  ^--------------------- the ticket is dropped
//!                      '-> places -'   if a rule asks for a directory that is not known yet
//! ```
//!
//! Invariants:
//!  1. A request that waits stays in its slot, and counts for nothing before it starts: it is admitted,
//!     routed and checked then.
//!  2. A read of a MiB of a file, or a write to it, starts after the writes to it that wait, whatever
//!     their jobs; but not a read of the writeback daemon: what it misses makes the file dirty again.
//!  3. While none waits, and none is on its way, a request may pass without asking: so the end of the
//!     last rule reorders nothing.
//!  4. Rules are changed by one daemon alone, their arbiter, so that their versions are in one order: the
//!     first daemon that is not to leave the instance.

pub(crate) mod account_line;
pub(crate) mod accounts;
pub(crate) mod answering;
pub(crate) mod device;
pub(crate) mod dispatcher;
pub(crate) mod inbox;
pub(crate) mod resolver;
pub(crate) mod rule_set;

mod caps;

mod gate;

mod local;

mod places;

pub(crate) mod pool_limits;

mod spread;

mod sums;

use crate::shares::device::WayTicket;
use crate::shares::inbox::{
    DispatcherInbox, DispatcherMessage, HeldRequest, KnownDaemons, StartTicket,
};
use crate::shares::places::FilePlaces;
use crate::shares::rule_set::RuleSet;
use crate::shares::sums::ShareSums;
use cluster::membership::Membership;
use shm::activity::ActivitySegment;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use wire::DaemonIndex;

/// Whether requests that only read name their jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReaderJobs {
    /// They do: jobs share the backing store (`backing`).
    Named,
    /// Nothing asks for them.
    Unnamed,
}

/// See the module: the part that all threads share.
pub(crate) struct Shares {
    /// Requests ask here. All that they look at while there are no rules.
    is_active: AtomicBool,
    /// Changes with the rules.
    generation: AtomicU32,
    rules: RwLock<RuleSet>,
    /// Pools with limits, by number.
    pools: Mutex<BTreeMap<u8, Vec<(DaemonIndex, u64)>>>,
    /// As the dispatcher was told last.
    daemons: Mutex<KnownDaemons>,
    inbox: Arc<DispatcherInbox>,
    /// Some rule names a directory, or did.
    uses_places: AtomicBool,
    places: FilePlaces,
    /// Names of jobs and programs, as processes say.
    activity: Arc<ActivitySegment>,
    readers: ReaderJobs,
    /// Process of the writeback daemon; 0: it is not on this host.
    writeback: AtomicU32,
    /// The shares of jobs, for their reports.
    pub(crate) sums: ShareSums,
}

impl Shares {
    /// With the rules of an earlier start.
    pub(crate) fn new(
        rules: RuleSet,
        activity: Arc<ActivitySegment>,
        readers: ReaderJobs,
    ) -> Shares {
        let shares = Shares {
            is_active: AtomicBool::new(!rules.is_empty()),
            generation: AtomicU32::new(1),
            rules: RwLock::default(),
            pools: Mutex::default(),
            daemons: Mutex::default(),
            inbox: Arc::default(),
            uses_places: AtomicBool::new(false),
            places: FilePlaces::default(),
            activity,
            readers,
            writeback: AtomicU32::new(0),
            sums: ShareSums::default(),
        };
        shares.set_rules(rules);
        shares
    }

    /// Whether requests may have to wait.
    #[inline]
    pub(crate) fn is_active(&self) -> bool {
        self.is_active.load(Relaxed)
    }

    /// This process is the writeback daemon.
    pub(crate) fn note_writeback(&self, pid: u32) {
        self.writeback.store(pid, Relaxed);
    }

    /// This process is gone.
    pub(crate) fn note_writeback_end(&self, pid: u32) {
        let _ = self.writeback.compare_exchange(pid, 0, Relaxed, Relaxed);
    }

    /// A message of another daemon has arrived.
    pub(crate) fn take_message(&self, from: DaemonIndex, bytes: &[u8]) {
        self.inbox.put(DispatcherMessage::Peer(from, bytes.to_vec()));
    }

    /// Another daemon is connected.
    pub(crate) fn note_up(&self, peer: DaemonIndex) {
        self.inbox.put(DispatcherMessage::Up(peer));
    }

    /// The membership is this one.
    pub(crate) fn note_membership(&self, membership: &Membership) {
        let now = KnownDaemons::of(membership);
        let mut daemons = self.daemons.lock().unwrap_or_else(PoisonError::into_inner);
        if *daemons != now {
            self.inbox.put(DispatcherMessage::Daemons(now.clone()));
            *daemons = now;
        }
    }

    /// A pool has these targets now, each with its `max_perf`; none: it is gone.
    pub(crate) fn set_pool(&self, pool: u8, targets: Vec<(DaemonIndex, u64)>) {
        let mut pools = self.pools.lock().unwrap_or_else(PoisonError::into_inner);
        let known = pools.get(&pool).map(Vec::as_slice).unwrap_or_default();
        if *known == *targets {
            // Each service of the daemon says it.
            return;
        }
        self.inbox.put(DispatcherMessage::Pool(pool, targets.clone()));
        if pool_limits::enforced(&targets).next().is_some() {
            self.is_active.store(true, Release);
        }
        pools.insert(pool, targets);
    }

    /// The ticket of a request that starts.
    fn start_ticket(&self, ticket: WayTicket) -> StartTicket {
        StartTicket { inbox: Arc::clone(&self.inbox), ticket }
    }

    /// Puts rules in force.
    fn set_rules(&self, rules: RuleSet) {
        let is_empty = rules.is_empty();
        let named = rules.dirs();
        if !named.is_empty() {
            self.uses_places.store(true, Release);
        }
        self.places.lock().set_named(named);
        *self.rules.write().unwrap_or_else(PoisonError::into_inner) = rules;
        self.generation.fetch_add(1, Release);
        if !is_empty {
            self.is_active.store(true, Release);
        }
    }

    /// Hands a request to the dispatcher. False: none has to wait any more, so it starts at once.
    fn hold(&self, held: HeldRequest) -> bool {
        let mut queue = self.inbox.lock();
        // Under this lock the dispatcher ends it (`rest`).
        if !self.is_active.load(Acquire) {
            return false;
        }
        queue.push_back(DispatcherMessage::Held(held));
        drop(queue);
        self.inbox.arrived.notify_one();
        true
    }

    /// Nothing waits or is on its way: lets requests pass, if there are no rules and none has come.
    fn rest(&self) {
        // A request that waits there is followed by later ones of its file.
        let places = self.places.lock();
        let queue = self.inbox.lock();
        let rules = self.rules.read().unwrap_or_else(PoisonError::into_inner);
        let pools = self.pools.lock().unwrap_or_else(PoisonError::into_inner);
        let has_limit = |targets: &Vec<_>| pool_limits::enforced(targets).next().is_some();
        let has_pools = pools.values().any(has_limit);
        if places.is_empty() && queue.is_empty() && rules.is_empty() && !has_pools {
            self.is_active.store(false, Release);
        }
    }
}

//! Figures of what the processes of this host do, gathered from their counters (`shm::activity`).
//!
//! Here: the state, and its lock. `gather`: passes over the counters, about one a second, which keep
//! those of ended processes and free their blocks. `jobs`: the sums that are kept, those of `files`
//! among them. `answering`: requests for them. `names`: paths of files. `rates`: times of operations.
//! `transfers`: reports to services of what is moved. `spans`: bytes over time, and jobs that disturb
//! one another.

pub(crate) mod answering;
pub(crate) mod gather;
pub(crate) mod jobs;

mod files;

pub(crate) mod names;

mod transfers;

mod spans;

mod rates;

use crate::host::activity::gather::Gatherer;
use crate::host::liveness::Liveness;
use shm::activity::{ActivitySegment, Taken};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use wire::Inode;

/// Users, and ends, of processes that are remembered.
const USERS_MAX: usize = 8192;
/// Files in `HostActivity::redirected`.
const REDIRECTED_MAX: usize = 8192;

/// See the module.
pub(crate) struct HostActivity {
    /// The counters.
    segment: Arc<ActivitySegment>,
    gatherer: Mutex<Gatherer>,
    liveness: Arc<Liveness>,
    /// Users of processes, by pid: as the kernel says at the start of a session, or as `/proc` does.
    users: Mutex<BTreeMap<u32, u32>>,
    /// When the sessions of processes ended, by pid, in nanoseconds since 1970: sooner than a pass
    /// finds that the processes have.
    ends: Mutex<BTreeMap<u32, u64>>,
    /// Services are told what processes move (`transfers`).
    reports: AtomicBool,
    /// Files of which something was read where it had migrated to, since the last report: their rates
    /// are not those of their targets.
    redirected: Mutex<BTreeSet<Inode>>,
    /// Answers that are being written.
    answers: AtomicU32,
}

impl HostActivity {
    /// Nothing is gathered yet; counters of earlier processes are still in the segment.
    pub(crate) fn new(segment: Arc<ActivitySegment>, liveness: Arc<Liveness>) -> HostActivity {
        HostActivity {
            segment,
            gatherer: Mutex::default(),
            liveness,
            users: Mutex::default(),
            ends: Mutex::default(),
            reports: AtomicBool::default(),
            redirected: Mutex::default(),
            answers: AtomicU32::new(0),
        }
    }

    /// Whether services are told what processes move, about once a second.
    pub(crate) fn set_reporting(&self, is_requested: bool) {
        self.reports.store(is_requested, Relaxed);
    }

    /// Something of a file was read where it had migrated to.
    pub(crate) fn note_redirected(&self, inode: Inode) {
        let mut redirected = self.redirected();
        if self.reports.load(Relaxed) && redirected.len() < REDIRECTED_MAX {
            redirected.insert(inode);
        }
    }

    fn redirected(&self) -> MutexGuard<'_, BTreeSet<Inode>> {
        self.redirected.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn gatherer(&self) -> MutexGuard<'_, Gatherer> {
        self.gatherer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn users(&self) -> MutexGuard<'_, BTreeMap<u32, u32>> {
        self.users.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ends(&self) -> MutexGuard<'_, BTreeMap<u32, u64>> {
        self.ends.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The session of a process has ended: the process has, or another program replaced its own.
    pub(crate) fn note_end(&self, pid: u32) {
        let mut ends = self.ends();
        if ends.len() >= USERS_MAX {
            // These processes end when a pass finds it.
            ends.clear();
        }
        ends.insert(pid, gather::now());
    }

    /// The user of a process with counters: as the kernel says, if it was asked before the process ended.
    pub(crate) fn user_of(&self, taken: &Taken) -> u32 {
        gather::user_of(self, taken)
    }

    /// A process with this user has opened a session.
    pub(crate) fn note_user(&self, pid: u32, uid: u32) {
        let mut users = self.users();
        if users.len() >= USERS_MAX {
            // Read again from `/proc`.
            users.clear();
        }
        users.insert(pid, uid);
    }
}

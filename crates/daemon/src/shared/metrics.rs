//! Metrics of the daemon, for `status`.

use crate::shared::thrashing::ThrashingLog;
use config::activity::access_times::{AccessLog, FileTimes};
use config::control::FoundDamage;
use config::metrics::{DaemonMetrics, DaemonSample};
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::AtomicU8;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, MutexGuard, PoisonError};
use wire::Inode;

/// Damaged pages that are remembered.
const DAMAGE_MAX: usize = 64;

/// Metrics that any thread updates.
pub(crate) struct Metrics {
    /// Metrics that each worker counts for itself; `status` adds them up (`load`).
    pub(crate) workers: Vec<DaemonMetrics>,
    /// Those of services that this daemon took over, by number.
    taken_over: Mutex<BTreeMap<usize, DaemonMetrics>>,
    /// All other metrics.
    pub(crate) daemon: DaemonMetrics,
    /// Reason for the watermarks, as a `data::tiering::watermarks::WatermarkReason`.
    pub(crate) watermark_reason: AtomicU8,
    /// Times at which the tiers thrashed.
    pub(crate) thrashing: ThrashingLog,
    /// Damaged data that was found, the last of it.
    damage: Mutex<VecDeque<FoundDamage>>,
    /// Reads of the backing store.
    accesses: Mutex<AccessLog>,
}

impl Metrics {
    /// All zero.
    pub(crate) fn new(workers: usize) -> Metrics {
        Metrics {
            workers: (0..workers).map(|_| DaemonMetrics::default()).collect(),
            taken_over: Mutex::default(),
            daemon: DaemonMetrics::default(),
            watermark_reason: AtomicU8::default(),
            thrashing: ThrashingLog::default(),
            damage: Mutex::default(),
            accesses: Mutex::default(),
        }
    }

    fn taken_over(&self) -> MutexGuard<'_, BTreeMap<usize, DaemonMetrics>> {
        self.taken_over.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls `set` with the metrics of the service of this number: of a worker, or taken over.
    pub(crate) fn with_service(&self, number: usize, set: impl FnOnce(&DaemonMetrics)) {
        match self.workers.get(number) {
            Some(metrics) => set(metrics),
            None => set(self.taken_over().entry(number).or_default()),
        }
    }

    /// A service that was taken over has ended here.
    pub(crate) fn forget_service(&self, number: usize) {
        self.taken_over().remove(&number);
    }

    /// All metrics, those of services added up.
    pub(crate) fn load(&self) -> DaemonSample {
        let mut sum = self.daemon.load();
        self.workers.iter().for_each(|worker| sum.add(&worker.load()));
        self.taken_over().values().for_each(|metrics| sum.add(&metrics.load()));
        sum
    }

    /// Damaged data was found.
    pub(crate) fn note_damage(&self, found: FoundDamage) {
        self.daemon.pages_damaged.fetch_add(1, Relaxed);
        let mut damage = self.damage.lock().unwrap_or_else(PoisonError::into_inner);
        if damage.len() >= DAMAGE_MAX {
            damage.pop_front();
        }
        damage.push_back(found);
    }

    /// Damaged data that was found, the last of it.
    pub(crate) fn found_damage(&self) -> Vec<FoundDamage> {
        let damage = self.damage.lock().unwrap_or_else(PoisonError::into_inner);
        damage.iter().copied().collect()
    }

    /// The backing store was read for a file.
    pub(crate) fn note_fetch(&self, inode: Inode, micros: u64, is_failed: bool) {
        self.daemon.fetches.fetch_add(1, Relaxed);
        self.daemon.fetch_us.fetch_add(micros, Relaxed);
        self.daemon.fetches_failed.fetch_add(u64::from(is_failed), Relaxed);
        let mut accesses = self.accesses.lock().unwrap_or_else(PoisonError::into_inner);
        accesses.note_read(inode.0, micros, is_failed);
    }

    /// Reads of the backing store by file.
    pub(crate) fn accesses(&self) -> Vec<FileTimes> {
        self.accesses.lock().unwrap_or_else(PoisonError::into_inner).list()
    }

    /// Number of files of this daemon.
    pub(crate) fn files(&self) -> u64 {
        let of_workers = self.workers.iter().map(|worker| worker.files.load(Relaxed)).sum::<u64>();
        of_workers + self.taken_over().values().map(|one| one.files.load(Relaxed)).sum::<u64>()
    }
}

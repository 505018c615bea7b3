//! Metrics of the daemon, for `status`.

use crate::shared::thrashing::ThrashingLog;
use config::metrics::DaemonMetrics;
use std::sync::atomic::AtomicU8;
use std::sync::atomic::Ordering::Relaxed;

/// Metrics that any thread updates.
pub(crate) struct Metrics {
    /// Metrics that each worker counts for itself; `status` adds them up.
    pub(crate) workers: Vec<DaemonMetrics>,
    /// All other metrics.
    pub(crate) daemon: DaemonMetrics,
    /// Reason for the watermarks, as a `data::tiering::watermarks::WatermarkReason`.
    pub(crate) watermark_reason: AtomicU8,
    /// Times at which the tiers thrashed.
    pub(crate) thrashing: ThrashingLog,
}

impl Metrics {
    /// All zero.
    pub(crate) fn new(workers: usize) -> Metrics {
        Metrics {
            workers: (0..workers).map(|_| DaemonMetrics::default()).collect(),
            daemon: DaemonMetrics::default(),
            watermark_reason: AtomicU8::default(),
            thrashing: ThrashingLog::default(),
        }
    }

    /// Number of files of this daemon.
    pub(crate) fn files(&self) -> u64 {
        self.workers.iter().map(|worker| worker.files.load(Relaxed)).sum()
    }
}

//! Targets of pools that the services of this daemon found slow, for `status` and the metrics.

use config::control::SlowTarget;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// See the module.
#[derive(Default)]
pub(crate) struct SlowTargets {
    /// By worker, pool and target.
    known: Mutex<BTreeMap<(usize, u8, u16), SlowTarget>>,
}

impl SlowTargets {
    fn known(&self) -> MutexGuard<'_, BTreeMap<(usize, u8, u16), SlowTarget>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The service of a worker found a target of the pool with this number slow.
    pub(crate) fn found(&self, worker: usize, pool: u8, found: SlowTarget) {
        let SlowTarget { bytes_per_second, peers_bytes_per_second, .. } = found;
        tracing::warn!(
            pool = found.pool,
            target_index = found.target,
            bytes_per_second,
            peers_bytes_per_second,
            "target is slow, new files of the pool avoid it"
        );
        self.known().insert((worker, pool, found.target), found);
    }

    /// The target is well, or shall show whether it is.
    pub(crate) fn returned(&self, worker: usize, (id, pool): (u8, &str), target: u16) {
        tracing::info!(pool, target_index = target, "target is not slow any more, as far as known");
        self.known().remove(&(worker, id, target));
    }

    /// Each slow target of each pool.
    pub(crate) fn list(&self) -> Vec<SlowTarget> {
        let known = self.known();
        let unique: BTreeMap<(u8, u16), SlowTarget> =
            known.iter().map(|(&(_, pool, target), one)| ((pool, target), one.clone())).collect();
        unique.into_values().collect()
    }
}

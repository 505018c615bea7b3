//! The daemon's status as one line of JSON, for `forebay status` and `forebay df`.

use crate::members::Members;
use crate::shared::Shared;
use config::control::{DaemonStatus, MemoryTerms};
use data::tiering::lending_policy::Terms;
use data::tiering::watermarks::WatermarkReason;
use std::sync::atomic::Ordering::Relaxed;

/// The notice of a daemon whose shared memory lost its names.
const MEMORY_GONE: &str = "its files in /dev/shm were removed: it serves programs until it ends, and \
                           cannot be restarted: save the files that matter";

/// Resident memory of the process in bytes, including shared memory.
fn resident_bytes() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm")
        .ok()
        .and_then(|text| text.split_whitespace().nth(1).and_then(|word| word.parse::<u64>().ok()));
    pages.unwrap_or(0).saturating_mul(rustix::param::page_size() as u64)
}

/// The status line, with a line feed. `gone_known`: see `DaemonStatus`.
pub(crate) fn line(shared: &Shared, sessions: usize, gone_known: Vec<u32>) -> String {
    let mut metrics = shared.metrics.load();
    metrics.uptime_s = shared.timing.begun.elapsed().as_secs();
    metrics.epoch = shared.net.router.epoch();
    if let Some(members) = &shared.members {
        (metrics.membership_epoch, metrics.daemons_down) = members.summary();
        (metrics.copies, metrics.copy_bytes) = members.copies();
    }
    let services = shared.members.as_ref().map_or_else(Vec::new, Members::services);
    let followers = || services.iter().flat_map(|it| &it.followers);
    metrics.services_without_copy = services.iter().filter(|it| !it.has_copy()).count() as u64;
    metrics.follower_lag_records = followers().map(|it| it.lag_records).max().unwrap_or(0);
    metrics.follower_lag_bytes = followers().map(|it| it.lag_bytes).max().unwrap_or(0);
    if let Some(units) = &shared.units {
        metrics.unit_bytes_unfilled = units.unfilled();
    }
    metrics.sessions = sessions as u64;
    metrics.wire_tampered = shared.net.counters.tampered.load(Relaxed);
    metrics.wire_incomplete = shared.net.counters.incomplete.load(Relaxed);
    metrics.wire_refused = shared.net.counters.refused.load(Relaxed);
    metrics.rss = resident_bytes();
    metrics.memory_allowance = shared.lending.allowed.load(Relaxed);
    metrics.memory_held = shared.lending.held.load(Relaxed);
    metrics.memory_used = shared.lending.used.load(Relaxed);
    let slow = shared.slow_targets.list();
    metrics.targets_slow = slow.len() as u64;
    let thrashing = shared.metrics.thrashing.list();
    metrics.tiers_thrashing = u64::from(thrashing.last().is_some_and(|last| last.is_now));
    let memory_terms = match shared.lending.lending_terms() {
        Terms::Fixed(fixed) => MemoryTerms::Fixed { fixed },
        Terms::Idle { least, most } => MemoryTerms::Idle { min: least, max: most },
    };
    let status = DaemonStatus {
        metrics,
        memory_terms,
        memory_reason: shared.lending.reason_word().to_owned(),
        watermark_reason: WatermarkReason::of(shared.metrics.watermark_reason.load(Relaxed))
            .word()
            .to_owned(),
        slow_targets: slow,
        thrashing,
        services,
        membership: shared.members.as_ref().and_then(Members::status),
        damage: shared.metrics.found_damage(),
        job_shares: shared.shares.sums.list(),
        gone_known,
        notice: if shared.is_memory_gone.load(Relaxed) { MEMORY_GONE } else { "" }.to_owned(),
    };
    // It has no map with other keys than text, so that it can always be written.
    serde_json::to_string(&status).unwrap_or_default() + "\n"
}

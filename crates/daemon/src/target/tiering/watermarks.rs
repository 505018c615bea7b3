//! Adaptive watermarks (`data::tiering::watermarks`): when to evaluate the counts.
//!
//! The worker is not woken for this while nothing changes, and requests only update the target's
//! own counts.

use crate::shared::metrics::Metrics;
use crate::target::micros_until;
use data::Target;
use data::tiering::watermarks::{
    ActiveWatermarks, PERIOD_MILLIS, TieringCounts, WatermarkSample, Watermarks,
};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// State kept by the worker.
pub(crate) struct WatermarkTuner {
    watermarks: Watermarks,
    /// Start of the current period of counting.
    since: Option<Instant>,
    /// Memory size for which the watermarks were computed.
    total: u64,
}

impl WatermarkTuner {
    /// Starts without an evaluation.
    pub(crate) const fn new(watermarks: Watermarks) -> WatermarkTuner {
        WatermarkTuner { watermarks, since: None, total: 0 }
    }

    /// Adapts the watermarks, if due. Returns the microseconds until it is due again.
    pub(crate) fn tick(&mut self, metrics: &Metrics, target: &mut Target) -> Option<u64> {
        let demotion_micros = metrics.daemon.demotion_us.load(Relaxed);
        let counts = TieringCounts { demotion_micros, ..target.counts() };
        metrics.daemon.bytes_allocated.store(counts.bytes_allocated, Relaxed);
        metrics.daemon.bytes_overflowed.store(counts.bytes_overflowed, Relaxed);
        metrics.daemon.bytes_refaulted.store(counts.bytes_refaulted, Relaxed);
        let (total, free) = target.memory_space();
        let WatermarkTuner { watermarks, since, total: last_total } = self;
        watermarks.note_free(free);
        let now = Instant::now();
        if total != *last_total {
            *last_total = total;
            let in_force = watermarks.in_force(total);
            note_watermarks(metrics, &in_force);
            if watermarks.are_adaptive() {
                target.set_watermarks(&in_force);
            }
        }
        if !watermarks.are_adaptive() || !watermarks.has_changed(&counts) {
            *since = Some(now);
            return None;
        }
        let begun = *since.get_or_insert(now);
        let look_at = begun + Duration::from_millis(PERIOD_MILLIS.into());
        if look_at > now {
            return Some(micros_until(look_at));
        }
        let millis = u32::try_from((now - begun).as_millis()).unwrap_or(u32::MAX);
        let in_force = watermarks.look(&WatermarkSample { millis, total, free, counts });
        *since = Some(now);
        note_watermarks(metrics, &in_force);
        target.set_watermarks(&in_force);
        tracing::debug!(
            normal = in_force.demote_low_watermark_bytes,
            forced = in_force.demote_min_watermark_bytes,
            why = in_force.reason.word(),
            "thresholds"
        );
        None
    }
}

fn note_watermarks(metrics: &Metrics, now: &ActiveWatermarks) {
    let (low, min) = (now.demote_low_watermark_bytes, now.demote_min_watermark_bytes);
    metrics.daemon.demote_low_watermark_bytes.store(low, Relaxed);
    metrics.daemon.demote_min_watermark_bytes.store(min, Relaxed);
    metrics.watermark_reason.store(now.reason as u8, Relaxed);
}

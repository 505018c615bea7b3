//! Thresholds that set themselves (`data::thresholds`): when it is looked at what was counted.
//!
//! Nothing wakes the worker for this while nothing changes, and no request does more for it than the
//! target's own counts.

use crate::shared::{Shared, SpaceFigures};
use crate::target::{TargetLoop, micros_until};
use data::thresholds::{Counts, InForce, Look, PERIOD_MILLIS, Thresholds};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// What the worker keeps of it.
pub(crate) struct Follower {
    thresholds: Thresholds,
    /// What the next look sees was counted from then on.
    since: Option<Instant>,
    /// For so much memory the thresholds are in force.
    total: u64,
}

impl Follower {
    /// Nothing was looked at.
    pub(crate) const fn new(thresholds: Thresholds) -> Follower {
        Follower { thresholds, since: None, total: 0 }
    }
}

impl SpaceFigures {
    fn note_thresholds(&self, now: &InForce) {
        self.room_below.store(now.normal_below_bytes, Relaxed);
        self.reserve_below.store(now.forced_below_bytes, Relaxed);
        self.thresholds_reason.store(now.reason as u8, Relaxed);
    }
}

impl TargetLoop {
    /// Sets the thresholds, if it is time. Microseconds until it is.
    pub(crate) fn keep_thresholds(&mut self, shared: &Shared) -> Option<u64> {
        let sunk_micros = shared.space.sunk_micros.load(Relaxed);
        let counts = Counts { sunk_micros, ..self.target.counts() };
        shared.space.bytes_made.store(counts.bytes_made, Relaxed);
        shared.space.bytes_missed.store(counts.bytes_missed, Relaxed);
        shared.space.bytes_returned.store(counts.bytes_returned, Relaxed);
        let (total, free) = self.target.memory_room();
        let Follower { thresholds, since, total: last_total } = &mut self.follower;
        thresholds.note_free(free);
        let now = Instant::now();
        if total != *last_total {
            *last_total = total;
            let in_force = thresholds.in_force(total);
            shared.space.note_thresholds(&in_force);
            if thresholds.set_themselves() {
                self.target.set_thresholds(&in_force);
            }
        }
        if !thresholds.set_themselves() || !thresholds.is_news(&counts) {
            *since = Some(now);
            return None;
        }
        let begun = *since.get_or_insert(now);
        let look_at = begun + Duration::from_millis(PERIOD_MILLIS.into());
        if look_at > now {
            return Some(micros_until(look_at));
        }
        let millis = u32::try_from((now - begun).as_millis()).unwrap_or(u32::MAX);
        let in_force = thresholds.look(&Look { millis, total, free, counts });
        *since = Some(now);
        shared.space.note_thresholds(&in_force);
        self.target.set_thresholds(&in_force);
        tracing::debug!(
            normal = in_force.normal_below_bytes,
            forced = in_force.forced_below_bytes,
            why = in_force.reason.word(),
            "thresholds"
        );
        None
    }
}

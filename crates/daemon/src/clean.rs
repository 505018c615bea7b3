//! Clean pieces (`data::clean`), whose bytes lie in the backing directory, too: when it is looked for
//! what to drop.

use crate::shared::{Guest, Shared};
use crate::target::{TargetLoop, micros_until};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// Between two looks for what to drop while none is found: at first, at most.
const PAUSE: Duration = Duration::from_millis(1);
/// See `PAUSE`.
const PAUSE_MAX: Duration = Duration::from_millis(20);

/// When to look next.
#[derive(Default)]
pub(crate) struct Drops {
    pause: Duration,
    look_at: Option<Instant>,
}

impl TargetLoop {
    /// Drops what is clean, if it is time. Microseconds until it is.
    pub(crate) fn keep_dropping(
        &mut self,
        shared: &Shared,
        guests: &[Option<Arc<Guest>>],
    ) -> Option<u64> {
        if !self.target.wants_drops() {
            self.drops = Drops::default();
            return None;
        }
        let now = Instant::now();
        if self.drops.look_at.is_none_or(|at| at <= now) {
            // The pins are looked at at once, so mostly what goes is gone afterwards.
            let pause = match self.drop_clean(shared, guests) {
                true => Duration::ZERO,
                false => (self.drops.pause * 2).clamp(PAUSE, PAUSE_MAX),
            };
            self.drops = Drops { pause, look_at: Some(now + pause) };
        }
        self.drops.look_at.map(micros_until)
    }

    /// True if something was dropped.
    fn drop_clean(&mut self, shared: &Shared, guests: &[Option<Arc<Guest>>]) -> bool {
        let millis = shared.begun.elapsed().as_millis() as u32;
        let before = self.target.bytes_dropped();
        let devices = Arc::clone(&self.devices);
        let mut was_used = |slot| devices.states.take_use(slot);
        let is_clean = |slot| devices.states.is_clean(slot);
        self.act(shared, guests, |target, effects| {
            target.drop_clean(millis, &mut was_used, &is_clean, effects);
        });
        let dropped = self.target.bytes_dropped();
        shared.space.bytes_dropped.store(dropped, Relaxed);
        dropped > before
    }
}

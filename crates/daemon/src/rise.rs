//! Rising: when it is looked for pieces on the SSD that are used (`data::rise`), and how far readers are
//! with what was brought up for them (`data::ahead`, `data::wish`).

use crate::shared::{Guest, Shared};
use crate::target::{TargetLoop, micros_until};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Between two looks: while some pieces are in use, and at most while none are.
const PAUSE: Duration = Duration::from_millis(20);
/// See `PAUSE`.
const PAUSE_MAX: Duration = Duration::from_millis(320);

/// Between two looks how far readers are: while they read or something is under way, and at most while
/// neither.
const AHEAD_PAUSE: Duration = Duration::from_millis(2);
/// See `AHEAD_PAUSE`.
const AHEAD_PAUSE_MAX: Duration = Duration::from_millis(32);

/// When it is looked.
#[derive(Default)]
pub(crate) struct Rises {
    used: Looks,
    ahead: Looks,
}

/// Looks of one kind.
#[derive(Default)]
struct Looks {
    pause: Duration,
    at: Option<Instant>,
}

impl Looks {
    /// True if it is time for one.
    fn are_due(&mut self, now: Instant) -> bool {
        *self.at.get_or_insert(now) <= now
    }

    /// The next comes after `least`, or, if there was nothing, after a longer pause than before.
    fn next(&mut self, now: Instant, was_some: bool, [least, most]: [Duration; 2]) {
        self.pause = if was_some { least } else { (self.pause.max(least) * 2).min(most) };
        self.at = Some(now + self.pause);
    }
}

impl TargetLoop {
    /// Lets pieces rise, if it is time. Microseconds until it is.
    pub(crate) fn keep_rising(
        &mut self,
        shared: &Shared,
        guests: &[Option<Arc<Guest>>],
    ) -> Option<u64> {
        if !self.target.is_rising() {
            self.sinker.rises.used = Looks::default();
            return None;
        }
        let now = Instant::now();
        if self.sinker.rises.used.are_due(now) {
            let are_used = self.rise(shared, guests);
            self.sinker.rises.used.next(now, are_used, [PAUSE, PAUSE_MAX]);
        }
        self.sinker.rises.used.at.map(micros_until)
    }

    /// Looks how far readers are, if it is time. Microseconds until it is.
    pub(crate) fn keep_ahead(
        &mut self,
        shared: &Shared,
        guests: &[Option<Arc<Guest>>],
    ) -> Option<u64> {
        if !self.target.is_ahead() {
            self.sinker.rises.ahead = Looks::default();
            return None;
        }
        let now = Instant::now();
        if self.sinker.rises.ahead.are_due(now) {
            let millis = shared.begun.elapsed().as_millis() as u32;
            let devices = Arc::clone(&self.devices);
            let mut is_used = |slot| devices.states.is_used(slot);
            let mut is_some = false;
            self.act(shared, guests, |target, effects| {
                is_some = target.look_ahead(millis, &mut is_used, effects);
            });
            self.sinker.rises.ahead.next(now, is_some, [AHEAD_PAUSE, AHEAD_PAUSE_MAX]);
        }
        self.sinker.rises.ahead.at.map(micros_until)
    }

    fn rise(&mut self, shared: &Shared, guests: &[Option<Arc<Guest>>]) -> bool {
        let millis = shared.begun.elapsed().as_millis() as u32;
        let devices = Arc::clone(&self.devices);
        let mut was_used = |slot| devices.states.take_use(slot);
        let mut are_used = false;
        self.act(shared, guests, |target, effects| {
            are_used = target.rise(millis, &mut was_used, effects);
        });
        are_used
    }
}

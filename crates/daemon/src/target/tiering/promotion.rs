//! Promotion (`data::tiering::promote`): when to look for hot extents on the SSD. Also checks how
//! far readers are with prefetched extents (`data::prefetch::readahead`, `data::prefetch::queue`).

use crate::target::micros_until;
use std::time::{Duration, Instant};

/// Interval between scans for hot extents while some are found; it grows up to `PAUSE_MAX` while
/// none are.
const PAUSE: Duration = Duration::from_millis(20);
/// See `PAUSE`.
const PAUSE_MAX: Duration = Duration::from_millis(320);

/// Interval between checks of readers while they read or a prefetch is in flight; it grows up to
/// `AHEAD_PAUSE_MAX` otherwise.
const AHEAD_PAUSE: Duration = Duration::from_millis(2);
/// See `AHEAD_PAUSE`.
const AHEAD_PAUSE_MAX: Duration = Duration::from_millis(32);

/// Timers of both scans.
pub(crate) struct PromotionTimers {
    /// Scan for hot extents.
    pub(crate) used: PollTimer,
    /// Check of readers.
    pub(crate) ahead: PollTimer,
}

/// Timer with a growing pause.
pub(crate) struct PollTimer {
    /// Shortest and longest pause.
    range: [Duration; 2],
    pause: Duration,
    at: Option<Instant>,
}

impl Default for PromotionTimers {
    fn default() -> PromotionTimers {
        let timer = |range| PollTimer { range, pause: Duration::ZERO, at: None };
        PromotionTimers {
            used: timer([PAUSE, PAUSE_MAX]),
            ahead: timer([AHEAD_PAUSE, AHEAD_PAUSE_MAX]),
        }
    }
}

impl PollTimer {
    /// There is nothing to scan for.
    pub(crate) fn reset(&mut self) {
        (self.pause, self.at) = (Duration::ZERO, None);
    }

    /// True if it has expired.
    pub(crate) fn is_due(&mut self, now: Instant) -> bool {
        *self.at.get_or_insert(now) <= now
    }

    /// Restarts the timer: with the shortest pause if something was found, otherwise with a doubled
    /// one.
    pub(crate) fn scanned(&mut self, now: Instant, was_some: bool) {
        let [least, most] = self.range;
        self.pause = if was_some { least } else { (self.pause.max(least) * 2).min(most) };
        self.at = Some(now + self.pause);
    }

    /// Microseconds until it expires.
    pub(crate) fn deadline(&self) -> Option<u64> {
        self.at.map(micros_until)
    }
}

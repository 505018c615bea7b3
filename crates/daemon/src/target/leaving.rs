//! Extents that leave once no hazard pointer protects them (`data`): when to check again.

use crate::target::micros_until;
use std::time::{Duration, Instant};

/// First pause between checks of hazard pointers that remain set; it grows up to
/// `HAZARD_CHECK_PAUSE_MAX`. A client holds one for a single copy.
const HAZARD_CHECK_PAUSE: Duration = Duration::from_millis(2);
/// See `HAZARD_CHECK_PAUSE`.
const HAZARD_CHECK_PAUSE_MAX: Duration = Duration::from_millis(100);

/// Time of the next check of hazard pointers that remain set.
pub(crate) struct LeavingTimer {
    pause: Duration,
    at: Option<Instant>,
}

impl LeavingTimer {
    /// No extent is leaving.
    pub(crate) const fn new() -> LeavingTimer {
        LeavingTimer { pause: HAZARD_CHECK_PAUSE, at: None }
    }

    /// True if a check is due; the timer is then restarted with a longer pause.
    pub(crate) fn is_due(&mut self, now: Instant) -> bool {
        let is_due = *self.at.get_or_insert(now + self.pause) <= now;
        if is_due {
            self.pause = (self.pause * 2).min(HAZARD_CHECK_PAUSE_MAX);
            self.at = Some(now + self.pause);
        }
        is_due
    }

    /// Microseconds until the next check.
    pub(crate) fn deadline(&self) -> Option<u64> {
        self.at.map(micros_until)
    }
}

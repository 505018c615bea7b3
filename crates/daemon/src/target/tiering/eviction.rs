//! Eviction of clean extents (`data::backing::eviction`), whose bytes are in the backing store:
//! when to look for victims.

use crate::target::micros_until;
use std::time::{Duration, Instant};

/// First pause between scans that find no victim; it grows up to `PAUSE_MAX`.
const PAUSE: Duration = Duration::from_millis(1);
/// See `PAUSE`.
const PAUSE_MAX: Duration = Duration::from_millis(20);

/// Time of the next scan.
#[derive(Default)]
pub(crate) struct EvictionTimer {
    pause: Duration,
    look_at: Option<Instant>,
}

impl EvictionTimer {
    /// True if a scan is due.
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        self.look_at.is_none_or(|at| at <= now)
    }

    /// Restarts the timer after a scan. Hazard pointers are checked at once, so victims are usually
    /// gone by now, and the next scan follows at once if there were any.
    pub(crate) fn scanned(&mut self, now: Instant, has_evicted: bool) {
        self.pause = match has_evicted {
            true => Duration::ZERO,
            false => (self.pause * 2).clamp(PAUSE, PAUSE_MAX),
        };
        self.look_at = Some(now + self.pause);
    }

    /// Microseconds until the next scan.
    pub(crate) fn deadline(&self) -> Option<u64> {
        self.look_at.map(micros_until)
    }
}

//! When a daemon of the host last held back requests because of a limit: a process whose request is
//! answered late then waits on instead of taking the daemon for stuck.
//!
//! One word for the host: a process also waits for requests of others, as for their writes on the way.

use super::{HostSegment, header};
use core::sync::atomic::Ordering::Relaxed;

/// How long such a note counts. Daemons repeat it ten times a second, or as often as they run.
const COUNTS_MICROS: u64 = 3_000_000;

impl HostSegment {
    /// A daemon holds back requests; `now` in microseconds of `wait::now_micros`.
    pub fn note_throttled(&self, now: u64) {
        if let Ok(word) = self.segment.word64(header::THROTTLED) {
            word.store(now, Relaxed);
        }
    }

    /// True if a daemon of the host held back requests a short while ago.
    #[must_use]
    pub fn is_throttled(&self, now: u64) -> bool {
        let noted = self.segment.word64(header::THROTTLED).map_or(0, |word| word.load(Relaxed));
        noted != 0 && now < noted.saturating_add(COUNTS_MICROS)
    }
}

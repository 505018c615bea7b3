//! Copies of file data: how many are missing, and when they are made anew.

use crate::commands::{human, plural};
use config::metrics::DaemonSample;
use insight::text;
use serde::Serialize;

/// The copies of an instance with `--replicas`, as all daemons that answer tell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct CopiesState {
    /// Units of file data with fewer copies than they should have.
    pub(crate) units_degraded: u64,
    /// Units of which all copies are down.
    pub(crate) units_lost: u64,
    /// Units that lost all their copies for good.
    pub(crate) units_gone: u64,
    /// Bytes that copies got so far which were made anew.
    pub(crate) bytes_filled: u64,
    /// Ranges that failed their checksum and came from another copy.
    pub(crate) repairs: u64,
    /// Bytes that copies have to get yet.
    pub(crate) bytes_unfilled: u64,
    /// Bytes per second that they get now.
    pub(crate) bytes_per_second: u64,
    /// Seconds until they have them at this rate; `None`: they get nothing now.
    pub(crate) eta_seconds: Option<f64>,
}

impl CopiesState {
    /// The sums over daemons.
    pub(crate) fn of<'a>(daemons: impl Iterator<Item = &'a DaemonSample>) -> CopiesState {
        let mut state = CopiesState::default();
        for one in daemons {
            state.units_degraded += one.units_degraded;
            // The leader of the membership alone counts them.
            state.units_lost = state.units_lost.max(one.units_lost);
            state.units_gone = state.units_gone.max(one.units_gone);
            state.bytes_filled += one.unit_bytes_filled;
            state.repairs += one.unit_repairs;
            state.bytes_unfilled += one.unit_bytes_unfilled;
            state.bytes_per_second += one.unit_fill_rate;
        }
        state.eta_seconds = match (state.bytes_unfilled, state.bytes_per_second) {
            (0, _) => Some(0.0),
            (_, 0) => None,
            (bytes, rate) => Some(bytes as f64 / rate as f64),
        };
        state
    }

    /// The progress of copies that are made anew, for people; `None`: none is.
    pub(crate) fn progress(&self) -> Option<String> {
        if self.bytes_unfilled == 0 {
            return None;
        }
        let left = human(Some(self.bytes_unfilled));
        Some(match self.eta_seconds {
            Some(seconds) => format!(
                "{left} to be copied, done in about {} at {}/s",
                text::seconds(seconds),
                human(Some(self.bytes_per_second))
            ),
            None => format!("{left} to be copied; nothing is copied now"),
        })
    }

    /// A line for a view of what is wrong; `None`: all units have their copies.
    pub(crate) fn problem(&self) -> Option<String> {
        let mut parts = Vec::new();
        for (count, what) in [
            (self.units_degraded, "with too few copies"),
            (self.units_lost, "with all copies down"),
            (self.units_gone, "that lost all copies"),
        ] {
            if count > 0 {
                parts.push(format!("{} {what}", plural(count, "unit")));
            }
        }
        if parts.is_empty() {
            return None;
        }
        parts.extend(self.progress());
        Some(format!("file data: {}", parts.join(", ")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_left_is_that_of_all_daemons() {
        let one = DaemonSample {
            units_degraded: 2,
            unit_bytes_unfilled: 3 << 20,
            unit_fill_rate: 1 << 20,
            ..DaemonSample::default()
        };
        let leader = DaemonSample { units_lost: 4, ..one };
        let state = CopiesState::of([one, leader].iter());
        assert_eq!((state.units_degraded, state.units_lost), (4, 4));
        assert_eq!(state.eta_seconds, Some(3.0));
        assert_eq!(
            state.problem().expect("a line"),
            "file data: 4 units with too few copies, 4 units with all copies down, 6.0 MiB to be \
             copied, done in about 3.0 s at 2.0 MiB/s"
        );
        let stands = CopiesState::of([DaemonSample { unit_fill_rate: 0, ..one }].iter());
        assert_eq!(stands.eta_seconds, None);
        let line = "3.0 MiB to be copied; nothing is copied now";
        assert_eq!(stands.progress().as_deref(), Some(line));
        let whole = CopiesState::of([DaemonSample::default()].iter());
        assert_eq!((whole.problem(), whole.progress()), (None, None));
        assert_eq!(whole.eta_seconds, Some(0.0));
    }
}

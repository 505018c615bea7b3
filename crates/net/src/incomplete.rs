//! Records that begin to arrive and do not end. Bytes that are left out on the way, or a length that is
//! changed, make the receiver take the following records for the rest of this one, and wait for more.
//! So a connection ends if a record stays incomplete for too long, and is made anew.

use std::time::{Duration, Instant};

/// Longest time for the bytes of one record, which its sender has together: 13 KB/s.
pub(crate) const WHOLE_TIME: Duration = Duration::from_secs(5);

/// Why such a connection ends.
pub(crate) const WHY: &str = "a record did not arrive whole";

/// The incomplete record of a connection.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Incomplete {
    /// When it was seen first, and how many whole ones had arrived before.
    since: Option<(Instant, u64)>,
}

impl Incomplete {
    /// Notes whether a part of a record is there, after `whole` records. Returns a new deadline.
    pub(crate) fn note(&mut self, is_there: bool, whole: u64) -> Option<Instant> {
        match self.since {
            Some((_, before)) if is_there && before == whole => None,
            None if !is_there => None,
            _ => {
                self.since = is_there.then(|| (Instant::now(), whole));
                self.deadline()
            }
        }
    }

    /// When the connection is to end.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.since.map(|(since, _)| since + WHOLE_TIME)
    }

    pub(crate) fn is_late(&self, now: Instant) -> bool {
        self.deadline().is_some_and(|deadline| deadline <= now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_record_that_makes_no_progress_is_late() {
        let mut incomplete = Incomplete::default();
        assert_eq!(incomplete.note(false, 0), None);
        let first = incomplete.note(true, 0).expect("a deadline");
        assert_eq!(incomplete.note(true, 0), None, "the same record");
        assert!(incomplete.is_late(first) && !incomplete.is_late(first - WHOLE_TIME));
        let second = incomplete.note(true, 1).expect("the next record");
        assert!(second >= first);
        assert_eq!(incomplete.note(false, 2), None);
        assert_eq!(incomplete.deadline(), None);
    }
}

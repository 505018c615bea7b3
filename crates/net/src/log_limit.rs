//! Bounds the lines of a log that others can cause: one a minute of each kind, or a few.

use std::time::{Duration, Instant};

/// The time to which the bound applies.
pub const LINE_TIME: Duration = Duration::from_secs(60);

/// Decides about the lines of one kind.
#[derive(Clone, Copy, Debug)]
pub struct LineLimit {
    /// Lines in `LINE_TIME` from the first one on.
    count_max: u32,
    count: u32,
    first: Option<Instant>,
    suppressed: u64,
}

impl Default for LineLimit {
    fn default() -> LineLimit {
        LineLimit::of(1)
    }
}

impl LineLimit {
    /// At most `count_max` lines a minute.
    #[must_use]
    pub const fn of(count_max: u32) -> LineLimit {
        LineLimit { count_max, count: 0, first: None, suppressed: 0 }
    }

    /// Whether a line may be written now: the number of lines that were left out since the last
    /// one. `None`: this one is left out, too.
    pub fn admit(&mut self, now: Instant) -> Option<u64> {
        if self.first.is_none_or(|first| now.saturating_duration_since(first) >= LINE_TIME) {
            (self.first, self.count) = (Some(now), 0);
        }
        if self.count >= self.count_max {
            self.suppressed = self.suppressed.saturating_add(1);
            return None;
        }
        self.count += 1;
        Some(core::mem::take(&mut self.suppressed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_a_minute_tells_how_many_were_left_out() {
        let (mut limit, begun) = (LineLimit::default(), Instant::now());
        assert_eq!(limit.admit(begun), Some(0));
        for second in 1..60 {
            assert_eq!(limit.admit(begun + Duration::from_secs(second)), None);
        }
        assert_eq!(limit.admit(begun + Duration::from_secs(60)), Some(59));
        assert_eq!(limit.admit(begun + Duration::from_secs(61)), None);
        assert_eq!(limit.admit(begun + Duration::from_secs(300)), Some(1));
    }
    #[test]
    fn a_kind_may_have_more_lines() {
        let (mut limit, begun) = (LineLimit::of(3), Instant::now());
        let admitted = (0..10).filter(|_| limit.admit(begun).is_some());
        assert_eq!(admitted.count(), 3);
        assert_eq!(limit.admit(begun + LINE_TIME), Some(7));
    }
}

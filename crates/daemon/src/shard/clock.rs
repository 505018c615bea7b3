//! Time of a service: strictly monotonic nanoseconds since 1970, as in the times of files.
//!
//! Deadlines of a service are in this time. If the system clock is set back, this time continues at
//! half speed until the system clock has caught up. So every deadline comes, at most twice as late,
//! and times of files do not stay ahead of the system clock.

use metadata::Now;
use shm::wait::steady_nanos;
use std::time::{SystemTime, UNIX_EPOCH};

/// State of the clock.
#[derive(Default)]
pub(crate) struct Clock {
    /// Time returned by the last call, and the reading of the steady clock then.
    unix_nanos: i64,
    steady_nanos: i64,
}

impl Clock {
    /// The current time; later than at the last call, or equal if no time has passed.
    pub(crate) fn now(&mut self) -> Now {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let unix_nanos = i64::try_from(since.as_nanos()).unwrap_or(i64::MAX);
        self.advance(Now { unix_nanos, steady_nanos: steady_nanos() })
    }

    /// Advances to the system's clocks in `read`.
    fn advance(&mut self, read: Now) -> Now {
        let passed = read.steady_nanos.saturating_sub(self.steady_nanos).max(0);
        self.unix_nanos = read.unix_nanos.max(self.unix_nanos.saturating_add(passed / 2));
        self.steady_nanos = read.steady_nanos;
        Now { unix_nanos: self.unix_nanos, ..read }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: i64 = 1_000_000_000;
    const HOUR: i64 = 3600 * SECOND;

    fn at(clock: &mut Clock, unix_nanos: i64, steady_nanos: i64) -> i64 {
        let now = clock.advance(Now { unix_nanos, steady_nanos });
        assert_eq!(now.steady_nanos, steady_nanos);
        now.unix_nanos
    }

    #[test]
    fn time_continues_at_half_speed_if_the_clock_is_set_back() {
        let (mut clock, begin) = (Clock::default(), 1_000_000 * HOUR);
        assert_eq!(at(&mut clock, begin, 7 * HOUR), begin);
        let mut steady = 7 * HOUR + SECOND;
        assert_eq!(at(&mut clock, begin + SECOND, steady), begin + SECOND);
        let (set_at, ahead) = (steady, begin + SECOND);
        let unix = |steady: i64| begin + SECOND - HOUR + (steady - set_at);
        for second in 1..=7200 {
            steady += SECOND;
            assert_eq!(at(&mut clock, unix(steady), steady), ahead + second * SECOND / 2);
        }
        steady += SECOND;
        assert_eq!(at(&mut clock, unix(steady), steady), unix(steady), "equal to the clock again");
    }

    #[test]
    fn time_follows_a_clock_that_is_set_ahead() {
        let (mut clock, begin) = (Clock::default(), 1_000_000 * HOUR);
        at(&mut clock, begin, 0);
        assert_eq!(at(&mut clock, begin + HOUR, SECOND), begin + HOUR);
    }
}

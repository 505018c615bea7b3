//! The time of a service: nanoseconds since 1970, as files show them, that never stand still.
//!
//! What a service waits for is due by this time. A machine's clock may be set back: then this time goes
//! on at half speed until the clock has come up with it. So whatever is waited for comes, at most twice
//! as late, and what files show does not stay ahead of the clock.

use metadata::Now;
use shm::wait::steady_nanos;
use std::time::{SystemTime, UNIX_EPOCH};

/// See the module.
#[derive(Default)]
pub(crate) struct Clock {
    /// The time when it was last asked for, and what the clock that nobody sets said then.
    unix_nanos: i64,
    steady_nanos: i64,
}

impl Clock {
    /// The time now; later than at the last call, or the same if that was a moment ago.
    pub(crate) fn now(&mut self) -> Now {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let unix_nanos = i64::try_from(since.as_nanos()).unwrap_or(i64::MAX);
        self.advance(Now { unix_nanos, steady_nanos: steady_nanos() })
    }

    /// The machine's clocks say `read`.
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
    fn time_goes_on_and_is_come_up_with_if_the_clock_is_set_back() {
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
        assert_eq!(at(&mut clock, unix(steady), steady), unix(steady), "the clock's again");
    }

    #[test]
    fn a_clock_that_is_set_ahead_is_followed() {
        let (mut clock, begin) = (Clock::default(), 1_000_000 * HOUR);
        at(&mut clock, begin, 0);
        assert_eq!(at(&mut clock, begin + HOUR, SECOND), begin + HOUR);
    }
}

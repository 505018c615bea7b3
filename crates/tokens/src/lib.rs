//! A limit on bytes per second, as a bucket of tokens: a transfer takes tokens, and may start while
//! there are some.
//!
//! No clock is read: the caller passes the time. A transfer may be larger than the remaining
//! tokens; the bucket is then in debt, and nothing else starts until that is paid. So the rate
//! holds on average, for transfers of any size, and in any span of time at most `BURST_MILLIS` of
//! it and one transfer are moved beyond it.
#![forbid(unsafe_code)]
#![warn(clippy::indexing_slicing, clippy::string_slice)]

/// Milliseconds of the rate that may be saved up.
pub const BURST_MILLIS: u64 = 100;
/// Tokens of one byte, so that a millisecond of any rate is a whole number of tokens.
const TOKENS: i128 = 1000;

/// A token bucket. Times are milliseconds since any moment, and may wrap after `u32::MAX`.
#[derive(Clone, Copy, Debug, Default)]
pub struct TokenBucket {
    /// Bytes per second; 0: unlimited.
    bytes_per_second: u64,
    tokens: i128,
    /// Time at which `tokens` was computed.
    at: u32,
}

impl TokenBucket {
    /// A bucket for this many bytes per second; 0: unlimited.
    #[must_use]
    pub const fn new(bytes_per_second: u64) -> TokenBucket {
        let mut bucket = TokenBucket { bytes_per_second, tokens: 0, at: 0 };
        bucket.tokens = bucket.tokens_max();
        bucket
    }

    const fn tokens_max(&self) -> i128 {
        // At least one token, so that the slowest rate starts, too.
        let burst = self.bytes_per_second as i128 * BURST_MILLIS as i128;
        if burst > 0 { burst } else { 1 }
    }

    fn tokens(&self, now: u32) -> i128 {
        let passed = i128::from(now.wrapping_sub(self.at));
        let come = passed * i128::from(self.bytes_per_second);
        (self.tokens + come).min(self.tokens_max())
    }

    /// True if a transfer may start.
    #[must_use]
    pub fn is_open(&self, now: u32) -> bool {
        self.bytes_per_second == 0 || self.tokens(now) > 0
    }

    /// A transfer of this many bytes starts, whether it may or not: transfers that cannot wait
    /// count, too.
    pub fn take(&mut self, now: u32, bytes: u64) {
        if self.bytes_per_second > 0 {
            self.tokens = self.tokens(now) - i128::from(bytes) * TOKENS;
            self.at = now;
        }
    }

    /// Milliseconds that this many bytes take at the rate.
    #[must_use]
    pub const fn millis_for(&self, bytes: u64) -> u64 {
        match self.bytes_per_second {
            0 => 0,
            rate => bytes.saturating_mul(1000) / rate,
        }
    }

    /// Milliseconds until a transfer may start.
    #[must_use]
    pub fn wait_millis(&self, now: u32) -> u32 {
        let missing = match self.bytes_per_second {
            0 => 0,
            rate => (1 - self.tokens(now)).max(0).cast_unsigned().div_ceil(u128::from(rate)),
        };
        u32::try_from(missing).unwrap_or(u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn without_a_limit_nothing_waits() {
        let mut bucket = TokenBucket::new(0);
        bucket.take(0, u64::MAX);
        assert!(bucket.is_open(0));
        assert_eq!(bucket.wait_millis(0), 0);
    }

    #[test]
    fn a_debt_is_paid_before_the_next_transfer() {
        let mut bucket = TokenBucket::new(1000);
        assert!(bucket.is_open(5));
        bucket.take(5, 4100);
        assert!(!bucket.is_open(4005));
        assert_eq!(bucket.wait_millis(5), 4001);
        assert!(bucket.is_open(4006));
    }

    #[test]
    fn time_may_begin_anew() {
        let mut bucket = TokenBucket::new(1000);
        bucket.take(u32::MAX - 10, 1100);
        assert!(!bucket.is_open(u32::MAX));
        assert!(bucket.is_open(1000));
    }

    proptest! {
        /// Transfers that start as soon as they may, after pauses: the limit holds from any of them
        /// on.
        #[test]
        fn the_rate_holds_in_any_span(
            rate in 1_u64..1 << 40,
            parts in prop::collection::vec((1_u64..1 << 26, 0_u32..2000), 1..40),
        ) {
            let (mut bucket, mut now, mut begun) = (TokenBucket::new(rate), 7_u32, Vec::new());
            for (bytes, pause) in parts {
                let wait = bucket.wait_millis(now);
                if wait > u32::MAX / 4 {
                    break;
                }
                if wait > 0 {
                    prop_assert!(!bucket.is_open(now + wait - 1));
                }
                now += wait;
                prop_assert!(bucket.is_open(now));
                bucket.take(now, bytes);
                begun.push((now, bytes));
                now = now.saturating_add(pause);
                if now > u32::MAX / 2 {
                    break;
                }
            }
            for first in 0..begun.len() {
                let mut sum = 0_u128;
                for (at, bytes) in &begun[first..] {
                    let passed = u128::from(at - begun[first].0);
                    let may = u128::from(rate) * (passed + u128::from(BURST_MILLIS)) / 1000 + 1;
                    prop_assert!(sum <= may, "{sum} of {may} bytes");
                    sum += u128::from(*bytes);
                }
            }
        }
    }
}

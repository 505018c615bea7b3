//! A bucket of tokens in nanoseconds: caps and minima, in bytes or operations per second.
//!
//! A request larger than what is in the bucket takes it into debt, and nothing else passes before the
//! debt is paid: the rate holds on average for requests of any size. `tokens` is the bucket of
//! daemons that count in milliseconds; a scheduler that starts thousands of requests per
//! millisecond needs finer time.

/// Nanoseconds of the rate that may be saved up.
const BURST_NANOS: i128 = 100_000_000;
/// Parts of one token, so that a nanosecond of any rate is a whole number of them.
const PARTS: i128 = 1_000_000_000;

/// A token bucket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bucket {
    per_second: u64,
    parts: i128,
    at: u64,
}

impl Bucket {
    /// A full bucket of so many tokens per second; 0: unlimited.
    #[must_use]
    pub const fn new(now: u64, per_second: u64) -> Bucket {
        let mut bucket = Bucket { per_second, parts: 0, at: now };
        bucket.parts = bucket.parts_max();
        bucket
    }

    /// Tokens per second; 0: unlimited.
    #[must_use]
    pub const fn per_second(&self) -> u64 {
        self.per_second
    }

    const fn parts_max(&self) -> i128 {
        let burst = self.per_second as i128 * BURST_NANOS;
        // At least a token, so that the slowest rate starts, too.
        if burst > PARTS { burst } else { PARTS }
    }

    fn parts(&self, now: u64) -> i128 {
        let passed = i128::from(now.saturating_sub(self.at));
        let come = passed.saturating_mul(i128::from(self.per_second));
        self.parts.saturating_add(come).min(self.parts_max())
    }

    /// Changes the rate; debts stay, and what was saved beyond the new burst is lost.
    pub fn set_rate(&mut self, now: u64, per_second: u64) {
        if self.per_second == 0 || per_second == 0 {
            *self = Bucket::new(now, per_second);
            return;
        }
        self.parts = self.parts(now);
        self.at = self.at.max(now);
        self.per_second = per_second;
        self.parts = self.parts.min(self.parts_max());
    }

    /// Whether a request may pass.
    #[must_use]
    pub fn is_open(&self, now: u64) -> bool {
        self.per_second == 0 || self.parts(now) > 0
    }

    /// A request of so many tokens passes, whether it may or not.
    pub fn take(&mut self, now: u64, tokens: u64) {
        if self.per_second > 0 {
            self.parts = self.parts(now).saturating_sub(i128::from(tokens) * PARTS);
            self.at = self.at.max(now);
        }
    }

    /// The time from which a request may pass; `now` if one may already.
    #[must_use]
    pub fn opens_at(&self, now: u64) -> u64 {
        if self.is_open(now) {
            return now;
        }
        let missing = (1 - self.parts(now)).max(0).cast_unsigned();
        let wait = missing.div_ceil(u128::from(self.per_second));
        now.saturating_add(u64::try_from(wait).unwrap_or(u64::MAX))
    }
}

//! How many large requests of a host are on the way to a daemon.
//!
//! A job has its share of what a way passes only if few requests of others are ahead of its next one.
//! So the window follows the time that requests take: about `AIM_NANOS` of the way's rate. Where two
//! requests already take longer, it stays at two, so that the way is never idle. A daemon that several
//! hosts use has the windows of some be larger (`incoming`).

use crate::division::LEASE_NANOS;

/// Time for which requests of a full window are on their way: much longer than a round trip, so that the
/// way is used, and short for those that come next.
const AIM_NANOS: f64 = 10_000_000.0;
/// The least and the largest window.
pub const WINDOW_MIN: f64 = 2.0;
/// See `WINDOW_MIN`.
pub const WINDOW_MAX: f64 = 24.0;
/// The window moves by this part of the difference with each request.
const WINDOW_GAIN: f64 = 8.0;
/// Time for which a place that was not used may be used later.
const CREDIT_NANOS: f64 = 100_000_000.0;

/// See the module.
#[derive(Clone, Debug)]
pub struct Window {
    size: f64,
    factor: f64,
    factor_until: u64,
    /// Places that were not used, by their time: a window of 2.5 is one of 3 in half of the time.
    credit: f64,
    credited_at: u64,
}

impl Default for Window {
    fn default() -> Window {
        Window { size: WINDOW_MAX, factor: 1.0, factor_until: 0, credit: 0.0, credited_at: 0 }
    }
}

impl Window {
    /// A large request has ended, after this time on its way.
    pub fn note_end(&mut self, nanos: u64) {
        let change = (AIM_NANOS / nanos.max(1) as f64).clamp(0.5, 2.0);
        let size = self.size * (1.0 + (change - 1.0) / WINDOW_GAIN);
        self.size = size.clamp(WINDOW_MIN, WINDOW_MAX);
    }

    /// The daemon of the way says by what factor this host's window is to be larger.
    pub const fn set_factor(&mut self, now: u64, factor: f64) {
        self.factor = factor.clamp(1.0, crate::incoming::FACTOR_MAX);
        self.factor_until = now.saturating_add(LEASE_NANOS);
    }

    /// True if the daemon of the way has made it larger.
    #[must_use]
    pub fn is_raised(&self, now: u64) -> bool {
        self.factor > 1.0 && now < self.factor_until
    }

    /// The number of places now; `used` of them are in use. The caller asks before `used` changes.
    pub fn places(&mut self, now: u64, used: u32) -> u32 {
        let factor = if now < self.factor_until { self.factor } else { 1.0 };
        let size = (self.size * factor).min(WINDOW_MAX);
        let passed = now.saturating_sub(self.credited_at) as f64;
        self.credited_at = now.max(self.credited_at);
        let bound = size * CREDIT_NANOS;
        self.credit = (self.credit + (size - f64::from(used)) * passed).clamp(-bound, bound);
        let whole = size as u32;
        if factor > 1.0 && self.credit > 0.0 && f64::from(whole) < size { whole + 1 } else { whole }
    }
}

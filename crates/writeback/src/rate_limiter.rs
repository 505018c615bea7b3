//! Limits the rate of writeback: copying threads wait here.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokens::TokenBucket;

/// Maximum time between two calls of `waits` while a thread waits.
const SLICE: Duration = Duration::from_secs(1);

/// A rate limiter shared by threads. The default has no limit.
#[derive(Debug)]
pub(crate) struct RateLimiter {
    begun: Instant,
    bucket: Mutex<TokenBucket>,
    let_go: Condvar,
}

impl Default for RateLimiter {
    fn default() -> RateLimiter {
        RateLimiter::new(0)
    }
}

impl RateLimiter {
    /// `bytes_per_second`: the rate; 0: no limit.
    pub(crate) fn new(bytes_per_second: u64) -> RateLimiter {
        let bucket = Mutex::new(TokenBucket::new(bytes_per_second));
        RateLimiter { begun: Instant::now(), bucket, let_go: Condvar::new() }
    }

    fn guard(&self) -> MutexGuard<'_, TokenBucket> {
        self.bucket.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until `bytes` may be written. Calls `waits` at least once per `SLICE` meanwhile.
    pub(crate) fn take(&self, bytes: u64, waits: &dyn Fn()) {
        let mut bucket = self.guard();
        loop {
            let now = self.begun.elapsed().as_millis() as u32;
            if bucket.is_open(now) {
                return bucket.take(now, bytes);
            }
            let wait = Duration::from_millis(bucket.wait_millis(now).into()).min(SLICE);
            let urgent = self.let_go.wait_timeout(bucket, wait);
            bucket = urgent.unwrap_or_else(PoisonError::into_inner).0;
            waits();
        }
    }

    /// Releases all waiting threads and removes the limit.
    pub(crate) fn release(&self) {
        *self.guard() = TokenBucket::new(0);
        self.let_go.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    #[test]
    fn copying_threads_wait_for_the_rate() {
        let rate_limiter = RateLimiter::new(1 << 20);
        let begun = Instant::now();
        for _ in 0..4 {
            rate_limiter.take(256 << 10, &|| ());
        }
        // The bucket holds a tenth of a second, and the last take may overdraw it.
        assert!(begun.elapsed() >= Duration::from_millis(600));
    }

    #[test]
    fn waiting_threads_are_released_at_the_end() {
        let (rate_limiter, waits) = (RateLimiter::new(1), &AtomicU64::new(0));
        rate_limiter.take(1 << 40, &|| ());
        std::thread::scope(|scope| {
            let said = || {
                waits.fetch_add(1, Ordering::Relaxed);
            };
            let rate_limiter = &rate_limiter;
            let waiting = scope.spawn(move || rate_limiter.take(1, &said));
            while waits.load(Ordering::Relaxed) == 0 {
                std::thread::yield_now();
            }
            rate_limiter.release();
            waiting.join().expect("no panic");
        });
    }
}

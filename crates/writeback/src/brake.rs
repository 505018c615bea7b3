//! The rate at which bytes are saved: threads that copy wait here for their turn.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokens::TokenBucket;

/// Who waits says so often that he does.
const SLICE: Duration = Duration::from_secs(1);

/// See the module. The default has no bound.
#[derive(Debug)]
pub(crate) struct Brake {
    begun: Instant,
    bucket: Mutex<TokenBucket>,
    let_go: Condvar,
}

impl Default for Brake {
    fn default() -> Brake {
        Brake::new(0)
    }
}

impl Brake {
    /// So many bytes a second; 0: no bound.
    pub(crate) fn new(bytes_per_second: u64) -> Brake {
        let bucket = Mutex::new(TokenBucket::new(bytes_per_second));
        Brake { begun: Instant::now(), bucket, let_go: Condvar::new() }
    }

    fn guard(&self) -> MutexGuard<'_, TokenBucket> {
        self.bucket.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until so many bytes may be saved. `waits` is called now and then meanwhile.
    pub(crate) fn take(&self, bytes: u64, waits: &dyn Fn()) {
        let mut bucket = self.guard();
        loop {
            let now = self.begun.elapsed().as_millis() as u32;
            if bucket.is_open(now) {
                return bucket.take(now, bytes);
            }
            let wait = Duration::from_millis(bucket.wait_millis(now).into()).min(SLICE);
            let waited = self.let_go.wait_timeout(bucket, wait);
            bucket = waited.unwrap_or_else(PoisonError::into_inner).0;
            waits();
        }
    }

    /// Nobody waits any more.
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
    fn who_copies_waits_for_the_rate() {
        let brake = Brake::new(1 << 20);
        let begun = Instant::now();
        for _ in 0..4 {
            brake.take(256 << 10, &|| ());
        }
        // A tenth of a second is saved up, and the last may be begun before it is paid for.
        assert!(begun.elapsed() >= Duration::from_millis(600));
    }

    #[test]
    fn who_waits_is_let_go_at_the_end() {
        let (brake, waits) = (Brake::new(1), &AtomicU64::new(0));
        brake.take(1 << 40, &|| ());
        std::thread::scope(|scope| {
            let said = || {
                waits.fetch_add(1, Ordering::Relaxed);
            };
            let brake = &brake;
            let waiting = scope.spawn(move || brake.take(1, &said));
            while waits.load(Ordering::Relaxed) == 0 {
                std::thread::yield_now();
            }
            brake.release();
            waiting.join().expect("no panic");
        });
    }
}

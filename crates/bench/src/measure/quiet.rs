//! Waits until the machine is quiet, so that background work of one measurement is not charged to
//! the next: disk writeback by the kernel, an instance that prepares memory for writers.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Interval over which CPU use is measured: ten ticks of the kernel's accounting clock.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Default of the maximum wait; other users may keep the machine busy indefinitely.
pub(crate) const WAIT_MILLIS_MAX: u64 = 1000;

/// Maximum wait of this process in milliseconds.
static WAIT_MILLIS: AtomicU64 = AtomicU64::new(WAIT_MILLIS_MAX);

/// Sets the maximum wait.
pub(crate) fn set_wait_max(millis: u64) {
    WAIT_MILLIS.store(millis, Ordering::Relaxed);
}

/// Returns after an interval in which at most a tenth of one CPU was used, or after the maximum wait.
pub(crate) fn settle() {
    let begun = Instant::now();
    let wait_max = Duration::from_millis(WAIT_MILLIS.load(Ordering::Relaxed));
    while begun.elapsed() < wait_max {
        let before = busy_ticks();
        std::thread::sleep(POLL_INTERVAL);
        match (before, busy_ticks()) {
            (Some(before), Some(after)) if after.saturating_sub(before) > 1 => {}
            _ => return,
        }
    }
}

/// Busy time of all CPUs since boot, in hundredths of a second.
fn busy_ticks() -> Option<u64> {
    busy(&std::fs::read_to_string("/proc/stat").ok()?)
}

/// Sums user, nice, system, irq and softirq time. Excluded are idle and iowait, steal, and guest
/// time, which is part of user time.
fn busy(stat: &str) -> Option<u64> {
    let line = stat.lines().next()?.strip_prefix("cpu ")?;
    let fields: Vec<u64> = line.split_whitespace().map_while(|word| word.parse().ok()).collect();
    let [user, nice, system, _, _, hard, soft, ..] = fields[..] else { return None };
    Some(user + nice + system + hard + soft)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_time_is_not_work() {
        assert_eq!(busy("cpu  10 20 30 4000 500 6 7 80 0 0\ncpu0 1 1 1 1\n"), Some(73));
        assert_eq!(busy("cpu  10 20\n"), None);
        assert_eq!(busy("intr 5\n"), None);
        assert!(busy_ticks().is_some_and(|ticks| ticks > 0));
    }
}

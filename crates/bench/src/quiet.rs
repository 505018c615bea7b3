//! Waiting until the machine is quiet, so that what a measurement left running is not charged to the
//! next: the kernel's write-back of the disk, an instance that makes memory ready for writers.

use std::time::{Duration, Instant};

/// How long one look takes: ten ticks of the clock that counts.
const LOOK: Duration = Duration::from_millis(100);
/// Others may use the machine for as long as they like.
const WAIT_MAX: Duration = Duration::from_secs(1);

/// Returns once no more than a tenth of one processor was used for a moment, or after a second.
pub(crate) fn settle() {
    let begun = Instant::now();
    while begun.elapsed() < WAIT_MAX {
        let before = busy_ticks();
        std::thread::sleep(LOOK);
        match (before, busy_ticks()) {
            (Some(before), Some(after)) if after.saturating_sub(before) > 1 => {}
            _ => return,
        }
    }
}

/// Hundredths of a second that all processors worked since the machine started.
fn busy_ticks() -> Option<u64> {
    busy(&std::fs::read_to_string("/proc/stat").ok()?)
}

/// User, nice, system, then idle and waiting for devices, which do not count, then interrupts; what
/// guests and the hypervisor took is in others or not ours.
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

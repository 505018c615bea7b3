//! The processor's atomics and copies, the kernel's futex and clock.

use super::Woken;
use core::num::NonZeroU32;
use core::time::Duration;
use rustix::thread::futex;

pub(crate) use core::hint::spin_loop;
pub(crate) use core::ptr::{copy_nonoverlapping, write_bytes};
pub(crate) use core::sync::atomic::{AtomicU32, AtomicU64, fence};

/// Rounds of `pause` before the first yield. Few, because no request is answered within a
/// microsecond, and a yield with no other runnable thread costs half of one.
pub(crate) const PAUSES: u32 = 4;
/// Yields before sleeping: 50-100 us if no other thread runs, longer otherwise.
pub(crate) const YIELDS: u32 = 60;
/// Buckets of a new index table.
pub(crate) const BUCKETS_MIN: u32 = 256;

/// Number of attempts of a reader while a writer is in the bucket it reads, before it sends a
/// message.
#[inline(always)]
pub(crate) const fn read_attempts() -> u32 {
    64
}

/// A point between two steps: nothing.
#[inline(always)]
pub(crate) const fn point() {}

/// Lets other threads run.
#[inline(always)]
pub(crate) fn sched_yield() {
    rustix::thread::sched_yield();
}

/// Sleeps for about `micros`.
pub(crate) fn nap(micros: u64) {
    sleep(&AtomicU32::new(0), 0, micros);
}

/// Sleeps while `word` is `expected`, at most `micros`.
pub fn sleep(word: &AtomicU32, expected: u32, micros: u64) -> Woken {
    let limit = Duration::from_micros(micros);
    let limit = futex::Timespec {
        tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(limit.subsec_nanos()),
    };
    match futex::wait(word, futex::Flags::empty(), expected, Some(&limit)) {
        Err(rustix::io::Errno::TIMEDOUT) => Woken::TimedOut,
        Err(rustix::io::Errno::INTR) => Woken::Interrupted,
        _ => Woken::Changed,
    }
}

/// As `sleep`; wakes up for `wake_marked` with one of these marks, too, and for no other.
pub(crate) fn sleep_marked(
    word: &AtomicU32,
    expected: u32,
    micros: u64,
    marks: NonZeroU32,
) -> Woken {
    // The kernel takes the end of such a sleep, by the clock that only goes forward.
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let nanos = now.tv_nsec + i64::try_from(micros % 1_000_000).unwrap_or(0) * 1000;
    let seconds = i64::try_from(micros / 1_000_000).unwrap_or(i64::MAX);
    let until = futex::Timespec {
        tv_sec: now.tv_sec.saturating_add(seconds).saturating_add(nanos / 1_000_000_000),
        tv_nsec: nanos % 1_000_000_000,
    };
    match futex::wait_bitset(word, futex::Flags::empty(), expected, Some(&until), marks) {
        Err(rustix::io::Errno::TIMEDOUT) => Woken::TimedOut,
        Err(rustix::io::Errno::INTR) => Woken::Interrupted,
        _ => Woken::Changed,
    }
}

/// Wakes all sleepers on `word` with one of these marks, and all without marks. Returns their number.
pub(crate) fn wake_marked(word: &AtomicU32, marks: NonZeroU32) -> usize {
    futex::wake_bitset(word, futex::Flags::empty(), u32::MAX >> 1, marks).unwrap_or(0)
}

/// Wakes up to `count` sleepers on `word`.
pub fn wake(word: &AtomicU32, count: u32) {
    let _ = futex::wake(word, futex::Flags::empty(), count);
}

/// The processor that the calling thread runs on; it may change at once.
#[must_use]
pub fn processor() -> u32 {
    rustix::thread::sched_getcpu() as u32
}

/// Microseconds of a clock that only goes forward.
#[must_use]
pub fn now_micros() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(now.tv_nsec).unwrap_or(0);
    seconds.wrapping_mul(1_000_000).wrapping_add(nanos / 1000)
}

/// Nanoseconds of a clock that cannot be set and that keeps running while the machine is suspended.
#[must_use]
pub fn steady_nanos() -> i64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    now.tv_sec.saturating_mul(1_000_000_000).saturating_add(now.tv_nsec)
}

/// Nanoseconds of a clock that only goes forward; for differences.
#[must_use]
pub fn now_nanos() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    nanos_of(now)
}

/// Nanoseconds since 1970.
#[must_use]
pub(crate) fn real_nanos() -> u64 {
    nanos_of(rustix::time::clock_gettime(rustix::time::ClockId::Realtime))
}

fn nanos_of(time: rustix::time::Timespec) -> u64 {
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    seconds.wrapping_mul(1_000_000_000).wrapping_add(u64::try_from(time.tv_nsec).unwrap_or(0))
}

/// True if no thread with this number exists. One that ended exists until it is waited for.
#[must_use]
pub fn is_absent(thread: u32) -> bool {
    let Some(pid) = i32::try_from(thread).ok().and_then(rustix::process::Pid::from_raw) else {
        return true;
    };
    // A thread that is not the leader of its process is found by number as well: the kernel looks
    // up any thread for a signal of number zero.
    rustix::process::test_kill_process(pid) == Err(rustix::io::Errno::SRCH)
}

//! Time in the client: the wall clock for time stamps of files, and sleeping.

use core::time::Duration;
use rustix::event::Timespec;
use rustix::time::ClockId;

/// Sleeps; a signal may end it early.
pub(crate) fn sleep_micros(micros: u64) {
    let time = Duration::from_micros(micros);
    let time = Timespec {
        tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(time.subsec_nanos()),
    };
    let _ = rustix::thread::nanosleep(&time);
}

/// Wall-clock time in nanoseconds since 1970.
pub(crate) fn now_nanos() -> i64 {
    let now = rustix::time::clock_gettime(ClockId::Realtime);
    now.tv_sec.saturating_mul(1_000_000_000).saturating_add(now.tv_nsec)
}

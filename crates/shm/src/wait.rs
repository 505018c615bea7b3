//! Waiting for another process: a little `pause`, then yielding, then sleeping.
//!
//! A blocked wake-up across processors costs 30-70 us on virtual machines where a request takes
//! half of one, so both sides look for a while before they sleep; and pure spinning is poison when
//! both share a processor, so they yield early. A client that finds the worker on its own processor
//! sleeps at once: two processes that only yield to each other may stay together for tens of
//! milliseconds (measured: 20 us a request), while a wake-up looks for an idle processor.

use core::sync::atomic::AtomicU32;
use core::time::Duration;
use rustix::thread::futex;

/// Rounds of `pause` before the first yield: about 2 us.
const PAUSES: u32 = 40;
/// Yields before sleeping: 50-100 us if nobody else runs, longer if somebody does.
const YIELDS: u32 = 60;

/// What to do next while waiting.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Next {
    /// Look again.
    Look,
    /// Looked long enough: sleep.
    Sleep,
}

/// Counts the looks of one wait.
#[derive(Default)]
pub struct Backoff {
    looks: u32,
}

impl Backoff {
    /// Starts a wait.
    #[must_use]
    pub const fn new() -> Backoff {
        Backoff { looks: 0 }
    }

    /// Starts a wait for somebody on this very processor: only sleeping gives it over.
    #[must_use]
    pub const fn asleep() -> Backoff {
        Backoff { looks: PAUSES + YIELDS }
    }

    /// Spends a moment; says what to do next.
    pub fn pause(&mut self) -> Next {
        self.looks = self.looks.saturating_add(1);
        if self.looks <= PAUSES {
            core::hint::spin_loop();
            return Next::Look;
        }
        if self.looks <= PAUSES + YIELDS {
            rustix::thread::sched_yield();
            return Next::Look;
        }
        Next::Sleep
    }

    /// Starts over: something came.
    pub fn reset(&mut self) {
        self.looks = 0;
    }
}

/// How a sleep ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Woken {
    /// Woken, or the word had changed already.
    Changed,
    /// The time is over.
    TimedOut,
    /// A signal handler ran.
    Interrupted,
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

/// Wakes up to `count` sleepers on `word`.
pub fn wake(word: &AtomicU32, count: u32) {
    let _ = futex::wake(word, futex::Flags::empty(), count);
}

/// The processor that the calling thread runs on; it may be another at once.
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

/// The calling thread's number, for words that say who holds something. Never zero.
#[must_use]
pub fn thread_id() -> u32 {
    rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned()
}

/// True if no thread with this number exists any more.
#[must_use]
pub fn is_dead(thread: u32) -> bool {
    let Some(pid) = i32::try_from(thread).ok().and_then(rustix::process::Pid::from_raw) else {
        return true;
    };
    // A thread that is not the leader of its process is found by number as well: the kernel looks
    // up any thread for a signal of number zero.
    rustix::process::test_kill_process(pid) == Err(rustix::io::Errno::SRCH)
}

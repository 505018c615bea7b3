//! Waiting for another process: a little `pause`, then yielding, then sleeping.
//!
//! A blocked wake-up across processors costs 30-70 us on virtual machines where a request takes
//! half of one, so both sides look for a while before they sleep; and pure spinning is poison when
//! both share a processor, so they yield early. Two processes that only yield to each other may stay
//! together for tens of milliseconds while another processor is idle, but a wake-up looks for one;
//! so a client that finds the worker on its own processor sleeps at once, now and then.

use crate::sync::{self, PAUSES, YIELDS};

pub use crate::sync::{
    is_dead, now_micros, processor, sleep, steady_nanos, thread_id, trust_libc, wake,
};

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
            sync::spin_loop();
            return Next::Look;
        }
        if self.looks <= PAUSES + YIELDS {
            sync::sched_yield();
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

//! Waiting for another process: a little `pause`, then yielding, then sleeping.
//!
//! A wake-up across processors costs 30-70 us on virtual machines where a request takes half of
//! one, so both sides spin for a while before they sleep. Pure spinning is harmful when both share
//! a processor, so they yield early. Two processes that only yield to each other may stay together
//! for tens of milliseconds while another processor is idle, but a wake-up looks for an idle one;
//! so a client that finds the worker on its own processor sleeps at once, now and then.

use crate::sync::{self, PAUSES, YIELDS};

pub(crate) use crate::sync::{sleep_marked, wake_marked};

pub use crate::sync::{
    Woken, is_absent, is_dead, now_micros, now_nanos, processor, sleep, steady_nanos, thread_id,
    trust_libc, wake,
};

/// Next step of a wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Next {
    /// Poll again.
    Poll,
    /// Polled long enough: sleep.
    Sleep,
}

/// `Backoff::is_dead` looks at the state of a thread in one of this many rounds.
const LOOK_ROUNDS: u32 = 64;

/// Counts the polls of one wait.
#[derive(Default)]
pub struct Backoff {
    polls: u32,
}

impl Backoff {
    /// Starts a wait.
    #[must_use]
    pub const fn new() -> Backoff {
        Backoff { polls: 0 }
    }

    /// Starts a wait for a thread on this very processor: only sleeping hands the processor over.
    #[must_use]
    pub const fn asleep() -> Backoff {
        Backoff { polls: PAUSES + YIELDS }
    }

    /// Spends a moment; returns the next step.
    pub fn pause(&mut self) -> Next {
        self.pause_of(PAUSES + YIELDS)
    }

    /// As `pause`, for a wait of this many polls.
    fn pause_of(&mut self, polls: u32) -> Next {
        self.polls = self.polls.saturating_add(1);
        match self.polls {
            poll if poll > polls => return Next::Sleep,
            poll if poll <= PAUSES => sync::spin_loop(),
            _ => sync::sched_yield(),
        }
        Next::Poll
    }

    /// As `is_dead`, for a wait that asks for many threads, or after each pause: costly only in some
    /// rounds, and in none of a wait that is short.
    #[must_use]
    pub fn is_dead(&self, thread: u32) -> bool {
        // The last value of the counter, where it stays, is such a round.
        let is_thorough = self.polls % LOOK_ROUNDS == LOOK_ROUNDS - 1 && self.polls > LOOK_ROUNDS;
        is_absent(thread) || is_thorough && is_dead(thread)
    }

    /// Starts over: something arrived.
    pub fn reset(&mut self) {
        self.polls = 0;
    }
}

/// A waiter yields for so long, because the thread that it waits for is about to go on.
const AWAKE_MICROS: u64 = 1000;
/// Then it sleeps, because that thread needs the processor: first, and at most.
const NAP_MICROS_MIN: u64 = 200;
const NAP_MICROS_MAX: u64 = 10_000;

/// The pauses of a wait that no thread ends by a wake-up: yields, then sleeps, each twice as long as the
/// one before. A thousand waiters leave the processors to the thread that they wait for.
pub(crate) struct Naps {
    begun: Option<u64>,
    micros: u64,
}

impl Naps {
    pub(crate) const fn new() -> Naps {
        Naps { begun: None, micros: NAP_MICROS_MIN }
    }

    /// Spends a moment; `now` in microseconds of `now_micros`.
    pub(crate) fn pause(&mut self, now: u64) {
        if now < self.begun.get_or_insert(now).saturating_add(AWAKE_MICROS) {
            return sync::sched_yield();
        }
        sync::nap(self.micros);
        self.micros = (self.micros * 2).min(NAP_MICROS_MAX);
    }
}

/// Polls of a server that expects nothing soon.
const POLLS_MIN: u32 = PAUSES + YIELDS / 16;
const POLLS_MAX: u32 = PAUSES + YIELDS;
/// An arrival later than this after the last one is not found by polling.
const SOON_MICROS: u64 = 100;
/// While polling finds nothing, at most one long poll in this many idle periods is tried.
const PASSED_MAX: u32 = 32;

/// How long a server polls for the next request before it sleeps: long while polling finds
/// requests, and hardly at all while it does not, apart from an occasional try. On a shared
/// processor a polling server would keep its clients from running: a thread that yields often gets
/// the processor back at once.
pub struct SpinPolicy {
    backoff: Backoff,
    polls: u32,
    /// Time at which `POLLS_MIN` polls had found nothing.
    idle_since: Option<u64>,
    /// The server sleeps, or is about to.
    is_asleep: bool,
    /// Idle periods to skip before the next long poll, and how many were skipped the last time.
    to_pass: u32,
    passed: u32,
}

impl Default for SpinPolicy {
    fn default() -> SpinPolicy {
        SpinPolicy::new()
    }
}

impl SpinPolicy {
    /// Begins with long polls.
    #[must_use]
    pub const fn new() -> SpinPolicy {
        SpinPolicy {
            backoff: Backoff::new(),
            polls: POLLS_MAX,
            idle_since: None,
            is_asleep: false,
            to_pass: 0,
            passed: 0,
        }
    }

    /// Something arrived. `is_one_of_many`: more may follow without a doorbell.
    pub fn arrived(&mut self, is_one_of_many: bool) {
        if is_one_of_many {
            (self.polls, self.idle_since, self.is_asleep) = (POLLS_MAX, None, false);
        }
        self.arrived_at(now_micros);
    }

    fn arrived_at(&mut self, now: impl Fn() -> u64) {
        self.backoff.reset();
        let Some(since) = self.idle_since.take() else { return };
        if !core::mem::take(&mut self.is_asleep) {
            (self.polls, self.to_pass, self.passed) = (POLLS_MAX, 0, 0);
        } else if now().saturating_sub(since) < SOON_MICROS {
            // A long poll would have found it.
            match self.to_pass.checked_sub(1) {
                Some(left) => self.to_pass = left,
                None => self.polls = POLLS_MAX,
            }
        }
    }

    /// Nothing arrived: spends a moment; returns the next step.
    pub fn pause(&mut self) -> Next {
        self.pause_at(now_micros)
    }

    fn pause_at(&mut self, now: impl Fn() -> u64) -> Next {
        let next = self.backoff.pause_of(self.polls);
        if self.idle_since.is_none() && self.backoff.polls > POLLS_MIN {
            self.idle_since = Some(now());
        }
        if next == Next::Sleep && !self.is_asleep {
            self.is_asleep = true;
            if self.polls == POLLS_MAX {
                self.passed = (self.passed * 2).clamp(1, PASSED_MAX);
                self.to_pass = self.passed;
            }
            self.polls = POLLS_MIN;
        }
        next
    }
}

#[cfg(test)]
#[cfg(not(feature = "interleavings"))]
mod tests {
    use super::*;
    use std::vec::Vec;

    /// Polls before a sleep.
    fn polls(spin_policy: &mut SpinPolicy, now: u64) -> u32 {
        (0..).take_while(|_| spin_policy.pause_at(|| now) == Next::Poll).count() as u32
    }

    /// A server whose polls find nothing soon polls less, and retries ever more seldom.
    #[test]
    fn spinning_that_finds_nothing_stops() {
        let mut spin_policy = SpinPolicy::new();
        let mut long = Vec::new();
        for time in 0..1000 {
            if polls(&mut spin_policy, time * 1000) == POLLS_MAX {
                long.push(time);
            }
            spin_policy.arrived_at(|| time * 1000 + SOON_MICROS - 1);
        }
        let gaps: Vec<u64> = long.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert_eq!(gaps.iter().take(6).copied().collect::<Vec<_>>(), [2, 3, 5, 9, 17, 33]);
        assert!(gaps.iter().skip(6).all(|&gap| gap == u64::from(PASSED_MAX) + 1), "{gaps:?}");
    }

    #[test]
    fn spinning_that_finds_something_goes_on() {
        let mut spin_policy = SpinPolicy::new();
        assert_eq!(polls(&mut spin_policy, 0), POLLS_MAX);
        spin_policy.arrived_at(|| 1);
        assert_eq!(polls(&mut spin_policy, 0), POLLS_MIN);
        // Not soon enough to be found by polling.
        spin_policy.arrived_at(|| SOON_MICROS);
        assert_eq!(polls(&mut spin_policy, 0), POLLS_MIN);
        spin_policy.arrived_at(|| 1);
        for _ in 0..10 {
            (0..POLLS_MAX).for_each(|_| assert_eq!(spin_policy.pause_at(|| 0), Next::Poll));
            // Found, regardless of how long it polled.
            spin_policy.arrived_at(|| 10 * SOON_MICROS);
        }
        assert_eq!(polls(&mut spin_policy, 0), POLLS_MAX);
    }
}

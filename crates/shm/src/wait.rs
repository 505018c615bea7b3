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
        self.pause_of(PAUSES + YIELDS)
    }

    /// As `pause`, of a wait of so many looks.
    fn pause_of(&mut self, looks: u32) -> Next {
        self.looks = self.looks.saturating_add(1);
        match self.looks {
            look if look > looks => return Next::Sleep,
            look if look <= PAUSES => sync::spin_loop(),
            _ => sync::sched_yield(),
        }
        Next::Look
    }

    /// Starts over: something came.
    pub fn reset(&mut self) {
        self.looks = 0;
    }
}

/// Looks of a server that does not expect anything soon.
const LOOKS_MIN: u32 = PAUSES + YIELDS / 16;
const LOOKS_MAX: u32 = PAUSES + YIELDS;
/// What comes later than this after the last is not found by looking.
const SOON_MICROS: u64 = 100;
/// Of so many chances at most one is tried while looking finds nothing.
const PASSED_MAX: u32 = 32;

/// How long one who serves looks for the next request before he sleeps: for long while that finds some,
/// and hardly at all where it does not, but for a try now and then. On a processor that many share he
/// would keep those from it who are to send them: who yields often gets the processor back at once.
pub struct Habit {
    backoff: Backoff,
    looks: u32,
    /// When nothing had come for `LOOKS_MIN` looks.
    idle_since: Option<u64>,
    /// He sleeps, or is about to.
    is_asleep: bool,
    /// Chances to be passed by until he looks for long again, and how many they were the last time.
    to_pass: u32,
    passed: u32,
}

impl Default for Habit {
    fn default() -> Habit {
        Habit::new()
    }
}

impl Habit {
    /// Begins by looking for long.
    #[must_use]
    pub const fn new() -> Habit {
        Habit {
            backoff: Backoff::new(),
            looks: LOOKS_MAX,
            idle_since: None,
            is_asleep: false,
            to_pass: 0,
            passed: 0,
        }
    }

    /// Something came. `is_one_of_many`: more may be near, for which nobody rings.
    pub fn came(&mut self, is_one_of_many: bool) {
        if is_one_of_many {
            (self.looks, self.idle_since, self.is_asleep) = (LOOKS_MAX, None, false);
        }
        self.came_at(now_micros);
    }

    fn came_at(&mut self, now: impl Fn() -> u64) {
        self.backoff.reset();
        let Some(since) = self.idle_since.take() else { return };
        if !core::mem::take(&mut self.is_asleep) {
            (self.looks, self.to_pass, self.passed) = (LOOKS_MAX, 0, 0);
        } else if now().saturating_sub(since) < SOON_MICROS {
            // He would have found it.
            match self.to_pass.checked_sub(1) {
                Some(left) => self.to_pass = left,
                None => self.looks = LOOKS_MAX,
            }
        }
    }

    /// Nothing came: spends a moment; says what to do next.
    pub fn pause(&mut self) -> Next {
        self.pause_at(now_micros)
    }

    fn pause_at(&mut self, now: impl Fn() -> u64) -> Next {
        let next = self.backoff.pause_of(self.looks);
        if self.idle_since.is_none() && self.backoff.looks > LOOKS_MIN {
            self.idle_since = Some(now());
        }
        if next == Next::Sleep && !self.is_asleep {
            self.is_asleep = true;
            if self.looks == LOOKS_MAX {
                self.passed = (self.passed * 2).clamp(1, PASSED_MAX);
                self.to_pass = self.passed;
            }
            self.looks = LOOKS_MIN;
        }
        next
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

#[cfg(test)]
#[cfg(not(feature = "interleavings"))]
mod tests {
    use super::*;
    use std::vec::Vec;

    /// Looks before a sleep.
    fn looks(habit: &mut Habit, now: u64) -> u32 {
        (0..).take_while(|_| habit.pause_at(|| now) == Next::Look).count() as u32
    }

    /// Who looks in vain soon looks shorter, and tries ever more seldom whether it would pay.
    #[test]
    fn looks_that_find_nothing_are_given_up() {
        let mut habit = Habit::new();
        let mut long = Vec::new();
        for time in 0..1000 {
            if looks(&mut habit, time * 1000) == LOOKS_MAX {
                long.push(time);
            }
            habit.came_at(|| time * 1000 + SOON_MICROS - 1);
        }
        let gaps: Vec<u64> = long.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert_eq!(gaps.iter().take(6).copied().collect::<Vec<_>>(), [2, 3, 5, 9, 17, 33]);
        assert!(gaps.iter().skip(6).all(|&gap| gap == u64::from(PASSED_MAX) + 1), "{gaps:?}");
    }

    #[test]
    fn looks_that_find_something_are_kept_up() {
        let mut habit = Habit::new();
        assert_eq!(looks(&mut habit, 0), LOOKS_MAX);
        habit.came_at(|| 1);
        assert_eq!(looks(&mut habit, 0), LOOKS_MIN);
        // Not soon enough to be found by looking.
        habit.came_at(|| SOON_MICROS);
        assert_eq!(looks(&mut habit, 0), LOOKS_MIN);
        habit.came_at(|| 1);
        for _ in 0..10 {
            (0..LOOKS_MAX).for_each(|_| assert_eq!(habit.pause_at(|| 0), Next::Look));
            // Found, however long he looked.
            habit.came_at(|| 10 * SOON_MICROS);
        }
        assert_eq!(looks(&mut habit, 0), LOOKS_MAX);
    }
}

//! How long to go on with a request that meets trouble: the bound on a wait, the pauses between
//! attempts, and the shorter wait for a daemon that did not come back.

use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicBool, AtomicU64};
use shm::wait;
use wire::errno::{Errno, Result};

use crate::transport::Transport;
use crate::transport::clock::sleep_micros;

/// First pause before a lost daemon is tried again; it doubles up to `BACK_OFF_MICROS_MAX`.
const BACK_OFF_MICROS: u64 = 1_000;
/// Longest pause before a lost daemon is tried again.
const BACK_OFF_MICROS_MAX: u64 = 100_000;
/// Bound on waits until a daemon has told the instance's timeout.
const TIMEOUT_MICROS: u64 = 30_000_000;
/// Bound on the wait for a daemon for which an earlier wait has failed.
const GONE_MICROS: u64 = 200_000;

/// Bound on the wait for a daemon's answer to a hello.
const HANDSHAKE_MICROS: u64 = 5_000_000;
/// The same after an earlier wait has failed.
const HANDSHAKE_AGAIN_MICROS: u64 = 500_000;

/// Time left for the retries of a request, counted from its first failure.
pub(crate) struct RetryBudget {
    timeout_micros: u64,
    deadline: Option<u64>,
    pause: u64,
}

impl RetryBudget {
    pub(crate) const fn new(timeout_micros: u64) -> RetryBudget {
        RetryBudget { timeout_micros, deadline: None, pause: BACK_OFF_MICROS }
    }

    /// How long to wait before the next attempt, at most `micros`.
    ///
    /// # Errors
    /// `EIO` if the time is over.
    pub(crate) fn next(&mut self, micros: u64) -> Result<u64> {
        let now = wait::now_micros();
        let deadline = *self.deadline.get_or_insert(now.saturating_add(self.timeout_micros));
        if now >= deadline {
            return Err(Errno::EIO);
        }
        Ok(micros.min(deadline.saturating_sub(now)))
    }

    /// As `next`, with a pause that doubles each time.
    ///
    /// # Errors
    /// As `next`.
    pub(crate) fn next_longer(&mut self) -> Result<u64> {
        let pause = self.pause;
        self.pause = pause.saturating_mul(2).min(BACK_OFF_MICROS_MAX);
        self.next(pause)
    }

    /// Sleeps before the next attempt.
    ///
    /// # Errors
    /// As `next`.
    pub(crate) fn sleep(&mut self, micros: u64) -> Result<()> {
        self.next(micros).map(sleep_micros)
    }

    /// Sleeps, twice as long each time.
    ///
    /// # Errors
    /// As `next`.
    pub(crate) fn back_off(&mut self) -> Result<()> {
        self.next_longer().map(sleep_micros)
    }
}

/// Bounds on waits for daemons.
pub(crate) struct Timeouts {
    /// Bound on a wait, from the last handshake; 0 before the first.
    timeout_micros: AtomicU64,
    /// A daemon did not come back in time: the next calls wait only a moment.
    is_gone: AtomicBool,
}

impl Timeouts {
    pub(crate) const fn new() -> Timeouts {
        Timeouts { timeout_micros: AtomicU64::new(0), is_gone: AtomicBool::new(false) }
    }

    /// Records the instance's timeout: a daemon was reached.
    pub(crate) fn note_reached(&self, timeout_micros: u64) {
        self.timeout_micros.store(timeout_micros.max(1), Relaxed);
        self.is_gone.store(false, Relaxed);
    }

    /// Records that a daemon did not come back in time.
    pub(crate) fn note_gone(&self) {
        self.is_gone.store(true, Relaxed);
    }
}

impl Transport {
    /// Bound on a wait, in microseconds.
    pub(crate) fn timeout_micros(&self) -> u64 {
        match self.timeouts.timeout_micros.load(Relaxed) {
            0 => TIMEOUT_MICROS,
            known => known,
        }
    }

    /// Bound on the wait for a daemon's answer to a hello, in microseconds.
    pub(crate) fn handshake_micros(&self) -> u64 {
        let is_gone = self.timeouts.is_gone.load(Relaxed);
        let bound = if is_gone { HANDSHAKE_AGAIN_MICROS } else { HANDSHAKE_MICROS };
        bound.min(self.timeout_micros())
    }

    /// Retry budget for a daemon that is gone.
    pub(crate) fn reconnect_budget(&self) -> RetryBudget {
        let whole = self.timeout_micros();
        let is_gone = self.timeouts.is_gone.load(Relaxed);
        RetryBudget::new(if is_gone { whole.min(GONE_MICROS) } else { whole })
    }

    /// Sleeps, twice as long each time. Once the time is over, later calls wait only `GONE_MICROS`.
    ///
    /// # Errors
    /// `EIO` if the time is over.
    pub(crate) fn back_off(&self, budget: &mut RetryBudget) -> Result<()> {
        budget.back_off().inspect_err(|_| self.timeouts.note_gone())
    }
}

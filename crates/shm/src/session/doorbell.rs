//! Doorbells: how a client signals work to a worker, and how a worker sleeps.
//!
//! Layout of a worker's bell, `BELL_BYTES` each, `WORKER_COUNT_MAX` of them:
//!
//!   0    sleeping  u32   1 while the worker sleeps on it (a futex), 2 once it is to wake up, 3
//!                        while it sleeps and another thread of the daemon takes its rings; 4
//!                        during a short sleep: it polls within milliseconds, so a few local
//!                        operations wait
//!   4    processor u32   where the worker ran when it last polled, plus one
//!   64   summary   u64   bit i: word i below is not zero
//!   128  words     64 x u64, one bit for each session
//!
//! Behind the bells, `SERVICE_COUNT_MAX` bits: clients used a lease of the service since the daemon
//! last checked.
//!
//! Invariants:
//!  1. A bit once set is seen: the ringer sets word and summary, then reads `sleeping`; the worker
//!     sets `sleeping`, then reads the summary; all sequentially consistent, so one of the two sees
//!     the other. The same holds for a thread that starts or stops watching for a sleeping worker.
//!  2. A ringer that is killed half-way loses its own ring only; a spurious bit costs one poll. So
//!     every ringer that finds the worker not yet awake wakes it, even if another was about to.

use crate::segment::Segment;
use crate::sync::{AtomicU32, AtomicU64};
use crate::wait;
use core::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};
use wire::errno::{Errno, Result};
use wire::lease::SERVICE_COUNT_MAX;
use wire::limits::WORKER_COUNT_MAX;

const SLEEPING: usize = 0;
const PROCESSOR: usize = 4;
const SUMMARY: usize = 64;
const WORDS: usize = 128;
const WORD_COUNT: usize = 64;
const BELL_BYTES: usize = WORDS + 8 * WORD_COUNT;

const AWAKE: u32 = 0;
const ASLEEP: u32 = 1;
const WOKEN: u32 = 2;
const WATCHED: u32 = 3;
const SHORT_SLEEPING: u32 = 4;

/// Local operations of one session for which a worker in a short sleep is woken: a wake-up costs as
/// much as a few of them.
const LOCAL_OPS_TO_WAKE: u32 = 24;

/// How a worker sleeps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sleep {
    /// Any ring wakes it.
    Deep,
    /// A few local operations may wait until it wakes by itself.
    Short,
}

/// Maximum number of sessions of one daemon.
pub const SESSION_COUNT_MAX: usize = WORD_COUNT * 64 - 1;
/// Sessions whose tables have memory from the start, so that programs run while `/dev/shm` is full:
/// that of a mount, and those of some programs.
pub const SESSION_COUNT_PRESENT: usize = 8;
/// The last bit: no session, but a wake-up by another thread of the daemon.
const WAKE_BIT: usize = SESSION_COUNT_MAX;
/// Length of the segment.
pub const DOORBELLS_BYTES: usize = USES + SERVICE_COUNT_MAX / 8;
/// Offset of the bits of leases in use.
const USES: usize = BELL_BYTES * WORKER_COUNT_MAX;

/// The bells of one daemon.
pub struct Doorbells {
    segment: Segment,
}

impl Doorbells {
    /// Sees nothing of the shared memory any more (`Segment::detach`).
    pub fn detach(&self) {
        self.segment.detach();
    }

    /// Takes the mapping of a doorbell segment.
    ///
    /// # Errors
    /// `EINVAL` if it is too short.
    pub fn new(segment: Segment) -> Result<Doorbells> {
        if segment.len() < DOORBELLS_BYTES { Err(Errno::EINVAL) } else { Ok(Doorbells { segment }) }
    }

    /// Sets a bit; returns the word that holds the worker's sleep state.
    fn set(&self, worker: usize, bit: usize) -> Result<&AtomicU32> {
        let bell = self.bell(worker)?;
        let word = bit / 64;
        if word >= WORD_COUNT {
            return Err(Errno::EINVAL);
        }
        self.segment.word64(bell + WORDS + 8 * word)?.fetch_or(1 << (bit % 64), SeqCst);
        self.segment.word64(bell + SUMMARY)?.fetch_or(1 << word, SeqCst);
        self.segment.word32(bell + SLEEPING)
    }

    /// Notifies `worker` of one more local operation of a session; `waiting` returns how many may wait.
    /// Wakes the worker only if it may not sleep through them.
    ///
    /// # Errors
    /// `EINVAL` for a worker that does not exist.
    pub fn wake_if(&self, worker: usize, waiting: impl FnOnce() -> u32) -> Result<()> {
        let sleeping = self.segment.word32(self.bell(worker)? + SLEEPING)?;
        let now = sleeping.load(SeqCst);
        if matches!(now, ASLEEP | WATCHED)
            || (now == SHORT_SLEEPING && waiting() >= LOCAL_OPS_TO_WAKE)
        {
            wake_sleeper(sleeping, &[ASLEEP, SHORT_SLEEPING, WATCHED]);
        }
        Ok(())
    }

    /// Notifies `worker` that `session` has something for it.
    ///
    /// # Errors
    /// `EINVAL` for a worker or session that does not exist.
    pub fn ring(&self, worker: usize, session: u16) -> Result<()> {
        if usize::from(session) >= SESSION_COUNT_MAX {
            return Err(Errno::EINVAL);
        }
        let sleeping = self.set(worker, usize::from(session))?;
        if !matches!(sleeping.load(SeqCst), AWAKE | WATCHED) {
            wake_sleeper(sleeping, &[ASLEEP, SHORT_SLEEPING]);
        }
        Ok(())
    }

    /// Wakes `worker` for something that is not in a session: an inbox of the daemon.
    ///
    /// # Errors
    /// `EINVAL` for a worker that does not exist.
    pub fn wake(&self, worker: usize) -> Result<()> {
        let sleeping = self.set(worker, WAKE_BIT)?;
        if sleeping.load(SeqCst) != AWAKE {
            wake_sleeper(sleeping, &[ASLEEP, SHORT_SLEEPING, WATCHED]);
        }
        Ok(())
    }

    /// Lets another thread of the daemon, which is awake anyway, take the rings of `worker` while
    /// that sleeps: they wake nobody. True if it does; false if the worker is awake. To be called
    /// again before each poll.
    #[must_use]
    pub fn watch(&self, worker: usize) -> bool {
        let bell = self.bell(worker).and_then(|bell| self.segment.word32(bell + SLEEPING));
        let Ok(sleeping) = bell else { return false };
        match sleeping.load(SeqCst) {
            WATCHED => true,
            now @ (ASLEEP | SHORT_SLEEPING) => {
                sleeping.compare_exchange(now, WATCHED, SeqCst, SeqCst).is_ok()
            }
            _ => false,
        }
    }

    /// Ends `watch`. False if a ring came in that woke nobody: poll once more.
    #[must_use]
    pub fn unwatch(&self, worker: usize) -> bool {
        let Ok(bell) = self.bell(worker) else { return true };
        let words = (self.segment.word32(bell + SLEEPING), self.segment.word64(bell + SUMMARY));
        let (Ok(sleeping), Ok(summary)) = words else { return true };
        let was_watched = sleeping.compare_exchange(WATCHED, ASLEEP, SeqCst, SeqCst).is_ok();
        !was_watched || summary.load(SeqCst) == 0
    }

    /// Takes all rings of `worker`; calls `session` for each session that rang. True if there was
    /// any ring or wake-up.
    pub fn take(&self, worker: usize, mut session: impl FnMut(u16)) -> bool {
        let Ok(bell) = self.bell(worker) else { return false };
        let Ok(summary) = self.segment.word64(bell + SUMMARY) else { return false };
        if summary.load(Relaxed) == 0 {
            return false;
        }
        let mut words = summary.swap(0, SeqCst);
        let any = words != 0;
        while words != 0 {
            let word = words.trailing_zeros() as usize;
            words &= words - 1;
            let Ok(bits) = self.segment.word64(bell + WORDS + 8 * word) else { continue };
            let mut bits = bits.swap(0, SeqCst);
            while bits != 0 {
                let bit = word * 64 + bits.trailing_zeros() as usize;
                bits &= bits - 1;
                if bit < SESSION_COUNT_MAX {
                    session(bit as u16);
                }
            }
        }
        any
    }

    /// True if something waits for `worker`.
    #[must_use]
    pub fn has_rung(&self, worker: usize) -> bool {
        self.bell(worker)
            .and_then(|bell| self.segment.word64(bell + SUMMARY))
            .is_ok_and(|summary| summary.load(Acquire) != 0)
    }

    /// Records the processor that the worker runs on. Cheap enough for each idle poll.
    pub fn note_cpu(&self, worker: usize) {
        let bell = self.bell(worker);
        let Ok(word) = bell.and_then(|bell| self.segment.word32(bell + PROCESSOR)) else { return };
        let here = wait::processor().wrapping_add(1);
        if word.load(Relaxed) != here {
            word.store(here, Relaxed);
        }
    }

    /// True if `worker` last ran on the processor of the calling thread.
    #[must_use]
    pub fn is_here(&self, worker: usize) -> bool {
        self.bell(worker)
            .and_then(|bell| self.segment.word32(bell + PROCESSOR))
            .is_ok_and(|word| word.load(Relaxed) == wait::processor().wrapping_add(1))
    }

    /// Sleeps until a ring or until `micros` have passed; not at all if `has_more` returns true
    /// once the worker is marked as sleeping.
    pub fn sleep(&self, worker: usize, micros: u64, how: Sleep, has_more: impl FnOnce() -> bool) {
        let Ok(bell) = self.bell(worker) else { return };
        let words = (self.segment.word32(bell + SLEEPING), self.segment.word64(bell + SUMMARY));
        let (Ok(sleeping), Ok(summary)) = words else { return };
        let state = if how == Sleep::Short { SHORT_SLEEPING } else { ASLEEP };
        sleeping.store(state, SeqCst);
        if summary.load(SeqCst) == 0 && !has_more() {
            // A thread that begins to watch between the two changes the word, which ends the sleep.
            let asleep = sleeping.load(SeqCst);
            if asleep == state || asleep == WATCHED {
                wait::sleep(sleeping, asleep, micros);
            }
        }
        sleeping.store(AWAKE, SeqCst);
    }

    /// Records that a lease of a service was used.
    pub fn use_lease(&self, service: usize) {
        let Ok((word, bit)) = self.use_bit(service) else { return };
        // It is usually set, and setting it again would take its cache line from others.
        if word.load(Relaxed) & bit == 0 {
            word.fetch_or(bit, Relaxed);
        }
    }

    /// True if a lease of a service was used since the last call.
    #[must_use]
    pub fn take_use(&self, service: usize) -> bool {
        let Ok((word, bit)) = self.use_bit(service) else { return false };
        word.fetch_and(!bit, Relaxed) & bit != 0
    }

    fn use_bit(&self, service: usize) -> Result<(&AtomicU64, u64)> {
        if service >= SERVICE_COUNT_MAX {
            return Err(Errno::EINVAL);
        }
        Ok((self.segment.word64(USES + service / 64 * 8)?, 1 << (service % 64)))
    }

    fn bell(&self, worker: usize) -> Result<usize> {
        if worker < WORKER_COUNT_MAX { Ok(worker * BELL_BYTES) } else { Err(Errno::EINVAL) }
    }
}

/// Wakes a worker that sleeps in one of these states, or is about to.
fn wake_sleeper(sleeping: &AtomicU32, ways: &[u32]) {
    // The word changes, so that a worker that is about to sleep does not.
    for &way in ways {
        let _ = sleeping.compare_exchange(way, WOKEN, SeqCst, SeqCst);
    }
    wait::wake(sleeping, 1);
}

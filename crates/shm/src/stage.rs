//! The stage of a session: buffers through which bytes move that lie on other hosts. The client
//! copies into a buffer or out of it, the daemon moves it over the network.
//!
//! Layout, behind the slots: 64 bytes: a word that says that somebody sleeps until a buffer comes
//! free; a row of 64 bytes for each buffer:
//!
//!   0   state   u32
//!   4   owner   u32   thread
//!   8   inode   u64   from here on: what was pushed, so that it can be pushed again
//!   16  offset  u64
//!   24  length  u32
//!   28  target  u16, log2 of the chunk u16
//!   32  vnode   u32
//!   40  stamp   u64   microseconds: what was pushed first comes first
//!   48  ...           of `ahead`
//!
//! then the buffers, each of whole pages.
//!
//!   FREE --take--> TAKEN --lend--> LENT --the daemon is done--> TAKEN --drop--> FREE
//!                                  LENT --the client gave up--> LEFT --the daemon is done--> FREE
//!                  TAKEN --push--> PUSHED --the daemon saw it--> MOVING --it is done--> FREE
//!                                  PUSHED, MOVING --the daemon is dead--> TAKEN
//!
//! and the states of what is fetched before anybody asked for it (`ahead`).
//!
//! Invariants:
//!  1. The client touches the bytes of a buffer in TAKEN only, the daemon in LENT, LEFT and MOVING.
//!  2. The daemon is done with a buffer before it answers the request that named it.
//!  3. A buffer whose owner died while it was TAKEN is taken over when buffers are short.
//!  4. Who frees a buffer that others may take without a word sets its owner to zero before.

pub mod ahead;

use crate::host::VnodeIndex;
use crate::segment::Segment;
use crate::session::{SESSION_BYTES, Session};
use crate::sync::{AtomicU32, fence};
use crate::wait::{self, Backoff, Next};
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use wire::errno::{Errno, Result};
use wire::limits::{STAGE_BUFFER_BYTES, STAGE_BUFFER_COUNT};
use wire::{DaemonIndex, Inode};

const PAGE: usize = 4096;
const SLEEPER: usize = SESSION_BYTES.next_multiple_of(PAGE);
const ROWS: usize = SLEEPER + ROW;
const ROW: usize = 64;
const STATE: usize = 0;
const OWNER: usize = 4;
const INODE: usize = 8;
const OFFSET: usize = 16;
const LENGTH: usize = 24;
const TARGET: usize = 28;
const VNODE: usize = 32;
const STAMP: usize = 40;
const BUFFERS: usize = (ROWS + STAGE_BUFFER_COUNT * ROW).next_multiple_of(PAGE);

/// Length of the memory of a session with its stage.
pub const SESSION_AND_STAGE_BYTES: usize = BUFFERS + STAGE_BUFFER_COUNT * STAGE_BUFFER_BYTES;

const FREE: u32 = 0;
const TAKEN: u32 = 1;
const LENT: u32 = 2;
const LEFT: u32 = 3;
const PUSHED: u32 = 4;
const MOVING: u32 = 5;

/// How long one sleep for a buffer lasts at most.
const SLEEP_MICROS: u64 = 10_000;

const _: () = assert!(STAGE_BUFFER_BYTES.is_multiple_of(PAGE) && STAGE_BUFFER_COUNT <= 256);

/// What a client pushed and does not wait for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pushed {
    /// The file.
    pub inode: Inode,
    /// Its row in the host segment.
    pub vnode: VnodeIndex,
    /// Whose target it is for.
    pub target: DaemonIndex,
    /// log2 of the file's chunk.
    pub chunk_log2: u8,
    /// Offset in the file.
    pub offset: u64,
    /// Number of bytes.
    pub length: u32,
    /// When, in microseconds of `wait::now_micros`.
    pub stamp: u64,
}

/// The buffers of a session, from either side.
#[derive(Clone, Copy)]
pub struct Stage<'a> {
    session: &'a Session,
    segment: &'a Segment,
}

impl Session {
    /// The buffers behind the slots.
    #[must_use]
    pub const fn stage(&self) -> Stage<'_> {
        Stage { session: self, segment: self.segment() }
    }
}

impl<'a> Stage<'a> {
    fn word(&self, buffer: usize, field: usize) -> Result<&'a AtomicU32> {
        if buffer >= STAGE_BUFFER_COUNT {
            return Err(Errno::EINVAL);
        }
        self.segment.word32(ROWS + buffer * ROW + field)
    }

    /// A free buffer, or one whose bytes nobody has asked for yet.
    ///
    /// # Errors
    /// `EAGAIN` if there is none now.
    pub fn try_take(&self) -> Result<Buffer<'a>> {
        self.try_free().or_else(|_| self.take_unread(|_| true).ok_or(Errno::EAGAIN))
    }

    /// A free buffer, the first one: so few are touched as long as few are used.
    ///
    /// # Errors
    /// `EAGAIN` if there is none now.
    pub fn try_free(&self) -> Result<Buffer<'a>> {
        for index in 0..STAGE_BUFFER_COUNT {
            let state = self.word(index, STATE)?;
            if state.load(Relaxed) == FREE
                && state.compare_exchange(FREE, TAKEN, AcqRel, Relaxed).is_ok()
            {
                self.word(index, OWNER)?.store(wait::thread_id(), Release);
                return Ok(Buffer { stage: *self, index });
            }
        }
        Err(Errno::EAGAIN)
    }

    /// A free buffer; waits while there is none, at most `timeout_micros`, and takes over those of
    /// dead threads.
    ///
    /// # Errors
    /// `ETIMEDOUT` if none came free.
    pub fn take(&self, timeout_micros: u64) -> Result<Buffer<'a>> {
        let mut backoff = Backoff::new();
        let mut give_up = None;
        loop {
            match self.try_take() {
                Err(Errno::EAGAIN) => {}
                taken => return taken,
            }
            if backoff.pause() == Next::Look {
                continue;
            }
            if let Some(index) = self.find_abandoned() {
                return Ok(Buffer { stage: *self, index });
            }
            if self.free_unasked() {
                continue;
            }
            let now = wait::now_micros();
            let give_up = *give_up.get_or_insert(now.saturating_add(timeout_micros));
            if now >= give_up {
                return Err(Errno::ETIMEDOUT);
            }
            // Who frees one looks at the word afterwards; we look for one after it is set.
            let sleeper = self.segment.word32(SLEEPER)?;
            sleeper.store(1, SeqCst);
            fence(SeqCst);
            match self.try_take() {
                Err(Errno::EAGAIN) => {}
                taken => return taken,
            }
            let _ = wait::sleep(sleeper, 1, SLEEP_MICROS.min(give_up.saturating_sub(now)));
        }
    }

    /// A buffer whose owner died with it in hand; it passes to the caller.
    fn find_abandoned(&self) -> Option<usize> {
        (0..STAGE_BUFFER_COUNT).find(|&index| {
            let (Ok(state), Ok(owner)) = (self.word(index, STATE), self.word(index, OWNER)) else {
                return false;
            };
            let holder = owner.load(Acquire);
            let is_taken = || state.load(SeqCst) == TAKEN;
            // A holder of zero has just taken it and not said so yet. The state is looked at again
            // once the holder is dead: it may have pushed the buffer before.
            holder != 0
                && is_taken()
                && wait::is_dead(holder)
                && is_taken()
                && owner.compare_exchange(holder, wait::thread_id(), AcqRel, Relaxed).is_ok()
        })
    }

    /// Wakes who waits for a buffer.
    fn freed(&self) {
        fence(SeqCst);
        let Ok(sleeper) = self.segment.word32(SLEEPER) else { return };
        if sleeper.load(SeqCst) != 0 && sleeper.swap(0, SeqCst) != 0 {
            wait::wake(sleeper, u32::MAX >> 1);
        }
    }

    /// Takes a buffer back that was pushed to a daemon that died; `None` if there is nothing in it
    /// that still has to be pushed.
    #[must_use]
    pub fn take_pushed(&self, index: usize) -> Option<(Buffer<'a>, Pushed)> {
        let state = self.word(index, STATE).ok()?;
        let before = state.load(Acquire);
        if before != PUSHED && before != MOVING {
            return None;
        }
        let pushed = self.pushed(index).ok()?;
        state.compare_exchange(before, TAKEN, AcqRel, Relaxed).ok()?;
        self.word(index, OWNER).ok()?.store(wait::thread_id(), Release);
        Some((Buffer { stage: *self, index }, pushed))
    }

    fn pushed(&self, index: usize) -> Result<Pushed> {
        let row = ROWS + index * ROW;
        let target = self.word(index, TARGET)?.load(Relaxed);
        Ok(Pushed {
            inode: Inode(self.segment.word64(row + INODE)?.load(Relaxed)),
            vnode: VnodeIndex(self.word(index, VNODE)?.load(Relaxed)),
            target: DaemonIndex(target as u16),
            chunk_log2: (target >> 16) as u8,
            offset: self.segment.word64(row + OFFSET)?.load(Relaxed),
            length: self.word(index, LENGTH)?.load(Relaxed),
            stamp: self.segment.word64(row + STAMP)?.load(Relaxed),
        })
    }

    // ---- the daemon's side ----

    /// The memory of all buffers.
    #[must_use]
    pub const fn segment(&self) -> &'a Segment {
        self.segment
    }

    /// Where in `segment` the first `length` bytes of a buffer lie.
    ///
    /// # Errors
    /// `EINVAL` for a buffer that does not exist or is not that long.
    pub fn place(&self, buffer: u8, length: usize) -> Result<usize> {
        let buffer = usize::from(buffer);
        if buffer >= STAGE_BUFFER_COUNT || length > STAGE_BUFFER_BYTES {
            return Err(Errno::EINVAL);
        }
        Ok(BUFFERS + buffer * STAGE_BUFFER_BYTES)
    }

    /// When a client pushed this buffer, if nobody moves it yet.
    #[must_use]
    pub fn pushed_at(&self, buffer: u8) -> Option<u64> {
        let state = self.word(usize::from(buffer), STATE).ok()?;
        let pushed = self.pushed(usize::from(buffer)).ok()?;
        (state.load(Acquire) == PUSHED).then_some(pushed.stamp)
    }

    /// What a client pushed with this buffer; `None` if nothing, or it was taken before. The numbers
    /// are claims.
    #[must_use]
    pub fn begin_moving(&self, buffer: u8) -> Option<Pushed> {
        let state = self.word(usize::from(buffer), STATE).ok()?;
        state.compare_exchange(PUSHED, MOVING, AcqRel, Relaxed).ok()?;
        self.pushed(usize::from(buffer)).ok()
    }

    /// The daemon is done with a buffer: it is the client's again, or free if that gave it up.
    pub fn give_back(&self, buffer: u8) {
        let words = (self.word(buffer.into(), STATE), self.word(buffer.into(), OWNER));
        let (Ok(state), Ok(owner)) = words else { return };
        if state.load(Acquire) == MOVING {
            owner.store(0, Relaxed);
        }
        if state.compare_exchange(LENT, TAKEN, AcqRel, Relaxed).is_err()
            && (state.compare_exchange(LEFT, FREE, AcqRel, Relaxed).is_ok()
                || state.compare_exchange(MOVING, FREE, AcqRel, Relaxed).is_ok())
        {
            self.freed();
        }
    }
}

/// A buffer that the calling thread holds. Dropped: free again, once the daemon is done with it.
pub struct Buffer<'a> {
    stage: Stage<'a>,
    index: usize,
}

impl Buffer<'_> {
    /// Its number in the stage.
    #[must_use]
    pub const fn index(&self) -> u8 {
        self.index as u8
    }

    /// Copies bytes to its beginning.
    ///
    /// # Errors
    /// `EINVAL` if they do not fit.
    pub fn fill(&mut self, from: &[u8]) -> Result<()> {
        self.stage.segment.copy_in(self.stage.place(self.index(), from.len())?, from)
    }

    /// Copies the first `length` bytes of another buffer to its beginning.
    ///
    /// # Errors
    /// `EINVAL` if it does not hold so many.
    pub fn fill_from(&mut self, other: &Buffer<'_>, length: usize) -> Result<()> {
        let mut step = [0; PAGE];
        let (from, to) =
            (other.stage.place(other.index(), length)?, self.stage.place(self.index(), length)?);
        for at in (0..length).step_by(PAGE) {
            let step = step.get_mut(..PAGE.min(length - at)).ok_or(Errno::EINVAL)?;
            other.stage.segment.copy_out(from + at, step)?;
            self.stage.segment.copy_in(to + at, step)?;
        }
        Ok(())
    }

    /// Copies bytes from its beginning.
    ///
    /// # Errors
    /// `EINVAL` if it does not hold so many.
    pub fn copy_out(&self, to: &mut [u8]) -> Result<()> {
        self.stage.segment.copy_out(self.stage.place(self.index(), to.len())?, to)
    }

    /// The daemon may use it from now on, until it answers: call it before the request is handed in.
    ///
    /// # Errors
    /// Never for a buffer that was taken.
    pub fn lend(&mut self) -> Result<()> {
        self.stage.word(self.index, STATE)?.store(LENT, Release);
        Ok(())
    }

    /// Says what it holds, for `push`.
    ///
    /// # Errors
    /// Never for a buffer that was taken.
    pub fn describe(&self, pushed: &Pushed) -> Result<()> {
        let (stage, index) = (self.stage, self.index);
        let row = ROWS + index * ROW;
        stage.segment.word64(row + INODE)?.store(pushed.inode.0, Relaxed);
        stage.segment.word64(row + OFFSET)?.store(pushed.offset, Relaxed);
        stage.word(index, LENGTH)?.store(pushed.length, Relaxed);
        let target = u32::from(pushed.target.0) | u32::from(pushed.chunk_log2) << 16;
        stage.word(index, TARGET)?.store(target, Relaxed);
        stage.word(index, VNODE)?.store(pushed.vnode.0, Relaxed);
        stage.segment.word64(row + STAMP)?.store(pushed.stamp, Relaxed);
        Ok(())
    }

    /// The daemon frees it when what it holds, which was described, has arrived: call it before the
    /// request is handed in. Who counts what is on its way does that right before: who is killed
    /// between the two leaves one too many.
    ///
    /// # Errors
    /// Never for a buffer that was taken.
    pub fn push(self) -> Result<()> {
        let state = self.stage.word(self.index, STATE)?;
        core::mem::forget(self);
        state.store(PUSHED, Release);
        Ok(())
    }

    /// The daemon answered: it does not use the buffer any more, whatever it answered.
    ///
    /// # Errors
    /// Never for a buffer that was taken.
    pub fn take_back(&mut self) -> Result<()> {
        self.stage.word(self.index, STATE)?.store(TAKEN, Release);
        Ok(())
    }
}

impl Drop for Buffer<'_> {
    fn drop(&mut self) {
        let (state, owner) =
            (self.stage.word(self.index, STATE), self.stage.word(self.index, OWNER));
        let (Ok(state), Ok(owner)) = (state, owner) else { return };
        owner.store(0, Relaxed);
        if state.compare_exchange(LENT, LEFT, AcqRel, Acquire).is_err() {
            let _ = state.compare_exchange(TAKEN, FREE, AcqRel, Relaxed);
            self.stage.freed();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    fn session() -> Session {
        let (segment, _) =
            Segment::nameless(c"test", SESSION_AND_STAGE_BYTES).expect("anonymous memory");
        Session::new(segment).expect("long enough")
    }

    #[test]
    fn a_buffer_is_one_holders_at_a_time_and_free_again_at_its_end() {
        let session = session();
        let stage = session.stage();
        let all: Vec<_> =
            (0..STAGE_BUFFER_COUNT).map(|_| stage.try_take().expect("free")).collect();
        let mut numbers: Vec<_> = all.iter().map(Buffer::index).collect();
        numbers.dedup();
        assert_eq!(numbers.len(), STAGE_BUFFER_COUNT);
        assert_eq!(stage.try_take().map(drop), Err(Errno::EAGAIN));
        assert_eq!(stage.take(0).map(drop), Err(Errno::ETIMEDOUT));
        drop(all);
        assert_eq!(stage.take(0).map(|buffer| buffer.index()), Ok(0));
    }

    #[test]
    fn what_a_client_gave_up_comes_free_when_the_daemon_is_done() {
        let session = session();
        let stage = session.stage();
        let mut buffer = stage.try_take().expect("free");
        buffer.lend().expect("taken");
        drop(buffer);
        assert_eq!(stage.try_take().map(|buffer| buffer.index()), Ok(1), "0 is still in use");
        stage.give_back(0);
        assert_eq!(stage.try_take().map(|buffer| buffer.index()), Ok(0));
        // A word too many changes nothing.
        stage.give_back(0);
        stage.give_back(255);
    }

    #[test]
    fn a_dead_threads_buffer_is_taken_over_unless_the_daemon_has_it() {
        let session = session();
        let stage = session.stage();
        std::thread::scope(|scope| {
            let of_dead = || {
                for lends in [true, false] {
                    let mut buffer = stage.try_take().expect("free");
                    if lends {
                        buffer.lend().expect("taken");
                    }
                    core::mem::forget(buffer);
                }
            };
            scope.spawn(of_dead).join().expect("it ends");
        });
        let mut rest: Vec<_> = (2..STAGE_BUFFER_COUNT).map(|_| stage.try_take()).collect();
        // The kernel may take a moment to forget the thread.
        rest.push(stage.take(10_000_000));
        assert_eq!(rest.last().and_then(|last| last.as_ref().ok()).map(Buffer::index), Some(1));
        stage.give_back(0);
        rest.push(stage.take(10_000_000));
        assert!(rest.iter().all(Result::is_ok));
    }

    #[test]
    fn what_was_pushed_is_freed_by_the_daemon_or_taken_back_from_a_dead_one() {
        let session = session();
        let stage = session.stage();
        let pushed = Pushed {
            inode: Inode(7),
            vnode: VnodeIndex(8),
            target: DaemonIndex(9),
            chunk_log2: 22,
            offset: 1 << 40,
            length: 5000,
            stamp: 3,
        };
        for bytes in [[1; 5000], [2; 5000]] {
            let mut buffer = stage.try_take().expect("free");
            buffer.fill(&bytes).expect("fits");
            buffer.describe(&pushed).and_then(|()| buffer.push()).expect("taken");
        }
        stage.give_back(0);
        assert_eq!(stage.begin_moving(0), Some(pushed), "nobody moved it yet");
        assert_eq!(stage.begin_moving(0), None, "it is moved once");
        stage.give_back(0);
        assert!(stage.take_pushed(0).is_none(), "it has arrived");
        let (back, what) = stage.take_pushed(1).expect("it has not");
        assert!(stage.take_pushed(1).is_none(), "one takes it");
        assert_eq!(what, pushed);
        let mut again = stage.try_take().expect("free");
        again.fill_from(&back, 5000).expect("fits");
        let mut bytes = [0; 5000];
        again.copy_out(&mut bytes).expect("fits");
        assert_eq!(bytes, [2; 5000]);
    }

    #[test]
    fn who_waits_for_a_buffer_is_woken_by_one_that_comes_free() {
        let session = session();
        let stage = session.stage();
        let mut all: Vec<_> = (0..STAGE_BUFFER_COUNT).map(|_| stage.try_take()).collect();
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| stage.take(60_000_000).map(|buffer| buffer.index()));
            drop(all.pop());
            assert_eq!(waiter.join().expect("it ends"), Ok(STAGE_BUFFER_COUNT as u8 - 1));
        });
    }

    #[test]
    fn bytes_come_back_and_none_beyond_a_buffer_are_touched() {
        let session = session();
        let mut buffer = session.stage().try_take().expect("free");
        let bytes: Vec<u8> = (0..STAGE_BUFFER_BYTES).map(|at| at as u8).collect();
        buffer.fill(&bytes).expect("fits");
        let mut back = std::vec![0; bytes.len()];
        buffer.copy_out(&mut back).expect("fits");
        assert!(back == bytes);
        assert_eq!(buffer.fill(&std::vec![0; bytes.len() + 1]), Err(Errno::EINVAL));
        assert!(session.stage().place(STAGE_BUFFER_COUNT as u8, 1).is_err());
    }
}

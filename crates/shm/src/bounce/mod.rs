//! Bounce buffers of a session: memory through which bytes move to and from other hosts. The client
//! copies into a buffer or out of it, the daemon moves it over the network.
//!
//! Layout, behind the slots: 64 bytes with a word that is set while a client sleeps until readahead
//! arrives; an entry of 64 bytes for each buffer:
//!
//!   0   state   u32
//!   4   owner   u32   thread
//!   8   inode   u64   from here on: the pushed write, so that it can be pushed again
//!   16  offset  u64
//!   24  length  u32
//!   28  target  u16, log2 of the stripe size u16
//!   32  vnode   u32
//!   36  epoch   u32   of the writes on their way to the file (`host::pending`)
//!   40  stamp   u64   nanoseconds: the oldest push goes first
//!   48  client  u64   of a pushed write: the identity with which it goes to copies; 0: none yet
//!   56  number  u64   of the same; both words are those of `readahead` in its states
//!
//! then the buffers, each of whole pages.
//!
//!   FREE --take--> TAKEN --lend--> LENT --the daemon is done--> TAKEN --drop--> FREE
//!                                  LENT --the client gave up--> LEFT --the daemon is done--> FREE
//!                  TAKEN --begin_counting--> COUNTING --push--> PUSHED
//!                                  COUNTING --not counted------------------> TAKEN
//!                                  COUNTING --its thread died, recounted---> FREE
//!                                  PUSHED --the daemon saw it--> MOVING --it is done--> ENDING
//!                                  ENDING --not counted any more--> FREE
//!                                  PUSHED to ENDING --the daemon is dead--> RETAKEN --> TAKEN
//!
//! and the states of readahead (`readahead`).
//!
//! Invariants:
//!  1. The client touches the bytes of a buffer in TAKEN only, the daemon in LENT, LEFT and MOVING.
//!     A write in PUSHED or MOVING is counted in its open inode.
//!  2. The daemon is done with a buffer before it answers the request that named it.
//!  3. A buffer whose owner died while it was TAKEN is taken over when buffers are short. Threads wait
//!     for buffers in turn, in a queue of the session.
//!  4. Before a buffer becomes free to be taken without a message, its owner is set to zero.

mod readahead;
mod recount;

pub use readahead::{Readahead, ReadaheadLookup};
pub use recount::{SessionPushes, recount_lost_pushes};

use crate::host::{PushEpoch, VnodeIndex};
use crate::segment::Segment;
use crate::session::{SESSION_BYTES, Session};
use crate::sync::{AtomicU32, fence};
use crate::ticket_queue::Scarce;
use crate::wait;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use wire::errno::{Errno, Result};
use wire::limits::{BOUNCE_BUFFER_BYTES, BOUNCE_BUFFER_COUNT};
use wire::{DaemonIndex, Inode};

const PAGE: usize = 4096;
const SLEEPER: usize = SESSION_BYTES.next_multiple_of(PAGE);
const ENTRIES: usize = SLEEPER + ENTRY_BYTES;
const ENTRY_BYTES: usize = 64;
const STATE: usize = 0;
const OWNER: usize = 4;
const INODE: usize = 8;
const OFFSET: usize = 16;
const LENGTH: usize = 24;
const TARGET: usize = 28;
const VNODE: usize = 32;
const EPOCH: usize = 36;
const STAMP: usize = 40;
const CLIENT: usize = 48;
const NUMBER: usize = 56;
const BUFFERS: usize = (ENTRIES + BOUNCE_BUFFER_COUNT * ENTRY_BYTES).next_multiple_of(PAGE);

/// Length of the memory of a session with its bounce buffers.
pub const SESSION_WITH_BUFFERS_BYTES: usize = BUFFERS + BOUNCE_BUFFER_COUNT * BOUNCE_BUFFER_BYTES;

const FREE: u32 = 0;
const TAKEN: u32 = 1;
const LENT: u32 = 2;
const LEFT: u32 = 3;
const PUSHED: u32 = 4;
const MOVING: u32 = 5;
const COUNTING: u32 = 8;
const RETAKEN: u32 = 9;
const ENDING: u32 = 10;

const _: () = assert!(BOUNCE_BUFFER_BYTES.is_multiple_of(PAGE) && BOUNCE_BUFFER_COUNT <= 256);

/// A write that a client pushed and does not wait for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pushed {
    /// The file.
    pub inode: Inode,
    /// Its open inode in the host segment.
    pub vnode: VnodeIndex,
    /// The daemon that owns the target.
    pub target: DaemonIndex,
    /// log2 of the file's stripe size.
    pub stripe_log2: u8,
    /// Offset in the file.
    pub offset: u64,
    /// Number of bytes.
    pub length: u32,
    /// Time of the push, in nanoseconds of `wait::now_nanos`.
    pub stamp: u64,
}

/// The identity of a request, by which a repetition is known: client id, and sequence number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PushIdentity {
    /// The client id; not 0.
    pub client: u64,
    /// The sequence number.
    pub sequence: u64,
}

/// A write that was pushed to a daemon that died.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LostPush {
    /// The write.
    pub pushed: Pushed,
    /// In which it is counted.
    pub epoch: PushEpoch,
    /// As the daemon sent it, if it may have: the next attempt has the same.
    pub identity: Option<PushIdentity>,
}

/// The buffers of a session, for either side.
#[derive(Clone, Copy)]
pub struct BounceBuffers<'a> {
    session: &'a Session,
    segment: &'a Segment,
}

impl Session {
    /// The buffers behind the slots.
    #[must_use]
    pub const fn bounce_buffers(&self) -> BounceBuffers<'_> {
        BounceBuffers { session: self, segment: self.segment() }
    }
}

impl<'a> BounceBuffers<'a> {
    fn word(&self, buffer: usize, field: usize) -> Result<&'a AtomicU32> {
        if buffer >= BOUNCE_BUFFER_COUNT {
            return Err(Errno::EINVAL);
        }
        self.segment.word32(ENTRIES + buffer * ENTRY_BYTES + field)
    }

    /// A free buffer, or one that holds readahead nobody has asked for yet, if no thread waits for one.
    ///
    /// # Errors
    /// `EAGAIN` if there is none now.
    pub fn try_take(&self) -> Result<Buffer<'a>> {
        if !self.session.buffer_queue().is_empty() {
            return Err(Errno::EAGAIN);
        }
        self.take_any()?.ok_or(Errno::EAGAIN)
    }

    fn take_any(&self) -> Result<Option<Buffer<'a>>> {
        match self.try_free() {
            Err(Errno::EAGAIN) => Ok(self.take_unread(|_| true)),
            taken => taken.map(Some),
        }
    }

    /// Number of buffers that a call could take now.
    #[must_use]
    pub fn free_count(&self) -> usize {
        (0..BOUNCE_BUFFER_COUNT).filter(|&index| self.is_free(index)).count()
    }

    /// True if a buffer is free, or holds readahead nobody has asked for yet.
    fn is_free(&self, index: usize) -> bool {
        self.word(index, STATE)
            .is_ok_and(|state| [FREE, readahead::READY].contains(&state.load(SeqCst)))
    }

    /// The lowest free buffer, so that few are touched while few are used.
    ///
    /// # Errors
    /// `EAGAIN` if there is none now.
    pub fn try_free(&self) -> Result<Buffer<'a>> {
        for index in 0..BOUNCE_BUFFER_COUNT {
            let state = self.word(index, STATE)?;
            if state.load(Relaxed) == FREE
                && state.compare_exchange(FREE, TAKEN, AcqRel, Relaxed).is_ok()
            {
                self.word(index, OWNER)?.store(wait::thread_id(), Release);
                return Ok(Buffer { buffers: *self, index });
            }
        }
        Err(Errno::EAGAIN)
    }

    /// A free buffer. While there is none it waits for its turn, as long as other threads get theirs
    /// within `timeout_micros`, and takes over buffers of dead threads. Now and then it asks `is_there`
    /// whether the daemon is alive.
    ///
    /// # Errors
    /// `ETIMEDOUT` if none became free; `EIO` if the daemon is gone.
    pub fn take(&self, timeout_micros: u64, is_there: impl Fn() -> bool) -> Result<Buffer<'a>> {
        match self.try_take() {
            Err(Errno::EAGAIN) => {
                let buffers = FreeBuffers { buffers: *self, is_there };
                self.session.buffer_queue().take(&buffers, timeout_micros)
            }
            taken => taken,
        }
    }

    /// A buffer whose owner died while it was TAKEN; it passes to the caller.
    fn find_abandoned(&self, is_dead: impl Fn(u32) -> bool) -> Option<usize> {
        (0..BOUNCE_BUFFER_COUNT).find(|&index| {
            let (Ok(state), Ok(owner)) = (self.word(index, STATE), self.word(index, OWNER)) else {
                return false;
            };
            let holder = owner.load(Acquire);
            let is_taken = || state.load(SeqCst) == TAKEN;
            // An owner of zero has just taken it and not yet stored its number. The state is read
            // again once the owner is dead: it may have pushed the buffer before.
            holder != 0
                && is_taken()
                && is_dead(holder)
                && is_taken()
                && owner.compare_exchange(holder, wait::thread_id(), AcqRel, Relaxed).is_ok()
        })
    }

    /// Gives back the buffers of the calling thread, whose calls ended without returning. One that the
    /// daemon uses is free once it is done.
    pub fn end_abandoned(&self) {
        let me = wait::thread_id();
        for index in 0..BOUNCE_BUFFER_COUNT {
            let words = (self.word(index, STATE), self.word(index, OWNER));
            let (Ok(state), Ok(owner)) = words else { return };
            if owner.load(Relaxed) == me && matches!(state.load(Acquire), TAKEN | LENT) {
                drop(Buffer { buffers: *self, index });
            }
        }
    }

    /// A buffer is free, or has arrived: wakes the threads that wait for it.
    fn wake_waiters(&self) {
        fence(SeqCst);
        self.session.buffer_queue().admit_next();
        let Ok(sleeper) = self.segment.word32(SLEEPER) else { return };
        if sleeper.load(SeqCst) != 0 && sleeper.swap(0, SeqCst) != 0 {
            wait::wake(sleeper, u32::MAX >> 1);
        }
    }

    /// The write in a buffer that was pushed, and is not done; for the client of a daemon that died.
    #[must_use]
    pub fn pushed_to_dead(&self, index: usize) -> Option<Pushed> {
        let state = self.word(index, STATE).ok()?.load(Acquire);
        [PUSHED, MOVING, ENDING].contains(&state).then(|| self.pushed(index).ok())?
    }

    /// Takes a buffer back that was pushed to a daemon that died; `None` if it holds nothing that
    /// still has to be pushed.
    #[must_use]
    pub fn take_pushed(&self, index: usize) -> Option<(Buffer<'a>, LostPush)> {
        let (state, owner) = (self.word(index, STATE).ok()?, self.word(index, OWNER).ok()?);
        let before = state.load(Acquire);
        if ![PUSHED, MOVING, ENDING].contains(&before) {
            return None;
        }
        state.compare_exchange(before, RETAKEN, AcqRel, Relaxed).ok()?;
        // TAKEN only with its new owner: the thread that pushed it may be dead, for which others
        // would take the buffer over.
        owner.store(wait::thread_id(), Relaxed);
        state.store(TAKEN, Release);
        let buffer = Buffer { buffers: *self, index };
        // Read now that nobody else describes another write there.
        let (pushed, epoch) = (self.pushed(index).ok()?, self.epoch(index).ok()?);
        Some((buffer, LostPush { pushed, epoch, identity: self.identity(index).ok()? }))
    }

    fn identity(&self, index: usize) -> Result<Option<PushIdentity>> {
        let entry = ENTRIES + index * ENTRY_BYTES;
        let client = self.segment.word64(entry + CLIENT)?.load(Acquire);
        let sequence = self.segment.word64(entry + NUMBER)?.load(Relaxed);
        Ok((client != 0).then_some(PushIdentity { client, sequence }))
    }

    fn epoch(&self, index: usize) -> Result<PushEpoch> {
        Ok(PushEpoch(self.word(index, EPOCH)?.load(Relaxed) as u8))
    }

    fn pushed(&self, index: usize) -> Result<Pushed> {
        let entry = ENTRIES + index * ENTRY_BYTES;
        let target = self.word(index, TARGET)?.load(Relaxed);
        Ok(Pushed {
            inode: Inode(self.segment.word64(entry + INODE)?.load(Relaxed)),
            vnode: VnodeIndex(self.word(index, VNODE)?.load(Relaxed)),
            target: DaemonIndex(target as u16),
            stripe_log2: (target >> 16) as u8,
            offset: self.segment.word64(entry + OFFSET)?.load(Relaxed),
            length: self.word(index, LENGTH)?.load(Relaxed),
            stamp: self.segment.word64(entry + STAMP)?.load(Relaxed),
        })
    }

    // ---- the daemon's side ----

    /// The memory of all buffers.
    #[must_use]
    pub const fn segment(&self) -> &'a Segment {
        self.segment
    }

    /// Offset in `segment` of the first `length` bytes of a buffer.
    ///
    /// # Errors
    /// `EINVAL` for a buffer that does not exist or is not that long.
    pub fn offset_of(&self, buffer: u8, length: usize) -> Result<usize> {
        let buffer = usize::from(buffer);
        if buffer >= BOUNCE_BUFFER_COUNT || length > BOUNCE_BUFFER_BYTES {
            return Err(Errno::EINVAL);
        }
        Ok(BUFFERS + buffer * BOUNCE_BUFFER_BYTES)
    }

    /// As `begin_moving`, without taking it.
    #[must_use]
    pub fn pushed_write(&self, buffer: u8) -> Option<Pushed> {
        let state = self.word(usize::from(buffer), STATE).ok()?;
        (state.load(Acquire) == PUSHED).then(|| self.pushed(usize::from(buffer)).ok())?
    }

    /// The write that a client pushed with this buffer; `None` if there is none, or it was taken
    /// before. The numbers are claims.
    #[must_use]
    pub fn begin_moving(&self, buffer: u8) -> Option<(Pushed, PushEpoch)> {
        let state = self.word(usize::from(buffer), STATE).ok()?;
        state.compare_exchange(PUSHED, MOVING, AcqRel, Relaxed).ok()?;
        Some((self.pushed(usize::from(buffer)).ok()?, self.epoch(usize::from(buffer)).ok()?))
    }

    /// The daemon is about to send a pushed write with this identity.
    ///
    /// # Errors
    /// `EINVAL` for a buffer that does not exist.
    pub fn note_identity(&self, buffer: u8, identity: PushIdentity) -> Result<()> {
        let entry = ENTRIES + usize::from(buffer) * ENTRY_BYTES;
        if usize::from(buffer) >= BOUNCE_BUFFER_COUNT {
            return Err(Errno::EINVAL);
        }
        self.segment.word64(entry + NUMBER)?.store(identity.sequence, Relaxed);
        self.segment.word64(entry + CLIENT)?.store(identity.client, Release);
        Ok(())
    }

    /// A pushed write arrived, or failed: it is about to be uncounted (`Vnode::end_push`), before its
    /// buffer is given back.
    pub fn begin_ending(&self, buffer: u8) {
        if let Ok(state) = self.word(buffer.into(), STATE) {
            let _ = state.compare_exchange(MOVING, ENDING, SeqCst, Relaxed);
        }
    }

    /// The daemon is done with a buffer: it is the client's again, or free if the client gave it
    /// up.
    pub fn give_back(&self, buffer: u8) {
        let words = (self.word(buffer.into(), STATE), self.word(buffer.into(), OWNER));
        let (Ok(state), Ok(owner)) = words else { return };
        if [MOVING, ENDING].contains(&state.load(Acquire)) {
            owner.store(0, Relaxed);
        }
        let frees = |from| state.compare_exchange(from, FREE, AcqRel, Relaxed).is_ok();
        if state.compare_exchange(LENT, TAKEN, AcqRel, Relaxed).is_err()
            && [LEFT, MOVING, ENDING].into_iter().any(frees)
        {
            self.wake_waiters();
        }
    }
}

/// The buffers, to be waited for.
struct FreeBuffers<'a, F> {
    buffers: BounceBuffers<'a>,
    is_there: F,
}

impl<'a, F: Fn() -> bool> Scarce for FreeBuffers<'a, F> {
    type Item = Buffer<'a>;

    fn try_take(&self) -> Result<Option<Buffer<'a>>> {
        fence(SeqCst);
        self.buffers.take_any()
    }

    fn free_count(&self) -> u32 {
        self.buffers.free_count() as u32
    }

    fn take_left(&self, is_thorough: bool) -> Result<Option<Buffer<'a>>> {
        let buffers = self.buffers;
        if !is_thorough {
            let left = buffers.find_abandoned(wait::is_absent);
            return Ok(left.map(|index| Buffer { buffers, index }));
        }
        match buffers.find_abandoned(wait::is_dead) {
            Some(index) => Ok(Some(Buffer { buffers, index })),
            None if buffers.free_unsubmitted() => buffers.take_any(),
            None => Ok(None),
        }
    }

    fn is_there(&self) -> bool {
        (self.is_there)()
    }
}

/// A buffer that the calling thread owns. Dropped: free again, once the daemon is done with it.
pub struct Buffer<'a> {
    buffers: BounceBuffers<'a>,
    index: usize,
}

impl Buffer<'_> {
    /// Its number in the session.
    #[must_use]
    pub const fn index(&self) -> u8 {
        self.index as u8
    }

    /// Copies bytes to its start.
    ///
    /// # Errors
    /// `EINVAL` if they do not fit.
    pub fn fill(&mut self, from: &[u8]) -> Result<()> {
        self.buffers.segment.copy_in(self.buffers.offset_of(self.index(), from.len())?, from)
    }

    /// Copies the first `length` bytes of another buffer to its start.
    ///
    /// # Errors
    /// `EINVAL` if the other buffer is shorter.
    pub fn fill_from(&mut self, other: &Buffer<'_>, length: usize) -> Result<()> {
        let mut step = [0; PAGE];
        let (from, to) = (
            other.buffers.offset_of(other.index(), length)?,
            self.buffers.offset_of(self.index(), length)?,
        );
        for at in (0..length).step_by(PAGE) {
            let step = step.get_mut(..PAGE.min(length - at)).ok_or(Errno::EINVAL)?;
            other.buffers.segment.copy_out(from + at, step)?;
            self.buffers.segment.copy_in(to + at, step)?;
        }
        Ok(())
    }

    /// Copies bytes from its start.
    ///
    /// # Errors
    /// `EINVAL` if the buffer is shorter.
    pub fn copy_out(&self, to: &mut [u8]) -> Result<()> {
        self.buffers.segment.copy_out(self.buffers.offset_of(self.index(), to.len())?, to)
    }

    /// The daemon may use it from now on, until it answers. Must be called before the request is
    /// submitted.
    ///
    /// # Errors
    /// Never for a buffer that was taken.
    pub fn lend(&mut self) -> Result<()> {
        self.buffers.word(self.index, STATE)?.store(LENT, Release);
        Ok(())
    }

    /// Describes its contents, for `push`.
    ///
    /// # Errors
    /// Never for a buffer that was taken.
    pub fn describe(&self, pushed: &Pushed) -> Result<()> {
        let (buffers, index) = (self.buffers, self.index);
        let entry = ENTRIES + index * ENTRY_BYTES;
        buffers.segment.word64(entry + INODE)?.store(pushed.inode.0, Relaxed);
        buffers.segment.word64(entry + OFFSET)?.store(pushed.offset, Relaxed);
        buffers.word(index, LENGTH)?.store(pushed.length, Relaxed);
        let target = u32::from(pushed.target.0) | u32::from(pushed.stripe_log2) << 16;
        buffers.word(index, TARGET)?.store(target, Relaxed);
        buffers.word(index, VNODE)?.store(pushed.vnode.0, Relaxed);
        buffers.segment.word64(entry + STAMP)?.store(pushed.stamp, Relaxed);
        buffers.segment.word64(entry + CLIENT)?.store(0, Relaxed);
        Ok(())
    }

    /// The caller is about to count the described contents among those on their way. If its thread
    /// dies before `push`, the daemon finds the buffer in this state, and recounts.
    ///
    /// # Errors
    /// Never for a buffer that was taken.
    pub fn begin_counting(&self) -> Result<()> {
        self.buffers.word(self.index, STATE)?.store(COUNTING, SeqCst);
        Ok(())
    }

    /// They were not counted: the buffer is the caller's as before.
    ///
    /// # Errors
    /// Never for a buffer that was taken.
    pub fn end_counting(&self) -> Result<()> {
        self.buffers.word(self.index, STATE)?.store(TAKEN, Release);
        Ok(())
    }

    /// Hands the described contents, counted in this epoch, to the daemon, which frees the buffer when
    /// they have arrived. Must be called before the request is submitted.
    ///
    /// # Errors
    /// Never for a buffer that was taken.
    pub fn push(self, epoch: PushEpoch) -> Result<()> {
        self.buffers.word(self.index, EPOCH)?.store(epoch.0.into(), Relaxed);
        let state = self.buffers.word(self.index, STATE)?;
        core::mem::forget(self);
        state.store(PUSHED, Release);
        Ok(())
    }

    /// The daemon answered, with success or not: it does not use the buffer any more.
    ///
    /// # Errors
    /// Never for a buffer that was taken.
    pub fn take_back(&mut self) -> Result<()> {
        self.buffers.word(self.index, STATE)?.store(TAKEN, Release);
        Ok(())
    }
}

impl Drop for Buffer<'_> {
    fn drop(&mut self) {
        let (state, owner) =
            (self.buffers.word(self.index, STATE), self.buffers.word(self.index, OWNER));
        let (Ok(state), Ok(owner)) = (state, owner) else { return };
        owner.store(0, Relaxed);
        if state.compare_exchange(LENT, LEFT, AcqRel, Acquire).is_err() {
            let _ = state.compare_exchange(TAKEN, FREE, AcqRel, Relaxed);
            self.buffers.wake_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    fn session() -> Session {
        let (segment, _) =
            Segment::nameless(c"test", SESSION_WITH_BUFFERS_BYTES).expect("anonymous memory");
        Session::new(segment).expect("long enough")
    }

    #[test]
    fn a_buffer_has_one_holder_at_a_time_and_is_freed_on_drop() {
        let session = session();
        let buffers = session.bounce_buffers();
        let all: Vec<_> =
            (0..BOUNCE_BUFFER_COUNT).map(|_| buffers.try_take().expect("free")).collect();
        let mut numbers: Vec<_> = all.iter().map(Buffer::index).collect();
        numbers.dedup();
        assert_eq!(numbers.len(), BOUNCE_BUFFER_COUNT);
        assert_eq!(buffers.try_take().map(drop), Err(Errno::EAGAIN));
        assert_eq!(buffers.take(0, || true).map(drop), Err(Errno::ETIMEDOUT));
        drop(all);
        assert_eq!(buffers.take(0, || true).map(|buffer| buffer.index()), Ok(0));
    }

    #[test]
    fn a_buffer_that_a_client_gave_up_is_freed_when_the_daemon_is_done() {
        let session = session();
        let buffers = session.bounce_buffers();
        let mut buffer = buffers.try_take().expect("free");
        buffer.lend().expect("taken");
        drop(buffer);
        assert_eq!(buffers.try_take().map(|buffer| buffer.index()), Ok(1), "0 is still in use");
        buffers.give_back(0);
        assert_eq!(buffers.try_take().map(|buffer| buffer.index()), Ok(0));
        // An extra call changes nothing.
        buffers.give_back(0);
        buffers.give_back(255);
    }

    #[test]
    fn a_dead_threads_buffer_is_taken_over_unless_the_daemon_has_it() {
        let session = session();
        let buffers = session.bounce_buffers();
        std::thread::scope(|scope| {
            let of_dead = || {
                for lends in [true, false] {
                    let mut buffer = buffers.try_take().expect("free");
                    if lends {
                        buffer.lend().expect("taken");
                    }
                    core::mem::forget(buffer);
                }
            };
            scope.spawn(of_dead).join().expect("it ends");
        });
        let mut rest: Vec<_> = (2..BOUNCE_BUFFER_COUNT).map(|_| buffers.try_take()).collect();
        // The kernel may take a moment to forget the thread.
        rest.push(buffers.take(10_000_000, || true));
        assert_eq!(rest.last().and_then(|last| last.as_ref().ok()).map(Buffer::index), Some(1));
        buffers.give_back(0);
        rest.push(buffers.take(10_000_000, || true));
        assert!(rest.iter().all(Result::is_ok));
    }

    #[test]
    fn a_pushed_buffer_is_freed_by_the_daemon_or_taken_back_from_a_dead_one() {
        let session = session();
        let buffers = session.bounce_buffers();
        let pushed = Pushed {
            inode: Inode(7),
            vnode: VnodeIndex(8),
            target: DaemonIndex(9),
            stripe_log2: 22,
            offset: 1 << 40,
            length: 5000,
            stamp: 3,
        };
        for bytes in [[1; 5000], [2; 5000]] {
            let mut buffer = buffers.try_take().expect("free");
            buffer.fill(&bytes).expect("fits");
            buffer.describe(&pushed).and_then(|()| buffer.push(PushEpoch(4))).expect("taken");
        }
        buffers.give_back(0);
        assert_eq!(buffers.begin_moving(0), Some((pushed, PushEpoch(4))), "nobody moved it yet");
        assert_eq!(buffers.begin_moving(0), None, "it is moved once");
        buffers.give_back(0);
        assert!(buffers.take_pushed(0).is_none(), "it has arrived");
        assert_eq!((buffers.pushed_to_dead(0), buffers.pushed_to_dead(1)), (None, Some(pushed)));
        let identity = PushIdentity { client: 7 << 40, sequence: 3 };
        buffers.note_identity(1, identity).expect("there is one");
        let (back, lost) = buffers.take_pushed(1).expect("it has not");
        assert_eq!(buffers.pushed_to_dead(1), None, "it is taken");
        assert!(buffers.take_pushed(1).is_none(), "one takes it");
        assert_eq!(lost, LostPush { pushed, epoch: PushEpoch(4), identity: Some(identity) });
        let mut again = buffers.try_take().expect("free");
        again.fill_from(&back, 5000).expect("fits");
        let mut bytes = [0; 5000];
        again.copy_out(&mut bytes).expect("fits");
        assert_eq!(bytes, [2; 5000]);
        // The next write has none before it is sent.
        again.describe(&pushed).and_then(|()| again.push(PushEpoch(5))).expect("taken");
        assert_eq!(buffers.take_pushed(0).and_then(|(_, lost)| lost.identity), None);
        assert!(buffers.note_identity(BOUNCE_BUFFER_COUNT as u8, identity).is_err());
    }

    #[test]
    fn a_waiter_for_a_buffer_is_woken_when_one_is_freed() {
        let session = session();
        let buffers = session.bounce_buffers();
        let mut all: Vec<_> = (0..BOUNCE_BUFFER_COUNT).map(|_| buffers.try_take()).collect();
        std::thread::scope(|scope| {
            let waiter =
                scope.spawn(|| buffers.take(60_000_000, || true).map(|buffer| buffer.index()));
            drop(all.pop());
            assert_eq!(waiter.join().expect("it ends"), Ok(BOUNCE_BUFFER_COUNT as u8 - 1));
        });
    }

    #[test]
    fn buffers_of_calls_that_a_jump_left_are_given_back() {
        let session = session();
        let buffers = session.bounce_buffers();
        let each = 0..BOUNCE_BUFFER_COUNT;
        let all = || each.clone().map_while(|_| buffers.take(0, || true).ok()).collect::<Vec<_>>();
        let mut taken = all();
        taken.iter_mut().step_by(2).for_each(|buffer| buffer.lend().expect("taken"));
        taken.into_iter().for_each(core::mem::forget);
        buffers.end_abandoned();
        assert_eq!(all().len(), BOUNCE_BUFFER_COUNT / 2, "the daemon has the others");
        (0..BOUNCE_BUFFER_COUNT as u8).for_each(|buffer| buffers.give_back(buffer));
        assert_eq!(all().len(), BOUNCE_BUFFER_COUNT);
    }

    #[test]
    fn bytes_come_back_and_none_beyond_a_buffer_are_touched() {
        let session = session();
        let mut buffer = session.bounce_buffers().try_take().expect("free");
        let bytes: Vec<u8> = (0..BOUNCE_BUFFER_BYTES).map(|at| at as u8).collect();
        buffer.fill(&bytes).expect("fits");
        let mut back = std::vec![0; bytes.len()];
        buffer.copy_out(&mut back).expect("fits");
        assert!(back == bytes);
        assert_eq!(buffer.fill(&std::vec![0; bytes.len() + 1]), Err(Errno::EINVAL));
        assert!(session.bounce_buffers().offset_of(BOUNCE_BUFFER_COUNT as u8, 1).is_err());
    }
}

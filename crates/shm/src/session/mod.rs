//! A session: the slots through which one client process (and the children it forks) talks to one
//! daemon. Nameless memory, made by the daemon, sealed against shrinking. The doorbells of the
//! workers are in `doorbell`.
//!
//! Layout:
//!
//!   0     pending      WORKER_COUNT_MAX x u64        bit i: slot i waits for that worker
//!   128   claimed      ANSWER_SLOT_COUNT / 64 x u64  bit i: slot i seems to belong to a thread
//!   1024  answered     u32 (a futex)                 counts the replies put into reply slots
//!   1088  queue        TICKET_QUEUE_BYTES            threads that wait for a slot
//!         queue        TICKET_QUEUE_BYTES            threads that wait for a bounce buffer
//!   4096  slots        SLOT_COUNT x SLOT_STRIDE
//!         reply slots  REPLY_SLOT_COUNT x REPLY_SLOT_STRIDE
//!
//! The bounce buffers follow (`bounce`).
//!
//! A slot: state u32 (a futex), owner u32 (thread; 0: free), length u32, origin u32 (the activity block
//! plus one of the process for which a mount asks; 0: the session's own), sequence u64, microseconds
//! u32 for which the request was held back before it started, pool u32 of the file of which it moves
//! bytes (requests that move none leave it), urgency u32 (1: others wait for it; only of the writeback
//! daemon), then, at 64, the message. The bits above
//! the 16 of a request's length hold the reply slot for its reply, if any.
//!
//! A *reply slot* has space for a short reply only, at 32: for requests that may wait for long,
//! because slots are few. Its request is sent through a slot, which is free as soon as the daemon
//! has taken it. Reply slots are numbered after the slots.
//!
//!   FREE --claim--> CLAIMED --submit--> SUBMITTED --reply--> DONE --release--> FREE
//!                                       DETACHED --reply--> FREE      (no waiter)
//!
//! `ASLEEP` is a bit beside SUBMITTED: the owner sleeps, so the reply must wake it.
//!
//! Invariants:
//!  1. The client touches a message only in CLAIMED and DONE, the daemon only in SUBMITTED and
//!     DETACHED.
//!  2. The daemon copies a request out before it looks at it, so a client that writes meanwhile
//!     changes nothing that was checked.
//!  3. A slot whose owner died is taken over when slots are short. Threads wait for slots in turn.
//!  4. The owner word alone says which thread owns a slot, and it changes by compare and exchange
//!     only. The bit of a slot with a request is set, since the daemon looks for requests of dead
//!     threads by bits: a thread sets it behind its claim, and clears it while it owns the slot. A bit
//!     that is set without an owner costs a look, or the time until slots are short.

mod doorbell;

use crate::activity::BlockIndex;
use crate::segment::Segment;
use crate::signals::{Arrived, BlockedSignals};
use crate::sync::{AtomicU32, AtomicU64};
use crate::ticket_queue::{Scarce, TICKET_QUEUE_BYTES, TicketQueue};
use crate::wait::{self, Backoff, Next, Woken};
use core::ops::Range;
use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};

use wire::errno::{Errno, Result};
use wire::limits::{ANSWER_SLOT_COUNT, REPLY_SLOT_COUNT, SLOT_BYTES, SLOT_COUNT, WORKER_COUNT_MAX};

pub use doorbell::{DOORBELLS_BYTES, Doorbells, SESSION_COUNT_MAX, SESSION_COUNT_PRESENT, Sleep};

const CLAIMED_MAP: usize = 128;
const ANSWERED: usize = 1024;
const QUEUE: usize = 1088;
const BUFFER_QUEUE: usize = QUEUE + TICKET_QUEUE_BYTES;
const SLOTS: usize = 4096;
const MESSAGE: usize = 64;
const SLOT_STRIDE: usize = MESSAGE + SLOT_BYTES;
const REPLY_SLOTS: usize = SLOTS + SLOT_COUNT * SLOT_STRIDE;
const REPLY_SLOT_MESSAGE: usize = 32;
const REPLY_SLOT_STRIDE: usize = 64;
/// Maximum length of a reply in a reply slot.
const REPLY_BYTES_MAX: usize = REPLY_SLOT_STRIDE - REPLY_SLOT_MESSAGE;
/// Bits of a length; the reply slot is above them.
const LENGTH_BITS: u32 = 16;
/// Slots per word of the `claimed` map.
const WORD: usize = 64;
const STATE: usize = 0;
const OWNER: usize = 4;
const LENGTH: usize = 8;
const ORIGIN: usize = 12;
const SEQUENCE: usize = 16;
const HELD: usize = 24;
const POOL: usize = 28;
const URGENCY: usize = 32;

/// Length of all slots.
pub const SESSION_BYTES: usize = REPLY_SLOTS + REPLY_SLOT_COUNT * REPLY_SLOT_STRIDE;

const FREE: u32 = 0;
const CLAIMED: u32 = 1;
const SUBMITTED: u32 = 2;
const DONE: u32 = 3;
const DETACHED: u32 = 4;
const ASLEEP: u32 = 0x100;

const _: () = assert!(SLOT_COUNT == WORD && WORKER_COUNT_MAX * 8 <= CLAIMED_MAP);
const _: () = assert!(
    ANSWER_SLOT_COUNT.is_multiple_of(WORD) && CLAIMED_MAP + ANSWER_SLOT_COUNT / 8 <= ANSWERED
);
const _: () = assert!(BUFFER_QUEUE + TICKET_QUEUE_BYTES <= SLOTS);
const _: () = assert!(SLOT_BYTES < 1 << LENGTH_BITS && ANSWER_SLOT_COUNT <= 1 << LENGTH_BITS);
const _: () = assert!(SLOT_STRIDE.is_multiple_of(8));

/// Length of one futex sleep of a client before it checks whether the daemon is alive.
const SLEEP_MICROS: u64 = 50_000;
/// The same where a signal may end the wait: signals are blocked while it sleeps.
const INTERRUPTIBLE_MICROS: u64 = 20_000;

/// How often the thread that frees a slot clears its bit again, after others set it.
const CLEAR_ATTEMPTS: u32 = 4;

/// Free slots that threads which keep slots leave to others.
const SPARE_SLOTS: u32 = SLOT_COUNT as u32 / 4;

/// One request in this many sleeps at once if the worker is on the same processor (see `wait`).
const SAME_CPU_PERIOD: u64 = 16;

/// The memory, for either side.
pub struct Session {
    segment: Segment,
}

impl Session {
    /// Sees nothing of the shared memory any more (`Segment::detach`).
    pub fn detach(&self) {
        self.segment.detach();
    }

    /// Takes the mapping of a session.
    ///
    /// # Errors
    /// `EINVAL` if it is too short.
    pub fn new(segment: Segment) -> Result<Session> {
        if segment.len() < SESSION_BYTES { Err(Errno::EINVAL) } else { Ok(Session { segment }) }
    }

    /// The memory, for `bounce`.
    pub(crate) const fn segment(&self) -> &Segment {
        &self.segment
    }

    /// Offset of a slot.
    fn slot(index: usize) -> Result<usize> {
        match index.checked_sub(SLOT_COUNT) {
            None => Ok(SLOTS + index * SLOT_STRIDE),
            Some(reply_slot) if reply_slot < REPLY_SLOT_COUNT => {
                Ok(REPLY_SLOTS + reply_slot * REPLY_SLOT_STRIDE)
            }
            Some(_) => Err(Errno::EINVAL),
        }
    }

    /// Offset of the message of a slot, and its maximum length.
    fn message(index: usize) -> Result<(usize, usize)> {
        let at = Session::slot(index)?;
        let is_reply_slot = index >= SLOT_COUNT;
        Ok(if is_reply_slot {
            (at + REPLY_SLOT_MESSAGE, REPLY_BYTES_MAX)
        } else {
            (at + MESSAGE, SLOT_BYTES)
        })
    }

    /// The word of the `claimed` map that covers `index`.
    fn map(&self, index: usize) -> Result<&AtomicU64> {
        self.segment.word64(CLAIMED_MAP + index / WORD * 8)
    }

    fn word32(&self, slot: usize, field: usize) -> Result<&AtomicU32> {
        self.segment.word32(Session::slot(slot)? + field)
    }

    fn word64(&self, slot: usize, field: usize) -> Result<&AtomicU64> {
        self.segment.word64(Session::slot(slot)? + field)
    }

    fn pending(&self, worker: usize) -> Result<&AtomicU64> {
        if worker >= WORKER_COUNT_MAX {
            return Err(Errno::EINVAL);
        }
        self.segment.word64(8 * worker)
    }

    const fn queue(&self) -> TicketQueue<'_> {
        TicketQueue::new(&self.segment, QUEUE)
    }

    /// That for bounce buffers.
    pub(crate) const fn buffer_queue(&self) -> TicketQueue<'_> {
        TicketQueue::new(&self.segment, BUFFER_QUEUE)
    }

    /// Takes a free slot for the calling thread. While all are taken it waits for its turn, as long as
    /// other threads get theirs within `timeout_micros`, and takes over slots of dead threads.
    ///
    /// # Errors
    /// `ETIMEDOUT` if no slot became free.
    pub fn claim(&self, timeout_micros: u64) -> Result<Slot<'_>> {
        match self.try_claim() {
            Err(Errno::EAGAIN) => self.queue().take(&FreeSlots { session: self }, timeout_micros),
            claimed => claimed,
        }
    }

    /// Takes a slot that is free, if no thread waits for one.
    ///
    /// # Errors
    /// `EAGAIN` if there is none.
    #[inline]
    pub fn try_claim(&self) -> Result<Slot<'_>> {
        if !self.queue().is_empty() {
            return Err(Errno::EAGAIN);
        }
        self.claim_free()?.ok_or(Errno::EAGAIN)
    }

    fn claim_free(&self) -> Result<Option<Slot<'_>>> {
        let map = self.segment.word64(CLAIMED_MAP)?;
        loop {
            let index = (!map.load(SeqCst)).trailing_zeros() as usize;
            if index >= SLOT_COUNT {
                return Ok(None);
            }
            if self.claim_one(index)? {
                return self.claimed(index).map(Some);
            }
        }
    }

    /// Claims this slot if it has no owner. Its bit is set in any case.
    fn claim_one(&self, index: usize) -> Result<bool> {
        let (owner, map) = (self.word32(index, OWNER)?, self.map(index)?);
        loop {
            let is_ours = owner.compare_exchange(0, wait::thread_id(), SeqCst, SeqCst).is_ok();
            // Behind the claim: before it, its last owner may clear the bit.
            map.fetch_or(1 << (index % WORD), SeqCst);
            // Its last owner may not see that the bit was set again.
            if is_ours || owner.load(SeqCst) != 0 {
                return Ok(is_ours);
            }
        }
    }

    /// True if enough slots are free that a thread may keep one that it does not use.
    #[must_use]
    pub fn has_spare(&self) -> bool {
        self.map(0).is_ok_and(|map| map.load(Relaxed).count_zeros() >= SPARE_SLOTS)
    }

    /// Takes a free reply slot for the calling thread, or one of a dead thread; the lowest, so that
    /// few are ever touched.
    ///
    /// # Errors
    /// `ENOLCK` if there is none.
    pub fn claim_reply_slot(&self) -> Result<Slot<'_>> {
        for index in SLOT_COUNT..ANSWER_SLOT_COUNT {
            let is_taken = self.map(index)?.load(Relaxed) & 1 << (index % WORD) != 0;
            if !is_taken && self.claim_one(index)? {
                return self.claimed(index);
            }
        }
        let index = self.find_left(SLOT_COUNT..ANSWER_SLOT_COUNT, wait::is_dead);
        self.claimed(index.ok_or(Errno::ENOLCK)?)
    }

    fn claimed(&self, index: usize) -> Result<Slot<'_>> {
        self.word32(index, STATE)?.store(CLAIMED, Relaxed);
        Ok(Slot { session: self, index, sleeps_at_once: false })
    }

    /// Frees a slot, for its owner, or for the daemon if the owner gave it up.
    fn release(&self, index: usize) -> Result<()> {
        let (owner, map) = (self.word32(index, OWNER)?, self.map(index)?);
        let bit = 1 << (index % WORD);
        let holder = owner.load(Relaxed);
        // While no other thread can own it: later the bit may be that of the next owner's request, which
        // the daemon must find.
        map.fetch_and(!bit, SeqCst);
        self.word32(index, STATE)?.store(FREE, Release);
        // Now that it is FREE, the slot of a dead owner may be taken over.
        let mut is_freed = owner.compare_exchange(holder, 0, SeqCst, SeqCst).is_ok();
        for _ in 0..CLEAR_ATTEMPTS {
            if !is_freed || map.load(SeqCst) & bit == 0 {
                break;
            }
            // A thread that found the slot owned has set the bit, or one that owns it now.
            let me = wait::thread_id();
            if owner.compare_exchange(0, me, SeqCst, SeqCst).is_err() {
                break;
            }
            map.fetch_and(!bit, SeqCst);
            is_freed = owner.compare_exchange(me, 0, SeqCst, SeqCst).is_ok();
        }
        if index < SLOT_COUNT {
            self.queue().admit_next();
        }
        Ok(())
    }

    /// A slot of a dead thread; it passes to the caller.
    fn find_left(&self, mut slots: Range<usize>, is_dead: impl Fn(u32) -> bool) -> Option<usize> {
        slots.find(|slot| self.take_over(*slot, &is_dead))
    }

    /// If the owner of a slot died while the daemon did not have it, or the slot is free though its
    /// bit says otherwise, its claim passes to the caller.
    fn take_over(&self, index: usize, is_dead: impl Fn(u32) -> bool) -> bool {
        let words = (self.word32(index, OWNER), self.word32(index, STATE));
        let (Ok(owner), Ok(state)) = words else { return false };
        let holder = owner.load(Relaxed);
        let has_request = || matches!(state.load(SeqCst) & !ASLEEP, SUBMITTED | DETACHED);
        // Again once it is dead: it may have submitted a request before.
        if has_request() || !is_dead(holder) || has_request() {
            return false;
        }
        if owner.compare_exchange(holder, wait::thread_id(), AcqRel, Relaxed).is_err() {
            return false;
        }
        self.map(index).is_ok_and(|map| {
            map.fetch_or(1 << (index % WORD), SeqCst);
            true
        })
    }

    /// Gives back the slots of the calling thread, whose calls ended without returning. A request
    /// that is not answered yet is waited for, so that it happens before later ones; one whose
    /// reply may take long is left to the daemon.
    pub fn end_abandoned(&self, timeout_micros: u64, mut is_there: impl FnMut() -> bool) {
        let me = wait::thread_id();
        for index in 0..ANSWER_SLOT_COUNT {
            let words = (self.word32(index, OWNER), self.word32(index, STATE));
            let (Ok(owner), Ok(state)) = words else { continue };
            if owner.load(Relaxed) != me {
                continue;
            }
            let state = state.load(Acquire) & !ASLEEP;
            if state == DETACHED {
                continue;
            }
            let mut slot = Slot { session: self, index, sleeps_at_once: true };
            if state == SUBMITTED && index < SLOT_COUNT {
                let _ = slot.wait(timeout_micros, Interruptible::No, &mut is_there);
            }
        }
    }

    /// Slots that seem to be owned.
    fn all_claimed(&self) -> impl Iterator<Item = usize> + '_ {
        (0..ANSWER_SLOT_COUNT).step_by(WORD).flat_map(|first| {
            let map = self.map(first).map_or(0, |map| map.load(Relaxed));
            (0..WORD).filter(move |place| map >> place & 1 != 0).map(move |place| first + place)
        })
    }

    /// Number of replies put into reply slots, for `sleep_for_replies`.
    ///
    /// # Errors
    /// Never.
    pub fn answered(&self) -> Result<u32> {
        Ok(self.segment.word32(ANSWERED)?.load(SeqCst))
    }

    /// Sleeps until a reply slot gets another reply than those counted in `answered`,
    /// `wake_for_replies` is called, or `micros` have passed.
    ///
    /// # Errors
    /// Never.
    pub fn sleep_for_replies(&self, answered: u32, micros: u64) -> Result<()> {
        wait::sleep(self.segment.word32(ANSWERED)?, answered, micros);
        Ok(())
    }

    /// Ends `sleep_for_replies`.
    pub fn wake_for_replies(&self) {
        if let Ok(answered) = self.segment.word32(ANSWERED) {
            answered.fetch_add(1, SeqCst);
            wait::wake(answered, 1);
        }
    }

    // ---- the daemon's side ----

    /// Slots that wait for `worker`, as bits; the call takes them.
    #[must_use]
    pub fn take_pending(&self, worker: usize) -> u64 {
        self.pending(worker).map_or(0, |pending| pending.swap(0, SeqCst))
    }

    /// Copies the request of `slot` out. `None` if there is none or it is malformed.
    pub fn request(&self, slot: usize, to: &mut [u8; SLOT_BYTES]) -> Option<usize> {
        let state = self.word32(slot, STATE).ok()?.load(Acquire) & !ASLEEP;
        if state != SUBMITTED && state != DETACHED {
            return None;
        }
        let length = self.word32(slot, LENGTH).ok()?.load(Relaxed) & ((1 << LENGTH_BITS) - 1);
        let to = to.get_mut(..length as usize).filter(|_| slot < SLOT_COUNT)?;
        self.segment.copy_out(Session::slot(slot).ok()? + MESSAGE, to).ok()?;
        Some(length as usize)
    }

    /// The reply slot for the reply to the request in `slot`, if it has one.
    #[must_use]
    pub fn reply_slot_of(&self, slot: usize) -> Option<usize> {
        let reply_slot = (self.word32(slot, LENGTH).ok()?.load(Relaxed) >> LENGTH_BITS) as usize;
        (SLOT_COUNT..ANSWER_SLOT_COUNT).contains(&reply_slot).then_some(reply_slot)
    }

    /// Sequence number of the last request of a slot.
    #[must_use]
    pub fn sequence(&self, slot: usize) -> u64 {
        self.word64(slot, SEQUENCE).map_or(0, |sequence| sequence.load(Relaxed))
    }

    /// The block of the process for which the request in `slot` is made (`Slot::set_origin`).
    #[must_use]
    pub fn origin(&self, slot: usize) -> Option<BlockIndex> {
        self.word32(slot, ORIGIN).ok()?.load(Relaxed).checked_sub(1).map(BlockIndex)
    }

    /// The pool of the file of which the request in `slot` moves bytes (`Slot::set_pool`); 0: none.
    #[must_use]
    pub fn pool(&self, slot: usize) -> u8 {
        self.word32(slot, POOL).map_or(0, |pool| pool.load(Relaxed) as u8)
    }

    /// True if the writeback daemon says that others wait for the request in `slot` (`Slot::set_urgent`).
    #[must_use]
    pub fn is_urgent(&self, slot: usize) -> bool {
        self.word32(slot, URGENCY).is_ok_and(|urgency| urgency.load(Relaxed) == 1)
    }

    /// True if nobody waits for the reply to the request in `slot`.
    #[must_use]
    pub fn is_detached(&self, slot: usize) -> bool {
        self.word32(slot, STATE).is_ok_and(|state| state.load(Relaxed) & !ASLEEP == DETACHED)
    }

    /// True if a thread waits for a reply, or waited when it was killed.
    #[must_use]
    pub fn has_waiting(&self) -> bool {
        self.all_claimed().any(|slot| {
            let state = self.word32(slot, STATE);
            state.is_ok_and(|state| state.load(Relaxed) & !ASLEEP == SUBMITTED)
        })
    }

    /// True if a request of `thread` is not answered yet.
    pub(crate) fn has_request_of(&self, thread: u32) -> bool {
        (0..SLOT_COUNT).any(|slot| {
            let words = (self.word32(slot, OWNER), self.word32(slot, STATE));
            let (Ok(owner), Ok(state)) = words else { return false };
            // The state is read last: a slot that has another owner by now has other states.
            owner.load(SeqCst) == thread
                && matches!(state.load(SeqCst) & !ASLEEP, SUBMITTED | DETACHED)
        })
    }

    /// Calls `each` with the slots whose request was sent by a thread that was killed while it
    /// waited.
    pub fn each_unawaited(&self, each: &mut dyn FnMut(usize)) {
        for slot in self.all_claimed() {
            let state = self.word32(slot, STATE).map_or(FREE, |state| state.load(Acquire));
            if state & !ASLEEP == SUBMITTED && !self.is_awaited(slot) {
                each(slot);
            }
        }
    }

    /// False if the thread that waits for the reply to the request in `slot` is dead.
    #[must_use]
    pub fn is_awaited(&self, slot: usize) -> bool {
        self.is_detached(slot)
            || self.word32(slot, OWNER).is_ok_and(|owner| !wait::is_absent(owner.load(Relaxed)))
    }

    /// Says how long a request was held back; its waiter learns it with the reply.
    pub fn set_held_micros(&self, slot: usize, micros: u32) {
        if let Ok(held) = self.word32(slot, HELD) {
            held.store(micros, Relaxed);
        }
    }

    /// Puts the reply into `slot` and wakes its waiter. A reply that is too long becomes empty,
    /// which the client treats as malformed.
    pub fn reply(&self, slot: usize, bytes: &[u8]) {
        let words = (self.word32(slot, STATE), self.word32(slot, LENGTH), Session::message(slot));
        let (Ok(state), Ok(length), Ok((at, capacity))) = words else { return };
        let mut copied = false;
        // Meanwhile the owner may fall asleep, give up, or both; a correct client does no more.
        for _ in 0..3 {
            let before = state.load(Acquire);
            match before & !ASLEEP {
                DETACHED => {
                    let _ = self.release(slot);
                    return;
                }
                SUBMITTED => {}
                _ => return,
            }
            if !copied {
                let bytes = if bytes.len() <= capacity { bytes } else { &[] };
                if self.segment.copy_in(at, bytes).is_ok() {
                    length.store(bytes.len() as u32, Relaxed);
                }
                copied = true;
            }
            if state.compare_exchange(before, DONE, AcqRel, Relaxed).is_ok() {
                if before & ASLEEP != 0 {
                    wait::wake(state, 1);
                }
                if slot >= SLOT_COUNT {
                    self.wake_for_replies();
                }
                return;
            }
        }
    }
}

/// The slots, to be waited for.
struct FreeSlots<'a> {
    session: &'a Session,
}

impl<'a> Scarce for FreeSlots<'a> {
    type Item = Slot<'a>;

    fn try_take(&self) -> Result<Option<Slot<'a>>> {
        self.session.claim_free()
    }

    fn free_count(&self) -> u32 {
        self.session.map(0).map_or(0, |map| map.load(SeqCst).count_zeros())
    }

    fn take_left(&self, is_thorough: bool) -> Result<Option<Slot<'a>>> {
        let is_dead = |thread| match is_thorough {
            true => wait::is_dead(thread),
            false => wait::is_absent(thread),
        };
        let left = self.session.find_left(0..SLOT_COUNT, is_dead);
        left.map(|index| self.session.claimed(index)).transpose()
    }
}

/// A slot that the calling thread owns. Dropped: free again.
pub struct Slot<'a> {
    session: &'a Session,
    index: usize,
    /// The wait for the reply begins with sleeping.
    sleeps_at_once: bool,
}

impl Slot<'_> {
    /// Its number in the session.
    #[must_use]
    pub const fn index(&self) -> usize {
        self.index
    }

    /// Increments and returns the slot's sequence number, for `wire::Header::sequence`.
    ///
    /// # Errors
    /// Never for a slot that was claimed.
    pub fn next_sequence(&self) -> Result<u64> {
        Ok(self.session.word64(self.index, SEQUENCE)?.fetch_add(1, Relaxed).wrapping_add(1))
    }

    /// Lets `write` put the request into the slot; `write` returns the length.
    ///
    /// # Errors
    /// Errors of `write`; `E2BIG` if its length exceeds the slot.
    pub fn write<E>(
        &mut self,
        write: impl FnOnce(&mut [u8]) -> core::result::Result<usize, E>,
    ) -> Result<()>
    where
        Errno: From<E>,
    {
        let at = Session::slot(self.index)? + MESSAGE;
        let length = self.session.segment.with_own(at, SLOT_BYTES, write)?.map_err(Errno::from)?;
        if length > SLOT_BYTES {
            return Err(Errno::E2BIG);
        }
        self.session.word32(self.index, LENGTH)?.store(length as u32, Relaxed);
        Ok(())
    }

    /// Says for which process the request is made, by its block of counters; `None`: the session's own,
    /// or one that is not known. A slot keeps it until it is set again.
    pub fn set_origin(&self, block: Option<BlockIndex>) {
        if let Ok(origin) = self.session.word32(self.index, ORIGIN) {
            origin.store(block.map_or(0, |block| block.0.wrapping_add(1)), Relaxed);
        }
    }

    /// Says which pool the file is in of which the request moves bytes by a buffer; 0: none.
    pub fn set_pool(&self, pool: u8) {
        if let Ok(word) = self.session.word32(self.index, POOL) {
            word.store(pool.into(), Relaxed);
        }
    }

    /// Says whether others wait for the request. A slot keeps it until it is set again. Daemons believe
    /// the writeback daemon alone.
    pub fn set_urgent(&self, is_urgent: bool) {
        if let Ok(word) = self.session.word32(self.index, URGENCY) {
            word.store(is_urgent.into(), Relaxed);
        }
    }

    /// Microseconds for which the request was held back before it started.
    #[must_use]
    pub fn take_held_micros(&self) -> u32 {
        let Ok(held) = self.session.word32(self.index, HELD) else { return 0 };
        let micros = held.load(Relaxed);
        if micros > 0 {
            held.store(0, Relaxed);
        }
        micros
    }

    fn submit_as(&self, state: u32, worker: usize, bells: &Doorbells, session: u16) -> Result<()> {
        let pending = self.session.pending(worker)?;
        self.session.word32(self.index, STATE)?.store(state, Release);
        pending.fetch_or(1 << self.index, SeqCst);
        bells.ring(worker, session)
    }

    /// Submits the request to `worker`.
    ///
    /// # Errors
    /// `EINVAL` for a worker that does not exist.
    pub fn submit(&mut self, worker: usize, bells: &Doorbells, session: u16) -> Result<()> {
        self.submit_as(SUBMITTED, worker, bells, session)?;
        let sequence = self.session.word64(self.index, SEQUENCE)?.load(Relaxed);
        self.sleeps_at_once = sequence.is_multiple_of(SAME_CPU_PERIOD) && bells.is_here(worker);
        Ok(())
    }

    /// Submits the request to `worker` and does not wait: the daemon frees the slot.
    ///
    /// # Errors
    /// `EINVAL` for a worker that does not exist.
    pub fn submit_detached(self, worker: usize, bells: &Doorbells, session: u16) -> Result<()> {
        self.submit_as(DETACHED, worker, bells, session)?;
        core::mem::forget(self);
        Ok(())
    }

    /// Submits the request to `worker`; the reply comes into `reply_slot`, where the caller waits
    /// for it.
    ///
    /// # Errors
    /// `EINVAL` for a worker that does not exist.
    pub fn submit_for(
        self,
        reply_slot: &mut Slot<'_>,
        worker: usize,
        bells: &Doorbells,
        session: u16,
    ) -> Result<()> {
        let length = self.session.word32(self.index, LENGTH)?;
        length.store(length.load(Relaxed) | (reply_slot.index as u32) << LENGTH_BITS, Relaxed);
        self.session.word32(reply_slot.index, STATE)?.store(SUBMITTED, Relaxed);
        reply_slot.sleeps_at_once = true;
        self.submit_detached(worker, bells, session)
    }

    /// True if the reply has arrived.
    #[must_use]
    pub fn is_answered(&self) -> bool {
        self.session.word32(self.index, STATE).is_ok_and(|state| state.load(Acquire) == DONE)
    }

    /// The wait will be long: it begins with sleeping.
    pub const fn expect_long(&mut self) {
        self.sleeps_at_once = true;
    }

    /// Waits for the reply. Between sleeps it asks `is_there` whether the daemon is alive.
    ///
    /// # Errors
    /// `EIO` if the daemon is gone, `ETIMEDOUT` after `timeout_micros`; `EINTR` if `interruptible`
    /// and a signal handler ran, or the word was set. The slot then stays with the daemon until it
    /// answers.
    pub fn wait(
        &mut self,
        timeout_micros: u64,
        interruptible: Interruptible<'_>,
        mut is_there: impl FnMut() -> bool,
    ) -> Result<()> {
        let state = self.session.word32(self.index, STATE)?;
        let held = matches!(interruptible, Interruptible::Yes).then(BlockedSignals::new);
        let mut backoff = if self.sleeps_at_once { Backoff::asleep() } else { Backoff::new() };
        while state.load(Acquire) != DONE {
            if backoff.pause() == Next::Poll {
                continue;
            }
            let deadline = wait::now_micros().saturating_add(timeout_micros);
            return self.wait_asleep(
                state,
                deadline,
                (interruptible, held.as_ref()),
                &mut is_there,
            );
        }
        Ok(())
    }

    fn wait_asleep(
        &self,
        state: &AtomicU32,
        deadline: u64,
        (interruptible, held): (Interruptible<'_>, Option<&BlockedSignals>),
        is_there: &mut impl FnMut() -> bool,
    ) -> Result<()> {
        let micros = match interruptible {
            Interruptible::No => SLEEP_MICROS,
            Interruptible::Yes | Interruptible::By(_) => INTERRUPTIBLE_MICROS,
        };
        loop {
            let asleep = SUBMITTED | ASLEEP;
            let before = state.compare_exchange(SUBMITTED, asleep, AcqRel, Acquire);
            if before == Err(DONE) {
                return Ok(());
            }
            let woken = wait::sleep(state, asleep, micros);
            if state.load(Acquire) == DONE {
                return Ok(());
            }
            if let Some(held) = held {
                match held.arrived() {
                    Arrived::Ending => return Err(Errno::EINTR),
                    Arrived::Passing => held.deliver(),
                    Arrived::Nothing if woken == Woken::Interrupted && !held.is_held() => {
                        return Err(Errno::EINTR);
                    }
                    Arrived::Nothing => {}
                }
            }
            if matches!(interruptible, Interruptible::By(word) if word.load(Relaxed)) {
                return Err(Errno::EINTR);
            }
            if !is_there() {
                return Err(Errno::EIO);
            }
            if wait::now_micros() >= deadline {
                return Err(Errno::ETIMEDOUT);
            }
        }
    }

    /// Passes the reply to `read`.
    ///
    /// # Errors
    /// `EIO` if no reply came or its length is impossible.
    pub fn read<R>(&mut self, read: impl FnOnce(&[u8]) -> R) -> Result<R> {
        if self.session.word32(self.index, STATE)?.load(Acquire) != DONE {
            return Err(Errno::EIO);
        }
        let length = self.session.word32(self.index, LENGTH)?.load(Relaxed) as usize;
        let (at, capacity) = Session::message(self.index)?;
        let length = if length <= capacity { length } else { return Err(Errno::EIO) };
        self.session.segment.with_own(at, length, |bytes| read(bytes))
    }
}

/// Whether a signal may end the wait.
#[derive(Clone, Copy, Debug)]
pub enum Interruptible<'a> {
    /// Yes: the wait is for a lock that another owner holds.
    Yes,
    /// Another thread may end it, by this word: the process that this one serves got the signal.
    By(&'a AtomicBool),
    /// No: an operation that a local file system would finish, too.
    No,
}

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        let Ok(state) = self.session.word32(self.index, STATE) else { return };
        // An abandoned request belongs to the daemon until it answers.
        let given_up = state.compare_exchange(SUBMITTED, DETACHED, AcqRel, Acquire).is_ok()
            || state.compare_exchange(SUBMITTED | ASLEEP, DETACHED, AcqRel, Acquire).is_ok();
        if !given_up {
            let _ = self.session.release(self.index);
        }
    }
}

//! The operation log: operations that a client completes by itself (`wire::local_op`, B1). One
//! named segment for each daemon, which outlives daemon and clients, so that acknowledged
//! operations are applied.
//!
//! Layout:
//!
//!   gates      WORKER_COUNT_MAX x 64 bytes: gate u32; at 8, summary u64: words below not zero; at
//!              16, the filter of accounts near their quota, 6 x u64; at 1024, until when each is
//!              served (`served`); at 2048, highest session number ever plus one, u64; a page in all
//!   numbers    SHARD_COUNT x (next u64, end u64): inode numbers that local operations may use
//!   announced  WORKER_COUNT_MAX x 64 x u64: bit s: session s may have operations for that worker
//!   tags       WORKER_COUNT_MAX x TAG_BUCKETS x 64 bytes: names with an operation that is not
//!              applied
//!   sessions   for each: pending WORKER_COUNT_MAX x u64, claimed u64, then LOCAL_OP_COUNT slots
//!
//! A slot: state u32 (with its worker above 8 bits), owner u32 (thread; 0: free), length u32, 4
//! bytes unused, key u64, tag u64; at 64 the operation.
//!
//!   FREE --claim--> CLAIMED --announce--> TENTATIVE --commit--> COMMITTED --applied--> FREE
//!                                         TENTATIVE --refused by the worker--> REFUSED
//!                   CLAIMED, TENTATIVE, REFUSED --withdraw--> FREE
//!
//! A client must know that nothing conflicts with its operation, and the worker that no client
//! commits an operation that conflicts with its own. So the client first announces and then checks
//! the gate, the index, and whether the file is open; if all is well it commits. The worker, before
//! a step that reads or changes names, closes the gate, and only then takes the committed
//! operations and refuses the tentative ones. All of it is sequentially consistent, so one of the
//! two sees the other: either the operation comes before the step, or the client finds the gate
//! closed, or the index as the step left it.
//!
//! Between two clients the tag decides: a name (`key`) can have one operation. A look-up calls
//! `is_pending` before it reads the index: an applied operation is first in the index and then
//! without a tag.
//!
//! Invariants:
//!  1. The owner word says which thread owns a slot, as in `session`. A COMMITTED slot is the
//!     worker's. A dead thread's slot, if TENTATIVE or COMMITTED, is changed by its worker until a
//!     thread takes it over.
//!  2. A bit of `pending` is set before the state is TENTATIVE or COMMITTED, and is cleared before
//!     the slot is free; `announced` and its summary are set between the two. They are cleared only
//!     while `pending` is zero, which is then checked again: by the next worker if this one is
//!     killed.
//!  3. A tag holds the number of its slot, so no thread removes another's.
//!  4. A bit of `pending` is a hint: the slot may be withdrawn and taken again for another worker
//!     meanwhile. State and worker are one word, so one load or exchange decides.
//!  5. A client that is killed loses an operation that was not acknowledged, or none. Its slot is
//!     taken over when slots are short, or when the worker sweeps.

use super::served::{SERVED, SERVED_BYTES, ServedWord};
use super::tags::{TAG_WAYS, count_of, has_others, has_tag, tag_of};
use crate::segment::{Access, Segment, SharedEntry};
use crate::session::{SESSION_COUNT_MAX, SESSION_COUNT_PRESENT};
use crate::sync::{AtomicU32, AtomicU64, fence};
use crate::wait;
use core::ops::Range;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use rustix::fd::AsFd;
use wire::ShardIndex;
use wire::errno::{Errno, Result};
use wire::id::LOCAL_OP_SEQUENCE_FIRST;
use wire::limits::{SHARD_COUNT, WORKER_COUNT_MAX};
use wire::local_op::LOCAL_OP_BYTES_MAX;
use wire::quota::{Account, Owner};

/// Local operations of one session that are not applied; one more costs a message.
pub const LOCAL_OP_COUNT: usize = 64;

const GATE_STRIDE: usize = 64;
const SUMMARY: usize = 8;
/// Offset of the highest session number ever plus one, u64.
const SESSIONS_MOST: usize = 2048;
/// Offset of the number of targets of the instance, u32; 0: those with which it began.
const TARGETS: usize = 3072;
pub(crate) const NUMBERS: usize = 4096;
const ANNOUNCED: usize = NUMBERS + SHARD_COUNT as usize * 16;
const ANNOUNCED_WORDS: usize = 64;
const TAG_BUCKETS: usize = 4096;
const TAG_BUCKET: usize = 8 * TAG_WAYS;
const TAGS: usize = ANNOUNCED + WORKER_COUNT_MAX * ANNOUNCED_WORDS * 8;
const SESSIONS: usize = TAGS + WORKER_COUNT_MAX * TAG_BUCKETS * TAG_BUCKET;
const CLAIMED_MAP: usize = 8 * WORKER_COUNT_MAX;
const SLOTS: usize = 192;
const SLOT: usize = 512;
const MESSAGE: usize = 64;
const SESSION: usize = 36 * 1024;

/// Length of the segment; memory is touched as it is used.
pub const OP_LOG_BYTES: usize = SESSIONS + SESSION_COUNT_MAX * SESSION;

const _: () = assert!(SLOTS + LOCAL_OP_COUNT * SLOT <= SESSION && SESSION.is_multiple_of(4096));
const _: () = assert!(MESSAGE + LOCAL_OP_BYTES_MAX <= SLOT && LOCAL_OP_COUNT <= 64);
const _: () =
    assert!(WORKER_COUNT_MAX * GATE_STRIDE <= SERVED && SERVED + SERVED_BYTES <= SESSIONS_MOST);
const _: () = assert!(SESSIONS_MOST + 8 <= TARGETS && TARGETS + 4 <= NUMBERS);
const _: () = assert!(SESSIONS.is_multiple_of(4096) && SESSION_COUNT_MAX <= 64 * ANNOUNCED_WORDS);

/// The fields of a slot.
#[repr(C)]
struct OpSlot {
    state: AtomicU32,
    owner: AtomicU32,
    length: AtomicU32,
    unused: AtomicU32,
    key: AtomicU64,
    tag: AtomicU64,
}

// SAFETY: atomics in the order of the table above. WHY: each operation touches most of them.
unsafe impl SharedEntry for OpSlot {}

const _: () = assert!(size_of::<OpSlot>() <= MESSAGE);

/// States; all but FREE are combined with a worker by `of_worker`.
const FREE: u32 = 0;
const CLAIMED: u32 = 1;
pub(super) const TENTATIVE: u32 = 2;
const COMMITTED: u32 = 3;
const REFUSED: u32 = 4;

/// Bits of a state below the worker's number.
const WORKER_SHIFT: u32 = 8;

const _: () = assert!(REFUSED < 1 << WORKER_SHIFT && WORKER_COUNT_MAX < 1 << WORKER_SHIFT);

/// The state of a slot that is for `worker`.
const fn of_worker(state: u32, worker: usize) -> u32 {
    state | (worker as u32) << WORKER_SHIFT
}

const fn is_committed(state: u32) -> bool {
    state % (1 << WORKER_SHIFT) == COMMITTED
}

/// Gate: a new segment is closed.
const CLOSED: u32 = 0;
const OPEN: u32 = 1;
/// Open, but for files of accounts that are in the filter.
const OPEN_TO_MOST: u32 = 2;

/// The filter of accounts that may not create files by local operations, a bit each. An account
/// that shares the bit of another sends messages as well.
const FILTER: usize = 16;
const FILTER_WORDS: usize = 6;

const _: () = assert!(FILTER + FILTER_WORDS * 8 <= GATE_STRIDE);

/// Word and bit of an account in the filter.
const fn filter_bit(account: Account) -> (usize, u64) {
    let bit = wire::hash::mix(account.0, 1) % (FILTER_WORDS as u64 * 64);
    (bit as usize / 64, 1 << (bit % 64))
}

/// A slot of the segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LocalOpId {
    /// The session.
    pub session: u16,
    /// The slot.
    pub slot: u8,
}

/// How the worker treats operations that are announced and not committed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tentative {
    /// Leaves them: the gate is open.
    Leave,
    /// Refuses them: the gate is closed.
    Refuse,
}

/// The mapped segment.
pub struct OpLog {
    segment: Segment,
    /// The first session whose operations are mapped. The mapping ends with those of the last one.
    first: u16,
}

impl OpLog {
    /// Sees nothing of the shared memory any more (`Segment::detach`).
    pub fn detach(&self) {
        self.segment.detach();
    }

    /// Takes a mapping. A fresh one, all zeros, is valid as it is.
    ///
    /// # Errors
    /// `EINVAL` if it is too short.
    pub fn new(segment: Segment) -> Result<OpLog> {
        let is_long = segment.len() >= OP_LOG_BYTES;
        if is_long { Ok(OpLog { segment, first: 0 }) } else { Err(Errno::EINVAL) }
    }

    /// Maps what a client of `session` needs of the file: what all sessions share, and the operations
    /// of its own. Of other sessions it knows only that they announced some.
    ///
    /// # Errors
    /// `EINVAL` if the file is too short for that session; errors of the operating system.
    pub fn of_session(file: impl AsFd, session: u16) -> Result<OpLog> {
        let start = SESSIONS + usize::from(session) * SESSION;
        let parts = (0..SESSIONS, start..start + SESSION);
        let segment = Segment::map_two(file, parts.0, parts.1, Access::ReadWrite)?;
        Ok(OpLog { segment, first: session })
    }

    /// Where the block of a session begins, which may be beyond the mapping.
    #[inline]
    fn block(&self, session: u16) -> Result<usize> {
        let number = session.checked_sub(self.first).ok_or(Errno::EINVAL)?;
        Ok(SESSIONS.wrapping_add(usize::from(number) * SESSION))
    }

    fn at(&self, id: LocalOpId) -> Result<usize> {
        let (block, slot) = (self.block(id.session)?, usize::from(id.slot));
        if slot >= LOCAL_OP_COUNT {
            return Err(Errno::EINVAL);
        }
        Ok(block + SLOTS + slot * SLOT)
    }

    #[inline]
    fn entry(&self, id: LocalOpId) -> Result<&OpSlot> {
        self.segment.entry(self.at(id)?)
    }

    fn pending(&self, session: u16, worker: usize) -> Result<&AtomicU64> {
        if worker >= WORKER_COUNT_MAX {
            return Err(Errno::EINVAL);
        }
        self.segment.word64(self.block(session)? + 8 * worker)
    }

    fn claimed_map(&self, session: u16) -> Result<&AtomicU64> {
        self.segment.word64(self.block(session)? + CLAIMED_MAP)
    }

    fn gate(&self, worker: usize) -> Result<&AtomicU32> {
        if worker >= WORKER_COUNT_MAX {
            return Err(Errno::EINVAL);
        }
        self.segment.word32(worker * GATE_STRIDE)
    }

    /// Until when the service of a worker is served here.
    #[must_use]
    pub fn served(&self, worker: usize) -> ServedWord<'_> {
        let at = Some(worker).filter(|&worker| worker < WORKER_COUNT_MAX);
        ServedWord(at.and_then(|worker| self.segment.word64(SERVED + worker * 8).ok()))
    }

    fn summary(&self, worker: usize) -> Result<&AtomicU64> {
        if worker >= WORKER_COUNT_MAX {
            return Err(Errno::EINVAL);
        }
        self.segment.word64(worker * GATE_STRIDE + SUMMARY)
    }

    fn announced(&self, worker: usize, word: usize) -> Result<&AtomicU64> {
        if worker >= WORKER_COUNT_MAX || word >= ANNOUNCED_WORDS {
            return Err(Errno::EINVAL);
        }
        self.segment.word64(ANNOUNCED + (worker * ANNOUNCED_WORDS + word) * 8)
    }

    /// The next number of a shard (`field` 0), or the end of those that are granted (8).
    pub(super) fn numbers(&self, shard: ShardIndex, field: usize) -> Result<&AtomicU64> {
        if shard.0 >= SHARD_COUNT {
            return Err(Errno::EINVAL);
        }
        self.segment.word64(NUMBERS + usize::from(shard.0) * 16 + field)
    }

    // ---- names that have an operation ----

    /// The bucket of a name's tag.
    #[inline]
    fn ways(&self, worker: usize, key: u64) -> Result<&[AtomicU64; TAG_WAYS]> {
        let bucket = (worker % WORKER_COUNT_MAX) * TAG_BUCKETS + key as usize % TAG_BUCKETS;
        self.segment.words(TAGS + bucket * TAG_BUCKET)
    }

    /// True if a name may have an operation that is not applied. To be called before the index is
    /// read.
    #[must_use]
    #[inline]
    pub fn is_pending(&self, worker: usize, key: u64) -> bool {
        self.ways(worker, key).is_ok_and(|ways| has_tag(ways, key))
    }

    /// Puts a tag down. False if the name, or one with the same hash, has one, or the bucket is
    /// full.
    fn tag(&self, worker: usize, key: u64, tag: u64) -> bool {
        let Ok(ways) = self.ways(worker, key) else { return false };
        if has_tag(ways, key) {
            return false;
        }
        let put = |way: &AtomicU64| way.compare_exchange(0, tag, SeqCst, Relaxed).is_ok();
        let Some(place) = ways.iter().position(put) else { return false };
        // Two threads that came at the same time see each other here, and both back off.
        if has_others(ways, place) && count_of(ways, key) > 1 {
            self.untag(worker, key, tag);
            return false;
        }
        true
    }

    fn untag(&self, worker: usize, key: u64, tag: u64) {
        for way in self.ways(worker, key).into_iter().flatten() {
            if way.load(Relaxed) == tag && way.compare_exchange(tag, 0, SeqCst, Relaxed).is_ok() {
                return;
            }
        }
    }

    // ---- the client's side ----

    /// An inode number for a file created by a local operation in `shard`; `None` if there is none
    /// left.
    #[must_use]
    pub fn take_number(&self, shard: ShardIndex) -> Option<u64> {
        let (next, end) = (self.numbers(shard, 0).ok()?, self.numbers(shard, 8).ok()?);
        if next.load(Relaxed) >= end.load(Acquire) {
            return None;
        }
        let number = next.fetch_add(1, Relaxed);
        (number >= LOCAL_OP_SEQUENCE_FIRST && number < end.load(Acquire)).then_some(number)
    }

    /// Number of slots of a session that were in use when the last of those operations began that wait
    /// for a worker: a slot is only claimed if all before it are.
    #[must_use]
    #[inline]
    pub fn waiting(&self, session: u16, worker: usize) -> u32 {
        let pending = self.pending(session, worker);
        pending.map_or(0, |pending| u64::BITS - pending.load(Relaxed).leading_zeros())
    }

    /// True if the worker is between two steps and accepts local operations.
    #[must_use]
    pub fn is_open(&self, worker: usize) -> bool {
        self.gate(worker).is_ok_and(|gate| gate.load(SeqCst) != CLOSED)
    }

    /// As `is_open`, for an operation that creates a file of this owner.
    #[must_use]
    #[inline]
    pub fn is_open_to(&self, worker: usize, owner: Owner) -> bool {
        match self.gate(worker).map_or(CLOSED, |gate| gate.load(SeqCst)) {
            OPEN => true,
            gate => gate != CLOSED && !self.is_tight(worker, owner),
        }
    }

    #[cold]
    fn is_tight(&self, worker: usize, owner: Owner) -> bool {
        let Ok(filter) = self.filter(worker) else { return true };
        owner.accounts().any(|account| {
            let (word, bit) = filter_bit(account);
            filter.get(word).is_none_or(|word| word.load(SeqCst) & bit != 0)
        })
    }

    fn filter(&self, worker: usize) -> Result<&[AtomicU64; FILTER_WORDS]> {
        if worker >= WORKER_COUNT_MAX {
            return Err(Errno::EINVAL);
        }
        self.segment.words(worker * GATE_STRIDE + FILTER)
    }

    /// Takes a free slot for the calling thread, for an operation of `worker`. `None` if there is
    /// none.
    #[must_use]
    pub fn claim(&self, session: u16, worker: usize) -> Option<PendingOp<'_>> {
        let block = self.block(session).ok()?;
        let map = self.segment.word64(block + CLAIMED_MAP).ok()?;
        loop {
            let slot = (!map.load(Relaxed)).trailing_zeros();
            if slot >= LOCAL_OP_COUNT as u32 {
                return self.take_over(session, worker);
            }
            let id = LocalOpId { session, slot: slot as u8 };
            let entry: &OpSlot = self.segment.entry(block + SLOTS + slot as usize * SLOT).ok()?;
            let ours = entry.owner.compare_exchange(0, wait::thread_id(), AcqRel, Relaxed).is_ok();
            map.fetch_or(1 << slot, Relaxed);
            if ours {
                return Some(self.begin(id, entry, worker));
            }
        }
    }

    fn begin<'a>(&'a self, id: LocalOpId, entry: &'a OpSlot, worker: usize) -> PendingOp<'a> {
        entry.state.store(of_worker(CLAIMED, worker), Relaxed);
        entry.tag.store(0, Relaxed);
        PendingOp { op_log: self, entry, id, worker }
    }

    /// Withdraws what the calling thread did not commit, because its calls ended without returning.
    pub fn end_abandoned(&self, session: u16) {
        let me = wait::thread_id();
        for slot in 0..LOCAL_OP_COUNT as u8 {
            let id = LocalOpId { session, slot };
            let Ok(entry) = self.entry(id) else { return };
            // A committed slot keeps its owner's number, and is the worker's.
            let is_mine = || entry.owner.load(SeqCst) == me;
            let state = entry.state.load(SeqCst);
            if is_mine() && !is_committed(state) && entry.state.load(SeqCst) != FREE {
                let worker = (state >> WORKER_SHIFT) as usize;
                drop(PendingOp { op_log: self, entry, id, worker });
            }
        }
    }

    /// Takes over a slot whose owner died before it committed.
    fn take_over(&self, session: u16, worker: usize) -> Option<PendingOp<'_>> {
        for slot in 0..LOCAL_OP_COUNT as u8 {
            let id = LocalOpId { session, slot };
            if self.take_from_dead(id, wait::thread_id()) {
                return Some(self.begin(id, self.entry(id).ok()?, worker));
            }
        }
        None
    }

    /// Becomes the owner of a slot whose owner died before it committed, and resets it as if it was
    /// never announced.
    fn take_from_dead(&self, id: LocalOpId, me: u32) -> bool {
        let Ok(entry) = self.entry(id) else { return false };
        let OpSlot { state, owner, .. } = entry;
        let holder = owner.load(SeqCst);
        if is_committed(state.load(SeqCst)) || !wait::is_dead(holder) {
            return false;
        }
        // Again: it may have committed before it died. A slot not committed now never will be; a
        // committed one is freed by the worker, which must not find another owner's number there.
        if is_committed(state.load(SeqCst))
            || owner.compare_exchange(holder, me, SeqCst, Relaxed).is_err()
        {
            return false;
        }
        self.clear(id, entry);
        true
    }

    /// Removes the traces of an announcement, for the owner.
    fn clear(&self, id: LocalOpId, entry: &OpSlot) {
        let OpSlot { state, key, tag, .. } = entry;
        let worker = (state.load(Relaxed) >> WORKER_SHIFT) as usize;
        if tag.load(Relaxed) != 0 {
            self.untag(worker, key.load(Relaxed), tag.load(Relaxed));
            // Not before: if this thread is killed in between, its successor finds the tag.
            tag.store(0, SeqCst);
        }
        if let Ok(pending) = self.pending(id.session, worker) {
            pending.fetch_and(!(1 << id.slot), SeqCst);
        }
    }

    /// Frees a slot, for its owner or, once it is committed, for the worker.
    fn release(&self, id: LocalOpId) {
        let (Ok(entry), Ok(map)) = (self.entry(id), self.claimed_map(id.session)) else { return };
        self.clear(id, entry);
        let OpSlot { state, owner, .. } = entry;
        let holder = owner.load(Relaxed);
        state.store(FREE, Release);
        // A dead owner's slot may be taken over from here on: then it is not ours to clear.
        let _ = owner.compare_exchange(holder, 0, AcqRel, Relaxed);
        map.fetch_and(!(1 << id.slot), Release);
    }

    // ---- the worker's side ----

    /// Lets clients commit operations for `worker`, except creates for accounts in `tight`.
    pub fn open_gate(&self, worker: usize, tight: &[Account]) {
        let (Ok(gate), Ok(filter)) = (self.gate(worker), self.filter(worker)) else { return };
        if tight.is_empty() {
            return gate.store(OPEN, Release);
        }
        for (number, word) in filter.iter().enumerate() {
            let bits = tight.iter().map(|&account| filter_bit(account));
            let bits = bits.filter(|bit| bit.0 == number).fold(0, |all, bit| all | bit.1);
            word.store(bits, Relaxed);
        }
        gate.store(OPEN_TO_MOST, Release);
    }

    /// Keeps clients from committing operations for `worker` until `open_gate`: an operation that
    /// the following collection does not take does not exist.
    pub fn close_gate(&self, worker: usize) {
        if let Ok(gate) = self.gate(worker) {
            gate.swap(CLOSED, SeqCst);
            fence(SeqCst);
        }
    }

    /// Records that a session with this number exists, or existed.
    ///
    /// # Errors
    /// `ENOSPC` if there is no memory for its operations.
    pub fn note_session(&self, session: u16) -> Result<()> {
        let most = self.segment.word64(SESSIONS_MOST)?;
        // Only one thread of the daemon opens sessions.
        let (before, after) = (most.load(Relaxed), u64::from(session) + 1);
        let first = before.min(after - 1) as usize;
        let count = usize::from(session) + 1 - first;
        self.segment.reserve(SESSIONS + first * SESSION, count * SESSION)?;
        most.store(before.max(after), SeqCst);
        Ok(())
    }

    /// The instance has so many targets now, as the daemon knows that applies the operations.
    pub fn set_targets(&self, count: u16) {
        let _ = self.segment.word32(TARGETS).map(|word| word.store(count.into(), Release));
    }

    /// Targets of the instance, of which a file that is created here may use all; `None`: as many as in
    /// the beginning.
    #[must_use]
    pub fn targets(&self) -> Option<u16> {
        let count = self.segment.word32(TARGETS).ok()?.load(Acquire);
        u16::try_from(count).ok().filter(|&count| count != 0)
    }

    /// The parts whose memory must be present before a client uses the segment: what all sessions
    /// share, with the tags of `workers`, and the first sessions.
    #[must_use]
    pub fn first_parts(workers: usize) -> [Range<usize>; 2] {
        let tags = workers.min(WORKER_COUNT_MAX) * TAG_BUCKETS * TAG_BUCKET;
        [0..TAGS + tags, SESSIONS..SESSIONS + SESSION_COUNT_PRESENT * SESSION]
    }

    /// Number of sessions that may have local operations.
    #[must_use]
    pub fn sessions_most(&self) -> u64 {
        self.segment.word64(SESSIONS_MOST).map_or(0, |most| most.load(Relaxed))
    }

    /// True if some session may have operations for `worker`.
    #[must_use]
    pub fn has_any(&self, worker: usize) -> bool {
        self.summary(worker).is_ok_and(|summary| summary.load(SeqCst) != 0)
    }

    /// True if a session other than `own` may have operations for `worker`.
    #[must_use]
    pub fn has_any_of_others(&self, own: u16, worker: usize) -> bool {
        let mut has = false;
        self.each_announced(worker, &mut |word, bit| {
            let session = session_of(word, bit);
            let pending =
                || self.pending(session, worker).map_or(1, |pending| pending.load(SeqCst));
            has |= session != own && pending() != 0;
        });
        has
    }

    /// Announces a session whose `pending` is not zero.
    fn announce_session(&self, session: u16, worker: usize) -> Result<()> {
        let (word, bit) = (usize::from(session) / 64, session % 64);
        let announced = self.announced(worker, word)?;
        if announced.load(SeqCst) & 1 << bit == 0 {
            announced.fetch_or(1 << bit, SeqCst);
        }
        let summary = self.summary(worker)?;
        if summary.load(SeqCst) & 1 << word == 0 {
            summary.fetch_or(1 << word, SeqCst);
        }
        Ok(())
    }

    /// Calls `with` for each session that may have operations for `worker`, by word and bit.
    fn each_announced(&self, worker: usize, with: &mut dyn FnMut(usize, u32)) {
        let Ok(summary) = self.summary(worker) else { return };
        for word in bits_of(summary.load(SeqCst)) {
            let announced = self.announced(worker, word as usize);
            let sessions = announced.map_or(0, |announced| announced.load(SeqCst));
            bits_of(sessions).for_each(|bit| with(word as usize, bit));
        }
    }

    /// Calls `each` with the committed operations for `worker`.
    pub fn collect(&self, worker: usize, tentative: Tentative, each: &mut dyn FnMut(LocalOpId)) {
        self.each_announced(worker, &mut |word, bit| {
            self.collect_session(worker, session_of(word, bit), tentative, each);
        });
    }

    /// As `collect`, also of sessions whose announcement was cut short; changes nothing.
    pub fn each_committed(&self, worker: usize, each: &mut dyn FnMut(LocalOpId)) {
        let sessions = self.sessions_most().min(SESSION_COUNT_MAX as u64) as u16;
        for session in 0..sessions {
            self.collect_session(worker, session, Tentative::Leave, each);
        }
    }

    fn collect_session(
        &self,
        worker: usize,
        session: u16,
        tentative: Tentative,
        each: &mut dyn FnMut(LocalOpId),
    ) {
        let Ok(pending) = self.pending(session, worker) else { return };
        let [tentative_for_it, committed_for_it, refused_by_it] =
            [TENTATIVE, COMMITTED, REFUSED].map(|state| of_worker(state, worker));
        for slot in bits_of(pending.load(SeqCst)) {
            let id = LocalOpId { session, slot: slot as u8 };
            let Ok(OpSlot { state, .. }) = self.entry(id) else { continue };
            let is_refused = tentative == Tentative::Refuse
                && state.compare_exchange(tentative_for_it, refused_by_it, SeqCst, SeqCst).is_ok();
            if !is_refused && state.load(SeqCst) == committed_for_it {
                each(id);
            }
        }
    }

    /// Removes the announcements of sessions that have no operations left for `worker`.
    pub fn settle(&self, worker: usize) {
        let Ok(summary) = self.summary(worker) else { return };
        self.each_announced(worker, &mut |word, bit| {
            let words = (self.announced(worker, word), self.pending(session_of(word, bit), worker));
            if let (Ok(announced), Ok(pending)) = words {
                clear_if_empty(announced, bit, || pending.load(SeqCst) == 0);
            }
        });
        // Also of words that were empty before: a client may set the summary's bit late.
        for word in bits_of(summary.load(SeqCst)) {
            if let Ok(announced) = self.announced(worker, word as usize) {
                clear_if_empty(summary, word, || announced.load(SeqCst) == 0);
            }
        }
    }

    /// Frees the slots of operations for `worker` that an earlier daemon had applied when it died,
    /// and completes announcements that were cut short.
    pub fn recover(&self, worker: usize) {
        let sessions = self.sessions_most().min(SESSION_COUNT_MAX as u64) as u16;
        for session in 0..sessions {
            let Ok(pending) = self.pending(session, worker) else { return };
            for slot in 0..LOCAL_OP_COUNT as u8 {
                let id = LocalOpId { session, slot };
                let Ok(OpSlot { state, .. }) = self.entry(id) else { return };
                // A client sets the bit first.
                if state.load(SeqCst) == of_worker(COMMITTED, worker)
                    && pending.load(SeqCst) >> slot & 1 == 0
                {
                    self.release(id);
                }
            }
            // A client that sets a bit from here on sees for itself that it is not announced.
            if pending.load(SeqCst) != 0 && self.announce_session(session, worker).is_err() {
                return;
            }
        }
    }

    /// Frees the slots of threads that died before they committed an operation for `worker`.
    pub fn sweep(&self, worker: usize) {
        let me = wait::thread_id();
        self.each_announced(worker, &mut |word, bit| {
            let session = session_of(word, bit);
            let pending = self.pending(session, worker).map_or(0, |word| word.load(SeqCst));
            for slot in bits_of(pending) {
                let id = LocalOpId { session, slot: slot as u8 };
                if self.take_from_dead(id, me) {
                    self.release(id);
                }
            }
        });
        self.settle(worker);
    }

    /// Copies a committed operation out; returns its length. `None` if it is malformed.
    pub fn read(&self, id: LocalOpId, to: &mut [u8; LOCAL_OP_BYTES_MAX]) -> Option<usize> {
        let length = self.entry(id).ok()?.length.load(Acquire) as usize;
        let to = to.get_mut(..length)?;
        self.segment.copy_out(self.at(id).ok()? + MESSAGE, to).ok()?;
        Some(length)
    }

    /// A committed operation is applied and its effect is visible: frees its slot.
    pub fn finish(&self, id: LocalOpId) {
        self.release(id);
    }
}

/// The bits that are set, from the lowest.
fn bits_of(mut bits: u64) -> impl Iterator<Item = u32> {
    core::iter::from_fn(move || {
        let bit = bits.trailing_zeros();
        bits &= bits.wrapping_sub(1);
        (bit < 64).then_some(bit)
    })
}

const fn session_of(word: usize, bit: u32) -> u16 {
    (word * 64) as u16 + bit as u16
}

/// Clears a bit while nothing is behind it. A thread that adds something sets the bit afterwards.
fn clear_if_empty(word: &AtomicU64, bit: u32, is_empty: impl Fn() -> bool) {
    if is_empty() {
        word.fetch_and(!(1 << bit), SeqCst);
        if !is_empty() {
            word.fetch_or(1 << bit, SeqCst);
        }
    }
}

/// A slot that the calling thread owns. Dropped: withdrawn.
pub struct PendingOp<'a> {
    op_log: &'a OpLog,
    entry: &'a OpSlot,
    id: LocalOpId,
    worker: usize,
}

impl PendingOp<'_> {
    /// The slot.
    #[must_use]
    pub const fn id(&self) -> LocalOpId {
        self.id
    }

    /// Lets `write` put the operation into the slot; `write` returns the length.
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
        let at = self.op_log.at(self.id)? + MESSAGE;
        let segment = &self.op_log.segment;
        let length = segment.with_own(at, LOCAL_OP_BYTES_MAX, write)?.map_err(Errno::from)?;
        if length > LOCAL_OP_BYTES_MAX {
            return Err(Errno::E2BIG);
        }
        self.entry.length.store(length as u32, Relaxed);
        Ok(())
    }

    /// Announces an operation on the name `key`. False if that name has one already: withdraw. If
    /// true, the caller checks everything that could conflict with the operation, and commits or
    /// withdraws.
    ///
    /// # Errors
    /// Never for a slot that was claimed.
    pub fn announce(&self, key: u64) -> Result<bool> {
        let tag = tag_of(key, self.id);
        self.entry.key.store(key, Relaxed);
        self.entry.tag.store(tag, SeqCst);
        self.show(TENTATIVE)?;
        let tagged = self.op_log.tag(self.worker, key, tag);
        fence(SeqCst);
        Ok(tagged)
    }

    /// Sets the bits that lead the worker to the slot, then the state: a thread killed in between
    /// has done nothing.
    pub(super) fn show(&self, state: u32) -> Result<()> {
        let (op_log, LocalOpId { session, slot }) = (self.op_log, self.id);
        op_log.pending(session, self.worker)?.fetch_or(1 << slot, SeqCst);
        op_log.announce_session(session, self.worker)?;
        self.entry.state.store(of_worker(state, self.worker), SeqCst);
        Ok(())
    }

    /// Commits the operation; false if the worker refused it.
    pub fn commit(self) -> bool {
        let [from, to] = [TENTATIVE, COMMITTED].map(|state| of_worker(state, self.worker));
        let committed = self.entry.state.compare_exchange(from, to, SeqCst, SeqCst).is_ok();
        if committed {
            core::mem::forget(self);
        }
        committed
    }

    /// Commits an operation with which nothing can conflict, without announcing it.
    ///
    /// # Errors
    /// Never for a slot that was claimed.
    pub fn commit_at_once(self) -> Result<()> {
        self.show(COMMITTED)?;
        core::mem::forget(self);
        Ok(())
    }
}

impl Drop for PendingOp<'_> {
    fn drop(&mut self) {
        self.op_log.release(self.id);
    }
}

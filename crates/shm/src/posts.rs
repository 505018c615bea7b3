//! Posts: operations that a client completes by itself (`wire::post`, B1). One named segment for
//! each daemon, which outlives daemon and clients, so that what was acknowledged is applied.
//!
//! Layout:
//!
//!   gates      WORKER_COUNT_MAX x 64 bytes: gate u32; at 8, summary u64: words below not zero; at 16,
//!              the filter of tight accounts, 6 x u64; at 2048, how many sessions there ever were u64; a
//!              page in all
//!   numbers    SHARD_COUNT x (next u64, end u64): inode numbers that posts may use
//!   announced  WORKER_COUNT_MAX x 64 x u64: bit s: session s may have posts for that worker
//!   tags       WORKER_COUNT_MAX x TAG_BUCKETS x 64 bytes: names with a post that is not applied
//!   sessions   for each: pending WORKER_COUNT_MAX x u64, claimed u64, then POST_COUNT slots
//!
//! A slot: state u32 (with the worker it is for, above 8 bits), owner u32 (thread; 0: free), length u32,
//! 4 bytes unused, key u64, tag u64; at 64 the post.
//!
//!   FREE --claim--> CLAIMED --announce--> TENTATIVE --commit--> COMMITTED --applied--> FREE
//!                                         TENTATIVE --refused by the worker--> REFUSED
//!                   CLAIMED, TENTATIVE, REFUSED --withdraw--> FREE
//!
//! A client must know that nothing stands against its operation, and the worker that nobody posts
//! something against its own. So the client announces first and looks then: at the gate, at the
//! index, at who has the file open; if all is well it commits. The worker, before a step that reads
//! or changes names, closes the gate and only then takes what is committed and refuses what is
//! tentative. All of it is sequentially consistent, so one of the two sees the other: either the
//! post comes before the step, or the client finds the gate closed, or the index as the step left
//! it.
//!
//! Between two clients the tag decides: a name (`key`) can have one post. Who looks a name up asks
//! `is_pending` before he looks in the index: a post that is applied is first in the index and then
//! without a tag.
//!
//! Invariants:
//!  1. The owner word says whose a slot is, as in `session`. A COMMITTED slot is the worker's. A dead
//!     thread's is changed by the worker it is for, if TENTATIVE or COMMITTED, until somebody takes it.
//!  2. A bit of `pending` is set before the state is TENTATIVE or COMMITTED, and is cleared before the
//!     slot is free; `announced` and its summary are set between the two, and are cleared only while
//!     `pending` is zero, and then looked at again: by the next worker if this one is killed.
//!  3. A tag holds the number of its slot, so nobody takes another's away.
//!  4. A bit of `pending` only says where to look: the slot may be withdrawn and taken again for another
//!     worker meanwhile. One word says what a slot is and for whom, so one load or exchange decides.
//!  5. A client that is killed loses an operation that was not acknowledged, or none. Its slot is
//!     taken over when slots are short, or when the worker sweeps.

use crate::doorbell::SESSION_COUNT_MAX;
use crate::segment::{Row, Segment};
use crate::sync::{AtomicU32, AtomicU64, fence};
use crate::wait;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use wire::ShardIndex;
use wire::errno::{Errno, Result};
use wire::limits::{SHARD_COUNT, WORKER_COUNT_MAX};
use wire::post::{POST_BYTES_MAX, SEQUENCE_FIRST};
use wire::quota::{Account, Owner};

/// Posts of one session that are not applied; one more costs a message.
pub const POST_COUNT: usize = 64;

const GATE_STRIDE: usize = 64;
const SUMMARY: usize = 8;
/// How many sessions there ever were, u64.
const SESSIONS_MOST: usize = 2048;
pub(crate) const NUMBERS: usize = 4096;
const ANNOUNCED: usize = NUMBERS + SHARD_COUNT as usize * 16;
const ANNOUNCED_WORDS: usize = 64;
const TAG_BUCKETS: usize = 4096;
const TAG_WAYS: usize = 8;
const TAG_BUCKET: usize = 8 * TAG_WAYS;
const TAGS: usize = ANNOUNCED + WORKER_COUNT_MAX * ANNOUNCED_WORDS * 8;
const SESSIONS: usize = TAGS + WORKER_COUNT_MAX * TAG_BUCKETS * TAG_BUCKET;
const CLAIMED_MAP: usize = 8 * WORKER_COUNT_MAX;
const SLOTS: usize = 192;
const SLOT: usize = 512;
const MESSAGE: usize = 64;
const SESSION: usize = 36 * 1024;

/// Length of the segment; memory is touched as it is used.
pub const POSTS_BYTES: usize = SESSIONS + SESSION_COUNT_MAX * SESSION;

const _: () = assert!(SLOTS + POST_COUNT * SLOT <= SESSION && SESSION.is_multiple_of(4096));
const _: () = assert!(MESSAGE + POST_BYTES_MAX <= SLOT && POST_COUNT <= 64);
const _: () = assert!(WORKER_COUNT_MAX * GATE_STRIDE <= SESSIONS_MOST);
const _: () = assert!(SESSIONS.is_multiple_of(4096) && SESSION_COUNT_MAX <= 64 * ANNOUNCED_WORDS);

/// The words of a slot.
#[repr(C)]
struct SlotRow {
    state: AtomicU32,
    owner: AtomicU32,
    length: AtomicU32,
    unused: AtomicU32,
    key: AtomicU64,
    tag: AtomicU64,
}

// SAFETY: atomics in the order of the table above. WHY: each post touches most of them.
unsafe impl Row for SlotRow {}

const _: () = assert!(size_of::<SlotRow>() <= MESSAGE);

/// States; all but FREE are combined with a worker by `of_worker`.
const FREE: u32 = 0;
const CLAIMED: u32 = 1;
const TENTATIVE: u32 = 2;
const COMMITTED: u32 = 3;
const REFUSED: u32 = 4;

/// Bits of a state below the worker's number.
const WORKER_SHIFT: u32 = 8;

const _: () = assert!(REFUSED < 1 << WORKER_SHIFT && WORKER_COUNT_MAX < 1 << WORKER_SHIFT);

/// A state of a slot that is for `worker`.
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

/// The filter of accounts that may not make files by posts: a bit of each. Who has the bit of another
/// sends a message, as they do.
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
pub struct PostId {
    /// The session.
    pub session: u16,
    /// The slot.
    pub slot: u8,
}

/// What the worker does with posts that are announced and not committed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tentative {
    /// Leaves them: the gate is open.
    Leave,
    /// Refuses them: it closed the gate.
    Refuse,
}

/// The mapped segment.
pub struct Posts {
    segment: Segment,
}

impl Posts {
    /// Takes a mapping. A fresh one, all zeros, is valid as it is.
    ///
    /// # Errors
    /// `EINVAL` if it is too short.
    pub fn new(segment: Segment) -> Result<Posts> {
        if segment.len() < POSTS_BYTES { Err(Errno::EINVAL) } else { Ok(Posts { segment }) }
    }

    fn at(id: PostId) -> Result<usize> {
        let (session, slot) = (usize::from(id.session), usize::from(id.slot));
        if session >= SESSION_COUNT_MAX || slot >= POST_COUNT {
            return Err(Errno::EINVAL);
        }
        Ok(SESSIONS + session * SESSION + SLOTS + slot * SLOT)
    }

    #[inline]
    fn row(&self, id: PostId) -> Result<&SlotRow> {
        self.segment.row(Posts::at(id)?)
    }

    fn pending(&self, session: u16, worker: usize) -> Result<&AtomicU64> {
        if worker >= WORKER_COUNT_MAX || usize::from(session) >= SESSION_COUNT_MAX {
            return Err(Errno::EINVAL);
        }
        self.segment.word64(SESSIONS + usize::from(session) * SESSION + 8 * worker)
    }

    fn claimed_map(&self, session: u16) -> Result<&AtomicU64> {
        if usize::from(session) >= SESSION_COUNT_MAX {
            return Err(Errno::EINVAL);
        }
        self.segment.word64(SESSIONS + usize::from(session) * SESSION + CLAIMED_MAP)
    }

    fn gate(&self, worker: usize) -> Result<&AtomicU32> {
        if worker >= WORKER_COUNT_MAX {
            return Err(Errno::EINVAL);
        }
        self.segment.word32(worker * GATE_STRIDE)
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

    fn numbers(&self, shard: ShardIndex, field: usize) -> Result<&AtomicU64> {
        if shard.0 >= SHARD_COUNT {
            return Err(Errno::EINVAL);
        }
        self.segment.word64(NUMBERS + usize::from(shard.0) * 16 + field)
    }

    // ---- names that have a post ----

    /// The bucket of a name's tag.
    #[inline]
    fn ways(&self, worker: usize, key: u64) -> Result<&[AtomicU64; TAG_WAYS]> {
        let bucket = (worker % WORKER_COUNT_MAX) * TAG_BUCKETS + key as usize % TAG_BUCKETS;
        self.segment.words(TAGS + bucket * TAG_BUCKET)
    }

    /// True if a name may have a post that is not applied. To be asked before the index is.
    #[must_use]
    #[inline]
    pub fn is_pending(&self, worker: usize, key: u64) -> bool {
        self.ways(worker, key).is_ok_and(|ways| has_tag(ways, key))
    }

    /// Puts a tag down. False if the name, or one that looks like it, has one, or there is no room.
    fn tag(&self, worker: usize, key: u64, tag: u64) -> bool {
        let Ok(ways) = self.ways(worker, key) else { return false };
        if has_tag(ways, key) {
            return false;
        }
        let put = |way: &AtomicU64| way.compare_exchange(0, tag, SeqCst, Relaxed).is_ok();
        if !ways.iter().any(put) {
            return false;
        }
        // Two that came at a time see each other here, and both go another way.
        let alike = ways.iter().filter(|way| is_tag_of(way.load(SeqCst), key));
        if alike.count() > 1 {
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

    /// An inode number for a file that a post makes in `shard`; `None` if there is none left.
    #[must_use]
    pub fn take_number(&self, shard: ShardIndex) -> Option<u64> {
        let (next, end) = (self.numbers(shard, 0).ok()?, self.numbers(shard, 8).ok()?);
        if next.load(Relaxed) >= end.load(Acquire) {
            return None;
        }
        let number = next.fetch_add(1, Relaxed);
        (number >= SEQUENCE_FIRST && number < end.load(Acquire)).then_some(number)
    }

    /// How many posts of a session wait for a worker.
    #[must_use]
    pub fn waiting(&self, session: u16, worker: usize) -> u32 {
        self.pending(session, worker).map_or(0, |pending| pending.load(Relaxed).count_ones())
    }

    /// True if the worker is between two steps and takes posts.
    #[must_use]
    pub fn is_open(&self, worker: usize) -> bool {
        self.gate(worker).is_ok_and(|gate| gate.load(SeqCst) != CLOSED)
    }

    /// As `is_open`, for a post that makes a file of this owner.
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

    /// Takes a free slot for the calling thread, for a post to `worker`. `None` if there is none.
    #[must_use]
    pub fn claim(&self, session: u16, worker: usize) -> Option<Draft<'_>> {
        let map = self.claimed_map(session).ok()?;
        loop {
            let taken = map.load(Relaxed);
            let slot = (!taken).trailing_zeros();
            if slot >= POST_COUNT as u32 {
                return self.take_over(session, worker);
            }
            let id = PostId { session, slot: slot as u8 };
            let row = self.row(id).ok()?;
            let ours = row.owner.compare_exchange(0, wait::thread_id(), AcqRel, Relaxed).is_ok();
            map.fetch_or(1 << slot, Relaxed);
            if ours {
                return Some(self.begin(id, row, worker));
            }
        }
    }

    fn begin<'a>(&'a self, id: PostId, row: &'a SlotRow, worker: usize) -> Draft<'a> {
        row.state.store(of_worker(CLAIMED, worker), Relaxed);
        row.tag.store(0, Relaxed);
        Draft { posts: self, row, id, worker }
    }

    /// A slot whose owner died before it committed.
    fn take_over(&self, session: u16, worker: usize) -> Option<Draft<'_>> {
        for slot in 0..POST_COUNT as u8 {
            let id = PostId { session, slot };
            if self.take_from_dead(id, wait::thread_id()) {
                return Some(self.begin(id, self.row(id).ok()?, worker));
            }
        }
        None
    }

    /// Becomes the owner of a slot whose owner died before it committed, and makes it as if it was never
    /// announced.
    fn take_from_dead(&self, id: PostId, me: u32) -> bool {
        let Ok(row) = self.row(id) else { return false };
        let SlotRow { state, owner, .. } = row;
        let holder = owner.load(SeqCst);
        if is_committed(state.load(SeqCst)) || !wait::is_dead(holder) {
            return false;
        }
        // Again: it may have committed before it died. What is not committed now never will be; what is,
        // the worker frees, and then it must not find another owner's number there.
        if is_committed(state.load(SeqCst))
            || owner.compare_exchange(holder, me, SeqCst, Relaxed).is_err()
        {
            return false;
        }
        self.clear(id, row);
        true
    }

    /// Takes back what an announcement left, for the owner.
    fn clear(&self, id: PostId, row: &SlotRow) {
        let SlotRow { state, key, tag, .. } = row;
        let worker = (state.load(Relaxed) >> WORKER_SHIFT) as usize;
        if tag.load(Relaxed) != 0 {
            self.untag(worker, key.load(Relaxed), tag.load(Relaxed));
            // Not before: if we are killed in between, who comes after us finds it.
            tag.store(0, SeqCst);
        }
        if let Ok(pending) = self.pending(id.session, worker) {
            pending.fetch_and(!(1 << id.slot), SeqCst);
        }
    }

    /// Makes a slot free, for its owner or, once it is committed, for the worker.
    fn release(&self, id: PostId) {
        let (Ok(row), Ok(map)) = (self.row(id), self.claimed_map(id.session)) else { return };
        self.clear(id, row);
        let SlotRow { state, owner, .. } = row;
        let holder = owner.load(Relaxed);
        state.store(FREE, Release);
        // A dead owner's slot may be taken over from here on: then it is not ours to clear.
        let _ = owner.compare_exchange(holder, 0, AcqRel, Relaxed);
        map.fetch_and(!(1 << id.slot), Release);
    }

    // ---- the worker's side ----

    /// Lets clients post to `worker`, but make no files of accounts that are `tight`.
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

    /// Keeps clients from posting to `worker`: what is committed and not taken by the collection that
    /// follows is not there, until `open_gate`.
    pub fn close_gate(&self, worker: usize) {
        if let Ok(gate) = self.gate(worker) {
            gate.swap(CLOSED, SeqCst);
            fence(SeqCst);
        }
    }

    /// Inode numbers that posts in `shard` have left.
    #[must_use]
    pub fn numbers_left(&self, shard: ShardIndex) -> u64 {
        let (Ok(next), Ok(end)) = (self.numbers(shard, 0), self.numbers(shard, 8)) else {
            return u64::MAX;
        };
        end.load(Relaxed).saturating_sub(next.load(Relaxed))
    }

    /// Posts in `shard` may use the inode numbers below `end` that were not used yet; in a new segment,
    /// where nobody knows which were, those from `first` on.
    pub fn grant_numbers(&self, shard: ShardIndex, first: u64, end: u64) {
        if let (Ok(next), Ok(last)) = (self.numbers(shard, 0), self.numbers(shard, 8)) {
            // What an earlier grant left goes on: early pieces were made for the numbers that come next.
            let begin = |next| if next < SEQUENCE_FIRST { first } else { next };
            let _ = next.fetch_update(SeqCst, SeqCst, |next| Some(begin(next)));
            // Only the worker that owns the shard grants.
            last.store(end.max(last.load(Relaxed)), Release);
        }
    }

    /// Notes that there is, or was, a session with this number.
    pub fn note_session(&self, session: u16) {
        if let Ok(most) = self.segment.word64(SESSIONS_MOST) {
            // Only one thread of the daemon opens sessions.
            most.store(most.load(Relaxed).max(u64::from(session) + 1), SeqCst);
        }
    }

    /// How many sessions there may be that post.
    #[must_use]
    pub fn sessions_most(&self) -> u64 {
        self.segment.word64(SESSIONS_MOST).map_or(0, |most| most.load(Relaxed))
    }

    /// True if some session may have posts for `worker`.
    #[must_use]
    pub fn has_any(&self, worker: usize) -> bool {
        self.summary(worker).is_ok_and(|summary| summary.load(SeqCst) != 0)
    }

    /// True if a session other than `own` may have posts for `worker`.
    #[must_use]
    pub fn has_any_of_others(&self, own: u16, worker: usize) -> bool {
        let mut has = false;
        self.each_announced(worker, &mut |word, bit| {
            let session = session_of(word, bit);
            let pending =
                || self.pending(session, worker).map_or(0, |pending| pending.load(SeqCst));
            has |= session != own && pending() != 0;
        });
        has
    }

    /// Announces a session whose `pending` is not zero.
    fn lead_to(&self, session: u16, worker: usize) -> Result<()> {
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

    /// Calls `with` for each session that may have posts for `worker`, by word and bit.
    fn each_announced(&self, worker: usize, with: &mut dyn FnMut(usize, u32)) {
        let Ok(summary) = self.summary(worker) else { return };
        for word in bits_of(summary.load(SeqCst)) {
            let announced = self.announced(worker, word as usize);
            let sessions = announced.map_or(0, |announced| announced.load(SeqCst));
            bits_of(sessions).for_each(|bit| with(word as usize, bit));
        }
    }

    /// Calls `each` with the posts to `worker` that are committed.
    pub fn collect(&self, worker: usize, tentative: Tentative, each: &mut dyn FnMut(PostId)) {
        self.each_announced(worker, &mut |word, bit| {
            self.collect_session(worker, session_of(word, bit), tentative, each);
        });
    }

    fn collect_session(
        &self,
        worker: usize,
        session: u16,
        tentative: Tentative,
        each: &mut dyn FnMut(PostId),
    ) {
        let Ok(pending) = self.pending(session, worker) else { return };
        let [tentative_for_it, committed_for_it, refused_by_it] =
            [TENTATIVE, COMMITTED, REFUSED].map(|state| of_worker(state, worker));
        for slot in bits_of(pending.load(SeqCst)) {
            let id = PostId { session, slot: slot as u8 };
            let Ok(SlotRow { state, .. }) = self.row(id) else { continue };
            let is_refused = tentative == Tentative::Refuse
                && state.compare_exchange(tentative_for_it, refused_by_it, SeqCst, SeqCst).is_ok();
            if !is_refused && state.load(SeqCst) == committed_for_it {
                each(id);
            }
        }
    }

    /// Takes back the announcements of sessions that have no posts for `worker` any more.
    pub fn settle(&self, worker: usize) {
        let Ok(summary) = self.summary(worker) else { return };
        self.each_announced(worker, &mut |word, bit| {
            let words = (self.announced(worker, word), self.pending(session_of(word, bit), worker));
            if let (Ok(announced), Ok(pending)) = words {
                take_back(announced, bit, || pending.load(SeqCst) == 0);
            }
        });
        // Also of words that were empty before: a client may set the summary's bit late.
        for word in bits_of(summary.load(SeqCst)) {
            if let Ok(announced) = self.announced(worker, word as usize) {
                take_back(summary, word, || announced.load(SeqCst) == 0);
            }
        }
    }

    /// Frees the slots of posts to `worker` that an earlier daemon had applied when it died, and
    /// announces what it was about to announce again.
    pub fn recover(&self, worker: usize) {
        let sessions = self.sessions_most().min(SESSION_COUNT_MAX as u64) as u16;
        for session in 0..sessions {
            let Ok(pending) = self.pending(session, worker) else { return };
            for slot in 0..POST_COUNT as u8 {
                let id = PostId { session, slot };
                let Ok(SlotRow { state, .. }) = self.row(id) else { return };
                // A client sets the bit first.
                if state.load(SeqCst) == of_worker(COMMITTED, worker)
                    && pending.load(SeqCst) >> slot & 1 == 0
                {
                    self.release(id);
                }
            }
            // A client that sets a bit from here on sees for itself that it is not announced.
            if pending.load(SeqCst) != 0 && self.lead_to(session, worker).is_err() {
                return;
            }
        }
    }

    /// Frees the slots of those who died before they committed a post to `worker`.
    pub fn sweep(&self, worker: usize) {
        let me = wait::thread_id();
        self.each_announced(worker, &mut |word, bit| {
            let session = session_of(word, bit);
            let pending = self.pending(session, worker).map_or(0, |word| word.load(SeqCst));
            for slot in bits_of(pending) {
                let id = PostId { session, slot: slot as u8 };
                if self.take_from_dead(id, me) {
                    self.release(id);
                }
            }
        });
        self.settle(worker);
    }

    /// Copies a committed post out; its length. `None` if it makes no sense.
    pub fn read(&self, id: PostId, to: &mut [u8; POST_BYTES_MAX]) -> Option<usize> {
        let length = self.row(id).ok()?.length.load(Acquire) as usize;
        let to = to.get_mut(..length)?;
        self.segment.copy_out(Posts::at(id).ok()? + MESSAGE, to).ok()?;
        Some(length)
    }

    /// A committed post is applied, and what it did can be seen: its slot is free.
    pub fn finish(&self, id: PostId) {
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

/// Clears a bit while nothing stands behind it. Who puts something there sets the bit afterwards.
fn take_back(word: &AtomicU64, bit: u32, is_empty: impl Fn() -> bool) {
    if is_empty() {
        word.fetch_and(!(1 << bit), SeqCst);
        if !is_empty() {
            word.fetch_or(1 << bit, SeqCst);
        }
    }
}

/// Bits of a tag above the number of its slot.
const TAG_SHIFT: u32 = 24;

fn tag_of(key: u64, id: PostId) -> u64 {
    // Never zero, whatever the key is.
    let name = (key >> TAG_SHIFT | 1) << TAG_SHIFT;
    name | u64::from(id.session) << 8 | u64::from(id.slot)
}

/// True if a bucket has a tag of this name.
#[inline]
fn has_tag(ways: &[AtomicU64; TAG_WAYS], key: u64) -> bool {
    // Most buckets are empty.
    let any = ways.iter().fold(0, |any, way| any | way.load(SeqCst));
    any != 0 && ways.iter().any(|way| is_tag_of(way.load(SeqCst), key))
}

fn is_tag_of(tag: u64, key: u64) -> bool {
    tag >> TAG_SHIFT == (key >> TAG_SHIFT | 1)
}

/// A slot that the calling thread holds. Dropped: withdrawn.
pub struct Draft<'a> {
    posts: &'a Posts,
    row: &'a SlotRow,
    id: PostId,
    worker: usize,
}

impl Draft<'_> {
    /// The slot.
    #[must_use]
    pub const fn id(&self) -> PostId {
        self.id
    }

    /// Lets `write` put the post into the slot; it returns the length.
    ///
    /// # Errors
    /// What `write` returns; `E2BIG` if its length exceeds the slot.
    pub fn write<E>(
        &mut self,
        write: impl FnOnce(&mut [u8]) -> core::result::Result<usize, E>,
    ) -> Result<()>
    where
        Errno: From<E>,
    {
        let at = Posts::at(self.id)? + MESSAGE;
        let segment = &self.posts.segment;
        let length = segment.with_own(at, POST_BYTES_MAX, write)?.map_err(Errno::from)?;
        if length > POST_BYTES_MAX {
            return Err(Errno::E2BIG);
        }
        self.row.length.store(length as u32, Relaxed);
        Ok(())
    }

    /// Announces a post about the name `key`. False if that name has one already: withdraw. If true,
    /// the caller looks at everything that could stand against the post, and commits or withdraws.
    ///
    /// # Errors
    /// Never for a slot that was claimed.
    pub fn announce(&self, key: u64) -> Result<bool> {
        let tag = tag_of(key, self.id);
        self.row.key.store(key, Relaxed);
        self.row.tag.store(tag, SeqCst);
        self.show(TENTATIVE)?;
        let tagged = self.posts.tag(self.worker, key, tag);
        fence(SeqCst);
        Ok(tagged)
    }

    /// Sets the bits that lead the worker to the slot, then the state: who is killed in between has
    /// done nothing.
    fn show(&self, state: u32) -> Result<()> {
        let (posts, PostId { session, slot }) = (self.posts, self.id);
        posts.pending(session, self.worker)?.fetch_or(1 << slot, SeqCst);
        posts.lead_to(session, self.worker)?;
        self.row.state.store(of_worker(state, self.worker), SeqCst);
        Ok(())
    }

    /// The post is done, unless the worker refused it: then false.
    pub fn commit(self) -> bool {
        let [from, to] = [TENTATIVE, COMMITTED].map(|state| of_worker(state, self.worker));
        let committed = self.row.state.compare_exchange(from, to, SeqCst, SeqCst).is_ok();
        if committed {
            core::mem::forget(self);
        }
        committed
    }

    /// A post against which nothing can stand is done at once.
    ///
    /// # Errors
    /// Never for a slot that was claimed.
    pub fn commit_at_once(self) -> Result<()> {
        self.show(COMMITTED)?;
        core::mem::forget(self);
        Ok(())
    }
}

impl Drop for Draft<'_> {
    fn drop(&mut self) {
        self.posts.release(self.id);
    }
}

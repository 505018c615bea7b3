//! Locks that are to end: a file and an owner, of which its shard is to be told. What stands here
//! outlives
//! who wrote it, be that a program or a daemon, until the shard has answered.
//!
//! Who ends locks notes them first, then tells the shard, then clears the row. Who gets no answer hands
//! the
//! row over to the home daemon of the host, which tells the shard until it answers. If he is killed in
//! between, the row is of a dead thread, which that daemon finds and takes over. What it finds that dead
//! processes had locked it notes as handed over.
//!
//! An owner's locks that ended late would take away what he locked since. Owners that are dead, and open
//! files that are closed, lock nothing more. A process may: it looks here first, and waits
//! (`is_handed_over`).
//!
//! Layout: `BUCKETS` buckets of `WAYS` rows of 24 bytes: state u64, inode u64, owner u64. States:
//!
//!   0 --note--> thread --filled--> thread | FILLED --cleared--> 0
//!                                    |  handed over, or taken over
//!                                    v
//!   0 --leave--> HANDED --filled--> HANDED | FILLED --answered--> 0
//!
//! A word behind the rows counts those that are not free: it is counted up before one is taken, and down
//! after one is freed. So where it is 0 there is nothing to look for, and who is killed in between leaves
//! it too high, which costs a look.
//!
//! A row that is not filled says nothing, and is free again once who took it is dead; of those that the
//! daemon was about to fill, once it looks again: it does both in one thread.

use super::{HostSegment, pages};
use crate::segment::Row as Words;
use crate::sync::AtomicU64;
use crate::wait;
use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use wire::Inode;
use wire::errno::Result;
use wire::hash::mix;

/// So many of the same hash: a bucket is full seldom before half of all rows are in use.
const WAYS: usize = 16;
const BUCKETS: usize = 1024;
const ROW: usize = 24;
const START: usize = pages::END;
/// The count, in a line of its own.
const COUNT_AT: usize = START + BUCKETS * WAYS * ROW;
pub(super) const END: usize = COUNT_AT + 64;

/// In a state: file and owner are there.
const FILLED: u64 = 1 << 32;
/// It is the daemon's to tell.
const HANDED: u64 = 1 << 33;
const THREAD: u64 = FILLED - 1;

/// The words of a row.
#[repr(C)]
struct Row {
    state: AtomicU64,
    inode: AtomicU64,
    owner: AtomicU64,
}

// SAFETY: atomics in the order of the list above. WHY: a bucket is looked at with each lock of a process.
unsafe impl Words for Row {}

const _: () = assert!(size_of::<Row>() == ROW && START.is_multiple_of(8));

/// The number of a row.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct ReleaseIndex(u32);

/// What a shard is to be told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Due {
    /// Its row.
    pub row: ReleaseIndex,
    /// The file.
    pub inode: Inode,
    /// Whose locks.
    pub owner: u64,
}

impl HostSegment {
    fn release_row(&self, index: ReleaseIndex) -> Result<&Row> {
        self.segment.row(START + index.0 as usize % (BUCKETS * WAYS) * ROW)
    }

    fn release_count(&self) -> Option<&AtomicU64> {
        self.segment.word64(COUNT_AT).ok()
    }

    /// A row was freed.
    fn release_freed(&self) {
        if let Some(count) = self.release_count() {
            count.fetch_sub(1, SeqCst);
        }
    }

    fn releases_in(bucket: usize) -> impl Iterator<Item = ReleaseIndex> {
        (bucket * WAYS..(bucket + 1) * WAYS).map(|row| ReleaseIndex(row as u32))
    }

    fn releases_like(inode: Inode, owner: u64) -> impl Iterator<Item = ReleaseIndex> {
        HostSegment::releases_in(mix(inode.0 ^ owner.rotate_left(32), 29) as usize % BUCKETS)
    }

    /// Takes a free row for `by` and fills it. `None` if there is none.
    fn release_put(&self, inode: Inode, owner: u64, by: u64) -> Option<ReleaseIndex> {
        let is_taken = |index: &ReleaseIndex| {
            let row = self.release_row(*index);
            row.is_ok_and(|row| row.state.compare_exchange(0, by, SeqCst, Relaxed).is_ok())
        };
        let count = self.release_count()?;
        count.fetch_add(1, SeqCst);
        let Some(index) = HostSegment::releases_like(inode, owner).find(is_taken) else {
            count.fetch_sub(1, SeqCst);
            return None;
        };
        let row = self.release_row(index).ok()?;
        row.inode.store(inode.0, SeqCst);
        row.owner.store(owner, SeqCst);
        row.state.store(by | FILLED, SeqCst);
        Some(index)
    }

    /// The calling thread is about to tell a shard that an owner's locks of a file end. `None` if too
    /// many
    /// are on their way.
    #[must_use]
    pub fn release_note(&self, inode: Inode, owner: u64) -> Option<ReleaseIndex> {
        self.release_put(inode, owner, u64::from(wait::thread_id()))
    }

    /// The shard has answered what the calling thread noted.
    pub fn release_clear(&self, index: ReleaseIndex) {
        self.release_end(index, u64::from(wait::thread_id()) | FILLED);
    }

    /// The calling thread got no answer: the home daemon is to tell the shard.
    pub fn release_hand_over(&self, index: ReleaseIndex) {
        let noted = u64::from(wait::thread_id()) | FILLED;
        if let Ok(row) = self.release_row(index) {
            let _ = row.state.compare_exchange(noted, HANDED | FILLED, SeqCst, Relaxed);
        }
    }

    /// As noted and handed over at once; nothing if it stands there already. False if too many do.
    #[must_use]
    pub fn release_leave(&self, inode: Inode, owner: u64) -> bool {
        self.is_handed_over(inode, owner) || self.release_put(inode, owner, HANDED).is_some()
    }

    /// True if the home daemon is to tell a shard that these locks end, or does so, and has no answer:
    /// what
    /// is locked now may end with them.
    #[must_use]
    pub fn is_handed_over(&self, inode: Inode, owner: u64) -> bool {
        HostSegment::releases_like(inode, owner).any(|index| {
            let Ok(row) = self.release_row(index) else { return false };
            let state = row.state.load(SeqCst);
            let is_it = state & FILLED != 0
                && row.inode.load(SeqCst) == inode.0
                && row.owner.load(SeqCst) == owner;
            is_it && (state & HANDED != 0 || wait::is_dead((state & THREAD) as u32))
        })
    }

    /// For the home daemon, by the thread that calls `release_leave`: takes over what threads noted that
    /// are
    /// gone, as `is_gone` says, and calls `each` with all that is to be told.
    pub fn release_list(&self, is_gone: &dyn Fn(u32) -> bool, each: &mut dyn FnMut(Due)) {
        if self.release_count().is_none_or(|count| count.load(SeqCst) == 0) {
            return;
        }
        for row in (0..BUCKETS).flat_map(HostSegment::releases_in) {
            let Ok(words) = self.release_row(row) else { return };
            if self.release_take_over(words, is_gone) {
                let inode = Inode(words.inode.load(SeqCst));
                each(Due { row, inode, owner: words.owner.load(SeqCst) });
            }
        }
    }

    /// True if the row is the daemon's to tell.
    fn release_take_over(&self, row: &Row, is_gone: &dyn Fn(u32) -> bool) -> bool {
        let state = row.state.load(SeqCst);
        let becomes = |to| row.state.compare_exchange(state, to, SeqCst, Relaxed).is_ok();
        if state == 0 || state == HANDED | FILLED {
            return state != 0;
        }
        if state & HANDED == 0 && !is_gone((state & THREAD) as u32) {
            return false;
        }
        let is_whole = state & !THREAD == FILLED;
        if is_whole {
            return becomes(HANDED | FILLED);
        }
        if becomes(0) {
            self.release_freed();
        }
        false
    }

    /// The shard has answered what the daemon told it.
    pub fn release_answered(&self, index: ReleaseIndex) {
        self.release_end(index, HANDED | FILLED);
    }

    fn release_end(&self, index: ReleaseIndex, state: u64) {
        let freed = self
            .release_row(index)
            .is_ok_and(|row| row.state.compare_exchange(state, 0, SeqCst, Relaxed).is_ok());
        if freed {
            self.release_freed();
        }
    }
}

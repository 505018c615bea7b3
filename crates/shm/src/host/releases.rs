//! Lock releases: a file and an owner whose locks end, of which the shard must be told. An entry
//! outlives the program or daemon that wrote it, until the shard has answered.
//!
//! A process that ends locks first notes them, then tells the shard, then clears the entry. If it
//! gets no answer, it hands the entry over to the home daemon of the host, which tells the shard
//! until it answers. If it is killed in between, the entry belongs to a dead thread, and that
//! daemon finds it and takes it over. The daemon enters the locks of dead processes as handed over.
//!
//! A release that comes late would take away locks that the owner took since. Dead owners and
//! closed open files take no more locks. A process may: it checks here first, and waits
//! (`is_handed_over`).
//!
//! Layout: `BUCKETS` buckets of `WAYS` entries of 24 bytes: state u64, inode u64, owner u64.
//! States:
//!
//!   0 --note--> thread --filled--> thread | FILLED --cleared--> 0
//!                                    |  handed over, or taken over
//!                                    v
//!   0 --leave--> HANDED --filled--> HANDED | FILLED --answered--> 0
//!
//! A word behind the entries counts those that are not free: it is incremented before one is taken,
//! and decremented after one is freed. So where it is 0 nothing needs to be searched, and a thread
//! killed in between leaves it too high, which costs a search.
//!
//! An entry that is not filled is void, and is free again once the thread that took it is dead; one
//! that the daemon was about to fill, at its next scan: the daemon fills and scans in one thread.

use super::{HostSegment, pages};
use crate::segment::SharedEntry;
use crate::sync::AtomicU64;
use crate::wait;
use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use wire::Inode;
use wire::errno::Result;
use wire::hash::mix;

/// Enough that a bucket is seldom full before half of all entries are in use.
const WAYS: usize = 16;
const BUCKETS: usize = 1024;
const ENTRY_BYTES: usize = 24;
const START: usize = pages::END;
/// Offset of the count, in a cache line of its own.
const COUNT_AT: usize = START + BUCKETS * WAYS * ENTRY_BYTES;
pub(super) const END: usize = COUNT_AT + 64;

/// In a state: file and owner are filled in.
const FILLED: u64 = 1 << 32;
/// In a state: the daemon must tell the shard.
const HANDED: u64 = 1 << 33;
const THREAD: u64 = FILLED - 1;

/// The fields of an entry.
#[repr(C)]
struct ReleaseEntry {
    state: AtomicU64,
    inode: AtomicU64,
    owner: AtomicU64,
}

// SAFETY: atomics in the order of the list above. WHY: a bucket is read for each lock of a process.
unsafe impl SharedEntry for ReleaseEntry {}

const _: () = assert!(size_of::<ReleaseEntry>() == ENTRY_BYTES && START.is_multiple_of(8));

/// The number of an entry.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct ReleaseIndex(u32);

/// A release that a shard is to be told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Due {
    /// Its entry.
    pub entry: ReleaseIndex,
    /// The file.
    pub inode: Inode,
    /// The owner of the locks.
    pub owner: u64,
}

impl HostSegment {
    fn release_entry(&self, index: ReleaseIndex) -> Result<&ReleaseEntry> {
        self.segment.entry(START + index.0 as usize % (BUCKETS * WAYS) * ENTRY_BYTES)
    }

    fn release_count(&self) -> Option<&AtomicU64> {
        self.segment.word64(COUNT_AT).ok()
    }

    /// Counts an entry that was freed.
    fn release_freed(&self) {
        if let Some(count) = self.release_count() {
            count.fetch_sub(1, SeqCst);
        }
    }

    fn releases_in(bucket: usize) -> impl Iterator<Item = ReleaseIndex> {
        (bucket * WAYS..(bucket + 1) * WAYS).map(|entry| ReleaseIndex(entry as u32))
    }

    fn releases_like(inode: Inode, owner: u64) -> impl Iterator<Item = ReleaseIndex> {
        HostSegment::releases_in(mix(inode.0 ^ owner.rotate_left(32), 29) as usize % BUCKETS)
    }

    /// Takes a free entry for `by` and fills it. `None` if there is none.
    fn release_put(&self, inode: Inode, owner: u64, by: u64) -> Option<ReleaseIndex> {
        let is_taken = |index: &ReleaseIndex| {
            let entry = self.release_entry(*index);
            entry.is_ok_and(|entry| entry.state.compare_exchange(0, by, SeqCst, Relaxed).is_ok())
        };
        let count = self.release_count()?;
        count.fetch_add(1, SeqCst);
        let Some(index) = HostSegment::releases_like(inode, owner).find(is_taken) else {
            count.fetch_sub(1, SeqCst);
            return None;
        };
        let entry = self.release_entry(index).ok()?;
        entry.inode.store(inode.0, SeqCst);
        entry.owner.store(owner, SeqCst);
        entry.state.store(by | FILLED, SeqCst);
        Some(index)
    }

    /// Notes that the calling thread is about to tell a shard that an owner's locks on a file end.
    /// `None` if too many releases are under way.
    #[must_use]
    pub fn release_note(&self, inode: Inode, owner: u64) -> Option<ReleaseIndex> {
        self.release_put(inode, owner, u64::from(wait::thread_id()))
    }

    /// The shard has answered the release that the calling thread noted.
    pub fn release_clear(&self, index: ReleaseIndex) {
        self.release_end(index, u64::from(wait::thread_id()) | FILLED);
    }

    /// The calling thread got no answer: the home daemon must tell the shard.
    pub fn release_hand_over(&self, index: ReleaseIndex) {
        let noted = u64::from(wait::thread_id()) | FILLED;
        if let Ok(entry) = self.release_entry(index) {
            let _ = entry.state.compare_exchange(noted, HANDED | FILLED, SeqCst, Relaxed);
        }
    }

    /// Notes a release and hands it over at once, unless it is there already. False if there are
    /// too many.
    #[must_use]
    pub fn release_leave(&self, inode: Inode, owner: u64) -> bool {
        self.is_handed_over(inode, owner) || self.release_put(inode, owner, HANDED).is_some()
    }

    /// True if the home daemon has to tell a shard that these locks end, and has no answer: locks
    /// taken now may end with them.
    #[must_use]
    pub fn is_handed_over(&self, inode: Inode, owner: u64) -> bool {
        HostSegment::releases_like(inode, owner).any(|index| {
            let Ok(entry) = self.release_entry(index) else { return false };
            let state = entry.state.load(SeqCst);
            let is_it = state & FILLED != 0
                && entry.inode.load(SeqCst) == inode.0
                && entry.owner.load(SeqCst) == owner;
            is_it && (state & HANDED != 0 || wait::is_dead((state & THREAD) as u32))
        })
    }

    /// For the home daemon, in the thread that calls `release_leave`: takes over the entries of
    /// threads that are gone, according to `is_gone`, and calls `each` with all releases to be
    /// told.
    pub fn release_list(&self, is_gone: &dyn Fn(u32) -> bool, each: &mut dyn FnMut(Due)) {
        if self.release_count().is_none_or(|count| count.load(SeqCst) == 0) {
            return;
        }
        for entry in (0..BUCKETS).flat_map(HostSegment::releases_in) {
            let Ok(words) = self.release_entry(entry) else { return };
            if self.release_take_over(words, is_gone) {
                let inode = Inode(words.inode.load(SeqCst));
                each(Due { entry, inode, owner: words.owner.load(SeqCst) });
            }
        }
    }

    /// True if the daemon has to tell the shard of this entry.
    fn release_take_over(&self, entry: &ReleaseEntry, is_gone: &dyn Fn(u32) -> bool) -> bool {
        let state = entry.state.load(SeqCst);
        let becomes = |to| entry.state.compare_exchange(state, to, SeqCst, Relaxed).is_ok();
        if state == 0 || state == HANDED | FILLED {
            return state != 0;
        }
        if state & HANDED == 0 && !is_gone((state & THREAD) as u32) {
            return false;
        }
        let is_complete = state & !THREAD == FILLED;
        if is_complete {
            return becomes(HANDED | FILLED);
        }
        if becomes(0) {
            self.release_freed();
        }
        false
    }

    /// The shard has answered a release that the daemon told it.
    pub fn release_answered(&self, index: ReleaseIndex) {
        self.release_end(index, HANDED | FILLED);
    }

    fn release_end(&self, index: ReleaseIndex, state: u64) {
        let freed = self
            .release_entry(index)
            .is_ok_and(|entry| entry.state.compare_exchange(state, 0, SeqCst, Relaxed).is_ok());
        if freed {
            self.release_freed();
        }
    }
}

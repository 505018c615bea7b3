//! Open inodes: the files that are open on this host.
//!
//! Layout: buckets of 64 bytes: a lock u32, then `WAYS` numbers u32, each of an entry plus one, or
//! 0; a bitmap of entries in use; the entries, of 64 bytes. Files that are open together are close
//! together: entries are taken from the front of a thread's lane (`Entries::take`), and files created
//! in sequence have neighbouring buckets, as every page that a process touches first costs it a
//! fault.
//!
//! An entry:
//!
//!   0   inode         u64
//!   8   uses          u64   bits 0..31 open file descriptions on it, 32 deleted: the shard keeps
//!                           it only because it is open here, 33 live, 34..63 generation of the
//!                           entry
//!   16  sizes         u64   as far as this host knows, and the truncate epoch (`sizes`)
//!   24  dirty_end     u64   end of the bytes written since the last report to the shard; 0: none
//!   32  marks         u64   bits 0..1 of `owners`, 8..31 of `in_flight`, 32..63 of `watches`; zero
//!                           when a file is first opened
//!   40  pending       u32   writes on their way to other hosts (`pending`)
//!   44  failed        u32   errno of one that failed; 0: none
//!   48  changes       u64   counts beginnings and ends of changes on this host, for readahead
//!   56  truncated_to  u64   the last truncation (`sizes`)
//!
//! Every count is one compare and exchange of `uses`, which holds the generation: a thread that was
//! stopped since it read the entry finds that the entry is another's. The thread that clears the
//! live bit, once the count is zero, frees the entry: it alone removes it from its bucket and
//! returns it. A thread that counts itself in helps one that did not get that far.
//!
//! The lock of a bucket keeps two threads from inserting a file at the same time, and no more: a
//! stopped thread may hold it, for which nobody waits long, and which resumes later. A thread that
//! proceeds without the lock records that in it (`PASSED`). Both check again, once their entry is
//! there, whether the file has another, and remove theirs if nobody else is counted in it.
//!
//! Deleting and opening meet here: an opener inserts, then checks again whether the file exists;
//! the shard makes the file unfindable, then calls `mark_deleted`. One of the two sees the other.

use super::{Entries, HostSegment, TABLES, each_bit, give_entry, lock_briefly, pending};
use crate::segment::SharedEntry;
use crate::sync::{AtomicU32, AtomicU64, fence};
use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use wire::Inode;
use wire::errno::{Errno, Result};
use wire::hash::neighbourly;

const WAYS: usize = 15;
const BUCKETS: usize = 32 * 1024;
const BUCKET: usize = 64;
/// Maximum number of open inodes, the same as of open file descriptions (`files`).
const VNODE_ENTRY_COUNT: usize = super::files::FILE_COUNT;
const ENTRY_BYTES: usize = 64;
const START: usize = TABLES;
const BITMAP: usize = START + BUCKETS * BUCKET;
const ENTRIES: usize = BITMAP + VNODE_ENTRY_COUNT / 8;
pub(super) const END: usize = ENTRIES + VNODE_ENTRY_COUNT * ENTRY_BYTES;
/// End of the entries of all lanes.
pub(super) const LANES_END: usize = ENTRIES + super::LANE_ENTRIES * ENTRY_BYTES;
/// Its hint in a lane.
const HINT: usize = 4;
const TABLE: Entries = Entries {
    bitmap: BITMAP,
    base: ENTRIES,
    count: VNODE_ENTRY_COUNT,
    bytes: ENTRY_BYTES,
    field: HINT,
};

const OPENS: u64 = u32::MAX as u64;
const DELETED: u64 = 1 << 32;
const LIVE: u64 = 1 << 33;
/// Increment of `uses` for one generation.
const GENERATION_ONE: u64 = 1 << 34;

/// The word of an entry that is freed: the next generation, with a count of zero.
const fn freed_uses(uses: u64) -> u64 {
    (uses & !(GENERATION_ONE - 1)).wrapping_add(GENERATION_ONE)
}

/// A file that is open on this host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VnodeIndex(pub u32);

/// State of the file after a close.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Closed {
    /// It is not open on this host any more.
    pub last: bool,
    /// It has no name any more: the last closer tells the shard.
    pub deleted: bool,
}

/// The fields of an open inode, in shared memory.
#[repr(C)]
pub struct Vnode {
    /// Its inode number.
    pub inode: AtomicU64,
    uses: AtomicU64,
    pub(super) sizes: AtomicU64,
    /// End of the bytes written and not reported to the shard; 0: none.
    pub dirty_end: AtomicU64,
    /// For the client's own use, and `in_flight`.
    pub marks: AtomicU64,
    pub(super) pending: AtomicU32,
    pub(super) failed: AtomicU32,
    /// Counts beginnings and ends of changes on this host.
    pub changes: AtomicU64,
    pub(super) truncated_to: AtomicU64,
}

// SAFETY: atomics in the order of the table above. WHY: an entry is read for each open and close.
unsafe impl SharedEntry for Vnode {}

const _: () = assert!(size_of::<Vnode>() == ENTRY_BYTES);

impl Vnode {
    /// Open count.
    #[must_use]
    pub fn opens(&self) -> u32 {
        let uses = self.uses.load(SeqCst);
        if uses & LIVE == 0 { 0 } else { uses as u32 }
    }

    /// The word of its uses while it is an entry of `inode`, to be confirmed by a compare and
    /// exchange of the word: the inode number is stored before the entry is live, and removed
    /// after.
    fn uses_of(&self, inode: Inode) -> Option<u64> {
        let uses = self.uses.load(SeqCst);
        (uses & LIVE != 0 && self.inode.load(SeqCst) == inode.0).then_some(uses)
    }

    fn exchange(&self, from: u64, to: u64) -> bool {
        self.uses.compare_exchange(from, to, SeqCst, Relaxed).is_ok()
    }
}

impl HostSegment {
    fn bucket(inode: Inode) -> usize {
        START + (neighbourly(inode, 11) as usize % BUCKETS) * BUCKET
    }

    fn vnode_at(index: VnodeIndex) -> Result<usize> {
        let entry = index.0 as usize;
        if entry < VNODE_ENTRY_COUNT { Ok(ENTRIES + entry * ENTRY_BYTES) } else { Err(Errno::EIO) }
    }

    fn ways(&self, bucket: usize) -> &[AtomicU32] {
        self.segment.shorts::<WAYS>(bucket + 4).map_or(&[], |ways| ways)
    }

    /// Calls `each` with the live entries of `inode` until it returns true; returns that entry.
    fn any_entry(
        &self,
        bucket: usize,
        inode: Inode,
        each: impl Fn(VnodeIndex, &Vnode) -> bool,
    ) -> Option<VnodeIndex> {
        let ways = self.ways(bucket);
        // Most buckets are empty.
        if ways.iter().fold(0, |any, way| any | way.load(SeqCst)) == 0 {
            return None;
        }
        for way in ways {
            let number = way.load(SeqCst);
            if number == 0 {
                continue;
            }
            let index = VnodeIndex(number - 1);
            let Ok(entry) = self.vnode(index) else { continue };
            if entry.uses_of(inode).is_some() && each(index, entry) {
                return Some(index);
            }
        }
        None
    }

    /// Adds an open of `inode` on this host.
    ///
    /// # Errors
    /// `ENFILE` if too many files are open.
    pub fn vnode_open(&self, inode: Inode) -> Result<VnodeIndex> {
        let bucket = HostSegment::bucket(inode);
        let guard = lock_briefly(self.segment.word32(bucket)?);
        loop {
            if let Some(index) = self.vnode_join(bucket, inode) {
                return Ok(index);
            }
            let (index, uses) = self.vnode_insert(bucket, inode)?;
            let is_other = |other: VnodeIndex, entry: &Vnode| other != index && entry.opens() != 0;
            let is_only = guard.is_sole() || self.any_entry(bucket, inode, is_other).is_none();
            // Once another thread is counted in it, it stays.
            if is_only || !self.vnode(index)?.exchange(uses, freed_uses(uses)) {
                return Ok(index);
            }
            self.vnode_free(inode, index)?;
        }
    }

    /// Adds an open where the file is open already.
    fn vnode_join(&self, bucket: usize, inode: Inode) -> Option<VnodeIndex> {
        let found = self.any_entry(bucket, inode, |index, entry| {
            while let Some(uses) = entry.uses_of(inode) {
                if uses & OPENS == 0 {
                    // The last closer did not finish.
                    let _ = self.vnode_forget(inode, index, uses);
                    break;
                }
                if uses & OPENS == OPENS {
                    break;
                }
                if entry.exchange(uses, uses + 1) {
                    return true;
                }
            }
            false
        })?;
        fence(SeqCst);
        Some(found)
    }

    /// Inserts a new entry of `inode` into its bucket, with one open. Returns its number and its
    /// word.
    fn vnode_insert(&self, bucket: usize, inode: Inode) -> Result<(VnodeIndex, u64)> {
        let index = VnodeIndex(TABLE.take(&self.segment)?);
        let entry = self.vnode(index)?;
        // A process may have closed the file before without waiting for its writes.
        entry.pending.store(pending::next_epoch(entry.pending.load(Relaxed)), Relaxed);
        entry.failed.store(0, Relaxed);
        for word in
            [&entry.sizes, &entry.dirty_end, &entry.marks, &entry.changes, &entry.truncated_to]
        {
            word.store(0, Relaxed);
        }
        entry.inode.store(inode.0, SeqCst);
        let uses = entry.uses.load(Relaxed) & !(GENERATION_ONE - 1) | LIVE | 1;
        entry.uses.store(uses, SeqCst);
        let mut ways = self.ways(bucket).iter();
        if !ways.any(|way| way.compare_exchange(0, index.0 + 1, SeqCst, Relaxed).is_ok()) {
            entry.uses.store(freed_uses(uses), SeqCst);
            self.vnode_free(inode, index)?;
            return Err(Errno::ENFILE);
        }
        fence(SeqCst);
        Ok((index, uses))
    }

    /// Frees an entry with a count of zero and the word `uses`, unless another thread does.
    fn vnode_forget(&self, inode: Inode, index: VnodeIndex, uses: u64) -> Result<()> {
        let is_ours = self.vnode(index)?.exchange(uses, freed_uses(uses));
        if is_ours { self.vnode_free(inode, index) } else { Ok(()) }
    }

    /// Removes an entry, which is not live any more, from its bucket and frees it.
    fn vnode_free(&self, inode: Inode, index: VnodeIndex) -> Result<()> {
        let mut ways = self.ways(HostSegment::bucket(inode)).iter();
        if let Some(way) = ways.find(|way| way.load(Relaxed) == index.0 + 1) {
            way.store(0, SeqCst);
        }
        self.vnode(index)?.inode.store(0, SeqCst);
        give_entry(&self.segment, BITMAP, index.0, HINT)
    }

    /// Removes an open of `inode`.
    ///
    /// # Errors
    /// `EIO` for an index that is not that of `inode`.
    pub fn vnode_close(&self, inode: Inode, index: VnodeIndex) -> Result<Closed> {
        self.vnode_uncount(inode, index, 1)
    }

    /// Removes `opens` opens of `inode`.
    ///
    /// # Errors
    /// As `vnode_close`.
    pub fn vnode_uncount(&self, inode: Inode, index: VnodeIndex, opens: u32) -> Result<Closed> {
        let entry = self.vnode(index)?;
        loop {
            let before = entry.uses_of(inode).ok_or(Errno::EIO)?;
            let (count, less) = (before & OPENS, u64::from(opens));
            let last = count <= less;
            let after = if count < less { before } else { before - less };
            if !entry.exchange(before, after) {
                continue;
            }
            if last {
                self.vnode_forget(inode, index, after)?;
            }
            return Ok(Closed { last, deleted: before & DELETED != 0 });
        }
    }

    /// Frees an entry that is in no bucket: its thread was killed before it inserted it, or after
    /// it removed it. Only for an entry that no living thread works with.
    pub fn vnode_free_lost(&self, inode: Inode, index: VnodeIndex) {
        let Ok(vnode) = self.vnode(index) else { return };
        let is_same = vnode.inode.load(SeqCst) == inode.0;
        if is_same && (inode.is_none() || self.vnode_find(inode) != Some(index)) {
            vnode.uses.store(freed_uses(vnode.uses.load(SeqCst)), SeqCst);
            let _ = self.vnode_free(inode, index);
        }
    }

    /// The entry of a file, if it is open here.
    #[must_use]
    pub fn vnode_find(&self, inode: Inode) -> Option<VnodeIndex> {
        self.any_entry(HostSegment::bucket(inode), inode, |_, _| true)
    }

    /// Its entries: two, if a thread that was stopped while it counted itself in resumed later.
    pub(super) fn entries_of(&self, inode: Inode) -> impl Iterator<Item = &Vnode> {
        let ways = self.ways(HostSegment::bucket(inode)).iter();
        let entries = ways.filter_map(|way| way.load(SeqCst).checked_sub(1));
        let entries = entries.filter_map(|entry| self.vnode(VnodeIndex(entry)).ok());
        entries.filter(move |vnode| vnode.inode.load(SeqCst) == inode.0)
    }

    /// True if the file has no name any more.
    #[must_use]
    pub fn vnode_is_deleted(&self, index: VnodeIndex) -> bool {
        self.vnode(index).is_ok_and(|vnode| vnode.uses.load(SeqCst) & DELETED != 0)
    }

    /// Calls `each` for every entry in use. An entry that is inserted right now may be missing.
    pub fn vnode_list(&self, each: &mut dyn FnMut(VnodeIndex, &Vnode)) {
        each_bit(&self.segment, BITMAP, VNODE_ENTRY_COUNT / 64, &mut |entry| {
            if let Ok(vnode) = self.vnode(VnodeIndex(entry)) {
                each(VnodeIndex(entry), vnode);
            }
        });
    }

    /// The fields of an open inode.
    ///
    /// # Errors
    /// `EIO` for an index out of range.
    #[inline]
    pub fn vnode(&self, index: VnodeIndex) -> Result<&Vnode> {
        self.segment.entry(HostSegment::vnode_at(index)?)
    }

    /// True if a file is open here, or about to be. For the shard: a process that opens it after this
    /// check sees what the shard changed before.
    #[must_use]
    pub fn is_open(&self, inode: Inode) -> bool {
        fence(SeqCst);
        self.vnode_find(inode).is_some()
    }

    /// For the shard, after it made a file unfindable: true if it is open here; the last close
    /// then says so (`Closed::deleted`).
    #[must_use]
    pub fn mark_deleted(&self, inode: Inode) -> bool {
        fence(SeqCst);
        // A process that opens it after this check finds that it is gone. Most files are not open.
        let marked = core::cell::Cell::new(false);
        let _ = self.any_entry(HostSegment::bucket(inode), inode, |_, entry| {
            while let Some(uses) = entry.uses_of(inode).filter(|uses| uses & OPENS != 0) {
                if entry.exchange(uses, uses | DELETED) {
                    marked.set(true);
                    break;
                }
            }
            false
        });
        marked.get()
    }
}

//! Files that are open on this host.
//!
//! Layout: buckets of 64 bytes: a lock u32, then `WAYS` numbers u32, each of a row plus one, or 0;
//! a bitmap of rows in use; the rows, of 64 bytes. Files that are open together lie close together:
//! rows are taken from the front of a thread's lane (`take_row`), and files that were made one after
//! the other have neighbouring buckets, as every page that a process comes to first costs it a fault.
//! A row:
//!
//!   0   inode      u64
//!   8   uses       u64   bits 0..31 open file descriptions on it, 32 deleted: the shard keeps it only
//!                        because it is open here, 33 live, 34..63 how often the row was given back
//!   16  sizes      u64   as far as this host knows, and how often it was cut (`lengths`)
//!   24  dirty_end  u64   end of what was written since the shard was told; 0: all is told
//!   32  marks      u64   bits 0..1 of `owners`, 8..31 of `flights`, 32..63 of `watches`; zero when a
//!                        file is first opened
//!   40  pending    u32   what was written and is on its way to other hosts (`pending`)
//!   44  failed     u32   errno of what did not arrive there; 0: none
//!   48  changes    u64   counts beginnings and ends of changes on this host, where bytes are fetched
//!                        ahead
//!   56  cut_to     u64   the last cut (`lengths`)
//!
//! All that counts is one compare and exchange of `uses`, which holds how often the row was given back:
//! whoever stood still since he looked at a row finds that it is another's. Who takes away the live
//! bit, once nothing is counted, frees the row: he alone clears its way and gives it back. Who counts
//! himself in helps one who did not come so far.
//!
//! The lock of a bucket keeps two from putting a file in at a time, and no more: a stopped process may
//! hold it, whom nobody waits for long, and who goes on later. Whoever passes by says so in the lock
//! (`PASSED`). Both look again, once their row is there, whether the file has another, and take theirs
//! out if nobody else is counted in it.
//!
//! Deleting and opening meet here: an opener inserts, then looks again whether the file exists; the
//! shard makes the file unfindable, then asks `mark_deleted`. One of the two sees the other.

use super::{HostSegment, TABLES, each_bit, give_row, lock_briefly, take_row};
use crate::segment::Row;
use crate::sync::{AtomicU32, AtomicU64, fence};
use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use wire::Inode;
use wire::errno::{Errno, Result};
use wire::hash::neighbourly;

const WAYS: usize = 15;
const BUCKETS: usize = 32 * 1024;
const BUCKET: usize = 64;
/// Files that are open at a time, as many as open file descriptions (`files`).
const ROW_COUNT: usize = super::files::FILE_COUNT;
const ROW: usize = 64;
const START: usize = TABLES;
const BITMAP: usize = START + BUCKETS * BUCKET;
const ROWS: usize = BITMAP + ROW_COUNT / 8;
pub(super) const END: usize = ROWS + ROW_COUNT * ROW;
/// Its hint in a lane.
const HINT: usize = 4;

const OPENS: u64 = u32::MAX as u64;
const DELETED: u64 = 1 << 32;
const LIVE: u64 = 1 << 33;
/// What one use of the row more adds to its word.
const GENERATION_ONE: u64 = 1 << 34;

/// The word of a row that is given back: the next use, in which nothing is counted yet.
const fn given_back(uses: u64) -> u64 {
    (uses & !(GENERATION_ONE - 1)).wrapping_add(GENERATION_ONE)
}

/// A file that is open on this host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VnodeIndex(pub u32);

/// How a close left the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Closed {
    /// It is open nowhere on this host any more.
    pub last: bool,
    /// It has no name any more: who closed last tells the shard.
    pub deleted: bool,
}

/// The words of an open file, as they lie in its row.
#[repr(C)]
pub struct Vnode {
    /// Its inode number.
    pub inode: AtomicU64,
    uses: AtomicU64,
    pub(super) sizes: AtomicU64,
    /// End of what was written and not told to the shard; 0: nothing.
    pub dirty_end: AtomicU64,
    /// For the client's own use, and `flights`.
    pub marks: AtomicU64,
    pub(super) pending: AtomicU32,
    pub(super) failed: AtomicU32,
    /// Counts beginnings and ends of changes on this host.
    pub changes: AtomicU64,
    pub(super) cut_to: AtomicU64,
}

// SAFETY: atomics in the order of the table above. WHY: a row is looked at with each open and close.
unsafe impl Row for Vnode {}

const _: () = assert!(size_of::<Vnode>() == ROW);

impl Vnode {
    /// How often it is open.
    #[must_use]
    pub fn opens(&self) -> u32 {
        let uses = self.uses.load(SeqCst);
        if uses & LIVE == 0 { 0 } else { uses as u32 }
    }

    /// The word of its uses while it is a row of `inode`, which a compare and exchange of the word
    /// then confirms: the number is there before the row is live, and goes after.
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
        let row = index.0 as usize;
        if row < ROW_COUNT { Ok(ROWS + row * ROW) } else { Err(Errno::EIO) }
    }

    fn ways(&self, bucket: usize) -> &[AtomicU32] {
        self.segment.shorts::<WAYS>(bucket + 4).map_or(&[], |ways| ways)
    }

    /// Calls `each` with the rows of `inode` that are live until it says true; then that row.
    fn any_row(
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
            let Ok(row) = self.vnode(index) else { continue };
            if row.uses_of(inode).is_some() && each(index, row) {
                return Some(index);
            }
        }
        None
    }

    /// One more open of `inode` on this host.
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
            let is_other = |other: VnodeIndex, row: &Vnode| other != index && row.opens() != 0;
            let is_only = guard.is_sole() || self.any_row(bucket, inode, is_other).is_none();
            // Once somebody else is counted in it, it stays.
            if is_only || !self.vnode(index)?.exchange(uses, given_back(uses)) {
                return Ok(index);
            }
            self.vnode_free(inode, index)?;
        }
    }

    /// Counts in where the file is open already.
    fn vnode_join(&self, bucket: usize, inode: Inode) -> Option<VnodeIndex> {
        let found = self.any_row(bucket, inode, |index, row| {
            while let Some(uses) = row.uses_of(inode) {
                if uses & OPENS == 0 {
                    // Who closed it last did not come to his end.
                    let _ = self.vnode_forget(inode, index, uses);
                    break;
                }
                if uses & OPENS == OPENS {
                    break;
                }
                if row.exchange(uses, uses + 1) {
                    return true;
                }
            }
            false
        })?;
        fence(SeqCst);
        Some(found)
    }

    /// Puts a new row of `inode` into its bucket, with one open. Its number and its word.
    fn vnode_insert(&self, bucket: usize, inode: Inode) -> Result<(VnodeIndex, u64)> {
        let index = VnodeIndex(take_row(&self.segment, BITMAP, ROW_COUNT / 64, HINT)?);
        let row = self.vnode(index)?;
        for word in [&row.pending, &row.failed] {
            word.store(0, Relaxed);
        }
        for word in [&row.sizes, &row.dirty_end, &row.marks, &row.changes, &row.cut_to] {
            word.store(0, Relaxed);
        }
        row.inode.store(inode.0, SeqCst);
        let uses = row.uses.load(Relaxed) & !(GENERATION_ONE - 1) | LIVE | 1;
        row.uses.store(uses, SeqCst);
        let mut ways = self.ways(bucket).iter();
        if !ways.any(|way| way.compare_exchange(0, index.0 + 1, SeqCst, Relaxed).is_ok()) {
            row.uses.store(given_back(uses), SeqCst);
            self.vnode_free(inode, index)?;
            return Err(Errno::ENFILE);
        }
        fence(SeqCst);
        Ok((index, uses))
    }

    /// Frees a row in which nothing is counted, whose word is `uses`, unless another does.
    fn vnode_forget(&self, inode: Inode, index: VnodeIndex, uses: u64) -> Result<()> {
        let is_ours = self.vnode(index)?.exchange(uses, given_back(uses));
        if is_ours { self.vnode_free(inode, index) } else { Ok(()) }
    }

    /// Takes a row, which is not live any more, out of its bucket and gives it back.
    fn vnode_free(&self, inode: Inode, index: VnodeIndex) -> Result<()> {
        let mut ways = self.ways(HostSegment::bucket(inode)).iter();
        if let Some(way) = ways.find(|way| way.load(Relaxed) == index.0 + 1) {
            way.store(0, SeqCst);
        }
        self.vnode(index)?.inode.store(0, SeqCst);
        give_row(&self.segment, BITMAP, index.0, HINT)
    }

    /// One open of `inode` less.
    ///
    /// # Errors
    /// `EIO` for a number that is not that of `inode`.
    pub fn vnode_close(&self, inode: Inode, index: VnodeIndex) -> Result<Closed> {
        self.vnode_uncount(inode, index, 1)
    }

    /// As many opens of `inode` less.
    ///
    /// # Errors
    /// As `vnode_close`.
    pub fn vnode_uncount(&self, inode: Inode, index: VnodeIndex, opens: u32) -> Result<Closed> {
        let row = self.vnode(index)?;
        loop {
            let before = row.uses_of(inode).ok_or(Errno::EIO)?;
            let (count, less) = (before & OPENS, u64::from(opens));
            let last = count <= less;
            let after = if count < less { before } else { before - less };
            if !row.exchange(before, after) {
                continue;
            }
            if last {
                self.vnode_forget(inode, index, after)?;
            }
            return Ok(Closed { last, deleted: before & DELETED != 0 });
        }
    }

    /// Frees a row that is in no bucket: who took it was killed before he put it there, or after he
    /// took it out. Only for a row that nobody living works with.
    pub fn vnode_free_lost(&self, inode: Inode, index: VnodeIndex) {
        let Ok(vnode) = self.vnode(index) else { return };
        let is_same = vnode.inode.load(SeqCst) == inode.0;
        if is_same && (inode.is_none() || self.vnode_find(inode) != Some(index)) {
            vnode.uses.store(given_back(vnode.uses.load(SeqCst)), SeqCst);
            let _ = self.vnode_free(inode, index);
        }
    }

    /// The row of a file, if it is open here.
    #[must_use]
    pub fn vnode_find(&self, inode: Inode) -> Option<VnodeIndex> {
        self.any_row(HostSegment::bucket(inode), inode, |_, _| true)
    }

    /// Its rows: two, if who was stopped while he counted it in went on later.
    pub(super) fn rows_of(&self, inode: Inode) -> impl Iterator<Item = &Vnode> {
        let ways = self.ways(HostSegment::bucket(inode)).iter();
        let rows = ways.filter_map(|way| way.load(SeqCst).checked_sub(1));
        let rows = rows.filter_map(|row| self.vnode(VnodeIndex(row)).ok());
        rows.filter(move |vnode| vnode.inode.load(SeqCst) == inode.0)
    }

    /// True if the file has no name any more.
    #[must_use]
    pub fn vnode_is_deleted(&self, index: VnodeIndex) -> bool {
        self.vnode(index).is_ok_and(|vnode| vnode.uses.load(SeqCst) & DELETED != 0)
    }

    /// Every row in use. What is counted in right now may be missing.
    pub fn vnode_list(&self, each: &mut dyn FnMut(VnodeIndex, &Vnode)) {
        each_bit(&self.segment, BITMAP, ROW_COUNT / 64, &mut |row| {
            if let Ok(vnode) = self.vnode(VnodeIndex(row)) {
                each(VnodeIndex(row), vnode);
            }
        });
    }

    /// The words of an open file.
    ///
    /// # Errors
    /// `EIO` for a number that is none.
    #[inline]
    pub fn vnode(&self, index: VnodeIndex) -> Result<&Vnode> {
        self.segment.row(HostSegment::vnode_at(index)?)
    }

    /// For the shard, after it made a file unfindable: true if it is open here; the last close
    /// then says so (`Closed::deleted`).
    #[must_use]
    pub fn mark_deleted(&self, inode: Inode) -> bool {
        fence(SeqCst);
        // Who opens it after this look finds that it is gone. Most files are open nowhere.
        let marked = core::cell::Cell::new(false);
        let _ = self.any_row(HostSegment::bucket(inode), inode, |_, row| {
            while let Some(uses) = row.uses_of(inode).filter(|uses| uses & OPENS != 0) {
                if row.exchange(uses, uses | DELETED) {
                    marked.set(true);
                    break;
                }
            }
            false
        });
        marked.get()
    }
}

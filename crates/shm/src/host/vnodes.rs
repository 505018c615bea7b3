//! Files that are open on this host.
//!
//! Layout: buckets of 64 bytes: a lock u32, then `WAYS` numbers u32, each of a row plus one, or 0;
//! a bitmap of rows in use; the rows, of 64 bytes. Files that are open together lie close together:
//! rows are taken from the front of a thread's lane (`take_row`), and files that were made one after
//! the other have neighbouring buckets, as every page that a process comes to first costs it a fault.
//! A row:
//!
//!   0   inode      u64
//!   8   opens      u32   open file descriptions on it
//!   12  flags      u32   DELETED: the shard keeps it only because it is open here
//!   16  sizes      u64   as far as this host knows, and how often it was cut (`lengths`)
//!   24  dirty_end  u64   end of what was written since the shard was told; 0: all is told
//!   32  marks      u64   bits for the client's own use; zero when a file is first opened
//!   40  pending    u32   what was written and is on its way to other hosts (`pending`)
//!   44  failed     u32   errno of what did not arrive there; 0: none
//!   48  changes    u64   counts beginnings and ends of changes on this host, where bytes are fetched
//!                        ahead
//!   56  cut_to     u64   the last cut (`lengths`)
//!
//! The lock keeps two from counting a file in at a time, and no more: a stopped process may hold it,
//! whom nobody waits for long, and who goes on later. So whoever counts a file down to zero takes its
//! row out of the bucket, by compare and exchange, and who did that frees the row.
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

const DELETED: u32 = 1;

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
    /// How often it is open.
    pub opens: AtomicU32,
    flags: AtomicU32,
    pub(super) sizes: AtomicU64,
    /// End of what was written and not told to the shard; 0: nothing.
    pub dirty_end: AtomicU64,
    /// For the client's own use.
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

    /// The way of `inode` in its bucket and its row, if it is open here.
    fn way_of(&self, bucket: usize, inode: Inode) -> Option<(&AtomicU32, VnodeIndex)> {
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
            if self.vnode(index).is_ok_and(|vnode| vnode.inode.load(SeqCst) == inode.0) {
                return Some((way, index));
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
        let _guard = lock_briefly(self.segment.word32(bucket)?);
        if let Some((way, index)) = self.way_of(bucket, inode) {
            let opens = &self.vnode(index)?.opens;
            if opens.fetch_update(SeqCst, SeqCst, one_more).is_ok() {
                fence(SeqCst);
                return Ok(index);
            }
            // The last one to close it did not come to its end.
            self.vnode_forget(way, index)?;
        }
        let index = VnodeIndex(take_row(&self.segment, BITMAP, ROW_COUNT / 64, HINT)?);
        let row = self.vnode(index)?;
        for word in [&row.flags, &row.pending, &row.failed] {
            word.store(0, Relaxed);
        }
        for word in [&row.sizes, &row.dirty_end, &row.marks, &row.changes, &row.cut_to] {
            word.store(0, Relaxed);
        }
        row.opens.store(1, Relaxed);
        row.inode.store(inode.0, SeqCst);
        let mut ways = self.ways(bucket).iter();
        if !ways.any(|way| way.compare_exchange(0, index.0 + 1, SeqCst, Relaxed).is_ok()) {
            self.vnode_free(index)?;
            return Err(Errno::ENFILE);
        }
        fence(SeqCst);
        Ok(index)
    }

    /// Takes a row out of its bucket and frees it, unless another does.
    fn vnode_forget(&self, way: &AtomicU32, index: VnodeIndex) -> Result<()> {
        let was_here = way.compare_exchange(index.0 + 1, 0, SeqCst, Relaxed).is_ok();
        if was_here { self.vnode_free(index) } else { Ok(()) }
    }

    fn vnode_free(&self, index: VnodeIndex) -> Result<()> {
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
        let bucket = HostSegment::bucket(inode);
        let _guard = lock_briefly(self.segment.word32(bucket)?);
        let mut ways = self.ways(bucket).iter();
        let way = ways.find(|way| way.load(Relaxed) == index.0.wrapping_add(1));
        let (way, vnode) = (way.ok_or(Errno::EIO)?, self.vnode(index)?);
        if vnode.inode.load(Relaxed) != inode.0 {
            return Err(Errno::EIO);
        }
        let before = vnode.opens.fetch_update(SeqCst, SeqCst, |now| now.checked_sub(opens));
        let last = before.unwrap_or(0) <= opens;
        let deleted = vnode.flags.load(SeqCst) & DELETED != 0;
        if last {
            self.vnode_forget(way, index)?;
        }
        Ok(Closed { last, deleted })
    }

    /// Frees a row that is in no bucket: who took it was killed before he put it there, or after he
    /// took it out. Only for a row that nobody living works with.
    pub fn vnode_free_lost(&self, inode: Inode, index: VnodeIndex) {
        let Ok(vnode) = self.vnode(index) else { return };
        let is_same = vnode.inode.load(SeqCst) == inode.0;
        if is_same && (inode.is_none() || self.vnode_find(inode) != Some(index)) {
            let _ = self.vnode_free(index);
        }
    }

    /// The row of a file, if it is open here.
    #[must_use]
    pub fn vnode_find(&self, inode: Inode) -> Option<VnodeIndex> {
        self.way_of(HostSegment::bucket(inode), inode).map(|(_, index)| index)
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
        self.vnode(index).is_ok_and(|vnode| vnode.flags.load(SeqCst) & DELETED != 0)
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
        let bucket = HostSegment::bucket(inode);
        // Who opens it after this look finds that it is gone. Most files are open nowhere.
        if self.vnode_find(inode).is_none() {
            return false;
        }
        let Ok(word) = self.segment.word32(bucket) else { return false };
        let _guard = lock_briefly(word);
        let Some(index) = self.vnode_find(inode) else { return false };
        self.vnode(index).is_ok_and(|vnode| {
            vnode.flags.fetch_or(DELETED, SeqCst);
            true
        })
    }
}

/// A count that was zero stays: its row is about to go.
const fn one_more(opens: u32) -> Option<u32> {
    if opens == 0 { None } else { opens.checked_add(1) }
}

//! Files that are open on this host.
//!
//! Layout: buckets of `WAYS` rows of 64 bytes behind 64 bytes of their own: a lock u32, and `used` u32,
//! bit i: look at row i. The bit is set before the row and cleared after it, so who was killed
//! between the two left a bit with a free row. A row:
//!
//!   0   inode      u64   0: free
//!   8   opens      u32   open file descriptions on it
//!   12  flags      u32   DELETED: the shard keeps it only because it is open here
//!   16  size       u64   as far as this host knows
//!   24  dirty_end  u64   end of what was written since the shard was told; 0: all is told
//!   32  marks      u64   bits for the client's own use; zero when a file is first opened
//!
//! Deleting and opening meet here: an opener inserts, then looks again whether the file exists; the
//! shard makes the file unfindable, then asks `mark_deleted`. One of the two sees the other.

use super::{HostSegment, TABLES, lock};
use crate::sync::{AtomicU32, AtomicU64, fence};
use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use wire::Inode;
use wire::errno::{Errno, Result};
use wire::hash::mix;

const WAYS: usize = 31;
const BUCKETS: usize = 8192;
const ROW: usize = 64;
const BUCKET: usize = ROW * (WAYS + 1);
const START: usize = TABLES;
pub(super) const END: usize = START + BUCKETS * BUCKET;

/// Of a bucket: bits of its rows.
const USED: usize = 4;
const _: () = assert!(WAYS < 32);

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

/// The words of an open file.
pub struct Vnode<'a> {
    /// Its inode number.
    pub inode: &'a AtomicU64,
    /// How often it is open.
    pub opens: &'a AtomicU32,
    /// Size as far as this host knows.
    pub size: &'a AtomicU64,
    /// End of what was written and not told to the shard; 0: nothing.
    pub dirty_end: &'a AtomicU64,
    /// For the client's own use.
    pub marks: &'a AtomicU64,
}

impl HostSegment {
    fn bucket(inode: Inode) -> usize {
        START + (mix(inode.0, 11) as usize % BUCKETS) * BUCKET
    }

    fn vnode_at(index: VnodeIndex) -> Result<usize> {
        let (bucket, way) = (index.0 as usize / WAYS, index.0 as usize % WAYS);
        if bucket >= BUCKETS {
            return Err(Errno::EIO);
        }
        Ok(START + bucket * BUCKET + ROW * (way + 1))
    }

    /// One more open of `inode` on this host.
    ///
    /// # Errors
    /// `ENFILE` if too many files are open.
    pub fn vnode_open(&self, inode: Inode) -> Result<VnodeIndex> {
        let bucket = HostSegment::bucket(inode);
        let _guard = lock(self.segment.word32(bucket)?);
        if let Some(way) = self.way_of(bucket, inode)? {
            self.segment.word32(bucket + ROW * (way + 1) + 8)?.fetch_add(1, SeqCst);
            fence(SeqCst);
            return Ok(HostSegment::vnode_index(bucket, way));
        }
        let used = self.segment.word32(bucket + USED)?;
        let way = match used.load(SeqCst).trailing_ones() as usize {
            // All bits are set: a row that a dead one left, if any.
            WAYS.. => self.way_of(bucket, Inode(0))?.ok_or(Errno::ENFILE)?,
            way => way,
        };
        used.fetch_or(1 << way, SeqCst);
        let row = bucket + ROW * (way + 1);
        self.segment.word32(row + 12)?.store(0, Relaxed);
        self.segment.word64(row + 16)?.store(0, Relaxed);
        self.segment.word64(row + 24)?.store(0, Relaxed);
        self.segment.word64(row + 32)?.store(0, Relaxed);
        self.segment.word32(row + 8)?.store(1, Relaxed);
        self.segment.word64(row)?.store(inode.0, SeqCst);
        fence(SeqCst);
        Ok(HostSegment::vnode_index(bucket, way))
    }

    /// The way of a bucket whose bit is set and whose row holds `inode`.
    fn way_of(&self, bucket: usize, inode: Inode) -> Result<Option<usize>> {
        let mut rest = self.segment.word32(bucket + USED)?.load(SeqCst);
        while rest != 0 {
            let way = rest.trailing_zeros() as usize;
            rest &= rest - 1;
            if way < WAYS && self.segment.word64(bucket + ROW * (way + 1))?.load(SeqCst) == inode.0
            {
                return Ok(Some(way));
            }
        }
        Ok(None)
    }

    fn vnode_index(bucket: usize, way: usize) -> VnodeIndex {
        VnodeIndex((((bucket - START) / BUCKET) * WAYS + way) as u32)
    }

    /// One open less.
    ///
    /// # Errors
    /// `EIO` for a number that is none.
    pub fn vnode_close(&self, index: VnodeIndex) -> Result<Closed> {
        let row = HostSegment::vnode_at(index)?;
        let (bucket, way) = (index.0 as usize / WAYS, index.0 as usize % WAYS);
        let bucket = START + bucket * BUCKET;
        let _guard = lock(self.segment.word32(bucket)?);
        let opens = self.segment.word32(row + 8)?;
        let deleted = self.segment.word32(row + 12)?.load(SeqCst) & DELETED != 0;
        let before = opens.load(Relaxed);
        if before > 1 {
            opens.store(before - 1, SeqCst);
            return Ok(Closed { last: false, deleted });
        }
        opens.store(0, SeqCst);
        self.segment.word64(row)?.store(0, SeqCst);
        self.segment.word32(bucket + USED)?.fetch_and(!(1 << way), SeqCst);
        Ok(Closed { last: true, deleted })
    }

    /// The row of a file, if it is open here.
    #[must_use]
    pub fn vnode_find(&self, inode: Inode) -> Option<VnodeIndex> {
        let bucket = HostSegment::bucket(inode);
        let way = self.way_of(bucket, inode).ok()??;
        Some(HostSegment::vnode_index(bucket, way))
    }

    /// The words of an open file.
    ///
    /// # Errors
    /// `EIO` for a number that is none.
    pub fn vnode(&self, index: VnodeIndex) -> Result<Vnode<'_>> {
        let row = HostSegment::vnode_at(index)?;
        Ok(Vnode {
            inode: self.segment.word64(row)?,
            opens: self.segment.word32(row + 8)?,
            size: self.segment.word64(row + 16)?,
            dirty_end: self.segment.word64(row + 24)?,
            marks: self.segment.word64(row + 32)?,
        })
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
        let _guard = lock(word);
        let Some(index) = self.vnode_find(inode) else { return false };
        let flags = HostSegment::vnode_at(index).and_then(|row| self.segment.word32(row + 12));
        flags.is_ok_and(|flags| {
            flags.fetch_or(DELETED, SeqCst);
            true
        })
    }
}

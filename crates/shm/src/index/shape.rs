//! How large an index may become, and where its parts are.

use super::buckets::spill_count;
use super::{ENTRY_BUCKET, HEADER, INODE_BUCKET};
use crate::segment::Segment;
use core::sync::atomic::Ordering::Acquire;
use wire::errno::{Errno, Result};

/// The maximum size of an index, as log2 of the number of buckets of four.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    /// Entry buckets.
    pub entries_log2: u32,
    /// Inode buckets.
    pub inodes_log2: u32,
}

impl Shape {
    /// For 2 Mi records of each kind, well filled at less than half of that: 81 and 207 MiB of
    /// address space, touched as used.
    pub const DEFAULT: Shape = Shape { entries_log2: 19, inodes_log2: 19 };

    /// Length of the segment.
    #[must_use]
    pub const fn bytes(self) -> usize {
        self.inode_spills() + INODE_BUCKET * spill_count(self.inodes_log2)
    }

    pub(super) const fn inode_buckets(self) -> usize {
        HEADER + (ENTRY_BUCKET << self.entries_log2)
    }

    pub(super) const fn entry_spills(self) -> usize {
        self.inode_buckets() + (INODE_BUCKET << self.inodes_log2)
    }

    pub(super) const fn inode_spills(self) -> usize {
        self.entry_spills() + ENTRY_BUCKET * spill_count(self.entries_log2)
    }
}

/// The shape that the header of an index says.
pub(super) fn shape_of(head: &Segment) -> Result<Shape> {
    let entries_log2 = head.word32(0)?.load(Acquire);
    let inodes_log2 = head.word32(4)?.load(Acquire);
    if entries_log2 > 28 || inodes_log2 > 28 {
        return Err(Errno::EINVAL);
    }
    Ok(Shape { entries_log2, inodes_log2 })
}

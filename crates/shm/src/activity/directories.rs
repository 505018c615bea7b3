//! Directories in which a process works with names, from a sample: a table of `ENTRY_COUNT` entries for
//! each block, in which a new directory takes the place of the one with the smallest number, and its
//! number too (the space-saving algorithm). So each with more than one part in `ENTRY_COUNT` of all is
//! there, and its number is too large by less than that part.
//!
//! An entry, 16 bytes: inode u64 (0: free), number u64.

use super::{ActivitySegment, BLOCK_COUNT, BlockIndex, DIRECTORIES, Lane, add};
use crate::segment::SharedEntry;
use crate::sync::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;
use wire::Inode;
use wire::errno::{Errno, Result};

/// Directories of a block.
const ENTRY_COUNT: usize = 8;
/// Bytes of a table.
pub(super) const TABLE_BYTES: usize = size_of::<DirectoryTable>();

#[repr(C)]
struct DirectoryEntry {
    inode: AtomicU64,
    number: AtomicU64,
}

#[repr(C)]
struct DirectoryTable {
    entries: [DirectoryEntry; ENTRY_COUNT],
}

// SAFETY: an array of structs of atomics in the order of the declaration. WHY: some calls of a process
// come here.
unsafe impl SharedEntry for DirectoryTable {}

const fn place_of(block: BlockIndex) -> usize {
    DIRECTORIES + block.0 as usize * TABLE_BYTES
}

impl ActivitySegment {
    fn directory_table(&self, block: BlockIndex) -> Result<&DirectoryTable> {
        if block.0 as usize >= BLOCK_COUNT {
            return Err(Errno::EIO);
        }
        self.segment.entry(place_of(block))
    }

    /// Makes the memory of a table present, and empties it.
    pub(super) fn begin_directories(&self, block: BlockIndex) -> Result<()> {
        self.segment.reserve(place_of(block), TABLE_BYTES)?;
        self.segment.zero(place_of(block), TABLE_BYTES)
    }

    /// Counts operations on names in a directory.
    #[cold]
    pub fn count_directory(&self, lane: Lane, inode: Inode, number: u64) {
        // Block 0 has no memory for a table: its processes are unknown anyway.
        if lane.block == Lane::NOBODY.block {
            return;
        }
        let Ok(table) = self.directory_table(lane.block) else { return };
        let known = table.entries.iter().find(|one| one.inode.load(Relaxed) == inode.0);
        let entry = known.or_else(|| {
            let free = table.entries.iter().find(|one| one.inode.load(Relaxed) == 0);
            let least = || table.entries.iter().min_by_key(|one| one.number.load(Relaxed));
            let taken = free.or_else(least)?;
            taken.inode.store(inode.0, Relaxed);
            Some(taken)
        });
        if let Some(entry) = entry {
            add(&entry.number, number, lane.is_shared);
        }
    }

    /// The directories of a block, and their numbers of operations.
    #[must_use]
    pub fn directories(&self, block: BlockIndex) -> [(Inode, u64); ENTRY_COUNT] {
        let none = [(Inode::NONE, 0); ENTRY_COUNT];
        if block == Lane::NOBODY.block {
            return none;
        }
        self.directory_table(block).map_or(none, |table| {
            table
                .entries
                .each_ref()
                .map(|one| (Inode(one.inode.load(Relaxed)), one.number.load(Relaxed)))
        })
    }
}

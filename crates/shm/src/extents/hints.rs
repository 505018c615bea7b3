//! The extent hint table: from a file and an offset to the slot of the extent that begins there, so
//! that a process finds extents made by others without a message (B1).
//!
//! It may forget, and it may name a slot that holds another extent by now: the reader compares the
//! header in the extent table, as after any outdated look-up. One writer, the worker that owns the
//! target; clients map it read-only. A miss costs a message.
//!
//! Layout: buckets of 64 bytes, eight words each: upper half a tag of file and offset, never 0;
//! lower half the slot. An empty word is 0.

use crate::extents::ExtentTable;
use crate::segment::Segment;
use crate::sync::AtomicU64;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use wire::Inode;
use wire::errno::{Errno, Result};
use wire::hash::{mix, neighbourly, neighbourly_extent};
use wire::reply::Extent;

const WAYS: usize = 8;
const BUCKET: usize = 8 * WAYS;

/// Length of the hint table of an extent table with `slots` slots: two words for each.
#[must_use]
pub const fn extent_hints_bytes(slots: usize) -> usize {
    let buckets = (slots / (WAYS / 2)).next_power_of_two();
    if buckets < 64 { 64 * BUCKET } else { buckets * BUCKET }
}

/// The mapped hint table.
pub struct ExtentHints {
    segment: Segment,
}

impl ExtentHints {
    /// Sees nothing of the shared memory any more (`Segment::detach`).
    pub fn detach(&self) {
        self.segment.detach();
    }

    /// Takes a mapping; one of zeros is empty.
    ///
    /// # Errors
    /// `EINVAL` if a hint table cannot have its length.
    pub fn new(segment: Segment) -> Result<ExtentHints> {
        let is_one = segment.len() >= BUCKET && segment.len().is_power_of_two();
        if is_one { Ok(ExtentHints { segment }) } else { Err(Errno::EINVAL) }
    }

    /// Has the table count no longer as memory of this process.
    pub fn unmap_pages(&self) {
        self.segment.unmap_pages();
    }

    /// The first extents of files created in sequence are in neighbouring buckets; further extents
    /// of a file are in neighbouring buckets of their own.
    fn ways(&self, inode: Inode, start: u64) -> impl Iterator<Item = &AtomicU64> {
        let hash = match start {
            0 => neighbourly(inode, 23),
            _ => neighbourly_extent(inode, start, 29),
        };
        let bucket = hash as usize % (self.segment.len() / BUCKET);
        self.segment.words::<WAYS>(bucket * BUCKET).into_iter().flatten()
    }

    /// The extent of `inode` that begins at `start`, as the table has it now.
    #[must_use]
    pub fn find(&self, table: &ExtentTable, inode: Inode, start: u64) -> Option<Extent> {
        let tag = tag_of(inode, start);
        self.ways(inode, start).find_map(|way| {
            let word = way.load(Acquire);
            if word >> 32 != tag {
                return None;
            }
            let (other, extent) = table.get(word as u32)?;
            (other == inode && extent.start == start).then_some(extent)
        })
    }

    /// Enters an extent, after it was published. Only the writer calls this and `forget`.
    pub fn note(&self, inode: Inode, extent: &Extent) {
        let tag = tag_of(inode, extent.start);
        let word = tag << 32 | u64::from(extent.slot);
        let is_free =
            |way: &&AtomicU64| matches!(way.load(Relaxed) >> 32, old if old == tag || old == 0);
        let free = self.ways(inode, extent.start).find(is_free);
        // Full: another is forgotten, not always the same.
        let way = free.or_else(|| self.ways(inode, extent.start).nth(extent.slot as usize % WAYS));
        if let Some(way) = way {
            way.store(word, Release);
        }
    }

    /// Forgets an extent that is hidden.
    pub fn forget(&self, inode: Inode, extent: &Extent) {
        let word = tag_of(inode, extent.start) << 32 | u64::from(extent.slot);
        for way in self.ways(inode, extent.start).filter(|way| way.load(Relaxed) == word) {
            way.store(0, Relaxed);
        }
    }
}

/// The tag, in 32 bits, never 0.
fn tag_of(inode: Inode, start: u64) -> u64 {
    mix(inode.0, start) >> 32 | 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::extents::HEADER_BYTES;
    use std::vec::Vec;

    /// Files with many extents do not displace each other.
    #[test]
    fn most_extents_of_large_files_are_known() {
        const SLOTS: u32 = 40_000;
        let memory = |bytes| Segment::nameless(c"test", bytes).expect("memory").0;
        let table = ExtentTable::new(memory(SLOTS as usize * HEADER_BYTES));
        for (stripe_log2, stripes) in [(16, 500), (20, 30), (22, 4), (22, 1000)] {
            let extent_hints = ExtentHints::new(memory(extent_hints_bytes(SLOTS as usize)))
                .expect("a length of one");
            let doubling = (12..stripe_log2).map(|log2| 1u64 << log2);
            let starts: Vec<u64> = [0].into_iter().chain(doubling).collect();
            let further = (1..stripes).map(|stripe: u64| stripe << stripe_log2);
            let starts: Vec<u64> = starts.into_iter().chain(further).collect();
            let extent = |slot: u32| Extent {
                start: starts[slot as usize % starts.len()],
                slot,
                location: u64::from(slot) << 12,
                length_log2: 12,
                tier: Extent::MEMORY,
            };
            let inode = |slot: u32| Inode(7000 + u64::from(slot) / starts.len() as u64);
            for slot in 0..SLOTS {
                table.publish(inode(slot), &extent(slot)).expect("in range");
                extent_hints.note(inode(slot), &extent(slot));
            }
            let found = |slot: u32| extent_hints.find(&table, inode(slot), extent(slot).start);
            let known = (0..SLOTS).filter(|&slot| found(slot) == Some(extent(slot))).count();
            let (per_file, percent) = (starts.len(), known * 100 / SLOTS as usize);
            assert!(
                percent >= 98,
                "{percent} % with {per_file} extents by stripes of 2^{stripe_log2}"
            );
        }
    }

    #[test]
    fn a_found_extent_is_as_the_table_has_it() {
        const SLOTS: u32 = 600;
        let memory = |bytes| Segment::nameless(c"test", bytes).expect("memory").0;
        let table = ExtentTable::new(memory(SLOTS as usize * HEADER_BYTES));
        let extent_hints =
            ExtentHints::new(memory(extent_hints_bytes(SLOTS as usize))).expect("a length of one");
        let extent = |slot: u32| Extent {
            start: u64::from(slot % 3) << 12,
            slot,
            location: u64::from(slot) << 12,
            length_log2: 12,
            tier: Extent::MEMORY,
        };
        let inode = |slot: u32| Inode(7000 + u64::from(slot / 3));
        for slot in 0..SLOTS {
            assert_eq!(extent_hints.find(&table, inode(slot), extent(slot).start), None);
            table.publish(inode(slot), &extent(slot)).expect("in range");
            extent_hints.note(inode(slot), &extent(slot));
        }
        let found = |slot: u32| extent_hints.find(&table, inode(slot), extent(slot).start);
        let known = (0..SLOTS).filter(|&slot| found(slot) == Some(extent(slot))).count();
        assert!(known > SLOTS as usize * 9 / 10, "only {known} are known");
        for slot in (0..SLOTS).step_by(2) {
            table.unpublish(slot).expect("in range");
        }
        assert!((0..SLOTS).step_by(2).all(|slot| found(slot).is_none()), "hidden and found");
        for slot in (0..SLOTS).step_by(2) {
            extent_hints.forget(inode(slot), &extent(slot));
        }
        // Another file in the slot is not taken for the previous one.
        table.publish(Inode(1), &extent(1)).expect("in range");
        assert_eq!(found(1), None);
    }
}

//! The extent hint table: from a file and an offset to the slot of the extent that begins there, so
//! that a process finds extents made by others without a message (B1).
//!
//! It may forget, and it may name a slot that holds another extent by now: the reader compares the
//! header in the extent table, as after any outdated look-up. One writer, the worker that owns the
//! target; clients map it read-only. A miss costs a message.
//!
//! Layout: buckets of 64 bytes, eight words each: upper half a tag of file and offset, never 0;
//! lower half the slot. An empty word is 0. Bucket 0 has the number of buckets in use instead; a hash
//! that leads to it leads to bucket 1.
//!
//! The table grows with the highest slot in use, by linear hashing: each bucket that comes into use
//! takes the entries of one other that lead to it now. So addresses and memory follow the extents that
//! exist, not those that fit the devices. The writer copies the entries, then raises the number, then
//! clears them in the other bucket: a reader with the number of before or after misses an entry at
//! worst.

use super::further::PartedTable;
use crate::extents::ExtentTable;
use crate::segment::{Access, Segment, SharedEntry};
use crate::sync::AtomicU64;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use rustix::fd::{BorrowedFd, OwnedFd};
use wire::Inode;
use wire::errno::{Errno, Result};
use wire::hash::{neighbourly, neighbourly_extent};
use wire::reply::Extent;

const WAYS: usize = 8;
const BUCKET_BYTES: usize = 8 * WAYS;
/// Slots for each bucket in use. Buckets that were not divided yet have twice as many entries.
const SLOTS_PER_BUCKET: u32 = 2;
/// Buckets in use at first.
const BUCKETS_MIN: u32 = 1024;

/// Length of the hint table of an extent table with `slots` slots.
#[must_use]
pub const fn extent_hints_bytes(slots: usize) -> usize {
    let buckets = slots.div_ceil(SLOTS_PER_BUCKET as usize);
    let fewest = BUCKETS_MIN as usize;
    BUCKET_BYTES * if buckets < fewest { fewest } else { buckets }
}

/// The entries with neighbouring hashes.
#[repr(C)]
struct Bucket([AtomicU64; WAYS]);

// SAFETY: atomics alone. WHY: the first read of each extent of a file looks here.
unsafe impl SharedEntry for Bucket {}

/// The mapped hint table.
pub struct ExtentHints {
    buckets: PartedTable,
}

/// The bucket of a hash in a table with `count` buckets in use.
const fn bucket_of(hash: u64, count: u32) -> u32 {
    // Those below the next power of two that are not in use yet are not divided from their half.
    let mask = count.next_power_of_two().wrapping_sub(1);
    let number = hash as u32 & mask;
    let number = if number < count { number } else { number & mask >> 1 };
    if number == 0 { 1 } else { number }
}

/// The first extents of files created in sequence are in neighbouring buckets; further extents of a
/// file are in neighbouring buckets of their own.
const fn hash_of(inode: Inode, start: u64) -> u64 {
    match start {
        0 => neighbourly(inode, 23),
        _ => neighbourly_extent(inode, start, 29),
    }
}

impl ExtentHints {
    /// Sees nothing of the shared memory any more (`Segment::detach`).
    pub fn detach(&self) {
        self.buckets.detach();
    }

    /// Takes a mapping; one of zeros is empty.
    ///
    /// # Errors
    /// `EINVAL` if it is shorter than a hint table.
    pub fn new(segment: Segment) -> Result<ExtentHints> {
        ExtentHints::of(PartedTable::whole(segment))
    }

    /// Takes the file, and maps parts of it as buckets come into use.
    ///
    /// # Errors
    /// `EINVAL` for a table that no daemon makes; errors of the operating system.
    pub fn open_in_parts(file: OwnedFd) -> Result<ExtentHints> {
        ExtentHints::of(PartedTable::open(file, BUCKET_BYTES, Access::ReadOnly)?)
    }

    fn of(buckets: PartedTable) -> Result<ExtentHints> {
        let is_one = buckets.len() >= BUCKETS_MIN as usize * BUCKET_BYTES;
        if is_one { Ok(ExtentHints { buckets }) } else { Err(Errno::EINVAL) }
    }

    /// The file, if parts of it are mapped.
    #[must_use]
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.buckets.descriptor()
    }

    /// Has the table count no longer as memory of this process.
    pub fn unmap_pages(&self) {
        self.buckets.unmap_pages();
    }

    #[inline]
    fn bucket(&self, number: u32) -> Result<&[AtomicU64; WAYS]> {
        self.buckets.entry(number as usize).map(|bucket: &Bucket| &bucket.0)
    }

    /// The number of buckets in use.
    fn count(&self) -> u32 {
        let count = self.buckets.first().word64(0).map_or(0, |count| count.load(Acquire));
        (count as u32).max(BUCKETS_MIN)
    }

    fn ways(&self, inode: Inode, start: u64) -> impl Iterator<Item = &AtomicU64> {
        self.bucket(bucket_of(hash_of(inode, start), self.count())).into_iter().flatten()
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

    /// Enters an extent of `table`, after it was published. Only the writer calls this and `forget`.
    pub fn note(&self, table: &ExtentTable, inode: Inode, extent: &Extent) {
        self.grow(table, extent.slot);
        let word = tag_of(inode, extent.start) << 32 | u64::from(extent.slot);
        self.enter(hash_of(inode, extent.start), self.count(), word);
    }

    /// Enters a word in the bucket of a hash.
    fn enter(&self, hash: u64, count: u32, word: u64) {
        let Ok(ways) = self.bucket(bucket_of(hash, count)) else { return };
        let is_free = |way: &&AtomicU64| {
            let old = way.load(Relaxed) >> 32;
            old == word >> 32 || old == 0
        };
        // Full: another is forgotten, not always the same.
        let way = ways.iter().find(is_free).or_else(|| ways.get(word as usize % WAYS));
        if let Some(way) = way {
            way.store(word, Release);
        }
    }

    /// Takes buckets into use until there are enough for a slot.
    fn grow(&self, table: &ExtentTable, slot: u32) {
        let most = u32::try_from(self.buckets.len() / BUCKET_BYTES).unwrap_or(u32::MAX);
        let enough = (slot / SLOTS_PER_BUCKET).saturating_add(1).min(most);
        while self.count() < enough {
            self.divide(table);
        }
    }

    /// Takes one more bucket into use.
    fn divide(&self, table: &ExtentTable) {
        let next = self.count();
        let count = next.saturating_add(1);
        let Ok(ways) = self.bucket(bucket_of(u64::from(next), next)) else { return };
        // The hash of an entry; `None` for a slot that holds another extent by now.
        let hash = |word: u64| {
            let slot = word as u32;
            let (inode, extent) = table.get(slot).or_else(|| table.hidden(slot))?;
            (tag_of(inode, extent.start) == word >> 32).then(|| hash_of(inode, extent.start))
        };
        let mut leave = [false; WAYS];
        for (way, leaves) in ways.iter().zip(&mut leave) {
            let word = way.load(Relaxed);
            let hash = if word == 0 { None } else { hash(word) };
            *leaves = hash.is_none_or(|hash| bucket_of(hash, count) == next);
            if let Some(hash) = hash.filter(|_| *leaves) {
                self.enter(hash, count, word);
            }
        }
        if let Ok(in_use) = self.buckets.first().word64(0) {
            in_use.store(u64::from(count), Release);
        }
        for (way, _) in ways.iter().zip(leave).filter(|(_, leaves)| *leaves) {
            way.store(0, Relaxed);
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

/// The tag, in 32 bits, never 0. An extent that it finds is compared, so a cheap one is enough.
const fn tag_of(inode: Inode, start: u64) -> u64 {
    (inode.0 ^ start.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32 | 1
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
                extent_hints.note(&table, inode(slot), &extent(slot));
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
            extent_hints.note(&table, inode(slot), &extent(slot));
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

    /// While the table grows from the fewest buckets past its first part, a reader that maps parts
    /// finds nearly all of the extents so far, hidden ones included once they are shown again.
    #[test]
    fn a_table_that_grows_keeps_what_it_has() {
        const SLOTS: u32 = 300_000;
        let memory = |bytes| Segment::nameless(c"test", bytes).expect("memory");
        let table = ExtentTable::new(memory(SLOTS as usize * HEADER_BYTES).0);
        let (segment, file) = memory(extent_hints_bytes(SLOTS as usize));
        let extent_hints = ExtentHints::new(segment).expect("a table");
        let reader = ExtentHints::open_in_parts(file).expect("a table");
        let extent = |slot: u32| Extent {
            start: u64::from(slot % 5) << 16,
            slot,
            location: u64::from(slot) << 12,
            length_log2: 12,
            tier: Extent::MEMORY,
        };
        let inode = |slot: u32| Inode(7000 + u64::from(slot / 5));
        let is_hidden = |slot: u32| slot % 97 == 3;
        let mut looked_at = 0;
        for slot in 0..SLOTS {
            table.publish(inode(slot), &extent(slot)).expect("in range");
            extent_hints.note(&table, inode(slot), &extent(slot));
            if is_hidden(slot) {
                table.hide(slot).expect("in range");
            }
            if slot + 1 == SLOTS || (slot + 1).is_power_of_two() {
                assert_eq!(extent_hints.count(), (slot / SLOTS_PER_BUCKET + 1).max(BUCKETS_MIN));
                let found = |slot: u32| reader.find(&table, inode(slot), extent(slot).start);
                assert!(
                    (0..=slot).filter(|&slot| is_hidden(slot)).all(|slot| found(slot).is_none())
                );
                (0..=slot).filter(|&slot| is_hidden(slot)).for_each(|slot| {
                    table.show(slot).expect("in range");
                });
                let known = (0..=slot).filter(|&slot| found(slot) == Some(extent(slot))).count();
                assert!(known * 100 >= (slot + 1) as usize * 98, "{known} of {}", slot + 1);
                (0..=slot).filter(|&slot| is_hidden(slot)).for_each(|slot| {
                    table.hide(slot).expect("in range");
                });
                looked_at += 1;
            }
        }
        assert_eq!(looked_at, 20);
        // Freed extents are gone after the table has grown, too.
        for slot in (0..SLOTS).filter(|&slot| !is_hidden(slot)) {
            table.unpublish(slot).expect("in range");
            extent_hints.forget(inode(slot), &extent(slot));
        }
        let left = |number: u32| {
            let ways = extent_hints.bucket(number).expect("a bucket").iter();
            ways.filter(|way| way.load(Relaxed) != 0 && !is_hidden(way.load(Relaxed) as u32))
                .count()
        };
        assert_eq!((1..extent_hints.count()).map(left).sum::<usize>(), 0);
    }
}

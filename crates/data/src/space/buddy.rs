//! A buddy allocator: blocks of 2^14 .. 2^26 bytes, each aligned to its length.
//!
//! It only knows which blocks are free. `slots` knows the owners of the others, and `tier` how much
//! of the device was handed to this allocator. Of the fitting blocks it takes the smallest, and of
//! those the lowest: used space stays together, and large blocks stay whole.
//!
//! Invariants:
//!  1. Free blocks do not overlap, and `bytes_free` is the sum of their lengths.
//!  2. Two buddies (the halves of one aligned block) are never both free: they were merged.
//!  3. A `Zeroed` block was never handed out: its bytes are still zeros.

use std::collections::BTreeMap;
use wire::limits::{EXTENT_BYTES_MIN, STRIPE_LOG2_MAX};

/// log2 of the smallest block: the smallest extent.
pub const BLOCK_LOG2_MIN: u8 = EXTENT_BYTES_MIN.trailing_zeros() as u8;
/// log2 of the largest block: the largest stripe.
pub const BLOCK_LOG2_MAX: u8 = STRIPE_LOG2_MAX;
/// Length of the largest block.
pub const BLOCK_BYTES_MAX: u64 = 1 << BLOCK_LOG2_MAX;

const ORDER_COUNT: usize = (BLOCK_LOG2_MAX - BLOCK_LOG2_MIN) as usize + 1;

/// Contents of a block's bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BlockContents {
    /// Zeros: the block was never used since the device was created.
    Zeroed,
    /// Bytes of an earlier use.
    Dirty,
}

impl BlockContents {
    /// Contents of the block that two buddies form.
    const fn merge(self, other: BlockContents) -> BlockContents {
        match (self, other) {
            (BlockContents::Zeroed, BlockContents::Zeroed) => BlockContents::Zeroed,
            _ => BlockContents::Dirty,
        }
    }
}

/// The free blocks of one device.
#[derive(Clone, Debug, Default)]
pub struct Buddy {
    /// By order, then by offset.
    free: [BTreeMap<u64, BlockContents>; ORDER_COUNT],
    bytes_free: u64,
}

impl Buddy {
    /// An allocator without space; `release` adds it.
    #[must_use]
    pub fn new() -> Buddy {
        Buddy::default()
    }

    /// Sum of all free blocks, in bytes.
    #[must_use]
    pub const fn bytes_free(&self) -> u64 {
        self.bytes_free
    }

    fn order(log2: u8) -> usize {
        assert!((BLOCK_LOG2_MIN..=BLOCK_LOG2_MAX).contains(&log2), "no such block: log2={log2}");
        usize::from(log2 - BLOCK_LOG2_MIN)
    }

    fn put(&mut self, location: u64, log2: u8, contents: BlockContents) {
        let before = self.free[Buddy::order(log2)].insert(location, contents);
        assert!(before.is_none(), "block freed twice: location={location} log2={log2}");
    }

    /// Takes a block of 2^`log2` bytes. `None` if no free block is large enough.
    pub fn take(&mut self, log2: u8) -> Option<(u64, BlockContents)> {
        let min_order = Buddy::order(log2);
        let (found, (location, contents)) = self
            .free
            .iter_mut()
            .enumerate()
            .skip(min_order)
            .find_map(|(order, blocks)| Some((order, blocks.pop_first()?)))?;
        for order in min_order..found {
            let half = 1 << (order + usize::from(BLOCK_LOG2_MIN));
            self.free[order].insert(location + half, contents);
        }
        self.bytes_free -= 1 << log2;
        Some((location, contents))
    }

    /// Takes the block at `location`, whichever free block it is part of. `None` if some of it is
    /// not free.
    pub fn take_at(&mut self, location: u64, log2: u8) -> Option<BlockContents> {
        for larger in log2..=BLOCK_LOG2_MAX {
            let start = location >> larger << larger;
            let Some(contents) = self.free[Buddy::order(larger)].remove(&start) else { continue };
            for half_log2 in (log2..larger).rev() {
                let other = (location >> half_log2 ^ 1) << half_log2;
                self.put(other, half_log2, contents);
            }
            self.bytes_free -= 1 << log2;
            return Some(contents);
        }
        None
    }

    /// Takes the highest of the largest blocks, or a half, a quarter and so on of it if it is
    /// longer than 2^`log2_max` bytes: the remaining space stays together at the beginning.
    pub fn take_largest(&mut self, log2_max: u8) -> Option<(u64, u8, BlockContents)> {
        let largest = self.free.iter().rposition(|blocks| !blocks.is_empty())?;
        let (mut location, contents) = self.free[largest].pop_last()?;
        let min_order = largest.min(Buddy::order(log2_max.max(BLOCK_LOG2_MIN)));
        for order in (min_order..largest).rev() {
            self.free[order].insert(location, contents);
            location += 1 << (order + usize::from(BLOCK_LOG2_MIN));
        }
        let log2 = min_order as u8 + BLOCK_LOG2_MIN;
        self.bytes_free -= 1 << log2;
        Some((location, log2, contents))
    }

    /// The lowest of the largest blocks that are not longer than 2^`log2_max` bytes, or the
    /// beginning of the lowest that is.
    #[must_use]
    pub fn largest(&self, log2_max: u8) -> Option<(u64, u8)> {
        let most = Buddy::order(log2_max);
        let shorter =
            (0..=most).rev().find_map(|order| Some((*self.free[order].keys().next()?, order)));
        let longer = || {
            let longer = self.free.iter().skip(most + 1);
            longer.into_iter().find_map(|blocks| Some((*blocks.keys().next()?, most)))
        };
        let (location, order) = match shorter {
            Some((location, order)) if order == most => (location, order),
            shorter => longer().or(shorter)?,
        };
        Some((location, order as u8 + BLOCK_LOG2_MIN))
    }

    /// Frees a block, or adds a new one, and merges it with its buddies.
    pub fn release(&mut self, location: u64, log2: u8, contents: BlockContents) {
        assert!(location.trailing_zeros() >= u32::from(log2), "misaligned block: {location}");
        self.bytes_free += 1 << log2;
        let (mut location, mut log2, mut contents) = (location, log2, contents);
        while log2 < BLOCK_LOG2_MAX {
            let buddy = location ^ (1 << log2);
            let Some(other) = self.free[Buddy::order(log2)].remove(&buddy) else { break };
            contents = contents.merge(other);
            location &= !(1 << log2);
            log2 += 1;
        }
        self.put(location, log2, contents);
    }

    /// All free blocks: offset and log2 of the length.
    pub fn blocks(&self) -> impl Iterator<Item = (u64, u8)> {
        (BLOCK_LOG2_MIN..=BLOCK_LOG2_MAX)
            .zip(&self.free)
            .flat_map(|(log2, blocks)| blocks.keys().map(move |&location| (location, log2)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn check(buddy: &Buddy, held: &[(u64, u8)], total: u64) {
        let mut all: Vec<(u64, u8)> = buddy.blocks().chain(held.iter().copied()).collect();
        all.sort_unstable();
        let mut end = 0;
        for &(location, log2) in &all {
            assert_eq!(location, end, "gap or overlap before {location}");
            assert!(location.trailing_zeros() >= u32::from(log2));
            end = location + (1 << log2);
        }
        assert_eq!(end, total);
        let free: u64 = buddy.blocks().map(|(_, log2)| 1u64 << log2).sum();
        assert_eq!(free, buddy.bytes_free());
        let blocks: Vec<_> = buddy.blocks().collect();
        for &(location, log2) in blocks.iter().filter(|block| block.1 < BLOCK_LOG2_MAX) {
            assert!(!blocks.contains(&(location ^ (1 << log2), log2)), "buddies were not merged");
        }
    }

    proptest! {
        /// Blocks tile the space after any sequence of takes and releases, and in the end all of it
        /// is one again.
        #[test]
        fn blocks_tile_the_space(steps in proptest::collection::vec((0u8..3, 14u8..=26), 1..300)) {
            let total = 2 * BLOCK_BYTES_MAX;
            let mut buddy = Buddy::new();
            buddy.release(0, BLOCK_LOG2_MAX, BlockContents::Zeroed);
            buddy.release(BLOCK_BYTES_MAX, BLOCK_LOG2_MAX, BlockContents::Zeroed);
            let mut held: Vec<(u64, u8)> = Vec::new();
            for (kind, log2) in steps {
                if kind > 0 {
                    match buddy.take(log2) {
                        Some((location, _)) => held.push((location, log2)),
                        None => prop_assert!(buddy.blocks().all(|block| block.1 < log2)),
                    }
                } else if log2 % 3 == 0 {
                    let shown = buddy.largest(log2);
                    if let Some((location, found, _)) = buddy.take_largest(log2) {
                        prop_assert!(found <= log2);
                        prop_assert!(shown.is_some_and(|(_, shown)| shown == found));
                        held.push((location, found));
                    }
                } else if !held.is_empty() {
                    let (location, log2) = held.swap_remove(usize::from(log2) % held.len());
                    buddy.release(location, log2, BlockContents::Dirty);
                }
                check(&buddy, &held, total);
            }
            // Recovery takes the same blocks by their offsets.
            let mut again = Buddy::new();
            again.release(0, BLOCK_LOG2_MAX, BlockContents::Dirty);
            again.release(BLOCK_BYTES_MAX, BLOCK_LOG2_MAX, BlockContents::Dirty);
            for &(location, log2) in &held {
                prop_assert_eq!(again.take_at(location, log2), Some(BlockContents::Dirty));
                prop_assert_eq!(again.take_at(location, log2), None);
            }
            prop_assert!(again.blocks().eq(buddy.blocks()));
            for (location, log2) in held.drain(..) {
                buddy.release(location, log2, BlockContents::Dirty);
            }
            let whole = [(0, BLOCK_LOG2_MAX), (BLOCK_BYTES_MAX, BLOCK_LOG2_MAX)];
            prop_assert!(buddy.blocks().eq(whole));
        }
    }

    #[test]
    fn zeroed_space_stays_zeroed_until_it_was_handed_out() {
        let mut buddy = Buddy::new();
        buddy.release(0, 15, BlockContents::Zeroed);
        assert_eq!(buddy.take(14), Some((0, BlockContents::Zeroed)));
        buddy.release(0, 14, BlockContents::Dirty);
        assert_eq!(buddy.take(15), Some((0, BlockContents::Dirty)));
    }
}

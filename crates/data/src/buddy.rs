//! A buddy allocator: blocks of 2^14 .. 2^26 bytes, each aligned to its length.
//!
//! Here is only which blocks are free. Whose the others are is `slots`, how much of the device was
//! handed to this allocator is `tier`. Of the fitting blocks the smallest is taken, of those the
//! lowest: used space stays together, and large blocks stay whole.
//!
//! Invariants:
//!  1. Free blocks do not overlap, and `bytes_free` is the sum of their lengths.
//!  2. Two buddies (the halves of one aligned block) are never both free: they were merged.
//!  3. A `Fresh` block was never handed out: its bytes are still zeros.

use std::collections::BTreeMap;
use wire::limits::{CHUNK_LOG2_MAX, PIECE_BYTES_MIN};

/// log2 of the smallest block: the smallest piece.
pub const BLOCK_LOG2_MIN: u8 = PIECE_BYTES_MIN.trailing_zeros() as u8;
/// log2 of the largest block: the largest chunk.
pub const BLOCK_LOG2_MAX: u8 = CHUNK_LOG2_MAX;
/// Length of the largest block.
pub const BLOCK_BYTES_MAX: u64 = 1 << BLOCK_LOG2_MAX;

const ORDER_COUNT: usize = (BLOCK_LOG2_MAX - BLOCK_LOG2_MIN) as usize + 1;

/// Was the space in use before?
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum History {
    /// Never since the device was made: it reads as zeros.
    Fresh,
    /// Its bytes are another's, of long ago.
    Used,
}

impl History {
    /// Of a block that is made of two.
    const fn merge(self, other: History) -> History {
        match (self, other) {
            (History::Fresh, History::Fresh) => History::Fresh,
            _ => History::Used,
        }
    }
}

/// The free blocks of one device.
#[derive(Clone, Debug, Default)]
pub struct Buddy {
    /// By order, then by place.
    free: [BTreeMap<u64, History>; ORDER_COUNT],
    bytes_free: u64,
}

impl Buddy {
    /// No space at all; `release` brings it.
    #[must_use]
    pub fn new() -> Buddy {
        Buddy::default()
    }

    /// Sum of all free blocks.
    #[must_use]
    pub const fn bytes_free(&self) -> u64 {
        self.bytes_free
    }

    fn order(log2: u8) -> usize {
        assert!((BLOCK_LOG2_MIN..=BLOCK_LOG2_MAX).contains(&log2), "no such block: log2={log2}");
        usize::from(log2 - BLOCK_LOG2_MIN)
    }

    fn put(&mut self, place: u64, log2: u8, history: History) {
        let before = self.free[Buddy::order(log2)].insert(place, history);
        assert!(before.is_none(), "block freed twice: place={place} log2={log2}");
    }

    /// Takes a block of 2^`log2` bytes. `None` if no free block is as large.
    pub fn take(&mut self, log2: u8) -> Option<(u64, History)> {
        let wanted = Buddy::order(log2);
        let (found, (place, history)) = self
            .free
            .iter_mut()
            .enumerate()
            .skip(wanted)
            .find_map(|(order, blocks)| Some((order, blocks.pop_first()?)))?;
        for order in wanted..found {
            let half = 1 << (order + usize::from(BLOCK_LOG2_MIN));
            self.free[order].insert(place + half, history);
        }
        self.bytes_free -= 1 << log2;
        Some((place, history))
    }

    /// Takes the block at `place` itself, wherever it is part of a free block. `None` if some of
    /// it is not free.
    pub fn take_at(&mut self, place: u64, log2: u8) -> Option<History> {
        for larger in log2..=BLOCK_LOG2_MAX {
            let start = place >> larger << larger;
            let Some(history) = self.free[Buddy::order(larger)].remove(&start) else { continue };
            for half_log2 in (log2..larger).rev() {
                let other = (place >> half_log2 ^ 1) << half_log2;
                self.put(other, half_log2, history);
            }
            self.bytes_free -= 1 << log2;
            return Some(history);
        }
        None
    }

    /// Takes the highest of the largest blocks, or a half, a quarter .. of it if it is longer than
    /// 2^`log2_max` bytes: what is left stays together at the beginning.
    pub fn take_largest(&mut self, log2_max: u8) -> Option<(u64, u8, History)> {
        let largest = self.free.iter().rposition(|blocks| !blocks.is_empty())?;
        let (mut place, history) = self.free[largest].pop_last()?;
        let wanted = largest.min(Buddy::order(log2_max.max(BLOCK_LOG2_MIN)));
        for order in (wanted..largest).rev() {
            self.free[order].insert(place, history);
            place += 1 << (order + usize::from(BLOCK_LOG2_MIN));
        }
        let log2 = wanted as u8 + BLOCK_LOG2_MIN;
        self.bytes_free -= 1 << log2;
        Some((place, log2, history))
    }

    /// The lowest of the largest blocks that are not longer than 2^`log2_max` bytes, or the beginning of
    /// the lowest that is.
    #[must_use]
    pub fn largest(&self, log2_max: u8) -> Option<(u64, u8)> {
        let most = Buddy::order(log2_max);
        let shorter =
            (0..=most).rev().find_map(|order| Some((*self.free[order].keys().next()?, order)));
        let longer = || {
            let longer = self.free.iter().skip(most + 1);
            longer.into_iter().find_map(|blocks| Some((*blocks.keys().next()?, most)))
        };
        let (place, order) = match shorter {
            Some((place, order)) if order == most => (place, order),
            shorter => longer().or(shorter)?,
        };
        Some((place, order as u8 + BLOCK_LOG2_MIN))
    }

    /// Gives a block back, or brings a new one, and merges it with its buddies.
    pub fn release(&mut self, place: u64, log2: u8, history: History) {
        assert!(place.trailing_zeros() >= u32::from(log2), "block at an odd place: {place}");
        self.bytes_free += 1 << log2;
        let (mut place, mut log2, mut history) = (place, log2, history);
        while log2 < BLOCK_LOG2_MAX {
            let buddy = place ^ (1 << log2);
            let Some(other) = self.free[Buddy::order(log2)].remove(&buddy) else { break };
            history = history.merge(other);
            place &= !(1 << log2);
            log2 += 1;
        }
        self.put(place, log2, history);
    }

    /// All free blocks: place and log2 of the length.
    pub fn blocks(&self) -> impl Iterator<Item = (u64, u8)> {
        (BLOCK_LOG2_MIN..=BLOCK_LOG2_MAX)
            .zip(&self.free)
            .flat_map(|(log2, blocks)| blocks.keys().map(move |&place| (place, log2)))
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
        for &(place, log2) in &all {
            assert_eq!(place, end, "a gap or an overlap before {place}");
            assert!(place.trailing_zeros() >= u32::from(log2));
            end = place + (1 << log2);
        }
        assert_eq!(end, total);
        let free: u64 = buddy.blocks().map(|(_, log2)| 1u64 << log2).sum();
        assert_eq!(free, buddy.bytes_free());
        let blocks: Vec<_> = buddy.blocks().collect();
        for &(place, log2) in blocks.iter().filter(|block| block.1 < BLOCK_LOG2_MAX) {
            assert!(!blocks.contains(&(place ^ (1 << log2), log2)), "buddies were not merged");
        }
    }

    proptest! {
        /// Blocks tile the space whatever is taken and released, and all of it comes back whole.
        #[test]
        fn blocks_tile_the_space(steps in proptest::collection::vec((0u8..3, 14u8..=26), 1..300)) {
            let total = 2 * BLOCK_BYTES_MAX;
            let mut buddy = Buddy::new();
            buddy.release(0, BLOCK_LOG2_MAX, History::Fresh);
            buddy.release(BLOCK_BYTES_MAX, BLOCK_LOG2_MAX, History::Fresh);
            let mut held: Vec<(u64, u8)> = Vec::new();
            for (kind, log2) in steps {
                if kind > 0 {
                    match buddy.take(log2) {
                        Some((place, _)) => held.push((place, log2)),
                        None => prop_assert!(buddy.blocks().all(|block| block.1 < log2)),
                    }
                } else if log2 % 3 == 0 {
                    let shown = buddy.largest(log2);
                    if let Some((place, found, _)) = buddy.take_largest(log2) {
                        prop_assert!(found <= log2);
                        prop_assert!(shown.is_some_and(|(_, shown)| shown == found));
                        held.push((place, found));
                    }
                } else if !held.is_empty() {
                    let (place, log2) = held.swap_remove(usize::from(log2) % held.len());
                    buddy.release(place, log2, History::Used);
                }
                check(&buddy, &held, total);
            }
            // The same blocks can be taken by their places, as after a kill.
            let mut again = Buddy::new();
            again.release(0, BLOCK_LOG2_MAX, History::Used);
            again.release(BLOCK_BYTES_MAX, BLOCK_LOG2_MAX, History::Used);
            for &(place, log2) in &held {
                prop_assert_eq!(again.take_at(place, log2), Some(History::Used));
                prop_assert_eq!(again.take_at(place, log2), None);
            }
            prop_assert!(again.blocks().eq(buddy.blocks()));
            for (place, log2) in held.drain(..) {
                buddy.release(place, log2, History::Used);
            }
            let whole = [(0, BLOCK_LOG2_MAX), (BLOCK_BYTES_MAX, BLOCK_LOG2_MAX)];
            prop_assert!(buddy.blocks().eq(whole));
        }
    }

    #[test]
    fn fresh_space_stays_fresh_until_it_was_handed_out() {
        let mut buddy = Buddy::new();
        buddy.release(0, 15, History::Fresh);
        assert_eq!(buddy.take(14), Some((0, History::Fresh)));
        buddy.release(0, 14, History::Used);
        assert_eq!(buddy.take(15), Some((0, History::Used)));
    }
}

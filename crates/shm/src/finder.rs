//! The finder: from a file and an offset to the slot of the piece that begins there, so that a process
//! finds pieces that others made without a message (B1).
//!
//! It may forget, and it may name a slot that is another piece's by now: whoever follows it compares
//! the header in the piece table, as after any look that is old. One writer, the worker that owns the
//! target; clients map it for reading only. What it does not know costs a message.
//!
//! Layout: buckets of 64 bytes, eight words each: upper half a tag of file and offset, never 0;
//! lower half the slot. An empty word is 0.

use crate::pieces::PieceTable;
use crate::segment::Segment;
use crate::sync::AtomicU64;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use wire::Inode;
use wire::errno::{Errno, Result};
use wire::hash::{mix, neighbourly, neighbourly_piece};
use wire::reply::Piece;

const WAYS: usize = 8;
const BUCKET: usize = 8 * WAYS;

/// Length of the finder of a piece table with so many slots: two words for each.
#[must_use]
pub const fn finder_bytes(slots: usize) -> usize {
    let buckets = (slots / (WAYS / 2)).next_power_of_two();
    if buckets < 64 { 64 * BUCKET } else { buckets * BUCKET }
}

/// The mapped finder.
pub struct Finder {
    segment: Segment,
}

impl Finder {
    /// Takes a mapping; one of zeros knows nothing.
    ///
    /// # Errors
    /// `EINVAL` if its length is none of a finder.
    pub fn new(segment: Segment) -> Result<Finder> {
        let is_one = segment.len() >= BUCKET && segment.len().is_power_of_two();
        if is_one { Ok(Finder { segment }) } else { Err(Errno::EINVAL) }
    }

    /// Files that were made one after the other have their first pieces in neighbouring buckets; a file
    /// has its further ones in those of its own.
    fn ways(&self, inode: Inode, start: u64) -> impl Iterator<Item = &AtomicU64> {
        let hash = match start {
            0 => neighbourly(inode, 23),
            _ => neighbourly_piece(inode, start, 29),
        };
        let bucket = hash as usize % (self.segment.len() / BUCKET);
        self.segment.words::<WAYS>(bucket * BUCKET).into_iter().flatten()
    }

    /// The piece of `inode` that begins at `start`, as the table has it now.
    #[must_use]
    pub fn find(&self, table: &PieceTable, inode: Inode, start: u64) -> Option<Piece> {
        let tag = tag_of(inode, start);
        self.ways(inode, start).find_map(|way| {
            let word = way.load(Acquire);
            if word >> 32 != tag {
                return None;
            }
            let (other, piece) = table.get(word as u32)?;
            (other == inode && piece.start == start).then_some(piece)
        })
    }

    /// Notes a piece, after it was published. Only the writer calls this and `forget`.
    pub fn note(&self, inode: Inode, piece: &Piece) {
        let tag = tag_of(inode, piece.start);
        let word = tag << 32 | u64::from(piece.slot);
        let is_free =
            |way: &&AtomicU64| matches!(way.load(Relaxed) >> 32, old if old == tag || old == 0);
        let free = self.ways(inode, piece.start).find(is_free);
        // Full: another is forgotten, not always the same.
        let way = free.or_else(|| self.ways(inode, piece.start).nth(piece.slot as usize % WAYS));
        if let Some(way) = way {
            way.store(word, Release);
        }
    }

    /// Forgets a piece that is hidden.
    pub fn forget(&self, inode: Inode, piece: &Piece) {
        let word = tag_of(inode, piece.start) << 32 | u64::from(piece.slot);
        for way in self.ways(inode, piece.start).filter(|way| way.load(Relaxed) == word) {
            way.store(0, Relaxed);
        }
    }
}

/// In 32 bits, never 0.
fn tag_of(inode: Inode, start: u64) -> u64 {
    mix(inode.0, start) >> 32 | 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pieces::HEADER_BYTES;
    use std::vec::Vec;

    /// Files of many pieces leave each other room.
    #[test]
    fn most_pieces_of_large_files_are_known() {
        const SLOTS: u32 = 40_000;
        let memory = |bytes| Segment::nameless(c"test", bytes).expect("memory").0;
        let table = PieceTable::new(memory(SLOTS as usize * HEADER_BYTES));
        for (chunk_log2, chunks) in [(16, 500), (20, 30), (22, 4), (22, 1000)] {
            let finder =
                Finder::new(memory(finder_bytes(SLOTS as usize))).expect("a length of one");
            let doubling = (12..chunk_log2).map(|log2| 1u64 << log2);
            let starts: Vec<u64> = [0].into_iter().chain(doubling).collect();
            let further = (1..chunks).map(|chunk: u64| chunk << chunk_log2);
            let starts: Vec<u64> = starts.into_iter().chain(further).collect();
            let piece = |slot: u32| Piece {
                start: starts[slot as usize % starts.len()],
                slot,
                place: u64::from(slot) << 12,
                length_log2: 12,
                tier: Piece::MEMORY,
            };
            let inode = |slot: u32| Inode(7000 + u64::from(slot) / starts.len() as u64);
            for slot in 0..SLOTS {
                table.publish(inode(slot), &piece(slot)).expect("in range");
                finder.note(inode(slot), &piece(slot));
            }
            let found = |slot: u32| finder.find(&table, inode(slot), piece(slot).start);
            let known = (0..SLOTS).filter(|&slot| found(slot) == Some(piece(slot))).count();
            let (per_file, percent) = (starts.len(), known * 100 / SLOTS as usize);
            assert!(
                percent >= 98,
                "{percent} % with {per_file} pieces by chunks of 2^{chunk_log2}"
            );
        }
    }

    #[test]
    fn what_is_found_is_what_the_table_says() {
        const SLOTS: u32 = 600;
        let memory = |bytes| Segment::nameless(c"test", bytes).expect("memory").0;
        let table = PieceTable::new(memory(SLOTS as usize * HEADER_BYTES));
        let finder = Finder::new(memory(finder_bytes(SLOTS as usize))).expect("a length of one");
        let piece = |slot: u32| Piece {
            start: u64::from(slot % 3) << 12,
            slot,
            place: u64::from(slot) << 12,
            length_log2: 12,
            tier: Piece::MEMORY,
        };
        let inode = |slot: u32| Inode(7000 + u64::from(slot / 3));
        for slot in 0..SLOTS {
            assert_eq!(finder.find(&table, inode(slot), piece(slot).start), None);
            table.publish(inode(slot), &piece(slot)).expect("in range");
            finder.note(inode(slot), &piece(slot));
        }
        let found = |slot: u32| finder.find(&table, inode(slot), piece(slot).start);
        let known = (0..SLOTS).filter(|&slot| found(slot) == Some(piece(slot))).count();
        assert!(known > SLOTS as usize * 9 / 10, "only {known} are known");
        for slot in (0..SLOTS).step_by(2) {
            table.unpublish(slot).expect("in range");
        }
        assert!((0..SLOTS).step_by(2).all(|slot| found(slot).is_none()), "hidden and found");
        for slot in (0..SLOTS).step_by(2) {
            finder.forget(inode(slot), &piece(slot));
        }
        // Another file in the slot is not taken for the one that had it.
        table.publish(Inode(1), &piece(1)).expect("in range");
        assert_eq!(found(1), None);
    }
}

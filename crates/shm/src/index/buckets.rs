//! Buckets of an index: where those of a table lie, and how one is read beside its writer. What stands
//! in them: `index`.

use super::WAYS;
use crate::sync::{AtomicU64, fence};
use core::sync::atomic::Ordering::{Acquire, Relaxed};

/// Of three rows for two buckets one in 60 finds its bucket full: so many spill buckets hold them.
pub(super) const fn spill_count(buckets_log2: u32) -> usize {
    if buckets_log2 < 3 { 1 } else { 1 << (buckets_log2 - 3) }
}

/// One of the two tables: where it lies, what its rows are.
pub(super) struct Table {
    /// Where its buckets begin, and those for rows that find their own full.
    pub(super) base: usize,
    pub(super) spills: usize,
    pub(super) spill_count: usize,
    /// Which of the header's words counts its buckets in use.
    pub(super) count_word: usize,
    pub(super) buckets_max: u32,
    pub(super) row_bytes: usize,
    /// Where a row has its mode.
    pub(super) mode_at: usize,
    /// Rows in use. Only the writer counts.
    pub(super) rows: AtomicU64,
    /// End of the memory that is present. Only the writer knows.
    pub(super) populated: AtomicU64,
}

impl Table {
    pub(super) const fn bucket_bytes(&self) -> usize {
        16 + WAYS * self.row_bytes
    }

    pub(super) const fn at(&self, bucket: u32) -> usize {
        self.base + bucket as usize * self.bucket_bytes()
    }

    /// The bucket for a row that finds no room in its own. It stays where the table grows.
    pub(super) const fn spill(&self, hash: u64) -> usize {
        // A power of two.
        self.spills + (hash as usize & (self.spill_count - 1)) * self.bucket_bytes()
    }
}

/// The bucket of a hash among so many, at least one.
#[inline]
pub(super) const fn bucket_among(count: u32, hash: u64) -> u32 {
    // All bits that a number below the count may have; one at least, whose half is none.
    let mask = u32::MAX >> ((count - 1) | 1).leading_zeros();
    let bucket = hash as u32 & mask;
    if bucket >= count { bucket & mask >> 1 } else { bucket }
}

/// What `read` says of a bucket, if no writer was in it meanwhile.
#[inline]
pub(super) fn read_once<const WORDS: usize, R>(
    words: &[AtomicU64; WORDS],
    read: &mut impl FnMut(&[AtomicU64; WORDS]) -> R,
) -> Option<R> {
    let sequence = &words[0];
    let before = sequence.load(Acquire);
    if before & 1 != 0 {
        return None;
    }
    let found = read(words);
    fence(Acquire);
    (sequence.load(Relaxed) == before).then_some(found)
}

//! Buckets of an index: where those of a table are, and how one is read while the writer may change
//! it. For their contents see `index`.

use super::WAYS;
use super::parts::TableParts;
use crate::segment::Segment;
use crate::sync::{self, AtomicU64, fence, read_attempts};
use core::sync::atomic::Ordering::{Acquire, Relaxed};
use wire::Inode;
use wire::hash::{mix, neighbourly};

/// Memory of new buckets is made present in steps of this many bytes, which costs a fraction of
/// single page faults.
const POPULATE_BYTES: u64 = 256 << 10;

/// With three records for two buckets, one in 60 finds its bucket full: this many spill buckets
/// hold them.
pub(super) const fn spill_count(buckets_log2: u32) -> usize {
    if buckets_log2 < 3 { 1 } else { 1 << (buckets_log2 - 3) }
}

/// One of the two tables: its place and the form of its records.
pub(super) struct Table {
    /// Offset of its buckets, and of those for records whose own bucket is full.
    pub(super) base: usize,
    pub(super) spills: usize,
    pub(super) spill_count: usize,
    /// Offset of the header's word that counts its buckets in use.
    pub(super) count_word: usize,
    pub(super) buckets_max: u32,
    /// The parts of it that a reader has mapped, if it maps parts.
    pub(super) parts: TableParts,
    pub(super) record_bytes: usize,
    /// Offset of the mode in a record.
    pub(super) mode_at: usize,
    /// Records in use. Only the writer counts.
    pub(super) records: AtomicU64,
    /// End of the memory that is present. Only the writer maintains it.
    pub(super) populated: AtomicU64,
}

impl Table {
    pub(super) const fn bucket_bytes(&self) -> usize {
        16 + WAYS * self.record_bytes
    }

    pub(super) const fn at(&self, bucket: u32) -> usize {
        self.base + bucket as usize * self.bucket_bytes()
    }

    /// Makes the memory of bucket number `bucket` present. False if there is none.
    pub(super) fn reserve(&self, segment: &Segment, bucket: u32) -> bool {
        let end = self.at(bucket + 1) as u64;
        let present = self.populated.load(Relaxed);
        if end <= present {
            return true;
        }
        let last = self.at(self.buckets_max) as u64;
        let steps = [(end.max(present) + POPULATE_BYTES).min(last), end];
        let reserved = steps
            .into_iter()
            .find(|step| segment.reserve(present as usize, (step - present) as usize).is_ok());
        if let Some(step) = reserved {
            self.populated.store(step, Relaxed);
        }
        reserved.is_some()
    }

    /// The bucket for a record whose own bucket is full. It stays the same while the table grows.
    pub(super) const fn spill(&self, hash: u64) -> usize {
        // A power of two.
        self.spills + (hash as usize & (self.spill_count - 1)) * self.bucket_bytes()
    }
}

/// The bucket of a hash among `count`, at least one.
#[inline]
pub(super) const fn bucket_among(count: u32, hash: u64) -> u32 {
    // All bits that a number below the count may have; at least one, whose half is none.
    let mask = u32::MAX >> ((count - 1) | 1).leading_zeros();
    let bucket = hash as u32 & mask;
    if bucket >= count { bucket & mask >> 1 } else { bucket }
}

/// The result of `read` on a bucket, if no writer was in it meanwhile.
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

/// Runs `look_up` on a bucket's words until no writer was in it meanwhile. `None` after many attempts.
pub(super) fn read<const WORDS: usize, R>(
    words: &[AtomicU64; WORDS],
    mut look_up: impl FnMut(&[AtomicU64; WORDS]) -> R,
) -> Option<R> {
    (0..read_attempts()).find_map(|_| {
        let found = read_once(words, &mut look_up);
        if found.is_none() {
            sync::spin_loop();
        }
        found
    })
}

/// The key of the record that marks a directory as complete: that of no name, as unlikely to occur
/// as two names that share one.
pub(super) const fn complete_key(directory: Inode) -> u128 {
    (!directory.0 as u128) << 64 | mix(directory.0, 4) as u128
}

/// The hash that selects the bucket of an inode.
pub(super) const fn inode_hash(inode: u64) -> u64 {
    neighbourly(Inode(inode), 7)
}

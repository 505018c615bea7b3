//! The index: entries and attributes of local shards, readable without a message (B1).
//!
//! A cache that may forget anything: what it does not know costs a message. One writer (the worker
//! that owns the shards), any number of readers, each bucket under a sequence counter.
//!
//! Layout: a header of 64 bytes (log2 of the bucket counts as two u32), then the entry buckets,
//! then the inode buckets. A bucket: sequence u64 (odd while it is written), hand u64 (which way is
//! replaced next), then `WAYS` rows.
//!
//!   entry row (32 bytes): key low u64, key high u64, inode u64 (0: known absent), mode u64
//!   inode row (104 bytes): the encoded attributes of `wire` as 13 words; the first is the inode

use crate::segment::Segment;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicU64, fence};
use wire::attributes::ATTRIBUTES_BYTES;
use wire::codec::{Reader, Writer};
use wire::errno::{Errno, Result};
use wire::hash::mix;
use wire::{Attributes, Inode};

const HEADER: usize = 64;
const WAYS: usize = 4;
const ENTRY_ROW: usize = 32;
const INODE_WORDS: usize = ATTRIBUTES_BYTES / 8;
const INODE_ROW: usize = ATTRIBUTES_BYTES;
const ENTRY_BUCKET: usize = 16 + WAYS * ENTRY_ROW;
const INODE_BUCKET: usize = 16 + WAYS * INODE_ROW;
/// How often a reader looks again while the writer is in the bucket, before it asks by message.
const TRIES: u32 = 64;

const _: () = assert!(ATTRIBUTES_BYTES.is_multiple_of(8));

/// Sizes of an index, as log2 of the number of buckets of four.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    /// Entry buckets.
    pub entries_log2: u32,
    /// Inode buckets.
    pub inodes_log2: u32,
}

impl Shape {
    /// For 256 Ki entries and as many inodes: 10 and 28 MiB of address space, touched as used.
    pub const DEFAULT: Shape = Shape { entries_log2: 16, inodes_log2: 16 };

    /// Length of the segment.
    #[must_use]
    pub const fn bytes(self) -> usize {
        HEADER + (ENTRY_BUCKET << self.entries_log2) + (INODE_BUCKET << self.inodes_log2)
    }
}

/// What the index knows of an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Hit {
    /// It exists: inode and type bits.
    Found(Inode, u32),
    /// It does not exist.
    Absent,
    /// Ask.
    Unknown,
}

/// An index, from either side.
pub struct Index {
    segment: Segment,
    shape: Shape,
}

impl Index {
    /// Takes a mapping that the writer made with `shape`, and empties it.
    ///
    /// # Errors
    /// `EINVAL` if it is too short.
    pub fn create(segment: Segment, shape: Shape) -> Result<Index> {
        if segment.len() < shape.bytes() {
            return Err(Errno::EINVAL);
        }
        segment.word32(0)?.store(shape.entries_log2, Relaxed);
        segment.word32(4)?.store(shape.inodes_log2, Relaxed);
        Ok(Index { segment, shape })
    }

    /// Takes a reader's mapping.
    ///
    /// # Errors
    /// `EINVAL` if its header and its length do not agree.
    pub fn open(segment: Segment) -> Result<Index> {
        let entries_log2 = segment.word32(0)?.load(Acquire);
        let inodes_log2 = segment.word32(4)?.load(Acquire);
        if entries_log2 > 28 || inodes_log2 > 28 {
            return Err(Errno::EINVAL);
        }
        let shape = Shape { entries_log2, inodes_log2 };
        if segment.len() < shape.bytes() {
            Err(Errno::EINVAL)
        } else {
            Ok(Index { segment, shape })
        }
    }

    fn word(&self, offset: usize) -> Result<&AtomicU64> {
        self.segment.word64(offset)
    }

    fn entry_bucket(&self, key: u128) -> usize {
        let hash = (key as u64) & ((1 << self.shape.entries_log2) - 1);
        HEADER + hash as usize * ENTRY_BUCKET
    }

    fn inode_bucket(&self, inode: Inode) -> usize {
        let hash = mix(inode.0, 7) & ((1 << self.shape.inodes_log2) - 1);
        HEADER + (ENTRY_BUCKET << self.shape.entries_log2) + hash as usize * INODE_BUCKET
    }

    /// Runs `read` until no writer was in the bucket meanwhile. `None` after many tries.
    fn read<R>(&self, bucket: usize, mut read: impl FnMut() -> Result<R>) -> Option<R> {
        let sequence = self.word(bucket).ok()?;
        for _ in 0..TRIES {
            let before = sequence.load(Acquire);
            if before & 1 == 0 {
                let found = read().ok()?;
                fence(Acquire);
                if sequence.load(Relaxed) == before {
                    return Some(found);
                }
            }
            core::hint::spin_loop();
        }
        None
    }

    /// The entry with this key (`wire::hash::entry_key`).
    #[must_use]
    pub fn entry(&self, key: u128) -> Hit {
        let bucket = self.entry_bucket(key);
        let (low, high) = (key as u64, (key >> 64) as u64);
        let found = self.read(bucket, || {
            for way in 0..WAYS {
                let row = bucket + 16 + way * ENTRY_ROW;
                if self.word(row)?.load(Relaxed) != low || self.word(row + 8)?.load(Relaxed) != high
                {
                    continue;
                }
                let inode = self.word(row + 16)?.load(Relaxed);
                let mode = self.word(row + 24)?.load(Relaxed) as u32;
                return Ok(if inode == 0 { Hit::Absent } else { Hit::Found(Inode(inode), mode) });
            }
            Ok(Hit::Unknown)
        });
        found.unwrap_or(Hit::Unknown)
    }

    /// The attributes of an inode, if known.
    #[must_use]
    pub fn inode(&self, inode: Inode) -> Option<Attributes> {
        let bucket = self.inode_bucket(inode);
        let mut bytes = [0; ATTRIBUTES_BYTES];
        let found = self.read(bucket, || {
            for way in 0..WAYS {
                let row = bucket + 16 + way * INODE_ROW;
                if self.word(row)?.load(Relaxed) != inode.0 {
                    continue;
                }
                for (word, chunk) in bytes.chunks_exact_mut(8).enumerate() {
                    let value = self.word(row + 8 * word)?.load(Relaxed);
                    chunk.copy_from_slice(&value.to_le_bytes());
                }
                return Ok(true);
            }
            Ok(false)
        })?;
        if !found {
            return None;
        }
        Attributes::decode(&mut Reader::new(&bytes)).ok()
    }

    fn write(&self, bucket: usize, write: impl FnOnce() -> Result<()>) -> Result<()> {
        let sequence = self.word(bucket)?;
        let before = sequence.load(Relaxed) & !1;
        sequence.store(before.wrapping_add(1), Relaxed);
        fence(Release);
        let outcome = write();
        sequence.store(before.wrapping_add(2), Release);
        outcome
    }

    /// The row of a bucket that `is_it` names, else an empty one, else the next to be replaced.
    fn row(
        &self,
        bucket: usize,
        row_bytes: usize,
        is_it: impl Fn(usize) -> Result<bool>,
        is_empty: impl Fn(usize) -> Result<bool>,
    ) -> Result<usize> {
        let mut empty = None;
        for way in 0..WAYS {
            let row = bucket + 16 + way * row_bytes;
            if is_it(row)? {
                return Ok(row);
            }
            if empty.is_none() && is_empty(row)? {
                empty = Some(row);
            }
        }
        if let Some(row) = empty {
            return Ok(row);
        }
        let hand = self.word(bucket + 8)?;
        let way = hand.load(Relaxed) as usize % WAYS;
        hand.store(hand.load(Relaxed).wrapping_add(1), Relaxed);
        Ok(bucket + 16 + way * row_bytes)
    }

    fn set_entry(&self, key: u128, inode: u64, mode: u32) -> Result<()> {
        let bucket = self.entry_bucket(key);
        let (low, high) = (key as u64, (key >> 64) as u64);
        let at = |offset: usize| Ok::<u64, Errno>(self.word(offset)?.load(Relaxed));
        let row = self.row(
            bucket,
            ENTRY_ROW,
            |row| Ok(at(row)? == low && at(row + 8)? == high),
            |row| Ok(at(row)? == 0 && at(row + 8)? == 0),
        )?;
        self.write(bucket, || {
            self.word(row)?.store(low, Relaxed);
            self.word(row + 8)?.store(high, Relaxed);
            self.word(row + 16)?.store(inode, Relaxed);
            self.word(row + 24)?.store(u64::from(mode), Relaxed);
            Ok(())
        })
    }

    /// The entry exists. Only the writer calls this and what follows.
    pub fn put_entry(&self, key: u128, inode: Inode, mode: u32) {
        let _ = self.set_entry(key, inode.0, mode);
    }

    /// The entry does not exist.
    pub fn put_absent(&self, key: u128) {
        let _ = self.set_entry(key, 0, 0);
    }

    /// Nothing is known about the entry.
    pub fn forget_entry(&self, key: u128) {
        let bucket = self.entry_bucket(key);
        let (low, high) = (key as u64, (key >> 64) as u64);
        for way in 0..WAYS {
            let row = bucket + 16 + way * ENTRY_ROW;
            let is =
                |offset, value| self.word(offset).is_ok_and(|word| word.load(Relaxed) == value);
            if is(row, low) && is(row + 8, high) {
                let _ = self.write(bucket, || {
                    self.word(row)?.store(0, Relaxed);
                    self.word(row + 8)?.store(0, Relaxed);
                    Ok(())
                });
            }
        }
    }

    /// The attributes of an inode.
    pub fn put_inode(&self, attributes: &Attributes) {
        let mut bytes = [0; ATTRIBUTES_BYTES];
        attributes.encode(&mut Writer::new(&mut bytes));
        let mut words = [0; INODE_WORDS];
        for (word, chunk) in words.iter_mut().zip(bytes.chunks_exact(8)) {
            *word = u64::from_le_bytes(chunk.try_into().unwrap_or_default());
        }
        let _ = self.set_inode(attributes.inode, &words);
    }

    fn set_inode(&self, inode: Inode, words: &[u64; INODE_WORDS]) -> Result<()> {
        let bucket = self.inode_bucket(inode);
        let at = |offset: usize| Ok::<u64, Errno>(self.word(offset)?.load(Relaxed));
        let row =
            self.row(bucket, INODE_ROW, |row| Ok(at(row)? == inode.0), |row| Ok(at(row)? == 0))?;
        self.write(bucket, || {
            for (word, value) in words.iter().enumerate() {
                self.word(row + 8 * word)?.store(*value, Relaxed);
            }
            Ok(())
        })
    }

    /// The inode is gone, or no longer ours to tell of.
    pub fn forget_inode(&self, inode: Inode) {
        let bucket = self.inode_bucket(inode);
        for way in 0..WAYS {
            let row = bucket + 16 + way * INODE_ROW;
            if self.word(row).is_ok_and(|word| word.load(Relaxed) == inode.0) {
                let _ = self.write(bucket, || {
                    self.word(row)?.store(0, Relaxed);
                    Ok(())
                });
            }
        }
    }
}

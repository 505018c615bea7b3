//! The activity segment: what the processes of a host do, as counters that they keep without a
//! system call and that the daemon gathers.
//!
//! - `blocks`: which blocks are in use, and by which process: taking, ending, freeing.
//! - `calls`: the counters of a block for each class of operations.
//! - `records`: the counters of a block for each file that is read or written.
//! - `directories`: in which directories a process works with names.
//! - `causes`: where slow reads had their bytes, and what requests waited for.
//! - `pace`: how fast the thread of a block may move bytes.
//!
//! One segment for each host, made by its first daemon; every client maps it for reading and
//! writing. A *block* belongs to one thread of one process (`Lane::is_shared` is false), which
//! counts by plain loads and stores on lines that nobody else writes; or to all threads of a
//! process, which then count by atomic additions. The daemon reads counters, takes differences
//! with what it read before, frees blocks of ended processes and records of idle files, and writes the
//! pace. So a
//! process that is killed at any point leaves at worst one operation uncounted.
//!
//! Layout:
//!
//!   0      magic u32, blocks taken u32 (a futex: the gatherer sleeps on it), places of records u32,
//!          at 64 whether new blocks wait for their pace (`pace`)
//!   4096   directory: a word of 8 bytes for each block (`blocks`)
//!   16384  blocks of 8192 bytes
//!          behind them 128 bytes for each block (`directories`)
//!
//!   block: 0 owner and tags (`blocks`), 160 classes (`calls`), 512 file records (`records`)
//!
//! Nothing fails for lack of space: a thread without a block counts in block 0, which belongs to no
//! process, and a file without a record in record 0 of the block, which belongs to no file.

pub mod blocks;

pub mod calls;

pub mod records;

pub mod causes;

pub mod directories;

pub mod pace;

pub use blocks::{BlockIndex, Owner, Tags, Taken};
pub use calls::{CallCounter, CallSample, OpClass, OwnCalls};
pub use causes::{SlowSource, WaitCause};
pub use records::{DirectionSample, OpenWords, PlainTransfer, RecordSample, Transfer};

use crate::segment::{self, Segment};
use crate::sync::AtomicU64;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use rustix::fd::OwnedFd;
use wire::errno::{Errno, Result};

const MAGIC_AT: usize = 0;
const MAGIC: u32 = 0x4642_4131;
/// Word that counts the blocks taken so far; the gatherer sleeps on it.
const TAKEN_AT: usize = 4;
const DIRECTORY: usize = 4096;
const BLOCKS: usize = 16_384;
/// Blocks of a host, 8 MiB.
pub const BLOCK_COUNT: usize = 1024;
const BLOCK_BYTES: usize = 8192;
const DIRECTORIES: usize = BLOCKS + BLOCK_COUNT * BLOCK_BYTES;
/// Length of the segment. Memory is touched as it is used.
pub const ACTIVITY_BYTES: usize = DIRECTORIES + BLOCK_COUNT * directories::TABLE_BYTES;
/// Bytes that have memory from the start: the directory, and block 0.
pub const ACTIVITY_PRESENT_BYTES: usize = BLOCKS + BLOCK_BYTES;

const _: () = assert!(DIRECTORY + BLOCK_COUNT * 8 <= BLOCKS);
const _: () = assert!(BLOCKS.is_multiple_of(BLOCK_BYTES));

/// The mapped segment.
pub struct ActivitySegment {
    segment: Segment,
}

/// Where a thread counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lane {
    /// The block.
    pub block: BlockIndex,
    /// Other threads may count there at the same time.
    pub is_shared: bool,
}

impl Lane {
    /// The block that belongs to no process.
    pub const NOBODY: Lane = Lane { block: BlockIndex(0), is_shared: true };
    const SHARED: u32 = 1 << 31;

    /// As one word, never zero.
    #[must_use]
    pub const fn word(self) -> u32 {
        (self.block.0 + 1) | if self.is_shared { Lane::SHARED } else { 0 }
    }

    /// The lane of a word; `None` for zero.
    #[must_use]
    #[inline]
    pub const fn of_word(word: u32) -> Option<Lane> {
        match (word & !Lane::SHARED).checked_sub(1) {
            Some(block) => {
                Some(Lane { block: BlockIndex(block), is_shared: word & Lane::SHARED != 0 })
            }
            None => None,
        }
    }
}

/// A block in which the calling thread alone counts, by its place in the segment: most calls and
/// transfers find theirs by it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OwnBlock(core::num::NonZeroU32);

impl OwnBlock {
    /// The block of a lane; `None` if others count there, too.
    #[must_use]
    pub const fn of(lane: Lane) -> Option<OwnBlock> {
        if lane.is_shared || lane.block.0 as usize >= BLOCK_COUNT {
            return None;
        }
        OwnBlock::of_word((BLOCKS + lane.block.0 as usize * BLOCK_BYTES) as u32)
    }

    /// As one word, never zero.
    #[must_use]
    pub const fn word(self) -> u32 {
        self.0.get()
    }

    /// The block of a word; `None` for zero.
    #[must_use]
    #[inline]
    pub const fn of_word(word: u32) -> Option<OwnBlock> {
        match core::num::NonZeroU32::new(word) {
            Some(place) => Some(OwnBlock(place)),
            None => None,
        }
    }

    /// The lane that it is.
    const fn lane(self) -> Lane {
        let block = BlockIndex(((self.place() - BLOCKS) / BLOCK_BYTES) as u32);
        Lane { block, is_shared: false }
    }

    /// Its offset in the segment.
    #[inline(always)]
    const fn place(self) -> usize {
        self.0.get() as usize
    }
}

impl ActivitySegment {
    /// Sees nothing of the shared memory any more (`Segment::detach`).
    pub fn detach(&self) {
        self.segment.detach();
    }

    /// Takes a mapping. A fresh one, all zeros, is valid as it is.
    ///
    /// # Errors
    /// `EINVAL` if it is too short or not an activity segment.
    pub fn new(segment: Segment) -> Result<ActivitySegment> {
        if segment.len() < ACTIVITY_BYTES {
            return Err(Errno::EINVAL);
        }
        let magic = segment.word32(MAGIC_AT)?;
        match magic.compare_exchange(0, MAGIC, AcqRel, Acquire) {
            Ok(_) | Err(MAGIC) => Ok(ActivitySegment { segment }),
            Err(_) => Err(Errno::EINVAL),
        }
    }

    /// Creates or opens the segment of a host.
    ///
    /// # Errors
    /// `ENOSPC` if there is no memory for its directory; errors of the operating system.
    pub fn create_or_open(path: &core::ffi::CStr) -> Result<(ActivitySegment, OwnedFd)> {
        let (segment, fd, _) = Segment::create(path, ACTIVITY_BYTES)?;
        segment::allocate(&fd, 0..ACTIVITY_PRESENT_BYTES)?;
        Ok((ActivitySegment::new(segment)?, fd))
    }
}

/// Adds to a counter that only the calling thread writes.
#[inline(always)]
fn add_own(counter: &AtomicU64, count: u64) {
    counter.store(counter.load(Relaxed).wrapping_add(count), Relaxed);
}

/// A thread that takes longer for one operation was not running, or waited for something rare.
const RARE_NANOS: u64 = 4_000_000;

/// Time of as many operations as one that was timed stands for. A rare one stands for itself alone:
/// otherwise one that the scheduler interrupted would count for seconds.
fn weighted(nanos: u64, each: u64) -> u64 {
    if nanos > RARE_NANOS { nanos } else { nanos * each }
}

/// A number from 0 to 63 for a count: each occurs about once in 64 counts, in an order that no loop of a
/// program has. If one count in 64 were taken, a program that repeats four calls would always have the
/// same one timed.
#[inline(always)]
const fn spread(count: u64) -> u32 {
    (count as u32).wrapping_mul(0x9e37_79b1) >> 26
}

/// Adds to a counter of a lane.
#[inline(always)]
fn add(counter: &AtomicU64, count: u64, is_shared: bool) {
    if is_shared {
        counter.fetch_add(count, Relaxed);
    } else {
        add_own(counter, count);
    }
}

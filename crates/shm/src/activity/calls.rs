//! Counters of calls by class: how many, how many failed, and how long they took.
//!
//! Reads and writes are counted by file (`records`); their classes here hold failures only. The
//! time is measured of one call in `TIMED_EACH` and counted that often, so that most calls read no
//! clock.

use super::blocks::Block;
use super::{ActivitySegment, BlockIndex, Lane, OwnBlock, add, add_own, spread, weighted};
use crate::sync::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;
use wire::errno::Errno;

/// One call in this many is timed (`spread`).
pub const TIMED_EACH: u64 = 64;

/// Classes of operations.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub enum OpClass {
    /// Opens of existing files, and of files that may exist.
    Open = 0,
    /// Opens with `O_EXCL`, and new directories, links and special files.
    Create = 1,
    /// Attributes of a file or path, and access checks.
    Stat = 2,
    /// Listing a directory.
    ReadDirectory = 3,
    /// Removing names.
    Unlink = 4,
    /// Renaming.
    Rename = 5,
    /// Reads of bytes.
    Read = 6,
    /// Writes of bytes.
    Write = 7,
    /// Making data durable.
    Sync = 8,
    /// Closes.
    Close = 9,
    /// Everything else.
    Other = 10,
}

/// Number of classes.
pub const CLASS_COUNT: usize = 11;

impl OpClass {
    /// All classes, in order of their numbers.
    pub const ALL: [OpClass; CLASS_COUNT] = [
        OpClass::Open,
        OpClass::Create,
        OpClass::Stat,
        OpClass::ReadDirectory,
        OpClass::Unlink,
        OpClass::Rename,
        OpClass::Read,
        OpClass::Write,
        OpClass::Sync,
        OpClass::Close,
        OpClass::Other,
    ];
}

/// The counters of one class.
#[repr(C)]
pub(super) struct ClassCounters {
    number: AtomicU64,
    failures: AtomicU64,
    /// Failures by `ENOENT`, which `failures` contains.
    absent: AtomicU64,
    nanos: AtomicU64,
}

/// The counters of one class as they were read. They wrap.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CallSample {
    /// Calls; zero for reads and writes.
    pub number: u64,
    /// Calls that failed.
    pub failures: u64,
    /// Calls that failed with `ENOENT`.
    pub absent: u64,
    /// Nanoseconds in calls, from a sample.
    pub nanos: u64,
}

/// The calls of a lane.
#[derive(Clone, Copy)]
pub struct CallCounter<'a> {
    block: &'a Block,
    is_shared: bool,
}

impl CallCounter<'_> {
    /// Whether the next call is to be timed.
    #[inline]
    #[must_use]
    pub fn is_timed(self) -> bool {
        spread(self.block.ticks.load(Relaxed)) == 0
    }

    /// Counts a call that succeeded.
    #[inline]
    pub fn count(self, class: OpClass) {
        add(&self.block.ticks, 1, self.is_shared);
        if let Some(counters) = self.block.classes.get(class as usize) {
            add(&counters.number, 1, self.is_shared);
        }
    }
}

/// The calls of a block of the calling thread.
#[derive(Clone, Copy)]
pub struct OwnCalls<'a> {
    block: &'a Block,
}

impl OwnCalls<'_> {
    /// Counts a call that succeeded.
    #[inline(always)]
    pub fn count(self, class: OpClass) {
        add_own(&self.block.ticks, 1);
        if let Some(counters) = self.block.classes.get(class as usize) {
            add_own(&counters.number, 1);
        }
    }
}

impl ActivitySegment {
    /// The calls of a block of the calling thread; `None` if the next call is to be timed.
    #[inline(always)]
    #[must_use]
    pub fn untimed_calls(&self, block: OwnBlock) -> Option<OwnCalls<'_>> {
        let block: &Block = self.segment.entry(block.place()).ok()?;
        (spread(block.ticks.load(Relaxed)) != 0).then_some(OwnCalls { block })
    }

    /// The calls of a lane.
    #[inline]
    #[must_use]
    pub fn calls_of(&self, lane: Lane) -> Option<CallCounter<'_>> {
        Some(CallCounter { block: self.block(lane.block).ok()?, is_shared: lane.is_shared })
    }

    /// Whether the next call of a lane is to be timed.
    #[must_use]
    pub fn is_timed(&self, lane: Lane) -> bool {
        self.calls_of(lane).is_some_and(CallCounter::is_timed)
    }

    /// Counts a call that succeeded.
    pub fn count_call(&self, lane: Lane, class: OpClass) {
        if let Some(counter) = self.calls_of(lane) {
            counter.count(class);
        }
    }

    /// Counts a call that failed; one of reading or writing as a failure alone.
    #[cold]
    pub fn count_failure(&self, lane: Lane, class: OpClass, errno: Errno) {
        let Ok(block) = self.block(lane.block) else { return };
        add(&block.ticks, 1, lane.is_shared);
        let Some(counters) = block.classes.get(class as usize) else { return };
        if !matches!(class, OpClass::Read | OpClass::Write) {
            add(&counters.number, 1, lane.is_shared);
        }
        add(&counters.failures, 1, lane.is_shared);
        if errno == Errno::ENOENT {
            add(&counters.absent, 1, lane.is_shared);
        }
    }

    /// Counts the time of a call that was timed.
    #[cold]
    pub fn count_time(&self, lane: Lane, class: OpClass, nanos: u64) {
        let Ok(block) = self.block(lane.block) else { return };
        if let Some(counters) = block.classes.get(class as usize) {
            add(&counters.nanos, weighted(nanos, TIMED_EACH), lane.is_shared);
        }
    }

    /// The counters of a block.
    #[must_use]
    pub fn calls(&self, block: BlockIndex) -> [CallSample; CLASS_COUNT] {
        let mut samples = [CallSample::default(); CLASS_COUNT];
        let Ok(block) = self.block(block) else { return samples };
        for (sample, counters) in samples.iter_mut().zip(&block.classes) {
            *sample = CallSample {
                number: counters.number.load(Relaxed),
                failures: counters.failures.load(Relaxed),
                absent: counters.absent.load(Relaxed),
                nanos: counters.nanos.load(Relaxed),
            };
        }
        samples
    }
}

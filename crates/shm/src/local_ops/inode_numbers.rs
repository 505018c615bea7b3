//! Inode numbers granted to local operations: how their daemon grants them, and how another daemon of
//! the host reads them, to predict which files will be made next. That is a guess: it must do no harm
//! where the numbers are wrong. How clients take them is in `op_log`.

use crate::local_ops::{NUMBERS, OpLog};
use crate::segment::{Access, Segment};
use core::ops::Range;
use core::sync::atomic::Ordering::{Relaxed, Release, SeqCst};
use rustix::fd::AsFd;
use wire::errno::{Errno, Result};
use wire::id::LOCAL_OP_SEQUENCE_FIRST;
use wire::limits::SHARD_COUNT;
use wire::{Inode, ShardIndex};

/// The numbers of one daemon's shards: the second part of its operation log.
pub struct InodeNumbers {
    segment: Segment,
}

impl InodeNumbers {
    /// Maps them; `fd` is an operation log.
    ///
    /// # Errors
    /// `EINVAL` if it is too short; errors of the operating system.
    pub fn map(fd: impl AsFd) -> Result<InodeNumbers> {
        let length = usize::from(SHARD_COUNT) * 16;
        let segment = Segment::map_part(fd, NUMBERS as u64, length, Access::ReadOnly)?;
        Ok(InodeNumbers { segment })
    }

    /// The numbers that the next files of `shard` will have, in that order.
    ///
    /// # Errors
    /// `EINVAL` for a shard that does not exist.
    pub fn left(&self, shard: ShardIndex) -> Result<Range<u64>> {
        if shard.0 >= SHARD_COUNT {
            return Err(Errno::EINVAL);
        }
        let at = usize::from(shard.0) * 16;
        let next = self.segment.word64(at)?.load(Relaxed);
        let end = self.segment.word64(at + 8)?.load(Relaxed);
        // Clients write here: the result must be numbers of local operations.
        let last = Inode(u64::MAX).sequence();
        Ok(next.clamp(LOCAL_OP_SEQUENCE_FIRST, last)..end.clamp(LOCAL_OP_SEQUENCE_FIRST, last))
    }
}

impl OpLog {
    /// Number of inode numbers left for local operations in `shard`.
    #[must_use]
    pub fn numbers_left(&self, shard: ShardIndex) -> u64 {
        let (Ok(next), Ok(end)) = (self.numbers(shard, 0), self.numbers(shard, 8)) else {
            return u64::MAX;
        };
        end.load(Relaxed).saturating_sub(next.load(Relaxed))
    }

    /// Lets local operations in `shard` use the numbers below `end` that were not used yet; in a new
    /// segment, where the used ones are unknown, those from `first` on.
    pub fn grant_numbers(&self, shard: ShardIndex, first: u64, end: u64) {
        if let (Ok(next), Ok(last)) = (self.numbers(shard, 0), self.numbers(shard, 8)) {
            // The rest of an earlier grant stays valid: extents were preallocated for the numbers
            // that come next.
            let begin = |next| if next < LOCAL_OP_SEQUENCE_FIRST { first } else { next };
            let _ = next.fetch_update(SeqCst, SeqCst, |next| Some(begin(next)));
            // Only the worker that owns the shard grants.
            last.store(end.max(last.load(Relaxed)), Release);
        }
    }

    /// As `grant_numbers`, without the rest of an earlier grant: from now on no number below `first` is
    /// taken.
    pub fn renew_numbers(&self, shard: ShardIndex, first: u64, end: u64) {
        if let (Ok(next), Ok(last)) = (self.numbers(shard, 0), self.numbers(shard, 8)) {
            next.fetch_max(first, SeqCst);
            last.store(end.max(last.load(Relaxed)), Release);
        }
    }
}

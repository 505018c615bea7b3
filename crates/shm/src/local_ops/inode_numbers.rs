//! Inode numbers granted to local operations, as read by a daemon of the host that grants none, to
//! predict which files will be made next. A guess: it must do no harm where the numbers are wrong.

use crate::local_ops::NUMBERS;
use crate::segment::{Access, Segment};
use core::ops::Range;
use core::sync::atomic::Ordering::Relaxed;
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

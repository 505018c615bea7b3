//! Inode numbers granted to posts, as a daemon of the host reads them that grants none: which files
//! will be made next. A guess: who follows it must do no harm where the numbers are wrong.

use crate::posts::NUMBERS;
use crate::segment::{Access, Segment};
use core::ops::Range;
use core::sync::atomic::Ordering::Relaxed;
use rustix::fd::AsFd;
use wire::errno::{Errno, Result};
use wire::limits::SHARD_COUNT;
use wire::post::SEQUENCE_FIRST;
use wire::{Inode, ShardIndex};

/// The numbers of one daemon's shards: the second part of its segment of posts.
pub struct Numbers {
    segment: Segment,
}

impl Numbers {
    /// Maps them; `fd` is a segment of posts.
    ///
    /// # Errors
    /// `EINVAL` if it is too short, or what the operating system says.
    pub fn map(fd: impl AsFd) -> Result<Numbers> {
        let length = usize::from(SHARD_COUNT) * 16;
        let segment = Segment::map_part(fd, NUMBERS as u64, length, Access::ReadOnly)?;
        Ok(Numbers { segment })
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
        // Clients write here: what comes of it must be numbers of posts.
        let last = Inode(u64::MAX).sequence();
        Ok(next.clamp(SEQUENCE_FIRST, last)..end.clamp(SEQUENCE_FIRST, last))
    }
}

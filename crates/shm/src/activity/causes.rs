//! Causes of slow reads and writes: where bytes came from that were not in memory of this host, and why
//! requests waited.
//!
//! Counted only where a request goes to a daemon or bytes come from a device, never on the way of a copy
//! in memory: what is in no source was in memory.

use super::{ActivitySegment, BlockIndex, Lane, add};
use core::sync::atomic::Ordering::Relaxed;

/// Places of bytes other than memory of this host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum SlowSource {
    /// An SSD of this host.
    Ssd = 0,
    /// Another host.
    Remote = 1,
    /// The backing store. The same bytes may be in `Remote`, too, if they came through another host.
    Backing = 2,
}

/// Number of sources.
pub const SOURCE_COUNT: usize = 3;

/// Cause of a wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum WaitCause {
    /// Space for what it writes.
    Space = 0,
    /// Bytes of the backing store.
    Backing = 1,
    /// A lock of a file.
    Lock = 2,
    /// Its share, or a limit.
    Share = 3,
}

/// Number of causes.
pub const WAIT_COUNT: usize = 4;

impl ActivitySegment {
    /// Counts a wait.
    #[cold]
    pub fn count_wait(&self, lane: Lane, cause: WaitCause, nanos: u64) {
        let Ok(block) = self.block(lane.block) else { return };
        if let Some(counter) = block.waits.get(cause as usize) {
            add(counter, nanos, lane.is_shared);
        }
    }

    /// Nanoseconds that the threads of a block waited, by `WaitCause`.
    #[must_use]
    pub fn waits(&self, block: BlockIndex) -> [u64; WAIT_COUNT] {
        let block = self.block(block).ok();
        block.map_or([0; WAIT_COUNT], |block| block.waits.each_ref().map(|one| one.load(Relaxed)))
    }
}

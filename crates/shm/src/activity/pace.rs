//! How fast the thread of a block may move bytes of files, those included that it copies itself in shared
//! memory, for which no daemon is asked.
//!
//! The home daemon says it (`set_pace`, `hold`), where a rule limits the job of the block. A thread looks
//! before transfers that it times anyway: all large ones, and one in `TIMED_EACH` of the others, which
//! stands for them. So others cost nothing. A process that does not look is not held back, as one that
//! does not count is not counted: it maps the memory of the files.
//!
//! Invariants:
//!  1. A hold of a daemon that is killed ends by itself; the next daemon ends a pace.

use super::blocks::Block;
use super::{ActivitySegment, BlockIndex, DIRECTORY, Lane, Transfer};
use crate::sync::AtomicU64;
use crate::wait;
use core::sync::atomic::Ordering::Relaxed;

/// Longest time for which one call of `hold` holds back a thread, in nanoseconds.
pub const HOLD_NANOS_MAX: u64 = 1_000_000_000;
/// Longest time for which a thread holds back itself after a transfer: its rate may rise meanwhile, and
/// the daemon, which looks much more often, holds it back as long as its account owes more.
pub const PACE_NANOS_MAX: u64 = HOLD_NANOS_MAX / 4;
/// A new block waits for its pace no longer than this, where some block has one.
pub const NEW_HOLD_NANOS: u64 = 100_000_000;
/// Word of the segment: new blocks wait for their pace.
const HOLDS_NEW_AT: usize = 64;
const _: () = assert!(HOLDS_NEW_AT < DIRECTORY);
const MIB_LOG2: u32 = 20;

/// The words of a block.
#[repr(C)]
pub(super) struct Pace {
    /// Nanoseconds for each MiB; 0: no limit.
    nanos_per_mib: AtomicU64,
    /// When the next read, and the next write, may begin: `wait::now_nanos`.
    free_at: [AtomicU64; 2],
}

impl Pace {
    const fn free_at(&self, way: Transfer) -> &AtomicU64 {
        let [reads, writes] = &self.free_at;
        match way {
            Transfer::Read => reads,
            Transfer::Write => writes,
        }
    }
}

impl ActivitySegment {
    fn pace_of(&self, block: BlockIndex) -> Option<&Pace> {
        // Block 0 is everybody's.
        let is_somebodys = block != Lane::NOBODY.block;
        is_somebodys.then(|| self.block(block).ok()).flatten().map(|block| &block.pace)
    }

    /// Nanoseconds that a transfer of a lane waits before it begins.
    #[must_use]
    pub fn held_nanos(&self, lane: Lane, way: Transfer, now: u64) -> u64 {
        let free_at = self.pace_of(lane.block).map_or(0, |pace| pace.free_at(way).load(Relaxed));
        free_at.saturating_sub(now)
    }

    /// True if a rule limits the bytes of a lane. One that is new waits without that.
    #[must_use]
    pub fn has_pace(&self, lane: Lane) -> bool {
        self.pace_of(lane.block).is_some_and(|pace| pace.nanos_per_mib.load(Relaxed) != 0)
    }

    /// A transfer of a lane begins; this many bytes are those that it stands for.
    pub fn note_begun(&self, lane: Lane, way: Transfer, bytes: u64, now: u64) {
        let Some(pace) = self.pace_of(lane.block) else { return };
        let each = pace.nanos_per_mib.load(Relaxed);
        if each == 0 {
            return;
        }
        let nanos = (u128::from(bytes) * u128::from(each)) >> MIB_LOG2;
        let nanos = u64::try_from(nanos).unwrap_or(u64::MAX).min(PACE_NANOS_MAX);
        // A hold that comes at the same moment may be lost: the daemon repeats it.
        let free_at = pace.free_at(way);
        free_at.store(free_at.load(Relaxed).max(now).saturating_add(nanos), Relaxed);
    }

    /// Sets the pace of a block, in nanoseconds for each MiB.
    pub fn set_pace(&self, block: BlockIndex, nanos_per_mib: u64) {
        if let Some(pace) = self.pace_of(block) {
            pace.nanos_per_mib.store(nanos_per_mib, Relaxed);
        }
    }

    /// Transfers of a block do not wait any more.
    pub fn set_free(&self, block: BlockIndex) {
        let Some(pace) = self.pace_of(block) else { return };
        pace.nanos_per_mib.store(0, Relaxed);
        pace.free_at.iter().for_each(|free_at| free_at.store(0, Relaxed));
    }

    /// Whether new blocks are held back until their pace is known.
    pub fn hold_new(&self, are_held: bool) {
        if let Ok(word) = self.segment.word32(HOLDS_NEW_AT) {
            word.store(are_held.into(), Relaxed);
        }
    }

    /// A block is taken.
    pub(super) fn begin_pace(&self, block: &Block) {
        if self.segment.word32(HOLDS_NEW_AT).is_ok_and(|word| word.load(Relaxed) != 0) {
            let until = wait::now_nanos().saturating_add(NEW_HOLD_NANOS);
            block.pace.free_at.iter().for_each(|free_at| free_at.store(until, Relaxed));
        }
    }

    /// Holds back transfers of a block for this time, at most `HOLD_NANOS_MAX`; 0: no longer.
    pub fn hold(&self, block: BlockIndex, way: Transfer, now: u64, nanos: u64) {
        let Some(pace) = self.pace_of(block) else { return };
        let until = now.saturating_add(nanos.min(HOLD_NANOS_MAX));
        match nanos {
            0 => pace.free_at(way).store(0, Relaxed),
            _ => drop(pace.free_at(way).fetch_max(until, Relaxed)),
        }
    }
}

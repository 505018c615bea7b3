//! One device of a target: the memory arena or the SSD file.
//!
//! The device is taken into use from its beginning on, one largest block after the other; what
//! lies below `frontier` belongs to the buddy allocator. A device that promises nothing yet
//! (`Backing::OnDemand`) is asked to preallocate the next step before the frontier moves, so that
//! no write of a client ever meets a full device.
//!
//!   beyond the frontier --extend/confirm--> free --take--> used --release--> free
//!
//! Invariants:
//!  1. `bytes_free + bytes_used == length`.
//!  2. The frontier moves up only, in whole steps or to the end.
//!  3. At most one step is being preallocated.

use crate::Haste;
use crate::buddy::{BLOCK_BYTES_MAX, BLOCK_LOG2_MAX, BLOCK_LOG2_MIN, Buddy, History};
use wire::limits::PIECE_BYTES_MIN;

/// After the device refused a step, it is not asked again for so many allocations: a refusal may
/// cost the device a scan, and only somebody outside can make room there.
const REFUSALS_KEPT: u32 = 256;

/// Does the device hold its space already?
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Backing {
    /// Yes: it was preallocated as a whole.
    Ready,
    /// No: `Effect::Preallocate` comes first.
    OnDemand,
}

/// A device as the target finds it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Space {
    /// Bytes that may be used; rounded down to the smallest piece.
    pub length: u64,
    /// Who holds the space.
    pub backing: Backing,
    /// Bytes at this offset and above were never written and read as zeros. 0 for a new device,
    /// `u64::MAX` if nothing is known.
    pub fresh_from: u64,
    /// Keep at least so many bytes free and preallocated, before anybody needs them.
    pub ahead: u64,
}

/// What came of asking for a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Found {
    /// A block at this offset.
    Block(u64, History),
    /// Room is there, but the device must preallocate this range first.
    Extend {
        /// Its beginning.
        place: u64,
        /// Its length in bytes.
        length: u64,
    },
    /// No room.
    Full,
}

/// The state of one device.
#[derive(Clone, Debug)]
pub struct Tier {
    space: Space,
    buddy: Buddy,
    frontier: u64,
    bytes_used: u64,
    refusals_left: u32,
}

impl Tier {
    /// A device of which nothing is in use.
    #[must_use]
    pub fn new(space: Space) -> Tier {
        let length = space.length / PIECE_BYTES_MIN * PIECE_BYTES_MIN;
        let space = Space { length, ..space };
        Tier { space, buddy: Buddy::new(), frontier: 0, bytes_used: 0, refusals_left: 0 }
    }

    /// Bytes that may be used.
    #[must_use]
    pub const fn bytes_total(&self) -> u64 {
        self.space.length
    }

    /// Bytes that are in no block.
    #[must_use]
    pub const fn bytes_free(&self) -> u64 {
        self.buddy.bytes_free() + (self.space.length - self.frontier)
    }

    /// Bytes in blocks that were taken.
    #[must_use]
    pub const fn bytes_used(&self) -> u64 {
        self.bytes_used
    }

    /// The step that comes next.
    fn step(&self) -> u64 {
        (self.space.length - self.frontier).min(BLOCK_BYTES_MAX)
    }

    /// Takes a block of 2^`log2` bytes for which nothing must be preallocated first.
    pub fn take_ready(&mut self, log2: u8) -> Option<(u64, History)> {
        let mut block = self.buddy.take(log2);
        if block.is_none() && self.space.backing == Backing::Ready && self.step() >= 1 << log2 {
            self.extend();
            block = self.buddy.take(log2);
        }
        self.bytes_used += if block.is_some() { 1 << log2 } else { 0 };
        block
    }

    /// True if who takes so much of what is ready leaves half of what should be ready to others.
    #[must_use]
    pub fn has_ample(&self, length: u64) -> bool {
        let left = self.buddy.bytes_free().saturating_sub(length);
        self.space.backing == Backing::Ready || left >= self.space.ahead / 2
    }

    /// Takes a block of 2^`log2` bytes, or says what it needs.
    pub fn take(&mut self, log2: u8) -> Found {
        if let Some((place, history)) = self.take_ready(log2) {
            return Found::Block(place, history);
        }
        let length = self.step();
        // The frontier is aligned to the largest block, so the step holds a block of 2^log2 bytes
        // exactly if it is that long.
        if length < 1 << log2 {
            return Found::Full;
        }
        if self.refusals_left > 0 {
            self.refusals_left -= 1;
            return Found::Full;
        }
        Found::Extend { place: self.frontier, length }
    }

    /// The step that should be preallocated now although nobody waits for it.
    #[must_use]
    pub fn ahead(&self) -> Option<(u64, u64, Haste)> {
        let step = self.step();
        let ready = self.buddy.bytes_free();
        let is_short = ready < self.space.ahead;
        let may = self.space.backing == Backing::OnDemand && self.refusals_left == 0;
        let haste = if ready < self.space.ahead / 2 { Haste::Soon } else { Haste::None };
        (may && is_short && step > 0).then_some((self.frontier, step, haste))
    }

    /// The device preallocated the step that `take` asked for, or refused.
    pub fn preallocated(&mut self, outcome: wire::errno::Result<()>) {
        match outcome {
            Ok(()) => self.extend(),
            Err(_) => self.refusals_left = REFUSALS_KEPT,
        }
    }

    /// Gives a block back.
    pub fn release(&mut self, place: u64, log2: u8) {
        self.bytes_used -= 1 << log2;
        self.buddy.release(place, log2, History::Used);
    }

    /// Takes the block at `place`, as found after a kill. False if it is not free or lies outside.
    #[must_use]
    pub fn take_at(&mut self, place: u64, log2: u8) -> bool {
        let Some(end) = place.checked_add(1 << log2).filter(|&end| end <= self.space.length) else {
            return false;
        };
        // What was in use was preallocated, and so was everything below it.
        while self.frontier < end {
            self.extend();
        }
        let taken = self.buddy.take_at(place, log2).is_some();
        if taken {
            self.bytes_used += 1 << log2;
        }
        taken
    }

    /// Hands the next step to the buddy allocator.
    fn extend(&mut self) {
        let end = (self.frontier + BLOCK_BYTES_MAX).min(self.space.length);
        while self.frontier < end {
            let left = end - self.frontier;
            let log2 = (left.ilog2() as u8).min(BLOCK_LOG2_MAX);
            assert!(log2 >= BLOCK_LOG2_MIN, "the length is a multiple of the smallest piece");
            let is_fresh = self.frontier >= self.space.fresh_from;
            let history = if is_fresh { History::Fresh } else { History::Used };
            self.buddy.release(self.frontier, log2, history);
            self.frontier += 1 << log2;
        }
    }

    /// Holds invariant 1.
    pub fn check(&self) {
        assert_eq!(self.bytes_free() + self.bytes_used, self.space.length, "space was lost");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::Errno;

    const MIB: u64 = 1 << 20;

    #[test]
    fn an_odd_length_is_used_to_its_end() {
        let length = 64 * MIB + 5 * PIECE_BYTES_MIN + 1;
        let mut tier =
            Tier::new(Space { length, backing: Backing::Ready, fresh_from: 0, ahead: 0 });
        let mut count = 0;
        while let Found::Block(_, history) = tier.take(14) {
            assert_eq!(history, History::Fresh);
            count += 1;
        }
        assert_eq!(count, 4096 + 1, "the last piece is of the smallest size");
        assert_eq!(tier.take(12), Found::Block(length - 1 - PIECE_BYTES_MIN, History::Fresh));
        assert_eq!(tier.bytes_free(), 0);
        tier.check();
    }

    #[test]
    fn a_step_is_preallocated_before_it_is_used() {
        let space = Space { length: 96 * MIB, backing: Backing::OnDemand, fresh_from: 0, ahead: 0 };
        let mut tier = Tier::new(space);
        assert_eq!(tier.take(20), Found::Extend { place: 0, length: 64 * MIB });
        tier.preallocated(Ok(()));
        assert_eq!(tier.take(20), Found::Block(0, History::Fresh));
        assert_eq!(tier.take(26), Found::Full, "32 MiB are left");
        assert_eq!(tier.take(25), Found::Block(32 * MIB, History::Fresh));
        assert_eq!(tier.take(25), Found::Extend { place: 64 * MIB, length: 32 * MIB });
        tier.preallocated(Err(Errno::ENOSPC));
        assert_eq!(tier.take(25), Found::Full, "the device is not asked at once");
        tier.release(32 * MIB, 25);
        assert_eq!(tier.take(25), Found::Block(32 * MIB, History::Used));
        tier.check();
    }
}

//! One device of a target: the memory arena or the SSD file.
//!
//! The device is taken into use from its beginning, one block of the largest size after the other;
//! the buddy allocator has what is below `frontier`. A device that guarantees no space yet
//! (`Backing::OnDemand`) must provision the next step before the frontier moves, so that no
//! client's write ever meets a full device.
//!
//!   beyond the frontier, or absent --extend/confirm--> free --take--> used --release--> free
//!   free --give_back--> leaving --given_back--> absent
//!
//! A device may be allowed to hold less than its length (`lending_policy`). Then nothing is taken
//! beyond the allowance, and free space beyond it is given back to the lender: it is *absent*
//! afterwards, reads as zeros, and must be provisioned again. Used space stays, even beyond the
//! allowance.
//!
//! Invariants:
//!  1. Each byte below the frontier is free, used, leaving or absent.
//!  2. The frontier only grows.
//!  3. At most one step is being provisioned.

use crate::Haste;
use crate::space::buddy::{BLOCK_BYTES_MAX, BLOCK_LOG2_MAX, BLOCK_LOG2_MIN, BlockContents, Buddy};
use wire::limits::EXTENT_BYTES_MIN;

/// After the device refused a step it is not asked for this many allocations, unless a request
/// waits: a refusal may cost the device a scan, and only the outside can make space there.
const REFUSAL_PAUSE: u32 = 256;

/// Whether the device holds its space already.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Backing {
    /// Yes: it was provisioned as a whole.
    Ready,
    /// No: `Effect::Provision` comes first.
    OnDemand,
}

/// Description of a device, given to the target.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Space {
    /// Usable bytes; rounded down to the smallest extent.
    pub length: u64,
    /// Whether the space is provisioned.
    pub backing: Backing,
    /// Bytes at this offset and above were never written and read as zeros. 0 for a new device,
    /// `u64::MAX` if unknown.
    pub zeroed_from: u64,
    /// Number of free bytes to keep provisioned before any request needs them.
    pub ahead: u64,
}

/// Result of an allocation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Allocation {
    /// A block at this offset.
    Block(u64, BlockContents),
    /// There is space, but the device must provision this range first.
    Extend {
        /// Offset of the range.
        location: u64,
        /// Its length in bytes.
        length: u64,
    },
    /// No space.
    Full,
}

/// The state of one device.
#[derive(Clone, Debug)]
pub struct Tier {
    space: Space,
    buddy: Buddy,
    /// Space below the frontier that the device does not hold.
    absent: Buddy,
    frontier: u64,
    bytes_used: u64,
    bytes_leaving: u64,
    allowance: u64,
    /// The step being provisioned, until the device answers.
    step: Option<(u64, u64)>,
    refusals_left: u32,
}

impl Tier {
    /// A device with nothing in use and everything allowed.
    #[must_use]
    pub fn new(space: Space) -> Tier {
        let length = space.length / EXTENT_BYTES_MIN * EXTENT_BYTES_MIN;
        let space = Space { length, ..space };
        Tier {
            space,
            buddy: Buddy::new(),
            absent: Buddy::new(),
            frontier: 0,
            bytes_used: 0,
            bytes_leaving: 0,
            allowance: length,
            step: None,
            refusals_left: 0,
        }
    }

    /// Length of the device in bytes.
    #[must_use]
    pub const fn length(&self) -> u64 {
        self.space.length
    }

    /// Bytes that may be used or are in use.
    #[must_use]
    pub fn bytes_total(&self) -> u64 {
        self.allowance.max(self.bytes_used)
    }

    /// Bytes that may be used and are in no block.
    #[must_use]
    pub const fn bytes_free(&self) -> u64 {
        self.allowance.saturating_sub(self.bytes_used)
    }

    /// Bytes in used blocks.
    #[must_use]
    pub const fn bytes_used(&self) -> u64 {
        self.bytes_used
    }

    /// Bytes that the device holds, used or free, without those leaving.
    #[must_use]
    pub const fn bytes_held(&self) -> u64 {
        self.frontier - self.absent.bytes_free() - self.bytes_leaving
    }

    /// Bytes being given back.
    #[must_use]
    pub const fn bytes_leaving(&self) -> u64 {
        self.bytes_leaving
    }

    /// Bytes that may be held.
    #[must_use]
    pub const fn allowance(&self) -> u64 {
        self.allowance
    }

    /// Sets the number of bytes that may be held.
    pub fn allow(&mut self, bytes: u64) {
        self.allowance = bytes.min(self.space.length) / EXTENT_BYTES_MIN * EXTENT_BYTES_MIN;
        self.ask_again();
    }

    /// A request waits for space: forget earlier refusals of the device.
    pub const fn ask_again(&mut self) {
        self.refusals_left = 0;
    }

    /// The next step to provision: space that was given back, else space beyond the frontier.
    fn next_step(&self) -> Option<(u64, u64)> {
        let available = self.allowance.saturating_sub(self.bytes_held());
        if self.step.is_some() || available < EXTENT_BYTES_MIN {
            return self.step;
        }
        let available_log2 = (available.ilog2() as u8).min(BLOCK_LOG2_MAX);
        let absent =
            self.absent.largest(available_log2).map(|(location, log2)| (location, 1 << log2));
        let beyond = (self.space.length - self.frontier).min(BLOCK_BYTES_MAX).min(available);
        let beyond = beyond / EXTENT_BYTES_MIN * EXTENT_BYTES_MIN;
        absent.or_else(|| (beyond > 0).then_some((self.frontier, beyond)))
    }

    /// True if a step can hold a block of 2^`log2` bytes.
    fn fits((location, length): (u64, u64), log2: u8) -> bool {
        location.next_multiple_of(1 << log2) + (1 << log2) <= location + length
    }

    /// Takes a block of 2^`log2` bytes that needs no provisioning.
    pub fn take_ready(&mut self, log2: u8) -> Option<(u64, BlockContents)> {
        if self.bytes_free() < 1 << log2 {
            return None;
        }
        let mut block = self.buddy.take(log2);
        if block.is_none()
            && self.space.backing == Backing::Ready
            && let Some(step) = self.next_step().filter(|&step| Tier::fits(step, log2))
        {
            self.extend(step);
            block = self.buddy.take(log2);
        }
        self.bytes_used += if block.is_some() { 1 << log2 } else { 0 };
        block
    }

    /// True if taking `length` bytes leaves half of the desired provisioned space to others.
    #[must_use]
    pub fn has_ample(&self, length: u64) -> bool {
        let bytes_left = self.buddy.bytes_free().saturating_sub(length);
        let is_ready = self.space.backing == Backing::Ready || bytes_left >= self.space.ahead / 2;
        is_ready && self.bytes_free() >= length
    }

    /// Takes a block of 2^`log2` bytes, or returns what must happen first.
    pub fn take(&mut self, log2: u8) -> Allocation {
        if let Some((location, contents)) = self.take_ready(log2) {
            return Allocation::Block(location, contents);
        }
        if self.bytes_free() < 1 << log2 {
            return Allocation::Full;
        }
        let step = self.next_step();
        let Some((location, length)) =
            step.filter(|&step| self.step.is_some() || Tier::fits(step, log2))
        else {
            return Allocation::Full;
        };
        if self.refusals_left > 0 {
            self.refusals_left -= 1;
            return Allocation::Full;
        }
        self.step = Some((location, length));
        Allocation::Extend { location, length }
    }

    /// The step that should be provisioned in advance, without a waiting request.
    #[must_use]
    pub fn ahead(&mut self) -> Option<(u64, u64, Haste)> {
        let ready = self.buddy.bytes_free();
        let is_short = ready < self.space.ahead;
        let may = self.space.backing == Backing::OnDemand && self.refusals_left == 0;
        let haste = if ready < self.space.ahead / 2 { Haste::Soon } else { Haste::None };
        if !may || !is_short {
            return None;
        }
        self.step = self.next_step();
        self.step.map(|(location, length)| (location, length, haste))
    }

    /// Completion of the step that `take` or `ahead` returned.
    pub fn provisioned(&mut self, outcome: wire::errno::Result<()>) {
        let Some(step) = self.step.take() else { return };
        match outcome {
            Ok(()) => self.extend(step),
            Err(_) => self.refusals_left = REFUSAL_PAUSE,
        }
    }

    /// Takes a free block of at least 2^`log2_min` bytes that is held beyond the allowance; it is
    /// leaving from now on. Returns its offset and the log2 of its length.
    pub fn give_back(&mut self, log2_min: u8) -> Option<(u64, u8)> {
        let beyond = self.bytes_held().saturating_sub(self.allowance);
        if beyond == 0 || self.buddy.largest(BLOCK_LOG2_MAX)?.1 < log2_min {
            return None;
        }
        let log2 = beyond.next_power_of_two().trailing_zeros().min(u32::from(BLOCK_LOG2_MAX));
        let (location, log2, _) = self.buddy.take_largest(log2 as u8)?;
        self.bytes_leaving += 1 << log2;
        Some((location, log2))
    }

    /// Completion of giving a block back.
    pub fn given_back(&mut self, (location, log2): (u64, u8), outcome: wire::errno::Result<()>) {
        self.bytes_leaving -= 1 << log2;
        match outcome {
            Ok(()) => self.absent.release(location, log2, BlockContents::Zeroed),
            Err(_) => self.buddy.release(location, log2, BlockContents::Dirty),
        }
    }

    /// Recovery: nobody knows whether the device holds the free space; `give_back` makes sure that
    /// it does not, and returns false if it cannot.
    pub fn forget_free(&mut self, give_back: &mut dyn FnMut(u64, u64) -> bool) {
        let free: Vec<(u64, u8)> = self.buddy.blocks().collect();
        for (location, log2) in free {
            let is_gone = give_back(location, 1 << log2);
            if is_gone && self.buddy.take_at(location, log2).is_some() {
                self.absent.release(location, log2, BlockContents::Zeroed);
            }
        }
    }

    /// Frees a block.
    pub fn release(&mut self, location: u64, log2: u8) {
        self.bytes_used -= 1 << log2;
        self.buddy.release(location, log2, BlockContents::Dirty);
    }

    /// Takes the block at `location`, found by recovery. False if it is not free or lies outside.
    #[must_use]
    pub fn take_at(&mut self, location: u64, log2: u8) -> bool {
        let Some(end) = location.checked_add(1 << log2).filter(|&end| end <= self.space.length)
        else {
            return false;
        };
        // Used space was provisioned, and so was everything before it.
        while self.frontier < end {
            let length = (self.space.length - self.frontier).min(BLOCK_BYTES_MAX);
            self.extend((self.frontier, length));
        }
        let taken = self.buddy.take_at(location, log2).is_some();
        if taken {
            self.bytes_used += 1 << log2;
        }
        taken
    }

    /// Hands a step to the buddy allocator.
    fn extend(&mut self, (location, length): (u64, u64)) {
        let (mut at, end) = (location, location + length);
        while at < end {
            let longest = u32::from(BLOCK_LOG2_MAX).min((end - at).ilog2());
            let log2 = longest.min(at.trailing_zeros()) as u8;
            assert!(log2 >= BLOCK_LOG2_MIN, "offsets are multiples of the smallest extent");
            let contents = if at < self.frontier {
                self.absent.take_at(at, log2).unwrap_or(BlockContents::Dirty)
            } else if at >= self.space.zeroed_from {
                BlockContents::Zeroed
            } else {
                BlockContents::Dirty
            };
            self.buddy.release(at, log2, contents);
            at += 1 << log2;
        }
        self.frontier = self.frontier.max(end);
    }

    /// Checks invariant 1.
    pub fn check(&self) {
        let held = self.buddy.bytes_free() + self.bytes_used;
        let all = held + self.bytes_leaving + self.absent.bytes_free();
        assert_eq!(all, self.frontier, "space was lost");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::Errno;

    const MIB: u64 = 1 << 20;

    #[test]
    fn an_odd_length_is_used_to_its_end() {
        let length = 64 * MIB + 5 * EXTENT_BYTES_MIN + 1;
        let mut tier =
            Tier::new(Space { length, backing: Backing::Ready, zeroed_from: 0, ahead: 0 });
        let mut count = 0;
        while let Allocation::Block(_, contents) = tier.take(14) {
            assert_eq!(contents, BlockContents::Zeroed);
            count += 1;
        }
        assert_eq!(count, 4096 + 1, "the last extent is of the smallest size");
        assert_eq!(
            tier.take(12),
            Allocation::Block(length - 1 - EXTENT_BYTES_MIN, BlockContents::Zeroed)
        );
        assert_eq!(tier.bytes_free(), 0);
        tier.check();
    }

    #[test]
    fn a_step_is_provisioned_before_it_is_used() {
        let space =
            Space { length: 96 * MIB, backing: Backing::OnDemand, zeroed_from: 0, ahead: 0 };
        let mut tier = Tier::new(space);
        assert_eq!(tier.take(20), Allocation::Extend { location: 0, length: 64 * MIB });
        tier.provisioned(Ok(()));
        assert_eq!(tier.take(20), Allocation::Block(0, BlockContents::Zeroed));
        assert_eq!(tier.take(26), Allocation::Full, "32 MiB are left");
        assert_eq!(tier.take(25), Allocation::Block(32 * MIB, BlockContents::Zeroed));
        assert_eq!(tier.take(25), Allocation::Extend { location: 64 * MIB, length: 32 * MIB });
        tier.provisioned(Err(Errno::ENOSPC));
        assert_eq!(tier.take(25), Allocation::Full, "the device is not asked again at once");
        tier.release(32 * MIB, 25);
        assert_eq!(tier.take(25), Allocation::Block(32 * MIB, BlockContents::Dirty));
        tier.check();
    }
}

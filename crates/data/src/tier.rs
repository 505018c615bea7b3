//! One device of a target: the memory arena or the SSD file.
//!
//! The device is taken into use from its beginning on, one largest block after the other; what
//! lies below `frontier` belongs to the buddy allocator. A device that promises nothing yet
//! (`Backing::OnDemand`) is asked to preallocate the next step before the frontier moves, so that
//! no write of a client ever meets a full device.
//!
//!   beyond the frontier, or absent --extend/confirm--> free --take--> used --release--> free
//!   free --give_back--> leaving --given_back--> absent
//!
//! A device may be allowed to hold less than its length (`lending`). Then nothing is taken beyond the
//! allowance, and what is free beyond it is given back to who lent it: it is *absent* afterwards, reads
//! as zeros, and must be preallocated again. What is in use stays, also beyond the allowance.
//!
//! Invariants:
//!  1. Below the frontier each byte is free, used, leaving or absent.
//!  2. The frontier moves up only.
//!  3. At most one step is being preallocated.

use crate::Haste;
use crate::buddy::{BLOCK_BYTES_MAX, BLOCK_LOG2_MAX, BLOCK_LOG2_MIN, Buddy, History};
use wire::limits::PIECE_BYTES_MIN;

/// After the device refused a step, it is not asked again for so many allocations, unless somebody waits:
/// a refusal may cost the device a scan, and only somebody outside can make room there.
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
    /// What the device does not hold (any more), below the frontier.
    absent: Buddy,
    frontier: u64,
    bytes_used: u64,
    bytes_leaving: u64,
    allowance: u64,
    /// The step that was asked for last, until the device answered.
    step: Option<(u64, u64)>,
    refusals_left: u32,
}

impl Tier {
    /// A device of which nothing is in use, and all is allowed.
    #[must_use]
    pub fn new(space: Space) -> Tier {
        let length = space.length / PIECE_BYTES_MIN * PIECE_BYTES_MIN;
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

    /// Bytes of the device.
    #[must_use]
    pub const fn length(&self) -> u64 {
        self.space.length
    }

    /// Bytes that may be used, or are.
    #[must_use]
    pub fn bytes_total(&self) -> u64 {
        self.allowance.max(self.bytes_used)
    }

    /// Bytes that may be used and are in no block.
    #[must_use]
    pub const fn bytes_free(&self) -> u64 {
        self.allowance.saturating_sub(self.bytes_used)
    }

    /// Bytes in blocks that were taken.
    #[must_use]
    pub const fn bytes_used(&self) -> u64 {
        self.bytes_used
    }

    /// Bytes that the device holds, used or not, without those that leave.
    #[must_use]
    pub const fn bytes_held(&self) -> u64 {
        self.frontier - self.absent.bytes_free() - self.bytes_leaving
    }

    /// Bytes that leave.
    #[must_use]
    pub const fn bytes_leaving(&self) -> u64 {
        self.bytes_leaving
    }

    /// Bytes that may be held.
    #[must_use]
    pub const fn allowance(&self) -> u64 {
        self.allowance
    }

    /// So many bytes may be held from now on.
    pub fn allow(&mut self, bytes: u64) {
        self.allowance = bytes.min(self.space.length) / PIECE_BYTES_MIN * PIECE_BYTES_MIN;
        self.ask_again();
    }

    /// Somebody waits for room: what the device refused before says nothing.
    pub const fn ask_again(&mut self) {
        self.refusals_left = 0;
    }

    /// The step that comes next: what was given back before, else what is beyond the frontier.
    fn next_step(&self) -> Option<(u64, u64)> {
        let room = self.allowance.saturating_sub(self.bytes_held());
        if self.step.is_some() || room < PIECE_BYTES_MIN {
            return self.step;
        }
        let room_log2 = (room.ilog2() as u8).min(BLOCK_LOG2_MAX);
        let absent = self.absent.largest(room_log2).map(|(place, log2)| (place, 1 << log2));
        let beyond = (self.space.length - self.frontier).min(BLOCK_BYTES_MAX).min(room);
        let beyond = beyond / PIECE_BYTES_MIN * PIECE_BYTES_MIN;
        absent.or_else(|| (beyond > 0).then_some((self.frontier, beyond)))
    }

    /// True if a step holds a block of 2^`log2` bytes.
    fn fits((place, length): (u64, u64), log2: u8) -> bool {
        place.next_multiple_of(1 << log2) + (1 << log2) <= place + length
    }

    /// Takes a block of 2^`log2` bytes for which nothing must be preallocated first.
    pub fn take_ready(&mut self, log2: u8) -> Option<(u64, History)> {
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

    /// True if who takes so much of what is ready leaves half of what should be ready to others.
    #[must_use]
    pub fn has_ample(&self, length: u64) -> bool {
        let left = self.buddy.bytes_free().saturating_sub(length);
        let is_ready = self.space.backing == Backing::Ready || left >= self.space.ahead / 2;
        is_ready && self.bytes_free() >= length
    }

    /// Takes a block of 2^`log2` bytes, or says what it needs.
    pub fn take(&mut self, log2: u8) -> Found {
        if let Some((place, history)) = self.take_ready(log2) {
            return Found::Block(place, history);
        }
        if self.bytes_free() < 1 << log2 {
            return Found::Full;
        }
        let step = self.next_step();
        let Some((place, length)) =
            step.filter(|&step| self.step.is_some() || Tier::fits(step, log2))
        else {
            return Found::Full;
        };
        if self.refusals_left > 0 {
            self.refusals_left -= 1;
            return Found::Full;
        }
        self.step = Some((place, length));
        Found::Extend { place, length }
    }

    /// The step that should be preallocated now although nobody waits for it.
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
        self.step.map(|(place, length)| (place, length, haste))
    }

    /// The device preallocated the step that `take` asked for, or refused.
    pub fn preallocated(&mut self, outcome: wire::errno::Result<()>) {
        let Some(step) = self.step.take() else { return };
        match outcome {
            Ok(()) => self.extend(step),
            Err(_) => self.refusals_left = REFUSALS_KEPT,
        }
    }

    /// A free block of 2^`log2_min` bytes or more that is held beyond the allowance: it leaves from now
    /// on.
    /// Place and log2 of its length.
    pub fn give_back(&mut self, log2_min: u8) -> Option<(u64, u8)> {
        let beyond = self.bytes_held().saturating_sub(self.allowance);
        if beyond == 0 || self.buddy.largest(BLOCK_LOG2_MAX)?.1 < log2_min {
            return None;
        }
        let log2 = beyond.next_power_of_two().trailing_zeros().min(u32::from(BLOCK_LOG2_MAX));
        let (place, log2, _) = self.buddy.take_largest(log2 as u8)?;
        self.bytes_leaving += 1 << log2;
        Some((place, log2))
    }

    /// The device gave a block back, or could not.
    pub fn given_back(&mut self, (place, log2): (u64, u8), outcome: wire::errno::Result<()>) {
        self.bytes_leaving -= 1 << log2;
        match outcome {
            Ok(()) => self.absent.release(place, log2, History::Fresh),
            Err(_) => self.buddy.release(place, log2, History::Used),
        }
    }

    /// After a kill: of what is free nobody knows whether the device holds it; `give_back` makes sure
    /// that it does not. False if it can not.
    pub fn forget_free(&mut self, give_back: &mut dyn FnMut(u64, u64) -> bool) {
        let free: Vec<(u64, u8)> = self.buddy.blocks().collect();
        for (place, log2) in free {
            let is_gone = give_back(place, 1 << log2);
            if is_gone && self.buddy.take_at(place, log2).is_some() {
                self.absent.release(place, log2, History::Fresh);
            }
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
            let length = (self.space.length - self.frontier).min(BLOCK_BYTES_MAX);
            self.extend((self.frontier, length));
        }
        let taken = self.buddy.take_at(place, log2).is_some();
        if taken {
            self.bytes_used += 1 << log2;
        }
        taken
    }

    /// Hands a step to the buddy allocator.
    fn extend(&mut self, (place, length): (u64, u64)) {
        let (mut at, end) = (place, place + length);
        while at < end {
            let longest = u32::from(BLOCK_LOG2_MAX).min((end - at).ilog2());
            let log2 = longest.min(at.trailing_zeros()) as u8;
            assert!(log2 >= BLOCK_LOG2_MIN, "places are multiples of the smallest piece");
            let history = if at < self.frontier {
                self.absent.take_at(at, log2).unwrap_or(History::Used)
            } else if at >= self.space.fresh_from {
                History::Fresh
            } else {
                History::Used
            };
            self.buddy.release(at, log2, history);
            at += 1 << log2;
        }
        self.frontier = self.frontier.max(end);
    }

    /// Holds invariant 1.
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

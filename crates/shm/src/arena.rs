//! The arena of a memory target: one sparse file in shared memory, addressed by byte offset.
//!
//! Which bytes belong to whom is said by the piece table; here is only the copying.

use crate::segment::Segment;
use core::sync::atomic::Ordering::Relaxed;
use wire::errno::{Errno, Result};

/// A process takes the arena into its page table in parts of 64 KiB, as it touches them: page
/// faults one by one cost ten times the copy.
const PART_LOG2: u32 = 16;

/// The mapped arena.
pub struct Arena {
    segment: Segment,
    /// One bit for each part that this process has touched.
    touched: Option<Segment>,
}

impl Arena {
    /// Takes the mapping.
    #[must_use]
    pub fn new(segment: Segment) -> Arena {
        let words = (segment.len() >> PART_LOG2) / 64 + 1;
        // Without the table the arena works, only slower.
        let touched = Segment::private(8 * words).ok();
        Arena { segment, touched }
    }

    /// Length in bytes.
    #[must_use]
    pub const fn len(&self) -> u64 {
        self.segment.len() as u64
    }

    /// True if it holds nothing; never for an arena that was made.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.segment.is_empty()
    }

    /// The memory, for who moves its bytes to or from a socket.
    #[must_use]
    pub const fn segment(&self) -> &Segment {
        &self.segment
    }

    /// Maps the parts of a range of `segment` that is about to be used.
    pub fn prepare(&self, place: usize, length: usize) {
        self.touch(place, length);
    }

    /// Copies from `place` on.
    ///
    /// # Errors
    /// `EIO` if the range is not in the arena.
    pub fn copy_out(&self, place: u64, to: &mut [u8]) -> Result<()> {
        let place = usize::try_from(place).map_err(|_| Errno::EIO)?;
        self.touch(place, to.len());
        self.segment.copy_out(place, to)
    }

    /// Copies to `place`.
    ///
    /// # Errors
    /// `EIO` if the range is not in the arena.
    pub fn copy_in(&self, place: u64, from: &[u8]) -> Result<()> {
        let place = usize::try_from(place).map_err(|_| Errno::EIO)?;
        self.touch(place, from.len());
        self.segment.copy_in(place, from)
    }

    /// Makes `length` bytes from `place` on zero.
    ///
    /// # Errors
    /// `EIO` if the range is not in the arena.
    pub fn zero(&self, place: u64, length: u64) -> Result<()> {
        let place = usize::try_from(place).map_err(|_| Errno::EIO)?;
        let length = usize::try_from(length).map_err(|_| Errno::EIO)?;
        self.touch(place, length);
        self.segment.zero(place, length)
    }

    /// Maps the parts of a range that this process did not touch yet.
    fn touch(&self, place: usize, length: usize) {
        let Some(touched) = &self.touched else { return };
        let Some(end) = place.checked_add(length).filter(|&end| end <= self.segment.len()) else {
            return;
        };
        let mut part = place >> PART_LOG2;
        while part << PART_LOG2 < end {
            let Ok(word) = touched.word64(8 * (part / 64)) else { return };
            let known = word.load(Relaxed) >> (part % 64);
            let is_known = known & 1 != 0;
            // As many as are alike one after the other in this word, at least one.
            let alike = if is_known { known.trailing_ones() } else { known.trailing_zeros() };
            let left = (end - (part << PART_LOG2)).div_ceil(1 << PART_LOG2);
            let parts = left.min(64 - part % 64).min(alike as usize);
            if !is_known {
                self.segment.map_present(part << PART_LOG2, parts << PART_LOG2);
                word.fetch_or((u64::MAX >> (64 - parts)) << (part % 64), Relaxed);
            }
            part += parts;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::hash::mix;

    #[test]
    fn what_was_touched_is_known_and_nothing_else() {
        const PARTS: usize = 300;
        for round in 0..200 {
            let (segment, _) = Segment::nameless(c"test", PARTS << PART_LOG2).expect("memory");
            let arena = Arena::new(segment);
            let mut known = [false; PARTS];
            for range in 0..round % 7 + 1 {
                let number = mix(round, range) as usize;
                let place = number % (PARTS << PART_LOG2);
                let length = (number >> 32) % ((PARTS << PART_LOG2) - place) + 1;
                arena.touch(place, length);
                known[place >> PART_LOG2..=(place + length - 1) >> PART_LOG2].fill(true);
            }
            let touched = arena.touched.as_ref().expect("a table");
            for (part, known) in known.into_iter().enumerate() {
                let word = touched.word64(8 * (part / 64)).expect("in range").load(Relaxed);
                assert_eq!(word & (1 << (part % 64)) != 0, known, "part {part} of round {round}");
            }
        }
    }
}

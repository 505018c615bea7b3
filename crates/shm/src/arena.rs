//! The arena of a memory target: one sparse file in shared memory, addressed by byte offset.
//!
//! Which bytes belong to whom is said by the piece table; here is only the copying.

use crate::segment::Segment;
use wire::errno::{Errno, Result};

/// The mapped arena.
pub struct Arena {
    segment: Segment,
}

impl Arena {
    /// Takes the mapping.
    #[must_use]
    pub const fn new(segment: Segment) -> Arena {
        Arena { segment }
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

    /// Maps a range of `segment` that is about to be written.
    pub fn prepare(&self, place: usize, length: usize) {
        self.segment.map_present(place, length);
    }

    /// Copies from `place` on.
    ///
    /// # Errors
    /// `EIO` if the range is not in the arena.
    #[inline]
    pub fn copy_out(&self, place: u64, to: &mut [u8]) -> Result<()> {
        let place = usize::try_from(place).map_err(|_| Errno::EIO)?;
        self.segment.copy_out(place, to)
    }

    /// Copies to `place`.
    ///
    /// # Errors
    /// `EIO` if the range is not in the arena.
    pub fn copy_in(&self, place: u64, from: &[u8]) -> Result<()> {
        let place = usize::try_from(place).map_err(|_| Errno::EIO)?;
        self.prepare(place, from.len());
        self.segment.copy_in(place, from)
    }

    /// Copies to `place` past the processor's cache.
    ///
    /// # Errors
    /// `EIO` if the range is not in the arena.
    pub fn stream_in(&self, place: u64, from: &[u8]) -> Result<()> {
        let place = usize::try_from(place).map_err(|_| Errno::EIO)?;
        self.prepare(place, from.len());
        self.segment.stream_in(place, from)
    }

    /// Makes `length` bytes from `place` on zero.
    ///
    /// # Errors
    /// `EIO` if the range is not in the arena.
    pub fn zero(&self, place: u64, length: u64) -> Result<()> {
        let place = usize::try_from(place).map_err(|_| Errno::EIO)?;
        let length = usize::try_from(length).map_err(|_| Errno::EIO)?;
        self.prepare(place, length);
        self.segment.zero(place, length)
    }
}

//! Extents: the units that a target allocates for a file, found by arithmetic.
//!
//! Stripe 0 of a file is divided into extents that double: [0, 4 KiB), [4, 8 KiB), [8, 16 KiB) ..
//! up to half a stripe; every later stripe is one extent. So an extent is never moved when a file
//! grows, a small file holds no more than twice its size, and a large one wastes less than one
//! stripe.

use wire::limits::EXTENT_BYTES_MIN;

/// One extent of a file.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Span {
    /// Its first offset in the file.
    pub start: u64,
    /// log2 of its length in bytes.
    pub length_log2: u8,
}

impl Span {
    /// Length in bytes.
    #[must_use]
    pub const fn length(self) -> u64 {
        1 << self.length_log2
    }

    /// First offset behind it.
    #[must_use]
    pub const fn end(self) -> u64 {
        self.start + self.length()
    }
}

/// The extent that holds `offset`.
#[must_use]
#[inline]
pub const fn at(offset: u64, stripe_log2: u8) -> Span {
    if offset >> stripe_log2 != 0 {
        return Span { start: offset >> stripe_log2 << stripe_log2, length_log2: stripe_log2 };
    }
    if offset < EXTENT_BYTES_MIN {
        return Span { start: 0, length_log2: EXTENT_BYTES_MIN.trailing_zeros() as u8 };
    }
    let log2 = offset.ilog2() as u8;
    Span { start: 1 << log2, length_log2: log2 }
}

/// The extents that `offset .. offset + length` touches, in order.
pub fn over(offset: u64, length: u64, stripe_log2: u8) -> impl Iterator<Item = Span> {
    let end = offset.saturating_add(length);
    let mut next = offset;
    core::iter::from_fn(move || {
        if next >= end {
            return None;
        }
        let span = at(next, stripe_log2);
        next = span.end();
        Some(span)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Every offset lies in its extent, and extents follow each other without gap or overlap.
        #[test]
        fn extents_tile_a_file(offset in 0u64..1 << 50, stripe_log2 in 16u8..=26) {
            let span = at(offset, stripe_log2);
            prop_assert!(span.start <= offset && offset < span.end());
            prop_assert_eq!(at(span.start, stripe_log2), span);
            prop_assert_eq!(at(span.end() - 1, stripe_log2), span);
            prop_assert_eq!(at(span.end(), stripe_log2).start, span.end());
            prop_assert_eq!(span.start >> stripe_log2, (span.end() - 1) >> stripe_log2);
        }
    }
}

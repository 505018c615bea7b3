//! Objects of units as bytes of files at a target.
//!
//! A target knows bytes by file and offset, and files have stripes of several sizes. So the number of an
//! object has both: log2 of the stripe size in its highest byte, and the number of the stripe. A daemon
//! that never saw the file finds the place of its bytes by that alone.

use super::kept_log::KeptUnits;
use replicas::operation::{ByteRange, Object};
use replicas::placement::UnitIndex;
use wire::Inode;
use wire::limits::{FILE_BYTES_MAX, STRIPE_LOG2_MAX, STRIPE_LOG2_MIN};

/// Bits of the number of a stripe.
const STRIPE_BITS: u32 = 56;
const _: () = assert!(FILE_BYTES_MAX >> STRIPE_LOG2_MIN < 1 << STRIPE_BITS);

/// Bytes of a file, within one stripe.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct StripeBytes {
    pub(crate) inode: Inode,
    pub(crate) stripe_log2: u8,
    pub(crate) offset: u64,
    pub(crate) length: u64,
}

/// The object of a stripe. `stripe_log2` is a possible one, and the stripe one of a file.
pub(super) const fn object_of(inode: Inode, stripe_log2: u8, stripe: u64) -> Object {
    Object { inode, stripe: (stripe_log2 as u64) << STRIPE_BITS | stripe }
}

impl StripeBytes {
    /// Bytes of an object as far as its stripe has them. `None`: no daemon gives such a number.
    pub(super) fn of(object: Object, range: ByteRange) -> Option<StripeBytes> {
        let stripe_log2 = (object.stripe >> STRIPE_BITS) as u8;
        let stripe = object.stripe & ((1 << STRIPE_BITS) - 1);
        let is_size = (STRIPE_LOG2_MIN..=STRIPE_LOG2_MAX).contains(&stripe_log2);
        if !is_size || stripe > FILE_BYTES_MAX >> stripe_log2 {
            return None;
        }
        let size = 1 << stripe_log2;
        let (start, end) = (range.start.min(size), range.end.min(size));
        let offset = (stripe << stripe_log2) + start;
        let inode = object.inode;
        Some(StripeBytes { inode, stripe_log2, offset, length: end.saturating_sub(start) })
    }
}

/// The units with an object that has this byte of a file: also that object, and the offset in it.
pub(super) fn objects_at(
    units: &KeptUnits,
    inode: Inode,
    offset: u64,
) -> impl Iterator<Item = (UnitIndex, Object, u64)> {
    units.iter().flat_map(move |(&unit, kept)| {
        kept.objects_of(inode).filter_map(move |(object, _)| {
            let of = StripeBytes::of(object, ByteRange::ALL)?;
            let within = offset.checked_sub(of.offset).filter(|within| *within < of.length)?;
            Some((unit, object, within))
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use replicas::kept::{Kept, KeptStep};
    use replicas::operation::{Kind, Operation, Stamp};

    #[test]
    fn a_byte_of_a_file_is_found_in_its_unit() {
        let (inode, kind) = (Inode(9), Kind::Write);
        let mut units = KeptUnits::new();
        for (unit, stripe) in [(4, 0), (7, 2)] {
            let object = object_of(inode, 16, stripe);
            let (stamp, range) = (Stamp { epoch: 1, number: 1 }, ByteRange { start: 0, end: 9 });
            let operation = Operation { stamp, object, range, kind, requested: None };
            let kept: &mut Kept = units.entry(UnitIndex(unit)).or_default();
            kept.apply(&KeptStep::Begin(operation));
        }
        let at = |inode, offset| {
            let found: Vec<_> = objects_at(&units, inode, offset).collect();
            found.into_iter().map(|(unit, object, at)| (unit.0, object, at)).collect::<Vec<_>>()
        };
        assert_eq!(at(inode, 65535), [(4, object_of(inode, 16, 0), 65535)]);
        assert_eq!(at(inode, 65536), []);
        assert_eq!(at(inode, 131_077), [(7, object_of(inode, 16, 2), 5)]);
        assert_eq!(at(Inode(8), 0), []);
    }

    #[test]
    fn an_object_has_the_place_of_its_bytes() {
        let inode = Inode(9);
        for stripe_log2 in [STRIPE_LOG2_MIN, 22, STRIPE_LOG2_MAX] {
            let size = 1u64 << stripe_log2;
            for stripe in [0, 1, 77, FILE_BYTES_MAX >> stripe_log2] {
                let object = object_of(inode, stripe_log2, stripe);
                let of = |start, end| StripeBytes::of(object, ByteRange { start, end });
                let bytes = |start, length| {
                    let offset = stripe * size + start;
                    Some(StripeBytes { inode, stripe_log2, offset, length })
                };
                assert_eq!(of(5, 9), bytes(5, 4));
                assert_eq!(of(size - 1, size), bytes(size - 1, 1));
                assert_eq!(of(size - 1, u64::MAX), bytes(size - 1, 1));
                assert_eq!(of(0, u64::MAX), bytes(0, size));
                assert_eq!(of(u64::MAX, u64::MAX), bytes(size, 0));
            }
        }
        let (first, second) = (object_of(inode, 16, 3), object_of(inode, 17, 3));
        assert_ne!(first, second, "files that were made again have other objects");
    }

    #[test]
    fn numbers_that_no_daemon_gives_have_no_place() {
        let sizes = [0, STRIPE_LOG2_MIN - 1, STRIPE_LOG2_MAX + 1, u8::MAX];
        let of = |object| StripeBytes::of(object, ByteRange::ALL);
        assert!(sizes.iter().all(|&size| of(object_of(Inode(9), size, 0)).is_none()));
        let behind = (FILE_BYTES_MAX >> STRIPE_LOG2_MIN) + 1;
        assert_eq!(of(object_of(Inode(9), STRIPE_LOG2_MIN, behind)), None);
    }
}

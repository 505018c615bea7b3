//! Tags in the operation log: a name that has one has an operation that is not applied.

use super::LocalOpId;
use crate::sync::AtomicU64;
use core::sync::atomic::Ordering::SeqCst;

/// Tags of a bucket.
pub(super) const TAG_WAYS: usize = 8;
/// Bits of a tag above the number of its slot.
const TAG_SHIFT: u32 = 24;

/// The tag of an operation on the name `key`, in slot `id`.
pub(super) fn tag_of(key: u64, id: LocalOpId) -> u64 {
    // Never zero, whatever the key is.
    let name = (key >> TAG_SHIFT | 1) << TAG_SHIFT;
    name | u64::from(id.session) << 8 | u64::from(id.slot)
}

/// True if a bucket has a tag of this name.
#[inline]
pub(super) fn has_tag(ways: &[AtomicU64; TAG_WAYS], key: u64) -> bool {
    // Most buckets are empty.
    let any = ways.iter().fold(0, |any, way| any | way.load(SeqCst));
    any != 0 && ways.iter().any(|way| is_tag_of(way.load(SeqCst), key))
}

/// True for a tag of this name.
pub(super) fn is_tag_of(tag: u64, key: u64) -> bool {
    tag >> TAG_SHIFT == (key >> TAG_SHIFT | 1)
}

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

/// True if a bucket may have tags besides the one at `place`. Most tags are alone, in the first place.
#[inline]
pub(super) fn has_others(ways: &[AtomicU64; TAG_WAYS], place: usize) -> bool {
    let [_, others @ ..] = ways;
    place != 0 || others.iter().fold(0, |any, way| any | way.load(SeqCst)) != 0
}

/// Number of tags of this name in a bucket.
#[cold]
pub(super) fn count_of(ways: &[AtomicU64; TAG_WAYS], key: u64) -> usize {
    ways.iter().filter(|way| is_tag_of(way.load(SeqCst), key)).count()
}

/// True for a tag of this name.
fn is_tag_of(tag: u64, key: u64) -> bool {
    tag >> TAG_SHIFT == (key >> TAG_SHIFT | 1)
}

//! The hashes that all processes compute alike: names to shards and listing order, stripes to
//! targets.

use crate::id::{Inode, ShardIndex};
use crate::limits::SHARD_COUNT;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Hash of a name within its directory: the order of listings, and the shard of a wide directory.
///
/// 63 bits, so that it is a directory offset that every program's `off_t` holds, and never below
/// `FIRST`, so that offsets 0, 1 and 2 stand for the start, after `.` and after `..`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(transparent)]
pub struct NameHash(pub u64);

/// Hashes have 63 bits, of which the upper ones are the shard.
const WIDE_SHARD_SHIFT: u32 = 63 - SHARD_COUNT.trailing_zeros();

impl NameHash {
    /// The smallest hash of a name.
    pub const FIRST: u64 = 16;

    /// The hash of `name` in the directory `parent`.
    #[must_use]
    pub fn of(parent: Inode, name: &[u8]) -> NameHash {
        NameHash((xxh3_64_with_seed(name, parent.0) >> 1).max(NameHash::FIRST))
    }

    /// The shard of an entry of a wide directory: the hash's upper bits, so that walking the shards
    /// in order is walking the hashes in order.
    #[must_use]
    pub const fn wide_shard(self) -> ShardIndex {
        ShardIndex((self.0 >> WIDE_SHARD_SHIFT) as u16)
    }

    /// The smallest number that is no hash of a shard below `shard`, up to `SHARD_COUNT`.
    #[must_use]
    pub const fn first_of(shard: u16) -> u64 {
        (shard as u64) << WIDE_SHARD_SHIFT
    }
}

/// Key of an entry in the shared-memory index: two names share one with probability 2^-128.
///
/// For a name of up to 16 bytes XXH3 first XORs the input with numbers to which its seed is added.
/// So if the seed were the inode number itself, names in directories with close numbers would share
/// keys by the hundred; and with one seed for both halves, two names that share one half would
/// share the other.
#[must_use]
pub fn entry_key(parent: Inode, name: &[u8]) -> u128 {
    let half = |number| u128::from(xxh3_64_with_seed(name, mix(parent.0, number)));
    half(1) << 64 | half(2)
}

/// Mixes two numbers; used to place stripes on targets.
#[must_use]
pub const fn mix(a: u64, b: u64) -> u64 {
    let mut x = a ^ b.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// The unit of a stripe among the `units` units of its target: parts that have their copies together
/// (the crate `replicas`).
#[must_use]
pub const fn unit_in_target(inode: Inode, stripe: u64, units: u16) -> u16 {
    let units = if units == 0 { 1 } else { units as u64 };
    // Not the hash that chooses the target: its remainder is the same for all stripes of a target.
    (mix(mix(inode.0, stripe), 0x7265_706c) % units) as u16
}

/// A hash of the start of an extent (`placement::extent`): the extents of 16 MiB of a file have
/// different hashes within a range of 265, except four of files with stripes of less than 512 KiB.
#[must_use]
#[inline]
pub const fn neighbourly_extent(inode: Inode, start: u64, seed: u64) -> u64 {
    // Stripes have 64 KiB at least; before that extents double, from 4 KiB on.
    let within = (start >> 16 & 255) + (start >> 12 & 15) * 33;
    mix(inode.0 ^ (start >> 24).rotate_left(32), seed).wrapping_add(within)
}

/// A hash of an inode number that keeps consecutive numbers together: each 64 of them have hashes
/// that differ in the last six bits only. So tables that are accessed in the order of creation
/// touch few pages. Numbers with a stride are spread as well as others.
#[must_use]
pub const fn neighbourly(inode: Inode, seed: u64) -> u64 {
    let group = mix(inode.0 >> 6, seed);
    (group & !63) | (inode.0.wrapping_add(group >> 32) & 63)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::vec::Vec;

    /// Extents as `placement::extent` divides files, for all stripe sizes up to 16 MiB.
    #[test]
    fn extents_of_a_file_have_close_and_distinct_hashes() {
        for stripe_log2 in 16..24 {
            let doubling = (12..stripe_log2).map(|log2| 1u64 << log2);
            let stripes = (0..(16u64 << 20) >> stripe_log2).map(|number| number << stripe_log2);
            let starts: Vec<u64> = doubling.chain(stripes).collect();
            let first = neighbourly_extent(Inode(77), 0, 5);
            let places: BTreeSet<u64> = starts
                .iter()
                .map(|&start| neighbourly_extent(Inode(77), start, 5).wrapping_sub(first))
                .collect();
            let shared = if stripe_log2 < 19 { 4 } else { 0 };
            assert!(places.len() + shared >= starts.len(), "chunks of 2^{stripe_log2}: {places:?}");
            assert!(places.last().is_some_and(|&last| last < 265), "{places:?}");
        }
        let elsewhere = neighbourly_extent(Inode(78), 0, 5);
        assert!(elsewhere.abs_diff(neighbourly_extent(Inode(77), 0, 5)) > 1 << 20);
    }
}

//! From an entry to its shard, from a chunk to its target.

use wire::attributes::{Layout, placement, spread};
use wire::hash::{NameHash, mix};
use wire::{Attributes, DaemonIndex, Inode, ShardIndex};

/// The shard that holds the entry with hash `hash` of `directory`.
#[must_use]
pub const fn entry_shard(directory: &Attributes, hash: NameHash) -> ShardIndex {
    match directory.layout.spread {
        spread::WIDE => hash.wide_shard(),
        _ => ShardIndex(directory.layout.place),
    }
}

/// The target of chunk number `chunk` of a file.
#[must_use]
pub const fn target(layout: &Layout, inode: Inode, chunk: u64, daemon_count: u16) -> DaemonIndex {
    match layout.placement {
        placement::LOCAL => DaemonIndex(layout.place % daemon_count),
        _ => DaemonIndex((mix(inode.0, chunk) % daemon_count as u64) as u16),
    }
}

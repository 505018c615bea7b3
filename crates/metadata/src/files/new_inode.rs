//! Parts of every new inode, however it is created: its number, its record, and the shard of the
//! entries of a directory.

use wire::attributes::{flag, mode, spread};
use wire::limits::SHARD_COUNT;
use wire::{Attributes, Inode, ShardIndex};

use crate::core::config::Config;
use crate::core::context::Context;
use crate::core::effect::IndexOp;
use crate::core::record::Record;
use crate::core::state::Tally;

/// Inode numbers are logged as used in blocks of this many.
const INODE_BLOCK: u64 = 4096;

pub(crate) fn put_new(
    cx: &mut Context,
    attributes: &Attributes,
    target: &[u8],
    nameless: u8,
    xattrs: &[u8],
) {
    cx.put(&Record::PutInode {
        attributes: *attributes,
        nameless,
        target,
        contents: &[],
        xattrs,
        tallies: &[],
    });
}

/// The flags that the creator of a file may give it.
pub(crate) fn flags_of_new(config: &Config) -> u8 {
    let inline = if config.inline_bytes > 0 { flag::INLINE } else { 0 };
    inline | flag::SHORT | flag::POSIX | flag::PINNED
}

/// The shard of a new directory's entries: the parent's, or for one in the root the next in
/// turn (O5).
pub(crate) fn place_of_directory(
    cx: &mut Context,
    parent: &Attributes,
    spread: u8,
    shard: ShardIndex,
) -> u16 {
    if spread::wide_below(parent.layout.spread) != 0 {
        return shard.0;
    }
    if parent.inode != Inode::ROOT || spread::is_wide(spread) {
        return parent.layout.place;
    }
    let counters = cx.state.shards.get(&shard.0).copied().unwrap_or_default();
    let place_next = (counters.place_next + 1) % SHARD_COUNT;
    let inode_next = counters.inode_next;
    cx.put(&Record::PutShard { shard: shard.0, inode_next, place_next });
    counters.place_next
}

/// A number that was never used, for a file of this mode in a directory. It says how many copies the
/// bytes of a regular file have.
pub(crate) fn new_inode(
    cx: &mut Context,
    shard: ShardIndex,
    (directory, mode): (&Attributes, u32),
) -> Inode {
    let is_regular = mode & mode::TYPE == mode::REGULAR;
    let copies = if is_regular { directory.layout.copies } else { 0 };
    new_number(cx, shard).with_copies(copies)
}

fn new_number(cx: &mut Context, shard: ShardIndex) -> Inode {
    let counters = cx.state.shards.get(&shard.0).copied().unwrap_or_default();
    // Sequence 0 is no inode and 1 is the root.
    let first = counters.inode_next.max(2);
    let number_min = cx.state.births.number_min();
    let next = cx.inode_next.entry(shard.0).or_insert(first);
    let sequence = number_min.max(*next);
    *next = sequence + 1;
    if sequence >= counters.inode_next {
        let inode_next = sequence + INODE_BLOCK;
        let place_next = counters.place_next;
        cx.put(&Record::PutShard { shard: shard.0, inode_next, place_next });
    }
    Inode::new(shard, sequence)
}

/// Records in the index that a directory has no entries here, so that it is complete from now
/// on. Not of a directory in which others may add names: absence is valid for a term there, name by
/// name (`core::valid_names`), and completeness has no end.
pub(crate) fn note_empty(cx: &mut Context, directory: Inode) {
    if cx.is_revalidated(directory) {
        return;
    }
    let tally = cx.state.tallies.get(&directory);
    // A reader with an older layout may look here for names that were here.
    let may_have_left =
        |tally: &Tally| tally.spread & spread::AUTO != 0 && spread::wide_below(tally.spread) != 0;
    let is_empty = tally.is_none_or(|tally| tally.entries == 0 && !may_have_left(tally));
    if is_empty && !cx.state.entries.has_any(directory) {
        cx.io.index(IndexOp::MarkComplete { directory });
    }
}

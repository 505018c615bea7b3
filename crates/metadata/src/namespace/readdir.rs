//! Listing directories, in order of hash, and reading symbolic links.

use wire::attributes::{mode, spread};
use wire::codec::Field;
use wire::hash::NameHash;
use wire::limits::SHARD_COUNT;
use wire::reply::DirectoryEntry;
use wire::{Errno, Inode, Reply, Writer};

use crate::core::context::Context;
use crate::core::job::{Call, Step, Stop, Wait};

/// Most bytes of entries in one reply: a slot less the reply's own head.
const ENTRIES_BYTES_MAX: usize = wire::limits::SLOT_BYTES - 1024;
/// An encoded entry without its name.
const ENTRY_BYTES: usize = 8 + 8 + 4 + 4;

pub(crate) fn read_directory(
    cx: &mut Context,
    call: &Call<'_>,
    directory: Inode,
    (after, last): (u64, u64),
    bytes: u32,
) -> Step<()> {
    if cx.config.owns(directory.shard()) {
        let attributes = cx.own_attributes(directory)?;
        if !attributes.is_directory() {
            return Err(Stop::Refused(Errno::ENOTDIR));
        }
    }
    let tally = cx.state.tallies.get(&directory).copied().unwrap_or_default();
    let first = after.saturating_add(1);
    let own = hashes_of(call.header.shard);
    let is_of_shard = own.0 <= first && last == own.1;
    let is_auto = tally.spread & spread::AUTO != 0;
    if !is_of_shard && is_auto && first < NameHash::first_of(spread::wide_below(tally.spread)) {
        // The sender takes names for at home that were spread since.
        return Err(Stop::Refused(Errno::EREMCHG));
    }
    let limit = (bytes as usize).min(ENTRIES_BYTES_MAX);
    let mut encoded = cx.io.buffer();
    encoded.resize(limit, 0);
    let mut writer = Writer::new(&mut encoded);
    let mut more = 0;
    let mut is_first = true;
    // Names with one hash stay together, because a listing continues after a hash. They fit a
    // reply.
    let mut end_of_hash = (NameHash(0), 0);
    // A name that is about to change is waited for: the client that changes it may have its
    // answer already.
    let held = cx.keys.first_entry_of(directory, first).filter(|hash| hash.0 <= last);
    for (hash, entry) in cx.state.entries.range(directory, first, last) {
        if held.is_some_and(|held| hash >= held) {
            break;
        }
        if hash != end_of_hash.0 {
            end_of_hash = (hash, writer.len());
        }
        if writer.space_left() < ENTRY_BYTES + entry.name.len() {
            more = 1;
            is_first &= writer.is_empty();
            break;
        }
        is_first = false;
        let (inode, mode, name) = (entry.inode, entry.mode & mode::TYPE, &*entry.name);
        DirectoryEntry { hash: hash.0, inode, mode, name }.put(&mut writer);
    }
    let length = if more != 0 { end_of_hash.1 } else { writer.len() };
    if is_first && more != 0 {
        cx.io.recycle(encoded);
        return Err(Stop::Refused(Errno::EINVAL));
    }
    if held.is_some() && length == 0 {
        cx.io.recycle(encoded);
        return Err(Stop::Wait(Wait::Unlock));
    }
    // The names before it are listed meanwhile.
    more |= u8::from(held.is_some());
    let next = if is_of_shard { next_shard(cx, directory, last) } else { SHARD_COUNT };
    let entries = encoded.get(..length).unwrap_or_default();
    cx.io.reply(call.ticket, &Reply::Entries { more, next, entries });
    cx.io.recycle(encoded);
    Ok(())
}

/// The first shard of this service with an entry of a wide directory after this hash, or with
/// one that a transaction may add.
fn next_shard(cx: &Context, directory: Inode, after: u64) -> u16 {
    let first = after.saturating_add(1);
    let behind = cx.state.entries.range(directory, first, u64::MAX).map(|(hash, _)| hash);
    let held = cx.keys.first_entry_of(directory, first);
    behind.take(1).chain(held).min().map_or(SHARD_COUNT, |hash| hash.wide_shard().0)
}

pub(crate) fn read_link(cx: &mut Context, call: &Call<'_>, inode: Inode) -> Step<()> {
    let node = cx.state.inodes.get(inode).ok_or(Errno::ESTALE)?;
    if !node.attributes.is_symlink() {
        return Err(Stop::Refused(Errno::EINVAL));
    }
    cx.io.reply(call.ticket, &Reply::Bytes { bytes: &node.target });
    Ok(())
}

/// The hashes of a wide directory that belong to a shard.
const fn hashes_of(shard: u16) -> (u64, u64) {
    let end = NameHash::first_of(shard.saturating_add(1));
    (NameHash::first_of(shard), end.saturating_sub(1))
}

//! Listing directories, in the order of hashes, which is also the order of offsets.
//!
//! The open file's offset is the position: 0 before `.`, 1 before `..`, 2 before the first entry,
//! else the hash of the last entry returned. A listing that is continued, from whatever process or
//! after a `seekdir`, thus returns nothing twice and misses nothing that existed throughout.

use core::sync::atomic::Ordering::Relaxed;
use placement::locate;
use placement::locate::Part;
use wire::attributes::mode;
use wire::codec::{Field, Reader};
use wire::errno::{Errno, Result};
use wire::hash::NameHash;
use wire::limits::SHARD_COUNT;
use wire::reply::DirectoryEntry;
use wire::{Attributes, Inode, Reply, Request, ShardIndex};

use crate::OfdIndex;
use crate::file::open_file;
use crate::file::open_file::o;
use crate::lookup::inodes;
use crate::lookup::retry::LookupRetries;
use crate::transport::Transport;
use crate::transport::errno::by_path;
use crate::transport::request::{Destination, own_credentials};

/// Most bytes of entries in one reply: a slot without the reply's own fields.
pub(crate) const ENTRIES_BYTES: u32 = 15 * 1024;
/// Fewest bytes requested: one entry with the longest name.
const ENTRIES_BYTES_MIN: u32 = 512;

/// One entry of a listing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Listed<'a> {
    /// The name.
    pub name: &'a [u8],
    /// The inode.
    pub inode: Inode,
    /// Type bits of the mode.
    pub mode: u32,
    /// Offset after it (`d_off`).
    pub next: u64,
}

/// Shards that hold no entries of a wide directory, as learned from services: each names the next
/// of its shards with entries. A listing thus queries each service once, and each shard with
/// entries.
#[derive(Default)]
struct EmptyShards {
    shards: [u64; SHARD_COUNT as usize / 64],
}

impl EmptyShards {
    fn has(&self, shard: ShardIndex) -> bool {
        let word = self.shards.get(usize::from(shard.0) / 64);
        word.is_some_and(|word| word >> (shard.0 % 64) & 1 != 0)
    }

    fn note(&mut self, shard: ShardIndex) {
        if let Some(word) = self.shards.get_mut(usize::from(shard.0) / 64) {
            *word |= 1 << (shard.0 % 64);
        }
    }
}

/// Result of reading one part of a listing.
pub(crate) enum ListingStep {
    /// The shard has no further entries; the next shard of the same service that has some.
    Exhausted(ShardIndex),
    /// The shard has more.
    More,
    /// The caller wants no more.
    Enough,
    /// Some entries are at other shards by now.
    Spread,
}

/// Continues the listing of an open directory: calls `show` for each entry until it returns
/// false, which means that the entry did not fit and is repeated next time, or until about
/// `bytes` were shown. The end is reached if nothing is shown.
pub(crate) fn read_directory(
    transport: &Transport,
    ofd: OfdIndex,
    bytes: u32,
    show: &mut dyn FnMut(&Listed<'_>) -> bool,
) -> Result<()> {
    let open = open_file::by_index(transport, ofd)?;
    if open.flags() & o::PATH != 0 {
        return Err(Errno::EBADF);
    }
    if open.mode() & mode::TYPE != mode::DIRECTORY {
        return Err(Errno::ENOTDIR);
    }
    let directory = by_path(inodes::attributes_of(transport, open.inode))?;
    let guard = open.words.lock_offset();
    let offset = &open.words.offset;
    let mut shown = false;
    let dots: [(&[u8], Inode); 2] = [(b".", directory.inode), (b"..", parent_of(&directory))];
    for (place, (name, inode)) in dots.into_iter().enumerate() {
        let next = (place as u64).saturating_add(1);
        if offset.load(Relaxed) >= next {
            continue;
        }
        if !show(&Listed { name, inode, mode: mode::DIRECTORY, next }) {
            return Ok(());
        }
        offset.store(next, Relaxed);
        shown = true;
    }
    let mut left = i64::from(bytes.max(ENTRIES_BYTES_MIN));
    let after = offset.load(Relaxed);
    let after = if after < NameHash::FIRST { 0 } else { after };
    each_listing_part(transport, &directory, after, |part| {
        let count = left.clamp(i64::from(ENTRIES_BYTES_MIN), i64::from(ENTRIES_BYTES));
        // Local to this part, because every entry updates them.
        let (mut last, mut space_left, mut any) = (part.after, left, shown);
        let step =
            read_listing_part(transport, directory.inode, part, count as u32, &mut |entry| {
                let taken = show(&entry);
                if taken {
                    last = entry.next;
                    offset.store(last, Relaxed);
                    let length = entry.name.len() as i64;
                    space_left = space_left.saturating_sub(length.saturating_add(24));
                    any = true;
                }
                taken
            });
        (left, shown) = (space_left, any);
        let step = step?;
        Ok((if shown && left <= 0 { ListingStep::Enough } else { step }, last))
    })?;
    drop(guard);
    Ok(())
}

/// Calls `read` for the parts of `directory` with a hash above `after`, in order, repeatedly until each
/// is exhausted. `read` gets what is left of a part, and tells how far it has come.
pub(crate) fn each_listing_part(
    transport: &Transport,
    directory: &Attributes,
    after: u64,
    mut read: impl FnMut(Part) -> Result<(ListingStep, u64)>,
) -> Result<()> {
    let (mut directory, mut after) = (*directory, after);
    let mut retries = LookupRetries::new(transport);
    while let ListingEnd::Spread = list(transport, &directory, &mut after, &mut read)? {
        retries.pause()?;
        directory = by_path(inodes::queried_attributes(transport, directory.inode))?;
    }
    Ok(())
}

/// How a listing by one layout of the directory ends.
enum ListingEnd {
    Done,
    /// The directory was spread further: the rest is listed by its new layout.
    Spread,
}

fn list(
    transport: &Transport,
    directory: &Attributes,
    after: &mut u64,
    read: &mut impl FnMut(Part) -> Result<(ListingStep, u64)>,
) -> Result<ListingEnd> {
    let mut empty = EmptyShards::default();
    for mut part in locate::parts(directory, *after) {
        // A shard that is empty as one of many still has what is at home there.
        while part.is_at_home() || !empty.has(part.shard) {
            let (step, last) = read(part)?;
            (*after, part.after) = (last, last);
            match step {
                ListingStep::Enough => return Ok(ListingEnd::Done),
                ListingStep::Spread => return Ok(ListingEnd::Spread),
                ListingStep::More => {}
                ListingStep::Exhausted(next) => {
                    note_empty(transport, &mut empty, part.shard, next);
                    break;
                }
            }
        }
    }
    Ok(ListingEnd::Done)
}

/// Shards of the same service between these two hold no entries.
fn note_empty(transport: &Transport, empty: &mut EmptyShards, shard: ShardIndex, next: ShardIndex) {
    let Some(service) = transport.service_number(shard) else { return };
    for other in (shard.0.saturating_add(1)..next.0.min(SHARD_COUNT)).map(ShardIndex) {
        if transport.service_number(other) == Some(service) {
            empty.note(other);
        }
    }
}

/// Shows the entries of one message, until `show` returns false.
pub(crate) fn read_listing_part(
    transport: &Transport,
    directory: Inode,
    part: Part,
    bytes: u32,
    show: &mut dyn FnMut(Listed<'_>) -> bool,
) -> Result<ListingStep> {
    let Part { shard, after, last } = part;
    let request = Request::ReadDirectory { directory, after, last, bytes };
    let answer = transport.call(Destination::Shard(shard), &request, &own_credentials());
    if answer.as_ref().err() == Some(&Errno::EREMCHG) {
        return Ok(ListingStep::Spread);
    }
    by_path(answer)?.with(|reply| {
        let Reply::Entries { more, next, entries } = reply else { return Err(Errno::EIO) };
        let mut reader = Reader::new(entries);
        while !reader.rest().is_empty() {
            let entry = DirectoryEntry::take(&mut reader).map_err(|_| Errno::EIO)?;
            let DirectoryEntry { hash, inode, mode, name } = entry;
            if !show(Listed { name, inode, mode: mode & mode::TYPE, next: hash }) {
                return Ok(ListingStep::Enough);
            }
        }
        let more = more != 0 && !entries.is_empty();
        Ok(if more { ListingStep::More } else { ListingStep::Exhausted(ShardIndex(next)) })
    })
}

fn parent_of(directory: &Attributes) -> Inode {
    if directory.inode == Inode::ROOT { Inode::ROOT } else { directory.parent }
}

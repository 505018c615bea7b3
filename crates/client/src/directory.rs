//! Listing directories, in the order of hashes, which is also the order of offsets.
//!
//! The open file's offset is the place: 0 before `.`, 1 before `..`, 2 before the first entry, else
//! the hash of the last entry shown. So a listing that goes on, from whatever process or after a
//! `seekdir`, shows nothing twice and misses nothing that was there throughout.

use core::sync::atomic::Ordering::Relaxed;
use wire::attributes::{mode, spread};
use wire::codec::{Field, Reader};
use wire::errno::{Errno, Result};
use wire::hash::NameHash;
use wire::limits::SHARD_COUNT;
use wire::reply::DirectoryEntry;
use wire::{Attributes, Inode, Reply, Request, ShardIndex};

use crate::errno::by_path;
use crate::opened::o;
use crate::request::{To, own_credentials};
use crate::{Client, OfdIndex};

/// Most bytes of entries in one answer: a slot without the answer's own fields.
pub(crate) const ENTRIES_BYTES: u32 = 15 * 1024;
/// Least bytes asked for: one entry with the longest name, with its numbers.
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
    /// Offset behind it (`d_off`).
    pub next: u64,
}

/// The shards that hold entries of `directory` with a hash above `after`, in order.
fn shards_of(directory: &Attributes, after: u64) -> impl Iterator<Item = ShardIndex> {
    let (first, end) = if directory.layout.spread == spread::WIDE {
        (NameHash(after).wide_shard().0, SHARD_COUNT)
    } else {
        let home = directory.layout.place;
        (home, home.saturating_add(1))
    };
    (first..end).map(ShardIndex)
}

/// Shards that have nothing of a wide directory, as services said on the way through it: each tells
/// where it has the next entry. So a listing asks each service once, and each shard with entries.
#[derive(Default)]
struct Empty {
    shards: [u64; SHARD_COUNT as usize / 64],
}

impl Empty {
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

/// What became of one part of a listing.
pub(crate) enum Part {
    /// The shard has nothing further. The next of the same service that has.
    Exhausted(ShardIndex),
    /// There is more in this shard.
    More,
    /// The caller wants no more.
    Enough,
}

impl Client {
    /// Goes on with the listing of an open directory: calls `show` for each entry until it returns
    /// false, which means that this entry did not fit and comes again next time, or until about
    /// `bytes` of them were shown. Nothing shown: the end.
    ///
    /// # Errors
    /// `ENOTDIR`, `EBADF`, `EIO`; `ENOENT` if the directory was removed.
    pub fn read_directory(
        &self,
        ofd: OfdIndex,
        bytes: u32,
        show: &mut dyn FnMut(&Listed<'_>) -> bool,
    ) -> Result<()> {
        let open = self.opened(ofd)?;
        if open.flags() & o::PATH != 0 {
            return Err(Errno::EBADF);
        }
        if open.mode() & mode::TYPE != mode::DIRECTORY {
            return Err(Errno::ENOTDIR);
        }
        let directory = by_path(self.attributes_of(open.inode))?;
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
        let mut after = offset.load(Relaxed);
        after = if after < NameHash::FIRST { 0 } else { after };
        self.each_part(&directory, after, |shard| {
            let asked = left.clamp(i64::from(ENTRIES_BYTES_MIN), i64::from(ENTRIES_BYTES));
            // Words of this part alone: each entry goes through them.
            let (mut last, mut room, mut any) = (after, left, shown);
            let part = self.read_part(directory.inode, shard, after, asked as u32, &mut |entry| {
                let taken = show(&entry);
                if taken {
                    last = entry.next;
                    offset.store(last, Relaxed);
                    let length = entry.name.len() as i64;
                    room = room.saturating_sub(length.saturating_add(24));
                    any = true;
                }
                taken
            });
            (after, left, shown) = (last, room, any);
            let part = part?;
            Ok(if shown && left <= 0 { Part::Enough } else { part })
        })?;
        drop(guard);
        Ok(())
    }

    /// Calls `read` for the shards that hold entries of `directory` with a hash above `after`, in
    /// order, and for each until there is no more in it.
    pub(crate) fn each_part(
        &self,
        directory: &Attributes,
        after: u64,
        mut read: impl FnMut(ShardIndex) -> Result<Part>,
    ) -> Result<()> {
        let mut empty = Empty::default();
        for shard in shards_of(directory, after) {
            while !empty.has(shard) {
                match read(shard)? {
                    Part::Enough => return Ok(()),
                    Part::More => {}
                    Part::Exhausted(next) => {
                        self.note_empty(&mut empty, shard, next);
                        break;
                    }
                }
            }
        }
        Ok(())
    }

    /// Between these two, shards of the same service have nothing.
    fn note_empty(&self, empty: &mut Empty, shard: ShardIndex, next: ShardIndex) {
        let Some(service) = self.service_number(shard) else { return };
        for other in (shard.0.saturating_add(1)..next.0.min(SHARD_COUNT)).map(ShardIndex) {
            if self.service_number(other) == Some(service) {
                empty.note(other);
            }
        }
    }

    /// Shows what one message brings, until `show` returns false.
    pub(crate) fn read_part(
        &self,
        directory: Inode,
        shard: ShardIndex,
        after: u64,
        bytes: u32,
        show: &mut dyn FnMut(Listed<'_>) -> bool,
    ) -> Result<Part> {
        let request = Request::ReadDirectory { directory, after, bytes };
        let answer = self.call(To::Shard(shard), &request, &own_credentials());
        by_path(answer)?.with(|reply| {
            let Reply::Entries { more, next, entries } = reply else { return Err(Errno::EIO) };
            let mut reader = Reader::new(entries);
            while !reader.rest().is_empty() {
                let entry = DirectoryEntry::take(&mut reader).map_err(|_| Errno::EIO)?;
                let DirectoryEntry { hash, inode, mode, name } = entry;
                if !show(Listed { name, inode, mode: mode & mode::TYPE, next: hash }) {
                    return Ok(Part::Enough);
                }
            }
            let more = more != 0 && !entries.is_empty();
            Ok(if more { Part::More } else { Part::Exhausted(ShardIndex(next)) })
        })
    }
}

fn parent_of(directory: &Attributes) -> Inode {
    if directory.inode == Inode::ROOT { Inode::ROOT } else { directory.parent }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::Layout;

    #[test]
    fn a_home_directory_lies_in_one_shard_and_a_wide_one_in_all() {
        let layout = Layout { spread: spread::HOME, place: 7, ..Layout::default() };
        let mut directory = Attributes { layout, ..Attributes::default() };
        assert!(shards_of(&directory, 5).eq([ShardIndex(7)]));
        directory.layout.spread = spread::WIDE;
        assert_eq!(shards_of(&directory, 0).count(), usize::from(SHARD_COUNT));
        let last = u64::MAX >> 1;
        assert!(shards_of(&directory, last).eq([ShardIndex(SHARD_COUNT - 1)]));
    }
}

//! Replies to requests.

use crate::attributes::Attributes;
use crate::codec::{Field, Malformed, Reader, Writer, messages};
use crate::errno::Errno;
use crate::id::Inode;

messages! {
    /// A reply.
    pub enum Reply<'a> {
        /// Done; nothing to say.
        0x01 Done {}
        /// Refused: the errno that a local file system would give.
        0x02 Refused { errno: Errno }
        /// The sender's map is old; the newer one's epoch. Take it and try again.
        0x03 Stale { epoch: u64 }
        /// It will pass: try again after this many microseconds. 0: at once, and however long that takes
        /// all together, as it goes on.
        0x04 Busy { retry_micros: u32 }
        /// Attributes of the inode asked for.
        0x05 Attributes { attributes: Attributes }
        /// What a `Look` found: attributes, or without `looked::ATTRIBUTES` only inode and type; no
        /// inode: there is no such name. `may`: bits of `looked`.
        0x14 Looked { may: u8, attributes: Attributes }
        /// A file that was opened: its attributes, how often somebody had begun to write to it before (a
        /// number for whoever compares it with an earlier one), and bits of `opened`.
        0x15 Opened { attributes: Attributes, writers: u64, others: u8 }
        /// An entry whose inode belongs to another shard: ask there for its attributes.
        0x06 Entry { inode: Inode, mode: u32 }
        /// A file that was made by this request.
        0x07 Created { attributes: Attributes }
        /// Contents, a link target, an attribute's value.
        0x08 Bytes { bytes: &'a [u8] }
        /// Contents of an inline file, and its size.
        0x09 Contents { size: u64, bytes: &'a [u8] }
        /// The file is not inline (any more): go to its targets.
        0x0a Moved { attributes: Attributes }
        /// Bytes were placed at `offset`; the file is `size` long now.
        0x0b Placed { offset: u64, size: u64 }
        /// Bytes from `offset` on are the asker's. `cuts`: how often his host's row of the file says that
        /// it was cut, at this moment; `CUTS_UNKNOWN` if the shard does not see that row.
        0x13 Range { offset: u64, cuts: u64 }
        /// Encoded `DirectoryEntry`s. `more`: 1 if the shard has further ones. If not, the next shard of
        /// the same service that has any is `next`, at least `SHARD_COUNT` if none has. Number 0x0c was
        /// the same without it.
        0x12 Entries { more: u8, next: u16, entries: &'a [u8] }
        /// Encoded `Piece`s.
        0x0d Pieces { pieces: &'a [u8] }
        /// A number.
        0x0e Number { value: u64 }
        /// Who holds a lock that is in the way.
        0x0f Held { kind: u8, pid: u32, start: u64, end: u64 }
        /// Encoded `Attributes` of what a `Walk` came by. `absent`: 1 if the next name is not there;
        /// else ask for it anew. Bit i of `leased`: the directory at place i, and the entry that led
        /// to it, may be believed without asking (`crate::lease`), under pact number `pact` and
        /// unless a later recall than number `recalls` says otherwise.
        0x11 Walked { absent: u8, leased: u16, pact: u64, recalls: u64, chain: &'a [u8] }
        /// Bytes and files of a daemon.
        0x10 Space {
            memory_total: u64, memory_free: u64, ssd_total: u64, ssd_free: u64, files: u64,
        }
    }
}

/// Bits of `Looked::may`.
pub mod looked {
    /// Where the name leads may be remembered.
    pub const NAME_STAYS: u8 = 1;
    /// The attributes may.
    pub const ATTRIBUTES_STAY: u8 = 2;
    /// There are attributes; else they are to be asked for where the inode's shard is.
    pub const ATTRIBUTES: u8 = 4;
}

/// Bits of `Opened::others`, and of the answer to `Unwatch`: what other hosts than the asker's do.
pub mod opened {
    /// They may write to the file.
    pub const OTHERS_WRITE: u8 = 1;
    /// Kernels of their mounts may keep pages of it: who writes has them dropped.
    pub const OTHERS_KEEP: u8 = 2;
    /// Kernels of the asker's may keep pages: they are noted.
    pub const MAY_KEEP: u8 = 4;
}

/// In a `Range`: nobody knows.
pub const CUTS_UNKNOWN: u64 = u64::MAX;
/// In a `Range`: the daemon of the asker's host knows, as the answer passes by.
pub const CUTS_OF_HOST: u64 = u64::MAX - 1;
/// In a `Range`: what the row said before the first attempt, as this is an answer that was given before.
pub const CUTS_OF_FIRST: u64 = u64::MAX - 2;

/// One entry of a listing. Encoded: hash, inode, type bits of the mode, name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DirectoryEntry<'a> {
    /// Its place in the listing; go on after it.
    pub hash: u64,
    /// The inode.
    pub inode: Inode,
    /// Type bits of the mode.
    pub mode: u32,
    /// The name.
    pub name: &'a [u8],
}

impl<'a> Field<'a> for DirectoryEntry<'a> {
    fn put(&self, to: &mut Writer<'_>) {
        to.u64(self.hash);
        to.u64(self.inode.0);
        to.u32(self.mode);
        to.bytes(self.name);
    }
    fn take(from: &mut Reader<'a>) -> Result<Self, Malformed> {
        Ok(DirectoryEntry {
            hash: from.u64()?,
            inode: Inode(from.u64()?),
            mode: from.u32()?,
            name: from.bytes()?,
        })
    }
}

/// Where a piece of a file lies on a target. Encoded: start, slot, place, log2 of length, tier.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece {
    /// First offset in the file.
    pub start: u64,
    /// Its number in the target's piece table (`shm::pieces`).
    pub slot: u32,
    /// Byte offset in the arena (memory) or in the target's file (SSD).
    pub place: u64,
    /// log2 of its length in bytes.
    pub length_log2: u8,
    /// `Piece::MEMORY` or `Piece::SSD`.
    pub tier: u8,
}

impl Piece {
    /// In the arena.
    pub const MEMORY: u8 = 0;
    /// In the SSD target's file.
    pub const SSD: u8 = 1;
    /// In the memory of another target; `place` says of which and under which number (`data::abroad`).
    /// No client ever gets such a piece.
    pub const ABROAD: u8 = 2;
    /// Encoded length.
    pub const BYTES: usize = 22;

    /// Length in bytes.
    #[must_use]
    pub const fn length(&self) -> u64 {
        1 << (self.length_log2 & 63)
    }
}

impl Field<'_> for Piece {
    fn put(&self, to: &mut Writer<'_>) {
        to.u64(self.start);
        to.u32(self.slot);
        to.u64(self.place);
        to.u8(self.length_log2);
        to.u8(self.tier);
    }
    fn take(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let piece = Piece {
            start: from.u64()?,
            slot: from.u32()?,
            place: from.u64()?,
            length_log2: from.u8()?,
            tier: from.u8()?,
        };
        if piece.length_log2 > crate::limits::CHUNK_LOG2_MAX || piece.tier > Piece::SSD {
            return Err(Malformed);
        }
        Ok(piece)
    }
}

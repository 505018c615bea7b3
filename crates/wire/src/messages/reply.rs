//! Replies to requests.

use crate::attributes::Attributes;
use crate::codec::{Field, Malformed, Reader, Writer, messages};
use crate::errno::Errno;
use crate::id::Inode;

messages! {
    /// A reply.
    pub enum Reply<'a> {
        /// Done; no further result.
        0x01 Done {}
        /// Refused: the errno that a local file system would give.
        0x02 Refused { errno: Errno }
        /// The sender's map is old; `epoch` of the newer one. Take it and try again.
        0x03 Stale { epoch: u64 }
        /// Temporary: try again after this many microseconds. 0: at once, with no limit on the
        /// total time, as the operation makes progress.
        0x04 Busy { retry_micros: u32 }
        /// Attributes of the requested inode.
        0x05 Attributes { attributes: Attributes }
        /// Result of a `LookupForMount`: attributes, or without `lookup_flag::ATTRIBUTES` only
        /// inode and type; no inode: there is no such name. `may`: bits of `lookup_flag`.
        0x14 LookupForMount { may: u8, attributes: Attributes }
        /// A file that was opened: its attributes, the number of times that a writer had begun
        /// before (to be compared with an earlier number), and bits of `opened`.
        0x15 Opened { attributes: Attributes, writers: u64, others: u8 }
        /// An entry whose inode belongs to another shard: ask there for its attributes.
        0x06 Entry { inode: Inode, mode: u32 }
        /// A file created by this request.
        0x07 Created { attributes: Attributes }
        /// Contents, a link target, an attribute's value.
        0x08 Bytes { bytes: &'a [u8] }
        /// Contents of an inline file, and its size.
        0x09 Contents { size: u64, bytes: &'a [u8] }
        /// The file is not inline (any more): go to its targets.
        0x0a Moved { attributes: Attributes }
        /// Bytes were placed at `offset`; the file is `size` long now.
        0x0b Placed { offset: u64, size: u64 }
        /// Bytes from `offset` on are the sender's. `truncate_epoch`: the truncate epoch in the
        /// open inode of its host at this moment; `TRUNCATE_EPOCH_UNKNOWN` if the shard does not
        /// see that entry.
        0x13 Range { offset: u64, truncate_epoch: u64 }
        /// Encoded `DirectoryEntry`s. `more`: 1 if the shard has further ones. If not, `next` is
        /// the next shard of the same service that has any, at least `SHARD_COUNT` if none has.
        /// Number 0x0c was the same without it.
        0x12 Entries { more: u8, next: u16, entries: &'a [u8] }
        /// Encoded `Extent`s.
        0x0d Extents { extents: &'a [u8] }
        /// As `Extents`, of a request that waited for space for so long.
        0x16 ExtentsAfterWait { waited_micros: u32, extents: &'a [u8] }
        /// As `Bytes`, of an extent of 2^`fetched_log2` bytes that was fetched from the backing store for
        /// a reader, and to which nobody had come before.
        0x17 FetchedBytes { fetched_log2: u8, bytes: &'a [u8] }
        /// As `Number` in reply to a `Fetch`, of such an extent.
        0x18 FetchedNumber { fetched_log2: u8, value: u64 }
        /// A number.
        0x0e Number { value: u64 }
        /// A conflicting lock, and the process that holds it.
        0x0f Held { kind: u8, pid: u32, start: u64, end: u64 }
        /// Encoded `Attributes` of the directories and files that a `Walk` passed. `absent`: 1 if
        /// the next name does not exist; else ask for it separately. Bit i of `leased`: the
        /// directory at position i, and the entry that led to it, may be cached (`crate::lease`)
        /// under lease term `term`, unless revoked by a later revocation than number `revocation`.
        0x11 Walked { absent: u8, leased: u16, term: u64, revocation: u64, chain: &'a [u8] }
        /// Space and number of files of a daemon.
        0x10 Space {
            memory_total: u64, memory_free: u64, ssd_total: u64, ssd_free: u64, files: u64,
        }
    }
}

/// Bits of `LookupForMount::may`.
pub mod lookup_flag {
    /// The inode of the name may be cached.
    pub const NAME_STAYS: u8 = 1;
    /// The attributes may be cached.
    pub const ATTRIBUTES_STAY: u8 = 2;
    /// There are attributes; else the inode's shard has to be asked for them.
    pub const ATTRIBUTES: u8 = 4;
}

/// Bits of `Opened::others`, and of the answer to `Unwatch`: how hosts other than the sender's use
/// it.
pub mod opened {
    /// They may write to the file.
    pub const OTHERS_WRITE: u8 = 1;
    /// Kernels of their mounts may cache pages of it: a writer has to invalidate them.
    pub const OTHERS_CACHE: u8 = 2;
    /// Kernels of the sender's host may cache pages: this is recorded.
    pub const MAY_CACHE: u8 = 4;
}

/// In a `Range`: the epoch is unknown.
pub const TRUNCATE_EPOCH_UNKNOWN: u64 = u64::MAX;
/// In a `Range`: the daemon of the sender's host fills it in when it forwards the answer.
pub const TRUNCATE_EPOCH_OF_HOST: u64 = u64::MAX - 1;
/// In a `Range`: the epoch before the first attempt, because this answer was given before.
pub const TRUNCATE_EPOCH_OF_FIRST_DAEMON: u64 = u64::MAX - 2;

/// One entry of a listing. Encoded: hash, inode, type bits of the mode, name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DirectoryEntry<'a> {
    /// Its position in the listing; continue after it.
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

/// Location of an extent of a file on a target. Encoded: start, slot, location, log2 of length,
/// tier.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    /// First offset in the file.
    pub start: u64,
    /// Its slot in the target's extent table (`shm::extents`).
    pub slot: u32,
    /// Byte offset in the arena (memory) or in the target's file (SSD).
    pub location: u64,
    /// log2 of its length in bytes.
    pub length_log2: u8,
    /// `Extent::MEMORY` or `Extent::SSD`.
    pub tier: u8,
}

impl Extent {
    /// In the arena.
    pub const MEMORY: u8 = 0;
    /// In the SSD target's file.
    pub const SSD: u8 = 1;
    /// In the memory of another target; its location field encodes which target and number
    /// (`data::tiering::spill`). No client ever gets such an extent.
    pub const SPILLED: u8 = 2;
    /// Encoded length.
    pub const BYTES: usize = 22;

    /// Length in bytes.
    #[must_use]
    pub const fn length(&self) -> u64 {
        1 << (self.length_log2 & 63)
    }
}

impl Field<'_> for Extent {
    fn put(&self, to: &mut Writer<'_>) {
        to.u64(self.start);
        to.u32(self.slot);
        to.u64(self.location);
        to.u8(self.length_log2);
        to.u8(self.tier);
    }
    fn take(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let extent = Extent {
            start: from.u64()?,
            slot: from.u32()?,
            location: from.u64()?,
            length_log2: from.u8()?,
            tier: from.u8()?,
        };
        if extent.length_log2 > crate::limits::STRIPE_LOG2_MAX || extent.tier > Extent::SSD {
            return Err(Malformed);
        }
        Ok(extent)
    }
}

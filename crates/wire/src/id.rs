//! Ids: inode, shard, daemon. Numbers with different meanings are different types.

use crate::limits::SHARD_COUNT;

/// An inode number: the shard it was born in (upper 16 bits) and a sequence number (lower 48).
///
/// The shard of birth owns the inode record for the life of the file, wherever its names move.
/// Zero is no inode.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
#[repr(transparent)]
pub struct Inode(pub u64);

/// log2 of `BELOW_FIRST`.
const BELOW_LOG2: u32 = 46;
/// Sequence numbers of what was seen in the backing directory, up to those of posts
/// (`crate::post::SEQUENCE_FIRST`). So the number alone tells everybody whose bytes may lie below.
pub const BELOW_FIRST: u64 = 1 << BELOW_LOG2;

/// Above the sequence of an inode number: it is that of a piece which lies abroad. The two highest bits
/// are used in the piece table (`shm::pieces`).
const ABROAD: u64 = 1 << 13;
/// Above the sequence of such a number: which target's it is.
const HOME_MASK: u64 = 0xfff;

const _: () = assert!(crate::limits::DAEMON_COUNT_MAX as u64 <= HOME_MASK + 1);
const _: () = assert!((SHARD_COUNT as u64) <= ABROAD);

const _: () = assert!(BELOW_FIRST * 2 == crate::post::SEQUENCE_FIRST);

impl Inode {
    /// No inode: the parent of a file that has none, the target of a negative entry.
    pub const NONE: Inode = Inode(0);
    /// The root directory: born in shard 0 with sequence 1.
    pub const ROOT: Inode = Inode(1);

    /// Puts an inode number together. Only the lower 48 bits of `sequence` are used.
    #[must_use]
    pub const fn new(shard: ShardIndex, sequence: u64) -> Inode {
        Inode(((shard.0 as u64) << 48) | (sequence & 0xffff_ffff_ffff))
    }

    /// The shard that owns the record. Values from outside may name a shard that does not exist;
    /// they are folded into range so that a wrong number finds nothing instead of a wrong index.
    #[must_use]
    pub const fn shard(self) -> ShardIndex {
        ShardIndex((self.0 >> 48) as u16 & (SHARD_COUNT - 1))
    }

    /// The sequence number within the shard.
    #[must_use]
    pub const fn sequence(self) -> u64 {
        self.0 & 0xffff_ffff_ffff
    }

    /// True for a file that was seen in the backing directory: directories of which not all entries may
    /// be known yet, and files of which bytes may lie only there. All others were made in the instance.
    #[must_use]
    pub const fn is_from_below(self) -> bool {
        self.sequence() >> BELOW_LOG2 == 1 && !self.is_abroad()
    }

    /// The number by which another target keeps a piece for target `home`; see `data::abroad`. No shard
    /// gives such numbers. Only the lower 48 bits of `sequence` are used.
    #[must_use]
    pub const fn abroad(home: DaemonIndex, sequence: u64) -> Inode {
        let upper = ABROAD | (home.0 as u64 & HOME_MASK);
        Inode(upper << 48 | (sequence & 0xffff_ffff_ffff))
    }

    /// True for a number that `abroad` made.
    #[must_use]
    pub const fn is_abroad(self) -> bool {
        self.0 >> 48 & !HOME_MASK == ABROAD
    }

    /// True for `Inode::NONE`.
    #[must_use]
    pub const fn is_none(self) -> bool {
        self.0 == 0
    }
}

/// A shard of the namespace: `0 .. SHARD_COUNT`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
#[repr(transparent)]
pub struct ShardIndex(pub u16);

/// A daemon of the instance: `0 .. map.daemon_count`. A daemon's number is also its target's.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
#[repr(transparent)]
pub struct DaemonIndex(pub u16);

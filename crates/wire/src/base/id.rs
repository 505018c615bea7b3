//! Ids: inode, shard, daemon. Numbers with different meanings are different types.

use crate::limits::SHARD_COUNT;

/// An inode number: the shard it was born in (upper 16 bits) and a sequence number (lower 48).
///
/// The shard of birth owns the inode record for the life of the file, wherever its names move.
/// Zero is no inode.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
#[repr(transparent)]
pub struct Inode(pub u64);

/// log2 of `BACKED_FIRST`.
const BACKED_LOG2: u32 = 46;
/// First sequence number of files that were found in the backing store, up to those of local
/// operations (`LOCAL_OP_SEQUENCE_FIRST`). So the number alone tells whether bytes may be
/// in the backing store only.
pub const BACKED_FIRST: u64 = 1 << BACKED_LOG2;

/// First sequence number of inodes created by local operations: a range of their own, so that
/// clients can count through it without a message. The shard itself gives the numbers below.
pub const LOCAL_OP_SEQUENCE_FIRST: u64 = 1 << 47;
/// Bit above the sequence of an inode number: it is that of a spilled extent. The two highest bits
/// are used in the extent table (`shm::extents`).
const SPILLED: u64 = 1 << 13;
/// Bits above the sequence of such a number: the home target.
const HOME_MASK: u64 = 0xfff;

const _: () = assert!(crate::limits::DAEMON_COUNT_MAX as u64 <= HOME_MASK + 1);
const _: () = assert!((SHARD_COUNT as u64) <= SPILLED);

const _: () = assert!(BACKED_FIRST * 2 == LOCAL_OP_SEQUENCE_FIRST);

/// Shift of the number of copies in the number of a file: the bits behind those of its shard. In the
/// number of a spilled extent the home target has them.
const COPIES_SHIFT: u32 = 58;
/// The bits of the number of copies.
const COPIES_MASK: u64 = 3;
const _: () = assert!((SHARD_COUNT as u64) << 48 == 1 << COPIES_SHIFT);

impl Inode {
    /// No inode: the parent of a file that has none, the target of a negative entry.
    pub const NONE: Inode = Inode(0);
    /// The root directory: born in shard 0 with sequence 1.
    pub const ROOT: Inode = Inode(1);

    /// Composes an inode number. Only the lower 48 bits of `sequence` are used.
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

    /// The number of a regular file that is made in a directory whose files have so many copies;
    /// 0: as many as the instance keeps. Only the lower two bits of `copies` are used.
    #[must_use]
    pub const fn with_copies(self, copies: u8) -> Inode {
        let others = self.0 & !(COPIES_MASK << COPIES_SHIFT);
        Inode(others | (copies as u64 & COPIES_MASK) << COPIES_SHIFT)
    }

    /// How many copies the bytes of the file have, as its directory said when it was made; 0: as many as
    /// the instance keeps.
    #[must_use]
    pub const fn copies(self) -> u8 {
        if self.is_spilled() { 0 } else { (self.0 >> COPIES_SHIFT & COPIES_MASK) as u8 }
    }

    /// How many copies the bytes of the file have in an instance that keeps `kept` of those whose number
    /// says nothing.
    #[must_use]
    pub const fn copies_in(self, kept: u8) -> u8 {
        match self.copies() {
            _ if self.is_backed() => 1,
            0 => kept,
            own => own,
        }
    }

    /// True for a file that has one copy in each instance, at the targets of its layout: it was found in
    /// the backing store, or made in a directory that says so.
    #[must_use]
    pub const fn is_single(self) -> bool {
        self.is_backed() || self.copies() == 1
    }

    /// The sequence number within the shard.
    #[must_use]
    pub const fn sequence(self) -> u64 {
        self.0 & 0xffff_ffff_ffff
    }

    /// True for a file that was found in the backing store: a directory whose entries may not all
    /// be known yet, or a file whose bytes may be only there. All others were created in the
    /// instance.
    #[must_use]
    pub const fn is_backed(self) -> bool {
        self.sequence() >> BACKED_LOG2 == 1 && !self.is_spilled()
    }

    /// The number under which another target holds a spilled extent of target `home`; see
    /// `data::tiering::spill`. No shard gives such numbers. Only the lower 48 bits of `sequence`
    /// are used.
    #[must_use]
    pub const fn spilled(home: DaemonIndex, sequence: u64) -> Inode {
        let upper = SPILLED | (home.0 as u64 & HOME_MASK);
        Inode(upper << 48 | (sequence & 0xffff_ffff_ffff))
    }

    /// True for a number of a spilled extent.
    #[must_use]
    pub const fn is_spilled(self) -> bool {
        self.0 >> 48 & !HOME_MASK == SPILLED
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_a_file_has_its_copies_beside_shard_and_sequence() {
        let last = ShardIndex(SHARD_COUNT - 1);
        for sequence in [2, BACKED_FIRST - 1, LOCAL_OP_SEQUENCE_FIRST + 9] {
            let inode = Inode::new(last, sequence);
            assert_eq!((inode.copies(), inode.is_single()), (0, false));
            assert_eq!((inode.copies_in(2), inode.copies_in(3)), (2, 3));
            for copies in [1, 2, 3, 0] {
                let found = inode.with_copies(2).with_copies(copies);
                assert_eq!((found.copies(), found.is_single()), (copies, copies == 1));
                assert_eq!(found.copies_in(3), if copies == 0 { 3 } else { copies });
                assert_eq!((found.shard(), found.sequence()), (last, sequence));
                assert!(!found.is_spilled() && !found.is_backed());
            }
        }
        let found = Inode::new(last, BACKED_FIRST);
        assert!(found.is_single() && found.copies_in(3) == 1, "it was found");
        for home in [0, 1 << 10, 3 << 10, 4095].map(DaemonIndex) {
            let spilled = Inode::spilled(home, 7);
            assert_eq!((spilled.copies(), spilled.is_single()), (0, false));
        }
    }
}

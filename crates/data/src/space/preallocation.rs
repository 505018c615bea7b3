//! Speculative preallocation: extents allocated before any request names them, so that a writer
//! finds them (`shm::extents`, or in an answer) without a message. There are two kinds: *first*
//! extents of files that do not exist yet, under their future inode numbers; and extents *ahead* of
//! a sequential writer, allocated with the answer to its request.
//!
//! A preallocated extent is a hole: no page of it is valid, and lookups skip it. It becomes the
//! file's own when bytes were written into it, which the caller detects and reports by
//! `Input::Written`, or when a request asks for it. Otherwise the caller reclaims it by
//! `Input::Reclaimed`, after making sure that nobody writes to it any more.
//!
//! When and where extents are preallocated is `target::preallocate`.
//!
//!   none --Preallocate, or a request just before its range--> preallocated
//!   preallocated --Written, or a request that allocates there--> an extent like any other
//!   preallocated --Reclaimed, or a request that clears--> none
//!
//! Invariants:
//!  1. Each (file, start) of `Preallocation::extents` has an extent there, in memory.
//!  2. `Preallocation::bytes` is the sum of their lengths.

use std::collections::BTreeSet;
use wire::Inode;
use wire::reply::Extent;

/// The preallocated extents.
#[derive(Clone, Debug, Default)]
pub(crate) struct Preallocation {
    extents: BTreeSet<(Inode, u64)>,
    bytes: u64,
    /// A request found no space while some is preallocated.
    pub(crate) is_needed: bool,
}

impl Preallocation {
    /// An extent was preallocated.
    pub(crate) fn insert(&mut self, inode: Inode, extent: &Extent) {
        if self.extents.insert((inode, extent.start)) {
            self.bytes += extent.length();
        }
    }

    /// Forgets an extent. False if it is not preallocated.
    pub(crate) fn remove(&mut self, inode: Inode, extent: &Extent) -> bool {
        let was_preallocated = self.extents.remove(&(inode, extent.start));
        if was_preallocated {
            self.bytes -= extent.length();
        }
        self.is_needed &= !self.extents.is_empty();
        was_preallocated
    }

    pub(crate) fn contains(&self, inode: Inode, extent: &Extent) -> bool {
        self.extents.contains(&(inode, extent.start))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.extents.is_empty()
    }

    /// Starts of the preallocated extents within `offset .. end`.
    pub(crate) fn starts(&self, inode: Inode, offset: u64, end: u64) -> impl Iterator<Item = u64> {
        let range = (inode, offset)..(inode, end.max(offset));
        self.extents.range(range).map(|&(_, start)| start)
    }

    /// Bytes in preallocated extents.
    pub(crate) const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// True if a request that needs space waits for preallocated extents from now on.
    pub(crate) fn need(&mut self) -> bool {
        self.is_needed = !self.extents.is_empty();
        self.is_needed
    }

    /// Checks the invariants; for tests. `at` gives the extent that begins at an offset of a file.
    #[cfg(test)]
    pub(crate) fn check(&self, at: impl Fn(Inode, u64) -> Option<Extent>) {
        let in_memory = |one: &Extent| one.tier == Extent::MEMORY;
        let length = |&(inode, start): &(Inode, u64)| {
            let extent = at(inode, start).filter(in_memory);
            extent.expect("a preallocated extent is missing").length()
        };
        assert_eq!(self.extents.iter().map(length).sum::<u64>(), self.bytes);
    }
}

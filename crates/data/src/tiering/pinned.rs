//! Pinned files: files that users keep in memory. Their extents are neither demoted nor evicted;
//! those on the SSD, allocated there while memory was full, are promoted even if they are not used.
//!
//! This is the record of them; `pinning` says how a file gets into it. Extents of a pinned file are
//! in no policy, so they do not delay the choice of victims. Whether they are clean is recorded
//! here until the file is unpinned.
//!
//! Invariants:
//!  1. `extents` are the extents in memory of pinned files, except preallocated and moving ones.
//!  2. `bytes` is the sum of their lengths.
//!  3. Each slot of `clean` has an extent of a pinned file.

use std::collections::{BTreeMap, BTreeSet};
use wire::Inode;
use wire::reply::Extent;

/// Whether a file is pinned, and since when.
#[derive(Clone, Copy, Debug)]
struct PinRecord {
    is_pinned: bool,
    since: i64,
}

/// Pinned files and their extents in memory.
#[derive(Clone, Debug, Default)]
pub(crate) struct PinnedFiles {
    files: BTreeMap<Inode, PinRecord>,
    extents: BTreeMap<u32, u64>,
    bytes: u64,
    clean: BTreeSet<u32>,
}

impl PinnedFiles {
    /// True if the file's extents stay in memory.
    pub(crate) fn contains(&self, inode: Inode) -> bool {
        self.files.get(&inode).is_some_and(|record| record.is_pinned)
    }

    /// True if it was ever said whether the file is pinned.
    pub(crate) fn knows(&self, inode: Inode) -> bool {
        self.files.contains_key(&inode)
    }

    /// True if what is known of the file is older than this.
    pub(crate) fn is_older(&self, inode: Inode, since: i64) -> bool {
        self.files.get(&inode).is_none_or(|record| record.since < since)
    }

    /// The file is pinned, or not, since that time.
    pub(crate) fn set_file(&mut self, inode: Inode, is_pinned: bool, since: i64) {
        self.files.insert(inode, PinRecord { is_pinned, since });
    }

    /// A pinned file has an extent in memory.
    pub(crate) fn insert(&mut self, extent: &Extent) {
        if self.extents.insert(extent.slot, extent.length()).is_none() {
            self.bytes += extent.length();
        }
    }

    /// An extent leaves, or moves.
    pub(crate) fn remove(&mut self, slot: u32) {
        self.bytes -= self.extents.remove(&slot).unwrap_or(0);
    }

    /// An extent of a pinned file is clean.
    pub(crate) fn insert_clean(&mut self, slot: u32) {
        self.clean.insert(slot);
    }

    /// True if the extent was clean; it is not known to be any more.
    pub(crate) fn remove_clean(&mut self, slot: u32) -> bool {
        self.clean.remove(&slot)
    }

    /// Bytes of memory in extents of pinned files.
    pub(crate) const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The file is removed.
    pub(crate) fn forget(&mut self, inode: Inode) {
        self.files.remove(&inode);
    }

    /// Checks the invariants; for tests. `stay` has the slots and lengths of all extents in memory
    /// that do not move because of their files; `is_right` judges a clean slot.
    #[cfg(test)]
    pub(crate) fn check(
        &self,
        stay: impl Iterator<Item = (u32, u64)>,
        is_right: impl Fn(u32) -> bool,
    ) {
        assert_eq!(stay.collect::<BTreeMap<_, _>>(), self.extents);
        assert_eq!(self.extents.values().sum::<u64>(), self.bytes);
        assert!(self.clean.iter().all(|&slot| is_right(slot)));
    }
}

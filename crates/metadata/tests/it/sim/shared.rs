//! The host segment as far as it concerns pages (`shm::host::pages`, and marks of open inodes).

use std::collections::{BTreeMap, BTreeSet};
use wire::Inode;
use wire::reply::opened;

/// State of a host's files that its programs share, and the use of files by other hosts.
#[derive(Default)]
pub(crate) struct Shared {
    pub(crate) rows: BTreeMap<Inode, FileRow>,
    pub(crate) writers: BTreeMap<Inode, u64>,
    /// The number of writers of all files that are not in `writers`.
    pub(crate) writers_least: u64,
    /// Number of other hosts that may write to a file, and that may cache its pages.
    pub(crate) others: BTreeMap<Inode, (u32, u32)>,
    /// Mounts that a service does not wait for, with the service.
    pub(crate) behind: BTreeSet<(u8, usize)>,
    /// The epoch in which the segment agreed with the log of a service last.
    pub(crate) agreed: BTreeMap<usize, u64>,
    /// Sizes of open files as a service that was back set them, and whether by a truncation.
    pub(crate) settled: BTreeMap<Inode, (u64, bool)>,
    /// Files that `note_lost` was told of.
    pub(crate) lost: BTreeSet<Inode>,
}

/// An open file of a host.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct FileRow {
    pub(crate) host_view: u32,
    /// 0: no writer; the number of a mount if it is the only writer; else 255.
    pub(crate) writer: u8,
    pub(crate) had_pages: bool,
    pub(crate) is_entered: bool,
    /// Bits of `wire::reply::opened`.
    pub(crate) others: u8,
    /// A program of the host may store silently.
    pub(crate) is_stored: bool,
    /// A bit for each mount whose kernel may cache pages.
    pub(crate) cachers: u32,
}

impl Shared {
    pub(crate) fn has_writer(&self, inode: Inode) -> bool {
        self.rows.get(&inode).is_some_and(|row| row.writer != 0)
    }
    pub(crate) fn page_cache_mounts(&self, inode: Inode, each: &mut dyn FnMut(u8)) {
        let cachers = self.rows.get(&inode).map_or(0, |row| row.cachers);
        (1..32).filter(|mount| cachers & 1 << mount != 0).for_each(each);
    }
    pub(crate) fn had_pages(&self, inode: Inode) -> bool {
        self.rows.get(&inode).is_some_and(|row| row.had_pages)
    }
    pub(crate) fn writers_ever(&self, inode: Inode) -> u64 {
        self.writers.get(&inode).copied().unwrap_or(self.writers_least)
    }
    pub(crate) fn begin_writing(&mut self, inode: Inode) -> u64 {
        let count = self.writers.entry(inode).or_insert(self.writers_least);
        *count += 1;
        *count - 1
    }
    pub(crate) fn raise_writers(&mut self, least: u64) {
        let all = self.writers.values_mut().chain([&mut self.writers_least]);
        all.for_each(|count| *count = least.max(*count) + 1);
    }
    pub(crate) fn count(&mut self, inode: Inode, more: u8) {
        let counts = self.others.entry(inode).or_default();
        counts.0 += u32::from(more & opened::OTHERS_WRITE != 0);
        counts.1 += u32::from(more & opened::OTHERS_CACHE != 0);
    }
    pub(crate) fn uncount(&mut self, inode: Inode, less: u8) {
        let counts = self.others.get_mut(&inode).expect("counted before");
        counts.0 -= u32::from(less & opened::OTHERS_WRITE != 0);
        counts.1 -= u32::from(less & opened::OTHERS_CACHE != 0);
    }
    pub(crate) fn mark(&mut self, inode: Inode, others: u8) {
        if let Some(row) = self.rows.get_mut(&inode) {
            row.others |= others;
        }
    }
}

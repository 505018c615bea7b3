//! What the segment of a host says of pages (`shm::host::pages`, and marks of rows).

use std::collections::BTreeMap;
use wire::Inode;
use wire::reply::opened;

/// What programs of a host know of its files, and of the use of files that others make.
#[derive(Default)]
pub(crate) struct Shared {
    pub(crate) rows: BTreeMap<Inode, FileRow>,
    pub(crate) writers: BTreeMap<Inode, u64>,
    /// How many other hosts may write to a file, and keep pages of it.
    pub(crate) others: BTreeMap<Inode, (u32, u32)>,
}

/// A file that is open on a host.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct FileRow {
    pub(crate) opens: u32,
    /// 0: nobody writes; the number of a mount if only that does; else 255.
    pub(crate) writer: u8,
    pub(crate) had_pages: bool,
    pub(crate) is_entered: bool,
    /// Bits of `wire::reply::opened`.
    pub(crate) others: u8,
    /// A bit for each mount whose kernel may have pages.
    pub(crate) keepers: u32,
}

impl Shared {
    pub(crate) fn has_writer(&self, inode: Inode) -> bool {
        self.rows.get(&inode).is_some_and(|row| row.writer != 0)
    }
    pub(crate) fn page_keepers(&self, inode: Inode, each: &mut dyn FnMut(u8)) {
        let keepers = self.rows.get(&inode).map_or(0, |row| row.keepers);
        (1..32).filter(|mount| keepers & 1 << mount != 0).for_each(each);
    }
    pub(crate) fn had_pages(&self, inode: Inode) -> bool {
        self.rows.get(&inode).is_some_and(|row| row.had_pages)
    }
    pub(crate) fn writers_ever(&self, inode: Inode) -> u64 {
        self.writers.get(&inode).copied().unwrap_or(0)
    }
    pub(crate) fn begin_writing(&mut self, inode: Inode) -> u64 {
        let count = self.writers.entry(inode).or_default();
        *count += 1;
        *count - 1
    }
    pub(crate) fn count(&mut self, inode: Inode, more: u8) {
        let counts = self.others.entry(inode).or_default();
        counts.0 += u32::from(more & opened::OTHERS_WRITE != 0);
        counts.1 += u32::from(more & opened::OTHERS_KEEP != 0);
    }
    pub(crate) fn uncount(&mut self, inode: Inode, less: u8) {
        let counts = self.others.get_mut(&inode).expect("counted before");
        counts.0 -= u32::from(less & opened::OTHERS_WRITE != 0);
        counts.1 -= u32::from(less & opened::OTHERS_KEEP != 0);
    }
    pub(crate) fn mark(&mut self, inode: Inode, others: u8) {
        if let Some(row) = self.rows.get_mut(&inode) {
            row.others |= others;
        }
    }
}

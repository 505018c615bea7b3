//! Where kernels behind mounts cache pages of this host's files between two opens, and which of its
//! files other hosts have open: so that a process that opens a file without a message learns it.
//!
//! For each file, by a hash of it, a count of writers that began, and how many files with the same
//! hash other hosts have open for writing, or with pages in their kernels. Files with the same hash
//! are not distinguished: a file is then read again, uses direct I/O, or sends a message
//! needlessly.
//!
//! A new writer notes itself first (in the open inode, or in the shard for another host), then
//! increments the first word, then checks for kernels that cache pages. A kernel that caches pages
//! reads that word first, then notes itself, then checks whether there are writers. All of that is
//! in one order: so one of the two sees the other; and a kernel whose pages are older knows an
//! older count.
//!
//! Counts of other hosts are increased before the log has the open, and decreased after it has the
//! close: a daemon that is killed in between leaves one too high.
//!
//! Layout: `BUCKETS` entries of two words u64: the count of writers; then in the low half the
//! number of files that others may write to, in the high half the number of files that they may
//! cache.

use super::{HostSegment, watches};
use crate::sync::AtomicU64;
use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use wire::Inode;
use wire::errno::Result;
use wire::hash::mix;
use wire::reply::opened;

const START: usize = watches::END;
const BUCKETS: usize = 1 << 16;
const ENTRY_BYTES: usize = 16;
pub(super) const END: usize = START + BUCKETS * ENTRY_BYTES;

/// One more file that others may write to.
const WRITER: u64 = 1;
const WRITERS: u64 = u32::MAX as u64;
/// One more file that others may cache.
const CACHER: u64 = 1 << 32;

/// The amount that bits of `opened` add to the second word.
const fn count_of(uses: u8) -> u64 {
    let writer = if uses & opened::OTHERS_WRITE != 0 { WRITER } else { 0 };
    writer + if uses & opened::OTHERS_CACHE != 0 { CACHER } else { 0 }
}

impl HostSegment {
    fn pages_entry(&self, inode: Inode, word: usize) -> Result<&AtomicU64> {
        let bucket = mix(inode.0, 23) as usize % BUCKETS;
        self.segment.word64(START + bucket * ENTRY_BYTES + word * 8)
    }

    /// Number of times that a writer of a file began.
    #[must_use]
    pub fn writers_ever(&self, inode: Inode) -> u64 {
        self.pages_entry(inode, 0).map_or(0, |count| count.load(SeqCst))
    }

    /// Counts a writer that begins and has noted itself. Returns the number before.
    #[inline]
    pub fn begin_writing(&self, inode: Inode) -> u64 {
        self.pages_entry(inode, 0).map_or(0, |count| count.fetch_add(1, SeqCst))
    }

    /// Files may have been written that nobody counted here: of each, the number of writers is from now
    /// on larger than `least`, and than it was.
    pub fn raise_writers_ever(&self, least: u64) {
        for bucket in 0..BUCKETS {
            if let Ok(count) = self.segment.word64(START + bucket * ENTRY_BYTES) {
                let raised = |count: u64| Some(count.max(least).saturating_add(1));
                let _ = count.fetch_update(SeqCst, Relaxed, raised);
            }
        }
    }

    /// How other hosts may use a file: bits of `opened`.
    #[inline]
    #[must_use]
    pub fn remote_use(&self, inode: Inode) -> u8 {
        let counts = self.pages_entry(inode, 1).map_or(0, |counts| counts.load(SeqCst));
        let writes = if counts & WRITERS != 0 { opened::OTHERS_WRITE } else { 0 };
        writes | if counts >= CACHER { opened::OTHERS_CACHE } else { 0 }
    }

    /// Counts another host that uses a file in this way from now on: bits of `opened`.
    pub fn add_remote_use(&self, inode: Inode, more: u8) {
        if let Ok(counts) = self.pages_entry(inode, 1) {
            counts.fetch_add(count_of(more), SeqCst);
        }
    }

    /// Counts another host that stops to use it.
    pub fn remove_remote_use(&self, inode: Inode, less: u8) {
        let Ok(counts) = self.pages_entry(inode, 1) else { return };
        let less = count_of(less);
        let left = |counts: u64| {
            let writers = (counts & WRITERS).saturating_sub(less & WRITERS);
            let cachers = (counts / CACHER).saturating_sub(less / CACHER);
            Some(cachers * CACHER + writers)
        };
        let _ = counts.fetch_update(SeqCst, Relaxed, left);
    }

    /// Records in the open inode of a file, if there is one, how other hosts use it.
    pub fn mark_remote_use(&self, inode: Inode, others: u8) {
        let mut marks = 0;
        if others & opened::OTHERS_WRITE != 0 {
            marks |= watches::pages::OTHERS_WRITE;
        }
        if others & opened::OTHERS_CACHE != 0 {
            marks |= watches::pages::OTHERS_CACHE;
        }
        if marks != 0 {
            self.entries_of(inode).for_each(|entry| {
                entry.marks.fetch_or(marks, SeqCst);
            });
        }
    }
}

#[cfg(all(test, not(feature = "interleavings")))]
mod tests {
    use super::*;
    use crate::host::HOST_BYTES;
    use crate::segment::Segment;

    #[test]
    fn uses_of_other_hosts_are_counted_and_never_negative() {
        let (segment, _) = Segment::nameless(c"test", HOST_BYTES).expect("memory");
        let host = HostSegment::new(segment).expect("a segment");
        let file = Inode(7);
        assert_eq!((host.begin_writing(file), host.begin_writing(file)), (0, 1));
        assert_eq!((host.writers_ever(file), host.writers_ever(Inode(8))), (2, 0));
        host.raise_writers_ever(1);
        assert_eq!((host.writers_ever(file), host.writers_ever(Inode(8))), (3, 2));
        host.raise_writers_ever(10);
        assert_eq!((host.writers_ever(file), host.writers_ever(Inode(8))), (11, 11));
        let (writes, caches) = (opened::OTHERS_WRITE, opened::OTHERS_CACHE);
        host.add_remote_use(file, writes);
        host.add_remote_use(file, writes | caches);
        assert_eq!((host.remote_use(file), host.remote_use(Inode(8))), (writes | caches, 0));
        for _ in 0..3 {
            host.remove_remote_use(file, writes);
        }
        assert_eq!(host.remote_use(file), caches);
        host.remove_remote_use(file, caches);
        host.remove_remote_use(file, caches);
        assert_eq!(host.remote_use(file), 0);
        // A file that is not open here has no marks.
        host.mark_remote_use(file, writes);
        let entry = host.vnode_open(file).expect("space");
        assert!(!host.had_pages(file));
        host.mark_remote_use(file, writes | caches);
        let marks = host.vnode(entry).expect("a row").marks.load(SeqCst);
        assert_eq!(marks, watches::pages::OTHERS_WRITE | watches::pages::OTHERS_CACHE);
    }
}

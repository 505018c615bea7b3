//! Where kernels behind mounts keep pages of this host's files between an open and the next, and which of
//! its files other hosts have open: so that who opens a file without a message finds that out.
//!
//! For each file, by a hash of it, a count of those who began to write to it, and how many files of the
//! same hash other hosts have open to write, and with pages of them in their kernels. What has the same
//! hash is taken for each other: something is read anew then, or goes straight, or asks needlessly.
//!
//! Who begins to write notes that first (in the row of the file, or the shard for another host here),
//! then counts himself in the first word, then looks who keeps pages. Who keeps pages reads that word
//! first, then notes that he does, then looks whether anybody writes. All of that is in one order: so
//! one of the two sees the other; and who keeps what was there before knows an older count.
//!
//! Counts of other hosts are noted before the log has the opening, and taken away after it has the
//! close: a daemon that is killed in between leaves one too high.
//!
//! Layout: `BUCKETS` rows of two words u64: the count of writers; then in the low half how many files
//! others may write to, in the high one of how many they may keep pages.

use super::{HostSegment, watches};
use crate::sync::AtomicU64;
use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use wire::Inode;
use wire::errno::Result;
use wire::hash::mix;
use wire::reply::opened;

const START: usize = watches::END;
const BUCKETS: usize = 1 << 16;
const ROW: usize = 16;
pub(super) const END: usize = START + BUCKETS * ROW;

/// A file more that others may write to.
const WRITER: u64 = 1;
const WRITERS: u64 = u32::MAX as u64;
/// A file more of which others may keep pages.
const KEEPER: u64 = 1 << 32;

/// What bits of `opened` add to the second word.
const fn count_of(uses: u8) -> u64 {
    let writer = if uses & opened::OTHERS_WRITE != 0 { WRITER } else { 0 };
    writer + if uses & opened::OTHERS_KEEP != 0 { KEEPER } else { 0 }
}

impl HostSegment {
    fn pages_row(&self, inode: Inode, word: usize) -> Result<&AtomicU64> {
        let bucket = mix(inode.0, 23) as usize % BUCKETS;
        self.segment.word64(START + bucket * ROW + word * 8)
    }

    /// How often somebody began to write to a file.
    #[must_use]
    pub fn writers_ever(&self, inode: Inode) -> u64 {
        self.pages_row(inode, 0).map_or(0, |count| count.load(SeqCst))
    }

    /// Somebody begins to write to a file, and has noted that. How often that was before.
    #[inline]
    pub fn begin_writing(&self, inode: Inode) -> u64 {
        self.pages_row(inode, 0).map_or(0, |count| count.fetch_add(1, SeqCst))
    }

    /// What other hosts may do with a file: bits of `opened`.
    #[inline]
    #[must_use]
    pub fn others_use(&self, inode: Inode) -> u8 {
        let counts = self.pages_row(inode, 1).map_or(0, |counts| counts.load(SeqCst));
        let writes = if counts & WRITERS != 0 { opened::OTHERS_WRITE } else { 0 };
        writes | if counts >= KEEPER { opened::OTHERS_KEEP } else { 0 }
    }

    /// Another host does this with a file from now on, too: bits of `opened`.
    pub fn count_others_use(&self, inode: Inode, more: u8) {
        if let Ok(counts) = self.pages_row(inode, 1) {
            counts.fetch_add(count_of(more), SeqCst);
        }
    }

    /// Another host does it no longer.
    pub fn uncount_others_use(&self, inode: Inode, less: u8) {
        let Ok(counts) = self.pages_row(inode, 1) else { return };
        let less = count_of(less);
        let left = |counts: u64| {
            let writers = (counts & WRITERS).saturating_sub(less & WRITERS);
            let keepers = (counts / KEEPER).saturating_sub(less / KEEPER);
            Some(keepers * KEEPER + writers)
        };
        let _ = counts.fetch_update(SeqCst, Relaxed, left);
    }

    /// Notes in the row of a file, if it is open here, what other hosts do with it.
    pub fn mark_others_use(&self, inode: Inode, others: u8) {
        let mut marks = 0;
        if others & opened::OTHERS_WRITE != 0 {
            marks |= watches::pages::OTHERS_WRITE;
        }
        if others & opened::OTHERS_KEEP != 0 {
            marks |= watches::pages::OTHERS_KEEP;
        }
        if marks != 0 {
            self.rows_of(inode).for_each(|row| {
                row.marks.fetch_or(marks, SeqCst);
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
    fn what_others_do_is_counted_and_never_below_nothing() {
        let (segment, _) = Segment::nameless(c"test", HOST_BYTES).expect("memory");
        let host = HostSegment::new(segment).expect("a segment");
        let file = Inode(7);
        assert_eq!((host.begin_writing(file), host.begin_writing(file)), (0, 1));
        assert_eq!((host.writers_ever(file), host.writers_ever(Inode(8))), (2, 0));
        let (writes, keeps) = (opened::OTHERS_WRITE, opened::OTHERS_KEEP);
        host.count_others_use(file, writes);
        host.count_others_use(file, writes | keeps);
        assert_eq!((host.others_use(file), host.others_use(Inode(8))), (writes | keeps, 0));
        for _ in 0..3 {
            host.uncount_others_use(file, writes);
        }
        assert_eq!(host.others_use(file), keeps);
        host.uncount_others_use(file, keeps);
        host.uncount_others_use(file, keeps);
        assert_eq!(host.others_use(file), 0);
        // Of a file that is open nowhere here there is nothing to mark.
        host.mark_others_use(file, writes);
        let row = host.vnode_open(file).expect("room");
        assert!(!host.had_pages(file));
        host.mark_others_use(file, writes | keeps);
        let marks = host.vnode(row).expect("a row").marks.load(SeqCst);
        assert_eq!(marks, watches::pages::OTHERS_WRITE | watches::pages::OTHERS_KEEP);
    }
}

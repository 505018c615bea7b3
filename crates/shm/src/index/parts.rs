//! An index of which a reader maps what is in use.
//!
//! The first buckets of each table are the first part, as many again the second, and each further
//! part doubles the table, as the table itself grows. A part is mapped when a look-up first needs it,
//! and stays. Spill buckets are spread over the whole range, however few are in use, and few look-ups
//! need one: they are read through the file.

use super::buckets::{Table, read_once};
use super::{FIRST_PAGE, Shape};
use crate::kept::KeptFile;
use crate::once::Once;
use crate::segment::{Access, Segment};
use crate::sync::{self, AtomicU64, fence, read_attempts};
use core::sync::atomic::Ordering::SeqCst;
use rustix::fd::OwnedFd;
use rustix::io::Errno as OsErrno;
use wire::errno::{Errno, Result};

/// log2 of the number of buckets of the first part: 1.1 MiB of entries, 2.9 MiB of inodes.
const FIRST_LOG2: u32 = 13;
/// Further parts, for a table of at most `1 << (FIRST_LOG2 + FURTHER)` buckets.
const FURTHER: usize = 7;

/// The file of an index.
pub(super) struct Parts {
    file: KeptFile,
}

/// The parts of a table that are mapped.
pub(super) struct TableParts {
    /// The first one; nothing if the whole index is mapped.
    first: Part,
    further: [Once<Part>; FURTHER],
}

/// A mapping of buckets.
struct Part {
    segment: Segment,
    /// Where its first bucket begins: the mapping begins at a page.
    skew: usize,
}

impl Part {
    /// The words of a bucket, counted from the first of the part.
    #[inline(always)]
    fn words<const WORDS: usize>(&self, number: u32) -> Result<&[AtomicU64; WORDS]> {
        self.segment.words(self.skew.wrapping_add((number as usize).wrapping_mul(8 * WORDS)))
    }
}

impl TableParts {
    /// Of an index that is mapped whole.
    pub(super) const fn none() -> TableParts {
        let first = Part { segment: Segment::nothing(), skew: 0 };
        TableParts { first, further: [const { Once::new() }; FURTHER] }
    }

    /// The words of a bucket of the first part.
    #[inline(always)]
    pub(super) fn first_words<const WORDS: usize>(
        &self,
        number: u32,
    ) -> Result<&[AtomicU64; WORDS]> {
        self.first.words(number)
    }

    /// The mappings of all parts.
    fn segments(&self) -> impl Iterator<Item = &Segment> {
        let further = self.further.iter().filter_map(Once::get);
        core::iter::once(&self.first).chain(further).map(|part| &part.segment)
    }

    pub(super) fn unmap_pages(&self) {
        self.segments().for_each(Segment::unmap_pages);
    }

    pub(super) fn detach(&self) {
        self.segments().for_each(Segment::detach);
    }
}

impl Parts {
    /// Takes the file of an index.
    ///
    /// # Errors
    /// `EINVAL` if it is shorter than its shape says, or too large.
    pub(super) fn new(file: OwnedFd, shape: Shape) -> Result<Parts> {
        let length = rustix::fs::fstat(&file).map_err(crate::segment::errno)?.st_size;
        let is_long = usize::try_from(length).is_ok_and(|length| length >= shape.bytes());
        let most = FIRST_LOG2 + FURTHER as u32;
        if !is_long || shape.entries_log2 > most || shape.inodes_log2 > most {
            return Err(Errno::EINVAL);
        }
        Ok(Parts { file: KeptFile::new(file) })
    }

    pub(super) fn file(&self) -> &KeptFile {
        &self.file
    }

    /// Maps the first part of a table.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub(super) fn map_first(&self, table: &mut Table) -> Result<()> {
        table.parts.first = self.map(table, 0, 1 << FIRST_LOG2)?;
        Ok(())
    }

    /// Maps the buckets of a table from `first` to `end`.
    fn map(&self, table: &Table, first: u32, end: u32) -> Result<Part> {
        let (start, end) = (table.at(first), table.at(end.min(table.buckets_max)));
        let skew = start % FIRST_PAGE;
        let (offset, length) = ((start - skew) as u64, end.saturating_sub(start) + skew);
        let segment = Segment::map_part(self.file.get()?, offset, length, Access::ReadOnly)?;
        Ok(Part { segment, skew })
    }

    /// The words of bucket `number` of a table, which is behind the first part.
    ///
    /// # Errors
    /// `EIO` for a bucket that does not exist; errors of the operating system.
    #[inline(never)]
    pub(super) fn further_words<'a, const WORDS: usize>(
        &self,
        table: &'a Table,
        number: u32,
    ) -> Result<&'a [AtomicU64; WORDS]> {
        let part = (number >> FIRST_LOG2).checked_ilog2().ok_or(Errno::EIO)?;
        let first = 1 << (FIRST_LOG2 + part);
        let cell = table.parts.further.get(part as usize).ok_or(Errno::EIO)?;
        let mapped = match cell.get() {
            Some(mapped) => mapped,
            // Another thread may map it as well: its mapping counts. Until that is there, or if a
            // fork came in between, the caller does without.
            None => match cell.set(self.map(table, first, first.saturating_mul(2))?) {
                Ok(mapped) => mapped,
                Err(_) => cell.get().ok_or(Errno::EAGAIN)?,
            },
        };
        mapped.words(number - first)
    }

    /// The result of `look_up` on the words of the bucket at an offset in the file, if no writer was
    /// in it meanwhile. `None` after many attempts.
    pub(super) fn read<const WORDS: usize, R>(
        &self,
        at: usize,
        mut look_up: impl FnMut(&[AtomicU64; WORDS]) -> R,
    ) -> Option<R> {
        for _ in 0..read_attempts() {
            // The kernel copies in any order. Three calls are as ordered as a load, a copy, and a
            // load.
            let [before] = self.copy::<1>(at)?;
            fence(SeqCst);
            let words = self.copy::<WORDS>(at)?;
            fence(SeqCst);
            let [after] = self.copy::<1>(at)?;
            if before == after && words.first() == Some(&before) {
                let words = words.map(AtomicU64::new);
                if let Some(found) = read_once(&words, &mut look_up) {
                    return Some(found);
                }
            }
            sync::spin_loop();
        }
        None
    }

    /// Copies words out of the file.
    fn copy<const WORDS: usize>(&self, at: usize) -> Option<[u64; WORDS]> {
        let mut words = [[0; 8]; WORDS];
        let length = size_of_val(&words);
        let file = self.file.get().ok()?;
        loop {
            match rustix::io::pread(file, words.as_flattened_mut(), at as u64) {
                Ok(count) => return (count == length).then(|| words.map(u64::from_ne_bytes)),
                Err(OsErrno::INTR) => {}
                Err(_) => return None,
            }
        }
    }
}

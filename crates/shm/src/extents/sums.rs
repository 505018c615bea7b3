//! Checksums of the pages of the SSD file: CRC-32C of 4096 bytes, computed when data leaves memory and
//! compared when it comes back.
//!
//! Layout, shared by the daemon and its clients:
//!
//!   0     count   u64   reports of damaged pages so far
//!   8     reports u64 x 64, report n at n % 64: slot + 1 << 32 | page in the extent; 0: none yet
//!   4096  sums    u32 for each page of the file
//!
//! States of a sum, with the transition of each party:
//!
//!   UNKNOWN --owner of the page or the daemon, alone--> sum        [`SumsPart::seal`]
//!   sum ----writer begins--> WRITING --that writer ends--> sum     [`begin`, `end`]
//!   WRITING --another writer begins--> UNKNOWN                     [`begin`]
//!
//! So a sum is stored only by a writer that was alone from its beginning to its end. Two writers of one
//! page at a time, a writer that is killed, and a shared mapping leave `UNKNOWN` or `WRITING`: such a
//! page is read without a check, until it is written or moved again.
//!
//! Invariants:
//!  1. While a sum is stored, no write to its page is under way.
//!  2. A reader that finds the same sum before and after has read what was stored with it.

use crate::kept::KeptFile;
use crate::segment::{Access, Segment, errno};
use crate::sync::{AtomicU32, AtomicU64};
use core::ops::Range;
use core::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};
use rustix::fd::{BorrowedFd, OwnedFd};
use wire::errno::{Errno, Result};

/// log2 of the size of a page with a sum.
pub(super) const SUM_PAGE_LOG2: u8 = super::PAGE_LOG2;
/// Size of a page with a sum.
pub const SUM_PAGE_BYTES: usize = 1 << SUM_PAGE_LOG2;
const HEAD_BYTES: usize = 4096;
const REPORT_COUNT: u64 = 64;
const PAGE: u64 = SUM_PAGE_BYTES as u64;
/// An application keeps so much mapped: the sums of 8 GiB.
const KEPT_BYTES: usize = 8 << 20;
/// Sums that are read together.
const READ_MAX: usize = 64;

/// The page is not protected.
const UNKNOWN: u32 = 0;
/// One writer writes the page.
const WRITING: u32 = u32::MAX;

/// Any sum, for a page whose contents nobody reads.
const NOT_VALID: u32 = 1;

/// Length of the segment for a file of `bytes`.
#[must_use]
pub const fn page_sums_bytes(bytes: u64) -> u64 {
    HEAD_BYTES as u64 + (bytes >> SUM_PAGE_LOG2) * size_of::<u32>() as u64
}

/// The part of the segment, without its head, that belongs to a range of the file.
#[must_use]
pub const fn page_sums_of(file: &Range<u64>) -> Range<u64> {
    page_sums_bytes(file.start)..page_sums_bytes(file.end.next_multiple_of(1 << SUM_PAGE_LOG2))
}

/// The sum of a page: its CRC-32C, which is not one of the two other states.
pub(super) fn sum_of(page: &[u8]) -> u32 {
    match crc32c::crc32c(page) {
        UNKNOWN => 1,
        WRITING => WRITING - 1,
        crc => crc,
    }
}

/// A page that failed its check.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DamageReport {
    /// Slot of the extent.
    pub slot: u32,
    /// Number of the page in the extent.
    pub page: u32,
}

/// The sums.
pub struct PageSums {
    /// All of them, or the first.
    segment: Segment,
    /// The file, unless all are mapped.
    file: Option<KeptFile>,
}

/// The mapping that has the sums of some pages.
enum Mapping<'a> {
    Kept(&'a Segment),
    /// For these pages alone.
    Own(Segment),
}

/// The sums of some pages, of which a writer changes some.
pub(super) struct SumsPart<'a> {
    mapping: Mapping<'a>,
    /// Where the mapping begins in the segment.
    skip: usize,
}

/// Where the sum of the page at `location` is in the segment.
fn place_of(location: u64) -> Result<usize> {
    let page = usize::try_from(location >> SUM_PAGE_LOG2).map_err(|_| Errno::EIO)?;
    page.checked_mul(4).and_then(|at| at.checked_add(HEAD_BYTES)).ok_or(Errno::EIO)
}

const fn known(sum: u32) -> Option<u32> {
    if sum == UNKNOWN || sum == WRITING { None } else { Some(sum) }
}

impl PageSums {
    /// Sees nothing of the shared memory any more (`Segment::detach`).
    pub fn detach(&self) {
        self.file.iter().for_each(KeptFile::give_up);
        self.segment.detach();
    }

    /// Takes the mapping.
    #[must_use]
    pub const fn new(segment: Segment) -> PageSums {
        PageSums { segment, file: None }
    }

    /// Takes the file, of which little is mapped: for an application, whose address space others
    /// watch. Sums behind that are read through the file, and mapped for each write.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub fn open_in_parts(file: OwnedFd) -> Result<PageSums> {
        let length = rustix::fs::fstat(&file).map_err(errno)?.st_size;
        let length = usize::try_from(length).map_err(|_| Errno::EINVAL)?;
        let segment = Segment::map(&file, length.min(KEPT_BYTES), Access::ReadWrite)?;
        Ok(PageSums { segment, file: Some(KeptFile::new(file)) })
    }

    /// The file, if part of it is mapped.
    pub(super) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.file.as_ref().map(KeptFile::descriptor)
    }

    pub(super) fn unmap_pages(&self) {
        self.segment.unmap_pages();
    }

    /// The sum of the page at `location`; `None` if it has none.
    ///
    /// # Errors
    /// As `read`.
    pub(super) fn get(&self, location: u64) -> Result<Option<u32>> {
        let mut sum = [None];
        self.read(location, &mut sum)?;
        let [sum] = sum;
        Ok(sum)
    }

    /// The sums of the pages from `location` on; `None` for one that has none, and beyond the table,
    /// where nothing is checked.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub(super) fn read(&self, location: u64, to: &mut [Option<u32>]) -> Result<()> {
        let place = place_of(location)?;
        let end = place.saturating_add(to.len() * 4);
        match &self.file {
            Some(file) if end > self.segment.len() => read_words(file.get()?, place, to),
            _ => {
                for (number, to) in to.iter_mut().enumerate() {
                    let word = self.segment.word32(place + number * 4);
                    *to = word.ok().and_then(|word| known(word.load(SeqCst)));
                }
                Ok(())
            }
        }
    }

    /// The sums of the pages of `length` bytes from `location` on, to change them.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub(super) fn part(&self, location: u64, length: u64) -> Result<SumsPart<'_>> {
        let place = place_of(location)?;
        let end = place_of(location.saturating_add(length).next_multiple_of(PAGE))?;
        let Some(file) = self.file.as_ref().filter(|_| end > self.segment.len()) else {
            return Ok(SumsPart { mapping: Mapping::Kept(&self.segment), skip: 0 });
        };
        let skip = place / SUM_PAGE_BYTES * SUM_PAGE_BYTES;
        let file = file.get()?;
        let in_file = rustix::fs::fstat(file).map_err(errno)?.st_size;
        let end = end.min(usize::try_from(in_file).map_err(|_| Errno::EIO)?);
        let mapping = match end.checked_sub(skip).filter(|length| *length > 0) {
            Some(length) => {
                Mapping::Own(Segment::map_part(file, skip as u64, length, Access::ReadWrite)?)
            }
            // Nothing is checked there.
            None => Mapping::Own(Segment::nothing()),
        };
        Ok(SumsPart { mapping, skip })
    }

    /// The pages of a group at `location` whose bits are set belong to a new extent and are not valid:
    /// nobody reads them, and their first writer is alone.
    ///
    /// # Errors
    /// As `part`.
    pub(super) fn begin_group(&self, location: u64, pages: u64) -> Result<()> {
        let sums = self.part(location, PAGE * u64::from(u64::BITS))?;
        for page in (0..u64::from(u64::BITS)).filter(|page| pages >> page & 1 != 0) {
            sums.seal(location.saturating_add(page << SUM_PAGE_LOG2), NOT_VALID);
        }
        Ok(())
    }

    /// The bytes of a part of the file are lost, and zeros are in their place: pages without a sum get
    /// one that zeros do not have, so that they are damaged, and not data.
    pub fn distrust(&self, lost: Range<u64>) {
        let wrong = match sum_of(&[0; SUM_PAGE_BYTES]) ^ 2 {
            UNKNOWN | WRITING => NOT_VALID,
            wrong => wrong,
        };
        let Ok(sums) = self.part(lost.start, lost.end.saturating_sub(lost.start)) else { return };
        for at in lost.step_by(SUM_PAGE_BYTES) {
            if sums.get(at).is_none() {
                sums.seal(at, wrong);
            }
        }
    }

    /// Tells the daemon about a page that failed its check.
    pub(super) fn report(&self, damage: DamageReport) {
        let Ok(count) = self.segment.word64(0) else { return };
        let number = count.fetch_add(1, SeqCst);
        if let Some(entry) = self.report_entry(number) {
            let slot = u64::from(damage.slot).wrapping_add(1);
            entry.store(slot << 32 | u64::from(damage.page), SeqCst);
        }
    }

    fn report_entry(&self, number: u64) -> Option<&AtomicU64> {
        self.segment.word64(8 + (number % REPORT_COUNT) as usize * 8).ok()
    }

    /// Calls `each` with the reports from number `seen` on, of which the oldest may be lost. Returns the
    /// number of the next one.
    ///
    /// # Errors
    /// `EIO` if there is no table.
    pub fn each_report(&self, seen: u64, each: &mut dyn FnMut(DamageReport)) -> Result<u64> {
        let count = self.segment.word64(0)?.load(Acquire);
        for number in seen.max(count.saturating_sub(REPORT_COUNT))..count {
            let entry = self.report_entry(number).map_or(0, |entry| entry.load(Acquire));
            if let Some(slot) = ((entry >> 32) as u32).checked_sub(1) {
                each(DamageReport { slot, page: entry as u32 });
            }
        }
        Ok(count)
    }
}

impl SumsPart<'_> {
    /// The sum of the page at `location`; `None` beyond the table, where nothing is checked.
    fn word(&self, location: u64) -> Option<&AtomicU32> {
        let segment = match &self.mapping {
            Mapping::Kept(segment) => segment,
            Mapping::Own(segment) => segment,
        };
        segment.word32(place_of(location).ok()?.checked_sub(self.skip)?).ok()
    }

    /// The sum of the page at `location`; `None` if it has none.
    fn get(&self, location: u64) -> Option<u32> {
        known(self.word(location)?.load(SeqCst))
    }

    /// A write to a page begins. Returns the sum of its contents, if the writer is alone: then it calls
    /// `end`.
    pub(super) fn begin(&self, location: u64) -> Option<u32> {
        let word = self.word(location)?;
        let mut now = word.load(SeqCst);
        loop {
            let sum = known(now);
            let then = if sum.is_some() { WRITING } else { UNKNOWN };
            match word.compare_exchange(now, then, SeqCst, SeqCst) {
                Ok(_) => return sum,
                Err(other) => now = other,
            }
        }
    }

    /// True if nobody else has begun to write the page since the caller's `begin`, which returned its
    /// sum.
    pub(super) fn is_alone(&self, location: u64) -> bool {
        self.word(location).is_none_or(|word| word.load(SeqCst) == WRITING)
    }

    /// The write of the only writer ended, and the page has this sum. If another has begun meanwhile it
    /// stays unknown.
    pub(super) fn end(&self, location: u64, sum: u32) {
        if let Some(word) = self.word(location) {
            let _ = word.compare_exchange(WRITING, sum, SeqCst, Relaxed);
        }
    }

    /// The page, which nobody else writes, has this sum.
    pub(super) fn seal(&self, location: u64, sum: u32) {
        if let Some(word) = self.word(location) {
            word.store(sum, SeqCst);
        }
    }

    /// The pages of `length` bytes from `location` on are not protected any more.
    pub(super) fn forget(&self, location: u64, length: u64) {
        for at in (location..location.saturating_add(length)).step_by(SUM_PAGE_BYTES) {
            self.seal(at, UNKNOWN);
        }
    }
}

/// Reads words of the file. A word that is changed meanwhile may be any: a reader that finds a page
/// damaged by it reads both again.
fn read_words(file: BorrowedFd<'_>, place: usize, to: &mut [Option<u32>]) -> Result<()> {
    let mut words = [[0; 4]; READ_MAX];
    let mut done = 0;
    for to in to.chunks_mut(READ_MAX) {
        let bytes = words.get_mut(..to.len()).ok_or(Errno::EIO)?.as_flattened_mut();
        let count = loop {
            match rustix::io::pread(file, &mut *bytes, (place + done) as u64) {
                Err(rustix::io::Errno::INTR) => {}
                read => break read.map_err(errno)?,
            }
        };
        // Beyond the table nothing is known.
        bytes.get_mut(count..).unwrap_or_default().fill(0);
        done += bytes.len();
        for (to, word) in to.iter_mut().zip(&words) {
            *to = known(u32::from_ne_bytes(*word));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{vec, vec::Vec};

    fn sums() -> PageSums {
        let length = page_sums_bytes(16 << SUM_PAGE_LOG2) as usize;
        PageSums::new(Segment::nameless(c"sums", length).expect("memory").0)
    }

    fn part_of(sums: &PageSums) -> SumsPart<'_> {
        sums.part(0, 16 << SUM_PAGE_LOG2).expect("mapped")
    }

    /// Sums on both sides of what is kept mapped, and across, are those of the daemon, which maps all.
    #[test]
    fn sums_of_which_few_are_mapped_are_the_sums() {
        let border = ((KEPT_BYTES - HEAD_BYTES) as u64 / 4) << SUM_PAGE_LOG2;
        let end = border + (2000 << SUM_PAGE_LOG2);
        let (segment, file) =
            Segment::nameless(c"sums", page_sums_bytes(end) as usize).expect("memory");
        let (all, few) = (PageSums::new(segment), PageSums::open_in_parts(file).expect("a file"));
        let page = |number: u64| number << SUM_PAGE_LOG2;
        for first in
            [0, border - page(64), border - page(30), border, border + page(1), end - page(70)]
        {
            let locations = || (0..70).map(|number| first + page(number));
            let of_daemon = all.part(first, page(70)).expect("mapped");
            locations().for_each(|at| of_daemon.seal(at, at as u32 >> 8 | 1));
            let part = few.part(first, page(70)).expect("mapped");
            let mut read = [None; 70];
            few.read(first, &mut read).expect("read");
            for (at, read) in locations().zip(read) {
                let sum = Some(at as u32 >> 8 | 1);
                assert_eq!((read, few.get(at), part.begin(at)), (sum, Ok(sum), sum), "{at:#x}");
                assert_eq!((all.get(at), few.get(at)), (Ok(None), Ok(None)), "{at:#x}");
                part.end(at, 5);
                assert_eq!(of_daemon.get(at), Some(5), "{at:#x}");
            }
        }
        // Pages beyond the table are not checked.
        let mut read = [Some(1); 3];
        few.read(end - page(1), &mut read).expect("read");
        assert_eq!(read, [Some(5), None, None]);
        assert_eq!(
            few.part(end + page(4000), page(1)).expect("nothing").begin(end + page(4000)),
            None
        );
        // A process that gave up the right to the memory reads and maps no more.
        few.detach();
        assert_eq!(few.get(border), Err(Errno::EACCES));
        assert_eq!(few.part(border, page(1)).err(), Some(Errno::EACCES));
    }

    /// Each order of two writers of one page, from each state: a sum is there at the end only if it was
    /// stored by a writer that was alone.
    #[test]
    fn a_sum_is_stored_by_a_writer_that_was_alone() {
        let (page, first, second) = (5 << SUM_PAGE_LOG2, 11, 12);
        let all = sums();
        let sums = part_of(&all);
        assert_eq!(sums.begin(page), None, "nothing is known");
        sums.end(page, first);
        assert_eq!(sums.get(page), None, "only the owner may store the first");
        sums.seal(page, first);
        assert_eq!((sums.begin(page), sums.get(page)), (Some(first), None));
        sums.end(page, second);
        assert_eq!(sums.get(page), Some(second));
        for first_ends_first in [true, false] {
            sums.seal(page, first);
            assert_eq!((sums.begin(page), sums.is_alone(page)), (Some(first), true));
            assert_eq!((sums.begin(page), sums.is_alone(page)), (None, false));
            if first_ends_first {
                sums.end(page, second);
            }
            assert_eq!(sums.begin(page), None, "a third one");
            sums.end(page, second);
            assert_eq!(sums.get(page), None, "another wrote meanwhile");
        }
        sums.seal(page, first);
        sums.forget(4 << SUM_PAGE_LOG2, 3 << SUM_PAGE_LOG2);
        assert_eq!(sums.get(page), None);
        assert_eq!((sums.begin(16 << SUM_PAGE_LOG2), sums.get(u64::MAX)), (None, None), "beyond");
    }

    #[test]
    fn lost_pages_do_not_match_zeros() {
        let all = sums();
        let sums = part_of(&all);
        sums.seal(3 << SUM_PAGE_LOG2, 77);
        all.distrust(2 << SUM_PAGE_LOG2..5 << SUM_PAGE_LOG2);
        let of_zeros = sum_of(&[0; SUM_PAGE_BYTES]);
        let sum_of_page = |page: u64| sums.get(page << SUM_PAGE_LOG2);
        assert_eq!((sum_of_page(1), sum_of_page(3), sum_of_page(5)), (None, Some(77), None));
        for page in [2, 4] {
            assert!(sum_of_page(page).is_some_and(|sum| sum != of_zeros), "{page}");
        }
    }

    #[test]
    fn no_sum_is_one_of_the_other_states() {
        // Four bytes give every CRC: these are the preimages of 0 and of all ones.
        let mut found = [false; 2];
        for bytes in [[0xff; 4], [0; 4]] {
            let state = crc32c::crc32c(&bytes);
            found[usize::from(state == WRITING)] |= state == WRITING || state == UNKNOWN;
            assert!(sum_of(&bytes) != UNKNOWN && sum_of(&bytes) != WRITING);
        }
        assert!(found[1], "crc32c of ff ff ff ff is ff ff ff ff");
    }

    #[test]
    fn reports_are_returned_once_and_the_oldest_are_lost() {
        let sums = sums();
        let list = |seen| {
            let mut list = Vec::new();
            let next = sums.each_report(seen, &mut |it| list.push(it.page)).expect("a table");
            (list, next)
        };
        sums.report(DamageReport { slot: 0, page: 0 });
        sums.report(DamageReport { slot: 3, page: 1 });
        assert_eq!(list(0), (vec![0, 1], 2));
        assert_eq!(list(2), (vec![], 2));
        (2..100).for_each(|page| sums.report(DamageReport { slot: 3, page }));
        assert_eq!(list(2), ((36..100).collect(), 100));
    }
}

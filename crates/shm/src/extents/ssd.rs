//! Reading and writing the SSD file, with a check of each page (`sums`).
//!
//! The caller's memory may change while it is read or written, as a database's does. So a writer
//! computes each sum before and after its write, and stores none if the two differ; a reader that
//! finds another sum reads the page again, into memory of its own.
//!
//! Not here: which pages are valid, and claims (`io`).

use super::io::Target;
use super::sums::{DamageReport, SUM_PAGE_BYTES, SUM_PAGE_LOG2, sum_of};
use super::table::{ExtentStates, PAGE_GROUP_LOG2, all_pages};
use crate::segment::{Access, Segment};
use core::ops::Range;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{Acquire, Relaxed};
use rustix::fd::BorrowedFd;
use wire::errno::{Errno, Result};
use wire::reply::Extent;

/// Pages that one system call moves: 256 KiB, as a device's own readahead.
const CALL_PAGES: usize = 64;
const CALL_BYTES: usize = CALL_PAGES * SUM_PAGE_BYTES;
/// How often a page is read that does not match its sum. A writer that begins and ends in between
/// leaves the same sum only if it leaves the same bytes.
const READS_MAX: u32 = 4;

/// Offset in a file beyond which this process may not write: its `RLIMIT_FSIZE`, which is meant for
/// files of the instance, not for the file that holds the SSD tier.
static WRITE_LIMIT: AtomicU64 = AtomicU64::new(u64::MAX);
/// Length of a part that is mapped where the process may not write. A multiple of the page size.
const MAPPED_BYTES: u64 = 1 << 20;

/// Sets the `RLIMIT_FSIZE` of this process: beyond it the SSD tier is written through a mapping.
pub fn set_write_limit(bytes: u64) {
    WRITE_LIMIT.store(bytes, Relaxed);
}

/// True if the process may not write these bytes of a file by a call.
pub(super) fn is_beyond_write_limit(start: u64, length: usize) -> bool {
    start.saturating_add(length as u64) > WRITE_LIMIT.load(Relaxed)
}

/// A page for direct I/O.
#[repr(align(4096))]
struct AlignedPage([u8; SUM_PAGE_BYTES]);

/// Splits `length` bytes at `location` for a call: the bytes of its first page that are skipped, and
/// those that the call moves. They are whole pages, or a part of one.
fn part_at(location: u64, length: usize) -> (usize, usize) {
    let skip = (location % SUM_PAGE_BYTES as u64) as usize;
    let part = if skip > 0 || length < SUM_PAGE_BYTES {
        (SUM_PAGE_BYTES - skip).min(length)
    } else {
        (length / SUM_PAGE_BYTES * SUM_PAGE_BYTES).min(CALL_BYTES)
    };
    (skip, part)
}

const fn page_at(location: u64, page: usize) -> u64 {
    location + (page * SUM_PAGE_BYTES) as u64
}

/// Offset in the file of `within` of an extent.
fn location(extent: &Extent, within: u64) -> Result<u64> {
    extent.location.checked_add(within).ok_or(Errno::EIO)
}

impl Target<'_> {
    /// Fills `to` with the bytes at `within` of an extent on the SSD, all of whose pages there are valid.
    ///
    /// # Errors
    /// `EIO` if a page does not match its sum, which is reported; errors of the device.
    pub(super) fn ssd_out(&self, extent: &Extent, within: u64, to: &mut [u8]) -> Result<()> {
        let mut done = 0;
        while let Some(rest) = to.get_mut(done..).filter(|rest| !rest.is_empty()) {
            let at = location(extent, within + done as u64)?;
            let (skip, length) = part_at(at, rest.len());
            let part = rest.get_mut(..length).ok_or(Errno::EIO)?;
            if length.is_multiple_of(SUM_PAGE_BYTES) {
                self.pages_out(extent, at, part)?;
            } else {
                let mut page = [0; SUM_PAGE_BYTES];
                self.pages_out(extent, at - skip as u64, &mut page)?;
                part.copy_from_slice(page.get(skip..skip + length).ok_or(Errno::EIO)?);
            }
            done += length;
        }
        Ok(())
    }

    /// Reads and checks whole pages at `location` of the file.
    fn pages_out(&self, extent: &Extent, location: u64, to: &mut [u8]) -> Result<()> {
        let mut expected = [None; CALL_PAGES];
        let of_pages = expected.get_mut(..to.len() / SUM_PAGE_BYTES).ok_or(Errno::EIO)?;
        self.states.sums.read(location, of_pages)?;
        read_all(self.ssd, location, to)?;
        let pages = to.chunks_exact_mut(SUM_PAGE_BYTES).zip(expected).enumerate();
        for (page, (bytes, expected)) in pages {
            if expected.is_some_and(|sum| sum != sum_of(bytes)) {
                self.page_out(extent, page_at(location, page), bytes)?;
            }
        }
        Ok(())
    }

    /// Reads and checks one page that did not match: a writer has changed it, or it is damaged.
    #[cold]
    #[inline(never)]
    fn page_out(&self, extent: &Extent, location: u64, to: &mut [u8]) -> Result<()> {
        let mut page = [0; SUM_PAGE_BYTES];
        let mut mismatches = 0;
        while mismatches < READS_MAX {
            let before = self.states.sums.get(location)?;
            read_all(self.ssd, location, &mut page)?;
            match before {
                Some(sum) if sum != sum_of(&page) => {
                    mismatches += u32::from(self.states.sums.get(location)? == before);
                }
                // It matches, or somebody writes it: then its bytes are those before or after.
                _ => {
                    to.copy_from_slice(&page);
                    return Ok(());
                }
            }
        }
        self.damaged(extent, location)
    }

    fn damaged(&self, extent: &Extent, location: u64) -> Result<()> {
        let page = location.saturating_sub(extent.location) >> SUM_PAGE_LOG2;
        self.states.sums.report(DamageReport { slot: extent.slot, page: page as u32 });
        Err(Errno::EIO)
    }

    /// Checks the pages of `range` of an extent on the SSD, which are valid.
    ///
    /// # Errors
    /// As `ssd_out`.
    pub(super) fn ssd_check(&self, extent: &Extent, range: Range<u64>) -> Result<()> {
        let mut page = AlignedPage([0; SUM_PAGE_BYTES]);
        for at in range.step_by(SUM_PAGE_BYTES) {
            self.pages_out(extent, location(extent, at)?, &mut page.0)?;
        }
        Ok(())
    }

    /// Writes `from` at `within` of an extent on the SSD; others may read and write there meanwhile.
    ///
    /// # Errors
    /// `EIO` if a page that is written in part does not match its sum; errors of the device.
    pub(super) fn ssd_in(&self, extent: &Extent, within: u64, from: &[u8]) -> Result<()> {
        let mut done = 0;
        while let Some(rest) = from.get(done..).filter(|rest| !rest.is_empty()) {
            let at = location(extent, within + done as u64)?;
            let (skip, length) = part_at(at, rest.len());
            let part = rest.get(..length).ok_or(Errno::EIO)?;
            if length.is_multiple_of(SUM_PAGE_BYTES) {
                self.pages_in(at, part)?;
            } else {
                self.part_in(extent, at - skip as u64, skip, part)?;
            }
            done += length;
        }
        Ok(())
    }

    /// Writes whole pages.
    fn pages_in(&self, location: u64, from: &[u8]) -> Result<()> {
        let sums = self.states.sums.part(location, from.len() as u64)?;
        // The sum of each page of which this is the only writer.
        let mut own = [None; CALL_PAGES];
        for (page, (bytes, own)) in from.chunks_exact(SUM_PAGE_BYTES).zip(&mut own).enumerate() {
            *own = sums.begin(page_at(location, page)).map(|_| sum_of(bytes));
        }
        // After an error it is unknown what is there: the pages stay without a sum.
        write_all(self.ssd, location, from)?;
        for (page, (bytes, own)) in from.chunks_exact(SUM_PAGE_BYTES).zip(own).enumerate() {
            let Some(sum) = own else { continue };
            if sum_of(bytes) == sum {
                sums.end(page_at(location, page), sum);
            }
        }
        Ok(())
    }

    /// Writes `part` at `skip` of a page.
    fn part_in(&self, extent: &Extent, location: u64, skip: usize, part: &[u8]) -> Result<()> {
        let sums = self.states.sums.part(location, SUM_PAGE_BYTES as u64)?;
        let mut page = [0; SUM_PAGE_BYTES];
        let old = sums.begin(location);
        if let Some(old) = old {
            let read = read_all(self.ssd, location, &mut page);
            // A page that another writer has changed meanwhile is not damaged. It has no sum any more
            // then, and `end` stores none.
            let is_damaged = || sum_of(&page) != old && sums.is_alone(location);
            if read.is_err() || is_damaged() {
                sums.end(location, old);
                read?;
                return self.damaged(extent, location);
            }
        }
        let own = page.get_mut(skip..skip + part.len()).ok_or(Errno::EIO)?;
        own.copy_from_slice(part);
        // Only these bytes: another may be writing the others.
        write_all(self.ssd, location + skip as u64, own)?;
        if old.is_some() {
            sums.end(location, sum_of(&page));
        }
        Ok(())
    }

    /// Writes `from` at `within` of an extent on the SSD that nobody else uses, from memory that does not
    /// change meanwhile. Bytes of a page that are not written yet are those that the file has there.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn ssd_put(&self, extent: &Extent, within: u64, from: &[u8]) -> Result<()> {
        let mut done = 0;
        while let Some(rest) = from.get(done..).filter(|rest| !rest.is_empty()) {
            let at = location(extent, within + done as u64)?;
            let (skip, length) = part_at(at, rest.len());
            let part = rest.get(..length).ok_or(Errno::EIO)?;
            let first = at - skip as u64;
            let sums = self.states.sums.part(first, (skip + length) as u64)?;
            sums.forget(first, length as u64);
            write_all(self.ssd, at, part)?;
            if length.is_multiple_of(SUM_PAGE_BYTES) {
                for (page, bytes) in part.chunks_exact(SUM_PAGE_BYTES).enumerate() {
                    sums.seal(page_at(first, page), sum_of(bytes));
                }
            } else {
                let mut page = [0; SUM_PAGE_BYTES];
                read_all(self.ssd, first, &mut page)?;
                page.get_mut(skip..skip + length).ok_or(Errno::EIO)?.copy_from_slice(part);
                sums.seal(first, sum_of(&page));
            }
            done += length;
        }
        Ok(())
    }

    /// Fills the pages of `run` of an extent on the SSD, which the calling thread has claimed: with the
    /// bytes of `from`, which starts at `within`, and zeros.
    ///
    /// # Errors
    /// Errors of the device.
    pub(super) fn ssd_fill(
        &self,
        extent: &Extent,
        run: Range<u64>,
        within: u64,
        from: &[u8],
    ) -> Result<()> {
        let mut at = run.start;
        while at < run.end {
            let first = within.max(at);
            let own = usize::try_from(first - within).ok().and_then(|skip| from.get(skip..));
            let own = own.unwrap_or(&[]);
            let place = location(extent, at)?;
            // Pages that `from` covers are written from there.
            let whole =
                (own.len() as u64).min(run.end - at) as usize / SUM_PAGE_BYTES * SUM_PAGE_BYTES;
            if first == at && whole > 0 {
                let length = whole.min(CALL_BYTES);
                self.pages_in(place, own.get(..length).ok_or(Errno::EIO)?)?;
                at += length as u64;
                continue;
            }
            let mut page = [0; SUM_PAGE_BYTES];
            let skip = usize::try_from(first - at).unwrap_or(SUM_PAGE_BYTES).min(SUM_PAGE_BYTES);
            let to = page.get_mut(skip..).ok_or(Errno::EIO)?;
            let length = own.len().min(to.len());
            let part = own.get(..length).ok_or(Errno::EIO)?;
            to.get_mut(..length).ok_or(Errno::EIO)?.copy_from_slice(part);
            self.pages_in(place, &page)?;
            at += SUM_PAGE_BYTES as u64;
        }
        Ok(())
    }
}

/// Counts the valid pages of an extent, for a process that does not use the target, and returns also
/// the end of the last. `ssd`: those on the SSD are read, and `damaged` is called with the offset in the
/// extent of each that does not match its sum, or lies beyond the length, where the file was cut.
///
/// # Errors
/// `EIO` for an extent that does not exist; errors of the device.
pub fn check_extent(
    states: &ExtentStates,
    ssd: Option<(BorrowedFd<'_>, u64)>,
    extent: &Extent,
    damaged: &mut dyn FnMut(u64),
) -> Result<(u64, u64)> {
    let (mut pages, mut end) = (0u64, 0);
    for number in 0..extent.length().div_ceil(1 << PAGE_GROUP_LOG2) {
        let valid = states.page_bits(extent, number)?.valid.load(Acquire);
        let valid = valid & all_pages(extent.length_log2);
        for page in (0..u64::from(u64::BITS)).filter(|page| valid >> page & 1 != 0) {
            let within = (number << PAGE_GROUP_LOG2) + (page << SUM_PAGE_LOG2);
            (pages, end) = (pages + 1, within + SUM_PAGE_BYTES as u64);
            if let Some((ssd, length)) = ssd.filter(|_| extent.tier == Extent::SSD) {
                let at = location(extent, within)?;
                let is_there = at.saturating_add(SUM_PAGE_BYTES as u64) <= length;
                if !is_there || !matches(states, ssd, at)? {
                    damaged(within);
                }
            }
        }
    }
    Ok((pages, end))
}

/// True if a page matches its sum, has none, or is being written.
fn matches(states: &ExtentStates, ssd: BorrowedFd<'_>, location: u64) -> Result<bool> {
    let mut page = [0; SUM_PAGE_BYTES];
    let mut mismatches = 0;
    while mismatches < READS_MAX {
        let Some(sum) = states.sums.get(location)? else { return Ok(true) };
        read_all(ssd, location, &mut page)?;
        if sum == sum_of(&page) {
            return Ok(true);
        }
        mismatches += u32::from(states.sums.get(location)? == Some(sum));
    }
    Ok(false)
}

/// `pread` until `to` is full; zeros beyond the end of the file.
fn read_all(fd: BorrowedFd<'_>, location: u64, to: &mut [u8]) -> Result<()> {
    let mut done = 0;
    while let Some(rest) = to.get_mut(done..).filter(|rest| !rest.is_empty()) {
        match rustix::io::pread(fd, &mut *rest, location + done as u64) {
            Ok(0) => {
                rest.fill(0);
                return Ok(());
            }
            Ok(count) => done += count,
            Err(rustix::io::Errno::INTR) => {}
            Err(os) => return Err(crate::segment::errno(os)),
        }
    }
    Ok(())
}

/// Writes where `pwrite` would exceed the process's `RLIMIT_FSIZE`.
#[cold]
fn write_by_mapping(fd: BorrowedFd<'_>, location: u64, from: &[u8]) -> Result<()> {
    let mut done = 0usize;
    while let Some(rest) = from.get(done..).filter(|rest| !rest.is_empty()) {
        let at = location.saturating_add(done as u64);
        let skew = at % MAPPED_BYTES;
        let length = (MAPPED_BYTES - skew).min(rest.len() as u64);
        let part = rest.get(..length as usize).unwrap_or(rest);
        let bytes = (skew + length) as usize;
        let segment = Segment::map_part(fd, at - skew, bytes, Access::ReadWrite)?;
        segment.copy_in(skew as usize, part)?;
        done = done.saturating_add(part.len());
    }
    Ok(())
}

/// `pwrite` until all of `from` is written.
fn write_all(fd: BorrowedFd<'_>, location: u64, from: &[u8]) -> Result<()> {
    if is_beyond_write_limit(location, from.len()) {
        return write_by_mapping(fd, location, from);
    }
    let mut done = 0;
    while let Some(rest) = from.get(done..).filter(|rest| !rest.is_empty()) {
        match rustix::io::pwrite(fd, rest, location + done as u64) {
            Ok(0) => return Err(Errno::EIO),
            Ok(count) => done += count,
            Err(rustix::io::Errno::INTR) => {}
            Err(os) => return Err(crate::segment::errno(os)),
        }
    }
    Ok(())
}

//! Reading and writing one extent from a process that maps the target: the single copy of a byte.
//!
//! A page of an extent is valid when its `valid` bit is set; otherwise it reads as zeros. A writer
//! processes invalid pages one group of 64 pages at a time. It claims the free pages it needs with
//! one atomic operation, fills them (zeros around its bytes in partial pages), sets their valid
//! bits, and only then waits for pages claimed by other writers and copies its bytes there. So no
//! writer waits while it holds a claim, and two writers of neighbouring ranges hardly ever wait. If
//! a claimer died, a waiter takes over: nothing that the dead thread wrote there was acknowledged.
//!
//! A living claimer is never taken over, however long it is stopped: when it resumes it writes its
//! zeros, and would overwrite data that others had written meanwhile. A writer that waits for too
//! long gets `EIO`, and nothing is lost. Hazard pointers (`hazards`) tell whether a claimer lives:
//! each holds the claims of its thread, from before the page is claimed in the extent until it is
//! valid there. So a page that is claimed and invalid, and that no living thread's hazard pointer
//! claims, belongs to a dead thread. One thread takes over (the *successor*, which the others leave
//! alone while its hazard pointer protects the extent), claims the page in its hazard pointer, and
//! checks whether any page was invalidated while it scanned those of others: only then can a claimed
//! page be claimed again.

use crate::extents::{
    Arena, ExtentStates, ExtentTable, HazardGuard, PAGE_GROUP_LOG2, PAGE_LOG2, PageBits,
    SessionHazards, Use, all_pages,
};
use crate::wait::{self, Backoff, Next};
use core::ops::Range;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use rustix::fd::BorrowedFd;
use wire::Inode;
use wire::errno::{Errno, Result};
use wire::reply::Extent;

/// How long a waiter first leaves the hazard pointers alone: the claimer copies into one extent,
/// which takes milliseconds at most, but may have lost its processor. The pause doubles each time,
/// up to the maximum.
const PAUSE_MICROS_MIN: u64 = 1_000;
const PAUSE_MICROS_MAX: u64 = 64_000;

/// Bytes beyond this offset belong to a large file: more than a process's share of the last-level
/// cache, so a reader from the start finds none of its bytes there anyway.
const STREAMED_FROM: u64 = 4 << 20;
/// Copies there of this length or more bypass the cache. A normal store reads the cache line first.
pub(super) const STREAMED_BYTES_MIN: usize = 16 << 10;

/// One target, as mapped into this process.
#[derive(Clone, Copy)]
pub struct Target<'a> {
    /// The memory tier.
    pub arena: &'a Arena,
    /// The SSD tier's file.
    pub ssd: BorrowedFd<'a>,
    /// Headers.
    pub table: &'a ExtentTable,
    /// States.
    pub states: &'a ExtentStates,
}

/// The extent belongs to another file or moved: look up the extents of the file again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Moved;

/// Outcome of a copy: done, or the extent moved before anything was copied.
pub type Copied = core::result::Result<(), Moved>;

impl Target<'_> {
    fn device_in(&self, extent: &Extent, within: u64, from: &[u8]) -> Result<()> {
        if extent.tier == Extent::MEMORY {
            let location = location(extent, within)?;
            if extent.start >= STREAMED_FROM && from.len() >= STREAMED_BYTES_MIN {
                return self.arena.stream_in(location, from);
            }
            return self.arena.copy_in(location, from);
        }
        self.ssd_in(extent, within, from)
    }

    #[inline]
    fn device_out(&self, extent: &Extent, within: u64, to: &mut [u8]) -> Result<()> {
        if extent.tier == Extent::MEMORY {
            return self.arena.copy_out(location(extent, within)?, to);
        }
        self.ssd_out(extent, within, to)
    }

    fn device_zero(&self, extent: &Extent, within: u64, length: u64) -> Result<()> {
        if length == 0 {
            return Ok(());
        }
        if extent.tier == Extent::MEMORY {
            return self.arena.zero(location(extent, within)?, length);
        }
        let zeros = [0; 4096];
        let mut done = 0;
        while done < length {
            let part = (length - done).min(zeros.len() as u64);
            let zeros = zeros.get(..part as usize).unwrap_or(&[]);
            self.device_in(extent, within + done, zeros)?;
            done += part;
        }
        Ok(())
    }

    /// Reads `to.len()` bytes from offset `within` of `extent`, an extent of `inode`. Both ends
    /// must be in the extent, which `hazards` keeps in place meanwhile.
    ///
    /// # Errors
    /// Errors of the device.
    #[inline]
    pub fn read(
        &self,
        hazards: &SessionHazards<'_>,
        inode: Inode,
        extent: &Extent,
        within: u64,
        to: &mut [u8],
    ) -> Result<Copied> {
        let _guard = hazards.protect(extent.slot)?;
        if self.table.is(inode, extent) {
            self.read_stable(extent, within, to).map(Ok)
        } else {
            Ok(Err(Moved))
        }
    }

    /// As `read`, for a caller that knows that the extent stays in place: the daemon.
    ///
    /// # Errors
    /// Errors of the device.
    #[inline]
    pub fn read_stable(&self, extent: &Extent, within: u64, to: &mut [u8]) -> Result<()> {
        if self.is_valid_for::<false>(extent, within, to.len())? {
            return self.device_out(extent, within, to);
        }
        self.read_parts(extent, within, to)
    }

    /// Reads page by page: valid pages from the device, zeros elsewhere.
    fn read_parts(&self, extent: &Extent, within: u64, to: &mut [u8]) -> Result<()> {
        for (number, touched) in page_groups(within, to.len() as u64) {
            let group = self.group(extent, number)?;
            let valid = group.page_bits.valid.load(Acquire);
            for run in group.runs(touched & valid) {
                let (at, part) = part_of(run, within, to.len());
                self.device_out(extent, at, to.get_mut(part).unwrap_or_default())?;
            }
            for run in group.runs(touched & !valid) {
                let (_, part) = part_of(run, within, to.len());
                to.get_mut(part).unwrap_or_default().fill(0);
            }
        }
        Ok(())
    }

    /// Writes `from` at offset `within` of `extent`, an extent of `inode`.
    ///
    /// # Errors
    /// Errors of the device.
    #[inline]
    pub fn write(
        &self,
        hazards: &SessionHazards<'_>,
        inode: Inode,
        extent: &Extent,
        within: u64,
        from: &[u8],
    ) -> Result<Copied> {
        self.write_if(hazards, inode, extent, within, from, || Ok(()))
    }

    /// As `write`, if `still` succeeds while the extent is protected: an operation that takes the
    /// extent away from the file later is then ordered after these bytes, which go with it.
    ///
    /// # Errors
    /// As `write`, and errors of `still`.
    #[inline]
    pub fn write_if(
        &self,
        hazards: &SessionHazards<'_>,
        inode: Inode,
        extent: &Extent,
        within: u64,
        from: &[u8],
        still: impl FnOnce() -> Result<()>,
    ) -> Result<Copied> {
        let guard = hazards.protect(extent.slot)?;
        if self.table.is(inode, extent) {
            still()?;
            self.write_held(&guard, extent, within, from).map(Ok)
        } else {
            Ok(Err(Moved))
        }
    }

    /// As `write`, for a caller that knows that the extent stays in place: the daemon.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn write_stable(
        &self,
        hazards: &SessionHazards<'_>,
        extent: &Extent,
        within: u64,
        from: &[u8],
    ) -> Result<()> {
        self.write_held(&hazards.protect(extent.slot)?, extent, within, from)
    }

    #[inline]
    fn write_held(
        &self,
        guard: &HazardGuard<'_>,
        extent: &Extent,
        within: u64,
        from: &[u8],
    ) -> Result<()> {
        if self.is_valid_for::<true>(extent, within, from.len())? {
            return self.device_in(extent, within, from);
        }
        self.write_parts(guard, extent, within, from)
    }

    /// Writes into pages that are not all valid. Those of a new file come here, so the functions that it
    /// is made of are inlined.
    #[inline(never)]
    fn write_parts(
        &self,
        guard: &HazardGuard<'_>,
        extent: &Extent,
        within: u64,
        from: &[u8],
    ) -> Result<()> {
        for (number, touched) in page_groups(within, from.len() as u64) {
            let group = self.group(extent, number)?;
            // A page that is written whole is claimed, too: another writer that found it invalid
            // would otherwise zero it after the caller's copy.
            let mine = self.fill_free(guard, &group, touched, within, from)?;
            let others = touched & !mine;
            if others == 0 {
                continue;
            }
            self.await_valid(guard, &group, others)?;
            for run in group.runs(others) {
                self.copy_within(extent, run, within, from)?;
            }
        }
        Ok(())
    }

    /// Claims the free and invalid pages of `touched`, and makes them valid: with the bytes of
    /// `from`, which starts at `within`, and zeros around them. Returns the pages that it made
    /// valid.
    #[inline(always)]
    fn fill_free(
        &self,
        guard: &HazardGuard<'_>,
        group: &PageGroup<'_>,
        touched: u64,
        within: u64,
        from: &[u8],
    ) -> Result<u64> {
        let PageBits { valid, claimed } = group.page_bits;
        let free = touched & !valid.load(Acquire) & !claimed.load(Acquire);
        if free == 0 {
            return Ok(0);
        }
        guard.claim(group.number(), free);
        let mine = free & !claimed.fetch_or(free, SeqCst);
        if mine != free {
            guard.claim(group.number(), mine);
        }
        // Pages that `from` covers partly are written and awaited by others, too: they are released
        // as soon as they are filled.
        let edges = mine & group.edges(within, from.len() as u64);
        let mut outcome = Ok(());
        for part in [edges, mine & !edges] {
            if part != 0 && outcome.is_ok() {
                outcome = self.fill_all(group, part, within, from);
                if outcome.is_ok() {
                    // Only pages that were claimed here: another may be a hole again by now.
                    valid.fetch_or(part, AcqRel);
                }
            }
        }
        guard.claim(group.number(), 0);
        outcome.map(|()| mine)
    }

    /// Writes all bytes of `page_bits`: those of `from`, which starts at `within`, and zeros.
    #[inline(always)]
    fn fill_all(
        &self,
        group: &PageGroup<'_>,
        page_bits: u64,
        within: u64,
        from: &[u8],
    ) -> Result<()> {
        let extent = group.extent;
        for run in group.runs(page_bits) {
            if extent.tier != Extent::MEMORY {
                self.ssd_fill(extent, run, within, from)?;
                continue;
            }
            let start = within.clamp(run.start, run.end);
            let end = within.saturating_add(from.len() as u64).clamp(start, run.end);
            self.device_zero(extent, run.start, start - run.start)?;
            self.copy_within(extent, run.clone(), within, from)?;
            self.device_zero(extent, end, run.end - end)?;
        }
        Ok(())
    }

    /// Copies the part of `from`, which starts at `within`, that is in `run`.
    #[inline(always)]
    fn copy_within(
        &self,
        extent: &Extent,
        run: Range<u64>,
        within: u64,
        from: &[u8],
    ) -> Result<()> {
        let (at, part) = part_of(run, within, from.len());
        match from.get(part).filter(|part| !part.is_empty()) {
            Some(part) => self.device_in(extent, at, part),
            None => Ok(()),
        }
    }

    fn group<'b>(&'b self, extent: &'b Extent, number: u64) -> Result<PageGroup<'b>> {
        let page_bits = self.states.page_bits(extent, number)?;
        Ok(PageGroup { extent, page_bits, start: number << PAGE_GROUP_LOG2 })
    }

    /// Makes every page of `extent`, an extent of `inode`, valid, for a shared mapping, which reads
    /// or writes its bytes without these protocols. From then on the extent stays in place.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn make_all_valid(
        &self,
        hazards: &SessionHazards<'_>,
        inode: Inode,
        extent: &Extent,
        how: Use,
    ) -> Result<Copied> {
        let guard = hazards.protect(extent.slot)?;
        if self.table.is(inode, extent) {
            self.states.note_mapping(extent.slot)?;
            self.states.note_use(extent.slot, how);
            self.make_valid(&guard, extent, 0, extent.length())?;
            if extent.tier == Extent::SSD {
                // Nobody looks at what a mapping reads, nor computes a sum of what it writes.
                self.ssd_check(extent, 0..extent.length())?;
                if how == Use::Write {
                    let (location, length) = (extent.location, extent.length());
                    self.states.sums.part(location, length)?.forget(location, length);
                }
            }
            Ok(Ok(()))
        } else {
            Ok(Err(Moved))
        }
    }

    /// Checks the valid pages of an extent on the SSD, which stays in place: bytes checked.
    ///
    /// # Errors
    /// `EIO` if one is damaged; errors of the device.
    pub fn check_stable(&self, extent: &Extent) -> Result<u64> {
        let mut bytes = 0;
        for number in 0..extent.length().div_ceil(1 << PAGE_GROUP_LOG2) {
            let group = self.group(extent, number)?;
            let valid = group.page_bits.valid.load(Acquire) & all_pages(extent.length_log2);
            for run in group.runs(valid) {
                bytes += run.end - run.start;
                self.ssd_check(extent, run)?;
            }
        }
        Ok(bytes)
    }

    /// Makes the pages of `within .. within + length` valid, for bytes that a socket delivers
    /// directly: their arrival time is unknown, so no claim may wait for them.
    ///
    /// # Errors
    /// `EIO` for a range outside the extent; errors of the device.
    pub fn make_range_valid(
        &self,
        hazards: &SessionHazards<'_>,
        extent: &Extent,
        within: u64,
        length: usize,
    ) -> Result<()> {
        check_range(extent, within, length)?;
        self.states.note_use(extent.slot, Use::Write);
        self.make_valid(&hazards.protect(extent.slot)?, extent, within, length as u64)
    }

    /// Copies the valid pages of `from` to `to`, which has the same length, through `buffer`.
    /// Nobody uses `from`, or will without announcing it. If it is not its file's any more,
    /// arbitrary bytes are copied; but whatever its slot's states are by now, no byte beyond `to`
    /// is written.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn copy(&self, from: &Extent, to: &Extent, buffer: &mut [u8]) -> Result<()> {
        for number in 0..from.length().div_ceil(1 << PAGE_GROUP_LOG2) {
            let group = self.group(from, number)?;
            // The slot may hold a longer extent by now.
            let valid = group.page_bits.valid.load(Acquire) & all_pages(from.length_log2);
            for run in group.runs(valid) {
                let mut at = run.start;
                while at < run.end {
                    let part = usize::try_from(run.end - at).unwrap_or(usize::MAX);
                    let length = part.min(buffer.len());
                    let bytes = buffer.get_mut(..length).filter(|bytes| !bytes.is_empty());
                    let bytes = bytes.ok_or(Errno::EINVAL)?;
                    self.device_out(from, at, bytes)?;
                    match to.tier {
                        Extent::SSD => self.ssd_put(to, at, bytes)?,
                        _ => self.device_in(to, at, bytes)?,
                    }
                    at += length as u64;
                }
            }
        }
        Ok(())
    }

    fn make_valid(
        &self,
        guard: &HazardGuard<'_>,
        extent: &Extent,
        within: u64,
        length: u64,
    ) -> Result<()> {
        for (number, touched) in page_groups(within, length) {
            let group = self.group(extent, number)?;
            let mine = self.fill_free(guard, &group, touched, within, &[])?;
            self.await_valid(guard, &group, touched & !mine)?;
        }
        Ok(())
    }

    /// True if every page of `within .. within + length` is valid: the device holds the bytes to be
    /// read there.
    ///
    /// # Errors
    /// `EIO` for a range outside the extent.
    #[inline]
    pub fn is_valid(&self, extent: &Extent, within: u64, length: usize) -> Result<bool> {
        is_valid_in(extent, within, length, |number| self.states.page_bits(extent, number))
    }

    /// As `is_valid`, before a read or write there.
    #[inline]
    fn is_valid_for<const WRITES: bool>(
        &self,
        extent: &Extent,
        within: u64,
        length: usize,
    ) -> Result<bool> {
        let page_bits = |number| self.states.page_bits_in_use::<WRITES>(extent, number);
        is_valid_in(extent, within, length, page_bits)
    }

    /// Waits until `page_bits`, none of which the caller has claimed, are valid. Pages left by dead
    /// threads, and those that became holes meanwhile, are zeroed.
    fn await_valid(
        &self,
        guard: &HazardGuard<'_>,
        group: &PageGroup<'_>,
        page_bits: u64,
    ) -> Result<()> {
        let mut rest = page_bits & !group.page_bits.valid.load(Acquire);
        while rest != 0 {
            self.await_page(guard, group, rest & rest.wrapping_neg())?;
            rest &= rest - 1;
        }
        Ok(())
    }

    fn await_page(&self, guard: &HazardGuard<'_>, group: &PageGroup<'_>, bit: u64) -> Result<()> {
        let PageBits { valid, claimed } = group.page_bits;
        let mut claim_wait = ClaimWait::new();
        while valid.load(Acquire) & bit == 0 {
            if claimed.load(Acquire) & bit == 0 {
                self.fill_free(guard, group, bit, 0, &[])?;
            } else if claim_wait.is_over(guard.timeout_micros())? {
                self.take_over(guard, group, bit)?;
            }
        }
        Ok(())
    }

    /// Zeroes a page that a dead thread had claimed.
    ///
    /// # Errors
    /// `EIO` if the calling thread itself had claimed it, in the call that a signal interrupted.
    fn take_over(&self, guard: &HazardGuard<'_>, group: &PageGroup<'_>, bit: u64) -> Result<()> {
        let successor = self.states.successor(group.extent.slot)?;
        let (me, before) = (wait::thread_id(), successor.load(SeqCst));
        // A dead successor leaves its number, which may be another thread's by now, even the caller's.
        // A living one protects the extent.
        let is_at_work = before != 0 && guard.is_protected_by(before, group.extent.slot);
        if before == me && is_at_work {
            return Err(Errno::EIO);
        }
        if is_at_work || successor.compare_exchange(before, me, SeqCst, Relaxed).is_err() {
            return Ok(());
        }
        // Another thread with the same number may have become the successor since we looked. So the page
        // is claimed as by a writer: of two successors at least one sees the other, and leaves.
        guard.claim(group.number(), bit);
        let outcome = self.take_over_page(guard, group, bit);
        guard.claim(group.number(), 0);
        let _ = successor.compare_exchange(me, 0, Release, Relaxed);
        outcome
    }

    fn take_over_page(
        &self,
        guard: &HazardGuard<'_>,
        group: &PageGroup<'_>,
        bit: u64,
    ) -> Result<()> {
        let (slot, PageBits { valid, claimed }) = (group.extent.slot, group.page_bits);
        let times = self.states.invalidation_count(slot)?;
        // In this order: the claim of an invalidated page is cleared first.
        let is_invalid = valid.load(SeqCst) & bit == 0;
        if !is_invalid || claimed.load(SeqCst) & bit == 0 {
            return Ok(());
        }
        let living = guard.others(slot, group.number());
        if living.interrupted & bit != 0 {
            return Err(Errno::EIO);
        }
        let is_claimed = living.others & bit != 0;
        // Made valid by its claimer meanwhile; or claimed by another thread after we read its
        // hazard pointer.
        let is_valid = valid.load(SeqCst) & bit != 0;
        if is_claimed || is_valid || self.states.invalidation_count(slot)? != times {
            return Ok(());
        }
        self.fill_all(group, bit, 0, &[])?;
        valid.fetch_or(bit, AcqRel);
        Ok(())
    }

    /// Makes `length` bytes at `within` read as zeros.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn zero_stable(&self, extent: &Extent, within: u64, length: u64) -> Result<()> {
        self.states.note_use(extent.slot, Use::Write);
        let end = within.saturating_add(length).min(extent.length());
        let length = end.saturating_sub(within);
        for (number, touched) in page_groups(within, length) {
            let group = self.group(extent, number)?;
            let edges = touched & group.edges(within, length);
            let valid_pages = edges & group.page_bits.valid.load(Acquire);
            for run in group.runs(valid_pages) {
                let (start, end) = (run.start.max(within), run.end.min(end));
                self.device_zero(extent, start, end - start)?;
            }
            self.states.invalidate(extent.slot, group.page_bits, touched & !edges)?;
        }
        Ok(())
    }
}

/// A page group of an extent.
struct PageGroup<'a> {
    extent: &'a Extent,
    page_bits: &'a PageBits,
    /// Its offset in the extent.
    start: u64,
}

impl PageGroup<'_> {
    fn number(&self) -> u64 {
        self.start >> PAGE_GROUP_LOG2
    }

    /// The byte ranges of `page_bits`, neighbouring pages merged.
    fn runs(&self, page_bits: u64) -> impl Iterator<Item = Range<u64>> + use<> {
        let start = self.start;
        let mut rest = page_bits;
        core::iter::from_fn(move || {
            let first = (rest != 0).then(|| rest.trailing_zeros())?;
            let count = (rest >> first).trailing_ones();
            rest &= !mask(first.into(), u64::from(first + count) - 1);
            let location = |page: u32| start + (u64::from(page) << PAGE_LOG2);
            Some(location(first)..location(first + count))
        })
    }

    /// The pages here that `within .. within + length` covers partly.
    fn edges(&self, within: u64, length: u64) -> u64 {
        let partial_page = |at: u64| {
            let is_here = at >> PAGE_GROUP_LOG2 == self.start >> PAGE_GROUP_LOG2;
            let is_inside = !at.is_multiple_of(1 << PAGE_LOG2);
            u64::from(is_here && is_inside) << page(at)
        };
        partial_page(within) | partial_page(within.saturating_add(length))
    }
}

/// The wait of one writer for the claimer of a page.
struct ClaimWait {
    backoff: Backoff,
    /// Start of the wait, and the time of the next scan of the hazard pointers.
    since: u64,
    look_at: Option<u64>,
    pause: u64,
    naps: wait::Naps,
}

impl ClaimWait {
    const fn new() -> ClaimWait {
        let (backoff, pause, naps) = (Backoff::new(), PAUSE_MICROS_MIN, wait::Naps::new());
        ClaimWait { backoff, since: 0, look_at: None, pause, naps }
    }

    /// Spends a moment. True if it is time to check whether the claimer lives.
    ///
    /// # Errors
    /// `EIO` after `micros_max`.
    fn is_over(&mut self, micros_max: u64) -> Result<bool> {
        if self.backoff.pause() == Next::Poll {
            return Ok(false);
        }
        let now = wait::now_micros();
        self.naps.pause(now);
        let Some(look_at) = self.look_at else {
            (self.since, self.look_at) = (now, Some(now.saturating_add(self.pause)));
            return Ok(false);
        };
        if now < look_at {
            return Ok(false);
        }
        if now.saturating_sub(self.since) >= micros_max {
            return Err(Errno::EIO);
        }
        self.pause = (self.pause * 2).min(PAUSE_MICROS_MAX);
        self.look_at = Some(now.saturating_add(self.pause));
        Ok(true)
    }
}

/// Location of offset `within` of an extent in memory.
fn location(extent: &Extent, within: u64) -> Result<u64> {
    extent.location.checked_add(within).ok_or(Errno::EIO)
}

/// The end of `length` bytes at `within`, which must be in the extent.
#[inline]
fn check_range(extent: &Extent, within: u64, length: usize) -> Result<u64> {
    match within.checked_add(length as u64) {
        Some(end) if end <= extent.length() => Ok(end),
        _ => Err(Errno::EIO),
    }
}

/// True if all pages that `length` bytes from `within` on touch are valid; `page_bits` finds those
/// of a group.
#[inline]
fn is_valid_in<'a>(
    extent: &Extent,
    within: u64,
    length: usize,
    page_bits: impl Fn(u64) -> Result<&'a PageBits>,
) -> Result<bool> {
    let last = check_range(extent, within, length)?.wrapping_sub(1);
    let number = within >> PAGE_GROUP_LOG2;
    if number != last >> PAGE_GROUP_LOG2 {
        return are_valid(within, length, page_bits);
    }
    // None before the first and none after the last, each of which is below 64.
    let touched = u64::MAX << page(within) & u64::MAX >> (63 - page(last));
    Ok(page_bits(number)?.valid.load(Acquire) & touched == touched)
}

/// `is_valid_in` for bytes within one group; false for others.
#[inline(always)]
pub(super) fn is_in_valid_group<'a>(
    extent: &Extent,
    within: u64,
    length: usize,
    page_bits: impl FnOnce(u64) -> Result<&'a PageBits>,
) -> bool {
    let Ok(end) = check_range(extent, within, length) else { return false };
    let last = end.wrapping_sub(1);
    let number = within >> PAGE_GROUP_LOG2;
    if number != last >> PAGE_GROUP_LOG2 {
        return false;
    }
    let touched = u64::MAX << page(within) & u64::MAX >> (63 - page(last));
    page_bits(number).is_ok_and(|page_bits| page_bits.valid.load(Acquire) & touched == touched)
}

/// `is_valid_in` over several groups.
#[cold]
fn are_valid<'a>(
    within: u64,
    length: usize,
    page_bits: impl Fn(u64) -> Result<&'a PageBits>,
) -> Result<bool> {
    for (number, touched) in page_groups(within, length as u64) {
        if page_bits(number)?.valid.load(Acquire) & touched != touched {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The groups that `length` bytes from `within` on touch, by number, each with the touched pages.
fn page_groups(within: u64, length: u64) -> impl Iterator<Item = (u64, u64)> {
    let end = within.saturating_add(length);
    let mut at = within;
    core::iter::from_fn(move || {
        if at >= end {
            return None;
        }
        let number = at >> PAGE_GROUP_LOG2;
        let next = ((number + 1) << PAGE_GROUP_LOG2).min(end);
        let touched = mask(page(at), page(next - 1));
        at = next;
        Some((number, touched))
    })
}

/// Number in its group of the page at `within`.
const fn page(within: u64) -> u64 {
    (within >> PAGE_LOG2) % 64
}

/// The part of `length` bytes at `within` that is in `run`: its offset, and its range of the bytes.
fn part_of(run: Range<u64>, within: u64, length: usize) -> (u64, Range<usize>) {
    let start = run.start.max(within);
    let end = run.end.min(within.saturating_add(length as u64)).max(start);
    (start, (start - within) as usize..(end - within) as usize)
}

/// Bits `first ..= last`.
const fn mask(first: u64, last: u64) -> u64 {
    let upper = u64::MAX >> 63u64.saturating_sub(last);
    if first >= 64 { 0 } else { upper & (u64::MAX << first) }
}

//! The extent table: which file's bytes are in which part of a target.
//!
//! Two segments with an entry for each slot, and a third. *Headers* (32 bytes) are written by the
//! daemon and mapped read-only by clients:
//!
//!   0   inode     u64   0: no extent; top bit: hidden, may be shown again; the next: gone
//!   8   start     u64   first offset in the file
//!   16  location  u64   offset in the arena or the SSD file
//!   24  shape     u32   log2 of the length, tier << 8
//!   28  check     u32   mixed from the other fields: a torn header is recognised after a crash
//!
//! *States* (24 bytes), written by clients too:
//!
//!   0   valid      u64   bit i: page i is valid; unset: it reads as zeros
//!   8   claimed    u64   bit i: a writer fills page i
//!   16  successor  u32   thread that takes over the claims of dead threads; 0: none
//!   20  marks      u32   bit 0: nobody asked for the extent (*preallocated*); it may be reclaimed
//!                        while no page is valid; bit 1: unused since the bit was last checked;
//!                        bit 2: it was mapped; bit 3: the backing store has its bytes (*clean*),
//!                        cleared before any byte changes; bit 4: its file is pinned in memory;
//!                        bit 5: writeback reads its bytes, and none changed since that began
//!                        (*cleaning*); bit 6: all its pages count as used, until some are
//!                        invalidated (*reserved*); bit 7: it was fetched from the backing store for
//!                        a reader, and none has come to it yet (*fetched*); above them: how often
//!                        pages were invalidated
//!
//! The two words are enough for 256 KiB, a *page group*. Longer extents are whole groups of their
//! device, and have two such words for each group in the third segment, indexed by location: 32
//! bytes for each 256 KiB, 16 for the arena's group there and 16 for the SSD file's. So entries of
//! small files stay short and adjacent, and no two extents share words.
//!
//! Publishing stores location, start, shape, check, then the inode (release). Unpublishing sets a
//! bit of the inode, then a fence, then the daemon scans the hazard pointers (`hazards`); a client
//! sets its hazard pointer, fences, and reads the inode again. One of the two sees the other, so no
//! space is reused under a copy. The rest of the header stays: a daemon that takes over learns from
//! it which space an older hazard pointer protects.

use super::further::PartedTable;
use super::sums::PageSums;
use crate::segment::{Access, Segment, SharedEntry};
use crate::sync::{AtomicU32, AtomicU64, fence};
use core::ops::Range;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use rustix::fd::{BorrowedFd, OwnedFd};
use wire::Inode;
use wire::errno::{Errno, Result};
use wire::limits::STRIPE_LOG2_MAX;
use wire::reply::Extent;

/// Size of one header.
pub const HEADER_BYTES: usize = 32;
/// Size of one state.
pub const STATE_BYTES: usize = 24;
/// log2 of the size of a page.
pub const PAGE_LOG2: u8 = 12;
/// log2 of the size of a page group: 64 pages, those of one word.
pub const PAGE_GROUP_LOG2: u8 = PAGE_LOG2 + 6;
/// Size of the words of a page group of both devices.
const PAGE_GROUP_BYTES: usize = size_of::<GroupBits>();

/// Length of the segment of page groups for a target whose longer device has `device` bytes.
#[must_use]
pub const fn page_groups_bytes(device: u64) -> u64 {
    let count = (device >> PAGE_GROUP_LOG2).saturating_add(1);
    count.saturating_mul(PAGE_GROUP_BYTES as u64)
}

/// The part of the segment of page groups that belongs to a range of a device.
#[must_use]
pub const fn page_groups_of(device: &Range<u64>) -> Range<u64> {
    let first = device.start >> PAGE_GROUP_LOG2;
    let end = device.end.div_ceil(1 << PAGE_GROUP_LOG2);
    first * PAGE_GROUP_BYTES as u64..end * PAGE_GROUP_BYTES as u64
}

/// The `valid` word of each group of an extent whose pages are all valid.
#[must_use]
pub const fn all_pages(length_log2: u8) -> u64 {
    if length_log2 >= PAGE_GROUP_LOG2 {
        return u64::MAX;
    }
    (1 << (1u64 << length_log2.saturating_sub(PAGE_LOG2))) - 1
}

/// The state of the pages of a group.
#[repr(C)]
pub struct PageBits {
    /// Valid pages; the others read as zeros.
    pub valid: AtomicU64,
    /// Pages that a writer fills or filled.
    pub claimed: AtomicU64,
}

// SAFETY: two atomics. WHY: each copy of a file's bytes reads one.
unsafe impl SharedEntry for PageBits {}

impl PageBits {
    fn reset(&self, valid: u64) {
        self.valid.store(valid, Relaxed);
        self.claimed.store(valid, Relaxed);
    }
}

/// The page bits of a group of the arena, and of the SSD file.
#[repr(C)]
struct GroupBits([PageBits; 2]);

// SAFETY: two of those above. WHY: as there.
unsafe impl SharedEntry for GroupBits {}

/// The fields of a state.
#[repr(C)]
struct ExtentState {
    page_bits: PageBits,
    successor: AtomicU32,
    marks: AtomicU32,
}

// SAFETY: atomics in the order of the table above. WHY: each copy of a file's bytes reads one.
unsafe impl SharedEntry for ExtentState {}

const _: () = assert!(size_of::<ExtentState>() == STATE_BYTES);

/// The fields of a header.
#[repr(C)]
struct Header {
    inode: AtomicU64,
    start: AtomicU64,
    location: AtomicU64,
    shape: AtomicU32,
    check: AtomicU32,
}

// SAFETY: atomics in the order of the table above. WHY: each copy of a file's bytes reads one.
unsafe impl SharedEntry for Header {}

const _: () = assert!(size_of::<Header>() == HEADER_BYTES);

const fn shape_of(extent: &Extent) -> u32 {
    extent.length_log2 as u32 | (extent.tier as u32) << 8
}

/// In the inode word: the header is hidden. No inode number has this bit, so the checksum does not
/// match.
const HIDDEN: u64 = 1 << 63;
/// In the inode word: the header held an extent. The checksum does not match either.
const GONE: u64 = 1 << 62;

/// The headers.
pub struct ExtentTable {
    headers: PartedTable,
}

fn check_of(inode: u64, start: u64, location: u64, shape: u32) -> u32 {
    let mixed = wire::hash::mix(wire::hash::mix(inode, start), location ^ u64::from(shape));
    (mixed ^ (mixed >> 32)) as u32
}

impl ExtentTable {
    /// Sees nothing of the shared memory any more (`Segment::detach`).
    pub fn detach(&self) {
        self.headers.detach();
    }

    /// Takes the mapping.
    #[must_use]
    pub const fn new(segment: Segment) -> ExtentTable {
        ExtentTable { headers: PartedTable::whole(segment) }
    }

    /// Takes the file, and maps parts of it as slots come into use.
    ///
    /// # Errors
    /// `EINVAL` for a table that no daemon makes; errors of the operating system.
    pub fn open_in_parts(file: OwnedFd) -> Result<ExtentTable> {
        Ok(ExtentTable { headers: PartedTable::open(file, HEADER_BYTES, Access::ReadOnly)? })
    }

    /// The file, if parts of it are mapped.
    #[must_use]
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.headers.descriptor()
    }

    /// Has the table count no longer as memory of this process.
    pub fn unmap_pages(&self) {
        self.headers.unmap_pages();
    }

    /// Number of slots.
    #[must_use]
    pub const fn count(&self) -> u32 {
        (self.headers.len() / HEADER_BYTES) as u32
    }

    /// Makes the memory of the headers of these slots present.
    ///
    /// # Errors
    /// `ENOSPC` if there is none; `EIO` for a slot that does not exist.
    pub fn reserve(&self, slots: Range<u32>) -> Result<()> {
        let (start, length) = (slots.start as usize * HEADER_BYTES, slots.len() * HEADER_BYTES);
        self.headers.first().reserve(start, length)
    }

    #[inline]
    fn header(&self, slot: u32) -> Result<&Header> {
        self.headers.entry(slot as usize)
    }

    /// Shows an extent of `inode` to clients.
    ///
    /// # Errors
    /// `EIO` for a slot that does not exist.
    pub fn publish(&self, inode: Inode, extent: &Extent) -> Result<()> {
        let (header, shape) = (self.header(extent.slot)?, shape_of(extent));
        header.location.store(extent.location, Relaxed);
        header.start.store(extent.start, Relaxed);
        header.shape.store(shape, Relaxed);
        let own = inode.0 & !(HIDDEN | GONE);
        header.check.store(check_of(own, extent.start, extent.location, shape), Relaxed);
        header.inode.store(inode.0, Release);
        Ok(())
    }

    /// Enters an extent in the hidden state, so that no client sees it.
    ///
    /// # Errors
    /// `EIO` for a slot that does not exist.
    pub fn publish_hidden(&self, inode: Inode, extent: &Extent) -> Result<()> {
        self.publish(Inode(inode.0 | HIDDEN), extent)
    }

    /// Enters space that may hold bytes and belongs to no extent, as if an extent there was
    /// unpublished.
    ///
    /// # Errors
    /// `EIO` for a slot that does not exist.
    pub fn publish_gone(&self, inode: Inode, extent: &Extent) -> Result<()> {
        self.publish(Inode(inode.0 | GONE), extent)
    }

    /// Empties a header.
    ///
    /// # Errors
    /// `EIO` for a slot that does not exist.
    pub fn clear(&self, slot: u32) -> Result<()> {
        self.header(slot)?.inode.store(0, Release);
        Ok(())
    }

    /// Removes an extent. Its space may be reused when no hazard pointer protects the slot any
    /// more.
    ///
    /// # Errors
    /// `EIO` for a slot that does not exist.
    pub fn unpublish(&self, slot: u32) -> Result<()> {
        self.header(slot)?.inode.fetch_or(GONE, SeqCst);
        fence(SeqCst);
        Ok(())
    }

    /// Hides an extent that may be shown again, also after a kill: nothing of it is lost.
    ///
    /// # Errors
    /// `EIO` for a slot that does not exist.
    pub fn hide(&self, slot: u32) -> Result<()> {
        self.header(slot)?.inode.fetch_or(HIDDEN, SeqCst);
        fence(SeqCst);
        Ok(())
    }

    /// Ends `hide`.
    ///
    /// # Errors
    /// `EIO` for a slot that does not exist.
    pub fn show(&self, slot: u32) -> Result<()> {
        self.header(slot)?.inode.fetch_and(!HIDDEN, SeqCst);
        Ok(())
    }

    /// The extent of `slot` and its file, `None` for an empty or torn header.
    #[must_use]
    pub fn get(&self, slot: u32) -> Option<(Inode, Extent)> {
        let inode = self.header(slot).ok()?.inode.load(Acquire);
        Some((Inode(inode), self.entry(slot, inode)?))
    }

    /// The extent of `slot` and its file, if it is hidden.
    #[must_use]
    pub fn hidden(&self, slot: u32) -> Option<(Inode, Extent)> {
        let inode = self.header(slot).ok()?.inode.load(Acquire);
        let is_hidden = inode & (HIDDEN | GONE) == HIDDEN;
        let inode = inode & !HIDDEN;
        if is_hidden { Some((Inode(inode), self.entry(slot, inode)?)) } else { None }
    }

    /// The extent that `slot` held until it was unpublished; `None` if it holds one, or never did.
    #[must_use]
    pub fn gone(&self, slot: u32) -> Option<Extent> {
        let inode = self.header(slot).ok()?.inode.load(Acquire);
        if inode & GONE == 0 { None } else { self.entry(slot, inode & !(GONE | HIDDEN)) }
    }

    /// The rest of a header, if it is of `inode`.
    fn entry(&self, slot: u32, inode: u64) -> Option<Extent> {
        let header = self.header(slot).ok()?;
        let start = header.start.load(Relaxed);
        let location = header.location.load(Relaxed);
        let shape = header.shape.load(Relaxed);
        let check = header.check.load(Relaxed);
        if inode == 0 || check != check_of(inode, start, location, shape) {
            return None;
        }
        let (length_log2, tier) = ((shape & 0xff) as u8, (shape >> 8) as u8);
        let extent = Extent { start, slot, location, length_log2, tier };
        (length_log2 <= STRIPE_LOG2_MAX).then_some(extent)
    }

    /// True if `extent` is still `inode`'s according to its header. Every field is compared with
    /// the known value, so the checksum would add nothing.
    #[must_use]
    #[inline]
    pub fn is(&self, inode: Inode, extent: &Extent) -> bool {
        let Ok(header) = self.header(extent.slot) else { return false };
        header.inode.load(Acquire) == inode.0
            && header.start.load(Relaxed) == extent.start
            && header.location.load(Relaxed) == extent.location
            && header.shape.load(Relaxed) == shape_of(extent)
            && !inode.is_none()
            && extent.length_log2 <= STRIPE_LOG2_MAX
    }
}

/// Bit of `marks`: nobody asked for the extent.
const PREALLOCATED: u32 = 1;
/// Bit of `marks`: the extent was not used. Inverted, so that a writer finds by one test that it
/// has nothing to record.
const UNUSED: u32 = 2;
/// Bit of `marks`: it was mapped.
const MAPPED: u32 = 4;
/// Bit of `marks`: the backing store has its bytes.
const CLEAN: u32 = 8;
/// Bit of `marks`: its file is pinned in memory.
const PINNED: u32 = 16;
/// Bit of `marks`: writeback reads its bytes, and none changed since that began.
const CLEANING: u32 = 32;
/// Bit of `marks`: its space is reserved.
const RESERVED: u32 = 64;
/// Bit of `marks`: it was fetched for a reader, and none has come to it yet.
const FETCHED: u32 = 128;
/// Amount by which an invalidation of pages increases `marks`.
const INVALIDATION_ONE: u32 = 256;

/// How an extent is used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Use {
    /// Its bytes are read.
    Read,
    /// Bytes may change from now on.
    Write,
}

impl Use {
    /// Marks that are to be cleared before.
    const fn ends(self) -> u32 {
        match self {
            Use::Read => UNUSED,
            Use::Write => UNUSED | CLEAN | CLEANING,
        }
    }
}

/// The states.
pub struct ExtentStates {
    entries: PartedTable,
    page_groups: PartedTable,
    /// Sums of the pages of the SSD file.
    pub(super) sums: PageSums,
}

impl ExtentStates {
    /// Sees nothing of the shared memory any more (`Segment::detach`).
    pub fn detach(&self) {
        self.entries.detach();
        self.page_groups.detach();
        self.sums.detach();
    }

    /// Takes the mappings of the entries and of the page groups, and the sums.
    #[must_use]
    pub const fn new(entries: Segment, page_groups: Segment, sums: PageSums) -> ExtentStates {
        ExtentStates {
            entries: PartedTable::whole(entries),
            page_groups: PartedTable::whole(page_groups),
            sums,
        }
    }

    /// As `new`, of files, of which parts are mapped as slots and space come into use.
    ///
    /// # Errors
    /// `EINVAL` for a table that no daemon makes; errors of the operating system.
    pub fn open_in_parts(
        entries: OwnedFd,
        page_groups: OwnedFd,
        sums: PageSums,
    ) -> Result<ExtentStates> {
        let entries = PartedTable::open(entries, STATE_BYTES, Access::ReadWrite)?;
        let page_groups = PartedTable::open(page_groups, PAGE_GROUP_BYTES, Access::ReadWrite)?;
        Ok(ExtentStates { entries, page_groups, sums })
    }

    /// The files of the tables, if parts of them are mapped.
    #[must_use]
    pub fn descriptors(&self) -> [Option<BorrowedFd<'_>>; 3] {
        let ExtentStates { entries, page_groups, sums } = self;
        [entries.descriptor(), page_groups.descriptor(), sums.descriptor()]
    }

    /// Has the states count no longer as memory of this process.
    pub fn unmap_pages(&self) {
        self.entries.unmap_pages();
        self.page_groups.unmap_pages();
        self.sums.unmap_pages();
    }

    /// Checksums of the pages of the SSD file.
    #[must_use]
    pub const fn sums(&self) -> &PageSums {
        &self.sums
    }

    /// Makes the memory of the states of these slots present.
    ///
    /// # Errors
    /// `ENOSPC` if there is none; `EIO` for a slot that does not exist.
    pub fn reserve(&self, slots: Range<u32>) -> Result<()> {
        let (start, length) = (slots.start as usize * STATE_BYTES, slots.len() * STATE_BYTES);
        self.entries.first().reserve(start, length)
    }

    #[inline]
    fn state(&self, slot: u32) -> Result<&ExtentState> {
        self.entries.entry(slot as usize)
    }

    /// The page bits of a group of an extent, counted from its first.
    ///
    /// # Errors
    /// `EIO` for a slot or a location that does not exist.
    #[inline]
    pub fn page_bits(&self, extent: &Extent, group: u64) -> Result<&PageBits> {
        if extent.length_log2 <= PAGE_GROUP_LOG2 {
            return self.state(extent.slot).map(|state| &state.page_bits);
        }
        self.long_page_bits(extent, group)
    }

    /// As `page_bits`, before a read or write under a hazard pointer: records the use, for the
    /// replacement policy and for the eviction of clean extents. Usually it is recorded already.
    ///
    /// # Errors
    /// As `page_bits`.
    #[inline]
    pub(crate) fn page_bits_in_use<const WRITES: bool>(
        &self,
        extent: &Extent,
        group: u64,
    ) -> Result<&PageBits> {
        let how = if WRITES { Use::Write } else { Use::Read };
        let state = self.state(extent.slot)?;
        if state.marks.load(Relaxed) & how.ends() != 0 {
            note_first_use(&state.marks, how);
        }
        if extent.length_log2 <= PAGE_GROUP_LOG2 {
            return Ok(&state.page_bits);
        }
        self.long_page_bits(extent, group)
    }

    #[inline]
    fn long_page_bits(&self, extent: &Extent, group: u64) -> Result<&PageBits> {
        let number = (extent.location >> PAGE_GROUP_LOG2) as usize + group as usize;
        let group: &GroupBits = self.page_groups.entry(number)?;
        let [in_memory, on_ssd] = &group.0;
        Ok(if extent.tier == Extent::MEMORY { in_memory } else { on_ssd })
    }

    /// The thread that takes over the claims of dead threads.
    ///
    /// # Errors
    /// `EIO` for a slot that does not exist.
    pub fn successor(&self, slot: u32) -> Result<&AtomicU32> {
        self.state(slot).map(|state| &state.successor)
    }

    /// Initialises the state of an extent, with the pages `valid` in each of its groups, before it
    /// is published.
    ///
    /// # Errors
    /// `EIO` for a slot or a location that does not exist, or a location whose words belong to
    /// another extent, too.
    pub fn reset(&self, extent: &Extent, valid: u64) -> Result<()> {
        self.reset_each(extent, |_| Ok(valid))
    }

    /// Initialises the state of an extent from another of the same length whose bytes were copied,
    /// before it is published: the same pages are valid, and it is clean if the other is. Nobody
    /// uses the other one meanwhile.
    ///
    /// # Errors
    /// As `reset`.
    pub fn reset_as(&self, from: &Extent, to: &Extent) -> Result<()> {
        self.reset_each(to, |group| Ok(self.page_bits(from, group)?.valid.load(Acquire)))?;
        if self.is_clean(from.slot) {
            self.set_clean(to.slot)?;
        }
        if self.is_reserved(from.slot) {
            self.set_reserved(to.slot)?;
        }
        if self.take_fetched(from.slot) {
            self.set_fetched(to.slot)?;
        }
        Ok(())
    }

    fn reset_each(&self, extent: &Extent, valid: impl Fn(u64) -> Result<u64>) -> Result<()> {
        if !extent.location.is_multiple_of(extent.length().min(1 << PAGE_GROUP_LOG2)) {
            return Err(Errno::EIO);
        }
        for group in 0..page_group_count(extent) {
            let valid = valid(group)?;
            self.page_bits(extent, group)?.reset(valid);
            if extent.tier == Extent::SSD {
                let location = extent.location.saturating_add(group << PAGE_GROUP_LOG2);
                self.sums.begin_group(location, !valid & all_pages(extent.length_log2))?;
            }
        }
        self.marks(extent.slot)?.store(UNUSED, Relaxed);
        self.successor(extent.slot)?.store(0, Release);
        Ok(())
    }

    fn marks(&self, slot: u32) -> Result<&AtomicU32> {
        self.state(slot).map(|state| &state.marks)
    }

    /// Records whether an extent is preallocated (nobody asked for it); it is not published yet if
    /// so.
    ///
    /// # Errors
    /// `EIO` for a slot that does not exist.
    pub fn set_preallocated(&self, slot: u32, is_preallocated: bool) -> Result<()> {
        let marks = self.marks(slot)?;
        if is_preallocated {
            marks.fetch_or(PREALLOCATED, Release);
        } else {
            marks.fetch_and(!PREALLOCATED, Release);
        }
        Ok(())
    }

    /// Records whether an extent's file is pinned in memory.
    ///
    /// # Errors
    /// `EIO` for a slot that does not exist.
    pub fn set_pinned(&self, slot: u32, is_pinned: bool) -> Result<()> {
        let marks = self.marks(slot)?;
        match is_pinned {
            true => marks.fetch_or(PINNED, Release),
            false => marks.fetch_and(!PINNED, Release),
        };
        Ok(())
    }

    /// Records that all space of an extent is reserved for its file.
    ///
    /// # Errors
    /// `EIO` for a slot that does not exist.
    pub fn set_reserved(&self, slot: u32) -> Result<()> {
        self.marks(slot)?.fetch_or(RESERVED, Release);
        Ok(())
    }

    fn is_reserved(&self, slot: u32) -> bool {
        self.marks(slot).is_ok_and(|marks| marks.load(Acquire) & RESERVED != 0)
    }

    /// Bytes of an extent's pages below offset `end` of its file that were written, or of all if
    /// they are reserved or on another host.
    #[must_use]
    pub fn bytes_counted(&self, extent: &Extent, end: u64) -> u64 {
        let length = end.saturating_sub(extent.start).min(extent.length());
        let pages = length.div_ceil(1 << PAGE_LOG2);
        if extent.tier == Extent::SPILLED || self.is_reserved(extent.slot) {
            return pages << PAGE_LOG2;
        }
        let valid_pages = |group: u64| {
            let Ok(page_bits) = self.page_bits(extent, group) else { return 0 };
            let pages_here = pages - group * 64;
            let counted = if pages_here < 64 { (1 << pages_here) - 1 } else { u64::MAX };
            u64::from((page_bits.valid.load(Acquire) & counted).count_ones())
        };
        (0..pages.div_ceil(64)).map(valid_pages).sum::<u64>() << PAGE_LOG2
    }

    /// True if an extent's file is pinned in memory.
    #[must_use]
    pub fn is_pinned(&self, slot: u32) -> bool {
        self.marks(slot).is_ok_and(|marks| marks.load(Acquire) & PINNED != 0)
    }

    /// True if an extent is preallocated.
    #[must_use]
    pub fn is_preallocated(&self, slot: u32) -> bool {
        self.marks(slot).is_ok_and(|marks| marks.load(Acquire) & PREALLOCATED != 0)
    }

    /// Records the use of an extent, under a hazard pointer.
    pub fn note_use(&self, slot: u32, how: Use) {
        let _ = self.marks(slot).map(|marks| note_first_use(marks, how));
    }

    /// True if an extent was used since the last call.
    #[must_use]
    pub fn take_use(&self, slot: u32) -> bool {
        let Ok(marks) = self.marks(slot) else { return false };
        marks.load(Relaxed) & UNUSED == 0 && marks.fetch_or(UNUSED, Relaxed) & UNUSED == 0
    }

    /// Records that the backing store has all bytes of an extent. It is not published yet, or is
    /// hidden and unprotected: a writer reads the mark under its hazard pointer.
    ///
    /// # Errors
    /// `EIO` for a slot that does not exist.
    pub fn set_clean(&self, slot: u32) -> Result<()> {
        self.marks(slot)?.fetch_or(CLEAN, SeqCst);
        Ok(())
    }

    /// Records that an extent, which is not published yet, was fetched from the backing store for a
    /// reader.
    ///
    /// # Errors
    /// `EIO` for a slot that does not exist.
    pub fn set_fetched(&self, slot: u32) -> Result<()> {
        self.marks(slot)?.fetch_or(FETCHED, Relaxed);
        Ok(())
    }

    /// True for the first that comes to an extent that was fetched for a reader.
    #[must_use]
    pub fn take_fetched(&self, slot: u32) -> bool {
        let Ok(marks) = self.marks(slot) else { return false };
        marks.load(Relaxed) & FETCHED != 0 && marks.fetch_and(!FETCHED, Relaxed) & FETCHED != 0
    }

    /// The bytes of a published extent are about to be read for writeback. False, with nothing
    /// recorded, if it was mapped. A writer that protected it before may change bytes without
    /// seeing the mark: then the mark must be cleared (`clear_cleaning`) before anything is read.
    ///
    /// # Errors
    /// `EIO` for a slot that does not exist.
    pub fn begin_cleaning(&self, slot: u32) -> Result<bool> {
        let marks = self.marks(slot)?.fetch_or(CLEANING, SeqCst);
        fence(SeqCst);
        if marks & MAPPED != 0 {
            self.clear_cleaning(slot)?;
        }
        Ok(marks & MAPPED == 0)
    }

    /// Cancels `begin_cleaning`.
    ///
    /// # Errors
    /// `EIO` for a slot that does not exist.
    pub fn clear_cleaning(&self, slot: u32) -> Result<()> {
        self.marks(slot)?.fetch_and(!CLEANING, SeqCst);
        Ok(())
    }

    /// The bytes that were read are written back: the extent is clean if none changed since
    /// `begin_cleaning`. True if it is. A cleaning that never ends makes no extent clean.
    ///
    /// # Errors
    /// `EIO` for a slot that does not exist.
    pub fn end_cleaning(&self, slot: u32) -> Result<bool> {
        let marks = self.marks(slot)?;
        let mut now = marks.load(SeqCst);
        loop {
            let is_clean = now & (CLEANING | MAPPED) == CLEANING;
            let then = if is_clean { (now & !CLEANING) | CLEAN } else { now & !CLEANING };
            match marks.compare_exchange(now, then, SeqCst, SeqCst) {
                Ok(_) => return Ok(is_clean),
                Err(other) => now = other,
            }
        }
    }

    /// True if no byte of an extent changed since it was clean. That stays true of one that is
    /// hidden and unprotected.
    #[must_use]
    pub fn is_clean(&self, slot: u32) -> bool {
        self.marks(slot).is_ok_and(|marks| marks.load(SeqCst) & CLEAN != 0)
    }

    /// True if an extent was used since the last `take_use`.
    #[must_use]
    pub fn is_used(&self, slot: u32) -> bool {
        self.marks(slot).is_ok_and(|marks| marks.load(Relaxed) & UNUSED == 0)
    }

    /// Records that a process maps an extent, which it protects: the extent must stay in place.
    ///
    /// # Errors
    /// `EIO` for a slot that does not exist.
    pub fn note_mapping(&self, slot: u32) -> Result<()> {
        self.marks(slot)?.fetch_or(MAPPED, SeqCst);
        Ok(())
    }

    /// The extent, which is hidden and unprotected, is not mapped any more.
    ///
    /// # Errors
    /// `EIO` for a slot that does not exist.
    pub fn forget_mapping(&self, slot: u32) -> Result<()> {
        self.marks(slot)?.fetch_and(!MAPPED, SeqCst);
        Ok(())
    }

    /// True if an extent was mapped, and may still be.
    #[must_use]
    pub fn is_mapped(&self, slot: u32) -> bool {
        self.marks(slot).is_ok_and(|marks| marks.load(SeqCst) & MAPPED != 0)
    }

    /// True if nothing was written into an extent since it was created or cleared.
    #[must_use]
    pub fn is_hole(&self, extent: &Extent) -> bool {
        let is_empty = |group| {
            self.page_bits(extent, group).is_ok_and(|page_bits| page_bits.valid.load(SeqCst) == 0)
        };
        (0..page_group_count(extent)).all(is_empty)
    }

    /// A count that changes whenever pages are invalidated.
    ///
    /// # Errors
    /// `EIO` for a slot that does not exist.
    pub fn invalidation_count(&self, slot: u32) -> Result<u32> {
        Ok(self.marks(slot)?.load(SeqCst) & !(INVALIDATION_ONE - 1))
    }

    /// Invalidates those of `page_bits`, of the extent in `slot`, that are in `mask`: they read as
    /// zeros from now on, and the extent is not reserved any more.
    ///
    /// # Errors
    /// `EIO` for a slot that does not exist.
    pub fn invalidate(&self, slot: u32, page_bits: &PageBits, mask: u64) -> Result<()> {
        let marks = self.marks(slot)?;
        marks.fetch_add(INVALIDATION_ONE, SeqCst);
        if mask != 0 {
            marks.fetch_and(!RESERVED, SeqCst);
        }
        // A page that a writer fills right now stays the writer's. The claim goes first: a page
        // that is claimed and invalid would look like one that a dead writer left.
        let valid_pages = mask & page_bits.valid.load(SeqCst);
        page_bits.claimed.fetch_and(!valid_pages, SeqCst);
        page_bits.valid.fetch_and(!valid_pages, SeqCst);
        Ok(())
    }
}

/// Runs once after each check of the mark. The order is that of the bytes and of the hazard
/// pointer: a daemon that finds no hazard pointer finds the mark cleared.
#[cold]
#[inline(never)]
fn note_first_use(marks: &AtomicU32, how: Use) {
    marks.fetch_and(!how.ends(), SeqCst);
}

/// Number of groups of an extent, at least one.
const fn page_group_count(extent: &Extent) -> u64 {
    1 << extent.length_log2.saturating_sub(PAGE_GROUP_LOG2)
}

/// Checks an extent against the length of its device.
///
/// # Errors
/// `EIO` if it does not fit.
pub fn admit(extent: &Extent, space: u64) -> Result<()> {
    match extent.location.checked_add(extent.length()) {
        Some(end) if end <= space => Ok(()),
        _ => Err(Errno::EIO),
    }
}

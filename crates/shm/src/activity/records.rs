//! File records of a block: the reads and writes of one thread, or of one process behind a mount, in
//! one file.
//!
//! A record, 320 bytes: key u64 (0 free, `CLOSED` not for new transfers, else the inode), inode u64,
//! began u64 (nanoseconds since 1970), parent u64, opens u64 (open files whose transfers it counts),
//! bytes read from an SSD u64, from other hosts u64, and from the backing store u64 (`sources`), then
//! from byte 64 on the counters of reads and of writes, 128 bytes each (`DirectionCounters`).
//! Record 0 belongs to no file.
//!
//! Numbers and bytes of transfers are exact. How they follow one another and how large they are is
//! exact for the first `EXACT_COUNT` of a record; of later ones one in `SAMPLED_EACH`, on average, is
//! looked at and stands for those since the last one: a read of 8 KiB that is looked at costs twice
//! as many instructions of counting.
//!
//!   free --first transfer--> open --idle, and others wait for records--> closed --gathered--> free
//!
//! Invariants:
//!  1. Only a thread of the block sets the key of a free record; only the gatherer closes a record,
//!     and frees it when it has read the same counters twice since.
//!  2. Several records may belong to one file: their sum counts.

use super::blocks::Block;
use super::causes::{SOURCE_COUNT, SlowSource};
use super::{ActivitySegment, BLOCK_BYTES, BLOCKS, BlockIndex, Lane, OwnBlock, add, add_own};
use super::{spread, weighted};
use crate::segment::SharedEntry;
use crate::sync::{AtomicU32, AtomicU64};
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use wire::Inode;
use wire::errno::Result;
use wire::job::{SIZE_CLASSES, size_class};

/// Offset of the records in a block.
pub(super) const RECORDS: usize = 576;
const RECORD_BYTES: usize = 320;
/// Records of a block; the first belongs to no file.
pub const RECORD_COUNT: usize = (BLOCK_BYTES - RECORDS) / RECORD_BYTES;
/// Records that a file may use: a program that goes through many files, each of which finds all records
/// in use, looks at no more for each.
const PROBES: usize = 6;
/// Unit of the place of a record in the segment.
const PLACE_BYTES: usize = 64;
const PLACES_EACH: u32 = (BLOCK_BYTES / PLACE_BYTES) as u32;
const BLOCKS_PLACE: u32 = (BLOCKS / PLACE_BYTES) as u32;

/// Transfers of a record that are all looked at.
pub const EXACT_COUNT: u64 = 256;
/// Of later ones, one in this many is.
pub const SAMPLED_EACH: u64 = 8;
/// One transfer in this many is timed (`spread`).
const TIMED_EACH: u64 = 64;
/// Transfers of this many bytes are all timed: reading the clock costs a hundredth of their time.
const TIMED_BYTES: u64 = 64 << 10;
/// Transfers that begin at no multiple of this are misaligned.
const ALIGNMENT: u64 = 4096;
const CLOSED: u64 = u64::MAX;

/// Counters of the reads, or of the writes, of a record.
#[repr(C)]
pub struct DirectionCounters {
    number: AtomicU64,
    bytes: AtomicU64,
    /// Of the last transfer.
    start: AtomicU64,
    end: AtomicU64,
    /// Upper half: the transfer with this number is looked at next; lower half: how many transfers
    /// those stand for that have been looked at.
    sampling: AtomicU64,
    /// Largest of the inverted offsets: a record begins as zeros.
    lowest_inverted: AtomicU64,
    highest: AtomicU64,
    stride: AtomicU64,
    bins: [AtomicU32; SIZE_CLASSES],
    consecutive: AtomicU32,
    forward: AtomicU32,
    strided: AtomicU32,
    misaligned: AtomicU32,
    nanos: AtomicU64,
}

#[repr(C)]
struct FileRecord {
    key: AtomicU64,
    inode: AtomicU64,
    began: AtomicU64,
    /// The directory in which the file was opened; 0: unknown.
    parent: AtomicU64,
    /// Open files that moved bytes, each once.
    opens: AtomicU64,
    /// Bytes that came from slower places than memory of this host, by `SlowSource`.
    sources: [AtomicU64; SOURCE_COUNT],
    reads: DirectionCounters,
    writes: DirectionCounters,
}

// SAFETY: atomics, and arrays and structs of atomics in the order of the declaration. WHY: each read
// and write comes here.
unsafe impl SharedEntry for FileRecord {}

/// The records of a block.
#[repr(C)]
struct FileRecords([FileRecord; RECORD_COUNT]);

// SAFETY: an array of those above. WHY: as there, at the first transfer of an open file.
unsafe impl SharedEntry for FileRecords {}

const _: () = assert!(size_of::<FileRecord>() == RECORD_BYTES);
const _: () = assert!(RECORD_BYTES.is_multiple_of(PLACE_BYTES) && RECORDS.is_multiple_of(64));
const _: () = assert!(RECORDS + RECORD_COUNT * RECORD_BYTES <= BLOCK_BYTES);

/// Reads or writes, as they were read. Counters wrap.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DirectionSample {
    /// Transfers.
    pub number: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Lowest offset; `u64::MAX` if there is none.
    pub lowest: u64,
    /// Highest end.
    pub highest: u64,
    /// Transfers by size, see `wire::job::size_class`.
    pub bins: [u32; SIZE_CLASSES],
    /// Those that began where the one before ended.
    pub consecutive: u32,
    /// Those that began behind the end of the one before.
    pub forward: u32,
    /// Those whose start was as far from the start of the one before as that one's had been.
    pub strided: u32,
    /// The last such distance, two's complement.
    pub stride: u64,
    /// Those that did not begin at a multiple of 4096.
    pub misaligned: u32,
    /// Nanoseconds, from a sample.
    pub nanos: u64,
}

/// A record in use, as it was read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RecordSample {
    /// Its number in its block.
    pub slot: u32,
    /// The file; none for record 0.
    pub inode: Inode,
    /// The directory in which the file was opened; none if that is unknown.
    pub parent: Inode,
    /// When it was taken, in nanoseconds since 1970.
    pub began: u64,
    /// Open files whose transfers it counts; 0 for record 0.
    pub opens: u64,
    /// It takes no more transfers.
    pub is_closed: bool,
    /// Bytes read from places other than memory of this host, by `SlowSource`.
    pub sources: [u64; SOURCE_COUNT],
    /// Reads.
    pub reads: DirectionSample,
    /// Writes.
    pub writes: DirectionSample,
}

/// The words of an open file that counting needs.
#[derive(Clone, Copy, Debug)]
pub struct OpenWords<'a> {
    /// Keeps the place of the file's record between transfers, by whichever process.
    pub place: &'a AtomicU32,
    /// The file.
    pub inode: Inode,
    /// The directory in which it was opened; 0: unknown.
    pub parent: &'a AtomicU64,
}

/// Direction of a transfer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Transfer {
    /// A read.
    Read,
    /// A write.
    Write,
}

/// A transfer that is about to be made.
#[derive(Clone, Copy)]
pub struct TransferCounter<'a> {
    counters: &'a DirectionCounters,
    is_shared: bool,
}

/// A transfer that is about to be made by a thread with a block of its own, and is not timed.
#[derive(Clone, Copy)]
pub struct PlainTransfer<'a>(&'a DirectionCounters);

impl PlainTransfer<'_> {
    /// Counts the transfer, which moved this many bytes.
    #[inline(always)]
    pub fn count(self, offset: u64, bytes: u64) {
        self.0.count_own(offset, bytes);
    }
}

impl DirectionCounters {
    fn sample(&self) -> DirectionSample {
        let bins = self.bins.each_ref().map(|bin| bin.load(Relaxed));
        DirectionSample {
            number: self.number.load(Relaxed),
            bytes: self.bytes.load(Relaxed),
            lowest: !self.lowest_inverted.load(Relaxed),
            highest: self.highest.load(Relaxed),
            bins,
            consecutive: self.consecutive.load(Relaxed),
            forward: self.forward.load(Relaxed),
            strided: self.strided.load(Relaxed),
            stride: self.stride.load(Relaxed),
            misaligned: self.misaligned.load(Relaxed),
            nanos: self.nanos.load(Relaxed),
        }
    }

    /// Looks at a transfer, which stands for `weight` of them; `number` were counted before it.
    fn classify(&self, number: u64, weight: u32, (offset, bytes): (u64, u64), is_shared: bool) {
        let add = |counter: &AtomicU32| {
            if is_shared {
                counter.fetch_add(weight, Relaxed);
            } else {
                counter.store(counter.load(Relaxed).wrapping_add(weight), Relaxed);
            }
        };
        // A read that finds the end of the file has no size, and its offset is the size of the file.
        if bytes > 0 {
            if let Some(bin) = self.bins.get(size_class(bytes)) {
                add(bin);
            }
            if !offset.is_multiple_of(ALIGNMENT) {
                add(&self.misaligned);
            }
        }
        if !offset > self.lowest_inverted.load(Relaxed) {
            self.lowest_inverted.fetch_max(!offset, Relaxed);
        }
        let end = offset.wrapping_add(bytes);
        if end > self.highest.load(Relaxed) {
            self.highest.fetch_max(end, Relaxed);
        }
        if number == 0 {
            return;
        }
        let before = self.end.load(Relaxed);
        if offset == before {
            add(&self.consecutive);
        } else if offset > before {
            add(&self.forward);
        }
        let stride = offset.wrapping_sub(self.start.load(Relaxed));
        if number > 1 && stride == self.stride.load(Relaxed) {
            add(&self.strided);
        } else {
            self.stride.store(stride, Relaxed);
        }
    }

    /// Counts a transfer where the calling thread alone counts.
    #[inline(always)]
    fn count_own(&self, offset: u64, bytes: u64) {
        let DirectionCounters { number, bytes: moved, start, end, sampling, .. } = self;
        let before = number.load(Relaxed);
        number.store(before.wrapping_add(1), Relaxed);
        add_own(moved, bytes);
        if is_due(before, sampling.load(Relaxed)) {
            self.look(before, (offset, bytes), false);
        }
        start.store(offset, Relaxed);
        end.store(offset.wrapping_add(bytes), Relaxed);
    }

    /// Whether a transfer of this many bytes is to be timed.
    #[inline(always)]
    fn is_timed(&self, inode: Inode, bytes: u64) -> bool {
        // Of short files one in 64 is timed, not each first transfer.
        bytes >= TIMED_BYTES || spread(self.number.load(Relaxed)) == inode.0 as u32 % 64
    }

    /// The part of counting that few transfers need; `number` were counted before this one.
    #[inline(never)]
    fn look(&self, number: u64, transfer: (u64, u64), is_shared: bool) {
        // A random distance, so that no pattern of the program falls together with the samples.
        let distance = if number < EXACT_COUNT {
            1
        } else {
            let mixed = (number ^ transfer.0).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
            1 + mixed % (2 * SAMPLED_EACH - 1)
        };
        let counted = number.wrapping_add(1) as u32;
        let next = counted.wrapping_add(distance as u32 - 1);
        let seen = self.sampling.load(Relaxed);
        let sampling = u64::from(next) << 32 | u64::from(counted);
        // Of several threads one looks, and none that comes too late.
        if is_shared {
            let take = || self.sampling.compare_exchange(seen, sampling, Relaxed, Relaxed);
            if !is_due(number, seen) || take().is_err() {
                return;
            }
        } else {
            self.sampling.store(sampling, Relaxed);
        }
        self.classify(number, counted.wrapping_sub(seen as u32), transfer, is_shared);
    }
}

/// Whether a transfer, before which `number` were counted, is to be looked at.
#[inline(always)]
const fn is_due(number: u64, sampling: u64) -> bool {
    (number as u32).wrapping_sub((sampling >> 32) as u32).cast_signed() >= 0
}

impl TransferCounter<'_> {
    /// Whether a transfer of this many bytes is to be timed.
    #[inline]
    #[must_use]
    pub fn is_timed(&self, inode: Inode, bytes: u64) -> bool {
        self.counters.is_timed(inode, bytes)
    }

    /// Bytes of the transfers that a timed one of this many bytes stands for.
    #[must_use]
    pub const fn stands_for(bytes: u64) -> u64 {
        if bytes >= TIMED_BYTES { bytes } else { bytes.saturating_mul(TIMED_EACH) }
    }

    /// Counts the time of a transfer that was timed, with as many bytes as `is_timed` was asked for.
    #[cold]
    pub fn count_time(&self, nanos: u64, bytes: u64) {
        let nanos = if bytes >= TIMED_BYTES { nanos } else { weighted(nanos, TIMED_EACH) };
        add(&self.counters.nanos, nanos, self.is_shared);
    }

    /// Counts a transfer that moved this many bytes.
    #[inline]
    pub fn count(&self, offset: u64, bytes: u64) {
        if self.is_shared {
            return self.count_beside(offset, bytes);
        }
        self.counters.count_own(offset, bytes);
    }

    /// As `count`, beside other threads.
    #[inline(never)]
    fn count_beside(&self, offset: u64, bytes: u64) {
        let counters = self.counters;
        let before = counters.number.fetch_add(1, Relaxed);
        counters.bytes.fetch_add(bytes, Relaxed);
        if is_due(before, counters.sampling.load(Relaxed)) {
            counters.look(before, (offset, bytes), true);
        }
        counters.start.store(offset, Relaxed);
        counters.end.store(offset.wrapping_add(bytes), Relaxed);
    }
}

/// Where the records of a block are.
const fn records_of(block: BlockIndex) -> usize {
    BLOCKS + block.0 as usize * BLOCK_BYTES + RECORDS
}

const fn place_of(block: BlockIndex, slot: usize) -> u32 {
    ((records_of(block) + slot * RECORD_BYTES) / PLACE_BYTES) as u32
}

/// Where the search for the record of a file begins.
const fn first_of(inode: Inode) -> usize {
    (inode.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize
}

/// The slot that a search looks at in its step.
const fn slot_of(first: usize, step: usize) -> usize {
    1 + first.wrapping_add(step) % (RECORD_COUNT - 1)
}

impl FileRecord {
    #[inline(always)]
    const fn counters(&self, transfer: Transfer) -> &DirectionCounters {
        match transfer {
            Transfer::Read => &self.reads,
            Transfer::Write => &self.writes,
        }
    }
}

impl ActivitySegment {
    /// The counters for a transfer of so many bytes of an open file; `None` if it is timed.
    #[inline(always)]
    #[must_use]
    pub fn plain_transfer(
        &self,
        block: OwnBlock,
        open: OpenWords<'_>,
        (transfer, bytes): (Transfer, usize),
    ) -> Option<PlainTransfer<'_>> {
        let at = open.place.load(Relaxed) as usize * PLACE_BYTES;
        // Blocks begin at multiples of their length.
        let is_here = at ^ block.place() < BLOCK_BYTES;
        let known = if is_here { self.segment.entry::<FileRecord>(at).ok() } else { None };
        let record = match known.filter(|record| record.key.load(Relaxed) == open.inode.0) {
            Some(record) => record,
            None => self.find(block.lane(), open)?,
        };
        let counters = record.counters(transfer);
        (!counters.is_timed(open.inode, bytes as u64)).then_some(PlainTransfer(counters))
    }

    /// The counters for a transfer of an open file.
    #[inline]
    #[must_use]
    pub fn begin_transfer(
        &self,
        lane: Lane,
        open: OpenWords<'_>,
        transfer: Transfer,
    ) -> Option<TransferCounter<'_>> {
        let at = open.place.load(Relaxed);
        let record = if at.wrapping_sub(BLOCKS_PLACE) / PLACES_EACH == lane.block.0 {
            let record = self.segment.entry::<FileRecord>(at as usize * PLACE_BYTES).ok()?;
            if record.key.load(Relaxed) == open.inode.0 { record } else { self.find(lane, open)? }
        } else {
            self.find(lane, open)?
        };
        let counters = record.counters(transfer);
        Some(TransferCounter { counters, is_shared: lane.is_shared })
    }

    fn record(&self, block: BlockIndex, slot: usize) -> Result<&FileRecord> {
        self.segment.entry(place_of(block, slot) as usize * PLACE_BYTES)
    }

    /// The record of a file in a block, an unused one, or record 0.
    #[inline(never)]
    fn find(&self, lane: Lane, open: OpenWords<'_>) -> Option<&FileRecord> {
        let OpenWords { place, inode, parent } = open;
        let FileRecords(records) = self.segment.entry(records_of(lane.block)).ok()?;
        let mut slot = slot_of(first_of(inode), 0);
        for _ in 0..PROBES {
            let record = records.get(slot)?;
            let key = record.key.load(Acquire);
            let is_taken = key == 0 && {
                let taken = record.key.compare_exchange(0, inode.0, AcqRel, Acquire);
                if taken.is_ok() {
                    record.inode.store(inode.0, Relaxed);
                    record.parent.store(parent.load(Relaxed), Relaxed);
                    record.began.store(crate::sync::real_nanos(), Release);
                }
                taken.is_ok()
            };
            if is_taken || key == inode.0 {
                // Its first transfer. A record that is closed and a process after fork look again.
                if place.load(Relaxed) == 0 {
                    add(&record.opens, 1, lane.is_shared);
                }
                place.store(place_of(lane.block, slot), Relaxed);
                return Some(record);
            }
            slot = if slot + 1 < RECORD_COUNT { slot + 1 } else { 1 };
        }
        let Block { merged, .. } = self.block(lane.block).ok()?;
        let nobodys = place_of(lane.block, 0);
        if place.load(Relaxed) != nobodys {
            // An open file whose transfers begin to be counted together with those of others.
            add(merged, 1, lane.is_shared);
            place.store(nobodys, Relaxed);
        }
        records.first()
    }

    /// Counts bytes that came from this place, for a read that has begun. They may be more than it asked
    /// for: an extent comes whole.
    #[cold]
    pub fn count_source(&self, lane: Lane, inode: Inode, source: SlowSource, bytes: u64) {
        let first = first_of(inode);
        let known = (0..PROBES).find_map(|step| {
            let record = self.record(lane.block, slot_of(first, step)).ok()?;
            (record.key.load(Acquire) == inode.0).then_some(record)
        });
        let Some(record) = known.or_else(|| self.record(lane.block, 0).ok()) else { return };
        if let Some(counter) = record.sources.get(source as usize) {
            add(counter, bytes, lane.is_shared);
        }
    }

    // ---- the gatherer's side ----

    /// Open files whose transfers were counted in record 0, so far.
    #[must_use]
    pub fn merged(&self, block: BlockIndex) -> u64 {
        self.block(block).map_or(0, |block| block.merged.load(Relaxed))
    }

    /// Calls `each` for the records of a block that are in use, and for record 0.
    pub fn each_record(&self, block: BlockIndex, each: &mut dyn FnMut(RecordSample)) {
        for slot in 0..RECORD_COUNT {
            let Ok(record) = self.record(block, slot) else { return };
            let key = record.key.load(Acquire);
            if slot > 0 && key == 0 {
                continue;
            }
            let inode = if key == CLOSED { record.inode.load(Relaxed) } else { key };
            each(RecordSample {
                slot: slot as u32,
                inode: Inode(inode),
                parent: Inode(record.parent.load(Relaxed)),
                began: record.began.load(Acquire),
                opens: record.opens.load(Relaxed),
                is_closed: key == CLOSED,
                sources: record.sources.each_ref().map(|bytes| bytes.load(Relaxed)),
                reads: record.reads.sample(),
                writes: record.writes.sample(),
            });
        }
    }

    /// Lets a record take no more transfers. A thread in a transfer may still count it.
    pub fn close_record(&self, block: BlockIndex, record: &RecordSample) {
        if let Ok(found) = self.record(block, record.slot as usize) {
            let _ = found.key.compare_exchange(record.inode.0, CLOSED, AcqRel, Relaxed);
        }
    }

    /// Frees a closed record whose counters have been read twice without a change.
    pub fn free_record(&self, block: BlockIndex, record: &RecordSample) {
        let Ok(found) = self.record(block, record.slot as usize) else { return };
        if record.slot == 0 || found.key.load(Acquire) != CLOSED {
            return;
        }
        let at = place_of(block, record.slot as usize) as usize * PLACE_BYTES;
        // All but the key.
        let _ = self.segment.zero(at + 8, RECORD_BYTES - 8);
        found.key.store(0, Release);
    }
}

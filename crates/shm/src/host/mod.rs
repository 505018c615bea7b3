//! The host segment: what the processes of one host share about open files, without any message.
//!
//! - `vnodes`: open inodes: open count, size (`sizes`), unreported size, in-flight transfers
//!   (`in_flight`).
//! - `files`: open file descriptions: offset and flags, shared by fork, dup and exec as POSIX says.
//! - `processes`: the descriptor table of each process, so that it survives exec and so that the
//!   daemon finds the files that a killed process had open.
//! - `watches`: what the kernels behind mounts of this host cache.
//! - `pages`: writers of files, and uses of files by other hosts.
//! - `pending`: writes that are on their way to other hosts.
//! - `homes`: whether it agrees with the logs of this host's services, where these may be elsewhere.
//! - `owners`: owners of locks. `releases`: locks to be released, until the shards of their files
//!   know.
//! - `throttled`: that a daemon holds back requests because of a limit.
//! - `open_sequence`: numbers that tell a shard of another host whether an open or a last close is
//!   newer.
//!
//! One segment for each host, made by the first daemon; every daemon of the host and every client
//! maps it for reading and writing. A client that is killed at any point leaves at worst a count
//! one too high, which costs space, never contents, until no process of the host uses the instance:
//! then the daemon resets what is still counted.

use crate::segment::{self, Segment};
use crate::sync::{AtomicU32, AtomicU64};
use crate::wait;
use core::ops::Range;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use wire::errno::{Errno, Result};

pub mod vnodes;

mod in_flight;
mod pending;
mod sizes;

pub mod files;

pub mod processes;

pub mod owners;

mod open_sequence;

mod throttled;

pub mod watches;

pub mod pages;

pub mod releases;

mod homes;

pub use files::{File, OfdIndex, SPARE_DIRECTORY, SPARE_MARKS};
pub use pending::{EndedPushes, PushEpoch};
pub use processes::{Descriptor, ProcessIndex, Tenant};
pub use sizes::{SizeSnapshot, TruncateEpoch, Truncated};
pub use vnodes::{Closed, Vnode, VnodeIndex};

/// Offsets of the words of the header, each in a cache line of its own.
mod header {
    pub(super) const MAGIC: usize = 0;
    pub(super) const OPEN_SEQUENCE: usize = 64;
    pub(super) const THROTTLED: usize = 192;
    /// The starts of the daemons (`pending`).
    pub(super) const STARTS: usize = 256;
    pub(super) const END: usize = STARTS + super::pending::STARTS_BYTES;
}

const MAGIC: u32 = 0x4642_4834;
const TABLES: usize = 4096;
const PAGE: usize = 4096;

/// Length of the segment. Memory is touched as it is used.
pub const HOST_BYTES: usize = homes::END;

/// The mapped host segment.
pub struct HostSegment {
    segment: Segment,
}

impl HostSegment {
    /// Sees nothing of the shared memory any more (`Segment::detach`).
    pub fn detach(&self) {
        self.segment.detach();
    }

    /// Takes a mapping. A fresh one, all zeros, is valid as it is.
    ///
    /// # Errors
    /// `EINVAL` if it is too short or not a host segment.
    pub fn new(segment: Segment) -> Result<HostSegment> {
        if segment.len() < HOST_BYTES {
            return Err(Errno::EINVAL);
        }
        let magic = segment.word32(header::MAGIC)?;
        match magic.compare_exchange(0, MAGIC, AcqRel, Acquire) {
            Ok(_) | Err(MAGIC) => Ok(HostSegment { segment }),
            Err(_) => Err(Errno::EINVAL),
        }
    }

    /// Creates or opens the segment of a host, and makes the memory of everything present that
    /// clients use without asking for it first.
    ///
    /// # Errors
    /// `ENOSPC` if there is no memory for it; errors of the operating system.
    pub fn create_or_open(path: &core::ffi::CStr) -> Result<(HostSegment, rustix::fd::OwnedFd)> {
        let (segment, fd, _) = Segment::create(path, HOST_BYTES)?;
        for range in HostSegment::PRESENT {
            segment::allocate(&fd, range)?;
        }
        Ok((HostSegment::new(segment)?, fd))
    }

    /// Bytes of a segment that has one mount: their memory is present when programs begin.
    #[must_use]
    pub const fn present_bytes() -> usize {
        let [a, b, c, d, e] = HostSegment::PRESENT;
        let ends = a.end + b.end + c.end + d.end + e.end;
        ends - (a.start + b.start + c.start + d.start + e.start) + watches::TABLE_BYTES
    }

    /// Ranges whose memory is present from the start. The entries behind those of the lanes, the
    /// other blocks of descriptors, and words of mounts get theirs when they are taken.
    const PRESENT: [Range<usize>; 5] = [
        0..vnodes::LANES_END,
        vnodes::END..files::LANES_END,
        files::END..processes::BLOCKS_PRESENT_END,
        processes::END..watches::WORDS,
        watches::END..homes::END,
    ];
}

/// A thread that holds a lock over a few stores for this long is stopped.
const STOPPED_MICROS: u64 = 1_000_000;

/// A lock word that holds the number of its owner's thread.
///
/// A dead owner is replaced. A signal handler that finds the lock held by the very thread that it
/// interrupted proceeds without it: the lock guards a few stores, each atomic.
struct Guard<'a> {
    word: &'a AtomicU32,
    owned: bool,
}

/// In a lock word: a thread proceeded without the lock while its owner had it.
const PASSED: u32 = 1 << 31;

#[inline]
fn lock(word: &AtomicU32) -> Guard<'_> {
    lock_for(word, u64::MAX)
}

/// As `lock`, for a lock held over a few stores: an owner that is alive and still holds it after a
/// second is stopped, and the caller proceeds without it.
#[inline]
fn lock_briefly(word: &AtomicU32) -> Guard<'_> {
    lock_for(word, STOPPED_MICROS)
}

#[inline]
fn lock_for(word: &AtomicU32, micros_max: u64) -> Guard<'_> {
    let me = wait::thread_id();
    match word.compare_exchange(0, me, Acquire, Relaxed) {
        Ok(_) => Guard { word, owned: true },
        Err(_) => wait_for(word, me, micros_max),
    }
}

/// As `lock_for`, where the lock was not free.
#[cold]
#[inline(never)]
fn wait_for(word: &AtomicU32, me: u32, micros_max: u64) -> Guard<'_> {
    let mut backoff = wait::Backoff::new();
    let (mut begun, mut naps) = (None, wait::Naps::new());
    loop {
        match word.compare_exchange_weak(0, me, Acquire, Relaxed) {
            Ok(_) => return Guard { word, owned: true },
            Err(holder) if holder & !PASSED == me => {
                word.fetch_or(PASSED, SeqCst);
                return Guard { word, owned: false };
            }
            Err(holder) => {
                if backoff.pause() == wait::Next::Poll {
                    continue;
                }
                if backoff.is_dead(holder & !PASSED)
                    && word.compare_exchange(holder, me, Acquire, Relaxed).is_ok()
                {
                    return Guard { word, owned: true };
                }
                let now = wait::now_micros();
                let since = *begun.get_or_insert(now);
                if now >= since.saturating_add(micros_max) && pass(word) {
                    return Guard { word, owned: false };
                }
                // The owner may wait for a daemon.
                naps.pause(now);
            }
        }
    }
}

/// Records that a thread proceeds without the lock. False if nobody has it by now.
fn pass(word: &AtomicU32) -> bool {
    let passed = |holder: u32| (holder != 0).then_some(holder | PASSED);
    word.fetch_update(SeqCst, SeqCst, passed).is_ok()
}

impl Guard<'_> {
    /// True if the caller has the lock and no other thread proceeds without it.
    fn is_sole(&self) -> bool {
        self.owned && self.word.load(SeqCst) & PASSED == 0
    }
}

impl Drop for Guard<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.owned {
            self.word.store(0, Release);
        }
    }
}

/// Where the search of a bitmap starts.
struct Hint<'a> {
    /// The word of the bitmap to start at, counted from `base`.
    word: &'a AtomicU32,
    base: usize,
}

/// Threads take entries from this many lanes, each a cache line of the bitmap with a hint of its
/// own: two processes that open files change no word that the other changes.
const LANES: usize = 32;
/// Words of a lane in each bitmap.
const LANE_WORDS: usize = 8;
/// Offset of the hints: a cache line for each lane, behind the header.
const LANE_HINTS: usize = 2048;

const _: () = assert!(header::END <= LANE_HINTS && LANE_HINTS + LANES * 64 <= TABLES);

/// The hint of a lane; `field` selects the bitmap.
fn lane(segment: &Segment, lane: usize, field: usize) -> Result<Hint<'_>> {
    let lane = lane % LANES;
    let word = segment.word32(LANE_HINTS + lane * 64 + field)?;
    Ok(Hint { word, base: lane * LANE_WORDS })
}

/// Entries of all lanes: their memory is present from the start.
const LANE_ENTRIES: usize = LANES * LANE_WORDS * 64;

/// A table of entries with a bitmap, from which threads take entries by their lanes.
#[derive(Clone, Copy)]
struct Entries {
    bitmap: usize,
    base: usize,
    count: usize,
    bytes: usize,
    /// The field of a lane that is its hint.
    field: usize,
}

impl Entries {
    /// Takes an entry from the calling thread's lane, or from the following ones. Inlined where the
    /// table is a constant.
    #[inline(always)]
    fn take(self, segment: &Segment) -> Result<u32> {
        let hint = lane(segment, wait::thread_id() as usize, self.field)?;
        let entry = take_bit(segment, self.bitmap, self.count / 64, hint.start())?;
        if (entry as usize) < LANE_ENTRIES {
            hint.set(entry as usize / 64);
            return Ok(entry);
        }
        self.take_behind(segment, entry, &hint)
    }

    /// Makes the memory of a taken entry present that is in no lane. If there is none, the entry is
    /// returned for another one that has memory.
    #[cold]
    fn take_behind(self, segment: &Segment, entry: u32, hint: &Hint<'_>) -> Result<u32> {
        let Err(errno) = self.reserve(segment, entry) else {
            hint.set(entry as usize / 64);
            return Ok(entry);
        };
        give_bit(segment, self.bitmap, entry)?;
        // The lanes before that of the thread.
        if let Ok(entry) = take_bit(segment, self.bitmap, LANE_ENTRIES / 64, 0) {
            return Ok(entry);
        }
        // Those behind the lanes that were in use before: their memory stays.
        let each = (PAGE / self.bytes).clamp(1, 64);
        for first in (LANE_ENTRIES..self.count).step_by(each) {
            let word = segment.word64(self.bitmap + first / 64 * 8)?;
            let neighbours = (u64::MAX >> (64 - each)) << (first % 64);
            let Some(bit) = take_bit_of(word, neighbours) else { continue };
            let entry = (first / 64 * 64) as u32 + bit;
            if self.reserve(segment, entry).is_ok() {
                return Ok(entry);
            }
            give_bit(segment, self.bitmap, entry)?;
        }
        Err(errno)
    }

    fn reserve(self, segment: &Segment, entry: u32) -> Result<()> {
        segment.reserve(self.base + entry as usize * self.bytes, self.bytes)
    }
}

/// Returns an entry to its lane.
fn give_entry(segment: &Segment, at: usize, entry: u32, field: usize) -> Result<()> {
    give_bit(segment, at, entry)?;
    lane(segment, entry as usize / 64 / LANE_WORDS, field)?.set(entry as usize / 64);
    Ok(())
}

impl Hint<'_> {
    fn start(&self) -> usize {
        self.base.wrapping_add(self.word.load(Relaxed) as usize)
    }

    fn set(&self, index: usize) {
        let word = index.wrapping_sub(self.base) as u32;
        if self.word.load(Relaxed) != word {
            self.word.store(word, Relaxed);
        }
    }
}

/// Takes a free bit of a bitmap of `words` words at `at`, from word `start` on.
#[inline]
fn take_bit(segment: &Segment, at: usize, words: usize, start: usize) -> Result<u32> {
    let mut index = start % words;
    for _ in 0..words {
        if let Some(bit) = take_bit_of(segment.word64(at + 8 * index)?, u64::MAX) {
            return Ok(index as u32 * 64 + bit);
        }
        index = if index + 1 < words { index + 1 } else { 0 };
    }
    Err(Errno::ENFILE)
}

/// Takes a free bit of a word, one of `among`.
#[inline]
fn take_bit_of(word: &AtomicU64, among: u64) -> Option<u32> {
    let mut value = word.load(Relaxed);
    while !value & among != 0 {
        let bit = (!value & among).trailing_zeros();
        value = word.fetch_or(1 << bit, AcqRel);
        if value & (1 << bit) == 0 {
            return Some(bit);
        }
    }
    None
}

/// Every bit that is set.
fn each_bit(segment: &Segment, at: usize, words: usize, each: &mut dyn FnMut(u32)) {
    for index in 0..words {
        let mut word = segment.word64(at + 8 * index).map_or(0, |word| word.load(Acquire));
        while word != 0 {
            each(index as u32 * 64 + word.trailing_zeros());
            word &= word - 1;
        }
    }
}

/// Frees a bit.
fn give_bit(segment: &Segment, at: usize, bit: u32) -> Result<()> {
    segment.word64(at + 8 * (bit as usize / 64))?.fetch_and(!(1 << (bit % 64)), Release);
    Ok(())
}

const _: () = assert!(TABLES.is_multiple_of(64));

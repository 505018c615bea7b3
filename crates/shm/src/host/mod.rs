//! The host segment: what the processes of one host share about open files, without any message.
//!
//! - `vnodes`: the files that are open here: how often, how long (`lengths`), what is not told yet.
//! - `files`: open file descriptions: offset and flags, shared by fork, dup and exec as POSIX says.
//! - `processes`: the descriptor table of each process, so that it survives exec and so that the
//!   daemon finds what a killed process had open.
//! - `watches`: what the kernels behind mounts of this host remember.
//! - `pages`: who began to write to files, and what other hosts do with them.
//! - `releases`: locks that are to end, until the shards of their files know.
//! - `turns`: numbers that tell a shard of another host whether an opening or a last close is newer.
//!
//! One segment for each host, made by whichever daemon comes first; every daemon of the host and
//! every client maps it for reading and writing. A client that is killed at any point leaves at
//! worst a count one too high, which costs space, never contents, until no process of the host uses
//! the instance: then the daemon takes back what is still counted.

use crate::segment::Segment;
use crate::sync::{self, AtomicU32};
use crate::wait;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use wire::errno::{Errno, Result};

pub mod vnodes;

mod flights;
mod lengths;
mod pending;

pub mod files;

pub mod processes;

pub mod owners;

mod turns;

pub mod watches;

pub mod pages;

pub mod releases;

pub use files::{File, OfdIndex};
pub use lengths::{Cut, Cuts, Seen};
pub use processes::{Descriptor, ProcessIndex, Tenant};
pub use vnodes::{Closed, Vnode, VnodeIndex};

const MAGIC_AT: usize = 0;
const MAGIC: u32 = 0x4642_4832;
const TABLES: usize = 4096;

/// Length of the segment. Memory is touched as it is used.
pub const HOST_BYTES: usize = releases::END;

/// The mapped host segment.
pub struct HostSegment {
    segment: Segment,
}

impl HostSegment {
    /// Takes a mapping. A fresh one, all zeros, is valid as it is.
    ///
    /// # Errors
    /// `EINVAL` if it is too short or something else.
    pub fn new(segment: Segment) -> Result<HostSegment> {
        if segment.len() < HOST_BYTES {
            return Err(Errno::EINVAL);
        }
        let magic = segment.word32(MAGIC_AT)?;
        match magic.compare_exchange(0, MAGIC, AcqRel, Acquire) {
            Ok(_) | Err(MAGIC) => Ok(HostSegment { segment }),
            Err(_) => Err(Errno::EINVAL),
        }
    }

    /// Makes or opens the segment of a host.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn create_or_open(path: &core::ffi::CStr) -> Result<(HostSegment, rustix::fd::OwnedFd)> {
        let (segment, fd, _) = Segment::create(path, HOST_BYTES)?;
        Ok((HostSegment::new(segment)?, fd))
    }
}

/// A thread that holds a lock of a few stores for so long is stopped.
const STOPPED_MICROS: u64 = 1_000_000;

/// A lock word holding the number of the thread that has it.
///
/// A holder that died is replaced. A signal handler that finds the lock held by the very thread
/// that it interrupted goes on without it: what the lock guards is a few stores, each atomic.
struct Guard<'a> {
    word: &'a AtomicU32,
    owned: bool,
}

/// In a lock word: somebody went on without the lock while its holder had it.
const PASSED: u32 = 1 << 31;

fn lock(word: &AtomicU32) -> Guard<'_> {
    lock_for(word, u64::MAX)
}

/// As `lock`, for what is held for a few stores: who lives and still holds it after a second is
/// stopped, and the caller goes on without it.
fn lock_briefly(word: &AtomicU32) -> Guard<'_> {
    lock_for(word, STOPPED_MICROS)
}

fn lock_for(word: &AtomicU32, micros_max: u64) -> Guard<'_> {
    let me = wait::thread_id();
    let mut backoff = wait::Backoff::new();
    let mut give_up = None;
    loop {
        match word.compare_exchange_weak(0, me, Acquire, Relaxed) {
            Ok(_) => return Guard { word, owned: true },
            Err(holder) if holder & !PASSED == me => {
                word.fetch_or(PASSED, SeqCst);
                return Guard { word, owned: false };
            }
            Err(holder) => {
                if backoff.pause() == wait::Next::Look {
                    continue;
                }
                if wait::is_dead(holder & !PASSED)
                    && word.compare_exchange(holder, me, Acquire, Relaxed).is_ok()
                {
                    return Guard { word, owned: true };
                }
                let now = wait::now_micros();
                let is_over = now >= *give_up.get_or_insert(now.saturating_add(micros_max));
                if is_over && pass(word) {
                    return Guard { word, owned: false };
                }
                sync::sched_yield();
            }
        }
    }
}

/// Says that somebody goes on without the lock. False if nobody has it by now.
fn pass(word: &AtomicU32) -> bool {
    let passed = |holder: u32| (holder != 0).then_some(holder | PASSED);
    word.fetch_update(SeqCst, SeqCst, passed).is_ok()
}

impl Guard<'_> {
    /// True if the caller has the lock and nobody goes on without it.
    fn is_sole(&self) -> bool {
        self.owned && self.word.load(SeqCst) & PASSED == 0
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        if self.owned {
            self.word.store(0, Release);
        }
    }
}

/// Where a bitmap is searched first.
struct Hint<'a> {
    /// Counted from `base`, the word of the bitmap to look at.
    word: &'a AtomicU32,
    base: usize,
}

/// Threads take rows from so many lanes, each a cache line of the bitmap with a hint of its own: two
/// processes that open files change no word that the other changes.
const LANES: usize = 32;
/// Words of a lane in each bitmap.
const LANE_WORDS: usize = 8;
/// The hints: a cache line for each lane, behind what the header holds.
const LANE_HINTS: usize = 2048;

const _: () = assert!(LANE_HINTS + LANES * 64 <= TABLES);

/// The hint of a lane; `field` says of which bitmap.
fn lane(segment: &Segment, lane: usize, field: usize) -> Result<Hint<'_>> {
    let lane = lane % LANES;
    let word = segment.word32(LANE_HINTS + lane * 64 + field)?;
    Ok(Hint { word, base: lane * LANE_WORDS })
}

/// Takes a row from the calling thread's lane, or from what follows it.
#[inline]
fn take_row(segment: &Segment, at: usize, words: usize, field: usize) -> Result<u32> {
    let hint = lane(segment, wait::thread_id() as usize, field)?;
    take_bit(segment, at, words, &hint)
}

/// Gives a row back to the lane that it lies in.
fn give_row(segment: &Segment, at: usize, row: u32, field: usize) -> Result<()> {
    let hint = lane(segment, row as usize / 64 / LANE_WORDS, field)?;
    give_bit(segment, at, row, &hint)
}

impl Hint<'_> {
    fn set(&self, index: usize) {
        let word = index.wrapping_sub(self.base) as u32;
        if self.word.load(Relaxed) != word {
            self.word.store(word, Relaxed);
        }
    }
}

/// Takes a free bit of a bitmap of `words` words at `at`, from `hint` on.
#[inline]
fn take_bit(segment: &Segment, at: usize, words: usize, hint: &Hint<'_>) -> Result<u32> {
    let start = hint.base.wrapping_add(hint.word.load(Relaxed) as usize) % words;
    for step in 0..words {
        let index = (start + step) % words;
        let word = segment.word64(at + 8 * index)?;
        let mut value = word.load(Relaxed);
        while value != u64::MAX {
            let bit = (!value).trailing_zeros();
            let before = word.fetch_or(1 << bit, AcqRel);
            if before & (1 << bit) == 0 {
                hint.set(index);
                return Ok(index as u32 * 64 + bit);
            }
            value = before;
        }
    }
    Err(Errno::ENFILE)
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

/// Gives a bit back.
fn give_bit(segment: &Segment, at: usize, bit: u32, hint: &Hint<'_>) -> Result<()> {
    let index = bit as usize / 64;
    segment.word64(at + 8 * index)?.fetch_and(!(1 << (bit % 64)), Release);
    hint.set(index);
    Ok(())
}

const _: () = assert!(TABLES.is_multiple_of(64));

//! Blocks: which of them are in use, by which process and thread, and with which tags.
//!
//! A word of the directory: 63..32 pid, 31..3 generation (how often the block was taken), 2 the
//! block is kept by a mount for the process, 1..0 state.
//!
//!   free --take--> taken --tags are written--> live --exec--> ended
//!   live, ended --gathered after the end of the process--> free, and zeros
//!
//! Invariants:
//!  1. A block is taken by compare and exchange of its word, which names the process from then on.
//!  2. Only the gatherer frees a block, when its process is dead, or when the block is ended and its
//!     counters have been read since.
//!  3. Only the gatherer and a program that has just replaced another one by exec change the word of
//!     a live block.

use super::calls::{CLASS_COUNT, ClassCounters};
use super::causes::WAIT_COUNT;
use super::pace::Pace;
use super::{ActivitySegment, BLOCK_BYTES, BLOCK_COUNT, BLOCKS, DIRECTORY, Lane, TAKEN_AT};
use crate::segment::SharedEntry;
use crate::sync::{self, AtomicU32, AtomicU64};
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use wire::errno::{Errno, Result};

const FREE: u64 = 0;
const TAKEN: u64 = 1;
const LIVE: u64 = 2;
const ENDED: u64 = 3;
const STATE: u64 = 3;
const OF_MOUNT: u64 = 4;
const GENERATION_ONE: u64 = 8;
const GENERATION: u64 = 0xffff_fff8;

/// Longest name of a job, in bytes.
pub const JOB_BYTES: usize = 64;
/// Longest name of a program, in bytes, as the kernel keeps it.
pub const PROGRAM_BYTES: usize = 16;

/// Longest tag, in bytes.
pub const TAG_BYTES: usize = 32;

/// Number of a block.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct BlockIndex(pub u32);

/// Text of a fixed length, filled up with zeros.
pub type Label<const N: usize> = [u8; N];

/// The front of `text` as a label.
#[must_use]
pub fn label<const N: usize>(text: &[u8]) -> Label<N> {
    let mut label = [0; N];
    for (to, from) in label.iter_mut().zip(text.iter().take_while(|&&byte| byte != 0)) {
        *to = *from;
    }
    label
}

/// The process, job and user to which operations are attributed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tags {
    /// The job; all zeros: none is known.
    pub job: Label<JOB_BYTES>,
    /// The program.
    pub program: Label<PROGRAM_BYTES>,
    /// A word of the job's own for rules; all zeros: none.
    pub tag: Label<TAG_BYTES>,
    /// The rank of the process in its job.
    pub rank: Option<u32>,
    /// The user, as the process says. The daemon asks the kernel.
    pub uid: u32,
    /// The group, in the same way.
    pub gid: u32,
}

impl Tags {
    /// No tags.
    pub const NONE: Tags = Tags {
        job: [0; JOB_BYTES],
        program: [0; PROGRAM_BYTES],
        tag: [0; TAG_BYTES],
        rank: None,
        uid: u32::MAX,
        gid: u32::MAX,
    };

    /// Number of the user's job, for bounds that its processes share (FNV-1a); two jobs may have the
    /// same.
    #[must_use]
    pub fn account(&self) -> u8 {
        let step = |hash: u32, byte: &u8| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193);
        let hash = self.uid.to_ne_bytes().iter().chain(&self.job).fold(0x811c_9dc5, step);
        (hash >> 24) as u8
    }
}

/// A process for which a block is taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Owner {
    /// Its pid.
    pub pid: u32,
    /// Its start time.
    pub started: u64,
    /// Its tags.
    pub tags: Tags,
    /// A mount counts for it what reaches the mount.
    pub is_by_mount: bool,
}

/// A block in use, as it was read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Taken {
    /// The block.
    pub block: BlockIndex,
    /// Its word in the directory.
    pub word: u64,
    /// Its process. Without tags while it is being set up.
    pub owner: Owner,
    /// When it was taken, in nanoseconds since 1970.
    pub began: u64,
    /// The program was replaced by exec; nobody counts in it any more.
    pub is_ended: bool,
}

/// The first part of a block.
#[repr(C)]
pub(super) struct Block {
    started: AtomicU64,
    began: AtomicU64,
    uid: AtomicU32,
    /// Rank plus one; 0: none.
    rank: AtomicU32,
    /// Calls so far, for sampling their time.
    pub(super) ticks: AtomicU64,
    job: [AtomicU64; JOB_BYTES / 8],
    program: [AtomicU64; PROGRAM_BYTES / 8],
    /// Files whose transfers were counted in record 0 for lack of a record.
    pub(super) merged: AtomicU64,
    gid: AtomicU32,
    _unused: AtomicU32,
    /// Nanoseconds of waiting, by `WaitCause`.
    pub(super) waits: [AtomicU64; WAIT_COUNT],
    tag: [AtomicU64; TAG_BYTES / 8],
    pub(super) classes: [ClassCounters; CLASS_COUNT],
    pub(super) pace: Pace,
}

// SAFETY: atomics, and arrays and structs of atomics in the order of the declaration. WHY: each call
// of a process comes here.
unsafe impl SharedEntry for Block {}

const _: () = assert!(size_of::<Block>() <= super::records::RECORDS);

fn store_label<const N: usize, const W: usize>(words: &[AtomicU64; W], label: &Label<N>) {
    for (word, bytes) in words.iter().zip(label.as_chunks::<8>().0) {
        word.store(u64::from_le_bytes(*bytes), Relaxed);
    }
}

fn load_label<const N: usize, const W: usize>(words: &[AtomicU64; W]) -> Label<N> {
    let mut label = [0; N];
    for (bytes, word) in label.as_chunks_mut::<8>().0.iter_mut().zip(words) {
        *bytes = word.load(Relaxed).to_le_bytes();
    }
    label
}

impl ActivitySegment {
    fn entry_of(&self, block: BlockIndex) -> Result<&AtomicU64> {
        if block.0 as usize >= BLOCK_COUNT {
            return Err(Errno::EIO);
        }
        self.segment.word64(DIRECTORY + block.0 as usize * 8)
    }

    #[inline]
    pub(super) fn block(&self, block: BlockIndex) -> Result<&Block> {
        if block.0 as usize >= BLOCK_COUNT {
            return Err(Errno::EIO);
        }
        self.segment.entry(BLOCKS + block.0 as usize * BLOCK_BYTES)
    }

    /// A block for a process or one of its threads; `None` if there is none left, or no memory.
    ///
    /// `start` is where the search begins, so that processes do not search the same words.
    #[must_use]
    pub fn take(&self, owner: &Owner, start: u32) -> Option<BlockIndex> {
        // Block 0 belongs to nobody.
        let count = BLOCK_COUNT as u32 - 1;
        let block = (0..count)
            .map(|step| BlockIndex(1 + start.wrapping_add(step) % count))
            .find(|&block| self.take_free(block, owner))?;
        let fill = || -> Result<()> {
            self.segment.reserve(BLOCKS + block.0 as usize * BLOCK_BYTES, BLOCK_BYTES)?;
            self.begin_directories(block)?;
            let to = self.block(block)?;
            to.started.store(owner.started, Relaxed);
            to.began.store(sync::real_nanos(), Relaxed);
            to.uid.store(owner.tags.uid, Relaxed);
            to.gid.store(owner.tags.gid, Relaxed);
            to.rank.store(owner.tags.rank.map_or(0, |rank| rank.wrapping_add(1)), Relaxed);
            // Calls are timed now and then, but not always the first of a program.
            to.ticks.store(u64::from(owner.pid.wrapping_mul(0x9e37_79b9) >> 16), Relaxed);
            store_label(&to.job, &owner.tags.job);
            store_label(&to.program, &owner.tags.program);
            store_label(&to.tag, &owner.tags.tag);
            self.begin_pace(to);
            Ok(())
        };
        let word = self.entry_of(block).ok()?;
        if fill().is_err() {
            word.store(word.load(Relaxed) & GENERATION | FREE, Release);
            return None;
        }
        word.store(word.load(Relaxed) & !STATE | LIVE, Release);
        self.note_taken();
        Some(block)
    }

    fn take_free(&self, block: BlockIndex, owner: &Owner) -> bool {
        let Ok(word) = self.entry_of(block) else { return false };
        let seen = word.load(Relaxed);
        if seen & STATE != FREE {
            return false;
        }
        let generation = (seen & GENERATION).wrapping_add(GENERATION_ONE) & GENERATION;
        let mount = if owner.is_by_mount { OF_MOUNT } else { 0 };
        let taken = u64::from(owner.pid) << 32 | generation | mount | TAKEN;
        word.compare_exchange(seen, taken, AcqRel, Relaxed).is_ok()
    }

    /// Wakes the gatherer now and then while many blocks are taken: those of ended processes become
    /// free only when it has read them.
    fn note_taken(&self) {
        let Ok(count) = self.segment.word32(TAKEN_AT) else { return };
        let before = count.fetch_add(1, Relaxed);
        if before.is_multiple_of(BLOCK_COUNT as u32 / 4) {
            sync::wake(count, 1);
        }
    }

    /// Sleeps until many blocks were taken, at most `micros`.
    pub fn sleep(&self, micros: u64) {
        let Ok(count) = self.segment.word32(TAKEN_AT) else { return };
        sync::sleep(count, count.load(Relaxed), micros);
    }

    /// The word of a block in the directory, to learn later whether the block is still the same.
    #[must_use]
    pub fn word_of(&self, block: BlockIndex) -> u64 {
        self.entry_of(block).map_or(0, |word| word.load(Acquire))
    }

    /// Ends the blocks of a process whose program was replaced by exec: the calling thread is its
    /// only one. Those that a mount keeps for it go on.
    pub fn end_blocks_of(&self, pid: u32) {
        for block in (0..BLOCK_COUNT as u32).map(BlockIndex) {
            let Ok(word) = self.entry_of(block) else { return };
            let seen = word.load(Acquire);
            if seen >> 32 == u64::from(pid) && seen & (OF_MOUNT | STATE) == LIVE {
                // If the exchange fails, the gatherer freed it.
                let _ = word.compare_exchange(seen, seen & !STATE | ENDED, AcqRel, Relaxed);
            }
        }
    }

    // ---- the gatherer's side ----

    /// Calls `each` for every block in use, and for block 0 with an owner without a pid.
    pub fn each_taken(&self, each: &mut dyn FnMut(Taken)) {
        for block in (0..BLOCK_COUNT as u32).map(BlockIndex) {
            let word = self.word_of(block);
            let is_nobodys = block == Lane::NOBODY.block;
            if !is_nobodys && word & STATE == FREE {
                continue;
            }
            let Some(taken) = self.taken(block, word) else { return };
            each(taken);
        }
    }

    /// A block in use by a mount for a process, as it is now.
    #[must_use]
    pub fn taken_by_mount(&self, block: BlockIndex) -> Option<Taken> {
        let word = self.word_of(block);
        let is_live = matches!(word & STATE, LIVE | ENDED) && word & OF_MOUNT != 0;
        let taken = is_live.then(|| self.taken(block, word)).flatten()?;
        (self.word_of(block) == word).then_some(taken)
    }

    /// A block with this word in the directory; `None` if there is no such block.
    fn taken(&self, block: BlockIndex, word: u64) -> Option<Taken> {
        let from = self.block(block).ok()?;
        let (pid, is_by_mount) = ((word >> 32) as u32, word & OF_MOUNT != 0);
        if word & STATE == TAKEN {
            let owner = Owner { pid, started: 0, tags: Tags::NONE, is_by_mount };
            return Some(Taken { block, word, owner, began: 0, is_ended: false });
        }
        let is_nobodys = block == Lane::NOBODY.block;
        let tags = Tags {
            job: load_label(&from.job),
            program: load_label(&from.program),
            tag: load_label(&from.tag),
            rank: from.rank.load(Relaxed).checked_sub(1),
            uid: if is_nobodys { u32::MAX } else { from.uid.load(Relaxed) },
            gid: if is_nobodys { u32::MAX } else { from.gid.load(Relaxed) },
        };
        let owner = Owner { pid, started: from.started.load(Relaxed), tags, is_by_mount };
        let began = from.began.load(Relaxed);
        Some(Taken { block, word, owner, began, is_ended: word & STATE == ENDED })
    }

    /// Frees a block as it was read. False if it changed meanwhile.
    #[must_use]
    pub fn free(&self, taken: &Taken) -> bool {
        let Ok(word) = self.entry_of(taken.block) else { return false };
        // Nobody takes it while it is being cleared.
        let clearing = taken.word & !STATE | TAKEN;
        if word.compare_exchange(taken.word, clearing, AcqRel, Relaxed).is_err() {
            return false;
        }
        let at = BLOCKS + taken.block.0 as usize * BLOCK_BYTES;
        let is_present =
            taken.word & STATE != TAKEN || self.segment.reserve(at, BLOCK_BYTES).is_ok();
        if is_present {
            let _ = self.segment.zero(at, BLOCK_BYTES);
        }
        word.store(taken.word & GENERATION | FREE, Release);
        true
    }
}

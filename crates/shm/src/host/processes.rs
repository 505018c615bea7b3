//! Descriptor tables: for each process, which descriptor stands for which open file.
//!
//! Layout: rows of 320 bytes: pid u32, state u32, start time u64, then 64 block numbers (u32, plus
//! one; 0: none). Behind them a bitmap of blocks and the blocks: 1024 descriptors of 4 bytes each:
//! open file + 1, top bit: close on exec. A state is what the row is now in its lowest two bits, and
//! above them its generation: how often it was taken.
//!
//! A row belongs to a process by pid and start time, so that a number that is used again by the
//! kernel is not taken for the process before; and who takes a table apart names its generation, so
//! that a row that was used again meanwhile is not taken for the table that was looked at.

use super::{Hint, HostSegment, OfdIndex, files, give_bit, take_bit};
use crate::segment::Row;
use crate::sync::{AtomicU32, AtomicU64};
use core::num::NonZeroU32;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use wire::errno::{Errno, Result};

/// Most processes of a host that use the instance at a time.
pub const PROCESS_COUNT: usize = 4096;
const BLOCKS_EACH: usize = 64;
const BLOCK_DESCRIPTORS: usize = 1024;
const BLOCK_COUNT: usize = 8192;
const ROW: usize = 320;
const ROWS: usize = files::END;
const BITMAP: usize = ROWS + PROCESS_COUNT * ROW;
const BLOCKS: usize = BITMAP + BLOCK_COUNT / 8;
pub(super) const END: usize = BLOCKS + BLOCK_COUNT * BLOCK_DESCRIPTORS * 4;
const HINT_AT: usize = 68;

const FREE: u32 = 0;
const TAKEN: u32 = 1;
const LIVE: u32 = 2;
const DYING: u32 = 3;
/// The bits of a state that say which of these it is.
const KIND: u32 = 3;
/// What one generation more adds to a state.
const GENERATION_ONE: u32 = 4;

const fn state_of(generation: u32, kind: u32) -> u32 {
    generation.wrapping_mul(GENERATION_ONE) | kind
}

/// Bit of a start time: the copy of a table that no child has adopted yet.
const NOT_ADOPTED: u64 = 1 << 63;

const CLOSE_ON_EXEC: u32 = 1 << 31;

/// The words of a row.
#[repr(C)]
struct Process {
    pid: AtomicU32,
    state: AtomicU32,
    started: AtomicU64,
    /// Numbers of blocks plus one; 0: none.
    blocks: [AtomicU32; BLOCKS_EACH],
}

// SAFETY: atomics in the order of the list above. WHY: each call on a descriptor comes here.
unsafe impl Row for Process {}

const _: () = assert!(size_of::<Process>() <= ROW && ROW.is_multiple_of(8));

/// A process's descriptor table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProcessIndex(pub u32);

/// The word of one descriptor.
#[derive(Clone, Copy)]
pub struct Descriptor<'a>(&'a AtomicU32);

impl Descriptor<'_> {
    /// The number, plus one, of the open file that it stands for now.
    #[must_use]
    #[inline]
    pub fn number(self) -> Option<NonZeroU32> {
        NonZeroU32::new(self.0.load(SeqCst) & !CLOSE_ON_EXEC)
    }

    /// True if that is its number.
    #[must_use]
    #[inline]
    pub fn is(self, number: NonZeroU32) -> bool {
        self.0.load(SeqCst) & !CLOSE_ON_EXEC == number.get()
    }
}

/// A table in use, as it was seen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tenant {
    /// Its row.
    pub process: ProcessIndex,
    /// Which use of the row it is.
    pub generation: u32,
    /// Whose it is; of a copy that no child has adopted: the parent.
    pub pid: u32,
    /// When that process began.
    pub started: u64,
    /// False: a copy that no child has adopted yet.
    pub is_adopted: bool,
}

impl HostSegment {
    #[inline]
    fn process(&self, process: ProcessIndex) -> Result<&Process> {
        if process.0 as usize >= PROCESS_COUNT {
            return Err(Errno::EIO);
        }
        self.segment.row(ROWS + process.0 as usize * ROW)
    }

    /// A table for a process that has none.
    ///
    /// # Errors
    /// `ENFILE` if there are too many processes.
    pub fn process_register(&self, pid: u32, started: u64) -> Result<ProcessIndex> {
        for index in 0..PROCESS_COUNT as u32 {
            if HostSegment::take_use(&self.process(ProcessIndex(index))?.state, FREE) {
                self.process_settle(ProcessIndex(index), pid, started)?;
                return Ok(ProcessIndex(index));
            }
        }
        Err(Errno::ENFILE)
    }

    /// Says whose table it is: of a child, once it knows its own number.
    ///
    /// # Errors
    /// `EIO` for a number that is none, or if the table was taken apart meanwhile.
    pub fn process_adopt(&self, process: ProcessIndex, pid: u32, started: u64) -> Result<()> {
        if !HostSegment::take_use(&self.process(process)?.state, LIVE) {
            return Err(Errno::EIO);
        }
        self.process_settle(process, pid, started)
    }

    /// Begins a new use of a row that is `kind`; until it is settled nobody else touches it.
    fn take_use(state: &AtomicU32, kind: u32) -> bool {
        let seen = state.load(Relaxed);
        let taken = (seen & !KIND).wrapping_add(GENERATION_ONE) | TAKEN;
        seen & KIND == kind && state.compare_exchange(seen, taken, AcqRel, Relaxed).is_ok()
    }

    fn process_settle(&self, process: ProcessIndex, pid: u32, started: u64) -> Result<()> {
        let row = self.process(process)?;
        row.pid.store(pid, Relaxed);
        row.started.store(started, Relaxed);
        row.state.store(row.state.load(Relaxed) & !KIND | LIVE, Release);
        Ok(())
    }

    /// The table of a process, after exec.
    #[must_use]
    pub fn process_find(&self, pid: u32, started: u64) -> Option<ProcessIndex> {
        (0..PROCESS_COUNT as u32)
            .map(ProcessIndex)
            .find(|&process| self.process_identity(process) == Some((pid, started)))
    }

    /// Whose table it is, if it is in use: pid and start time.
    #[must_use]
    pub fn process_identity(&self, process: ProcessIndex) -> Option<(u32, u64)> {
        let row = self.process(process).ok()?;
        if row.state.load(Acquire) & KIND != LIVE {
            return None;
        }
        Some((row.pid.load(Relaxed), row.started.load(Relaxed)))
    }

    /// True if the row is still in the use of that generation.
    #[must_use]
    pub fn process_is_used(&self, process: ProcessIndex, generation: u32) -> bool {
        let state = self.process(process).map_or(FREE, |row| row.state.load(Acquire));
        state & KIND != FREE && state & !KIND == state_of(generation, 0)
    }

    /// How often the row was used: an owner of locks is (row, generation).
    #[must_use]
    pub fn process_generation(&self, process: ProcessIndex) -> u32 {
        self.process(process).map_or(0, |row| row.state.load(Relaxed) / GENERATION_ONE)
    }

    #[inline]
    fn descriptor(&self, process: ProcessIndex, fd: u32) -> Option<&AtomicU32> {
        let blocks = &self.process(process).ok()?.blocks;
        let block = blocks.get(fd as usize / BLOCK_DESCRIPTORS)?.load(Acquire);
        self.descriptor_in(block, fd as usize % BLOCK_DESCRIPTORS)
    }

    #[inline]
    fn descriptor_in(&self, block: u32, within: usize) -> Option<&AtomicU32> {
        // No block is the number zero, which is one too large then.
        let block = block.wrapping_sub(1) as usize;
        if block >= BLOCK_COUNT {
            return None;
        }
        self.segment.word32(BLOCKS + (block * BLOCK_DESCRIPTORS + within) * 4).ok()
    }

    fn parse(word: u32) -> Option<(OfdIndex, bool)> {
        let index = (word & !CLOSE_ON_EXEC).checked_sub(1)?;
        Some((OfdIndex(index), word & CLOSE_ON_EXEC != 0))
    }

    /// What `fd` stands for, and whether exec closes it.
    #[must_use]
    #[inline]
    pub fn process_get(&self, process: ProcessIndex, fd: u32) -> Option<(OfdIndex, bool)> {
        HostSegment::parse(self.descriptor(process, fd)?.load(Acquire))
    }

    /// The word of `fd`, for who looks at it more than once. `None`: it never stood for anything.
    #[must_use]
    #[inline]
    pub fn process_descriptor(&self, process: ProcessIndex, fd: u32) -> Option<Descriptor<'_>> {
        self.descriptor(process, fd).map(Descriptor)
    }

    /// What `fd` stands for, which from now on stands for nothing. The reference is the caller's, and
    /// no other caller's.
    #[must_use]
    #[inline]
    pub fn process_take(&self, process: ProcessIndex, fd: u32) -> Option<(OfdIndex, bool)> {
        HostSegment::parse(self.descriptor(process, fd)?.swap(0, SeqCst))
    }

    /// Sets what `fd` stands for. References are the caller's to count. Returns what it stood for;
    /// at no moment it stands for nothing in between.
    ///
    /// # Errors
    /// `EMFILE` for too large a descriptor, `ENFILE` if there is no block left.
    pub fn process_set(
        &self,
        process: ProcessIndex,
        fd: u32,
        to: Option<(OfdIndex, bool)>,
    ) -> Result<Option<(OfdIndex, bool)>> {
        let word = to.map_or(0, |(file, close_on_exec)| {
            (file.0 + 1) | if close_on_exec { CLOSE_ON_EXEC } else { 0 }
        });
        if let Some(descriptor) = self.descriptor(process, fd) {
            return Ok(HostSegment::parse(descriptor.swap(word, SeqCst)));
        }
        if word == 0 {
            return Ok(None);
        }
        let blocks = &self.process(process)?.blocks;
        let slot = blocks.get(fd as usize / BLOCK_DESCRIPTORS).ok_or(Errno::EMFILE)?;
        let block = self.block_take()?;
        if slot.compare_exchange(0, block, AcqRel, Acquire).is_err() {
            self.block_give(block)?;
        }
        let descriptor = self.descriptor(process, fd).ok_or(Errno::EIO)?;
        Ok(HostSegment::parse(descriptor.swap(word, SeqCst)))
    }

    /// Says whether exec closes what `fd` stands for. False if it stands for nothing.
    #[must_use]
    pub fn process_mark(&self, process: ProcessIndex, fd: u32, close_on_exec: bool) -> bool {
        let bit = if close_on_exec { CLOSE_ON_EXEC } else { 0 };
        let marked = |word: u32| (word != 0).then_some(word & !CLOSE_ON_EXEC | bit);
        let descriptor = self.descriptor(process, fd);
        descriptor.is_some_and(|word| word.fetch_update(SeqCst, SeqCst, marked).is_ok())
    }

    fn block_take(&self) -> Result<u32> {
        let hint = Hint { word: self.segment.word32(HINT_AT)?, base: 0 };
        let block = take_bit(&self.segment, BITMAP, BLOCK_COUNT / 64, &hint)?;
        self.segment
            .zero(BLOCKS + block as usize * BLOCK_DESCRIPTORS * 4, BLOCK_DESCRIPTORS * 4)?;
        Ok(block + 1)
    }

    fn block_give(&self, block: u32) -> Result<()> {
        let hint = Hint { word: self.segment.word32(HINT_AT)?, base: 0 };
        give_bit(&self.segment, BITMAP, block.checked_sub(1).ok_or(Errno::EIO)?, &hint)
    }

    /// Every descriptor of a process that stands for something.
    pub fn process_each(&self, process: ProcessIndex, each: &mut dyn FnMut(u32, OfdIndex, bool)) {
        let Ok(row) = self.process(process) else { return };
        for (number, block) in row.blocks.iter().enumerate() {
            let block = block.load(Acquire);
            if block == 0 {
                continue;
            }
            for within in 0..BLOCK_DESCRIPTORS {
                let word = self.descriptor_in(block, within).map_or(0, |word| word.load(Acquire));
                if let Some((file, close_on_exec)) = HostSegment::parse(word) {
                    each((number * BLOCK_DESCRIPTORS + within) as u32, file, close_on_exec);
                }
            }
        }
    }

    /// A copy of a table for a child that is about to be made; every open file in it has one
    /// reference more. Until the child adopts it, it belongs to the parent's number. What other threads
    /// close meanwhile may be missing; `give_back` gets a reference that was taken for nothing.
    ///
    /// # Errors
    /// `ENFILE` if there is no room.
    pub fn process_copy(
        &self,
        parent: ProcessIndex,
        give_back: &mut dyn FnMut(OfdIndex),
    ) -> Result<ProcessIndex> {
        let (pid, started) = self.process_identity(parent).ok_or(Errno::EIO)?;
        // A start time that no process has: `process_find` must not give the parent the copy.
        let child = self.process_register(pid, started | NOT_ADOPTED)?;
        let mut outcome = Ok(());
        self.process_each(parent, &mut |fd, file, _| {
            if !self.file_retain_open(file) {
                return;
            }
            match self.process_get(parent, fd) {
                Some((now, close_on_exec)) if now == file => {
                    let set = self.process_set(child, fd, Some((file, close_on_exec)));
                    if outcome.is_ok() {
                        outcome = set.map(|_| ());
                    }
                }
                _ => give_back(file),
            }
        });
        outcome.map(|()| child)
    }

    /// Takes a table apart, if the row is still in the use that is meant: `each` gets every open
    /// file once for each descriptor, to release it.
    ///
    /// # Errors
    /// `EIO` if somebody does so already, or did.
    pub fn process_release(
        &self,
        process: ProcessIndex,
        generation: u32,
        each: &mut dyn FnMut(OfdIndex),
    ) -> Result<()> {
        let (live, dying) = (state_of(generation, LIVE), state_of(generation, DYING));
        let state = &self.process(process)?.state;
        state.compare_exchange(live, dying, AcqRel, Relaxed).map_err(|_| Errno::EIO)?;
        self.process_each(process, &mut |fd, _, _| {
            // Taken away first: who is killed in here leaves the rest to the daemon, and no reference is
            // released twice.
            if let Some((file, _)) = self.process_take(process, fd) {
                each(file);
            }
        });
        self.process_free(process, generation)
    }

    /// For who found the process dead: the table is his to take apart, also if somebody began to who was
    /// killed at it. `process_free` is the end of that.
    ///
    /// # Errors
    /// `EIO` if it is in another use.
    pub fn process_take_over(&self, process: ProcessIndex, generation: u32) -> Result<()> {
        let (live, dying) = (state_of(generation, LIVE), state_of(generation, DYING));
        let state = &self.process(process)?.state;
        match state.compare_exchange(live, dying, AcqRel, Acquire) {
            Err(seen) if seen != dying => Err(Errno::EIO),
            _ => Ok(()),
        }
    }

    /// Gives a row back whose descriptors were all taken, by who takes its table apart.
    ///
    /// # Errors
    /// `EIO` if it is in another use.
    pub fn process_free(&self, process: ProcessIndex, generation: u32) -> Result<()> {
        let Process { state, blocks, .. } = self.process(process)?;
        if state.load(Acquire) != state_of(generation, DYING) {
            return Err(Errno::EIO);
        }
        for block in blocks {
            let block = block.swap(0, AcqRel);
            if block != 0 {
                self.block_give(block)?;
            }
        }
        state.store(state_of(generation, FREE), Release);
        Ok(())
    }

    /// Tables in use, also those that somebody takes apart, or did when he was killed.
    pub fn process_list(&self, each: &mut dyn FnMut(Tenant)) {
        for process in (0..PROCESS_COUNT as u32).map(ProcessIndex) {
            let Ok(row) = self.process(process) else { return };
            // The state first: if the row is taken anew behind it, what follows is of no use to
            // `process_release` and `process_take_over`.
            let state = row.state.load(Acquire);
            if !matches!(state & KIND, LIVE | DYING) {
                continue;
            }
            let (pid, started) = (row.pid.load(Relaxed), row.started.load(Relaxed));
            let (generation, is_adopted) = (state / GENERATION_ONE, started & NOT_ADOPTED == 0);
            let started = started & !NOT_ADOPTED;
            each(Tenant { process, generation, pid, started, is_adopted });
        }
    }
}

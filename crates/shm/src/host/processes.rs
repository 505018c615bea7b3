//! Descriptor tables: for each process, the open file that each descriptor refers to.
//!
//! Layout: entries of 320 bytes: pid u32, state u32, start time u64, then 64 block numbers (u32,
//! plus one; 0: none). Behind them a bitmap of blocks and the blocks: 1024 descriptors of 4 bytes
//! each: open file + 1, top bit: close on exec. A state has the kind of the entry in its lowest two
//! bits, and above them its generation: how often it was taken.
//!
//! An entry belongs to a process by pid and start time, so that a pid reused by the kernel is not
//! taken for the earlier process; and a thread that dismantles a table names its generation, so
//! that an entry reused meanwhile is not taken for the table that was read.

use super::{HostSegment, OfdIndex, files, give_bit, take_bit};
use crate::segment::SharedEntry;
use crate::sync::{AtomicU32, AtomicU64};
use core::num::NonZeroU32;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use wire::errno::{Errno, Result};

/// Maximum number of processes of a host that use the instance at a time.
pub const PROCESS_COUNT: usize = 4096;
const BLOCKS_EACH: usize = 64;
const BLOCK_DESCRIPTORS: usize = 1024;
const BLOCK_COUNT: usize = 8192;
const BLOCK_BYTES: usize = BLOCK_DESCRIPTORS * 4;
const ENTRY_BYTES: usize = 320;
const ENTRIES: usize = files::END;
const BITMAP: usize = ENTRIES + PROCESS_COUNT * ENTRY_BYTES;
const BLOCKS: usize = BITMAP + BLOCK_COUNT / 8;
/// End of the blocks that have memory from the start: programs run while `/dev/shm` is full.
pub(super) const BLOCKS_PRESENT_END: usize = BLOCKS + 64 * BLOCK_BYTES;
pub(super) const END: usize = BLOCKS + BLOCK_COUNT * BLOCK_BYTES;

const FREE: u32 = 0;
const TAKEN: u32 = 1;
const LIVE: u32 = 2;
const DYING: u32 = 3;
/// The bits of a state that hold the kind.
const KIND: u32 = 3;
/// Increment of a state for one generation.
const GENERATION_ONE: u32 = 4;

const fn state_of(generation: u32, kind: u32) -> u32 {
    generation.wrapping_mul(GENERATION_ONE) | kind
}

/// Bit of a start time: the copy of a table that no child has adopted yet.
const NOT_ADOPTED: u64 = 1 << 63;

const CLOSE_ON_EXEC: u32 = 1 << 31;

/// The fields of an entry.
#[repr(C)]
struct Process {
    pid: AtomicU32,
    state: AtomicU32,
    started: AtomicU64,
    /// Numbers of blocks plus one; 0: none.
    blocks: [AtomicU32; BLOCKS_EACH],
}

// SAFETY: atomics in the order of the list above. WHY: each call on a descriptor comes here.
unsafe impl SharedEntry for Process {}

const _: () = assert!(size_of::<Process>() <= ENTRY_BYTES && ENTRY_BYTES.is_multiple_of(8));

/// A process's descriptor table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProcessIndex(pub u32);

/// The word of one descriptor.
#[derive(Clone, Copy)]
pub struct Descriptor<'a>(&'a AtomicU32);

impl Descriptor<'_> {
    /// The number, plus one, of the open file that it refers to now.
    #[must_use]
    #[inline]
    pub fn number(self) -> Option<NonZeroU32> {
        NonZeroU32::new(self.0.load(SeqCst) & !CLOSE_ON_EXEC)
    }

    /// True if it refers to the open file with this number.
    #[must_use]
    #[inline]
    pub fn is(self, number: NonZeroU32) -> bool {
        self.0.load(SeqCst) & !CLOSE_ON_EXEC == number.get()
    }
}

/// A table in use, as it was read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tenant {
    /// Its entry.
    pub process: ProcessIndex,
    /// The generation of the entry.
    pub generation: u32,
    /// Pid of its process; of a copy that no child has adopted: the parent.
    pub pid: u32,
    /// Start time of that process.
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
        self.segment.entry(ENTRIES + process.0 as usize * ENTRY_BYTES)
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

    /// Assigns a table to a child, once the child knows its own pid.
    ///
    /// # Errors
    /// `EIO` for an index out of range, or if the table was dismantled meanwhile.
    pub fn process_adopt(&self, process: ProcessIndex, pid: u32, started: u64) -> Result<()> {
        if !HostSegment::take_use(&self.process(process)?.state, LIVE) {
            return Err(Errno::EIO);
        }
        self.process_settle(process, pid, started)
    }

    /// Begins a new use of an entry that is `kind`; until it is settled nobody else touches it.
    fn take_use(state: &AtomicU32, kind: u32) -> bool {
        let seen = state.load(Relaxed);
        let taken = (seen & !KIND).wrapping_add(GENERATION_ONE) | TAKEN;
        seen & KIND == kind && state.compare_exchange(seen, taken, AcqRel, Relaxed).is_ok()
    }

    fn process_settle(&self, process: ProcessIndex, pid: u32, started: u64) -> Result<()> {
        let entry = self.process(process)?;
        entry.pid.store(pid, Relaxed);
        entry.started.store(started, Relaxed);
        entry.state.store(entry.state.load(Relaxed) & !KIND | LIVE, Release);
        Ok(())
    }

    /// The table of a process, after exec.
    #[must_use]
    pub fn process_find(&self, pid: u32, started: u64) -> Option<ProcessIndex> {
        (0..PROCESS_COUNT as u32)
            .map(ProcessIndex)
            .find(|&process| self.process_identity(process) == Some((pid, started)))
    }

    /// Pid and start time of its process, if it is in use.
    #[must_use]
    pub fn process_identity(&self, process: ProcessIndex) -> Option<(u32, u64)> {
        let entry = self.process(process).ok()?;
        if entry.state.load(Acquire) & KIND != LIVE {
            return None;
        }
        Some((entry.pid.load(Relaxed), entry.started.load(Relaxed)))
    }

    /// True if the entry still has this generation.
    #[must_use]
    pub fn process_is_used(&self, process: ProcessIndex, generation: u32) -> bool {
        let state = self.process(process).map_or(FREE, |entry| entry.state.load(Acquire));
        state & KIND != FREE && state & !KIND == state_of(generation, 0)
    }

    /// Generation of the entry: an owner of locks is (entry, generation).
    #[must_use]
    pub fn process_generation(&self, process: ProcessIndex) -> u32 {
        self.process(process).map_or(0, |entry| entry.state.load(Relaxed) / GENERATION_ONE)
    }

    #[inline]
    fn descriptor(&self, process: ProcessIndex, fd: u32) -> Option<&AtomicU32> {
        let blocks = &self.process(process).ok()?.blocks;
        let block = blocks.get(fd as usize / BLOCK_DESCRIPTORS)?.load(Acquire);
        self.descriptor_in(block, fd as usize % BLOCK_DESCRIPTORS)
    }

    #[inline]
    fn descriptor_in(&self, block: u32, within: usize) -> Option<&AtomicU32> {
        // 0, for no block, becomes a number that is too large.
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

    /// The open file of `fd`, and whether exec closes it.
    #[must_use]
    #[inline]
    pub fn process_get(&self, process: ProcessIndex, fd: u32) -> Option<(OfdIndex, bool)> {
        HostSegment::parse(self.descriptor(process, fd)?.load(Acquire))
    }

    /// The word of `fd`, for repeated reads. `None`: it never referred to a file.
    #[must_use]
    #[inline]
    pub fn process_descriptor(&self, process: ProcessIndex, fd: u32) -> Option<Descriptor<'_>> {
        self.descriptor(process, fd).map(Descriptor)
    }

    /// The open file of `fd`, which is removed from the table. The reference is the caller's, and
    /// no other caller's.
    #[must_use]
    #[inline]
    pub fn process_take(&self, process: ProcessIndex, fd: u32) -> Option<(OfdIndex, bool)> {
        HostSegment::parse(self.descriptor(process, fd)?.swap(0, SeqCst))
    }

    /// Sets the open file of `fd`. The caller counts references. Returns the previous one; `fd` is
    /// never unset in between.
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
        match self.descriptor(process, fd) {
            Some(descriptor) => Ok(HostSegment::parse(descriptor.swap(word, SeqCst))),
            None if word == 0 => Ok(None),
            None => self.set_in_new_block(process, fd, word),
        }
    }

    /// As `process_set`, where the process has no block for the descriptor yet.
    #[cold]
    #[inline(never)]
    fn set_in_new_block(
        &self,
        process: ProcessIndex,
        fd: u32,
        word: u32,
    ) -> Result<Option<(OfdIndex, bool)>> {
        let blocks = &self.process(process)?.blocks;
        let slot = blocks.get(fd as usize / BLOCK_DESCRIPTORS).ok_or(Errno::EMFILE)?;
        let block = self.block_take()?;
        if slot.compare_exchange(0, block, AcqRel, Acquire).is_err() {
            self.block_give(block)?;
        }
        let descriptor = self.descriptor(process, fd).ok_or(Errno::EIO)?;
        Ok(HostSegment::parse(descriptor.swap(word, SeqCst)))
    }

    /// Sets whether exec closes `fd`. False if it refers to no file.
    #[must_use]
    pub fn process_mark(&self, process: ProcessIndex, fd: u32, close_on_exec: bool) -> bool {
        let bit = if close_on_exec { CLOSE_ON_EXEC } else { 0 };
        let marked = |word: u32| (word != 0).then_some(word & !CLOSE_ON_EXEC | bit);
        let descriptor = self.descriptor(process, fd);
        descriptor.is_some_and(|word| word.fetch_update(SeqCst, SeqCst, marked).is_ok())
    }

    /// The lowest free block: those that ever had memory, which they keep, are the first ones. So while
    /// one of them is free no other is taken, for which there may be no memory.
    fn block_take(&self) -> Result<u32> {
        let block = take_bit(&self.segment, BITMAP, BLOCK_COUNT / 64, 0)?;
        let (at, bytes) = (BLOCKS + block as usize * BLOCK_BYTES, BLOCK_BYTES);
        if let Err(errno) = self.segment.reserve(at, bytes) {
            give_bit(&self.segment, BITMAP, block)?;
            return Err(errno);
        }
        self.segment.zero(at, bytes)?;
        Ok(block + 1)
    }

    fn block_give(&self, block: u32) -> Result<()> {
        give_bit(&self.segment, BITMAP, block.checked_sub(1).ok_or(Errno::EIO)?)
    }

    /// Calls `each` for every descriptor of a process that refers to a file.
    pub fn process_each(&self, process: ProcessIndex, each: &mut dyn FnMut(u32, OfdIndex, bool)) {
        let Ok(entry) = self.process(process) else { return };
        for (number, block) in entry.blocks.iter().enumerate() {
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

    /// Copies a table for a child that is about to be made; every open file in it gets another
    /// reference. Until the child adopts it, it belongs to the parent's pid. Descriptors that other
    /// threads close meanwhile may be missing; `give_back` gets a reference that was taken in vain.
    ///
    /// # Errors
    /// `ENFILE` if the table is full, `ENOSPC` if there is no memory; nothing is left of the copy then.
    pub fn process_copy(
        &self,
        parent: ProcessIndex,
        give_back: &mut dyn FnMut(OfdIndex),
    ) -> Result<ProcessIndex> {
        let (pid, started) = self.process_identity(parent).ok_or(Errno::EIO)?;
        // A start time that no process has: `process_find` must not return the copy to the parent.
        let child = self.process_register(pid, started | NOT_ADOPTED)?;
        let mut outcome = Ok(());
        self.process_each(parent, &mut |fd, file, _| {
            if outcome.is_err() || !self.file_retain_open(file) {
                return;
            }
            let set = match self.process_get(parent, fd) {
                Some((now, close_on_exec)) if now == file => {
                    self.process_set(child, fd, Some((file, close_on_exec)))
                }
                _ => Ok(Some((file, false))),
            };
            match set {
                Ok(None) => {}
                Ok(Some((replaced, _))) => give_back(replaced),
                Err(errno) => {
                    give_back(file);
                    outcome = Err(errno);
                }
            }
        });
        if outcome.is_err() {
            // Half a table is of no use, and its references would stay as long as the parent.
            self.process_release(child, self.process_generation(child), give_back)?;
        }
        outcome.map(|()| child)
    }

    /// Dismantles a table, if the entry still has this generation: `each` gets every open file once
    /// for each descriptor, to release it.
    ///
    /// # Errors
    /// `EIO` if another thread dismantles it, or did.
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
            // Removed first: a thread killed in here leaves the rest to the daemon, and no
            // reference is released twice.
            if let Some((file, _)) = self.process_take(process, fd) {
                each(file);
            }
        });
        self.process_free(process, generation)
    }

    /// For a thread that found the process dead: takes the table over, also from a thread that was
    /// killed while it dismantled it. `process_free` ends this.
    ///
    /// # Errors
    /// `EIO` if it has another generation.
    pub fn process_take_over(&self, process: ProcessIndex, generation: u32) -> Result<()> {
        let (live, dying) = (state_of(generation, LIVE), state_of(generation, DYING));
        let state = &self.process(process)?.state;
        match state.compare_exchange(live, dying, AcqRel, Acquire) {
            Err(seen) if seen != dying => Err(Errno::EIO),
            _ => Ok(()),
        }
    }

    /// Frees an entry whose descriptors were all removed, after it was dismantled.
    ///
    /// # Errors
    /// `EIO` if it has another generation.
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

    /// Calls `each` for the tables in use, including those that are dismantled, or were when the
    /// dismantling thread was killed.
    pub fn process_list(&self, each: &mut dyn FnMut(Tenant)) {
        for process in (0..PROCESS_COUNT as u32).map(ProcessIndex) {
            let Ok(entry) = self.process(process) else { return };
            // The state first: if the entry is taken again after it, what follows is rejected by
            // `process_release` and `process_take_over`.
            let state = entry.state.load(Acquire);
            if !matches!(state & KIND, LIVE | DYING) {
                continue;
            }
            let (pid, started) = (entry.pid.load(Relaxed), entry.started.load(Relaxed));
            let (generation, is_adopted) = (state / GENERATION_ONE, started & NOT_ADOPTED == 0);
            let started = started & !NOT_ADOPTED;
            each(Tenant { process, generation, pid, started, is_adopted });
        }
    }
}

#[cfg(test)]
#[cfg(not(feature = "interleavings"))]
mod tests {
    use super::*;
    use crate::host::HOST_BYTES;
    use crate::segment::{Access, Segment};
    use std::vec::Vec;
    use wire::Inode;

    /// A host segment on a file that is cut after `length` bytes: there is no memory behind them.
    fn host_with_memory(length: usize) -> HostSegment {
        let file = rustix::fs::memfd_create(c"test", rustix::fs::MemfdFlags::CLOEXEC);
        let file = file.expect("memory");
        rustix::fs::ftruncate(&file, HOST_BYTES as u64).expect("a length");
        let segment = Segment::map(&file, HOST_BYTES, Access::ReadWrite).expect("a mapping");
        rustix::fs::ftruncate(&file, length as u64).expect("a length");
        HostSegment::new(segment).expect("long enough")
    }

    #[test]
    fn a_block_with_memory_is_found_before_one_without() {
        let host = host_with_memory(BLOCKS + 65 * BLOCK_BYTES);
        let table = |pid: u32| host.process_register(pid, 1).expect("an entry");
        let set = |process: ProcessIndex, block: usize| {
            let descriptor = (block * BLOCK_DESCRIPTORS) as u32;
            host.process_set(process, descriptor, Some((OfdIndex(7), false))).map(drop)
        };
        let (first, second, third) = (table(1), table(2), table(3));
        (0..63).for_each(|block| assert_eq!(set(first, block), Ok(())));
        assert_eq!((set(second, 0), set(second, 1)), (Ok(()), Ok(())));
        assert_eq!(set(third, 0), Err(Errno::ENOSPC), "none is left");
        let generation = host.process_generation(second);
        host.process_release(second, generation, &mut |_| {}).expect("in use");
        assert_eq!((set(third, 0), set(third, 1)), (Ok(()), Ok(())), "two are free again");
        assert_eq!(set(third, 2), Err(Errno::ENOSPC));
    }

    #[test]
    fn an_entry_with_memory_is_found_before_one_without() {
        const LANES: usize = super::super::LANES;
        // Entries of open inodes behind the lanes: one page of them has memory.
        let behind = 4096 / 64;
        let host = host_with_memory(super::super::vnodes::LANES_END + behind * 64);
        let open = |inode: usize| host.vnode_open(Inode(inode as u64 + 1));
        let fill = || {
            let is_last = || crate::wait::thread_id() as usize % LANES == LANES - 1;
            is_last().then(|| {
                let all = super::super::LANE_ENTRIES + behind;
                let opened: Vec<_> = (0..all).map(|inode| open(inode).map(drop)).collect();
                assert!(
                    opened.iter().all(Result::is_ok),
                    "{:?}",
                    opened.iter().position(Result::is_err)
                );
                assert_eq!(open(all), Err(Errno::ENOSPC), "none is left");
                let last = host.vnode_find(Inode(all as u64)).expect("open");
                host.vnode_close(Inode(all as u64), last).expect("open");
                assert_eq!(open(all), Ok(last), "it has memory");
            })
        };
        // A thread that begins in the last lane finds no lane behind it.
        while std::thread::scope(|scope| scope.spawn(fill).join()).expect("no panic").is_none() {}
    }
}

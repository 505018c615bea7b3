//! Readahead: bytes that are fetched before the reader asks for them.
//!
//!   TAKEN --submit_readahead--> AHEAD --the daemon has them--> READY --take_readahead--> TAKEN
//!                               AHEAD --it has not-----------> FREE
//!                               AHEAD --its thread died before it submitted--> FREE
//!                               READY --buffers are short----> TAKEN
//!                               READY --the file is closed---> FREE
//!
//! The entry holds the position of the bytes, and the file's change count on this host at the time
//! of the request: the reader compares it.

use super::{
    BounceBuffers, Buffer, ENTRIES, ENTRY_BYTES, FREE, INODE, LENGTH, OFFSET, OWNER, STAMP, STATE,
    TAKEN,
};
use super::{SLEEPER, TARGET, VNODE};
use crate::host::OfdIndex;
use crate::sync::fence;
use crate::wait;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use wire::Inode;
use wire::errno::{Errno, Result};
use wire::limits::BOUNCE_BUFFER_COUNT;

const CHANGES: usize = 48;
const COUNT: usize = 56;

pub(super) const AHEAD: u32 = 6;
pub(super) const READY: u32 = 7;

/// Description of the bytes that a buffer is fetched for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Readahead {
    /// The open file description that reads ahead.
    pub file: OfdIndex,
    /// Generation of that open file description.
    pub generation: u32,
    /// The file.
    pub inode: Inode,
    /// Change count of the file on this host.
    pub changes: u64,
    /// Offset in the file.
    pub offset: u64,
    /// Number of bytes.
    pub length: u32,
    /// Time of the request, in microseconds of `wait::now_micros`.
    pub stamp: u64,
}

impl Readahead {
    /// True if it is of this open file and has the byte at `offset`.
    fn has(&self, file: OfdIndex, generation: u32, offset: u64) -> bool {
        let is_in = offset.checked_sub(self.offset).is_some_and(|at| at < u64::from(self.length));
        self.file == file && self.generation == generation && is_in
    }
}

/// Result of looking for readahead.
pub enum ReadaheadLookup<'a> {
    /// There is none.
    Missing,
    /// It is in flight.
    InFlight,
    /// The bytes, or a hole (no bytes). The buffer is the caller's.
    Ready {
        /// The buffer, freed when it is dropped.
        buffer: Buffer<'a>,
        /// Its contents.
        readahead: Readahead,
        /// It is a hole.
        is_hole: bool,
    },
}

impl<'a> BounceBuffers<'a> {
    fn readahead(&self, index: usize) -> Result<Readahead> {
        let entry = ENTRIES + index * ENTRY_BYTES;
        let long = |field: usize| self.segment.word64(entry + field).map(|word| word.load(Relaxed));
        let short =
            |field: usize| self.segment.word32(entry + field).map(|word| word.load(Relaxed));
        Ok(Readahead {
            file: OfdIndex(short(VNODE)?),
            generation: short(TARGET)?,
            inode: Inode(long(INODE)?),
            changes: long(CHANGES)?,
            offset: long(OFFSET)?,
            length: short(LENGTH)?,
            stamp: long(STAMP)?,
        })
    }

    /// Number of readahead buffers, filled or in flight, that nobody asked for and that are no
    /// older than `since`.
    #[must_use]
    pub fn readahead_count(&self, since: u64) -> usize {
        let is_readahead = |index: &usize| {
            let state = self.word(*index, STATE).map_or(FREE, |state| state.load(Relaxed));
            (state == AHEAD || state == READY)
                && self.readahead(*index).is_ok_and(|readahead| readahead.stamp >= since)
        };
        (0..BOUNCE_BUFFER_COUNT).filter(is_readahead).count()
    }

    /// A free buffer, or one with readahead that nobody asked for and that is older than `since`, if no
    /// thread waits for one.
    ///
    /// # Errors
    /// `EAGAIN` if there is none now.
    pub fn try_take_stale(&self, since: u64) -> Result<Buffer<'a>> {
        if !self.session.buffer_queue().is_empty() {
            return Err(Errno::EAGAIN);
        }
        self.try_free()
            .or_else(|_| self.take_unread(|readahead| readahead.stamp < since).ok_or(Errno::EAGAIN))
    }

    /// Looks for the byte at `offset` of an open file description.
    #[must_use]
    pub fn find_readahead(
        &self,
        file: OfdIndex,
        generation: u32,
        offset: u64,
    ) -> ReadaheadLookup<'a> {
        let mut found = ReadaheadLookup::Missing;
        for index in 0..BOUNCE_BUFFER_COUNT {
            let Ok(state) = self.word(index, STATE) else { break };
            let before = state.load(Acquire);
            if before != AHEAD && before != READY {
                continue;
            }
            if !self.readahead(index).is_ok_and(|readahead| readahead.has(file, generation, offset))
            {
                continue;
            }
            if before == AHEAD {
                found = ReadaheadLookup::InFlight;
            } else if let Some(here) =
                self.take_readahead(index, |readahead| readahead.has(file, generation, offset))
            {
                return here;
            }
        }
        found
    }

    fn take_readahead(
        &self,
        index: usize,
        is_it: impl Fn(&Readahead) -> bool,
    ) -> Option<ReadaheadLookup<'a>> {
        let state = self.word(index, STATE).ok()?;
        state.compare_exchange(READY, TAKEN, AcqRel, Relaxed).ok()?;
        self.word(index, OWNER).ok()?.store(wait::thread_id(), Release);
        let buffer = Buffer { buffers: *self, index };
        // The entry was another's if the buffer was reused meanwhile.
        let readahead = self.readahead(index).ok().filter(is_it);
        let count = self.segment.word32(ENTRIES + index * ENTRY_BYTES + COUNT).ok()?.load(Relaxed);
        match readahead {
            Some(readahead) => {
                Some(ReadaheadLookup::Ready { buffer, readahead, is_hole: count == 0 })
            }
            None => {
                buffer.keep_readahead();
                None
            }
        }
    }

    /// A buffer whose readahead nobody has asked for yet, when buffers are short.
    pub(super) fn take_unread(&self, is_it: impl Fn(&Readahead) -> bool) -> Option<Buffer<'a>> {
        (0..BOUNCE_BUFFER_COUNT).find_map(|index| match self.take_readahead(index, &is_it)? {
            ReadaheadLookup::Ready { buffer, .. } => Some(buffer),
            _ => None,
        })
    }

    /// Frees buffers marked by threads that were killed before they submitted the request. True if
    /// there were any. A thread that was killed in the middle of submitting leaves a buffer, as it
    /// leaves a slot, until the session ends.
    pub fn free_unsubmitted(&self) -> bool {
        (0..BOUNCE_BUFFER_COUNT).filter(|&index| self.free_if_unsubmitted(index)).count() > 0
    }

    fn free_if_unsubmitted(&self, index: usize) -> bool {
        let (Ok(state), Ok(owner)) = (self.word(index, STATE), self.word(index, OWNER)) else {
            return false;
        };
        let holder = owner.load(SeqCst);
        if state.load(SeqCst) != AHEAD || holder == 0 || !wait::is_dead(holder) {
            return false;
        }
        // The daemon completes the buffer before it answers, and the slot is the dead thread's
        // until then.
        let is_left = !self.session.has_request_of(holder)
            && state.load(SeqCst) == AHEAD
            && owner.compare_exchange(holder, wait::thread_id(), SeqCst, Relaxed).is_ok();
        if !is_left || state.compare_exchange(AHEAD, TAKEN, SeqCst, Relaxed).is_err() {
            return false;
        }
        drop(Buffer { buffers: *self, index });
        true
    }

    /// Sleeps until a buffer changed hands, or for a moment.
    pub fn wait_readahead(&self, file: OfdIndex, generation: u32, offset: u64, micros: u64) {
        let Ok(sleeper) = self.segment.word32(SLEEPER) else { return };
        sleeper.store(1, SeqCst);
        fence(SeqCst);
        let is_on_its_way = (0..BOUNCE_BUFFER_COUNT).any(|index| {
            let state = self.word(index, STATE).map_or(FREE, |state| state.load(Acquire));
            state == AHEAD
                && self
                    .readahead(index)
                    .is_ok_and(|readahead| readahead.has(file, generation, offset))
        });
        if is_on_its_way {
            let _ = wait::sleep(sleeper, 1, micros);
        }
    }

    /// Frees the readahead of an open file description that is closed.
    pub fn discard_readahead(&self, file: OfdIndex, generation: u32) {
        for index in 0..BOUNCE_BUFFER_COUNT {
            let is_it = |readahead: &Readahead| {
                readahead.file == file && readahead.generation == generation
            };
            if self.readahead(index).is_ok_and(|readahead| is_it(&readahead)) {
                drop(self.take_readahead(index, is_it));
            }
        }
    }

    // ---- the daemon's side ----

    /// The readahead in `buffer` has arrived with `count` bytes; `None`: it failed. True if it was
    /// in flight.
    pub fn complete_readahead(&self, buffer: u8, count: Option<u32>) -> bool {
        let index = usize::from(buffer);
        let (Ok(state), Ok(word)) =
            (self.word(index, STATE), self.segment.word32(ENTRIES + index * ENTRY_BYTES + COUNT))
        else {
            return false;
        };
        if state.load(Acquire) != AHEAD {
            return false;
        }
        word.store(count.unwrap_or(0), Relaxed);
        if let Ok(owner) = self.word(index, OWNER) {
            owner.store(0, Relaxed);
        }
        let next = if count.is_some() { READY } else { FREE };
        if state.compare_exchange(AHEAD, next, AcqRel, Relaxed).is_err() {
            return false;
        }
        self.wake_waiters();
        true
    }
}

impl Buffer<'_> {
    /// The daemon fills the buffer, which then waits for its reader. Must be called before the
    /// request is submitted.
    ///
    /// # Errors
    /// Never for a buffer that was taken.
    pub fn submit_readahead(self, readahead: &Readahead) -> Result<()> {
        let (buffers, index) = (self.buffers, self.index);
        let entry = ENTRIES + index * ENTRY_BYTES;
        let long = |field: usize| buffers.segment.word64(entry + field);
        buffers.word(index, VNODE)?.store(readahead.file.0, Relaxed);
        buffers.word(index, TARGET)?.store(readahead.generation, Relaxed);
        long(INODE)?.store(readahead.inode.0, Relaxed);
        long(CHANGES)?.store(readahead.changes, Relaxed);
        long(OFFSET)?.store(readahead.offset, Relaxed);
        buffers.word(index, LENGTH)?.store(readahead.length, Relaxed);
        long(STAMP)?.store(readahead.stamp, Relaxed);
        core::mem::forget(self);
        buffers.word(index, STATE)?.store(AHEAD, Release);
        Ok(())
    }

    /// Leaves the buffer for a reader of the rest of its bytes.
    pub fn keep_readahead(self) {
        let (buffers, index) = (self.buffers, self.index);
        if let (Ok(state), Ok(owner)) = (buffers.word(index, STATE), buffers.word(index, OWNER)) {
            core::mem::forget(self);
            owner.store(0, Relaxed);
            state.store(READY, Release);
            buffers.wake_waiters();
        }
    }

    /// Copies bytes from offset `skip` of the buffer.
    ///
    /// # Errors
    /// `EINVAL` if the buffer is shorter.
    pub fn copy_out_from(&self, skip: usize, to: &mut [u8]) -> Result<()> {
        let end = skip.checked_add(to.len()).ok_or(Errno::EINVAL)?;
        let at = self.buffers.offset_of(self.index(), end)?;
        self.buffers.segment.copy_out(at + skip, to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bounce::SESSION_WITH_BUFFERS_BYTES;
    use crate::segment::Segment;
    use crate::session::Session;
    use std::vec::Vec;

    const FILE: OfdIndex = OfdIndex(3);

    fn session() -> Session {
        let (segment, _) =
            Segment::nameless(c"test", SESSION_WITH_BUFFERS_BYTES).expect("anonymous memory");
        Session::new(segment).expect("long enough")
    }

    fn readahead(offset: u64) -> Readahead {
        let (inode, changes, length, stamp) = (Inode(5), 6, 100, 7);
        Readahead { file: FILE, generation: 4, inode, changes, offset, length, stamp }
    }

    /// Requests 100 bytes at `offset`; returns the number of the buffer.
    fn ask(session: &Session, offset: u64) -> u8 {
        let mut buffer = session.bounce_buffers().try_take().expect("free");
        buffer.fill(&core::array::from_fn::<u8, 100, _>(|at| at as u8)).expect("fits");
        let index = buffer.index();
        buffer.submit_readahead(&readahead(offset)).expect("taken");
        index
    }

    #[test]
    fn readahead_is_found_only_by_its_reader_until_it_is_read() {
        let session = session();
        let buffers = session.bounce_buffers();
        let index = ask(&session, 1000);
        assert!(matches!(buffers.find_readahead(FILE, 4, 1099), ReadaheadLookup::InFlight));
        assert!(
            buffers.complete_readahead(index, Some(100))
                && !buffers.complete_readahead(index, Some(100))
        );
        for (file, generation, offset) in
            [(OfdIndex(2), 4, 1000), (FILE, 5, 1000), (FILE, 4, 999), (FILE, 4, 1100)]
        {
            assert!(matches!(
                buffers.find_readahead(file, generation, offset),
                ReadaheadLookup::Missing
            ));
        }
        for _ in 0..2 {
            let ReadaheadLookup::Ready { buffer, readahead: what, is_hole } =
                buffers.find_readahead(FILE, 4, 1001)
            else {
                panic!("it is there");
            };
            assert_eq!((what, is_hole), (readahead(1000), false));
            assert!(
                matches!(buffers.find_readahead(FILE, 4, 1001), ReadaheadLookup::Missing),
                "one has it"
            );
            let mut bytes = [0; 3];
            buffer.copy_out_from(97, &mut bytes).expect("it holds them");
            assert_eq!(bytes, [97, 98, 99]);
            buffer.keep_readahead();
        }
        assert_eq!(buffers.readahead_count(0), 1);
        let ReadaheadLookup::Ready { buffer, .. } = buffers.find_readahead(FILE, 4, 1000) else {
            panic!("kept")
        };
        drop(buffer);
        assert_eq!(buffers.readahead_count(0), 0);
        assert_eq!(buffers.try_take().map(|buffer| buffer.index()), Ok(index));
    }

    #[test]
    fn failed_readahead_is_freed_and_holes_have_no_bytes() {
        let session = session();
        let buffers = session.bounce_buffers();
        let index = ask(&session, 0);
        assert!(buffers.complete_readahead(index, None));
        assert!(matches!(buffers.find_readahead(FILE, 4, 0), ReadaheadLookup::Missing));
        let index = ask(&session, 0);
        assert!(buffers.complete_readahead(index, Some(0)));
        assert!(matches!(
            buffers.find_readahead(FILE, 4, 0),
            ReadaheadLookup::Ready { is_hole: true, .. }
        ));
        assert!(!buffers.complete_readahead(index, Some(1)), "nobody asked for it any more");
        assert!(!buffers.complete_readahead(255, Some(1)));
    }

    #[test]
    fn unread_readahead_yields_its_buffer_and_is_discarded_with_its_file() {
        let session = session();
        let buffers = session.bounce_buffers();
        for number in 0..BOUNCE_BUFFER_COUNT as u64 {
            let index = ask(&session, number * 100);
            // The first two stay in flight.
            assert!(number < 2 || buffers.complete_readahead(index, Some(100)));
        }
        let taken: [_; 3] = core::array::from_fn(|_| buffers.try_take().expect("an unread one"));
        assert_eq!(buffers.readahead_count(0), BOUNCE_BUFFER_COUNT - 3);
        assert!(matches!(buffers.find_readahead(FILE, 4, 200), ReadaheadLookup::Missing));
        assert!(matches!(buffers.find_readahead(FILE, 4, 0), ReadaheadLookup::InFlight));
        buffers.discard_readahead(FILE, 3);
        assert_eq!(buffers.readahead_count(0), BOUNCE_BUFFER_COUNT - 3);
        buffers.discard_readahead(FILE, 4);
        assert_eq!((buffers.readahead_count(0), buffers.readahead_count(8)), (2, 0));
        drop(taken);
        let index = ask(&session, 0);
        assert!(buffers.complete_readahead(index, Some(100)));
        let rest: Vec<_> = core::iter::from_fn(|| buffers.try_free().ok()).collect();
        assert_eq!(buffers.try_take_stale(7).map(drop), Err(Errno::EAGAIN));
        assert_eq!(buffers.try_take_stale(8).map(|buffer| buffer.index()), Ok(index));
        drop(rest);
    }
}

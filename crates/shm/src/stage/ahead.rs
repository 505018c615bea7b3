//! Bytes that are fetched before anybody asked for them.
//!
//!   TAKEN --fetch_ahead--> AHEAD --the daemon has them--> READY --take_ahead--> TAKEN
//!                          AHEAD --it has not-----------> FREE
//!                          AHEAD --its asker died before he asked--> FREE
//!                          READY --buffers are short----> TAKEN
//!                          READY --the file is closed---> FREE
//!
//! The row says what they are of, and how often the file had been changed on this host before they were
//! asked for: who takes them compares.

use super::{Buffer, FREE, INODE, LENGTH, OFFSET, OWNER, ROW, ROWS, STAMP, STATE, Stage, TAKEN};
use super::{SLEEPER, TARGET, VNODE};
use crate::host::OfdIndex;
use crate::sync::fence;
use crate::wait;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use wire::Inode;
use wire::errno::{Errno, Result};
use wire::limits::STAGE_BUFFER_COUNT;

const CHANGES: usize = 48;
const COUNT: usize = 56;

pub(super) const AHEAD: u32 = 6;
pub(super) const READY: u32 = 7;

/// What a buffer is fetched for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ahead {
    /// The open file description that reads on.
    pub file: OfdIndex,
    /// Which use of its row.
    pub generation: u32,
    /// The file.
    pub inode: Inode,
    /// How often the file had been changed on this host.
    pub changes: u64,
    /// Offset in the file.
    pub offset: u64,
    /// Number of bytes.
    pub length: u32,
    /// When it was asked for, in microseconds of `wait::now_micros`.
    pub stamp: u64,
}

impl Ahead {
    /// True if it is of this open file and has the byte at `offset`.
    fn has(&self, file: OfdIndex, generation: u32, offset: u64) -> bool {
        let is_in = offset.checked_sub(self.offset).is_some_and(|at| at < u64::from(self.length));
        self.file == file && self.generation == generation && is_in
    }
}

/// What there is ahead of a reader.
pub enum Found<'a> {
    /// Nothing.
    Nothing,
    /// It is on its way.
    OnItsWay,
    /// The bytes, or a hole (no bytes). The buffer is the caller's.
    Here {
        /// The buffer, free again when it is dropped.
        buffer: Buffer<'a>,
        /// What it holds.
        ahead: Ahead,
        /// It is a hole.
        is_hole: bool,
    },
}

impl<'a> Stage<'a> {
    fn ahead(&self, index: usize) -> Result<Ahead> {
        let row = ROWS + index * ROW;
        let long = |field: usize| self.segment.word64(row + field).map(|word| word.load(Relaxed));
        let short = |field: usize| self.segment.word32(row + field).map(|word| word.load(Relaxed));
        Ok(Ahead {
            file: OfdIndex(short(VNODE)?),
            generation: short(TARGET)?,
            inode: Inode(long(INODE)?),
            changes: long(CHANGES)?,
            offset: long(OFFSET)?,
            length: short(LENGTH)?,
            stamp: long(STAMP)?,
        })
    }

    /// Buffers that hold, or wait for, bytes that nobody asked for and that are no older than `since`.
    #[must_use]
    pub fn count_ahead(&self, since: u64) -> usize {
        let is_ahead = |index: &usize| {
            let state = self.word(*index, STATE).map_or(FREE, |state| state.load(Relaxed));
            (state == AHEAD || state == READY)
                && self.ahead(*index).is_ok_and(|ahead| ahead.stamp >= since)
        };
        (0..STAGE_BUFFER_COUNT).filter(is_ahead).count()
    }

    /// A free buffer, or one whose bytes nobody asked for and that are older than `since`.
    ///
    /// # Errors
    /// `EAGAIN` if there is none now.
    pub fn try_take_old(&self, since: u64) -> Result<Buffer<'a>> {
        self.try_free()
            .or_else(|_| self.take_unread(|ahead| ahead.stamp < since).ok_or(Errno::EAGAIN))
    }

    /// The byte at `offset` for an open file description, if it was fetched ahead.
    #[must_use]
    pub fn find_ahead(&self, file: OfdIndex, generation: u32, offset: u64) -> Found<'a> {
        let mut found = Found::Nothing;
        for index in 0..STAGE_BUFFER_COUNT {
            let Ok(state) = self.word(index, STATE) else { break };
            let before = state.load(Acquire);
            if before != AHEAD && before != READY {
                continue;
            }
            if !self.ahead(index).is_ok_and(|ahead| ahead.has(file, generation, offset)) {
                continue;
            }
            if before == AHEAD {
                found = Found::OnItsWay;
            } else if let Some(here) =
                self.take_ahead(index, |ahead| ahead.has(file, generation, offset))
            {
                return here;
            }
        }
        found
    }

    fn take_ahead(&self, index: usize, is_it: impl Fn(&Ahead) -> bool) -> Option<Found<'a>> {
        let state = self.word(index, STATE).ok()?;
        state.compare_exchange(READY, TAKEN, AcqRel, Relaxed).ok()?;
        self.word(index, OWNER).ok()?.store(wait::thread_id(), Release);
        let buffer = Buffer { stage: *self, index };
        // The row was another's if the buffer was used again meanwhile.
        let ahead = self.ahead(index).ok().filter(is_it);
        let count = self.segment.word32(ROWS + index * ROW + COUNT).ok()?.load(Relaxed);
        match ahead {
            Some(ahead) => Some(Found::Here { buffer, ahead, is_hole: count == 0 }),
            None => {
                buffer.keep_ahead();
                None
            }
        }
    }

    /// A buffer whose bytes nobody has come for yet, when buffers are short.
    pub(super) fn take_unread(&self, is_it: impl Fn(&Ahead) -> bool) -> Option<Buffer<'a>> {
        (0..STAGE_BUFFER_COUNT).find_map(|index| match self.take_ahead(index, &is_it)? {
            Found::Here { buffer, .. } => Some(buffer),
            _ => None,
        })
    }

    /// Frees what a thread marked that was killed before it asked the daemon for it. True if there was
    /// any. One that was killed in the midst of handing the request in leaves a buffer, as it leaves a
    /// slot, until the session is over.
    pub fn free_unasked(&self) -> bool {
        (0..STAGE_BUFFER_COUNT).filter(|&index| self.free_if_unasked(index)).count() > 0
    }

    fn free_if_unasked(&self, index: usize) -> bool {
        let (Ok(state), Ok(owner)) = (self.word(index, STATE), self.word(index, OWNER)) else {
            return false;
        };
        let holder = owner.load(SeqCst);
        if state.load(SeqCst) != AHEAD || holder == 0 || !wait::is_dead(holder) {
            return false;
        }
        // The daemon says what came before it answers, and the slot is the dead one's until then.
        let is_left = !self.session.has_request_of(holder)
            && state.load(SeqCst) == AHEAD
            && owner.compare_exchange(holder, wait::thread_id(), SeqCst, Relaxed).is_ok();
        if !is_left || state.compare_exchange(AHEAD, TAKEN, SeqCst, Relaxed).is_err() {
            return false;
        }
        drop(Buffer { stage: *self, index });
        true
    }

    /// Sleeps until a buffer changed hands, or for a moment.
    pub fn wait_ahead(&self, file: OfdIndex, generation: u32, offset: u64, micros: u64) {
        let Ok(sleeper) = self.segment.word32(SLEEPER) else { return };
        sleeper.store(1, SeqCst);
        fence(SeqCst);
        let is_on_its_way = (0..STAGE_BUFFER_COUNT).any(|index| {
            let state = self.word(index, STATE).map_or(FREE, |state| state.load(Acquire));
            state == AHEAD
                && self.ahead(index).is_ok_and(|ahead| ahead.has(file, generation, offset))
        });
        if is_on_its_way {
            let _ = wait::sleep(sleeper, 1, micros);
        }
    }

    /// Frees what was fetched for an open file description that is closed.
    pub fn drop_ahead(&self, file: OfdIndex, generation: u32) {
        for index in 0..STAGE_BUFFER_COUNT {
            let is_it = |ahead: &Ahead| ahead.file == file && ahead.generation == generation;
            if self.ahead(index).is_ok_and(|ahead| is_it(&ahead)) {
                drop(self.take_ahead(index, is_it));
            }
        }
    }

    // ---- the daemon's side ----

    /// A buffer that was asked for ahead holds so many bytes, or none came. True if it was one.
    pub fn fetched(&self, buffer: u8, count: Option<u32>) -> bool {
        let index = usize::from(buffer);
        let (Ok(state), Ok(word)) =
            (self.word(index, STATE), self.segment.word32(ROWS + index * ROW + COUNT))
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
        self.freed();
        true
    }
}

impl Buffer<'_> {
    /// The daemon fills it, and it waits for who asks for its bytes: call it before the request is
    /// handed in.
    ///
    /// # Errors
    /// Never for a buffer that was taken.
    pub fn fetch_ahead(self, ahead: &Ahead) -> Result<()> {
        let (stage, index) = (self.stage, self.index);
        let row = ROWS + index * ROW;
        let long = |field: usize| stage.segment.word64(row + field);
        stage.word(index, VNODE)?.store(ahead.file.0, Relaxed);
        stage.word(index, TARGET)?.store(ahead.generation, Relaxed);
        long(INODE)?.store(ahead.inode.0, Relaxed);
        long(CHANGES)?.store(ahead.changes, Relaxed);
        long(OFFSET)?.store(ahead.offset, Relaxed);
        stage.word(index, LENGTH)?.store(ahead.length, Relaxed);
        long(STAMP)?.store(ahead.stamp, Relaxed);
        core::mem::forget(self);
        stage.word(index, STATE)?.store(AHEAD, Release);
        Ok(())
    }

    /// Leaves the buffer for who comes for the rest of its bytes.
    pub fn keep_ahead(self) {
        let (stage, index) = (self.stage, self.index);
        if let (Ok(state), Ok(owner)) = (stage.word(index, STATE), stage.word(index, OWNER)) {
            core::mem::forget(self);
            owner.store(0, Relaxed);
            state.store(READY, Release);
        }
    }

    /// Copies bytes from `skip` bytes behind its beginning.
    ///
    /// # Errors
    /// `EINVAL` if it does not hold so many.
    pub fn copy_out_from(&self, skip: usize, to: &mut [u8]) -> Result<()> {
        let end = skip.checked_add(to.len()).ok_or(Errno::EINVAL)?;
        let at = self.stage.place(self.index(), end)?;
        self.stage.segment.copy_out(at + skip, to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::segment::Segment;
    use crate::session::Session;
    use crate::stage::SESSION_AND_STAGE_BYTES;
    use std::vec::Vec;

    const FILE: OfdIndex = OfdIndex(3);

    fn session() -> Session {
        let (segment, _) =
            Segment::nameless(c"test", SESSION_AND_STAGE_BYTES).expect("anonymous memory");
        Session::new(segment).expect("long enough")
    }

    fn ahead(offset: u64) -> Ahead {
        let (inode, changes, length, stamp) = (Inode(5), 6, 100, 7);
        Ahead { file: FILE, generation: 4, inode, changes, offset, length, stamp }
    }

    /// Asks for 100 bytes at `offset`; the number of the buffer.
    fn ask(session: &Session, offset: u64) -> u8 {
        let mut buffer = session.stage().try_take().expect("free");
        buffer.fill(&core::array::from_fn::<u8, 100, _>(|at| at as u8)).expect("fits");
        let index = buffer.index();
        buffer.fetch_ahead(&ahead(offset)).expect("taken");
        index
    }

    #[test]
    fn bytes_that_came_are_found_by_their_reader_alone_until_he_has_read_them() {
        let session = session();
        let stage = session.stage();
        let index = ask(&session, 1000);
        assert!(matches!(stage.find_ahead(FILE, 4, 1099), Found::OnItsWay));
        assert!(stage.fetched(index, Some(100)) && !stage.fetched(index, Some(100)));
        for (file, generation, offset) in
            [(OfdIndex(2), 4, 1000), (FILE, 5, 1000), (FILE, 4, 999), (FILE, 4, 1100)]
        {
            assert!(matches!(stage.find_ahead(file, generation, offset), Found::Nothing));
        }
        for _ in 0..2 {
            let Found::Here { buffer, ahead: what, is_hole } = stage.find_ahead(FILE, 4, 1001)
            else {
                panic!("it is there");
            };
            assert_eq!((what, is_hole), (ahead(1000), false));
            assert!(matches!(stage.find_ahead(FILE, 4, 1001), Found::Nothing), "one has it");
            let mut bytes = [0; 3];
            buffer.copy_out_from(97, &mut bytes).expect("it holds them");
            assert_eq!(bytes, [97, 98, 99]);
            buffer.keep_ahead();
        }
        assert_eq!(stage.count_ahead(0), 1);
        let Found::Here { buffer, .. } = stage.find_ahead(FILE, 4, 1000) else { panic!("kept") };
        drop(buffer);
        assert_eq!(stage.count_ahead(0), 0);
        assert_eq!(stage.try_take().map(|buffer| buffer.index()), Ok(index));
    }

    #[test]
    fn what_did_not_come_is_free_and_holes_have_no_bytes() {
        let session = session();
        let stage = session.stage();
        let index = ask(&session, 0);
        assert!(stage.fetched(index, None));
        assert!(matches!(stage.find_ahead(FILE, 4, 0), Found::Nothing));
        let index = ask(&session, 0);
        assert!(stage.fetched(index, Some(0)));
        assert!(matches!(stage.find_ahead(FILE, 4, 0), Found::Here { is_hole: true, .. }));
        assert!(!stage.fetched(index, Some(1)), "nobody asked for it any more");
        assert!(!stage.fetched(255, Some(1)));
    }

    #[test]
    fn unread_bytes_give_way_to_who_needs_a_buffer_and_go_with_their_file() {
        let session = session();
        let stage = session.stage();
        for number in 0..STAGE_BUFFER_COUNT as u64 {
            let index = ask(&session, number * 100);
            // The first are on their way for ever.
            assert!(number < 2 || stage.fetched(index, Some(100)));
        }
        let taken: [_; 3] = core::array::from_fn(|_| stage.try_take().expect("an unread one"));
        assert_eq!(stage.count_ahead(0), STAGE_BUFFER_COUNT - 3);
        assert!(matches!(stage.find_ahead(FILE, 4, 200), Found::Nothing));
        assert!(matches!(stage.find_ahead(FILE, 4, 0), Found::OnItsWay));
        stage.drop_ahead(FILE, 3);
        assert_eq!(stage.count_ahead(0), STAGE_BUFFER_COUNT - 3);
        stage.drop_ahead(FILE, 4);
        assert_eq!((stage.count_ahead(0), stage.count_ahead(8)), (2, 0));
        drop(taken);
        let index = ask(&session, 0);
        assert!(stage.fetched(index, Some(100)));
        let rest: Vec<_> = core::iter::from_fn(|| stage.try_free().ok()).collect();
        assert_eq!(stage.try_take_old(7).map(drop), Err(Errno::EAGAIN));
        assert_eq!(stage.try_take_old(8).map(|buffer| buffer.index()), Ok(index));
        drop(rest);
    }
}

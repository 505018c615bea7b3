//! Pins: which pieces of a target clients copy from or into right now. One named segment for each
//! daemon, which outlives it: a daemon that takes over sees who was copying when the one before it
//! was killed, however long he was stopped in it.
//!
//! Layout: a page whose first u32 says how many sessions there ever were; then `PIN_COUNT` rows of 64
//! bytes of the daemon itself, and as many for each session:
//!
//!   0   pin     u64   thread << 32 | piece + 1; 0: free
//!   8   claims  u64   granules of the piece that the thread fills right now, or is about to (`piece_io`)
//!   16  stretch u64   the stretch of the piece that they are in
//!
//! Who copies puts a pin down and then looks at the piece's header; who wants the space anew hides
//! the header and then looks for pins. One of the two sees the other (`pieces`).
//!
//! Invariants:
//!  1. A row is taken by compare and exchange and freed by who took it. So clients of an earlier
//!     daemon may use the rows of a session together with those of a later one, whose number is the
//!     same.
//!  2. A row of a thread that lives is not touched by anybody else. One of a dead thread pins nothing
//!     and claims nothing.
//!  3. What a thread fills it claims in its row from before it is claimed in the piece until it is
//!     defined there.

use crate::doorbell::SESSION_COUNT_MAX;
use crate::segment::{Row, Segment};
use crate::sync::{self, AtomicU64, fence};
use crate::wait::{self, Backoff, Next};
use core::sync::atomic::Ordering::{AcqRel, Relaxed, Release, SeqCst};
use wire::errno::{Errno, Result};

/// Copies of one session at a time.
pub const PIN_COUNT: usize = 64;
/// A cache line each: threads of a program copy side by side.
const ROW: usize = 64;
const HEADER: usize = 4096;
/// Rows of the daemon, or of one session.
const BLOCK: usize = PIN_COUNT * ROW;

/// Length of the segment; memory is touched as it is used.
pub const PINS_BYTES: usize = HEADER + (1 + SESSION_COUNT_MAX) * BLOCK;

/// Longest wait of a daemon for a client that fills a granule. It serves others, too.
const DAEMON_MICROS_MAX: u64 = 1_000_000;

/// The words of a row.
#[repr(C)]
struct PinRow {
    pin: AtomicU64,
    claims: AtomicU64,
    stretch: AtomicU64,
}

// SAFETY: atomics in the order of the table above. WHY: each copy of a file's bytes takes one.
unsafe impl Row for PinRow {}

/// The mapped segment.
pub struct Pins {
    segment: Segment,
}

/// What a row says.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Word(u64);

impl Word {
    fn new(thread: u32, piece: u32) -> Result<Word> {
        let piece = piece.checked_add(1).ok_or(Errno::EINVAL)?;
        Ok(Word(u64::from(thread) << 32 | u64::from(piece)))
    }

    const fn piece(self) -> Option<u32> {
        (self.0 as u32).checked_sub(1)
    }

    const fn thread(self) -> u32 {
        (self.0 >> 32) as u32
    }

    fn is_of_the_dead(self) -> bool {
        wait::is_dead(self.thread())
    }
}

impl Pins {
    /// Takes a mapping. A fresh one, all zeros, is valid as it is.
    ///
    /// # Errors
    /// `EINVAL` if it is too short.
    pub fn new(segment: Segment) -> Result<Pins> {
        if segment.len() < PINS_BYTES { Err(Errno::EINVAL) } else { Ok(Pins { segment }) }
    }

    /// A row of a block: 0 is the daemon's, the others the sessions'.
    #[inline]
    fn row(&self, block: usize, row: usize) -> Result<&PinRow> {
        if block > SESSION_COUNT_MAX {
            return Err(Errno::EINVAL);
        }
        self.segment.row(HEADER + block * BLOCK + row % PIN_COUNT * ROW)
    }

    /// What a client of `session` pins with. Where all rows are taken it waits, at most
    /// `timeout_micros`.
    #[must_use]
    pub const fn of_session(&self, session: u16, timeout_micros: u64) -> SessionPins<'_> {
        SessionPins { pins: self, block: 1 + session as usize, timeout_micros }
    }

    /// Granules in a stretch of `piece` that living threads fill: those of others, and those that the
    /// calling thread was in the middle of when a signal came, whose handler holds `own`.
    fn claims(&self, piece: u32, stretch: u64, own: &Pin<'_>) -> Claims {
        let me = wait::thread_id();
        let mut found = Claims { others: 0, interrupted: 0 };
        for block in 0..=self.sessions_most() {
            for row in 0..PIN_COUNT {
                let Ok(row) = self.row(block, row) else { continue };
                let word = Word(row.pin.load(SeqCst));
                if word.piece() != Some(piece) || core::ptr::eq(row, own.row) {
                    continue;
                }
                // The row of who has the claim that the caller saw does not change until that is defined.
                // Of others the two words may be of two moments: then the caller waits in vain.
                let is_there = row.stretch.load(SeqCst) == stretch;
                let claims = row.claims.load(SeqCst);
                if !is_there || claims == 0 || word.is_of_the_dead() {
                    continue;
                }
                if word.thread() == me {
                    found.interrupted |= claims;
                } else {
                    found.others |= claims;
                }
            }
        }
        found
    }

    /// How many sessions there ever were: rows behind those are in no use.
    fn sessions_most(&self) -> usize {
        let most = self.segment.word32(0).map_or(0, |most| most.load(SeqCst));
        (most as usize).min(SESSION_COUNT_MAX)
    }

    /// Notes that there is a session of this number, for who is about to pin with it.
    pub fn note_session(&self, session: u16) {
        if let Ok(most) = self.segment.word32(0) {
            let more = |most: u32| Some(most.max(u32::from(session) + 1));
            let _ = most.fetch_update(SeqCst, SeqCst, more);
        }
    }

    // ---- the daemon's side ----

    /// What the daemon's own threads pin with.
    #[must_use]
    pub const fn of_daemon(&self) -> SessionPins<'_> {
        SessionPins { pins: self, block: 0, timeout_micros: DAEMON_MICROS_MAX }
    }

    /// Calls `each` with the pieces that living threads pin under `session`.
    pub fn each(&self, session: u16, each: &mut dyn FnMut(u32)) {
        for row in 0..PIN_COUNT {
            let Ok(row) = self.row(1 + usize::from(session), row) else { return };
            let word = Word(row.pin.load(SeqCst));
            let Some(piece) = word.piece() else { continue };
            if word.is_of_the_dead() {
                let _ = row.pin.compare_exchange(word.0, 0, AcqRel, Relaxed);
            } else {
                each(piece);
            }
        }
    }

    /// True if a living thread pins `piece` under `session`.
    #[must_use]
    pub fn is_pinned(&self, session: u16, piece: u32) -> bool {
        let mut found = false;
        self.each(session, &mut |pinned| found |= pinned == piece);
        found
    }
}

/// The rows of one session, as its clients use them.
#[derive(Clone, Copy)]
pub struct SessionPins<'a> {
    pins: &'a Pins,
    block: usize,
    timeout_micros: u64,
}

impl<'a> SessionPins<'a> {
    /// Says that the calling thread copies from or into `piece`, until the result is dropped.
    ///
    /// # Errors
    /// `ETIMEDOUT` if all rows were taken for too long.
    #[inline]
    pub fn pin(&self, piece: u32) -> Result<Pin<'a>> {
        let me = wait::thread_id();
        let word = Word::new(me, piece)?;
        // Neighbouring threads have neighbouring numbers.
        let row = self.pins.row(self.block, me as usize)?;
        let row = if take(row, 0, word) { row } else { self.another(me, word)? };
        // Of a thread that died there.
        row.claims.store(0, Relaxed);
        // The header that the caller looks at next must be read after the daemon could see the pin.
        fence(SeqCst);
        Ok(Pin { row, by: *self })
    }

    /// A row where the first choice is taken.
    #[cold]
    fn another(&self, me: u32, word: Word) -> Result<&'a PinRow> {
        let mut backoff = Backoff::new();
        let mut give_up = None;
        loop {
            for step in 1..=PIN_COUNT {
                let row = self.pins.row(self.block, me as usize + step)?;
                if row.pin.load(Relaxed) == 0 && take(row, 0, word) {
                    return Ok(row);
                }
            }
            if backoff.pause() == Next::Look {
                continue;
            }
            for row in 0..PIN_COUNT {
                let row = self.pins.row(self.block, row)?;
                let holder = Word(row.pin.load(Relaxed));
                if holder.is_of_the_dead() && take(row, holder.0, word) {
                    return Ok(row);
                }
            }
            let now = wait::now_micros();
            if now >= *give_up.get_or_insert(now.saturating_add(self.timeout_micros)) {
                return Err(Errno::ETIMEDOUT);
            }
            sync::sched_yield();
        }
    }
}

fn take(row: &PinRow, from: u64, word: Word) -> bool {
    row.pin.compare_exchange(from, word.0, SeqCst, Relaxed).is_ok()
}

/// A pin of the calling thread.
pub struct Pin<'a> {
    row: &'a PinRow,
    by: SessionPins<'a>,
}

/// Granules of a piece that living threads fill.
pub(crate) struct Claims {
    pub(crate) others: u64,
    /// By the calling thread itself, in the call that it was in when a signal came.
    pub(crate) interrupted: u64,
}

impl Pin<'_> {
    /// Says which granules of a stretch of the piece the caller fills from now on.
    pub(crate) fn claim(&self, stretch: u64, granules: u64) {
        self.row.stretch.store(stretch, Release);
        self.row.claims.store(granules, SeqCst);
    }

    /// What else living threads fill in a stretch of `piece`, which is the pinned one.
    pub(crate) fn others(&self, piece: u32, stretch: u64) -> Claims {
        self.by.pins.claims(piece, stretch, self)
    }

    /// How long its holder waits for others.
    pub(crate) const fn timeout_micros(&self) -> u64 {
        self.by.timeout_micros
    }
}

impl Drop for Pin<'_> {
    #[inline]
    fn drop(&mut self) {
        self.row.pin.store(0, Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    fn pins() -> Pins {
        Pins::new(Segment::nameless(c"test", PINS_BYTES).expect("memory").0).expect("long enough")
    }

    fn all(pins: &Pins, session: u16) -> Vec<u32> {
        let mut found = Vec::new();
        pins.each(session, &mut |piece| found.push(piece));
        found.sort_unstable();
        found
    }

    #[test]
    fn what_is_pinned_is_seen_until_it_is_dropped() {
        let pins = pins();
        let mine = pins.of_session(3, 0);
        let held: Vec<_> =
            (0..PIN_COUNT as u32).map(|piece| mine.pin(piece).expect("a row")).collect();
        assert_eq!(all(&pins, 3), (0..PIN_COUNT as u32).collect::<Vec<_>>());
        assert_eq!(all(&pins, 2), []);
        assert_eq!(mine.pin(99).err(), Some(Errno::ETIMEDOUT));
        drop(held);
        assert_eq!(all(&pins, 3), []);
        let last = SESSION_COUNT_MAX as u16;
        assert!(pins.of_session(last - 1, 0).pin(7).is_ok());
        assert_eq!(pins.of_session(last, 0).pin(7).err(), Some(Errno::EINVAL));
        assert_eq!(mine.pin(u32::MAX).err(), Some(Errno::EINVAL));
    }

    #[test]
    fn the_dead_pin_nothing_and_their_rows_are_taken() {
        let pins = pins();
        let dead = std::thread::scope(|scope| {
            let leave = || {
                (0..PIN_COUNT as u32).for_each(|piece| {
                    core::mem::forget(pins.of_session(0, 0).pin(piece).expect("a row"));
                });
            };
            scope.spawn(leave).join()
        });
        dead.expect("no panic");
        let mine = pins.of_session(0, 60_000_000).pin(5).expect("a dead one's row");
        assert_eq!(all(&pins, 0), [5]);
        drop(mine);
        assert_eq!(all(&pins, 0), []);
    }
}

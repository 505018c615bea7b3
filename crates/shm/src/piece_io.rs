//! Reading and writing one piece from a process that maps the target: the one copy of a byte's way.
//!
//! A granule, a page of the piece, is defined when its `valid` bit is set; otherwise it reads as zeros.
//! Who writes into undefined granules goes from stretch to stretch, 64 granules that have a word. He
//! claims what is free there of what he meets in one step, fills it with his bytes and with zeros around
//! those, and sets the bits. Only then does he come to what others have claimed meanwhile: he waits for
//! its bits, and copies his part. So nobody waits while he holds a claim, and two writers of
//! neighbouring ranges hardly ever wait. If a claimer died, who waits takes over: nothing that the dead
//! one wrote there was acknowledged.
//!
//! A claimer that lives is never taken over, however long it stands still: when it goes on it writes its
//! zeros, and would write them over what others had written meanwhile. Who waits for too long gets `EIO`,
//! and nothing is lost. Whether a claimer lives is told by the pins (`pins`): each says what its thread
//! claims, from before it is claimed in the piece until it is defined there. So a granule that is
//! claimed and undefined, and that no living thread's pin claims, is of the dead. Who takes over (the
//! *heir*) does so one at a time, and looks whether anything was forgotten while he looked through
//! the pins: only then can a granule be claimed anew that was claimed.

use crate::arena::Arena;
use crate::pieces::{
    GRANULE_LOG2, Granules, PieceStates, PieceTable, STRETCH_LOG2, Use, all_granules,
};
use crate::pins::{Pin, SessionPins};
use crate::sync;
use crate::wait::{self, Backoff, Next};
use core::ops::Range;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use rustix::fd::BorrowedFd;
use wire::Inode;
use wire::errno::{Errno, Result};
use wire::reply::Piece;

/// How long who waits for a claimer leaves the pins alone at first: it copies into one piece, which takes
/// milliseconds at most, but may have lost its processor. Then twice as long each time, up to the most.
const PAUSE_MICROS_MIN: u64 = 1_000;
const PAUSE_MICROS_MAX: u64 = 64_000;

/// What lies beyond in a file is of a large file: more than a process's share of the last cache, so who
/// reads it from its beginning finds no byte there anyway.
const STREAMED_FROM: u64 = 4 << 20;
/// Copies from this length on go past the cache there. A store that does not reads the line first.
const STREAMED_BYTES_MIN: usize = 16 << 10;

/// One target as this process reaches it.
#[derive(Clone, Copy)]
pub struct Target<'a> {
    /// The memory tier.
    pub arena: &'a Arena,
    /// The SSD tier's file.
    pub ssd: BorrowedFd<'a>,
    /// Headers.
    pub table: &'a PieceTable,
    /// States.
    pub states: &'a PieceStates,
}

/// The piece is another's now: ask for the pieces of the file anew.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Moved;

/// Outcome of a copy: done, or the piece moved away before anything was copied.
pub type Copied = core::result::Result<(), Moved>;

impl Target<'_> {
    fn device_in(&self, piece: &Piece, within: u64, from: &[u8]) -> Result<()> {
        if piece.tier == Piece::MEMORY {
            let place = place(piece, within)?;
            if piece.start >= STREAMED_FROM && from.len() >= STREAMED_BYTES_MIN {
                return self.arena.stream_in(place, from);
            }
            return self.arena.copy_in(place, from);
        }
        self.ssd_in(piece, within, from)
    }

    fn ssd_in(&self, piece: &Piece, within: u64, from: &[u8]) -> Result<()> {
        let mut done = 0;
        while let Some(rest) = from.get(done..).filter(|rest| !rest.is_empty()) {
            match rustix::io::pwrite(self.ssd, rest, piece.place + within + done as u64) {
                Ok(0) => return Err(Errno::EIO),
                Ok(count) => done += count,
                Err(rustix::io::Errno::INTR) => {}
                Err(os) => return Err(crate::segment::errno(os)),
            }
        }
        Ok(())
    }

    #[inline]
    fn device_out(&self, piece: &Piece, within: u64, to: &mut [u8]) -> Result<()> {
        if piece.tier == Piece::MEMORY {
            return self.arena.copy_out(place(piece, within)?, to);
        }
        self.ssd_out(piece, within, to)
    }

    fn ssd_out(&self, piece: &Piece, within: u64, to: &mut [u8]) -> Result<()> {
        let mut done = 0;
        while let Some(rest) = to.get_mut(done..).filter(|rest| !rest.is_empty()) {
            match rustix::io::pread(self.ssd, &mut *rest, piece.place + within + done as u64) {
                Ok(0) => {
                    rest.fill(0);
                    return Ok(());
                }
                Ok(count) => done += count,
                Err(rustix::io::Errno::INTR) => {}
                Err(os) => return Err(crate::segment::errno(os)),
            }
        }
        Ok(())
    }

    fn device_zero(&self, piece: &Piece, within: u64, length: u64) -> Result<()> {
        if piece.tier == Piece::MEMORY {
            return self.arena.zero(place(piece, within)?, length);
        }
        let zeros = [0; 4096];
        let mut done = 0;
        while done < length {
            let part = (length - done).min(zeros.len() as u64);
            let zeros = zeros.get(..part as usize).unwrap_or(&[]);
            self.device_in(piece, within + done, zeros)?;
            done += part;
        }
        Ok(())
    }

    /// Reads `to.len()` bytes from offset `within` of `piece`, a piece of `inode`. Both ends must
    /// lie in the piece, which `pins` keep where it is meanwhile.
    ///
    /// # Errors
    /// What the device says.
    #[inline]
    pub fn read(
        &self,
        pins: &SessionPins<'_>,
        inode: Inode,
        piece: &Piece,
        within: u64,
        to: &mut [u8],
    ) -> Result<Copied> {
        let _pin = pins.pin(piece.slot)?;
        if self.table.is(inode, piece) {
            self.read_pinned(piece, within, to).map(Ok)
        } else {
            Ok(Err(Moved))
        }
    }

    /// As `read`, for who knows that the piece stays: the daemon.
    ///
    /// # Errors
    /// What the device says.
    #[inline]
    pub fn read_pinned(&self, piece: &Piece, within: u64, to: &mut [u8]) -> Result<()> {
        if self.is_defined_for::<false>(piece, within, to.len())? {
            return self.device_out(piece, within, to);
        }
        self.read_parts(piece, within, to)
    }

    /// Reads granule by granule: from the device what is `valid`, zeros elsewhere.
    fn read_parts(&self, piece: &Piece, within: u64, to: &mut [u8]) -> Result<()> {
        for (number, touched) in stretches(within, to.len() as u64) {
            let stretch = self.stretch(piece, number)?;
            let valid = stretch.granules.valid.load(Acquire);
            for run in stretch.runs(touched & valid) {
                let (at, part) = part_of(run, within, to.len());
                self.device_out(piece, at, to.get_mut(part).unwrap_or_default())?;
            }
            for run in stretch.runs(touched & !valid) {
                let (_, part) = part_of(run, within, to.len());
                to.get_mut(part).unwrap_or_default().fill(0);
            }
        }
        Ok(())
    }

    /// Writes `from` at offset `within` of `piece`, a piece of `inode`.
    ///
    /// # Errors
    /// What the device says.
    #[inline]
    pub fn write(
        &self,
        pins: &SessionPins<'_>,
        inode: Inode,
        piece: &Piece,
        within: u64,
        from: &[u8],
    ) -> Result<Copied> {
        self.write_if(pins, inode, piece, within, from, || Ok(()))
    }

    /// As `write`, if `still` says so under the pin: then whatever takes the piece away from the file
    /// later comes after these bytes, which go with it.
    ///
    /// # Errors
    /// As `write`, and what `still` says.
    #[inline]
    pub fn write_if(
        &self,
        pins: &SessionPins<'_>,
        inode: Inode,
        piece: &Piece,
        within: u64,
        from: &[u8],
        still: impl FnOnce() -> Result<()>,
    ) -> Result<Copied> {
        let pin = pins.pin(piece.slot)?;
        if self.table.is(inode, piece) {
            still()?;
            self.write_held(&pin, piece, within, from).map(Ok)
        } else {
            Ok(Err(Moved))
        }
    }

    /// As `write`, for who knows that the piece stays: the daemon.
    ///
    /// # Errors
    /// What the device says.
    pub fn write_pinned(
        &self,
        pins: &SessionPins<'_>,
        piece: &Piece,
        within: u64,
        from: &[u8],
    ) -> Result<()> {
        self.write_held(&pins.pin(piece.slot)?, piece, within, from)
    }

    #[inline]
    fn write_held(&self, pin: &Pin<'_>, piece: &Piece, within: u64, from: &[u8]) -> Result<()> {
        if self.is_defined_for::<true>(piece, within, from.len())? {
            return self.device_in(piece, within, from);
        }
        self.write_parts(pin, piece, within, from)
    }

    /// Writes into granules that are not all defined.
    fn write_parts(&self, pin: &Pin<'_>, piece: &Piece, within: u64, from: &[u8]) -> Result<()> {
        for (number, touched) in stretches(within, from.len() as u64) {
            let stretch = self.stretch(piece, number)?;
            // A granule that is written whole is claimed, too: another writer that found it undefined
            // would else zero it after the caller's copy.
            let mine = self.fill_free(pin, &stretch, touched, within, from)?;
            let others = touched & !mine;
            self.await_defined(pin, &stretch, others)?;
            for run in stretch.runs(others) {
                self.copy_within(piece, run, within, from)?;
            }
        }
        Ok(())
    }

    /// Claims what is free of `touched` and undefined, and defines it: with `from`, as far as that
    /// lies there when it lies at `within`, and zeros around. Returns what it defined.
    fn fill_free(
        &self,
        pin: &Pin<'_>,
        stretch: &Stretch<'_>,
        touched: u64,
        within: u64,
        from: &[u8],
    ) -> Result<u64> {
        let Granules { valid, claimed } = stretch.granules;
        let free = touched & !valid.load(Acquire) & !claimed.load(Acquire);
        if free == 0 {
            return Ok(0);
        }
        pin.claim(stretch.number(), free);
        let mine = free & !claimed.fetch_or(free, SeqCst);
        if mine != free {
            pin.claim(stretch.number(), mine);
        }
        // In granules that `from` cuts others write, too, and wait: they are theirs when they are filled.
        let edges = mine & stretch.edges(within, from.len() as u64);
        let mut outcome = Ok(());
        for part in [edges, mine & !edges] {
            if part != 0 && outcome.is_ok() {
                outcome = self.fill_all(stretch, part, within, from);
                if outcome.is_ok() {
                    // Only what was claimed here: another may be a hole again by now.
                    valid.fetch_or(part, AcqRel);
                }
            }
        }
        pin.claim(stretch.number(), 0);
        outcome.map(|()| mine)
    }

    /// Writes all bytes of `granules`: those of `from` that lie there when it lies at `within`, and
    /// zeros.
    fn fill_all(
        &self,
        stretch: &Stretch<'_>,
        granules: u64,
        within: u64,
        from: &[u8],
    ) -> Result<()> {
        let piece = stretch.piece;
        for run in stretch.runs(granules) {
            let start = within.clamp(run.start, run.end);
            let end = within.saturating_add(from.len() as u64).clamp(start, run.end);
            self.device_zero(piece, run.start, start - run.start)?;
            self.copy_within(piece, run.clone(), within, from)?;
            self.device_zero(piece, end, run.end - end)?;
        }
        Ok(())
    }

    /// Copies what lies in `run` of `from`, if that lies at `within`.
    fn copy_within(&self, piece: &Piece, run: Range<u64>, within: u64, from: &[u8]) -> Result<()> {
        let (at, part) = part_of(run, within, from.len());
        match from.get(part).filter(|part| !part.is_empty()) {
            Some(part) => self.device_in(piece, at, part),
            None => Ok(()),
        }
    }

    fn stretch<'b>(&'b self, piece: &'b Piece, number: u64) -> Result<Stretch<'b>> {
        let granules = self.states.granules(piece, number)?;
        Ok(Stretch { piece, granules, start: number << STRETCH_LOG2 })
    }

    /// Makes every granule of `piece`, a piece of `inode`, defined, for who will reach its bytes without
    /// these protocols: a shared mapping, by which he may write or only reads. From then on the piece
    /// stays where it is.
    ///
    /// # Errors
    /// What the device says.
    pub fn define_all(
        &self,
        pins: &SessionPins<'_>,
        inode: Inode,
        piece: &Piece,
        how: Use,
    ) -> Result<Copied> {
        let pin = pins.pin(piece.slot)?;
        if self.table.is(inode, piece) {
            self.states.note_mapping(piece.slot)?;
            self.states.note_use(piece.slot, how);
            self.define(&pin, piece, 0, piece.length()).map(Ok)
        } else {
            Ok(Err(Moved))
        }
    }

    /// Makes the granules of `within .. within + length` defined, for bytes that come to their place
    /// from a socket: nobody knows when, so no claim may wait for them.
    ///
    /// # Errors
    /// `EIO` for a range outside the piece, or what the device says.
    pub fn define_range(
        &self,
        pins: &SessionPins<'_>,
        piece: &Piece,
        within: u64,
        length: usize,
    ) -> Result<()> {
        check_range(piece, within, length)?;
        self.states.note_use(piece.slot, Use::Write);
        self.define(&pins.pin(piece.slot)?, piece, within, length as u64)
    }

    /// Copies what is defined of `from`, which nobody uses or will without saying so, to the place of
    /// `to`, which is as long, through `buffer`. If it is its file's no more, whatever lies there is
    /// copied; and whatever its slot's states are by now, not a byte beyond `to` is written.
    ///
    /// # Errors
    /// What the device says.
    pub fn copy(&self, from: &Piece, to: &Piece, buffer: &mut [u8]) -> Result<()> {
        for number in 0..from.length().div_ceil(1 << STRETCH_LOG2) {
            let stretch = self.stretch(from, number)?;
            // The slot may be a longer piece's by now.
            let valid = stretch.granules.valid.load(Acquire) & all_granules(from.length_log2);
            for run in stretch.runs(valid) {
                let mut at = run.start;
                while at < run.end {
                    let part = usize::try_from(run.end - at).unwrap_or(usize::MAX);
                    let length = part.min(buffer.len());
                    let bytes = buffer.get_mut(..length).filter(|bytes| !bytes.is_empty());
                    let bytes = bytes.ok_or(Errno::EINVAL)?;
                    self.device_out(from, at, bytes)?;
                    self.device_in(to, at, bytes)?;
                    at += length as u64;
                }
            }
        }
        Ok(())
    }

    fn define(&self, pin: &Pin<'_>, piece: &Piece, within: u64, length: u64) -> Result<()> {
        for (number, touched) in stretches(within, length) {
            let stretch = self.stretch(piece, number)?;
            let mine = self.fill_free(pin, &stretch, touched, within, &[])?;
            self.await_defined(pin, &stretch, touched & !mine)?;
        }
        Ok(())
    }

    /// True if every granule of `within .. within + length` is defined: the device holds what is to
    /// be read there.
    ///
    /// # Errors
    /// `EIO` for a range outside the piece.
    #[inline]
    pub fn is_defined(&self, piece: &Piece, within: u64, length: usize) -> Result<bool> {
        is_defined_in(piece, within, length, |number| self.states.granules(piece, number))
    }

    /// As `is_defined`, for who reads or writes there.
    #[inline]
    fn is_defined_for<const WRITES: bool>(
        &self,
        piece: &Piece,
        within: u64,
        length: usize,
    ) -> Result<bool> {
        let granules = |number| self.states.granules_in_use::<WRITES>(piece, number);
        is_defined_in(piece, within, length, granules)
    }

    /// Waits until `granules`, of which the caller has claimed none, are defined. What the dead
    /// left, and what became a hole meanwhile, is zeroed.
    fn await_defined(&self, pin: &Pin<'_>, stretch: &Stretch<'_>, granules: u64) -> Result<()> {
        let mut rest = granules & !stretch.granules.valid.load(Acquire);
        while rest != 0 {
            self.await_granule(pin, stretch, rest & rest.wrapping_neg())?;
            rest &= rest - 1;
        }
        Ok(())
    }

    fn await_granule(&self, pin: &Pin<'_>, stretch: &Stretch<'_>, bit: u64) -> Result<()> {
        let Granules { valid, claimed } = stretch.granules;
        let mut patience = Patience::new();
        while valid.load(Acquire) & bit == 0 {
            if claimed.load(Acquire) & bit == 0 {
                self.fill_free(pin, stretch, bit, 0, &[])?;
            } else if patience.is_over(pin.timeout_micros())? {
                self.take_over(pin, stretch, bit)?;
            }
        }
        Ok(())
    }

    /// Makes a granule zeros if a dead thread had claimed it.
    ///
    /// # Errors
    /// `EIO` if the calling thread itself had, in the call in the middle of which a signal came.
    fn take_over(&self, pin: &Pin<'_>, stretch: &Stretch<'_>, bit: u64) -> Result<()> {
        let heir = self.states.heir(stretch.piece.slot)?;
        let (me, before) = (wait::thread_id(), heir.load(SeqCst));
        if before == me {
            return Err(Errno::EIO);
        }
        let is_free = wait::is_dead(before);
        if !is_free || heir.compare_exchange(before, me, SeqCst, Relaxed).is_err() {
            return Ok(());
        }
        let outcome = self.inherit(pin, stretch, bit);
        heir.store(0, Release);
        outcome
    }

    fn inherit(&self, pin: &Pin<'_>, stretch: &Stretch<'_>, bit: u64) -> Result<()> {
        let (slot, Granules { valid, claimed }) = (stretch.piece.slot, stretch.granules);
        let times = self.states.times_forgotten(slot)?;
        // In this order: of a granule that is forgotten the claim goes first.
        let is_undefined = valid.load(SeqCst) & bit == 0;
        if !is_undefined || claimed.load(SeqCst) & bit == 0 {
            return Ok(());
        }
        let living = pin.others(slot, stretch.number());
        if living.interrupted & bit != 0 {
            return Err(Errno::EIO);
        }
        let is_claimed = living.others & bit != 0;
        // Defined by then, by who claimed it; or claimed by another, behind our look at his pin.
        let is_defined = valid.load(SeqCst) & bit != 0;
        if is_claimed || is_defined || self.states.times_forgotten(slot)? != times {
            return Ok(());
        }
        self.fill_all(stretch, bit, 0, &[])?;
        valid.fetch_or(bit, AcqRel);
        Ok(())
    }

    /// Makes `length` bytes at `within` read as zeros.
    ///
    /// # Errors
    /// What the device says.
    pub fn zero_pinned(&self, piece: &Piece, within: u64, length: u64) -> Result<()> {
        self.states.note_use(piece.slot, Use::Write);
        let end = within.saturating_add(length).min(piece.length());
        let length = end.saturating_sub(within);
        for (number, touched) in stretches(within, length) {
            let stretch = self.stretch(piece, number)?;
            let edges = touched & stretch.edges(within, length);
            let defined = edges & stretch.granules.valid.load(Acquire);
            for run in stretch.runs(defined) {
                let (start, end) = (run.start.max(within), run.end.min(end));
                self.device_zero(piece, start, end - start)?;
            }
            self.states.forget(piece.slot, stretch.granules, touched & !edges)?;
        }
        Ok(())
    }
}

/// A stretch of a piece.
struct Stretch<'a> {
    piece: &'a Piece,
    granules: &'a Granules,
    /// Where it begins in the piece.
    start: u64,
}

impl Stretch<'_> {
    fn number(&self) -> u64 {
        self.start >> STRETCH_LOG2
    }

    /// The bytes of `granules`, those of neighbours together.
    fn runs(&self, granules: u64) -> impl Iterator<Item = Range<u64>> + use<> {
        let start = self.start;
        let mut rest = granules;
        core::iter::from_fn(move || {
            let first = (rest != 0).then(|| rest.trailing_zeros())?;
            let count = (rest >> first).trailing_ones();
            rest &= !mask(first.into(), u64::from(first + count) - 1);
            let place = |granule: u32| start + (u64::from(granule) << GRANULE_LOG2);
            Some(place(first)..place(first + count))
        })
    }

    /// The granules here that `within .. within + length` cuts.
    fn edges(&self, within: u64, length: u64) -> u64 {
        let cut = |at: u64| {
            let is_here = at >> STRETCH_LOG2 == self.start >> STRETCH_LOG2;
            let is_inside = !at.is_multiple_of(1 << GRANULE_LOG2);
            u64::from(is_here && is_inside) << granule(at)
        };
        cut(within) | cut(within.saturating_add(length))
    }
}

/// The wait of one writer for the claimer of a granule.
struct Patience {
    backoff: Backoff,
    /// When it began, and when it is time to look through the pins.
    since: u64,
    look_at: Option<u64>,
    pause: u64,
}

impl Patience {
    const fn new() -> Patience {
        let (backoff, pause) = (Backoff::new(), PAUSE_MICROS_MIN);
        Patience { backoff, since: 0, look_at: None, pause }
    }

    /// Spends a moment. True if it is time to look whether the claimer lives.
    ///
    /// # Errors
    /// `EIO` after `micros_max`.
    fn is_over(&mut self, micros_max: u64) -> Result<bool> {
        if self.backoff.pause() == Next::Look {
            return Ok(false);
        }
        sync::sched_yield();
        let now = wait::now_micros();
        let Some(look_at) = self.look_at else {
            (self.since, self.look_at) = (now, Some(now.saturating_add(self.pause)));
            return Ok(false);
        };
        if now < look_at {
            return Ok(false);
        }
        if now.saturating_sub(self.since) >= micros_max {
            return Err(Errno::EIO);
        }
        self.pause = (self.pause * 2).min(PAUSE_MICROS_MAX);
        self.look_at = Some(now.saturating_add(self.pause));
        Ok(true)
    }
}

/// Where offset `within` of a piece in memory lies.
fn place(piece: &Piece, within: u64) -> Result<u64> {
    piece.place.checked_add(within).ok_or(Errno::EIO)
}

/// The end of `length` bytes at `within`, which must lie in the piece.
#[inline]
fn check_range(piece: &Piece, within: u64, length: usize) -> Result<u64> {
    match within.checked_add(length as u64) {
        Some(end) if end <= piece.length() => Ok(end),
        _ => Err(Errno::EIO),
    }
}

/// True if all granules that `length` bytes from `within` on meet are defined; `granules` finds those of
/// a stretch.
#[inline]
fn is_defined_in<'a>(
    piece: &Piece,
    within: u64,
    length: usize,
    granules: impl Fn(u64) -> Result<&'a Granules>,
) -> Result<bool> {
    let last = check_range(piece, within, length)?.wrapping_sub(1);
    let number = within >> STRETCH_LOG2;
    if number != last >> STRETCH_LOG2 {
        return are_defined(within, length, granules);
    }
    // None in front of the first and none behind the last, each of which is below 64.
    let touched = u64::MAX << granule(within) & u64::MAX >> (63 - granule(last));
    Ok(granules(number)?.valid.load(Acquire) & touched == touched)
}

/// `is_defined_in` over several stretches.
#[cold]
fn are_defined<'a>(
    within: u64,
    length: usize,
    granules: impl Fn(u64) -> Result<&'a Granules>,
) -> Result<bool> {
    for (number, touched) in stretches(within, length as u64) {
        if granules(number)?.valid.load(Acquire) & touched != touched {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The stretches that `length` bytes from `within` on meet, by number, each with the granules there
/// that they meet.
fn stretches(within: u64, length: u64) -> impl Iterator<Item = (u64, u64)> {
    let end = within.saturating_add(length);
    let mut at = within;
    core::iter::from_fn(move || {
        if at >= end {
            return None;
        }
        let number = at >> STRETCH_LOG2;
        let next = ((number + 1) << STRETCH_LOG2).min(end);
        let touched = mask(granule(at), granule(next - 1));
        at = next;
        Some((number, touched))
    })
}

/// The number in its stretch of the granule at `within`.
const fn granule(within: u64) -> u64 {
    (within >> GRANULE_LOG2) % 64
}

/// What of `length` bytes at `within` lies in `run`: where that is, and which of them.
fn part_of(run: Range<u64>, within: u64, length: usize) -> (u64, Range<usize>) {
    let start = run.start.max(within);
    let end = run.end.min(within.saturating_add(length as u64)).max(start);
    (start, (start - within) as usize..(end - within) as usize)
}

/// Bits `first ..= last`.
const fn mask(first: u64, last: u64) -> u64 {
    let upper = u64::MAX >> 63u64.saturating_sub(last);
    if first >= 64 { 0 } else { upper & (u64::MAX << first) }
}

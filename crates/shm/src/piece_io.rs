//! Reading and writing one piece from a process that maps the target: the one copy of a byte's way.
//!
//! A granule's bytes are defined when its `valid` bit is set; otherwise it reads as zeros. Who
//! writes into undefined granules claims them all in one step, fills them with his bytes and with
//! zeros around those, and sets the bits. Only then does he come to what others have claimed
//! meanwhile: he waits for its bits, and copies his part. So nobody waits while he holds a claim,
//! and two writers of neighbouring ranges hardly ever wait. If a claimer died, who waits takes over:
//! nothing that the dead one wrote there was acknowledged.
//!
//! Whether a claimer died is told by one word for the whole piece. Who claims announces himself in
//! it before, and takes himself out after; the word names him only while no other living thread is
//! announced. So 0 or the dead in it mean that all claims are orphans. Once two were announced at a
//! time it names nobody, for as long as the piece lives, and time decides (`CLAIM_MICROS_MAX`).

use crate::arena::Arena;
use crate::pieces::{PieceStates, PieceTable, all_granules, granule_log2};
use crate::pins::SessionPins;
use crate::sync::{self, AtomicU32};
use crate::wait::{self, Backoff, Next};
use core::ops::Range;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, SeqCst};
use rustix::fd::BorrowedFd;
use wire::Inode;
use wire::errno::{Errno, Result};
use wire::reply::Piece;

/// Longest wait for the claimer of a granule that is alive: it copies into one piece, which takes
/// milliseconds at most, but may have lost its processor.
const CLAIM_MICROS_MAX: u64 = 1_000_000;

/// In the claimer word: several threads claim. The rest counts those who took over.
const MANY: u32 = 1 << 31;

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
            return self.arena.copy_in(place(piece, within)?, from);
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
        check_range(piece, within, to.len())?;
        let valid = self.states.valid(piece.slot)?.load(Acquire);
        let touched = granules(piece, within, to.len());
        if valid & touched == touched {
            return self.device_out(piece, within, to);
        }
        self.read_parts(piece, valid, within, to)
    }

    /// Reads granule by granule: from the device what is `valid`, zeros elsewhere.
    fn read_parts(&self, piece: &Piece, valid: u64, within: u64, to: &mut [u8]) -> Result<()> {
        let log2 = granule_log2(piece.length_log2);
        let mut at = within;
        let mut rest = to;
        while !rest.is_empty() {
            let end = ((at >> log2) + 1) << log2;
            let length = usize::try_from(end - at).unwrap_or(rest.len()).min(rest.len());
            let (part, next) = rest.split_at_mut(length);
            if valid & (1 << (at >> log2)) != 0 {
                self.device_out(piece, at, part)?;
            } else {
                part.fill(0);
            }
            at = end;
            rest = next;
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
        let _pin = pins.pin(piece.slot)?;
        if self.table.is(inode, piece) {
            still()?;
            self.write_pinned(piece, within, from).map(Ok)
        } else {
            Ok(Err(Moved))
        }
    }

    /// As `write`, for who knows that the piece stays: the daemon.
    ///
    /// # Errors
    /// What the device says.
    #[inline]
    pub fn write_pinned(&self, piece: &Piece, within: u64, from: &[u8]) -> Result<()> {
        check_range(piece, within, from.len())?;
        if from.is_empty() {
            return Ok(());
        }
        let touched = granules(piece, within, from.len());
        if self.states.valid(piece.slot)?.load(Acquire) & touched == touched {
            return self.device_in(piece, within, from);
        }
        self.write_parts(piece, touched, within, from)
    }

    /// Writes into granules that are not all defined.
    fn write_parts(&self, piece: &Piece, touched: u64, within: u64, from: &[u8]) -> Result<()> {
        // A granule that is written whole is claimed, too: another writer that found it undefined
        // would else zero it after the caller's copy.
        let mine = self.fill_free(piece, touched, within, from)?;
        let others = touched & !mine;
        self.await_defined(piece, others)?;
        for run in runs(piece, others) {
            self.copy_within(piece, &run, within, from)?;
        }
        Ok(())
    }

    /// Claims what is free of `granules` and undefined, and defines it: with `from`, as far as that
    /// lies there when it lies at `within`, and zeros around. Returns what it defined.
    fn fill_free(&self, piece: &Piece, granules: u64, within: u64, from: &[u8]) -> Result<u64> {
        let valid = self.states.valid(piece.slot)?;
        let claimed = self.states.claimed(piece.slot)?;
        let free = granules & !valid.load(Acquire) & !claimed.load(Acquire);
        if free == 0 {
            return Ok(0);
        }
        let me = wait::thread_id();
        self.announce(piece, me)?;
        let mine = free & !claimed.fetch_or(free, SeqCst);
        // Others write in the first and the last, too, and wait: each is theirs when it is filled.
        let first = mine & granules.wrapping_neg() & granules;
        let last = mine & !first & 1u64.checked_shl(63 - granules.leading_zeros()).unwrap_or(0);
        let mut outcome = Ok(());
        for part in [first, last, mine & !(first | last)] {
            if part != 0 && outcome.is_ok() {
                outcome = self.fill_all(piece, part, within, from);
                if outcome.is_ok() {
                    // Only what was claimed here: another may be a hole again by now.
                    valid.fetch_or(part, AcqRel);
                }
            }
        }
        self.retire(piece, me)?;
        outcome.map(|()| mine)
    }

    /// Writes all bytes of `granules`: those of `from` that lie there when it lies at `within`, and
    /// zeros.
    fn fill_all(&self, piece: &Piece, granules: u64, within: u64, from: &[u8]) -> Result<()> {
        for run in runs(piece, granules) {
            let start = within.clamp(run.start, run.end);
            let end = within.saturating_add(from.len() as u64).clamp(start, run.end);
            self.device_zero(piece, run.start, start - run.start)?;
            self.copy_within(piece, &run, within, from)?;
            self.device_zero(piece, end, run.end - end)?;
        }
        Ok(())
    }

    /// Copies what lies in `run` of `from`, if that lies at `within`.
    fn copy_within(&self, piece: &Piece, run: &Range<u64>, within: u64, from: &[u8]) -> Result<()> {
        let start = run.start.max(within);
        let end = run.end.min(within.saturating_add(from.len() as u64));
        if start >= end {
            return Ok(());
        }
        let part = from.get((start - within) as usize..(end - within) as usize);
        self.device_in(piece, start, part.unwrap_or(&[]))
    }

    /// Says that thread `me`, the calling one, is about to claim granules.
    fn announce(&self, piece: &Piece, me: u32) -> Result<()> {
        let _ = self.states.claimer(piece.slot)?.fetch_update(SeqCst, SeqCst, |holder| {
            if holder == me || holder & MANY != 0 {
                None
            } else if holder == 0 || wait::is_dead(holder) {
                Some(me)
            } else {
                Some(MANY)
            }
        });
        Ok(())
    }

    /// Ends `announce`: what `me` had claimed is defined.
    fn retire(&self, piece: &Piece, me: u32) -> Result<()> {
        let claimer = self.states.claimer(piece.slot)?;
        let _ = claimer.compare_exchange(me, 0, SeqCst, Relaxed);
        Ok(())
    }

    /// Makes every granule of `piece`, a piece of `inode`, defined, for who will reach its bytes without
    /// these protocols: a shared mapping.
    ///
    /// # Errors
    /// What the device says.
    pub fn define_all(
        &self,
        pins: &SessionPins<'_>,
        inode: Inode,
        piece: &Piece,
    ) -> Result<Copied> {
        let _pin = pins.pin(piece.slot)?;
        if self.table.is(inode, piece) {
            self.define(piece, all_granules(piece.length_log2)).map(Ok)
        } else {
            Ok(Err(Moved))
        }
    }

    /// Makes the granules of `within .. within + length` defined, for bytes that come to their place
    /// from a socket: nobody knows when, so no claim may wait for them.
    ///
    /// # Errors
    /// `EIO` for a range outside the piece, or what the device says.
    pub fn define_range(&self, piece: &Piece, within: u64, length: usize) -> Result<()> {
        check_range(piece, within, length)?;
        self.define(piece, granules(piece, within, length))
    }

    fn define(&self, piece: &Piece, granules: u64) -> Result<()> {
        let mine = self.fill_free(piece, granules, 0, &[])?;
        self.await_defined(piece, granules & !mine)
    }

    /// True if every granule of `within .. within + length` is defined: the device holds what is to
    /// be read there.
    ///
    /// # Errors
    /// `EIO` for a range outside the piece.
    pub fn is_defined(&self, piece: &Piece, within: u64, length: usize) -> Result<bool> {
        check_range(piece, within, length)?;
        let touched = granules(piece, within, length);
        Ok(self.states.valid(piece.slot)?.load(Acquire) & touched == touched)
    }

    /// Waits until `granules`, of which the caller has claimed none, are defined. What the dead
    /// left, and what became a hole meanwhile, is zeroed.
    fn await_defined(&self, piece: &Piece, granules: u64) -> Result<()> {
        let mut rest = granules & !self.states.valid(piece.slot)?.load(Acquire);
        while rest != 0 {
            self.await_granule(piece, rest.trailing_zeros().into())?;
            rest &= rest - 1;
        }
        Ok(())
    }

    fn await_granule(&self, piece: &Piece, granule: u64) -> Result<()> {
        let bit = 1u64 << granule;
        let valid = self.states.valid(piece.slot)?;
        let claimed = self.states.claimed(piece.slot)?;
        let me = wait::thread_id();
        let mut patience = Patience { backoff: Backoff::new(), holder: 0, since: None };
        while valid.load(Acquire) & bit == 0 {
            if claimed.load(Acquire) & bit == 0 {
                self.fill_free(piece, bit, 0, &[])?;
                continue;
            }
            if !patience.take_over(self.states.claimer(piece.slot)?, me) {
                continue;
            }
            // Between the two looks above the granule may have been defined and written.
            let is_left = valid.load(Acquire) & bit == 0;
            let zeroed = if is_left { self.fill_all(piece, bit, 0, &[]) } else { Ok(()) };
            if is_left && zeroed.is_ok() {
                valid.fetch_or(bit, AcqRel);
            }
            self.retire(piece, me)?;
            zeroed?;
        }
        Ok(())
    }

    /// Makes `length` bytes at `within` read as zeros.
    ///
    /// # Errors
    /// What the device says.
    pub fn zero_pinned(&self, piece: &Piece, within: u64, length: u64) -> Result<()> {
        let log2 = granule_log2(piece.length_log2);
        let end = within.saturating_add(length).min(piece.length());
        let whole = (within + (1 << log2) - 1) >> log2;
        let whole_end = end >> log2;
        let valid = self.states.valid(piece.slot)?.load(Acquire);
        let mut at = within;
        while at < end {
            let granule = at >> log2;
            let next = ((granule + 1) << log2).min(end);
            let is_whole = granule >= whole && granule < whole_end;
            if !is_whole && valid & (1 << granule) != 0 {
                self.device_zero(piece, at, next - at)?;
            }
            at = next;
        }
        if whole < whole_end {
            self.states.forget(piece.slot, mask(whole, whole_end - 1))?;
        }
        Ok(())
    }
}

/// The wait of one writer for the claimer of a granule.
struct Patience {
    backoff: Backoff,
    /// The claimer word as last seen, and since when.
    holder: u32,
    since: Option<u64>,
}

impl Patience {
    /// Spends a moment. True if the caller is to fill the granule: he is announced instead of the
    /// dead, or of who was too slow.
    fn take_over(&mut self, claimer: &AtomicU32, me: u32) -> bool {
        if self.backoff.pause() == Next::Look {
            return false;
        }
        sync::sched_yield();
        let (holder, now) = (claimer.load(SeqCst), wait::now_micros());
        if self.since.is_none() || self.holder != holder {
            (self.holder, self.since) = (holder, Some(now));
        }
        let is_over = now.saturating_sub(self.since.unwrap_or(now)) >= CLAIM_MICROS_MAX;
        let next = if holder & MANY != 0 {
            is_over.then(|| MANY | (holder + 1))
        } else if wait::is_dead(holder) {
            Some(me)
        } else {
            // Who merely stood still goes on later, so there are two from now on.
            is_over.then_some(MANY)
        };
        next.is_some_and(|next| claimer.compare_exchange(holder, next, SeqCst, Relaxed).is_ok())
    }
}

/// Where offset `within` of a piece in memory lies.
fn place(piece: &Piece, within: u64) -> Result<u64> {
    piece.place.checked_add(within).ok_or(Errno::EIO)
}

fn check_range(piece: &Piece, within: u64, length: usize) -> Result<()> {
    match within.checked_add(length as u64) {
        Some(end) if end <= piece.length() => Ok(()),
        _ => Err(Errno::EIO),
    }
}

/// The granules that `length` bytes from `within` on touch.
const fn granules(piece: &Piece, within: u64, length: usize) -> u64 {
    let log2 = granule_log2(piece.length_log2);
    if length == 0 { 0 } else { mask(within >> log2, (within + length as u64 - 1) >> log2) }
}

/// Bits `first ..= last`.
const fn mask(first: u64, last: u64) -> u64 {
    let upper = u64::MAX >> 63u64.saturating_sub(last);
    if first >= 64 { 0 } else { upper & (u64::MAX << first) }
}

/// The bytes of `granules`, those of neighbours together.
fn runs(piece: &Piece, granules: u64) -> impl Iterator<Item = Range<u64>> + use<> {
    let (log2, length) = (granule_log2(piece.length_log2), piece.length());
    let mut rest = granules;
    core::iter::from_fn(move || {
        let first = (rest != 0).then(|| rest.trailing_zeros())?;
        let count = (rest >> first).trailing_ones();
        rest &= !mask(first.into(), u64::from(first + count) - 1);
        Some(u64::from(first) << log2..(u64::from(first + count) << log2).min(length))
    })
}

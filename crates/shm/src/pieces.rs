//! The piece table: which file's bytes lie in which part of a target.
//!
//! Two segments with a row for each slot, and a third. *Headers* (32 bytes) are written by the daemon and
//! mapped read-only by clients:
//!
//!   0   inode   u64   0: no piece; top bit: hidden for a moment, and may be shown again; the next: gone
//!   8   start   u64   first offset in the file
//!   16  place   u64   offset in the arena or the SSD file
//!   24  shape   u32   log2 of the length, tier << 8
//!   28  check   u32   mixed from the other fields: a torn row is recognised after a crash
//!
//! *States* (24 bytes), written by clients too:
//!
//!   0   valid    u64   bit i: granule i holds defined bytes; unset: it reads as zeros
//!   8   claimed  u64   bit i: somebody fills granule i
//!   16  heir     u32   thread that takes over what the dead had claimed; 0: nobody
//!   20  marks    u32   bit 0: nobody asked for the piece (*early*); it may be taken back while nothing
//!                      is defined. Bit 1: nobody used it since that was last looked at; bit 2:
//!                      somebody mapped it; bit 3: its bytes lie below, too (*clean*), which whoever
//!                      changes one takes away first; bit 5: they are being saved there, and were not
//!                      changed since that began. Above them: how often granules were forgotten
//!
//! A granule is a page, so the two words are enough for 256 KiB, a *stretch*. Longer pieces are whole
//! stretches of their device, and have such two words for each where the third segment has them by
//! place: 32 bytes for each 256 KiB, 16 of the arena's stretch there and 16 of the SSD file's. So rows
//! of small files stay short and near each other, and one piece's words can not be another's.
//!
//! Publishing stores place, start, shape, check, then the inode (release). Unpublishing sets a bit of
//! the inode, then a fence, then the daemon looks for pins (`pins`); a client pins, fences, and looks at
//! the inode again. One of the two sees the other, so a place is never re-used under a copy. The rest of
//! the row stays: a daemon that takes over learns from it what a pin of before holds.

use crate::segment::{Row, Segment};
use crate::sync::{AtomicU32, AtomicU64, fence};
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use wire::Inode;
use wire::errno::{Errno, Result};
use wire::limits::CHUNK_LOG2_MAX;
use wire::reply::Piece;

/// Bytes of one header.
pub const HEADER_BYTES: usize = 32;
/// Bytes of one state.
pub const STATE_BYTES: usize = 24;
/// log2 of a granule's bytes: a page.
pub const GRANULE_LOG2: u8 = 12;
/// log2 of the bytes of 64 granules, those of one word.
pub const STRETCH_LOG2: u8 = GRANULE_LOG2 + 6;
/// Bytes of the words of a stretch of both devices.
const STRETCH_BYTES: usize = 2 * size_of::<Granules>();

/// Length of the segment of stretches for a target whose longer device has so many bytes.
#[must_use]
pub const fn stretches_bytes(device: u64) -> u64 {
    let count = (device >> STRETCH_LOG2).saturating_add(1);
    count.saturating_mul(STRETCH_BYTES as u64)
}

/// The `valid` word of each stretch of a piece whose every granule is defined.
#[must_use]
pub const fn all_granules(length_log2: u8) -> u64 {
    if length_log2 >= STRETCH_LOG2 {
        return u64::MAX;
    }
    (1 << (1u64 << length_log2.saturating_sub(GRANULE_LOG2))) - 1
}

/// What is known of the granules of a stretch.
#[repr(C)]
pub struct Granules {
    /// Those that hold defined bytes; the others read as zeros.
    pub valid: AtomicU64,
    /// Those that somebody fills or filled.
    pub claimed: AtomicU64,
}

// SAFETY: two atomics. WHY: each copy of a file's bytes looks at one.
unsafe impl Row for Granules {}

impl Granules {
    fn reset(&self, valid: u64) {
        self.valid.store(valid, Relaxed);
        self.claimed.store(valid, Relaxed);
    }
}

/// A state's words.
#[repr(C)]
struct State {
    granules: Granules,
    heir: AtomicU32,
    marks: AtomicU32,
}

// SAFETY: atomics in the order of the table above. WHY: each copy of a file's bytes looks at one.
unsafe impl Row for State {}

const _: () = assert!(size_of::<State>() == STATE_BYTES);

/// A header's words.
#[repr(C)]
struct Header {
    inode: AtomicU64,
    start: AtomicU64,
    place: AtomicU64,
    shape: AtomicU32,
    check: AtomicU32,
}

// SAFETY: atomics in the order of the table above. WHY: each copy of a file's bytes looks at one.
unsafe impl Row for Header {}

const _: () = assert!(size_of::<Header>() == HEADER_BYTES);

const fn shape_of(piece: &Piece) -> u32 {
    piece.length_log2 as u32 | (piece.tier as u32) << 8
}

/// In the inode word: the row is hidden. No inode number has it, so the row's checksum is wrong then.
const HIDDEN: u64 = 1 << 63;
/// In the inode word: the row held a piece. Its checksum is wrong, too, then.
const GONE: u64 = 1 << 62;

/// The headers.
pub struct PieceTable {
    segment: Segment,
}

fn check_of(inode: u64, start: u64, place: u64, shape: u32) -> u32 {
    let mixed = wire::hash::mix(wire::hash::mix(inode, start), place ^ u64::from(shape));
    (mixed ^ (mixed >> 32)) as u32
}

impl PieceTable {
    /// Takes the mapping.
    #[must_use]
    pub const fn new(segment: Segment) -> PieceTable {
        PieceTable { segment }
    }

    /// Number of slots.
    #[must_use]
    pub const fn count(&self) -> u32 {
        (self.segment.len() / HEADER_BYTES) as u32
    }

    #[inline]
    fn header(&self, slot: u32) -> Result<&Header> {
        self.segment.row(slot as usize * HEADER_BYTES)
    }

    /// Shows a piece of `inode` to clients.
    ///
    /// # Errors
    /// `EIO` for a slot that does not exist.
    pub fn publish(&self, inode: Inode, piece: &Piece) -> Result<()> {
        let (header, shape) = (self.header(piece.slot)?, shape_of(piece));
        header.place.store(piece.place, Relaxed);
        header.start.store(piece.start, Relaxed);
        header.shape.store(shape, Relaxed);
        let own = inode.0 & !(HIDDEN | GONE);
        header.check.store(check_of(own, piece.start, piece.place, shape), Relaxed);
        header.inode.store(inode.0, Release);
        Ok(())
    }

    /// Notes a piece that no client is to see: it is as one that is hidden.
    ///
    /// # Errors
    /// `EIO` for a slot that does not exist.
    pub fn publish_hidden(&self, inode: Inode, piece: &Piece) -> Result<()> {
        self.publish(Inode(inode.0 | HIDDEN), piece)
    }

    /// Notes a place that may hold bytes, and is no piece's: it is as one that was taken away.
    ///
    /// # Errors
    /// `EIO` for a slot that does not exist.
    pub fn publish_gone(&self, inode: Inode, piece: &Piece) -> Result<()> {
        self.publish(Inode(inode.0 | GONE), piece)
    }

    /// Empties a row.
    ///
    /// # Errors
    /// `EIO` for a slot that does not exist.
    pub fn clear(&self, slot: u32) -> Result<()> {
        self.header(slot)?.inode.store(0, Release);
        Ok(())
    }

    /// Takes a piece away. Its place may be used anew when nobody pins the slot any more.
    ///
    /// # Errors
    /// `EIO` for a slot that does not exist.
    pub fn unpublish(&self, slot: u32) -> Result<()> {
        self.header(slot)?.inode.fetch_or(GONE, SeqCst);
        fence(SeqCst);
        Ok(())
    }

    /// Hides a piece that may be shown again, as after a kill: nothing of it is lost.
    ///
    /// # Errors
    /// `EIO` for a slot that does not exist.
    pub fn hide(&self, slot: u32) -> Result<()> {
        self.header(slot)?.inode.fetch_or(HIDDEN, SeqCst);
        fence(SeqCst);
        Ok(())
    }

    /// Ends `hide`.
    ///
    /// # Errors
    /// `EIO` for a slot that does not exist.
    pub fn show(&self, slot: u32) -> Result<()> {
        self.header(slot)?.inode.fetch_and(!HIDDEN, SeqCst);
        Ok(())
    }

    /// The piece of `slot` and its file, `None` for an empty or torn row.
    #[must_use]
    pub fn get(&self, slot: u32) -> Option<(Inode, Piece)> {
        let inode = self.header(slot).ok()?.inode.load(Acquire);
        Some((Inode(inode), self.row(slot, inode)?))
    }

    /// The piece of `slot` and its file, if it is hidden for a moment.
    #[must_use]
    pub fn hidden(&self, slot: u32) -> Option<(Inode, Piece)> {
        let inode = self.header(slot).ok()?.inode.load(Acquire);
        let is_hidden = inode & (HIDDEN | GONE) == HIDDEN;
        let inode = inode & !HIDDEN;
        if is_hidden { Some((Inode(inode), self.row(slot, inode)?)) } else { None }
    }

    /// The piece that `slot` held until it was taken away; `None` if it holds one, or never did.
    #[must_use]
    pub fn gone(&self, slot: u32) -> Option<Piece> {
        let inode = self.header(slot).ok()?.inode.load(Acquire);
        if inode & GONE == 0 { None } else { self.row(slot, inode & !(GONE | HIDDEN)) }
    }

    /// The rest of a row, if it is of `inode`.
    fn row(&self, slot: u32, inode: u64) -> Option<Piece> {
        let header = self.header(slot).ok()?;
        let start = header.start.load(Relaxed);
        let place = header.place.load(Relaxed);
        let shape = header.shape.load(Relaxed);
        let check = header.check.load(Relaxed);
        if inode == 0 || check != check_of(inode, start, place, shape) {
            return None;
        }
        let (length_log2, tier) = ((shape & 0xff) as u8, (shape >> 8) as u8);
        let piece = Piece { start, slot, place, length_log2, tier };
        (length_log2 <= CHUNK_LOG2_MAX).then_some(piece)
    }

    /// True if the row of `piece` says that it is `inode`'s now. All of it is compared with what is
    /// known, so its checksum says no more.
    #[must_use]
    #[inline]
    pub fn is(&self, inode: Inode, piece: &Piece) -> bool {
        let Ok(header) = self.header(piece.slot) else { return false };
        header.inode.load(Acquire) == inode.0
            && header.start.load(Relaxed) == piece.start
            && header.place.load(Relaxed) == piece.place
            && header.shape.load(Relaxed) == shape_of(piece)
            && !inode.is_none()
            && piece.length_log2 <= CHUNK_LOG2_MAX
    }
}

/// In the marks of a state: nobody asked for the piece.
const EARLY: u32 = 1;
/// Nobody used the piece. Said this way round, so that who writes finds by one test that there is nothing
/// for him to note.
const UNUSED: u32 = 2;
/// Somebody mapped it.
const MAPPED: u32 = 4;
/// Its bytes lie in the backing directory, too.
const CLEAN: u32 = 8;
/// Its file stays in memory.
const RESIDENT: u32 = 16;
/// Its bytes are being saved in the backing directory, and none was changed since that began.
const SAVING: u32 = 32;
/// What a round of forgetting adds to the marks.
const FORGOTTEN_ONE: u32 = 64;

/// What is done with a piece.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Use {
    /// Its bytes are read.
    Read,
    /// Some may be changed, from now on.
    Write,
}

impl Use {
    /// Marks that are to be taken away before.
    const fn ends(self) -> u32 {
        match self {
            Use::Read => UNUSED,
            Use::Write => UNUSED | CLEAN | SAVING,
        }
    }
}

/// The states.
pub struct PieceStates {
    rows: Segment,
    stretches: Segment,
}

impl PieceStates {
    /// Takes the mappings of the rows and of the stretches.
    #[must_use]
    pub const fn new(rows: Segment, stretches: Segment) -> PieceStates {
        PieceStates { rows, stretches }
    }

    #[inline]
    fn state(&self, slot: u32) -> Result<&State> {
        self.rows.row(slot as usize * STATE_BYTES)
    }

    /// The granules of a stretch of a piece, counted from its first.
    ///
    /// # Errors
    /// `EIO` for a slot or a place that does not exist.
    #[inline]
    pub fn granules(&self, piece: &Piece, stretch: u64) -> Result<&Granules> {
        if piece.length_log2 <= STRETCH_LOG2 {
            return self.state(piece.slot).map(|state| &state.granules);
        }
        self.long_granules(piece, stretch)
    }

    /// As `granules`, for who uses them, under a pin: notes that, for who orders pieces by it, and who
    /// drops what is clean. Mostly it is noted already.
    ///
    /// # Errors
    /// As `granules`.
    #[inline]
    pub(crate) fn granules_in_use<const WRITES: bool>(
        &self,
        piece: &Piece,
        stretch: u64,
    ) -> Result<&Granules> {
        let how = if WRITES { Use::Write } else { Use::Read };
        let state = self.state(piece.slot)?;
        if state.marks.load(Relaxed) & how.ends() != 0 {
            note_first_use(&state.marks, how);
        }
        if piece.length_log2 <= STRETCH_LOG2 {
            return Ok(&state.granules);
        }
        self.long_granules(piece, stretch)
    }

    #[inline]
    fn long_granules(&self, piece: &Piece, stretch: u64) -> Result<&Granules> {
        let number = (piece.place >> STRETCH_LOG2) as usize + stretch as usize;
        let of_tier = usize::from(piece.tier != Piece::MEMORY) * size_of::<Granules>();
        self.stretches.row(number * STRETCH_BYTES + of_tier)
    }

    /// Who takes over what the dead had claimed.
    ///
    /// # Errors
    /// `EIO` for a slot that does not exist.
    pub fn heir(&self, slot: u32) -> Result<&AtomicU32> {
        self.state(slot).map(|state| &state.heir)
    }

    /// Starts a piece anew with the granules `valid` in each of its stretches, before it is published.
    ///
    /// # Errors
    /// `EIO` for a slot or a place that does not exist, or a place where the words would be another
    /// piece's, too.
    pub fn reset(&self, piece: &Piece, valid: u64) -> Result<()> {
        self.reset_each(piece, |_| Ok(valid))
    }

    /// Starts a piece anew with the granules of another that is as long, whose bytes were copied, before
    /// it is published; it is clean if that is. Nobody uses the other one meanwhile.
    ///
    /// # Errors
    /// As `reset`.
    pub fn reset_as(&self, from: &Piece, to: &Piece) -> Result<()> {
        self.reset_each(to, |stretch| Ok(self.granules(from, stretch)?.valid.load(Acquire)))?;
        if self.is_clean(from.slot) {
            self.set_clean(to.slot)?;
        }
        Ok(())
    }

    fn reset_each(&self, piece: &Piece, valid: impl Fn(u64) -> Result<u64>) -> Result<()> {
        if !piece.place.is_multiple_of(piece.length().min(1 << STRETCH_LOG2)) {
            return Err(Errno::EIO);
        }
        for stretch in 0..stretch_count(piece) {
            self.granules(piece, stretch)?.reset(valid(stretch)?);
        }
        self.marks(piece.slot)?.store(UNUSED, Relaxed);
        self.heir(piece.slot)?.store(0, Release);
        Ok(())
    }

    fn marks(&self, slot: u32) -> Result<&AtomicU32> {
        self.state(slot).map(|state| &state.marks)
    }

    /// Notes that nobody asked for a piece, before it is published, or that somebody did.
    ///
    /// # Errors
    /// `EIO` for a slot that does not exist.
    pub fn set_early(&self, slot: u32, is_early: bool) -> Result<()> {
        let marks = self.marks(slot)?;
        if is_early {
            marks.fetch_or(EARLY, Release);
        } else {
            marks.fetch_and(!EARLY, Release);
        }
        Ok(())
    }

    /// Notes whether a piece's file stays in memory.
    ///
    /// # Errors
    /// `EIO` for a slot that does not exist.
    pub fn set_resident(&self, slot: u32, is_resident: bool) -> Result<()> {
        let marks = self.marks(slot)?;
        match is_resident {
            true => marks.fetch_or(RESIDENT, Release),
            false => marks.fetch_and(!RESIDENT, Release),
        };
        Ok(())
    }

    /// True if a piece's file stays in memory.
    #[must_use]
    pub fn is_resident(&self, slot: u32) -> bool {
        self.marks(slot).is_ok_and(|marks| marks.load(Acquire) & RESIDENT != 0)
    }

    /// True if nobody asked for a piece.
    #[must_use]
    pub fn is_early(&self, slot: u32) -> bool {
        self.marks(slot).is_ok_and(|marks| marks.load(Acquire) & EARLY != 0)
    }

    /// Notes that a piece is in use, by who pins it.
    pub fn note_use(&self, slot: u32, how: Use) {
        let _ = self.marks(slot).map(|marks| note_first_use(marks, how));
    }

    /// True if a piece was used since this was last asked.
    #[must_use]
    pub fn take_use(&self, slot: u32) -> bool {
        let Ok(marks) = self.marks(slot) else { return false };
        marks.load(Relaxed) & UNUSED == 0 && marks.fetch_or(UNUSED, Relaxed) & UNUSED == 0
    }

    /// Notes that all bytes of a piece lie below, too, before it is published, or while it is hidden and
    /// nobody pins it: who writes looks at the mark under his pin.
    ///
    /// # Errors
    /// `EIO` for a slot that does not exist.
    pub fn set_clean(&self, slot: u32) -> Result<()> {
        self.marks(slot)?.fetch_or(CLEAN, SeqCst);
        Ok(())
    }

    /// The bytes of a piece that is shown are about to be read, to be saved below. False, and nothing is
    /// noted, if somebody mapped it. Who pinned it before may change bytes and not see the mark: then it
    /// is to be taken away (`stop_saving`) before anything is read.
    ///
    /// # Errors
    /// `EIO` for a slot that does not exist.
    pub fn begin_saving(&self, slot: u32) -> Result<bool> {
        let marks = self.marks(slot)?.fetch_or(SAVING, SeqCst);
        fence(SeqCst);
        if marks & MAPPED != 0 {
            self.stop_saving(slot)?;
        }
        Ok(marks & MAPPED == 0)
    }

    /// As if its saving had not begun.
    ///
    /// # Errors
    /// `EIO` for a slot that does not exist.
    pub fn stop_saving(&self, slot: u32) -> Result<()> {
        self.marks(slot)?.fetch_and(!SAVING, SeqCst);
        Ok(())
    }

    /// What was read of a piece is saved: it is clean if no byte was changed since that began. True if it
    /// is. One that was begun by somebody who does not end it is not clean by that.
    ///
    /// # Errors
    /// `EIO` for a slot that does not exist.
    pub fn end_saving(&self, slot: u32) -> Result<bool> {
        let marks = self.marks(slot)?;
        let mut now = marks.load(SeqCst);
        loop {
            let is_saved = now & (SAVING | MAPPED) == SAVING;
            let then = if is_saved { (now & !SAVING) | CLEAN } else { now & !SAVING };
            match marks.compare_exchange(now, then, SeqCst, SeqCst) {
                Ok(_) => return Ok(is_saved),
                Err(other) => now = other,
            }
        }
    }

    /// True if no byte of a piece was changed since it was clean. That holds on of one that is hidden and
    /// that nobody pins.
    #[must_use]
    pub fn is_clean(&self, slot: u32) -> bool {
        self.marks(slot).is_ok_and(|marks| marks.load(SeqCst) & CLEAN != 0)
    }

    /// True if a piece was used since `take_use` was last asked.
    #[must_use]
    pub fn is_used(&self, slot: u32) -> bool {
        self.marks(slot).is_ok_and(|marks| marks.load(Relaxed) & UNUSED == 0)
    }

    /// Notes that somebody maps a piece, who pins it: it is to stay where it is.
    ///
    /// # Errors
    /// `EIO` for a slot that does not exist.
    pub fn note_mapping(&self, slot: u32) -> Result<()> {
        self.marks(slot)?.fetch_or(MAPPED, SeqCst);
        Ok(())
    }

    /// Nobody maps the piece any more, which is hidden and which nobody pins.
    ///
    /// # Errors
    /// `EIO` for a slot that does not exist.
    pub fn forget_mapping(&self, slot: u32) -> Result<()> {
        self.marks(slot)?.fetch_and(!MAPPED, SeqCst);
        Ok(())
    }

    /// True if somebody mapped a piece, and may still.
    #[must_use]
    pub fn is_mapped(&self, slot: u32) -> bool {
        self.marks(slot).is_ok_and(|marks| marks.load(SeqCst) & MAPPED != 0)
    }

    /// True if nothing was ever written into a piece, or nothing since it was cleared.
    #[must_use]
    pub fn is_hole(&self, piece: &Piece) -> bool {
        let is_empty = |stretch| {
            self.granules(piece, stretch).is_ok_and(|granules| granules.valid.load(SeqCst) == 0)
        };
        (0..stretch_count(piece)).all(is_empty)
    }

    /// Changes whenever granules are forgotten.
    ///
    /// # Errors
    /// `EIO` for a slot that does not exist.
    pub fn times_forgotten(&self, slot: u32) -> Result<u32> {
        Ok(self.marks(slot)?.load(SeqCst) & !(EARLY | UNUSED | MAPPED | CLEAN | RESIDENT | SAVING))
    }

    /// Forgets those of `granules`, of the piece in `slot`, that are in `mask`: they read as zeros from
    /// now on.
    ///
    /// # Errors
    /// `EIO` for a slot that does not exist.
    pub fn forget(&self, slot: u32, granules: &Granules, mask: u64) -> Result<()> {
        self.marks(slot)?.fetch_add(FORGOTTEN_ONE, SeqCst);
        // One that somebody fills right now stays his. The claim goes first: a granule that is
        // claimed and undefined would look like one that a dead writer left.
        let defined = mask & granules.valid.load(SeqCst);
        granules.claimed.fetch_and(!defined, SeqCst);
        granules.valid.fetch_and(!defined, SeqCst);
        Ok(())
    }
}

/// Once after each look. The order is that of the bytes and of the pin: who finds none any more finds the
/// mark away.
#[cold]
#[inline(never)]
fn note_first_use(marks: &AtomicU32, how: Use) {
    marks.fetch_and(!how.ends(), SeqCst);
}

/// Stretches of a piece, one at least.
const fn stretch_count(piece: &Piece) -> u64 {
    1 << piece.length_log2.saturating_sub(STRETCH_LOG2)
}

/// Checks a piece against the length of what it lies in.
///
/// # Errors
/// `EIO` if it does not fit.
pub fn admit(piece: &Piece, space: u64) -> Result<()> {
    match piece.place.checked_add(piece.length()) {
        Some(end) if end <= space => Ok(()),
        _ => Err(Errno::EIO),
    }
}

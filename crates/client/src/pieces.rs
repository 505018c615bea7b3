//! Pieces: the bytes of a file that is not inline, on this host by copying, elsewhere by `far`.
//!
//! Where a piece lies is asked once and remembered by the process. What is remembered may be wrong:
//! the piece table is looked at under the pin before each copy (`shm::piece_io`). By whom it is reached
//! is remembered with it, as far as no attachment changed since.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicU32, AtomicU64, fence};
use placement::piece::{self, Span};
use shm::host::Cuts;
use wire::codec::{Field, Reader};
use wire::errno::{Errno, Result};
use wire::hash::neighbourly_piece;
use wire::limits::FILE_BYTES_MAX;
use wire::reply::Piece;
use wire::request::ANY_CUTS;
use wire::{DaemonIndex, Inode, Reply, Request};

use crate::Client;
use crate::attach::Attachment;
use crate::far::{Bytes, Far};
use crate::layout::File;
use crate::opened::Open;
use crate::request::{To, own_credentials};

/// Pieces remembered by a process, a power of two: 4 Ki pieces of up to a chunk, 160 KiB.
const CACHE_ROWS: usize = 4096;
/// How often a piece that moved is asked for again before the daemon is not believed.
pub(crate) const MOVES_MAX: u32 = 64;
/// Chunks that one message asks for: an answer holds a few hundred pieces.
const CHUNKS_AHEAD_MAX: u64 = 64;
/// Who has written so much of a file from its beginning on is taken for one who goes on: then pieces for
/// what he comes to are asked for in the same message.
const GOES_ON_BYTES: u64 = 64 << 10;
/// So many times what the file has, ahead: 8 MiB in blocks of 1 MiB take one message.
const AHEAD_TIMES: u64 = 7;
/// And no more than this: each file that is being written holds so much memory that it may not need,
/// and memory that nobody used before costs more than the messages that this saves.
const AHEAD_BYTES_MAX: u64 = 16 << 20;

/// By whom a piece of this host is reached, in one word: upper half the state of the attachments in
/// which that was found, then 16 bits for the attachment by its number in this process, 0: by none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Through(u64);

impl Through {
    const SHIFT: u32 = 16;

    fn new(state: u32, number: u32) -> Through {
        Through(u64::from(state) << 32 | u64::from(number & 0xffff) << Through::SHIFT)
    }

    const fn number(self) -> u32 {
        (self.0 >> Through::SHIFT) as u32 & 0xffff
    }

    const fn state(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

/// One remembered piece. The sequence is odd while the row is written.
struct Row {
    sequence: AtomicU32,
    slot: AtomicU32,
    inode: AtomicU64,
    start: AtomicU64,
    place: AtomicU64,
    /// log2 of the length, the tier, 8 bits each; then `Through`.
    shape: AtomicU64,
}

impl Row {
    const fn new() -> Row {
        Row {
            sequence: AtomicU32::new(0),
            slot: AtomicU32::new(0),
            inode: AtomicU64::new(0),
            start: AtomicU64::new(0),
            place: AtomicU64::new(0),
            shape: AtomicU64::new(0),
        }
    }

    fn set(&self, inode: Inode, piece: &Piece, through: Through) {
        let before = self.sequence.load(Relaxed);
        let odd = before | 1;
        // Somebody else writes the row, or died in it by a fork: leave it, it is only a cache.
        let taken = self.sequence.compare_exchange(before & !1, odd, Acquire, Relaxed);
        if taken.is_err() {
            return;
        }
        fence(Release);
        self.inode.store(inode.0, Relaxed);
        self.start.store(piece.start, Relaxed);
        self.slot.store(piece.slot, Relaxed);
        self.place.store(piece.place, Relaxed);
        let shape = u64::from(piece.length_log2) | u64::from(piece.tier) << 8;
        self.shape.store(shape | through.0, Relaxed);
        self.sequence.store(odd.wrapping_add(1), Release);
    }

    #[inline]
    fn get(&self, inode: Inode, start: u64) -> Option<(Piece, Through)> {
        let before = self.sequence.load(Acquire);
        if before & 1 != 0
            || self.inode.load(Relaxed) != inode.0
            || self.start.load(Relaxed) != start
        {
            return None;
        }
        let shape = self.shape.load(Relaxed);
        let piece = Piece {
            start,
            slot: self.slot.load(Relaxed),
            place: self.place.load(Relaxed),
            length_log2: shape as u8,
            tier: (shape >> 8) as u8,
        };
        fence(Acquire);
        let through = Through(shape >> Through::SHIFT << Through::SHIFT);
        (self.sequence.load(Relaxed) == before).then_some((piece, through))
    }
}

/// What the process remembers of pieces.
pub(crate) struct Cache {
    rows: [Row; CACHE_ROWS],
}

impl Cache {
    pub(crate) const fn new() -> Cache {
        Cache { rows: [const { Row::new() }; CACHE_ROWS] }
    }

    fn row(&self, inode: Inode, start: u64) -> Option<&Row> {
        self.rows.get(neighbourly_piece(inode, start, 0) as usize % CACHE_ROWS)
    }

    #[inline]
    fn get(&self, inode: Inode, start: u64) -> Option<(Piece, Through)> {
        self.row(inode, start)?.get(inode, start)
    }

    fn put(&self, inode: Inode, piece: &Piece, through: Through) {
        if let Some(row) = self.row(inode, piece.start) {
            row.set(inode, piece, through);
        }
    }

    fn forget(&self, inode: Inode, start: u64) {
        let none = Piece { start: 0, slot: 0, place: 0, length_log2: 0, tier: 0 };
        if let Some(row) = self.row(inode, start).filter(|row| row.get(inode, start).is_some()) {
            row.set(Inode::NONE, &none, Through(0));
        }
    }
}

/// What a piece is wanted for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Want {
    Read,
    Write,
}

/// Where a piece lies.
enum Near<'a> {
    /// Here, with this daemon of the host.
    Piece(&'a Attachment, Piece),
    /// On this host, but nobody made it.
    Hole,
    /// On another host.
    Elsewhere,
}

/// What who reads finds.
enum ToRead<'a> {
    /// Here, with this daemon of the host.
    Piece(&'a Attachment, Piece),
    /// The piece is on another host.
    Elsewhere,
    /// There is none, and he has his bytes.
    Done,
}

/// What a target answered.
struct Mapped {
    /// The piece that starts where the question did.
    first: Option<Piece>,
    /// End of the last piece.
    end: u64,
}

impl Client {
    /// Reads `to.len()` bytes at `offset`. Holes, and what lies beyond everything written, are
    /// zeros.
    ///
    /// # Errors
    /// `EIO`.
    #[inline]
    pub(crate) fn read_pieces(&self, file: &File, offset: u64, to: &mut [u8]) -> Result<()> {
        let (mut done, count) = (0usize, to.len());
        while done < count {
            let (span, at) = span_at(file, offset, done);
            let length = length_in(&span, at, count.saturating_sub(done));
            let part = to.get_mut(done..done.saturating_add(length)).ok_or(Errno::EIO)?;
            if !self.read_piece(file, &span, at, part)? {
                let moved = self.move_all(file, None, offset, done, &mut Bytes::Into(to));
                return moved.map_err(|(_, errno)| errno);
            }
            done = done.saturating_add(length);
        }
        Ok(())
    }

    /// Writes `from` at `offset`; the number of bytes written, fewer than wanted when space ran
    /// out on the way. With `behind`, those for other hosts may be on their way afterwards. No byte is
    /// written on this host once `still` refuses; nor, in the mode `posix`, on others once the file was
    /// cut more than `cuts`.
    ///
    /// # Errors
    /// `ENOSPC` if nothing was written, `EIO`, what `still` says.
    pub(crate) fn write_pieces(
        &self,
        open: &Open<'_>,
        offset: u64,
        from: &[u8],
        behind: bool,
        (cuts, still): (Option<Cuts>, impl Fn() -> Result<()> + Copy),
    ) -> Result<usize> {
        let mut file = self.reach(open, offset.saturating_add(from.len() as u64))?;
        if file.is_posix() {
            file.good_for = cuts.map_or(ANY_CUTS, Cuts::number);
        }
        let file = &file;
        let _changing = self.changing(open.vnode);
        let outcome = match self.write_near(file, offset, from, still) {
            Ok(done) if done == from.len() => Ok(()),
            Ok(done) => {
                let behind = behind.then_some(open);
                still().map_err(|refused| (done, refused)).and_then(|()| {
                    self.move_all(file, behind, offset, done, &mut Bytes::From(from))
                })
            }
            Err(failed) => Err(failed),
        };
        match outcome {
            Ok(()) => Ok(from.len()),
            Err((done, _)) if done > 0 => Ok(done),
            Err((_, errno)) => Err(errno),
        }
    }

    /// Writes the bytes before the first that lies on another host; how many they are.
    ///
    /// # Errors
    /// How many bytes before the first that failed.
    #[inline]
    fn write_near(
        &self,
        file: &File,
        offset: u64,
        from: &[u8],
        still: impl Fn() -> Result<()> + Copy,
    ) -> core::result::Result<usize, (usize, Errno)> {
        let (mut done, count) = (0usize, from.len());
        while done < count {
            let (span, at) = span_at(file, offset, done);
            let rest = from.get(done..).unwrap_or(&[]);
            let length = length_in(&span, at, rest.len());
            let part = rest.get(..length).unwrap_or(rest);
            match self.write_piece(file, &span, at, part, (rest.len() as u64, still)) {
                Ok(true) => done = done.saturating_add(length),
                Ok(false) => break,
                Err(errno) => return Err((done, errno)),
            }
        }
        Ok(done)
    }

    /// Moves the caller's bytes behind the first `done`, each piece where it lies. Those of other hosts
    /// may be under way afterwards if they are written behind.
    ///
    /// # Errors
    /// How many bytes before the first that failed.
    #[inline(never)]
    fn move_all(
        &self,
        file: &File,
        behind: Option<&Open<'_>>,
        offset: u64,
        done: usize,
        bytes: &mut Bytes<'_>,
    ) -> core::result::Result<(), (usize, Errno)> {
        let mut far = Far::new(self, file, behind);
        let outcome = self.move_each(&mut far, file, offset, done, bytes);
        // It may know of an earlier one that failed.
        far.finish(bytes).and(outcome)
    }

    fn move_each<'a>(
        &'a self,
        far: &mut Far<'a>,
        file: &'a File,
        offset: u64,
        done: usize,
        bytes: &mut Bytes<'_>,
    ) -> core::result::Result<(), (usize, Errno)> {
        let mut done = done;
        while done < bytes.len() {
            let (span, at) = span_at(file, offset, done);
            let length = length_in(&span, at, bytes.len().saturating_sub(done));
            let moved = match self.move_piece(file, &span, at, (done, length), bytes) {
                Ok(false) => self
                    .target_of(file, at)
                    .and_then(|target| far.start(target, &span, at, (done, length), bytes)),
                near => near.map(drop),
            };
            moved.map_err(|errno| (done, errno))?;
            done = done.saturating_add(length);
        }
        Ok(())
    }

    /// Moves what lies in one piece. False if it is on another host.
    fn move_piece(
        &self,
        file: &File,
        span: &Span,
        at: u64,
        (place, length): (usize, usize),
        bytes: &mut Bytes<'_>,
    ) -> Result<bool> {
        let range = place..place.saturating_add(length);
        match bytes {
            Bytes::Into(to) => {
                let part = to.get_mut(range).ok_or(Errno::EIO)?;
                self.read_piece(file, span, at, part)
            }
            Bytes::From(from) => {
                let ahead = from.len().saturating_sub(place) as u64;
                let part = from.get(range).ok_or(Errno::EIO)?;
                self.write_piece(file, span, at, part, (ahead, || Ok(())))
            }
            Bytes::Staged(..) => Err(Errno::EIO),
        }
    }

    /// The attachment of a target on this host, however long its daemon takes to come back.
    pub(crate) fn mapped(&self, target: DaemonIndex) -> Result<Option<&Attachment>> {
        if let Some(attachment) = self.local_now(target) {
            return Ok(Some(attachment));
        }
        let mut patience = self.patience_for_lost();
        loop {
            match self.local(target) {
                Ok(attachment) => return Ok(attachment),
                Err(_) => self.back_off(&mut patience)?,
            }
        }
    }

    /// Reads what lies in one piece. False if it is on another host.
    #[inline]
    fn read_piece(&self, file: &File, span: &Span, offset: u64, to: &mut [u8]) -> Result<bool> {
        let within = offset.saturating_sub(span.start);
        for _ in 0..MOVES_MAX {
            let (by, piece) = match self.remembered(file, span) {
                Some(known) => known,
                None => match self.find_to_read(file, span, offset, to)? {
                    ToRead::Piece(by, piece) => (by, piece),
                    ToRead::Elsewhere => return Ok(false),
                    ToRead::Done => return Ok(true),
                },
            };
            if by.target().read(&by.pins(), file.inode, &piece, within, to)?.is_ok() {
                return Ok(true);
            }
            self.cache.forget(file.inode, span.start);
        }
        Err(Errno::EIO)
    }

    /// The piece of `span`, of which `to` is wanted, or the bytes where there is none.
    #[inline(never)]
    fn find_to_read(
        &self,
        file: &File,
        span: &Span,
        offset: u64,
        to: &mut [u8],
    ) -> Result<ToRead<'_>> {
        match self.find_near(file, span, Want::Read, 0) {
            Ok(Near::Piece(by, piece)) => return Ok(ToRead::Piece(by, piece)),
            Ok(Near::Elsewhere) => return Ok(ToRead::Elsewhere),
            Ok(Near::Hole) => to.fill(0),
            Err(refused) => self.read_unkept(file, offset, to, refused)?,
        }
        Ok(ToRead::Done)
    }

    /// Writes what lies in one piece. False if it is on another host. `ahead` are the bytes from `offset`
    /// on that are to be written in all.
    #[inline]
    fn write_piece(
        &self,
        file: &File,
        span: &Span,
        offset: u64,
        from: &[u8],
        (ahead, still): (u64, impl Fn() -> Result<()> + Copy),
    ) -> Result<bool> {
        let within = offset.saturating_sub(span.start);
        for _ in 0..MOVES_MAX {
            let (by, piece) = match self.remembered(file, span) {
                Some(known) => known,
                None => {
                    match self.find_near(file, span, Want::Write, ahead.saturating_add(within))? {
                        Near::Piece(by, piece) => (by, piece),
                        Near::Hole => return Err(Errno::EIO),
                        Near::Elsewhere => return Ok(false),
                    }
                }
            };
            let (target, pins) = (by.target(), by.pins());
            if target.write_if(&pins, file.inode, &piece, within, from, still)?.is_ok() {
                return Ok(true);
            }
            self.cache.forget(file.inode, span.start);
        }
        Err(Errno::EIO)
    }

    /// The piece of `span` and by whom it is reached, if this process knows both.
    #[inline]
    fn remembered(&self, file: &File, span: &Span) -> Option<(&Attachment, Piece)> {
        let (piece, through) = self.cache.get(file.inode, span.start)?;
        if through.state() != self.attachments.state() {
            return None;
        }
        Some((self.attachments.numbered(through.number())?, piece))
    }

    /// The piece of `span` if it is on this host, and by whom it is reached. `ahead` as in `piece`.
    #[inline(never)]
    fn find_near(&self, file: &File, span: &Span, want: Want, ahead: u64) -> Result<Near<'_>> {
        let target = self.target_of(file, span.start)?;
        let through = self.through(target);
        let Some(by) = self.mapped(target)? else { return Ok(Near::Elsewhere) };
        let Some(piece) = self.piece(target, file, span, want, ahead)? else {
            return Ok(Near::Hole);
        };
        self.cache.put(file.inode, &piece, through);
        Ok(Near::Piece(by, piece))
    }

    /// How pieces of a target are reached from now on, until an attachment changes.
    fn through(&self, target: DaemonIndex) -> Through {
        let state = self.attachments.state();
        Through::new(state, self.local_number(target))
    }

    /// The piece of `span`, from memory or from its daemon. `ahead` are the bytes from the span's
    /// start on that the caller is about to write, too.
    pub(crate) fn piece(
        &self,
        target: DaemonIndex,
        file: &File,
        span: &Span,
        want: Want,
        ahead: u64,
    ) -> Result<Option<Piece>> {
        let is_right_length = |piece: &Piece| piece.length_log2 == span.length_log2;
        if let Some((piece, _)) = self.cache.get(file.inode, span.start) {
            return Ok(Some(piece));
        }
        let through = self.through(target);
        if let Some(by) = self.attachments.numbered(through.number())
            && let Some(piece) = by.find_piece(file.inode, span.start).filter(is_right_length)
            // Who made an early one does not know yet that the file is pinned.
            && (!file.is_pinned() || by.target().states.is_resident(piece.slot))
        {
            self.cache.put(file.inode, &piece, through);
            return Ok(Some(piece));
        }
        // Further pieces of the same target are asked for in the same message. With several targets, they
        // end with the chunk.
        let (length, left) = if !self.is_spread(file)? {
            (ahead.min(CHUNKS_AHEAD_MAX << file.chunk_log2()).max(span.length()), u64::MAX)
        } else {
            let chunk = 1u64 << file.chunk_log2();
            let left = chunk.saturating_sub(span.start & chunk.saturating_sub(1));
            (ahead.clamp(span.length(), left.max(span.length())), left)
        };
        let ahead = match want {
            Want::Read => 0,
            Want::Write => self.goes_on(file, span, length).min(left.saturating_sub(length)),
        };
        let allocate = want == Want::Write;
        let mapped = self.map_pieces(target, file, (span.start, length), ahead, allocate)?;
        Ok(mapped.first)
    }

    /// How far beyond `length` bytes from `span` on, which are about to be written, it seems that this
    /// process will write, too. It does not matter much if that is wrong: the target takes back what
    /// nobody writes to.
    fn goes_on(&self, file: &File, span: &Span, length: u64) -> u64 {
        let end = span.start.saturating_add(length);
        let wrote_before = |last: u64| {
            let before = piece::at(last, file.chunk_log2());
            self.cache.get(file.inode, before.start).is_some()
        };
        if end < GOES_ON_BYTES || !span.start.checked_sub(1).is_none_or(wrote_before) {
            return 0;
        }
        let ahead = end.saturating_mul(AHEAD_TIMES).min(AHEAD_BYTES_MAX);
        ahead.min(FILE_BYTES_MAX.saturating_sub(end))
    }

    /// Forgets where a piece lies.
    pub(crate) fn forget_piece(&self, file: &File, span: &Span) {
        self.cache.forget(file.inode, span.start);
    }

    /// Asks a target for pieces and remembers them.
    fn map_pieces(
        &self,
        target: DaemonIndex,
        file: &File,
        (offset, length): (u64, u64),
        ahead: u64,
        allocate: bool,
    ) -> Result<Mapped> {
        let request = Request::MapPieces {
            inode: file.inode,
            chunk_log2: file.chunk_word(),
            allocate: u8::from(allocate),
            offset,
            length,
            ahead,
        };
        let through = self.through(target);
        self.call(To::Target(target), &request, &own_credentials())?.with(|reply| {
            let Reply::Pieces { pieces } = reply else { return Err(Errno::EIO) };
            let mut reader = Reader::new(pieces);
            let mut mapped = Mapped { first: None, end: offset };
            while !reader.rest().is_empty() {
                let piece = Piece::take(&mut reader).map_err(|_| Errno::EIO)?;
                self.cache.put(file.inode, &piece, through);
                if piece.start == offset {
                    mapped.first = Some(piece);
                }
                mapped.end = mapped.end.max(piece.start.saturating_add(piece.length()));
            }
            Ok(mapped)
        })
    }

    /// Makes the pieces of `offset .. end` exist. `offset` starts a piece, and all of the range is
    /// one target's.
    ///
    /// # Errors
    /// `ENOSPC`, `EIO`.
    pub(crate) fn reserve_pieces(&self, file: &File, offset: u64, end: u64) -> Result<()> {
        let target = self.target_of(file, offset)?;
        let mut at = offset;
        while at < end {
            // A target that runs out of space answers with what it could make; asked for what is
            // missing it refuses.
            let mapped = self.map_pieces(target, file, (at, end.saturating_sub(at)), 0, true)?;
            if mapped.end <= at {
                return Err(Errno::EIO);
            }
            at = mapped.end;
        }
        Ok(())
    }
}

/// The piece of what lies `done` bytes behind `offset`, and where in the file that is.
#[inline]
fn span_at(file: &File, offset: u64, done: usize) -> (Span, u64) {
    let at = offset.saturating_add(done as u64);
    (piece::at(at, file.chunk_log2()), at)
}

/// Bytes from `offset` on that lie in `span`, at most `wanted`.
fn length_in(span: &Span, offset: u64, wanted: usize) -> usize {
    let left = span.end().saturating_sub(offset);
    usize::try_from(left).unwrap_or(usize::MAX).min(wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cache_gives_back_what_was_put_and_forgets() {
        let cache = std::boxed::Box::new(Cache::new());
        let piece = Piece { start: 1 << 20, slot: 9, place: 1 << 30, length_log2: 20, tier: 1 };
        let through = Through::new(u32::MAX, 256);
        assert_eq!((through.state(), through.number()), (u32::MAX, 256));
        assert_eq!(cache.get(Inode(5), 1 << 20), None);
        cache.put(Inode(5), &piece, through);
        assert_eq!(cache.get(Inode(5), 1 << 20), Some((piece, through)));
        assert_eq!(cache.get(Inode(6), 1 << 20), None);
        cache.forget(Inode(5), 1 << 20);
        assert_eq!(cache.get(Inode(5), 1 << 20), None);
    }
}

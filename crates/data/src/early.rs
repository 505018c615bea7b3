//! Early pieces: pieces that nobody asked for yet, so that who comes to write there finds them
//! (`shm::finder`, or an answer) and asks nobody. There are two kinds: the *first* pieces of files that
//! do not exist yet, made by the numbers that they will have; and those *ahead* of who writes a file from
//! its beginning on, made with the answer to what he asked for.
//!
//! An early piece is a hole: nothing is defined in it, and requests that look leave it out. It becomes
//! its file's own when bytes were written into it, which the caller sees and tells by
//! `Input::Wanted`, or when a request asks for it. Otherwise the caller takes it back by
//! `Input::Unwanted`, after it made sure that nobody writes any more.
//!
//!   none --MakeEarly, or a request ahead of which it is--> early
//!   early --Wanted, or a request that makes pieces there--> a piece like any other
//!   early --Unwanted, or a request that clears--> none
//!
//! Invariants:
//!  1. Each (file, start) of `Early::pieces` has a piece there, in memory.
//!  2. `Early::bytes` is the sum of their lengths.

use crate::accounts::is_first;
use crate::buddy::BLOCK_LOG2_MIN;
use crate::effect::{Defined, Effect};
use crate::target::{MAP_PIECES_MAX, Target};
use placement::piece::{self, Span};
use std::collections::BTreeSet;
use wire::Inode;
use wire::limits::{FILE_BYTES_MAX, PIECE_BYTES_MIN};
use wire::reply::Piece;

/// Early pieces are made only while more than one part in so many of the memory is free.
const FREE_PARTS: u64 = 4;
/// No further first pieces are made once early ones take one part in so many of it.
const FIRST_PARTS: u64 = 8;
/// Those ahead of writers only while early ones take less than this: they are large, and leave room for
/// the others.
const AHEAD_PARTS: u64 = 16;

/// Which pieces are early.
#[derive(Clone, Debug, Default)]
pub(crate) struct Early {
    pieces: BTreeSet<(Inode, u64)>,
    bytes: u64,
    /// Somebody found no room, and some is in early pieces.
    pub(crate) is_needed: bool,
}

impl Early {
    fn insert(&mut self, inode: Inode, piece: &Piece) {
        if self.pieces.insert((inode, piece.start)) {
            self.bytes += piece.length();
        }
    }

    /// Forgets a piece. False if it is not early.
    pub(crate) fn remove(&mut self, inode: Inode, piece: &Piece) -> bool {
        let was_early = self.pieces.remove(&(inode, piece.start));
        if was_early {
            self.bytes -= piece.length();
        }
        self.is_needed &= !self.pieces.is_empty();
        was_early
    }

    pub(crate) fn contains(&self, inode: Inode, piece: &Piece) -> bool {
        self.pieces.contains(&(inode, piece.start))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    fn starts(&self, inode: Inode, offset: u64, end: u64) -> impl Iterator<Item = u64> {
        let range = (inode, offset)..(inode, end.max(offset));
        self.pieces.range(range).map(|&(_, start)| start)
    }
}

impl Target {
    /// The early piece of a file that begins at `start`.
    #[must_use]
    pub fn early(&self, inode: Inode, start: u64) -> Option<Piece> {
        let piece = self.slots.at(inode, start)?;
        self.early.contains(inode, &piece).then_some(piece)
    }

    /// The early pieces of a file.
    pub fn early_of(&self, inode: Inode) -> impl Iterator<Item = Piece> {
        let starts = self.early.starts(inode, 0, u64::MAX);
        starts.filter_map(move |start| self.slots.at(inode, start))
    }

    /// Bytes in early pieces.
    #[must_use]
    pub fn early_bytes(&self) -> u64 {
        self.early.bytes
    }

    /// True once a request found no room because of early pieces, until they are gone.
    #[must_use]
    pub fn needs_early_back(&self) -> bool {
        self.early.is_needed
    }

    /// After a kill: these pieces, which were found, are early.
    pub fn restore_early(&mut self, found: impl Iterator<Item = (Inode, Piece)>) {
        for (inode, piece) in found {
            if piece.tier == Piece::MEMORY && self.slots.at(inode, piece.start) == Some(piece) {
                self.early.insert(inode, &piece);
                self.unwatch(&piece);
            }
        }
    }

    /// Is there room for a further early piece, while all take less than one part in `parts`?
    fn has_room_for_early(&self, length: u64, parts: u64) -> bool {
        let (total, free) = (self.memory.bytes_total(), self.memory.bytes_free());
        // What is clean goes when somebody needs the room, but this is made of what is free.
        let may_go = self.clean.bytes(Piece::MEMORY);
        free + may_go > total / FREE_PARTS
            && free > total / FREE_PARTS / 4
            && self.memory.has_ample(length)
            && self.early.bytes.saturating_add(length) <= total / parts
            && self.bytes_used().saturating_add(length) <= self.quota_bytes
            && !self.is_waiting()
            && self.admission.is_empty()
            && !self.early.is_needed
    }

    pub(crate) fn make_early(&mut self, inodes: &[Inode], out: &mut Vec<Effect>) {
        for &inode in inodes {
            if !self.has_room_for_early(PIECE_BYTES_MIN, FIRST_PARTS) {
                return;
            }
            let is_there = self.slots.over(inode, 0, PIECE_BYTES_MIN).next().is_some();
            if inode.is_none() || is_there || self.damaged.contains(&inode) {
                continue;
            }
            let first = Span { start: 0, length_log2: BLOCK_LOG2_MIN };
            if self.make_one_early(inode, first, out).is_none() {
                return;
            }
        }
    }

    /// Behind `pieces`, which were asked for: those of the `ahead` bytes from `offset` on that are there,
    /// and as many of the others as there is ample room for.
    pub(crate) fn make_ahead(
        &mut self,
        inode: Inode,
        chunk_log2: u8,
        (offset, ahead): (u64, u64),
        pieces: &mut Vec<Piece>,
        out: &mut Vec<Effect>,
    ) {
        // Close to a limit nobody waits for what he does not need.
        let is_limited = self.accounts.may_be_limited(inode);
        let ahead = ahead.min(FILE_BYTES_MAX.saturating_sub(offset));
        for span in piece::over(offset, ahead, chunk_log2) {
            // The one that holds `offset` is there: what was asked for ends in it.
            if span.start < offset {
                continue;
            }
            if pieces.len() >= MAP_PIECES_MAX {
                return;
            }
            let there = self.slots.over(inode, span.start, span.end()).next();
            let piece = match there {
                Some(piece) if piece.length_log2 == span.length_log2 => Some(piece),
                Some(_) => None,
                None if !is_limited && self.has_room_for_early(span.length(), AHEAD_PARTS) => {
                    self.make_one_early(inode, span, out)
                }
                None => None,
            };
            let Some(piece) = piece else { return };
            pieces.push(piece);
        }
    }

    /// Only of what is ready: nobody waits for this.
    fn make_one_early(&mut self, inode: Inode, span: Span, out: &mut Vec<Effect>) -> Option<Piece> {
        let slot = self.slots.vacant()?;
        let (place, _) = self.memory.take_ready(span.length_log2)?;
        let (length_log2, tier) = (span.length_log2, Piece::MEMORY);
        let piece = Piece { start: span.start, slot, place, length_log2, tier };
        self.slots.insert(inode, piece);
        self.early.insert(inode, &piece);
        if !is_first(&piece) {
            self.accounts.change(inode, piece.length().cast_signed());
        }
        out.push(Effect::Publish { inode, piece, defined: Defined::Early });
        Some(piece)
    }

    /// Early pieces that hold some of `offset .. end` are their file's own from now on.
    pub(crate) fn keep_early(
        &mut self,
        inode: Inode,
        (offset, end): (u64, u64),
        out: &mut Vec<Effect>,
    ) {
        if self.early.is_empty() {
            return;
        }
        let kept = self.slots.over(inode, offset, end);
        let kept: Vec<Piece> = kept.filter(|piece| self.early.contains(inode, piece)).collect();
        for piece in kept {
            self.early.remove(inode, &piece);
            self.watch(inode, &piece);
            self.note_made(&piece);
            if is_first(&piece) {
                self.accounts.change(inode, piece.length().cast_signed());
            }
            out.push(Effect::Keep { inode, piece });
        }
    }

    pub(crate) fn drop_early(&mut self, inode: Inode, start: u64, out: &mut Vec<Effect>) {
        if let Some(piece) = self.early(inode, start) {
            self.give_back(inode, &piece, out);
        }
    }

    /// Holds the invariants, for tests: it looks at all early pieces.
    #[cfg(test)]
    pub(crate) fn check_early(&self) {
        let in_memory = |one: &Piece| one.tier == Piece::MEMORY;
        let length = |&(inode, start): &(Inode, u64)| {
            let piece = self.slots.at(inode, start).filter(in_memory);
            piece.expect("an early piece is none").length()
        };
        assert_eq!(self.early.pieces.iter().map(length).sum::<u64>(), self.early.bytes);
    }
}

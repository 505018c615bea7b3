//! Bytes of a file that somebody writes to, which are saved in its draft in the backing directory, become
//! clean (`clean`) part by part, so that a file may be larger than all that the instance has.
//!
//! The writer says that it is about to save some. Pieces are marked then as in `saving`, it is told
//! which, copies them, and tells the file's shard where they lie. What still bears the mark is what was
//! copied, and clean.
//!
//!   none --Request::BeginSaving--> marked           Effect::BeginSaving, Effect::CheckPins
//!   marked --Pins--> told                           Effect::StopSaving of what is pinned; the answer
//!   told --Request::EndSaving--> none               Effect::EndSaving; then Input::Saved
//!   told --another number, or too late--> none
//!
//! Invariant: a file is in `parts` or among those whose shards are asked (`saving`), never in both: a
//! mark that the other set anew would say that bytes are as they were copied.

use crate::effect::{Answer, Effect};
use crate::target::{MAP_PIECES_MAX, Target};
use std::collections::{BTreeMap, BTreeSet};
use wire::reply::Piece;
use wire::{Errno, Inode};

/// A writer that needs longer to save a part begins it again.
const PART_MILLIS: u32 = 60_000;
/// Files of which parts are saved.
const PARTS_MAX: usize = 1024;

/// What `Request::BeginSaving` says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PartAsked {
    pub(crate) inode: Inode,
    pub(crate) number: u64,
    pub(crate) offset: u64,
    pub(crate) most: u64,
}

/// A part that is being saved.
#[derive(Clone, Debug)]
struct Part {
    number: u64,
    since: u32,
    /// Its pins are to be looked at in this round; then this ticket is answered.
    waits: Option<(u64, u64)>,
    /// By slot; those that bear the mark, or did.
    pieces: BTreeMap<u32, Piece>,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub(crate) struct Parts(BTreeMap<Inode, Part>);

impl Parts {
    /// True while a part of this file is being saved.
    pub(crate) fn has(&self, inode: Inode) -> bool {
        self.0.contains_key(&inode)
    }

    /// Forgets those that take too long.
    pub(crate) fn forget_late(&mut self, now: u32) {
        self.0.retain(|_, part| part.waits.is_some() || now.wrapping_sub(part.since) < PART_MILLIS);
    }
}

impl Target {
    /// Pieces of a file that were clean and are not any more, as somebody changed bytes since. To be
    /// called before `Request::BeginSaving`: clients say nothing when they do.
    pub fn note_changed(&mut self, inode: Inode, is_clean: &dyn Fn(u32) -> bool) {
        let known = self.slots.over(inode, 0, u64::MAX).filter(|piece| self.clean.contains(piece));
        let changed: Vec<Piece> = known.filter(|piece| !is_clean(piece.slot)).collect();
        for piece in changed {
            if !self.is_dropping(inode, piece.start) {
                self.clean.remove(&piece);
                self.watch(inode, &piece);
            }
        }
    }

    /// `Request::BeginSaving`; it is answered when the pins are known.
    pub(crate) fn answer_part(&mut self, ticket: u64, asked: &PartAsked, out: &mut Vec<Effect>) {
        if let Some(pieces) = self.begin_part(ticket, asked, out) {
            out.push(Effect::Reply { ticket, answer: Answer::Pieces(pieces) });
        }
    }

    /// Says what of a file may be other than what lies below; `None`: the ticket is answered later.
    fn begin_part(
        &mut self,
        ticket: u64,
        asked: &PartAsked,
        out: &mut Vec<Effect>,
    ) -> Option<Vec<Piece>> {
        let PartAsked { inode, number, offset, most } = *asked;
        if number == 0 {
            let pieces = self.slots.over(inode, offset, u64::MAX);
            // What is hidden to be dropped may have been changed before.
            let differ = pieces.filter(|piece| {
                !self.clean.contains(piece) || self.is_dropping(inode, piece.start)
            });
            // Where they are nobody needs to know who reads them by the file.
            let plain = |piece: Piece| Piece { place: 0, tier: Piece::MEMORY, ..piece };
            return Some(differ.take(MAP_PIECES_MAX).map(plain).collect());
        }
        self.forget_part(inode, out);
        self.forget_asked(inode);
        let (mut pieces, mut bytes) = (BTreeMap::new(), 0);
        for piece in self.at_rest(inode).filter(|piece| piece.start >= offset) {
            if bytes >= most || pieces.len() >= MAP_PIECES_MAX {
                break;
            }
            if !self.clean.contains(&piece) {
                bytes += piece.length();
                pieces.insert(piece.slot, piece);
            }
        }
        if pieces.is_empty() || self.parts.0.len() >= PARTS_MAX {
            return Some(Vec::new());
        }
        out.extend(pieces.keys().map(|&slot| Effect::BeginSaving { slot }));
        let (since, waits) = (self.moves.now(), Some((self.round, ticket)));
        self.parts.0.insert(inode, Part { number, since, waits, pieces });
        self.has_left = true;
        None
    }

    /// The pins were looked at in a round.
    pub(crate) fn part_marked(&mut self, round: u64, pinned: &[u32], out: &mut Vec<Effect>) {
        for part in self.parts.0.values_mut() {
            let Some((_, ticket)) = part.waits.filter(|&(of, _)| of <= round) else { continue };
            part.waits = None;
            for slot in pinned.iter().filter(|slot| part.pieces.remove(slot).is_some()) {
                out.push(Effect::StopSaving { slot: *slot });
            }
            let mut told: Vec<Piece> = part.pieces.values().copied().collect();
            told.sort_by_key(|piece| piece.start);
            out.push(Effect::Reply { ticket, answer: Answer::Pieces(told) });
        }
    }

    /// What a part was about lies below as it was, but for what ends behind `end`: of that the writer may
    /// have seen less, as who writes says how long a file is when its bytes are there.
    pub(crate) fn end_part(
        &mut self,
        inode: Inode,
        (number, end): (u64, u64),
        out: &mut Vec<Effect>,
    ) -> Answer {
        let is_it = |part: &Part| part.number == number && part.waits.is_none();
        if !self.parts.0.get(&inode).is_some_and(is_it) {
            return Answer::Refused(Errno::EAGAIN);
        }
        let pieces = self.parts.0.remove(&inode).map(|part| part.pieces).unwrap_or_default();
        let slots: BTreeSet<u32> = pieces.into_keys().collect();
        let is_whole = |piece: &Piece| piece.start + piece.length() <= end;
        let left = self.at_rest(inode).filter(|piece| slots.contains(&piece.slot));
        let left = left.filter(is_whole);
        out.extend(left.map(|piece| Effect::EndSaving { inode, piece }));
        // More of it lies below than was known.
        self.fills.ask_anew(inode);
        Answer::Done
    }

    /// Nothing is known of a part any more; who waits for it has none.
    fn forget_part(&mut self, inode: Inode, out: &mut Vec<Effect>) {
        if let Some(Part { waits: Some((_, ticket)), .. }) = self.parts.0.remove(&inode) {
            out.push(Effect::Reply { ticket, answer: Answer::Pieces(Vec::new()) });
        }
    }
}

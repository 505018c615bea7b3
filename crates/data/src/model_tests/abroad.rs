//! Keepers of the model's pieces: other targets, which have what was copied to them until they are told
//! to let go of it, however late.

use super::waiting::IMPATIENT;
use super::{CHUNK_LOG2, Outcome, PAGE, World};
use crate::effect::{Answer, Effect, Input};
use std::collections::BTreeMap;
use wire::reply::Piece;
use wire::{DaemonIndex, Inode, Request};

/// See the module.
#[derive(Clone, Default)]
pub(super) struct Keepers {
    is_on: bool,
    /// What they keep, by place.
    kept: BTreeMap<u64, Vec<u8>>,
    /// Rows of places that hold no piece of ours.
    gone: BTreeMap<u32, u64>,
    /// Places that they were told to let go of, and have not yet.
    told: Vec<(u32, u64)>,
    starts: u64,
}

impl World {
    /// Others keep pieces from now on.
    pub(super) fn set_keepers(&mut self) {
        self.keepers.is_on = true;
        self.meet_keepers();
    }

    /// A daemon learns who keeps pieces.
    fn meet_keepers(&mut self) {
        if self.keepers.is_on {
            self.keepers.starts += 1;
            let number = self.keepers.starts << 32;
            self.target.set_keepers([DaemonIndex(3), DaemonIndex(9)], number);
        }
    }

    /// The next daemon finds what keepers may have that is not needed.
    pub(super) fn meet_keepers_again(&mut self) {
        self.meet_keepers();
        self.keepers.told.clear();
        let rows: Vec<_> = self.keepers.gone.iter().map(|(&slot, &place)| (slot, place)).collect();
        let mut out = Vec::new();
        self.target.restore_dismissed(rows, &mut out);
        out.into_iter().for_each(|effect| self.perform_abroad(effect));
    }

    pub(super) fn perform_abroad(&mut self, effect: Effect) {
        match effect {
            Effect::Intend { piece, .. } => {
                assert_eq!(self.keepers.gone.insert(piece.slot, piece.place), None);
            }
            Effect::Dismiss { slot, place } => {
                assert_eq!(self.keepers.gone.get(&slot), Some(&place), "no row says so");
                let is_needed = self
                    .table
                    .values()
                    .any(|(_, piece)| piece.tier == Piece::ABROAD && piece.place == place);
                assert!(!is_needed, "bytes that count are let go of");
                self.keepers.told.push((slot, place));
            }
            Effect::Forget { slot } => assert!(self.keepers.gone.remove(&slot).is_some()),
            other => unreachable!("{other:?}"),
        }
    }

    /// A row of a place abroad changes: it holds a piece, or none any more.
    pub(super) fn note_abroad(&mut self, piece: &Piece, is_piece: bool) {
        if piece.tier != Piece::ABROAD {
            return;
        }
        if is_piece {
            assert_eq!(self.keepers.gone.remove(&piece.slot), Some(piece.place), "not intended");
            self.hidden.insert(piece.slot);
        } else {
            self.keepers.gone.insert(piece.slot, piece.place);
        }
    }

    /// Keepers do what they were told.
    pub(super) fn let_go(&mut self) {
        while let Some((slot, place)) = self.keepers.told.pop() {
            self.keepers.kept.remove(&place);
            self.step(Input::Dismissed { slot }, &[]);
        }
    }

    /// A page of a copy from a keeper, or to one.
    pub(super) fn abroad_page(&mut self, piece: &Piece, at: u64) -> Option<&mut [u8]> {
        let bytes = self.keepers.kept.get_mut(&piece.place)?;
        bytes.get_mut(at as usize..(at + PAGE) as usize)
    }

    pub(super) fn begin_copy_abroad(&mut self, from: &Piece, to: &Piece) {
        self.seen.went += usize::from(to.tier == Piece::ABROAD);
        self.seen.came += usize::from(from.tier == Piece::ABROAD);
        if to.tier == Piece::ABROAD {
            let new = vec![0x55; to.length() as usize];
            assert_eq!(self.keepers.kept.insert(to.place, new), None, "a number is used twice");
        }
    }

    /// Who waits for what comes home gets it.
    pub(super) fn bring_home(&mut self, body: &[u8]) -> Option<Outcome> {
        let comes =
            |world: &World| world.copies.iter().position(|copy| copy.from().tier == Piece::ABROAD);
        while let Some(which) = comes(self).filter(|_| self.goes_on()) {
            if let Some(outcome) = self.end_copy_for(which, false, body) {
                return Some(outcome);
            }
        }
        None
    }

    pub(super) fn read_abroad(&mut self, piece: &Piece, within: u64, length: u32) -> Outcome {
        let bytes = &self.keepers.kept[&piece.place];
        let bytes = bytes[within as usize..][..length as usize].to_vec();
        Outcome { answer: Answer::Bytes { length }, bytes }
    }

    /// There is no room for all that a request reads, so it is asked for piece by piece.
    pub(super) fn read_by_pieces(&mut self, inode: Inode, offset: u64, length: u32) -> Outcome {
        let (chunk_log2, end) = (CHUNK_LOG2, offset + u64::from(length));
        let mut bytes = Vec::new();
        for span in placement::piece::over(offset, length.into(), chunk_log2) {
            let from = offset.max(span.start);
            let part = (end.min(span.end()) - from) as u32;
            let request = Request::Read { inode, chunk_log2, offset: from, length: part };
            let ticket = IMPATIENT;
            let outcome = self.step(Input::Request { ticket, request: &request }, &[]);
            let outcome = outcome.or_else(|| self.bring_home(&[])).expect("one piece can be read");
            bytes.extend(outcome.bytes);
        }
        Outcome { answer: Answer::Bytes { length }, bytes }
    }

    /// Nobody keeps anything, and no row says that somebody may.
    pub(super) fn check_nothing_kept(&mut self) {
        self.let_go();
        assert!(self.keepers.kept.is_empty(), "{:?} is kept", self.keepers.kept.keys());
        assert!(self.keepers.gone.is_empty(), "{:?}", self.keepers.gone);
    }

    /// Cuts a file, or not: that can not be where there is no room for what is cut in the middle.
    pub(super) fn is_cut_refused(&mut self, request: &Request<'_>) -> bool {
        let answer = self.call(request).answer;
        let is_refused =
            matches!(answer, Answer::Busy { .. } | Answer::Refused(wire::Errno::ENOSPC));
        assert!(answer == Answer::Done || is_refused, "{answer:?}");
        assert!(!is_refused || self.target.bytes_abroad().abroad > 0, "nothing has to come home");
        is_refused
    }

    /// Bytes of pieces that are here.
    pub(super) fn bytes_here(&self) -> u64 {
        let is_here = |(_, piece): &(Inode, Piece)| piece.tier != Piece::ABROAD;
        self.target.pieces().filter(is_here).map(|(_, piece)| piece.length()).sum()
    }
}

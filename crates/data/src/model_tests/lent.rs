//! Memory that is lent to the model's target and given back: which pages the arena holds.

use super::{PAGE, World};
use crate::effect::Input;
use wire::Errno;
use wire::reply::Piece;

impl World {
    /// A block leaves.
    pub(super) fn give_back(&mut self, place: u64, length_log2: u8) {
        let overlaps = |piece: &Piece| {
            let is_apart =
                piece.place >= place + (1 << length_log2) || place >= piece.place + piece.length();
            piece.tier == Piece::MEMORY && !is_apart
        };
        assert!(!self.table.values().any(|row| overlaps(&row.1)), "a piece is given back");
        assert!(!self.pinned.values().any(overlaps), "given back under a pin");
        self.give_backs.push((place, length_log2));
    }

    /// A block is not held any more.
    pub(super) fn punch(&mut self, place: u64, length: u64) {
        let pages = place / PAGE..(place + length) / PAGE;
        self.held[0].retain(|page| !pages.contains(page));
        self.devices[0][place as usize..(place + length) as usize].fill(0);
    }

    pub(super) fn end_give_back(&mut self, which: usize, fails: bool) {
        if self.give_backs.is_empty() {
            return;
        }
        let (place, length_log2) = self.give_backs.swap_remove(which % self.give_backs.len());
        if !fails {
            self.punch(place, 1 << length_log2);
        }
        self.seen.gave_back += usize::from(!fails);
        self.has_refused |= fails;
        let outcome = if fails { Err(Errno::EIO) } else { Ok(()) };
        self.step(Input::GivenBack { place, length_log2, outcome }, &[]);
    }

    pub(super) fn lend(&mut self, bytes: u64) {
        let mut out = Vec::new();
        self.target.lend(bytes, &mut out);
        self.perform(out, &[]);
        let memory = self.target.memory_lent();
        assert!(memory.allowed <= bytes && memory.used <= memory.held);
    }
}

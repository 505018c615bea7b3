//! Copies of the model's pieces, page by page: whatever comes may come between two of them.

use super::{Outcome, PAGE, World};
use crate::effect::Input;
use wire::Errno;
use wire::reply::Piece;

/// A copy under way.
#[derive(Clone, Copy)]
pub(super) struct Copying {
    ticket: u64,
    from: Piece,
    to: Piece,
    /// Bytes that lie at the new place.
    done: u64,
    /// The piece was shown meanwhile: what comes from its old place may be anything.
    was_shown: bool,
}

impl Copying {
    pub(super) const fn from(&self) -> &Piece {
        &self.from
    }

    /// Some of it is there, and not all.
    pub(super) const fn is_broken(&self) -> bool {
        !self.was_shown && self.done > 0 && self.done < self.from.length()
    }
}

impl World {
    pub(super) fn begin_copy(&mut self, ticket: u64, from: Piece, to: Piece) {
        assert!(self.hidden.contains(&from.slot), "copied in the open");
        assert!(!self.pinned.contains_key(&from.slot), "copied under a pin");
        self.begin_copy_abroad(&from, &to);
        self.copies.push(Copying { ticket, from, to, done: 0, was_shown: false });
    }

    /// A piece is its clients' again.
    pub(super) fn spoil_copies(&mut self, slot: u32) {
        let of_it = self.copies.iter_mut().filter(|copy| copy.from.slot == slot);
        of_it.for_each(|copy| copy.was_shown = true);
    }

    /// So many pages more of a copy.
    pub(super) fn copy_pages(&mut self, which: usize, pages: usize) {
        if self.copies.is_empty() {
            return;
        }
        let which = which % self.copies.len();
        for _ in 0..pages {
            if !self.goes_on() {
                return;
            }
            self.copy_page(which);
        }
    }

    fn copy_page(&mut self, which: usize) {
        let Copying { from, to, done, was_shown, .. } = self.copies[which];
        if done == from.length() {
            return;
        }
        let end = done + PAGE;
        let nothing = vec![0xcc; PAGE as usize];
        let is_hole = to.tier == Piece::ABROAD && !self.is_defined(&from, done / PAGE);
        let bytes = match from.tier {
            _ if was_shown => nothing,
            // A copy that is thrown away: it was let go of meanwhile.
            Piece::ABROAD => self.abroad_page(&from, done).map_or(nothing, |page| page.to_vec()),
            _ if is_hole => vec![0; PAGE as usize],
            _ => self.device(&from, done, end).to_vec(),
        };
        match to.tier {
            Piece::ABROAD => {
                self.abroad_page(&to, done).expect("it is kept").copy_from_slice(&bytes)
            }
            _ => self.device(&to, done, end).copy_from_slice(&bytes),
        }
        self.copies[which].done = end;
    }

    /// A copy ends; one that fails does where it is.
    pub(super) fn end_copy(&mut self, which: usize, fails: bool) {
        self.end_copy_for(which, fails, &[]);
    }

    /// As `end_copy`; who waits for it wrote these bytes.
    pub(super) fn end_copy_for(
        &mut self,
        which: usize,
        fails: bool,
        body: &[u8],
    ) -> Option<Outcome> {
        if self.copies.is_empty() {
            return None;
        }
        let which = which % self.copies.len();
        while !fails && self.copies[which].done < self.copies[which].from.length() {
            self.copy_page(which);
        }
        let ticket = self.copies.swap_remove(which).ticket;
        self.seen.failed += usize::from(fails);
        let outcome = if fails { Err(Errno::EIO) } else { Ok(()) };
        self.step(Input::Copied { ticket, outcome }, body)
    }
}

//! Copies of the model's extents, page by page: anything may happen between two pages.

use super::{ModelWorld, Outcome, PAGE};
use crate::effect::Input;
use wire::Errno;
use wire::reply::Extent;

/// A copy in flight.
#[derive(Clone, Copy)]
pub(super) struct Copying {
    ticket: u64,
    from: Extent,
    to: Extent,
    /// Bytes at the new location.
    done: u64,
    /// The extent was shown meanwhile: bytes read from its old location may be anything.
    was_shown: bool,
}

impl Copying {
    pub(super) const fn from(&self) -> &Extent {
        &self.from
    }

    /// Some of it is copied, and not all.
    pub(super) const fn is_broken(&self) -> bool {
        !self.was_shown && self.done > 0 && self.done < self.from.length()
    }
}

impl ModelWorld {
    pub(super) fn begin_copy(&mut self, ticket: u64, from: Extent, to: Extent) {
        assert!(self.hidden.contains(&from.slot), "copied in the open");
        assert!(!self.protected.contains_key(&from.slot), "copied under a pin");
        let migrates = self
            .table
            .get(&from.slot)
            .is_some_and(|row| self.target.tiering.moves.is_migrating(row.0, from.start));
        assert!(migrates || !self.reading.contains_key(&from.slot), "copied while it is read");
        self.begin_spill_copy(&from, &to);
        self.copies.push(Copying { ticket, from, to, done: 0, was_shown: false });
    }

    /// An extent is visible to clients again.
    pub(super) fn spoil_copies(&mut self, slot: u32) {
        let of_it = self.copies.iter_mut().filter(|copy| copy.from.slot == slot);
        of_it.for_each(|copy| copy.was_shown = true);
    }

    /// Copies this many more pages.
    pub(super) fn copy_pages(&mut self, which: usize, pages: usize) {
        if self.copies.is_empty() {
            return;
        }
        let which = which % self.copies.len();
        for _ in 0..pages {
            if !self.progresses() {
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
        let is_hole = to.tier == Extent::SPILLED && !self.is_valid(&from, done / PAGE);
        let bytes = match from.tier {
            _ if was_shown => nothing,
            // A discarded copy: its remote location was released meanwhile.
            Extent::SPILLED => self.spilled_page(&from, done).map_or(nothing, |page| page.to_vec()),
            _ if is_hole => vec![0; PAGE as usize],
            _ => self.device(&from, done, end).to_vec(),
        };
        match to.tier {
            Extent::SPILLED => {
                self.spilled_page(&to, done).expect("it is stored").copy_from_slice(&bytes)
            }
            _ => self.device(&to, done, end).copy_from_slice(&bytes),
        }
        self.copies[which].done = end;
    }

    /// A copy ends; one that fails stops where it is.
    pub(super) fn end_copy(&mut self, which: usize, fails: bool) {
        self.end_copy_for(which, fails, &[]);
    }

    /// As `end_copy`; a request that waits for it wrote these bytes.
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

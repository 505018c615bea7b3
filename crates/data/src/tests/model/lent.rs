//! Memory that is lent to the model's target and given back: which pages the arena holds.

use super::{ModelWorld, PAGE};
use crate::effect::Input;
use wire::Errno;
use wire::reply::Extent;

impl ModelWorld {
    /// A block is being given back.
    pub(super) fn give_back(&mut self, location: u64, length_log2: u8) {
        let overlaps = |extent: &Extent| {
            let is_apart = extent.location >= location + (1 << length_log2)
                || location >= extent.location + extent.length();
            extent.tier == Extent::MEMORY && !is_apart
        };
        assert!(!self.table.values().any(|row| overlaps(&row.1)), "an extent is given back");
        assert!(!self.protected.values().any(overlaps), "given back under a pin");
        self.give_backs.push((location, length_log2));
    }

    /// A block is not held any more.
    pub(super) fn punch(&mut self, location: u64, length: u64) {
        let pages = location / PAGE..(location + length) / PAGE;
        self.held[0].retain(|page| !pages.contains(page));
        self.devices[0][location as usize..(location + length) as usize].fill(0);
    }

    pub(super) fn end_give_back(&mut self, which: usize, fails: bool) {
        if self.give_backs.is_empty() {
            return;
        }
        let (location, length_log2) = self.give_backs.swap_remove(which % self.give_backs.len());
        if !fails {
            self.punch(location, 1 << length_log2);
        }
        self.seen.gave_back += usize::from(!fails);
        self.has_refused |= fails;
        let outcome = if fails { Err(Errno::EIO) } else { Ok(()) };
        self.step(Input::GivenBack { location, length_log2, outcome }, &[]);
    }

    pub(super) fn lend(&mut self, bytes: u64) {
        let mut out = Vec::new();
        self.target.lend(bytes, &mut out);
        self.perform(out, &[]);
        let memory = self.target.memory_lent();
        assert!(memory.allowed <= bytes && memory.used <= memory.held);
    }
}

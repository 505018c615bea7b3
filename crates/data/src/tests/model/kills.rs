//! The model's daemon is killed, and the next one finds the extents shown, hidden, marked and
//! protected.

use super::waiting::{Range, range};
use super::{ModelWorld, Outcome};
use crate::effect::Effect;
use crate::space::tier::Space;
use crate::target::Target;
use std::collections::BTreeSet;
use wire::Inode;
use wire::reply::Extent;

impl ModelWorld {
    /// False if the daemon is dead; else it performs one more step.
    pub(super) fn progresses(&mut self) -> bool {
        if let Some(bytes_left) = &mut self.kill_at {
            match bytes_left.checked_sub(1) {
                Some(less) => *bytes_left = less,
                None => return false,
            }
        }
        true
    }

    /// Performs an act; the daemon may be killed in the middle, then the next one has started. True
    /// if so.
    pub(super) fn until_killed<T>(
        &mut self,
        kill_at: Option<usize>,
        act: impl FnOnce(&mut ModelWorld) -> T,
    ) -> (T, bool) {
        self.kill_at = kill_at.or(self.kill_at);
        let before: BTreeSet<Range> = match self.kill_at {
            Some(_) => self.target.extents().map(range).collect(),
            None => BTreeSet::new(),
        };
        let done = act(self);
        let is_killed = self.kill_at == Some(0);
        if is_killed || kill_at.is_some() {
            self.kill_at = None;
        }
        if is_killed {
            self.kill(Some(&before));
        }
        (done, is_killed)
    }

    /// An unanswered request is repeated to the next daemon.
    pub(super) fn ask_until_answered(
        &mut self,
        ask: &dyn Fn(&mut ModelWorld) -> Option<Outcome>,
    ) -> Outcome {
        match self.until_killed(None, ask) {
            (Some(outcome), _) => outcome,
            (None, true) => {
                self.seen.repeated += 1;
                ask(self).expect("an answer")
            }
            (None, false) => panic!("no answer"),
        }
    }

    /// All extents are found again; if it was in the middle of an act, those that were there
    /// `before` and were to stay.
    pub(super) fn kill(&mut self, before: Option<&BTreeSet<Range>>) {
        let unknown = |space: Space| Space { zeroed_from: u64::MAX, ..space };
        self.settings.memory = unknown(self.settings.memory);
        self.settings.ssd = unknown(self.settings.ssd);
        self.seen.copies_broken += self.copies.iter().filter(|copy| copy.is_broken()).count();
        self.copies.clear();
        // Transfers are the daemon's own.
        self.reading.clear();
        let mut target = self.recover();
        let found = self.preallocation.iter().filter_map(|slot| self.table.get(slot));
        target.restore_preallocated(found.copied());
        let mut out = Vec::new();
        if self.asks_again {
            // A report on a file in progress was not acknowledged.
            target.restore_pinned(self.marks.inodes(&self.table).into_iter(), &mut out);
        } else {
            self.marks.restore(&self.table, (&self.target, &mut target), &mut out);
            assert_eq!(target.preallocated_bytes(), self.target.preallocated_bytes());
        }
        out.into_iter().for_each(|effect| self.perform_on_table(effect, &mut Vec::new()));
        // A protected slot is not reused, so its entry says what it held.
        let is_gone = |extent: &Extent| !self.table.contains_key(&extent.slot);
        let gone: Vec<Extent> = self.protected.values().copied().filter(is_gone).collect();
        target.restore_leaving(gone.iter().copied());
        assert_eq!(target.leaving_count(), gone.len());
        self.check_extents(before, target.extents().map(range).collect());
        for (location, length_log2) in std::mem::take(&mut self.give_backs).into_iter().step_by(2) {
            self.punch(location, 1 << length_log2);
        }
        target.forget_free_memory(&mut |location, length| {
            self.punch(location, length);
            true
        });
        if std::mem::replace(&mut self.target, target).account_usage().is_on() {
            self.count();
        }
        self.refuse_spill_again();
        self.wait_again();
        self.check_after_kill();
    }

    /// It is killed after each step of its recovery, too, and starts again.
    fn recover(&mut self) -> Target {
        loop {
            let hides = |(slot, _): &(&u32, &(Inode, Extent))| self.hidden.contains(*slot);
            let (hidden, shown): (Vec<_>, Vec<_>) = self.table.iter().partition(hides);
            let entries = |entries: Vec<(&u32, &(Inode, Extent))>| -> Vec<(Inode, Extent)> {
                entries.into_iter().map(|(_, row)| *row).collect()
            };
            let (shown, hidden) = (entries(shown), entries(hidden));
            let mut out: Vec<Effect> = Vec::new();
            let (target, discarded) = Target::recover(self.settings, shown, hidden, &mut out);
            assert!(discarded.is_empty(), "{discarded:?}");
            if out.is_empty() {
                let is_spilled = |slot: &u32| self.table[slot].1.tier == Extent::SPILLED;
                assert!(self.hidden.iter().all(is_spilled), "nobody would show them");
                return target;
            }
            self.perform_on_table(out.swap_remove(0), &mut Vec::new());
        }
    }

    fn check_extents(&self, before: Option<&BTreeSet<Range>>, found: BTreeSet<Range>) {
        let now: BTreeSet<Range> = self.target.extents().map(range).collect();
        let before = before.unwrap_or(&now);
        assert!(before.intersection(&now).all(|one| found.contains(one)), "extents were lost");
        assert!(found.iter().all(|one| before.contains(one) || now.contains(one)), "none of these");
    }
}

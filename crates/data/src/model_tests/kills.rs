//! The model's daemon is killed, and the next one finds what is shown, hidden, marked and pinned.

use super::waiting::{Range, range};
use super::{Outcome, World};
use crate::effect::Effect;
use crate::target::Target;
use crate::tier::Space;
use std::collections::BTreeSet;
use wire::Inode;
use wire::reply::Piece;

impl World {
    /// False if the daemon is dead; else it does one step more.
    pub(super) fn goes_on(&mut self) -> bool {
        if let Some(left) = &mut self.kill_at {
            match left.checked_sub(1) {
                Some(less) => *left = less,
                None => return false,
            }
        }
        true
    }

    /// Does an act; the daemon may be killed in the middle, the next one is there then. True if so.
    pub(super) fn until_killed<T>(
        &mut self,
        kill_at: Option<usize>,
        act: impl FnOnce(&mut World) -> T,
    ) -> (T, bool) {
        self.kill_at = kill_at.or(self.kill_at);
        let before: BTreeSet<Range> = match self.kill_at {
            Some(_) => self.target.pieces().map(range).collect(),
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

    /// What was asked is asked again of the next daemon if it was not answered.
    pub(super) fn ask_until_answered(
        &mut self,
        ask: &dyn Fn(&mut World) -> Option<Outcome>,
    ) -> Outcome {
        match self.until_killed(None, ask) {
            (Some(outcome), _) => outcome,
            (None, true) => {
                self.seen.asked_again += 1;
                ask(self).expect("an answer")
            }
            (None, false) => panic!("no answer"),
        }
    }

    /// All pieces are there again; if it was in the middle of an act, those that were there `before` and
    /// were to stay.
    pub(super) fn kill(&mut self, before: Option<&BTreeSet<Range>>) {
        let unknown = |space: Space| Space { fresh_from: u64::MAX, ..space };
        self.settings.memory = unknown(self.settings.memory);
        self.settings.ssd = unknown(self.settings.ssd);
        self.seen.copies_broken += self.copies.iter().filter(|copy| copy.is_broken()).count();
        self.copies.clear();
        let mut target = self.recover();
        let found = self.early.iter().filter_map(|slot| self.table.get(slot));
        target.restore_early(found.copied());
        let mut out = Vec::new();
        if self.asks_again {
            // What was being said of a file was not acknowledged.
            target.restore_residents(self.marks.inodes(&self.table).into_iter(), &mut out);
        } else {
            self.marks.restore(&self.table, (&self.target, &mut target), &mut out);
            assert_eq!(target.early_bytes(), self.target.early_bytes());
        }
        out.into_iter().for_each(|effect| self.perform_on_table(effect, &mut Vec::new()));
        // A slot that is pinned is not used anew, so its row says what it held.
        let is_gone = |piece: &Piece| !self.table.contains_key(&piece.slot);
        let gone: Vec<Piece> = self.pinned.values().copied().filter(is_gone).collect();
        target.restore_leaving(gone.iter().copied());
        assert_eq!(target.leaving_count(), gone.len());
        self.check_pieces(before, target.pieces().map(range).collect());
        for (place, length_log2) in std::mem::take(&mut self.give_backs).into_iter().step_by(2) {
            self.punch(place, 1 << length_log2);
        }
        target.forget_free_memory(&mut |place, length| {
            self.punch(place, length);
            true
        });
        if std::mem::replace(&mut self.target, target).accounts().is_on() {
            self.count();
        }
        self.meet_keepers_again();
        self.wait_again();
        self.check_after_kill();
    }

    /// It is killed after each step of its recovery, too, and begins again.
    fn recover(&mut self) -> Target {
        loop {
            let hides = |(slot, _): &(&u32, &(Inode, Piece))| self.hidden.contains(*slot);
            let (hidden, shown): (Vec<_>, Vec<_>) = self.table.iter().partition(hides);
            let rows = |rows: Vec<(&u32, &(Inode, Piece))>| -> Vec<(Inode, Piece)> {
                rows.into_iter().map(|(_, row)| *row).collect()
            };
            let (shown, hidden) = (rows(shown), rows(hidden));
            let mut out: Vec<Effect> = Vec::new();
            let (target, dropped) = Target::recover(self.settings, shown, hidden, &mut out);
            assert!(dropped.is_empty(), "{dropped:?}");
            if out.is_empty() {
                let is_abroad = |slot: &u32| self.table[slot].1.tier == Piece::ABROAD;
                assert!(self.hidden.iter().all(is_abroad), "nobody would show them");
                return target;
            }
            self.perform_on_table(out.swap_remove(0), &mut Vec::new());
        }
    }

    fn check_pieces(&self, before: Option<&BTreeSet<Range>>, found: BTreeSet<Range>) {
        let now: BTreeSet<Range> = self.target.pieces().map(range).collect();
        let before = before.unwrap_or(&now);
        assert!(before.intersection(&now).all(|one| found.contains(one)), "pieces were lost");
        assert!(found.iter().all(|one| before.contains(one) || now.contains(one)), "none of these");
    }
}

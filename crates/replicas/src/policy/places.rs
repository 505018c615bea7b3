//! Where copies should be while daemons may hold less memory than they were started with (O9).
//!
//! Without such daemons copies are where `placement` chooses. Else a unit's copies are, in this order:
//!
//! 1. at chosen daemons that have one and are not to be rid of it, or that take one;
//! 2. at the other daemons that have one, until a chosen daemon takes it again;
//! 3. of copies that leave a daemon, at the one that takes it in memory and has most of that free, else
//!    on its SSD;
//! 4. where they are: no daemon takes them.
//!
//! A daemon that has to be rid of bytes loses no more units than that needs: those first that are on
//! their way already, then those that it is not the primary of, the largest first. A primary that is to
//! leave hands over to a copy in sync that stays, as to any that should be the primary.

use super::safe;
use crate::placement::{ChosenPlaces, UnitIndex, rank};
use crate::space::{Budget, Spaces};
use crate::table::{CopyState, Table, Unit};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use wire::DaemonIndex;

/// See the module: for units whose copies should not be where `placement` chooses.
#[derive(Default)]
pub(super) struct Places {
    other: BTreeMap<UnitIndex, Vec<DaemonIndex>>,
    /// `None`: every daemon takes copies.
    budgets: Option<BTreeMap<DaemonIndex, Budget>>,
}

impl Places {
    pub(super) fn new(table: &Table, chosen: &ChosenPlaces, spaces: &Spaces) -> Places {
        if !spaces.are_limiting(table) {
            return Places::default();
        }
        let budgets = spaces.budgets();
        let leaving = leaving(table, spaces);
        let mut planner = Planner { table, chosen, spaces, budgets, leaving };
        planner.count_coming();
        let mut other = BTreeMap::new();
        for (index, unit) in table.units().filter(|(_, unit)| unit.primary.is_some()) {
            if let Some(places) = planner.of(index, unit).filter(|it| it != chosen.of(index)) {
                other.insert(index, places);
            }
        }
        Places { other, budgets: Some(planner.budgets) }
    }

    /// The places of a unit's copies, where they are not the chosen ones.
    pub(super) fn of(&self, unit: UnitIndex) -> Option<&[DaemonIndex]> {
        self.other.get(&unit).map(Vec::as_slice)
    }

    /// Whether a daemon takes a copy of so many bytes that has too few others.
    pub(super) fn may_take(&self, daemon: DaemonIndex, bytes: u64) -> bool {
        let Some(budgets) = &self.budgets else { return true };
        budgets.get(&daemon).is_some_and(|it| !it.is_limited || it.takes(bytes))
    }
}

/// Copies that are to leave their daemons.
fn leaving(table: &Table, spaces: &Spaces) -> BTreeSet<(UnitIndex, DaemonIndex)> {
    let mut leaving = BTreeSet::new();
    for (daemon, _) in table.daemons().filter(|(daemon, _)| table.is_up(*daemon)) {
        let mut needed = spaces.to_leave(daemon);
        if needed == 0 {
            continue;
        }
        let copies = table.units().filter_map(|(index, unit)| {
            let copy = unit.copy(daemon).filter(|_| unit.primary.is_some())?;
            let (goal, bytes) = (usize::from(unit.goal), spaces.bytes(index).unwrap_or(0));
            // One that was given up, whose bytes are there yet.
            let has_left = copy.state == CopyState::Behind;
            let is_safe =
                copy.state == CopyState::InSync && table.apart(&safe(table, unit)) >= goal;
            let moves = unit.in_sync() > goal || unit.with(CopyState::Joining).next().is_some();
            let is_primary = unit.primary == Some(daemon);
            let order = (!has_left, !moves, is_primary, Reverse(bytes), index);
            (has_left || is_safe).then_some((order, bytes))
        });
        let mut copies: Vec<_> = copies.collect();
        copies.sort_unstable();
        for ((stays_yet, .., index), bytes) in copies {
            if needed == 0 {
                break;
            }
            if stays_yet {
                leaving.insert((index, daemon));
            }
            needed = needed.saturating_sub(bytes);
        }
    }
    leaving
}

struct Planner<'a> {
    table: &'a Table,
    chosen: &'a ChosenPlaces,
    spaces: &'a Spaces,
    budgets: BTreeMap<DaemonIndex, Budget>,
    leaving: BTreeSet<(UnitIndex, DaemonIndex)>,
}

impl Planner<'_> {
    fn give(&mut self, daemon: DaemonIndex, bytes: u64) {
        if let Some(budget) = self.budgets.get_mut(&daemon) {
            budget.give(bytes);
        }
    }

    /// Copies that come have a part of their bytes there at most.
    fn count_coming(&mut self) {
        for (index, unit) in self.table.units() {
            for daemon in unit.with(CopyState::Joining) {
                self.give(daemon, self.spaces.bytes(index).unwrap_or(0));
            }
        }
    }

    /// Whether a daemon is not to be rid of a copy that it has, or is being filled with.
    fn stays(&self, index: UnitIndex, unit: &Unit, daemon: DaemonIndex) -> bool {
        let state = unit.copy(daemon).map(|copy| copy.state);
        match state {
            Some(CopyState::InSync) => !self.leaving.contains(&(index, daemon)),
            Some(CopyState::Joining) => !self.spaces.is_short(daemon),
            _ => false,
        }
    }

    /// Whether a chosen daemon takes a copy.
    fn returns(&mut self, daemon: DaemonIndex, bytes: Option<u64>) -> bool {
        let Some(budget) = self.budgets.get_mut(&daemon) else { return false };
        let takes = !budget.is_limited || bytes.is_some_and(|bytes| budget.takes(bytes));
        if takes {
            budget.give(bytes.unwrap_or(0));
        }
        takes
    }

    /// The daemon that takes a copy best, apart from these.
    fn taker(&mut self, bytes: u64, unit: &Unit, from: &[DaemonIndex]) -> Option<DaemonIndex> {
        let may = |daemon: DaemonIndex| {
            let has_one = unit.copy(daemon).is_some_and(|it| it.state != CopyState::Behind);
            !has_one && self.table.is_up(daemon) && self.table.is_apart(daemon, from)
        };
        let able = self.budgets.iter().filter(|(daemon, it)| it.takes(bytes) && may(**daemon));
        let order = |(_, it): &(&DaemonIndex, &Budget)| {
            let in_memory = bytes <= it.memory;
            (in_memory, if in_memory { it.memory } else { it.ssd })
        };
        let taker = able.max_by_key(order).map(|(&daemon, _)| daemon);
        if let Some(daemon) = taker {
            self.give(daemon, bytes);
        }
        taker
    }

    /// The places of a unit's copies. `None`: fewer than it should have.
    fn of(&mut self, index: UnitIndex, unit: &Unit) -> Option<Vec<DaemonIndex>> {
        let (goal, bytes) = (usize::from(unit.goal), self.spaces.bytes(index));
        let home = self.table.home(index);
        let mut places: Vec<DaemonIndex> = Vec::new();
        for &daemon in self.chosen.of(index) {
            let is_new = unit.copy(daemon).is_none_or(|it| it.state == CopyState::Behind);
            if self.stays(index, unit, daemon) || is_new && self.returns(daemon, bytes) {
                places.push(daemon);
            }
        }
        let mut present: Vec<DaemonIndex> = self.table.staying(unit);
        let is_joining = |daemon| unit.copy(daemon).map(|it| it.state) == Some(CopyState::Joining);
        present.sort_by_key(|&daemon| (is_joining(daemon), rank(home, index, daemon)));
        let is_apart = |daemon, from: &[_]| from.len() < goal && self.table.is_apart(daemon, from);
        for &daemon in &present {
            if is_apart(daemon, &places) && self.stays(index, unit, daemon) {
                places.push(daemon);
            }
        }
        while let Some(bytes) = bytes.filter(|_| places.len() < goal)
            && let Some(taker) = self.taker(bytes, unit, &places)
        {
            places.push(taker);
        }
        for &daemon in &present {
            if places.len() < goal && self.table.is_apart(daemon, &places) {
                places.push(daemon);
            }
        }
        places.sort_by_key(|&daemon| {
            let is_in_sync = unit.with(CopyState::InSync).any(|it| it == daemon);
            let (is_home, is_primary) = (daemon == home, Some(daemon) == unit.primary);
            (!is_home, !is_primary, !is_in_sync, rank(home, index, daemon))
        });
        (places.len() == goal).then_some(places)
    }
}

//! Units, and where their copies should be. Pure arithmetic, the same on every host.
//!
//! A unit is a part of the data of one target: the stripes that `placement::locate` gives to that
//! target are divided by hash into `UNITS_PER_TARGET` units, so that a file's home, and with it the
//! advantage of local bytes, stays as it is without copies. The target's own daemon ranks first for
//! each of its units. The other daemons rank by a hash of unit and daemon, so copies of one target
//! are spread over all others, a dead daemon's units are made anew by all, and a change of the
//! daemons moves only the units that it touches.
//!
//! Files with two and with three copies have units of their own; files with one copy have none.
//!
//! A target that is added has units of its own behind those that there are, so no number changes its
//! meaning.

use crate::table::{Holder, Presence, Table};
use wire::hash::{mix, unit_in_target};
use wire::limits::UNITS_PER_TARGET_MAX;
use wire::{DaemonIndex, Inode};

/// Units of one target for one number of copies. With fewer, the copies of a target would be on few
/// of the other daemons; with more, the table of 1,024 daemons would exceed 65,536 rows for each
/// number.
pub const UNITS_PER_TARGET: u16 = UNITS_PER_TARGET_MAX;

/// Number of a unit: it never changes its meaning.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct UnitIndex(pub u32);

/// The unit of a stripe, among the `units` units of its target and number of copies, which are this row
/// of the table.
#[must_use]
pub fn unit_of(row: u32, units: u16, inode: Inode, stripe: u64) -> UnitIndex {
    UnitIndex(row * u32::from(units) + u32::from(unit_in_target(inode, stripe, units)))
}

/// The place of a daemon among those that may have a copy of the unit, the lowest first.
pub(crate) fn rank(home: DaemonIndex, unit: UnitIndex, daemon: DaemonIndex) -> (bool, u64, u16) {
    (daemon != home, mix(u64::from(unit.0), u64::from(daemon.0)), daemon.0)
}

/// The best place for a copy of the unit among those that may have it.
pub(crate) fn best(
    table: &Table,
    unit: UnitIndex,
    may: impl Fn(DaemonIndex) -> bool,
) -> Option<DaemonIndex> {
    let home = table.home(unit);
    let all = table.daemons().map(|(daemon, _)| daemon).filter(|&daemon| may(daemon));
    all.min_by_key(|&daemon| rank(home, unit, daemon))
}

/// The daemons that should have the copies of the unit: the best that take part, each in another
/// failure domain. Fewer than asked for where there are not so many domains.
#[must_use]
pub fn chosen(table: &Table, unit: UnitIndex) -> Vec<DaemonIndex> {
    let copies = table.unit(unit).map_or(0, |row| usize::from(row.goal));
    let mut found: Vec<DaemonIndex> = Vec::new();
    while found.len() < copies
        && let Some(next) = best(table, unit, |it| table.is_up(it) && table.is_apart(it, &found))
    {
        found.push(next);
    }
    found
}

/// The answer of `chosen` for each unit, kept while the table changes. It rests on the daemons
/// alone, so a change of a copy costs nothing, and one of a daemon the units that it concerns.
#[derive(Default)]
pub struct ChosenPlaces {
    /// Failure domains of the daemons that take part and stay, as they were looked at last.
    domains: Vec<Option<u32>>,
    chosen: Vec<Vec<DaemonIndex>>,
}

impl ChosenPlaces {
    /// Takes up a newer table. Returns how many units were looked at anew.
    pub fn follow(&mut self, table: &Table) -> usize {
        let stays = |holder: &Holder| holder.presence == Presence::Up;
        let domains = table.daemons().map(|(_, it)| stays(it).then_some(it.domain));
        let before = std::mem::replace(&mut self.domains, domains.collect());
        let is_first = self.chosen.len() != table.units().count();
        if is_first {
            self.chosen = vec![Vec::new(); table.units().count()];
        }
        let count = before.len().max(self.domains.len());
        let changed: Vec<DaemonIndex> = (0..count)
            .filter(|&at| before.get(at) != self.domains.get(at))
            .map(|at| DaemonIndex(at as u16))
            .collect();
        let mut looked_at = 0;
        if changed.is_empty() && !is_first {
            return looked_at;
        }
        for ((index, unit), kept) in table.units().zip(&mut self.chosen) {
            let is_short = kept.len() < usize::from(unit.goal);
            let home = table.home(index);
            let last = kept.last().map(|&it| rank(home, index, it));
            // Those that rank behind the last one were not needed, and are not.
            let concerns = |&it: &DaemonIndex| {
                is_short || kept.contains(&it) || Some(rank(home, index, it)) < last
            };
            if is_first || changed.iter().any(concerns) {
                *kept = chosen(table, index);
                looked_at += 1;
            }
        }
        looked_at
    }

    /// The daemons that should have the copies of a unit of the table that was followed last.
    #[must_use]
    pub fn of(&self, unit: UnitIndex) -> &[DaemonIndex] {
        self.chosen.get(unit.0 as usize).map_or(&[], Vec::as_slice)
    }
}

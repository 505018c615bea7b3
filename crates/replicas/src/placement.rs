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

use crate::table::Table;
use wire::hash::mix;
use wire::{DaemonIndex, Inode};

/// Units of one target for one number of copies. With fewer, the copies of a target would be on few
/// of the other daemons; with more, the table of 1,024 daemons would exceed 65,536 rows for each
/// number.
pub const UNITS_PER_TARGET: u16 = 64;

/// Number of a unit: it never changes its meaning.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct UnitIndex(pub u32);

/// The unit of a stripe whose target is `home`, among the `units` units of each target of a table
/// that has `daemons` targets, for the number of copies with this place in the table's list.
#[must_use]
pub fn unit_of(
    (class, daemons, units): (u32, u16, u16),
    home: DaemonIndex,
    inode: Inode,
    stripe: u64,
) -> UnitIndex {
    // Not the hash that chooses the target: its remainder is the same for all stripes of a target.
    let unit = mix(mix(inode.0, stripe), 0x7265_706c) % u64::from(units.max(1));
    let row = class * u32::from(daemons) + u32::from(home.0);
    UnitIndex(row * u32::from(units) + unit as u32)
}

/// All daemons, the best place for a copy of the unit first.
pub(crate) fn ranked(table: &Table, unit: UnitIndex) -> Vec<DaemonIndex> {
    let home = table.home(unit);
    let mut all: Vec<DaemonIndex> = table.daemons().map(|(daemon, _)| daemon).collect();
    all.sort_by_cached_key(|&daemon| {
        let is_other = daemon != home;
        (is_other, mix(u64::from(unit.0), u64::from(daemon.0)), daemon.0)
    });
    all
}

/// The daemons that should have the copies of the unit: the best that take part, each in another
/// failure domain. Fewer than asked for where there are not so many domains.
#[must_use]
pub fn chosen(table: &Table, unit: UnitIndex) -> Vec<DaemonIndex> {
    let copies = table.unit(unit).map_or(0, |row| usize::from(row.goal));
    let mut found: Vec<DaemonIndex> = Vec::new();
    for daemon in ranked(table, unit) {
        if found.len() < copies && table.is_up(daemon) && table.is_apart(daemon, &found) {
            found.push(daemon);
        }
    }
    found
}

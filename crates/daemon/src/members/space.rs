//! The reports of this daemon about its space, in an instance with copies of files: by them the daemon
//! that leads decides which copies leave it, and whether it takes others (`replicas::space`).

use crate::units::Units;
use replicas::space::{DaemonSpace, SpaceReport};
use replicas::table::{CopyState, Table};
use wire::DaemonIndex;

/// The report of this daemon.
pub(super) fn report(
    units: &Units,
    table: &Table,
    own: DaemonIndex,
    space: DaemonSpace,
) -> SpaceReport {
    let bytes = units.bytes();
    let of_own = table.units().filter(|(_, row)| row.primary == Some(own));
    let here = |unit| bytes.get(&unit).map_or(0, |it| it.here);
    let units = of_own.map(|(unit, _)| (unit, here(unit))).collect();
    SpaceReport { space, units }
}

/// Copies that a daemon has, and those of them that leave it where it must be rid of bytes.
pub(super) fn copies(table: &Table, own: DaemonIndex, must_leave: bool) -> (u64, u64) {
    let (mut count, mut leaving) = (0, 0);
    for (_, row) in table.units() {
        let Some(copy) = row.copy(own) else { continue };
        count += 1;
        let others_come = row.with(CopyState::Joining).any(|it| it != own);
        let is_left = copy.state == CopyState::Behind || row.in_sync() > usize::from(row.goal);
        leaving += u64::from(must_leave && (is_left || others_come));
    }
    (count, leaving)
}

#[cfg(test)]
mod tests {
    use super::*;
    use replicas::change::{Change, CopyId, Reign};
    use replicas::placement::UnitIndex;

    #[test]
    fn a_copy_leaves_from_when_another_one_begins_until_it_is_gone() {
        let (own, other) = (DaemonIndex(0), DaemonIndex(2));
        let mut table = Table::initial(&[0, 1, 2], &[2], 1, false).expect("a setup");
        let unit = UnitIndex(0);
        let row = table.unit(unit).expect("a unit").clone();
        let to = [1, 2].map(DaemonIndex).into_iter().find(|&it| row.copy(it).is_none());
        let (of, to) = (Reign { unit, epoch: row.epoch }, to.unwrap_or(other));
        let all = copies(&table, own, true).0;
        assert_eq!((copies(&table, own, true).1, row.primary), (0, Some(own)));
        table.apply(&Change::Add { of, daemon: to }).expect("it has none");
        assert_eq!(copies(&table, own, true), (all, 1));
        assert_eq!(copies(&table, own, false), (all, 0));
        let since = table.unit(unit).and_then(|it| it.copy(to)).expect("a copy").since;
        table.apply(&Change::InSync { of: CopyId { of, daemon: to, since } }).expect("it joins");
        assert_eq!(copies(&table, own, true), (all, 1));
        table.apply(&Change::HandOver { of: CopyId { of, daemon: to, since } }).expect("in sync");
        let row = table.unit(unit).expect("a unit").clone();
        let of = Reign { unit, epoch: row.epoch };
        for _ in 0..2 {
            let since = table.unit(unit).and_then(|it| it.copy(own)).expect("a copy").since;
            assert_eq!(copies(&table, own, true), (all, 1));
            table.apply(&Change::Drop { of: CopyId { of, daemon: own, since } }).expect("it may");
        }
        assert_eq!(copies(&table, own, true), (all - 1, 0));
    }
}

//! The table of units: whatever changes come, it holds its promises; the policy comes to rest, and
//! then all copies are where they should be; copies are spread over all daemons.

mod given_back;

use encoding::{Decode as _, Encode as _};
use proptest::prelude::*;
use replicas::change::{Change, CopyId, Reign};
use replicas::placement::{ChosenPlaces, UnitIndex, chosen, unit_of};
use replicas::policy::{self, Advice};
use replicas::space::Spaces;
use replicas::table::{CopyRow, CopyState, Presence, Table, Unit, Unsuitable};
use std::collections::BTreeSet;
use wire::{DaemonIndex, Inode};

fn table(daemons: u32, domains: u32, goals: &[u8]) -> Table {
    let domains: Vec<u32> = (0..daemons).map(|it| it % domains).collect();
    Table::initial(&domains, goals, 3, false).expect("a possible setup")
}

/// A change that is about what the table has, or nearly.
fn change(table: &Table, kind: usize, n: [u64; 3]) -> Change {
    let count = table.daemons().count() as u64;
    let daemon = DaemonIndex((n[0] % count) as u16);
    let unit = UnitIndex((n[1] % table.units().count() as u64) as u32);
    let row = table.unit(unit).expect("a unit");
    let holder = table.holder(daemon).expect("a daemon");
    let of = Reign { unit, epoch: row.epoch - n[2] % 2 };
    let since = row.copy(daemon).map_or(n[2], |copy| copy.since);
    let copy = CopyId { of, daemon, since };
    match kind {
        0 => {
            let known = table.version.saturating_sub(n[2] % 8);
            Change::Down { daemon, incarnation: holder.incarnation, known }
        }
        1 | 2 => Change::Up {
            daemon,
            incarnation: holder.incarnation + 1,
            domain: holder.domain,
            is_empty: kind == 2,
            known: table.version.saturating_sub(n[2] % 8),
        },
        3 => Change::Leave { daemon },
        4 => Change::Add { of, daemon },
        5 => Change::InSync { of: copy },
        6 => Change::Drop { of: copy },
        _ => Change::HandOver { of: copy },
    }
}

/// Applies what the policy asks for, as primaries and copies do without faults, until it asks for
/// nothing.
fn settle(table: &mut Table) {
    for _ in 0..2_000 {
        let before = table.version;
        for (unit, row) in table.clone().units() {
            for daemon in row.with(CopyState::Joining).filter(|_| row.primary.is_some()) {
                let since = row.copy(daemon).expect("a copy").since;
                let of = CopyId { of: Reign { unit, epoch: row.epoch }, daemon, since };
                table.apply(&Change::InSync { of }).expect("it joins");
            }
        }
        for advice in policy::next(table, &Spaces::default()) {
            let change = match advice {
                Advice::Propose(change) => change,
                Advice::HandOver(of) => Change::HandOver { of },
            };
            table.apply(&change).expect("the policy asks for what can be done");
        }
        if table.version == before {
            return;
        }
    }
    panic!("the policy never rests: {table:?}");
}

proptest! {
    #[test]
    fn any_changes_leave_a_table(
        daemons in 3_u32..12,
        list in prop::collection::vec((0_usize..8, prop::array::uniform3(0_u64..60)), 0..80),
    ) {
        let mut table = table(daemons, daemons, &[2, 3]);
        let mut places = ChosenPlaces::default();
        for (kind, n) in list {
            let (before, change) = (table.clone(), change(&table, kind, n));
            if table.apply(&change).is_err() {
                prop_assert_eq!(&table, &before);
                continue;
            }
            prop_assert_eq!(table.version, before.version + 1);
            let read = Table::from_bytes(&table.to_bytes());
            prop_assert_eq!(read.as_ref(), Ok(&table));
            prop_assert_eq!(Change::from_bytes(&change.to_bytes()), Ok(change));
            let after = table.clone();
            prop_assert!(table.apply(&change).is_err(), "twice: {:?}", change);
            prop_assert_eq!(&table, &after);
            places.follow(&table);
            for (unit, row) in table.units() {
                prop_assert_eq!(places.of(unit), chosen(&table, unit), "{:?}", change);
                let earlier = before.unit(unit).expect("units stay");
                prop_assert!(row.epoch >= earlier.epoch);
                let is_same = row.primary.is_none() || row.primary == earlier.primary;
                prop_assert!(is_same || row.epoch > earlier.epoch);
                let primary = row.primary.and_then(|primary| row.copy(primary));
                let is_in_sync = primary.is_some_and(|it| it.state == CopyState::InSync);
                prop_assert!(row.primary.is_none() || is_in_sync);
                // Without a primary nothing becomes one but what the last one has.
                prop_assert!(row.primary.is_some() || row.in_sync() == 0);
                let is_from_sync = |it: DaemonIndex| {
                    earlier.copy(it).is_some_and(CopyRow::has_all)
                };
                let is_lost = row.lost_at > earlier.lost_at;
                prop_assert!(is_same || is_lost || is_from_sync(row.last), "{:?}", change);
                prop_assert!(!is_lost || row.lost_at == table.newest_loss());
                prop_assert!(row.lost_at <= table.newest_loss());
                let mut copies: Vec<_> = row.copies.iter().map(|copy| copy.daemon).collect();
                copies.sort();
                copies.dedup();
                prop_assert_eq!(copies.len(), row.copies.len());
            }
        }
        for (daemon, holder) in table.clone().daemons() {
            if holder.presence != Presence::Up {
                let incarnation = holder.incarnation + 1;
                let (domain, is_empty, known) = (holder.domain, false, u64::MAX);
                let _ = table.apply(&Change::Up { daemon, incarnation, domain, is_empty, known });
            }
        }
        settle(&mut table);
        for (unit, row) in table.units().filter(|(_, row)| row.primary.is_some()) {
            let chosen = chosen(&table, unit);
            let mut copies: Vec<_> = row.copies.iter().map(|copy| copy.daemon).collect();
            copies.sort();
            let mut expected = chosen.clone();
            expected.sort();
            if chosen.len() == usize::from(row.goal) {
                prop_assert_eq!(copies, expected, "{:?}", row);
                prop_assert_eq!(row.primary, chosen.first().copied());
            }
        }
    }
}

/// A daemon that took over and starts again, before or after anyone missed it, does not know whether the
/// lease of the primary before it has ended. Nor does the one that gets the unit when all is lost.
#[test]
fn a_successor_that_starts_again_waits_as_before() {
    let unit = UnitIndex(0);
    let mut table = table(4, 4, &[2]);
    let primary = |table: &Table| table.unit(unit).and_then(|row| row.primary).expect("a primary");
    let down = |table: &mut Table, daemon: DaemonIndex| {
        let incarnation = table.holder(daemon).expect("a daemon").incarnation;
        let down = Change::Down { daemon, incarnation, known: table.version };
        table.apply(&down).expect("it is up");
    };
    let up = |table: &mut Table, daemon: DaemonIndex, is_empty: bool| {
        let holder = *table.holder(daemon).expect("a daemon");
        let (incarnation, domain) = (holder.incarnation + 1, holder.domain);
        let known = u64::MAX;
        let up = Change::Up { daemon, incarnation, domain, is_empty, known };
        table.apply(&up).expect("it is new");
    };
    let waits = |table: &Table| {
        let row = table.unit(unit).expect("a unit");
        row.is_successor && row.since == table.version
    };
    assert!(!waits(&table), "nobody had the unit before");
    let first = primary(&table);
    down(&mut table, first);
    let second = primary(&table);
    assert!(second != first && waits(&table));
    up(&mut table, second, false);
    assert!(primary(&table) == second && waits(&table), "before anyone missed it");
    down(&mut table, second);
    up(&mut table, second, false);
    assert!(primary(&table) == second && waits(&table), "after it was missed");
    let before = table.unit(unit).map(|row| row.lost_at);
    down(&mut table, second);
    up(&mut table, second, true);
    assert!(table.unit(unit).map(|row| row.lost_at) > before);
    assert!(waits(&table), "all is lost");
}

/// Both daemons of a unit return before anyone missed them, one of them with nothing. The other one has
/// all that was acknowledged, in whichever order they come: the empty one knew no version of the table in
/// which the other had left.
#[test]
fn a_unit_goes_on_with_the_daemon_that_kept_its_bytes_where_the_other_one_returns_empty() {
    let first = table(4, 4, &[2]);
    for (unit, row) in first.units() {
        let primary = row.primary.expect("a primary");
        let other = row.copies.iter().map(|copy| copy.daemon).find(|&it| it != primary);
        let other = other.expect("two copies");
        for (kept, empty) in [(primary, other), (other, primary)] {
            for order in [[kept, empty], [empty, kept]] {
                let mut table = first.clone();
                let known = table.version;
                for daemon in order {
                    let domain = table.holder(daemon).expect("a daemon").domain;
                    let is_empty = daemon == empty;
                    let up = Change::Up { daemon, incarnation: 2, domain, is_empty, known };
                    table.apply(&up).expect("it is new");
                }
                let row = table.unit(unit).expect("a unit");
                assert_eq!((row.primary, row.lost_at), (Some(kept), 0), "{order:?}: {row:?}");
                assert_eq!(row.copy(empty), None, "{order:?}");
            }
        }
    }
    // One that was missed first: the other one may have acted without it.
    let (mut table, row) = (first.clone(), first.unit(UnitIndex(0)).expect("a unit"));
    let primary = row.primary.expect("a primary");
    let other = row.copies.iter().map(|copy| copy.daemon).find(|&it| it != primary);
    let other = other.expect("two copies");
    let down = Change::Down { daemon: other, incarnation: 1, known: 1 };
    table.apply(&down).expect("it is up");
    for (daemon, is_empty) in [(other, false), (primary, true)] {
        let domain = table.holder(daemon).expect("a daemon").domain;
        let known = table.version;
        let up = Change::Up { daemon, incarnation: 2, domain, is_empty, known };
        table.apply(&up).expect("it is new");
    }
    assert!(table.unit(UnitIndex(0)).is_some_and(|row| row.lost_at > 0));
}

/// It counts as before, whatever the primary knows, and also where it was the primary.
#[test]
fn a_copy_whose_daemon_starts_again_before_anyone_missed_it_stays_in_sync() {
    let first = table(4, 4, &[2, 3]);
    for daemon in (0..4).map(DaemonIndex) {
        let mut table = first.clone();
        let domain = u32::from(daemon.0);
        let (incarnation, is_empty, known) = (2, false, table.version);
        let up = Change::Up { daemon, incarnation, domain, is_empty, known };
        table.apply(&up).expect("it is new");
        for (unit, row) in table.units() {
            let before = first.unit(unit).expect("a unit");
            assert_eq!(row.in_sync(), usize::from(row.goal), "{row:?}");
            let Some(copy) = row.copy(daemon) else { continue };
            // Its lane is a new one, and another daemon knows what was under way.
            assert_eq!((copy.since, copy.left_at), (table.version, 0));
            let was_primary = before.primary == Some(daemon);
            assert_eq!(row.epoch, before.epoch + u64::from(was_primary));
            assert!(row.primary.is_some_and(|it| it != daemon));
        }
        // So it is while it leaves.
        let mut leaving = first.clone();
        leaving.apply(&Change::Leave { daemon }).expect("it is up");
        leaving.apply(&up).expect("it is new");
        assert!(leaving.units().all(|(_, row)| row.in_sync() == usize::from(row.goal)));
        assert_eq!(leaving.holder(daemon).map(|it| it.presence), Some(Presence::Leaving));
        // All others are lost, with what they knew.
        for other in (0..4).map(DaemonIndex).filter(|&it| it != daemon) {
            let down = Change::Down { daemon: other, incarnation: 1, known: table.version };
            table.apply(&down).expect("it is up");
        }
        for (_, row) in table.units().filter(|(_, row)| row.copy(daemon).is_some()) {
            assert_eq!(row.primary, Some(daemon), "{row:?}");
        }
        // With nothing it has nothing.
        let mut table = first.clone();
        let up = Change::Up { daemon, incarnation, domain, is_empty: true, known };
        table.apply(&up).expect("it is new");
        assert!(table.units().all(|(_, row)| row.copy(daemon).is_none()));
    }
}

#[test]
fn more_units_move_to_a_daemon_at_a_time_than_are_made_anew_there() {
    let domains: Vec<u32> = (0..4).collect();
    let mut moving = Table::initial(&domains, &[2], 64, false).expect("a setup");
    moving.expect(4, 1).expect("the others take part");
    let (daemon, domain) = (DaemonIndex(4), 4);
    let up = Change::Up { daemon, incarnation: 2, domain, is_empty: true, known: u64::MAX };
    moving.apply(&up).expect("it was added");
    let mut missing = Table::initial(&domains, &[2], 64, false).expect("a setup");
    let down = Change::Down { daemon: DaemonIndex(3), incarnation: 1, known: 1 };
    missing.apply(&down).expect("it was up");
    let begun = |table: &Table, at: u16| {
        let added = |it: &Advice| match it {
            Advice::Propose(Change::Add { daemon, .. }) => Some(daemon.0),
            _ => None,
        };
        policy::next(table, &Spaces::default())
            .iter()
            .filter_map(added)
            .filter(|&it| it == at)
            .count()
    };
    assert_eq!(begun(&moving, 4), policy::MOVING_PER_DAEMON_MAX);
    assert_eq!([0, 1, 2].map(|it| begun(&missing, it)), [policy::JOINING_PER_DAEMON_MAX; 3]);
    // Units in danger do not wait for those that only move.
    let is_spared = |row: &Unit| [3, 4].iter().all(|&it| row.copy(DaemonIndex(it)).is_none());
    let spared = moving.units().filter(|(_, row)| is_spared(row));
    let spared = spared.map(|(unit, row)| Reign { unit, epoch: row.epoch });
    for of in spared.take(policy::MOVING_PER_DAEMON_MAX).collect::<Vec<_>>() {
        moving.apply(&Change::Add { of, daemon }).expect("it has no copy there");
    }
    moving.apply(&down).expect("it was up");
    assert_eq!(begun(&moving, 4), policy::JOINING_PER_DAEMON_MAX);
}

#[test]
fn a_dead_daemon_s_units_are_made_anew_by_all() {
    let mut table = table_of_many();
    let down = Change::Down { daemon: DaemonIndex(5), incarnation: 1, known: 1 };
    table.apply(&down).expect("it was up");
    let mut primaries = vec![0; 16];
    let mut filled = vec![0; 16];
    for (unit, row) in table.units() {
        if row.in_sync() < 2 {
            primaries[usize::from(row.primary.expect("a copy is left").0)] += 1;
            let chosen = chosen(&table, unit);
            let next = chosen.iter().find(|&&it| row.copy(it).is_none()).expect("another daemon");
            filled[usize::from(next.0)] += 1;
        }
    }
    // 64 units of its own, and about as many as a second copy, over 15 others.
    println!("sources {primaries:?}, destinations {filled:?}");
    for daemon in (0..16).filter(|&it| it != 5) {
        assert!((1..=24).contains(&primaries[daemon]), "{primaries:?}");
        assert!((1..=24).contains(&filled[daemon]), "{filled:?}");
    }
}

fn table_of_many() -> Table {
    let domains: Vec<u32> = (0..16).collect();
    Table::initial(&domains, &[2], 64, false).expect("a possible setup")
}

/// Places are looked at again only where they may differ: else a leader of 1,024 daemons would compute
/// six million hashes for each copy that joins.
#[test]
fn a_change_concerns_few_places() {
    let mut table = table_of_many();
    let (mut places, units) = (ChosenPlaces::default(), table.units().count());
    assert_eq!(places.follow(&table), units);
    assert_eq!(places.follow(&table), 0);
    let (daemon, first) = (DaemonIndex(5), table.unit(UnitIndex(0)).expect("a unit"));
    let has_it = table.units().filter(|(_, row)| row.copy(daemon).is_some()).count();
    let second = first.copies.iter().find(|it| Some(it.daemon) != first.primary);
    let (of, second) = (Reign { unit: UnitIndex(0), epoch: 1 }, second.expect("two copies"));
    let of = CopyId { of, daemon: second.daemon, since: second.since };
    table.apply(&Change::Drop { of }).expect("it is in sync");
    assert_eq!(places.follow(&table), 0);
    table.apply(&Change::Down { daemon, incarnation: 1, known: 1 }).expect("it was up");
    assert_eq!(places.follow(&table), has_it);
    assert!(has_it < units / 4, "{has_it} of {units}");
    let up = Change::Up { daemon, incarnation: 2, domain: 5, is_empty: false, known: u64::MAX };
    table.apply(&up).expect("it was down");
    assert_eq!(places.follow(&table), has_it);
    assert!(table.units().all(|(unit, _)| places.of(unit) == chosen(&table, unit)));
}

#[test]
fn the_most_endangered_unit_is_first() {
    let mut table = Table::initial(&[0, 1, 2, 3, 4, 5, 6, 7], &[3], 12, false).expect("a setup");
    for daemon in [DaemonIndex(1), DaemonIndex(2)] {
        table.apply(&Change::Down { daemon, incarnation: 1, known: 1 }).expect("it was up");
    }
    let in_sync = |advice: &Advice| match advice {
        Advice::Propose(Change::Add { of, .. }) => table.unit(of.unit).expect("a unit").in_sync(),
        other => panic!("{other:?} before all units are safe"),
    };
    let counts: Vec<usize> = policy::next(&table, &Spaces::default()).iter().map(in_sync).collect();
    assert!(counts.contains(&1) && counts.contains(&2) && counts.is_sorted(), "{counts:?}");
}

#[test]
fn stripes_of_a_target_are_divided_evenly() {
    let mut units = [0_u32; 64];
    for stripe in 0..64_000 {
        let unit = unit_of(3, 64, Inode(77), stripe);
        units[(unit.0 - 3 * 64) as usize] += 1;
    }
    assert!(units.iter().all(|&count| (850..1150).contains(&count)), "{units:?}");
}

#[test]
fn a_stripe_has_a_unit_of_its_target_and_number_of_copies() {
    let table = table(4, 4, &[2, 3]);
    for (goal, home, stripe) in (0..200).map(|n| (2 + (n % 2) as u8, (n / 2 % 4) as u16, n)) {
        let (home, inode) = (DaemonIndex(home), Inode(9 + stripe / 7));
        let unit = table.unit_of(goal, home, inode, stripe).expect("there is one");
        assert_eq!((table.home(unit), table.unit(unit).map(|it| it.goal)), (home, Some(goal)));
        assert_eq!(table.unit_of(goal, DaemonIndex(4), inode, stripe), None);
    }
    assert_eq!(table.unit_of(1, DaemonIndex(0), Inode(9), 0), None);
    for (goal, home) in [(2, 0), (3, 0), (2, 3), (3, 3)] {
        let units: Vec<UnitIndex> =
            table.units_of(goal, DaemonIndex(home)).map(|it| it.0).collect();
        let found: BTreeSet<UnitIndex> = (0..200)
            .filter_map(|stripe| table.unit_of(goal, DaemonIndex(home), Inode(9), stripe))
            .collect();
        assert_eq!(units.len(), 3);
        assert!(found.into_iter().eq(units), "{goal} {home}");
    }
}

#[test]
fn a_target_that_is_added_has_units_of_its_own_and_the_others_keep_theirs() {
    let mut table = table(4, 8, &[2, 3]);
    let keys = || (0..400_u64).map(|n| (2 + (n % 2) as u8, DaemonIndex((n / 2 % 4) as u16), n));
    let unit_of_key = |table: &Table, (goal, home, stripe)| {
        table.unit_of(goal, home, Inode(9 + stripe / 7), stripe).expect("there is one")
    };
    let before: Vec<UnitIndex> = keys().map(|key| unit_of_key(&table, key)).collect();
    for index in 4..7 {
        let (daemon, version) = (DaemonIndex(index), table.version);
        assert_eq!(table.unit_of(2, daemon, Inode(9), 0), None);
        table.expect(u32::from(index), 1).expect("the others take part");
        assert_eq!(table.version, version + 1);
        // Others have its units until it comes.
        for (unit, row) in table.units_of(2, daemon).chain(table.units_of(3, daemon)) {
            let copies: Vec<_> = row.copies.iter().map(|copy| copy.daemon).collect();
            assert_eq!(copies, chosen(&table, unit));
            assert_eq!((row.in_sync(), row.primary), (row.goal.into(), copies.first().copied()));
            assert!(!copies.contains(&daemon) && row.since == table.version);
        }
    }
    assert!(keys().map(|key| unit_of_key(&table, key)).eq(before), "nothing is elsewhere");
    assert_eq!(Table::from_bytes(&table.to_bytes()).as_ref(), Ok(&table));
    // Each unit is of one target and number of copies, and found by both.
    let mut seen = BTreeSet::new();
    for (goal, home) in (0..14).map(|n| (2 + n % 2, DaemonIndex(u16::from(n / 2)))) {
        let units: BTreeSet<UnitIndex> = table.units_of(goal, home).map(|it| it.0).collect();
        let found = (0..200).map(|stripe| unit_of_key(&table, (goal, home, stripe)));
        assert_eq!(units, found.collect(), "{goal} {home:?}");
        assert!(units.len() == 3 && units.iter().all(|&it| table.home(it) == home));
        seen.extend(units);
    }
    assert_eq!(seen.len(), table.units().count());
    for index in 4..7 {
        let (daemon, domain) = (DaemonIndex(index), u32::from(index));
        let up = Change::Up { daemon, incarnation: 2, domain, is_empty: true, known: u64::MAX };
        table.apply(&up).expect("it was added");
    }
    settle(&mut table);
    for (unit, row) in table.units() {
        assert_eq!(
            (row.primary, row.lost_at),
            (Some(table.home(unit)), 0),
            "local bytes are local"
        );
    }
    // Nobody could have the units of one more.
    for index in 0..7 {
        let daemon = DaemonIndex(index);
        let incarnation = table.holder(daemon).expect("a daemon").incarnation;
        table.apply(&Change::Down { daemon, incarnation, known: 1 }).expect("it is up");
    }
    let before = table.clone();
    table.expect(9, 1).expect_err("no daemon takes part");
    assert_eq!(table, before);
}

#[test]
fn settings_that_cannot_be_are_refused() {
    let initial =
        |domains: &[u32], goal, units| Table::initial(domains, &[goal], units, false).err();
    assert_eq!(initial(&[], 2, 1), Some(Unsuitable::Daemons));
    assert_eq!(initial(&[0, 1], 2, 0), Some(Unsuitable::Units));
    assert_eq!(initial(&[0, 1], 2, 65), Some(Unsuitable::Units));
    assert_eq!(Table::initial(&[0, 1], &[2, 2], 1, false).err(), Some(Unsuitable::Copies));
    assert_eq!(initial(&[0, 1], 1, 1), Some(Unsuitable::Copies));
    assert_eq!(initial(&[0, 1, 2, 3], 4, 1), Some(Unsuitable::Copies));
    assert_eq!(initial(&[7, 7], 2, 1), Some(Unsuitable::Domains { found: 1, needed: 2 }));
    assert_eq!(Table::initial(&[7, 7], &[2], 1, true).err(), None);
}

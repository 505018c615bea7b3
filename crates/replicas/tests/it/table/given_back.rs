//! Memory of daemons is reclaimed and lent again: what the policy does with copies there. Each step is
//! looked at: no unit has fewer copies than before, and none is where another copy fails with it.

use super::{Spaces, policy};
use proptest::prelude::*;
use replicas::change::{Change, CopyId, Reign};
use replicas::placement::{UnitIndex, chosen};
use replicas::policy::{Advice, Policy};
use replicas::space::{DaemonSpace, SpaceReport};
use replicas::table::{CopyState, Presence, Table};
use std::collections::{BTreeMap, BTreeSet};
use wire::DaemonIndex;

const MIB: u64 = 1 << 20;
const MEMORY: u64 = 1024 * MIB;
const A: DaemonIndex = DaemonIndex(0);

/// Daemons with bytes of units, as they report them.
struct Instance {
    table: Table,
    spaces: Spaces,
    policy: Policy,
    units: BTreeMap<UnitIndex, u64>,
    /// Memory that each may hold, its SSD, and bytes there of others than units.
    daemons: Vec<(u64, u64, u64)>,
    /// Copies that began, in their order.
    added: Vec<(UnitIndex, DaemonIndex)>,
    handed_over: Vec<UnitIndex>,
}

impl Instance {
    /// Each unit has so many bytes.
    fn new(daemons: u32, domains: u32, goals: &[u8], bytes: u64) -> Instance {
        let of = |it: u32| it % domains;
        let domains: Vec<u32> = (0..daemons).map(of).collect();
        let table = Table::initial(&domains, goals, 8, false).expect("a possible setup");
        let units = table.units().map(|(unit, _)| (unit, bytes)).collect();
        let daemons = vec![(MEMORY, 0, 0); daemons as usize];
        let (spaces, policy) = (Spaces::default(), Policy::default());
        let (added, handed_over) = (Vec::new(), Vec::new());
        Instance { table, spaces, policy, units, daemons, added, handed_over }
    }

    fn bytes(&self, unit: UnitIndex) -> u64 {
        self.units.get(&unit).copied().unwrap_or(0)
    }

    /// Bytes of copies at a daemon, those that were given up too.
    fn held(&self, daemon: DaemonIndex) -> u64 {
        let there = self.table.units().filter(|(_, row)| row.copy(daemon).is_some());
        there.map(|(unit, _)| self.bytes(unit)).sum()
    }

    fn copies(&self, daemon: DaemonIndex) -> usize {
        self.table.units().filter(|(_, row)| row.copy(daemon).is_some()).count()
    }

    fn report(&mut self) {
        for (daemon, &(allowed, ssd, others)) in (0..).map(DaemonIndex).zip(&self.daemons) {
            if !self.table.is_up(daemon) {
                continue;
            }
            // Bytes that do not fit in memory are on the SSD, as far as that has space.
            let all = self.held(daemon) + others;
            let on_ssd = all.saturating_sub(allowed).min(ssd - ssd / 16);
            let (used, ssd_free) = (all - on_ssd, ssd - on_ssd);
            let space = DaemonSpace { memory: MEMORY, allowed, used, ssd, ssd_free };
            let own = self.table.units().filter(|(_, row)| row.primary == Some(daemon));
            let units = own.map(|(unit, _)| (unit, self.bytes(unit))).collect();
            self.spaces.hear(daemon, &SpaceReport { space, units });
        }
    }

    /// Copies that join are whole.
    fn fill(&mut self) {
        for (unit, row) in self.table.clone().units() {
            for daemon in row.with(CopyState::Joining).filter(|_| row.primary.is_some()) {
                let since = row.copy(daemon).expect("a copy").since;
                let of = CopyId { of: Reign { unit, epoch: row.epoch }, daemon, since };
                self.table.apply(&Change::InSync { of }).expect("it joins");
            }
        }
    }

    /// Does what the policy asks for. Whether that was anything.
    fn follow(&mut self) -> bool {
        self.spaces.follow(&self.table);
        let all = self.policy.next(&self.table, &self.spaces);
        for advice in &all {
            let change = match *advice {
                Advice::Propose(change) => change,
                Advice::HandOver(of) => {
                    self.handed_over.push(of.of.unit);
                    Change::HandOver { of }
                }
            };
            let before = self.table.clone();
            self.table.apply(&change).expect("the policy asks for what can be done");
            match change {
                Change::Add { of, daemon } => self.added.push((of.unit, daemon)),
                Change::Drop { of } => self.check_dropped(&before, of),
                _ => {}
            }
        }
        !all.is_empty()
    }

    /// The copies that are left are enough, where there were enough.
    fn check_dropped(&self, before: &Table, of: CopyId) {
        let in_sync = |table: &Table| {
            let row = table.unit(of.of.unit).expect("a unit");
            let up = |it: &DaemonIndex| table.is_up(*it);
            let domain = |it: DaemonIndex| table.holder(it).expect("a daemon").domain;
            let domains = row.with(CopyState::InSync).filter(up).map(domain);
            (domains.collect::<BTreeSet<u32>>().len(), usize::from(row.goal))
        };
        let ((had, goal), (has, _)) = (in_sync(before), in_sync(&self.table));
        assert!(has >= had.min(goal), "{of:?} of {before:?}");
    }

    fn step(&mut self) -> bool {
        self.fill();
        self.report();
        self.follow()
    }

    fn steps(&mut self, count: usize) {
        for _ in 0..count {
            self.step();
        }
    }

    /// Until the policy asks for nothing, also after the second report of what is needed.
    fn settle(&mut self) {
        let rests = (0..3_000).any(|_| !self.step() && !self.step() && !self.step());
        assert!(rests, "the policy never rests: {:?}", self.table);
        for (unit, row) in self.table.units() {
            let (daemons, goal) = (row.copies.iter().map(|it| it.daemon), usize::from(row.goal));
            let domain = |it: DaemonIndex| self.table.holder(it).expect("a daemon").domain;
            let domains: BTreeSet<u32> = daemons.map(domain).collect();
            let possible: BTreeSet<u32> = self
                .table
                .daemons()
                .filter(|it| it.1.presence == Presence::Up)
                .map(|it| it.1.domain)
                .collect();
            if possible.len() >= goal {
                assert_eq!(
                    (row.in_sync(), row.copies.len(), domains.len()),
                    (goal, goal, goal),
                    "{unit:?} {row:?}"
                );
            }
        }
    }

    fn lend(&mut self, daemon: DaemonIndex, allowed: u64) {
        self.daemons[usize::from(daemon.0)].0 = allowed;
    }

    /// Whether each copy is where it is without lending.
    fn is_at_home(&self) -> bool {
        self.table.units().all(|(unit, row)| {
            let chosen = chosen(&self.table, unit);
            row.primary == chosen.first().copied()
                && row.copies.iter().all(|it| chosen.contains(&it.daemon))
        })
    }
}

#[test]
fn copies_leave_a_daemon_whose_memory_is_reclaimed_and_come_back_when_it_is_lent() {
    for (daemons, domains, goals) in [(4, 4, &[2][..]), (6, 3, &[2]), (5, 5, &[3, 2]), (8, 4, &[3])]
    {
        let mut instance = Instance::new(daemons, domains, goals, 10 * MIB);
        instance.settle();
        assert!(instance.added.is_empty() && instance.is_at_home());
        let before = instance.copies(A);
        instance.lend(A, 0);
        instance.settle();
        assert_eq!((instance.copies(A), instance.held(A)), (0, 0));
        assert_eq!(instance.added.len(), before, "others stay");
        instance.lend(A, MEMORY);
        instance.settle();
        assert!(instance.is_at_home());
        assert_eq!(instance.added.len(), 2 * before);
    }
}

#[test]
fn copies_stay_while_the_own_ssd_has_space() {
    let mut instance = Instance::new(4, 4, &[2], 10 * MIB);
    let held = instance.held(A);
    instance.daemons[0] = (0, 2 * held, 0);
    instance.settle();
    assert!(instance.added.is_empty() && instance.handed_over.is_empty());
    // It has space for some of them.
    instance.daemons[0] = (0, held, 0);
    instance.settle();
    assert!(instance.held(A) > 0 && instance.held(A) < held);
}

#[test]
fn no_more_copies_leave_than_must() {
    let bytes = 30 * MIB;
    let mut instance = Instance::new(4, 4, &[2], bytes);
    let (held, copies) = (instance.held(A), instance.copies(A));
    instance.lend(A, held * 3 / 4);
    let target = held * 3 / 4 - MEMORY / 16;
    instance.settle();
    assert!(instance.held(A) <= target && instance.held(A) + bytes > target);
    assert!(copies > instance.copies(A));
    // Secondaries suffice.
    assert!(instance.handed_over.is_empty());
    assert!(
        instance.table.units().all(|(unit, row)| row.primary == Some(instance.table.home(unit)))
    );
    // A little more is lent, and a little less: nothing moves.
    let moved = instance.added.len();
    for allowed in [held * 3 / 4 + bytes, held * 3 / 4] {
        instance.lend(A, allowed);
        instance.settle();
    }
    assert_eq!(instance.added.len(), moved);
    // A quarter of it stays free when copies come back.
    instance.lend(A, MEMORY - 4096);
    instance.settle();
    assert!(instance.held(A) + MEMORY / 4 <= MEMORY);
    assert_eq!(instance.copies(A), copies, "they fit");
}

#[test]
fn units_without_bytes_leave_a_daemon_that_has_no_space_at_all() {
    let mut instance = Instance::new(4, 4, &[2], 0);
    instance.units.insert(UnitIndex(3), 50 * MIB);
    instance.lend(A, MEMORY / 2);
    instance.settle();
    assert!(instance.added.is_empty(), "all of it fits");
    instance.lend(A, 40 * MIB);
    instance.settle();
    assert!(instance.copies(A) == 0, "writers find space elsewhere");
}

#[test]
fn a_primary_hands_over_before_its_copy_leaves() {
    let mut instance = Instance::new(4, 4, &[2], 10 * MIB);
    instance.lend(A, 0);
    let mut had = 0;
    loop {
        instance.fill();
        instance.report();
        let before = instance.table.clone();
        let is_over = !instance.follow();
        for (unit, row) in before.units().filter(|(_, row)| row.primary == Some(A)) {
            let copies = instance.table.unit(unit).expect("a unit").copies.iter();
            assert!(copies.clone().any(|it| it.daemon == A), "{row:?}");
            had += 1;
        }
        if is_over && instance.copies(A) == 0 {
            break;
        }
        assert!(instance.added.len() < 1000);
    }
    assert!(had >= 8);
    let own: BTreeSet<UnitIndex> = instance.table.units_of(2, A).map(|it| it.0).collect();
    assert_eq!(instance.handed_over.iter().copied().collect::<BTreeSet<_>>(), own);
}

#[test]
fn secondaries_leave_first_and_to_the_daemon_with_most_free_memory() {
    let mut instance = Instance::new(5, 5, &[2], 20 * MIB);
    let held = instance.held(A);
    instance.daemons[3].2 = 300 * MIB;
    instance.lend(A, held);
    instance.settle();
    assert!(!instance.added.is_empty());
    for (unit, taker) in instance.added.clone() {
        assert_ne!(instance.table.home(unit), A);
        assert_ne!(taker, DaemonIndex(3), "it has least free");
    }
}

#[test]
fn copies_stay_where_no_other_daemon_has_space() {
    let mut instance = Instance::new(4, 4, &[2], 10 * MIB);
    let before = instance.table.clone();
    for other in 1..4 {
        instance.daemons[other].2 = MEMORY * 3 / 4;
    }
    instance.lend(A, 0);
    instance.settle();
    assert_eq!(instance.table, before);
    // Another one has: only what it takes leaves.
    instance.daemons[2].2 = MEMORY * 3 / 4 - instance.held(DaemonIndex(2)) - 25 * MIB;
    instance.settle();
    let to: Vec<DaemonIndex> = instance.added.iter().map(|it| it.1).collect();
    assert_eq!(to, [DaemonIndex(2); 2]);
    // In two domains there is no place for a second copy that is apart.
    let mut instance = Instance::new(3, 2, &[2], 10 * MIB);
    let domain = |it: DaemonIndex| it.0 % 2;
    let alone = DaemonIndex(1);
    instance.lend(alone, 0);
    let before = instance.copies(alone);
    instance.settle();
    assert_eq!(instance.copies(alone), before, "the only one of domain {}", domain(alone));
}

#[test]
fn both_daemons_of_a_pair_are_emptied() {
    let mut instance = Instance::new(6, 6, &[2], 10 * MIB);
    let pair = [A, DaemonIndex(1)];
    pair.iter().for_each(|&it| instance.lend(it, 0));
    instance.settle();
    assert_eq!(pair.map(|it| instance.copies(it)), [0, 0]);
    pair.iter().for_each(|&it| instance.lend(it, MEMORY));
    instance.settle();
    assert!(instance.is_at_home());
}

#[test]
fn a_leader_that_has_heard_nothing_moves_nothing_back() {
    let mut instance = Instance::new(4, 4, &[2], 10 * MIB);
    instance.lend(A, 0);
    instance.settle();
    let mut spaces = Spaces::default();
    spaces.begin();
    assert_eq!(policy::next(&instance.table, &spaces), []);
    // It hears of the others first.
    instance.spaces = spaces;
    for daemon in (1..4).map(DaemonIndex) {
        let held = instance.held(daemon);
        let space =
            DaemonSpace { memory: MEMORY, allowed: MEMORY, used: held, ..DaemonSpace::default() };
        let units = instance.units.iter().map(|(&unit, &bytes)| (unit, bytes)).collect();
        instance.spaces.hear(daemon, &SpaceReport { space, units });
        assert_eq!(policy::next(&instance.table, &instance.spaces), []);
    }
    // A death is another matter.
    let down = Change::Down { daemon: DaemonIndex(1), incarnation: 1, known: 1 };
    instance.table.apply(&down).expect("it was up");
    let advice = policy::next(&instance.table, &instance.spaces);
    let to_a = |it: &Advice| matches!(it, Advice::Propose(Change::Add { daemon: A, .. }));
    assert!(!advice.is_empty() && !advice.iter().any(to_a), "{advice:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// Whatever is lent, needed, written and killed: the policy rests, and no copy is dropped that is
    /// needed (`Instance::follow`).
    #[test]
    fn any_lending_keeps_the_copies(
        (daemons, domains) in (4_u32..9).prop_flat_map(|it| (Just(it), 3..=it)),
        list in prop::collection::vec((0_usize..6, 0_u64..8, 0_u64..=16, 0_usize..4), 1..25),
    ) {
        let mut instance = Instance::new(daemons, domains, &[2, 3], MIB);
        for (kind, n, sixteenths, steps) in list {
            let daemon = DaemonIndex((n % u64::from(daemons)) as u16);
            let place = usize::from(daemon.0);
            match kind {
                0 | 1 => instance.lend(daemon, MEMORY / 16 * sixteenths),
                2 => instance.daemons[place].1 = MEMORY / 16 * sixteenths,
                3 => instance.daemons[place].2 = MEMORY / 16 * sixteenths,
                4 => {
                    let unit = UnitIndex((n * 7 + sixteenths) as u32);
                    instance.units.insert(unit, 20 * MIB * sixteenths);
                }
                _ => {
                    let holder = *instance.table.holder(daemon).expect("a daemon");
                    let (incarnation, domain) = (holder.incarnation + 1, holder.domain);
                    let down = Change::Down { daemon, incarnation: holder.incarnation, known: 1 };
                    let known = u64::MAX;
                    let up = Change::Up { daemon, incarnation, domain, is_empty: n < 3, known };
                    instance.table.apply(&down).expect("it is up");
                    let is_lost = |table: &Table| table.lost().next().is_some();
                    let rounds = if is_lost(&instance.table) { 0 } else { steps };
                    instance.steps(rounds);
                    instance.table.apply(&up).expect("it is down");
                }
            }
            instance.steps(steps);
        }
        instance.settle();
        let moved = instance.added.len();
        instance.settle();
        prop_assert_eq!(instance.added.len(), moved);
    }
}

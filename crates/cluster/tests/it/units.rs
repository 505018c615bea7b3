//! Units of file data in the membership: any changes leave both with the same daemons, and daemons
//! agree on copies as they do on services. Nobody has a copy here: a primary says at once that a copy
//! which joins is in sync.

use crate::bytes::changes;
use cluster::change::{Change, LastAllowed};
use cluster::consensus::TICK_NANOS;
use cluster::membership::{Membership, Presence};
use cluster::node::{Action, Node, Settings};
use cluster::voters::first_voters;
use encoding::{Decode as _, Encode as _};
use proptest::prelude::*;
use replicas::change::{Change as UnitChange, CopyId, Reign};
use replicas::placement::{UnitIndex, chosen};
use replicas::policy::{self, Advice};
use replicas::space::Spaces;
use replicas::table::{CopyState, Presence as UnitPresence, Table};
use std::collections::VecDeque;
use wire::DaemonIndex;

const DOMAINS: [u32; 4] = [0, 1, 2, 3];

fn with_units() -> Membership {
    let membership = Membership::initial(&DOMAINS, 4, 0, true).expect("a setup");
    membership.with_owners_that_stay().with_units(&[2], 3, false).expect("a setup")
}

fn units_in(membership: &Membership) -> &Table {
    membership.units().expect("an instance with units")
}

/// The copies that join, for which their primaries could say that they are in sync.
fn joining(table: &Table) -> Vec<(DaemonIndex, CopyId)> {
    let of_unit = |(index, unit): (UnitIndex, &replicas::table::Unit)| {
        let of = Reign { unit: index, epoch: unit.epoch };
        let joining = unit.copies.iter().filter(|copy| copy.state == CopyState::Joining);
        let ids = joining.map(move |copy| CopyId { of, daemon: copy.daemon, since: copy.since });
        let ids: Vec<CopyId> = ids.collect();
        unit.primary
            .into_iter()
            .flat_map(move |primary| ids.clone().into_iter().map(move |id| (primary, id)))
    };
    table.units().flat_map(of_unit).collect()
}

/// A change of a unit that fits the table, by a number; none: there is none of its kind now.
pub(crate) fn fitting(table: &Table, kind: usize) -> Option<Change> {
    let change = if kind == 0 {
        joining(table).first().map(|&(_, of)| UnitChange::InSync { of })?
    } else {
        policy::next(table, &Spaces::default())
            .into_iter()
            .map(|advice| match advice {
                Advice::Propose(change) => change,
                Advice::HandOver(of) => UnitChange::HandOver { of },
            })
            .next()?
    };
    Some(Change::Unit { change })
}

fn assert_same_daemons(membership: &Membership) {
    let table = units_in(membership);
    assert_eq!(table.daemons().count(), membership.daemons().count());
    for (daemon, member) in membership.daemons() {
        let holder = table.holder(daemon).expect("as many daemons");
        let presence = match holder.presence {
            UnitPresence::Up => Presence::Up,
            UnitPresence::Down => Presence::Down,
            UnitPresence::Leaving => Presence::Leaving,
        };
        let known = (holder.domain, holder.incarnation, presence);
        assert_eq!(known, (member.domain, member.incarnation, member.presence), "{daemon:?}");
    }
}

proptest! {
    /// Each is made or refused as a whole, and the result is encoded.
    #[test]
    fn any_changes_leave_the_same_daemons(
        list in prop::collection::vec((prop::array::uniform4(0_u64..6), 0_usize..12), 0..80),
    ) {
        let mut membership = with_units();
        for (n, kind) in list {
            let before = membership.clone();
            let change = match kind {
                0..9 => Some(changes(n)[kind]),
                kind => fitting(units_in(&membership), kind - 9),
            };
            let Some(change) = change else { continue };
            if membership.apply(&change).is_err() {
                prop_assert!(kind < 9, "{:?} fits", change);
                prop_assert_eq!(&membership, &before);
            }
            assert_same_daemons(&membership);
            let (old, new) = (units_in(&before).version, units_in(&membership).version);
            prop_assert!(new >= old && (new == old || membership.epoch > before.epoch));
            let decoded = Membership::from_bytes(&membership.to_bytes());
            prop_assert_eq!(decoded.as_ref(), Ok(&membership));
        }
    }

    #[test]
    fn changes_of_units_survive_encoding(unit: u32, epoch: u64, daemon: u16, since: u64, kind in 0..4) {
        let (of, daemon) = (Reign { unit: UnitIndex(unit), epoch }, DaemonIndex(daemon));
        let copy = CopyId { of, daemon, since };
        let change = match kind {
            0 => UnitChange::Add { of, daemon },
            1 => UnitChange::InSync { of: copy },
            2 => UnitChange::Drop { of: copy },
            _ => UnitChange::HandOver { of: copy },
        };
        let change = Change::Unit { change };
        prop_assert_eq!(Change::from_bytes(&change.to_bytes()), Ok(change));
        // In an instance without units it has no effect.
        let mut without = Membership::initial(&DOMAINS, 4, 0, true).expect("a setup");
        let before = without.clone();
        prop_assert!(without.apply(&change).is_err());
        prop_assert_eq!(without, before);
    }
}

#[test]
fn tables_fit_a_frame() {
    use wire::limits::units_per_target;
    let of_one = [(3, 1, 64), (96, 1, 64), (97, 1, 63), (1024, 1, 6)];
    // As many in all where files may have two numbers of copies.
    let of_two = [(3, 2, 32), (96, 2, 32), (97, 2, 31), (1024, 2, 3)];
    for (daemons, goals, units) in of_one.into_iter().chain(of_two) {
        assert_eq!(units_per_target(daemons, goals), units, "{daemons} {goals}");
    }
    let goals = [1, 2, 3].map(|kept| wire::limits::copy_goals(kept).collect::<Vec<u8>>());
    assert_eq!(goals, [vec![], vec![2], vec![3, 2]]);
    // As many units as there may be, and then each with as many rows as it may have.
    let domains: Vec<u32> = (0..128).collect();
    let units = units_per_target(domains.len(), 1);
    let mut membership = Membership::initial(&domains, 512, 0, true).expect("a setup");
    let too_many = membership.clone().with_units(&[3], units + 1, false).err();
    assert_eq!(too_many, Some(replicas::table::Unsuitable::Units));
    membership = membership.with_units(&[3], units, false).expect("a setup");
    let table = units_in(&membership);
    assert_eq!(table.units().count(), 6144);
    let bytes = membership.to_bytes();
    assert!(bytes.len() <= wire::limits::FRAME_BYTES_MAX, "{}", bytes.len());
    // Each unit with its three copies has 32 and 3 times 19 bytes.
    let of_table = table.to_bytes().len();
    let more = 3 * 19;
    assert_eq!(of_table, 8 + 1 + 2 + 2 + 4 + 128 * 13 + 4 + 1 + 6144 * (32 + more));
    let rest = replicas::table::UNIT_BYTES_MAX - 32 - more;
    assert!(bytes.len() + 6144 * rest <= wire::limits::FRAME_BYTES_MAX);
}

/// Deaths and returns come by the membership alone.
#[test]
fn changes_of_daemons_are_no_changes_of_units() {
    let mut membership = with_units();
    let daemon = DaemonIndex(1);
    let down = UnitChange::Down { daemon, incarnation: 1, known: u64::MAX };
    for change in [down, UnitChange::Leave { daemon }] {
        assert!(membership.apply(&Change::Unit { change }).is_err());
    }
    assert_eq!(membership, with_units());
}

/// A copy that left later than the dead primary may have known goes on in its place.
#[test]
fn what_a_dead_daemon_may_have_known_counts() {
    let unit = UnitIndex(0);
    let mut before = with_units();
    let row = units_in(&before).unit(unit).expect("a unit").clone();
    let primary = row.primary.expect("a primary");
    let copy = *row.copies.iter().find(|it| it.daemon != primary).expect("two copies");
    let of = Reign { unit, epoch: row.epoch };
    let of = CopyId { of, daemon: copy.daemon, since: copy.since };
    let change = UnitChange::Drop { of };
    before.apply(&Change::Unit { change }).expect("it is in sync");
    let left_at = units_in(&before).version;
    for (known, successor) in [(left_at - 1, Some(copy.daemon)), (left_at, None), (u64::MAX, None)]
    {
        let mut membership = before.clone();
        let known = LastAllowed { version: known, ..LastAllowed::UNKNOWN };
        let down = Change::Down { daemon: primary, incarnation: 1, known };
        membership.apply(&down).expect("it takes part");
        assert_eq!(units_in(&membership).unit(unit).expect("a unit").primary, successor);
    }
}

#[test]
fn units_are_behind_what_an_instance_without_them_writes() {
    let without =
        Membership::initial(&DOMAINS, 4, 0, true).expect("a setup").with_owners_that_stay();
    let (bytes, more) = (without.to_bytes(), with_units().to_bytes());
    assert!(more.starts_with(&bytes));
    assert_eq!(Table::from_bytes(&more[bytes.len()..]).as_ref(), Ok(units_in(&with_units())));
    let other = Table::initial(&[0, 1, 2], &[2], 3, false).expect("a setup");
    assert!(Membership::from_bytes(&[bytes, other.to_bytes()].concat()).is_err());
}

#[test]
fn a_daemon_leaves_when_its_copies_are_elsewhere() {
    let mut membership = with_units();
    let daemon = DaemonIndex(2);
    membership.apply(&Change::Leave { daemon }).expect("there are three others");
    let has_left = |membership: &Membership| units_in(membership).is_free_of(daemon);
    assert!(!has_left(&membership) && membership.clone().apply(&Change::Left { daemon }).is_err());
    for _ in 0..1000 {
        let Some(change) = [0, 1].iter().find_map(|&kind| fitting(units_in(&membership), kind))
        else {
            break;
        };
        membership.apply(&change).expect("it fits");
    }
    assert!(has_left(&membership));
    // Two daemons have a copy of each unit, so three are enough and two of them.
    for index in [0, 1, 3] {
        let leave = Change::Leave { daemon: DaemonIndex(index) };
        assert!(membership.clone().apply(&leave).is_ok(), "d{index}");
    }
    membership.apply(&Change::Leave { daemon: DaemonIndex(0) }).expect("two are left");
    let last = Change::Leave { daemon: DaemonIndex(1) };
    assert!(membership.apply(&last).is_err(), "one copy of each unit would be left");
}

#[test]
fn an_instance_grows_as_far_as_there_are_units() {
    let initial = Membership::initial(&DOMAINS, 4, 0, true).expect("a setup");
    let mut membership = initial.with_units(&[2], 64, false).expect("a setup");
    let add = |membership: &mut Membership, index: u16| {
        let domain = u32::from(index);
        membership.apply(&Change::Add { daemon: DaemonIndex(index), incarnation: 1, domain })
    };
    for index in 4..96 {
        add(&mut membership, index).expect("64 units for each of 96");
    }
    assert_eq!(units_in(&membership).units().count(), 6144);
    let before = membership.clone();
    add(&mut membership, 96).expect_err("the membership would not fit a frame");
    assert_eq!(membership, before);
    assert_eq!(Membership::from_bytes(&membership.to_bytes()), Ok(membership));
}

/// Nodes whose messages arrive at once, and what each stores.
struct Cluster {
    nodes: Vec<Option<Node>>,
    stored: Vec<(Vec<u8>, Vec<u8>)>,
    messages: VecDeque<(u16, u16, Vec<u8>)>,
    starts: Vec<u64>,
    lost_starts: Vec<u64>,
    now: i64,
}

impl Cluster {
    fn new() -> Cluster {
        let count = DOMAINS.len();
        let mut cluster = Cluster {
            nodes: (0..count).map(|_| None).collect(),
            stored: vec![Default::default(); count],
            messages: VecDeque::new(),
            starts: vec![0; count],
            lost_starts: vec![0; count],
            now: 0,
        };
        (0..count).for_each(|index| cluster.start(index));
        cluster
    }

    fn start(&mut self, index: usize) {
        self.starts[index] += 1;
        let start = self.starts[index];
        let settings = Settings {
            own: DaemonIndex(index as u16),
            incarnation: 1 + ((start - 1) << 32),
            domain: DOMAINS[index],
            began: 1 + (self.lost_starts[index] << 32),
            voters: first_voters(&DOMAINS),
            seed: index as u64,
        };
        let (base, tail) = &self.stored[index];
        let node = if start == 1 {
            Node::begin(settings, with_units(), self.now)
        } else {
            Node::restore(settings, Some((base, tail)), with_units(), self.now)
        };
        self.nodes[index] = Some(node.expect("settings that fit"));
        self.with(index, |node, now, out| node.start(now, out));
    }

    /// A node is gone with all that its daemon stored: the next start is one of another daemon.
    fn lose(&mut self, index: usize) {
        (self.nodes[index], self.stored[index]) = (None, Default::default());
        self.lost_starts[index] = self.starts[index];
    }

    fn with(&mut self, index: usize, input: impl FnOnce(&mut Node, i64, &mut Vec<Action>)) {
        let now = self.now;
        let Some(node) = &mut self.nodes[index] else { return };
        let mut actions = Vec::new();
        input(node, now, &mut actions);
        actions.into_iter().for_each(|action| self.act(index, action));
    }

    fn act(&mut self, index: usize, action: Action) {
        match action {
            Action::Base(bytes) => self.stored[index].0 = bytes,
            Action::Tail(bytes) => self.stored[index].1 = bytes,
            Action::Send { to, message } => {
                self.messages.push_back((index as u16, to.0, message));
            }
            Action::Probe(daemon) => {
                let is_reached = self.nodes[usize::from(daemon.0)].is_some();
                self.with(index, |node, now, out| node.probed(daemon, is_reached, now, out));
            }
            Action::HandOverUnit(of) => self.propose(index, UnitChange::HandOver { of }),
            _ => {}
        }
    }

    fn propose(&mut self, index: usize, change: UnitChange) {
        self.with(index, |node, _, out| node.propose(&Change::Unit { change }, out));
    }

    fn deliver(&mut self) {
        while let Some((from, to, bytes)) = self.messages.pop_front() {
            self.with(usize::from(to), |node, now, out| {
                node.receive(DaemonIndex(from), &bytes, now, out).expect("a node's message");
            });
        }
    }

    /// Time passes; primaries say at once what is in sync.
    fn run(&mut self, nanos: i64) {
        let end = self.now + nanos;
        while self.now < end {
            self.now += TICK_NANOS;
            for index in 0..self.nodes.len() {
                self.with(index, Node::tick);
                let known = self.nodes[index].as_ref().and_then(Node::units).cloned();
                for (primary, of) in known.iter().flat_map(|table| joining(table)) {
                    if usize::from(primary.0) == index {
                        self.propose(index, UnitChange::InSync { of });
                    }
                }
            }
            self.deliver();
        }
    }

    fn node(&mut self, index: usize) -> &mut Node {
        self.nodes[index].as_mut().expect("it runs")
    }

    /// All that run know the same, all units have their copies, and leases are in order.
    fn assert_well(&mut self) {
        let running: Vec<usize> =
            (0..self.nodes.len()).filter(|&it| self.nodes[it].is_some()).collect();
        let now = self.now;
        let first = self.node(running[0]).membership().clone();
        let table = units_in(&first);
        assert_eq!(policy::next(table, &Spaces::default()), Vec::new());
        for (index, unit) in table.units() {
            let mut copies: Vec<DaemonIndex> = unit.with(CopyState::InSync).collect();
            let mut best = chosen(table, index);
            assert_eq!(unit.primary, best.first().copied());
            copies.sort();
            best.sort();
            assert_eq!(copies, best);
        }
        for index in running {
            let node = self.node(index);
            assert_eq!(node.membership(), &first);
            assert_eq!(
                (node.units_settled(now), node.units_granted()),
                (table.version, table.version)
            );
            assert!(node.lease_until(now).is_some_and(|until| until > now));
        }
    }
}

#[test]
fn daemons_agree_on_copies_while_one_dies_and_returns() {
    const SECOND: i64 = 1_000_000_000;
    let mut cluster = Cluster::new();
    cluster.run(3 * SECOND);
    cluster.assert_well();
    for victim in [3, 0, 1] {
        let before = units_in(cluster.node(2).membership()).version;
        cluster.nodes[victim] = None;
        cluster.run(10 * SECOND);
        cluster.assert_well();
        let table = units_in(cluster.node(2).membership());
        let of_victim = DaemonIndex(victim as u16);
        assert!(!table.is_up(of_victim) && table.is_free_of(of_victim));
        assert!(table.version > before);
        cluster.start(victim);
        cluster.run(10 * SECOND);
        cluster.assert_well();
        let table = units_in(cluster.node(2).membership());
        assert!(table.is_up(of_victim) && !table.is_free_of(of_victim));
    }
}

/// A daemon in the place of a lost one that is killed before the membership takes it up has nothing after
/// its next start, either: it is not the one to go on with a unit of which another daemon has the bytes.
#[test]
fn a_daemon_that_began_anew_has_nothing_however_often_it_starts_before_it_is_taken_up() {
    const SECOND: i64 = 1_000_000_000;
    let mut cluster = Cluster::new();
    cluster.run(3 * SECOND);
    let lost = DaemonIndex(3);
    let (unit, kept) = {
        let table = units_in(cluster.node(0).membership());
        let (unit, row) =
            table.units().find(|(_, row)| row.primary == Some(lost)).expect("its own units");
        let mut copies = row.copies.iter().map(|copy| copy.daemon);
        (unit, copies.find(|&it| it != lost).expect("two copies"))
    };
    let any = (0..3).find(|&it| it != usize::from(kept.0)).expect("another one");
    cluster.lose(3);
    cluster.nodes[usize::from(kept.0)] = None;
    cluster.run(10 * SECOND);
    let primary = |cluster: &mut Cluster| {
        let table = units_in(cluster.node(any).membership());
        let row = table.unit(unit).expect("a unit");
        assert_eq!(row.lost_at, 0, "{row:?}");
        row.primary
    };
    assert_eq!(primary(&mut cluster), None, "both are down");
    for _ in 0..2 {
        // It ends before anyone hears of it.
        cluster.start(3);
        cluster.nodes[3] = None;
        cluster.messages.clear();
    }
    cluster.start(3);
    cluster.run(10 * SECOND);
    assert!(units_in(cluster.node(any).membership()).is_up(lost));
    assert_eq!(primary(&mut cluster), None, "it has nothing of the unit");
    cluster.start(usize::from(kept.0));
    cluster.run(10 * SECOND);
    assert!(primary(&mut cluster).is_some(), "the bytes are back");
    cluster.assert_well();
    // The bytes that it got since are its own, after any start.
    cluster.nodes[usize::from(kept.0)] = None;
    cluster.run(10 * SECOND);
    cluster.nodes[3] = None;
    cluster.start(3);
    cluster.run(10 * SECOND);
    assert!(primary(&mut cluster).is_some(), "it is the one with the bytes");
}

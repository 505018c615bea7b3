//! Steps of a new primary that the simulation rarely takes.

use replicas::change::{Change, CopyId, Reign};
use replicas::kept::{Begun, Kept, KeptStep};
use replicas::node::{
    Action, Answer, End, Message, Node, Order, Pulled, Request, Settings, TICK_NANOS, Window,
};
use replicas::operation::{
    ByteRange, Kind, Object, Operation, RequestId, Requested, Source, Stamp,
};
use replicas::placement::UnitIndex;
use replicas::table::Table;
use std::collections::BTreeMap;
use wire::{DaemonIndex, Inode};

const SECOND: i64 = 1_000_000_000;
const UNIT: UnitIndex = UnitIndex(0);
const OWN: DaemonIndex = DaemonIndex(1);
const OTHER: DaemonIndex = DaemonIndex(2);

/// Daemon 1 of three, after the death of daemon 0, which was the primary: with the version of the table
/// for which the leases of dead daemons must have ended. An earlier process kept this.
fn waiting_successor(kept: Kept, out: &mut Vec<Action>) -> (Node, u64) {
    let mut table = Table::initial(&[0, 1, 2], &[3], 1, false).expect("a possible setup");
    let down = Change::Down { daemon: DaemonIndex(0), incarnation: 1, known: 1 };
    table.apply(&down).expect("it was up");
    assert_eq!(table.unit(UNIT).and_then(|unit| unit.primary), Some(OWN));
    let settings = Settings {
        own: OWN,
        slice_bytes: 1,
        fill_bytes_per_second: 0,
        behind_bytes_max: 0,
        client: Window::CLIENT,
        peer: Window::PEER,
    };
    let version = table.version;
    let mut node = Node::new(settings, 1, table, BTreeMap::from([(UNIT, kept)]), 0);
    node.take_part(out);
    node.lease(10 * SECOND, version, 0, out);
    (node, version)
}

/// The same, when these leases have ended.
fn successor(kept: Kept, out: &mut Vec<Action>) -> Node {
    let (mut node, version) = waiting_successor(kept, out);
    node.settled(version, 0, out);
    node
}

/// The next primary would not wait for the lease of the dead one.
#[test]
fn a_primary_hands_over_only_after_the_lease_of_the_one_before() {
    let mut out = Vec::new();
    let (mut node, version) = waiting_successor(new_copy(), &mut out);
    let lane = CopyId { of: Reign { unit: UNIT, epoch: 2 }, daemon: OTHER, since: 1 };
    let opened = Message::Opened { lane, under_way: Vec::new() };
    node.receive(OTHER, opened, SECOND, &mut out);
    // The copy takes what the dead primary had begun: nothing.
    node.receive(OTHER, Message::Ended { lane, number: 1, end: End::Done }, SECOND, &mut out);
    node.advise(lane, SECOND, &mut out);
    node.tick(2 * SECOND, &mut out);
    let proposed = Action::Propose(Change::HandOver { of: lane });
    assert!(!out.contains(&proposed), "the dead primary may have its lease");
    node.settled(version, 2 * SECOND, &mut out);
    node.tick(3 * SECOND, &mut out);
    assert!(out.contains(&proposed), "{out:?}");
}

#[test]
fn a_repetition_that_comes_before_the_copies_have_told_is_not_made_a_second_time() {
    let mut out = Vec::new();
    let mut node = successor(new_copy(), &mut out);
    let id = RequestId { client: 5, sequence: 9 };
    let requested = Requested { id, oldest: 9, is_behind: false };
    let object = Object { inode: Inode(3), stripe: 0 };
    let range = ByteRange { start: 0, end: 4096 };
    let kind = Kind::Write;
    let request = Request { ticket: 1, epoch: 2, object, range, kind, requested, born: 1 };
    node.request(UNIT, request, SECOND, &mut out);

    // The dead primary had ordered it, and the other copy has its bytes.
    let stamp = Stamp { epoch: 1, number: 4 };
    let operation = Operation { stamp, object, range, kind, requested: Some(requested) };
    let lane = CopyId { of: Reign { unit: UNIT, epoch: 2 }, daemon: OTHER, since: 1 };
    let under_way = vec![Begun { operation, is_done: true }];
    node.receive(OTHER, Message::Opened { lane, under_way }, SECOND, &mut out);
    let orders = out.iter().filter_map(|action| match action {
        Action::Send { message: Message::Order { number, .. }, .. } => Some(*number),
        _ => None,
    });
    for number in orders.collect::<Vec<u64>>() {
        node.receive(OTHER, Message::Ended { lane, number, end: End::Done }, SECOND, &mut out);
    }
    node.pulled(1, Pulled::Done, SECOND, &mut out);
    let notices = out.iter().filter_map(|action| match action {
        Action::Notify(notice) => Some(*notice),
        _ => None,
    });
    for notice in notices.collect::<Vec<_>>() {
        node.noticed(&notice, SECOND, &mut out);
    }

    let stamps = out.iter().filter_map(|action| match action {
        Action::Pull { operation, .. } => Some(operation.stamp),
        _ => None,
    });
    assert_eq!(stamps.collect::<Vec<_>>(), [stamp]);
    let answers = out.iter().filter(|action| matches!(action, Action::Answer { .. }));
    let done = Action::Answer { ticket: 1, answer: Answer::Done(stamp) };
    assert_eq!(answers.collect::<Vec<_>>(), [&done]);
}

/// The other copy tells of a write that it has not done, and nobody has the bytes for longer than they
/// are waited for. Where an earlier process here began it, too, that may have left some.
#[test]
fn a_write_without_its_bytes_is_made_again_unless_an_earlier_process_began_it() {
    let id = RequestId { client: 5, sequence: 9 };
    let requested = Requested { id, oldest: 9, is_behind: false };
    let object = Object { inode: Inode(3), stripe: 0 };
    let range = ByteRange { start: 0, end: 4096 };
    let kind = Kind::Write;
    let stamp = Stamp { epoch: 1, number: 4 };
    let operation = Operation { stamp, object, range, kind, requested: Some(requested) };
    for was_begun in [false, true] {
        let (mut out, mut kept) = (Vec::new(), new_copy());
        if was_begun {
            kept.apply(&KeptStep::Begin(operation));
        }
        let mut node = successor(kept, &mut out);
        let lane = CopyId { of: Reign { unit: UNIT, epoch: 2 }, daemon: OTHER, since: 1 };
        let under_way = vec![Begun { operation, is_done: false }];
        node.receive(OTHER, Message::Opened { lane, under_way }, SECOND, &mut out);
        end_orders(&mut node, SECOND, &mut out);
        node.pulled(1, Pulled::Failed, SECOND, &mut out);
        let mut now = SECOND;
        while now < 4 * SECOND {
            now += TICK_NANOS;
            node.tick(now, &mut out);
            end_orders(&mut node, now, &mut out);
        }
        out.clear();
        let request = Request { ticket: 1, epoch: 2, object, range, kind, requested, born: 1 };
        node.request(UNIT, request, now, &mut out);
        let answers = out.iter().filter(|action| matches!(action, Action::Answer { .. }));
        let pulls = out.iter().filter(|action| matches!(action, Action::Pull { .. }));
        let failed = Action::Answer { ticket: 1, answer: Answer::Failed };
        assert_eq!(answers.collect::<Vec<_>>(), if was_begun { vec![&failed] } else { vec![] });
        assert_eq!(pulls.count(), usize::from(!was_begun));
    }
}

/// The kept state of a copy that begins.
fn new_copy() -> Kept {
    let mut kept = Kept::default();
    kept.apply(&KeptStep::New { lost_at: 0 });
    kept
}

/// The other copy does what it is ordered since this was called last, unless it needs bytes of a client,
/// and owners of names store what they are told.
fn end_orders(node: &mut Node, now: i64, out: &mut Vec<Action>) {
    for action in std::mem::take(out) {
        match action {
            Action::Send { message: Message::Order { lane, number, order, .. }, .. } => {
                let is_of_client =
                    matches!(order, Order::Operation { source: Source::Client(_), .. });
                let end = if is_of_client { End::Failed } else { End::Done };
                node.receive(OTHER, Message::Ended { lane, number, end }, now, out);
            }
            Action::Notify(notice) => node.noticed(&notice, now, out),
            // The test ends it.
            action => out.extend(matches!(action, Action::Pull { .. }).then_some(action)),
        }
    }
}

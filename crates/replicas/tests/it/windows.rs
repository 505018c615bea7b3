//! Windows: whatever clients and peers send, a node has a bounded amount under way, and goes on with
//! the others.

use crate::alone::{Alone, OBJECT, SECOND, block, id, ordered, settings, write};
use crate::bytes;
use encoding::{Decode as _, Encode as _};
use proptest::prelude::*;
use replicas::kept::{Kept, REQUESTS_MAX, UNDER_WAY_MAX};
use replicas::node::{Action, Answer, End, Message, Order, Party, Pulled, Read, Window};
use replicas::operation::{ByteRange, Kind, Object, Operation, Requested};
use replicas::placement::UnitIndex;
use wire::DaemonIndex;

const MIB: u64 = 1 << 20;

fn load(alone: &Alone, party: Party) -> (usize, u64) {
    let load = alone.node.loads().find(|it| it.0 == party);
    load.map_or((0, 0), |(_, load)| (load.operations, load.bytes))
}

#[test]
fn a_client_has_a_window_at_a_unit() {
    let mut alone = Alone::primary(settings(0));
    let unit = alone.units()[0];
    let count = REQUESTS_MAX as u64;
    for sequence in 1..=count {
        alone.write(unit, id(1, sequence), block(sequence, 8));
    }
    assert_eq!(alone.answers(), []);
    let refused = alone.write(unit, id(1, count + 1), block(count + 1, 8));
    assert_eq!(alone.answers(), [(refused, Answer::Busy)]);
    // A repetition of one that is under way is not refused, and another client has its own window.
    alone.write(unit, id(1, 3), block(3, 8));
    alone.write(unit, id(2, 1), block(0, 8));
    assert_eq!(alone.answers().len(), 1);
    alone.end_all();
    alone.take();
    alone.write(unit, id(1, count + 1), block(count + 1, 8));
    assert_eq!(alone.answers(), []);
}

#[test]
fn a_client_has_a_window_at_a_node() {
    let (operations, bytes) = (5, 10 * MIB);
    let client = Window { operations, bytes };
    let mut alone = Alone::primary(replicas::node::Settings { client, ..settings(0) });
    let units = alone.units();
    for sequence in 1..=5 {
        alone.write(units[sequence as usize % 2], id(1, sequence), block(sequence, 8));
    }
    let refused = alone.write(units[0], id(1, 6), block(6, 8));
    let read = |ticket| Read { ticket, client: 1, object: OBJECT, range: block(0, 8), born: 1 };
    let mut out = Vec::new();
    alone.node.read(units[0], read(77), alone.now, &mut out);
    assert_eq!(alone.answers(), [(refused, Answer::Busy)]);
    assert_eq!(out, [Action::Answer { ticket: 77, answer: Answer::Busy }]);
    assert_eq!(load(&alone, Party::Client(1)), (5, 5 * 8));
    alone.end_all();
    assert_eq!(load(&alone, Party::Client(1)), (0, 0));
    // Bytes: a large one is under way alone.
    alone.take();
    alone.write(units[0], id(1, 7), block(0, 20 * MIB));
    let refused = alone.write(units[1], id(1, 8), block(0, 8));
    assert_eq!(alone.answers(), [(refused, Answer::Busy)]);
    alone.end_all();
    alone.take();
    let third = 4 * MIB;
    let tickets: Vec<u64> =
        (9..=11).map(|it| alone.write(units[0], id(1, it), block(it, third))).collect();
    assert_eq!(alone.answers(), [(tickets[2], Answer::Busy)]);
}

#[test]
fn no_reply_is_forgotten_that_a_client_may_ask_for() {
    let mut alone = Alone::primary(settings(0));
    let unit = alone.units()[0];
    // The first request has its answer, but the client does not: it goes on with others.
    let ask = |alone: &mut Alone, sequence| {
        let requested = Requested { id: id(1, sequence), oldest: 1, is_behind: false };
        alone.ask(unit, requested, OBJECT, block(sequence, 8))
    };
    let mut busy = None;
    for sequence in 1..200 {
        let ticket = ask(&mut alone, sequence);
        alone.end_all();
        let answers = alone.answers();
        alone.take();
        if answers == [(ticket, Answer::Busy)] {
            busy = Some(sequence);
            break;
        }
        assert!(matches!(answers[..], [(_, Answer::Done(_))]), "{answers:?}");
    }
    assert_eq!(busy, Some(2 * REQUESTS_MAX as u64));
    let again = ask(&mut alone, 1);
    assert!(matches!(alone.answers()[..], [(ticket, Answer::Done(_))] if ticket == again));
    assert!(alone.pulls().is_empty(), "it is not made a second time");
    // Once the client says that it has the answer, it may go on.
    alone.take();
    let requested = Requested { id: id(1, 99), oldest: 99, is_behind: false };
    alone.ask(unit, requested, OBJECT, block(0, 8));
    assert_eq!(alone.pulls().len(), 1);
}

#[test]
fn the_oldest_request_has_a_place() {
    let mut alone = Alone::primary(settings(0));
    let unit = alone.units()[0];
    let ask = |alone: &mut Alone, sequence| {
        let requested = Requested { id: id(1, sequence), oldest: 1, is_behind: false };
        let ticket = alone.ask(unit, requested, OBJECT, block(sequence, 8));
        alone.end_all();
        let answers = alone.answers();
        alone.take();
        assert_eq!(answers.len(), 1);
        (answers[0].0 == ticket).then_some(answers[0].1)
    };
    // Its message was lost, others come before it is sent again.
    let ends: Vec<_> = (2..99).map(|sequence| ask(&mut alone, sequence)).collect();
    assert_eq!(ends.last(), Some(&Some(Answer::Busy)));
    let first = ask(&mut alone, 1);
    assert!(matches!(first, Some(Answer::Done(_))), "{first:?}");
    assert_eq!(ask(&mut alone, 1), first, "it is remembered");
}

#[test]
fn a_peer_s_window_delays_what_its_primary_begins() {
    let peer = Window { operations: 3, bytes: 100 };
    let mut alone = Alone::primary(replicas::node::Settings { peer, ..settings(0) });
    let units = alone.units();
    for client in 1..=10 {
        alone.write(units[client as usize % 2], id(client, 1), block(client, 8));
    }
    assert_eq!(alone.pulls().len(), 3);
    for daemon in [1, 2] {
        assert_eq!(load(&alone, Party::Peer(DaemonIndex(daemon))), (3, 24));
    }
    // Each end makes place for the next, in whatever unit it waits, without another tick.
    while alone.answers().len() < 10 {
        let (pulls, orders) = (alone.pulls(), alone.messages());
        let before = alone.answers().len();
        pulls.iter().for_each(|it| alone.pulled(it.0, Pulled::Done));
        alone.store_notices();
        for (to, message) in orders {
            if let Message::Order { lane, number, .. } = message {
                alone.receive(to, Message::Ended { lane, number, end: End::Done });
                assert!(load(&alone, Party::Peer(to)).0 <= 3);
            }
        }
        assert!(alone.answers().len() > before, "nothing goes on");
    }
    let done = |it: &(u64, Answer)| matches!(it.1, Answer::Done(_));
    assert!(alone.answers().iter().all(done));
}

#[test]
fn units_are_served_in_order_at_a_window() {
    let peer = Window { operations: 1, bytes: 100 };
    let mut alone = Alone::primary(replicas::node::Settings { peer, ..settings(0) });
    for unit in alone.units() {
        for client in 1..=6 {
            alone.write(unit, id(client, 1), block(client, 8));
        }
    }
    let mut begun: Vec<UnitIndex> = Vec::new();
    while begun.len() < 12 {
        let (pulls, orders, notices) = (alone.pulls(), alone.messages(), alone.notices());
        assert_eq!(pulls.len(), 1, "one at a time: {begun:?}");
        begun.extend(alone.take().iter().filter_map(|action| match action {
            Action::Pull { of, .. } => Some(of.unit),
            _ => None,
        }));
        pulls.iter().for_each(|it| alone.pulled(it.0, Pulled::Done));
        notices.iter().for_each(|notice| alone.notice(notice));
        for (to, message) in orders {
            if let Message::Order { lane, number, .. } = message {
                alone.receive(to, Message::Ended { lane, number, end: End::Done });
            }
        }
    }
    let is_mixed = |three: &[UnitIndex]| three.iter().any(|unit| *unit != three[0]);
    assert!(begun.windows(3).all(is_mixed), "{begun:?}");
}

fn follower(peer: Window) -> (Alone, replicas::change::CopyId) {
    let mut alone = Alone::new(replicas::node::Settings { peer, ..settings(1) });
    let lane = alone.lanes(UnitIndex(0)).into_iter().find(|lane| lane.daemon.0 == 1);
    let lane = lane.expect("a copy of the unit");
    alone.receive(DaemonIndex(0), Message::Open { lane });
    alone.take();
    (alone, lane)
}

#[test]
fn a_copy_pulls_no_more_for_a_peer_than_its_window() {
    let (mut alone, lane) = follower(Window { operations: 4, bytes: 30 });
    for number in 1..=9 {
        alone.receive(DaemonIndex(0), ordered(lane, number, write(number, block(number, 10))));
    }
    let numbers = |alone: &Alone| -> Vec<u64> {
        alone.pulls().iter().map(|(_, operation, _)| operation.stamp.number).collect()
    };
    // 30 bytes at a time.
    assert_eq!(numbers(&alone), [1, 2, 3]);
    let first = alone.pulls()[1].0;
    alone.pulled(first, Pulled::Done);
    assert_eq!(numbers(&alone), [1, 2, 3, 4]);
    // A repetition of one that waits changes nothing.
    alone.receive(DaemonIndex(0), ordered(lane, 5, write(5, block(5, 10))));
    assert_eq!(numbers(&alone), [1, 2, 3, 4]);
    while alone.pulls().len() < 9 || alone.node.pulls().next().is_some() {
        let (_, load) = alone.node.pulls().next().expect("pulls wait");
        assert!(load.operations <= 4 && load.bytes <= 30, "{load:?}");
        let tickets: Vec<u64> = alone.pulls().iter().map(|it| it.0).collect();
        for ticket in tickets {
            alone.pulled(ticket, Pulled::Done);
        }
    }
    assert_eq!(numbers(&alone), (1..=9).collect::<Vec<u64>>());
    let ended = alone
        .messages()
        .into_iter()
        .filter(|(_, message)| matches!(message, Message::Ended { end: End::Done, .. }));
    assert_eq!(ended.count(), 9);
}

#[test]
fn a_copy_remembers_a_bounded_number_of_orders() {
    let (mut alone, lane) = follower(Window::PEER);
    for number in 1..=5000 {
        let operation = Operation { kind: Kind::Punch, ..write(number, block(number, 8)) };
        alone.receive(DaemonIndex(0), ordered(lane, number, operation));
    }
    let taken = alone.messages().len();
    assert_eq!(taken, UNDER_WAY_MAX);
    let kept = &alone.node.kept()[&UnitIndex(0)];
    assert_eq!(Kept::from_bytes(&kept.to_bytes()).as_ref(), Ok(kept));
    // Once the first are settled, others have a place.
    let order = Order::UnderWay(Vec::new());
    let settled = taken as u64;
    alone.take();
    alone.receive(DaemonIndex(0), Message::Order { lane, number: settled + 1, settled, order });
    let number = settled + 1;
    alone.receive(DaemonIndex(0), ordered(lane, number, write(number, block(0, 8))));
    assert_eq!(alone.pulls().len(), 1);
}

#[test]
fn repairs_leave_place_for_clients() {
    let mut alone = Alone::primary(settings(0));
    let unit = alone.units()[0];
    alone.write(unit, id(1, 1), ByteRange { start: 0, end: 1 << 30 });
    let pulls = alone.pulls();
    let lane = alone.lanes(unit)[0];
    for number in 0..1000 {
        let (object, range) = (OBJECT, block(number, 8));
        alone.receive(lane.daemon, Message::Repair { lane, object, range });
        alone.receive(lane.daemon, Message::Repair { lane, object, range });
    }
    let mut out = Vec::new();
    for number in 0..1000 {
        alone.node.corrupt(unit, OBJECT, block(number, 8), alone.now, &mut out);
    }
    alone.write(unit, id(2, 1), block(0, 8));
    assert_eq!(alone.answers(), []);
    alone.pulled(pulls[0].0, Pulled::Done);
    alone.end_orders();
    alone.store_notices();
    let repaired = alone.pulls().iter().filter(|it| it.1.kind == Kind::Copy).count();
    let sent = alone.messages().into_iter().filter(|(_, message)| {
        let Message::Order { order: Order::Operation { operation, .. }, .. } = message else {
            return false;
        };
        operation.kind == Kind::Copy
    });
    assert!((1..=64).contains(&repaired), "{repaired}");
    assert_eq!(sent.count(), 8);
}

#[test]
fn a_message_of_another_daemon_has_no_effect() {
    let (mut alone, lane) = follower(Window::PEER);
    alone.receive(DaemonIndex(2), ordered(lane, 1, write(1, block(0, 8))));
    alone.receive(DaemonIndex(1), ordered(lane, 1, write(1, block(0, 8))));
    assert_eq!(alone.take(), []);
    alone.receive(DaemonIndex(0), ordered(lane, 1, write(1, block(0, 8))));
    assert_eq!(alone.pulls().len(), 1);

    let mut alone = Alone::primary(settings(0));
    let unit = alone.units()[0];
    alone.write(unit, id(1, 1), block(0, 8));
    let (ticket, ..) = alone.pulls()[0];
    alone.pulled(ticket, Pulled::Done);
    for (to, message) in alone.messages() {
        if let Message::Order { lane, number, .. } = message {
            let other = DaemonIndex(3 - to.0);
            alone.receive(other, Message::Ended { lane, number, end: End::Done });
        }
    }
    assert_eq!(alone.answers(), []);
    alone.end_orders();
    alone.store_notices();
    assert_eq!(alone.answers().len(), 1);
}

proptest! {
    /// Messages that no node would send: a node goes on, and what it keeps can be read again.
    #[test]
    fn any_messages_end_no_node(
        own in 0_u16..3,
        list in prop::collection::vec((bytes::message(), 0_u16..3), 1..60),
    ) {
        let mut alone = Alone::new(settings(own));
        for (number, (message, from)) in (1..).zip(list) {
            alone.receive(DaemonIndex(from), message);
            for (ticket, ..) in alone.pulls() {
                let ends = [Pulled::Done, Pulled::Failed, Pulled::Corrupt, Pulled::Torn];
                alone.pulled(ticket, ends[(ticket % 4) as usize]);
            }
            if number % 4 == 0 {
                let object = Object { stripe: number % 3, ..OBJECT };
                let unit = UnitIndex((number % 2) as u32);
                let requested = Requested { id: id(1, number), oldest: 1, is_behind: false };
                alone.ask(unit, requested, object, block(number % 5, 8));
            }
            alone.take();
            alone.pass(SECOND / 50);
            for kept in alone.node.kept().values() {
                let read = Kept::from_bytes(&kept.to_bytes());
                prop_assert_eq!(read.as_ref(), Ok(kept));
            }
        }
    }
}

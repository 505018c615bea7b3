//! Single steps of a primary and of another copy that the simulation rarely takes.

use crate::alone::{Alone, OBJECT, SECOND, block, id, ordered, settings, table, write};
use encoding::{Decode, Encode};
use replicas::change::{Change, CopyId, Refused};
use replicas::kept::{Begun, KeptStep};
use replicas::node::{Action, Answer, End, Message, Order, Pulled, Read, Settings};
use replicas::operation::{Kind, Operation, Requested, Source, Stamp};
use replicas::placement::UnitIndex;
use replicas::table::Table;
use std::collections::BTreeSet;
use wire::DaemonIndex;

const MILLI: i64 = 1_000_000;
const UNIT: UnitIndex = UnitIndex(0);

const fn read(ticket: u64, born: u64) -> Read {
    Read { ticket, client: 1, object: OBJECT, range: block(0, 8), born }
}

/// The answer to a read, if there is one.
fn read_now(alone: &mut Alone, ticket: u64) -> Option<Action> {
    let mut out = Vec::new();
    alone.node.read(UNIT, read(ticket, 1), alone.now, &mut out);
    let is_end = |it: &Action| matches!(it, Action::Serve { .. } | Action::Answer { .. });
    out.into_iter().find(is_end)
}

fn lease_of(alone: &mut Alone, lane: CopyId) -> Option<i64> {
    alone.take();
    alone.receive(lane.daemon, Message::AskLease { lane, sent: 5 });
    alone.messages().into_iter().find_map(|(_, message)| match message {
        Message::Lease { length, .. } => Some(length),
        _ => None,
    })
}

fn operations(alone: &Alone) -> Vec<(Operation, Source, Option<Stamp>)> {
    let operation = |message| match message {
        Message::Order { order: Order::Operation { operation, source, replaces }, .. } => {
            Some((operation, source, replaces))
        }
        _ => None,
    };
    alone.messages().into_iter().filter_map(|(_, message)| operation(message)).collect()
}

/// A copy of the unit whose lane is open.
fn follower() -> (Alone, CopyId) {
    let mut alone = Alone::new(settings(1));
    let lane = alone.lanes(UNIT).into_iter().find(|lane| lane.daemon.0 == 1).expect("a copy");
    alone.receive(DaemonIndex(0), Message::Open { lane });
    alone.take();
    (alone, lane)
}

/// Daemon 1 after the first primary has handed over to it.
fn handed_over() -> (Alone, Vec<CopyId>) {
    let mut table = table();
    let row = table.unit(UNIT).expect("a unit");
    let of = replicas::change::Reign { unit: UNIT, epoch: row.epoch };
    let since = row.copy(DaemonIndex(1)).expect("a copy").since;
    let of = CopyId { of, daemon: DaemonIndex(1), since };
    table.apply(&Change::HandOver { of }).expect("it is in sync");
    let alone = Alone::with_table(settings(1), table);
    let lanes = alone.lanes(UNIT);
    assert_eq!(lanes.len(), 2);
    (alone, lanes)
}

#[test]
fn without_a_lease_nothing_is_read_or_acknowledged() {
    let mut alone = Alone::primary(settings(0));
    let first = alone.write(UNIT, id(1, 1), block(0, 8));
    alone.end_all();
    assert!(matches!(alone.answers()[..], [(ticket, Answer::Done(_))] if ticket == first));
    alone.take();
    let requested = |sequence| Requested { id: id(1, sequence), oldest: 1, is_behind: false };
    alone.ask(UNIT, requested(2), OBJECT, block(1, 8));
    alone.now += 1000 * SECOND;
    alone.end_all();
    let again = alone.ask(UNIT, requested(1), OBJECT, block(0, 8));
    assert!(!alone.answers().iter().any(|it| matches!(it.1, Answer::Done(_))));
    assert!(alone.answers().contains(&(again, Answer::Busy)));
    assert_eq!(read_now(&mut alone, 90), None);
    let version = alone.node.table().version;
    alone.lease(alone.now + SECOND, version);
    assert!(alone.actions().contains(&Action::Serve { ticket: 90 }));
}

#[test]
fn copies_are_read_no_longer_than_the_primary_may() {
    let mut alone = Alone::primary(settings(0));
    let lane = alone.lanes(UNIT)[0];
    let version = alone.node.table().version;
    let usual = lease_of(&mut alone, lane).expect("a lease");
    assert!(usual > 80 * MILLI && usual < 100 * MILLI);
    alone.lease(alone.now + 40 * MILLI, version);
    let short = lease_of(&mut alone, lane).expect("a lease");
    assert!(short <= 40 * MILLI, "{short}");
    alone.lease(alone.now, version);
    assert_eq!(lease_of(&mut alone, lane), None);
    alone.lease(alone.now + 9 * SECOND, version);
    // One that has not ended an order for long may be out of reach.
    alone.write(UNIT, id(1, 1), block(0, 8));
    let (pull, ..) = alone.pulls()[0];
    alone.pulled(pull, Pulled::Done);
    alone.pass(200 * MILLI);
    assert_eq!(lease_of(&mut alone, lane), None);
    let mut alone = Alone::primary(settings(0));
    alone.node.advise(lane, alone.now, &mut Vec::new());
    assert_eq!(lease_of(&mut alone, lane), None, "another copy is to be the primary");
}

/// A table in which the last copy has left, and the write that waited for it.
fn dropped(alone: &mut Alone) -> Table {
    let lanes = alone.lanes(UNIT);
    alone.write(UNIT, id(1, 1), block(0, 8));
    let (ticket, ..) = alone.pulls()[0];
    alone.pulled(ticket, Pulled::Done);
    alone.store_notices();
    for (to, message) in alone.messages() {
        if let Message::Order { lane, number, .. } = message
            && lane == lanes[0]
        {
            alone.receive(to, Message::Ended { lane, number, end: End::Done });
        }
    }
    let mut table = alone.node.table().clone();
    table.apply(&Change::Drop { of: lanes[1] }).expect("it is in sync");
    table
}

#[test]
fn a_change_has_the_effect_of_the_table_with_it_and_one_that_is_not_the_next_is_refused() {
    let [mut by_change, mut by_table] = [0, 0].map(|own| Alone::primary(settings(own)));
    let lane = by_change.lanes(UNIT)[1];
    let mut table = table();
    let changes = [
        Change::Drop { of: lane },
        Change::Add { of: lane.of, daemon: lane.daemon },
        Change::Down { daemon: lane.daemon, incarnation: 1, known: 1 },
        Change::Up {
            daemon: lane.daemon,
            incarnation: 2,
            domain: 5,
            is_empty: false,
            known: u64::MAX,
        },
    ];
    for change in changes {
        table.apply(&change).expect("it fits");
        let version = table.version;
        assert_eq!(by_change.apply(&change, version + 1), Err(Refused), "one is missing");
        assert_eq!(by_change.actions(), []);
        assert_eq!(by_change.apply(&change, version), Ok(()));
        by_table.adopt(&table);
        assert_eq!(by_change.node.table(), &table);
        assert_eq!(by_change.take(), by_table.take(), "{change:?}");
        assert_eq!(by_change.apply(&change, version), Ok(()), "it is known");
        assert_eq!(by_change.apply(&change, version + 1), Err(Refused), "it does not fit");
        assert_eq!((by_change.actions(), by_change.node.table()), (&[][..], &table));
    }
}

#[test]
fn a_write_waits_for_the_end_of_the_reads_at_a_copy_that_left() {
    let mut alone = Alone::primary(settings(0));
    let lane = alone.lanes(UNIT)[1];
    lease_of(&mut alone, lane).expect("a lease");
    alone.take();
    let table = dropped(&mut alone);
    alone.lease(alone.now + 9 * SECOND, table.version);
    alone.adopt(&table);
    assert_eq!(alone.answers(), []);
    alone.pass(80 * MILLI);
    assert_eq!(alone.answers(), []);
    alone.pass(60 * MILLI);
    assert!(matches!(alone.answers()[..], [(_, Answer::Done(_))]));
}

/// Nothing is acknowledged without it, whatever its process before had said.
#[test]
fn a_copy_that_starts_again_has_what_is_under_way_before_that_is_acknowledged() {
    let mut alone = Alone::primary(settings(0));
    let before = alone.lanes(UNIT);
    alone.write(UNIT, id(1, 1), block(0, 8));
    alone.end_all();
    assert_eq!(alone.answers().len(), 1);
    alone.take();
    let ticket = alone.write(UNIT, id(1, 2), block(1, 8));
    let (pull, operation, _) = alone.pulls()[0];
    alone.pulled(pull, Pulled::Done);
    alone.store_notices();
    let orders = alone.messages();
    let of = |lane: CopyId| orders.iter().find(|it| it.0 == lane.daemon).expect("an order").clone();
    end(&mut alone, &of(before[0]), End::Done);
    let mut table = alone.node.table().clone();
    let (daemon, domain) = (before[1].daemon, u32::from(before[1].daemon.0));
    let known = table.version;
    let up = Change::Up { daemon, incarnation: 2, domain, is_empty: false, known };
    table.apply(&up).expect("it is new");
    alone.take();
    alone.adopt(&table);
    // A late answer of the process before, and no answer of the next one yet.
    end(&mut alone, &of(before[1]), End::Done);
    alone.pass(200 * MILLI);
    assert_eq!(alone.answers(), []);
    let lane = alone.lanes(UNIT)[1];
    assert!(lane.daemon == daemon && lane.since > before[1].since);
    assert!(alone.messages().contains(&(daemon, Message::Open { lane })));
    alone.take();
    alone.receive(daemon, Message::Opened { lane, under_way: Vec::new() });
    let is_known = |it: &(DaemonIndex, Message)| {
        let stamps = vec![operation.stamp];
        matches!(&it.1, Message::Order { order: Order::UnderWay(of), .. } if *of == stamps)
    };
    assert!(alone.messages().iter().any(is_known), "{:?}", alone.messages());
    assert_eq!(operations(&alone), [(operation, Source::Copy(DaemonIndex(0)), None)]);
    assert_eq!(alone.answers(), []);
    // As the next primary it would have the memory of requests that it is sent, and not their bytes.
    let replies = alone.messages().into_iter().find_map(|it| match it.1 {
        Message::Order { order: Order::Replies(replies), .. } => Some(replies),
        _ => None,
    });
    let kept = KeptStep::Replies(replies.expect("the memory"));
    let mut next = Alone::primary_with(settings(0), &[kept]);
    next.write(UNIT, id(1, 2), block(1, 8));
    assert_eq!(next.answers(), [], "it is not made yet");
    let known = next.write(UNIT, id(1, 1), block(0, 8));
    assert_eq!(next.answers().iter().map(|it| it.0).collect::<Vec<_>>(), [known]);
    alone.end_orders();
    assert!(matches!(alone.answers()[..], [(it, Answer::Done(_))] if it == ticket));
    // It goes on as any other.
    alone.take();
    alone.write(UNIT, id(1, 3), block(2, 8));
    assert_eq!(alone.messages().iter().filter(|it| it.0 == daemon).count(), 1);
}

#[test]
fn a_write_waits_until_the_lease_covers_that_a_copy_left() {
    let mut alone = Alone::primary(settings(0));
    let table = dropped(&mut alone);
    alone.adopt(&table);
    alone.pass(300 * MILLI);
    assert_eq!(alone.answers(), []);
    assert!(alone.node.waits_for_grant());
    alone.lease(alone.now + 9 * SECOND, table.version);
    assert!(matches!(alone.answers()[..], [(_, Answer::Done(_))]));
}

/// It has a later stamp than the one that began after it, and a copy reads an ascending list.
#[test]
fn a_copy_that_starts_again_is_told_of_a_write_that_was_given_up_and_of_a_later_one() {
    let mut alone = Alone::primary(settings(0));
    alone.write(UNIT, id(1, 1), block(0, 8));
    let (sent, pulls) = (alone.messages(), alone.pulls());
    alone.pulled(pulls[0].0, Pulled::Failed);
    sent.iter().for_each(|order| end(&mut alone, order, End::Failed));
    alone.take();
    alone.pass(SECOND);
    alone.write(UNIT, id(1, 2), block(1, 8));
    let later = alone.pulls()[0].1;
    alone.take();
    alone.pass(SECOND);
    let mut orders = operations(&alone).into_iter();
    let given_up = orders.find(|it| it.2.is_some()).expect("it was given up").0;
    assert!(given_up.stamp > later.stamp);
    let before = alone.lanes(UNIT)[1];
    let (daemon, domain) = (before.daemon, u32::from(before.daemon.0));
    let mut table = alone.node.table().clone();
    let known = table.version;
    let up = Change::Up { daemon, incarnation: 2, domain, is_empty: false, known };
    table.apply(&up).expect("it is new");
    alone.adopt(&table);
    let lane = alone.lanes(UNIT).into_iter().find(|it| it.daemon == daemon).expect("a copy");
    assert_ne!(lane, before);
    alone.take();
    alone.receive(daemon, Message::Opened { lane, under_way: Vec::new() });
    let told: Vec<Message> = alone.messages().into_iter().map(|it| it.1).collect();
    for message in &told {
        assert_eq!(Message::from_bytes(&message.to_bytes()).as_ref(), Ok(message));
    }
    let is_list = |it: &Message| match it {
        Message::Order { order: Order::UnderWay(stamps), .. } => {
            *stamps == [later.stamp, given_up.stamp]
        }
        _ => false,
    };
    assert!(told.iter().any(is_list), "{told:?}");
}

/// The end of an order to another copy.
fn end(alone: &mut Alone, (to, message): &(DaemonIndex, Message), end: End) {
    let Message::Order { lane, number, .. } = *message else { panic!("{message:?}") };
    alone.receive(*to, Message::Ended { lane, number, end });
}

#[test]
fn a_write_whose_bytes_are_gone_fails_once_and_for_all() {
    let mut alone = Alone::primary(settings(0));
    let ticket = alone.write(UNIT, id(1, 1), block(0, 8));
    let (pull, before, _) = alone.pulls()[0];
    let lanes = alone.messages();
    let fail = |alone: &mut Alone, index: usize| end(alone, &lanes[index], End::Failed);
    alone.pulled(pull, Pulled::Torn);
    fail(&mut alone, 0);
    // The other copy may get the bytes yet.
    alone.pass(3 * SECOND);
    assert_eq!(alone.answers(), []);
    assert_eq!(read_now(&mut alone, 90), None);
    alone.take();
    fail(&mut alone, 1);
    alone.pass(SECOND / 10);
    assert_eq!(alone.answers(), [(ticket, Answer::Failed)]);
    let orders = operations(&alone);
    assert_eq!(orders.len(), 2);
    for (operation, source, replaces) in orders {
        // A copy may have all bytes under the first stamp.
        assert!(operation.stamp > before.stamp && operation.requested.is_none());
        assert_eq!((source, replaces), (Source::Copy(DaemonIndex(0)), Some(before.stamp)));
    }
    alone.end_all();
    let again = alone.write(UNIT, id(1, 1), block(0, 8));
    assert!(alone.answers().contains(&(again, Answer::Failed)));
}

/// The write whose client is away for longer than it is waited for, after an attempt that ended so, and
/// one without bytes. Its ticket, and the operation.
fn given_up(alone: &mut Alone, requested: Requested, first: Pulled) -> (u64, Operation) {
    let mut ticket = alone.ask(UNIT, requested, OBJECT, block(0, 8));
    let (pull, operation, _) = alone.pulls()[0];
    let lanes = alone.messages();
    alone.pulled(pull, first);
    if first != Pulled::Failed {
        ticket = alone.ask(UNIT, requested, OBJECT, block(0, 8));
        let (pull, again, source) = alone.pulls()[1];
        assert_eq!((again, source), (operation, Source::Client(requested.id)));
        alone.pulled(pull, Pulled::Failed);
    }
    lanes.iter().for_each(|order| end(alone, order, End::Failed));
    alone.take();
    alone.pass(2 * SECOND + SECOND / 10);
    (ticket, operation)
}

#[test]
fn a_write_of_which_no_copy_has_a_byte_is_made_when_it_is_repeated() {
    let mut alone = Alone::primary(settings(0));
    let requested = Requested { id: id(1, 1), oldest: 1, is_behind: false };
    let (ticket, before) = given_up(&mut alone, requested, Pulled::Failed);
    assert_eq!(alone.answers(), [(ticket, Answer::Busy)]);
    let settled = |message: &Message| match *message {
        Message::Order { number, settled, .. } => (number, settled),
        _ => panic!("{message:?}"),
    };
    let changed = operations(&alone);
    assert_eq!(changed.len(), 2);
    for (operation, source, replaces) in changed {
        assert!(operation.stamp > before.stamp && operation.requested.is_none());
        assert_eq!((source, replaces), (Source::Copy(DaemonIndex(0)), Some(before.stamp)));
    }
    // A copy that lacks the order does not take what it has for what all have.
    let orders: Vec<(DaemonIndex, Message)> = alone.messages();
    for (_, message) in &orders {
        let (number, settled) = settled(message);
        assert!(settled < number - 1, "{number} {settled}");
    }
    // The copies do not remember a failure.
    let is_memory = |it: &&(DaemonIndex, Message)| {
        matches!(it.1, Message::Order { order: Order::Replies(_), .. })
    };
    assert_eq!((orders.len(), orders.iter().filter(is_memory).count()), (4, 2));
    alone.store_notices();
    let again = alone.ask(UNIT, requested, OBJECT, block(0, 8));
    assert_eq!(alone.pulls(), [], "what takes its place is not on all copies");
    alone.take();
    orders.iter().for_each(|order| end(&mut alone, order, End::Done));
    let (pull, operation, source) = alone.pulls()[0];
    assert!(operation.stamp > before.stamp && operation.requested == Some(requested));
    assert_eq!(source, Source::Client(requested.id));
    alone.pulled(pull, Pulled::Done);
    alone.end_orders();
    alone.store_notices();
    assert!(alone.answers().contains(&(again, Answer::Done(operation.stamp))));
}

/// It does not know that the primary has heard of the end, so it does what it is told again.
#[test]
fn a_late_repetition_of_an_order_changes_nothing_beside_what_replaced_it() {
    let (mut alone, lane) = follower();
    let first = ordered(lane, 1, write(1, block(0, 8)));
    alone.receive(DaemonIndex(0), first.clone());
    let (pull, ..) = alone.pulls()[0];
    alone.pulled(pull, Pulled::Failed);
    alone.receive(DaemonIndex(0), first.clone());
    let (late, ..) = alone.pulls()[1];
    let before = Stamp { epoch: 1, number: 1 };
    let operation = Operation { requested: None, ..write(2, block(0, 8)) };
    let source = Source::Copy(DaemonIndex(0));
    let order = Order::Operation { operation, source, replaces: Some(before) };
    alone.receive(DaemonIndex(0), Message::Order { lane, number: 2, settled: 0, order });
    assert_eq!(alone.pulls().len(), 2, "two change the same bytes");
    alone.pulled(late, Pulled::Done);
    let (pull, begun, _) = alone.pulls()[2];
    assert_eq!(begun, operation);
    alone.receive(DaemonIndex(0), first.clone());
    alone.pulled(pull, Pulled::Done);
    alone.receive(DaemonIndex(0), first);
    assert_eq!(alone.pulls().len(), 3);
    let kept = &alone.node.kept()[&UNIT];
    assert_eq!(kept.version(OBJECT), Some(operation.stamp));
}

/// Copies that the primary proposes to drop.
fn drops(alone: &Alone) -> BTreeSet<DaemonIndex> {
    let dropped = |action: &Action| match action {
        Action::Propose(Change::Drop { of }) => Some(of.daemon),
        _ => None,
    };
    alone.actions().iter().filter_map(dropped).collect()
}

/// Nothing could end without it, and the primary itself waits.
#[test]
fn a_copy_is_not_slow_while_the_primary_lacks_the_bytes_of_the_client_too() {
    let mut alone = Alone::primary(settings(0));
    alone.write(UNIT, id(1, 1), block(0, 8));
    let (pull, ..) = alone.pulls()[0];
    alone.pass(2 * SECOND);
    assert_eq!(drops(&alone), [].into());
    alone.pulled(pull, Pulled::Done);
    alone.pass(SECOND / 2);
    assert_eq!(drops(&alone), [].into());
    alone.pass(SECOND / 5);
    assert_eq!(drops(&alone), [DaemonIndex(1), DaemonIndex(2)].into());
}

/// The primary does not wait for ever to hear that the copy has no bytes, either.
#[test]
fn a_copy_that_says_nothing_after_a_client_is_given_up_is_slow() {
    let mut alone = Alone::primary(settings(0));
    let ticket = alone.write(UNIT, id(1, 1), block(0, 8));
    let (pull, ..) = alone.pulls()[0];
    let orders = alone.messages();
    alone.pulled(pull, Pulled::Failed);
    end(&mut alone, &orders[0], End::Failed);
    alone.pass(2 * SECOND);
    assert_eq!(drops(&alone), [].into());
    alone.pass(SECOND);
    let silent = orders[1].0;
    assert_eq!((drops(&alone), alone.answers()), ([silent].into(), Vec::new()));
    let mut table = alone.node.table().clone();
    let of = alone.lanes(UNIT).into_iter().find(|lane| lane.daemon == silent).expect("a copy");
    table.apply(&Change::Drop { of }).expect("it is in sync");
    alone.adopt(&table);
    alone.pass(SECOND / 10);
    assert_eq!(alone.answers(), [(ticket, Answer::Busy)]);
}

/// As where the client's requests arrive, and nobody reaches its bytes.
#[test]
fn a_copy_that_asks_a_client_in_vain_is_asked_once_for_each_attempt_and_stays() {
    let mut alone = Alone::primary(settings(0));
    alone.write(UNIT, id(1, 1), block(0, 8));
    for _ in 0..20 {
        let (pull, orders) = (alone.pulls()[0], alone.messages());
        assert_eq!((alone.pulls().len(), orders.len()), (1, 2));
        assert_eq!(pull.2, Source::Client(id(1, 1)));
        alone.take();
        // Time passes until the pulls end, here last.
        alone.pass(SECOND / 10);
        orders.iter().for_each(|order| end(&mut alone, order, End::Failed));
        alone.pass(3 * SECOND / 10);
        assert_eq!((operations(&alone).len(), drops(&alone)), (0, [].into()));
        alone.pulled(pull.0, Pulled::Failed);
        alone.take();
        alone.write(UNIT, id(1, 1), block(0, 8));
    }
    // The bytes of the primary are there for each copy, or it is dropped.
    let (pull, ..) = alone.pulls()[0];
    let orders = alone.messages();
    alone.pulled(pull, Pulled::Done);
    alone.pass(SECOND / 2);
    alone.take();
    orders.iter().for_each(|order| end(&mut alone, order, End::Failed));
    let sources: Vec<Source> = operations(&alone).iter().map(|it| it.1).collect();
    assert_eq!(sources, [Source::Copy(DaemonIndex(0)); 2]);
    alone.pass(SECOND / 2);
    assert_eq!(drops(&alone), [].into());
    alone.pass(SECOND / 5);
    assert_eq!(drops(&alone).len(), 2);
}

#[test]
fn a_copy_that_fails_to_get_the_bytes_of_the_primary_is_dropped() {
    let mut alone = Alone::primary(settings(0));
    alone.write(UNIT, id(1, 1), block(0, 8));
    let (pull, ..) = alone.pulls()[0];
    let mut order = alone.messages()[0].clone();
    alone.pulled(pull, Pulled::Done);
    for attempt in 0..9 {
        assert_eq!(drops(&alone), [].into(), "{attempt}");
        alone.take();
        end(&mut alone, &order, End::Failed);
        order = alone.messages()[0].clone();
        alone.pass(SECOND / 50);
    }
    assert_eq!(drops(&alone), [order.0].into());
}

#[test]
fn a_write_fails_if_a_byte_may_be_here_or_its_client_may_have_gone_on() {
    let usual = Requested { id: id(1, 1), oldest: 1, is_behind: false };
    let behind = Requested { is_behind: true, ..usual };
    for (requested, first) in [(usual, Pulled::Torn), (behind, Pulled::Failed)] {
        let mut alone = Alone::primary(settings(0));
        let (ticket, _) = given_up(&mut alone, requested, first);
        assert_eq!(alone.answers(), [(ticket, Answer::Failed)]);
        alone.end_all();
        let again = alone.ask(UNIT, requested, OBJECT, block(0, 8));
        assert!(alone.answers().contains(&(again, Answer::Failed)));
    }
}

#[test]
fn bytes_come_from_a_copy_that_has_them() {
    let mut alone = Alone::primary(settings(0));
    alone.write(UNIT, id(1, 1), block(0, 8));
    let (pull, ..) = alone.pulls()[0];
    let (to, message) = alone.messages()[0].clone();
    let Message::Order { lane, number, .. } = message else { panic!("{message:?}") };
    alone.receive(to, Message::Ended { lane, number, end: End::Done });
    alone.take();
    alone.pulled(pull, Pulled::Failed);
    let (mut pull, _, source) = alone.pulls()[0];
    assert_eq!(source, Source::Copy(to));
    // One that cannot give them is not asked for ever.
    let mut asked = 1;
    while asked < 100 {
        alone.take();
        alone.pulled(pull, Pulled::Failed);
        let Some(&next) = alone.pulls().first() else { break };
        (pull, asked) = (next.0, asked + 1);
    }
    assert!((2..20).contains(&asked), "{asked}");
}

#[test]
fn a_unit_has_few_bytes_at_the_primary_alone() {
    let mut alone = Alone::primary(Settings { behind_bytes_max: 16, ..settings(0) });
    for sequence in 1..=3 {
        let requested = Requested { id: id(1, sequence), oldest: 1, is_behind: true };
        alone.ask(UNIT, requested, OBJECT, block(sequence, 8));
    }
    for (ticket, ..) in alone.pulls() {
        alone.pulled(ticket, Pulled::Done);
    }
    let stored = alone.answers().iter().filter(|it| it.1 == Answer::Stored).count();
    assert_eq!(stored, 2);
}

#[test]
fn wrong_bytes_come_from_other_copies_as_long_as_there_are_some() {
    let mut alone = Alone::new(settings(0));
    assert!(!alone.corrupt(UNIT, block(0, 8)), "no other copy is level");
    let mut alone = Alone::primary(settings(0));
    alone.write(UNIT, id(1, 1), block(0, 8));
    alone.end_all();
    alone.take();
    assert!(alone.corrupt(UNIT, block(0, 8)));
    let (first, operation, from) = alone.pulls()[0];
    assert_eq!(operation.kind, Kind::Copy);
    assert_eq!(read_now(&mut alone, 90), None, "they are on their way");
    alone.take();
    alone.pulled(first, Pulled::Corrupt);
    let (second, _, other) = alone.pulls()[0];
    assert_ne!(from, other);
    alone.take();
    alone.pulled(second, Pulled::Corrupt);
    let is_spoiled = |it: &Action| match it {
        Action::Change { operation, .. } => operation.kind == Kind::Spoil,
        _ => false,
    };
    assert!(alone.actions().iter().any(is_spoiled), "no copy has them");
}

#[test]
fn a_copy_takes_orders_in_their_order_and_once() {
    let (mut alone, lane) = follower();
    let primary = DaemonIndex(0);
    let punch = |number| Operation { kind: Kind::Punch, ..write(number, block(number, 8)) };
    alone.receive(primary, ordered(lane, 2, punch(2)));
    assert_eq!(alone.take(), [], "the first one was lost");
    alone.receive(primary, ordered(lane, 1, punch(1)));
    let changes = |alone: &Alone| {
        alone.actions().iter().filter(|it| matches!(it, Action::Change { .. })).count()
    };
    assert_eq!(changes(&alone), 1);
    let settled = Message::Order {
        lane,
        number: 2,
        settled: 1,
        order: Order::Operation {
            operation: punch(2),
            source: Source::Copy(primary),
            replaces: None,
        },
    };
    alone.receive(primary, settled);
    alone.take();
    alone.receive(primary, ordered(lane, 1, punch(1)));
    assert_eq!(changes(&alone), 0, "it may be older than what is there");
    assert_eq!(alone.messages().len(), 1, "the primary hears that it has ended");
    alone.take();
    alone.receive(primary, Message::Open { lane });
    assert_eq!(alone.take(), [], "the lane is open");
}

#[test]
fn a_copy_shows_what_all_copies_have() {
    let (mut alone, lane) = follower();
    let primary = DaemonIndex(0);
    alone.receive(primary, ordered(lane, 1, write(1, block(0, 8))));
    let (ticket, ..) = alone.pulls()[0];
    alone.pulled(ticket, Pulled::Done);
    let ask = |ticket| Some(Action::Answer { ticket, answer: Answer::AskPrimary });
    assert_eq!(read_now(&mut alone, 1), ask(1));
    let (sent, length) = (alone.now, 90 * MILLI);
    // It would be about orders that were not given.
    alone.receive(primary, Message::Lease { lane, sent, length, settled: 5 });
    assert_eq!(read_now(&mut alone, 2), ask(2));
    alone.receive(primary, Message::Lease { lane, sent, length, settled: 1 });
    assert_eq!(read_now(&mut alone, 3), Some(Action::Serve { ticket: 3 }));
    alone.now += 95 * MILLI;
    assert_eq!(read_now(&mut alone, 4), ask(4));
}

#[test]
fn a_new_primary_waits_for_all_copies_and_goes_on_with_the_last_change() {
    let (mut alone, lanes) = handed_over();
    let request = write(4, block(0, 8)).requested.expect("a request");
    alone.write(UNIT, request.id, block(0, 8));
    let begun = |number, is_done| Begun { operation: write(number, block(0, 8)), is_done };
    // The third one had ended on all copies: the fourth one was begun after that.
    let under_way = vec![begun(3, true), begun(4, false)];
    alone.receive(lanes[0].daemon, Message::Opened { lane: lanes[0], under_way });
    assert_eq!(alone.pulls(), []);
    let under_way = vec![begun(4, true)];
    alone.receive(lanes[1].daemon, Message::Opened { lane: lanes[1], under_way });
    let pulls = alone.pulls();
    assert_eq!(pulls.len(), 1);
    assert_eq!(pulls[0].1.stamp, Stamp { epoch: 1, number: 4 });
    assert_eq!(pulls[0].2, Source::Copy(lanes[1].daemon));
    let is_word = |message: &Message| match message {
        Message::Order { order: Order::UnderWay(stamps), .. } => {
            assert_eq!(stamps[..], [Stamp { epoch: 1, number: 4 }]);
            true
        }
        _ => false,
    };
    assert_eq!(alone.messages().iter().filter(|it| is_word(&it.1)).count(), 2);
    assert_eq!(operations(&alone).len(), 2);
}

#[test]
fn bytes_that_are_lost_are_an_error_at_once() {
    let mut table = table();
    for (daemon, incarnation) in [(0, 1), (1, 1), (2, 1)] {
        let daemon = DaemonIndex(daemon);
        let known = table.version;
        table.apply(&Change::Down { daemon, incarnation, known }).expect("it was up");
    }
    for daemon in 0..3_u16 {
        let (daemon, domain) = (DaemonIndex(daemon), u32::from(daemon));
        let up = Change::Up { daemon, incarnation: 2, domain, is_empty: true, known: u64::MAX };
        table.apply(&up).expect("it was down");
    }
    let row = table.unit(UNIT).expect("a unit");
    let (own, lost_at) = (row.primary.expect("a new beginning"), row.lost_at);
    assert!(lost_at > 1);
    let mut alone = Alone::with_incarnation(settings(own.0), table, 2);
    let lost = Some(Action::Answer { ticket: 7, answer: Answer::Lost });
    assert_eq!(read_now(&mut alone, 7), lost);
    let ticket = alone.write(UNIT, id(1, 1), block(0, 8));
    assert!(alone.answers().contains(&(ticket, Answer::Lost)));
}

//! Dirty and clean objects, step by step: notices before acknowledgements, marks after writebacks.

use crate::alone::{Alone, OBJECT, SECOND, block, id, settings, table};
use replicas::change::{Change, CopyId, Reign};
use replicas::dirty::{DirtyObjects, Event, Notice};
use replicas::kept::Entry;
use replicas::node::{Answer, End, Message, Order, Pulled, TICK_NANOS};
use replicas::operation::{Object, Stamp};
use replicas::placement::UnitIndex;
use wire::DaemonIndex;

const fn stamp(epoch: u64, number: u64) -> Stamp {
    Stamp { epoch, number }
}

fn begin(alone: &mut Alone, unit: UnitIndex) -> Option<Stamp> {
    alone.begin_writeback(unit, OBJECT)
}

fn end(alone: &mut Alone, unit: UnitIndex, clean: Option<Stamp>) {
    let epoch = alone.node.table().unit(unit).expect("a unit").epoch;
    alone.end_writeback(Reign { unit, epoch }, OBJECT, clean);
}

fn entry(alone: &Alone, unit: UnitIndex) -> Entry {
    let mut objects = alone.node.kept()[&unit].objects();
    *objects.find(|it| it.0 == OBJECT).expect("it is there").1
}

fn pull_and_end(alone: &mut Alone) {
    for (ticket, ..) in alone.pulls() {
        alone.pulled(ticket, Pulled::Done);
    }
    alone.end_orders();
}

#[test]
fn a_change_is_acknowledged_when_the_owner_knows_of_it() {
    let mut alone = Alone::primary(settings(0));
    let unit = alone.units()[0];
    let ticket = alone.write(unit, id(1, 1), block(0, 8));
    pull_and_end(&mut alone);
    let notice = Notice { unit, object: OBJECT, stamp: stamp(1, 1), event: Event::Dirty };
    assert_eq!((alone.answers(), alone.notices()), (vec![], vec![notice]));
    // It may have been lost.
    alone.pass(SECOND / 4);
    assert_eq!(alone.notices(), [notice, notice]);
    alone.store_notices();
    assert_eq!(alone.answers(), [(ticket, Answer::Done(stamp(1, 1)))]);
    // The owner takes it for dirty already.
    alone.take();
    let ticket = alone.write(unit, id(1, 2), block(0, 8));
    pull_and_end(&mut alone);
    assert_eq!(alone.notices(), []);
    assert_eq!(alone.answers(), [(ticket, Answer::Done(stamp(1, 2)))]);
}

#[test]
fn a_change_after_a_writeback_began_needs_a_notice_of_its_own() {
    let mut alone = Alone::primary(settings(0));
    let unit = alone.units()[0];
    alone.write(unit, id(1, 1), block(0, 8));
    alone.end_all();
    let first = alone.notices()[0];
    alone.take();
    assert_eq!(begin(&mut alone, unit), Some(stamp(1, 1)));
    alone.write(unit, id(1, 2), block(0, 8));
    pull_and_end(&mut alone);
    assert_eq!(alone.notices(), [Notice { stamp: stamp(1, 2), ..first }]);
    // The first notice, a second time: the writeback makes it void.
    alone.notice(&first);
    assert_eq!(alone.answers(), []);
    alone.store_notices();
    assert_eq!(alone.answers().len(), 1);
    // Something was changed since.
    end(&mut alone, unit, Some(stamp(1, 1)));
    assert!(entry(&alone, unit).is_dirty());
}

#[test]
fn a_writeback_saves_what_was_done_when_it_began() {
    let mut alone = Alone::primary(settings(0));
    let unit = alone.units()[0];
    alone.write(unit, id(1, 1), block(0, 8));
    alone.end_all();
    alone.take();
    // The second one has no bytes yet, the third one has.
    alone.write(unit, id(1, 2), block(1, 8));
    alone.write(unit, id(1, 3), block(2, 8));
    let pulls = alone.pulls();
    alone.pulled(pulls[1].0, Pulled::Done);
    assert_eq!(begin(&mut alone, unit), Some(stamp(1, 1)));
    // One at a time: an earlier one would replace the bytes of a later one.
    assert_eq!(begin(&mut alone, unit), None);
    end(&mut alone, unit, None);
    assert_eq!(entry(&alone, unit).clean, Stamp::default());
    alone.pulled(pulls[0].0, Pulled::Done);
    alone.end_orders();
    alone.store_notices();
    assert_eq!(begin(&mut alone, unit), Some(stamp(1, 3)));
    end(&mut alone, unit, Some(stamp(1, 3)));
    assert!(!entry(&alone, unit).is_dirty());
    assert_eq!(begin(&mut alone, unit), None, "it is clean");
    // One that was not begun.
    end(&mut alone, unit, Some(stamp(1, 9)));
    assert_eq!(entry(&alone, unit).clean, stamp(1, 3));
}

#[test]
fn copies_are_told_what_is_clean() {
    let mut alone = Alone::primary(settings(0));
    let unit = alone.units()[0];
    alone.write(unit, id(1, 1), block(0, 8));
    alone.end_all();
    alone.take();
    begin(&mut alone, unit);
    end(&mut alone, unit, Some(stamp(1, 1)));
    let marks: Vec<(DaemonIndex, Message)> = alone.messages();
    assert_eq!(marks.len(), 2);
    for (to, message) in marks {
        let Message::Order { lane, number, order, .. } = message else { panic!("{message:?}") };
        assert_eq!(order, Order::Clean(vec![(OBJECT, stamp(1, 1))]));
        alone.receive(to, Message::Ended { lane, number, end: End::Done });
    }
    assert!(alone.node.is_idle());

    // And the copy knows it, whatever it is next.
    let mut copy = Alone::new(settings(1));
    let lane = copy.lanes(UnitIndex(0)).into_iter().find(|lane| lane.daemon.0 == 1);
    let lane = lane.expect("a copy of the unit");
    let primary = DaemonIndex(0);
    copy.receive(primary, Message::Open { lane });
    copy.receive(primary, crate::alone::ordered(lane, 1, crate::alone::write(1, block(0, 8))));
    pull_and_end(&mut copy);
    assert!(entry(&copy, UnitIndex(0)).is_dirty());
    let order =
        Order::Clean(vec![(OBJECT, stamp(1, 1)), (Object { stripe: 9, ..OBJECT }, stamp(1, 1))]);
    copy.receive(primary, Message::Order { lane, number: 2, settled: 0, order });
    assert_eq!(entry(&copy, UnitIndex(0)).clean, stamp(1, 1));
    assert_eq!(copy.node.kept()[&UnitIndex(0)].dirty().count(), 0);
}

#[test]
fn a_removal_is_noticed_when_no_copy_has_the_object() {
    let mut alone = Alone::primary(settings(0));
    let unit = alone.units()[0];
    alone.write(unit, id(1, 1), block(0, 8));
    alone.end_all();
    alone.take();
    let ticket = alone.remove(unit, id(1, 2));
    let orders = alone.messages();
    for (to, message) in orders {
        assert_eq!(alone.notices(), [], "{to:?} has it");
        if let Message::Order { lane, number, .. } = message {
            alone.receive(to, Message::Ended { lane, number, end: End::Done });
        }
    }
    let removed = Notice { unit, object: OBJECT, stamp: stamp(1, 2), event: Event::Removed };
    assert_eq!((alone.answers(), alone.notices()), (vec![], vec![removed]));
    alone.notice(&Notice { event: Event::Dirty, ..removed });
    assert_eq!(alone.answers(), []);
    alone.store_notices();
    assert_eq!(alone.answers(), [(ticket, Answer::Done(stamp(1, 2)))]);
    // Made again, it is dirty again.
    alone.take();
    alone.write(unit, id(1, 3), block(0, 8));
    pull_and_end(&mut alone);
    assert_eq!(alone.answers(), []);
    assert_eq!(alone.notices(), [Notice { stamp: stamp(1, 3), event: Event::Dirty, ..removed }]);
}

#[test]
fn nothing_is_written_back_that_another_primary_may_save() {
    let mut alone = Alone::primary(settings(0));
    let unit = alone.units()[0];
    alone.write(unit, id(1, 1), block(0, 8));
    alone.end_all();
    let of = Reign { unit, epoch: 1 };
    let may = |alone: &Alone, of| alone.node.may_write_back(of, alone.now);
    assert!(may(&alone, of));
    assert!(!may(&alone, Reign { epoch: 2, ..of }));
    let lane: CopyId = alone.lanes(unit)[0];
    alone.node.advise(lane, alone.now, &mut Vec::new());
    assert!(!may(&alone, of), "it hands over");
    assert_eq!(begin(&mut alone, unit), None);
    let mut alone = Alone::primary(settings(0));
    alone.write(unit, id(1, 1), block(0, 8));
    alone.end_all();
    alone.now += 1000 * SECOND;
    assert!(!may(&alone, of), "its lease has ended");
    assert_eq!(begin(&mut alone, unit), None);
}

/// The notices of a new primary are of its own epoch: what its predecessor still saves is older.
#[test]
fn a_new_primary_tells_anew() {
    let mut table = table();
    let down = Change::Down { daemon: DaemonIndex(0), incarnation: 1, known: 1 };
    table.apply(&down).expect("it was up");
    let row = table.unit(UnitIndex(0)).expect("a unit");
    let own = row.primary.expect("a copy is left");
    let mut alone = Alone::with_table(settings(own.0), table);
    let unit = UnitIndex(0);
    let lane = alone.lanes(unit).into_iter().find(|it| it.daemon.0 != 0).expect("another copy");
    let operation = crate::alone::write(4, block(0, 8));
    let under_way = vec![replicas::kept::Begun { operation, is_done: true }];
    alone.receive(lane.daemon, Message::Opened { lane, under_way });
    alone.write(unit, operation.requested.expect("a request").id, block(0, 8));
    pull_and_end(&mut alone);
    let notice = Notice { unit, object: OBJECT, stamp: stamp(2, 0), event: Event::Dirty };
    assert_eq!(alone.notices(), [notice]);
    alone.notice(&Notice { stamp: stamp(1, 4), ..notice });
    assert_eq!(alone.answers(), []);
    let ask = |alone: &mut Alone| alone.node.clean_up_to(unit, OBJECT, alone.now, &mut Vec::new());
    assert_eq!(ask(&mut alone), None, "it is under way");
    alone.store_notices();
    assert!(matches!(alone.answers()[..], [(_, Answer::Done(_))]));
    assert_eq!(ask(&mut alone), None, "it is dirty");
    // All changes of the earlier epoch are saved with the next writeback.
    assert_eq!(begin(&mut alone, unit), Some(stamp(2, 0)));
    end(&mut alone, unit, Some(stamp(2, 0)));
    assert_eq!(ask(&mut alone), Some(stamp(2, 0)));
    alone.pass(TICK_NANOS);
}

#[test]
fn late_notices_do_not_change_the_list() {
    let unit = UnitIndex(3);
    let other = Object { stripe: 7, ..OBJECT };
    let dirty =
        |number| Notice { unit, object: OBJECT, stamp: stamp(1, number), event: Event::Dirty };
    let mut list = DirtyObjects::default();
    list.notice(&dirty(3));
    list.notice(&Notice { object: other, ..dirty(4) });
    list.notice(&Notice { unit: UnitIndex(2), ..dirty(4) });
    let of = |list: &DirtyObjects| list.of(unit).collect::<Vec<Object>>();
    assert_eq!(of(&list), [OBJECT, other]);
    list.written_back(unit, OBJECT, stamp(1, 5));
    list.notice(&dirty(3));
    assert_eq!(of(&list), [other]);
    list.notice(&dirty(6));
    list.written_back(unit, OBJECT, stamp(1, 5));
    assert_eq!(of(&list), [OBJECT, other]);
    list.notice(&Notice { event: Event::Removed, ..dirty(8) });
    list.notice(&dirty(7));
    assert_eq!(of(&list), [other]);
    list.notice(&Notice { stamp: stamp(2, 1), ..dirty(9) });
    assert_eq!(list.stale(unit, 2).collect::<Vec<Object>>(), [other]);
    list.forget(unit, other);
    assert_eq!(of(&list), [OBJECT]);
}

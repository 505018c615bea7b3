//! Messages and packets between daemons about copies of file data, changes of the table of copies, the table
//! itself, and the state of a copy as a host keeps it, with its steps.
//!
//! Bytes that are read are written as they were. A table takes any change as a whole or not at all, and a
//! node that applies the same changes has the same table. Nodes go on whatever messages come: as the
//! primary of a unit, and as another copy. The steps that a node asks to keep make the state that it has.
#![no_main]

use forebay_fuzz::write_seeds;
use libfuzzer_sys::fuzz_target;
use replicas::change::{Change, CopyId, Reign};
use replicas::dirty::{Event, Notice};
use encoding::{Decode, Encode};
use replicas::kept::{Begun, Kept, KeptStep};
use replicas::node::{
    Action, End, Inventory, Listed, Message, Node, Order, Pulled, Settings, Window,
};
use replicas::operation::{
    ByteRange, Kind, Object, Operation, RequestId, Requested, Source, Stamp,
};
use replicas::packet::{Ask, Given, Packet, PullId};
use replicas::placement::UnitIndex;
use replicas::table::Table;
use std::collections::BTreeMap;
use wire::{DaemonIndex, Inode};

const UNIT: UnitIndex = UnitIndex(0);
const SECOND: i64 = 1_000_000_000;

fn table() -> Table {
    Table::initial(&[0, 1, 2], &[3, 2], 2, false).expect("a possible setup")
}

fn operation(number: u64, kind: Kind) -> Operation {
    let object = Object { inode: Inode(3), stripe: 0 };
    let range = match kind {
        Kind::Remove | Kind::Begin => ByteRange::ALL,
        Kind::Complete { .. } => ByteRange::NONE,
        _ => ByteRange { start: 0, end: 4096 },
    };
    let id = RequestId { client: 5, sequence: number };
    let mut operation = Operation {
        stamp: Stamp { epoch: 1, number },
        object,
        range,
        kind,
        requested: Some(Requested { id, oldest: 1, is_behind: false }),
    };
    operation.requested = operation.requested.filter(|_| operation.is_change());
    operation
}

/// One message after the other, each behind its length.
fn parcel(messages: &[Message]) -> Vec<u8> {
    let mut bytes = vec![0];
    for message in messages {
        let one = message.to_bytes();
        bytes.extend((one.len() as u16).to_le_bytes());
        bytes.extend(one);
    }
    bytes
}

fn seeds() -> Vec<Vec<u8>> {
    let lane = CopyId { of: Reign { unit: UNIT, epoch: 1 }, daemon: DaemonIndex(1), since: 1 };
    let kinds = [
        Kind::Write,
        Kind::Punch,
        Kind::Begin,
        Kind::Copy,
        Kind::Complete { version: Stamp { epoch: 1, number: 2 }, clean: Stamp::default() },
        Kind::Spoil,
        Kind::Remove,
    ];
    let mut orders = vec![Message::Open { lane }];
    for (number, kind) in (1..).zip(kinds) {
        let operation = operation(number, kind);
        let order =
            Order::Operation { operation, source: Source::Copy(DaemonIndex(0)), replaces: None };
        orders.push(Message::Order { lane, number, settled: number / 2, order });
    }
    let object = Object { inode: Inode(3), stripe: 0 };
    let stamp = Stamp { epoch: 1, number: 9 };
    let objects = vec![Listed { object, version: Some(stamp), clean: stamp }];
    let inventory = Order::Inventory(Inventory { after: None, last: None, objects });
    let replies = Order::Replies(Default::default());
    let stamps = Order::UnderWay(vec![Stamp { epoch: 1, number: 4 }]);
    let marks = Order::Clean(vec![(object, stamp)]);
    for (number, order) in (8..).zip([inventory, replies, stamps, marks]) {
        orders.push(Message::Order { lane, number, settled: 6, order });
    }
    orders.push(Message::Lease { lane, sent: 1, length: 9, settled: 10 });
    let under_way = vec![Begun { operation: operation(1, Kind::Write), is_done: true }];
    let answers = [
        Message::Opened { lane, under_way },
        Message::Ended { lane, number: 1, end: End::Done },
        Message::Ended { lane, number: 2, end: End::Differs(vec![object]) },
        Message::AskLease { lane, sent: 1 },
        Message::Repair { lane, object, range: ByteRange { start: 0, end: 1 } },
    ];
    let changes = [
        Change::Down { daemon: DaemonIndex(0), incarnation: 1, known: 1 },
        Change::Up {
            daemon: DaemonIndex(0),
            incarnation: 2,
            domain: 0,
            is_empty: true,
            known: u64::MAX,
        },
        Change::Drop { of: lane },
        Change::Add { of: lane.of, daemon: DaemonIndex(1) },
        Change::InSync { of: lane },
        Change::HandOver { of: lane },
        Change::Leave { daemon: DaemonIndex(2) },
    ];
    let notice = Notice { unit: UNIT, object, stamp, event: Event::Dirty };
    let all: Vec<u8> = changes.iter().flat_map(Encode::to_bytes).collect();
    let id = PullId { ticket: 1, of: lane.of, stamp };
    let (source, range) = (Source::Copy(DaemonIndex(1)), ByteRange { start: 0, end: 4096 });
    let packets = [
        Packet::Message(Message::Open { lane }),
        Packet::Noticed(notice),
        Packet::Ask(Ask { id, source, object, range }),
        Packet::Given(id, Given::Bytes(vec![7; 9])),
    ];
    let steps = [
        KeptStep::New { lost_at: 1 },
        KeptStep::Begin(operation(1, Kind::Write)),
        KeptStep::Done(Stamp { epoch: 1, number: 1 }),
        KeptStep::UnderWay(vec![stamp]),
        KeptStep::Forget,
        KeptStep::Clean(object, stamp),
        KeptStep::Whole(Kept::default()),
    ];
    let packets = packets.iter().map(|packet| [vec![5], packet.to_bytes()].concat());
    let steps: Vec<u8> = steps.iter().flat_map(Encode::to_bytes).collect();
    let others = [
        parcel(&orders),
        parcel(&answers),
        [vec![1], all].concat(),
        [vec![2], table().to_bytes()].concat(),
        [vec![3], Kept::default().to_bytes()].concat(),
        [vec![4], notice.to_bytes()].concat(),
        [vec![6], steps].concat(),
    ];
    others.into_iter().chain(packets).collect()
}

fn node(daemon: u16) -> Node {
    let settings = Settings {
        own: DaemonIndex(daemon),
        slice_bytes: 4096,
        fill_bytes_per_second: 0,
        behind_bytes_max: 0,
        client: Window::CLIENT,
        peer: Window::PEER,
    };
    Node::new(settings, 1, table(), BTreeMap::new(), 0)
}

/// The state that the steps of a list of actions make.
fn keep(kept: &mut BTreeMap<UnitIndex, Kept>, actions: &[Action]) {
    for action in actions {
        match action {
            Action::Keep { unit, step } => kept.entry(*unit).or_default().apply(step),
            Action::Discard(unit) => drop(kept.remove(unit)),
            _ => {}
        }
    }
}

/// Nodes of the three daemons, each with the same messages.
fn messages(mut bytes: &[u8]) {
    let mut nodes: Vec<(Node, BTreeMap<UnitIndex, Kept>)> =
        (0..3).map(|daemon| (node(daemon), BTreeMap::new())).collect();
    let mut out = Vec::new();
    for (node, kept) in &mut nodes {
        out.clear();
        node.take_part(&mut out);
        node.lease(10 * SECOND, 1, 0, &mut out);
        keep(kept, &out);
    }
    let mut now = 0;
    while let Some((head, rest)) = bytes.split_first_chunk() {
        let (one, rest) = rest.split_at(usize::from(u16::from_le_bytes(*head)).min(rest.len()));
        bytes = rest;
        let Ok(message) = Message::from_bytes(one) else { continue };
        assert_eq!(message.to_bytes(), one);
        now += SECOND / 100;
        for (node, kept) in &mut nodes {
            out.clear();
            // Most messages are from the primary, or from the copy that they name.
            for from in [0, 1] {
                node.receive(DaemonIndex(from), message.clone(), now, &mut out);
            }
            node.tick(now, &mut out);
            let pulls = out.iter().filter_map(|action| match action {
                Action::Pull { ticket, .. } => Some(*ticket),
                _ => None,
            });
            for ticket in pulls.collect::<Vec<u64>>() {
                let ends = [Pulled::Done, Pulled::Failed, Pulled::Corrupt];
                node.pulled(ticket, ends[(ticket % 3) as usize], now, &mut out);
            }
            keep(kept, &out);
            assert_eq!(node.kept(), &*kept);
            // Whatever came, the state that is kept can be read by the next process.
            for kept in kept.values() {
                assert_eq!(Kept::from_bytes(&kept.to_bytes()).as_ref(), Ok(kept));
            }
        }
    }
}

/// Changes in a row, each made as a whole or not at all, also by a node.
fn changes(bytes: &[u8]) {
    let mut table = table();
    let mut node = node(0);
    let mut out = Vec::new();
    node.take_part(&mut out);
    let mut from = wire::Reader::new(bytes);
    while let Ok(change) = Change::decode(&mut from) {
        let before = table.clone();
        match table.apply(&change) {
            Ok(()) => assert_eq!(table.version, before.version + 1),
            Err(_) => assert_eq!(table, before),
        }
        let applied = node.apply(&change, before.version + 1, 1, 0, &mut out);
        assert_eq!(applied.is_ok(), table.version > before.version);
        assert_eq!(node.table(), &table);
        assert_eq!(Table::from_bytes(&table.to_bytes()).as_ref(), Ok(&table));
    }
}

/// Steps in a row, of whatever state: what they leave is read again, and is made by its snapshot.
fn steps(bytes: &[u8]) {
    let mut kept = Kept::default();
    let mut from = wire::Reader::new(bytes);
    while let Ok(step) = KeptStep::decode(&mut from) {
        kept.apply(&step);
        let mut again = Kept::default();
        kept.snapshot().for_each(|part| again.apply(&part));
        assert_eq!(again, kept);
    }
}

fn written_again<T: Encode + Decode>(bytes: &[u8]) {
    if let Ok(value) = T::from_bytes(bytes) {
        assert_eq!(value.to_bytes(), bytes);
    }
}

fuzz_target!(init: write_seeds(seeds()), |data: &[u8]| {
    let Some((&kind, bytes)) = data.split_first() else { return };
    match kind {
        0 => messages(bytes),
        1 => changes(bytes),
        2 => written_again::<Table>(bytes),
        3 => written_again::<Kept>(bytes),
        4 => written_again::<Notice>(bytes),
        5 => written_again::<Packet>(bytes),
        6 => {
            written_again::<KeptStep>(bytes);
            steps(bytes);
        }
        _ => {}
    }
});

//! Bytes of peers and of the host's memory: each value is read as it was written, and bytes that
//! were cut or changed are refused, or are another value in its one form.

use encoding::{Decode, Encode};
use proptest::prelude::*;
use replicas::change::{Change, CopyId, Reign};
use replicas::dirty::{Event, Notice};
use replicas::kept::{Begun, Kept, KeptStep, Replies};
use replicas::node::{End, Inventory, Listed, Message, Order};
use replicas::operation::{
    ByteRange, Kind, Object, Operation, RequestId, Requested, Source, Stamp,
};
use replicas::packet::{ASK_BYTES_MAX, Ask, Given, Packet, PullId};
use replicas::placement::UnitIndex;
use replicas::table::Table;
use std::fmt::Debug;
use wire::{DaemonIndex, Inode};

pub(crate) fn stamp() -> impl Strategy<Value = Stamp> {
    (1_u64..4, 1_u64..9).prop_map(|(epoch, number)| Stamp { epoch, number })
}

pub(crate) fn object() -> impl Strategy<Value = Object> {
    (1_u64..4, 0_u64..3).prop_map(|(inode, stripe)| Object { inode: Inode(inode), stripe })
}

fn range() -> impl Strategy<Value = ByteRange> {
    (0_u64..9, 0_u64..9).prop_map(|(a, b)| ByteRange { start: a.min(b), end: a.max(b) })
}

fn id() -> impl Strategy<Value = RequestId> {
    (1_u64..3, 1_u64..9).prop_map(|(client, sequence)| RequestId { client, sequence })
}

fn requested() -> impl Strategy<Value = Requested> {
    (id(), 0_u64..9, any::<bool>()).prop_map(|(id, before, is_behind)| {
        let oldest = id.sequence.saturating_sub(before);
        Requested { id, oldest, is_behind }
    })
}

pub(crate) fn operation() -> impl Strategy<Value = Operation> {
    let kind = prop_oneof![
        3 => Just(Kind::Write),
        1 => Just(Kind::Punch),
        1 => Just(Kind::Remove),
        1 => Just(Kind::Begin),
        1 => Just(Kind::Copy),
        1 => (stamp(), stamp()).prop_map(|(version, clean)| Kind::Complete { version, clean }),
        1 => Just(Kind::Spoil),
    ];
    let parts = (stamp(), object(), range(), kind, prop::option::of(requested()));
    parts.prop_map(|(stamp, object, range, kind, requested)| {
        let range = match kind {
            Kind::Remove | Kind::Begin => ByteRange::ALL,
            Kind::Complete { .. } => ByteRange::NONE,
            _ => range,
        };
        let mut operation = Operation { stamp, object, range, kind, requested };
        operation.requested = requested.filter(|_| operation.is_change());
        operation
    })
}

fn under_way() -> impl Strategy<Value = Vec<Begun>> {
    prop::collection::vec((operation(), any::<bool>()), 0..6).prop_map(|list| {
        let mut found: Vec<Begun> = Vec::new();
        for (operation, is_done) in list {
            if found.iter().all(|it| it.operation.stamp != operation.stamp) {
                found.push(Begun { operation, is_done });
            }
        }
        found
    })
}

fn objects() -> impl Strategy<Value = Vec<Object>> {
    prop::collection::btree_set(object(), 0..6).prop_map(|set| set.into_iter().collect())
}

fn inventory() -> impl Strategy<Value = Inventory> {
    let version = (prop::option::of(stamp()), stamp());
    let versions = prop::collection::btree_map(object(), version, 0..6);
    (versions, any::<bool>(), any::<bool>()).prop_map(|(versions, is_last, is_first)| {
        let listed = |(object, (version, clean))| Listed { object, version, clean };
        let mut objects: Vec<Listed> = versions.into_iter().map(listed).collect();
        let after = (!is_first && !objects.is_empty()).then(|| objects.remove(0).object);
        let last = objects.last().map(|it| it.object).filter(|_| !is_last);
        Inventory { after, last, objects }
    })
}

/// Kept state has no public constructor, so its encoded form is put together.
fn kept_bytes() -> impl Strategy<Value = Vec<u8>> {
    let entry = (stamp(), 0_u64..99, any::<bool>(), stamp());
    let objects = prop::collection::btree_map(object(), entry, 0..6);
    (0_u64..9, objects, under_way(), replies_bytes()).prop_map(
        |(lost_at, objects, under_way, replies)| {
            let mut bytes = lost_at.to_bytes();
            (objects.len() as u32).encode(&mut bytes);
            for (object, (stamp, length, is_partial, clean)) in objects {
                object.encode(&mut bytes);
                stamp.encode(&mut bytes);
                length.encode(&mut bytes);
                is_partial.encode(&mut bytes);
                clean.encode(&mut bytes);
            }
            (under_way.len() as u32).encode(&mut bytes);
            under_way.iter().for_each(|begun| begun.encode(&mut bytes));
            bytes.extend(replies);
            bytes
        },
    )
}

fn replies_bytes() -> impl Strategy<Value = Vec<u8>> {
    let ended = prop::collection::btree_map(5_u64..40, prop::option::of(stamp()), 0..6);
    let client = (0_u64..6, stamp(), ended);
    prop::collection::btree_map(1_u64..9, client, 0..4).prop_map(|clients| {
        let mut bytes = (clients.len() as u32).to_bytes();
        for (number, (oldest, last, ended)) in clients {
            number.encode(&mut bytes);
            oldest.encode(&mut bytes);
            last.encode(&mut bytes);
            (ended.len() as u32).encode(&mut bytes);
            for (sequence, outcome) in ended {
                sequence.encode(&mut bytes);
                // Done is 0 and a stamp, failed is 1.
                outcome.is_none().encode(&mut bytes);
                outcome.iter().for_each(|stamp| stamp.encode(&mut bytes));
            }
        }
        bytes
    })
}

pub(crate) fn order() -> impl Strategy<Value = Order> {
    let source = prop_oneof![
        id().prop_map(Source::Client),
        (0_u16..3).prop_map(|it| Source::Copy(DaemonIndex(it))),
    ];
    let operation = (operation(), source, prop::option::of(stamp()));
    let stamps = prop::collection::btree_set(stamp(), 0..6);
    let marks = prop::collection::btree_map(object(), stamp(), 0..6);
    let replies = replies_bytes().prop_map(|bytes| Replies::from_bytes(&bytes).expect("replies"));
    prop_oneof![
        4 => operation.prop_map(|(operation, source, replaces)| {
            Order::Operation { operation, source, replaces }
        }),
        1 => inventory().prop_map(Order::Inventory),
        1 => stamps.prop_map(|set| Order::UnderWay(set.into_iter().collect())),
        1 => replies.prop_map(Order::Replies),
        1 => marks.prop_map(|map| Order::Clean(map.into_iter().collect())),
    ]
}

pub(crate) fn copy_id() -> impl Strategy<Value = CopyId> {
    (0_u32..2, 1_u64..3, 0_u16..3, 1_u64..3).prop_map(|(unit, epoch, daemon, since)| CopyId {
        of: Reign { unit: UnitIndex(unit), epoch },
        daemon: DaemonIndex(daemon),
        since,
    })
}

pub(crate) fn message() -> impl Strategy<Value = Message> {
    let end = prop_oneof![
        Just(End::Done),
        Just(End::Failed),
        Just(End::Corrupt),
        objects().prop_map(End::Differs),
    ];
    let lane = copy_id;
    prop_oneof![
        1 => lane().prop_map(|lane| Message::Open { lane }),
        2 => (lane(), under_way()).prop_map(|(lane, under_way)| {
            Message::Opened { lane, under_way }
        }),
        4 => (lane(), 1_u64..6, 1_u64..4, order()).prop_map(|(lane, number, before, order)| {
            let settled = number.saturating_sub(before);
            Message::Order { lane, number, settled, order }
        }),
        3 => (lane(), 1_u64..6, end).prop_map(|(lane, number, end)| {
            Message::Ended { lane, number, end }
        }),
        1 => (lane(), any::<i64>()).prop_map(|(lane, sent)| Message::AskLease { lane, sent }),
        1 => (lane(), 0_i64..99, 1_i64..100_000_000, 0_u64..9).prop_map(
            |(lane, sent, length, settled)| Message::Lease { lane, sent, length, settled }
        ),
        1 => (lane(), object(), range()).prop_map(|(lane, object, range)| {
            Message::Repair { lane, object, range }
        }),
    ]
}

fn step() -> impl Strategy<Value = KeptStep> {
    let replies = replies_bytes().prop_map(|bytes| Replies::from_bytes(&bytes).expect("replies"));
    prop_oneof![
        1 => any::<u64>().prop_map(|lost_at| KeptStep::New { lost_at }),
        4 => operation().prop_map(KeptStep::Begin),
        4 => stamp().prop_map(KeptStep::Done),
        3 => stamp().prop_map(KeptStep::Settle),
        1 => (requested(), stamp()).prop_map(|(it, stamp)| KeptStep::Failed(it, stamp)),
        1 => prop::collection::vec(stamp(), 0..6).prop_map(KeptStep::UnderWay),
        1 => Just(KeptStep::Forget),
        1 => replies.prop_map(KeptStep::Replies),
        1 => (object(), stamp()).prop_map(|(object, clean)| KeptStep::Clean(object, clean)),
        1 => object().prop_map(KeptStep::Remove),
    ]
}

fn change() -> impl Strategy<Value = Change> {
    let daemon = (0_u16..9).prop_map(DaemonIndex);
    prop_oneof![
        (daemon.clone(), any::<u64>(), any::<u64>()).prop_map(|(daemon, incarnation, known)| {
            Change::Down { daemon, incarnation, known }
        }),
        (daemon.clone(), any::<u64>(), any::<u32>(), any::<bool>(), any::<u64>()).prop_map(
            |(daemon, incarnation, domain, is_empty, known)| {
                Change::Up { daemon, incarnation, domain, is_empty, known }
            }
        ),
        daemon.clone().prop_map(|daemon| Change::Leave { daemon }),
        (copy_id(), daemon).prop_map(|(of, daemon)| Change::Add { of: of.of, daemon }),
        copy_id().prop_map(|of| Change::InSync { of }),
        copy_id().prop_map(|of| Change::Drop { of }),
        copy_id().prop_map(|of| Change::HandOver { of }),
    ]
}

/// A table after some deaths and returns.
fn table() -> impl Strategy<Value = Table> {
    prop::collection::vec((0_u16..5, any::<bool>()), 0..8).prop_map(|events| {
        let mut table = Table::initial(&[0, 1, 2, 3, 4], &[2, 3], 2, false).expect("a setup");
        for (daemon, is_empty) in events {
            let daemon = DaemonIndex(daemon);
            let holder = *table.holder(daemon).expect("a daemon");
            let (incarnation, known) = (holder.incarnation, table.version / 2);
            let up =
                Change::Up { daemon, incarnation: incarnation + 1, domain: 7, is_empty, known };
            let _ = table.apply(&Change::Down { daemon, incarnation, known });
            if is_empty {
                let _ = table.apply(&up);
            }
        }
        table
    })
}

fn round<T: Encode + Decode + PartialEq + Debug>(value: &T) -> Result<(), TestCaseError> {
    let read = T::from_bytes(&value.to_bytes());
    prop_assert_eq!(read.as_ref(), Ok(value));
    Ok(())
}

/// Bytes of a value, cut and changed in every place.
fn disturbed<T: Encode + Decode + Debug>(bytes: &[u8], by: u8) -> Result<(), TestCaseError> {
    for length in 0..bytes.len() {
        prop_assert!(T::from_bytes(&bytes[..length]).is_err(), "{} bytes are enough", length);
    }
    prop_assert!(T::from_bytes(&[bytes, &[0]].concat()).is_err());
    let mut changed = bytes.to_vec();
    for at in 0..bytes.len() {
        changed[at] ^= by;
        if let Ok(value) = T::from_bytes(&changed) {
            prop_assert_eq!(&value.to_bytes(), &changed, "{:?} has two forms", value);
        }
        changed[at] = bytes[at];
    }
    Ok(())
}

proptest! {
    #[test]
    fn messages_are_read_as_they_were_written(message in message(), by in 1_u8..) {
        round(&message)?;
        disturbed::<Message>(&message.to_bytes(), by)?;
    }

    #[test]
    fn packets_are_read_as_they_were_written(
        message in message(), unit: u32, object in object(), stamp in stamp(), by in 1_u8..,
    ) {
        let notice = Notice { unit: UnitIndex(unit), object, stamp, event: Event::Dirty };
        for packet in [Packet::Message(message), Packet::Notice(notice), Packet::Noticed(notice)] {
            round(&packet)?;
            disturbed::<Packet>(&packet.to_bytes(), by)?;
        }
    }

    #[test]
    fn asks_and_bytes_are_read_as_they_were_written(
        ticket: u64, lane in copy_id(), stamp in stamp(), client in prop::option::of(id()),
        object in object(), start in 0_u64..1 << 40, length in 1_u64..=ASK_BYTES_MAX,
        bytes in prop::collection::vec(any::<u8>(), 0..20), by in 1_u8..,
    ) {
        let id = PullId { ticket, of: lane.of, stamp };
        let source = client.map_or(Source::Copy(lane.daemon), Source::Client);
        let range = ByteRange { start, end: start + length };
        let ask = Packet::Ask(Ask { id, source, object, range });
        let given = [Given::Bytes(bytes), Given::Failed, Given::Corrupt];
        for packet in given.map(|given| Packet::Given(id, given)).into_iter().chain([ask]) {
            round(&packet)?;
            disturbed::<Packet>(&packet.to_bytes(), by)?;
        }
    }

    #[test]
    fn changes_are_read_as_they_were_written(change in change(), by in 1_u8..) {
        round(&change)?;
        disturbed::<Change>(&change.to_bytes(), by)?;
    }

    #[test]
    fn notices_are_read_as_they_were_written(
        unit: u32, object in object(), stamp in stamp(), is_removal: bool, by in 1_u8..,
    ) {
        let event = if is_removal { Event::Removed } else { Event::Dirty };
        let notice = Notice { unit: UnitIndex(unit), object, stamp, event };
        round(&notice)?;
        disturbed::<Notice>(&notice.to_bytes(), by)?;
    }

    #[test]
    fn kept_state_is_read_as_it_was_written(bytes in kept_bytes(), by in 1_u8..) {
        let kept = Kept::from_bytes(&bytes).expect("kept state");
        prop_assert_eq!(kept.to_bytes(), bytes.clone());
        disturbed::<Kept>(&bytes, by)?;
    }

    /// Whatever the steps are, what they leave is read again, and goes on as the other would.
    #[test]
    fn steps_are_read_as_they_were_written(
        steps in prop::collection::vec(step(), 0..40), by in 1_u8..,
    ) {
        let mut kept = Kept::default();
        for step in &steps {
            round(step)?;
            disturbed::<KeptStep>(&step.to_bytes(), by)?;
            let mut again = Kept::from_bytes(&kept.to_bytes()).expect("what steps leave");
            kept.apply(step);
            again.apply(step);
            prop_assert_eq!(&kept, &again);
            for part in kept.snapshot() {
                round(&part)?;
                again.apply(&part);
            }
            prop_assert_eq!(&kept, &again);
        }
        round(&kept)?;
    }

    #[test]
    fn tables_are_read_as_they_were_written(table in table(), at: prop::sample::Index, by in 1_u8..) {
        round(&table)?;
        let mut bytes = table.to_bytes();
        let at = at.index(bytes.len());
        prop_assert!(Table::from_bytes(&bytes[..at]).is_err());
        bytes[at] ^= by;
        if let Ok(other) = Table::from_bytes(&bytes) {
            prop_assert_eq!(other.to_bytes(), bytes);
        }
    }

    #[test]
    fn any_bytes_are_read(bytes: Vec<u8>) {
        let _ = (Message::from_bytes(&bytes), Change::from_bytes(&bytes));
        let _ = (Packet::from_bytes(&bytes), KeptStep::from_bytes(&bytes));
        let _ = (Table::from_bytes(&bytes), Kept::from_bytes(&bytes));
    }
}

/// Values that decode field by field, and that no node has.
#[test]
fn impossible_values_are_refused() {
    let table = Table::initial(&[0, 1, 2], &[2], 1, false).expect("a possible setup");
    let bytes = table.to_bytes();
    let first = table.unit(UnitIndex(0)).expect("a unit");
    let without = (0..3).find(|&it| first.copy(DaemonIndex(it)).is_none()).expect("of three") as u8;
    assert_eq!(Table::from_bytes(&bytes).as_ref(), Ok(&table));
    // version, same_domain, targets, units_per_target, 3 holders, 1 goal.
    let unit = 8 + 1 + 2 + 2 + 4 + 3 * 13 + 4 + 1;
    let rows = unit + 8 + 8 + 8 + 2 + 1 + 1 + 4;
    let with = |at: usize, value: u8| {
        let mut bytes = bytes.clone();
        bytes[at] = value;
        Table::from_bytes(&bytes).is_err()
    };
    assert!(with(0, 0), "rows are newer than the table");
    assert!(with(9, 0), "no targets");
    assert!(with(9, 4), "more targets than daemons");
    assert!(with(11, 0), "no units");
    assert!(with(11, 65), "too many units");
    assert!(with(unit - 1, 1), "one copy");
    assert!(with(unit, 0), "epoch 0");
    assert!(with(unit + 24, without), "the primary has no copy");
    assert!(with(unit + 24, 3), "the primary is no daemon");
    assert!(with(unit + 26, 0), "copies in sync without a primary");
    assert!(with(rows, 3), "a copy at no daemon");
    assert!(with(rows + 19, bytes[rows]), "two copies at a daemon");
    assert!(with(rows + 10, 1), "the primary joins");
    assert!(with(rows + 11, 1), "a copy in sync has left");
}

/// The longest memory of requests fits a frame, and what is one longer is refused.
#[test]
fn memories_of_requests_have_a_longest_one() {
    let bytes_of = |clients: u32| {
        let mut bytes = clients.to_bytes();
        for number in 0..u64::from(clients) {
            number.encode(&mut bytes);
            1_u64.encode(&mut bytes);
            Stamp { epoch: 1, number: 1 }.encode(&mut bytes);
            32_u32.encode(&mut bytes);
            for sequence in 1..=32_u64 {
                sequence.encode(&mut bytes);
                false.encode(&mut bytes);
                Stamp { epoch: 1, number: sequence }.encode(&mut bytes);
            }
        }
        bytes
    };
    let longest = bytes_of(1024);
    let replies = Replies::from_bytes(&longest).expect("as many as are remembered");
    let lane =
        CopyId { of: Reign { unit: UnitIndex(0), epoch: 1 }, daemon: DaemonIndex(1), since: 1 };
    let order = Order::Replies(replies);
    let packet = Packet::Message(Message::Order { lane, number: 1, settled: 0, order });
    assert!(packet.to_bytes().len() <= wire::limits::FRAME_BYTES_MAX);
    assert!(Replies::from_bytes(&bytes_of(1025)).is_err());
}

#[test]
fn asks_have_a_longest_one() {
    let id = PullId {
        ticket: 1,
        of: Reign { unit: UnitIndex(0), epoch: 1 },
        stamp: Stamp { epoch: 1, number: 1 },
    };
    let (source, object) = (Source::Copy(DaemonIndex(1)), Object { inode: Inode(1), stripe: 0 });
    for (length, is_read) in
        [(0, false), (1, true), (ASK_BYTES_MAX, true), (ASK_BYTES_MAX + 1, false)]
    {
        let range = ByteRange { start: 5, end: 5 + length };
        let bytes = Packet::Ask(Ask { id, source, object, range }).to_bytes();
        assert_eq!(Packet::from_bytes(&bytes).is_ok(), is_read, "{length}");
    }
    let given = |length: u64| Packet::Given(id, Given::Bytes(vec![7; length as usize])).to_bytes();
    assert!(Packet::from_bytes(&given(ASK_BYTES_MAX)).is_ok());
    assert!(given(ASK_BYTES_MAX).len() <= wire::limits::FRAME_BYTES_MAX);
    assert!(Packet::from_bytes(&given(ASK_BYTES_MAX + 1)).is_err());
}

/// A count takes no space before its values are there.
#[test]
fn large_counts_are_refused() {
    let lane =
        CopyId { of: Reign { unit: UnitIndex(0), epoch: 1 }, daemon: DaemonIndex(1), since: 1 };
    let mut opened = Message::Opened { lane, under_way: Vec::new() }.to_bytes();
    let at = opened.len() - 4;
    opened[at..].copy_from_slice(&u32::MAX.to_bytes());
    assert!(Message::from_bytes(&opened).is_err());
    let mut kept = Kept::default().to_bytes();
    kept[8..12].copy_from_slice(&u32::MAX.to_bytes());
    assert!(Kept::from_bytes(&kept).is_err());
}

//! An owner and a follower: on a link that takes long, while every operation waits; and when the copy has
//! become long, records were lost on the way, or a follower says what cannot be.

use cluster::change::{Change, Following, Tenure};
use cluster::membership::{Follower, Seat, ServiceIndex};
use cluster::shipping::follower::{FollowerOutput, Standby};
use cluster::shipping::owner::{JOIN_SILENCE_NANOS, Owner, OwnerOutput, SILENCE_NANOS};
use cluster::shipping::{Lane, Parcel, Position, Receipt};
use wire::DaemonIndex;

const MILLI: i64 = 1_000_000;

fn seat(of: Tenure) -> Seat {
    Seat {
        epoch: of.epoch,
        owner: Some(DaemonIndex(0)),
        is_successor: false,
        last_owner: DaemonIndex(0),
        last_dropped: None,
        followers: vec![Follower {
            daemon: DaemonIndex(1),
            since: 1,
            is_in_sync: false,
            had_all: false,
        }],
    }
}

#[test]
fn a_follower_on_a_slow_link_gets_in_sync() {
    let of = Tenure { service: ServiceIndex(0), epoch: 1 };
    let mut owner = Owner::new(of, None, 0, 0);
    let (mut standby, mut out) = (Standby::default(), Vec::new());
    let (mut received, mut written) = (Vec::new(), Vec::new());
    owner.follow(&seat(of), 0, &mut out);
    for trip in 0..100 {
        // More operations than parcels that may be on their way.
        for number in 0..20 {
            let record = vec![trip as u8, number];
            owner.append(&record);
            written.push(record);
            owner.wait(written.len() as u64);
            owner.tick(trip * 20 * MILLI + i64::from(number) * MILLI, &mut out);
        }
        for output in std::mem::take(&mut out) {
            match output {
                OwnerOutput::Slice(lane) => {
                    let mut batch = Vec::new();
                    for record in &written {
                        cluster::shipping::put_record(&mut batch, record);
                    }
                    owner.slice(lane, &batch, true);
                }
                OwnerOutput::Send { parcel, .. } => {
                    let parcel = Parcel::from_bytes(&parcel).expect("an owner wrote it");
                    let mut outputs = Vec::new();
                    standby.receive(&parcel, of.epoch, &mut outputs);
                    for output in outputs {
                        match output {
                            FollowerOutput::Records(batch) | FollowerOutput::Slice(batch) => {
                                let records = cluster::shipping::records(batch);
                                received.extend(records.map(<[u8]>::to_vec));
                            }
                            FollowerOutput::Receipt(receipt) => {
                                let now = (trip + 1) * 20 * MILLI;
                                owner.receipt(DaemonIndex(1), &receipt, now, &mut out);
                            }
                            FollowerOutput::Begin | FollowerOutput::Complete => {}
                        }
                    }
                }
                OwnerOutput::Propose(Change::InSync { .. }) => {
                    let missing = written.iter().filter(|it| !received.contains(it)).count();
                    assert!(missing <= 40, "{missing} of {} are missing", written.len());
                    return;
                }
                _ => {}
            }
        }
    }
    panic!("after {} operations it has {} records", written.len(), received.len());
}

/// Copies of a follower: the one that it has, and the one that is to replace it.
#[derive(Default)]
struct Stored {
    whole: Vec<Vec<u8>>,
    begun: Option<Vec<Vec<u8>>>,
    replaced: usize,
}

impl Stored {
    fn take(&mut self, output: FollowerOutput<'_>) -> Option<Receipt> {
        let list = |batch| cluster::shipping::records(batch).map(<[u8]>::to_vec);
        match output {
            FollowerOutput::Begin => self.begun = Some(Vec::new()),
            FollowerOutput::Records(batch) => {
                self.whole.extend(list(batch));
                self.begun.iter_mut().for_each(|it| it.extend(list(batch)));
            }
            FollowerOutput::Slice(batch) => {
                self.begun.as_mut().expect("begun").extend(list(batch));
            }
            FollowerOutput::Complete => {
                self.whole = self.begun.take().expect("begun");
                self.replaced += 1;
            }
            FollowerOutput::Receipt(receipt) => return Some(receipt),
        }
        None
    }
}

#[test]
fn a_long_copy_is_made_anew_while_its_follower_stays_in_sync() {
    let of = Tenure { service: ServiceIndex(0), epoch: 1 };
    let mut owner = Owner::new(of, None, 0, 0);
    owner.set_copy_bytes_max(2000);
    let (mut standby, mut stored, mut out) = (Standby::default(), Stored::default(), Vec::new());
    let mut seat = seat(of);
    owner.follow(&seat, 0, &mut out);
    let mut longest = 0;
    for number in 0..4000_u32 {
        let now = i64::from(number) * MILLI;
        // The state is the last record alone.
        let record = number.to_le_bytes();
        owner.append(&record);
        owner.wait(u64::from(number));
        owner.tick(now, &mut out);
        while !out.is_empty() {
            for output in std::mem::take(&mut out) {
                match output {
                    OwnerOutput::Slice(lane) => {
                        let mut batch = Vec::new();
                        cluster::shipping::put_record(&mut batch, &record);
                        owner.slice(lane, &batch, true);
                        owner.tick(now, &mut out);
                    }
                    OwnerOutput::Send { parcel, .. } => {
                        let parcel = Parcel::from_bytes(&parcel).expect("an owner wrote it");
                        let mut outputs = Vec::new();
                        standby.receive(&parcel, of.epoch, &mut outputs);
                        for receipt in outputs.into_iter().filter_map(|it| stored.take(it)) {
                            owner.receipt(DaemonIndex(1), &receipt, now, &mut out);
                        }
                    }
                    OwnerOutput::Propose(Change::InSync { .. }) => {
                        seat.followers[0].is_in_sync = true;
                        owner.follow(&seat, now, &mut out);
                    }
                    OwnerOutput::Propose(change) => panic!("it is never dropped: {change:?}"),
                    OwnerOutput::Replicated { .. } | OwnerOutput::Resumed => {}
                }
            }
        }
        assert_eq!(stored.whole.last().map(Vec::as_slice), Some(&record[..]));
        assert!(standby.position().is_some_and(|it| it.records == u64::from(number) + 1));
        longest = longest.max(stored.whole.len());
    }
    // 8 bytes each: a copy is made anew each 250 records.
    assert!(stored.replaced > 10 && longest < 300, "{} times, {longest}", stored.replaced);
}

/// An owner with a follower that has its copy, in sync.
fn in_sync(of: Tenure) -> (Owner, Standby, Stored, Seat) {
    let mut owner = Owner::new(of, None, 1 << 20, 0);
    let (mut standby, mut stored, mut seat) = (Standby::default(), Stored::default(), seat(of));
    let mut out = Vec::new();
    owner.follow(&seat, 0, &mut out);
    for now in [0, MILLI, 2 * MILLI] {
        owner.tick(now, &mut out);
        deliver(&mut owner, (&mut standby, &mut stored), now, &mut out);
    }
    assert!(matches!(out.as_slice(), [OwnerOutput::Propose(Change::InSync { .. }), ..]), "{out:?}");
    seat.followers[0].is_in_sync = true;
    out.clear();
    owner.follow(&seat, 2 * MILLI, &mut out);
    (owner, standby, stored, seat)
}

/// Delivers what an owner sends, and the receipts, until nothing is on its way; leaves the rest.
fn deliver(
    owner: &mut Owner,
    (standby, stored): (&mut Standby, &mut Stored),
    now: i64,
    out: &mut Vec<OwnerOutput>,
) {
    let mut rest = Vec::new();
    while !out.is_empty() {
        for output in std::mem::take(out) {
            match output {
                OwnerOutput::Slice(lane) => {
                    let mut batch = Vec::new();
                    cluster::shipping::put_record(&mut batch, b"state");
                    owner.slice(lane, &batch, true);
                    owner.tick(now, out);
                }
                OwnerOutput::Send { parcel, .. } => {
                    let parcel = Parcel::from_bytes(&parcel).expect("an owner wrote it");
                    let mut outputs = Vec::new();
                    standby.receive(&parcel, 1, &mut outputs);
                    for receipt in outputs.into_iter().filter_map(|it| stored.take(it)) {
                        owner.receipt(DaemonIndex(1), &receipt, now, out);
                    }
                }
                other => rest.push(other),
            }
        }
    }
    *out = rest;
}

#[test]
fn lost_records_end_the_copies_and_nothing_is_replicated_without_them() {
    let of = Tenure { service: ServiceIndex(0), epoch: 1 };
    let (mut owner, mut standby, mut stored, mut seat) = in_sync(of);
    let (mut out, now) = (Vec::new(), 3 * MILLI);
    owner.append(b"known");
    owner.wait(1);
    owner.tick(now, &mut out);
    deliver(&mut owner, (&mut standby, &mut stored), now, &mut out);
    assert_eq!(out, [OwnerOutput::Replicated { ticket: 1 }]);
    out.clear();
    owner.lose(now);
    owner.append(b"later");
    owner.wait(2);
    owner.tick(now, &mut out);
    deliver(&mut owner, (&mut standby, &mut stored), now, &mut out);
    let is_drop =
        |it: &OwnerOutput| matches!(it, OwnerOutput::Propose(Change::DropFollower { .. }));
    assert!(!out.is_empty() && out.iter().all(is_drop), "{out:?}");
    assert_eq!(stored.whole.last().map(Vec::as_slice), Some(&b"known"[..]), "it gets no gap");
    // The membership drops it, and it comes again: no delta, although the owner keeps records.
    out.clear();
    let before = std::mem::take(&mut seat.followers);
    owner.follow(&seat, now, &mut out);
    assert_eq!(out, [OwnerOutput::Replicated { ticket: 2 }], "nobody else is to wait for");
    out.clear();
    seat.followers = before;
    (seat.followers[0].since, seat.followers[0].is_in_sync) = (2, false);
    owner.follow(&seat, now, &mut out);
    owner.tick(now, &mut out);
    let replaced = stored.replaced;
    deliver(&mut owner, (&mut standby, &mut stored), now, &mut out);
    assert_eq!(stored.replaced, replaced + 1, "a snapshot: {out:?}");
}

#[test]
fn a_follower_in_sync_is_dropped_for_silence_and_not_for_lost_messages() {
    let of = Tenure { service: ServiceIndex(0), epoch: 1 };
    let (mut owner, mut standby, mut stored, _) = in_sync(of);
    let (mut out, mut last, mut attempts) = (Vec::new(), Vec::new(), 0);
    let is_sent = |it: &OwnerOutput| matches!(it, OwnerOutput::Send { .. });
    let is_drop =
        |it: &OwnerOutput| matches!(it, OwnerOutput::Propose(Change::DropFollower { .. }));
    let (start, end) = (3 * MILLI, 3 * MILLI + SILENCE_NANOS - 1);
    owner.tick(start, &mut out);
    owner.append(b"first");
    owner.wait(1);
    // All messages of almost a second are lost.
    for now in (start..end).step_by(25 * MILLI as usize).chain([end]) {
        owner.tick(now, &mut out);
        assert!(out.iter().all(is_sent), "{out:?}");
        if !out.is_empty() {
            (last, attempts) = (std::mem::take(&mut out), attempts + 1);
        }
    }
    assert!(attempts > 3, "{attempts}");
    deliver(&mut owner, (&mut standby, &mut stored), end, &mut last);
    assert_eq!(last, [OwnerOutput::Replicated { ticket: 1 }], "one message is enough");
    // From its receipt on it is silent for as long again, and longer.
    owner.append(b"second");
    owner.wait(2);
    owner.tick(end, &mut out);
    owner.tick(end + SILENCE_NANOS - 1, &mut out);
    assert!(!out.is_empty() && out.iter().all(is_sent), "{out:?}");
    out.clear();
    owner.tick(end + SILENCE_NANOS, &mut out);
    assert!(out.iter().any(is_drop), "{out:?}");
}

#[test]
fn a_receipt_for_what_was_never_sent_counts_for_nothing() {
    let of = Tenure { service: ServiceIndex(0), epoch: 1 };
    let (mut owner, standby, _, _) = in_sync(of);
    let (mut out, now) = (Vec::new(), 3 * MILLI);
    let lane = Lane { of, number: 1 };
    owner.append(b"record");
    owner.wait(1);
    let receipt = Receipt { lane, stored: Some(u64::MAX - 1), position: standby.position() };
    owner.receipt(DaemonIndex(1), &receipt, now, &mut out);
    let sends = |it: &OwnerOutput| matches!(it, OwnerOutput::Send { .. });
    assert!(!out.is_empty() && out.iter().all(sends), "{out:?}");
}

#[test]
fn a_position_beyond_the_owner_s_log_gets_a_snapshot() {
    let of = Tenure { service: ServiceIndex(0), epoch: 1 };
    let mut owner = Owner::new(of, None, 1 << 20, 0);
    let mut out = Vec::new();
    owner.follow(&seat(of), 0, &mut out);
    owner.tick(0, &mut out);
    out.clear();
    let lane = Lane { of, number: 1 };
    let position = Some(Position { epoch: 1, records: 1000, is_exact: true });
    let receipt = Receipt { lane, stored: Some(1), position };
    owner.receipt(DaemonIndex(1), &receipt, 0, &mut out);
    assert!(out.contains(&OwnerOutput::Slice(lane)), "{out:?}");
    assert!(owner.lags().all(|it| it.records == 0));
}

#[test]
fn a_follower_that_joins_and_is_silent_is_named_after_a_while() {
    let of = Tenure { service: ServiceIndex(0), epoch: 1 };
    let mut owner = Owner::new(of, None, 0, 0);
    let mut out = Vec::new();
    owner.follow(&seat(of), 0, &mut out);
    let is_silent = |owner: &Owner, now| owner.silent(now).any(|it| it.follower == DaemonIndex(1));
    owner.tick(JOIN_SILENCE_NANOS - 1, &mut out);
    assert!(!is_silent(&owner, JOIN_SILENCE_NANOS - 1));
    assert!(is_silent(&owner, JOIN_SILENCE_NANOS));
    let receipt = Receipt { lane: Lane { of, number: 1 }, stored: Some(1), position: None };
    owner.receipt(DaemonIndex(1), &receipt, JOIN_SILENCE_NANOS, &mut out);
    assert!(!is_silent(&owner, JOIN_SILENCE_NANOS), "it answers");
}

/// The next owner of a service that was handed over, whose follower is the owner before.
fn next_owner(epoch: u64) -> (Tenure, Owner, Seat, Vec<OwnerOutput>) {
    next_owner_that_keeps(1 << 20, epoch)
}

fn next_owner_that_keeps(bytes: usize, epoch: u64) -> (Tenure, Owner, Seat, Vec<OwnerOutput>) {
    let of = Tenure { service: ServiceIndex(0), epoch };
    let (mut owner, mut seat, mut out) = (Owner::new(of, None, bytes, 0), seat(of), Vec::new());
    (seat.followers[0].since, seat.followers[0].is_in_sync) = (epoch, true);
    owner.follow(&seat, 0, &mut out);
    (of, owner, seat, out)
}

#[test]
fn an_owner_that_handed_over_stays_in_sync_with_what_comes_after() {
    let (of, mut owner, seat, mut out) = next_owner(2);
    let (mut standby, mut stored) = (Standby::of_owner(2), Stored::default());
    owner.append(b"first");
    owner.wait(1);
    owner.tick(0, &mut out);
    let is_done = |it: &OwnerOutput| matches!(it, OwnerOutput::Replicated { .. });
    assert!(!out.iter().any(is_done), "it counts before it was asked: {out:?}");
    assert!(!owner.is_everywhere(DaemonIndex(1)));
    deliver(&mut owner, (&mut standby, &mut stored), 0, &mut out);
    assert_eq!(out, [OwnerOutput::Resumed, OwnerOutput::Replicated { ticket: 1 }]);
    assert_eq!((stored.whole.as_slice(), stored.replaced), (&[b"first".to_vec()][..], 0));
    assert!(owner.is_everywhere(DaemonIndex(1)));
    let position = Some(Position { epoch: of.epoch, records: 1, is_exact: true });
    assert_eq!(standby.position(), position);
    // The membership changes otherwise.
    owner.follow(&seat, MILLI, &mut out);
    out.clear();
    owner.tick(2 * MILLI, &mut out);
    assert_eq!(out, [], "nothing is proposed again");
}

/// One that says late what it has gets all that came meanwhile, also where the owner keeps less than that
/// for those that return. Dropped, the service would have one copy fewer, with no fault anywhere.
#[test]
fn a_follower_that_stayed_in_sync_gets_what_came_before_it_was_asked() {
    for kept in [0, 10] {
        let (_, mut owner, _, mut out) = next_owner_that_keeps(kept, 2);
        let (mut standby, mut stored) = (Standby::of_owner(2), Stored::default());
        let records: Vec<Vec<u8>> = (0..40).map(|it| vec![it; 100]).collect();
        for (ticket, record) in (1..).zip(&records) {
            owner.append(record);
            owner.wait(ticket);
            owner.tick(ticket.cast_signed() * 10 * MILLI, &mut out);
        }
        let sent = out.iter().filter(|it| matches!(it, OwnerOutput::Send { .. }));
        assert!(sent.count() <= 40, "the question is repeated, and nothing else sent");
        for step in 0..20 {
            deliver(&mut owner, (&mut standby, &mut stored), (500 + step) * MILLI, &mut out);
        }
        assert_eq!((&stored.whole, stored.replaced), (&records, 0));
        assert!(owner.is_everywhere(DaemonIndex(1)));
        let is_drop = |it: &OwnerOutput| matches!(it, OwnerOutput::Propose(_));
        assert!(!out.iter().any(is_drop), "{out:?}");
    }
}

#[test]
fn a_follower_that_stayed_in_sync_does_not_begin_anew_while_it_counts() {
    // Another process stored it, and what it has beyond is not known; or it is lost.
    for position in [Some(Position { epoch: 2, records: 0, is_exact: false }), None] {
        let (of, mut owner, mut seat, mut out) = next_owner(2);
        owner.tick(0, &mut out);
        out.clear();
        let lane = Lane { of, number: 1 };
        owner.wait(1);
        owner.append(b"first");
        owner.wait(2);
        let receipt = Receipt { lane, stored: Some(1), position };
        owner.receipt(DaemonIndex(1), &receipt, MILLI, &mut out);
        let of = Following { of, follower: DaemonIndex(1), since: 2 };
        // All from before is there; the rest waits until nobody counts on it.
        let replicated = |ticket| OwnerOutput::Replicated { ticket };
        let drop = OwnerOutput::Propose(Change::DropFollower { of });
        assert_eq!(out, [replicated(1), drop]);
        out.clear();
        seat.followers.clear();
        owner.follow(&seat, 2 * MILLI, &mut out);
        assert_eq!(out, [replicated(2)]);
    }
}

#[test]
fn what_stays_in_sync_is_the_beginning_of_the_next_owner() {
    let of = Tenure { service: ServiceIndex(0), epoch: 1 };
    let (_, mut standby, ..) = in_sync(of);
    let before = standby.position().expect("a copy");
    assert_eq!(before.epoch, 1);
    standby.stay(1);
    assert_eq!(standby.position(), Some(before), "the same owner");
    standby.stay(3);
    let beginning = |epoch| Some(Position { epoch, records: 0, is_exact: true });
    assert_eq!(standby.position(), beginning(3));
    let mut owner = Standby::of_owner(2);
    owner.stay(4);
    assert_eq!(owner.position(), beginning(4));
    let mut returned = Standby::returned(before);
    returned.stay(2);
    assert_eq!(returned.position(), Some(Position { is_exact: false, ..before }));
    let mut nothing = Standby::default();
    nothing.stay(2);
    assert_eq!(nothing.position(), None);
}

#[test]
fn an_owner_that_reads_its_copy_leaves_its_followers_as_they_are() {
    let of = Tenure { service: ServiceIndex(0), epoch: 2 };
    let (mut owner, mut out) = (Owner::new(of, None, 1 << 20, 0), Vec::new());
    owner.await_replay();
    for is_in_sync in [false, true] {
        let mut seat = seat(of);
        (seat.followers[0].since, seat.followers[0].is_in_sync) = (2, is_in_sync);
        owner.follow(&seat, 0, &mut out);
        for now in [MILLI, 10 * JOIN_SILENCE_NANOS] {
            owner.tick(now, &mut out);
            assert_eq!((out.as_slice(), owner.silent(now).count()), (&[][..], 0));
        }
    }
    owner.replayed();
    owner.tick(10 * JOIN_SILENCE_NANOS + MILLI, &mut out);
    assert!(matches!(out.as_slice(), [OwnerOutput::Send { .. }]), "{out:?}");
}

//! Homes of services: where they go when an instance grows and shrinks, what changes them, and what is
//! refused.

use crate::bytes::changes;
use crate::policy::{add, down, next_change, returning, settle, up};
use crate::units::fitting;
use cluster::change::{Change, Following, Tenure};
use cluster::membership::{Member, Membership, ServiceIndex};
use cluster::policy::{self, Loads};
use encoding::{Decode as _, Encode as _};
use proptest::prelude::*;
use std::collections::BTreeSet;
use wire::DaemonIndex;

/// Number of services that each daemon is the home of, if all are at home.
fn at_home(membership: &Membership) -> Vec<usize> {
    let mut homes = vec![0; membership.daemons().count()];
    for (service, seat) in membership.services() {
        let home = membership.home(service).expect("services return");
        assert_eq!(seat.owner, Some(home), "{service:?} {seat:?}");
        assert_eq!(membership.next_home(service), None, "{service:?} goes nowhere");
        let [follower] = seat.followers.as_slice() else { panic!("one follower: {seat:?}") };
        assert!(follower.is_in_sync && membership.member(follower.daemon).is_some(), "{seat:?}");
        homes[usize::from(home.0)] += 1;
    }
    homes
}

fn tenure(membership: &Membership, service: ServiceIndex) -> Tenure {
    Tenure { service, epoch: membership.seat(service).expect("a seat").epoch }
}

#[test]
fn whole_groups_get_a_home_at_new_daemons_and_return() {
    let mut membership = returning(4, 16);
    assert_eq!(at_home(&membership), [4; 4]);
    for daemon in 4..8 {
        add(&mut membership, daemon, daemon.into());
    }
    settle(&mut membership, &[]);
    assert_eq!(at_home(&membership), [2; 8]);
    for (service, _) in membership.services() {
        assert_eq!(membership.home(service), Some(DaemonIndex((service.0 & 7) as u16)));
    }
    let moved = |it: &ServiceIndex| membership.has_moved(*it);
    assert_eq!(membership.services().map(|it| it.0).filter(moved).count(), 8);
    for daemon in 4..8 {
        membership.apply(&Change::Leave { daemon: DaemonIndex(daemon) }).expect("it is up");
    }
    settle(&mut membership, &[]);
    assert_eq!(at_home(&membership), [4, 4, 4, 4, 0, 0, 0, 0]);
    let has_left = |it| membership.member(DaemonIndex(it)).is_some_and(Member::has_left);
    assert!((4..8).all(has_left) && !(0..4).any(has_left));
    // No memory of a host has what happened to them meanwhile.
    let moved = |it: &ServiceIndex| membership.has_moved(*it);
    assert_eq!(membership.services().map(|it| it.0).filter(moved).count(), 8);
    // As many services as daemons: nobody gains, whatever the loads are.
    let mut membership = returning(4, 4);
    add(&mut membership, 4, 4);
    settle(&mut membership, &[]);
    assert_eq!(at_home(&membership), [1, 1, 1, 1, 0]);
    assert_eq!(next_change(&membership, &[9, 1, 1, 1]), None);
}

#[test]
fn a_home_that_leaves_and_dies_gets_its_services_back_before_it_goes_on() {
    let mut membership = returning(4, 8);
    let leaver = DaemonIndex(2);
    membership.apply(&Change::Leave { daemon: leaver }).expect("three are left");
    down(&mut membership, 2);
    // Nobody else may become the home: the memory of its host has not told what it knows.
    for (service, seat) in membership.services().filter(|it| membership.home(it.0) == Some(leaver))
    {
        assert_ne!(seat.owner, Some(leaver));
        let of = tenure(&membership, service);
        let rehome = Change::Rehome { of, next: DaemonIndex(0) };
        assert!(membership.clone().apply(&rehome).is_err(), "{service:?} is away");
    }
    up(&mut membership, 2);
    settle(&mut membership, &[]);
    let mut homes = at_home(&membership);
    assert_eq!(homes.remove(2), 0);
    homes.sort_unstable();
    assert_eq!(homes, [2, 3, 3]);
    assert!(membership.member(leaver).is_some_and(Member::has_left));
}

/// They count what is on the targets there, and pass notices to mounts.
#[test]
fn the_first_service_of_each_daemon_stays_until_that_leaves() {
    let mut membership = returning(2, 8);
    for daemon in 2..8 {
        add(&mut membership, daemon, daemon.into());
    }
    settle(&mut membership, &[]);
    assert_eq!(at_home(&membership), [1; 8]);
    for service in [0, 1] {
        assert_eq!(membership.home(ServiceIndex(service)), Some(DaemonIndex(service as u16)));
    }
    membership.apply(&Change::Leave { daemon: DaemonIndex(0) }).expect("others are left");
    settle(&mut membership, &[]);
    assert!(membership.member(DaemonIndex(0)).is_some_and(Member::has_left));
    let moved = |service| membership.has_moved(ServiceIndex(service));
    assert!(moved(0) && !moved(1));
}

/// It counts what copies of file data have on the target: the others go before.
#[test]
fn the_first_service_of_a_daemon_leaves_when_no_unit_needs_that() {
    let initial = Membership::initial(&[0, 1, 2, 3], 8, 1, false).expect("suitable");
    let with_units = initial.with_owners_that_return().with_units(&[2], 3, false);
    let mut membership = with_units.expect("suitable");
    settle(&mut membership, &[]);
    let (leaver, first) = (DaemonIndex(1), ServiceIndex(1));
    membership.apply(&Change::Leave { daemon: leaver }).expect("three are left");
    let before = membership.held_by(leaver);
    settle(&mut membership, &[]);
    assert_eq!((at_home(&membership)[1], membership.home(first)), (1, Some(leaver)));
    let held = membership.held_by(leaver);
    assert!(held > 1 && held < before, "{held} of {before}: a service, and units");
    let units = |membership: &Membership| membership.units().expect("units").as_ref().clone();
    while let Some(change) = (0..2).find_map(|kind| fitting(&units(&membership), kind)) {
        membership.apply(&change).expect("it fits");
    }
    assert_eq!(membership.held_by(leaver), 1, "the service");
    settle(&mut membership, &[]);
    assert!(membership.member(leaver).is_some_and(Member::has_left));
    assert_eq!((at_home(&membership)[1], membership.held_by(leaver)), (0, 0));
}

/// Beside a follower that leaves and the one in its place there is no room for the home that is back.
#[test]
fn a_follower_that_leaves_makes_room_for_the_home() {
    let initial = Membership::initial(&[0, 1, 2, 3, 4], 1, 2, false).expect("suitable");
    let mut membership = initial.with_owners_that_return();
    settle(&mut membership, &[]);
    down(&mut membership, 0);
    settle(&mut membership, &[]);
    let of = tenure(&membership, ServiceIndex(0));
    let seat = |membership: &Membership| membership.seat(of.service).expect("a seat").clone();
    let leaver = seat(&membership).followers.first().expect("two followers").daemon;
    membership.apply(&Change::Leave { daemon: leaver }).expect("three are left");
    let change = next_change(&membership, &[]).expect("a follower in its place");
    membership.apply(&change).expect("the policy asks for what can be done");
    assert_eq!(seat(&membership).followers.len(), 3);
    up(&mut membership, 0);
    settle(&mut membership, &[]);
    let seat = seat(&membership);
    assert_eq!((seat.owner, seat.followers.len()), (membership.home(of.service), 2));
    assert!(membership.member(leaver).is_some_and(Member::has_left));
}

#[test]
fn a_next_home_that_dies_leaves_or_cannot_store_a_copy_is_none() {
    let start = || {
        let mut membership = returning(3, 6);
        add(&mut membership, 3, 3);
        add(&mut membership, 4, 4);
        let change = next_change(&membership, &[]).expect("homes are uneven");
        let Change::Rehome { of, next } = change else { panic!("a new home: {change:?}") };
        membership.apply(&change).expect("the policy asks for what can be done");
        membership.apply(&change).expect_err("at once a second time");
        assert_eq!(membership.next_home(of.service), Some(next));
        (membership, of, next)
    };
    let (mut membership, of, next) = start();
    let before = membership.home(of.service);
    down(&mut membership, next.0);
    assert_eq!((membership.next_home(of.service), membership.home(of.service)), (None, before));
    settle(&mut membership, &[]);
    assert_eq!(at_home(&membership).iter().sum::<usize>(), 6);

    let (mut membership, of, next) = start();
    membership.apply(&Change::Leave { daemon: next }).expect("others are enough");
    assert_eq!(membership.next_home(of.service), None);
    settle(&mut membership, &[]);
    assert!(membership.member(next).is_some_and(Member::has_left));

    // The owner says that the next one has no place for a copy.
    let (mut membership, of, next) = start();
    membership.apply(&Change::AddFollower { of, follower: next }).expect("it goes there");
    let since =
        membership.seat(of.service).and_then(|it| it.follower(next)).expect("it follows").since;
    let dropped = Following { of, follower: next, since };
    membership.apply(&Change::DropFollower { of: dropped }).expect("it follows");
    let other = next_change(&membership, &[]).expect("homes are uneven");
    assert!(matches!(other, Change::Rehome { next: other, .. } if other != next), "{other:?}");
    membership.apply(&other).expect("another one is up");
    settle(&mut membership, &[]);
    assert_eq!(at_home(&membership).iter().max(), Some(&2));
}

/// The only daemon that is to get services has no place for a copy: each is asked about once, and stays
/// where it is; then one again after each look at the loads.
#[test]
fn services_stay_at_home_while_the_daemon_that_is_to_get_them_cannot_store_a_copy() {
    let mut membership = returning(3, 9);
    add(&mut membership, 3, 3);
    let mut may_retry = false;
    let mut asked = Vec::new();
    while asked.len() < 9 {
        let resting = BTreeSet::new();
        let loads =
            Loads { weights: &[], resting: &resting, may_move: true, may_retry, hot_min: 0 };
        let Some(change) = policy::next_change(&membership, &loads) else {
            assert!(!may_retry, "it is asked again");
            let all: BTreeSet<_> = asked.iter().collect();
            assert_eq!(all.len(), 6, "all but the first of each daemon were asked about");
            may_retry = true;
            continue;
        };
        may_retry = false;
        match change {
            Change::Rehome { of, next } => {
                let is_end = membership.next_home(of.service).is_some();
                let expected =
                    if is_end { membership.home(of.service) } else { Some(DaemonIndex(3)) };
                assert_eq!(Some(next), expected, "it goes there, or stays at home");
                membership.apply(&change).expect("the policy asks for what can be done");
            }
            Change::AddFollower { of, follower: DaemonIndex(3) } => {
                membership.apply(&change).expect("it may follow");
                let follower =
                    membership.seat(of.service).and_then(|it| it.follower(DaemonIndex(3)));
                let since = follower.expect("it follows").since;
                let of = Following { of, follower: DaemonIndex(3), since };
                membership.apply(&Change::DropFollower { of }).expect("it follows");
                asked.push(of.of.service);
            }
            other => panic!("{other:?}"),
        }
    }
    settle(&mut membership, &[]);
    assert_eq!(at_home(&membership)[3], 2, "as soon as it has place");
}

/// The changes that the policy asks for at once.
fn next_changes(membership: &Membership) -> Vec<Change> {
    let resting = BTreeSet::new();
    let loads =
        Loads { weights: &[], resting: &resting, may_move: true, may_retry: false, hot_min: 0 };
    policy::next_changes(membership, &loads, 64)
}

/// All that may happen without a hand-over. The hand-overs that are asked for then.
fn until_hand_overs(membership: &mut Membership) -> Vec<Following> {
    for _ in 0..1000 {
        let joining = membership.services().find_map(|(service, seat)| {
            let entry = seat.followers.iter().find(|it| !it.is_in_sync)?;
            let of = Tenure { service, epoch: seat.epoch };
            Some(Following { of, follower: entry.daemon, since: entry.since })
        });
        let change = joining.map(|of| Change::InSync { of });
        let asked = next_changes(membership);
        let is_made = |it: &&Change| !matches!(it, Change::HandOver { .. });
        let Some(change) = change.or_else(|| asked.iter().find(is_made).copied()) else {
            let of = |change| match change {
                Change::HandOver { of } => of,
                other => panic!("{other:?}"),
            };
            return asked.into_iter().map(of).collect();
        };
        membership.apply(&change).expect("the policy asks for what can be done");
    }
    panic!("the policy never rests: {membership:?}");
}

#[test]
fn some_services_go_to_a_daemon_at_a_time_and_none_that_is_ready_waits_for_another_one() {
    let most = policy::GOING_PER_DAEMON_MAX;
    let mut membership = returning(3, 24);
    down(&mut membership, 1);
    settle(&mut membership, &[]);
    up(&mut membership, 1);
    let asked = until_hand_overs(&mut membership);
    assert_eq!(asked.len(), most);
    assert!(asked.iter().all(|of| of.follower == DaemonIndex(1)));
    // One of them is through, and the others take long: the next one is asked for, and its own next step.
    let last = asked[most - 1];
    membership.apply(&Change::HandOver { of: last }).expect("it is ready");
    let next = next_changes(&membership);
    let dropped = |it: &Change| match it {
        Change::DropFollower { of } => Some(of.of.service),
        _ => None,
    };
    assert_eq!(Vec::from_iter(next.iter().filter_map(dropped)), [last.of.service], "{next:?}");
    let again: Vec<Following> = until_hand_overs(&mut membership);
    assert_eq!(again[..most - 1], asked[..most - 1]);
    assert!(again.len() == most && !asked.contains(&again[most - 1]));

    // So many get a home at a daemon that was added.
    let mut membership = returning(3, 24);
    add(&mut membership, 3, 3);
    let asked = until_hand_overs(&mut membership);
    let going = membership.services().filter(|it| membership.next_home(it.0).is_some());
    assert_eq!((asked.len(), going.count()), (most, most));
    settle(&mut membership, &[]);
    assert_eq!(at_home(&membership), [6; 4]);
}

#[test]
fn homes_that_cannot_be_are_refused() {
    let mut membership = returning(3, 3);
    let of = tenure(&membership, ServiceIndex(1));
    let late = Tenure { epoch: of.epoch + 1, ..of };
    let unknown = Tenure { service: ServiceIndex(3), epoch: 1 };
    for (of, next) in [(of, 1), (of, 3), (late, 0), (unknown, 0)] {
        let rehome = Change::Rehome { of, next: DaemonIndex(next) };
        assert!(membership.apply(&rehome).is_err(), "{rehome:?}");
    }
    let rehome = Change::Rehome { of, next: DaemonIndex(0) };
    let free = Membership::initial(&[0, 1, 2], 3, 1, false).expect("suitable");
    free.clone().apply(&rehome).expect_err("services have no home");
    free.with_owners_that_stay().apply(&rehome).expect_err("services have no home");
    // The owner is another one for a while.
    down(&mut membership, 1);
    settle(&mut membership, &[]);
    let rehome = Change::Rehome { of: tenure(&membership, ServiceIndex(1)), next: DaemonIndex(0) };
    membership.apply(&rehome).expect_err("it is away");
}

proptest! {
    /// Any changes, in any order: each is made or refused as a whole; the home of a service changes by a
    /// hand-over from the home to the next one alone; and the result is encoded.
    #[test]
    fn homes_change_by_hand_overs_alone(
        list in prop::collection::vec(
            (prop::array::uniform4(0_u64..6), 0_usize..14, any::<bool>()), 0..80,
        ),
    ) {
        let mut membership = returning(4, 8);
        for (n, kind, by_policy) in list {
            let before = membership.clone();
            let proposed = next_change(&membership, &[]).filter(|_| by_policy);
            let joining = membership.services().find_map(|(service, seat)| {
                let of = Tenure { service, epoch: seat.epoch };
                let entry = seat.followers.iter().find(|it| !it.is_in_sync && seat.owner.is_some())?;
                Some(Following { of, follower: entry.daemon, since: entry.since })
            });
            let proposed = proposed.or(joining.filter(|_| by_policy).map(|of| Change::InSync { of }));
            let change = proposed.unwrap_or(changes(n)[kind]);
            if membership.apply(&change).is_err() {
                prop_assert_eq!(&membership, &before);
            }
            for (service, seat) in membership.services() {
                let (home, next) = (membership.home(service), membership.next_home(service));
                if home != before.home(service) {
                    prop_assert!(matches!(change, Change::HandOver { .. }), "{:?}", change);
                    let earlier = before.seat(service).expect("services stay");
                    prop_assert_eq!((earlier.owner, seat.owner), (before.home(service), home));
                    prop_assert_eq!(before.next_home(service), home);
                }
                prop_assert!(next.is_none() || seat.owner == home && next != home);
                let member = next.and_then(|it| membership.member(it));
                prop_assert!(next.is_none() || member.is_some_and(Member::takes_part));
            }
            let read = Membership::from_bytes(&membership.to_bytes());
            prop_assert_eq!(read.as_ref(), Ok(&membership));
        }
    }

    /// Whatever a peer or a file says: it is refused, or is the one form of a membership.
    #[test]
    fn changed_homes_are_refused_or_have_one_form(
        flips in prop::collection::vec((0_usize..60, any::<u8>()), 0..4),
    ) {
        let mut membership = returning(3, 6);
        add(&mut membership, 3, 3);
        settle(&mut membership, &[]);
        let of = tenure(&membership, ServiceIndex(0));
        let next = DaemonIndex(u16::from(membership.home(of.service) == Some(DaemonIndex(0))));
        membership.apply(&Change::Rehome { of, next }).expect("it is at home");
        let mut bytes = membership.to_bytes();
        flips.iter().for_each(|&(at, to)| bytes[at] = to);
        if let Ok(read) = Membership::from_bytes(&bytes) {
            prop_assert_eq!(read.to_bytes(), bytes);
        }
    }
}

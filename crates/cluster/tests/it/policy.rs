//! The policy comes to rest, and then followers and loads are as they should be.

use cluster::change::{Change, Following, LastAllowed, Tenure};
use cluster::membership::{Indispensable, Member, Membership, Presence, ServiceIndex};
use cluster::policy::{self, Loads};
use encoding::{Decode as _, Encode as _};
use proptest::prelude::*;
use std::collections::BTreeSet;
use wire::DaemonIndex;

pub(crate) fn next_change(membership: &Membership, weights: &[u64]) -> Option<Change> {
    let resting = BTreeSet::new();
    let loads = Loads { weights, resting: &resting, may_move: true, may_retry: true, hot_min: 0 };
    policy::next_change(membership, &loads)
}

/// A daemon is added and comes.
pub(crate) fn add(membership: &mut Membership, daemon: u16, domain: u32) {
    let daemon = DaemonIndex(daemon);
    let add = Change::Add { daemon, incarnation: 1, domain };
    membership.apply(&add).expect("the next index");
    let up =
        Change::Up { daemon, incarnation: 2, domain, is_empty: true, known: LastAllowed::UNKNOWN };
    membership.apply(&up).expect("it was added");
}

/// A daemon is declared dead.
pub(crate) fn down(membership: &mut Membership, daemon: u16) {
    let daemon = DaemonIndex(daemon);
    let incarnation = membership.member(daemon).expect("it is there").incarnation;
    let down = Change::Down { daemon, incarnation, known: LastAllowed::UNKNOWN };
    membership.apply(&down).expect("it takes part");
}

/// It returns with what it had.
pub(crate) fn up(membership: &mut Membership, daemon: u16) {
    let daemon = DaemonIndex(daemon);
    let member = membership.member(daemon).expect("it is there");
    let (incarnation, domain) = (member.incarnation + 1, member.domain);
    let up =
        Change::Up { daemon, incarnation, domain, is_empty: false, known: LastAllowed::UNKNOWN };
    membership.apply(&up).expect("it was down");
}

/// A membership of daemons in a domain each, whose services return to their first owners, with a follower
/// for each.
pub(crate) fn returning(daemons: u32, services: usize) -> Membership {
    let domains: Vec<u32> = (0..daemons).collect();
    let initial = Membership::initial(&domains, services, 1, false).expect("suitable");
    let mut membership = initial.with_owners_that_return();
    settle(&mut membership, &[]);
    membership
}

/// Applies what the policy asks for, and followers that come in sync at once, until it asks for
/// nothing.
pub(crate) fn settle(membership: &mut Membership, weights: &[u64]) -> usize {
    for step in 0..10_000 {
        let joining = membership.services().find_map(|(service, seat)| {
            let of = Tenure { service, epoch: seat.epoch };
            let entry = seat.followers.iter().find(|it| !it.is_in_sync && seat.owner.is_some())?;
            let (follower, since) = (entry.daemon, entry.since);
            Some(Following { of, follower, since })
        });
        let change = joining.map(|of| Change::InSync { of });
        let Some(change) = change.or_else(|| next_change(membership, weights)) else { return step };
        membership.apply(&change).expect("the policy asks for what can be done");
    }
    panic!("the policy never rests: {membership:?}");
}

fn loads(membership: &Membership, weights: &[u64]) -> Vec<u64> {
    let mut loads = vec![0; membership.daemons().count()];
    for (ServiceIndex(service), seat) in membership.services() {
        loads[usize::from(seat.owner.expect("an owner").0)] += weights[service as usize];
    }
    loads
}

proptest! {
    #[test]
    fn loads_become_even(
        daemons in 2_u32..9, services in 1_usize..40, followers in 0_u8..3,
        weights in prop::collection::vec(0_u64..50, 40..41),
    ) {
        let followers = followers.min(daemons as u8 - 1);
        let domains: Vec<u32> = (0..daemons).collect();
        let services = services.min(domains.len() * 8);
        let mut membership =
            Membership::initial(&domains, services, followers, false).expect("a setup");
        settle(&mut membership, &weights);
        for (_, seat) in membership.services() {
            prop_assert_eq!(seat.followers.len(), usize::from(followers));
        }
        let loads = loads(&membership, &weights);
        let least = loads.iter().min().expect("one");
        for (service, seat) in membership.services() {
            let (load, weight) = (
                loads[usize::from(seat.owner.expect("an owner").0)],
                weights[service.0 as usize],
            );
            // No single move is a gain of a tenth.
            prop_assert!(
                weight == 0 || least + weight + load / 10 >= load || has_copy_at_least(seat, &loads),
                "{loads:?} {service:?} {weight}"
            );
        }
    }
}

/// Whether the least loaded daemons have a copy already: a service moves to a daemon that has none,
/// or to a follower.
fn has_copy_at_least(seat: &cluster::membership::Seat, loads: &[u64]) -> bool {
    let least = loads.iter().min().expect("one");
    (0..loads.len()).all(|it| loads[it] != *least || seat.has(DaemonIndex(it as u16)))
}

#[test]
fn a_new_daemon_gets_its_part_and_a_leaving_one_loses_all() {
    for followers in [0, 1] {
        let mut membership =
            Membership::initial(&[0, 1, 2, 3], 16, followers, false).expect("a setup");
        settle(&mut membership, &[]);
        for daemon in 4..8 {
            add(&mut membership, daemon, daemon.into());
        }
        settle(&mut membership, &[]);
        assert_eq!(loads(&membership, &[1; 16]), [2; 8]);
        for daemon in 4..8 {
            membership.apply(&Change::Leave { daemon: DaemonIndex(daemon) }).expect("it is up");
        }
        settle(&mut membership, &[]);
        assert_eq!(loads(&membership, &[1; 16]), [4, 4, 4, 4, 0, 0, 0, 0]);
        for (_, seat) in membership.services() {
            assert!(seat.followers.iter().all(|it| it.daemon.0 < 4), "{seat:?}");
            assert_eq!(seat.followers.len(), usize::from(followers));
        }
        let has_left = |it| membership.member(DaemonIndex(it)).is_some_and(Member::has_left);
        assert!((4..8).all(has_left));
    }
}

#[test]
fn followers_that_all_leave_make_room_for_another_one() {
    let domains: Vec<u32> = (0..6).collect();
    let mut membership = Membership::initial(&domains, 1, 2, false).expect("a setup");
    settle(&mut membership, &[]);
    let service = ServiceIndex(0);
    let seat = |membership: &Membership| membership.seat(service).expect("a seat").clone();
    // A third one begins to follow, as for a move.
    let before = seat(&membership);
    let third = (0..6).map(DaemonIndex).find(|&it| !before.has(it)).expect("one of six");
    let of = Tenure { service, epoch: before.epoch };
    membership.apply(&Change::AddFollower { of, follower: third }).expect("it is apart");
    for follower in seat(&membership).followers {
        membership.apply(&Change::Leave { daemon: follower.daemon }).expect("others are enough");
    }
    settle(&mut membership, &[]);
    let after = seat(&membership);
    assert!(after.followers.len() == 2 && after.followers.iter().all(|it| it.is_in_sync));
    let is_up = |it| membership.member(it).is_some_and(|it| it.presence == Presence::Up);
    assert!(after.followers.iter().all(|it| is_up(it.daemon)), "{after:?}");
}

#[test]
fn whole_groups_go_to_new_daemons() {
    let mut membership = Membership::initial(&[0, 1, 2, 3], 32, 0, false).expect("a setup");
    for daemon in 4..8 {
        add(&mut membership, daemon, daemon.into());
    }
    settle(&mut membership, &[]);
    for (service, seat) in membership.services() {
        assert_eq!(seat.owner, Some(DaemonIndex((service.0 & 7) as u16)), "{service:?}");
    }
    assert_eq!(policy::group(ServiceIndex(0b1101), 5), DaemonIndex(1), "no sixth daemon");
    assert_eq!(policy::group(ServiceIndex(0b1101), 6), DaemonIndex(5));
}

#[test]
fn two_that_grow_at_once_get_indices_of_their_own() {
    let mut membership = Membership::initial(&[0, 1], 2, 1, false).expect("a setup");
    let add =
        |index, incarnation| Change::Add { daemon: DaemonIndex(index), incarnation, domain: 7 };
    membership.apply(&add(2, 100)).expect("the next index");
    membership.apply(&add(2, 200)).expect_err("it is taken");
    membership.apply(&add(3, 200)).expect("the next index");
    let known = membership.daemons().map(|(_, member)| (member.presence, member.incarnation));
    assert!(known.skip(2).eq([(Presence::Down, 100), (Presence::Down, 200)]));
}

/// A file with one copy may be at any daemon, so either some have one or daemons leave.
#[test]
fn no_daemon_leaves_an_instance_in_which_files_have_one_copy() {
    let mut membership = Membership::initial(&[0, 1, 2, 3], 4, 1, false).expect("a setup");
    settle(&mut membership, &[]);
    let (mut shrinking, daemon) = (membership.clone(), DaemonIndex(3));
    membership.apply(&Change::AllowSingle).expect("none leaves");
    assert_eq!(membership.may_leave(daemon), Err(Indispensable::SingleFiles));
    membership.apply(&Change::Leave { daemon }).expect_err("it may have files");
    membership.apply(&Change::AllowSingle).expect_err("they may already");
    assert!(Membership::from_bytes(&membership.to_bytes()).is_ok_and(|it| it.has_single_files));
    shrinking.apply(&Change::Leave { daemon }).expect("it may");
    assert!(!shrinking.may_have_single_files());
    shrinking.apply(&Change::AllowSingle).expect_err("one leaves");
    settle(&mut shrinking, &[]);
    assert!(shrinking.member(daemon).is_some_and(Member::has_left));
    shrinking.apply(&Change::AllowSingle).expect_err("its target is in layouts yet");
}

#[test]
fn an_instance_shrinks_no_further_than_its_copies() {
    let mut membership = Membership::initial(&[5, 5, 6], 4, 1, false).expect("a setup");
    settle(&mut membership, &[]);
    let (found, needed) = (1, 2);
    let reason = Indispensable::Copies { found, needed };
    assert_eq!(membership.may_leave(DaemonIndex(2)), Err(reason));
    membership.apply(&Change::Leave { daemon: DaemonIndex(2) }).expect_err("as it says");
    assert_eq!(membership.may_leave(DaemonIndex(3)), Err(Indispensable::Absent));
    assert_eq!(membership.may_leave(DaemonIndex(0)), Ok(()));
    membership.apply(&Change::Leave { daemon: DaemonIndex(0) }).expect("it may");
    assert_eq!(membership.may_leave(DaemonIndex(1)), Err(reason));
    settle(&mut membership, &[]);
    assert!(membership.member(DaemonIndex(0)).is_some_and(Member::has_left));
}

#[test]
fn the_load_of_a_dead_daemon_falls_on_many() {
    let domains: Vec<u32> = (0..8).collect();
    let mut membership = Membership::initial(&domains, 56, 1, false).expect("a setup");
    settle(&mut membership, &[]);
    let down = Change::Down { daemon: DaemonIndex(3), incarnation: 1, known: LastAllowed::UNKNOWN };
    membership.apply(&down).expect("it is up");
    let loads = loads(&membership, &[1; 56]);
    assert_eq!(loads[3], 0);
    assert_eq!(membership.member(DaemonIndex(3)).map(|it| it.presence), Some(Presence::Down));
    assert!(loads.iter().all(|&load| load <= 9), "{loads:?}");
}

#[test]
fn owners_that_stay_return_to_their_services_and_followers_begin_anew() {
    let initial = Membership::initial(&[0, 1, 2], 6, 1, false).expect("suitable");
    let mut membership = initial.with_owners_that_stay();
    settle(&mut membership, &[]);
    let owners = |of: &Membership| -> Vec<Option<DaemonIndex>> {
        of.services().map(|(_, seat)| seat.owner).collect()
    };
    let (first, one) = (owners(&membership), DaemonIndex(1));
    let down = Change::Down { daemon: one, incarnation: 1, known: LastAllowed::UNKNOWN };
    membership.apply(&down).expect("it takes part");
    settle(&mut membership, &[9, 1, 1, 1, 1, 1]);
    let without: Vec<_> = first.iter().map(|owner| owner.filter(|it| *it != one)).collect();
    assert_eq!(owners(&membership), without);
    let up = Change::Up {
        daemon: one,
        incarnation: 2,
        domain: 1,
        is_empty: false,
        known: LastAllowed::UNKNOWN,
    };
    membership.apply(&up).expect("it returns");
    assert!(membership.services().all(|(_, seat)| seat.owner != Some(one)
        || seat.epoch == 2 && seat.followers.iter().all(|it| !it.is_in_sync)));
    settle(&mut membership, &[9, 1, 1, 1, 1, 1]);
    assert_eq!(owners(&membership), first, "nothing moves, however uneven");
    assert!(membership.services().all(|(_, seat)| seat.followers.iter().all(|it| it.is_in_sync)));
    // Nobody noticed its absence.
    let up = Change::Up {
        daemon: one,
        incarnation: 3,
        domain: 1,
        is_empty: true,
        known: LastAllowed::UNKNOWN,
    };
    membership.apply(&up).expect("it returns");
    assert_eq!(owners(&membership), first);
}

#[test]
fn a_follower_that_was_dropped_is_asked_after_the_others() {
    let mut membership = Membership::initial(&[0, 1, 2], 3, 1, false).expect("suitable");
    settle(&mut membership, &[]);
    let service = ServiceIndex(0);
    let following = |membership: &Membership| {
        let seat = membership.seat(service).expect("a seat");
        let [follower] = seat.followers.as_slice() else { panic!("one follower: {seat:?}") };
        let of = Tenure { service, epoch: seat.epoch };
        Following { of, follower: follower.daemon, since: follower.since }
    };
    let mut last = following(&membership);
    for _ in 0..4 {
        membership.apply(&Change::DropFollower { of: last }).expect("it follows");
        settle(&mut membership, &[]);
        let next = following(&membership);
        assert_ne!(next.follower, last.follower, "it has fewer copies, and stands still");
        last = next;
    }
    // Where there is no other, it is better than none.
    let other = DaemonIndex(3 - last.follower.0);
    membership
        .apply(&Change::Down { daemon: other, incarnation: 1, known: LastAllowed::UNKNOWN })
        .expect("it takes part");
    membership.apply(&Change::DropFollower { of: following(&membership) }).expect("it follows");
    settle(&mut membership, &[]);
    assert_eq!(following(&membership).follower, last.follower);
}

#[test]
fn services_return_to_their_first_owners_and_their_copies_are_apart() {
    for (domains, followers) in
        [(vec![0, 1, 2, 0, 1, 2], 1), (vec![0, 1, 0, 1], 1), (vec![0, 1, 2, 3], 2)]
    {
        let initial = Membership::initial(&domains, 2 * domains.len(), followers, false);
        let mut membership = initial.expect("suitable").with_owners_that_return();
        let is_right = |membership: &Membership, away: Option<DaemonIndex>| {
            for (service, seat) in membership.services() {
                let home = membership.home(service).expect("services return");
                assert_eq!(usize::from(home.0), service.0 as usize % domains.len());
                let owner = seat.owner.expect("a follower was in sync");
                assert_eq!(owner == home, away != Some(home), "{service:?} {seat:?}");
                let followers_of = seat.followers.iter().map(|it| it.daemon);
                let copies = followers_of.chain([owner]).map(|it| domains[usize::from(it.0)]);
                let apart: BTreeSet<u32> = copies.collect();
                assert_eq!(seat.followers.len(), usize::from(followers), "{seat:?}");
                assert_eq!(apart.len(), 1 + usize::from(followers), "{seat:?}");
            }
        };
        settle(&mut membership, &[]);
        is_right(&membership, None);
        for (daemon, is_empty) in (0..domains.len()).map(|it| (it, it % 2 == 0)) {
            let (index, domain) = (DaemonIndex(daemon as u16), domains[daemon]);
            let down = Change::Down { daemon: index, incarnation: 1, known: LastAllowed::UNKNOWN };
            membership.apply(&down).expect("it takes part");
            settle(&mut membership, &[]);
            // With as many domains as copies nobody can follow instead in some of them.
            if domains.len() > 4 {
                is_right(&membership, Some(index));
            }
            let up = Change::Up {
                daemon: index,
                incarnation: 2,
                domain,
                is_empty,
                known: LastAllowed::UNKNOWN,
            };
            membership.apply(&up).expect("it was down");
            settle(&mut membership, &[]);
            is_right(&membership, None);
        }
        let heavy: Vec<u64> = (0..membership.services().count() as u64).collect();
        assert_eq!(next_change(&membership, &heavy), None, "loads move nothing");
    }
}

#[test]
fn an_owner_that_hands_over_or_resigns_leaves_the_others_in_sync() {
    let initial = Membership::initial(&[0, 1, 2, 3], 1, 2, false).expect("suitable");
    let mut membership = initial.with_owners_that_return();
    settle(&mut membership, &[]);
    let service = ServiceIndex(0);
    let seat = |membership: &Membership| membership.seat(service).expect("a seat").clone();
    let to = |membership: &Membership, at: usize| {
        let seat = seat(membership);
        let of = Tenure { service, epoch: seat.epoch };
        Following { of, follower: seat.followers[at].daemon, since: seat.followers[at].since }
    };
    let in_sync = |membership: &Membership| {
        let seat = seat(membership);
        let of = seat.followers.iter().map(|it| (it.daemon, it.is_in_sync));
        (seat.owner, of.collect::<Vec<_>>())
    };
    let (owner, all) = in_sync(&membership);
    let [(first, true), (second, true)] = all.as_slice() else { panic!("two in sync: {all:?}") };
    let (owner, first, second) = (owner.expect("an owner"), *first, *second);
    let of = to(&membership, 0);
    membership.apply(&Change::HandOver { of }).expect("it is in sync");
    assert_eq!(in_sync(&membership), (Some(first), vec![(second, true), (owner, true)]));
    assert!(!seat(&membership).is_successor, "no lease is to be waited for");
    membership.apply(&Change::HandOver { of }).expect_err("it is late");
    membership.apply(&Change::Resign { of }).expect_err("it is late");
    // The next one cannot serve it.
    let of = to(&membership, 1);
    membership.apply(&Change::Resign { of }).expect("it is in sync");
    assert_eq!(in_sync(&membership), (Some(owner), vec![(second, true)]));
    assert_eq!(seat(&membership).last_dropped, Some(first));
    membership.apply(&Change::Resign { of }).expect_err("it is late");
    // One that had to wait for leases says so to the next.
    let down = Change::Down { daemon: owner, incarnation: 1, known: LastAllowed::UNKNOWN };
    membership.apply(&down).expect("it is up");
    assert_eq!(in_sync(&membership), (Some(second), Vec::new()));
    settle(&mut membership, &[]);
    let of = to(&membership, 0);
    membership.apply(&Change::Resign { of }).expect("it is in sync");
    assert!(seat(&membership).is_successor);
    // The death of an owner, and then of the copy of the one that takes over.
    settle(&mut membership, &[]);
    let dead = seat(&membership).owner.expect("an owner");
    let down = Change::Down { daemon: dead, incarnation: 1, known: LastAllowed::UNKNOWN };
    membership.apply(&down).expect("it is up");
    let (unable, all) = in_sync(&membership);
    let [(other, false)] = all.as_slice() else { panic!("one that was in sync: {all:?}") };
    let of = to(&membership, 0);
    membership.apply(&Change::HandOver { of }).expect_err("it has perhaps less");
    membership.apply(&Change::Resign { of }).expect("it has all that was acknowledged");
    assert_eq!(in_sync(&membership), (Some(*other), Vec::new()));
    assert_eq!(seat(&membership).last_dropped, unable);
    settle(&mut membership, &[]);
    let before = membership.clone();
    let gone = Following { since: of.since + 1000, ..to(&membership, 0) };
    membership.apply(&Change::Resign { of: gone }).expect_err("it follows since another time");
    assert_eq!(membership, before);
}

#[test]
fn services_go_to_another_domain_as_daemons_of_one_die_together() {
    for first in [2_u16, 3] {
        // Two copies may be in one domain.
        let domains = [0, 1, 2, 2];
        let mut membership = Membership::initial(&domains, 8, 2, true).expect("a setup");
        settle(&mut membership, &[]);
        let seats = |membership: &Membership| -> Vec<_> {
            membership.services().map(|(_, seat)| seat.owner).collect()
        };
        let follows = |daemon: u16| {
            let (owner, other) = (DaemonIndex(daemon), DaemonIndex(5 - daemon));
            let both = |seat: &cluster::membership::Seat| {
                seat.owner == Some(owner) && seat.followers.iter().any(|it| it.daemon == other)
            };
            membership.services().any(|(_, seat)| both(seat))
        };
        assert!(follows(first), "else this tests nothing");
        // The second death is known a moment later.
        for daemon in [first, 5 - first].map(DaemonIndex) {
            let down = Change::Down { daemon, incarnation: 1, known: LastAllowed::UNKNOWN };
            membership.apply(&down).expect("it is up");
        }
        let owners = seats(&membership);
        assert!(owners.iter().all(|it| it.is_some_and(|owner| owner.0 < 2)), "{owners:?}");
    }
}

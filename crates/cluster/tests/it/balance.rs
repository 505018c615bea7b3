//! Homes that are exchanged for an even load: which, when, what it keeps, and what is refused.

use crate::policy::{add, down, returning, settle, up};
use cluster::change::{Change, Following, Tenure};
use cluster::exchange::Balancing;
use cluster::membership::{Membership, ServiceIndex};
use cluster::policy::{self, Loads};
use encoding::{Decode as _, Encode as _};
use proptest::prelude::*;
use std::collections::BTreeSet;
use wire::DaemonIndex;

fn balancing(membership: &Membership) -> Balancing {
    membership.balancing().expect("services have homes")
}

fn turn(membership: &mut Membership, is_on: bool) {
    let to = balancing(membership).turned(is_on);
    membership.apply(&Change::Balance { to }).expect("the next word");
}

fn ask(membership: &mut Membership) {
    let to = balancing(membership).with_request();
    membership.apply(&Change::Balance { to }).expect("the next word");
}

/// The input of a run of the policy.
#[derive(Clone, Copy)]
struct Look<'a> {
    weights: &'a [u64],
    resting: &'a BTreeSet<ServiceIndex>,
    hot_min: u64,
}

const NONE_RESTS: &BTreeSet<ServiceIndex> = &BTreeSet::new();

impl<'a> Look<'a> {
    const fn new(weights: &'a [u64]) -> Look<'a> {
        Look { weights, resting: NONE_RESTS, hot_min: 0 }
    }

    fn changes(self, membership: &Membership) -> Vec<Change> {
        let Look { weights, resting, hot_min } = self;
        let loads = Loads { weights, resting, may_move: true, may_retry: true, hot_min };
        policy::next_changes(membership, &loads, 64)
    }

    /// Applies what the policy asks for, and followers that come in sync at once, until it asks for
    /// nothing. The exchanges that it asked for; each lowers the higher load of both daemons.
    fn settle(self, membership: &mut Membership) -> Vec<(ServiceIndex, ServiceIndex)> {
        let mut exchanged = Vec::new();
        for _ in 0..10_000 {
            let joining = membership.services().find_map(|(service, seat)| {
                let of = Tenure { service, epoch: seat.epoch };
                let entry =
                    seat.followers.iter().find(|it| !it.is_in_sync && seat.owner.is_some())?;
                Some(Following { of, follower: entry.daemon, since: entry.since })
            });
            if let Some(of) = joining {
                membership.apply(&Change::InSync { of }).expect("it follows");
                continue;
            }
            let changes = self.changes(membership);
            if changes.is_empty() {
                return exchanged;
            }
            let before = loads(membership, self.weights);
            let exchanges = matches!(changes.first(), Some(Change::Exchange { .. }));
            for change in changes {
                membership.apply(&change).expect("the policy asks for what can be done");
                if let Change::Exchange { hot, cool } = change {
                    exchanged.push((hot.service, cool.service));
                }
                // The rest depends on it.
                if let Change::HandOver { .. } = change {
                    break;
                }
            }
            let after = loads(membership, self.weights);
            assert!(
                !exchanges || after.iter().max() <= before.iter().max(),
                "{before:?} {after:?}"
            );
        }
        panic!("the policy never rests: {membership:?}");
    }
}

/// Loads of the daemons when each service is where it goes.
fn loads(membership: &Membership, weights: &[u64]) -> Vec<u64> {
    let mut loads = vec![0; membership.daemons().count()];
    for (service, _) in membership.services() {
        let home = membership.next_home(service).or_else(|| membership.home(service));
        // Nobody measures: each weighs as much.
        let weight = weights.get(service.0 as usize).copied().unwrap_or(1);
        loads[usize::from(home.expect("a home").0)] += weight;
    }
    loads
}

fn homes(membership: &Membership) -> Vec<DaemonIndex> {
    membership.services().map(|it| membership.home(it.0).expect("a home")).collect()
}

/// Number of services that each daemon is the home of, if all are at home.
fn counts(membership: &Membership) -> Vec<usize> {
    let mut counts = vec![0; membership.daemons().count()];
    for (service, seat) in membership.services() {
        assert_eq!((seat.owner, membership.next_home(service)), (membership.home(service), None));
        counts[usize::from(seat.owner.expect("an owner").0)] += 1;
    }
    counts
}

#[test]
fn a_hot_daemon_gets_cooler_and_daemons_keep_their_number_of_services() {
    let mut membership = returning(3, 12);
    let weights: Vec<u64> = (0..12).map(|it| if it % 3 == 0 { 100 } else { 10 }).collect();
    assert_eq!(loads(&membership, &weights), [400, 40, 40]);
    assert!(Look::new(&weights).settle(&mut membership).is_empty(), "it is off at first");
    turn(&mut membership, true);
    let exchanged = Look::new(&weights).settle(&mut membership);
    assert_eq!((exchanged.len(), counts(&membership)), (2, vec![4; 3]));
    let mut after = loads(&membership, &weights);
    after.sort_unstable();
    assert_eq!(after, [130, 130, 220]);
    for service in 0..3 {
        assert!(!membership.has_moved(ServiceIndex(service)), "the first of each daemon stays");
    }
    for (hot, cool) in exchanged {
        assert!(membership.has_moved(hot) && membership.has_moved(cool));
    }
    // Nothing is left to gain.
    assert!(Look::new(&weights).changes(&membership).is_empty());
}

#[test]
fn one_look_is_done_once_whatever_rests_and_however_little_there_is_to_do() {
    let weights: Vec<u64> = (0..8).map(|it| if it % 2 == 0 { 50 } else { 1 }).collect();
    let all: BTreeSet<ServiceIndex> = (0..8).map(ServiceIndex).collect();
    let rests = Look { resting: &all, ..Look::new(&weights) };
    let is_cool = Look { hot_min: 201, ..Look::new(&weights) };
    for look in [rests, is_cool] {
        let mut membership = returning(2, 8);
        turn(&mut membership, true);
        assert!(look.settle(&mut membership).is_empty());
        turn(&mut membership, false);
        ask(&mut membership);
        let number = balancing(&membership).number;
        assert_eq!(look.settle(&mut membership).len(), 2);
        let answered = Balancing { number: number + 1, is_on: false, is_asked: false };
        assert_eq!(balancing(&membership), answered);
        assert_eq!(loads(&membership, &weights), [102, 102]);
    }
    // A daemon is hot from this load on.
    let mut membership = returning(2, 8);
    turn(&mut membership, true);
    let is_hot = Look { hot_min: 200, ..Look::new(&weights) };
    assert!(!is_hot.settle(&mut membership).is_empty());
    // Nobody has measured anything.
    let mut membership = returning(2, 8);
    ask(&mut membership);
    assert!(Look::new(&[]).settle(&mut membership).is_empty());
    assert!(!balancing(&membership).is_asked);
}

#[test]
fn a_look_while_a_daemon_is_away_finds_nothing() {
    let weights: Vec<u64> = (0..9).map(|it| if it % 3 == 0 { 50 } else { 1 }).collect();
    let mut membership = returning(3, 9);
    down(&mut membership, 2);
    ask(&mut membership);
    assert!(Look::new(&weights).settle(&mut membership).is_empty());
    assert!(!balancing(&membership).is_asked, "it is answered all the same");
    turn(&mut membership, true);
    assert!(Look::new(&weights).settle(&mut membership).is_empty());
    up(&mut membership, 2);
    assert!(!Look::new(&weights).settle(&mut membership).is_empty());
    assert_eq!(counts(&membership), [3; 3]);
}

/// After a death services return to the homes that they have now, not to their first ones.
#[test]
fn returns_and_exchanges_undo_nothing_of_each_other() {
    let weights: Vec<u64> = (0..12).map(|it| if it % 3 == 0 { 100 } else { 10 }).collect();
    let mut membership = returning(3, 12);
    turn(&mut membership, true);
    let look = Look::new(&weights);
    assert!(!look.settle(&mut membership).is_empty());
    let before = homes(&membership);
    for daemon in 0..3 {
        down(&mut membership, daemon);
        assert!(look.settle(&mut membership).is_empty());
        up(&mut membership, daemon);
        assert!(look.settle(&mut membership).is_empty());
        assert_eq!(homes(&membership), before);
    }
    // Off, it stays as it is, too.
    turn(&mut membership, false);
    assert!(look.settle(&mut membership).is_empty());
    assert_eq!((homes(&membership), counts(&membership)), (before, vec![4; 3]));
}

#[test]
fn an_exchange_with_a_daemon_that_dies_is_none() {
    let mut membership = returning(2, 4);
    turn(&mut membership, true);
    let changes = Look::new(&[10, 10, 1000, 10]).changes(&membership);
    assert_eq!(changes.len(), 0, "no exchange lowers the load of one hot service");
    let changes = Look::new(&[1000, 10, 1000, 10]).changes(&membership);
    let [exchange @ Change::Exchange { hot, cool }] = changes[..] else { panic!("{changes:?}") };
    assert_eq!((hot.service, cool.service), (ServiceIndex(2), ServiceIndex(3)));
    membership.apply(&exchange).expect("the policy asks for what can be done");
    assert_eq!(membership.next_home(ServiceIndex(2)), Some(DaemonIndex(1)));
    assert_eq!(membership.next_home(ServiceIndex(3)), Some(DaemonIndex(0)));
    down(&mut membership, 1);
    assert!((2..4).all(|it| membership.next_home(ServiceIndex(it)).is_none()));
    up(&mut membership, 1);
    turn(&mut membership, false);
    Look::new(&[]).settle(&mut membership);
    assert_eq!((counts(&membership), membership.has_moved(ServiceIndex(2))), (vec![2; 2], false));
}

#[test]
fn exchanges_and_words_that_cannot_be_are_refused() {
    let mut membership = returning(3, 9);
    let of = |membership: &Membership, service| {
        let service = ServiceIndex(service);
        Tenure { service, epoch: membership.seat(service).map_or(1, |it| it.epoch) }
    };
    let exchange = |membership: &Membership, hot, cool| Change::Exchange {
        hot: of(membership, hot),
        cool: of(membership, cool),
    };
    // The first of a daemon, one home, one that there is not, and a late epoch.
    for (hot, cool) in [(0, 4), (3, 1), (3, 6), (3, 3), (3, 9)] {
        let change = exchange(&membership, hot, cool);
        membership.apply(&change).expect_err("it cannot be");
    }
    let late = Tenure { epoch: of(&membership, 4).epoch + 1, ..of(&membership, 4) };
    let (hot, before) = (of(&membership, 3), membership.clone());
    membership.apply(&Change::Exchange { hot, cool: late }).expect_err("it is late");
    assert_eq!(membership, before, "neither of both goes anywhere");
    let change = exchange(&membership, 3, 4);
    membership.apply(&change).expect("both are at home");
    membership.apply(&change).expect_err("at once a second time");
    let other = exchange(&membership, 3, 5);
    membership.apply(&other).expect_err("it goes to another one");
    // Of two words at once one is made.
    let (on, asked) = (balancing(&membership).turned(true), balancing(&membership).with_request());
    membership.apply(&Change::Balance { to: on }).expect("the next word");
    membership.apply(&Change::Balance { to: on }).expect_err("at once a second time");
    membership.apply(&Change::Balance { to: asked }).expect_err("another word came in between");
    assert_eq!(Membership::from_bytes(&membership.to_bytes()), Ok(membership.clone()));
    let free = Membership::initial(&[0, 1, 2], 9, 1, false).expect("suitable");
    for mut other in [free.clone(), free.with_owners_that_stay()] {
        assert_eq!((other.balancing(), other.services_to_move()), (None, 0));
        other.apply(&Change::Balance { to: on }).expect_err("services have no homes");
        other.apply(&exchange(&other, 3, 4)).expect_err("services have no homes");
    }
}

proptest! {
    /// Whatever the loads are: no exchange makes it worse, it ends for good, and each daemon keeps its
    /// number of services, also while the instance grows.
    #[test]
    fn exchanges_come_to_rest(
        daemons in 2_u32..7, workers in 1_usize..6, added in 0_u16..3,
        weights in prop::collection::vec(0_u64..1000, 36..37), other in 0_usize..36,
    ) {
        let services = daemons as usize * workers;
        let mut membership = returning(daemons, services);
        turn(&mut membership, true);
        let look = Look::new(&weights);
        look.settle(&mut membership);
        prop_assert_eq!(counts(&membership), vec![workers; daemons as usize]);
        prop_assert!(look.changes(&membership).is_empty());
        let new = daemons as u16..daemons as u16 + added;
        new.for_each(|it| add(&mut membership, it, it.into()));
        look.settle(&mut membership);
        let counts = counts(&membership);
        // A daemon keeps its first service, so one of several may be left without any.
        let (most, least) = (counts.iter().max(), counts.iter().min());
        prop_assert!(most.zip(least).is_some_and(|(most, least)| most - least <= 1), "{:?}", counts);
        // A service that a noise of a hundredth moves does not go back without it.
        let mut noisy = weights.clone();
        noisy[other] += noisy[other] / 100;
        let before = homes(&membership);
        let again = Look::new(&noisy).settle(&mut membership);
        Look::new(&weights).settle(&mut membership);
        prop_assert!(again.is_empty() || homes(&membership) != before);
    }

    /// The services that are said to move do, and no others.
    #[test]
    fn services_that_move_to_new_daemons_are_known_before(
        daemons in 2_u32..6, workers in 1_usize..6, added in 0_u16..5,
    ) {
        let mut membership = returning(daemons, daemons as usize * workers);
        prop_assert_eq!(membership.services_to_move(), 0);
        let new = daemons as u16..daemons as u16 + added;
        new.for_each(|it| add(&mut membership, it, it.into()));
        let (expected, before) = (membership.services_to_move(), homes(&membership));
        // Some steps later it is as many, less those that are there.
        for _ in 0..3 {
            if let Some(change) = Look::new(&[]).changes(&membership).first() {
                membership.apply(change).expect("the policy asks for what can be done");
            }
        }
        prop_assert_eq!(membership.services_to_move(), expected);
        settle(&mut membership, &[]);
        let moved = homes(&membership).iter().zip(&before).filter(|(now, before)| now != before).count();
        prop_assert_eq!((moved, membership.services_to_move()), (expected, 0));
    }
}

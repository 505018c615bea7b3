//! Clusters of daemons in virtual time: `world` runs the nodes, `faults` disturbs them, and every
//! run ends with a time without faults in which everything must come right.
#![allow(missing_docs, reason = "tests")]

mod balance;
mod bytes;
mod consensus;
mod faults;
mod homes;
mod policy;
mod shipping;
mod units;
mod world;

use faults::Faults;
use world::{Balanced, Counts, Setup, World};

/// Runs seeds of one setup.
fn campaign(name: &str, rounds: u64, setup: impl Fn(u64) -> (Setup, Faults)) -> Counts {
    runs(name, rounds, |seed| {
        let (setup, faults) = setup(seed);
        World::new(setup, seed).run(&faults)
    })
}

#[expect(clippy::print_stdout, reason = "shown by `--nocapture`")]
fn runs(name: &str, rounds: u64, run: impl Fn(u64) -> Counts) -> Counts {
    let counts = testkit::world::campaign(name, rounds, run);
    println!("{name}: {counts:?}");
    counts
}

/// Whether there are so many runs that each kind of event is among them.
fn is_sample() -> bool {
    testkit::rounds(100) >= 20
}

const QUIET: Faults = Faults::NONE;

fn setup(daemons: u16, followers: u8) -> Setup {
    let (services, domains) = (daemons.into(), daemons.into());
    let (returns, unable, balances, copies, units) = (false, false, false, 0, 2);
    Setup { daemons, followers, services, domains, returns, copies, units, unable, balances }
}

#[test]
fn a_cluster_without_faults_gets_its_followers() {
    campaign("quiet", 20, |seed| (setup(1 + (seed % 7) as u16, u8::from(seed % 7 > 0)), QUIET));
}

#[test]
fn processes_die_and_return() {
    campaign("kills", 200, |seed| {
        let daemons = 3 + (seed % 5) as u16;
        (setup(daemons, 1 + (seed % 2) as u8), Faults { kills: 6, ..QUIET })
    });
}

#[test]
fn networks_are_cut_in_all_ways() {
    campaign("cuts", 200, |seed| {
        let faults = Faults { cuts: 6, one_way_cuts: 6, loss_percent: 5, ..QUIET };
        (setup(3 + (seed % 5) as u16, 1), faults)
    });
}

#[test]
fn processes_stand_still_and_go_on() {
    campaign("pauses", 200, |seed| {
        (setup(3 + (seed % 5) as u16, 1), Faults { pauses: 8, loss_percent: 2, ..QUIET })
    });
}

#[test]
fn a_node_is_lost_with_all_that_it_has() {
    campaign("losses", 150, |seed| {
        (setup(4 + (seed % 4) as u16, 1), Faults { losses: 3, loss_percent: 2, ..QUIET })
    });
}

/// The one that takes services over is dead, too, and nobody knows it yet: the third copy is enough.
#[test]
fn two_nodes_are_lost_at_nearly_the_same_time() {
    let counts = campaign("double losses", 60, |seed| {
        let faults = Faults { double_losses: 2, loss_percent: seed % 4, ..QUIET };
        let daemons = 5 + (seed % 4) as u16;
        let services = (1 + seed as usize % 3) * usize::from(daemons);
        let returns = seed.is_multiple_of(2);
        (Setup { services, returns, ..setup(daemons, 2) }, faults)
    });
    assert!(counts.passed_over > 0 || !is_sample(), "some never acted: {counts:?}");
}

#[test]
fn voters_are_replaced() {
    let counts = campaign("voters", 180, |seed| {
        let faults = Faults {
            absences: 3,
            kills: 2,
            cuts: 2,
            one_way_cuts: 2,
            pauses: 2,
            crashes: 3,
            losses: seed % 3,
            loss_percent: seed % 8,
            ..QUIET
        };
        (setup(4 + (seed % 5) as u16, 1), faults)
    });
    assert!(counts.voters > 0 || !is_sample(), "voters changed");
}

#[test]
fn leases_of_older_voters_end_before_others_serve() {
    let counts =
        runs("older leases", 60, |seed| World::new(setup(7, 1), seed).run_with_older_lease());
    assert!(counts.voters > 0 || !is_sample(), "voters changed");
}

#[test]
fn an_instance_grows_and_shrinks() {
    let counts = campaign("growth", 150, |seed| {
        let faults = Faults {
            grows: 1 + seed % 5,
            leaves: seed % 4,
            kills: seed % 3,
            cuts: seed % 2,
            crashes: 1,
            loss_percent: 2,
            ..QUIET
        };
        let daemons = 1 + (seed % 6) as u16;
        let followers = u8::from(daemons > 1 && !seed.is_multiple_of(5));
        let services = 4 * usize::from(daemons);
        (Setup { domains: 12, services, ..setup(daemons, followers) }, faults)
    });
    assert!(counts.voters > 0 || !is_sample(), "voters changed");
}

#[test]
fn a_hot_daemon_is_relieved_and_nothing_moves_to_and_fro() {
    runs("hot", 6, |seed| {
        let daemons = 3 + (seed % 3) as u16;
        let services = 4 * usize::from(daemons);
        let setup = Setup { services, ..setup(daemons, (seed % 2) as u8) };
        World::new(setup, seed).relieves_a_hot_daemon();
        Counts::default()
    });
}

#[test]
fn a_follower_that_returns_gets_the_records_since() {
    let counts = campaign("returns", 150, |seed| {
        let faults = Faults {
            kills: 4,
            absences: seed % 2,
            pauses: 4,
            cuts: 2,
            crashes: 2,
            moves: seed % 3,
            loss_percent: seed % 5,
            ..QUIET
        };
        (setup(3 + (seed % 2) as u16, 1 + (seed / 4 % 2) as u8), faults)
    });
    let have_happened = counts.resumed > 0 && counts.snapshots > 0;
    assert!(have_happened || !is_sample(), "both happen: {counts:?}");
}

#[test]
fn services_move_while_faults_happen() {
    campaign("moves", 250, |seed| {
        let faults = Faults { moves: 5, kills: 3, pauses: 3, cuts: 2, loss_percent: 3, ..QUIET };
        (setup(4 + (seed % 4) as u16, (seed % 3) as u8), faults)
    });
}

#[test]
fn owners_that_cannot_serve_resign() {
    let counts = campaign("unable", 150, |seed| {
        let faults = Faults {
            kills: 4,
            cuts: 2,
            pauses: 2,
            crashes: 2,
            moves: seed % 3,
            loss_percent: seed % 4,
            ..QUIET
        };
        let returns = seed.is_multiple_of(2);
        let followers = 1 + (seed / 2 % 2) as u8;
        (Setup { unable: true, returns, ..setup(4 + (seed % 3) as u16, followers) }, faults)
    });
    assert!(counts.unable > 0 || !is_sample(), "it happened: {counts:?}");
}

#[test]
fn services_return_to_their_first_owners() {
    let counts = campaign("homes", 200, |seed| {
        let faults = Faults {
            kills: 5,
            absences: seed % 2,
            pauses: 2,
            cuts: 2,
            one_way_cuts: 1,
            crashes: 2,
            losses: seed / 2 % 2,
            loss_percent: seed % 5,
            ..QUIET
        };
        let daemons = 4 + (seed % 4) as u16;
        // In some instances two daemons are in each domain.
        let domains = u32::from(daemons) / (1 + (seed / 4 % 2) as u32);
        let services = 2 * usize::from(daemons);
        (Setup { services, domains, returns: true, ..setup(daemons, 1) }, faults)
    });
    assert!(counts.kept > 0 || !is_sample(), "they are handed over: {counts:?}");
}

#[test]
fn homes_move_to_new_daemons_and_from_those_that_leave() {
    let counts = campaign("new homes", 100, |seed| {
        let faults = Faults {
            grows: 1 + seed % 5,
            leaves: seed / 2 % 4,
            kills: seed % 4,
            pauses: seed / 3 % 2,
            cuts: seed % 2,
            one_way_cuts: seed / 4 % 2,
            crashes: 1,
            absences: seed / 5 % 2,
            loss_percent: seed % 4,
            ..QUIET
        };
        let daemons = 3 + (seed % 4) as u16;
        let services = 3 * usize::from(daemons);
        let followers = 1 + u8::from(seed.is_multiple_of(4));
        // None, two, or some files with three and some with two.
        let copies = [2, 0, 0, 3, 0, 0][(seed % 6) as usize];
        let domains = if seed.is_multiple_of(5) { 3 } else { 12 };
        (Setup { domains, services, copies, returns: true, ..setup(daemons, followers) }, faults)
    });
    assert!(counts.homes > 0 || !is_sample(), "homes change: {counts:?}");
}

#[test]
fn processes_die_at_each_step_of_growth_and_of_departures() {
    let counts = campaign("steps", 150, |seed| {
        let faults = Faults {
            grows: 1 + seed % 3,
            leaves: 1 + seed / 3 % 3,
            steps: 8,
            crashes: seed % 2,
            loss_percent: seed % 3,
            ..QUIET
        };
        let daemons = 3 + (seed % 4) as u16;
        let services = 3 * usize::from(daemons);
        let followers = 1 + u8::from(seed.is_multiple_of(4));
        let copies = 2 * u8::from(seed.is_multiple_of(3));
        (
            Setup { domains: 12, services, copies, returns: true, ..setup(daemons, followers) },
            faults,
        )
    });
    let is_each = counts.kills_at_steps.iter().all(|&kills| kills > 0);
    assert!(is_each || !is_sample(), "at each step: {counts:?}");
}

/// Loads change, homes are exchanged for them, by the setting and by looks that are asked for, and
/// daemons keep their number of services, whatever happens beside it.
#[test]
fn homes_are_exchanged_for_an_even_load() {
    let counts = campaign("balance", 150, |seed| {
        let faults = Faults {
            moves: 3 + seed % 3,
            kills: seed % 4,
            cuts: seed % 3,
            one_way_cuts: seed / 2 % 2,
            pauses: seed / 3 % 2,
            crashes: seed / 4 % 3,
            absences: seed / 5 % 2,
            losses: seed / 7 % 2,
            grows: seed / 3 % 2,
            leaves: seed / 6 % 2,
            loss_percent: seed % 5,
            ..QUIET
        };
        let daemons = 3 + (seed % 4) as u16;
        let services = (2 + seed as usize % 3) * usize::from(daemons);
        let copies = 2 * u8::from(seed.is_multiple_of(5));
        let followers = 1 + u8::from(seed.is_multiple_of(4));
        let setup = Setup { domains: 12, services, copies, ..setup(daemons, followers) };
        (Setup { returns: true, balances: true, ..setup }, faults)
    });
    assert!(counts.homes > 0 || !is_sample(), "homes are exchanged: {counts:?}");
}

/// Loads that stay as they are, but for the noise of each measure, move services once. Now and then noise
/// makes a small gain look like a tenth later.
#[test]
fn exchanges_end_where_loads_stay() {
    let first = testkit::seed(1);
    let mut all = Balanced::default();
    for seed in first..first + testkit::rounds(8) {
        let daemons = 2 + (seed % 5) as u16;
        let services = (2 + seed as usize % 4) * usize::from(daemons);
        let setup = Setup { domains: 12, services, ..setup(daemons, 1) };
        let setup = Setup { returns: true, balances: true, ..setup };
        let balanced = World::new(setup, seed).balance_of_a_quiet_time();
        testkit::show(&format!("{balanced:?}"));
        // Each load is measured with a fifth more or less than it is.
        assert!(5 * balanced.after <= 6 * balanced.before, "seed {seed}: {balanced:?}");
        all.before += balanced.before;
        all.after += balanced.after;
        all.moves += balanced.moves;
        all.late_moves += balanced.late_moves;
    }
    let is_calm = all.after < all.before && 4 * all.late_moves <= all.moves;
    assert!(is_calm || !is_sample(), "{all:?}");
}

#[test]
fn everything_at_once() {
    campaign("all", 350, |seed| {
        let faults = Faults {
            kills: 4,
            cuts: 4,
            one_way_cuts: 4,
            pauses: 4,
            moves: 3,
            crashes: 3,
            loss_percent: 10,
            ..QUIET
        };
        (setup(3 + (seed % 6) as u16, 1 + (seed % 2) as u8), faults)
    });
}

#[test]
fn a_unit_has_one_primary_at_a_time() {
    campaign("units", 150, |seed| {
        let faults = Faults {
            kills: 4,
            cuts: 3,
            one_way_cuts: 3,
            pauses: 3,
            crashes: 2,
            absences: seed % 2,
            grows: seed % 3,
            leaves: seed / 3 % 2,
            loss_percent: seed % 6,
            ..QUIET
        };
        let daemons = 3 + (seed % 5) as u16;
        let copies = 2 + (seed / 5 % 2) as u8;
        (Setup { domains: 12, copies, ..setup(daemons, 1) }, faults)
    });
}

#[test]
fn a_hundred_daemons_in_racks() {
    campaign("large", 2, |seed| {
        let faults = Faults { kills: 10, cuts: 5, pauses: 5, moves: 2, loss_percent: 3, ..QUIET };
        let daemons = 60 + (seed % 2) as u16 * 40;
        let racks = u32::from(daemons) / 10;
        (Setup { services: usize::from(daemons) * 2, domains: racks, ..setup(daemons, 1) }, faults)
    });
}

#[test]
fn growth_and_shrinking_stop_no_service_for_long() {
    let mut all = Vec::new();
    let first = testkit::seed(1);
    for seed in first..first + testkit::rounds(10) {
        let daemons = 1 + (seed % 5) as u16;
        let services = 4 * usize::from(daemons);
        let returns = daemons > 1 && seed.is_multiple_of(2);
        let followers = u8::from(daemons > 1);
        let setup = Setup { domains: 16, services, returns, ..setup(daemons, followers) };
        all.extend(World::new(setup, seed).stalls_of_growth());
    }
    all.sort_unstable();
    let (median, longest) = (all[all.len() / 2], all[all.len() - 1]);
    let millis = |nanos: i64| nanos / 1_000_000;
    testkit::show(&format!("growth: median {} ms, longest {} ms", millis(median), millis(longest)));
    assert!(longest < 300_000_000, "{all:?}");
}

/// How many times as long as one service, or as one unit, all of them take depends on what goes on at
/// once.
#[test]
fn growth_and_departures_are_no_longer_than_their_steps() {
    let mut all = Vec::new();
    let first = testkit::seed(1);
    for seed in first..first + testkit::rounds(3) {
        let setup =
            Setup { domains: 16, services: 24, copies: 2, units: 64, returns: true, ..setup(4, 1) };
        let pace = World::new(setup, seed).pace_of_growth(2);
        testkit::show(&format!("{pace:?}"));
        all.extend([pace.growth, pace.departure].map(|it| it.services.max(it.units)));
    }
    all.sort_unstable();
    assert!(all[all.len() - 1] < 5_000_000_000, "{all:?}");
}

/// A busy machine: an owner is given more time with each attempt, so in the end it is enough.
#[test]
fn services_that_take_long_to_stand_still_are_handed_over() {
    let first = testkit::seed(1);
    for seed in first..first + testkit::rounds(3) {
        let setup = Setup { domains: 16, services: 12, returns: true, ..setup(3, 1) };
        let mut world = World::new(setup, seed);
        world.still_after = Some(1_500_000_000);
        let pace = world.pace_of_growth(1);
        testkit::show(&format!("{pace:?}"));
        assert!(pace.growth.services > 2_500_000_000, "an attempt of a second is too short");
    }
}

#[test]
fn beats_of_a_thousand_daemons_are_spread() {
    let setup = Setup { domains: 40, ..setup(1000, 1) };
    let (most, mean) = World::new(setup, testkit::seed(1)).beats_of_a_quiet_time();
    assert!(mean > 100 && most < 2 * mean, "{most} beats in 50 ms, of {mean} in the mean");
}

#[test]
fn most_failovers_take_less_than_a_second() {
    let mut all = Vec::new();
    let first = testkit::seed(1);
    for seed in first..first + testkit::rounds(30) {
        let daemons = 3 + (seed % 6) as u16;
        let killed = (seed % u64::from(daemons)) as u16;
        all.extend(World::new(setup(daemons, 1), seed).stalls_after_kill(killed));
    }
    all.sort_unstable();
    let millis = |nanos: i64| nanos / 1_000_000;
    let (median, longest) = (millis(all[all.len() / 2]), millis(all[all.len() - 1]));
    testkit::show(&format!("failovers: median {median} ms, longest {longest} ms"));
    // Where a late message disturbs the election of a new leader there is another one.
    assert!(all[all.len() * 95 / 100] < 1_000_000_000, "{all:?}");
    assert!(all[all.len() - 1] < 3_000_000_000, "{all:?}");
}

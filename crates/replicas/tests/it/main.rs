//! Copies of data in virtual time: `world` runs the nodes, `faults` disturbs them, `checks`
//! compares what clients see, and every run ends with a time without faults in which everything
//! must come right.
#![allow(missing_docs, reason = "tests")]

mod alone;
mod backing;
mod bytes;
mod checks;
mod clean;
mod clients;
mod faults;
mod host;
mod registry;
mod steps;
mod successor;
mod table;
mod windows;
mod world;

use faults::Faults;
use replicas::node::Window;
use world::{Setup, Tally, World};

/// Runs seeds of one setup.
#[expect(clippy::print_stdout, reason = "shown by `--nocapture`")]
fn campaign(name: &str, rounds: u64, setup: impl Fn(u64) -> (Setup, Faults)) -> Tally {
    let tally = testkit::world::campaign(name, rounds, |seed| {
        let (setup, faults) = setup(seed);
        World::new(setup, seed).run(&faults)
    });
    println!("{name}: {tally:?}");
    tally
}

const QUIET: Faults = Faults::NONE;

/// Three to eight daemons in as many failure domains, with two copies, three, or both.
fn setup(seed: u64) -> Setup {
    let goals: &[u8] = [&[2][..], &[3], &[3, 2]][(seed % 3) as usize];
    let daemons = 3 + (seed / 3 % 6) as u16;
    let files = 2 + seed % 7;
    Setup {
        daemons,
        domains: daemons.into(),
        goals,
        files,
        may_lose: false,
        windows: windows(seed),
        pause: pause(seed),
    }
}

/// Time between two looks of a writeback: some are always behind.
fn pause(seed: u64) -> i64 {
    [50, 200, 1500][(seed / 7 % 3) as usize] * testkit::world::MILLI
}

/// The usual windows, and some in which little has place: three cells, fewer than some writes have.
fn windows(seed: u64) -> (Window, Window) {
    let small = |operations| Window { operations, bytes: 3 * world::CELL };
    match seed % 5 {
        0 => (Window::CLIENT, small(3)),
        1 => (small(2), Window::PEER),
        _ => (Window::CLIENT, Window::PEER),
    }
}

#[test]
fn clients_read_what_they_wrote() {
    let tally = campaign("quiet", 20, |seed| (setup(seed), QUIET));
    assert_eq!((tally.failed, tally.unavailable, tally.corrupt), (0, 0, 0));
    assert!(tally.reads_at_copies > 0);
}

#[test]
fn processes_die_and_return() {
    let tally =
        campaign("kills", 350, |seed| (setup(seed), Faults { kills: 5, loss_percent: 3, ..QUIET }));
    // A client that lives has its bytes: whatever dies, its requests are made.
    assert_eq!((tally.failed, tally.corrupt), (0, 0));
}

#[test]
fn one_process_dies() {
    let tally = campaign("one kill", 60, |seed| (setup(seed), Faults { kills: 1, ..QUIET }));
    assert_eq!((tally.failed, tally.unavailable, tally.corrupt), (0, 0, 0));
    assert!(tally.longest < 2_000_000_000, "an operation took {} ns", tally.longest);
}

#[test]
fn networks_are_cut_in_all_ways() {
    campaign("cuts", 300, |seed| {
        let faults = Faults { cuts: 3, unheard: 3, one_way_cuts: 6, loss_percent: 3, ..QUIET };
        (setup(seed), faults)
    });
}

#[test]
fn copies_are_read_while_their_daemons_are_declared_dead() {
    campaign("unheard", 200, |seed| {
        let setup = Setup { files: 2, ..setup(seed) };
        (setup, Faults { unheard: 8, loss_percent: 4, ..QUIET })
    });
}

#[test]
fn processes_stand_still_and_links_are_slow() {
    campaign("pauses", 250, |seed| {
        (setup(seed), Faults { pauses: 4, slow: 4, loss_percent: 2, ..QUIET })
    });
}

#[test]
fn bytes_flip_and_clients_die() {
    let tally = campaign("flips", 250, |seed| {
        (setup(seed), Faults { flips: 8, clients: 3, kills: 2, ..QUIET })
    });
    assert!(tally.repairs > 0);
}

#[test]
fn a_node_is_lost_with_all_that_it_has() {
    campaign("losses", 100, |seed| {
        (setup(seed), Faults { losses: (2, 1), kills: 1, loss_percent: 1, ..QUIET })
    });
}

/// A process that starts again with what it had, before anyone missed it, has every acknowledged byte: a
/// node that is lost then takes nothing with it, however much of the copies was looked at.
#[test]
fn a_node_is_lost_after_another_process_has_started_again() {
    campaign("restarts", 100, |seed| {
        let setup = Setup { files: 12, ..setup(seed) };
        (setup, Faults { restarts: 2, ..QUIET })
    });
}

#[test]
fn all_copies_are_lost() {
    let tally = campaign("all lost", 60, |seed| {
        let setup = Setup { may_lose: true, goals: &[2], ..setup(seed) };
        (setup, Faults { losses: (2, 2), ..QUIET })
    });
    assert!(tally.lost > 0 && tally.listed > 0 && tally.spared > 0);
}

#[test]
fn memory_is_returned_in_pairs() {
    let tally = campaign("returns", 60, |seed| {
        let setup = Setup { daemons: 6, domains: 6, goals: &[2], ..setup(seed) };
        (setup, Faults { returns: 1, loss_percent: 1, ..QUIET })
    });
    // The primary has its clients to serve.
    assert!(tally.filled_by_copies > tally.filled_by_primaries);
}

/// Any daemon dies in any step: the one that gives its memory back, the one that takes a copy, and
/// others.
#[test]
fn memory_is_reclaimed_and_lent_again_while_processes_die() {
    let tally = campaign("reclaims", 40, |seed| {
        let setup = Setup { files: 12, ..setup(seed) };
        (setup, Faults { reclaims: 2, loss_percent: 2, ..QUIET })
    });
    assert_eq!((tally.failed, tally.corrupt), (0, 0));
    assert!(tally.bytes_filled > 0);
}

#[test]
fn everything_at_once() {
    campaign("all", 350, |seed| {
        let faults = Faults {
            kills: 3,
            cuts: 2,
            unheard: 2,
            one_way_cuts: 3,
            pauses: 2,
            slow: 2,
            flips: 3,
            clients: 2,
            floods: 0,
            losses: (0, 0),
            restarts: 0,
            returns: 0,
            reclaims: 0,
            loss_percent: 5,
        };
        (setup(seed), faults)
    });
}

#[test]
fn clients_and_peers_send_too_much() {
    let tally = campaign("floods", 60, |seed| {
        let setup = Setup { files: 6, ..setup(seed) };
        (setup, Faults { floods: 4, kills: seed % 3, ..QUIET })
    });
    assert!(tally.busy > 0);
}

#[test]
fn many_daemons_in_racks() {
    campaign("racks", 4, |seed| {
        let daemons = 24 + (seed % 2) as u16 * 16;
        let windows = (Window::CLIENT, Window::PEER);
        let setup = Setup { daemons, domains: 8, goals: &[3], files: 24, windows, ..setup(seed) };
        (setup, Faults { kills: 8, cuts: 3, pauses: 3, slow: 3, loss_percent: 2, ..QUIET })
    });
}

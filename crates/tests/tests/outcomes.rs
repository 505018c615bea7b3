//! What services of other hosts remember of programs, so that they recognise what is repeated, is
//! forgotten when the programs are gone: in the ordinary course, when the daemon that remembers was away
//! meanwhile, and when the programs' own daemon was killed with them. What living programs may repeat
//! stays.
//!
//! Needs root for network namespaces; without, the tests say so and state nothing.

mod support;

use support::agent::{Agent, signal};
use support::wait_for;
use support::world::World;

/// Programs, as many for a directory of each host.
const MANY: &str =
    r#"for n in $(seq 12); do for d in 0 1 2; do mkdir /forebay/d$d/$1$n; done; done"#;

/// Of how many origins the daemons of hosts "b" and "c" remember something.
fn remembered(world: &World) -> [u64; 2] {
    let of = |host| world.daemon(host)["state"]["outcomes"].as_u64().expect("a number");
    ["b", "c"].map(of)
}

fn world() -> Option<World> {
    let world = World::started(&[("FOREBAY_TIMEOUT", "5s")])?;
    // Directories in the root are of one shard after the other, and so of one host after the other.
    world.shell("a", "for d in 0 1 2; do mkdir /forebay/d$d; done", "");
    Some(world)
}

#[test]
fn what_is_remembered_of_programs_is_forgotten_when_they_are_gone() {
    let Some(world) = world() else { return };
    let mut stays = Agent::preloaded(&world, "a", "/forebay");
    (0..3).for_each(|number| {
        stays.ok(&format!("mkdir d{number}/stays"));
    });
    world.shell("a", MANY, "x");
    let most = remembered(&world);
    assert!(most.iter().all(|count| *count > 3), "those of the last seconds are: {most:?}");
    wait_for("all but the living to be forgotten", || remembered(&world) == [1, 1]);
    // A daemon that starts again has in its log what it remembered, and is told what ended meanwhile.
    world.shell("a", MANY, "y");
    assert!(remembered(&world)[0] > 3);
    signal(world.pid("b"), "-KILL");
    drop(stays);
    world.start();
    wait_for("all to be forgotten", || remembered(&world) == [0, 0]);
    world.end();
}

#[test]
fn what_is_remembered_of_programs_is_forgotten_though_their_daemon_was_killed() {
    let Some(world) = world() else { return };
    let mut lives = Agent::preloaded(&world, "a", "/forebay");
    world.shell("a", MANY, "x");
    signal(world.pid("a"), "-KILL");
    let most = remembered(&world);
    assert!(most.iter().all(|count| *count > 3), "those of the last seconds are: {most:?}");
    world.start();
    lives.ok("mkdir d1/later");
    drop(lives);
    wait_for("all to be forgotten", || remembered(&world) == [0, 0]);
    world.end();
}

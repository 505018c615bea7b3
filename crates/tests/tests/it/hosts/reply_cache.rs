//! Reply caches of remote services, which recognise repeated requests of programs, are dropped when
//! the programs end: normally, when the caching daemon was away meanwhile, and when the programs'
//! own daemon was killed with them. Entries of living programs stay.
//!
//! Needs root for network namespaces; without it the tests are skipped.

use crate::support::agent::{Agent, signal};
use crate::support::wait_for;
use crate::support::world::World;

/// Several programs, the same number for a directory of each host.
const MANY: &str =
    r#"for n in $(seq 12); do for d in 0 1 2; do mkdir /forebay/d$d/$1$n; done; done"#;

/// Number of clients of which the daemons of hosts "b" and "c" have reply cache entries.
fn remembered(world: &World) -> [u64; 2] {
    let of = |host| world.daemon(host)["state"]["reply_cache_entries"].as_u64().expect("a number");
    ["b", "c"].map(of)
}

fn world() -> Option<World> {
    let world = World::started(&[("FOREBAY_TIMEOUT", "5s")])?;
    // Directories in the root are on the shards in turn, and so on the hosts in turn.
    world.shell("a", "for d in 0 1 2; do mkdir /forebay/d$d; done", "");
    Some(world)
}

#[test]
fn reply_cache_entries_are_dropped_when_programs_end() {
    let Some(world) = world() else { return };
    let mut stays = Agent::preloaded(&world, "a", "/forebay");
    (0..3).for_each(|number| {
        stays.ok(&format!("mkdir d{number}/stays"));
    });
    world.shell("a", MANY, "x");
    let most = remembered(&world);
    assert!(most.iter().all(|count| *count > 3), "of the last seconds: {most:?}");
    wait_for("the entries of dead programs to be dropped", || remembered(&world) == [1, 1]);
    // A restarted daemon restores its reply cache from its log, and learns which programs ended
    // meanwhile.
    world.shell("a", MANY, "y");
    assert!(remembered(&world)[0] > 3);
    signal(world.pid("b"), "-KILL");
    drop(stays);
    world.start();
    wait_for("all entries to be dropped", || remembered(&world) == [0, 0]);
    world.end();
}

#[test]
fn reply_cache_entries_are_dropped_though_the_programs_daemon_was_killed() {
    let Some(world) = world() else { return };
    let mut lives = Agent::preloaded(&world, "a", "/forebay");
    world.shell("a", MANY, "x");
    signal(world.pid("a"), "-KILL");
    let most = remembered(&world);
    assert!(most.iter().all(|count| *count > 3), "of the last seconds: {most:?}");
    world.start();
    lives.ok("mkdir d1/later");
    drop(lives);
    wait_for("all entries to be dropped", || remembered(&world) == [0, 0]);
    world.end();
}

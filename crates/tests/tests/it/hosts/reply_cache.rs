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

/// Waits until a condition holds that each round may make true.
fn repeat_until(what: &str, mut holds: impl FnMut(u32) -> bool) {
    let mut rounds = 0..;
    wait_for(what, || rounds.next().is_some_and(&mut holds));
}

#[test]
fn reply_cache_entries_are_dropped_when_programs_end() {
    let Some(world) = world() else { return };
    let mut stays = Agent::preloaded(&world, "a", "/forebay");
    (0..3).for_each(|number| {
        stays.ok(&format!("mkdir d{number}/stays"));
    });
    // The daemons look every five seconds which programs ended, at any moment.
    repeat_until("entries of the last seconds", |round| {
        world.shell("a", MANY, &format!("x{round}."));
        remembered(&world).iter().all(|count| *count > 3)
    });
    wait_for("the entries of dead programs to be dropped", || remembered(&world) == [1, 1]);
    // A restarted daemon restores its reply cache from its log, and learns which programs ended
    // meanwhile.
    repeat_until("entries of the last seconds", |round| {
        world.shell("a", MANY, &format!("y{round}."));
        remembered(&world)[0] > 3
    });
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
    repeat_until("entries of the last seconds", |round| {
        world.shell("a", MANY, &format!("x{round}."));
        signal(world.pid("a"), "-KILL");
        let is_found = remembered(&world).iter().all(|count| *count > 3);
        world.start();
        is_found
    });
    lives.ok("mkdir d1/later");
    drop(lives);
    wait_for("all entries to be dropped", || remembered(&world) == [0, 0]);
    world.end();
}

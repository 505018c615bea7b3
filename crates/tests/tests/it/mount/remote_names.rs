//! Names of remote directories in the cache of a mount's kernel: the kernel sends no further
//! request, changes invalidate its entries, and a mount that is dead, stopped or disconnected, or a
//! daemon that restarts, delays others only briefly. Network namespaces need root, a mount needs
//! `/dev/fuse`; without them the tests are skipped.

use crate::support::agent::{Agent, Mount, signal};
use crate::support::in_time;
use crate::support::world::{World, ip};

/// The root's names are on the first host.
fn world() -> Option<World> {
    World::started(&[("FOREBAY_CONSISTENCY", "posix"), ("FOREBAY_TIMEOUT", "10s")])
}

/// Renames a file between two names: the call is bounded although a mount does not answer.
fn swap(agent: &mut Agent, from: &str, to: &str) {
    in_time("a rename", || drop(agent.ok(&format!("rename {from} {to}"))));
}

/// Renames a file back and forth so often that the test times out if each call waits for the mount.
fn swap_many(agent: &mut Agent, from: &str, to: &str) {
    in_time("renames that wait once", || {
        for _ in 0..20 {
            agent.ok(&format!("rename {from} {to}"));
            agent.ok(&format!("rename {to} {from}"));
        }
    });
}

#[test]
fn remote_names_are_cached_and_changes_are_seen_at_once() {
    let Some(world) = world() else { return };
    let Some(mount) = Mount::new(&world, "b") else { return };
    let (mut remote, mut local) = (Agent::on(&mount), Agent::preloaded(&world, "a", "/forebay"));
    local.ok("mkdir d");
    local.ok("open f d/f c");
    local.ok("close f");
    remote.ok("stat d/f");
    assert_eq!(remote.ask("stat d/absent"), "!2");
    let before = world.requests("b");
    for _ in 0..500 {
        remote.ok("stat d/f");
        assert_eq!(remote.ask("stat d/absent"), "!2");
    }
    let requested = world.requests("b") - before;
    assert!(requested < 200, "{requested} requests for 1000 lookups");
    for round in 0..50 {
        local.ok(&format!("truncate d/f {round}"));
        assert_eq!(remote.ok("stat d/f"), round.to_string());
        swap(&mut local, "d/f", "d/absent");
        assert_eq!(
            (remote.ask("stat d/f"), remote.ok("stat d/absent")),
            ("!2".into(), round.to_string())
        );
        swap(&mut remote, "d/absent", "d/f");
        assert_eq!(
            (local.ask("stat d/absent"), local.ok("stat d/f")),
            ("!2".into(), round.to_string())
        );
    }
    drop((remote, local, mount));
    world.end();
}

/// "A mount that does not answer delays others by 4.5 seconds at most" (docs/semantics/mounts.md).
#[test]
fn an_unreachable_mount_delays_others_only_briefly() {
    let Some(world) = world() else { return };
    let Some(mount) = Mount::new(&world, "b") else { return };
    let (mut remote, mut local) = (Agent::on(&mount), Agent::preloaded(&world, "a", "/forebay"));
    local.ok("open f f c");
    local.ok("close f");
    remote.ok("stat f");
    assert_eq!(remote.ask("stat g"), "!2");

    signal(mount.pid, "-STOP");
    swap(&mut local, "f", "g");
    signal(mount.pid, "-CONT");
    assert_eq!(remote.ask("stat f"), "!2", "it continues with the current state");
    remote.ok("stat g");

    let link = |how: &str| {
        assert!(ip(&format!("-n {}b link set eth0 {how}", world.prefix)), "ip link set {how}");
    };
    link("down");
    swap(&mut local, "g", "f");
    // No stale result is returned: the request waits and is answered when it can be.
    remote.begin("stat g");
    link("up");
    assert_eq!(remote.reply(), "!2");
    remote.ok("stat f");

    mount.kill();
    swap_many(&mut local, "f", "g");
    drop((remote, local, mount));
    world.end();
}

#[test]
fn a_restarted_service_changes_nothing_that_kernels_still_cache() {
    let Some(world) = world() else { return };
    let Some(mount) = Mount::new(&world, "b") else { return };
    let (mut remote, mut local) = (Agent::on(&mount), Agent::preloaded(&world, "a", "/forebay"));
    local.ok("open f f c");
    local.ok("close f");
    for round in 0..3 {
        let (from, to) = if round % 2 == 0 { ("f", "g") } else { ("g", "f") };
        remote.ok(&format!("stat {from}"));
        assert_eq!(remote.ask(&format!("stat {to}")), "!2");
        signal(world.pid("a"), "-KILL");
        world.start();
        local.ok(&format!("rename {from} {to}"));
        assert_eq!(remote.ask(&format!("stat {from}")), "!2");
        remote.ok(&format!("stat {to}"));
    }
    // The daemon that relays for the mount's host.
    signal(world.pid("b"), "-KILL");
    swap(&mut local, "g", "f");
    world.start();
    assert_eq!(remote.ask("stat g"), "!2");
    remote.ok("stat f");
    drop((remote, local, mount));
    world.end();
}

/// Opens a name again and again that others replace by `rename`: it is never missing, nor stale.
const READER: &str = r#"
import os
for n in range(COUNT):
    fd = os.open(PATH, os.O_RDONLY)
    data = os.read(fd, 100)
    os.close(fd)
    assert data == b'whole', data
"#;

/// Replaces a name until it is told to end.
const REPLACER: &str = r#"
import os
n = 0
while not os.path.exists(PATH + '.end'):
    new = PATH + '.new' + str(os.getpid())
    with open(new, 'wb') as file: file.write(b'whole')
    os.rename(new, PATH)
    n += 1
result = str(n)
"#;

/// "A name that `rename` replaces again and again is never missing nor stale"
/// (docs/semantics/mounts.md).
#[test]
fn a_name_that_is_replaced_is_never_missing_or_stale_on_another_host() {
    let Some(world) = world() else { return };
    let mounts: Vec<Mount> =
        ["a", "b", "c"].iter().filter_map(|host| Mount::new(&world, host)).collect();
    if mounts.is_empty() {
        return;
    }
    let mut maker = Agent::preloaded(&world, "a", "/forebay");
    for directory in ["d0", "d1", "d2"] {
        maker.ok(&format!("mkdir {directory}"));
        let path = format!("'{directory}/file'");
        let script =
            |name: &str, text: &str| world.script(name, text, &[("PATH", &path), ("COUNT", "400")]);
        let first = format!("import os\nopen({path}, 'wb').write(b'whole')\n");
        maker.ok(&script("first", &first));
        let (read, replace) = (script("reader", READER), script("replacer", REPLACER));
        let mut replacers = vec![Agent::preloaded(&world, "b", "/forebay"), Agent::on(&mounts[2])];
        replacers.iter_mut().for_each(|agent| agent.begin(&replace));
        let mut readers: Vec<Agent> = mounts.iter().map(Agent::on).collect();
        readers.iter_mut().for_each(|agent| agent.begin(&read));
        for agent in &mut readers {
            assert_eq!(agent.reply(), "ok", "{} in {directory}", agent.name);
        }
        maker.ok(&format!("open x {directory}/file.end c"));
        for agent in &mut replacers {
            let count: u32 = agent.reply().parse().expect("a count");
            assert!(count > 10, "{}: replaced {count} times", agent.name);
        }
    }
    drop((maker, mounts));
    world.end();
}

/// Exchanges names that another program exchanges, too. If each exchange waited for a kernel, the
/// test would time out.
const EXCHANGER: &str = r#"
import ctypes, os, random
numbers, libc = random.Random(ME), ctypes.CDLL(None, use_errno=True)
for n in range(60):
    one, two = numbers.sample(['d0', 'd1', 'd2'], 2)
    failed = libc.renameat2(-100, f'{one}/name'.encode(), -100, f'{two}/name'.encode(), 2)
    assert failed == 0, os.strerror(ctypes.get_errno())
result = 'done'
"#;

/// Each kernel moves its cached entry with the name, and must hear of the other's exchange.
#[test]
fn mounts_of_two_hosts_that_exchange_the_same_names_do_not_deadlock() {
    let Some(world) = world() else { return };
    let mounts: Vec<Mount> =
        ["a", "b"].iter().filter_map(|host| Mount::new(&world, host)).collect();
    let mut maker = Agent::preloaded(&world, "a", "/forebay");
    for directory in ["d0", "d1", "d2"] {
        maker.ok(&format!("mkdir {directory}"));
        maker.ok(&format!("open x {directory}/name c"));
        maker.ok("close x");
    }
    let mut agents: Vec<Agent> = mounts.iter().map(Agent::on).collect();
    for (me, agent) in agents.iter_mut().enumerate() {
        agent.begin(&world.script(
            &format!("exchanger{me}"),
            EXCHANGER,
            &[("ME", &me.to_string())],
        ));
    }
    for agent in &mut agents {
        assert_eq!(agent.reply(), "done", "{}", agent.name);
    }
    drop((agents, maker, mounts));
    world.end();
}

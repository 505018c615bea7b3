//! What the kernel behind a mount remembers of names that another host decides about: it asks
//! nobody again, it is told of changes, and nobody waits for long for a mount that is dead, stands
//! still or is cut off, nor for a daemon that starts again. Namespaces need root, a mount needs
//! `/dev/fuse`; without, the tests say so and state nothing.

mod support;

use std::time::{Duration, Instant};
use support::agent::{Agent, Mount, signal};
use support::world::{World, ip};

/// What kernels remember is over after 4.5 s at most; the rest is for a busy machine.
const BOUND: Duration = Duration::from_secs(6);

/// The root's names are the first host's.
fn world() -> Option<World> {
    World::started(&[("FOREBAY_CONSISTENCY", "posix"), ("FOREBAY_TIMEOUT", "10s")])
}

/// Renames a file between two names, and says how long that took.
fn swap(agent: &mut Agent, from: &str, to: &str) -> Duration {
    let begun = Instant::now();
    agent.ok(&format!("rename {from} {to}"));
    begun.elapsed()
}

#[test]
fn names_of_other_hosts_are_remembered_and_changes_are_seen_at_once() {
    let Some(world) = world() else { return };
    let Some(mount) = Mount::new(&world, "b") else { return };
    let (mut far, mut near) = (Agent::on(&mount), Agent::preloaded(&world, "a", "/forebay"));
    near.ok("mkdir d");
    near.ok("open f d/f c");
    near.ok("close f");
    far.ok("stat d/f");
    assert_eq!(far.ask("stat d/absent"), "!2");
    let before = world.requests("b");
    for _ in 0..500 {
        far.ok("stat d/f");
        assert_eq!(far.ask("stat d/absent"), "!2");
    }
    let asked = world.requests("b") - before;
    assert!(asked < 200, "{asked} requests for 1000 looks");
    for round in 0..50 {
        near.ok(&format!("truncate d/f {round}"));
        assert_eq!(far.ok("stat d/f"), round.to_string());
        swap(&mut near, "d/f", "d/absent");
        assert_eq!(
            (far.ask("stat d/f"), far.ok("stat d/absent")),
            ("!2".into(), round.to_string())
        );
        swap(&mut far, "d/absent", "d/f");
        assert_eq!(
            (near.ask("stat d/absent"), near.ok("stat d/f")),
            ("!2".into(), round.to_string())
        );
    }
    drop((far, near, mount));
    world.end();
}

/// "A mount that can not be told holds up others for 4.5 seconds at most" (docs/semantics.md).
#[test]
fn nobody_waits_long_for_a_mount_that_can_not_be_told() {
    let Some(world) = world() else { return };
    let Some(mount) = Mount::new(&world, "b") else { return };
    let (mut far, mut near) = (Agent::on(&mount), Agent::preloaded(&world, "a", "/forebay"));
    near.ok("open f f c");
    near.ok("close f");
    far.ok("stat f");
    assert_eq!(far.ask("stat g"), "!2");

    signal(mount.pid, "-STOP");
    let took = swap(&mut near, "f", "g");
    assert!(took < BOUND, "a mount that stands still: {took:?}");
    signal(mount.pid, "-CONT");
    assert_eq!(far.ask("stat f"), "!2", "it goes on with what is so");
    far.ok("stat g");

    let link = |how: &str| {
        assert!(ip(&format!("-n {}b link set eth0 {how}", world.prefix)), "the link goes {how}");
    };
    link("down");
    let took = swap(&mut near, "g", "f");
    assert!(took < BOUND, "a host that is cut off: {took:?}");
    // Nothing is shown that is not so any more: it is asked, and answered when that can be.
    far.begin("stat g");
    link("up");
    assert_eq!(far.hear(), "!2");
    far.ok("stat f");

    mount.kill();
    let took = swap(&mut near, "f", "g");
    assert!(took < BOUND, "a mount that is dead: {took:?}");
    let took = swap(&mut near, "g", "f");
    assert!(took < Duration::from_secs(1), "it is waited for once: {took:?}");
    drop((far, near, mount));
    world.end();
}

#[test]
fn a_service_that_starts_again_changes_nothing_that_it_let_remember_before() {
    let Some(world) = world() else { return };
    let Some(mount) = Mount::new(&world, "b") else { return };
    let (mut far, mut near) = (Agent::on(&mount), Agent::preloaded(&world, "a", "/forebay"));
    near.ok("open f f c");
    near.ok("close f");
    for round in 0..3 {
        let (from, to) = if round % 2 == 0 { ("f", "g") } else { ("g", "f") };
        far.ok(&format!("stat {from}"));
        assert_eq!(far.ask(&format!("stat {to}")), "!2");
        let begun = Instant::now();
        signal(world.pid("a"), "-KILL");
        world.start();
        near.ok(&format!("rename {from} {to}"));
        assert_eq!(far.ask(&format!("stat {from}")), "!2", "{:?} after", begun.elapsed());
        far.ok(&format!("stat {to}"));
        assert!(begun.elapsed() < 2 * BOUND, "{:?}", begun.elapsed());
    }
    // The relay of the mount's host.
    signal(world.pid("b"), "-KILL");
    let took = swap(&mut near, "g", "f");
    assert!(took < BOUND, "{took:?}");
    world.start();
    assert_eq!(far.ask("stat g"), "!2");
    far.ok("stat f");
    drop((far, near, mount));
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
said = str(n)
"#;

/// "A name that `rename` replaces again and again is never missing nor stale" (docs/semantics.md).
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
            assert_eq!(agent.hear(), "ok", "{} in {directory}", agent.name);
        }
        maker.ok(&format!("open x {directory}/file.end c"));
        for agent in &mut replacers {
            let count: u32 = agent.hear().parse().expect("a count");
            assert!(count > 10, "{}: replaced {count} times", agent.name);
        }
    }
    drop((maker, mounts));
    world.end();
}

/// Exchanges names that another exchanges, too, and says how long the longest took, in milliseconds.
const EXCHANGER: &str = r#"
import ctypes, os, random, time
numbers, libc, longest = random.Random(ME), ctypes.CDLL(None, use_errno=True), 0
for n in range(60):
    one, two = numbers.sample(['d0', 'd1', 'd2'], 2)
    begun = time.monotonic()
    failed = libc.renameat2(-100, f'{one}/name'.encode(), -100, f'{two}/name'.encode(), 2)
    assert failed == 0, os.strerror(ctypes.get_errno())
    longest = max(longest, time.monotonic() - begun)
said = str(int(longest * 1000))
"#;

/// Each kernel takes what it remembers of a name along, and is to be told of what the other does.
#[test]
fn mounts_of_two_hosts_that_exchange_the_same_names_do_not_wait_for_each_other() {
    let Some(world) = world() else { return };
    let mounts: Vec<Mount> =
        ["a", "b"].iter().filter_map(|host| Mount::new(&world, host)).collect();
    let mut maker = Agent::preloaded(&world, "a", "/forebay");
    for directory in ["d0", "d1", "d2"] {
        maker.ok(&format!("mkdir {directory}"));
        maker.ok(&format!("open x {directory}/name c"));
        maker.ok("close x");
    }
    let mut seats: Vec<Agent> = mounts.iter().map(Agent::on).collect();
    for (me, seat) in seats.iter_mut().enumerate() {
        seat.begin(&world.script(&format!("exchanger{me}"), EXCHANGER, &[("ME", &me.to_string())]));
    }
    for seat in &mut seats {
        let said = seat.hear();
        let longest: u64 = said.parse().unwrap_or_else(|_| panic!("{}: {said:?}", seat.name));
        assert!(longest < 2000, "{}: an exchange took {longest} ms", seat.name);
    }
    drop((seats, maker, mounts));
    world.end();
}

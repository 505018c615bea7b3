//! Hosts whose daemons move bytes by libfabric: what one writes the others read, also after a daemon
//! was killed; hosts without it, or without the provider, do the same by TCP and say so in one line.
//!
//! Namespaces need root. Without, the tests say so and state nothing. So does the first without
//! libfabric. All of tests/far.rs can be run this way by FOREBAY_TRANSPORT=libfabric:tcp.

mod support;

use std::process::Command;
use support::world::{HOSTS, World};

/// 8 MB and a checksum of them; then the same by a daemon's host that reads.
const WRITE: &str = "head -c 8000000 /dev/urandom | tee /forebay/$1 | sha256sum";
const READ: &str = "sha256sum < /forebay/$1";

fn world(transport: &str) -> Option<World> {
    let world = World::new()?;
    start(&world, transport);
    Some(world)
}

fn start(world: &World, transport: &str) {
    let hosts = world.path("nodes");
    let words = ["start", "--hosts", &hosts.to_string_lossy(), "--transport", transport];
    world.ok("a", &words);
}

/// Lines of all daemons' logs that have `text`.
fn lines(world: &World, text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut folders: Vec<_> = HOSTS.map(|host| world.path(host)).into();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "log") {
                let log = std::fs::read_to_string(path).expect("a log");
                found.extend(log.lines().filter(|line| line.contains(text)).map(str::to_owned));
            }
        }
    }
    found
}

/// Each host writes a file that all read.
fn all_see_the_same(world: &World, round: &str) {
    for host in HOSTS {
        let name = format!("{host}{round}");
        let sum = world.shell(host, WRITE, &name);
        for reader in HOSTS {
            assert_eq!(world.shell(reader, READ, &name), sum, "{name} on {reader}");
        }
    }
}

#[test]
fn hosts_see_the_same_bytes_by_libfabric_also_after_a_daemon_was_killed() {
    let Some(world) = world("libfabric:tcp") else { return };
    if lines(&world, "bytes go by libfabric").is_empty() {
        assert_eq!(lines(&world, "no libfabric: bytes go by TCP").len(), 4, "neither is told");
        println!("nothing to test: no libfabric here (package libfabric1)");
        world.ok("a", &["stop"]);
        return;
    }
    assert_eq!(lines(&world, "bytes go by libfabric").len(), 4, "four daemons");
    all_see_the_same(&world, "1");
    let status = world.ok("b", &["status"]);
    let mut words = status.split_whitespace().skip_while(|word| *word != "alive");
    let pid = words.nth(1).expect("a process");
    assert!(Command::new("kill").args(["-9", pid]).status().expect("kill runs").success());
    start(&world, "libfabric:tcp");
    all_see_the_same(&world, "2");
    for host in HOSTS {
        let sums = world.shell(host, "sha256sum /forebay/?1 | sort -u | wc -l", "");
        assert_eq!(sums, "3\n", "what was written before the death, on {host}");
    }
    assert!(lines(&world, "bytes go by TCP").is_empty(), "{:?}", lines(&world, "by TCP"));
    world.ok("a", &["stop"]);
    world.assert_nothing_left();
}

#[test]
fn without_the_provider_bytes_go_by_tcp_and_one_line_says_so() {
    let Some(world) = world("libfabric:nothing") else { return };
    all_see_the_same(&world, "1");
    assert_eq!(lines(&world, "bytes go by TCP").len(), 4, "one line of each daemon");
    let again = ["start", "--transport", "tcp"];
    assert!(!world.on("a", &again).status.success(), "it runs with another transport");
    world.ok("a", &["stop"]);
    world.assert_nothing_left();
}

//! Hosts whose daemons transfer bytes over libfabric: what one host writes the others read, also
//! after a daemon was killed; hosts without libfabric or without the provider use TCP and log it in
//! one line.
//!
//! Network namespaces need root. Without it the tests are skipped, and so is the first test without
//! libfabric. FOREBAY_TRANSPORT=libfabric:tcp runs all tests of this area this way.

use crate::support::skip;
use crate::support::world::{HOSTS, World};
use std::process::Command;

/// Writes 8 MB and prints their checksum; the reading side prints the same.
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

/// Lines of all daemons' logs that contain `text`.
fn lines(world: &World, text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut dirs: Vec<_> = HOSTS.map(|host| world.path(host)).into();
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                dirs.push(path);
            } else if path.extension().is_some_and(|extension| extension == "log") {
                let log = std::fs::read_to_string(path).expect("a log");
                found.extend(log.lines().filter(|line| line.contains(text)).map(str::to_owned));
            }
        }
    }
    found
}

/// Each host writes a file that all hosts read.
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
fn hosts_see_the_same_bytes_over_libfabric_also_after_a_daemon_was_killed() {
    let Some(world) = world("libfabric:tcp") else { return };
    if lines(&world, "bytes go by libfabric").is_empty() {
        assert_eq!(lines(&world, "no libfabric: bytes go by TCP").len(), 4, "no daemon logs it");
        skip("libfabric is missing (package libfabric1)");
        world.ok("a", &["stop"]);
        return;
    }
    assert_eq!(lines(&world, "bytes go by libfabric").len(), 4, "four daemons");
    all_see_the_same(&world, "1");
    let pid = world.pid("b").to_string();
    assert!(Command::new("kill").args(["-9", &pid]).status().expect("kill runs").success());
    start(&world, "libfabric:tcp");
    all_see_the_same(&world, "2");
    for host in HOSTS {
        let sums = world.shell(host, "sha256sum /forebay/?1 | sort -u | wc -l", "");
        assert_eq!(sums, "3\n", "bytes written before the kill, on {host}");
    }
    assert!(lines(&world, "bytes go by TCP").is_empty(), "{:?}", lines(&world, "by TCP"));
    world.ok("a", &["stop"]);
    world.assert_nothing_left();
}

#[test]
fn without_the_provider_transfers_use_tcp_and_one_line_says_so() {
    let Some(world) = world("libfabric:nothing") else { return };
    all_see_the_same(&world, "1");
    assert_eq!(lines(&world, "bytes go by TCP").len(), 4, "one line of each daemon");
    let again = ["start", "--transport", "tcp"];
    assert!(!world.on("a", &again).status.success(), "it runs with another transport");
    world.ok("a", &["stop"]);
    world.assert_nothing_left();
}

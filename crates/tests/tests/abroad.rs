//! Files of a node whose memory is taken back, or full where there is no SSD, lie in the memory of other
//! nodes, and are read, changed and removed as ever; also when daemons die meanwhile.
//!
//! Namespaces need root. Without, the tests say so and state nothing.

mod support;

use std::time::{Duration, Instant};
use support::wait_for;
use support::world::{HOSTS, World};

const MIB: u64 = 1 << 20;

/// Nodes without an SSD, where files lie where they are written.
const SETTINGS: [(&str, &str); 5] = [
    ("FOREBAY_MEMORY", "32MiB"),
    ("FOREBAY_SSD", "0"),
    ("FOREBAY_PLACEMENT", "local"),
    ("FOREBAY_CHUNK", "1MiB"),
    ("FOREBAY_IDLE", "1ms"),
];

fn figure(world: &World, host: &str, name: &str) -> u64 {
    let state = &world.daemon(host)["state"];
    state[name].as_u64().unwrap_or_else(|| panic!("{name} of {state}"))
}

fn write(world: &World, host: &str, length: u64) -> String {
    let script = "head -c $1 /dev/urandom >/forebay/f && sha256sum </forebay/f";
    world.shell(host, script, &length.to_string())
}

fn read(world: &World, host: &str) -> String {
    world.shell(host, "sha256sum </forebay/f", "")
}

/// Bytes that the first daemons of all hosts keep for others.
fn kept(world: &World) -> u64 {
    HOSTS.iter().map(|host| figure(world, host, "bytes_kept")).sum()
}

/// "Memory that is taken back is the node's again when the command ends" (docs/semantics.md), also where
/// there is no SSD.
#[test]
fn what_is_taken_back_goes_to_other_nodes() {
    let Some(world) = World::started(&SETTINGS) else { return };
    let sum = write(&world, "a", 16 * MIB);
    world.ok("a", &["reclaim", "all", "a"]);
    assert_eq!(figure(&world, "a", "memory_used"), 0);
    assert_eq!(figure(&world, "a", "bytes_abroad"), 16 * MIB);
    assert!(kept(&world) > 0, "nobody keeps anything");
    // There is no room for them at home.
    for host in HOSTS {
        assert_eq!(read(&world, host), sum, "on {host}");
    }
    assert_eq!(figure(&world, "a", "memory_used"), 0);

    world.ok("a", &["lend", "all", "a"]);
    assert_eq!(read(&world, "b"), sum);
    wait_for("all at home", || figure(&world, "a", "bytes_abroad") == 0);
    wait_for("nothing kept", || kept(&world) == 0);
    assert_eq!(read(&world, "a"), sum);
    world.end();
}

/// What is changed of a file that is abroad, and cut, and removed.
#[test]
fn what_is_abroad_is_changed_as_ever() {
    let Some(world) = World::started(&SETTINGS) else { return };
    write(&world, "a", 12 * MIB);
    world.shell("a", "cp /forebay/f $1/copy", &world.path("").to_string_lossy());
    let change = "
        set -e
        printf hello | dd of=$1 bs=1 seek=5000000 conv=notrunc status=none
        printf tail >>$1
        truncate -s 9000001 $1
        truncate -s 13000000 $1
        fallocate -p -o 100000 -l 3000000 $1
    ";
    world.ok("a", &["reclaim", "all", "a"]);
    world.ok("a", &["lend", "8MiB", "a"]);
    for file in ["/forebay/f".to_owned(), world.path("copy").to_string_lossy().into_owned()] {
        world.shell("b", change, &file);
    }
    let copy = world.path("copy").to_string_lossy().into_owned();
    world.shell("c", "cmp /forebay/f $1", &copy);
    world.shell("a", "rm /forebay/f", "");
    wait_for("nothing kept", || kept(&world) == 0);
    wait_for("nothing abroad", || figure(&world, "a", "bytes_abroad") == 0);
    wait_for("nothing used", || figure(&world, "a", "memory_used") == 0);
    world.end();
}

/// A node's memory is full and it has no SSD: its writer goes on.
#[test]
fn who_fills_a_node_goes_on() {
    let Some(world) = World::started(&SETTINGS) else { return };
    let sum = write(&world, "a", 48 * MIB);
    assert!(figure(&world, "a", "bytes_abroad") >= 16 * MIB);
    for host in ["b", "a"] {
        assert_eq!(read(&world, host), sum, "on {host}");
    }
    world.shell("c", "rm /forebay/f", "");
    wait_for("nothing kept", || kept(&world) == 0);
    world.end();
}

/// Files are what they were "also if daemons die meanwhile" (docs/semantics.md): the home of what is
/// abroad, or who keeps it. While a keeper is gone its bytes can not be had, which is said in bounded
/// time.
#[test]
fn daemons_may_die_while_files_are_abroad() {
    let Some(world) = World::started(&SETTINGS) else { return };
    let sum = write(&world, "a", 16 * MIB);
    world.ok("a", &["reclaim", "all", "a"]);
    for host in ["a", "b", "c"] {
        let pid = i32::try_from(world.pid(host)).expect("a pid");
        let pid = rustix::process::Pid::from_raw(pid).expect("a pid");
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("it lives");
        if host == "b" {
            let begun = Instant::now();
            let output = world.on("c", &["run", "--", "cat", "/forebay/f"]);
            assert!(!output.status.success(), "bytes from nowhere");
            assert!(begun.elapsed() < Duration::from_secs(60), "it waits for ever");
        }
        world.start();
        assert_eq!(read(&world, "a"), sum, "after {host} was killed");
        assert_eq!(figure(&world, "a", "bytes_abroad"), 16 * MIB);
    }
    world.shell("a", "rm /forebay/f", "");
    wait_for("nothing kept", || kept(&world) == 0);
    world.end();
}

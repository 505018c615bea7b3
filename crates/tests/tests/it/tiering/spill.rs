//! Files of a node whose memory is reclaimed, or full where there is no SSD, are spilled to the
//! memory of other nodes, and are read, changed and removed as usual; also when daemons die
//! meanwhile.
//!
//! Network namespaces need root. Without it the tests are skipped.

use crate::support::agent::signal;
use crate::support::world::{HOSTS, World};
use crate::support::{in_time, wait_for};

const MIB: u64 = 1 << 20;

/// Nodes without an SSD, where files are placed on the node that writes them.
const SETTINGS: [(&str, &str); 5] = [
    ("FOREBAY_MEMORY", "32MiB"),
    ("FOREBAY_SSD", "0"),
    ("FOREBAY_PLACEMENT", "local"),
    ("FOREBAY_STRIPE_SIZE", "1MiB"),
    ("FOREBAY_DEMOTE_IDLE_AGE", "1ms"),
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

/// Bytes that the first daemons of all hosts hold for others.
fn spilled_in(world: &World) -> u64 {
    HOSTS.iter().map(|host| figure(world, host, "bytes_spilled_in")).sum()
}

/// "Reclaimed memory belongs to the node again when the command ends"
/// (docs/semantics/durability.md), also where there is no SSD.
#[test]
fn reclaimed_memory_spills_to_other_nodes() {
    let Some(world) = World::started(&SETTINGS) else { return };
    let sum = write(&world, "a", 16 * MIB);
    world.ok("a", &["reclaim", "all", "a"]);
    // Counters follow within a moment.
    wait_for("no memory in use", || figure(&world, "a", "memory_used") == 0);
    wait_for("all of it spilled", || figure(&world, "a", "bytes_spilled_out") == 16 * MIB);
    wait_for("space of others in use", || spilled_in(&world) > 0);
    // There is no space for them at home.
    for host in HOSTS {
        assert_eq!(read(&world, host), sum, "on {host}");
    }
    assert_eq!(figure(&world, "a", "memory_used"), 0);

    world.ok("a", &["lend", "all", "a"]);
    assert_eq!(read(&world, "b"), sum);
    wait_for("all data at home", || figure(&world, "a", "bytes_spilled_out") == 0);
    wait_for("no spilled data", || spilled_in(&world) == 0);
    assert_eq!(read(&world, "a"), sum);
    world.end();
}

/// A spilled file is changed, truncated, and removed.
#[test]
fn spilled_files_can_be_changed_truncated_and_removed() {
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
    wait_for("no spilled data", || spilled_in(&world) == 0);
    wait_for("nothing spilled", || figure(&world, "a", "bytes_spilled_out") == 0);
    wait_for("nothing used", || figure(&world, "a", "memory_used") == 0);
    world.end();
}

/// A node's memory is full and it has no SSD: its writer continues.
#[test]
fn a_writer_that_fills_its_node_spills_and_continues() {
    let Some(world) = World::started(&SETTINGS) else { return };
    let sum = write(&world, "a", 48 * MIB);
    assert!(figure(&world, "a", "bytes_spilled_out") >= 16 * MIB);
    for host in ["b", "a"] {
        assert_eq!(read(&world, host), sum, "on {host}");
    }
    world.shell("c", "rm /forebay/f", "");
    wait_for("no spilled data", || spilled_in(&world) == 0);
    world.end();
}

/// Files are what they were "also if daemons die meanwhile" (docs/semantics/durability.md): the
/// home daemon of spilled data, or its spill host. While a spill host is gone its bytes are
/// unavailable, which is reported in bounded time.
#[test]
fn daemons_may_die_while_files_are_spilled() {
    let Some(world) = World::started(&SETTINGS) else { return };
    let sum = write(&world, "a", 16 * MIB);
    world.ok("a", &["reclaim", "all", "a"]);
    for host in ["a", "b", "c"] {
        signal(world.pid(host), "-KILL");
        if host == "b" {
            let words = ["run", "--", "cat", "/forebay/f"];
            let output = in_time("a read of lost bytes", || world.on("c", &words));
            assert!(!output.status.success(), "unexpected bytes");
        }
        world.start();
        assert_eq!(read(&world, "a"), sum, "after the kill of {host}");
        wait_for("all of it spilled", || figure(&world, "a", "bytes_spilled_out") == 16 * MIB);
    }
    world.shell("a", "rm /forebay/f", "");
    wait_for("no spilled data", || spilled_in(&world) == 0);
    world.end();
}

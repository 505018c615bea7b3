//! Memory is taken back from several hosts by one command: of the emptiest first, or of those that are
//! named.
//!
//! Namespaces need root. Without, the test says so and states nothing.

mod support;

use serde_json::Value;
use support::world::World;

const MIB: u64 = 1 << 20;

/// What each node that a command told something holds: its name, allowed bytes, and bytes in files.
fn nodes(world: &World, host: &str, words: &[&str]) -> Vec<(String, u64, u64)> {
    let answer: Value = serde_json::from_str(&world.ok(host, words)).expect("JSON");
    let nodes = answer["nodes"].as_array().expect("nodes").iter().map(|node| {
        let daemons = node["daemons"].as_array().expect("daemons");
        let sum =
            |name: &str| daemons.iter().map(|one| one[name].as_u64().expect("a number")).sum();
        (node["node"].as_str().expect("a name").to_owned(), sum("allowance"), sum("used"))
    });
    nodes.collect()
}

#[test]
fn the_emptiest_nodes_give_back_first() {
    let settings = [
        ("FOREBAY_MEMORY", "32MiB"),
        ("FOREBAY_SSD", "128MiB"),
        ("FOREBAY_ROOM", "0"),
        ("FOREBAY_PLACEMENT", "local"),
    ];
    let Some(world) = World::started(&settings) else { return };
    let write =
        "head -c $1 /dev/urandom >/forebay/$(hostname).$1; sha256sum </forebay/$(hostname).$1";
    let sums = [("b", 16 * MIB), ("c", 4 * MIB)]
        .map(|(host, length)| world.shell(host, write, &length.to_string()));

    // 'a' has no files, 'c' fewer than 'b'.
    let told = nodes(&world, "a", &["reclaim", "40MiB", "--json"]);
    let told: Vec<_> = told.iter().map(|(node, allowed, _)| (node.as_str(), *allowed)).collect();
    assert_eq!(told, [("a", 0), ("c", 56 * MIB)]);

    // One that is named, from another host and from itself.
    let told = nodes(&world, "a", &["reclaim", "all", "b", "--json"]);
    assert_eq!(told, [("b".to_owned(), 0, 0)], "its files are on its SSD");
    let told = nodes(&world, "c", &["reclaim", "all", "here", "--json"]);
    assert_eq!(told, [("here".to_owned(), 0, 0)]);

    let told = nodes(&world, "a", &["lend", "all", "--json"]);
    assert_eq!(told.iter().map(|node| node.1 / MIB).collect::<Vec<_>>(), [32, 32, 64]);
    let read = "sha256sum </forebay/$(hostname).$1";
    assert_eq!(world.shell("a", read, &(16 * MIB).to_string()), sums[0]);
    assert_eq!(world.shell("a", read, &(4 * MIB).to_string()), sums[1]);
    world.end();
}

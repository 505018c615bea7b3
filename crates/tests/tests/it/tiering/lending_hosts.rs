//! One command reclaims memory from several hosts: from the emptiest first, or from the named ones.
//!
//! Network namespaces need root. Without it the test is skipped.

use crate::support::world::World;
use serde_json::Value;

const MIB: u64 = 1 << 20;

/// Each node in the output of a command: its name, allowed bytes, and bytes in files.
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
fn reclaim_takes_memory_from_the_emptiest_nodes_first() {
    let settings = [
        ("FOREBAY_MEMORY", "32MiB"),
        ("FOREBAY_SSD", "128MiB"),
        ("FOREBAY_DEMOTE_LOW_WATERMARK", "0"),
        ("FOREBAY_PLACEMENT", "local"),
    ];
    let Some(world) = World::started(&settings) else { return };
    let write =
        "head -c $1 /dev/urandom >/forebay/$(hostname).$1; sha256sum </forebay/$(hostname).$1";
    let sums = [("b", 16 * MIB), ("c", 4 * MIB)]
        .map(|(host, length)| world.shell(host, write, &length.to_string()));

    // 'a' has no files, 'c' fewer than 'b'.
    let reported = nodes(&world, "a", &["reclaim", "40MiB", "--json"]);
    let reported: Vec<_> =
        reported.iter().map(|(node, allowed, _)| (node.as_str(), *allowed)).collect();
    assert_eq!(reported, [("a", 0), ("c", 56 * MIB)]);

    // A named node, from another host and from itself.
    let reported = nodes(&world, "a", &["reclaim", "all", "b", "--json"]);
    assert_eq!(reported, [("b".to_owned(), 0, 0)], "its files are on its SSD");
    let reported = nodes(&world, "c", &["reclaim", "all", "here", "--json"]);
    assert_eq!(reported, [("here".to_owned(), 0, 0)]);

    let reported = nodes(&world, "a", &["lend", "all", "--json"]);
    assert_eq!(reported.iter().map(|node| node.1 / MIB).collect::<Vec<_>>(), [32, 32, 64]);
    let read = "sha256sum </forebay/$(hostname).$1";
    assert_eq!(world.shell("a", read, &(16 * MIB).to_string()), sums[0]);
    assert_eq!(world.shell("a", read, &(4 * MIB).to_string()), sums[1]);
    world.end();
}

//! An instance gets daemons on another host while programs write, and files are on their targets.

use super::replicas::{ROUNDS, await_rounds, check, end, fill, python};
use super::{presences, status};
use crate::support::agent::signal;
use crate::support::world::{SPARE, World};
use crate::support::{text, wait_for};
use serde_json::Value;
use std::collections::BTreeSet;

const WATCHED: [(&str, &str); 4] = [
    ("FOREBAY_DOMAINS", "auto"),
    ("FOREBAY_PLACEMENT", "hash"),
    ("FOREBAY_WORKERS", "2"),
    ("FOREBAY_STRIPE_SIZE", "64KiB"),
];

fn await_presences(world: &World, count: usize) {
    wait_for("all daemons take part", || presences(world) == vec!["up"; count]);
}

/// The targets of a file.
fn targets(world: &World, file: &str) -> BTreeSet<u64> {
    let layout = world.ok("a", &["layout", "get", "--json", file]);
    let layout: Value = serde_json::from_str(&layout).expect("an object");
    let targets = layout["targets"].as_array().expect("targets").iter();
    targets.map(|one| one.as_u64().expect("a number")).collect()
}

#[test]
fn an_instance_grows_while_programs_write() {
    let Some(world) = World::started(&WATCHED) else { return };
    assert!(world.add_host(SPARE, 4), "a fourth host");
    await_presences(&world, 4);
    let [old, written, new] = ["old", "written", "new"].map(|name| format!("/forebay/{name}"));
    fill(&world, &old);
    let mut writer = python(&world, "b", ROUNDS, &["write", &written]);
    await_rounds(&mut writer);
    let grow = |words: &[&str]| world.on("a", &[&["grow", "--timeout", "20s"], words].concat());
    for (words, part) in [
        (&["c 10.79.0.3"][..], "c is a host of instance"),
        (&["d nowhere"], "the second word must be an IP address"),
    ] {
        let answer = text(&grow(words).stderr).trim().to_owned();
        assert!(answer.contains(part) && answer.lines().count() == 1, "{words:?}: {answer}");
    }
    let answer = grow(&["d:2 10.79.0.4"]);
    assert!(answer.status.success(), "{}", text(&answer.stderr));
    assert!(text(&answer.stdout).contains("has 6 daemons now: new daemons 4, 5"));
    await_rounds(&mut writer);
    await_presences(&world, 6);
    fill(&world, &new);
    assert_eq!(targets(&world, &old), (0..4).collect());
    assert_eq!(targets(&world, &new), (0..6).collect());
    let last = end(&mut writer);
    drop(writer);
    let check_all = || {
        for host in ["a", "b", "c", SPARE] {
            check(&world, host, &old, 0);
            check(&world, host, &new, 0);
            check(&world, host, &written, last);
        }
    };
    check_all();
    // All of them come back with what they had.
    std::fs::write(world.path("nodes"), "a 10.79.0.1\nb 10.79.0.2\nc:2 10.79.0.3\nd:2 10.79.0.4\n")
        .expect("written");
    for host in [SPARE, "a"] {
        for daemon in world.daemons(host) {
            let pid = daemon["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok());
            signal(pid.expect("a process"), "-KILL");
        }
        world.start();
        await_presences(&world, 6);
        check_all();
    }
    assert_eq!(status(&world)["daemons"].as_array().map(Vec::len), Some(6));
    world.end();
}

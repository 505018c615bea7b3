//! Pools of targets, end to end: commands and their refusals, directories that use a pool, the choice
//! of the target by open files, restarts and killed daemons, and two hosts.
//!
//! The test of two hosts needs root for network namespaces; without it it is skipped.

use crate::support::agent::Agent;
use crate::support::world::{WRITERS, World};
use crate::support::{Instance, text, wait_for};
use serde_json::{Value, json};
use std::process::Output;

const MIB: u64 = 1 << 20;

fn local(name: &str, daemons: &str) -> Instance {
    Instance::start(name, &["--local", daemons, "--memory", "64MiB", "--ssd", "0"])
}

fn forebay(instance: &Instance, words: &[&str]) -> Output {
    let [word, rest @ ..] = words else { panic!("no command") };
    // Its own `--name` would stand before the subcommand.
    let mut command = instance.command("status");
    let program = command.get_program().to_owned();
    let variables: Vec<_> = command
        .get_envs()
        .filter_map(|(name, value)| Some((name.to_owned(), value?.to_owned())))
        .collect();
    command = std::process::Command::new(program);
    command.arg(word).args(rest).envs(variables).env("FOREBAY_NAME", &instance.name);
    command.output().expect("forebay runs")
}

fn ok(instance: &Instance, words: &[&str]) -> String {
    let output = forebay(instance, words);
    assert!(output.status.success(), "{words:?}: {}", text(&output.stderr));
    text(&output.stdout)
}

fn as_json(instance: &Instance, words: &[&str]) -> Value {
    serde_json::from_str(&ok(instance, words)).expect("JSON")
}

/// The one line by which a command is refused.
fn refused(instance: &Instance, words: &[&str]) -> String {
    let output = forebay(instance, words);
    let printed = text(&output.stderr);
    assert!(!output.status.success(), "{words:?} was not refused");
    assert_eq!(printed.lines().count(), 1, "{words:?}: {printed}");
    printed
}

/// The only target of a file.
fn target(instance: &Instance, file: &str) -> u64 {
    let layout = as_json(instance, &["layout", "get", "--json", file]);
    let targets = layout["targets"].as_array().expect("a list").clone();
    assert_eq!((targets.len(), &layout["stripe_count"]), (1, &json!(1)), "{file}: {layout}");
    targets[0].as_u64().expect("a number")
}

/// Creates files with contents and keeps them open; gives their targets.
fn create(instance: &Instance, agent: &mut Agent, names: &[String]) -> Vec<u64> {
    for name in names {
        agent.ok(&format!("open {name} /forebay/{name} c"));
        agent.ok(&format!("write {name} - 0 200000 7"));
    }
    names.iter().map(|name| target(instance, &format!("/forebay/{name}"))).collect()
}

fn names(prefix: &str, count: usize) -> Vec<String> {
    (0..count).map(|number| format!("{prefix}{number}")).collect()
}

#[test]
fn pools_are_created_shown_used_and_deleted() {
    let instance = local("pool", "4");
    ok(&instance, &["pool", "create", "fast", "--targets", "0,2,3"]);
    ok(&instance, &["pool", "create", "mixed", "--targets", "1-2", "--max-perf", "1MiB,3MiB"]);
    let listed = as_json(&instance, &["pool", "list", "--json"]);
    let one = |target: u64, rate: u64| json!({ "target": target, "max_perf": rate, "state": "up" });
    let mixed = json!({ "name": "mixed", "targets": [one(1, MIB), one(2, 3 * MIB)] });
    assert_eq!(listed[0]["name"], "fast");
    assert_eq!(listed[0]["targets"].as_array().map(Vec::len), Some(3));
    assert_eq!(listed[1], mixed);
    assert_eq!(as_json(&instance, &["pool", "show", "mixed", "--json"]), mixed);
    assert!(ok(&instance, &["pool", "list"]).contains("0,2,3"));
    wait_for("the speed of a target", || instance.figure("target_speed") > 0);

    let shell = |script: &str| {
        let output = instance.program(&["sh", "-ec", script]).output().expect("it runs");
        assert!(output.status.success(), "{script}: {}", text(&output.stderr));
    };
    shell("mkdir -p /forebay/d/old /forebay/e; echo early >/forebay/d/early");
    let set = ["layout", "set", "--pool", "mixed", "--json", "/forebay/d"];
    assert_eq!(as_json(&instance, &set)["pool"], "mixed");
    shell(
        "mkdir /forebay/d/new; for f in a b c; do head -c 100000 /dev/zero >/forebay/d/new/$f; done",
    );
    for file in ["a", "b", "c"] {
        let layout =
            as_json(&instance, &["layout", "get", "--json", &format!("/forebay/d/new/{file}")]);
        assert_eq!(layout["pool"], "mixed");
        assert!([1, 2].contains(&target(&instance, &format!("/forebay/d/new/{file}"))));
    }
    // Directories and files that existed before have no pool.
    for path in ["/forebay/d/old", "/forebay/d/early", "/forebay/e"] {
        let layout = as_json(&instance, &["layout", "get", "--json", path]);
        assert_eq!(layout.get("pool"), None, "{path}");
    }
    ok(&instance, &["layout", "set", "--pool", "none", "/forebay/d/new"]);
    ok(&instance, &["pool", "delete", "mixed"]);
    let layout = as_json(&instance, &["layout", "get", "--json", "/forebay/d"]);
    assert_eq!(layout.get("pool"), None, "{layout}");
    shell("head -c 100000 /dev/zero >/forebay/d/after; cmp -n 100000 /dev/zero /forebay/d/new/a");
    assert_eq!(
        as_json(&instance, &["layout", "get", "--json", "/forebay/d/after"])["stripe_count"],
        "all"
    );
}

#[test]
fn bad_pools_get_one_clear_line() {
    let instance = local("poolbad", "2");
    for (words, expected) in [
        (&["create", "p", "--targets", "0,5"][..], "target 5 does not exist"),
        (&["create", "p", "--targets", "0,1,0"], "target 0 is in the pool twice"),
        (&["create", "p", "--targets", "x"], "--targets cannot be \"x\""),
        (&["create", "p", "--targets", "0,1", "--max-perf", "0"], "--max-perf cannot be \"0\""),
        (&["create", "p", "--targets", "0", "--max-perf", "1,2"], "has 2 sizes for 1 targets"),
        (&["create", "a b", "--targets", "0"], "is no name of a pool"),
        (&["create", "none", "--targets", "0"], "is no name of a pool"),
        (&["delete", "p"], "there is no pool 'p'"),
        (&["show", "p"], "there is no pool 'p'"),
    ] {
        let printed = refused(&instance, &[&["pool"], words].concat());
        assert!(printed.contains(expected), "{words:?}: {printed}");
    }
    let printed = refused(&instance, &["layout", "set", "--pool", "p", "/forebay"]);
    assert!(printed.contains("there is no pool 'p'"), "{printed}");
    ok(&instance, &["pool", "create", "p", "--targets", "0"]);
    let printed = refused(&instance, &["pool", "create", "p", "--targets", "1"]);
    assert!(printed.contains("there is a pool 'p' already"), "{printed}");

    let daemon = instance.daemon(1);
    daemon.kill();
    daemon.wait();
    let printed = refused(&instance, &["pool", "create", "q", "--targets", "0,1"]);
    assert!(printed.contains("target 1 is dead"), "{printed}");
    instance.start_again();
    ok(&instance, &["pool", "create", "q", "--targets", "0,1"]);
}

/// "A directory with a pool puts each new file on one target of it"
/// (docs/semantics/staging-and-prefetch.md): that with the largest `max_perf / (open_count + 1)`, of
/// equal ones the first; the same in another instance.
#[test]
fn a_new_file_goes_where_bandwidth_is() {
    let chosen = |name: &str| {
        let instance = local(name, "4");
        let rates = "500MiB,300MiB,200MiB,100MiB";
        ok(&instance, &["pool", "create", "four", "--targets", "0-3", "--max-perf", rates]);
        let mut agent = Agent::of(&instance, "a program");
        agent.ok("mkdir /forebay/d");
        ok(&instance, &["layout", "set", "--pool", "four", "/forebay/d"]);
        let mut all = create(&instance, &mut agent, &names("d/f", 11));
        // Files of target 0 are closed: it is next as often as it has fewer open files.
        let closed: Vec<usize> = (0..11).filter(|file| all[*file] == 0).collect();
        closed.iter().for_each(|file| drop(agent.ok(&format!("close d/f{file}"))));
        all.extend(create(&instance, &mut agent, &names("d/g", 3)));
        all
    };
    let all = chosen("poolgo");
    // 500, 300, 250, 200, 166, 150, 125, 100: each in turn of its size.
    assert_eq!(all[..11], [0, 1, 0, 2, 0, 1, 0, 0, 1, 2, 3]);
    assert_eq!(all[11..], [0, 0, 0]);
    assert_eq!(chosen("poolgo2"), all, "equal inputs, equal choices");
}

#[test]
fn pools_survive_killed_daemons_and_restarts() {
    let instance = local("poolkill", "3");
    ok(&instance, &["pool", "create", "last", "--targets", "2"]);
    let shell = |script: &str| {
        let output = instance.program(&["sh", "-ec", script]).output().expect("it runs");
        assert!(output.status.success(), "{script}: {}", text(&output.stderr));
    };
    // Directories in the root are on all daemons in turn.
    shell("for d in 0 1 2 3 4 5; do mkdir /forebay/$d; done");
    for directory in 0..6 {
        ok(&instance, &["layout", "set", "--pool", "last", &format!("/forebay/{directory}")]);
    }
    let daemons = [0, 1, 2].map(|index| instance.daemon(index));
    daemons.iter().for_each(|daemon| daemon.kill());
    daemons.iter().for_each(|daemon| daemon.wait());
    instance.start_again();
    assert_eq!(as_json(&instance, &["pool", "list", "--json"])[0]["name"], "last");
    shell("for d in 0 1 2 3 4 5; do head -c 100000 /dev/zero >/forebay/$d/f; done");
    for directory in 0..6 {
        assert_eq!(target(&instance, &format!("/forebay/{directory}/f")), 2);
    }
    shell("rm /forebay/*/f");
    wait_for("the space to be free again", || instance.used() == 0);
}

/// Opens new files, of a size but without a byte, until one is on a target that is wanted.
fn open_until(instance: &Instance, agent: &mut Agent, prefix: &str, is_it: impl Fn(u64) -> bool) {
    let mut count = 0;
    wait_for("a file on another target", || {
        count += 1;
        agent.ok(&format!("open {prefix}{count} /forebay/{prefix}{count} c"));
        agent.ok(&format!("ftruncate {prefix}{count} - 300000"));
        is_it(target(instance, &format!("/forebay/{prefix}{count}")))
    });
}

#[test]
fn a_target_that_is_dead_gets_no_new_file_until_it_is_back() {
    let instance = local("pooldead", "3");
    let rates = "1GiB,1GiB,8GiB";
    ok(&instance, &["pool", "create", "p", "--targets", "0-2", "--max-perf", rates]);
    // Daemon 0 has the root.
    ok(&instance, &["layout", "set", "--pool", "p", "/forebay"]);
    let mut agent = Agent::of(&instance, "a program");
    assert_eq!(create(&instance, &mut agent, &names("f", 2)), [2, 2]);
    let state = || as_json(&instance, &["pool", "show", "p", "--json"])["targets"][2].clone();
    assert_eq!(state()["state"], "up");

    let daemon = instance.daemon(2);
    daemon.kill();
    daemon.wait();
    assert_eq!(state()["state"], "down");
    assert!(ok(&instance, &["pool", "list"]).contains("0,1,2 (down)"));
    open_until(&instance, &mut agent, "g", |target| target != 2);
    let targets = create(&instance, &mut agent, &names("h", 4));
    assert!(targets.iter().all(|target| *target != 2), "{targets:?}");
    instance.start_again();
    assert_eq!(state()["state"], "up");
    // The more files the others have, the better it is.
    open_until(&instance, &mut agent, "i", |target| target == 2);
}

/// A pool that one host makes is used by the daemons of the other, for programs of both.
#[test]
fn a_pool_reaches_the_daemons_of_all_hosts() {
    let Some(world) = World::started(&[]) else { return };
    world.ok("a", &["pool", "create", "far", "--targets", "1"]);
    for host in ["a", "b"] {
        for number in 0..4 {
            let directory = format!("/forebay/{host}{number}");
            let script = "mkdir $1";
            world.shell(host, script, &directory);
            world.ok(host, &["layout", "set", "--pool", "far", &directory]);
            world.shell(
                host,
                "head -c 300000 /dev/zero >$1/f; head -c 10 /dev/zero >$1/small",
                &directory,
            );
            for other in ["a", "b"] {
                let file = format!("{directory}/f");
                let layout = world.ok(other, &["layout", "get", "--json", &file]);
                let layout: Value = serde_json::from_str(&layout).expect("JSON");
                assert_eq!((&layout["targets"], &layout["pool"]), (&json!([1]), &json!("far")));
                world.shell(
                    other,
                    "cmp -n 300000 $1/f /dev/zero && cmp -n 10 $1/small /dev/zero",
                    &directory,
                );
            }
        }
    }
}

/// The link of host b passes 16 Mbit/s, a small part of what a busy machine passes as well, that of
/// host c all: while a program on host a writes to targets of both, target 1 is found slow, new files
/// avoid it, and it returns when its link is well.
/// Many children of one process, which share its session, write more than their target takes within
/// the timeout of the instance: each gets its turn, and none an error.
#[test]
fn children_that_share_a_session_are_served_in_order() {
    const CHILDREN: &str = r"
import os, sys
path, count, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
files = [os.open(f'{path}/f{file}', os.O_RDWR | os.O_CREAT | os.O_EXCL) for file in range(count)]
held, release = os.pipe()
children = []
for file in files:
    child = os.fork()
    if child == 0:
        os.close(release)
        os.read(held, 1)
        block = bytes([file % 251]) * size
        for part in range(2):
            assert os.pwrite(file, block, part * size) == size
        os.fsync(file)
        os._exit(0)
    children.append(child)
os.close(release)
failed = [child for child in children if os.waitpid(child, 0)[1] != 0]
assert not failed, f'{len(failed)} children failed'
";
    let Some(world) = World::started(&[("FOREBAY_TIMEOUT", "2s"), ("FOREBAY_MEMORY", "256MiB")])
    else {
        return;
    };
    world.ok("a", &["pool", "create", "slow", "--targets", "1", "--max-perf", "10M"]);
    world.shell("a", "mkdir $1", "/forebay/d");
    world.ok("a", &["layout", "set", "--pool", "slow", "/forebay/d"]);
    let (count, size) = (300, 128 << 10);
    let begun = std::time::Instant::now();
    let numbers = [count, size].map(|number: u64| number.to_string());
    let words = ["run", "--", "python3", "-c", CHILDREN, "/forebay/d", &numbers[0], &numbers[1]];
    world.ok("a", &words);
    println!("{count} children after {:?}", begun.elapsed());
    let sizes = world.shell("a", "cat $1/* | wc -c", "/forebay/d");
    assert_eq!(sizes.trim(), (count * size * 2).to_string());
    world.end();
}

#[test]
fn a_throttled_target_is_found_and_avoided_and_returns() {
    let Some(world) = World::started(&[]) else { return };
    // Equal speeds, so that each target gets a file of the writers: those measured at the start of a busy
    // machine may differ by more than two times, and a target without a file is not found slow.
    let equal = ["1G"; 3].join(",");
    world.ok("a", &["pool", "create", "others", "--targets", "1-3", "--max-perf", &equal]);
    world.shell("a", "mkdir $1", "/forebay/d");
    world.ok("a", &["layout", "set", "--pool", "others", "/forebay/d"]);
    let files: Vec<String> = (0..3).map(|file| format!("/forebay/d/f{file}")).collect();
    let create = |name: &str| {
        world.shell("a", "head -c 100000 /dev/zero >$1", &format!("/forebay/d/{name}"));
        let path = format!("/forebay/d/{name}");
        let layout = world.ok("a", &["layout", "get", "--json", &path]);
        let layout: Value = serde_json::from_str(&layout).expect("JSON");
        layout["targets"][0].as_u64().expect("a target")
    };
    if !world.throttle("b", "16mbit", "64kb") {
        return;
    }
    let slow = || {
        let status = world.ok("a", &["status", "--json"]);
        let status: Value = serde_json::from_str(&status).expect("JSON");
        status["slow_targets"].as_array().expect("a list").clone()
    };
    assert_eq!(slow(), Vec::<Value>::new());
    let words: Vec<&str> = files.iter().map(String::as_str).collect();
    let words = [&["run", "--", "python3", "-c", WRITERS], &words[..]].concat();
    let writers = Agent::new("writers".to_owned(), world.command("a", &words));
    let begun = std::time::Instant::now();
    wait_for("target 1 to be found slow", || !slow().is_empty());
    println!("found after {:?}", begun.elapsed());
    let found = slow();
    println!("{found:?}");
    assert_eq!(
        (found.len(), &found[0]["target"], &found[0]["pool"]),
        (1, &json!(1), &json!("others"))
    );
    let rates = ["bytes_per_second", "peers_bytes_per_second"].map(|rate| found[0][rate].as_u64());
    assert!(rates[0] < rates[1].map(|peers| peers / 2), "{found:?}");
    // A line of the status, a metric, and `top`.
    wait_for("top to show it", || {
        let top = world.ok("a", &["top", "--once", "--json"]);
        let top: Value = serde_json::from_str(&top).expect("JSON");
        let shown = top["slow_targets"].as_array().expect("a list");
        shown.len() == 1 && shown[0]["target"] == 1 && shown[0]["pool"] == "others"
    });
    wait_for("the metric to show it", || {
        let metrics = world.ok("a", &["status", "--prometheus"]);
        let mut counts = metrics.lines().filter(|line| line.starts_with("forebay_slow_targets{"));
        counts.any(|line| line.ends_with(" 1"))
    });
    wait_for("the status to show it", || {
        world.ok("a", &["status"]).contains("target 1 of pool others is slow")
    });
    for number in 0..6 {
        assert_ne!(create(&format!("new{number}")), 1, "a new file on the slow target");
    }
    world.unthrottle("b");
    wait_for("target 1 to return", || slow().is_empty());
    let mut number = 0;
    wait_for("new files to use it again", || {
        number += 1;
        create(&format!("after{number}")) == 1
    });
    drop(writers);
}

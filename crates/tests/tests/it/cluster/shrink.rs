//! Daemons leave an instance with all that they have, while programs use it, and others die meanwhile.

use super::followers::wait_until_all_have_copies;
use super::grow::{CHURN, await_presences, targets};
use super::replicas::{
    COPIED, ROUNDS, await_copies, await_rounds, check, end, fill, fill_from, python,
};
use super::{presences, status};
use crate::support::agent::{Agent, signal};
use crate::support::world::{SPARE, World};
use crate::support::{text, wait_for};
use serde_json::Value;
use std::process::{Child, Output, Stdio};

const SIX: &str = "a 10.79.0.1\nb 10.79.0.2\nc:2 10.79.0.3\nd:2 10.79.0.4\n";
const WITHOUT_C: &str = "a 10.79.0.1\nb 10.79.0.2\nd:2 10.79.0.4\n";
const C_HAS_LEFT: [&str; 6] = ["up", "up", "left", "left", "up", "up"];

/// An instance that has grown from four to six daemons while a program wrote, with two copies of all.
struct Grown {
    world: World,
    writer: Agent,
    churn: Agent,
}

const OLD: &str = "/forebay/old";
const NEW: &str = "/forebay/new";
const WRITTEN: &str = "/forebay/written";
const DIRECTORIES: [&str; 3] = ["/forebay/a", "/forebay/b", "/forebay/c"];

impl Grown {
    fn new() -> Option<Grown> {
        let mut settings = COPIED.to_vec();
        settings.push(("FOREBAY_PLACEMENT", "hash"));
        let world = World::started(&settings)?;
        assert!(world.add_host(SPARE, 4), "a fourth host");
        await_presences(&world, 4);
        wait_until_all_have_copies(&world);
        // A directory is at the host that made it.
        for (host, directory) in ["a", "b", "c"].into_iter().zip(DIRECTORIES) {
            world.shell(host, "mkdir $1", directory);
        }
        fill(&world, OLD);
        let writer = python(&world, "a", ROUNDS, &["write", WRITTEN]);
        let churn = python(&world, "b", CHURN, &[&["b"], &DIRECTORIES[..]].concat());
        let mut grown = Grown { world, writer, churn };
        grown.go_on();
        let answer = grown.world.ok("a", &["grow", "d:2 10.79.0.4"]);
        assert!(answer.contains("has 6 daemons now: new daemons 4, 5"), "{answer}");
        std::fs::write(grown.world.path("nodes"), SIX).expect("written");
        await_presences(&grown.world, 6);
        grown.go_on();
        fill(&grown.world, NEW);
        assert_eq!(targets(&grown.world, OLD), (0..4).collect());
        assert_eq!(targets(&grown.world, NEW), (0..6).collect());
        await_copies(&grown.world);
        Some(grown)
    }

    fn go_on(&mut self) {
        await_rounds(&mut self.writer);
        await_rounds(&mut self.churn);
    }

    /// Ends the programs, and compares all bytes on these hosts.
    fn end(mut self, hosts: &[&str]) -> World {
        self.go_on();
        end(&mut self.churn);
        let last = end(&mut self.writer);
        let Grown { world, writer, churn } = self;
        drop((writer, churn));
        check_files(&world, hosts, last);
        world
    }
}

fn check_files(world: &World, hosts: &[&str], last: u64) {
    for host in hosts {
        check(world, host, OLD, 0);
        check(world, host, NEW, 0);
        check(world, host, WRITTEN, last);
    }
}

fn begin(world: &World, words: &[&str]) -> Child {
    let mut command = world.command("a", &[&["shrink"], words].concat());
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the script runs")
}

fn ended(child: Child) -> Output {
    child.wait_with_output().expect("it ends")
}

/// The only line of a refusal.
fn refused(world: &World, words: &[&str]) -> String {
    let output = ended(begin(world, words));
    let answer = text(&output.stderr).trim().to_owned();
    assert!(!output.status.success() && answer.lines().count() == 1, "{words:?}: {answer}");
    answer
}

fn kill(world: &World, daemon: usize) {
    let pid = status(world)["daemons"][daemon]["pid"].as_u64();
    signal(pid.and_then(|pid| u32::try_from(pid).ok()).expect("a process"), "-KILL");
}

fn await_leaving(world: &World, daemon: usize) {
    wait_for("a daemon leaves", || presences(world).get(daemon).is_some_and(|it| it == "leaving"));
}

/// Nothing of the daemons of host c is there.
fn assert_left(world: &World) {
    assert_eq!(presences(world), C_HAS_LEFT);
    let daemons = status(world)["daemons"].as_array().expect("daemons").clone();
    let hosts: Vec<&str> = daemons.iter().filter_map(|one| one["host"].as_str()).collect();
    assert_eq!(hosts, ["a", "b", "d", "d"]);
    let user = rustix::process::geteuid().as_raw();
    let name = format!("forebay-{user}-{}", world.prefix);
    assert!(!std::path::Path::new("/dev/shm").join(&name).join("h2").exists(), "its memory");
    for daemon in ["d2", "d3"] {
        assert!(!world.path("data").join(&name).join(daemon).exists(), "its files");
    }
}

/// A directory with a pool.
const POOLED: &str = "/forebay/pooled";

/// Makes a file there; its target.
fn pooled_target(world: &World, name: &str) -> u64 {
    let file = format!("{POOLED}/{name}");
    world.shell("a", "head -c 300000 /dev/zero >$1", &file);
    let layout = world.ok("a", &["layout", "get", "--json", &file]);
    let layout: Value = serde_json::from_str(&layout).expect("JSON");
    assert_eq!(layout["pool"], "p", "{layout}");
    layout["targets"][0].as_u64().expect("a target")
}

#[test]
fn daemons_of_the_beginning_leave_while_programs_use_their_files() {
    let Some(mut grown) = Grown::new() else { return };
    let mut user = Agent::preloaded(&grown.world, "c", "/forebay");
    user.ok(&format!("stat {OLD}"));
    for (words, part) in [
        (&["x"][..], "no such node: x"),
        (&["b", "c", "d"], "too small: 1 failure domain would be up"),
        (&["c"], "in use: instance"),
        (&["a"], "in use: instance"),
    ] {
        let answer = refused(&grown.world, words);
        assert!(answer.contains(part), "{words:?}: {answer}");
    }
    drop(user);
    // Targets of daemons that stay, and one of a daemon that leaves, with the largest part.
    let pool = ["pool", "create", "p", "--targets", "0,2,4", "--max-perf", "1GiB,9GiB,1GiB"];
    grown.world.ok("a", &pool);
    grown.world.shell("a", "mkdir $1", POOLED);
    grown.world.ok("a", &["layout", "set", "--pool", "p", POOLED]);
    let before = pooled_target(&grown.world, "before");
    assert_eq!(before, 2);
    let answer = grown.world.ok("a", &["shrink", "c"]);
    assert!(answer.contains("has 4 daemons now: daemons 2, 3 left"), "{answer}");
    assert_left(&grown.world);
    let shown: Value =
        serde_json::from_str(&grown.world.ok("a", &["pool", "show", "p", "--json"])).expect("JSON");
    let states = [0, 1, 2].map(|target| shown["targets"][target]["state"].as_str().expect("one"));
    assert_eq!(states, ["up", "left", "up"]);
    for name in ["x", "y", "z"] {
        assert_ne!(pooled_target(&grown.world, name), 2, "nothing new is on it");
    }
    grown.world.shell("b", "cmp -n 300000 $1/before /dev/zero", POOLED);
    grown.go_on();
    fill(&grown.world, NEW);
    await_copies(&grown.world);
    let answer = refused(&grown.world, &["c"]);
    assert!(answer.contains("c has left instance"), "{answer}");

    std::fs::write(grown.world.path("nodes"), WITHOUT_C).expect("written");
    let world = grown.end(&["a", "b", SPARE]);
    // The others come back without them.
    kill(&world, 2);
    world.start();
    wait_for("all take part again", || presences(&world) == C_HAS_LEFT);
    await_copies(&world);
    for host in ["a", "b", SPARE] {
        check(&world, host, OLD, 0);
        check(&world, host, NEW, 0);
    }
    // Their host may come again, under another number.
    let answer = world.ok("a", &["grow", "c 10.79.0.3"]);
    assert!(answer.contains("has 5 daemons now: new daemon 6"), "{answer}");
    wait_for("it takes part", || presences(&world).get(6).is_some_and(|it| it == "up"));
    await_copies(&world);
    check(&world, "c", OLD, 0);
    check(&world, "c", NEW, 0);
    world.end();
}

/// The names of the rules that a host knows.
fn rules(world: &World, host: &str) -> Vec<String> {
    let shown: Value =
        serde_json::from_str(&world.ok(host, &["qos", "show", "--json"])).expect("an object");
    let rules = shown["rules"].as_array().expect("rules").iter();
    rules.map(|rule| rule["name"].as_str().expect("a name").to_owned()).collect()
}

#[test]
fn the_host_of_the_start_leaves_with_daemon_0_and_has_the_record_on() {
    let Some(mut grown) = Grown::new() else { return };
    end(&mut grown.writer);
    grown.writer = python(&grown.world, "c", ROUNDS, &["write", WRITTEN]);
    grown.world.ok("c", &["qos", "set", "before", "jobid={x}", "rate=1K"]);
    let answer = grown.world.ok("a", &["shrink", "a"]);
    assert!(answer.contains("has 5 daemons now: daemon 0 left"), "{answer}");
    let has_left = ["left", "up", "up", "up", "up", "up"];
    assert_eq!(presences(&grown.world), has_left);
    grown.go_on();
    fill_from(&grown.world, "b", NEW);
    await_copies(&grown.world);
    // Another daemon keeps the rules.
    for (host, words) in [
        ("d", ["qos", "set", "after", "jobid={y}", "rate=2K"]),
        ("b", ["qos", "set", "last", "jobid={z}", "rate=3K"]),
    ] {
        grown.world.ok(host, &words);
    }
    grown.world.ok("c", &["qos", "delete", "before"]);
    for host in ["b", "c", SPARE] {
        wait_for("all know the rules", || rules(&grown.world, host) == ["last", "after"]);
    }
    let world = grown.end(&["b", "c", SPARE]);
    // The others come back without it, and are stopped from there.
    kill(&world, 0);
    world.ok("a", &["start"]);
    wait_for("all take part again", || presences(&world) == has_left);
    await_copies(&world);
    check(&world, "b", OLD, 0);
    assert_eq!(rules(&world, "b"), ["last", "after"]);
    let answer = world.ok("a", &["grow", "a 10.79.0.1"]);
    assert!(answer.contains("has 6 daemons now: new daemon 6"), "{answer}");
    wait_for("it takes part", || presences(&world).get(6).is_some_and(|it| it == "up"));
    wait_for("it knows the rules", || rules(&world, "a") == ["last", "after"]);
    check(&world, "a", OLD, 0);
    world.end();
}

#[test]
fn a_host_that_is_lost_while_it_leaves_is_replaced_and_leaves() {
    let Some(grown) = Grown::new() else { return };
    let first = begin(&grown.world, &[SPARE]);
    await_leaving(&grown.world, 4);
    let user = rustix::process::geteuid().as_raw();
    let name = format!("forebay-{user}-{}", grown.world.prefix);
    let daemons = grown.world.daemons(SPARE);
    for daemon in daemons.iter().filter_map(|one| one["pid"].as_u64()) {
        signal(u32::try_from(daemon).expect("a process"), "-KILL");
    }
    let data = grown.world.path("data").join(&name);
    let places = [std::path::Path::new("/dev/shm").join(&name).join("h4")].into_iter();
    for place in places.chain(["d4", "d5"].map(|daemon| data.join(daemon))) {
        std::fs::remove_dir_all(place).expect("what it had");
    }
    let output = ended(first);
    let why = text(&output.stderr);
    assert!(!output.status.success() && why.contains("it died while it left"), "{why}");
    // Its daemons cannot be started any more.
    let output = ended(begin(&grown.world, &[SPARE]));
    let why = text(&output.stderr);
    assert!(!output.status.success() && why.contains("'forebay replace d'"), "{why}");
    grown.world.ok("a", &["replace", SPARE]);
    let answer = grown.world.ok("a", &["shrink", SPARE]);
    assert!(answer.contains("has 4 daemons now: daemons 4, 5 left"), "{answer}");
    let expected = ["up", "up", "up", "up", "left", "left"];
    wait_for("all others take part", || presences(&grown.world) == expected);
    await_copies(&grown.world);
    let world = grown.end(&["a", "b", "c"]);
    world.end();
}

#[test]
fn a_daemon_that_leaves_is_killed_and_another_one_meanwhile() {
    let Some(mut grown) = Grown::new() else { return };
    // The last things that programs of a host did there are lost with its daemon.
    end(&mut grown.churn);
    grown.churn = python(&grown.world, SPARE, CHURN, &[&["d"], &DIRECTORIES[..]].concat());
    let first = begin(&grown.world, &["c"]);
    await_leaving(&grown.world, 2);
    kill(&grown.world, 2);
    let output = ended(first);
    let why = text(&output.stderr);
    assert!(!output.status.success() && why.contains("it died while it left"), "{why}");
    grown.go_on();

    let second = begin(&grown.world, &["c"]);
    wait_for("it leaves again, or has left", || {
        matches!(presences(&grown.world).get(2).map(String::as_str), Some("leaving" | "left"))
    });
    await_copies(&grown.world);
    kill(&grown.world, 1);
    grown.go_on();
    let third = ended(begin(&grown.world, &["d", "--timeout", "3s"]));
    assert!(!third.status.success(), "another one leaves, or too few are up");
    wait_for("the death is agreed on", || presences(&grown.world)[1] == "down");
    let output = ended(second);
    assert!(output.status.success(), "{}", text(&output.stderr));
    std::fs::write(grown.world.path("nodes"), WITHOUT_C).expect("written");
    grown.world.start();
    wait_for("all take part", || presences(&grown.world) == C_HAS_LEFT);
    assert_left(&grown.world);
    await_copies(&grown.world);
    let world = grown.end(&["a", "b", SPARE]);
    world.end();
}

//! An instance gets daemons on another host while programs write: files are on their targets, and with
//! followers metadata services go to them.

use super::followers::wait_until_all_have_copies;
use super::replicas::{COPIED, ROUNDS, await_copies, await_rounds, check, end, fill, python};
use super::{presences, status};
use crate::support::agent::{Agent, signal};
use crate::support::world::{SPARE, World};
use crate::support::{text, wait_for};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::process::Stdio;

const WATCHED: [(&str, &str); 4] = [
    ("FOREBAY_DOMAINS", "auto"),
    ("FOREBAY_PLACEMENT", "hash"),
    ("FOREBAY_WORKERS", "2"),
    ("FOREBAY_STRIPE_SIZE", "64KiB"),
];

/// The hosts file with the spare host.
const WITH_SPARE: &str = "a 10.79.0.1\nb 10.79.0.2\nc:2 10.79.0.3\nd:2 10.79.0.4\n";

pub(super) fn await_presences(world: &World, count: usize) {
    wait_for("all daemons take part", || presences(world) == vec!["up"; count]);
}

/// The targets of a file.
pub(super) fn targets(world: &World, file: &str) -> BTreeSet<u64> {
    let layout = world.ok("a", &["layout", "get", "--json", file]);
    let layout: Value = serde_json::from_str(&layout).expect("an object");
    let targets = layout["targets"].as_array().expect("targets").iter();
    targets.map(|one| one.as_u64().expect("a number")).collect()
}

#[test]
fn an_instance_grows_while_programs_write() {
    grow_while_programs_write(&WATCHED);
}

#[test]
fn an_instance_whose_files_have_copies_grows_while_programs_write() {
    grow_while_programs_write(&[&COPIED[..], &[("FOREBAY_PLACEMENT", "hash")]].concat());
}

fn grow_while_programs_write(settings: &[(&'static str, &'static str)]) {
    let Some(world) = World::started(settings) else { return };
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
    grow_twice_at_once(&world);
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
    await_copies(&world);
    // All of them come back with what they had.
    for host in [SPARE, "a"] {
        for daemon in world.daemons(host) {
            let pid = daemon["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok());
            signal(pid.expect("a process"), "-KILL");
        }
        world.start();
        await_presences(&world, 6);
        await_copies(&world);
        check_all();
    }
    assert_eq!(status(&world)["daemons"].as_array().map(Vec::len), Some(6));
    world.end();
}

/// Two commands are to add the spare host at a time: one by its name, one by the hosts file. One of them
/// does, and the other one says why it does not.
fn grow_twice_at_once(world: &World) {
    std::fs::write(world.path("nodes"), WITH_SPARE).expect("written");
    let nodes = world.path("nodes").to_string_lossy().into_owned();
    let begin = |words: &[&str]| {
        let mut command = world.command("a", &[&["grow", "--timeout", "20s"], words].concat());
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the script runs")
    };
    let both = [begin(&["--hosts", &nodes]), begin(&["d:2 10.79.0.4"])];
    let both = both.map(|command| command.wait_with_output().expect("it ends"));
    let answers = both.each_ref().map(|one| text(&one.stdout) + &text(&one.stderr));
    assert_ne!(both[0].status.success(), both[1].status.success(), "{answers:?}");
    let first = usize::from(both[1].status.success());
    assert!(answers[first].contains("has 6 daemons now: new daemons 4, 5"), "{answers:?}");
    let other = answers[1 - first].trim();
    let whys = ["all its hosts are in instance", "d is a host of instance", "busy"];
    assert!(whys.iter().any(|why| other.contains(why)), "{answers:?}");
    assert_eq!(other.lines().count(), 1, "{answers:?}");
}

pub(super) const FOLLOWED: [(&str, &str); 6] = [
    ("FOREBAY_DOMAINS", "auto"),
    ("FOREBAY_FOLLOWERS", "1"),
    ("FOREBAY_WORKERS", "2"),
    ("FOREBAY_PLACEMENT", "hash"),
    ("FOREBAY_SPREAD", "wide"),
    // On a busy machine a death is agreed on late.
    ("FOREBAY_TIMEOUT", "60s"),
];

/// Creates, looks at, renames, reads and removes a file in each of some directories, again and again.
pub(super) const CHURN: &str = in_rounds!(
    r"
import os, sys, threading
me, directories, rounds = sys.argv[1], sys.argv[2:], 0
def use(directory):
    one, two = f'{directory}/{me}-one', f'{directory}/{me}-two'
    data = f'{me} {rounds}'.encode() * 10
    fd = os.open(one, os.O_RDWR | os.O_CREAT | os.O_EXCL)
    assert os.write(fd, data) == len(data)
    os.close(fd)
    assert os.stat(one).st_size == len(data), f'{one} has another size'
    os.rename(one, two)
    assert not os.path.exists(one), f'{one} is still there'
    assert os.path.basename(two) in os.listdir(directory), f'{two} is not listed'
    fd = os.open(two, os.O_RDONLY)
    assert os.read(fd, 1000) == data, f'{two} has other bytes'
    os.unlink(two)
    assert os.fstat(fd).st_size == len(data), f'{two} has another size'
    assert os.pread(fd, 1000, 0) == data, f'{two} has other bytes without its name'
    os.close(fd)
def turn():
    for directory in directories: use(directory)
def last(): return rounds
"
);

/// The owner of each service.
pub(super) fn owners(world: &World) -> Vec<Option<u64>> {
    let owners = status(world)["membership"]["owners"].as_array().cloned().unwrap_or_default();
    owners.iter().map(Value::as_u64).collect()
}

fn await_owner(world: &World, daemons: &[u64]) {
    wait_for("services are at new daemons", || {
        let owners = owners(world);
        daemons.iter().all(|daemon| owners.contains(&Some(*daemon)))
    });
}

/// A directory of each service.
pub(super) fn directories(world: &World) -> Vec<String> {
    let mut of_services = BTreeMap::new();
    for number in 0..200 {
        let directory = format!("/forebay/d{number}");
        world.shell("a", "mkdir $1", &directory);
        let layout = world.ok("a", &["layout", "get", "--json", &directory]);
        let layout: Value = serde_json::from_str(&layout).expect("an object");
        of_services.entry(layout["service"].as_u64().expect("a number")).or_insert(directory);
        if of_services.len() == 8 {
            return of_services.into_values().collect();
        }
    }
    panic!("services without a directory: {of_services:?}");
}

/// A program with files open in all directories: one that it wrote, has locked and has not synced, and
/// one that has no name any more.
struct Holder {
    agent: Agent,
    host: &'static str,
}

impl Holder {
    fn new(world: &World, host: &'static str, directories: &[String]) -> Holder {
        let mut agent = Agent::preloaded(world, host, "/forebay");
        for (number, directory) in directories.iter().enumerate() {
            let file = format!("{directory}/held-{host}");
            for command in [
                format!("open f{number} {file} c"),
                format!("write f{number} - 0 1000 7"),
                format!("flock f{number} - w"),
                format!("lock f{number} - w 10 20"),
                format!("open g{number} {file}-gone c"),
                format!("write g{number} - 0 2000 9"),
                format!("unlink {file}-gone"),
            ] {
                agent.ok(&command);
            }
        }
        Holder { agent, host }
    }

    /// It has what it had, and writes more.
    fn check(&mut self, count: usize, size: u64) {
        for number in 0..count {
            assert_eq!(self.agent.ok(&format!("fstat f{number} -")), size.to_string());
            self.agent.ok(&format!("write f{number} - {size} 100 7"));
            assert_eq!(self.agent.ok(&format!("fstat f{number} -")), (size + 100).to_string());
            assert_eq!(self.agent.ok(&format!("fstat g{number} -")), "2000");
            assert!(self.agent.ok(&format!("read g{number} - 0 3000")).starts_with("2000 "));
        }
    }

    /// Another program meets its locks.
    fn assert_locked(&self, other: &mut Agent, directories: &[String], is_locked: bool) {
        for (number, directory) in directories.iter().enumerate() {
            let (key, file) =
                (format!("{}{number}", self.host), format!("{directory}/held-{}", self.host));
            let expected = if is_locked { "!11" } else { "ok" };
            assert_eq!(other.ask(&format!("flock {key} {file} w")), expected, "{file}");
            assert_eq!(other.ask(&format!("lock {key} {file} w 15 1")), expected, "{file}");
            if is_locked {
                assert_eq!(other.ok(&format!("test {key} {file} w 0 100")), "w 10 20");
            }
            other.ok(&format!("close {key}"));
        }
    }

    /// It closes its files: other hosts have their sizes, and may lock them.
    fn end(mut self, other: &mut Agent, directories: &[String], size: u64) {
        for (number, directory) in directories.iter().enumerate() {
            self.agent.ok(&format!("close f{number}"));
            self.agent.ok(&format!("close g{number}"));
            let stat = format!("stat {directory}/held-{}", self.host);
            assert_eq!(other.ok(&stat), size.to_string(), "{stat}");
        }
        self.assert_locked(other, directories, false);
    }
}

pub(super) fn kill(world: &World, host: &str) {
    for daemon in world.daemons(host) {
        let pid = daemon["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok());
        signal(pid.expect("a process"), "-KILL");
    }
}

/// Services go to new daemons while programs use their files. The daemons of a host are killed while they
/// do, and those of another one later.
fn services_move_beside_kills((in_the_midst, later): (&'static str, &'static str)) {
    let Some(world) = World::started(&FOLLOWED) else { return };
    assert!(world.add_host(SPARE, 4), "a fourth host");
    await_presences(&world, 4);
    wait_until_all_have_copies(&world);
    let directories = directories(&world);
    let words: Vec<&str> = directories.iter().map(String::as_str).collect();
    let churn = |host: &'static str| python(&world, host, CHURN, &[&[host], &words[..]].concat());
    let mut churns = BTreeMap::from(["a", "b", "c"].map(|host| (host, churn(host))));
    let go_on = |churns: &mut BTreeMap<_, Agent>| churns.values_mut().for_each(await_rounds);
    // The last changes of programs there are lost with the daemon of their host.
    let stop = |churns: &mut BTreeMap<&str, Agent>, host: &str| {
        churns.remove(host).map(|mut it| end(&mut it)).is_some()
    };
    let start = |host: &'static str| {
        kill(&world, host);
        world.start();
        await_presences(&world, 6);
    };
    let mut holders = ["a", "b", "c"].map(|host| Holder::new(&world, host, &directories));
    go_on(&mut churns);
    let was_there = stop(&mut churns, in_the_midst);
    let answer = world.on("a", &["grow", "--no-wait", "--timeout", "30s", "d:2 10.79.0.4"]);
    assert!(answer.status.success(), "{}", text(&answer.stderr));
    std::fs::write(world.path("nodes"), WITH_SPARE).expect("written");
    start(in_the_midst);
    await_owner(&world, &[4, 5]);
    if was_there {
        churns.insert(in_the_midst, churn(in_the_midst));
    }
    go_on(&mut churns);
    holders.iter_mut().for_each(|it| it.check(8, 1000));
    let mut other = Agent::preloaded(&world, SPARE, "/forebay");
    holders.iter().for_each(|it| it.assert_locked(&mut other, &directories, true));
    // Services come back to a home that dies.
    wait_until_all_have_copies(&world);
    let before = owners(&world);
    stop(&mut churns, later);
    start(later);
    wait_for("services are at home", || owners(&world) == before);
    go_on(&mut churns);
    holders.iter_mut().for_each(|it| it.check(8, 1100));
    churns.values_mut().for_each(|churn| {
        end(churn);
    });
    drop(churns);
    let mut other = Agent::preloaded(&world, SPARE, "/forebay");
    holders.iter().for_each(|it| it.assert_locked(&mut other, &directories, true));
    for holder in holders {
        holder.end(&mut other, &directories, 1200);
    }
    for directory in &directories {
        assert_eq!(other.ok(&format!("list {directory}")), "held-a held-b held-c");
    }
    drop(other);
    world.end();
}

#[test]
fn services_go_to_new_daemons_that_are_killed_meanwhile() {
    services_move_beside_kills(("d", "a"));
}

#[test]
fn services_leave_a_daemon_that_is_killed_meanwhile() {
    services_move_beside_kills(("a", "d"));
}

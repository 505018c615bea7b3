//! Commands that add, remove and replace hosts are killed at each of their steps, and daemons while
//! services and copies move. Given again, or by a start, the commands end, and nothing that programs
//! wrote is lost.

use super::followers::wait_until_all_have_copies;
use super::grow::{CHURN, await_presences};
use super::replicas::{COPIED, await_copies, await_rounds, end, end_host, python};
use super::{presences, status};
use crate::support::agent::{Agent, signal};
use crate::support::world::{SPARE, World};
use crate::support::{text, wait_for};
use serde_json::Value;
use std::collections::BTreeMap;
use std::process::Stdio;

/// The requests of `forebay grow` to other hosts, in their order, and when it is killed. The daemons of
/// the new host are added one after the other, so one of two is before the second kill.
const GROWTH: [&str; 7] = [
    "before daemon-status",
    "before daemon-add",
    "after daemon-add",
    "before daemon-start",
    "after daemon-start",
    "before daemon-peers",
    "after daemon-peers",
];

/// Those of `forebay shrink`.
const DEPARTURE: [&str; 8] = [
    "before daemon-idle",
    "after daemon-idle",
    "before daemon-leave",
    "after daemon-leave",
    "before daemon-peers",
    "after daemon-peers",
    "before daemon-stop",
    "after daemon-stop",
];

/// It ends while services move.
const GROW: [&str; 5] = ["grow", "--no-wait", "--timeout", "60s", "d:2 10.79.0.4"];

/// Puts files with new contents in the place of those before, again and again, each synced with its
/// name. `check ROUNDS` compares them after that number of rounds.
const ARBITER: &str = in_rounds!(
    r"
import os, sys, threading
verb, me, directories = sys.argv[1], sys.argv[2], sys.argv[4:]
rounds, FILES = int(sys.argv[3]), 24
def place(number): return f'{directories[number % len(directories)]}/{me}-kept-{number % FILES}'
def content(number): return f'{me} {number}\n'.encode() * 500
def sync(path, flags):
    fd = os.open(path, flags)
    os.fsync(fd)
    os.close(fd)
def put(number):
    path = place(number)
    fd = os.open(path + '.new', os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    assert os.write(fd, content(number)) == len(content(number))
    os.fsync(fd)
    os.close(fd)
    os.rename(path + '.new', path)
    sync(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY)
def compare(number):
    with open(place(number), 'rb') as file: found = file.read()
    assert found == content(number), f'{place(number)} has {found[:40]} for {number}'
def turn():
    put(rounds)
    if rounds % 5 == 0: compare(max(0, rounds - FILES + 1))
def last(): return rounds
if verb == 'check':
    for number in range(max(0, rounds - FILES), rounds): compare(number)
    print('whole')
    sys.exit()
"
);

/// Programs of several hosts that check what they do, in directories of several services.
struct Load {
    directories: Vec<String>,
    programs: BTreeMap<&'static str, [Agent; 2]>,
    /// Rounds of the arbiter of each host whose programs have ended.
    rounds: BTreeMap<&'static str, u64>,
}

impl Load {
    fn new(world: &World) -> Load {
        let directories = ["a", "b", "c"].map(|host| {
            // A directory is at the host that made it.
            let directory = format!("/forebay/of-{host}");
            world.shell(host, "mkdir $1", &directory);
            directory
        });
        let (programs, rounds) = (BTreeMap::new(), BTreeMap::new());
        Load { directories: directories.to_vec(), programs, rounds }
    }

    /// Starts the programs of a host, or starts them again.
    fn begin(&mut self, world: &World, host: &'static str) {
        let words: Vec<&str> = self.directories.iter().map(String::as_str).collect();
        let round = self.rounds.remove(host).unwrap_or(0).to_string();
        let arbiter = [&["keep", host, &round], &words[..]].concat();
        let arbiter = python(world, host, ARBITER, &arbiter);
        let churn = python(world, host, CHURN, &[&[host], &words[..]].concat());
        self.programs.insert(host, [arbiter, churn]);
    }

    /// Ends those of a host: their last changes would be lost with its daemon.
    fn end(&mut self, host: &'static str) -> bool {
        let Some([mut arbiter, mut churn]) = self.programs.remove(host) else { return false };
        end(&mut churn);
        self.rounds.insert(host, end(&mut arbiter));
        true
    }

    fn go_on(&mut self) {
        self.programs.values_mut().flatten().for_each(await_rounds);
    }

    /// Ends all of them, and looks at all that they put from these hosts.
    fn check(&mut self, world: &World, hosts: &[&'static str]) {
        self.go_on();
        for host in Vec::from_iter(self.programs.keys().copied()) {
            self.end(host);
        }
        let directories: Vec<&str> = self.directories.iter().map(String::as_str).collect();
        for on in hosts {
            for (of, rounds) in &self.rounds {
                let rounds = rounds.to_string();
                let words = ["run", "--", "python3", "-c", ARBITER, "check", of, &rounds];
                let words = [&words[..], &directories].concat();
                assert_eq!(world.ok(on, &words), "whole\n", "files of {of} on {on}");
            }
        }
    }
}

/// An instance with copies of all on hosts a, b and c, and a host d.
fn started() -> Option<World> {
    let world = World::started(&[&COPIED[..], &[("FOREBAY_PLACEMENT", "hash")]].concat())?;
    assert!(world.add_host(SPARE, 4), "a fourth host");
    await_presences(&world, 4);
    wait_until_all_have_copies(&world);
    Some(world)
}

fn refused(world: &World, words: &[&str]) -> String {
    let output = world.on("a", words);
    let answer = text(&output.stderr).trim().to_owned();
    assert!(!output.status.success() && answer.lines().count() == 1, "{words:?}: {answer}");
    answer
}

#[test]
fn commands_that_are_killed_at_each_step_end_when_they_are_given_again() {
    let Some(world) = started() else { return };
    let mut load = Load::new(&world);
    for host in ["a", "b"] {
        load.begin(&world, host);
    }
    load.go_on();
    for moment in GROWTH {
        world.killed_at(moment, &GROW);
        load.go_on();
    }
    let answer = refused(&world, &["grow", "d 10.79.0.4"]);
    assert!(answer.contains("as 'd:2 10.79.0.4': give that again"), "{answer}");
    let answer = world.ok("a", &GROW);
    assert!(answer.contains("has 6 daemons now: new daemons 4, 5"), "{answer}");
    let answer = refused(&world, &GROW);
    assert!(answer.contains("d is a host of instance"), "{answer}");
    await_presences(&world, 6);
    await_copies(&world);
    load.begin(&world, SPARE);
    load.go_on();
    for moment in DEPARTURE {
        world.killed_at(moment, &["shrink", "c"]);
        load.go_on();
    }
    let answer = refused(&world, &["grow", "c:2 10.79.0.3"]);
    assert!(answer.contains("'forebay shrink c' again"), "{answer}");
    let answer = world.ok("a", &["shrink", "c"]);
    assert!(answer.contains("has 4 daemons now: daemons 2, 3 left"), "{answer}");
    assert_eq!(presences(&world), ["up", "up", "left", "left", "up", "up"]);
    let answer = refused(&world, &["shrink", "c"]);
    assert!(answer.contains("c has left instance"), "{answer}");
    await_copies(&world);
    load.check(&world, &["a", "b", SPARE]);
    world.end();
}

#[test]
fn a_start_completes_the_growth_that_a_killed_command_began() {
    let Some(world) = started() else { return };
    let mut load = Load::new(&world);
    load.begin(&world, "a");
    load.go_on();
    // The membership has a daemon of which nobody else knows: others come back beside it.
    world.killed_at("after daemon-add", &GROW);
    signal(world.pid("b"), "-KILL");
    world.ok("a", &["start"]);
    wait_for("all others take part", || {
        let known = presences(&world);
        known.len() > 4 && known.iter().take(4).all(|it| it == "up")
    });
    load.go_on();
    // The record has its host, where nothing runs.
    world.killed_at("before daemon-start", &GROW);
    signal(world.pid("b"), "-KILL");
    load.go_on();
    world.ok("a", &["start"]);
    await_presences(&world, 6);
    let answer = refused(&world, &GROW);
    assert!(answer.contains("d is a host of instance"), "{answer}");
    await_copies(&world);
    load.begin(&world, SPARE);
    load.check(&world, &["a", "b", "c", SPARE]);
    world.end();
}

#[test]
fn a_start_completes_the_replacement_that_a_killed_command_began() {
    let Some(world) = started() else { return };
    let mut load = Load::new(&world);
    for host in ["a", "c"] {
        load.begin(&world, host);
    }
    load.go_on();
    for (moment, lost, spare) in [
        ("before daemon-start", "b", "d 10.79.0.4"),
        ("after daemon-start", SPARE, "b 10.79.0.2"),
        ("before daemon-peers", "b", "d 10.79.0.4"),
    ] {
        end_host(&world, lost, 1);
        load.go_on();
        world.killed_at(moment, &["replace", lost, "--with", spare]);
        load.go_on();
        world.ok("a", &["start"]);
        await_presences(&world, 4);
        wait_until_all_have_copies(&world);
        await_copies(&world);
    }
    load.check(&world, &["a", "c", SPARE]);
    world.end();
}

/// A daemon that is killed while services and copies move.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Victim {
    Leader,
    /// One that was added, or that leaves.
    Mover,
    /// One that gives to those that were added, and gets from those that leave.
    Other,
}

/// The membership, as its leader knows it.
fn membership(world: &World) -> Option<Value> {
    let status = status(world);
    let daemons = status["daemons"].as_array().expect("daemons");
    let mut known = daemons.iter().map(|one| &one["state"]["membership"]);
    known.find(|one| one["leads"] == true).cloned()
}

/// Waits until a service goes to another home, unless as many daemons as are to be have their services.
fn await_move(world: &World, is_over: impl Fn(&Value) -> bool) {
    wait_for("a service goes to another home", || {
        let known = membership(world);
        known.is_some_and(|it| it["services_moving"].as_u64() > Some(0) || is_over(&it))
    });
}

impl Victim {
    fn daemon(self, world: &World) -> usize {
        let leads = |one: &Value| one["state"]["membership"]["leads"] == true;
        let mut daemon = None;
        wait_for("a daemon leads", || {
            let status = status(world);
            let daemons = status["daemons"].as_array().expect("daemons");
            daemon = match self {
                Victim::Leader => daemons.iter().position(leads),
                Victim::Mover => daemons.len().checked_sub(1),
                Victim::Other => Some(1),
            };
            daemon.is_some()
        });
        daemon.expect("a daemon")
    }

    /// Kills it once services move. Returns its host, whose programs have ended.
    fn kill(
        self,
        world: &World,
        load: &mut Load,
        is_over: impl Fn(&Value) -> bool,
    ) -> &'static str {
        let daemon = status(world)["daemons"][self.daemon(world)].clone();
        let host = ["a", "b", "c", SPARE].into_iter().find(|host| daemon["host"] == **host);
        let host = host.expect("a host");
        load.end(host);
        await_move(world, is_over);
        let pid = daemon["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok());
        signal(pid.expect("a process"), "-KILL");
        load.go_on();
        host
    }

    /// An instance gets two daemons, and these leave; both times this one is killed meanwhile.
    fn dies_while_services_and_copies_move(self) {
        let Some(world) = started() else { return };
        let mut load = Load::new(&world);
        for host in ["a", "b", "c"] {
            load.begin(&world, host);
        }
        load.go_on();
        world.ok("a", &GROW);
        let has_services = |known: &Value, daemon: u64| {
            let owners = known["owners"].as_array().expect("owners");
            owners.iter().any(|owner| *owner == daemon)
        };
        let host = self.kill(&world, &mut load, |known| has_services(known, 5));
        world.ok("a", &["start"]);
        await_presences(&world, 6);
        if host != SPARE {
            load.begin(&world, host);
        }
        load.go_on();
        wait_for("services are at both", || {
            let known = membership(&world);
            known.is_some_and(|it| has_services(&it, 4) && has_services(&it, 5))
        });
        await_copies(&world);

        let mut command = world.command("a", &["shrink", SPARE]);
        let command = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        wait_for("it leaves", || {
            presences(&world).iter().any(|it| *it == "leaving" || *it == "left")
        });
        let host = self.kill(&world, &mut load, |known| !has_services(known, 5));
        let output = command.expect("the script runs").wait_with_output().expect("it ends");
        if self == Victim::Mover {
            // It had perhaps left when it died.
            let why = text(&output.stderr);
            assert!(output.status.success() || why.contains("it died while it left"), "{why}");
        } else {
            world.ok("a", &["start"]);
        }
        if !output.status.success() {
            let answer = world.ok("a", &["shrink", SPARE]);
            assert!(answer.contains("has 4 daemons now: daemons 4, 5 left"), "{answer}");
        }
        let expected = ["up", "up", "up", "up", "left", "left"];
        wait_for("the others take part", || presences(&world) == expected);
        if host != SPARE {
            load.begin(&world, host);
        }
        await_copies(&world);
        load.check(&world, &["a", "b", "c"]);
        world.end();
    }
}

#[test]
fn the_leader_dies_while_daemons_are_added_and_leave() {
    Victim::Leader.dies_while_services_and_copies_move();
}

#[test]
fn a_daemon_dies_while_it_is_added_and_while_it_leaves() {
    Victim::Mover.dies_while_services_and_copies_move();
}

#[test]
fn a_daemon_dies_while_it_gives_services_and_copies_to_new_ones_and_gets_those_that_leave() {
    Victim::Other.dies_while_services_and_copies_move();
}

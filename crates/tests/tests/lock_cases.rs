//! Two processes that lock ranges of a file, whole files and what is not there, wait, end and are killed:
//! `programs/lock_cases.txt` says what they do, and each answer is that of a local file system, where two
//! others do the same. On one mount and on mounts of two hosts, by both ways of requests, and preloaded.
//!
//! Needs root for network namespaces, and `/dev/fuse`; without, the tests say so and state nothing.

mod support;

use std::path::Path;
use std::process::Command;
use support::agent::{Agent, Mount};
use support::mounted::Offered;
use support::world::World;

const CASES: &str = include_str!("../programs/lock_cases.txt");
const LOCKER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/programs/locker.py");

/// What a line of a case has a process do.
enum Step<'a> {
    Ask(&'a str),
    Begin(&'a str),
    Hear,
}

/// Which of the two, and what.
fn step(line: &str) -> (usize, Step<'_>) {
    let (who, what) = line.split_at(1);
    let who = who.parse().unwrap_or_else(|_| panic!("no process: {line}"));
    let step = match what.split_at(1) {
        (">", what) => Step::Begin(what.trim()),
        ("<", _) => Step::Hear,
        (_, what) => Step::Ask(what),
    };
    (who, step)
}

/// Each case: its name and its lines.
fn cases() -> impl Iterator<Item = (&'static str, Vec<&'static str>)> {
    CASES.split("\n== ").skip(1).map(|case| {
        let mut lines = case.lines().filter(|line| !line.is_empty());
        (lines.next().expect("a name"), lines.collect())
    })
}

/// Plays all cases in directories of their own: each line, and what it came to.
fn play(seats: &mut [Agent; 2]) -> Vec<String> {
    let mut said = vec![];
    for (number, (name, lines)) in cases().enumerate() {
        said.push(format!("== {name}"));
        seats[0].ok(&format!("mkdir c{number}"));
        let name = |who: usize| (seats[who].pid.to_string(), format!("process {who}"));
        let mut pids: Vec<(String, String)> = [0, 1].map(name).into();
        for seat in &mut *seats {
            seat.ok(&format!("cd c{number}"));
        }
        for line in lines {
            let (who, step) = step(line);
            let answer = match step {
                Step::Ask(what) => seats[who].ask(what),
                Step::Hear => seats[who].hear(),
                Step::Begin(what) => {
                    seats[who].begin(what);
                    continue;
                }
            };
            if let Some(pid) = answer.strip_prefix("forked ") {
                pids.push((pid.to_owned(), format!("a child of {who}")));
            }
            let named = |said: String, (pid, name): &(String, String)| {
                let (known, number) = said.rsplit_once(' ').unwrap_or((&said, ""));
                if number == pid { format!("{known} {name}") } else { said }
            };
            said.push(format!("{line}: {}", pids.iter().fold(answer, named)));
        }
        for seat in &mut *seats {
            seat.ok("reset");
            seat.ok("cd ..");
        }
    }
    said
}

fn words(at: &str) -> [&str; 4] {
    ["python3", "-B", LOCKER, at]
}

fn local(at: &Path) -> Agent {
    let words = words(at.to_str().expect("text"));
    let mut command = Command::new(words[0]);
    command.args(&words[1..]);
    Agent::new("local".to_owned(), command)
}

fn preloaded(world: &World, host: &str, at: &str) -> Agent {
    let at = format!("/forebay/{at}");
    let words = [&["run", "--"], &words(&at)[..]].concat();
    Agent::new(format!("preloaded on {host}"), world.command(host, &words))
}

fn mounted(mount: &Mount, at: &str) -> Agent {
    let at = format!("{}/{at}", mount.at);
    Agent::new(mount.name(), mount.command(&words(&at)))
}

/// What two processes on a local file system say.
fn expected() -> Vec<String> {
    let place = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let expected = play(&mut [local(place.path()), local(place.path())]);
    assert!(expected.len() > 500, "hardly anything is tried: {}", expected.len());
    expected
}

fn are_same(local: &str, ours: &str) -> bool {
    local == ours
}

/// On mounts a kernel asks for locks of open files and of processes alike, and says by its own rules
/// whose
/// the lock is that it was told of.
fn are_same_but_whose(local: &str, ours: &str) -> bool {
    let is_open = local.contains("ofdtest") || local.ends_with("of an open file");
    let what = |line: &str| line.split(" of ").next().map(str::to_owned);
    local == ours || (is_open && what(local) == what(ours))
}

fn compare(expected: &[String], seats: &mut [Agent; 2], are_same: fn(&str, &str) -> bool) {
    let said = play(seats);
    let (mut case, mut differ) = ("", vec![]);
    for (local, ours) in expected.iter().zip(&said) {
        if local.starts_with("== ") {
            case = local;
        }
        if !are_same(local, ours) {
            differ.push(format!("{case}\n  locally {local}\n  here    {ours}"));
        }
    }
    let names = [&seats[0].name, &seats[1].name];
    assert!(differ.is_empty(), "{names:?}:\n{}", differ.join("\n"));
    assert_eq!(expected.len(), said.len());
}

/// Directories in the root are of one shard after the other, and so of one host after the other.
fn directories(world: &World) -> impl Iterator<Item = String> {
    (0..).map(|number| {
        let name = format!("d{number}");
        world.shell("a", "mkdir /forebay/$1", &name);
        name
    })
}

#[test]
fn locks_of_preloaded_programs_are_as_on_a_local_file_system() {
    let Some(world) = World::posix() else { return };
    let expected = expected();
    for (at, hosts) in directories(&world).zip([["a", "a"], ["a", "b"], ["b", "c"]]) {
        compare(&expected, &mut hosts.map(|host| preloaded(&world, host, &at)), are_same);
    }
    world.end();
}

fn on_mounts(transport: &str) {
    let Some(world) = World::posix() else { return };
    let on = |host| Mount::by(&world, host, transport);
    let [Some(one), Some(two)] = ["a", "b"].map(on) else { return };
    let expected = expected();
    let mut directories = directories(&world);
    let mut at = || directories.next().expect("there are more");
    for pair in [[&one, &one], [&one, &two], [&two, &one]] {
        let at = at();
        compare(&expected, &mut pair.map(|mount| mounted(mount, &at)), are_same_but_whose);
    }
    for host in ["b", "c"] {
        let at = at();
        let mut seats = [mounted(&two, &at), preloaded(&world, host, &at)];
        compare(&expected, &mut seats, are_same_but_whose);
    }
    drop((one, two));
    world.end();
}

#[test]
fn locks_on_mounts_are_as_on_a_local_file_system() {
    on_mounts("classic");
}

#[test]
fn locks_on_mounts_by_rings_are_as_on_a_local_file_system() {
    if Offered::can_be() {
        on_mounts("rings");
    }
}

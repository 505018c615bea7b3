//! Two processes that lock ranges of a file, whole files and missing files, wait, end and are
//! killed: `programs/lock_cases.txt` lists their steps, and each answer must be that of two
//! processes on a local file system. On one mount and on mounts of two hosts, by both request
//! transports, and preloaded.
//!
//! Needs root for network namespaces, and `/dev/fuse`; without them the tests are skipped.

use crate::support::agent::{Agent, Mount};
use crate::support::mounted::UringEnabled;
use crate::support::world::World;
use std::path::Path;
use std::process::Command;

const CASES: &str = include_str!("../../../programs/lock_cases.txt");
const LOCKER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/programs/locker.py");

/// An action of a process, from a line of a case.
enum Step<'a> {
    Ask(&'a str),
    Begin(&'a str),
    Hear,
}

/// Parses a line: which of the two processes, and its action.
fn step(line: &str) -> (usize, Step<'_>) {
    let (caller, what) = line.split_at(1);
    let caller = caller.parse().unwrap_or_else(|_| panic!("no process: {line}"));
    let step = match what.split_at(1) {
        (">", what) => Step::Begin(what.trim()),
        ("<", _) => Step::Hear,
        (_, what) => Step::Ask(what),
    };
    (caller, step)
}

/// Each case: its name and its lines.
fn cases() -> impl Iterator<Item = (&'static str, Vec<&'static str>)> {
    CASES.split("\n== ").skip(1).map(|case| {
        let mut lines = case.lines().filter(|line| !line.is_empty());
        (lines.next().expect("a name"), lines.collect())
    })
}

/// Runs all cases in directories of their own: each line with its result.
fn play(agents: &mut [Agent; 2]) -> Vec<String> {
    let mut replies = vec![];
    for (number, (name, lines)) in cases().enumerate() {
        replies.push(format!("== {name}"));
        agents[0].ok(&format!("mkdir c{number}"));
        let name = |caller: usize| (agents[caller].pid.to_string(), format!("process {caller}"));
        let mut pids: Vec<(String, String)> = [0, 1].map(name).into();
        for agent in &mut *agents {
            agent.ok(&format!("cd c{number}"));
        }
        for line in lines {
            let (caller, step) = step(line);
            let answer = match step {
                Step::Ask(what) => agents[caller].ask(what),
                Step::Hear => agents[caller].reply(),
                Step::Begin(what) => {
                    agents[caller].begin(what);
                    continue;
                }
            };
            if let Some(pid) = answer.strip_prefix("forked ") {
                pids.push((pid.to_owned(), format!("a child of {caller}")));
            }
            let named = |replies: String, (pid, name): &(String, String)| {
                let (known, number) = replies.rsplit_once(' ').unwrap_or((&replies, ""));
                if number == pid { format!("{known} {name}") } else { replies }
            };
            replies.push(format!("{line}: {}", pids.iter().fold(answer, named)));
        }
        for agent in &mut *agents {
            agent.ok("reset");
            agent.ok("cd ..");
        }
    }
    replies
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

/// The results of two processes on a local file system.
fn expected() -> Vec<String> {
    let dir = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let expected = play(&mut [local(dir.path()), local(dir.path())]);
    assert!(expected.len() > 500, "too little was tested: {}", expected.len());
    expected
}

fn are_same(local: &str, ours: &str) -> bool {
    local == ours
}

/// On mounts the kernel queries locks of open files and of processes alike, and reports the owner
/// of the conflicting lock by its own rules, so the owner may differ.
fn match_except_owner(local: &str, ours: &str) -> bool {
    let is_open = local.contains("ofdtest") || local.ends_with("of an open file");
    let what = |line: &str| line.split(" of ").next().map(str::to_owned);
    local == ours || (is_open && what(local) == what(ours))
}

fn compare(expected: &[String], agents: &mut [Agent; 2], are_same: fn(&str, &str) -> bool) {
    let replies = play(agents);
    let (mut case, mut differ) = ("", vec![]);
    for (local, ours) in expected.iter().zip(&replies) {
        if local.starts_with("== ") {
            case = local;
        }
        if !are_same(local, ours) {
            differ.push(format!("{case}\n  locally {local}\n  here    {ours}"));
        }
    }
    let names = [&agents[0].name, &agents[1].name];
    assert!(differ.is_empty(), "{names:?}:\n{}", differ.join("\n"));
    assert_eq!(expected.len(), replies.len());
}

/// Directories in the root are on the shards in turn, and so on the hosts in turn.
fn directories(world: &World) -> impl Iterator<Item = String> {
    (0..).map(|number| {
        let name = format!("d{number}");
        world.shell("a", "mkdir /forebay/$1", &name);
        name
    })
}

#[test]
fn locks_of_preloaded_programs_behave_as_on_a_local_file_system() {
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
        compare(&expected, &mut pair.map(|mount| mounted(mount, &at)), match_except_owner);
    }
    for host in ["b", "c"] {
        let at = at();
        let mut agents = [mounted(&two, &at), preloaded(&world, host, &at)];
        compare(&expected, &mut agents, match_except_owner);
    }
    drop((one, two));
    world.end();
}

#[test]
fn locks_on_mounts_behave_as_on_a_local_file_system() {
    on_mounts("classic");
}

#[test]
fn locks_on_mounts_over_io_uring_behave_as_on_a_local_file_system() {
    if UringEnabled::is_available() {
        on_mounts("rings");
    }
}

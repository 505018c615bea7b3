//! With replicas the bytes of files are at several hosts: programs write and read on while one is killed
//! with everything that it had, and where all copies are down they get an error for those bytes alone.

use super::{kill_host_c, presences, status, wait_until_all_are_up};
use crate::support::agent::{Agent, signal};
use crate::support::world::World;
use crate::support::{text, wait_for};
use serde_json::Value;

pub(super) const COPIED: [(&str, &str); 6] = [
    ("FOREBAY_DOMAINS", "auto"),
    ("FOREBAY_FOLLOWERS", "1"),
    ("FOREBAY_REPLICAS", "2"),
    ("FOREBAY_WORKERS", "2"),
    ("FOREBAY_STRIPE_SIZE", "64KiB"),
    // On a busy machine a death is agreed on late.
    ("FOREBAY_TIMEOUT", "60s"),
];

/// Writes a file again and again, each block with its number and that of the round, or reads one and
/// compares; or does that once (`fill`, `check`). `end` answers with the last whole round.
pub(super) const ROUNDS: &str = in_rounds!(
    r"
import os, sys, threading
verb, path, COUNT, SIZE = sys.argv[1], sys.argv[2], 32, 128 << 10
fd = os.open(path, os.O_RDWR | os.O_CREAT)
rounds = 0
def content(of, block): return (of * COUNT + block + 1).to_bytes(8, 'little') * (SIZE // 8)
def whole(call, block, done=0):
    while done < SIZE: done += call(block * SIZE + done, done)
def write(block, data): whole(lambda at, done: os.pwrite(fd, data[done:], at), block)
def compare(block, data):
    def more(at, done):
        found = os.pread(fd, SIZE - done, at)
        assert found == data[done:done + len(found)], f'block {block} differs at {at}'
        assert found, f'block {block} ends at {at}'
        return len(found)
    whole(more, block)
def turn():
    for block in range(COUNT):
        if verb == 'write': write(block, content(rounds, block))
        else: compare(block, content(0, block))
def last():
    # The last round is written through, or it would not be whole elsewhere.
    os.fsync(fd)
    return rounds - 1
if verb == 'fill':
    for block in range(COUNT): write(block, content(0, block))
    os.fsync(fd)
    print('whole')
    sys.exit()
if verb == 'check':
    for block in range(COUNT): compare(block, content(int(sys.argv[3]), block))
    print('whole')
    sys.exit()
"
);

/// One byte of each file of one stripe, or the errno: `word` is `write` or `read`.
const MANY: &str = r"
import os, sys
word, directory, byte = sys.argv[1], sys.argv[2], int(sys.argv[3])
for number in range(60):
    try:
        how = os.O_RDWR | os.O_CREAT if word == 'write' else os.O_RDONLY
        fd = os.open(f'{directory}/f{number}', how)
        if word == 'write': os.pwrite(fd, bytes([byte]) * 50000, 0)
        found = set(os.pread(fd, 50000, 0))
        print(number, *found)
        os.close(fd)
    except OSError as error: print(number, f'!{error.errno}')
";

pub(super) fn python(world: &World, host: &str, script: &str, words: &[&str]) -> Agent {
    let all = [&["run", "--", "python3", "-c", script], words].concat();
    Agent::new(format!("{} on {host}", words[0]), world.command(host, &all))
}

/// A directory whose files are of the first daemon's services, which live in all tests.
pub(super) fn directory(world: &World) -> String {
    let is_owned_by_first = |directory: &String| {
        world.shell("a", "mkdir $1", directory);
        let layout = world.ok("a", &["layout", "get", "--json", directory]);
        serde_json::from_str::<Value>(&layout).expect("an object")["owner"] == 0
    };
    let found = (0..64).map(|number| format!("/forebay/d{number}")).find(is_owned_by_first);
    found.expect("one of 64 directories is there")
}

pub(super) fn sum(world: &World, metric: &str) -> u64 {
    let status = status(world);
    let daemons = status["daemons"].as_array().expect("daemons").iter();
    daemons.filter_map(|one| one["state"][metric].as_u64()).sum()
}

pub(super) fn await_copies(world: &World) {
    wait_for("all data has its copies", || {
        sum(world, "units_degraded") + sum(world, "units_lost") == 0
    });
}

fn rounds(agent: &mut Agent) -> u64 {
    let answer = agent.ok("rounds");
    answer.parse().unwrap_or_else(|_| panic!("{}: {answer}", agent.name))
}

/// Waits until a program has gone on for some rounds from now.
pub(super) fn await_rounds(agent: &mut Agent) {
    let before = rounds(agent);
    wait_for("a program goes on", || rounds(agent) >= before + 3);
}

pub(super) fn end(agent: &mut Agent) -> u64 {
    let answer = agent.ok("end");
    answer.parse().unwrap_or_else(|_| panic!("{}: {answer}", agent.name))
}

/// Writes the first round of a file.
pub(super) fn fill(world: &World, file: &str) {
    fill_from(world, "a", file);
}

pub(super) fn fill_from(world: &World, host: &str, file: &str) {
    let words = ["run", "--", "python3", "-c", ROUNDS, "fill", file];
    assert_eq!(world.ok(host, &words), "whole\n", "{file} from {host}");
}

pub(super) fn check(world: &World, host: &str, file: &str, round: u64) {
    let round = round.to_string();
    let words = ["run", "--", "python3", "-c", ROUNDS, "check", file, &round];
    assert_eq!(world.ok(host, &words), "whole\n", "{file} on {host}");
}

/// Kills the daemon of a host with one, and removes its memory and its files, as the death of a node
/// does.
pub(super) fn end_host(world: &World, host: &str, daemon: u16) {
    signal(world.pid(host), "-KILL");
    let user = rustix::process::geteuid().as_raw();
    let name = format!("forebay-{user}-{}", world.prefix);
    std::fs::remove_dir_all(format!("/dev/shm/{name}/h{daemon}")).expect("its memory");
    std::fs::remove_dir_all(world.path("data").join(name).join(format!("d{daemon}")))
        .expect("its files");
}

pub(super) fn end_host_b(world: &World) {
    end_host(world, "b", 1);
}

/// "how much is to be copied yet, at which rate, and when it is done" (docs/redundancy.md).
#[test]
fn the_progress_of_copies_that_are_made_anew_is_shown() {
    // 40 MiB, a part of them with a copy on host b, take a while.
    let Some(world) = World::started(&[&COPIED[..], &[("FOREBAY_TIERING_RATE", "1MiB")]].concat())
    else {
        return;
    };
    wait_until_all_are_up(&world);
    let copies = || status(&world)["copies"].clone();
    let directory = directory(&world);
    (0..10).for_each(|number| fill(&world, &format!("{directory}/f{number}")));
    assert_eq!((&copies()["bytes_unfilled"], &copies()["eta_seconds"]), (&0.into(), &0.0.into()));
    end_host_b(&world);
    wait_for("bytes are copied", || {
        let copies = copies();
        let is_more = |word: &str| copies[word].as_f64() > Some(0.0);
        ["units_degraded", "bytes_unfilled", "bytes_per_second", "eta_seconds"]
            .iter()
            .all(|it| is_more(it))
    });
    let table = text(&world.on("a", &["status"]).stdout);
    assert!(table.contains(" to be copied"), "{table}");
    let top = world.ok("a", &["top", "--once", "--json"]);
    let top: Value = serde_json::from_str(&top).expect("an object");
    assert!(top["copies"]["bytes_unfilled"].as_u64() > Some(0), "{top}");
    world.end();
}

#[test]
fn programs_write_and_read_on_while_a_node_dies_with_all_that_it_had() {
    let Some(world) = World::started(&COPIED) else { return };
    wait_until_all_are_up(&world);
    let table = text(&world.on("a", &["status"]).stdout);
    assert!(table.contains("all units of file data have 2 copies in sync"), "{table}");
    let directory = directory(&world);
    let [read, written] = ["read", "written"].map(|name| format!("{directory}/{name}"));
    fill(&world, &read);

    let mut writer = python(&world, "a", ROUNDS, &["write", &written]);
    let mut reader = python(&world, "c", ROUNDS, &["read", &read]);
    await_rounds(&mut writer);
    await_rounds(&mut reader);
    // In the middle of a round: programs are never between two of them for long.
    end_host_b(&world);
    await_rounds(&mut writer);
    await_rounds(&mut reader);
    wait_for("the death is agreed on", || presences(&world).get(1) == Some(&"down".into()));
    // The data of the node is copied anew at the others, while programs go on.
    await_copies(&world);
    assert!(sum(&world, "unit_bytes_filled") > 0);
    await_rounds(&mut writer);
    await_rounds(&mut reader);
    end(&mut reader);
    let last = end(&mut writer);
    drop((writer, reader));
    for host in ["a", "c"] {
        check(&world, host, &written, last);
        check(&world, host, &read, 0);
    }
    world.end();
}

#[test]
fn a_daemon_that_returns_has_what_was_written_without_it() {
    let Some(world) = World::started(&COPIED) else { return };
    wait_until_all_are_up(&world);
    let file = format!("{}/f", directory(&world));
    let mut writer = python(&world, "a", ROUNDS, &["write", &file]);
    for _ in 0..2 {
        await_rounds(&mut writer);
        signal(world.pid("b"), "-KILL");
        wait_for("the death is agreed on", || presences(&world).get(1) == Some(&"down".into()));
        await_rounds(&mut writer);
        world.start();
        wait_until_all_are_up(&world);
        await_copies(&world);
    }
    await_rounds(&mut writer);
    let last = end(&mut writer);
    drop(writer);
    // Bytes of which host c had the other copy are right at the daemon that returned.
    kill_host_c(&world);
    check(&world, "a", &file, last);
    check(&world, "b", &file, last);
    world.end();
}

/// Kills the two daemons of host c, one after the other, while a program there writes and another one
/// reads: first that which they have sessions with, then the one at which they went on.
fn programs_of_a_host_with_two_daemons_go_on(settings: &[(&'static str, &'static str)]) {
    let Some(world) = World::started(&[&COPIED[..], settings].concat()) else { return };
    wait_until_all_are_up(&world);
    let directory = directory(&world);
    let [read, written] = ["read", "written"].map(|name| format!("{directory}/{name}"));
    fill(&world, &read);
    let mut programs = [("write", &written), ("read", &read)]
        .map(|(verb, path)| python(&world, "c", ROUNDS, &[verb, path]));
    for (number, daemon) in [(0, 2), (1, 3), (0, 2)] {
        programs.iter_mut().for_each(await_rounds);
        let pid = world.daemons("c")[number]["pid"].as_u64().expect("it runs");
        signal(u32::try_from(pid).expect("a process"), "-KILL");
        programs.iter_mut().for_each(await_rounds);
        wait_for("the death is agreed on", || {
            presences(&world).get(daemon) == Some(&"down".into())
        });
        programs.iter_mut().for_each(await_rounds);
        world.start();
        wait_until_all_are_up(&world);
        await_copies(&world);
    }
    programs.iter_mut().for_each(await_rounds);
    let [last, _] = programs.each_mut().map(end);
    drop(programs);
    for host in ["a", "c"] {
        check(&world, host, &written, last);
        check(&world, host, &read, 0);
    }
    world.end();
}

#[test]
fn programs_go_on_while_their_daemon_is_killed_and_another_one_is_on_their_host() {
    programs_of_a_host_with_two_daemons_go_on(&[]);
}

#[test]
fn writes_behind_go_on_at_the_other_daemon_of_their_host() {
    programs_of_a_host_with_two_daemons_go_on(&[("FOREBAY_REMOTE_WRITES", "behind")]);
}

/// Answers of `MANY`, by file.
pub(super) fn many(world: &World, verb: &str, directory: &str, byte: &str) -> Vec<String> {
    let words = ["run", "--", "python3", "-c", MANY, verb, directory, byte];
    let answers = world.ok("a", &words);
    let answer = |line: &str| line.split_once(' ').expect("a number").1.to_owned();
    answers.lines().map(answer).collect()
}

/// The files of `MANY` that `forebay lost` lists, by number.
fn lost(world: &World, word: &str) -> Vec<usize> {
    let output = world.on("a", &["lost", "--json"]);
    let answer: Value = serde_json::from_slice(&output.stdout).expect("an object");
    let files = answer["lost"].as_array().expect("files");
    // Services of which all copies are down have none of these files.
    let code = match (&answer["services_silent"], files.is_empty()) {
        (silent, _) if *silent != 0 => 1,
        (_, true) => 0,
        (_, false) => 4,
    };
    assert_eq!(output.status.code(), Some(code), "{answer}");
    let number = |file: &Value| {
        assert_eq!((&file["what"], &file["size"]), (&word.into(), &50000.into()), "{file}");
        assert_eq!(file["ranges"], serde_json::json!([[0, 50000]]), "{file}");
        let path = file["path"].as_str().expect("a path");
        path.rsplit_once("/f").expect("a file").1.parse().expect("a number")
    };
    let mut numbers: Vec<usize> = files.iter().map(number).collect();
    numbers.sort_unstable();
    numbers
}

#[test]
fn where_all_copies_are_down_there_is_an_error_and_the_rest_goes_on() {
    let mut settings = COPIED.to_vec();
    // Both copies of some data are on host c.
    settings.push(("FOREBAY_SAME_DOMAIN", "on"));
    let Some(world) = World::started(&settings) else { return };
    wait_until_all_are_up(&world);
    let directory = directory(&world);
    assert_eq!(many(&world, "write", &directory, "7"), vec!["7"; 60]);
    assert_eq!(lost(&world, ""), [0; 0]);
    kill_host_c(&world);
    wait_for("data is out of reach", || sum(&world, "units_lost") > 0);
    let found = many(&world, "read", &directory, "0");
    assert!(found.iter().all(|it| it == "7" || it == "!5"), "{found:?}");
    assert!(found.iter().any(|it| it == "7") && found.iter().any(|it| it == "!5"), "{found:?}");
    let table = text(&world.on("a", &["status"]).stdout);
    assert!(table.contains("out of reach, as all daemons with their copies are down"), "{table}");
    let expected: Vec<usize> = (0..found.len()).filter(|&at| found[at] == "!5").collect();
    wait_for(&format!("{expected:?} are lost"), || lost(&world, "down") == expected);
    let table = text(&world.on("a", &["lost"]).stdout);
    assert!(table.contains("down: all daemons with copies"), "{table}");
    // The others are as before, and the same bytes are an error for writers.
    let written = many(&world, "write", &directory, "8");
    let expected = found.iter().map(|it| if it == "7" { "8" } else { "!5" });
    assert_eq!(written, expected.collect::<Vec<_>>());
    // They return with what they had.
    world.start();
    wait_until_all_are_up(&world);
    await_copies(&world);
    let expected = found.iter().map(|it| if it == "7" { "8" } else { "7" });
    assert_eq!(many(&world, "read", &directory, "0"), expected.collect::<Vec<_>>());
    assert_eq!(lost(&world, ""), [0; 0]);
    world.end();
}

#[test]
fn replicas_that_an_instance_cannot_have_are_refused() {
    let Some(world) = World::new() else { return };
    let refused = |words: &[&str]| {
        let nodes = world.path("nodes").to_string_lossy().into_owned();
        let all = [&["start", "--hosts", &nodes], words].concat();
        let output = world.on("a", &all);
        assert!(!output.status.success(), "{words:?}");
        text(&output.stderr).trim().to_owned()
    };
    let domains = ["--domains", "auto"];
    let with = |words: &[&str]| refused(&[&domains[..], words].concat());
    for (answer, part) in [
        (refused(&["--replicas", "2"]), "needs failure domains: give --domains auto"),
        (with(&["--replicas", "2"]), "give --followers 1"),
        (with(&["--replicas", "4"]), "1 to 3"),
        (with(&["--replicas", "2", "--followers", "1", "--memory", "16MiB..32MiB"]), "one amount"),
    ] {
        assert!(answer.contains(part) && answer.lines().count() == 1, "{answer}");
    }
    std::fs::write(world.path("nodes"), "a 10.79.0.1\nb:2 10.79.0.2\n").expect("written");
    let answer = with(&["--replicas", "3", "--followers", "1"]);
    assert!(answer.contains("--replicas 3 needs 3 failure domains, and there are 2"), "{answer}");
    assert_eq!(answer.lines().count(), 1, "{answer}");
    world.assert_nothing_left();
}

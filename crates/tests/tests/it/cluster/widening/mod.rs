//! Directories that are spread over all daemons while programs of several hosts, preloaded and over
//! mounts, make, list, rename and remove files in them, and while the daemon that has their entries is
//! killed.
//!
//! `TEST_SCALE` multiplies the number of files. Needs root for network namespaces; without it the tests
//! are skipped.

use crate::support::agent::{Agent, Mount, signal};
use crate::support::world::World;
use crate::support::{TIMEOUT, wait_for};
use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;

/// As mdtest: each process makes its files, and then stats, renames and removes some. Directory, name of
/// the process, number of files. It says when it has made half of them. The process ends with an error if
/// anything is not as it has to be.
const MAKER: &str = r"
import os, sys
directory, me, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
def path(n): return f'{directory}/{me}.{n}'
for n in range(count):
    if n == count // 2: print('half', flush=True)
    os.close(os.open(path(n), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
    assert os.path.exists(path(n)) and not os.path.exists(path(n) + '.absent')
    if n % 10 == 3: os.rename(path(n), path(n) + '.moved')
    if n % 10 == 4: os.unlink(path(n))
    if n % 10 == 5: os.link(path(n), path(n) + '.linked')
    if n % 50 == 6:
        os.unlink(path(n))
        os.mkdir(path(n))
        os.close(os.open(path(n) + '/below', os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
for n in range(count):
    assert os.path.exists(path(n)) == (n % 10 not in (3, 4)), n
    assert os.path.exists(path(n) + '.moved') == (n % 10 == 3), n
    try:
        os.close(os.open(path(n), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
        assert n % 10 in (3, 4), n
        os.unlink(path(n))
    except FileExistsError: assert n % 10 not in (3, 4), n
    if n % 10 == 5: assert os.stat(path(n)).st_nlink == 2, n
";

/// Names that processes `MAKER` leave of so many files.
fn left(processes: &[&str], count: u64) -> Vec<String> {
    let names = processes.iter().flat_map(|me| {
        (0..count).flat_map(move |n| match n % 10 {
            3 => vec![format!("{me}.{n}.moved")],
            4 => vec![],
            5 => vec![format!("{me}.{n}"), format!("{me}.{n}.linked")],
            _ => vec![format!("{me}.{n}")],
        })
    });
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}

/// Lists a directory again and again until a file is there: each time all names that are there for good,
/// and no name twice. Directory, path of the file, names that are there for good.
const LISTER: &str = r"
import os, sys
directory, end, there = sys.argv[1], sys.argv[2], {f'there.{n}' for n in range(int(sys.argv[3]))}
rounds, is_over = 0, False
while not is_over:
    is_over = os.path.exists(end)
    names = os.listdir(directory)
    assert len(names) == len(set(names)), sorted(n for n in set(names) if names.count(n) > 1)
    assert there <= set(names), sorted(there - set(names))
    rounds += 1
assert rounds > 1
";

/// Most rounds in which the directory becomes wide: many times as many as it needs.
const ROUNDS_MAX: usize = 100_000;

fn world() -> Option<World> {
    let auto = [("FOREBAY_SPREAD", "auto"), ("FOREBAY_SPREAD_ENTRIES", "256")];
    World::started(&[&auto[..], &[("FOREBAY_TIMEOUT", "60s")]].concat())
}

/// Starts a program in Python on a host.
fn start(world: &World, host: &str, text: &str, arguments: &[&str]) -> Child {
    let words = [&["run", "--", "python3", "-c", text], arguments].concat();
    piped(world.command(host, &words))
}

fn piped(mut command: Command) -> Child {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().expect("python3")
}

fn succeeds(program: Child) {
    let output = program.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn listed(world: &World, host: &str, directory: &str) -> Vec<String> {
    let text = world.shell(host, r#"LC_ALL=C ls -A "$1""#, directory);
    text.lines().map(str::to_owned).collect()
}

/// The spread that a directory has now.
fn spread(world: &World, directory: &str) -> String {
    let text = world.ok("a", &["layout", "get", directory]);
    let line = text.lines().find_map(|line| line.trim().strip_prefix("spread "));
    line.expect("a spread").to_owned()
}

fn becomes_wide(world: &World, directory: &str) {
    wait_for("the directory is wide", || spread(world, directory) == "wide");
}

#[test]
fn programs_of_two_hosts_make_files_while_their_directory_is_spread() {
    let Some(world) = world() else { return };
    let directory = "/forebay/d";
    world.shell("a", r#"mkdir "$1""#, directory);
    assert_eq!(spread(&world, directory), "home");
    let (processes, count) = (["a0", "a1", "b0", "b1"], testkit::rounds(150));
    let files = count.to_string();
    let started = processes.map(|me| start(&world, &me[..1], MAKER, &[directory, me, &files]));
    started.into_iter().for_each(succeeds);
    becomes_wide(&world, directory);
    for host in ["a", "b", "c"] {
        assert_eq!(listed(&world, host, directory), left(&processes, count), "on {host}");
    }
    // A directory in it begins at home, and all of it can be removed.
    world.shell("c", r#"mkdir "$1/new""#, directory);
    assert_eq!(spread(&world, "/forebay/d/new"), "home");
    world.shell("b", r#"rm -r "$1""#, directory);
    world.end();
}

#[test]
fn listings_have_each_name_once_while_the_directory_is_spread() {
    let Some(world) = world() else { return };
    let directory = "/forebay/d";
    world.shell("a", r#"mkdir "$1"; cd "$1"; seq -f there.%g 0 199 | xargs touch"#, directory);
    let listers = ["a", "b"];
    let listers =
        listers.map(|host| start(&world, host, LISTER, &[directory, "/forebay/end", "200"]));
    let (processes, files) = (["a0", "b0"], testkit::rounds(400).to_string());
    let started = processes.map(|me| start(&world, &me[..1], MAKER, &[directory, me, &files]));
    started.into_iter().for_each(succeeds);
    becomes_wide(&world, directory);
    world.shell("a", "touch /forebay/end", "");
    listers.into_iter().for_each(succeeds);
    world.end();
}

#[test]
fn a_daemon_that_is_killed_while_directories_are_spread_loses_nothing() {
    let Some(world) = world() else { return };
    // Directories of the root are on the daemons in turn.
    let directories = ["/forebay/d0", "/forebay/d1", "/forebay/d2"];
    directories.iter().for_each(|directory| drop(world.shell("a", r#"mkdir "$1""#, directory)));
    // Host b has no programs here: those that live there would end with it.
    signal(world.pid("b"), "-KILL");
    let each = directories.iter().flat_map(|directory| ["a0", "c0"].map(|me| (*directory, me)));
    let count = testkit::rounds(800);
    let (half, halves) = mpsc::channel();
    let started: Vec<Child> = each
        .map(|(directory, me)| {
            let mut program = start(&world, &me[..1], MAKER, &[directory, me, &count.to_string()]);
            let (mut said, half) = (program.stdout.take().expect("piped"), half.clone());
            std::thread::spawn(move || {
                let is_half = said.read_exact(&mut [0; 5]).is_ok();
                half.send((directory, is_half))
            });
            program
        })
        .collect();
    // One that is on another host has grown enough, but a daemon that is to get names is dead.
    let (grown, is_half) = halves.recv_timeout(TIMEOUT).expect("a program goes on");
    assert!(is_half, "a program of {grown} has failed");
    assert_eq!(spread(&world, grown), "home");
    world.start();
    let is_begun = || directories.iter().any(|directory| spread(&world, directory) != "home");
    wait_for("a directory is spread", is_begun);
    signal(world.pid("b"), "-KILL");
    world.start();
    started.into_iter().for_each(succeeds);
    for directory in directories {
        becomes_wide(&world, directory);
        for host in ["a", "b"] {
            assert_eq!(listed(&world, host, directory), left(&["a0", "c0"], count), "on {host}");
        }
    }
    world.end();
}

#[test]
fn mounts_of_two_hosts_see_changes_of_each_other_while_the_directory_is_spread() {
    let Some(world) = world() else { return };
    let (Some(a), Some(b)) = (Mount::new(&world, "a"), Mount::new(&world, "b")) else { return };
    world.shell("a", "mkdir /forebay/d", "");
    let on = |mount: &Mount, text: &str, arguments: &[&str]| {
        let directory = format!("{}/d", mount.at);
        let words = [&["python3", "-c", text, &directory], arguments].concat();
        piped(mount.command(&words))
    };
    let count = testkit::rounds(120);
    let files = count.to_string();
    let mut started = vec![start(&world, "c", MAKER, &["/forebay/d", "c0", &files])];
    for (mount, me) in [(&a, "a0"), (&a, "a1"), (&b, "b0"), (&b, "b1")] {
        started.push(on(mount, MAKER, &[me, &files]));
    }
    let mut agents = [Agent::on(&a), Agent::on(&b), Agent::preloaded(&world, "c", "/forebay")];
    // Until the directory is wide, and some more.
    let (mut number, mut left_over) = (0, 4);
    while left_over > 0 {
        left_over -= u32::from(number % 10 == 0 && spread(&world, "/forebay/d") == "wide");
        change_and_look(&mut agents, number);
        number += 1;
        assert!(number < ROUNDS_MAX, "the directory is not wide");
    }
    started.into_iter().for_each(succeeds);
    becomes_wide(&world, "/forebay/d");
    let names = left(&["a0", "a1", "b0", "b1", "c0"], count);
    for mount in [&a, &b] {
        let all = format!("LC_ALL=C ls -A {}/d", mount.at);
        let output = mount.command(&["sh", "-c", &all]).output().expect("it runs");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(text.lines().map(str::to_owned).collect::<Vec<_>>(), names, "{}", mount.name());
    }
    drop(agents);
    world.end();
}

/// Each sees at once what the others did with names that it knows, present or absent.
fn change_and_look(agents: &mut [Agent; 3], number: usize) {
    let (old, new) = (format!("d/turn.{number}"), format!("d/turned.{number}"));
    let is_there = |agent: &mut Agent, name: &str| match agent.ask(&format!("stat {name}")) {
        reply if reply == "!2" => false,
        reply if reply == "0" => true,
        reply => panic!("{}: {name}: {reply}", agent.name),
    };
    let all_see = |agents: &mut [Agent; 3], here: [bool; 2]| {
        for agent in agents {
            let seen = [is_there(agent, &old), is_there(agent, &new)];
            assert_eq!(seen, here, "{}: {old}", agent.name);
        }
    };
    let [maker, mover, remover] = [number % 3, (number + 1) % 3, (number + 2) % 3];
    all_see(agents, [false, false]);
    agents[maker].ok(&format!("open f {old} c"));
    agents[maker].ok("close f");
    all_see(agents, [true, false]);
    agents[mover].ok(&format!("rename {old} {new}"));
    all_see(agents, [false, true]);
    agents[remover].ok(&format!("unlink {new}"));
    all_see(agents, [false, false]);
}

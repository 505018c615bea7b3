//! Mounts and preloaded programs see each other's changes at once, although kernels cache names and
//! attributes: they perform random steps in turn on the same few names, and after each step all of
//! them query, and so does a program that does the same on a local file system. On one host, and on
//! three.
//!
//! `TEST_SCALE` multiplies the number of steps, `TEST_SEED` begins another series. Needs
//! `/dev/fuse`, and several hosts need root for network namespaces.

use crate::support::agent::Mount;
use crate::support::mounted::{Mounted, UringEnabled, has_fuse};
use crate::support::world::World;
use crate::support::{Instance, Random, WORKER, Worker, text};
use std::path::Path;

/// A program that makes changes and queries, and the path where it sees the tree.
struct Participant {
    worker: Worker,
    root: String,
}

impl Participant {
    fn ask(&mut self, step: &[String]) -> String {
        let words = step.iter().map(|word| match word.strip_prefix('/') {
            Some(rest) => format!("{}/{rest}", self.root),
            None => word.clone(),
        });
        self.worker.ask(&words.collect::<Vec<_>>().join(" "))
    }
}

fn shown(path: &Path) -> String {
    path.to_str().expect("a path of letters").to_owned()
}

fn name(random: &mut Random) -> String {
    let directory = ["", "a/", "b/"][random.uniform(3) as usize];
    format!("/{directory}{}", ["x", "y", "z", "b"][random.uniform(4) as usize])
}

/// A step of the participant `at`; paths begin with a slash.
fn step(random: &mut Random, at: usize) -> Vec<String> {
    let handle = format!("{at}h{}", random.uniform(2));
    let some = |random: &mut Random| random.uniform(9000).to_string();
    let words: Vec<String> = match random.uniform(22) {
        0..=2 => vec!["put".into(), name(random), some(random), some(random)],
        3..=4 => vec!["unlink".into(), name(random)],
        5..=6 => vec!["rename".into(), name(random), name(random)],
        7 => vec!["link".into(), name(random), name(random)],
        8 => vec!["mkdir".into(), ["/a", "/b", "/a/b"][random.uniform(3) as usize].into()],
        9 => vec!["rmdir".into(), ["/a", "/b", "/a/b"][random.uniform(3) as usize].into()],
        10 => vec!["symlink".into(), "nowhere".into(), name(random)],
        11 => {
            let mode = 0o400 + random.uniform(0o400);
            vec!["chmod".into(), name(random), format!("{mode:o}")]
        }
        12..=14 => {
            let modes = ["r", "rw", "rwc", "rwct", "ac", "wcn"][random.uniform(6) as usize];
            vec!["open".into(), handle, name(random), modes.into()]
        }
        15..=16 => vec!["write".into(), handle, some(random), some(random), some(random)],
        17 => vec!["append".into(), handle, some(random), some(random)],
        18 => vec!["truncate".into(), handle, some(random)],
        19 => vec!["fstat".into(), handle],
        20 => vec!["read".into(), handle, some(random), some(random)],
        _ => vec!["close".into(), handle],
    };
    words
}

#[test]
fn changes_are_seen_at_once_by_all_mounts_and_programs() {
    if has_fuse() {
        all_see("classic");
    }
}

#[test]
fn changes_are_seen_at_once_over_io_uring() {
    if has_fuse() && UringEnabled::is_available() {
        all_see("rings");
    }
}

fn all_see(transport: &str) {
    let instance =
        Instance::start(&format!("coherent-{transport}"), &["--local", "2", "--memory", "256MiB"]);
    let [one, two] = ["m", "n"].map(|name| Mounted::by(&instance, name, transport));
    let mut participants = [
        Participant { worker: instance.worker(), root: "/forebay".to_owned() },
        Participant { worker: Worker::outside(), root: shown(&one.at) },
        Participant { worker: Worker::outside(), root: shown(&two.at) },
    ];
    play(&mut participants, testkit::rounds(600));
}

/// Directories below the root have their entries with several daemons. Prints how many of them told an
/// old time after a creation or a removal in them, and how many lost a time that was set.
const TIMES: &str = "
import os, sys
os.chdir(sys.argv[1])
old = lost = 0
for n in range(40):
    d = f'd{n}-{sys.argv[2]}'
    os.mkdir(d)
    for act in (lambda: os.close(os.open(d + '/f', os.O_CREAT)), lambda: os.unlink(d + '/f')):
        before = os.stat(d).st_mtime_ns
        act()
        old += os.stat(d).st_mtime_ns <= before
    for name in 'abc': os.close(os.open(f'{d}/{name}', os.O_CREAT))
    os.utime(d, (5, 5))
for n in range(40): lost += os.stat(f'd{n}-{sys.argv[2]}').st_mtime != 5
print(old, lost)";

#[test]
fn the_times_of_directories_are_current_and_stay_as_they_are_set() {
    let instance = Instance::start("times", &["--local", "4", "--memory", "128MiB"]);
    let printed = |mut command: std::process::Command| {
        let output = command.output().expect("python3 runs");
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout)
    };
    let by_preload = ["python3", "-c", TIMES, "/forebay", "p"];
    assert_eq!(printed(instance.program(&by_preload)), "0 0\n", "preloaded");
    if has_fuse() {
        let mount = Mounted::new(&instance, "m");
        let mut command = std::process::Command::new("python3");
        command.args(["-c", TIMES]).arg(&mount.at).arg("m");
        assert_eq!(printed(command), "0 0\n", "on a mount");
    }
}

/// A program on a mount of a host.
fn on(mount: &Mount) -> Participant {
    Participant { worker: Worker::spawn(mount.command(&[WORKER])), root: mount.at.clone() }
}

/// A preloaded program on a host.
fn preloaded(world: &World, host: &str) -> Participant {
    let worker = Worker::spawn(world.command(host, &["run", "--", WORKER]));
    Participant { worker, root: "/forebay".to_owned() }
}

/// "Changes of names and attributes on one host are seen at once by the mounts and programs of all hosts"
/// (docs/semantics/mounts.md).
#[test]
fn changes_are_seen_at_once_by_mounts_of_all_hosts() {
    if !has_fuse() {
        return;
    }
    let Some(world) = World::posix() else { return };
    let mounts: Vec<Mount> =
        ["a", "b", "c"].map(|host| Mount::new(&world, host)).into_iter().flatten().collect();
    let mut participants: Vec<Participant> = mounts.iter().map(on).collect();
    participants.extend(["a", "b", "c"].map(|host| preloaded(&world, host)));
    play(&mut participants, testkit::rounds(300));
    drop((participants, mounts));
    world.end();
}

/// The participants perform `steps` random steps in turn.
fn play(participants: &mut [Participant], steps: u64) {
    let seed = testkit::seed(1);
    let beside = tempfile::tempdir().expect("a directory");
    let count = participants.len() as u64;
    let mut right = Participant { worker: Worker::outside(), root: shown(beside.path()) };
    let mut random = Random::new(seed);
    let mut history = Vec::new();
    for number in 0..steps {
        let at = random.uniform(count) as usize;
        let step = step(&mut random, at);
        history.push(format!("{number}: participant {at}: {}", step.join(" ")));
        let last = || history[history.len().saturating_sub(12)..].join("\n");
        let (is, should) = (participants[at].ask(&step), right.ask(&step));
        assert_eq!(is, should, "seed {seed}\n{}", last());
        // Through the open file of each, whichever wrote.
        for (other, participant) in participants.iter_mut().enumerate() {
            let handle = format!("{other}h{}", random.uniform(2));
            let looked = ["read".to_owned(), handle, "0".to_owned(), "9000".to_owned()];
            let (is, should) = (participant.ask(&looked), right.ask(&looked));
            let words = looked.join(" ");
            assert_eq!(is, should, "seed {seed}: participant {other} at {words}\n{}", last());
        }
        for _ in 0..3 {
            let looked = match random.uniform(8) {
                0 => {
                    vec![
                        "list".to_owned(),
                        ["/", "/a", "/b"][random.uniform(3) as usize].to_owned(),
                    ]
                }
                1 => vec!["get".to_owned(), name(&mut random)],
                _ => vec!["stat".to_owned(), name(&mut random)],
            };
            let should = right.ask(&looked);
            for (other, participant) in participants.iter_mut().enumerate() {
                let is = participant.ask(&looked);
                let words = looked.join(" ");
                assert_eq!(is, should, "seed {seed}: participant {other} at {words}\n{}", last());
            }
        }
    }
}

/// An open file on a mount shows what others wrote since, also where the kernel cached earlier
/// reads.
#[test]
fn cached_kernel_pages_are_invalidated_when_others_write() {
    if !has_fuse() {
        return;
    }
    let instance = Instance::start("pages", &["--memory", "64MiB"]);
    let (one, two) = (Mounted::new(&instance, "m"), Mounted::new(&instance, "n"));
    let (mut reader, mut other) = (Worker::outside(), Worker::outside());
    let mut program = instance.worker();
    let (at, beside) = (shown(&one.path("file")), shown(&two.path("file")));
    let ask = |worker: &mut Worker, line: &str| {
        let answer = worker.ask(line);
        assert!(answer.starts_with("ok"), "{line}: {answer}");
        answer
    };
    ask(&mut program, "put /forebay/file 1 20000");
    ask(&mut reader, &format!("open r {at} r"));
    let same = |reader: &mut Worker, program: &mut Worker, how: &str| {
        for _ in 0..2 {
            let seen = ask(reader, "read r 0 30000");
            ask(program, "open check /forebay/file r");
            assert_eq!(seen, ask(program, "read check 0 30000"), "{how}");
            ask(program, "close check");
        }
    };
    same(&mut reader, &mut program, "at first");
    ask(&mut program, "open w /forebay/file rw");
    for seed in 2..6 {
        ask(&mut program, &format!("write w {seed} {} 5000", seed * 1000));
        same(&mut reader, &mut program, "a program wrote");
    }
    ask(&mut program, "close w");
    ask(&mut other, &format!("open w {beside} rw"));
    for seed in 6..9 {
        ask(&mut other, &format!("write w {seed} {} 5000", seed * 1000));
        same(&mut reader, &mut program, "another mount wrote");
    }
    ask(&mut other, "truncate w 3000");
    ask(&mut other, "truncate w 20000");
    same(&mut reader, &mut program, "it was cut, and made as long as before");
    ask(&mut other, "close w");
    // Cached beyond a close, until somebody writes.
    for seed in 10..13 {
        ask(&mut reader, "close r");
        ask(&mut reader, &format!("open r {at} r"));
        same(&mut reader, &mut program, "opened again");
        ask(&mut program, &format!("put /forebay/file {seed} 20000"));
        same(&mut reader, &mut program, "written anew, while it was open");
        ask(&mut reader, "close r");
        ask(&mut program, &format!("put /forebay/file {} 20000", seed + 20));
        ask(&mut reader, &format!("open r {at} r"));
        same(&mut reader, &mut program, "written anew, while it was closed");
    }
}

/// A file loses a name that is renamed over, and its shard is that of the old directory, not of the
/// new one.
#[test]
fn replacing_a_name_updates_the_link_count_of_the_replaced_file() {
    if !has_fuse() {
        return;
    }
    let instance = Instance::start("links", &["--local", "2", "--memory", "64MiB"]);
    let mount = Mounted::new(&instance, "m");
    let mut program = instance.worker();
    for directory in ["a", "b"] {
        let path = |name: &str| format!("/forebay/{directory}/{name}");
        let over = format!("/forebay/of-{directory}");
        for line in [
            format!("mkdir /forebay/{directory}"),
            format!("put {} 1 5000", path("file")),
            format!("link {} {over}", path("file")),
            format!("put {} 2 100", path("new")),
        ] {
            assert_eq!(program.ask(&line), "ok", "{line}");
        }
        let seen = mount.path(&format!("{directory}/file"));
        let links = || std::os::unix::fs::MetadataExt::nlink(&seen.metadata().expect("there"));
        assert_eq!(links(), 2);
        assert_eq!(program.ask(&format!("rename {} {over}", path("new"))), "ok");
        assert_eq!(links(), 1, "{directory}");
    }
}

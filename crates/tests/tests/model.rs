//! Random calls on an instance and on the host's tmpfs: several programs call in turns, each with a
//! twin that does the same outside, and every answer, errno included, must be the twin's. So it is
//! while all files fit memory; while they are more than memory, and pieces go down and come up all
//! the time; and while they are saved in a backing directory besides, and read there again.
//!
//! Not compared: times, inode numbers, the size and link count of directories.

mod support;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Output;
use support::{Instance, Random, Worker, setting, text, wait_for};

/// Programs at work, each with handles of its own.
const PROGRAMS: usize = 3;
/// Open files of a program.
const HANDLES: u64 = 4;
/// Names that a directory may have; few, so that calls meet.
const NAMES: [&str; 4] = ["a", "b", "c", "a-longer-name-than-the-others"];
const ROOT: &str = "ROOT";
const INSIDE: &str = "/forebay/model";
const MIB: u64 = 1 << 20;

fn path(random: &mut Random) -> String {
    let mut path = ROOT.to_owned();
    for _ in 0..=random.below(3) {
        path.push('/');
        path.push_str(NAMES[usize::try_from(random.below(4)).expect("small")]);
    }
    match random.below(60) {
        0 => path.push('/'),
        1 => path.push_str("/."),
        2 => path.push_str("/.."),
        3 => path.push_str("/../a"),
        _ => {}
    }
    path
}

fn handle(random: &mut Random) -> String {
    format!("h{}", random.below(HANDLES))
}

/// How long the writes are, and how much lies in all files.
#[derive(Clone, Copy)]
struct Sizes {
    longest: u64,
    /// They are halved up to so often.
    halved: u64,
    /// Once there is so much, only small writes follow until there is less.
    all: u64,
}

/// Longest of the small ones.
const SMALL: u64 = 4 << 10;

/// Of all kinds: inline, a piece, several, beyond a chunk of 64 KiB.
fn size(random: &mut Random, sizes: Sizes) -> u64 {
    random.below(sizes.longest) >> random.below(sizes.halved + 1)
}

fn request(random: &mut Random, sizes: Sizes) -> String {
    let seed = random.below(1000);
    let (one, other) = (path(random), path(random));
    let (at, length, file) = (size(random, sizes), size(random, sizes), handle(random));
    match random.below(32) {
        0..=3 => {
            let modes = ["r", "w", "rw", "rwc", "rwn", "wa", "wac", "rwct", "wt", "rwc"];
            let modes = modes[usize::try_from(random.below(10)).expect("small")];
            format!("open {file} {one} {modes}")
        }
        4 => format!("close {file}"),
        5..=8 => format!("write {file} {seed} {at} {length}"),
        9 => format!("append {file} {seed} {length}"),
        10..=13 => format!("read {file} {at} {length}"),
        14 => format!("truncate {file} {length}"),
        15 => format!("fstat {file}"),
        16..=17 => format!("rename {one} {other}"),
        18 => format!("link {one} {other}"),
        19 => format!("symlink {} {other}", NAMES[usize::try_from(seed % 4).expect("small")]),
        20..=21 => format!("unlink {one}"),
        22..=24 => format!("mkdir {one}"),
        25 => format!("rmdir {one}"),
        26..=27 => format!("list {one}"),
        28 => format!("stat {one}"),
        29 => format!("put {one} {seed} {length}"),
        30 => format!("get {one}"),
        _ => format!("sync {file}"),
    }
}

/// An instance, and a directory beside it in which the same is done.
struct Twins {
    /// Programs inside and outside.
    pairs: Vec<(Worker, Worker)>,
    instance: Instance,
    outside: tempfile::TempDir,
    sizes: Sizes,
    random: Random,
    seed: u64,
    /// What was done.
    done: Vec<String>,
    /// The most bytes that lay there.
    most: u64,
}

impl Twins {
    fn new(name: &str, options: &[&str], sizes: Sizes, seed: u64) -> Twins {
        let seed = setting("TEST_SEED", seed);
        let mut twins = Twins {
            pairs: Vec::new(),
            instance: Instance::start(name, options),
            outside: in_memory(),
            sizes,
            random: Random::new(seed),
            seed,
            done: Vec::new(),
            most: 0,
        };
        twins.start_programs();
        let made = twins.pairs[0].0.ask(&format!("mkdir {INSIDE}"));
        assert_eq!(made, "ok");
        twins
    }

    fn start_programs(&mut self) {
        self.pairs = (0..PROGRAMS).map(|_| (self.instance.worker(), Worker::outside())).collect();
    }

    /// A program makes a call, inside and outside.
    fn call(&mut self, turn: usize, request: &str) {
        let outside = self.outside.path().to_str().expect("a plain path");
        let (ours, twin) = &mut self.pairs[turn];
        let right = twin.ask(&request.replace(ROOT, outside));
        let answer = ours.ask(&request.replace(ROOT, INSIDE));
        assert_eq!(
            answer,
            right,
            "{}, seed {}, step {}: {turn}: {request}, after\n{}",
            self.instance.name,
            self.seed,
            self.done.len(),
            self.done[self.done.len().saturating_sub(60)..].join("\n")
        );
        self.done.push(format!("{turn}: {request} -> {right}"));
    }

    /// So many random calls.
    fn compare(&mut self, steps: u64) {
        let mut sizes = self.sizes;
        for step in 0..steps {
            if step % 16 == 0 {
                let longest =
                    if self.lie_there() < self.sizes.all { self.sizes.longest } else { SMALL };
                sizes = Sizes { longest, ..self.sizes };
            }
            let turn = usize::try_from(self.random.below(PROGRAMS as u64)).expect("small");
            let request = request(&mut self.random, sizes);
            self.call(turn, &request);
        }
    }

    /// Bytes in all files that have a name.
    fn lie_there(&mut self) -> u64 {
        let found = below(self.outside.path());
        let all = found.iter().map(|(_, attributes)| attributes.blocks() * 512).sum();
        self.most = self.most.max(all);
        all
    }

    /// Makes files, as much as may lie there in all.
    fn fill(&mut self) {
        let length = self.sizes.all / (NAMES.len() * NAMES.len()) as u64;
        for directory in NAMES {
            self.call(0, &format!("mkdir {ROOT}/{directory}"));
            for (turn, name) in NAMES.into_iter().enumerate() {
                let put = format!("put {ROOT}/{directory}/{name} {turn} {length}");
                self.call(turn % PROGRAMS, &put);
            }
        }
        self.lie_there();
    }

    /// Reads all files.
    fn read_all(&mut self) {
        let root = self.outside.path().to_owned();
        for (path, attributes) in below(&root) {
            if attributes.is_file() {
                let path = path.strip_prefix(&root).expect("below it").display();
                self.call(0, &format!("get {ROOT}/{path}"));
            }
        }
    }

    /// Of all daemons.
    fn sum(&self, name: &str) -> u64 {
        let status = self.instance.status();
        let daemons = status["daemons"].as_array().expect("daemons");
        daemons.iter().map(|daemon| daemon["state"][name].as_u64().expect("a number")).sum()
    }

    /// Each of these figures counts something, if it has not yet soon: else nothing was tried.
    fn meets(&self, figures: &[&str]) {
        for figure in figures {
            wait_for(figure, || self.sum(figure) > 0);
        }
    }

    /// Makes files and uses the first of them until pieces of it came up.
    fn use_again(&mut self) {
        for number in 0..4 {
            let length = self.sizes.all / 6;
            self.call(0, &format!("put {ROOT}/used{number} {number} {length}"));
        }
        wait_for("pieces that come up", || {
            self.call(0, &format!("get {ROOT}/used0"));
            self.sum("bytes_risen") > 0
        });
    }
}

fn in_memory() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").expect("a directory in memory")
}

/// All that lies below a directory.
fn below(root: &Path) -> Vec<(PathBuf, fs::Metadata)> {
    let (mut found, mut left) = (Vec::new(), vec![root.to_owned()]);
    while let Some(directory) = left.pop() {
        for entry in fs::read_dir(directory).expect("a directory") {
            let path = entry.expect("an entry").path();
            let attributes = fs::symlink_metadata(&path).expect("it is there");
            if attributes.is_dir() {
                left.push(path.clone());
            }
            found.push((path, attributes));
        }
    }
    found
}

/// All files fit memory, and stay there.
fn compare_at_rest(daemons: &str, seed: u64) {
    let options = ["--local", daemons, "--memory", "64MiB", "--ssd", "0", "--chunk", "64KiB"];
    let sizes = Sizes { longest: 300_000, halved: 17, all: 32 * MIB };
    let mut twins = Twins::new(&format!("model{daemons}"), &options, sizes, seed);
    twins.compare(setting("TEST_STEPS", 6000));
}

#[test]
fn one_daemon_answers_as_a_local_file_system() {
    compare_at_rest("1", 1);
}

#[test]
fn three_daemons_answer_as_a_local_file_system() {
    compare_at_rest("3", 2);
}

/// What is not in use at the moment moves to the SSD, and what is used changes places with it.
const TIERS: [&str; 8] =
    ["--memory", "16MiB", "--ssd", "64MiB", "--chunk", "64KiB", "--idle", "1ms"];
const MEMORY: u64 = 16 * MIB;

/// More than memory, and less than memory and SSD, also with what is open and has no name any more.
fn tight(daemons: u64) -> Sizes {
    Sizes { longest: 4 * MIB, halved: 8, all: daemons * (MEMORY + 8 * MIB) }
}

/// The same calls, while pieces move all the time: nobody sees it.
fn compare_while_pieces_move(daemons: u64, seed: u64) {
    let local = daemons.to_string();
    let options = [&TIERS[..], &["--local", &local, "--room", "60"]].concat();
    let mut twins = Twins::new(&format!("moves{daemons}"), &options, tight(daemons), seed);
    twins.fill();
    twins.compare(setting("TEST_STEPS", 3000));
    twins.meets(&["bytes_sunk"]);
    twins.use_again();
    assert!(twins.most > daemons * MEMORY, "seed {}: all fitted memory", twins.seed);
}

#[test]
fn pieces_of_one_daemon_move_and_nobody_sees_it() {
    compare_while_pieces_move(1, 3);
}

#[test]
fn pieces_of_three_daemons_move_and_nobody_sees_it() {
    compare_while_pieces_move(3, 4);
}

/// What is in a tree by path: kinds and modes, names of files, contents.
fn tree(root: &Path) -> BTreeMap<PathBuf, (u32, u64, Vec<u8>)> {
    let content = |path: &Path, kind: fs::FileType| match kind {
        _ if kind.is_dir() => Vec::new(),
        _ if kind.is_symlink() => {
            fs::read_link(path).expect("a link").into_os_string().into_encoded_bytes()
        }
        _ => fs::read(path).expect("a file"),
    };
    let found = below(root).into_iter().map(|(path, attributes)| {
        let links = if attributes.is_dir() { 0 } else { attributes.nlink() };
        let content = content(&path, attributes.file_type());
        let name = path.strip_prefix(root).expect("below it").to_owned();
        (name, (attributes.mode(), links, content))
    });
    found.collect()
}

fn assert_alike(saved: &Path, made: &Path, what: &str) {
    let (saved, made) = (tree(saved), tree(made));
    let names = |tree: &BTreeMap<PathBuf, _>| tree.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&saved), names(&made), "{what}");
    assert!(!made.is_empty(), "{what}: nothing was made");
    for (name, right) in &made {
        let found = &saved[name];
        let name = name.display();
        assert_eq!((found.0, found.1), (right.0, right.1), "{what}: mode and names of {name}");
        assert!(found.2 == right.2, "{what}: what is in {name}");
    }
}

/// Two names of one file below are two files for an instance that finds them there (docs/semantics.md):
/// each gets a file of its own.
fn part_names(root: &Path) {
    for (path, attributes) in below(root) {
        if attributes.is_file() && attributes.nlink() > 1 {
            let copy = root.join("copy");
            fs::copy(&path, &copy).expect("copied");
            fs::rename(&copy, &path).expect("renamed");
        }
    }
}

fn succeeds(output: &Output, what: &str) {
    assert!(output.status.success(), "{what}: {}", text(&output.stderr));
}

/// And all of it is saved below meanwhile, where it lies in the end as beside the twins. Who begins
/// again finds all there, reads it from there, and what he read is dropped for want of room.
fn compare_while_pieces_are_saved(daemons: u64, seed: u64) {
    let backing = in_memory();
    let path = backing.path().to_str().expect("a plain path");
    let local = daemons.to_string();
    let options = [
        &TIERS[..],
        &["--local", &local, "--backing", path],
        &["--room", "100", "--reserve", "100"],
    ]
    .concat();
    let mut twins = Twins::new(&format!("saved{daemons}"), &options, tight(daemons), seed);
    let (saved, made) = (backing.path().join("model"), twins.outside.path().to_owned());
    let steps = setting("TEST_STEPS", 2000);
    twins.fill();
    twins.compare(steps / 2);
    twins.meets(&["bytes_sunk"]);
    twins.pairs.clear();
    succeeds(&twins.instance.command("stop").output().expect("it runs"), "stop");
    assert_alike(&saved, &made, "after the stop");
    part_names(&saved);
    part_names(&made);
    twins.instance.start_again();
    twins.start_programs();
    twins.read_all();
    twins.compare(steps / 2);
    twins.meets(&["bytes_sunk", "bytes_dropped"]);
    assert!(twins.most > daemons * MEMORY, "seed {}: all fitted memory", twins.seed);
    twins.pairs.clear();
    succeeds(&twins.instance.command("flush").output().expect("it runs"), "flush");
    assert_alike(&saved, &made, "after the flush");
}

#[test]
fn what_moves_comes_to_lie_below_as_it_was_made() {
    compare_while_pieces_are_saved(1, 5);
}

#[test]
fn what_moves_between_three_daemons_comes_to_lie_below_as_it_was_made() {
    compare_while_pieces_are_saved(3, 6);
}

//! Random calls on an instance and on the host's tmpfs: several programs call in turn, each paired
//! with a program that makes the same call outside, and all answers, errno included, must agree.
//! This is run while all files fit memory; while they exceed memory and extents are demoted and
//! promoted all the time; and while they are also written back to a backing directory and read from
//! there again.
//!
//! Not compared: times, inode numbers, the size and link count of directories.

use crate::support::{Instance, Random, Worker, text, wait_for};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Output;

/// Number of programs, each with handles of its own.
const PROGRAMS: usize = 3;
/// Open files of a program.
const HANDLES: u64 = 4;
/// Names in a directory; few, so that calls collide.
const NAMES: [&str; 4] = ["a", "b", "c", "a-longer-name-than-the-others"];
const ROOT: &str = "ROOT";
const INSIDE: &str = "/forebay/model";
const MIB: u64 = 1 << 20;

fn path(random: &mut Random) -> String {
    let mut path = ROOT.to_owned();
    for _ in 0..=random.uniform(3) {
        path.push('/');
        path.push_str(NAMES[usize::try_from(random.uniform(4)).expect("small")]);
    }
    match random.uniform(60) {
        0 => path.push('/'),
        1 => path.push_str("/."),
        2 => path.push_str("/.."),
        3 => path.push_str("/../a"),
        _ => {}
    }
    path
}

fn handle(random: &mut Random) -> String {
    format!("h{}", random.uniform(HANDLES))
}

/// Limits for the length of writes and the bytes in all files.
#[derive(Clone, Copy)]
struct Sizes {
    longest: u64,
    /// Number of times that a length may be halved.
    halvings: u64,
    /// Above this total only small writes follow until it falls.
    all: u64,
}

/// Longest small write.
const SMALL: u64 = 4 << 10;

/// Lengths of all kinds: inline, one extent, several extents, beyond a stripe of 64 KiB.
fn size(random: &mut Random, sizes: Sizes) -> u64 {
    random.uniform(sizes.longest) >> random.uniform(sizes.halvings + 1)
}

fn request(random: &mut Random, sizes: Sizes) -> String {
    let seed = random.uniform(1000);
    let (one, other) = (path(random), path(random));
    let (at, length, file) = (size(random, sizes), size(random, sizes), handle(random));
    match random.uniform(32) {
        0..=3 => {
            let modes = ["r", "w", "rw", "rwc", "rwn", "wa", "wac", "rwct", "wt", "rwc"];
            let modes = modes[usize::try_from(random.uniform(10)).expect("small")];
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

/// An instance, and a directory outside of it in which the same calls are made.
struct ProgramPairs {
    /// Pairs of a program inside and one outside.
    pairs: Vec<(Worker, Worker)>,
    instance: Instance,
    outside: tempfile::TempDir,
    sizes: Sizes,
    random: Random,
    seed: u64,
    /// The calls so far.
    done: Vec<String>,
    /// Largest total of bytes in all files.
    most: u64,
}

impl ProgramPairs {
    fn new(name: &str, options: &[&str], sizes: Sizes, seed: u64) -> ProgramPairs {
        let seed = testkit::seed(seed);
        let mut pairs = ProgramPairs {
            pairs: Vec::new(),
            instance: Instance::start(name, options),
            outside: in_memory(),
            sizes,
            random: Random::new(seed),
            seed,
            done: Vec::new(),
            most: 0,
        };
        pairs.start_programs();
        let made = pairs.pairs[0].0.ask(&format!("mkdir {INSIDE}"));
        assert_eq!(made, "ok");
        pairs
    }

    fn start_programs(&mut self) {
        self.pairs = (0..PROGRAMS).map(|_| (self.instance.worker(), Worker::outside())).collect();
    }

    /// A program makes a call, inside and outside.
    fn call(&mut self, turn: usize, request: &str) {
        let outside = self.outside.path().to_str().expect("a plain path");
        let (ours, local) = &mut self.pairs[turn];
        let right = local.ask(&request.replace(ROOT, outside));
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

    /// Makes `steps` random calls.
    fn compare(&mut self, steps: u64) {
        let mut sizes = self.sizes;
        for step in 0..steps {
            if step % 16 == 0 {
                let longest =
                    if self.total_bytes() < self.sizes.all { self.sizes.longest } else { SMALL };
                sizes = Sizes { longest, ..self.sizes };
            }
            let turn = usize::try_from(self.random.uniform(PROGRAMS as u64)).expect("small");
            let request = request(&mut self.random, sizes);
            self.call(turn, &request);
        }
    }

    /// Bytes in all files that have a name.
    fn total_bytes(&mut self) -> u64 {
        let found = listing(self.outside.path());
        let all = found.iter().map(|(_, attributes)| attributes.blocks() * 512).sum();
        self.most = self.most.max(all);
        all
    }

    /// Creates files up to the allowed total.
    fn fill(&mut self) {
        let length = self.sizes.all / (NAMES.len() * NAMES.len()) as u64;
        for directory in NAMES {
            self.call(0, &format!("mkdir {ROOT}/{directory}"));
            for (turn, name) in NAMES.into_iter().enumerate() {
                let put = format!("put {ROOT}/{directory}/{name} {turn} {length}");
                self.call(turn % PROGRAMS, &put);
            }
        }
        self.total_bytes();
    }

    /// Reads all files.
    fn read_all(&mut self) {
        let root = self.outside.path().to_owned();
        for (path, attributes) in listing(&root) {
            if attributes.is_file() {
                let path = path.strip_prefix(&root).expect("inside it").display();
                self.call(0, &format!("get {ROOT}/{path}"));
            }
        }
    }

    /// Sum of a counter over all daemons.
    fn sum(&self, name: &str) -> u64 {
        let status = self.instance.status();
        let daemons = status["daemons"].as_array().expect("daemons");
        daemons.iter().map(|daemon| daemon["state"][name].as_u64().expect("a number")).sum()
    }

    /// Waits until each of these counters is not 0: otherwise the test exercised nothing.
    fn wait_until_counted(&self, figures: &[&str]) {
        for figure in figures {
            wait_for(figure, || self.sum(figure) > 0);
        }
    }

    /// Creates files, which are more than stays in memory, and uses each of them for a while until
    /// extents are promoted.
    fn use_until_promoted(&mut self) {
        for number in 0..4 {
            let length = self.sizes.all / 6;
            self.call(0, &format!("put {ROOT}/used{number} {number} {length}"));
        }
        let mut round = 0;
        wait_for("promoted extents", || {
            self.call(0, &format!("get {ROOT}/used{}", round / 50 % 4));
            round += 1;
            self.sum("bytes_promoted") > 0
        });
    }
}

fn in_memory() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").expect("a directory in memory")
}

/// All entries of a tree.
fn listing(root: &Path) -> Vec<(PathBuf, fs::Metadata)> {
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

/// All files fit memory and stay there.
fn compare_in_memory(daemons: &str, seed: u64) {
    let options = ["--local", daemons, "--memory", "64MiB", "--ssd", "0", "--stripe-size", "64KiB"];
    let sizes = Sizes { longest: 300_000, halvings: 17, all: 32 * MIB };
    let mut pairs = ProgramPairs::new(&format!("model{daemons}"), &options, sizes, seed);
    pairs.compare(testkit::rounds(2500));
}

#[test]
fn one_daemon_answers_like_a_local_file_system() {
    compare_in_memory("1", 1);
}

#[test]
fn three_daemons_answer_like_a_local_file_system() {
    compare_in_memory("3", 2);
}

/// Idle data is demoted to the SSD, and data in use is exchanged with it.
const TIERS: [&str; 8] =
    ["--memory", "16MiB", "--ssd", "64MiB", "--stripe-size", "64KiB", "--demote-idle-age", "1ms"];
const MEMORY: u64 = 16 * MIB;

/// More than memory, and less than memory and SSD, including open files without a name.
fn tight(daemons: u64) -> Sizes {
    Sizes { longest: 4 * MIB, halvings: 8, all: daemons * (MEMORY + 8 * MIB) }
}

/// The same calls while extents move all the time: no answer differs.
fn compare_while_extents_move(daemons: u64, seed: u64) {
    let local = daemons.to_string();
    let options = [&TIERS[..], &["--local", &local, "--demote-low-watermark", "60"]].concat();
    let mut pairs = ProgramPairs::new(&format!("moves{daemons}"), &options, tight(daemons), seed);
    pairs.fill();
    pairs.compare(testkit::rounds(1500));
    pairs.wait_until_counted(&["bytes_demoted"]);
    pairs.use_until_promoted();
    assert!(pairs.most > daemons * MEMORY, "seed {}: everything fitted memory", pairs.seed);
}

#[test]
fn extents_of_one_daemon_move_unnoticed() {
    compare_while_extents_move(1, 3);
}

#[test]
fn extents_of_three_daemons_move_unnoticed() {
    compare_while_extents_move(3, 4);
}

/// A tree by path: kind and mode, link count, contents.
fn tree(root: &Path) -> BTreeMap<PathBuf, (u32, u64, Vec<u8>)> {
    let content = |path: &Path, kind: fs::FileType| match kind {
        _ if kind.is_dir() => Vec::new(),
        _ if kind.is_symlink() => {
            fs::read_link(path).expect("a link").into_os_string().into_encoded_bytes()
        }
        _ => fs::read(path).expect("a file"),
    };
    let found = listing(root).into_iter().map(|(path, attributes)| {
        let links = if attributes.is_dir() { 0 } else { attributes.nlink() };
        let content = content(&path, attributes.file_type());
        let name = path.strip_prefix(root).expect("inside it").to_owned();
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
        assert_eq!((found.0, found.1), (right.0, right.1), "{what}: mode and link count of {name}");
        assert!(found.2 == right.2, "{what}: contents of {name}");
    }
}

/// Two names of one backing file are two files for an instance that finds them there
/// (docs/semantics/backing.md): gives each name a file of its own.
fn separate_hardlinks(root: &Path) {
    for (path, attributes) in listing(root) {
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

/// The same calls during writeback; the backing directory must equal the outside directory in the
/// end. The next instance finds all files, reads them from the backing store, and evicts them for
/// lack of space.
fn compare_during_writeback(daemons: u64, seed: u64) {
    let backing = in_memory();
    let path = backing.path().to_str().expect("a plain path");
    let local = daemons.to_string();
    let options = [
        &TIERS[..],
        &["--local", &local, "--backing", path],
        &["--demote-low-watermark", "100", "--demote-min-watermark", "100"],
    ]
    .concat();
    let mut pairs = ProgramPairs::new(&format!("saved{daemons}"), &options, tight(daemons), seed);
    let (saved, made) = (backing.path().join("model"), pairs.outside.path().to_owned());
    let steps = testkit::rounds(1000);
    pairs.fill();
    pairs.compare(steps / 2);
    pairs.wait_until_counted(&["bytes_demoted"]);
    pairs.pairs.clear();
    succeeds(&pairs.instance.command("stop").output().expect("it runs"), "stop");
    assert_alike(&saved, &made, "after the stop");
    separate_hardlinks(&saved);
    separate_hardlinks(&made);
    pairs.instance.start_again();
    pairs.start_programs();
    pairs.read_all();
    pairs.compare(steps / 2);
    pairs.wait_until_counted(&["bytes_demoted", "bytes_evicted"]);
    assert!(pairs.most > daemons * MEMORY, "seed {}: everything fitted memory", pairs.seed);
    pairs.pairs.clear();
    succeeds(&pairs.instance.command("flush").output().expect("it runs"), "flush");
    assert_alike(&saved, &made, "after the flush");
}

#[test]
fn random_renames_reach_the_backing_store() {
    compare_during_writeback(1, 5);
}

#[test]
fn random_renames_across_three_daemons_reach_the_backing_store() {
    compare_during_writeback(3, 6);
}

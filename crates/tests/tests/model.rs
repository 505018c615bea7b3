//! Random calls on an instance and on the host's tmpfs: several programs call in turns, each with a
//! twin that does the same outside, and every answer, errno included, must be the twin's.
//!
//! Not compared: times, inode numbers, the size and link count of directories.

mod support;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use support::{Instance, Random, Worker, setting, text};

/// Programs at work, each with handles of its own.
const PROGRAMS: usize = 3;
/// Open files of a program.
const HANDLES: u64 = 4;
/// Names that a directory may have; few, so that calls meet.
const NAMES: [&str; 4] = ["a", "b", "c", "a-longer-name-than-the-others"];
const ROOT: &str = "ROOT";

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

/// Sizes of all kinds: inline, a piece, several, beyond a chunk of 64 KiB.
fn size(random: &mut Random) -> u64 {
    random.below(300_000) >> random.below(18)
}

fn request(random: &mut Random) -> String {
    let seed = random.below(1000);
    let (one, other) = (path(random), path(random));
    let (at, length, file) = (size(random), size(random), handle(random));
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

/// Programs call in turns, inside and outside; `steps` calls in all.
fn compare(instance: &Instance, outside: &str, seed: u64, steps: u64) {
    let name = &instance.name;
    let inside = "/forebay/model";
    let mut pairs: Vec<(Worker, Worker)> =
        (0..PROGRAMS).map(|_| (instance.worker(), Worker::outside())).collect();
    assert_eq!(pairs[0].0.ask(&format!("mkdir {inside}")), "ok");
    let mut random = Random::new(seed);
    let mut before: Vec<String> = Vec::new();
    for step in 0..steps {
        let turn = usize::try_from(random.below(PROGRAMS as u64)).expect("small");
        let request = request(&mut random);
        let (ours, twin) = &mut pairs[turn];
        let right = twin.ask(&request.replace(ROOT, outside));
        let answer = ours.ask(&request.replace(ROOT, inside));
        let line = format!("{turn}: {request} -> {right}");
        assert_eq!(
            answer,
            right,
            "{name}, seed {seed}, step {step}: {request}, after\n{}",
            before[before.len().saturating_sub(60)..].join("\n")
        );
        before.push(line);
    }
}

fn in_memory() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").expect("a directory in memory")
}

fn text_of(place: &Path) -> &str {
    place.to_str().expect("a plain path")
}

/// All files fit memory, and stay there.
fn compare_at_rest(daemons: &str, seed: u64) {
    let options = ["--local", daemons, "--memory", "64MiB", "--ssd", "0", "--chunk", "64KiB"];
    let instance = Instance::start(&format!("model{daemons}"), &options);
    let (seed, steps) = (setting("TEST_SEED", seed), setting("TEST_STEPS", 6000));
    compare(&instance, text_of(in_memory().path()), seed, steps);
}

#[test]
fn one_daemon_answers_as_a_local_file_system() {
    compare_at_rest("1", 1);
}

#[test]
fn three_daemons_answer_as_a_local_file_system() {
    compare_at_rest("3", 2);
}

/// Whatever is not in use at the moment moves to the SSD, and what is used comes up.
const RESTLESS: [&str; 10] =
    ["--memory", "16MiB", "--ssd", "64MiB", "--chunk", "64KiB", "--room", "100", "--idle", "1ms"];

/// Of all daemons.
fn sum(instance: &Instance, name: &str) -> u64 {
    let status = instance.status();
    let daemons = status["daemons"].as_array().expect("daemons");
    daemons.iter().map(|daemon| daemon["state"][name].as_u64().expect("a number")).sum()
}

/// The same calls, while pieces move all the time: nobody sees it.
fn compare_while_pieces_move(daemons: &str, seed: u64) {
    let options = [&RESTLESS[..], &["--local", daemons]].concat();
    let instance = Instance::start(&format!("moves{daemons}"), &options);
    let (seed, steps) = (setting("TEST_SEED", seed), setting("TEST_STEPS", 4000));
    compare(&instance, text_of(in_memory().path()), seed, steps);
    for what in ["bytes_sunk", "bytes_risen"] {
        assert!(sum(&instance, what) > 0, "{what} of {:?}", instance.status());
    }
}

#[test]
fn pieces_of_one_daemon_move_and_nobody_sees_it() {
    compare_while_pieces_move("1", 3);
}

#[test]
fn pieces_of_three_daemons_move_and_nobody_sees_it() {
    compare_while_pieces_move("3", 4);
}

/// What is in a tree: kinds, modes and contents by path.
fn tree(root: &Path) -> BTreeMap<PathBuf, (u32, Vec<u8>)> {
    let (mut found, mut left) = (BTreeMap::new(), vec![root.to_owned()]);
    while let Some(directory) = left.pop() {
        for entry in fs::read_dir(directory).expect("a directory") {
            let path = entry.expect("an entry").path();
            let attributes = fs::symlink_metadata(&path).expect("it is there");
            let content = match attributes.file_type() {
                kind if kind.is_dir() => {
                    left.push(path.clone());
                    Vec::new()
                }
                kind if kind.is_symlink() => {
                    fs::read_link(&path).expect("a link").into_os_string().into_encoded_bytes()
                }
                _ => fs::read(&path).expect("a file"),
            };
            let name = path.strip_prefix(root).expect("below it").to_owned();
            found.insert(name, (attributes.mode(), content));
        }
    }
    found
}

/// And all of it is saved below meanwhile, where it lies in the end as beside the twins.
#[test]
fn what_moves_comes_to_lie_below_as_it_was_made() {
    let (below, outside) = (in_memory(), in_memory());
    let (backing, twins) = (text_of(below.path()), text_of(outside.path()));
    let options = [&RESTLESS[..], &["--backing", backing]].concat();
    let instance = Instance::start("saved", &options);
    let (seed, steps) = (setting("TEST_SEED", 5), setting("TEST_STEPS", 3000));
    compare(&instance, twins, seed, steps);
    assert!(sum(&instance, "bytes_sunk") > 0 && sum(&instance, "bytes_risen") > 0);
    let flushed = instance.command("flush").output().expect("it runs");
    assert!(flushed.status.success(), "{}", text(&flushed.stderr));
    let (made, saved) = (tree(outside.path()), tree(&below.path().join("model")));
    let names = |tree: &BTreeMap<PathBuf, _>| tree.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&saved), names(&made));
    assert!(!made.is_empty(), "nothing was made");
    for (name, right) in &made {
        let found = &saved[name];
        assert_eq!(found.0, right.0, "the mode of {}", name.display());
        // Where a link leads to is its own directory's name.
        let is_link = right.0 & 0o170_000 == 0o120_000;
        assert!(is_link || found.1 == right.1, "what is in {}", name.display());
    }
}

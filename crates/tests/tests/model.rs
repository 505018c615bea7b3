//! Random calls on an instance and on the host's tmpfs: several programs call in turns, each with a
//! twin that does the same outside, and every answer, errno included, must be the twin's.
//!
//! Not compared: times, inode numbers, the size and link count of directories.

mod support;

use support::{Instance, Random, Worker, setting};

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

fn compare(daemons: u64, seed: u64, steps: u64) {
    let daemons = daemons.to_string();
    let options = ["--local", &*daemons, "--memory", "64MiB", "--ssd", "0", "--chunk", "64KiB"];
    let instance = Instance::start(&format!("model{daemons}"), &options);
    let outside = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
    let outside = outside.path().to_str().expect("a plain path");
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
            "{daemons} daemons, seed {seed}, step {step}: {request}, after\n{}",
            before[before.len().saturating_sub(60)..].join("\n")
        );
        before.push(line);
    }
}

#[test]
fn one_daemon_answers_as_a_local_file_system() {
    compare(1, setting("TEST_SEED", 1), setting("TEST_STEPS", 6000));
}

#[test]
fn three_daemons_answer_as_a_local_file_system() {
    compare(3, setting("TEST_SEED", 2), setting("TEST_STEPS", 6000));
}

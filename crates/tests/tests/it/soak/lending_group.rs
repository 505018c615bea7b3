//! Borrowed memory beside a program that allocates 4 GiB at full speed, in a control group that can
//! hold it only when the memory is given back. The test is a process of its own, which moves into the
//! group: other tests would use the group's memory, too, and be killed in it.

use crate::support::group::Group;
use crate::support::{Instance, Worker, skip, text, wait_for};
use std::process::{Command, Stdio};
use std::time::Instant;
use testkit::{content, digest};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
/// The limit of the group: what the program takes, and half of what the file system held before.
const LIMIT: u64 = 5 * GIB + GIB / 2;
const TAKES: u64 = 4 * GIB;
/// Set in the process that moves into the group.
const ALONE: &str = "FOREBAY_TEST_ALONE";

fn state(instance: &Instance, name: &str) -> u64 {
    let state = &instance.status()["daemons"][0]["state"];
    state[name].as_u64().unwrap_or_else(|| panic!("{name} of {state}"))
}

/// A number after a word in a file of the system.
fn number(path: &str, word: &str) -> u64 {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(word));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

/// Why this machine cannot run the test: the limit of the group must be the one that is reached, and
/// the promise is one of devices that are not much slower than the program.
fn lacks() -> Option<String> {
    let available = number("/proc/meminfo", "MemAvailable:") * 1024;
    let free = |path: &str| {
        rustix::fs::statvfs(path).map_or(0, |space| space.f_bavail.saturating_mul(space.f_frsize))
    };
    let temporary = std::env::temp_dir();
    let expected = [
        ("available memory", available, LIMIT + 2 * GIB),
        ("space in /dev/shm", free("/dev/shm"), 3 * GIB),
        ("space for the SSD file", free(&temporary.to_string_lossy()), 8 * GIB),
    ];
    let lacks = expected.into_iter().find(|(_, has, wants)| has < wants);
    if let Some((what, has, wants)) = lacks {
        return Some(format!("{what}: {has} bytes, {wants} are needed"));
    }
    let (absorbed, taken) = (device_rate(&temporary), program_rate());
    let needed = taken / 8 * 5;
    (absorbed < needed).then(|| {
        format!(
            "a fast SSD: it absorbs {absorbed} bytes/s, five eighths of a program's speed are {needed}"
        )
    })
}

/// Bytes per second of `bytes` since `begun`.
fn rate(bytes: u64, begun: Instant) -> u64 {
    (u128::from(bytes) * 1_000_000 / begun.elapsed().as_micros().max(1)) as u64
}

/// How fast the device of a directory absorbs large writes past the kernel's cache.
fn device_rate(directory: &std::path::Path) -> u64 {
    let file = tempfile::NamedTempFile::new_in(directory).expect("a file");
    let output = format!("of={}", file.path().display());
    let begun = Instant::now();
    let words = ["if=/dev/zero", &output, "bs=4M", "count=256", "oflag=direct", "conv=notrunc"];
    let copied = Command::new("dd").args(words).stderr(Stdio::null()).status();
    assert!(copied.expect("dd runs").success(), "direct writes to {}", directory.display());
    rate(GIB, begun)
}

/// How fast a program takes memory that it has not had before.
fn program_rate() -> u64 {
    let mut program = Worker::outside();
    let begun = Instant::now();
    let answer = program.ask(&format!("allocate {GIB}"));
    assert!(answer.starts_with("ok "), "{answer}");
    rate(GIB, begun)
}

/// "A program that takes all memory of its control group gets it" (docs/semantics/durability.md).
#[test]
fn a_program_at_full_speed_is_not_killed_for_borrowed_memory() {
    if std::env::var_os(ALONE).is_some() {
        return take_all_memory();
    }
    let name = "soak::lending_group::a_program_at_full_speed_is_not_killed_for_borrowed_memory";
    let mut alone = Command::new(std::env::current_exe().expect("a path"));
    let alone = alone.args(["--exact", name, "--nocapture"]).env(ALONE, "1").output();
    let alone = alone.expect("it runs");
    let (said, errors) = (text(&alone.stdout), text(&alone.stderr));
    assert!(alone.status.success() && said.contains("1 passed"), "{said}{errors}");
}

fn take_all_memory() {
    if let Some(lacks) = lacks() {
        return skip(&format!("this machine lacks {lacks}"));
    }
    let group = match Group::enter(LIMIT) {
        Ok(group) => group,
        Err(why) => {
            return skip(&format!("control groups with a memory limit cannot be made: {why}"));
        }
    };
    let swapped = number("/proc/vmstat", "pswpout ");
    // Files fill the whole allowance: nothing can be given back without being moved.
    let options =
        ["--memory", "0..4GiB", "--ssd", "6GiB", "--demote-low-watermark", "0", "--workers", "1"];
    let instance = Instance::start("group", &options);
    let mut worker = instance.worker();
    assert_eq!(worker.ask(&format!("put /forebay/known 7 {}", 32 * MIB)), "ok");
    wait_for("a share of the group", || state(&instance, "memory_allowance") > 2 * GIB);
    let files = state(&instance, "memory_allowance") / (128 * MIB) - 1;
    for file in 0..files {
        let output = format!("of=/forebay/f{file}");
        let mut copy = instance.program(&["dd", "if=/dev/zero", &output, "bs=4M", "count=32"]);
        let copied = copy.stderr(Stdio::piped()).output().expect("it runs");
        assert!(copied.status.success(), "{}", text(&copied.stderr));
    }
    let held = state(&instance, "memory_used");
    assert!(held >= 2 * GIB, "{held} bytes of memory are in files");
    assert_eq!(instance.status()["daemons"][0]["state"]["memory_reason"], "cgroup");

    let mut program = Worker::outside();
    let begun = Instant::now();
    let answer = program.ask(&format!("allocate {TAKES}"));
    assert!(answer.starts_with(&format!("ok {TAKES} ")), "{answer}");
    eprintln!("{answer}, {} us in all", begun.elapsed().as_micros());
    assert_eq!(group.killed(), 0, "the group reached its limit");
    assert_eq!(number("/proc/vmstat", "pswpout "), swapped, "the machine swapped");
    let demoted = state(&instance, "bytes_demoted");
    assert!(demoted >= GIB, "{demoted} bytes moved");
    let answer = worker.ask("get /forebay/known");
    assert_eq!(answer, format!("ok {} {}", 32 * MIB, digest(&content(7, 0, 32 * MIB))));
    drop((worker, program));
    drop(instance);
    drop(group);
}

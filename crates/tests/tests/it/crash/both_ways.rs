//! Programs that use one file by both ways at once, by calls and by mappings, preloaded and through the
//! kernel, while they, the daemons and the mount's program are killed. `programs/both_ways.py` is the
//! program: a number that was written is never missed by a reader that begins later.
//!
//! `TEST_SCALE` multiplies the number of kills, `TEST_SEED` begins another series.
//! Needs root and `/dev/fuse`; without them the test is skipped.

use crate::support::mounted::{has_ended, has_fuse};
use crate::support::{Instance, kill, text, wait_for};
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use testkit::Random;

const PROCESSES: u64 = 4;
const PAGE_BYTES: u64 = 4096;
const PROGRAM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/programs/both_ways.py");

/// The log of the processes.
struct Log {
    path: PathBuf,
    file: File,
}

impl Log {
    fn new(instance: &Instance) -> Log {
        // In memory: a record of a process outlives it.
        let path = PathBuf::from(format!("/dev/shm/{}.log", instance.name));
        let file = File::options().read(true).write(true).create_new(true).open(&path);
        let file = file.expect("created");
        file.set_len(PAGE_BYTES).expect("space");
        Log { path, file }
    }

    fn word(&self, at: u64) -> u64 {
        let mut bytes = [0; 8];
        self.file.read_exact_at(&mut bytes, 8 * at).expect("read");
        u64::from_le_bytes(bytes)
    }

    fn begun(&self, process: u64) -> u64 {
        self.word(3 * process)
    }

    fn written(&self, process: u64) -> u64 {
        self.word(3 * process + 1)
    }

    fn pid(&self, process: u64) -> i32 {
        i32::try_from(self.word(3 * process + 2)).expect("a process number")
    }

    fn end_all(&self) {
        self.file.write_all_at(&1_u64.to_le_bytes(), 8 * 3 * PROCESSES).expect("written");
    }

    /// The mount's program is about to be killed, or was.
    fn note_mount(&self) {
        let at = 3 * PROCESSES + 1;
        let next = (self.word(at) + 1).to_le_bytes();
        self.file.write_all_at(&next, 8 * at).expect("written");
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        // Processes that still run, because the test failed, end.
        self.end_all();
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Starts a process: each other one is preloaded.
fn start(instance: &Instance, file: &Path, log: &Log, process: u64, seed: u64) -> Child {
    let words = [
        "python3".to_owned(),
        PROGRAM.to_owned(),
        file.display().to_string(),
        log.path.display().to_string(),
        process.to_string(),
        PROCESSES.to_string(),
        seed.to_string(),
    ];
    let mut command = if process.is_multiple_of(2) {
        instance.program_by_default(&words.each_ref().map(String::as_str))
    } else {
        // After a kill of the mount the name is not there until a command has mounted again.
        wait_for("the mount", || file.exists());
        let mut command = Command::new("python3");
        command.args(words.get(1..).unwrap_or_default());
        command
    };
    command.stderr(Stdio::piped()).spawn().expect("the program starts")
}

/// Waits for the end of a process, which must be one of `allowed` signals if it is no success.
fn ended(child: Child, allowed: &[i32], what: &str) {
    let output = child.wait_with_output().expect("it ends");
    // `forebay run` ends as a shell would for its command's signal.
    let code = output.status.code().map(|code| code - 128);
    let signal = output.status.signal().or(code).unwrap_or_default();
    let errors = text(&output.stderr);
    assert!(output.status.success() || allowed.contains(&signal), "{what}: {output:?}: {errors}");
}

/// The process of the mount that serves `at`.
fn mount_process(instance: &Instance) -> Option<i32> {
    let status = instance.status();
    let mounts = status["mounts"].as_array()?.iter();
    let mut served = mounts.rev().filter(|mount| mount["state"] == "served");
    served.find_map(|mount| i32::try_from(mount["pid"].as_i64()?).ok())
}

/// Mounts again after a kill, as each command does: perhaps no process has to begin anew. On a busy
/// machine a command may give up and go without the mount.
fn mount_again(instance: &Instance, file: &Path, what: &str) {
    wait_for(&format!("{what}: the mount is there again"), || {
        let output = instance.program_by_default(&["true"]).output().expect("it runs");
        assert!(output.status.success(), "{what}: {output:?}");
        file.exists()
    });
}

/// A process ends when it is killed, and when it touches a mapping of a mount that was killed.
const ENDS: [i32; 2] = [libc::SIGKILL, libc::SIGBUS];

fn killed(daemons: u64, kills: u64, seed: u64) {
    if !has_fuse() {
        return;
    }
    let place = tempfile::tempdir().expect("a directory");
    let at = place.path().join("at");
    let (count, at_text) = (daemons.to_string(), at.display().to_string());
    let options = ["--local", &count, "--memory", "32MiB", "--ssd", "0", "--at", &at_text];
    let options = [&options[..], &["--access", "auto", "--timeout", "20s"]].concat();
    let instance = Instance::start("ways", &options);
    let (file, log) = (at.join("numbers"), Log::new(&instance));
    std::fs::write(&file, vec![0; (PROCESSES * PAGE_BYTES) as usize]).expect("written");
    let begin = |process| start(&instance, &file, &log, process, seed);
    let mut children: Vec<Option<Child>> = (0..PROCESSES).map(|each| Some(begin(each))).collect();
    let mut random = Random::new(seed);
    let mut last = "nothing";
    for number in 0..kills {
        let before: Vec<u64> = (0..PROCESSES).map(|each| log.written(each)).collect();
        let what = format!("seed {seed}, kill {number}, after that of {last}");
        wait_for(&format!("{what}: all write"), || {
            for (process, child) in (0..).zip(&mut children) {
                // A kill of the mount ends those that touch a mapping of it.
                if child.as_mut().is_some_and(|child| child.try_wait().expect("known").is_some()) {
                    ended(child.take().expect("a child"), &ENDS, &what);
                    *child = Some(begin(process));
                }
            }
            (0..).zip(&before).all(|(each, before)| log.written(each) > *before)
        });
        match random.uniform(4) {
            0 => {
                last = "a daemon";
                let daemon = instance.daemon(random.uniform(daemons) as usize);
                daemon.kill();
                daemon.wait();
                instance.start_again();
            }
            1 => {
                if let Some(pid) = mount_process(&instance) {
                    last = "the mount";
                    log.note_mount();
                    kill(pid);
                    wait_for(&format!("{what}: the mount ends"), || has_ended(pid));
                    log.note_mount();
                    mount_again(&instance, &file, &what);
                }
            }
            _ => {
                last = "a process";
                kill(log.pid(random.uniform(PROCESSES)));
            }
        }
    }
    log.end_all();
    for child in children.into_iter().flatten() {
        ended(child, &ENDS, &format!("seed {seed}, at the end"));
    }
    // The kernel's way may have to be made again.
    let read = ["od", "-An", "-v", "-tu8", "-w8", &file.display().to_string()].map(str::to_owned);
    let output = instance.program_by_default(&read.each_ref().map(String::as_str)).output();
    let printed = text(&output.expect("od runs").stdout);
    let words: Vec<u64> = printed.lines().filter_map(|line| line.trim().parse().ok()).collect();
    for process in 0..PROCESSES {
        let found = words[(process * PAGE_BYTES / 8) as usize];
        let (low, high) = (log.written(process), log.begun(process));
        assert!((low..=high).contains(&found), "seed {seed}: {process}: {low} {found} {high}");
    }
}

/// "Acknowledged operations survive the death of any program and of the daemon"
/// (docs/semantics/durability.md), "writes are seen at once on the host of the writer"
/// (docs/semantics/sharing.md).
#[test]
fn kills_with_mappings_and_both_ways_at_once_lose_nothing_that_was_written() {
    killed(1, testkit::rounds(12), testkit::seed(1));
    killed(4, testkit::rounds(12), testkit::seed(2));
}

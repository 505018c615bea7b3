//! Access profiles of periodic jobs: the files that one run of a name reads are prefetched in the
//! next run. Tests detect it by other bytes in the backing directory and by counters of the
//! daemons, never by time.

use crate::support::backing::{Backing, replace_unnoticed};
use crate::support::world::World;
use crate::support::{Instance, text, wait_for};
use serde_json::Value;
use std::fs;
use std::path::PathBuf;
use testkit::{content, digest};

const MIB: u64 = 1 << 20;
const LENGTH: u64 = MIB - 5;

/// A backing directory with files, and a user with access profiles.
struct Job {
    backing: Backing,
    state: tempfile::TempDir,
}

impl Job {
    /// `count` files in each of these directories.
    fn new(directories: &[&str], count: u64) -> Job {
        let job = Job { backing: Backing::new(), state: tempfile::tempdir().expect("a directory") };
        for (dir, directory) in directories.iter().enumerate() {
            fs::create_dir(job.backing.path(directory)).expect("made");
            for file in 0..count {
                job.backing.file(&format!("{directory}/{file}"), dir as u64 * 100 + file, LENGTH);
            }
        }
        job
    }

    fn instance(&self, name: &str, daemons: &str) -> Instance {
        let dir = self.backing.text();
        let words =
            ["--local", daemons, "--backing", &dir, "--profile", "job", "--memory", "64MiB"];
        let state = self.state.path().to_str().expect("letters").to_owned();
        Instance::unstarted(name, &words, &[("XDG_STATE_HOME", state)])
    }

    /// The path of the stored profile.
    fn file(&self) -> PathBuf {
        self.state.path().join("forebay/profiles/job")
    }

    /// Lines of `forebay profile show`.
    fn shown(&self, instance: &Instance) -> Vec<String> {
        let output = self.printed(instance, &["show", "job", "--json"]);
        let value: Value = serde_json::from_str(&output).expect("JSON");
        let files = value["files"].as_array().expect("files").iter();
        files.map(|file| file["path"].as_str().expect("a path").to_owned()).collect()
    }

    fn printed(&self, instance: &Instance, words: &[&str]) -> String {
        let mut command = std::process::Command::new(crate::support::profile().join("forebay"));
        command.arg("profile").args(words).env("XDG_STATE_HOME", self.state.path());
        let output = command.output().expect("forebay runs");
        let name = &instance.name;
        assert!(output.status.success(), "{name}: {words:?}: {}", text(&output.stderr));
        text(&output.stdout)
    }

    /// Replaces the contents of the backing files unnoticed: a read from the backing store returns
    /// other bytes.
    fn replace_unnoticed(&self, directory: &str, count: u64) {
        for file in 0..count {
            replace_unnoticed(&self.backing.path(&format!("{directory}/{file}")));
        }
    }
}

fn stop(instance: &Instance) {
    let output = instance.command("stop").output().expect("forebay runs");
    assert!(output.status.success(), "stop: {}", text(&output.stderr));
    // Dropping an `Instance` stops it.
    instance.start_again();
}

/// Reads files, each after the previous one is recorded, so that their order is defined.
fn read(instance: &Instance, files: &[(&str, u64)]) {
    let mut worker = instance.worker();
    for (directory, file) in files {
        let before = sum(instance, "profile_recorded");
        let seed = if *directory == "e" { 100 } else { 0 } + file;
        let right = format!("ok {LENGTH} {}", digest(&content(seed, 0, LENGTH)));
        assert_eq!(worker.ask(&format!("get /forebay/{directory}/{file}")), right);
        wait_for("a note", || sum(instance, "profile_recorded") > before);
    }
}

/// Sum of a counter over all daemons.
fn sum(instance: &Instance, number: &str) -> u64 {
    let status = instance.status();
    let daemons = status["daemons"].as_array().expect("daemons").iter();
    daemons.map(|daemon| daemon["state"][number].as_u64().expect("a number")).sum()
}

/// Bytes of files of a directory that are still to be prefetched.
fn bytes_outstanding(instance: &Instance, directory: &str, files: &[u64]) -> u64 {
    let script = format!(
        "import os\n\
         print(sum(int(os.getxattr(f'/forebay/{directory}/{{n}}', 'user.forebay.prefetch'))\n\
         \x20   for n in {files:?}))"
    );
    let output = instance.program(&["python3", "-c", &script]).output().expect("it runs");
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout).trim().parse().expect("a number")
}

fn names(directory: &str, files: &[u64]) -> Vec<String> {
    files.iter().map(|file| format!("{directory}/{file}")).collect()
}

/// "Files that a run with an access profile read are prefetched in the next run"
/// (docs/semantics/staging-and-prefetch.md).
#[test]
fn files_read_by_one_run_are_prefetched_in_the_next() {
    let order = [7, 3, 5, 0, 1, 6];
    for daemons in ["1", "3"] {
        let job = Job::new(&["d"], 8);
        let files: Vec<(&str, u64)> = order.iter().map(|file| ("d", *file)).collect();
        let instance = job.instance(&format!("hist{daemons}"), daemons);
        instance.start_again();
        assert_eq!(sum(&instance, "profile_listed"), 0);
        read(&instance, &files);
        assert!(!job.file().exists(), "before the end");
        stop(&instance);
        assert_eq!(job.shown(&instance), names("d", &order));
        // Second run: its files are prefetched without a request.
        wait_for("all of them", || bytes_outstanding(&instance, "d", &order) == 0);
        assert_eq!(bytes_outstanding(&instance, "d", &[2, 4]), 2 * LENGTH, "and no others");
        job.replace_unnoticed("d", 8);
        read(&instance, &files);
        assert_eq!(sum(&instance, "profile_misses"), 0);
        assert!(sum(&instance, "profile_hits") >= order.len() as u64);
        let status = instance.command("status").output().expect("forebay runs");
        assert!(text(&status.stdout).contains("profile job: "), "{}", text(&status.stdout));
        // Prefetched files count as used: the third run finds the same profile.
        stop(&instance);
        assert_eq!(job.shown(&instance), names("d", &order));
        assert!(job.printed(&instance, &["list"]).contains("job   6"));
        assert_eq!(job.printed(&instance, &["remove", "job"]), "removed profile job\n");
        assert!(!job.file().exists());
    }
}

/// "A run that reads other files stops following its profile"
/// (docs/semantics/staging-and-prefetch.md).
#[test]
fn a_run_that_reads_other_files_stops_following_its_profile() {
    let job = Job::new(&["d", "e"], 30);
    let instance = job.instance("deviates", "1");
    instance.start_again();
    let all = |directory: &'static str| (0..30).map(|file| (directory, file)).collect::<Vec<_>>();
    read(&instance, &all("d"));
    stop(&instance);
    // Prefetched data fills a quarter of the memory, and no reader comes.
    let rest: Vec<u64> = (0..30).collect();
    wait_for("the prefetch limit", || {
        bytes_outstanding(&instance, "d", &rest) <= 30 * LENGTH - 15 * MIB
    });
    read(&instance, &all("e"));
    assert_eq!(sum(&instance, "profile_abandoned"), 1);
    assert_eq!((sum(&instance, "profile_hits"), sum(&instance, "profile_misses")), (0, 30));
    let left = bytes_outstanding(&instance, "d", &rest);
    assert!(left >= 13 * MIB, "{left} bytes");
    let status = instance.command("status").output().expect("forebay runs");
    assert!(text(&status.stdout).contains("prefetch abandoned"), "{}", text(&status.stdout));
    stop(&instance);
    assert_eq!(job.shown(&instance), names("e", &rest), "the read continues at the offset");
}

/// "A broken profile fails no job" (docs/semantics/staging-and-prefetch.md).
#[test]
fn a_broken_profile_is_one_line_and_the_job_runs() {
    let job = Job::new(&["d"], 3);
    fs::create_dir_all(job.file().parent().expect("one")).expect("made");
    let instance = job.instance("broken", "1");
    for (round, broken) in [
        &b"forebay-profile 1\n0 d/0\n"[..],
        b"forebay-profile 1\n0 ../../etc/shadow\nend 1\n",
        b"\xff\x00\xff",
    ]
    .into_iter()
    .enumerate()
    {
        fs::write(job.file(), broken).expect("written");
        let output = instance.try_start();
        let errors = text(&output.stderr);
        assert!(output.status.success(), "{errors}");
        assert!(errors.contains("unreadable profile: ") && errors.lines().count() == 1, "{errors}");
        read(&instance, &[("d", 2), ("d", 1)]);
        let output = instance.command("stop").output().expect("forebay runs");
        assert!(output.status.success(), "{}", text(&output.stderr));
        assert_eq!(job.shown(&instance), ["d/2", "d/1"], "round {round}");
    }
    // Missing files are skipped.
    fs::write(job.file(), "forebay-profile 1\n0 gone/f\n1 d\n1 d/1\n1 d/0\nend 4\n")
        .expect("written");
    let output = instance.try_start();
    assert!(output.status.success() && output.stderr.is_empty(), "{}", text(&output.stderr));
    wait_for("existing entries", || bytes_outstanding(&instance, "d", &[0, 1]) == 0);
}

/// Accesses recorded before and after the kill of a daemon are kept, and the profile is complete.
#[test]
fn a_killed_daemon_loses_no_profile() {
    let job = Job::new(&["d"], 8);
    let instance = job.instance("histdie", "2");
    instance.start_again();
    read(&instance, &[("d", 5), ("d", 4)]);
    for daemon in [instance.daemon(0), instance.daemon(1)] {
        daemon.kill();
        daemon.wait();
    }
    instance.start_again();
    read(&instance, &[("d", 1), ("d", 7)]);
    stop(&instance);
    assert_eq!(job.shown(&instance), names("d", &[5, 4, 1, 7]));
    // A daemon that is dead at the end has left its records.
    wait_for("the list", || bytes_outstanding(&instance, "d", &[5, 4, 1, 7]) == 0);
    read(&instance, &[("d", 0)]);
    let daemon = instance.daemon(1);
    daemon.kill();
    daemon.wait();
    // Writeback is impossible without the backing directory, and not needed.
    let output = instance.command("stop").arg("--discard").output().expect("forebay runs");
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(job.shown(&instance), names("d", &[0]));
    instance.start_again();
}

/// Programs on several hosts share one profile, which the daemons of all hosts follow.
#[test]
fn hosts_share_one_profile() {
    let job = Job::new(&["d"], 8);
    let Some(mut world) = World::new() else { return };
    let leaked = |text: String| -> &'static str { Box::leak(text.into_boxed_str()) };
    let state = job.state.path().to_str().expect("letters").to_owned();
    world.settings = vec![
        ("FOREBAY_BACKING", leaked(job.backing.text())),
        ("FOREBAY_PROFILE", "job"),
        ("XDG_STATE_HOME", leaked(state)),
    ];
    world.start();
    let sums = |file: u64| {
        let mut command = std::process::Command::new("sha256sum");
        let output = command.arg(job.backing.path(&format!("d/{file}"))).output();
        output.map(|it| text(&it.stdout)[..64].to_owned()).expect("it runs")
    };
    let right: Vec<String> = (0..8).map(sums).collect();
    let read = |host: &str, file: u64| {
        let printed = world.shell(host, "sha256sum </forebay/d/$1", &file.to_string());
        assert_eq!(printed[..64], right[file as usize], "{file} on {host}");
    };
    let order = [("b", 6), ("c", 2), ("a", 4), ("b", 1)];
    order.iter().for_each(|(host, file)| read(host, *file));
    world.end();
    let written = || fs::read_to_string(job.file()).expect("a profile");
    let files = |text: &str| {
        let lines = text.lines().filter_map(|line| line.split(' ').nth(1)?.strip_prefix("d/"));
        lines.map(|file| file.parse().expect("a number")).collect::<Vec<u64>>()
    };
    assert_eq!(files(&written()), [6, 2, 4, 1], "{}", written());
    world.start();
    let left = "cd /forebay/d; for f in 6 2 4 1; do \
        getfattr --only-values -n user.forebay.prefetch $f; echo; done";
    wait_for("all of them", || world.shell("c", left, "").lines().all(|line| line == "0"));
    job.replace_unnoticed("d", 8);
    order.iter().rev().for_each(|(host, file)| read(host, *file));
    // The last collection of accesses may be outstanding.
    let noted = |host: &str| world.daemon(host)["state"]["profile_hits"].as_u64().unwrap_or(0);
    wait_for("the checks", || noted("a") + noted("b") + noted("c") >= 1);
    world.end();
    let mut again = files(&written());
    again.sort_unstable();
    assert!(
        again.iter().all(|file| [1, 2, 4, 6].contains(file)) && !again.is_empty(),
        "{}",
        written()
    );
}

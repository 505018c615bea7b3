//! Histories of periodic jobs: what one run of a name reads comes up before the next one asks. Told by
//! what is read when other bytes lie below, and by the numbers of the daemons, never by time.

mod support;

use serde_json::Value;
use std::fs;
use std::path::PathBuf;
use support::below::{Below, disguise};
use support::world::World;
use support::{Instance, text, wait_for};
use tests::{content, digest};

const MIB: u64 = 1 << 20;
const LENGTH: u64 = MIB - 5;

/// A site with files, and a user with histories.
struct Job {
    below: Below,
    state: tempfile::TempDir,
}

impl Job {
    /// `count` files in each of these directories.
    fn new(directories: &[&str], count: u64) -> Job {
        let job = Job { below: Below::new(), state: tempfile::tempdir().expect("a directory") };
        for (place, directory) in directories.iter().enumerate() {
            fs::create_dir(job.below.path(directory)).expect("made");
            for file in 0..count {
                job.below.file(&format!("{directory}/{file}"), place as u64 * 100 + file, LENGTH);
            }
        }
        job
    }

    fn instance(&self, name: &str, daemons: &str) -> Instance {
        let place = self.below.text();
        let words =
            ["--local", daemons, "--backing", &place, "--history", "job", "--memory", "64MiB"];
        let state = self.state.path().to_str().expect("letters").to_owned();
        Instance::unstarted(name, &words, &[("XDG_STATE_HOME", state)])
    }

    /// The history as it lies there.
    fn file(&self) -> PathBuf {
        self.state.path().join("forebay/history/job")
    }

    /// What `forebay history show` says.
    fn shown(&self, instance: &Instance) -> Vec<String> {
        let output = self.said(instance, &["show", "job", "--json"]);
        let value: Value = serde_json::from_str(&output).expect("JSON");
        let files = value["files"].as_array().expect("files").iter();
        files.map(|file| file["path"].as_str().expect("a path").to_owned()).collect()
    }

    fn said(&self, instance: &Instance, words: &[&str]) -> String {
        let mut command = std::process::Command::new(support::profile().join("forebay"));
        command.arg("history").args(words).env("XDG_STATE_HOME", self.state.path());
        let output = command.output().expect("forebay runs");
        let name = &instance.name;
        assert!(output.status.success(), "{name}: {words:?}: {}", text(&output.stderr));
        text(&output.stdout)
    }

    /// Who reads there reads other bytes from now on, and nobody notices.
    fn disguise(&self, directory: &str, count: u64) {
        for file in 0..count {
            disguise(&self.below.path(&format!("{directory}/{file}")));
        }
    }
}

fn stop(instance: &Instance) {
    let output = instance.command("stop").output().expect("forebay runs");
    assert!(output.status.success(), "stop: {}", text(&output.stderr));
    // What is dropped is stopped.
    instance.start_again();
}

/// Reads files, each when the one before is noted, so that there is an order.
fn read(instance: &Instance, files: &[(&str, u64)]) {
    let mut worker = instance.worker();
    for (directory, file) in files {
        let before = sum(instance, "history_noted");
        let seed = if *directory == "e" { 100 } else { 0 } + file;
        let right = format!("ok {LENGTH} {}", digest(&content(seed, 0, LENGTH)));
        assert_eq!(worker.ask(&format!("get /forebay/{directory}/{file}")), right);
        wait_for("a note", || sum(instance, "history_noted") > before);
    }
}

/// A number that all daemons say.
fn sum(instance: &Instance, number: &str) -> u64 {
    let status = instance.status();
    let daemons = status["daemons"].as_array().expect("daemons").iter();
    daemons.map(|daemon| daemon["state"][number].as_u64().expect("a number")).sum()
}

/// Bytes of files of a directory that are to come.
fn to_come(instance: &Instance, directory: &str, files: &[u64]) -> u64 {
    let script = format!(
        "import os\n\
         print(sum(int(os.getxattr(f'/forebay/{directory}/{{n}}', 'user.forebay.rise'))\n\
         \x20   for n in {files:?}))"
    );
    let output = instance.program(&["python3", "-c", &script]).output().expect("it runs");
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout).trim().parse().expect("a number")
}

fn names(directory: &str, files: &[u64]) -> Vec<String> {
    files.iter().map(|file| format!("{directory}/{file}")).collect()
}

/// "What a run with a history read comes up in the next one before it is asked for"
/// (docs/semantics.md).
#[test]
fn what_one_run_read_is_there_in_the_next() {
    let order = [7, 3, 5, 0, 1, 6];
    for daemons in ["1", "3"] {
        let job = Job::new(&["d"], 8);
        let files: Vec<(&str, u64)> = order.iter().map(|file| ("d", *file)).collect();
        let instance = job.instance(&format!("hist{daemons}"), daemons);
        instance.start_again();
        assert_eq!(sum(&instance, "history_named"), 0);
        read(&instance, &files);
        assert!(!job.file().exists(), "before the end");
        stop(&instance);
        assert_eq!(job.shown(&instance), names("d", &order));
        // Second run: its files come without being asked for.
        wait_for("all of them", || to_come(&instance, "d", &order) == 0);
        assert_eq!(to_come(&instance, "d", &[2, 4]), 2 * LENGTH, "and no others");
        job.disguise("d", 8);
        read(&instance, &files);
        assert_eq!(sum(&instance, "history_wrong"), 0);
        assert!(sum(&instance, "history_right") >= order.len() as u64);
        let status = instance.command("status").output().expect("forebay runs");
        assert!(text(&status.stdout).contains("history job: "), "{}", text(&status.stdout));
        // What was there in time was used as well: the third finds the same.
        stop(&instance);
        assert_eq!(job.shown(&instance), names("d", &order));
        assert!(job.said(&instance, &["list"]).contains("job   6"));
        assert_eq!(job.said(&instance, &["drop", "job"]), "history job is dropped\n");
        assert!(!job.file().exists());
    }
}

/// "A run that reads other files than its history names stops following it" (docs/semantics.md).
#[test]
fn a_run_that_reads_other_files_stops_following() {
    let job = Job::new(&["d", "e"], 30);
    let instance = job.instance("deviates", "1");
    instance.start_again();
    let all = |directory: &'static str| (0..30).map(|file| (directory, file)).collect::<Vec<_>>();
    read(&instance, &all("d"));
    stop(&instance);
    // A quarter of the memory is ahead of its readers, who do not come.
    let rest: Vec<u64> = (0..30).collect();
    wait_for("what may be ahead", || to_come(&instance, "d", &rest) <= 30 * LENGTH - 15 * MIB);
    read(&instance, &all("e"));
    assert_eq!(sum(&instance, "history_given_up"), 1);
    assert_eq!((sum(&instance, "history_right"), sum(&instance, "history_wrong")), (0, 30));
    let left = to_come(&instance, "d", &rest);
    assert!(left >= 13 * MIB, "{left} bytes");
    let status = instance.command("status").output().expect("forebay runs");
    assert!(text(&status.stdout).contains("not followed any more"), "{}", text(&status.stdout));
    stop(&instance);
    assert_eq!(job.shown(&instance), names("e", &rest), "what it read is what comes next");
}

/// "No job fails for a history that is broken" (docs/semantics.md).
#[test]
fn a_broken_history_is_one_line_and_the_job_runs() {
    let job = Job::new(&["d"], 3);
    fs::create_dir_all(job.file().parent().expect("one")).expect("made");
    let instance = job.instance("broken", "1");
    for (round, broken) in [
        &b"forebay-history 1\n0 d/0\n"[..],
        b"forebay-history 1\n0 ../../etc/shadow\nend 1\n",
        b"\xff\x00\xff",
    ]
    .into_iter()
    .enumerate()
    {
        fs::write(job.file(), broken).expect("written");
        let output = instance.try_start();
        let errors = text(&output.stderr);
        assert!(output.status.success(), "{errors}");
        assert!(errors.contains("no history: ") && errors.lines().count() == 1, "{errors}");
        read(&instance, &[("d", 2), ("d", 1)]);
        let output = instance.command("stop").output().expect("forebay runs");
        assert!(output.status.success(), "{}", text(&output.stderr));
        assert_eq!(job.shown(&instance), ["d/2", "d/1"], "round {round}");
    }
    // Files that are not there any more are left out.
    fs::write(job.file(), "forebay-history 1\n0 gone/f\n1 d\n1 d/1\n1 d/0\nend 4\n")
        .expect("written");
    let output = instance.try_start();
    assert!(output.status.success() && output.stderr.is_empty(), "{}", text(&output.stderr));
    wait_for("those that are", || to_come(&instance, "d", &[0, 1]) == 0);
}

/// What was noted before a daemon was killed, and after, is kept, and is whole.
#[test]
fn a_killed_daemon_costs_no_history() {
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
    // One that is dead at the end has left its notes.
    wait_for("the list", || to_come(&instance, "d", &[5, 4, 1, 7]) == 0);
    read(&instance, &[("d", 0)]);
    let daemon = instance.daemon(1);
    daemon.kill();
    daemon.wait();
    // Nothing can be saved without it, and nothing is to be.
    let output = instance.command("stop").arg("--discard").output().expect("forebay runs");
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(job.shown(&instance), names("d", &[0]));
    instance.start_again();
}

/// Files that programs of several hosts read are one history, which all hosts' daemons follow.
#[test]
fn hosts_have_one_history() {
    let job = Job::new(&["d"], 8);
    let Some(mut world) = World::new() else { return };
    let leaked = |text: String| -> &'static str { Box::leak(text.into_boxed_str()) };
    let state = job.state.path().to_str().expect("letters").to_owned();
    world.settings = vec![
        ("FOREBAY_BACKING", leaked(job.below.text())),
        ("FOREBAY_HISTORY", "job"),
        ("XDG_STATE_HOME", leaked(state)),
    ];
    world.start();
    let sums = |file: u64| {
        let mut command = std::process::Command::new("sha256sum");
        let output = command.arg(job.below.path(&format!("d/{file}"))).output();
        output.map(|it| text(&it.stdout)[..64].to_owned()).expect("it runs")
    };
    let right: Vec<String> = (0..8).map(sums).collect();
    let read = |host: &str, file: u64| {
        let said = world.shell(host, "sha256sum </forebay/d/$1", &file.to_string());
        assert_eq!(said[..64], right[file as usize], "{file} on {host}");
    };
    let order = [("b", 6), ("c", 2), ("a", 4), ("b", 1)];
    order.iter().for_each(|(host, file)| read(host, *file));
    world.end();
    let kept = || fs::read_to_string(job.file()).expect("a history");
    let files = |text: &str| {
        let lines = text.lines().filter_map(|line| line.split(' ').nth(1)?.strip_prefix("d/"));
        lines.map(|file| file.parse().expect("a number")).collect::<Vec<u64>>()
    };
    assert_eq!(files(&kept()), [6, 2, 4, 1], "{}", kept());
    world.start();
    let left = "cd /forebay/d; for f in 6 2 4 1; do \
        getfattr --only-values -n user.forebay.rise $f; echo; done";
    wait_for("all of them", || world.shell("c", left, "").lines().all(|line| line == "0"));
    job.disguise("d", 8);
    order.iter().rev().for_each(|(host, file)| read(host, *file));
    // The last look at what was read may be to come.
    let noted = |host: &str| world.daemon(host)["state"]["history_right"].as_u64().unwrap_or(0);
    wait_for("the looks", || noted("a") + noted("b") + noted("c") >= 1);
    world.end();
    let mut again = files(&kept());
    again.sort_unstable();
    assert!(
        again.iter().all(|file| [1, 2, 4, 6].contains(file)) && !again.is_empty(),
        "{}",
        kept()
    );
}

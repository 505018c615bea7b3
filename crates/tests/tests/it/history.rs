//! `forebay history`, `monitor` and `report --compare` with real programs: what is recorded outlives the
//! instance, and a history that cannot be written disturbs no program.

use super::support::{Instance, TIMEOUT, kill, profile, skip, text, wait_for};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Instant;

const OPTIONS: [&str; 6] = ["--local", "2", "--memory", "256MiB", "--ssd", "0"];
const WRITE: &str = "dd if=/dev/zero of=/forebay/small bs=512 count=3000 2>/dev/null";

/// `forebay history WORDS`, of the history below `data`.
fn history(data: &Path, words: &[&str]) -> Output {
    let mut command = Command::new(profile().join("forebay"));
    command.arg("history").args(words).env("XDG_DATA_HOME", data).env_remove("FOREBAY_MONITOR_DB");
    command.output().expect("forebay runs")
}

/// `forebay report JOB --json`, of that history.
fn report(data: &Path, job: &str) -> Command {
    let mut command = Command::new(profile().join("forebay"));
    command.args(["report", job, "--json"]).env("XDG_DATA_HOME", data);
    command
}

fn rows(data: &Path, words: &[&str], key: &str) -> Vec<Value> {
    let output = history(data, &[words, &["--json"]].concat());
    assert!(output.status.success(), "{output:?}");
    let value: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    value[key].as_array().expect("rows").clone()
}

/// `forebay monitor`, which is ended with this value.
struct Monitor(Child);

impl Monitor {
    fn start(instance: &Instance, options: &[&str]) -> Monitor {
        let mut command = instance.command("monitor");
        command.args(["--interval", "100ms"]).args(options).stderr(Stdio::piped());
        Monitor(command.spawn().expect("forebay runs"))
    }

    /// Its standard error, when it has ended by itself.
    fn said(mut self) -> String {
        let begin = Instant::now();
        while self.0.try_wait().expect("a process").is_none() {
            assert!(begin.elapsed() < TIMEOUT, "the monitor does not end");
            std::thread::yield_now();
        }
        let mut said = String::new();
        let mut pipe = self.0.stderr.take().expect("a pipe");
        std::io::Read::read_to_string(&mut pipe, &mut said).expect("text");
        said
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn ok(mut command: Command) -> Output {
    let output = command.output().expect("forebay runs");
    assert!(output.status.success(), "{command:?}: {output:?}");
    output
}

fn run(instance: &Instance, job: &str, options: &[&str]) {
    let mut command = instance.command("run");
    command.args(["--job", job]).args(options).args(["--", "sh", "-c", WRITE]);
    ok(command);
}

fn stop(instance: &Instance) {
    ok(instance.command("stop"));
}

#[test]
fn what_a_monitor_recorded_outlives_the_instance() {
    let instance = Instance::start("recorded", &OPTIONS);
    let data = instance.dir.path();
    assert!(rows(data, &[], "jobs").is_empty());
    let monitor = Monitor::start(&instance, &[]);
    let of = |words: &[&'static str]| [words, &[instance.name.as_str()]].concat();
    wait_for("the first seconds", || !rows(data, &of(&["load", "--seconds"]), "load").is_empty());
    // One process records an instance.
    let second = Monitor::start(&instance, &[]).said();
    assert!(
        second.contains("another 'forebay monitor' or 'forebay dashboard' records it"),
        "{second}"
    );
    // With `--quiet` the run itself keeps nothing.
    run(&instance, "sim", &["--quiet"]);
    wait_for("the job", || rows(data, &of(&[]), "jobs").iter().any(|one| one["job"] == "sim"));
    let is_busy = |one: &Value| one["requests_per_second"].is_number();
    assert!(rows(data, &of(&["load", "--seconds"]), "load").iter().any(is_busy));
    let events = rows(data, &of(&["events"]), "events");
    let is_end = |one: &Value| {
        one["text"]
            .as_str()
            .is_some_and(|text| text.starts_with("job sim") && text.ends_with("ended"))
    };
    assert!(events.iter().any(is_end), "{events:?}");
    stop(&instance);
    let said = monitor.said();
    assert_eq!(said.lines().count(), 1, "{said}");
    assert_stopped(&rows(data, &of(&["events"]), "events"));
    let jobs = rows(data, &["--job", "sim"], "jobs");
    let [job] = jobs.as_slice() else { panic!("one run: {jobs:?}") };
    assert_eq!(
        (&job["instance"], &job["bytes_written"], &job["is_complete"]),
        (&json!(instance.name), &json!(3000 * 512), &json!(true))
    );
    let advice = job["advice"].as_array().expect("advice");
    assert!(advice.iter().any(|one| one["trigger"] == "small-writes"), "{job}");
    assert!(!rows(data, &of(&["load"]), "load").is_empty(), "minutes");
    let report = ok(report(data, "sim"));
    let report: Value = serde_json::from_slice(&report.stdout).expect("JSON");
    assert_eq!(report["profile"]["job"], "sim");
    let table = text(&history(data, &[]).stdout);
    assert!(
        table.lines().count() == 2 && table.contains("sim") && table.contains("ended"),
        "{table}"
    );
    assert!(rows(data, &["--since", "0s"], "jobs").is_empty());
    instance.start_again();
}

/// The instance was stopped, and nothing of it died.
fn assert_stopped(events: &[Value]) {
    let texts: Vec<&str> = events.iter().filter_map(|one| one["text"].as_str()).collect();
    assert!(texts.contains(&"the instance was stopped"), "{texts:?}");
    let died = |text: &&&str| text.contains("dead") || text.contains("not answer");
    assert_eq!(texts.iter().find(died), None, "{texts:?}");
}

/// Nobody starts anything: what ran is in the history, jobs whose processes lived for less than the time
/// between two looks among it, up to the stop.
#[test]
fn the_history_is_written_by_itself() {
    let on = ("FOREBAY_MONITOR", "on".to_owned());
    let instance = Instance::unstarted("itself", &OPTIONS, &[on]);
    instance.start_again();
    let data = instance.dir.path();
    for job in ["first", "second", "third"] {
        run(&instance, job, &["--quiet"]);
    }
    let monitor = instance.command("monitor").output().expect("forebay runs");
    let said = text(&monitor.stderr);
    assert!(said.contains("records it"), "one process records an instance: {said}");
    let begun = data.join("begun");
    let script = format!("echo 1 >/forebay/held; : >{}; read line", begun.display());
    let mut held = instance.command("run");
    held.args(["--quiet", "--job", "held", "--", "sh", "-c", &script]).stdin(Stdio::piped());
    let mut held = held.spawn().expect("forebay runs");
    wait_for("its file", || begun.exists());
    stop(&instance);
    drop(held.stdin.take());
    held.wait().expect("it ended");
    let of = |words: &[&'static str]| [words, &[instance.name.as_str()]].concat();
    let jobs = rows(data, &of(&[]), "jobs");
    let names = |is_complete: bool| -> BTreeSet<&str> {
        let jobs = jobs.iter().filter(|one| one["is_complete"] == is_complete);
        jobs.filter_map(|one| one["job"].as_str()).collect()
    };
    assert_eq!(names(true), BTreeSet::from(["first", "second", "third"]), "{jobs:?}");
    assert_eq!(names(false), BTreeSet::from(["held"]), "{jobs:?}");
    assert_stopped(&rows(data, &of(&["events"]), "events"));
    instance.start_again();
}

/// With `--monitor off` there is no history, and a recorder that is killed is started by the next start.
#[test]
fn the_recorder_is_switched_off_by_a_setting_and_comes_back() {
    let instance = Instance::start("recorder", &OPTIONS);
    let data = instance.dir.path();
    run(&instance, "quiet", &["--quiet"]);
    stop(&instance);
    assert!(!data.join("forebay/history.db").exists());
    instance.start_again();
    let on = ("FOREBAY_MONITOR", "on".to_owned());
    let instance = Instance::unstarted("comes-back", &OPTIONS, &[on]);
    instance.start_again();
    let record = instance.run_file("recorder.json");
    let pid = || {
        let text = fs::read_to_string(&record).expect("a record");
        let value: Value = serde_json::from_str(&text).expect("JSON");
        i32::try_from(value["process"]["pid"].as_i64().expect("a pid")).expect("a pid")
    };
    let first = pid();
    kill(first);
    // The lock goes with the process, which may take a moment.
    wait_for("another recorder", || {
        instance.start_again();
        pid() != first
    });
}

#[test]
fn a_monitor_that_is_killed_leaves_what_it_recorded_and_another_goes_on() {
    let instance = Instance::start("killed", &OPTIONS);
    let data = instance.dir.path();
    let recorded = || rows(data, &["load", "--seconds"], "load").len();
    let mut monitor = Monitor::start(&instance, &[]);
    wait_for("some seconds", || recorded() > 2);
    let pid = Pid::from_child(&monitor.0);
    kill_process(pid, Signal::KILL).expect("killed");
    monitor.0.wait().expect("ended");
    let before = recorded();
    assert!(before > 2);
    let _next = Monitor::start(&instance, &[]);
    wait_for("more seconds", || recorded() > before);
}

/// The file is no history, or its file system is full: one line, and nothing else.
#[test]
fn a_history_that_cannot_be_written_disturbs_nothing() {
    let instance = Instance::start("unwritable", &OPTIONS);
    let data = instance.dir.path();
    let damaged = data.join("damaged.db");
    fs::write(&damaged, "this is no history. ".repeat(100)).expect("written");
    let damaged = damaged.to_string_lossy().into_owned();
    let monitor = Monitor::start(&instance, &["--monitor-db", &damaged]);
    run(&instance, "beside", &["--monitor-db", &damaged]);
    let output = history(data, &["--monitor-db", &damaged]);
    let said = text(&output.stderr);
    assert_eq!((output.status.code(), said.lines().count()), (Some(1), 1), "{said}");
    assert!(said.contains("cannot read the history: ") && said.contains("it is damaged"), "{said}");
    if let Some(disk) = SmallDisk::mount(data.join("full")) {
        let path = disk.0.join("history.db").to_string_lossy().into_owned();
        run(&instance, "first", &["--monitor-db", &path]);
        let mut filler = Command::new("sh");
        filler.current_dir(&disk.0).args(["-c", "cat /dev/zero >filler 2>/dev/null"]);
        assert!(!filler.status().expect("a shell").success(), "the disk is not full");
        run(&instance, "second", &["--monitor-db", &path]);
        let mut now = instance.command("report");
        now.args(["second", "--now", "--monitor-db", &path]);
        let output = ok(now);
        let said = text(&output.stderr);
        assert!(said.contains("its device is full") && said.lines().count() == 1, "{said}");
        assert!(text(&output.stdout).contains("second"), "the report is shown");
        assert_eq!(rows(data, &["--monitor-db", &path], "jobs").len(), 1, "the first is kept");
    }
    stop(&instance);
    let said = monitor.said();
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines.len(), 3, "{said}");
    assert!(lines[1].contains("history is not recorded: it is damaged"), "{said}");
    assert!(lines[2].ends_with("records are lost"), "{said}");
    assert_eq!(fs::read(&damaged).expect("the file").len(), 2000, "it is left alone");
    instance.start_again();
}

/// A server that is not there, and an address with a password.
#[test]
fn a_server_that_is_not_there_is_one_line() {
    let instance = Instance::start("serverless", &OPTIONS);
    let data = instance.dir.path();
    // No server has this port, which only root may take.
    let address = "postgres://me@127.0.0.1:1/history".to_owned();
    let said = |address: &str| {
        let output = history(data, &["--monitor-db", address]);
        let said = text(&output.stderr);
        assert_eq!((said.lines().count(), output.stdout.len()), (1, 0), "{said}");
        (output.status.code(), said)
    };
    let (code, line) = said(&address);
    assert_eq!(code, Some(1), "{line}");
    assert!(line.contains(&format!("cannot read the history: {address}: ")), "{line}");
    let (code, line) = said(&address.replace("me@", "me:s3cret@"));
    assert!(code == Some(2) && line.contains("~/.pgpass") && !line.contains("s3cret"), "{line}");
    run(&instance, "beside", &["--monitor-db", &address]);
}

/// A file system of 1 MiB, unmounted on drop.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(at: PathBuf) -> Option<SmallDisk> {
        fs::create_dir(&at).expect("made");
        let output =
            Command::new("mount").args(["-t", "tmpfs", "-o", "size=1m", "none"]).arg(&at).output();
        if !output.is_ok_and(|output| output.status.success()) {
            skip("no file systems can be mounted here (root is needed)");
            return None;
        }
        Some(SmallDisk(at))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

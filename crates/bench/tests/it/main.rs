//! The benchmark as a whole with little work: which rows exist, the effect of a broken peer on a
//! run, and that an interrupted run leaves nothing behind. Values are not checked.
//!
//! The programs of the workspace must be beside the benchmark: build the workspace first.

use serde_json::Value;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

/// Directories that stand for tmpfs and a peer, and helpers for the benchmark's results.
struct FileSystem {
    dir: tempfile::TempDir,
}

impl FileSystem {
    fn new() -> FileSystem {
        let dir = tempfile::tempdir().expect("a directory");
        for name in ["memory", "peer", "run"] {
            fs::create_dir(dir.path().join(name)).expect("a directory");
        }
        FileSystem { dir }
    }

    fn path(&self, name: &str) -> String {
        self.dir.path().join(name).to_string_lossy().into_owned()
    }

    /// The benchmark with little work per group and these options.
    fn bench(&self, words: &[&str]) -> Command {
        let program = Path::new(env!("CARGO_BIN_EXE_forebay-bench"));
        let forebay = program.with_file_name("forebay");
        assert!(forebay.exists(), "no {}: cargo build --workspace", forebay.display());
        let mut command = Command::new(program);
        if !words.contains(&"--files") {
            command.args(["--files", "20"]);
        }
        command
            .args(["--on", &format!("tmpfs={}", self.path("memory"))])
            .args(["--repetitions", "1", "--entries", "50", "--megabytes", "1"])
            // Values are not checked, and other tests keep the machine busy.
            .args(["--settle", "1"])
            .args(words)
            .env("FOREBAY_BIN", forebay)
            .env("FOREBAY_MEMORY", "64MiB")
            .env("FOREBAY_SSD", "0")
            .env("XDG_RUNTIME_DIR", self.path("run"));
        command
    }

    /// JSON and standard output of a run.
    fn results(&self, words: &[&str]) -> (Value, String) {
        self.results_with(words, |bench| bench)
    }

    /// As `results`, with a change to the command.
    fn results_with(
        &self,
        words: &[&str],
        change: impl FnOnce(&mut Command) -> &mut Command,
    ) -> (Value, String) {
        let file = self.path("results.json");
        let mut bench = self.bench(words);
        change(&mut bench);
        bench.args(["--json", &file, "--history", &self.path("history")]);
        let output =
            bench.args(["--plot", &self.path("plot.svg")]).output().expect("the benchmark runs");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{words:?}: {text}{errors}");
        let json = fs::read_to_string(&file).expect("a JSON file");
        (serde_json::from_str(&json).expect("JSON"), text)
    }

    fn assert_nothing_left(&self) {
        for name in ["memory", "peer"] {
            assert_eq!(entries(&self.path(name)), Vec::<String>::new());
        }
        // The directory of all instances of a user stays.
        for user in entries(&self.path("run")) {
            assert_eq!(entries(&user), Vec::<String>::new());
        }
    }
}

/// Paths of the entries of a directory.
fn entries(dir: &str) -> Vec<String> {
    let listing = fs::read_dir(dir).expect("a listing").flatten();
    listing.map(|entry| entry.path().to_string_lossy().into_owned()).collect()
}

fn rows(json: &Value, key: &str) -> Vec<Value> {
    json[key].as_array().expect("a list").clone()
}

#[test]
fn all_local_targets_are_measured_despite_a_broken_peer() {
    const GROUPS: [&str; 5] = ["metadata", "list", "own", "hard-own", "hard-shared"];
    let test_directory = FileSystem::new();
    let peer = format!("broken={}", test_directory.path("peer"));
    let (json, text) = test_directory.results(&[
        "--on",
        &peer,
        "--through",
        "broken=false",
        "--forebay",
        "1",
        "--forebay",
        "4",
        "--only",
        &GROUPS.join(","),
    ]);
    for target in rows(&json, "targets") {
        let measured = target["measured"].as_f64();
        let name = target["what"].as_str().expect("a name");
        let is_of_these = target["group"].as_str().is_some_and(|group| GROUPS.contains(&group));
        assert_eq!(measured.is_some_and(|value| value > 0.0), is_of_these, "{target}");
        assert!(text.contains(name), "{target}: {text}");
    }
    let results = rows(&json, "results");
    assert!(results.iter().all(|row| row["on"] != "broken"), "{json}");
    let on =
        |test_directory: &str| results.iter().filter(|row| row["on"] == test_directory).count();
    assert!(on("tmpfs") > 30 && on("tmpfs") == on("forebay-1") && on("tmpfs") == on("forebay-4"));
    let failures = rows(&json, "failures");
    assert!(failures.iter().any(|text| text.as_str().is_some_and(|text| text.contains("broken"))));
    test_directory.assert_nothing_left();
    let history = fs::read_to_string(test_directory.path("history")).expect("a history");
    let run: Value = serde_json::from_str(history.trim_end()).expect("a line of JSON");
    assert_eq!(run["targets"], json["targets"]);
    let plot = fs::read_to_string(test_directory.path("plot.svg")).expect("a plot");
    assert!(plot.contains(">create, 2 processes</text>"), "{plot}");
}

#[test]
fn all_phases_of_io500_are_measured() {
    let test_directory = FileSystem::new();
    // Without IOR and mdtest on PATH, which are not under test.
    let words = ["--only", "io500", "--forebay", "1"];
    let (json, text) =
        test_directory.results_with(&words, |bench| bench.env("PATH", "/usr/bin:/bin"));
    let results = rows(&json, "results");
    for test_directory in ["tmpfs", "forebay-1"] {
        let on = results.iter().filter(|row| row["on"] == test_directory);
        let names: Vec<&str> = on.filter_map(|row| row["test"].as_str()).collect();
        assert_eq!(names.len(), 15, "{names:?}");
        assert_eq!((names[0], names[4], names[14]), ("ior-easy-write", "find", "score"));
    }
    assert!(text.contains("our own equivalent") && text.contains("not an official"), "{text}");
    test_directory.assert_nothing_left();
}

#[test]
fn a_seldom_group_or_file_system_runs_once() {
    let test_directory = FileSystem::new();
    let peer = format!("peer={}", test_directory.path("peer"));
    let words = ["--on", &peer, "--seldom", "peer,list", "--repetitions", "3"];
    let (json, _) =
        test_directory.results(&[&words[..], &["--only", "own,list", "--processes", "1"]].concat());
    for row in rows(&json, "results") {
        let expected = if row["on"] == "peer" || row["group"] == "list" { 1 } else { 3 };
        assert_eq!(row["values"].as_array().map(Vec::len), Some(expected), "{row}");
    }
}

#[test]
fn instructions_are_counted_if_valgrind_is_installed() {
    let test_directory = FileSystem::new();
    // So many that the start of a program, whose waits differ, hardly shows.
    let (json, text) = test_directory.results(&["--only", "profile", "--files", "2000"]);
    let results = rows(&json, "results");
    if results.is_empty() {
        assert!(text.contains("not measured: profile: needs valgrind"), "{text}");
        return;
    }
    let value = |test: &str| {
        let row = results.iter().find(|row| row["test"] == test).expect("a row");
        row["median"].as_f64().expect("a number")
    };
    for test in ["stat", "open-close", "create", "unlink", "small-write", "small-read"] {
        assert!(value(test) > 100.0, "{json}");
    }
    for test in ["random-read-8k ruled", "random-write-8k ruled"] {
        assert!(value(test) > 100.0, "{json}");
    }
    // 8 KiB are copied in steps of one byte or of eight.
    for test in ["random-read-8k", "random-write-8k"] {
        let all = value(test) + value(&format!("{test} rep"));
        assert!(all >= 1024.0, "{json}");
    }
    let targets = rows(&json, "targets");
    let targets = targets.iter().filter(|target| target["sign"] == "<=");
    assert!(targets.filter(|target| target["met"].is_boolean()).count() >= 3, "{json}");
    test_directory.assert_nothing_left();
}

#[test]
fn operations_beside_a_follower_are_compared_with_those_without() {
    let test_directory = FileSystem::new();
    let (json, text) = test_directory.results(&["--only", "followers"]);
    if rows(&json, "results").is_empty() {
        assert!(text.contains("not measured: followers: needs root"), "{text}");
        return;
    }
    let targets = rows(&json, "targets");
    let targets = targets.iter().filter(|target| {
        target["what"].as_str().is_some_and(|what| what.starts_with("a follower"))
    });
    assert_eq!(targets.filter(|target| target["met"].is_boolean()).count(), 3, "{json}");
    assert_no_hosts_left();
}

#[test]
fn deaths_and_costs_of_two_copies_are_measured_beside_one() {
    let test_directory = FileSystem::new();
    let (json, text) = test_directory.results(&["--only", "replicas", "--seconds", "2"]);
    let results = rows(&json, "results");
    if results.is_empty() {
        assert!(text.contains("not measured: replicas: needs "), "{text}");
        return;
    }
    let targets = rows(&json, "targets");
    let targets = targets
        .iter()
        .filter(|target| target["what"].as_str().is_some_and(|what| what.starts_with("replicas")));
    assert_eq!(targets.filter(|target| target["met"].is_boolean()).count(), 12, "{json}");
    // Errors with one copy come when calls have waited for the timeout: on a busy machine later than this
    // short run ends.
    for test in ["death-write-errors", "death-read-errors", "death-names-errors", "gone-read"] {
        assert!(
            results.iter().any(|row| row["test"] == test && row["on"] == "two"),
            "{test}: {json}"
        );
    }
    assert_no_hosts_left();
}

#[test]
fn growth_and_departures_are_measured_and_nothing_is_lost() {
    let test_directory = FileSystem::new();
    let (json, text) = test_directory.results(&["--only", "growth", "--seconds", "2"]);
    let results = rows(&json, "results");
    if results.is_empty() {
        assert!(text.contains("not measured: growth: needs "), "{text}");
        return;
    }
    let targets = rows(&json, "targets");
    let is_of = |target: &&Value, group: &str| {
        target["what"].as_str().is_some_and(|what| what.starts_with(group))
    };
    for (group, count) in [("growth", 4), ("a hot host", 3)] {
        let of = targets.iter().filter(|target| is_of(target, group));
        assert_eq!(of.filter(|target| target["met"].is_boolean()).count(), count, "{json}");
    }
    // However busy the machine is.
    for test in ["errors", "lost-names", "lost-bytes", "relief-errors"] {
        let row = results.iter().find(|row| row["test"] == test).expect("a row");
        assert_eq!(row["median"], 0.0, "{test}: {json}");
    }
    assert_no_hosts_left();
}

#[test]
fn the_remote_host_is_compared_with_sockets() {
    let test_directory = FileSystem::new();
    let (json, text) = test_directory.results(&["--only", "remote"]);
    let results = rows(&json, "results");
    if results.is_empty() {
        assert!(text.contains("not measured: remote: needs root"), "{text}");
        return;
    }
    let targets = rows(&json, "targets");
    let targets = targets
        .iter()
        .filter(|target| target["what"].as_str().is_some_and(|what| what.starts_with("remote")));
    assert_eq!(targets.filter(|target| target["met"].is_boolean()).count(), 10, "{json}");
    assert_no_hosts_left();
}

#[test]
fn shares_of_jobs_are_measured_over_limited_links() {
    let test_directory = FileSystem::new();
    let (json, text) = test_directory.results(&["--only", "shares", "--seconds", "1"]);
    if rows(&json, "results").is_empty() {
        assert!(text.contains("not measured: shares: needs "), "{text}");
        return;
    }
    let targets = rows(&json, "targets");
    let targets = targets
        .iter()
        .filter(|target| target["what"].as_str().is_some_and(|what| what.starts_with("shares")));
    assert_eq!(targets.filter(|target| target["met"].is_boolean()).count(), 8, "{json}");
    assert_no_hosts_left();
}

#[test]
fn two_mounts_are_compared_with_sockets() {
    let test_directory = FileSystem::new();
    let (json, text) = test_directory.results(&["--only", "two-mounts"]);
    let results = rows(&json, "results");
    if results.is_empty() {
        assert!(text.contains("not measured: two-mounts: needs"), "{text}");
        return;
    }
    let targets = rows(&json, "targets");
    let targets = targets.iter().filter(|target| {
        target["what"].as_str().is_some_and(|what| what.starts_with("two mounts"))
    });
    assert_eq!(targets.filter(|target| target["met"].is_boolean()).count(), 4, "{json}");
    assert_no_hosts_left();
}

#[test]
fn scaling_is_measured_with_cpu_quotas() {
    let test_directory = FileSystem::new();
    let (json, text) = test_directory.results(&["--only", "scaling", "--hosts", "1,2"]);
    let results = rows(&json, "results");
    if results.is_empty() {
        assert!(text.contains("not measured: scaling: needs root"), "{text}");
        return;
    }
    // Eight tests of one load, four of the other, with two numbers of hosts; each took some time.
    assert_eq!(results.len(), 24, "{json}");
    let is_sane =
        |row: &Value| row["median"].as_f64().is_some_and(|value| value > 0.0 && value < 1e8);
    assert!(results.iter().all(is_sane), "{json}");
    assert_no_hosts_left();
}

/// Checks all ended runs of the benchmark: names contain the process id.
fn assert_no_hosts_left() {
    for dir in ["/run/netns", "/sys/fs/cgroup/cpu", "/sys/fs/cgroup", "/dev/shm"] {
        let left = fs::read_dir(dir).into_iter().flatten().flatten();
        for entry in left {
            let name = entry.file_name().to_string_lossy().into_owned();
            let Some((_, rest)) = name.split_once("fbb") else { continue };
            let pid: String = rest.chars().take_while(char::is_ascii_digit).collect();
            assert!(Path::new("/proc").join(&pid).exists(), "{dir}/{name}");
        }
    }
}

#[test]
fn an_interrupted_run_leaves_nothing() {
    let test_directory = FileSystem::new();
    let words = ["--forebay", "1", "--repetitions", "1000000", "--only", "metadata"];
    let mut bench =
        test_directory.bench(&words).stderr(Stdio::piped()).spawn().expect("the benchmark runs");
    let mut lines = BufReader::new(bench.stderr.take().expect("a pipe")).lines();
    let second = lines.by_ref().map_while(Result::ok).find(|line| line.starts_with("repetition 2"));
    assert!(second.is_some(), "no second repetition");
    let pid = bench.id().to_string();
    let sent = Command::new("kill").args(["-INT", &pid]).status().expect("kill");
    assert!(sent.success());
    let rest: Vec<String> = lines.map_while(Result::ok).collect();
    let status = bench.wait().expect("it ended");
    assert_eq!(status.code(), Some(2), "{rest:?}");
    assert!(rest.iter().any(|line| line.contains("interrupted")), "{rest:?}");
    let ours = format!("bench-{pid}-");
    let left = entries("/dev/shm").into_iter().filter(|path| path.contains(&ours));
    assert_eq!(left.count(), 0);
    for user in entries(&test_directory.path("run")) {
        assert_eq!(entries(&user), Vec::<String>::new());
    }
}

//! The kit as a whole, with little work: which rows there are, what a broken peer does to a run, and
//! that an interrupted run leaves nothing. What the numbers are is not looked at.
//!
//! The programs of the workspace lie beside the kit's: build the workspace first.

use serde_json::Value;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

/// A directory as tmpfs is one, and short ways to the kit's results.
struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    fn new() -> Place {
        let folder = tempfile::tempdir().expect("a directory");
        for name in ["memory", "peer", "run"] {
            fs::create_dir(folder.path().join(name)).expect("a directory");
        }
        Place { folder }
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).to_string_lossy().into_owned()
    }

    /// The kit with little work for each group, and these words.
    fn kit(&self, words: &[&str]) -> Command {
        let program = Path::new(env!("CARGO_BIN_EXE_forebay-bench"));
        let forebay = program.with_file_name("forebay");
        assert!(forebay.exists(), "no {}: cargo build --workspace", forebay.display());
        let mut command = Command::new(program);
        command
            .args(["--on", &format!("tmpfs={}", self.path("memory"))])
            .args(["--repetitions", "1", "--files", "20", "--entries", "50", "--megabytes", "1"])
            .args(words)
            .env("FOREBAY_BIN", forebay)
            .env("FOREBAY_MEMORY", "64MiB")
            .env("FOREBAY_SSD", "0")
            .env("XDG_RUNTIME_DIR", self.path("run"));
        command
    }

    /// What a run of the kit wrote as JSON and on its output.
    fn results(&self, words: &[&str]) -> (Value, String) {
        self.results_with(words, |kit| kit)
    }

    /// The same, started in another way.
    fn results_with(
        &self,
        words: &[&str],
        change: impl FnOnce(&mut Command) -> &mut Command,
    ) -> (Value, String) {
        let file = self.path("results.json");
        let mut kit = self.kit(words);
        change(&mut kit);
        kit.args(["--json", &file, "--history", &self.path("history")]);
        let output = kit.args(["--plot", &self.path("plot.svg")]).output().expect("the kit runs");
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

/// Paths of what is in a directory.
fn entries(folder: &str) -> Vec<String> {
    let listing = fs::read_dir(folder).expect("a listing").flatten();
    listing.map(|entry| entry.path().to_string_lossy().into_owned()).collect()
}

fn rows(json: &Value, key: &str) -> Vec<Value> {
    json[key].as_array().expect("a list").clone()
}

#[test]
fn all_local_bars_are_measured_and_a_broken_peer_stops_nothing() {
    let place = Place::new();
    let peer = format!("broken={}", place.path("peer"));
    let (json, text) = place.results(&[
        "--on",
        &peer,
        "--through",
        "broken=false",
        "--forebay",
        "1",
        "--forebay",
        "4",
        "--only",
        "metadata,list,own,hard-own,hard-shared",
    ]);
    for bar in rows(&json, "bars") {
        let measured = bar["measured"].as_f64();
        let name = bar["what"].as_str().expect("a name");
        let is_local = !["instr", "remote", "two mounts", "16 hosts"]
            .iter()
            .any(|word| name.starts_with(word));
        assert_eq!(measured.is_some_and(|value| value > 0.0), is_local, "{bar}");
        assert!(text.contains(name), "{bar}: {text}");
    }
    let results = rows(&json, "results");
    assert!(results.iter().all(|row| row["on"] != "broken"), "{json}");
    let on = |place: &str| results.iter().filter(|row| row["on"] == place).count();
    assert!(on("tmpfs") > 30 && on("tmpfs") == on("forebay-1") && on("tmpfs") == on("forebay-4"));
    let failures = rows(&json, "failures");
    assert!(failures.iter().any(|text| text.as_str().is_some_and(|text| text.contains("broken"))));
    place.assert_nothing_left();
    let history = fs::read_to_string(place.path("history")).expect("a history");
    let run: Value = serde_json::from_str(history.trim_end()).expect("a line of JSON");
    assert_eq!(run["bars"], json["bars"]);
    let plot = fs::read_to_string(place.path("plot.svg")).expect("a plot");
    assert!(plot.contains(">create, 2 processes</text>"), "{plot}");
}

#[test]
fn the_phases_of_io500_are_all_there() {
    let place = Place::new();
    // Without IOR and mdtest on PATH: those are other people's to test.
    let words = ["--only", "io500", "--forebay", "1"];
    let (json, text) = place.results_with(&words, |kit| kit.env("PATH", "/usr/bin:/bin"));
    let results = rows(&json, "results");
    for place in ["tmpfs", "forebay-1"] {
        let on = results.iter().filter(|row| row["on"] == place);
        let names: Vec<&str> = on.filter_map(|row| row["test"].as_str()).collect();
        assert_eq!(names.len(), 15, "{names:?}");
        assert_eq!((names[0], names[4], names[14]), ("ior-easy-write", "find", "score"));
    }
    assert!(text.contains("our own equivalent") && text.contains("not an official"), "{text}");
    place.assert_nothing_left();
}

#[test]
fn what_is_seldom_runs_once() {
    let place = Place::new();
    let peer = format!("peer={}", place.path("peer"));
    let words = ["--on", &peer, "--seldom", "peer,list", "--repetitions", "3"];
    let (json, _) =
        place.results(&[&words[..], &["--only", "own,list", "--processes", "1"]].concat());
    for row in rows(&json, "results") {
        let wanted = if row["on"] == "peer" || row["group"] == "list" { 1 } else { 3 };
        assert_eq!(row["values"].as_array().map(Vec::len), Some(wanted), "{row}");
    }
}

#[test]
fn instructions_are_counted_where_valgrind_is() {
    let place = Place::new();
    let (json, text) = place.results(&["--only", "profile"]);
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
    // 8 KiB are copied by steps of one byte or of eight.
    for test in ["random-read-8k", "random-write-8k"] {
        let all = value(test) + value(&format!("{test} rep"));
        assert!(all >= 1024.0, "{json}");
    }
    let bars = rows(&json, "bars");
    let bars = bars.iter().filter(|bar| bar["sign"] == "<=");
    assert!(bars.filter(|bar| bar["met"].is_boolean()).count() >= 3, "{json}");
    place.assert_nothing_left();
}

#[test]
fn the_other_host_is_measured_beside_sockets() {
    let place = Place::new();
    let (json, text) = place.results(&["--only", "remote"]);
    let results = rows(&json, "results");
    if results.is_empty() {
        assert!(text.contains("not measured: remote: needs root"), "{text}");
        return;
    }
    let bars = rows(&json, "bars");
    let bars = bars
        .iter()
        .filter(|bar| bar["what"].as_str().is_some_and(|what| what.starts_with("remote")));
    assert_eq!(bars.filter(|bar| bar["met"].is_boolean()).count(), 10, "{json}");
    assert_no_hosts_left();
}

#[test]
fn two_mounts_are_measured_beside_each_other() {
    let place = Place::new();
    let (json, text) = place.results(&["--only", "two-mounts"]);
    let results = rows(&json, "results");
    if results.is_empty() {
        assert!(text.contains("not measured: two-mounts: needs"), "{text}");
        return;
    }
    let bars = rows(&json, "bars");
    let bars = bars
        .iter()
        .filter(|bar| bar["what"].as_str().is_some_and(|what| what.starts_with("two mounts")));
    assert_eq!(bars.filter(|bar| bar["met"].is_boolean()).count(), 4, "{json}");
    assert_no_hosts_left();
}

#[test]
fn hosts_with_a_share_are_measured() {
    let place = Place::new();
    let (json, text) = place.results(&["--only", "scaling", "--hosts", "1,2"]);
    let results = rows(&json, "results");
    if results.is_empty() {
        assert!(text.contains("not measured: scaling: needs root"), "{text}");
        return;
    }
    // Six tests of one load, four of the other, with two numbers of hosts; all took some time.
    assert_eq!(results.len(), 20, "{json}");
    let is_sane =
        |row: &Value| row["median"].as_f64().is_some_and(|value| value > 0.0 && value < 1e8);
    assert!(results.iter().all(is_sane), "{json}");
    assert_no_hosts_left();
}

/// Of any run of the kit that has ended: its number is in the names.
fn assert_no_hosts_left() {
    for folder in ["/run/netns", "/sys/fs/cgroup/cpu", "/sys/fs/cgroup", "/dev/shm"] {
        let left = fs::read_dir(folder).into_iter().flatten().flatten();
        for entry in left {
            let name = entry.file_name().to_string_lossy().into_owned();
            let Some((_, rest)) = name.split_once("fbb") else { continue };
            let pid: String = rest.chars().take_while(char::is_ascii_digit).collect();
            assert!(Path::new("/proc").join(&pid).exists(), "{folder}/{name}");
        }
    }
}

#[test]
fn an_interrupted_run_leaves_nothing() {
    let place = Place::new();
    let words = ["--forebay", "1", "--repetitions", "1000000", "--only", "metadata"];
    let mut kit = place.kit(&words).stderr(Stdio::piped()).spawn().expect("the kit runs");
    let mut lines = BufReader::new(kit.stderr.take().expect("a pipe")).lines();
    let second = lines.by_ref().map_while(Result::ok).find(|line| line.starts_with("repetition 2"));
    assert!(second.is_some(), "no second repetition");
    let pid = kit.id().to_string();
    let sent = Command::new("kill").args(["-INT", &pid]).status().expect("kill");
    assert!(sent.success());
    let rest: Vec<String> = lines.map_while(Result::ok).collect();
    let status = kit.wait().expect("it ended");
    assert_eq!(status.code(), Some(2), "{rest:?}");
    assert!(rest.iter().any(|line| line.contains("interrupted")), "{rest:?}");
    let ours = format!("bench-{pid}-");
    let left = entries("/dev/shm").into_iter().filter(|path| path.contains(&ours));
    assert_eq!(left.count(), 0);
    for user in entries(&place.path("run")) {
        assert_eq!(entries(&user), Vec::<String>::new());
    }
}

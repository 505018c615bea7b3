//! `forebay report` after a run, and `forebay top` beside one, with real programs.

use super::support::{Instance, TIMEOUT};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Instant;

const OPTIONS: [&str; 6] = ["--local", "2", "--memory", "256MiB", "--ssd", "0"];

/// `forebay WORDS` as the user of the instance, with reports in `state`.
fn forebay(instance: &Instance, state: &Path, words: &[&str]) -> Command {
    let like = instance.command("status");
    let mut command = Command::new(like.get_program());
    for (name, value) in like.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command.args(words).env("XDG_DATA_HOME", state);
    command
}

fn ok(mut command: Command) -> Output {
    let output = command.output().expect("forebay runs");
    assert!(output.status.success(), "{command:?}: {output:?}");
    output
}

fn json(command: Command) -> Value {
    serde_json::from_slice(&ok(command).stdout).expect("JSON")
}

fn run(instance: &Instance, state: &Path, job: &str, script: &str) -> Output {
    let mut command = instance.command("run");
    command.args(["--job", job, "--", "sh", "-c", script]).env("XDG_DATA_HOME", state);
    ok(command)
}

const SMALL: &str = "dd if=/dev/zero of=/forebay/small bs=512 count=3000 2>/dev/null";
const LARGE: &str = "dd if=/dev/zero of=/forebay/large bs=2M count=8 2>/dev/null";

/// The output of a short command is its own; its report has the advice.
#[test]
fn the_report_of_a_run_has_its_advice() {
    let state = tempfile::tempdir().expect("a directory");
    let instance = Instance::start("reported", &OPTIONS);
    let said = run(&instance, state.path(), "sim", SMALL);
    assert_eq!(String::from_utf8_lossy(&said.stderr), "");
    let text = ok(forebay(&instance, state.path(), &["report", "sim"])).stdout;
    let text = String::from_utf8_lossy(&text).into_owned();
    assert!(text.contains("3,000 of 3,000 writes (100 %) move less than 1 MiB"), "{text}");
    let report = json(forebay(&instance, state.path(), &["report", "sim", "--json"]));
    let findings = report["findings"].as_array().expect("findings");
    assert!(findings.iter().any(|one| one["trigger"] == "small-writes"), "{report}");
    assert_eq!(report["write_pattern"]["pattern"], "1-1", "{report}");
    let page = state.path().join("sim.html");
    ok(forebay(&instance, state.path(), &["report", "sim", "--html", &page.to_string_lossy()]));
    let page = fs::read_to_string(page).expect("a page");
    assert!(page.starts_with("<!doctype html>") && page.contains("small-writes"));
}

/// Two ranks write one file, each its half, in small blocks.
#[test]
fn a_checkpoint_of_all_ranks_in_one_file_is_named() {
    let state = tempfile::tempdir().expect("a directory");
    let instance = Instance::start("checkpoint", &OPTIONS);
    let script = "for rank in 0 1; do SLURM_PROCID=$rank dd if=/dev/zero of=/forebay/checkpoint bs=4k \
                  count=1000 seek=$((rank * 1000)) conv=notrunc 2>/dev/null & done; wait";
    run(&instance, state.path(), "nto1", script);
    let report = report(&instance, state.path(), "nto1");
    assert_eq!(report["write_pattern"]["pattern"], "N-1", "{report}");
    let findings = report["findings"].as_array().expect("findings").iter();
    let shared = findings.clone().find(|one| one["trigger"] == "small-writes-of-shared-file");
    let shared = shared.unwrap_or_else(|| panic!("{report}"));
    assert_eq!(shared["files"], serde_json::json!(["/checkpoint"]), "{report}");
    let text = ok(forebay(&instance, state.path(), &["report", "nto1"])).stdout;
    assert!(String::from_utf8_lossy(&text).contains("N-1"));
}

#[test]
fn a_run_without_faults_says_nothing_and_two_runs_are_compared() {
    let state = tempfile::tempdir().expect("a directory");
    let instance = Instance::start("compared", &OPTIONS);
    run(&instance, state.path(), "before", SMALL);
    let said = run(&instance, state.path(), "after", LARGE);
    assert_eq!(String::from_utf8_lossy(&said.stderr), "");
    let words = ["report", "--compare", "before", "after", "--json"];
    let comparison = json(forebay(&instance, state.path(), &words));
    let gone = comparison["gone"].as_array().expect("triggers");
    assert!(gone.contains(&"small-writes".into()), "{comparison}");
    let listed = json(forebay(&instance, state.path(), &["report", "--json"]));
    let jobs = listed["jobs"].as_array().expect("jobs").iter().map(|one| &one["job"]);
    assert_eq!(jobs.collect::<Vec<_>>(), ["after", "before"], "{listed}");
}

/// The report of a job as JSON.
fn report(instance: &Instance, state: &Path, job: &str) -> Value {
    json(forebay(instance, state, &["report", job, "--json"]))
}

/// Paths of the files of a report, of which small ones of a directory are one record with their names.
fn paths(report: &Value) -> BTreeSet<String> {
    let files = report["profile"]["files"].as_array().expect("files").iter();
    let of = |file: &Value| -> Vec<String> {
        let path = file["path"].as_str().expect("a path");
        let Some(names) = file["names"].as_array() else { return vec![path.to_owned()] };
        let names = names.iter().map(|name| name.as_str().expect("a name"));
        names.map(|name| path.replace("{*}", name)).collect()
    };
    files.flat_map(of).collect()
}

/// Reports name files by their paths at that time.
#[test]
fn files_are_named_by_their_paths_of_now() {
    let state = tempfile::tempdir().expect("a directory");
    // Four daemons: names and directories are in different services.
    let instance = Instance::start("named", &["--local", "4", "--memory", "256MiB", "--ssd", "0"]);
    let script = r#"cd /forebay && mkdir -p a/b/c wide && echo 1 >top && echo 2 >a/b/c/deep
        (cd wide && seq -f n%.0f 300 | xargs touch) && echo 1 >wide/n300
        odd=$(printf 'a\nb\033[31m\\ \377') && echo 3 >"a/$odd"
        echo 4 >a/before && mv a/before a/b/after && mv a/b/c a/moved
        echo 5 >a/b/gone && rm a/b/gone && mkdir lost && echo 6 >lost/file && rm -r lost
        echo 7 >kept && ln kept a/other"#;
    run(&instance, state.path(), "names", script);
    let report = report(&instance, state.path(), "names");
    let paths = paths(&report);
    for path in ["/top", "/a/moved/deep", r"/a/a\nb\033[31m\\ \377", "/a/b/after", "/wide/n300"] {
        assert!(paths.contains(path), "no {path} in {paths:?}");
    }
    assert!(paths.contains("/kept") || paths.contains("/a/other"), "{paths:?}");
    let removed = |of: &str| paths.iter().any(|path| path.starts_with(of));
    assert!(removed("/a/b/(removed, inode ") && removed("(removed, inode "), "{paths:?}");
    assert!(!paths.iter().any(|path| path.starts_with("inode ")), "{paths:?}");
    let text = ok(forebay(&instance, state.path(), &["report", "names"])).stdout;
    assert!(!text.contains(&0x1b), "{}", String::from_utf8_lossy(&text));
    // A finding names files by paths, too; and so does a job that runs.
    run(&instance, state.path(), "small", SMALL);
    let report = json(forebay(&instance, state.path(), &["report", "small", "--json"]));
    let findings = report["findings"].as_array().expect("findings").iter();
    let small = findings.clone().find(|one| one["trigger"] == "small-writes");
    let small = small.unwrap_or_else(|| panic!("{report}"));
    assert_eq!(small["files"], serde_json::json!(["/small"]), "{report}");
}

#[test]
fn commands_of_a_script_are_one_rank_and_those_that_overlap_are_several() {
    let state = tempfile::tempdir().expect("a directory");
    let instance = Instance::start("ranked", &OPTIONS);
    run(&instance, state.path(), "filled", LARGE);
    let script = "for at in 1 2 3 4 5 6; do cat /forebay/large >/dev/null; done";
    run(&instance, state.path(), "script", script);
    let script = report(&instance, state.path(), "script");
    let ranks = |report: &Value| -> u64 {
        let groups = report["profile"]["ranks"].as_array().expect("ranks").iter();
        groups.map(|group| group["members"]["count"].as_u64().unwrap_or(1)).sum()
    };
    assert_eq!(
        (ranks(&script), &script["read_pattern"]["pattern"]),
        (1, &"1-1".into()),
        "{script}"
    );
    // Each waits until all have written, and runs on beside them.
    let beside = format!(
        r#"cd {:?} && for at in 1 2 3; do sh -c '
            echo x >>/forebay/own$0 && : >ready$0
            until [ -e ready1 ] && [ -e ready2 ] && [ -e ready3 ]; do :; done
            sleep 0.1 && echo x >>/forebay/own$0' $at & done; wait"#,
        state.path()
    );
    run(&instance, state.path(), "beside", &beside);
    let beside = report(&instance, state.path(), "beside");
    assert_eq!(
        (ranks(&beside), &beside["write_pattern"]["pattern"]),
        (3, &"N-N".into()),
        "{beside}"
    );
    // With ranks, what each starts belongs to it.
    let launched = "for at in 0 1; do SLURM_PROCID=$at sh -c '
        for part in 1 2; do cat /forebay/large >/dev/null; done' & done; wait";
    run(&instance, state.path(), "launched", launched);
    let launched = report(&instance, state.path(), "launched");
    assert_eq!((ranks(&launched), &launched["read_pattern"]["pattern"]), (2, &"N-1".into()));
}

#[test]
fn seconds_are_claimed_by_rates_that_were_measured() {
    let state = tempfile::tempdir().expect("a directory");
    let instance = Instance::start("rates", &OPTIONS);
    let few = "dd if=/dev/zero of=/forebay/few bs=512 count=10 2>/dev/null";
    run(&instance, state.path(), "few", few);
    let few = report(&instance, state.path(), "few");
    let rate = |report: &Value, name: &str| report["profile"]["rates"][name].as_f64();
    for name in ["local_bytes", "call_seconds", "name_seconds"] {
        assert_eq!(rate(&few, name), Some(0.0), "{few}");
    }
    // 3,000 small writes, 32 MiB in large ones, and 2,000 names.
    let names = "for at in $(seq 700); do : >/forebay/n$at; done";
    let large = "dd if=/dev/zero of=/forebay/large bs=2M count=16 2>/dev/null";
    run(&instance, state.path(), "much", &format!("{SMALL}; {large}; {names}"));
    let much = report(&instance, state.path(), "much");
    for name in ["local_bytes", "call_seconds", "name_seconds"] {
        assert!(rate(&much, name).is_some_and(|rate| rate > 0.0), "{name}: {much}");
    }
}

#[test]
fn a_report_that_is_not_there_is_one_line() {
    let state = tempfile::tempdir().expect("a directory");
    let instance = Instance::start("unreported", &OPTIONS);
    for words in
        [&["report", "none"][..], &["report", "--compare", "a", "a"], &["report", "./none"]]
    {
        let output = forebay(&instance, state.path(), words).output().expect("forebay runs");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.lines().count() == 1, "{words:?}: {said}");
    }
}

#[test]
fn top_shows_a_running_job() {
    let state = tempfile::tempdir().expect("a directory");
    let instance = Instance::start("watched", &OPTIONS);
    let mut command = instance.command("run");
    command.args(["--job", "busy", "--", "bash", "-c"]).env("XDG_DATA_HOME", state.path());
    // It works until its input ends.
    let script = "while ! read -t 0; do
        dd if=/dev/zero of=/forebay/busy bs=64k count=500 2>/dev/null; done";
    let mut child = command.arg(script).stdin(Stdio::piped()).spawn().expect("forebay runs");
    let begun = Instant::now();
    let words = ["top", &*instance.name, "--once", "--json", "--interval", "200ms"];
    let shown = loop {
        let shown = json(forebay(&instance, state.path(), &words));
        let writes = shown["totals"]["written_bytes_per_second"].as_f64().unwrap_or(0.0);
        let jobs = shown["jobs"].as_array().expect("jobs");
        let busy = jobs.iter().find(|one| one["job"] == "busy");
        // Between two of its programs it does not run.
        let runs = busy.and_then(|job| job["running"].as_u64()).is_some_and(|running| running > 0);
        // Each of its programs begins with a file that is empty again.
        let used = shown["totals"]["memory_used"].as_u64().is_some_and(|used| used > 0);
        if runs && writes > 0.0 && used {
            break shown;
        }
        assert!(begun.elapsed() < TIMEOUT, "{shown}");
    };
    assert_eq!(shown["totals"]["daemons"], 2, "{shown}");
    drop(child.stdin.take());
    child.wait().expect("it ends");
    let output = forebay(&instance, state.path(), &["top", &instance.name]).output();
    let output = output.expect("forebay runs");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(2) && said.contains("--once"), "{said}");
}

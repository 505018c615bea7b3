//! An instance that is smaller than what its programs read again and again says so, with the size that
//! would suffice; one whose working set fits says nothing.

use crate::support::{Instance, text};
use serde_json::Value;
use std::fs;
use std::process::Command;

const MIB: u64 = 1 << 20;

/// `forebay WORDS` for this instance.
fn forebay(instance: &Instance, state: &std::path::Path, words: &[&str]) -> String {
    let like = instance.command("status");
    let mut command = Command::new(like.get_program());
    for (name, value) in like.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    let command = command.args(words).env("XDG_DATA_HOME", state);
    let output = command.env("FOREBAY_NAME", &instance.name).output().expect("forebay runs");
    assert!(output.status.success(), "{words:?}: {}", text(&output.stderr));
    text(&output.stdout)
}

fn json(instance: &Instance, state: &std::path::Path, words: &[&str]) -> Value {
    serde_json::from_str(&forebay(instance, state, words)).expect("JSON")
}

/// Reads files of 4 MiB, all of them, eight times.
fn read_in_rounds(instance: &Instance, state: &std::path::Path, job: &str, files: u32) {
    let script = format!(
        "cd /forebay && for round in 1 2 3 4 5 6 7 8; do \
         for file in $(seq {files}); do cat f$file >/dev/null || exit; done; done"
    );
    let mut command = instance.command("run");
    command.args(["--job", job, "--", "sh", "-c", &script]).env("XDG_DATA_HOME", state);
    let output = command.output().expect("forebay runs");
    assert!(output.status.success(), "{}", text(&output.stderr));
}

fn has_finding(report: &Value) -> bool {
    let findings = report["findings"].as_array().expect("findings");
    findings.iter().any(|one| one["trigger"] == "thrashing")
}

#[test]
fn a_working_set_that_is_larger_than_the_tiers_is_found_and_one_that_fits_is_not() {
    let (backing, state) = (tempfile::tempdir(), tempfile::tempdir());
    let (backing, state) = (backing.expect("a directory"), state.expect("a directory"));
    for file in 1..=14 {
        let bytes = vec![file as u8; 4 << 20];
        fs::write(backing.path().join(format!("f{file}")), bytes).expect("written");
    }
    let at = backing.path().to_str().expect("a path of letters");
    let options = ["--memory", "32MiB", "--ssd", "0", "--stripe-size", "256KiB"];
    let options = [&["--local", "1", "--backing", at][..], &options].concat();
    let instance = Instance::start("thrashing", &options);
    let state = state.path();
    // 20 MiB fit.
    read_in_rounds(&instance, state, "fits", 5);
    let status = json(&instance, state, &["status", "--json"]);
    let metrics = &status["daemons"][0]["state"];
    assert!(metrics["bytes_fetched"].as_u64() >= Some(20 * MIB), "{status}");
    assert_eq!(
        (&metrics["bytes_refetched"], &status["thrashing"]),
        (&0.into(), &Value::Array(vec![]))
    );
    assert!(!has_finding(&json(&instance, state, &["report", "fits", "--json"])));
    assert!(!forebay(&instance, state, &["status"]).contains("thrashes"));
    // 56 MiB do not.
    read_in_rounds(&instance, state, "large", 14);
    let status = json(&instance, state, &["status", "--json"]);
    let found = &status["thrashing"][0];
    assert_eq!((&found["daemon"], &found["is_now"]), (&0.into(), &true.into()), "{status}");
    let [fetched, refetched, tiers, sufficient] =
        ["bytes_fetched", "bytes_refetched", "bytes_of_tiers", "bytes_sufficient"]
            .map(|field| found[field].as_u64().unwrap_or(0));
    assert!(2 * refetched > fetched && refetched >= 32 * MIB, "{found}");
    assert!(tiers == 32 * MIB && sufficient > tiers, "{found}");
    let line = forebay(&instance, state, &["status"]);
    assert!(line.contains("daemon 0 thrashes") && line.contains("would keep the data"), "{line}");
    let metrics = forebay(&instance, state, &["status", "--prometheus"]);
    let gauge = metrics.lines().find(|line| line.starts_with("forebay_thrashing{"));
    assert!(gauge.is_some_and(|line| line.ends_with(" 1")), "{metrics}");
    let top = json(&instance, state, &["top", "--once", "--json"]);
    assert_eq!(top["thrashing"][0]["daemon"], 0, "{top}");
    assert!(forebay(&instance, state, &["top", "--once"]).contains("daemon 0 thrashes"));
    let report = json(&instance, state, &["report", "large", "--json"]);
    assert!(has_finding(&report), "{report}");
    // The job that fitted ran before.
    assert!(!has_finding(&json(&instance, state, &["report", "fits", "--json"])));
}

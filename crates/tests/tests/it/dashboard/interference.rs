//! Two jobs that disturb each other are named: they write through one link, which is throttled, so that
//! each takes from the other whatever the machine does.
//!
//! It needs root for network namespaces, and `tc`; without them it is skipped.

use super::super::support::agent::Agent;
use super::super::support::wait_for;
use super::super::support::world::{WRITERS, World};
use super::Dashboard;
use super::hosts::figures;
use serde_json::{Value, json};

#[test]
fn a_job_that_another_slows_on_a_throttled_link_is_named_with_it() {
    let Some(world) = World::with_slow_link() else { return };
    let dashboard = Dashboard::of(world.command("a", &["dashboard", "--interval", "1s"]));
    let state = || figures(&world, &dashboard, "/api/state?");
    let start = |job: &str, files: std::ops::Range<u32>| {
        let paths: Vec<String> = files.map(|file| format!("/forebay/d/{job}{file}")).collect();
        let mut words = vec!["run", "--job", job, "--", "python3", "-c", WRITERS];
        words.extend(paths.iter().map(String::as_str));
        Agent::new(job.to_owned(), world.command("a", &words))
    };
    let first = start("first", 0..1);
    let looks = || state()["last"].as_u64().unwrap_or(0);
    let moved = || {
        let state = state();
        let jobs = state["jobs"].as_array().cloned().unwrap_or_default();
        let first = jobs.iter().find(|one| one["job"] == "first").cloned();
        first.and_then(|one| one["bytes_written"].as_u64()).unwrap_or(0)
    };
    wait_for("the first job to write", || moved() > 0);
    let alone = looks() + 8;
    wait_for("time in which it is alone", || looks() >= alone);
    assert_eq!(state()["interference"], json!([]));
    let second = start("second", 0..6);
    let found = || state()["interference"][0].clone();
    wait_for("the jobs to be named", || found() != Value::Null);
    let one = found();
    assert_eq!((&one["job"], &one["by"]), (&json!("first"), &json!("second")), "{one}");
    assert!(one["slowdown"].as_f64() >= Some(2.0) && one["host"].is_string(), "{one}");
    let events = state()["events"].to_string();
    assert!(events.contains("since job second moves"), "{events}");
    drop((first, second, dashboard));
    world.end();
}

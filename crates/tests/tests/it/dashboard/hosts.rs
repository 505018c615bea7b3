//! A dashboard of an instance on three hosts, one of which cannot be reached for a while.

use super::super::support::wait_for;
use super::super::support::world::{HOSTS, World};
use super::{Dashboard, lasting};
use serde_json::{Value, json};
use std::path::Path;
use std::process::Command;

/// Sends a request of a shell on the dashboard's host, where alone it listens.
const ASK: &str = "exec 3<>/dev/tcp/${0%:*}/${0#*:} &&
    printf 'GET %s HTTP/1.1\\r\\n\\r\\n' \"$1\" >&3 && sed '1,/^.$/d' <&3";

/// The figures at a path that ends with `?` or `&`.
pub(super) fn figures(world: &World, dashboard: &Dashboard, path: &str) -> Value {
    let path = format!("{path}token={}", dashboard.token);
    let mut command = Command::new(world.path("ssh"));
    command.args(["a", "bash", "-c", ASK, &dashboard.at, &path]);
    let output = command.output().expect("bash runs");
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"))
}

/// Moves a file; what is executed by its name is never half written.
fn rename(from: &Path, to: &Path) {
    std::fs::rename(from, to).expect("renamed");
}

#[test]
fn all_hosts_are_shown_and_one_that_cannot_be_reached_is_named() {
    let Some(world) = World::started(&[]) else { return };
    world.shell("b", "dd if=/dev/zero of=/forebay/x bs=1M count=3 2>/dev/null", "");
    let dashboard = Dashboard::of(world.command("a", &["dashboard", "--interval", "200ms"]));
    let state = || figures(&world, &dashboard, "/api/state?");
    wait_for("the same as status", || {
        let status: Value =
            serde_json::from_str(&world.ok("a", &["status", "--json"])).expect("JSON");
        lasting(state()["status"].clone()) == lasting(status)
    });
    wait_for("two looks", || state()["last"].as_u64() > Some(1));
    assert_eq!(state()["jobs"][0]["bytes_written"], 3 << 20);
    let map = figures(&world, &dashboard, "/api/heat?figure=written&");
    let names: Vec<&Value> =
        map["rows"].as_array().expect("rows").iter().map(|row| &row["name"]).collect();
    assert_eq!(names, HOSTS);
    // The way to the hosts is closed.
    let (way, closed, kept) = (world.path("ssh"), world.path("closed"), world.path("kept"));
    let script = "printf '#!/bin/sh\\necho no route >&2; exit 255\\n' >\"$0\" && chmod 755 \"$0\"";
    let made = Command::new("sh").args(["-c", script]).arg(&closed).status().expect("sh runs");
    assert!(made.success());
    rename(&way, &kept);
    rename(&closed, &way);
    let mut inside = Command::new(&kept);
    inside.args(["a", "bash", "-c", ASK, &dashboard.at]);
    let path = format!("/api/state?token={}", dashboard.token);
    inside.arg(&path);
    let mut last = Value::Null;
    wait_for("hosts that are not reached", || {
        let output = inside.output().expect("bash runs");
        last = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
        // A host that was asked just before may have answered.
        let daemons = last["status"]["daemons"].as_array().into_iter().flatten();
        daemons.filter(|one| one["alive"].is_null()).count() == 3
    });
    assert_eq!(last["status"]["healthy"], false, "{last}");
    assert_eq!((&last["is_counted"], &last["failure"]), (&json!(false), &Value::Null), "{last}");
    assert!(last["unreachable"].to_string().contains("no route"), "{last}");
    assert!(last["jobs_failure"].as_str().is_some_and(|why| why.contains("no route")), "{last}");
    assert!(last["events"].to_string().contains("is unreachable"), "{last}");
    rename(&kept, &way);
    wait_for("their return", || {
        let state = state();
        state["status"]["healthy"] == true && state["is_counted"] == true
    });
    drop(dashboard);
    world.end();
}

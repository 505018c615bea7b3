//! Writeback for which writers wait is urgent: no limit or share of a job holds it up, while the same
//! reads by a program wait. Nothing is compared with times: under the limit, reads that it holds back do
//! not end before the rule is deleted.
//!
//! Network namespaces need root. Without it the test is skipped.

use crate::support::backing::Backing;
use crate::support::in_time;
use crate::support::wait_for;
use crate::support::world::World;
use serde_json::Value;
use std::process::Stdio;

const MIB: usize = 1 << 20;

/// Makes files of 1 MiB, each closed before the next: directory, how many.
const MAKER: &str = r#"
import os, sys
for n in range(int(sys.argv[2])):
    with open(f'{sys.argv[1]}/{n}', 'wb', buffering=0) as f:
        assert f.write(bytes([n % 251]) * (1 << 20)) == 1 << 20
"#;

/// Reads such files: directory, how many.
const READER: &str = r#"
import sys
for n in range(int(sys.argv[2])):
    with open(f'{sys.argv[1]}/{n}', 'rb', buffering=0) as f:
        part = f.read()
        assert part == bytes([n % 251]) * (1 << 20), n
print('read')
"#;

fn show(world: &World, host: &str) -> Value {
    serde_json::from_str(&world.ok(host, &["qos", "show", "--json"])).expect("JSON")
}

/// Requests of a job that wait for its limit on a host.
fn waiting(world: &World, host: &str, job: &str) -> u64 {
    let shown = show(world, host);
    let jobs = shown["jobs"].as_array().expect("jobs").iter().filter(|one| one["job"] == job);
    jobs.map(|one| one["waiting"].as_u64().expect("a number")).sum()
}

fn urgent(world: &World, host: &str) -> u64 {
    let state = &world.daemon(host)["state"];
    state["qos_urgent"].as_u64().unwrap_or_else(|| panic!("no qos_urgent in {state}"))
}

#[test]
fn writeback_for_space_waits_for_no_limit_of_a_job() {
    let backing = Backing::new();
    let dir: &'static str = backing.text().leak();
    // Files are on the host that writes them, and nothing is written back before it must.
    let settings = [
        ("FOREBAY_BACKING", dir),
        ("FOREBAY_WRITEBACK", "end"),
        ("FOREBAY_PLACEMENT", "local"),
        ("FOREBAY_MEMORY", "32MiB"),
        ("FOREBAY_SSD", "0"),
        ("FOREBAY_TIMEOUT", "60s"),
        ("FOREBAY_ENOSPC_TIMEOUT", "60s"),
    ];
    let Some(world) = World::started(&settings) else { return };
    let run = |host: &str, job: &str, script: &str, words: [&str; 2]| {
        let first = ["run", "--quiet", "--job", job, "--", "python3", "-c", script];
        world.command(host, &[&first[..], &words[..]].concat())
    };
    world.shell("b", "mkdir /forebay/kept /forebay/more", "");

    // All programs of the user, with that which writes back, may move a KiB per second, but for one job.
    let user = rustix::process::geteuid().as_raw();
    world.ok("a", &["qos", "set", &format!("still uid={{{user}}} bw=1024")]);
    world.ok("a", &["qos", "set", "free jobid={other} weight=100"]);
    for host in ["a", "b", "c"] {
        wait_for("the rule on all hosts", || {
            show(&world, host)["rules"].as_array().is_some_and(|rules| rules.len() == 2)
        });
    }
    let made = run("b", "other", MAKER, ["/forebay/kept", "8"]).status();
    assert!(made.expect("it runs").success(), "the files are made");
    assert!(!backing.path("kept/7").exists(), "nothing is written back yet");

    let mut reader = run("a", "held", READER, ["/forebay/kept", "8"]);
    let mut reader = reader.stdout(Stdio::piped()).spawn().expect("it runs");
    wait_for("a read that waits", || waiting(&world, "a", "held") > 0);

    // Far more than all hosts hold: each MiB beyond that waits for writeback of what is on host b.
    let mut writer = run("b", "other", MAKER, ["/forebay/more", "180"]);
    let made = in_time("the files of the other job", || writer.status());
    assert!(made.expect("it runs").success(), "a writer was held up");
    assert!(urgent(&world, "a") > 0, "no request was urgent");
    wait_for("the files that the job holds", || {
        (0..8).all(|n| {
            std::fs::read(backing.path(&format!("kept/{n}"))).is_ok_and(|it| it == vec![n; MIB])
        })
    });
    assert!(reader.try_wait().expect("its state").is_none(), "the reader does not wait");
    assert!(waiting(&world, "a", "held") > 0, "the reader does not wait");

    world.ok("a", &["qos", "delete", "still"]);
    let read = in_time("the reader", || reader.wait_with_output().expect("its end"));
    assert_eq!(String::from_utf8_lossy(&read.stdout), "read\n", "{read:?}");
    world.end();
}

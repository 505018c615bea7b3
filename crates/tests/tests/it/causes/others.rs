//! Others that slow a job: another job on its host, a slow device, a slow host.
//!
//! Hosts need root for network namespaces, and `tc`; the device needs root for a loop device and the
//! block I/O controller. Without them they are skipped.

use super::{MIB, expect, found};
use crate::support::agent::Agent;
use crate::support::device::{Device, Throttle};
use crate::support::world::{WRITERS, World};
use crate::support::{Instance, text, wait_for};
use serde_json::{Value, json};
use std::process::Command;

/// Two jobs write through one link, which is throttled: the report of the one that was there first names
/// the other, with no dashboard anywhere.
#[test]
fn the_report_of_a_job_names_the_one_that_disturbed_it() {
    let Some(world) = World::with_slow_link() else { return };
    let start = |job: &str, files: std::ops::Range<u32>| {
        let paths: Vec<String> = files.map(|file| format!("/forebay/d/{job}{file}")).collect();
        let mut words = vec!["run", "--job", job, "--", "python3", "-c", WRITERS];
        words.extend(paths.iter().map(String::as_str));
        Agent::new(job.to_owned(), world.command("a", &words))
    };
    let report = |job: &str| -> Value {
        serde_json::from_str(&world.ok("a", &["report", job, "--json", "--now"])).expect("JSON")
    };
    let spans = |report: &Value| {
        let all = report["profile"]["timeline"].as_array().expect("spans").iter();
        all.filter(|span| span["written"][0].as_u64() > Some(0)).count()
    };
    let first = start("first", 0..1);
    // The job is known once its first program has begun.
    let is_known =
        || world.on("a", &["report", "first", "--json", "--now"]).status.code() == Some(0);
    wait_for("the job", is_known);
    wait_for("time in which it is alone", || spans(&report("first")) >= 8);
    let alone = report("first");
    assert_eq!(found(&alone, "disturbed-by-job"), None, "{alone}");
    assert_eq!(found(&alone, "below-its-share"), None, "{alone}");
    let second = start("second", 0..6);
    wait_for("the jobs to be named", || found(&report("first"), "disturbed-by-job").is_some());
    drop((first, second));
    let after = report("first");
    let finding = expect(&after, "disturbed-by-job");
    let evidence = finding["evidence"].as_str().expect("text");
    assert!(evidence.contains("while job second moved"), "{evidence}");
    assert_eq!(finding["severity"], "high");
    let one = &after["profile"]["disturbances"][0];
    assert_eq!((&one["host"], &one["by"]), (&json!("a"), &json!("second")), "{one}");
    // The way is shared by jobs, so one writer beside six of another job has its half.
    assert_eq!(found(&after, "below-its-share"), None, "{after}");
    let other = report("second");
    assert_eq!(found(&other, "disturbed-by-job"), None, "it disturbs: {other}");
    world.end();
}

/// Reads files without end, each thread its own, by 1 MiB, after the kernel forgot the bytes of these SSD
/// files: `--` is between both.
const READERS: &str = r"
import os, sys, threading
cut = sys.argv.index('--')
ssds = [os.open(path, os.O_RDONLY) for path in sys.argv[cut + 1:]]
def read(path):
    fd = os.open(path, os.O_RDONLY)
    while True:
        for at in range(8):
            for ssd in ssds:
                os.posix_fadvise(ssd, 0, 0, os.POSIX_FADV_DONTNEED)
            assert len(os.pread(fd, 1 << 20, at << 20)) == 1 << 20
for path in sys.argv[1:cut]:
    threading.Thread(target=read, args=(path,), daemon=True).start()
print('ready', os.getpid(), flush=True)
for line in sys.stdin: print('ok', flush=True)
os._exit(0)
";

/// Files of 8 MiB in the directory of a pool, one on each of its three targets.
fn a_file_on_each(ok: &dyn Fn(&[&str]) -> String) -> Vec<String> {
    let mut files: Vec<Option<String>> = vec![None; 3];
    for number in 0.. {
        let path = format!("/forebay/d/f{number}");
        let write = format!("head -c 8388608 /dev/urandom >{path}");
        ok(&["run", "-q", "--", "sh", "-c", &write]);
        let layout: Value =
            serde_json::from_str(&ok(&["layout", "get", "--json", &path])).expect("JSON");
        let target = layout["targets"][0].as_u64().expect("a target") as usize;
        files[target].get_or_insert(path);
        if files.iter().all(Option::is_some) {
            break;
        }
        assert!(number < 12, "targets take turns: {files:?}");
    }
    files.into_iter().flatten().collect()
}

/// `forebay WORDS` for an instance.
fn command_of(instance: &Instance, words: &[&str]) -> Command {
    let like = instance.command("status");
    let mut command = Command::new(like.get_program());
    for (name, value) in like.get_envs() {
        if let Some(value) = value {
            command.env(name, value);
        }
    }
    command.args(words).env("FOREBAY_NAME", &instance.name);
    command
}

/// Three targets of one host with their data on SSDs, of which one is a device that gives 2 MB/s: it is
/// named, and no other.
#[test]
fn a_slow_device_is_found_and_named() {
    let Some(device) = Device::new(160) else { return };
    let Some(throttle) = Throttle::new(&device.number(), 2 * MIB) else { return };
    let options = [
        "--local",
        "3",
        "--memory",
        "16MiB",
        "--ssd",
        "96MiB",
        "--demote-low-watermark",
        "100",
        "--demote-min-watermark",
        "100",
        "--demote-idle-age",
        "1ms",
        "--scrub-rate",
        "0",
    ];
    let instance = device.start_with("slowdisk", &options, 1);
    let forebay = |words: &[&str]| command_of(&instance, words);
    let ok = |words: &[&str]| {
        let output = forebay(words).output().expect("forebay runs");
        assert!(output.status.success(), "{words:?}: {}", text(&output.stderr));
        text(&output.stdout)
    };
    ok(&["pool", "create", "disks", "--targets", "0-2"]);
    ok(&["run", "-q", "--", "mkdir", "/forebay/d"]);
    ok(&["layout", "set", "--pool", "disks", "/forebay/d"]);
    let files = a_file_on_each(&ok);
    let demoted = || {
        let status = instance.status();
        let daemons = status["daemons"].as_array().expect("daemons").clone();
        let bytes = daemons.iter().map(|one| one["state"]["bytes_demoted"].as_u64().unwrap_or(0));
        bytes.min().unwrap_or(0)
    };
    wait_for("all data to be on the SSDs", || demoted() >= 8 * MIB);
    // Dirty pages stay in the kernel's cache.
    assert!(Command::new("sync").arg("-f").arg(device.at()).status().is_ok_and(|it| it.success()));
    let ssds: Vec<String> =
        (0..3).map(|index| instance.data(index).join("ssd").display().to_string()).collect();
    let slow = || -> Vec<Value> {
        let status: Value = serde_json::from_str(&ok(&["status", "--json"])).expect("JSON");
        status["slow_targets"].as_array().expect("a list").clone()
    };
    assert_eq!(slow(), Vec::<Value>::new());
    let mut on_device = ssds.clone();
    on_device[1] = format!("{}/ssd", device.at());
    let mut words: Vec<&str> = vec!["run", "-q", "--job", "reads", "--", "python3", "-c", READERS];
    words.extend(files.iter().map(String::as_str));
    words.push("--");
    words.extend(on_device.iter().map(String::as_str));
    let readers = Agent::new("readers".to_owned(), throttle.hold(&forebay(&words)));
    wait_for("the device to be found slow", || !slow().is_empty());
    let all = slow();
    println!("{all:?}");
    let [one] = all.as_slice() else { panic!("{all:?}") };
    assert_eq!((&one["target"], &one["pool"]), (&json!(1), &json!("disks")), "{one}");
    assert!(ok(&["status"]).contains("target 1 of pool disks is slow"));
    drop(readers);
}

/// A rank on each of three hosts reads a file of 4 MiB from the second one. While the link of the third
/// passes 4 Mbit/s that host is named, and before none is.
#[test]
fn a_host_that_is_slower_than_its_peers_is_named() {
    let Some(world) = World::started(&[]) else { return };
    world.ok("a", &["pool", "create", "far", "--targets", "1"]);
    world.shell("a", "mkdir $1", "/forebay/d");
    world.ok("a", &["layout", "set", "--pool", "far", "/forebay/d"]);
    let hosts = ["a", "b", "c"];
    for host in hosts {
        let script = "dd if=/dev/zero of=$1 bs=1M count=4 2>/dev/null";
        world.shell("a", script, &format!("/forebay/d/{host}"));
    }
    let run = |job: &str| -> Value {
        let start = |host: &&str| {
            let read = format!("dd if=/forebay/d/{host} of=/dev/null bs=256k 2>/dev/null");
            let words = ["run", "--quiet", "--job", job, "--", "sh", "-ec", &read];
            world.command(host, &words).spawn().expect("forebay runs")
        };
        let ranks: Vec<_> = hosts.iter().map(start).collect();
        for mut rank in ranks {
            assert!(rank.wait().expect("it ends").success());
        }
        serde_json::from_str(&world.ok("a", &["report", job, "--json", "--now"])).expect("JSON")
    };
    let equal = run("equal");
    assert_eq!(found(&equal, "slow-hosts"), None, "{equal}");
    if !world.throttle("c", "4mbit", "64kb") {
        return;
    }
    let slow = run("slow");
    let finding = expect(&slow, "slow-hosts");
    let evidence = finding["evidence"].as_str().expect("text");
    assert!(evidence.starts_with("c moved their share"), "{evidence}");
    world.end();
}

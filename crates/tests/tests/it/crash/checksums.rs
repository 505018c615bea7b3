//! Bytes of the SSD file that change under a running instance, and under one that is restarted: an error
//! and a line in the log, never data, and never written back; what the backing store has is read from
//! there again.

use crate::support::agent::Agent;
use crate::support::backing::Backing;
use crate::support::damage::damage;
use crate::support::{Instance, profile, text, wait_for};
use std::fs;
use std::process::Command;
use tempfile::TempDir;
use testkit::{content, digest};

/// The answers for all files: the digest, or the error.
fn read_all(instance: &Instance, count: u64) -> Vec<String> {
    let mut worker = instance.worker();
    (0..count).map(|number| worker.ask(&format!("get /forebay/f{number}"))).collect()
}

/// The answer for a file that is well.
fn right_of(seed: u64) -> String {
    format!("ok {LENGTH} {}", digest(&content(seed, 0, LENGTH)))
}

const FILES: u64 = 12;
const LENGTH: u64 = 4 << 20;
const EIO: &str = "err 5";

/// "Damaged data is an error, never data" (docs/semantics/durability.md).
#[test]
fn damage_on_the_ssd_is_an_error_and_a_line_in_the_log() {
    let options = ["--local", "1", "--memory", "16MiB", "--ssd", "96MiB", "--scrub-rate", "0"];
    let instance = Instance::start("damage", &options);
    let mut worker = instance.worker();
    for number in 0..FILES {
        let put = format!("put /forebay/f{number} {number} {LENGTH}");
        assert_eq!(worker.ask(&put), "ok");
    }
    drop(worker);
    let right: Vec<String> = (0..FILES).map(right_of).collect();
    assert_eq!(read_all(&instance, FILES), right);
    let daemon = instance.daemon(0);
    daemon.kill();
    daemon.wait();
    assert!(damage(&instance.data(0), |page| page % 1500 == 7) > 3, "most data is on the SSD");
    instance.start_again();
    let found = read_all(&instance, FILES);
    let wrong = found.iter().zip(&right).filter(|(found, right)| found != right);
    let wrong: Vec<_> = wrong.map(|(found, _)| found.as_str()).collect();
    assert!(wrong.len() > 3 && wrong.iter().all(|found| *found == EIO), "{found:?}");
    assert!(wrong.len() < FILES as usize, "files without damage are well: {found:?}");
    wait_for("the count", || instance.figure("pages_damaged") >= 4);
    assert!(instance.daemon_log(0).contains("checksum differs"), "{}", instance.daemon_log(0));
    let status = instance.command("status").output().expect("forebay runs");
    assert!(text(&status.stdout).contains("damaged"), "{}", text(&status.stdout));
    // The files are known although the list is removed, as with the run directory.
    let numbers: Vec<usize> = (0..right.len()).filter(|&at| found[at] != right[at]).collect();
    let are_listed = || {
        let listed = text(&instance.command("lost").output().expect("forebay runs").stdout);
        numbers.iter().all(|number| listed.contains(&format!(" /f{number} ")))
    };
    wait_for("the list", are_listed);
    let user = rustix::process::geteuid().as_raw();
    let run = instance.dir.path().join(format!("forebay-{user}/{}", instance.name));
    fs::remove_file(run.join("d0.damage")).expect("removed");
    wait_for("the list that is made again", are_listed);
}

/// Damage is found without any program that reads it.
#[test]
fn the_scrub_finds_damage_that_nobody_reads() {
    let options = ["--local", "1", "--memory", "16MiB", "--ssd", "96MiB", "--scrub-rate", "1GiB"];
    let instance = Instance::start("scrub", &options);
    let mut worker = instance.worker();
    assert_eq!(worker.ask(&format!("put /forebay/f0 1 {}", 40 << 20)), "ok");
    drop(worker);
    assert!(damage(&instance.data(0), |page| page % 2000 == 9) > 0);
    // A pass that is over is not repeated for a minute; a restart begins another.
    let daemon = instance.daemon(0);
    daemon.kill();
    daemon.wait();
    instance.start_again();
    wait_for("the scrub", || instance.figure("pages_damaged") > 0);
    assert!(instance.figure("bytes_scrubbed") > 0);
}

/// Writeback names the files that have damage, and saves the others.
#[test]
fn damaged_data_is_not_written_back() {
    let backing = Backing::new();
    let below = backing.text();
    let options = ["--memory", "16MiB", "--ssd", "96MiB", "--scrub-rate", "0"];
    let options = [&options[..], &["--backing", &below, "--writeback", "end"]].concat();
    let instance = Instance::start("damagedbelow", &options);
    let mut worker = instance.worker();
    for number in 0..FILES {
        let put = format!("put /forebay/f{number} {number} {LENGTH}");
        assert_eq!(worker.ask(&put), "ok");
    }
    assert!(damage(&instance.data(0), |page| page % 1500 == 7) > 3, "most data is on the SSD");
    let flush = instance.command("flush").output().expect("forebay runs");
    let said = text(&flush.stdout) + &text(&flush.stderr);
    assert!(!flush.status.success(), "{said}");
    let mut missing = 0;
    for number in 0..FILES {
        let name = format!("f{number}");
        match fs::read(backing.path(&name)) {
            Ok(bytes) => assert_eq!(bytes, content(number, 0, LENGTH), "{name}"),
            Err(_) => missing += 1,
        }
    }
    assert!((1..FILES).contains(&missing), "{missing} files are missing: {said}");
    assert!(said.contains("not written back"), "{said}");
    // The owner gives up what is lost, and the rest is saved.
    for number in 0..FILES {
        let name = format!("/forebay/f{number}");
        if worker.ask(&format!("get {name}")) == EIO {
            assert_eq!(worker.ask(&format!("unlink {name}")), "ok");
        }
    }
    let flush = instance.command("flush").output().expect("forebay runs");
    assert!(flush.status.success(), "{}", text(&flush.stderr));
}

/// An instance whose `f0` is on the SSD, and in the backing store, which must be kept.
fn staged(name: &str) -> (TempDir, Instance) {
    let backing = tempfile::tempdir().expect("a directory");
    fs::write(backing.path().join("f0"), content(5, 0, LENGTH)).expect("written");
    let place = backing.path().display().to_string();
    let tiers = ["--local", "1", "--memory", "16MiB", "--ssd", "64MiB", "--scrub-rate", "0"];
    let instance = Instance::start(name, &[&tiers[..], &["--backing", &place]].concat());
    let mut stage = Command::new(profile().join("forebay"));
    stage.args(["stage", "in", "--name", &*instance.name, "--wait", "--tier", "ssd"]);
    stage.arg("/forebay/f0").env("XDG_RUNTIME_DIR", instance.dir.path());
    let staged = stage.output().expect("forebay runs");
    assert!(staged.status.success(), "{}", text(&staged.stderr));
    (backing, instance)
}

/// Waits until `f0` is read without an error. Wrong bytes are never read.
fn await_repair(instance: &Instance) {
    let right = right_of(5);
    wait_for("the repair", || {
        let found = read_all(instance, 1).remove(0);
        assert!(found == right || found == EIO, "{found}");
        found == right
    });
}

/// Clean data that is damaged comes from the backing store again.
#[test]
fn damaged_data_is_repaired_from_the_backing_store() {
    let (_backing, instance) = staged("repair");
    assert!(damage(&instance.data(0), |page| page % 300 == 7) > 0, "it is on the SSD");
    assert_eq!(read_all(&instance, 1), [EIO]);
    await_repair(&instance);
    assert!(instance.figure("pages_damaged") > 0);
}

/// The same for data that cannot be evicted at first.
#[test]
fn damaged_data_that_is_mapped_is_repaired_later() {
    let (_backing, instance) = staged("inuse");
    let mut user = Agent::of(&instance, "user");
    user.ok("look r f0");
    user.ok(&format!("map r {LENGTH} r"));
    assert!(damage(&instance.data(0), |page| page % 300 == 7) > 0, "it is on the SSD");
    assert_eq!(read_all(&instance, 1), [EIO]);
    wait_for("the damage to be handled", || instance.figure("pages_damaged") > 0);
    for _ in 0..3 {
        assert_eq!(read_all(&instance, 1), [EIO], "mapped data stays in place");
    }
    user.ok("unmap r");
    user.ok("close r");
    await_repair(&instance);
}

//! Space of removed files while targets are gone: each target frees its part as soon as it is
//! reachable, whichever other daemon is dead; the outstanding requests of a killed daemon are in
//! its log.

use crate::support::{Daemon, Instance, Random, Worker, wait_for};

const DAEMONS: usize = 4;
/// Files of each round; every fifth has several stripes, so that all targets hold something.
const FILES: u64 = 300;

/// Bytes in use and inodes of each daemon that answers.
fn figures(instance: &Instance) -> Vec<Option<(u64, u64)>> {
    // It prints the status, too, if some daemons are dead.
    let output = instance.command("status").arg("--json").output().expect("forebay runs");
    let status: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let daemons = status["daemons"].as_array().expect("a list").clone();
    let figures = daemons.iter().map(|daemon| {
        let state = &daemon["state"];
        let number = |key: &str| state[key].as_u64();
        Some((number("memory_total")? - number("memory_free")?, number("files")?))
    });
    figures.collect()
}

fn make(worker: &mut Worker, random: &mut Random) {
    for number in 0..FILES {
        let length = match number % 5 {
            0 => 0,
            4 => 64 * 1024 * (1 + random.uniform(6)),
            _ => random.uniform(20_000),
        };
        let line = format!("put /forebay/d/f{number} {number} {length}");
        assert_eq!(worker.ask(&line), "ok", "{line}");
    }
}

fn remove(worker: &mut Worker) {
    for number in 0..FILES {
        assert_eq!(worker.ask(&format!("unlink /forebay/d/f{number}")), "ok", "f{number}");
    }
}

fn kill(daemon: &Daemon) {
    daemon.kill();
    daemon.wait();
}

/// Ways to get space far beyond the start of a file, each run with its path. Some leave a size that
/// does not show it.
const WAYS: [(&str, &str); 8] = [
    ("write", "head -c 4000000 /dev/urandom >$1"),
    ("append", "for i in 1 2 3 4 5 6 7 8 9; do head -c 400000 /dev/urandom >>$1; done"),
    ("behind a hole", "head -c 4000000 /dev/urandom | dd of=$1 bs=10000 seek=40 status=none"),
    ("fallocate", "fallocate -l 4000000 $1"),
    ("reserved beyond the end", ": >$1; fallocate -n -l 4000000 $1"),
    (
        "by a mapping",
        "truncate -s 4000000 $1; python3 -c 'if True:
        import mmap, sys
        with open(sys.argv[1], \"r+b\") as f: mmap.mmap(f.fileno(), 0)[800000] = 1' $1",
    ),
    (
        "cut and longer again",
        "head -c 9000 /dev/urandom >$1; : >$1; head -c 4000000 /dev/zero >>$1",
    ),
    (
        "killed before it closes",
        "python3 -c 'if True:
        import os, sys
        os.write(os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY), bytes(4000000))
        os.kill(os.getpid(), 9)' $1 || [ $? = 137 ]",
    ),
];

#[test]
fn all_targets_free_the_space_of_a_file_however_it_grew() {
    let count = DAEMONS.to_string();
    let options = ["--local", &count, "--memory", "64MiB", "--ssd", "0", "--stripe-size", "64KiB"];
    let instance = Instance::start("long", &options);
    for (way, script) in WAYS {
        let path = "/forebay/f";
        let output =
            instance.program(&["sh", "-ec", script, "sh", path]).output().expect("it runs");
        let printed = crate::support::text(&output.stderr);
        assert!(output.status.success(), "{way}: {printed}");
        let is_in_use = |one: &Option<(u64, u64)>| one.is_some_and(|(used, _)| used > 0);
        wait_for(way, || figures(&instance).iter().all(is_in_use));
        let removed = instance.program(&["rm", path]).status().expect("rm runs");
        assert!(removed.success(), "{way}");
        wait_for(&format!("all space to be freed: {way}"), || instance.used() == 0);
    }
}

#[test]
fn a_dead_target_delays_only_its_own_space() {
    let seed = testkit::seed(1);
    let count = DAEMONS.to_string();
    let options = ["--local", &count, "--memory", "64MiB", "--ssd", "0", "--stripe-size", "64KiB"];
    let instance = Instance::start("removals", &options);
    let mut random = Random::new(seed);
    let mut worker = instance.worker();
    assert_eq!(worker.ask("mkdir /forebay/d"), "ok");
    for round in 0..DAEMONS {
        make(&mut worker, &mut random);
        wait_for("the counters", || figures(&instance).iter().flatten().any(|one| one.1 >= FILES));
        let before = figures(&instance);
        let owner = before.iter().position(|one| one.is_some_and(|one| one.1 >= FILES));
        let owner = owner.expect("a daemon owns the directory");
        let in_use = before.iter().flatten().filter(|one| one.0 > 0).count();
        assert_eq!(in_use, DAEMONS, "seed {seed}: {before:?}");
        let gone = (owner + 1 + round % (DAEMONS - 1)) % DAEMONS;
        let (daemon_gone, daemon_owner) = (instance.daemon(gone), instance.daemon(owner));
        kill(&daemon_gone);
        remove(&mut worker);
        let is_empty = |(daemon, figures): (usize, Option<(u64, u64)>)| match figures {
            Some((used, _)) => used == 0,
            None => daemon == gone,
        };
        wait_for("the space of the remaining files", || {
            figures(&instance).into_iter().enumerate().all(is_empty)
        });
        // The outstanding requests are in the log of the owner alone.
        kill(&daemon_owner);
        instance.start_again();
        wait_for("all space to be freed", || instance.used() == 0);
    }
}

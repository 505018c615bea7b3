//! Space of removed files while targets are gone: each target gives back its part as soon as it can
//! be asked, whoever else is dead; and what a killed daemon had still to ask for is in its log.

mod support;

use support::{Daemon, Instance, Random, Worker, setting, wait_for};

const DAEMONS: usize = 4;
/// Files of each round; every fifth has several chunks, so that all targets hold something.
const FILES: u64 = 300;

/// Of each daemon that answers: bytes in use, and inodes.
fn figures(instance: &Instance) -> Vec<Option<(u64, u64)>> {
    // It says so, too, if some daemons are dead.
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
            4 => 64 * 1024 * (1 + random.below(6)),
            _ => random.below(20_000),
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

/// Ways to get space far behind the start of a file, each run with its path. Some leave a size that
/// says nothing of it.
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
fn all_targets_give_back_however_a_file_became_long() {
    let count = DAEMONS.to_string();
    let options = ["--local", &count, "--memory", "64MiB", "--ssd", "0", "--chunk", "64KiB"];
    let instance = Instance::start("long", &options);
    for (way, script) in WAYS {
        let path = "/forebay/f";
        let output =
            instance.program(&["sh", "-ec", script, "sh", path]).output().expect("it runs");
        let said = support::text(&output.stderr);
        assert!(output.status.success(), "{way}: {said}");
        let is_in_use = |one: &Option<(u64, u64)>| one.is_some_and(|(used, _)| used > 0);
        wait_for(way, || figures(&instance).iter().all(is_in_use));
        let removed = instance.program(&["rm", path]).status().expect("rm runs");
        assert!(removed.success(), "{way}");
        wait_for(&format!("all space back: {way}"), || instance.used() == 0);
    }
}

#[test]
fn a_dead_target_holds_up_its_own_part_only() {
    let seed = setting("TEST_SEED", 1);
    let count = DAEMONS.to_string();
    let options = ["--local", &count, "--memory", "64MiB", "--ssd", "0", "--chunk", "64KiB"];
    let instance = Instance::start("removals", &options);
    let mut random = Random::new(seed);
    let mut worker = instance.worker();
    assert_eq!(worker.ask("mkdir /forebay/d"), "ok");
    for round in 0..DAEMONS {
        make(&mut worker, &mut random);
        wait_for("the figures", || figures(&instance).iter().flatten().any(|one| one.1 >= FILES));
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
        wait_for("the space of those that live", || {
            figures(&instance).into_iter().enumerate().all(is_empty)
        });
        // What is left to be asked is in the log of the owner alone.
        kill(&daemon_owner);
        instance.start_again();
        wait_for("all space back", || instance.used() == 0);
    }
}

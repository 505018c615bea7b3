//! Clients that are killed at random moments of operations that they complete themselves:
//! creations, removals and closes by local operations, copies under hazard pointers, open files in
//! the host segment. `programs/kills.c` defines the operations, the kills and the checks; this file
//! has the instance and its invariants.
//!
//! `TEST_SCALE` multiplies the number of kills, `TEST_SEED` begins another series. The moments of
//! kills depend on the machine: a seed repeats what programs did, not when they died.

use crate::support::left::compiled;
use crate::support::{Instance, TIMEOUT};
use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::mpsc::{RecvTimeoutError, channel};

/// Runs the program on an instance; `after_round` is called after every round. Then nothing may be
/// left.
fn killed(
    name: &str,
    options: &[&str],
    (kills, seed): (u64, u64),
    mut after_round: impl FnMut(&Instance, u64),
) {
    let instance = Instance::start(name, options);
    let empty = instance.files();
    let program = compiled("kills", instance.dir.path());
    // In memory: a record of a process must outlive it and cost no more than a store.
    let log = PathBuf::from(format!("/dev/shm/{}.kills", instance.name));
    let words = ["/forebay", &log.to_string_lossy(), &seed.to_string(), &kills.to_string()];
    let mut child = instance
        .program(&[&[&*program.to_string_lossy()], &words[..]].concat())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let output = BufReader::new(child.stdout.take().expect("a pipe"));
    let (sender, lines) = channel();
    let reader = std::thread::spawn(move || {
        output.lines().map_while(Result::ok).for_each(|line| drop(sender.send(line)));
    });
    let mut last = String::new();
    for round in 1.. {
        // The program detects a hang itself, a little earlier.
        match lines.recv_timeout(2 * TIMEOUT) {
            Ok(line) => last = line,
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => panic!("seed {seed}: no progress in round {round}"),
        }
        after_round(&instance, round);
    }
    reader.join().expect("the reader ends");
    let outcome = child.wait().expect("the program ends");
    let _ = std::fs::remove_file(&log);
    println!("seed {seed}, {kills} kills: {last}");
    assert!(outcome.success(), "seed {seed}: {outcome}: {last}");
    instance.assert_nothing_left(empty, &format!("seed {seed}"));
}

#[test]
fn killed_clients_leave_acknowledged_data_and_nothing_else() {
    let (kills, seed) = (testkit::rounds(1600), testkit::seed(1));
    let options = ["--local", "2", "--memory", "64MiB", "--ssd", "0", "--stripe-size", "64KiB"];
    let mut daemons = Vec::new();
    killed("kills", &options, (kills, seed), |instance, _| {
        let now = instance.pids();
        assert!(daemons.is_empty() || daemons == now, "seed {seed}: a daemon died");
        daemons = now;
    });
}

#[test]
fn killed_clients_leave_acknowledged_data_while_daemons_are_killed() {
    let (kills, seed) = (testkit::rounds(1600) / 4, testkit::seed(2));
    let options = ["--local", "2", "--workers", "4", "--memory", "16MiB", "--ssd", "64MiB"];
    let options = [&options[..], &["--stripe-size", "64KiB"]].concat();
    killed("both", &options, (kills, seed), |instance, round| {
        // A round is 50 clients; those of the next round are running.
        let victim = instance.daemon(usize::try_from(round % 2).expect("small"));
        victim.kill();
        victim.wait();
        instance.start_again();
    });
}

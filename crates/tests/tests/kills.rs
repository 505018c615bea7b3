//! Clients that are killed at any moment of what they complete by themselves: creates, removals and
//! closes by posts, copies under pins, open files in the host segment. What they do, who kills them
//! and what is compared is in `programs/kills.c`; here are the instance and what must hold of it.
//!
//! `KILLS` says how many are killed, `TEST_SEED` begins another series. Moments of kills are the
//! machine's: a seed repeats what programs did, not when they died.

mod support;

use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::mpsc::{RecvTimeoutError, channel};
use support::left::compiled;
use support::{Instance, PATIENCE, setting};

/// Runs the program on an instance; `after_round` sees every round. Then nothing may be left.
fn killed(
    name: &str,
    options: &[&str],
    (kills, seed): (u64, u64),
    mut after_round: impl FnMut(&Instance, u64),
) {
    let instance = Instance::start(name, options);
    let empty = instance.files();
    let program = compiled("kills", instance.place.path());
    // In memory: what a process noted must be there after its end, and cost no more than a store.
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
        // It notices by itself what hangs, a little earlier.
        match lines.recv_timeout(2 * PATIENCE) {
            Ok(line) => last = line,
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => panic!("seed {seed}: nothing goes on, round {round}"),
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
fn killed_clients_leave_what_was_acknowledged_and_nothing_else() {
    let (kills, seed) = (setting("KILLS", 400), setting("TEST_SEED", 1));
    let options = ["--local", "2", "--memory", "64MiB", "--ssd", "0", "--chunk", "64KiB"];
    let mut daemons = Vec::new();
    killed("kills", &options, (kills, seed), |instance, _| {
        let now = instance.pids();
        assert!(daemons.is_empty() || daemons == now, "seed {seed}: a daemon died");
        daemons = now;
    });
}

#[test]
fn the_same_holds_while_daemons_are_killed() {
    let (kills, seed) = (setting("KILLS", 400) / 4, setting("TEST_SEED", 2));
    let options = ["--local", "2", "--workers", "4", "--memory", "16MiB", "--ssd", "64MiB"];
    let options = [&options[..], &["--chunk", "64KiB"]].concat();
    killed("both", &options, (kills, seed), |instance, round| {
        // A round is 50 clients; those of the next are at work.
        let victim = instance.daemon(usize::try_from(round % 2).expect("small"));
        victim.kill();
        victim.wait();
        instance.start_again();
    });
}

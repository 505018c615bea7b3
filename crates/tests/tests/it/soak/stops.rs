//! Processes and daemons that are stopped at random moments for up to 20 ms and continued, as a
//! busy machine takes the processor from them in the middle of anything, only far more often.
//! Nothing is killed, so every call must do what a local file system does. `programs/stops.c`
//! defines the operations and checks, and `programs/truncations.c` those for files that are
//! truncated while others use them; this file has the instances, the stops, and the conditions that
//! must hold afterwards.
//!
//! `TEST_SCALE` multiplies the number of stops of each instance, `TEST_SEED` begins another series.
//! The moments of stops depend on the machine: a seed repeats what programs try, not when they are
//! stopped.

use crate::support::left::compiled;
use crate::support::{Instance, Random, wait_for};
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, Stdio};
use std::thread::sleep;
use std::time::Duration;

/// The longest stop: short enough that no peer gives up the daemon.
const STOP_MICROS_MAX: u64 = 20_000;

/// Stops processes; all of them continue when it is dropped.
struct Stopper {
    daemons: Vec<Pid>,
    workers: Vec<Pid>,
    random: Random,
}

impl Stopper {
    fn new(daemons: &[i32], workers: &[i32], seed: u64) -> Stopper {
        let pids = |pids: &[i32]| pids.iter().flat_map(|&pid| Pid::from_raw(pid)).collect();
        Stopper { daemons: pids(daemons), workers: pids(workers), random: Random::new(seed) }
    }

    /// A daemon, or now and then a worker.
    fn victim(&mut self) -> Pid {
        let among = if self.random.uniform(4) == 0 { &self.workers } else { &self.daemons };
        among[self.random.uniform(among.len() as u64) as usize]
    }

    /// A pause, then a stop of one process or two. Most are short: the place where a process is
    /// stopped matters.
    fn stop_once(&mut self) {
        sleep(self.random_time([1, 20, 100, 500, 2000]));
        let both = [self.victim(), self.victim()];
        let stopped = if self.random.uniform(3) == 0 { &both[..] } else { &both[..1] };
        for &pid in stopped {
            let _ = kill_process(pid, Signal::STOP);
        }
        let longest = if self.random.uniform(16) == 0 { STOP_MICROS_MAX } else { 2000 };
        sleep(self.random_time([1, 50, 200, 800, longest]));
        for &pid in stopped {
            let _ = kill_process(pid, Signal::CONT);
        }
    }

    /// A random time below one of these scales.
    fn random_time(&mut self, scales: [u64; 5]) -> Duration {
        let scale = scales[self.random.uniform(5) as usize];
        Duration::from_micros(self.random.uniform(scale))
    }
}

impl Drop for Stopper {
    fn drop(&mut self) {
        for &pid in self.daemons.iter().chain(&self.workers) {
            let _ = kill_process(pid, Signal::CONT);
        }
    }
}

fn is_over(child: &mut Child) -> bool {
    child.try_wait().expect("the program can be waited for").is_some()
}

/// Runs the program on an instance while its processes and daemons are stopped. Then nothing may be
/// left.
fn stopped(program: &str, name: &str, options: &[&str]) {
    let (stops, seed) = (testkit::rounds(6000), testkit::seed(1));
    let instance = Instance::start(name, options);
    let empty = instance.files();
    let program = compiled(program, instance.dir.path());
    let mut child = instance
        .program(&[&*program.to_string_lossy(), "/forebay", &seed.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let mut output = BufReader::new(child.stdout.take().expect("a pipe"));
    let mut line = String::new();
    output.read_line(&mut line).expect("a line");
    let workers = line.strip_prefix("pids ").expect("the process ids");
    let workers = workers.split_whitespace().map(|pid| pid.parse().expect("a number"));
    let workers: Vec<i32> = workers.collect();
    let mut stopper = Stopper::new(&instance.pids(), &workers, seed);
    let done = (0..stops)
        .take_while(|_| {
            stopper.stop_once();
            !is_over(&mut child)
        })
        .count();
    drop(stopper);
    // The end of its input tells it to finish; it detects hangs itself.
    drop(child.stdin.take());
    wait_for("the program's end", || is_over(&mut child));
    line.clear();
    output.read_to_string(&mut line).expect("text");
    let outcome = child.wait().expect("the program ends");
    println!("{name}, seed {seed}, {done} stops: {}", line.trim_end());
    assert!(outcome.success(), "seed {seed}, after {done} stops: {outcome}");
    instance.assert_nothing_left(empty, &format!("seed {seed}"));
}

#[test]
fn pauses_of_one_daemon_cause_no_wrong_answer() {
    let options = ["--local", "1", "--workers", "4", "--memory", "16MiB", "--ssd", "0"];
    stopped("stops", "stops", &options);
}

#[test]
fn pauses_of_four_daemons_cause_no_wrong_answer() {
    stopped("stops", "stops4", &["--local", "4", "--memory", "16MiB", "--ssd", "0"]);
}

#[test]
fn pauses_with_shared_directories_cause_no_wrong_answer() {
    let options = ["--local", "4", "--memory", "16MiB", "--ssd", "16MiB", "--spread", "wide"];
    stopped("stops", "stopsw", &options);
}

#[test]
fn a_truncation_happens_before_or_after_a_write() {
    let options = ["--local", "1", "--workers", "4", "--memory", "16MiB", "--ssd", "0"];
    stopped("truncations", "cuts", &options);
}

#[test]
fn a_truncation_on_four_daemons_happens_before_or_after_a_write() {
    stopped("truncations", "cuts4", &["--local", "4", "--memory", "16MiB", "--ssd", "0"]);
}

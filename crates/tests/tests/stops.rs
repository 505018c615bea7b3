//! Processes and daemons that are stopped at any moment for up to 20 ms, and go on: as a busy machine
//! takes the processor from them in the middle of anything, only far more often. Nothing is killed, so
//! every call must do what a local file system does. What processes do and what is compared is in
//! `programs/stops.c`, and in `programs/cuts.c` for files that are cut while others use them; here are
//! the instances, who stops, and what must hold afterwards.
//!
//! `STOPS` says how often each instance is stopped, `TEST_SEED` begins another series. Moments of stops
//! are the machine's: a seed repeats what programs try, not when they stand still.

mod support;

use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, Stdio};
use std::thread::sleep;
use std::time::Duration;
use support::left::compiled;
use support::{Instance, Random, setting, wait_for};

/// The longest stop: no daemon is given up by others for that.
const STOP_MICROS_MAX: u64 = 20_000;

/// Stops processes; all go on when it is dropped.
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
        let among = if self.random.below(4) == 0 { &self.workers } else { &self.daemons };
        among[self.random.below(among.len() as u64) as usize]
    }

    /// A pause, then a stop of one process or two. Most are short: what matters is where a process stands
    /// still.
    fn stop_once(&mut self) {
        sleep(self.some_time([1, 20, 100, 500, 2000]));
        let both = [self.victim(), self.victim()];
        let stopped = if self.random.below(3) == 0 { &both[..] } else { &both[..1] };
        for &pid in stopped {
            let _ = kill_process(pid, Signal::STOP);
        }
        let longest = if self.random.below(16) == 0 { STOP_MICROS_MAX } else { 2000 };
        sleep(self.some_time([1, 50, 200, 800, longest]));
        for &pid in stopped {
            let _ = kill_process(pid, Signal::CONT);
        }
    }

    /// Less than one of these times.
    fn some_time(&mut self, scales: [u64; 5]) -> Duration {
        let scale = scales[self.random.below(5) as usize];
        Duration::from_micros(self.random.below(scale))
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

/// Runs the program on an instance while its processes and daemons are stopped. Then nothing may be left.
fn stopped(program: &str, name: &str, options: &[&str]) {
    let (stops, seed) = (setting("STOPS", 1500), setting("TEST_SEED", 1));
    let instance = Instance::start(name, options);
    let empty = instance.files();
    let program = compiled(program, instance.place.path());
    let mut child = instance
        .program(&[&*program.to_string_lossy(), "/forebay", &seed.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let mut output = BufReader::new(child.stdout.take().expect("a pipe"));
    let mut line = String::new();
    output.read_line(&mut line).expect("a line");
    let workers = line.strip_prefix("pids ").expect("the numbers of its processes");
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
    // The end of its input tells it to come to an end; it notices by itself what hangs.
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
fn one_daemon_that_stands_still_says_nothing_wrong() {
    let options = ["--local", "1", "--workers", "4", "--memory", "16MiB", "--ssd", "0"];
    stopped("stops", "stops", &options);
}

#[test]
fn neither_do_four() {
    stopped("stops", "stops4", &["--local", "4", "--memory", "16MiB", "--ssd", "0"]);
}

#[test]
fn nor_do_four_that_share_their_directories() {
    let options = ["--local", "4", "--memory", "16MiB", "--ssd", "16MiB", "--spread", "wide"];
    stopped("stops", "stopsw", &options);
}

#[test]
fn a_cut_is_before_a_write_or_after_it() {
    let options = ["--local", "1", "--workers", "4", "--memory", "16MiB", "--ssd", "0"];
    stopped("cuts", "cuts", &options);
}

#[test]
fn a_cut_is_so_with_four_daemons_too() {
    stopped("cuts", "cuts4", &["--local", "4", "--memory", "16MiB", "--ssd", "0"]);
}

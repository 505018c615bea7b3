//! Crowds: a job of many processes gets the share of one job, whatever it forks; minima that the way to
//! another host cannot give are refused; rules that contradict one another are named; processes that
//! ended leave nothing behind.
//!
//! Network namespaces need root. Without it the tests are skipped.

use crate::support::agent::signal;
use crate::support::world::World;
use crate::support::{in_time, wait_for};
use serde_json::Value;
use std::process::{Child, Stdio};

const MIB: u64 = 1 << 20;
/// Number of SIGKILL.
const KILL: i32 = 9;

/// Forks processes that read a file of another host again and again until the first one is killed: file,
/// processes. The first one ends with status 3 when another ends before, as after an error of a read.
const READERS: &str = r#"
import os, random, signal, sys
fd = os.open(sys.argv[1], os.O_RDONLY)
os.setpgid(0, 0)
def fail(*_):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.killpg(0, signal.SIGTERM)
    os._exit(3)
signal.signal(signal.SIGTERM, lambda *_: os.killpg(0, signal.SIGKILL))
signal.signal(signal.SIGCHLD, fail)
for n in range(int(sys.argv[2]) - 1):
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        break
r = random.Random(os.getpid())
while True:
    at = r.randrange(0, 16) << 20
    assert os.pread(fd, 1 << 18, at) == bytes([at >> 20]) * (1 << 18), at
"#;

/// Makes a file of 16 MiB whose bytes are the numbers of their MiB: file.
const MAKER: &str = r#"
import sys
with open(sys.argv[1], 'wb') as f:
    for n in range(16): f.write(bytes([n]) * (1 << 20))
"#;

/// The processes of a job, until it is ended or dropped.
struct Crowd(Child);

impl Crowd {
    fn start(world: &World, job: &str, processes: usize) -> Crowd {
        let mut command = world.command("a", &["run", "--quiet", "--job", job, "--"]);
        let command = command.args(["python3", "-c", READERS, "/forebay/file"]);
        let command = command.arg(processes.to_string()).stdout(Stdio::null());
        Crowd(command.spawn().expect("the script runs"))
    }

    /// Ends the processes, of which all live: no read of theirs failed.
    fn end(mut self) {
        signal(self.0.id(), "-TERM");
        let status = self.0.wait().expect("a child");
        assert_eq!(status.code(), Some(128 + KILL), "a process of the crowd ended by itself");
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        if let Ok(None) = self.0.try_wait() {
            signal(self.0.id(), "-TERM");
            let _ = self.0.wait();
        }
    }
}

fn world() -> Option<World> {
    let world = World::started(&[("FOREBAY_PLACEMENT", "local")])?;
    world.ok("c", &["run", "-q", "--", "python3", "-c", MAKER, "/forebay/file"]);
    Some(world)
}

fn show(world: &World) -> Value {
    serde_json::from_str(&world.ok("a", &["qos", "show", "--json"])).expect("JSON")
}

/// Bytes of a job that started on the first host by its share.
fn moved(world: &World, job: &str) -> u64 {
    let shown = show(world);
    let jobs = shown["jobs"].as_array().expect("jobs").iter().filter(|one| one["job"] == job);
    jobs.map(|one| one["bytes"].as_u64().expect("a number")).sum()
}

/// A few processes run beside many of another job. Without shares each process would get the same.
#[test]
fn a_job_of_many_processes_gets_the_share_of_one_job() {
    /// Enough to use a share on a busy machine, where each starts its next read late.
    const FEW: usize = 8;
    let Some(world) = world() else { return };
    // The link is what they share, not the processors.
    if !world.throttle("a", "80mbit", "256kb") {
        return;
    }
    // Any rule has requests wait for their shares.
    world.ok("a", &["qos", "set", "shares", "*", "weight=100"]);
    let processes = testkit::rounds(200) as usize;
    let crowd = Crowd::start(&world, "crowd", processes);
    let few = Crowd::start(&world, "few", FEW);
    wait_for("both jobs", || moved(&world, "crowd") > 0 && moved(&world, "few") > 0);
    let first = (moved(&world, "few"), moved(&world, "crowd"));
    wait_for("8 MiB of the few", || moved(&world, "few") >= first.0 + 8 * MIB);
    let last = (moved(&world, "crowd"), moved(&world, "few"));
    let (of_crowd, of_few) = (last.0 - first.1, last.1 - first.0);
    // Without shares 25 times as much, with 200 processes.
    assert!(
        of_crowd < 12 * of_few,
        "{processes} processes moved {of_crowd} bytes, {FEW} of another job {of_few}"
    );
    crowd.end();
    few.end();
    world.end();
}

/// Forks processes, twenty at a time, that read 4 KiB of a file of another host and end: file, processes.
const FORKS: &str = r#"
import os, sys
fd, running = os.open(sys.argv[1], os.O_RDONLY), 0
def end():
    assert os.wait()[1] == 0
for n in range(int(sys.argv[2])):
    if running == 20: end()
    else: running += 1
    if os.fork() == 0:
        at = n % 16
        os._exit(os.pread(fd, 4096, at << 20) != bytes([at]) * 4096)
for _ in range(running): end()
"#;

/// `make soak` forks 10,000.
#[test]
fn a_job_that_forks_thousands_of_processes_is_one_account_and_leaves_nothing() {
    /// Most memory that a daemon needs for them: it keeps the figures of some.
    const MORE_MAX: u64 = 48 * MIB;
    const AT_A_TIME: u64 = 500;
    let Some(world) = world() else { return };
    world.ok("a", &["qos", "set", "shares", "*", "weight=100"]);
    let single = Crowd::start(&world, "single", 1);
    wait_for("the other job", || moved(&world, "single") > 0);
    let memory = || world.daemon("a")["state"]["rss"].as_u64().expect("a number");
    let (programs, memory_before, moved_before) =
        (world.programs("a"), memory(), moved(&world, "single"));
    let processes = testkit::rounds(2000).next_multiple_of(AT_A_TIME);
    let number = AT_A_TIME.to_string();
    let words =
        ["run", "-q", "--job", "forks", "--", "python3", "-c", FORKS, "/forebay/file", &number];
    for _ in 0..processes / AT_A_TIME {
        in_time("the processes", || world.ok("a", &words));
    }
    assert!(moved(&world, "single") > moved_before, "the other job stands still");
    let shown = show(&world);
    let own: Vec<&Value> = shown["jobs"]
        .as_array()
        .expect("jobs")
        .iter()
        .filter(|one| one["job"] == "forks")
        .collect();
    let [own] = own.as_slice() else { panic!("one account: {shown}") };
    assert_eq!(own["requests"].as_u64(), Some(processes), "{own}");
    wait_for("all to be gone", || world.programs("a") <= programs);
    let more = memory().saturating_sub(memory_before);
    assert!(more <= MORE_MAX, "{more} bytes more after {processes} processes");
    single.end();
    world.end();
}

#[test]
fn minima_beyond_what_the_way_can_give_are_refused() {
    let Some(world) = world() else { return };
    // A crowd fills it on a busy machine, too; what a way can give is learned while it is full.
    if !world.throttle("a", "80mbit", "256kb") {
        return;
    }
    let refused = |words: &[&str]| {
        let output = world.on("a", words);
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        (!output.status.success()).then_some(errors)
    };
    // Nobody knows yet what the way can give.
    world.ok("a", &["qos", "set", "shares", "*", "weight=100"]);
    let crowd = Crowd::start(&world, "crowd", 64);
    let mut errors = String::new();
    wait_for("a refusal", || {
        match refused(&["qos", "set", "much", "jobid={crowd}", "min=900T"]) {
            Some(why) => errors = why,
            // The way was not busy for long enough.
            None => drop(world.ok("a", &["qos", "delete", "much"])),
        }
        !errors.is_empty()
    });
    assert_eq!(errors.lines().count(), 1, "{errors}");
    assert!(errors.contains("column 20: the minima of all rules are"), "{errors}");
    assert!(errors.contains("lower min="), "{errors}");
    // A minimum that the way can give is granted, and the rules are as before the refusal.
    world.ok("a", &["qos", "set", "little", "jobid={crowd}", "min=1K"]);
    let shown = show(&world);
    let names: Vec<_> =
        shown["rules"].as_array().expect("rules").iter().map(|rule| &rule["name"]).collect();
    assert_eq!(names, ["little", "shares"], "{shown}");
    crowd.end();

    // Rules that contradict one another: the first decides, and the other one is named.
    let told = world.on("a", &["qos", "set", "again", "jobid={crowd}", "min=2K"]);
    let errors = String::from_utf8_lossy(&told.stderr).into_owned();
    let warning = "rule little decides nothing: again stands before it and always matches";
    assert!(told.status.success() && errors.contains(warning), "{errors}");
    assert!(show(&world)["warnings"].to_string().contains(warning));
    world.end();
}

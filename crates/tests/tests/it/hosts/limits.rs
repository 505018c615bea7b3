//! Rules of `forebay qos` over several hosts: a cap holds for a job over all hosts together, another job
//! moves what it can meanwhile, requests that wait longer than the instance's timeout do not fail, and
//! rules survive the end of daemons. Amounts are compared with amounts, and with what a cap allows in the
//! time that passed: a slow machine moves less and passes, too.
//!
//! Network namespaces need root. Without it the tests are skipped.

use crate::support::agent::signal;
use crate::support::in_time;
use crate::support::mounted::has_ended;
use crate::support::wait_for;
use crate::support::world::World;
use serde_json::Value;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

const KIB: u64 = 1024;
const MIB: u64 = 1024 * KIB;
/// The cap of the slow job: one bounce buffer per second.
const CAP: u64 = 256 * KIB;
/// Bytes that a cap allows beyond its rate: 100 ms of it and one request on each host, and those that
/// were on their way when the rule came.
const BEYOND: u64 = 4 * MIB;

/// Reads and overwrites parts of a file of another host until it is killed: file.
const MOVER: &str = r#"
import os, random, sys
fd, r = os.open(sys.argv[1], os.O_RDWR), random.Random(1)
while True:
    at = r.randrange(0, 16) << 20
    part = os.pread(fd, 1 << 19, at)
    assert len(part) == 1 << 19 and part == bytes([at >> 20]) * len(part), at
    assert os.pwrite(fd, part, at) == len(part)
    os.fsync(fd)
"#;

/// Makes a file of 16 MiB whose bytes are the numbers of their MiB: file.
const MAKER: &str = r#"
import sys
with open(sys.argv[1], 'wb') as f:
    for n in range(16): f.write(bytes([n]) * (1 << 20))
"#;

fn world() -> Option<World> {
    // Data is on the host that wrote it first, so all that another host moves is remote.
    World::started(&[("FOREBAY_PLACEMENT", "local"), ("FOREBAY_TIMEOUT", "4s")])
}

/// A job on a host, which runs until it is killed.
struct Mover(Child);

impl Mover {
    fn start(world: &World, host: &str, job: &str, more: &[&str]) -> Mover {
        let words = [&["run", "--quiet", "--job", job], more].concat();
        let file = format!("/forebay/{job}");
        let mut command = world.command(host, &words);
        let command = command.args(["--", "python3", "-c", MOVER, &file]).stdout(Stdio::null());
        Mover(command.spawn().expect("the script runs"))
    }

    /// It has not failed.
    fn assert_runs(&mut self) {
        assert!(
            self.0.try_wait().expect("its state").is_none(),
            "a program on the instance failed"
        );
    }
}

impl Drop for Mover {
    fn drop(&mut self) {
        // `forebay run` passes it on.
        signal(self.0.id(), "-TERM");
        let _ = self.0.wait();
    }
}

fn make_files(world: &World, host: &str, jobs: &[&str]) {
    for job in jobs {
        world.ok(host, &["run", "-q", "--", "python3", "-c", MAKER, &format!("/forebay/{job}")]);
    }
}

fn show(world: &World, host: &str) -> Value {
    serde_json::from_str(&world.ok(host, &["qos", "show", "--json"])).expect("JSON")
}

/// The names of the rules that a host knows, in their order.
fn rules(world: &World, host: &str) -> Vec<String> {
    let shown = show(world, host);
    let rules = shown["rules"].as_array().expect("rules").iter();
    rules.map(|rule| rule["name"].as_str().expect("a name").to_owned()).collect()
}

/// Bytes of a job that started on these hosts by its share.
fn moved(world: &World, hosts: &[&str], job: &str) -> u64 {
    let of = |host: &&str| -> u64 {
        let shown = show(world, host);
        let jobs = shown["jobs"].as_array().expect("jobs").iter().filter(|one| one["job"] == job);
        jobs.map(|one| one["bytes"].as_u64().expect("a number")).sum()
    };
    hosts.iter().map(of).sum()
}

/// Bytes that a job has read and written, as its programs count them.
fn counted(world: &World, job: &str) -> u64 {
    let text = world.ok("a", &["job", "list", "--json"]);
    let listed: Value = serde_json::from_str(&text).expect("JSON");
    let jobs = listed["jobs"].as_array().expect("jobs").iter().filter(|one| one["job"] == job);
    let bytes = |one: &Value, key: &str| one[key].as_u64().expect("a number");
    jobs.map(|one| bytes(one, "bytes_read") + bytes(one, "bytes_written")).sum()
}

#[test]
fn a_cap_holds_over_all_hosts_and_slows_no_other_job() {
    let Some(world) = world() else { return };
    make_files(&world, "c", &["slow", "free"]);
    let rule = format!("cap jobid={{slow}} bw={CAP}");
    world.ok("b", &["qos", "set", &rule]);
    for host in ["a", "b", "c"] {
        wait_for("the rule on all hosts", || rules(&world, host) == ["cap"]);
    }
    let mut movers = [
        Mover::start(&world, "a", "slow", &[]),
        Mover::start(&world, "b", "slow", &[]),
        Mover::start(&world, "a", "free", &[]),
    ];
    wait_for("both jobs", || {
        moved(&world, &["a", "b"], "slow") > 0 && moved(&world, &["a"], "free") > 0
    });
    // Several requests of the capped job wait longer than the timeout of 4 s.
    // From before the first look to after the last one.
    let begun = Instant::now();
    let first = (moved(&world, &["a"], "free"), moved(&world, &["a", "b"], "slow"));
    wait_for("3 MiB of the capped job", || moved(&world, &["a", "b"], "slow") >= first.1 + 3 * MIB);
    let last = (moved(&world, &["a", "b"], "slow"), moved(&world, &["a"], "free"));
    let seconds = begun.elapsed().as_secs() + 1;
    let (slow, free) = (last.0 - first.1, last.1 - first.0);
    assert!(slow <= CAP * seconds + BEYOND, "{slow} bytes in {seconds} s");
    assert!(free > 4 * slow, "the other job moved {free}, the capped one {slow}");
    movers.iter_mut().for_each(Mover::assert_runs);
    let shown = show(&world, "a");
    let jobs = shown["jobs"].as_array().expect("jobs");
    let slow = jobs.iter().find(|job| job["rule"] == "cap").expect("the job");
    assert!(slow["throttled_s"].as_f64() > Some(0.0), "{shown}");
    let prometheus = world.ok("a", &["status", "--prometheus"]);
    for name in ["forebay_qos_throttled_seconds_total", "forebay_qos_jobs_short_of_share"] {
        assert!(prometheus.contains(name), "{prometheus}");
    }
    assert!(slow.get("percent_of_share").is_some(), "{shown}");

    // Without the rule the job moves more in some second than the cap allows in eight.
    world.ok("a", &["qos", "delete", "cap"]);
    wait_for("the end of the rule", || rules(&world, "b").is_empty());
    wait_for_full_speed(&world, "slow");
    movers.iter_mut().for_each(Mover::assert_runs);
    drop(movers);
    world.end();
}

/// Bytes that a host started by their shares under a rule, or without one.
fn moved_under(world: &World, host: &str, rule: Option<&str>) -> u64 {
    let shown = show(world, host);
    let jobs = shown["jobs"].as_array().expect("jobs").iter();
    let jobs = jobs.filter(|one| one["rule"].as_str() == rule);
    jobs.map(|one| one["bytes"].as_u64().expect("a number")).sum()
}

#[test]
fn a_directory_or_a_tag_is_limited_and_the_rest_of_the_job_is_not() {
    let Some(world) = world() else { return };
    world.shell("c", "mkdir -p /forebay/slow/deep /forebay/free", "");
    make_files(&world, "c", &["slow/deep/x", "free/x", "free/tagged"]);
    // The last rule stands first.
    world.ok("b", &["qos", "set", &format!("dirs dir={{/none /slow}} bw={CAP}")]);
    world.ok("b", &["qos", "set", &format!("tags tag={{half*}} bw={CAP}")]);
    wait_for("the rules", || rules(&world, "a") == ["tags", "dirs"]);
    let start = |file: &str, more: &[&str]| {
        let words = [&["run", "--quiet", "--job", "all"], more].concat();
        let mut command = world.command("a", &words);
        let file = format!("/forebay/{file}");
        let command = command.args(["--", "python3", "-c", MOVER, &file]).stdout(Stdio::null());
        Mover(command.spawn().expect("the script runs"))
    };
    let mut movers = [
        start("slow/deep/x", &[]),
        start("free/x", &[]),
        start("free/tagged", &["--tag", "half1"]),
    ];
    let of = |rule: Option<&str>| moved_under(&world, "a", rule);
    wait_for("all three", || [None, Some("dirs"), Some("tags")].map(of).iter().all(|&it| it > 0));
    let begun = Instant::now();
    let first = [None, Some("dirs"), Some("tags")].map(of);
    wait_for("2 MiB under each rule", || {
        [(1, "dirs"), (2, "tags")].iter().all(|&(at, rule)| of(Some(rule)) >= first[at] + 2 * MIB)
    });
    let last = [None, Some("dirs"), Some("tags")].map(of);
    let seconds = begun.elapsed().as_secs() + 1;
    let [free, dirs, tags] = [0, 1, 2].map(|at| last[at] - first[at]);
    assert!(dirs <= CAP * seconds + BEYOND, "{dirs} bytes in {seconds} s");
    assert!(tags <= CAP * seconds + BEYOND, "{tags} bytes in {seconds} s");
    assert!(free > 4 * dirs.max(tags), "free {free}, directory {dirs}, tag {tags}");

    // The directory has another name now, so the rule names nothing, and then what is free.
    let before = of(Some("dirs"));
    world.shell("b", "mv /forebay/slow /forebay/other && mv /forebay/free /forebay/slow", "");
    wait_for("the other directory under the rule", || of(Some("dirs")) > before + 2 * MIB);
    let without = of(None);
    wait_for("the first directory without it", || of(None) > without + 8 * CAP);
    movers.iter_mut().for_each(Mover::assert_runs);
    drop(movers);
    world.end();
}

#[test]
fn a_group_and_a_program_are_limited_and_the_rest_of_the_job_is_not() {
    let Some(world) = world() else { return };
    make_files(&world, "c", &["grouped", "named", "free"]);
    // A program is called as the file that was executed.
    let named = world.path("mover").to_string_lossy().into_owned();
    let link = "import os, sys; os.symlink(os.path.realpath(sys.executable), sys.argv[1])";
    let linked = Command::new("python3").args(["-c", link, &named]).status();
    assert!(linked.expect("python3").success());
    world.ok("b", &["qos", "set", &format!("groups gid={{4242}} bw={CAP}")]);
    world.ok("b", &["qos", "set", &format!("programs program={{mov*}} bw={CAP}")]);
    wait_for("the rules", || rules(&world, "a") == ["programs", "groups"]);
    let start = |file: &str, program: &[&str]| {
        let mut command = world.command("a", &["run", "--quiet", "--job", "all", "--"]);
        let file = format!("/forebay/{file}");
        let command = command.args(program).args(["-c", MOVER, &file]).stdout(Stdio::null());
        Mover(command.spawn().expect("the script runs"))
    };
    let mut movers = [
        start("free", &["python3"]),
        start("grouped", &["setpriv", "--regid", "4242", "--clear-groups", "python3"]),
        start("named", &[&named]),
    ];
    let names = [None, Some("groups"), Some("programs")];
    let of = |rule: Option<&str>| moved_under(&world, "a", rule);
    wait_for("all three", || names.map(of).iter().all(|&moved| moved > 0));
    let (begun, first) = (Instant::now(), names.map(of));
    wait_for("2 MiB under each rule", || {
        let now = names.map(of);
        (1..3).all(|at| now[at] >= first[at] + 2 * MIB)
    });
    let last = names.map(of);
    let seconds = begun.elapsed().as_secs() + 1;
    let [free, groups, programs] = [0, 1, 2].map(|at| last[at] - first[at]);
    for limited in [groups, programs] {
        assert!(limited <= CAP * seconds + BEYOND, "{limited} bytes in {seconds} s");
        assert!(free > 4 * limited, "free {free}, limited {limited}");
    }
    movers.iter_mut().for_each(Mover::assert_runs);
    drop(movers);
    world.end();
}

/// Makes files in a directory until it is killed: directory.
const CREATOR: &str = r#"
import itertools, os, sys
for n in itertools.count(): os.close(os.open(f'{sys.argv[1]}/{n}', os.O_CREAT | os.O_WRONLY))
"#;

#[test]
fn requests_of_a_job_are_limited_and_those_of_another_are_not() {
    const RATE: u64 = 20;
    // Three of four entries of a directory are on other hosts, and take a request.
    let settings = [("FOREBAY_SPREAD", "wide"), ("FOREBAY_PLACEMENT", "local")];
    let Some(world) = World::started(&settings) else { return };
    world.shell("b", "mkdir /forebay/few /forebay/many", "");
    let rule = format!("few jobid={{few}} & opcode={{create}} rate={RATE}");
    world.ok("c", &["qos", "set", &rule]);
    wait_for("the rule", || rules(&world, "a") == ["few"]);
    let begun = Instant::now();
    let mut creators = ["few", "many"].map(|job| {
        let directory = format!("/forebay/{job}");
        let mut command = world.command("a", &["run", "--quiet", "--job", job, "--"]);
        let command = command.args(["python3", "-c", CREATOR, &directory]).stdout(Stdio::null());
        Mover(command.spawn().expect("the script runs"))
    });
    let count = |job: &str| -> u64 {
        let listed = world.shell("b", "ls -f \"$1\" | wc -l", &format!("/forebay/{job}"));
        listed.trim().parse().expect("a number")
    };
    wait_for("files of the limited job", || count("few") >= 3 * RATE);
    let (few, seconds) = (count("few"), begun.elapsed().as_secs() + 1);
    let shown = show(&world, "a");
    assert!(few <= 2 * RATE * (seconds + 1), "{few} files in {seconds} s: {shown}");
    let many = count("many");
    assert!(many > 2 * few, "{many} files of the other job, {few} of the limited one");
    creators.iter_mut().for_each(Mover::assert_runs);
    drop(creators);
    world.end();
}

/// Writes the first half of each of four MiB with a letter, says so, and syncs when it may: file, letter,
/// path of what says so, path of what lets it sync.
const OVERWRITER: &str = r#"
import os, sys, time
fd, letter = os.open(sys.argv[1], os.O_RDWR), sys.argv[2].encode()
for n in range(4): assert os.pwrite(fd, letter * (1 << 19), n << 20) == 1 << 19
open(sys.argv[3], 'w').close()
while not os.path.exists(sys.argv[4]): time.sleep(0.01)
os.fsync(fd)
"#;

#[test]
fn a_later_write_of_another_job_is_not_overwritten_by_one_that_waits() {
    let settings = [("FOREBAY_REMOTE_WRITES", "behind"), ("FOREBAY_PLACEMENT", "local")];
    let Some(world) = World::started(&settings) else { return };
    make_files(&world, "c", &["shared"]);
    world.ok("a", &["qos", "set", &format!("cap jobid={{first}} bw={CAP}")]);
    let path = |name: &str| world.path(name).to_string_lossy().into_owned();
    let write = |job: &str, letter: &str, may_sync: &str| {
        let words = ["run", "--quiet", "--job", job, "--", "python3", "-c", OVERWRITER];
        let (said, may_sync) = (path(&format!("{job}-written")), path(may_sync));
        let mut command = world.command("a", &words);
        command
            .args(["/forebay/shared", letter, &said, &may_sync])
            .spawn()
            .expect("the script runs")
    };
    // Its writes return before they arrive, and wait for the cap: eight seconds for all.
    let mut first = write("first", "x", "second-written");
    wait_for("the writes of the capped job", || world.path("first-written").exists());
    let mut second = write("second", "y", "second-written");
    for child in [&mut second, &mut first] {
        assert!(in_time("a program", || child.wait()).expect("it ends").success());
    }
    let check = "import sys; f = open(sys.argv[1], 'rb').read(); \
                 print([chr(f[(n << 20) + at]) for n in range(4) for at in (0, 1 << 18)])";
    let seen = world.ok("b", &["run", "-q", "--", "python3", "-c", check, "/forebay/shared"]);
    assert_eq!(seen.matches('y').count(), 8, "{seen}");
    world.end();
}

#[test]
fn a_cap_holds_for_bytes_in_the_memory_of_the_own_host() {
    let Some(world) = world() else { return };
    make_files(&world, "a", &["slow", "free"]);
    let rule = format!("cap jobid={{slow}} bw={CAP}");
    world.ok("b", &["qos", "set", &rule]);
    wait_for("the rule", || rules(&world, "a") == ["cap"]);
    let mut movers =
        [Mover::start(&world, "a", "slow", &[]), Mover::start(&world, "a", "free", &[])];
    wait_for("both jobs", || counted(&world, "slow") > 0 && counted(&world, "free") > 0);
    let begun = Instant::now();
    let first = (counted(&world, "free"), counted(&world, "slow"));
    wait_for("2 MiB of the capped job", || counted(&world, "slow") >= first.1 + 2 * MIB);
    let last = (counted(&world, "slow"), counted(&world, "free"));
    let seconds = begun.elapsed().as_secs() + 1;
    let (slow, free) = (last.0 - first.1, last.1 - first.0);
    assert!(slow <= CAP * seconds + BEYOND, "{slow} bytes in {seconds} s");
    assert!(free > 8 * slow, "the other job moved {free}, the capped one {slow}");
    let shown = show(&world, "a");
    let jobs = shown["jobs"].as_array().expect("jobs");
    let slow = jobs.iter().find(|job| job["rule"] == "cap").expect("the job");
    assert!(slow["bytes_local"].as_u64() >= Some(2 * MIB), "{shown}");
    assert_eq!(slow["bytes"], 0, "{shown}");
    // Without the rule nothing waits any more.
    world.ok("a", &["qos", "delete", "cap"]);
    wait_for_full_speed(&world, "slow");
    movers.iter_mut().for_each(Mover::assert_runs);
    drop(movers);
    world.end();
}

/// Waits until a job moves bytes as if it had no limit.
fn wait_for_full_speed(world: &World, job: &str) {
    wait_for("the job at full speed", || {
        let (begun, first) = (Instant::now(), counted(world, job));
        let last = counted(world, job);
        last - first > 8 * CAP * (begun.elapsed().as_secs() + 1)
    });
}

#[test]
fn a_target_serves_a_pool_no_faster_than_its_max_perf() {
    let Some(world) = world() else { return };
    let rate = format!("{}KiB", CAP / KIB);
    world.ok("b", &["pool", "create", "slow", "--targets", "2", "--max-perf", &rate]);
    world.shell("c", "mkdir /forebay/pool", "");
    world.ok("c", &["layout", "set", "--pool", "slow", "/forebay/pool"]);
    make_files(&world, "c", &["pool/x", "free"]);
    let start = |host: &str, job: &str, file: &str| {
        let mut command = world.command(host, &["run", "--quiet", "--job", job, "--"]);
        let command = command.args(["python3", "-c", MOVER, file]).stdout(Stdio::null());
        Mover(command.spawn().expect("the script runs"))
    };
    let mut movers = [
        start("a", "pooled", "/forebay/pool/x"),
        start("b", "pooled", "/forebay/pool/x"),
        start("a", "free", "/forebay/free"),
    ];
    let pooled = || moved(&world, &["a", "b"], "pooled");
    let free = || moved(&world, &["a"], "free");
    wait_for("both jobs", || pooled() > 0 && free() > 0);
    let (begun, first) = (Instant::now(), (free(), pooled()));
    wait_for("3 MiB of the pool", || pooled() >= first.1 + 3 * MIB);
    let last = (pooled(), free());
    let seconds = begun.elapsed().as_secs() + 1;
    let (of_pool, others) = (last.0 - first.1, last.1 - first.0);
    assert!(of_pool <= CAP * seconds + BEYOND, "{of_pool} bytes in {seconds} s");
    assert!(others > 4 * of_pool, "the other job moved {others}, that in the pool {of_pool}");
    // Without the pool the files stay, and have no limit.
    world.ok("b", &["pool", "delete", "slow"]);
    wait_for_full_speed(&world, "pooled");
    movers.iter_mut().for_each(Mover::assert_runs);
    drop(movers);
    world.end();
}

#[test]
fn rules_survive_daemons_and_bad_ones_are_refused() {
    let Some(world) = world() else { return };
    world.ok("a", &["qos", "set", "first", "jobid={a}", "bw=1G"]);
    world.ok("c", &["qos", "set", "second", "uid={7} & opcode={stat list}", "rate=2K"]);
    world.ok("b", &["qos", "set", "change", "first", "bw=2G", "rank=second"]);
    let expected = ["first", "second"];
    for host in ["a", "b", "c"] {
        wait_for("the rules on all hosts", || rules(&world, host) == expected);
    }
    for (rule, expected) in [
        ("first jobid={a} bw=1G", "column 1: a rule of this name exists"),
        ("x jobid={a} bw=fast", "column 16: \"fast\" is not a number"),
        ("x dir={/d/*} bw=1G", "column 3: \"/d/*\" has a star"),
        ("x opcode={fly} bw=1G", "column 11: unknown operation \"fly\""),
        ("x jobid={a}", "column 12: the rule limits nothing"),
        ("x * weight=0", "weight=0 is not 1 to 10000"),
        ("change none bw=1G", "column 8: there is no rule of this name"),
        ("x * min=2G bw=1G", "the minimum is above the cap"),
    ] {
        let output = world.on("b", &["qos", "set", rule]);
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{rule}: {errors}");
        assert!(errors.contains(expected) && errors.lines().count() == 1, "{rule}: {errors}");
    }
    let output = world.on("b", &["qos", "delete", "none"]);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(errors.contains("column 1: there is no rule of this name"), "{errors}");

    // A daemon that was down learns what changed meanwhile; daemon 0 keeps the rules.
    for host in ["b", "a"] {
        let pid = world.pid(host);
        signal(pid, "-KILL");
        wait_for("the daemon's end", || has_ended(pid.cast_signed()));
        if host == "b" {
            world.ok("a", &["qos", "set", "third", "*", "weight=200"]);
        }
        world.start();
        wait_for("the rules again", || rules(&world, host) == ["third", "first", "second"]);
    }
    // It waits for daemon 0. One that ends without an answer may have been carried out.
    wait_for("a change after the restart", || {
        world.on("c", &["qos", "delete", "third"]).status.success()
            || rules(&world, "c") == expected
    });
    for host in ["a", "b", "c"] {
        wait_for("the change on all hosts", || rules(&world, host) == expected);
    }
    world.end();
}

#[test]
fn a_rate_given_to_run_holds_as_long_as_the_command() {
    let Some(world) = world() else { return };
    make_files(&world, "b", &["rated"]);
    let rate = format!("{}KiB/s", CAP / KIB);
    let mut mover = Mover::start(&world, "a", "rated", &["--max-rate", &rate]);
    wait_for("the job", || moved(&world, &["a"], "rated") > 0);
    let rule = rules(&world, "c");
    assert!(rule.len() == 1 && rule[0].starts_with("run-"), "{rule:?}");
    let (begun, first) = (Instant::now(), moved(&world, &["a"], "rated"));
    wait_for("2 MiB", || moved(&world, &["a"], "rated") >= first + 2 * MIB);
    let last = moved(&world, &["a"], "rated");
    let seconds = begun.elapsed().as_secs() + 1;
    assert!(last - first <= CAP * seconds + BEYOND, "{} bytes in {seconds} s", last - first);
    mover.assert_runs();
    drop(mover);
    wait_for("the end of the rule", || rules(&world, "a").is_empty());
    let wrong = world.on("a", &["run", "--max-rate", "fast", "--", "true"]);
    let errors = String::from_utf8_lossy(&wrong.stderr).into_owned();
    assert_eq!(wrong.status.code(), Some(2), "{errors}");
    assert!(errors.contains("give bytes per second such as 100MiB/s"), "{errors}");
    world.end();
}

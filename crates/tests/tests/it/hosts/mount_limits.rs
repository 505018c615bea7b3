//! Requests of one job through a mount stop no others: those that wait for another host, and those that
//! wait for a limit of their user (`forebay qos`). A rule finds the user and the job of a program behind
//! a mount, and no user gets the share of another one by its job's name. Users of a mount limit their own
//! jobs, and nothing else. Network namespaces need root, a mount needs `/dev/fuse`; without them the
//! tests are skipped.

use crate::support::agent::{Mount, signal};
use crate::support::mounted::{UringEnabled, has_ended};
use crate::support::world::World;
use crate::support::{in_time, profile, wait_for};
use serde_json::Value;
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Child, Output};
use std::time::Instant;

const MIB: u64 = 1 << 20;
/// The cap of a user.
const CAP: u64 = 256 << 10;

/// Makes files of 1 MiB: directory, number.
const MAKER: &str = r#"
import os, sys
for n in range(int(sys.argv[2])):
    with open(f'{sys.argv[1]}/{n}', 'wb') as f: f.write(bytes([n]) * (1 << 20))
    os.chmod(f'{sys.argv[1]}/{n}', 0o644)
"#;

/// Becomes a user, and reads files again and again, past the kernel's cache: user, files.
const READER: &str = r#"
import mmap, os, sys
user = int(sys.argv[1])
os.setgroups([]), os.setgid(user), os.setuid(user)
files = [os.open(name, os.O_RDONLY | os.O_DIRECT) for name in sys.argv[2:]]
there = mmap.mmap(-1, 1 << 20)
while True:
    for file in files: assert os.preadv(file, [there], 0) == 1 << 20
"#;

/// Programs that run until they are dropped.
struct Programs(Vec<Child>);

impl Programs {
    /// None has failed: they read until they are dropped.
    fn assert_running(&mut self) {
        for reader in &mut self.0 {
            assert!(reader.try_wait().expect("its state").is_none(), "a reader failed");
        }
    }
}

impl Drop for Programs {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
        }
        for child in &mut self.0 {
            let _ = child.wait();
        }
    }
}

/// A program on a mount, of a user and a job.
fn start(mount: &Mount, user: &str, job: &str, files: &[String]) -> Child {
    let mut command = mount.command(&["python3", "-c", READER, user]);
    command.args(files).env("SLURM_JOB_ID", job);
    command.spawn().expect("the script runs")
}

/// The state and the call in which a process sleeps, as the kernel shows them.
fn waits_for_a_read(pid: u32) -> bool {
    let call = std::fs::read_to_string(format!("/proc/{pid}/syscall")).unwrap_or_default();
    let number = call.split(' ').next().and_then(|number| number.parse().ok());
    matches!(number, Some(libc::SYS_preadv | libc::SYS_preadv2))
}

/// Unmounts, and waits for the end of the mount's server.
fn end(mount: Mount) {
    let server = mount.pid;
    drop(mount);
    wait_for("the mount's end", || has_ended(server.cast_signed()));
}

/// Ends readers, which wait for a rule: without it they end soon.
fn end_all(world: World, rule: &str, readers: Programs, mount: Mount) {
    world.ok("a", &["qos", "delete", rule]);
    drop(readers);
    end(mount);
    world.end();
}

fn world() -> Option<World> {
    // Data is on the host that wrote it first, so all that another host reads is remote.
    let world = World::started(&[("FOREBAY_PLACEMENT", "local"), ("FOREBAY_TIMEOUT", "60s")])?;
    // Other users reach the mount in it.
    let open = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(world.path("."), open).expect("chmod");
    Some(world)
}

fn others_go_on_while_a_host_is_stopped(transport: &str) {
    const READERS: usize = 40;
    let Some(world) = world() else { return };
    // The root's names, and the files in it, are on the first host.
    world.shell("a", "mkdir /forebay/far && echo here >/forebay/near", "");
    world.ok(
        "b",
        &["run", "-q", "--", "python3", "-c", MAKER, "/forebay/far", &READERS.to_string()],
    );
    let Some(mount) = Mount::by(&world, "a", transport) else { return world.end() };
    let file = |number: usize| format!("{}/far/{number}", mount.at);
    // Names and attributes are known before.
    let listed = mount.command(&["ls", "-l", &format!("{}/far", mount.at)]).output();
    assert!(listed.expect("ls runs").status.success());
    let stopped = world.pid("b");
    let readers: Vec<_> = (0..READERS).map(|n| start(&mount, "7001", "far", &[file(n)])).collect();
    let mut readers = Programs(readers);
    for reader in &readers.0 {
        // `nsenter` becomes the program.
        wait_for("a reader", || waits_for_a_read(reader.id()));
    }
    signal(stopped, "-STOP");
    let is_stuck = |reader: &Child| {
        let counted = || std::fs::read_to_string(format!("/proc/{}/io", reader.id()));
        let before = counted().expect("its counters");
        waits_for_a_read(reader.id()) && counted().expect("its counters") == before
    };
    wait_for("all readers to wait", || readers.0.iter().all(is_stuck));
    // Another user's program, with requests of its own for names, data and attributes.
    let script = format!("cd {} && cat near && echo x >new && cat new && ls && rm new", mount.at);
    let other = in_time("another program", || {
        mount.command(&["sh", "-c", &script]).env("SLURM_JOB_ID", "near").output()
    });
    let other = other.expect("it runs");
    let printed = String::from_utf8_lossy(&other.stdout).into_owned();
    assert_eq!((printed.as_str(), other.status.code()), ("here\nx\nfar\nnear\nnew\n", Some(0)));
    // It did not wait for the stopped host.
    assert!(readers.0.iter().all(is_stuck), "a reader went on");
    signal(stopped, "-CONT");
    readers.assert_running();
    drop(readers);
    drop(mount);
    world.end();
}

#[test]
fn others_go_on_while_a_host_is_stopped_by_the_device() {
    others_go_on_while_a_host_is_stopped("classic");
}

#[test]
fn others_go_on_while_a_host_is_stopped_by_rings() {
    if UringEnabled::is_available() {
        others_go_on_while_a_host_is_stopped("rings");
    }
}

fn jobs(world: &World) -> Vec<Value> {
    let shown = world.ok("a", &["qos", "show", "--json"]);
    let shown: Value = serde_json::from_str(&shown).expect("JSON");
    shown["jobs"].as_array().expect("jobs").clone()
}

fn moved(world: &World, user: u64, job: &str) -> u64 {
    let jobs = jobs(world);
    let own = jobs.iter().filter(|one| one["user"] == user && one["job"] == job);
    own.map(|one| one["bytes"].as_u64().expect("a number")).sum()
}

#[test]
fn a_rule_limits_one_user_of_a_mount_and_no_other() {
    let Some(world) = world() else { return };
    world.shell("b", "mkdir /forebay/far", "");
    world.ok("b", &["run", "-q", "--", "python3", "-c", MAKER, "/forebay/far", "8"]);
    let Some(mount) = Mount::new(&world, "a") else { return world.end() };
    world.ok("a", &["qos", "set", &format!("cap uid={{7001}} & jobid={{slow}} bw={CAP}")]);
    let files: Vec<_> = (0..8).map(|number| format!("{}/far/{number}", mount.at)).collect();
    let mut readers: Vec<_> = (0..16).map(|_| start(&mount, "7001", "slow", &files)).collect();
    readers.push(start(&mount, "7001", "other", &files));
    readers.push(start(&mount, "7002", "slow", &files));
    let mut readers = Programs(readers);
    let free = || moved(&world, 7001, "other").min(moved(&world, 7002, "slow"));
    wait_for("all jobs", || moved(&world, 7001, "slow") > 0 && free() > 0);
    let (begun, first) = (Instant::now(), (moved(&world, 7001, "slow"), free()));
    wait_for("2 MiB of the limited one", || moved(&world, 7001, "slow") >= first.0 + 2 * MIB);
    let last = (moved(&world, 7001, "slow"), free());
    let seconds = begun.elapsed().as_secs() + 1;
    let (slow, free) = (last.0 - first.0, last.1 - first.1);
    let shown = jobs(&world);
    assert!(slow <= CAP * seconds + 4 * MIB, "{slow} bytes in {seconds} s: {shown:?}");
    assert!(free > slow, "the others moved {free} bytes, the limited one {slow}: {shown:?}");
    let limited: Vec<_> = shown.iter().filter(|one| one["rule"] == "cap").collect();
    assert!(limited.len() == 1 && limited[0]["user"] == 7001, "{shown:?}");
    readers.assert_running();
    end_all(world, "cap", readers, mount);
}

/// The other user has six times as many readers, and gives them the name of the first one's job.
#[test]
fn a_user_that_names_the_job_of_another_has_its_own_share() {
    let Some(world) = world() else { return };
    world.shell("b", "mkdir /forebay/far", "");
    world.ok("b", &["run", "-q", "--", "python3", "-c", MAKER, "/forebay/far", "8"]);
    let Some(mount) = Mount::new(&world, "a") else { return world.end() };
    if !world.throttle("a", "80mbit", "256kb") {
        return;
    }
    world.ok("a", &["qos", "set", "shares", "*", "weight=100"]);
    let files: Vec<_> = (0..8).map(|number| format!("{}/far/{number}", mount.at)).collect();
    let mut readers: Vec<_> = (0..4).map(|_| start(&mount, "7001", "job", &files)).collect();
    readers.extend((0..24).map(|_| start(&mount, "7002", "job", &files)));
    let readers = Programs(readers);
    let of = |user: u64| moved(&world, user, "job");
    wait_for("both users", || of(7001) > 0 && of(7002) > 0);
    let first = (of(7001), of(7002));
    wait_for("8 MiB of the first user", || of(7001) >= first.0 + 8 * MIB);
    let last = (of(7002), of(7001));
    let (other, own) = (last.0 - first.1, last.1 - first.0);
    let shown = jobs(&world);
    assert!(other < 3 * own, "{own} bytes of the job's user, {other} of the other one: {shown:?}");
    world.unthrottle("a");
    end_all(world, "shares", readers, mount);
}

/// `forebay qos` as a user that knows the mount alone.
fn qos_as(mount: &Mount, user: u32, words: &[&str]) -> Output {
    let ids = [format!("--reuid={user}"), format!("--regid={user}")];
    let mut command = mount.command(&["setpriv", &ids[0], &ids[1], "--clear-groups"]);
    command.arg(profile().join("forebay")).args(["qos", words[0], "--at", &mount.at]);
    command.args(&words[1..]).env("HOME", "/nowhere").env_remove("XDG_RUNTIME_DIR");
    in_time("a command of a user", || command.output().expect("setpriv runs"))
}

fn qos_ok(mount: &Mount, user: u32, words: &[&str]) -> String {
    let Output { status, stdout, stderr } = qos_as(mount, user, words);
    let errors = String::from_utf8_lossy(&stderr);
    assert!(status.success(), "{user}: {words:?}: {errors}");
    String::from_utf8_lossy(&stdout).into_owned()
}

/// The one line with which a command of a user is refused.
fn qos_refused(mount: &Mount, user: u32, words: &[&str]) -> String {
    let Output { status, stderr, .. } = qos_as(mount, user, words);
    let errors = String::from_utf8_lossy(&stderr).into_owned();
    assert!(!status.success(), "{user}: {words:?} was not refused");
    assert_eq!(errors.lines().count(), 1, "{words:?}: {errors}");
    errors
}

/// The rules and jobs as a user sees them.
fn shown_to(mount: &Mount, user: u32) -> Value {
    serde_json::from_str(&qos_ok(mount, user, &["show", "--json"])).expect("JSON")
}

fn names_in(shown: &Value, key: &str) -> Vec<String> {
    let rows = shown[key].as_array().expect("rows").iter();
    rows.map(|row| row["name"].as_str().expect("a name").to_owned()).collect()
}

/// User 7001 has a rule `cap`: commands that say too much, or are on rules of others, are refused.
fn assert_own_rules_are_checked(mount: &Mount) {
    for (words, why) in [
        (&["set", "x jobid={slow} weight=10000"][..], "column 16: a rule of your own gives no"),
        (&["set", "x * min=1G"], "column 5: a rule of your own gives no"),
        (&["set", "x uid={7001} bw=1M"], "column 3: a rule of your own says nothing about"),
        (&["set", "cap * bw=1M"], "column 1: a rule of this name exists"),
        (&["set", "change cap bw=1"], "column 15: less than 64K"),
        (&["delete", "none"], "column 1: there is no rule of this name"),
    ] {
        let errors = qos_refused(mount, 7001, words);
        assert!(errors.contains(why), "{words:?}: {errors}");
    }
    // Neither the rule of the other user nor that of the instance.
    let errors = qos_refused(mount, 7002, &["delete", "cap"]);
    assert!(errors.contains("there is no rule of this name"), "{errors}");
}

/// One user limits a job of its own, and makes a rule that allows its other job more than the rule of the
/// instance does. A second user has a job with the name of the first one's.
#[test]
fn a_user_of_a_mount_limits_its_own_jobs_and_no_others() {
    let Some(world) = world() else { return };
    world.shell("b", "mkdir /forebay/far", "");
    world.ok("b", &["run", "-q", "--", "python3", "-c", MAKER, "/forebay/far", "8"]);
    let Some(mount) = Mount::new(&world, "a") else { return world.end() };
    let other = format!("cap uid={{7001}} & jobid={{other}} bw={CAP}");
    world.ok("a", &["qos", "set", &other]);
    qos_ok(&mount, 7001, &["set", "more jobid={other} bw=1G"]);
    qos_ok(&mount, 7001, &["set", &format!("cap jobid={{slow}} bw={CAP}")]);
    assert_eq!(names_in(&shown_to(&mount, 7001), "rules"), ["cap", "more"]);
    assert!(names_in(&shown_to(&mount, 7002), "rules").is_empty(), "they are of another user");
    assert_own_rules_are_checked(&mount);
    let files: Vec<_> = (0..8).map(|number| format!("{}/far/{number}", mount.at)).collect();
    let mut readers: Vec<_> = (0..8).map(|_| start(&mount, "7001", "slow", &files)).collect();
    readers.extend((0..8).map(|_| start(&mount, "7001", "other", &files)));
    readers.push(start(&mount, "7002", "slow", &files));
    let mut readers = Programs(readers);
    let of = |user, job| moved(&world, user, job);
    let all = || [of(7001, "slow"), of(7001, "other"), of(7002, "slow")];
    wait_for("all jobs", || all().iter().all(|&bytes| bytes > 0));
    let (begun, first) = (Instant::now(), all());
    wait_for("2 MiB of the limited ones", || {
        of(7001, "slow") >= first[0] + 2 * MIB && of(7001, "other") >= first[1] + 2 * MIB
    });
    let last = all();
    let seconds = begun.elapsed().as_secs() + 1;
    let [slow, other, free] = [0, 1, 2].map(|job| last[job] - first[job]);
    let shown = jobs(&world);
    assert!(slow <= CAP * seconds + 4 * MIB, "its own limit: {slow} in {seconds} s: {shown:?}");
    assert!(other <= CAP * seconds + 4 * MIB, "the instance's: {other} in {seconds} s: {shown:?}");
    assert!(free > slow + other, "the other user moved {free}, they {slow} and {other}: {shown:?}");
    // It sees its own jobs, with both limits, and nobody else's.
    let shown = shown_to(&mount, 7001);
    let users = shown["jobs"].as_array().expect("jobs").iter().map(|one| one["user"].as_u64());
    assert!(users.into_iter().all(|user| user == Some(7001)), "{shown}");
    let own = shown["own"].as_array().expect("its own").iter();
    assert!(own.map(|one| &one["rule"]).any(|rule| rule == "cap"), "{shown}");
    // The owner of the instance sees and deletes them, too.
    world.ok("a", &["qos", "delete", "cap", "--user", "7001"]);
    assert_eq!(names_in(&shown_to(&mount, 7001), "rules"), ["more"]);
    let before = of(7001, "slow");
    let other_before = of(7001, "other");
    wait_for("the job without its limit", || {
        of(7001, "slow") - before > 4 * (of(7001, "other") - other_before) + 8 * MIB
    });
    qos_ok(&mount, 7001, &["delete", "more"]);
    readers.assert_running();
    end_all(world, "cap", readers, mount);
}

#[test]
fn limits_of_a_mapped_user_are_those_of_the_user_it_stands_for() {
    let Some(world) = world() else { return };
    if !std::path::Path::new("/dev/fuse").exists() {
        return world.end();
    }
    let maps = ["--map-uids", "7001:9001:1", "--map-gids", "7001:9001:1"];
    let mount = Mount::with(&world, "a", &maps, &world.path("mount-a"));
    qos_ok(&mount, 7001, &["set", "own * bw=1M"]);
    let shown: Value =
        serde_json::from_str(&world.ok("a", &["qos", "show", "--json"])).expect("JSON");
    assert_eq!(shown["rules"][0]["user"].as_u64(), Some(9001), "{shown}");
    // Those without a user of their own are nobody, as others are.
    let errors = qos_refused(&mount, 7002, &["show"]);
    assert!(errors.contains("takes you for nobody"), "{errors}");
    let errors = qos_refused(&mount, 0, &["set", "own * bw=1M"]);
    assert!(errors.contains("takes you for nobody"), "{errors}");
    end(mount);
    world.end();
}

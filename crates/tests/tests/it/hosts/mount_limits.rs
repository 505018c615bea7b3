//! Requests of one job through a mount stop no others: those that wait for another host, and those that
//! wait for a limit of their user (`forebay qos`). A rule finds the user and the job of a program behind
//! a mount, and no user gets the share of another one by its job's name. Network namespaces need root, a
//! mount needs `/dev/fuse`; without them the tests are skipped.

use crate::support::agent::{Mount, signal};
use crate::support::mounted::{UringEnabled, has_ended};
use crate::support::world::World;
use crate::support::{in_time, wait_for};
use serde_json::Value;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Child;
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
    for reader in &mut readers.0 {
        assert!(reader.try_wait().expect("its state").is_none(), "a reader failed");
    }
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
    for reader in &mut readers.0 {
        assert!(reader.try_wait().expect("its state").is_none(), "a reader failed");
    }
    // So that they end soon.
    world.ok("a", &["qos", "delete", "cap"]);
    drop(readers);
    let server = mount.pid;
    drop(mount);
    wait_for("the mount's end", || has_ended(server.cast_signed()));
    world.end();
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
    // So that they end soon.
    world.unthrottle("a");
    world.ok("a", &["qos", "delete", "shares"]);
    drop(readers);
    let server = mount.pid;
    drop(mount);
    wait_for("the mount's end", || has_ended(server.cast_signed()));
    world.end();
}

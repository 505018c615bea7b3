//! Bounds on the dirty bytes of jobs: of a job with `dirty=` no more is in memory, whether its data leave
//! by the SSD or by writeback, from the host of the target or from another one; what others wrote stays,
//! and nothing is lost.
//!
//! Amounts are compared after the writer has ended: no time is.

use super::ok;
use crate::support::backing::{Backing, printed, shell};
use crate::support::world::World;
use crate::support::{Instance, in_time, wait_for};
use std::path::Path;

const MIB: u64 = 1 << 20;
const BOUND: u64 = 16 * MIB;
const WRITTEN: u64 = 64 * MIB;
/// Beyond a bound: what is being moved, and an extent of each of the files.
const BEYOND: u64 = 12 * MIB;

/// A file of random bytes beside an instance.
fn source(instance: &Instance, bytes: u64) -> String {
    let path = instance.dir.path().join("source").to_string_lossy().into_owned();
    shell(Path::new("/"), &format!("head -c {bytes} /dev/urandom >{path}"));
    path
}

fn copy(instance: &Instance, job: &str, from: &str, to: &str) {
    let words = ["run", "--quiet", "--job", job, "--", "cp", from, to];
    in_time("a copy", || ok(instance, &words));
}

/// Memory is large enough for all of it: only the bound has something leave.
#[test]
fn no_more_of_a_job_than_its_bound_is_in_memory() {
    let instance = Instance::start("bound", &["--memory", "192MiB", "--ssd", "1GiB"]);
    let from = source(&instance, WRITTEN);
    copy(&instance, "other", &from, "/forebay/other");
    // A daemon that is busy tells its figures later.
    wait_for("bytes in memory", || instance.figure("memory_used") >= WRITTEN - BEYOND);
    let (before, demoted_before) =
        (instance.figure("memory_used"), instance.figure("bytes_demoted"));
    ok(&instance, &["qos", "set", &format!("few jobid={{few}} dirty={BOUND}")]);
    copy(&instance, "few", &from, "/forebay/few");
    wait_for("all moves to end", || {
        let used = instance.figure("memory_used");
        used <= before + BOUND + BEYOND && used + BEYOND >= before
    });
    wait_for("demoted bytes", || instance.figure("bytes_demoted") >= WRITTEN - BOUND - BEYOND);
    wait_for("a wait for the bound", || instance.figure("dirty_waits") > 0);
    // Of the other job nothing left.
    let demoted = instance.figure("bytes_demoted") - demoted_before;
    assert!(demoted <= WRITTEN + BEYOND, "{demoted}");
    for file in ["few", "other"] {
        ok(&instance, &["run", "-q", "--", "cmp", &from, &format!("/forebay/{file}")]);
    }
    // Without the rule a job that is alone may have all.
    ok(&instance, &["qos", "delete", "few"]);
    let waits = instance.figure("dirty_waits");
    ok(&instance, &["run", "-q", "--", "rm", "/forebay/few", "/forebay/other"]);
    wait_for("free memory", || instance.figure("memory_used") == 0);
    copy(&instance, "few", &from, "/forebay/again");
    wait_for("bytes in memory", || instance.figure("memory_used") >= WRITTEN - BEYOND);
    assert_eq!(instance.figure("dirty_waits"), waits);
}

#[test]
fn a_bound_of_a_user_is_one_for_all_of_its_jobs() {
    let instance = Instance::start("bounduser", &["--memory", "192MiB", "--ssd", "1GiB"]);
    let from = source(&instance, WRITTEN / 2);
    ok(&instance, &["qos", "set", &format!("mine * dirty={BOUND} per=user")]);
    for job in ["one", "two"] {
        copy(&instance, job, &from, &format!("/forebay/{job}"));
    }
    wait_for("all moves to end", || instance.figure("memory_used") <= BOUND + BEYOND);
    for job in ["one", "two"] {
        ok(&instance, &["run", "-q", "--", "cmp", &from, &format!("/forebay/{job}")]);
    }
}

/// Without an SSD the bytes leave by writeback, although nothing else asks for it.
#[test]
fn a_job_at_its_bound_is_written_back() {
    let backing = Backing::new();
    let options =
        ["--memory", "192MiB", "--ssd", "0", "--backing", &backing.text(), "--writeback", "end"];
    let instance = Instance::start("boundback", &options);
    let from = source(&instance, WRITTEN);
    ok(&instance, &["qos", "set", &format!("few jobid={{few}} dirty={BOUND}")]);
    copy(&instance, "few", &from, "/forebay/few");
    wait_for("a wait for the bound", || instance.figure("dirty_waits") > 0);
    ok(&instance, &["run", "-q", "--", "cmp", &from, "/forebay/few"]);
    printed(instance.command("flush").output().expect("forebay runs"), "flush");
    shell(backing.dir.path(), &format!("cmp {from} few"));
}

/// Bytes that come from another host count for the job there, too.
#[test]
fn a_bound_holds_at_a_target_of_another_host() {
    let settings = [
        ("FOREBAY_PLACEMENT", "local"),
        ("FOREBAY_MEMORY", "192MiB"),
        ("FOREBAY_SSD", "1GiB"),
        ("FOREBAY_DEMOTE_LOW_WATERMARK", "20"),
    ];
    let Some(world) = World::started(&settings) else { return };
    let path = world.path("source").to_string_lossy().into_owned();
    shell(Path::new("/"), &format!("head -c {WRITTEN} /dev/urandom >{path}"));
    // Files stay on the host that wrote them first.
    for file in ["few", "other"] {
        world.shell("b", "echo here >\"$1\"", &format!("/forebay/{file}"));
    }
    world.ok("c", &["qos", "set", &format!("few jobid={{few}} dirty={BOUND}")]);
    let figure = |name: &str| world.daemon("b")["state"][name].as_u64().expect("a number");
    wait_for("the rule", || {
        world.ok("a", &["qos", "show"]).contains("few")
            && world.ok("b", &["qos", "show"]).contains("few")
    });
    let copy = |job: &str| {
        let to = format!("of=/forebay/{job}");
        let from = format!("if={path}");
        let words = ["run", "-q", "--job", job, "--", "dd", &from, &to, "bs=1M", "conv=notrunc"];
        in_time("a copy", || world.ok("a", &words));
    };
    copy("other");
    wait_for("bytes on the other host", || figure("memory_used") >= WRITTEN);
    let before = figure("memory_used");
    copy("few");
    wait_for("all moves to end", || figure("memory_used") <= before + BOUND + BEYOND);
    wait_for("a wait for the bound", || figure("dirty_waits") > 0);
    for file in ["few", "other"] {
        world.ok("c", &["run", "-q", "--", "cmp", &path, &format!("/forebay/{file}")]);
    }
    world.end();
}

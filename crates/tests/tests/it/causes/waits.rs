//! Waits of a job: for space, a lock, its limit.

use super::{MIB, Reported, expect, found, waited};
use crate::support::device::Device;
use crate::support::wait_for;
use crate::support::world::World;
use serde_json::Value;

const SIZES: [&str; 8] = [
    "--memory",
    "16MiB",
    "--ssd",
    "16MiB",
    "--demote-low-watermark",
    "100",
    "--demote-idle-age",
    "1ms",
];

/// Memory and SSD are full, and the SSD is frozen until the job waits.
#[test]
fn a_job_that_waits_for_space_is_found() {
    let Some(mut device) = Device::new(64) else { return };
    let reported = Reported::of(device.start("spacewait", &SIZES));
    let instance = &reported.instance;
    let small = "dd if=/dev/zero of=/forebay/small bs=1M count=1 2>/dev/null; rm /forebay/small";
    let before = reported.job("before", small);
    assert_eq!(found(&before, "waits-for-space"), None, "{before}");
    assert!(waited(&before, "admission").abs() < f64::EPSILON, "{before}");
    let mut worker = instance.worker();
    assert_eq!(worker.ask(&format!("put /forebay/low 1 {}", 9 * MIB)), "ok");
    // Not by the bytes that were demoted: they may be of the file before.
    wait_for("all to be demoted", || instance.figure("memory_free") == 16 * MIB);
    device.freeze();
    assert_eq!(worker.ask(&format!("put /forebay/high 2 {}", 15 * MIB)), "ok");
    wait_for("the copying program to stop", || instance.daemon(0).has_blocked_thread("demote"));
    let late = "dd if=/dev/zero of=/forebay/late bs=1M count=1 seek=8 2>/dev/null";
    let waiting = reported.command("waits", &[], late).spawn().expect("forebay runs");
    wait_for("waiting", || instance.figure("writers_waiting") == 1);
    assert_eq!(worker.ask("unlink /forebay/high"), "ok");
    let output = waiting.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{output:?}");
    device.go_on();
    let report = reported.report(&["waits"]);
    assert_eq!(expect(&report, "waits-for-space")["severity"], "high");
    assert!(waited(&report, "admission") > 0.0, "{report}");
}

/// Holds a lock until it is told to end.
const HOLDER: &str = "import fcntl, sys
f = open('/forebay/lock', 'w')
fcntl.lockf(f, fcntl.LOCK_EX)
print('locked', flush=True)
sys.stdin.readline()";

#[test]
fn time_in_locks_of_files_is_in_the_report() {
    use std::io::Read as _;
    use std::process::Stdio;
    let reported =
        Reported::start("lockwait", &["--local", "1", "--memory", "32MiB", "--ssd", "0"]);
    let mut holder = reported.instance.program(&["python3", "-c", HOLDER]);
    let mut holder = holder.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it runs");
    let mut said = [0; 7];
    holder.stdout.take().expect("a pipe").read_exact(&mut said).expect("a line");
    let taker = "exec python3 -c \"import fcntl
f = open('/forebay/lock', 'w')
open('/forebay/waits', 'w').write('x')
fcntl.lockf(f, fcntl.LOCK_EX)\"";
    let waiting = reported.command("locked", &[], taker).spawn().expect("forebay runs");
    let mut worker = reported.instance.worker();
    wait_for("the other", || worker.ask("get /forebay/waits").starts_with("ok 1 "));
    let pid = waiting.id();
    wait_for("its wait", || is_asleep_below(pid));
    drop(holder.stdin.take());
    holder.wait().expect("it ends");
    let output = waiting.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{output:?}");
    let report = reported.report(&["locked"]);
    assert!(waited(&report, "locks") > 0.0, "{report}");
    let free = reported.job("free", taker);
    assert!(waited(&free, "locks").abs() < f64::EPSILON, "{free}");
}

/// True if the python that a command started has called for the lock: it sleeps.
fn is_asleep_below(pid: u32) -> bool {
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    let child = children.unwrap_or_default().split_whitespace().next().map(str::to_owned);
    let Some(child) = child else { return false };
    let status = std::fs::read_to_string(format!("/proc/{child}/stat")).unwrap_or_default();
    status.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('S'))
}

#[test]
fn a_job_that_its_limit_holds_back_is_found() {
    let Some(world) = World::started(&[("FOREBAY_PLACEMENT", "local")]) else { return };
    world.shell("b", "dd if=/dev/zero of=$1 bs=1M count=2 2>/dev/null", "/forebay/f");
    let read = |job: &str, more: &[&str]| -> Value {
        let words = [&["run", "--quiet", "--job", job], more].concat();
        let script = "dd if=/forebay/f of=/dev/null bs=512k count=3 2>/dev/null";
        world.ok("a", &[&words[..], &["--", "sh", "-ec", script]].concat());
        serde_json::from_str(&world.ok("a", &["report", job, "--json", "--now"])).expect("JSON")
    };
    let held = read("held", &["--max-rate", "512KiB/s"]);
    assert!(waited(&held, "throttled") > 0.0, "{held}");
    assert_eq!(expect(&held, "held-back")["severity"], "warn");
    // A rule that holds nothing back.
    let free = read("free", &["--max-rate", "100GiB/s"]);
    assert_eq!(found(&free, "held-back"), None, "{free}");
    world.end();
}

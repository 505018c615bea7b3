//! Full tiers: a write waits in arrival order for space that is being freed, and is refused in
//! bounded time when none is.

use crate::support::{Instance, in_time, text, wait_for};
use testkit::{content, digest};

const MIB: u64 = 1 << 20;

/// "A write that finds memory and SSD full while space is being made waits"
/// (docs/semantics/durability.md): two writers of different speeds, together ten times the memory.
#[test]
fn writers_of_ten_times_the_memory_meet_no_error() {
    let options = [
        "--memory",
        "16MiB",
        "--ssd",
        "256MiB",
        "--demote-low-watermark",
        "100",
        "--demote-idle-age",
        "1ms",
    ];
    let instance = Instance::start("outrun", &options);
    let (mut fast, mut slow) = (instance.worker(), instance.worker());
    assert_eq!(slow.ask("open s /forebay/slow cw"), "ok");
    fast.send(&format!("put /forebay/fast 1 {}", 140 * MIB));
    let part = 64 << 10;
    for at in 0..320 {
        assert_eq!(slow.ask(&format!("write s {at} {} {part}", at * part)), "ok", "at {at}");
    }
    assert_eq!(fast.answer().as_deref(), Some("ok"));
    let right = format!("ok {} {}", 140 * MIB, digest(&content(1, 0, 140 * MIB)));
    assert_eq!(slow.ask("get /forebay/fast"), right);
    let parts: Vec<u8> = (0..320).flat_map(|at| content(at, at * part, part)).collect();
    let right = format!("ok {} {}", 320 * part, digest(&parts));
    assert_eq!(fast.ask("get /forebay/slow"), right);
}

/// Writes a file of most of the memory and removes it, again and again.
const LOOP: &str = r#"
import os
for n in range(60):
    fd = os.open(f'/forebay/{n % 3}', os.O_CREAT | os.O_WRONLY)
    for _ in range(11): assert os.write(fd, bytes(1 << 20)) == 1 << 20
    os.close(fd)
    os.unlink(f'/forebay/{n % 3}')
"#;

/// A write right after a removal is not refused; only counters show its wait.
#[test]
fn a_writer_waits_for_space_that_it_just_removed() {
    let options = ["--memory", "16MiB", "--ssd", "0", "--stripe-size", "64KiB"];
    let instance = Instance::start("anew", &options);
    // On a busy machine the daemon may always be faster than the writer.
    wait_for("a write that waits for space", || {
        let output = instance.program(&["python3", "-c", LOOP]).output().expect("python3 runs");
        assert!(output.status.success(), "{}", text(&output.stderr));
        instance.figure("write_waits") > 0
    });
    assert!(instance.figure("write_wait_us") >= instance.figure("write_wait_us_max"));
    assert_eq!(instance.figure("writers_waiting"), 0);
}

/// "ENOSPC comes in bounded time" (docs/semantics/durability.md).
#[test]
fn a_write_that_can_never_fit_is_refused_soon() {
    let options =
        ["--memory", "16MiB", "--ssd", "16MiB", "--stripe-size", "1MiB", "--enospc-timeout", "2s"];
    let instance = Instance::start("full", &options);
    let mut worker = instance.worker();
    let put = format!("put /forebay/f 1 {}", 64 * MIB);
    assert_eq!(in_time("a write to a full instance", || worker.ask(&put)), "err 28");
    // Readers do not wait behind it.
    assert!(worker.ask("get /forebay/f").starts_with("ok "));
    assert_eq!(worker.ask("unlink /forebay/f"), "ok");
    // A write waits two seconds for the space, and a busy machine may take longer to free it.
    let put = format!("put /forebay/g 2 {}", 24 * MIB);
    wait_for("the space of the removed file", || worker.ask(&put) == "ok");
    let right = format!("ok {} {}", 24 * MIB, digest(&content(2, 0, 24 * MIB)));
    assert_eq!(worker.ask("get /forebay/g"), right);
}

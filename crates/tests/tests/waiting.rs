//! Full tiers: a write waits for space that is on its way, in its turn, and is refused, in bounded time,
//! when none is.

mod support;

use std::time::{Duration, Instant};
use support::{Instance, text};
use tests::{content, digest};

const MIB: u64 = 1 << 20;

/// "A write that outruns the SSD, or finds all full while something leaves, waits" (docs/semantics.md):
/// two writers of different speeds, together ten times the memory.
#[test]
fn writers_of_ten_times_the_memory_meet_no_error() {
    let options = ["--memory", "16MiB", "--ssd", "256MiB", "--room", "100", "--idle", "1ms"];
    let instance = Instance::start("outrun", &options);
    let (mut fast, mut slow) = (instance.worker(), instance.worker());
    assert_eq!(slow.ask("open s /forebay/slow cw"), "ok");
    fast.tell(&format!("put /forebay/fast 1 {}", 140 * MIB));
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

/// Whoever removes a file and writes at once is not refused, and sees it only by the figures.
#[test]
fn who_writes_what_he_removed_waits_for_it() {
    let options = ["--memory", "16MiB", "--ssd", "0", "--chunk", "64KiB"];
    let instance = Instance::start("anew", &options);
    let output = instance.program(&["python3", "-c", LOOP]).output().expect("python3 runs");
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(instance.figure("write_waits") > 0, "there was room all the time");
    assert!(instance.figure("write_wait_us") >= instance.figure("write_wait_us_max"));
    assert_eq!(instance.figure("writers_waiting"), 0);
}

/// "Full is said in bounded time" (docs/semantics.md).
#[test]
fn what_nothing_makes_room_for_is_refused_soon() {
    let options = ["--memory", "16MiB", "--ssd", "16MiB", "--chunk", "1MiB", "--patience", "2s"];
    let instance = Instance::start("full", &options);
    let mut worker = instance.worker();
    let begun = Instant::now();
    assert_eq!(worker.ask(&format!("put /forebay/f 1 {}", 64 * MIB)), "err 28");
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    // Who reads is not in their way.
    assert!(worker.ask("get /forebay/f").starts_with("ok "));
    assert_eq!(worker.ask("unlink /forebay/f"), "ok");
    assert_eq!(worker.ask(&format!("put /forebay/g 2 {}", 24 * MIB)), "ok");
    let right = format!("ok {} {}", 24 * MIB, digest(&content(2, 0, 24 * MIB)));
    assert_eq!(worker.ask("get /forebay/g"), right);
}

//! Writers that wait for space while the SSD is frozen: freed space lets them continue, a killed
//! one leaves the queue, readers bypass them, and a failing SSD, or a stop, ends the wait of all in
//! bounded time.

use crate::support::device::Device;
use crate::support::{Instance, Worker, in_time, kill, text, wait_for};
use testkit::{content, digest};

const MIB: u64 = 1 << 20;
/// It takes 12 MiB of the SSD: smaller extents of the next file are demoted beside it, and none of
/// 4 MiB.
const LOW: u64 = 9 * MIB;

/// An instance whose memory and SSD are full: `/forebay/low` is on the SSD and `/forebay/high` in
/// memory, being demoted to an SSD that is frozen.
fn full(device: &mut Device, name: &str, options: &[&str]) -> Instance {
    let sizes = [
        "--memory",
        "16MiB",
        "--ssd",
        "16MiB",
        "--demote-low-watermark",
        "100",
        "--demote-idle-age",
        "1ms",
    ];
    let instance = device.start(name, &[&sizes[..], options].concat());
    let mut worker = instance.worker();
    assert_eq!(worker.ask(&format!("put /forebay/low 1 {LOW}")), "ok");
    // Space in memory is free a moment later. Without it a part of the next file is on the SSD from the
    // begin, and the worker hangs there.
    wait_for("all to be demoted", || {
        instance.figure("bytes_demoted") == 12 * MIB && instance.figure("memory_used") == 0
    });
    device.freeze();
    assert_eq!(worker.ask(&format!("put /forebay/high 2 {}", 15 * MIB)), "ok");
    wait_for("the copying program to stop", || instance.daemon(0).has_blocked_thread("demote"));
    instance
}

/// Begins to write into an extent of 4 MiB, for which there is no space.
fn begin(instance: &Instance, number: u64) -> Worker {
    let mut worker = instance.worker();
    assert_eq!(worker.ask(&format!("open f /forebay/w{number} cw")), "ok");
    worker.send(&format!("write f {number} {} {MIB}", 8 * MIB));
    wait_for("waiting", || instance.figure("writers_waiting") == number);
    worker
}

fn right(seed: u64, length: u64) -> String {
    format!("ok {length} {}", digest(&content(seed, 0, length)))
}

/// "goes on when space comes" (docs/semantics/durability.md), and no other operation waits for
/// that.
#[test]
fn a_waiting_writer_continues_when_a_file_is_removed_and_readers_bypass_it() {
    let Some(mut device) = Device::new(64) else { return };
    let instance = full(&mut device, "remove", &[]);
    let mut waits = begin(&instance, 1);
    let mut other = instance.worker();
    assert_eq!(other.ask("get /forebay/high"), right(2, 15 * MIB));
    assert_eq!(other.ask("get /forebay/low"), right(1, LOW));
    assert_eq!(other.ask("open f /forebay/high rw"), "ok");
    assert_eq!(other.ask("write f 2 0 100000"), "ok", "over existing data");
    assert_eq!(other.ask("truncate f 14000000"), "ok");
    assert_eq!(instance.figure("writers_waiting"), 1, "the writer waits all the time");
    assert_eq!(other.ask("unlink /forebay/high"), "ok");
    assert_eq!(other.ask("close f"), "ok");
    assert_eq!(waits.answer().as_deref(), Some("ok"));
    assert!(instance.figure("write_waits") > 0);
    device.go_on();
    assert_eq!(waits.ask("close f"), "ok");
    let mut bytes = vec![0; 8 << 20];
    bytes.extend(content(1, 8 * MIB, MIB));
    assert_eq!(other.ask("get /forebay/w1"), format!("ok {} {}", 9 * MIB, digest(&bytes)));
}

/// A dead writer does not wait and holds nothing.
#[test]
fn killed_writers_leave_the_queue() {
    let Some(mut device) = Device::new(64) else { return };
    let instance = full(&mut device, "killed", &[]);
    let mut first = Vec::new();
    for number in 1..4 {
        let mut worker = instance.worker();
        let pid = worker.pid();
        assert_eq!(worker.ask(&format!("open f /forebay/w{number} cw")), "ok");
        worker.send(&format!("write f {number} {} {MIB}", 8 * MIB));
        wait_for("waiting", || instance.figure("writers_waiting") == number);
        first.push((worker, pid));
    }
    let mut last = begin(&instance, 4);
    first.iter().for_each(|(_, pid)| kill(*pid));
    wait_for("the dead processes to be removed", || instance.figure("writers_waiting") == 1);
    let mut other = instance.worker();
    assert_eq!(other.ask("unlink /forebay/high"), "ok");
    assert_eq!(last.answer().as_deref(), Some("ok"));
    drop(last);
    device.go_on();
    for name in ["low", "w1", "w2", "w3", "w4"] {
        assert_eq!(other.ask(&format!("unlink /forebay/{name}")), "ok");
    }
    wait_for("all space to be freed", || instance.used() == 0);
}

/// "EIO means that the SSD failed" (docs/semantics/durability.md).
#[test]
fn a_failed_ssd_is_an_error_in_bounded_time() {
    let Some(mut device) = Device::new(64) else { return };
    let instance = full(&mut device, "fails", &[]);
    let mut waits = begin(&instance, 1);
    device.fail();
    assert_eq!(in_time("a failed SSD", || waits.answer()).as_deref(), Some("err 5"));
    // Memory works as before.
    let mut other = instance.worker();
    assert_eq!(other.ask("get /forebay/high"), right(2, 15 * MIB));
    assert_eq!(other.ask("unlink /forebay/high"), "ok");
    assert_eq!(other.ask(&format!("put /forebay/new 3 {}", 8 * MIB)), "ok");
    assert_eq!(other.ask("get /forebay/new"), right(3, 8 * MIB));
}

/// A stop with a hanging SSD: waiting writers get an error in time, and the daemon ends when the
/// SSD continues.
#[test]
fn a_stop_ends_waiting_writes() {
    let Some(mut device) = Device::new(64) else { return };
    let instance = full(&mut device, "stop", &["--timeout", "6s", "--enospc-timeout", "4s"]);
    let mut waits = begin(&instance, 1);
    let mut stop = instance.command("stop").spawn().expect("forebay runs");
    assert_eq!(in_time("a stop", || waits.answer()).as_deref(), Some("err 5"));
    device.go_on();
    assert!(stop.wait().expect("it ends").success());
    drop(waits);
    // Dropping the `Instance` stops it.
    instance.start_again();
}

/// A killed daemon may still write once its device continues: until then it is not replaced, and
/// the error says why.
#[test]
fn a_killed_daemon_that_may_still_write_is_not_replaced() {
    let Some(mut device) = Device::new(64) else { return };
    let instance = full(&mut device, "dying", &["--timeout", "5s"]);
    let daemon = instance.daemon(0);
    daemon.kill();
    daemon.wait();
    assert!(daemon.has_blocked_thread("demote"), "it ended while the device is frozen");
    let output = instance.try_start();
    let printed = text(&output.stderr);
    assert!(
        !output.status.success() && printed.contains("an earlier daemon 0 has not ended"),
        "{printed}"
    );
    device.go_on();
    wait_for("its last thread to end", || !daemon.has_blocked_thread("demote"));
    instance.start_again();
}

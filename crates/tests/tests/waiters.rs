//! Writers that wait for room while the SSD stands still: who makes room lets them go on, who is killed
//! makes way, readers pass by, and an SSD that fails, or a stop, ends it for all in bounded time.

mod support;

use std::time::{Duration, Instant};
use support::device::Device;
use support::{Instance, Worker, kill, text, wait_for};
use tests::{content, digest};

const MIB: u64 = 1 << 20;
/// It takes 12 MiB of the SSD: smaller pieces of the next file sink beside it, and none of 4 MiB.
const LOW: u64 = 9 * MIB;

/// An instance whose memory and SSD are full: `/forebay/low` lies on the SSD and `/forebay/high` in
/// memory, on its way down to an SSD that does not move.
fn full(device: &mut Device, name: &str, options: &[&str]) -> Instance {
    let sizes = ["--memory", "16MiB", "--ssd", "16MiB", "--room", "100", "--idle", "1ms"];
    let instance = device.start(name, &[&sizes[..], options].concat());
    let mut worker = instance.worker();
    assert_eq!(worker.ask(&format!("put /forebay/low 1 {LOW}")), "ok");
    wait_for("all to have sunk", || instance.figure("bytes_sunk") == 12 * MIB);
    device.stand_still();
    assert_eq!(worker.ask(&format!("put /forebay/high 2 {}", 15 * MIB)), "ok");
    wait_for("a copy to stand still", || instance.daemon(0).has_still_thread("sink"));
    instance
}

/// Begins to write into a piece of 4 MiB, for which there is no room.
fn begin(instance: &Instance, number: u64) -> Worker {
    let mut worker = instance.worker();
    assert_eq!(worker.ask(&format!("open f /forebay/w{number} cw")), "ok");
    worker.tell(&format!("write f {number} {} {MIB}", 8 * MIB));
    wait_for("waiting", || instance.figure("writers_waiting") == number);
    worker
}

fn right(seed: u64, length: u64) -> String {
    format!("ok {length} {}", digest(&content(seed, 0, length)))
}

/// "goes on when space comes" (docs/semantics.md), and nobody else waits for that.
#[test]
fn who_waits_goes_on_when_a_file_is_removed_and_readers_pass() {
    let Some(mut device) = Device::new(64) else { return };
    let instance = full(&mut device, "remove", &[]);
    let mut waits = begin(&instance, 1);
    let mut other = instance.worker();
    let begun = Instant::now();
    assert_eq!(other.ask("get /forebay/high"), right(2, 15 * MIB));
    assert_eq!(other.ask("get /forebay/low"), right(1, LOW));
    assert_eq!(other.ask("open f /forebay/high rw"), "ok");
    assert_eq!(other.ask("write f 2 0 100000"), "ok", "over what is there");
    assert_eq!(other.ask("truncate f 14000000"), "ok");
    assert!(begun.elapsed() < Duration::from_secs(5), "they waited: {:?}", begun.elapsed());
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

/// Who is dead waits no longer, and keeps nothing.
#[test]
fn killed_writers_make_way() {
    let Some(mut device) = Device::new(64) else { return };
    let instance = full(&mut device, "killed", &[]);
    let mut first = Vec::new();
    for number in 1..4 {
        let mut worker = instance.worker();
        let pid = worker.pid();
        assert_eq!(worker.ask(&format!("open f /forebay/w{number} cw")), "ok");
        worker.tell(&format!("write f {number} {} {MIB}", 8 * MIB));
        wait_for("waiting", || instance.figure("writers_waiting") == number);
        first.push((worker, pid));
    }
    let mut last = begin(&instance, 4);
    first.iter().for_each(|(_, pid)| kill(*pid));
    wait_for("the dead to leave", || instance.figure("writers_waiting") == 1);
    let mut other = instance.worker();
    assert_eq!(other.ask("unlink /forebay/high"), "ok");
    assert_eq!(last.answer().as_deref(), Some("ok"));
    drop(last);
    device.go_on();
    for name in ["low", "w1", "w2", "w3", "w4"] {
        assert_eq!(other.ask(&format!("unlink /forebay/{name}")), "ok");
    }
    wait_for("all space back", || instance.used() == 0);
}

/// "EIO, that the SSD failed" (docs/semantics.md).
#[test]
fn an_ssd_that_fails_is_an_error_soon() {
    let Some(mut device) = Device::new(64) else { return };
    let instance = full(&mut device, "fails", &[]);
    let mut waits = begin(&instance, 1);
    let begun = Instant::now();
    device.fail();
    assert_eq!(waits.answer().as_deref(), Some("err 5"));
    assert!(begun.elapsed() < Duration::from_secs(8), "{:?}", begun.elapsed());
    // Memory is as good as before.
    let mut other = instance.worker();
    assert_eq!(other.ask("get /forebay/high"), right(2, 15 * MIB));
    assert_eq!(other.ask("unlink /forebay/high"), "ok");
    assert_eq!(other.ask(&format!("put /forebay/new 3 {}", 8 * MIB)), "ok");
    assert_eq!(other.ask("get /forebay/new"), right(3, 8 * MIB));
}

/// A stop beside an SSD that hangs: who waits is told so in time, and it ends when the SSD lets it.
#[test]
fn a_stop_ends_the_wait() {
    let Some(mut device) = Device::new(64) else { return };
    let instance = full(&mut device, "stop", &["--timeout", "6s", "--patience", "4s"]);
    let mut waits = begin(&instance, 1);
    let begun = Instant::now();
    let mut stop = instance.command("stop").spawn().expect("forebay runs");
    assert_eq!(waits.answer().as_deref(), Some("err 5"));
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    device.go_on();
    assert!(stop.wait().expect("it ends").success());
    drop(waits);
    // The drop of an instance stops it.
    instance.start_again();
}

/// A daemon that was killed may still write, once its device goes on: until then nobody takes its place,
/// and it is said why.
#[test]
fn nobody_takes_the_place_of_a_daemon_that_may_still_write() {
    let Some(mut device) = Device::new(64) else { return };
    let instance = full(&mut device, "dying", &["--timeout", "5s"]);
    let daemon = instance.daemon(0);
    daemon.kill();
    daemon.wait();
    assert!(daemon.has_still_thread("sink"), "it ended, and the device does not move");
    let output = instance.try_start();
    let said = text(&output.stderr);
    assert!(
        !output.status.success() && said.contains("an earlier daemon 0 has not ended"),
        "{said}"
    );
    device.go_on();
    wait_for("its last thread to end", || !daemon.has_still_thread("sink"));
    instance.start_again();
}

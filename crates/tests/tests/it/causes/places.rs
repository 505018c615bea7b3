//! Where bytes were when a job read them: in memory, on an SSD, on another host, or in the backing store.

use super::{MIB, Reported, expect, found, make, number, reading, waited};
use crate::support::mounted::{Mounted, has_fuse};
use crate::support::world::World;
use crate::support::{Instance, wait_for};
use serde_json::{Value, json};

/// An instance over a backing directory with `cold` and `warm`, of 16 and 200 MiB.
fn backed(name: &str) -> (tempfile::TempDir, Reported) {
    let backing = tempfile::tempdir().expect("a directory");
    make(backing.path(), "cold", 16);
    make(backing.path(), "warm", 200);
    let place = backing.path().to_str().expect("a path of letters").to_owned();
    let options = ["--local", "1", "--memory", "512MiB", "--ssd", "0", "--backing", &place];
    (backing, Reported::start(name, &options))
}

fn assert_cold(report: &Value) {
    let finding = expect(report, "cold-reads");
    assert_eq!(finding["severity"], "high");
    let evidence = finding["evidence"].as_str().expect("text");
    assert!(evidence.starts_with("16.0 MiB of 16.0 MiB read (100 %)"), "{evidence}");
    assert_eq!(number(report, "read_tiers", "backing"), 16 * MIB);
    assert!(waited(report, "backing") > 0.0, "{report}");
    assert!(finding["files"].as_array().is_some_and(|files| files[0] == "/cold"), "{finding}");
}

/// Sequential readers, of which most bytes are there ahead, and the next run of the same job.
#[test]
fn the_first_read_of_an_input_is_cold_and_the_next_is_not() {
    let (_backing, reported) = backed("cold");
    assert_cold(&reported.job("first", &reading("/forebay/cold")));
    let again = reported.job("again", &reading("/forebay/cold"));
    assert_eq!(found(&again, "cold-reads"), None, "{again}");
    assert_eq!(number(&again, "read_tiers", "memory"), 16 * MIB);
    // A thirteenth of what is read is cold.
    reported.job("warming", &reading("/forebay/warm"));
    let evict = "setfattr -n user.forebay.prefetch -v evict /forebay/cold";
    // Readahead may still be under way.
    wait_for("eviction", || {
        let mut evicting = reported.instance.program(&["sh", "-c", evict]);
        evicting.output().expect("forebay runs").status.success()
    });
    let both = format!("{}; {}", reading("/forebay/warm"), reading("/forebay/cold"));
    let both = reported.job("both", &both);
    assert_eq!(number(&both, "read_tiers", "backing"), 16 * MIB, "{both}");
    assert_eq!(found(&both, "cold-reads"), None, "{both}");
}

/// Accesses to the backing store count for the job whose file is read, saved or fetched ahead.
#[test]
fn accesses_to_the_backing_store_belong_to_the_job_of_the_file() {
    let (backing, reported) = backed("accesses");
    let numbers = |report: &Value| {
        ["backing_reads", "backing_writes"].map(|which| number(report, which, "number"))
    };
    let reader = reported.job("reader", &reading("/forebay/cold"));
    assert!(matches!(numbers(&reader), [1..=u64::MAX, 0]), "{reader}");
    let times = &reader["profile"]["backing_reads"];
    let [half, most] = ["p50_seconds", "p99_seconds"].map(|name| times[name].as_f64());
    assert!(half > Some(0.0) && half <= most && times["failed"] == 0, "{times}");
    assert_eq!(found(&reader, "backing-failures"), None, "{reader}");
    reported.job("writer", "echo 1 >/forebay/new");
    let flushed = reported.instance.command("flush").output().expect("forebay runs");
    assert!(flushed.status.success(), "{flushed:?}");
    let writer = reported.report_now("writer");
    assert!(matches!(numbers(&writer), [0, 1..=u64::MAX]), "{writer}");
    // The file goes from the backing store while a program has it open.
    let place = backing.path().join("warm");
    let read = "dd of=/dev/null bs=1M <&3 2>/dev/null";
    let script = format!("exec 3</forebay/warm; rm {}; {read} && exit 1; true", place.display());
    let failing = reported.job("failing", &script);
    let evidence = expect(&failing, "backing-failures")["evidence"].as_str().expect("text");
    assert!(evidence.contains("reads of the backing store"), "{evidence}");
}

/// Data that a command brought up before is not cold.
#[test]
fn an_input_that_is_staged_in_is_not_cold() {
    let (_backing, reported) = backed("staged");
    let run = reported.instance.dir.path();
    let mut stage = std::process::Command::new(crate::support::profile().join("forebay"));
    stage.args(["stage", "in", "--name", &*reported.instance.name, "--wait", "/forebay/cold"]);
    let staged = stage.env("XDG_RUNTIME_DIR", run).output().expect("forebay runs");
    assert!(staged.status.success(), "{staged:?}");
    let report = reported.job("reader", &reading("/forebay/cold"));
    assert_eq!(found(&report, "cold-reads"), None, "{report}");
    assert_eq!(number(&report, "read_tiers", "memory"), 16 * MIB);
}

#[test]
fn the_first_read_through_a_mount_is_cold() {
    if !has_fuse() {
        return;
    }
    let (_backing, reported) = backed("coldmount");
    let mounted = Mounted::new(&reported.instance, "m");
    let read = |job: &str| {
        let mut command = std::process::Command::new("dd");
        let input = format!("if={}", mounted.path("cold").display());
        command.args([&*input, "of=/dev/null", "bs=1M", "status=none"]).env("FOREBAY_JOB", job);
        assert!(command.status().expect("dd runs").success());
        reported.report_now(job)
    };
    assert_cold(&read("first"));
}

/// All data goes to the SSD as soon as it is idle, and none comes back.
const TO_SSD: [&str; 12] = [
    "--local",
    "1",
    "--memory",
    "16MiB",
    "--ssd",
    "256MiB",
    "--demote-low-watermark",
    "100",
    "--demote-min-watermark",
    "100",
    "--demote-idle-age",
    "1ms",
];

#[test]
fn a_file_that_is_read_again_and_again_from_the_ssd_is_found() {
    let reported = Reported::start("ssd", &TO_SSD);
    let mut worker = reported.instance.worker();
    assert_eq!(worker.ask(&format!("put /forebay/f 1 {}", 8 * MIB)), "ok");
    wait_for("demotion", || reported.instance.figure("bytes_demoted") >= 8 * MIB);
    let times = |count: usize| vec![reading("/forebay/f"); count].join("; ");
    let two = reported.job("two", &times(2));
    assert_eq!(number(&two, "read_tiers", "ssd"), 16 * MIB, "{two}");
    assert_eq!(found(&two, "never-in-memory"), None, "{two}");
    let three = reported.job("three", &times(3));
    assert_eq!(number(&three, "read_tiers", "ssd"), 24 * MIB, "{three}");
    assert_eq!(expect(&three, "never-in-memory")["files"], json!(["/f"]));
}

/// Data is where it was written first.
fn spread() -> Option<World> {
    World::started(&[("FOREBAY_PLACEMENT", "local")])
}

fn report_on(world: &World, host: &str, job: &str) -> Value {
    serde_json::from_str(&world.ok(host, &["report", job, "--json", "--now"])).expect("JSON")
}

#[test]
fn reads_of_another_hosts_memory_are_found_and_those_of_the_own_are_not() {
    let Some(world) = spread() else { return };
    let write = |host: &str| {
        world.shell(
            host,
            "dd if=/dev/zero of=$1 bs=1M count=8 2>/dev/null",
            &format!("/forebay/{host}"),
        );
    };
    write("a");
    write("b");
    let read = |job: &str, script: &str| {
        world.ok("a", &["run", "--quiet", "--job", job, "--", "sh", "-ec", script]);
        report_on(&world, "a", job)
    };
    let far = read("far", &reading("/forebay/b"));
    assert_eq!(number(&far, "read_tiers", "remote"), 8 * MIB, "{far}");
    assert_eq!(expect(&far, "remote-reads")["files"], json!(["/b"]));
    // Three of eleven.
    let some = "dd if=/forebay/b of=/dev/null bs=1M count=3 2>/dev/null";
    let near = read("near", &format!("{}; {some}", reading("/forebay/a")));
    assert_eq!(number(&near, "read_tiers", "remote"), 3 * MIB, "{near}");
    assert_eq!(found(&near, "remote-reads"), None, "{near}");
    world.end();
}

/// A cold input whose stripes come through other hosts is cold, not remote.
#[test]
fn a_cold_input_is_cold_on_all_hosts() {
    let Some(mut world) = World::new() else { return };
    let backing = world.path("backing");
    std::fs::create_dir(&backing).expect("a directory");
    make(&backing, "cold", 24);
    let backing: &'static str = Box::leak(backing.display().to_string().into_boxed_str());
    world.settings = vec![("FOREBAY_BACKING", backing), ("FOREBAY_STRIPE_SIZE", "1MiB")];
    world.start();
    let read = |job: &str| {
        world.ok("a", &["run", "-q", "--job", job, "--", "sh", "-ec", &reading("/forebay/cold")]);
        report_on(&world, "a", job)
    };
    let first = read("first");
    let finding = expect(&first, "cold-reads");
    assert_eq!(finding["files"], json!(["/cold"]));
    assert_eq!(found(&first, "remote-reads"), None, "{first}");
    let cold = number(&first, "read_tiers", "backing");
    assert!(cold * 10 >= 24 * MIB * 9, "{cold} of 24 MiB: {first}");
    let again = read("again");
    assert_eq!(found(&again, "cold-reads"), None, "{again}");
    assert!(number(&again, "read_tiers", "remote") > 0, "{again}");
    world.end();
}

/// The places add up to what was read.
#[test]
fn places_add_up() {
    let instance = Instance::start("places", &["--local", "2", "--memory", "64MiB", "--ssd", "0"]);
    let reported = Reported::of(instance);
    let script =
        "dd if=/dev/zero of=/forebay/f bs=1M count=9 2>/dev/null; cat /forebay/f >/dev/null";
    let report = reported.job("sum", script);
    assert_eq!(number(&report, "read_tiers", "memory"), 9 * MIB, "{report}");
    let others = ["ssd", "remote", "backing"].map(|tier| number(&report, "read_tiers", tier));
    assert_eq!(others, [0; 3]);
}

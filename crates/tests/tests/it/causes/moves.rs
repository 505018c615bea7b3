//! Bytes that moved beside a job, data that it left dirty or that was damaged, and directories in which
//! it worked.

use super::{MIB, Reported, expect, found, make, number};
use crate::support::backing::Backing;
use crate::support::damage::damage;
use crate::support::wait_for;
use serde_json::Value;

fn backed(name: &str, when: &str) -> (Backing, Reported) {
    let backing = Backing::new();
    let options = ["--local", "1", "--memory", "256MiB", "--ssd", "0", "--writeback", when];
    let place = backing.text();
    let reported = Reported::start(name, &[&options[..], &["--backing", &place]].concat());
    (backing, reported)
}

/// Files, and then small writes until the writeback daemon has them all.
const WRITES: &str = "dd if=/dev/zero of=/forebay/a bs=1M count=24 2>/dev/null
for at in 1 2 3 4 5 6 7 8; do echo $at >/forebay/b$at; done";

#[test]
fn writeback_while_a_job_writes_is_found() {
    let (_backing, reported) = backed("beside", "close");
    // The job ends with this directory, so with the test if that fails.
    let end = tempfile::tempdir().expect("a directory");
    let script = format!("{WRITES}; while test -d $END; do echo x >>/forebay/tick; done");
    let mut command = reported.command("beside", &[], &script);
    let mut job = command.env("END", end.path()).spawn().expect("forebay runs");
    // Bytes of the job count for the second in which they were found, so not all need be in the same.
    let words = ["beside", "--now", "--name", &reported.instance.name];
    wait_for("writeback beside the job to be found", || {
        reported.asked(&words).is_ok_and(|report| found(&report, "writeback-beside").is_some())
    });
    drop(end);
    assert!(job.wait().expect("it ends").success());
    let report = reported.report(&["beside"]);
    assert!(number(&report, "backing", "written_beside") > 0, "{report}");
    expect(&report, "writeback-beside");
}

#[test]
fn writeback_at_the_end_is_beside_no_job_and_leaves_its_files_dirty() {
    let (_backing, reported) = backed("dirty", "end");
    let report = reported.job("dirty", WRITES);
    assert_eq!(found(&report, "writeback-beside"), None, "{report}");
    let finding = expect(&report, "dirty-at-end");
    assert!(finding["evidence"].as_str().is_some_and(|it| it.starts_with("9 files")), "{finding}");
    assert!(number(&report, "backing", "dirty_bytes") >= 24 * MIB, "{report}");
    let flushed = reported.instance.command("flush").output().expect("forebay runs");
    assert!(flushed.status.success(), "{flushed:?}");
    let after = reported.report_now("dirty");
    assert_eq!(found(&after, "dirty-at-end"), None, "{after}");
    // Files that another job left dirty are not this one's.
    reported.job("other", "echo x >/forebay/other");
    let reader = reported.job("reader", "cat /forebay/other >/dev/null");
    assert_eq!(found(&reader, "dirty-at-end"), None, "{reader}");
}

const ON_SSD: [&str; 8] =
    ["--local", "1", "--memory", "16MiB", "--ssd", "64MiB", "--scrub-rate", "0"];

/// `f` is on the SSD, and in the backing store.
#[test]
fn data_that_was_damaged_and_read_again_is_found() {
    let backing = tempfile::tempdir().expect("a directory");
    make(backing.path(), "f", 4);
    let place = backing.path().display().to_string();
    let reported = Reported::start("mended", &[&ON_SSD[..], &["--backing", &place]].concat());
    let mut stage = std::process::Command::new(crate::support::profile().join("forebay"));
    stage.args(["stage", "in", "--name", &*reported.instance.name, "--wait", "--tier", "ssd"]);
    stage.arg("/forebay/f").env("XDG_RUNTIME_DIR", reported.instance.dir.path());
    let staged = stage.output().expect("forebay runs");
    assert!(staged.status.success(), "{staged:?}");
    // The read that meets the damage may fail; the one before must not.
    let (reads, meets) = ("cat /forebay/f >/dev/null", "cat /forebay/f >/dev/null || true");
    let before = reported.job("before", reads);
    assert_eq!(found(&before, "repaired-data"), None, "{before}");
    assert!(damage(&reported.instance.data(0), |page| page % 300 == 7) > 0, "it is on the SSD");
    reported.job("meets", meets);
    wait_for("the damage to be handled", || reported.instance.figure("pages_damaged") > 0);
    let report = reported.report_now("meets");
    assert_eq!(expect(&report, "repaired-data")["severity"], "high");
    assert_eq!(found(&report, "damaged-data"), None, "{report}");
    // A job without this file has nothing of it.
    let other = reported.job("other", "echo x >/forebay/other");
    assert_eq!(found(&other, "repaired-data"), None, "{other}");
}

#[test]
fn damage_of_what_only_the_instance_has_is_found() {
    let more = ["--demote-low-watermark", "100", "--demote-idle-age", "1ms"];
    let reported = Reported::start("lostpart", &[&ON_SSD[..], &more].concat());
    let mut worker = reported.instance.worker();
    assert_eq!(worker.ask(&format!("put /forebay/f 3 {}", 8 * MIB)), "ok");
    wait_for("demotion", || reported.instance.figure("bytes_demoted") >= 8 * MIB);
    // The read that meets the damage may fail; the one before must not.
    let (reads, meets) = ("cat /forebay/f >/dev/null", "cat /forebay/f >/dev/null || true");
    let before = reported.job("before", reads);
    assert_eq!(found(&before, "damaged-data"), None, "{before}");
    assert!(damage(&reported.instance.data(0), |page| page % 300 == 7) > 0, "it is on the SSD");
    reported.job("meets", meets);
    wait_for("the damage to be noted", || reported.instance.figure("pages_damaged") > 0);
    let report = reported.report_now("meets");
    assert_eq!(expect(&report, "damaged-data")["severity"], "high");
    assert_eq!(found(&report, "repaired-data"), None, "{report}");
}

/// Creates, looks at and removes files: directory, prefix, number.
const NAMES: &str = "
import os, sys
d, prefix, number = sys.argv[1], sys.argv[2], int(sys.argv[3])
for at in range(number):
    path = f'{d}/{prefix}{at}'
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY))
    os.stat(path)
    os.unlink(path)
";

fn busiest(report: &Value) -> (String, u64) {
    let all = report["profile"]["directories"].as_array().expect("directories");
    let most = all.iter().max_by_key(|one| one["operations"].as_u64());
    let most = most.unwrap_or_else(|| panic!("no directory: {report}"));
    (most["path"].as_str().expect("a path").to_owned(), most["operations"].as_u64().unwrap_or(0))
}

fn operations(report: &Value) -> u64 {
    let ranks = report["profile"]["ranks"].as_array().expect("ranks");
    ranks.iter().filter_map(|rank| rank["metadata"]["number"].as_u64()).sum()
}

/// Two ranks in one directory, and two in directories of their own. How many operations are in each comes
/// from a sample of one in 512; whether that is hot depends on the speed of the machine, too.
#[test]
fn a_directory_in_which_all_ranks_work_is_named() {
    let reported = Reported::start("hotdir", &["--local", "1", "--memory", "64MiB", "--ssd", "0"]);
    let program = reported.instance.dir.path().join("names.py");
    std::fs::write(&program, NAMES).expect("written");
    let program = program.display();
    let job = |name: &str, directories: [&str; 2]| {
        let rank = |number: usize, directory: &str| {
            format!(
                "SLURM_PROCID={number} python3 {program} /forebay/{directory} {number}. 6000 & "
            )
        };
        let ranks = format!("{}{}", rank(0, directories[0]), rank(1, directories[1]));
        reported.job(name, &format!("cd /; mkdir -p /forebay/d /forebay/e; {ranks} wait"))
    };
    let one = job("one", ["d", "d"]);
    let (path, here) = busiest(&one);
    let all = operations(&one);
    assert_eq!(path, "/d", "{one}");
    assert!(2 * here > all && here < 2 * all, "{here} of {all}: {one}");
    let seconds = one["profile"]["seconds"].as_f64().expect("seconds");
    let is_hot = here as f64 / seconds > 5000.0;
    assert_eq!(found(&one, "hot-directory").is_some(), is_hot, "{here} in {seconds} s: {one}");
    let two = job("two", ["d", "e"]);
    let (_, here) = busiest(&two);
    let all = operations(&two);
    assert!(3 * here > all / 2, "{here} of {all}: {two}");
    assert!(4 * here < 3 * all, "neither has nearly all: {here} of {all}: {two}");
}

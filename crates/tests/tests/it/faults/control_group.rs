//! An instance in a control group that limits memory, of either version: a start that does not fit is
//! refused with the size that does, and an instance of that size is written full without a kill by the
//! kernel. The test is a process of its own, which moves into the group: other tests would use the
//! group's memory, too, and be killed in it.

use crate::support::group::Group;
use crate::support::{Instance, skip, text};
use std::process::Command;
use testkit::{content, digest};

const MIB: u64 = 1 << 20;
const LIMIT: u64 = 256 * MIB;
/// Three quarters of the limit: the rest is for programs.
const FITS: &str = "192MiB";
const FILE: u64 = 4 * MIB;
/// Files that are twice as large as the group, so that memory and SSD are filled.
const FILES: u64 = 2 * LIMIT / FILE;
/// Set in the process that moves into the group.
const ALONE: &str = "FOREBAY_TEST_ALONE";

/// "a start that does not fit is refused with the size that fits" (docs/semantics/faults.md).
#[test]
fn an_instance_that_fits_its_control_group_is_filled_without_a_kill() {
    if std::env::var_os(ALONE).is_some() {
        return in_a_group();
    }
    let name =
        "faults::control_group::an_instance_that_fits_its_control_group_is_filled_without_a_kill";
    let mut alone = Command::new(std::env::current_exe().expect("a path"));
    let alone = alone.args(["--exact", name, "--nocapture"]).env(ALONE, "1").output();
    let alone = alone.expect("it runs");
    let (said, errors) = (text(&alone.stdout), text(&alone.stderr));
    assert!(alone.status.success() && said.contains("1 passed"), "{said}{errors}");
    // The lines that tell what could not run are for this process's caller.
    print!("{said}");
}

fn in_a_group() {
    let group = match Group::enter(LIMIT) {
        Ok(group) => group,
        Err(why) => {
            return skip(&format!("control groups with a memory limit cannot be made: {why}"));
        }
    };
    for ssd in ["0", "512MiB"] {
        let instance = Instance::unstarted("group", &["--memory", FITS, "--ssd", ssd], &[]);
        let mut larger = instance.command("start");
        let refused = larger.args(["--memory", "300MiB", "--ssd", ssd]).output();
        let refused = refused.expect("forebay runs");
        let errors = text(&refused.stderr);
        let why = format!("this control group has 256 MiB of memory: give --memory {FITS}");
        assert!(!refused.status.success() && errors.contains(&why), "--ssd {ssd}: {errors}");
        instance.start_again();
        let mut worker = instance.worker();
        let put = |number: u64| format!("put /forebay/f{number} {number} {FILE}");
        let answers: Vec<String> = (0..FILES).map(|number| worker.ask(&put(number))).collect();
        let is_full = |answer: &String| answer == "err 28";
        assert!(answers.iter().all(|it| it == "ok" || is_full(it)), "--ssd {ssd}: {answers:?}");
        assert_eq!(answers.iter().any(is_full), ssd == "0", "--ssd {ssd}: {answers:?}");
        let whole = (0..FILES).filter(|&number| answers[number as usize] == "ok");
        let mut count = 0;
        for number in whole {
            let right = format!("ok {FILE} {}", digest(&content(number, 0, FILE)));
            assert_eq!(worker.ask(&format!("get /forebay/f{number}")), right, "--ssd {ssd}");
            count += 1;
        }
        // All but what the tables of a daemon and the last file, which found no space, take.
        assert!(count * FILE >= 160 * MIB, "--ssd {ssd}: {count} files");
        assert_eq!(group.killed(), 0, "--ssd {ssd}: the group reached its limit");
    }
}

//! Speculative preallocation for a writer that begins at the start of a file
//! (`data::space::preallocation`): it sends few requests; space that it does not use is reclaimed,
//! whatever happens to the writer, to its file, or to the daemon.

use crate::support::{Instance, Worker, kill, text, wait_for};
use testkit::{content, digest};

const MIB: u64 = 1 << 20;
const MEMORY: u64 = 64 * MIB;
const BLOCK: u64 = 64 << 10;
const SEED: u64 = 7;

fn start(name: &str) -> Instance {
    Instance::start(name, &["--memory", "64MiB", "--ssd", "0", "--stripe-size", "1MiB"])
}

fn requests(instance: &Instance) -> u64 {
    instance.status()["daemons"][0]["state"]["requests"].as_u64().expect("a number")
}

/// Writes blocks to the file that the program has open as `file`.
fn write(program: &mut Worker, range: std::ops::Range<u64>) {
    for offset in range.step_by(BLOCK as usize) {
        assert_eq!(program.ask(&format!("write file {SEED} {offset} {BLOCK}")), "ok");
    }
}

/// Checks that the file holds the written data.
fn check(program: &mut Worker, length: u64) {
    let right = format!("ok {length} {}", digest(&content(SEED, 0, length)));
    assert_eq!(program.ask("get /forebay/file"), right);
}

/// Bytes that the file takes, by `stat`.
fn taken(instance: &Instance) -> u64 {
    let output = instance.program(&["stat", "-c", "%b", "/forebay/file"]).output();
    let printed = text(&output.expect("forebay runs").stdout);
    printed.trim().parse::<u64>().expect("a number") * 512
}

/// Allocates all the remaining space, and frees it again.
fn fill(instance: &Instance, program: &mut Worker) {
    let before = instance.used();
    assert_eq!(program.ask("open big /forebay/big wc"), "ok");
    let refused = (0..).find_map(|block: u64| {
        let answer = program.ask(&format!("write big 1 {} {BLOCK}", block * BLOCK));
        (answer != "ok").then_some(answer)
    });
    assert_eq!(refused.as_deref(), Some("err 28"));
    assert!(MEMORY - instance.used() < MIB, "all of the space but less than a stripe is available");
    assert_eq!(program.ask("close big"), "ok");
    assert_eq!(program.ask("unlink /forebay/big"), "ok");
    // Space of what was removed before may become free meanwhile.
    wait_for("all of it to be freed", || instance.used() <= before);
}

/// One request for each megabyte, and one for each extent of the first megabyte.
#[test]
fn a_sequential_writer_sends_few_requests() {
    let instance = start("seldom");
    wait_for("a writer that is not delayed", || {
        let before = requests(&instance);
        let words = ["dd", "if=/dev/zero", "of=/forebay/file", "bs=64k", "count=256"];
        assert!(instance.program(&words).status().expect("forebay runs").success());
        let requested = requests(&instance) - before;
        assert!(requested > 0, "it wrote without any space");
        // Preallocated space that the writer did not use soon was reclaimed: then it requests space
        // again.
        requested <= 12
    });
}

#[test]
fn preallocated_space_is_reclaimed_for_others() {
    let instance = start("others");
    let mut other = instance.worker();
    for way in ["goes on", "closes", "is killed", "is cut", "daemon is killed", "removes"] {
        let mut writer = instance.worker();
        assert_eq!(writer.ask("open file /forebay/file rwct"), "ok");
        write(&mut writer, 0..MIB);
        assert_eq!(taken(&instance), MIB, "{way}: preallocated space does not count for the file");
        assert_eq!(instance.used(), MIB, "{way}: it is not in use");
        let mut length = MIB;
        match way {
            "closes" => assert_eq!(writer.ask("close file"), "ok"),
            "is killed" => kill(writer.pid()),
            "is cut" => {
                length = 5 * BLOCK;
                assert_eq!(other.ask("open cut /forebay/file w"), "ok");
                assert_eq!(other.ask(&format!("truncate cut {length}")), "ok");
                assert_eq!(other.ask("close cut"), "ok");
            }
            "daemon is killed" => {
                let victim = instance.daemon(0);
                victim.kill();
                victim.wait();
                instance.start_again();
                assert_eq!(instance.used(), MIB, "the next write finds preallocated extents");
            }
            "removes" => {
                length = 0;
                assert_eq!(other.ask("unlink /forebay/file"), "ok");
                assert_eq!(writer.ask("close file"), "ok");
            }
            _ => {}
        }
        if length > 0 {
            check(&mut other, length);
        }
        fill(&instance, &mut other);
        // The writer remembers extents that it does not own any more.
        if ["goes on", "daemon is killed", "is cut"].contains(&way) {
            write(&mut writer, length..3 * MIB);
            length = 3 * MIB;
        }
        if length > 0 {
            check(&mut other, length);
            assert_eq!(other.ask("unlink /forebay/file"), "ok");
        }
        drop(writer);
        wait_for("all space to be freed", || instance.used() == 0);
    }
}

/// They find each other's extents; space preallocated for one is available to all.
#[test]
fn several_writers_share_preallocated_extents() {
    let instance = start("shared");
    let mut writers: Vec<Worker> = (0..4).map(|_| instance.worker()).collect();
    for writer in &mut writers {
        assert_eq!(writer.ask("open file /forebay/file rwc"), "ok");
    }
    let length = 8 * MIB;
    for offset in (0..length).step_by(BLOCK as usize) {
        let count = writers.len();
        let writer = &mut writers[(offset / BLOCK) as usize % count];
        writer.send(&format!("write file {SEED} {offset} {BLOCK}"));
    }
    for number in 0..length / BLOCK {
        let count = writers.len();
        assert_eq!(writers[number as usize % count].answer().as_deref(), Some("ok"));
    }
    check(&mut writers[0], length);
    assert_eq!((taken(&instance), instance.used()), (length, length));
}

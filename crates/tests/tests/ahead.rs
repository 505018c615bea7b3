//! Space ahead of who writes a file from its beginning on (`data::early`): he asks seldom; what he does
//! not come to is nobody's space, whatever becomes of him, of his file, or of the daemon.

mod support;

use support::{Instance, Worker, kill, text, wait_for};
use tests::{content, digest};

const MIB: u64 = 1 << 20;
const MEMORY: u64 = 64 * MIB;
const BLOCK: u64 = 64 << 10;
const SEED: u64 = 7;

fn start(name: &str) -> Instance {
    Instance::start(name, &["--memory", "64MiB", "--ssd", "0", "--chunk", "1MiB"])
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

/// What the file holds is what was written.
fn check(program: &mut Worker, length: u64) {
    let right = format!("ok {length} {}", digest(&content(SEED, 0, length)));
    assert_eq!(program.ask("get /forebay/file"), right);
}

/// Bytes that the file takes, by `stat`.
fn taken(instance: &Instance) -> u64 {
    let output = instance.program(&["stat", "-c", "%b", "/forebay/file"]).output();
    let said = text(&output.expect("forebay runs").stdout);
    said.trim().parse::<u64>().expect("a number") * 512
}

/// Takes all the space that is left, and gives it back.
fn fill(instance: &Instance, program: &mut Worker) {
    let before = instance.used();
    assert_eq!(program.ask("open big /forebay/big wc"), "ok");
    let refused = (0..).find_map(|block: u64| {
        let answer = program.ask(&format!("write big 1 {} {BLOCK}", block * BLOCK));
        (answer != "ok").then_some(answer)
    });
    assert_eq!(refused.as_deref(), Some("err 28"));
    assert!(MEMORY - instance.used() < MIB, "all of it can be had, but for less than a chunk");
    assert_eq!(program.ask("close big"), "ok");
    assert_eq!(program.ask("unlink /forebay/big"), "ok");
    wait_for("all of it back", || instance.used() == before);
}

/// One asked for each megabyte, and for each of the pieces of the first, before.
#[test]
fn a_writer_asks_seldom() {
    let instance = start("seldom");
    wait_for("a writer who is not held up", || {
        let before = requests(&instance);
        let words = ["dd", "if=/dev/zero", "of=/forebay/file", "bs=64k", "count=256"];
        assert!(instance.program(&words).status().expect("forebay runs").success());
        let asked = requests(&instance) - before;
        assert!(asked > 0, "he wrote without any space");
        // What he did not write to soon was taken back: then he asked for it again.
        asked <= 12
    });
}

#[test]
fn what_lies_ahead_is_space_for_others() {
    let instance = start("others");
    let mut other = instance.worker();
    for way in ["goes on", "closes", "is killed", "is cut", "daemon is killed", "removes"] {
        let mut writer = instance.worker();
        assert_eq!(writer.ask("open file /forebay/file rwct"), "ok");
        write(&mut writer, 0..MIB);
        assert_eq!(taken(&instance), MIB, "{way}: what lies ahead is not the file's");
        assert_eq!(instance.used(), MIB, "{way}: nor in use");
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
                assert_eq!(instance.used(), MIB, "the next one knows what is early");
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
        // He knows pieces that are not his any more.
        if ["goes on", "daemon is killed", "is cut"].contains(&way) {
            write(&mut writer, length..3 * MIB);
            length = 3 * MIB;
        }
        if length > 0 {
            check(&mut other, length);
            assert_eq!(other.ask("unlink /forebay/file"), "ok");
        }
        drop(writer);
        wait_for("all space back", || instance.used() == 0);
    }
}

/// They find each other's pieces; what lies ahead of one is there for all.
#[test]
fn several_writers_of_one_file_go_on_together() {
    let instance = start("shared");
    let mut writers: Vec<Worker> = (0..4).map(|_| instance.worker()).collect();
    for writer in &mut writers {
        assert_eq!(writer.ask("open file /forebay/file rwc"), "ok");
    }
    let length = 8 * MIB;
    for offset in (0..length).step_by(BLOCK as usize) {
        let count = writers.len();
        let writer = &mut writers[(offset / BLOCK) as usize % count];
        writer.tell(&format!("write file {SEED} {offset} {BLOCK}"));
    }
    for number in 0..length / BLOCK {
        let count = writers.len();
        assert_eq!(writers[number as usize % count].answer().as_deref(), Some("ok"));
    }
    check(&mut writers[0], length);
    assert_eq!((taken(&instance), instance.used()), (length, length));
}

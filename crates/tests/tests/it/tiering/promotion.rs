//! Data on the SSD that is used is promoted to memory while that has space; its contents are
//! unchanged, whenever it is used or the daemon is killed meanwhile.

use crate::support::{Instance, Random, wait_for};
use std::time::{Duration, Instant};
use testkit::{content, digest};

const MIB: u64 = 1 << 20;

/// Bytes of the SSD in use.
fn on_ssd(instance: &Instance) -> u64 {
    instance.figure("ssd_total") - instance.figure("ssd_free")
}

fn right(seed: u64, length: u64) -> String {
    format!("ok {length} {}", digest(&content(seed, 0, length)))
}

/// "Data used again and again returns to memory" (docs/semantics/durability.md).
#[test]
fn data_that_is_used_again_is_promoted() {
    let options = ["--memory", "32MiB", "--ssd", "128MiB", "--demote-low-watermark", "0"];
    let instance = Instance::start("rises", &options);
    let mut worker = instance.worker();
    assert_eq!(worker.ask(&format!("put /forebay/first 1 {}", 32 * MIB)), "ok");
    assert_eq!(worker.ask(&format!("put /forebay/second 2 {}", 16 * MIB)), "ok");
    assert_eq!(worker.ask(&format!("put /forebay/third 3 {}", 4 * MIB)), "ok");
    wait_for("excess data on the SSD", || on_ssd(&instance) >= 20 * MIB);
    let before = on_ssd(&instance);
    assert_eq!(worker.ask("get /forebay/second"), right(2, 16 * MIB));
    assert_eq!(instance.figure("bytes_promoted"), 0, "memory is full");
    assert_eq!(worker.ask("unlink /forebay/first"), "ok");
    wait_for("the promotion of the second file", || {
        assert_eq!(worker.ask("get /forebay/second"), right(2, 16 * MIB));
        instance.figure("bytes_promoted") >= 16 * MIB
    });
    wait_for("the first extents to be free", || on_ssd(&instance) <= before - 16 * MIB);
    assert_eq!(worker.ask("get /forebay/third"), right(3, 4 * MIB));
    assert!(on_ssd(&instance) >= 4 * MIB, "the third file was not used before");
    for file in ["second", "third"] {
        assert_eq!(worker.ask(&format!("unlink /forebay/{file}")), "ok");
    }
    wait_for("all space to be freed", || instance.used() == 0);
}

/// Files are read and sometimes written while they are promoted, and the daemon is killed in the
/// middle.
#[test]
fn a_daemon_that_dies_while_extents_are_promoted_loses_nothing() {
    let options = ["--memory", "48MiB", "--ssd", "128MiB", "--demote-low-watermark", "0"];
    let instance = Instance::start("risedie", &options);
    let seed = testkit::seed(1);
    let mut random = Random::new(seed);
    let mut worker = instance.worker();
    let mut promoted = 0;
    for round in 0..testkit::rounds(4) {
        assert_eq!(worker.ask(&format!("put /forebay/full 0 {}", 48 * MIB)), "ok");
        let files: Vec<u64> = (0..12).map(|_| random.uniform(3 * MIB) + 1).collect();
        let mut seeds: Vec<u64> = (0..12).map(|file| round * 100 + file).collect();
        for (file, length) in files.iter().enumerate() {
            let answer = worker.ask(&format!("put /forebay/f{file} {} {length}", seeds[file]));
            assert_eq!(answer, "ok");
        }
        assert_eq!(worker.ask("unlink /forebay/full"), "ok");
        let until = Instant::now() + Duration::from_millis(150 + random.uniform(400));
        while Instant::now() < until {
            for (file, &length) in files.iter().enumerate() {
                if random.uniform(40) == 0 {
                    seeds[file] += 1000;
                    let put = format!("put /forebay/f{file} {} {length}", seeds[file]);
                    assert_eq!(worker.ask(&put), "ok");
                }
                let answer = worker.ask(&format!("get /forebay/f{file}"));
                assert_eq!(answer, right(seeds[file], length), "seed {seed}, round {round}");
            }
        }
        promoted += instance.figure("bytes_promoted");
        let victim = instance.daemon(0);
        victim.kill();
        victim.wait();
        instance.start_again();
        for (file, &length) in files.iter().enumerate() {
            let answer = worker.ask(&format!("get /forebay/f{file}"));
            assert_eq!(answer, right(seeds[file], length), "seed {seed}, round {round} after");
            assert_eq!(worker.ask(&format!("unlink /forebay/f{file}")), "ok");
        }
        wait_for("all space to be freed", || instance.used() == 0);
    }
    assert!(promoted > 0, "seed {seed}: no extent was promoted, so nothing was tested");
}

//! What lies on the SSD and is used comes back into memory while that has room, and is what it was,
//! whenever it is used or the daemon is killed meanwhile.

mod support;

use std::time::{Duration, Instant};
use support::{Instance, Random, setting, wait_for};
use tests::{content, digest};

const MIB: u64 = 1 << 20;

/// Bytes of the SSD that are in use.
fn on_ssd(instance: &Instance) -> u64 {
    instance.figure("ssd_total") - instance.figure("ssd_free")
}

fn right(seed: u64, length: u64) -> String {
    format!("ok {length} {}", digest(&content(seed, 0, length)))
}

/// "What is used again and again comes back into memory" (docs/semantics.md).
#[test]
fn what_is_used_again_rises() {
    let options = ["--memory", "32MiB", "--ssd", "128MiB", "--room", "0"];
    let instance = Instance::start("rises", &options);
    let mut worker = instance.worker();
    assert_eq!(worker.ask(&format!("put /forebay/first 1 {}", 32 * MIB)), "ok");
    assert_eq!(worker.ask(&format!("put /forebay/second 2 {}", 16 * MIB)), "ok");
    assert_eq!(worker.ask(&format!("put /forebay/third 3 {}", 4 * MIB)), "ok");
    wait_for("what has no room to be on the SSD", || on_ssd(&instance) >= 20 * MIB);
    let before = on_ssd(&instance);
    assert_eq!(worker.ask("get /forebay/second"), right(2, 16 * MIB));
    assert_eq!(instance.figure("bytes_risen"), 0, "memory has no room");
    assert_eq!(worker.ask("unlink /forebay/first"), "ok");
    wait_for("the second file to rise", || {
        assert_eq!(worker.ask("get /forebay/second"), right(2, 16 * MIB));
        instance.figure("bytes_risen") >= 16 * MIB
    });
    wait_for("the first places to be free", || on_ssd(&instance) <= before - 16 * MIB);
    assert_eq!(worker.ask("get /forebay/third"), right(3, 4 * MIB));
    assert!(on_ssd(&instance) >= 4 * MIB, "nobody used the third file before");
    for file in ["second", "third"] {
        assert_eq!(worker.ask(&format!("unlink /forebay/{file}")), "ok");
    }
    wait_for("all space back", || instance.used() == 0);
}

/// Files are read and now and then written while they rise, and the daemon is killed in the midst of it.
#[test]
fn a_daemon_that_dies_while_pieces_rise_loses_nothing() {
    let options = ["--memory", "48MiB", "--ssd", "128MiB", "--room", "0"];
    let instance = Instance::start("risedie", &options);
    let seed = setting("TEST_SEED", 1);
    let mut random = Random::new(seed);
    let mut worker = instance.worker();
    let mut risen = 0;
    for round in 0..setting("TEST_ROUNDS", 8) {
        assert_eq!(worker.ask(&format!("put /forebay/full 0 {}", 48 * MIB)), "ok");
        let files: Vec<u64> = (0..12).map(|_| random.below(3 * MIB) + 1).collect();
        let mut seeds: Vec<u64> = (0..12).map(|file| round * 100 + file).collect();
        for (file, length) in files.iter().enumerate() {
            let answer = worker.ask(&format!("put /forebay/f{file} {} {length}", seeds[file]));
            assert_eq!(answer, "ok");
        }
        assert_eq!(worker.ask("unlink /forebay/full"), "ok");
        let until = Instant::now() + Duration::from_millis(150 + random.below(400));
        while Instant::now() < until {
            for (file, &length) in files.iter().enumerate() {
                if random.below(40) == 0 {
                    seeds[file] += 1000;
                    let put = format!("put /forebay/f{file} {} {length}", seeds[file]);
                    assert_eq!(worker.ask(&put), "ok");
                }
                let answer = worker.ask(&format!("get /forebay/f{file}"));
                assert_eq!(answer, right(seeds[file], length), "seed {seed}, round {round}");
            }
        }
        risen += instance.figure("bytes_risen");
        let victim = instance.daemon(0);
        victim.kill();
        victim.wait();
        instance.start_again();
        for (file, &length) in files.iter().enumerate() {
            let answer = worker.ask(&format!("get /forebay/f{file}"));
            assert_eq!(answer, right(seeds[file], length), "seed {seed}, round {round} after");
            assert_eq!(worker.ask(&format!("unlink /forebay/f{file}")), "ok");
        }
        wait_for("all space back", || instance.used() == 0);
    }
    assert!(risen > 0, "seed {seed}: nothing rose, so nothing was tried");
}

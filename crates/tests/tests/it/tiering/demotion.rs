//! Extents are demoted from memory to the SSD: the next burst finds memory, mapped files stay in
//! place, acknowledged data survives kills of daemons, and contents are unchanged.

use crate::support::{Instance, Random, Worker, text, wait_for};
use std::collections::BTreeMap;
use std::process::Stdio;
use std::time::Instant;
use testkit::{content, digest};

const MIB: u64 = 1 << 20;

/// Bytes that were demoted, and bytes of the SSD in use.
fn demoted_and_used(instance: &Instance) -> (u64, u64) {
    let state = &instance.status()["daemons"][0]["state"];
    let figure = |name: &str| state[name].as_u64().unwrap_or_else(|| panic!("{name} of {state}"));
    (figure("bytes_demoted"), figure("ssd_total") - figure("ssd_free"))
}

/// "Memory is free again for the next burst" (docs/semantics/durability.md): measured by the place
/// of the bytes, not by time. The SSD holds exactly the demoted bytes, so nothing was written there
/// directly.
#[test]
fn the_second_burst_goes_to_memory() {
    let options = [
        "--memory",
        "32MiB",
        "--ssd",
        "256MiB",
        "--demote-low-watermark",
        "95",
        "--demote-idle-age",
        "20ms",
    ];
    let instance = Instance::start("burst", &options);
    let mut worker = instance.worker();
    let burst = 24 * MIB;
    for round in 0..4 {
        assert_eq!(worker.ask(&format!("put /forebay/f{round} {round} {burst}")), "ok");
        let written = burst * (round + 1);
        // The two counters are read at different moments while extents move.
        wait_for("all to be demoted and nothing else to be on the SSD", || {
            let (demoted, used) = demoted_and_used(&instance);
            demoted >= written - 2 * MIB && used == demoted
        });
    }
    for round in 0..4 {
        let right = format!("ok {burst} {}", digest(&content(round, 0, burst)));
        assert_eq!(worker.ask(&format!("get /forebay/f{round}")), right);
    }
    // Files may fill both tiers.
    assert!(instance.used() >= 4 * burst);
    for round in 0..4 {
        assert_eq!(worker.ask(&format!("unlink /forebay/f{round}")), "ok");
    }
    wait_for("all space to be freed", || instance.used() == 0);
}

/// `--tiering-rate` limits the demotion of idle data; a writer that finds memory full does not wait
/// for it.
#[test]
fn demotion_respects_the_rate() {
    let tiers = [
        "--memory",
        "32MiB",
        "--ssd",
        "256MiB",
        "--demote-low-watermark",
        "95",
        "--demote-idle-age",
        "1ms",
    ];
    let instance = Instance::start("slowly", &[&tiers[..], &["--tiering-rate", "8MiB"]].concat());
    let mut worker = instance.worker();
    let begun = Instant::now();
    assert_eq!(worker.ask(&format!("put /forebay/f 1 {}", 64 * MIB)), "ok");
    let mut demoted = 0;
    wait_for("its demotion", || {
        demoted = instance.figure("bytes_demoted");
        demoted >= 20 * MIB
    });
    // The rate limiter allows a part of 4 MiB in advance and a burst of a tenth of a second.
    let may = 5 * MIB + (begun.elapsed().as_secs_f64() * (8 * MIB) as f64) as u64;
    assert!(demoted <= may, "{demoted} bytes demoted, {may} allowed");
    let right = format!("ok {} {}", 64 * MIB, digest(&content(1, 0, 64 * MIB)));
    assert_eq!(worker.ask("get /forebay/f"), right);
}

#[test]
fn nothing_is_demoted_without_a_watermark_or_an_ssd() {
    for options in [
        ["--ssd", "256MiB", "--demote-low-watermark", "0"],
        ["--ssd", "0", "--demote-low-watermark", "100"],
    ] {
        let instance = Instance::start(
            "still",
            &[&["--memory", "32MiB", "--demote-idle-age", "1ms"], &options[..]].concat(),
        );
        let mut worker = instance.worker();
        assert_eq!(worker.ask(&format!("put /forebay/f 1 {}", 30 * MIB)), "ok");
        let right = format!("ok {} {}", 30 * MIB, digest(&content(1, 0, 30 * MIB)));
        assert_eq!(worker.ask("get /forebay/f"), right);
        assert_eq!(instance.figure("bytes_demoted"), 0);
    }
}

/// Keeps a file mapped until it is told to continue; stores into the mapping and checks by `read`.
const MAPPER: &str = r#"
import mmap, os, sys
fd = os.open('/forebay/mapped', os.O_CREAT | os.O_RDWR)
os.ftruncate(fd, 8 << 20)
m = mmap.mmap(fd, 8 << 20)
os.close(fd)
m[:] = b'a' * (8 << 20)
print('mapped', flush=True)
sys.stdin.readline()
m[::4096] = b'b' * 2048
fd = os.open('/forebay/mapped', os.O_RDONLY)
assert os.pread(fd, 8 << 20, 0) == (b'b' + b'a' * 4095) * 2048, 'read differs from the mapping'
os.close(fd)
"#;

/// "A mapped file stays where it is" (docs/semantics/durability.md).
#[test]
fn a_mapped_file_is_demoted_after_it_is_unmapped() {
    let options = [
        "--memory",
        "32MiB",
        "--ssd",
        "256MiB",
        "--demote-low-watermark",
        "100",
        "--demote-idle-age",
        "1ms",
    ];
    let instance = Instance::start("mapped", &options);
    let mut program = instance.program(&["python3", "-c", MAPPER]);
    let mut program =
        program.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it runs");
    let mut printed = [0; 7];
    let mut output = program.stdout.take().expect("a pipe");
    std::io::Read::read_exact(&mut output, &mut printed).expect("a line");
    // An extent that was not mapped yet may have been demoted.
    let before = instance.figure("bytes_demoted");
    let mut worker = instance.worker();
    assert_eq!(worker.ask(&format!("put /forebay/other 7 {}", 8 * MIB)), "ok");
    wait_for("sinking", || instance.figure("bytes_demoted") >= before + 8 * MIB);
    assert_eq!(instance.figure("bytes_demoted"), before + 8 * MIB, "a mapped extent was demoted");
    drop(program.stdin.take());
    let end = program.wait_with_output().expect("it ends");
    assert!(end.status.success(), "{}", text(&end.stderr));
    wait_for("sinking", || instance.figure("bytes_demoted") >= 16 * MIB);
    let mut right = vec![b'a'; 8 << 20];
    right.iter_mut().step_by(4096).for_each(|byte| *byte = b'b');
    let answer = worker.ask("get /forebay/mapped");
    assert_eq!(answer, format!("ok {} {}", 8 * MIB, digest(&right)));
}

/// Demotion still works: all data may have been demoted before the kill, so `f0` is written anew.
fn demotes_another(instance: &Instance, worker: &mut Worker, contents: u64) -> (u64, u64) {
    assert_eq!(worker.ask(&format!("put /forebay/f0 {contents} {MIB}")), "ok");
    wait_for("sinking", || instance.figure("bytes_demoted") > 0);
    (contents, MIB)
}

#[test]
fn a_daemon_that_dies_while_extents_move_loses_nothing() {
    let options = [
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
    let instance = Instance::start("sinkdie", &options);
    let seed = testkit::seed(1);
    let mut random = Random::new(seed);
    let mut known: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
    let mut worker = instance.worker();
    for round in 0..testkit::rounds(12) {
        let victim = instance.daemon(0);
        let moves_at_most = instance.figure("bytes_demoted") + random.uniform(8 * MIB);
        let mut reported = Vec::new();
        for _ in 0..12 {
            let (file, contents) = (random.uniform(24), random.next() % 100_000);
            let length = random.uniform(5 * MIB) >> random.uniform(6);
            if known.contains_key(&file) && random.uniform(3) == 0 {
                let (contents, length) = known[&file];
                worker.send(&format!("get /forebay/f{file}"));
                reported.push(Some((file, contents, length)));
                continue;
            }
            worker.send(&format!("put /forebay/f{file} {contents} {length}"));
            known.insert(file, (contents, length));
            reported.push(None);
        }
        // In the middle of it, determined by the demoted bytes or by chance.
        if round % 2 == 0 {
            (0..random.uniform(2_000_000)).for_each(|_| std::hint::spin_loop());
        } else {
            let much = || instance.figure("bytes_demoted") >= moves_at_most;
            (0..20).find(|_| much());
        }
        victim.kill();
        victim.wait();
        instance.start_again();
        for one in reported {
            let answer = worker.answer().unwrap_or_else(|| panic!("seed {seed}: the worker ended"));
            match one {
                None => assert_eq!(answer, "ok", "seed {seed}, round {round}"),
                Some((file, contents, length)) => {
                    let right = format!("ok {length} {}", digest(&content(contents, 0, length)));
                    assert_eq!(answer, right, "seed {seed}, round {round}, file {file}");
                }
            }
        }
        for (file, &(contents, length)) in &known {
            let right = format!("ok {length} {}", digest(&content(contents, 0, length)));
            let answer = worker.ask(&format!("get /forebay/f{file}"));
            assert_eq!(answer, right, "seed {seed}, round {round}, file {file} afterwards");
        }
        if round % 8 == 7 {
            known.insert(0, demotes_another(&instance, &mut worker, round));
        }
    }
    for file in known.keys() {
        assert_eq!(worker.ask(&format!("unlink /forebay/f{file}")), "ok");
    }
    drop(worker);
    wait_for("all space to be freed", || instance.used() == 0);
}

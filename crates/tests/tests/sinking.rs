//! Pieces sink from memory to the SSD: the next burst finds memory, what is mapped stays, what was
//! acknowledged is there whenever daemons are killed, and the contents are what they were.

mod support;

use std::collections::BTreeMap;
use std::process::Stdio;
use std::time::Instant;
use support::{Instance, Random, Worker, setting, text, wait_for};
use tests::{content, digest};

const MIB: u64 = 1 << 20;

/// Bytes that sank, and bytes of the SSD that are in use.
fn sunk_and_used(instance: &Instance) -> (u64, u64) {
    let state = &instance.status()["daemons"][0]["state"];
    let figure = |name: &str| state[name].as_u64().unwrap_or_else(|| panic!("{name} of {state}"));
    (figure("bytes_sunk"), figure("ssd_total") - figure("ssd_free"))
}

/// "Memory has room again for who writes next" (docs/semantics.md): told by where the bytes went, not by
/// the time that it took. Bytes of the SSD are those that sank, so nothing was written there directly.
#[test]
fn the_second_burst_goes_to_memory() {
    let options = ["--memory", "32MiB", "--ssd", "256MiB", "--room", "95", "--idle", "20ms"];
    let instance = Instance::start("burst", &options);
    let mut worker = instance.worker();
    let burst = 24 * MIB;
    for round in 0..4 {
        assert_eq!(worker.ask(&format!("put /forebay/f{round} {round} {burst}")), "ok");
        let written = burst * (round + 1);
        // The two figures are of different moments while pieces move.
        wait_for("all to have sunk and nothing else to be on the SSD", || {
            let (sunk, used) = sunk_and_used(&instance);
            sunk >= written - 2 * MIB && used == sunk
        });
    }
    for round in 0..4 {
        let right = format!("ok {burst} {}", digest(&content(round, 0, burst)));
        assert_eq!(worker.ask(&format!("get /forebay/f{round}")), right);
    }
    // Both tiers are the files'.
    assert!(instance.used() >= 4 * burst);
    for round in 0..4 {
        assert_eq!(worker.ask(&format!("unlink /forebay/f{round}")), "ok");
    }
    wait_for("all space back", || instance.used() == 0);
}

/// `--move-rate` holds for what is idle; who finds memory full does not wait for it.
#[test]
fn what_sinks_keeps_to_the_rate() {
    let tiers = ["--memory", "32MiB", "--ssd", "256MiB", "--room", "95", "--idle", "1ms"];
    let instance = Instance::start("slowly", &[&tiers[..], &["--move-rate", "8MiB"]].concat());
    let mut worker = instance.worker();
    let begun = Instant::now();
    assert_eq!(worker.ask(&format!("put /forebay/f 1 {}", 64 * MIB)), "ok");
    let mut sunk = 0;
    wait_for("it to sink", || {
        sunk = instance.figure("bytes_sunk");
        sunk >= 20 * MIB
    });
    // A part of 4 MiB may be begun before it is paid for, and a tenth of a second is saved up.
    let may = 5 * MIB + (begun.elapsed().as_secs_f64() * (8 * MIB) as f64) as u64;
    assert!(sunk <= may, "{sunk} bytes sank where {may} may");
    let right = format!("ok {} {}", 64 * MIB, digest(&content(1, 0, 64 * MIB)));
    assert_eq!(worker.ask("get /forebay/f"), right);
}

#[test]
fn without_room_asked_for_nothing_sinks() {
    for options in [["--ssd", "256MiB", "--room", "0"], ["--ssd", "0", "--room", "100"]] {
        let instance = Instance::start(
            "still",
            &[&["--memory", "32MiB", "--idle", "1ms"], &options[..]].concat(),
        );
        let mut worker = instance.worker();
        assert_eq!(worker.ask(&format!("put /forebay/f 1 {}", 30 * MIB)), "ok");
        let right = format!("ok {} {}", 30 * MIB, digest(&content(1, 0, 30 * MIB)));
        assert_eq!(worker.ask("get /forebay/f"), right);
        assert_eq!(instance.figure("bytes_sunk"), 0);
    }
}

/// Keeps a file mapped until it is told to go on; stores into it and looks at it by both ways.
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
assert os.pread(fd, 8 << 20, 0) == (b'b' + b'a' * 4095) * 2048, 'read differs from what was mapped'
os.close(fd)
"#;

/// "What a program has mapped stays where it is" (docs/semantics.md).
#[test]
fn what_is_mapped_sinks_when_it_is_mapped_no_more() {
    let options = ["--memory", "32MiB", "--ssd", "256MiB", "--room", "100", "--idle", "1ms"];
    let instance = Instance::start("mapped", &options);
    let mut program = instance.program(&["python3", "-c", MAPPER]);
    let mut program =
        program.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it runs");
    let mut said = [0; 7];
    let mut output = program.stdout.take().expect("a pipe");
    std::io::Read::read_exact(&mut output, &mut said).expect("a line");
    // A piece that nobody had mapped yet may have moved.
    let before = instance.figure("bytes_sunk");
    let mut worker = instance.worker();
    assert_eq!(worker.ask(&format!("put /forebay/other 7 {}", 8 * MIB)), "ok");
    wait_for("sinking", || instance.figure("bytes_sunk") >= before + 8 * MIB);
    assert_eq!(instance.figure("bytes_sunk"), before + 8 * MIB, "what is mapped sank");
    drop(program.stdin.take());
    let end = program.wait_with_output().expect("it ends");
    assert!(end.status.success(), "{}", text(&end.stderr));
    wait_for("sinking", || instance.figure("bytes_sunk") >= 16 * MIB);
    let mut right = vec![b'a'; 8 << 20];
    right.iter_mut().step_by(4096).for_each(|byte| *byte = b'b');
    let answer = worker.ask("get /forebay/mapped");
    assert_eq!(answer, format!("ok {} {}", 8 * MIB, digest(&right)));
}

/// Files of four times the memory; programs write, read and cut them while they move, and the daemon is
/// killed at any moment of that.
/// Pieces sink still: all that was there may have sunk before the kill, so `f0` is written anew.
fn sinks_another(instance: &Instance, worker: &mut Worker, contents: u64) -> (u64, u64) {
    assert_eq!(worker.ask(&format!("put /forebay/f0 {contents} {MIB}")), "ok");
    wait_for("sinking", || instance.figure("bytes_sunk") > 0);
    (contents, MIB)
}

#[test]
fn a_daemon_that_dies_while_pieces_move_loses_nothing() {
    let options = [
        "--memory",
        "16MiB",
        "--ssd",
        "256MiB",
        "--room",
        "100",
        "--reserve",
        "100",
        "--idle",
        "1ms",
    ];
    let instance = Instance::start("sinkdie", &options);
    let seed = setting("TEST_SEED", 1);
    let mut random = Random::new(seed);
    let mut known: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
    let mut worker = instance.worker();
    for round in 0..setting("TEST_ROUNDS", 24) {
        let victim = instance.daemon(0);
        let moves_at_most = instance.figure("bytes_sunk") + random.below(8 * MIB);
        let mut told = Vec::new();
        for _ in 0..12 {
            let (file, contents) = (random.below(24), random.next() % 100_000);
            let length = random.below(5 * MIB) >> random.below(6);
            if known.contains_key(&file) && random.below(3) == 0 {
                let (contents, length) = known[&file];
                worker.tell(&format!("get /forebay/f{file}"));
                told.push(Some((file, contents, length)));
                continue;
            }
            worker.tell(&format!("put /forebay/f{file} {contents} {length}"));
            known.insert(file, (contents, length));
            told.push(None);
        }
        // Somewhere in the midst of it, by what moved or by chance.
        if round % 2 == 0 {
            (0..random.below(2_000_000)).for_each(|_| std::hint::spin_loop());
        } else {
            let much = || instance.figure("bytes_sunk") >= moves_at_most;
            (0..20).find(|_| much());
        }
        victim.kill();
        victim.wait();
        instance.start_again();
        for one in told {
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
            known.insert(0, sinks_another(&instance, &mut worker, round));
        }
    }
    for file in known.keys() {
        assert_eq!(worker.ask(&format!("unlink /forebay/f{file}")), "ok");
    }
    drop(worker);
    wait_for("all space back", || instance.used() == 0);
}

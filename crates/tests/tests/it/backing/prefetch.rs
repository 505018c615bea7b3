//! Files of the backing directory are prefetched before they are read: by `forebay stage in`, the
//! extended attribute, ordered lists, and sequential reads. Tests detect it by replacing the bytes
//! in the backing directory.

use crate::support::backing::replace_unnoticed;
use crate::support::{Instance, profile, text, wait_for};
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};
use testkit::{content, digest};

const MIB: u64 = 1 << 20;

struct Backing {
    dir: tempfile::TempDir,
}

impl Backing {
    /// `count` files `d/0`, `d/1` .. of `length` bytes each.
    fn new(count: u64, length: u64) -> Backing {
        let backing = Backing { dir: tempfile::tempdir().expect("a directory") };
        fs::create_dir(backing.path("d")).expect("made");
        for file in 0..count {
            fs::write(backing.path(&format!("d/{file}")), content(file, 0, length))
                .expect("written");
        }
        backing
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn start(&self, name: &str, options: &[&str]) -> Instance {
        let dir = self.dir.path().to_str().expect("a path of letters");
        Instance::start(name, &[&["--backing", dir], options].concat())
    }

    /// Replaces the contents of the backing files unnoticed: a read from the backing store returns
    /// other bytes.
    fn replace_unnoticed(&self, count: u64) {
        for file in 0..count {
            replace_unnoticed(&self.path(&format!("d/{file}")));
        }
    }
}

/// Bytes of files `d/0`, `d/1` .. that are in the instance.
fn bytes_present(instance: &Instance, count: u64, length: u64) -> u64 {
    let script = format!(
        "import os\n\
         left = [os.getxattr(f'/forebay/d/{{n}}', 'user.forebay.prefetch') for n in range({count})]\n\
         print({count} * {length} - sum(map(int, left)))"
    );
    let output = instance.program(&["python3", "-c", &script]).output().expect("it runs");
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout).trim().parse().expect("a number")
}

fn right(seed: u64, length: u64) -> String {
    format!("ok {length} {}", digest(&content(seed, 0, length)))
}

fn staging(instance: &Instance, word: &str, words: &[&str]) -> Command {
    let mut command = Command::new(profile().join("forebay"));
    command
        .args(["stage", word, "--name", &*instance.name])
        .args(words)
        .env("XDG_RUNTIME_DIR", instance.dir.path())
        .env("FOREBAY_DIR", instance.dir.path());
    command
}

fn evicting(instance: &Instance, path: &str) -> Command {
    let mut command = instance.command("evict");
    command.arg(path);
    command
}

fn stage(instance: &Instance, words: &[&str]) -> Output {
    staging(instance, "in", words).output().expect("forebay runs")
}

fn printed(output: &Output) -> String {
    let both = format!("{}{}", text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{both}");
    both
}

/// "`forebay stage in --wait` returns when the files are in the instance"
/// (docs/semantics/staging-and-prefetch.md).
#[test]
fn staged_files_are_read_without_the_backing_store() {
    for (daemons, tier) in [("1", "memory"), ("1", "ssd"), ("4", "memory")] {
        let backing = Backing::new(6, 5 * MIB + 7);
        let options = ["--local", daemons, "--memory", "96MiB", "--ssd", "96MiB"];
        let instance = backing.start(&format!("staged{daemons}{tier}"), &options);
        let dir = backing.path("d/0");
        let by_its_backing_name = dir.to_str().expect("letters");
        let first = printed(&stage(&instance, &["--wait", "--tier", tier, by_its_backing_name]));
        assert!(first.contains("prefetched 1 file, 5.0 MiB"), "{first}");
        let rest = printed(&stage(&instance, &["--wait", "--tier", tier, "/forebay/d"]));
        assert!(rest.contains("prefetched 5 files") && rest.contains("1 already there"), "{rest}");
        backing.replace_unnoticed(6);
        let mut worker = instance.worker();
        for file in 0..6 {
            assert_eq!(worker.ask(&format!("get /forebay/d/{file}")), right(file, 5 * MIB + 7));
        }
    }
}

/// `--backing-rate` limits staging and writeback, and not reads of programs.
#[test]
fn staging_and_writeback_respect_the_rate() {
    let backing = Backing::new(4, 5 * MIB);
    let options = ["--local", "2", "--memory", "64MiB", "--ssd", "0", "--backing-rate", "8MiB"];
    let instance = backing.start("rates", &options);
    let mut worker = instance.worker();
    // The rate limiter allows two parts of 4 MiB in advance and a burst of a tenth of a second.
    let least = |bytes: u64| Duration::from_secs_f64((bytes - 9 * MIB) as f64 / (8 * MIB) as f64);
    let begun = Instant::now();
    printed(&stage(&instance, &["--wait", "/forebay/d"]));
    assert!(begun.elapsed() >= least(20 * MIB));
    for file in 0..4 {
        assert_eq!(worker.ask(&format!("get /forebay/d/{file}")), right(file, 5 * MIB));
    }
    let begun = Instant::now();
    assert_eq!(worker.ask(&format!("put /forebay/new 9 {}", 20 * MIB)), "ok");
    assert!(instance.command("flush").status().expect("forebay runs").success());
    assert!(begun.elapsed() >= least(20 * MIB));
    assert_eq!(fs::read(backing.path("new")).expect("saved"), content(9, 0, 20 * MIB));
}

/// A restarted daemon gets its prefetch requests again.
#[test]
fn staging_in_continues_when_a_killed_daemon_restarts() {
    let backing = Backing::new(48, 4 * MIB);
    for round in 0..3 {
        let instance = backing.start(&format!("stagedie{round}"), &["--memory", "512MiB"]);
        let mut staging = staging(&instance, "in", &["--wait", "/forebay/d"]);
        let staging = staging.stdout(Stdio::null()).spawn().expect("it starts");
        wait_for("the first bytes", || bytes_present(&instance, 48, 4 * MIB) > round * 16 * MIB);
        let daemon = instance.daemon(0);
        daemon.kill();
        daemon.wait();
        instance.start_again();
        assert!(staging.wait_with_output().expect("it ends").status.success(), "round {round}");
        assert_eq!(bytes_present(&instance, 48, 4 * MIB), 48 * 4 * MIB, "round {round}");
        let mut worker = instance.worker();
        for file in 0..48 {
            assert_eq!(worker.ask(&format!("get /forebay/d/{file}")), right(file, 4 * MIB));
        }
    }
}

/// Any program can request the prefetch of a file by its extended attribute.
#[test]
fn an_extended_attribute_prefetches_a_file() {
    let backing = Backing::new(2, 3 * MIB);
    let instance = backing.start("touch", &["--memory", "64MiB"]);
    let script = "import os, sys, time\n\
        f, name = '/forebay/d/1', 'user.forebay.prefetch'\n\
        assert os.getxattr(f, name) == b'3145728', os.getxattr(f, name)\n\
        assert name not in os.listxattr(f)\n\
        os.setxattr(f, name, b'memory')\n\
        while os.getxattr(f, name) != b'0': time.sleep(0.01)\n\
        for wrong in b'', b'disk', b'memory 1', b'memory 0 0 1':\n\
        \x20   try: os.setxattr(f, name, wrong)\n\
        \x20   except OSError as e: assert e.errno == 22\n\
        \x20   else: sys.exit(1)\n";
    printed(&instance.program(&["python3", "-c", script]).output().expect("it runs"));
    backing.replace_unnoticed(2);
    assert_eq!(instance.worker().ask("get /forebay/d/1"), right(1, 3 * MIB));
    // A file that cannot be read there is reported once, and the rest continues.
    fs::rename(backing.path("d"), backing.path("away")).expect("renamed");
    let output = stage(&instance, &["--wait", "/forebay/d"]);
    let both = format!("{}{}", text(&output.stdout), text(&output.stderr));
    assert!(!output.status.success() && both.contains("d/0 cannot be prefetched"), "{both}");
}

/// "An ordered list stays ahead of its readers by a quarter of each daemon's memory at most"
/// (docs/semantics/staging-and-prefetch.md).
#[test]
fn an_ordered_list_stays_ahead_of_its_reader_by_a_bounded_amount() {
    let backing = Backing::new(10, 4 * MIB);
    let instance = backing.start("listed", &["--memory", "64MiB", "--ssd", "0"]);
    let names: String = (0..10).map(|file| format!("d/{file}\n")).collect();
    let list = backing.path("list");
    fs::write(&list, names).expect("written");
    let list = list.to_str().expect("letters");
    let reported = printed(&stage(&instance, &["--order", "--list", list, "/forebay"]));
    assert!(reported.contains("10 files"), "{reported}");
    let used = || bytes_present(&instance, 10, 4 * MIB) / MIB;
    // A quarter of the memory may be ahead of the reader, and extents have 2 MiB at most: one of
    // them exceeds it if a part of the first file arrived before the daemon heard of the second
    // file.
    wait_for("the prefetch limit", || used() >= 14);
    let mut worker = instance.worker();
    for file in 0..10 {
        // The bytes read and the bytes ahead; the last extent ahead may exceed the limit by half.
        assert!(used() <= 4 * file + 20, "file {file}: {} MiB", used());
        assert_eq!(worker.ask(&format!("get /forebay/d/{file}")), right(file, 4 * MIB));
    }
}

/// "Sequential reads of a backing file are prefetched"
/// (docs/semantics/staging-and-prefetch.md).
#[test]
fn sequential_reads_of_a_backing_file_are_prefetched() {
    let backing = Backing::new(1, 48 * MIB);
    for daemons in ["1"] {
        let options = ["--local", daemons, "--memory", "128MiB"];
        let instance = backing.start(&format!("next{daemons}"), &options);
        let mut worker = instance.worker();
        assert_eq!(worker.ask("open 1 /forebay/d/0 r"), "ok");
        for step in 0..2 {
            worker.ask(&format!("read 1 {} {}", step * MIB, MIB));
        }
        wait_for("the first window", || bytes_present(&instance, 1, 48 * MIB) >= 8 * MIB);
        for step in 2..22 {
            worker.ask(&format!("read 1 {} {}", step * MIB, MIB));
        }
        wait_for("a longer window", || bytes_present(&instance, 1, 48 * MIB) >= 32 * MIB);
        assert_eq!(worker.ask("close 1"), "ok");
        assert_eq!(worker.ask("get /forebay/d/0"), right(0, 48 * MIB));
    }
}

/// "Evicted files are read from the backing store again, and data that exists nowhere else stays"
/// (docs/semantics/staging-and-prefetch.md).
#[test]
fn evicted_files_are_read_again_and_changes_stay() {
    for daemons in ["1", "4"] {
        let backing = Backing::new(6, 5 * MIB + 7);
        let options = ["--local", daemons, "--memory", "96MiB", "--ssd", "0"];
        let instance = backing.start(&format!("given{daemons}"), &options);
        printed(&stage(&instance, &["--wait", "/forebay/d"]));
        assert_eq!(bytes_present(&instance, 6, 5 * MIB + 7), 6 * (5 * MIB + 7));
        // The file is open, so it is not written back.
        let mut worker = instance.worker();
        assert_eq!(worker.ask("open 1 /forebay/d/5 w"), "ok");
        assert_eq!(worker.ask("write 1 77 0 1000"), "ok");
        let dir = backing.path("d");
        let drop = |path: &str| printed(&evicting(&instance, path).output().expect("forebay runs"));
        let reported = drop(dir.to_str().expect("letters"));
        assert!(
            reported.contains("evicted 6 files") && reported.contains("of 1 file retained"),
            "{reported}"
        );
        let left = bytes_present(&instance, 6, 5 * MIB + 7);
        assert!((1000..5 * MIB).contains(&left), "{left} bytes");
        let mut changed = content(5, 0, 5 * MIB + 7);
        changed[..1000].copy_from_slice(&content(77, 0, 1000));
        let answer = worker.ask("get /forebay/d/5");
        assert_eq!(answer, format!("ok {} {}", changed.len(), digest(&changed)));
        for file in 0..5 {
            assert_eq!(worker.ask(&format!("get /forebay/d/{file}")), right(file, 5 * MIB + 7));
        }
        let reported = drop("/forebay/d/1");
        assert!(
            reported.contains("evicted 1 file, 5.0 MiB") && !reported.contains("retained"),
            "{reported}"
        );
        assert_eq!(worker.ask("close 1"), "ok");
    }
}

/// Eviction drops a file that was created here as soon as it is written back, however much space
/// there is.
#[test]
fn evicted_new_files_are_dropped_once_written_back() {
    for daemons in ["1", "4"] {
        let backing = Backing::new(1, 10);
        let options = ["--local", daemons, "--memory", "96MiB", "--ssd", "0"];
        let instance = backing.start(&format!("madegiven{daemons}"), &options);
        let mut worker = instance.worker();
        for number in 0..5 {
            assert_eq!(worker.ask(&format!("put /forebay/f{number} {number} {}", 8 * MIB)), "ok");
        }
        printed(&instance.command("flush").output().expect("forebay runs"));
        // The file is open, so it is not written back.
        assert_eq!(worker.ask("open 1 /forebay/f0 w"), "ok");
        assert_eq!(worker.ask("write 1 77 0 1000"), "ok");
        let drop = || printed(&evicting(&instance, "/forebay").output().expect("forebay runs"));
        let reported = drop();
        assert!(reported.contains("of 1 file retained"), "{reported}");
        let used = || {
            let status = instance.status();
            let daemons = status["daemons"].as_array().expect("daemons").clone();
            let of = |daemon: &serde_json::Value| daemon["state"]["memory_used"].as_u64();
            daemons.iter().map(|daemon| of(daemon).expect("bytes")).sum::<u64>()
        };
        wait_for("the counter to follow", || (1000..=8 * MIB).contains(&used()));
        assert_eq!(worker.ask("close 1"), "ok");
        printed(&instance.command("flush").output().expect("forebay runs"));
        let reported = drop();
        assert!(!reported.contains("retained"), "{reported}");
        wait_for("the counter to follow", || used() == 0);
        for number in 1..5 {
            assert_eq!(worker.ask(&format!("get /forebay/f{number}")), right(number, 8 * MIB));
        }
        let mut changed = content(0, 0, 8 * MIB);
        changed[..1000].copy_from_slice(&content(77, 0, 1000));
        let answer = worker.ask("get /forebay/f0");
        assert_eq!(answer, format!("ok {} {}", changed.len(), digest(&changed)));
    }
}

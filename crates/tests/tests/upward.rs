//! What lies in the backing directory comes up before it is read: `forebay stage in`, the attribute,
//! lists that are read in their order, and files that are read in order. Told by what is read when
//! other bytes lie below.

mod support;

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};
use support::below::disguise;
use support::{Instance, profile, text, wait_for};
use tests::{content, digest};

const MIB: u64 = 1 << 20;

struct Below {
    place: tempfile::TempDir,
}

impl Below {
    /// `count` files `d/0`, `d/1` .. of so many bytes.
    fn new(count: u64, length: u64) -> Below {
        let below = Below { place: tempfile::tempdir().expect("a directory") };
        fs::create_dir(below.path("d")).expect("made");
        for file in 0..count {
            fs::write(below.path(&format!("d/{file}")), content(file, 0, length)).expect("written");
        }
        below
    }

    fn path(&self, name: &str) -> PathBuf {
        self.place.path().join(name)
    }

    fn start(&self, name: &str, options: &[&str]) -> Instance {
        let place = self.place.path().to_str().expect("a path of letters");
        Instance::start(name, &[&["--backing", place], options].concat())
    }

    /// Who reads there reads other bytes from now on, and nobody notices.
    fn disguise(&self, count: u64) {
        for file in 0..count {
            disguise(&self.path(&format!("d/{file}")));
        }
    }
}

/// Bytes of files `d/0`, `d/1` .. that are in the instance.
fn here(instance: &Instance, count: u64, length: u64) -> u64 {
    let script = format!(
        "import os\n\
         left = [os.getxattr(f'/forebay/d/{{n}}', 'user.forebay.rise') for n in range({count})]\n\
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
        .env("XDG_RUNTIME_DIR", instance.place.path())
        .env("FOREBAY_DIR", instance.place.path());
    command
}

fn stage(instance: &Instance, words: &[&str]) -> Output {
    staging(instance, "in", words).output().expect("forebay runs")
}

fn said(output: &Output) -> String {
    let both = format!("{}{}", text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{both}");
    both
}

/// "What is staged in by `--wait` is in the instance when the command returns" (docs/semantics.md).
#[test]
fn what_is_staged_in_is_read_without_reading_below() {
    for (daemons, tier) in [("1", "memory"), ("1", "ssd"), ("4", "memory")] {
        let below = Below::new(6, 5 * MIB + 7);
        let options = ["--local", daemons, "--memory", "96MiB", "--ssd", "96MiB"];
        let instance = below.start(&format!("staged{daemons}{tier}"), &options);
        let place = below.path("d/0");
        let by_its_name_below = place.to_str().expect("letters");
        let first = said(&stage(&instance, &["--wait", "--tier", tier, by_its_name_below]));
        assert!(first.contains("brought up 1 files, 5.0 MiB"), "{first}");
        let rest = said(&stage(&instance, &["--wait", "--tier", tier, "/forebay/d"]));
        assert!(rest.contains("brought up 5 files") && rest.contains("1 were there"), "{rest}");
        below.disguise(6);
        let mut worker = instance.worker();
        for file in 0..6 {
            assert_eq!(worker.ask(&format!("get /forebay/d/{file}")), right(file, 5 * MIB + 7));
        }
    }
}

/// `--backing-rate` holds for what is staged and for what is saved, and not for what a program reads.
#[test]
fn what_is_staged_and_saved_keeps_to_the_rate() {
    let below = Below::new(4, 5 * MIB);
    let options = ["--local", "2", "--memory", "64MiB", "--ssd", "0", "--backing-rate", "8MiB"];
    let instance = below.start("rates", &options);
    let mut worker = instance.worker();
    // Two parts of 4 MiB may be begun before they are paid for, and a tenth of a second is saved up.
    let least = |bytes: u64| Duration::from_secs_f64((bytes - 9 * MIB) as f64 / (8 * MIB) as f64);
    let begun = Instant::now();
    said(&stage(&instance, &["--wait", "/forebay/d"]));
    assert!(begun.elapsed() >= least(20 * MIB));
    for file in 0..4 {
        assert_eq!(worker.ask(&format!("get /forebay/d/{file}")), right(file, 5 * MIB));
    }
    let begun = Instant::now();
    assert_eq!(worker.ask(&format!("put /forebay/new 9 {}", 20 * MIB)), "ok");
    assert!(instance.command("flush").status().expect("forebay runs").success());
    assert!(begun.elapsed() >= least(20 * MIB));
    assert_eq!(fs::read(below.path("new")).expect("saved"), content(9, 0, 20 * MIB));
}

/// A killed daemon is told again.
#[test]
fn staging_in_goes_on_when_a_daemon_is_back() {
    let below = Below::new(48, 4 * MIB);
    for round in 0..3 {
        let instance = below.start(&format!("stagedie{round}"), &["--memory", "512MiB"]);
        let mut staging = staging(&instance, "in", &["--wait", "/forebay/d"]);
        let staging = staging.stdout(Stdio::null()).spawn().expect("it starts");
        wait_for("the first bytes", || here(&instance, 48, 4 * MIB) > round * 16 * MIB);
        let daemon = instance.daemon(0);
        daemon.kill();
        daemon.wait();
        instance.start_again();
        assert!(staging.wait_with_output().expect("it ends").status.success(), "round {round}");
        assert_eq!(here(&instance, 48, 4 * MIB), 48 * 4 * MIB, "round {round}");
        let mut worker = instance.worker();
        for file in 0..48 {
            assert_eq!(worker.ask(&format!("get /forebay/d/{file}")), right(file, 4 * MIB));
        }
    }
}

/// Any program can wish for a file by its attribute.
#[test]
fn a_program_that_only_touches_files_has_one_come_up() {
    let below = Below::new(2, 3 * MIB);
    let instance = below.start("touch", &["--memory", "64MiB"]);
    let script = "import os, sys, time\n\
        f, name = '/forebay/d/1', 'user.forebay.rise'\n\
        assert os.getxattr(f, name) == b'3145728', os.getxattr(f, name)\n\
        assert name not in os.listxattr(f)\n\
        os.setxattr(f, name, b'memory')\n\
        while os.getxattr(f, name) != b'0': time.sleep(0.01)\n\
        for wrong in b'', b'disk', b'memory 1', b'memory 0 0 1':\n\
        \x20   try: os.setxattr(f, name, wrong)\n\
        \x20   except OSError as e: assert e.errno == 22\n\
        \x20   else: sys.exit(1)\n";
    said(&instance.program(&["python3", "-c", script]).output().expect("it runs"));
    below.disguise(2);
    assert_eq!(instance.worker().ask("get /forebay/d/1"), right(1, 3 * MIB));
    // What can not be read there says so, once, and goes on.
    fs::rename(below.path("d"), below.path("away")).expect("renamed");
    let output = stage(&instance, &["--wait", "/forebay/d"]);
    let both = format!("{}{}", text(&output.stdout), text(&output.stderr));
    assert!(!output.status.success() && both.contains("d/0 can not be brought up"), "{both}");
}

/// "Of an ordered list a quarter of each daemon's memory is ahead of who reads it, and no more"
/// (docs/semantics.md).
#[test]
fn a_list_stays_ahead_of_its_reader_and_no_further() {
    let below = Below::new(10, 4 * MIB);
    let instance = below.start("listed", &["--memory", "64MiB", "--ssd", "0"]);
    let names: String = (0..10).map(|file| format!("d/{file}\n")).collect();
    let list = below.path("list");
    fs::write(&list, names).expect("written");
    let list = list.to_str().expect("letters");
    let told = said(&stage(&instance, &["--order", "--list", list, "/forebay"]));
    assert!(told.contains("10 files"), "{told}");
    let used = || here(&instance, 10, 4 * MIB) / MIB;
    // A quarter of the memory may be ahead of the reader, and pieces have 2 MiB at most: one of these is
    // beyond if a part of the first file came, too, before the second one was told.
    wait_for("what may be ahead", || used() >= 14);
    let mut worker = instance.worker();
    for file in 0..10 {
        // What was read, and what is ahead, of which the last piece may be half in and half beyond.
        assert!(used() <= 4 * file + 20, "file {file}: {} MiB", used());
        assert_eq!(worker.ask(&format!("get /forebay/d/{file}")), right(file, 4 * MIB));
    }
}

/// "Who reads a file from the backing directory in order finds what is next on its way"
/// (docs/semantics.md).
#[test]
fn what_is_next_of_a_file_comes_ahead_of_its_reader() {
    let below = Below::new(1, 48 * MIB);
    for daemons in ["1"] {
        let options = ["--local", daemons, "--memory", "128MiB"];
        let instance = below.start(&format!("next{daemons}"), &options);
        let mut worker = instance.worker();
        assert_eq!(worker.ask("open 1 /forebay/d/0 r"), "ok");
        for step in 0..2 {
            worker.ask(&format!("read 1 {} {}", step * MIB, MIB));
        }
        wait_for("the first window", || here(&instance, 1, 48 * MIB) >= 8 * MIB);
        for step in 2..22 {
            worker.ask(&format!("read 1 {} {}", step * MIB, MIB));
        }
        wait_for("a longer window", || here(&instance, 1, 48 * MIB) >= 32 * MIB);
        assert_eq!(worker.ask("close 1"), "ok");
        assert_eq!(worker.ask("get /forebay/d/0"), right(0, 48 * MIB));
    }
}

/// "What is given up is read from below again, and what lies nowhere else stays" (docs/semantics.md).
#[test]
fn what_is_given_up_is_read_from_below_again_and_changes_stay() {
    for daemons in ["1", "4"] {
        let below = Below::new(6, 5 * MIB + 7);
        let options = ["--local", daemons, "--memory", "96MiB", "--ssd", "0"];
        let instance = below.start(&format!("given{daemons}"), &options);
        said(&stage(&instance, &["--wait", "/forebay/d"]));
        assert_eq!(here(&instance, 6, 5 * MIB + 7), 6 * (5 * MIB + 7));
        // Somebody has it open, so it is not saved.
        let mut worker = instance.worker();
        assert_eq!(worker.ask("open 1 /forebay/d/5 w"), "ok");
        assert_eq!(worker.ask("write 1 77 0 1000"), "ok");
        let place = below.path("d");
        let drop =
            |path: &str| said(&staging(&instance, "drop", &[path]).output().expect("forebay runs"));
        let told = drop(place.to_str().expect("letters"));
        assert!(told.contains("given up 6 files") && told.contains("of 1 files stay"), "{told}");
        let left = here(&instance, 6, 5 * MIB + 7);
        assert!((1000..5 * MIB).contains(&left), "{left} bytes");
        let mut changed = content(5, 0, 5 * MIB + 7);
        changed[..1000].copy_from_slice(&content(77, 0, 1000));
        let answer = worker.ask("get /forebay/d/5");
        assert_eq!(answer, format!("ok {} {}", changed.len(), digest(&changed)));
        for file in 0..5 {
            assert_eq!(worker.ask(&format!("get /forebay/d/{file}")), right(file, 5 * MIB + 7));
        }
        let told = drop("/forebay/d/1");
        assert!(told.contains("given up 1 files, 5.0 MiB") && !told.contains("stay"), "{told}");
        assert_eq!(worker.ask("close 1"), "ok");
    }
}

/// What was made here is given up as soon as it is saved, however much room there is.
#[test]
fn what_was_made_here_is_given_up_once_it_is_saved() {
    for daemons in ["1", "4"] {
        let below = Below::new(1, 10);
        let options = ["--local", daemons, "--memory", "96MiB", "--ssd", "0"];
        let instance = below.start(&format!("madegiven{daemons}"), &options);
        let mut worker = instance.worker();
        for number in 0..5 {
            assert_eq!(worker.ask(&format!("put /forebay/f{number} {number} {}", 8 * MIB)), "ok");
        }
        said(&instance.command("flush").output().expect("forebay runs"));
        // Somebody has it open, so it is not saved.
        assert_eq!(worker.ask("open 1 /forebay/f0 w"), "ok");
        assert_eq!(worker.ask("write 1 77 0 1000"), "ok");
        let drop =
            || said(&staging(&instance, "drop", &["/forebay"]).output().expect("forebay runs"));
        let told = drop();
        assert!(told.contains("of 1 files stay"), "{told}");
        let used = || {
            let status = instance.status();
            let daemons = status["daemons"].as_array().expect("daemons").clone();
            let of = |daemon: &serde_json::Value| daemon["state"]["memory_used"].as_u64();
            daemons.iter().map(|daemon| of(daemon).expect("bytes")).sum::<u64>()
        };
        wait_for("the figure to follow", || (1000..=8 * MIB).contains(&used()));
        assert_eq!(worker.ask("close 1"), "ok");
        said(&instance.command("flush").output().expect("forebay runs"));
        let told = drop();
        assert!(!told.contains("stay"), "{told}");
        wait_for("the figure to follow", || used() == 0);
        for number in 1..5 {
            assert_eq!(worker.ask(&format!("get /forebay/f{number}")), right(number, 8 * MIB));
        }
        let mut changed = content(0, 0, 8 * MIB);
        changed[..1000].copy_from_slice(&content(77, 0, 1000));
        let answer = worker.ask("get /forebay/f0");
        assert_eq!(answer, format!("ok {} {}", changed.len(), digest(&changed)));
    }
}

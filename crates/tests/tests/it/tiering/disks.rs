//! A directory on each disk of a host (`--dir A:B`): its daemons use them in turn, each writes to
//! its own, and data beyond memory is on all of them.

use crate::support::{Instance, text, wait_for};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use testkit::{content, digest};

const MIB: u64 = 1 << 20;

struct Disks {
    dir: tempfile::TempDir,
}

impl Disks {
    fn new() -> Disks {
        let disks = Disks { dir: tempfile::tempdir().expect("a directory") };
        for name in ["a", "b"] {
            std::fs::create_dir(disks.path(name)).expect("a directory");
        }
        disks
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn text(&self) -> String {
        format!("{}:{}", self.path("a").display(), self.path("b").display())
    }
}

/// The daemons whose data is in a directory, and the bytes of each on the disk.
fn there(directory: &Path) -> Vec<(String, u64)> {
    let own = std::fs::read_dir(directory).expect("a directory").flatten().next();
    let own = own.expect("the instance's directory").path();
    let daemons = std::fs::read_dir(own).expect("a directory").flatten();
    let mut all: Vec<_> = daemons
        .map(|daemon| {
            let ssd = std::fs::metadata(daemon.path().join("ssd")).map_or(0, |it| it.blocks());
            (daemon.file_name().to_string_lossy().into_owned(), ssd * 512)
        })
        .collect();
    all.sort();
    all
}

fn names(directory: &Path) -> Vec<String> {
    there(directory).into_iter().map(|(name, _)| name).collect()
}

/// Files larger than all memory are spread over the disks; after a kill everything is there, and
/// after the end nothing.
#[test]
fn files_are_spread_over_all_disks() {
    let disks = Disks::new();
    let tiers = [
        "--memory",
        "16MiB",
        "--ssd",
        "128MiB",
        "--demote-low-watermark",
        "95",
        "--demote-idle-age",
        "20ms",
    ];
    let dirs = disks.text();
    let options = [&["--local", "3", "--dir", &dirs], &tiers[..]].concat();
    let instance = Instance::start("disks", &options);
    assert_eq!(names(&disks.path("a")), ["d0", "d2"]);
    assert_eq!(names(&disks.path("b")), ["d1"]);
    let mut worker = instance.worker();
    assert_eq!(worker.ask(&format!("put /forebay/f 7 {}", 160 * MIB)), "ok");
    let all = || [there(&disks.path("a")), there(&disks.path("b"))].concat();
    wait_for("each disk to have data", || all().iter().all(|(_, bytes)| *bytes > 16 * MIB));
    let daemon = instance.daemon(1);
    daemon.kill();
    daemon.wait();
    instance.start_again();
    let right = format!("ok {} {}", 160 * MIB, digest(&content(7, 0, 160 * MIB)));
    assert_eq!(worker.ask("get /forebay/f"), right);
    assert_eq!(names(&disks.path("b")), ["d1"], "started where it was");
    // These directories differ from those in use.
    let mut other = instance.command("start");
    let output = other.args(["--dir", &disks.path("a").to_string_lossy()]).output();
    let output = output.expect("forebay runs");
    let printed = text(&output.stderr);
    assert!(!output.status.success() && printed.contains("runs with dir="), "{printed}");
    drop(worker);
    drop(instance);
    for name in ["a", "b"] {
        let left = std::fs::read_dir(disks.path(name)).expect("a directory").count();
        assert_eq!(left, 0, "left in {name}");
    }
}

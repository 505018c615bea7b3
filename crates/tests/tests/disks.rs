//! A directory on each disk of a host (`--dir A:B`): its daemons take them in turn, each writes to its
//! own, and what is larger than memory lies on all of them.

mod support;

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use support::{Instance, text, wait_for};
use tests::{content, digest};

const MIB: u64 = 1 << 20;

struct Disks {
    place: tempfile::TempDir,
}

impl Disks {
    fn new() -> Disks {
        let disks = Disks { place: tempfile::tempdir().expect("a directory") };
        for name in ["a", "b"] {
            std::fs::create_dir(disks.path(name)).expect("a directory");
        }
        disks
    }

    fn path(&self, name: &str) -> PathBuf {
        self.place.path().join(name)
    }

    fn text(&self) -> String {
        format!("{}:{}", self.path("a").display(), self.path("b").display())
    }
}

/// The daemons whose data are in a directory, and how much each has on the disk.
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

/// Files of more than all memory, of which each disk gets its part; after a kill all is there, and after
/// the end nothing.
#[test]
fn files_lie_on_all_disks() {
    let disks = Disks::new();
    let tiers = ["--memory", "16MiB", "--ssd", "128MiB", "--room", "95", "--idle", "20ms"];
    let dirs = disks.text();
    let options = [&["--local", "3", "--dir", &dirs], &tiers[..]].concat();
    let instance = Instance::start("disks", &options);
    assert_eq!(names(&disks.path("a")), ["d0", "d2"]);
    assert_eq!(names(&disks.path("b")), ["d1"]);
    let mut worker = instance.worker();
    assert_eq!(worker.ask(&format!("put /forebay/f 7 {}", 160 * MIB)), "ok");
    let all = || [there(&disks.path("a")), there(&disks.path("b"))].concat();
    wait_for("each disk to have some", || all().iter().all(|(_, bytes)| *bytes > 16 * MIB));
    let daemon = instance.daemon(1);
    daemon.kill();
    daemon.wait();
    instance.start_again();
    let right = format!("ok {} {}", 160 * MIB, digest(&content(7, 0, 160 * MIB)));
    assert_eq!(worker.ask("get /forebay/f"), right);
    assert_eq!(names(&disks.path("b")), ["d1"], "started where it was");
    // Others are asked for than it has.
    let mut other = instance.command("start");
    let output = other.args(["--dir", &disks.path("a").to_string_lossy()]).output();
    let output = output.expect("forebay runs");
    let said = text(&output.stderr);
    assert!(!output.status.success() && said.contains("runs with dir="), "{said}");
    drop(worker);
    drop(instance);
    for name in ["a", "b"] {
        let left = std::fs::read_dir(disks.path(name)).expect("a directory").count();
        assert_eq!(left, 0, "left in {name}");
    }
}

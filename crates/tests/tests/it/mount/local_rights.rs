//! A mount compared with local file systems: rights of other users (access control lists, groups,
//! sticky directories, set-id bits, extended attributes) and results of calls (fallocate, holes,
//! long names, renames, nameless files, times, locks). Scripts print the results of both, which
//! must agree.
//!
//! Needs root and `/dev/fuse`; without them the tests are skipped.

use crate::support::mounted::{Mounted, has_fuse};
use crate::support::{Instance, skip, text};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

const FILES: &str = "tests/programs/src/files.py";

fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("changed");
}

/// Output of a script with an argument, run in a directory under `at`.
fn printed(at: &Path, script: &str, argument: &str) -> Vec<String> {
    let dir = tempfile::tempdir_in(at).expect("a directory");
    set_mode(dir.path(), 0o755);
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(script);
    // The users that the script becomes may have no access to this source tree.
    let script = std::fs::read_to_string(path).expect("readable");
    let mut command = Command::new("python3");
    command.args(["-B", "-c", &script, argument]).current_dir(dir.path());
    let output = command.output().expect("python3 runs");
    assert!(output.status.success(), "{}: {}", at.display(), text(&output.stderr));
    text(&output.stdout).lines().map(str::to_owned).collect()
}

fn can_be_tested() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        skip("root is needed");
    }
    has_fuse() && is_root
}

/// A script prints the same on mounts as under `local`, at least `least` lines.
fn compare(local: &Path, script: &str, argument: &str, least: usize) {
    let expected = printed(local, script, argument);
    assert!(expected.len() >= least, "{expected:#?}");
    for daemons in ["1", "3"] {
        let name = format!("{argument}{daemons}");
        let instance = Instance::start(&name, &["--local", daemons, "--memory", "128MiB"]);
        set_mode(instance.dir.path(), 0o755);
        let mounted = Mounted::new(&instance, "m");
        let ours = printed(&mounted.at, script, argument);
        let pairs = expected.iter().zip(&ours);
        let differ: Vec<_> = pairs.filter(|(local, ours)| local != ours).collect();
        assert!(differ.is_empty(), "{daemons} daemons, locally and on the mount: {differ:#?}");
        assert_eq!(expected.len(), ours.len());
    }
}

#[test]
fn users_have_the_same_rights_as_on_tmpfs() {
    if can_be_tested() {
        compare(Path::new("/dev/shm"), "crates/tests/programs/users.py", "users", 300);
    }
}

#[test]
fn range_locks_behave_as_on_tmpfs() {
    if can_be_tested() {
        compare(Path::new("/dev/shm"), "crates/tests/programs/locks.py", "locks", 2400);
    }
}

#[test]
fn calls_have_the_same_results_as_on_tmpfs() {
    if can_be_tested() {
        compare(Path::new("/dev/shm"), FILES, "files", 200);
    }
}

#[test]
fn ranges_are_zeroed_as_on_a_local_file_system() {
    let disk = std::env::temp_dir();
    let output = Command::new("stat").args(["-f", "-c", "%T"]).arg(&disk).output();
    let kind = text(&output.expect("stat runs").stdout);
    if !["ext2/ext3", "xfs"].contains(&kind.trim()) {
        skip(&format!("{} is on no local disk file system", disk.display()));
    } else if can_be_tested() {
        compare(&disk, FILES, "zero", 20);
    }
}

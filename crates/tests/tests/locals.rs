//! A mount beside local file systems: what other users may do (access control lists, groups, sticky
//! directories, set-id bits, extended attributes) and what calls on files come to (fallocate, holes, long
//! names, renames, nameless files, times, locks). Scripts say it of both, and that is compared.
//!
//! Needs root and `/dev/fuse`; where it has not, the tests say so and end.

mod support;

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;
use support::mounted::{Mounted, has_fuse};
use support::{Instance, text};

const FILES: &str = "tests/programs/src/files.py";

fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("changed");
}

/// What a script says with an argument, run in a directory below `at`.
fn said(at: &Path, script: &str, argument: &str) -> Vec<String> {
    let place = tempfile::tempdir_in(at).expect("a directory");
    set_mode(place.path(), 0o755);
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(script);
    // The users that it becomes need not reach this tree.
    let script = std::fs::read_to_string(path).expect("readable");
    let mut command = Command::new("python3");
    command.args(["-B", "-c", &script, argument]).current_dir(place.path());
    let output = command.output().expect("python3 runs");
    assert!(output.status.success(), "{}: {}", at.display(), text(&output.stderr));
    text(&output.stdout).lines().map(str::to_owned).collect()
}

fn can_be_tested() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        eprintln!("not root: nothing was tested");
    }
    has_fuse() && is_root
}

/// A script says the same on mounts as below `local`, so many lines at least.
fn compare(local: &Path, script: &str, argument: &str, least: usize) {
    let expected = said(local, script, argument);
    assert!(expected.len() >= least, "{expected:#?}");
    for daemons in ["1", "3"] {
        let name = format!("{argument}{daemons}");
        let instance = Instance::start(&name, &["--local", daemons, "--memory", "128MiB"]);
        set_mode(instance.place.path(), 0o755);
        let mounted = Mounted::new(&instance, "m");
        let ours = said(&mounted.at, script, argument);
        let pairs = expected.iter().zip(&ours);
        let differ: Vec<_> = pairs.filter(|(local, ours)| local != ours).collect();
        assert!(differ.is_empty(), "{daemons} daemons, locally and on the mount: {differ:#?}");
        assert_eq!(expected.len(), ours.len());
    }
}

#[test]
fn users_may_do_what_tmpfs_lets_them() {
    if can_be_tested() {
        compare(Path::new("/dev/shm"), "crates/tests/programs/users.py", "users", 300);
    }
}

#[test]
fn locks_of_ranges_are_as_on_tmpfs() {
    if can_be_tested() {
        compare(Path::new("/dev/shm"), "crates/tests/programs/locks.py", "locks", 2400);
    }
}

#[test]
fn calls_come_to_what_they_come_to_on_tmpfs() {
    if can_be_tested() {
        compare(Path::new("/dev/shm"), FILES, "files", 200);
    }
}

#[test]
fn ranges_are_zeroed_as_on_a_local_disk() {
    let disk = std::env::temp_dir();
    let output = Command::new("stat").args(["-f", "-c", "%T"]).arg(&disk).output();
    let kind = text(&output.expect("stat runs").stdout);
    if !["ext2/ext3", "xfs"].contains(&kind.trim()) {
        eprintln!("{} is no disk of a kind that is known: nothing was tested", disk.display());
    } else if can_be_tested() {
        compare(&disk, FILES, "zero", 20);
    }
}

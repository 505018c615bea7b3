//! Real programs that can not be preloaded, on a mount: the cases of `tests/mounted`. Static programs,
//! Go, a container, Java's maps, and databases that map, lock and are killed. And programs that run from
//! files of a mount.
//!
//! Needs root and `/dev/fuse`; where there is none the tests say so and end. A case whose program is
//! missing is skipped.

mod support;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::process::Command;
use support::Instance;
use support::mounted::{Mounted, has_fuse};

#[test]
fn programs_that_can_not_be_preloaded_work_on_a_mount() {
    if !has_fuse() {
        return;
    }
    let instance = Instance::start("programs", &["--local", "2", "--memory", "1GiB"]);
    let mounted = Mounted::new(&instance, "m");
    // Other users reach it, too: some programs refuse to run as root.
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o711);
    std::fs::set_permissions(instance.place.path(), open).expect("chmod");
    let cases = support::cases::root().join("tests/mounted");
    support::cases::run_cases(|command| command.arg("--cases").arg(cases).arg(&mounted.at));
}

/// The kernel looks whether a program runs from a file after it was opened to be cut without being
/// written, and the program's pages would have gone by then.
#[test]
fn the_file_of_a_program_that_runs_is_not_cut() {
    if !has_fuse() {
        return;
    }
    let instance = Instance::start("run", &["--memory", "64MiB", "--ssd", "0"]);
    let mounted = Mounted::new(&instance, "m");
    let file = mounted.at.join("cat");
    // By another process: a child of the test beside this one could hold the copy open to be written.
    assert!(Command::new("cp").arg("/bin/cat").arg(&file).status().expect("cp runs").success());
    let bytes = std::fs::read("/bin/cat").expect("read");
    let mut program = Command::new(&file);
    let program = program.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
    let mut program = program.spawn().expect("it runs");
    for flags in [OFlags::WRONLY, OFlags::RDWR, OFlags::TRUNC, OFlags::WRONLY | OFlags::TRUNC] {
        let opened = rustix::fs::open(&file, flags, Mode::empty());
        assert_eq!(opened.err(), Some(Errno::TXTBSY), "{flags:?}");
    }
    assert!(std::fs::read(&file).expect("read") == bytes, "the file is whole");
    let mut input = program.stdin.take().expect("piped");
    std::io::Write::write_all(&mut input, b"said").expect("it reads");
    drop(input);
    let output = program.wait_with_output().expect("it ends");
    assert!(output.status.success() && output.stdout == b"said", "{output:?}");
    // Its end is on its way to the mount, at most.
    drop(rustix::fs::open(&file, OFlags::TRUNC, Mode::empty()).expect("nothing runs from it"));
    assert_eq!(std::fs::metadata(&file).expect("there").len(), 0);
}

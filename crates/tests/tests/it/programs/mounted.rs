//! Real programs that cannot be preloaded, on a mount: the cases of `tests/mounted`. Static
//! programs, Go, a container, Java's mappings, and databases that map, lock and are killed. And
//! programs whose files are on a mount.
//!
//! Needs root and `/dev/fuse`; without them the tests are skipped. A case whose program is missing
//! is skipped.

use crate::support::Instance;
use crate::support::mounted::{Mounted, has_fuse};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::process::Command;

#[test]
fn programs_that_cannot_be_preloaded_work_on_a_mount() {
    if !has_fuse() {
        return;
    }
    let instance = Instance::start("programs", &["--local", "2", "--memory", "1GiB"]);
    let mounted = Mounted::new(&instance, "m");
    // Other users reach it, too: some programs refuse to run as root.
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o711);
    std::fs::set_permissions(instance.dir.path(), open).expect("chmod");
    let cases = crate::support::cases::root().join("tests/mounted");
    crate::support::cases::run_cases(|command| command.arg("--cases").arg(cases).arg(&mounted.at));
}

/// The kernel checks whether a program runs from a file only after it was opened with truncation
/// but not for writing, and the program's pages would have gone by then.
#[test]
fn the_file_of_a_running_program_cannot_be_truncated() {
    if !has_fuse() {
        return;
    }
    let instance = Instance::start("run", &["--memory", "64MiB", "--ssd", "0"]);
    let mounted = Mounted::new(&instance, "m");
    let file = mounted.at.join("cat");
    // By another process: a child of a concurrent test could hold the copy open for writing.
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
    // At most, the notification of the program's end is still on its way to the mount.
    drop(rustix::fs::open(&file, OFlags::TRUNC, Mode::empty()).expect("no program runs from it"));
    assert_eq!(std::fs::metadata(&file).expect("there").len(), 0);
}

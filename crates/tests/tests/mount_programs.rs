//! Real programs that can not be preloaded, on a mount: the cases of `tests/mounted`. Static programs,
//! Go, a container, Java's maps, and databases that map, lock and are killed.
//!
//! Needs root and `/dev/fuse`; where there is none the test says so and ends. A case whose program is
//! missing is skipped.

mod support;

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

//! Several users of a mount share its memory. Stated here: a user's burst takes from another only what is
//! beyond an equal part.
//!
//! Needs root, to become somebody else, and `/dev/fuse`; where it has not, the test says so and ends.

mod support;

use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;
use support::mounted::{Mounted, has_fuse};
use support::{Instance, text, wait_for};

const ANN: u32 = 1001;
const BOB: u32 = 1002;
const MIB: u64 = 1 << 20;
/// What Ann has: less than half of what stays in memory, which is half of it.
const FILE: u64 = 4 * MIB;

fn shell(at: &Path, uid: u32, script: &str) {
    let mut command = Command::new("sh");
    let output =
        command.args(["-c", script]).uid(uid).gid(uid).current_dir(at).output().expect("sh runs");
    assert!(output.status.success(), "{script}: {}", text(&output.stderr));
}

/// "A user's burst takes from another only what is beyond an equal part" (docs/semantics.md).
#[test]
fn a_users_burst_leaves_what_another_has_in_memory() {
    if !rustix::process::geteuid().is_root() || !has_fuse() {
        eprintln!("not root, or no /dev/fuse: nothing was tested");
        return;
    }
    let options = ["--memory", "32MiB", "--ssd", "512MiB", "--room", "50", "--idle", "100ms"];
    let instance = Instance::start("users", &options);
    let open = |path: &Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("changed");
    };
    open(instance.place.path(), 0o755);
    let mounted = Mounted::new(&instance, "m");
    let shared = mounted.path("d");
    std::fs::create_dir(&shared).expect("made");
    open(&shared, 0o777);
    shell(&shared, ANN, "head -c 4M /dev/urandom >ann");
    wait_for("it is known whose it is", || instance.figure("memory_users") == 1);
    for round in 0..16 {
        shell(&shared, BOB, &format!("head -c 16M /dev/zero >bob{round}"));
    }
    wait_for("most of the burst on the SSD", || {
        let used = instance.figure("ssd_total") - instance.figure("ssd_free");
        used >= 16 * 16 * MIB - (32 * MIB - FILE)
    });
    shell(&shared, BOB, "rm bob*");
    wait_for("the burst gone", || {
        instance.figure("memory_used") == FILE
            && instance.figure("ssd_free") == instance.figure("ssd_total")
    });
}

//! Several users of a mount share its memory: a user's burst takes from another user only what
//! exceeds an equal share.
//!
//! Needs root, to become another user, and `/dev/fuse`; without them the test is skipped.

use crate::support::mounted::{Mounted, has_fuse};
use crate::support::{Instance, skip, text, wait_for};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

const ANN: u32 = 1001;
const BOB: u32 = 1002;
const MIB: u64 = 1 << 20;
/// Ann's data: less than half of the data that stays in memory, which is half of the memory.
const FILE: u64 = 4 * MIB;

fn shell(at: &Path, uid: u32, script: &str) {
    let mut command = Command::new("sh");
    let output =
        command.args(["-c", script]).uid(uid).gid(uid).current_dir(at).output().expect("sh runs");
    assert!(output.status.success(), "{script}: {}", text(&output.stderr));
}

/// "A user's burst takes from others only what exceeds an equal share"
/// (docs/semantics/durability.md).
#[test]
fn a_users_burst_leaves_the_fair_share_of_another_user_in_memory() {
    if !rustix::process::geteuid().is_root() || !has_fuse() {
        skip("root and /dev/fuse are needed");
        return;
    }
    let options = [
        "--memory",
        "32MiB",
        "--ssd",
        "512MiB",
        "--demote-low-watermark",
        "50",
        "--demote-idle-age",
        "100ms",
    ];
    let instance = Instance::start("users", &options);
    let open = |path: &Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("changed");
    };
    open(instance.dir.path(), 0o755);
    let mounted = Mounted::new(&instance, "m");
    let shared = mounted.path("d");
    std::fs::create_dir(&shared).expect("made");
    open(&shared, 0o777);
    shell(&shared, ANN, "head -c 4M /dev/urandom >ann");
    wait_for("its owner is known", || instance.figure("memory_users") == 1);
    for round in 0..16 {
        shell(&shared, BOB, &format!("head -c 16M /dev/zero >bob{round}"));
    }
    wait_for("most of the burst to be on the SSD", || {
        let used = instance.figure("ssd_total") - instance.figure("ssd_free");
        used >= 16 * 16 * MIB - (32 * MIB - FILE)
    });
    shell(&shared, BOB, "rm bob*");
    wait_for("the burst to be demoted", || {
        instance.figure("memory_used") == FILE
            && instance.figure("ssd_free") == instance.figure("ssd_total")
    });
}

//! Commands that mount: `start --mount`, `mount`, `umount`, `status`. Every command reports in text
//! and in JSON what it did. The mount that `run` makes: `shared`.
//!
//! Needs `/dev/fuse`; without it the tests are skipped.

use crate::support::mounted::{Mounted, has_ended, has_fuse, is_dead, umount};
use crate::support::world::{HOSTS, World};
use crate::support::{Instance, kill, text, wait_for};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Copies its second argument to its first, and prints what it reads back.
const STATIC: &str = r#"
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
int main(int argc, char **argv) {
    char back[100] = {0};
    if (argc != 3) return 2;
    int file = open(argv[1], O_RDWR | O_CREAT | O_EXCL, 0644);
    if (file < 0 || write(file, argv[2], strlen(argv[2])) < 0) return perror(argv[1]), 1;
    if (pread(file, back, sizeof back - 1, 0) < 0) return perror(argv[1]), 1;
    return puts(back), 7;
}
"#;

/// A statically linked program.
pub(super) fn static_program(dir: &Path) -> PathBuf {
    let (source, program) = (dir.join("static.c"), dir.join("static"));
    std::fs::write(&source, STATIC).expect("written");
    let compiled = Command::new("cc").args(["-static", "-o"]).args([&program, &source]).status();
    assert!(compiled.expect("a C compiler").success());
    program
}

fn json(bytes: &[u8]) -> Value {
    serde_json::from_slice(bytes).unwrap_or_else(|error| panic!("{error}: {}", text(bytes)))
}

#[test]
fn start_mounts_once_and_remounts_a_killed_mount() {
    if !has_fuse() {
        return;
    }
    let instance = Instance::start("start", &["--memory", "64MiB"]);
    let at = instance.dir.path().join("m");
    std::fs::create_dir(&at).expect("a directory");
    let start = || {
        let output = instance.command("start").args(["--json", "--mount"]).arg(&at).output();
        let output = output.expect("forebay runs");
        assert!(output.status.success(), "{}", text(&output.stderr));
        assert_eq!(json(&output.stdout)["mount"], Value::from(at.to_string_lossy()));
        let mounts = instance.status()["mounts"].clone();
        assert_eq!(mounts.as_array().map(Vec::len), Some(1), "{mounts}");
        assert_eq!(
            (&mounts[0]["at"], &mounts[0]["state"]),
            (&at.to_string_lossy().into(), &"served".into())
        );
        i32::try_from(mounts[0]["pid"].as_i64().expect("a pid")).expect("a pid")
    };
    let pid = start();
    assert_eq!(start(), pid, "it is there already");
    let program = static_program(instance.dir.path());
    let output = Command::new(&program).arg(at.join("f")).arg("words").output().expect("it runs");
    assert_eq!((output.status.code(), &*text(&output.stdout)), (Some(7), "words\n"));
    kill(pid);
    wait_for("the end of its mount", || is_dead(&at));
    assert_eq!(instance.status()["mounts"][0]["state"], "dead");
    assert_ne!(start(), pid);
    assert_eq!(std::fs::read(at.join("f")).expect("read"), b"words");
    let output = umount(&instance, &at, &["--json"]);
    assert_eq!(json(&output.stdout)["unmounted"], Value::from(at.to_string_lossy()));
    // Concurrent tests create mount namespaces, which have a copy of the mount for a while.
    wait_for("the end of its server", || {
        instance.status()["mounts"] == Value::from(Vec::<Value>::new())
    });
}

#[test]
fn a_start_that_cannot_mount_leaves_nothing() {
    if !has_fuse() {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let name = format!("t{}-nowhere", std::process::id());
    let output = Command::new(crate::support::profile().join("forebay"))
        .args(["start", "--name", &name, "--memory", "64MiB", "--mount"])
        .arg(dir.path().join("absent"))
        .env("XDG_RUNTIME_DIR", dir.path())
        .env("FOREBAY_DIR", dir.path())
        .output()
        .expect("forebay runs");
    let printed = text(&output.stderr);
    assert!(!output.status.success() && printed.contains("no such directory"), "{printed}");
    assert_eq!(std::fs::read_dir(dir.path()).expect("a listing").count(), 0);
    assert!(!Path::new(&format!("/dev/shm/forebay-0-{name}")).exists());
}

#[test]
fn start_mounts_on_each_host() {
    if !has_fuse() {
        return;
    }
    let Some(world) = World::new() else { return };
    let at = world.path("m");
    std::fs::create_dir(&at).expect("a directory");
    let (nodes, at) = (world.path("nodes"), at.to_string_lossy().into_owned());
    world.ok("a", &["start", "--hosts", &nodes.to_string_lossy(), "--mount", &at]);
    // Here each host has a mount namespace of its own.
    let pids = HOSTS.map(|host| {
        let mounts = json(world.ok(host, &["status", "--json"]).as_bytes())["mounts"].clone();
        assert_eq!((&mounts[0]["at"], &mounts[0]["state"]), (&(&*at).into(), &"served".into()));
        mounts[0]["pid"].as_i64().expect("a pid").to_string()
    });
    let inside = |pid: &str, script: &str| {
        let mut enter = Command::new("nsenter");
        let output = enter.args(["-t", pid, "-m", "sh", "-c", script, "sh", &at]).output();
        text(&output.expect("nsenter runs").stdout)
    };
    assert_eq!(inside(&pids[0], "echo of-a >$1/f && cat $1/f"), "of-a\n");
    assert_eq!(inside(&pids[2], "cat $1/f && echo of-c >>$1/f"), "of-a\n");
    assert_eq!(world.shell("b", "cat /forebay/f", ""), "of-a\nof-c\n");
    // A mount that is impossible on one host is one clear failure.
    let output = world.on("a", &["start", "--mount", &world.path("absent").to_string_lossy()]);
    let printed = text(&output.stderr);
    assert!(printed.contains("no such directory") && printed.lines().count() == 1, "{printed}");
    world.ok("a", &["stop"]);
    for pid in pids {
        assert!(has_ended(pid.parse().expect("a pid")), "its server has ended");
    }
    std::fs::remove_dir(world.path("m")).expect("removed");
    world.assert_nothing_left();
}

#[test]
fn only_a_trusted_mount_has_set_id_programs_and_devices() {
    if !has_fuse() || !rustix::process::geteuid().is_root() {
        return;
    }
    let instance = Instance::start("trusted", &["--memory", "64MiB"]);
    let plain = Mounted::new(&instance, "m");
    let at = instance.dir.path().join("n");
    std::fs::create_dir(&at).expect("a directory");
    let trusted = ["--trusted", "--for-all"];
    let output = instance.command("mount").args(trusted).arg(&at).output().expect("forebay runs");
    assert!(output.status.success(), "{}", text(&output.stderr));
    let script = "cp $(command -v id) $0/id && chown 65534 $0/id && chmod 4755 $0/id || exit
        mknod $0/zero c 1 5 && for at; do $at/id -u; head -c 3 $at/zero 2>&1 | wc -c; done";
    let output = Command::new("sh").args(["-c", script]).args([&plain.at, &plain.at, &at]).output();
    let output = output.expect("sh runs");
    let printed = text(&output.stdout);
    let printed: Vec<&str> = printed.lines().collect();
    assert_eq!(
        (printed[0], printed[2], printed[3]),
        ("0", "65534", "3"),
        "{printed:?} {}",
        text(&output.stderr)
    );
    assert_ne!(printed[1], "3", "a device where none is allowed");
    let output = umount(&instance, &at, &[]);
    assert!(output.status.success(), "{}", text(&output.stderr));
}

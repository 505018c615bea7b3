//! The commands that mount: `start --mount`, `run --mount`, `umount`, `status`. Stated here: programs
//! that can not be preloaded see the instance, a mount for a command goes with the command, whatever
//! ends it, and every command says in words and in JSON what it did.
//!
//! Needs `/dev/fuse`; where there is none each test says so and ends.

mod support;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use support::mounted::{Mounted, has_ended, has_fuse, is_dead, is_mounted, umount};
use support::world::{HOSTS, World};
use support::{Instance, kill, text, wait_for};

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
fn static_program(place: &Path) -> PathBuf {
    let (source, program) = (place.join("static.c"), place.join("static"));
    std::fs::write(&source, STATIC).expect("written");
    let compiled = Command::new("cc").args(["-static", "-o"]).args([&program, &source]).status();
    assert!(compiled.expect("a C compiler").success());
    program
}

fn json(bytes: &[u8]) -> Value {
    serde_json::from_slice(bytes).unwrap_or_else(|error| panic!("{error}: {}", text(bytes)))
}

/// `forebay run --mount [AT] -- COMMAND`.
fn run_mounted(instance: &Instance, at: Option<&Path>, command: &[&str]) -> Command {
    let mut run = instance.command("run");
    run.arg("--mount").args(at).arg("--").args(command);
    run
}

#[test]
fn start_mounts_once_and_again_when_the_mount_was_killed() {
    if !has_fuse() {
        return;
    }
    let instance = Instance::start("start", &["--memory", "64MiB"]);
    let at = instance.place.path().join("m");
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
    let program = static_program(instance.place.path());
    let output = Command::new(&program).arg(at.join("f")).arg("words").output().expect("it runs");
    assert_eq!((output.status.code(), &*text(&output.stdout)), (Some(7), "words\n"));
    kill(pid);
    wait_for("the end of its mount", || is_dead(&at));
    assert_eq!(instance.status()["mounts"][0]["state"], "dead");
    assert_ne!(start(), pid);
    assert_eq!(std::fs::read(at.join("f")).expect("read"), b"words");
    let output = umount(&instance, &at, &["--json"]);
    assert_eq!(json(&output.stdout)["unmounted"], Value::from(at.to_string_lossy()));
    // Tests beside this one make mount namespaces, which have a copy for a while.
    wait_for("the end of who served it", || {
        instance.status()["mounts"] == Value::from(Vec::<Value>::new())
    });
}

#[test]
fn a_start_that_can_not_mount_leaves_nothing() {
    if !has_fuse() {
        return;
    }
    let place = tempfile::tempdir().expect("a directory");
    let name = format!("t{}-nowhere", std::process::id());
    let output = Command::new(support::profile().join("forebay"))
        .args(["start", "--name", &name, "--memory", "64MiB", "--mount"])
        .arg(place.path().join("absent"))
        .env("XDG_RUNTIME_DIR", place.path())
        .env("FOREBAY_DIR", place.path())
        .output()
        .expect("forebay runs");
    let said = text(&output.stderr);
    assert!(!output.status.success() && said.contains("there is no directory"), "{said}");
    assert_eq!(std::fs::read_dir(place.path()).expect("a listing").count(), 0);
    assert!(!Path::new(&format!("/dev/shm/forebay-0-{name}")).exists());
}

#[test]
fn a_command_has_a_mount_of_its_own() {
    if !has_fuse() {
        return;
    }
    let instance = Instance::start("run", &["--memory", "64MiB"]);
    let at = instance.place.path().join("m");
    std::fs::create_dir(&at).expect("a directory");
    let program = static_program(instance.place.path());
    let program = program.to_string_lossy();
    let inside = at.join("f");
    let command = [&*program, &*inside.to_string_lossy(), "words"];
    let output = run_mounted(&instance, Some(&at), &command).output().expect("forebay runs");
    assert_eq!((output.status.code(), &*text(&output.stdout)), (Some(7), "words\n"));
    assert!(!is_mounted(&at) && !inside.exists(), "it is gone");
    // Without a place it is where programs see the instance, which is made and removed.
    let made = instance.place.path().join("made");
    let mut run = instance.command("run");
    run.arg("--at").arg(&made).args(["--mount", "--", "cat"]).arg(made.join("f"));
    let output = run.output().expect("forebay runs");
    assert_eq!(&*text(&output.stdout), "words", "{}", text(&output.stderr));
    assert!(!made.exists());
    // One that was there before is used, and stays.
    let mounted = Mounted::new(&instance, "n");
    let file = mounted.path("f");
    let command = ["cat", &*file.to_string_lossy()];
    let output = run_mounted(&instance, Some(&mounted.at), &command).output().expect("it runs");
    assert_eq!(&*text(&output.stdout), "words", "{}", text(&output.stderr));
    assert!(is_mounted(&mounted.at));
    // What a command leaves running keeps what it has open.
    let leaves = format!(
        "exec 3<{1}/f; (while [ ! -e {0}/go ]; do sleep 0.01; done; cat >{0}/out <&3) &",
        instance.place.path().display(),
        at.display()
    );
    let mut run = run_mounted(&instance, Some(&at), &["sh", "-c", &leaves]);
    let output = run.stdout(Stdio::null()).stderr(Stdio::null()).status().expect("it runs");
    assert!(output.success() && !is_mounted(&at));
    std::fs::write(instance.place.path().join("go"), "").expect("written");
    let out = instance.place.path().join("out");
    wait_for("its output", || std::fs::read(&out).is_ok_and(|read| read == b"words"));
}

/// A command that says so and waits, with a file of the mount open.
fn waiting(instance: &Instance, at: &Path) -> (Child, i32) {
    let script = format!(
        "exec 3>{}/open; trap 'exit 5' TERM; echo $$; while :; do sleep 0.01; done",
        at.display()
    );
    let mut run = run_mounted(instance, Some(at), &["sh", "-c", &script])
        .stdout(Stdio::piped())
        .spawn()
        .expect("forebay runs");
    let mut line = String::new();
    let output = run.stdout.take().expect("a pipe");
    BufReader::new(output).read_line(&mut line).expect("a line");
    (run, line.trim().parse().expect("a pid"))
}

#[test]
fn the_mount_of_a_command_goes_whatever_ends_it() {
    if !has_fuse() {
        return;
    }
    let instance = Instance::start("ends", &["--memory", "64MiB"]);
    let at = instance.place.path().join("m");
    std::fs::create_dir(&at).expect("a directory");
    // By a signal, which the command gets.
    let (mut run, _) = waiting(&instance, &at);
    assert!(is_mounted(&at));
    let pid = Pid::from_child(&run);
    kill_process(pid, Signal::TERM).expect("signalled");
    assert_eq!(run.wait().expect("it ends").code(), Some(5));
    assert!(!is_mounted(&at));
    // Killed: the command goes on without it.
    let (mut run, command) = waiting(&instance, &at);
    let second = run_mounted(&instance, Some(&at), &["true"]).output().expect("forebay runs");
    let said = text(&second.stderr);
    assert!(said.contains("is a mount of instance") && said.lines().count() == 1, "{said}");
    run.kill().expect("killed");
    run.wait().expect("it ends");
    wait_for("the end of the mount", || !is_mounted(&at));
    assert!(!has_ended(command), "nobody ended the command");
    kill(command);
    wait_for("the end of who served it", || {
        instance.status()["mounts"] == Value::from(Vec::<Value>::new())
    });
    // An instance of the command's own goes, too.
    let place = tempfile::tempdir().expect("a directory");
    let own = place.path().join("m");
    std::fs::create_dir(&own).expect("a directory");
    let output = Command::new(support::profile().join("forebay"))
        .args(["run", "--memory", "64MiB", "--ssd", "0", "--mount"])
        .arg(&own)
        .args(["--", "sh", "-c", "echo x >m/f && cat m/f"])
        .current_dir(place.path())
        .env("XDG_RUNTIME_DIR", place.path())
        .output()
        .expect("forebay runs");
    assert_eq!(&*text(&output.stdout), "x\n", "{}", text(&output.stderr));
    let left: Vec<_> = std::fs::read_dir(place.path()).expect("a listing").flatten().collect();
    assert_eq!(left.len(), 1, "{left:?}");
    assert!(!is_mounted(&own));
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
    // Each host has a mount namespace of its own here.
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
    // One that can not be made on some host is one clear failure.
    let output = world.on("a", &["start", "--mount", &world.path("absent").to_string_lossy()]);
    let said = text(&output.stderr);
    assert!(said.contains("there is no directory") && said.lines().count() == 1, "{said}");
    world.ok("a", &["stop"]);
    for pid in pids {
        assert!(has_ended(pid.parse().expect("a pid")), "who served it has ended");
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
    let at = instance.place.path().join("n");
    std::fs::create_dir(&at).expect("a directory");
    let trusted = ["--trusted", "--for-all"];
    let output = instance.command("mount").args(trusted).arg(&at).output().expect("forebay runs");
    assert!(output.status.success(), "{}", text(&output.stderr));
    let script = "cp $(command -v id) $0/id && chown 65534 $0/id && chmod 4755 $0/id || exit
        mknod $0/zero c 1 5 && for at; do $at/id -u; head -c 3 $at/zero 2>&1 | wc -c; done";
    let output = Command::new("sh").args(["-c", script]).args([&plain.at, &plain.at, &at]).output();
    let output = output.expect("sh runs");
    let said = text(&output.stdout);
    let said: Vec<&str> = said.lines().collect();
    assert_eq!(
        (said[0], said[2], said[3]),
        ("0", "65534", "3"),
        "{said:?} {}",
        text(&output.stderr)
    );
    assert_ne!(said[1], "3", "a device where none may be");
    let output = umount(&instance, &at, &[]);
    assert!(output.status.success(), "{}", text(&output.stderr));
}

//! A `/dev/shm` that is small, or that another user fills under load: in a mount namespace with a
//! `/dev/shm` of its own. No daemon and no program is killed by SIGBUS: what finds no room is
//! refused, or goes to the SSD. And a daemon that is killed: the reason is told.

use crate::support::{Instance, in_time, profile, skip, text};
use rustix::process::Signal;
use std::process::{Command, Output};

/// Runs a script of `sh` with a `/dev/shm` of `size`, and directories of its own; its first argument
/// is `forebay`. `None` after a skip note.
fn with_shm(size: &str, script: &str) -> Option<Output> {
    let is_allowed = Command::new("unshare").args(["--mount", "true"]).status();
    if !is_allowed.is_ok_and(|status| status.success()) {
        skip("mount namespaces are not permitted here (root is needed)");
        return None;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let mount = format!(
        "mount -t tmpfs -o size={size} shm /dev/shm && chmod 1777 /dev/shm || exit 99\n{script}"
    );
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "sh", "-c", &mount, "sh"])
        .arg(profile().join("forebay"))
        .env("FOREBAY_NAME", format!("shm{}", std::process::id()))
        .env("FOREBAY_DIR", dir.path())
        .env("XDG_RUNTIME_DIR", dir.path())
        .env("FOREBAY_ACCESS", "preload");
    let output = in_time("a script with a small /dev/shm", || command.output().expect("unshare"));
    assert_ne!(output.status.code(), Some(99), "cannot mount: {}", text(&output.stderr));
    Some(output)
}

#[test]
fn a_start_without_room_is_refused_with_the_size_that_fits() {
    let script = "\"$1\" start --memory 16MiB --ssd 0; echo $?; ls -A /dev/shm";
    let Some(output) = with_shm("64k", script) else { return };
    let errors = text(&output.stderr);
    assert_eq!(text(&output.stdout), "1\n", "{errors}");
    assert!(errors.contains("64 KiB free of 64 KiB in /dev/shm"), "{errors}");
    assert!(errors.contains("even --memory 16MiB needs 27 MiB"), "{errors}");

    // The advice is followed, and all of it is used.
    let script = r#"
        "$1" start --memory 1GiB --ssd 0 2>&1 | grep -o 'give --memory [0-9]*MiB'
        "$1" start --memory 48MiB --ssd 0 >/dev/null || exit 1
        "$1" run -- sh -c 'head -c 60000000 /dev/zero >/forebay/x; echo $?; tail -c 1 /forebay/x | wc -c'
        "$1" stop >/dev/null; ls -A /dev/shm"#;
    let output = with_shm("64m", script).expect("permitted before");
    assert_eq!(text(&output.stdout), "give --memory 48MiB\n1\n1\n", "{}", text(&output.stderr));
}

/// Another user takes all of `/dev/shm`, then programs write data and make names. With an SSD all
/// of it is there; without one each call succeeds or fails with ENOSPC. A daemon that is killed
/// meanwhile starts again.
#[test]
fn a_full_shared_memory_kills_nothing() {
    const LOAD: &str = r#"
        "$1" start --memory 16MiB --ssd "$SSD" >/dev/null || exit 1
        "$1" run -- sh -c 'echo first >/forebay/first' || exit 1
        head -c 900000000 /dev/zero >/dev/shm/hog 2>/dev/null
        df --output=avail /dev/shm | tail -n 1
        "$1" run -- python3 -c '
import errno, os
made = written = full = 0
for n in range(1200):
    try:
        os.mkdir(f"/forebay/d{n}"); made += 1
        with open(f"/forebay/d{n}/f", "wb") as f: f.write(b"x" * (65536 if n < 600 else 10))
        written += 1
    except OSError as e:
        if e.errno != errno.ENOSPC: raise
        full += 1
print("full" if full else "all", len([d for d in os.listdir("/forebay") if d[0] == "d"]) == made)
for n in range(1200):
    name = f"/forebay/d{n}/f"
    if os.path.exists(name) and os.path.getsize(name) > 9: assert set(open(name, "rb").read()) <= {120, 0}
'; echo "exit $?"
        pid=$("$1" status --json | grep -o '"pid":[0-9]*' | head -n 1 | cut -d : -f 2)
        kill -9 $pid
        while kill -0 $pid 2>/dev/null && ! grep -q '^State:.Z' /proc/$pid/status; do :; done
        "$1" start 2>&1 | grep -o 'killed by SIGKILL'
        rm /dev/shm/hog
        "$1" run -- cat /forebay/first
        "$1" stop >/dev/null"#;
    for (ssd, expected) in [("128MiB", "all True"), ("0", "full True")] {
        let script = format!("SSD={ssd}\n{LOAD}");
        let Some(output) = with_shm("64m", &script) else { return };
        let lines = text(&output.stdout);
        let lines: Vec<&str> = lines.lines().map(str::trim).collect();
        let errors = text(&output.stderr);
        let right = ["0", expected, "exit 0", "killed by SIGKILL", "first"];
        assert_eq!(lines, right, "--ssd {ssd}: {errors}");
    }
}

#[test]
fn the_signal_that_killed_a_daemon_is_told() {
    let instance = Instance::start("signals", &["--local", "2"]);
    let signals = [
        (Signal::BUS, "SIGBUS (signal 7)"),
        (Signal::XCPU, "SIGXCPU (signal 24)"),
        (Signal::KILL, "SIGKILL"),
    ];
    for (signal, name) in signals {
        let daemon = instance.daemon(1);
        daemon.signal(signal);
        daemon.wait();
        let status = text(&instance.command("status").output().expect("forebay runs").stdout);
        assert!(status.contains(&format!("daemon 1 ended: killed by {name}")), "{status}");
        let again = text(&instance.try_start().stderr);
        assert!(again.contains(&format!("daemon 1 had ended: killed by {name}")), "{again}");
    }
}

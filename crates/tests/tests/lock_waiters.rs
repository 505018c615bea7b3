//! Hundreds of processes that wait for locks of one mount, or of one program with its children:
//! `programs/lock_waiters.py` says what they do. On a local file system they do the same, but for the
//! order: there whoever runs first gets it.
//!
//! Needs `/dev/fuse`; without, the tests of mounts say so and state nothing.

mod support;

use std::fs::File;
use std::path::Path;
use std::process::Command;
use std::sync::mpsc::channel;
use support::mounted::{Mounted, has_fuse};
use support::{Instance, PATIENCE, text, wait_for};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/programs/lock_waiters.py");
/// More than a session has slots.
const WAITERS: usize = 240;
/// How far one who waits may come out of turn: who is about to ask can not be told from who has asked.
const PASSED_MAX: usize = 8;

/// `command` runs Python. `call`: the number of the system call in which one waits.
fn play(mut command: Command, at: &Path, how: &str, call: libc::c_long, passed_max: usize) {
    let call = call.to_string();
    let output = command.arg(SCRIPT).arg(at).args([&WAITERS.to_string(), how, &call]);
    let output = output.output().expect("Python runs");
    let said = text(&output.stdout);
    assert!(output.status.success(), "{how}: {said}{}", text(&output.stderr));
    let (first, last) = said.split_once("passed ").unwrap_or((&said, ""));
    let fifth = WAITERS / 5;
    let wanted = format!(
        "circle EDEADLK got\ninterrupted {fifth}\nended {}\ngot {}\n",
        2 * fifth + 2,
        3 * fifth
    );
    assert_eq!(first, wanted, "{how}: {said}");
    let (passed, free) = last.split_once('\n').expect("two lines");
    let passed: usize = passed.parse().expect("a number");
    assert!(passed <= passed_max, "{how}: {said}");
    assert_eq!(free, "free\n");
}

fn python() -> Command {
    Command::new("/usr/bin/python3")
}

fn of(how: &str) -> libc::c_long {
    if how == "flock" { libc::SYS_flock } else { libc::SYS_fcntl }
}

fn on_a_mount(transport: &str, options: &[&str]) {
    let instance = Instance::start(&format!("many-wait-{transport}"), options);
    let mounted = Mounted::by(&instance, "m", transport);
    for how in ["fcntl", "flock"] {
        play(python(), &mounted.at, how, of(how), PASSED_MAX);
    }
}

#[test]
fn hundreds_wait_on_a_local_file_system() {
    let place = tempfile::tempdir().expect("a directory");
    play(python(), place.path(), "fcntl", of("fcntl"), WAITERS);
}

#[test]
fn hundreds_wait_in_turn_for_a_lock_of_one_mount() {
    if has_fuse() {
        on_a_mount("classic", &["--memory", "64MiB", "--ssd", "0"]);
        on_a_mount("rings", &["--local", "3", "--memory", "64MiB", "--ssd", "0"]);
    }
}

#[test]
fn hundreds_of_children_of_a_preloaded_program_wait_in_turn() {
    let instance =
        Instance::start("many-wait", &["--local", "3", "--memory", "64MiB", "--ssd", "0"]);
    for how in ["fcntl", "flock"] {
        let preloaded = instance.program(&["/usr/bin/python3"]);
        play(preloaded, Path::new("/forebay"), how, libc::SYS_futex, PASSED_MAX);
    }
}

/// Each asks again when the daemon is back.
#[test]
fn who_waits_on_a_mount_waits_on_when_the_daemon_is_back() {
    const WAITERS: usize = 100;
    if !has_fuse() {
        return;
    }
    let instance = Instance::start("many-wait-on", &["--memory", "64MiB", "--ssd", "0"]);
    let mounted = Mounted::by(&instance, "m", "classic");
    let held = File::create(mounted.path("f")).expect("made");
    held.lock().expect("free");
    let (tell, told) = channel();
    for _ in 0..WAITERS {
        let (path, tell) = (mounted.path("f"), tell.clone());
        std::thread::spawn(move || {
            let thread = std::fs::read_link("/proc/thread-self").expect("a link");
            let own = File::options().write(true).open(path).expect("open");
            tell.send(Ok(thread)).expect("heard");
            tell.send(Err(own.lock().map(|()| drop(own)))).expect("heard");
        });
    }
    for thread in told.iter().take(WAITERS) {
        let thread = thread.expect("it is about to wait");
        let call = Path::new("/proc").join(thread).join("syscall");
        let flock = format!("{} ", libc::SYS_flock);
        wait_for("a thread to wait for the lock", || {
            std::fs::read_to_string(&call).is_ok_and(|call| call.starts_with(&flock))
        });
    }
    let daemon = instance.daemon(0);
    daemon.kill();
    daemon.wait();
    instance.start_again();
    std::fs::write(mounted.path("g"), "served").expect("written");
    assert!(told.try_recv().is_err(), "somebody has a lock that is held");
    drop(held);
    for _ in 0..WAITERS {
        let got = told.recv_timeout(PATIENCE).expect("everybody's turn comes");
        assert!(matches!(got, Err(Ok(()))), "{got:?}");
    }
}

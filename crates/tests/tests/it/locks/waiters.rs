//! Hundreds of processes that wait for locks of one mount, or of one program with its children:
//! `programs/lock_waiters.py` lists their steps. On a local file system they do the same, except
//! for the order: there the first process that runs gets the lock.
//!
//! Needs `/dev/fuse`; without it the tests of mounts are skipped.

use crate::support::mounted::{Mounted, has_fuse};
use crate::support::{Instance, TIMEOUT, text, wait_for};
use std::fs::File;
use std::path::Path;
use std::process::Command;
use std::sync::mpsc::channel;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/programs/lock_waiters.py");
/// More than a session has slots.
const WAITERS: usize = 240;
/// Tolerated deviation from arrival order: a process that is about to request the lock cannot be
/// told from one that has requested it.
const PASSED_MAX: usize = WAITERS / 4;

/// `command` runs Python. `call`: the number of the system call in which a waiter sleeps.
fn play(mut command: Command, at: &Path, how: &str, call: libc::c_long, passed_max: usize) {
    let call = call.to_string();
    let output = command.arg(SCRIPT).arg(at).args([&WAITERS.to_string(), how, &call]);
    let output = output.output().expect("Python runs");
    let printed = text(&output.stdout);
    assert!(output.status.success(), "{how}: {printed}{}", text(&output.stderr));
    let (first, last) = printed.split_once("passed ").unwrap_or((&printed, ""));
    let fifth = WAITERS / 5;
    let expected = format!(
        "deadlock EDEADLK got\ninterrupted {fifth}\nended {}\ngot {}\n",
        2 * fifth + 2,
        3 * fifth
    );
    assert_eq!(first, expected, "{how}: {printed}");
    let (passed, free) = last.split_once('\n').expect("two lines");
    let passed: usize = passed.parse().expect("a number");
    assert!(passed <= passed_max, "{how}: {printed}");
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
fn hundreds_of_waiters_pass_on_a_local_file_system() {
    let dir = tempfile::tempdir().expect("a directory");
    play(python(), dir.path(), "fcntl", of("fcntl"), WAITERS);
}

#[test]
fn hundreds_of_waiters_of_one_mount_get_a_lock_in_order() {
    if has_fuse() {
        on_a_mount("classic", &["--memory", "64MiB", "--ssd", "0"]);
        on_a_mount("rings", &["--local", "3", "--memory", "64MiB", "--ssd", "0"]);
    }
}

#[test]
fn hundreds_of_children_of_a_preloaded_program_get_a_lock_in_order() {
    let instance =
        Instance::start("many-wait", &["--local", "3", "--memory", "64MiB", "--ssd", "0"]);
    for how in ["fcntl", "flock"] {
        let preloaded = instance.program(&["/usr/bin/python3"]);
        play(preloaded, Path::new("/forebay"), how, libc::SYS_futex, PASSED_MAX);
    }
}

/// Each waiter repeats its request when the daemon is back.
#[test]
fn lock_waiters_on_a_mount_keep_waiting_when_the_daemon_restarts() {
    const WAITERS: usize = 100;
    if !has_fuse() {
        return;
    }
    let instance = Instance::start("many-wait-on", &["--memory", "64MiB", "--ssd", "0"]);
    let mounted = Mounted::by(&instance, "m", "classic");
    let held = File::create(mounted.path("f")).expect("made");
    held.lock().expect("free");
    let (sender, receiver) = channel();
    for _ in 0..WAITERS {
        let (path, sender) = (mounted.path("f"), sender.clone());
        std::thread::spawn(move || {
            let thread = std::fs::read_link("/proc/thread-self").expect("a link");
            let own = File::options().write(true).open(path).expect("open");
            sender.send(Ok(thread)).expect("heard");
            sender.send(Err(own.lock().map(|()| drop(own)))).expect("heard");
        });
    }
    for thread in receiver.iter().take(WAITERS) {
        let thread = thread.expect("it begins to wait");
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
    assert!(receiver.try_recv().is_err(), "a waiter has a lock that is held");
    drop(held);
    for _ in 0..WAITERS {
        let got = receiver.recv_timeout(TIMEOUT).expect("every waiter gets the lock");
        assert!(matches!(got, Err(Ok(()))), "{got:?}");
    }
}

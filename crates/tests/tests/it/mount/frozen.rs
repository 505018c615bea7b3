//! The server of a mount is stopped, a program waits for it in a page fault, and another thread of
//! that program waits to change its mappings: commands do not block on them. Needs `/dev/fuse` and
//! python3.

use crate::support::mounted::{Mounted, has_ended, has_fuse, is_stopped, try_mount, umount};
use crate::support::{Instance, in_time, text, wait_for};
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, Command, Stdio};

/// Maps a file and, when told, touches a page that is not present; a moment later another thread
/// makes a mapping.
const STUCK: &str = r#"
import ctypes, os, sys, threading
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
libc.memcpy.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
file = os.open(sys.argv[1], os.O_RDONLY)
at = libc.mmap(None, 4000000, 1, 1, file, 0)
os.close(file)
there = ctypes.create_string_buffer(8)
print('ready', flush=True)
sys.stdin.readline()
threading.Timer(0.1, lambda: libc.mmap(None, 1 << 22, 3, 0x22, -1, 0)).start()
libc.memcpy(there, at + 2000000, 4)
"#;

fn signal(pid: i32, signal: Signal) {
    kill_process(Pid::from_raw(pid).expect("a pid"), signal).expect("sent");
}

fn state(pid: u32) -> char {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(") ").next().and_then(|rest| rest.chars().next()).unwrap_or('?')
}

/// A program that waits for a page of a mount whose server is stopped.
fn stuck(mounted: &Mounted<'_>) -> Child {
    let file = mounted.path("file");
    std::fs::write(&file, vec![7; 4_000_000]).expect("written");
    let mut python = Command::new("python3");
    python.arg("-c").arg(STUCK).arg(&file).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = python.spawn().expect("python3 runs");
    let mut printed = String::new();
    let output = child.stdout.as_mut().expect("a pipe");
    BufReader::new(output).read_line(&mut printed).expect("a line");
    assert_eq!(printed, "ready\n");
    signal(mounted.pid, Signal::STOP);
    wait_for("the server to stop", || is_stopped(mounted.pid));
    child.stdin.as_mut().expect("a pipe").write_all(b"go\n").expect("the program reads");
    wait_for("it to wait for a page", || state(child.id()) == 'D');
    child
}

#[test]
fn commands_do_not_wait_for_a_stopped_mount() {
    if !has_fuse() {
        return;
    }
    let instance = Instance::start("frozen", &["--memory", "64MiB"]);
    let mounted = Mounted::new(&instance, "m");
    let mut child = stuck(&mounted);
    let at = &mounted.at;
    let status = in_time("status", || instance.command("status").output().expect("it runs"));
    assert!(status.status.success(), "{}", text(&status.stderr));
    let run = in_time("run", || instance.program(&["true"]).output().expect("it runs"));
    assert!(run.status.success(), "{}", text(&run.stderr));
    let busy = in_time("umount", || umount(&instance, at, &[]));
    let printed = text(&busy.stderr);
    assert!(!busy.status.success() && printed.contains("in use by"), "{printed}");
    let again = in_time("mount", || try_mount(&instance, at));
    assert!(text(&again.stderr).contains("has a mount of instance"), "{}", text(&again.stderr));
    let away = in_time("umount --lazy", || umount(&instance, at, &["--lazy"]));
    assert!(away.status.success(), "{}", text(&away.stderr));
    let stop = in_time("stop", || instance.command("stop").output().expect("it runs"));
    assert!(stop.status.success(), "{}", text(&stop.stderr));
    // Dropping the `Instance` stops it once more.
    instance.start_again();
    assert!(has_ended(mounted.pid), "its server has ended");
    child.wait().expect("it ends: the page never arrives");
}

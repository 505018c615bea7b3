//! A process that aborts the mount if this program is killed and cannot end.
//!
//! A thread that tells the kernel to drop pages waits, uninterruptibly, for the lock of a page whose
//! reader waits for a reply of this program. Killed at that moment, the program does not end: the
//! thread holds the device open, so the kernel goes on waiting for replies, the reader keeps the lock,
//! and every program that uses the file hangs for ever. Only somebody else can abort the mount then.
//!
//! The guard is a child of the main thread. The kernel tells it when that thread is gone. If the rest
//! of the program does not follow in a moment, the guard aborts the mount: calls fail, locks are given
//! up, and the program ends. `forebay run` and later commands mount again.

use crate::device::{Mount, top};
use rustix::fs::{Mode, OFlags};
use rustix::mount::UnmountFlags;
use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};
use signal_hook::consts::SIGUSR1;
use signal_hook::iterator::Signals;
use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The argument by which this program runs as the guard.
pub(crate) const CHILD: &str = "--guard";

/// Time in which a killed program ends if nothing holds it up.
const END_TIME: Duration = Duration::from_millis(100);
/// Interval between looks at a program that is about to end.
const PAUSE: Duration = Duration::from_millis(10);
/// Time after which an abort is without effect.
const ABORT_TIME: Duration = Duration::from_secs(10);

/// The guard of a mount, while there is one.
pub(crate) struct Guard(Mutex<Option<Child>>);

/// Starts the guard of a mount, from the main thread. Without one the mount works all the same.
pub(crate) fn start(mount: &Mount) -> Guard {
    let mut command = Command::new("/proc/self/exe");
    command.arg0("forebay-mount").arg(CHILD);
    command.arg(std::process::id().to_string()).arg(&mount.device).arg(&mount.at);
    let started = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn();
    if let Err(error) = &started {
        tracing::warn!(%error, "cannot start the guard of the mount");
    }
    Guard(Mutex::new(started.ok()))
}

impl Guard {
    /// Ends it, after the mount has ended: otherwise a command that waits for the end of this program,
    /// and then removes the directory, finds the guard in the mount's namespace.
    pub(crate) fn end(&self) {
        let child = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(mut child) = child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Runs as the guard; the arguments are those of `start`.
///
/// # Errors
/// One line: the arguments are not those, or the system does not tell when the parent ends.
pub(crate) fn run(mut words: impl Iterator<Item = OsString>) -> Result<(), String> {
    let mut next = || words.next().ok_or("too few arguments");
    let parent = next()?.to_str().and_then(|word| word.parse().ok()).and_then(Pid::from_raw);
    let parent = parent.ok_or("no process number")?;
    let device = next()?.into_string().map_err(|_| "no device number")?;
    let mount = Mount { at: PathBuf::from(next()?), device };
    let mut signals = Signals::new([SIGUSR1]).map_err(|error| error.to_string())?;
    set_parent_process_death_signal(Some(Signal::USR1)).map_err(|errno| errno.to_string())?;
    loop {
        // The parent may have ended before the kernel was asked.
        if getppid() == Some(parent) && MainThread::of(parent) == MainThread::Lives {
            let _ = signals.forever().next();
        }
        if watch_end(parent, &mount) {
            return Ok(());
        }
    }
}

/// Watches the end of the program, and aborts the mount if something holds it up. False if it lives.
fn watch_end(process: Pid, mount: &Mount) -> bool {
    let begun = Instant::now();
    loop {
        match MainThread::of(process) {
            MainThread::Gone => return true,
            MainThread::Lives if begun.elapsed() >= END_TIME => return false,
            MainThread::Ended if begun.elapsed() >= ABORT_TIME => return true,
            MainThread::Ended if begun.elapsed() >= END_TIME => mount.abort(),
            MainThread::Lives | MainThread::Ended => {}
        }
        std::thread::sleep(PAUSE);
    }
}

/// The main thread of a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum MainThread {
    /// It lives.
    Lives,
    /// It has ended, and others have not: they have the device open.
    Ended,
    /// The process has ended.
    Gone,
}

impl MainThread {
    fn of(process: Pid) -> MainThread {
        let stat = format!("/proc/{}/stat", process.as_raw_nonzero());
        let stat = std::fs::read_to_string(stat).unwrap_or_default();
        let fields = stat.rsplit_once(") ").map(|(_, rest)| rest).unwrap_or_default();
        let mut fields = fields.split(' ');
        // Fields 3 and 20 of the line: the state, and the number of threads.
        let state = fields.next().unwrap_or_default();
        let threads: Option<u32> = fields.nth(16).and_then(|field| field.parse().ok());
        match threads {
            Some(threads) if state == "Z" && threads > 1 => MainThread::Ended,
            Some(_) if state != "Z" => MainThread::Lives,
            _ => MainThread::Gone,
        }
    }
}

impl Mount {
    /// Makes the kernel give up all requests. The mount stays; calls fail.
    fn abort(&self) {
        // The owner of the mount may write this file, where the system has mounted `fusectl`.
        let minor = self.device.rsplit(':').next().unwrap_or_default();
        let control = Path::new("/sys/fs/fuse/connections").join(minor).join("abort");
        if std::fs::write(control, "1").is_ok() {
            return;
        }
        if top(&self.at).is_none_or(|row| row.device != self.device) {
            return;
        }
        // A forced unmounting aborts first, and then fails because this descriptor is open: a command
        // that mounts again, or unmounts, finds the mount as after any other death of its program.
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        if let Ok(_busy) = rustix::fs::open(&self.at, flags, Mode::empty()) {
            let _ = rustix::mount::unmount(&self.at, UnmountFlags::FORCE | UnmountFlags::NOFOLLOW);
        }
    }
}

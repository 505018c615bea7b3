//! Processes that outlive this command: knowing them again, waiting for their end, ending them.
//!
//! A process's number is used again after its end. So a process is known by its number, its start
//! time, the boot, and its program; and it is signalled through a handle that was opened before
//! these were compared, so that the signal can not reach another.

use crate::failure::{Failure, Result};
use crate::progress::Progress;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal, test_kill_process};
use serde::{Deserialize, Serialize};
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

/// Longest wait after SIGKILL: the kernel frees the process's memory first.
const KILL_TIME_MAX: Duration = Duration::from_secs(10);
/// Longest single poll, so that progress can be shown.
const POLL_TIME_MAX: Duration = Duration::from_millis(250);

/// A process, in such a way that it is not mistaken for a later one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Identity {
    /// Its number.
    pub(crate) pid: i32,
    /// When it started, in the kernel's ticks since the boot.
    pub(crate) started: u64,
    /// The boot.
    pub(crate) boot: String,
    /// Its program's device and inode. A path would be another in another mount namespace.
    pub(crate) exe: (u64, u64),
}

impl Identity {
    /// The process that has this number now; `None` if there is none, or it is a zombie, or about to be.
    ///
    /// # Errors
    /// There is one, and it can not be looked at: then nobody may take it for dead.
    pub(crate) fn of(pid: i32) -> io::Result<Option<Identity>> {
        read(pid).or_else(|error| if is_none(pid, &error) { Ok(None) } else { Err(error) })
    }

    /// True while the process lives.
    ///
    /// # Errors
    /// It can not be looked at.
    pub(crate) fn is_alive(&self) -> Result<bool> {
        Ok(self.life()? == Life::Lives)
    }

    fn life(&self) -> Result<Life> {
        let unseen = |error| Failure::at("can not look at", format!("process {}", self.pid), error);
        let since = match since(self.pid) {
            Err(error) if is_none(self.pid, &error) => None,
            seen => seen.map_err(unseen)?,
        };
        // The program of another may lie on a mount that does not answer: it is not looked at.
        match since.filter(|one| (one.started, &one.boot) == (self.started, &self.boot)) {
            None => return Ok(Life::Gone),
            Some(since) if since.is_dying => return Ok(Life::Dies),
            Some(_) => {}
        }
        match Identity::of(self.pid) {
            // What runs in a user namespace above is not shown; what is left is unmistakable, too.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(Life::Lives),
            seen => Ok(match seen.map_err(unseen)? {
                Some(one) if one == *self => Life::Lives,
                Some(_) => Life::Gone,
                None => Life::Dies,
            }),
        }
    }

    /// A handle of the process if it lives, or dies.
    fn handle(&self) -> Result<Option<OwnedFd>> {
        let Some(pid) = Pid::from_raw(self.pid) else { return Ok(None) };
        match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(handle) => Ok((self.life()? != Life::Gone).then_some(handle)),
            Err(Errno::SRCH) => Ok(None),
            Err(error) => Err(Failure::at("can not open", format!("process {}", self.pid), error)),
        }
    }

    /// Bytes of memory that the process holds, shared ones included.
    pub(crate) fn resident_bytes(&self) -> Option<u64> {
        let statm = fs::read_to_string(format!("/proc/{}/statm", self.pid)).ok()?;
        let pages: u64 = statm.split_whitespace().nth(1)?.parse().ok()?;
        Some(pages * rustix::param::page_size() as u64)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Life {
    Lives,
    /// Its first thread has ended, and others have not: they may wait for a device, and write to it
    /// when it goes on.
    Dies,
    Gone,
}

/// What the kernel says of a process at once.
struct Since {
    /// When it was started, and in which boot.
    started: u64,
    boot: String,
    is_dying: bool,
}

fn read(pid: i32) -> io::Result<Option<Identity>> {
    let Some(Since { started, boot, is_dying: false }) = since(pid)? else { return Ok(None) };
    // The file that runs, also if it was replaced by a newer one meanwhile.
    let exe = match fs::metadata(format!("/proc/{pid}/exe")) {
        // It is about to be a zombie, or a thread of the kernel.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        exe => exe?,
    };
    let exe = (exe.dev(), exe.ino());
    Ok(Some(Identity { pid, started, boot, exe }))
}

/// When a process was started; `None` for a zombie without threads.
fn since(pid: i32) -> io::Result<Option<Since>> {
    let stat = fs::read(format!("/proc/{pid}/stat"))?;
    let malformed = || io::Error::from(io::ErrorKind::InvalidData);
    let (state, threads, started) = parse_stat(&stat).ok_or_else(malformed)?;
    let is_dying = matches!(state, 'Z' | 'X');
    if is_dying && threads <= 1 {
        return Ok(None);
    }
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    Ok(Some(Since { started, boot: boot.trim().to_owned(), is_dying }))
}

/// True if there is no such process, or one that is hidden from us, so not ours. No descriptor is needed
/// to ask the kernel that.
fn is_none(pid: i32, error: &io::Error) -> bool {
    match Pid::from_raw(pid).map(test_kill_process) {
        None | Some(Err(Errno::SRCH)) => true,
        Some(Err(Errno::PERM)) => error.kind() == io::ErrorKind::NotFound,
        Some(_) => false,
    }
}

/// State, threads, the first one counted also when it has ended, and start time; the program's name in
/// between may hold anything, text or not.
fn parse_stat(stat: &[u8]) -> Option<(char, u64, u64)> {
    let name_end = stat.iter().rposition(|&byte| byte == b')')?;
    let mut fields = std::str::from_utf8(stat.get(name_end + 1..)?).ok()?.split_whitespace();
    let state = fields.next()?.chars().next()?;
    // Fields 20 and 22 of the line; the state is field 3.
    Some((state, fields.nth(16)?.parse().ok()?, fields.nth(1)?.parse().ok()?))
}

/// Ends processes: asks, waits `patience`, and kills what is left. How many had to be killed.
///
/// # Errors
/// One of them can not be looked at: then none is asked.
pub(crate) fn end(all: &[Identity], patience: Duration, progress: &mut Progress) -> Result<usize> {
    let handles = all.iter().map(Identity::handle).collect::<Result<Vec<_>>>()?;
    let mut left: Vec<OwnedFd> = handles.into_iter().flatten().collect();
    for handle in &left {
        let _ = pidfd_send_signal(handle, Signal::TERM);
        // One that stands still hears it only when it goes on.
        let _ = pidfd_send_signal(handle, Signal::CONT);
    }
    wait(&mut left, Instant::now() + patience, progress);
    let killed = left.len();
    for handle in &left {
        let _ = pidfd_send_signal(handle, Signal::KILL);
    }
    wait(&mut left, Instant::now() + KILL_TIME_MAX, progress);
    Ok(killed)
}

/// Waits for the end of a process that is about to end by itself; ends it after `patience`.
///
/// # Errors
/// It can not be looked at.
pub(crate) fn wait_or_end(
    one: &Identity,
    patience: Duration,
    progress: &mut Progress,
) -> Result<()> {
    let mut left: Vec<OwnedFd> = one.handle()?.into_iter().collect();
    wait(&mut left, Instant::now() + patience, progress);
    if !left.is_empty() {
        end(std::slice::from_ref(one), patience, progress)?;
    }
    Ok(())
}

/// Waits for the processes' ends; those that ended are taken off the list.
fn wait(handles: &mut Vec<OwnedFd>, until: Instant, progress: &mut Progress) {
    while !handles.is_empty() {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        let ended: Vec<bool> = {
            let mut polled: Vec<_> =
                handles.iter().map(|handle| PollFd::new(handle, PollFlags::IN)).collect();
            let _ = poll(&mut polled, Some(&limit(left)));
            polled.iter().map(|one| !one.revents().is_empty()).collect()
        };
        let mut ended = ended.into_iter();
        handles.retain(|_| !ended.next().unwrap_or(false));
        progress.tick();
    }
}

/// The limit of one poll, with time left until a deadline.
pub(crate) fn limit(left: Duration) -> Timespec {
    let left = left.min(POLL_TIME_MAX);
    Timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: i64::from(left.subsec_nanos()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::{Resource, Rlimit, setrlimit};
    use std::process::{Child, Command};

    fn sleeper() -> Child {
        Command::new("sleep").arg("60").spawn().expect("sleep runs")
    }

    /// The identity once the child has become `sleep`.
    fn identity(child: &Child) -> Identity {
        let of = |pid: u32| Identity::of(pid.cast_signed()).expect("looked at").expect("it lives");
        let own = of(std::process::id());
        loop {
            let found = of(child.id());
            if found.exe != own.exe {
                return found;
            }
            std::thread::yield_now();
        }
    }

    #[test]
    fn the_line_of_the_kernel_is_read_behind_the_name() {
        let line = b"7 (a\xff) b) Z) S 1 7 7 0 -1 4194304 1 0 0 0 0 0 0 0 20 0 3 0 4711 1 1\n";
        assert_eq!(parse_stat(line), Some(('S', 3, 4711)));
        assert_eq!(parse_stat(b"7 (a"), None);
    }

    #[test]
    fn only_the_process_that_was_meant_is_ended() {
        let mut child = sleeper();
        let right = identity(&child);
        let wrong = [
            Identity { started: right.started + 1, ..right.clone() },
            Identity { exe: (right.exe.0, right.exe.1 + 1), ..right.clone() },
            Identity { boot: "another".into(), ..right.clone() },
        ];
        let mut quiet = Progress::new("");
        assert_eq!(end(&wrong, Duration::from_millis(50), &mut quiet).expect("looked at"), 0);
        assert!(right.is_alive().expect("looked at"));
        assert!(right.resident_bytes().is_some_and(|bytes| bytes > 0));
        let ended = end(std::slice::from_ref(&right), Duration::from_secs(5), &mut quiet);
        assert_eq!(ended.expect("looked at"), 0);
        // Not waited for yet, so a zombie: that is dead.
        assert!(!right.is_alive().expect("looked at"));
        child.wait().expect("it ended");
        assert!(!right.is_alive().expect("looked at"));
    }

    /// Threads of one that was killed may stand in a device when the first has ended.
    #[test]
    fn who_still_dies_is_not_alive_and_is_waited_for() {
        let script = "import ctypes, threading, time\n\
            threading.Thread(target=time.sleep, args=(60,)).start()\n\
            ctypes.CDLL(None).pthread_exit(0)";
        let mut child = Command::new("python3").args(["-c", script]).spawn().expect("it runs");
        let pid = child.id().cast_signed();
        let dying = loop {
            if let Ok(Some(Since { started, boot, is_dying: true })) = since(pid) {
                break Identity { pid, started, boot, exe: (0, 0) };
            }
            assert_eq!(child.try_wait().expect("looked at"), None);
            std::thread::yield_now();
        };
        assert_eq!(Identity::of(pid).expect("looked at"), None);
        assert!(!dying.is_alive().expect("looked at"));
        let (mut quiet, short) = (Progress::new(""), Duration::from_millis(50));
        assert_eq!(end(std::slice::from_ref(&dying), short, &mut quiet).expect("looked at"), 0);
        assert_eq!(dying.life().expect("looked at"), Life::Gone);
        child.wait().expect("it ended");
    }

    #[test]
    fn who_can_not_be_looked_at_is_not_taken_for_dead() {
        const IN_CHILD: &str = "PROCESS_TEST_WITHOUT_DESCRIPTORS";
        if let Some(parent) = std::env::var_os(IN_CHILD) {
            let parent = parent.to_str().and_then(|pid| pid.parse().ok()).expect("a number");
            let mut gone = sleeper();
            let [lives, gone_one] = [parent, gone.id().cast_signed()]
                .map(|pid| Identity::of(pid).expect("looked at").expect("it lives"));
            gone.kill().expect("killed");
            gone.wait().expect("it ended");
            let none = Rlimit { current: Some(0), maximum: Some(0) };
            setrlimit(Resource::Nofile, none).expect("a limit");
            assert!(lives.is_alive().is_err(), "nobody can know that");
            let mut quiet = Progress::new("");
            assert!(end(&[lives], Duration::ZERO, &mut quiet).is_err(), "it was not ended");
            assert_eq!(gone_one.is_alive().ok(), Some(false));
            assert_eq!(end(&[gone_one], Duration::ZERO, &mut quiet).ok(), Some(0));
            return;
        }
        // The limit is the whole process's, and other tests run in this one.
        let name = "process::tests::who_can_not_be_looked_at_is_not_taken_for_dead";
        let output = Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", name])
            .env(IN_CHILD, std::process::id().to_string())
            .output()
            .expect("a process");
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("1 passed"), "{text}");
    }
}

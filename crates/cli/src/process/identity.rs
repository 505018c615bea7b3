//! Processes that outlive this command: identifying them, waiting for their end, ending them.
//!
//! A pid is reused after the end of its process. So a process is identified by its pid, its start
//! time, the boot, and its program. It is signalled through a pidfd that was opened before these
//! were compared, so that the signal cannot reach another.

use crate::failure::{Failure, Result};
use crate::process::progress::Progress;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal, test_kill_process};
use serde::{Deserialize, Serialize};
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

/// Longest wait after SIGKILL, in which the kernel frees the memory of the process.
const KILL_TIME_MAX: Duration = Duration::from_secs(10);
/// Longest single poll, so that the progress line is updated.
const POLL_TIME_MAX: Duration = Duration::from_millis(250);

/// Identifies a process so that it is not mistaken for a later one with the same pid.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ProcessIdentity {
    /// Its pid.
    pub(crate) pid: i32,
    /// Its start time, in clock ticks since the boot.
    pub(crate) started: u64,
    /// Identifier of the boot.
    pub(crate) boot: String,
    /// Device and inode of its program. A path may differ between mount namespaces.
    pub(crate) exe: (u64, u64),
}

impl ProcessIdentity {
    /// The process that has this pid now; `None` if there is none, or it is a zombie or about to
    /// become one.
    ///
    /// # Errors
    /// There is one and its state cannot be read. The caller must not take it for dead.
    pub(crate) fn of(pid: i32) -> io::Result<Option<ProcessIdentity>> {
        read(pid).or_else(|error| if is_none(pid, &error) { Ok(None) } else { Err(error) })
    }

    /// True while the process is alive.
    ///
    /// # Errors
    /// Its state cannot be read.
    pub(crate) fn is_alive(&self) -> Result<bool> {
        Ok(self.state()? == ProcessState::Alive)
    }

    fn state(&self) -> Result<ProcessState> {
        let unreadable =
            |error| Failure::at("cannot read the state of", format!("process {}", self.pid), error);
        let stat = match stat(self.pid) {
            Err(error) if is_none(self.pid, &error) => None,
            stat => stat.map_err(unreadable)?,
        };
        // The program of another process is not read: it may be on a mount that does not answer.
        match stat.filter(|one| (one.started, &one.boot) == (self.started, &self.boot)) {
            None => return Ok(ProcessState::Gone),
            Some(stat) if stat.is_dying => return Ok(ProcessState::Dying),
            Some(_) => {}
        }
        match ProcessIdentity::of(self.pid) {
            // A program in an outer user namespace is not readable; pid, start time and boot are
            // enough.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                Ok(ProcessState::Alive)
            }
            identity => Ok(match identity.map_err(unreadable)? {
                Some(one) if one == *self => ProcessState::Alive,
                Some(_) => ProcessState::Gone,
                None => ProcessState::Dying,
            }),
        }
    }

    /// A pidfd of the process if it is alive or dying.
    fn handle(&self) -> Result<Option<OwnedFd>> {
        let Some(pid) = Pid::from_raw(self.pid) else { return Ok(None) };
        match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(handle) => Ok((self.state()? != ProcessState::Gone).then_some(handle)),
            Err(Errno::SRCH) => Ok(None),
            Err(error) => Err(Failure::at("cannot open", format!("process {}", self.pid), error)),
        }
    }

    /// Resident memory of the process in bytes, including shared memory.
    pub(crate) fn pinned_bytes(&self) -> Option<u64> {
        let statm = fs::read_to_string(format!("/proc/{}/statm", self.pid)).ok()?;
        let pages: u64 = statm.split_whitespace().nth(1)?.parse().ok()?;
        Some(pages * rustix::param::page_size() as u64)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ProcessState {
    Alive,
    /// Its first thread has ended but others have not. They may be waiting for a device, and write
    /// to it later.
    Dying,
    Gone,
}

/// The state of a process in `/proc/PID/stat`.
struct ProcessStat {
    /// Its start time, in clock ticks since the boot.
    started: u64,
    /// Identifier of the boot.
    boot: String,
    is_dying: bool,
}

fn read(pid: i32) -> io::Result<Option<ProcessIdentity>> {
    let Some(ProcessStat { started, boot, is_dying: false }) = stat(pid)? else { return Ok(None) };
    // The running file, even if it has been replaced on disk.
    let exe = match fs::metadata(format!("/proc/{pid}/exe")) {
        // A process that is about to become a zombie, or a kernel thread.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        exe => exe?,
    };
    let exe = (exe.dev(), exe.ino());
    Ok(Some(ProcessIdentity { pid, started, boot, exe }))
}

/// The state of a process; `None` for a zombie without other threads.
fn stat(pid: i32) -> io::Result<Option<ProcessStat>> {
    let line = fs::read(format!("/proc/{pid}/stat"))?;
    let malformed = || io::Error::from(io::ErrorKind::InvalidData);
    let (state, threads, started) = parse_stat(&line).ok_or_else(malformed)?;
    let is_dying = matches!(state, 'Z' | 'X');
    if is_dying && threads <= 1 {
        return Ok(None);
    }
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    Ok(Some(ProcessStat { started, boot: boot.trim().to_owned(), is_dying }))
}

/// True if there is no such process, or one that is hidden and so belongs to another user. Needs no
/// file descriptor.
fn is_none(pid: i32, error: &io::Error) -> bool {
    match Pid::from_raw(pid).map(test_kill_process) {
        None | Some(Err(Errno::SRCH)) => true,
        Some(Err(Errno::PERM)) => error.kind() == io::ErrorKind::NotFound,
        Some(_) => false,
    }
}

/// State, number of threads (including a first one that has ended), and start time. The program's
/// name between them may contain any bytes.
fn parse_stat(stat: &[u8]) -> Option<(char, u64, u64)> {
    let name_end = stat.iter().rposition(|&byte| byte == b')')?;
    let mut fields = std::str::from_utf8(stat.get(name_end + 1..)?).ok()?.split_whitespace();
    let state = fields.next()?.chars().next()?;
    // Fields 20 and 22 of the line; the state is field 3.
    Some((state, fields.nth(16)?.parse().ok()?, fields.nth(1)?.parse().ok()?))
}

/// Ends processes: sends SIGTERM, waits for `timeout`, and kills those that are left. Returns the
/// number of killed processes.
///
/// # Errors
/// The state of one of them cannot be read; then none is signalled.
pub(crate) fn end(
    all: &[ProcessIdentity],
    timeout: Duration,
    progress: &mut Progress,
) -> Result<usize> {
    let handles = all.iter().map(ProcessIdentity::handle).collect::<Result<Vec<_>>>()?;
    let mut left: Vec<OwnedFd> = handles.into_iter().flatten().collect();
    for handle in &left {
        let _ = pidfd_send_signal(handle, Signal::TERM);
        // A stopped process handles SIGTERM only after SIGCONT.
        let _ = pidfd_send_signal(handle, Signal::CONT);
    }
    wait(&mut left, Instant::now() + timeout, progress);
    let killed = left.len();
    for handle in &left {
        let _ = pidfd_send_signal(handle, Signal::KILL);
    }
    wait(&mut left, Instant::now() + KILL_TIME_MAX, progress);
    Ok(killed)
}

/// Waits for a process that is about to end by itself; ends it after `timeout`.
///
/// # Errors
/// Its state cannot be read.
pub(crate) fn wait_or_end(
    one: &ProcessIdentity,
    timeout: Duration,
    progress: &mut Progress,
) -> Result<()> {
    let mut left: Vec<OwnedFd> = one.handle()?.into_iter().collect();
    wait(&mut left, Instant::now() + timeout, progress);
    if !left.is_empty() {
        end(std::slice::from_ref(one), timeout, progress)?;
    }
    Ok(())
}

/// Waits for processes to end, and removes those that have ended from `handles`.
fn wait(handles: &mut Vec<OwnedFd>, deadline: Instant, progress: &mut Progress) {
    while !handles.is_empty() {
        let left = deadline.saturating_duration_since(Instant::now());
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

/// The timeout of one poll, with `left` to the deadline.
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

    /// The identity after the child has become `sleep`.
    fn identity(child: &Child) -> ProcessIdentity {
        let of =
            |pid: u32| ProcessIdentity::of(pid.cast_signed()).expect("readable").expect("it lives");
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
    fn the_stat_line_is_read_after_the_program_name() {
        let line = b"7 (a\xff) b) Z) S 1 7 7 0 -1 4194304 1 0 0 0 0 0 0 0 20 0 3 0 4711 1 1\n";
        assert_eq!(parse_stat(line), Some(('S', 3, 4711)));
        assert_eq!(parse_stat(b"7 (a"), None);
    }

    #[test]
    fn only_the_identified_process_is_ended() {
        let mut child = sleeper();
        let right = identity(&child);
        let wrong = [
            ProcessIdentity { started: right.started + 1, ..right.clone() },
            ProcessIdentity { exe: (right.exe.0, right.exe.1 + 1), ..right.clone() },
            ProcessIdentity { boot: "another".into(), ..right.clone() },
        ];
        let mut quiet = Progress::new("");
        assert_eq!(end(&wrong, Duration::from_millis(50), &mut quiet).expect("readable"), 0);
        assert!(right.is_alive().expect("readable"));
        assert!(right.pinned_bytes().is_some_and(|bytes| bytes > 0));
        let ended = end(std::slice::from_ref(&right), Duration::from_secs(5), &mut quiet);
        assert_eq!(ended.expect("readable"), 0);
        // A zombie, because it has not been waited for: not alive.
        assert!(!right.is_alive().expect("readable"));
        child.wait().expect("it ended");
        assert!(!right.is_alive().expect("readable"));
    }

    /// Threads of a killed process may still wait in a device after the first thread has ended.
    #[test]
    fn a_dying_process_is_not_alive_and_is_waited_for() {
        let script = "import ctypes, threading, time\n\
            threading.Thread(target=time.sleep, args=(60,)).start()\n\
            ctypes.CDLL(None).pthread_exit(0)";
        let mut child = Command::new("python3").args(["-c", script]).spawn().expect("it runs");
        let pid = child.id().cast_signed();
        let dying = loop {
            if let Ok(Some(ProcessStat { started, boot, is_dying: true })) = stat(pid) {
                break ProcessIdentity { pid, started, boot, exe: (0, 0) };
            }
            assert_eq!(child.try_wait().expect("readable"), None);
            std::thread::yield_now();
        };
        assert_eq!(ProcessIdentity::of(pid).expect("readable"), None);
        assert!(!dying.is_alive().expect("readable"));
        let (mut quiet, short) = (Progress::new(""), Duration::from_millis(50));
        assert_eq!(end(std::slice::from_ref(&dying), short, &mut quiet).expect("readable"), 0);
        assert_eq!(dying.state().expect("readable"), ProcessState::Gone);
        child.wait().expect("it ended");
    }

    #[test]
    fn a_process_whose_state_is_unreadable_is_not_taken_for_dead() {
        const IN_CHILD: &str = "PROCESS_TEST_WITHOUT_DESCRIPTORS";
        if let Some(parent) = std::env::var_os(IN_CHILD) {
            let parent = parent.to_str().and_then(|pid| pid.parse().ok()).expect("a number");
            let mut gone = sleeper();
            let [alive, gone_one] = [parent, gone.id().cast_signed()]
                .map(|pid| ProcessIdentity::of(pid).expect("readable").expect("it lives"));
            gone.kill().expect("killed");
            gone.wait().expect("it ended");
            let none = Rlimit { current: Some(0), maximum: Some(0) };
            setrlimit(Resource::Nofile, none).expect("a limit");
            assert!(alive.is_alive().is_err(), "the state is unreadable");
            let mut quiet = Progress::new("");
            assert!(end(&[alive], Duration::ZERO, &mut quiet).is_err(), "it was not ended");
            assert_eq!(gone_one.is_alive().ok(), Some(false));
            assert_eq!(end(&[gone_one], Duration::ZERO, &mut quiet).ok(), Some(0));
            return;
        }
        // The limit applies to the whole process, in which other tests run.
        let name =
            "process::identity::tests::a_process_whose_state_is_unreadable_is_not_taken_for_dead";
        let output = Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", name])
            .env(IN_CHILD, std::process::id().to_string())
            .output()
            .expect("a process");
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("1 passed"), "{text}");
    }
}

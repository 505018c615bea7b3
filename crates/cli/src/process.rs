//! Processes that outlive this command: knowing them again, waiting for their end, ending them.
//!
//! A process's number is used again after its end. So a process is known by its number, its start
//! time, the boot, and its program; and it is signalled through a handle that was opened before
//! these were compared, so that the signal can not reach another.

use crate::progress::Progress;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};
use std::fs;
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
    /// The process that has this number now; `None` if there is none, or it is a zombie.
    pub(crate) fn of(pid: i32) -> Option<Identity> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let (state, started) = parse_stat(&stat)?;
        if matches!(state, 'Z' | 'X') {
            return None;
        }
        // The file that runs, also if it was replaced by a newer one meanwhile.
        let exe = fs::metadata(format!("/proc/{pid}/exe")).ok()?;
        let exe = (exe.dev(), exe.ino());
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        Some(Identity { pid, started, boot: boot.trim().to_owned(), exe })
    }

    /// True while the process lives.
    pub(crate) fn is_alive(&self) -> bool {
        Identity::of(self.pid).as_ref() == Some(self)
    }

    /// A handle of the process if it lives.
    fn handle(&self) -> Option<OwnedFd> {
        let handle = pidfd_open(Pid::from_raw(self.pid)?, PidfdFlags::empty()).ok()?;
        self.is_alive().then_some(handle)
    }

    /// Bytes of memory that the process holds, shared ones included.
    pub(crate) fn resident_bytes(&self) -> Option<u64> {
        let statm = fs::read_to_string(format!("/proc/{}/statm", self.pid)).ok()?;
        let pages: u64 = statm.split_whitespace().nth(1)?.parse().ok()?;
        Some(pages * rustix::param::page_size() as u64)
    }
}

/// State and start time; the program's name in between may hold blanks and brackets.
fn parse_stat(stat: &str) -> Option<(char, u64)> {
    let rest = stat.get(stat.rfind(')')? + 1..)?;
    let mut fields = rest.split_whitespace();
    let state = fields.next()?.chars().next()?;
    // Field 22 of the line; the state is field 3.
    Some((state, fields.nth(18)?.parse().ok()?))
}

/// Ends processes: asks, waits `patience`, and kills what is left. How many had to be killed.
pub(crate) fn end(all: &[Identity], patience: Duration, progress: &mut Progress) -> usize {
    let mut left: Vec<OwnedFd> = all.iter().filter_map(Identity::handle).collect();
    for handle in &left {
        let _ = pidfd_send_signal(handle, Signal::TERM);
    }
    wait(&mut left, Instant::now() + patience, progress);
    let killed = left.len();
    for handle in &left {
        let _ = pidfd_send_signal(handle, Signal::KILL);
    }
    wait(&mut left, Instant::now() + KILL_TIME_MAX, progress);
    killed
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
    use std::process::{Child, Command};

    fn sleeper() -> Child {
        Command::new("sleep").arg("60").spawn().expect("sleep runs")
    }

    /// The identity once the child has become `sleep`.
    fn identity(child: &Child) -> Identity {
        let own = Identity::of(std::process::id().cast_signed()).expect("it lives");
        loop {
            let found = Identity::of(child.id().cast_signed()).expect("it lives");
            if found.exe != own.exe {
                return found;
            }
            std::thread::yield_now();
        }
    }

    #[test]
    fn the_line_of_the_kernel_is_read_behind_the_name() {
        let line = "7 (a) b) Z) S 1 7 7 0 -1 4194304 1 0 0 0 0 0 0 0 20 0 1 0 4711 1 1\n";
        assert_eq!(parse_stat(line), Some(('S', 4711)));
        assert_eq!(parse_stat("7 (a"), None);
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
        assert_eq!(end(&wrong, Duration::from_millis(50), &mut quiet), 0);
        assert!(right.is_alive());
        assert!(right.resident_bytes().is_some_and(|bytes| bytes > 0));
        assert_eq!(end(std::slice::from_ref(&right), Duration::from_secs(5), &mut quiet), 0);
        // Not waited for yet, so a zombie: that is dead.
        assert!(!right.is_alive());
        child.wait().expect("it ended");
    }
}

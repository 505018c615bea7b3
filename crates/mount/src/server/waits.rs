//! Waits for locks, for writeback, for page drops and for a mount that is behind, on behalf of requests,
//! as the thread that handles them sees them (`serve::wait_thread`).

use client::{Client, LockWait, OfdIndex, WritebackWait};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;
use wire::errno::{Errno, Result};

use crate::kernel_cache::pages::DeferredReply;

/// A reference to a lock file, for as long as a lock is waited for through it.
pub(crate) struct LockFileRef(pub(crate) Option<OfdIndex>);

/// Sends the result of a wait.
type Say = Box<dyn FnOnce(Result<()>) + Send>;

/// Kind of wait.
pub(crate) enum WaitKind {
    /// The reference to the lock file is dropped with the wait.
    Lock(LockWait<'static>, LockFileRef),
    Writeback(WritebackWait<'static>),
    PageDrop(DeferredReply),
    CatchUp(CatchUpWait),
}

/// A reply of a mount that is behind (`Client::is_behind`), until it is not.
pub(crate) struct CatchUpWait {
    client: &'static Client,
    until: Instant,
}

impl CatchUpWait {
    pub(crate) fn new(client: &'static Client) -> CatchUpWait {
        CatchUpWait { client, until: Instant::now() + client.timeout() }
    }

    fn poll(&self) -> Option<Result<()>> {
        if !self.client.is_behind() {
            return Some(Ok(()));
        }
        if Instant::now() < self.until {
            return None;
        }
        // The next request does not wait again.
        self.client.forget_behind();
        Some(Err(Errno::EIO))
    }
}

/// A wait that has begun.
pub(crate) struct StartedWait(pub(crate) WaitKind);

impl StartedWait {
    /// The result if no more waits are possible.
    pub(crate) const fn unwaited(&self) -> Result<()> {
        match self.0 {
            WaitKind::Lock(..) => Err(Errno::ENOLCK),
            WaitKind::Writeback(_) | WaitKind::CatchUp(_) => Err(Errno::EIO),
            WaitKind::PageDrop(_) => Ok(()),
        }
    }

    /// The waiting program got a signal. A close or sync is interrupted only by a fatal signal,
    /// because programs rely on that.
    pub(crate) fn interrupt(&mut self, pid: u32) {
        match &mut self.0 {
            WaitKind::Lock(wait, _) => wait.interrupt(),
            WaitKind::Writeback(wait) if is_killed(pid) => wait.interrupt(),
            WaitKind::Writeback(_) | WaitKind::PageDrop(_) | WaitKind::CatchUp(_) => {}
        }
    }

    /// True if a signal may end it.
    pub(crate) const fn is_interruptible(&self) -> bool {
        matches!(self.0, WaitKind::Lock(..) | WaitKind::Writeback(_))
    }

    pub(crate) fn poll(&mut self) -> Option<Result<()>> {
        match &mut self.0 {
            WaitKind::Lock(wait, _) => wait.poll(),
            WaitKind::Writeback(wait) => wait.poll(),
            WaitKind::PageDrop(reply) => reply.is_due().then_some(Ok(())),
            WaitKind::CatchUp(wait) => wait.poll(),
        }
    }
}

/// A wait that the thread handles.
pub(crate) struct PendingWait {
    pub(crate) unique: u64,
    /// Thread id of the caller.
    pub(crate) pid: u32,
    pub(crate) is_stopped: Arc<AtomicBool>,
    pub(crate) started: Box<StartedWait>,
    pub(crate) say: Say,
}

/// The signals of a thread that it will get as soon as it may: sent, and not blocked. `None` for a thread
/// that does not exist, or cannot be seen from here.
fn pending_signals(pid: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let mask = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        u64::from_str_radix(line.trim(), 16).ok()
    };
    Some((mask("SigPnd:")? | mask("ShdPnd:")?) & !mask("SigBlk:")?)
}

/// True if a thread has a pending SIGKILL or does not exist.
fn is_killed(pid: u32) -> bool {
    const KILLED: u64 = 1 << (libc::SIGKILL - 1);
    pending_signals(pid).is_none_or(|pending| pending & KILLED != 0)
}

/// True if a thread has a pending signal.
pub(crate) fn has_signal(pid: u32) -> bool {
    pending_signals(pid).is_some_and(|pending| pending != 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_signal_that_a_thread_will_get_is_seen() {
        let mut child = Command::new("sleep").arg("1000").spawn().expect("it runs");
        let pid = child.id();
        let kill = |signal: &str| {
            let sent = Command::new("kill").args([signal, &pid.to_string()]).status();
            assert!(sent.expect("it runs").success());
        };
        assert!(!has_signal(pid) && !is_killed(pid));
        // A stopped process takes no other signal.
        kill("-STOP");
        let is_stopped = || {
            let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("a process");
            status.lines().any(|line| line.starts_with("State:\tT"))
        };
        while !is_stopped() {
            std::thread::yield_now();
        }
        assert!(!has_signal(pid));
        kill("-TERM");
        assert!(has_signal(pid) && !is_killed(pid));
        kill("-KILL");
        child.wait().expect("it ends");
        assert!(!has_signal(pid) && is_killed(pid), "it does not exist");
    }

    /// A signal that is blocked ends no wait: this thread's own.
    #[test]
    fn a_blocked_signal_is_not_seen() {
        let script = "import os, signal, sys\n\
                      signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])\n\
                      os.kill(os.getpid(), signal.SIGUSR1)\n\
                      print('sent', flush=True); sys.stdin.read()";
        let mut child = Command::new("python3")
            .args(["-c", script])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .expect("it runs");
        let mut line = String::new();
        let output = child.stdout.take().expect("a pipe");
        std::io::BufRead::read_line(&mut std::io::BufReader::new(output), &mut line)
            .expect("a line");
        assert_eq!(line, "sent\n");
        let seen = has_signal(child.id());
        drop(child.stdin.take());
        child.wait().expect("it ends");
        assert!(!seen);
    }
}

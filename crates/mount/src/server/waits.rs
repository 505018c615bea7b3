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

/// True if a thread has a pending SIGKILL or does not exist.
fn is_killed(pid: u32) -> bool {
    const KILLED: u64 = 1 << (libc::SIGKILL - 1);
    let Ok(status) = std::fs::read_to_string(format!("/proc/{pid}/status")) else { return true };
    let pending = status.lines().filter_map(|line| {
        let mask = line.strip_prefix("SigPnd:").or_else(|| line.strip_prefix("ShdPnd:"))?;
        u64::from_str_radix(mask.trim(), 16).ok()
    });
    pending.fold(0, |all, mask| all | mask) & KILLED != 0
}

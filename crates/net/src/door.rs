//! The door of `transport` for other threads: finds the connection of a daemon and queues there.

use crate::frame::Kind;
use crate::line::{Haste, Line, Queued};
use rustix::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use wire::DaemonIndex;

/// The request was not answered: the connection is not there, or ended meanwhile. It may or may
/// not have been carried out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lost;

/// Where the reply to a peer's request goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Answer {
    pub(crate) to: DaemonIndex,
    pub(crate) connection: u64,
    pub(crate) id: u64,
}

/// What all threads reach.
pub(crate) struct Shared<T> {
    /// The connection of each daemon that is up.
    lines: Vec<Mutex<Option<Arc<Line<T>>>>>,
    /// Connections with frames that nobody has flushed.
    unsent: Unsent<T>,
    /// Connections with frames that wait for others to go with.
    later: Unsent<T>,
    pub(crate) poller: OwnedFd,
    pub(crate) waker: OwnedFd,
    pub(crate) stopping: AtomicBool,
}

/// Connections to be flushed.
struct Unsent<T> {
    lines: Mutex<Vec<Arc<Line<T>>>>,
    has_any: AtomicBool,
}

impl<T> Unsent<T> {
    fn new() -> Unsent<T> {
        Unsent { lines: Mutex::default(), has_any: AtomicBool::new(false) }
    }

    fn push(&self, line: Arc<Line<T>>) {
        lock(&self.lines).push(line);
        self.has_any.store(true, Ordering::Release);
    }

    fn pop(&self) -> Option<Arc<Line<T>>> {
        if !self.has_any.load(Ordering::Acquire) {
            return None;
        }
        let mut lines = lock(&self.lines);
        let line = lines.pop();
        self.has_any.store(!lines.is_empty(), Ordering::Release);
        line
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<T> Shared<T> {
    pub(crate) fn new(daemon_count: u16, poller: OwnedFd, waker: OwnedFd) -> Shared<T> {
        Shared {
            lines: (0..daemon_count).map(|_| Mutex::default()).collect(),
            unsent: Unsent::new(),
            later: Unsent::new(),
            poller,
            waker,
            stopping: AtomicBool::new(false),
        }
    }

    /// The connection of a daemon, if it is up.
    pub(crate) fn line(&self, to: DaemonIndex) -> Option<Arc<Line<T>>> {
        lock(self.lines.get(usize::from(to.0))?).clone()
    }

    /// A connection is up, or (`None`) down. The one before.
    pub(crate) fn set_line(
        &self,
        to: DaemonIndex,
        line: Option<Arc<Line<T>>>,
    ) -> Option<Arc<Line<T>>> {
        let mut place = lock(self.lines.get(usize::from(to.0))?);
        std::mem::replace(&mut *place, line)
    }

    /// Notes that a frame waits for `flush`.
    pub(crate) fn note(&self, line: Arc<Line<T>>, queued: Queued) {
        match queued {
            Queued::First => self.unsent.push(line),
            Queued::Later => self.later.push(line),
            Queued::Behind => {}
        }
    }

    /// Sends what is queued, by whomever. Every thread finds what itself queued.
    pub(crate) fn flush(&self) {
        while let Some(line) = self.unsent.pop() {
            line.flush(&self.poller);
        }
    }

    /// True if frames wait for others to go with.
    pub(crate) fn has_later(&self) -> bool {
        self.later.has_any.load(Ordering::Relaxed)
    }

    /// Sends what waits for others to go with, too.
    pub(crate) fn flush_all(&self) {
        self.flush();
        while let Some(line) = self.later.pop() {
            line.flush(&self.poller);
        }
    }
}

/// The door. What is handed in waits for `flush`: who hands in several flushes once.
pub struct Sender<T> {
    pub(crate) shared: Arc<Shared<T>>,
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Sender<T> {
        Sender { shared: Arc::clone(&self.shared) }
    }
}

impl<T> Sender<T> {
    /// Queues a request; its end comes to `Handler::reply` with `token`.
    ///
    /// # Errors
    /// The token, if `to` is not connected or has too much to take already.
    pub fn request(&self, to: DaemonIndex, bytes: &[u8], token: T) -> Result<(), T> {
        let Some(line) = self.shared.line(to) else { return Err(token) };
        let queued = line.request(bytes, token)?;
        self.shared.note(line, queued);
        Ok(())
    }

    /// Queues a message.
    ///
    /// # Errors
    /// `Lost` if `to` is not connected or has too much to take already.
    pub fn message(&self, to: DaemonIndex, bytes: &[u8], haste: Haste) -> Result<(), Lost> {
        let line = self.shared.line(to).ok_or(Lost)?;
        let queued = line.message(bytes, haste).map_err(|_| Lost)?;
        self.shared.note(line, queued);
        Ok(())
    }

    /// Queues the answer to a request. Their number is bounded by that of the requests that were
    /// read. It is lost with the connection on which the request came.
    pub fn reply(&self, to: Answer, bytes: &[u8]) {
        let line = self.shared.line(to.to).filter(|line| line.key == to.connection);
        let Some(line) = line else { return };
        if let Ok(queued) = line.push(Kind::Reply, to.id, bytes) {
            self.shared.note(line, queued);
        }
    }

    /// Sends what was queued: on the calling thread, unless another is at it.
    pub fn flush(&self) {
        self.shared.flush();
    }

    /// As `flush`, and sends what can wait: nothing else is to come soon.
    pub fn flush_all(&self) {
        self.shared.flush_all();
    }

    /// Ends `Net::run`.
    pub fn stop(&self) {
        self.shared.stopping.store(true, Ordering::SeqCst);
        let _ = rustix::io::write(&self.shared.waker, &1u64.to_ne_bytes());
    }
}

//! Interface of `transport` for other threads: finds the connection of a daemon and queues frames
//! on it.

use crate::frame::FrameKind;
use crate::link::{Link, Queued, Urgency};
use rustix::fd::OwnedFd;
use rustix::net::Shutdown;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use wire::DaemonIndex;

/// The request was not answered: there is no connection, or it was lost. The request may or may not
/// have been carried out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lost;

/// Destination of the reply to a peer's request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReplyHandle {
    pub(crate) to: DaemonIndex,
    pub(crate) connection: u64,
    pub(crate) id: u64,
}

/// State shared by all threads.
pub(crate) struct Links<T> {
    /// The connection of each daemon, if it is up.
    by_daemon: Vec<Mutex<Option<Arc<Link<T>>>>>,
    /// The start of each daemon that was connected last.
    starts: Vec<AtomicU64>,
    /// Connections with frames that must be flushed.
    urgent: FlushList<T>,
    /// Connections whose frames may wait to be sent together with others.
    batched: FlushList<T>,
    pub(crate) poller: OwnedFd,
    pub(crate) waker: OwnedFd,
    pub(crate) stopping: AtomicBool,
    /// The socket for daemons of this host must be made again.
    pub(crate) listen_again: AtomicBool,
    /// The file of addresses has changed.
    pub(crate) read_addresses: AtomicBool,
}

/// Connections to be flushed.
struct FlushList<T> {
    queued: Mutex<Vec<Arc<Link<T>>>>,
    has_any: AtomicBool,
}

impl<T> FlushList<T> {
    fn new() -> FlushList<T> {
        FlushList { queued: Mutex::default(), has_any: AtomicBool::new(false) }
    }

    fn push(&self, link: Arc<Link<T>>) {
        lock(&self.queued).push(link);
        self.has_any.store(true, Ordering::Release);
    }

    fn pop(&self) -> Option<Arc<Link<T>>> {
        if !self.has_any.load(Ordering::Acquire) {
            return None;
        }
        let mut queued = lock(&self.queued);
        let link = queued.pop();
        self.has_any.store(!queued.is_empty(), Ordering::Release);
        link
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<T> Links<T> {
    pub(crate) fn new(daemon_count: u16, poller: OwnedFd, waker: OwnedFd) -> Links<T> {
        Links {
            by_daemon: (0..daemon_count).map(|_| Mutex::default()).collect(),
            starts: (0..daemon_count).map(|_| AtomicU64::new(0)).collect(),
            urgent: FlushList::new(),
            batched: FlushList::new(),
            poller,
            waker,
            stopping: AtomicBool::new(false),
            listen_again: AtomicBool::new(false),
            read_addresses: AtomicBool::new(false),
        }
    }

    /// The connection of a daemon, if it is up.
    pub(crate) fn link(&self, to: DaemonIndex) -> Option<Arc<Link<T>>> {
        lock(self.by_daemon.get(usize::from(to.0))?).clone()
    }

    /// Registers a connection, or (`None`) its loss. Returns the previous one.
    pub(crate) fn set_link(
        &self,
        to: DaemonIndex,
        link: Option<Arc<Link<T>>>,
    ) -> Option<Arc<Link<T>>> {
        let mut place = lock(self.by_daemon.get(usize::from(to.0))?);
        std::mem::replace(&mut *place, link)
    }

    /// The connection of the next `set_link` is of this start of the daemon.
    pub(crate) fn note_start(&self, of: DaemonIndex, start: u64) {
        if let Some(latest) = self.starts.get(usize::from(of.0)) {
            latest.store(start, Ordering::Release);
        }
    }

    /// Records that a frame waits for `flush`.
    pub(crate) fn note(&self, link: Arc<Link<T>>, queued: Queued) {
        match queued {
            Queued::First => self.urgent.push(link),
            Queued::Later => self.batched.push(link),
            Queued::AlreadyNoted => {}
        }
    }

    /// Sends all queued frames, of any thread. Each thread is sure to find the frames that it
    /// queued.
    pub(crate) fn flush(&self) {
        while let Some(link) = self.urgent.pop() {
            link.flush(&self.poller);
        }
    }

    /// True if there are frames that wait for others.
    pub(crate) fn has_batched(&self) -> bool {
        self.batched.has_any.load(Ordering::Relaxed)
    }

    /// As `flush`, including frames that wait for others.
    pub(crate) fn flush_all(&self) {
        self.flush();
        while let Some(link) = self.batched.pop() {
            link.flush(&self.poller);
        }
    }
}

/// Sends to other daemons. Queued frames wait for `flush`, so a caller with several frames flushes
/// once.
pub struct Sender<T> {
    pub(crate) links: Arc<Links<T>>,
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Sender<T> {
        Sender { links: Arc::clone(&self.links) }
    }
}

impl<T> Sender<T> {
    /// Queues a request; its result is passed to `Handler::reply` with `token`.
    ///
    /// # Errors
    /// The token, if `to` is not connected or its queue is full.
    pub fn request(&self, to: DaemonIndex, bytes: &[u8], token: T) -> Result<(), T> {
        let Some(link) = self.links.link(to) else { return Err(token) };
        let queued = link.request(bytes, token)?;
        self.links.note(link, queued);
        Ok(())
    }

    /// Queues a message.
    ///
    /// # Errors
    /// `Lost` if `to` is not connected or its queue is full.
    pub fn send_message(&self, to: DaemonIndex, bytes: &[u8], haste: Urgency) -> Result<(), Lost> {
        let link = self.links.link(to).ok_or(Lost)?;
        let queued = link.message(bytes, haste).map_err(|_| Lost)?;
        self.links.note(link, queued);
        Ok(())
    }

    /// True if there is a connection to `peer`.
    #[must_use]
    pub fn is_connected(&self, peer: DaemonIndex) -> bool {
        self.links.link(peer).is_some()
    }

    /// Ends the connection to a daemon that is known to be dead, so that requests to it end at once: a
    /// host without power or network says nothing, and the kernel waits for it much longer. A daemon that
    /// lives after all is connected again. A connection of a later start than the dead one stays.
    pub fn disconnect(&self, peer: DaemonIndex, dead: u64) {
        let Some(link) = self.links.link(peer) else { return };
        // Read after the link: the start is noted before it.
        let start = self.links.starts.get(usize::from(peer.0));
        if start.is_some_and(|start| start.load(Ordering::Acquire) <= dead) {
            // The thread of `Net::run` finds the end of the stream and closes the connection.
            let _ = rustix::net::shutdown(&link.stream, Shutdown::Both);
        }
    }

    /// Queues the reply to a request. The number of replies is bounded by the requests read. A
    /// reply is lost with the connection on which its request arrived.
    pub fn reply(&self, to: ReplyHandle, bytes: &[u8]) {
        let link = self.links.link(to.to).filter(|link| link.key == to.connection);
        let Some(link) = link else { return };
        if let Ok(queued) = link.push(FrameKind::Reply, to.id, bytes) {
            self.links.note(link, queued);
        }
    }

    /// Sends queued frames on the calling thread, unless another thread is sending.
    pub fn flush(&self) {
        self.links.flush();
    }

    /// As `flush`, including frames that could wait, because no other frame is expected soon.
    pub fn flush_all(&self) {
        self.links.flush_all();
    }

    /// Makes the socket for daemons of this host again if its directory was removed.
    pub fn listen_again(&self) {
        self.links.listen_again.store(true, Ordering::SeqCst);
        let _ = rustix::io::write(&self.links.waker, &1u64.to_ne_bytes());
    }

    /// The file of addresses has changed: daemons that have another address now are dialled there at
    /// once, without waiting until the connection to the earlier one is found dead.
    pub fn read_addresses(&self) {
        self.links.read_addresses.store(true, Ordering::SeqCst);
        let _ = rustix::io::write(&self.links.waker, &1u64.to_ne_bytes());
    }

    /// Ends `Net::run`.
    pub fn stop(&self) {
        self.links.stopping.store(true, Ordering::SeqCst);
        let _ = rustix::io::write(&self.links.waker, &1u64.to_ne_bytes());
    }
}

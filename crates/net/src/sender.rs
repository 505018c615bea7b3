//! Interface of `transport` for other threads: finds the connection of a daemon and queues frames
//! on it.

use crate::frame::FrameKind;
use crate::link::{Link, Queued, Urgency};
use rustix::fd::OwnedFd;
use rustix::net::Shutdown;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use wire::DaemonIndex;
use wire::limits::DAEMON_COUNT_MAX;

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

impl ReplyHandle {
    /// The daemon that sent the request.
    #[must_use]
    pub const fn peer(&self) -> DaemonIndex {
        self.to
    }
}

/// The connection of a daemon.
struct LinkPlace<T> {
    /// Only while it is up.
    link: Mutex<Option<Arc<Link<T>>>>,
    /// The start of the daemon that was connected last.
    start: AtomicU64,
}

fn places<T>(count: usize) -> Box<[LinkPlace<T>]> {
    let place = || LinkPlace { link: Mutex::default(), start: AtomicU64::new(0) };
    core::iter::repeat_with(place).take(count).collect()
}

/// State shared by all threads.
pub(crate) struct Links<T> {
    /// Of the daemons that there were when this one started.
    by_daemon: Box<[LinkPlace<T>]>,
    /// Of those behind them, as many as an instance may get; only in one that grew since.
    added: OnceLock<Box<[LinkPlace<T>]>>,
    /// Number of daemons now. It never falls.
    pub(crate) daemon_count: AtomicU16,
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
            by_daemon: places(usize::from(daemon_count)),
            added: OnceLock::new(),
            daemon_count: AtomicU16::new(daemon_count),
            urgent: FlushList::new(),
            batched: FlushList::new(),
            poller,
            waker,
            stopping: AtomicBool::new(false),
            listen_again: AtomicBool::new(false),
            read_addresses: AtomicBool::new(false),
        }
    }

    fn place(&self, of: DaemonIndex) -> Option<&LinkPlace<T>> {
        let index = usize::from(of.0);
        self.by_daemon.get(index).or_else(|| self.added.get()?.get(index - self.by_daemon.len()))
    }

    /// From now on there are so many daemons, if there were fewer before. True if so.
    #[cold]
    fn grow(&self, daemon_count: u16) -> bool {
        let count = daemon_count.min(DAEMON_COUNT_MAX);
        if self.daemon_count.load(Ordering::SeqCst) >= count {
            return false;
        }
        let more = usize::from(DAEMON_COUNT_MAX).saturating_sub(self.by_daemon.len());
        self.added.get_or_init(|| places(more));
        self.daemon_count.fetch_max(count, Ordering::SeqCst) < count
    }

    /// The connection of a daemon, if it is up.
    pub(crate) fn link(&self, to: DaemonIndex) -> Option<Arc<Link<T>>> {
        lock(&self.place(to)?.link).clone()
    }

    /// Registers a connection, or (`None`) its loss. Returns the previous one.
    pub(crate) fn set_link(
        &self,
        to: DaemonIndex,
        link: Option<Arc<Link<T>>>,
    ) -> Option<Arc<Link<T>>> {
        let mut latest = lock(&self.place(to)?.link);
        std::mem::replace(&mut *latest, link)
    }

    /// The connection of the next `set_link` is of this start of the daemon.
    pub(crate) fn note_start(&self, of: DaemonIndex, start: u64) {
        if let Some(place) = self.place(of) {
            place.start.store(start, Ordering::Release);
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
        let place = self.links.place(peer);
        if place.is_some_and(|place| place.start.load(Ordering::Acquire) <= dead) {
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

    /// Number of daemons of which this one knows.
    #[must_use]
    pub fn daemon_count(&self) -> u16 {
        self.links.daemon_count.load(Ordering::SeqCst)
    }

    /// The instance has so many daemons now: those that were added may connect. They dial this one, as
    /// all with a higher index do. No effect if it had as many before.
    pub fn grow(&self, daemon_count: u16) {
        if self.links.grow(daemon_count) {
            let _ = rustix::io::write(&self.links.waker, &1u64.to_ne_bytes());
        }
    }

    /// Ends `Net::run`.
    pub fn stop(&self) {
        self.links.stopping.store(true, Ordering::SeqCst);
        let _ = rustix::io::write(&self.links.waker, &1u64.to_ne_bytes());
    }
}

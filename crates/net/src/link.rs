//! Output queue of a connection, which every thread may use: many threads queue frames, one sends.
//!
//! The thread that queued a frame flushes. If several flush at a time, the first sends for all: the
//! others find the output locked and return, and the lock holder checks the queue again after
//! unlocking. So frames stay whole and in order, several go in one write, and no thread waits for a
//! socket. Bytes that the socket does not take are sent by the thread of `transport` when it
//! becomes writable.
//!
//! Invariant: a thread that returns from `flush` leaves the queue empty, the output locked by
//! another thread, or the poller watching for writability.

use crate::frame::{self, FrameKind};
use crate::pending::PendingRequests;
use crate::security::records::{PLAIN_BYTES_MAX, Sealer, Tampered};
use crate::socket::Socket;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::fd::OwnedFd;
use std::io::{ErrorKind, Write};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use wire::codec::Malformed;

/// Maximum bytes queued for one peer; beyond it, requests and messages are refused, because a peer
/// that takes nothing for this long is in trouble. As many again may be in the output.
const QUEUE_BYTES_MAX: usize = 32 << 20;
/// Maximum number of unanswered requests to one peer; with the size of a slot it bounds the memory
/// that the peer needs for them. Reading is never stopped: two daemons that did so could wait for
/// each other.
const OUTSTANDING_COUNT_MAX: usize = 16 * 1024;
/// Bytes that are sealed at a time, so that they are still in the processor's cache when they are
/// sent.
const SEALED_BYTES_MAX: usize = 4 * PLAIN_BYTES_MAX;
/// Empty buffers larger than this are freed.
const RETAINED_BYTES_MAX: usize = 256 * 1024;

/// Events for which the poller always watches a connection.
pub(crate) const READABLE: EventFlags = EventFlags::IN.union(EventFlags::RDHUP);

pub(crate) struct Link<T> {
    /// Number of the connection, also its key at the poller.
    pub(crate) key: u64,
    pub(crate) stream: Socket,
    queue: Mutex<SendQueue<T>>,
    output: Mutex<Output>,
}

struct SendQueue<T> {
    bytes: Vec<u8>,
    /// A thread is about to flush.
    is_flush_pending: bool,
    pending: PendingRequests<T>,
    is_closed: bool,
}

#[derive(Default)]
struct Output {
    /// Bytes for the socket.
    bytes: Vec<u8>,
    sent: usize,
    /// On a protected connection: frames that are not sealed yet, from `sealed` on.
    plain: Vec<u8>,
    sealed: usize,
    sealer: Option<Sealer>,
    polls_writable: bool,
}

/// Result of queueing a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Queued {
    /// The first frame that must not wait: the caller must arrange a flush.
    First,
    /// Somebody is about to flush.
    AlreadyNoted,
    /// The first of the frames that may wait for others.
    Later,
}

/// Whether a message may wait to be sent together with others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Urgency {
    /// No: it is sent by the next `flush`.
    Now,
    /// Yes, because nothing waits for its effect. It is sent before all frames queued after it,
    /// with the next frame that does not wait or by `flush_all`.
    Batched,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Sent {
    All,
    /// The socket would block; the poller reports when it is writable.
    Part,
}

impl<T> Link<T> {
    pub(crate) fn new(key: u64, stream: Socket) -> Link<T> {
        let pending = PendingRequests::default();
        let queue =
            SendQueue { bytes: Vec::new(), is_flush_pending: false, pending, is_closed: false };
        let output = Mutex::new(Output::default());
        Link { key, stream, queue: Mutex::new(queue), output }
    }

    fn queue(&self) -> MutexGuard<'_, SendQueue<T>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a frame other than a request, without a limit.
    ///
    /// # Errors
    /// `Malformed` if the payload is too long or the connection is closed.
    pub(crate) fn push(
        &self,
        kind: FrameKind,
        id: u64,
        payload: &[u8],
    ) -> Result<Queued, Malformed> {
        self.queue().push(kind, id, payload)
    }

    /// Queues a message if the queue is not full.
    ///
    /// # Errors
    /// `Malformed` as `push`, and if the queue is full.
    pub(crate) fn message(&self, payload: &[u8], haste: Urgency) -> Result<Queued, Malformed> {
        let mut queue = self.queue();
        if queue.bytes.len() >= QUEUE_BYTES_MAX {
            return Err(Malformed);
        }
        match haste {
            Urgency::Now => queue.push(FrameKind::Message, 0, payload),
            Urgency::Batched => queue.push_later(payload),
        }
    }

    /// Queues a request if the queue is not full; `answered` returns the token.
    ///
    /// # Errors
    /// The token, if the queue is full, the payload is too long or the connection is closed.
    pub(crate) fn request(&self, payload: &[u8], token: T) -> Result<Queued, T> {
        let mut queue = self.queue();
        let is_full =
            queue.bytes.len() >= QUEUE_BYTES_MAX || queue.pending.count() >= OUTSTANDING_COUNT_MAX;
        if is_full || queue.is_closed {
            return Err(token);
        }
        let id = queue.pending.put(token);
        match queue.push(FrameKind::Request, id, payload) {
            Ok(queued) => Ok(queued),
            // The token was stored a moment ago, so it is found.
            Err(Malformed) => queue.pending.take(id).map_or(Ok(Queued::AlreadyNoted), Err),
        }
    }

    /// Takes the token of a request whose reply has arrived.
    pub(crate) fn answered(&self, id: u64) -> Option<T> {
        self.queue().pending.take(id)
    }

    /// Closes the queue; returns the tokens of unanswered requests.
    pub(crate) fn close(&self) -> Vec<T> {
        let mut queue = self.queue();
        queue.is_closed = true;
        queue.bytes = Vec::new();
        queue.pending.take_all()
    }

    /// Sends queued frames until the socket would block, unless another thread is sending.
    pub(crate) fn flush(&self, poller: &OwnedFd) {
        loop {
            let output = match self.output.try_lock() {
                Ok(output) => output,
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => return,
            };
            if self.send(output, poller) == Sent::Part || self.queue().bytes.is_empty() {
                return;
            }
        }
    }

    /// The poller reports that the socket is writable. A thread that finds the socket full
    /// registers with the poller while it holds the output, so this report is not missed.
    pub(crate) fn flush_writable(&self, poller: &OwnedFd) {
        let output = self.output.lock().unwrap_or_else(PoisonError::into_inner);
        if self.send(output, poller) == Sent::All {
            self.flush(poller);
        }
    }

    /// Takes frames from the queue into the output. False: there are none, or they cannot be sealed.
    fn refill(&self, output: &mut Output) -> Result<bool, Tampered> {
        let Output { bytes, sent, plain, sealed, sealer, .. } = output;
        bytes.clear();
        bytes.shrink_to(RETAINED_BYTES_MAX);
        *sent = 0;
        if *sealed == plain.len() {
            plain.clear();
            plain.shrink_to(RETAINED_BYTES_MAX);
            *sealed = 0;
            let mut queue = self.queue();
            std::mem::swap(if sealer.is_some() { plain } else { bytes }, &mut queue.bytes);
            queue.is_flush_pending = false;
        }
        if let Some(sealer) = sealer {
            let end = plain.len().min(*sealed + SEALED_BYTES_MAX);
            sealer.seal(plain.get(*sealed..end).unwrap_or_default(), bytes)?;
            *sealed = end;
        }
        Ok(!bytes.is_empty())
    }

    /// From now on, queued frames are sealed. Those that were queued before are not.
    pub(crate) fn protect(&self, sealer: Sealer) {
        let mut output = self.output.lock().unwrap_or_else(PoisonError::into_inner);
        let mut queue = self.queue();
        output.bytes.append(&mut queue.bytes);
        output.sealer = Some(sealer);
    }

    fn send(&self, mut output: MutexGuard<'_, Output>, poller: &OwnedFd) -> Sent {
        loop {
            if output.sent == output.bytes.len() {
                match self.refill(&mut output) {
                    Ok(true) => {}
                    Ok(false) => {
                        self.poll_writable(&mut output, poller, false);
                        return Sent::All;
                    }
                    Err(error) => {
                        tracing::debug!(connection = self.key, %error, "cannot seal");
                        *output = Output::default();
                        return self.abort();
                    }
                }
            }
            let Output { bytes, sent, .. } = &mut *output;
            match (&self.stream).write(bytes.get(*sent..).unwrap_or_default()) {
                Ok(count) if count > 0 => *sent += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.poll_writable(&mut output, poller, true);
                    return Sent::Part;
                }
                outcome => {
                    let error = outcome.err();
                    tracing::debug!(connection = self.key, ?error, "cannot send");
                    *output = Output::default();
                    return self.abort();
                }
            }
        }
    }

    /// Shuts down the socket; the reading thread then finds the end and closes the connection.
    fn abort(&self) -> Sent {
        self.stream.shut_down();
        let mut queue = self.queue();
        queue.is_closed = true;
        queue.bytes = Vec::new();
        Sent::All
    }

    fn poll_writable(&self, output: &mut Output, poller: &OwnedFd, expected: bool) {
        if output.polls_writable != expected {
            output.polls_writable = expected;
            let flags = if expected { READABLE | EventFlags::OUT } else { READABLE };
            let _ = epoll::modify(poller, &self.stream, EventData::new_u64(self.key), flags);
        }
    }

    /// Records that the poller already watches for writability, because the connection is being
    /// dialled.
    pub(crate) fn set_polls_writable(&self) {
        self.output.lock().unwrap_or_else(PoisonError::into_inner).polls_writable = true;
    }
}

impl<T> SendQueue<T> {
    fn push(&mut self, kind: FrameKind, id: u64, payload: &[u8]) -> Result<Queued, Malformed> {
        if self.is_closed {
            return Err(Malformed);
        }
        frame::encode(kind, id, payload, &mut self.bytes)?;
        Ok(if std::mem::replace(&mut self.is_flush_pending, true) {
            Queued::AlreadyNoted
        } else {
            Queued::First
        })
    }

    fn push_later(&mut self, payload: &[u8]) -> Result<Queued, Malformed> {
        if self.is_closed {
            return Err(Malformed);
        }
        let queued = if self.bytes.is_empty() { Queued::Later } else { Queued::AlreadyNoted };
        frame::encode(FrameKind::Message, 0, payload, &mut self.bytes)?;
        Ok(queued)
    }
}

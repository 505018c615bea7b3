//! The half of a connection that every thread may use: frames are queued by many and sent by one.
//!
//! Who queued flushes. Of several at a time the first sends for all: the others find the output
//! taken and go, for whoever holds it looks at the queue again after giving it back. So frames stay
//! whole and in their order, several go in one write, and nobody waits for a socket. What the socket
//! does not take is sent by the thread of `transport` when it does.
//!
//! Invariant: whoever leaves `flush` leaves the queue empty, the output in another's hands, or the
//! poller watching for room.

use crate::frame::{self, Kind};
use crate::waiting::Waiting;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::fd::OwnedFd;
use std::io::{ErrorKind, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use wire::codec::Malformed;

/// Most bytes that wait for one peer before requests and messages are refused: a peer that takes
/// nothing for this long is in trouble. As many again may be on their way out.
const QUEUE_BYTES_MAX: usize = 32 << 20;
/// Most requests to one peer that are not answered; with those of a slot's size it bounds what the
/// peer must keep for us. Reading is never stopped: two daemons that did so could wait for each
/// other.
const OUTSTANDING_COUNT_MAX: usize = 16 * 1024;
/// Buffers above this are given back when they are empty.
const KEPT_BYTES: usize = 256 * 1024;

/// What the poller watches a connection for.
pub(crate) const READABLE: EventFlags = EventFlags::IN.union(EventFlags::RDHUP);

pub(crate) struct Line<T> {
    /// Number of the connection, also its name at the poller.
    pub(crate) key: u64,
    pub(crate) stream: TcpStream,
    queue: Mutex<Queue<T>>,
    output: Mutex<Output>,
}

struct Queue<T> {
    bytes: Vec<u8>,
    /// Somebody is about to flush.
    is_noted: bool,
    waiting: Waiting<T>,
    is_closed: bool,
}

#[derive(Default)]
struct Output {
    bytes: Vec<u8>,
    sent: usize,
    polls_write: bool,
}

/// What became of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Queued {
    /// It is the first that must not wait: somebody must flush.
    First,
    /// Somebody is about to flush.
    Behind,
    /// It is the first of those that can wait for others to go with.
    Later,
}

/// May a message wait for others to go with?
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Haste {
    /// No: it goes with the next `flush`.
    Now,
    /// Yes: nobody waits for what it does. It goes before what is queued after it, with the next
    /// frame that does not wait or with `flush_all`.
    WithOthers,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Sent {
    All,
    /// The socket takes no more; the poller tells when it does.
    Part,
}

impl<T> Line<T> {
    pub(crate) fn new(key: u64, stream: TcpStream) -> Line<T> {
        let waiting = Waiting::default();
        let queue = Queue { bytes: Vec::new(), is_noted: false, waiting, is_closed: false };
        let output = Mutex::new(Output::default());
        Line { key, stream, queue: Mutex::new(queue), output }
    }

    fn queue(&self) -> MutexGuard<'_, Queue<T>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a frame that is no request, however much waits already.
    ///
    /// # Errors
    /// `Malformed` if the payload is too long or the connection is closed.
    pub(crate) fn push(&self, kind: Kind, id: u64, payload: &[u8]) -> Result<Queued, Malformed> {
        self.queue().push(kind, id, payload)
    }

    /// Queues a message if there is room.
    ///
    /// # Errors
    /// `Malformed` as `push`, and if too much waits.
    pub(crate) fn message(&self, payload: &[u8], haste: Haste) -> Result<Queued, Malformed> {
        let mut queue = self.queue();
        if queue.bytes.len() >= QUEUE_BYTES_MAX {
            return Err(Malformed);
        }
        match haste {
            Haste::Now => queue.push(Kind::Message, 0, payload),
            Haste::WithOthers => queue.push_later(payload),
        }
    }

    /// Queues a request if there is room; `answered` gives the token back.
    ///
    /// # Errors
    /// The token, if too much waits, the payload is too long or the connection is closed.
    pub(crate) fn request(&self, payload: &[u8], token: T) -> Result<Queued, T> {
        let mut queue = self.queue();
        let is_full =
            queue.bytes.len() >= QUEUE_BYTES_MAX || queue.waiting.count() >= OUTSTANDING_COUNT_MAX;
        if is_full || queue.is_closed {
            return Err(token);
        }
        let id = queue.waiting.put(token);
        match queue.push(Kind::Request, id, payload) {
            Ok(queued) => Ok(queued),
            // It was put a moment ago, so it is there.
            Err(Malformed) => queue.waiting.take(id).map_or(Ok(Queued::Behind), Err),
        }
    }

    /// The token of a request that is answered now.
    pub(crate) fn answered(&self, id: u64) -> Option<T> {
        self.queue().waiting.take(id)
    }

    /// Takes nothing more; gives the tokens of what is not answered.
    pub(crate) fn close(&self) -> Vec<T> {
        let mut queue = self.queue();
        queue.is_closed = true;
        queue.bytes = Vec::new();
        queue.waiting.take_all()
    }

    /// Sends what is queued as far as the socket takes it, or leaves that to who is at it.
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

    /// The poller says that the socket takes more. Who finds the socket full asks the poller while
    /// he holds the output, so his word is not missed.
    pub(crate) fn flush_writable(&self, poller: &OwnedFd) {
        let output = self.output.lock().unwrap_or_else(PoisonError::into_inner);
        if self.send(output, poller) == Sent::All {
            self.flush(poller);
        }
    }

    fn send(&self, mut output: MutexGuard<'_, Output>, poller: &OwnedFd) -> Sent {
        loop {
            let Output { bytes, sent, .. } = &mut *output;
            if *sent == bytes.len() {
                bytes.clear();
                bytes.shrink_to(KEPT_BYTES);
                *sent = 0;
                let mut queue = self.queue();
                std::mem::swap(bytes, &mut queue.bytes);
                queue.is_noted = false;
                drop(queue);
                if bytes.is_empty() {
                    self.poll_write(&mut output, poller, false);
                    return Sent::All;
                }
            }
            match (&self.stream).write(bytes.get(*sent..).unwrap_or_default()) {
                Ok(count) if count > 0 => *sent += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.poll_write(&mut output, poller, true);
                    return Sent::Part;
                }
                outcome => {
                    let error = outcome.err();
                    tracing::debug!(connection = self.key, ?error, "can not send");
                    *output = Output::default();
                    return self.give_up();
                }
            }
        }
    }

    /// The thread that reads finds the end and closes.
    fn give_up(&self) -> Sent {
        let _ = self.stream.shutdown(Shutdown::Both);
        let mut queue = self.queue();
        queue.is_closed = true;
        queue.bytes = Vec::new();
        Sent::All
    }

    fn poll_write(&self, output: &mut Output, poller: &OwnedFd, wanted: bool) {
        if output.polls_write != wanted {
            output.polls_write = wanted;
            let flags = if wanted { READABLE | EventFlags::OUT } else { READABLE };
            let _ = epoll::modify(poller, &self.stream, EventData::new_u64(self.key), flags);
        }
    }

    /// The poller was told to watch for room when the connection was added: it is being dialled.
    pub(crate) fn is_dialled(&self) {
        self.output.lock().unwrap_or_else(PoisonError::into_inner).polls_write = true;
    }
}

impl<T> Queue<T> {
    fn push(&mut self, kind: Kind, id: u64, payload: &[u8]) -> Result<Queued, Malformed> {
        if self.is_closed {
            return Err(Malformed);
        }
        frame::encode(kind, id, payload, &mut self.bytes)?;
        Ok(if std::mem::replace(&mut self.is_noted, true) { Queued::Behind } else { Queued::First })
    }

    fn push_later(&mut self, payload: &[u8]) -> Result<Queued, Malformed> {
        if self.is_closed {
            return Err(Malformed);
        }
        let queued = if self.bytes.is_empty() { Queued::Later } else { Queued::Behind };
        frame::encode(Kind::Message, 0, payload, &mut self.bytes)?;
        Ok(queued)
    }
}

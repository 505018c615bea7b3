//! A stream that this daemon dialled: its transfers go out, their replies come in.

use super::header::{HEADER_BYTES, Header, Message};
use super::{BulkHandler, Kind, Memory, Outcome, Stop, Transfer};
use crate::channel::Channel;
use std::collections::{BTreeMap, VecDeque};
use std::io::{ErrorKind, Read};
use std::time::Instant;
use wire::DaemonIndex;

/// Replies processed before other streams get their turn.
const ANSWERS_MAX: usize = 64;

struct Started<E: BulkHandler> {
    head: [u8; HEADER_BYTES],
    transfer: Transfer<E::Memory, E::Token>,
}

/// Bytes of a fetch that are being received.
struct Body {
    id: u64,
    length: u32,
    done: u32,
}

pub(crate) struct OutgoingStream<E: BulkHandler> {
    pub(crate) socket: Channel,
    pub(crate) peer: DaemonIndex,
    started: BTreeMap<u64, Started<E>>,
    next_id: u64,
    /// Transfers that are not completely sent; `sent` counts the bytes of the first that are.
    unsent: VecDeque<u64>,
    sent: usize,
    input: HeaderInput,
    body: Option<Body>,
}

/// A header that is being received.
pub(crate) struct HeaderInput {
    head: [u8; HEADER_BYTES],
    have: usize,
}

impl HeaderInput {
    pub(crate) const fn new() -> HeaderInput {
        HeaderInput { head: [0; HEADER_BYTES], have: 0 }
    }

    /// Reads on and returns the header when it is complete.
    pub(crate) fn next(&mut self, socket: &mut Channel) -> Result<Header, Stop> {
        while self.have < HEADER_BYTES {
            let space = self.head.get_mut(self.have..).unwrap_or_default();
            match socket.read(space) {
                Ok(0) => return Err(Stop::Broken("closed by the peer")),
                Ok(count) => self.have += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Err(Stop::Blocked),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(Stop::of(&error)),
            }
        }
        self.have = 0;
        Ok(Header::decode(&self.head)?)
    }
}

/// Lost transfers that are to be resent, in their order; all others end here.
pub fn retain_retryable<E: BulkHandler>(
    lost: impl Iterator<Item = Transfer<E::Memory, E::Token>>,
    handler: &E,
    now: Instant,
) -> Vec<Transfer<E::Memory, E::Token>> {
    let mut retained = Vec::new();
    for transfer in lost {
        if transfer.until.is_some_and(|until| now < until) {
            retained.push(transfer);
        } else {
            handler.ended(transfer.token, transfer.memory, Outcome::Lost);
        }
    }
    retained
}

impl<E: BulkHandler> OutgoingStream<E> {
    pub(crate) const fn new(socket: Channel, peer: DaemonIndex) -> OutgoingStream<E> {
        OutgoingStream {
            socket,
            peer,
            started: BTreeMap::new(),
            next_id: 1,
            unsent: VecDeque::new(),
            sent: 0,
            input: HeaderInput::new(),
            body: None,
        }
    }

    /// Queues a transfer.
    pub(crate) fn push(&mut self, transfer: Transfer<E::Memory, E::Token>) {
        let id = self.next_id;
        self.next_id += 1;
        let message = match transfer.kind {
            Kind::Store => Message::Store(transfer.range),
            Kind::Fetch => Message::Fetch(transfer.range),
        };
        let head = Header { id, message }.encode();
        self.started.insert(id, Started { head, transfer });
        self.unsent.push_back(id);
    }

    /// True if something waits for the socket to become writable.
    pub(crate) fn has_unsent(&self) -> bool {
        !self.unsent.is_empty() || self.socket.has_unsent()
    }

    /// Sends until the socket would block.
    pub(crate) fn write(&mut self) -> Result<(), Stop> {
        while let Some(id) = self.unsent.front() {
            let one = self.started.get(id).ok_or(Stop::Broken("answered before it was sent"))?;
            let (segment, at) = one.transfer.memory.region();
            let length = match one.transfer.kind {
                Kind::Store => one.transfer.range.length as usize,
                Kind::Fetch => 0,
            };
            let of_body = self.sent.saturating_sub(HEADER_BYTES);
            let head = one.head.get(self.sent..).unwrap_or_default();
            self.sent += self.socket.send(head, (segment, at + of_body, length - of_body))?;
            if self.sent == HEADER_BYTES + length {
                self.unsent.pop_front();
                self.sent = 0;
            }
        }
        self.socket.send_buffered().map_err(|error| Stop::of(&error))
    }

    /// Processes replies that have arrived.
    pub(crate) fn read(&mut self, handler: &E) -> Result<(), Stop> {
        for _ in 0..ANSWERS_MAX {
            if self.body.is_some() {
                self.read_body(handler)?;
                continue;
            }
            let header = self.input.next(&mut self.socket)?;
            self.answered(handler, &header)?;
        }
        Ok(())
    }

    fn answered(&mut self, handler: &E, header: &Header) -> Result<(), Stop> {
        const ODD: Stop = Stop::Broken("an answer to nothing that was asked");
        let id = header.id;
        let transfer = &self.started.get(&id).ok_or(ODD)?.transfer;
        let (kind, length) = (transfer.kind, transfer.range.length);
        let outcome = match (header.message, kind) {
            (Message::Data(count), Kind::Fetch) if count == length => {
                self.body = Some(Body { id, length, done: 0 });
                return Ok(());
            }
            (Message::Fetched(count, log2), Kind::Fetch) if count == length => {
                transfer.memory.note_fetched(log2);
                self.body = Some(Body { id, length, done: 0 });
                return Ok(());
            }
            (Message::Data(0), Kind::Fetch) => Outcome::Moved(0),
            (Message::Done(Ok(())), Kind::Store) => Outcome::Moved(length),
            (Message::Done(Err(errno)), _) => Outcome::Refused(errno),
            (Message::Busy(micros), _) => Outcome::Busy(micros),
            (Message::Elsewhere(location), Kind::Fetch) => Outcome::Elsewhere(location),
            _ => return Err(ODD),
        };
        self.end(handler, id, outcome);
        Ok(())
    }

    fn read_body(&mut self, handler: &E) -> Result<(), Stop> {
        let Some(body) = &mut self.body else { return Ok(()) };
        let (id, length) = (body.id, body.length);
        let one = self.started.get(&id).ok_or(Stop::Broken("bytes of nothing"))?;
        let (segment, at) = one.transfer.memory.region();
        let left = (length - body.done) as usize;
        let count = self.socket.receive((segment, at + body.done as usize, left))?;
        if count == 0 {
            return Err(Stop::Broken("closed by the peer"));
        }
        body.done += count as u32;
        if body.done == length {
            self.body = None;
            self.end(handler, id, Outcome::Moved(length));
        }
        Ok(())
    }

    fn end(&mut self, handler: &E, id: u64, outcome: Outcome) {
        if let Some(Started { transfer, .. }) = self.started.remove(&id) {
            handler.ended(transfer.token, transfer.memory, outcome);
        }
    }

    /// Closes the stream. Transfers in flight end as lost; those to be resent are returned.
    pub(crate) fn lose(self, handler: &E, now: Instant) -> Vec<Transfer<E::Memory, E::Token>> {
        // Closed before the first transfer ends, so that nothing arrives afterwards.
        drop(self.socket);
        let started = self.started.into_values().map(|one| one.transfer);
        retain_retryable(started, handler, now)
    }
}

//! A stream that we dialled: on it our transfers go out, and their answers come in.

use super::header::{HEADER_BYTES, Header, Word};
use super::{Ends, Kind, Memory, Outcome, Stop, Transfer};
use rustix::fd::AsFd;
use std::collections::{BTreeMap, VecDeque};
use std::io::{ErrorKind, Read};
use std::net::TcpStream;
use std::time::Instant;
use wire::DaemonIndex;

/// Answers that are taken before other streams have their turn.
const ANSWERS_MAX: usize = 64;

struct Started<E: Ends> {
    head: [u8; HEADER_BYTES],
    transfer: Transfer<E::Memory, E::Token>,
}

/// Bytes of a fetch that come in.
struct Body {
    id: u64,
    length: u32,
    done: u32,
}

pub(crate) struct Ours<E: Ends> {
    pub(crate) socket: TcpStream,
    pub(crate) peer: DaemonIndex,
    started: BTreeMap<u64, Started<E>>,
    next_id: u64,
    /// Transfers that are not sent wholly; of the first, so many bytes are.
    unsent: VecDeque<u64>,
    sent: usize,
    input: Input,
    body: Option<Body>,
}

/// A header that comes in.
pub(crate) struct Input {
    head: [u8; HEADER_BYTES],
    have: usize,
}

impl Input {
    pub(crate) const fn new() -> Input {
        Input { head: [0; HEADER_BYTES], have: 0 }
    }

    /// Reads on; the header once it is whole.
    pub(crate) fn next(&mut self, mut socket: &TcpStream) -> Result<Header, Stop> {
        while self.have < HEADER_BYTES {
            let room = self.head.get_mut(self.have..).unwrap_or_default();
            match socket.read(room) {
                Ok(0) => return Err(Stop::Broken("closed by the peer")),
                Ok(count) => self.have += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Err(Stop::Blocked),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return Err(Stop::Broken("lost")),
            }
        }
        self.have = 0;
        Ok(Header::decode(&self.head)?)
    }
}

/// Those of lost transfers that are to be sent again, in their order; the others end.
pub fn keep<E: Ends>(
    lost: impl Iterator<Item = Transfer<E::Memory, E::Token>>,
    ends: &E,
    now: Instant,
) -> Vec<Transfer<E::Memory, E::Token>> {
    let mut kept = Vec::new();
    for transfer in lost {
        if transfer.until.is_some_and(|until| now < until) {
            kept.push(transfer);
        } else {
            ends.ended(transfer.token, transfer.memory, Outcome::Lost);
        }
    }
    kept
}

impl<E: Ends> Ours<E> {
    pub(crate) const fn new(socket: TcpStream, peer: DaemonIndex) -> Ours<E> {
        Ours {
            socket,
            peer,
            started: BTreeMap::new(),
            next_id: 1,
            unsent: VecDeque::new(),
            sent: 0,
            input: Input::new(),
            body: None,
        }
    }

    /// Puts a transfer behind those that wait to be sent.
    pub(crate) fn push(&mut self, transfer: Transfer<E::Memory, E::Token>) {
        let id = self.next_id;
        self.next_id += 1;
        let word = match transfer.kind {
            Kind::Store => Word::Store(transfer.range),
            Kind::Fetch => Word::Fetch(transfer.range),
        };
        let head = Header { id, word }.encode();
        self.started.insert(id, Started { head, transfer });
        self.unsent.push_back(id);
    }

    /// True if something waits for the socket to take more.
    pub(crate) fn has_unsent(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// Sends what the socket takes.
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
            self.sent += segment.send(head, at + of_body, length - of_body, self.socket.as_fd())?;
            if self.sent == HEADER_BYTES + length {
                self.unsent.pop_front();
                self.sent = 0;
            }
        }
        Ok(())
    }

    /// Takes answers that came.
    pub(crate) fn read(&mut self, ends: &E) -> Result<(), Stop> {
        for _ in 0..ANSWERS_MAX {
            if self.body.is_some() {
                self.read_body(ends)?;
                continue;
            }
            let header = self.input.next(&self.socket)?;
            self.answered(ends, &header)?;
        }
        Ok(())
    }

    fn answered(&mut self, ends: &E, header: &Header) -> Result<(), Stop> {
        const ODD: Stop = Stop::Broken("an answer to nothing that was asked");
        let id = header.id;
        let transfer = &self.started.get(&id).ok_or(ODD)?.transfer;
        let (kind, length) = (transfer.kind, transfer.range.length);
        let outcome = match (header.word, kind) {
            (Word::Data(count), Kind::Fetch) if count == length => {
                self.body = Some(Body { id, length, done: 0 });
                return Ok(());
            }
            (Word::Data(0), Kind::Fetch) => Outcome::Moved(0),
            (Word::Done(Ok(())), Kind::Store) => Outcome::Moved(length),
            (Word::Done(Err(errno)), _) => Outcome::Refused(errno),
            (Word::Busy(micros), _) => Outcome::Busy(micros),
            _ => return Err(ODD),
        };
        self.end(ends, id, outcome);
        Ok(())
    }

    fn read_body(&mut self, ends: &E) -> Result<(), Stop> {
        let Some(body) = &mut self.body else { return Ok(()) };
        let (id, length) = (body.id, body.length);
        let one = self.started.get(&id).ok_or(Stop::Broken("bytes of nothing"))?;
        let (segment, at) = one.transfer.memory.region();
        let left = (length - body.done) as usize;
        let count = segment.receive(at + body.done as usize, left, self.socket.as_fd())?;
        if count == 0 {
            return Err(Stop::Broken("closed by the peer"));
        }
        body.done += count as u32;
        if body.done == length {
            self.body = None;
            self.end(ends, id, Outcome::Moved(length));
        }
        Ok(())
    }

    fn end(&mut self, ends: &E, id: u64, outcome: Outcome) {
        if let Some(Started { transfer, .. }) = self.started.remove(&id) {
            ends.ended(transfer.token, transfer.memory, outcome);
        }
    }

    /// The stream is closed: all that is under way is lost, but what is to be sent again.
    pub(crate) fn lose(self, ends: &E, now: Instant) -> Vec<Transfer<E::Memory, E::Token>> {
        // Nothing arrives any more when the first is told.
        drop(self.socket);
        let started = self.started.into_values().map(|one| one.transfer);
        keep(started, ends, now)
    }
}

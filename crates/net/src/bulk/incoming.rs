//! A stream that a peer dialled: its transfers come in one after the other, the replies go out.

use super::header::{HEADER_BYTES, Header, Message, Range};
use super::outgoing::HeaderInput;
use super::{Answer, BulkHandler, Kind, Memory, Stop, Visit};
use crate::channel::Channel;
use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use wire::DaemonIndex;

/// Transfers processed before other streams get their turn.
const VISITS_MAX: usize = 64;
/// Maximum number of unsent replies before reading pauses: each may hold memory.
const UNSENT_MAX: usize = 64;

/// A reply, and the memory whose bytes follow it.
struct Unsent<M> {
    head: [u8; HEADER_BYTES],
    body: Option<(M, usize)>,
}

/// Next item expected on the stream.
enum State<M> {
    /// A header.
    Head,
    /// Reading pauses: the daemon has not decided about this transfer.
    PendingRequests(Header),
    /// Bytes for `memory`.
    Body { id: u64, range: Range, memory: M, done: u32 },
    /// Bytes of a refused store; after them `answer` is sent.
    Discard { left: usize, answer: Header },
}

pub(crate) struct IncomingStream<E: BulkHandler> {
    pub(crate) socket: Channel,
    pub(crate) from: DaemonIndex,
    /// Number that the peer gave the stream.
    pub(crate) number: u8,
    visit: Visit,
    state: State<E::Memory>,
    input: HeaderInput,
    unsent: VecDeque<Unsent<E::Memory>>,
    sent: usize,
}

impl<E: BulkHandler> IncomingStream<E> {
    pub(crate) const fn new(
        socket: Channel,
        from: DaemonIndex,
        number: u8,
        visit: Visit,
    ) -> IncomingStream<E> {
        IncomingStream {
            socket,
            from,
            number,
            visit,
            state: State::Head,
            input: HeaderInput::new(),
            unsent: VecDeque::new(),
            sent: 0,
        }
    }

    /// True if more may be read.
    pub(crate) fn wants_more(&self) -> bool {
        !matches!(self.state, State::PendingRequests(_)) && self.unsent.len() < UNSENT_MAX
    }

    /// True if something waits for the socket to become writable.
    pub(crate) fn has_unsent(&self) -> bool {
        !self.unsent.is_empty() || self.socket.has_unsent()
    }

    /// Processes transfers that have arrived.
    pub(crate) fn read(&mut self, handler: &E) -> Result<(), Stop> {
        for _ in 0..VISITS_MAX {
            if !self.wants_more() {
                return Ok(());
            }
            match &self.state {
                State::Head => {
                    let header = self.input.next(&mut self.socket)?;
                    self.visited(handler, header)?;
                }
                State::Body { .. } => self.read_body(handler)?,
                State::Discard { .. } => self.discard()?,
                State::PendingRequests(_) => {}
            }
        }
        Ok(())
    }

    fn visited(&mut self, handler: &E, header: Header) -> Result<(), Stop> {
        let (kind, range) = transfer_of(&header)?;
        match handler.visit(self.from, kind, &range, self.visit) {
            Some(answer) => self.answer(&header, answer),
            None => {
                self.state = State::PendingRequests(header);
                Ok(())
            }
        }
    }

    /// Applies the daemon's decision about the waiting transfer.
    pub(crate) fn decided(&mut self, handler: &E, decision: E::Decision) -> Result<(), Stop> {
        let State::PendingRequests(header) = self.state else { return Ok(()) };
        let (kind, range) = transfer_of(&header)?;
        let answer = handler.decided(kind, &range, decision);
        self.state = State::Head;
        self.answer(&header, answer)
    }

    fn answer(&mut self, header: &Header, answer: Answer<E::Memory>) -> Result<(), Stop> {
        let id = header.id;
        let (kind, range) = transfer_of(header)?;
        let message = match (kind, answer) {
            (Kind::Store, Answer::Memory(memory)) => {
                self.state = State::Body { id, range, memory, done: 0 };
                return Ok(());
            }
            (Kind::Fetch, Answer::Memory(memory)) => {
                let message = match memory.fetched_log2() {
                    0 => Message::Data(range.length),
                    log2 => Message::Fetched(range.length, log2),
                };
                let head = Header { id, message }.encode();
                let body = Some((memory, range.length as usize));
                self.unsent.push_back(Unsent { head, body });
                return Ok(());
            }
            (Kind::Fetch, Answer::Hole) => Message::Data(0),
            (Kind::Fetch, Answer::Elsewhere(location)) => Message::Elsewhere(location),
            (Kind::Store, Answer::Hole | Answer::Elsewhere(_)) => {
                Message::Done(Err(wire::Errno::EIO))
            }
            (_, Answer::Refused(errno)) => Message::Done(Err(errno)),
            (_, Answer::Busy(micros)) => Message::Busy(micros),
        };
        let answer = Header { id, message };
        match kind {
            Kind::Store => {
                self.state = State::Discard { left: range.length as usize, answer };
            }
            Kind::Fetch => self.send_frame(&answer),
        }
        Ok(())
    }

    fn send_frame(&mut self, answer: &Header) {
        self.unsent.push_back(Unsent { head: answer.encode(), body: None });
    }

    fn read_body(&mut self, handler: &E) -> Result<(), Stop> {
        let State::Body { range, memory, done, .. } = &mut self.state else { return Ok(()) };
        let (segment, at) = memory.region();
        let left = (range.length - *done) as usize;
        let count = self.socket.receive((segment, at + *done as usize, left))?;
        if count == 0 {
            return Err(Stop::Broken("closed by the peer"));
        }
        *done += count as u32;
        if *done == range.length
            && let State::Body { id, range, memory, .. } =
                std::mem::replace(&mut self.state, State::Head)
        {
            let message = Message::Done(handler.stored(&range, memory));
            self.send_frame(&Header { id, message });
        }
        Ok(())
    }

    fn discard(&mut self) -> Result<(), Stop> {
        let State::Discard { left, answer } = &mut self.state else { return Ok(()) };
        let mut scratch = [0; 16 * 1024];
        let expected = (*left).min(scratch.len());
        let space = scratch.get_mut(..expected).unwrap_or_default();
        match self.socket.read(space) {
            Ok(0) => return Err(Stop::Broken("closed by the peer")),
            Ok(count) => *left -= count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Err(Stop::Blocked),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(Stop::of(&error)),
        }
        if *left == 0 {
            let answer = *answer;
            self.state = State::Head;
            self.send_frame(&answer);
        }
        Ok(())
    }

    /// Sends until the socket would block.
    pub(crate) fn write(&mut self) -> Result<(), Stop> {
        while let Some(one) = self.unsent.front() {
            let head = one.head.get(self.sent..).unwrap_or_default();
            let total = match &one.body {
                Some((memory, length)) => {
                    let (segment, at) = memory.region();
                    let of_body = self.sent.saturating_sub(HEADER_BYTES);
                    let body = (segment, at + of_body, length - of_body);
                    self.sent += self.socket.send(head, body)?;
                    HEADER_BYTES + length
                }
                None => {
                    match self.socket.write(head) {
                        Ok(count) => self.sent += count,
                        Err(error) if error.kind() == ErrorKind::WouldBlock => {
                            return Err(Stop::Blocked);
                        }
                        Err(error) if error.kind() == ErrorKind::Interrupted => {}
                        Err(error) => return Err(Stop::of(&error)),
                    }
                    HEADER_BYTES
                }
            };
            if self.sent == total {
                self.unsent.pop_front();
                self.sent = 0;
            }
        }
        self.socket.send_buffered().map_err(|error| Stop::of(&error))
    }
}

/// Parses a header as a transfer, the only kind allowed on a stream that the peer dialled.
const fn transfer_of(header: &Header) -> Result<(Kind, Range), Stop> {
    match header.message {
        Message::Store(range) => Ok((Kind::Store, range)),
        Message::Fetch(range) => Ok((Kind::Fetch, range)),
        _ => Err(Stop::Broken("an answer where a transfer belongs")),
    }
}

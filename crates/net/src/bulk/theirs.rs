//! A stream that a peer dialled: its transfers come in one after the other, our answers go out.

use super::header::{HEADER_BYTES, Header, Range, Word};
use super::ours::Input;
use super::{Answer, Ends, Kind, Memory, Stop, Visit};
use rustix::fd::AsFd;
use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use wire::DaemonIndex;

/// Transfers that are taken before other streams have their turn.
const VISITS_MAX: usize = 64;
/// Answers that wait to be sent before no further transfer is read: each may hold memory.
const UNSENT_MAX: usize = 64;

/// An answer, and the memory whose bytes follow it.
struct Unsent<M> {
    head: [u8; HEADER_BYTES],
    body: Option<(M, usize)>,
}

/// What comes next on the stream.
enum State<M> {
    /// A header.
    Head,
    /// Nothing that we read: the daemon has not said what to do.
    Waiting(Header),
    /// Bytes for `memory`.
    Body { id: u64, range: Range, memory: M, done: u32 },
    /// Bytes that nobody wants, then `answer` goes out.
    Discard { left: usize, answer: Header },
}

pub(crate) struct Theirs<E: Ends> {
    pub(crate) socket: TcpStream,
    pub(crate) from: DaemonIndex,
    /// Number that the peer gave the stream.
    pub(crate) number: u8,
    visit: Visit,
    state: State<E::Memory>,
    input: Input,
    unsent: VecDeque<Unsent<E::Memory>>,
    sent: usize,
}

impl<E: Ends> Theirs<E> {
    pub(crate) const fn new(
        socket: TcpStream,
        from: DaemonIndex,
        number: u8,
        visit: Visit,
    ) -> Theirs<E> {
        Theirs {
            socket,
            from,
            number,
            visit,
            state: State::Head,
            input: Input::new(),
            unsent: VecDeque::new(),
            sent: 0,
        }
    }

    /// True if more may be read now.
    pub(crate) fn wants_more(&self) -> bool {
        !matches!(self.state, State::Waiting(_)) && self.unsent.len() < UNSENT_MAX
    }

    /// True if something waits for the socket to take more.
    pub(crate) fn has_unsent(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// Takes transfers that came.
    pub(crate) fn read(&mut self, ends: &E) -> Result<(), Stop> {
        for _ in 0..VISITS_MAX {
            if !self.wants_more() {
                return Ok(());
            }
            match &self.state {
                State::Head => {
                    let header = self.input.next(&self.socket)?;
                    self.visited(ends, header)?;
                }
                State::Body { .. } => self.read_body(ends)?,
                State::Discard { .. } => self.discard()?,
                State::Waiting(_) => {}
            }
        }
        Ok(())
    }

    fn visited(&mut self, ends: &E, header: Header) -> Result<(), Stop> {
        let (kind, range) = asked(&header)?;
        match ends.visit(self.from, kind, &range, self.visit) {
            Some(answer) => self.answer(&header, answer),
            None => {
                self.state = State::Waiting(header);
                Ok(())
            }
        }
    }

    /// The daemon says what to do about the transfer that waits.
    pub(crate) fn told(&mut self, ends: &E, word: E::Word) -> Result<(), Stop> {
        let State::Waiting(header) = self.state else { return Ok(()) };
        let (kind, range) = asked(&header)?;
        let answer = ends.told(kind, &range, word);
        self.state = State::Head;
        self.answer(&header, answer)
    }

    fn answer(&mut self, header: &Header, answer: Answer<E::Memory>) -> Result<(), Stop> {
        let id = header.id;
        let (kind, range) = asked(header)?;
        let word = match (kind, answer) {
            (Kind::Store, Answer::Memory(memory)) => {
                self.state = State::Body { id, range, memory, done: 0 };
                return Ok(());
            }
            (Kind::Fetch, Answer::Memory(memory)) => {
                let head = Header { id, word: Word::Data(range.length) }.encode();
                let body = Some((memory, range.length as usize));
                self.unsent.push_back(Unsent { head, body });
                return Ok(());
            }
            (Kind::Fetch, Answer::Hole) => Word::Data(0),
            (Kind::Store, Answer::Hole) => Word::Done(Err(wire::Errno::EIO)),
            (_, Answer::Refused(errno)) => Word::Done(Err(errno)),
            (_, Answer::Busy(micros)) => Word::Busy(micros),
        };
        let answer = Header { id, word };
        match kind {
            Kind::Store => {
                self.state = State::Discard { left: range.length as usize, answer };
            }
            Kind::Fetch => self.say(&answer),
        }
        Ok(())
    }

    fn say(&mut self, answer: &Header) {
        self.unsent.push_back(Unsent { head: answer.encode(), body: None });
    }

    fn read_body(&mut self, ends: &E) -> Result<(), Stop> {
        let State::Body { range, memory, done, .. } = &mut self.state else { return Ok(()) };
        let (segment, at) = memory.region();
        let left = (range.length - *done) as usize;
        let count = segment.receive(at + *done as usize, left, self.socket.as_fd())?;
        if count == 0 {
            return Err(Stop::Broken("closed by the peer"));
        }
        *done += count as u32;
        if *done == range.length
            && let State::Body { id, range, memory, .. } =
                std::mem::replace(&mut self.state, State::Head)
        {
            let word = Word::Done(ends.stored(&range, memory));
            self.say(&Header { id, word });
        }
        Ok(())
    }

    fn discard(&mut self) -> Result<(), Stop> {
        let State::Discard { left, answer } = &mut self.state else { return Ok(()) };
        let mut scratch = [0; 16 * 1024];
        let wanted = (*left).min(scratch.len());
        let room = scratch.get_mut(..wanted).unwrap_or_default();
        match (&self.socket).read(room) {
            Ok(0) => return Err(Stop::Broken("closed by the peer")),
            Ok(count) => *left -= count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Err(Stop::Blocked),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => return Err(Stop::Broken("lost")),
        }
        if *left == 0 {
            let answer = *answer;
            self.state = State::Head;
            self.say(&answer);
        }
        Ok(())
    }

    /// Sends what the socket takes.
    pub(crate) fn write(&mut self) -> Result<(), Stop> {
        while let Some(one) = self.unsent.front() {
            let head = one.head.get(self.sent..).unwrap_or_default();
            let total = match &one.body {
                Some((memory, length)) => {
                    let (segment, at) = memory.region();
                    let of_body = self.sent.saturating_sub(HEADER_BYTES);
                    let to = self.socket.as_fd();
                    self.sent += segment.send(head, at + of_body, length - of_body, to)?;
                    HEADER_BYTES + length
                }
                None => {
                    match (&self.socket).write(head) {
                        Ok(count) => self.sent += count,
                        Err(error) if error.kind() == ErrorKind::WouldBlock => {
                            return Err(Stop::Blocked);
                        }
                        Err(error) if error.kind() == ErrorKind::Interrupted => {}
                        Err(_) => return Err(Stop::Broken("lost")),
                    }
                    HEADER_BYTES
                }
            };
            if self.sent == total {
                self.unsent.pop_front();
                self.sent = 0;
            }
        }
        Ok(())
    }
}

/// What a peer may say on a stream that it dialled.
const fn asked(header: &Header) -> Result<(Kind, Range), Stop> {
    match header.word {
        Word::Store(range) => Ok((Kind::Store, range)),
        Word::Fetch(range) => Ok((Kind::Fetch, range)),
        _ => Err(Stop::Broken("an answer where a transfer belongs")),
    }
}

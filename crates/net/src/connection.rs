//! One TCP connection without blocking: bytes that came, bytes that wait to go.
//!
//!   Connecting --writable--> Shaking --proof--> Up
//!
//! Invariant: `input` never holds more than one frame of the largest size and one read.

use crate::frame::{self, HEADER_BYTES, Kind};
use crate::handshake::{HELLO_BYTES, Handshake, Proven};
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Instant;
use wire::DaemonIndex;
use wire::codec::Malformed;
use wire::limits::FRAME_BYTES_MAX;

/// Bytes of one read.
const READ_BYTES: usize = 64 * 1024;
/// Reads before others have their turn.
const READS_MAX: usize = 32;
/// Buffers above this are given back when they are empty.
const KEPT_BYTES: usize = 256 * 1024;

/// How far a connection is.
pub(crate) enum Phase {
    /// Dialled; the other side has not accepted.
    Connecting(Handshake),
    /// Proving.
    Shaking(Handshake),
    /// The other side has proven who it is.
    Up(Proven),
}

/// What one round of reading ended with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Filled {
    /// Nothing more now.
    Drained,
    /// There may be more.
    More,
    /// The other side closed.
    Ended,
}

pub(crate) struct Connection {
    pub(crate) stream: TcpStream,
    pub(crate) phase: Phase,
    /// Whom we dialled.
    pub(crate) dialled: Option<DaemonIndex>,
    /// When it must be up.
    pub(crate) deadline: Instant,
    /// True if the poller was asked for writability.
    pub(crate) polls_write: bool,
    /// Requests of ours that are not answered.
    pub(crate) outstanding: usize,
    input: Vec<u8>,
    taken: usize,
    output: Vec<u8>,
    sent: usize,
}

impl Connection {
    pub(crate) fn new(
        stream: TcpStream,
        phase: Phase,
        dialled: Option<DaemonIndex>,
        deadline: Instant,
    ) -> Connection {
        Connection {
            stream,
            phase,
            dialled,
            deadline,
            polls_write: false,
            outstanding: 0,
            input: Vec::new(),
            taken: 0,
            output: Vec::new(),
            sent: 0,
        }
    }

    /// The peer, once it is proven.
    pub(crate) const fn peer(&self) -> Option<Proven> {
        match &self.phase {
            Phase::Up(proven) => Some(*proven),
            _ => None,
        }
    }

    /// Bytes that wait to go.
    pub(crate) fn waiting(&self) -> usize {
        self.output.len() - self.sent
    }

    /// Puts a frame behind those that wait.
    pub(crate) fn push(&mut self, kind: Kind, id: u64, payload: &[u8]) -> Result<(), Malformed> {
        frame::encode(kind, id, payload, &mut self.output)
    }

    /// Sends what the socket takes.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        while let Some(rest) = self.output.get(self.sent..).filter(|rest| !rest.is_empty()) {
            match self.stream.write(rest) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(count) => self.sent += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        self.output.clear();
        self.sent = 0;
        if self.output.capacity() > KEPT_BYTES {
            self.output = Vec::new();
        }
        Ok(())
    }

    /// Reads what is there, up to a bound.
    pub(crate) fn fill(&mut self) -> io::Result<Filled> {
        for _ in 0..READS_MAX {
            if self.input.len() - self.taken > HEADER_BYTES + FRAME_BYTES_MAX {
                return Ok(Filled::More);
            }
            let length = self.input.len();
            self.input.resize(length + READ_BYTES, 0);
            let room = self.input.get_mut(length..).unwrap_or_default();
            let wanted = room.len();
            let outcome = self.stream.read(room);
            let count = outcome.as_ref().copied().unwrap_or(0);
            self.input.truncate(length + count);
            match outcome {
                Ok(0) => return Ok(Filled::Ended),
                Ok(count) if count < wanted => return Ok(Filled::Drained),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(Filled::Drained),
                Err(error) => return Err(error),
            }
        }
        Ok(Filled::More)
    }

    /// The next whole frame that came.
    pub(crate) fn next_frame(&mut self) -> Result<Option<frame::Frame<'_>>, Malformed> {
        // A stranger may announce no more than a handshake needs.
        let most = if self.peer().is_some() { FRAME_BYTES_MAX } else { HELLO_BYTES };
        let rest = self.input.get(self.taken..).unwrap_or_default();
        let Some((_, length)) = frame::decode(rest, most)? else {
            self.compact();
            return Ok(None);
        };
        let start = self.taken;
        self.taken += length;
        let rest = self.input.get(start..).unwrap_or_default();
        Ok(frame::decode(rest, most)?.map(|(frame, _)| frame))
    }

    fn compact(&mut self) {
        self.input.drain(..self.taken);
        self.taken = 0;
        if self.input.is_empty() && self.input.capacity() > KEPT_BYTES {
            self.input = Vec::new();
        }
    }
}

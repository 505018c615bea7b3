//! A stream of records: what came and was not taken, what is to go and did not go yet.

use rustix::event::epoll::EventFlags;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use wire::codec::Malformed;

/// Bytes that are read before they are taken; more records than can be under way at a time.
const INPUT_BYTES: usize = 16 * 1024;

/// Why a stream ends.
#[derive(Debug)]
pub(crate) enum Stop {
    Closed,
    Odd(&'static str),
    Failed(std::io::Error),
}

impl core::fmt::Display for Stop {
    fn fmt(&self, to: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Stop::Closed => to.write_str("closed by the peer"),
            Stop::Odd(what) => to.write_str(what),
            Stop::Failed(error) => write!(to, "{error}"),
        }
    }
}

impl From<Malformed> for Stop {
    fn from(_: Malformed) -> Stop {
        Stop::Odd("malformed record")
    }
}

pub(crate) struct Pipe {
    pub(crate) socket: TcpStream,
    input: Vec<u8>,
    output: Vec<u8>,
    sent: usize,
    /// What the poller looks for.
    pub(crate) polled: EventFlags,
}

impl Pipe {
    pub(crate) const fn new(socket: TcpStream) -> Pipe {
        let polled = EventFlags::IN.union(EventFlags::RDHUP);
        Pipe { socket, input: Vec::new(), output: Vec::new(), sent: 0, polled }
    }

    /// Reads what is there.
    pub(crate) fn fill(&mut self) -> Result<(), Stop> {
        let mut buffer = [0; 4096];
        while self.input.len() < INPUT_BYTES {
            match (&self.socket).read(&mut buffer) {
                Ok(0) => return Err(Stop::Closed),
                Ok(count) => self.input.extend(buffer.iter().take(count)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(Stop::Failed(error)),
            }
        }
        Ok(())
    }

    /// The next so many bytes, if they came.
    pub(crate) fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let bytes = *self.input.first_chunk::<N>()?;
        self.input.drain(..N);
        Some(bytes)
    }

    /// Puts bytes behind those that wait to go.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.output.extend_from_slice(bytes);
    }

    /// Sends what the socket takes.
    pub(crate) fn flush(&mut self) -> Result<(), Stop> {
        while let Some(rest) = self.output.get(self.sent..).filter(|rest| !rest.is_empty()) {
            match (&self.socket).write(rest) {
                Ok(count) => self.sent += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(Stop::Failed(error)),
            }
        }
        self.output.clear();
        self.sent = 0;
        Ok(())
    }

    /// What the poller has to look for.
    pub(crate) fn wants(&self) -> EventFlags {
        let flags = EventFlags::IN | EventFlags::RDHUP;
        if self.output.is_empty() { flags } else { flags | EventFlags::OUT }
    }
}

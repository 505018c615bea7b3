//! A stream of records with its input and output buffers.

use net::Channel;
use rustix::event::epoll::EventFlags;
use std::io::{ErrorKind, Read, Write};
use wire::codec::Malformed;

/// Size of the input buffer; more records than can be in flight at a time.
const INPUT_BYTES: usize = 16 * 1024;

/// The reason why a stream ends.
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
    pub(crate) socket: Channel,
    input: Vec<u8>,
    output: Vec<u8>,
    sent: usize,
    /// Events that the poller is registered for.
    pub(crate) polled: EventFlags,
}

impl Pipe {
    pub(crate) const fn new(socket: Channel) -> Pipe {
        let polled = EventFlags::IN.union(EventFlags::RDHUP);
        Pipe { socket, input: Vec::new(), output: Vec::new(), sent: 0, polled }
    }

    /// Reads what the socket has.
    pub(crate) fn fill(&mut self) -> Result<(), Stop> {
        let mut buffer = [0; 4096];
        while self.input.len() < INPUT_BYTES {
            match self.socket.read(&mut buffer) {
                Ok(0) => return Err(Stop::Closed),
                Ok(count) => self.input.extend(buffer.iter().take(count)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(Stop::Failed(error)),
            }
        }
        Ok(())
    }

    /// The next `N` bytes, if they came.
    pub(crate) fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let bytes = *self.input.first_chunk::<N>()?;
        self.input.drain(..N);
        Some(bytes)
    }

    /// Appends bytes to the output.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.output.extend_from_slice(bytes);
    }

    /// Sends as much as the socket accepts.
    pub(crate) fn flush(&mut self) -> Result<(), Stop> {
        while let Some(rest) = self.output.get(self.sent..).filter(|rest| !rest.is_empty()) {
            match self.socket.write(rest) {
                Ok(count) => self.sent += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(Stop::Failed(error)),
            }
        }
        self.output.clear();
        self.sent = 0;
        match self.socket.send_buffered() {
            Err(error) if error.kind() != ErrorKind::WouldBlock => Err(Stop::Failed(error)),
            _ => Ok(()),
        }
    }

    /// Events that the poller should be registered for.
    pub(crate) fn wants(&self) -> EventFlags {
        let flags = EventFlags::IN | EventFlags::RDHUP;
        let has_unsent = !self.output.is_empty() || self.socket.has_unsent();
        if has_unsent { flags | EventFlags::OUT } else { flags }
    }
}

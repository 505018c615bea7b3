//! One TCP connection as the thread of `transport` sees it: how far it is, and bytes that came.
//! Bytes that wait to go are in its `Line`.
//!
//!   Connecting --writable--> Shaking --proof--> Up
//!
//! Invariant: `input` never holds more than one frame of the largest size and one read.

use crate::frame::{self, HEADER_BYTES};
use crate::handshake::{HELLO_BYTES, Handshake, Proven};
use crate::line::Line;
use std::io::{self, ErrorKind, Read};
use std::sync::Arc;
use std::time::Instant;
use wire::DaemonIndex;
use wire::codec::Malformed;
use wire::limits::FRAME_BYTES_MAX;

/// Bytes of one read, at least: a few requests. A daemon has a thousand connections, most of which
/// never carry more.
const READ_BYTES: usize = 4 * 1024;
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
    /// Nothing came.
    Nothing,
    /// Nothing more now.
    Drained,
    /// There may be more.
    More,
    /// The other side closed.
    Ended,
}

pub(crate) struct Connection<T> {
    pub(crate) line: Arc<Line<T>>,
    pub(crate) phase: Phase,
    /// Whom we dialled.
    pub(crate) dialled: Option<DaemonIndex>,
    /// When it must be up.
    pub(crate) deadline: Instant,
    /// Room for reading; what came and is not taken is `taken..end`.
    input: Vec<u8>,
    taken: usize,
    end: usize,
}

impl<T> Connection<T> {
    pub(crate) fn new(
        line: Line<T>,
        phase: Phase,
        dialled: Option<DaemonIndex>,
        deadline: Instant,
    ) -> Connection<T> {
        let (line, input) = (Arc::new(line), Vec::new());
        Connection { line, phase, dialled, deadline, input, taken: 0, end: 0 }
    }

    /// The peer, once it is proven.
    pub(crate) const fn peer(&self) -> Option<Proven> {
        match &self.phase {
            Phase::Up(proven) => Some(*proven),
            _ => None,
        }
    }

    /// True if nothing came that was not taken.
    pub(crate) const fn is_drained(&self) -> bool {
        self.taken == self.end
    }

    /// Reads what is there, up to a bound.
    pub(crate) fn fill(&mut self) -> io::Result<Filled> {
        let mut filled = Filled::Nothing;
        for _ in 0..READS_MAX {
            if self.end - self.taken > HEADER_BYTES + FRAME_BYTES_MAX {
                return Ok(Filled::More);
            }
            self.make_room();
            let room = self.input.get_mut(self.end..).unwrap_or_default();
            let wanted = room.len();
            match (&self.line.stream).read(room) {
                Ok(0) => return Ok(Filled::Ended),
                Ok(count) => {
                    self.end += count;
                    filled = Filled::Drained;
                    if count < wanted {
                        return Ok(filled);
                    }
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(filled),
                Err(error) => return Err(error),
            }
        }
        Ok(Filled::More)
    }

    fn make_room(&mut self) {
        if self.input.len() - self.end >= READ_BYTES {
            return;
        }
        self.input.copy_within(self.taken..self.end, 0);
        self.end -= self.taken;
        self.taken = 0;
        if self.input.len() - self.end < READ_BYTES {
            // Much more: a large frame comes in few reads.
            self.input.resize(4 * self.end + READ_BYTES, 0);
        }
    }

    /// The next whole frame that came.
    pub(crate) fn next_frame(&mut self) -> Result<Option<frame::Frame<'_>>, Malformed> {
        // A stranger may announce no more than a handshake needs.
        let most = if self.peer().is_some() { FRAME_BYTES_MAX } else { HELLO_BYTES };
        let rest = self.input.get(self.taken..self.end).unwrap_or_default();
        let Some((_, length)) = frame::decode(rest, most)? else {
            self.compact();
            return Ok(None);
        };
        let start = self.taken;
        self.taken += length;
        let rest = self.input.get(start..self.end).unwrap_or_default();
        Ok(frame::decode(rest, most)?.map(|(frame, _)| frame))
    }

    fn compact(&mut self) {
        if self.taken == self.end {
            (self.taken, self.end) = (0, 0);
            if self.input.len() > KEPT_BYTES {
                self.input = Vec::new();
            }
        }
    }
}

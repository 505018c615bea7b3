//! One connection as the thread of `transport` sees it: its phase, and received bytes. Bytes to be
//! sent are in its `Link`.
//!
//!   Connecting --writable--> Dialled --hello--> Up
//!                            Accepted --proof--> Up
//!
//! Invariants:
//!  1. Received bytes that are not processed are never more than one frame of the largest size,
//!     one record and one read.
//!  2. On a protected connection, frames are only decoded from verified records.

use crate::frame::{self, HEADER_BYTES};
use crate::handshake::{Accepting, Dialling, HELLO_BYTES, PeerIdentity};
use crate::incomplete::Incomplete;
use crate::link::Link;
use crate::security::records::{Opener, Tampered};
use std::io::{self, ErrorKind, Read};
use std::sync::Arc;
use std::time::Instant;
use wire::DaemonIndex;
use wire::codec::Malformed;
use wire::limits::FRAME_BYTES_MAX;

/// Minimum bytes of one read: a few requests. A daemon has a thousand connections, most of which
/// never carry more.
const READ_BYTES: usize = 4 * 1024;
/// Reads before other connections get their turn.
const READS_MAX: usize = 32;
/// Empty buffers larger than this are freed.
const RETAINED_BYTES_MAX: usize = 256 * 1024;

/// Phase of a connection.
pub(crate) enum Phase {
    /// Dialled; the other side has not accepted yet. The hello is sent then.
    Connecting(Dialling, Vec<u8>),
    /// Waits for the acceptor's hello.
    Dialled(Dialling),
    /// Waits for the dialler's hello and proof.
    Accepted(Accepting),
    /// The peer is authenticated.
    Up(PeerIdentity),
    /// The handshake failed; the connection is about to be closed.
    Failed,
}

/// Result of one round of reading.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Filled {
    /// No bytes were available.
    Nothing,
    /// All available bytes were read.
    Drained,
    /// More bytes may be available.
    More,
    /// The peer closed the connection.
    Ended,
}

/// Received bytes: those that are not processed are `taken..end`.
#[derive(Default)]
struct Buffer {
    bytes: Vec<u8>,
    taken: usize,
    end: usize,
}

impl Buffer {
    fn rest(&self) -> &[u8] {
        self.bytes.get(self.taken..self.end).unwrap_or_default()
    }

    fn rest_mut(&mut self) -> &mut [u8] {
        self.bytes.get_mut(self.taken..self.end).unwrap_or_default()
    }

    const fn length(&self) -> usize {
        self.end - self.taken
    }

    /// Space for at least `count` bytes.
    fn space(&mut self, count: usize) -> &mut [u8] {
        if self.bytes.len() - self.end < count {
            self.bytes.copy_within(self.taken..self.end, 0);
            self.end -= self.taken;
            self.taken = 0;
        }
        if self.bytes.len() - self.end < count {
            // Grows by a factor, so that a large frame needs few reads. New zeros cost less than
            // appended ones, because the kernel provides them at the first touch.
            let mut larger = vec![0; 4 * self.end + count];
            if let (Some(to), Some(from)) = (larger.get_mut(..self.end), self.bytes.get(..self.end))
            {
                to.copy_from_slice(from);
            }
            self.bytes = larger;
        }
        self.bytes.get_mut(self.end..).unwrap_or_default()
    }

    fn append(&mut self, bytes: &[u8]) {
        if let Some(space) = self.space(bytes.len()).get_mut(..bytes.len()) {
            space.copy_from_slice(bytes);
            self.end += bytes.len();
        }
    }

    /// Frees the memory if it is empty and large.
    fn compact(&mut self) {
        if self.taken == self.end {
            (self.taken, self.end) = (0, 0);
            if self.bytes.len() > RETAINED_BYTES_MAX {
                self.bytes = Vec::new();
            }
        }
    }
}

pub(crate) struct Connection<T> {
    pub(crate) link: Arc<Link<T>>,
    pub(crate) phase: Phase,
    /// The daemon that was dialled; `None` for an accepted connection.
    pub(crate) dialled: Option<DaemonIndex>,
    /// Deadline of the handshake, of a connection that was dialled.
    pub(crate) deadline: Instant,
    /// Bytes as they were received.
    input: Buffer,
    /// On a protected connection: bytes of verified records.
    verified: Buffer,
    opener: Option<Opener>,
    pub(crate) incomplete: Incomplete,
}

impl<T> Connection<T> {
    pub(crate) fn new(
        link: Link<T>,
        phase: Phase,
        dialled: Option<DaemonIndex>,
        deadline: Instant,
    ) -> Connection<T> {
        let (input, verified) = (Buffer::default(), Buffer::default());
        let (link, opener, incomplete) = (Arc::new(link), None, Incomplete::default());
        Connection { link, phase, dialled, deadline, input, verified, opener, incomplete }
    }

    /// The peer, once it is authenticated.
    pub(crate) const fn peer(&self) -> Option<PeerIdentity> {
        match &self.phase {
            Phase::Up(proven) => Some(*proven),
            _ => None,
        }
    }

    /// True if all received bytes are processed.
    pub(crate) const fn is_drained(&self) -> bool {
        self.input.length() + self.verified.length() == 0
    }

    /// From now on, what is received are records.
    ///
    /// # Errors
    /// `Tampered` if records that have been received already do not verify.
    pub(crate) fn protect(&mut self, opener: Opener) -> Result<(), Tampered> {
        self.opener = Some(opener);
        self.open()
    }

    /// Opens the received records.
    fn open(&mut self) -> Result<(), Tampered> {
        let Some(opener) = &mut self.opener else { return Ok(()) };
        while let Some((plain, length)) = opener.open(self.input.rest_mut())? {
            self.verified.append(self.input.rest().get(plain).unwrap_or_default());
            self.input.taken += length;
        }
        self.input.compact();
        Ok(())
    }

    /// Reads available bytes, up to a bound.
    ///
    /// # Errors
    /// `InvalidData` if a record does not verify; errors of the operating system.
    pub(crate) fn fill(&mut self) -> io::Result<Filled> {
        let mut filled = Filled::Nothing;
        for _ in 0..READS_MAX {
            // Incomplete records do not count: the frame that they complete could wait for them.
            let decodable = if self.opener.is_some() { &self.verified } else { &self.input };
            if decodable.length() > HEADER_BYTES + FRAME_BYTES_MAX {
                return Ok(Filled::More);
            }
            let space = self.input.space(READ_BYTES);
            let expected = space.len();
            match (&self.link.stream).read(space) {
                Ok(0) => return Ok(Filled::Ended),
                Ok(count) => {
                    self.input.end += count;
                    self.open().map_err(|error| io::Error::new(ErrorKind::InvalidData, error))?;
                    filled = Filled::Drained;
                    if count < expected {
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

    /// Notes whether a record is incomplete. Returns the deadline of one that is new.
    pub(crate) fn note_incomplete(&mut self) -> Option<Instant> {
        let whole = self.opener.as_ref()?.count();
        self.incomplete.note(self.input.length() > 0, whole)
    }

    /// The next complete frame.
    pub(crate) fn next_frame(&mut self) -> Result<Option<frame::Frame<'_>>, Malformed> {
        // Before authentication, a frame may be no longer than the handshake needs.
        let most = if self.peer().is_some() { FRAME_BYTES_MAX } else { HELLO_BYTES };
        let buffer = if self.opener.is_some() { &mut self.verified } else { &mut self.input };
        let Some((_, length)) = frame::decode(buffer.rest(), most)? else {
            buffer.compact();
            return Ok(None);
        };
        let start = buffer.taken;
        buffer.taken += length;
        let rest = buffer.bytes.get(start..buffer.end).unwrap_or_default();
        Ok(frame::decode(rest, most)?.map(|(frame, _)| frame))
    }
}

//! A stream for the bytes of files: a socket that, where it is protected, seals what is sent and
//! opens what is received.
//!
//! Unprotected bytes go between socket and shared memory directly. Protected ones take one more copy,
//! through a buffer of a record that stays in the processor's cache: shared memory may change while
//! a tag is computed, and bytes that do not verify must never be where somebody could read them.
//!
//! Invariant: bytes are handed out only after their record has been verified.

use crate::incomplete::Incomplete;
use crate::security::records::{
    Keys, LENGTH_BYTES, Opener, PLAIN_BYTES_MAX, Sealer, TAG_BYTES, Tampered, end_of, length_of,
};
use crate::socket::Socket;
use core::ops::Range;
use rustix::fd::{AsFd, BorrowedFd};
use shm::Segment;
use std::io::{self, ErrorKind, Read, Write};
use std::time::Instant;
use wire::Errno;

/// Errno of a record that does not verify.
pub const TAMPERED: Errno = Errno(rustix::io::Errno::BADMSG.raw_os_error() as u16);

/// Bytes of a transfer in shared memory: mapping, offset, length.
pub type TransferBytes<'a> = (&'a Segment, usize, usize);

/// A stream.
pub struct Channel {
    socket: Socket,
    protected: Option<Box<Protected>>,
}

struct Protected {
    sealer: Sealer,
    opener: Opener,
    output: SealedOutput,
    input: Input,
    incomplete: Incomplete,
}

/// The record that is being filled or sent.
#[derive(Default)]
struct SealedOutput {
    /// Length and plaintext, or the sealed record, up to `filled`. Its length never shrinks while it
    /// is used, because appended zeros cost as much as a copy.
    bytes: Vec<u8>,
    filled: usize,
    is_sealed: bool,
    sent: usize,
}

/// The record that is being received or handed out.
#[derive(Default)]
struct Input {
    /// The first `have` bytes were received.
    bytes: Vec<u8>,
    have: usize,
    /// Verified and not handed out yet.
    plain: Range<usize>,
}

fn io_error(error: Tampered) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, error)
}

fn errno_of(error: &io::Error) -> Errno {
    match error.kind() {
        ErrorKind::InvalidData => TAMPERED,
        ErrorKind::WouldBlock => Errno::EAGAIN,
        ErrorKind::Interrupted => Errno::EINTR,
        _ => error
            .raw_os_error()
            .and_then(|number| u16::try_from(number).ok())
            .map_or(Errno::EIO, Errno),
    }
}

impl SealedOutput {
    /// Space in the record; 0 once it is sealed.
    fn space(&self) -> usize {
        let plain = self.filled.saturating_sub(LENGTH_BYTES);
        if self.is_sealed { 0 } else { PLAIN_BYTES_MAX - plain }
    }

    /// The next `count` bytes of the record.
    fn next(&mut self, count: usize) -> &mut [u8] {
        let start = self.filled.max(LENGTH_BYTES);
        self.filled = start + count;
        // With space for the tag.
        if self.bytes.len() < self.filled + TAG_BYTES {
            self.bytes.resize(self.filled + TAG_BYTES, 0);
        }
        self.bytes.get_mut(start..start + count).unwrap_or_default()
    }

    /// Takes as many bytes as there is space.
    fn push(&mut self, bytes: &[u8]) -> usize {
        let count = bytes.len().min(self.space());
        if let Some(bytes) = bytes.get(..count).filter(|_| count > 0) {
            self.next(count).copy_from_slice(bytes);
        }
        count
    }

    fn push_body(&mut self, (segment, at, length): TransferBytes<'_>) -> Result<usize, Errno> {
        let count = length.min(self.space());
        if count > 0 {
            segment.copy_out(at, self.next(count))?;
        }
        Ok(count)
    }

    /// Seals the record, if that is not done, and sends as much as the socket takes.
    fn flush(&mut self, sealer: &mut Sealer, mut socket: &Socket) -> io::Result<()> {
        if self.filled == 0 {
            return Ok(());
        }
        if !self.is_sealed {
            let record = self.bytes.get_mut(..self.filled).unwrap_or_default();
            let (length, plain) = record.split_at_mut(LENGTH_BYTES);
            length.copy_from_slice(&length_of(plain.len()).map_err(io_error)?);
            let tag = sealer.seal_in_place(plain).map_err(io_error)?;
            self.next(TAG_BYTES).copy_from_slice(&tag);
            self.is_sealed = true;
        }
        while self.sent < self.filled {
            let rest = self.bytes.get(self.sent..self.filled).unwrap_or_default();
            match socket.write(rest) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(count) => self.sent += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        (self.filled, self.is_sealed, self.sent) = (0, false, 0);
        Ok(())
    }
}

impl Input {
    /// Verified bytes; empty at the end of the stream.
    fn verified(&mut self, opener: &mut Opener, mut socket: &Socket) -> io::Result<&[u8]> {
        while self.plain.is_empty() {
            let have = self.bytes.get(..self.have).unwrap_or_default();
            // With the record, the length of the next one is received, too.
            let expected = match end_of(have).map_err(io_error)? {
                Some(end) if end <= self.have => {
                    self.plain = self.open(opener)?;
                    break;
                }
                Some(end) => end + LENGTH_BYTES,
                None => LENGTH_BYTES,
            };
            if self.bytes.len() < expected {
                self.bytes.resize(expected, 0);
            }
            let space = self.bytes.get_mut(self.have..expected).unwrap_or_default();
            match socket.read(space) {
                Ok(0) => return Ok(&[]),
                Ok(count) => self.have += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(self.bytes.get(self.plain.clone()).unwrap_or_default())
    }

    fn open(&mut self, opener: &mut Opener) -> io::Result<Range<usize>> {
        let have = self.bytes.get_mut(..self.have).unwrap_or_default();
        match opener.open(have).map_err(io_error)? {
            Some((plain, _)) => Ok(plain),
            None => Ok(0..0),
        }
    }

    /// Marks bytes as handed out.
    fn take(&mut self, count: usize) {
        self.plain.start += count;
        if count == 0 || !self.plain.is_empty() {
            return;
        }
        // At most the length of the next record follows.
        let end = self.plain.end + TAG_BYTES;
        self.bytes.copy_within(end.min(self.have)..self.have, 0);
        self.have = self.have.saturating_sub(end);
        self.plain = 0..0;
    }
}

impl Channel {
    /// A stream over a socket whose handshake is complete.
    #[must_use]
    pub fn new(socket: Socket, keys: Option<Keys>) -> Channel {
        let protected = keys.map(|Keys { sealer, opener }| {
            let (output, input) = (SealedOutput::default(), Input::default());
            Box::new(Protected { sealer, opener, output, input, incomplete: Incomplete::default() })
        });
        Channel { socket, protected }
    }

    /// The socket.
    #[must_use]
    pub const fn socket(&self) -> &Socket {
        &self.socket
    }

    /// Receives bytes that are available now into shared memory. 0: end of the stream.
    ///
    /// # Errors
    /// `EAGAIN` if nothing is available; `TAMPERED`; `EIO` if the bytes are not in the mapping;
    /// errors of the operating system.
    pub fn receive(&mut self, (segment, at, length): TransferBytes<'_>) -> Result<usize, Errno> {
        let Some(Protected { opener, input, .. }) = self.protected.as_deref_mut() else {
            return segment.receive(at, length, self.socket.as_fd());
        };
        let bytes = input.verified(opener, &self.socket).map_err(|error| errno_of(&error))?;
        let bytes = bytes.get(..length.min(bytes.len())).unwrap_or_default();
        segment.copy_in(at, bytes)?;
        let count = bytes.len();
        input.take(count);
        Ok(count)
    }

    /// Takes bytes to send, as many as possible now: `head` and then `body`. They may stay in a
    /// buffer until `flush`.
    ///
    /// # Errors
    /// `EAGAIN` if the socket takes none now; `EIO` if the bytes are not in the mapping; errors of
    /// the operating system.
    pub fn send(&mut self, head: &[u8], body: TransferBytes<'_>) -> Result<usize, Errno> {
        let (segment, at, length) = body;
        let Some(Protected { sealer, output, .. }) = self.protected.as_deref_mut() else {
            return segment.send(head, at, length, self.socket.as_fd());
        };
        if output.space() == 0 {
            output.flush(sealer, &self.socket).map_err(|error| errno_of(&error))?;
        }
        let count = output.push(head);
        Ok(if count == head.len() { count + output.push_body(body)? } else { count })
    }

    /// Sends what is in the buffer.
    ///
    /// # Errors
    /// `WouldBlock` if the socket does not take all of it; errors of the operating system.
    pub fn send_buffered(&mut self) -> io::Result<()> {
        match self.protected.as_deref_mut() {
            Some(Protected { sealer, output, .. }) => output.flush(sealer, &self.socket),
            None => Ok(()),
        }
    }

    /// True if bytes wait in the buffer for the socket to become writable.
    #[must_use]
    pub fn has_unsent(&self) -> bool {
        self.protected.as_ref().is_some_and(|one| one.output.filled > 0)
    }

    /// True if verified bytes wait, of which the poller knows nothing.
    #[must_use]
    pub fn has_verified(&self) -> bool {
        self.protected.as_ref().is_some_and(|one| !one.input.plain.is_empty())
    }

    /// Notes whether a record is incomplete, for which the reader waits. Returns the deadline of
    /// one that is new.
    pub(crate) fn note_incomplete(&mut self) -> Option<Instant> {
        let Protected { opener, input, incomplete, .. } = self.protected.as_deref_mut()?;
        incomplete.note(input.have > 0 && input.plain.is_empty(), opener.count())
    }

    /// The record for which the reader waits.
    pub(crate) fn incomplete(&self) -> Incomplete {
        self.protected.as_ref().map_or_else(Incomplete::default, |one| one.incomplete)
    }

    /// Frees empty buffers, of a stream that is about to rest: a daemon may have thousands.
    pub fn release_buffers(&mut self) {
        let Some(Protected { output, input, .. }) = self.protected.as_deref_mut() else {
            return;
        };
        if output.filled == 0 {
            output.bytes = Vec::new();
        }
        if input.plain.is_empty() && input.have <= LENGTH_BYTES {
            input.bytes.truncate(LENGTH_BYTES);
            input.bytes.shrink_to_fit();
        }
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Read for Channel {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let Some(Protected { opener, input, .. }) = self.protected.as_deref_mut() else {
            return (&self.socket).read(to);
        };
        let bytes = input.verified(opener, &self.socket)?;
        let count = bytes.len().min(to.len());
        if let (Some(to), Some(from)) = (to.get_mut(..count), bytes.get(..count)) {
            to.copy_from_slice(from);
        }
        input.take(count);
        Ok(count)
    }
}

impl Write for Channel {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let Some(Protected { sealer, output, .. }) = self.protected.as_deref_mut() else {
            return (&self.socket).write(bytes);
        };
        if output.space() == 0 {
            output.flush(sealer, &self.socket)?;
        }
        Ok(output.push(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.send_buffered()
    }
}

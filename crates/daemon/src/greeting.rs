//! The first words on the Unix socket: a client's hello and the welcome with its descriptors, or a
//! question about the daemon's state.

use gateway::Session;
use placement::Map;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::IoSlice;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use std::io;
use std::mem::MaybeUninit;
use std::os::unix::net::UnixStream;
use wire::Welcome;
use wire::codec::{Reader, Writer};
use wire::errno::Errno;
use wire::limits::PROTOCOL_VERSION;
use wire::welcome::{HELLO_BYTES, LEND_MAGIC, MAGIC, REFUSAL, STATUS_MAGIC, WELCOME_BYTES_MAX};

/// What somebody wants who said hello.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wish {
    /// A session.
    Session,
    /// The daemon's state.
    Status,
    /// To lend so much memory, see `wire::welcome::LEND_IDLE`; then the state.
    Lend(u32),
}

/// Reads a hello.
///
/// # Errors
/// `EPROTO` if it is none, or of another version.
pub(crate) fn wish(hello: &[u8; HELLO_BYTES]) -> Result<Wish, Errno> {
    let mut reader = Reader::new(hello);
    let magic = reader.raw(MAGIC.len()).map_err(|_| Errno::EPROTO)?;
    let version = reader.u32().map_err(|_| Errno::EPROTO)?;
    if version != PROTOCOL_VERSION {
        return Err(Errno::EPROTO);
    }
    match magic {
        magic if magic == MAGIC => Ok(Wish::Session),
        magic if magic == STATUS_MAGIC => Ok(Wish::Status),
        magic if magic == LEND_MAGIC => Ok(Wish::Lend(reader.u32().map_err(|_| Errno::EPROTO)?)),
        _ => Err(Errno::EPROTO),
    }
}

/// What every client of this daemon gets, whoever it is.
pub(crate) struct Offer {
    /// Without session and origin.
    pub(crate) welcome: Welcome,
    /// The instance map.
    pub(crate) map: Map,
    /// Doorbells, host segment, arena, piece table, piece states, SSD file, posts, finder, leases,
    /// pins, stretches of pieces, then the indexes. The table, the finder, the leases and the indexes are
    /// open for reading only.
    pub(crate) descriptors: Vec<OwnedFd>,
}

impl Offer {
    /// Sends the welcome of `session`, whose memory is `slots`.
    ///
    /// # Errors
    /// What the operating system says.
    pub(crate) fn welcome(
        &self,
        stream: &UnixStream,
        session: &Session,
        slots: BorrowedFd<'_>,
    ) -> io::Result<()> {
        let steady_nanos = shm::wait::steady_nanos().cast_unsigned();
        let Session { index: session, origin, believed } = *session;
        let welcome = Welcome { session, pid: believed.pid, origin, steady_nanos, ..self.welcome };
        let mut bytes = [0; WELCOME_BYTES_MAX];
        let mut writer = Writer::new(&mut bytes);
        welcome.encode(&mut writer);
        self.map.encode(&mut writer);
        let length = writer.finish().map_err(io::Error::other)?;
        let bytes = bytes.get(..length).unwrap_or_default();

        let mut descriptors = vec![slots];
        descriptors.extend(self.descriptors.iter().map(AsFd::as_fd));
        let space = rustix::cmsg_space!(ScmRights(Welcome::DESCRIPTORS_MAX));
        let mut space = vec![MaybeUninit::uninit(); space];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !control.push(SendAncillaryMessage::ScmRights(&descriptors)) {
            return Err(io::Error::other("too many descriptors"));
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let sent = rustix::net::sendmsg(stream, &[IoSlice::new(bytes)], &mut control, flags)?;
        if sent == length { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
    }
}

/// Says no; the connection is closed afterwards.
pub(crate) fn refuse(stream: &UnixStream, errno: Errno) {
    let [low, high] = errno.0.to_le_bytes();
    let _ = rustix::net::send(stream, &[REFUSAL, low, high], SendFlags::NOSIGNAL);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello(magic: [u8; 8], version: u32) -> [u8; HELLO_BYTES] {
        let mut bytes = [0; HELLO_BYTES];
        let mut writer = Writer::new(&mut bytes);
        writer.raw(&magic);
        writer.u32(version);
        bytes
    }

    #[test]
    fn a_hello_of_another_version_or_none_is_refused() {
        assert_eq!(wish(&hello(MAGIC, PROTOCOL_VERSION)), Ok(Wish::Session));
        assert_eq!(wish(&hello(STATUS_MAGIC, PROTOCOL_VERSION)), Ok(Wish::Status));
        assert_eq!(wish(&hello(LEND_MAGIC, PROTOCOL_VERSION)), Ok(Wish::Lend(0)));
        assert_eq!(wish(&hello(MAGIC, PROTOCOL_VERSION + 1)), Err(Errno::EPROTO));
        assert_eq!(wish(b"GET / HTTP/1.1\r\n"), Err(Errno::EPROTO));
    }
}

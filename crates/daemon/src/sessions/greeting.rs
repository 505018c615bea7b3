//! First messages on the Unix socket: a client's hello and the welcome with its descriptors, or a
//! query of the daemon's status.

use crate::members::BalanceWord;
use crate::shared::gone_hosts::GoneHost;
use gateway::Session;
use placement::Map;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::IoSlice;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use std::io;
use std::mem::MaybeUninit;
use std::os::unix::net::UnixStream;
use wire::codec::{Reader, Writer};
use wire::errno::Errno;
use wire::limits::PROTOCOL_VERSION;
use wire::welcome::{
    ACTIVITY_MAGIC, ADD_MAGIC, BALANCE_MAGIC, BALANCE_NOW, BALANCE_OFF, BALANCE_ON, GONE_MAGIC,
    HELLO_BYTES, LEAVE_MAGIC, LEND_MAGIC, LOST_MAGIC, MAGIC, REFUSAL, RULES_MAGIC, STATUS_MAGIC,
    WELCOME_BYTES_MAX,
};
use wire::{DaemonIndex, Welcome};

/// Kind of a hello.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum HelloKind {
    /// Opens a session.
    Session,
    /// Requests the daemon's status.
    Status,
    /// Lends this much memory (see `wire::welcome::LEND_IDLE`), then requests the status.
    Lend(u32),
    /// Requests what jobs did: all in short (0), or those with this `wire::welcome::job_word`.
    Activity(u32),
    /// A command on rules of so many bytes follows.
    Rules(u32),
    /// Says that a host is gone, then requests the status.
    Gone(GoneHost),
    /// Requests the files that lost bytes with all their copies.
    Lost,
    /// Adds a daemon, of this failure domain, then requests the status.
    Add(DaemonIndex, u16),
    /// Has a daemon leave, then requests the status.
    Leave(DaemonIndex),
    /// Says whether the load of services is balanced, then requests the status.
    Balance(BalanceWord),
}

/// Parses a hello.
///
/// # Errors
/// `EPROTO` if it is malformed or of another version.
pub(crate) fn parse_hello(hello: &[u8; HELLO_BYTES]) -> Result<HelloKind, Errno> {
    let mut reader = Reader::new(hello);
    let magic = reader.raw(MAGIC.len()).map_err(|_| Errno::EPROTO)?;
    let version = reader.u32().map_err(|_| Errno::EPROTO)?;
    if version != PROTOCOL_VERSION {
        return Err(Errno::EPROTO);
    }
    match magic {
        magic if magic == MAGIC => Ok(HelloKind::Session),
        magic if magic == STATUS_MAGIC => Ok(HelloKind::Status),
        magic if magic == LOST_MAGIC => Ok(HelloKind::Lost),
        magic if magic == LEND_MAGIC => {
            Ok(HelloKind::Lend(reader.u32().map_err(|_| Errno::EPROTO)?))
        }
        magic if magic == ACTIVITY_MAGIC => {
            Ok(HelloKind::Activity(reader.u32().map_err(|_| Errno::EPROTO)?))
        }
        magic if magic == RULES_MAGIC => {
            Ok(HelloKind::Rules(reader.u32().map_err(|_| Errno::EPROTO)?))
        }
        magic if magic == GONE_MAGIC => {
            let word = reader.u32().map_err(|_| Errno::EPROTO)?;
            Ok(HelloKind::Gone(GoneHost { host: word as u16, round: (word >> 16) as u16 }))
        }
        magic if magic == ADD_MAGIC => {
            let word = reader.u32().map_err(|_| Errno::EPROTO)?;
            Ok(HelloKind::Add(DaemonIndex(word as u16), (word >> 16) as u16))
        }
        magic if magic == LEAVE_MAGIC => {
            let word = reader.u32().map_err(|_| Errno::EPROTO)?;
            let daemon = u16::try_from(word).map_err(|_| Errno::EPROTO)?;
            Ok(HelloKind::Leave(DaemonIndex(daemon)))
        }
        magic if magic == BALANCE_MAGIC => match reader.u32().map_err(|_| Errno::EPROTO)? {
            BALANCE_OFF => Ok(HelloKind::Balance(BalanceWord::Off)),
            BALANCE_ON => Ok(HelloKind::Balance(BalanceWord::On)),
            BALANCE_NOW => Ok(HelloKind::Balance(BalanceWord::Now)),
            _ => Err(Errno::EPROTO),
        },
        _ => Err(Errno::EPROTO),
    }
}

/// The part of the welcome that is the same for all clients of this daemon.
pub(crate) struct WelcomeTemplate {
    /// Without session and client id.
    pub(crate) welcome: Welcome,
    /// Doorbells, host segment, arena, extent table, extent states, SSD file, operation log, extent
    /// hints, leases, hazard pointers, page groups of extents, sums of pages, activity segment, then
    /// the indexes. The table, the
    /// hints, the leases and the indexes are open for reading only.
    pub(crate) descriptors: Vec<OwnedFd>,
}

impl WelcomeTemplate {
    /// Sends the welcome of `session`, whose memory is `slots`, with the instance map of now.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub(crate) fn welcome(
        &self,
        stream: &UnixStream,
        session: &Session,
        (map, slots): (&Map, BorrowedFd<'_>),
    ) -> io::Result<()> {
        let steady_nanos = shm::wait::steady_nanos().cast_unsigned();
        let Session { index: session, client_id, peer } = *session;
        let welcome = Welcome { session, pid: peer.pid, client_id, steady_nanos, ..self.welcome };
        let mut bytes = [0; WELCOME_BYTES_MAX];
        let mut writer = Writer::new(&mut bytes);
        welcome.encode(&mut writer);
        map.encode(&mut writer);
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

/// Refuses a client; the caller then closes the connection.
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
    fn a_malformed_hello_or_another_version_is_refused() {
        assert_eq!(parse_hello(&hello(MAGIC, PROTOCOL_VERSION)), Ok(HelloKind::Session));
        assert_eq!(parse_hello(&hello(STATUS_MAGIC, PROTOCOL_VERSION)), Ok(HelloKind::Status));
        assert_eq!(parse_hello(&hello(LOST_MAGIC, PROTOCOL_VERSION)), Ok(HelloKind::Lost));
        assert_eq!(parse_hello(&hello(LEND_MAGIC, PROTOCOL_VERSION)), Ok(HelloKind::Lend(0)));
        let of_jobs = parse_hello(&hello(ACTIVITY_MAGIC, PROTOCOL_VERSION));
        assert_eq!(of_jobs, Ok(HelloKind::Activity(0)));
        assert_eq!(parse_hello(&hello(RULES_MAGIC, PROTOCOL_VERSION)), Ok(HelloKind::Rules(0)));
        let mut of_host = hello(GONE_MAGIC, PROTOCOL_VERSION);
        of_host[12..].copy_from_slice(&[2, 1, 4, 3]);
        let gone = GoneHost { host: 0x102, round: 0x304 };
        assert_eq!(parse_hello(&of_host), Ok(HelloKind::Gone(gone)));
        let mut of_added = hello(ADD_MAGIC, PROTOCOL_VERSION);
        of_added[12..].copy_from_slice(&[2, 1, 4, 3]);
        let added = HelloKind::Add(DaemonIndex(0x102), 0x304);
        assert_eq!(parse_hello(&of_added), Ok(added));
        let mut of_leaver = hello(LEAVE_MAGIC, PROTOCOL_VERSION);
        of_leaver[12..].copy_from_slice(&[2, 1, 0, 0]);
        assert_eq!(parse_hello(&of_leaver), Ok(HelloKind::Leave(DaemonIndex(0x102))));
        of_leaver[14] = 1;
        assert_eq!(parse_hello(&of_leaver), Err(Errno::EPROTO));
        let mut of_balance = hello(BALANCE_MAGIC, PROTOCOL_VERSION);
        for (word, balance) in [
            (0, Ok(BalanceWord::Off)),
            (1, Ok(BalanceWord::On)),
            (2, Ok(BalanceWord::Now)),
            (3, Err(())),
        ] {
            of_balance[12] = word;
            let expected = balance.map(HelloKind::Balance).map_err(|()| Errno::EPROTO);
            assert_eq!(parse_hello(&of_balance), expected);
        }
        assert_eq!(parse_hello(&hello(MAGIC, PROTOCOL_VERSION + 1)), Err(Errno::EPROTO));
        assert_eq!(parse_hello(b"GET / HTTP/1.1\r\n"), Err(Errno::EPROTO));
    }
}

//! A socket between daemons: TCP, or a Unix socket within a host, with its options; and the place where a
//! daemon is dialled.

use rustix::fd::{AsFd, BorrowedFd};
use rustix::net::sockopt;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::time::Duration;

/// Silence after which a keepalive probe is sent, and the interval of further probes.
const KEEPALIVE_TIME: Duration = Duration::from_secs(5);
/// Time in milliseconds after which a connection with unacknowledged data or probes is closed.
const UNANSWERED_MILLIS_MAX: u32 = 15_000;

/// Where a daemon is dialled. Both sides of a connection must see the same.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// An address of TCP.
    Tcp(SocketAddr),
    /// The Unix socket in the run directory of the host.
    Host,
}

impl Place {
    /// Kind, port and address as they are sent in a handshake. An IPv4 address in an IPv6 one is
    /// the same address.
    pub(crate) fn parts(&self) -> (u8, u16, [u8; 16]) {
        match self {
            Place::Tcp(address) => {
                let ip = match address.ip() {
                    IpAddr::V4(ip) => ip.to_ipv6_mapped(),
                    IpAddr::V6(ip) => ip,
                };
                (1, address.port(), ip.octets())
            }
            Place::Host => (2, 0, [0; 16]),
        }
    }
}

/// A connected socket.
#[derive(Debug)]
pub enum Socket {
    /// Between hosts.
    Tcp(TcpStream),
    /// Within a host.
    Unix(UnixStream),
}

impl Socket {
    /// Where the connection arrived, as the side that accepted it sees it.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub fn place(&self) -> io::Result<Place> {
        match self {
            Socket::Tcp(stream) => stream.local_addr().map(Place::Tcp),
            Socket::Unix(_) => Ok(Place::Host),
        }
    }

    /// The address of the other side, `None` within a host.
    #[must_use]
    pub fn source(&self) -> Option<IpAddr> {
        match self {
            Socket::Tcp(stream) => stream.peer_addr().ok().map(|address| address.ip()),
            Socket::Unix(_) => None,
        }
    }

    /// The addresses of this side and the other, `None` within a host.
    #[must_use]
    pub(crate) fn ends(&self) -> Option<(SocketAddr, SocketAddr)> {
        match self {
            Socket::Tcp(stream) => Some((stream.local_addr().ok()?, stream.peer_addr().ok()?)),
            Socket::Unix(_) => None,
        }
    }

    /// Switches between calls that block and calls that do not.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        match self {
            Socket::Tcp(stream) => stream.set_nonblocking(nonblocking),
            Socket::Unix(stream) => stream.set_nonblocking(nonblocking),
        }
    }

    /// Limits each blocking call.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub(crate) fn set_timeout(&self, time: Duration) -> io::Result<()> {
        match self {
            Socket::Tcp(stream) => {
                stream.set_read_timeout(Some(time))?;
                stream.set_write_timeout(Some(time))
            }
            Socket::Unix(stream) => {
                stream.set_read_timeout(Some(time))?;
                stream.set_write_timeout(Some(time))
            }
        }
    }

    /// Ends both directions; the other side and this one's reader find the end.
    pub(crate) fn shut_down(&self) {
        let _ = match self {
            Socket::Tcp(stream) => stream.shutdown(Shutdown::Both),
            Socket::Unix(stream) => stream.shutdown(Shutdown::Both),
        };
    }

    /// The same socket again.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub(crate) fn try_clone(&self) -> io::Result<Socket> {
        match self {
            Socket::Tcp(stream) => stream.try_clone().map(Socket::Tcp),
            Socket::Unix(stream) => stream.try_clone().map(Socket::Unix),
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Socket::Tcp(stream) => stream.as_fd(),
            Socket::Unix(stream) => stream.as_fd(),
        }
    }
}

impl Read for &Socket {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        match self {
            Socket::Tcp(stream) => (&*stream).read(to),
            Socket::Unix(stream) => (&*stream).read(to),
        }
    }
}

impl Write for &Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Socket::Tcp(stream) => (&*stream).write(bytes),
            Socket::Unix(stream) => (&*stream).write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The listening socket of this daemon for those of its host.
pub(crate) fn bind_host(path: PathBuf) -> io::Result<(UnixListener, PathBuf)> {
    // Of a killed daemon of this index: only one runs at a time.
    match std::fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(&path)?;
    listener.set_nonblocking(true)?;
    Ok((listener, path))
}

pub(crate) fn set_options(socket: &Socket) {
    let Socket::Tcp(stream) = socket else { return };
    // The options only improve speed and failure detection, so errors are ignored.
    let _ = sockopt::set_tcp_nodelay(stream, true);
    let _ = sockopt::set_tcp_user_timeout(stream, UNANSWERED_MILLIS_MAX);
    spare_pacing(stream);
}

/// Replaces BBR congestion control, whose timer-based pacing costs up to a third of a stream's
/// throughput between hosts of a cluster. An unprivileged process may only choose `reno`; where
/// round trips are short, cubic grows like it.
fn spare_pacing(stream: &TcpStream) {
    if sockopt::tcp_congestion(stream).is_ok_and(|name| name.starts_with("bbr")) {
        let _ =
            ["cubic", "reno"].iter().find(|name| sockopt::set_tcp_congestion(stream, name).is_ok());
    }
}

/// Enables keepalive probes to peers on other hosts. A peer on the same host cannot go away without
/// the kernel closing the connection; and 256 daemons have 65,000 ends there, whose simultaneous
/// probes overran the loopback queue, so that healthy connections were closed.
pub(crate) fn keep_alive(socket: &Socket) {
    let Socket::Tcp(stream) = socket else { return };
    let ends = (stream.local_addr(), stream.peer_addr());
    if matches!(ends, (Ok(own), Ok(theirs)) if own.ip() == theirs.ip()) {
        return;
    }
    let _ = sockopt::set_socket_keepalive(stream, true);
    let _ = sockopt::set_tcp_keepidle(stream, KEEPALIVE_TIME);
    let _ = sockopt::set_tcp_keepintvl(stream, KEEPALIVE_TIME);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn a_connection_does_not_pace_and_other_choices_stay() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
        let address = listener.local_addr().expect("an address");
        for (before, stays) in [("bbr", false), ("reno", true), ("cubic", true)] {
            let stream = TcpStream::connect(address).expect("connected");
            if sockopt::set_tcp_congestion(&stream, before).is_err() {
                // Missing in this kernel, or not permitted: check the host's default instead.
                spare_pacing(&stream);
                assert!(!sockopt::tcp_congestion(&stream).expect("known").starts_with("bbr"));
                continue;
            }
            spare_pacing(&stream);
            let after = sockopt::tcp_congestion(&stream).expect("known");
            assert_eq!(after == before, stays, "{before}, then {after}");
        }
    }
}

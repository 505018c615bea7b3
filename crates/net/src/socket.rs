//! A connected socket between daemons: TCP, or a Unix socket within a host; and the place where a
//! daemon is dialled.

use rustix::fd::{AsFd, BorrowedFd};
use std::io::{self, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::time::Duration;

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

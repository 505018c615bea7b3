//! Opens a bulk stream: address lookup, connection, handshake. Blocking with bounds, on a thread of
//! its own, because streams are opened rarely.

use crate::channel::Channel;
use crate::frame::{self, FrameKind, HEADER_BYTES};
use crate::handshake::{Dialling, HELLO_BYTES, Refusal};
use crate::peers;
use crate::settings::Settings;
use crate::socket::{Place, Socket, keep_alive, set_options};
use crate::transport::HANDSHAKE_TIME;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use wire::DaemonIndex;

/// First byte that the accepting lane sends. It means that the lane reads this stream, and that
/// nothing of an earlier stream can take effect any more.
pub const READY: [u8; 1] = *b"R";

/// Time after which a stream with unacknowledged data is closed.
const UNANSWERED_MILLIS_MAX: u32 = 3_000;

/// Dials stream `number` of `peer`.
///
/// # Errors
/// Errors of the operating system, or the reason why either side refused the handshake;
/// `Unsupported` if the peer has no such stream.
pub fn dial(settings: &Settings, peer: DaemonIndex, number: u8) -> io::Result<Channel> {
    let (socket, place) = connect(settings, peer)?;
    set_options(&socket);
    keep_alive(&socket);
    if let Socket::Tcp(stream) = &socket {
        // A stream can be opened again at once, while the kernel's retransmissions back off ever
        // longer.
        let _ = rustix::net::sockopt::set_tcp_user_timeout(stream, UNANSWERED_MILLIS_MAX);
    }
    socket.set_timeout(HANDSHAKE_TIME)?;
    let (secret, parties) = (&settings.secret, settings.parties(place));
    let (dialling, hello) =
        Dialling::new(secret, parties, (peer, place), number).map_err(io::Error::other)?;
    send_frame(&socket, FrameKind::Hello, &hello)?;
    let hello = receive_hello(&socket)?;
    let (proven, proof) = dialling.hello(&hello).map_err(io::Error::other)?;
    send_frame(&socket, FrameKind::Proof, &proof)?;
    let mut channel = Channel::new(socket, proven.keys);
    let mut ready = [0];
    channel.read_exact(&mut ready)?;
    if ready != READY {
        let what = "the peer has no such bulk stream";
        return Err(io::Error::new(io::ErrorKind::Unsupported, what));
    }
    channel.socket().set_nonblocking(true)?;
    Ok(channel)
}

fn connect(settings: &Settings, peer: DaemonIndex) -> io::Result<(Socket, Place)> {
    if let Some(path) = settings.host_socket_of(peer) {
        return Ok((Socket::Unix(UnixStream::connect(path)?), Place::Host));
    }
    let address = peers::address_of(&settings.peers, peer)
        .ok_or_else(|| io::Error::other("its address is not known"))?;
    let stream = TcpStream::connect_timeout(&address, HANDSHAKE_TIME)?;
    Ok((Socket::Tcp(stream), Place::Tcp(address)))
}

fn send_frame(mut socket: &Socket, kind: FrameKind, payload: &[u8]) -> io::Result<()> {
    let mut bytes = Vec::new();
    frame::encode(kind, 0, payload, &mut bytes).map_err(io::Error::other)?;
    socket.write_all(&bytes)
}

/// Reads exactly one frame, the acceptor's hello.
fn receive_hello(mut socket: &Socket) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; HEADER_BYTES];
    socket.read_exact(&mut bytes)?;
    loop {
        match frame::decode(&bytes, HELLO_BYTES).map_err(io::Error::other)? {
            Some((frame, _)) if frame.kind == FrameKind::Hello => {
                return Ok(frame.payload.to_vec());
            }
            Some((frame, _)) => {
                let code = frame.payload.first().copied().unwrap_or(0);
                return Err(io::Error::other(Refusal::ByPeer(code)));
            }
            None => {
                let mut byte = [0];
                socket.read_exact(&mut byte)?;
                bytes.extend_from_slice(&byte);
            }
        }
    }
}

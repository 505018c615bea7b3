//! Making a bulk stream: the peer's address, a connection, the handshake. Blocking and bounded; on
//! a thread of its own, as streams are made rarely.

use crate::frame::{self, HEADER_BYTES, Kind};
use crate::handshake::{HELLO_BYTES, Handshake, Parties, Role};
use crate::peers;
use crate::transport::{HANDSHAKE_TIME, Settings, keep_alive, set_options};
use std::io::{self, Read, Write};
use std::net::TcpStream;
use wire::DaemonIndex;

/// What the lane that a stream comes to says first: from then on it reads, and nothing of an
/// earlier stream takes effect any more.
pub const READY: [u8; 1] = *b"R";

/// Time until a stream whose peer takes nothing is given up.
const UNANSWERED_MILLIS_MAX: u32 = 3_000;

/// Dials stream `number` of `peer`.
///
/// # Errors
/// What the operating system says, or why the peer was not believed, or did not believe us;
/// `Unsupported` if it has no such stream.
pub fn dial(settings: &Settings, peer: DaemonIndex, number: u8) -> io::Result<TcpStream> {
    let address = peers::address_of(&settings.peers, peer)
        .ok_or_else(|| io::Error::other("its address is not known"))?;
    let mut stream = TcpStream::connect_timeout(&address, HANDSHAKE_TIME)?;
    set_options(&stream);
    keep_alive(&stream);
    // A stream is made anew at once, while the kernel waits ever longer before it tries an old one.
    let _ = rustix::net::sockopt::set_tcp_user_timeout(&stream, UNANSWERED_MILLIS_MAX);
    stream.set_read_timeout(Some(HANDSHAKE_TIME))?;
    stream.set_write_timeout(Some(HANDSHAKE_TIME))?;
    let mut nonce = [0; 32];
    getrandom::fill(&mut nonce).map_err(|_| io::Error::other("no random numbers"))?;
    let parties = Parties {
        me: settings.me,
        role: Role::Dialler,
        start: settings.start,
        expected: Some(peer),
        daemon_count: settings.daemon_count,
        stream: number,
    };
    let mut handshake = Handshake::new(settings.secret.clone(), parties, nonce);
    let hello = *handshake.own_hello();
    say(&mut stream, Kind::Hello, &hello)?;
    let hello = hear(&mut stream, Kind::Hello)?;
    let proof = handshake.hello(&hello).map_err(io::Error::other)?;
    say(&mut stream, Kind::Proof, &proof)?;
    let proof = hear(&mut stream, Kind::Proof)?;
    handshake.proof(&proof).map_err(io::Error::other)?;
    let mut ready = [0];
    stream.read_exact(&mut ready)?;
    if ready != READY {
        let what = "the peer has no such bulk stream";
        return Err(io::Error::new(io::ErrorKind::Unsupported, what));
    }
    stream.set_nonblocking(true)?;
    Ok(stream)
}

fn say(stream: &mut TcpStream, kind: Kind, payload: &[u8]) -> io::Result<()> {
    let mut bytes = Vec::new();
    frame::encode(kind, 0, payload, &mut bytes).map_err(io::Error::other)?;
    stream.write_all(&bytes)
}

/// Reads one frame and nothing behind it.
fn hear(stream: &mut TcpStream, wanted: Kind) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; HEADER_BYTES];
    stream.read_exact(&mut bytes)?;
    loop {
        match frame::decode(&bytes, HELLO_BYTES).map_err(io::Error::other)? {
            Some((frame, _)) if frame.kind == wanted => return Ok(frame.payload.to_vec()),
            Some(_) => return Err(io::Error::other("refused by the peer")),
            None => {
                let mut byte = [0];
                stream.read_exact(&mut byte)?;
                bytes.extend_from_slice(&byte);
            }
        }
    }
}

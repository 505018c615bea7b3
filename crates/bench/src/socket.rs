//! Plain TCP between two programs of our own: what the network gives where nothing is in the way.
//!
//! The server serves each connection by a thread. A connection begins with a byte for what it is and
//! eight for how much: rounds of a message to and fro, or bytes to the server, or bytes from it.

use rustix::net::sockopt;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

/// A message, to or fro: about what a request or its answer takes.
const MESSAGE_BYTES: usize = 256;
const BLOCK_BYTES: usize = 4 << 20;
/// Buffers between a program and the thread that has its socket: as between a client and its daemon.
const BUFFER_BYTES: usize = 256 << 10;
const BUFFER_COUNT: usize = 16;

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// So many messages to and fro.
    Rounds,
    /// So many bytes to the server, which says so at the end.
    Send,
    /// So many bytes from the server.
    Receive,
    /// As `Send`, and `Receive`, but the socket is another thread's, with a copy between the two: what
    /// it costs at least that a program does not have the connection itself.
    SendCopied,
    ReceiveCopied,
    /// As these, and the connection has the congestion control of those between daemons.
    SendUnpaced,
    ReceiveUnpaced,
}

impl Use {
    const ALL: [Use; 7] = [
        Use::Rounds,
        Use::Send,
        Use::Receive,
        Use::SendCopied,
        Use::ReceiveCopied,
        Use::SendUnpaced,
        Use::ReceiveUnpaced,
    ];

    /// Sets up either end of a connection.
    fn prepare(self, stream: &TcpStream) -> io::Result<()> {
        stream.set_nodelay(true)?;
        if matches!(self, Use::SendUnpaced | Use::ReceiveUnpaced)
            && sockopt::tcp_congestion(stream)?.starts_with("bbr")
        {
            sockopt::set_tcp_congestion(stream, "cubic")
                .or_else(|_| sockopt::set_tcp_congestion(stream, "reno"))?;
        }
        Ok(())
    }
}

/// Runs `forebay-bench serve ADDRESS`: prints its port and serves until its input ends.
pub(crate) fn main(words: &[String]) -> Result<(), String> {
    let [address] = words else { return Err("serve: expected an address".into()) };
    let told = |error: io::Error| format!("serve {address}: {error}");
    let listener = TcpListener::bind((address.as_str(), 0)).map_err(told)?;
    println!("port {}", listener.local_addr().map_err(told)?.port());
    std::thread::spawn(move || serve(&listener));
    let mut nothing = Vec::new();
    io::stdin().lock().read_to_end(&mut nothing).map_err(told).map(drop)
}

fn serve(listener: &TcpListener) {
    for stream in listener.incoming().map_while(Result::ok) {
        // A client that goes away ends its connection alone.
        std::thread::spawn(move || serve_one(stream));
    }
}

fn serve_one(mut stream: TcpStream) -> io::Result<()> {
    let mut head = [0; 9];
    stream.read_exact(&mut head)?;
    let mut amount = [0; 8];
    amount.copy_from_slice(&head[1..]);
    let amount = u64::from_le_bytes(amount);
    let what = Use::ALL.get(usize::from(head[0])).copied();
    what.map_or(Ok(()), |what| what.prepare(&stream))?;
    match what {
        Some(Use::Rounds) => {
            let mut message = [0; MESSAGE_BYTES];
            (0..amount).try_for_each(|_| {
                stream.read_exact(&mut message)?;
                stream.write_all(&message)
            })
        }
        Some(Use::Send | Use::SendCopied | Use::SendUnpaced) => {
            blocks(amount, |block| stream.read_exact(block))?;
            stream.write_all(&[1])
        }
        Some(Use::Receive | Use::ReceiveCopied | Use::ReceiveUnpaced) => {
            blocks(amount, |block| stream.write_all(block))
        }
        None => Err(io::Error::other("no such use")),
    }
}

/// Connects; nothing moves before `work`.
pub(crate) fn connect(address: &str, what: Use, amount: u64) -> io::Result<Connection> {
    let stream = TcpStream::connect(address)?;
    what.prepare(&stream)?;
    Ok(Connection { stream, what, amount })
}

/// A connection, and what it is for.
pub(crate) struct Connection {
    stream: TcpStream,
    what: Use,
    amount: u64,
}

impl Connection {
    /// Does what it is for.
    pub(crate) fn work(mut self) -> io::Result<()> {
        let kind = Use::ALL.iter().position(|one| *one == self.what).unwrap_or(0);
        let mut head = vec![kind as u8];
        head.extend(self.amount.to_le_bytes());
        self.stream.write_all(&head)?;
        match self.what {
            Use::Rounds => {
                let mut message = [7; MESSAGE_BYTES];
                (0..self.amount).try_for_each(|_| {
                    self.stream.write_all(&message)?;
                    self.stream.read_exact(&mut message)
                })
            }
            Use::Send => {
                blocks(self.amount, |block| self.stream.write_all(block))?;
                self.stream.read_exact(&mut [0])
            }
            Use::Receive => blocks(self.amount, |block| self.stream.read_exact(block)),
            Use::SendCopied | Use::SendUnpaced => {
                send_copied(self.amount, |buffer| self.stream.write_all(buffer))?;
                self.stream.read_exact(&mut [0])
            }
            Use::ReceiveCopied | Use::ReceiveUnpaced => {
                receive_copied(self.amount, |buffer| self.stream.read_exact(buffer))
            }
        }
    }
}

/// A buffer and how much of it is used.
type Buffer = (Vec<u8>, usize);

/// Empty buffers in a channel, and one for full ones.
fn buffers() -> (SyncSender<Buffer>, Receiver<Buffer>, SyncSender<Buffer>, Receiver<Buffer>) {
    let (give_back, empty) = sync_channel(BUFFER_COUNT);
    let (fill, full) = sync_channel(BUFFER_COUNT);
    for _ in 0..BUFFER_COUNT {
        let _ = give_back.send((vec![0; BUFFER_BYTES], 0));
    }
    (give_back, empty, fill, full)
}

fn ended<E>(_: E) -> io::Error {
    io::Error::other("the other thread ended")
}

/// Copies blocks into buffers, which another thread sends by `send`.
fn send_copied(
    amount: u64,
    mut send: impl FnMut(&[u8]) -> io::Result<()> + Send,
) -> io::Result<()> {
    let (give_back, empty, fill, full) = buffers();
    std::thread::scope(|scope| {
        let sender = scope.spawn(move || {
            for (buffer, length) in full {
                send(&buffer[..length])?;
                let _ = give_back.send((buffer, length));
            }
            Ok(())
        });
        let copied = blocks(amount, |block| {
            block.chunks(BUFFER_BYTES).try_for_each(|part| {
                let (mut buffer, _) = empty.recv().map_err(ended)?;
                buffer[..part.len()].copy_from_slice(part);
                fill.send((buffer, part.len())).map_err(ended)
            })
        });
        drop(fill);
        sender.join().map_err(|_| ended(()))?.and(copied)
    })
}

/// Copies blocks out of buffers, which another thread fills by `receive`.
fn receive_copied(
    amount: u64,
    mut receive: impl FnMut(&mut [u8]) -> io::Result<()> + Send,
) -> io::Result<()> {
    let (give_back, empty, fill, full) = buffers();
    std::thread::scope(|scope| {
        let receiver = scope.spawn(move || {
            blocks(amount, |block| {
                block.chunks(BUFFER_BYTES).try_for_each(|part| {
                    let (mut buffer, _) = empty.recv().map_err(ended)?;
                    receive(&mut buffer[..part.len()])?;
                    fill.send((buffer, part.len())).map_err(ended)
                })
            })
        });
        let copied = blocks(amount, |block| {
            block.chunks_mut(BUFFER_BYTES).try_for_each(|part| {
                let (buffer, length) = full.recv().map_err(ended)?;
                part.copy_from_slice(&buffer[..length]);
                let _ = give_back.send((buffer, length));
                Ok(())
            })
        });
        receiver.join().map_err(|_| ended(()))?.and(copied)
    })
}

/// Calls `with` for blocks that are `amount` bytes together.
fn blocks(amount: u64, mut with: impl FnMut(&mut [u8]) -> io::Result<()>) -> io::Result<()> {
    let mut block = vec![7; BLOCK_BYTES];
    let mut left = amount;
    while left > 0 {
        let length = left.min(BLOCK_BYTES as u64);
        with(&mut block[..length as usize])?;
        left -= length;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    //! Both sides in one process.
    use super::*;

    #[test]
    fn all_uses_come_to_their_end() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
        let address = listener.local_addr().expect("an address").to_string();
        std::thread::spawn(move || serve(&listener));
        for (what, amount) in [
            (Use::Rounds, 20),
            (Use::Send, BLOCK_BYTES as u64 + 5),
            (Use::Receive, BLOCK_BYTES as u64 * 2),
            (Use::SendCopied, BLOCK_BYTES as u64 * 2 + 5),
            (Use::ReceiveCopied, BLOCK_BYTES as u64 * 2 + BUFFER_BYTES as u64 + 5),
            (Use::SendUnpaced, BLOCK_BYTES as u64 + 5),
            (Use::ReceiveUnpaced, BLOCK_BYTES as u64 + 5),
            (Use::Send, 0),
        ] {
            connect(&address, what, amount).and_then(Connection::work).expect("done");
        }
    }
}

//! Plain TCP between two processes of this program: the upper limit that the network allows.
//!
//! The server runs one thread per connection. A connection begins with one byte for its use and
//! eight for the amount: round trips of a message, bytes to the server, or bytes from it.

use rustix::net::sockopt;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

/// Size of a message in either direction: about that of a request or its reply.
const MESSAGE_BYTES: usize = 256;
const BLOCK_BYTES: usize = 4 << 20;
/// Buffers between a program and the thread that owns its socket, as between a client and its
/// daemon.
const BUFFER_BYTES: usize = 256 << 10;
const BUFFER_COUNT: usize = 16;

/// Purpose of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnectionUse {
    /// Round trips of a message.
    Rounds,
    /// Bytes to the server, which acknowledges the end.
    Send,
    /// Bytes from the server.
    Receive,
    /// As `Send` and `Receive`, but another thread owns the socket, with one copy in between: the
    /// minimum cost of not owning the connection.
    SendCopied,
    ReceiveCopied,
    /// As the previous two, with the congestion control of connections between daemons.
    SendUnpaced,
    ReceiveUnpaced,
}

impl ConnectionUse {
    const ALL: [ConnectionUse; 7] = [
        ConnectionUse::Rounds,
        ConnectionUse::Send,
        ConnectionUse::Receive,
        ConnectionUse::SendCopied,
        ConnectionUse::ReceiveCopied,
        ConnectionUse::SendUnpaced,
        ConnectionUse::ReceiveUnpaced,
    ];

    /// Sets up either end of a connection.
    fn prepare(self, stream: &TcpStream) -> io::Result<()> {
        stream.set_nodelay(true)?;
        if matches!(self, ConnectionUse::SendUnpaced | ConnectionUse::ReceiveUnpaced)
            && sockopt::tcp_congestion(stream)?.starts_with("bbr")
        {
            sockopt::set_tcp_congestion(stream, "cubic")
                .or_else(|_| sockopt::set_tcp_congestion(stream, "reno"))?;
        }
        Ok(())
    }
}

/// Runs `forebay-bench serve ADDRESS`: prints its port and serves until its standard input ends.
pub(crate) fn main(words: &[String]) -> Result<(), String> {
    let [address] = words else { return Err("serve: expected an address".into()) };
    let describe = |error: io::Error| format!("serve {address}: {error}");
    let listener = TcpListener::bind((address.as_str(), 0)).map_err(describe)?;
    println!("port {}", listener.local_addr().map_err(describe)?.port());
    std::thread::spawn(move || serve(&listener));
    let mut nothing = Vec::new();
    io::stdin().lock().read_to_end(&mut nothing).map_err(describe).map(drop)
}

fn serve(listener: &TcpListener) {
    for stream in listener.incoming().map_while(Result::ok) {
        // A client that disconnects ends only its own connection.
        std::thread::spawn(move || serve_one(stream));
    }
}

fn serve_one(mut stream: TcpStream) -> io::Result<()> {
    let mut head = [0; 9];
    stream.read_exact(&mut head)?;
    let mut amount = [0; 8];
    amount.copy_from_slice(&head[1..]);
    let amount = u64::from_le_bytes(amount);
    let what = ConnectionUse::ALL.get(usize::from(head[0])).copied();
    what.map_or(Ok(()), |what| what.prepare(&stream))?;
    match what {
        Some(ConnectionUse::Rounds) => {
            let mut message = [0; MESSAGE_BYTES];
            (0..amount).try_for_each(|_| {
                stream.read_exact(&mut message)?;
                stream.write_all(&message)
            })
        }
        Some(ConnectionUse::Send | ConnectionUse::SendCopied | ConnectionUse::SendUnpaced) => {
            blocks(amount, |block| stream.read_exact(block))?;
            stream.write_all(&[1])
        }
        Some(
            ConnectionUse::Receive | ConnectionUse::ReceiveCopied | ConnectionUse::ReceiveUnpaced,
        ) => blocks(amount, |block| stream.write_all(block)),
        None => Err(io::Error::other("no such use")),
    }
}

/// Connects. No data moves before `work`.
pub(crate) fn connect(address: &str, what: ConnectionUse, amount: u64) -> io::Result<Connection> {
    let stream = TcpStream::connect(address)?;
    what.prepare(&stream)?;
    Ok(Connection { stream, what, amount })
}

/// A connection and its purpose.
pub(crate) struct Connection {
    stream: TcpStream,
    what: ConnectionUse,
    amount: u64,
}

impl Connection {
    /// Transfers all messages or bytes.
    pub(crate) fn work(mut self) -> io::Result<()> {
        let kind = ConnectionUse::ALL.iter().position(|one| *one == self.what).unwrap_or(0);
        let mut head = vec![kind as u8];
        head.extend(self.amount.to_le_bytes());
        self.stream.write_all(&head)?;
        match self.what {
            ConnectionUse::Rounds => {
                let mut message = [7; MESSAGE_BYTES];
                (0..self.amount).try_for_each(|_| {
                    self.stream.write_all(&message)?;
                    self.stream.read_exact(&mut message)
                })
            }
            ConnectionUse::Send => {
                blocks(self.amount, |block| self.stream.write_all(block))?;
                self.stream.read_exact(&mut [0])
            }
            ConnectionUse::Receive => blocks(self.amount, |block| self.stream.read_exact(block)),
            ConnectionUse::SendCopied | ConnectionUse::SendUnpaced => {
                send_copied(self.amount, |buffer| self.stream.write_all(buffer))?;
                self.stream.read_exact(&mut [0])
            }
            ConnectionUse::ReceiveCopied | ConnectionUse::ReceiveUnpaced => {
                receive_copied(self.amount, |buffer| self.stream.read_exact(buffer))
            }
        }
    }
}

/// A buffer and its used length.
type Buffer = (Vec<u8>, usize);

/// A channel of empty buffers, and one for full ones.
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

/// Copies blocks into buffers that another thread sends by `send`.
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

/// Copies blocks out of buffers that another thread fills by `receive`.
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

/// Calls `with` for blocks of `amount` bytes in total.
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
    //! Both ends in one process.
    use super::*;

    #[test]
    fn all_uses_complete() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
        let address = listener.local_addr().expect("an address").to_string();
        std::thread::spawn(move || serve(&listener));
        for (what, amount) in [
            (ConnectionUse::Rounds, 20),
            (ConnectionUse::Send, BLOCK_BYTES as u64 + 5),
            (ConnectionUse::Receive, BLOCK_BYTES as u64 * 2),
            (ConnectionUse::SendCopied, BLOCK_BYTES as u64 * 2 + 5),
            (ConnectionUse::ReceiveCopied, BLOCK_BYTES as u64 * 2 + BUFFER_BYTES as u64 + 5),
            (ConnectionUse::SendUnpaced, BLOCK_BYTES as u64 + 5),
            (ConnectionUse::ReceiveUnpaced, BLOCK_BYTES as u64 + 5),
            (ConnectionUse::Send, 0),
        ] {
            connect(&address, what, amount).and_then(Connection::work).expect("done");
        }
    }
}

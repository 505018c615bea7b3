//! Plain TCP between two programs of our own: what the network gives where nothing is in the way.
//!
//! The server serves each connection by a thread. A connection begins with a byte for what it is and
//! eight for how much: rounds of a message to and fro, or bytes to the server, or bytes from it.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};

/// A message, to or fro: about what a request or its answer takes.
const MESSAGE_BYTES: usize = 256;
const BLOCK_BYTES: usize = 4 << 20;

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// So many messages to and fro.
    Rounds,
    /// So many bytes to the server, which says so at the end.
    Send,
    /// So many bytes from the server.
    Receive,
}

impl Use {
    const ALL: [Use; 3] = [Use::Rounds, Use::Send, Use::Receive];
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
    stream.set_nodelay(true)?;
    let mut head = [0; 9];
    stream.read_exact(&mut head)?;
    let mut amount = [0; 8];
    amount.copy_from_slice(&head[1..]);
    let amount = u64::from_le_bytes(amount);
    match Use::ALL.get(usize::from(head[0])) {
        Some(Use::Rounds) => {
            let mut message = [0; MESSAGE_BYTES];
            (0..amount).try_for_each(|_| {
                stream.read_exact(&mut message)?;
                stream.write_all(&message)
            })
        }
        Some(Use::Send) => {
            blocks(amount, |block| stream.read_exact(block))?;
            stream.write_all(&[1])
        }
        Some(Use::Receive) => blocks(amount, |block| stream.write_all(block)),
        None => Err(io::Error::other("no such use")),
    }
}

/// Connects; nothing moves before `work`.
pub(crate) fn connect(address: &str, what: Use, amount: u64) -> io::Result<Connection> {
    let stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
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
        }
    }
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
            (Use::Send, 0),
        ] {
            connect(&address, what, amount).and_then(Connection::work).expect("done");
        }
    }
}

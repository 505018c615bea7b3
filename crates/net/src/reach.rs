//! Whether the host of a peer acknowledges what was sent to it. Its kernel does so also while the
//! peer's process stands still, and so tells a stopped process from a host that is gone.
//!
//! Linux lists the TCP sockets of a network namespace as text, with the bytes that each has sent
//! and the other side has not acknowledged. Within a host a connection ends with its process.

use crate::link::Link;
use crate::sender::Sender;
use std::net::{IpAddr, SocketAddr};
use wire::DaemonIndex;

/// State of the connection to a peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reach {
    /// There is none.
    Unconnected,
    /// Something that was sent is not acknowledged, or the system does not say.
    Unacknowledged,
    /// The peer's host has acknowledged all that was sent.
    Acknowledged,
}

impl<T> Sender<T> {
    /// Whether a peer is reached. It reads a list of all sockets: for rare questions.
    #[must_use]
    pub fn reach(&self, peer: DaemonIndex) -> Reach {
        self.links.link(peer).map_or(Reach::Unconnected, |link| link.reach())
    }
}

impl<T> Link<T> {
    fn reach(&self) -> Reach {
        let Some(ends) = self.stream.ends() else { return Reach::Acknowledged };
        let list = if ends.0.is_ipv4() { "tcp" } else { "tcp6" };
        let list = std::fs::read_to_string(format!("/proc/thread-self/net/{list}"));
        match list.ok().and_then(|list| is_acknowledged(&list, ends)) {
            Some(true) => Reach::Acknowledged,
            Some(false) | None => Reach::Unacknowledged,
        }
    }
}

/// Timer of a socket whose peer takes no more bytes, but acknowledges questions whether it does.
const WINDOW_TIMER: &str = "04";

/// Whether the socket between these ends, its own first, has nothing that is not acknowledged. `None`:
/// the list does not have it.
fn is_acknowledged(list: &str, (own, peer): (SocketAddr, SocketAddr)) -> Option<bool> {
    let (own, peer) = (as_listed(own), as_listed(peer));
    list.lines().find_map(|line| {
        let mut words = line.split_ascii_whitespace().skip(1);
        if words.next() != Some(&own) || words.next() != Some(&peer) {
            return None;
        }
        let (queues, timer) = (words.nth(1)?, words.next()?);
        let unanswered = words.nth(2)?;
        let sent = queues.split(':').next()?;
        let waits = timer.split(':').next()? == WINDOW_TIMER && unanswered == "0";
        Some(waits || u64::from_str_radix(sent, 16).ok()? == 0)
    })
}

/// An address as the lists have it: words of four bytes in the order of this machine, and the port.
fn as_listed(address: SocketAddr) -> String {
    let octets = match address.ip() {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    };
    let (words, _) = octets.as_chunks::<4>();
    let mut text: String =
        words.iter().map(|&word| format!("{:08X}", u32::from_ne_bytes(word))).collect();
    text += &format!(":{:04X}", address.port());
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::socket::Socket;
    use std::io::Write as _;
    use std::net::{TcpListener, TcpStream};
    use std::time::{Duration, Instant};

    #[test]
    #[cfg(target_endian = "little")]
    fn bytes_without_acknowledgement_are_found_in_the_list() {
        let ends =
            ("10.79.0.1:8080".parse().expect("right"), "10.79.0.2:51".parse().expect("right"));
        let line = |sent: &str, timer: &str, unanswered: u32| {
            format!(
                "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt\n   \
                 0: 01004F0A:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 1\n   \
                 1: 01004F0A:1F90 02004F0A:0033 01 {sent}:00000000 {timer}:00000014 00000000     0   \
                 {unanswered} 20612 2 0000000000000000 20 4 30 10 -1\n"
            )
        };
        for (sent, timer, unanswered, expected) in [
            ("00000000", "00", 0, true),
            ("00000010", "01", 0, false),
            ("00000010", "04", 0, true),
            ("00000010", "04", 2, false),
        ] {
            let list = line(sent, timer, unanswered);
            assert_eq!(is_acknowledged(&list, ends), Some(expected), "{list}");
        }
        assert_eq!(is_acknowledged(&line("00000000", "00", 0), (ends.1, ends.0)), None);
        let sixth = "[::ffff:10.79.0.1]:1".parse().expect("right");
        assert_eq!(as_listed(sixth), "0000000000000000FFFF000001004F0A:0001");
    }

    #[test]
    fn a_peer_that_reads_nothing_acknowledges() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
        let mut stream =
            TcpStream::connect(listener.local_addr().expect("bound")).expect("connected");
        stream.write_all(b"is anybody there").expect("sent");
        let link = Link::<()>::new(1, Socket::Tcp(stream));
        let limit = Instant::now() + Duration::from_secs(60);
        while link.reach() != Reach::Acknowledged {
            assert!(Instant::now() < limit, "nothing is acknowledged");
            std::thread::yield_now();
        }
    }
}

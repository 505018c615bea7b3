//! Real connections over loopback: requests both ways, a lost peer, a wrong secret, garbage.

use net::{Answer, Handler, Lost, Net, Secret, Sender, Settings};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use wire::DaemonIndex;

const WAIT: Duration = Duration::from_secs(20);

#[derive(PartialEq, Eq, Debug)]
enum Event {
    Reply(u32, Option<Vec<u8>>),
    Message(u16, Vec<u8>),
    Up(u16),
    Down(u16),
}

/// Answers a request by its bytes with one more, except `silence`.
struct Echo {
    events: mpsc::Sender<Event>,
    sender: Sender<u32>,
}

impl Handler for Echo {
    type Token = u32;
    fn request(&mut self, _: DaemonIndex, answer: Answer, bytes: &[u8]) {
        if bytes != b"silence" {
            let mut bytes = bytes.to_vec();
            bytes.push(b'!');
            self.sender.reply(answer, bytes);
        }
    }
    fn reply(&mut self, token: u32, outcome: Result<&[u8], Lost>) {
        let _ = self.events.send(Event::Reply(token, outcome.ok().map(<[u8]>::to_vec)));
    }
    fn message(&mut self, from: DaemonIndex, bytes: &[u8]) {
        let _ = self.events.send(Event::Message(from.0, bytes.to_vec()));
    }
    fn up(&mut self, peer: net::handshake::Proven) {
        let _ = self.events.send(Event::Up(peer.daemon.0));
    }
    fn down(&mut self, peer: DaemonIndex) {
        let _ = self.events.send(Event::Down(peer.0));
    }
}

struct Daemon {
    sender: Sender<u32>,
    events: mpsc::Receiver<Event>,
    address: SocketAddr,
    thread: JoinHandle<()>,
}

fn start(me: u16, secret: u8, directory: &Path) -> Daemon {
    let settings = Settings {
        me: DaemonIndex(me),
        daemon_count: 3,
        start: u64::from(me),
        secret: Secret::new([secret; 32]),
        listen: "127.0.0.1:0".parse().expect("an address"),
        peers: directory.join("peers"),
    };
    let (net, sender) = Net::bind(settings).expect("bound");
    let address = net.local_address().expect("bound");
    let (tell, events) = mpsc::channel();
    let mut handler = Echo { events: tell, sender: sender.clone() };
    let thread = std::thread::spawn(move || net.run(&mut handler).expect("runs"));
    Daemon { sender, events, address, thread }
}

impl Daemon {
    fn expect(&self, event: Event) {
        assert_eq!(self.events.recv_timeout(WAIT), Ok(event));
    }
    fn stop(self) {
        self.sender.stop();
        self.thread.join().expect("no panic");
    }
}

fn tell_peers(directory: &Path, daemons: &[&Daemon]) {
    let lines = daemons.iter().enumerate().map(|(i, one)| format!("{i} {}\n", one.address));
    std::fs::write(directory.join("peers"), lines.collect::<String>()).expect("written");
}

#[test]
fn requests_go_both_ways_and_survive_a_restart_of_the_peer() {
    let directory = tempfile::tempdir().expect("directory");
    let (zero, one) = (start(0, 1, directory.path()), start(1, 1, directory.path()));
    zero.sender.request(DaemonIndex(1), b"early".to_vec(), 1).expect("room");
    zero.expect(Event::Reply(1, None));
    tell_peers(directory.path(), &[&zero, &one]);
    zero.expect(Event::Up(1));
    one.expect(Event::Up(0));

    zero.sender.request(DaemonIndex(1), b"ab".to_vec(), 2).expect("room");
    zero.expect(Event::Reply(2, Some(b"ab!".to_vec())));
    let large = vec![7; wire::limits::BULK_BYTES];
    one.sender.message(DaemonIndex(0), large.clone()).expect("room");
    one.sender.request(DaemonIndex(0), b"cd".to_vec(), 3).expect("room");
    one.expect(Event::Reply(3, Some(b"cd!".to_vec())));
    zero.expect(Event::Message(1, large));

    zero.sender.request(DaemonIndex(1), b"silence".to_vec(), 4).expect("room");
    std::thread::yield_now();
    one.stop();
    let first = zero.events.recv_timeout(WAIT).expect("told");
    assert!(matches!(first, Event::Down(1)), "{first:?}");
    zero.expect(Event::Reply(4, None));

    let one = start(1, 1, directory.path());
    zero.expect(Event::Up(1));
    one.expect(Event::Up(0));
    zero.sender.request(DaemonIndex(1), b"again".to_vec(), 5).expect("room");
    zero.expect(Event::Reply(5, Some(b"again!".to_vec())));
    zero.stop();
    one.stop();
}

#[test]
fn a_wrong_secret_never_comes_up() {
    let directory = tempfile::tempdir().expect("directory");
    let (zero, one) = (start(0, 1, directory.path()), start(1, 2, directory.path()));
    tell_peers(directory.path(), &[&zero, &one]);
    let none = Err(mpsc::RecvTimeoutError::Timeout);
    assert_eq!(zero.events.recv_timeout(Duration::from_millis(500)), none);
    assert_eq!(one.events.recv_timeout(Duration::from_millis(1)), none);
    zero.stop();
    one.stop();
}

#[test]
fn garbage_ends_its_own_connection_only() {
    let directory = tempfile::tempdir().expect("directory");
    let (zero, one) = (start(0, 1, directory.path()), start(1, 1, directory.path()));
    tell_peers(directory.path(), &[&zero, &one]);
    zero.expect(Event::Up(1));
    for garbage in [&[0xff; 100][..], b"GET / HTTP/1.1\r\n\r\n", &[0; 64]] {
        let mut stranger = TcpStream::connect(zero.address).expect("connected");
        stranger.set_read_timeout(Some(WAIT)).expect("set");
        let begun = Instant::now();
        stranger.write_all(garbage).expect("sent");
        let mut answer = Vec::new();
        // Closed with or without a reset: in both cases it ends.
        let _ = stranger.read_to_end(&mut answer);
        assert!(begun.elapsed() < Duration::from_secs(10));
    }
    zero.sender.request(DaemonIndex(1), b"x".to_vec(), 9).expect("room");
    zero.expect(Event::Reply(9, Some(b"x!".to_vec())));
    zero.stop();
    one.stop();
}

#[test]
fn a_round_trip_takes_microseconds() {
    let directory = tempfile::tempdir().expect("directory");
    let (zero, one) = (start(0, 1, directory.path()), start(1, 1, directory.path()));
    tell_peers(directory.path(), &[&zero, &one]);
    zero.expect(Event::Up(1));
    let begun = Instant::now();
    for token in 0..1000 {
        zero.sender.request(DaemonIndex(1), b"x".to_vec(), token).expect("room");
        zero.expect(Event::Reply(token, Some(b"x!".to_vec())));
    }
    println!("round trip: {} us", begun.elapsed().as_micros() / 1000);
    zero.stop();
    one.stop();
}

//! Hostile networks: somebody passes connections on, changes, repeats, reorders, leaves out, cuts off
//! or adds bytes between two daemons, or holds connections open. The test is the honest dialler
//! and, between it and the daemon, the attacker.

use crate::fake::{AT_ONCE, Fake, Hand, settings};
use net::Counters;
use net::bulk::Tcp;
use net::bulk::dial::READY;
use net::bulk::header::{Header, Message, Range};
use net::frame::{self, FrameKind};
use net::handshake::{ANSWER_BYTES, Dialling, Parties, PeerIdentity};
use net::security::records::Keys;
use net::security::{Protection, records::Sealer};
use net::socket::Place;
use net::{Channel, Handler, Lost, Net, ReplyHandle, Secret};
use shm::Segment;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};
use wire::{DaemonIndex, Inode};

const WAIT: Duration = Duration::from_secs(20);

/// Passes messages to the test; `None` means that a peer came or went.
struct Listen(mpsc::Sender<(u16, Option<Vec<u8>>)>);

impl Handler for Listen {
    type Token = ();
    fn request(&mut self, _: DaemonIndex, _: ReplyHandle, _: &[u8]) {}
    fn reply(&mut self, (): (), _: Result<&[u8], Lost>) {}
    fn message(&mut self, from: DaemonIndex, bytes: &[u8]) {
        let _ = self.0.send((from.0, Some(bytes.to_vec())));
    }
    fn bulk(&mut self, _: PeerIdentity, _: Channel) {}
    fn up(&mut self, peer: PeerIdentity) {
        let _ = self.0.send((peer.daemon.0, None));
    }
    fn down(&mut self, peer: DaemonIndex) {
        let _ = self.0.send((peer.0, None));
    }
}

struct Daemon {
    events: mpsc::Receiver<(u16, Option<Vec<u8>>)>,
    address: SocketAddr,
    counters: Arc<Counters>,
    sender: net::Sender<()>,
    thread: std::thread::JoinHandle<()>,
}

fn start(me: u16, directory: &Path) -> Daemon {
    let settings = settings(me, directory);
    let counters = Arc::clone(&settings.counters);
    let (net, sender) = Net::bind(settings).expect("bound");
    let address = net.local_address().expect("bound");
    let (tell, events) = mpsc::channel();
    let thread = std::thread::spawn(move || net.run(&mut Listen(tell)).expect("runs"));
    Daemon { events, address, counters, sender, thread }
}

impl Daemon {
    fn next(&self) -> (u16, Option<Vec<u8>>) {
        self.events.recv_timeout(WAIT).expect("an event")
    }

    fn stop(self) {
        self.sender.stop();
        self.thread.join().expect("no panic");
    }
}

fn wait_for(counter: &AtomicU64, least: u64) {
    let begun = Instant::now();
    while counter.load(Ordering::Relaxed) < least {
        assert!(begun.elapsed() < WAIT, "it was not counted");
        std::thread::yield_now();
    }
}

/// Dials as daemon 2, by hand.
fn dial(to: SocketAddr, expected: u16, stream: u8) -> (TcpStream, Keys) {
    let protection = Protection::Sealed;
    let parties = Parties { me: DaemonIndex(2), start: 1, daemon_count: 3, protection };
    let place = (DaemonIndex(expected), Place::Tcp(to));
    let (dialling, hello) =
        Dialling::new(&Secret::new([9; 32]), parties, place, stream).expect("random");
    let mut socket = TcpStream::connect(to).expect("connected");
    socket.set_read_timeout(Some(WAIT)).expect("set");
    let frame = |kind, payload: &[u8]| {
        let mut bytes = Vec::new();
        frame::encode(kind, 0, payload, &mut bytes).expect("short");
        bytes
    };
    socket.write_all(&frame(FrameKind::Hello, &hello)).expect("sent");
    let mut answer = [0; 16 + ANSWER_BYTES];
    socket.read_exact(&mut answer).expect("an answer");
    let (proven, proof) = dialling.hello(&answer[16..]).expect("genuine");
    socket.write_all(&frame(FrameKind::Proof, &proof)).expect("sent");
    (socket, proven.keys.expect("protected"))
}

/// A record with a message.
fn record(sealer: &mut Sealer, message: &[u8]) -> Vec<u8> {
    let (mut frame, mut record) = (Vec::new(), Vec::new());
    frame::encode(FrameKind::Message, 0, message, &mut frame).expect("short");
    sealer.seal(&frame, &mut record).expect("sealed");
    record
}

/// A change that an attacker makes to the three records of an honest daemon. `ATTACKS` has beside it how
/// many of them it leaves at the beginning.
type Attack = fn([Vec<u8>; 3]) -> Vec<Vec<u8>>;

const ATTACKS: [(&str, usize, Attack); 8] = [
    ("a changed byte of data", 1, |[one, mut two, three]| {
        two[20] ^= 1;
        vec![one, two, three]
    }),
    ("a changed tag", 1, |[one, mut two, three]| {
        *two.last_mut().expect("a tag") ^= 0x80;
        vec![one, two, three]
    }),
    ("a shorter length", 1, |[one, mut two, three]| {
        two[1] -= 1;
        vec![one, two, three]
    }),
    ("a repeated record", 2, |[one, two, three]| vec![one, two.clone(), two, three]),
    ("reordered records", 0, |[one, two, three]| vec![two, one, three]),
    ("a missing record", 1, |[one, _, three]| vec![one, three]),
    ("a cut record", 1, |[one, mut two, three]| {
        two.truncate(two.len() - 1);
        vec![one, two, three]
    }),
    ("an added frame", 1, |[one, two, three]| {
        let mut added = Vec::new();
        frame::encode(FrameKind::Message, 0, b"unlink", &mut added).expect("short");
        vec![one, added, two, three]
    }),
];

#[test]
fn no_attack_on_a_connection_changes_what_arrives() {
    let directory = tempfile::tempdir().expect("a directory");
    let zero = start(0, directory.path());
    for (number, (what, genuine, attack)) in (1..).zip(ATTACKS) {
        let (mut socket, mut keys) = dial(zero.address, 0, 0);
        assert_eq!(zero.next(), (2, None), "{what}: connected");
        let records = ["one", "two", "three"].map(|word| record(&mut keys.sealer, word.as_bytes()));
        // The honest daemon goes on, so that a wrong length is filled.
        let later = record(&mut keys.sealer, &vec![7; 70_000]);
        let _ = socket.write_all(&[attack(records).concat(), later].concat());
        // A beginning of what was sent arrives, and then the connection ends.
        let arrived: Vec<Vec<u8>> = std::iter::from_fn(|| zero.next().1).collect();
        assert!(arrived.len() <= genuine, "{what}: {arrived:?}");
        let sent = [&b"one"[..], b"two", b"three"];
        assert!(arrived.iter().zip(sent).all(|(came, sent)| came == sent), "{what}: {arrived:?}");
        assert_eq!(zero.counters.tampered.load(Ordering::Relaxed), number, "{what}");
    }
    // A record of one connection is worthless on another one.
    let (mut first, mut keys) = dial(zero.address, 0, 0);
    assert_eq!(zero.next(), (2, None));
    let recorded = record(&mut keys.sealer, b"one");
    first.write_all(&recorded).expect("sent");
    assert_eq!(zero.next(), (2, Some(b"one".to_vec())));
    drop(first);
    assert_eq!(zero.next(), (2, None));
    let (mut second, _) = dial(zero.address, 0, 0);
    assert_eq!(zero.next(), (2, None));
    second.write_all(&recorded).expect("sent");
    assert_eq!(zero.next(), (2, None), "closed, and nothing arrived");
    zero.stop();
}

/// Bytes that are left out, or a length that is changed, make a receiver wait for more: not for ever.
#[test]
fn a_record_that_does_not_arrive_whole_ends_its_connection() {
    let directory = tempfile::tempdir().expect("a directory");
    let zero = start(0, directory.path());
    let (mut socket, mut keys) = dial(zero.address, 0, 0);
    assert_eq!(zero.next(), (2, None), "connected");
    let whole = record(&mut keys.sealer, b"one");
    let mut cut = record(&mut keys.sealer, b"two");
    cut.pop();
    socket.write_all(&[whole, cut].concat()).expect("sent");
    assert_eq!(zero.next(), (2, Some(b"one".to_vec())));
    assert_eq!(zero.next(), (2, None), "closed");
    assert_eq!(zero.counters.incomplete.load(Ordering::Relaxed), 1);
    assert_eq!(zero.counters.tampered.load(Ordering::Relaxed), 0);
    zero.stop();
}

/// The attack of a user that binds the port of a dead daemon and passes connections on to its new one.
#[test]
fn a_relayed_connection_is_refused_by_both_sides() {
    let directory = tempfile::tempdir().expect("a directory");
    let zero = start(0, directory.path());
    let relay = TcpListener::bind("127.0.0.1:0").expect("bound");
    let lines = format!("0 {}\n", relay.local_addr().expect("bound"));
    std::fs::write(directory.path().join("peers"), lines).expect("written");
    let one = start(1, directory.path());
    for _ in 0..3 {
        let (dialler, _) = relay.accept().expect("dialled");
        let acceptor = TcpStream::connect(zero.address).expect("connected");
        std::thread::scope(|scope| {
            for (from, to) in [(&dialler, &acceptor), (&acceptor, &dialler)] {
                scope.spawn(move || {
                    let _ = std::io::copy(&mut { from }, &mut { to });
                    let _ = to.shutdown(std::net::Shutdown::Both);
                });
            }
        });
    }
    wait_for(&zero.counters.refused, 3);
    assert!(zero.events.try_recv().is_err() && one.events.try_recv().is_err());
    // The way around the relay works.
    std::fs::write(directory.path().join("peers"), format!("0 {}\n", zero.address))
        .expect("written");
    drop(relay);
    assert_eq!((zero.next(), one.next()), ((1, None), (0, None)));
    zero.stop();
    one.stop();
}

/// A store whose bytes were changed on their way: none of the changed record reaches memory.
#[test]
fn changed_bytes_of_a_file_never_reach_memory() {
    let directory = tempfile::tempdir().expect("a directory");
    let settings = settings(1, directory.path());
    let counters = Arc::clone(&settings.counters);
    let (door, lanes) = Tcp::<Fake>::new(1, &settings).expect("pollers");
    let door = Arc::new(door);
    let (ends, _ended, _visits) = Fake::new(Arc::new(Segment::private(1 << 20).expect("memory")));
    let file = Arc::clone(&ends.file);
    let mut threads = Vec::new();
    for lane in lanes {
        let ends = Arc::clone(&ends);
        threads.push(std::thread::spawn(move || lane.run(&ends).expect("runs")));
    }
    let (net, sender) = Net::bind(settings).expect("bound");
    let address = net.local_address().expect("bound");
    let accepts = Arc::clone(&door);
    let mut hand = Hand(Arc::new(move |from, stream| accepts.accepted(from, stream)));
    threads.push(std::thread::spawn(move || net.run(&mut hand).expect("runs")));

    let (mut socket, mut keys) = dial(address, 1, 1);
    let mut ready = [0; 2 + READY.len() + 16];
    socket.read_exact(&mut ready).expect("a lane");
    let (range, _) = keys.opener.open(&mut ready).expect("genuine").expect("complete");
    assert_eq!(ready[range], READY);
    let range = Range {
        inode: Inode(AT_ONCE),
        stripe_log2: 22,
        offset: 0,
        length: 100_000,
        job: wire::JobWord::NONE,
    };
    let (mut whole, mut half) = (Vec::new(), Vec::new());
    keys.sealer
        .seal(&Header { id: 1, message: Message::Store(range) }.encode(), &mut whole)
        .expect("sealed");
    keys.sealer.seal(&vec![7; 50_000], &mut whole).expect("sealed");
    keys.sealer.seal(&vec![8; 50_000], &mut half).expect("sealed");
    half[40_000] ^= 1;
    socket.write_all(&whole).expect("sent");
    let _ = socket.write_all(&half);
    assert!(matches!(socket.read(&mut [0; 1]), Ok(0) | Err(_)), "closed without an answer");
    wait_for(&counters.tampered, 1);
    let mut bytes = vec![0; 100_000];
    file.copy_out(0, &mut bytes).expect("in range");
    let (stored, kept) = bytes.split_at(50_000);
    assert!(stored.iter().all(|byte| *byte == 7) && kept.iter().all(|byte| *byte == 0));
    door.stop();
    sender.stop();
    threads.into_iter().for_each(|thread| thread.join().expect("ends"));
}

/// Strangers that hold 200 connections, and open new ones as these are closed, do not keep a daemon
/// from its peer.
#[test]
fn silent_connections_do_not_lock_out_a_daemon() {
    const COUNT: usize = 200;
    let directory = tempfile::tempdir().expect("a directory");
    let zero = start(0, directory.path());
    std::fs::write(directory.path().join("peers"), format!("0 {}\n", zero.address))
        .expect("written");
    let (enough, ended) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let strangers = || {
            let open = || TcpStream::connect(zero.address).expect("accepted");
            let mut held: Vec<TcpStream> = (0..COUNT).map(|_| open()).collect();
            enough.store(true, Ordering::SeqCst);
            while !ended.load(Ordering::SeqCst) {
                for one in &mut held {
                    one.set_nonblocking(true).expect("set");
                    if matches!(one.read(&mut [0; 1]), Ok(0)) {
                        *one = open();
                    }
                }
                std::thread::yield_now();
            }
        };
        scope.spawn(strangers);
        let begun = Instant::now();
        while !enough.load(Ordering::SeqCst) {
            assert!(begun.elapsed() < WAIT);
            std::thread::yield_now();
        }
        wait_for(&zero.counters.refused, 1);
        for _ in 0..3 {
            let one = start(1, directory.path());
            assert_eq!((zero.next(), one.next()), ((1, None), (0, None)), "connected");
            one.stop();
            assert_eq!(zero.next(), (1, None), "gone");
        }
        ended.store(true, Ordering::SeqCst);
    });
    zero.stop();
}

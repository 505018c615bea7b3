//! Bulk transfers over loopback between two daemons with fake memory: both directions, each kind of
//! refusal, late decisions, a lost peer, unauthenticated peers and garbage on a stream.

use crate::fake::{
    AT_ONCE, BUSY, FULL, Fake, HOLE, Hand, LATER, MOVED, PLACE, Part, SILENT, settings,
};
use net::HostDaemons;
use net::bulk::header::{HEADER_BYTES, Header, Message};
use net::bulk::{Fabric, Kind, Outcome, Range, Tcp, Transfer};
use net::frame::{self, FrameKind};
use net::handshake::{Accepting, HELLO_BYTES, PROOF_BYTES, Parties};
use net::security::Protection;
use net::socket::Socket;
use net::{Channel, Net, Secret, Settings};
use shm::Segment;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};
use wire::limits::BOUNCE_BUFFER_BYTES;
use wire::{DaemonIndex, Errno, Inode, JobWord};

const WAIT: Duration = Duration::from_secs(20);
const FILE_BYTES: usize = 4 << 20;

struct Daemon {
    ends: Arc<Fake>,
    door: Arc<Tcp<Fake>>,
    ended: mpsc::Receiver<(u32, Outcome)>,
    visits: mpsc::Receiver<bool>,
    address: SocketAddr,
    stop: Box<dyn FnOnce()>,
}

fn start(me: u16, directory: &Path) -> Daemon {
    start_with(settings(me, directory))
}

fn start_with(settings: Settings) -> Daemon {
    let (door, lanes) = Tcp::new(2, &settings).expect("pollers");
    let door = Arc::new(door);
    let file = Segment::private(FILE_BYTES).expect("memory");
    let (ends, ended, visits) = Fake::new(Arc::new(file));
    let late = Arc::<Tcp<Fake>>::clone(&door);
    assert!(ends.door.set(late).is_ok());
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
    let lanes = Arc::clone(&door);
    let stop = move || {
        lanes.stop();
        sender.stop();
        threads.into_iter().for_each(|thread| thread.join().expect("ends"));
    };
    Daemon { ends, door, ended, visits, address, stop: Box::new(stop) }
}

impl Daemon {
    /// Starts a transfer between the same offset of both daemons' bytes.
    fn begin(&self, token: u32, peer: u16, kind: Kind, inode: u64, offset: usize, length: usize) {
        let range = Range {
            inode: Inode(inode),
            stripe_log2: 22,
            offset: offset as u64,
            length: length as u32,
            job: JobWord::NONE,
        };
        let memory = Part { file: Arc::clone(&self.ends.file), at: offset };
        let peer = DaemonIndex(peer);
        self.door.start(Transfer { peer, kind, range, memory, until: None, token });
    }

    fn next_end(&self) -> (u32, Outcome) {
        self.ended.recv_timeout(WAIT).expect("an end")
    }

    fn fill(&self, seed: u64) {
        let bytes: Vec<u8> = (0..FILE_BYTES as u64 / 8)
            .flat_map(|at| wire::hash::mix(seed, at).to_le_bytes())
            .collect();
        self.ends.file.copy_in(0, &bytes).expect("fits");
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; FILE_BYTES];
        self.ends.file.copy_out(0, &mut bytes).expect("fits");
        bytes
    }
}

fn two(directory: &Path) -> (Daemon, Daemon) {
    let (one, other) = (start(0, directory), start(1, directory));
    let text = format!("0 {}\n1 {}\n", one.address, other.address);
    std::fs::write(directory.join("peers"), text).expect("written");
    (one, other)
}

/// Two daemons whose settings a test has changed.
fn two_with(directory: &Path, change: &dyn Fn(&mut Settings)) -> (Daemon, Daemon) {
    let [one, other] = [0, 1].map(|me| {
        let mut settings = settings(me, directory);
        change(&mut settings);
        start_with(settings)
    });
    let text = format!("0 {}\n1 {}\n", one.address, other.address);
    std::fs::write(directory.join("peers"), text).expect("written");
    (one, other)
}

#[test]
fn all_sizes_arrive_complete_by_sealed_streams() {
    let directory = tempfile::tempdir().expect("a directory");
    all_sizes_arrive_complete(two(directory.path()));
}

#[test]
fn all_sizes_arrive_complete_by_plain_streams() {
    let directory = tempfile::tempdir().expect("a directory");
    let plain = |settings: &mut Settings| settings.protection = Protection::Plain;
    all_sizes_arrive_complete(two_with(directory.path(), &plain));
}

#[test]
fn all_sizes_arrive_complete_within_a_host() {
    let directory = tempfile::tempdir().expect("a directory");
    let on_host = |settings: &mut Settings| {
        let directory = directory.path().to_owned();
        settings.host = Some(HostDaemons { first: 0, count: 2, directory });
        // Nobody is there: all goes through Unix sockets.
        settings.peers = "/nonexistent".into();
    };
    all_sizes_arrive_complete(two_with(directory.path(), &on_host));
}

fn all_sizes_arrive_complete((one, other): (Daemon, Daemon)) {
    one.fill(1);
    other.fill(2);
    let (of_one, of_other) = (one.bytes(), other.bytes());
    let mut expected = (of_one.clone(), of_other.clone());
    let mut at = 0;
    let mut count = 0;
    // Various sizes, alternately stored and fetched, in files that answer at once and later.
    while at + BOUNCE_BUFFER_BYTES <= FILE_BYTES {
        let length = match count % 4 {
            0 => 1,
            1 => BOUNCE_BUFFER_BYTES,
            2 => 4096 + count,
            _ => wire::hash::mix(count as u64, 5) as usize % BOUNCE_BUFFER_BYTES + 1,
        };
        let inode = if count % 3 == 0 { LATER } else { AT_ONCE };
        let range = at..at + length;
        if count % 2 == 0 {
            one.begin(count as u32, 1, Kind::Store, inode, at, length);
            expected.1[range.clone()].copy_from_slice(&of_one[range]);
        } else {
            one.begin(count as u32, 1, Kind::Fetch, inode, at, length);
            expected.0[range.clone()].copy_from_slice(&of_other[range]);
        }
        at += length + 7;
        count += 1;
    }
    let mut ended: Vec<u32> = (0..count)
        .map(|_| match one.next_end() {
            (token, Outcome::Moved(_)) => token,
            odd => panic!("{odd:?}"),
        })
        .collect();
    ended.sort_unstable();
    assert_eq!(ended, (0..count as u32).collect::<Vec<_>>(), "each ends once");
    assert!(one.bytes() == expected.0 && other.bytes() == expected.1);
    // Both directions at the same time.
    other.begin(1, 0, Kind::Fetch, AT_ONCE, 0, 100_000);
    one.begin(1, 1, Kind::Store, AT_ONCE, 200_000, 100_000);
    assert_eq!(other.next_end(), (1, Outcome::Moved(100_000)));
    assert_eq!(one.next_end(), (1, Outcome::Moved(100_000)));
    assert!(other.bytes()[..100_000] == expected.0[..100_000]);
    (one.stop)();
    (other.stop)();
}

#[test]
fn each_refusal_is_returned_and_the_stream_continues() {
    let directory = tempfile::tempdir().expect("a directory");
    let (one, other) = two(directory.path());
    one.fill(1);
    let before = other.bytes();
    let cases = [
        (Kind::Store, FULL, Outcome::Refused(Errno::ENOSPC)),
        (Kind::Fetch, FULL, Outcome::Refused(Errno::ENOSPC)),
        (Kind::Store, BUSY, Outcome::Busy(77)),
        (Kind::Fetch, BUSY, Outcome::Busy(77)),
        (Kind::Fetch, HOLE, Outcome::Moved(0)),
        (Kind::Store, HOLE, Outcome::Refused(Errno::EIO)),
        (Kind::Fetch, MOVED, Outcome::Elsewhere(PLACE)),
        (Kind::Store, MOVED, Outcome::Refused(Errno::EIO)),
    ];
    for (token, (kind, inode, outcome)) in cases.into_iter().enumerate() {
        one.begin(token as u32, 1, kind, inode, 0, 200_000);
        assert_eq!(one.next_end(), (token as u32, outcome));
    }
    assert!(other.bytes() == before, "what was refused changed nothing");
    one.begin(9, 1, Kind::Store, AT_ONCE, 0, 200_000);
    assert_eq!(one.next_end(), (9, Outcome::Moved(200_000)));
    assert!(other.bytes()[..200_000] == one.bytes()[..200_000]);
    (one.stop)();
    (other.stop)();
}

#[test]
fn a_lost_peer_ends_transfers_in_flight_and_is_dialled_again() {
    let directory = tempfile::tempdir().expect("a directory");
    let (one, other) = two(directory.path());
    one.begin(1, 1, Kind::Store, SILENT, 0, 1000);
    other.visits.recv_timeout(WAIT).expect("it arrived");
    (other.stop)();
    assert_eq!(one.next_end(), (1, Outcome::Lost));
    one.begin(2, 1, Kind::Store, AT_ONCE, 0, 1000);
    assert_eq!(one.next_end(), (2, Outcome::Lost), "nobody is there");
    one.begin(3, 2, Kind::Store, AT_ONCE, 0, 1000);
    assert_eq!(one.next_end(), (3, Outcome::Lost), "nobody knows the address");
    let again = start(1, directory.path());
    let text = format!("0 {}\n1 {}\n", one.address, again.address);
    std::fs::write(directory.path().join("peers"), text).expect("written");
    one.begin(4, 1, Kind::Store, AT_ONCE, 0, 1000);
    assert_eq!(one.next_end(), (4, Outcome::Moved(1000)));
    (one.stop)();
    (again.stop)();
}

#[test]
fn retried_transfers_are_resent_in_order_before_later_ones() {
    let directory = tempfile::tempdir().expect("a directory");
    let (one, other) = two(directory.path());
    one.fill(1);
    let retain_retryable = |token: u32, inode, from: usize, time| {
        // All to the same offset, each from a different one.
        let (offset, length) = (0, 100_000);
        let range =
            Range { inode: Inode(inode), stripe_log2: 22, offset, length, job: JobWord::NONE };
        let memory = Part { file: Arc::clone(&one.ends.file), at: from };
        let (peer, kind, until) = (DaemonIndex(1), Kind::Store, Some(Instant::now() + time));
        one.door.start(Transfer { peer, kind, range, memory, until, token });
    };
    retain_retryable(0, SILENT, 0, WAIT);
    other.visits.recv_timeout(WAIT).expect("it arrived");
    (1..9).for_each(|token| retain_retryable(token, SILENT, token as usize * 200_000, WAIT));
    (other.stop)();
    // The next daemon answers the first transfer, too.
    let again = start(1, directory.path());
    again.ends.silent_answer.store(true, Ordering::SeqCst);
    let text = format!("0 {}\n1 {}\n", one.address, again.address);
    std::fs::write(directory.path().join("peers"), text).expect("written");
    for token in 0..9 {
        assert_eq!(one.next_end(), (token, Outcome::Moved(100_000)), "in their order");
    }
    assert!(again.bytes()[..100_000] == one.bytes()[1_600_000..1_700_000], "the last one stays");
    (again.stop)();
    retain_retryable(10, AT_ONCE, 0, Duration::ZERO);
    assert_eq!(one.next_end(), (10, Outcome::Lost), "its time is over");
    (one.stop)();
}

/// Dials a bulk stream by hand, as a daemon that knows the secret and nothing else.
fn dial_by_hand(me: u16, number: u8, directory: &Path) -> Channel {
    let stream = net::bulk::dial::dial(&settings(me, directory), DaemonIndex(1), number);
    let stream = stream.expect("accepted");
    stream.socket().set_nonblocking(false).expect("set");
    stream
}

/// Sends and flushes.
fn say(stream: &mut Channel, bytes: &[u8]) {
    stream.write_all(bytes).and_then(|()| stream.flush()).expect("sent");
}

#[test]
fn garbage_on_a_stream_ends_only_that_stream() {
    let directory = tempfile::tempdir().expect("a directory");
    let (one, other) = two(directory.path());
    one.begin(1, 1, Kind::Store, AT_ONCE, 0, 1000);
    assert_eq!(one.next_end(), (1, Outcome::Moved(1000)));
    let range = Range {
        inode: Inode(AT_ONCE),
        stripe_log2: 22,
        offset: 0,
        length: BOUNCE_BUFFER_BYTES as u32,
        job: JobWord::NONE,
    };
    let store = Header { id: 1, message: Message::Store(range) }.encode();
    let mut too_long = store;
    too_long[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
    let answer = Header { id: 1, message: Message::Done(Ok(())) }.encode();
    for garbage in [[0xff; HEADER_BYTES], too_long, answer] {
        let mut stream = dial_by_hand(2, 1, directory.path());
        say(&mut stream, &garbage);
        assert_eq!(stream.read(&mut [0; 1]).expect("an end"), 0);
    }
    // A store that breaks off in the middle.
    let mut stream = dial_by_hand(2, 1, directory.path());
    say(&mut stream, &store);
    say(&mut stream, &[7; 999]);
    drop(stream);
    // A second stream of the same number ends the first.
    let mut first = dial_by_hand(2, 2, directory.path());
    let second = dial_by_hand(2, 2, directory.path());
    assert_eq!(first.read(&mut [0; 1]).expect("an end"), 0);
    drop(second);
    one.begin(2, 1, Kind::Fetch, AT_ONCE, 300_000, 100_000);
    assert_eq!(one.next_end(), (2, Outcome::Moved(100_000)));
    (one.stop)();
    (other.stop)();
}

/// A peer that sends invalid replies: transfers started there are lost, and no byte is accepted.
#[test]
fn invalid_replies_of_a_peer_are_not_accepted() {
    let directory = tempfile::tempdir().expect("a directory");
    let one = start(0, directory.path());
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("bound");
    let text = format!("1 {}\n", listener.local_addr().expect("bound"));
    std::fs::write(directory.path().join("peers"), text).expect("written");
    let before = one.bytes();
    let data = |id, length| Header { id, message: Message::Data(length) }.encode();
    let done = |id| Header { id, message: Message::Done(Ok(())) }.encode();
    for (kind, answer) in [
        (Kind::Fetch, data(1, 999)),
        (Kind::Fetch, data(2, 1000)),
        (Kind::Fetch, done(1)),
        (Kind::Store, data(1, 1000)),
        (Kind::Store, [0xff; HEADER_BYTES]),
    ] {
        one.begin(5, 1, kind, AT_ONCE, 0, 1000);
        let mut stream = accept_by_hand(listener.accept().expect("dialled").0);
        say(&mut stream, b"R");
        stream.read_exact(&mut [0; HEADER_BYTES]).expect("a transfer");
        say(&mut stream, &answer);
        let _ = stream.write_all(&[1; 1000]).and_then(|()| stream.flush());
        assert_eq!(one.next_end(), (5, Outcome::Lost));
    }
    assert!(one.bytes() == before);
    (one.stop)();
}

/// Accepts a bulk stream by hand, as daemon 1.
fn accept_by_hand(stream: TcpStream) -> Channel {
    let parties =
        Parties { me: DaemonIndex(1), start: 1, daemon_count: 3, protection: Protection::Sealed };
    let socket = Socket::Tcp(stream);
    let place = socket.place().expect("connected");
    let mut accepting = Accepting::new(&Secret::new([9; 32]), parties, place).expect("random");
    let mut hello = [0; 16 + HELLO_BYTES];
    (&socket).read_exact(&mut hello).expect("a hello");
    let answer = accepting.hello(&hello[16..]).expect("believed");
    let mut bytes = Vec::new();
    frame::encode(FrameKind::Hello, 0, &answer, &mut bytes).expect("short");
    (&socket).write_all(&bytes).expect("sent");
    let mut proof = [0; 16 + PROOF_BYTES];
    (&socket).read_exact(&mut proof).expect("a proof");
    let proven = accepting.proof(&proof[16..]).expect("proven");
    Channel::new(socket, proven.keys)
}

//! Bulk transfers between two daemons of fake memory whose bytes go by libfabric: both ways, in
//! order, each kind of answer, late answers, a lost peer and its successor; and by TCP where one of
//! the two has no libfabric, has another provider, or does not reach the other's memory.

#[path = "../../../net/tests/it/fake.rs"]
mod fake;

use crate::support::{TIMEOUT, bytes, library, memory, pattern, providers};
use fabric::Library;
use fabric::bulk::{BulkTransport, Choice};
use fake::{AT_ONCE, BUSY, FULL, Fake, HOLE, Hand, LATER, MOVED, PLACE, Part, SILENT, settings};
use net::bulk::header::{HEADER_BYTES, Header, Message};
use net::bulk::{Fabric, Kind, Outcome, Range, Transfer};
use net::handshake::PeerIdentity;
use net::{Channel, Net};
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::time::Instant;
use wire::hash::mix;
use wire::limits::BOUNCE_BUFFER_BYTES;
use wire::{DaemonIndex, Errno, Inode};

const LENGTH: usize = 4 << 20;

struct Daemon {
    ends: Arc<Fake>,
    door: Arc<BulkTransport<Fake>>,
    ended: mpsc::Receiver<(u32, Outcome)>,
    visits: mpsc::Receiver<bool>,
    address: SocketAddr,
    sender: net::Sender<()>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

fn start(me: u16, directory: &Path, choice: &str) -> Daemon {
    let settings = settings(me, directory);
    let choice: Choice = choice.parse().expect("a choice");
    let (door, lanes) = BulkTransport::new(2, &settings, &choice).expect("pollers");
    let door = Arc::new(door);
    let (ends, ended, visits) = Fake::new(memory(LENGTH, u64::from(me)));
    let late = Arc::<BulkTransport<Fake>>::clone(&door);
    assert!(ends.door.set(late).is_ok());
    let mut threads = Vec::new();
    for lane in lanes.tcp {
        let ends = Arc::clone(&ends);
        threads.push(std::thread::spawn(move || lane.run(&ends).expect("runs")));
    }
    if let Some(mover) = lanes.mover {
        let ends = Arc::clone(&ends);
        threads.push(std::thread::spawn(move || mover.run(&ends).expect("runs")));
    }
    let (net, sender) = Net::bind(settings).expect("bound");
    let address = net.local_address().expect("bound");
    let accepts = Arc::clone(&door);
    let mut hand = Hand(Arc::new(move |from, stream| accepts.accepted(from, stream)));
    threads.push(std::thread::spawn(move || net.run(&mut hand).expect("runs")));
    Daemon { ends, door, ended, visits, address, sender, threads }
}

impl Daemon {
    /// Starts a transfer between ranges of our own and of the other's bytes.
    fn begin(&self, token: u32, kind: Kind, inode: u64, own: usize, other: usize, length: usize) {
        let length = length as u32;
        let range = Range {
            inode: Inode(inode),
            stripe_log2: 22,
            offset: other as u64,
            length,
            job: wire::JobWord::NONE,
        };
        let memory = Part { file: Arc::clone(&self.ends.file), at: own };
        let peer = DaemonIndex(1);
        self.door.start(Transfer { peer, kind, range, memory, until: None, token });
    }

    /// A store that is sent again until it arrives.
    fn begin_waited(&self, token: u32, own: usize, other: usize, length: usize) {
        let length = length as u32;
        let range = Range {
            inode: Inode(AT_ONCE),
            stripe_log2: 22,
            offset: other as u64,
            length,
            job: wire::JobWord::NONE,
        };
        let memory = Part { file: Arc::clone(&self.ends.file), at: own };
        let (peer, kind) = (DaemonIndex(1), Kind::Store);
        let until = Some(Instant::now() + TIMEOUT);
        self.door.start(Transfer { peer, kind, range, memory, until, token });
    }

    fn next_end(&self) -> (u32, Outcome) {
        self.ended.recv_timeout(TIMEOUT).expect("an end")
    }

    /// Makes one transfer; true if the other was visited by libfabric.
    fn moves(&self, other: &Daemon) -> bool {
        self.begin(5, Kind::Fetch, AT_ONCE, 0, 0, 1000);
        assert_eq!(self.next_end(), (5, Outcome::Moved(1000)));
        other.visits.recv_timeout(TIMEOUT).expect("a visit")
    }

    fn stop(self) {
        self.door.stop();
        self.sender.stop();
        self.threads.into_iter().for_each(|thread| thread.join().expect("ends"));
    }
}

fn tell(directory: &Path, one: SocketAddr, other: SocketAddr) {
    let text = format!("0 {one}\n1 {other}\n");
    std::fs::write(directory.join("new"), text).expect("written");
    std::fs::rename(directory.join("new"), directory.join("peers")).expect("renamed");
}

fn two(directory: &Path, choice: &str, of_other: &str) -> (Daemon, Daemon) {
    let (one, other) = (start(0, directory, choice), start(1, directory, of_other));
    tell(directory, one.address, other.address);
    (one, other)
}

fn choices(library: Library) -> impl Iterator<Item = String> {
    providers(library).into_iter().map(|name| format!("libfabric:{name}"))
}

#[test]
fn bytes_arrive_whole_and_in_order() {
    let Some(library) = library() else { return };
    for choice in choices(library) {
        let directory = tempfile::tempdir().expect("a directory");
        let (one, other) = two(directory.path(), &choice, &choice);
        let (mut own, mut theirs) = (pattern(LENGTH, 0), pattern(LENGTH, 1));
        for round in 0..8_u64 {
            // Stores may overlap: the one with the later number wins. A fetch goes to a range of
            // its own.
            for token in 0..40 {
                let number = |what| mix(round * 100 + token, what) as usize;
                let sizes = [1, 5000, BOUNCE_BUFFER_BYTES, number(1) % BOUNCE_BUFFER_BYTES + 1];
                let length = sizes[number(2) % 4];
                let at = (1 << 20) + number(3) % (BOUNCE_BUFFER_BYTES * 3);
                // Order is kept within a file: one for all of a round.
                let inode = if round % 2 == 0 { LATER } else { AT_ONCE };
                let source = number(5) % (LENGTH - length);
                one.begin(token as u32, Kind::Store, inode, source, at, length);
                theirs[at..at + length].copy_from_slice(&own[source..source + length]);
            }
            ends(&one, 40);
            for token in 0..8 {
                let (to, length) = (token * BOUNCE_BUFFER_BYTES, BOUNCE_BUFFER_BYTES - token);
                let at = mix(round, token as u64) as usize % (LENGTH - length);
                one.begin(token as u32, Kind::Fetch, AT_ONCE, to, at, length);
                own[to..to + length].copy_from_slice(&theirs[at..at + length]);
            }
            ends(&one, 8);
            assert!(bytes(&one.ends.file) == own, "{choice}: own memory, round {round}");
            assert!(bytes(&other.ends.file) == theirs, "{choice}: the other's, round {round}");
        }
        assert!(other.visits.try_iter().all(|by_libfabric| by_libfabric), "{choice}");
        one.stop();
        other.stop();
    }
}

/// `count` transfers end, each once, and all moved.
fn ends(one: &Daemon, count: u32) {
    let end = |_| match one.next_end() {
        (token, Outcome::Moved(_)) => token,
        odd => panic!("{odd:?}"),
    };
    let mut ended: Vec<u32> = (0..count).map(end).collect();
    ended.sort_unstable();
    assert_eq!(ended, (0..count).collect::<Vec<_>>(), "each ends once");
}

#[test]
fn each_answer_comes_back() {
    let Some(library) = library() else { return };
    for choice in choices(library) {
        let directory = tempfile::tempdir().expect("a directory");
        let (one, other) = two(directory.path(), &choice, &choice);
        let cases = [
            (FULL, Kind::Store, Outcome::Refused(Errno::ENOSPC)),
            (FULL, Kind::Fetch, Outcome::Refused(Errno::ENOSPC)),
            (BUSY, Kind::Store, Outcome::Busy(77)),
            (BUSY, Kind::Fetch, Outcome::Busy(77)),
            (HOLE, Kind::Fetch, Outcome::Moved(0)),
            (HOLE, Kind::Store, Outcome::Refused(Errno::EIO)),
            (MOVED, Kind::Fetch, Outcome::Elsewhere(PLACE)),
            (MOVED, Kind::Store, Outcome::Refused(Errno::EIO)),
        ];
        for (token, (inode, kind, outcome)) in cases.into_iter().enumerate() {
            one.begin(token as u32, kind, inode, 0, 0, 100);
            assert_eq!(one.next_end(), (token as u32, outcome), "{choice}");
        }
        assert!(bytes(&one.ends.file) == pattern(LENGTH, 0), "{choice}");
        assert!(bytes(&other.ends.file) == pattern(LENGTH, 1), "{choice}");
        one.stop();
        other.stop();
    }
}

#[test]
fn transfers_to_a_lost_peer_fail_and_its_successor_is_reached() {
    let Some(library) = library() else { return };
    for choice in choices(library) {
        let directory = tempfile::tempdir().expect("a directory");
        let (one, other) = two(directory.path(), &choice, &choice);
        assert!(one.moves(&other), "{choice}");
        // More than the window has slots.
        for token in 0..40 {
            one.begin(token, Kind::Fetch, SILENT, 0, 0, 100);
        }
        other.visits.recv_timeout(TIMEOUT).expect("a visit");
        let address = one.address;
        other.stop();
        let mut lost: Vec<u32> = (0..40)
            .map(|_| match one.next_end() {
                (token, Outcome::Lost) => token,
                odd => panic!("{choice}: {odd:?}"),
            })
            .collect();
        lost.sort_unstable();
        assert_eq!(lost, (0..40).collect::<Vec<_>>(), "{choice}");
        // Nobody listens.
        one.begin(1, Kind::Store, AT_ONCE, 0, 0, 100);
        assert_eq!(one.next_end(), (1, Outcome::Lost), "{choice}");
        let again = start(1, directory.path(), &choice);
        tell(directory.path(), address, again.address);
        assert!(one.moves(&again), "{choice}: by libfabric again");
        one.stop();
        again.stop();
    }
}

#[test]
fn a_new_stream_of_a_peer_ends_the_visits_of_the_one_before() {
    let Some(library) = library() else { return };
    for choice in choices(library) {
        let directory = tempfile::tempdir().expect("a directory");
        let (one, other) = two(directory.path(), &choice, &choice);
        one.begin(1, Kind::Store, SILENT, 0, 0, 100);
        other.visits.recv_timeout(TIMEOUT).expect("a visit");
        one.stop();
        let again = start(0, directory.path(), &choice);
        // The same MiB of the same file: behind a visit that nobody answers it would wait for ever.
        again.begin(2, Kind::Store, AT_ONCE, 0, 0, 100);
        assert_eq!(again.next_end(), (2, Outcome::Moved(100)), "{choice}");
        again.stop();
        other.stop();
    }
}

#[test]
fn without_libfabric_at_one_of_the_two_bytes_go_by_tcp() {
    let Some(library) = library() else { return };
    for choice in choices(library) {
        let another = if choice.ends_with(":shm") { "libfabric:tcp" } else { "libfabric:shm" };
        for (of_one, of_other) in [
            (choice.as_str(), "tcp"),
            ("tcp", &choice),
            (&choice, "libfabric:none"),
            (&choice, another),
        ] {
            let directory = tempfile::tempdir().expect("a directory");
            let (one, other) = two(directory.path(), of_one, of_other);
            for _ in 0..3 {
                assert!(!one.moves(&other), "{of_one} and {of_other}");
            }
            assert!(bytes(&one.ends.file)[..1000] == pattern(LENGTH, 1)[..1000]);
            one.stop();
            other.stop();
        }
    }
}

/// The test plays the other daemon: it welcomes, and answers each transfer that it does not reach
/// the memory. TCP does.
#[test]
fn memory_that_a_peer_cannot_reach_goes_by_tcp() {
    let Some(library) = library() else { return };
    for choice in choices(library) {
        let directory = tempfile::tempdir().expect("a directory");
        let one = start(0, directory.path(), &choice);
        let other = start(1, directory.path(), "tcp");
        let (net, sender) = Net::bind(settings(1, directory.path())).expect("bound");
        tell(directory.path(), one.address, net.local_address().expect("bound"));
        let lanes = Arc::clone(&other.door);
        let mut hand = Hand(Arc::new(move |from: PeerIdentity, stream: Channel| {
            if from.stream == u8::MAX {
                std::thread::spawn(move || fails_all(stream));
            } else {
                lanes.accepted(from, stream);
            }
        }));
        let thread = std::thread::spawn(move || net.run(&mut hand).expect("runs"));
        // More than a window has slots, overlapping: the later one wins by TCP, too.
        let (own, mut theirs) = (pattern(LENGTH, 0), pattern(LENGTH, 1));
        for token in 0..60 {
            let (source, at) = (5000 * token, mix(3, token as u64) as usize % 90_000);
            one.begin(token as u32, Kind::Store, AT_ONCE, source, at, 10_000);
            theirs[at..at + 10_000].copy_from_slice(&own[source..source + 10_000]);
        }
        ends(&one, 60);
        assert!(!one.moves(&other), "{choice}");
        assert!(other.visits.try_iter().all(|by_libfabric| !by_libfabric), "{choice}");
        assert!(bytes(&other.ends.file) == theirs, "{choice}");
        sender.stop();
        thread.join().expect("ends");
        one.stop();
        other.stop();
    }
}

fn fails_all(mut stream: Channel) {
    stream.socket().set_nonblocking(false).expect("blocking");
    say(&mut stream, &net::bulk::dial::READY);
    let mut greeting = [0; 352];
    stream.read_exact(&mut greeting).expect("a greeting");
    say(&mut stream, b"W");
    let mut record = [0; HEADER_BYTES + 8];
    while stream.read_exact(&mut record).is_ok() {
        let header = record.first_chunk::<HEADER_BYTES>().expect("long enough");
        let id = Header::decode(header).expect("a header").id;
        let answer = Header { id, message: Message::Done(Err(Errno::EIO)) }.encode();
        say(&mut stream, &[&answer[..], &[0xff; 8]].concat());
    }
}

/// Sends and flushes.
fn say(stream: &mut Channel, bytes: &[u8]) {
    stream.write_all(bytes).and_then(|()| stream.flush()).expect("sent");
}

/// Transfers that are to be sent again go, in their order, to the next daemon.
#[test]
fn a_waiting_transfer_arrives_at_the_next_daemon() {
    let Some(library) = library() else { return };
    for choice in choices(library) {
        let directory = tempfile::tempdir().expect("a directory");
        let (one, other) = two(directory.path(), &choice, &choice);
        let mut before = Some(other);
        let other = before.as_ref().expect("it runs");
        assert!(one.moves(other), "{choice}");
        // One that nobody answers and that is not sent again.
        let own = bytes(&one.ends.file);
        let mut theirs = pattern(LENGTH, 1);
        one.begin(99, Kind::Fetch, SILENT, 0, 0, 100);
        other.visits.recv_timeout(TIMEOUT).expect("a visit");
        let address = one.address;
        for token in 0..60 {
            let (source, at) = (5000 * token, mix(4, token as u64) as usize % 90_000);
            one.begin_waited(token as u32, source, at, 10_000);
            theirs[at..at + 10_000].copy_from_slice(&own[source..source + 10_000]);
            if token == 30 {
                before.take().expect("it runs").stop();
            }
        }
        let again = start(1, directory.path(), &choice);
        tell(directory.path(), address, again.address);
        let mut ended: Vec<u32> = Vec::new();
        while ended.len() < 60 {
            match one.next_end() {
                (99, Outcome::Lost) => {}
                (token, Outcome::Moved(10_000)) => ended.push(token),
                odd => panic!("{choice}: {odd:?}"),
            }
        }
        ended.sort_unstable();
        assert_eq!(ended, (0..60).collect::<Vec<_>>(), "{choice}: each ends once");
        // Some may have arrived at the daemon before; those that came here came in order.
        let here = bytes(&again.ends.file);
        let last = mix(4, 59) as usize % 90_000;
        assert!(here[last..last + 10_000] == theirs[last..last + 10_000], "{choice}");
        assert!(here[100_000..] == theirs[100_000..], "{choice}: nothing elsewhere");
        one.stop();
        again.stop();
    }
}

/// Garbage instead of a greeting or of records ends the stream and nothing else.
#[test]
fn noise_on_a_stream_ends_the_stream() {
    let Some(library) = library() else { return };
    for choice in choices(library) {
        let directory = tempfile::tempdir().expect("a directory");
        let (one, other) = two(directory.path(), &choice, &choice);
        assert!(one.moves(&other), "{choice}");
        for length in [1, 351, 352, 353, 4000] {
            let settings = settings(0, directory.path());
            let mut stream =
                net::bulk::dial::dial(&settings, DaemonIndex(1), u8::MAX).expect("a stream");
            stream.socket().set_nonblocking(false).expect("blocking");
            let _ = stream.write_all(&pattern(length, 7)).and_then(|()| stream.flush());
            let _ = rustix::net::shutdown(stream.socket(), rustix::net::Shutdown::Write);
            let mut rest = Vec::new();
            let _ = stream.read_to_end(&mut rest);
            assert_eq!(rest, [], "{choice}: nobody is welcomed");
        }
        // The previous stream was replaced: a new transfer may find it closed first.
        one.begin(1, Kind::Store, AT_ONCE, 0, 0, 100);
        if one.next_end() != (1, Outcome::Moved(100)) {
            assert!(one.moves(&other), "{choice}");
        }
        one.stop();
        other.stop();
    }
}

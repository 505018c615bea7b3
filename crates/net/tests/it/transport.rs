//! Real connections over loopback: requests both ways, many senders at once, a peer that stops
//! reading, a lost peer, a wrong secret, garbage.

use net::HostDaemons;
use net::security::Protection;
use net::{Channel, Handler, Lost, Net, ReplyHandle, Secret, Sender, Settings, Urgency};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::{Arc, mpsc};
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

/// Replies to a request with its bytes and one more, except to `silence`; `hold` blocks the thread
/// until the test releases it.
struct Echo {
    events: mpsc::Sender<Event>,
    sender: Sender<u32>,
    go_on: mpsc::Receiver<()>,
}

impl Handler for Echo {
    type Token = u32;
    fn request(&mut self, _: DaemonIndex, answer: ReplyHandle, bytes: &[u8]) {
        if bytes != b"silence" {
            let mut bytes = bytes.to_vec();
            bytes.push(b'!');
            self.sender.reply(answer, &bytes);
        }
    }
    fn reply(&mut self, token: u32, outcome: Result<&[u8], Lost>) {
        let _ = self.events.send(Event::Reply(token, outcome.ok().map(<[u8]>::to_vec)));
    }
    fn message(&mut self, from: DaemonIndex, bytes: &[u8]) {
        let _ = self.events.send(Event::Message(from.0, bytes.to_vec()));
        if bytes == b"hold" {
            self.go_on.recv_timeout(WAIT).expect("told to go on");
        }
    }
    fn bulk(&mut self, from: net::handshake::PeerIdentity, _: Channel) {
        panic!("nobody dialled a bulk stream: {from:?}");
    }
    fn up(&mut self, peer: net::handshake::PeerIdentity) {
        let _ = self.events.send(Event::Up(peer.daemon.0));
    }
    fn down(&mut self, peer: DaemonIndex) {
        let _ = self.events.send(Event::Down(peer.0));
    }
}

struct Daemon {
    sender: Sender<u32>,
    events: mpsc::Receiver<Event>,
    hold: mpsc::Sender<()>,
    address: SocketAddr,
    thread: JoinHandle<()>,
}

fn start(me: u16, secret: u8, directory: &Path) -> Daemon {
    start_of(3, me, secret, directory)
}

fn start_of(daemon_count: u16, me: u16, secret: u8, directory: &Path) -> Daemon {
    start_with(settings_of(daemon_count, me, secret, directory))
}

fn settings_of(daemon_count: u16, me: u16, secret: u8, directory: &Path) -> Settings {
    Settings {
        me: DaemonIndex(me),
        daemon_count,
        start: u64::from(me),
        secret: Secret::new([secret; 32]),
        listen: "127.0.0.1:0".parse().expect("an address"),
        peers: directory.join("peers"),
        protection: Protection::Sealed,
        host: None,
        counters: Arc::default(),
    }
}

fn start_with(settings: Settings) -> Daemon {
    let (net, sender) = Net::bind(settings).expect("bound");
    let address = net.local_address().expect("bound");
    let (tell, events) = mpsc::channel();
    let (hold, go_on) = mpsc::channel();
    let mut handler = Echo { events: tell, sender: sender.clone(), go_on };
    let thread = std::thread::spawn(move || net.run(&mut handler).expect("runs"));
    Daemon { sender, events, hold, address, thread }
}

impl Daemon {
    fn expect(&self, event: Event) {
        assert_eq!(self.events.recv_timeout(WAIT), Ok(event));
    }
    fn request(&self, to: u16, bytes: &[u8], token: u32) {
        assert_eq!(self.sender.request(DaemonIndex(to), bytes, token), Ok(()));
        self.sender.flush();
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
    assert_eq!(zero.sender.request(DaemonIndex(1), b"early", 1), Err(1));
    tell_peers(directory.path(), &[&zero, &one]);
    zero.expect(Event::Up(1));
    one.expect(Event::Up(0));

    zero.request(1, b"ab", 2);
    zero.expect(Event::Reply(2, Some(b"ab!".to_vec())));
    let large = vec![7; wire::limits::BULK_BYTES];
    one.sender.send_message(DaemonIndex(0), &large, Urgency::Now).expect("room");
    one.request(0, b"cd", 3);
    one.expect(Event::Reply(3, Some(b"cd!".to_vec())));
    zero.expect(Event::Message(1, large));

    zero.request(1, b"silence", 4);
    std::thread::yield_now();
    one.stop();
    let first = zero.events.recv_timeout(WAIT).expect("told");
    assert!(matches!(first, Event::Down(1)), "{first:?}");
    zero.expect(Event::Reply(4, None));

    let one = start(1, 1, directory.path());
    zero.expect(Event::Up(1));
    one.expect(Event::Up(0));
    zero.request(1, b"again", 5);
    zero.expect(Event::Reply(5, Some(b"again!".to_vec())));
    zero.stop();
    one.stop();
}

/// Another daemon comes in the place of one, at another address, while the connection to the one before
/// still seems well: it is dialled there at once. The one before, which lives, is never connected again.
#[test]
fn a_daemon_in_the_place_of_another_is_dialled_at_its_own_address() {
    let directory = tempfile::tempdir().expect("directory");
    let (before, one) = pair(directory.path());
    let later = Settings { start: 5, ..settings_of(3, 0, 1, directory.path()) };
    let after = start_with(later);
    let tell = |zero: &Daemon| {
        tell_peers(directory.path(), &[zero, &one]);
        one.sender.read_addresses();
    };
    tell(&after);
    one.expect(Event::Down(0));
    one.expect(Event::Up(0));
    before.expect(Event::Down(1));
    after.expect(Event::Up(1));
    assert_eq!(one.sender.send_message(DaemonIndex(0), b"new", Urgency::Now), Ok(()));
    one.sender.flush();
    after.expect(Event::Message(1, b"new".to_vec()));
    // With the same addresses nothing happens.
    tell(&after);
    one.request(0, b"x", 1);
    one.expect(Event::Reply(1, Some(b"x!".to_vec())));
    // The one before is refused.
    tell(&before);
    one.expect(Event::Down(0));
    after.expect(Event::Down(1));
    let none = Err(mpsc::RecvTimeoutError::Timeout);
    assert_eq!(one.events.recv_timeout(Duration::from_millis(300)), none);
    tell(&after);
    one.expect(Event::Up(0));
    after.expect(Event::Up(1));
    assert_eq!(before.events.try_recv(), Err(mpsc::TryRecvError::Empty));
    [before, one, after].into_iter().for_each(Daemon::stop);
}

/// The same where the daemon is the one that dials: the one before dials on, and is refused.
#[test]
fn an_earlier_start_that_dials_is_refused() {
    let directory = tempfile::tempdir().expect("directory");
    let settings = settings_of(3, 0, 1, directory.path());
    let counters = Arc::clone(&settings.counters);
    let (zero, before) = (start_with(settings), start(1, 1, directory.path()));
    tell_peers(directory.path(), &[&zero, &before]);
    zero.expect(Event::Up(1));
    before.expect(Event::Up(0));
    let after = start_with(Settings { start: 7, ..settings_of(3, 1, 1, directory.path()) });
    for event in [Event::Down(1), Event::Up(1)] {
        zero.expect(event);
    }
    after.expect(Event::Up(0));
    before.expect(Event::Down(0));
    let limit = Instant::now() + WAIT;
    while counters.refused.load(std::sync::atomic::Ordering::Relaxed) == 0 {
        assert!(Instant::now() < limit, "nobody is refused");
        std::thread::yield_now();
    }
    zero.request(1, b"x", 1);
    zero.expect(Event::Reply(1, Some(b"x!".to_vec())));
    assert_eq!(after.events.try_recv(), Err(mpsc::TryRecvError::Empty));
    [zero, before, after].into_iter().for_each(Daemon::stop);
}

/// A daemon that is added dials the others, which admit it as soon as they know of it; those that were
/// there stay connected.
#[test]
fn a_daemon_that_is_added_connects_when_the_others_know_of_it() {
    let directory = tempfile::tempdir().expect("directory");
    let (zero, one) = (start_of(2, 0, 1, directory.path()), start_of(2, 1, 1, directory.path()));
    tell_peers(directory.path(), &[&zero, &one]);
    zero.expect(Event::Up(1));
    one.expect(Event::Up(0));
    let settings = settings_of(2, 0, 1, directory.path());
    let added = start_with(Settings { me: DaemonIndex(2), daemon_count: 3, ..settings });
    tell_peers(directory.path(), &[&zero, &one, &added]);
    zero.sender.grow(3);
    zero.expect(Event::Up(2));
    added.expect(Event::Up(0));
    assert_eq!(one.sender.request(DaemonIndex(2), b"early", 1), Err(1));
    one.sender.grow(3);
    one.expect(Event::Up(2));
    added.expect(Event::Up(1));
    for (number, daemon) in [&zero, &one].into_iter().enumerate() {
        daemon.request(2, b"new", 2);
        daemon.expect(Event::Reply(2, Some(b"new!".to_vec())));
        added.request(number as u16, b"old", 3);
        added.expect(Event::Reply(3, Some(b"old!".to_vec())));
    }
    // Nobody goes back to fewer, and nobody has more than an instance may have.
    zero.sender.grow(1);
    zero.sender.grow(u16::MAX);
    zero.request(2, b"x", 4);
    zero.expect(Event::Reply(4, Some(b"x!".to_vec())));
    assert_eq!(zero.sender.request(DaemonIndex(u16::MAX), b"none", 5), Err(5));
    assert_eq!(zero.sender.daemon_count(), wire::limits::DAEMON_COUNT_MAX);
    added.stop();
    zero.expect(Event::Down(2));
    one.expect(Event::Down(2));
    [zero, one].into_iter().for_each(Daemon::stop);
}

/// A daemon of which the others do not know is refused, however long it dials.
#[test]
fn a_daemon_that_nobody_added_is_refused() {
    let directory = tempfile::tempdir().expect("directory");
    let settings = settings_of(2, 0, 1, directory.path());
    let counters = Arc::clone(&settings.counters);
    let zero = start_with(settings.clone());
    let unknown = start_with(Settings { me: DaemonIndex(2), daemon_count: 3, ..settings });
    tell_peers(directory.path(), &[&zero, &zero, &unknown]);
    let limit = Instant::now() + WAIT;
    while counters.refused.load(std::sync::atomic::Ordering::Relaxed) < 3 {
        assert!(Instant::now() < limit, "nobody is refused");
        std::thread::yield_now();
    }
    assert_eq!(zero.events.try_recv(), Err(mpsc::TryRecvError::Empty));
    [zero, unknown].into_iter().for_each(Daemon::stop);
}

/// Two connected daemons.
fn pair(directory: &Path) -> (Daemon, Daemon) {
    let (zero, one) = (start(0, 1, directory), start(1, 1, directory));
    tell_peers(directory, &[&zero, &one]);
    zero.expect(Event::Up(1));
    one.expect(Event::Up(0));
    (zero, one)
}

/// A host without power says nothing: requests to it would wait for the kernel to give up.
#[test]
fn requests_to_a_daemon_that_is_known_to_be_dead_end_at_once() {
    let directory = tempfile::tempdir().expect("directory");
    let (zero, one) = pair(directory.path());
    zero.request(1, b"silence", 2);
    // That of an earlier start is no news about this one.
    zero.sender.disconnect(DaemonIndex(1), 0);
    zero.request(1, b"still", 1);
    zero.expect(Event::Reply(1, Some(b"still!".to_vec())));
    zero.sender.disconnect(DaemonIndex(1), 1);
    zero.expect(Event::Down(1));
    zero.expect(Event::Reply(2, None));
    // It lives after all.
    one.expect(Event::Down(0));
    one.expect(Event::Up(0));
    zero.expect(Event::Up(1));
    zero.request(1, b"again", 3);
    zero.expect(Event::Reply(3, Some(b"again!".to_vec())));
    zero.stop();
    one.stop();
}

/// All daemons of an instance start at the same moment; each reaches each other one once.
#[test]
fn many_daemons_that_start_together_are_all_connected() {
    const COUNT: u16 = 24;
    let directory = tempfile::tempdir().expect("directory");
    let daemons: Vec<Daemon> =
        (0..COUNT).map(|me| start_of(COUNT, me, 1, directory.path())).collect();
    tell_peers(directory.path(), &daemons.iter().collect::<Vec<_>>());
    for (me, daemon) in daemons.iter().enumerate() {
        let mut up: Vec<u16> = (1..COUNT)
            .map(|_| match daemon.events.recv_timeout(WAIT) {
                Ok(Event::Up(peer)) => peer,
                other => panic!("daemon {me}: {other:?}"),
            })
            .collect();
        up.sort_unstable();
        let others: Vec<u16> = (0..COUNT).filter(|peer| usize::from(*peer) != me).collect();
        assert_eq!(up, others, "daemon {me}");
    }
    for daemon in &daemons {
        assert_eq!(daemon.events.try_recv(), Err(mpsc::TryRecvError::Empty));
    }
    daemons.into_iter().for_each(Daemon::stop);
}

/// More neighbours than are dialled at the same time accept the connection and stay silent.
#[test]
fn silent_daemons_do_not_delay_others() {
    const COUNT: u16 = 14;
    let directory = tempfile::tempdir().expect("directory");
    let silent: Vec<std::net::TcpListener> = (1..COUNT - 1)
        .map(|_| std::net::TcpListener::bind("127.0.0.1:0").expect("bound"))
        .collect();
    let zero = start_of(COUNT, 0, 1, directory.path());
    let last = start_of(COUNT, COUNT - 1, 1, directory.path());
    let silent = silent.iter().map(|one| one.local_addr().expect("bound"));
    let lines = [zero.address].into_iter().chain(silent).chain([last.address]).enumerate();
    let text: String = lines.map(|(peer, address)| format!("{peer} {address}\n")).collect();
    std::fs::write(directory.path().join("peers"), text).expect("written");
    last.expect(Event::Up(0));
    zero.expect(Event::Up(COUNT - 1));
    zero.stop();
    last.stop();
}

/// Daemons of one host need neither TCP nor the peers file; one that comes back is found again.
#[test]
fn daemons_of_a_host_talk_through_unix_sockets() {
    let directory = tempfile::tempdir().expect("directory");
    let start = |me| {
        let mut settings = settings_of(2, me, 1, directory.path());
        let private = directory.path().to_owned();
        settings.host = Some(HostDaemons { first: 0, count: 2, directory: private });
        start_with(settings)
    };
    let (zero, one) = (start(0), start(1));
    zero.expect(Event::Up(1));
    one.expect(Event::Up(0));
    zero.request(1, b"x", 1);
    zero.expect(Event::Reply(1, Some(b"x!".to_vec())));
    zero.stop();
    one.expect(Event::Down(0));
    assert!(!directory.path().join("d0.peer").exists(), "removed at the end");
    // As a killed daemon leaves it.
    std::fs::write(directory.path().join("d0.peer"), "").expect("written");
    let zero = start(0);
    one.expect(Event::Up(0));
    zero.expect(Event::Up(1));
    zero.stop();
    one.stop();
}

/// A daemon whose setting differs never connects, and the reason is one of the protocol.
#[test]
fn daemons_with_other_protection_never_connect() {
    let directory = tempfile::tempdir().expect("directory");
    let zero = start(0, 1, directory.path());
    let mut settings = settings_of(3, 1, 1, directory.path());
    settings.protection = Protection::Plain;
    let one = start_with(settings);
    tell_peers(directory.path(), &[&zero, &one]);
    let none = Err(mpsc::RecvTimeoutError::Timeout);
    assert_eq!(zero.events.recv_timeout(Duration::from_millis(300)), none);
    assert_eq!(one.events.recv_timeout(Duration::from_millis(1)), none);
    zero.stop();
    one.stop();
}

/// Frames of threads that send at the same time stay whole, and those of one thread keep their
/// order.
#[test]
fn many_threads_send_on_one_connection() {
    const THREADS: u32 = 4;
    const ROUNDS: u32 = 400;
    let directory = tempfile::tempdir().expect("directory");
    let (zero, one) = pair(directory.path());
    // Sizes below and above those that one write takes.
    let size = |round: u32| if round.is_multiple_of(50) { 300_000 } else { 8 + round as usize };
    let message = |thread: u32, round: u32| {
        let mut bytes = vec![(thread * 31 + round) as u8; size(round)];
        bytes[..4].copy_from_slice(&thread.to_le_bytes());
        bytes[4..8].copy_from_slice(&round.to_le_bytes());
        bytes
    };
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let sender = zero.sender.clone();
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    let bytes = message(thread, round);
                    assert_eq!(sender.send_message(DaemonIndex(1), &bytes, Urgency::Now), Ok(()));
                    let token = thread * ROUNDS + round;
                    assert_eq!(sender.request(DaemonIndex(1), &token.to_le_bytes(), token), Ok(()));
                    if round % 3 == 0 {
                        sender.flush();
                    }
                }
                sender.flush();
            });
        }
    });
    let mut next = [0; THREADS as usize];
    for _ in 0..THREADS * ROUNDS {
        let Ok(Event::Message(0, bytes)) = one.events.recv_timeout(WAIT) else { panic!("none") };
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four"));
        let (thread, round) = (word(0), word(4));
        assert_eq!(round, next[thread as usize]);
        assert!(bytes == message(thread, round), "thread {thread} round {round}");
        next[thread as usize] += 1;
    }
    let mut answered = vec![false; (THREADS * ROUNDS) as usize];
    for _ in 0..THREADS * ROUNDS {
        let Ok(Event::Reply(token, Some(bytes))) = zero.events.recv_timeout(WAIT) else {
            panic!("no reply")
        };
        assert_eq!(bytes, [&token.to_le_bytes()[..], b"!"].concat());
        assert!(!std::mem::replace(&mut answered[token as usize], true), "answered twice");
    }
    zero.stop();
    one.stop();
}

/// A batched message is sent before frames queued after it, or by `flush_all`.
#[test]
fn a_batched_message_keeps_its_order() {
    let directory = tempfile::tempdir().expect("directory");
    let (zero, one) = pair(directory.path());
    let send =
        |bytes, haste| assert_eq!(zero.sender.send_message(DaemonIndex(1), bytes, haste), Ok(()));
    for round in 0..50 {
        send(b"first", Urgency::Batched);
        send(b"second", Urgency::Batched);
        send(b"third", Urgency::Now);
        zero.request(1, b"then", round);
        for message in ["first", "second", "third"] {
            one.expect(Event::Message(0, message.into()));
        }
        zero.expect(Event::Reply(round, Some(b"then!".to_vec())));
        send(b"last", Urgency::Batched);
        zero.sender.flush_all();
        one.expect(Event::Message(0, b"last".to_vec()));
    }
    zero.stop();
    one.stop();
}

/// The queue for a peer that does not read is bounded, the sender never blocks, and no accepted
/// frame is lost once the peer reads again.
#[test]
fn a_peer_that_stops_reading_bounds_its_queue_and_later_gets_all() {
    let directory = tempfile::tempdir().expect("directory");
    let (zero, one) = pair(directory.path());
    assert_eq!(zero.sender.send_message(DaemonIndex(1), b"hold", Urgency::Now), Ok(()));
    zero.sender.flush();
    one.expect(Event::Message(0, b"hold".to_vec()));
    let message = |number: u32| number.to_le_bytes().repeat(256 * 1024);
    let mut taken = 0;
    while zero.sender.send_message(DaemonIndex(1), &message(taken), Urgency::Now).is_ok() {
        zero.sender.flush();
        taken += 1;
        assert!(taken < 200, "more than 200 MiB wait");
    }
    assert_eq!(zero.sender.request(DaemonIndex(1), b"x", 7), Err(7));
    one.request(0, b"other way", 8);
    one.hold.send(()).expect("it waits");
    for number in 0..taken {
        let Ok(Event::Message(0, bytes)) = one.events.recv_timeout(WAIT) else { panic!("none") };
        assert!(bytes == message(number), "message {number}");
    }
    one.expect(Event::Reply(8, Some(b"other way!".to_vec())));
    zero.request(1, b"again", 9);
    zero.expect(Event::Reply(9, Some(b"again!".to_vec())));
    zero.stop();
    one.stop();
}

#[test]
fn a_wrong_secret_never_connects() {
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
fn garbage_ends_only_its_own_connection() {
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
        // Closed with or without a reset: either way the connection ends.
        let _ = stranger.read_to_end(&mut answer);
        assert!(begun.elapsed() < Duration::from_secs(10));
    }
    zero.request(1, b"x", 9);
    zero.expect(Event::Reply(9, Some(b"x!".to_vec())));
    zero.stop();
    one.stop();
}

#[test]
fn a_round_trip_takes_microseconds() {
    let directory = tempfile::tempdir().expect("directory");
    let (zero, one) = pair(directory.path());
    let begun = Instant::now();
    for token in 0..1000 {
        zero.request(1, b"x", token);
        zero.expect(Event::Reply(token, Some(b"x!".to_vec())));
    }
    println!("round trip: {} us", begun.elapsed().as_micros() / 1000);
    zero.stop();
    one.stop();
}

//! The thread that owns the endpoint, the streams to all peers and from all peers, and the slots.

use super::incoming::{Incoming, Origin, State};
use super::outgoing::{Outgoing, PeerConnection, WINDOW_SLOTS};
use super::pipe::{Pipe, Stop};
use super::record::{FAILED, GREETING_BYTES, Greeting, RECORD_BYTES, Record, WELCOME};
use super::slots::Slots;
use crate::endpoint::{Endpoint, Peer, Reach, RemotePlace};
use crate::error::Result;
use crate::transfers::Completion;
use net::Channel;
use net::bulk::dial::READY;
use net::bulk::header::Message;
use net::bulk::queue::{Command, CommandQueue};
use net::bulk::{Answer, BulkHandler, Fabric, Kind, Transfer, Visit};
use net::handshake::PeerIdentity;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::fd::OwnedFd;
use std::collections::{BTreeMap, VecDeque};
use std::io::{self, Read, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};
use wire::{DaemonIndex, Errno};

/// The number of our streams in the handshake; those of TCP lanes count from 1.
pub(crate) const STREAM: u8 = u8::MAX;
/// Slots for visits: as many as the windows of four peers hold.
const OWN_SLOTS: u32 = 64;
const WAKER: u64 = 0;
const DEVICE: u64 = 1;
const FIRST_STREAM: u64 = 2;
/// Polls without a result that only yield, before any sleep.
const POLLS: u32 = 100;
/// Answer to the dialler of a stream that is not accepted here.
pub(crate) const NOT_HERE: [u8; 1] = *b"N";
/// Time that a new stream of a peer waits for transfers in flight of the previous one; a cut
/// network heals, or the access ends, within this time or hardly at all.
const ADMIT_TIME: Duration = Duration::from_secs(15);
/// Pause before a peer is dialled again for waiting transfers.
const DIAL_PAUSE: Duration = Duration::from_millis(50);
/// Sleeps where the provider's descriptor is unreliable: with transfers in flight, without.
const SHORT_SLEEP: Duration = Duration::from_micros(100);
/// See `SHORT_SLEEP`.
const NAP_IDLE: Duration = Duration::from_millis(10);
/// Longest sleep while nothing is in flight: providers do some of their work only when polled.
const IDLE: Duration = Duration::from_millis(50);
/// The same while there is no stream.
const IDLE_SLEEP: Duration = Duration::from_secs(1);

/// The owner of a stream.
#[derive(Clone, Copy)]
enum StreamOwner {
    Outgoing(u16),
    Incoming,
}

/// An access in flight.
struct Op {
    stream: u64,
    from: u16,
    order: u64,
    slot: u32,
}

/// The state of the thread.
pub struct Mover<E: BulkHandler> {
    settings: net::Settings,
    endpoint: Endpoint,
    /// The endpoint failed: everything goes by TCP.
    broken: bool,
    queue: Arc<CommandQueue<E>>,
    fallback: Arc<dyn Fabric<E>>,
    epoll: OwnedFd,
    own: Slots,
    /// Visits that wait for a slot: stream and order.
    starved: VecDeque<(u64, u64)>,
    outgoing: BTreeMap<u16, Outgoing<E>>,
    incoming: BTreeMap<u64, Incoming<E>>,
    streams: BTreeMap<u64, StreamOwner>,
    /// New streams that wait until nothing of the previous one is in flight.
    arriving: BTreeMap<u16, (PeerIdentity, Channel, Instant)>,
    ops: BTreeMap<u64, Op>,
    /// Visits that wait for the daemon's answer: stream and order.
    visits: BTreeMap<u64, (u64, u64)>,
    /// Peers by their addresses, never removed: the provider `tcp` of 2.1 sometimes crashes when a
    /// peer with a connection is removed. There is one for each start of a peer's daemon.
    peers: BTreeMap<Vec<u8>, Peer>,
    next: u64,
    polls: u32,
}

impl<E: BulkHandler + 'static> Mover<E> {
    pub(crate) fn new(
        settings: net::Settings,
        mut endpoint: Endpoint,
        fallback: Arc<dyn Fabric<E>>,
    ) -> Result<(Arc<CommandQueue<E>>, Mover<E>)> {
        let lost = |error: rustix::io::Errno| crate::Error::Absent(format!("no poller: {error}"));
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(lost)?;
        let queue = CommandQueue::new(&epoll, WAKER).map_err(lost)?;
        if let Some(device) = endpoint.descriptor() {
            // With some providers it stays readable with nothing to do.
            let edge = EventFlags::IN | EventFlags::ET;
            epoll::add(&epoll, device, EventData::new_u64(DEVICE), edge).map_err(lost)?;
        }
        let own = Slots::new(&mut endpoint, OWN_SLOTS, Reach::Own)?;
        let mover = Mover {
            settings,
            endpoint,
            broken: false,
            queue: Arc::clone(&queue),
            fallback,
            epoll,
            own,
            starved: VecDeque::new(),
            outgoing: BTreeMap::new(),
            incoming: BTreeMap::new(),
            streams: BTreeMap::new(),
            arriving: BTreeMap::new(),
            ops: BTreeMap::new(),
            visits: BTreeMap::new(),
            peers: BTreeMap::new(),
            next: FIRST_STREAM,
            polls: 0,
        };
        Ok((queue, mover))
    }

    /// Runs until the transport is stopped.
    ///
    /// # Errors
    /// Errors of the poller itself.
    pub fn run(mut self, ends: &E) -> io::Result<()> {
        let mut events = Vec::with_capacity(64);
        while !self.queue.is_stopping() {
            self.turn_away();
            let had = self.take_commands(ends) | self.take_completions(ends);
            let timeout = if had { Duration::ZERO } else { self.sleep_time() };
            let timeout = rustix::event::Timespec::try_from(timeout).ok();
            events.clear();
            let reserved = rustix::buffer::spare_capacity(&mut events);
            match epoll::wait(&self.epoll, reserved, timeout.as_ref()) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            self.queue.awake();
            if had || events.iter().any(|event| event.data.u64() != DEVICE) {
                self.polls = 0;
            } else {
                self.polls = self.polls.saturating_add(1);
                std::thread::yield_now();
            }
            for event in &events {
                match event.data.u64() {
                    WAKER => self.queue.clear_waker(),
                    DEVICE => {}
                    key => self.go_on(key, ends),
                }
            }
        }
        self.take_commands(ends);
        for one in self.outgoing.values_mut() {
            one.end(&mut self.endpoint, ends);
        }
        Ok(())
    }

    /// Time for which nothing needs to be polled; zero if a command came meanwhile.
    fn sleep_time(&mut self) -> Duration {
        let idle = self.ops.is_empty() && self.outgoing.values().all(Outgoing::is_idle);
        if !idle && self.polls < POLLS {
            return Duration::ZERO;
        }
        let time = match self.endpoint.sleep_time_max() {
            // No event would signal new work: poll in between.
            Duration::ZERO if self.polls < POLLS => return Duration::ZERO,
            Duration::ZERO if idle => NAP_IDLE,
            Duration::ZERO => SHORT_SLEEP,
            _ if idle && self.streams.is_empty() && self.arriving.is_empty() => IDLE_SLEEP,
            _ if idle => IDLE,
            rest => rest,
        };
        if self.queue.may_sleep() { time } else { Duration::ZERO }
    }

    fn take_commands(&mut self, ends: &E) -> bool {
        let commands = self.queue.take();
        let any = !commands.is_empty();
        for command in commands {
            match command {
                Command::Start(transfer) => self.start(transfer, ends),
                Command::Answer(visit, decision) => self.decided(visit, decision, ends),
                Command::Accepted(from, socket) => self.accepted(from, socket, ends),
                Command::Dialled(peer, outcome) => self.dialled(peer, outcome, ends),
            }
        }
        any
    }

    // ---- transfers that we start ----

    fn start(&mut self, transfer: Transfer<E::Memory, E::Token>, ends: &E) {
        let peer = transfer.peer;
        let one = self.outgoing.entry(peer.0).or_insert_with(Outgoing::new);
        if self.broken || one.is_plain() {
            return self.fallback.start(transfer);
        }
        one.waiting.push_back(transfer);
        match one.way {
            PeerConnection::None => self.dial(peer, Duration::ZERO),
            PeerConnection::Up(_, key) => self.send(peer.0, key, ends),
            PeerConnection::Dialling | PeerConnection::Tcp => {}
        }
    }

    fn send(&mut self, peer: u16, key: u64, ends: &E) {
        let Some(one) = self.outgoing.get_mut(&peer) else { return };
        match one.send(ends) {
            Ok(()) => self.poll_for(key),
            Err(stop) => self.close(key, &stop, ends),
        }
    }

    /// A thread makes the stream: connecting, authentication and greeting wait for the peer.
    fn dial(&mut self, peer: DaemonIndex, pause: Duration) {
        let Some(one) = self.outgoing.get_mut(&peer.0) else { return };
        let window = match one.old_window.take() {
            Some(memory) => Slots::over(&mut self.endpoint, memory, Reach::ReadWrite),
            None => Slots::new(&mut self.endpoint, WINDOW_SLOTS, Reach::ReadWrite),
        };
        let window = match window {
            Ok(window) => window,
            Err(error) => {
                tracing::warn!(peer = peer.0, %error, "no memory for a window: TCP");
                return one.fall_back_to_tcp(&mut self.endpoint, &*self.fallback);
            }
        };
        let greeting = Greeting {
            provider: self.endpoint.offer().provider.clone(),
            address: self.endpoint.address().to_vec(),
            window: window.grant(),
        };
        one.window = Some(window);
        one.way = PeerConnection::Dialling;
        let settings = self.settings.clone();
        self.queue.dial(peer, pause, move || dial_and_greet(&settings, peer, &greeting));
    }

    fn dialled(&mut self, peer: DaemonIndex, outcome: io::Result<Channel>, ends: &E) {
        let Some(one) = self.outgoing.get_mut(&peer.0) else { return };
        if !matches!(one.way, PeerConnection::Dialling) {
            return;
        }
        let (is_logged, why) =
            (core::mem::replace(&mut one.is_logged, outcome.is_err()), outcome.as_ref().err());
        if let Some(error) = why.filter(|_| !is_logged) {
            tracing::warn!(peer = peer.0, %error, "no way to peer by libfabric");
        }
        match outcome {
            Ok(socket) => {
                let (pipe, key) = (Pipe::new(socket), self.next);
                self.next += 1;
                self.add(&pipe, key, StreamOwner::Outgoing(peer.0));
                if let Some(one) = self.outgoing.get_mut(&peer.0) {
                    one.way = PeerConnection::Up(pipe, key);
                }
                self.send(peer.0, key, ends);
            }
            Err(error) if error.kind() == io::ErrorKind::Unsupported => {
                one.fall_back_to_tcp(&mut self.endpoint, &*self.fallback);
            }
            Err(_) => {
                one.lose(&mut self.endpoint, ends);
                if !one.waiting.is_empty() {
                    self.dial(peer, DIAL_PAUSE);
                }
            }
        }
    }

    // ---- visits ----

    fn accepted(&mut self, from: PeerIdentity, socket: Channel, ends: &E) {
        let older = |(_, one): &(&u64, &Incoming<E>)| one.from.daemon == from.daemon;
        let older = self.incoming.iter().find(older).map(|(&key, _)| key);
        if let Some(older) = older {
            self.close(older, &Stop::Odd("replaced by a newer stream"), ends);
        }
        let since = self.arriving.get(&from.daemon.0).map_or_else(Instant::now, |one| one.2);
        self.arriving.insert(from.daemon.0, (from, socket, since));
        self.admit(from.daemon.0);
    }

    /// Accepts a stream that arrived, if nothing of the previous one is in flight.
    fn admit(&mut self, from: u16) {
        if self.broken || self.ops.values().any(|op| op.from == from) {
            return;
        }
        let Some((from, mut socket, _)) = self.arriving.remove(&from) else { return };
        let greeted = socket.socket().set_nonblocking(true).and_then(|()| {
            // Nothing was sent on it before, so there is space.
            socket.write_all(&READY)?;
            socket.flush()
        });
        if greeted.is_err() {
            return;
        }
        let key = self.next;
        self.next += 1;
        let one = Incoming::new(from, Pipe::new(socket));
        self.add(&one.pipe, key, StreamOwner::Incoming);
        self.incoming.insert(key, one);
    }

    /// A stream that waits too long goes by TCP: an access that hangs must not block a peer.
    fn turn_away(&mut self) {
        self.arriving.retain(|_, (_, socket, since)| {
            let waits = since.elapsed() < ADMIT_TIME;
            if !waits {
                let _ = socket.write_all(&NOT_HERE).and_then(|()| socket.flush());
            }
            waits
        });
    }

    fn read_theirs(&mut self, key: u64, ends: &E) -> core::result::Result<(), Stop> {
        let Some(one) = self.incoming.get_mut(&key) else { return Ok(()) };
        one.pipe.fill()?;
        if one.origin.is_none() {
            let Some(bytes) = one.pipe.take::<GREETING_BYTES>() else { return Ok(()) };
            let greeting = Greeting::decode(&bytes)?;
            if greeting.provider != self.endpoint.offer().provider {
                return Err(Stop::Odd("the peer has another provider"));
            }
            let peer = self.peer(&greeting.address).ok_or(Stop::Odd("no address of a peer"))?;
            let Some(one) = self.incoming.get_mut(&key) else { return Ok(()) };
            one.origin = Some(Origin { peer, window: greeting.window });
            one.pipe.push(&[WELCOME]);
        }
        while let Some(one) = self.incoming.get_mut(&key)
            && let Some(bytes) = one.pipe.take::<RECORD_BYTES>()
        {
            let record = Record::decode(&bytes)?;
            let (order, is_first) = one.take(&record, WINDOW_SLOTS as usize)?;
            if is_first {
                self.begin(key, order, ends);
            }
        }
        match self.incoming.get_mut(&key) {
            Some(one) => one.pipe.flush(),
            None => Ok(()),
        }
    }

    fn peer(&mut self, address: &[u8]) -> Option<Peer> {
        if let Some(peer) = self.peers.get(address) {
            return Some(*peer);
        }
        let peer = self.endpoint.add_peer(address).ok()?;
        self.peers.insert(address.to_vec(), peer);
        Some(peer)
    }

    /// Begins the first visit of an order, and continues while visits end at once.
    fn begin(&mut self, key: u64, order: u64, ends: &E) {
        loop {
            let Some(one) = self.incoming.get_mut(&key) else { return };
            let from = one.from.daemon;
            let failed = one.failed;
            let Some(job) = one.first(order) else { return };
            if failed {
                one.end(order, Message::Done(Err(Errno::EIO)), FAILED);
                continue;
            }
            let (kind, range) = (job.kind, job.range);
            job.state = State::Admitting;
            let visit = self.next;
            self.next += 1;
            self.visits.insert(visit, (key, order));
            let Some(answer) = ends.visit(from, kind, &range, Visit::elsewhere(visit)) else {
                return;
            };
            self.visits.remove(&visit);
            if !self.answered(key, order, answer) {
                return;
            }
        }
    }

    fn decided(&mut self, visit: u64, decision: E::Decision, ends: &E) {
        let Some((key, order)) = self.visits.remove(&visit) else { return };
        let Some(job) = self.incoming.get_mut(&key).and_then(|one| one.first(order)) else {
            return;
        };
        let answer = ends.decided(job.kind, &job.range, decision);
        if self.answered(key, order, answer) {
            self.begin(key, order, ends);
        }
        self.flush(key, ends);
    }

    /// True if the visit has ended and another is to be begun.
    fn answered(&mut self, key: u64, order: u64, answer: Answer<E::Memory>) -> bool {
        let Some(one) = self.incoming.get_mut(&key) else { return false };
        let Some(job) = one.first(order) else { return false };
        let message = match (answer, job.kind) {
            (Answer::Memory(memory), _) => {
                job.state = State::Starved(memory);
                return self.start_access(key, order);
            }
            (Answer::Hole, Kind::Fetch) => Message::Data(0),
            (Answer::Elsewhere(location), Kind::Fetch) => Message::Elsewhere(location),
            (Answer::Hole | Answer::Elsewhere(_), Kind::Store) => Message::Done(Err(Errno::EIO)),
            (Answer::Refused(errno), _) => Message::Done(Err(errno)),
            (Answer::Busy(micros), _) => Message::Busy(micros),
        };
        one.end(order, message, 0)
    }

    /// Begins the access of a visit that has memory, or queues it for a slot. True as for
    /// `answered`.
    fn start_access(&mut self, key: u64, order: u64) -> bool {
        let Some(one) = self.incoming.get_mut(&key) else { return false };
        let Some(origin) = one.origin else { return false };
        let from = one.from.daemon.0;
        let Some(job) = one.first(order) else { return false };
        if !matches!(job.state, State::Starved(_)) {
            return false;
        }
        let Some(slot) = self.own.take() else {
            self.starved.push_back((key, order));
            return false;
        };
        let State::Starved(memory) = core::mem::replace(&mut job.state, State::Moving(None)) else {
            return false;
        };
        let Origin { peer, window } = origin;
        let remote = RemotePlace { peer, grant: window, offset: job.place };
        let (own, length, token) = (self.own.place(slot), u64::from(job.range.length), self.next);
        let begun = match job.kind {
            Kind::Store => {
                job.state = State::Moving(Some(memory));
                Ok(self.endpoint.read(own, remote, length, token))
            }
            Kind::Fetch => self
                .own
                .fill(slot, &memory, job.range.length)
                .map(|()| self.endpoint.write(own, remote, length, token)),
        };
        let (message, place) = match begun {
            Ok(Ok(())) => {
                self.next += 1;
                self.ops.insert(token, Op { stream: key, from, order, slot });
                return false;
            }
            Ok(Err(_)) => {
                one.failed = true;
                (Message::Done(Err(Errno::EIO)), FAILED)
            }
            Err(errno) => (Message::Done(Err(errno)), 0),
        };
        self.own.give_back(slot);
        one.end(order, message, place)
    }

    /// Takes the completions of accesses. True if there were any.
    fn take_completions(&mut self, ends: &E) -> bool {
        let mut any = false;
        while !self.broken {
            match self.endpoint.poll() {
                Ok(None) => break,
                Ok(Some(completion)) => {
                    any = true;
                    self.moved(&completion, ends);
                }
                Err(error) => {
                    tracing::error!(%error, "libfabric gave up: bytes go by TCP");
                    self.break_down(ends);
                }
            }
        }
        any
    }

    fn moved(&mut self, completion: &Completion, ends: &E) {
        let Some(op) = self.ops.remove(&completion.token) else { return };
        let more = match self.incoming.get_mut(&op.stream) {
            Some(one) => {
                let (message, place) = match &completion.outcome {
                    Ok(()) => (arrived(&self.own, op.slot, one, op.order, ends), 0),
                    Err(error) => {
                        tracing::warn!(peer = op.from, %error, "cannot access memory of peer");
                        one.failed = true;
                        (Message::Done(Err(Errno::EIO)), FAILED)
                    }
                };
                one.end(op.order, message, place)
            }
            None => false,
        };
        self.own.give_back(op.slot);
        if more {
            self.begin(op.stream, op.order, ends);
        }
        self.flush(op.stream, ends);
        if let Some((key, order)) = self.starved.pop_front() {
            if self.start_access(key, order) {
                self.begin(key, order, ends);
            }
            self.flush(key, ends);
        }
        self.admit(op.from);
    }

    // ---- streams ----

    fn add(&mut self, pipe: &Pipe, key: u64, owner: StreamOwner) {
        let data = EventData::new_u64(key);
        let _ = epoll::add(&self.epoll, &pipe.socket, data, pipe.polled);
        self.streams.insert(key, owner);
    }

    fn go_on(&mut self, key: u64, ends: &E) {
        let outcome = match self.streams.get(&key) {
            None => return,
            Some(StreamOwner::Incoming) => self.read_theirs(key, ends),
            Some(&StreamOwner::Outgoing(peer)) => self.read_ours(peer, ends),
        };
        match outcome {
            Ok(()) => self.flush(key, ends),
            Err(stop) => self.close(key, &stop, ends),
        }
    }

    fn read_ours(&mut self, peer: u16, ends: &E) -> core::result::Result<(), Stop> {
        let Some(one) = self.outgoing.get_mut(&peer) else { return Ok(()) };
        one.read(ends)?;
        if one.avoid && one.is_idle() {
            if !core::mem::replace(&mut one.is_logged, true) {
                tracing::warn!(peer, "peer does not reach our memory: bytes go by TCP");
            }
            if let PeerConnection::Up(_, key) = one.way {
                self.streams.remove(&key);
            }
            one.fall_back_to_tcp(&mut self.endpoint, &*self.fallback);
        }
        Ok(())
    }

    fn flush(&mut self, key: u64, ends: &E) {
        let Some(pipe) = pipe_of(&self.streams, &mut self.outgoing, &mut self.incoming, key) else {
            return;
        };
        match pipe.flush() {
            Ok(()) => self.poll_for(key),
            Err(stop) => self.close(key, &stop, ends),
        }
    }

    fn poll_for(&mut self, key: u64) {
        let Some(pipe) = pipe_of(&self.streams, &mut self.outgoing, &mut self.incoming, key) else {
            return;
        };
        let preferred = pipe.wants();
        if preferred != pipe.polled {
            pipe.polled = preferred;
            let data = EventData::new_u64(key);
            let _ = epoll::modify(&self.epoll, &pipe.socket, data, preferred);
        }
    }

    fn close(&mut self, key: u64, why: &Stop, ends: &E) {
        match self.streams.remove(&key) {
            Some(StreamOwner::Outgoing(peer)) => {
                tracing::warn!(peer, %why, "way to peer by libfabric lost");
                let Some(one) = self.outgoing.get_mut(&peer) else { return };
                one.lose(&mut self.endpoint, ends);
                if !one.waiting.is_empty() {
                    self.dial(DaemonIndex(peer), Duration::ZERO);
                }
            }
            Some(StreamOwner::Incoming) => {
                let Some(one) = self.incoming.remove(&key) else { return };
                tracing::debug!(peer = one.from.daemon.0, %why, "way from peer by libfabric ended");
                self.visits.retain(|_, (stream, _)| *stream != key);
            }
            None => {}
        }
    }

    fn break_down(&mut self, ends: &E) {
        self.broken = true;
        // Transfers to be sent again are lost, too: by another way they could overtake themselves.
        for one in self.outgoing.values_mut() {
            one.end(&mut self.endpoint, ends);
        }
        self.incoming.clear();
        self.streams.clear();
        self.arriving.clear();
    }
}

/// The stream with a number.
fn pipe_of<'a, E: BulkHandler>(
    streams: &BTreeMap<u64, StreamOwner>,
    outgoing: &'a mut BTreeMap<u16, Outgoing<E>>,
    incoming: &'a mut BTreeMap<u64, Incoming<E>>,
    key: u64,
) -> Option<&'a mut Pipe> {
    match *streams.get(&key)? {
        StreamOwner::Incoming => incoming.get_mut(&key).map(|one| &mut one.pipe),
        StreamOwner::Outgoing(peer) => match &mut outgoing.get_mut(&peer)?.way {
            PeerConnection::Up(pipe, _) => Some(pipe),
            _ => None,
        },
    }
}

/// The bytes of a visit are in its slot, or in the peer's: the answer to send.
fn arrived<E: BulkHandler>(
    own: &Slots,
    slot: u32,
    one: &mut Incoming<E>,
    order: u64,
    ends: &E,
) -> Message {
    const NONE: Message = Message::Done(Err(Errno::EIO));
    let Some(job) = one.first(order) else { return NONE };
    let range = job.range;
    match (core::mem::replace(&mut job.state, State::New), job.kind) {
        (State::Moving(Some(memory)), Kind::Store) => {
            let emptied = own.empty(slot, &memory, range.length);
            Message::Done(emptied.and_then(|()| ends.stored(&range, memory)))
        }
        (State::Moving(None), Kind::Fetch) => Message::Data(range.length),
        _ => NONE,
    }
}

fn dial_and_greet(
    settings: &net::Settings,
    peer: DaemonIndex,
    greeting: &Greeting,
) -> io::Result<Channel> {
    let no = |what| io::Error::new(io::ErrorKind::Unsupported, what);
    let mut stream = net::bulk::dial::dial(settings, peer, STREAM)?;
    stream.socket().set_nonblocking(false)?;
    let bytes = greeting.encode().ok_or_else(|| no("the provider's address is too long"))?;
    stream.write_all(&bytes)?;
    stream.flush()?;
    let mut answer = [0];
    match stream.read_exact(&mut answer) {
        Ok(()) if answer == [WELCOME] => {}
        Ok(()) => return Err(no("the peer speaks otherwise")),
        // The peer was authenticated, and closed the stream when it was greeted.
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            return Err(no("the peer has another provider"));
        }
        Err(error) => return Err(error),
    }
    stream.socket().set_nonblocking(true)?;
    Ok(stream)
}

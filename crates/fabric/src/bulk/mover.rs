//! The thread that owns the endpoint, the streams to all peers and from all peers, and the slots.

use super::ours::{Ours, WINDOW_SLOTS, Way};
use super::pipe::{Pipe, Stop};
use super::record::{FAILED, GREETING_BYTES, Greeting, RECORD_BYTES, Record, WELCOME};
use super::slots::Slots;
use super::theirs::{Origin, State, Theirs};
use crate::endpoint::{Endpoint, Peer, Reach, RemotePlace};
use crate::error::Result;
use crate::transfers::Completion;
use net::bulk::dial::READY;
use net::bulk::header::Word;
use net::bulk::queue::{Command, Queue};
use net::bulk::{Answer, Ends, Fabric, Kind, Transfer, Visit};
use net::handshake::Proven;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::fd::OwnedFd;
use std::collections::{BTreeMap, VecDeque};
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};
use wire::{DaemonIndex, Errno};

/// The number of our streams in the handshake; those of TCP lanes count from 1.
pub(crate) const STREAM: u8 = u8::MAX;
/// Slots for visits: what the windows of four peers hold.
const OWN_SLOTS: u32 = 64;
const WAKER: u64 = 0;
const DEVICE: u64 = 1;
const FIRST_STREAM: u64 = 2;
/// Looks in vain that only yield, before any sleep.
const LOOKS: u32 = 100;
/// What the dialler of a stream is told that nobody takes here.
pub(crate) const NOT_HERE: [u8; 1] = *b"N";
/// How long streams of a peer wait for what is under way of the one before; a cut network heals, or
/// the access ends, within this time or hardly at all.
const ADMIT_TIME: Duration = Duration::from_secs(15);
/// Pause before a peer is dialled again for transfers that are kept.
const DIAL_PAUSE: Duration = Duration::from_millis(50);
/// Sleeps where the provider's descriptor can not be relied on: with something under way, without.
const NAP: Duration = Duration::from_micros(100);
/// See `NAP`.
const NAP_IDLE: Duration = Duration::from_millis(10);
/// Longest sleep while nothing is under way: providers do some of their work only when asked.
const IDLE: Duration = Duration::from_millis(50);
/// The same while there is no stream.
const ALONE: Duration = Duration::from_secs(1);

/// Whose stream it is.
#[derive(Clone, Copy)]
enum Whose {
    Ours(u16),
    Theirs,
}

/// An access that is under way.
struct Op {
    stream: u64,
    from: u16,
    order: u64,
    slot: u32,
}

/// The state of the thread.
pub struct Mover<E: Ends> {
    settings: net::Settings,
    endpoint: Endpoint,
    /// The library gave up the endpoint: everything goes by TCP.
    broken: bool,
    queue: Arc<Queue<E>>,
    fallback: Arc<dyn Fabric<E>>,
    epoll: OwnedFd,
    own: Slots,
    /// Visits that wait for a slot: stream and order.
    starved: VecDeque<(u64, u64)>,
    ours: BTreeMap<u16, Ours<E>>,
    theirs: BTreeMap<u64, Theirs<E>>,
    streams: BTreeMap<u64, Whose>,
    /// They wait until nothing of the stream before is under way.
    arriving: BTreeMap<u16, (Proven, TcpStream, Instant)>,
    ops: BTreeMap<u64, Op>,
    /// Visits that the daemon was asked about: stream and order.
    visits: BTreeMap<u64, (u64, u64)>,
    /// Peers by their addresses, for good: the provider `tcp` of 2.1 crashes now and then when one
    /// is removed that it had a connection with. There is one for each start of a peer's daemon.
    peers: BTreeMap<Vec<u8>, Peer>,
    next: u64,
    looks: u32,
}

impl<E: Ends + 'static> Mover<E> {
    pub(crate) fn new(
        settings: net::Settings,
        mut endpoint: Endpoint,
        fallback: Arc<dyn Fabric<E>>,
    ) -> Result<(Arc<Queue<E>>, Mover<E>)> {
        let lost = |error: rustix::io::Errno| crate::Error::Absent(format!("no poller: {error}"));
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(lost)?;
        let queue = Queue::new(&epoll, WAKER).map_err(lost)?;
        if let Some(device) = endpoint.descriptor() {
            // Of some providers it stays readable with nothing to look for.
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
            ours: BTreeMap::new(),
            theirs: BTreeMap::new(),
            streams: BTreeMap::new(),
            arriving: BTreeMap::new(),
            ops: BTreeMap::new(),
            visits: BTreeMap::new(),
            peers: BTreeMap::new(),
            next: FIRST_STREAM,
            looks: 0,
        };
        Ok((queue, mover))
    }

    /// Runs until the doors are stopped.
    ///
    /// # Errors
    /// What the operating system says of the poller itself.
    pub fn run(mut self, ends: &E) -> io::Result<()> {
        let mut events = Vec::with_capacity(64);
        while !self.queue.is_stopping() {
            self.turn_away();
            let had = self.take_commands(ends) | self.take_completions(ends);
            let timeout = if had { Duration::ZERO } else { self.sleep_time() };
            let timeout = rustix::event::Timespec::try_from(timeout).ok();
            events.clear();
            let room = rustix::buffer::spare_capacity(&mut events);
            match epoll::wait(&self.epoll, room, timeout.as_ref()) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            self.queue.awake();
            if had || events.iter().any(|event| event.data.u64() != DEVICE) {
                self.looks = 0;
            } else {
                self.looks = self.looks.saturating_add(1);
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
        for one in self.ours.values_mut() {
            one.end(&mut self.endpoint, ends);
        }
        Ok(())
    }

    /// How long nothing needs to be looked for; no time at all if a command came meanwhile.
    fn sleep_time(&mut self) -> Duration {
        let idle = self.ops.is_empty() && self.ours.values().all(Ours::is_idle);
        if !idle && self.looks < LOOKS {
            return Duration::ZERO;
        }
        let time = match self.endpoint.rest() {
            // It would not be told of something new: looks in between.
            Duration::ZERO if self.looks < LOOKS => return Duration::ZERO,
            Duration::ZERO if idle => NAP_IDLE,
            Duration::ZERO => NAP,
            _ if idle && self.streams.is_empty() && self.arriving.is_empty() => ALONE,
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
                Command::Answer(visit, word) => self.told(visit, word, ends),
                Command::Accepted(from, socket) => self.accepted(from, socket, ends),
                Command::Dialled(peer, outcome) => self.dialled(peer, outcome, ends),
            }
        }
        any
    }

    // ---- transfers that we start ----

    fn start(&mut self, transfer: Transfer<E::Memory, E::Token>, ends: &E) {
        let peer = transfer.peer;
        let one = self.ours.entry(peer.0).or_insert_with(Ours::new);
        if self.broken || one.is_plain() {
            return self.fallback.start(transfer);
        }
        one.waiting.push_back(transfer);
        match one.way {
            Way::None => self.dial(peer, Duration::ZERO),
            Way::Up(_, key) => self.send(peer.0, key, ends),
            Way::Dialling | Way::Plain => {}
        }
    }

    fn send(&mut self, peer: u16, key: u64, ends: &E) {
        let Some(one) = self.ours.get_mut(&peer) else { return };
        match one.send(ends) {
            Ok(()) => self.poll_for(key),
            Err(stop) => self.close(key, &stop, ends),
        }
    }

    /// A thread makes the stream: connecting, proving and greeting wait for the peer.
    fn dial(&mut self, peer: DaemonIndex, pause: Duration) {
        let Some(one) = self.ours.get_mut(&peer.0) else { return };
        let window = match one.old_window.take() {
            Some(memory) => Slots::over(&mut self.endpoint, memory, Reach::ReadWrite),
            None => Slots::new(&mut self.endpoint, WINDOW_SLOTS, Reach::ReadWrite),
        };
        let window = match window {
            Ok(window) => window,
            Err(error) => {
                tracing::warn!(peer = peer.0, %error, "no memory for a window: TCP");
                return one.make_plain(&mut self.endpoint, &*self.fallback);
            }
        };
        let greeting = Greeting {
            provider: self.endpoint.offer().provider.clone(),
            address: self.endpoint.address().to_vec(),
            window: window.grant(),
        };
        one.window = Some(window);
        one.way = Way::Dialling;
        let settings = self.settings.clone();
        self.queue.dial(peer, pause, move || dial_and_greet(&settings, peer, &greeting));
    }

    fn dialled(&mut self, peer: DaemonIndex, outcome: io::Result<TcpStream>, ends: &E) {
        let Some(one) = self.ours.get_mut(&peer.0) else { return };
        if !matches!(one.way, Way::Dialling) {
            return;
        }
        let (told, why) =
            (core::mem::replace(&mut one.told, outcome.is_err()), outcome.as_ref().err());
        if let Some(error) = why.filter(|_| !told) {
            tracing::warn!(peer = peer.0, %error, "no way to peer by libfabric");
        }
        match outcome {
            Ok(socket) => {
                let (pipe, key) = (Pipe::new(socket), self.next);
                self.next += 1;
                self.add(&pipe, key, Whose::Ours(peer.0));
                if let Some(one) = self.ours.get_mut(&peer.0) {
                    one.way = Way::Up(pipe, key);
                }
                self.send(peer.0, key, ends);
            }
            Err(error) if error.kind() == io::ErrorKind::Unsupported => {
                one.make_plain(&mut self.endpoint, &*self.fallback);
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

    fn accepted(&mut self, from: Proven, socket: TcpStream, ends: &E) {
        let older = |(_, one): &(&u64, &Theirs<E>)| one.from.daemon == from.daemon;
        let older = self.theirs.iter().find(older).map(|(&key, _)| key);
        if let Some(older) = older {
            self.close(older, &Stop::Odd("replaced by a newer stream"), ends);
        }
        let since = self.arriving.get(&from.daemon.0).map_or_else(Instant::now, |one| one.2);
        self.arriving.insert(from.daemon.0, (from, socket, since));
        self.admit(from.daemon.0);
    }

    /// Takes a stream that arrived, if nothing of the one before is under way.
    fn admit(&mut self, from: u16) {
        if self.broken || self.ops.values().any(|op| op.from == from) {
            return;
        }
        let Some((from, socket, _)) = self.arriving.remove(&from) else { return };
        if socket.set_nonblocking(true).is_err() || !matches!((&socket).write(&READY), Ok(1)) {
            return;
        }
        let key = self.next;
        self.next += 1;
        let one = Theirs::new(from, Pipe::new(socket));
        self.add(&one.pipe, key, Whose::Theirs);
        self.theirs.insert(key, one);
    }

    /// Who waits long goes by TCP: an access that hangs must not keep a peer away.
    fn turn_away(&mut self) {
        self.arriving.retain(|_, (_, socket, since)| {
            let waits = since.elapsed() < ADMIT_TIME;
            if !waits {
                let _ = (&*socket).write(&NOT_HERE);
            }
            waits
        });
    }

    fn read_theirs(&mut self, key: u64, ends: &E) -> core::result::Result<(), Stop> {
        let Some(one) = self.theirs.get_mut(&key) else { return Ok(()) };
        one.pipe.fill()?;
        if one.origin.is_none() {
            let Some(bytes) = one.pipe.take::<GREETING_BYTES>() else { return Ok(()) };
            let greeting = Greeting::decode(&bytes)?;
            if greeting.provider != self.endpoint.offer().provider {
                return Err(Stop::Odd("the peer has another provider"));
            }
            let peer = self.peer(&greeting.address).ok_or(Stop::Odd("no address of a peer"))?;
            let Some(one) = self.theirs.get_mut(&key) else { return Ok(()) };
            one.origin = Some(Origin { peer, window: greeting.window });
            one.pipe.push(&[WELCOME]);
        }
        while let Some(one) = self.theirs.get_mut(&key)
            && let Some(bytes) = one.pipe.take::<RECORD_BYTES>()
        {
            let record = Record::decode(&bytes)?;
            let (order, is_first) = one.take(&record, WINDOW_SLOTS as usize)?;
            if is_first {
                self.begin(key, order, ends);
            }
        }
        match self.theirs.get_mut(&key) {
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

    /// Begins with the first visit of an order, and goes on while visits end at once.
    fn begin(&mut self, key: u64, order: u64, ends: &E) {
        loop {
            let Some(one) = self.theirs.get_mut(&key) else { return };
            let from = one.from.daemon;
            let failed = one.failed;
            let Some(job) = one.first(order) else { return };
            if failed {
                one.end(order, Word::Done(Err(Errno::EIO)), FAILED);
                continue;
            }
            let (kind, range) = (job.kind, job.range);
            job.state = State::Asked;
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

    fn told(&mut self, visit: u64, word: E::Word, ends: &E) {
        let Some((key, order)) = self.visits.remove(&visit) else { return };
        let Some(job) = self.theirs.get_mut(&key).and_then(|one| one.first(order)) else { return };
        let answer = ends.told(job.kind, &job.range, word);
        if self.answered(key, order, answer) {
            self.begin(key, order, ends);
        }
        self.flush(key, ends);
    }

    /// True if the visit has ended and another is to be begun.
    fn answered(&mut self, key: u64, order: u64, answer: Answer<E::Memory>) -> bool {
        let Some(one) = self.theirs.get_mut(&key) else { return false };
        let Some(job) = one.first(order) else { return false };
        let word = match (answer, job.kind) {
            (Answer::Memory(memory), _) => {
                job.state = State::Starved(memory);
                return self.set_out(key, order);
            }
            (Answer::Hole, Kind::Fetch) => Word::Data(0),
            (Answer::Hole, Kind::Store) => Word::Done(Err(Errno::EIO)),
            (Answer::Refused(errno), _) => Word::Done(Err(errno)),
            (Answer::Busy(micros), _) => Word::Busy(micros),
        };
        one.end(order, word, 0)
    }

    /// Begins the access of a visit that has memory, or puts it with those that wait for a slot.
    /// True as for `answered`.
    fn set_out(&mut self, key: u64, order: u64) -> bool {
        let Some(one) = self.theirs.get_mut(&key) else { return false };
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
        let (word, place) = match begun {
            Ok(Ok(())) => {
                self.next += 1;
                self.ops.insert(token, Op { stream: key, from, order, slot });
                return false;
            }
            Ok(Err(_)) => {
                one.failed = true;
                (Word::Done(Err(Errno::EIO)), FAILED)
            }
            Err(errno) => (Word::Done(Err(errno)), 0),
        };
        self.own.give_back(slot);
        one.end(order, word, place)
    }

    /// Takes the ends of accesses. True if there were any.
    fn take_completions(&mut self, ends: &E) -> bool {
        let mut any = false;
        while !self.broken {
            match self.endpoint.look() {
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
        let more = match self.theirs.get_mut(&op.stream) {
            Some(one) => {
                let (word, place) = match &completion.outcome {
                    Ok(()) => (arrived(&self.own, op.slot, one, op.order, ends), 0),
                    Err(error) => {
                        tracing::warn!(peer = op.from, %error, "can not access memory of peer");
                        one.failed = true;
                        (Word::Done(Err(Errno::EIO)), FAILED)
                    }
                };
                one.end(op.order, word, place)
            }
            None => false,
        };
        self.own.give_back(op.slot);
        if more {
            self.begin(op.stream, op.order, ends);
        }
        self.flush(op.stream, ends);
        if let Some((key, order)) = self.starved.pop_front() {
            if self.set_out(key, order) {
                self.begin(key, order, ends);
            }
            self.flush(key, ends);
        }
        self.admit(op.from);
    }

    // ---- streams ----

    fn add(&mut self, pipe: &Pipe, key: u64, whose: Whose) {
        let data = EventData::new_u64(key);
        let _ = epoll::add(&self.epoll, &pipe.socket, data, pipe.polled);
        self.streams.insert(key, whose);
    }

    fn go_on(&mut self, key: u64, ends: &E) {
        let outcome = match self.streams.get(&key) {
            None => return,
            Some(Whose::Theirs) => self.read_theirs(key, ends),
            Some(&Whose::Ours(peer)) => self.read_ours(peer, ends),
        };
        match outcome {
            Ok(()) => self.flush(key, ends),
            Err(stop) => self.close(key, &stop, ends),
        }
    }

    fn read_ours(&mut self, peer: u16, ends: &E) -> core::result::Result<(), Stop> {
        let Some(one) = self.ours.get_mut(&peer) else { return Ok(()) };
        one.read(ends)?;
        if one.avoid && one.is_idle() {
            if !core::mem::replace(&mut one.told, true) {
                tracing::warn!(peer, "peer does not reach our memory: bytes go by TCP");
            }
            if let Way::Up(_, key) = one.way {
                self.streams.remove(&key);
            }
            one.make_plain(&mut self.endpoint, &*self.fallback);
        }
        Ok(())
    }

    fn flush(&mut self, key: u64, ends: &E) {
        let Some(pipe) = pipe_of(&self.streams, &mut self.ours, &mut self.theirs, key) else {
            return;
        };
        match pipe.flush() {
            Ok(()) => self.poll_for(key),
            Err(stop) => self.close(key, &stop, ends),
        }
    }

    fn poll_for(&mut self, key: u64) {
        let Some(pipe) = pipe_of(&self.streams, &mut self.ours, &mut self.theirs, key) else {
            return;
        };
        let wanted = pipe.wants();
        if wanted != pipe.polled {
            pipe.polled = wanted;
            let data = EventData::new_u64(key);
            let _ = epoll::modify(&self.epoll, &pipe.socket, data, wanted);
        }
    }

    fn close(&mut self, key: u64, why: &Stop, ends: &E) {
        match self.streams.remove(&key) {
            Some(Whose::Ours(peer)) => {
                tracing::warn!(peer, %why, "way to peer by libfabric lost");
                let Some(one) = self.ours.get_mut(&peer) else { return };
                one.lose(&mut self.endpoint, ends);
                if !one.waiting.is_empty() {
                    self.dial(DaemonIndex(peer), Duration::ZERO);
                }
            }
            Some(Whose::Theirs) => {
                let Some(one) = self.theirs.remove(&key) else { return };
                tracing::debug!(peer = one.from.daemon.0, %why, "way from peer by libfabric ended");
                self.visits.retain(|_, (stream, _)| *stream != key);
            }
            None => {}
        }
    }

    fn break_down(&mut self, ends: &E) {
        self.broken = true;
        // What was to be sent again is lost, too: on another way it could overtake itself.
        for one in self.ours.values_mut() {
            one.end(&mut self.endpoint, ends);
        }
        self.theirs.clear();
        self.streams.clear();
        self.arriving.clear();
    }
}

/// The stream of a number.
fn pipe_of<'a, E: Ends>(
    streams: &BTreeMap<u64, Whose>,
    ours: &'a mut BTreeMap<u16, Ours<E>>,
    theirs: &'a mut BTreeMap<u64, Theirs<E>>,
    key: u64,
) -> Option<&'a mut Pipe> {
    match *streams.get(&key)? {
        Whose::Theirs => theirs.get_mut(&key).map(|one| &mut one.pipe),
        Whose::Ours(peer) => match &mut ours.get_mut(&peer)?.way {
            Way::Up(pipe, _) => Some(pipe),
            _ => None,
        },
    }
}

/// The bytes of a visit are in its slot, or in the peer's: what is answered.
fn arrived<E: Ends>(own: &Slots, slot: u32, one: &mut Theirs<E>, order: u64, ends: &E) -> Word {
    const NONE: Word = Word::Done(Err(Errno::EIO));
    let Some(job) = one.first(order) else { return NONE };
    let range = job.range;
    match (core::mem::replace(&mut job.state, State::New), job.kind) {
        (State::Moving(Some(memory)), Kind::Store) => {
            let emptied = own.empty(slot, &memory, range.length);
            Word::Done(emptied.and_then(|()| ends.stored(&range, memory)))
        }
        (State::Moving(None), Kind::Fetch) => Word::Data(range.length),
        _ => NONE,
    }
}

fn dial_and_greet(
    settings: &net::Settings,
    peer: DaemonIndex,
    greeting: &Greeting,
) -> io::Result<TcpStream> {
    let no = |what| io::Error::new(io::ErrorKind::Unsupported, what);
    let mut stream = net::bulk::dial::dial(settings, peer, STREAM)?;
    stream.set_nonblocking(false)?;
    let bytes = greeting.encode().ok_or_else(|| no("the provider's address is too long"))?;
    stream.write_all(&bytes)?;
    let mut answer = [0];
    match stream.read_exact(&mut answer) {
        Ok(()) if answer == [WELCOME] => {}
        Ok(()) => return Err(no("the peer speaks otherwise")),
        // It was there and proved itself, and closed when it was greeted.
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            return Err(no("the peer has another provider"));
        }
        Err(error) => return Err(error),
    }
    stream.set_nonblocking(true)?;
    Ok(stream)
}

//! A lane: one thread with at most one stream to each peer and one from each; and `Tcp`, the door
//! to all lanes. Their number is fixed, whatever the number of peers.

use super::ours::{Ours, keep};
use super::queue::{Command, Queue};
use super::theirs::Theirs;
use super::{Ends, Fabric, Outcome, Stop, Transfer, Visit, dial};
use crate::handshake::Proven;
use crate::transport::{Settings, keep_alive, set_options};
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};
use wire::DaemonIndex;
use wire::hash::mix;

/// Transfers of the same so many bytes of a file share a stream and keep their order: 1 MiB.
const ORDER_LOG2: u32 = 20;
/// Pause before a peer is dialled again for transfers that are kept.
const DIAL_PAUSE: Duration = Duration::from_millis(50);
/// How long the thread looks for more before it sleeps: a wake-up costs about as much.
const LOOK_TIME: Duration = Duration::from_micros(50);
const WAKER: u64 = 0;
const FIRST_STREAM: u64 = 1;

/// The door to all lanes of this daemon.
pub struct Tcp<E: Ends> {
    lanes: Vec<Arc<Queue<E>>>,
}

impl<E: Ends> Tcp<E> {
    /// The door, and the lanes, each to be run on a thread of its own.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn new(count: usize, settings: &Settings) -> io::Result<(Tcp<E>, Vec<Lane<E>>)> {
        let lanes: io::Result<Vec<Lane<E>>> =
            (0..count.max(1)).map(|number| Lane::new(number, settings.clone())).collect();
        let lanes = lanes?;
        let doors = lanes.iter().map(|lane| Arc::clone(&lane.queue)).collect();
        Ok((Tcp { lanes: doors }, lanes))
    }

    /// Takes a stream that a peer dialled.
    pub fn accepted(&self, from: Proven, stream: TcpStream) {
        let place = usize::from(from.stream).checked_rem(self.lanes.len()).unwrap_or(0);
        if let Some(lane) = self.lanes.get(place) {
            lane.push(Command::Accepted(from, stream));
        }
    }

    /// Ends `Lane::run` of all lanes. What is under way then is lost.
    pub fn stop(&self) {
        for lane in &self.lanes {
            lane.stop();
        }
    }
}

impl<E: Ends> Fabric<E> for Tcp<E> {
    fn start(&self, transfer: Transfer<E::Memory, E::Token>) {
        let range = &transfer.range;
        let place = mix(range.inode.0, range.offset >> ORDER_LOG2) as usize % self.lanes.len();
        if let Some(lane) = self.lanes.get(place) {
            lane.push(Command::Start(transfer));
        }
    }

    fn answer(&self, visit: Visit, word: E::Word) {
        if let Some(lane) = self.lanes.get(visit.lane) {
            lane.push(Command::Answer(visit.stream, word));
        }
    }
}

/// Our stream to a peer: there, or on its way.
struct Peer<E: Ends> {
    stream: Option<u64>,
    waiting: Vec<Transfer<E::Memory, E::Token>>,
    /// One line of log for each trouble.
    told: bool,
}

enum Stream<E: Ends> {
    Ours(Ours<E>),
    Theirs(Theirs<E>),
}

impl<E: Ends> Stream<E> {
    fn socket(&self) -> BorrowedFd<'_> {
        match self {
            Stream::Ours(one) => one.socket.as_fd(),
            Stream::Theirs(one) => one.socket.as_fd(),
        }
    }

    /// Moves what can be moved.
    fn go_on(&mut self, ends: &E) -> Result<(), Stop> {
        let (read, written) = match self {
            Stream::Ours(one) => (one.read(ends), one.write()),
            Stream::Theirs(one) => (one.read(ends), one.write()),
        };
        match (read, written) {
            (Ok(()) | Err(Stop::Blocked), Ok(()) | Err(Stop::Blocked)) => Ok(()),
            (Err(stop), Ok(()) | Err(Stop::Blocked)) | (_, Err(stop)) => Err(stop),
        }
    }

    /// What it waits for.
    fn wants(&self) -> EventFlags {
        let (more, unsent) = match self {
            Stream::Ours(one) => (true, one.has_unsent()),
            Stream::Theirs(one) => (one.wants_more(), one.has_unsent()),
        };
        let mut flags = EventFlags::empty();
        if more {
            flags |= EventFlags::IN | EventFlags::RDHUP;
        }
        if unsent {
            flags |= EventFlags::OUT;
        }
        flags
    }
}

/// The state of one thread.
pub struct Lane<E: Ends> {
    number: usize,
    settings: Settings,
    queue: Arc<Queue<E>>,
    epoll: OwnedFd,
    streams: BTreeMap<u64, (Stream<E>, EventFlags)>,
    next_stream: u64,
    peers: BTreeMap<u16, Peer<E>>,
}

impl<E: Ends + 'static> Lane<E> {
    /// Runs until `Tcp::stop`.
    ///
    /// # Errors
    /// What the operating system says of the poller itself.
    pub fn run(mut self, ends: &E) -> io::Result<()> {
        let mut events = Vec::with_capacity(64);
        let mut look_until = Instant::now();
        while !self.queue.is_stopping() {
            self.take_commands(ends);
            events.clear();
            let room = rustix::buffer::spare_capacity(&mut events);
            let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
            let looks = Instant::now() < look_until;
            let timeout = if !looks && self.queue.may_sleep() { None } else { Some(&now) };
            match epoll::wait(&self.epoll, room, timeout) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            self.queue.awake();
            if events.is_empty() {
                std::thread::yield_now();
            } else {
                look_until = Instant::now() + LOOK_TIME;
            }
            for event in &events {
                match event.data.u64() {
                    WAKER => self.queue.clear_waker(),
                    key => self.go_on(key, ends),
                }
            }
        }
        self.end(ends);
        Ok(())
    }

    fn take_commands(&mut self, ends: &E) {
        let mut touched = Vec::new();
        for command in self.queue.take() {
            match command {
                Command::Start(transfer) => touched.extend(self.start(transfer)),
                Command::Answer(key, word) => self.told(key, ends, word),
                Command::Accepted(from, socket) => self.accepted(from, socket),
                Command::Dialled(peer, outcome) => {
                    touched.extend(self.dialled(peer, outcome, ends))
                }
            }
        }
        touched.dedup();
        for key in touched {
            self.go_on(key, ends);
        }
    }

    /// The stream that has something to send now, if it is there.
    fn start(&mut self, transfer: Transfer<E::Memory, E::Token>) -> Option<u64> {
        let peer = transfer.peer;
        let none = || Peer { stream: None, waiting: Vec::new(), told: false };
        let one = self.peers.entry(peer.0).or_insert_with(none);
        let Some(key) = one.stream else {
            let is_first = one.waiting.is_empty();
            one.waiting.push(transfer);
            if is_first {
                self.dial(peer, Duration::ZERO);
            }
            return None;
        };
        if let Some((Stream::Ours(stream), _)) = self.streams.get_mut(&key) {
            stream.push(transfer);
        }
        Some(key)
    }

    fn dial(&self, peer: DaemonIndex, pause: Duration) {
        let settings = self.settings.clone();
        // They count from 1; `Tcp::accepted` spreads them.
        let number = u8::try_from(self.number + 1).unwrap_or(u8::MAX);
        self.queue.dial(peer, pause, move || dial::dial(&settings, peer, number));
    }

    fn dialled(
        &mut self,
        peer: DaemonIndex,
        outcome: io::Result<TcpStream>,
        ends: &E,
    ) -> Option<u64> {
        let one = self.peers.get_mut(&peer.0)?;
        let waiting = core::mem::take(&mut one.waiting);
        match outcome {
            Ok(socket) => {
                one.told = false;
                let mut stream = Ours::new(socket, peer);
                waiting.into_iter().for_each(|transfer| stream.push(transfer));
                let key = self.add(Stream::Ours(stream));
                if let Some(one) = self.peers.get_mut(&peer.0) {
                    one.stream = Some(key);
                }
                Some(key)
            }
            Err(error) => {
                if !one.told {
                    one.told = true;
                    tracing::warn!(peer = peer.0, %error, "no bulk stream to peer");
                }
                one.waiting = keep(waiting.into_iter(), ends, Instant::now());
                if !one.waiting.is_empty() {
                    self.dial(peer, DIAL_PAUSE);
                }
                None
            }
        }
    }

    fn accepted(&mut self, from: Proven, socket: TcpStream) {
        // What is still on its way in the one before was sent again, or given up.
        let older = self.streams.iter().find_map(|(&key, (stream, _))| match stream {
            Stream::Theirs(one) if one.from == from.daemon && one.number == from.stream => {
                Some(key)
            }
            _ => None,
        });
        if let Some(key) = older {
            self.streams.remove(&key);
        }
        if socket.set_nonblocking(true).is_err() {
            return;
        }
        set_options(&socket);
        keep_alive(&socket);
        let ready = (&socket).write(&dial::READY);
        if !matches!(ready, Ok(1)) {
            return;
        }
        let visit = Visit { lane: self.number, stream: self.next_stream };
        self.add(Stream::Theirs(Theirs::new(socket, from.daemon, from.stream, visit)));
    }

    fn add(&mut self, stream: Stream<E>) -> u64 {
        let key = self.next_stream;
        self.next_stream += 1;
        let flags = stream.wants();
        let _ = epoll::add(&self.epoll, stream.socket(), EventData::new_u64(key), flags);
        self.streams.insert(key, (stream, flags));
        key
    }

    fn told(&mut self, key: u64, ends: &E, word: E::Word) {
        // The stream may be closed by now, and its number is never another's.
        let Some((Stream::Theirs(stream), _)) = self.streams.get_mut(&key) else { return };
        match stream.told(ends, word) {
            Ok(()) => self.go_on(key, ends),
            Err(stop) => self.close(key, &stop, ends),
        }
    }

    fn go_on(&mut self, key: u64, ends: &E) {
        let Some((stream, flags)) = self.streams.get_mut(&key) else { return };
        if let Err(stop) = stream.go_on(ends) {
            return self.close(key, &stop, ends);
        }
        let wanted = stream.wants();
        if wanted != *flags {
            *flags = wanted;
            let _ = epoll::modify(&self.epoll, stream.socket(), EventData::new_u64(key), wanted);
        }
    }

    fn close(&mut self, key: u64, why: &Stop, ends: &E) {
        match self.streams.remove(&key) {
            Some((Stream::Ours(stream), _)) => {
                tracing::warn!(peer = stream.peer.0, %why, "bulk stream lost");
                let peer = stream.peer;
                let kept = stream.lose(ends, Instant::now());
                if let Some(one) = self.peers.get_mut(&peer.0) {
                    one.stream = None;
                    one.waiting = kept;
                    if !one.waiting.is_empty() {
                        self.dial(peer, Duration::ZERO);
                    }
                }
            }
            Some((Stream::Theirs(stream), _)) => {
                tracing::debug!(peer = stream.from.0, %why, "bulk stream of a peer ended");
            }
            None => {}
        }
    }

    fn end(&mut self, ends: &E) {
        self.take_commands(ends);
        let waiting = self.peers.values_mut().flat_map(|peer| peer.waiting.drain(..));
        let mut kept: Vec<_> = waiting.collect();
        for (stream, _) in core::mem::take(&mut self.streams).into_values() {
            if let Stream::Ours(stream) = stream {
                kept.extend(stream.lose(ends, Instant::now()));
            }
        }
        for transfer in kept {
            ends.ended(transfer.token, transfer.memory, Outcome::Lost);
        }
    }
}

impl<E: Ends> Lane<E> {
    fn new(number: usize, settings: Settings) -> io::Result<Lane<E>> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let queue = Queue::new(&epoll, WAKER)?;
        let (streams, peers) = (BTreeMap::new(), BTreeMap::new());
        let next_stream = FIRST_STREAM;
        Ok(Lane { number, settings, queue, epoll, streams, next_stream, peers })
    }
}

//! A lane: one thread with at most one stream to each peer and one from each; and `Tcp`, the
//! interface of other threads to all lanes. The number of lanes is fixed, whatever the number of
//! peers.

use super::incoming::IncomingStream;
use super::outgoing::{OutgoingStream, retain_retryable};
use super::queue::{Command, CommandQueue};
use super::{BulkHandler, Fabric, Outcome, Stop, Transfer, Visit, dial};
use crate::channel::Channel;
use crate::handshake::PeerIdentity;
use crate::incomplete::WHOLE_TIME;
use crate::log_limit::LineLimit;
use crate::settings::Settings;
use crate::socket::{keep_alive, set_options};
use crate::transport::timespec;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use wire::DaemonIndex;
use wire::hash::mix;

/// log2 of the range of a file whose transfers share a stream and keep their order: 1 MiB.
const ORDER_LOG2: u32 = 20;
/// Pause before a peer is dialled again for transfers that are to be retried.
const DIAL_PAUSE: Duration = Duration::from_millis(50);
/// How long the thread polls before it sleeps: a wake-up costs about as much.
const SPIN_TIME: Duration = Duration::from_micros(50);
const WAKER: u64 = 0;
const FIRST_STREAM: u64 = 1;

/// Interface of other threads to all lanes of this daemon.
pub struct Tcp<E: BulkHandler> {
    lanes: Vec<Arc<CommandQueue<E>>>,
}

impl<E: BulkHandler> Tcp<E> {
    /// Creates the interface and the lanes, each of which must be run on a thread of its own.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub fn new(count: usize, settings: &Settings) -> io::Result<(Tcp<E>, Vec<Lane<E>>)> {
        let lanes: io::Result<Vec<Lane<E>>> =
            (0..count.max(1)).map(|number| Lane::new(number, settings.clone())).collect();
        let lanes = lanes?;
        let doors = lanes.iter().map(|lane| Arc::clone(&lane.queue)).collect();
        Ok((Tcp { lanes: doors }, lanes))
    }

    /// Hands over a stream that a peer dialled.
    pub fn accepted(&self, from: PeerIdentity, stream: Channel) {
        let place = usize::from(from.stream).checked_rem(self.lanes.len()).unwrap_or(0);
        if let Some(lane) = self.lanes.get(place) {
            lane.push(Command::Accepted(from, stream));
        }
    }

    /// Ends `Lane::run` of all lanes. Transfers in flight are lost.
    pub fn stop(&self) {
        for lane in &self.lanes {
            lane.stop();
        }
    }
}

impl<E: BulkHandler> Fabric<E> for Tcp<E> {
    fn start(&self, transfer: Transfer<E::Memory, E::Token>) {
        let range = &transfer.range;
        let place = mix(range.inode.0, range.offset >> ORDER_LOG2) as usize % self.lanes.len();
        if let Some(lane) = self.lanes.get(place) {
            lane.push(Command::Start(transfer));
        }
    }

    fn answer(&self, visit: Visit, decision: E::Decision) {
        if let Some(lane) = self.lanes.get(visit.lane) {
            lane.push(Command::Answer(visit.stream, decision));
        }
    }
}

/// The outgoing stream to a peer, open or being dialled.
struct Peer<E: BulkHandler> {
    stream: Option<u64>,
    pending: Vec<Transfer<E::Memory, E::Token>>,
    /// A failure to connect has been logged; further ones are not.
    is_logged: bool,
}

enum Stream<E: BulkHandler> {
    Outgoing(OutgoingStream<E>),
    Incoming(IncomingStream<E>),
}

impl<E: BulkHandler> Stream<E> {
    fn socket(&self) -> BorrowedFd<'_> {
        match self {
            Stream::Outgoing(one) => one.socket.as_fd(),
            Stream::Incoming(one) => one.socket.as_fd(),
        }
    }

    /// Reads and writes until the socket would block.
    fn go_on(&mut self, handler: &E) -> Result<(), Stop> {
        let (read, written) = match self {
            Stream::Outgoing(one) => (one.read(handler), one.write()),
            Stream::Incoming(one) => (one.read(handler), one.write()),
        };
        match (read, written) {
            (Ok(()) | Err(Stop::Blocked), Ok(()) | Err(Stop::Blocked)) => Ok(()),
            (Err(stop), Ok(()) | Err(Stop::Blocked)) | (_, Err(stop)) => Err(stop),
        }
    }

    fn channel(&mut self) -> &mut Channel {
        match self {
            Stream::Outgoing(one) => &mut one.socket,
            Stream::Incoming(one) => &mut one.socket,
        }
    }

    /// True if the stream can go on with bytes that have left the socket already.
    fn can_go_on(&mut self) -> bool {
        self.wants().contains(EventFlags::IN) && self.channel().has_verified()
    }

    /// Socket events that the stream waits for.
    fn wants(&self) -> EventFlags {
        let (more, unsent) = match self {
            Stream::Outgoing(one) => (true, one.has_unsent()),
            Stream::Incoming(one) => (one.wants_more(), one.has_unsent()),
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

/// State of one thread.
pub struct Lane<E: BulkHandler> {
    number: usize,
    settings: Settings,
    queue: Arc<CommandQueue<E>>,
    epoll: OwnedFd,
    streams: BTreeMap<u64, (Stream<E>, EventFlags)>,
    next_stream: u64,
    peers: BTreeMap<u16, Peer<E>>,
    /// Streams that can go on although the poller does not say so.
    again: Vec<u64>,
    /// Streams that were used since the thread last slept.
    used: BTreeSet<u64>,
    tampered_lines: LineLimit,
    /// No record of a stream is late before; `None`: none is incomplete.
    late_at: Option<Instant>,
}

impl<E: BulkHandler + 'static> Lane<E> {
    /// Runs until `Tcp::stop`.
    ///
    /// # Errors
    /// Errors of the poller itself.
    pub fn run(mut self, handler: &E) -> io::Result<()> {
        let mut events = Vec::with_capacity(64);
        let mut spin_until = Instant::now();
        while !self.queue.is_stopping() {
            self.take_commands(handler);
            events.clear();
            let space = rustix::buffer::spare_capacity(&mut events);
            let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
            let spins = Instant::now() < spin_until || !self.again.is_empty();
            let timeout = if !spins && self.queue.may_sleep() {
                self.release_buffers();
                self.late_at.map(|at| timespec(at.saturating_duration_since(Instant::now())))
            } else {
                Some(now)
            };
            match epoll::wait(&self.epoll, space, timeout.as_ref()) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            self.queue.awake();
            if events.is_empty() {
                std::thread::yield_now();
            } else {
                spin_until = Instant::now() + SPIN_TIME;
            }
            for event in &events {
                match event.data.u64() {
                    WAKER => self.queue.clear_waker(),
                    key => self.go_on(key, handler),
                }
            }
            for key in core::mem::take(&mut self.again) {
                self.go_on(key, handler);
            }
            self.close_late(handler);
        }
        self.end(handler);
        Ok(())
    }

    /// Closes streams of which a record does not arrive whole.
    fn close_late(&mut self, handler: &E) {
        let Some(at) = self.late_at else { return };
        let now = Instant::now();
        if now < at {
            return;
        }
        let is_late = |(key, (stream, _)): (&u64, &mut (Stream<E>, EventFlags))| {
            let wants_more = stream.wants().contains(EventFlags::IN);
            (wants_more && stream.channel().incomplete().is_late(now)).then_some(*key)
        };
        let late: Vec<u64> = self.streams.iter_mut().filter_map(is_late).collect();
        for key in late {
            self.settings.counters.incomplete.fetch_add(1, Ordering::Relaxed);
            self.close(key, &Stop::Incomplete, handler);
        }
        let deadlines = self.streams.values_mut().filter_map(|(stream, _)| {
            let deadline = stream.channel().incomplete().deadline()?;
            // One that does not read for now is looked at again.
            Some(deadline.max(now + WHOLE_TIME / 8))
        });
        self.late_at = deadlines.min();
    }

    fn take_commands(&mut self, handler: &E) {
        let mut touched = Vec::new();
        for command in self.queue.take() {
            match command {
                Command::Start(transfer) => touched.extend(self.start(transfer)),
                Command::Answer(key, decision) => self.decided(key, handler, decision),
                Command::Accepted(from, socket) => self.accepted(from, socket),
                Command::Dialled(peer, outcome) => {
                    touched.extend(self.dialled(peer, outcome, handler))
                }
            }
        }
        touched.dedup();
        for key in touched {
            self.go_on(key, handler);
        }
    }

    /// Queues a transfer. Returns the stream that now has something to send, if it is open.
    fn start(&mut self, transfer: Transfer<E::Memory, E::Token>) -> Option<u64> {
        let peer = transfer.peer;
        let none = || Peer { stream: None, pending: Vec::new(), is_logged: false };
        let one = self.peers.entry(peer.0).or_insert_with(none);
        let Some(key) = one.stream else {
            let is_first = one.pending.is_empty();
            one.pending.push(transfer);
            if is_first {
                self.dial(peer, Duration::ZERO);
            }
            return None;
        };
        if let Some((Stream::Outgoing(stream), _)) = self.streams.get_mut(&key) {
            stream.push(transfer);
        }
        Some(key)
    }

    fn dial(&self, peer: DaemonIndex, pause: Duration) {
        let settings = self.settings.clone();
        // Streams are numbered from 1; `Tcp::accepted` distributes them over the peer's lanes.
        let number = u8::try_from(self.number + 1).unwrap_or(u8::MAX);
        self.queue.dial(peer, pause, move || dial::dial(&settings, peer, number));
    }

    fn dialled(
        &mut self,
        peer: DaemonIndex,
        outcome: io::Result<Channel>,
        handler: &E,
    ) -> Option<u64> {
        let one = self.peers.get_mut(&peer.0)?;
        let pending = core::mem::take(&mut one.pending);
        match outcome {
            Ok(socket) => {
                one.is_logged = false;
                let mut stream = OutgoingStream::new(socket, peer);
                pending.into_iter().for_each(|transfer| stream.push(transfer));
                let key = self.add(Stream::Outgoing(stream));
                if let Some(one) = self.peers.get_mut(&peer.0) {
                    one.stream = Some(key);
                }
                Some(key)
            }
            Err(error) => {
                if !one.is_logged {
                    one.is_logged = true;
                    tracing::warn!(peer = peer.0, %error, "no bulk stream to peer");
                }
                one.pending = retain_retryable(pending.into_iter(), handler, Instant::now());
                if !one.pending.is_empty() {
                    self.dial(peer, DIAL_PAUSE);
                }
                None
            }
        }
    }

    fn release_buffers(&mut self) {
        for key in core::mem::take(&mut self.used) {
            if let Some((stream, _)) = self.streams.get_mut(&key) {
                stream.channel().release_buffers();
            }
        }
    }

    fn accepted(&mut self, from: PeerIdentity, mut socket: Channel) {
        // Transfers still in flight on the previous stream have been resent or given up.
        let older = self.streams.iter().find_map(|(&key, (stream, _))| match stream {
            Stream::Incoming(one) if one.from == from.daemon && one.number == from.stream => {
                Some(key)
            }
            _ => None,
        });
        if let Some(key) = older {
            self.streams.remove(&key);
        }
        if socket.socket().set_nonblocking(true).is_err() {
            return;
        }
        set_options(socket.socket());
        keep_alive(socket.socket());
        // Nothing was sent on it before, so there is space.
        if socket.write_all(&dial::READY).and_then(|()| socket.flush()).is_err() {
            return;
        }
        let visit = Visit { lane: self.number, stream: self.next_stream };
        self.add(Stream::Incoming(IncomingStream::new(socket, from.daemon, from.stream, visit)));
    }

    fn add(&mut self, stream: Stream<E>) -> u64 {
        let key = self.next_stream;
        self.next_stream += 1;
        let flags = stream.wants();
        let _ = epoll::add(&self.epoll, stream.socket(), EventData::new_u64(key), flags);
        self.streams.insert(key, (stream, flags));
        key
    }

    fn decided(&mut self, key: u64, handler: &E, decision: E::Decision) {
        // The stream may have been closed; stream numbers are never reused.
        let Some((Stream::Incoming(stream), _)) = self.streams.get_mut(&key) else { return };
        match stream.decided(handler, decision) {
            Ok(()) => self.go_on(key, handler),
            Err(stop) => self.close(key, &stop, handler),
        }
    }

    fn go_on(&mut self, key: u64, handler: &E) {
        let Some((stream, flags)) = self.streams.get_mut(&key) else { return };
        if let Err(stop) = stream.go_on(handler) {
            return self.close(key, &stop, handler);
        }
        if stream.can_go_on() {
            self.again.push(key);
        }
        if let Some(deadline) = stream.channel().note_incomplete() {
            self.late_at = Some(self.late_at.map_or(deadline, |at| at.min(deadline)));
        }
        self.used.insert(key);
        let expected = stream.wants();
        if expected != *flags {
            *flags = expected;
            let _ = epoll::modify(&self.epoll, stream.socket(), EventData::new_u64(key), expected);
        }
    }

    fn close(&mut self, key: u64, why: &Stop, handler: &E) {
        if matches!(why, Stop::Tampered) {
            self.settings.counters.tampered.fetch_add(1, Ordering::Relaxed);
            if let Some(before) = self.tampered_lines.admit(Instant::now()) {
                tracing::warn!(before, "{why}: bulk stream closed");
            }
        }
        match self.streams.remove(&key) {
            Some((Stream::Outgoing(stream), _)) => {
                tracing::warn!(peer = stream.peer.0, %why, "bulk stream lost");
                let peer = stream.peer;
                let retained = stream.lose(handler, Instant::now());
                if let Some(one) = self.peers.get_mut(&peer.0) {
                    one.stream = None;
                    one.pending = retained;
                    if !one.pending.is_empty() {
                        self.dial(peer, Duration::ZERO);
                    }
                }
            }
            Some((Stream::Incoming(stream), _)) => {
                tracing::debug!(peer = stream.from.0, %why, "bulk stream of a peer ended");
            }
            None => {}
        }
    }

    fn end(&mut self, handler: &E) {
        self.take_commands(handler);
        let pending = self.peers.values_mut().flat_map(|peer| peer.pending.drain(..));
        let mut retained: Vec<_> = pending.collect();
        for (stream, _) in core::mem::take(&mut self.streams).into_values() {
            if let Stream::Outgoing(stream) = stream {
                retained.extend(stream.lose(handler, Instant::now()));
            }
        }
        for transfer in retained {
            handler.ended(transfer.token, transfer.memory, Outcome::Lost);
        }
    }
}

impl<E: BulkHandler> Lane<E> {
    fn new(number: usize, settings: Settings) -> io::Result<Lane<E>> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let queue = CommandQueue::new(&epoll, WAKER)?;
        let (streams, peers) = (BTreeMap::new(), BTreeMap::new());
        let next_stream = FIRST_STREAM;
        let (again, used) = (Vec::new(), BTreeSet::new());
        let tampered_lines = LineLimit::default();
        Ok(Lane {
            number,
            settings,
            queue,
            epoll,
            streams,
            next_stream,
            peers,
            again,
            used,
            tampered_lines,
            late_at: None,
        })
    }
}

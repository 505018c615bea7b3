//! The thread that holds all connections between daemons, and its door for the other threads.
//!
//! One connection for each pair of daemons, dialled by the one with the higher number, used both
//! ways; messages on it keep their order. A lost connection fails what waits on it and is dialled
//! again, with growing pauses. A request for a daemon that is not connected fails at once: who
//! asked tries again, and knows how long.

use crate::connection::{Connection, Filled, Phase};
use crate::frame::Kind;
use crate::handshake::{Handshake, Parties, Proven, Refusal, Role};
use crate::peers;
use crate::secret::Secret;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use rustix::fd::{AsFd, OwnedFd};
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use wire::DaemonIndex;

/// Most commands that wait for the thread.
const QUEUE_COUNT_MAX: usize = 64 * 1024;
/// Most bytes that wait for one peer before requests and messages are refused: a peer that takes
/// nothing for this long is in trouble.
const OUTPUT_BYTES_MAX: usize = 64 << 20;
/// Most requests to one peer that are not answered; with those of a slot's size it bounds what the
/// peer must keep for us. Reading is never stopped: two daemons that did so could wait for each
/// other.
const OUTSTANDING_COUNT_MAX: usize = 16 * 1024;
/// Most connections that have not proven themselves yet; more are closed at once.
const STRANGER_COUNT_MAX: usize = 128;
/// Time for connecting and proving.
const HANDSHAKE_TIME: Duration = Duration::from_secs(5);
/// Pauses between dials: first, longest.
const DIAL_PAUSE: Duration = Duration::from_millis(10);
/// See `DIAL_PAUSE`.
const DIAL_PAUSE_MAX: Duration = Duration::from_millis(500);
/// How long the thread looks for more before it sleeps: a wake-up costs about as much.
const LOOK_TIME: Duration = Duration::from_micros(50);
/// Time until a silent peer is asked, and until one that does not answer is given up.
const KEEPALIVE_TIME: Duration = Duration::from_secs(5);
/// See `KEEPALIVE_TIME`; in milliseconds.
const UNANSWERED_MILLIS_MAX: u32 = 15_000;
/// One line of log for so many refused strangers: somebody may knock for ever.
const REFUSALS_PER_LINE: u64 = 100;
/// Pause before accepting again after the system had no descriptor left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

const LISTENER: u64 = 0;
const WAKER: u64 = 1;
const FIRST_CONNECTION: u64 = 2;

/// The request was not answered: the connection is not there, or ended meanwhile. It may or may
/// not have been carried out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lost;

/// Where the reply to a peer's request goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Answer {
    connection: u64,
    id: u64,
}

/// What the daemon does with what comes. Called on the thread of `Net::run`; must not block.
pub trait Handler {
    /// What the sender of a request needs to know when the reply comes.
    type Token: Send;
    /// A request of `from`; answer it by `Sender::reply`, from any thread.
    fn request(&mut self, from: DaemonIndex, answer: Answer, bytes: &[u8]);
    /// The end of a request that this daemon sent.
    fn reply(&mut self, token: Self::Token, outcome: Result<&[u8], Lost>);
    /// A message of `from`.
    fn message(&mut self, from: DaemonIndex, bytes: &[u8]);
    /// `peer` is connected from now on.
    fn up(&mut self, peer: Proven);
    /// `peer` is not connected any more; what was sent last may be lost.
    fn down(&mut self, peer: DaemonIndex);
}

/// How the thread is set up.
#[derive(Clone, Debug)]
pub struct Settings {
    /// This daemon.
    pub me: DaemonIndex,
    /// Daemons of the instance.
    pub daemon_count: u16,
    /// Number of this daemon's start.
    pub start: u64,
    /// The instance's secret.
    pub secret: Secret,
    /// Where to listen; port 0: any.
    pub listen: SocketAddr,
    /// The file that tells the others' addresses; it may appear later.
    pub peers: PathBuf,
}

enum Command<T> {
    Request { to: DaemonIndex, bytes: Vec<u8>, token: T },
    Message { to: DaemonIndex, bytes: Vec<u8> },
    Reply { to: Answer, bytes: Vec<u8> },
}

struct Shared<T> {
    queue: Mutex<VecDeque<Command<T>>>,
    waker: OwnedFd,
    sleeping: AtomicBool,
    stopping: AtomicBool,
}

impl<T> Shared<T> {
    fn wake(&self) {
        if self.sleeping.swap(false, Ordering::SeqCst) {
            let _ = rustix::io::write(&self.waker, &1u64.to_ne_bytes());
        }
    }

    /// Queues a command if `room` says that there is room for its kind.
    fn push(&self, command: Command<T>, most: usize) -> Result<(), Command<T>> {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        if queue.len() >= most {
            return Err(command);
        }
        queue.push_back(command);
        drop(queue);
        self.wake();
        Ok(())
    }
}

/// The door for other threads.
pub struct Sender<T> {
    shared: Arc<Shared<T>>,
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Sender<T> {
        Sender { shared: Arc::clone(&self.shared) }
    }
}

impl<T> Sender<T> {
    /// Sends a request; its end comes to `Handler::reply` with `token`.
    ///
    /// # Errors
    /// The token, if the queue is full.
    pub fn request(&self, to: DaemonIndex, bytes: Vec<u8>, token: T) -> Result<(), T> {
        match self.shared.push(Command::Request { to, bytes, token }, QUEUE_COUNT_MAX) {
            Err(Command::Request { token, .. }) => Err(token),
            _ => Ok(()),
        }
    }

    /// Sends a message. It is lost if `to` is not connected.
    ///
    /// # Errors
    /// `Lost` if the queue is full.
    pub fn message(&self, to: DaemonIndex, bytes: Vec<u8>) -> Result<(), Lost> {
        self.shared.push(Command::Message { to, bytes }, QUEUE_COUNT_MAX).map_err(|_| Lost)
    }

    /// Answers a request. Their number is bounded by that of the requests that were read.
    pub fn reply(&self, to: Answer, bytes: Vec<u8>) {
        let _ = self.shared.push(Command::Reply { to, bytes }, usize::MAX);
    }

    /// Ends `Net::run`.
    pub fn stop(&self) {
        self.shared.stopping.store(true, Ordering::SeqCst);
        self.shared.sleeping.store(true, Ordering::SeqCst);
        self.shared.wake();
    }
}

struct Dial {
    next: Instant,
    pause: Duration,
    in_progress: bool,
    /// One line of log for each trouble, not for each try.
    told: bool,
}

/// The thread's state.
pub struct Net<H: Handler> {
    settings: Settings,
    listener: TcpListener,
    epoll: OwnedFd,
    shared: Arc<Shared<H::Token>>,
    connections: BTreeMap<u64, Connection>,
    next_connection: u64,
    /// The connection of each daemon.
    up: Vec<Option<u64>>,
    dials: Vec<Dial>,
    outstanding: BTreeMap<(u64, u64), H::Token>,
    next_id: u64,
    touched: Vec<u64>,
    accept_again: Option<Instant>,
    refusals: u64,
}

impl<H: Handler> Net<H> {
    /// Binds the listening socket. Nothing is accepted before `run`.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn bind(settings: Settings) -> io::Result<(Net<H>, Sender<H::Token>)> {
        let listener = TcpListener::bind(settings.listen)?;
        listener.set_nonblocking(true)?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let waker = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let edge = EventFlags::IN | EventFlags::ET;
        epoll::add(&epoll, &listener, EventData::new_u64(LISTENER), edge)?;
        epoll::add(&epoll, &waker, EventData::new_u64(WAKER), EventFlags::IN)?;
        let shared = Arc::new(Shared {
            queue: Mutex::new(VecDeque::new()),
            waker,
            sleeping: AtomicBool::new(false),
            stopping: AtomicBool::new(false),
        });
        let now = Instant::now();
        let dial = || Dial { next: now, pause: DIAL_PAUSE, in_progress: false, told: false };
        let net = Net {
            up: vec![None; usize::from(settings.daemon_count)],
            dials: core::iter::repeat_with(dial).take(usize::from(settings.me.0)).collect(),
            settings,
            listener,
            epoll,
            shared: Arc::clone(&shared),
            connections: BTreeMap::new(),
            next_connection: FIRST_CONNECTION,
            outstanding: BTreeMap::new(),
            next_id: 1,
            touched: Vec::new(),
            accept_again: None,
            refusals: 0,
        };
        Ok((net, Sender { shared }))
    }

    /// Where it listens.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn local_address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Runs until `Sender::stop`.
    ///
    /// # Errors
    /// What the operating system says of the poller itself.
    pub fn run(mut self, handler: &mut H) -> io::Result<()> {
        let mut events = Vec::with_capacity(64);
        let mut look_until = Instant::now();
        while !self.shared.stopping.load(Ordering::SeqCst) {
            let had_commands = self.take_commands(handler);
            self.flush_touched(handler);
            let now = Instant::now();
            self.keep_time(now, handler);
            if had_commands {
                look_until = now + LOOK_TIME;
            }
            let timeout =
                if now < look_until { Some(Duration::ZERO) } else { self.sleep_time(now) };
            events.clear();
            let room = rustix::buffer::spare_capacity(&mut events);
            match epoll::wait(&self.epoll, room, timeout.map(timespec).as_ref()) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            self.shared.sleeping.store(false, Ordering::SeqCst);
            if events.is_empty() {
                std::thread::yield_now();
            } else {
                look_until = Instant::now() + LOOK_TIME;
            }
            for event in &events {
                let (data, flags) = (event.data, event.flags);
                self.event(data.u64(), flags, handler);
            }
        }
        self.last_words(handler);
        Ok(())
    }

    /// How long to sleep: until the next deadline, for ever if there is none; not at all if a
    /// command came meanwhile.
    fn sleep_time(&self, now: Instant) -> Option<Duration> {
        self.shared.sleeping.store(true, Ordering::SeqCst);
        let queue = self.shared.queue.lock().unwrap_or_else(PoisonError::into_inner);
        if !queue.is_empty() || self.shared.stopping.load(Ordering::SeqCst) {
            return Some(Duration::ZERO);
        }
        drop(queue);
        let dials = self.dials.iter().enumerate().filter_map(|(peer, dial)| {
            let is_due = !dial.in_progress && self.up.get(peer).is_some_and(Option::is_none);
            is_due.then_some(dial.next)
        });
        let strangers =
            self.connections.values().filter(|one| one.peer().is_none()).map(|one| one.deadline);
        let next = dials.chain(strangers).chain(self.accept_again).min()?;
        // Whole milliseconds are what the poller counts; never wake before the time.
        Some(next.saturating_duration_since(now) + Duration::from_millis(1))
    }

    fn keep_time(&mut self, now: Instant, handler: &mut H) {
        for peer in 0..self.dials.len() {
            let is_up = self.up.get(peer).is_some_and(Option::is_some);
            let is_due = self
                .dials
                .get(peer)
                .is_some_and(|dial| !is_up && !dial.in_progress && dial.next <= now);
            if let (true, Ok(peer)) = (is_due, u16::try_from(peer)) {
                self.dial(DaemonIndex(peer), now);
            }
        }
        let late = |(&key, one): (&u64, &Connection)| {
            (one.peer().is_none() && one.deadline <= now).then_some(key)
        };
        let late: Vec<u64> = self.connections.iter().filter_map(late).collect();
        for key in late {
            self.close(key, "no handshake in time", handler);
        }
        if self.accept_again.is_some_and(|again| again <= now) {
            self.accept_again = None;
            self.accept(handler);
        }
    }

    /// Takes all commands of other threads. True if there were any.
    fn take_commands(&mut self, handler: &mut H) -> bool {
        let mut queue = self.shared.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let commands = core::mem::take(&mut *queue);
        drop(queue);
        let any = !commands.is_empty();
        for command in commands {
            match command {
                Command::Request { to, bytes, token } => {
                    self.send_request(to, &bytes, token, handler);
                }
                Command::Message { to, bytes } => {
                    if let Some((key, one)) = self.sendable(to) {
                        let _ = one.push(Kind::Message, 0, &bytes);
                        self.touched.push(key);
                    }
                }
                Command::Reply { to, bytes } => {
                    if let Some(one) = self.connections.get_mut(&to.connection) {
                        let _ = one.push(Kind::Reply, to.id, &bytes);
                        self.touched.push(to.connection);
                    }
                }
            }
        }
        any
    }

    /// The connection to `to`, if it is there and takes more.
    fn sendable(&mut self, to: DaemonIndex) -> Option<(u64, &mut Connection)> {
        let key = (*self.up.get(usize::from(to.0))?)?;
        let one = self.connections.get_mut(&key)?;
        (one.waiting() < OUTPUT_BYTES_MAX).then_some((key, one))
    }

    fn send_request(&mut self, to: DaemonIndex, bytes: &[u8], token: H::Token, handler: &mut H) {
        let id = self.next_id;
        let sent = self.sendable(to).and_then(|(key, one)| {
            let has_room = one.outstanding < OUTSTANDING_COUNT_MAX;
            let sent = has_room && one.push(Kind::Request, id, bytes).is_ok();
            one.outstanding += usize::from(sent);
            sent.then_some(key)
        });
        match sent {
            Some(key) => {
                self.next_id += 1;
                self.outstanding.insert((key, id), token);
                self.touched.push(key);
            }
            None => handler.reply(token, Err(Lost)),
        }
    }

    fn flush_touched(&mut self, handler: &mut H) {
        while let Some(key) = self.touched.pop() {
            self.flush(key, handler);
        }
    }

    fn flush(&mut self, key: u64, handler: &mut H) {
        let Some(one) = self.connections.get_mut(&key) else { return };
        if matches!(one.phase, Phase::Connecting(_)) {
            return;
        }
        if let Err(error) = one.flush() {
            return self.close(key, &error.to_string(), handler);
        }
        let is_behind = one.waiting() > 0;
        if is_behind != one.polls_write {
            one.polls_write = is_behind;
            let mut flags = EventFlags::IN | EventFlags::RDHUP;
            if is_behind {
                flags |= EventFlags::OUT;
            }
            let _ = epoll::modify(&self.epoll, &one.stream, EventData::new_u64(key), flags);
        }
    }

    fn event(&mut self, key: u64, flags: EventFlags, handler: &mut H) {
        match key {
            LISTENER => return self.accept(handler),
            WAKER => {
                let _ = rustix::io::read(&self.shared.waker, &mut [0; 8]);
                return;
            }
            _ => {}
        }
        let Some(one) = self.connections.get_mut(&key) else { return };
        if matches!(one.phase, Phase::Connecting(_)) {
            return self.connected(key, handler);
        }
        if flags.contains(EventFlags::OUT) {
            self.flush(key, handler);
        }
        if flags.intersects(EventFlags::IN | EventFlags::HUP | EventFlags::ERR | EventFlags::RDHUP)
        {
            self.read(key, handler);
        }
    }

    fn read(&mut self, key: u64, handler: &mut H) {
        let Some(one) = self.connections.get_mut(&key) else { return };
        let filled = match one.fill() {
            Ok(filled) => filled,
            Err(error) => return self.close(key, &error.to_string(), handler),
        };
        loop {
            let Some(one) = self.connections.get_mut(&key) else { return };
            let peer = one.peer();
            match one.next_frame() {
                Ok(None) => break,
                Ok(Some(frame)) => match (peer, frame.kind) {
                    (Some(peer), Kind::Request) => {
                        let answer = Answer { connection: key, id: frame.id };
                        handler.request(peer.daemon, answer, frame.payload);
                    }
                    (Some(peer), Kind::Message) => handler.message(peer.daemon, frame.payload),
                    (Some(_), Kind::Reply) => {
                        if let Some(token) = self.outstanding.remove(&(key, frame.id)) {
                            handler.reply(token, Ok(frame.payload));
                            one.outstanding = one.outstanding.saturating_sub(1);
                        }
                    }
                    (None, kind @ (Kind::Hello | Kind::Proof | Kind::Refusal)) => {
                        let payload = frame.payload.to_vec();
                        self.shake(key, kind, &payload, handler);
                    }
                    _ => return self.close(key, "frame out of place", handler),
                },
                Err(_) if peer.is_none() => return self.refuse(key, Refusal::Malformed, handler),
                Err(error) => return self.close(key, &error.to_string(), handler),
            }
        }
        if filled == Filled::Ended {
            self.close(key, "closed by the peer", handler);
        }
    }

    fn shake(&mut self, key: u64, kind: Kind, payload: &[u8], handler: &mut H) {
        let Some(one) = self.connections.get_mut(&key) else { return };
        let Phase::Shaking(handshake) = &mut one.phase else { return };
        let outcome = match kind {
            Kind::Hello => handshake.hello(payload).map(|proof| {
                let _ = one.push(Kind::Proof, 0, &proof);
                None
            }),
            Kind::Proof => handshake.proof(payload).map(Some),
            _ => Err(Refusal::Told(payload.first().copied().unwrap_or(0))),
        };
        match outcome {
            Ok(None) => self.flush(key, handler),
            Ok(Some(proven)) => self.proven(key, proven, handler),
            Err(refusal) => self.refuse(key, refusal, handler),
        }
    }

    fn proven(&mut self, key: u64, proven: Proven, handler: &mut H) {
        let peer = usize::from(proven.daemon.0);
        // The newer connection is the true one: the peer would not have made it otherwise.
        if let Some(older) = self.up.get(peer).copied().flatten() {
            self.close(older, "replaced by a newer connection", handler);
        }
        let Some(one) = self.connections.get_mut(&key) else { return };
        one.phase = Phase::Up(proven);
        if let Some(up) = self.up.get_mut(peer) {
            *up = Some(key);
        }
        if let Some(dial) = self.dials.get_mut(peer) {
            *dial =
                Dial { next: Instant::now(), pause: DIAL_PAUSE, in_progress: false, told: false };
        }
        tracing::info!(peer, start = proven.start, "peer connected");
        handler.up(proven);
    }

    fn refuse(&mut self, key: u64, refusal: Refusal, handler: &mut H) {
        if let Some(one) = self.connections.get_mut(&key) {
            let _ = one.push(Kind::Refusal, 0, &[refusal.code()]);
            let _ = one.flush();
        }
        self.close(key, &refusal.to_string(), handler);
    }

    fn close(&mut self, key: u64, why: &str, handler: &mut H) {
        let Some(one) = self.connections.remove(&key) else { return };
        let _ = epoll::delete(&self.epoll, &one.stream);
        if let Some(peer) = one.dialled {
            self.dial_failed(peer, why);
        } else if one.peer().is_none() {
            if self.refusals.is_multiple_of(REFUSALS_PER_LINE) {
                let from = one.stream.peer_addr().ok();
                let before = self.refusals;
                tracing::warn!(?from, why, before, "connection refused");
            }
            self.refusals += 1;
        }
        let Some(proven) = one.peer() else { return };
        let peer = usize::from(proven.daemon.0);
        if let Some(up) = self.up.get_mut(peer).filter(|up| **up == Some(key)) {
            *up = None;
            tracing::warn!(peer, why, "peer lost");
            handler.down(proven.daemon);
        }
        let mut failed = self.outstanding.split_off(&(key, 0));
        let mut others = failed.split_off(&(key + 1, 0));
        self.outstanding.append(&mut others);
        for token in failed.into_values() {
            handler.reply(token, Err(Lost));
        }
    }

    fn accept(&mut self, handler: &mut H) {
        loop {
            match self.listener.accept() {
                Ok((stream, _)) => self.accepted(stream, handler),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    tracing::warn!(%error, "can not accept a peer");
                    self.accept_again = Some(Instant::now() + ACCEPT_PAUSE);
                    return;
                }
            }
        }
    }

    fn accepted(&mut self, stream: TcpStream, handler: &mut H) {
        let strangers = self.connections.values().filter(|one| one.peer().is_none()).count();
        if strangers >= STRANGER_COUNT_MAX || stream.set_nonblocking(true).is_err() {
            return;
        }
        let Some(handshake) = self.handshake(Role::Acceptor, None) else { return };
        let deadline = Instant::now() + HANDSHAKE_TIME;
        let mut one = Connection::new(stream, Phase::Shaking(handshake), None, deadline);
        push_hello(&mut one);
        let key = self.add(one, EventFlags::IN | EventFlags::RDHUP);
        self.flush(key, handler);
    }

    fn handshake(&self, role: Role, expected: Option<DaemonIndex>) -> Option<Handshake> {
        let mut nonce = [0; 32];
        getrandom::fill(&mut nonce).ok()?;
        let parties = Parties {
            me: self.settings.me,
            role,
            start: self.settings.start,
            expected,
            daemon_count: self.settings.daemon_count,
        };
        Some(Handshake::new(self.settings.secret.clone(), parties, nonce))
    }

    fn add(&mut self, one: Connection, flags: EventFlags) -> u64 {
        let key = self.next_connection;
        self.next_connection += 1;
        set_options(&one.stream);
        let _ = epoll::add(&self.epoll, &one.stream, EventData::new_u64(key), flags);
        self.connections.insert(key, one);
        key
    }

    fn dial(&mut self, peer: DaemonIndex, now: Instant) {
        let Some(address) = peers::address_of(&self.settings.peers, peer) else {
            // Not told yet: the instance is starting.
            if let Some(dial) = self.dials.get_mut(usize::from(peer.0)) {
                dial.next = now + dial.pause;
                dial.pause = (dial.pause + dial.pause / 16).min(DIAL_PAUSE_MAX);
            }
            return;
        };
        match self.connect(peer, address) {
            Ok(one) => {
                if let Some(dial) = self.dials.get_mut(usize::from(peer.0)) {
                    dial.in_progress = true;
                }
                let flags = EventFlags::IN | EventFlags::RDHUP | EventFlags::OUT;
                let key = self.add(one, flags);
                if let Some(one) = self.connections.get_mut(&key) {
                    one.polls_write = true;
                }
            }
            Err(error) => self.dial_failed(peer, &error.to_string()),
        }
    }

    fn connect(&self, peer: DaemonIndex, address: SocketAddr) -> io::Result<Connection> {
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
        match rustix::net::connect(socket.as_fd(), &address) {
            Ok(()) | Err(rustix::io::Errno::INPROGRESS) => {}
            Err(error) => return Err(error.into()),
        }
        let random = || io::Error::other("no random numbers");
        let handshake = self.handshake(Role::Dialler, Some(peer)).ok_or_else(random)?;
        let deadline = Instant::now() + HANDSHAKE_TIME;
        let phase = Phase::Connecting(handshake);
        Ok(Connection::new(TcpStream::from(socket), phase, Some(peer), deadline))
    }

    fn connected(&mut self, key: u64, handler: &mut H) {
        let Some(one) = self.connections.get_mut(&key) else { return };
        let outcome = match sockopt::socket_error(&one.stream) {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) | Err(error) => Err(error),
        };
        if let Err(error) = outcome {
            return self.close(key, &io::Error::from(error).to_string(), handler);
        }
        push_hello(one);
        self.flush(key, handler);
    }

    fn dial_failed(&mut self, peer: DaemonIndex, why: &str) {
        let Some(dial) = self.dials.get_mut(usize::from(peer.0)) else { return };
        dial.in_progress = false;
        dial.next = Instant::now() + dial.pause;
        dial.pause = (dial.pause * 2).min(DIAL_PAUSE_MAX);
        if !dial.told {
            dial.told = true;
            tracing::warn!(peer = peer.0, why, "can not reach peer; trying on");
        }
    }

    /// Sends what is queued as far as it goes at once, and fails the rest.
    fn last_words(&mut self, handler: &mut H) {
        self.take_commands(handler);
        self.flush_touched(handler);
        for (_, token) in core::mem::take(&mut self.outstanding) {
            handler.reply(token, Err(Lost));
        }
    }
}

fn push_hello(one: &mut Connection) {
    if let Phase::Connecting(handshake) | Phase::Shaking(handshake) = &one.phase {
        let hello = *handshake.own_hello();
        let _ = one.push(Kind::Hello, 0, &hello);
    }
    let none = Phase::Up(Proven { daemon: DaemonIndex(0), start: 0 });
    one.phase = match core::mem::replace(&mut one.phase, none) {
        Phase::Connecting(handshake) | Phase::Shaking(handshake) => Phase::Shaking(handshake),
        up @ Phase::Up(_) => up,
    };
}

fn set_options(stream: &TcpStream) {
    // Without them a connection works as well, only slower or longer: failures do not matter.
    let _ = sockopt::set_tcp_nodelay(stream, true);
    let _ = sockopt::set_socket_keepalive(stream, true);
    let _ = sockopt::set_tcp_keepidle(stream, KEEPALIVE_TIME);
    let _ = sockopt::set_tcp_keepintvl(stream, KEEPALIVE_TIME);
    let _ = sockopt::set_tcp_user_timeout(stream, UNANSWERED_MILLIS_MAX);
}

fn timespec(time: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(time.subsec_nanos()),
    }
}

//! The thread that holds all connections between daemons: accepts, dials, reads, keeps time.
//!
//! One connection for each pair of daemons, dialled by the one with the higher number, used both
//! ways; messages on it keep their order. A lost connection fails what waits on it and is dialled
//! again, with growing pauses. A request for a daemon that is not connected fails at once: who
//! asked tries again, and knows how long.
//!
//! All daemons of an instance begin to dial at the same moment. So each dials its neighbours first,
//! not all the same one, and a few at a time: more would wait for each other's handshakes until
//! their time is over, and begin again.
//!
//! Sending is everybody's own business (`line`); this thread sends what a socket did not take. While
//! it is awake it also does what its handler looks after (`Handler::look`).

use crate::connection::{Connection, Filled, Phase};
use crate::door::{Answer, Lost, Sender, Shared};
use crate::frame::Kind;
use crate::handshake::{Handshake, Parties, Proven, Refusal, Role};
use crate::line::{Line, READABLE};
use crate::peers::Addresses;
use crate::secret::Secret;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use rustix::fd::AsFd;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use wire::DaemonIndex;

/// Most connections that have not proven themselves yet; more are closed at once.
const STRANGER_COUNT_MAX: usize = 128;
/// Time for connecting and proving.
pub(crate) const HANDSHAKE_TIME: Duration = Duration::from_secs(5);
/// Pauses between dials: first, longest.
const DIAL_PAUSE: Duration = Duration::from_millis(10);
/// See `DIAL_PAUSE`.
const DIAL_PAUSE_MAX: Duration = Duration::from_millis(500);
/// Most daemons that are dialled at the same time. Those that take longer than `DIAL_TIME`, or could
/// not be reached lately, do not count: dead hosts must not hold up living ones.
const DIALS_MAX: usize = 8;
/// See `DIALS_MAX`: a thousand handshakes.
const DIAL_TIME: Duration = Duration::from_millis(500);
/// How long the thread looks for more before it sleeps: a wake-up costs about as much.
const LOOK_TIME: Duration = Duration::from_micros(50);
/// So often of its looks the thread asks the poller for all connections.
const POLLER_LOOKS: u32 = 8;
/// How long a frame that can wait for others to go with waits while the thread is awake.
const LATER_TIME: Duration = Duration::from_micros(20);
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
    /// A bulk stream that a peer dialled; it waits for our word.
    fn bulk(&mut self, from: Proven, stream: TcpStream);
    /// `peer` is connected from now on.
    fn up(&mut self, peer: Proven);
    /// `peer` is not connected any more; what was sent last may be lost.
    fn down(&mut self, peer: DaemonIndex);
    /// While the thread is awake: does what else there is for it. True if there was anything.
    fn look(&mut self) -> bool {
        false
    }
    /// The thread is about to sleep. False: something came, look again.
    fn rest(&mut self) -> bool {
        true
    }
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

struct Dial {
    next: Instant,
    pause: Duration,
    /// Since when it is in progress.
    since: Option<Instant>,
    /// One line of log for each trouble, not for each try.
    told: bool,
}

/// The thread's state.
pub struct Net<H: Handler> {
    settings: Settings,
    listener: TcpListener,
    shared: Arc<Shared<H::Token>>,
    connections: BTreeMap<u64, Connection<H::Token>>,
    next_connection: u64,
    /// The connection of each daemon.
    up: Vec<Option<u64>>,
    dials: Vec<Dial>,
    addresses: Addresses,
    accept_again: Option<Instant>,
    /// When something is due; `None`: not known since something changed.
    due: Option<Option<Instant>>,
    /// The connection on which something came last: while the thread looks, it reads there without
    /// asking the poller first.
    hot: Option<u64>,
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
        let poller = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let waker = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let edge = EventFlags::IN | EventFlags::ET;
        epoll::add(&poller, &listener, EventData::new_u64(LISTENER), edge)?;
        epoll::add(&poller, &waker, EventData::new_u64(WAKER), EventFlags::IN)?;
        let shared = Arc::new(Shared::new(settings.daemon_count, poller, waker));
        let now = Instant::now();
        let dial = || Dial { next: now, pause: DIAL_PAUSE, since: None, told: false };
        let net = Net {
            up: vec![None; usize::from(settings.daemon_count)],
            dials: core::iter::repeat_with(dial).take(usize::from(settings.me.0)).collect(),
            addresses: Addresses::new(settings.peers.clone()),
            settings,
            listener,
            shared: Arc::clone(&shared),
            connections: BTreeMap::new(),
            next_connection: FIRST_CONNECTION,
            accept_again: None,
            due: None,
            hot: None,
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
        let mut later_since = None;
        let mut looks = 0u32;
        while !self.shared.stopping.load(Ordering::SeqCst) {
            let now = Instant::now();
            self.keep_time(now, handler);
            let has_worked = handler.look();
            self.shared.flush();
            if has_worked {
                look_until = now + LOOK_TIME;
            }
            later_since = later_since.or(Some(now)).filter(|_| self.shared.has_later());
            if later_since.is_some_and(|since| now >= since + LATER_TIME || now >= look_until) {
                self.shared.flush_all();
                later_since = None;
            }
            let timeout = if now < look_until || !handler.rest() {
                Some(Duration::ZERO)
            } else {
                self.sleep_time(now)
            };
            looks = looks.wrapping_add(1);
            let is_short = timeout == Some(Duration::ZERO) && !looks.is_multiple_of(POLLER_LOOKS);
            let came = match self.hot.filter(|_| is_short) {
                Some(key) => self.read(key, handler),
                None => self.poll(timeout, &mut events, handler)?,
            };
            self.shared.flush();
            if came {
                look_until = Instant::now() + LOOK_TIME;
            }
            // Who waits for what came may share the processor.
            if came || !has_worked {
                std::thread::yield_now();
            }
        }
        self.last_words(handler);
        Ok(())
    }

    /// Waits for something on any connection. True if there was anything.
    fn poll(
        &mut self,
        timeout: Option<Duration>,
        events: &mut Vec<epoll::Event>,
        handler: &mut H,
    ) -> io::Result<bool> {
        events.clear();
        let room = rustix::buffer::spare_capacity(events);
        match epoll::wait(&self.shared.poller, room, timeout.map(timespec).as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        for event in events.iter() {
            let (data, flags) = (event.data, event.flags);
            self.event(data.u64(), flags, handler);
        }
        Ok(!events.is_empty())
    }

    /// How long to sleep: until the next deadline, for ever if there is none.
    fn sleep_time(&self, now: Instant) -> Option<Duration> {
        // Whole milliseconds are what the poller counts; never wake before the time.
        let next = self.due.flatten()?;
        Some(next.saturating_duration_since(now) + Duration::from_millis(1))
    }

    fn next_deadline(&self) -> Option<Instant> {
        let counted = self.dials_counted();
        let has_room = counted.clone().count() < DIALS_MAX;
        let room = if has_room { None } else { counted.map(|since| since + DIAL_TIME).min() };
        let dials = self.dials.iter().enumerate().filter_map(|(peer, dial)| {
            let is_due = dial.since.is_none() && self.up.get(peer).is_some_and(Option::is_none);
            (is_due && (has_room || dial.told)).then_some(dial.next)
        });
        let strangers =
            self.connections.values().filter(|one| one.peer().is_none()).map(|one| one.deadline);
        dials.chain(room).chain(strangers).chain(self.accept_again).min()
    }

    /// Does what is due.
    fn keep_time(&mut self, now: Instant, handler: &mut H) {
        if self.due.is_none_or(|due| due.is_some_and(|due| due <= now)) {
            self.do_due(now, handler);
            self.due = Some(self.next_deadline());
        }
    }

    fn do_due(&mut self, now: Instant, handler: &mut H) {
        self.dial_due(now);
        let late = |(&key, one): (&u64, &Connection<_>)| {
            (one.peer().is_none() && one.deadline <= now).then_some(key)
        };
        let late: Vec<u64> = self.connections.iter().filter_map(late).collect();
        for key in late {
            self.close(key, "no handshake in time", handler);
        }
        if self.accept_again.is_some_and(|again| again <= now) {
            self.accept_again = None;
            self.accept();
        }
    }

    /// Since when those are dialled that count for `DIALS_MAX`.
    fn dials_counted(&self) -> impl Iterator<Item = Instant> + Clone {
        let dials = self.dials.iter().filter(|dial| !dial.told);
        dials.filter_map(|dial| dial.since.filter(|since| since.elapsed() < DIAL_TIME))
    }

    fn dial_due(&mut self, now: Instant) {
        self.addresses.may_read();
        let mut room = DIALS_MAX.saturating_sub(self.dials_counted().count());
        for peer in (0..self.settings.me.0).rev() {
            let is_up = self.up.get(usize::from(peer)).is_some_and(Option::is_some);
            let Some(dial) = self.dials.get(usize::from(peer)) else { continue };
            let is_due = !is_up && dial.since.is_none() && dial.next <= now;
            if is_due && (dial.told || room > 0) {
                room -= usize::from(!dial.told);
                self.dial(DaemonIndex(peer), now);
            }
        }
    }

    /// Queues a word of the handshake and sends it at once.
    fn say(&self, key: u64, kind: Kind, payload: &[u8]) {
        if let Some(one) = self.connections.get(&key)
            && one.line.push(kind, 0, payload).is_ok()
        {
            one.line.flush(&self.shared.poller);
        }
    }

    fn event(&mut self, key: u64, flags: EventFlags, handler: &mut H) {
        match key {
            LISTENER => return self.accept(),
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
            one.line.flush_writable(&self.shared.poller);
        }
        if flags.intersects(EventFlags::IN | EventFlags::HUP | EventFlags::ERR | EventFlags::RDHUP)
        {
            self.read(key, handler);
        }
    }

    /// Reads what is there. True if there was anything.
    fn read(&mut self, key: u64, handler: &mut H) -> bool {
        self.hot = None;
        let Some(one) = self.connections.get_mut(&key) else { return false };
        let filled = one.fill();
        if one.peer().is_some() {
            self.hot = Some(key);
        }
        match filled {
            Ok(Filled::Nothing) => return false,
            Ok(filled) => self.take_frames(key, filled, handler),
            Err(error) => self.close(key, &error.to_string(), handler),
        }
        true
    }

    fn take_frames(&mut self, key: u64, filled: Filled, handler: &mut H) {
        let Some(one) = self.connections.get_mut(&key) else { return };
        let line = Arc::clone(&one.line);
        loop {
            let Some(one) = self.connections.get_mut(&key) else { return };
            let peer = one.peer();
            match one.next_frame() {
                Ok(None) => break,
                Ok(Some(frame)) => match (peer, frame.kind) {
                    (Some(peer), Kind::Request) => {
                        let (to, id) = (peer.daemon, frame.id);
                        let answer = Answer { to, connection: key, id };
                        handler.request(peer.daemon, answer, frame.payload);
                    }
                    (Some(peer), Kind::Message) => handler.message(peer.daemon, frame.payload),
                    (Some(_), Kind::Reply) => {
                        if let Some(token) = line.answered(frame.id) {
                            handler.reply(token, Ok(frame.payload));
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
            Kind::Hello => match handshake.hello(payload) {
                Ok(proof) => return self.say(key, Kind::Proof, &proof),
                Err(refusal) => Err(refusal),
            },
            Kind::Proof => handshake.proof(payload),
            _ => Err(Refusal::Told(payload.first().copied().unwrap_or(0))),
        };
        match outcome {
            Ok(proven) => self.proven(key, proven, handler),
            Err(refusal) => self.refuse(key, refusal, handler),
        }
    }

    fn proven(&mut self, key: u64, proven: Proven, handler: &mut H) {
        if proven.stream != 0 {
            return self.hand_over(key, proven, handler);
        }
        let peer = usize::from(proven.daemon.0);
        // The newer connection is the true one: the peer would not have made it otherwise.
        if let Some(older) = self.up.get(peer).copied().flatten() {
            self.close(older, "replaced by a newer connection", handler);
        }
        let Some(one) = self.connections.get_mut(&key) else { return };
        one.phase = Phase::Up(proven);
        keep_alive(&one.line.stream);
        self.shared.set_line(proven.daemon, Some(Arc::clone(&one.line)));
        self.due = None;
        if let Some(up) = self.up.get_mut(peer) {
            *up = Some(key);
        }
        if let Some(dial) = self.dials.get_mut(peer) {
            *dial = Dial { next: Instant::now(), pause: DIAL_PAUSE, since: None, told: false };
        }
        tracing::info!(peer, start = proven.start, "peer connected");
        handler.up(proven);
    }

    /// A bulk stream is another thread's.
    fn hand_over(&mut self, key: u64, proven: Proven, handler: &mut H) {
        let Some(one) = self.connections.remove(&key) else { return };
        self.due = None;
        let _ = epoll::delete(&self.shared.poller, &one.line.stream);
        // The dialler waits for the lane's word now: anything else is none of ours.
        if one.is_drained()
            && let Ok(stream) = one.line.stream.try_clone()
        {
            handler.bulk(proven, stream);
        }
    }

    fn refuse(&mut self, key: u64, refusal: Refusal, handler: &mut H) {
        self.say(key, Kind::Refusal, &[refusal.code()]);
        self.close(key, &refusal.to_string(), handler);
    }

    fn close(&mut self, key: u64, why: &str, handler: &mut H) {
        let Some(one) = self.connections.remove(&key) else { return };
        self.due = None;
        let _ = epoll::delete(&self.shared.poller, &one.line.stream);
        if let Some(peer) = one.dialled {
            self.dial_failed(peer, why);
        } else if one.peer().is_none() {
            if self.refusals.is_multiple_of(REFUSALS_PER_LINE) {
                let from = one.line.stream.peer_addr().ok();
                let before = self.refusals;
                tracing::warn!(?from, why, before, "connection refused");
            }
            self.refusals += 1;
        }
        let Some(proven) = one.peer() else { return };
        let peer = usize::from(proven.daemon.0);
        if let Some(up) = self.up.get_mut(peer).filter(|up| **up == Some(key)) {
            *up = None;
            self.shared.set_line(proven.daemon, None);
            tracing::warn!(peer, why, "peer lost");
            handler.down(proven.daemon);
        }
        for token in one.line.close() {
            handler.reply(token, Err(Lost));
        }
    }

    fn accept(&mut self) {
        loop {
            match self.listener.accept() {
                Ok((stream, _)) => self.accepted(stream),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    tracing::warn!(%error, "can not accept a peer");
                    self.accept_again = Some(Instant::now() + ACCEPT_PAUSE);
                    self.due = None;
                    return;
                }
            }
        }
    }

    fn accepted(&mut self, stream: TcpStream) {
        let strangers = self.connections.values().filter(|one| one.peer().is_none()).count();
        if strangers >= STRANGER_COUNT_MAX || stream.set_nonblocking(true).is_err() {
            return;
        }
        let Some(handshake) = self.handshake(Role::Acceptor, None) else { return };
        let hello = *handshake.own_hello();
        let key = self.add(stream, Phase::Shaking(handshake), None);
        self.say(key, Kind::Hello, &hello);
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
            stream: 0,
        };
        Some(Handshake::new(self.settings.secret.clone(), parties, nonce))
    }

    fn add(&mut self, stream: TcpStream, phase: Phase, dialled: Option<DaemonIndex>) -> u64 {
        let key = self.next_connection;
        self.next_connection += 1;
        self.due = None;
        set_options(&stream);
        let line = Line::new(key, stream);
        let mut flags = READABLE;
        if dialled.is_some() {
            line.is_dialled();
            flags |= EventFlags::OUT;
        }
        let _ = epoll::add(&self.shared.poller, &line.stream, EventData::new_u64(key), flags);
        let deadline = Instant::now() + HANDSHAKE_TIME;
        self.connections.insert(key, Connection::new(line, phase, dialled, deadline));
        key
    }

    fn dial(&mut self, peer: DaemonIndex, now: Instant) {
        let Some(address) = self.addresses.of(peer) else {
            // Not told yet: the instance is starting.
            if let Some(dial) = self.dials.get_mut(usize::from(peer.0)) {
                dial.next = now + dial.pause;
                dial.pause = (dial.pause + dial.pause / 16).min(DIAL_PAUSE_MAX);
            }
            return;
        };
        match self.connect(peer, address) {
            Ok((stream, phase)) => {
                if let Some(dial) = self.dials.get_mut(usize::from(peer.0)) {
                    dial.since = Some(now);
                }
                self.add(stream, phase, Some(peer));
            }
            Err(error) => self.dial_failed(peer, &error.to_string()),
        }
    }

    fn connect(&self, peer: DaemonIndex, address: SocketAddr) -> io::Result<(TcpStream, Phase)> {
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
        match rustix::net::connect(socket.as_fd(), &address) {
            Ok(()) | Err(rustix::io::Errno::INPROGRESS) => {}
            Err(error) => return Err(error.into()),
        }
        let random = || io::Error::other("no random numbers");
        let handshake = self.handshake(Role::Dialler, Some(peer)).ok_or_else(random)?;
        Ok((TcpStream::from(socket), Phase::Connecting(handshake)))
    }

    fn connected(&mut self, key: u64, handler: &mut H) {
        let Some(one) = self.connections.get_mut(&key) else { return };
        let outcome = match sockopt::socket_error(&one.line.stream) {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) | Err(error) => Err(error),
        };
        if let Err(error) = outcome {
            return self.close(key, &io::Error::from(error).to_string(), handler);
        }
        let none = Phase::Up(Proven { daemon: DaemonIndex(0), start: 0, stream: 0 });
        if let Phase::Connecting(handshake) = core::mem::replace(&mut one.phase, none) {
            let hello = *handshake.own_hello();
            one.phase = Phase::Shaking(handshake);
            self.say(key, Kind::Hello, &hello);
        }
    }

    fn dial_failed(&mut self, peer: DaemonIndex, why: &str) {
        let Some(dial) = self.dials.get_mut(usize::from(peer.0)) else { return };
        self.due = None;
        self.addresses.forget(peer);
        dial.since = None;
        dial.next = Instant::now() + dial.pause;
        dial.pause = (dial.pause * 2).min(DIAL_PAUSE_MAX);
        if !dial.told {
            dial.told = true;
            tracing::warn!(peer = peer.0, why, "can not reach peer; trying on");
        }
    }

    /// Sends what is queued as far as it goes at once, and fails the rest.
    fn last_words(&mut self, handler: &mut H) {
        self.shared.flush();
        for one in self.connections.values() {
            for token in one.line.close() {
                handler.reply(token, Err(Lost));
            }
        }
    }
}

pub(crate) fn set_options(stream: &TcpStream) {
    // Without them a connection works as well, only slower or longer: failures do not matter.
    let _ = sockopt::set_tcp_nodelay(stream, true);
    let _ = sockopt::set_tcp_user_timeout(stream, UNANSWERED_MILLIS_MAX);
    spare_pacing(stream);
}

/// Takes another congestion control than BBR, which paces by timers: they cost up to a third of what a
/// stream moves between hosts of a cluster. Who may not choose has `reno`, as which cubic grows where a
/// round trip is short.
fn spare_pacing(stream: &TcpStream) {
    if sockopt::tcp_congestion(stream).is_ok_and(|name| name.starts_with("bbr")) {
        let _ =
            ["cubic", "reno"].iter().find(|name| sockopt::set_tcp_congestion(stream, name).is_ok());
    }
}

/// Has the kernel ask a silent peer of another host whether it is still there. One on the same host
/// can not go without our kernel's closing the connection; and 256 daemons have 65,000 ends there,
/// whose questions at the same time overran the queue of the loopback: connections that were well
/// got no answer and were given up.
pub(crate) fn keep_alive(stream: &TcpStream) {
    let ends = (stream.local_addr(), stream.peer_addr());
    if matches!(ends, (Ok(own), Ok(theirs)) if own.ip() == theirs.ip()) {
        return;
    }
    let _ = sockopt::set_socket_keepalive(stream, true);
    let _ = sockopt::set_tcp_keepidle(stream, KEEPALIVE_TIME);
    let _ = sockopt::set_tcp_keepintvl(stream, KEEPALIVE_TIME);
}

fn timespec(time: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(time.subsec_nanos()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn a_connection_does_not_pace_and_other_choices_stay() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
        let address = listener.local_addr().expect("an address");
        for (before, stays) in [("bbr", false), ("reno", true), ("cubic", true)] {
            let stream = TcpStream::connect(address).expect("connected");
            if sockopt::set_tcp_congestion(&stream, before).is_err() {
                // Not of this kernel, or not ours to choose: the host's own is looked at instead.
                set_options(&stream);
                assert!(!sockopt::tcp_congestion(&stream).expect("known").starts_with("bbr"));
                continue;
            }
            set_options(&stream);
            let after = sockopt::tcp_congestion(&stream).expect("known");
            assert_eq!(after == before, stays, "{before}, then {after}");
        }
    }
}

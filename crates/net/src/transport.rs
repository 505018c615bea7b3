//! The thread that owns all connections between daemons: accepts, dials, reads, handles timeouts.
//!
//! There is one connection per pair of daemons, dialled by the one with the higher index and used
//! both ways; messages on it keep their order. When a connection is lost, pending requests fail and
//! it is dialled again, with growing pauses. A request for a daemon that is not connected fails at
//! once; the caller retries for as long as it can wait.
//!
//! Another daemon may come in the place of one, at another address and with a later start. A connection
//! to the address before is given up when the file of addresses says so, and one of an earlier start
//! than was connected before is refused: the one before may live, cut off, and dial.
//!
//! An instance gets daemons while this one runs (`Sender::grow`). They have the highest indices, so they
//! dial; before this daemon knows of them it refuses them, and they dial again.
//!
//! All daemons of an instance start to dial at the same moment. So each dials its neighbours first,
//! so that they do not all dial the same daemon, and only a few at a time: more would wait for each
//! other's handshakes until these time out and start again.
//!
//! Every thread sends for itself (`link`); this thread only sends bytes that a socket did not take.
//! While it is awake it also does other work of its handler (`Handler::look`).

use crate::channel::Channel;
use crate::connection::{Connection, Filled, Phase};
use crate::frame::FrameKind;
use crate::handshake::{Accepting, Dialling, PeerIdentity, Proven, Refusal};
use crate::incomplete;
use crate::link::{Link, READABLE};
use crate::log_limit::LineLimit;
use crate::peers::{Addresses, Dial};
use crate::security::records::Tampered;
use crate::sender::{Links, Lost, ReplyHandle, Sender};
use crate::settings::Settings;
use crate::socket::{Place, Socket, bind_host, keep_alive, set_options};
use crate::strangers::Strangers;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use rustix::fd::AsFd;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use wire::DaemonIndex;

/// Time limit for connecting and the handshake.
pub(crate) const HANDSHAKE_TIME: Duration = Duration::from_secs(5);
/// Pause before a daemon is dialled again that knows a later start of this one.
const REFUSED_PAUSE: Duration = Duration::from_secs(5);
/// Maximum number of daemons dialled at the same time. Dials that take longer than `DIAL_TIME` or
/// failed recently do not count, so that dead hosts do not delay others.
const DIALS_MAX: usize = 8;
/// See `DIALS_MAX`: the time of a thousand handshakes.
const DIAL_TIME: Duration = Duration::from_millis(500);
/// How long the thread polls before it sleeps: a wake-up costs about as much.
const SPIN_TIME: Duration = Duration::from_micros(50);
/// Every so many spins the thread polls all connections, otherwise only the last active one.
const SPINS_PER_POLL: u32 = 8;
/// How long a frame that may wait for others waits while the thread is awake.
const LATER_TIME: Duration = Duration::from_micros(20);
/// Pause before accepting again after the system ran out of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

const LISTENER: u64 = 0;
const WAKER: u64 = 1;
const HOST_LISTENER: u64 = 2;
const FIRST_CONNECTION: u64 = 3;

/// Handles received frames. Called on the thread of `Net::run`; must not block.
pub trait Handler {
    /// Value that a request carries for its sender until the reply arrives.
    type Token: Send;
    /// A request of `from`; reply by `Sender::reply`, from any thread.
    fn request(&mut self, from: DaemonIndex, answer: ReplyHandle, bytes: &[u8]);
    /// A request of this daemon has ended.
    fn reply(&mut self, token: Self::Token, outcome: Result<&[u8], Lost>);
    /// A message of `from`.
    fn message(&mut self, from: DaemonIndex, bytes: &[u8]);
    /// A bulk stream that a peer dialled; the peer waits for the ready byte.
    fn bulk(&mut self, from: PeerIdentity, stream: Channel);
    /// `peer` is connected.
    fn up(&mut self, peer: PeerIdentity);
    /// `peer` is disconnected; frames sent last may be lost.
    fn down(&mut self, peer: DaemonIndex);
    /// Called while the thread is awake: does other work. True if there was any.
    fn look(&mut self) -> bool {
        false
    }
    /// Called before the thread sleeps. False: work has arrived, do not sleep.
    fn before_sleep(&mut self) -> bool {
        true
    }
}

/// Lines a minute about one peer that comes and goes.
const PEER_LINES: u32 = 8;

/// State of the thread.
pub struct Net<H: Handler> {
    settings: Settings,
    listener: TcpListener,
    host_listener: Option<(UnixListener, PathBuf)>,
    links: Arc<Links<H::Token>>,
    connections: BTreeMap<u64, Connection<H::Token>>,
    strangers: Strangers,
    next_connection: u64,
    /// Connection of each daemon.
    up: Vec<Option<u64>>,
    /// The latest start of each daemon that was connected.
    starts: Vec<u64>,
    dials: Vec<Dial>,
    addresses: Addresses,
    accept_again: Option<Instant>,
    /// Next deadline; the outer `None`: must be computed again.
    due: Option<Option<Instant>>,
    /// The connection on which bytes arrived last: while the thread spins, it reads from this one
    /// without asking the poller.
    last_active: Option<u64>,
    peer_lines: Vec<LineLimit>,
    refused_lines: LineLimit,
    tampered_lines: LineLimit,
    accept_lines: LineLimit,
}

impl<H: Handler> Net<H> {
    /// Binds the listening sockets. Nothing is accepted before `run`.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub fn bind(settings: Settings) -> io::Result<(Net<H>, Sender<H::Token>)> {
        let listener = TcpListener::bind(settings.listen)?;
        listener.set_nonblocking(true)?;
        let host_listener = settings.host_socket_of(settings.me).map(bind_host).transpose()?;
        let poller = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let waker = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let edge = EventFlags::IN | EventFlags::ET;
        epoll::add(&poller, &listener, EventData::new_u64(LISTENER), edge)?;
        epoll::add(&poller, &waker, EventData::new_u64(WAKER), EventFlags::IN)?;
        if let Some((listener, _)) = &host_listener {
            epoll::add(&poller, listener, EventData::new_u64(HOST_LISTENER), edge)?;
        }
        let links = Arc::new(Links::new(settings.daemon_count, poller, waker));
        let (now, daemons) = (Instant::now(), usize::from(settings.daemon_count));
        let dial = || Dial::at(now);
        let net = Net {
            up: vec![None; daemons],
            starts: vec![0; daemons],
            dials: core::iter::repeat_with(dial).take(usize::from(settings.me.0)).collect(),
            addresses: Addresses::new(settings.peers.clone()),
            settings,
            listener,
            host_listener,
            links: Arc::clone(&links),
            connections: BTreeMap::new(),
            strangers: Strangers::default(),
            next_connection: FIRST_CONNECTION,
            accept_again: None,
            due: None,
            last_active: None,
            peer_lines: vec![LineLimit::of(PEER_LINES); daemons],
            refused_lines: LineLimit::default(),
            tampered_lines: LineLimit::default(),
            accept_lines: LineLimit::default(),
        };
        Ok((net, Sender { links }))
    }

    /// Address on which it listens.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub fn local_address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Runs until `Sender::stop`.
    ///
    /// # Errors
    /// Errors of the poller itself.
    pub fn run(mut self, handler: &mut H) -> io::Result<()> {
        let mut events = Vec::with_capacity(64);
        let mut spin_until = Instant::now();
        let mut later_since = None;
        let mut spins = 0u32;
        while !self.links.stopping.load(Ordering::SeqCst) {
            if self.links.listen_again.load(Ordering::Relaxed) {
                self.listen_again(handler);
            }
            if self.links.read_addresses.load(Ordering::Relaxed) {
                self.readdress(handler);
            }
            if self.links.daemon_count.load(Ordering::Relaxed) != self.settings.daemon_count {
                self.grow();
            }
            // After all that changes deadlines: the thread may sleep until the next one that it finds.
            let now = Instant::now();
            self.tick(now, handler);
            let has_worked = handler.look();
            self.links.flush();
            if has_worked {
                spin_until = now + SPIN_TIME;
            }
            later_since = later_since.or(Some(now)).filter(|_| self.links.has_batched());
            if later_since.is_some_and(|since| now >= since + LATER_TIME || now >= spin_until) {
                self.links.flush_all();
                later_since = None;
            }
            let timeout = if now < spin_until || !handler.before_sleep() {
                Some(Duration::ZERO)
            } else {
                self.sleep_time(now)
            };
            spins = spins.wrapping_add(1);
            let is_short = timeout == Some(Duration::ZERO) && !spins.is_multiple_of(SPINS_PER_POLL);
            let came = match self.last_active.filter(|_| is_short) {
                Some(key) => self.read(key, handler),
                None => self.poll(timeout, &mut events, handler)?,
            };
            self.links.flush();
            if came {
                spin_until = Instant::now() + SPIN_TIME;
            }
            // Threads that wait for the received frames may share the CPU.
            if came || !has_worked {
                std::thread::yield_now();
            }
        }
        self.shut_down(handler);
        Ok(())
    }

    /// Waits for events on all connections. True if there were any.
    fn poll(
        &mut self,
        timeout: Option<Duration>,
        events: &mut Vec<epoll::Event>,
        handler: &mut H,
    ) -> io::Result<bool> {
        events.clear();
        let space = rustix::buffer::spare_capacity(events);
        match epoll::wait(&self.links.poller, space, timeout.map(timespec).as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        for event in events.iter() {
            let (data, flags) = (event.data, event.flags);
            self.event(data.u64(), flags, handler);
        }
        Ok(!events.is_empty())
    }

    /// How long to sleep: until the next deadline; `None`: indefinitely.
    fn sleep_time(&self, now: Instant) -> Option<Duration> {
        // The poller counts whole milliseconds; rounds up so as not to wake too soon.
        let next = self.due.flatten()?;
        Some(next.saturating_duration_since(now) + Duration::from_millis(1))
    }

    fn next_deadline(&self) -> Option<Instant> {
        let counted = self.dials_counted();
        let has_capacity = counted.clone().count() < DIALS_MAX;
        let space = if has_capacity { None } else { counted.map(|since| since + DIAL_TIME).min() };
        let dials = self.dials.iter().enumerate().filter_map(|(peer, dial)| {
            let is_due = dial.since.is_none() && self.up.get(peer).is_some_and(Option::is_none);
            (is_due && (has_capacity || dial.is_logged)).then_some(dial.next)
        });
        let dialled = self.connections.values().filter(|one| one.dialled.is_some());
        let dialled = dialled.filter(|one| one.peer().is_none()).map(|one| one.deadline);
        let strangers = self.strangers.deadline();
        let incomplete = self.connections.values().filter_map(|one| one.incomplete.deadline());
        let connections = dialled.chain(strangers).chain(incomplete);
        dials.chain(space).chain(connections).chain(self.accept_again).min()
    }

    /// Handles expired deadlines.
    fn tick(&mut self, now: Instant, handler: &mut H) {
        if self.due.is_none_or(|due| due.is_some_and(|due| due <= now)) {
            self.do_due(now, handler);
            self.due = Some(self.next_deadline());
        }
    }

    fn do_due(&mut self, now: Instant, handler: &mut H) {
        self.dial_due(now);
        let late = |(&key, one): (&u64, &Connection<_>)| {
            let is_late = one.dialled.is_some() && one.peer().is_none() && one.deadline <= now;
            is_late.then_some(key)
        };
        let dialled: Vec<u64> = self.connections.iter().filter_map(late).collect();
        for key in dialled.into_iter().chain(self.strangers.late(now)) {
            self.close(key, "no handshake in time", handler);
        }
        let late = |(&key, one): (&u64, &Connection<_>)| one.incomplete.is_late(now).then_some(key);
        let late: Vec<u64> = self.connections.iter().filter_map(late).collect();
        for key in late {
            self.settings.counters.incomplete.fetch_add(1, Ordering::Relaxed);
            self.close(key, incomplete::WHY, handler);
        }
        if self.accept_again.is_some_and(|again| again <= now) {
            self.accept_again = None;
            self.accept(handler);
            self.accept_of_host(handler);
        }
    }

    /// Start times of the dials that count for `DIALS_MAX`.
    fn dials_counted(&self) -> impl Iterator<Item = Instant> + Clone {
        let dials = self.dials.iter().filter(|dial| !dial.is_logged);
        dials.filter_map(|dial| dial.since.filter(|since| since.elapsed() < DIAL_TIME))
    }

    fn dial_due(&mut self, now: Instant) {
        self.addresses.may_read();
        let mut space = DIALS_MAX.saturating_sub(self.dials_counted().count());
        for peer in (0..self.settings.me.0).rev() {
            let is_up = self.up.get(usize::from(peer)).is_some_and(Option::is_some);
            let Some(dial) = self.dials.get(usize::from(peer)) else { continue };
            let is_due = !is_up && dial.since.is_none() && dial.next <= now;
            if is_due && (dial.is_logged || space > 0) {
                space -= usize::from(!dial.is_logged);
                self.dial(DaemonIndex(peer), now);
            }
        }
    }

    /// Gives up connections to addresses that daemons no longer have, and dials these again.
    #[cold]
    fn readdress(&mut self, handler: &mut H) {
        self.links.read_addresses.store(false, Ordering::SeqCst);
        self.addresses.read_now();
        for peer in (0..self.settings.me.0).map(DaemonIndex) {
            if self.settings.host_socket_of(peer).is_some() {
                continue;
            }
            let address = self.addresses.of(peer);
            let Some(dial) = self.dials.get_mut(usize::from(peer.0)) else { continue };
            if address.is_none() || dial.at.is_none() || dial.at == address {
                continue;
            }
            let of_peer = |one: &Connection<_>| one.dialled == Some(peer);
            let old: Vec<u64> =
                self.connections.iter().filter(|it| of_peer(it.1)).map(|it| *it.0).collect();
            for key in old {
                self.close(key, "another daemon is in its place, at another address", handler);
            }
            if let Some(dial) = self.dials.get_mut(usize::from(peer.0)) {
                *dial = Dial::at(Instant::now());
            }
            self.due = None;
        }
    }

    /// Admits daemons that the instance got.
    #[cold]
    fn grow(&mut self) {
        self.settings.daemon_count = self.links.daemon_count.load(Ordering::SeqCst);
        let daemons = usize::from(self.settings.daemon_count);
        self.up.resize(daemons, None);
        self.starts.resize(daemons, 0);
        self.peer_lines.resize(daemons, LineLimit::of(PEER_LINES));
    }

    /// Queues a frame of the handshake and sends it at once.
    fn send_frame(&self, key: u64, kind: FrameKind, payload: &[u8]) {
        if let Some(one) = self.connections.get(&key)
            && one.link.push(kind, 0, payload).is_ok()
        {
            one.link.flush(&self.links.poller);
        }
    }

    fn event(&mut self, key: u64, flags: EventFlags, handler: &mut H) {
        match key {
            LISTENER => return self.accept(handler),
            HOST_LISTENER => return self.accept_of_host(handler),
            WAKER => {
                let _ = rustix::io::read(&self.links.waker, &mut [0; 8]);
                return;
            }
            _ => {}
        }
        let Some(one) = self.connections.get_mut(&key) else { return };
        if matches!(one.phase, Phase::Connecting(..)) {
            return self.connected(key, handler);
        }
        if flags.contains(EventFlags::OUT) {
            one.link.flush_writable(&self.links.poller);
        }
        if flags.intersects(EventFlags::IN | EventFlags::HUP | EventFlags::ERR | EventFlags::RDHUP)
        {
            self.read(key, handler);
        }
    }

    /// Reads available bytes. True if there were any.
    fn read(&mut self, key: u64, handler: &mut H) -> bool {
        self.last_active = None;
        let Some(one) = self.connections.get_mut(&key) else { return false };
        let filled = one.fill();
        if one.peer().is_some() {
            self.last_active = Some(key);
        }
        if let Some(deadline) = one.note_incomplete() {
            self.due = self.due.map(|due| Some(due.map_or(deadline, |due| due.min(deadline))));
        }
        match filled {
            Ok(Filled::Nothing) => return false,
            Ok(filled) => self.take_frames(key, filled, handler),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                self.tampered(key, handler);
            }
            Err(error) => self.close(key, &error.to_string(), handler),
        }
        true
    }

    fn take_frames(&mut self, key: u64, filled: Filled, handler: &mut H) {
        let Some(one) = self.connections.get_mut(&key) else { return };
        let link = Arc::clone(&one.link);
        loop {
            let Some(one) = self.connections.get_mut(&key) else { return };
            let peer = one.peer();
            match one.next_frame() {
                Ok(None) => break,
                Ok(Some(frame)) => match (peer, frame.kind) {
                    (Some(peer), FrameKind::Request) => {
                        let (to, id) = (peer.daemon, frame.id);
                        let answer = ReplyHandle { to, connection: key, id };
                        handler.request(peer.daemon, answer, frame.payload);
                    }
                    (Some(peer), FrameKind::Message) => handler.message(peer.daemon, frame.payload),
                    (Some(_), FrameKind::Reply) => {
                        if let Some(token) = link.answered(frame.id) {
                            handler.reply(token, Ok(frame.payload));
                        }
                    }
                    (Some(peer), FrameKind::Refusal) => {
                        let code = frame.payload.first().copied().unwrap_or(0);
                        return self.refused(key, peer.daemon, Refusal::ByPeer(code), handler);
                    }
                    (None, kind @ (FrameKind::Hello | FrameKind::Proof | FrameKind::Refusal)) => {
                        let payload = frame.payload.to_vec();
                        self.handshake_frame(key, kind, &payload, handler);
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

    fn handshake_frame(&mut self, key: u64, kind: FrameKind, payload: &[u8], handler: &mut H) {
        let Some(one) = self.connections.get_mut(&key) else { return };
        let outcome = match (core::mem::replace(&mut one.phase, Phase::Failed), kind) {
            (_, FrameKind::Refusal) => Err(Refusal::ByPeer(payload.first().copied().unwrap_or(0))),
            (Phase::Dialled(dialling), FrameKind::Hello) => match dialling.hello(payload) {
                Ok((proven, proof)) => self.admit_start(&proven.peer).map(|()| {
                    self.send_frame(key, FrameKind::Proof, &proof);
                    proven
                }),
                Err(refusal) => Err(refusal),
            },
            (Phase::Accepted(mut accepting), FrameKind::Hello) => match accepting.hello(payload) {
                Ok(answer) => {
                    one.phase = Phase::Accepted(accepting);
                    return self.send_frame(key, FrameKind::Hello, &answer);
                }
                Err(refusal) => Err(refusal),
            },
            (Phase::Accepted(mut accepting), FrameKind::Proof) => accepting
                .proof(payload)
                .and_then(|proven| self.admit_start(&proven.peer).map(|()| proven)),
            _ => Err(Refusal::Malformed),
        };
        match outcome {
            Ok(proven) => self.proven(key, proven, handler),
            Err(refusal) => self.refuse(key, refusal, handler),
        }
    }

    /// Refuses a daemon in whose place another one is.
    fn admit_start(&mut self, peer: &PeerIdentity) -> Result<(), Refusal> {
        let theirs = peer.start;
        match self.starts.get_mut(usize::from(peer.daemon.0)) {
            Some(latest) if theirs < *latest => Err(Refusal::Start { theirs }),
            latest => {
                latest.into_iter().for_each(|latest| *latest = theirs);
                Ok(())
            }
        }
    }

    fn proven(&mut self, key: u64, proven: Proven, handler: &mut H) {
        self.strangers.remove(key);
        if proven.peer.stream != 0 {
            return self.hand_over(key, proven, handler);
        }
        let Proven { peer: proven, keys } = proven;
        let peer = usize::from(proven.daemon.0);
        // The newer connection wins: the peer would not have opened it if the older one still
        // worked.
        if let Some(older) = self.up.get(peer).copied().flatten() {
            self.close(older, "replaced by a newer connection", handler);
        }
        let Some(one) = self.connections.get_mut(&key) else { return };
        one.phase = Phase::Up(proven);
        keep_alive(&one.link.stream);
        if let Some(keys) = keys {
            one.link.protect(keys.sealer);
            if one.protect(keys.opener).is_err() {
                return self.tampered(key, handler);
            }
        }
        let Some(one) = self.connections.get_mut(&key) else { return };
        self.links.note_start(proven.daemon, proven.start);
        self.links.set_link(proven.daemon, Some(Arc::clone(&one.link)));
        self.due = None;
        if let Some(up) = self.up.get_mut(peer) {
            *up = Some(key);
        }
        if let Some(dial) = self.dials.get_mut(peer) {
            dial.connected(Instant::now());
        }
        if let Some(before) = self.admit_line(peer) {
            tracing::info!(peer, start = proven.start, before, "peer connected");
        }
        handler.up(proven);
    }

    /// As `LineLimit::admit`, for lines about a peer that comes and goes.
    fn admit_line(&mut self, peer: usize) -> Option<u64> {
        self.peer_lines.get_mut(peer)?.admit(Instant::now())
    }

    /// Hands a bulk stream over to another thread.
    fn hand_over(&mut self, key: u64, proven: Proven, handler: &mut H) {
        let Some(one) = self.connections.remove(&key) else { return };
        self.due = None;
        let _ = epoll::delete(&self.links.poller, &one.link.stream);
        // The dialler must wait for the lane's ready byte; a connection with more data violates the
        // protocol.
        if one.is_drained()
            && let Ok(stream) = one.link.stream.try_clone()
        {
            handler.bulk(proven.peer, Channel::new(stream, proven.keys));
        }
    }

    /// Ends a connection on which a record did not verify.
    fn tampered(&mut self, key: u64, handler: &mut H) {
        self.settings.counters.tampered.fetch_add(1, Ordering::Relaxed);
        if let Some(before) = self.tampered_lines.admit(Instant::now()) {
            let from = self.connections.get(&key).and_then(|one| one.link.stream.source());
            tracing::warn!(?from, before, "{Tampered}: connection closed");
        }
        self.close(key, "a record was changed on its way", handler);
    }

    fn refuse(&mut self, key: u64, refusal: Refusal, handler: &mut H) {
        self.send_frame(key, FrameKind::Refusal, &[refusal.code()]);
        self.close(key, &refusal.to_string(), handler);
    }

    /// A peer refuses this daemon after its proof: another one is in this one's place.
    fn refused(&mut self, key: u64, peer: DaemonIndex, why: Refusal, handler: &mut H) {
        self.close(key, &why.to_string(), handler);
        if let Some(dial) = self.dials.get_mut(usize::from(peer.0)) {
            dial.next = Instant::now() + REFUSED_PAUSE;
        }
    }

    fn close(&mut self, key: u64, why: &str, handler: &mut H) {
        let Some(one) = self.connections.remove(&key) else { return };
        self.due = None;
        self.strangers.remove(key);
        let _ = epoll::delete(&self.links.poller, &one.link.stream);
        if let Some(peer) = one.dialled {
            self.dial_failed(peer, why);
        } else if one.peer().is_none() {
            self.settings.counters.refused.fetch_add(1, Ordering::Relaxed);
            if let Some(before) = self.refused_lines.admit(Instant::now()) {
                let from = one.link.stream.source();
                tracing::warn!(?from, why, before, "connection refused");
            }
        }
        let Some(proven) = one.peer() else { return };
        let peer = usize::from(proven.daemon.0);
        if let Some(up) = self.up.get_mut(peer).filter(|up| **up == Some(key)) {
            *up = None;
            self.links.set_link(proven.daemon, None);
            if let Some(before) = self.admit_line(peer) {
                tracing::warn!(peer, why, before, "peer lost");
            }
            handler.down(proven.daemon);
        }
        for token in one.link.close() {
            handler.reply(token, Err(Lost));
        }
    }

    fn accept(&mut self, handler: &mut H) {
        loop {
            match self.listener.accept() {
                Ok((stream, from)) => {
                    self.accepted(Socket::Tcp(stream), Some(from.ip()), handler);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => return self.stop_accepting(&error),
            }
        }
    }

    #[cold]
    fn listen_again(&mut self, handler: &mut H) {
        self.links.listen_again.store(false, Ordering::SeqCst);
        let Some(path) = self.settings.host_socket_of(self.settings.me) else { return };
        let edge = EventFlags::IN | EventFlags::ET;
        let bound = bind_host(path).and_then(|bound| {
            epoll::add(&self.links.poller, &bound.0, EventData::new_u64(HOST_LISTENER), edge)?;
            Ok(bound)
        });
        match bound {
            Ok(bound) => self.host_listener = Some(bound),
            Err(error) => tracing::warn!(%error, "cannot listen for daemons of this host"),
        }
        self.accept_of_host(handler);
    }

    fn accept_of_host(&mut self, handler: &mut H) {
        while let Some((listener, _)) = &self.host_listener {
            match listener.accept() {
                Ok((stream, _)) => self.accepted(Socket::Unix(stream), None, handler),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return self.stop_accepting(&error),
            }
        }
    }

    /// There is nothing more to accept, or the system is out of descriptors.
    fn stop_accepting(&mut self, error: &io::Error) {
        if error.kind() == io::ErrorKind::WouldBlock {
            return;
        }
        let now = Instant::now();
        if let Some(before) = self.accept_lines.admit(now) {
            tracing::warn!(%error, before, "cannot accept a peer");
        }
        self.accept_again = Some(now + ACCEPT_PAUSE);
        self.due = None;
    }

    fn accepted(&mut self, stream: Socket, source: Option<IpAddr>, handler: &mut H) {
        let place = stream.set_nonblocking(true).and_then(|()| stream.place());
        let Ok(place) = place else { return };
        let Ok(accepting) =
            Accepting::new(&self.settings.secret, self.settings.parties(place), place)
        else {
            return;
        };
        let key = self.add(stream, Phase::Accepted(accepting), None);
        if let Some(leaves) = self.strangers.add(key, source, Instant::now()) {
            self.close(leaves, "it proved nothing and gave way to another one", handler);
        }
    }

    fn add(&mut self, stream: Socket, phase: Phase, dialled: Option<DaemonIndex>) -> u64 {
        let key = self.next_connection;
        self.next_connection += 1;
        self.due = None;
        set_options(&stream);
        let link = Link::new(key, stream);
        let mut flags = READABLE;
        if dialled.is_some() {
            link.set_polls_writable();
            flags |= EventFlags::OUT;
        }
        let _ = epoll::add(&self.links.poller, &link.stream, EventData::new_u64(key), flags);
        let deadline = Instant::now() + HANDSHAKE_TIME;
        self.connections.insert(key, Connection::new(link, phase, dialled, deadline));
        key
    }

    fn dial(&mut self, peer: DaemonIndex, now: Instant) {
        let outcome = match self.settings.host_socket_of(peer) {
            Some(path) => path.exists().then(|| self.connect_on_host(peer, path)),
            None => self.addresses.of(peer).map(|address| {
                if let Some(dial) = self.dials.get_mut(usize::from(peer.0)) {
                    dial.at = Some(address);
                }
                self.connect(peer, address)
            }),
        };
        let Some(outcome) = outcome else {
            // The address is not known yet: the instance is starting.
            if let Some(dial) = self.dials.get_mut(usize::from(peer.0)) {
                dial.wait_for_address(now);
            }
            return;
        };
        match outcome {
            Ok((stream, phase)) => {
                if let Some(dial) = self.dials.get_mut(usize::from(peer.0)) {
                    dial.since = Some(now);
                }
                self.add(stream, phase, Some(peer));
            }
            Err(error) => self.dial_failed(peer, &error.to_string()),
        }
    }

    fn connect(&self, peer: DaemonIndex, address: SocketAddr) -> io::Result<(Socket, Phase)> {
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
        match rustix::net::connect(socket.as_fd(), &address) {
            Ok(()) | Err(rustix::io::Errno::INPROGRESS) => {}
            Err(error) => return Err(error.into()),
        }
        let phase = self.dialling(peer, Place::Tcp(address))?;
        Ok((Socket::Tcp(TcpStream::from(socket)), phase))
    }

    fn connect_on_host(&self, peer: DaemonIndex, path: PathBuf) -> io::Result<(Socket, Phase)> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        // Completes at once, or fails: at once too if the peer's queue is full.
        rustix::net::connect(socket.as_fd(), &rustix::net::SocketAddrUnix::new(path)?)?;
        let phase = self.dialling(peer, Place::Host)?;
        Ok((Socket::Unix(UnixStream::from(socket)), phase))
    }

    fn dialling(&self, peer: DaemonIndex, place: Place) -> io::Result<Phase> {
        let (secret, parties) = (&self.settings.secret, self.settings.parties(place));
        let (dialling, hello) =
            Dialling::new(secret, parties, (peer, place), 0).map_err(io::Error::other)?;
        Ok(Phase::Connecting(dialling, hello))
    }

    fn connected(&mut self, key: u64, handler: &mut H) {
        let Some(one) = self.connections.get_mut(&key) else { return };
        let outcome = match sockopt::socket_error(&one.link.stream) {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) | Err(error) => Err(error),
        };
        if let Err(error) = outcome {
            return self.close(key, &io::Error::from(error).to_string(), handler);
        }
        if let Phase::Connecting(dialling, hello) =
            core::mem::replace(&mut one.phase, Phase::Failed)
        {
            one.phase = Phase::Dialled(dialling);
            self.send_frame(key, FrameKind::Hello, &hello);
        }
    }

    fn dial_failed(&mut self, peer: DaemonIndex, why: &str) {
        let Some(dial) = self.dials.get_mut(usize::from(peer.0)) else { return };
        self.due = None;
        self.addresses.forget(peer);
        dial.failed(Instant::now());
        if !dial.is_logged {
            dial.is_logged = true;
            tracing::warn!(peer = peer.0, why, "cannot reach peer; trying on");
        }
    }

    /// Sends queued frames until the sockets would block, and fails all pending requests.
    fn shut_down(&mut self, handler: &mut H) {
        self.links.flush();
        if let Some((_, path)) = &self.host_listener {
            let _ = std::fs::remove_file(path);
        }
        for one in self.connections.values() {
            for token in one.link.close() {
                handler.reply(token, Err(Lost));
            }
        }
    }
}

pub(crate) fn timespec(time: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(time.subsec_nanos()),
    }
}

//! The main thread: the Unix socket, start and end of sessions, signals, the host's processes.
//!
//!   accepted --hello--> arrived --> session --end of the socket--> closed
//!                                           (all its processes have closed it)
//!            --query--> answered, closed
//!            --anything else, or a timeout--> closed
//!
//! A connection that violates this protocol is closed without effect on others.

use crate::host::activity::answering;
use crate::host::reaper::Reaper;
use crate::sessions::client_session::ClientSession;
use crate::sessions::greeting::{self, HelloKind, WelcomeTemplate};
use crate::sessions::hazard_sweep::HazardSweep;
use crate::sessions::lost_files;
use crate::sessions::push_recount::PushRecount;
use crate::sessions::settlement::{LeftRequests, Settlements};
use crate::sessions::status;
use crate::sessions::writeback::WritebackProgram;
use crate::shared::Shared;
use crate::shared::inbox::WorkerMessage;
use crate::shares::answering as rule_commands;
use crate::target::Devices;
use crate::threads::worker::Workers;
use gateway::{PeerCredentials, Sessions};
use rustix::event::Timespec;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::fd::OwnedFd;
use rustix::net::{RecvFlags, SendFlags, sockopt};
use shm::Segment;
use shm::bounce::SESSION_WITH_BUFFERS_BYTES;
use shm::session::Session;
use std::collections::BTreeMap;
use std::io;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use wire::Header;
use wire::client_id::PER_SESSION;
use wire::codec::Reader;
use wire::errno::Errno;
use wire::limits::{SLOT_BYTES, SLOT_COUNT};
use wire::welcome::HELLO_BYTES;

/// Time limit for the hello.
const GREETING_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum number of connections without a hello.
const GREETING_COUNT_MAX: usize = 256;
/// Interval between scans of the host's processes, while there are any: maximum, increase per
/// process, and minimum.
const REAP_PAUSE: Duration = Duration::from_secs(1);
const REAP_EACH: Duration = Duration::from_millis(20);
const REAP_PAUSE_MIN: Duration = Duration::from_millis(100);
/// A killed process closes its sockets slightly before it is gone.
const REAP_DELAY: Duration = Duration::from_millis(20);
/// Interval between scans for requests of killed threads whose session survives in other processes,
/// which were forked from the same one, and for writes that they counted; while there are sessions.
const WITHDRAW_PAUSE: Duration = Duration::from_secs(1);
/// Maximum number of events of a round.
const EVENT_COUNT_MAX: usize = 64;
/// Interval between looks whether requests of killed processes are over (`Settlements`).
const SETTLE_PAUSE: Duration = Duration::from_millis(1);
/// Pause before accepting again after the system ran out of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Interval between looks at the places of the daemon: two or three system calls.
const LOOK_PAUSE: Duration = Duration::from_secs(2);
/// The same while the starter writes records, and for how long it may.
const LOOK_PAUSE_YOUNG: Duration = Duration::from_millis(100);
const YOUNG_TIME: Duration = Duration::from_secs(4);

const LISTENER: u64 = 0;
const SIGNALS: u64 = 1;
const FIRST_CONNECTION: u64 = 2;

enum ConnectionState {
    Greeting {
        hello: [u8; HELLO_BYTES],
        length: usize,
        deadline: Instant,
        peer: PeerCredentials,
    },
    /// Its session is to open.
    Arrived(PeerCredentials),
    Session(Arc<ClientSession>),
}

struct Connection {
    stream: UnixStream,
    state: ConnectionState,
}

/// State of the main thread.
pub(crate) struct Acceptor {
    shared: Arc<Shared>,
    workers: Arc<Workers>,
    welcome_template: WelcomeTemplate,
    listener: UnixListener,
    signals: UnixStream,
    epoll: OwnedFd,
    connections: BTreeMap<u64, Connection>,
    next_connection: u64,
    /// Connections whose hello has arrived since the last look for killed processes.
    arrived: Vec<u64>,
    /// Connections whose sessions open when the requests of processes that were killed before are over.
    settling: Vec<u64>,
    settlements: Settlements,
    sessions: Sessions,
    owner: u32,
    writeback_program: WritebackProgram,
    /// Present only in the home daemon of the host.
    reaper: Option<Reaper>,
    reap_at: Option<Instant>,
    accept_at: Option<Instant>,
    withdraw_at: Option<Instant>,
    look_at_places: LookAtPlaces,
    look_at: Instant,
    push_recount: PushRecount,
    hazard_sweep: HazardSweep,
}

/// The result of a look at the places of the daemon.
#[derive(Default)]
pub(crate) struct Look {
    /// The new socket for clients, if the run directory was made again.
    pub(crate) listener: Option<UnixListener>,
    /// The named shared memory is gone.
    pub(crate) is_memory_gone: bool,
    /// The file of addresses has changed.
    pub(crate) has_new_addresses: bool,
}

/// Looks whether the socket and the shared memory still have their names.
pub(crate) type LookAtPlaces = Box<dyn FnMut() -> Look>;

/// Arguments of `Acceptor::new`.
pub(crate) struct AcceptorParts {
    /// The workers, whose metrics a status query updates.
    pub(crate) workers: Arc<Workers>,
    /// Welcome for all clients.
    pub(crate) welcome_template: WelcomeTemplate,
    /// The listening socket.
    pub(crate) listener: UnixListener,
    /// See `LookAtPlaces`.
    pub(crate) look_at_places: LookAtPlaces,
    /// Becomes readable when a signal asks the daemon to end.
    pub(crate) signals: UnixStream,
    /// Session table, empty.
    pub(crate) sessions: Sessions,
    /// User id that may attach, besides root.
    pub(crate) owner: u32,
    /// Present in the home daemon of the host.
    pub(crate) reaper: Option<Reaper>,
    /// The devices of the target.
    pub(crate) devices: Arc<Devices>,
}

impl Acceptor {
    /// Sets up the poller.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub(crate) fn new(shared: Arc<Shared>, parts: AcceptorParts) -> io::Result<Acceptor> {
        let AcceptorParts {
            workers,
            welcome_template,
            listener,
            look_at_places,
            signals,
            sessions,
            owner,
            reaper,
            devices,
        } = parts;
        listener.set_nonblocking(true)?;
        signals.set_nonblocking(true)?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let edge = EventFlags::IN | EventFlags::ET;
        epoll::add(&epoll, &listener, EventData::new_u64(LISTENER), edge)?;
        epoll::add(&epoll, &signals, EventData::new_u64(SIGNALS), EventFlags::IN)?;
        let reap_at = reaper.is_some().then(Instant::now);
        Ok(Acceptor {
            shared,
            workers,
            welcome_template,
            listener,
            signals,
            epoll,
            connections: BTreeMap::new(),
            next_connection: FIRST_CONNECTION,
            arrived: Vec::new(),
            settling: Vec::new(),
            settlements: Settlements::default(),
            sessions,
            owner,
            writeback_program: WritebackProgram::of(owner),
            reaper,
            reap_at,
            accept_at: None,
            withdraw_at: None,
            look_at_places,
            look_at: Instant::now(),
            push_recount: PushRecount::default(),
            hazard_sweep: HazardSweep::new(devices),
        })
    }

    /// Runs until a signal asks the daemon to end.
    ///
    /// # Errors
    /// Errors of the poller itself.
    pub(crate) fn run(mut self) -> io::Result<()> {
        let mut events = Vec::with_capacity(EVENT_COUNT_MAX);
        loop {
            let timeout = self.tick();
            let arrived = std::mem::take(&mut self.arrived);
            self.shared.net.sender.flush();
            events.clear();
            let buffer = rustix::buffer::spare_capacity(&mut events);
            match epoll::wait(&self.epoll, buffer, timeout.as_ref()) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            for event in &events {
                let (data, flags) = (event.data, event.flags);
                match data.u64() {
                    LISTENER => self.accept(),
                    SIGNALS => {
                        let _ = rustix::io::read(&self.signals, &mut [0; 64]);
                        return Ok(());
                    }
                    key => self.on_readable(key, flags),
                }
            }
            if events.len() < EVENT_COUNT_MAX {
                self.settle(arrived);
            } else {
                self.arrived.extend(arrived);
            }
            self.open_sessions();
        }
    }

    /// Handles expired deadlines; returns how long to sleep.
    fn tick(&mut self) -> Option<Timespec> {
        let now = Instant::now();
        if self.accept_at.is_some_and(|at| at <= now) {
            self.accept_at = None;
            self.accept();
        }
        if self.reap_at.is_some_and(|at| at <= now)
            && let Some(reaper) = &mut self.reaper
        {
            let living = reaper.reap(&self.shared);
            let has_work = living > 0 || self.sessions.count() > 0 || reaper.has_work();
            // A scan costs some 20 us per process: about a thousandth of the time.
            let pause = REAP_EACH * u32::try_from(living).unwrap_or(u32::MAX);
            self.reap_at = has_work.then(|| now + pause.clamp(REAP_PAUSE_MIN, REAP_PAUSE));
        }
        if self.withdraw_at.is_some_and(|at| at <= now) {
            self.withdraw();
            let is_complete = self.recount_pushes() & self.hazard_sweep.run();
            let has_work = !is_complete || self.sessions.count() > 0;
            self.withdraw_at = has_work.then(|| now + WITHDRAW_PAUSE);
        }
        if self.look_at <= now {
            self.look_at_places();
            let is_young = self.shared.timing.begun.elapsed() < YOUNG_TIME;
            self.look_at = now + if is_young { LOOK_PAUSE_YOUNG } else { LOOK_PAUSE };
        }
        let open_at = (!self.settling.is_empty()).then(|| now + SETTLE_PAUSE);
        let times = [self.reap_at, self.accept_at, self.withdraw_at, Some(self.look_at), open_at];
        let mut next: Vec<Instant> = times.into_iter().flatten().collect();
        let mut late = Vec::new();
        for (&key, one) in &self.connections {
            if let ConnectionState::Greeting { deadline, .. } = one.state {
                if deadline <= now { late.push(key) } else { next.push(deadline) }
            }
        }
        for key in late {
            self.close(key);
        }
        if !self.arrived.is_empty() {
            return Some(Timespec { tv_sec: 0, tv_nsec: 0 });
        }
        let left = next.into_iter().min()?.saturating_duration_since(now);
        // The poller counts whole milliseconds; rounds up so as not to wake too soon.
        let left = left + Duration::from_millis(1);
        Some(Timespec {
            tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(left.subsec_nanos()),
        })
    }

    /// Tells services of a host that is gone, if a process says so; those that know it.
    fn gone_known(&self, hello: HelloKind, peer: PeerCredentials) -> Vec<u32> {
        let HelloKind::Gone(gone) = hello else { return Vec::new() };
        let Shared { audit, gone_hosts, inboxes, .. } = &*self.shared;
        let what = format!("host={} round={}", gone.host, gone.round);
        audit.note("host-gone", (peer.uid, peer.pid), &what);
        gone_hosts.tell(inboxes, gone);
        gone_hosts.aware(gone)
    }

    /// Lends memory, if a process says so.
    fn lend(&self, hello: HelloKind, peer: PeerCredentials) {
        let HelloKind::Lend(steps) = hello else { return };
        self.shared.lending.agree(steps);
        self.shared.audit.note("set-memory", (peer.uid, peer.pid), &format!("terms={steps:#x}"));
    }

    /// Has the membership add a daemon, or one of it leave, or balance loads, if a process says so.
    fn change_daemons(&self, hello: HelloKind, peer: PeerCredentials) {
        let Shared { audit, members, .. } = &*self.shared;
        let note = |what, text: String| audit.note(what, (peer.uid, peer.pid), &text);
        match hello {
            HelloKind::Add(daemon, domain) => {
                note("add-daemon", format!("daemon={} domain={domain}", daemon.0));
                if let Some(members) = members {
                    members.propose_daemon(daemon, domain.into());
                }
            }
            HelloKind::Leave(daemon) => {
                note("leave", format!("daemon={}", daemon.0));
                if let Some(members) = members {
                    members.propose_leave(daemon);
                }
            }
            HelloKind::Balance(word) => {
                note("balance", format!("word={word:?}"));
                if let Some(members) = members {
                    members.propose_balance(word);
                }
            }
            _ => {}
        }
    }

    /// Listens at a new socket, if the directory of the earlier one was removed.
    fn look_at_places(&mut self) {
        let Look { listener, is_memory_gone, has_new_addresses } = (self.look_at_places)();
        self.shared.is_memory_gone.store(is_memory_gone, Relaxed);
        if has_new_addresses {
            self.shared.net.sender.read_addresses();
        }
        let Some(listener) = listener else { return };
        let edge = EventFlags::IN | EventFlags::ET;
        let added = listener.set_nonblocking(true).and_then(|()| {
            Ok(epoll::add(&self.epoll, &listener, EventData::new_u64(LISTENER), edge)?)
        });
        match added {
            Ok(()) => self.listener = listener,
            Err(error) => tracing::warn!(%error, "cannot listen at the new socket"),
        }
        self.shared.net.sender.listen_again();
        self.accept();
    }

    fn accept(&mut self) {
        loop {
            match self.listener.accept() {
                Ok((stream, _)) => self.greet(stream),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a client");
                    self.accept_at = Some(Instant::now() + ACCEPT_PAUSE);
                    return;
                }
            }
        }
    }

    fn greet(&mut self, stream: UnixStream) {
        let Ok(peer) = sockopt::socket_peercred(&stream) else { return };
        let (uid, gid) = (peer.uid.as_raw(), peer.gid.as_raw());
        let pid = peer.pid.as_raw_nonzero().get().unsigned_abs();
        if uid != self.owner && uid != 0 {
            tracing::warn!(uid, pid, "client refused: wrong user");
            return greeting::refuse(&stream, Errno::EACCES);
        }
        let greetings = self
            .connections
            .values()
            .filter(|one| matches!(one.state, ConnectionState::Greeting { .. }));
        if greetings.count() >= GREETING_COUNT_MAX || stream.set_nonblocking(true).is_err() {
            return;
        }
        let key = self.next_connection;
        self.next_connection += 1;
        let flags = EventFlags::IN | EventFlags::RDHUP;
        if epoll::add(&self.epoll, &stream, EventData::new_u64(key), flags).is_err() {
            return;
        }
        let peer = PeerCredentials { uid, gid, pid };
        let deadline = Instant::now() + GREETING_TIMEOUT;
        let state =
            ConnectionState::Greeting { hello: [0; HELLO_BYTES], length: 0, deadline, peer };
        self.connections.insert(key, Connection { stream, state });
        // The hello has usually arrived already.
        self.on_readable(key, EventFlags::IN);
    }

    /// Bytes, or the end, arrived on a connection.
    fn on_readable(&mut self, key: u64, flags: EventFlags) {
        let Some(Connection { stream, state }) = self.connections.get_mut(&key) else { return };
        let ConnectionState::Greeting { hello, length, peer, .. } = state else {
            // Nothing is sent on the socket after the hello, so any event is its end.
            if flags.intersects(EventFlags::IN | EventFlags::RDHUP | EventFlags::HUP) {
                self.close(key);
            }
            return;
        };
        let peer = *peer;
        let buffer = hello.get_mut(*length..).unwrap_or_default();
        match rustix::net::recv(&*stream, buffer, RecvFlags::DONTWAIT) {
            Ok((0, _)) => return self.close(key),
            Ok((count, _)) => *length += count,
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => return,
            Err(_) => return self.close(key),
        }
        if *length < HELLO_BYTES {
            return;
        }
        match greeting::parse_hello(hello) {
            Ok(HelloKind::Session) => {
                *state = ConnectionState::Arrived(peer);
                self.arrived.push(key);
            }
            Ok(
                parse_hello @ (HelloKind::Status
                | HelloKind::Lend(_)
                | HelloKind::Gone(_)
                | HelloKind::Add(..)
                | HelloKind::Leave(_)
                | HelloKind::Balance(_)),
            ) => {
                // An answer says how it is now.
                self.look_at_places();
                let Some(Connection { stream, .. }) = self.connections.get(&key) else { return };
                self.lend(parse_hello, peer);
                self.change_daemons(parse_hello, peer);
                let gone_known = self.gone_known(parse_hello, peer);
                self.workers.publish(&self.shared);
                let line = status::line(&self.shared, self.sessions.count(), gone_known);
                let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
                let _ = rustix::net::send(stream, line.as_bytes(), flags);
                self.close(key);
            }
            Ok(HelloKind::Activity(word)) => {
                if let Ok(stream) = stream.try_clone() {
                    answering::answer(&self.shared, stream, word);
                }
                self.close(key);
            }
            Ok(HelloKind::Lost) => {
                if let Ok(stream) = stream.try_clone() {
                    lost_files::answer(&self.shared, stream);
                }
                self.close(key);
            }
            Ok(HelloKind::Rules(length)) => {
                if let Ok(stream) = stream.try_clone() {
                    rule_commands::answer(&self.shared, stream, peer, length);
                }
                self.close(key);
            }
            Err(errno) => {
                greeting::refuse(stream, errno);
                self.close(key);
            }
        }
    }

    /// Connections have arrived before the last look for events: looks for processes that were killed
    /// before. Once, because what waits for a lock, or at another daemon, may take long.
    fn settle(&mut self, arrived: Vec<u64>) {
        if !arrived.is_empty() {
            self.withdraw();
            self.settling.extend(arrived);
        }
    }

    /// Opens sessions, unless requests of killed processes are not over.
    fn open_sessions(&mut self) {
        if self.settling.is_empty() || !self.settlements.are_over() {
            return;
        }
        for key in std::mem::take(&mut self.settling) {
            if let Some(Connection { state: ConnectionState::Arrived(peer), .. }) =
                self.connections.get(&key)
            {
                let peer = *peer;
                self.open_session(key, peer);
            }
        }
    }

    fn open_session(&mut self, key: u64, peer: PeerCredentials) {
        let outcome = self.try_open_session(key, peer);
        let Err(errno) = outcome else { return };
        tracing::warn!(pid = peer.pid, %errno, "cannot open a session");
        if let Some(one) = self.connections.get(&key) {
            greeting::refuse(&one.stream, errno);
        }
        self.close(key);
    }

    fn try_open_session(&mut self, key: u64, peer: PeerCredentials) -> wire::errno::Result<()> {
        let Shared { members, net, .. } = &*self.shared;
        if members.as_ref().is_some_and(|it| it.leaves(net.router.me)) {
            // It ends when its last session has.
            return Err(Errno::EBUSY);
        }
        let (segment, memory) = Segment::nameless(c"forebay-session", SESSION_WITH_BUFFERS_BYTES)?;
        let slots = Session::new(segment)?;
        let session = self.sessions.open(peer)?;
        self.shared.audit.note("attach", (peer.uid, peer.pid), "");
        if let Some(activity) = &self.shared.host.activity {
            activity.note_user(peer.pid, peer.uid);
        }
        if let Err(errno) = self.shared.host.op_log.note_session(session.index) {
            self.sessions.close(session.index);
            return Err(errno);
        }
        self.shared.sessions.open.note_open(session.index);
        self.shared.sessions.client_ids.opened(session.client_id);
        let is_writeback = self.writeback_program.is_run_by(&peer);
        if is_writeback {
            self.shared.shares.note_writeback(peer.pid);
        }
        let accounts = Mutex::default();
        let client = Arc::new(ClientSession { session, slots, accounts, is_writeback });
        for worker in 0..self.shared.net.router.workers {
            self.shared.inboxes.send_to_worker(worker, WorkerMessage::Opened(Arc::clone(&client)));
        }
        let Some(one) = self.connections.get_mut(&key) else { return Err(Errno::EIO) };
        one.state = ConnectionState::Session(client);
        let map = self.shared.net.router.map_now();
        let with = (&map, rustix::fd::AsFd::as_fd(&memory));
        let sent = self.welcome_template.welcome(&one.stream, &session, with);
        if let Err(error) = sent {
            // The client left before its welcome; handled as any other end.
            tracing::debug!(pid = peer.pid, %error, "cannot welcome a client");
            self.close(key);
        }
        self.withdraw_at.get_or_insert_with(|| Instant::now() + WITHDRAW_PAUSE);
        // Forked children share a session, so their deaths are found only by scanning.
        if self.reaper.is_some() && self.reap_at.is_none() {
            self.reap_at = Some(Instant::now() + REAP_PAUSE_MIN);
        }
        Ok(())
    }

    /// Withdraws requests of dead threads, which may wait in any daemon, for a lock or in a queue.
    fn withdraw(&mut self) {
        let mut message = Box::new([0; SLOT_BYTES]);
        for one in self.connections.values() {
            let ConnectionState::Session(client) = &one.state else { continue };
            let first = client.session.client_id;
            let mut requests = Vec::new();
            client.slots.each_unawaited(&mut |slot| {
                if slot >= SLOT_COUNT {
                    let (client_id, sequence) = (first + slot as u64, client.slots.sequence(slot));
                    return requests.push(LeftRequests::One { client_id, sequence });
                }
                let length = client.slots.request(slot, &mut message);
                let bytes = length.and_then(|length| message.get(..length)).unwrap_or_default();
                // Written by the client, so it must name the client's own requests.
                if let Ok(Header { client_id, sequence, .. }) =
                    Header::decode(&mut Reader::new(bytes))
                    && (first..first + PER_SESSION).contains(&client_id)
                {
                    requests.push(LeftRequests::One { client_id, sequence });
                }
            });
            if !requests.is_empty() {
                let workers = self.shared.net.router.workers;
                let session = Some(client.session.index);
                let settlement = self.settlements.add(session, requests, workers);
                self.shared.inboxes.settle(&settlement);
            }
        }
    }

    /// Corrects the counts of writes of killed threads. False if some are left for later.
    fn recount_pushes(&mut self) -> bool {
        let sessions = self.connections.values().filter_map(|one| match &one.state {
            ConnectionState::Session(client) => Some(client),
            ConnectionState::Greeting { .. } | ConnectionState::Arrived(_) => None,
        });
        self.push_recount.run(&self.shared, &sessions.collect::<Vec<_>>())
    }

    fn close(&mut self, key: u64) {
        let Some(Connection { stream, state }) = self.connections.remove(&key) else { return };
        let _ = epoll::delete(&self.epoll, &stream);
        let ConnectionState::Session(client) = state else { return };
        self.shared.start_pushes_left(&client);
        self.push_recount.add_closed(Arc::clone(&client));
        self.hazard_sweep.add_ended(client.session.index);
        if !(self.recount_pushes() & self.hazard_sweep.run()) {
            self.withdraw_at.get_or_insert_with(|| Instant::now() + WITHDRAW_PAUSE);
        }
        let session = client.session;
        if let Some(activity) = &self.shared.host.activity {
            activity.note_end(session.peer.pid);
        }
        if client.is_writeback {
            self.shared.shares.note_writeback_end(session.peer.pid);
        }
        self.shared.sessions.open.note_closed(session.index);
        self.sessions.close(session.index);
        let (first, count) = (session.client_id, PER_SESSION);
        let Shared { net, inboxes, .. } = &*self.shared;
        let workers = net.router.workers;
        for worker in 0..workers {
            inboxes.send_to_worker(worker, WorkerMessage::Closed(session.index));
        }
        // A request in progress may wait at another daemon as well, for a lock or in a queue.
        let requests = vec![LeftRequests::Of { first, count }];
        if client.slots.has_waiting() {
            inboxes.settle(&self.settlements.add(None, requests, workers));
        } else {
            inboxes.client_gone(first, count);
        }
        self.shared.sessions.client_ids.closed(first);
        if self.reaper.is_some() {
            let soon = Instant::now() + REAP_DELAY;
            self.reap_at = Some(self.reap_at.map_or(soon, |at| at.min(soon)));
        }
    }
}

//! The main thread: the Unix socket, sessions and their ends, signals, the host's processes.
//!
//!   accepted --hello--> session --end of the socket--> gone     (every process of it has closed)
//!            --question--> answered, gone
//!            --anything else, or nothing in time--> gone
//!
//! A connection that does not keep to this is closed; nobody else notices.

use crate::greeting::{self, Offer, Wish};
use crate::inbox::Note;
use crate::peers::{tell_origin_gone, tell_withdrawn};
use crate::reaper::Reaper;
use crate::shared::{Guest, Shared};
use crate::status;
use gateway::{Believed, Sessions};
use rustix::event::Timespec;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::fd::OwnedFd;
use rustix::net::{RecvFlags, SendFlags, sockopt};
use shm::Segment;
use shm::session::Session;
use shm::stage::SESSION_AND_STAGE_BYTES;
use std::collections::BTreeMap;
use std::io;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::time::{Duration, Instant};
use wire::Header;
use wire::codec::Reader;
use wire::errno::Errno;
use wire::limits::{SLOT_BYTES, SLOT_COUNT};
use wire::origin::PER_SESSION;
use wire::welcome::HELLO_BYTES;

/// Time for a hello.
const GREETING_TIME: Duration = Duration::from_secs(2);
/// Most connections that have not said hello.
const GREETING_COUNT_MAX: usize = 256;
/// Between two looks at the processes of the host, while there are any: at most, for each of them,
/// and at least.
const REAP_PAUSE: Duration = Duration::from_secs(1);
const REAP_EACH: Duration = Duration::from_millis(20);
const REAP_PAUSE_MIN: Duration = Duration::from_millis(100);
/// A process that is killed closes its sockets a little before it is gone.
const REAP_DELAY: Duration = Duration::from_millis(20);
/// Between two looks for requests of killed threads whose session lives on in others that were forked
/// from the same process, while there are sessions.
const WITHDRAW_PAUSE: Duration = Duration::from_secs(1);
/// Pause before accepting again after the system had no descriptor left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

const LISTENER: u64 = 0;
const SIGNALS: u64 = 1;
const FIRST_CONNECTION: u64 = 2;

enum Stage {
    Greeting { hello: [u8; HELLO_BYTES], length: usize, deadline: Instant, believed: Believed },
    Session(Arc<Guest>),
}

struct Connection {
    stream: UnixStream,
    stage: Stage,
}

/// The main thread's state.
pub(crate) struct Acceptor {
    shared: Arc<Shared>,
    offer: Offer,
    listener: UnixListener,
    signals: UnixStream,
    epoll: OwnedFd,
    connections: BTreeMap<u64, Connection>,
    next_connection: u64,
    sessions: Sessions,
    owner: u32,
    /// Only the home daemon of the host looks after its processes.
    reaper: Option<Reaper>,
    reap_at: Option<Instant>,
    accept_at: Option<Instant>,
    withdraw_at: Option<Instant>,
}

/// What the acceptor works with.
pub(crate) struct Parts {
    /// What clients get.
    pub(crate) offer: Offer,
    /// The socket.
    pub(crate) listener: UnixListener,
    /// Becomes readable when the daemon is asked to end.
    pub(crate) signals: UnixStream,
    /// Sessions, none yet.
    pub(crate) sessions: Sessions,
    /// Who may attach, beside root.
    pub(crate) owner: u32,
    /// Is this the daemon that looks after the host's processes?
    pub(crate) reaper: Option<Reaper>,
}

impl Acceptor {
    /// Sets the poller up.
    ///
    /// # Errors
    /// What the operating system says.
    pub(crate) fn new(shared: Arc<Shared>, parts: Parts) -> io::Result<Acceptor> {
        let Parts { offer, listener, signals, sessions, owner, reaper } = parts;
        listener.set_nonblocking(true)?;
        signals.set_nonblocking(true)?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let edge = EventFlags::IN | EventFlags::ET;
        epoll::add(&epoll, &listener, EventData::new_u64(LISTENER), edge)?;
        epoll::add(&epoll, &signals, EventData::new_u64(SIGNALS), EventFlags::IN)?;
        let reap_at = reaper.is_some().then(Instant::now);
        Ok(Acceptor {
            shared,
            offer,
            listener,
            signals,
            epoll,
            connections: BTreeMap::new(),
            next_connection: FIRST_CONNECTION,
            sessions,
            owner,
            reaper,
            reap_at,
            accept_at: None,
            withdraw_at: None,
        })
    }

    /// Runs until a signal asks the daemon to end.
    ///
    /// # Errors
    /// What the operating system says of the poller itself.
    pub(crate) fn run(mut self) -> io::Result<()> {
        let mut events = Vec::with_capacity(64);
        loop {
            let timeout = self.keep_time();
            self.shared.net.flush();
            events.clear();
            let room = rustix::buffer::spare_capacity(&mut events);
            match epoll::wait(&self.epoll, room, timeout.as_ref()) {
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
                    key => self.hear(key, flags),
                }
            }
        }
    }

    /// Does what is due; returns how long to sleep.
    fn keep_time(&mut self) -> Option<Timespec> {
        let now = Instant::now();
        if self.accept_at.is_some_and(|at| at <= now) {
            self.accept_at = None;
            self.accept();
        }
        if self.reap_at.is_some_and(|at| at <= now)
            && let Some(reaper) = &mut self.reaper
        {
            let living = reaper.reap(&self.shared);
            let goes_on = living > 0 || self.sessions.count() > 0 || reaper.goes_on();
            // A look costs some 20 us for each process: about a thousandth of the time.
            let pause = REAP_EACH * u32::try_from(living).unwrap_or(u32::MAX);
            self.reap_at = goes_on.then(|| now + pause.clamp(REAP_PAUSE_MIN, REAP_PAUSE));
        }
        if self.withdraw_at.is_some_and(|at| at <= now) {
            self.withdraw();
            self.withdraw_at = (self.sessions.count() > 0).then(|| now + WITHDRAW_PAUSE);
        }
        let times = [self.reap_at, self.accept_at, self.withdraw_at];
        let mut next: Vec<Instant> = times.into_iter().flatten().collect();
        let mut late = Vec::new();
        for (&key, one) in &self.connections {
            if let Stage::Greeting { deadline, .. } = one.stage {
                if deadline <= now { late.push(key) } else { next.push(deadline) }
            }
        }
        for key in late {
            self.close(key);
        }
        let left = next.into_iter().min()?.saturating_duration_since(now);
        // Whole milliseconds are what the poller counts; never wake before the time.
        let left = left + Duration::from_millis(1);
        Some(Timespec {
            tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(left.subsec_nanos()),
        })
    }

    fn accept(&mut self) {
        loop {
            match self.listener.accept() {
                Ok((stream, _)) => self.accepted(stream),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    tracing::warn!(%error, "can not accept a client");
                    self.accept_at = Some(Instant::now() + ACCEPT_PAUSE);
                    return;
                }
            }
        }
    }

    fn accepted(&mut self, stream: UnixStream) {
        let Ok(peer) = sockopt::socket_peercred(&stream) else { return };
        let (uid, gid) = (peer.uid.as_raw(), peer.gid.as_raw());
        let pid = peer.pid.as_raw_nonzero().get().unsigned_abs();
        if uid != self.owner && uid != 0 {
            tracing::warn!(uid, pid, "a stranger was refused");
            return greeting::refuse(&stream, Errno::EACCES);
        }
        let greetings =
            self.connections.values().filter(|one| matches!(one.stage, Stage::Greeting { .. }));
        if greetings.count() >= GREETING_COUNT_MAX || stream.set_nonblocking(true).is_err() {
            return;
        }
        let key = self.next_connection;
        self.next_connection += 1;
        let flags = EventFlags::IN | EventFlags::RDHUP;
        if epoll::add(&self.epoll, &stream, EventData::new_u64(key), flags).is_err() {
            return;
        }
        let believed = Believed { uid, gid, pid };
        let deadline = Instant::now() + GREETING_TIME;
        let stage = Stage::Greeting { hello: [0; HELLO_BYTES], length: 0, deadline, believed };
        self.connections.insert(key, Connection { stream, stage });
        // The hello is there already more often than not.
        self.hear(key, EventFlags::IN);
    }

    /// Something came on a connection, or its end.
    fn hear(&mut self, key: u64, flags: EventFlags) {
        let Some(Connection { stream, stage }) = self.connections.get_mut(&key) else { return };
        let Stage::Greeting { hello, length, believed, .. } = stage else {
            // A session is silent: whatever comes is its end.
            if flags.intersects(EventFlags::IN | EventFlags::RDHUP | EventFlags::HUP) {
                self.close(key);
            }
            return;
        };
        let believed = *believed;
        let room = hello.get_mut(*length..).unwrap_or_default();
        match rustix::net::recv(&*stream, room, RecvFlags::DONTWAIT) {
            Ok((0, _)) => return self.close(key),
            Ok((count, _)) => *length += count,
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => return,
            Err(_) => return self.close(key),
        }
        if *length < HELLO_BYTES {
            return;
        }
        match greeting::wish(hello) {
            Ok(Wish::Session) => self.open_session(key, believed),
            Ok(wish @ (Wish::Status | Wish::Lend(_))) => {
                if let Wish::Lend(steps) = wish {
                    self.shared.lend.agree(steps);
                }
                let line = status::line(&self.shared, self.sessions.count());
                let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
                let _ = rustix::net::send(&*stream, line.as_bytes(), flags);
                self.close(key);
            }
            Err(errno) => {
                greeting::refuse(stream, errno);
                self.close(key);
            }
        }
    }

    fn open_session(&mut self, key: u64, believed: Believed) {
        let outcome = self.try_open_session(key, believed);
        let Err(errno) = outcome else { return };
        tracing::warn!(pid = believed.pid, %errno, "no session for a client");
        if let Some(one) = self.connections.get(&key) {
            greeting::refuse(&one.stream, errno);
        }
        self.close(key);
    }

    fn try_open_session(&mut self, key: u64, believed: Believed) -> wire::errno::Result<()> {
        let (segment, memory) = Segment::nameless(c"forebay-session", SESSION_AND_STAGE_BYTES)?;
        let slots = Session::new(segment)?;
        let session = self.sessions.open(believed)?;
        self.shared.posts.note_session(session.index);
        self.shared.open.note(session.index);
        self.shared.origins.opened(session.origin);
        let guest = Arc::new(Guest { session, slots });
        for worker in 0..self.shared.router.workers {
            self.shared.tell(worker, Note::Opened(Arc::clone(&guest)));
        }
        let Some(one) = self.connections.get_mut(&key) else { return Err(Errno::EIO) };
        one.stage = Stage::Session(guest);
        let sent = self.offer.welcome(&one.stream, &session, rustix::fd::AsFd::as_fd(&memory));
        if let Err(error) = sent {
            // Gone before it was welcome: an end like any other.
            tracing::debug!(pid = believed.pid, %error, "can not welcome a client");
            self.close(key);
        }
        self.withdraw_at.get_or_insert_with(|| Instant::now() + WITHDRAW_PAUSE);
        // Children made by fork share a session: their deaths are found by looking.
        if self.reaper.is_some() && self.reap_at.is_none() {
            self.reap_at = Some(Instant::now() + REAP_PAUSE_MIN);
        }
        Ok(())
    }

    /// Withdraws what the dead wait for: it may wait anywhere, for a lock or for its turn.
    fn withdraw(&self) {
        let mut message = Box::new([0; SLOT_BYTES]);
        for one in self.connections.values() {
            let Stage::Session(guest) = &one.stage else { continue };
            let first = guest.session.origin;
            guest.slots.unawaited(&mut |slot| {
                if slot >= SLOT_COUNT {
                    let origin = first + slot as u64;
                    return tell_withdrawn(&self.shared, origin, guest.slots.sequence(slot));
                }
                let length = guest.slots.request(slot, &mut message);
                let bytes = length.and_then(|length| message.get(..length)).unwrap_or_default();
                // The client's word: it may be about its own requests alone.
                if let Ok(header) = Header::decode(&mut Reader::new(bytes))
                    && (first..first + PER_SESSION).contains(&header.origin)
                {
                    tell_withdrawn(&self.shared, header.origin, header.sequence);
                }
            });
        }
    }

    fn close(&mut self, key: u64) {
        let Some(Connection { stream, stage }) = self.connections.remove(&key) else { return };
        let _ = epoll::delete(&self.epoll, &stream);
        let Stage::Session(guest) = stage else { return };
        self.shared.start_pushes(&guest);
        let session = guest.session;
        self.shared.open.forget(session.index);
        self.sessions.close(session.index);
        let (first, count) = (session.origin, PER_SESSION);
        for worker in 0..self.shared.router.workers {
            self.shared.tell(worker, Note::Closed(session.index));
            self.shared.tell(worker, Note::OriginGone { first, count });
        }
        self.shared.origins.closed(first);
        // What it was killed in may wait at another daemon, for a lock or for its turn. What others
        // remember of it, they ask about.
        if guest.slots.has_waiting() {
            tell_origin_gone(&self.shared, first, count);
        }
        if self.reaper.is_some() {
            let soon = Instant::now() + REAP_DELAY;
            self.reap_at = Some(self.reap_at.map_or(soon, |at| at.min(soon)));
        }
    }
}

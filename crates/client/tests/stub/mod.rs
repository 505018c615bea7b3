//! A daemon of a few hundred lines: one worker, everything in memory, no checks. It implements the
//! handshake, the slots, the index and the extents, so that the client's code runs against all of
//! them without the real daemon.

mod copied;
mod namespace;
mod put_off;

use copied::CopiedBytes;
use namespace::Namespace;
use placement::Map;
use put_off::PutOff;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::IoSlice;
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType,
};
use shm::activity::ACTIVITY_BYTES;
use shm::extents::{
    Arena, ExtentStates, ExtentTable, HAZARDS_BYTES, HEADER_BYTES, PageSums, STATE_BYTES,
    extent_hints_bytes, page_groups_bytes,
};
use shm::host::{HOST_BYTES, HostSegment};
use shm::index::{Index, LEASES_BYTES, Shape};
use shm::local_ops::OP_LOG_BYTES;
use shm::session::{DOORBELLS_BYTES, Doorbells, SESSION_BYTES, Session, Sleep};
use shm::{Access, Segment};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use wire::codec::{Reader, Writer};
use wire::limits::SLOT_BYTES;
use wire::welcome::{HELLO_BYTES, MAGIC, WELCOME_BYTES_MAX};
use wire::{Header, Reply, Request, Welcome};

const ARENA_BYTES: usize = 64 << 20;
const EXTENTS: usize = 4096;
const PAGE_GROUPS_BYTES: usize = page_groups_bytes(ARENA_BYTES as u64) as usize;

/// State that outlives a restart of the stub.
pub(crate) struct State {
    pub(crate) namespace: Mutex<Namespace>,
    /// Requests are answered only once this many wait, the one in the last slot first.
    pub(crate) held_until: AtomicUsize,
    /// The memory of the last session.
    pub(crate) session: Mutex<Option<OwnedFd>>,
    pub(crate) put_off: Mutex<PutOff>,
    /// Files have copies.
    pub(crate) copied: Mutex<Option<CopiedBytes>>,
    fds: Vec<OwnedFd>,
}

/// A running stub.
pub(crate) struct Stub {
    pub(crate) state: Arc<State>,
    directory: PathBuf,
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

fn map(fd: &OwnedFd, length: usize) -> Segment {
    Segment::map(fd, length, Access::ReadWrite).expect("our own memory")
}

fn memory(length: usize) -> OwnedFd {
    Segment::nameless(c"stub", length).expect("memory").1
}

impl Stub {
    /// Starts with an empty instance.
    pub(crate) fn start(name: &str) -> Stub {
        let directory = std::env::temp_dir().join(format!("fb-stub-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&directory);
        std::fs::create_dir_all(&directory).expect("a directory");
        let shape = Shape { entries_log2: 10, inodes_log2: 10 };
        let fds = vec![
            memory(DOORBELLS_BYTES),
            memory(HOST_BYTES),
            memory(ARENA_BYTES),
            memory(EXTENTS * HEADER_BYTES),
            memory(EXTENTS * STATE_BYTES),
            memory(4096),
            // Its gate stays closed, so there are no local operations.
            memory(OP_LOG_BYTES),
            // Empty: no hints.
            memory(extent_hints_bytes(EXTENTS)),
            // No leases.
            memory(LEASES_BYTES),
            memory(HAZARDS_BYTES),
            memory(PAGE_GROUPS_BYTES),
            // No SSD, so no sums.
            memory(4096),
            memory(ACTIVITY_BYTES),
            memory(shape.bytes()),
        ];
        let namespace = Namespace::new(
            Index::create(map(&fds[13], shape.bytes()), shape).expect("an index"),
            HostSegment::new(map(&fds[1], HOST_BYTES)).expect("a host segment"),
            Arena::new(map(&fds[2], ARENA_BYTES)),
            ExtentTable::new(map(&fds[3], EXTENTS * HEADER_BYTES)),
            ExtentStates::new(
                map(&fds[4], EXTENTS * STATE_BYTES),
                map(&fds[10], PAGE_GROUPS_BYTES),
                PageSums::new(map(&fds[11], 4096)),
            ),
        );
        let (namespace, held_until) = (Mutex::new(namespace), AtomicUsize::new(0));
        let state = State {
            namespace,
            held_until,
            session: Mutex::new(None),
            put_off: Mutex::default(),
            copied: Mutex::default(),
            fds,
        };
        let state = Arc::new(state);
        let ends = Arc::new(AtomicBool::new(false));
        let mut stub = Stub { state, directory, ends, thread: None };
        stub.resume();
        stub
    }

    /// From the next attachment on files have copies. Each write is answered `Busy` so often first.
    pub(crate) fn begin_copies(&self, busy_times: usize) {
        let copied = CopiedBytes { busy_times, ..CopiedBytes::default() };
        *self.state.copied.lock().expect("no panic") = Some(copied);
    }

    /// The directory of its socket.
    pub(crate) fn rundir(&self) -> std::ffi::CString {
        std::ffi::CString::new(self.directory.to_str().expect("a plain path")).expect("no NUL")
    }

    /// The last session, as its client sees it.
    pub(crate) fn session(&self) -> Session {
        let fd = self.state.session.lock().expect("no panic");
        Session::new(map(fd.as_ref().expect("attached"), SESSION_BYTES)).expect("a session")
    }

    /// Ends the thread and all connections, as a kill does.
    pub(crate) fn stop(&mut self) {
        self.ends.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            thread.join().expect("the stub runs to its end");
        }
    }

    /// Restarts with the contents of `State`.
    pub(crate) fn resume(&mut self) {
        let path = self.directory.join("d0.sock");
        let _ = std::fs::remove_file(&path);
        let path = path.to_str().expect("a plain path");
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let listener =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
                .expect("a socket");
        let address = SocketAddrUnix::new(path).expect("a short path");
        rustix::net::bind(&listener, &address).expect("a free path");
        rustix::net::listen(&listener, 16).expect("listening");
        self.ends = Arc::new(AtomicBool::new(false));
        let (state, ends) = (Arc::clone(&self.state), Arc::clone(&self.ends));
        self.thread = Some(std::thread::spawn(move || serve(&state, &listener, &ends)));
    }
}

impl Drop for Stub {
    fn drop(&mut self) {
        self.stop();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

fn serve(state: &State, listener: &OwnedFd, ends: &AtomicBool) {
    let bells = Doorbells::new(map(&state.fds[0], DOORBELLS_BYTES)).expect("bells");
    let mut sessions: Vec<(Session, OwnedFd)> = Vec::new();
    let mut waiting: Vec<u64> = Vec::new();
    let mut bytes = Box::new([0; SLOT_BYTES]);
    while !ends.load(Ordering::SeqCst) {
        if let Ok(stream) = rustix::net::accept(listener) {
            sessions.push(welcome(state, stream, sessions.len() as u16));
            waiting.push(0);
        }
        let mut rung = Vec::new();
        if !bells.take(0, |session| rung.push(session)) {
            bells.sleep(0, 1000, Sleep::Deep, || false);
        }
        for session in rung {
            let number = usize::from(session);
            let Some((session, _)) = sessions.get(number) else { continue };
            waiting[number] |= session.take_pending(0);
            if (waiting[number].count_ones() as usize) < state.held_until.load(Ordering::SeqCst) {
                continue;
            }
            state.held_until.store(0, Ordering::SeqCst);
            let slots = std::mem::take(&mut waiting[number]);
            for slot in (0..64).rev().filter(|slot| slots >> slot & 1 != 0) {
                let Some(length) = session.request(slot, &mut bytes) else { continue };
                let mut reader = Reader::new(&bytes[..length]);
                let header = Header::decode(&mut reader).expect("a header");
                let request = Request::decode(&mut reader).expect("a request");
                answer(state, session, slot, &header, &request);
            }
        }
    }
}

fn answer(state: &State, session: &Session, slot: usize, header: &Header, request: &Request<'_>) {
    let mut copied = state.copied.lock().expect("no panic");
    if let Some(reply) = copied.as_mut().and_then(|copied| copied.reply(header, request)) {
        return session.reply(slot, &reply);
    }
    let mut put_off = state.put_off.lock().expect("no panic");
    if let Some(reply) = put_off.reply(header, request) {
        return session.reply(slot, &reply);
    }
    let mut namespace = state.namespace.lock().expect("no panic");
    let mut reply = Box::new([0; SLOT_BYTES]);
    let mut writer = Writer::new(&mut reply[..]);
    namespace.perform(header, request, &mut |answer: Reply<'_>| answer.encode(&mut writer));
    let length = writer.finish().expect("an answer fits");
    session.reply(slot, &put_off.told(header, request, &reply[..length]));
}

fn welcome(state: &State, stream: OwnedFd, number: u16) -> (Session, OwnedFd) {
    let mut hello = [0; HELLO_BYTES];
    let (length, _) =
        rustix::net::recv(&stream, &mut hello[..], RecvFlags::WAITALL).expect("a hello");
    assert_eq!((length, &hello[..8]), (HELLO_BYTES, &MAGIC[..]));
    let (segment, fd) = Segment::nameless(c"session", SESSION_BYTES).expect("memory");
    let welcome = Welcome {
        local_count: 1,
        workers: 1,
        session: number,
        pid: std::process::id(),
        client_id: u64::from(number) << 16,
        arena_bytes: ARENA_BYTES as u64,
        extent_count: EXTENTS as u32,
        stripe_log2: 20,
        inline_bytes: 4096,
        timeout_micros: 5_000_000,
        copies: if state.copied.lock().expect("no panic").is_some() { 2 } else { 1 },
        ..Welcome::default()
    };
    let mut bytes = [0; WELCOME_BYTES_MAX];
    let mut writer = Writer::new(&mut bytes);
    welcome.encode(&mut writer);
    Map::initial(1).expect("one daemon").encode(&mut writer);
    let length = writer.finish().expect("a welcome fits");
    let mut fds: Vec<BorrowedFd<'_>> = vec![fd.as_fd()];
    fds.extend(state.fds.iter().map(AsFd::as_fd));
    let mut space = [const { std::mem::MaybeUninit::uninit() }; rustix::cmsg_space!(ScmRights(27))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
    let slices = [IoSlice::new(&bytes[..length])];
    *state.session.lock().expect("no panic") = Some(fd.try_clone().expect("a descriptor"));
    rustix::net::sendmsg(&stream, &slices, &mut control, SendFlags::empty()).expect("sent");
    (Session::new(segment).expect("a session"), stream)
}

//! Serving: what is agreed on at the start, and threads that take a request each from `/dev/fuse`,
//! have it answered, and send the reply. Those that take them from rings are in `rings`.

use client::{Client, PathBuffer};
use fuse::abi::{IN_HEADER_BYTES, OUT_HEADER_BYTES, capability};
use fuse::init::{Offer, TRANSFER_BYTES};
use fuse::request::Init;
use fuse::{Agreed, Header, Operation};
use rustix::fd::OwnedFd;
use rustix::thread::Timespec;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use wire::codec::{Malformed, Writer};
use wire::errno::Errno;

use crate::accesses::Accesses;
use crate::answer::Request;
use crate::device::{self, REQUEST_BYTES_MAX};
use crate::handles::Handles;
use crate::locks::Locks;
use crate::nodes::inode_of;
use crate::owners::Owners;
use crate::pages::Pages;
use crate::pins::{Pins, SWEEP};
use crate::places::Places;
use crate::rings::{Prepared, Rings};
use crate::settings::{Settings, Transport};
use crate::straight::Straight;
use crate::through::Through;
use crate::turns::{Serving, Turns};
use crate::versions::Versions;
use crate::waits::Begun;
use crate::watches::{Telling, Watches};

/// Bytes of the largest reply: a read, with its header.
const REPLY_BYTES_MAX: usize = TRANSFER_BYTES as usize + OUT_HEADER_BYTES;
/// How long what is forgotten is gathered; so much later an interrupt comes, which waits behind it.
const GATHER_NANOS: i64 = 2_000_000;
/// Requests before the first that the kernel may send: there is none but `INIT`.
const STARTS_MAX: usize = 4;

/// What all threads share.
pub(crate) struct Server {
    /// The instance.
    pub(crate) client: &'static Client,
    /// What is open through this mount.
    pub(crate) handles: Handles,
    /// What was agreed on with the kernel.
    pub(crate) agreed: Agreed,
    /// Who is who.
    pub(crate) owners: Owners,
    /// Locks that are held through this mount.
    pub(crate) locks: Locks,
    /// Files that were looked up a moment ago.
    pub(crate) pins: Pins,
    /// Files whose access times were asked about a moment ago.
    pub(crate) accesses: Accesses,
    /// The threads that serve.
    pub(crate) turns: Turns,
    /// What the kernel remembers.
    pub(crate) watches: Watches,
    /// Files of which it keeps pages.
    pub(crate) versions: Versions,
    /// What comes into these, and which are to go.
    pub(crate) pages: Pages,
    /// Files that are written past them.
    pub(crate) straight: Straight,
    /// Directories that were met.
    pub(crate) places: Places,
    /// Files that are saved before they are closed.
    pub(crate) through: Through,
    /// By which requests come.
    pub(crate) device: Arc<OwnedFd>,
    /// The kernel's root is a directory above the instance's (`nodes`).
    pub(crate) is_aside: bool,
}

/// How it is mounted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Way {
    /// How requests come.
    pub(crate) transport: Transport,
    /// The kernel's root is a directory above the instance's.
    pub(crate) is_aside: bool,
}

/// What one thread has for itself.
pub(crate) struct Scratch {
    /// A path of the request.
    pub(crate) path: PathBuffer,
    /// And another.
    pub(crate) other: PathBuffer,
}

impl Scratch {
    pub(crate) fn new() -> Scratch {
        Scratch { path: PathBuffer::new(), other: PathBuffer::new() }
    }
}

/// How a thread takes what the kernel has forgotten.
#[derive(Clone, Copy)]
enum Forgets {
    /// As it comes: the thread has other requests to look for.
    AtOnce,
    /// Many at a time: each that wakes the thread up takes the processor from who removes files.
    Gathered,
}

impl Forgets {
    /// After a request that nobody waits for. A signal ends it.
    fn pause(self) {
        if matches!(self, Forgets::Gathered) {
            let time = Timespec { tv_sec: 0, tv_nsec: GATHER_NANOS };
            let _ = rustix::thread::nanosleep(&time);
        }
    }
}

/// What became of a request.
pub(crate) enum Answer {
    /// Nobody waits for an answer.
    None,
    /// So many bytes of a body, or an errno.
    Said(Result<usize, Errno>),
    /// A lock is to be waited for, or until a file is saved.
    Waits(Box<Begun>),
}

impl Server {
    /// Waits for the kernel's first request and answers it. With rings, if that is what is agreed on: it
    /// sends nothing more before they are begun.
    ///
    /// # Errors
    /// One line: the kernel is too old, or the device fails.
    pub(crate) fn agree(
        client: &'static Client,
        handles: Handles,
        device: OwnedFd,
        settings: &Settings,
        way: Way,
    ) -> Result<(Server, Option<Prepared>), String> {
        let failed = |errno| format!("/dev/fuse: {errno}");
        let mut room = vec![0; REQUEST_BYTES_MAX];
        for _ in 0..STARTS_MAX {
            let request = device::receive_request(&device, &mut room).map_err(failed)?;
            let request = request.ok_or("it was unmounted at once")?;
            if request.is_empty() {
                continue;
            }
            let header = Header::parse(request).map_err(|error| error.to_string())?;
            let body = request.get(IN_HEADER_BYTES..).unwrap_or_default();
            let mut reply = [0; 128];
            let Ok(Operation::Init(init)) = Operation::parse(header.opcode, body, true) else {
                let length = refusal(&mut reply, header.unique, Errno::EIO);
                let _ = device::send_reply(&device, reply.get(..length).unwrap_or_default());
                continue;
            };
            let rings = rings_for(&init, settings, way.transport)?;
            let agreed = Agreed::of(&init, Offer { rings: rings.is_some(), passthrough: false });
            let agreed = agreed.map_err(|old| {
                format!("the kernel speaks FUSE {}.{}, 7.31 is needed", old.major, old.minor)
            })?;
            let length = reply_with(&mut reply, header.unique, |to| {
                agreed.write(to);
                Ok(())
            });
            let reply = reply.get(..length).unwrap_or_default();
            device::send_reply(&device, reply).map_err(failed)?;
            let owners = if settings.is_apart { Owners::of_namespace() } else { Owners::default() };
            let server = Server {
                client,
                handles,
                agreed,
                owners,
                locks: Locks::new(),
                pins: Pins::new(),
                accesses: Accesses::default(),
                turns: Turns::default(),
                watches: Watches::new(),
                versions: Versions::new(),
                pages: Pages::new(),
                straight: Straight::new(),
                places: Places::new(),
                through: Through::default(),
                device: Arc::new(device),
                is_aside: way.is_aside,
            };
            return Ok((server, rings));
        }
        Err("the kernel does not begin with INIT".to_owned())
    }

    /// Serves until the mount is gone.
    ///
    /// # Errors
    /// The device failed.
    pub(crate) fn run(
        self: &Arc<Self>,
        threads: usize,
        rings: Option<Rings>,
    ) -> Result<(), String> {
        let mut others = Vec::new();
        // With rings only what is forgotten or interrupted comes by the device.
        let threads = if rings.is_some() { 1 } else { threads };
        for number in 1..threads {
            let server = Arc::clone(self);
            let name = format!("serve {number}");
            others.extend(std::thread::Builder::new().name(name).spawn(move || {
                // As well by the common one.
                let own = device::another(&server.device).map(Arc::new);
                server.serve(&own.unwrap_or_else(|_| Arc::clone(&server.device)), Forgets::AtOnce)
            }));
        }
        // It ends when the sender goes.
        let (sender, over) = mpsc::channel::<()>();
        let server = Arc::clone(self);
        others.extend(std::thread::Builder::new().name("sweep".to_owned()).spawn(move || {
            while over.recv_timeout(SWEEP) == Err(RecvTimeoutError::Timeout) {
                server.sweep_pins();
            }
            Ok(())
        }));
        let notices = self.watch_services();
        let forgets = if rings.is_some() { Forgets::Gathered } else { Forgets::AtOnce };
        let outcome = self.serve(&self.device, forgets);
        drop(sender);
        self.watches.end();
        notices.into_iter().for_each(|thread| drop(thread.join()));
        self.locks.interrupt_all();
        for other in others {
            let _ = other.join();
        }
        if let Some(rings) = rings {
            rings.join();
        }
        outcome
    }

    fn serve(self: &Arc<Self>, device: &Arc<OwnedFd>, forgets: Forgets) -> Result<(), String> {
        let mut room = vec![0; REQUEST_BYTES_MAX];
        let mut reply = vec![0; REPLY_BYTES_MAX];
        let mut scratch = Scratch::new();
        let (serving, telling) = (self.turns.begin(), self.watches.telling());
        loop {
            serving.pass();
            let request = match device::receive_request(device, &mut room) {
                Ok(Some([])) => continue,
                Ok(Some(request)) => request,
                Ok(None) => return Ok(()),
                Err(errno) => return Err(format!("/dev/fuse: {errno}")),
            };
            let by = (device, &serving, &telling);
            let length = self.answer_one(by, request, &mut reply, &mut scratch);
            let Some(length) = length else {
                forgets.pause();
                continue;
            };
            if let Err(errno) = device::send_reply(device, reply.get(..length).unwrap_or_default())
            {
                // The kernel did not take it; the one who waits must not wait for ever.
                tracing::warn!(%errno, "a reply was refused");
                self.refuse(device, request);
            }
            telling.end();
        }
    }

    fn refuse(&self, device: &OwnedFd, request: &[u8]) {
        if let Ok(header) = Header::parse(request) {
            let mut reply = [0; OUT_HEADER_BYTES];
            let length = refusal(&mut reply, header.unique, Errno::EIO);
            let _ = device::send_reply(device, reply.get(..length).unwrap_or_default());
        }
    }

    /// Answers one request of the device; `None` if nobody waits for an answer.
    fn answer_one(
        self: &Arc<Self>,
        (device, serving, telling): (&Arc<OwnedFd>, &Serving<'_>, &Telling<'_>),
        request: &[u8],
        reply: &mut [u8],
        scratch: &mut Scratch,
    ) -> Option<usize> {
        let header = Header::parse(request).ok()?;
        let body = request.get(IN_HEADER_BYTES..)?;
        let operation = Operation::parse(header.opcode, body, self.has_long_xattr());
        if !operation.as_ref().is_ok_and(Operation::may_end_locks) {
            serving.pass();
        }
        let room = reply.get_mut(OUT_HEADER_BYTES..)?;
        match self.answer(header, operation, room, (scratch, telling)) {
            Answer::None => None,
            Answer::Waits(begun) => {
                let device = Arc::clone(device);
                self.wait_for(header, begun, move |outcome| {
                    let mut reply = [0; OUT_HEADER_BYTES];
                    let length = reply_with(&mut reply, header.unique, |_| outcome);
                    let _ = device::send_reply(&*device, reply.get(..length).unwrap_or_default());
                });
                None
            }
            Answer::Said(said) => Some(head(reply, header.unique, said)),
        }
    }

    /// What the parser is to know of what was agreed on.
    pub(crate) fn has_long_xattr(&self) -> bool {
        self.agreed.has(capability::SETXATTR_EXT)
    }

    /// Answers one request, however it came, and writes the body of the reply.
    pub(crate) fn answer(
        &self,
        header: Header,
        operation: Result<Operation<'_>, Malformed>,
        body: &mut [u8],
        (scratch, telling): (&mut Scratch, &Telling<'_>),
    ) -> Answer {
        let Ok(operation) = operation else { return Answer::Said(Err(Errno::EIO)) };
        let request = Request { server: self, header, telling };
        match operation {
            // Nobody waits in this thread: it may be the one that is to serve who unlocks.
            Operation::SetLock { lock, waits: true } => match request.take_or_wait(&lock) {
                Ok(Some(begun)) => Answer::Waits(Box::new(begun)),
                outcome => Answer::Said(outcome.map(|_| 0)),
            },
            // As well.
            Operation::Flush { handle, .. } | Operation::Sync { handle, .. }
                if request.is_saved_at(&operation, handle) =>
            {
                match request.sync_and_save(&operation, handle) {
                    Ok(begun) => Answer::Waits(Box::new(begun)),
                    Err(errno) => Answer::Said(Err(errno)),
                }
            }
            Operation::Forget { .. } => {
                self.unpin(inode_of(header.node));
                self.through.forget(inode_of(header.node));
                Answer::None
            }
            Operation::BatchForget(nodes) => {
                nodes.for_each(|(node, _)| {
                    self.unpin(inode_of(node));
                    self.through.forget(inode_of(node));
                });
                Answer::None
            }
            Operation::Retrieved => Answer::None,
            Operation::Interrupt { unique } => {
                if self.locks.interrupt(unique) {
                    self.client.wake_for_waits();
                }
                Answer::None
            }
            _ => {
                let said = written(body, |to| request.answer(&operation, scratch, to));
                if let Err(errno) = said {
                    let Header { opcode, node, .. } = header;
                    tracing::debug!(opcode, node, errno = errno.name(), "refused");
                }
                if !telling.tell() {
                    let body = body.get_mut(..said.unwrap_or(0)).unwrap_or_default();
                    fuse::reply::expire(header.opcode, body);
                }
                Answer::Said(said)
            }
        }
    }
}

/// Rings, if they are wanted and can be had.
fn rings_for(
    init: &Init,
    settings: &Settings,
    transport: Transport,
) -> Result<Option<Prepared>, String> {
    let is_offered = init.capabilities & capability::OVER_IO_URING != 0;
    let prepared = match transport {
        Transport::Classic => return Ok(None),
        _ if !is_offered => Err("the kernel does not offer them".to_owned()),
        _ => Prepared::new(settings.threads),
    };
    match prepared {
        Ok(prepared) => Ok(Some(prepared)),
        Err(why) if transport == Transport::Rings => Err(format!("no requests by rings: {why}")),
        Err(why) => {
            tracing::info!(why, "requests come by /dev/fuse, not by rings");
            Ok(None)
        }
    }
}

/// Bytes of the body that `answer` wrote, or the errno that came instead.
fn written(
    body: &mut [u8],
    answer: impl FnOnce(&mut Writer<'_>) -> Result<(), Errno>,
) -> Result<usize, Errno> {
    let mut to = Writer::new(body);
    answer(&mut to)?;
    to.finish().map_err(|_| Errno::EIO)
}

/// A reply with a body, or with the errno that came instead.
fn reply_with(
    reply: &mut [u8],
    unique: u64,
    answer: impl FnOnce(&mut Writer<'_>) -> Result<(), Errno>,
) -> usize {
    let said = written(reply.get_mut(OUT_HEADER_BYTES..).unwrap_or_default(), answer);
    head(reply, unique, said)
}

/// A reply that is an errno.
fn refusal(reply: &mut [u8], unique: u64, errno: Errno) -> usize {
    head(reply, unique, Err(errno))
}

/// Writes the header before a body that is written already; says how long both are.
pub(crate) fn head(reply: &mut [u8], unique: u64, said: Result<usize, Errno>) -> usize {
    let (body, errno) = said.map_or_else(|errno| (0, i32::from(errno.0)), |body| (body, 0));
    let length = OUT_HEADER_BYTES + body;
    let mut to = Writer::new(reply);
    to.u32(length as u32);
    to.u32(errno.wrapping_neg().cast_unsigned());
    to.u64(unique);
    length
}

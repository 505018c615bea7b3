//! Serving: threads that each take a request from `/dev/fuse`, answer it, and send the reply; the
//! others that a mount needs; and before that the negotiation with the kernel (`agree`). Threads that
//! take requests from rings are in `rings`; both answer by `answer`.

pub(crate) mod agree;

pub(crate) mod answer;

mod growth;

pub(crate) mod notices;

pub(crate) mod wait_thread;

use fuse::abi::{IN_HEADER_BYTES, OUT_HEADER_BYTES};
use fuse::init::TRANSFER_BYTES;
use fuse::{Header, Operation};
use rustix::fd::OwnedFd;
use rustix::thread::Timespec;
use std::io;
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use wire::errno::Errno;

use crate::device;
use crate::device::REQUEST_BYTES_MAX;
use crate::kernel_cache::lookup_cache::SWEEP;
use crate::kernel_cache::watches::ReplyTracker;
use crate::ops::request::Scratch;
use crate::rings::Rings;
use crate::serve::answer::{Answer, head, refusal};
use crate::server::Server;
use crate::server::quiesce::Serving;

/// Maximum size of a reply in bytes: a read, with its header.
const REPLY_BYTES_MAX: usize = TRANSFER_BYTES as usize + OUT_HEADER_BYTES;

/// The group of the threads that take requests from the device, without rings.
const DEVICE_GROUP: usize = 0;

/// How long forget requests are collected. An interrupt, which queues behind them, is delayed by
/// this time.
const GATHER_NANOS: i64 = 2_000_000;

/// How a thread takes forget requests.
#[derive(Clone, Copy)]
enum ForgetMode {
    /// One at a time, because the thread also takes other requests.
    Immediate,
    /// Many at a time, because each wakeup takes the processor from the program that removes files.
    Batched,
}

impl ForgetMode {
    /// Pauses after a request without reply. A signal ends the pause.
    fn pause(self) {
        if matches!(self, ForgetMode::Batched) {
            let time = Timespec { tv_sec: 0, tv_nsec: GATHER_NANOS };
            let _ = rustix::thread::nanosleep(&time);
        }
    }
}

/// Serves until the mount is gone.
///
/// # Errors
/// The device failed.
pub(crate) fn run(
    server: &Arc<Server>,
    threads: usize,
    rings: Option<Rings>,
) -> Result<(), String> {
    let mut others = Vec::new();
    // With rings only forget and interrupt requests arrive by the device.
    let threads = if rings.is_some() { 1 } else { threads };
    if rings.is_none() {
        for _ in 0..threads {
            server.serving.add(DEVICE_GROUP);
        }
    }
    for _ in 1..threads {
        others.extend(start_thread(server));
    }
    let has_rings = rings.is_some();
    let growing = Arc::clone(server);
    others.extend(std::thread::Builder::new().name("growth".to_owned()).spawn(move || {
        growth::run(&growing, |server, group| {
            if has_rings { Rings::start_thread(server, group) } else { start_thread(server) }
        });
    }));
    // The thread ends when the sender is dropped.
    let (sender, over) = mpsc::channel::<()>();
    let sweeps = Arc::clone(server);
    others.extend(std::thread::Builder::new().name("sweep".to_owned()).spawn(move || {
        while over.recv_timeout(SWEEP) == Err(RecvTimeoutError::Timeout) {
            sweeps.lookup_cache.sweep(&sweeps.handles);
        }
    }));
    let notices = notices::watch_services(server);
    let forgets = if rings.is_some() { ForgetMode::Batched } else { ForgetMode::Immediate };
    let outcome = serve(server, &server.device, forgets);
    drop(sender);
    server.serving.end();
    server.watches.end();
    notices.into_iter().for_each(|thread| drop(thread.join()));
    server.locks.interrupt_all();
    for other in others {
        let _ = other.join();
    }
    if let Some(rings) = rings {
        rings.await_threads();
    }
    outcome
}

/// Starts a thread that serves from the device.
fn start_thread(server: &Arc<Server>) -> io::Result<JoinHandle<()>> {
    let server = Arc::clone(server);
    std::thread::Builder::new().name("serve".to_owned()).spawn(move || {
        // The shared descriptor works as well.
        let own = device::clone_device(&server.device).map(Arc::new);
        let own = own.unwrap_or_else(|_| Arc::clone(&server.device));
        if let Err(error) = serve(&server, &own, ForgetMode::Immediate) {
            tracing::error!(error, "a serving thread failed");
        }
    })
}

fn serve(server: &Arc<Server>, device: &Arc<OwnedFd>, forgets: ForgetMode) -> Result<(), String> {
    let mut buffer = vec![0; REQUEST_BYTES_MAX];
    let mut reply = vec![0; REPLY_BYTES_MAX];
    let mut scratch = Scratch::new();
    let (serving, tracker) = (server.quiesce.begin(), server.watches.tracker());
    loop {
        serving.pass();
        let request = match device::receive_request(device, &mut buffer) {
            Ok(Some([])) => continue,
            Ok(Some(request)) => request,
            Ok(None) => return Ok(()),
            Err(errno) => return Err(format!("/dev/fuse: {errno}")),
        };
        let by = (device, &serving, &tracker);
        // With rings, this thread takes only what never waits.
        let counts = matches!(forgets, ForgetMode::Immediate);
        let _busy = counts.then(|| server.serving.take(DEVICE_GROUP));
        let length = answer_one(server, by, request, &mut reply, &mut scratch);
        let Some(length) = length else {
            forgets.pause();
            continue;
        };
        if let Err(errno) = device::send_reply(device, reply.get(..length).unwrap_or_default()) {
            // The kernel did not accept the reply; the program must not wait for ever.
            tracing::warn!(%errno, "a reply was refused");
            refuse(device, request);
        }
        tracker.end_reply();
    }
}

fn refuse(device: &OwnedFd, request: &[u8]) {
    if let Ok(header) = Header::parse(request) {
        let mut reply = [0; OUT_HEADER_BYTES];
        let length = refusal(&mut reply, header.unique, Errno::EIO);
        let _ = device::send_reply(device, reply.get(..length).unwrap_or_default());
    }
}

/// Answers one request from the device; `None` if it has no reply.
fn answer_one(
    server: &Arc<Server>,
    (device, serving, tracker): (&Arc<OwnedFd>, &Serving<'_>, &ReplyTracker<'_>),
    request: &[u8],
    reply: &mut [u8],
    scratch: &mut Scratch,
) -> Option<usize> {
    let header = Header::parse(request).ok()?;
    let body = request.get(IN_HEADER_BYTES..)?;
    let operation = Operation::parse(header.opcode, body, server.has_long_xattr());
    if !operation.as_ref().is_ok_and(Operation::may_end_locks) {
        serving.pass();
    }
    let buffer = reply.get_mut(OUT_HEADER_BYTES..)?;
    match answer::answer(server, header, operation, buffer, (scratch, tracker)) {
        Answer::None => None,
        Answer::Pending(started, body) => {
            let device = Arc::clone(device);
            let mut reply = reply.get(..OUT_HEADER_BYTES + body).unwrap_or_default().to_vec();
            wait_thread::wait_for(server, header, started, move |outcome| {
                let length = head(&mut reply, header.unique, outcome.map(|()| body));
                let _ = device::send_reply(&*device, reply.get(..length).unwrap_or_default());
            });
            None
        }
        Answer::Ready(said) => Some(head(reply, header.unique, said)),
    }
}

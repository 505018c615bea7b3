//! The ring of one thread: it provides an entry for each of its queues to the kernel, waits,
//! answers the request in an entry, and returns the entry with the reply, with one system call per
//! request.
//!
//! A request that waits for a lock occupies its entry. If the thread has no other entry for that
//! queue, it adds one. However, the kernel takes a queued request only when another entry of the
//! queue is committed, not when an entry is added. If all requests wait for locks, that may never
//! happen. So the thread pokes the kernel, which then sends a request to the queue of the processor
//! on which the poke was made; committing that request restarts the queue.
#![expect(unsafe_code, reason = "commands with addresses of memory")]

use fuse::Header;
use fuse::abi::{OUT_HEADER_BYTES, opcode as request};
use fuse::notice::Notice;
use fuse::ring::{self, Arrived, COMMIT_AND_FETCH, REGISTER};
use io_uring::squeue::Entry128;
use io_uring::{IoUring, cqueue, opcode, types};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsRawFd as _, OwnedFd};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use wire::errno::Errno;
use wire::limits::XATTR_VALUE_BYTES_MAX;

use super::entry::Entry;
use crate::kernel_cache::watches::ReplyTracker;
use crate::ops::request::Scratch;
use crate::serve::answer::{self, Answer, head};
use crate::serve::wait_thread;
use crate::server::Server;
use crate::server::quiesce::Serving;
use crate::server::waits::StartedWait;

/// Size of the submission queue.
const COMMANDS: u32 = 16;
/// Maximum number of entries of a thread: one per queue and one per request that waits.
const ENTRIES_MAX: usize = 4096;
/// Stands for the eventfd where other completions name an entry.
const WAKEUP: u64 = u64::MAX;
/// Number of the next poke. The kernel numbers its own requests from 0 in steps of two.
static NEXT_POKE: AtomicU64 = AtomicU64::new(1 << 62);
/// Maximum size of the reply to a request that has a payload itself, in bytes: the value of an
/// extended attribute.
const REPLY_BYTES_MAX: usize = XATTR_VALUE_BYTES_MAX + 4096;

/// A ring that the kernel's FUSE does not know yet.
pub(super) struct Queues {
    ring: IoUring<Entry128>,
    queues: Vec<u16>,
    mailbox: Arc<Mailbox>,
}

/// Answers of other threads for this one, and the eventfd that announces them.
struct Mailbox {
    wakeup: OwnedFd,
    answered: Mutex<Vec<(usize, Result<usize, Errno>)>>,
}

impl Mailbox {
    fn post(&self, entry: usize, said: Result<usize, Errno>) {
        self.answered.lock().unwrap_or_else(PoisonError::into_inner).push((entry, said));
        let _ = rustix::io::write(&self.wakeup, &1u64.to_ne_bytes());
    }
}

impl Queues {
    /// Creates the ring on the thread that is to serve the queues.
    ///
    /// # Errors
    /// As of the system calls.
    pub(super) fn new(queues: Vec<u16>) -> io::Result<Queues> {
        let mut builder = IoUring::<Entry128>::builder();
        // Only this thread uses the ring, and completions do not interrupt it.
        builder.setup_single_issuer().setup_defer_taskrun();
        let ring = builder.build(COMMANDS)?;
        let wakeup = eventfd(0, EventfdFlags::CLOEXEC)?;
        Ok(Queues {
            ring,
            queues,
            mailbox: Arc::new(Mailbox { wakeup, answered: Mutex::default() }),
        })
    }

    /// Provides an entry for each queue to the kernel.
    ///
    /// # Errors
    /// As of the system calls.
    pub(super) fn lend(self, server: Arc<Server>) -> io::Result<LentRing> {
        let mut lent = LentRing {
            ring: self.ring,
            mailbox: self.mailbox,
            server,
            entries: Vec::new(),
            out: 0,
            rung: Box::leak(Box::new([0; 8])),
            reply: vec![0; REPLY_BYTES_MAX],
            scratch: Scratch::new(),
        };
        lent.ring.submitter().register_files(&[lent.server.device.as_raw_fd()])?;
        // Saves the lookup of the ring's descriptor in each call; older kernels do not support it.
        let _ = lent.ring.submitter().register_ring_fd();
        lent.arm_wakeup()?;
        for queue in self.queues {
            lent.add(queue)?;
        }
        lent.ring.submit()?;
        // A refused entry completes at once; nothing else does.
        let refused = lent.ring.completion().find(|done| done.result() < 0);
        match refused {
            Some(done) => Err(io::Error::from_raw_os_error(-done.result())),
            None => Ok(lent),
        }
    }
}

/// A ring with entries into which the kernel puts requests.
pub(super) struct LentRing {
    ring: IoUring<Entry128>,
    mailbox: Arc<Mailbox>,
    server: Arc<Server>,
    entries: Vec<Entry>,
    /// Number of entries that the kernel owns.
    out: usize,
    /// Buffer of reads from the eventfd; never freed, because the kernel writes it.
    rung: &'static mut [u8; 8],
    reply: Vec<u8>,
    scratch: Scratch,
}

impl LentRing {
    /// Serves until the mount is gone.
    ///
    /// # Errors
    /// The ring failed.
    pub(super) fn serve(
        &mut self,
        serving: &Serving<'_>,
        tracker: &ReplyTracker<'_>,
    ) -> io::Result<()> {
        while self.out > 0 || self.entries.iter().any(|entry| entry.is_waiting) {
            let requested = serving.requested();
            let is_due = serving.is_due(requested);
            let polled = if is_due {
                self.poll_completions()
            } else {
                self.ring.submit_and_wait(1).map(drop)
            };
            match polled {
                Err(error) if !is_passing(&error) => return Err(error),
                _ => {}
            }
            while let Some(done) = self.completed() {
                match usize::try_from(done.user_data()) {
                    _ if done.user_data() == WAKEUP => self.take_mailbox()?,
                    Ok(index) if done.result() >= 0 => {
                        self.out -= 1;
                        self.answer(index, tracker)?;
                    }
                    _ => self.lost(done.result()),
                }
            }
            if is_due {
                serving.pass_of(requested);
            }
        }
        Ok(())
    }

    /// Collects completions without waiting.
    fn poll_completions(&self) -> io::Result<()> {
        let none = types::Timespec::new();
        let arguments = types::SubmitArgs::new().timespec(&none);
        self.ring.submitter().submit_with_args(1, &arguments).map(drop)
    }

    fn completed(&mut self) -> Option<cqueue::Entry> {
        self.ring.completion().next()
    }

    /// The kernel did not accept an entry.
    fn lost(&mut self, result: i32) {
        self.out -= 1;
        // These errors mean that the mount is gone, or is going together with the request.
        if !matches!(-result, libc::ENOTCONN | libc::ECONNABORTED | libc::ENOENT | libc::ENODEV) {
            let error = io::Error::from_raw_os_error(-result);
            tracing::warn!(%error, "the kernel did not accept an entry");
        }
    }

    /// Adds an entry.
    fn add(&mut self, queue: u16) -> io::Result<()> {
        let entry = Entry::new(queue);
        let mut command = opcode::UringCmd80::new(types::Fixed(0), REGISTER)
            .cmd(ring::command(queue, 0))
            .addr(Some(entry.address()))
            .build()
            .user_data(self.entries.len() as u64);
        set_length(&mut command, 2);
        self.entries.push(entry);
        self.out += 1;
        self.push(&command)
    }

    /// Answers the request in an entry.
    fn answer(&mut self, index: usize, tracker: &ReplyTracker<'_>) -> io::Result<()> {
        let LentRing { server, entries, reply, scratch, .. } = self;
        let Some(entry) = entries.get_mut(index) else { return Ok(()) };
        let queue = usize::from(entry.queue);
        let busy = server.serving.take(queue);
        // SAFETY: its command was completed, so this program owns it. WHY: the kernel writes there.
        let (headers, payload) = unsafe { entry.parts() };
        let Ok(arrived) = Arrived::parse(headers) else { return Ok(()) };
        let (header, commit, is_long) = (arrived.header, arrived.commit, server.has_long_xattr());
        if matches!(header.opcode, request::OPEN | request::READ | request::WRITE) {
            server.serving.note_file(queue, header.node);
        }
        let answer = if arrived.payload == 0 {
            // The request has no payload, so the reply can be written in place.
            answer::answer(
                server,
                header,
                arrived.operation(&[], is_long),
                payload,
                (scratch, tracker),
            )
        } else {
            let requested = payload.get(..arrived.payload).unwrap_or_default();
            let operation = arrived.operation(requested, is_long);
            let answer = answer::answer(server, header, operation, reply, (scratch, tracker));
            if let Answer::Ready(Ok(length)) | Answer::Pending(_, length) = answer
                && let (Some(to), Some(from)) = (payload.get_mut(..length), reply.get(..length))
            {
                to.copy_from_slice(from);
            }
            answer
        };
        entry.commit = commit;
        drop(busy);
        match answer {
            Answer::Ready(said) => self.commit(index, said)?,
            Answer::None => self.commit(index, Ok(0))?,
            Answer::Pending(started, body) => self.wait(index, header, (started, body))?,
        }
        if tracker.is_tracking() {
            // Other threads wait until the kernel has the reply, and this thread may now wait for
            // long.
            self.submit()?;
            tracker.end_reply();
        }
        Ok(())
    }

    /// Returns an entry with its reply.
    fn commit(&mut self, index: usize, said: Result<usize, Errno>) -> io::Result<()> {
        let Some(entry) = self.entries.get_mut(index) else { return Ok(()) };
        let (queue, commit) = (entry.queue, entry.commit);
        let mut header = [0; OUT_HEADER_BYTES];
        head(&mut header, commit, said);
        // SAFETY: it was not returned yet. WHY: the kernel reads there.
        let (headers, _) = unsafe { entry.parts() };
        ring::reply(headers, &header, said.unwrap_or(0));
        let command = opcode::UringCmd80::new(types::Fixed(0), COMMIT_AND_FETCH)
            .cmd(ring::command(queue, commit))
            .build()
            .user_data(index as u64);
        self.out += 1;
        self.push(&command)
    }

    /// Hands the wait to the waiting thread; the queue continues without this entry.
    fn wait(
        &mut self,
        index: usize,
        header: Header,
        (started, body): (Box<StartedWait>, usize),
    ) -> io::Result<()> {
        if self.entries.len() >= ENTRIES_MAX {
            let outcome = started.unwaited();
            wait_thread::release_wait(&self.server, *started);
            return self.commit(index, outcome.map(|()| body));
        }
        let Some(entry) = self.entries.get_mut(index) else { return Ok(()) };
        let queue = entry.queue;
        entry.is_waiting = true;
        let is_last = self.entries.iter().all(|entry| entry.is_waiting || entry.queue != queue);
        if is_last {
            self.add(queue)?;
            self.submit()?;
        }
        self.poke(header.node);
        let mailbox = Arc::clone(&self.mailbox);
        let say = move |outcome: Result<(), Errno>| mailbox.post(index, outcome.map(|()| body));
        wait_thread::wait_for(&self.server, header, started, say);
        Ok(())
    }

    /// Has requests that wait for an entry of this queue taken: the kernel hands out an entry that is
    /// added to the next request (see the module). Without a file to poke by they are taken after that.
    pub(super) fn take_waiting(&self, queue: usize) {
        if let Some(node) = self.server.serving.file_of(queue) {
            self.poke(node);
        }
    }

    /// Makes the kernel send a request to this queue.
    fn poke(&self, node: u64) {
        let mut notice = [0; 64];
        let unique = NEXT_POKE.fetch_add(2, Relaxed);
        let length = Notice::Poke { node, unique }.write(&mut notice).unwrap_or(0);
        let notice = notice.get(..length).unwrap_or_default();
        if let Err(error) = rustix::io::write(&self.server.device, notice) {
            tracing::debug!(%error, "cannot poke the kernel");
        }
    }

    /// Returns the entries that other threads have answered.
    fn take_mailbox(&mut self) -> io::Result<()> {
        let mailbox = Arc::clone(&self.mailbox);
        let answered =
            std::mem::take(&mut *mailbox.answered.lock().unwrap_or_else(PoisonError::into_inner));
        for (index, said) in answered {
            if let Some(entry) = self.entries.get_mut(index) {
                entry.is_waiting = false;
            }
            self.commit(index, said)?;
        }
        self.arm_wakeup()
    }

    fn arm_wakeup(&mut self) -> io::Result<()> {
        let wakeup = types::Fd(self.mailbox.wakeup.as_raw_fd());
        let (to, length) = (self.rung.as_mut_ptr(), self.rung.len() as u32);
        let command = opcode::Read::new(wakeup, to, length).build().user_data(WAKEUP);
        self.push(&command.into())
    }

    fn push(&mut self, command: &Entry128) -> io::Result<()> {
        loop {
            // SAFETY: a command points to memory that is never freed: an entry, which the kernel
            // owns from now on, or `rung`, which nothing else reads.
            // WHY: the ring cannot know that.
            if unsafe { self.ring.submission().push(command) }.is_ok() {
                return Ok(());
            }
            self.submit()?;
        }
    }

    fn submit(&self) -> io::Result<()> {
        match self.ring.submit() {
            Err(error) if !is_passing(&error) => Err(error),
            _ => Ok(()),
        }
    }
}

/// True for errors after which the call is repeated.
fn is_passing(error: &io::Error) -> bool {
    let errno = error.raw_os_error();
    matches!(errno, Some(libc::EINTR | libc::EAGAIN | libc::EBUSY | libc::ETIME))
}

/// Sets the length field of a command, which `io_uring` does not expose.
fn set_length(command: &mut Entry128, length: u32) {
    const AT: usize = 24;
    const _: () = assert!(size_of::<Entry128>() == 128);
    let to = std::ptr::from_mut(command).cast::<u8>();
    // SAFETY: bytes 24 to 27 of the 128 bytes of a command are its length, for which every value is
    // valid; they are written as bytes.
    // WHY: see above.
    unsafe { to.add(AT).cast::<[u8; 4]>().write(length.to_ne_bytes()) };
}

//! One thread's ring: it lends the kernel an entry for each of its queues, waits, answers what lies in an
//! entry, and hands it back with the reply, which is one call for each request.
//!
//! Who waits for a lock keeps his entry. If the queue has no other with this thread, it gets one
//! more. Now the kernel takes a request that waits in a queue only when another of that queue is
//! committed, not when it gets an entry; if all requests that wait are for locks, that may be
//! never. So it is poked: it sends a request, to the queue of the processor on which it is poked,
//! and when that is committed it goes on.
#![allow(unsafe_code, reason = "commands with addresses of memory")]

use fuse::Header;
use fuse::abi::OUT_HEADER_BYTES;
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
use crate::serve::{Answer, Scratch, Server, head};
use crate::turns::Serving;
use crate::waits::Begun;
use crate::watches::Telling;

/// Commands that are written before they are handed over.
const COMMANDS: u32 = 16;
/// Entries of a thread: one for each of its queues and each that waits for a lock.
const ENTRIES_MAX: usize = 4096;
/// Stands for the bell where others stand for entries.
const BELL: u64 = u64::MAX;
/// Number of the next request that is sent for. The kernel counts its own from 0 on, by twos.
static NEXT_POKE: AtomicU64 = AtomicU64::new(1 << 62);
/// Bytes of the largest reply to a request that has a rest itself: the value of an attribute.
const REPLY_BYTES_MAX: usize = XATTR_VALUE_BYTES_MAX + 4096;

/// A ring of which the kernel's FUSE knows nothing yet.
pub(super) struct Queues {
    ring: IoUring<Entry128>,
    queues: Vec<u16>,
    post: Arc<Post>,
}

/// What other threads have answered for this one, and the bell that they ring.
struct Post {
    bell: OwnedFd,
    answered: Mutex<Vec<(usize, Result<usize, Errno>)>>,
}

impl Post {
    fn send(&self, entry: usize, said: Result<usize, Errno>) {
        self.answered.lock().unwrap_or_else(PoisonError::into_inner).push((entry, said));
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }
}

impl Queues {
    /// For the thread that is to serve them.
    ///
    /// # Errors
    /// What the kernel says.
    pub(super) fn new(queues: Vec<u16>) -> io::Result<Queues> {
        let mut builder = IoUring::<Entry128>::builder();
        // Only this thread uses it; nobody interrupts it to say that something came.
        builder.setup_single_issuer().setup_defer_taskrun();
        let ring = builder.build(COMMANDS)?;
        let bell = eventfd(0, EventfdFlags::CLOEXEC)?;
        Ok(Queues { ring, queues, post: Arc::new(Post { bell, answered: Mutex::default() }) })
    }

    /// Lends the kernel an entry for each queue.
    ///
    /// # Errors
    /// What the kernel says.
    pub(super) fn lend(self, server: Arc<Server>) -> io::Result<Lent> {
        let mut lent = Lent {
            ring: self.ring,
            post: self.post,
            server,
            entries: Vec::new(),
            out: 0,
            rung: Box::leak(Box::new([0; 8])),
            reply: vec![0; REPLY_BYTES_MAX],
            scratch: Scratch::new(),
        };
        lent.ring.submitter().register_files(&[lent.server.device.as_raw_fd()])?;
        // It saves looking up the ring's descriptor in each call; older kernels look it up.
        let _ = lent.ring.submitter().register_ring_fd();
        lent.hear_bell()?;
        for queue in self.queues {
            lent.add(queue)?;
        }
        lent.ring.submit()?;
        // What is refused is completed at once, and nothing else is.
        let refused = lent.ring.completion().find(|done| done.result() < 0);
        match refused {
            Some(done) => Err(io::Error::from_raw_os_error(-done.result())),
            None => Ok(lent),
        }
    }
}

/// A ring with entries that the kernel puts requests into.
pub(super) struct Lent {
    ring: IoUring<Entry128>,
    post: Arc<Post>,
    server: Arc<Server>,
    entries: Vec<Entry>,
    /// Entries that are with the kernel.
    out: usize,
    /// What is read from the bell; never freed, as the kernel writes it.
    rung: &'static mut [u8; 8],
    reply: Vec<u8>,
    scratch: Scratch,
}

impl Lent {
    /// Serves until the mount is gone.
    ///
    /// # Errors
    /// The ring failed.
    pub(super) fn serve(&mut self, serving: &Serving<'_>, telling: &Telling<'_>) -> io::Result<()> {
        while self.out > 0 || self.entries.iter().any(|entry| entry.is_kept) {
            let asked = serving.asked();
            let is_due = serving.is_due(asked);
            let looked = if is_due { self.look() } else { self.ring.submit_and_wait(1).map(drop) };
            match looked {
                Err(error) if !is_passing(&error) => return Err(error),
                _ => {}
            }
            while let Some(done) = self.completed() {
                match usize::try_from(done.user_data()) {
                    _ if done.user_data() == BELL => self.take_post()?,
                    Ok(index) if done.result() >= 0 => {
                        self.out -= 1;
                        self.answer(index, telling)?;
                    }
                    _ => self.lost(done.result()),
                }
            }
            if is_due {
                serving.pass_of(asked);
            }
        }
        Ok(())
    }

    /// Takes what the kernel has given, and waits for nothing.
    fn look(&self) -> io::Result<()> {
        let none = types::Timespec::new();
        let arguments = types::SubmitArgs::new().timespec(&none);
        self.ring.submitter().submit_with_args(1, &arguments).map(drop)
    }

    fn completed(&mut self) -> Option<cqueue::Entry> {
        self.ring.completion().next()
    }

    /// The kernel keeps an entry for good.
    fn lost(&mut self, result: i32) {
        self.out -= 1;
        // The mount is gone; or it is going, and the request with it.
        if !matches!(-result, libc::ENOTCONN | libc::ECONNABORTED | libc::ENOENT | libc::ENODEV) {
            let error = io::Error::from_raw_os_error(-result);
            tracing::warn!(%error, "the kernel did not take an entry");
        }
    }

    /// One entry more.
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

    /// Answers the request that lies in an entry.
    fn answer(&mut self, index: usize, telling: &Telling<'_>) -> io::Result<()> {
        let Lent { server, entries, reply, scratch, .. } = self;
        let Some(entry) = entries.get_mut(index) else { return Ok(()) };
        // SAFETY: its command was completed, so it is ours. WHY: the kernel writes there.
        let (headers, payload) = unsafe { entry.parts() };
        let Ok(arrived) = Arrived::parse(headers) else { return Ok(()) };
        let (header, commit, is_long) = (arrived.header, arrived.commit, server.has_long_xattr());
        let answer = if arrived.payload == 0 {
            // Nothing of the request lies where the reply goes.
            server.answer(header, arrived.operation(&[], is_long), payload, (scratch, telling))
        } else {
            let asked = payload.get(..arrived.payload).unwrap_or_default();
            let operation = arrived.operation(asked, is_long);
            let answer = server.answer(header, operation, reply, (scratch, telling));
            if let Answer::Said(Ok(length)) = answer
                && let (Some(to), Some(from)) = (payload.get_mut(..length), reply.get(..length))
            {
                to.copy_from_slice(from);
            }
            answer
        };
        entry.commit = commit;
        match answer {
            Answer::Said(said) => self.commit(index, said)?,
            Answer::None => self.commit(index, Ok(0))?,
            Answer::Waits(begun) => self.wait(index, header, begun)?,
        }
        if telling.is_telling() {
            // Others wait until the kernel has it, and this thread may now wait for long.
            self.submit()?;
            telling.end();
        }
        Ok(())
    }

    /// Hands an entry back with its reply.
    fn commit(&mut self, index: usize, said: Result<usize, Errno>) -> io::Result<()> {
        let Some(entry) = self.entries.get_mut(index) else { return Ok(()) };
        let (queue, commit) = (entry.queue, entry.commit);
        let mut header = [0; OUT_HEADER_BYTES];
        head(&mut header, commit, said);
        // SAFETY: it was not handed back yet. WHY: the kernel reads there.
        let (headers, _) = unsafe { entry.parts() };
        ring::reply(headers, &header, said.unwrap_or(0));
        let command = opcode::UringCmd80::new(types::Fixed(0), COMMIT_AND_FETCH)
            .cmd(ring::command(queue, commit))
            .build()
            .user_data(index as u64);
        self.out += 1;
        self.push(&command)
    }

    /// The thread for that waits for it; the queue goes on without that entry.
    fn wait(&mut self, index: usize, header: Header, begun: Box<Begun>) -> io::Result<()> {
        if self.entries.len() >= ENTRIES_MAX {
            let refusal = begun.refusal();
            self.server.let_wait_go(*begun);
            return self.commit(index, Err(refusal));
        }
        let Some(entry) = self.entries.get_mut(index) else { return Ok(()) };
        let queue = entry.queue;
        entry.is_kept = true;
        let is_last = self.entries.iter().all(|entry| entry.is_kept || entry.queue != queue);
        if is_last {
            self.add(queue)?;
            self.submit()?;
        }
        self.poke(header.node);
        let post = Arc::clone(&self.post);
        let say = move |outcome: Result<(), Errno>| post.send(index, outcome.map(|()| 0));
        self.server.wait_for(header, begun, say);
        Ok(())
    }

    /// Has the kernel send a request to this queue.
    fn poke(&self, node: u64) {
        let mut notice = [0; 64];
        let unique = NEXT_POKE.fetch_add(2, Relaxed);
        let length = Notice::Poke { node, unique }.write(&mut notice).unwrap_or(0);
        let notice = notice.get(..length).unwrap_or_default();
        if let Err(error) = rustix::io::write(&self.server.device, notice) {
            tracing::debug!(%error, "no request can be sent for");
        }
    }

    /// Hands back what other threads have answered.
    fn take_post(&mut self) -> io::Result<()> {
        let post = Arc::clone(&self.post);
        let answered =
            std::mem::take(&mut *post.answered.lock().unwrap_or_else(PoisonError::into_inner));
        for (index, said) in answered {
            if let Some(entry) = self.entries.get_mut(index) {
                entry.is_kept = false;
            }
            self.commit(index, said)?;
        }
        self.hear_bell()
    }

    fn hear_bell(&mut self) -> io::Result<()> {
        let bell = types::Fd(self.post.bell.as_raw_fd());
        let (to, length) = (self.rung.as_mut_ptr(), self.rung.len() as u32);
        let command = opcode::Read::new(bell, to, length).build().user_data(BELL);
        self.push(&command.into())
    }

    fn push(&mut self, command: &Entry128) -> io::Result<()> {
        loop {
            // SAFETY: what a command points to is memory that is never freed, an entry that is not ours
            // from now on, or `rung`, which nobody reads. WHY: the ring can not know that.
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

/// True if it is to be tried again.
fn is_passing(error: &io::Error) -> bool {
    let errno = error.raw_os_error();
    matches!(errno, Some(libc::EINTR | libc::EAGAIN | libc::EBUSY | libc::ETIME))
}

/// Sets the length of what a command points to, which `io_uring` has no word for.
fn set_length(command: &mut Entry128, length: u32) {
    const AT: usize = 24;
    const _: () = assert!(size_of::<Entry128>() == 128);
    let to = std::ptr::from_mut(command).cast::<u8>();
    // SAFETY: bytes 24 to 27 of a command's 128 are its length, whose every value is one; they are
    // written as bytes. WHY: see above.
    unsafe { to.add(AT).cast::<[u8; 4]>().write(length.to_ne_bytes()) };
}

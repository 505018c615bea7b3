//! How other threads reach one that waits for sockets: what they ask of it lies in a queue, and an
//! eventfd ends its sleep. Here for lanes, and for whoever else moves bytes by streams of its own.
//!
//! Invariant: once `may_sleep` said yes, who brings a command wakes the thread, until `awake`.

use super::{Ends, Transfer};
use crate::handshake::Proven;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::OwnedFd;
use std::collections::VecDeque;
use std::io;
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use wire::DaemonIndex;

/// What the thread is asked or told.
pub enum Command<E: Ends> {
    /// A transfer begins.
    Start(Transfer<E::Memory, E::Token>),
    /// The late answer to the visit of this number.
    Answer(u64, E::Word),
    /// A peer dialled.
    Accepted(Proven, TcpStream),
    /// We dialled.
    Dialled(DaemonIndex, io::Result<TcpStream>),
}

/// The commands of one thread, and its sleep.
pub struct Queue<E: Ends> {
    commands: Mutex<VecDeque<Command<E>>>,
    waker: OwnedFd,
    sleeping: AtomicBool,
    stopping: AtomicBool,
}

impl<E: Ends> Queue<E> {
    /// The queue of the thread that waits at `epoll`, where a wake-up is the event `key`.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn new(epoll: &OwnedFd, key: u64) -> rustix::io::Result<Arc<Queue<E>>> {
        let waker = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        epoll::add(epoll, &waker, EventData::new_u64(key), EventFlags::IN)?;
        Ok(Arc::new(Queue {
            commands: Mutex::new(VecDeque::new()),
            waker,
            sleeping: AtomicBool::new(false),
            stopping: AtomicBool::new(false),
        }))
    }

    /// Brings a command.
    pub fn push(&self, command: Command<E>) {
        self.lock().push_back(command);
        self.wake();
    }

    /// Dials a peer on a thread of its own, after a pause: that waits for the peer. `Dialled` follows.
    pub fn dial(
        self: &Arc<Self>,
        peer: DaemonIndex,
        pause: Duration,
        dial: impl FnOnce() -> io::Result<TcpStream> + Send + 'static,
    ) where
        E: 'static,
    {
        let queue = Arc::clone(self);
        let dial = move || {
            std::thread::sleep(pause);
            queue.push(Command::Dialled(peer, dial()));
        };
        let thread = std::thread::Builder::new().name("dial".into());
        if let Err(error) = thread.spawn(dial) {
            self.push(Command::Dialled(peer, Err(error)));
        }
    }

    /// Asks the thread to end.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
        self.sleeping.store(true, Ordering::SeqCst);
        self.wake();
    }

    /// True once the thread shall end.
    #[must_use]
    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }

    /// All commands that came, in their order.
    #[must_use]
    pub fn take(&self) -> VecDeque<Command<E>> {
        core::mem::take(&mut *self.lock())
    }

    /// True if no command came: from now on whoever brings one wakes the thread.
    #[must_use]
    pub fn may_sleep(&self) -> bool {
        self.sleeping.store(true, Ordering::SeqCst);
        let commands = self.lock();
        commands.is_empty() && !self.is_stopping()
    }

    /// The thread does not sleep: nobody needs to wake it.
    pub fn awake(&self) {
        self.sleeping.store(false, Ordering::SeqCst);
    }

    /// The event of a wake-up was seen.
    pub fn clear_waker(&self) {
        let _ = rustix::io::read(&self.waker, &mut [0; 8]);
    }

    fn wake(&self) {
        if self.sleeping.swap(false, Ordering::SeqCst) {
            let _ = rustix::io::write(&self.waker, &1u64.to_ne_bytes());
        }
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Command<E>>> {
        self.commands.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

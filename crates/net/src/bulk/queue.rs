//! Commands from other threads to a thread that waits for sockets: a queue, and an eventfd that
//! wakes the thread. Used by lanes, and by any other mover of bytes with streams of its own.
//!
//! Invariant: after `may_sleep` returned true, every push wakes the thread, until `awake`.

use super::{BulkHandler, Transfer};
use crate::channel::Channel;
use crate::handshake::PeerIdentity;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::OwnedFd;
use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use wire::DaemonIndex;

/// A request or event for the thread.
pub enum Command<E: BulkHandler> {
    /// Start a transfer.
    Start(Transfer<E::Memory, E::Token>),
    /// The late decision about the visit of this number.
    Answer(u64, E::Decision),
    /// A peer dialled.
    Accepted(PeerIdentity, Channel),
    /// This daemon dialled, with this result.
    Dialled(DaemonIndex, io::Result<Channel>),
}

/// The commands of one thread, and its sleep state.
pub struct CommandQueue<E: BulkHandler> {
    commands: Mutex<VecDeque<Command<E>>>,
    waker: OwnedFd,
    sleeping: AtomicBool,
    stopping: AtomicBool,
}

impl<E: BulkHandler> CommandQueue<E> {
    /// The queue of the thread that waits at `epoll`; a wake-up is the event `key`.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub fn new(epoll: &OwnedFd, key: u64) -> rustix::io::Result<Arc<CommandQueue<E>>> {
        let waker = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        epoll::add(epoll, &waker, EventData::new_u64(key), EventFlags::IN)?;
        Ok(Arc::new(CommandQueue {
            commands: Mutex::new(VecDeque::new()),
            waker,
            sleeping: AtomicBool::new(false),
            stopping: AtomicBool::new(false),
        }))
    }

    /// Queues a command.
    pub fn push(&self, command: Command<E>) {
        self.lock().push_back(command);
        self.wake();
    }

    /// Dials a peer after a pause, on a thread of its own, because dialling blocks. `Dialled`
    /// follows.
    pub fn dial(
        self: &Arc<Self>,
        peer: DaemonIndex,
        pause: Duration,
        dial: impl FnOnce() -> io::Result<Channel> + Send + 'static,
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

    /// True once the thread must end.
    #[must_use]
    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }

    /// Takes all queued commands, in their order.
    #[must_use]
    pub fn take(&self) -> VecDeque<Command<E>> {
        core::mem::take(&mut *self.lock())
    }

    /// True if no command is queued: from now on a push wakes the thread.
    #[must_use]
    pub fn may_sleep(&self) -> bool {
        self.sleeping.store(true, Ordering::SeqCst);
        let commands = self.lock();
        commands.is_empty() && !self.is_stopping()
    }

    /// The thread is awake: a push need not wake it.
    pub fn awake(&self) {
        self.sleeping.store(false, Ordering::SeqCst);
    }

    /// Consumes a wake-up event.
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

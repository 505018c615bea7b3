//! Lock files and waiters of a mount. The locks themselves: `ops::locks`.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use wire::Inode;

use crate::server::waits::PendingWait;

/// Maximum number of remembered interrupts of requests that do not wait.
const PENDING_INTERRUPTS_MAX: usize = 256;

/// Number of bits that mark files which ever had locks; several files may share a bit.
const LOCKED_BITS: usize = 1 << 20;

/// A file and an owner of locks in it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct LockKey {
    pub(crate) inode: u64,
    pub(crate) owner: u64,
}

/// Lock files and waiters.
pub(crate) struct Locks {
    pub(crate) lock_files: Mutex<HashMap<LockKey, LockFile>>,
    /// Number of lock files: usually none, and then closing a file takes no lock.
    pub(crate) lock_file_count: AtomicUsize,
    /// Bits of files that ever had a lock file.
    locked: Box<[AtomicU64]>,
    waiting: Mutex<HashMap<u64, Arc<AtomicBool>>>,
    /// The waiting thread, once there were waiters.
    pub(crate) wait_thread: OnceLock<Option<Sender<PendingWait>>>,
    /// The last interrupts of requests that do not wait, yet or any more.
    pending_interrupts: Mutex<VecDeque<u64>>,
}

#[derive(Clone, Copy)]
pub(crate) struct LockFile {
    /// Handle of the lock file.
    pub(crate) own: u64,
    /// Handle through which the first lock was requested.
    pub(crate) handle: u64,
}

pub(crate) fn guard<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Locks {
    pub(crate) fn new() -> Locks {
        Locks {
            lock_files: Mutex::default(),
            lock_file_count: AtomicUsize::new(0),
            locked: (0..LOCKED_BITS / 64).map(|_| AtomicU64::new(0)).collect(),
            waiting: Mutex::default(),
            wait_thread: OnceLock::new(),
            pending_interrupts: Mutex::default(),
        }
    }

    /// The word of a file in `locked`, and its bit.
    pub(crate) fn locked(&self, inode: u64) -> Option<(&AtomicU64, u64)> {
        let bit = wire::hash::mix(inode, 11) as usize % LOCKED_BITS;
        Some((self.locked.get(bit / 64)?, 1 << (bit % 64)))
    }

    /// True if ranges of a file were locked through this mount; may be true for other files.
    pub(crate) fn has_been_locked(&self, inode: Inode) -> bool {
        self.locked(inode.0).is_some_and(|(word, bit)| word.load(Relaxed) & bit != 0)
    }

    /// Registers a waiter; the returned flag is set when it is interrupted.
    pub(crate) fn begin(&self, unique: u64) -> Arc<AtomicBool> {
        let mut waiting = guard(&self.waiting);
        let was_interrupted = guard(&self.pending_interrupts).contains(&unique);
        let is_stopped = Arc::new(AtomicBool::new(was_interrupted));
        waiting.insert(unique, Arc::clone(&is_stopped));
        is_stopped
    }

    pub(crate) fn end(&self, unique: u64) {
        guard(&self.waiting).remove(&unique);
    }

    /// Request `unique` was interrupted. True if it waits.
    pub(crate) fn interrupt(&self, unique: u64) -> bool {
        // Held until the interrupt is recorded on one side: `begin` takes both locks in this order.
        let waiting = guard(&self.waiting);
        if let Some(is_stopped) = waiting.get(&unique) {
            is_stopped.store(true, Relaxed);
            return true;
        }
        let mut pending_interrupts = guard(&self.pending_interrupts);
        if pending_interrupts.len() >= PENDING_INTERRUPTS_MAX {
            pending_interrupts.pop_front();
        }
        pending_interrupts.push_back(unique);
        false
    }

    /// The mount ends: interrupts all waiters.
    pub(crate) fn interrupt_all(&self) {
        guard(&self.waiting).values().for_each(|is_stopped| is_stopped.store(true, Relaxed));
    }
}

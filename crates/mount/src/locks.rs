//! Locks: of ranges (`F_SETLK`, `F_OFD_SETLK`) and whole files (`flock`), kept by the shard of the file
//! as those of programs that are preloaded.
//!
//! The kernel names the owner of a range's lock by a number that means a process or an open file. Each
//! such owner has an open file of ours for each file in which he has locks, his *carrier*, and they are
//! its locks: so they end with him, and with this program, as any open file's do.
//!
//! A process's locks of a file end with any descriptor of it that the process closes. The kernel says
//! that only
//! of files that were not opened to read alone before the first lock: to say it of all would make their
//! opens
//! and closes half as slow again.
//!
//! All who wait for locks are carried by one thread (`waits`), so that he who gives one back is served.
//! The kernel says when one was interrupted.

use client::{LockWait, OfdIndex, Owner, Range, Wait};
use fuse::reply;
use fuse::request::Lock;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use wire::Inode;
use wire::codec::Writer;
use wire::errno::{Errno, Result};
use wire::request::lock;

use crate::answer::{Request, within};
use crate::waits::Carried;

/// Interrupted requests that are remembered.
const EARLY_MAX: usize = 256;
/// Bits by which files are known that had locks once; others may fall on the same.
const LOCKED_BITS: usize = 1 << 20;
/// The last byte of a range that goes to the end, as the kernel says it.
const TO_THE_END: u64 = i64::MAX as u64;

/// An owner in a file.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Of {
    inode: u64,
    owner: u64,
}

/// Carriers, and who waits.
pub(crate) struct Locks {
    carriers: Mutex<HashMap<Of, Carrier>>,
    /// How many: most files have none, and closing them takes no lock.
    carrier_count: AtomicUsize,
    /// Files that ever had a carrier.
    locked: Box<[AtomicU64]>,
    waiting: Mutex<HashMap<u64, Arc<AtomicBool>>>,
    /// The thread that carries them, once there were any.
    pub(crate) carrier: OnceLock<Option<Sender<Carried>>>,
    /// Requests that were interrupted and nobody waited for, yet or any more: the last few.
    early: Mutex<VecDeque<u64>>,
}

/// A reference of a carrier, for as long as a lock is waited for by it.
pub(crate) struct Carries(pub(crate) Option<OfdIndex>);

#[derive(Clone, Copy)]
struct Carrier {
    /// Its own handle.
    own: u64,
    /// The handle by which it was first asked for.
    handle: u64,
}

fn guard<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Locks {
    pub(crate) fn new() -> Locks {
        Locks {
            carriers: Mutex::default(),
            carrier_count: AtomicUsize::new(0),
            locked: (0..LOCKED_BITS / 64).map(|_| AtomicU64::new(0)).collect(),
            waiting: Mutex::default(),
            carrier: OnceLock::new(),
            early: Mutex::default(),
        }
    }

    /// The word of a file in `locked`, and its bit.
    fn locked(&self, inode: u64) -> Option<(&AtomicU64, u64)> {
        let bit = wire::hash::mix(inode, 11) as usize % LOCKED_BITS;
        Some((self.locked.get(bit / 64)?, 1 << (bit % 64)))
    }

    /// True if ranges of a file were locked through this mount; perhaps if they were not.
    pub(crate) fn has_been_locked(&self, inode: Inode) -> bool {
        self.locked(inode.0).is_some_and(|(word, bit)| word.load(Relaxed) & bit != 0)
    }

    /// Notes that somebody waits; the word is set when he is to wait no longer.
    pub(crate) fn begin(&self, unique: u64) -> Arc<AtomicBool> {
        let mut waiting = guard(&self.waiting);
        let was_early = guard(&self.early).contains(&unique);
        let is_over = Arc::new(AtomicBool::new(was_early));
        waiting.insert(unique, Arc::clone(&is_over));
        is_over
    }

    pub(crate) fn end(&self, unique: u64) {
        guard(&self.waiting).remove(&unique);
    }

    /// The one who waits for the answer to `unique` was interrupted. True: he waits for a lock.
    pub(crate) fn interrupt(&self, unique: u64) -> bool {
        // Held until it is noted on one side: who begins to wait takes both in this order.
        let waiting = guard(&self.waiting);
        if let Some(is_over) = waiting.get(&unique) {
            is_over.store(true, Relaxed);
            return true;
        }
        let mut early = guard(&self.early);
        if early.len() >= EARLY_MAX {
            early.pop_front();
        }
        early.push_back(unique);
        false
    }

    /// Nobody is to wait any more: the mount ends.
    pub(crate) fn interrupt_all(&self) {
        guard(&self.waiting).values().for_each(|is_over| is_over.store(true, Relaxed));
    }
}

fn kind_of(kernels: u32) -> Result<u8> {
    match kernels.cast_signed() {
        libc::F_RDLCK => Ok(lock::READ),
        libc::F_WRLCK => Ok(lock::WRITE),
        libc::F_UNLCK => Ok(lock::UNLOCK),
        _ => Err(Errno::EINVAL),
    }
}

const fn kernels_of(kind: u8) -> u32 {
    match kind {
        lock::READ => libc::F_RDLCK.cast_unsigned(),
        _ => libc::F_WRLCK.cast_unsigned(),
    }
}

fn range_of(wanted: &Lock) -> Result<Range> {
    let end = if wanted.end >= TO_THE_END { u64::MAX } else { wanted.end };
    Ok(Range { kind: kind_of(wanted.kind)?, start: wanted.start, end, pid: wanted.pid })
}

impl Request<'_> {
    /// The carrier of an owner's locks in the node, one reference more of it; makes it if `makes`.
    fn carrier(&self, wanted: &Lock, makes: bool) -> Result<Option<OfdIndex>> {
        let of = Of { inode: self.node().0, owner: wanted.owner };
        let mut carriers = guard(&self.server.locks.carriers);
        if let Some(carrier) = carriers.get(&of) {
            let file = self.opened(carrier.own)?;
            self.server.client.retain(file);
            return Ok(Some(file));
        }
        if !makes {
            return Ok(None);
        }
        let flags = libc::O_RDWR as u32;
        let file = self.server.client.open_inode(Inode(of.inode), flags, &self.who())?;
        let file = within(file)?.ofd;
        let own = self.server.handles.add(file)?;
        self.server.locks.locked(of.inode).map(|(word, bit)| word.fetch_or(bit, Relaxed));
        carriers.insert(of, Carrier { own, handle: wanted.handle });
        self.server.locks.carrier_count.store(carriers.len(), Relaxed);
        self.server.client.retain(file);
        Ok(Some(file))
    }

    pub(crate) fn get_lock(&self, wanted: &Lock, to: &mut Writer<'_>) -> Result<()> {
        let range = range_of(wanted)?;
        let (client, carrier) = (self.server.client, self.carrier(wanted, false)?);
        let file = carrier.map_or_else(|| self.opened(wanted.handle), Ok)?;
        let mut in_the_way = client.test_lock(file, Owner::Carried(wanted.owner), range);
        if matches!(in_the_way, Ok(Some(_))) {
            self.server.turns.let_all_pass();
            in_the_way = client.test_lock(file, Owner::Carried(wanted.owner), range);
        }
        self.put(carrier);
        let in_the_way = in_the_way?;
        let said = match in_the_way {
            None => Lock { kind: libc::F_UNLCK.cast_unsigned(), ..*wanted },
            Some(Range { kind, start, end, pid }) => {
                let kind = kernels_of(kind);
                Lock { start, end: end.min(TO_THE_END), kind, pid, ..*wanted }
            }
        };
        reply::lock(to, &said);
        Ok(())
    }

    /// Takes or gives back a lock without waiting.
    pub(crate) fn set_lock(&self, wanted: &Lock) -> Result<()> {
        match self.take(wanted) {
            // Perhaps for a lock of a file that is closed already.
            Err(Errno::EAGAIN) => {
                self.server.turns.let_all_pass();
                self.take(wanted)
            }
            outcome => outcome,
        }
    }

    fn take(&self, wanted: &Lock) -> Result<()> {
        let range = range_of(wanted)?;
        if wanted.is_flock {
            return self.server.client.flock(self.opened(wanted.handle)?, range.kind, Wait::No);
        }
        let makes = range.kind != lock::UNLOCK;
        let carrier = self.carrier(wanted, makes)?;
        let Some(file) = carrier else { return Ok(()) };
        let outcome = self.server.client.lock(file, Owner::Carried(wanted.owner), range, Wait::No);
        self.put(carrier);
        outcome
    }

    /// Takes a lock that nobody holds or waits for; `Some`: it is to be waited for, and then the
    /// reference of a carrier that comes with it is to be given back.
    pub(crate) fn begin_lock(&self, wanted: &Lock) -> Result<Option<(LockWait<'static>, Carries)>> {
        let (client, range) = (self.server.client, range_of(wanted)?);
        if wanted.is_flock {
            let begun = client.begin_flock(self.opened(wanted.handle)?, range.kind)?;
            return Ok(begun.map(|wait| (wait, Carries(None))));
        }
        let carrier = self.carrier(wanted, true)?;
        let Some(file) = carrier else { return Err(Errno::EIO) };
        match client.begin_lock(file, Owner::Carried(wanted.owner), range) {
            Ok(Some(wait)) => Ok(Some((wait, Carries(carrier)))),
            outcome => {
                self.put(carrier);
                outcome.map(|_| None)
            }
        }
    }

    /// Gives a reference of a carrier back.
    fn put(&self, carrier: Option<OfdIndex>) {
        if let Some(file) = carrier {
            self.server.handles.put(file);
        }
    }

    /// The locks of a carrier end, also while somebody waits by it.
    fn end(&self, carrier: Carrier) {
        let all = Range { kind: lock::UNLOCK, start: 0, end: u64::MAX, pid: 0 };
        if let Ok(file) = self.opened(carrier.own) {
            let _ = self.server.client.lock(file, Owner::OpenFile, all, Wait::No);
        }
        let _ = self.server.handles.close(carrier.own);
    }

    /// A descriptor of the node is closed by an owner: his locks in it end.
    pub(crate) fn end_locks_of(&self, owner: u64) {
        if self.server.locks.carrier_count.load(Relaxed) == 0 {
            return;
        }
        let of = Of { inode: self.node().0, owner };
        let carrier = {
            let mut carriers = guard(&self.server.locks.carriers);
            let carrier = carriers.remove(&of);
            self.server.locks.carrier_count.store(carriers.len(), Relaxed);
            carrier
        };
        if let Some(carrier) = carrier {
            self.end(carrier);
        }
    }

    /// An open file is gone: so are the locks that were taken by it.
    pub(crate) fn end_locks_by(&self, handle: u64) {
        if self.server.locks.carrier_count.load(Relaxed) == 0 {
            return;
        }
        let mut ended = Vec::new();
        let mut carriers = guard(&self.server.locks.carriers);
        carriers.retain(|of, carrier| {
            let is_kept = of.inode != self.node().0 || carrier.handle != handle;
            if !is_kept {
                ended.push(*carrier);
            }
            is_kept
        });
        self.server.locks.carrier_count.store(carriers.len(), Relaxed);
        drop(carriers);
        for carrier in ended {
            self.end(carrier);
        }
    }
}

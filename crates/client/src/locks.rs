//! Locks: of processes (`F_SETLK`), of open files (`F_OFD_SETLK`), and whole files (`flock`).
//!
//! The shard of the inode keeps them. A process's locks of a file end when it closes any descriptor
//! of it, those of an open file with its last reference; the words that say whether there may be
//! any keep closing free of messages otherwise.

use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::Relaxed;
use shm::host::owners::{LOCKED_BY_OPEN_FILE, LOCKED_BY_PROCESS};
use shm::session::Interruptible;
use wire::attributes::mode;
use wire::errno::{Errno, Result};
use wire::request::lock;
use wire::{Credentials, Reply, Request};

use crate::opened::{Open, mark, o};
use crate::request::{Identity, To, own_credentials};
use crate::seek::whence;
use crate::{Client, OfdIndex, ProcessIndex};

/// Whose lock it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Owner {
    /// The process's: `F_SETLK`.
    Process(ProcessIndex),
    /// The open file's: `F_OFD_SETLK`.
    OpenFile,
    /// The open file's, which carries the locks of somebody whom a kernel names by this number.
    Carried(u64),
}

/// A lock or an unlocking.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Range {
    /// A value of `wire::request::lock`: `UNLOCK`, `READ`, `WRITE`.
    pub kind: u8,
    /// First offset.
    pub start: u64,
    /// Last offset; `u64::MAX`: to the end, wherever it will be.
    pub end: u64,
    /// Process number that a test tells others.
    pub pid: u32,
}

/// May the call wait?
#[derive(Clone, Copy, Debug)]
pub enum Wait<'a> {
    /// No: `EAGAIN`.
    No,
    /// Until the lock is free or a signal handler runs.
    Yes,
    /// Until the lock is free or another thread sets the word.
    Until(&'a AtomicBool),
}

/// See `Request::Lock`.
#[derive(Clone, Copy)]
struct Holder {
    owner: u64,
    party: u64,
}

/// Locks are about to be taken in an open file's name.
fn set_locked(open: &Open<'_>) {
    open.set(mark::LOCKED);
    open.vnode.set_locked(LOCKED_BY_OPEN_FILE);
}

impl Client {
    fn owner(&self, open: &Open<'_>, owner: Owner) -> Result<u64> {
        let (host, number) = (self.host()?, self.home()?.welcome.host);
        Ok(match owner {
            Owner::Process(process) => host.owner_of_process(number, process),
            Owner::OpenFile | Owner::Carried(_) => host.owner_of_file(number, open.index),
        })
    }

    /// Owner and party of a lock, as shards know them.
    fn holder(&self, open: &Open<'_>, owner: Owner) -> Result<Holder> {
        let number = self.owner(open, owner)?;
        let party = match owner {
            Owner::Process(_) => number,
            Owner::OpenFile => 0,
            Owner::Carried(named) => {
                let kernel = u64::from(self.home()?.welcome.host) << 8 | u64::from(self.mount());
                wire::hash::mix(named, kernel).max(1)
            }
        };
        Ok(Holder { owner: number, party })
    }

    /// `F_SETLK`, `F_SETLKW`, `F_OFD_SETLK`, `F_OFD_SETLKW`.
    ///
    /// # Errors
    /// As `fcntl(2)`: `EAGAIN`, `EINTR`, `EDEADLK`, `ENOLCK`, `EBADF`.
    pub fn lock(&self, ofd: OfdIndex, owner: Owner, range: Range, wait: Wait<'_>) -> Result<()> {
        let open = self.open_to_lock(ofd)?;
        let access = open.flags() & o::ACCESS;
        let is_refused = match range.kind {
            lock::READ => access == o::WRITE_ONLY,
            lock::WRITE => !open.is_writable(),
            lock::UNLOCK => false,
            _ => return Err(Errno::EINVAL),
        };
        if is_refused {
            return Err(Errno::EBADF);
        }
        if range.end < range.start {
            return Err(Errno::EINVAL);
        }
        match owner {
            Owner::Process(_) if range.kind != lock::UNLOCK => {
                open.vnode.set_locked(LOCKED_BY_PROCESS);
            }
            Owner::Process(_) => {}
            Owner::OpenFile | Owner::Carried(_) => set_locked(&open),
        }
        let holder = self.holder(&open, owner)?;
        self.take_lock(&open, holder, range, 0, wait)
    }

    /// `flock(2)` with a kind of `wire::request::lock`.
    ///
    /// # Errors
    /// As `flock(2)`: `EAGAIN` (which is `EWOULDBLOCK`), `EINTR`, `ENOLCK`, `EBADF`.
    pub fn flock(&self, ofd: OfdIndex, kind: u8, wait: Wait<'_>) -> Result<()> {
        let open = self.open_to_lock(ofd)?;
        set_locked(&open);
        let holder = self.holder(&open, Owner::OpenFile)?;
        let range = Range { kind, start: 0, end: u64::MAX, pid: 0 };
        self.take_lock(&open, holder, range, lock::FLOCK, wait)
    }

    fn open_to_lock(&self, ofd: OfdIndex) -> Result<Open<'_>> {
        let open = self.opened(ofd)?;
        if open.flags() & o::PATH != 0 { Err(Errno::EBADF) } else { Ok(open) }
    }

    fn take_lock(
        &self,
        open: &Open<'_>,
        Holder { owner, party }: Holder,
        range: Range,
        flags: u8,
        wait: Wait<'_>,
    ) -> Result<()> {
        let Range { kind, start, end, pid } = range;
        let inode = open.inode;
        let to = To::Shard(inode.shard());
        let who = own_credentials();
        let at_once = Request::Lock { inode, owner, party, pid, kind, flags, start, end };
        let interruptible = match wait {
            Wait::Yes if kind != lock::UNLOCK => Interruptible::Yes,
            Wait::Until(word) if kind != lock::UNLOCK => Interruptible::By(word),
            _ => return self.call_done(to, &at_once, &who),
        };
        let flags = flags | lock::WAIT;
        let waiting = Request::Lock { inode, owner, party, pid, kind, flags, start, end };
        let mut identity = None;
        let answer = self.call_as(to, &waiting, &who, &mut identity, interruptible);
        match answer.map(drop) {
            Err(Errno::EINTR) => {}
            other => return other,
        }
        if let Some(Identity { origin, sequence }) = identity {
            self.call_done(to, &Request::CancelLock { inode, origin, sequence }, &who)?;
        }
        // It may have been granted before it was withdrawn, unseen by us. Asking again without
        // waiting makes both sides agree: what is held already is granted again.
        match self.call_done(to, &at_once, &who) {
            Err(Errno::EAGAIN) => Err(Errno::EINTR),
            other => other,
        }
    }

    /// `F_GETLK`, `F_OFD_GETLK`: the lock in the way of `range`, `None` if it could be taken.
    ///
    /// # Errors
    /// As `fcntl(2)`.
    pub fn test_lock(&self, ofd: OfdIndex, owner: Owner, range: Range) -> Result<Option<Range>> {
        let open = self.open_to_lock(ofd)?;
        if range.kind == lock::UNLOCK || range.end < range.start {
            return Err(Errno::EINVAL);
        }
        let Range { kind, start, end, pid } = range;
        let Holder { owner, party } = self.holder(&open, owner)?;
        let request = Request::Lock {
            inode: open.inode,
            owner,
            party,
            pid,
            kind,
            flags: lock::TEST,
            start,
            end,
        };
        let to = To::Shard(open.inode.shard());
        self.call(to, &request, &own_credentials())?.with(|reply| match reply {
            Reply::Held { kind, pid, start, end } => Ok(Some(Range { kind, start, end, pid })),
            Reply::Done {} => Ok(None),
            _ => Err(Errno::EIO),
        })
    }

    /// What `l_start` counts from: zero, the offset, or the size.
    ///
    /// # Errors
    /// `EINVAL`, `EBADF`, `EIO`.
    pub fn lock_offset_base(&self, ofd: OfdIndex, from: u32) -> Result<u64> {
        let open = self.open_to_lock(ofd)?;
        match from {
            whence::SET => Ok(0),
            whence::CURRENT => Ok(open.words.offset.load(Relaxed)),
            whence::END if open.mode() & mode::TYPE == mode::REGULAR => self.size_now(&open),
            whence::END => Ok(0),
            _ => Err(Errno::EINVAL),
        }
    }

    /// A descriptor of `process` is being closed: its locks of the file end.
    pub(crate) fn release_of_process(&self, open: &Open<'_>, process: ProcessIndex) {
        if open.vnode.may_be_locked(LOCKED_BY_PROCESS) {
            self.release(open, Owner::Process(process));
        }
    }

    /// The last reference of an open file is gone: its locks end.
    pub(crate) fn release_of_open(&self, open: &Open<'_>) {
        if open.has(mark::LOCKED) {
            self.release(open, Owner::OpenFile);
        }
    }

    fn release(&self, open: &Open<'_>, owner: Owner) {
        let Ok(owner) = self.owner(open, owner) else { return };
        let who: Credentials = own_credentials();
        let request = Request::Release { inode: open.inode, owner };
        // Waited for: who asks for the lock after our close must get it. If the daemon is gone for
        // good there is nothing left that holds a lock.
        let _ = self.call_done(To::Shard(open.inode.shard()), &request, &who);
    }
}

//! Locks: of processes (`F_SETLK`), of open files (`F_OFD_SETLK`), and whole files (`flock`).
//!
//! The shard of the inode keeps them. A process's locks of a file end when it closes any descriptor
//! of it, those of an open file with its last reference; the words that say whether there may be
//! any keep closing free of messages otherwise. Until the shard has answered that locks end, it stands in
//! the host segment (`shm::host`, `releases`): they end then also if it can not be reached for long, or
//! if
//! the process is killed meanwhile.

use core::sync::atomic::Ordering::Relaxed;
use shm::host::owners::{LOCKED_BY_OPEN_FILE, LOCKED_BY_PROCESS};
use wire::attributes::mode;
use wire::errno::{Errno, Result};
use wire::request::lock;
use wire::{Inode, Reply, Request};

use crate::opened::{Open, mark, o};
use crate::request::{Patience, To, own_credentials};
use crate::seek::whence;
use crate::waits::LockWait;
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
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wait {
    /// No: `EAGAIN`.
    No,
    /// Until the lock is free or a signal handler runs.
    Yes,
}

/// See `Request::Lock`.
#[derive(Clone, Copy)]
pub(crate) struct Wanted {
    pub(crate) inode: Inode,
    owner: u64,
    party: u64,
    range: Range,
    /// `FLOCK`.
    flags: u8,
}

impl Wanted {
    /// The request, with further flags.
    pub(crate) const fn request(&self, flags: u8) -> Request<'static> {
        let Wanted { inode, owner, party, range, .. } = *self;
        let Range { kind, start, end, pid } = range;
        Request::Lock { inode, owner, party, pid, kind, flags: self.flags | flags, start, end }
    }
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

    /// A lock, as shards know it.
    fn wanted(&self, open: &Open<'_>, owner: Owner, range: Range, flags: u8) -> Result<Wanted> {
        let number = self.owner(open, owner)?;
        let party = match owner {
            Owner::Process(_) => number,
            Owner::OpenFile => 0,
            Owner::Carried(named) => {
                let kernel = u64::from(self.home()?.welcome.host) << 8 | u64::from(self.mount());
                wire::hash::mix(named, kernel).max(1)
            }
        };
        Ok(Wanted { inode: open.inode, owner: number, party, range, flags })
    }

    /// `F_SETLK`, `F_SETLKW`, `F_OFD_SETLK`, `F_OFD_SETLKW`.
    ///
    /// # Errors
    /// As `fcntl(2)`: `EAGAIN`, `EINTR`, `EDEADLK`, `ENOLCK`, `EBADF`.
    pub fn lock(&self, ofd: OfdIndex, owner: Owner, range: Range, wait: Wait) -> Result<()> {
        self.take_lock(self.wanted_range(ofd, owner, range)?, wait)
    }

    /// As `lock` where it may wait, for who has other things to do meanwhile.
    ///
    /// # Errors
    /// As `lock`.
    pub fn begin_lock(
        &self,
        ofd: OfdIndex,
        owner: Owner,
        range: Range,
    ) -> Result<Option<LockWait<'_>>> {
        self.begin_wanted(self.wanted_range(ofd, owner, range)?)
    }

    fn wanted_range(&self, ofd: OfdIndex, owner: Owner, range: Range) -> Result<Wanted> {
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
                self.await_release(open.inode, self.owner(&open, owner)?)?;
            }
            Owner::Process(_) => {}
            Owner::OpenFile | Owner::Carried(_) => set_locked(&open),
        }
        self.wanted(&open, owner, range, 0)
    }

    /// `flock(2)` with a kind of `wire::request::lock`.
    ///
    /// # Errors
    /// As `flock(2)`: `EAGAIN` (which is `EWOULDBLOCK`), `EINTR`, `ENOLCK`, `EBADF`.
    pub fn flock(&self, ofd: OfdIndex, kind: u8, wait: Wait) -> Result<()> {
        self.take_lock(self.wanted_file(ofd, kind)?, wait)
    }

    /// As `flock` where it may wait, for who has other things to do meanwhile.
    ///
    /// # Errors
    /// As `flock`.
    pub fn begin_flock(&self, ofd: OfdIndex, kind: u8) -> Result<Option<LockWait<'_>>> {
        self.begin_wanted(self.wanted_file(ofd, kind)?)
    }

    fn wanted_file(&self, ofd: OfdIndex, kind: u8) -> Result<Wanted> {
        let open = self.open_to_lock(ofd)?;
        set_locked(&open);
        let range = Range { kind, start: 0, end: u64::MAX, pid: 0 };
        self.wanted(&open, Owner::OpenFile, range, lock::FLOCK)
    }

    fn open_to_lock(&self, ofd: OfdIndex) -> Result<Open<'_>> {
        let open = self.opened(ofd)?;
        if open.flags() & o::PATH != 0 { Err(Errno::EBADF) } else { Ok(open) }
    }

    fn take_lock(&self, wanted: Wanted, wait: Wait) -> Result<()> {
        match wait {
            Wait::No => self.ask_lock(&wanted, 0),
            Wait::Yes => self.begin_wanted(wanted)?.map_or(Ok(()), LockWait::wait),
        }
    }

    /// Takes a lock that nobody holds or waits for; `Some`: it is to be waited for.
    fn begin_wanted(&self, wanted: Wanted) -> Result<Option<LockWait<'_>>> {
        match self.ask_lock(&wanted, lock::BEHIND) {
            Err(Errno::EAGAIN) if wanted.range.kind != lock::UNLOCK => {
                Ok(Some(LockWait::new(self, wanted)))
            }
            outcome => outcome.map(|()| None),
        }
    }

    fn ask_lock(&self, wanted: &Wanted, flags: u8) -> Result<()> {
        let to = To::Shard(wanted.inode.shard());
        self.call_done(to, &wanted.request(flags), &own_credentials())
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
        let request = self.wanted(&open, owner, range, 0)?.request(lock::TEST);
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
        let (Ok(owner), Ok(host)) = (self.owner(open, owner), self.host()) else { return };
        let inode = open.inode;
        // Noted first: if this process is killed before the shard has answered, the home daemon of the
        // host
        // tells it.
        let noted = host.release_note(inode, owner);
        // Waited for: who asks for the lock after our close must get it.
        match (self.tell_release(inode, owner), noted) {
            (Ok(()), None) => {}
            (Ok(()), Some(noted)) => host.release_clear(noted),
            // Not for ever. The same daemon goes on with it.
            (Err(_), Some(noted)) => host.release_hand_over(noted),
            (Err(_), None) => {
                let _ = host.release_leave(inode, owner);
            }
        }
    }

    fn tell_release(&self, inode: Inode, owner: u64) -> Result<()> {
        let (to, who) = (To::Shard(inode.shard()), own_credentials());
        match self.call_done(to, &Request::Release { inode, owner }, &who) {
            // The file is gone, and its locks.
            Err(Errno::ESTALE) => Ok(()),
            told => told,
        }
    }

    /// Before a process locks: its locks of before end first that it gave back and whose shard was not
    /// told
    /// in time. What is told of them later would end those of now.
    ///
    /// # Errors
    /// `EIO` if the shard can not be told even now.
    fn await_release(&self, inode: Inode, owner: u64) -> Result<()> {
        let host = self.host()?;
        if !host.is_handed_over(inode, owner) {
            return Ok(());
        }
        let mut patience = Patience::new(self.timeout_micros());
        while host.is_handed_over(inode, owner) {
            patience.back_off()?;
        }
        // What we had asked ourselves may still be in a slot of a daemon that stood still. It is taken
        // before
        // this is answered, and so before what comes next.
        self.tell_release(inode, owner)
    }
}

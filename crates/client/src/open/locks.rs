//! Locks: of processes (`F_SETLK`), of open files (`F_OFD_SETLK`), and of whole files (`flock`).
//!
//! The shard of the inode holds them. A process's locks of a file end when it closes any descriptor
//! of it, those of an open file with its last reference. Words in shared memory tell whether there
//! may be any, so that most closes need no message. A release is recorded in the host segment
//! (`shm::host`, `releases`) until the shard has answered, so locks end even if the shard stays
//! unreachable for long or the process is killed.

use core::sync::atomic::Ordering::Relaxed;
use shm::host::owners::{LOCKED_BY_OPEN_FILE, LOCKED_BY_PROCESS};
use wire::attributes::mode;
use wire::errno::{Errno, Result};
use wire::request::lock;
use wire::{Inode, Reply, Request};

use crate::file::open_file::{OpenFile, mark, o, whence};
use crate::file::{open_file, size};
use crate::open::lock_request::{LockRange, LockRequest};
use crate::open::lock_wait::LockWait;
use crate::transport::Transport;
use crate::transport::request::{Destination, own_credentials};
use crate::transport::retry::RetryBudget;
use crate::{OfdIndex, ProcessIndex};

/// Owner of a lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LockOwner {
    /// The process: `F_SETLK`.
    Process(ProcessIndex),
    /// The open file: `F_OFD_SETLK`.
    OpenFile,
    /// The open file, on behalf of a lock owner that a kernel behind a mount names by this number.
    Carried(u64),
}

/// Whether the call may wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wait {
    /// No: `EAGAIN`.
    No,
    /// Until the lock is granted or a signal handler runs.
    Yes,
}

/// Records that the open file may own locks.
fn set_locked(open: &OpenFile<'_>) {
    open.set(mark::LOCKED);
    open.vnode.set_locked(LOCKED_BY_OPEN_FILE);
}

fn owner_number(transport: &Transport, open: &OpenFile<'_>, owner: LockOwner) -> Result<u64> {
    let (host, number) = (transport.host()?, transport.home()?.welcome.host);
    Ok(match owner {
        LockOwner::Process(process) => host.owner_of_process(number, process),
        LockOwner::OpenFile | LockOwner::Carried(_) => host.owner_of_file(number, open.index),
    })
}

/// Builds the request for a lock.
fn lock_request(
    transport: &Transport,
    open: &OpenFile<'_>,
    owner: LockOwner,
    range: LockRange,
    flags: u8,
) -> Result<LockRequest> {
    let number = owner_number(transport, open, owner)?;
    let party = match owner {
        LockOwner::Process(_) => number,
        LockOwner::OpenFile => 0,
        LockOwner::Carried(named) => {
            let kernel =
                u64::from(transport.home()?.welcome.host) << 8 | u64::from(transport.mount());
            wire::hash::mix(named, kernel).max(1)
        }
    };
    Ok(LockRequest { inode: open.inode, owner: number, party, range, flags })
}

/// `F_SETLK`, `F_SETLKW`, `F_OFD_SETLK`, `F_OFD_SETLKW`.
pub(crate) fn lock(
    transport: &Transport,
    ofd: OfdIndex,
    owner: LockOwner,
    range: LockRange,
    wait: Wait,
) -> Result<()> {
    take_lock(transport, range_request(transport, ofd, owner, range)?, wait)
}

/// As `lock` for a caller that can wait asynchronously: `Some` if it has to.
pub(crate) fn begin_lock(
    transport: &Transport,
    ofd: OfdIndex,
    owner: LockOwner,
    range: LockRange,
) -> Result<Option<LockWait<'_>>> {
    begin_request(transport, range_request(transport, ofd, owner, range)?)
}

fn range_request(
    transport: &Transport,
    ofd: OfdIndex,
    owner: LockOwner,
    range: LockRange,
) -> Result<LockRequest> {
    let open = open_to_lock(transport, ofd)?;
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
        LockOwner::Process(_) if range.kind != lock::UNLOCK => {
            open.vnode.set_locked(LOCKED_BY_PROCESS);
            await_release(transport, open.inode, owner_number(transport, &open, owner)?)?;
        }
        LockOwner::Process(_) => {}
        LockOwner::OpenFile | LockOwner::Carried(_) => set_locked(&open),
    }
    lock_request(transport, &open, owner, range, 0)
}

/// `flock(2)` with a kind of `wire::request::lock`.
pub(crate) fn flock(transport: &Transport, ofd: OfdIndex, kind: u8, wait: Wait) -> Result<()> {
    take_lock(transport, file_request(transport, ofd, kind)?, wait)
}

/// As `flock` for a caller that can wait asynchronously: `Some` if it has to.
pub(crate) fn begin_flock(
    transport: &Transport,
    ofd: OfdIndex,
    kind: u8,
) -> Result<Option<LockWait<'_>>> {
    begin_request(transport, file_request(transport, ofd, kind)?)
}

fn file_request(transport: &Transport, ofd: OfdIndex, kind: u8) -> Result<LockRequest> {
    let open = open_to_lock(transport, ofd)?;
    set_locked(&open);
    let range = LockRange { kind, start: 0, end: u64::MAX, pid: 0 };
    lock_request(transport, &open, LockOwner::OpenFile, range, lock::FLOCK)
}

fn open_to_lock(transport: &Transport, ofd: OfdIndex) -> Result<OpenFile<'_>> {
    let open = open_file::by_index(transport, ofd)?;
    if open.flags() & o::PATH != 0 { Err(Errno::EBADF) } else { Ok(open) }
}

fn take_lock(transport: &Transport, lock_request: LockRequest, wait: Wait) -> Result<()> {
    match wait {
        Wait::No => try_lock(transport, &lock_request, 0),
        Wait::Yes => begin_request(transport, lock_request)?.map_or(Ok(()), LockWait::wait),
    }
}

/// Takes a lock that nobody holds or waits for; `Some` if the caller has to wait.
fn begin_request(transport: &Transport, lock_request: LockRequest) -> Result<Option<LockWait<'_>>> {
    match try_lock(transport, &lock_request, lock::BEHIND) {
        Err(Errno::EAGAIN) if lock_request.range.kind != lock::UNLOCK => {
            Ok(Some(LockWait::new(transport, lock_request)))
        }
        outcome => outcome.map(|()| None),
    }
}

fn try_lock(transport: &Transport, lock_request: &LockRequest, flags: u8) -> Result<()> {
    let shard = lock_request.inode.shard();
    let call = |flags| {
        let request = lock_request.request(flags);
        transport.call_done(Destination::Shard(shard), &request, &own_credentials())
    };
    // The end of a lock, for which this process did not wait, may still come to the shard.
    transport.given_up.settle(shard, || call(lock::TEST))?;
    let outcome = call(flags);
    transport.given_up.note(shard, &outcome);
    outcome
}

/// `F_GETLK`, `F_OFD_GETLK`: a lock that conflicts with `range`; `None` if there is none.
pub(crate) fn test_lock(
    transport: &Transport,
    ofd: OfdIndex,
    owner: LockOwner,
    range: LockRange,
) -> Result<Option<LockRange>> {
    let open = open_to_lock(transport, ofd)?;
    if range.kind == lock::UNLOCK || range.end < range.start {
        return Err(Errno::EINVAL);
    }
    let request = lock_request(transport, &open, owner, range, 0)?.request(lock::TEST);
    let to = Destination::Shard(open.inode.shard());
    transport.call(to, &request, &own_credentials())?.with(|reply| match reply {
        Reply::Held { kind, pid, start, end } => Ok(Some(LockRange { kind, start, end, pid })),
        Reply::Done {} => Ok(None),
        _ => Err(Errno::EIO),
    })
}

/// Base of `l_start`: zero, the file offset, or the size.
pub(crate) fn lock_offset_base(transport: &Transport, ofd: OfdIndex, from: u32) -> Result<u64> {
    let open = open_to_lock(transport, ofd)?;
    match from {
        whence::SET => Ok(0),
        whence::CURRENT => Ok(open.words.offset.load(Relaxed)),
        whence::END if open.mode() & mode::TYPE == mode::REGULAR => {
            size::size_now(transport, &open)
        }
        whence::END => Ok(0),
        _ => Err(Errno::EINVAL),
    }
}

/// False if no process has requested a lock of its own on the file since it is open on this host.
pub(crate) fn may_be_locked_by_a_process(transport: &Transport, ofd: OfdIndex) -> Result<bool> {
    let open = open_file::by_index(transport, ofd)?;
    Ok(open.vnode.may_be_locked(LOCKED_BY_PROCESS))
}

/// Ends the locks of `process` on a file, at the close of any of its descriptors.
pub(crate) fn release_of_process(
    transport: &Transport,
    open: &OpenFile<'_>,
    process: ProcessIndex,
) {
    if open.vnode.may_be_locked(LOCKED_BY_PROCESS) {
        release_locks(transport, open, LockOwner::Process(process));
    }
}

/// Ends the locks of an open file, with its last reference.
pub(crate) fn release_of_open(transport: &Transport, open: &OpenFile<'_>) {
    if open.has(mark::LOCKED) {
        release_locks(transport, open, LockOwner::OpenFile);
    }
}

fn release_locks(transport: &Transport, open: &OpenFile<'_>, owner: LockOwner) {
    let (Ok(owner), Ok(host)) = (owner_number(transport, open, owner), transport.host()) else {
        return;
    };
    let inode = open.inode;
    // Recorded first: if this process is killed before the shard has answered, the home daemon
    // of the host sends the release.
    let noted = host.release_note(inode, owner);
    // Waits for the answer: a lock request made after this close returns must succeed.
    match (send_release(transport, inode, owner), noted) {
        (Ok(()), None) => {}
        (Ok(()), Some(noted)) => host.release_clear(noted),
        // The wait is bounded; the home daemon retries from here on.
        (Err(_), Some(noted)) => host.release_hand_over(noted),
        (Err(_), None) => {
            let _ = host.release_leave(inode, owner);
        }
    }
}

fn send_release(transport: &Transport, inode: Inode, owner: u64) -> Result<()> {
    let (shard, caller) = (inode.shard(), own_credentials());
    let request = Request::Release { inode, owner };
    let call = || transport.call_done(Destination::Shard(shard), &request, &caller);
    // A lock for which this process did not wait may still be granted.
    transport.given_up.settle(shard, call)?;
    let outcome = call();
    transport.given_up.note(shard, &outcome);
    match outcome {
        // The file is gone, and its locks with it.
        Err(Errno::ESTALE) => Ok(()),
        answer => answer,
    }
}

/// Before a process locks: waits until its earlier releases have reached the shard. A release
/// that arrives later would end the new locks.
///
/// # Errors
/// `EIO` if the shard cannot be reached even now.
fn await_release(transport: &Transport, inode: Inode, owner: u64) -> Result<()> {
    let host = transport.host()?;
    if !host.is_handed_over(inode, owner) {
        return Ok(());
    }
    let mut budget = RetryBudget::new(transport.timeout_micros());
    while host.is_handed_over(inode, owner) {
        budget.back_off()?;
    }
    // This process's own request may still be in a slot of a stalled daemon. The daemon takes
    // it before it answers this one, and so before any later request.
    send_release(transport, inode, owner)
}

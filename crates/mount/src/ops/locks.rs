//! Locks of ranges (`F_SETLK`, `F_OFD_SETLK`) and of whole files (`flock`). The shard of the file
//! keeps them, as it does those of preloaded programs.
//!
//! The kernel identifies the owner of a range lock by a number that stands for a process or an open
//! file. For each owner and file this program opens a *lock file* in the instance, an open file of
//! its own, which holds the owner's locks. So the locks end with the owner, and with this program,
//! as those of any open file do.
//!
//! The locks of a process on a file end when the process closes any descriptor of the file. The
//! kernel reports that only for files that were not opened read-only before the first lock:
//! reporting it for all would make opens and closes half as slow again.
//!
//! One thread waits for all locks (`serve::wait_thread`), so that unlock requests are always served.
//! The kernel reports when a waiter is interrupted.

use client::{LockOwner, LockRange, LockWait, OfdIndex, Wait};
use fuse::reply;
use fuse::request::Lock;
use std::sync::atomic::Ordering::Relaxed;
use wire::Inode;
use wire::codec::Writer;
use wire::errno::{Errno, Result};
use wire::request::lock;

use crate::ops::request::{Request, within};
use crate::server::lock_table::{LockFile, LockKey, guard};
use crate::server::waits::{LockFileRef, StartedWait, WaitKind};

/// Last byte of a range to the end of the file, as the kernel encodes it.
const TO_THE_END: u64 = i64::MAX as u64;

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

fn range_of(requested: &Lock) -> Result<LockRange> {
    let end = if requested.end >= TO_THE_END { u64::MAX } else { requested.end };
    Ok(LockRange {
        kind: kind_of(requested.kind)?,
        start: requested.start,
        end,
        pid: requested.pid,
    })
}

/// A new reference to the lock file of an owner in the node; creates the lock file if `makes`.
fn lock_file(request: &Request<'_>, requested: &Lock, makes: bool) -> Result<Option<OfdIndex>> {
    let of = LockKey { inode: request.node().0, owner: requested.owner };
    let mut lock_files = guard(&request.server.locks.lock_files);
    if let Some(lock_file) = lock_files.get(&of) {
        let file = request.opened(lock_file.own)?;
        request.server.client.retain(file);
        return Ok(Some(file));
    }
    if !makes {
        return Ok(None);
    }
    let flags = libc::O_RDWR as u32;
    let file = request.server.client.open_inode(Inode(of.inode), flags, &request.caller())?;
    let file = within(file)?.ofd;
    let own = request.server.handles.add(file)?;
    request.server.locks.locked(of.inode).map(|(word, bit)| word.fetch_or(bit, Relaxed));
    lock_files.insert(of, LockFile { own, handle: requested.handle });
    request.server.locks.lock_file_count.store(lock_files.len(), Relaxed);
    request.server.client.retain(file);
    Ok(Some(file))
}

pub(crate) fn get_lock(request: &Request<'_>, requested: &Lock, to: &mut Writer<'_>) -> Result<()> {
    let range = range_of(requested)?;
    let (client, lock_file) = (request.server.client, lock_file(request, requested, false)?);
    let file = lock_file.map_or_else(|| request.opened(requested.handle), Ok)?;
    let mut in_the_way = client.test_lock(file, LockOwner::Carried(requested.owner), range);
    if matches!(in_the_way, Ok(Some(_))) {
        request.server.quiesce.wait_for_all();
        in_the_way = client.test_lock(file, LockOwner::Carried(requested.owner), range);
    }
    put(request, lock_file);
    let in_the_way = in_the_way?;
    let said = match in_the_way {
        None => Lock { kind: libc::F_UNLCK.cast_unsigned(), ..*requested },
        Some(LockRange { kind, start, end, pid }) => {
            let kind = kernels_of(kind);
            Lock { start, end: end.min(TO_THE_END), kind, pid, ..*requested }
        }
    };
    reply::lock(to, &said);
    Ok(())
}

/// Takes or releases a lock without waiting.
pub(crate) fn set_lock(request: &Request<'_>, requested: &Lock) -> Result<()> {
    match take(request, requested) {
        // The conflicting lock may belong to a file that is closed already.
        Err(Errno::EAGAIN) => {
            request.server.quiesce.wait_for_all();
            take(request, requested)
        }
        outcome => outcome,
    }
}

fn take(request: &Request<'_>, requested: &Lock) -> Result<()> {
    let range = range_of(requested)?;
    if requested.is_flock {
        return request.server.client.flock(
            request.opened(requested.handle)?,
            range.kind,
            Wait::No,
        );
    }
    let makes = range.kind != lock::UNLOCK;
    let lock_file = lock_file(request, requested, makes)?;
    let Some(file) = lock_file else { return Ok(()) };
    let outcome =
        request.server.client.lock(file, LockOwner::Carried(requested.owner), range, Wait::No);
    put(request, lock_file);
    outcome
}

/// Takes a lock without waiting; `Some`: it must be waited for. The reference to a lock file
/// that is returned with the wait must be dropped after it.
fn begin_lock(
    request: &Request<'_>,
    requested: &Lock,
) -> Result<Option<(LockWait<'static>, LockFileRef)>> {
    let (client, range) = (request.server.client, range_of(requested)?);
    if requested.is_flock {
        let begun = client.begin_flock(request.opened(requested.handle)?, range.kind)?;
        return Ok(begun.map(|wait| (wait, LockFileRef(None))));
    }
    let lock_file = lock_file(request, requested, true)?;
    let Some(file) = lock_file else { return Err(Errno::EIO) };
    match client.begin_lock(file, LockOwner::Carried(requested.owner), range) {
        Ok(Some(wait)) => Ok(Some((wait, LockFileRef(lock_file)))),
        outcome => {
            put(request, lock_file);
            outcome.map(|_| None)
        }
    }
}

/// Drops a reference to a lock file.
fn put(request: &Request<'_>, lock_file: Option<OfdIndex>) {
    if let Some(file) = lock_file {
        request.server.handles.put(file);
    }
}

/// Ends the locks of a lock file, even while another thread waits through it.
fn end(request: &Request<'_>, lock_file: LockFile) {
    let all = LockRange { kind: lock::UNLOCK, start: 0, end: u64::MAX, pid: 0 };
    if let Ok(file) = request.opened(lock_file.own) {
        let _ = request.server.client.lock(file, LockOwner::OpenFile, all, Wait::No);
    }
    let _ = request.server.handles.close(lock_file.own);
}

/// An owner closes a descriptor of the node: its locks in the file end.
pub(crate) fn end_locks_of(request: &Request<'_>, owner: u64) {
    if request.server.locks.lock_file_count.load(Relaxed) == 0 {
        return;
    }
    let of = LockKey { inode: request.node().0, owner };
    let lock_file = {
        let mut lock_files = guard(&request.server.locks.lock_files);
        let lock_file = lock_files.remove(&of);
        request.server.locks.lock_file_count.store(lock_files.len(), Relaxed);
        lock_file
    };
    if let Some(lock_file) = lock_file {
        end(request, lock_file);
    }
}

/// An open file is gone: locks taken through it end.
pub(crate) fn end_locks_by(request: &Request<'_>, handle: u64) {
    if request.server.locks.lock_file_count.load(Relaxed) == 0 {
        return;
    }
    let mut ended = Vec::new();
    let mut lock_files = guard(&request.server.locks.lock_files);
    lock_files.retain(|of, lock_file| {
        let stays = of.inode != request.node().0 || lock_file.handle != handle;
        if !stays {
            ended.push(*lock_file);
        }
        stays
    });
    request.server.locks.lock_file_count.store(lock_files.len(), Relaxed);
    drop(lock_files);
    for lock_file in ended {
        end(request, lock_file);
    }
}

/// Takes a lock; `Some`: it must be waited for.
pub(crate) fn take_or_wait(request: &Request<'_>, requested: &Lock) -> Result<Option<StartedWait>> {
    let started = begin_lock(request, requested)?;
    Ok(started.map(|(wait, carries)| StartedWait(WaitKind::Lock(wait, carries))))
}

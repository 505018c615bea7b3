//! Descriptors: every one of ours is a descriptor of the kernel, too, standing for an empty sealed
//! file, so that numbers are handed out, inherited and closed on exec by the kernel's own rules,
//! and `poll` sees a regular file. What it means is in the table in shared memory.

use crate::calls::native;
use crate::calls::state::{self, CLIENT, DESCRIPTOR_COUNT, MAPPING_FIRST, client, ours, table};
use crate::calls::{Answer, answer, failed, locks, user, uses};
use client::OfdIndex;
use wire::errno::{Errno, Result};

/// Gives an open file the lowest free descriptor not below `lowest`. On failure the file is closed.
///
/// # Errors
/// `EMFILE` and what else the kernel says.
pub fn install(file: OfdIndex, lowest: i32, close_on_exec: bool) -> Result<i32> {
    let placed = state::kernel(native::duplicate(state::placeholder(), lowest, close_on_exec));
    let outcome = placed.and_then(|fd| match set(fd as u32, file, close_on_exec) {
        Ok(_) => Ok(fd as i32),
        Err(errno) => {
            native::close(fd as i32);
            Err(errno)
        }
    });
    if outcome.is_err() {
        close_file(file);
    }
    outcome
}

/// Says what `fd` means. Returns what it meant: its reference is the caller's then.
fn set(fd: u32, file: OfdIndex, close_on_exec: bool) -> Result<Option<(OfdIndex, bool)>> {
    if fd >= MAPPING_FIRST {
        return Err(Errno::EMFILE);
    }
    let table = table().ok_or(Errno::EIO)?;
    let before = CLIENT.fd_set(table, fd, Some((file, close_on_exec)))?;
    state::mark(fd, true);
    Ok(before)
}

/// Says whether exec closes `fd`.
fn mark(fd: u32, close_on_exec: bool) -> Result<()> {
    CLIENT.fd_mark(table().ok_or(Errno::EIO)?, fd, close_on_exec)
}

fn close_file(file: OfdIndex) {
    if let Some(table) = table() {
        let _ = uses::close(file, table);
    }
}

/// Forgets what `fd` means and closes the open file behind it. The kernel's half is the caller's.
/// `None`: it is not ours.
fn forget(fd: u32) -> Option<Result<()>> {
    if !state::may_be_ours(fd) {
        return None;
    }
    let table = table()?;
    let file = CLIENT.fd_take(table, fd)?;
    if !crate::calls::hooks::is_vfork_child() {
        state::mark(fd, false);
    }
    Some(uses::close(file, table))
}

/// `close`.
#[must_use]
pub fn close(a: [u64; 6]) -> Answer {
    if state::is_private(a[0]) {
        return Some(failed(Errno::EBADF));
    }
    let outcome = forget(a[0] as u32)?;
    native::close(a[0] as u32 as i32);
    Some(outcome.map_or_else(failed, |()| 0))
}

/// `dup`.
#[must_use]
pub fn dup(a: [u64; 6]) -> Answer {
    duplicate(a[0], 0, false)
}

fn duplicate(fd: u64, lowest: i32, close_on_exec: bool) -> Answer {
    if state::is_private(fd) {
        return Some(failed(Errno::EBADF));
    }
    let used = ours(fd)?;
    CLIENT.retain(used.file());
    Some(install(used.file(), lowest, close_on_exec).map_or_else(failed, i64::from))
}

/// `dup2` and `dup3`: `flags` as of the latter.
#[must_use]
pub fn dup_to(number: i64, a: [u64; 6]) -> Answer {
    let (from, to) = (a[0], a[1]);
    if state::is_private(from) || state::is_private(to) {
        return Some(failed(Errno::EBADF));
    }
    let source = ours(from);
    if source.is_none() && ours(to).is_none() {
        return None;
    }
    if from as u32 == to as u32 {
        let same = if number == libc::SYS_dup2 { to as i64 } else { failed(Errno::EINVAL) };
        return Some(same);
    }
    if let Some(used) = source {
        let flags = if number == libc::SYS_dup3 { a[2] as u32 as i32 } else { 0 };
        let placed = put(used.file(), from, to as u32, flags);
        return Some(placed.map_or_else(failed, |()| i64::from(to as u32 as i32)));
    }
    // The kernel's file is in place before the meaning goes that hid it.
    let placed = native::call(number, a);
    if placed >= 0 {
        let _ = forget(to as u32);
    }
    Some(placed)
}

/// Makes `to` stand for what `from` does, an open file of ours. Threads that use `to` meanwhile find
/// what it stood for or what it does now: first its meaning changes, then the kernel closes its half
/// and makes it a placeholder, last the open file is closed that it stood for.
fn put(file: OfdIndex, from: u64, to: u32, flags: i32) -> Result<()> {
    if flags & !libc::O_CLOEXEC != 0 {
        return Err(Errno::EINVAL);
    }
    if to >= MAPPING_FIRST {
        return Err(Errno::EBADF);
    }
    CLIENT.retain(file);
    let before = set(to, file, flags != 0).inspect_err(|_| close_file(file))?;
    let placed = [from, u64::from(to), flags as u64, 0, 0, 0];
    if let Err(errno) = state::kernel(native::call(libc::SYS_dup3, placed)) {
        match before {
            Some((file, close_on_exec)) => {
                if let Ok(Some((ours, _))) = set(to, file, close_on_exec) {
                    close_file(ours);
                }
            }
            None => drop(forget(to)),
        }
        return Err(errno);
    }
    if let Some((file, _)) = before {
        close_file(file);
    }
    Ok(())
}

/// `close_range`: ours one by one; the kernel's in the ranges between what is private.
#[must_use]
pub fn close_range(a: [u64; 6]) -> Answer {
    let (first, last, flags) = (a[0] as u32, a[1] as u32, a[2]);
    if !state::is_prepared() || first > last {
        return None;
    }
    let only_mark = flags & u64::from(libc::CLOSE_RANGE_CLOEXEC) != 0;
    let end = last.min(DESCRIPTOR_COUNT as u32 - 1);
    let mut start = first;
    for fd in first..=end {
        if state::is_private(u64::from(fd)) {
            if fd > start {
                let _ = kernel_range(start, fd - 1, flags);
            }
            start = fd + 1;
        } else if only_mark {
            if state::may_be_ours(fd) {
                let _ = mark(fd, true);
            }
        } else {
            let _ = forget(fd);
        }
    }
    if start > last {
        return Some(0);
    }
    Some(kernel_range(start, last, flags))
}

fn kernel_range(first: u32, last: u32, flags: u64) -> i64 {
    native::call(libc::SYS_close_range, [first.into(), last.into(), flags, 0, 0, 0])
}

/// `fcntl`.
#[must_use]
pub fn control(a: [u64; 6]) -> Answer {
    let (fd, argument) = (a[0], a[2]);
    if state::is_private(fd) {
        return Some(failed(Errno::EBADF));
    }
    let used = ours(fd)?;
    let file = used.file();
    let client = match client() {
        Ok(client) => client,
        Err(errno) => return Some(failed(errno)),
    };
    match a[1] as i32 {
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => {
            let lowest = argument as u32 as i32;
            duplicate(fd, lowest, a[1] as i32 == libc::F_DUPFD_CLOEXEC)
        }
        libc::F_GETFD => Some(i64::from(state::closes_on_exec(fd))),
        libc::F_SETFD => {
            let close = argument & libc::FD_CLOEXEC as u64 != 0;
            let _ = native::call(libc::SYS_fcntl, a);
            Some(mark(fd as u32, close).map_or_else(failed, |()| 0))
        }
        // The kernel adds O_LARGEFILE to what programs gave; a flag that they expect to see.
        libc::F_GETFL => answer(client.flags(file).map(|flags| flags | 0o100_000)),
        libc::F_SETFL => Some(client.set_flags(file, argument as u32).map_or_else(failed, |()| 0)),
        libc::F_GETLK | libc::F_SETLK | libc::F_SETLKW => locks::record(client, file, a),
        libc::F_OFD_GETLK | libc::F_OFD_SETLK | libc::F_OFD_SETLKW => {
            locks::record(client, file, a)
        }
        // Leases and notifications are not offered; owners of signals mean nothing for files.
        libc::F_SETLEASE | libc::F_GETLEASE | libc::F_NOTIFY => Some(failed(Errno::EINVAL)),
        libc::F_GETOWN | libc::F_SETOWN => Some(0),
        _ => Some(failed(Errno::EINVAL)),
    }
}

/// `ioctl` on a file of ours: no terminal, and no operation of a particular file system.
#[must_use]
pub fn ioctl(a: [u64; 6]) -> Answer {
    let used = ours(a[0])?;
    let file = used.file();
    const FIONREAD: u32 = 0x541b;
    const FIONBIO: u32 = 0x5421;
    const FIOCLEX: u32 = 0x5451;
    const FIONCLEX: u32 = 0x5450;
    match a[1] as u32 {
        FIONBIO => Some(0),
        FIONREAD => answer(client().and_then(|client| {
            let here = client.seek(file, 0, libc::SEEK_CUR as u32)?;
            let left = client.fstat(file)?.size.saturating_sub(here);
            user::put(a[2], i32::try_from(left).unwrap_or(i32::MAX))
        })),
        FIOCLEX | FIONCLEX => {
            let _ = native::call(libc::SYS_ioctl, a);
            let marked = mark(a[0] as u32, a[1] as u32 == FIOCLEX);
            Some(marked.map_or_else(failed, |()| 0))
        }
        _ => Some(failed(Errno::ENOTTY)),
    }
}

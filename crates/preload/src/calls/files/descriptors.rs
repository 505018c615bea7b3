//! Descriptors. Every descriptor of ours is also a descriptor of the kernel, so that numbers are
//! allocated, inherited and closed on exec by the kernel's own rules, and `poll` sees a regular
//! file. It is open on a placeholder that fails loudly (`state::placeholder`), or, for directories
//! and with a mount, on the directory. The table in shared memory maps it to an open file.

use crate::calls::files::{handover, kernel_io, locks, reserved, uses};
use crate::calls::native;
use crate::calls::process::mount;
use crate::calls::process::state::{self, DESCRIPTOR_COUNT, MAPPING_FIRST, client, ours, table};
use crate::calls::process::static_client::CLIENT;
use crate::calls::{Answer, answer, failed, user};
use crate::entry::process::is_vfork_child;
use client::OfdIndex;
use wire::errno::{Errno, Result};

/// Assigns an open file the lowest free descriptor not below `lowest`, a copy of the kernel's
/// descriptor `from`. On failure the file is closed.
///
/// # Errors
/// `EMFILE`, and those of the kernel.
pub fn install(file: OfdIndex, from: i32, lowest: i32, close_on_exec: bool) -> Result<i32> {
    match state::kernel(native::duplicate(from, lowest, close_on_exec)) {
        Ok(fd) => install_at(fd as i32, file, close_on_exec),
        Err(errno) => {
            close_file(file);
            Err(errno)
        }
    }
}

/// Makes a descriptor of the kernel stand for an open file. On failure both are closed.
///
/// # Errors
/// `EMFILE`, `EIO`.
pub fn install_at(fd: i32, file: OfdIndex, close_on_exec: bool) -> Result<i32> {
    if let Err(errno) = set(fd as u32, file, close_on_exec) {
        native::close(fd);
        close_file(file);
        return Err(errno);
    }
    Ok(fd)
}

/// Maps `fd` to an open file. Returns the previous one, whose reference passes to the caller.
fn set(fd: u32, file: OfdIndex, close_on_exec: bool) -> Result<Option<(OfdIndex, bool)>> {
    if fd >= MAPPING_FIRST {
        return Err(Errno::EMFILE);
    }
    let table = table().ok_or(Errno::EIO)?;
    let before = CLIENT.fd_set(table, fd, Some((file, close_on_exec)))?;
    state::mark(fd, true);
    Ok(before)
}

/// Sets whether exec closes `fd`.
fn mark(fd: u32, close_on_exec: bool) -> Result<()> {
    CLIENT.fd_mark(table().ok_or(Errno::EIO)?, fd, close_on_exec)
}

fn close_file(file: OfdIndex) {
    if let Some(table) = table() {
        let _ = uses::close(file, table);
    }
}

/// Unmaps `fd` and closes its open file. The caller closes the kernel's descriptor. `None`: it is
/// not ours.
fn forget(fd: u32) -> Option<Result<()>> {
    if !state::may_be_ours(fd) {
        return None;
    }
    let table = table()?;
    let file = CLIENT.fd_take(table, fd)?;
    if !is_vfork_child() {
        state::mark(fd, false);
    }
    kernel_io::forget(file);
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
    let Some(used) = ours(fd) else { return reserved::refuse(fd) };
    CLIENT.retain(used.file());
    let installed = install(used.file(), fd as u32 as i32, lowest, close_on_exec);
    Some(installed.map_or_else(failed, i64::from))
}

/// `dup2` and `dup3`; `flags` as of the latter.
#[must_use]
pub fn dup_to(number: i64, a: [u64; 6]) -> Answer {
    let (from, to) = (a[0], a[1]);
    if state::is_private(from) || state::is_private(to) {
        return Some(failed(Errno::EBADF));
    }
    let source = ours(from);
    if source.is_none() && ours(to).is_none() {
        return reserved::refuse(from);
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
    // The kernel's file is in place before the mapping that hid it is removed.
    let placed = native::call(number, a);
    if placed >= 0 {
        let _ = forget(to as u32);
    }
    Some(placed)
}

/// Makes `to` refer to the open file of `from`, which is ours. Other threads that use `to`
/// meanwhile find either file: first the mapping changes, then the kernel closes its file and makes
/// it a placeholder, last the previous open file is closed.
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

/// `close_range`: closes ours one by one, the kernel's in the ranges between private descriptors.
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

const F_SETSIG: i32 = 10;
const F_GETSIG: i32 = 11;
const F_SETOWN_EX: i32 = 15;
const F_GETOWN_EX: i32 = 16;
/// The highest signal.
const SIGNALS_MAX: u64 = 64;

/// `fcntl`.
#[must_use]
pub fn control(a: [u64; 6]) -> Answer {
    let (fd, argument) = (a[0], a[2]);
    if state::is_private(fd) {
        return Some(failed(Errno::EBADF));
    }
    let Some(used) = ours(fd) else { return reserved::refuse(fd) };
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
        // The kernel adds O_LARGEFILE to what programs gave, and programs expect to see it.
        libc::F_GETFL => answer(client.flags(file).map(|flags| flags | 0o100_000)),
        libc::F_SETFL => Some(client.set_flags(file, argument as u32).map_or_else(failed, |()| 0)),
        libc::F_GETLK | libc::F_SETLK | libc::F_SETLKW => locks::record(client, file, a),
        libc::F_OFD_GETLK | libc::F_OFD_SETLK | libc::F_OFD_SETLKW => {
            locks::record(client, file, a)
        }
        // Leases and notifications are not offered. Files send no signals, so their owner and number
        // have no meaning.
        libc::F_SETLEASE | libc::F_GETLEASE | libc::F_NOTIFY => Some(failed(Errno::EINVAL)),
        libc::F_GETOWN | libc::F_SETOWN | F_GETSIG | F_SETOWN_EX => Some(0),
        F_SETSIG if argument <= SIGNALS_MAX => Some(0),
        F_GETOWN_EX => answer(user::put(argument, [0i32; 2])),
        _ => Some(failed(Errno::EINVAL)),
    }
}

/// `ioctl` on a file of ours: it is no terminal and has no operations of a particular file system.
#[must_use]
pub fn ioctl(a: [u64; 6]) -> Answer {
    let Some(used) = ours(a[0]) else { return ioctl_that_names(a) };
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
            // By `fcntl`, which works for a descriptor of `O_PATH` as well.
            let close_on_exec = a[1] as u32 == FIOCLEX;
            let flag = if close_on_exec { libc::FD_CLOEXEC as u64 } else { 0 };
            let b = [a[0], libc::F_SETFD as u64, flag, 0, 0, 0];
            let _ = native::call(libc::SYS_fcntl, b);
            let marked = mark(a[0] as u32, close_on_exec);
            Some(marked.map_or_else(failed, |()| 0))
        }
        _ => Some(failed(Errno::ENOTTY)),
    }
}

/// An `ioctl` on a descriptor of the kernel, some of which name a second descriptor: a loop device
/// gets its file so. The kernel gets one of the mount in place of ours.
fn ioctl_that_names(a: [u64; 6]) -> Answer {
    const LOOP_SET_FD: u32 = 0x4c00;
    const LOOP_CHANGE_FD: u32 = 0x4c06;
    const LOOP_CONFIGURE: u32 = 0x4c0a;
    const FICLONE: u32 = 0x4004_9409;
    match a[1] as u32 {
        LOOP_SET_FD | LOOP_CHANGE_FD => {
            let used = ours(a[2])?;
            Some(with_real(used.file(), |real| {
                native::call(libc::SYS_ioctl, [a[0], a[1], real, 0, 0, 0])
            }))
        }
        LOOP_CONFIGURE => {
            // `struct loop_config`: the descriptor, then what the kernel reads only.
            let mut config: LoopConfig = user::get(a[2]).ok()?;
            let used = ours(u64::from(*config.first()?))?;
            Some(with_real(used.file(), |real| {
                if let Some(fd) = config.first_mut() {
                    *fd = real as u32;
                }
                let given = config.as_ptr() as u64;
                native::call(libc::SYS_ioctl, [a[0], a[1], given, 0, 0, 0])
            }))
        }
        // As between two file systems: programs copy then.
        FICLONE => ours(a[2]).map(|_| failed(Errno::EXDEV)),
        _ => None,
    }
}

/// `struct loop_config`, 304 bytes.
type LoopConfig = [u32; 76];

/// Calls with a descriptor of the mount for this open file.
fn with_real(file: OfdIndex, call: impl FnOnce(u64) -> i64) -> i64 {
    if !mount::is_there() {
        return failed(Errno::EOPNOTSUPP);
    }
    match handover::open_again(file) {
        Ok(real) => {
            let result = call(real as u64);
            native::close(real);
            result
        }
        Err(errno) => failed(errno),
    }
}

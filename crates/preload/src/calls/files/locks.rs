//! Record locks of a process or of an open file, and `flock`.

use crate::calls::process::state::{client, ours, table};
use crate::calls::{Answer, answer, user};
use client::{Client, LockOwner, LockRange, OfdIndex, Wait};
use wire::errno::{Errno, Result};
use wire::request::lock;

/// `fcntl` with one of the six lock commands: descriptor, command, `struct flock`.
#[must_use]
pub fn record(client: &Client, file: OfdIndex, a: [u64; 6]) -> Answer {
    answer(record_lock(client, file, a))
}

fn record_lock(client: &Client, file: OfdIndex, a: [u64; 6]) -> Result<()> {
    let command = a[1] as i32;
    let given: libc::flock = user::get(a[2])?;
    let range = range(client, file, &given)?;
    // A lock of an open file belongs to no process, which is represented by zero.
    let (owner, pid) = match command {
        libc::F_GETLK | libc::F_SETLK | libc::F_SETLKW => (
            LockOwner::Process(table().ok_or(Errno::EIO)?),
            crate::calls::process::identity::identity().pid,
        ),
        _ if given.l_pid != 0 => return Err(Errno::EINVAL),
        _ => (LockOwner::OpenFile, 0),
    };
    let range = LockRange { pid, ..range };
    match command {
        libc::F_GETLK | libc::F_OFD_GETLK => {
            let held = client.test_lock(file, owner, range)?;
            user::put(a[2], describe(given, held))
        }
        _ => {
            allowed(client, file, range.kind)?;
            let waits = matches!(command, libc::F_SETLKW | libc::F_OFD_SETLKW);
            client.lock(file, owner, range, if waits { Wait::Yes } else { Wait::No })
        }
    }
}

/// A read lock needs a readable descriptor, a write lock a writable one.
fn allowed(client: &Client, file: OfdIndex, kind: u8) -> Result<()> {
    let mode = client.flags(file)? as i32 & libc::O_ACCMODE;
    let fits = match kind {
        lock::READ => mode != libc::O_WRONLY,
        lock::WRITE => mode != libc::O_RDONLY,
        _ => true,
    };
    if fits { Ok(()) } else { Err(Errno::EBADF) }
}

fn range(client: &Client, file: OfdIndex, given: &libc::flock) -> Result<LockRange> {
    let kind = match i32::from(given.l_type) {
        libc::F_RDLCK => lock::READ,
        libc::F_WRLCK => lock::WRITE,
        libc::F_UNLCK => lock::UNLOCK,
        _ => return Err(Errno::EINVAL),
    };
    let base = client.lock_offset_base(file, given.l_whence as u32)?;
    let start = i64::try_from(base)
        .ok()
        .and_then(|base| base.checked_add(given.l_start))
        .ok_or(Errno::EOVERFLOW)?;
    // A negative length locks the bytes before the start; zero locks to the end.
    let (first, last) = match given.l_len {
        0 => (start, None),
        length if length > 0 => {
            let last = start.checked_add(length - 1).ok_or(Errno::EOVERFLOW)?;
            (start, Some(last))
        }
        length => {
            let first = start.checked_add(length).ok_or(Errno::EINVAL)?;
            (first, Some(start - 1))
        }
    };
    let first = u64::try_from(first).map_err(|_| Errno::EINVAL)?;
    // A range up to the largest offset means to the end.
    let end = match last {
        None | Some(i64::MAX) => u64::MAX,
        Some(last) => u64::try_from(last).map_err(|_| Errno::EINVAL)?,
    };
    Ok(LockRange { kind, start: first, end, pid: 0 })
}

fn describe(given: libc::flock, held: Option<LockRange>) -> libc::flock {
    let mut result = given;
    let Some(held) = held else {
        result.l_type = libc::F_UNLCK as i16;
        return result;
    };
    result.l_type = if held.kind == lock::READ { libc::F_RDLCK } else { libc::F_WRLCK } as i16;
    result.l_whence = libc::SEEK_SET as i16;
    result.l_start = held.start as i64;
    result.l_len = if held.end == u64::MAX { 0 } else { (held.end - held.start + 1) as i64 };
    // The lock of an open file.
    result.l_pid = if held.pid == 0 { -1 } else { held.pid as i32 };
    result
}

/// `flock`.
#[must_use]
pub fn whole(a: [u64; 6]) -> Answer {
    let used = ours(a[0])?;
    let file = used.file();
    answer((|| {
        let operation = a[1] as i32;
        let wait = if operation & libc::LOCK_NB != 0 { Wait::No } else { Wait::Yes };
        let kind = match operation & !libc::LOCK_NB {
            libc::LOCK_SH => lock::READ,
            libc::LOCK_EX => lock::WRITE,
            libc::LOCK_UN => lock::UNLOCK,
            _ => return Err(Errno::EINVAL),
        };
        client()?.flock(file, kind, wait)
    })())
}

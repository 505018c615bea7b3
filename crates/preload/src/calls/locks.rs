//! Record locks of a process or of an open file, and `flock`.

use crate::calls::state::{client, ours, table};
use crate::calls::{Answer, answer, user};
use client::{Client, OfdIndex, Owner, Range, Wait};
use wire::errno::{Errno, Result};
use wire::request::lock;

/// `fcntl` with one of the six lock commands: descriptor, command, `struct flock`.
#[must_use]
pub fn record(client: &Client, file: OfdIndex, a: [u64; 6]) -> Answer {
    answer(record_lock(client, file, a))
}

fn record_lock(client: &Client, file: OfdIndex, a: [u64; 6]) -> Result<()> {
    let command = a[1] as i32;
    let asked: libc::flock = user::get(a[2])?;
    let range = range(client, file, &asked)?;
    // A lock of an open file belongs to no process: zero stands for that.
    let (owner, pid) = match command {
        libc::F_GETLK | libc::F_SETLK | libc::F_SETLKW => {
            (Owner::Process(table().ok_or(Errno::EIO)?), crate::calls::hooks::identity().0)
        }
        _ if asked.l_pid != 0 => return Err(Errno::EINVAL),
        _ => (Owner::OpenFile, 0),
    };
    let range = Range { pid, ..range };
    match command {
        libc::F_GETLK | libc::F_OFD_GETLK => {
            let held = client.test_lock(file, owner, range)?;
            user::put(a[2], describe(asked, held))
        }
        _ => {
            allowed(client, file, range.kind)?;
            let waits = matches!(command, libc::F_SETLKW | libc::F_OFD_SETLKW);
            client.lock(file, owner, range, if waits { Wait::Yes } else { Wait::No })
        }
    }
}

/// A lock for reading needs a descriptor open for reading, one for writing a writable one.
fn allowed(client: &Client, file: OfdIndex, kind: u8) -> Result<()> {
    let mode = client.flags(file)? as i32 & libc::O_ACCMODE;
    let fits = match kind {
        lock::READ => mode != libc::O_WRONLY,
        lock::WRITE => mode != libc::O_RDONLY,
        _ => true,
    };
    if fits { Ok(()) } else { Err(Errno::EBADF) }
}

fn range(client: &Client, file: OfdIndex, asked: &libc::flock) -> Result<Range> {
    let kind = match i32::from(asked.l_type) {
        libc::F_RDLCK => lock::READ,
        libc::F_WRLCK => lock::WRITE,
        libc::F_UNLCK => lock::UNLOCK,
        _ => return Err(Errno::EINVAL),
    };
    let base = client.lock_offset_base(file, asked.l_whence as u32)?;
    let start = i64::try_from(base)
        .ok()
        .and_then(|base| base.checked_add(asked.l_start))
        .ok_or(Errno::EOVERFLOW)?;
    // A negative length locks what stands before the start; zero locks to the end.
    let (first, last) = match asked.l_len {
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
    // Up to the last byte that there can be is to the end.
    let end = match last {
        None | Some(i64::MAX) => u64::MAX,
        Some(last) => u64::try_from(last).map_err(|_| Errno::EINVAL)?,
    };
    Ok(Range { kind, start: first, end, pid: 0 })
}

fn describe(asked: libc::flock, held: Option<Range>) -> libc::flock {
    let mut told = asked;
    let Some(held) = held else {
        told.l_type = libc::F_UNLCK as i16;
        return told;
    };
    told.l_type = if held.kind == lock::READ { libc::F_RDLCK } else { libc::F_WRLCK } as i16;
    told.l_whence = libc::SEEK_SET as i16;
    told.l_start = held.start as i64;
    told.l_len = if held.end == u64::MAX { 0 } else { (held.end - held.start + 1) as i64 };
    // Of an open file.
    told.l_pid = if held.pid == 0 { -1 } else { held.pid as i32 };
    told
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

//! `open`, `openat`, `openat2`, `creat`.

use crate::calls::files::descriptors;
use crate::calls::files::sockets;
use crate::calls::names::paths::{AT_CWD, Place, Text, place, unreadable};
use crate::calls::process::credentials::{caller, with_umask};
use crate::calls::process::mount;
use crate::calls::process::state::{self, client};
use crate::calls::{Answer, failed, native, user};
use client::{BY_KERNEL, Client, Opened, Outcome, PathBuffer};
use wire::Attributes;
use wire::attributes::mode;
use wire::errno::{Errno, Result};

/// `openat`: directory, path, flags, mode.
#[must_use]
#[inline(never)]
pub fn open_at(a: [u64; 6]) -> Answer {
    let path = match user::path(a[1]) {
        Ok(path) => path,
        Err(errno) => return unreadable(a[0], errno),
    };
    let mut buffer = PathBuffer::new();
    let flags = a[2] as u32;
    let opened = match place(a[0], path) {
        Ok(Place::Native) => return None,
        Ok(Place::Ours(at)) => client()
            .and_then(|client| client.open(at, flags, with_umask(a[3]), &caller(), &mut buffer)),
        Ok(Place::Open(used)) => reopen(used.file(), flags),
        Err(errno) => Err(errno),
    };
    if matches!(opened, Err(BY_KERNEL)) {
        return Some(truncate_and_open(a));
    }
    Some(match opened {
        Ok(Outcome::Done(opened)) => finish(&opened, a),
        Ok(Outcome::Outside) => open_outside(a, &buffer),
        // The kernel knows the path, too, and its pipes connect all programs of the host.
        Ok(Outcome::Special(_)) if mount::is_there() => return None,
        Ok(Outcome::Special(attributes)) => open_special(&attributes, flags),
        Err(errno) => failed(errno),
    })
}

/// Opens the path that the walk left the instance with.
#[cold]
#[inline(never)]
fn open_outside(a: [u64; 6], buffer: &PathBuffer) -> i64 {
    let text = Text::new(buffer.outside());
    native::call_waiting(libc::SYS_openat, [AT_CWD, text.address(), a[2], a[3], 0, 0])
}

/// Opens a file that a kernel maps, whose truncation is the kernel's.
#[cold]
fn truncate_and_open(a: [u64; 6]) -> i64 {
    let truncate = libc::O_TRUNC as u64;
    let kept = a[2] & !((libc::O_CREAT | libc::O_EXCL) as u64) | libc::O_CLOEXEC as u64;
    let fd = native::call(libc::SYS_openat, [a[0], a[1], kept, 0, 0, 0]);
    if fd < 0 {
        return fd;
    }
    native::close(fd as i32);
    let mut b = a;
    b[2] &= !truncate;
    open_at(b).unwrap_or_else(|| native::call(libc::SYS_openat, b))
}

fn reopen(file: client::OfdIndex, flags: u32) -> Result<Outcome<Opened>> {
    let client: &Client = client()?;
    client.open_inode(client.inode_of(file)?, flags, &caller())
}

fn finish(opened: &Opened, a: [u64; 6]) -> i64 {
    let flags = a[2] as u32;
    let close_on_exec = flags & libc::O_CLOEXEC as u32 != 0;
    let beside = if mount::is_there() { beside(opened, a) } else { None };
    let installed = match beside {
        Some(fd) => descriptors::install_at(fd, opened.ofd, close_on_exec),
        None => descriptors::install(opened.ofd, state::placeholder(), 0, close_on_exec),
    };
    installed.map_or_else(failed, i64::from)
}

/// The kernel's own descriptor of a directory, or of a file opened with `O_PATH`.
fn beside(opened: &Opened, a: [u64; 6]) -> Option<i32> {
    let flags = a[2] as u32;
    if flags & libc::O_PATH as u32 == 0 && opened.mode & mode::TYPE != mode::DIRECTORY {
        return None;
    }
    mount::open_beside(a[0], a[1], flags, opened.inode)
}

/// Sockets and devices have names in the instance, but no kernel object behind them.
fn open_special(attributes: &Attributes, flags: u32) -> i64 {
    match attributes.mode & mode::TYPE {
        mode::FIFO => sockets::open_pipe(attributes, flags).unwrap_or_else(failed),
        mode::SOCKET => failed(Errno::ENXIO),
        _ => failed(Errno::EOPNOTSUPP),
    }
}

/// `openat2`: directory, path, how, size of how.
#[must_use]
pub fn open_at_2(a: [u64; 6]) -> Answer {
    const HOW_BYTES: u64 = 24;
    if a[3] < HOW_BYTES {
        return None;
    }
    let path = match user::path(a[1]) {
        Ok(path) => path,
        Err(errno) => return unreadable(a[0], errno),
    };
    match place(a[0], path) {
        Ok(Place::Native) => return None,
        Err(errno) => return Some(failed(errno)),
        Ok(_) => {}
    }
    let how: Result<[u64; 3]> = user::get(a[2]);
    match how {
        // RESOLVE_* restricts path resolution. None of it is supported; programs have a fallback.
        Ok([_, _, resolve]) if resolve != 0 => Some(failed(Errno::ENOSYS)),
        Ok([flags, mode, _]) => open_at([a[0], a[1], flags, mode, 0, 0]),
        Err(errno) => Some(failed(errno)),
    }
}

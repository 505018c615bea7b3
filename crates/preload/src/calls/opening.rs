//! `open`, `openat`, `openat2`, `creat`.

use crate::calls::credentials::{who, with_umask};
use crate::calls::paths::{HERE, Place, Text, place, unreadable};
use crate::calls::state::client;
use crate::calls::{Answer, descriptors, failed, native, sockets, user};
use client::{Client, Opened, Outcome, PathBuffer};
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
            .and_then(|client| client.open(at, flags, with_umask(a[3]), &who(), &mut buffer)),
        Ok(Place::Open(used)) => reopen(used.file(), flags),
        Err(errno) => Err(errno),
    };
    Some(match opened {
        Ok(Outcome::Done(opened)) => finish(&opened, flags),
        Ok(Outcome::Outside) => {
            let text = Text::new(buffer.outside());
            native::call(libc::SYS_openat, [HERE, text.address(), a[2], a[3], 0, 0])
        }
        Ok(Outcome::Special(attributes)) => open_special(&attributes, flags),
        Err(errno) => failed(errno),
    })
}

fn reopen(file: client::OfdIndex, flags: u32) -> Result<Outcome<Opened>> {
    let client: &Client = client()?;
    client.open_inode(client.inode_of(file)?, flags, &who())
}

fn finish(opened: &Opened, flags: u32) -> i64 {
    let close_on_exec = flags & libc::O_CLOEXEC as u32 != 0;
    descriptors::install(opened.ofd, 0, close_on_exec).map_or_else(failed, i64::from)
}

/// Sockets and devices have their names in the instance, but no kernel stands behind them.
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
        // RESOLVE_* restricts how a path may be walked: we promise none of it, and programs have a
        // way without this call.
        Ok([_, _, resolve]) if resolve != 0 => Some(failed(Errno::ENOSYS)),
        Ok([flags, mode, _]) => open_at([a[0], a[1], flags, mode, 0, 0]),
        Err(errno) => Some(failed(errno)),
    }
}

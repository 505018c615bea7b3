//! `open`, `openat`, `openat2`, `creat`.

use crate::calls::credentials::{masked, who};
use crate::calls::paths::{HERE, Place, Text, place};
use crate::calls::state::{self, client};
use crate::calls::{Answer, descriptors, failed, native, user};
use client::{Client, Opened, Outcome, PathBuffer};
use wire::Attributes;
use wire::attributes::{mode, want};
use wire::errno::{Errno, Result};

/// `openat`: directory, path, flags, mode.
#[must_use]
pub fn open_at(a: [u64; 6]) -> Answer {
    let path = user::path(a[1]).ok()?;
    let mut buffer = PathBuffer::new();
    let flags = a[2] as u32;
    let opened = match place(a[0], path) {
        Ok(Place::Native) => return None,
        Ok(Place::Ours(at)) => {
            client().and_then(|client| client.open(at, flags, masked(a[3]), &who(), &mut buffer))
        }
        Ok(Place::Open(file)) => reopen(file, flags),
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

/// Sockets and devices have their names in the instance, but no kernel stands behind them. A pipe
/// has its own in the run directory of the host, named by its inode.
fn open_special(attributes: &Attributes, flags: u32) -> i64 {
    match attributes.mode & mode::TYPE {
        mode::FIFO => open_pipe(attributes, flags).unwrap_or_else(failed),
        mode::SOCKET => failed(Errno::ENXIO),
        _ => failed(Errno::EOPNOTSUPP),
    }
}

fn open_pipe(attributes: &Attributes, flags: u32) -> Result<i64> {
    let wanted = match flags as i32 & libc::O_ACCMODE {
        libc::O_RDONLY => want::READ,
        libc::O_WRONLY => want::WRITE,
        _ => want::READ | want::WRITE,
    };
    attributes.permits(&who(), wanted)?;
    let mut path = [0; state::SETTING_BYTES_MAX + 32];
    let length = state::run_directory(&mut path);
    let mut name = *b"/pipe-0000000000000000";
    for (digit, place) in name.iter_mut().rev().take(16).zip(0..) {
        let value = (attributes.inode.0 >> (4 * place)) as u8 & 15;
        *digit = if value < 10 { b'0' + value } else { b'a' + value - 10 };
    }
    for (to, from) in path.iter_mut().skip(length).zip(name) {
        *to = from;
    }
    let address = path.as_ptr() as u64;
    let kind = u64::from(libc::S_IFIFO | 0o600);
    let made = native::call(libc::SYS_mknod, [address, kind, 0, 0, 0, 0]);
    if made != 0 && made != -i64::from(libc::EEXIST) {
        state::kernel(made)?;
    }
    let drop = (libc::O_CREAT | libc::O_EXCL | libc::O_TRUNC) as u32;
    Ok(native::call(libc::SYS_open, [address, u64::from(flags & !drop), 0, 0, 0, 0]))
}

/// `openat2`: directory, path, how, size of how.
#[must_use]
pub fn open_at_2(a: [u64; 6]) -> Answer {
    const HOW_BYTES: u64 = 24;
    if a[3] < HOW_BYTES {
        return None;
    }
    let path = user::path(a[1]).ok()?;
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

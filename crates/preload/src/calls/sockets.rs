//! Names of sockets and pipes that lie in the instance: the kernel's own object stands behind each,
//! in the run directory of the host, named by the inode. So they join processes of one host.

use crate::calls::credentials::{who, with_umask};
use crate::calls::paths::{HERE, Place, place};
use crate::calls::state::{self, client, kernel};
use crate::calls::{Answer, answer, failed, native, user};
use client::{At, Follow, Outcome, PathBuffer};
use wire::attributes::{mode, want};
use wire::errno::{Errno, Result};
use wire::{Attributes, Inode};

/// `struct sockaddr_un`: the family, then at most so many bytes of path.
const PATH_BYTES: usize = 108;
const ADDRESS_BYTES: usize = 2 + PATH_BYTES;
/// `struct cmsghdr`.
const HEAD_BYTES: u64 = 16;

/// The path of the kernel's object for an inode, with its NUL; its length without.
pub fn stand_in(inode: Inode, path: &mut [u8]) -> Result<usize> {
    let length = state::run_directory(path);
    let mut name = *b"/n0000000000000000\0";
    for (digit, place) in name.iter_mut().rev().skip(1).take(16).zip(0..) {
        let value = (inode.0 >> (4 * place)) as u8 & 15;
        *digit = if value < 10 { b'0' + value } else { b'a' + value - 10 };
    }
    let to = path.get_mut(length..length + name.len()).ok_or(Errno::ENAMETOOLONG)?;
    to.copy_from_slice(&name);
    Ok(length + name.len() - 1)
}

/// Opens the kernel's pipe of a pipe of the instance.
pub fn open_pipe(attributes: &Attributes, flags: u32) -> Result<i64> {
    let wanted = match flags as i32 & libc::O_ACCMODE {
        libc::O_RDONLY => want::READ,
        libc::O_WRONLY => want::WRITE,
        _ => want::READ | want::WRITE,
    };
    client()?.permits(attributes, &who(), wanted)?;
    let mut path = [0; state::SETTING_BYTES_MAX + 32];
    stand_in(attributes.inode, &mut path)?;
    let address = path.as_ptr() as u64;
    let kind = u64::from(libc::S_IFIFO | 0o600);
    let made = native::call(libc::SYS_mknod, [address, kind, 0, 0, 0, 0]);
    if made != 0 && made != -i64::from(libc::EEXIST) {
        kernel(made)?;
    }
    let drop = (libc::O_CREAT | libc::O_EXCL | libc::O_TRUNC) as u32;
    Ok(native::call(libc::SYS_open, [address, u64::from(flags & !drop), 0, 0, 0, 0]))
}

/// The path of a socket's address, if it is one of the file system.
fn path_of<'a>(address: u64, length: u64) -> Option<&'a [u8]> {
    let length = usize::try_from(length & 0xffff_ffff).ok()?;
    let family: u16 = user::get(address).ok().filter(|_| length > 2 && address != 0)?;
    if i32::from(family) != libc::AF_UNIX || length > ADDRESS_BYTES {
        return None;
    }
    let path = user::bytes(address + 2, length - 2).ok()?;
    let path = path.split(|&byte| byte == 0).next()?;
    (!path.is_empty()).then_some(path)
}

fn ours(a: [u64; 6]) -> Option<Result<At<'static>>> {
    match place(HERE, path_of(a[1], a[2])?) {
        Ok(Place::Ours(at)) => Some(Ok(at)),
        Ok(_) => None,
        Err(errno) => Some(Err(errno)),
    }
}

/// The call on the kernel's socket in place of the named one.
fn on_stand_in(number: i64, fd: u64, inode: Inode) -> Result<()> {
    let mut path = [0; state::SETTING_BYTES_MAX + 32];
    let length = stand_in(inode, &mut path)?;
    let mut address = [0u8; ADDRESS_BYTES];
    let family = (libc::AF_UNIX as u16).to_ne_bytes();
    let parts = family.iter().chain(path.get(..length).unwrap_or(&[]));
    if 2 + length >= ADDRESS_BYTES {
        return Err(Errno::ENAMETOOLONG);
    }
    for (to, from) in address.iter_mut().zip(parts) {
        *to = *from;
    }
    let (at, length) = (address.as_ptr() as u64, (2 + length + 1) as u64);
    kernel(native::call(number, [fd, at, length, 0, 0, 0])).map(|_| ())
}

fn found(at: At<'_>, follow: Follow) -> Result<Attributes> {
    let mut buffer = PathBuffer::new();
    match client()?.stat(at, follow, &who(), &mut buffer)? {
        Outcome::Done(attributes) | Outcome::Special(attributes) => Ok(attributes),
        Outcome::Outside => Err(Errno::ENOENT),
    }
}

/// `bind`: descriptor, address, its length.
#[must_use]
pub fn bind(a: [u64; 6]) -> Answer {
    let at = ours(a)?;
    answer(at.and_then(|at| {
        let mut buffer = PathBuffer::new();
        let client = client()?;
        match client.make_node(at, mode::SOCKET | with_umask(0o777), 0, &who(), &mut buffer) {
            Ok(Outcome::Done(())) => {}
            Ok(_) | Err(Errno::EEXIST) => return Err(Errno(libc::EADDRINUSE as u16)),
            Err(errno) => return Err(errno),
        }
        let bound = found(at, Follow::No)
            .and_then(|attributes| on_stand_in(libc::SYS_bind, a[0], attributes.inode));
        if bound.is_err() {
            let _ = client.unlink(at, &who(), &mut buffer);
        }
        bound
    }))
}

/// `connect`: descriptor, address, its length.
#[must_use]
pub fn connect(a: [u64; 6]) -> Answer {
    let at = ours(a)?;
    answer(at.and_then(|at| {
        let attributes = found(at, Follow::Yes)?;
        if attributes.mode & mode::TYPE != mode::SOCKET {
            return Err(Errno::ECONNREFUSED);
        }
        client()?.permits(&attributes, &who(), want::WRITE)?;
        on_stand_in(libc::SYS_connect, a[0], attributes.inode).map_err(|errno| match errno {
            // The one that bound it did so on another host, or before the instance came back.
            Errno::ENOENT => Errno::ECONNREFUSED,
            errno => errno,
        })
    }))
}

/// `sendmsg`: descriptor, message, flags. A descriptor of ours means nothing to the receiver, which
/// would find an empty file: refused before anything is sent.
#[must_use]
pub fn send_message(a: [u64; 6]) -> Answer {
    // `struct msghdr`: name and its length, vectors and their number, control and its length.
    let [.., control, length]: [u64; 6] = user::get(a[1]).ok()?;
    let end = control.checked_add(length).filter(|_| control != 0)?;
    let mut at = control;
    while at.checked_add(HEAD_BYTES).is_some_and(|first| first <= end) {
        // `struct cmsghdr`: its length with this head, level and kind, then what it carries.
        let [bytes, kind]: [u64; 2] = user::get(at).ok()?;
        let (level, kind) = (kind as u32 as i32, (kind >> 32) as i32);
        let next = at.checked_add(bytes).filter(|&next| bytes >= HEAD_BYTES && next <= end)?;
        if (level, kind) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
            let mut fd_at = at + HEAD_BYTES;
            while fd_at + 4 <= next {
                let fd: i32 = user::get(fd_at).ok()?;
                if state::ours(fd as u64).is_some() {
                    return Some(failed(Errno::EOPNOTSUPP));
                }
                fd_at += 4;
            }
        }
        at = next.checked_next_multiple_of(8)?;
    }
    None
}

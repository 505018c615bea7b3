//! Names of sockets and pipes in the instance. Over a mount they are the kernel's, at their paths.
//! Without one, a kernel object stands behind each, in the run directory of the host, named by the
//! inode. Either way they connect processes of one host only.

use crate::calls::files::handover;
use crate::calls::names::paths::{AT_CWD, Place, place};
use crate::calls::process::credentials::{caller, with_umask};
use crate::calls::process::mount;
use crate::calls::process::state::{self, client, kernel};
use crate::calls::{Answer, answer, failed, native, user};
use client::{At, Follow, Outcome, PathBuffer};
use wire::attributes::{mode, want};
use wire::errno::{Errno, Result};
use wire::{Attributes, Inode};

/// Size of the path in `struct sockaddr_un`, after the family.
const PATH_BYTES: usize = 108;
const ADDRESS_BYTES: usize = 2 + PATH_BYTES;
/// Size of `struct cmsghdr`.
const HEAD_BYTES: u64 = 16;

/// Writes the path of the kernel object of an inode, with its NUL. Returns its length without.
pub fn kernel_path(inode: Inode, path: &mut [u8]) -> Result<usize> {
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

/// Opens the kernel's pipe behind a pipe of the instance.
pub fn open_pipe(attributes: &Attributes, flags: u32) -> Result<i64> {
    let access = match flags as i32 & libc::O_ACCMODE {
        libc::O_RDONLY => want::READ,
        libc::O_WRONLY => want::WRITE,
        _ => want::READ | want::WRITE,
    };
    client()?.permits(attributes, &caller(), access)?;
    let mut path = [0; state::SETTING_BYTES_MAX + 32];
    kernel_path(attributes.inode, &mut path)?;
    let address = path.as_ptr() as u64;
    let kind = u64::from(libc::S_IFIFO | 0o600);
    let made = native::call(libc::SYS_mknod, [address, kind, 0, 0, 0, 0]);
    if made != 0 && made != -i64::from(libc::EEXIST) {
        kernel(made)?;
    }
    let drop = (libc::O_CREAT | libc::O_EXCL | libc::O_TRUNC) as u32;
    Ok(native::call_waiting(libc::SYS_open, [address, u64::from(flags & !drop), 0, 0, 0, 0]))
}

/// The path in a socket address, if the socket has a name in the file system.
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
    match place(AT_CWD, path_of(a[1], a[2])?) {
        Ok(Place::Ours(at)) => Some(Ok(at)),
        Ok(_) => None,
        Err(errno) => Some(Err(errno)),
    }
}

/// Makes the call on the kernel's socket in place of the named one.
fn on_kernel_object(number: i64, fd: u64, inode: Inode) -> Result<()> {
    let mut path = [0; state::SETTING_BYTES_MAX + 32];
    let length = kernel_path(inode, &mut path)?;
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
    kernel(native::call_waiting(number, [fd, at, length, 0, 0, 0])).map(|_| ())
}

fn found(at: At<'_>, follow: Follow) -> Result<Attributes> {
    let mut buffer = PathBuffer::new();
    match client()?.stat(at, follow, &caller(), &mut buffer)? {
        Outcome::Done(attributes) | Outcome::Special(attributes) => Ok(attributes),
        Outcome::Outside => Err(Errno::ENOENT),
    }
}

/// `bind`: descriptor, address, its length.
#[must_use]
pub fn bind(a: [u64; 6]) -> Answer {
    if mount::is_there() {
        return None;
    }
    let at = ours(a)?;
    answer(at.and_then(|at| {
        let mut buffer = PathBuffer::new();
        let client = client()?;
        match client.make_node(at, mode::SOCKET | with_umask(0o777), 0, &caller(), &mut buffer) {
            Ok(Outcome::Done(())) => {}
            Ok(_) | Err(Errno::EEXIST) => return Err(Errno(libc::EADDRINUSE as u16)),
            Err(errno) => return Err(errno),
        }
        let bound = found(at, Follow::No)
            .and_then(|attributes| on_kernel_object(libc::SYS_bind, a[0], attributes.inode));
        if bound.is_err() {
            let _ = client.unlink(at, &caller(), &mut buffer);
        }
        bound
    }))
}

/// `connect`: descriptor, address, its length.
#[must_use]
pub fn connect(a: [u64; 6]) -> Answer {
    if mount::is_there() {
        return None;
    }
    let at = ours(a)?;
    answer(at.and_then(|at| {
        let attributes = found(at, Follow::Yes)?;
        if attributes.mode & mode::TYPE != mode::SOCKET {
            return Err(Errno::ECONNREFUSED);
        }
        client()?.permits(&attributes, &caller(), want::WRITE)?;
        on_kernel_object(libc::SYS_connect, a[0], attributes.inode).map_err(|errno| match errno {
            // The socket was bound on another host, or before the instance restarted.
            Errno::ENOENT => Errno::ECONNREFUSED,
            errno => errno,
        })
    }))
}

/// Longest control data that are copied: the kernel passes 253 descriptors at most in one message.
const CONTROL_BYTES_MAX: usize = 2048;
/// Sizes of `struct msghdr` and of `struct mmsghdr`, which has the number of bytes sent behind it.
const MESSAGE_BYTES: u64 = 56;
const MANY_BYTES: u64 = 64;

/// Calls `each` with the address of every descriptor that a message passes on.
fn for_each_passed(message: u64, each: &mut dyn FnMut(u64)) -> Option<()> {
    // `struct msghdr`: name and length, vectors and count, control data and length.
    let [.., control, length]: [u64; 6] = user::get(message).ok()?;
    let end = control.checked_add(length).filter(|_| control != 0)?;
    let mut at = control;
    while at.checked_add(HEAD_BYTES).is_some_and(|first| first <= end) {
        // `struct cmsghdr`: length including this header, level and type, then the payload.
        let [bytes, kind]: [u64; 2] = user::get(at).ok()?;
        let (level, kind) = (kind as u32 as i32, (kind >> 32) as i32);
        let next = at.checked_add(bytes).filter(|&next| bytes >= HEAD_BYTES && next <= end)?;
        if (level, kind) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
            let mut fd_at = at + HEAD_BYTES;
            while fd_at + 4 <= next {
                each(fd_at);
                fd_at += 4;
            }
        }
        at = next.checked_next_multiple_of(8)?;
    }
    Some(())
}

fn passes_ours(message: u64) -> bool {
    let mut any = false;
    let _ = for_each_passed(message, &mut |at| {
        any |= user::get::<i32>(at).is_ok_and(|fd| state::ours(fd as u64).is_some());
    });
    any
}

/// `sendmsg`: descriptor, message, flags. Files of the instance are passed on as descriptors of the
/// mount. Preload-only they would reach the receiver as placeholders, so the call is refused before
/// anything is sent.
#[must_use]
pub fn send_message(a: [u64; 6]) -> Answer {
    if !passes_ours(a[1]) {
        return None;
    }
    if !mount::is_there() {
        return Some(failed(Errno::EOPNOTSUPP));
    }
    Some(send_handed_over(a).unwrap_or_else(failed))
}

fn send_handed_over(a: [u64; 6]) -> Result<i64> {
    let mut message: [u64; 7] = user::get(a[1])?;
    let [.., control_at, length, _] = message;
    let given = user::bytes(control_at, usize::try_from(length).unwrap_or(usize::MAX))?;
    // Aligned as the kernel expects it.
    let mut control = [0u64; CONTROL_BYTES_MAX / 8];
    if given.len() > CONTROL_BYTES_MAX {
        return Err(Errno::EOPNOTSUPP);
    }
    for (to, from) in control.iter_mut().zip(given.chunks(8)) {
        let mut word = [0; 8];
        for (to, from) in word.iter_mut().zip(from) {
            *to = *from;
        }
        *to = u64::from_ne_bytes(word);
    }
    if let Some(to) = message.get_mut(4) {
        *to = control.as_mut_ptr() as u64;
    }
    let copy = message.as_ptr() as u64;
    let mut outcome = Ok(());
    let mut opened = [-1i32; CONTROL_BYTES_MAX / 4];
    let mut places = opened.iter_mut();
    let _ = for_each_passed(copy, &mut |at| {
        let Ok(fd) = user::get::<i32>(at) else { return };
        let Some(used) = state::ours(fd as u64) else { return };
        let Some(place) = places.next().filter(|_| outcome.is_ok()) else { return };
        match handover::open_passed(used.file()) {
            Ok(real) => {
                *place = real;
                outcome = user::put(at, real);
            }
            Err(errno) => outcome = Err(errno),
        }
    });
    let sent =
        outcome.map(|()| native::call_waiting(libc::SYS_sendmsg, [a[0], copy, a[2], 0, 0, 0]));
    for fd in opened.into_iter().take_while(|fd| *fd >= 0) {
        native::close(fd);
    }
    sent
}

/// `sendmmsg`: descriptor, messages, their number, flags.
#[must_use]
pub fn send_messages(a: [u64; 6]) -> Answer {
    let count = u64::from(a[2] as u32).min(1024);
    let message = |index: u64| a[1].wrapping_add(index * MANY_BYTES);
    if !(0..count).any(|index| passes_ours(message(index))) {
        return None;
    }
    for index in 0..count {
        let b = [a[0], message(index), a[3], 0, 0, 0];
        let sent = send_message(b).unwrap_or_else(|| native::call_waiting(libc::SYS_sendmsg, b));
        if sent < 0 {
            return Some(if index == 0 { sent } else { index as i64 });
        }
        if let Err(errno) = user::put(message(index) + MESSAGE_BYTES, sent as u32) {
            return Some(failed(errno));
        }
    }
    Some(count as i64)
}

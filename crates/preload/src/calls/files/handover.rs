//! Handing open files over to the kernel: a descriptor on the mount in place of a placeholder, for
//! programs whose calls this library does not see. Those into which it cannot be loaded get such
//! descriptors at exec, and so does a process that receives one over a socket.
//!
//! The new descriptor shares the open file, with offset and flags (`client::handover`), as far as
//! the kernel can: it keeps an offset of its own, too. Reads and writes of the receiver in
//! sequence move the shared offset, so the parent of a program goes on behind its child. The
//! receiver does not see what others do to the offset meanwhile. Appends are right in any case.

use crate::calls::files::uses;
use crate::calls::names::paths::{AT_CWD, Text};
use crate::calls::native;
use crate::calls::process::mount;
use crate::calls::process::state::{self, MAPPING_FIRST, SETTING_BYTES_MAX, kernel, table};
use crate::calls::process::static_client::CLIENT;
use crate::entry::process::is_vfork_child;
use client::{OfdIndex, PathBuffer, handover};
use wire::Inode;
use wire::attributes::mode;
use wire::errno::{Errno, Result};

/// Open flags that concern only the moment of opening.
const ONCE: u32 =
    (libc::O_CREAT | libc::O_EXCL | libc::O_TRUNC | libc::O_NOFOLLOW | libc::O_NOCTTY) as u32;
/// `O_TMPFILE` without `O_DIRECTORY`.
const TEMPORARY: u32 = 0o20_000_000;

/// Opens a file of the instance on the mount, as it is open, at the same offset. The descriptor is
/// close-on-exec.
///
/// # Errors
/// Those of the kernel; `ENOENT` for a file without a name if the mount belongs to another user.
pub fn open_shared(file: OfdIndex) -> Result<i32> {
    // Direct I/O, so that each read and write reaches the server, which moves the offset.
    let flags = CLIENT.flags(file)?;
    let fd = open(file, flags & !(ONCE | TEMPORARY) | libc::O_DIRECT as u32)?;
    let number = [file.0, 0];
    let args = [fd as u64, u64::from(handover::SHARE), number.as_ptr() as u64, 0, 0, 0];
    let shared = kernel(native::call(libc::SYS_ioctl, args));
    let offset = CLIENT.seek(file, 0, libc::SEEK_CUR as u32).unwrap_or(0);
    let seek = [fd as u64, offset, libc::SEEK_SET as u64, 0, 0, 0];
    let placed = shared.and_then(|_| kernel(native::call(libc::SYS_lseek, seek)));
    let kept = u64::from(flags & !(ONCE | TEMPORARY));
    let _ = native::call(libc::SYS_fcntl, [fd as u64, libc::F_SETFL as u64, kept, 0, 0, 0]);
    if let Err(errno) = placed {
        native::close(fd);
        return Err(errno);
    }
    Ok(fd)
}

/// Opens a file of the instance on the mount, as it is open, with an offset of its own.
///
/// # Errors
/// As `open_shared`.
pub fn open_again(file: OfdIndex) -> Result<i32> {
    open(file, CLIENT.flags(file)? & !(ONCE | TEMPORARY))
}

/// Opens a file of the instance on the mount with `flags`, whatever its name is by now.
///
/// # Errors
/// As `open_shared`.
pub fn open(file: OfdIndex, flags: u32) -> Result<i32> {
    let inode = CLIENT.inode_of(file)?;
    let is_directory = CLIENT.kind_of(file)? == mode::DIRECTORY;
    let flags = u64::from(flags | libc::O_CLOEXEC as u32);
    if !is_directory {
        let opened = open_path(&by_number(inode)?, flags);
        if opened != Err(Errno::ENOENT) {
            return opened;
        }
    }
    let mut buffer = PathBuffer::new();
    CLIENT.path_of_open(file, &mut buffer)?;
    let fd = open_path(&Text::new(buffer.outside()), flags)?;
    if mount::inode_of(fd as u64) == Some(inode) {
        return Ok(fd);
    }
    native::close(fd);
    Err(Errno::ENOENT)
}

fn open_path(path: &Text, flags: u64) -> Result<i32> {
    let args = [AT_CWD, path.address(), flags, 0, 0, 0];
    kernel(native::call(libc::SYS_openat, args)).map(|fd| fd as i32)
}

/// The path on the mount that leads to a file by its inode number.
fn by_number(inode: Inode) -> Result<Text> {
    let mut path = [0; SETTING_BYTES_MAX + 64];
    let mut prefix = [0; SETTING_BYTES_MAX];
    let length = state::instance_prefix(&mut prefix);
    let name = handover::name_of(inode);
    let parts = prefix.iter().take(length).chain(b"/").chain(&name);
    for (to, from) in path.iter_mut().zip(parts) {
        *to = *from;
    }
    path.get(..length + 1 + name.len()).map(Text::new).ok_or(Errno::ENAMETOOLONG)
}

/// Opens a file of the instance on the mount for a process that gets the descriptor.
///
/// # Errors
/// As `open_shared`.
pub fn open_passed(file: OfdIndex) -> Result<i32> {
    let flags = CLIENT.flags(file)?;
    let is_shared = flags & libc::O_PATH as u32 == 0 && CLIENT.kind_of(file)? != mode::DIRECTORY;
    if is_shared { open_shared(file) } else { open(file, flags & !(ONCE | TEMPORARY)) }
}

/// Puts descriptors of the kernel in place of the placeholders that the next program inherits.
///
/// # Errors
/// Those of `open_shared`, for the first that cannot be handed over; the others are.
pub fn hand_over_inherited() -> Result<()> {
    let Some(table) = table() else { return Ok(()) };
    let mut outcome = Ok(());
    CLIENT.for_each_fd(table, &mut |fd, file, close_on_exec| {
        if !close_on_exec && fd < MAPPING_FIRST {
            outcome = outcome.and(hand_over(fd, file));
        }
    });
    outcome
}

/// The same for a process that goes on, except files on which a process holds locks of its own:
/// these would end, and what keeps its locks past a change of its user is a server, which keeps the
/// file to itself. So does a file that cannot be handed over.
pub fn hand_over_unlocked() {
    let Some(table) = table() else { return };
    CLIENT.for_each_fd(table, &mut |fd, file, close_on_exec| {
        if !close_on_exec
            && fd < MAPPING_FIRST
            && CLIENT.may_be_locked_by_a_process(file) == Ok(false)
        {
            let _ = hand_over(fd, file);
        }
    });
}

/// Before this process leaves the instance: hands over all open files, for which there is a mount.
/// Those that cannot be handed over fail afterwards.
///
/// # Errors
/// `EPERM` if a process holds locks on one of them, which would end.
pub fn hand_over_all() -> Result<()> {
    let Some(table) = table() else { return Ok(()) };
    let mut is_locked = false;
    CLIENT.for_each_fd(table, &mut |fd, file, _| {
        is_locked |= fd < MAPPING_FIRST && CLIENT.may_be_locked_by_a_process(file) != Ok(false);
    });
    if is_locked {
        return Err(Errno::EPERM);
    }
    if mount::is_there() {
        CLIENT.for_each_fd(table, &mut |fd, file, close_on_exec| {
            if fd < MAPPING_FIRST && hand_over(fd, file).is_ok() && close_on_exec {
                let _ = native::call(
                    libc::SYS_fcntl,
                    [u64::from(fd), libc::F_SETFD as u64, libc::FD_CLOEXEC as u64, 0, 0, 0],
                );
            }
        });
    }
    Ok(())
}

/// Puts a descriptor of the kernel in place of a placeholder, under the same number.
fn hand_over(fd: u32, file: OfdIndex) -> Result<()> {
    let is_kernels_already = CLIENT.flags(file)? & libc::O_PATH as u32 != 0;
    if !is_kernels_already {
        let real = open_passed(file)?;
        let placed = native::call(libc::SYS_dup3, [real as u64, u64::from(fd), 0, 0, 0, 0]);
        native::close(real);
        kernel(placed)?;
    }
    if let Some(table) = table()
        && let Some(file) = CLIENT.fd_take(table, fd)
    {
        if !is_vfork_child() {
            state::mark(fd, false);
        }
        let _ = uses::close(file, table);
    }
    Ok(())
}

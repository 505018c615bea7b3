//! Listing directories, and the working directory.
//!
//! A working directory in the instance is known to us alone: the kernel's stays where it was, and
//! every relative path is ours to resolve. It is held open in a row of the descriptor table that
//! is no descriptor, so that fork and exec carry it on.

use crate::calls::credentials::who;
use crate::calls::paths::{Place, place, set_working_directory, working_directory};
use crate::calls::state::{self, CLIENT, WORKING_DIRECTORY, client, ours, table};
use crate::calls::{Answer, answer, failed, native, user, uses};
use client::{Listed, OfdIndex, Outcome, PathBuffer};
use wire::Inode;
use wire::attributes::mode;
use wire::errno::{Errno, Result};

/// `getdents64` and, with `old`, `getdents`: descriptor, buffer, length.
#[must_use]
pub fn list(a: [u64; 6], old: Form) -> Answer {
    let used = ours(a[0])?;
    let file = used.file();
    answer(list_open(file, a[1], a[2] as u32 as usize, old))
}

/// The form of the entries.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// `linux_dirent64`: the type before the name.
    New,
    /// `linux_dirent`: the type behind the name.
    Old,
}

fn list_open(file: OfdIndex, to: u64, length: usize, form: Form) -> Result<usize> {
    let buffer = user::bytes_mut(to, length)?;
    let mut used = 0;
    let mut too_small = false;
    client()?.read_directory(file, length as u32, &mut |listed| match put_entry(
        buffer.get_mut(used..).unwrap_or(&mut []),
        listed,
        form,
    ) {
        Some(length) => {
            used += length;
            true
        }
        None => {
            too_small = true;
            false
        }
    })?;
    if used == 0 && too_small { Err(Errno::EINVAL) } else { Ok(used) }
}

/// inode 8, next 8, length 2, then type 1 and name, or name and, in the last byte, the type.
fn put_entry(to: &mut [u8], listed: &Listed<'_>, form: Form) -> Option<usize> {
    let head = if form == Form::New { 19 } else { 18 };
    let tail = if form == Form::New { 1 } else { 2 };
    let length = (head + listed.name.len() + tail).next_multiple_of(8);
    let to = to.get_mut(..length)?;
    to.fill(0);
    to.get_mut(..8)?.copy_from_slice(&listed.inode.0.to_ne_bytes());
    to.get_mut(8..16)?.copy_from_slice(&listed.next.to_ne_bytes());
    to.get_mut(16..18)?.copy_from_slice(&(length as u16).to_ne_bytes());
    to.get_mut(head..head + listed.name.len())?.copy_from_slice(listed.name);
    let kind = ((listed.mode & mode::TYPE) >> 12) as u8;
    let kind_at = if form == Form::New { 18 } else { length - 1 };
    *to.get_mut(kind_at)? = kind;
    Some(length)
}

/// `chdir`.
#[must_use]
pub fn change_directory(a: [u64; 6]) -> Answer {
    let path = user::path(a[0]).ok()?;
    let at = match place(super::paths::HERE, path) {
        Ok(Place::Ours(at)) => at,
        Ok(_) => return leave(native::call(libc::SYS_chdir, a)),
        Err(errno) => return Some(failed(errno)),
    };
    let mut buffer = PathBuffer::new();
    match client().and_then(|client| client.find_directory(at, &who(), &mut buffer)) {
        Ok(Outcome::Done(attributes)) => answer(enter(attributes.inode)),
        Ok(Outcome::Outside) => {
            let text = super::paths::Text::new(buffer.outside());
            leave(native::call(libc::SYS_chdir, [text.address(), 0, 0, 0, 0, 0]))
        }
        Ok(Outcome::Special(_)) => Some(failed(Errno::ENOTDIR)),
        Err(errno) => Some(failed(errno)),
    }
}

/// `fchdir`.
#[must_use]
pub fn change_to_open(a: [u64; 6]) -> Answer {
    let Some(used) = ours(a[0]) else {
        return leave(native::call(libc::SYS_fchdir, a));
    };
    answer((|| {
        let attributes = client()?.fstat(used.file())?;
        if !attributes.is_directory() {
            return Err(Errno::ENOTDIR);
        }
        client()?.permits(&attributes, &who(), wire::attributes::want::EXECUTE)?;
        enter(attributes.inode)
    })())
}

fn enter(inode: Inode) -> Result<()> {
    let client = client()?;
    let table = table().ok_or(Errno::EIO)?;
    let flags = (libc::O_PATH | libc::O_DIRECTORY) as u32;
    let opened = match client.open_inode(inode, flags, &who())? {
        Outcome::Done(opened) => opened,
        _ => return Err(Errno::ENOTDIR),
    };
    let before = client.fd_set(table, WORKING_DIRECTORY, Some((opened.ofd, false)))?;
    if let Some((file, _)) = before {
        let _ = uses::close(file, table);
    }
    set_working_directory(Some(inode));
    Ok(())
}

/// The kernel moved the working directory: if that went well, ours is left.
fn leave(kernel: i64) -> Answer {
    if kernel >= 0 && working_directory().is_some() {
        drop_held();
        set_working_directory(None);
    }
    Some(kernel)
}

fn drop_held() {
    if let Some(table) = table()
        && let Some(file) = CLIENT.fd_take(table, WORKING_DIRECTORY)
    {
        let _ = uses::close(file, table);
    }
}

/// After exec: the working directory that the table holds, if any.
///
/// # Errors
/// `EIO` if the instance is gone.
pub fn resume() -> Result<()> {
    let client = client()?;
    if let Some(used) = state::used_by_row(WORKING_DIRECTORY) {
        set_working_directory(Some(client.inode_of(used.file())?));
    }
    Ok(())
}

/// `getcwd`: buffer, length. The answer counts the NUL.
#[must_use]
pub fn name_working_directory(a: [u64; 6]) -> Answer {
    let inode = working_directory()?;
    answer((|| {
        let mut buffer = PathBuffer::new();
        client()?.path_of(inode, &mut buffer)?;
        let name = buffer.outside();
        let length = usize::try_from(a[1]).unwrap_or(usize::MAX);
        if length <= name.len() {
            return Err(Errno::ERANGE);
        }
        let to = user::bytes_mut(a[0], name.len() + 1)?;
        for (to, from) in to.iter_mut().zip(name.iter().chain(b"\0")) {
            *to = *from;
        }
        Ok(name.len() + 1)
    })())
}

/// True if the descriptor table has any row: the next program must keep or close what it stands for.
#[must_use]
pub fn holds_anything() -> bool {
    let Some(table) = table() else { return false };
    let mut any = false;
    CLIENT.for_each_fd(table, &mut |_, _, _| any = true);
    any
}

/// True if something of this process would be lost on a program that we are not loaded into: an
/// open file that survives exec, or the working directory.
#[must_use]
pub fn hands_something_on() -> bool {
    let Some(table) = table() else { return false };
    let mut any = false;
    CLIENT.for_each_fd(table, &mut |fd, _, close_on_exec| {
        any |= !close_on_exec && (fd < state::MAPPING_FIRST || fd == WORKING_DIRECTORY);
    });
    any
}

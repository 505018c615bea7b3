//! Listing directories, and the working directory.
//!
//! With a mount, the working directory is the kernel's. Preload-only, only this library knows one in
//! the instance: the kernel's stays where it was, and every relative path is resolved here. It is
//! then held open by an entry of the descriptor table that is no descriptor, so fork and exec pass
//! it on.

use crate::calls::files::{reserved, uses};
use crate::calls::names::paths::{AT_CWD, Place, Text, place};
use crate::calls::process::credentials::caller;
use crate::calls::process::state::{self, WORKING_DIRECTORY, client, ours, table};
use crate::calls::process::static_client::CLIENT;
use crate::calls::process::{mount, working_directory};
use crate::calls::{Answer, answer, failed, native, user};
use crate::entry::process::is_vfork_child;
use client::{Listed, OfdIndex, Outcome, PathBuffer};
use wire::Inode;
use wire::attributes::mode;
use wire::errno::{Errno, Result};

/// `getdents64` and, in the old form, `getdents`: descriptor, buffer, length.
#[must_use]
pub fn list(a: [u64; 6], old: Form) -> Answer {
    let used = ours(a[0])?;
    let file = used.file();
    answer(list_open(file, a[1], a[2] as u32 as usize, old))
}

/// Layout of the entries.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// `linux_dirent64`: the type before the name.
    New,
    /// `linux_dirent`: the type after the name.
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
    if mount::is_there() {
        return note_change(native::call(libc::SYS_chdir, a));
    }
    let path = user::path(a[0]).ok()?;
    let at = match place(AT_CWD, path) {
        Ok(Place::Ours(at)) => at,
        Ok(_) => return leave(native::call(libc::SYS_chdir, a)),
        Err(errno) => return Some(failed(errno)),
    };
    let mut buffer = PathBuffer::new();
    match client().and_then(|client| client.find_directory(at, &caller(), &mut buffer)) {
        Ok(Outcome::Done(attributes)) => answer(enter(attributes.inode)),
        Ok(Outcome::Outside) => {
            let text = Text::new(buffer.outside());
            leave(native::call(libc::SYS_chdir, [text.address(), 0, 0, 0, 0, 0]))
        }
        Ok(Outcome::Special(_)) => Some(failed(Errno::ENOTDIR)),
        Err(errno) => Some(failed(errno)),
    }
}

/// `fchdir`.
#[must_use]
pub fn change_to_open(a: [u64; 6]) -> Answer {
    if mount::is_there() {
        return change_to_open_on_mount(a);
    }
    let Some(used) = ours(a[0]) else {
        return reserved::refuse(a[0]).or_else(|| leave(native::call(libc::SYS_fchdir, a)));
    };
    answer((|| {
        let attributes = client()?.fstat(used.file())?;
        if !attributes.is_directory() {
            return Err(Errno::ENOTDIR);
        }
        client()?.permits(&attributes, &caller(), wire::attributes::want::EXECUTE)?;
        enter(attributes.inode)
    })())
}

fn change_to_open_on_mount(a: [u64; 6]) -> Answer {
    let changed = native::call(libc::SYS_fchdir, a);
    if changed != failed(Errno::ENOTDIR) {
        return note_change(changed);
    }
    // A directory whose descriptor is a placeholder, because its path led elsewhere when it was
    // opened, is found by its name.
    let mut buffer = PathBuffer::new();
    let Some(used) = ours(a[0]) else { return reserved::refuse(a[0]).or(Some(changed)) };
    let named = client().and_then(|client| {
        let is_directory = client.kind_of(used.file())? == mode::DIRECTORY;
        if is_directory {
            client.path_of_open(used.file(), &mut buffer)
        } else {
            Err(Errno::ENOTDIR)
        }
    });
    match named {
        Ok(()) => {
            let text = Text::new(buffer.outside());
            note_change(native::call(libc::SYS_chdir, [text.address(), 0, 0, 0, 0, 0]))
        }
        Err(errno) => Some(failed(errno)),
    }
}

/// After the kernel changed its working directory, or did not.
fn note_change(kernel: i64) -> Answer {
    if kernel >= 0 {
        working_directory::ask();
    }
    Some(kernel)
}

/// `chroot`: the prefix names another place afterwards. Open files stay.
#[must_use]
pub fn change_root(a: [u64; 6]) -> Answer {
    let changed = native::call(libc::SYS_chroot, a);
    let is_same = user::path(a[0]).is_ok_and(|path| path == b"/");
    if changed == 0 && !is_same && !is_vfork_child() {
        state::forget_prefix();
        if mount::is_there() {
            working_directory::note_changed_root();
        }
    }
    Some(changed)
}

/// `unshare` and `setns`: threads may have their own working directories afterwards.
#[must_use]
pub fn unshare(number: i64, a: [u64; 6]) -> Answer {
    let done = native::call(number, a);
    if done == 0 {
        working_directory::note_private();
    }
    Some(done)
}

fn enter(inode: Inode) -> Result<()> {
    let client = client()?;
    let table = table().ok_or(Errno::EIO)?;
    let flags = (libc::O_PATH | libc::O_DIRECTORY) as u32;
    let Outcome::Done(opened) = client.open_inode(inode, flags, &caller())? else {
        return Err(Errno::ENOTDIR);
    };
    let before = client.fd_set(table, WORKING_DIRECTORY, Some((opened.ofd, false)))?;
    if let Some((file, _)) = before {
        let _ = uses::close(file, table);
    }
    working_directory::set(Some(inode));
    Ok(())
}

/// Leaves our working directory after the kernel changed its own.
fn leave(kernel: i64) -> Answer {
    if kernel >= 0 && working_directory::get().is_some() {
        drop_held();
        working_directory::set(None);
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

/// Restores the working directory from the table after exec.
///
/// # Errors
/// `EIO` if the instance is gone.
pub fn resume() -> Result<()> {
    let client = client()?;
    if let Some(used) = state::use_entry(WORKING_DIRECTORY) {
        working_directory::set(Some(client.inode_of(used.file())?));
    }
    Ok(())
}

/// `getcwd`: buffer, length. The result includes the NUL.
#[must_use]
pub fn name_working_directory(a: [u64; 6]) -> Answer {
    // The kernel may not know that a directory of the path has another name by now.
    let inode = working_directory::get()?;
    let named = answer((|| {
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
    })());
    named.filter(|&length| length >= 0 || !mount::is_there())
}

/// True if the descriptor table has any entry, which the next program must keep or close.
#[must_use]
pub fn has_entries() -> bool {
    let Some(table) = table() else { return false };
    let mut any = false;
    CLIENT.for_each_fd(table, &mut |_, _, _| any = true);
    any
}

/// True if the next program would lose something if this library is not loaded into it: an open
/// file that survives exec, or the working directory.
#[must_use]
pub fn passes_files_on() -> bool {
    let Some(table) = table() else { return false };
    let mut any = false;
    CLIENT.for_each_fd(table, &mut |fd, file, close_on_exec| {
        // The kernel has a directory of a mount itself.
        let is_kernels = mount::is_there() && CLIENT.kind_of(file) == Ok(mode::DIRECTORY);
        let is_passed_on = fd < state::MAPPING_FIRST || fd == WORKING_DIRECTORY;
        any |= !close_on_exec && is_passed_on && !is_kernels;
    });
    any
}

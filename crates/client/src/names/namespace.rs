//! Creating directories, nodes, links and symbolic links, removing them, and reading links.
//!
//! The shard of an entry may not own the inode of its directory, so the permissions of the
//! directory are checked here, where its attributes are known.

use wire::attributes::mode;
use wire::errno::{Errno, Result};
use wire::limits::SYMLINK_BYTES_MAX;
use wire::request::{create, made};
use wire::{Attributes, Credentials, Inode, Reply, Request};

use crate::OfdIndex;
use crate::file::layout::inherit_group;
use crate::file::open_file::mark;
use crate::file::{layout, open_file};
use crate::lookup::path::{At, Follow, Outcome, PathBuffer};
use crate::lookup::result::{Last, LookupMode, LookupResult, Walk, WalkTarget};
use crate::lookup::{PathLookup, find, permission, walk};
use crate::open::{Files, local_ops};
use crate::transport::Transport;
use crate::transport::errno::by_path;
use crate::transport::request::Destination;

/// Attributes of a new name.
struct New<'a> {
    /// As in `made`.
    mode: u32,
    device: u64,
    target: &'a [u8],
}

/// Checks whether `caller` may create the last name of a walk for a file of this mode, as far
/// as it is known here. `EEXIST` takes precedence over any other error, so before another error
/// is returned the name is looked up.
fn may_make(transport: &Transport, walk: &Walk<'_>, mode: u32, caller: &Credentials) -> Result<()> {
    let exists = match walk.found {
        WalkTarget::Found(_) => true,
        WalkTarget::Absent | WalkTarget::Unknown => walk.last != Last::Name,
    };
    if exists {
        return Err(Errno::EEXIST);
    }
    let may = match walk.slash && mode & mode::TYPE != mode::DIRECTORY {
        true => Err(Errno::ENOENT),
        false => permission::may_change(transport, walk.parent, caller),
    };
    if may.is_err() && walk.found == WalkTarget::Unknown {
        let mut found = Attributes::default();
        if walk::lookup(transport, walk.parent, walk.name, caller, &mut found)?
            == LookupResult::Found
        {
            return Err(Errno::EEXIST);
        }
    }
    may
}

/// Creates a name that must not exist.
fn make(
    paths: &PathLookup,
    at: At<'_>,
    new: &New<'_>,
    caller: &Credentials,
    buffer: &mut PathBuffer,
) -> Result<Outcome<()>> {
    let walked = walk::walk(paths, at, Follow::Never, LookupMode::IndexOnly, caller, buffer)?;
    walked.and(|walk| {
        may_make(&paths.transport, &walk, new.mode, caller)?;
        let (creator, mode) = inherit_group(walk.parent, caller, new.mode);
        let request = Request::Create {
            parent: walk.parent.inode,
            name: walk.name,
            mode,
            device: new.device,
            flags: create::EXCLUSIVE,
            layout: layout::layout_of_child(&paths.transport, walk.parent, mode)?,
            target: new.target,
        };
        let shard = walk.entry.shard;
        by_path(paths.transport.call_done(Destination::Shard(shard), &request, &creator))
    })
}

/// `mkdirat(2)`; `mode` as in `made`.
pub(crate) fn make_directory(
    paths: &PathLookup,
    at: At<'_>,
    mode: u32,
    caller: &Credentials,
    buffer: &mut PathBuffer,
) -> Result<Outcome<()>> {
    // Of the bits above the permissions, Linux honours only the sticky bit.
    let mode = mode::DIRECTORY | mode & (0o777 | mode::STICKY | made::UMASK);
    make(paths, at, &New { mode, device: 0, target: &[] }, caller, buffer)
}

/// `mknodat(2)`: any kind but a directory. No type bits: a regular file. `mode` as in `made`.
pub(crate) fn make_node(
    paths: &PathLookup,
    at: At<'_>,
    mode: u32,
    device: u64,
    caller: &Credentials,
    buffer: &mut PathBuffer,
) -> Result<Outcome<()>> {
    let kind = match mode & mode::TYPE {
        0 => mode::REGULAR,
        mode::DIRECTORY => return Err(Errno::EPERM),
        mode::CHARACTER | mode::BLOCK if !caller.is_privileged() => return Err(Errno::EPERM),
        kind @ (mode::REGULAR | mode::FIFO | mode::SOCKET | mode::CHARACTER | mode::BLOCK) => kind,
        _ => return Err(Errno::EINVAL),
    };
    let is_device = kind == mode::CHARACTER || kind == mode::BLOCK;
    let device = if is_device { device } else { 0 };
    let mode = kind | mode & (mode::PERMISSIONS | made::UMASK);
    make(paths, at, &New { mode, device, target: &[] }, caller, buffer)
}

/// `symlinkat(2)`.
pub(crate) fn symlink(
    paths: &PathLookup,
    target: &[u8],
    at: At<'_>,
    caller: &Credentials,
    buffer: &mut PathBuffer,
) -> Result<Outcome<()>> {
    if target.is_empty() {
        return Err(Errno::ENOENT);
    }
    if target.len() > SYMLINK_BYTES_MAX {
        return Err(Errno::ENAMETOOLONG);
    }
    let new = New { mode: mode::SYMLINK | 0o777, device: 0, target };
    make(paths, at, &new, caller, buffer)
}

/// `unlinkat(2)` of what is no directory.
pub(crate) fn unlink(
    files: &Files,
    at: At<'_>,
    caller: &Credentials,
    buffer: &mut PathBuffer,
) -> Result<Outcome<()>> {
    let walked =
        walk::walk(files.paths(), at, Follow::Never, LookupMode::IndexOnly, caller, buffer)?;
    walked.and(|walk| {
        if walk.last != Last::Name {
            return Err(Errno::EISDIR);
        }
        let found = lookup_for_removal(files.transport(), &walk, caller)?;
        match found {
            Some(file) if file.is_directory() => return Err(Errno::EISDIR),
            Some(_) if walk.slash => return Err(Errno::ENOTDIR),
            _ => {}
        }
        permission::may_remove(files.transport(), walk.parent, found.as_ref(), caller)?;
        if found.is_some_and(|file| local_ops::log_unlink(files, &walk, &file)) {
            return Ok(());
        }
        let shard = walk.entry.shard;
        let request = Request::Unlink { parent: walk.parent.inode, name: walk.name };
        by_path(files.transport().call_done(Destination::Shard(shard), &request, caller))
    })
}

/// `rmdir(2)`.
pub(crate) fn remove_directory(
    paths: &PathLookup,
    at: At<'_>,
    caller: &Credentials,
    buffer: &mut PathBuffer,
) -> Result<Outcome<()>> {
    let walked = walk::walk(paths, at, Follow::Never, LookupMode::IndexOnly, caller, buffer)?;
    walked.and(|walk| {
        match walk.last {
            Last::Name => {}
            Last::Dot if walk.parent.inode == Inode::ROOT => return Err(Errno::EBUSY),
            Last::Dot => return Err(Errno::EINVAL),
            Last::DotDot => return Err(Errno::ENOTEMPTY),
        }
        let found = lookup_for_removal(&paths.transport, &walk, caller)?;
        if found.is_some_and(|file| !file.is_directory()) {
            return Err(Errno::ENOTDIR);
        }
        permission::may_remove(&paths.transport, walk.parent, found.as_ref(), caller)?;
        let shard = walk.entry.shard;
        let request = Request::RemoveDirectory { parent: walk.parent.inode, name: walk.name };
        by_path(paths.transport.call_done(Destination::Shard(shard), &request, caller))
    })
}

/// The file that is about to be removed; `None` if the shard may find out.
pub(crate) fn lookup_for_removal(
    transport: &Transport,
    walk: &Walk<'_>,
    caller: &Credentials,
) -> Result<Option<Attributes>> {
    match walk.found {
        WalkTarget::Found(attributes) => Ok(Some(*attributes)),
        WalkTarget::Absent => Err(Errno::ENOENT),
        WalkTarget::Unknown if walk.slash || walk.parent.mode & mode::STICKY != 0 => {
            let mut found = Attributes::default();
            match walk::lookup(transport, walk.parent, walk.name, caller, &mut found)? {
                LookupResult::Found => Ok(Some(found)),
                LookupResult::Absent | LookupResult::Unknown => Err(Errno::ENOENT),
            }
        }
        WalkTarget::Unknown => Ok(None),
    }
}

/// `linkat(2)`.
pub(crate) fn link(
    paths: &PathLookup,
    from: At<'_>,
    follow: Follow,
    to: At<'_>,
    caller: &Credentials,
    (from_buffer, to_buffer): (&mut PathBuffer, &mut PathBuffer),
) -> Result<Outcome<()>> {
    to_buffer.cursor.clear();
    match find::look_up(paths, from, follow, caller, from_buffer)? {
        Outcome::Done(attributes) => link_inode(paths, attributes, to, caller, to_buffer),
        Outcome::Outside => Ok(Outcome::Outside),
        Outcome::Special(special) => Ok(Outcome::Special(special)),
    }
}

/// `linkat(2)` of an open file: names a file opened by `O_TMPFILE`.
pub(crate) fn link_open(
    paths: &PathLookup,
    ofd: OfdIndex,
    to: At<'_>,
    caller: &Credentials,
    buffer: &mut PathBuffer,
) -> Result<Outcome<()>> {
    if open_file::by_index(&paths.transport, ofd)?.has(mark::NO_NAME_EVER) {
        return Err(Errno::ENOENT);
    }
    let attributes = open_file::attributes_open(&paths.transport, ofd)?;
    link_inode(paths, &attributes, to, caller, buffer)
}

fn link_inode(
    paths: &PathLookup,
    file: &Attributes,
    to: At<'_>,
    caller: &Credentials,
    buffer: &mut PathBuffer,
) -> Result<Outcome<()>> {
    // Errors of the new name take precedence over a source that cannot be linked.
    let lookup = if file.is_directory() { LookupMode::Resolve } else { LookupMode::IndexOnly };
    let walked = walk::walk(paths, to, Follow::Never, lookup, caller, buffer)?;
    walked.and(|walk| {
        may_make(&paths.transport, &walk, mode::REGULAR, caller)?;
        if file.is_directory() {
            return Err(Errno::EPERM);
        }
        let shard = walk.entry.shard;
        let request =
            Request::Link { inode: file.inode, parent: walk.parent.inode, name: walk.name };
        by_path(paths.transport.call_done(Destination::Shard(shard), &request, caller))
    })
}

/// `readlinkat(2)`: copies the bytes of the target that fit, and returns their number.
pub(crate) fn read_link(
    paths: &PathLookup,
    at: At<'_>,
    target: &mut [u8],
    caller: &Credentials,
    buffer: &mut PathBuffer,
) -> Result<Outcome<usize>> {
    if target.is_empty() {
        return Err(Errno::EINVAL);
    }
    find::with_found(paths, at, Follow::No, caller, buffer, |attributes| {
        read_link_of(&paths.transport, attributes, target, caller)
    })
}

/// `readlinkat(2)` with an empty path: of an open symbolic link (`O_PATH | O_NOFOLLOW`).
pub(crate) fn fread_link(
    transport: &Transport,
    ofd: OfdIndex,
    target: &mut [u8],
    caller: &Credentials,
) -> Result<usize> {
    let attributes = open_file::attributes_open(transport, ofd)?;
    // Linux returns ENOENT here, as for an empty path.
    if !attributes.is_symlink() {
        return Err(Errno::ENOENT);
    }
    by_path(read_link_of(transport, &attributes, target, caller))
}

pub(crate) fn read_link_of(
    transport: &Transport,
    link: &Attributes,
    target: &mut [u8],
    caller: &Credentials,
) -> Result<usize> {
    if !link.is_symlink() {
        return Err(Errno::EINVAL);
    }
    let request = Request::ReadLink { inode: link.inode };
    transport.call(Destination::Shard(link.inode.shard()), &request, caller)?.with(|reply| {
        let Reply::Bytes { bytes } = reply else { return Err(Errno::EIO) };
        let length = bytes.len().min(target.len());
        for (to, from) in target.iter_mut().zip(bytes) {
            *to = *from;
        }
        Ok(length)
    })
}

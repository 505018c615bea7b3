//! Rename, and the path of a directory: operations that walk the tree upwards.

use wire::attributes::{mode, want};
use wire::errno::{Errno, Result};
use wire::limits::PATH_BYTES_MAX;
use wire::request::rename;
use wire::{Attributes, Credentials, Inode, Request};

use crate::OfdIndex;
use crate::file::open_file;
use crate::lookup::path::{At, Follow, Outcome, PathBuffer};
use crate::lookup::result::{Last, LookupMode, LookupResult, Walk, WalkTarget};
use crate::lookup::{PathLookup, inodes, permission, walk};
use crate::names::readdir::{ENTRIES_BYTES, Listed};
use crate::names::{namespace, readdir};
use crate::transport::Transport;
use crate::transport::errno::{by_path, existing};
use crate::transport::request::Destination;

/// Deepest directory whose ancestors are followed: a path of 4 KiB has no more components.
const DEPTH_MAX: u32 = 2048;

/// `renameat2(2)`. After `Outcome::Outside` the buffers tell which path left the instance.
pub(crate) fn rename(
    paths: &PathLookup,
    from: At<'_>,
    to: At<'_>,
    flags: u32,
    caller: &Credentials,
    (from_buffer, to_buffer): (&mut PathBuffer, &mut PathBuffer),
) -> Result<Outcome<()>> {
    let known = rename::NO_REPLACE | rename::EXCHANGE;
    if flags & !known != 0 || flags & known == known {
        return Err(Errno::EINVAL);
    }
    from_buffer.cursor.clear();
    to_buffer.cursor.clear();
    let old = walk::walk(paths, from, Follow::Never, LookupMode::Resolve, caller, from_buffer)?;
    let lookup =
        if flags & rename::EXCHANGE == 0 { LookupMode::IndexOnly } else { LookupMode::Resolve };
    let new = walk::walk(paths, to, Follow::Never, lookup, caller, to_buffer)?;
    match (old, new) {
        (Outcome::Done(old), Outcome::Done(new)) => {
            rename_walked(&paths.transport, &old, &new, flags, caller).map(Outcome::Done)
        }
        _ => Ok(Outcome::Outside),
    }
}

fn rename_walked(
    transport: &Transport,
    old: &Walk<'_>,
    new: &Walk<'_>,
    flags: u32,
    caller: &Credentials,
) -> Result<()> {
    if old.last != Last::Name || new.last != Last::Name {
        return Err(Errno::EBUSY);
    }
    let WalkTarget::Found(moved) = old.found else { return Err(Errno::ENOENT) };
    let is_exchange = flags & rename::EXCHANGE != 0;
    let replaced = match new.found {
        WalkTarget::Found(file) => Some(*file),
        WalkTarget::Absent if is_exchange => return Err(Errno::ENOENT),
        _ if new.parent.mode & mode::STICKY != 0 => {
            namespace::lookup_for_removal(transport, new, caller).or_else(absent_is_none)?
        }
        _ => None,
    };
    if flags & rename::NO_REPLACE != 0 && replaced.is_some() {
        return Err(Errno::EEXIST);
    }
    let other_is_directory = is_exchange && replaced.is_some_and(|file| file.is_directory());
    if !moved.is_directory() && (old.slash || (new.slash && !other_is_directory)) {
        return Err(Errno::ENOTDIR);
    }
    permission::may_remove(transport, old.parent, Some(moved), caller)?;
    match &replaced {
        Some(file) => permission::may_remove(transport, new.parent, Some(file), caller)?,
        None => permission::may_change(transport, new.parent, caller)?,
    }
    let is_same_place = old.parent.inode == new.parent.inode;
    if moved.is_directory() && !is_same_place {
        // Its `..` changes, which is a write to the directory itself.
        permission::permits(transport, moved, caller, want::WRITE)?;
        check_not_descendant(transport, moved, new.parent)?;
    }
    if let Some(file) = replaced.filter(|file| is_exchange && file.is_directory()) {
        check_not_descendant(transport, &file, old.parent)?;
    }
    let request = Request::Rename {
        parent: old.parent.inode,
        name: old.name,
        new_parent: new.parent.inode,
        new_name: new.name,
        flags,
    };
    let shard = old.entry.shard;
    let done = by_path(transport.call_done(Destination::Shard(shard), &request, caller));
    if done == Err(Errno::EISDIR) && !moved.is_directory() {
        // An ancestor of the file is not empty, and that error takes precedence.
        let mut target = Attributes::default();
        if walk::lookup(transport, new.parent, new.name, caller, &mut target)?
            == LookupResult::Found
        {
            check_not_descendant(transport, &target, old.parent).map_err(|_| Errno::ENOTEMPTY)?;
        }
    }
    done
}

/// A directory cannot become its own descendant.
fn check_not_descendant(
    transport: &Transport,
    directory: &Attributes,
    place: &Attributes,
) -> Result<()> {
    let mut current = *place;
    for _ in 0..DEPTH_MAX {
        if current.inode == directory.inode {
            return Err(Errno::EINVAL);
        }
        if current.inode == Inode::ROOT {
            return Ok(());
        }
        current = by_path(inodes::attributes_of(transport, current.parent))?;
    }
    Err(Errno::ELOOP)
}

/// The path of a directory, found from its parents' listings. Slow: `getcwd` normally uses the
/// path by which it was entered and calls this only without one. `PathBuffer::outside` holds
/// the result.
pub(crate) fn path_of(
    transport: &Transport,
    directory: Inode,
    buffer: &mut PathBuffer,
) -> Result<()> {
    buffer.cursor.clear();
    let mut current = by_path(inodes::attributes_of(transport, directory))?;
    for _ in 0..DEPTH_MAX {
        if current.inode == Inode::ROOT {
            return buffer.cursor.prepend(transport.prefix());
        }
        let parent = by_path(inodes::attributes_of(transport, current.parent))?;
        name_in(transport, &parent, current.inode, buffer)?;
        current = parent;
    }
    Err(Errno::ENAMETOOLONG)
}

/// The path by which an open file was found, if the directory still has it under that name.
pub(crate) fn path_of_open(
    transport: &Transport,
    ofd: OfdIndex,
    buffer: &mut PathBuffer,
) -> Result<()> {
    let open = open_file::by_index(transport, ofd)?;
    if open.mode() & mode::TYPE == mode::DIRECTORY {
        return path_of(transport, open.inode, buffer);
    }
    let parent =
        existing(open.parent()).and_then(|parent| inodes::attributes_of(transport, parent));
    let parent = parent.map_err(|_| Errno::ENOENT)?;
    path_of(transport, parent.inode, buffer)?;
    let mut directory = [0; PATH_BYTES_MAX];
    let length = buffer.outside().len();
    let to = directory.get_mut(..length).ok_or(Errno::ENAMETOOLONG)?;
    to.copy_from_slice(buffer.outside());
    buffer.cursor.clear();
    name_in(transport, &parent, open.inode, buffer)?;
    buffer.cursor.prepend(directory.get(..length).unwrap_or(&[]))
}

/// Prepends the name of `inode` in `parent` to the buffer.
fn name_in(
    transport: &Transport,
    parent: &Attributes,
    inode: Inode,
    buffer: &mut PathBuffer,
) -> Result<()> {
    let mut found = Err(Errno::ENOENT);
    readdir::each_listing_part(transport, parent, 0, |part| {
        let mut last = part.after;
        let mut show = |entry: Listed<'_>| {
            if entry.inode == inode {
                found = buffer.cursor.prepend_component(entry.name);
                return false;
            }
            last = entry.next;
            true
        };
        let (directory, bytes) = (parent.inode, ENTRIES_BYTES);
        let step = readdir::read_listing_part(transport, directory, part, bytes, &mut show)?;
        Ok((step, last))
    })?;
    found
}

fn absent_is_none(errno: Errno) -> Result<Option<Attributes>> {
    if errno == Errno::ENOENT { Ok(None) } else { Err(errno) }
}

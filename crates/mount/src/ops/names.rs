//! Names: looking up, creating, renaming and removing them.

use client::{At, Follow, PathBuffer};
use fuse::reply::{Entry, Validity};
use wire::Inode;
use wire::codec::Writer;
use wire::errno::{Errno, Result};
use wire::limits::SYMLINK_BYTES_MAX;
use wire::request::rename;

use crate::ops::request::{Request, Scratch, within};
use crate::ops::{entries, handover, lookup, records};
use crate::server::node_ids::INSTANCE_NAME;
use crate::users::callers;

pub(crate) fn answer_lookup(
    request: &Request<'_>,
    name: &[u8],
    scratch: &mut Scratch,
    to: &mut Writer<'_>,
) -> Result<()> {
    let entry = match name {
        _ if request.server.is_kernel_root(request.header.node) => {
            look_up_instance_root(request, name, &mut scratch.path)?
        }
        b"." | b".." => look_up_by_node(request, name, &mut scratch.path)?,
        _ if request.node() == Inode::ROOT && client::handover::inode_of(name).is_some() => {
            let inode = client::handover::inode_of(name).ok_or(Errno::ENOENT)?;
            handover::look_up_open(request, inode, scratch)?
        }
        _ => lookup::look_up(request, name, &mut scratch.path)?,
    };
    entry.write(to);
    Ok(())
}

/// Looks up the instance's root in the kernel's root.
fn look_up_instance_root(
    request: &Request<'_>,
    name: &[u8],
    path: &mut PathBuffer,
) -> Result<Entry> {
    if name == INSTANCE_NAME.as_bytes() {
        look_up_by_node(request, b".", path)
    } else {
        Err(Errno::ENOENT)
    }
}

/// Looks up a node that the kernel has forgotten and for which a program has a file handle
/// (`open_by_handle_at`, NFS), or its parent. A file without a name is accessible only through
/// open files.
fn look_up_by_node(request: &Request<'_>, name: &[u8], path: &mut PathBuffer) -> Result<Entry> {
    let at = if name == b"." { At::itself(request.node()) } else { request.child(name) };
    let found = request.server.client.stat(at, Follow::Never, &request.caller(), path)?;
    let found = within(found)?;
    if found.links == 0 {
        return Err(Errno::ESTALE);
    }
    Ok(entries::entry(request, &found, Validity::default()))
}

/// Replies with a name that was just created.
fn reply_made(
    request: &Request<'_>,
    name: &[u8],
    scratch: &mut Scratch,
    to: &mut Writer<'_>,
) -> Result<()> {
    let entry = lookup::look_up(request, name, &mut scratch.path)?;
    if entry.node == 0 {
        // Another program removed it at once.
        return Err(Errno::EIO);
    }
    entry.write(to);
    Ok(())
}

pub(crate) fn answer_read_link(
    request: &Request<'_>,
    scratch: &mut Scratch,
    to: &mut Writer<'_>,
) -> Result<()> {
    let mut target = [0; SYMLINK_BYTES_MAX];
    let (client, at) = (request.server.client, At::itself(request.node()));
    let length = client.read_link(at, &mut target, &request.caller(), &mut scratch.path)?;
    to.raw(target.get(..within(length)?).unwrap_or_default());
    records::note_read(request, 0);
    Ok(())
}

pub(crate) fn symlink(
    request: &Request<'_>,
    name: &[u8],
    target: &[u8],
    scratch: &mut Scratch,
    to: &mut Writer<'_>,
) -> Result<()> {
    let (client, caller) = (request.server.client, request.caller());
    within(client.symlink(target, request.child(name), &caller, &mut scratch.path)?)?;
    reply_made(request, name, scratch, to)
}

pub(crate) fn make_node(
    request: &Request<'_>,
    name: &[u8],
    mode: u32,
    device: u32,
    scratch: &mut Scratch,
    to: &mut Writer<'_>,
) -> Result<()> {
    let (client, caller) = (request.server.client, request.caller());
    let major = device >> 8 & 0xfff;
    let minor = device & 0xff | device >> 12 & 0xf_ff00;
    let device = libc::makedev(major, minor);
    within(client.make_node(request.child(name), mode, device, &caller, &mut scratch.path)?)?;
    reply_made(request, name, scratch, to)
}

pub(crate) fn make_directory(
    request: &Request<'_>,
    name: &[u8],
    mode: u32,
    scratch: &mut Scratch,
    to: &mut Writer<'_>,
) -> Result<()> {
    let (client, caller) = (request.server.client, request.caller());
    within(client.make_directory(request.child(name), mode, &caller, &mut scratch.path)?)?;
    reply_made(request, name, scratch, to)
}

pub(crate) fn unlink(request: &Request<'_>, name: &[u8], scratch: &mut Scratch) -> Result<()> {
    let client = request.server.client;
    callers::as_owner(request, callers::OWNS_ALL, |caller| {
        within(client.unlink(request.child(name), caller, &mut scratch.path)?)
    })
}

pub(crate) fn remove_directory(
    request: &Request<'_>,
    name: &[u8],
    scratch: &mut Scratch,
) -> Result<()> {
    let (client, path) = (request.server.client, &mut scratch.path);
    callers::as_owner(request, callers::OWNS_ALL, |caller| {
        within(client.remove_directory(request.child(name), caller, path)?)
    })
}

pub(crate) fn rename(
    request: &Request<'_>,
    name: &[u8],
    to: At<'_>,
    flags: u32,
    scratch: &mut Scratch,
) -> Result<()> {
    let Scratch { path, other } = scratch;
    let client = request.server.client;
    // The kernel moves its cached entry to the new name.
    lookup::watch_moved(request, &to);
    if flags & rename::EXCHANGE != 0 {
        lookup::watch_moved(request, &request.child(name));
    }
    callers::as_owner(request, callers::OWNS_ALL, |caller| {
        within(client.rename(request.child(name), to, flags, caller, (&mut *path, other))?)
    })?;
    let exchanged = request.child(name);
    let both = [Some(to), (flags & rename::EXCHANGE != 0).then_some(exchanged)];
    records::note_renamed(request, both, path);
    Ok(())
}

pub(crate) fn link(
    request: &Request<'_>,
    file: Inode,
    name: &[u8],
    scratch: &mut Scratch,
    to: &mut Writer<'_>,
) -> Result<()> {
    let Scratch { path, other } = scratch;
    let (client, caller) = (request.server.client, request.caller());
    let from = At::itself(file);
    within(client.link(from, Follow::Never, request.child(name), &caller, (path, other))?)?;
    reply_made(request, name, scratch, to)
}

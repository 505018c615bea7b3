//! Operations: dispatches each request to the function that executes it.
//!
//! `request` is what all functions get. `entries`, `page_cache`, `records` and `lookup` are common to
//! several operations, whose functions are in the other modules, by subject.

pub(crate) mod request;

pub(crate) mod entries;

pub(crate) mod page_cache;

pub(crate) mod records;

pub(crate) mod lookup;

pub(crate) mod handover;

pub(crate) mod names;

pub(crate) mod files;

pub(crate) mod attributes;

pub(crate) mod directories;

pub(crate) mod xattrs;

pub(crate) mod inode_flags;

pub(crate) mod locks;

pub(crate) mod sync;

use client::At;
use fuse::Operation;
use wire::codec::Writer;
use wire::errno::{Errno, Result};
use wire::request::{made, xattr};

use crate::ops::request::{Request, Scratch};
use crate::server::node_ids::inode_of;

/// Executes the operation and writes the body of the reply.
///
/// # Errors
/// The errno of the system call.
pub(crate) fn execute(
    request: &Request<'_>,
    operation: &Operation<'_>,
    scratch: &mut Scratch,
    to: &mut Writer<'_>,
) -> Result<()> {
    match *operation {
        Operation::Lookup { name } => names::answer_lookup(request, name, scratch, to),
        Operation::GetAttributes { handle } => {
            attributes::get_attributes(request, handle, scratch, to)
        }
        Operation::SetAttributes(ref change) => {
            attributes::set_attributes(request, change, scratch, to)
        }
        Operation::ReadLink => names::answer_read_link(request, scratch, to),
        Operation::Symlink { name, target } => names::symlink(request, name, target, scratch, to),
        Operation::MakeNode { name, mode, device, umask } => {
            names::make_node(request, name, made::with(mode, umask), device, scratch, to)
        }
        Operation::MakeDirectory { name, mode, umask } => {
            names::make_directory(request, name, made::with(mode, umask), scratch, to)
        }
        Operation::Unlink { name } => names::unlink(request, name, scratch),
        Operation::RemoveDirectory { name } => names::remove_directory(request, name, scratch),
        Operation::Rename { name, to_directory, to_name, flags } => names::rename(
            request,
            name,
            At::relative(inode_of(to_directory), to_name),
            flags,
            scratch,
        ),
        Operation::Link { node, name } => names::link(request, inode_of(node), name, scratch, to),
        Operation::StatFs => attributes::space(request, scratch, to),
        Operation::SetXattr { name, value, flags, kills_sgid } => {
            let kills = if kills_sgid { xattr::KILL_SGID } else { 0 };
            xattrs::set_value(request, name, value, flags | kills, scratch)
        }
        Operation::GetXattr { name, size } => xattrs::get_value(request, name, size, scratch, to),
        Operation::ListXattr { size } => xattrs::list_names(request, size, scratch, to),
        Operation::RemoveXattr { name } => xattrs::remove_value(request, name, scratch),
        _ => execute_on_file(request, operation, scratch, to),
    }
}

/// The same for opening, and for operations on open files.
fn execute_on_file(
    request: &Request<'_>,
    operation: &Operation<'_>,
    scratch: &mut Scratch,
    to: &mut Writer<'_>,
) -> Result<()> {
    match *operation {
        Operation::Open { flags, kills_ids } => files::open(request, flags, kills_ids, to),
        Operation::Create { name, flags, mode, umask, kills_ids } => {
            files::create(request, name, flags, made::with(mode, umask), kills_ids, scratch, to)
        }
        Operation::TemporaryFile { flags, mode, umask } => {
            files::temporary_file(request, flags, made::with(mode, umask), scratch, to)
        }
        Operation::Read { handle, offset, size, flags } => {
            files::read(request, handle, (offset, size), flags, to)
        }
        Operation::Write { handle, offset, flags, data } => {
            files::write(request, handle, offset, flags, data, to)
        }
        Operation::Release { handle, .. } => release_file(request, handle),
        Operation::ReleaseDirectory { handle } => files::release(request, handle),
        Operation::GetLock(ref lock) => locks::get_lock(request, lock, to),
        Operation::SetLock { ref lock, .. } => locks::set_lock(request, lock),
        Operation::Flush { handle, lock_owner } => {
            locks::end_locks_of(request, lock_owner);
            sync::flush(request, handle)
        }
        Operation::Sync { handle, .. } => sync::sync(request, handle),
        Operation::SyncDirectory { handle } => sync::sync(request, handle),
        Operation::Destroy => Ok(()),
        Operation::OpenDirectory { flags } => directories::open_directory(request, flags, to),
        Operation::ReadDirectory { handle, offset, size, with_attributes } => {
            directories::read_directory(
                request,
                (handle, offset, size),
                with_attributes,
                scratch,
                to,
            )
        }
        Operation::Allocate { handle, offset, length, mode } => {
            files::allocate(request, handle, offset, length, mode)
        }
        Operation::Seek { handle, offset, whence } => {
            files::seek(request, handle, offset, whence, to)
        }
        Operation::Ioctl { handle, command, data, reply_bytes_max } => inode_flags::execute_ioctl(
            request,
            handle,
            (command, data, reply_bytes_max),
            scratch,
            to,
        ),
        _ => Err(Errno::ENOSYS),
    }
}

fn release_file(request: &Request<'_>, handle: u64) -> Result<()> {
    locks::end_locks_by(request, handle);
    files::release(request, handle)
}

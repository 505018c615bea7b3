//! One request: to whom each operation goes.

use client::{At, OfdIndex};
use fuse::{Header, Operation};
use wire::codec::Writer;
use wire::errno::{Errno, Result};
use wire::request::{made, xattr};
use wire::{Credentials, Inode};

use crate::nodes::inode_of;
use crate::serve::{Scratch, Server};
use crate::watches::Telling;

/// A request that is being answered.
pub(crate) struct Request<'a> {
    /// Who serves.
    pub(crate) server: &'a Server,
    /// What is before each request.
    pub(crate) header: Header,
    /// What the thread is about.
    pub(crate) telling: &'a Telling<'a>,
}

impl Request<'_> {
    /// Answers.
    ///
    /// # Errors
    /// What the system call gives.
    pub(crate) fn answer(
        &self,
        operation: &Operation<'_>,
        scratch: &mut Scratch,
        to: &mut Writer<'_>,
    ) -> Result<()> {
        match *operation {
            Operation::Lookup { name } => self.look_up(name, scratch, to),
            Operation::GetAttributes { handle } => self.get_attributes(handle, scratch, to),
            Operation::SetAttributes(ref change) => self.set_attributes(change, scratch, to),
            Operation::ReadLink => self.read_link(scratch, to),
            Operation::Symlink { name, target } => self.symlink(name, target, scratch, to),
            Operation::MakeNode { name, mode, device, umask } => {
                self.make_node(name, made::with(mode, umask), device, scratch, to)
            }
            Operation::MakeDirectory { name, mode, umask } => {
                self.make_directory(name, made::with(mode, umask), scratch, to)
            }
            Operation::Unlink { name } => self.unlink(name, scratch),
            Operation::RemoveDirectory { name } => self.remove_directory(name, scratch),
            Operation::Rename { name, to_directory, to_name, flags } => {
                self.rename(name, At::below(inode_of(to_directory), to_name), flags, scratch)
            }
            Operation::Link { node, name } => self.link(inode_of(node), name, scratch, to),
            Operation::Open { flags, kills_ids } => self.open(flags, kills_ids, to),
            Operation::Create { name, flags, mode, umask, kills_ids } => {
                self.create(name, flags, made::with(mode, umask), kills_ids, scratch, to)
            }
            Operation::TemporaryFile { flags, mode, umask } => {
                self.temporary_file(flags, made::with(mode, umask), scratch, to)
            }
            Operation::Read { handle, offset, size, flags } => {
                self.read(handle, (offset, size), flags, to)
            }
            Operation::Write { handle, offset, flags, data } => {
                self.write(handle, offset, flags, data, to)
            }
            Operation::StatFs => self.space(scratch, to),
            Operation::Release { handle, .. } => self.release_file(handle),
            Operation::ReleaseDirectory { handle } => self.release(handle),
            Operation::GetLock(ref lock) => self.get_lock(lock, to),
            Operation::SetLock { ref lock, .. } => self.set_lock(lock),
            Operation::Flush { handle, lock_owner } => {
                self.end_locks_of(lock_owner);
                self.flush(handle)
            }
            Operation::Sync { handle, .. } => self.sync(handle),
            Operation::SyncDirectory { .. } | Operation::Destroy => Ok(()),
            Operation::SetXattr { name, value, flags, kills_sgid } => {
                let kills = if kills_sgid { xattr::KILL_SGID } else { 0 };
                self.set_xattr(name, value, flags | kills, scratch)
            }
            Operation::GetXattr { name, size } => self.get_xattr(name, size, scratch, to),
            Operation::ListXattr { size } => self.list_xattr(size, scratch, to),
            Operation::RemoveXattr { name } => self.remove_xattr(name, scratch),
            Operation::OpenDirectory { flags } => self.open_directory(flags, to),
            Operation::ReadDirectory { handle, offset, size, with_attributes } => {
                self.read_directory((handle, offset, size), with_attributes, scratch, to)
            }
            Operation::Allocate { handle, offset, length, mode } => {
                self.allocate(handle, offset, length, mode)
            }
            Operation::Seek { handle, offset, whence } => self.seek(handle, offset, whence, to),
            Operation::Ioctl { command, data, room } => {
                self.ioctl((command, data, room), scratch, to)
            }
            _ => Err(Errno::ENOSYS),
        }
    }

    fn release_file(&self, handle: u64) -> Result<()> {
        self.end_locks_by(handle);
        self.release(handle)
    }

    /// The file that the request is about.
    pub(crate) fn node(&self) -> Inode {
        inode_of(self.header.node)
    }

    /// The open file of a handle.
    pub(crate) fn opened(&self, handle: u64) -> Result<OfdIndex> {
        self.server.handles.get(handle)
    }

    /// A name of the directory that the request is about.
    pub(crate) fn below<'n>(&self, name: &'n [u8]) -> At<'n> {
        At::below(self.node(), name)
    }

    /// Who asks: the kernel has checked what he may do.
    pub(crate) fn who(&self) -> Credentials {
        let owners = &self.server.owners;
        let group = owners.groups.outside(self.header.gid);
        Credentials::checked(owners.users.outside(self.header.uid), group)
    }
}

/// What a call in the instance came to; a name that leads out of it does not come from the kernel.
pub(crate) fn within<T>(outcome: client::Outcome<T>) -> Result<T> {
    match outcome {
        client::Outcome::Done(value) => Ok(value),
        client::Outcome::Outside => Err(Errno::EIO),
        client::Outcome::Special(_) => Err(Errno::ENXIO),
    }
}

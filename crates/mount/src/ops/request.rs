//! A request that is being answered, and the buffers of the thread that answers it.

use client::{At, OfdIndex, PathBuffer};
use fuse::Header;
use wire::errno::{Errno, Result};
use wire::{Credentials, Inode};

use crate::kernel_cache::watches::ReplyTracker;
use crate::server::Server;
use crate::server::node_ids::inode_of;
use crate::users::callers;

/// Buffers of one thread.
pub(crate) struct Scratch {
    /// For a path of the request.
    pub(crate) path: PathBuffer,
    /// For a second path.
    pub(crate) other: PathBuffer,
}

impl Scratch {
    pub(crate) fn new() -> Scratch {
        Scratch { path: PathBuffer::new(), other: PathBuffer::new() }
    }
}

/// A request that is being answered.
pub(crate) struct Request<'a> {
    /// The server.
    pub(crate) server: &'a Server,
    /// Header of the request.
    pub(crate) header: Header,
    /// State of the serving thread.
    pub(crate) tracker: &'a ReplyTracker<'a>,
}

impl Request<'_> {
    /// The inode that the request is about.
    pub(crate) fn node(&self) -> Inode {
        inode_of(self.header.node)
    }

    /// The open file of a handle.
    pub(crate) fn opened(&self, handle: u64) -> Result<OfdIndex> {
        self.server.handles.get(handle)
    }

    /// A name in the directory that the request is about.
    pub(crate) fn child<'n>(&self, name: &'n [u8]) -> At<'n> {
        At::relative(self.node(), name)
    }

    /// Credentials of the caller, whose permissions the kernel has checked, or the instance will.
    pub(crate) fn caller(&self) -> Credentials {
        let owners = &self.server.owners;
        if owners.are_checked_here() {
            return callers::to_be_checked(self);
        }
        let user = owners.user_of_caller(self.header.uid);
        Credentials::checked(user, owners.group_of_caller(self.header.gid))
    }

    /// True if the caller has the rights of root on this mount.
    pub(crate) const fn is_of_root(&self) -> bool {
        self.server.owners.is_root(self.header.uid)
    }
}

/// The value of a call in the instance. The kernel sends no name that leads out of it.
pub(crate) fn within<T>(outcome: client::Outcome<T>) -> Result<T> {
    match outcome {
        client::Outcome::Done(value) => Ok(value),
        client::Outcome::Outside => Err(Errno::EIO),
        client::Outcome::Special(_) => Err(Errno::ENXIO),
    }
}

//! Changes of attributes, as one message to the shard of the file.

use wire::errno::Result;
use wire::{Attributes, Credentials, Inode, Request};

use crate::transport::Transport;
use crate::transport::request::Destination;

/// The fields of a `Request::SetAttributes` without the inode.
#[derive(Clone, Copy, Default)]
pub(crate) struct Change {
    pub(crate) mask: u32,
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) size: u64,
    pub(crate) accessed: u64,
    pub(crate) modified: u64,
}

/// Sends a change of attributes.
///
/// # Errors
/// The errno with which the shard refuses; `ESTALE` if the file is gone.
pub(crate) fn apply(
    transport: &Transport,
    inode: Inode,
    change: &Change,
    caller: &Credentials,
) -> Result<Attributes> {
    let &Change { mask, mode, uid, gid, size, accessed, modified } = change;
    let request = Request::SetAttributes { inode, mask, mode, uid, gid, size, accessed, modified };
    transport.call_attributes(Destination::Shard(inode.shard()), &request, caller)
}

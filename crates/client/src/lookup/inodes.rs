//! Attributes by inode: from the index of this host, else by a message to the shard.

use wire::errno::Result;
use wire::{Attributes, Inode, Request};

use crate::transport::Transport;
use crate::transport::request::{Destination, own_credentials};

/// The attributes of an inode as the index has them.
pub(crate) fn attributes_in_index(transport: &Transport, inode: Inode) -> Option<Attributes> {
    transport.service_of(inode.shard())?.inode(inode)
}

/// The attributes of an inode, from the index or by a message.
///
/// # Errors
/// `ESTALE` if it is gone, `EIO`.
pub(crate) fn attributes_of(transport: &Transport, inode: Inode) -> Result<Attributes> {
    let mut attributes = Attributes::default();
    read_attributes(transport, inode, &mut attributes)?;
    Ok(attributes)
}

/// As `attributes_of`, into a buffer of the caller.
///
/// # Errors
/// As `attributes_of`.
#[inline]
pub(crate) fn read_attributes(
    transport: &Transport,
    inode: Inode,
    to: &mut Attributes,
) -> Result<()> {
    match transport.service_of(inode.shard()) {
        Some(service) if service.read_inode(inode, to) => Ok(()),
        _ => query_attributes(transport, inode, to),
    }
}

/// The attributes as the shard has them after it applied all pending local operations.
///
/// # Errors
/// As `attributes_of`.
pub(crate) fn queried_attributes(transport: &Transport, inode: Inode) -> Result<Attributes> {
    let mut attributes = Attributes::default();
    query_attributes(transport, inode, &mut attributes)?;
    Ok(attributes)
}

#[cold]
pub(crate) fn query_attributes(
    transport: &Transport,
    inode: Inode,
    to: &mut Attributes,
) -> Result<()> {
    let request = Request::GetAttributes { inode };
    let answer =
        transport.call_attributes(Destination::Shard(inode.shard()), &request, &own_credentials());
    *to = answer?;
    Ok(())
}

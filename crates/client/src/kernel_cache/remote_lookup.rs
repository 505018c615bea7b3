//! Lookups of a mount on remote shards, whose results its kernel may cache for a while
//! (`wire::watch`). For shards of this host the mount reads shared memory (`watches`).

use core::sync::atomic::Ordering::SeqCst;
use wire::errno::{Errno, Result};
use wire::reply::lookup_flag;
use wire::watch::Watch;
use wire::{Attributes, Inode, Layout, Reply, Request, ShardIndex};

use crate::file::size;
use crate::kernel_cache::writers;
use crate::lookup::inodes;
use crate::lookup::result::Entry;
use crate::transport::Transport;
use crate::transport::request::{Destination, own_credentials};

/// Result of a lookup on a remote shard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RemoteLookup {
    /// The inode, or none if there is no such name.
    pub inode: Inode,
    /// Its attributes, unless it belongs to another shard.
    pub attributes: Option<Attributes>,
    /// The kernel may cache the entry.
    pub name_stays: bool,
    /// The kernel may cache the attributes, as far as this host does not change them.
    pub attributes_stay: bool,
}

/// The watch of a name in a directory with this layout, and the shard that decides about it.
pub(crate) fn watch_of_name(parent: Inode, layout: &Layout, name: &[u8]) -> (Watch, ShardIndex) {
    let parent = Attributes { inode: parent, layout: *layout, ..Attributes::default() };
    let entry = Entry::of(&parent, name);
    (Watch::of_key(entry.key), entry.shard)
}

/// The layout of a directory, if it is known without a message.
pub(crate) fn known_layout(transport: &Transport, directory: Inode) -> Option<Layout> {
    inodes::attributes_in_index(transport, directory).map(|found| found.layout)
}

/// True if the shard is on another host.
pub(crate) fn is_remote(transport: &Transport, shard: ShardIndex) -> bool {
    transport.is_local_shard(shard) == Ok(false)
}

/// Looks a name up on a remote shard.
pub(crate) fn query_lookup(
    transport: &Transport,
    parent: Inode,
    name: &[u8],
    shard: ShardIndex,
) -> Result<RemoteLookup> {
    let request = Request::LookupForMount { inode: parent, name };
    transport.call(Destination::Shard(shard), &request, &own_credentials())?.with(|reply| {
        match reply {
            Reply::LookupForMount { may, attributes } => Ok(RemoteLookup {
                inode: attributes.inode,
                attributes: (may & lookup_flag::ATTRIBUTES != 0).then_some(attributes),
                name_stays: may & lookup_flag::NAME_STAYS != 0,
                attributes_stay: may & lookup_flag::ATTRIBUTES_STAY != 0,
            }),
            _ => Err(Errno::EIO),
        }
    })
}

/// The attributes of an inode of a remote shard, including this host's changes, and whether the
/// kernel of this mount may cache them. `first`: the shard's latest reply. The caller has
/// already recorded that the kernel watches them.
pub(crate) fn remote_attributes(
    transport: &Transport,
    inode: Inode,
    first: Option<RemoteLookup>,
) -> Result<(Attributes, bool)> {
    let host = transport.host()?;
    let row = host.vnode_find(inode).and_then(|row| host.vnode(row).ok());
    let mut seen = first;
    if row.is_some_and(|row| row.dirty_end.load(SeqCst) != 0) {
        size::flush_if_open(transport, inode)?;
        seen = None;
    }
    let seen = match seen {
        Some(seen) => seen,
        None => query_lookup(transport, inode, b"", inode.shard())?,
    };
    let attributes = seen.attributes.ok_or(Errno::EIO)?;
    Ok((attributes, seen.attributes_stay && writers::has_sole_local_writer(transport, inode)))
}

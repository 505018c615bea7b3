//! Requests of the writeback daemon to shards and targets (`wire::backing`), for a process of the
//! instance's owner.

use core::ops::Range;
use placement::locate::entry_shard;
use placement::map::worker_of_shard;
use wire::codec::{Field, Reader};
use wire::errno::{Errno, Result};
use wire::hash::NameHash;
use wire::reply::Extent;
use wire::{Attributes, DaemonIndex, Inode, Reply, Request, ShardIndex};

use crate::file::layout;
use crate::file::layout::File;
use crate::lookup::inodes;
use crate::names::namespace;
use crate::transport::Transport;
use crate::transport::request::{Destination, own_credentials};

/// The service of a shard: its daemon, and the worker there.
pub(crate) fn service_with(
    transport: &Transport,
    shard: ShardIndex,
) -> Result<(DaemonIndex, usize)> {
    let home = transport.home()?;
    Ok((home.map.owner(shard), worker_of_shard(shard, home.workers())))
}

/// The shard that holds the entry of a name in a directory.
pub(crate) fn shard_of_name(directory: &Attributes, name: &[u8]) -> ShardIndex {
    entry_shard(directory, NameHash::of(directory.inode, name))
}

/// Sends a shard a request that is answered by bytes, and passes them to `with`.
pub(crate) fn query_backing<R>(
    transport: &Transport,
    shard: ShardIndex,
    request: &Request<'_>,
    with: impl FnOnce(&[u8]) -> Result<R>,
) -> Result<R> {
    let answer = transport.call(Destination::Shard(shard), request, &own_credentials())?;
    answer.with(|reply| match reply {
        Reply::Bytes { bytes } => with(bytes),
        _ => Err(Errno::EIO),
    })
}

/// See `Client::copy_state`.
pub(crate) fn copy_state(transport: &Transport, inode: Inode) -> Result<Option<u64>> {
    if !transport.has_copies() {
        return Ok(None);
    }
    let (to, request) = (Destination::Shard(inode.shard()), Request::CopyState { inode });
    let answer = transport.call(to, &request, &own_credentials())?;
    answer.with(|reply| match reply {
        Reply::Number { value } => Ok(Some(value)),
        _ => Err(Errno::EIO),
    })
}

/// Sends a shard a request without a result.
pub(crate) fn send_backing(
    transport: &Transport,
    shard: ShardIndex,
    request: &Request<'_>,
) -> Result<()> {
    transport.call_done(Destination::Shard(shard), request, &own_credentials())
}

/// Calls `with` for each target that may hold bytes of a file.
pub(crate) fn each_backing_target(
    transport: &Transport,
    file: &Attributes,
    with: &mut dyn FnMut(DaemonIndex) -> Result<()>,
) -> Result<()> {
    layout::each_target(transport, &File::of(file), 0, u64::MAX, with)
}

/// `Request::BeginWriteback`: calls `each` with the ranges in the target's reply.
pub(crate) fn begin_writeback(
    transport: &Transport,
    target: DaemonIndex,
    request: &Request<'_>,
    each: &mut dyn FnMut(Range<u64>),
) -> Result<()> {
    transport.call(Destination::Target(target), request, &own_credentials())?.with(|reply| {
        let Reply::Extents { extents } = reply else { return Err(Errno::EIO) };
        let mut reader = Reader::new(extents);
        while !reader.rest().is_empty() {
            let extent = Extent::take(&mut reader).map_err(|_| Errno::EIO)?;
            each(extent.start..extent.start.saturating_add(extent.length()));
        }
        Ok(())
    })
}

/// `Request::EndWriteback`.
pub(crate) fn end_writeback(
    transport: &Transport,
    target: DaemonIndex,
    inode: Inode,
    (number, end): (u64, u64),
) -> Result<()> {
    let request = Request::EndWriteback { inode, number, end };
    transport.call_done(Destination::Target(target), &request, &own_credentials())
}

/// Copies the target of a symbolic link and returns its length.
pub(crate) fn link_target_of(
    transport: &Transport,
    link: Inode,
    target: &mut [u8],
) -> Result<usize> {
    let link = inodes::attributes_of(transport, link)?;
    namespace::read_link_of(transport, &link, target, &own_credentials())
}

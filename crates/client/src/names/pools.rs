//! Pools of targets, from the registry (`wire::pool`), and the pool of a directory as an extended
//! attribute, which programs set like any other. Directories that are made in it inherit it.

use wire::codec::Reader;
use wire::errno::{Errno, Result};
use wire::pool::{NO_POOL, PoolEntry};
use wire::request::set;
use wire::{Attributes, Credentials, Layout, Reply, Request, ShardIndex};

use crate::file::change;
use crate::file::change::Change;
use crate::names::inherited::copy_value;
use crate::transport::Transport;
use crate::transport::request::{Destination, own_credentials};

/// Name of the attribute. It is not listed, so programs that copy attributes leave it out.
pub(crate) const POOL: &[u8] = b"user.forebay.pool";

/// The shard whose service has the registry.
const REGISTRY: Destination = Destination::Shard(ShardIndex(0));

/// Makes a pool, or without targets removes it. All daemons know it when this returns.
pub(crate) fn set_pool(
    transport: &Transport,
    name: &[u8],
    targets: &[u8],
    caller: &Credentials,
) -> Result<()> {
    transport.call_done(REGISTRY, &Request::SetPool { name, targets }, caller)
}

/// Calls `each` with the pools above `after` as far as one reply goes. Returns the number of the last
/// one; 0: there are no more.
pub(crate) fn pools(
    transport: &Transport,
    after: u8,
    each: &mut dyn FnMut(PoolEntry<'_>),
) -> Result<u8> {
    let answer = transport.call(REGISTRY, &Request::Pools { after }, &own_credentials())?;
    answer.with(|reply| {
        let Reply::Bytes { bytes } = reply else { return Err(Errno::EIO) };
        let (mut reader, mut last) = (Reader::new(bytes), 0);
        while !reader.rest().is_empty() {
            let entry = PoolEntry::decode(&mut reader).map_err(|_| Errno::EIO)?;
            last = entry.id;
            each(entry);
        }
        Ok(last)
    })
}

fn each_pool(transport: &Transport, each: &mut dyn FnMut(PoolEntry<'_>)) -> Result<()> {
    let mut after = 0;
    loop {
        match pools(transport, after, each)? {
            last if last > after => after = last,
            _ => return Ok(()),
        }
    }
}

/// Copies the name of the pool of a file or directory, or only returns its length if `to` is empty.
pub(crate) fn get_pool(transport: &Transport, file: &Attributes, to: &mut [u8]) -> Result<usize> {
    let mut copied = None;
    if file.layout.pool != 0 {
        each_pool(transport, &mut |pool| {
            if pool.id == file.layout.pool {
                copied = Some(copy_value(pool.name, to));
            }
        })?;
    }
    copied.unwrap_or_else(|| copy_value(NO_POOL, to))
}

/// Files that are created in a directory from now on are stored on the targets of the pool of this
/// name, or without a pool where its layout says.
pub(crate) fn set_pool_of(
    transport: &Transport,
    directory: &Attributes,
    name: &[u8],
    caller: &Credentials,
) -> Result<()> {
    if !directory.is_directory() {
        return Err(Errno::ENOTDIR);
    }
    let mut layout = Layout::default();
    if name != NO_POOL {
        each_pool(transport, &mut |pool| {
            if pool.name == name {
                layout.pool = pool.id;
            }
        })?;
        if layout.pool == 0 {
            return Err(Errno::ENOENT);
        }
    }
    let change = Change { mask: set::POOL, size: layout.word(), ..Change::default() };
    change::apply(transport, directory.inode, &change, caller).map(drop)
}

//! Batched lookup: resolves several components of a path that another host serves with one message.
//!
//! The result is as if each component had been looked up on its own, at one moment within the call.
//! Nothing is kept from one call to the next, because another host may rename a directory or change
//! its mode at any time. State that the other host must revoke before a change is a lease
//! (`leases`), which arrives with the same message.

use wire::attributes::ATTRIBUTES_BYTES;
use wire::codec::Reader;
use wire::errno::{Errno, Result};
use wire::limits::WALK_NAMES_MAX;
use wire::request::walk;
use wire::{Attributes, Credentials, Inode, Reply, Request, ShardIndex};

use crate::lookup::leases;
use crate::lookup::path::PathCursor;
use crate::lookup::result::{LookupMode, LookupResult};
use crate::transport::Transport;
use crate::transport::request::Destination;

/// Results for the components that follow, until the walk reaches them.
pub(crate) struct LookupBatch {
    chain: [Attributes; WALK_NAMES_MAX + 1],
    count: usize,
    used: usize,
    is_absent: bool,
}

impl LookupBatch {
    fn of(absent: u8, bytes: &[u8]) -> Result<LookupBatch> {
        let (mut chain, mut count) = ([Attributes::default(); WALK_NAMES_MAX + 1], 0usize);
        let mut rest = bytes.chunks_exact(ATTRIBUTES_BYTES);
        for (place, bytes) in chain.iter_mut().zip(rest.by_ref()) {
            *place = Attributes::decode(&mut Reader::new(bytes)).map_err(|_| Errno::EIO)?;
            count = count.saturating_add(1);
        }
        let is_whole = count.saturating_mul(ATTRIBUTES_BYTES) == bytes.len();
        let batch = LookupBatch { chain, count, used: 0, is_absent: absent != 0 };
        if is_whole { Ok(batch) } else { Err(Errno::EIO) }
    }

    /// Takes the result for the next component.
    pub(crate) fn next(&mut self, to: &mut Attributes) -> Option<LookupResult> {
        let known = self.chain.get(..self.count).unwrap_or(&[]).get(self.used);
        self.used = self.used.saturating_add(1);
        match known {
            Some(attributes) => {
                *to = *attributes;
                Some(LookupResult::Found)
            }
            None => core::mem::take(&mut self.is_absent).then_some(LookupResult::Absent),
        }
    }
}

/// Starts a walk in `directory` of another host: puts its attributes into `to` and may resolve
/// the components that follow. Returns true if the attributes come from a lease; then only
/// those that a walk needs are valid.
///
/// # Errors
/// `ESTALE` if it is gone, `EIO`.
pub(crate) fn begin_remote(
    transport: &Transport,
    directory: Inode,
    lookup: LookupMode,
    caller: &Credentials,
    cursor: &PathCursor,
    batch: &mut Option<LookupBatch>,
    to: &mut Attributes,
) -> Result<bool> {
    if leases::leased(transport, directory, to) {
        return Ok(true);
    }
    let (names, _) = cursor.names(cursor.place(), lookup != LookupMode::IndexOnly);
    let shard = directory.shard();
    match walk_remote(transport, shard, (directory, walk::DIRECTORY, names), caller, batch, to)? {
        Some(LookupResult::Found) => Ok(false),
        _ => Err(Errno::EIO),
    }
}

/// Resolves the first of the names in `directory`, and the others in advance, if there are at
/// least `least` of them and the shard is on another host.
///
/// # Errors
/// `EIO`.
pub(crate) fn lookup_batch(
    transport: &Transport,
    directory: Inode,
    shard: ShardIndex,
    (names, count, least): (&[u8], usize, usize),
    caller: &Credentials,
    batch: &mut Option<LookupBatch>,
    to: &mut Attributes,
) -> Result<Option<LookupResult>> {
    if count < least || transport.service_of(shard).is_some() {
        return Ok(None);
    }
    walk_remote(transport, shard, (directory, walk::ENTRY, names), caller, batch, to)
}

fn walk_remote(
    transport: &Transport,
    shard: ShardIndex,
    (directory, from, names): (Inode, u8, &[u8]),
    caller: &Credentials,
    batch: &mut Option<LookupBatch>,
    to: &mut Attributes,
) -> Result<Option<LookupResult>> {
    let request = Request::Walk { directory, from, names };
    let mut known =
        transport.call(Destination::Shard(shard), &request, caller)?.with(|reply| match reply {
            Reply::Walked { absent, chain, .. } => LookupBatch::of(absent, chain),
            _ => Err(Errno::EIO),
        })?;
    let first = known.next(to);
    *batch = Some(known);
    Ok(first)
}

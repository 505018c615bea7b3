//! Fetches of clients of this host whose bytes have migrated (`data::migration`): the target says where
//! they are, and they are fetched from there, or read here. So clients know of no move.
//!
//!   at the target --Outcome::Elsewhere--> at another daemon, or at this one
//!   there --moved--> answered
//!   there --the extent has returned--> busy: the client asks the target again
//!
//! The location is used once and for this request alone. If the extent returns and is written meanwhile,
//! the read and the write are at the same time, and the read may find what was before.

use crate::shared::Shared;
use crate::shared::network::encode_request;
use crate::shared::reply::{LOST_MICROS, ReplyTo};
use crate::target::{Devices, Protection};
use crate::threads::bulk::{AwaitedTransfer, BulkMemory, BulkToken};
use data::LOCATE;
use data::tiering::spill::spill_host;
use net::bulk::{Fabric as _, Kind, Memory as _, Outcome, Range, Transfer};
use placement::extent;
use placement::map::WORKER_OF_TARGET;
use std::sync::Arc;
use wire::codec::{Field as _, Reader};
use wire::errno::{Errno, Result};
use wire::reply::Extent;
use wire::request::stripe_log2_of;
use wire::{Header, Reply, Request};

/// Retry delay if an extent returned at the very moment when it was found elsewhere.
const RETURNED_MICROS: u32 = 1_000;

/// A fetch of a client whose bytes are at this daemon.
pub(crate) struct OwnFetch {
    devices: Arc<Devices>,
    awaited: AwaitedTransfer,
    /// The range in the file by which this target knows the extent.
    range: Range,
    memory: BulkMemory,
}

/// Ends a transfer that a request waits for.
pub(crate) fn end_transfer(
    shared: &Shared,
    awaited: AwaitedTransfer,
    memory: BulkMemory,
    outcome: Outcome,
) {
    let AwaitedTransfer { to, ticket, .. } = awaited;
    if let BulkMemory::Buffer { client, buffer, .. } = &memory {
        let count = if let Outcome::Moved(count) = outcome { Some(count) } else { None };
        client.slots.bounce_buffers().complete_readahead(*buffer, count);
    }
    let fetched_log2 = memory.fetched_log2();
    // The client gets its buffer back before the reply.
    drop((memory, ticket));
    match outcome {
        Outcome::Moved(count) if fetched_log2 > 0 => {
            let value = u64::from(count);
            shared.answer_with(to, &Reply::FetchedNumber { fetched_log2, value });
        }
        Outcome::Moved(count) => {
            shared.answer_with(to, &Reply::Number { value: u64::from(count) });
        }
        Outcome::Refused(errno) => shared.refuse(to, errno),
        Outcome::Busy(micros) => shared.busy(to, micros),
        Outcome::Lost => shared.busy(to, LOST_MICROS),
        // Only a target that was asked for one of its own files says this.
        Outcome::Elsewhere(_) => shared.refuse(to, Errno::EIO),
    }
}

/// Fetches what `home`, the target of the file, has at `location` of another target.
pub(crate) fn fetch_elsewhere(
    shared: &Arc<Shared>,
    devices: &Arc<Devices>,
    awaited: AwaitedTransfer,
    memory: BulkMemory,
    location: u64,
) {
    let (home, range) = (awaited.target, awaited.range);
    let (length_log2, tier) = (0, Extent::SPILLED);
    let there = Extent { start: range.offset, slot: 0, location, length_log2, tier };
    let (peer, inode) = spill_host(home, &there);
    let range = Range { inode, ..range };
    if let Some(activity) = &shared.host.activity {
        activity.note_redirected(awaited.range.inode);
    }
    if peer != shared.net.router.me {
        if peer.0 >= shared.net.router.daemons_most() || peer == home {
            return end_transfer(shared, awaited, memory, Outcome::Refused(Errno::EIO));
        }
        let token = BulkToken::Redirected(awaited);
        let kind = Kind::Fetch;
        let transfer = Transfer { peer, kind, range, memory, until: None, token };
        return shared.bulk.transport.start(transfer);
    }
    let span = extent::at(range.offset, stripe_log2_of(range.stripe_log2));
    let request = Request::MapExtents {
        inode,
        stripe_log2: range.stripe_log2,
        allocate: LOCATE,
        offset: span.start,
        length: span.length(),
        preallocate: 0,
    };
    let header = Header { job: range.job, ..shared.net.target_header(peer) };
    let own = OwnFetch { devices: Arc::clone(devices), awaited, range, memory };
    let bytes = encode_request(&header, &request);
    shared.hand_to_worker(WORKER_OF_TARGET, bytes, ReplyTo::OwnFetch(Box::new(own)));
}

/// A transfer from the target to which its extent migrated has ended.
pub(crate) fn redirected_ended(
    shared: &Shared,
    awaited: AwaitedTransfer,
    memory: BulkMemory,
    outcome: Outcome,
) {
    let outcome = match outcome {
        Outcome::Refused(Errno::ESTALE) => Outcome::Busy(RETURNED_MICROS),
        // It holds an extent completely or not at all.
        Outcome::Moved(count) if count != awaited.range.length => Outcome::Refused(Errno::EIO),
        outcome => outcome,
    };
    end_transfer(shared, awaited, memory, outcome);
}

impl OwnFetch {
    /// The target of this daemon answered: reads the bytes, if it has them.
    pub(crate) fn answered(self, shared: &Shared, reply: &[u8]) {
        let outcome = match self.read(reply) {
            Ok(true) => Outcome::Moved(self.range.length),
            Ok(false) => Outcome::Busy(RETURNED_MICROS),
            Err(errno) => Outcome::Refused(errno),
        };
        end_transfer(shared, self.awaited, self.memory, outcome);
    }

    /// False if the extent is not here any more, or not yet free.
    fn read(&self, reply: &[u8]) -> Result<bool> {
        let OwnFetch { devices, range, memory, .. } = self;
        let extents = match Reply::decode(&mut Reader::new(reply)) {
            Ok(Reply::Extents { extents } | Reply::ExtentsAfterWait { extents, .. }) => extents,
            Ok(Reply::Refused { errno }) => return Err(errno),
            Ok(Reply::Busy { .. }) => return Ok(false),
            _ => return Err(Errno::EIO),
        };
        let mut reader = Reader::new(extents);
        if reader.rest().is_empty() {
            return Ok(false);
        }
        let extent = Extent::take(&mut reader).map_err(|_| Errno::EIO)?;
        let within = range.offset.checked_sub(extent.start).ok_or(Errno::EIO)?;
        devices.hazards.protect(extent.slot, Protection::Reads);
        let outcome = if devices.table.get(extent.slot) == Some((range.inode, extent)) {
            let mut bytes = vec![0; range.length as usize];
            let (segment, at) = memory.region();
            let read = devices.target().read_stable(&extent, within, &mut bytes);
            read.and_then(|()| segment.copy_in(at, &bytes)).map(|()| true)
        } else {
            Ok(false)
        };
        devices.hazards.release(extent.slot, Protection::Reads);
        outcome
    }
}

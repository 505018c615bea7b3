//! This daemon's end of bulk transfers: finds the extents of the target that transfers of other
//! daemons read or write, and takes up the results of those that it has started (`bulk`).
//!
//! A transfer from a peer finds its extent in a cache here, or asks worker 0, which owns the
//! target. The cache may be outdated: as clients do, the extent is protected first and its entry in
//! the extent table checked afterwards. Bytes of the memory tier move directly between arena and
//! socket; those of the SSD tier, and ranges with invalid pages, are copied.

use crate::shared::Shared;
use crate::shared::network::encode_request;
use crate::shared::reply::ReplyTo;
use crate::target::{Devices, Protection};
use crate::threads::bulk::{BulkMemory, BulkToken, CopiedRange, PushedWrite, end_push};
use crate::threads::elsewhere::{end_transfer, fetch_elsewhere, redirected_ended};
use data::LOCATE;
use net::bulk::{Answer, BulkHandler, Kind, Outcome, Range, Visit};
use placement::extent;
use placement::map::WORKER_OF_TARGET;
use shm::Segment;
use shm::extents::{Use, admit};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;
use wire::codec::{Field, Reader};
use wire::errno::{Errno, Result};
use wire::reply::Extent;
use wire::request::stripe_log2_of;
use wire::{DaemonIndex, Header, Inode, Reply, Request};

/// Maximum number of cached extents: a few MiB.
const KNOWN_EXTENTS_MAX: usize = 64 * 1024;
/// Retry delay if an extent was freed at the very moment when it was found.
const RETRY_MICROS: u32 = 100;

/// The source of an extent's place.
#[derive(Clone, Copy, PartialEq, Eq)]
enum KnownBy {
    /// The cache, perhaps some time ago.
    Cache,
    /// The target, just now.
    Target,
}

impl KnownBy {
    /// True if the entry of the extent must be shown. A fetch may read what migrates and is hidden, if
    /// the target says so: nobody changes it.
    fn needs_shown(self, kind: Kind) -> bool {
        self == KnownBy::Cache || kind == Kind::Store
    }
}

/// Callbacks of this daemon for transfers.
pub(crate) struct BulkEndpoint {
    shared: Arc<Shared>,
    devices: Arc<Devices>,
    /// Cache of extents by file and start.
    known_extents: Mutex<BTreeMap<(Inode, u64), Extent>>,
}

impl BulkEndpoint {
    pub(crate) const fn new(shared: Arc<Shared>, devices: Arc<Devices>) -> BulkEndpoint {
        BulkEndpoint { shared, devices, known_extents: Mutex::new(BTreeMap::new()) }
    }

    fn known_extents(&self) -> std::sync::MutexGuard<'_, BTreeMap<(Inode, u64), Extent>> {
        self.known_extents.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Memory for a transfer's range of `extent`, protected; `None` if the extent belongs to
    /// another file now.
    fn place(
        &self,
        (kind, range): (Kind, &Range),
        extent: Extent,
        by: KnownBy,
    ) -> Option<Result<BulkMemory>> {
        let Devices { hazards, table, .. } = &*self.devices;
        let why = protection_for(kind);
        hazards.protect(extent.slot, why);
        let is_here = Some((range.inode, extent));
        let shown = table.get(extent.slot) == is_here;
        if !shown && (by.needs_shown(kind) || table.hidden(extent.slot) != is_here) {
            hazards.release(extent.slot, why);
            self.known_extents().remove(&(range.inode, extent.start));
            return None;
        }
        let within = range.offset.saturating_sub(extent.start);
        let place = self.place_protected(kind, range.length as usize, &extent, within);
        if place.is_err() {
            hazards.release(extent.slot, why);
        }
        Some(place)
    }

    fn place_protected(
        &self,
        kind: Kind,
        length: usize,
        extent: &Extent,
        within: u64,
    ) -> Result<BulkMemory> {
        let devices = &self.devices;
        let target = devices.target();
        let is_fetched = kind == Kind::Fetch && devices.states.take_fetched(extent.slot);
        let fetched_log2 = if is_fetched { extent.length_log2 } else { 0 };
        let is_direct = extent.tier == Extent::MEMORY
            && (kind == Kind::Store || target.is_valid(extent, within, length)?);
        if is_direct {
            devices.states.note_use(extent.slot, Use::Read);
            admit(extent, devices.arena.len())?;
            if kind == Kind::Store {
                target.make_range_valid(
                    &devices.client_hazards.of_daemon(),
                    extent,
                    within,
                    length,
                )?;
            }
            let at = usize::try_from(extent.location + within).map_err(|_| Errno::EIO)?;
            devices.arena.prepare(at, length);
            let slot = extent.slot;
            let (devices, why) = (Arc::clone(devices), protection_for(kind));
            return Ok(BulkMemory::Arena { devices, slot, at, fetched_log2, why });
        }
        let segment = Segment::private(length)?;
        if kind == Kind::Fetch {
            let mut bytes = vec![0; length];
            target.read_stable(extent, within, &mut bytes)?;
            segment.copy_in(0, &bytes)?;
        }
        let (devices, extent, why) = (Arc::clone(devices), *extent, protection_for(kind));
        let copied = CopiedRange { devices, extent, within, segment, fetched_log2, why };
        Ok(BulkMemory::Copy(copied))
    }

    /// Handles the target's list of extents for a range.
    fn found(&self, kind: Kind, range: &Range, list: &[u8]) -> Answer<BulkMemory> {
        let start = extent::at(range.offset, stripe_log2_of(range.stripe_log2)).start;
        let mut reader = Reader::new(list);
        while !reader.rest().is_empty() {
            let Ok(extent) = Extent::take(&mut reader) else {
                tracing::error!("the target named no possible extent");
                return Answer::Refused(Errno::EIO);
            };
            if extent.start == start {
                let mut known_extents = self.known_extents();
                if known_extents.len() >= KNOWN_EXTENTS_MAX {
                    known_extents.clear();
                }
                known_extents.insert((range.inode, start), extent);
                drop(known_extents);
                return match self.place((kind, range), extent, KnownBy::Target) {
                    Some(Ok(place)) => Answer::Memory(place),
                    Some(Err(errno)) => Answer::Refused(errno),
                    None => Answer::Busy(RETRY_MICROS),
                };
            }
        }
        match kind {
            // It has returned to its target, which knows where it is.
            Kind::Fetch if range.inode.is_spilled() => Answer::Refused(Errno::ESTALE),
            Kind::Fetch => Answer::Hole,
            Kind::Store => Answer::Refused(Errno::EIO),
        }
    }
}

impl BulkHandler for BulkEndpoint {
    type Token = BulkToken;
    type Memory = BulkMemory;
    /// The encoded reply of the target.
    type Decision = Vec<u8>;

    fn visit(
        &self,
        from: DaemonIndex,
        kind: Kind,
        range: &Range,
        visit: Visit,
    ) -> Option<Answer<BulkMemory>> {
        let span = extent::at(range.offset, stripe_log2_of(range.stripe_log2));
        if range.end() > span.end() {
            tracing::warn!(peer = from.0, "transfer spans more than one extent");
            return Some(Answer::Refused(Errno::EINVAL));
        }
        // The target is told what other hosts read while it is slow.
        let asks = kind == Kind::Fetch && self.devices.redirects.load(Relaxed);
        let known = self.known_extents().get(&(range.inode, span.start)).copied();
        let known = known.filter(|_| !asks);
        match known.and_then(|extent| self.place((kind, range), extent, KnownBy::Cache)) {
            Some(Ok(place)) => return Some(Answer::Memory(place)),
            Some(Err(errno)) => return Some(Answer::Refused(errno)),
            None => {}
        }
        let request = Request::MapExtents {
            inode: range.inode,
            stripe_log2: range.stripe_log2,
            allocate: if kind == Kind::Store { 1 } else { LOCATE },
            offset: span.start,
            length: span.length(),
            preallocate: 0,
        };
        let header = self.shared.net.target_header(self.shared.net.router.me);
        let header = Header { job: range.job, ..header };
        let bytes = encode_request(&header, &request);
        self.shared.hand_to_worker(WORKER_OF_TARGET, bytes, ReplyTo::Visit(visit));
        None
    }

    fn decided(&self, kind: Kind, range: &Range, decision: Vec<u8>) -> Answer<BulkMemory> {
        match Reply::decode(&mut Reader::new(&decision)) {
            Ok(Reply::Extents { extents } | Reply::ExtentsAfterWait { extents, .. }) => {
                self.found(kind, range, extents)
            }
            Ok(Reply::Number { value }) if kind == Kind::Fetch => Answer::Elsewhere(value),
            Ok(Reply::Refused { errno }) => Answer::Refused(errno),
            Ok(Reply::Busy { retry_micros }) => Answer::Busy(retry_micros),
            _ => Answer::Refused(Errno::EIO),
        }
    }

    fn stored(&self, range: &Range, memory: BulkMemory) -> Result<()> {
        let BulkMemory::Copy(copied) = &memory else { return Ok(()) };
        let CopiedRange { extent, within, segment, .. } = copied;
        let mut bytes = vec![0; range.length as usize];
        segment.copy_out(0, &mut bytes)?;
        let hazards = self.devices.client_hazards.of_daemon();
        self.devices.target().write_stable(&hazards, extent, *within, &bytes)
    }

    fn ended(&self, token: BulkToken, memory: BulkMemory, outcome: Outcome) {
        let Shared { bulk, inboxes, host, .. } = &*self.shared;
        match token {
            BulkToken::Answer(awaited) => match outcome {
                Outcome::Elsewhere(location) => {
                    fetch_elsewhere(&self.shared, &self.devices, awaited, memory, location);
                }
                outcome => end_transfer(&self.shared, awaited, memory, outcome),
            },
            BulkToken::Redirected(awaited) => {
                redirected_ended(&self.shared, awaited, memory, outcome);
            }
            BulkToken::SpillTransfer { spill_transfer, range } => {
                spill_transfer.part_moved((bulk, inboxes), range, memory, outcome);
            }
            BulkToken::Pushed(write) => {
                let outcome = match outcome {
                    Outcome::Moved(_) => Ok(()),
                    Outcome::Refused(errno) => Err(errno),
                    // The extent was freed after the client had found it, and its space is not
                    // available yet. That takes only a moment.
                    Outcome::Busy(_) if Instant::now() < write.until => {
                        return bulk.push_write(write, memory);
                    }
                    // The client pushes it again, to the restarted daemon.
                    Outcome::Lost if self.shared.stopping.load(SeqCst) => {
                        return std::mem::forget(memory);
                    }
                    Outcome::Busy(_) | Outcome::Lost | Outcome::Elsewhere(_) => Err(Errno::EIO),
                };
                let PushedWrite { vnode, range, ticket, .. } = write;
                // In this order for `recount_lost_pushes`.
                if let BulkMemory::Buffer { client, buffer, .. } = &memory {
                    client.slots.bounce_buffers().begin_ending(*buffer);
                }
                end_push(&host.segment, range.inode, vnode, outcome);
                drop((memory, ticket));
            }
        }
    }
}

/// The reason for which a transfer of another host protects an extent of this target.
const fn protection_for(kind: Kind) -> Protection {
    match kind {
        Kind::Fetch => Protection::Reads,
        Kind::Store => Protection::Holds,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_fetches_of_extents_of_which_the_target_has_just_told_use_hidden_ones() {
        assert!(!KnownBy::Target.needs_shown(Kind::Fetch));
        assert!(KnownBy::Target.needs_shown(Kind::Store), "its bytes would be lost");
        assert!(KnownBy::Cache.needs_shown(Kind::Fetch) && KnownBy::Cache.needs_shown(Kind::Store));
    }
}

//! Spilled extents (`data::tiering::spill`): transfers of their bytes to spill hosts and back, and
//! releases on spill hosts.
//!
//! Bytes move as in any transfer between daemons (`bulk`), directly from the arena or into an
//! unpublished range of it, in parts of the same size as those of clients.

use crate::backing::write_extent;
use crate::shared::Shared;
use crate::shared::inbox::{Inboxes, WorkerMessage};
use crate::shared::network::{Network, encode_request};
use crate::shared::reply::{PartAnswer, ReplyTo};
use crate::target::tiering::demotion::CopyJob;
use crate::target::{Devices, Protection, micros_until};
use crate::threads::bulk::{BulkMemory, BulkToken, BulkTransfers};
use data::CopyClass;
use data::tiering::spill::spill_host;
use net::bulk::{Fabric as _, Kind, Outcome, Range, Transfer};
use placement::extent;
use shm::Segment;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{AcqRel, Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use wire::errno::{Errno, Result};
use wire::limits::{BOUNCE_BUFFER_BYTES, STRIPE_LOG2_MAX, STRIPE_LOG2_MIN};
use wire::reply::Extent;
use wire::{DaemonIndex, Inode, JobWord, Request};

/// Maximum time for a store to a spill host, so that a spill host that is down does not delay
/// demotion.
const STORE_TIME: Duration = Duration::from_secs(5);
/// The same while this target is slow: 64 MiB, the longest extent, at 1 MiB/s. Readers do not wait for
/// it, and a writer cancels it.
const MIGRATE_TIME: Duration = Duration::from_secs(64);
/// First pause before a release is repeated; it grows up to `PAUSE_MAX`.
const PAUSE_MIN: Duration = Duration::from_millis(1);
/// See `PAUSE_MIN`.
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// Bits of the number of a spilled extent within one start of the daemon. Each start has 268 million;
/// of 48 bits in all, the number of the start has 20.
const NUMBER_BITS: u32 = 28;

/// A number larger than any that this target has given to spilled extents before, whatever was done
/// to the system's clock between: two extents with one number would be one at their host.
pub(crate) const fn first_number(start: u64) -> u64 {
    start << NUMBER_BITS
}

/// Recipient of the result when all parts have ended.
enum TransferOwner {
    /// The target, which requested a copy.
    Move,
    /// A reader: the bytes received so far.
    Reader(Mutex<Vec<u8>>),
}

/// Transfer of the bytes of one extent.
pub(crate) struct SpillTransfer {
    ticket: u64,
    kind: Kind,
    peer: DaemonIndex,
    until: Instant,
    owner: TransferOwner,
    /// The extent on the spill host.
    extent: Extent,
    /// Destination of received bytes, if they do not go directly into the arena.
    to: Option<(Arc<Devices>, Extent)>,
    /// First offset in the file.
    first: u64,
    job: JobWord,
    parts_left: AtomicUsize,
    failed: Mutex<Option<Errno>>,
}

/// Local memory of one part.
pub(crate) enum SpillMemory {
    /// A range of the arena, whose extent is protected.
    Arena { devices: Arc<Devices>, slot: u32, at: usize },
    /// Separate memory.
    Own(Segment),
}

impl SpillMemory {
    pub(crate) fn region(&self) -> (&Segment, usize) {
        match self {
            SpillMemory::Arena { devices, at, .. } => (devices.arena.segment(), *at),
            SpillMemory::Own(segment) => (segment, 0),
        }
    }
}

impl Drop for SpillMemory {
    fn drop(&mut self) {
        if let SpillMemory::Arena { devices, slot, .. } = self {
            devices.hazards.release(*slot, Protection::Holds);
        }
    }
}

/// A stripe size that divides a file so that this is one of its extents.
fn stripe_of(extent: &Extent) -> Option<u8> {
    let is_cut = |stripe: &u8| {
        let span = extent::at(extent.start, *stripe);
        (span.start, span.length_log2) == (extent.start, extent.length_log2)
    };
    (STRIPE_LOG2_MIN..=STRIPE_LOG2_MAX).find(is_cut)
}

impl SpillTransfer {
    /// Records the end of one part. After the last one, reports the result.
    pub(crate) fn part_ended(&self, inboxes: &Inboxes, part: Result<()>) {
        if let Err(errno) = part {
            let mut failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
            failed.get_or_insert(errno);
        }
        if self.parts_left.fetch_sub(1, AcqRel) != 1 {
            return;
        }
        let failed = *self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        let ticket = self.ticket;
        let note = match &self.owner {
            TransferOwner::Move => {
                WorkerMessage::Copied { ticket, outcome: failed.map_or(Ok(()), Err) }
            }
            TransferOwner::Reader(bytes) => {
                let bytes =
                    std::mem::take(&mut *bytes.lock().unwrap_or_else(PoisonError::into_inner));
                let outcome = failed.map_or(Ok(bytes), Err);
                WorkerMessage::ReadSpilled { ticket, extent: self.extent, outcome }
            }
        };
        inboxes.send_to_target(note);
    }

    /// Copies received bytes to their destination.
    fn take(&self, range: &Range, memory: &SpillMemory) -> Result<()> {
        let SpillMemory::Own(segment) = memory else { return Ok(()) };
        let mut came = vec![0; range.length as usize];
        segment.copy_out(0, &mut came)?;
        let at = range.offset.saturating_sub(self.first);
        match (&self.owner, &self.to) {
            (TransferOwner::Reader(bytes), _) => {
                let mut bytes = bytes.lock().unwrap_or_else(PoisonError::into_inner);
                let at = usize::try_from(at).map_err(|_| Errno::EIO)?;
                let place = bytes.get_mut(at..at + came.len()).ok_or(Errno::EIO)?;
                place.copy_from_slice(&came);
                Ok(())
            }
            (TransferOwner::Move, Some((devices, extent))) => {
                write_extent(devices, extent, at, &came)
            }
            (TransferOwner::Move, None) => Ok(()),
        }
    }

    /// A transfer of one part has ended.
    pub(crate) fn part_moved(
        self: Arc<SpillTransfer>,
        (bulk, inboxes): (&BulkTransfers, &Inboxes),
        range: Range,
        memory: BulkMemory,
        outcome: Outcome,
    ) {
        let part = match outcome {
            // The spill host does not have the extent: it held it completely or not at all.
            Outcome::Moved(count) if self.kind == Kind::Fetch && count != range.length => {
                Err(Errno::EIO)
            }
            Outcome::Moved(_) => match (self.kind, &memory) {
                (Kind::Fetch, BulkMemory::Spill(end)) => self.take(&range, end),
                _ => Ok(()),
            },
            Outcome::Refused(errno) => Err(errno),
            Outcome::Busy(_) if Instant::now() < self.until => {
                return self.start_part(bulk, range, memory);
            }
            Outcome::Busy(_) | Outcome::Lost | Outcome::Elsewhere(_) => Err(Errno::EIO),
        };
        drop(memory);
        self.part_ended(inboxes, part);
    }

    fn start_part(
        self: Arc<SpillTransfer>,
        bulk: &BulkTransfers,
        range: Range,
        memory: BulkMemory,
    ) {
        let (peer, kind, until) = (self.peer, self.kind, Some(self.until));
        let token = BulkToken::SpillTransfer { spill_transfer: self, range };
        bulk.transport.start(Transfer { peer, kind, range, memory, until, token });
    }

    /// Starts the transfers of `length` bytes in parts; `end` provides the local memory of each.
    fn start_parts(
        self,
        (bulk, inboxes): (&BulkTransfers, &Inboxes),
        (inode, stripe_log2): (Inode, u8),
        length: u64,
        end: impl Fn(u64, usize) -> Result<SpillMemory>,
    ) {
        let step = BOUNCE_BUFFER_BYTES as u64;
        let SpillTransfer { first, job, .. } = self;
        let spill_transfer = Arc::new(self);
        for from in (0..length).step_by(BOUNCE_BUFFER_BYTES) {
            let part = (length - from).min(step) as u32;
            let offset = first + from;
            let range = Range { inode, stripe_log2, offset, length: part, job };
            match end(from, part as usize) {
                Ok(end) => {
                    let memory = BulkMemory::Spill(end);
                    Arc::clone(&spill_transfer).start_part(bulk, range, memory);
                }
                Err(errno) => spill_transfer.part_ended(inboxes, Err(errno)),
            }
        }
    }
}

/// Extents to be released on spill hosts.
#[derive(Default)]
pub(crate) struct SpillReleases {
    /// By slot: place on the spill host, and the pause before a repetition.
    all: BTreeMap<u32, (u64, Duration)>,
    /// Slots whose release must be sent, with the time; the others are in flight.
    due: BTreeSet<(Instant, u32)>,
}

/// Copies the bytes of an extent to its spill host, or back.
pub(crate) fn move_spilled(
    shared: &Shared,
    devices: &Arc<Devices>,
    CopyJob { ticket, from, to, class }: CopyJob,
) {
    let goes = to.tier == Extent::SPILLED;
    let (there, here) = if goes { (to, from) } else { (from, to) };
    let Some(stripe_log2) = stripe_of(&there) else {
        let outcome = Err(Errno::EIO);
        return shared.inboxes.send_to_target(WorkerMessage::Copied { ticket, outcome });
    };
    let (peer, inode) = spill_host(shared.net.router.me, &there);
    let in_arena = here.tier == Extent::MEMORY;
    let wait = match goes {
        true if devices.redirects.load(Relaxed) => MIGRATE_TIME,
        true => STORE_TIME.min(shared.timing.timeout),
        false => shared.timing.timeout,
    };
    let spill_transfer = SpillTransfer {
        ticket,
        kind: if goes { Kind::Store } else { Kind::Fetch },
        peer,
        until: Instant::now() + wait,
        owner: TransferOwner::Move,
        extent: there,
        to: (!goes && !in_arena).then(|| (Arc::clone(devices), here)),
        first: there.start,
        job: if class == CopyClass::Frees { JobWord::URGENT } else { JobWord::NONE },
        parts_left: AtomicUsize::new(parts(there.length())),
        failed: Mutex::new(None),
    };
    spill_transfer.start_parts(
        (&shared.bulk, &shared.inboxes),
        (inode, stripe_log2),
        there.length(),
        |from, length| {
            let target = devices.target();
            let is_whole = !goes || target.is_valid(&here, from, length)?;
            if in_arena && is_whole {
                let at = usize::try_from(here.location + from).map_err(|_| Errno::EIO)?;
                shm::extents::admit(&here, devices.arena.len())?;
                devices.hazards.protect(here.slot, Protection::Holds);
                return Ok(SpillMemory::Arena {
                    devices: Arc::clone(devices),
                    slot: here.slot,
                    at,
                });
            }
            let segment = Segment::private(length)?;
            if goes {
                let mut bytes = vec![0; length];
                target.read_stable(&here, from, &mut bytes)?;
                segment.copy_in(0, &bytes)?;
            }
            Ok(SpillMemory::Own(segment))
        },
    );
}

/// Reads bytes of a spilled extent, for a request that waits.
///
/// # Errors
/// `EIO`: the extent is not one of a file.
pub(crate) fn read_spilled(
    shared: &Shared,
    ticket: u64,
    extent: &Extent,
    (within, length): (u64, u32),
) -> Result<()> {
    let stripe_log2 = stripe_of(extent).ok_or(Errno::EIO)?;
    let (peer, inode) = spill_host(shared.net.router.me, extent);
    let spill_transfer = SpillTransfer {
        ticket,
        kind: Kind::Fetch,
        peer,
        until: Instant::now() + shared.timing.timeout,
        owner: TransferOwner::Reader(Mutex::new(vec![0; length as usize])),
        extent: *extent,
        to: None,
        first: extent.start + within,
        job: JobWord::NONE,
        parts_left: AtomicUsize::new(parts(length.into())),
        failed: Mutex::new(None),
    };
    spill_transfer.start_parts(
        (&shared.bulk, &shared.inboxes),
        (inode, stripe_log2),
        length.into(),
        |_, length| Segment::private(length).map(SpillMemory::Own),
    );
    Ok(())
}

impl SpillReleases {
    /// Queues the release of a spilled extent.
    pub(crate) fn begin_release(&mut self, slot: u32, place: u64) {
        self.all.insert(slot, (place, PAUSE_MIN));
        self.due.insert((Instant::now(), slot));
    }

    /// A spill host answered a release. True if the extent is released; otherwise the release is
    /// repeated later.
    pub(crate) fn note_answer(&mut self, net: &Network, slot: u32, answer: PartAnswer) -> bool {
        let SpillReleases { all, due } = self;
        let Some((place, pause)) = all.get_mut(&slot) else { return false };
        let micros = match answer {
            PartAnswer::Ended(Ok(())) => {
                all.remove(&slot);
                return true;
            }
            PartAnswer::Again(micros) => Duration::from_micros(micros),
            PartAnswer::Ended(Err(errno)) => {
                let spill_host = spill_host_of(net, *place).0;
                tracing::warn!(spill_host = spill_host.0, %errno, "spill host did not release extent");
                PAUSE_MAX
            }
        };
        due.insert((Instant::now() + micros.clamp(*pause, PAUSE_MAX), slot));
        *pause = (*pause * 2).min(PAUSE_MAX);
        false
    }

    /// Sends releases that are due. Returns the microseconds until the next one.
    pub(crate) fn tick(&mut self, shared: &Shared) -> Option<u64> {
        let SpillReleases { all, due } = self;
        let now = Instant::now();
        while let Some(&(at, slot)) = due.first() {
            if at > now {
                return Some(micros_until(at));
            }
            due.pop_first();
            let Some(&(place, _)) = all.get(&slot) else { continue };
            let (spill_host, inode) = spill_host_of(&shared.net, place);
            let header = shared.net.target_header(spill_host);
            let inodes = inode.0.to_le_bytes();
            let bytes = encode_request(&header, &Request::Remove { inodes: &inodes });
            shared.hand_to_peer(spill_host, &bytes, ReplyTo::SpilledReleased { slot });
        }
        None
    }
}

fn spill_host_of(net: &Network, place: u64) -> (DaemonIndex, Inode) {
    let extent =
        Extent { start: 0, slot: 0, location: place, length_log2: 0, tier: Extent::SPILLED };
    spill_host(net.router.me, &extent)
}

fn parts(length: u64) -> usize {
    length.div_ceil(BOUNCE_BUFFER_BYTES as u64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_starts_do_not_meet_whatever_the_clock_says() {
        let firsts: Vec<u64> = (1..100).map(first_number).collect();
        assert!(firsts.windows(2).all(|pair| pair[1] - pair[0] >= 1 << NUMBER_BITS));
    }
}

//! Bulk transfers that this daemon starts: those that clients ask for, pushed writes, and the memory
//! at this end of any transfer. Transfers that other daemons start are answered in
//! `bulk_endpoint`.

use crate::sessions::client_session::ClientSession;
use crate::shared::reply::ReplyTo;
use crate::shares::inbox::StartTicket;
use crate::target::tiering::spill::{SpillMemory, SpillTransfer};
use crate::target::{Devices, Protection};
use crate::threads::bulk_endpoint::BulkEndpoint;
use fabric::bulk::BulkTransport;
use gateway::Router;
use net::bulk::{Fabric as _, Kind, Memory, Range, Transfer};
use shm::Segment;
use shm::bounce::Pushed;
use shm::host::{HostSegment, PushEpoch, VnodeIndex};
use std::sync::Arc;
use std::sync::atomic::AtomicU8;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::{Duration, Instant};
use wire::errno::{Errno, Result};
use wire::reply::Extent;
use wire::{DaemonIndex, Inode, JobWord, Request};

/// Maximum number of bulk threads.
const LANE_COUNT_MAX: usize = 4;
/// Number of bulk threads: half the CPUs, because clients copy at the same time.
pub(crate) fn bulk_lane_count() -> usize {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    (processors / 2).clamp(1, LANE_COUNT_MAX)
}

/// Memory at this end of a transfer.
pub(crate) enum BulkMemory {
    /// A client's bounce buffer.
    Buffer { client: Arc<ClientSession>, buffer: u8, at: usize, fetched_log2: AtomicU8 },
    /// A range of the arena, whose extent is protected.
    Arena { devices: Arc<Devices>, slot: u32, at: usize, fetched_log2: u8, why: Protection },
    /// Separate memory for a range of a protected extent.
    Copy(CopiedRange),
    /// A part of an extent that is moved to a spill host, or back.
    Spill(SpillMemory),
}

/// Memory for a range of an extent, which is protected.
pub(crate) struct CopiedRange {
    pub(crate) devices: Arc<Devices>,
    pub(crate) extent: Extent,
    /// Offset of the range in the extent.
    pub(crate) within: u64,
    pub(crate) segment: Segment,
    pub(crate) fetched_log2: u8,
    pub(crate) why: Protection,
}

impl BulkMemory {
    fn of_buffer(client: &Arc<ClientSession>, buffer: u8, at: usize) -> BulkMemory {
        let fetched_log2 = AtomicU8::new(0);
        BulkMemory::Buffer { client: Arc::clone(client), buffer, at, fetched_log2 }
    }
}

impl Memory for BulkMemory {
    fn region(&self) -> (&Segment, usize) {
        match self {
            BulkMemory::Buffer { client, at, .. } => (client.slots.bounce_buffers().segment(), *at),
            BulkMemory::Arena { devices, at, .. } => (devices.arena.segment(), *at),
            BulkMemory::Copy(CopiedRange { segment, .. }) => (segment, 0),
            BulkMemory::Spill(end) => end.region(),
        }
    }

    fn fetched_log2(&self) -> u8 {
        match self {
            BulkMemory::Buffer { fetched_log2, .. } => fetched_log2.load(Relaxed),
            BulkMemory::Arena { fetched_log2, .. }
            | BulkMemory::Copy(CopiedRange { fetched_log2, .. }) => *fetched_log2,
            BulkMemory::Spill(_) => 0,
        }
    }

    fn note_fetched(&self, log2: u8) {
        if let BulkMemory::Buffer { fetched_log2, .. } = self {
            fetched_log2.store(log2, Relaxed);
        }
    }
}

impl Drop for BulkMemory {
    fn drop(&mut self) {
        match self {
            BulkMemory::Buffer { client, buffer, .. } => {
                client.slots.bounce_buffers().give_back(*buffer)
            }
            BulkMemory::Arena { devices, slot, why, .. } => devices.hazards.release(*slot, *why),
            BulkMemory::Copy(CopiedRange { devices, extent, why, .. }) => {
                devices.hazards.release(extent.slot, *why);
            }
            BulkMemory::Spill(_) => {}
        }
    }
}

/// Recipient of the result of a transfer that this daemon started.
pub(crate) enum BulkToken {
    /// A request that waits for its reply.
    Answer(AwaitedTransfer),
    /// As `Answer`, of the target to which what is read has migrated.
    Redirected(AwaitedTransfer),
    /// A pushed write: the vnode of the file, and the transfer itself for a retry.
    Pushed(PushedWrite),
    /// A part of an extent that is moved to a spill host, or back.
    SpillTransfer { spill_transfer: Arc<SpillTransfer>, range: Range },
}

/// A transfer whose request waits for its reply.
pub(crate) struct AwaitedTransfer {
    pub(crate) to: ReplyTo,
    /// Its place among requests that share what there is.
    pub(crate) ticket: Option<StartTicket>,
    /// The target of the file.
    pub(crate) target: DaemonIndex,
    pub(crate) range: Range,
}

/// A write that a client pushed.
pub(crate) struct PushedWrite {
    /// Where it is counted.
    pub(crate) vnode: (VnodeIndex, PushEpoch),
    pub(crate) peer: DaemonIndex,
    pub(crate) range: Range,
    pub(crate) until: Instant,
    /// Its place among requests that share what there is.
    pub(crate) ticket: Option<StartTicket>,
}

/// A transfer requested by a client.
pub(crate) struct ClientTransfer {
    kind: Kind,
    range: Range,
    memory: BulkMemory,
}

/// The transfer that an admitted request asks for, if any.
pub(crate) fn client_transfer(
    client: &Arc<ClientSession>,
    request: &Request<'_>,
    job: JobWord,
) -> Option<ClientTransfer> {
    let (kind, range, buffer) = match *request {
        Request::Fetch { inode, stripe_log2, offset, length, buffer } => {
            (Kind::Fetch, Range { inode, stripe_log2, offset, length, job }, buffer)
        }
        Request::Store { inode, stripe_log2, offset, length, buffer, .. } => {
            (Kind::Store, Range { inode, stripe_log2, offset, length, job }, buffer)
        }
        _ => return None,
    };
    let at = client.slots.bounce_buffers().offset_of(buffer, range.length as usize).ok()?;
    let memory = BulkMemory::of_buffer(client, buffer, at);
    Some(ClientTransfer { kind, range, memory })
}

/// Transfers that this daemon starts.
pub(crate) struct BulkTransfers {
    /// Streams to and from other daemons.
    pub(crate) transport: BulkTransport<BulkEndpoint>,
    me: DaemonIndex,
    daemons_most: u16,
    /// Bound on every wait of a client.
    timeout: Duration,
}

impl BulkTransfers {
    /// Transfers of the daemon that `router` is of.
    pub(crate) fn new(
        transport: BulkTransport<BulkEndpoint>,
        router: &Router,
        timeout: Duration,
    ) -> BulkTransfers {
        let (me, daemons_most) = (router.me, router.daemons_most());
        BulkTransfers { transport, me, daemons_most, timeout }
    }

    /// Starts a transfer; its result is the reply to `to`.
    pub(crate) fn start_transfer(
        &self,
        peer: DaemonIndex,
        end: ClientTransfer,
        to: ReplyTo,
        ticket: Option<StartTicket>,
    ) {
        let ClientTransfer { kind, range, memory } = end;
        let token = BulkToken::Answer(AwaitedTransfer { to, ticket, target: peer, range });
        self.transport.start(Transfer { peer, kind, range, memory, until: None, token });
    }

    /// Starts a write that a client pushed with a bounce buffer, unless it was started before. The
    /// client counted it in the vnode; it is uncounted at its end, whatever the result.
    pub(crate) fn start_push(
        &self,
        host: &HostSegment,
        client: &Arc<ClientSession>,
        (buffer, job): (u8, JobWord),
        ticket: Option<StartTicket>,
    ) {
        let bounce_buffers = client.slots.bounce_buffers();
        let Some((pushed, epoch)) = bounce_buffers.begin_moving(buffer) else { return };
        let Pushed { inode, vnode, target, stripe_log2, offset, length, .. } = pushed;
        let range = Range { inode, stripe_log2, offset, length, job };
        // One of which this daemon does not know yet is as one that is down.
        let is_remote = target != self.me && target.0 < self.daemons_most;
        match bounce_buffers.offset_of(buffer, length as usize) {
            Ok(at) if is_remote && range.is_possible() => {
                let memory = BulkMemory::of_buffer(client, buffer, at);
                let until = Instant::now() + self.timeout;
                let vnode = (vnode, epoch);
                let write = PushedWrite { vnode, peer: target, range, until, ticket };
                self.push_write(write, memory);
            }
            _ => {
                bounce_buffers.begin_ending(buffer);
                end_push(host, inode, (vnode, epoch), Err(Errno::EINVAL));
                bounce_buffers.give_back(buffer);
            }
        }
    }

    /// Starts a pushed write, or starts it again.
    pub(crate) fn push_write(&self, write: PushedWrite, memory: BulkMemory) {
        let PushedWrite { peer, range, until, .. } = write;
        let token = BulkToken::Pushed(write);
        let (kind, until) = (Kind::Store, Some(until));
        self.transport.start(Transfer { peer, kind, range, memory, until, token });
    }
}

/// Uncounts a pushed write.
pub(crate) fn end_push(
    host: &HostSegment,
    inode: Inode,
    (vnode, epoch): (VnodeIndex, PushEpoch),
    outcome: Result<()>,
) {
    if let Err(errno) = outcome {
        tracing::warn!(inode = inode.0, %errno, "pushed write failed");
    }
    // The vnode may belong to another file now: a process closed this one without waiting.
    if let Ok(row) = host.vnode(vnode)
        && row.inode.load(SeqCst) == inode.0
    {
        row.end_push(epoch, outcome);
    }
}

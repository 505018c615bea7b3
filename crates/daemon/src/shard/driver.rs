//! Drives a `metadata::Service`: steps the core and performs its effects, in their order.
//!
//! Steps are started by `local_ops` (operations that clients completed in shared memory), `requests`
//! (requests and messages) and `ticks` (deadlines). Effects are performed in `effects`.

use crate::sessions::client_ids::ClientIdQueries;
use crate::shard::clock::Clock;
use crate::shard::effects::ShardPerformers;
use crate::shard::host_view::{LiveHostView, NoHostView, target_presence};
use crate::shard::local_ops::LocalOpState;
use crate::shard::log::{ShardLog, slice_of};
use crate::shard::orphans::OrphanScan;
use crate::shared::Shared;
use crate::shared::owners::EarlierOwner;
use crate::shared::reply::ReplyTo;
use cluster::shipping::Lane;
use metadata::{Effect, Input, Service, SnapshotCursor};
use shm::index::Index;
use store::{For, Journal};
use wire::errno::Result;

/// A service with its clock and the performers of its effects.
pub(crate) struct Shard {
    /// Number of its worker, or of the service if this daemon took it over (`owners::Numbers`).
    pub(crate) worker: usize,
    pub(crate) service: Service,
    pub(crate) performers: ShardPerformers,
    pub(crate) clock: Clock,
    /// State of local operations.
    pub(crate) local_ops: LocalOpState,
    /// Files without a name.
    pub(crate) orphans: OrphanScan,
    /// Queries about ended sessions.
    pub(crate) client_id_queries: ClientIdQueries,
    effects: Vec<Effect>,
}

impl Shard {
    /// The service of a worker, with its index and its log.
    pub(crate) fn new(worker: usize, service: Service, index: Index, log: ShardLog) -> Shard {
        Shard::with(worker, service, ShardPerformers::new(worker, index, log))
    }

    /// A service that this daemon took over in this epoch, with its log. Programs have no access to it
    /// but by requests, also those of this host.
    pub(crate) fn taken_over(number: usize, service: Service, log: ShardLog, epoch: u64) -> Shard {
        Shard::with(number, service, ShardPerformers::taken_over(number, log, epoch))
    }

    /// Of a worker's service in this epoch of its owners, where services move.
    pub(crate) fn in_epoch(mut self, epoch: u64, earlier: EarlierOwner) -> Shard {
        self.performers = self.performers.in_epoch(epoch);
        self.local_ops.is_after_another = earlier == EarlierOwner::Another;
        self
    }

    /// Of a service that nobody follows, in an instance with followers.
    pub(crate) fn alone(mut self) -> Shard {
        self.performers = self.performers.alone();
        self
    }

    fn with(worker: usize, service: Service, performers: ShardPerformers) -> Shard {
        Shard {
            worker,
            service,
            performers,
            clock: Clock::default(),
            local_ops: LocalOpState::default(),
            orphans: OrphanScan::default(),
            client_id_queries: ClientIdQueries::default(),
            effects: Vec::new(),
        }
    }

    /// True if this daemon took the service over.
    pub(crate) const fn is_taken_over(&self) -> bool {
        self.performers.index.is_none()
    }

    /// Registers the destination of a reply.
    pub(crate) fn ticket(&mut self, to: ReplyTo) -> u64 {
        self.performers.tickets.register_reply(to)
    }

    /// The service carries out operations: its load.
    pub(crate) fn note_operations(&self, shared: &Shared, count: u64) {
        if let Some(owners) = &shared.net.owners {
            owners.note_operations(self.worker, count);
        }
    }

    /// Reserves log space for the records of one step.
    pub(crate) fn reserve_step(&mut self, purpose: For) -> Result<()> {
        self.reserve_more(0, purpose)
    }

    /// As `reserve`, with `more` extra bytes.
    pub(crate) fn reserve_more(&mut self, more: u64, purpose: For) -> Result<()> {
        let file_count = self.service.inode_count();
        self.performers.log.reserve_records(more, purpose, file_count)
    }

    /// A step while the gate is closed, or one that local operations do not affect. Its replies
    /// wait for `send_replies`.
    pub(crate) fn step_closed(&mut self, shared: &Shared, input: Input<'_>) {
        let Shard { service, performers, .. } = self;
        let mut effects = std::mem::take(&mut self.effects);
        service.grow(shared.net.router.daemon_count());
        let (host, ledger, units) = (&shared.host.segment, &shared.ledger, shared.units.as_ref());
        let members = shared.members.as_ref();
        let presence = &|target| target_presence(shared, target);
        let (now, ShardPerformers { index, tickets, .. }) = (self.clock.now(), &*performers);
        match index {
            Some(index) => {
                let mut host_view =
                    LiveHostView { index, host, ledger, tickets, units, members, presence };
                service.step(now, input, &mut host_view, &mut effects);
            }
            None => {
                let mut host_view = NoHostView { tickets, units, members, presence };
                service.step(now, input, &mut host_view, &mut effects);
            }
        }
        for effect in effects.drain(..) {
            if let Some(buffer) = performers.perform(shared, effect) {
                service.recycle(buffer);
            }
        }
        self.effects = effects;
    }

    /// The service of a worker, in this epoch of its owners, before programs of this host see it: the
    /// memory of the host takes up what other owners did.
    pub(crate) fn meet_host(&mut self, shared: &Shared, epoch: u64) {
        let Shard { service, performers: ShardPerformers { index, tickets, .. }, .. } = self;
        let (host, ledger) = (&shared.host.segment, &shared.ledger);
        if let Some(index) = index {
            let (units, members) = (shared.units.as_ref(), shared.members.as_ref());
            let presence = &|target| target_presence(shared, target);
            let host_view = LiveHostView { index, host, ledger, tickets, units, members, presence };
            service.meet_host(epoch, &host_view);
        }
    }

    /// Sends the replies and host messages of the last steps.
    pub(crate) fn send_replies(&mut self, shared: &Shared) {
        let Shard { service, performers, .. } = self;
        performers.send_outgoing(shared, |buffer| service.recycle(buffer));
    }

    /// Sends what the last steps could not, since the lease had ended.
    pub(crate) fn send_unsent(&mut self, shared: &Shared) {
        if self.performers.has_unsent() {
            self.send_replies(shared);
        }
    }

    /// This daemon owns the service no more: requests that wait are sent again, to the next owner.
    pub(crate) fn give_up(&mut self, shared: &Shared) {
        self.performers.give_up(shared);
    }

    /// The log, after `end`.
    pub(crate) fn into_journal(self) -> Journal {
        self.performers.log.into_journal()
    }

    /// Followers have everything up to a ticket.
    pub(crate) fn replicated(&mut self, shared: &Shared, ticket: u64) {
        let Shard { service, performers, .. } = self;
        performers.send_replicated(shared, ticket, |buffer| service.recycle(buffer));
    }

    /// Ships a slice of a snapshot to the followers of a lane.
    pub(crate) fn ship_slice(&self, shared: &Shared, lane: Lane, cursor: SnapshotCursor) {
        let Some(shipments) = shared.shipments() else { return };
        let (batch, next) = slice_of(&self.service, cursor);
        shipments.slice(self.worker, lane, batch, next);
        if let Some(members) = &shared.members {
            members.wake();
        }
    }
}

//! Performs the effects of a `metadata::Service`. Each part of `ShardPerformers` owns the state of one
//! kind of effects; nothing here steps the core.
//!
//! A record is in the log before anything that it covers becomes visible: in the index, in a reply, to
//! a peer. Replies, and messages to hosts, are collected and sent after the step; where followers must
//! have a change before it is seen, all that leaves the service is, and is held (`replication`).

use crate::members::shipments::Shipments;
use crate::shard::held_truncates::{HeldTruncate, HeldTruncates};
use crate::shard::jobs::Jobs;
use crate::shard::log::ShardLog;
use crate::shard::removals::Removals;
use crate::shard::replication::{Outgoing, Replication, leaves_service, shown_index};
use crate::shard::tickets::Tickets;
use crate::shared::Shared;
use crate::shared::inbox::WorkerMessage;
use crate::shared::network::message;
use crate::shared::reply::{ReplyTo, encode_reply};
use config::control::SlowTarget;
use metadata::{Effect, IndexOp};
use net::Urgency;
use shm::index::Index;
use std::time::Instant;
use wire::Reply;
use wire::attributes::flag;
use wire::quota::Account;

/// Performers of the effects of a service.
pub(crate) struct ShardPerformers {
    worker: usize,
    /// The index that clients read.
    pub(crate) index: Index,
    /// The log.
    pub(crate) log: ShardLog,
    /// Destinations of replies.
    pub(crate) tickets: Tickets,
    /// Requests to targets that a client waits for.
    pub(crate) jobs: Jobs,
    /// Truncates that wait for bytes in flight.
    pub(crate) held_truncates: HeldTruncates,
    /// Requests to targets to free space.
    pub(crate) removals: Removals,
    /// Messages that wait for followers.
    replication: Replication,
    /// Messages of the current step.
    outgoing: Vec<Outgoing>,
}

impl ShardPerformers {
    /// Nothing is pending.
    pub(crate) fn new(worker: usize, index: Index, log: ShardLog) -> ShardPerformers {
        ShardPerformers {
            worker,
            index,
            log,
            tickets: Tickets::default(),
            jobs: Jobs::default(),
            held_truncates: HeldTruncates::default(),
            removals: Removals::default(),
            replication: Replication::default(),
            outgoing: Vec::new(),
        }
    }

    /// Performs one effect. Returns a buffer that the service may use again.
    pub(crate) fn perform(&mut self, shared: &Shared, effect: Effect) -> Option<Vec<u8>> {
        match effect {
            Effect::Log(bytes) => {
                self.log.append_records(&bytes);
                self.replication.logged(shared, self.worker, &bytes);
                return Some(bytes);
            }
            Effect::Index(operation) if is_always(shared) => {
                self.perform_index(shown_index(operation));
            }
            Effect::Index(operation) => self.perform_index(operation),
            Effect::Reply { ticket, bytes } => match self.tickets.take_destination(ticket) {
                Some(to) => self.outgoing.push(Outgoing::Reply(to, bytes)),
                None => return Some(bytes),
            },
            Effect::Host { to, bytes } => {
                let framed = [&[message::SIZES], &bytes[..]].concat();
                self.outgoing.push(Outgoing::HostMessage(to, framed));
            }
            effect if is_always(shared) && leaves_service(&effect) => {
                self.outgoing.push(Outgoing::Effect(effect));
            }
            effect => self.perform_now(shared, effect),
        }
        None
    }

    /// Performs an effect that waits for nothing.
    fn perform_now(&mut self, shared: &Shared, effect: Effect) {
        match effect {
            Effect::Data { token, inode, layout, op } => {
                if layout.flags & flag::POSIX != 0 && shared.host.segment.has_transfers(inode) {
                    let until = Instant::now() + shared.timing.timeout;
                    let truncate = HeldTruncate { token, inode, layout, op, until };
                    self.held_truncates.hold_truncate(truncate);
                } else {
                    self.jobs.start_job(shared, self.worker, (token, inode), &layout, op);
                }
            }
            Effect::ReadBackingDir { directory, place } => match &shared.backing {
                Some(backing) => backing.list(self.worker, directory, place),
                None => tracing::error!("there is no backing store"),
            },
            Effect::Probe { key, place, name } => {
                if let Some(backing) = &shared.backing {
                    backing.probe(self.worker, key, place, name);
                }
            }
            Effect::Remove { token, files } => {
                let count = shared.net.router.map.daemon_count();
                if self.removals.gather(Instant::now(), count, token, &files) {
                    self.removals.send_due(shared, self.worker);
                }
            }
            Effect::TargetHealth { .. } => note_health(shared, self.worker, effect),
            effect => perform_on_shared(shared, effect),
        }
    }

    fn perform_index(&self, operation: IndexOp) {
        match operation {
            IndexOp::PutEntry { key, inode, mode } => self.index.put_entry(key, inode, mode),
            IndexOp::PutAbsent { directory, key } => self.index.put_absent(directory, key),
            IndexOp::ForgetEntry { key } => self.index.forget_entry(key),
            IndexOp::MarkComplete { directory } => self.index.mark_complete(directory),
            IndexOp::UnmarkComplete { directory } => self.index.unmark_complete(directory),
            IndexOp::PutInode(attributes) => self.index.put_inode(&attributes),
            IndexOp::ForgetInode(inode) => self.index.forget_inode(inode),
        }
    }

    /// Starts truncates whose earlier writes have arrived. Returns the poll interval, if any still
    /// wait.
    pub(crate) fn start_held_truncates(&mut self, shared: &Shared) -> Option<u64> {
        for truncate in self.held_truncates.take_ready(&shared.host.segment) {
            let HeldTruncate { token, inode, layout, op, .. } = truncate;
            self.jobs.start_job(shared, self.worker, (token, inode), &layout, op);
        }
        self.held_truncates.poll_micros()
    }

    /// Sends the replies and host messages of the last steps. Passes the buffers of replies to
    /// `recycle`.
    pub(crate) fn send_outgoing(&mut self, shared: &Shared, mut recycle: impl FnMut(Vec<u8>)) {
        let mut outgoing = std::mem::take(&mut self.outgoing);
        let is_always = is_always(shared);
        for one in outgoing.drain(..) {
            let due =
                if is_always { self.replication.hold(shared, self.worker, one) } else { Some(one) };
            if let Some(one) = due {
                self.send(shared, one, &mut recycle);
            }
        }
        self.outgoing = outgoing;
    }

    fn send(&mut self, shared: &Shared, one: Outgoing, recycle: &mut impl FnMut(Vec<u8>)) {
        match one {
            Outgoing::Reply(to, bytes) => {
                shared.answer(to, &bytes);
                recycle(bytes);
            }
            Outgoing::HostMessage(to, bytes) => shared.net.send(to, &bytes, Urgency::Now),
            Outgoing::Effect(effect) => self.perform_now(shared, effect),
        }
    }

    /// Answers a request once followers have all records so far.
    pub(crate) fn answer_when_replicated(&mut self, shared: &Shared, to: ReplyTo) {
        let done = Outgoing::Reply(to, encode_reply(&Reply::Done {}, 0));
        if let Some(one) = self.replication.hold(shared, self.worker, done) {
            self.send(shared, one, &mut drop);
        }
    }

    /// Sends what waited for followers, which have everything up to a ticket.
    pub(crate) fn send_replicated(
        &mut self,
        shared: &Shared,
        ticket: u64,
        mut recycle: impl FnMut(Vec<u8>),
    ) {
        self.replication.replicated(ticket);
        while let Some(one) = self.replication.next_due(shared) {
            self.send(shared, one, &mut recycle);
        }
    }
}

/// Whether followers have a change before it is seen elsewhere.
fn is_always(shared: &Shared) -> bool {
    shared.shipments().is_some_and(Shipments::is_always)
}

/// Effects on shared memory, and messages to other services.
fn perform_on_shared(shared: &Shared, effect: Effect) {
    let host = &shared.host.segment;
    match effect {
        Effect::SizeReported { inode, end } => host.note_reported(inode, end),
        Effect::BeginTruncate { inode, size } => host.begin_truncate(inode, size),
        Effect::TruncateInline { inode, size } => {
            host.begin_truncate(inode, size);
            host.end_truncate(inode);
        }
        Effect::UncountUse { inode, less } => host.remove_remote_use(inode, less),
        Effect::GrantNumbers { shard, first, end } => {
            shared.host.op_log.grant_numbers(shard, first, end);
        }
        Effect::Peer { to, bytes } => shared.net.send_to_shard(&shared.inboxes, to, bytes),
        Effect::Holder { to, bytes } => {
            let framed = [&[message::LEASES], &bytes[..]].concat();
            shared.net.send(to, &framed, Urgency::Now);
        }
        Effect::Service { to, bytes } => {
            shared.net.send_to_service(&shared.inboxes, to, bytes);
        }
        Effect::Count => shared.inboxes.send_to_target(WorkerMessage::Count),
        Effect::Allow { account, allowance, denied } => {
            shared.ledger.set_allowance(account, allowance);
            let account = Account(account);
            shared.inboxes.send_to_target(WorkerMessage::Allowed { account, denied });
        }
        Effect::ReportTransfers { is_requested } => {
            if let Some(activity) = &shared.host.activity {
                activity.set_reporting(is_requested);
            }
        }
        Effect::PoolTargets { id, targets } => shared.shares.set_pool(id, targets),
        other => tracing::error!(?other, "unhandled effect"),
    }
}

fn note_health(shared: &Shared, worker: usize, effect: Effect) {
    let Effect::TargetHealth { id, pool, target, is_slow, rate, peers } = effect else { return };
    let pool = String::from_utf8_lossy(&pool).into_owned();
    let target = u16::try_from(target).unwrap_or(u16::MAX);
    if !is_slow {
        return shared.slow_targets.returned(worker, (id, &pool), target);
    }
    let found = SlowTarget { pool, target, bytes_per_second: rate, peers_bytes_per_second: peers };
    shared.slow_targets.found(worker, id, found);
}

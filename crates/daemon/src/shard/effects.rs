//! Performs the effects of a `metadata::Service`. Each part of `ShardPerformers` owns the state of one
//! kind of effects; nothing here steps the core.
//!
//! A record is in the log before anything that it covers becomes visible: in the index, in a reply, to
//! a peer. Replies, and messages to hosts, are collected and sent after the step; where followers must
//! have a change before it is seen, all that leaves the service is, and is held (`replication`).
//!
//! A service that this daemon took over has no index and changes nothing of the host: it tells this host
//! what it tells others, and such messages are taken up here (`tell_host`, `tell_holder`).

use crate::members::shipments::Shipments;
use crate::shard::held_truncates::{HeldTruncate, HeldTruncates};
use crate::shard::jobs::Jobs;
use crate::shard::log::ShardLog;
use crate::shard::removals::Removals;
use crate::shard::replication::{Outgoing, Replication, leaves_service, must_wait, shown_index};
use crate::shard::tickets::{Owed, Tickets};
use crate::shared::Shared;
use crate::shared::inbox::WorkerMessage;
use crate::shared::network::message;
use crate::shared::reply::{LOST_MICROS, ReplyTo, encode_reply};
use config::control::SlowTarget;
use metadata::{Effect, IndexOp};
use net::Urgency;
use shm::index::Index;
use std::time::Instant;
use wire::attributes::flag;
use wire::quota::Account;
use wire::{DaemonIndex, Reply};

/// Performers of the effects of a service.
pub(crate) struct ShardPerformers {
    worker: usize,
    /// The index that clients read; `None`: the service was taken over.
    pub(crate) index: Option<Index>,
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
        ShardPerformers::with((worker, Some(index)), log, Replication::default())
    }

    /// The same for a service that was taken over in this epoch.
    pub(crate) fn taken_over(number: usize, log: ShardLog, epoch: u64) -> ShardPerformers {
        ShardPerformers::with((number, None), log, Replication::default()).in_epoch(epoch)
    }

    /// Of a service in this epoch of its owners, where services move.
    pub(crate) fn in_epoch(mut self, epoch: u64) -> ShardPerformers {
        (self.replication, self.jobs) = (Replication::in_epoch(epoch), Jobs::in_epoch(epoch));
        self
    }

    /// Of a service that nobody follows, in an instance with followers.
    pub(crate) fn alone(mut self) -> ShardPerformers {
        self.replication = Replication::alone();
        self
    }

    fn with(
        (worker, index): (usize, Option<Index>),
        log: ShardLog,
        replication: Replication,
    ) -> ShardPerformers {
        ShardPerformers {
            worker,
            index,
            log,
            replication,
            tickets: Tickets::default(),
            jobs: Jobs::default(),
            held_truncates: HeldTruncates::default(),
            removals: Removals::default(),
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
            effect if self.index.is_none() && is_of_host(&effect) => {}
            Effect::Index(operation) if is_always(shared) => {
                self.perform_index(shown_index(operation));
            }
            Effect::Index(operation) => self.perform_index(operation),
            Effect::Reply { ticket, bytes } => match self.tickets.take_owed(ticket) {
                Some(Owed { to, is_of_lock: false }) => {
                    self.outgoing.push(Outgoing::Reply(to, bytes));
                }
                Some(Owed { to, is_of_lock: true }) => {
                    self.outgoing.push(Outgoing::LockReply(to, bytes));
                }
                None => return Some(bytes),
            },
            Effect::Host { to, bytes } => {
                let framed = [&[message::SIZES], &bytes[..]].concat();
                self.outgoing.push(Outgoing::HostMessage(to, framed));
            }
            effect if is_ahead_of_other_hosts(shared) && leaves_service(&effect) => {
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
                // Of one that was taken over, this host has said that its bytes have arrived.
                let may_write = self.index.is_some() && layout.flags & flag::POSIX != 0;
                if may_write && shared.host.segment.has_transfers(inode) {
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
                let router = &shared.net.router;
                let counts = (router.map.first_count(), router.daemon_count());
                if self.removals.gather(Instant::now(), counts, token, &files) {
                    self.removals.send_due(shared, self.worker);
                }
            }
            Effect::TargetHealth { .. } => note_health(shared, self.worker, effect),
            Effect::LeaveTarget { target, others } => tell_slow(shared, target, &others),
            effect => perform_on_shared(shared, effect),
        }
    }

    fn perform_index(&self, operation: IndexOp) {
        let Some(index) = &self.index else { return };
        match operation {
            IndexOp::PutEntry { key, inode, mode } => index.put_entry(key, inode, mode),
            IndexOp::PutAbsent { directory, key } => index.put_absent(directory, key),
            IndexOp::ForgetEntry { key } => index.forget_entry(key),
            IndexOp::MarkComplete { directory } => index.mark_complete(directory),
            IndexOp::UnmarkComplete { directory } => index.unmark_complete(directory),
            IndexOp::PutInode(attributes) => index.put_inode(&attributes),
            IndexOp::ForgetInode(inode) => index.forget_inode(inode),
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
        if !shared.net.has_lease(self.worker) {
            // Another daemon may go on with the service by now: it says what was done, or this one later.
            return;
        }
        let mut outgoing = std::mem::take(&mut self.outgoing);
        for one in outgoing.drain(..) {
            let due = match shared.shipments() {
                Some(shipments) if must_wait(shipments, &one) => {
                    self.replication.hold(shared, self.worker, one)
                }
                _ => Some(one),
            };
            if let Some(one) = due {
                self.send(shared, one, &mut recycle);
            }
        }
        self.outgoing = outgoing;
    }

    /// Whether something waits for the lease.
    pub(crate) const fn has_unsent(&self) -> bool {
        !self.outgoing.is_empty()
    }

    fn send(&mut self, shared: &Shared, one: Outgoing, recycle: &mut impl FnMut(Vec<u8>)) {
        match one {
            Outgoing::Reply(to, bytes) | Outgoing::LockReply(to, bytes) => {
                shared.answer(to, &bytes);
                recycle(bytes);
            }
            Outgoing::HostMessage(to, bytes) => tell_host(shared, to, &bytes),
            Outgoing::Effect(effect) => self.perform_now(shared, effect),
        }
    }

    /// Requests that are not answered are to be sent again.
    pub(crate) fn give_up(&mut self, shared: &Shared) {
        let unsent =
            std::mem::take(&mut self.outgoing).into_iter().filter_map(Outgoing::destination);
        let waiting = self.tickets.take_all().chain(self.replication.take_replies());
        waiting.chain(unsent).for_each(|to| shared.busy(to, LOST_MICROS));
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

/// Whether followers have a change before another host sees it.
fn is_ahead_of_other_hosts(shared: &Shared) -> bool {
    shared.shipments().is_some_and(Shipments::is_ahead_of_other_hosts)
}

/// Whether an effect is on the memory of the host whose programs have access to the service.
const fn is_of_host(effect: &Effect) -> bool {
    matches!(
        effect,
        Effect::Index(_)
            | Effect::SizeReported { .. }
            | Effect::BeginTruncate { .. }
            | Effect::TruncateInline { .. }
            | Effect::UncountUse { .. }
            | Effect::GrantNumbers { .. }
    )
}

/// Sends a framed message to the first daemon of a host; one to this daemon is taken up at once.
fn tell_host(shared: &Shared, to: DaemonIndex, framed: &[u8]) {
    if to != shared.net.router.me {
        return shared.net.send(to, framed, Urgency::Now);
    }
    let bytes = framed.get(1..).unwrap_or_default();
    if shared.host.truncates.take_message(shared.links(), bytes).is_err() {
        tracing::error!("malformed message of an own service about sizes");
    }
}

/// Sends a message to the holder of leases at a daemon, as `tell_host`.
fn tell_holder(shared: &Shared, to: DaemonIndex, bytes: &[u8]) {
    let me = shared.net.router.me;
    if to == me {
        return shared.host.leases.take_message((&shared.net, &shared.inboxes), me, bytes);
    }
    let framed = [&[message::LEASES], bytes].concat();
    shared.net.send(to, &framed, Urgency::Now);
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
        Effect::GrantNumbers { shard, first, end, is_anew: false } => {
            shared.host.op_log.grant_numbers(shard, first, end);
        }
        Effect::GrantNumbers { shard, first, end, is_anew: true } => {
            shared.host.op_log.renew_numbers(shard, first, end);
        }
        Effect::Peer { to, bytes } => shared.net.send_to_shard(&shared.inboxes, to, bytes),
        Effect::Holder { to, bytes } => tell_holder(shared, to, &bytes),
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

/// Tells a target that it is slow, and which ones are not.
fn tell_slow(shared: &Shared, target: u32, others: &[u32]) {
    let index = |target: u32| u16::try_from(target).map(DaemonIndex);
    let others: Vec<DaemonIndex> = others.iter().filter_map(|one| index(*one).ok()).collect();
    let Ok(target) = index(target) else { return };
    if target == shared.net.router.me {
        return shared.inboxes.send_to_target(WorkerMessage::Slow { others });
    }
    let mut bytes = vec![message::SLOW];
    others.iter().for_each(|other| bytes.extend(other.0.to_le_bytes()));
    shared.net.send(target, &bytes, Urgency::Now);
}

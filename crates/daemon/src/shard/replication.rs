//! Replies and messages that wait until followers have the records before them: `fsync`, with
//! `--metadata-sync always` all that leaves the service, and with `batch` what leaves the host, where
//! services go on at followers: another host outlives this one, and must not have seen what the
//! successor does not have. Programs of this host see more, but for locks: they may outlive the daemon,
//! and a lock that a successor does not know would be granted twice.
//!
//! A ticket stands for all records up to its time. The thread of the membership says up to which ticket
//! followers have them (`members::engine`).
//!
//! With `always` nothing of a change is seen elsewhere before followers have it: replies, messages and
//! requests to targets are held, in their order, also those of steps that only read what is not
//! replicated yet. Names and attributes are not shown in the index, which clients read without asking
//! (`shown_index`), and no operation completes in shared memory.

use crate::members::shipments::Shipments;
use crate::shared::Shared;
use crate::shared::reply::ReplyTo;
use metadata::{Effect, IndexOp};
use std::collections::VecDeque;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use wire::DaemonIndex;

/// With more than this held, messages whose loss services tolerate are lost. The others are bounded by
/// the requests that clients wait for.
const HELD_MESSAGES_MAX: usize = 16 * 1024;

/// Message sent after a step, in the order of the effects: a range that was allocated before a
/// truncate must reach its host before the message about that truncate
/// (`metadata::files::size_coherence`).
pub(crate) enum Outgoing {
    Reply(ReplyTo, Vec<u8>),
    /// To a request for a lock.
    LockReply(ReplyTo, Vec<u8>),
    /// To the first daemon of a host, framed.
    HostMessage(DaemonIndex, Vec<u8>),
    /// One of `leaves_service`.
    Effect(Effect),
}

impl Outgoing {
    /// The destination of a reply.
    pub(crate) fn destination(self) -> Option<ReplyTo> {
        match self {
            Outgoing::Reply(to, _) | Outgoing::LockReply(to, _) => Some(to),
            Outgoing::HostMessage(..) | Outgoing::Effect(_) => None,
        }
    }
}

/// See the module.
#[derive(Default)]
pub(crate) struct Replication {
    /// The service has no followers, and stays.
    is_alone: bool,
    /// The last ticket.
    ticket: u64,
    /// The last ticket that followers have.
    replicated: u64,
    /// Records were logged since the last ticket.
    has_logged: bool,
    held: VecDeque<(u64, Outgoing)>,
}

/// Tickets of an epoch are below those of the next: the thread may still have some of the one before.
const EPOCH_LOG2: u32 = 40;

impl Replication {
    /// Of a service in this epoch of its owners.
    pub(crate) fn in_epoch(epoch: u64) -> Replication {
        let ticket = epoch << EPOCH_LOG2;
        Replication { ticket, replicated: ticket, ..Replication::default() }
    }

    /// Of a service that nobody follows.
    pub(crate) fn alone() -> Replication {
        Replication { is_alone: true, ..Replication::default() }
    }

    /// A record was logged.
    pub(crate) fn logged(&mut self, shared: &Shared, worker: usize, record: &[u8]) {
        if let Some(shipments) = shared.shipments().filter(|_| !self.is_alone) {
            shipments.append(worker, record);
            self.has_logged = true;
        }
    }

    /// The ticket for all that was logged; `None`: nobody has to wait for it.
    fn ticket(&mut self, shared: &Shared, worker: usize) -> Option<u64> {
        let shipments = shared.shipments().filter(|it| !it.has_ended() && !self.is_alone)?;
        if std::mem::take(&mut self.has_logged) {
            self.ticket += 1;
            shipments.wait(worker, self.ticket);
            if let Some(members) = &shared.members {
                members.wake();
            }
            if shipments.has_ended() {
                // Perhaps after the thread took its last shipment.
                return None;
            }
        }
        (self.ticket > self.replicated).then_some(self.ticket)
    }

    /// Holds what must wait for followers. Returns what need not.
    pub(crate) fn hold(
        &mut self,
        shared: &Shared,
        worker: usize,
        one: Outgoing,
    ) -> Option<Outgoing> {
        let Some(ticket) = self.ticket(shared, worker) else { return Some(one) };
        if !may_be_lost(&one) || self.held.len() < HELD_MESSAGES_MAX {
            self.held.push_back((ticket, one));
        }
        None
    }

    /// Followers have everything up to a ticket.
    pub(crate) fn replicated(&mut self, ticket: u64) {
        self.replicated = self.replicated.max(ticket);
    }

    /// Takes the destinations of the replies that are held; the rest is lost.
    pub(crate) fn take_replies(&mut self) -> impl Iterator<Item = ReplyTo> + use<> {
        std::mem::take(&mut self.held).into_iter().filter_map(|(_, one)| one.destination())
    }

    /// The next message that waits no more. After the node has ended that is all of them, unless the
    /// daemon ends: then their senders ask the next one.
    pub(crate) fn next_due(&mut self, shared: &Shared) -> Option<Outgoing> {
        let (ticket, _) = self.held.front()?;
        if *ticket > self.replicated {
            let has_ended = shared.shipments().is_none_or(Shipments::has_ended);
            if !has_ended || shared.stopping.load(Acquire) {
                return None;
            }
            shared.metrics.daemon.syncs_without_copy.fetch_add(1, Relaxed);
        }
        self.held.pop_front().map(|(_, one)| one)
    }
}

/// Whether something waits until followers have the records before it.
pub(crate) fn must_wait(shipments: &Shipments, one: &Outgoing) -> bool {
    let outlives_daemon = match one {
        Outgoing::Reply(to, _) => matches!(to, ReplyTo::Peer(..)),
        Outgoing::LockReply(..) | Outgoing::HostMessage(..) | Outgoing::Effect(_) => true,
    };
    shipments.is_always() || outlives_daemon && shipments.is_ahead_of_other_hosts()
}

/// Whether services tolerate the loss of a message.
const fn may_be_lost(one: &Outgoing) -> bool {
    match one {
        Outgoing::Reply(..) | Outgoing::LockReply(..) => false,
        Outgoing::HostMessage(..) => true,
        Outgoing::Effect(effect) => {
            matches!(effect, Effect::Peer { .. } | Effect::Holder { .. } | Effect::Service { .. })
        }
    }
}

/// Whether an effect leaves the service, beside replies.
pub(crate) const fn leaves_service(effect: &Effect) -> bool {
    matches!(
        effect,
        Effect::Peer { .. }
            | Effect::Holder { .. }
            | Effect::Service { .. }
            | Effect::Data { .. }
            | Effect::Remove { .. }
    )
}

/// The operation on the index with `always`: nothing is known of the subject of a change.
pub(crate) fn shown_index(operation: IndexOp) -> IndexOp {
    match operation {
        IndexOp::PutEntry { key, .. } | IndexOp::PutAbsent { key, .. } => {
            IndexOp::ForgetEntry { key }
        }
        IndexOp::MarkComplete { directory } => IndexOp::UnmarkComplete { directory },
        IndexOp::PutInode(attributes) => IndexOp::ForgetInode(attributes.inode),
        operation => operation,
    }
}

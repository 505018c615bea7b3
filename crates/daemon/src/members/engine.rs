//! The part of an instance with followers on the thread of the membership: what workers ship goes into
//! the node, what the node replicated goes back to them, and what it follows goes into the copies.
//!
//! ```text
//!  worker --Shipments--> drain --> Node::append, wait, slice
//!  Action::Replicated --> WorkerMessage::Replicated     Action::Slice --> WorkerMessage::Slice
//!  Action::Store --> Copies
//! ```
//!
//! While no follower of a service is in sync, what waits for one waits at most `JOIN_NANOS` after the
//! last one was lost: a daemon that starts again, or another one, is in sync by then. After that
//! everything returns as it would without followers, and is counted (`syncs_without_copy`); `status`
//! names the service.
//!
//! A service whose follower is behind by `BACKLOG_BYTES_MAX` ships nothing more until receipts come, so
//! that its worker is behind, too (`Shipments::is_behind`). One that sends none is dropped by the node.

use super::copies::Copies;
use super::shipments::{Part, Shipments};
use crate::shared::Shared;
use crate::shared::inbox::WorkerMessage;
use cluster::change::Tenure;
use cluster::membership::{Presence, ServiceIndex};
use cluster::node::{Action, Node, StandbyStep};
use cluster::shipping::{Lane, records};
use config::control::{FollowerStatus, ServiceStatus};
use metadata::SnapshotCursor;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::Ordering::Relaxed;
use wire::DaemonIndex;

/// See the module. A daemon that was killed is missed after 0.3 s, starts within a second, and then gets
/// the records since.
const JOIN_NANOS: i64 = 3_000_000_000;
/// Bytes that a follower for which operations wait may be behind.
const BACKLOG_BYTES_MAX: usize = 8 << 20;
/// Bytes of a lane that wait for receipts, beyond which the next slice of a snapshot waits.
const SLICE_BACKLOG_BYTES: usize = 2 << 20;
/// A copy that could not be stored is tried again after this time.
const REFUSED_NANOS: i64 = 10_000_000_000;

/// Operations that wait for the followers of a service of this daemon, by growing tickets.
struct Waiting {
    tickets: VecDeque<u64>,
    /// The first of them, which the node knows.
    asked: usize,
    /// Since when no follower is in sync, or since the start.
    without_since: Option<i64>,
}

/// A snapshot for a follower.
struct Slicing {
    lane: Lane,
    cursor: SnapshotCursor,
    /// The worker was asked for the next slice.
    is_asked: bool,
}

/// See the module.
pub(super) struct Engine {
    me: DaemonIndex,
    /// Daemons of the first map.
    daemons: u32,
    waiting: BTreeMap<ServiceIndex, Waiting>,
    slicing: Vec<Slicing>,
    copies: Copies,
    /// Copies with steps that are not noted yet.
    stored: BTreeSet<ServiceIndex>,
    /// Copies that could not be stored, and when they are tried again.
    refused: BTreeMap<ServiceIndex, i64>,
    /// Services that are to be refused: the node is told after the actions.
    failed: Vec<ServiceIndex>,
    /// The membership changed.
    has_changed: bool,
    parts: Vec<Part>,
    now: i64,
}

impl Engine {
    pub(super) fn new(me: DaemonIndex, daemons: u16, copies: Copies) -> Engine {
        Engine {
            me,
            daemons: u32::from(daemons.max(1)),
            waiting: BTreeMap::new(),
            slicing: Vec::new(),
            copies,
            stored: BTreeSet::new(),
            refused: BTreeMap::new(),
            failed: Vec::new(),
            has_changed: true,
            parts: Vec::new(),
            now: 0,
        }
    }

    /// Before the node starts: it learns of the copies that there are.
    pub(super) fn open_copies(&mut self, node: &mut Node) {
        let services = node.membership().services().count();
        (0..services as u32).for_each(|service| node.lost_copy(ServiceIndex(service)));
        for (service, position) in self.copies.open(services) {
            tracing::info!(service = service.0, records = position.records, "a copy was found");
            node.has_copy(service, position);
        }
    }

    /// The service of a worker of this daemon, in the first map.
    fn service_of(&self, worker: usize) -> ServiceIndex {
        ServiceIndex(worker as u32 * self.daemons + u32::from(self.me.0))
    }

    const fn worker_of(&self, service: ServiceIndex) -> usize {
        (service.0 / self.daemons) as usize
    }

    /// Passes on what workers shipped, and what has waited long enough.
    pub(super) fn work(
        &mut self,
        shared: &Shared,
        shipments: &Shipments,
        node: &mut Node,
        now: i64,
        out: &mut Vec<Action>,
    ) {
        self.now = now;
        for worker in 0..shipments.workers() {
            let service = self.service_of(worker);
            if node.backlog_max(service) < BACKLOG_BYTES_MAX {
                self.drain(shipments, (worker, service), node, out);
            }
            self.offer(node, service, out);
        }
        self.ask_for_slices(shared, node);
        self.refused.retain(|&service, at| {
            let is_over = now >= *at;
            if is_over {
                node.accept_copy(service);
            }
            !is_over
        });
    }

    fn drain(
        &mut self,
        shipments: &Shipments,
        (worker, service): (usize, ServiceIndex),
        node: &mut Node,
        out: &mut Vec<Action>,
    ) {
        let mut parts = std::mem::take(&mut self.parts);
        shipments.take(worker, &mut parts);
        for part in parts.drain(..) {
            match part {
                Part::Records(batch) => {
                    records(&batch).for_each(|record| node.append(service, record));
                    shipments.recycle(worker, batch);
                }
                Part::Lost => {
                    tracing::warn!(
                        service = service.0,
                        "too much to ship: its followers begin anew"
                    );
                    node.lose(service);
                }
                Part::Wait(ticket) => {
                    self.waiting_of(service).tickets.push_back(ticket);
                    // Its records are those before: later ones would make it wait longer.
                    self.offer(node, service, out);
                }
                Part::Slice { lane, batch, next } => {
                    node.slice(lane, &batch, next.is_none(), out);
                    let known = self.slicing.iter_mut().find(|it| it.lane == lane);
                    match (known, next) {
                        (Some(slicing), Some(next)) => {
                            (slicing.cursor, slicing.is_asked) = (next, false);
                        }
                        _ => self.slicing.retain(|it| it.lane != lane),
                    }
                }
            }
        }
        self.parts = parts;
    }

    fn waiting_of(&mut self, service: ServiceIndex) -> &mut Waiting {
        let since = self.now;
        self.waiting.entry(service).or_insert_with(|| Waiting {
            tickets: VecDeque::new(),
            asked: 0,
            without_since: Some(since),
        })
    }

    /// Lets tickets wait in the node, once a follower is in sync or none comes in time.
    fn offer(&mut self, node: &mut Node, service: ServiceIndex, out: &mut Vec<Action>) {
        let (now, me) = (self.now, self.me);
        let waiting = self.waiting_of(service);
        let membership = node.membership();
        let Some(seat) = membership.seat(service) else { return };
        let is_owner = seat.owner == Some(me);
        let has_copy = is_owner && seat.followers.iter().any(|it| it.is_in_sync);
        let since = *waiting.without_since.get_or_insert(now);
        if has_copy {
            waiting.without_since = None;
        }
        let is_up = |presence| presence == Presence::Up;
        let may_come = membership.daemons().any(|(it, member)| it != me && is_up(member.presence));
        let is_over = now - since >= JOIN_NANOS || is_owner && !may_come;
        if waiting.asked == waiting.tickets.len() || !(has_copy || is_over) {
            return;
        }
        let tickets: Vec<u64> = waiting.tickets.range(waiting.asked..).copied().collect();
        waiting.asked = waiting.tickets.len();
        for ticket in tickets {
            if is_owner {
                node.wait(service, ticket, now, out);
            } else {
                // Nobody else serves it, and this daemon is not heard.
                out.push(Action::Replicated { service, ticket });
            }
        }
    }

    /// Asks workers for the next slices of snapshots.
    fn ask_for_slices(&mut self, shared: &Shared, node: &Node) {
        let daemons = self.daemons;
        self.slicing.retain_mut(|slicing| {
            let Some(backlog) = node.backlog(slicing.lane) else { return false };
            if !slicing.is_asked && backlog < SLICE_BACKLOG_BYTES {
                slicing.is_asked = true;
                let (lane, cursor) = (slicing.lane, slicing.cursor);
                let worker = (lane.of.service.0 / daemons) as usize;
                shared.inboxes.send_to_worker(worker, WorkerMessage::Slice { lane, cursor });
            }
            true
        });
    }

    /// Does what the node asks for about services. False: what follows the action must not be done.
    pub(super) fn perform(&mut self, shared: &Shared, node: &Node, action: Action) -> bool {
        match action {
            Action::Activate(Tenure { service, epoch }) => {
                self.copies.forget(service);
                tracing::info!(service = service.0, epoch, "this daemon owns the service");
            }
            Action::Release(Tenure { service, .. }) => {
                // The next owner, this daemon again, begins without them.
                self.waiting_of(service).asked = 0;
            }
            Action::Slice(lane) => {
                let cursor = SnapshotCursor::default();
                self.slicing.push(Slicing { lane, cursor, is_asked: false });
            }
            Action::Replicated { service, ticket } => {
                self.replicated(shared, node, service, ticket)
            }
            Action::Store { service, step } => return self.store(shared, service, &step),
            Action::Changed => self.has_changed = true,
            _ => {}
        }
        true
    }

    fn replicated(&mut self, shared: &Shared, node: &Node, service: ServiceIndex, ticket: u64) {
        let worker = self.worker_of(service);
        let seat = node.membership().seat(service);
        let has_copy = seat.is_some_and(|seat| seat.followers.iter().any(|it| it.is_in_sync));
        let waiting = self.waiting_of(service);
        let mut done = 0;
        while waiting.tickets.front().is_some_and(|&it| it <= ticket) {
            waiting.tickets.pop_front();
            waiting.asked = waiting.asked.saturating_sub(1);
            done += 1;
        }
        if done > 0 {
            if !has_copy {
                shared.metrics.daemon.syncs_without_copy.fetch_add(done, Relaxed);
            }
            shared.inboxes.send_to_worker(worker, WorkerMessage::Replicated { ticket });
        }
    }

    fn store(&mut self, shared: &Shared, service: ServiceIndex, step: &StandbyStep) -> bool {
        if let Err(error) = self.copies.store(service, step) {
            tracing::error!(service = service.0, %error, "a copy cannot be stored");
            shared.metrics.daemon.copies_failed.fetch_add(1, Relaxed);
            self.failed.push(service);
            return false;
        }
        self.stored.insert(service);
        true
    }

    /// After the membership changed: a copy is removed where others have enough without it. Before, the
    /// daemon perhaps comes again, and needs only the records since.
    fn remove_unneeded(&mut self, node: &mut Node) {
        let membership = node.membership();
        let is_needed = |service| {
            membership.seat(service).is_some_and(|seat| {
                let in_sync = seat.followers.iter().filter(|it| it.is_in_sync).count();
                let follows = seat.followers.iter().any(|it| it.daemon == self.me);
                follows || in_sync < usize::from(membership.followers)
            })
        };
        for service in self.copies.keep_only(is_needed) {
            node.lost_copy(service);
        }
    }

    /// After the actions of one input.
    pub(super) fn settle(&mut self, node: &mut Node) {
        if std::mem::take(&mut self.has_changed) {
            self.remove_unneeded(node);
        }
        while let Some(service) = self.stored.pop_first() {
            self.copies.note(service, node.position(service));
        }
        for service in self.failed.drain(..) {
            node.refuse_copy(service);
            self.refused.insert(service, self.now + REFUSED_NANOS);
        }
    }

    /// The services that this daemon owns, for `status`.
    pub(super) fn services(&self, shipments: &Shipments, node: &Node) -> Vec<ServiceStatus> {
        let membership = node.membership();
        let owned = membership.services().filter(|(_, seat)| seat.owner == Some(self.me));
        let service = |(service, seat): (ServiceIndex, &cluster::membership::Seat)| {
            let unshipped = shipments.bytes_waiting(self.worker_of(service)) as u64;
            let lags: Vec<_> = node.lags(service).collect();
            let followers = seat.followers.iter().map(|it| {
                let lag = lags.iter().find(|lag| lag.follower == it.daemon);
                FollowerStatus {
                    daemon: it.daemon.0,
                    is_in_sync: it.is_in_sync,
                    lag_records: lag.map_or(0, |lag| lag.records),
                    lag_bytes: lag.map_or(0, |lag| lag.bytes as u64) + unshipped,
                }
            });
            let followers = followers.collect();
            ServiceStatus { service: service.0, owner: self.me.0, epoch: seat.epoch, followers }
        };
        owned.map(service).collect()
    }

    /// Number of copies that this daemon has, and their bytes.
    pub(super) fn copies(&self) -> (usize, u64) {
        self.copies.lengths()
    }
}

//! The part of an instance with followers on the thread of the membership: what workers ship goes into
//! the node, what the node replicated goes back to them, and what it follows goes into the copies.
//!
//! ```text
//!  worker --Shipments--> drain --> Node::append, wait, slice
//!  Action::Replicated --> WorkerMessage::Replicated     Action::Slice --> WorkerMessage::Slice
//!  Action::Store --> Copies
//!  Action::Activate --> Copies::take_over --> TakeOver: a thread for the service, which is given
//!                 messages while this daemon has the lease (`Owners::serve_until`)
//!  Action::Pause --> it is given no more messages; when its thread stands still: Node::stands_still
//!                 a worker's service, which leaves this host for good, reports first (`shard::leaving`)
//!  Action::Release --> the thread ends
//!  Action::Keep --> the thread ends and leaves its log, which becomes a copy
//!  a log that cannot be replayed --> Node::cannot_serve: another daemon takes the service over
//! ```
//!
//! Where services move, those of the workers go the same way, but to the worker, and need the lease.
//! Their clients read it in shared memory (`shm::local_ops::ServedUntil`).
//!
//! A service is known by its number here (`owners::Numbers`).
//!
//! While no follower of a service is in sync, what waits for one waits at most `JOIN_NANOS` after the
//! last one was lost: a daemon that starts again, or another one, is in sync by then. After that
//! everything returns as it would without followers, and is counted (`syncs_without_copy`); `status`
//! names the service.
//!
//! A service whose follower is behind by `BACKLOG_BYTES_MAX` ships nothing more until receipts come, so
//! that its worker is behind, too (`Shipments::is_behind`). One that sends none is dropped by the node.

use super::copies::{Copies, TakenLog};
use super::hosts::Hosts;
use super::shipments::{Part, Shipments};
use crate::shared::Shared;
use crate::shared::inbox::WorkerMessage;
use crate::shared::owners::{Numbers, Owners};
use crate::shared::taken_inbox::TakenInbox;
use cluster::change::Tenure;
use cluster::consensus::TICK_NANOS;
use cluster::membership::{Membership, Presence, ServiceIndex};
use cluster::node::{Action, Node, Serving, StandbyStep};
use cluster::shipping::{Lane, records};
use config::control::{FollowerStatus, ServiceStatus};
use metadata::SnapshotCursor;
use placement::ServiceName;
use shm::local_ops::ServedUntil;
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
/// The same where the service has not ended here yet: about as long as it takes to close its log.
const ENDING_NANOS: i64 = 100_000_000;
/// A log that cannot be replayed is tried again after this time, where no other daemon takes the service
/// over: memory or descriptors were perhaps short.
const AGAIN_NANOS: i64 = 10_000_000_000;
/// A daemon that gave up a service which it could not replay takes no copy of it for this time: the
/// fault is perhaps one of each copy, and the service is away each time it is tried.
const UNREPLAYABLE_NANOS: i64 = 60_000_000_000;
/// A service is served for this time after each look at the lease, a quarter of it: so a thread that is
/// some ticks late does not interrupt it.
const SERVED_NANOS: i64 = 4 * TICK_NANOS;

/// How long a service is served after the last look, when the daemon ends: half a lease.
const LAST_SERVED_NANOS: i64 = 200_000_000;

/// The log with which a service goes on.
pub(crate) enum ServiceLog {
    /// The copy that this daemon has.
    Copy(TakenLog),
    /// That with which the service of a worker began.
    OfWorker,
}

/// A service that this daemon owns, which is to begin.
pub(crate) struct Succession {
    /// Its name.
    pub(crate) name: ServiceName,
    /// The host of its first owner, if the memory of that alone knows what its programs do with it.
    pub(crate) home: Option<u16>,
    /// Its number here.
    pub(crate) number: usize,
    /// Its epoch.
    pub(crate) epoch: u64,
    /// Its log.
    pub(crate) log: ServiceLog,
}

/// Starts a thread for a service. It waits until the one of an earlier epoch has ended, and for the
/// lease.
pub(crate) type TakeOver = Box<dyn Fn(Succession) + Send>;

/// Operations that wait for the followers of a service of this daemon, by growing tickets.
struct Waiting {
    tickets: VecDeque<u64>,
    /// The first of them, which the node knows.
    asked: usize,
    /// Since when no follower is in sync, or since the start.
    without_since: Option<i64>,
}

/// A service that this daemon owns and cannot serve.
struct Unserved {
    of: Tenure,
    why: String,
    again_at: i64,
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
    numbers: Numbers,
    /// Services of workers that have left this host for good: `Membership::has_moved`.
    moved: BTreeSet<ServiceIndex>,
    take_over: TakeOver,
    /// Services that this daemon took over.
    taken_over: BTreeSet<ServiceIndex>,
    /// Services that are handed over once they stand still, but not before this time: until then clients
    /// may go by what they were promised.
    pausing: BTreeMap<ServiceIndex, i64>,
    /// Services that were handed over, whose logs become copies, with their numbers.
    keeping: BTreeMap<ServiceIndex, usize>,
    unserved: BTreeMap<ServiceIndex, Unserved>,
    /// Services whose logs here cannot be replayed, as far as is known.
    unreplayable: BTreeSet<ServiceIndex>,
    hosts: Hosts,
    /// Services that were taken over from hosts that are gone, and know it.
    told: BTreeSet<ServiceIndex>,
    waiting: BTreeMap<ServiceIndex, Waiting>,
    slicing: Vec<Slicing>,
    copies: Copies,
    /// Copies with steps that are not noted yet.
    stored: BTreeSet<ServiceIndex>,
    /// Copies that could not be stored, and when they are tried again.
    refused: BTreeMap<ServiceIndex, i64>,
    /// Services that are to be refused for some time: the node is told after the actions.
    failed: Vec<(ServiceIndex, i64)>,
    /// The membership changed.
    has_changed: bool,
    parts: Vec<Part>,
    now: i64,
}

impl Engine {
    pub(super) fn new(
        (me, numbers): (DaemonIndex, Numbers),
        copies: Copies,
        (take_over, hosts): (TakeOver, Hosts),
    ) -> Engine {
        Engine {
            me,
            numbers,
            moved: BTreeSet::new(),
            take_over,
            taken_over: BTreeSet::new(),
            pausing: BTreeMap::new(),
            keeping: BTreeMap::new(),
            unserved: BTreeMap::new(),
            unreplayable: BTreeSet::new(),
            hosts,
            told: BTreeSet::new(),
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
    pub(super) fn open_copies(&mut self, shared: &Shared, node: &mut Node) {
        if services_move(shared) {
            node.set_replays();
        }
        let services = node.membership().services().count();
        (0..services as u32).for_each(|service| node.lost_copy(ServiceIndex(service)));
        for (service, position) in self.copies.open(services) {
            tracing::info!(service = service.0, records = position.records, "a copy was found");
            node.has_copy(service, position);
        }
    }

    /// The services that may be served here: those of the workers, and those that were taken over.
    fn services_here(&self) -> Vec<ServiceIndex> {
        let own = (0..self.numbers.workers()).filter_map(|worker| self.numbers.of_worker(worker));
        let own = own.filter(|it| !self.moved.contains(it));
        own.chain(self.taken_over.iter().copied()).collect()
    }

    /// True for a service that a worker serves, for programs that have access to it.
    fn is_own(&self, service: ServiceIndex) -> bool {
        self.numbers.is_own(service) && !self.moved.contains(&service)
    }

    /// Number of a service here.
    fn number(&self, service: ServiceIndex) -> usize {
        let has_moved = self.moved.contains(&service);
        if has_moved { self.numbers.elsewhere(service) } else { self.numbers.of(service) }
    }

    /// Notes the services that have left their first hosts, before requests go where these are: a program
    /// that asks then knows that they are remote.
    pub(super) fn note_moves(&mut self, shared: &Shared, membership: &Membership) {
        let moved = membership.services().map(|it| it.0).filter(|&it| membership.has_moved(it));
        moved.for_each(|it| self.note_moved(shared, it));
    }

    /// A worker's service has left this host for good: programs here find that in its word.
    fn note_moved(&mut self, shared: &Shared, service: ServiceIndex) {
        if self.numbers.is_own(service) && self.moved.insert(service) {
            tracing::info!(service = service.0, "a service has left its first host");
            let word = shared.host.op_log.served(self.numbers.of(service));
            word.set(ServedUntil::ELSEWHERE);
        }
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
        self.look_at_replays(shared, node);
        self.look_at_leases(shared, node);
        for service in self.services_here() {
            let number = self.number(service);
            if node.backlog_max(service) < BACKLOG_BYTES_MAX && has_begun(shared, number) {
                self.drain(shipments, (number, service), node, out);
            }
            self.offer(node, service, out);
        }
        self.look_at_pausing(shared, shipments, node, out);
        self.look_at_kept(shared, node);
        self.look_at_hosts(shared, node);
        self.ask_for_slices(shared, node);
        self.refused.retain(|&service, at| {
            let is_over = now >= *at;
            if is_over {
                node.accept_copy(service);
            }
            !is_over
        });
    }

    /// Services that stand still have shipped everything then.
    fn look_at_pausing(
        &mut self,
        shared: &Shared,
        shipments: &Shipments,
        node: &mut Node,
        out: &mut Vec<Action>,
    ) {
        let tenure = |service| shared.inboxes.tenure(self.number(service));
        let is = |how: fn(&TakenInbox) -> bool| {
            let paused = self.pausing.keys().copied();
            paused.filter(move |&it| tenure(it).is_some_and(how)).collect::<Vec<ServiceIndex>>()
        };
        let (still, unable) = (is(TakenInbox::stands_still), is(TakenInbox::refuses));
        for service in still {
            if self.pausing.get(&service).is_some_and(|&at| self.now < at) {
                continue;
            }
            self.pausing.remove(&service);
            self.drain(shipments, (self.number(service), service), node, out);
            node.stands_still(service, out);
        }
        for service in unable {
            node.cannot_stand_still(service, out);
        }
    }

    /// Logs of services that were handed over become copies, once their threads have ended.
    fn look_at_kept(&mut self, shared: &Shared, node: &mut Node) {
        let tenure = |number| shared.inboxes.tenure(number);
        let is_over = |&(_, number): &(ServiceIndex, usize)| {
            !tenure(number).is_some_and(TakenInbox::is_running)
        };
        let kept = self.keeping.iter().map(|(&service, &number)| (service, number));
        let over: Vec<(ServiceIndex, usize)> = kept.filter(is_over).collect();
        for (service, number) in over {
            self.keeping.remove(&service);
            let log = tenure(number).and_then(TakenInbox::take_log);
            match (log, node.position(service)) {
                (Some(log), Some(position)) => self.copies.keep(service, log, position),
                _ => node.lost_copy(service),
            }
            node.accept_copy(service);
            self.has_changed = true;
        }
    }

    /// A service whose log is replayed may be served. Where it cannot be it goes to another daemon, or is
    /// tried again.
    fn look_at_replays(&mut self, shared: &Shared, node: &mut Node) {
        for service in self.services_here() {
            let tenure = shared.inboxes.tenure(self.number(service));
            if let Some(epoch) = tenure.and_then(TakenInbox::replayed_epoch) {
                node.replayed(Tenure { service, epoch });
            }
            if let Some((epoch, why)) = tenure.and_then(TakenInbox::take_failure) {
                self.fail(Tenure { service, epoch }, why);
            }
        }
        let mut again = Vec::new();
        for unserved in self.unserved.values_mut() {
            node.cannot_serve(unserved.of);
            if self.now >= unserved.again_at {
                unserved.again_at = self.now + AGAIN_NANOS;
                again.extend(Some(unserved.of).filter(|&of| node.may_try_again(of)));
            }
        }
        for of in again {
            self.unserved.remove(&of.service);
            let home = self.host_of_home(node, of.service);
            self.activate(shared, of, home);
        }
    }

    fn fail(&mut self, of: Tenure, why: String) {
        let (service, epoch) = (of.service.0, of.epoch);
        tracing::error!(service, epoch, "{why}: this daemon cannot serve the service");
        let again_at = self.now + AGAIN_NANOS;
        self.unserved.insert(of.service, Unserved { of, why, again_at });
        self.unreplayable.insert(of.service);
    }

    /// Tells services that were taken over when the host of their first owner is gone.
    fn look_at_hosts(&mut self, shared: &Shared, node: &Node) {
        if self.taken_over.is_empty() {
            return;
        }
        let Engine { numbers, hosts, told, taken_over, now, .. } = self;
        // The host of one that has moved is one of others.
        let has_moved = |it| node.membership().has_moved(it);
        let unaware = taken_over.iter().filter(|&it| !told.contains(it) && !has_moved(*it));
        let host = |service: ServiceIndex| hosts.of(numbers.service_name(service).first.0);
        let of: Vec<_> = unaware.filter_map(|&it| Some((it, host(it)?))).collect();
        let gone = hosts.look(node.membership(), &of.iter().map(|it| it.1).collect(), *now);
        for (service, host) in of.into_iter().filter(|(_, host)| gone.contains(host)) {
            let note = WorkerMessage::HostGone { host };
            // One that does not run yet is told later.
            if shared.inboxes.try_send_to_worker(numbers.of(service), note).is_ok() {
                tracing::warn!(service = service.0, host, "the host of its first owner is gone");
                told.insert(service);
            }
        }
    }

    fn drain(
        &mut self,
        shipments: &Shipments,
        (number, service): (usize, ServiceIndex),
        node: &mut Node,
        out: &mut Vec<Action>,
    ) {
        let mut parts = std::mem::take(&mut self.parts);
        shipments.take(number, &mut parts);
        for part in parts.drain(..) {
            match part {
                Part::Records(batch) => {
                    records(&batch).for_each(|record| node.append(service, record));
                    shipments.recycle(number, batch);
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
        if seat.owner.is_some_and(|owner| owner != me) {
            // Whether its owner has what waits here is not known.
            return;
        }
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
        let mut slicings = std::mem::take(&mut self.slicing);
        slicings.retain_mut(|slicing| {
            let Some(backlog) = node.backlog(slicing.lane) else { return false };
            let number = self.number(slicing.lane.of.service);
            // The log of a service that has just come is being replayed.
            let is_due = !slicing.is_asked && has_begun(shared, number);
            if is_due && backlog < SLICE_BACKLOG_BYTES {
                let (lane, cursor) = (slicing.lane, slicing.cursor);
                let message = WorkerMessage::Slice { lane, cursor };
                slicing.is_asked = shared.inboxes.try_send_to_worker(number, message).is_ok();
            }
            true
        });
        self.slicing = slicings;
    }

    /// Does what the node asks for about services. False: what follows the action must not be done.
    pub(super) fn perform(&mut self, shared: &Shared, node: &Node, action: Action) -> bool {
        match action {
            Action::Activate(of) => {
                if node.membership().has_moved(of.service) {
                    self.note_moved(shared, of.service);
                }
                let home = self.host_of_home(node, of.service);
                self.activate(shared, of, home);
            }
            Action::Release(Tenure { service, .. }) => {
                self.release(shared, service, TakenInbox::give_up);
            }
            Action::Keep(Tenure { service, .. }) => {
                let number = self.number(service);
                self.release(shared, service, TakenInbox::give_up_log);
                // The node takes no parcel until the log is a copy.
                self.refused.remove(&service);
                self.keeping.insert(service, number);
            }
            Action::Slice(lane) => {
                let cursor = SnapshotCursor::default();
                self.slicing.push(Slicing { lane, cursor, is_asked: false });
            }
            Action::Replicated { service, ticket } => {
                self.replicated(shared, node, service, ticket)
            }
            Action::Store { service, step } => return self.store(shared, service, &step),
            Action::Pause(service) => {
                self.serve_until(shared, service, i64::MIN);
                let (number, is_own) = (self.number(service), self.is_own(service));
                self.pausing
                    .insert(service, if is_own { self.now + SERVED_NANOS } else { self.now });
                if let Some(tenure) = shared.inboxes.tenure(number).filter(|_| is_own) {
                    let leave = WorkerMessage::Leave { pause: tenure.pause() };
                    shared.inboxes.send_to_worker(number, leave);
                }
            }
            Action::Resume(service) => drop(self.pausing.remove(&service)),
            Action::Changed => self.has_changed = true,
            _ => {}
        }
        true
    }

    /// The host whose memory alone knows what its programs do with a service; `None`: it has moved, and
    /// no host's does.
    fn host_of_home(&self, node: &Node, service: ServiceIndex) -> Option<u16> {
        let first = self.numbers.service_name(service).first.0;
        let host = self.hosts.of(first).unwrap_or(first);
        (!node.membership().has_moved(service)).then_some(host)
    }

    fn activate(&mut self, shared: &Shared, Tenure { service, epoch }: Tenure, home: Option<u16>) {
        tracing::info!(service = service.0, epoch, "this daemon owns the service");
        let is_own = self.is_own(service);
        if is_own && !services_move(shared) {
            return self.copies.forget(service);
        }
        let (name, number) = (self.numbers.service_name(service), self.number(service));
        let log = match self.copies.take_over(service, epoch) {
            None if is_own => Some(ServiceLog::OfWorker),
            log => log.map(ServiceLog::Copy),
        };
        if !is_own {
            self.taken_over.insert(service);
        }
        self.keeping.remove(&service);
        let (Some(tenure), Some(log)) = (shared.inboxes.tenure(number), log) else {
            return self.fail(Tenure { service, epoch }, "its copy is lost".to_owned());
        };
        // Its entry is that of a log from now on.
        self.stored.remove(&service);
        tenure.want(epoch);
        (self.take_over)(Succession { name, home, number, epoch, log });
    }

    fn release(&mut self, shared: &Shared, service: ServiceIndex, give_up: fn(&TakenInbox)) {
        let number = self.number(service);
        // The next owner, this daemon again, begins without them.
        self.waiting_of(service).asked = 0;
        self.serve_until(shared, service, i64::MIN);
        self.pausing.remove(&service);
        self.taken_over.remove(&service);
        self.told.remove(&service);
        if let Some(tenure) = shared.inboxes.tenure(number) {
            give_up(tenure);
        }
        self.unserved.remove(&service);
        if self.is_own(service) {
            // Its worker ends it.
            let _ = shared.inboxes.bells.wake(number);
        }
        // Its log stays, until another daemon owns the service: without one this daemon is the last
        // owner, and goes on with it.
    }

    /// Lets services be served as long as this daemon has the lease for sure.
    fn look_at_leases(&mut self, shared: &Shared, node: &Node) {
        self.serve(shared, node, self.now + SERVED_NANOS);
    }

    /// The last look, before the daemon ends: its workers finish what they have.
    pub(super) fn look_last(&mut self, shared: &Shared, node: &Node, now: i64) {
        self.serve(shared, node, now + LAST_SERVED_NANOS);
    }

    fn serve(&mut self, shared: &Shared, node: &Node, until: i64) {
        for service in self.services_here() {
            let tenure = shared.inboxes.tenure(self.number(service));
            // Clients read an index that belongs to this epoch.
            let is_ready = || !self.is_own(service) || tenure.is_some_and(TakenInbox::serves);
            // A lease that lasts until then lasts all the time before.
            if node.serving(service, until) == Serving::Yes && is_ready() {
                self.copies.begins(service);
                self.unreplayable.remove(&service);
                self.serve_until(shared, service, until);
            }
        }
    }

    /// A service may be served here until this time, where services move.
    fn serve_until(&self, shared: &Shared, service: ServiceIndex, nanos: i64) {
        let Some(owners) = shared.net.owners.as_ref().filter(|it| it.services_move()) else {
            return;
        };
        owners.serve_until(service, nanos);
        if self.is_own(service) {
            let word = shared.host.op_log.served(self.numbers.of(service));
            word.set(ServedUntil::at(nanos));
        }
    }

    fn replicated(&mut self, shared: &Shared, node: &Node, service: ServiceIndex, ticket: u64) {
        let number = self.number(service);
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
            shared.inboxes.send_to_worker(number, WorkerMessage::Replicated { ticket });
        }
    }

    fn store(&mut self, shared: &Shared, service: ServiceIndex, step: &StandbyStep) -> bool {
        if is_running(shared, self.numbers, service) {
            // The thread or worker that had the service has not ended: its log becomes the copy later.
            self.failed.push((service, ENDING_NANOS));
            return false;
        }
        if let Err(error) = self.copies.store(service, step) {
            tracing::error!(service = service.0, %error, "a copy cannot be stored");
            shared.metrics.daemon.copies_failed.fetch_add(1, Relaxed);
            self.failed.push((service, REFUSED_NANOS));
            return false;
        }
        self.stored.insert(service);
        true
    }

    /// After the membership changed: a copy is removed where others have enough without it. Before, the
    /// daemon perhaps comes again, and needs only the records since.
    fn remove_unneeded(&mut self, shared: &Shared, node: &mut Node) {
        let (membership, numbers, me) = (node.membership(), self.numbers, self.me);
        let keeping = &self.keeping;
        // A daemon that starts again knows an older membership at first.
        let is_elsewhere = |service, epoch| {
            let seat = membership.seat(service).filter(|seat| seat.epoch > epoch);
            let owner = seat.and_then(|seat| seat.owner);
            // Others count on what this daemon handed over, until the membership says otherwise.
            let follower = seat.and_then(|seat| seat.follower(me));
            let counts = follower.is_some_and(|it| it.is_in_sync || it.had_all);
            owner.is_some_and(|owner| owner != me) && !counts && !keeping.contains_key(&service)
        };
        let is_running = |service| is_running(shared, numbers, service);
        self.has_changed = self.copies.give_up_owned(is_elsewhere, is_running);
        for &service in self.unreplayable.iter().filter(|&&it| is_elsewhere(it, 0)) {
            self.copies.give_up(service);
            self.failed.push((service, UNREPLAYABLE_NANOS));
        }
        self.unreplayable.retain(|&service| !is_elsewhere(service, 0));
        let is_needed = |service| {
            membership.seat(service).is_some_and(|seat| {
                let in_sync = seat.followers.iter().filter(|it| it.is_in_sync).count();
                let follows = seat.followers.iter().any(|it| it.daemon == me);
                follows || in_sync < usize::from(membership.followers)
            })
        };
        for service in self.copies.keep_only(is_needed) {
            node.lost_copy(service);
        }
    }

    /// After the actions of one input.
    pub(super) fn settle(&mut self, shared: &Shared, node: &mut Node) {
        if std::mem::take(&mut self.has_changed) {
            self.remove_unneeded(shared, node);
        }
        while let Some(service) = self.stored.pop_first() {
            self.copies.note(service, node.position(service));
        }
        for (service, nanos) in self.failed.drain(..) {
            node.refuse_copy(service);
            self.refused.insert(service, self.now + nanos);
        }
    }

    /// The services that this daemon owns, for `status`.
    pub(super) fn services(&self, shipments: &Shipments, node: &Node) -> Vec<ServiceStatus> {
        let membership = node.membership();
        let owned = membership.services().filter(|(_, seat)| seat.owner == Some(self.me));
        let service = |(service, seat): (ServiceIndex, &cluster::membership::Seat)| {
            let unshipped = shipments.bytes_waiting(self.number(service)) as u64;
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
            let unserved = self.unserved.get(&service).map(|it| it.why.clone());
            let (service, owner, epoch) = (service.0, self.me.0, seat.epoch);
            ServiceStatus { service, owner, epoch, followers, unserved }
        };
        owned.map(service).collect()
    }

    /// Number of copies that this daemon has, and their bytes.
    pub(super) fn copies(&self) -> (usize, u64) {
        self.copies.lengths()
    }
}

/// Whether a thread or worker has the log of a service here.
fn is_running(shared: &Shared, numbers: Numbers, service: ServiceIndex) -> bool {
    let mut both = [numbers.of(service), numbers.elsewhere(service)].into_iter();
    both.any(|it| shared.inboxes.tenure(it).is_some_and(TakenInbox::is_running))
}

/// Whether the service of this number has begun in the epoch in which this daemon owns it.
fn has_begun(shared: &Shared, number: usize) -> bool {
    !services_move(shared) || shared.inboxes.tenure(number).is_some_and(TakenInbox::serves)
}

pub(super) fn services_move(shared: &Shared) -> bool {
    shared.net.owners.as_ref().is_some_and(Owners::services_move)
}

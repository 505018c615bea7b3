//! The thread that drives this daemon's `cluster::Node`: ticks and messages of other daemons go in, its
//! actions are done in their order.
//!
//! It begins when all daemons were ready once and are connected, as far as they live, or those that
//! come last would count as dead. A voter that cannot store its votes takes part no more, so that it
//! does not vote twice.

use super::copies::Copies;
use super::engine::{Engine, TakeOver, services_move};
use super::hosts::{Hosts, listed_in};
use super::questions::Questions;
use super::shipments::Shipments;
use super::stored::{Stored, StoredState};
use super::{Incoming, Members, Taken, UNSTARTED, lock, space, start_of};
use crate::shared::Shared;
use crate::shared::inbox::WorkerMessage;
use crate::shared::kept_record::KeptRecords;
use crate::shared::network::message;
use crate::shared::owners::Numbers;
use crate::startup::found::Found;
use crate::startup::memory::Mapped;
use crate::startup::settings::Settings;
use crate::startup::{Failure, StartResult, failed};
use crate::units::{Event, MemberView};
use cluster::change::Change;
use cluster::consensus::TICK_NANOS;
use cluster::membership::{Membership, Presence, ServiceIndex};
use cluster::node::{Action, Node, Settings as NodeSettings};
use cluster::voters::first_voters;
use config::choice::SameDomain;
use net::Urgency;
use replicas::table::Table;
use shm::wait::steady_nanos;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::time::{Duration, Instant};
use wire::DaemonIndex;
use wire::limits::{copy_goals, units_per_target};

/// How long a node waits for connections to all daemons: several dials (`net::transport`).
const CONNECTED_TIME_MAX: Duration = Duration::from_secs(2);

/// The node of a daemon that does not run yet.
pub(crate) struct Driver {
    settings: NodeSettings,
    membership: Membership,
    stored: Stored,
    /// As an earlier start stored it.
    state: Option<StoredState>,
    /// The file of addresses. It exists when all daemons were ready once.
    peers: PathBuf,
    /// In an instance with followers.
    copies: Option<Copies>,
    numbers: Numbers,
    /// `DaemonConfig::hosts`.
    hosts: Vec<u16>,
}

/// A running node.
struct Running<'a> {
    shared: &'a Shared,
    members: &'a Members,
    node: Node,
    stored: Stored,
    questions: Questions,
    actions: Vec<Action>,
    engine: Option<Engine>,
    /// As the thread of units was told last.
    units: Option<MemberView>,
    meter: Meter,
}

impl Driver {
    /// The node of this daemon in this start, and the state that it shares; `None` for an instance
    /// without failure domains. `entries`, in an instance with followers: the memory of
    /// `members::copies`.
    pub(crate) fn new(
        settings: &Settings,
        found: &Found,
        (entries, records): (Option<Mapped>, &KeptRecords<'_>),
    ) -> StartResult<Option<(Driver, Members)>> {
        let (domains, start) = (&settings.domains, found.number());
        let Some(&domain) = domains.get(usize::from(settings.index)) else { return Ok(None) };
        // Those that were added since are in the membership that the others tell.
        let first = domains.get(..usize::from(settings.began)).unwrap_or(domains);
        let services = first.len() * settings.workers();
        let followers = u8::try_from(settings.instance.followers).unwrap_or(u8::MAX);
        let same_domain = followers == 0 || settings.instance.same_domain == SameDomain::On;
        let membership = Membership::initial(first, services, followers, same_domain)
            .map_err(|why| Failure::new(format!("cannot begin the membership: {why:?}")))?;
        let membership = if settings.has_moving_services() {
            membership.with_owners_that_return()
        } else {
            membership.with_owners_that_stay()
        };
        let membership = with_units(settings, membership)?;
        let membership = with_added(settings, membership)?;
        let voters = first_voters(first);
        let settings_of_node = NodeSettings {
            own: settings.me(),
            // The first start has the number of the first membership; the node adds to it if it was
            // counted as dead.
            incarnation: first_incarnation(start),
            domain,
            began: first_incarnation(settings.lost_starts + 1),
            voters,
            seed: wire::hash::mix(u64::from(settings.index), start),
        };
        let numbers = Numbers::new(settings.me(), settings.began, settings.workers());
        let shipments = entries
            .is_some()
            .then(|| Shipments::new(settings.instance.metadata_sync, numbers.count()))
            .map(
                |it| if settings.has_moving_services() { it.with_services_that_move() } else { it },
            );
        let copies = entries.map(|entries| {
            let of_instance = (found.identity().instance, numbers);
            Copies::new(settings.data.clone(), of_instance, entries.segment)
        });
        let members = Members::new(membership.clone(), shipments);
        let (stored, state) = Stored::open(records)?;
        let driver = Driver {
            copies,
            numbers,
            settings: settings_of_node,
            membership,
            stored,
            state,
            peers: settings.peers.clone(),
            hosts: settings.hosts.clone(),
        };
        Ok(Some((driver, members)))
    }

    /// The units of the first membership; `None`: files have one copy.
    pub(crate) const fn units(&self) -> Option<&Arc<Table>> {
        self.membership.units()
    }

    /// The thread: until the daemon stops. `take_over` starts the thread of a service that this daemon
    /// takes over.
    pub(crate) fn run(self, shared: &Arc<Shared>, take_over: TakeOver) {
        let Some(members) = &shared.members else { return };
        self.await_peers(shared, members);
        let workers = self.numbers.workers();
        let begun = self.begin(shared, members, take_over).and_then(|mut running| running.run());
        if let Some(shipments) = &members.shipments {
            shipments.end();
            for worker in 0..workers {
                // Nothing waits for followers any more.
                shared.inboxes.send_to_worker(worker, WorkerMessage::Replicated { ticket: 0 });
            }
            // Nobody knows whether this daemon still has their leases.
            shared.inboxes.give_up_taken_over();
        }
        if let Err(Failure { text: why, .. }) = begun {
            tracing::error!("{why}: this daemon takes part in the membership no more");
            if shared.units.is_some() || services_move(shared) {
                // It can serve nothing without its leases. The others reach its host as ever, so they
                // would wait for it; they see at once that it has ended, and a start goes on with it.
                std::process::abort();
            }
        }
    }

    /// Waits until this node may begin.
    fn await_peers(&self, shared: &Shared, members: &Members) {
        let (mut listed, mut since) = (None, Instant::now());
        while !shared.stopping.load(Acquire) {
            if listed.is_none() && self.peers.exists() {
                (listed, since) = (Some(listed_in(&self.peers)), Instant::now());
            }
            let me = self.settings.own;
            let mut peers = self.membership.daemons().map(|(daemon, _)| daemon);
            if let Some(listed) = &listed {
                // Those that have left are not.
                let is_there = |it: DaemonIndex| it != me && listed.contains(&it.0);
                let is_connected = |it| !is_there(it) || shared.net.sender.is_connected(it);
                if peers.all(is_connected) || since.elapsed() > CONNECTED_TIME_MAX {
                    return;
                }
            }
            // Nodes repeat what they said.
            drop(members.take(Duration::from_nanos(TICK_NANOS.unsigned_abs())));
        }
    }

    fn begin<'a>(
        self,
        shared: &'a Shared,
        members: &'a Members,
        take_over: TakeOver,
    ) -> StartResult<Running<'a>> {
        let Driver { settings, membership, stored, state, copies, numbers, peers, hosts } = self;
        let of_daemon = (settings.own, numbers);
        let timeout = i64::try_from(shared.timing.timeout.as_nanos()).unwrap_or(i64::MAX);
        let hosts = Hosts::new(hosts, peers, timeout);
        let mut engine = copies.map(|copies| Engine::new(of_daemon, copies, (take_over, hosts)));
        let now = steady_nanos();
        let node = match &state {
            Some((base, tail)) => Node::restore(settings, Some((base, tail)), membership, now),
            // The instance has perhaps another membership by now.
            None if numbers.was_added() => Node::restore(settings, None, membership, now),
            // Nothing was sent by an earlier start.
            None => Node::begin(settings, membership, now),
        };
        let mut node = node.map_err(|_| Failure::new("what the voter stored is damaged"))?;
        if let Some(engine) = &mut engine {
            engine.open_copies(shared, &mut node);
        }
        let (questions, actions) = (Questions::default(), Vec::new());
        let (units, meter) = (None, Meter::default());
        Ok(Running { shared, members, node, stored, questions, actions, engine, units, meter })
    }
}

impl Running<'_> {
    fn run(&mut self) -> StartResult<()> {
        if let Some(shipments) = &self.members.shipments {
            shipments.begin();
        }
        self.node.start(steady_nanos(), &mut self.actions);
        self.perform()?;
        let mut tick_at = steady_nanos();
        while !self.shared.stopping.load(Acquire) {
            let rest = Duration::from_nanos((tick_at - steady_nanos()).max(0).unsigned_abs());
            // Before the tick: a peer whose messages wait here since a stall of this host is not silent.
            let Taken { messages, proposals, is_given_up } = self.members.take(rest);
            if is_given_up {
                return Err(Failure::new("what is kept of units is lost"));
            }
            for message in messages {
                self.receive(message)?;
            }
            if !proposals.is_empty() {
                self.node.propose_all(&proposals, &mut self.actions);
                self.perform()?;
            }
            let now = steady_nanos();
            if now >= tick_at {
                tick_at = now + TICK_NANOS;
                self.measure(now);
                self.node.tick(now, &mut self.actions);
                self.pass_answers(now);
                self.report_space(now);
                self.perform()?;
                self.show_services();
            }
            self.ship()?;
            self.show_units();
            if self.may_end_now() {
                end_daemon();
                break;
            }
            self.shared.net.sender.flush();
        }
        if let Some(engine) = &mut self.engine {
            engine.look_last(self.shared, &self.node, steady_nanos());
        }
        Ok(())
    }

    /// Whether this daemon may end: it was to leave, has nothing any more, and no program of its host
    /// uses it.
    fn may_end_now(&self) -> bool {
        let is_used = || {
            let mut count = 0;
            self.shared.sessions.open.each_open(0, &mut |_| count += 1);
            count > 0
        };
        self.node.may_end() && !is_used()
    }

    /// Passes on what workers shipped.
    fn ship(&mut self) -> StartResult<()> {
        let (Some(engine), Some(shipments)) = (&mut self.engine, &self.members.shipments) else {
            return Ok(());
        };
        let out = &mut self.actions;
        engine.work(self.shared, shipments, &mut self.node, steady_nanos(), out);
        self.perform()
    }

    /// Measures the loads of services that this daemon owns, and shows what the node found about loads.
    fn measure(&mut self, now: i64) {
        let Some(owners) = self.shared.net.owners.as_ref().filter(|it| it.services_move()) else {
            return;
        };
        let (own, membership) = (self.shared.net.router.me, self.node.membership());
        let services = membership.services();
        let counts = services.map(|(it, seat)| (owners.operations(it), seat.owner == Some(own)));
        if let Some(loads) = self.meter.loads(counts, now) {
            self.node.set_loads(loads);
            lock(&self.members.view).balance = self.node.balance().clone();
        }
    }

    fn show_services(&self) {
        if let (Some(engine), Some(shipments)) = (&self.engine, &self.members.shipments) {
            let services = engine.services(shipments, &self.node);
            let mut view = lock(&self.members.view);
            (view.services, view.copies) = (services, engine.copies());
            self.shared.metrics.daemon.followers_resumed.store(self.node.resumed(), Relaxed);
        }
    }

    /// Tells the thread of units what it has to know.
    fn show_units(&mut self) {
        let Some(units) = &self.shared.units else { return };
        let Some(view) = MemberView::of(&mut self.node, steady_nanos()) else { return };
        let before = self.units.as_ref();
        if before.is_none_or(|before| view.is_news(before)) {
            note_lost_units(before, &view);
            units.adopt_view(&self.shared.inboxes, view.clone());
            let own = (self.shared.net.router.me, self.node.leads());
            let UnitCounts { degraded, lost, gone } = UnitCounts::of(&view.table, own);
            let metrics = &self.shared.metrics.daemon;
            metrics.units_degraded.store(degraded, Relaxed);
            metrics.units_lost.store(lost, Relaxed);
            metrics.units_gone.store(gone, Relaxed);
            self.units = Some(view);
        }
    }

    /// Tells the voters which space this daemon has for copies of files.
    fn report_space(&mut self, now: i64) {
        let Some(units) = &self.shared.units else { return };
        let own = self.shared.net.router.me;
        let space = self.shared.lending.space(&self.shared.metrics);
        let Some(table) = self.node.units().map(Arc::clone) else { return };
        if !self.node.is_report_due(space.is_limited(), now) {
            return;
        }
        let (copies, leaving) = space::copies(&table, own, space.to_leave() > 0);
        let metrics = &self.shared.metrics.daemon;
        metrics.unit_copies.store(copies, Relaxed);
        metrics.unit_copies_leaving.store(leaving, Relaxed);
        let report = space::report(units, &table, own, space);
        self.node.report_space(&report, now, &mut self.actions);
    }

    fn receive(&mut self, (from, bytes): Incoming) -> StartResult<()> {
        let received = self.node.receive(from, &bytes, steady_nanos(), &mut self.actions);
        if received.is_err() {
            tracing::warn!(peer = from.0, "malformed message about the membership");
        }
        self.perform()
    }

    fn pass_answers(&mut self, now: i64) {
        for (daemon, is_reached) in self.questions.answers(&self.shared.net, now) {
            let reached = &self.shared.metrics.daemon.daemons_reached;
            reached.fetch_add(u64::from(is_reached), Relaxed);
            self.node.probed(daemon, is_reached, now, &mut self.actions);
        }
    }

    /// Does what the node asks for.
    fn perform(&mut self) -> StartResult<()> {
        let net = &self.shared.net;
        // A receipt follows what it is about.
        let mut is_stored = true;
        for action in self.actions.drain(..) {
            match action {
                Action::Base(bytes) => {
                    self.stored.base(&bytes).map_err(failed("store the membership"))?;
                }
                Action::Tail(bytes) => {
                    self.stored.tail(&bytes).map_err(failed("store a vote"))?;
                }
                Action::Send { .. } if !is_stored => {}
                Action::Send { to, message } => {
                    let mut framed = Vec::with_capacity(1 + message.len());
                    framed.push(message::MEMBERS);
                    framed.extend_from_slice(&message);
                    net.send(to, &framed, Urgency::Now);
                }
                Action::Probe(daemon) => self.questions.begin(net, daemon, steady_nanos()),
                Action::HandOverUnit(to) => {
                    if let Some(units) = &self.shared.units {
                        units.inbox.put(Event::Advice(to));
                    }
                }
                // Without followers services stay where the map has them.
                action => {
                    if action == Action::Changed {
                        for (dead, start) in note_change(self.members, self.node.membership()) {
                            // Its host may be silent: requests to it go to its successors now.
                            net.sender.disconnect(dead, start);
                        }
                        let membership = self.node.membership();
                        if let Some(engine) = &mut self.engine {
                            engine.note_moves(self.shared, membership);
                        }
                        if let Some(owners) = &net.owners {
                            owners.set(membership);
                        }
                        // Before any service of a later membership is taken over.
                        grow(self.shared, membership);
                    }
                    if let Some(engine) = &mut self.engine {
                        is_stored &= engine.perform(self.shared, &self.node, action);
                    }
                }
            }
        }
        if let Some(engine) = &mut self.engine {
            engine.settle(self.shared, &mut self.node);
        }
        let mut view = lock(&self.members.view);
        (view.is_voter, view.leads) = (self.node.votes(), self.node.leads());
        drop(view);
        Ok(())
    }
}

/// How often loads of services are measured.
const MEASURE_NANOS: i64 = 1_000_000_000;

/// Measures loads: operations since the last measure.
#[derive(Default)]
struct Meter {
    at: i64,
    /// Operations of each service at that time.
    before: Vec<u64>,
}

impl Meter {
    /// The loads of services that this daemon owns, in operations per second, if it is time. `counts` has
    /// the operations of each service, and whether this daemon owns it.
    fn loads(
        &mut self,
        counts: impl Iterator<Item = (u64, bool)>,
        now: i64,
    ) -> Option<Vec<(ServiceIndex, u64)>> {
        let nanos =
            u64::try_from(now - self.at).ok().filter(|&it| it >= MEASURE_NANOS.unsigned_abs());
        let nanos = nanos?;
        let mut loads = Vec::new();
        for (index, (count, is_owned)) in counts.enumerate() {
            if index == self.before.len() {
                self.before.push(count);
            }
            let Some(before) = self.before.get_mut(index) else { continue };
            let more = count.saturating_sub(std::mem::replace(before, count));
            let rate = u128::from(more) * 1_000_000_000 / u128::from(nanos);
            if is_owned {
                loads.push((ServiceIndex(index as u32), rate as u64));
            }
        }
        self.at = now;
        Some(loads)
    }
}

/// Ends this daemon as a signal from outside does.
fn end_daemon() {
    tracing::info!("this daemon has left the instance");
    if let Err(error) = signal_hook::low_level::raise(signal_hook::consts::SIGTERM) {
        tracing::error!(%error, "cannot end");
    }
}

/// Takes up daemons that were added, and those that leave. Files are on their targets once they were
/// there.
fn grow(shared: &Shared, membership: &Membership) {
    let (mut daemons, mut targets) = (0, 0);
    for (daemon, member) in membership.daemons() {
        daemons = daemon.0 + 1;
        if daemon.0 == targets && member.incarnation > UNSTARTED {
            targets = daemons;
        }
    }
    let Shared { net, host, inboxes, shares, .. } = shared;
    shares.note_membership(membership);
    if net.grow(daemons, targets) {
        // After this daemon's services can know it.
        host.op_log.set_targets(targets);
        (0..net.router.workers).for_each(|it| inboxes.send_to_worker(it, WorkerMessage::Grown));
    }
}

/// The number with which a start takes part first. The node adds to it.
const fn first_incarnation(start: u64) -> u64 {
    1 + (start.saturating_sub(1) << 32)
}

/// The same after all daemons were added of which this one knows. The instance had this membership, or a
/// later one in which other things happened, too.
fn with_added(settings: &Settings, mut membership: Membership) -> StartResult<Membership> {
    for (daemon, &domain) in (0..).map(DaemonIndex).zip(&settings.domains) {
        if daemon.0 >= settings.began {
            let add = Change::Add { daemon, incarnation: UNSTARTED, domain };
            let refused = |_| Failure::new(format!("cannot have daemon {}", daemon.0));
            membership.apply(&add).map_err(refused)?;
        }
    }
    Ok(membership)
}

/// The first membership of the instance, with units if its files have copies.
fn with_units(settings: &Settings, membership: Membership) -> StartResult<Membership> {
    if !settings.has_copies() {
        return Ok(membership);
    }
    let goals: Vec<u8> = copy_goals(settings.copies).collect();
    let units = units_per_target(settings.began.into(), goals.len());
    let same_domain = settings.instance.same_domain == SameDomain::On;
    membership.with_units(&goals, units, same_domain).map_err(|why| {
        Failure::new(format!("cannot have {} copies of files: {why:?}", settings.copies))
    })
}

/// Units without all their copies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct UnitCounts {
    /// With too few of them, of those that this daemon is the primary of.
    degraded: u64,
    /// Without any: the daemons of them are down. The leader alone counts them.
    lost: u64,
    /// That once lost all of them for good. As `lost`.
    gone: u64,
}

impl UnitCounts {
    fn of(table: &Table, (own, leads): (DaemonIndex, bool)) -> UnitCounts {
        let units = || table.units().map(|(_, unit)| unit);
        let of_own = units().filter(|unit| unit.primary == Some(own));
        let degraded = of_own.filter(|unit| table.is_degraded(unit)).count();
        let (lost, gone) = (table.lost().count(), units().filter(|unit| unit.lost_at > 0).count());
        let (lost, gone) = if leads { (lost, gone) } else { (0, 0) };
        UnitCounts { degraded: degraded as u64, lost: lost as u64, gone: gone as u64 }
    }
}

/// Logs that bytes are out of reach, in reach again, or lost.
fn note_lost_units(before: Option<&MemberView>, now: &MemberView) {
    if before.is_some_and(|before| before.table.version == now.table.version) {
        return;
    }
    let (newest, of) = (now.table.newest_loss(), now.table.units().count());
    let is_lost_now = newest > before.map_or(0, |before| before.table.newest_loss());
    if is_lost_now {
        let gone = now.table.units().filter(|(_, unit)| unit.lost_at == newest).count();
        tracing::error!(
            units = gone,
            of,
            "all copies of some data are gone: reading what files had there is an error"
        );
    }
    let lost = |view: &MemberView| view.table.lost().count();
    let (before, now) = (before.map_or(0, lost), lost(now));
    if now > before {
        tracing::error!(
            units = now,
            of,
            "all copies of some data are down: reading it is an error"
        );
    } else if now < before && !is_lost_now {
        tracing::info!(units = now, of, "copies of some data are back");
    }
}

/// Shows the membership as it is now, and logs the daemons that came and went. Returns those that are
/// newly down, each with the start that is.
fn note_change(members: &Members, now: &Membership) -> Vec<(DaemonIndex, u64)> {
    let mut dead = Vec::new();
    let mut view = lock(&members.view);
    for (daemon, member) in now.daemons() {
        let before = view.membership.member(daemon).map(|member| member.presence);
        if before == Some(member.presence) {
            continue;
        }
        if member.has_left() {
            // Requests that are under way there end as it does.
            tracing::info!(daemon = daemon.0, epoch = now.epoch, "daemon has left");
            continue;
        }
        if member.presence == Presence::Down {
            dead.push((daemon, start_of(member.incarnation)));
        }
        let (daemon, epoch) = (daemon.0, now.epoch);
        match member.presence {
            Presence::Up => tracing::info!(daemon, epoch, "daemon takes part"),
            Presence::Down => tracing::warn!(daemon, epoch, "daemon is down"),
            Presence::Leaving => tracing::info!(daemon, epoch, "daemon leaves"),
        }
    }
    view.membership = now.clone();
    dead
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_without_all_their_copies_are_counted_once_in_the_instance() {
        use replicas::change::Change;
        let mut table = Table::initial(&[0, 1, 2], &[2], 4, false).expect("a setup");
        let [one, two] = [DaemonIndex(0), DaemonIndex(1)];
        let of = |table: &Table, leads| UnitCounts::of(table, (DaemonIndex(2), leads));
        assert_eq!(of(&table, true), UnitCounts { degraded: 0, lost: 0, gone: 0 });
        for daemon in [one, two] {
            table.apply(&Change::Down { daemon, incarnation: 1, known: 1 }).expect("it was up");
        }
        let down = of(&table, true);
        assert!(down.degraded > 0 && down.lost > 0 && down.gone == 0, "{down:?}");
        assert_eq!(of(&table, false), UnitCounts { lost: 0, ..down });
        for daemon in [one, two] {
            let (incarnation, domain, is_empty, known) = (2, daemon.0.into(), true, 1);
            let up = Change::Up { daemon, incarnation, domain, is_empty, known };
            table.apply(&up).expect("it was down");
        }
        assert_eq!(of(&table, true), UnitCounts { lost: 0, gone: down.lost, ..down });
        assert_eq!(of(&table, false).gone, 0);
    }

    #[test]
    fn loads_are_operations_per_second_of_services_that_are_owned() {
        let mut meter = Meter::default();
        let mut loads = |counts: [u64; 3], owned: [bool; 3], now| {
            let counts = counts.into_iter().zip(owned);
            let loads = meter.loads(counts, now);
            loads.map(|all| all.into_iter().map(|(it, load)| (it.0, load)).collect::<Vec<_>>())
        };
        let second = MEASURE_NANOS;
        // Operations before the first measure are of no known time.
        let first = loads([100, 7, 0], [true, false, true], 50 * second);
        assert_eq!(first, Some(vec![(0, 0), (2, 0)]));
        assert_eq!(loads([900, 9, 0], [true, true, true], 51 * second - 1), None, "too early");
        let next = loads([1_100, 9, 1], [true, true, false], 52 * second);
        assert_eq!(next, Some(vec![(0, 500), (1, 1)]));
        // One that comes back begins with what was counted meanwhile.
        assert_eq!(loads([1_100, 9, 5], [false, false, true], 54 * second), Some(vec![(2, 2)]));
    }

    #[test]
    fn a_daemon_is_newly_down_once() {
        use cluster::change::LastAllowed;
        let mut membership = Membership::initial(&[0, 1, 2], 3, 0, true).expect("a setup");
        let members = Members::new(membership.clone(), None);
        assert!(note_change(&members, &membership).is_empty());
        let daemon = DaemonIndex(1);
        let incarnation = membership.member(daemon).expect("a member").incarnation;
        let down = Change::Down { daemon, incarnation, known: LastAllowed::UNKNOWN };
        membership.apply(&down).expect("it takes part");
        assert_eq!(note_change(&members, &membership), [(daemon, 1)]);
        assert!(note_change(&members, &membership).is_empty());
    }

    #[test]
    fn a_daemon_that_leaves_is_not_cut_off() {
        let membership = Membership::initial(&[0, 1, 2], 1, 0, true).expect("a setup");
        let mut membership = membership.with_owners_that_return();
        let members = Members::new(membership.clone(), None);
        let daemon = DaemonIndex(1);
        for change in [Change::Leave { daemon }, Change::Left { daemon }] {
            membership.apply(&change).expect("it has nothing");
            assert!(note_change(&members, &membership).is_empty(), "{change:?}");
        }
        assert!(members.leaves(daemon));
    }

    #[test]
    fn the_start_of_a_number_is_that_which_took_part_first_with_one_below() {
        for start in [1, 2, 70_000] {
            let first = first_incarnation(start);
            for taken_up_again in [0, 1, u64::from(u32::MAX)] {
                assert_eq!(start_of(first + taken_up_again), start);
            }
        }
    }
}

//! A cluster: nodes with what each stores, a network, and clients that write and check what they read.
//!
//! A service here is a table of numbers; a record sets one. A client writes growing numbers to its
//! key, one after the other. Checked at every step: a daemon that serves has, for each key, at
//! least the last number whose write was acknowledged as replicated, and so the daemons that serve
//! are one per service.

mod changed;
mod checks;
mod copies;
mod losses;
pub(crate) mod steps;
mod stories;
mod units;

pub(crate) use stories::Balanced;

use crate::faults::Fault;
use cluster::change::Tenure;
use cluster::consensus::TICK_NANOS;
use cluster::membership::{Membership, Seat, ServiceIndex};
use cluster::node::{Action, Node, Settings, StandbyStep};
use cluster::shipping::{Lane, Position, put_record};
use encoding::Decode as _;
use encoding::Encode as _;
use replicas::placement::UnitIndex;
use std::collections::BTreeMap;
use steps::{STEPS, Steps};
use testkit::Random;
use testkit::world::{Clock, Events, HostFault, MILLI, Network, SECOND};
use units::HostUnits;
use wire::DaemonIndex;

/// As daemons do.
const TICK: i64 = TICK_NANOS;
const KEYS: u64 = 4;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Setup {
    /// Daemons that the instance begins with.
    pub(crate) daemons: u16,
    pub(crate) followers: u8,
    pub(crate) services: usize,
    pub(crate) domains: u32,
    /// Services return to their first owners.
    pub(crate) returns: bool,
    /// Copies of file data; 0: none.
    pub(crate) copies: u8,
    /// Units of each target.
    pub(crate) units: u16,
    /// Daemons that become owners cannot serve now and then.
    pub(crate) unable: bool,
    /// Homes are exchanged for an even load.
    pub(crate) balances: bool,
}

type Table = BTreeMap<u64, u64>;

/// Files of a host: they survive the process.
#[derive(Clone, Default)]
struct Disk {
    consensus: Option<(Vec<u8>, Vec<u8>)>,
    owned: BTreeMap<u32, Table>,
    copies: BTreeMap<u32, copies::Copy>,
    incarnation: u64,
    /// `Settings::began`; 0: as the first start.
    began: u64,
    /// Some daemons store what they know, others ask when they start.
    membership: Option<Vec<u8>>,
    /// It has left, and does not start again.
    is_over: bool,
    /// Positions of copies, as far as the daemon stores them.
    positions: BTreeMap<u32, Position>,
}

/// Events of a run, so that a test knows that its subject happened.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Counts {
    /// Times at which the voters changed.
    pub(crate) voters: u64,
    /// Times at which a daemon became the owner of a service.
    pub(crate) owners: u64,
    /// Followers that got the records since, and those that got everything.
    pub(crate) resumed: u64,
    pub(crate) snapshots: u64,
    /// Owners that follow with what they have after a hand-over, and those that could not serve.
    pub(crate) kept: u64,
    pub(crate) unable: u64,
    /// Services that got another home.
    pub(crate) homes: u64,
    /// Services that went to a third daemon, since the second one died before it acted.
    pub(crate) passed_over: u64,
    /// Times at which a voter stored changes or votes.
    pub(crate) stored: u64,
    /// Kills at each step of growth and of departures.
    pub(crate) kills_at_steps: [u64; STEPS.len()],
    /// Everything that happened.
    pub(crate) events: u64,
}

impl std::ops::AddAssign for Counts {
    fn add_assign(&mut self, other: Counts) {
        self.voters += other.voters;
        self.owners += other.owners;
        self.resumed += other.resumed;
        self.snapshots += other.snapshots;
        self.kept += other.kept;
        self.unable += other.unable;
        self.homes += other.homes;
        self.passed_over += other.passed_over;
        self.stored += other.stored;
        self.kills_at_steps.iter_mut().zip(other.kills_at_steps).for_each(|(it, more)| *it += more);
        self.events += other.events;
    }
}

struct Host {
    node: Option<Box<Node>>,
    disk: Disk,
    paused_until: i64,
    /// It ends within the next list of actions, and starts again after this time.
    crashes: Option<i64>,
    clock: Clock,
    /// Writes that wait, by ticket.
    waiting: BTreeMap<u64, (u32, u64, u64)>,
    inbox: Vec<(u16, Vec<u8>)>,
    units: HostUnits,
    /// Services that it owns and cannot serve.
    unable: Vec<Tenure>,
}

impl Host {
    fn new(random: &mut Random) -> Host {
        Host {
            node: None,
            disk: Disk::default(),
            paused_until: 0,
            crashes: None,
            clock: Clock::new(random),
            waiting: BTreeMap::new(),
            inbox: Vec::new(),
            units: HostUnits::default(),
            unable: Vec::new(),
        }
    }
}

#[derive(PartialEq, Eq)]
enum What {
    Tick(u16),
    Message {
        from: u16,
        to: u16,
        bytes: Vec<u8>,
    },
    Probed {
        at: u16,
        daemon: u16,
        is_reached: bool,
    },
    Write,
    Fault(Fault),
    /// Somebody asks for a change until it is made.
    Leave(u16),
    Grow {
        token: u64,
    },
    Measure,
    /// Somebody turns the balance on until it is, or asks for a look.
    Balance,
    Look,
    /// A service that was to stand still does.
    Still(u16, ServiceIndex),
}

pub(crate) struct World {
    setup: Setup,
    hosts: Vec<Host>,
    random: Random,
    /// An empty list with space.
    spare: Vec<Action>,
    events: Events<What>,
    network: Network,
    /// Last acknowledged number of each key of each service, and the last written.
    acknowledged: BTreeMap<(u32, u64), u64>,
    written: u64,
    /// Writes that were acknowledged.
    done: u64,
    tickets: u64,
    tokens: u64,
    /// Beats by receiver and time, where they are counted.
    beats: Option<BTreeMap<(u16, i64), u64>>,
    /// The load of each service. None: nobody measures.
    loads: Vec<u64>,
    is_healed: bool,
    /// No message takes long.
    is_fast: bool,
    /// Daemons that were told to leave.
    leaving: Vec<u16>,
    /// Bytes of records that owners keep, where it is not the usual number.
    pub(crate) log_bytes_max: Option<usize>,
    /// Bytes of records after which copies are made anew.
    pub(crate) copy_bytes_max: Option<usize>,
    /// For how long a service goes on that is to stand still, where it does.
    pub(crate) still_after: Option<i64>,
    /// Owners lose records on the way from the log to the node now and then.
    loses_records: bool,
    counts: Counts,
    voters_since: u64,
    /// Homes of services as they were seen last, and the epoch of the membership in which.
    homes: (u64, Vec<Option<DaemonIndex>>),
    /// Seats of services as they were seen last, and the epoch of the membership in which.
    seats: (u64, Vec<Seat>),
    steps: Steps,
    /// Whether every message is what a node sent.
    is_honest: bool,
    /// The last epoch in which somebody acted as the primary of a unit, and those that do now.
    acted: BTreeMap<UnitIndex, u64>,
    acting_now: BTreeMap<UnitIndex, u16>,
}

fn initial(setup: &Setup) -> Membership {
    let domains: Vec<u32> = (0..u32::from(setup.daemons)).map(|it| it % setup.domains).collect();
    let initial = Membership::initial(&domains, setup.services, setup.followers, false);
    let mut initial = initial.expect("a possible setup");
    if setup.returns {
        initial = initial.with_owners_that_return();
    }
    match setup.copies {
        0 => initial,
        copies => {
            let goals: Vec<u8> = wire::limits::copy_goals(copies).collect();
            initial.with_units(&goals, setup.units, false).expect("a possible setup")
        }
    }
}

fn voters(setup: &Setup) -> Vec<DaemonIndex> {
    let count = match setup.daemons {
        0..=2 => 1,
        3 | 4 => 3,
        _ => 5,
    };
    (0..count).map(DaemonIndex).collect()
}

impl World {
    pub(crate) fn new(setup: Setup, seed: u64) -> World {
        let mut random = Random::new(seed);
        let hosts = (0..setup.daemons).map(|_| Host::new(&mut random)).collect();
        let mut world = World {
            setup,
            hosts,
            random,
            spare: Vec::new(),
            events: Events::default(),
            network: Network::default(),
            acknowledged: BTreeMap::new(),
            written: 0,
            done: 0,
            tickets: 0,
            tokens: 0,
            beats: None,
            loads: Vec::new(),
            is_healed: false,
            is_fast: false,
            leaving: Vec::new(),
            // Some instances keep a few records, some none.
            log_bytes_max: [None, Some(200), Some(0), None][(seed % 4) as usize],
            copy_bytes_max: [None, Some(500), None][(seed % 3) as usize],
            still_after: None,
            loses_records: seed % 5 == 2,
            counts: Counts::default(),
            voters_since: 0,
            homes: (0, Vec::new()),
            seats: (0, Vec::new()),
            steps: Steps::default(),
            is_honest: true,
            acted: BTreeMap::new(),
            acting_now: BTreeMap::new(),
        };
        for index in 0..setup.daemons {
            world.begin(index);
        }
        world.push(MILLI, What::Write);
        if setup.balances {
            world.push(SECOND, What::Balance);
        }
        world
    }

    fn begin(&mut self, index: u16) {
        self.start(index);
        let first = self.random.uniform(TICK as u64).cast_signed();
        self.push(first, What::Tick(index));
    }

    fn count(&self) -> u16 {
        self.hosts.len() as u16
    }

    fn push(&mut self, after: i64, what: What) {
        self.events.push(after, what);
    }

    fn clock(&self, index: u16) -> i64 {
        self.hosts[usize::from(index)].clock.at(self.events.now())
    }

    fn node(&self, index: u16) -> Option<&Node> {
        self.hosts[usize::from(index)].node.as_deref()
    }

    fn pass(&mut self, nanos: i64) {
        let end = self.events.now() + nanos;
        self.until(end);
        self.events.pass_to(end);
    }

    fn until(&mut self, end: i64) {
        while let Some(what) = self.events.next(end) {
            self.happen(what);
        }
    }

    fn heal(&mut self) {
        self.network.heal();
        self.network.lose(0);
        self.is_healed = true;
        for index in 0..self.count() {
            self.hosts[usize::from(index)].paused_until = 0;
            self.hosts[usize::from(index)].crashes = None;
            let host = &self.hosts[usize::from(index)];
            if host.node.is_none() && host.disk.incarnation > 0 {
                self.start(index);
            }
        }
    }

    fn happen(&mut self, what: What) {
        match what {
            What::Tick(index) => {
                self.push(TICK, What::Tick(index));
                self.go_on(index);
            }
            What::Message { from, to, bytes } => {
                let is_beat = bytes.first() == Some(&2);
                if let Some(beats) = self.beats.as_mut().filter(|_| is_beat) {
                    *beats.entry((to, self.events.now() / (50 * MILLI))).or_default() += 1;
                }
                let host = &mut self.hosts[usize::from(to)];
                if host.node.is_some() {
                    host.inbox.push((from, bytes));
                    self.read_inbox(to);
                }
            }
            What::Probed { at, daemon, is_reached } => {
                let now = self.clock(at);
                self.with(at, |node, out| node.probed(DaemonIndex(daemon), is_reached, now, out));
            }
            What::Write => {
                let pause = MILLI + self.random.uniform(20 * MILLI as u64).cast_signed();
                self.push(pause, What::Write);
                self.write();
                self.check_units();
            }
            What::Fault(fault) if !self.is_healed => self.fault(fault),
            What::Fault(_) => {}
            What::Leave(index) => self.leave(index),
            What::Grow { token } => self.grow(token),
            What::Measure => self.measure(),
            What::Balance => self.turn_balance_on(),
            What::Look => self.ask_for_look(),
            What::Still(index, service) => {
                self.with(index, |node, out| node.stands_still(service, out));
            }
        }
    }

    fn is_running(&self, index: u16) -> bool {
        let host = &self.hosts[usize::from(index)];
        host.node.is_some() && host.paused_until <= self.events.now()
    }

    fn go_on(&mut self, index: u16) {
        if self.is_running(index) {
            self.read_inbox(index);
            let now = self.clock(index);
            self.with(index, |node, out| node.tick(now, out));
            self.try_again(index);
            self.go_on_with_units(index);
            if self.node(index).is_some_and(Node::may_end) {
                self.hosts[usize::from(index)].disk.is_over = true;
                self.stop(index);
            }
        }
    }

    /// Now and then a daemon can serve what it could not.
    fn try_again(&mut self, index: u16) {
        if self.hosts[usize::from(index)].unable.is_empty() {
            return;
        }
        let is_over = self.is_healed || self.random.uniform(200) == 0;
        let host = &mut self.hosts[usize::from(index)];
        if let Some(node) = host.node.as_deref_mut().filter(|_| is_over) {
            let all = std::mem::take(&mut host.unable).into_iter();
            let (over, left): (Vec<Tenure>, _) = all.partition(|&of| node.may_try_again(of));
            over.into_iter().for_each(|of| node.replayed(of));
            host.unable = left;
        }
    }

    fn read_inbox(&mut self, index: u16) {
        if !self.is_running(index) {
            return;
        }
        for (from, bytes) in std::mem::take(&mut self.hosts[usize::from(index)].inbox) {
            let (now, is_honest) = (self.clock(index), self.is_honest);
            self.with(index, |node, out| {
                let received = node.receive(DaemonIndex(from), &bytes, now, out);
                assert!(received.is_ok() || !is_honest, "d{from} sends d{index} {bytes:?}");
            });
        }
    }

    fn host_fault(&mut self, fault: HostFault) {
        match fault {
            HostFault::Kill(index) => self.stop(index),
            HostFault::Start(index) => {
                if self.hosts[usize::from(index)].node.is_none() {
                    self.start(index);
                }
            }
            HostFault::Cut(index) => self.network.cut_off(index, 0..self.hosts.len() as u16),
            HostFault::OneWay(from, to) => self.network.cut(from, to),
            HostFault::Heal => self.network.heal(),
            HostFault::Pause(index, length) => {
                self.hosts[usize::from(index)].paused_until = self.events.now() + length;
            }
        }
    }

    fn fault(&mut self, fault: Fault) {
        match fault {
            Fault::Host(fault) => self.host_fault(fault),
            Fault::Weigh(seed) => {
                let mut random = Random::new(seed);
                let loads = (0..self.setup.services).map(|_| random.uniform(1000));
                let was_idle = self.loads.is_empty();
                self.loads = loads.collect();
                if self.setup.balances && seed.is_multiple_of(2) {
                    self.push(SECOND, What::Look);
                }
                if was_idle {
                    self.measure();
                }
            }
            Fault::Lose(index) => {
                self.await_copies();
                self.lose(index);
            }
            Fault::LoseTwo(first, second, between) => self.lose_two(first, second, between),
            Fault::LoseNow(index) => self.lose_unless_alone(index),
            Fault::AtStep(kill) => self.kill_at_step(kill),
            Fault::Crash(index, length) => {
                self.hosts[usize::from(index)].crashes = Some(length);
            }
            Fault::Grow => {
                self.tokens += 1;
                self.grow(self.tokens << 20);
            }
            Fault::Leave(index) => {
                let stays = usize::from(self.count()) - self.leaving.len();
                if stays > 1 && !self.leaving.contains(&index) {
                    self.leaving.push(index);
                    self.leave(index);
                }
            }
        }
    }

    /// Daemons measure the loads of their services, each time a little otherwise.
    fn measure(&mut self) {
        self.push(SECOND, What::Measure);
        for index in 0..self.count() {
            let Some(node) = self.node(index).filter(|_| self.is_running(index)) else { continue };
            let owned =
                node.membership().services().filter(|it| it.1.owner == Some(DaemonIndex(index)));
            let owned: Vec<ServiceIndex> = owned.map(|it| it.0).collect();
            let noisy = |service: ServiceIndex| {
                self.loads[service.0 as usize] * (80 + self.random.uniform(41)) / 100
            };
            let loads = owned.iter().copied().zip(owned.iter().copied().map(noisy)).collect();
            self.with(index, |node, _| node.set_loads(loads));
        }
    }

    fn stop(&mut self, index: u16) {
        let host = &mut self.hosts[usize::from(index)];
        self.counts.resumed += host.node.as_deref().map_or(0, Node::resumed);
        host.node = None;
        host.waiting.clear();
        host.inbox.clear();
        host.units = HostUnits::default();
        host.unable.clear();
        host.paused_until = 0;
    }

    fn start(&mut self, index: u16) {
        let now = self.clock(index);
        let setup = self.setup;
        let host = &mut self.hosts[usize::from(index)];
        if host.disk.is_over {
            return;
        }
        host.disk.incarnation += 1;
        let settings = Settings {
            own: DaemonIndex(index),
            incarnation: host.disk.incarnation,
            domain: u32::from(index) % setup.domains,
            began: host.disk.began,
            voters: voters(&setup),
            seed: u64::from(index),
        };
        let is_first = host.disk.incarnation == 1;
        let known = host.disk.membership.as_ref();
        let first = known.map(|bytes| Membership::from_bytes(bytes).expect("what a node stored"));
        let first = first.unwrap_or_else(|| initial(&setup));
        // Before both are stored nothing is sent.
        let stored = host.disk.consensus.as_ref().filter(|(_, tail)| !tail.is_empty());
        let node = match stored {
            Some((base, tail)) => Node::restore(settings, Some((base, tail)), first, now),
            None if is_first => Node::begin(settings, first, now),
            None => Node::restore(settings, None, first, now),
        };
        let mut node = node.expect("what a node stored");
        if let Some(bytes) = self.log_bytes_max {
            node.set_log_bytes_max(bytes);
        }
        if let Some(bytes) = self.copy_bytes_max {
            node.set_copy_bytes_max(bytes);
        }
        node.set_replays();
        for (&service, &position) in &host.disk.positions {
            node.has_copy(ServiceIndex(service), position);
        }
        host.node = Some(Box::new(node));
        self.with(index, |node, out| node.start(now, out));
    }

    /// Lets a node do something, and does what it asks for.
    fn with(&mut self, index: u16, input: impl FnOnce(&mut Node, &mut Vec<Action>)) {
        let host = &mut self.hosts[usize::from(index)];
        let Some(node) = &mut host.node else { return };
        let mut actions = std::mem::take(&mut self.spare);
        input(node, &mut actions);
        host.disk.incarnation = node.incarnation();
        let crash = if actions.len() > 1 { host.crashes.take() } else { None };
        if crash.is_some() {
            actions.truncate(self.random.uniform(actions.len() as u64) as usize);
        }
        let is_changed = crash.is_none() && actions.contains(&Action::Changed);
        for action in actions.drain(..) {
            self.act(index, action);
        }
        self.spare = actions;
        if is_changed {
            self.changed(index);
        }
        if let Some(length) = crash {
            self.stop(index);
            self.push(length, What::Fault(HostFault::Start(index).into()));
        }
    }

    fn act(&mut self, index: u16, action: Action) {
        let disk = &mut self.hosts[usize::from(index)].disk;
        match action {
            Action::Base(bytes) => disk.consensus.get_or_insert_default().0 = bytes,
            Action::Tail(bytes) => {
                self.counts.stored += 1;
                disk.consensus.get_or_insert_default().1 = bytes;
                disk.consensus = disk.consensus.take().filter(|(base, _)| !base.is_empty());
            }
            Action::Send { to, message } => self.send(index, to.0, message),
            Action::Probe(daemon) => {
                let is_reached = usize::from(daemon.0) < self.hosts.len()
                    && self.node(daemon.0).is_some()
                    && !self.is_cut(index, daemon.0)
                    && !self.is_cut(daemon.0, index);
                self.push(5 * MILLI, What::Probed { at: index, daemon: daemon.0, is_reached });
            }
            Action::Store { service, step } => self.store(index, service, step),
            Action::Activate(of) => {
                disk.positions.remove(&of.service.0);
                self.counts.owners += 1;
                let copy = disk.copies.remove(&of.service.0);
                // Its own log is the newer one where it has both: it was the owner after it followed.
                disk.owned.entry(of.service.0).or_insert_with(|| copy.unwrap_or_default().whole);
                if self.setup.unable && !self.is_healed && self.random.uniform(4) == 0 {
                    self.counts.unable += 1;
                    self.hosts[usize::from(index)].unable.push(of);
                    self.with(index, |node, _| node.cannot_serve(of));
                } else {
                    self.with(index, |node, _| node.replayed(of));
                }
            }
            Action::Release(of) => {
                // It may follow the service next: the log stays until a copy is complete.
                let service = of.service.0;
                self.hosts[usize::from(index)].waiting.retain(|_, write| write.0 != service);
            }
            Action::Keep(of) => self.keep(index, of.service),
            Action::Slice(lane) => self.slice(index, lane),
            Action::Replicated { ticket, .. } => {
                let host = &mut self.hosts[usize::from(index)];
                if let Some((service, key, value)) = host.waiting.remove(&ticket) {
                    let last = self.acknowledged.entry((service, key)).or_default();
                    *last = value.max(*last);
                    self.done += 1;
                }
            }
            // A write is one step here.
            Action::Pause(service) => match self.still_after {
                Some(after) => self.push(after, What::Still(index, service)),
                None => self.with(index, |node, out| node.stands_still(service, out)),
            },
            Action::Resume(service) => {
                self.events.retain(|what| *what != What::Still(index, service));
            }
            Action::Changed => {}
            Action::HandOverUnit(of) => self.advised(index, of),
        }
    }

    fn store(&mut self, index: u16, service: ServiceIndex, step: StandbyStep) {
        let Host { node, disk, .. } = &mut self.hosts[usize::from(index)];
        if step == StandbyStep::Begin {
            disk.positions.remove(&service.0);
            self.counts.snapshots += 1;
        }
        let fits = copies::store(disk, service, step);
        assert!(fits || !self.is_honest, "a snapshot begins first");
        let position = node.as_ref().and_then(|node| node.position(service));
        if let Some(position) = position.filter(|_| !index.is_multiple_of(3)) {
            disk.positions.insert(service.0, position);
        }
    }

    /// The log of a service that was handed over becomes a copy.
    fn keep(&mut self, index: u16, service: ServiceIndex) {
        self.counts.kept += 1;
        let host = &mut self.hosts[usize::from(index)];
        host.waiting.retain(|_, write| write.0 != service.0);
        let whole = host.disk.owned.remove(&service.0).unwrap_or_default();
        host.disk.copies.insert(service.0, copies::Copy { whole, begun: None });
        if let Some(position) = host.node.as_ref().and_then(|node| node.position(service)) {
            host.disk.positions.insert(service.0, position);
        }
        self.with(index, |node, _| node.accept_copy(service));
    }

    fn changed(&mut self, index: u16) {
        let host = &mut self.hosts[usize::from(index)];
        let Some(node) = &host.node else { return };
        let since = node.membership().voters().since();
        if since > self.voters_since {
            self.voters_since = since;
            self.counts.voters += 1;
        }
        let epoch = node.membership().epoch;
        if epoch > self.homes.0 {
            let homes = node.membership().services().map(|it| node.membership().home(it.0));
            let before = std::mem::replace(&mut self.homes, (epoch, homes.collect())).1;
            let moved = before.iter().zip(&self.homes.1).filter(|(before, now)| before != now);
            self.counts.homes += moved.count() as u64;
        }
        if index.is_multiple_of(2) {
            host.disk.membership = Some(node.membership().to_bytes());
        }
        self.count_passed_over(index);
        self.note_steps(index);
        if self.is_fast {
            self.propose_for_units(index);
        }
    }

    fn slice(&mut self, index: u16, lane: Lane) {
        let table = self.hosts[usize::from(index)].disk.owned.get(&lane.of.service.0);
        let records: Vec<(u64, u64)> = table.into_iter().flatten().map(|(&k, &v)| (k, v)).collect();
        let mut parts = records.chunks(2).peekable();
        let mut is_last = parts.peek().is_none();
        if is_last {
            self.with(index, |node, out| node.slice(lane, &[], true, out));
        }
        while !is_last {
            let part = parts.next().expect("there is one");
            is_last = parts.peek().is_none();
            let mut batch = Vec::new();
            part.iter().for_each(|&(key, value)| put_record(&mut batch, &record(key, value)));
            self.with(index, |node, out| node.slice(lane, &batch, is_last, out));
        }
    }

    fn is_cut(&self, from: u16, to: u16) -> bool {
        self.network.is_cut(from, to)
    }

    fn send(&mut self, from: u16, to: u16, bytes: Vec<u8>) {
        let is_lost = self.network.loses(&mut self.random);
        // One that was added has perhaps not started yet.
        let is_there = usize::from(to) < self.hosts.len();
        if from == to || is_lost || !is_there || self.is_cut(from, to) {
            return;
        }
        let slow =
            if !self.is_fast && self.random.uniform(50) == 0 { 200 * MILLI } else { 2 * MILLI };
        let now = self.events.now();
        let delay = self.network.delay((from, to), now, slow, &mut self.random);
        self.push(delay, What::Message { from, to, bytes });
    }

    /// A client writes to a daemon that serves, after it has read what that has.
    fn write(&mut self) {
        let service = self.random.uniform(self.setup.services as u64) as u32;
        let key = self.random.uniform(KEYS);
        let Some(index) = self.server(service) else { return };
        let table = self.hosts[usize::from(index)].disk.owned.get(&service);
        for key in 0..KEYS {
            let acknowledged = self.acknowledged.get(&(service, key)).copied().unwrap_or(0);
            let has = table.and_then(|table| table.get(&key)).copied().unwrap_or(0);
            assert!(
                has >= acknowledged || !self.is_honest,
                "at {} daemon {index} serves {service} and has {has} of key {key}, \
                 of which {acknowledged} was acknowledged",
                self.events.now()
            );
        }
        self.written += 1;
        self.tickets += 1;
        let (value, ticket) = (self.written, self.tickets);
        let host = &mut self.hosts[usize::from(index)];
        host.disk.owned.entry(service).or_default().insert(key, value);
        host.waiting.insert(ticket, (service, key, value));
        let now = self.clock(index);
        let is_lost = self.loses_records && !self.is_healed && self.random.uniform(40) == 0;
        self.with(index, |node, out| {
            if is_lost {
                node.lose(ServiceIndex(service));
            } else {
                node.append(ServiceIndex(service), &record(key, value));
            }
            node.wait(ServiceIndex(service), ticket, now, out);
        });
    }

    fn nodes(&self) -> impl Iterator<Item = &Node> {
        self.hosts.iter().filter_map(|host| host.node.as_deref())
    }
}

fn record(key: u64, value: u64) -> Vec<u8> {
    let mut bytes = key.to_bytes();
    value.encode(&mut bytes);
    bytes
}

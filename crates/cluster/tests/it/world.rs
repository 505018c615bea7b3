//! A cluster: nodes with what each stores, a network, and clients that write and check what they read.
//!
//! A service here is a table of numbers; a record sets one. A client writes growing numbers to its
//! key, one after the other. Checked at every step: a daemon that serves has, for each key, at
//! least the last number whose write was acknowledged as replicated, and so the daemons that serve
//! are one per service.

use crate::faults::{Fault, Faults};
use cluster::change::Change;
use cluster::encoding::Decode as _;
use cluster::encoding::Encode as _;
use cluster::membership::{Membership, Presence, Seat, ServiceIndex};
use cluster::node::{Action, Node, Serving, Settings, StandbyStep};
use cluster::shipping::{Lane, Position, put_record, records};
use cluster::voters::Voter;
use std::collections::{BTreeMap, BinaryHeap};
use testkit::Random;
use wire::DaemonIndex;

const MILLI: i64 = 1_000_000;
const SECOND: i64 = 1_000 * MILLI;
const TICK: i64 = 10 * MILLI;
const KEYS: u64 = 4;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Setup {
    /// Daemons that the instance begins with.
    pub(crate) daemons: u16,
    pub(crate) followers: u8,
    pub(crate) services: usize,
    pub(crate) domains: u32,
}

type Table = BTreeMap<u64, u64>;

/// A copy of a service as a follower stores it.
#[derive(Clone, Default)]
struct Copy {
    whole: Table,
    begun: Option<Table>,
}

/// Files of a host: they survive the process.
#[derive(Clone, Default)]
struct Disk {
    consensus: Option<(Vec<u8>, Vec<u8>)>,
    owned: BTreeMap<u32, Table>,
    copies: BTreeMap<u32, Copy>,
    incarnation: u64,
    is_empty: bool,
    /// Some daemons store what they know, others ask when they start.
    membership: Option<Vec<u8>>,
    /// Positions of copies, as far as the daemon stores them.
    positions: BTreeMap<u32, Position>,
}

/// What happened in a run, so that a test knows that its subject did.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Counts {
    /// Times at which the voters changed.
    pub(crate) voters: u64,
    /// Followers that got the records since, and those that got everything.
    pub(crate) resumed: u64,
    pub(crate) snapshots: u64,
}

impl std::ops::AddAssign for Counts {
    fn add_assign(&mut self, other: Counts) {
        self.voters += other.voters;
        self.resumed += other.resumed;
        self.snapshots += other.snapshots;
    }
}

struct Host {
    node: Option<Node>,
    disk: Disk,
    paused_until: i64,
    /// It ends within the next list of actions, and starts again after this time.
    crashes: Option<i64>,
    /// Its clock: offset, and parts per thousand that it is fast.
    offset: i64,
    fast: i64,
    /// Writes that wait, by ticket.
    waiting: BTreeMap<u64, (u32, u64, u64)>,
    inbox: Vec<(u16, Vec<u8>)>,
}

impl Host {
    fn new(random: &mut Random) -> Host {
        Host {
            node: None,
            disk: Disk::default(),
            paused_until: 0,
            crashes: None,
            offset: random.uniform(1000 * SECOND as u64).cast_signed(),
            fast: random.uniform(40).cast_signed() - 20,
            waiting: BTreeMap::new(),
            inbox: Vec::new(),
        }
    }
}

#[derive(PartialEq, Eq)]
struct Event {
    at: i64,
    order: u64,
    what: What,
}

#[derive(PartialEq, Eq)]
enum What {
    Tick(u16),
    Message { from: u16, to: u16, bytes: Vec<u8> },
    Probed { at: u16, daemon: u16, is_reached: bool },
    Write,
    Fault(Fault),
    Leave(u16),
}

impl Ord for Event {
    fn cmp(&self, other: &Event) -> std::cmp::Ordering {
        (other.at, other.order).cmp(&(self.at, self.order))
    }
}

impl PartialOrd for Event {
    fn partial_cmp(&self, other: &Event) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

pub(crate) struct World {
    setup: Setup,
    hosts: Vec<Host>,
    random: Random,
    now: i64,
    order: u64,
    events: BinaryHeap<Event>,
    cuts: Vec<(u16, u16)>,
    /// When the last message of a host to another arrives.
    arrivals: BTreeMap<(u16, u16), i64>,
    loss_percent: u64,
    /// Last acknowledged number of each key of each service, and the last written.
    acknowledged: BTreeMap<(u32, u64), u64>,
    written: u64,
    /// Writes that were acknowledged.
    done: u64,
    tickets: u64,
    is_healed: bool,
    /// Daemons that were told to leave.
    leaving: Vec<u16>,
    /// Bytes of records that owners keep, where it is not the usual number.
    pub(crate) log_bytes_max: Option<usize>,
    counts: Counts,
    voters_since: u64,
    /// Whether every message is what a node sent.
    is_honest: bool,
}

fn initial(setup: &Setup) -> Membership {
    let domains: Vec<u32> = (0..u32::from(setup.daemons)).map(|it| it % setup.domains).collect();
    Membership::initial(&domains, setup.services, setup.followers, false).expect("a possible setup")
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
            now: 0,
            order: 0,
            events: BinaryHeap::new(),
            cuts: Vec::new(),
            arrivals: BTreeMap::new(),
            loss_percent: 0,
            acknowledged: BTreeMap::new(),
            written: 0,
            done: 0,
            tickets: 0,
            is_healed: false,
            leaving: Vec::new(),
            // Some instances keep a few records, some none.
            log_bytes_max: [None, Some(200), Some(0), None][(seed % 4) as usize],
            counts: Counts::default(),
            voters_since: 0,
            is_honest: true,
        };
        for index in 0..setup.daemons {
            world.begin(index);
        }
        world.push(MILLI, What::Write);
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
        self.order += 1;
        self.events.push(Event { at: self.now + after, order: self.order, what });
    }

    fn clock(&self, index: u16) -> i64 {
        let host = &self.hosts[usize::from(index)];
        host.offset + self.now + self.now / 1000 * host.fast
    }

    pub(crate) fn run(mut self, faults: &Faults) -> Counts {
        let (plan, end) = faults.plan(self.setup.daemons, &mut self.random);
        for (at, fault) in plan {
            self.push(at, What::Fault(fault));
        }
        self.loss_percent = faults.loss_percent;
        self.until(end);
        self.heal();
        self.until(end + 12 * SECOND);
        self.check_all_is_well();
        self.counts.resumed += self.nodes().map(Node::resumed).sum::<u64>();
        self.counts
    }

    /// Kills a daemon of a cluster at rest. How long each of its services is served by nobody, in
    /// nanoseconds.
    pub(crate) fn stalls_after_kill(mut self, index: u16) -> Vec<i64> {
        self.until(5 * SECOND);
        self.check_followers();
        let services: Vec<u32> =
            (0..self.setup.services as u32).filter(|&it| self.server(it) == Some(index)).collect();
        assert!(!services.is_empty(), "it serves something");
        self.stop(index);
        let killed = self.now;
        let mut stalls = Vec::new();
        for service in services {
            while self.server(service).is_none() && self.now < killed + 20 * SECOND {
                self.pass(MILLI);
            }
            stalls.push(self.now - killed);
        }
        stalls
    }

    /// An owner keeps the lease that the older voters granted, while the instance grows and other voters
    /// decide: first it is cut off from all but some older voters, then from those too.
    pub(crate) fn run_with_older_lease(mut self) -> Counts {
        self.until(4 * SECOND);
        self.check_followers();
        let leader = (0..self.count()).find(|&it| self.node(it).is_some_and(Node::leads));
        let leader = leader.expect("a leader");
        let others = (0..self.count()).filter(|&it| it != leader);
        let owner = others.clone().max_by_key(|it| (*it == self.setup.daemons - 1, *it));
        let owner = owner.expect("an owner that does not lead");
        let voters = self.node(leader).map(|it| it.membership().voters().next().to_vec());
        let voters = voters.unwrap_or_default();
        let kept: Vec<u16> =
            voters.iter().map(|it| it.daemon.0).filter(|&it| it != leader).collect();
        for _ in 0..1 + self.random.uniform(2) {
            self.fault(Fault::Grow);
        }
        self.watch(1500);
        for other in (0..self.count()).filter(|it| !kept.contains(it)) {
            self.cuts.extend([(owner, other), (other, owner)]);
        }
        self.watch(800);
        self.fault(Fault::Cut(owner));
        self.watch(1500);
        self.heal();
        self.until(self.now + 12 * SECOND);
        self.check_all_is_well();
        self.counts
    }

    /// Looks at each millisecond of a time that is at most this long.
    fn watch(&mut self, millis: u64) {
        for _ in 0..self.random.uniform(millis) {
            self.pass(MILLI);
            for service in 0..self.setup.services as u32 {
                self.server(service);
            }
        }
    }

    fn node(&self, index: u16) -> Option<&Node> {
        self.hosts[usize::from(index)].node.as_ref()
    }

    /// The daemon that serves a service. There is one at most.
    fn server(&self, service: u32) -> Option<u16> {
        let mut serving = (0..self.count()).filter(|&index| {
            let now = self.clock(index);
            let node = self.hosts[usize::from(index)].node.as_ref();
            self.is_running(index)
                && node.is_some_and(|it| it.serving(ServiceIndex(service), now) == Serving::Yes)
        });
        let (first, second) = (serving.next(), serving.next());
        assert!(second.is_none(), "{service} is served by {first:?} and {second:?}");
        first
    }

    /// Runs for a while, and then delivers changed messages: nothing that a peer says ends a node
    /// by a panic.
    pub(crate) fn run_with_changed_messages(mut self, count: u64) {
        self.until(3 * SECOND);
        self.is_honest = false;
        let mut sent = Vec::new();
        for event in std::mem::take(&mut self.events) {
            if let What::Message { from, to, bytes } = &event.what {
                sent.push((*from, *to, bytes.clone()));
            }
            self.events.push(event);
        }
        for _ in 0..count {
            self.until(self.now + 50 * MILLI);
            let on_their_way = self.events.iter().filter_map(|event| match &event.what {
                What::Message { from, to, bytes } => Some((*from, *to, bytes.clone())),
                _ => None,
            });
            sent.extend(on_their_way);
            for (from, to, mut bytes) in std::mem::take(&mut sent) {
                for _ in 0..1 + self.random.uniform(3) {
                    let at = self.random.uniform(bytes.len() as u64) as usize;
                    bytes[at] = self.random.next() as u8;
                }
                bytes.truncate(
                    bytes.len() - self.random.uniform(8).min(bytes.len() as u64 / 9) as usize,
                );
                let now = self.clock(to);
                self.with(to, |node, out| {
                    // Refused or not: it returns.
                    let _ = node.receive(DaemonIndex(from), &bytes, now, out);
                });
            }
        }
    }

    fn pass(&mut self, nanos: i64) {
        let end = self.now + nanos;
        self.until(end);
        self.now = end;
    }

    fn until(&mut self, end: i64) {
        while let Some(event) = self.events.peek()
            && event.at <= end
        {
            let event = self.events.pop().expect("it was seen");
            self.now = event.at;
            self.happen(event.what);
        }
    }

    fn heal(&mut self) {
        self.cuts.clear();
        self.loss_percent = 0;
        self.is_healed = true;
        for index in 0..self.count() {
            self.hosts[usize::from(index)].paused_until = 0;
            self.hosts[usize::from(index)].crashes = None;
            if self.hosts[usize::from(index)].node.is_none() {
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
            }
            What::Fault(fault) if !self.is_healed => self.fault(fault),
            What::Fault(_) => {}
            What::Leave(index) => self.leave(index),
        }
    }

    fn is_running(&self, index: u16) -> bool {
        let host = &self.hosts[usize::from(index)];
        host.node.is_some() && host.paused_until <= self.now
    }

    fn go_on(&mut self, index: u16) {
        if self.is_running(index) {
            self.read_inbox(index);
            let now = self.clock(index);
            self.with(index, |node, out| node.tick(now, out));
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

    fn fault(&mut self, fault: Fault) {
        match fault {
            Fault::Kill(index) => self.stop(index),
            Fault::Start(index) => {
                if self.hosts[usize::from(index)].node.is_none() {
                    self.start(index);
                }
            }
            Fault::Cut(index) => {
                for other in 0..self.count() {
                    self.cuts.extend([(index, other), (other, index)]);
                }
            }
            Fault::OneWay(from, to) => self.cuts.push((from, to)),
            Fault::Heal => self.cuts.clear(),
            Fault::Pause(index, length) => {
                self.hosts[usize::from(index)].paused_until = self.now + length;
            }
            Fault::Weigh(seed) => {
                let mut random = Random::new(seed);
                let weights: Vec<u64> =
                    (0..self.setup.services).map(|_| random.uniform(100)).collect();
                for host in &mut self.hosts {
                    if let Some(node) = &mut host.node {
                        node.set_weights(weights.clone());
                    }
                }
            }
            Fault::Lose(index) => {
                self.check_followers();
                self.check_voters();
                self.stop(index);
                let disk = &mut self.hosts[usize::from(index)].disk;
                let incarnation = disk.incarnation;
                *disk = Disk { incarnation, is_empty: true, ..Disk::default() };
            }
            Fault::Crash(index, length) => {
                self.hosts[usize::from(index)].crashes = Some(length);
            }
            Fault::Grow => {
                let index = self.count();
                let host = Host::new(&mut self.random);
                self.hosts.push(host);
                self.begin(index);
            }
            Fault::Leave(index) => {
                let stays = usize::from(self.count()) - self.leaving.len();
                if stays > 1 + usize::from(self.setup.followers) && !self.leaving.contains(&index) {
                    self.leaving.push(index);
                    self.leave(index);
                }
            }
        }
    }

    /// Asks for the change until it is made.
    fn leave(&mut self, index: u16) {
        let daemon = DaemonIndex(index);
        let is_made = self.nodes().any(|node| {
            let member = node.membership().member(daemon);
            member.is_some_and(|it| it.presence == Presence::Leaving)
        });
        if !is_made {
            let any = self.random.uniform(self.hosts.len() as u64) as u16;
            if self.is_running(any) {
                self.with(any, |node, out| node.propose(&Change::Leave { daemon }, out));
            }
            self.push(300 * MILLI, What::Leave(index));
        }
    }

    fn stop(&mut self, index: u16) {
        let host = &mut self.hosts[usize::from(index)];
        self.counts.resumed += host.node.as_ref().map_or(0, Node::resumed);
        host.node = None;
        host.waiting.clear();
        host.inbox.clear();
        host.paused_until = 0;
    }

    fn start(&mut self, index: u16) {
        let now = self.clock(index);
        let setup = self.setup;
        let host = &mut self.hosts[usize::from(index)];
        host.disk.incarnation += 1;
        let settings = Settings {
            own: DaemonIndex(index),
            incarnation: host.disk.incarnation,
            domain: u32::from(index) % setup.domains,
            is_empty: host.disk.is_empty,
            voters: voters(&setup),
            seed: u64::from(index),
        };
        let is_first = host.disk.incarnation == 1;
        let known = host.disk.membership.as_ref();
        let first = known.map(|bytes| Membership::from_bytes(bytes).expect("what a node stored"));
        let first = first.unwrap_or_else(|| initial(&setup));
        let node = match &host.disk.consensus {
            Some((base, tail)) => Node::restore(settings, Some((base, tail)), first, now),
            None if is_first => Node::begin(settings, first, now),
            None => Node::restore(settings, None, first, now),
        };
        let mut node = node.expect("what a node stored");
        if let Some(bytes) = self.log_bytes_max {
            node.set_log_bytes_max(bytes);
        }
        for (&service, &position) in &host.disk.positions {
            node.has_copy(ServiceIndex(service), position);
        }
        host.node = Some(node);
        self.with(index, |node, out| node.start(now, out));
    }

    /// Lets a node do something, and does what it asks for.
    fn with(&mut self, index: u16, input: impl FnOnce(&mut Node, &mut Vec<Action>)) {
        let Some(mut node) = self.hosts[usize::from(index)].node.take() else { return };
        let mut actions = Vec::new();
        input(&mut node, &mut actions);
        let (incarnation, is_empty) = (node.incarnation(), node.is_empty());
        let host = &mut self.hosts[usize::from(index)];
        host.node = Some(node);
        host.disk.incarnation = incarnation;
        host.disk.is_empty = is_empty;
        if actions.len() > 1
            && let Some(length) = host.crashes.take()
        {
            actions.truncate(self.random.uniform(actions.len() as u64) as usize);
            for action in actions {
                self.act(index, action);
            }
            self.stop(index);
            self.push(length, What::Fault(Fault::Start(index)));
            return;
        }
        for action in actions {
            self.act(index, action);
        }
    }

    fn act(&mut self, index: u16, action: Action) {
        let disk = &mut self.hosts[usize::from(index)].disk;
        match action {
            Action::Base(bytes) => disk.consensus.get_or_insert_default().0 = bytes,
            Action::Tail(bytes) => {
                disk.consensus.get_or_insert_default().1 = bytes;
                disk.consensus = disk.consensus.take().filter(|(base, _)| !base.is_empty());
            }
            Action::Send { to, message } => self.send(index, to.0, message),
            Action::Probe(daemon) => {
                let is_reached = self.hosts[usize::from(daemon.0)].node.is_some()
                    && !self.is_cut(index, daemon.0)
                    && !self.is_cut(daemon.0, index);
                self.push(5 * MILLI, What::Probed { at: index, daemon: daemon.0, is_reached });
            }
            Action::Store { service, step } => self.store(index, service, step),
            Action::Activate(of) => {
                disk.positions.remove(&of.service.0);
                let copy = disk.copies.remove(&of.service.0);
                // Its own log is the newer one where it has both: it was the owner after it followed.
                disk.owned.entry(of.service.0).or_insert_with(|| copy.unwrap_or_default().whole);
            }
            Action::Release(of) => {
                // It may follow the service next: the log stays until a copy is complete.
                let service = of.service.0;
                self.hosts[usize::from(index)].waiting.retain(|_, write| write.0 != service);
            }
            Action::Slice(lane) => self.slice(index, lane),
            Action::Replicated { ticket, .. } => {
                let host = &mut self.hosts[usize::from(index)];
                if let Some((service, key, value)) = host.waiting.remove(&ticket) {
                    let last = self.acknowledged.entry((service, key)).or_default();
                    *last = value.max(*last);
                    self.done += 1;
                }
            }
            Action::Changed => self.changed(index),
            Action::Pause(_) | Action::Resume(_) => {}
        }
    }

    fn store(&mut self, index: u16, service: ServiceIndex, step: StandbyStep) {
        let Host { node, disk, .. } = &mut self.hosts[usize::from(index)];
        if step == StandbyStep::Begin {
            disk.positions.remove(&service.0);
            self.counts.snapshots += 1;
        }
        store(disk, service, step);
        let position = node.as_ref().and_then(|node| node.position(service));
        if let Some(position) = position.filter(|_| !index.is_multiple_of(3)) {
            disk.positions.insert(service.0, position);
        }
    }

    fn changed(&mut self, index: u16) {
        let host = &mut self.hosts[usize::from(index)];
        let Some(node) = &host.node else { return };
        let since = node.membership().voters().since();
        if since > self.voters_since {
            self.voters_since = since;
            self.counts.voters += 1;
        }
        if index.is_multiple_of(2) {
            host.disk.membership = Some(node.membership().to_bytes());
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
        self.cuts.contains(&(from, to))
    }

    fn send(&mut self, from: u16, to: u16, bytes: Vec<u8>) {
        let is_lost = self.random.uniform(100) < self.loss_percent;
        if from == to || is_lost || self.is_cut(from, to) {
            return;
        }
        let slow = if self.random.uniform(50) == 0 { 200 * MILLI } else { 2 * MILLI };
        let delay = MILLI / 10 + self.random.uniform(slow.cast_unsigned()).cast_signed();
        // A connection keeps the order.
        let last = self.arrivals.entry((from, to)).or_default();
        *last = (self.now + delay).max(*last);
        let delay = *last - self.now;
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
                has >= acknowledged,
                "at {} daemon {index} serves {service} and has {has} of key {key}, \
                 of which {acknowledged} was acknowledged",
                self.now
            );
        }
        self.written += 1;
        self.tickets += 1;
        let (value, ticket) = (self.written, self.tickets);
        let host = &mut self.hosts[usize::from(index)];
        host.disk.owned.entry(service).or_default().insert(key, value);
        host.waiting.insert(ticket, (service, key, value));
        let now = self.clock(index);
        self.with(index, |node, out| {
            node.append(ServiceIndex(service), &record(key, value));
            node.wait(ServiceIndex(service), ticket, now, out);
        });
    }

    fn check_followers(&mut self) {
        // A message that is late may cause an election at any time.
        let end = self.now + 3 * SECOND;
        while !self.nodes().any(Node::leads) && self.now < end {
            self.pass(TICK);
        }
        let membership = self.nodes().find(|node| node.leads()).expect("a leader").membership();
        for (service, seat) in membership.services() {
            let in_sync = seat.followers.iter().filter(|it| it.is_in_sync).count();
            assert!(seat.owner.is_some(), "{service:?} has no owner");
            assert_eq!(in_sync, usize::from(self.setup.followers), "{service:?}: {seat:?}");
        }
    }

    /// As many voters as there should be, which all vote, and no other daemon does.
    fn check_voters(&self) {
        let leader = self.nodes().find(|node| node.leads()).expect("a leader");
        let (membership, voters) = (leader.membership(), leader.membership().voters());
        let up = membership.daemons().filter(|(_, member)| member.presence == Presence::Up).count();
        let count = [1, 1, 1, 3, 3, 5][up.min(5)];
        assert!(!voters.is_joint(), "{voters:?}");
        assert_eq!(voters.next().len(), count, "{voters:?} of {up}");
        for index in 0..self.count() {
            let is_voter = voters.next().iter().any(|it| it.daemon.0 == index);
            let host = &self.hosts[usize::from(index)];
            assert_eq!(is_voter, host.disk.consensus.is_some(), "{index} of {voters:?}");
            let member = membership.member(DaemonIndex(index));
            let is_up = member.is_some_and(|it| it.presence == Presence::Up);
            assert!(is_up || !is_voter, "{index} of {voters:?}");
        }
        let domain = |it: &Voter| membership.member(it.daemon).map(|it| it.domain);
        let mut domains: Vec<_> = voters.next().iter().map(domain).collect();
        domains.sort_unstable();
        domains.dedup();
        assert!(domains.len() >= count.min(self.setup.domains as usize), "{voters:?}");
    }

    fn check_left(&self) {
        let leader = self.nodes().find(|node| node.leads()).expect("a leader");
        for &index in &self.leaving {
            let has = |seat: &Seat| seat.has(DaemonIndex(index));
            let seats: Vec<_> = leader.membership().services().filter(|it| has(it.1)).collect();
            assert!(seats.is_empty(), "{index} leaves and has {seats:?}");
        }
    }

    fn check_all_is_well(&mut self) {
        self.check_followers();
        self.check_voters();
        self.check_left();
        assert!(self.done > 0, "nothing was written");
        let epochs: Vec<u64> = self.nodes().map(|node| node.membership().epoch).collect();
        assert!(epochs.windows(2).all(|pair| pair[0] == pair[1]), "epochs {epochs:?}");
        let served = (0..self.setup.services as u32).all(|it| self.server(it).is_some());
        assert!(served, "a service is not served");
        // Messages on their way arrive; then followers equal their owners.
        self.events.retain(|event| event.what != What::Write);
        let end = self.now + SECOND;
        self.until(end);
        let waiting: Vec<_> = self.hosts.iter().map(|host| host.waiting.len()).collect();
        assert!(waiting.iter().all(|&count| count == 0), "writes wait: {waiting:?}");
        let membership = self.nodes().next().expect("nodes").membership().clone();
        for (service, seat) in membership.services() {
            let owner = seat.owner.expect("checked");
            let table = self.hosts[usize::from(owner.0)].disk.owned.get(&service.0);
            for follower in &seat.followers {
                let copy = self.hosts[usize::from(follower.daemon.0)].disk.copies.get(&service.0);
                let copy = copy.map(|copy| &copy.whole);
                assert_eq!(copy.cloned().unwrap_or_default(), table.cloned().unwrap_or_default());
            }
        }
    }

    fn nodes(&self) -> impl Iterator<Item = &Node> {
        self.hosts.iter().flat_map(|host| &host.node)
    }
}

fn record(key: u64, value: u64) -> Vec<u8> {
    let mut bytes = key.to_bytes();
    value.encode(&mut bytes);
    bytes
}

fn apply(table: &mut Table, batch: &[u8]) {
    for record in records(batch) {
        let number =
            |at: usize| u64::from_le_bytes(record[at..at + 8].try_into().expect("8 bytes"));
        table.insert(number(0), number(8));
    }
}

fn store(disk: &mut Disk, service: ServiceIndex, step: StandbyStep) {
    let copy = disk.copies.entry(service.0).or_default();
    match step {
        StandbyStep::Begin => copy.begun = Some(Table::new()),
        StandbyStep::Records(batch) => {
            apply(&mut copy.whole, &batch);
            if let Some(begun) = &mut copy.begun {
                apply(begun, &batch);
            }
        }
        StandbyStep::Slice(batch) => apply(copy.begun.as_mut().expect("begun"), &batch),
        StandbyStep::Complete => {
            copy.whole = copy.begun.take().expect("begun");
            // A log from the time when this daemon was the owner is older than the copy.
            disk.owned.remove(&service.0);
        }
    }
}

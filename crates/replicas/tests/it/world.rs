//! Daemons with copies of units, clients, a network and a membership, in virtual time. `host` does
//! what the nodes ask for; what clients see is checked by `checks`, and the end by `quiet`.

mod asking;
mod disturbances;
mod quiet;

use crate::backing::{Backing, OWNER};
use crate::checks::{Cell, Checks};
use crate::clients::{Client, File};
use crate::faults::{Fault, Faults, MEMORY_CELLS};
use crate::host::{Host, Settle};
use crate::registry::{BEAT, DRIFT, Grant, LEASE, Registry};
use encoding::{Decode, Encode};
use replicas::change::{Change, CopyId};
use replicas::dirty::Notice;
use replicas::kept::REQUESTS_MAX;
use replicas::node::{Action, Answer, Message, Node, Party, Read, Request, Window};
use replicas::operation::{Object, RequestId, Stamp};
use replicas::placement::{UnitIndex, unit_of};
use replicas::policy::Advice;
use replicas::space::{DaemonSpace, SpaceReport};
use replicas::table::{Presence, Table};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::AddAssign;
use std::rc::Rc;
use testkit::Random;
use testkit::world::{Events, MILLI, Network, SECOND};
use wire::{DaemonIndex, Inode};

/// Bytes of a cell, and cells of an object.
pub(crate) const CELL: u64 = 4096;
pub(crate) const CELLS: u64 = 8;
const TICK: i64 = 20 * MILLI;
const REGISTRY: u16 = 1000;
const CLIENT: u16 = 2000;
const CLIENTS: usize = 3;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Setup {
    pub(crate) daemons: u16,
    pub(crate) domains: u32,
    pub(crate) goals: &'static [u8],
    pub(crate) files: u64,
    /// Whether clients may find bytes lost, or operations failed.
    pub(crate) may_lose: bool,
    /// Of a client at a node, and of a node at another.
    pub(crate) windows: (Window, Window),
    /// Time between two looks of a writeback.
    pub(crate) pause: i64,
}

#[derive(Clone)]
pub(crate) enum Note {
    /// A message of a node, as it is sent.
    Peer(Vec<u8>),
    Beat {
        incarnation: u64,
        is_empty: bool,
        sent: i64,
        version: u64,
    },
    Grant(Grant),
    /// The table, for a daemon that missed changes.
    Table(Rc<[u8]>),
    /// A change, with the version of the table that it makes.
    Change(u64, Rc<[u8]>),
    Propose(Vec<u8>),
    Advise(Vec<u8>),
    Request(UnitIndex, Request),
    Read(UnitIndex, Read),
    Reply(RequestId, Reply),
    Notice(Vec<u8>),
    Noticed(Vec<u8>),
    AskClean(UnitIndex, Object),
    CleanUpTo(UnitIndex, Object, Stamp),
}

#[derive(Clone, Debug)]
pub(crate) enum Reply {
    Answer(Answer),
    Bytes(Vec<Cell>),
    /// No copy has the bytes with a correct checksum.
    Corrupt,
}

pub(crate) enum What {
    Tick(u16),
    Registry,
    Client(usize),
    Begin(usize),
    WriteBack(u16),
    AskPrimaries,
    Commit(u64),
    Arrive { from: u16, to: u16, note: Note },
    Pulled { host: u16, run: u64, ticket: u64 },
    Fault(Fault),
}

/// Counts of a run, for the messages of a campaign.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Tally {
    pub(crate) written: u64,
    pub(crate) read: u64,
    pub(crate) lost: u64,
    pub(crate) unavailable: u64,
    pub(crate) failed: u64,
    pub(crate) corrupt: u64,
    pub(crate) busy: u64,
    pub(crate) saved: u64,
    /// Objects on the list of a lost unit, and those that were saved.
    pub(crate) listed: u64,
    pub(crate) spared: u64,
    pub(crate) repairs: u64,
    pub(crate) reads_at_copies: u64,
    pub(crate) bytes_filled: u64,
    /// Pulls that filled copies, from copies that are not the primary, and from primaries.
    pub(crate) filled_by_copies: u64,
    pub(crate) filled_by_primaries: u64,
    /// The longest time from the beginning of an operation to its answer.
    pub(crate) longest: i64,
    pub(crate) events: u64,
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Tally) {
        self.written += other.written;
        self.read += other.read;
        self.lost += other.lost;
        self.unavailable += other.unavailable;
        self.failed += other.failed;
        self.corrupt += other.corrupt;
        self.busy += other.busy;
        self.saved += other.saved;
        self.listed += other.listed;
        self.spared += other.spared;
        self.repairs += other.repairs;
        self.reads_at_copies += other.reads_at_copies;
        self.bytes_filled += other.bytes_filled;
        self.filled_by_copies += other.filled_by_copies;
        self.filled_by_primaries += other.filled_by_primaries;
        self.longest = self.longest.max(other.longest);
        self.events += other.events;
    }
}

pub(crate) struct World {
    pub(crate) setup: Setup,
    pub(crate) hosts: Vec<Host>,
    pub(crate) clients: Vec<Client>,
    pub(crate) files: Vec<File>,
    pub(crate) registry: Registry,
    pub(crate) checks: Checks,
    pub(crate) backing: Backing,
    /// Units without a primary.
    lost: BTreeSet<UnitIndex>,
    pub(crate) random: Random,
    pub(crate) tally: Tally,
    /// Which daemon acknowledged in an epoch of a unit.
    pub(crate) acknowledging: BTreeMap<(UnitIndex, u64), u16>,
    /// For each ticket of a request its identity.
    pub(crate) tickets: BTreeMap<u64, (RequestId, Option<Read>)>,
    tables: Vec<Rc<Table>>,
    tickets_given: u64,
    clients_begun: u64,
    inodes: u64,
    pub(crate) events: Events<What>,
    network: Network,
    is_healed: bool,
    is_ending: bool,
    /// Cells that daemons may hold, where memory of them was reclaimed once.
    pub(crate) lent: BTreeMap<u16, u64>,
    has_lending: bool,
}

impl World {
    pub(crate) fn new(setup: Setup, seed: u64) -> World {
        let mut random = Random::new(seed);
        let domains: Vec<u32> =
            (0..u32::from(setup.daemons)).map(|it| it % setup.domains).collect();
        let table = Table::initial(&domains, setup.goals, 2, false).expect("a possible setup");
        let hosts = (0..setup.daemons).map(|_| Host::new(&mut random)).collect();
        let registry = Registry::new(table);
        let tables = vec![registry.table.clone(); CLIENTS];
        let mut world = World {
            setup,
            hosts,
            clients: (0..CLIENTS as u64).map(|it| Client::new(it + 1)).collect(),
            files: Vec::new(),
            registry,
            checks: Checks::default(),
            backing: Backing::default(),
            lost: BTreeSet::new(),
            random,
            tally: Tally::default(),
            acknowledging: BTreeMap::new(),
            tickets: BTreeMap::new(),
            tables,
            tickets_given: 0,
            clients_begun: CLIENTS as u64,
            inodes: 0,
            events: Events::default(),
            network: Network::default(),
            is_healed: false,
            is_ending: false,
            lent: BTreeMap::new(),
            has_lending: false,
        };
        for index in 0..setup.daemons {
            world.start(index);
            let first = world.random.uniform(TICK as u64).cast_signed();
            world.push(first, What::Tick(index));
            world.push(first + setup.pause, What::WriteBack(index));
        }
        for number in 0..setup.files {
            let file = world.new_file(number % 2 == 1);
            world.files.push(file);
        }
        for client in 0..CLIENTS {
            world.push(MILLI, What::Client(client));
            world.push(MILLI, What::Begin(client));
        }
        world.push(MILLI, What::Registry);
        world.push(MILLI, What::AskPrimaries);
        world
    }

    fn new_file(&mut self, is_behind: bool) -> File {
        self.inodes += 1;
        let object = Object { inode: Inode(self.inodes), stripe: self.random.uniform(3) };
        let class = self.random.uniform(self.setup.goals.len() as u64) as u32;
        let home = self.random.uniform(self.setup.daemons.into()) as u32;
        let row = class * u32::from(self.setup.daemons) + home;
        let unit = unit_of(row, 2, object.inode, object.stripe);
        // The service of some files knows an older table.
        let born = self.registry.table.version.saturating_sub(self.inodes % 4);
        File { object, unit, born, is_behind }
    }

    pub(crate) fn push_pull(&mut self, after: i64, host: u16, run: u64, ticket: u64) {
        self.push(after, What::Pulled { host, run, ticket });
    }

    pub(crate) fn push_commit(&mut self, after: i64, ticket: u64) {
        self.push(after, What::Commit(ticket));
    }

    pub(crate) fn next_ticket(&mut self) -> u64 {
        self.tickets_given += 1;
        self.tickets_given
    }

    fn push(&mut self, after: i64, what: What) {
        self.events.push(after, what);
    }

    pub(crate) fn run(mut self, faults: &Faults) -> Tally {
        let mut peers: Vec<u16> = (0..self.setup.daemons).collect();
        peers.extend((0..CLIENTS as u16).map(|it| CLIENT + it));
        peers.extend([REGISTRY, OWNER]);
        let (plan, end) = faults.plan(self.setup.daemons, &peers, &mut self.random);
        for (at, fault) in plan {
            self.push(at, What::Fault(fault));
        }
        self.network.lose(faults.loss_percent);
        self.has_lending = faults.reclaims > 0;
        self.until(end);
        self.heal();
        self.until(end + 2 * SECOND);
        self.is_ending = true;
        let limit = self.events.now() + 30 * SECOND;
        while !self.is_quiet() && self.events.now() < limit {
            self.until(self.events.now() + SECOND / 4);
        }
        self.check_all_is_well();
        self.tally.events = self.events.happened();
        self.tally
    }

    fn until(&mut self, end: i64) {
        while let Some(what) = self.events.next(end) {
            self.happen(what);
        }
        self.events.pass_to(end);
    }

    fn heal(&mut self) {
        self.network.heal();
        self.network.lose(0);
        self.is_healed = true;
        for index in 0..self.setup.daemons {
            let host = &mut self.hosts[usize::from(index)];
            (host.paused_until, host.slow_until) = (0, 0);
            if host.node.is_none() {
                self.start(index);
            }
        }
    }

    fn happen(&mut self, what: What) {
        match what {
            What::Tick(index) => {
                self.push(TICK, What::Tick(index));
                self.tick(index);
            }
            What::Registry => {
                self.push(50 * MILLI, What::Registry);
                let version = self.registry.table.version;
                self.report_space();
                for advice in self.registry.tick(self.events.now()) {
                    let Advice::HandOver(to) = advice else { continue };
                    let unit = self.registry.table.unit(to.of.unit).expect("a unit");
                    let primary = unit.primary.expect("advice is for primaries");
                    self.send(REGISTRY, primary.0, Note::Advise(to.to_bytes()));
                }
                self.publish(version);
            }
            What::Client(index) => {
                self.push(10 * MILLI, What::Client(index));
                self.ask_again(index);
            }
            What::Begin(index) => {
                let pause = (10 + self.random.uniform(40).cast_signed()) * MILLI;
                self.push(pause, What::Begin(index));
                self.begin(index);
            }
            What::WriteBack(index) => {
                self.push(self.setup.pause, What::WriteBack(index));
                self.write_back(index);
            }
            What::AskPrimaries => {
                self.push(SECOND / 2, What::AskPrimaries);
                self.ask_primaries();
            }
            What::Commit(ticket) => self.commit(ticket),
            What::Arrive { from, to, note } => match to {
                OWNER => self.at_owner(from, note),
                REGISTRY => self.at_registry(from, note),
                CLIENT.. => self.at_client(usize::from(to - CLIENT), note),
                _ => {
                    let host = &mut self.hosts[usize::from(to)];
                    if host.node.is_some() {
                        host.inbox.push((from, note));
                        self.read_inbox(to);
                    }
                }
            },
            What::Pulled { host, run, ticket } => self.pull_ends(host, run, ticket),
            What::Fault(fault) if !self.is_healed => self.fault(fault),
            What::Fault(_) => {}
        }
    }

    /// Daemons that run report their space, in runs in which memory is reclaimed.
    fn report_space(&mut self) {
        if !self.has_lending {
            return;
        }
        for index in 0..self.setup.daemons {
            let daemon = DaemonIndex(index);
            let store = &self.hosts[usize::from(index)].store;
            if !self.is_running(index) || self.is_cut(index, REGISTRY) {
                continue;
            }
            let bytes_of = |unit| {
                let objects = store.iter().filter(|((it, _), _)| *it == unit);
                objects.map(|(_, cells)| cells.len() as u64).sum::<u64>()
            };
            let (memory, used) = (MEMORY_CELLS, store.values().map(|it| it.len() as u64).sum());
            let allowed = self.lent.get(&index).copied().unwrap_or(memory);
            let space = DaemonSpace { memory, allowed, used, ssd: 0, ssd_free: 0 };
            let table = &self.registry.table;
            let own = table.units().filter(|(_, row)| row.primary == Some(daemon));
            let units = own.map(|(unit, _)| (unit, bytes_of(unit))).collect();
            self.registry
                .spaces
                .hear(daemon, &read_again(&SpaceReport { space, units }.to_bytes()));
        }
    }

    fn publish(&mut self, before: u64) {
        if self.registry.table.version > before {
            let lost: BTreeSet<UnitIndex> = self.registry.table.lost().collect();
            let news: Vec<UnitIndex> = lost.difference(&self.lost).copied().collect();
            self.lost = lost;
            news.into_iter().for_each(|unit| self.check_lost(unit));
        }
        for (version, change) in std::mem::take(&mut self.registry.news) {
            let change: Rc<[u8]> = change.to_bytes().into();
            for index in 0..self.setup.daemons {
                self.send(REGISTRY, index, Note::Change(version, change.clone()));
            }
        }
    }

    fn at_registry(&mut self, from: u16, note: Note) {
        let before = self.registry.table.version;
        match note {
            Note::Beat { incarnation, is_empty, sent, version } => {
                let beat = (incarnation, is_empty);
                if let Some(grant) = self.registry.beat(from, beat, sent, self.events.now()) {
                    self.send(REGISTRY, from, Note::Grant(grant));
                }
                if version < self.registry.table.version {
                    let table = self.registry.table.to_bytes().into();
                    self.send(REGISTRY, from, Note::Table(table));
                }
            }
            Note::Propose(bytes) => {
                self.registry.apply(&read_again(&bytes));
            }
            _ => {}
        }
        self.publish(before);
    }

    pub(crate) fn is_running(&self, index: u16) -> bool {
        let host = &self.hosts[usize::from(index)];
        host.node.is_some() && host.paused_until <= self.events.now()
    }

    fn tick(&mut self, index: u16) {
        if !self.is_running(index) {
            return;
        }
        self.read_inbox(index);
        let host = &mut self.hosts[usize::from(index)];
        let now = host.clock(self.events.now());
        if now - host.beaten_at >= BEAT {
            self.beat(index);
        }
        let host = &mut self.hosts[usize::from(index)];
        let settled = host.settle.filter(|it| now >= it.at);
        let is_idle = host.node.as_ref().is_none_or(Node::is_idle);
        if let Some(settle) = settled {
            host.settle = None;
            self.with(index, |node, now, out| node.settled(settle.version, now, out));
        }
        if !is_idle {
            self.with(index, Node::tick);
        }
    }

    fn beat(&mut self, index: u16) {
        let host = &mut self.hosts[usize::from(index)];
        let now = host.clock(self.events.now());
        host.beaten_at = now;
        let version = host.node.as_ref().map_or(0, |node| node.table().version);
        let (incarnation, is_empty) = (host.incarnation, host.is_empty);
        let note = Note::Beat { incarnation, is_empty, sent: now, version };
        self.send(index, REGISTRY, note);
    }

    fn read_inbox(&mut self, index: u16) {
        if !self.is_running(index) {
            return;
        }
        for (from, note) in std::mem::take(&mut self.hosts[usize::from(index)].inbox) {
            match note {
                Note::Peer(bytes) => {
                    let message: Message = read_again(&bytes);
                    self.with(index, |node, now, out| {
                        node.receive(DaemonIndex(from), message, now, out);
                    });
                }
                Note::Grant(grant) => self.granted(index, grant),
                Note::Table(bytes) => self.adopt(index, read_again(&bytes)),
                Note::Change(version, bytes) => self.apply(index, version, &read_again(&bytes)),
                Note::Advise(bytes) => {
                    let to: CopyId = read_again(&bytes);
                    self.with(index, |node, now, out| node.advise(to, now, out));
                }
                Note::Request(unit, request) => {
                    self.with(index, |node, now, out| node.request(unit, request, now, out));
                }
                Note::Read(unit, read) => {
                    self.with(index, |node, now, out| node.read(unit, read, now, out));
                }
                Note::Noticed(bytes) => {
                    let notice: Notice = read_again(&bytes);
                    self.with(index, |node, now, out| node.noticed(&notice, now, out));
                }
                Note::AskClean(unit, object) => self.tell_clean(index, unit, object),
                Note::Beat { .. } | Note::Propose(_) | Note::Reply(..) => {}
                Note::Notice(_) | Note::CleanUpTo(..) => {}
            }
        }
    }

    fn granted(&mut self, index: u16, grant: Grant) {
        let host = &mut self.hosts[usize::from(index)];
        if grant.incarnation != host.incarnation {
            return;
        }
        host.is_empty = false;
        let now = host.clock(self.events.now());
        let quiet = grant.quiet - grant.quiet / DRIFT;
        let at = now - quiet + LEASE + LEASE / DRIFT;
        if host.settle.is_none_or(|it| it.version < grant.version) {
            host.settle = Some(Settle { version: grant.version, at });
        }
        let (until, version) = (grant.sent + LEASE, grant.version);
        self.with(index, |node, now, out| node.lease(until, version, now, out));
    }

    fn adopt(&mut self, index: u16, table: Table) {
        let host = &self.hosts[usize::from(index)];
        let holder = table.holder(DaemonIndex(index)).expect("a daemon");
        if holder.presence == Presence::Down && holder.incarnation == host.incarnation {
            self.come_again(index);
        }
        let incarnation = self.hosts[usize::from(index)].incarnation;
        self.with(index, |node, now, out| node.adopt(table, incarnation, now, out));
        self.ask_for_grant(index);
    }

    fn apply(&mut self, index: u16, version: u64, change: &Change) {
        let host = &self.hosts[usize::from(index)];
        let is_new = host.node.as_ref().is_some_and(|node| node.table().version < version);
        let dead = match *change {
            Change::Down { daemon, incarnation, .. } => Some((daemon, incarnation)),
            _ => None,
        };
        if is_new && dead == Some((DaemonIndex(index), host.incarnation)) {
            self.come_again(index);
        }
        let incarnation = self.hosts[usize::from(index)].incarnation;
        let mut applied = Ok(());
        self.with(index, |node, now, out| {
            applied = node.apply(change, version, incarnation, now, out);
        });
        match applied {
            Ok(()) => {
                let node = self.hosts[usize::from(index)].node.as_ref().expect("it runs");
                let newest = &*self.registry.table;
                let is_newest = node.table().version == newest.version;
                assert!(!is_newest || node.table() == newest, "{index} after {change:?}");
                self.ask_for_grant(index);
            }
            // It missed one: the answer to its beat is the table.
            Err(_) => self.beat(index),
        }
    }

    /// It was declared dead and lives: it comes again, as after a restart.
    fn come_again(&mut self, index: u16) {
        self.hosts[usize::from(index)].incarnation += 1;
        self.with(index, |node, now, out| node.lease(i64::MIN, 0, now, out));
    }

    fn ask_for_grant(&mut self, index: u16) {
        let node = self.hosts[usize::from(index)].node.as_ref();
        if node.is_some_and(Node::waits_for_grant) {
            self.beat(index);
        }
    }

    pub(crate) fn is_cut(&self, from: u16, to: u16) -> bool {
        self.network.is_cut(from, to)
    }

    /// Where a client of this number is, if it lives.
    pub(crate) fn place_of(&self, client: u64) -> Option<(u16, usize)> {
        let index = self.clients.iter().position(|it| it.number == client)?;
        Some((CLIENT + index as u16, index))
    }

    pub(crate) fn send(&mut self, from: u16, to: u16, note: Note) {
        if self.network.loses(&mut self.random) || self.is_cut(from, to) {
            return;
        }
        let is_slow = |it: u16| {
            self.hosts.get(usize::from(it)).is_some_and(|it| it.slow_until > self.events.now())
        };
        let slow = match (is_slow(from) || is_slow(to), self.random.uniform(50)) {
            (true, _) => 400 * MILLI,
            (_, 0) => 60 * MILLI,
            _ => MILLI,
        };
        let now = self.events.now();
        let delay = self.network.delay((from, to), now, slow, &mut self.random);
        let is_echoed =
            self.hosts.get(usize::from(from)).is_some_and(|it| it.echoes_until > self.events.now());
        if is_echoed && matches!(note, Note::Peer(_)) {
            for _ in 0..5 {
                self.push(delay, What::Arrive { from, to, note: note.clone() });
            }
        }
        self.push(delay, What::Arrive { from, to, note });
    }

    /// Lets a node do something, and does what it asks for.
    pub(crate) fn with(
        &mut self,
        index: u16,
        input: impl FnOnce(&mut Node, i64, &mut Vec<Action>),
    ) {
        let host = &mut self.hosts[usize::from(index)];
        let now = host.clock(self.events.now());
        let Some(node) = &mut host.node else { return };
        let mut actions = Vec::new();
        input(node, now, &mut actions);
        host.keep(&actions);
        self.check_windows(index);
        for action in actions {
            self.act(index, action);
        }
    }

    /// Nothing that is under way at a daemon exceeds its windows.
    fn check_windows(&self, index: u16) {
        let (client, peer) = self.setup.windows;
        let node = self.hosts[usize::from(index)].node.as_ref().expect("it runs");
        for (by, load) in node.pulls().filter(|(by, _)| by.0 != index) {
            let bytes = peer.bytes.max(CELLS * CELL);
            let fits = load.operations <= peer.operations && load.bytes <= bytes;
            assert!(fits, "{index} has {load:?} for {by:?}");
        }
        for (party, load) in node.loads() {
            // A new primary goes on with what its clients had under way at the last one.
            let taken_over = REQUESTS_MAX * node.table().units().count();
            if let Party::Client(number) = party {
                let most = client.operations + taken_over;
                assert!(load.operations <= most, "{index} has {load:?} for client {number}");
            }
        }
    }
}

/// The value that a node wrote. It has one form.
pub(crate) fn read_again<T: Encode + Decode>(bytes: &[u8]) -> T {
    let value = T::from_bytes(bytes).expect("what a node wrote");
    assert_eq!(value.to_bytes(), bytes);
    value
}

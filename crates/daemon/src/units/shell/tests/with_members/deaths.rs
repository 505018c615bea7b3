//! Deaths of nodes, in simulated time and over a simulated network, with the code of a daemon: its shell,
//! its kept log and its node of the membership. Nodes are killed at any step, also within a step of their
//! logs, lose all that they have, return, are cut off, stand still and are slow, while clients write and
//! read through the daemon of their host. Daemons 0 and 1 are of one host, as are 2 and 3, and 4 and 5: a
//! client whose daemon is down may go on at the other one.
//!
//! Checked: what clients saw of each cell is what one register would show, so every acknowledged byte
//! is there (`history`); an operation fails only if the copies of its bytes are gone, or not in reach;
//! at the end, without faults, all copies are there and equal, nothing waits, and logs have what nodes
//! keep.
//!
//! A run follows from its seed: `TEST_SEED` repeats it. One that fails shows its faults, too.

mod behind;
mod clients;
mod faults;
mod history;

use super::*;
use crate::units::ways::pushed::{PushAttempt, PushOrder};
use behind::PushedCells;
use clients::{AgentClient, CopiedFile, Outcome};
use faults::Mishap;
use history::Histories;
use replicas::table::Unit;
use std::ops::AddAssign;
use testkit::Random;
use testkit::world::{Clock, Events, MILLI, Network};

/// Deaths in a run.
const DEATHS: u64 = 8;
const CLIENTS: usize = 6;
/// So many runs have each kind of event.
const RUNS_OF_ALL_KINDS: u64 = 5;

/// Setup of a run.
#[derive(Clone, Copy, Debug)]
struct DeathSetup {
    daemons: u16,
    /// Copies of files at most: each has two or more.
    copies: u8,
    files: u64,
    /// One fault at a time, each after all is well again: then no operation fails.
    is_apart: bool,
    /// Messages that are lost.
    loss_percent: u64,
}

fn setup(seed: u64) -> DeathSetup {
    let daemons = 4 + (seed % 3) as u16;
    let copies = if seed % 4 == 3 { 3 } else { 2 };
    let (files, loss_percent) = (2 + seed % 5, seed / 2 % 3);
    DeathSetup { daemons, copies, files, is_apart: seed.is_multiple_of(2), loss_percent }
}

/// Counts of runs.
#[derive(Clone, Copy, Default, Debug)]
struct DeathTally {
    kills: u64,
    /// Deaths of nodes that lost all they had.
    losses: u64,
    written: u64,
    /// Of these, those that had returned before.
    pushed: u64,
    /// Those that a program pushed again after a death of its daemon.
    pushed_again: u64,
    /// Clients that went to the other daemon of their host, with a request.
    moved: u64,
    read: u64,
    /// Operations that failed: the bytes are lost, the unit is out of reach, the bytes of a write are.
    lost: u64,
    out_of_reach: u64,
    failed: u64,
    /// The longest operation of runs in which faults are apart, in nanoseconds.
    longest: i64,
    events: u64,
}

impl AddAssign for DeathTally {
    fn add_assign(&mut self, other: DeathTally) {
        self.kills += other.kills;
        self.losses += other.losses;
        self.written += other.written;
        self.pushed += other.pushed;
        self.pushed_again += other.pushed_again;
        self.moved += other.moved;
        self.read += other.read;
        self.lost += other.lost;
        self.out_of_reach += other.out_of_reach;
        self.failed += other.failed;
        self.longest = self.longest.max(other.longest);
        self.events += other.events;
    }
}

enum Happening {
    Tick(u16),
    /// The thread of units hears of the membership, in this start of a daemon.
    View(u16, u64, MemberView),
    Members {
        from: u16,
        to: u16,
        bytes: Vec<u8>,
    },
    Packet {
        from: u16,
        to: u16,
        bytes: Vec<u8>,
    },
    Proposal(u16, u64, Change),
    Probed {
        by: u16,
        start: u64,
        daemon: DaemonIndex,
    },
    /// The target has the bytes of a pull.
    Stored {
        by: u16,
        start: u64,
        ticket: u64,
    },
    /// A request of a client.
    Asked {
        from: u16,
        to: u16,
        event: Event,
    },
    /// Its answer, at the daemon of the client.
    Answered {
        ticket: u64,
        outcome: Outcome,
    },
    Client(usize),
    Mishap(Mishap),
}

impl Happening {
    /// The daemon at which it happens, and its start if it is of one.
    const fn place(&self) -> Option<(u16, Option<u64>)> {
        match *self {
            Happening::Tick(at)
            | Happening::Members { to: at, .. }
            | Happening::Packet { to: at, .. }
            | Happening::Asked { to: at, .. } => Some((at, None)),
            Happening::View(at, start, _)
            | Happening::Proposal(at, start, _)
            | Happening::Probed { by: at, start, .. }
            | Happening::Stored { by: at, start, .. } => Some((at, Some(start))),
            Happening::Answered { .. } | Happening::Client(_) | Happening::Mishap(_) => None,
        }
    }
}

/// A host, and its daemon if that runs.
struct MortalHost {
    node: Option<MembersNode>,
    shell: Option<Shell<Fake, FaultyFiles>>,
    view: Option<MemberView>,
    /// State that outlives the process: of the voter, the kept log and how far it is.
    stored: (Vec<u8>, Vec<u8>),
    files: FaultyFiles,
    word: u64,
    /// Number of the start, and of the first one since the host lost all it had.
    start: u64,
    born: u64,
    clock: Clock,
    paused_until: i64,
    slow_until: i64,
    /// Until when its absence may be noticed.
    troubled_until: i64,
    /// When units were last left without a copy in reach, as it knows.
    out_of_reach: Option<i64>,
    /// Writes that have returned, of programs of this host.
    pushes: PushOrder<u64>,
}

fn is_whole(unit: &Unit) -> bool {
    unit.primary.is_some() && unit.in_sync() == usize::from(unit.goal)
}

/// The number with which a start takes part first.
const fn incarnation(start: u64) -> u64 {
    1 + ((start - 1) << 32)
}

/// See the module.
struct Deaths {
    setup: DeathSetup,
    first: Membership,
    domains: Vec<u32>,
    hosts: Vec<MortalHost>,
    clients: Vec<AgentClient>,
    files: Vec<CopiedFile>,
    histories: Histories,
    tally: DeathTally,
    /// The newest table that any daemon had.
    newest: Arc<Table>,
    /// Units of which all copies were lost.
    gone: BTreeSet<UnitIndex>,
    /// When each unit last lacked a copy, or a process with one of its copies ended.
    disturbed: BTreeMap<UnitIndex, i64>,
    /// Tickets of requests that wait: the client, its daemon, and its request.
    tickets: BTreeMap<u64, (usize, u16, RequestId)>,
    /// Writes that have returned, in their order; and tickets of attempts: the daemon and its start, and
    /// the write.
    pushed: BTreeMap<u64, PushedCells>,
    push_tickets: BTreeMap<u64, (u16, u64, PushAttempt, u64)>,
    tickets_given: u64,
    sessions_given: u64,
    values_given: u64,
    inodes_given: u64,
    wires: Rc<RefCell<Wires>>,
    random: Random,
    events: Events<Happening>,
    network: Network,
    is_ending: bool,
    /// The faults so far.
    faults: Vec<String>,
}

impl Drop for Deaths {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{:?}\n{}", self.setup, self.faults.join("\n"));
            eprintln!("it fails at {} ms", self.events.now() / MILLI);
        }
    }
}

impl Deaths {
    fn new(setup: DeathSetup, seed: u64) -> Deaths {
        let mut random = Random::new(seed);
        let domains: Vec<u32> = (0..setup.daemons.into()).collect();
        let first = Membership::initial(&domains, domains.len(), 0, true).expect("a setup");
        let goals: Vec<u8> = wire::limits::copy_goals(setup.copies).collect();
        let first = first.with_owners_that_stay().with_units(&goals, 3, false);
        let first = first.expect("a setup");
        let newest = Arc::clone(first.units().expect("units"));
        let host = |_| MortalHost {
            node: None,
            shell: None,
            view: None,
            stored: Default::default(),
            files: FaultyFiles::new(),
            word: 0,
            start: 0,
            born: 1,
            clock: Clock::new(&mut random),
            paused_until: 0,
            slow_until: 0,
            troubled_until: 0,
            out_of_reach: None,
            pushes: PushOrder::new(0),
        };
        let hosts = (0..setup.daemons).map(host).collect();
        let mut deaths = Deaths {
            setup,
            first,
            domains,
            hosts,
            clients: Vec::new(),
            files: Vec::new(),
            histories: Histories::default(),
            tally: DeathTally::default(),
            newest,
            gone: BTreeSet::new(),
            disturbed: BTreeMap::new(),
            tickets: BTreeMap::new(),
            pushed: BTreeMap::new(),
            push_tickets: BTreeMap::new(),
            tickets_given: 0,
            sessions_given: 0,
            values_given: 0,
            inodes_given: 0,
            wires: Rc::default(),
            random,
            events: Events::default(),
            network: Network::default(),
            is_ending: false,
            faults: Vec::new(),
        };
        for index in 0..setup.daemons {
            deaths.start(index);
            let first = deaths.random.uniform(TICK_NANOS.unsigned_abs()).cast_signed();
            deaths.events.push(first, Happening::Tick(index));
        }
        deaths.begin_clients();
        deaths.network.lose(setup.loss_percent);
        deaths
    }

    fn host(&mut self, index: u16) -> &mut MortalHost {
        &mut self.hosts[usize::from(index)]
    }

    fn is_running(&self, index: u16) -> bool {
        self.hosts[usize::from(index)].shell.is_some()
    }

    /// The time of a host.
    fn clock(&self, index: u16) -> i64 {
        self.hosts[usize::from(index)].clock.at(self.events.now())
    }

    fn start(&mut self, index: u16) {
        if self.is_running(index) {
            return;
        }
        let (own, now, domains) = (DaemonIndex(index), self.clock(index), self.domains.clone());
        let first = self.first.clone();
        let table = first.units().expect("units").as_ref().clone();
        let (performer, wires) =
            (Fake { me: index, wires: Rc::clone(&self.wires) }, Rc::clone(&self.wires));
        let host = self.host(index);
        host.start += 1;
        host.pushes = PushOrder::new(behind::first_client(own, host.start));
        host.files = host.files.after_kill();
        let log = KeptLog::open(place(own.0, &host.files, host.word)).expect("a log");
        // As a daemon does before it takes part in anything.
        let is_left_over = |unit: &UnitIndex, object: &Object| {
            let kept = log.1.get(unit);
            !kept.is_some_and(|kept| kept.objects().any(|(it, _)| it == *object))
        };
        wires
            .borrow_mut()
            .stores
            .retain(|(at, unit, object), _| *at != index || !is_left_over(unit, object));
        let parts = (performer, RunningClears::new(own, host.start));
        host.shell = Some(Shell::new(settings(own), table, log, parts, now));
        let settings = MembersSettings {
            own,
            incarnation: incarnation(host.start),
            domain: domains[usize::from(index)],
            began: incarnation(host.born),
            voters: first_voters(&domains),
            seed: wire::hash::mix(index.into(), host.start),
        };
        let (base, tail) = &host.stored;
        let node = if base.is_empty() && tail.is_empty() {
            MembersNode::begin(settings, first, now)
        } else {
            MembersNode::restore(settings, Some((base, tail)), first, now)
        };
        (host.node, host.view, host.out_of_reach) = (Some(node.expect("settings")), None, None);
        self.with_node(index, |node, now, out| node.start(now, out));
    }

    /// The process ends.
    fn stop(&mut self, index: u16) {
        let host = self.host(index);
        let Some(shell) = host.shell.take() else { return };
        host.word = shell.log.progress_word();
        (host.node, host.view) = (None, None);
        let table = Arc::clone(&self.newest);
        self.disturb_units(&table, |unit| unit.copy(DaemonIndex(index)).is_some());
        let mut wires = self.wires.borrow_mut();
        wires.buffers.retain(|(at, _), _| *at != index);
        wires.agents.retain(|(at, _), _| *at != index);
    }

    /// With all it has, and its clients.
    fn lose(&mut self, index: u16) {
        self.stop(index);
        let host = self.host(index);
        (host.files, host.word, host.stored) = (FaultyFiles::new(), 0, Default::default());
        host.born = host.start + 1;
        self.wires.borrow_mut().stores.retain(|(at, ..), _| *at != index);
        self.replace_clients_of(index);
    }

    fn with_node(
        &mut self,
        index: u16,
        input: impl FnOnce(&mut MembersNode, i64, &mut Vec<MembersAction>),
    ) {
        let now = self.clock(index);
        let host = self.host(index);
        let Some(node) = &mut host.node else { return };
        let mut actions = Vec::new();
        input(node, now, &mut actions);
        let view = MemberView::of(node, now).expect("an instance with units");
        let start = host.start;
        let is_news = host.view.as_ref().is_none_or(|before| view.is_news(before));
        for action in actions {
            match action {
                MembersAction::Base(bytes) => self.host(index).stored.0 = bytes,
                MembersAction::Tail(bytes) => self.host(index).stored.1 = bytes,
                MembersAction::Send { to, message } => {
                    let message = Happening::Members { from: index, to: to.0, bytes: message };
                    self.send(index, to.0, message);
                }
                MembersAction::Probe(daemon) => {
                    let after = (1 + self.random.uniform(100).cast_signed()) * MILLI;
                    self.events.push(after, Happening::Probed { by: index, start, daemon });
                }
                MembersAction::HandOverUnit(of) => self.input(index, Event::Advice(of)),
                _ => {}
            }
        }
        if is_news && self.is_running(index) {
            self.adopt_view(index, view);
        }
    }

    fn adopt_view(&mut self, index: u16, view: MemberView) {
        if view.table.version > self.newest.version {
            let before = std::mem::replace(&mut self.newest, Arc::clone(&view.table));
            // One that is whole again was not until now.
            for table in [&before, &view.table] {
                self.disturb_units(table, |unit| !is_whole(unit));
            }
        }
        let now = self.events.now();
        let host = self.host(index);
        let before = host.view.as_ref().map(|before| &before.table);
        if before.is_some_and(|before| crate::units::loses_primaries(before, &view.table)) {
            host.out_of_reach = Some(now);
        }
        host.view = Some(view.clone());
        let start = host.start;
        self.send(index, index, Happening::View(index, start, view));
    }

    fn disturb_units(&mut self, table: &Table, is_disturbed: impl Fn(&Unit) -> bool) {
        let now = self.events.now();
        let units = table.units().filter(|(_, unit)| is_disturbed(unit));
        self.disturbed.extend(units.map(|(index, _)| (index, now)));
    }

    fn send(&mut self, from: u16, to: u16, message: Happening) {
        let is_far = from != to;
        if is_far && (self.network.loses(&mut self.random) || self.network.is_cut(from, to)) {
            return;
        }
        let now = self.events.now();
        let is_slow = [from, to].iter().any(|&it| self.host(it).slow_until > now);
        let slowest = match (is_slow && is_far, self.random.uniform(50)) {
            (true, _) => 400 * MILLI,
            (_, 0) => 60 * MILLI,
            _ => MILLI,
        };
        let delay = self.network.delay((from, to), now, slowest, &mut self.random);
        self.events.push(delay, message);
    }

    /// An event for the shell of a daemon, and what comes of it.
    fn input(&mut self, index: u16, event: Event) {
        self.with_shell(index, |shell, now| shell.input(event, now));
    }

    fn with_shell(
        &mut self,
        index: u16,
        input: impl FnOnce(&mut Shell<Fake, FaultyFiles>, i64) -> store::Result<()>,
    ) {
        let now = self.clock(index);
        let host = self.host(index);
        let Some(shell) = &mut host.shell else { return };
        let (start, outcome) = (host.start, input(shell, now));
        self.pass_on_of(index, start);
        if outcome.is_err() {
            // Its log has failed: it is one that has died.
            self.die(index);
        }
    }

    /// Passes on all that a shell gave to its performer.
    fn pass_on_of(&mut self, index: u16, start: u64) {
        let mut wires = std::mem::take(&mut *self.wires.borrow_mut());
        for (from, to, bytes) in std::mem::take(&mut wires.packets) {
            self.send(from, to, Happening::Packet { from, to, bytes });
        }
        for (by, change) in std::mem::take(&mut wires.proposals) {
            self.send(by, by, Happening::Proposal(by, start, change));
        }
        for (by, ticket) in std::mem::take(&mut wires.stored) {
            let is_slow = self.host(by).slow_until > self.events.now();
            let most = if is_slow { 200 } else { 1 + 19 * u64::from(self.random.uniform(20) == 0) };
            let after = self.random.uniform(most * MILLI.unsigned_abs()).cast_signed();
            self.events.push(after, Happening::Stored { by, start, ticket });
        }
        assert!(wires.corrupt.is_empty() && wires.clears.is_empty());
        let answers = std::mem::take(&mut wires.answers).into_iter();
        let bytes = std::mem::take(&mut wires.served).into_iter();
        *self.wires.borrow_mut() = wires;
        let answers = answers.map(|(ticket, it)| (ticket, Outcome::Answer(it)));
        let bytes = bytes.map(|(ticket, it)| (ticket, Outcome::Bytes(it)));
        for (ticket, outcome) in answers.chain(bytes).collect::<Vec<_>>() {
            let of_push = self.push_tickets.get(&ticket).map(|(agent, ..)| *agent);
            let of_client = self.tickets.get(&ticket).map(|(_, agent, _)| *agent);
            let Some(agent) = of_push.or(of_client) else { continue };
            self.send(index, agent, Happening::Answered { ticket, outcome });
        }
    }

    fn happen(&mut self, what: Happening) {
        if let Some((at, start)) = what.place() {
            let now = self.events.now();
            let host = self.host(at);
            let (paused_until, is_over) =
                (host.paused_until, start.is_some_and(|start| start != host.start));
            if paused_until > now && host.shell.is_some() {
                return self.events.push(paused_until - now, what);
            }
            if is_over || !self.is_running(at) && !matches!(what, Happening::Tick(_)) {
                return;
            }
        }
        match what {
            Happening::Tick(at) => {
                self.events.push(TICK_NANOS, Happening::Tick(at));
                self.with_node(at, MembersNode::tick);
                self.with_shell(at, Shell::tick);
                self.resume_pushes(at);
            }
            Happening::View(at, _, view) => self.input(at, Event::MemberView(view)),
            Happening::Members { from, to, bytes } => self.with_node(to, |node, now, out| {
                node.receive(DaemonIndex(from), &bytes, now, out).expect("a node's message");
            }),
            Happening::Packet { from, to, bytes } => {
                let packet = Packet::from_bytes(&bytes).expect("what a shell sent");
                self.input(to, Event::Packet(DaemonIndex(from), packet));
            }
            Happening::Proposal(by, _, change) => {
                let change = MembersChange::Unit { change };
                self.with_node(by, |node, _, out| node.propose(&change, out));
            }
            Happening::Probed { by, daemon, .. } => {
                let is_cut = self.network.is_cut(by, daemon.0) || self.network.is_cut(daemon.0, by);
                let is_reached = self.is_running(daemon.0) && !is_cut;
                self.with_node(by, |node, now, out| node.probed(daemon, is_reached, now, out));
            }
            Happening::Stored { by, ticket, .. } => {
                self.input(by, Event::Stored(ticket, StoreAnswer::Done));
            }
            Happening::Asked { from, to, event } => {
                if let Event::Request(_, request) = &event {
                    let of = (to, request.requested.id);
                    self.wires.borrow_mut().agents.insert(of, DaemonIndex(from));
                }
                self.input(to, event);
            }
            Happening::Answered { ticket, outcome } if self.push_tickets.contains_key(&ticket) => {
                self.push_answered(ticket, &outcome);
            }
            Happening::Answered { ticket, outcome } => self.answered(ticket, outcome),
            Happening::Client(index) => self.client_looks(index),
            Happening::Mishap(mishap) => self.mishap(mishap),
        }
    }

    fn run_for(&mut self, nanos: i64) {
        let end = self.events.now() + nanos;
        while let Some(what) = self.events.next(end) {
            self.happen(what);
        }
        self.events.pass_to(end);
    }

    /// Until there is nothing that `open` names.
    fn run_until_none(&mut self, open: impl Fn(&Deaths) -> Option<String>) {
        let end = self.events.now() + 60 * SECOND;
        while let Some(why) = open(self) {
            assert!(self.events.now() < end, "it is not well again: {why}");
            self.run_for(20 * MILLI);
        }
    }

    /// A copy, a daemon or a voter that is missing.
    fn missing(&self) -> Option<String> {
        let table = &*self.newest;
        let advice = policy::next(table, &Spaces::default());
        if !advice.is_empty() {
            return Some(format!("{advice:?} in {table:?}"));
        }
        for (index, host) in self.hosts.iter().enumerate() {
            let (Some(node), Some(view)) = (&host.node, &host.view) else {
                return Some(format!("d{index} does not run"));
            };
            let has_voted =
                |it: &cluster::voters::Voter| usize::from(it.daemon.0) != index || node.votes();
            let voters = node.membership().voters();
            if voters.is_joint() || !voters.next().iter().all(has_voted) {
                return Some(format!("d{index} or another one is no voter yet: {voters:?}"));
            }
            let is_known = view.table.version == table.version
                && (view.granted, view.settled) == (table.version, table.version);
            if !is_known || view.lease_until <= self.clock(index as u16) {
                return Some(format!("d{index} has {view:?}"));
            }
        }
        let unit = table.units().find(|(_, unit)| !is_whole(unit));
        unit.map(|unit| format!("{unit:?}"))
    }

    fn waiting(&self) -> Option<String> {
        let client = self.clients.iter().find_map(AgentClient::waits);
        let is_idle = |host: &&MortalHost| {
            let node = host.shell.as_ref().map(|shell| &shell.node);
            node.is_some_and(|node| node.is_idle() && node.table().version == self.newest.version)
        };
        let busy = self.hosts.iter().position(|host| !is_idle(&host));
        let pushed = self.pushed.values().next().map(|push| format!("{push:?}"));
        let busy = busy.map(|index| format!("the node of d{index} has something to do"));
        client.or(pushed).or(busy)
    }

    /// The end of a run, without faults.
    fn end(&mut self) {
        self.network.heal();
        self.network.lose(0);
        self.run_until_none(Deaths::missing);
        self.is_ending = true;
        self.run_until_none(Deaths::waiting);
        self.read_all();
        self.run_until_none(|deaths| deaths.missing().or_else(|| deaths.waiting()));
        self.histories.check();
        self.check_copies();
        self.tally.events = self.events.happened();
    }

    fn check_copies(&mut self) {
        for file in &self.files {
            let place = self.place_of(&self.newest, file, (0, clients::CELLS));
            let unit = self.newest.unit(place.unit).expect("a unit");
            let copies = unit.with(CopyState::InSync);
            let bytes = |daemon: DaemonIndex| {
                let wires = self.wires.borrow();
                wires.read((daemon.0, place.unit, place.object), place.range)
            };
            let found: Vec<Vec<u8>> = copies.map(bytes).collect();
            assert!(found.windows(2).all(|pair| pair[0] == pair[1]), "{unit:?}: {found:?}");
        }
        for (index, host) in (0..).zip(&self.hosts) {
            let shell = host.shell.as_ref().expect("all run");
            let (files, word) = (host.files.after_kill(), shell.log.progress_word());
            let (_, kept) = KeptLog::open(place(index, &files, word)).expect("a log");
            assert_eq!(&kept, shell.node.kept(), "d{index}");
        }
    }
}

/// One seed.
fn run(seed: u64) -> DeathTally {
    let mut deaths = Deaths::new(setup(seed), seed);
    deaths.run_until_none(Deaths::missing);
    if deaths.setup.is_apart {
        deaths.die_apart()
    } else {
        deaths.die_at_once()
    }
    deaths.end();
    deaths.tally
}

#[test]
fn nodes_die_and_nothing_that_was_acknowledged_is_lost() {
    // 40 deaths; 10,000 of `make soak`.
    let runs = if testkit::is_long() { 250 } else { 5 };
    let tally = testkit::world::campaign("deaths", runs, run);
    println!("{tally:?}");
    assert!(tally.kills + tally.losses >= testkit::rounds(runs) * DEATHS);
    // One run that is repeated by its seed need not have each kind of event.
    if testkit::rounds(runs) >= RUNS_OF_ALL_KINDS {
        assert!(tally.losses > 0 && tally.written > 0 && tally.read > 0);
        assert!(tally.pushed > 0 && tally.pushed_again > 0 && tally.moved > 0);
    }
}

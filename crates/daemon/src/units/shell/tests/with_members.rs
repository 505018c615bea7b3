//! Shells with the nodes of the membership behind them, as a daemon has both: the table, leases and what
//! a leader allows come from there, and proposals go there. A client goes on writing while the primary of
//! its unit is killed and returns, while a daemon is added and another one leaves, and while any of them
//! is killed at each step of that.

mod deaths;

use super::*;
use cluster::change::Change as MembersChange;
use cluster::membership::Membership;
use cluster::node::{Action as MembersAction, Node as MembersNode, Settings as MembersSettings};
use cluster::voters::first_voters;

const DOMAINS: [u32; 4] = [0, 1, 2, 3];
/// A daemon with which the instance does not begin.
const ADDED: usize = DOMAINS.len();
const ADD: MembersChange =
    MembersChange::Add { daemon: DaemonIndex(ADDED as u16), incarnation: 0, domain: ADDED as u32 };

fn membership() -> Membership {
    let membership = Membership::initial(&DOMAINS, 4, 0, true).expect("a setup");
    membership.with_owners_that_stay().with_units(&[2], 3, false).expect("a setup")
}

/// The same in which a daemon may leave: one of them has the only service.
fn membership_to_leave() -> Membership {
    let membership = Membership::initial(&DOMAINS, 1, 0, true).expect("a setup");
    membership.with_owners_that_return().with_units(&[2], 3, false).expect("a setup")
}

/// Daemons whose messages arrive at once. Those of one that was killed are lost.
struct Daemons {
    first: Membership,
    nodes: Vec<Option<MembersNode>>,
    shells: Vec<Option<Shell<Fake, FaultyFiles>>>,
    /// As the shells were told last.
    views: Vec<Option<MemberView>>,
    /// The bytes that voters stored.
    stored: Vec<(Vec<u8>, Vec<u8>)>,
    files: Vec<FaultyFiles>,
    words: Vec<u64>,
    starts: Vec<u64>,
    messages: VecDeque<(u16, u16, Vec<u8>)>,
    wires: Rc<RefCell<Wires>>,
    tickets: u64,
    now: i64,
    /// A daemon that is to be killed as soon as the agent has this version of the table.
    death: Option<(usize, u64)>,
    /// A killed daemon, and when it starts again.
    away: Option<(usize, i64)>,
    died_at: i64,
}

impl Daemons {
    fn new(first: Membership) -> Daemons {
        let count = DOMAINS.len() + 1;
        let mut daemons = Daemons {
            first,
            nodes: (0..count).map(|_| None).collect(),
            shells: (0..count).map(|_| None).collect(),
            views: vec![None; count],
            stored: vec![Default::default(); count],
            files: (0..count).map(|_| FaultyFiles::new()).collect(),
            words: vec![0; count],
            starts: vec![0; count],
            messages: VecDeque::new(),
            wires: Rc::default(),
            tickets: 0,
            now: SECOND,
            death: None,
            away: None,
            died_at: 0,
        };
        (0..DOMAINS.len()).for_each(|index| daemons.start(index));
        daemons
    }

    fn start(&mut self, index: usize) {
        self.starts[index] += 1;
        let (start, own) = (self.starts[index], DaemonIndex(index as u16));
        self.files[index] = self.files[index].after_kill();
        let log = KeptLog::open(place(own.0, &self.files[index], self.words[index]));
        let mut first = self.first.clone();
        if index == ADDED {
            first.apply(&ADD).expect("a place");
        }
        let table = first.units().expect("units").as_ref().clone();
        let performer = Fake { me: own.0, wires: Rc::clone(&self.wires) };
        let parts = (performer, RunningClears::new(own, start));
        let shell = Shell::new(settings(own), table, log.expect("a log"), parts, self.now);
        self.shells[index] = Some(shell);
        let settings = MembersSettings {
            own,
            incarnation: 1 + ((start - 1) << 32),
            domain: index as u32,
            began: 1,
            voters: first_voters(&DOMAINS),
            seed: index as u64,
        };
        let (base, tail) = &self.stored[index];
        let node = if index != ADDED && start == 1 {
            MembersNode::begin(settings, first, self.now)
        } else if base.is_empty() && tail.is_empty() {
            MembersNode::restore(settings, None, first, self.now)
        } else {
            MembersNode::restore(settings, Some((base, tail)), first, self.now)
        };
        self.nodes[index] = Some(node.expect("settings that fit"));
        self.with_node(index, |node, now, out| node.start(now, out));
    }

    fn kill(&mut self, index: usize) {
        let shell = self.shells[index].take().expect("it runs");
        self.words[index] = shell.log.progress_word();
        (self.nodes[index], self.views[index]) = (None, None);
        self.wires.borrow_mut().stored.retain(|(by, _)| usize::from(*by) != index);
    }

    fn input(&mut self, index: usize, event: Event) {
        if let Some(shell) = &mut self.shells[index] {
            shell.input(event, self.now).expect("space");
        }
    }

    fn with_node(
        &mut self,
        index: usize,
        input: impl FnOnce(&mut MembersNode, i64, &mut Vec<MembersAction>),
    ) {
        let mut probes = self.node_input(index, input);
        while let Some(daemon) = probes.pop() {
            let is_reached = self.nodes[usize::from(daemon.0)].is_some();
            let probed = |node: &mut MembersNode, now, out: &mut Vec<_>| {
                node.probed(daemon, is_reached, now, out);
            };
            probes.extend(self.node_input(index, probed));
        }
    }

    /// Gives a node one input; returns the daemons that it wants to be probed.
    fn node_input(
        &mut self,
        index: usize,
        input: impl FnOnce(&mut MembersNode, i64, &mut Vec<MembersAction>),
    ) -> Vec<DaemonIndex> {
        let Some(node) = &mut self.nodes[index] else { return Vec::new() };
        let (mut actions, mut probes) = (Vec::new(), Vec::new());
        input(node, self.now, &mut actions);
        let view = MemberView::of(node, self.now).expect("an instance with units");
        let mut events = Vec::new();
        if self.views[index].as_ref() != Some(&view) {
            self.views[index] = Some(view.clone());
            events.push(Event::MemberView(view));
        }
        for action in actions {
            match action {
                MembersAction::Base(bytes) => self.stored[index].0 = bytes,
                MembersAction::Tail(bytes) => self.stored[index].1 = bytes,
                MembersAction::Send { to, message } => {
                    self.messages.push_back((index as u16, to.0, message));
                }
                MembersAction::Probe(daemon) => probes.push(daemon),
                MembersAction::HandOverUnit(of) => events.push(Event::Advice(of)),
                _ => {}
            }
        }
        events.into_iter().for_each(|event| self.input(index, event));
        probes
    }

    fn step(&mut self) {
        self.now += TICK_NANOS;
        for index in 0..self.nodes.len() {
            self.with_node(index, MembersNode::tick);
            if let Some(shell) = &mut self.shells[index] {
                shell.tick(self.now).expect("space");
            }
        }
        self.pass_on();
        self.die_if_due();
    }

    fn die_if_due(&mut self) {
        if let Some((victim, version)) = self.death
            && self.table().version >= version
            && self.shells[victim].is_some()
        {
            self.kill(victim);
            (self.death, self.away) = (None, Some((victim, self.now + SECOND)));
            self.died_at = self.now;
        }
        if let Some((index, at)) = self.away
            && self.now >= at
        {
            self.away = None;
            self.start(index);
        }
    }

    /// Until all is well again, also after a death.
    fn settle(&mut self) {
        self.run(10 * SECOND);
        let last = self.died_at + 12 * SECOND;
        self.run((last - self.now).max(0));
    }

    /// Proposes a change until the agent's node knows that it was made.
    fn make(&mut self, change: &MembersChange, is_made: impl Fn(&Membership) -> bool) {
        let began = self.now;
        while !is_made(self.nodes[usize::from(AGENT)].as_ref().expect("it runs").membership()) {
            self.with_node(AGENT.into(), |node, _, out| node.propose(change, out));
            self.run(SECOND / 4);
            assert!(self.now - began < 30 * SECOND, "{change:?} is not made");
        }
    }

    fn pass_on(&mut self) {
        loop {
            let proposal = self.wires.borrow_mut().proposals.pop_front();
            if let Some((by, change)) = proposal {
                let change = MembersChange::Unit { change };
                self.with_node(by.into(), |node, _, out| node.propose(&change, out));
            } else if let Some((from, to, bytes)) = self.messages.pop_front() {
                self.with_node(to.into(), |node, now, out| {
                    node.receive(DaemonIndex(from), &bytes, now, out).expect("a node's message");
                });
            } else if !self.pass_on_bytes() {
                return;
            }
        }
    }

    fn pass_on_bytes(&mut self) -> bool {
        let packet = self.wires.borrow_mut().packets.pop_front();
        if let Some((from, to, bytes)) = packet {
            let packet = Packet::from_bytes(&bytes).expect("what a shell sent");
            self.input(to.into(), Event::Packet(DaemonIndex(from), packet));
            return true;
        }
        let stored = self.wires.borrow_mut().stored.pop_front();
        let Some((by, ticket)) = stored else { return false };
        self.input(by.into(), Event::Stored(ticket, StoreAnswer::Done));
        true
    }

    fn run(&mut self, nanos: i64) {
        let end = self.now + nanos;
        while self.now < end {
            self.step();
        }
    }

    /// The table as the client's agent knows it.
    fn table(&self) -> &Table {
        self.shells[usize::from(AGENT)].as_ref().expect("the agent lives").node.table()
    }

    /// Sends a write to the primary that the agent knows. The ticket of its answer.
    fn ask(&mut self, sequence: u64) -> u64 {
        self.tickets += 1;
        let id = RequestId { client: CLIENT, sequence };
        let range = ByteRange { start: 8 * sequence, end: 8 * sequence + 8 };
        self.wires.borrow_mut().buffers.insert((AGENT, id), vec![sequence as u8; 8]);
        let unit = self.table().unit(UNIT).expect("a unit");
        let (epoch, primary) = (unit.epoch, unit.primary);
        let requested = Requested { id, oldest: sequence, is_behind: false };
        let (ticket, object, kind) = (self.tickets, OBJECT, Kind::Write);
        let request = Request { ticket, epoch, object, range, kind, requested, born: 1 };
        if let Some(primary) = primary {
            self.input(primary.0.into(), Event::Request(UNIT, request));
        }
        ticket
    }

    /// A write of the client, which it repeats until it is done. The time that it took.
    fn write(&mut self, sequence: u64) -> i64 {
        let began = self.now;
        loop {
            let ticket = self.ask(sequence);
            for _ in 0..13 {
                self.step();
                let answer = self.wires.borrow().answers.get(&ticket).copied();
                match answer {
                    Some(Answer::Done(_)) => return self.now - began,
                    Some(Answer::Failed | Answer::Lost) => panic!("an error: {answer:?}"),
                    Some(_) => break,
                    None => {}
                }
            }
            assert!(self.now - began < 20 * SECOND, "write {sequence} does not end");
        }
    }

    fn assert_well(&mut self, writes: u64) {
        let table = self.table().clone();
        assert!(policy::next(&table, &Spaces::default()).is_empty());
        let running = self
            .shells
            .iter()
            .zip(&self.views)
            .filter_map(|(shell, view)| Some((shell.as_ref()?, view.as_ref()?)));
        let running: Vec<_> = running.collect();
        let take_part = table.daemons().filter(|&(daemon, _)| table.is_up(daemon)).count();
        assert_eq!(running.len(), take_part, "all run");
        for (shell, view) in running {
            assert_eq!((shell.node.table(), view.table.as_ref()), (&table, &table));
            assert_eq!((view.granted, view.settled), (table.version, table.version));
            assert!(view.lease_until > self.now);
        }
        let copies: Vec<DaemonIndex> =
            table.unit(UNIT).expect("a unit").with(CopyState::InSync).collect();
        assert_eq!(copies.len(), 2);
        let range = ByteRange { start: 8, end: 8 * writes + 8 };
        let expected: Vec<u8> = (1..=writes).flat_map(|it| [it as u8; 8]).collect();
        for daemon in copies {
            let found = self.wires.borrow().read((daemon.0, UNIT, OBJECT), range);
            assert_eq!(found, expected, "d{}", daemon.0);
        }
    }
}

#[test]
fn a_client_writes_on_while_the_primary_of_its_unit_is_killed_and_returns() {
    // Killed at rest, with a write that nobody has heard of, and with one whose bytes some copy has.
    for asked in 0..3 {
        let mut daemons = Daemons::new(membership());
        daemons.run(2 * SECOND);
        for sequence in 1..=5 {
            daemons.write(sequence);
        }
        daemons.assert_well(5);
        if asked > 0 {
            daemons.ask(6);
        }
        if asked > 1 {
            while daemons.pass_on_bytes() && daemons.wires.borrow().stored.is_empty() {}
        }
        daemons.kill(0);
        let longest = (6..=10).map(|sequence| daemons.write(sequence)).max();
        assert!(longest.is_some_and(|it| it > 0 && it < 5 * SECOND), "{longest:?}");
        let primary = daemons.table().unit(UNIT).expect("a unit").primary;
        assert!(primary.is_some_and(|it| it.0 != 0));
        daemons.start(0);
        for sequence in 11..=12 {
            daemons.write(sequence);
        }
        daemons.run(10 * SECOND);
        daemons.assert_well(12);
        let primary = daemons.table().unit(UNIT).expect("a unit").primary;
        assert_eq!(primary, Some(DaemonIndex(0)), "its home");
        daemons.write(13);
        daemons.assert_well(13);
    }
}

#[test]
fn a_client_writes_on_while_a_daemon_is_added_and_another_one_leaves() {
    let mut daemons = Daemons::new(membership_to_leave());
    daemons.run(2 * SECOND);
    for sequence in 1..=5 {
        daemons.write(sequence);
    }
    daemons.with_node(AGENT.into(), |node, _, out| node.propose(&ADD, out));
    daemons.run(SECOND);
    // Its target has units, which others have until it comes.
    let added = DaemonIndex(ADDED as u16);
    let table = daemons.table().clone();
    assert!(table.units_of(2, added).all(|(_, unit)| unit.in_sync() == 2));
    daemons.start(ADDED);
    for sequence in 6..=10 {
        daemons.write(sequence);
    }
    daemons.run(10 * SECOND);
    daemons.assert_well(10);
    let table = daemons.table().clone();
    assert_eq!(table.units_of(2, added).count(), 3);
    assert!(table.units_of(2, added).all(|(_, unit)| unit.primary == Some(added)));

    let leaver = DaemonIndex(2);
    let leave = MembersChange::Leave { daemon: leaver };
    daemons.with_node(ADDED, |node, _, out| node.propose(&leave, out));
    for sequence in 11..=15 {
        daemons.write(sequence);
    }
    let began = daemons.now;
    let may_end = |daemons: &Daemons| daemons.nodes[2].as_ref().is_some_and(MembersNode::may_end);
    while !may_end(&daemons) {
        daemons.step();
        assert!(daemons.now - began < 60 * SECOND, "it does not leave");
    }
    daemons.kill(2);
    daemons.write(16);
    daemons.run(SECOND);
    daemons.assert_well(16);
    assert!(daemons.table().is_free_of(leaver) && !daemons.table().is_up(leaver));
}

/// A daemon is added, and another one leaves; one is killed when the table has changed so often. The
/// number of its changes.
fn grow_and_shrink(victim: usize, moment: u64) -> u64 {
    let mut daemons = Daemons::new(membership_to_leave());
    daemons.run(2 * SECOND);
    for sequence in 1..=3 {
        daemons.write(sequence);
    }
    let first = daemons.table().version;
    daemons.death = Some((victim, first.saturating_add(moment)));
    daemons.make(&ADD, |it| it.daemons().count() > ADDED);
    daemons.start(ADDED);
    for sequence in 4..=6 {
        daemons.write(sequence);
    }
    daemons.settle();
    daemons.assert_well(6);

    let leaver = DaemonIndex(2);
    let is_told = |it: &Membership| {
        it.member(leaver).is_some_and(|member| member.is_to_leave() || member.has_left())
    };
    daemons.make(&MembersChange::Leave { daemon: leaver }, is_told);
    for sequence in 7..=9 {
        daemons.write(sequence);
    }
    let began = daemons.now;
    while !daemons.nodes[2].as_ref().is_some_and(MembersNode::may_end) {
        daemons.step();
        assert!(daemons.now - began < 60 * SECOND, "it does not leave");
    }
    daemons.kill(2);
    daemons.death = daemons.death.filter(|(victim, _)| *victim != 2);
    daemons.write(10);
    daemons.settle();
    daemons.assert_well(10);
    assert!(daemons.table().is_free_of(leaver) && !daemons.table().is_up(leaver));
    daemons.table().version - first
}

#[test]
fn a_client_writes_on_while_a_daemon_dies_at_any_step_of_growth_and_of_a_departure() {
    let steps = grow_and_shrink(0, u64::MAX);
    assert!(steps > 10, "{steps}");
    testkit::world::campaign("steps", 40, |seed| {
        let victim = [0, 2, 3, ADDED][(seed % 4) as usize];
        grow_and_shrink(victim, 1 + wire::hash::mix(seed, 0) % steps)
    });
}

//! The runs that a test asks for.

use super::{Counts, MILLI, SECOND, What, World};
use crate::faults::{Fault, Faults};
use cluster::change::Change;
use cluster::exchange::Balancing;
use cluster::membership::{Membership, Presence};
use cluster::node::Node;
use std::collections::BTreeMap;
use std::ops::Range;
use testkit::world::HostFault;
use wire::DaemonIndex;

/// How long what moves takes, in nanoseconds of simulated time.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct MoveTimes {
    /// Until each service is where it should be, and has its followers.
    pub(crate) services: i64,
    /// Until each unit has its copies where they should be.
    pub(crate) units: i64,
    /// Changes of the membership meanwhile, and times at which a voter stored any.
    pub(crate) changes: u64,
    pub(crate) stored: u64,
}

/// The times of growth and of a departure.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Pace {
    pub(crate) growth: MoveTimes,
    pub(crate) departure: MoveTimes,
}

/// The moves of the balance while nothing else happened.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Balanced {
    /// The highest load of a daemon.
    pub(crate) before: u64,
    pub(crate) after: u64,
    /// Services that got another home in half a minute, and those that did in the next one.
    pub(crate) moves: u64,
    pub(crate) late_moves: u64,
}

impl World {
    /// Somebody proposes a word about the balance, by what its daemon knows.
    fn say_balance(&mut self, word: impl Fn(Balancing) -> Balancing) {
        let any = self.random.uniform(self.hosts.len() as u64) as u16;
        let Some(node) = self.node(any).filter(|_| self.is_running(any)) else { return };
        if let Some(to) = node.membership().balancing().map(word) {
            self.with(any, |node, out| node.propose(&Change::Balance { to }, out));
        }
    }

    pub(super) fn turn_balance_on(&mut self) {
        let is_on = |node: &Node| node.membership().balancing().is_some_and(|it| it.is_on);
        if !self.nodes().any(is_on) {
            self.push(300 * MILLI, What::Balance);
            self.say_balance(|before| before.turned(true));
        }
    }

    /// Perhaps nobody hears it.
    pub(super) fn ask_for_look(&mut self) {
        self.say_balance(Balancing::with_request);
    }

    /// The balance is on, and loads stay.
    pub(crate) fn balance_of_a_quiet_time(mut self) -> Balanced {
        self.until(5 * SECOND);
        self.settle(4 * SECOND);
        let seed = self.random.next();
        let before = self.counts.homes;
        self.fault(Fault::Weigh(seed));
        let highest = |world: &World| {
            let mut loads = vec![0; usize::from(world.count())];
            let known = world.nodes().find(|it| it.leads()).expect("a leader").membership();
            for (service, _) in known.services() {
                let home = known.home(service).expect("services return");
                loads[usize::from(home.0)] += world.loads[service.0 as usize];
            }
            loads.into_iter().max().unwrap_or(0)
        };
        let mut balanced = Balanced { before: highest(&self), ..Balanced::default() };
        self.pass(30 * SECOND);
        balanced.moves = self.counts.homes - before;
        self.pass(30 * SECOND);
        balanced.late_moves = self.counts.homes - before - balanced.moves;
        balanced.after = highest(&self);
        self.settle(4 * SECOND);
        balanced
    }

    pub(crate) fn run(mut self, faults: &Faults) -> Counts {
        let (plan, end) = faults.plan(self.setup.daemons, &mut self.random);
        for (at, fault) in plan {
            self.push(at, What::Fault(fault));
        }
        self.network.lose(faults.loss_percent);
        self.until(end);
        self.heal();
        self.check_all_is_well();
        self.counts.events = self.events.happened();
        self.counts.resumed += self.nodes().map(Node::resumed).sum::<u64>();
        self.counts
    }

    /// Kills a daemon of a cluster at rest. How long each of its services is served by nobody, in
    /// nanoseconds.
    pub(crate) fn stalls_after_kill(mut self, index: u16) -> Vec<i64> {
        self.until(5 * SECOND);
        self.settle(2 * SECOND);
        let services: Vec<u32> =
            (0..self.setup.services as u32).filter(|&it| self.server(it) == Some(index)).collect();
        assert!(!services.is_empty(), "it serves something");
        self.stop(index);
        let killed = self.events.now();
        let mut stalls = Vec::new();
        for service in services {
            while self.server(service).is_none() && self.events.now() < killed + 20 * SECOND {
                self.pass(MILLI);
            }
            stalls.push(self.events.now() - killed);
        }
        stalls
    }

    /// An owner has the lease of a majority of the older voters, which others do not need: one of these
    /// is cut off from all but the owner, so that it is replaced. The others that granted the lease learn
    /// of this late, and at about that time nobody reaches the owner any more.
    pub(crate) fn run_with_older_lease(mut self) -> Counts {
        self.until(2 * SECOND);
        self.settle(4 * SECOND);
        let leader = (0..self.count()).find(|&it| self.node(it).is_some_and(Node::leads));
        let leader = leader.expect("a leader");
        let owner = self.count() - 1;
        let voters = self.node(leader).map(|it| it.membership().voters().next().to_vec());
        let voters = voters.unwrap_or_default().into_iter().map(|it| it.daemon.0);
        let kept: Vec<u16> = voters.filter(|&it| it != leader).take(3).collect();
        for other in (0..owner).filter(|it| !kept.contains(it)) {
            self.network.cut_off(owner, [other].into_iter());
        }
        let replaced = kept[0];
        for other in 0..owner {
            self.network.cut_off(replaced, [other].into_iter());
        }
        let is_joint = |node: &Node| node.membership().voters().is_joint();
        let end = self.events.now() + 6 * SECOND;
        while self.events.now() < end && !self.nodes().any(is_joint) {
            self.watch(1);
        }
        // The leader knows that the voters are joint, and the other older ones learn it later.
        let late: Vec<(u16, u16)> = kept[1..].iter().map(|&it| (leader, it)).collect();
        let is_late = |what: &What| match *what {
            What::Message { from, to, .. } => late.contains(&(from, to)),
            _ => false,
        };
        self.events.retain(|what| !is_late(what));
        late.iter().for_each(|&(from, to)| self.network.cut(from, to));
        let known_at = 1 + self.random.uniform(250);
        let cut_at = known_at + self.random.uniform(300) - 150.min(known_at);
        for millis in 0..known_at.max(cut_at) {
            if millis == known_at {
                late.iter().for_each(|&(from, to)| self.network.mend(from, to));
            }
            if millis == cut_at {
                self.host_fault(HostFault::Cut(owner));
            }
            self.watch(1);
        }
        late.iter().for_each(|&(from, to)| self.network.mend(from, to));
        self.host_fault(HostFault::Cut(owner));
        self.watch(1000);
        self.heal();
        self.check_all_is_well();
        self.counts.events = self.events.happened();
        self.counts
    }

    /// A quarter of the services is ten times as busy as the others, all at one daemon: it is relieved
    /// within this time, and then nothing moves.
    pub(crate) fn relieves_a_hot_daemon(mut self) {
        self.until(5 * SECOND);
        let hot = |service: usize| service.is_multiple_of(usize::from(self.setup.daemons));
        let loads = (0..self.setup.services).map(|it| if hot(it) { 1000 } else { 100 });
        self.loads = loads.collect();
        self.measure();
        let before = self.counts.owners;
        self.until(35 * SECOND);
        let moved = self.counts.owners - before;
        assert!(moved <= self.setup.services as u64, "{moved} moves");
        let mut busy = vec![0; usize::from(self.setup.daemons)];
        for service in 0..self.setup.services {
            let owner = self.server(service as u32).expect("it is served");
            busy[usize::from(owner)] += self.loads[service];
        }
        let (most, sum) = (busy.iter().max().copied().unwrap_or(0), busy.iter().sum::<u64>());
        assert!(most * busy.len() as u64 <= sum * 5 / 4, "{busy:?}");
        let settled = self.counts.owners;
        self.until(95 * SECOND);
        let later = self.counts.owners - settled;
        assert!(later <= 2, "services move to and fro: {later} moves");
    }

    /// Beats that each voter hears in 50 ms of a quiet time: the most, and the mean.
    pub(crate) fn beats_of_a_quiet_time(mut self) -> (u64, u64) {
        self.until(4 * SECOND);
        self.beats = Some(BTreeMap::new());
        self.until(6 * SECOND);
        let beats = self.beats.take().unwrap_or_default();
        let sum: u64 = beats.values().sum();
        (beats.values().max().copied().unwrap_or(0), sum / beats.len().max(1) as u64)
    }

    /// The instance grows to twice its size, and then as many daemons leave. For each service the longest
    /// time for which nobody serves it, in nanoseconds.
    pub(crate) fn stalls_of_growth(mut self) -> Vec<i64> {
        // Whatever was asked for counts as unfinished.
        (self.is_fast, self.is_healed) = (true, true);
        self.until(3 * SECOND);
        self.settle(2 * SECOND);
        let before = self.setup.daemons;
        for _ in 0..before {
            self.fault(Fault::Grow);
        }
        let mut longest = vec![0; self.setup.services];
        self.watch_growth(&mut longest);
        for index in 0..before {
            self.leaving.push(index);
            self.leave(index);
        }
        self.watch_growth(&mut longest);
        self.check_all_is_well();
        longest
    }

    /// So many daemons are added, and these leave: how long what moves then takes, from the moment at
    /// which the leader knows that they take part, or leave.
    pub(crate) fn pace_of_growth(mut self, count: u16) -> Pace {
        (self.is_fast, self.is_healed) = (true, true);
        self.until(3 * SECOND);
        self.settle(2 * SECOND);
        let before = self.setup.daemons;
        for _ in 0..count {
            self.fault(Fault::Grow);
        }
        let new = before..before + count;
        let growth = self.time_moves(&new, Presence::Up);
        self.settle(12 * SECOND);
        for index in new.clone() {
            self.leaving.push(index);
            self.leave(index);
        }
        let departure = self.time_moves(&new, Presence::Leaving);
        self.check_all_is_well();
        Pace { growth, departure }
    }

    fn time_moves(&mut self, subjects: &Range<u16>, presence: Presence) -> MoveTimes {
        let leaders = |world: &World| {
            let leader = world.nodes().find(|it| it.leads());
            leader.map(|it| it.membership().clone())
        };
        let is_begun = |known: &Membership| {
            let member = |it| known.member(DaemonIndex(it));
            subjects
                .clone()
                .all(|it| member(it).is_some_and(|it| it.presence == presence || it.has_left()))
        };
        let end = self.events.now() + 60 * SECOND;
        while !leaders(self).as_ref().is_some_and(is_begun) {
            self.pass(MILLI);
            assert!(self.events.now() < end, "the membership does not change");
        }
        let (begun, mut times) = (self.events.now(), MoveTimes::default());
        let first = leaders(self).map_or(0, |known| known.epoch);
        let stored = self.counts.stored;
        let mut well_at = begun;
        // A pause between two steps is no end.
        while self.events.now() - well_at < SECOND {
            self.pass(MILLI);
            let Some(known) = leaders(self) else { continue };
            let (services, units) = (self.wrong_services(&known), self.wrong_units(&known));
            let now = self.events.now();
            if services.is_some() {
                times.services = now - begun;
            }
            if units.is_some() {
                times.units = now - begun;
            }
            if services.or(units).is_some() {
                well_at = now;
            }
            (times.changes, times.stored) = (known.epoch - first, self.counts.stored - stored);
            assert!(now < end, "what moves does not end");
        }
        times
    }

    /// Looks until all was well for three seconds.
    fn watch_growth(&mut self, longest: &mut [i64]) {
        let mut served = vec![self.events.now(); self.setup.services];
        let (begun, mut wrong_at) = (self.events.now(), self.events.now());
        while self.events.now() - wrong_at < 3 * SECOND {
            assert!(self.events.now() < begun + 60 * SECOND, "{:?}", self.wrong());
            self.pass(2 * MILLI);
            for service in 0..self.setup.services {
                if self.server(service as u32).is_some() {
                    longest[service] = longest[service].max(self.events.now() - served[service]);
                    served[service] = self.events.now();
                }
            }
            if self.wrong().is_some() {
                wrong_at = self.events.now();
            }
        }
    }

    /// Looks at each millisecond of a time.
    fn watch(&mut self, millis: u64) {
        for _ in 0..millis {
            self.pass(MILLI);
            for service in 0..self.setup.services as u32 {
                self.server(service);
            }
        }
    }
}

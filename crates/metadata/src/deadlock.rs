//! Circles of processes (*parties* of locks) that wait for each other, over all services.
//!
//! Each service tells one of them, the *collector*, who waits in it for whom, again and again as long as
//! they wait. The collector looks for circles in what it was told; what makes one up it has confirmed by
//! those who told it, and then has the youngest wait of it refused with EDEADLK. Circles
//! within a service are found at once, by who closes them (`locking`).
//!
//! waiting -> told (`Waits`) -> asked about (`live.circles.asked`: `AskWaits`, `AreWaiting`) -> refused
//! (`RefuseWait`)
//!
//! Invariants
//! 1. An edge is one wait for one party, uninterrupted: it has a number that no other has. So one
//!    that was told of before the collector looked, and that is confirmed after, was there when it
//!    looked. All edges of a circle were there at that moment: none is refused that was in no circle.
//! 2. A circle stays until one of it is refused or goes, and its edges are told every `TELL_NANOS`: it
//!    is found within that, and the flight of four messages, after its last edge was made; later by
//!    as much for each time that a message is lost.
//! 3. What the collector knows is worth nothing after `KNOWN_NANOS`: nothing is said about ends of waits.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use wire::codec::Field;
use wire::{Errno, Reader, ShardIndex};

use crate::coding::Put;
use crate::live::Waiter;
use crate::peer::Message;
use crate::service::Service;

/// How often it is told who waits.
const TELL_NANOS: i64 = 100_000_000;
/// How long the collector believes it: some may be lost.
const KNOWN_NANOS: i64 = 4 * TELL_NANOS;
/// Bytes of edges in a message, about.
const MESSAGE_BYTES: usize = 48 * 1024;
/// Edges that the collector knows at most; what is told beyond is not looked at until others are gone.
const EDGES_MAX: usize = 1 << 18;
/// Whose service collects.
const COLLECTOR: ShardIndex = ShardIndex(0);

/// A wait: the group of its service and its number there.
type WaitId = (u32, u64);

/// Somebody waits for a party.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Edge {
    pub(crate) wait: u64,
    /// When the wait began.
    pub(crate) began: u64,
    /// Who waits.
    pub(crate) party: u64,
    /// For whom.
    pub(crate) blocker: u64,
    /// Of a wait and a blocker, since when the one waits for the other.
    pub(crate) since: u64,
}

fn encode(edges: &[Edge]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(size_of_val(edges));
    for edge in edges {
        for word in [edge.wait, edge.began, edge.party, edge.blocker, edge.since] {
            word.append_to(&mut bytes);
        }
    }
    bytes
}

/// The edges of a message; stops at the first that is cut off.
fn decode(bytes: &[u8]) -> Vec<Edge> {
    let mut reader = Reader::new(bytes);
    let mut word = || u64::take(&mut reader).ok();
    core::iter::from_fn(|| {
        Some(Edge {
            wait: word()?,
            began: word()?,
            party: word()?,
            blocker: word()?,
            since: word()?,
        })
    })
    .collect()
}

/// What the collector knows of a wait.
#[derive(Debug)]
struct Known {
    began: u64,
    party: u64,
    /// Since when, and until when it is believed.
    blockers: BTreeMap<u64, (u64, i64)>,
}

/// A circle that those who told of it are asked to confirm.
#[derive(Debug)]
struct Asked {
    victim: WaitId,
    /// Who has not.
    left: BTreeSet<u32>,
    until: i64,
}

/// What the collector knows, and when this service told its own last.
#[derive(Default)]
pub(crate) struct Circles {
    told: i64,
    known: BTreeMap<WaitId, Known>,
    by_party: BTreeSet<(u64, WaitId)>,
    edge_count: usize,
    asked: BTreeMap<u64, Asked>,
    /// Where services are reached.
    addresses: BTreeMap<u32, ShardIndex>,
}

impl Circles {
    fn learn(&mut self, group: u32, edge: &Edge, until: i64) {
        let id = (group, edge.wait);
        let known = self.known.entry(id).or_insert_with(|| {
            self.by_party.insert((edge.party, id));
            Known { began: edge.began, party: edge.party, blockers: BTreeMap::new() }
        });
        let is_new = known.blockers.insert(edge.blocker, (edge.since, until)).is_none();
        self.edge_count += usize::from(is_new);
    }

    fn forget(&mut self, id: WaitId) {
        if let Some(known) = self.known.remove(&id) {
            self.by_party.remove(&(known.party, id));
            self.edge_count -= known.blockers.len();
        }
    }

    fn forget_old(&mut self, now: i64) {
        let mut ended = Vec::new();
        for (&id, known) in &mut self.known {
            let before = known.blockers.len();
            known.blockers.retain(|_, (_, until)| *until > now);
            self.edge_count -= before - known.blockers.len();
            if known.blockers.is_empty() {
                ended.push(id);
            }
        }
        ended.into_iter().for_each(|id| self.forget(id));
        self.asked.retain(|_, asked| asked.until > now);
    }

    fn waits_of(&self, party: u64) -> impl Iterator<Item = (WaitId, &Known)> {
        let all = self.by_party.range((party, (0, 0))..=(party, (u32::MAX, u64::MAX)));
        all.filter_map(|&(_, id)| Some((id, self.known.get(&id)?)))
    }

    /// The shortest circle of edges that begins with a wait.
    fn circle(&self, first: WaitId) -> Option<Vec<(u32, Edge)>> {
        let start = self.known.get(&first)?;
        // By whom each party was come to.
        let mut from: BTreeMap<u64, (u32, Edge)> = BTreeMap::new();
        let mut next = VecDeque::from([(first, start)]);
        while let Some((id, known)) = next.pop_front() {
            for (&blocker, &(since, _)) in &known.blockers {
                let (wait, began, party) = (id.1, known.began, known.party);
                let edge = Edge { wait, began, party, blocker, since };
                if blocker == start.party {
                    let mut circle = vec![(id.0, edge)];
                    let mut here = party;
                    while here != start.party {
                        let &(group, edge) = from.get(&here)?;
                        circle.push((group, edge));
                        here = edge.party;
                    }
                    return Some(circle);
                }
                if let Entry::Vacant(place) = from.entry(blocker) {
                    place.insert((id.0, edge));
                    next.extend(self.waits_of(blocker));
                }
            }
        }
        None
    }
}

impl Service {
    /// Somebody began to wait: in time it is told.
    pub(crate) fn note_waiting(&mut self) {
        self.live.wake_at(self.live.circles.told.max(self.live.now).saturating_add(TELL_NANOS));
    }

    /// What time brings: tells the collector who waits, and forgets what it was told.
    pub(crate) fn keep_circles(&mut self) {
        let now = self.live.now;
        let due = self.live.circles.told.saturating_add(TELL_NANOS);
        if due <= now {
            self.live.circles.told = now;
            self.live.circles.forget_old(now);
            let edges: Vec<Edge> = self.edges().collect();
            for edges in edges.chunks(MESSAGE_BYTES / size_of::<Edge>()) {
                self.tell_waits(edges);
            }
        }
        let circles = &self.live.circles;
        if self.edges().next().is_some() || !circles.known.is_empty() {
            self.live.wake_at(self.live.circles.told.saturating_add(TELL_NANOS));
        }
    }

    fn edges(&self) -> impl Iterator<Item = Edge> + '_ {
        self.live.waiters.values().flatten().flat_map(Waiter::edges)
    }

    fn tell_waits(&mut self, edges: &[Edge]) {
        let (from, group) = (self.live.address.0, self.config.own_group().0);
        match self.config.owns(COLLECTOR) {
            true => self.learn_waits(from, group, edges),
            false => {
                let waits = &encode(edges);
                self.io.send(COLLECTOR, &Message::Waits { from, group, waits });
            }
        }
    }

    /// A message about who waits.
    pub(crate) fn take_word_of_waits(&mut self, message: &Message<'_>) {
        match *message {
            Message::Waits { from, group, waits } => self.learn_waits(from, group, &decode(waits)),
            Message::AskWaits { from, circle, waits } => self.asked_waits(from, circle, waits),
            Message::AreWaiting { circle, group } => self.confirmed(circle, group),
            Message::RefuseWait { wait } => self.refuse_wait(wait),
            _ => {}
        }
    }

    fn learn_waits(&mut self, from: u16, group: u32, edges: &[Edge]) {
        let until = self.live.now.saturating_add(KNOWN_NANOS);
        self.live.circles.addresses.insert(group, ShardIndex(from));
        for edge in edges {
            if self.live.circles.edge_count < EDGES_MAX {
                self.live.circles.learn(group, edge, until);
            }
        }
        self.live.wake_at(self.live.circles.told.max(self.live.now).saturating_add(TELL_NANOS));
        let waits: BTreeSet<u64> = edges.iter().map(|edge| edge.wait).collect();
        for wait in waits {
            if let Some(circle) = self.live.circles.circle((group, wait)) {
                self.ask_about(&circle);
            }
        }
    }

    /// Asks those who told of a circle whether it is still there.
    fn ask_about(&mut self, circle: &[(u32, Edge)]) {
        let youngest = circle.iter().max_by_key(|(group, edge)| (edge.began, *group, edge.wait));
        let Some(victim) = youngest.map(|(group, edge)| (*group, edge.wait)) else { return };
        if self.live.circles.asked.values().any(|asked| asked.victim == victim) {
            return;
        }
        let left: BTreeSet<u32> = circle.iter().map(|(group, _)| *group).collect();
        let number = self.new_sequence();
        let until = self.live.now.saturating_add(TELL_NANOS);
        self.live.circles.asked.insert(number, Asked { victim, left: left.clone(), until });
        let own = self.config.own_group().0;
        for group in left {
            let theirs = circle.iter().filter(|(other, _)| *other == group);
            let edges: Vec<Edge> = theirs.map(|(_, edge)| *edge).collect();
            let address = self.live.circles.addresses.get(&group).copied();
            match address.filter(|_| group != own) {
                Some(to) => {
                    let (from, waits) = (self.live.address.0, &encode(&edges));
                    self.io.send(to, &Message::AskWaits { from, circle: number, waits });
                }
                None if self.are_waiting(&edges) => self.confirmed(number, own),
                None => {}
            }
        }
    }

    fn are_waiting(&self, edges: &[Edge]) -> bool {
        edges.iter().all(|edge| self.edges().any(|own| own == *edge))
    }

    /// The collector asks whether these wait still.
    fn asked_waits(&mut self, from: u16, circle: u64, waits: &[u8]) {
        let edges = decode(waits);
        if !edges.is_empty() && self.are_waiting(&edges) {
            let group = self.config.own_group().0;
            self.io.send(ShardIndex(from), &Message::AreWaiting { circle, group });
        }
    }

    /// A service says that its part of a circle is there.
    fn confirmed(&mut self, circle: u64, group: u32) {
        let Some(asked) = self.live.circles.asked.get_mut(&circle) else { return };
        asked.left.remove(&group);
        if !asked.left.is_empty() {
            return;
        }
        let victim = asked.victim;
        self.live.circles.asked.remove(&circle);
        self.live.circles.forget(victim);
        let (group, wait) = victim;
        match self.live.circles.addresses.get(&group).copied() {
            Some(to) if group != self.config.own_group().0 => {
                self.io.send(to, &Message::RefuseWait { wait });
            }
            _ => self.refuse_wait(wait),
        }
    }

    /// A wait is part of a circle, and the one that ends.
    fn refuse_wait(&mut self, wait: u64) {
        let all = &self.live.waiters;
        let is_it = |waiter: &Waiter| waiter.number == wait;
        let found = all.iter().find(|(_, waiters)| waiters.iter().any(is_it)).map(|(&i, _)| i);
        if let Some(inode) = found {
            self.refuse(inode, Errno::EDEADLK, is_it);
        }
    }
}

//! Deadlock detection over all services: cycles in the wait-for graph of processes (*parties* of
//! locks).
//!
//! Each service reports its waits to one of them, the *collector*, periodically as long as they
//! last. The collector searches for cycles, has each edge of a cycle confirmed by the service that
//! reported it, and then has the youngest wait of the cycle refused with EDEADLK. A cycle within
//! one service is found at once, by the request that closes it (`requests`).
//!
//! waiting -> reported (`Waits`) -> being confirmed (`Cycles::confirmations`: `AskWaits`,
//! `AreWaiting`) -> refused (`RefuseWait`)
//!
//! Invariants
//! 1. An edge is one uninterrupted wait for one party, with a unique number. So an edge that was
//!    reported before the collector searched, and is confirmed afterwards, existed when it
//!    searched. All edges of a cycle existed at that moment: no wait is refused that was in no
//!    cycle.
//! 2. A cycle stays until one of its waits is refused or ends, and its edges are reported every
//!    `REPORT_NANOS`: it is found within that time, and the latency of four messages, after its
//!    last edge was added; later by as much for each lost message.
//! 3. The collector's knowledge expires after `KNOWN_NANOS`: ends of waits are not reported.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use wire::codec::Field;
use wire::{Reader, ShardIndex};

use crate::core::coding::Put;
use crate::core::context::Context;
use crate::core::peer_messages::Message;
use crate::locks::requests::{Edge, FileLocks, REPORT_NANOS};

/// How long the collector trusts a report: several may be lost.
const KNOWN_NANOS: i64 = 4 * REPORT_NANOS;
/// Approximate bytes of edges in a message.
const MESSAGE_BYTES: usize = 48 * 1024;
/// Most edges that the collector knows; further reports are ignored until others have expired.
const EDGES_MAX: usize = 1 << 18;
/// A shard of the collector.
const COLLECTOR: ShardIndex = ShardIndex(0);

/// A wait: the group of its service and its number there.
type WaitId = (u32, u64);

fn encode(edges: &[Edge]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(size_of_val(edges));
    for edge in edges {
        for word in [edge.wait, edge.began, edge.party, edge.blocker, edge.since] {
            word.append_to(&mut bytes);
        }
    }
    bytes
}

/// The edges of a message; stops at the first that is truncated.
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

/// A wait as the collector knows it.
#[derive(Debug)]
struct KnownWait {
    began: u64,
    party: u64,
    /// By blocker, the number of the edge, and its expiry.
    blockers: BTreeMap<u64, (u64, i64)>,
}

/// A cycle whose edges are being confirmed by the services that reported them.
#[derive(Debug)]
struct CycleConfirmation {
    victim: WaitId,
    /// Services that have not confirmed.
    left: BTreeSet<u32>,
    until: i64,
}

/// State of the collector.
#[derive(Default)]
pub(crate) struct Cycles {
    known: BTreeMap<WaitId, KnownWait>,
    by_party: BTreeSet<(u64, WaitId)>,
    edge_count: usize,
    confirmations: BTreeMap<u64, CycleConfirmation>,
    /// By group, a shard of the service.
    addresses: BTreeMap<u32, ShardIndex>,
}

impl Cycles {
    fn learn(&mut self, group: u32, edge: &Edge, until: i64) {
        let id = (group, edge.wait);
        let known = self.known.entry(id).or_insert_with(|| {
            self.by_party.insert((edge.party, id));
            KnownWait { began: edge.began, party: edge.party, blockers: BTreeMap::new() }
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
        self.confirmations.retain(|_, confirmations| confirmations.until > now);
    }

    fn waits_of(&self, party: u64) -> impl Iterator<Item = (WaitId, &KnownWait)> {
        let all = self.by_party.range((party, (0, 0))..=(party, (u32::MAX, u64::MAX)));
        all.filter_map(|&(_, id)| Some((id, self.known.get(&id)?)))
    }

    /// The shortest cycle of edges that begins with a wait.
    fn cycle(&self, first: WaitId) -> Option<Vec<(u32, Edge)>> {
        let start = self.known.get(&first)?;
        // The edge by which the search reached each party.
        let mut from: BTreeMap<u64, (u32, Edge)> = BTreeMap::new();
        let mut next = VecDeque::from([(first, start)]);
        while let Some((id, known)) = next.pop_front() {
            for (&blocker, &(since, _)) in &known.blockers {
                let (wait, began, party) = (id.1, known.began, known.party);
                let edge = Edge { wait, began, party, blocker, since };
                if blocker == start.party {
                    let mut cycle = vec![(id.0, edge)];
                    let mut here = party;
                    while here != start.party {
                        let &(group, edge) = from.get(&here)?;
                        cycle.push((group, edge));
                        here = edge.party;
                    }
                    return Some(cycle);
                }
                if let Entry::Vacant(place) = from.entry(blocker) {
                    place.insert((id.0, edge));
                    next.extend(self.waits_of(blocker));
                }
            }
        }
        None
    }

    /// Timer: reports waits to the collector, and expires reports.
    pub(crate) fn tick_deadlocks(&mut self, cx: &mut Context, locks: &mut FileLocks) {
        let now = cx.now;
        let due = locks.reported.saturating_add(REPORT_NANOS);
        if due <= now {
            locks.reported = now;
            self.forget_old(now);
            let edges: Vec<Edge> = locks.edges().collect();
            for edges in edges.chunks(MESSAGE_BYTES / size_of::<Edge>()) {
                self.send_waits(cx, locks, edges);
            }
        }
        if locks.edges().next().is_some() || !self.known.is_empty() {
            cx.wake_at(locks.reported.saturating_add(REPORT_NANOS));
        }
    }

    fn send_waits(&mut self, cx: &mut Context, locks: &mut FileLocks, edges: &[Edge]) {
        let (from, group) = (cx.address.0, cx.config.own_group().0);
        match cx.config.owns(COLLECTOR) {
            true => self.learn_waits(cx, locks, from, group, edges),
            false => {
                let waits = &encode(edges);
                cx.io.send(COLLECTOR, &Message::Waits { from, group, waits });
            }
        }
    }

    /// Takes a message about waits.
    pub(crate) fn take_wait_message(
        &mut self,
        cx: &mut Context,
        locks: &mut FileLocks,
        message: &Message<'_>,
    ) {
        match *message {
            Message::Waits { from, group, waits } => {
                self.learn_waits(cx, locks, from, group, &decode(waits))
            }
            Message::AskWaits { from, cycle, waits } => {
                Cycles::answer_confirmation(cx, locks, from, cycle, waits)
            }
            Message::AreWaiting { cycle, group } => self.confirmed(cx, locks, cycle, group),
            Message::RefuseWait { wait } => locks.refuse_number(cx, wait),
            _ => {}
        }
    }

    fn learn_waits(
        &mut self,
        cx: &mut Context,
        locks: &mut FileLocks,
        from: u16,
        group: u32,
        edges: &[Edge],
    ) {
        let until = cx.now.saturating_add(KNOWN_NANOS);
        self.addresses.insert(group, ShardIndex(from));
        for edge in edges {
            if self.edge_count < EDGES_MAX {
                self.learn(group, edge, until);
            }
        }
        cx.wake_at(locks.reported.max(cx.now).saturating_add(REPORT_NANOS));
        let waits: BTreeSet<u64> = edges.iter().map(|edge| edge.wait).collect();
        for wait in waits {
            if let Some(cycle) = self.cycle((group, wait)) {
                self.confirm_cycle(cx, locks, &cycle);
            }
        }
    }

    /// Asks the services that reported a cycle whether it still exists.
    fn confirm_cycle(&mut self, cx: &mut Context, locks: &mut FileLocks, cycle: &[(u32, Edge)]) {
        let youngest = cycle.iter().max_by_key(|(group, edge)| (edge.began, *group, edge.wait));
        let Some(victim) = youngest.map(|(group, edge)| (*group, edge.wait)) else { return };
        if self.confirmations.values().any(|confirmations| confirmations.victim == victim) {
            return;
        }
        let left: BTreeSet<u32> = cycle.iter().map(|(group, _)| *group).collect();
        let number = cx.new_sequence();
        let until = cx.now.saturating_add(REPORT_NANOS);
        self.confirmations.insert(number, CycleConfirmation { victim, left: left.clone(), until });
        let own = cx.config.own_group().0;
        for group in left {
            let theirs = cycle.iter().filter(|(other, _)| *other == group);
            let edges: Vec<Edge> = theirs.map(|(_, edge)| *edge).collect();
            let address = self.addresses.get(&group).copied();
            match address.filter(|_| group != own) {
                Some(to) => {
                    let (from, waits) = (cx.address.0, &encode(&edges));
                    cx.io.send(to, &Message::AskWaits { from, cycle: number, waits });
                }
                None if are_waiting(locks, &edges) => self.confirmed(cx, locks, number, own),
                None => {}
            }
        }
    }

    /// The collector asks whether these waits still exist.
    fn answer_confirmation(
        cx: &mut Context,
        locks: &FileLocks,
        from: u16,
        cycle: u64,
        waits: &[u8],
    ) {
        let edges = decode(waits);
        if !edges.is_empty() && are_waiting(locks, &edges) {
            let group = cx.config.own_group().0;
            cx.io.send(ShardIndex(from), &Message::AreWaiting { cycle, group });
        }
    }

    /// A service confirms its edges of a cycle.
    fn confirmed(&mut self, cx: &mut Context, locks: &mut FileLocks, cycle: u64, group: u32) {
        let Some(confirmations) = self.confirmations.get_mut(&cycle) else {
            return;
        };
        confirmations.left.remove(&group);
        if !confirmations.left.is_empty() {
            return;
        }
        let victim = confirmations.victim;
        self.confirmations.remove(&cycle);
        self.forget(victim);
        let (group, wait) = victim;
        match self.addresses.get(&group).copied() {
            Some(to) if group != cx.config.own_group().0 => {
                cx.io.send(to, &Message::RefuseWait { wait });
            }
            _ => locks.refuse_number(cx, wait),
        }
    }
}

fn are_waiting(locks: &FileLocks, edges: &[Edge]) -> bool {
    edges.iter().all(|edge| locks.edges().any(|own| own == *edge))
}

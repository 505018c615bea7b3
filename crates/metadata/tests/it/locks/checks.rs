//! Invariants after every step, comparing the locks of services with those that processes believe
//! to hold.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    CYCLE_NANOS, Game, Going, Identity, LockSpec, ORDER_NANOS, PROCESSES, Space, WaitState, bytes,
};
use metadata::LockSeen;
use wire::Inode;
use wire::request::lock::WRITE;

/// Processes whose locks conflict with one.
fn blockers(locks: Option<&[LockSeen]>, spec: &LockSeen) -> BTreeSet<u64> {
    let held = locks.into_iter().flatten();
    let held = held.filter(|lock| lock.waits.is_none() && lock.is_of_process);
    held.filter(|lock| lock.conflicts(spec)).map(|lock| lock.owner).collect()
}

type Edges = BTreeMap<u64, BTreeSet<u64>>;
type Waits = Vec<(Identity, u64, BTreeSet<u64>)>;

/// The wait-for graph, and each wait of a process.
fn edges(truth: &[Option<Vec<LockSeen>>]) -> (Edges, Waits) {
    let (mut edges, mut waits) = (Edges::new(), Waits::new());
    for locks in truth.iter().flatten() {
        for waiter in locks.iter().filter(|waiter| waiter.is_of_process) {
            let Some(identity) = waiter.waits else { continue };
            let owners = blockers(Some(locks), waiter);
            edges.entry(waiter.owner).or_default().extend(&owners);
            waits.push((identity, waiter.owner, owners));
        }
    }
    (edges, waits)
}

/// All parties that some wait for, directly or through others.
fn reached(edges: &Edges, some: &BTreeSet<u64>) -> BTreeSet<u64> {
    let mut reached = BTreeSet::new();
    let mut next: Vec<u64> = some.iter().copied().collect();
    while let Some(one) = next.pop() {
        if reached.insert(one) {
            next.extend(edges.get(&one).into_iter().flatten());
        }
    }
    reached
}

impl Game {
    /// True if this request would wait for its own process.
    pub(crate) fn would_close_cycle(&self, process: u64, spec: &LockSpec) -> bool {
        // Includes a service killed in the step in which it refused the request.
        let locks = |file: &Inode| {
            let at = self.world.owner(file.shard());
            Some(self.world.seats[at].service.locks_of(*file))
        };
        let truth: Vec<_> = self.files.iter().map(locks).collect();
        let (edges, _) = edges(&truth);
        let owner = self.owner(process, spec.space);
        let (start, end) = spec.range;
        let (kind, is_flock, is_of_process) = (spec.kind, false, true);
        let lock = LockSeen { owner, kind, is_flock, is_of_process, start, end, waits: None };
        reached(&edges, &blockers(truth[spec.file].as_deref(), &lock)).contains(&owner)
    }

    /// No other process believes to hold a conflicting lock.
    pub(crate) fn assert_exclusive(&self, process: u64, file: usize, space: Space) {
        let is_flock = space == Space::Flock;
        let of = |number: u64| {
            let has = self.processes[&number].has.iter();
            has.filter(move |((other, of, _), _)| {
                *other == file && (*of == Space::Flock) == is_flock
            })
            .map(move |(&(_, space, byte), &kind)| (number, space, byte, kind))
        };
        for (_, own, byte, kind) in of(process).filter(|one| one.1 == space) {
            for number in 0..PROCESSES {
                for (other, theirs, at, what) in of(number) {
                    let is_same = other == process && theirs == own;
                    let conflicts = at == byte && (kind == WRITE || what == WRITE);
                    assert!(is_same || !conflicts, "{process} and {other} have {byte} of {file}");
                }
            }
        }
    }

    /// The locks of each service. `None`: one is down.
    pub(crate) fn truth(&self) -> Vec<Option<Vec<LockSeen>>> {
        let truth = self.files.iter().map(|&file| {
            let at = self.world.owner(file.shard());
            (!self.world.dead.contains(&at)).then(|| self.world.seats[at].service.locks_of(file))
        });
        truth.collect()
    }

    /// A process without a pending request on a file holds there exactly what it believes to hold.
    pub(crate) fn check_held(&self, truth: &[Option<Vec<LockSeen>>]) {
        for (&number, process) in &self.processes {
            for (file, locks) in truth.iter().enumerate() {
                let Some(locks) = locks else { continue };
                if process.threads.values().any(|going| going.spec.file == file) {
                    continue;
                }
                let mut has = BTreeMap::new();
                for space in [Space::Process, Space::OpenFile, Space::Flock] {
                    let owner = self.owner(number, space);
                    let own = locks.iter().filter(|lock| {
                        lock.owner == owner && lock.is_flock == (space == Space::Flock)
                    });
                    for lock in own {
                        assert_eq!(lock.waits, None, "{number} waits and does not know");
                        let all = bytes((lock.start, lock.end));
                        has.extend(all.map(|byte| ((file, space, byte), lock.kind)));
                    }
                }
                let expected = process.has.iter().filter(|((other, ..), _)| *other == file);
                let expected: BTreeMap<_, _> = expected.map(|(&at, &kind)| (at, kind)).collect();
                assert_eq!(has, expected, "{number} has, and believes that it has, of {file}");
            }
        }
    }

    /// Deadlocks of processes: which waits have been in one, and for how long.
    pub(crate) fn check_cycles(&mut self, truth: &[Option<Vec<LockSeen>>]) {
        let now = self.world.now;
        for locks in truth.iter().flatten() {
            for (place, waiter) in locks.iter().enumerate() {
                let Some(identity) = waiter.waits else { continue };
                let before = locks[..place].iter().filter_map(|other| other.waits);
                let seen = self.seen.entry(identity).or_insert_with(|| WaitState {
                    first: now,
                    free: None,
                    before: before.collect(),
                    in_cycle: None,
                    was_in_cycle: false,
                });
                let mut held = locks.iter().filter(|lock| lock.waits.is_none());
                let is_free = !held.any(|lock| lock.conflicts(waiter));
                seen.free = seen.free.filter(|_| is_free).or(is_free.then_some(now));
                let waits_free = seen.free.map_or(0, |since| now - since);
                let limit = ORDER_NANOS + 200_000_000;
                assert!(waits_free < limit, "{waiter:?} waits behind others for {waits_free} ns");
            }
        }
        let (edges, waits) = edges(truth);
        let all_are_there = truth.iter().all(Option::is_some);
        for (identity, owner, owners) in waits {
            let is_in_cycle = reached(&edges, &owners).contains(&owner);
            let seen = self.seen.get_mut(&identity).expect("it was noted");
            seen.was_in_cycle |= is_in_cycle;
            seen.in_cycle = match seen.in_cycle {
                Some(since) if is_in_cycle && all_are_there => Some(since),
                _ => is_in_cycle.then_some(now),
            };
            let stays = seen.in_cycle.map_or(0, |since| now - since);
            self.longest = self.longest.max(stays);
            assert!(stays < CYCLE_NANOS, "a cycle stays, for {stays} ns");
        }
    }

    /// No waiter is overtaken by a later conflicting request, unless a lock blocked the waiter
    /// before.
    pub(crate) fn check_order(
        &self,
        before: &[Option<Vec<LockSeen>>],
        after: &[Option<Vec<LockSeen>>],
    ) {
        for (before, after) in before.iter().zip(after) {
            let (Some(before), Some(after)) = (before, after) else { continue };
            let waits = |lock: &&LockSeen| {
                lock.waits.is_some() && after.iter().any(|other| other.waits == lock.waits)
            };
            let left: Vec<&LockSeen> = before.iter().filter(waits).collect();
            for got in before.iter().filter(|lock| lock.waits.is_some() && !waits(lock)) {
                let seen = got.waits.and_then(|identity| self.seen.get(&identity));
                let Some(seen) = seen else { continue };
                if self.world.now - seen.first >= ORDER_NANOS {
                    continue;
                }
                let is_held = after.iter().any(|held| {
                    let is_it = held.owner == got.owner && held.is_flock == got.is_flock;
                    let covers = held.start <= got.start && got.end <= held.end;
                    is_it && covers && held.kind == got.kind && held.waits.is_none()
                });
                for earlier in left
                    .iter()
                    .filter(|other| other.waits.is_some_and(|other| seen.before.contains(&other)))
                {
                    let has_more = before.iter().any(|held| {
                        held.waits.is_none() && held.owner == got.owner && held.conflicts(earlier)
                    });
                    assert!(
                        !is_held || has_more || !got.conflicts(earlier),
                        "{got:?} passed {earlier:?}"
                    );
                }
            }
        }
    }

    /// A request granted at once overtook no waiter.
    pub(crate) fn check_newcomer(&self, process: u64, going: &Going) {
        let before = self.last.get(going.spec.file).and_then(Option::as_ref);
        let Some(before) = before.filter(|_| !self.seen.contains_key(&going.identity)) else {
            return;
        };
        let LockSpec { kind, space, range: (start, end), .. } = going.spec;
        let owner = self.owner(process, space);
        let (is_flock, is_of_process) = (space == Space::Flock, space == Space::Process);
        let got = LockSeen { owner, kind, is_flock, is_of_process, start, end, waits: None };
        let had = |other: &LockSeen| {
            let own = before.iter().filter(|lock| lock.owner == owner && lock.waits.is_none());
            own.into_iter().any(|lock| lock.is_flock == is_flock && lock.conflicts(other))
        };
        for earlier in before.iter().filter(|lock| lock.waits.is_some()) {
            let passed = got.conflicts(earlier) && !had(earlier);
            let still = self.truth()[going.spec.file]
                .as_ref()
                .is_some_and(|locks| locks.iter().any(|lock| lock.waits == earlier.waits));
            assert!(!passed || !still, "{got:?} passed {earlier:?} at once");
        }
    }
}

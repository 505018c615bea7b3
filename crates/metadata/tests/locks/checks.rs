//! What must be so after every step: compared are what services have, and what processes believe.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    CIRCLE_NANOS, Game, Going, Identity, ORDER_NANOS, PROCESSES, Seen, Space, Wanted, bytes,
};
use metadata::LockSeen;
use wire::Inode;
use wire::request::lock::WRITE;

/// Whose locks of processes are in the way of one.
fn blockers(locks: Option<&[LockSeen]>, wanted: &LockSeen) -> BTreeSet<u64> {
    let held = locks.into_iter().flatten();
    let held = held.filter(|lock| lock.waits.is_none() && lock.is_of_process);
    held.filter(|lock| lock.conflicts(wanted)).map(|lock| lock.owner).collect()
}

type Edges = BTreeMap<u64, BTreeSet<u64>>;
type Waits = Vec<(Identity, u64, BTreeSet<u64>)>;

/// Who waits for whom, and each wait of a process.
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

/// All that are waited for by some, and by those.
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
    /// Would somebody who waited wait for himself now?
    pub(crate) fn would_close_circle(&self, process: u64, wanted: &Wanted) -> bool {
        // Also of who was killed in the step in which he refused it.
        let locks = |file: &Inode| {
            let at = self.world.owner(file.shard());
            Some(self.world.seats[at].service.locks_of(*file))
        };
        let truth: Vec<_> = self.files.iter().map(locks).collect();
        let (edges, _) = edges(&truth);
        let owner = self.owner(process, wanted.space);
        let (start, end) = wanted.range;
        let (kind, is_flock, is_of_process) = (wanted.kind, false, true);
        let lock = LockSeen { owner, kind, is_flock, is_of_process, start, end, waits: None };
        reached(&edges, &blockers(truth[wanted.file].as_deref(), &lock)).contains(&owner)
    }

    /// Nobody else believes that he has what conflicts.
    pub(crate) fn assert_alone(&self, process: u64, file: usize, space: Space) {
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

    /// What services have now. `None`: one is away.
    pub(crate) fn truth(&self) -> Vec<Option<Vec<LockSeen>>> {
        let truth = self.files.iter().map(|&file| {
            let at = self.world.owner(file.shard());
            (!self.world.dead.contains(&at)).then(|| self.world.seats[at].service.locks_of(file))
        });
        truth.collect()
    }

    /// Who has nothing under way in a file has there what he believes that he has.
    pub(crate) fn check_beliefs(&self, truth: &[Option<Vec<LockSeen>>]) {
        for (&number, process) in &self.processes {
            for (file, locks) in truth.iter().enumerate() {
                let Some(locks) = locks else { continue };
                if process.threads.values().any(|going| going.wanted.file == file) {
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
                let believed = process.has.iter().filter(|((other, ..), _)| *other == file);
                let believed: BTreeMap<_, _> = believed.map(|(&at, &kind)| (at, kind)).collect();
                assert_eq!(has, believed, "{number} has, and believes that it has, of {file}");
            }
        }
    }

    /// Circles of processes that wait for each other: who has been in one, and for how long.
    pub(crate) fn check_circles(&mut self, truth: &[Option<Vec<LockSeen>>]) {
        let now = self.world.now;
        for locks in truth.iter().flatten() {
            for (place, waiter) in locks.iter().enumerate() {
                let Some(identity) = waiter.waits else { continue };
                let before = locks[..place].iter().filter_map(|other| other.waits);
                let seen = self.seen.entry(identity).or_insert_with(|| Seen {
                    first: now,
                    free: None,
                    before: before.collect(),
                    in_circle: None,
                    was_in_circle: false,
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
            let is_in_circle = reached(&edges, &owners).contains(&owner);
            let seen = self.seen.get_mut(&identity).expect("it was noted");
            seen.was_in_circle |= is_in_circle;
            seen.in_circle = match seen.in_circle {
                Some(since) if is_in_circle && all_are_there => Some(since),
                _ => is_in_circle.then_some(now),
            };
            let stays = seen.in_circle.map_or(0, |since| now - since);
            self.longest = self.longest.max(stays);
            assert!(stays < CIRCLE_NANOS, "a circle stays, for {stays} ns");
        }
    }

    /// Nobody is passed by who came later, is in his way and has nothing in his way before.
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

    /// Who was let in at once passed nobody who waited.
    pub(crate) fn check_newcomer(&self, process: u64, going: &Going) {
        let before = self.last.get(going.wanted.file).and_then(Option::as_ref);
        let Some(before) = before.filter(|_| !self.seen.contains_key(&going.identity)) else {
            return;
        };
        let Wanted { kind, space, range: (start, end), .. } = going.wanted;
        let owner = self.owner(process, space);
        let (is_flock, is_of_process) = (space == Space::Flock, space == Space::Process);
        let got = LockSeen { owner, kind, is_flock, is_of_process, start, end, waits: None };
        let had = |other: &LockSeen| {
            let own = before.iter().filter(|lock| lock.owner == owner && lock.waits.is_none());
            own.into_iter().any(|lock| lock.is_flock == is_flock && lock.conflicts(other))
        };
        for earlier in before.iter().filter(|lock| lock.waits.is_some()) {
            let passed = got.conflicts(earlier) && !had(earlier);
            let still = self.truth()[going.wanted.file]
                .as_ref()
                .is_some_and(|locks| locks.iter().any(|lock| lock.waits == earlier.waits));
            assert!(!passed || !still, "{got:?} passed {earlier:?} at once");
        }
    }
}

//! Record locks of one inode: POSIX rules for splitting, merging and conflicts. Waiting for a lock
//! is in `requests`.
//!
//! Invariants
//! 1. Locks of one owner in one space (`flock` or not) never overlap.
//! 2. Two locks of different owners in one space overlap only if both are shared.

use wire::codec::Field;
use wire::{Malformed, Reader, request};

use crate::core::coding::Put;

/// A lock that is held or requested: bytes `start ..= end`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Lock {
    pub(crate) owner: u64,
    /// The process, for deadlock detection; 0: excluded from it.
    pub(crate) party: u64,
    pub(crate) pid: u32,
    pub(crate) host: u16,
    pub(crate) kind: u8,
    /// 1: taken by `flock`, which does not conflict with the other locks.
    pub(crate) flock: u8,
    pub(crate) start: u64,
    pub(crate) end: u64,
}

impl Lock {
    fn overlaps(&self, other: &Lock) -> bool {
        self.flock == other.flock && self.start <= other.end && other.start <= self.end
    }

    pub(crate) fn is_in_the_way_of(&self, other: &Lock) -> bool {
        let exclusive = self.kind == request::lock::WRITE || other.kind == request::lock::WRITE;
        self.owner != other.owner && exclusive && self.overlaps(other)
    }

    fn is_like(&self, other: &Lock) -> bool {
        self.owner == other.owner && self.flock == other.flock
    }
}

/// The first of `held` that conflicts with `requested`.
pub(crate) fn conflict<'a>(held: &'a [Lock], requested: &Lock) -> Option<&'a Lock> {
    held.iter().find(|lock| lock.is_in_the_way_of(requested))
}

/// All of `held` that conflict with `requested`.
pub(crate) fn conflicts<'a>(
    held: &'a [Lock],
    requested: &'a Lock,
) -> impl Iterator<Item = &'a Lock> + 'a {
    held.iter().filter(move |lock| lock.is_in_the_way_of(requested))
}

/// Takes or (kind UNLOCK) releases a range without conflicts. Locks of the owner in the range are
/// replaced, split at its ends, and merged with neighbours of the same kind.
pub(crate) fn set(held: &mut Vec<Lock>, mut requested: Lock) {
    let mut result = Vec::with_capacity(held.len() + 2);
    for lock in held.drain(..) {
        if !lock.is_like(&requested) {
            result.push(lock);
            continue;
        }
        let touches = lock.start <= requested.end.saturating_add(1)
            && requested.start <= lock.end.saturating_add(1);
        if touches && lock.kind == requested.kind {
            requested.start = requested.start.min(lock.start);
            requested.end = requested.end.max(lock.end);
        } else if lock.overlaps(&requested) {
            if lock.start < requested.start {
                result.push(Lock { end: requested.start - 1, ..lock });
            }
            if lock.end > requested.end {
                result.push(Lock { start: requested.end + 1, ..lock });
            }
        } else {
            result.push(lock);
        }
    }
    if requested.kind != request::lock::UNLOCK {
        result.push(requested);
    }
    result.sort_by_key(|lock| (lock.start, lock.owner));
    *held = result;
}

/// Appends the encoded locks: owner, party, pid, host, kind, flock, start, end of each.
pub(crate) fn encode(held: &[Lock], to: &mut Vec<u8>) {
    for lock in held {
        lock.owner.append_to(to);
        lock.party.append_to(to);
        lock.pid.append_to(to);
        lock.host.append_to(to);
        lock.kind.append_to(to);
        lock.flock.append_to(to);
        lock.start.append_to(to);
        lock.end.append_to(to);
    }
}

/// Reads what `encode` wrote.
pub(crate) fn decode(bytes: &[u8]) -> Result<Vec<Lock>, Malformed> {
    let mut reader = Reader::new(bytes);
    let mut held = Vec::new();
    while !reader.rest().is_empty() {
        held.push(Lock {
            owner: Field::take(&mut reader)?,
            party: Field::take(&mut reader)?,
            pid: Field::take(&mut reader)?,
            host: Field::take(&mut reader)?,
            kind: Field::take(&mut reader)?,
            flock: Field::take(&mut reader)?,
            start: Field::take(&mut reader)?,
            end: Field::take(&mut reader)?,
        });
    }
    Ok(held)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use wire::request::lock::{READ, UNLOCK, WRITE};

    fn lock(owner: u64, kind: u8, start: u64, end: u64) -> Lock {
        Lock { owner, party: owner, pid: 1, host: 0, kind, flock: 0, start, end }
    }

    #[test]
    fn unlocking_the_middle_splits() {
        let mut held = vec![];
        set(&mut held, lock(1, WRITE, 0, 99));
        set(&mut held, lock(1, UNLOCK, 40, 59));
        assert_eq!(held, [lock(1, WRITE, 0, 39), lock(1, WRITE, 60, 99)]);
        set(&mut held, lock(1, WRITE, 40, 59));
        assert_eq!(held, [lock(1, WRITE, 0, 99)]);
        set(&mut held, lock(1, READ, 10, u64::MAX));
        assert_eq!(held, [lock(1, WRITE, 0, 9), lock(1, READ, 10, u64::MAX)]);
        assert_eq!(conflict(&held, &lock(2, READ, 10, 20)), None);
        assert_eq!(conflict(&held, &lock(2, READ, 9, 20)), Some(&lock(1, WRITE, 0, 9)));
    }

    proptest! {
        /// After any operations, each byte is held as the last operation on it said.
        #[test]
        fn each_byte_is_held_as_last_said(
            ops in prop::collection::vec((0u64..3, 0u8..3, 0u64..24, 0u64..8), 1..40),
        ) {
            let mut held = vec![];
            let mut bytes = [[UNLOCK; 32]; 3];
            for (owner, kind, start, length) in ops {
                let requested = lock(owner, kind, start, start + length);
                let blocked = kind != UNLOCK && (0..3).any(|other| {
                    other != owner && (start..=start + length).any(|at| {
                        let there = bytes[other as usize][at as usize];
                        there == WRITE || (there == READ && kind == WRITE)
                    })
                });
                prop_assert_eq!(conflict(&held, &requested).is_some() && kind != UNLOCK, blocked);
                if blocked {
                    continue;
                }
                set(&mut held, requested);
                for at in start..=start + length {
                    bytes[owner as usize][at as usize] = kind;
                }
                for owner in 0..3u64 {
                    for at in 0..32 {
                        let there = held.iter().find(|lock| {
                            lock.owner == owner && lock.start <= at && at <= lock.end
                        });
                        let kind = there.map_or(UNLOCK, |lock| lock.kind);
                        prop_assert_eq!(kind, bytes[owner as usize][at as usize]);
                    }
                }
                let mut encoded = vec![];
                encode(&held, &mut encoded);
                prop_assert_eq!(decode(&encoded), Ok(held.clone()));
            }
        }
    }
}

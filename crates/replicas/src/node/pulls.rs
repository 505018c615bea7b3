//! Pulls of bytes that are under way at this daemon, by ticket. A pull outlives the role in which
//! it was begun: nothing else changes bytes of its unit until it has ended.

use crate::operation::{Object, Operation, Stamp};
use crate::placement::UnitIndex;
use std::collections::BTreeMap;

#[derive(Default)]
pub(super) struct Pulls {
    running: BTreeMap<u64, (UnitIndex, Stamp, Object)>,
    last: u64,
}

impl Pulls {
    pub(super) fn start(&mut self, unit: UnitIndex, operation: &Operation) -> u64 {
        self.last += 1;
        self.running.insert(self.last, (unit, operation.stamp, operation.object));
        self.last
    }

    pub(super) fn end(&mut self, ticket: u64) -> Option<(UnitIndex, Stamp, Object)> {
        self.running.remove(&ticket)
    }

    pub(super) fn of(&self, unit: UnitIndex) -> impl Iterator<Item = (u64, Stamp)> {
        let running = self.running.iter().filter(move |(_, it)| it.0 == unit);
        running.map(|(&ticket, &(_, stamp, _))| (ticket, stamp))
    }

    pub(super) fn is_pulling(&self, unit: UnitIndex, stamp: Stamp) -> bool {
        self.of(unit).any(|(_, it)| it == stamp)
    }
}

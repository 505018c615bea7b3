//! Pulls of bytes that are under way at this daemon, by ticket. A pull outlives the role in which
//! it was begun: nothing else changes bytes of its unit until it has ended.

use super::windows::{Load, Window, bytes_of};
use crate::operation::{Object, Operation, Stamp};
use crate::placement::UnitIndex;
use std::collections::BTreeMap;
use wire::DaemonIndex;

struct Running {
    unit: UnitIndex,
    stamp: Stamp,
    object: Object,
    /// The primary that asks for it.
    by: DaemonIndex,
    bytes: u64,
}

#[derive(Default)]
pub(super) struct Pulls {
    running: BTreeMap<u64, Running>,
    loads: BTreeMap<DaemonIndex, Load>,
    last: u64,
}

impl Pulls {
    pub(super) fn start(&mut self, unit: UnitIndex, operation: &Operation, by: DaemonIndex) -> u64 {
        self.last += 1;
        let (stamp, object, bytes) = (operation.stamp, operation.object, bytes_of(operation));
        self.running.insert(self.last, Running { unit, stamp, object, by, bytes });
        self.loads.entry(by).or_default().add(bytes);
        self.last
    }

    pub(super) fn end(&mut self, ticket: u64) -> Option<(UnitIndex, Stamp, Object)> {
        let ended = self.running.remove(&ticket)?;
        if let Some(load) = self.loads.get_mut(&ended.by) {
            load.remove(ended.bytes);
            if load.operations == 0 {
                self.loads.remove(&ended.by);
            }
        }
        Some((ended.unit, ended.stamp, ended.object))
    }

    pub(super) fn has_place(&self, by: DaemonIndex, window: Window, bytes: u64) -> bool {
        window.has_place(self.loads.get(&by).copied().unwrap_or_default(), bytes)
    }

    /// Pulls for each primary.
    pub(super) fn loads(&self) -> impl Iterator<Item = (DaemonIndex, Load)> {
        self.loads.iter().map(|(&by, &load)| (by, load))
    }

    pub(super) fn of(&self, unit: UnitIndex) -> impl Iterator<Item = (u64, Stamp)> {
        let running = self.running.iter().filter(move |(_, it)| it.unit == unit);
        running.map(|(&ticket, it)| (ticket, it.stamp))
    }

    pub(super) fn is_pulling(&self, unit: UnitIndex, stamp: Stamp) -> bool {
        self.of(unit).any(|(_, it)| it == stamp)
    }
}

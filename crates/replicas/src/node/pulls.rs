//! Pulls of bytes that are under way at this daemon, by ticket, and what they left. A pull outlives the
//! role in which it was begun: nothing else changes bytes of its unit until it has ended.

use super::Pulled;
use super::windows::{Load, Window, bytes_of};
use crate::kept::{Kept, KeptStep};
use crate::operation::{ByteRange, Object, Operation, Stamp};
use crate::placement::UnitIndex;
use std::collections::{BTreeMap, BTreeSet};
use wire::DaemonIndex;

struct Running {
    unit: UnitIndex,
    stamp: Stamp,
    object: Object,
    range: ByteRange,
    /// The primary that asks for it.
    by: DaemonIndex,
    bytes: u64,
}

#[derive(Default)]
pub(super) struct Pulls {
    running: BTreeMap<u64, Running>,
    loads: BTreeMap<DaemonIndex, Load>,
    last: u64,
    /// Writes that are under way here and of which no byte is: this process began them, on an object that
    /// was not sent while they were under way elsewhere, and no pull left any.
    untouched: BTreeSet<(UnitIndex, Stamp)>,
}

impl Pulls {
    pub(super) fn start(&mut self, unit: UnitIndex, operation: &Operation, by: DaemonIndex) -> u64 {
        self.last += 1;
        let Operation { stamp, object, range, .. } = *operation;
        let bytes = bytes_of(operation);
        self.running.insert(self.last, Running { unit, stamp, object, range, by, bytes });
        self.loads.entry(by).or_default().add(bytes);
        self.last
    }

    pub(super) fn end(
        &mut self,
        ticket: u64,
        pulled: Pulled,
    ) -> Option<(UnitIndex, Stamp, Object)> {
        let ended = self.running.remove(&ticket)?;
        if pulled != Pulled::Failed {
            self.untouched.remove(&(ended.unit, ended.stamp));
        }
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

    /// Whether a pull changes bytes of this operation.
    pub(super) fn overlaps(&self, unit: UnitIndex, operation: &Operation) -> bool {
        let mut running = self.running.values().filter(|it| it.unit == unit);
        running.any(|it| operation.overlaps(it.object, it.range))
    }

    /// The kept state of a copy here is about to make a step.
    pub(super) fn note_step(&mut self, unit: UnitIndex, step: &KeptStep, before: &Kept) {
        match step {
            KeptStep::Begin(operation) => {
                let entry = before.objects.get(&operation.object);
                let is_new = before.begun(operation.stamp).is_none()
                    && entry.is_none_or(|it| !it.is_partial && it.stamp < operation.stamp);
                if is_new && operation.has_bytes() && operation.requested.is_some() {
                    self.untouched.insert((unit, operation.stamp));
                }
            }
            KeptStep::Done(stamp) | KeptStep::Settle(stamp) => {
                self.untouched.remove(&(unit, *stamp));
            }
            KeptStep::UnderWay(stamps) => {
                self.untouched.retain(|(of, stamp)| *of != unit || stamps.contains(stamp));
            }
            KeptStep::Forget => self.discard(unit),
            _ => {}
        }
    }

    /// Nothing of a unit is under way here any more.
    pub(super) fn discard(&mut self, unit: UnitIndex) {
        self.untouched.retain(|(of, _)| *of != unit);
    }

    /// Whether no byte of a write is here for sure, and none comes.
    pub(super) fn is_untouched(&self, unit: UnitIndex, stamp: Stamp) -> bool {
        self.untouched.contains(&(unit, stamp)) && !self.is_pulling(unit, stamp)
    }
}

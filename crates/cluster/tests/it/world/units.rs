//! Units of file data in the world, without copies: a primary says at once that a copy which joins is in
//! sync, stands still where it is advised to hand over, and proposes that until it is made or impossible.
//! Checked: of a unit one daemon acts as the primary at a time, and epochs in which one acts do not go
//! back.

use super::{Host, World};
use cluster::change::Change;
use cluster::membership::Membership;
use cluster::node::Node;
use replicas::change::{Change as UnitChange, CopyId, Reign};
use replicas::placement::UnitIndex;
use replicas::policy;
use replicas::space::Spaces;
use replicas::table::{CopyState, Table, Unit};
use std::collections::BTreeMap;
use testkit::world::MILLI;
use wire::DaemonIndex;

/// The part of a host that is about units.
#[derive(Default)]
pub(super) struct HostUnits {
    /// As it asked its node last.
    settled: u64,
    /// Units that are to be handed over.
    hand_overs: BTreeMap<UnitIndex, CopyId>,
    /// Changes that it proposed, and when.
    proposed: Vec<(UnitChange, i64)>,
}

impl Host {
    fn table(&self) -> Option<&Table> {
        self.node.as_deref().and_then(Node::units).map(AsRef::as_ref)
    }

    /// Whether it acts as the primary of a unit at this time of its clock.
    fn acts(&self, own: DaemonIndex, index: UnitIndex, unit: &Unit, now: i64) -> bool {
        let (Some(node), Some(table)) = (&self.node, self.table()) else { return false };
        let has_lease = node.lease_until(now).is_some_and(|until| now < until);
        let stands_still = |of: &CopyId| of.of.epoch == unit.epoch && table.may_hand_over(*of);
        let is_still = self.units.hand_overs.get(&index).is_some_and(stands_still);
        unit.primary == Some(own) && has_lease && self.is_alone(unit) && !is_still
    }

    /// Whether the leases of all primaries before have ended.
    const fn is_alone(&self, unit: &Unit) -> bool {
        !unit.is_successor || self.units.settled >= unit.since
    }

    /// The changes that it proposes now.
    fn proposals(&self, own: DaemonIndex, now: i64) -> Vec<UnitChange> {
        let Some(table) = self.table() else { return Vec::new() };
        let mut proposals = Vec::new();
        for (index, unit) in table.units().filter(|(_, unit)| unit.primary == Some(own)) {
            if self.acts(own, index, unit, now) {
                let of = Reign { unit: index, epoch: unit.epoch };
                let joining = unit.copies.iter().filter(|it| it.state == CopyState::Joining);
                let ids = joining.map(|it| CopyId { of, daemon: it.daemon, since: it.since });
                proposals.extend(ids.map(|of| UnitChange::InSync { of }));
            } else if let Some(&of) = self.units.hand_overs.get(&index)
                && self.is_alone(unit)
            {
                proposals.push(UnitChange::HandOver { of });
            }
        }
        proposals
    }
}

impl World {
    /// After a tick.
    pub(super) fn go_on_with_units(&mut self, index: u16) {
        let now = self.clock(index);
        let host = &mut self.hosts[usize::from(index)];
        let Some(node) = &mut host.node else { return };
        host.units.settled = node.units_settled(now);
        let Some(table) = host.node.as_deref().and_then(Node::units).cloned() else { return };
        host.units.hand_overs.retain(|_, of| table.may_hand_over(*of));
        // Not at each tick: proposals are many, and take their time.
        if self.is_fast || self.random.uniform(4) == 0 {
            self.propose_for_units(index);
        }
    }

    /// Proposes what a primary would, where nothing takes long each change once in 200 ms.
    pub(super) fn propose_for_units(&mut self, index: u16) {
        let (now, is_fast) = (self.clock(index), self.is_fast);
        let host = &mut self.hosts[usize::from(index)];
        let mut proposals = host.proposals(DaemonIndex(index), now);
        if is_fast {
            let before = std::mem::take(&mut host.units.proposed);
            let lately = |it: &UnitChange| {
                before.iter().find(|(change, at)| change == it && now - at < 200 * MILLI)
            };
            let proposed = proposals.iter().map(|it| (*it, lately(it).map_or(now, |(_, at)| *at)));
            host.units.proposed = proposed.collect();
            proposals.retain(|it| lately(it).is_none());
        }
        for change in proposals {
            self.with(index, |node, out| node.propose(&Change::Unit { change }, out));
        }
    }

    pub(super) fn advised(&mut self, index: u16, of: CopyId) {
        self.hosts[usize::from(index)].units.hand_overs.insert(of.of.unit, of);
    }

    /// See the module.
    pub(super) fn check_units(&mut self) {
        if self.setup.copies == 0 {
            return;
        }
        for index in (0..self.count()).filter(|&index| self.is_running(index)).collect::<Vec<_>>() {
            let (own, now) = (DaemonIndex(index), self.clock(index));
            let host = &self.hosts[usize::from(index)];
            let table = host.table().expect("units");
            let acts = table.units().filter(|(it, unit)| host.acts(own, *it, unit, now));
            let acts: Vec<(UnitIndex, u64)> = acts.map(|(it, unit)| (it, unit.epoch)).collect();
            for (unit, epoch) in acts {
                self.note_acting(index, unit, epoch);
            }
        }
        self.acting_now.clear();
    }

    fn note_acting(&mut self, index: u16, unit: UnitIndex, epoch: u64) {
        let other = self.acting_now.insert(unit, index);
        assert!(other.is_none(), "{index} and {other:?} act as the primary of {unit:?}");
        let newest = self.acted.entry(unit).or_default();
        assert!(epoch >= *newest, "{index} acts in epoch {epoch} of {unit:?} after {newest}");
        *newest = epoch;
    }

    /// Units that are not as they should be after some time without faults.
    pub(super) fn wrong_units(&self, membership: &Membership) -> Option<String> {
        let table = membership.units()?;
        let advice = policy::next(table, &Spaces::default());
        if !advice.is_empty() {
            return Some(format!(
                "{} units are not where they should be: {:?}",
                advice.len(),
                advice[0]
            ));
        }
        for (index, unit) in table.units() {
            let is_joining = unit.with(CopyState::Joining).next().is_some();
            let acting = unit.primary.is_some_and(|primary| {
                let (now, host) = (self.clock(primary.0), &self.hosts[usize::from(primary.0)]);
                host.acts(primary, index, unit, now)
            });
            if is_joining || !acting || unit.in_sync() != usize::from(unit.goal) {
                return Some(format!("{index:?}: acting {acting}, {unit:?}"));
            }
        }
        None
    }
}

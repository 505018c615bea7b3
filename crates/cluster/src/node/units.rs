//! The units of file data, for `replicas::node::Node`: the table, the lease, and the version of the table
//! for which all leases of dead daemons have ended. The leader follows `replicas::policy`.

use super::beats::Beats;
use super::messages::Message;
use super::{Action, CHANGES_AT_ONCE, Node, send};
use crate::change::Change;
use crate::membership::Membership;
use replicas::change::CopyId;
use replicas::policy::{self, Advice};
use replicas::table::Table;
use std::collections::VecDeque;
use std::sync::Arc;
use wire::DaemonIndex;

/// Versions that wait at most. The later ones cover those that are left out.
const WAITING_MAX: usize = 64;

/// Versions of the table, each with the epoch of the membership that brought it, until no daemon that is
/// down in it has a lease.
#[derive(Default)]
pub(super) struct SettledUnits {
    waiting: VecDeque<(u64, u64)>,
    newest: u64,
    settled: u64,
}

impl SettledUnits {
    /// The membership has changed.
    pub(super) fn adopt(&mut self, membership: &Membership) {
        let Some(units) = membership.units().filter(|units| units.version > self.newest) else {
            return;
        };
        self.newest = units.version;
        if self.waiting.len() == WAITING_MAX {
            self.waiting.pop_front();
        }
        self.waiting.push_back((membership.epoch, units.version));
    }

    /// Whether this daemon became the primary of a unit in the place of one that may have its lease yet.
    pub(super) fn is_awaited(&self, membership: &Membership, own: DaemonIndex) -> bool {
        let units = membership.units().filter(|units| units.version > self.settled);
        units.is_some_and(|units| {
            let mut units = units.units().map(|(_, unit)| unit);
            units.any(|it| it.is_successor && it.primary == Some(own) && it.since > self.settled)
        })
    }

    fn settle(&mut self, beats: &Beats, now: i64) -> u64 {
        let is_over = |epoch| beats.leases_end(epoch).is_some_and(|at| now >= at);
        while let Some(&(_, version)) = self.waiting.front().filter(|(epoch, _)| is_over(*epoch)) {
            self.settled = version;
            self.waiting.pop_front();
        }
        self.settled
    }
}

impl Node {
    /// The table of units, in an instance that has them.
    #[must_use]
    pub fn units(&self) -> Option<&Arc<Table>> {
        self.membership().units()
    }

    /// Until when this daemon counts as alive for sure, as far as it knows now.
    #[must_use]
    pub fn lease_until(&self, now: i64) -> Option<i64> {
        self.beats.lease_until(now).filter(|_| self.is_present())
    }

    /// No daemon that is down in this version of the table of units has a lease any more.
    pub fn units_settled(&mut self, now: i64) -> u64 {
        self.units.settle(&self.beats, now)
    }

    /// The next changes of units that the policy asks for.
    pub(super) fn unit_advice(&self) -> Vec<Advice> {
        let mut advice = self.units().map_or_else(Vec::new, |units| policy::next(units));
        advice.truncate(CHANGES_AT_ONCE);
        advice
    }

    /// Does what the policy asks for.
    pub(super) fn follow_unit_policy(&mut self, advice: Vec<Advice>, out: &mut Vec<Action>) {
        for advice in advice {
            match advice {
                Advice::Propose(change) => self.propose(&Change::Unit { change }, out),
                // The primary alone knows when.
                Advice::HandOver(to) => self.advise_primary(to, out),
            }
        }
    }

    /// Advice of the leader. Only the primary of now is asked.
    pub(super) fn advised_unit(&self, to: CopyId, out: &mut Vec<Action>) {
        let unit = self.units().and_then(|units| units.unit(to.of.unit));
        let is_primary = unit.is_some_and(|it| it.primary == Some(self.settings.own));
        if is_primary && unit.is_some_and(|it| it.epoch == to.of.epoch) {
            out.push(Action::HandOverUnit(to));
        }
    }

    fn advise_primary(&self, to: CopyId, out: &mut Vec<Action>) {
        let unit = self.units().and_then(|units| units.unit(to.of.unit));
        match unit.and_then(|unit| unit.primary) {
            Some(primary) if primary == self.settings.own => self.advised_unit(to, out),
            Some(primary) => send(primary, &Message::AdviseUnit(to), out),
            None => {}
        }
    }
}

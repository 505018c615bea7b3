//! The units of file data, for `replicas::node::Node`: the table, the lease, the version of the table
//! that it may act on, and the one for which all leases of dead daemons have ended.
//!
//! The leader follows `replicas::policy`, and its grants allow versions of the table (`allowed`).
//!
//! Each daemon reports its space to all voters, so whichever leads knows where copies may be
//! (`replicas::space`): each second, and more often while it may hold less memory than it has.

use super::beats::Beats;
use super::lead::ADVICE_AT_ONCE;
use super::messages::{Beat, Message};
use super::{Action, Node, newest, send};
use crate::change::{Change, LastAllowed};
use crate::membership::Membership;
use encoding::{Decode, Encode};
use replicas::change::CopyId;
use replicas::policy::{Advice, Policy};
use replicas::space::{SpaceReport, Spaces};
use replicas::table::Table;
use std::collections::VecDeque;
use std::sync::Arc;
use wire::DaemonIndex;
use wire::codec::Malformed;

/// How often space is reported.
const REPORT_NANOS: i64 = 1_000_000_000;
/// The same while memory of the daemon is limited: programs wait for what leaves it.
const LIMITED_REPORT_NANOS: i64 = 200_000_000;

/// Versions that wait at most. The later ones cover those that are left out.
const WAITING_MAX: usize = 64;

/// See the module.
#[derive(Default)]
pub(super) struct NodeUnits {
    /// Versions of the table, each with the epoch of the membership that brought it, until no daemon that
    /// is down in it has a lease.
    waiting: VecDeque<(u64, u64)>,
    newest: u64,
    settled: u64,
    policy: Policy,
    spaces: Spaces,
    /// When this daemon reported its space.
    reported_at: Option<i64>,
    /// Whether copies had to be elsewhere because of a report.
    was_limiting: bool,
}

impl NodeUnits {
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

    /// Whether this daemon is the primary of a unit that waits for grants: it took over from one that may
    /// have its lease yet, or a copy left, as a later version says than it may act on.
    pub(super) fn is_awaited(
        &self,
        membership: &Membership,
        own: DaemonIndex,
        granted: u64,
    ) -> bool {
        let known = self.settled.min(granted);
        let units = membership.units().filter(|units| units.version > known);
        units.is_some_and(|units| {
            let mut own = units.units().map(|(_, it)| it).filter(|it| it.primary == Some(own));
            own.any(|it| {
                let has_left = it.copies.iter().any(|copy| copy.left_at > granted);
                has_left || it.is_successor && it.since > self.settled
            })
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

    /// The version of the table that this daemon may act on while it has a lease.
    #[must_use]
    pub const fn units_granted(&self) -> u64 {
        self.allowed.version()
    }

    /// Proposes that a daemon is dead. This daemon leads.
    pub(super) fn propose_down(
        &mut self,
        daemon: DaemonIndex,
        incarnation: u64,
        out: &mut Vec<Action>,
    ) {
        let Some(consensus) = &mut self.consensus else { return };
        let start = (daemon, incarnation);
        let known = self.allowed.begin_down(start, consensus.leads_in(), consensus.membership());
        let mut outputs = Vec::new();
        let change = Change::Down { daemon, incarnation, known };
        if consensus.propose(&change, &mut outputs).is_err() {
            self.allowed.give_up_down(daemon);
        }
        self.perform(outputs, out);
    }

    /// Proposes that a daemon takes part, with the start that its beat says. Where it began after the
    /// start that the membership has, it has nothing of that. This daemon leads.
    pub(super) fn propose_up(&mut self, daemon: DaemonIndex, beat: &Beat, out: &mut Vec<Action>) {
        let Some(consensus) = &mut self.consensus else { return };
        let membership = consensus.membership();
        let Some(member) = membership.member(daemon) else { return };
        let known = if member.takes_part() {
            let start = (daemon, member.incarnation);
            self.allowed.begin_down(start, consensus.leads_in(), membership)
        } else {
            // `Down` said it.
            LastAllowed::UNKNOWN
        };
        let &Beat { incarnation, domain, began, .. } = beat;
        let is_empty = member.incarnation < began;
        let change = Change::Up { daemon, incarnation, domain, is_empty, known };
        let mut outputs = Vec::new();
        if consensus.propose(&change, &mut outputs).is_err() {
            self.allowed.give_up_down(daemon);
        }
        self.perform(outputs, out);
    }

    /// No daemon that is down in this version of the table of units has a lease any more.
    pub fn units_settled(&mut self, now: i64) -> u64 {
        self.units.settle(&self.beats, now)
    }

    /// Whether the space of this daemon is to be reported, in an instance with units.
    #[must_use]
    pub fn is_report_due(&self, is_limited: bool, now: i64) -> bool {
        let pause = if is_limited { LIMITED_REPORT_NANOS } else { REPORT_NANOS };
        self.units().is_some() && self.units.reported_at.is_none_or(|at| now - at >= pause)
    }

    /// Reports the space of this daemon.
    pub fn report_space(&mut self, report: &SpaceReport, now: i64, out: &mut Vec<Action>) {
        self.units.reported_at = Some(now);
        self.units.spaces.begin();
        let bytes = report.to_bytes();
        let own = self.settings.own;
        let voters: Vec<_> = newest(&self.consensus, &self.told).voters.daemons().collect();
        for voter in voters {
            if voter == own {
                self.note_space(own, report);
            } else {
                send(voter, &Message::Space(&bytes), out);
            }
        }
    }

    fn note_space(&mut self, from: DaemonIndex, report: &SpaceReport) {
        self.units.spaces.hear(from, report);
        let is_limiting = self.units().is_some_and(|units| self.units.spaces.are_limiting(units));
        // The last one of those that were limiting is no more.
        let was_limiting = std::mem::replace(&mut self.units.was_limiting, is_limiting);
        if is_limiting || was_limiting {
            self.asked.again();
        }
    }

    /// A daemon reports its space.
    pub(super) fn heard_space(&mut self, from: DaemonIndex, bytes: &[u8]) -> Result<(), Malformed> {
        let report = SpaceReport::from_bytes(bytes)?;
        self.note_space(from, &report);
        Ok(())
    }

    /// The next changes of units that the policy asks for.
    pub(super) fn unit_advice(&mut self) -> Vec<Advice> {
        let Some(units) = self.units().map(Arc::clone) else { return Vec::new() };
        let NodeUnits { policy, spaces, .. } = &mut self.units;
        spaces.follow(&units);
        let mut advice = policy.next(&units, spaces);
        advice.truncate(ADVICE_AT_ONCE);
        advice
    }

    /// Advice of the leader. Only the primary of now is asked.
    pub(super) fn advised_unit(&self, to: CopyId, out: &mut Vec<Action>) {
        let unit = self.units().and_then(|units| units.unit(to.of.unit));
        let is_primary = unit.is_some_and(|it| it.primary == Some(self.settings.own));
        if is_primary && unit.is_some_and(|it| it.epoch == to.of.epoch) {
            out.push(Action::HandOverUnit(to));
        }
    }

    /// The leader advises the primary of a unit to hand over.
    pub(super) fn advise_primary(&self, to: CopyId, out: &mut Vec<Action>) {
        let unit = self.units().and_then(|units| units.unit(to.of.unit));
        match unit.and_then(|unit| unit.primary) {
            Some(primary) if primary == self.settings.own => self.advised_unit(to, out),
            Some(primary) => send(primary, &Message::AdviseUnit(to), out),
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use replicas::change::{Change as UnitChange, Reign};
    use replicas::placement::UnitIndex;

    fn membership() -> Membership {
        let membership = Membership::initial(&[0, 1, 2], 3, 0, true).expect("a setup");
        membership.with_units(&[2], 1, false).expect("a setup")
    }

    /// The copy of the first unit that is not its primary leaves.
    fn drop_copy(membership: &mut Membership) {
        let unit = membership.units().and_then(|it| it.unit(UnitIndex(0))).expect("a unit");
        let copy =
            unit.copies.iter().find(|it| Some(it.daemon) != unit.primary).expect("two copies");
        let of = Reign { unit: UnitIndex(0), epoch: unit.epoch };
        let of = CopyId { of, daemon: copy.daemon, since: copy.since };
        let change = Change::Unit { change: UnitChange::Drop { of } };
        membership.apply(&change).expect("it is in sync");
    }

    #[test]
    fn a_primary_asks_for_grants_when_a_copy_left() {
        let (own, mut membership) = (DaemonIndex(0), membership());
        let units = NodeUnits::default();
        assert!(!units.is_awaited(&membership, own, 1));
        drop_copy(&mut membership);
        let others = [DaemonIndex(1), DaemonIndex(2)];
        assert!(units.is_awaited(&membership, own, 1));
        assert!(others.iter().all(|&other| !units.is_awaited(&membership, other, 1)));
        assert!(!units.is_awaited(&membership, own, 2));
    }
}

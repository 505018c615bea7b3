//! The units of file data, for `replicas::node::Node`: the table, the lease, the version of the table
//! that it may act on, and the one for which all leases of dead daemons have ended.
//!
//! The leader follows `replicas::policy`, and its grants allow versions of the table. Each daemon acts on
//! what the leader allowed, so the leader knows what a dead daemon may have known: what it allowed
//! itself, and what leaders before it knew, which is not more than it knew when it began to lead. Once it
//! has proposed that a daemon is down, or has started again, it allows the start before nothing newer
//! until that is applied: other changes may be made before.

use super::beats::Beats;
use super::lead::ADVICE_AT_ONCE;
use super::messages::{Beat, Grant, Message};
use super::{Action, Node, send};
use crate::change::Change;
use crate::membership::Membership;
use replicas::change::CopyId;
use replicas::policy::{Advice, Policy};
use replicas::table::Table;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use wire::DaemonIndex;

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
    /// The version that this daemon may act on.
    granted: u64,
    lead: Lead,
    policy: Policy,
}

/// The versions that a leader allowed.
#[derive(Default)]
struct Lead {
    term: u64,
    /// The version that it knew when it began to lead.
    floor: u64,
    allowed: BTreeMap<DaemonIndex, u64>,
    /// Daemons whose starts, which are these, it proposed to be over.
    down: BTreeMap<DaemonIndex, u64>,
}

impl Lead {
    fn known(&self, daemon: DaemonIndex) -> u64 {
        self.allowed.get(&daemon).copied().unwrap_or(0).max(self.floor)
    }
}

impl NodeUnits {
    /// This daemon leads in a term. `None`: there are no units.
    fn lead(&mut self, term: u64, membership: &Membership) -> Option<(u64, &mut Lead)> {
        let version = membership.units()?.version;
        if self.lead.term != term {
            self.lead = Lead { term, floor: version, ..Lead::default() };
        }
        self.lead.down.retain(|&daemon, incarnation| {
            let member = membership.member(daemon);
            member.is_some_and(|it| it.takes_part() && it.incarnation == *incarnation)
        });
        Some((version, &mut self.lead))
    }

    /// The version that a grant allows.
    pub(super) fn grant(
        &mut self,
        to: DaemonIndex,
        leads_in: Option<u64>,
        membership: &Membership,
    ) -> u64 {
        let lead = leads_in.and_then(|term| self.lead(term, membership));
        let Some((version, lead)) = lead else { return 0 };
        if lead.down.contains_key(&to) {
            return lead.known(to);
        }
        lead.allowed.insert(to, version);
        version
    }

    /// A voter's grant.
    pub(super) fn granted(&mut self, grant: &Grant, incarnation: u64) {
        if grant.incarnation == incarnation {
            self.granted = grant.version.max(self.granted);
        }
    }

    /// The leader is about to propose that a daemon is down, or has started again: the version that this
    /// start of it may have known.
    fn begin_down(
        &mut self,
        (daemon, incarnation): (DaemonIndex, u64),
        leads_in: Option<u64>,
        membership: &Membership,
    ) -> u64 {
        let lead = leads_in.and_then(|term| self.lead(term, membership));
        let Some((_, lead)) = lead else { return u64::MAX };
        lead.down.insert(daemon, incarnation);
        lead.known(daemon)
    }

    /// It could not be proposed.
    fn give_up_down(&mut self, daemon: DaemonIndex) {
        self.lead.down.remove(&daemon);
    }

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
    pub(super) fn is_awaited(&self, membership: &Membership, own: DaemonIndex) -> bool {
        let known = self.settled.min(self.granted);
        let units = membership.units().filter(|units| units.version > known);
        units.is_some_and(|units| {
            let mut own = units.units().map(|(_, it)| it).filter(|it| it.primary == Some(own));
            own.any(|it| {
                let has_left = it.copies.iter().any(|copy| copy.left_at > self.granted);
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
        self.units.granted
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
        let known = self.units.begin_down(start, consensus.leads_in(), consensus.membership());
        let mut outputs = Vec::new();
        let change = Change::Down { daemon, incarnation, known };
        if consensus.propose(&change, &mut outputs).is_err() {
            self.units.give_up_down(daemon);
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
            self.units.begin_down(start, consensus.leads_in(), membership)
        } else {
            // `Down` said it.
            u64::MAX
        };
        let &Beat { incarnation, domain, began, .. } = beat;
        let is_empty = member.incarnation < began;
        let change = Change::Up { daemon, incarnation, domain, is_empty, known };
        let mut outputs = Vec::new();
        if consensus.propose(&change, &mut outputs).is_err() {
            self.units.give_up_down(daemon);
        }
        self.perform(outputs, out);
    }

    /// No daemon that is down in this version of the table of units has a lease any more.
    pub fn units_settled(&mut self, now: i64) -> u64 {
        self.units.settle(&self.beats, now)
    }

    /// The next changes of units that the policy asks for.
    pub(super) fn unit_advice(&mut self) -> Vec<Advice> {
        let Some(units) = self.units().map(Arc::clone) else { return Vec::new() };
        let mut advice = self.units.policy.next(&units);
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

    const TERM: Option<u64> = Some(5);

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
    fn a_leader_knows_what_it_allowed_and_what_there_was_before() {
        let (one, two) = (DaemonIndex(1), DaemonIndex(2));
        let (mut units, mut membership) = (NodeUnits::default(), membership());
        assert_eq!(units.grant(one, None, &membership), 0, "another one leads");
        assert_eq!(units.grant(one, TERM, &membership), 1);
        drop_copy(&mut membership);
        assert_eq!(units.begin_down((one, 1), TERM, &membership), 1);
        // It hears nothing newer until it is down.
        assert_eq!(units.grant(one, TERM, &membership), 1);
        assert_eq!(units.grant(two, TERM, &membership), 2);
        // Proposed a second time, it knows no more.
        assert_eq!(units.begin_down((one, 1), TERM, &membership), 1);
        let down = Change::Down { daemon: one, incarnation: 1, known: 1 };
        membership.apply(&down).expect("it takes part");
        let (incarnation, is_empty) = (2, false);
        let known = u64::MAX;
        let up = Change::Up { daemon: one, incarnation, domain: 1, is_empty, known };
        membership.apply(&up).expect("it is down");
        let version = membership.units().expect("units").version;
        assert!(version > 2);
        assert_eq!(units.grant(one, TERM, &membership), version);
        assert_eq!(units.begin_down((two, 1), TERM, &membership), 2);
        units.give_up_down(two);
        assert_eq!(units.grant(two, TERM, &membership), version);
        // Another one may have led in between.
        let leave = Change::Leave { daemon: DaemonIndex(0) };
        membership.apply(&leave).expect("there are two others");
        let newest = membership.units().expect("units").version;
        assert!(newest > version);
        assert_eq!(units.begin_down((two, 1), Some(7), &membership), newest);
    }

    #[test]
    fn a_primary_asks_for_grants_when_a_copy_left() {
        let (own, mut membership) = (DaemonIndex(0), membership());
        let mut units = NodeUnits::default();
        let grant = |version| Grant { incarnation: 1, sent: 0, epoch: 1, quiet: 0, version };
        units.granted(&grant(1), 1);
        assert!(!units.is_awaited(&membership, own));
        drop_copy(&mut membership);
        let others = [DaemonIndex(1), DaemonIndex(2)];
        assert!(units.is_awaited(&membership, own));
        assert!(others.iter().all(|&other| !units.is_awaited(&membership, other)));
        units.granted(&grant(2), 9);
        assert!(units.is_awaited(&membership, own), "it was for another start");
        units.granted(&grant(2), 1);
        assert!(!units.is_awaited(&membership, own));
    }

    #[test]
    fn without_units_nothing_is_known() {
        let membership = Membership::initial(&[0, 1, 2], 3, 0, true).expect("a setup");
        let mut units = NodeUnits::default();
        assert_eq!(units.grant(DaemonIndex(1), TERM, &membership), 0);
        assert_eq!(units.begin_down((DaemonIndex(1), 1), TERM, &membership), u64::MAX);
    }
}

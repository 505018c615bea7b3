//! The newest state that each daemon may act on: the epoch of the membership, for services that it took
//! over, and the version of the table of units.
//!
//! The leader allows it with its grants, and each daemon acts on what the leader allowed, no epoch
//! that it did not say that it knows: its last beats may be on their way when it is dead. So the leader
//! knows what a dead daemon may have acted on: what it allowed itself, and what leaders before it knew,
//! which is not more than it knew when it began to lead. Once it has proposed that a daemon is down, or
//! has started again, it allows the start before nothing newer until that is applied: other changes
//! may be made before.

use super::messages::Grant;
use crate::change::LastAllowed;
use crate::membership::Membership;
use std::collections::BTreeMap;
use wire::DaemonIndex;

/// See the module.
#[derive(Default)]
pub(super) struct Allowance {
    /// To this daemon.
    own: Option<LastAllowed>,
    /// In this term this daemon leads, or led last.
    term: u64,
    /// It knew this when it began to lead.
    floor: Option<LastAllowed>,
    others: BTreeMap<DaemonIndex, LastAllowed>,
    /// Daemons whose starts, which are these, it proposed to be over.
    down: BTreeMap<DaemonIndex, u64>,
}

fn newest(membership: &Membership) -> LastAllowed {
    let version = membership.units().map_or(0, |units| units.version);
    LastAllowed { epoch: membership.epoch, version }
}

impl Allowance {
    /// Epoch of the membership that this daemon may act on; 0: none yet.
    pub(super) fn epoch(&self) -> u64 {
        self.own.map_or(0, |it| it.epoch)
    }

    /// Version of the table of units that this daemon may act on; 0: none yet.
    pub(super) const fn version(&self) -> u64 {
        match self.own {
            Some(own) => own.version,
            None => 0,
        }
    }

    /// This daemon leads in a term.
    fn lead(&mut self, term: u64, membership: &Membership) {
        if self.floor.is_none() || self.term != term {
            (self.term, self.floor) = (term, Some(newest(membership)));
            self.others.clear();
            self.down.clear();
        }
        self.down.retain(|&daemon, incarnation| {
            let member = membership.member(daemon);
            member.is_some_and(|it| it.takes_part() && it.incarnation == *incarnation)
        });
    }

    fn known(&self, daemon: DaemonIndex) -> LastAllowed {
        let floor = self.floor.unwrap_or(LastAllowed::UNKNOWN);
        self.others.get(&daemon).map_or(floor, |it| it.and(floor))
    }

    /// The newest that a grant allows to a daemon that knows this epoch. `None`: this daemon does not
    /// lead.
    pub(super) fn grant(
        &mut self,
        (to, epoch): (DaemonIndex, u64),
        leads_in: Option<u64>,
        membership: &Membership,
    ) -> Option<LastAllowed> {
        self.lead(leads_in?, membership);
        if self.down.contains_key(&to) {
            return Some(self.known(to));
        }
        let newest = newest(membership);
        let allowed = LastAllowed { epoch: epoch.min(newest.epoch), ..newest };
        // An earlier beat may come later.
        let last = self.others.entry(to).or_insert(allowed);
        *last = last.and(allowed);
        Some(*last)
    }

    /// A voter's grant.
    pub(super) fn granted(&mut self, grant: &Grant, incarnation: u64) {
        let Some(allowed) = grant.allowed.filter(|_| grant.incarnation == incarnation) else {
            return;
        };
        self.own = Some(self.own.map_or(allowed, |own| own.and(allowed)));
    }

    /// The leader is about to propose that a daemon is down, or has started again: what this start of it
    /// may have acted on.
    pub(super) fn begin_down(
        &mut self,
        (daemon, incarnation): (DaemonIndex, u64),
        leads_in: Option<u64>,
        membership: &Membership,
    ) -> LastAllowed {
        let Some(term) = leads_in else { return LastAllowed::UNKNOWN };
        self.lead(term, membership);
        self.down.insert(daemon, incarnation);
        self.known(daemon)
    }

    /// It could not be proposed.
    pub(super) fn give_up_down(&mut self, daemon: DaemonIndex) {
        self.down.remove(&daemon);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::change::{Change, Tenure};
    use crate::membership::ServiceIndex;
    use replicas::change::{Change as UnitChange, CopyId, Reign};
    use replicas::placement::UnitIndex;

    const TERM: Option<u64> = Some(5);

    /// A service gets a follower.
    fn follow(membership: &mut Membership, service: u32) {
        let service = ServiceIndex(service);
        let seat = membership.seat(service).expect("a service");
        let (of, owner) = (Tenure { service, epoch: seat.epoch }, seat.owner.expect("an owner"));
        let follower = DaemonIndex((owner.0 + 1) % 3);
        membership.apply(&Change::AddFollower { of, follower }).expect("it is up");
    }

    fn membership() -> Membership {
        let membership = Membership::initial(&[0, 1, 2], 3, 1, true).expect("a setup");
        membership.with_units(&[2], 1, false).expect("a setup")
    }

    fn allowed(epoch: u64, version: u64) -> LastAllowed {
        LastAllowed { epoch, version }
    }

    #[test]
    fn a_leader_knows_what_it_allowed_and_what_there_was_before() {
        let (one, two) = (DaemonIndex(1), DaemonIndex(2));
        let (mut leader, mut membership) = (Allowance::default(), membership());
        assert_eq!(leader.grant((one, 1), None, &membership), None, "another one leads");
        assert_eq!(leader.grant((one, 1), TERM, &membership), Some(allowed(1, 1)));
        follow(&mut membership, 0);
        assert_eq!(leader.begin_down((one, 1), TERM, &membership), allowed(1, 1));
        // It hears nothing newer until it is down.
        assert_eq!(leader.grant((one, 2), TERM, &membership), Some(allowed(1, 1)));
        assert_eq!(leader.grant((two, 1), TERM, &membership), Some(allowed(1, 1)), "as it knows");
        assert_eq!(leader.grant((two, 9), TERM, &membership), Some(allowed(2, 1)));
        assert_eq!(leader.grant((two, 0), TERM, &membership), Some(allowed(2, 1)), "it came late");
        // Proposed a second time, it knows no more.
        assert_eq!(leader.begin_down((one, 1), TERM, &membership), allowed(1, 1));
        let known = allowed(1, 1);
        let down = Change::Down { daemon: one, incarnation: 1, known };
        membership.apply(&down).expect("it takes part");
        let (incarnation, is_empty) = (2, false);
        let known = LastAllowed::UNKNOWN;
        let up = Change::Up { daemon: one, incarnation, domain: 1, is_empty, known };
        membership.apply(&up).expect("it is down");
        let newest = newest(&membership);
        assert!(newest.epoch > 2 && newest.version > 1);
        assert_eq!(leader.grant((one, newest.epoch), TERM, &membership), Some(newest));
        assert_eq!(leader.begin_down((two, 1), TERM, &membership), allowed(2, 1));
        leader.give_up_down(two);
        assert_eq!(leader.grant((two, newest.epoch), TERM, &membership), Some(newest));
        // Another one may have led in between.
        follow(&mut membership, 1);
        let later = allowed(newest.epoch + 1, newest.version);
        assert_eq!(leader.begin_down((two, 1), Some(7), &membership), later);
        leader.give_up_down(two);
        let before = allowed(later.epoch - 1, later.version);
        assert_eq!(leader.grant((two, before.epoch), Some(7), &membership), Some(before));
        assert_eq!(leader.begin_down((two, 1), Some(7), &membership), later, "by the one before");
    }

    #[test]
    fn a_daemon_acts_on_the_newest_that_was_allowed_to_this_start_of_it() {
        let mut own = Allowance::default();
        assert_eq!((own.epoch(), own.version()), (0, 0));
        let grant = |allowed| Grant { incarnation: 4, sent: 0, epoch: 9, quiet: 0, allowed };
        own.granted(&grant(None), 4);
        own.granted(&grant(Some(allowed(9, 9))), 3);
        assert_eq!((own.epoch(), own.version()), (0, 0), "no leader, and another start");
        own.granted(&grant(Some(allowed(5, 3))), 4);
        own.granted(&grant(Some(allowed(4, 2))), 4);
        assert_eq!((own.epoch(), own.version()), (5, 3), "an older one comes later");
    }

    #[test]
    fn versions_are_those_of_units() {
        let (mut leader, mut membership) = (Allowance::default(), membership());
        let unit = membership.units().and_then(|it| it.unit(UnitIndex(0))).expect("a unit");
        let copy = unit.copies.iter().find(|it| Some(it.daemon) != unit.primary).expect("two");
        let of = Reign { unit: UnitIndex(0), epoch: unit.epoch };
        let of = CopyId { of, daemon: copy.daemon, since: copy.since };
        let change = Change::Unit { change: UnitChange::Drop { of } };
        membership.apply(&change).expect("it is in sync");
        let one = (DaemonIndex(1), 1);
        assert_eq!(leader.grant(one, TERM, &membership), Some(allowed(1, 2)));
        let without = Membership::initial(&[0, 1, 2], 3, 0, true).expect("a setup");
        assert_eq!(leader.grant(one, Some(6), &without), Some(allowed(1, 0)));
    }
}

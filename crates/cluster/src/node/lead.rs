//! The daemon that leads: it declares daemons dead, changes the voters, and does what the policies ask
//! for.
//!
//! A policy is asked when the membership has changed, and from time to time. The change is an answer to
//! what was asked for last as a rule, so the next step begins at once, and not with the next tick. Each
//! answer is all that the membership needs now; of it, that which was not asked for lately is asked for,
//! in one proposal. So steps of services and of units go on beside each other, and none waits for another
//! one.

use super::messages::Message;
use super::{Action, Node, newest, send};
use crate::REPEAT_NANOS;
use crate::change::{Change, Following};
use crate::policy;
use crate::voters::{Voter, next_voters};
use replicas::policy::Advice;

/// Changes of services that are asked for at once.
const CHANGES_AT_ONCE: usize = 64;
/// Steps of units that are: those of some daemons to which as many move as may.
pub(super) const ADVICE_AT_ONCE: usize = 256;
/// Time between two questions to the policies at least: each looks at all services and units, and changes
/// of several daemons come close to each other.
const QUESTION_NANOS: i64 = 5_000_000;

/// Changes and advice that the leader asked for, and when.
pub(super) struct Asked {
    /// Epoch of the membership with which the policies are content.
    rests_in: Option<u64>,
    /// That of the last question, and its time.
    in_epoch: u64,
    at: i64,
    changes: Vec<(Change, i64)>,
    advice: Vec<(Advice, i64)>,
}

impl Asked {
    pub(super) const fn new(now: i64) -> Asked {
        let at = now - REPEAT_NANOS;
        Asked { rests_in: None, in_epoch: 0, at, changes: Vec::new(), advice: Vec::new() }
    }

    /// The policies may want something else now, whatever the membership is.
    pub(super) const fn again(&mut self) {
        self.rests_in = None;
    }

    /// Whether the policies are to be asked about this membership.
    const fn is_due(&self, epoch: u64, now: i64) -> bool {
        let pause = if self.in_epoch == epoch { REPEAT_NANOS } else { QUESTION_NANOS };
        let rests = matches!(self.rests_in, Some(it) if it == epoch);
        !rests && now - self.at >= pause
    }
}

/// Those of all that is needed that were not asked for lately. Others that were asked for are not needed
/// any more: they were made, or have become impossible.
fn fresh<T: Copy + PartialEq>(needed: &[T], asked: &mut Vec<(T, i64)>, now: i64) -> Vec<T> {
    let mut fresh = Vec::new();
    let asked_at = |it: T| {
        let before = asked.iter().find(|(other, _)| *other == it);
        before.map(|&(_, at)| at).filter(|at| now - at < REPEAT_NANOS)
    };
    let all = needed.iter().map(|&it| {
        let at = asked_at(it);
        fresh.extend(at.is_none().then_some(it));
        (it, at.unwrap_or(now))
    });
    let all = all.collect();
    *asked = all;
    fresh
}

impl Node {
    /// The leader declares daemons dead, and follows the policies.
    pub(super) fn lead(&mut self, out: &mut Vec<Action>) {
        let own = self.settings.own;
        let membership = newest(&self.consensus, &self.told);
        for (daemon, asked) in self.beats.suspects(membership, own, self.now) {
            for peer in asked {
                if peer == own {
                    out.push(Action::Probe(daemon));
                } else {
                    send(peer, &Message::Check { daemon }, out);
                }
            }
        }
        for daemon in self.beats.dead(self.now) {
            if let Some(member) = self.membership().member(daemon) {
                let incarnation = member.incarnation;
                self.propose_down(daemon, incarnation, out);
            }
        }
        let membership = newest(&self.consensus, &self.told);
        for daemon in self.beats.calls(membership, self.now) {
            send(daemon, &Message::Changes { since: membership.epoch, list: &[] }, out);
        }
        self.lead_voters(out);
        self.follow_policies(out);
    }

    /// The leader changes the voters, in two steps.
    fn lead_voters(&mut self, out: &mut Vec<Action>) {
        let (now, own) = (self.now, self.settings.own);
        if now - self.voters_asked_at < REPEAT_NANOS {
            return;
        }
        // Without anything to do it looks twice as often.
        self.voters_asked_at = now - REPEAT_NANOS / 2;
        let membership = newest(&self.consensus, &self.told);
        let mut outputs = Vec::new();
        if membership.voters.is_joint() {
            let is_time = self.beats.older_leases_end().is_some_and(|at| now >= at);
            if let Some(consensus) = self.consensus.as_mut().filter(|_| is_time) {
                self.voters_asked_at = now;
                // It is asked again if it has no effect.
                let _ = consensus.complete_voters(&mut outputs);
            }
        } else {
            let reach = |daemon, voter| self.beats.reach(daemon, voter, now);
            let Some(next) = next_voters(membership, own, reach) else { return };
            let since = membership.voters.since;
            let kept = |it: &Voter| membership.voters.next.contains(it);
            let name =
                |it: Voter| if kept(&it) { Some(it) } else { self.beats.joins_as(it, since) };
            let named: Vec<Voter> = next.iter().filter_map(|&it| name(it)).collect();
            if named.len() < next.len() {
                for voter in next.into_iter().filter(|&it| name(it).is_none()) {
                    send(voter.daemon, &Message::Invite(voter), out);
                }
            } else if let Some(consensus) = &mut self.consensus {
                self.voters_asked_at = now;
                let _ = consensus.change_voters(&named, &mut outputs);
            }
        }
        self.perform(outputs, out);
    }

    /// Asks the policies, if that is due. This daemon leads.
    pub(super) fn follow_policies(&mut self, out: &mut Vec<Action>) {
        let membership = newest(&self.consensus, &self.told);
        let (now, epoch) = (self.now, membership.epoch);
        if !self.asked.is_due(epoch, now) {
            return;
        }
        let needed = policy::next_changes(membership, &self.balance.loads(), CHANGES_AT_ONCE);
        self.balance.was_asked();
        let advice = self.unit_advice();
        let asked = &mut self.asked;
        asked.rests_in = (needed.is_empty() && advice.is_empty()).then_some(epoch);
        (asked.in_epoch, asked.at) = (epoch, now);
        let needed = fresh(&needed, &mut asked.changes, now);
        let advice = fresh(&advice, &mut asked.advice, now);
        let mut proposals = Vec::new();
        for change in needed {
            match change {
                // The owner alone knows when.
                Change::HandOver { of } => self.advise(of, out),
                change => {
                    if let Change::Exchange { .. } | Change::Balance { .. } = change {
                        self.balance.exchanges_asked(now);
                    }
                    proposals.push(change);
                }
            }
        }
        for advice in advice {
            match advice {
                Advice::Propose(change) => proposals.push(Change::Unit { change }),
                // The primary alone knows when.
                Advice::HandOver(to) => self.advise_primary(to, out),
            }
        }
        self.propose_all(&proposals, out);
    }

    fn advise(&mut self, of: Following, out: &mut Vec<Action>) {
        let membership = newest(&self.consensus, &self.told);
        let owner = membership.seat(of.of.service).and_then(|seat| seat.owner);
        match owner {
            Some(owner) if owner == self.settings.own => {
                self.services.advise(of, membership, owner, self.now, out);
            }
            Some(owner) => send(owner, &Message::Advise(of), out),
            None => {}
        }
    }
}

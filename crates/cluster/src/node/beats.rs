//! Signs of life (F6): leases of owners, suspicion, and the question to peers before a daemon is dead.
//!
//! Each daemon beats to all voters. A voter answers a daemon that it counts as alive with a grant.
//! A daemon has its *lease* while a majority of voters granted beats that it sent less than
//! `lease_nanos` ago. A voter that has applied `Change::Down` grants nothing, and says for how long
//! it has not. So a lease has ended for sure `lease_nanos` after the last grant of a majority of
//! voters that know of the change (`Beats::leases_end`), whatever messages were late.
//!
//! The voters change (`voters`). While two sets are joint, an owner needs grants of a majority of each,
//! and a successor waits for a majority of each. A voter grants nothing to a daemon that knows older
//! voters than it does. The set before is left one lease after a majority of it was known to know
//! the joint voters (`Beats::older_leases_end`): from then on nobody has a lease by older voters. So
//! whatever voters an owner and a successor know, both ask a majority of one common set.
//!
//! The leader suspects a daemon when beats are missing for longer than they ever were apart, and asks
//! voters and other daemons. It is dead when nobody reaches it and a majority of those asked said so; a
//! daemon that one peer reaches lives.

use super::messages::{Beat, Grant};
use crate::membership::{Member, Membership, Presence};
use crate::voters::{Reach, Voter, Voters};
use std::collections::BTreeMap;
use wire::DaemonIndex;

const BEAT_NANOS: i64 = 100_000_000;
/// With more daemons than this, beats are rarer, so that a voter receives no more of them.
const DAEMONS_AT_FULL_RATE: usize = 256;
/// Beats that may be missing before a daemon is suspected.
const MISSED_BEATS: i64 = 3;
const LEASE_BEATS: i64 = 4;
/// Clocks of two hosts run apart by less than one in this.
const DRIFT_DIVISOR: i64 = 16;
/// How long an answer of a peer is waited for.
const CHECK_NANOS: i64 = 300_000_000;
/// After a daemon was reached by some peer it is not asked about for this time.
const REACHED_NANOS: i64 = 200_000_000;
/// Peers that are asked beside the voters.
const ASKED_OTHERS: usize = 4;
/// A voter that is not heard for this long is replaced, if another daemon can be a voter.
const VOTER_GONE_NANOS: i64 = 3_000_000_000;
/// A new voter has this time to begin.
const VOTER_BEGINS_NANOS: i64 = 1_000_000_000;
/// A daemon that no voter grants anything for this long asks others for the voters.
const LOST_NANOS: i64 = 1_000_000_000;
/// How often the leader calls daemons that are down.
const CALL_NANOS: i64 = 1_000_000_000;

/// When a daemon was heard, and how regularly.
#[derive(Clone, Copy, Debug)]
struct Pulse {
    heard: i64,
    /// Mean time between two beats, and mean distance from it.
    mean: i64,
    deviation: i64,
    quiet_until: i64,
    /// As its last beat said: the name under which it votes, the epoch of the voters that it knows and
    /// when it was first heard to know them, and whether a majority of voters answers it.
    votes_as: Option<Voter>,
    voters_since: (u64, i64),
    has_lease: bool,
    /// Epoch of the membership that it knows.
    epoch: u64,
}

impl Pulse {
    const fn fresh(now: i64) -> Pulse {
        Pulse {
            heard: now,
            mean: 0,
            deviation: 0,
            quiet_until: now,
            votes_as: None,
            voters_since: (0, now),
            has_lease: false,
            epoch: 0,
        }
    }
}

struct Check {
    since: i64,
    asked: Vec<DaemonIndex>,
    unreached: Vec<DaemonIndex>,
    is_reached: bool,
}

/// See the module.
pub(super) struct Beats {
    voters: Voters,
    /// When this daemon learned of the voters.
    voters_at: i64,
    /// For each voter the latest beat that it granted to this daemon.
    granted: BTreeMap<DaemonIndex, i64>,
    /// For each voter the epochs that it was seen to know, each with a time since which it has granted
    /// nothing to daemons that are down in it.
    known: BTreeMap<DaemonIndex, Vec<(u64, i64)>>,
    pulses: Vec<Pulse>,
    checks: BTreeMap<DaemonIndex, Check>,
    askers: BTreeMap<DaemonIndex, Vec<DaemonIndex>>,
    own: DaemonIndex,
    is_first: bool,
    called_at: i64,
    sent_at: i64,
    last_grant: Option<(DaemonIndex, i64)>,
}

impl Beats {
    pub(super) fn new(own: DaemonIndex, daemons: usize, voters: &Voters, now: i64) -> Beats {
        let mut beats = Beats {
            voters: voters.clone(),
            voters_at: now,
            granted: BTreeMap::new(),
            known: BTreeMap::new(),
            pulses: Vec::new(),
            checks: BTreeMap::new(),
            askers: BTreeMap::new(),
            own,
            is_first: true,
            called_at: now,
            sent_at: i64::MIN / 2,
            last_grant: None,
        };
        beats.resize(daemons, now);
        beats
    }

    pub(super) fn resize(&mut self, daemons: usize, now: i64) {
        self.pulses.resize(daemons, Pulse::fresh(now));
    }

    /// Other voters. A daemon that is one for the first time has heard nobody until now.
    pub(super) fn set_voters(&mut self, voters: &Voters, is_new: bool, now: i64) {
        if is_new {
            self.pulses.fill(Pulse::fresh(now));
        }
        self.voters = voters.clone();
        self.voters_at = now;
        self.granted.retain(|&voter, _| voters.has(voter));
        self.known.retain(|&voter, _| voters.has(voter));
    }

    pub(super) const fn voters(&self) -> &Voters {
        &self.voters
    }

    fn beat_nanos(&self) -> i64 {
        BEAT_NANOS * (1 + (self.pulses.len() / DAEMONS_AT_FULL_RATE) as i64)
    }

    fn lease_nanos(&self) -> i64 {
        LEASE_BEATS * self.beat_nanos()
    }

    /// A voter that answered last, or the first.
    pub(super) fn nearest_voter(&self) -> Option<DaemonIndex> {
        let last = self.last_grant.map(|(voter, _)| voter).filter(|&voter| self.voters.has(voter));
        last.or_else(|| self.voters.all().next().map(|it| it.daemon))
    }

    /// A daemon to ask for the voters, where none of those that are known answers: each in turn.
    pub(super) fn stranger(&self, now: i64) -> Option<DaemonIndex> {
        let is_lost = now - self.last_grant.map_or(self.voters_at, |(_, at)| at) >= LOST_NANOS;
        let turn = (now / BEAT_NANOS).unsigned_abs() % self.pulses.len().max(1) as u64;
        is_lost.then_some(DaemonIndex(turn as u16))
    }

    /// Whether a beat is due. An owner without a lease sends more of them, since others wait for it.
    pub(super) fn is_due(&self, is_owner: bool, now: i64) -> bool {
        let is_waiting = is_owner && !self.has_lease(now);
        now - self.sent_at >= if is_waiting { self.beat_nanos() / 4 } else { self.beat_nanos() }
    }

    pub(super) fn sent(&mut self, now: i64) {
        let beat = self.beat_nanos();
        // The first beats of all daemons are sent at once, where they start at once. The second ones are
        // not: each daemon has a time of its own in the interval.
        let early = if self.is_first {
            (wire::hash::mix(u64::from(self.own.0), 0) % 1024) as i64
        } else {
            0
        };
        self.is_first = false;
        self.sent_at = now - beat / 1024 * early;
    }

    pub(super) fn forget_lease(&mut self) {
        self.granted.clear();
    }

    pub(super) fn granted(
        &mut self,
        voter: DaemonIndex,
        grant: &Grant,
        incarnation: u64,
        now: i64,
    ) {
        if !self.voters.has(voter) || grant.incarnation != incarnation || grant.sent > now {
            return;
        }
        self.last_grant = Some((voter, now));
        let latest = self.granted.entry(voter).or_insert(grant.sent);
        *latest = grant.sent.max(*latest);
        let lease = self.lease_nanos();
        let known = self.known.entry(voter).or_default();
        if known.last().is_none_or(|&(epoch, _)| epoch < grant.epoch) {
            // The answer was given after the beat was sent, and may have been on its way since.
            let quiet = i64::try_from(grant.quiet).unwrap_or(i64::MAX).min(lease);
            let quiet = quiet - quiet / DRIFT_DIVISOR;
            known.push((grant.epoch, now - quiet));
            // Nothing asks for entries that are older than any wait.
            if known.len() > 64 {
                known.remove(0);
            }
        }
    }

    pub(super) fn has_lease(&self, now: i64) -> bool {
        self.lease_until(now).is_some_and(|until| now < until)
    }

    /// Until when this daemon has its lease, or had it.
    pub(super) fn lease_until(&self, now: i64) -> Option<i64> {
        // The n-th latest of the beats, where n is a majority.
        let age = |voter| self.granted.get(&voter).map(|&sent| now - sent);
        self.voters.agreed(age).map(|age| now - age + self.lease_nanos())
    }

    fn lease_and_drift_nanos(&self) -> i64 {
        self.lease_nanos() + self.lease_nanos() / DRIFT_DIVISOR
    }

    /// When all leases of daemons that are down in this epoch of the membership have ended for sure.
    /// `None`: too few voters are known to know of it.
    pub(super) fn leases_end(&self, epoch: u64) -> Option<i64> {
        let quiet_since = |voter| {
            let known = self.known.get(&voter)?;
            known.iter().find(|&&(it, _)| it >= epoch).map(|&(_, since)| since)
        };
        let agreed = self.voters.agreed(quiet_since);
        agreed.map(|since| since + self.lease_and_drift_nanos())
    }

    /// Whether a majority of the voters is known to know the voters.
    pub(super) fn are_voters_known(&self) -> bool {
        self.leases_end(self.voters.since).is_some()
    }

    /// While two sets of voters are joint: when all leases have ended that older voters granted alone.
    pub(super) fn older_leases_end(&self) -> Option<i64> {
        let known_at = |voter: DaemonIndex| {
            let (since, at) = self.pulses.get(usize::from(voter.0))?.voters_since;
            (since >= self.voters.since).then_some(at)
        };
        self.voters.agreed_before(known_at).map(|at| at + self.lease_and_drift_nanos())
    }

    /// The epoch of the membership that a daemon knew when it was heard last.
    pub(super) fn epoch_of(&self, daemon: DaemonIndex) -> u64 {
        self.pulses.get(usize::from(daemon.0)).map_or(0, |pulse| pulse.epoch)
    }

    /// Daemons to call, now and then: one that starts again may know none of the voters.
    pub(super) fn calls(&mut self, membership: &Membership, now: i64) -> Vec<DaemonIndex> {
        if now - self.called_at < CALL_NANOS {
            return Vec::new();
        }
        self.called_at = now;
        let is_away = |it: &Member| it.presence == Presence::Down && !it.has_left();
        membership.daemons().filter(|(_, member)| is_away(member)).map(|it| it.0).collect()
    }

    /// The name under which a daemon is ready to vote that was asked to.
    pub(super) fn joins_as(&self, asked: Voter, since: u64) -> Option<Voter> {
        let pulse = self.pulses.get(usize::from(asked.daemon.0))?;
        // Under an older name it was a voter before, or will forget that it was asked.
        pulse.votes_as.filter(|it| it.daemon == asked.daemon && it.start > 0 && it.number >= since)
    }

    /// How this daemon, which leads, sees another one, or a voter.
    pub(super) fn reach(&self, daemon: DaemonIndex, voter: Option<Voter>, now: i64) -> Reach {
        let Some(pulse) = self.pulses.get(usize::from(daemon.0)) else { return Reach::Gone };
        let may_begin = now - self.voters_at < VOTER_BEGINS_NANOS;
        let is_lost = voter.is_some_and(|it| pulse.votes_as != Some(it)) && !may_begin;
        if now - pulse.heard >= VOTER_GONE_NANOS || is_lost && pulse.mean > 0 {
            Reach::Gone
        } else if now - pulse.heard < 3 * self.beat_nanos() && pulse.has_lease {
            Reach::Able
        } else {
            Reach::Quiet
        }
    }

    /// For a voter's grant: how long nothing was granted to daemons that are down.
    pub(super) fn quiet_nanos(&self, membership: &Membership, now: i64) -> u64 {
        // One that has left has handed over everything.
        let down = membership
            .daemons()
            .filter(|(_, member)| member.presence == Presence::Down && !member.has_left());
        let granted = down.filter_map(|(daemon, _)| self.pulses.get(usize::from(daemon.0)));
        granted.map(|pulse| now - pulse.heard).min().unwrap_or(i64::MAX).cast_unsigned()
    }

    pub(super) fn heard(&mut self, daemon: DaemonIndex, beat: &Beat, now: i64) {
        let Some(pulse) = self.pulses.get_mut(usize::from(daemon.0)) else { return };
        let apart = now - pulse.heard;
        pulse.heard = now;
        pulse.mean += (apart - pulse.mean) / 8;
        pulse.deviation += ((apart - pulse.mean).abs() - pulse.deviation) / 8;
        pulse.votes_as = beat.votes_as;
        pulse.has_lease = beat.has_lease;
        pulse.epoch = beat.epoch;
        if beat.voters_since > pulse.voters_since.0 {
            pulse.voters_since = (beat.voters_since, now);
        }
        self.checks.remove(&daemon);
    }

    pub(super) fn heard_lately(&self, daemon: DaemonIndex, now: i64) -> bool {
        let pulse = self.pulses.get(usize::from(daemon.0));
        let is_voter = !self.granted.is_empty() && pulse.is_some_and(|it| it.mean > 0);
        is_voter && pulse.is_some_and(|it| now - it.heard < self.beat_nanos() * 3 / 2)
    }

    fn is_missing(&self, pulse: &Pulse, now: i64) -> bool {
        let usual = MISSED_BEATS * self.beat_nanos();
        let seen = pulse.mean + 8 * pulse.deviation;
        now - pulse.heard > seen.clamp(usual, 4 * usual) && now >= pulse.quiet_until
    }

    /// Daemons that are missing and that nobody is asked about yet, with those to ask.
    pub(super) fn suspects(
        &mut self,
        membership: &Membership,
        own: DaemonIndex,
        now: i64,
    ) -> Vec<(DaemonIndex, Vec<DaemonIndex>)> {
        let mut found = Vec::new();
        for (daemon, member) in membership.daemons() {
            let pulse = self.pulses.get(usize::from(daemon.0));
            let is_missing = pulse.is_some_and(|pulse| self.is_missing(pulse, now));
            let may = member.takes_part() && daemon != own;
            if !may || !is_missing || self.checks.contains_key(&daemon) {
                continue;
            }
            let voters = self.voters.daemons();
            let mut asked: Vec<DaemonIndex> = voters.filter(|&voter| voter != daemon).collect();
            // Daemons that are heard, other ones each time.
            let count = membership.members.len() as u64;
            let first = wire::hash::mix(u64::from(daemon.0), now.cast_unsigned()) % count.max(1);
            let others = (0..count).map(|step| DaemonIndex(((first + step) % count) as u16));
            let others = others.filter(|&other| {
                let pulse = self.pulses.get(usize::from(other.0));
                other != daemon
                    && !self.voters.has(other)
                    && membership.is_up(other)
                    && pulse.is_some_and(|pulse| !self.is_missing(pulse, now))
            });
            asked.extend(others.take(ASKED_OTHERS));
            let check = Check {
                since: now,
                asked: asked.clone(),
                unreached: Vec::new(),
                is_reached: false,
            };
            self.checks.insert(daemon, check);
            found.push((daemon, asked));
        }
        found
    }

    pub(super) fn ask(&mut self, daemon: DaemonIndex, asker: DaemonIndex) {
        let askers = self.askers.entry(daemon).or_default();
        if !askers.contains(&asker) {
            askers.push(asker);
        }
    }

    pub(super) fn askers(&mut self, daemon: DaemonIndex) -> Vec<DaemonIndex> {
        self.askers.remove(&daemon).unwrap_or_default()
    }

    /// A peer's answer.
    pub(super) fn checked(&mut self, daemon: DaemonIndex, from: DaemonIndex, is_reached: bool) {
        let Some(check) = self.checks.get_mut(&daemon) else { return };
        if !check.asked.contains(&from) {
            return;
        }
        check.is_reached |= is_reached;
        if !is_reached && !check.unreached.contains(&from) {
            check.unreached.push(from);
        }
    }

    /// Daemons that are dead by the answers.
    pub(super) fn dead(&mut self, now: i64) -> Vec<DaemonIndex> {
        let mut dead = Vec::new();
        let (checks, pulses) = (&mut self.checks, &mut self.pulses);
        checks.retain(|&daemon, check| {
            let is_over = now - check.since >= CHECK_NANOS;
            if check.is_reached {
                if let Some(pulse) = pulses.get_mut(usize::from(daemon.0)) {
                    pulse.quiet_until = now + REACHED_NANOS;
                }
                return false;
            }
            let is_answered = check.unreached.len() == check.asked.len();
            let is_dead = check.unreached.len() > check.asked.len() / 2 && (is_over || is_answered);
            if is_dead {
                dead.push(daemon);
            }
            !is_over && !is_dead
        });
        dead
    }
}

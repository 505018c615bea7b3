//! The voters: the daemons that take part in the consensus, and that grant leases to owners.
//!
//! They change in two steps. First both sets must agree, the one before and the next one (they are
//! *joint*); then the next one alone. `Membership` has them, so that each epoch of it has one answer.
//! The rule that keeps leases safe meanwhile is in `node::beats`.
//!
//! Here is also the choice of the next voters. `consensus` makes the change, `node` says when.

use crate::membership::{Member, Membership, Presence};
use encoding::{Decode, Encode};
use wire::DaemonIndex;
use wire::codec::{Malformed, Reader};

/// Voters that an instance has at most.
pub const VOTERS_MAX: usize = 5;

/// A voter. A daemon that has lost what it stored as a voter does not vote under the same name again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Voter {
    /// The daemon.
    pub daemon: DaemonIndex,
    /// Number of the start with which it became a voter; 0 for the first voters of an instance.
    pub start: u64,
    /// Epoch of the membership in which it was asked, so that it has another name each time.
    pub number: u64,
}

/// See the module.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Voters {
    /// Epoch of the membership that changed them last.
    pub(crate) since: u64,
    pub(crate) next: Vec<Voter>,
    /// The set before, while the two are joint.
    pub(crate) before: Vec<Voter>,
}

impl Voters {
    /// The first voters of an instance.
    pub(crate) fn first(daemons: &[DaemonIndex]) -> Voters {
        let voter = |&daemon| Voter { daemon, start: 0, number: 0 };
        let next = daemons.iter().take(VOTERS_MAX).map(voter).collect();
        Voters { since: 1, next, before: Vec::new() }
    }

    /// Whether a change has begun and is not complete.
    #[must_use]
    pub const fn is_joint(&self) -> bool {
        !self.before.is_empty()
    }

    /// Epoch of the membership that changed them last.
    #[must_use]
    pub const fn since(&self) -> u64 {
        self.since
    }

    /// The voters that stay.
    #[must_use]
    pub fn next(&self) -> &[Voter] {
        &self.next
    }

    /// All voters of both sets.
    pub(crate) fn all(&self) -> impl Iterator<Item = Voter> {
        let next = &self.next;
        let leaving = self.before.iter().filter(move |it| !next.contains(it));
        next.iter().chain(leaving).copied()
    }

    /// The daemons of all voters, each once.
    pub(crate) fn daemons(&self) -> impl Iterator<Item = DaemonIndex> {
        let next = &self.next;
        let is_there = move |it: &&Voter| next.iter().any(|next| next.daemon == it.daemon);
        let leaving = self.before.iter().filter(move |it| !is_there(it));
        next.iter().chain(leaving).map(|it| it.daemon)
    }

    pub(crate) fn contains(&self, voter: Voter) -> bool {
        self.all().any(|it| it == voter)
    }

    pub(crate) fn has(&self, daemon: DaemonIndex) -> bool {
        self.all().any(|it| it.daemon == daemon)
    }

    /// The time at which a majority of each set has a value: `None` where too few have one.
    pub(crate) fn agreed(&self, value: impl Fn(DaemonIndex) -> Option<i64>) -> Option<i64> {
        let of = |set: &[Voter]| agreed_in(set, &value);
        let next = of(&self.next)?;
        if self.is_joint() { Some(next.max(of(&self.before)?)) } else { Some(next) }
    }

    /// As `agreed`, of the set before alone.
    pub(crate) fn agreed_before(&self, value: impl Fn(DaemonIndex) -> Option<i64>) -> Option<i64> {
        agreed_in(&self.before, &value)
    }
}

/// The n-th least of the values of a set, where n is a majority. An owner asks before each operation, so
/// this allocates nothing.
fn agreed_in(set: &[Voter], value: &impl Fn(DaemonIndex) -> Option<i64>) -> Option<i64> {
    let mut values = [i64::MAX; VOTERS_MAX];
    let mut count = 0;
    for (place, found) in values.iter_mut().zip(set.iter().filter_map(|it| value(it.daemon))) {
        *place = found;
        count += 1;
    }
    values.sort_unstable();
    let majority = set.len() / 2 + 1;
    if count < majority { None } else { values.get(majority - 1).copied() }
}

impl Encode for Voter {
    fn encode(&self, to: &mut Vec<u8>) {
        self.daemon.encode(to);
        self.start.encode(to);
        self.number.encode(to);
    }
}

impl Decode for Voter {
    fn decode(from: &mut Reader<'_>) -> Result<Voter, Malformed> {
        let (daemon, start, number) = (DaemonIndex::decode(from)?, from.u64()?, from.u64()?);
        Ok(Voter { daemon, start, number })
    }
}

pub(crate) fn encode_set(set: &[Voter], to: &mut Vec<u8>) {
    (set.len() as u8).encode(to);
    set.iter().for_each(|voter| voter.encode(to));
}

/// Reads a set of at most `VOTERS_MAX` voters, each another daemon.
pub(crate) fn decode_set(from: &mut Reader<'_>) -> Result<Vec<Voter>, Malformed> {
    let count = from.u8()?;
    if usize::from(count) > VOTERS_MAX {
        return Err(Malformed);
    }
    let mut set: Vec<Voter> = Vec::new();
    for _ in 0..count {
        let voter = Voter::decode(from)?;
        if set.iter().any(|it| it.daemon == voter.daemon) {
            return Err(Malformed);
        }
        set.push(voter);
    }
    Ok(set)
}

impl Encode for Voters {
    fn encode(&self, to: &mut Vec<u8>) {
        self.since.encode(to);
        encode_set(&self.next, to);
        encode_set(&self.before, to);
    }
}

impl Decode for Voters {
    fn decode(from: &mut Reader<'_>) -> Result<Voters, Malformed> {
        let (since, next, before) = (from.u64()?, decode_set(from)?, decode_set(from)?);
        if next.is_empty() && !before.is_empty() {
            return Err(Malformed);
        }
        Ok(Voters { since, next, before })
    }
}

/// How the leader sees a daemon.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Reach {
    /// It answers. For a voter: it has what it stored as one.
    Able,
    /// It is not heard, for a short time only.
    Quiet,
    /// It was not heard for long, or is a voter that has lost what it stored.
    Gone,
}

const fn odd(count: usize) -> usize {
    match count {
        0..=2 => 1,
        3 | 4 => 3,
        _ => VOTERS_MAX,
    }
}

/// The first voters of an instance with daemons in these failure domains.
#[must_use]
pub fn first_voters(domains: &[u32]) -> Vec<DaemonIndex> {
    let daemons = (0_u16..).zip(domains).map(|(index, _)| DaemonIndex(index)).collect();
    let domain = |daemon: &DaemonIndex| domains.get(usize::from(daemon.0));
    spread(daemons, odd(domains.len()), domain)
}

/// Chooses `count` candidates. Each is the first one left of a domain that has the fewest chosen so far.
fn spread<T: Copy, D: PartialEq>(
    mut candidates: Vec<T>,
    count: usize,
    domain: impl Fn(&T) -> D,
) -> Vec<T> {
    let mut chosen: Vec<T> = Vec::new();
    while chosen.len() < count && !candidates.is_empty() {
        let others = |one: &T| chosen.iter().filter(|it| domain(it) == domain(one)).count();
        let places = candidates.iter().enumerate();
        let Some(place) = places.min_by_key(|(_, one)| others(one)).map(|(place, _)| place) else {
            break;
        };
        chosen.push(candidates.remove(place));
    }
    chosen
}

fn stays(member: &Member) -> bool {
    matches!(member.presence, Presence::Up | Presence::Down) && !member.has_left()
}

/// The voters that the instance should have, if others than it has. 1, 3 or 5 by the number of daemons,
/// in different failure domains where that is possible. A voter stays if it can; `own`, which leads,
/// before others. `reach` says how `own` sees a daemon, as a voter of this name or as a daemon.
pub(crate) fn next_voters(
    membership: &Membership,
    own: DaemonIndex,
    reach: impl Fn(DaemonIndex, Option<Voter>) -> Reach,
) -> Option<Vec<Voter>> {
    let voters = &membership.voters;
    let is_able = |daemon, voter| {
        let stays = membership.member(daemon).is_some_and(stays);
        stays && reach(daemon, voter) != Reach::Gone
    };
    let mut kept: Vec<Voter> =
        voters.next.iter().copied().filter(|it| is_able(it.daemon, Some(*it))).collect();
    kept.sort_by_key(|it| it.daemon != own);
    let able = membership.daemons().filter(|(daemon, member)| {
        let is_up = member.presence == Presence::Up;
        let is_kept = kept.iter().any(|it| it.daemon == *daemon);
        is_up && !is_kept && reach(*daemon, None) == Reach::Able
    });
    let number = membership.epoch;
    let able: Vec<Voter> =
        able.map(|(daemon, member)| Voter { daemon, start: member.incarnation, number }).collect();
    let alive = membership.daemons().filter(|(_, member)| stays(member));
    // A majority of three with one dead daemon survives more than a single voter does.
    let count = odd(kept.len() + able.len()).max(odd(alive.count()).min(3));
    let domain = |voter: &Voter| membership.member(voter.daemon).map(|it| it.domain);
    let mut chosen = spread(kept.iter().chain(&able).copied().collect(), count, domain);
    // Where there are too few, those that are gone keep their places: they may return.
    for voter in &voters.next {
        let is_new = !chosen.iter().any(|it| it.daemon == voter.daemon);
        if is_new && chosen.len() < count {
            chosen.push(*voter);
        }
    }
    if chosen.len().is_multiple_of(2) {
        chosen.pop();
    }
    let is_same =
        chosen.len() == voters.next.len() && chosen.iter().all(|it| voters.next.contains(it));
    (!is_same && !chosen.is_empty()).then_some(chosen)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_voters_are_odd_and_spread_over_the_domains() {
        for (domains, expected) in [
            (&[0][..], &[0][..]),
            (&[0, 1], &[0]),
            (&[0, 0, 0], &[0, 1, 2]),
            (&[0, 0, 1, 1], &[0, 2, 1]),
            (&[0, 0, 1, 2], &[0, 2, 3]),
            (&[0, 0, 0, 1, 1, 2, 2], &[0, 3, 5, 1, 4]),
            (&[0, 0, 1, 2, 3, 4, 5], &[0, 2, 3, 4, 5]),
        ] {
            let found: Vec<u16> = first_voters(domains).iter().map(|voter| voter.0).collect();
            assert_eq!(found, expected, "{domains:?}");
        }
    }
}

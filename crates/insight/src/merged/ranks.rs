//! Ranks that do the same as one record.

use super::alike::{self, Member, Spread};
use super::runs::Runs;
use crate::profile::{JobProfile, RankProfile};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::BTreeMap;

/// Groups of one program that a rank is compared with.
const COMPARED_MAX: usize = 64;

/// A group of ranks. Without members it is one rank, at the next place.
#[derive(Serialize, Deserialize)]
struct RankGroup {
    /// Sums; rank and host are those of the first.
    #[serde(flatten)]
    sum: RankProfile,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    members: Option<RankMembers>,
}

#[derive(Serialize, Deserialize)]
struct RankMembers {
    count: u64,
    /// Places among the ranks of the job, which other parts of a profile name.
    places: Runs,
    ranks: Runs,
    hosts: Runs,
    /// Of all times in I/O.
    seconds: Spread,
}

fn time(rank: &RankProfile) -> f64 {
    rank.metadata.seconds + rank.syncs.seconds + rank.reads.seconds + rank.writes.seconds
}

fn is_alike(one: &RankProfile, other: &RankProfile) -> bool {
    let numbers = [
        (one.opens, other.opens),
        (one.absent, other.absent),
        (one.small_files_read, other.small_files_read),
    ];
    one.program == other.program
        && numbers.iter().all(|(one, other)| alike::few(*one, *other))
        && alike::few(one.metadata.number, other.metadata.number)
        && alike::seconds(one.metadata.seconds, other.metadata.seconds)
        && alike::operations(&one.syncs, &other.syncs)
        && alike::operations(&one.reads, &other.reads)
        && alike::operations(&one.writes, &other.writes)
        && alike::transfers(&one.other_reads, &other.other_reads)
        && alike::transfers(&one.other_writes, &other.other_writes)
}

/// The places of ranks that do the same, in the order of their first ones.
pub(super) fn grouped(ranks: &[RankProfile]) -> Vec<Vec<usize>> {
    let mut groups: Vec<Vec<usize>> = Vec::new();
    let mut by_program: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (place, rank) in ranks.iter().enumerate() {
        let known = by_program.entry(&rank.program).or_default();
        let first = |group: usize| groups.get(group)?.first().and_then(|at| ranks.get(*at));
        let found = known
            .iter()
            .rev()
            .take(COMPARED_MAX)
            .find(|group| first(**group).is_some_and(|first| is_alike(first, rank)))
            .copied();
        match found.and_then(|group| groups.get_mut(group)) {
            Some(group) => group.push(place),
            None => {
                known.push(groups.len());
                groups.push(vec![place]);
            }
        }
    }
    groups
}

fn sum<'a>(ranks: impl Iterator<Item = &'a RankProfile>) -> RankProfile {
    let mut sum: Option<RankProfile> = None;
    for rank in ranks {
        let Some(sum) = &mut sum else {
            sum = Some(rank.clone());
            continue;
        };
        sum.metadata.add(rank.metadata);
        sum.syncs.add(rank.syncs);
        sum.reads.add(rank.reads);
        sum.writes.add(rank.writes);
        sum.other_reads.add(&rank.other_reads);
        sum.other_writes.add(&rank.other_writes);
        for (to, more) in [
            (&mut sum.opens, rank.opens),
            (&mut sum.absent, rank.absent),
            (&mut sum.small_files_read, rank.small_files_read),
        ] {
            *to = to.saturating_add(more);
        }
    }
    sum.unwrap_or_default()
}

fn group(ranks: &[RankProfile], places: &[usize]) -> RankGroup {
    let all = || places.iter().filter_map(|place| ranks.get(*place));
    let members = RankMembers {
        count: places.len() as u64,
        places: Runs::of(places.iter().map(|place| *place as u64)),
        ranks: Runs::of(all().map(|one| u64::from(one.rank))),
        hosts: Runs::of(all().map(|one| u64::from(one.host))),
        seconds: Spread::of(all().map(time)),
    };
    RankGroup { sum: sum(all()), members: Some(members) }
}

/// The ranks of a group, each with its place.
fn members(group: RankGroup, next: usize) -> Vec<(usize, RankProfile)> {
    let RankGroup { sum, members } = group;
    let Some(all) = members else { return vec![(next, sum)] };
    let count = all.places.each().count() as u64;
    let each = all.places.each().zip(all.ranks.each()).zip(all.hosts.each()).zip(0_u64..);
    let rank = |(((place, rank), host), at)| {
        let member = Member::new(at, count, (time(&sum), &all.seconds));
        let rank = RankProfile {
            rank: u32::try_from(rank).unwrap_or(u32::MAX),
            host: u32::try_from(host).unwrap_or(u32::MAX),
            program: sum.program.clone(),
            metadata: member.operations(&sum.metadata),
            opens: member.number(sum.opens),
            absent: member.number(sum.absent),
            small_files_read: member.number(sum.small_files_read),
            syncs: member.operations(&sum.syncs),
            reads: member.operations(&sum.reads),
            writes: member.operations(&sum.writes),
            other_reads: member.transfers(&sum.other_reads),
            other_writes: member.transfers(&sum.other_writes),
        };
        (usize::try_from(place).unwrap_or(usize::MAX), rank)
    };
    each.map(rank).collect()
}

pub(crate) fn serialize<S: Serializer>(ranks: &[RankProfile], to: S) -> Result<S::Ok, S::Error> {
    let groups = grouped(ranks);
    if groups.len() == ranks.len() {
        return ranks.serialize(to);
    }
    to.collect_seq(groups.iter().map(|places| group(ranks, places)))
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
    from: D,
) -> Result<Vec<RankProfile>, D::Error> {
    let mut all = Vec::new();
    for group in Vec::<RankGroup>::deserialize(from)? {
        let next = all.len();
        all.extend(members(group, next));
    }
    all.sort_by_key(|(place, _)| *place);
    Ok(all.into_iter().map(|(_, rank)| rank).collect())
}

/// Ranks that do the same, for people.
#[derive(Clone, Debug, PartialEq)]
pub struct EqualRanks {
    /// How many.
    pub count: u64,
    /// Numbers of the ranks, as "0-1023".
    pub ranks: String,
    /// Their hosts.
    pub hosts: u64,
    /// Sums.
    pub sum: RankProfile,
    /// Seconds in I/O of the fastest and the slowest.
    pub seconds: (f64, f64),
    /// Number of the slowest rank.
    pub slowest: u32,
}

/// The ranks of a job by what they do: the groups with most members first.
#[must_use]
pub fn equal_ranks(job: &JobProfile) -> Vec<EqualRanks> {
    let of = |places: Vec<usize>| {
        let mut all: Vec<&RankProfile> =
            places.iter().filter_map(|place| job.ranks.get(*place)).collect();
        let spread = Spread::of(all.iter().map(|rank| time(rank)));
        let slowest = usize::try_from(spread.slowest).ok().and_then(|place| all.get(place));
        let slowest = slowest.map_or(0, |rank| rank.rank);
        let sum = sum(all.iter().copied());
        let mut hosts: Vec<u32> = all.iter().map(|rank| rank.host).collect();
        hosts.sort_unstable();
        hosts.dedup();
        all.sort_by_key(|rank| rank.rank);
        EqualRanks {
            count: all.len() as u64,
            ranks: Runs::of(all.iter().map(|rank| u64::from(rank.rank))).text(),
            hosts: hosts.len() as u64,
            sum,
            seconds: (spread.least, spread.most),
            slowest,
        }
    };
    let mut groups: Vec<EqualRanks> = grouped(&job.ranks).into_iter().map(of).collect();
    groups.sort_by_key(|group| core::cmp::Reverse(group.count));
    groups
}

//! The ranks of a job: which of its processes do I/O side by side.
//!
//! - Processes with a rank variable belong to the rank that it names, whichever program they run.
//! - Other processes of a host that run one after another are one rank: ten commands of a script
//!   share nothing and wait for nothing that ten ranks would.
//! - A process that moves no bytes while others run that do nearly all operations is their starter,
//!   a shell for instance. It belongs to the rank of the first of them.
//! - A mount's counts of a process are an entry of their own, of the same rank.

use config::activity::ProcessProfile;
use std::collections::BTreeMap;

/// Processes that overlap by less ran one after another: the end of one is noticed when its session
/// has ended, which is hardly later than the session of the next one begins. At most half of the time
/// of either.
const LATE_NANOS: u64 = 2_000_000;
/// A starter does at most one operation for this many of those that it starts.
const STARTER_SHARE: u64 = 10;

/// One process, with all its entries.
struct Member<'a> {
    process: &'a ProcessProfile,
    began: u64,
    ended: u64,
    operations: u64,
    transfers: u64,
    /// Its rank, as an index.
    rank: Option<usize>,
}

/// The end of the last process of a rank without a variable.
struct LastProcess<'a> {
    host: &'a str,
    ended: u64,
    /// How long that process ran.
    nanos: u64,
    rank: usize,
}

/// The rank of each process, as an index, in the order of first appearance.
pub(crate) fn of(processes: &[ProcessProfile]) -> Vec<usize> {
    let (mut members, places) = members(processes);
    let starters: Vec<Option<usize>> =
        (0..members.len()).map(|at| first_started(&members, at)).collect();
    let mut count = 0;
    let mut by_variable: BTreeMap<u32, usize> = BTreeMap::new();
    let mut lasts: Vec<LastProcess<'_>> = Vec::new();
    let mut order: Vec<usize> = (0..members.len()).collect();
    order.sort_by_key(|at| members.get(*at).map(|one| one.began));
    for at in order {
        let Some(one) = members.get_mut(at) else { continue };
        let is_starter = starters.get(at).is_some_and(Option::is_some);
        let rank = match one.process.rank {
            Some(variable) => *by_variable.entry(variable).or_insert(count),
            None if is_starter => continue,
            None => rank_after(&mut lasts, one, count),
        };
        count = count.max(rank + 1);
        one.rank = Some(rank);
    }
    let ranks: Vec<usize> = (0..members.len())
        .map(|at| {
            let started = || starters.get(at).copied().flatten();
            let of = |at: usize| members.get(at).and_then(|one| one.rank);
            of(at).or_else(|| started().and_then(of)).unwrap_or(0)
        })
        .collect();
    renumbered(places.into_iter().map(|place| ranks.get(place).copied().unwrap_or(0)))
}

/// Numbers by first appearance.
fn renumbered(all: impl Iterator<Item = usize>) -> Vec<usize> {
    let mut known = BTreeMap::new();
    all.map(|one| {
        let next = known.len();
        *known.entry(one).or_insert(next)
    })
    .collect()
}

/// The processes, and the place of each entry's process among them.
fn members(processes: &[ProcessProfile]) -> (Vec<Member<'_>>, Vec<usize>) {
    let mut known: BTreeMap<(&str, u32, &str), usize> = BTreeMap::new();
    let (mut members, mut places) = (Vec::new(), Vec::new());
    for process in processes {
        let key = (process.host.as_str(), process.pid, process.program.as_str());
        let place = *known.entry(key).or_insert(members.len());
        if place == members.len() {
            let (began, ended) = (process.began, 0);
            members.push(Member { process, began, ended, operations: 0, transfers: 0, rank: None });
        }
        if let Some(member) = members.get_mut(place) {
            let mut of = process.operations;
            let number = of.all_mut().iter().map(|one| one.number).fold(0, u64::saturating_add);
            member.operations = member.operations.saturating_add(number);
            member.transfers =
                member.transfers.saturating_add(of.read.number).saturating_add(of.write.number);
            member.began = member.began.min(process.began);
            member.ended = member.ended.max(process.ended.unwrap_or(u64::MAX));
        }
        places.push(place);
    }
    (members, places)
}

/// The first of the processes that a process without transfers started; `None`: it is no starter.
fn first_started(members: &[Member<'_>], at: usize) -> Option<usize> {
    let starter = members.get(at).filter(|one| one.transfers == 0 && one.process.rank.is_none())?;
    let (mut first, mut operations): (Option<(u64, usize)>, u64) = (None, 0);
    for (other, one) in members.iter().enumerate() {
        let is_within = one.began >= starter.began && one.ended <= starter.ended;
        if other == at || one.process.host != starter.process.host || !is_within {
            continue;
        }
        // Of two that no bytes were moved by, neither is the rank of the other.
        if one.transfers > 0 || one.process.rank.is_some() {
            operations = operations.saturating_add(one.operations);
            first = Some(first.map_or((one.began, other), |first| first.min((one.began, other))));
        }
    }
    let is_small = starter.operations.saturating_mul(STARTER_SHARE) <= operations;
    first.filter(|_| is_small).map(|(_, other)| other)
}

/// The rank of a process that follows another one, or the `next` one.
fn rank_after<'a>(lasts: &mut Vec<LastProcess<'a>>, one: &Member<'a>, next: usize) -> usize {
    let host = one.process.host.as_str();
    // Merged processes ran at any time.
    let is_one = one.process.pid != 0;
    let nanos = one.ended.saturating_sub(one.began);
    let is_before = |last: &&mut LastProcess<'_>| {
        let late = LATE_NANOS.min(nanos / 2).min(last.nanos / 2);
        last.host == host && last.ended <= one.began.saturating_add(late)
    };
    match lasts.iter_mut().find(is_before).filter(|_| is_one) {
        Some(last) => {
            (last.ended, last.nanos) = (one.ended, nanos);
            last.rank
        }
        None => {
            lasts.push(LastProcess { host, ended: one.ended, nanos, rank: next });
            next
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLI: u64 = 1_000_000;

    /// A process that runs for these milliseconds, with so many stats and writes.
    fn process(pid: u32, span: (u64, u64), stats: u64, writes: u64) -> ProcessProfile {
        let mut process = ProcessProfile { pid, processes: 1, ..ProcessProfile::default() };
        (process.began, process.ended) = (span.0 * MILLI, Some(span.1 * MILLI));
        process.operations.stat.number = stats;
        process.operations.write.number = writes;
        process
    }

    fn ranked(pid: u32, rank: u32, span: (u64, u64)) -> ProcessProfile {
        ProcessProfile { rank: Some(rank), ..process(pid, span, 1, 10) }
    }

    #[test]
    fn commands_of_a_script_are_one_rank_with_their_shell() {
        let mut all = vec![process(1, (0, 1000), 5, 0)];
        all.extend(
            (0..10).map(|at| {
                process(2 + at, (10 + 90 * u64::from(at), 90 + 90 * u64::from(at)), 9, 1)
            }),
        );
        assert_eq!(of(&all), [0; 11]);
        // The end of each is noticed a little late.
        let late = [process(1, (0, 101), 1, 1), process(2, (100, 205), 1, 1)];
        assert_eq!(of(&late), [0, 0]);
        // A shell that writes itself takes part.
        let writing = [process(1, (0, 100), 0, 3), process(2, (10, 90), 0, 3)];
        assert_eq!(of(&writing), [0, 1]);
    }

    #[test]
    fn processes_that_overlap_are_ranks() {
        let beside = [process(1, (0, 100), 1, 5), process(2, (5, 100), 1, 5)];
        assert_eq!(of(&beside), [0, 1]);
        // Two pairs, one after the other.
        let pairs = [(0, 100), (1, 101), (110, 200), (111, 210)];
        let pairs: Vec<_> =
            pairs.iter().zip(1..).map(|(span, pid)| process(pid, *span, 1, 1)).collect();
        assert_eq!(of(&pairs), [0, 1, 0, 1]);
        // Short ones that begin together, and names alone.
        assert_eq!(of(&[process(1, (0, 4), 0, 1), process(2, (1, 5), 0, 1)]), [0, 1]);
        assert_eq!(of(&[process(1, (0, 90), 50, 0), process(2, (1, 80), 50, 0)]), [0, 1]);
        // One that runs still.
        let running = ProcessProfile { ended: None, ..process(1, (0, 0), 1, 1) };
        assert_eq!(of(&[running, process(2, (500, 600), 1, 1)]), [0, 1]);
    }

    #[test]
    fn a_variable_names_the_rank() {
        let all = [
            ranked(10, 1, (0, 50)),
            ranked(11, 0, (0, 50)),
            ranked(12, 1, (60, 70)),
            ranked(13, 0, (10, 40)),
        ];
        assert_eq!(of(&all), [0, 1, 0, 1]);
        // Their launcher, which moves nothing.
        let launched = [process(9, (0, 100), 1, 0), ranked(10, 3, (1, 50)), ranked(11, 4, (1, 50))];
        assert_eq!(of(&launched), [0, 0, 1]);
    }

    #[test]
    fn hosts_are_side_by_side_and_merged_processes_stand_alone() {
        let mut elsewhere = process(1, (200, 300), 1, 1);
        elsewhere.host = "c2".into();
        let merged = ProcessProfile { processes: 50, ..process(0, (400, 500), 1, 1) };
        assert_eq!(of(&[process(1, (0, 100), 1, 1), elsewhere, merged]), [0, 1, 2]);
        assert_eq!(of(&[]), [0_usize; 0]);
    }
}

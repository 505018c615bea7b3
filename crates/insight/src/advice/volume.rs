//! The kinds of operations that dominate in a job, and how its ranks share the work.

use super::{Finding, Severity, percent, share};
use crate::pattern::Direction;
use crate::profile::{JobProfile, RankProfile};
use crate::text;
use std::collections::BTreeMap;

pub(super) fn advise(job: &JobProfile, findings: &mut Vec<Finding>) {
    let (reads, writes) = (job.reads(), job.writes());
    let operations = (reads.number as f64, writes.number as f64);
    let bytes = (reads.bytes as f64, writes.bytes as f64);
    dominant(findings, ["mostly-read-calls", "mostly-write-calls"], "calls", operations);
    dominant(findings, ["mostly-reads", "mostly-writes"], "bytes", bytes);
    for direction in Direction::ALL {
        unequal(job, direction, findings);
        shared_files(job, direction, findings);
    }
}

/// Reads or writes are a tenth more of all than the other.
fn dominant(
    findings: &mut Vec<Finding>,
    triggers: [&'static str; 2],
    what: &str,
    (reads, writes): (f64, f64),
) {
    let difference = share(writes - reads, writes + reads);
    if difference.abs() <= 0.1 {
        return;
    }
    let [read, write] = triggers;
    let (trigger, part, verb) =
        if difference > 0.0 { (write, writes, "writes") } else { (read, reads, "reads") };
    let evidence = format!("{} of the {what} are {verb}", percent(part, reads + writes));
    findings.push(Finding::new(trigger, Severity::Info, evidence, ""));
}

fn bytes_of(rank: &RankProfile, direction: Direction) -> (u64, f64) {
    let operations = if direction == Direction::Read { rank.reads } else { rank.writes };
    (operations.bytes, operations.seconds)
}

/// Differences of fewer bytes do not matter.
const MUCH: u64 = 16 << 20;

/// The ranks of a parallel program: the processes of the program that most processes run. Others are
/// its shells and tools, which have other work.
fn ranks_of_program(job: &JobProfile) -> Vec<&RankProfile> {
    let mut numbers: BTreeMap<&str, u32> = BTreeMap::new();
    for rank in &job.ranks {
        *numbers.entry(&rank.program).or_default() += 1;
    }
    let program = numbers.into_iter().max_by_key(|(_, number)| *number).map(|(program, _)| program);
    job.ranks.iter().filter(|rank| Some(rank.program.as_str()) == program).collect()
}

/// The rank with most bytes has 30 % more than the one with least. With one rank that does all the
/// work for many, the others wait for it.
fn unequal(job: &JobProfile, direction: Direction, findings: &mut Vec<Finding>) {
    let ranks = ranks_of_program(job);
    let each = || ranks.iter().map(|rank| bytes_of(rank, direction).0);
    let (Some(most), Some(least)) = (each().max(), each().min()) else { return };
    if most - least < MUCH || share((most - least) as f64, most as f64) <= 0.3 {
        return;
    }
    let sum: u64 = each().fold(0, u64::saturating_add);
    let active = each().filter(|bytes| *bytes > 0).count();
    let verb = direction.verb();
    let evidence = format!(
        "{active} of {} ranks {verb}; the largest share of a rank is {}, the smallest {}",
        ranks.len(),
        text::bytes(most),
        text::bytes(least)
    );
    let slowest = ranks.iter().map(|rank| bytes_of(rank, direction).1).fold(0.0, f64::max);
    let even = share(slowest * sum as f64, most as f64 * ranks.len() as f64);
    let (trigger, change) = match direction {
        Direction::Read => {
            ("unequal-reads", "let each rank read its own part, or read once and broadcast")
        }
        Direction::Write => (
            "unequal-writes",
            "let each rank write its own part (a file of its own, or its range of one file) instead of \
             collecting the data in a few",
        ),
    };
    findings.push(Finding::new(trigger, Severity::High, evidence, change).saving(slowest - even));
}

/// In a file that several ranks share, one of them moves 15 % more bytes than another.
fn shared_files(job: &JobProfile, direction: Direction, findings: &mut Vec<Finding>) {
    let mut marked = Vec::new();
    for file in &job.files {
        let each =
            || file.uses.iter().map(|one| direction.of(one).bytes).filter(|bytes| *bytes > 0);
        let (Some(most), Some(least)) = (each().max(), each().min()) else { continue };
        let is_much = most - least >= MUCH && share((most - least) as f64, most as f64) > 0.15;
        if each().count() >= 2 && is_much {
            marked.push((most - least, file.path.as_str()));
        }
    }
    if marked.is_empty() {
        return;
    }
    let verb = direction.verb();
    let evidence = format!(
        "in {} shared files a rank {verb}s over 15 % more than another",
        text::count(marked.len() as u64)
    );
    let (trigger, change) = match direction {
        Direction::Read => {
            ("unequal-reads-of-shared-file", "divide the file evenly between the ranks")
        }
        Direction::Write => {
            ("unequal-writes-of-shared-file", "divide the file evenly between the ranks")
        }
    };
    findings.push(Finding::new(trigger, Severity::Warn, evidence, change).naming(marked));
}

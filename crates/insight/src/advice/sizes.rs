//! Small and misaligned transfers, and bytes that are moved more than once.

use super::{Finding, Severity, percent, share};
use crate::pattern::Direction;
use crate::profile::{FileProfile, JobProfile, Transfers};
use crate::text;

/// Fewer transfers than this are never many.
const MANY: u64 = 1000;
const MIB: f64 = 1_048_576.0;

pub(super) fn advise(job: &JobProfile, findings: &mut Vec<Finding>) {
    for direction in Direction::ALL {
        let mut all = sum(job.files.iter(), direction);
        for rank in &job.ranks {
            all.add(match direction {
                Direction::Read => &rank.other_reads,
                Direction::Write => &rank.other_writes,
            });
        }
        small(job, direction, &all, findings);
        small_shared(job, direction, &all, findings);
        misaligned(job, direction, &all, findings);
        repeated(job, direction, findings);
    }
}

fn sum<'a>(files: impl Iterator<Item = &'a FileProfile>, direction: Direction) -> Transfers {
    let mut all = Transfers::default();
    for one in files.flat_map(|file| &file.uses) {
        all.add(direction.of(one));
    }
    all
}

/// Seconds of a job that larger transfers would save: what each call costs besides its bytes, for the
/// calls that transfers of 1 MiB would not need.
fn larger_transfers(job: &JobProfile, transfers: &Transfers) -> f64 {
    let needed = transfers.bytes as f64 / MIB;
    let unneeded = (transfers.small() as f64 - needed).max(0.0);
    job.per_rank((unneeded * job.rates.call_seconds).min(transfers.seconds))
}

/// Over a tenth of the transfers, and over a thousand, are smaller than 1 MiB.
fn is_mostly_small(part: &Transfers, all: &Transfers) -> bool {
    part.small() > MANY && share(part.small() as f64, all.number as f64) > 0.1
}

fn marked_by(job: &JobProfile, mark: impl Fn(&FileProfile) -> u64) -> Vec<(u64, &str)> {
    job.files.iter().map(|file| (mark(file), file.path.as_str())).collect()
}

fn small(job: &JobProfile, direction: Direction, all: &Transfers, findings: &mut Vec<Finding>) {
    if !is_mostly_small(all, all) {
        return;
    }
    let evidence = format!(
        "{} of {} {}s ({}) move less than 1 MiB; the mean is {}",
        text::count(all.small()),
        text::count(all.number),
        direction.verb(),
        percent(all.small() as f64, all.number as f64),
        text::bytes(all.bytes / all.number.max(1))
    );
    let (trigger, change) = match direction {
        Direction::Read => {
            ("small-reads", "read larger parts at once, or let a buffer of 1 MiB do it")
        }
        Direction::Write => (
            "small-writes",
            "collect what you write in a buffer of 1 MiB (setvbuf, HDF5 chunks and its cache, open(..., \
             buffering=1048576) in Python)",
        ),
    };
    let marked = marked_by(job, |file| sum(core::iter::once(file), direction).small());
    let finding = Finding::new(trigger, Severity::High, evidence, change);
    findings.push(finding.saving(larger_transfers(job, all)).naming(marked));
}

fn small_shared(
    job: &JobProfile,
    direction: Direction,
    all: &Transfers,
    findings: &mut Vec<Finding>,
) {
    let users = |file: &&FileProfile| {
        file.uses.iter().filter(|one| direction.of(one).number > 0).count() >= 2
    };
    let shared = sum(job.files.iter().filter(users), direction);
    if !is_mostly_small(&shared, all) {
        return;
    }
    let evidence = format!(
        "{} {}s of less than 1 MiB go to files that several ranks share",
        text::count(shared.small()),
        direction.verb()
    );
    let (trigger, change) = match direction {
        Direction::Read => (
            "small-reads-of-shared-file",
            "use collective reads (MPI-IO, parallel HDF5), or read once and broadcast",
        ),
        Direction::Write => (
            "small-writes-of-shared-file",
            "use collective writes (MPI-IO, parallel HDF5), which collect the parts of several ranks",
        ),
    };
    let mark = |file: &FileProfile| {
        if users(&file) { sum(core::iter::once(file), direction).small() } else { 0 }
    };
    let finding = Finding::new(trigger, Severity::High, evidence, change);
    findings.push(finding.saving(larger_transfers(job, &shared)).naming(marked_by(job, mark)));
}

/// Over a tenth of the transfers, and over a thousand, begin inside a page.
fn misaligned(
    job: &JobProfile,
    direction: Direction,
    all: &Transfers,
    findings: &mut Vec<Finding>,
) {
    if all.misaligned <= MANY || share(all.misaligned as f64, all.number as f64) <= 0.1 {
        return;
    }
    let verb = direction.verb();
    let evidence = format!(
        "{} of the {verb}s begin at no multiple of 4096 bytes",
        percent(all.misaligned as f64, all.number as f64)
    );
    let trigger = match direction {
        Direction::Read => "misaligned-reads",
        Direction::Write => "misaligned-writes",
    };
    let change = "align records to 4096 bytes (H5Pset_alignment, padding of headers)";
    let marked = marked_by(job, |file| sum(core::iter::once(file), direction).misaligned);
    findings.push(Finding::new(trigger, Severity::Warn, evidence, change).naming(marked));
}

/// A rank moves over a tenth more bytes than the part of the file that it reaches has, in all over 1 MiB.
fn repeated(job: &JobProfile, direction: Direction, findings: &mut Vec<Finding>) {
    let (mut twice, mut moved, mut reached, mut lasting) = (Vec::new(), 0_u64, 0_u64, 0.0);
    for file in &job.files {
        let mut mark = 0_u64;
        for one in &file.uses {
            let transfers = direction.of(one);
            let range = transfers.highest.saturating_sub(transfers.lowest);
            if transfers.bytes as f64 > 1.1 * range as f64 {
                mark = mark.saturating_add(transfers.bytes - range);
                moved = moved.saturating_add(transfers.bytes);
                reached = reached.saturating_add(range);
                lasting += transfers.seconds;
            }
        }
        twice.push((mark, file.path.as_str()));
    }
    if (moved.saturating_sub(reached) as f64) < MIB {
        return;
    }
    let verb = direction.verb();
    let evidence = format!(
        "ranks {verb} {} in parts of files that have {}",
        text::bytes(moved),
        text::bytes(reached)
    );
    let (trigger, change) = match direction {
        Direction::Read => ("repeated-reads", "keep in memory what is read again"),
        Direction::Write => ("repeated-writes", "write a part once, when it is final"),
    };
    let seconds = job.per_rank(lasting * share(moved.saturating_sub(reached) as f64, moved as f64));
    let finding = Finding::new(trigger, Severity::Warn, evidence, change);
    findings.push(
        if job.rates.call_seconds > 0.0 { finding.saving(seconds) } else { finding }.naming(twice),
    );
}

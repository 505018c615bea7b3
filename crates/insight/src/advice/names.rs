//! Operations on names and attributes.

use super::{Finding, Severity, percent, share};
use crate::profile::{JobProfile, Operations};
use crate::text;

/// Fewer operations than this are never many.
const MANY: u64 = 1000;

pub(super) fn advise(job: &JobProfile, findings: &mut Vec<Finding>) {
    long_metadata(job, findings);
    absent_names(job, findings);
    small_files(job, findings);
    hot_directory(job, findings);
    synced_writes(job, findings);
    reopened(job, findings);
}

/// A rank spends over 30 s in operations on names.
fn long_metadata(job: &JobProfile, findings: &mut Vec<Finding>) {
    let Some(slowest) =
        job.ranks.iter().max_by(|a, b| a.metadata.seconds.total_cmp(&b.metadata.seconds))
    else {
        return;
    };
    if slowest.metadata.seconds <= 30.0 {
        return;
    }
    let evidence = format!(
        "rank {} spends {} in {} operations on names and attributes",
        slowest.rank,
        text::seconds(slowest.metadata.seconds),
        text::count(slowest.metadata.number)
    );
    let change =
        "keep many small files in few large ones (HDF5, tar, WebDataset), and open each once";
    let ideal = slowest.metadata.number as f64 * job.rates.name_seconds;
    let finding = Finding::new("long-metadata", Severity::High, evidence, change);
    let saved = if job.rates.name_seconds > 0.0 { slowest.metadata.seconds - ideal } else { 0.0 };
    findings.push(finding.saving(saved));
}

/// Over a fifth of the operations on names look up what does not exist.
fn absent_names(job: &JobProfile, findings: &mut Vec<Finding>) {
    let absent: u64 = job.ranks.iter().map(|rank| rank.absent).fold(0, u64::saturating_add);
    let all = job.metadata();
    if absent <= MANY || share(absent as f64, all.number as f64) <= 0.2 {
        return;
    }
    let evidence = format!(
        "{} of {} operations on names ({}) look for files that do not exist",
        text::count(absent),
        text::count(all.number),
        percent(absent as f64, all.number as f64)
    );
    let change = "shorten PATH, LD_LIBRARY_PATH and sys.path, or pack the program's environment into one \
                  image";
    let seconds = all.seconds * share(absent as f64, all.number as f64);
    findings.push(
        Finding::new("absent-names", Severity::Warn, evidence, change)
            .saving(job.per_rank(seconds)),
    );
}

/// Over a thousand small files are opened, read whole, and closed.
fn small_files(job: &JobProfile, findings: &mut Vec<Finding>) {
    let number: u64 =
        job.ranks.iter().map(|rank| rank.small_files_read).fold(0, u64::saturating_add);
    if number <= MANY {
        return;
    }
    let evidence = format!(
        "{} files of less than 64 KiB are opened, read whole and closed",
        text::count(number)
    );
    let change = "pack them into few large files (tar, WebDataset, HDF5)";
    let per_file = 2.0 * job.rates.name_seconds + job.rates.call_seconds;
    let finding = Finding::new("whole-small-files", Severity::Warn, evidence, change);
    let is_measured = job.rates.name_seconds > 0.0 && job.rates.call_seconds > 0.0;
    let saved = if is_measured { number as f64 * per_file } else { 0.0 };
    findings.push(finding.saving(job.per_rank(saved)));
}

/// Over half of the operations on names are in one directory, at over 5,000 per second.
fn hot_directory(job: &JobProfile, findings: &mut Vec<Finding>) {
    let Some(hottest) = job.directories.iter().max_by_key(|one| one.operations) else { return };
    let all = job.metadata().number;
    let rate = share(hottest.operations as f64, job.seconds);
    if share(hottest.operations as f64, all as f64) <= 0.5 || rate <= 5000.0 || job.ranks.len() < 2
    {
        return;
    }
    let evidence = format!(
        "{} of the operations on names are in {}, {} each second",
        percent(hottest.operations as f64, all as f64),
        hottest.path,
        text::count(rate as u64)
    );
    let change = "give each rank, or each node, a directory of its own";
    findings.push(Finding::new("hot-directory", Severity::Warn, evidence, change));
}

/// There is a sync for every second write, and over a hundred.
fn synced_writes(job: &JobProfile, findings: &mut Vec<Finding>) {
    let syncs = Operations::sum(job.ranks.iter().map(|rank| rank.syncs));
    let writes = job.writes().number;
    if syncs.number <= 100 || (syncs.number as f64) < 0.5 * writes as f64 {
        return;
    }
    let evidence = format!(
        "{} fsync calls for {} writes take {}",
        text::count(syncs.number),
        text::count(writes),
        text::seconds(syncs.seconds)
    );
    let change = "call fsync once, when a file is complete";
    let mut marked = Vec::new();
    for file in &job.files {
        marked.push((
            file.uses.iter().map(|one| one.syncs).fold(0, u64::saturating_add),
            file.path.as_str(),
        ));
    }
    let finding = Finding::new("sync-after-each-write", Severity::High, evidence, change);
    findings.push(finding.saving(job.per_rank(syncs.seconds)).naming(marked));
}

/// Files are opened again and again for one or two transfers.
fn reopened(job: &JobProfile, findings: &mut Vec<Finding>) {
    let (mut opens, mut transfers) = (0_u64, 0_u64);
    let mut marked = Vec::new();
    for file in &job.files {
        let before = opens;
        for one in &file.uses {
            let here = one.reads.number.saturating_add(one.writes.number);
            if one.opens > 100 && here.div_ceil(2) <= one.opens {
                opens = opens.saturating_add(one.opens);
                transfers = transfers.saturating_add(here);
            }
        }
        marked.push((opens - before, file.path.as_str()));
    }
    if opens <= MANY {
        return;
    }
    let evidence = format!(
        "the same files are opened {} times for {} transfers",
        text::count(opens),
        text::count(transfers)
    );
    let change = "keep the file open between the accesses";
    let finding = Finding::new("reopened-files", Severity::Warn, evidence, change).naming(marked);
    findings.push(finding.saving(job.per_rank(2.0 * opens as f64 * job.rates.name_seconds)));
}

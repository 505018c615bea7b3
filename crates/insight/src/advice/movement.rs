//! Tiers, the backing store, and waits: what only the file system can see.

use super::{Finding, Severity, percent, share};
use crate::profile::{Disturbance, JobProfile};
use crate::text;

pub(super) fn advise(job: &JobProfile, findings: &mut Vec<Finding>) {
    cold_reads(job, findings);
    failed_accesses(job, findings);
    dirty_at_end(job, findings);
    admission(job, findings);
    never_promoted(job, findings);
    remote_reads(job, findings);
    shares(job, findings);
    disturbed(job, findings);
    moved_beside(job, findings);
    repaired(job, findings);
    damaged(job, findings);
    thrashing(job, findings);
}

/// Over a tenth of the bytes that were read came from the backing store.
fn cold_reads(job: &JobProfile, findings: &mut Vec<Finding>) {
    let tiers = job.read_tiers;
    if share(tiers.backing as f64, tiers.all() as f64) <= 0.1 {
        return;
    }
    let evidence = format!(
        "{} of {} read ({}) were fetched from the backing store while the program waited {}",
        text::bytes(tiers.backing),
        text::bytes(tiers.all()),
        percent(tiers.backing as f64, tiers.all() as f64),
        text::seconds(job.per_rank(job.waits.backing))
    );
    let change = "fetch the input before the program begins: forebay stage in";
    let local = share(tiers.backing as f64, job.rates.local_bytes);
    let saved = match job.rates.local_bytes > 0.0 {
        true => job.per_rank(job.waits.backing - local),
        false => 0.0,
    };
    let marked =
        job.files.iter().map(|file| (file.read_tiers.backing, file.path.as_str())).collect();
    findings.push(
        Finding::new("cold-reads", Severity::High, evidence, change).saving(saved).naming(marked),
    );
}

/// Accesses to the backing store failed.
fn failed_accesses(job: &JobProfile, findings: &mut Vec<Finding>) {
    let (reads, writes) = (&job.backing_reads, &job.backing_writes);
    if reads.failed + writes.failed == 0 {
        return;
    }
    let evidence = format!(
        "{} of {} reads of the backing store and {} of {} writes failed",
        text::count(reads.failed),
        text::count(reads.number),
        text::count(writes.failed),
        text::count(writes.number)
    );
    let change =
        "see why: forebay status has failures of writeback, the logs of the daemons those of reads";
    findings.push(Finding::new("backing-failures", Severity::High, evidence, change));
}

/// Files were not in the backing store when the job ended.
fn dirty_at_end(job: &JobProfile, findings: &mut Vec<Finding>) {
    let backing = job.backing;
    if backing.dirty_files == 0 || !job.is_complete {
        return;
    }
    let evidence = format!(
        "{} files ({}) were not in the backing store when the program ended",
        text::count(backing.dirty_files),
        text::bytes(backing.dirty_bytes)
    );
    let change = "keep the instance until they are written back (forebay stop waits for that), or write \
                  them back when they are closed (--writeback close)";
    findings.push(Finding::new("dirty-at-end", Severity::Info, evidence, change));
}

/// Ranks wait for space for over a hundredth of the run time.
fn admission(job: &JobProfile, findings: &mut Vec<Finding>) {
    let waited = job.per_rank(job.waits.admission);
    if share(waited, job.seconds) <= 0.01 {
        return;
    }
    let evidence = format!(
        "each rank waits {} ({} of the run time) until there is space for what it writes",
        text::seconds(waited),
        percent(waited, job.seconds)
    );
    let change = "give the instance more memory or SSD (--memory, --ssd), or more hosts";
    findings.push(Finding::new("waits-for-space", Severity::High, evidence, change).saving(waited));
}

/// A file was read three times over, never from memory.
fn never_promoted(job: &JobProfile, findings: &mut Vec<Finding>) {
    let mut marked = Vec::new();
    let mut bytes = 0_u64;
    for file in &job.files {
        let tiers = file.read_tiers;
        let slow = tiers.ssd.saturating_add(tiers.backing);
        if file.size > 0 && tiers.memory == 0 && slow / file.size >= 3 {
            marked.push((slow, file.path.as_str()));
            bytes = bytes.saturating_add(slow);
        }
    }
    if marked.is_empty() {
        return;
    }
    let evidence = format!(
        "{} files are read three times or more, {} from SSD or backing store, never from memory",
        text::count(marked.len() as u64),
        text::bytes(bytes)
    );
    let change =
        "bring them into memory before (forebay stage in --tier memory), or give it more memory";
    findings.push(Finding::new("never-in-memory", Severity::Warn, evidence, change).naming(marked));
}

/// Over three tenths of the bytes that were read came from other hosts.
fn remote_reads(job: &JobProfile, findings: &mut Vec<Finding>) {
    let tiers = job.read_tiers;
    if share(tiers.remote as f64, tiers.all() as f64) <= 0.3 {
        return;
    }
    let evidence = format!(
        "{} of {} read ({}) came from memory of other hosts",
        text::bytes(tiers.remote),
        text::bytes(tiers.all()),
        percent(tiers.remote as f64, tiers.all() as f64)
    );
    let change = "let the rank that wrote a file read it, or start with --placement local";
    let reads = job.reads();
    let remote = reads.seconds * share(tiers.remote as f64, tiers.all() as f64);
    let saved = if job.rates.local_bytes > 0.0 {
        remote - tiers.remote as f64 / job.rates.local_bytes
    } else {
        0.0
    };
    let marked =
        job.files.iter().map(|file| (file.read_tiers.remote, file.path.as_str())).collect();
    let finding = Finding::new("remote-reads", Severity::Warn, evidence, change);
    findings.push(finding.saving(job.per_rank(saved)).naming(marked));
}

/// The job got less than its share, or was held back for over half of its I/O time.
fn shares(job: &JobProfile, findings: &mut Vec<Finding>) {
    if let Some(got) = job.share.filter(|got| *got < 0.8) {
        let evidence =
            format!("the job got {:.0} % of its fair share of the instance", 100.0 * got);
        let change =
            "see forebay top for the job that takes more, and ask your administrator for a weight";
        // Where others disturbed it, for that time.
        let disturbed = job.disturbances.iter().map(|one| one.seconds).fold(0.0, f64::max);
        let all = job.per_rank(job.io_seconds());
        let lasting = if disturbed > 0.0 { disturbed.min(all) } else { all };
        let saved = lasting * (1.0 - got.max(0.0));
        findings
            .push(Finding::new("below-its-share", Severity::High, evidence, change).saving(saved));
    }
    if share(job.waits.throttled, job.io_seconds()) > 0.5 {
        let evidence = format!(
            "{} of the I/O time is spent held back by a limit",
            percent(job.waits.throttled, job.io_seconds())
        );
        let change = "raise the limit of this class, or move less";
        let saved = job.per_rank(job.waits.throttled);
        findings.push(Finding::new("held-back", Severity::Warn, evidence, change).saving(saved));
    }
}

/// Another job that began on the same host made it twice as slow (`interference`).
fn disturbed(job: &JobProfile, findings: &mut Vec<Finding>) {
    let Some(worst) = job.disturbances.iter().max_by(|a, b| lost(a).total_cmp(&lost(b))) else {
        return;
    };
    let evidence = format!(
        "for {} a byte took up to {:.1} times as long as before on {}, while job {} moved {}/s there",
        text::seconds(worst.seconds),
        worst.slowdown,
        worst.host,
        worst.by,
        text::bytes(worst.by_bytes_per_second as u64)
    );
    let change = "run them at other times or on other hosts, or share by a rule (forebay qos)";
    let saved = job.disturbances.iter().map(lost).fold(0.0, f64::max);
    let finding = Finding::new("disturbed-by-job", Severity::High, evidence, change);
    findings.push(finding.saving(saved));
}

/// Seconds that the job lost to another.
fn lost(one: &Disturbance) -> f64 {
    one.seconds * (1.0 - share(1.0, one.slowdown.max(1.0)))
}

/// Writeback took over three tenths of the bytes that moved while the job did I/O.
fn moved_beside(job: &JobProfile, findings: &mut Vec<Finding>) {
    let own = (job.reads().bytes as f64) + (job.writes().bytes as f64);
    let beside = job.backing.written_beside as f64;
    if share(beside, beside + own) <= 0.3 {
        return;
    }
    let evidence = format!(
        "writeback moved {} while the program itself moved {}",
        text::bytes(job.backing.written_beside),
        text::bytes(own as u64)
    );
    let change = "write back at the end (--writeback end), or bound it (--backing-rate)";
    findings.push(Finding::new("writeback-beside", Severity::Info, evidence, change));
}

/// Data was damaged and repaired.
fn repaired(job: &JobProfile, findings: &mut Vec<Finding>) {
    if job.backing.repaired == 0 {
        return;
    }
    let evidence = format!(
        "{} damaged parts of files were found, and read again from the backing store",
        text::count(job.backing.repaired)
    );
    let change = "tell your administrator: a device or memory of these hosts damages data";
    findings.push(Finding::new("repaired-data", Severity::High, evidence, change));
}

/// Data was damaged that is nowhere else.
fn damaged(job: &JobProfile, findings: &mut Vec<Finding>) {
    if job.backing.damaged == 0 {
        return;
    }
    let evidence = format!(
        "{} parts of files are damaged, and nothing else has them",
        text::count(job.backing.damaged)
    );
    let change = "write these files again (forebay lost lists them), and tell your administrator";
    findings.push(Finding::new("damaged-data", Severity::High, evidence, change));
}

/// The tiers were too small for the working set (cache thrashing, `data::backing::thrashing`).
fn thrashing(job: &JobProfile, findings: &mut Vec<Finding>) {
    let Some(found) = job.thrashing else { return };
    let (evidence, change) = found.texts();
    // Of the time that reads took beyond that of local ones, the part for data that was here.
    let reads = job.reads();
    let saved = match job.rates.local_bytes > 0.0 {
        true => reads.seconds - reads.bytes as f64 / job.rates.local_bytes,
        false => 0.0,
    };
    let saved = job.per_rank(saved * share(found.refetched as f64, found.fetched as f64));
    let finding = Finding::new("thrashing", Severity::High, evidence, &change);
    findings.push(finding.saving(saved));
}

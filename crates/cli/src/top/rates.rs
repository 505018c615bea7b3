//! Rates: what changed between two samples.

use super::sample::{DaemonLine, Sample};
use crate::instance::inspect::copies::CopiesState;
use crate::instance::jobs;
use crate::instance::shares::JobShare;
use crate::instance::thrashing::ThrashingDaemon;
use config::activity::{JobSummary, ProcessProfile};
use serde::Serialize;
use std::collections::BTreeMap;

/// The whole instance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Totals {
    /// Seconds between the samples.
    pub(crate) seconds: f64,
    /// Daemons.
    pub(crate) daemons: u64,
    /// Daemons that do not answer.
    pub(crate) silent: u64,
    /// Bytes of memory for files.
    pub(crate) memory_total: u64,
    /// Bytes of it in use.
    pub(crate) memory_used: u64,
    /// Bytes of SSDs for files.
    pub(crate) ssd_total: u64,
    /// Bytes of them in use.
    pub(crate) ssd_used: u64,
    /// Bytes that the backing store does not have, as far as known.
    pub(crate) dirty_bytes: u64,
    /// Seconds until they are written back at the present rate; `None`: nothing is written now.
    pub(crate) dirty_eta_seconds: Option<f64>,
    /// Writes that wait for space.
    pub(crate) writers_waiting: u64,
    /// Its rates.
    #[serde(flatten)]
    pub(crate) throughput: Throughput,
}

/// Operations and bytes of a job, a process, a file, or of all, in a second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Throughput {
    /// Operations; of a file, its reads and writes.
    pub(crate) operations_per_second: f64,
    /// Bytes read.
    pub(crate) read_bytes_per_second: f64,
    /// Bytes written.
    pub(crate) written_bytes_per_second: f64,
}

/// One job.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct JobRates {
    /// Its name.
    pub(crate) job: String,
    /// Processes that run.
    pub(crate) running: u64,
    /// All its processes.
    pub(crate) processes: u64,
    /// Its rates.
    #[serde(flatten)]
    pub(crate) throughput: Throughput,
    /// Bytes read since it began.
    pub(crate) bytes_read: u64,
    /// Bytes written since it began.
    pub(crate) bytes_written: u64,
}

/// One daemon.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct DaemonRates {
    /// Its host; empty: this host.
    pub(crate) host: String,
    /// Its number.
    pub(crate) index: u16,
    /// False: it is dead or does not answer, and all numbers are 0.
    pub(crate) answers: bool,
    /// Requests per second.
    pub(crate) requests_per_second: f64,
    /// Bytes of memory for files.
    pub(crate) memory_total: u64,
    /// Bytes of it in use.
    pub(crate) memory_used: u64,
    /// Bytes of its SSD for files.
    pub(crate) ssd_total: u64,
    /// Bytes of it in use.
    pub(crate) ssd_used: u64,
    /// Bytes demoted to the SSD per second.
    pub(crate) demoted_bytes_per_second: f64,
    /// Bytes promoted from the SSD per second.
    pub(crate) promoted_bytes_per_second: f64,
    /// Writes that wait for space.
    pub(crate) writers_waiting: u64,
}

/// One process of the job that is looked at.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct ProcessRates {
    /// Its host.
    pub(crate) host: String,
    /// Its pid; 0: several processes.
    pub(crate) pid: u32,
    /// Its rank.
    pub(crate) rank: Option<u32>,
    /// Its program.
    pub(crate) program: String,
    /// True: it has not ended.
    pub(crate) runs: bool,
    /// Its rates.
    #[serde(flatten)]
    pub(crate) throughput: Throughput,
}

/// One file of the job that is looked at.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct FileRates {
    /// Its path, or its inode number.
    pub(crate) path: String,
    /// Processes that used it.
    pub(crate) processes: u64,
    /// Its rates.
    #[serde(flatten)]
    pub(crate) throughput: Throughput,
    /// Bytes read since the job began.
    pub(crate) bytes_read: u64,
    /// Bytes written since the job began.
    pub(crate) bytes_written: u64,
}

/// The rates of two samples.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Rates {
    /// The whole instance.
    pub(crate) totals: Totals,
    /// Its jobs.
    pub(crate) jobs: Vec<JobRates>,
    /// Its daemons.
    pub(crate) daemons: Vec<DaemonRates>,
    /// Copies of file data.
    pub(crate) copies: CopiesState,
    /// A line for each thing that is wrong.
    #[serde(skip)]
    pub(crate) problems: Vec<String>,
    /// Processes of the job that was asked for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) processes: Vec<ProcessRates>,
    /// Its files.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) files: Vec<FileRates>,
}

/// Gives the rates of two samples.
pub(crate) fn between(before: &Sample, now: &Sample) -> Rates {
    let seconds = now.at.saturating_duration_since(before.at).as_secs_f64();
    // A counter that began anew, after a restart, has no rate in this interval.
    let rate = |then: u64, now: u64| match seconds > 0.0 {
        true => now.saturating_sub(then) as f64 / seconds,
        false => 0.0,
    };
    let jobs: Vec<JobRates> = now.jobs.iter().map(|job| job_rates(job, before, &rate)).collect();
    let daemons: Vec<DaemonRates> =
        now.daemons.iter().map(|daemon| daemon_rates(daemon, before, &rate)).collect();
    let processes = process_rates(before, now, &rate);
    let files = file_rates(before, now, &rate);
    let mut totals = totals(&jobs, &daemons);
    totals.seconds = seconds;
    if let Some(writeback) = &now.writeback {
        let written = before.writeback.as_ref().map_or(0, |one| one.bytes_written);
        let written = rate(written, writeback.bytes_written);
        totals.dirty_bytes = writeback.bytes_dirty;
        totals.dirty_eta_seconds = (writeback.bytes_dirty == 0 || written > 0.0).then(|| {
            if writeback.bytes_dirty == 0 { 0.0 } else { writeback.bytes_dirty as f64 / written }
        });
    }
    let thrashing = now.thrashing.iter().map(ThrashingDaemon::line);
    let copies = CopiesState::of(now.daemons.iter().filter_map(|one| one.metrics.as_ref()));
    let problems = now.silent.iter().cloned().chain(copies.problem()).chain(thrashing);
    let problems = problems.chain(now.shares.iter().filter_map(JobShare::line)).collect();
    Rates { totals, jobs, daemons, copies, problems, processes, files }
}

fn totals(jobs: &[JobRates], daemons: &[DaemonRates]) -> Totals {
    let mut sum = Totals { daemons: daemons.len() as u64, ..Totals::default() };
    for job in jobs {
        sum.throughput.operations_per_second += job.throughput.operations_per_second;
        sum.throughput.read_bytes_per_second += job.throughput.read_bytes_per_second;
        sum.throughput.written_bytes_per_second += job.throughput.written_bytes_per_second;
    }
    for daemon in daemons {
        sum.silent += u64::from(!daemon.answers);
        sum.memory_total = sum.memory_total.saturating_add(daemon.memory_total);
        sum.memory_used = sum.memory_used.saturating_add(daemon.memory_used);
        sum.ssd_total = sum.ssd_total.saturating_add(daemon.ssd_total);
        sum.ssd_used = sum.ssd_used.saturating_add(daemon.ssd_used);
        sum.writers_waiting = sum.writers_waiting.saturating_add(daemon.writers_waiting);
    }
    sum
}

fn job_rates(job: &JobSummary, before: &Sample, rate: &impl Fn(u64, u64) -> f64) -> JobRates {
    // A job that began since is counted from 0.
    let none = JobSummary::default();
    let then = before
        .jobs
        .iter()
        .find(|one| one.job == job.job && one.began == job.began)
        .unwrap_or(&none);
    JobRates {
        job: job.job.clone(),
        running: job.running,
        processes: job.processes,
        throughput: Throughput {
            operations_per_second: rate(then.operations, job.operations),
            read_bytes_per_second: rate(then.bytes_read, job.bytes_read),
            written_bytes_per_second: rate(then.bytes_written, job.bytes_written),
        },
        bytes_read: job.bytes_read,
        bytes_written: job.bytes_written,
    }
}

fn daemon_rates(
    daemon: &DaemonLine,
    before: &Sample,
    rate: &impl Fn(u64, u64) -> f64,
) -> DaemonRates {
    let is_same = |one: &&DaemonLine| one.index == daemon.index && one.host == daemon.host;
    let then = before.daemons.iter().find(is_same).and_then(|one| one.metrics);
    let now = daemon.metrics.unwrap_or_default();
    // Without an earlier answer its counters have no rate.
    let then = then.unwrap_or(now);
    DaemonRates {
        host: daemon.host.clone(),
        index: daemon.index,
        answers: daemon.metrics.is_some(),
        requests_per_second: rate(then.requests, now.requests),
        memory_total: now.memory_total,
        memory_used: now.memory_total.saturating_sub(now.memory_free),
        ssd_total: now.ssd_total,
        ssd_used: now.ssd_total.saturating_sub(now.ssd_free),
        demoted_bytes_per_second: rate(then.bytes_demoted, now.bytes_demoted),
        promoted_bytes_per_second: rate(then.bytes_promoted, now.bytes_promoted),
        writers_waiting: now.writers_waiting,
    }
}

/// Operations, bytes read and bytes written of each process of a profile.
fn counts(sample: &Sample) -> Vec<(&ProcessProfile, [u64; 3])> {
    let Some(job) = &sample.job else { return Vec::new() };
    let mut all: Vec<(&ProcessProfile, [u64; 3])> = Vec::new();
    for process in &job.processes {
        let mut operations = process.operations;
        let number =
            operations.all_mut().iter().map(|class| class.number).fold(0, u64::saturating_add);
        all.push((process, [number, process.other_reads.bytes, process.other_writes.bytes]));
    }
    for file in &job.files {
        if let Some((_, [_, read, written])) = all.get_mut(file.process) {
            *read = read.saturating_add(file.reads.bytes);
            *written = written.saturating_add(file.writes.bytes);
        }
    }
    all
}

fn process_rates(
    before: &Sample,
    now: &Sample,
    rate: &impl Fn(u64, u64) -> f64,
) -> Vec<ProcessRates> {
    let then = counts(before);
    let is_same = |one: &ProcessProfile, other: &ProcessProfile| {
        (one.pid, one.began, one.by, &one.host) == (other.pid, other.began, other.by, &other.host)
    };
    let each = counts(now).into_iter().map(|(process, numbers)| {
        let known = then.iter().find(|(one, _)| is_same(one, process));
        // The processes of a job that was just chosen have no earlier sample.
        let [operations, read, written] = known.map_or(numbers, |(_, numbers)| *numbers);
        ProcessRates {
            host: process.host.clone(),
            pid: process.pid,
            rank: process.rank,
            program: process.program.clone(),
            runs: process.ended.is_none(),
            throughput: Throughput {
                operations_per_second: rate(operations, numbers[0]),
                read_bytes_per_second: rate(read, numbers[1]),
                written_bytes_per_second: rate(written, numbers[2]),
            },
        }
    });
    each.collect()
}

/// Processes, transfers, bytes read and bytes written of each file, by inode number.
fn file_counts(sample: &Sample) -> BTreeMap<u64, [u64; 4]> {
    let mut all: BTreeMap<u64, [u64; 4]> = BTreeMap::new();
    for file in sample.job.iter().flat_map(|job| &job.files) {
        let (reads, writes) = (&file.reads, &file.writes);
        let more = [1, reads.number.saturating_add(writes.number), reads.bytes, writes.bytes];
        let sums = all.entry(file.inode).or_default();
        for (sum, one) in sums.iter_mut().zip(more) {
            *sum = sum.saturating_add(one);
        }
    }
    all
}

fn file_rates(before: &Sample, now: &Sample, rate: &impl Fn(u64, u64) -> f64) -> Vec<FileRates> {
    let then = file_counts(before);
    let names = jobs::names_of(now.job.iter().flat_map(|job| &job.files));
    let each = file_counts(now).into_iter().map(|(inode, counts)| {
        // A file of a job that was just chosen has no earlier sample; one that is new began at 0.
        let known = match before.job.is_some() {
            true => then.get(&inode).copied().unwrap_or_default(),
            false => counts,
        };
        FileRates {
            path: names.get(&inode).cloned().unwrap_or_default(),
            processes: counts[0],
            throughput: Throughput {
                operations_per_second: rate(known[1], counts[1]),
                read_bytes_per_second: rate(known[2], counts[2]),
                written_bytes_per_second: rate(known[3], counts[3]),
            },
            bytes_read: counts[2],
            bytes_written: counts[3],
        }
    });
    each.collect()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use config::activity::{FileProfile, JobProfile, Transfers};
    use config::metrics::{DaemonSample, WritebackSample};
    use std::time::{Duration, Instant};

    /// A sample `seconds` after the first, of an instance with one daemon and one job.
    pub(crate) fn sample(begin: Instant, seconds: u64) -> Sample {
        let mut process =
            ProcessProfile { pid: 7, rank: Some(3), program: "sim".into(), ..Default::default() };
        process.operations.write.number = 10 * seconds;
        process.other_writes.bytes = 1000 * seconds;
        let reads = Transfers { number: seconds, bytes: 50 * seconds, ..Transfers::default() };
        let path = Some("/d/f".to_owned());
        let file = FileProfile { inode: 5, path, reads, ..FileProfile::default() };
        let other = FileProfile { inode: 6, process: 0, reads, ..FileProfile::default() };
        let metrics = DaemonSample {
            memory_total: 100,
            memory_free: 40,
            requests: 50 * seconds,
            writers_waiting: 2,
            ..DaemonSample::default()
        };
        Sample {
            at: begin + Duration::from_secs(seconds),
            daemons: vec![
                DaemonLine { index: 0, metrics: Some(metrics), ..DaemonLine::default() },
                DaemonLine { index: 1, ..DaemonLine::default() },
            ],
            slow_targets: Vec::new(),
            thrashing: Vec::new(),
            jobs: vec![JobSummary {
                job: "4711".into(),
                processes: 1,
                running: 1,
                operations: 10 * seconds,
                bytes_written: 1000 * seconds,
                ..JobSummary::default()
            }],
            job: Some(JobProfile {
                processes: vec![process],
                files: vec![file, other],
                ..JobProfile::default()
            }),
            shares: Vec::new(),
            silent: Vec::new(),
            writeback: Some(WritebackSample {
                bytes_dirty: 500,
                bytes_written: 50 * seconds,
                ..WritebackSample::default()
            }),
        }
    }

    #[test]
    fn rates_are_differences_by_time() {
        let begin = Instant::now();
        let rates = between(&sample(begin, 1), &sample(begin, 3));
        assert_eq!((rates.totals.seconds, rates.totals.daemons, rates.totals.silent), (2.0, 2, 1));
        assert_eq!((rates.totals.memory_used, rates.totals.writers_waiting), (60, 2));
        assert_eq!((rates.totals.dirty_bytes, rates.totals.dirty_eta_seconds), (500, Some(10.0)));
        assert_eq!(rates.jobs[0].throughput.written_bytes_per_second, 1000.0);
        assert_eq!(rates.daemons[0].requests_per_second, 50.0);
        assert!(!rates.daemons[1].answers);
        assert_eq!(rates.processes[0].throughput.operations_per_second, 10.0);
        let [file, other] = rates.files.as_slice() else { panic!("two files") };
        assert_eq!((file.path.as_str(), other.path.as_str()), ("/d/f", "inode 6"));
        assert_eq!(
            (file.throughput.read_bytes_per_second, file.bytes_read, file.processes),
            (50.0, 150, 1)
        );
    }

    #[test]
    fn what_began_anew_has_no_rate_and_nothing_is_divided_by_zero() {
        let begin = Instant::now();
        let (early, late) = (sample(begin, 1), sample(begin, 9));
        let backwards = between(&late, &early);
        assert_eq!(backwards.jobs[0].throughput.operations_per_second, 0.0);
        let at_once = between(&early, &early);
        assert_eq!(at_once.totals.throughput.operations_per_second, 0.0);
        assert_eq!(at_once.totals.dirty_eta_seconds, None);
        // A daemon that answers for the first time, and a new job.
        let mut silent = early.clone();
        silent.daemons[0].metrics = None;
        silent.jobs.clear();
        silent.job = None;
        let rates = between(&silent, &late);
        assert_eq!(rates.daemons[0].requests_per_second, 0.0);
        assert_eq!(rates.jobs[0].throughput.written_bytes_per_second, 9000.0 / 8.0);
        assert_eq!(rates.processes[0].throughput.written_bytes_per_second, 0.0);
        assert_eq!(rates.files[0].throughput.read_bytes_per_second, 0.0);
        let mut no_files = early.clone();
        no_files.job = Some(JobProfile::default());
        assert_eq!(
            between(&no_files, &late).files[0].throughput.read_bytes_per_second,
            450.0 / 8.0
        );
        let mut clean = late.clone();
        clean.writeback = Some(WritebackSample::default());
        assert_eq!(between(&early, &clean).totals.dirty_eta_seconds, Some(0.0));
    }
}

//! One look at the instance: the answers of its daemons, the writeback daemon, and the counters of
//! jobs.

use crate::failure::{Failure, Result};
use crate::instance::jobs::{self, HostAnswers};
use crate::instance::overview::{self, DeadWriteback, Overview};
use crate::instance::recorder;
use crate::top::rates::Throughput;
use crate::top::sample::Sample;
use config::activity::{JobSummary, MeasuredRates};
use insight::interference::Moved;
use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Counters of jobs, of all hosts.
#[derive(Debug, Default)]
pub(super) struct JobCounts {
    /// All jobs; those that run are last.
    pub(super) jobs: Vec<JobSummary>,
    /// Operations, bytes read and bytes written of each host.
    pub(super) hosts: BTreeMap<String, [u64; 3]>,
    /// Bytes that each job moved on each host, and the nanoseconds of that.
    pub(super) moved: BTreeMap<String, BTreeMap<String, [u64; 2]>>,
    /// Times of operations.
    pub(super) times: MeasuredRates,
    /// Jobs that the daemons forgot, because there were too many.
    pub(super) forgotten: u64,
}

/// One look at the instance.
#[derive(Debug)]
pub(super) struct Look {
    /// Milliseconds since 1970.
    pub(super) at_ms: u64,
    /// The daemons, the mounts and the writeback.
    pub(super) overview: Overview,
    /// The jobs, or why they are not known: the home daemon of a host does not answer.
    pub(super) jobs: std::result::Result<JobCounts, String>,
    /// The part of it from which rates are computed.
    pub(super) sample: Sample,
    /// The instance was being stopped: what is dead was meant to be.
    pub(super) is_stopping: bool,
}

/// Operations and bytes of the programs of a host, in a second.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct HostRates {
    /// Its name.
    pub(super) host: String,
    /// Its rates.
    pub(super) throughput: Throughput,
}

/// The time of day.
pub(super) fn now_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}

/// Looks at the instance `name`. It changes nothing.
///
/// # Errors
/// There is no such instance, or its records cannot be read.
pub(super) fn take(name: &str, timeout: Duration) -> Result<Look> {
    let is_stopping = recorder::is_stopping(name);
    let overview = overview::take(name, timeout, DeadWriteback::Leave)?;
    // Sums without a host, whose counters come back later, would be no figures of jobs.
    let answers = jobs::by_host(name, timeout).and_then(|(answers, silent)| match silent.first() {
        Some(why) => Err(Failure::new(why.clone())),
        None => Ok(answers),
    });
    // A stop may have begun since, and be over, too.
    let is_stopping = is_stopping || recorder::is_stopping(name);
    Ok(Look { is_stopping, ..Look::new(overview, answers) })
}

impl Look {
    /// The look that these answers give.
    pub(super) fn new(overview: Overview, answers: Result<HostAnswers>) -> Look {
        let jobs = answers.map(counts).map_err(|failure| failure.text().to_owned());
        let known = jobs.as_ref().map(|counts| counts.jobs.clone()).unwrap_or_default();
        let sample = Sample::of(&overview, known, None);
        Look { at_ms: now_ms(), overview, jobs, sample, is_stopping: false }
    }

    /// True if a daemon lives, or one may: its host does not answer.
    pub(super) fn has_daemon(&self) -> bool {
        let mut daemons = self.overview.inspection.daemons.iter();
        daemons.any(|one| one.is_alive() != Some(false))
    }

    /// Bytes that each job moved on each host since `before`, and the time of that; nothing of a
    /// host that was not known then.
    pub(super) fn moved_since(&self, before: &Look) -> BTreeMap<&str, BTreeMap<String, Moved>> {
        let (Ok(then), Ok(now)) = (&before.jobs, &self.jobs) else { return BTreeMap::new() };
        let mut all = BTreeMap::new();
        for (host, jobs) in &now.moved {
            let Some(known) = then.moved.get(host) else { continue };
            let of = |(job, [bytes, nanos]): (&String, &[u64; 2])| {
                // A job that is new since began at 0.
                let [bytes_then, nanos_then] = known.get(job).copied().unwrap_or_default();
                let bytes = bytes.saturating_sub(bytes_then) as f64;
                let seconds = nanos.saturating_sub(nanos_then) as f64 / 1e9;
                (job.clone(), Moved { bytes, seconds })
            };
            all.insert(host.as_str(), jobs.iter().map(of).collect());
        }
        all
    }

    /// The rates of each host since `before`; `None`: they are not known.
    pub(super) fn host_rates(&self, before: &Look) -> Option<Vec<HostRates>> {
        let (then, now) = (before.jobs.as_ref().ok()?, self.jobs.as_ref().ok()?);
        let seconds = self.sample.at.saturating_duration_since(before.sample.at).as_secs_f64();
        let rate = |then: u64, now: u64| match seconds > 0.0 {
            true => now.saturating_sub(then) as f64 / seconds,
            false => 0.0,
        };
        let each = now.hosts.iter().map(|(host, [operations, read, written])| {
            // A host that is new since has no rate yet.
            let before = then.hosts.get(host).copied().unwrap_or([*operations, *read, *written]);
            let throughput = Throughput {
                operations_per_second: rate(before[0], *operations),
                read_bytes_per_second: rate(before[1], *read),
                written_bytes_per_second: rate(before[2], *written),
            };
            HostRates { host: host.clone(), throughput }
        });
        Some(each.collect())
    }
}

fn counts(answers: HostAnswers) -> JobCounts {
    let mut counts = JobCounts {
        jobs: jobs::merged(answers.iter().map(|(_, answer)| answer)),
        ..JobCounts::default()
    };
    for (host, answer) in answers {
        counts.times = counts.times.best(answer.rates);
        counts.forgotten = counts.forgotten.saturating_add(answer.forgotten);
        let moved = answer.jobs.iter().filter(|job| !job.job.is_empty()).map(|job| {
            let bytes = job.bytes_read.saturating_add(job.bytes_written);
            (job.job.clone(), [bytes, job.transfer_nanos])
        });
        counts.moved.insert(host.clone(), moved.collect());
        let sums = counts.hosts.entry(host).or_default();
        for job in &answer.jobs {
            let figures = [job.operations, job.bytes_read, job.bytes_written];
            for (sum, figure) in sums.iter_mut().zip(figures) {
                *sum = sum.saturating_add(figure);
            }
        }
    }
    counts
}

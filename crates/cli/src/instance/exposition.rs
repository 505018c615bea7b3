//! The metrics of an instance as text for Prometheus.
//!
//! The number of series is bounded, however many jobs there are: the jobs with the most bytes have a row
//! each, and all others one together.

use crate::instance::inspect::DaemonReport;
use crate::instance::overview::Overview;
use clap::{Arg, ArgMatches, value_parser};
use config::activity::JobSummary;
use config::metrics::{DAEMON, JOB, JobSample, Series, WRITEBACK, exposition};

/// Jobs with rows of their own, if the command does not say how many.
pub(crate) const TOP_JOBS: usize = 10;
/// The name of the row of all other jobs. A job with this name is one of them.
const OTHER: &str = "other";

/// The option that says how many jobs have rows of their own.
pub(crate) fn top_jobs_option() -> Arg {
    Arg::new("top-jobs")
        .long("top-jobs")
        .value_name("N")
        .value_parser(value_parser!(u16).range(0..=1000))
        .default_value(TOP_JOBS.to_string())
        .help("Jobs with metrics of their own for Prometheus; all others are one")
}

/// How many jobs have rows of their own.
pub(crate) fn top_jobs(given: &ArgMatches) -> usize {
    given.get_one::<u16>("top-jobs").map_or(TOP_JOBS, |count| usize::from(*count))
}

/// The metrics of the daemons that answer, of the writeback daemon, and of jobs.
pub(crate) fn text(overview: &Overview, jobs: &[JobSummary], top: usize) -> String {
    let here = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let labels = |host: &str| {
        let host = if host.is_empty() { here.trim_end() } else { host };
        vec![("instance", overview.name.clone()), ("host", host.to_owned())]
    };
    let daemons = overview.inspection.daemons.iter().filter_map(|one: &DaemonReport| {
        let mut labels = labels(&one.host);
        labels.push(("daemon", one.daemon.index.to_string()));
        Some(Series { labels, values: one.status()?.metrics.in_order() })
    });
    let writeback = overview
        .writeback
        .as_ref()
        .map(|report| Series { labels: labels(""), values: report.metrics.in_order() });
    let jobs = job_rows(jobs, top).into_iter().map(|(name, values)| Series {
        labels: vec![("instance", overview.name.clone()), ("job_name", name)],
        values: values.in_order(),
    });
    exposition(&DAEMON, &daemons.collect::<Vec<_>>())
        + &exposition(&WRITEBACK, writeback.as_slice())
        + &exposition(&JOB, &jobs.collect::<Vec<_>>())
}

/// The jobs with the most bytes, those that run first, and all others together.
fn job_rows(jobs: &[JobSummary], top: usize) -> Vec<(String, JobSample)> {
    let mut all: Vec<&JobSummary> = jobs.iter().collect();
    let bytes = |job: &JobSummary| job.bytes_read.saturating_add(job.bytes_written);
    all.sort_by(|a, b| {
        let running = (b.running > 0).cmp(&(a.running > 0));
        running.then(bytes(b).cmp(&bytes(a))).then(a.job.cmp(&b.job))
    });
    let (mut rows, mut other) = (Vec::new(), JobSample::default());
    for job in all {
        let values = JobSample {
            running: job.running,
            operations: job.operations,
            bytes_read: job.bytes_read,
            bytes_written: job.bytes_written,
            transfer_us: job.transfer_nanos / 1000,
        };
        // Processes of no job have no name.
        match rows.len() < top && !job.job.is_empty() && job.job != OTHER {
            true => rows.push((job.job.clone(), values)),
            false => other.add(&values),
        }
    }
    rows.push((OTHER.to_owned(), other));
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_series_is_bounded_and_nothing_is_left_out() {
        let job = |number: u64| JobSummary {
            job: match number {
                0 => String::new(),
                1 => OTHER.to_owned(),
                _ => format!("job {number}"),
            },
            bytes_read: number,
            running: u64::from(number == 5),
            ..JobSummary::default()
        };
        let jobs: Vec<JobSummary> = (0..10_000).map(job).collect();
        for top in [0, 1, 10, 1000] {
            let rows = job_rows(&jobs, top);
            assert_eq!(rows.len(), top + 1);
            let sum: u64 = rows.iter().map(|(_, values)| values.bytes_read).sum();
            assert_eq!((sum, rows[top].0.as_str()), (9999 * 5000, OTHER));
        }
        let rows = job_rows(&jobs, 2);
        assert_eq!([&*rows[0].0, &*rows[1].0], ["job 5", "job 9999"], "one that runs comes first");
        // All jobs have rows, except those without a name of their own.
        let rows = job_rows(&jobs[..3], 10);
        assert_eq!((rows.len(), rows[1].1.bytes_read), (2, 1));
    }
}

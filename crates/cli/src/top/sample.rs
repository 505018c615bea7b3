//! The state of an instance at one moment.

use crate::failure::Result;
use crate::instance::inspect::{DaemonReport, slow_targets};
use crate::instance::jobs::{self, SilentHosts};
use crate::instance::overview::{self, DeadWriteback, Overview};
use crate::instance::shares::{self, JobShare};
use crate::instance::thrashing::{self, ThrashingDaemon};
use config::activity::{JobProfile, JobSummary};
use config::control::SlowTarget;
use config::metrics::{DaemonSample, WritebackSample};
use std::time::{Duration, Instant};

/// One daemon of a sample.
#[derive(Clone, Debug, Default)]
pub(crate) struct DaemonLine {
    /// Its host; empty: this host.
    pub(crate) host: String,
    /// Its number.
    pub(crate) index: u16,
    /// Its metrics; `None`: it is dead or does not answer.
    pub(crate) metrics: Option<DaemonSample>,
}

/// The state of an instance at one moment.
#[derive(Clone, Debug)]
pub(crate) struct Sample {
    /// When it was taken.
    pub(crate) at: Instant,
    /// Its daemons.
    pub(crate) daemons: Vec<DaemonLine>,
    /// The jobs that used it.
    pub(crate) jobs: Vec<JobSummary>,
    /// The processes of the job that was asked for.
    pub(crate) job: Option<JobProfile>,
    /// Targets of pools that are slow.
    pub(crate) slow_targets: Vec<SlowTarget>,
    /// Daemons whose memory and SSD are too small for what is read.
    pub(crate) thrashing: Vec<ThrashingDaemon>,
    /// Shares of jobs on this host.
    pub(crate) shares: Vec<JobShare>,
    /// Hosts of which jobs are not known.
    pub(crate) silent: SilentHosts,
    /// Its writeback, if it has one.
    pub(crate) writeback: Option<WritebackSample>,
}

fn line(report: &DaemonReport) -> DaemonLine {
    let metrics = report.status().map(|status| status.metrics);
    DaemonLine { host: report.host.clone(), index: report.daemon.index, metrics }
}

impl Sample {
    /// The sample of these answers, which came just now.
    pub(crate) fn of(
        overview: &Overview,
        jobs: Vec<JobSummary>,
        job: Option<JobProfile>,
    ) -> Sample {
        let daemons = &overview.inspection.daemons;
        Sample {
            at: Instant::now(),
            daemons: daemons.iter().map(line).collect(),
            slow_targets: slow_targets(daemons),
            thrashing: thrashing::of_now(daemons),
            jobs,
            job,
            shares: Vec::new(),
            silent: Vec::new(),
            writeback: overview.writeback.as_ref().map(|report| report.metrics),
        }
    }
}

/// Takes a sample; `job`: the job whose processes are to be in it.
///
/// # Errors
/// There is no such instance, or none of its daemons answers.
pub(crate) fn take(name: &str, job: Option<&str>, timeout: Duration) -> Result<Sample> {
    let overview = overview::take(name, timeout, DeadWriteback::Leave)?;
    let (jobs, silent) = jobs::list(name, timeout)?;
    let job = match job {
        Some(job) => jobs::counted(name, job, timeout)?.0,
        None => None,
    };
    let shares = shares::of_host(name, timeout);
    Ok(Sample { shares, silent, ..Sample::of(&overview, jobs, job) })
}

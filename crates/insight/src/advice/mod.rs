//! Advice: findings about a job's I/O, each with its evidence, what to change, and the seconds of the
//! job that the change would save.
//!
//! - `volume`: what dominates, and how ranks share the work.
//! - `sizes`: small and misaligned transfers, bytes moved more than once.
//! - `order`: random and consecutive access.
//! - `names`: operations on names and attributes.
//! - `movement`: tiers, the backing store, waits.
//! - `copies`: results with one copy.
//! - `stragglers`: ranks and hosts that are slower than their peers; Beacon's rule.
//!
//! Thresholds are those of Drishti where it has the trigger, so that both tools say the same of one run.

mod copies;
mod movement;
mod names;
mod order;
mod sizes;
mod stragglers;
mod volume;

use crate::profile::JobProfile;
use serde::Serialize;

pub use qos::slow::ACTIVE_BYTES;
pub use stragglers::slow_members;

/// How much a finding matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Something is as it should be.
    Ok,
    /// A fact about the job.
    Info,
    /// Probably worth a change.
    Warn,
    /// Time or data is lost.
    High,
}

impl Severity {
    /// Its name in texts.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Severity::Ok => "ok",
            Severity::Info => "info",
            Severity::Warn => "warn",
            Severity::High => "high",
        }
    }
}

/// One finding.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Finding {
    /// Name of the trigger, stable over versions.
    pub trigger: &'static str,
    /// How much it matters.
    pub severity: Severity,
    /// The figures that made it fire.
    pub evidence: String,
    /// The change to make; empty where nothing is to be changed.
    pub change: String,
    /// Seconds of the job that the change would save, where rates were measured.
    pub saves_seconds: Option<f64>,
    /// Files that show it most, at most `FILES_NAMED`.
    pub files: Vec<String>,
}

/// Files that a finding names at most.
pub const FILES_NAMED: usize = 5;

impl Finding {
    fn new(trigger: &'static str, severity: Severity, evidence: String, change: &str) -> Finding {
        let change = change.to_string();
        Finding { trigger, severity, evidence, change, saves_seconds: None, files: Vec::new() }
    }

    /// With an estimate. `seconds` are of the job; estimates that round to nothing are left out.
    fn saving(mut self, seconds: f64) -> Finding {
        self.saves_seconds = (seconds.is_finite() && seconds >= 0.05).then_some(seconds);
        self
    }

    /// Names the files with the highest marks.
    fn naming(mut self, mut marked: Vec<(u64, &str)>) -> Finding {
        marked.retain(|(mark, _)| *mark > 0);
        marked.sort_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(b.1)));
        self.files = marked.iter().take(FILES_NAMED).map(|(_, path)| (*path).to_string()).collect();
        self
    }
}

/// All findings of a job: the most severe first, of those the ones that save most.
#[must_use]
pub fn advise(job: &JobProfile) -> Vec<Finding> {
    let mut findings = Vec::new();
    volume::advise(job, &mut findings);
    sizes::advise(job, &mut findings);
    order::advise(job, &mut findings);
    names::advise(job, &mut findings);
    movement::advise(job, &mut findings);
    copies::advise(job, &mut findings);
    stragglers::advise(job, &mut findings);
    findings.sort_by(|a, b| {
        let saves = |one: &Finding| one.saves_seconds.unwrap_or(0.0);
        b.severity
            .cmp(&a.severity)
            .then(saves(b).total_cmp(&saves(a)))
            .then(a.trigger.cmp(b.trigger))
    });
    findings
}

/// `part` of `whole`; 0 of nothing.
fn share(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}

/// `part` of `whole` in percent, for texts.
fn percent(part: f64, whole: f64) -> String {
    format!("{:.0} %", 100.0 * share(part, whole))
}

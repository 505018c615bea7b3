//! Two runs of one program side by side.

use crate::advice::Finding;
use crate::report::Report;
use crate::text::{bytes, count, seconds};
use serde::Serialize;

/// One figure of both runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Figure {
    /// Its name.
    pub name: &'static str,
    /// Its value in the first run, as people read it.
    pub first: String,
    /// Its value in the second run.
    pub second: String,
    /// Second by first; `None` if the first is 0.
    pub ratio: Option<f64>,
}

/// The comparison of two runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// Figures of both.
    pub figures: Vec<Figure>,
    /// Triggers that fire in the first run only.
    pub gone: Vec<&'static str>,
    /// Triggers that fire in the second run only.
    pub new: Vec<&'static str>,
}

/// Compares two runs.
#[must_use]
pub fn compare(first: &Report, second: &Report) -> Comparison {
    let both = [&first.profile, &second.profile];
    let figure = |name, values: [f64; 2], format: fn(f64) -> String| Figure {
        name,
        first: format(values[0]),
        second: format(values[1]),
        ratio: (values[0] > 0.0).then(|| values[1] / values[0]),
    };
    let number: fn(f64) -> String = |value| count(value as u64);
    let size: fn(f64) -> String = |value| bytes(value as u64);
    let figures = vec![
        figure("run time", both.map(|job| job.seconds), seconds),
        figure("I/O time of each process", both.map(|job| job.per_rank(job.io_seconds())), seconds),
        figure("time in reads", both.map(|job| job.per_rank(job.reads().seconds)), seconds),
        figure("time in writes", both.map(|job| job.per_rank(job.writes().seconds)), seconds),
        figure("time in names", both.map(|job| job.per_rank(job.metadata().seconds)), seconds),
        figure("bytes read", both.map(|job| job.reads().bytes as f64), size),
        figure("bytes written", both.map(|job| job.writes().bytes as f64), size),
        figure("reads", both.map(|job| job.reads().number as f64), number),
        figure("writes", both.map(|job| job.writes().number as f64), number),
        figure("operations on names", both.map(|job| job.metadata().number as f64), number),
        figure("bytes from the backing store", both.map(|job| job.read_tiers.backing as f64), size),
    ];
    let only = |here: &[Finding], there: &[Finding]| {
        let is_there = |trigger| there.iter().any(|other| other.trigger == trigger);
        here.iter().map(|one| one.trigger).filter(|trigger| !is_there(*trigger)).collect()
    };
    Comparison {
        figures,
        gone: only(&first.findings, &second.findings),
        new: only(&second.findings, &first.findings),
    }
}

impl Comparison {
    /// For a terminal.
    #[must_use]
    pub fn text(&self) -> String {
        let mut lines = vec![format!("{:<30} {:>14} {:>14} {:>8}", "", "first", "second", "ratio")];
        for one in &self.figures {
            let ratio = one.ratio.map_or_else(|| "-".to_string(), |ratio| format!("{ratio:.2}"));
            lines.push(format!("{:<30} {:>14} {:>14} {ratio:>8}", one.name, one.first, one.second));
        }
        for (title, triggers) in [("no longer found", &self.gone), ("newly found", &self.new)] {
            if !triggers.is_empty() {
                lines.push(format!("{title}: {}", triggers.join(", ")));
            }
        }
        lines.push(String::new());
        lines.join("\n")
    }
}

//! The report of a job: what ran, what its I/O did and cost, and advice.
//!
//! One `Report` gives the text for terminals (`text`), one HTML page without references to anything
//! outside (`page`), and JSON (its `Serialize`).

mod figures;
mod page;
mod terminal;

use crate::advice::{Finding, advise};
use crate::pattern::{Direction, JobPattern, of_job};
use crate::profile::JobProfile;
use serde::Serialize;

/// The report of a job.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// The figures.
    pub profile: JobProfile,
    /// Pattern of its reads.
    pub read_pattern: JobPattern,
    /// Pattern of its writes.
    pub write_pattern: JobPattern,
    /// Advice, the most severe first.
    pub findings: Vec<Finding>,
}

impl Report {
    /// The report of a profile.
    #[must_use]
    pub fn new(profile: JobProfile) -> Report {
        let read_pattern = of_job(&profile, Direction::Read);
        let write_pattern = of_job(&profile, Direction::Write);
        let findings = advise(&profile);
        Report { profile, read_pattern, write_pattern, findings }
    }

    /// For a terminal, at most 100 columns wide except for paths.
    #[must_use]
    pub fn text(&self) -> String {
        terminal::text(self)
    }

    /// A self-contained HTML page, under 1 MB.
    #[must_use]
    pub fn page(&self) -> String {
        page::page(self)
    }

    /// Sentences on profiles that do not show all.
    fn notes(&self) -> Vec<&'static str> {
        let mut notes = Vec::new();
        if !self.profile.is_complete {
            notes.push(
                "The job was killed or has not ended: what follows is what was seen until then.",
            );
        }
        if self.profile.is_sampled {
            notes.push("Times, and the order of transfers, are estimates from samples.");
        }
        notes
    }
}

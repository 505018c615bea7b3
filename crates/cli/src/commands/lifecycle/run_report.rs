//! The end of `forebay run`: the profile of its job on this host is kept for `forebay report`, and the
//! first findings are shown.

use crate::instance::inspect::query_time;
use crate::instance::jobs;
use crate::state::history::HistoryPlace;
use config::Settings;
use insight::advice::{Finding, Severity};
use insight::profile::JobProfile;
use insight::report::Report;
use std::fmt::Write as _;
use std::io::IsTerminal as _;

/// Findings that are shown.
const SHOWN: usize = 3;

/// Seconds of I/O of each process from which advice is shown where nobody looks at a terminal.
const LONG_SECONDS: f64 = 1.0;

/// Keeps the profile of a job, and shows what should be changed about it on standard error: on a
/// terminal, or if its I/O took long. Nothing is added to the output of a short command in a script. A
/// profile that cannot be read or kept does not make the command fail.
pub(crate) fn show(settings: &Settings, name: &str, job: &str) {
    let is_watched = std::io::stderr().is_terminal();
    let profile = match jobs::profile_here(name, job, query_time(settings)) {
        Ok(Some(profile)) if has_io(&profile) => profile,
        Ok(_) => return,
        Err(failure) if is_watched => {
            return errln!("forebay run: no report: {}", failure.text());
        }
        Err(_) => return,
    };
    let is_shown = is_watched || profile.per_rank(profile.io_seconds()) >= LONG_SECONDS;
    let report = Report::new(profile);
    match HistoryPlace::of(settings).and_then(|place| place.keep(name, &report)) {
        Err(failure) if is_shown => errln!("forebay run: no report: {}", failure.text()),
        Err(_) => {}
        Ok(()) => {
            let text = summary(report).filter(|_| is_shown);
            text.iter().for_each(|text| err!("{text}"));
        }
    }
}

/// True if bytes were moved or something was done with names.
fn has_io(profile: &JobProfile) -> bool {
    profile.reads().number + profile.writes().number + profile.metadata().number > 0
}

/// The first findings that ask for a change, one line each; `None`: there are none.
fn summary(report: Report) -> Option<String> {
    let is_shown = |finding: &&Finding| {
        matches!(finding.severity, Severity::Warn | Severity::High) && !finding.change.is_empty()
    };
    let mut text = String::new();
    for finding in report.findings.iter().filter(is_shown).take(SHOWN) {
        let saves = finding.saves_seconds.map(|seconds| format!(" (saves about {seconds:.1} s)"));
        let (evidence, change) = (&finding.evidence, &finding.change);
        // A string takes any line.
        let _ = writeln!(text, "  {evidence}: {change}{}", saves.unwrap_or_default());
    }
    let job = &report.profile.job;
    let head = format!("forebay run: advice on the job's I/O; more by 'forebay report {job}':\n");
    (!text.is_empty()).then(|| head + &text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use insight::profile::{Operations, RankProfile};

    fn rank(of: impl FnOnce(&mut RankProfile)) -> JobProfile {
        let mut rank = RankProfile::default();
        of(&mut rank);
        JobProfile { job: "j".into(), ranks: vec![rank], seconds: 10.0, ..JobProfile::default() }
    }

    #[test]
    fn only_a_job_with_io_is_reported() {
        let one = Operations { number: 1, ..Operations::default() };
        assert!(!has_io(&JobProfile::default()) && !has_io(&rank(|_| {})));
        assert!(has_io(&rank(|rank| rank.metadata = one)));
        assert!(has_io(&rank(|rank| rank.writes = one)));
    }

    #[test]
    fn findings_that_ask_for_a_change_are_shown() {
        let quiet = rank(|rank| rank.writes.number = 1);
        assert_eq!(summary(Report::new(quiet)), None);
        let mut report = Report::new(rank(|rank| rank.writes.number = 1));
        let finding = |severity, change: &str| Finding {
            trigger: "t",
            severity,
            evidence: "many small writes".into(),
            change: change.into(),
            saves_seconds: Some(2.0),
            files: Vec::new(),
        };
        report.findings = vec![finding(Severity::High, "write more"), finding(Severity::Info, "x")];
        report.findings.extend((0..5).map(|_| finding(Severity::Warn, "y")));
        let text = summary(report).expect("findings");
        assert_eq!(text.lines().count(), 4, "{text}");
        assert!(
            text.contains("report j'") && text.contains("writes: write more (saves about 2.0 s)")
        );
    }
}

//! A labelled set of workloads: each is a program's sequence of operations, labelled with the
//! findings that an expert expects of it. Advice must have a precision and a recall of at least 0.95
//! over the set.
//!
//! Findings of the severities `ok` and `info` are facts, not advice, and are not compared.

pub(crate) mod programs;
mod recorder;

use insight::advice::{Severity, advise};

/// A workload and what advice must find in it.
pub(crate) struct Workload {
    pub(crate) name: &'static str,
    pub(crate) expected: &'static [&'static str],
    pub(crate) run: fn() -> insight::profile::JobProfile,
}

#[test]
fn advice_finds_what_an_expert_expects() {
    let workloads = programs::all();
    assert!(workloads.len() >= 40, "{} workloads", workloads.len());
    let (mut right, mut wrong, mut missed) = (0, 0, 0);
    let mut lines = Vec::new();
    for workload in &workloads {
        let findings = advise(&(workload.run)());
        let advice = findings.iter().filter(|one| one.severity >= Severity::Warn);
        let found: Vec<&str> = advice.map(|one| one.trigger).collect();
        for trigger in &found {
            match workload.expected.contains(trigger) {
                true => right += 1,
                false => {
                    wrong += 1;
                    lines.push(format!("{}: {trigger} is not expected", workload.name));
                }
            }
        }
        for trigger in workload.expected.iter().filter(|trigger| !found.contains(trigger)) {
            missed += 1;
            lines.push(format!("{}: {trigger} is missed", workload.name));
        }
    }
    let precision = f64::from(right) / f64::from(right + wrong);
    let completeness = f64::from(right) / f64::from(right + missed);
    println!("{} workloads: precision {precision:.3}, recall {completeness:.3}", workloads.len());
    for line in &lines {
        println!("  {line}");
    }
    assert!(precision >= 0.95 && completeness >= 0.95, "{lines:#?}");
}

#[test]
fn names_of_workloads_differ() {
    let mut names: Vec<&str> = programs::all().iter().map(|one| one.name).collect();
    names.sort_unstable();
    let before = names.len();
    names.dedup();
    assert_eq!(names.len(), before);
}

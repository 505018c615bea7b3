//! How the findings of workloads compare with their labels: a table by trigger, precision and recall.

use super::Workload;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

/// Of one trigger over all workloads.
#[derive(Clone, Copy, Default)]
struct Counts {
    right: u32,
    unexpected: u32,
    missed: u32,
    /// Neither expected nor found, where that was compared.
    absent: u32,
}

/// Of all workloads so far.
#[derive(Default)]
pub(crate) struct Score {
    advice: BTreeMap<String, Counts>,
    facts: BTreeMap<String, Counts>,
    workloads: u32,
    /// Lines about findings that are not those of the label.
    pub(crate) wrong: Vec<String>,
}

/// The rate of both, of 1 where there are none.
fn rate(right: u32, other: u32) -> f64 {
    if right + other == 0 { 1.0 } else { f64::from(right) / f64::from(right + other) }
}

impl Score {
    pub(crate) fn add(
        &mut self,
        workload: &Workload,
        advice: &BTreeSet<String>,
        facts: &BTreeSet<String>,
    ) {
        self.workloads += 1;
        let all = workload.advice.iter().copied().chain(advice.iter().map(String::as_str));
        for trigger in all.collect::<BTreeSet<&str>>() {
            let is_expected = workload.advice.contains(&trigger);
            self.compare(workload, trigger, [is_expected, advice.contains(trigger)], true);
        }
        for (trigger, is_expected) in workload.facts {
            self.compare(workload, trigger, [*is_expected, facts.contains(*trigger)], false);
        }
    }

    fn compare(&mut self, workload: &Workload, trigger: &str, both: [bool; 2], is_advice: bool) {
        let kind = if is_advice { &mut self.advice } else { &mut self.facts };
        let counts = kind.entry(trigger.to_owned()).or_default();
        let [is_expected, is_found] = both;
        counts.right += u32::from(is_expected && is_found);
        counts.unexpected += u32::from(!is_expected && is_found);
        counts.missed += u32::from(is_expected && !is_found);
        counts.absent += u32::from(!is_expected && !is_found);
        if is_expected != is_found {
            let how = if is_found { "is not expected" } else { "is missed" };
            self.wrong.push(format!("{}: {trigger} {how}", workload.name));
        }
    }

    fn sum(&self) -> Counts {
        let mut sum = Counts::default();
        for counts in self.advice.values() {
            sum.right += counts.right;
            sum.unexpected += counts.unexpected;
            sum.missed += counts.missed;
        }
        sum
    }

    /// Precision and recall of advice over all workloads.
    fn rates(&self) -> [f64; 2] {
        let sum = self.sum();
        [rate(sum.right, sum.unexpected), rate(sum.right, sum.missed)]
    }

    /// The table that `make soak` prints.
    pub(crate) fn table(&self) -> String {
        let mut text = String::from("trigger                         TP  FP  FN  TN\n");
        for (trigger, counts) in self.advice.iter().chain(&self.facts) {
            let Counts { right, unexpected, missed, absent } = *counts;
            let none = self.workloads - right - unexpected - missed;
            let is_fact = !self.advice.contains_key(trigger);
            // Facts are compared where a workload names them.
            let none = if is_fact { absent } else { none };
            let _ = writeln!(text, "{trigger:30} {right:3} {unexpected:3} {missed:3} {none:3}");
        }
        let [precision, completeness] = self.rates();
        let _ = writeln!(
            text,
            "{} workloads: precision {precision:.3}, recall {completeness:.3}",
            self.workloads
        );
        for line in &self.wrong {
            let _ = writeln!(text, "  {line}");
        }
        text
    }

    pub(crate) fn assert_good(&self) {
        let [precision, completeness] = self.rates();
        assert!(precision >= 0.95 && completeness >= 0.95, "{}", self.table());
        // Facts are exact: each workload that names one has it, or has not.
        let of_facts = self.facts.values().map(|one| one.unexpected + one.missed).sum::<u32>();
        assert_eq!(of_facts, 0, "{}", self.table());
    }
}

//! Values by test and file system, and their tables and JSON. Performance targets are in `targets`.

use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Write;

/// Key of one row of a table.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    pub(crate) group: String,
    pub(crate) test: String,
    pub(crate) processes: u32,
    pub(crate) unit: &'static str,
}

/// All measured values.
#[derive(Debug)]
pub(crate) struct Report {
    systems: Vec<String>,
    /// Rows in order of first appearance.
    keys: Vec<Key>,
    values: BTreeMap<(Key, String), Vec<f64>>,
    failures: Vec<(String, String)>,
    /// Groups that cannot be measured on this machine, with the reason.
    absent: BTreeMap<String, String>,
    notes: BTreeMap<String, String>,
}

/// Summary of a list of values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Summary {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
    count: usize,
}

impl Report {
    /// An empty report. `systems` are the first columns of each table; further ones are added as
    /// values arrive.
    pub(crate) fn new(systems: Vec<String>) -> Report {
        Report {
            systems,
            keys: Vec::new(),
            values: BTreeMap::new(),
            failures: Vec::new(),
            absent: BTreeMap::new(),
            notes: BTreeMap::new(),
        }
    }

    /// Records one value.
    pub(crate) fn add(&mut self, key: Key, system: &str, value: f64) {
        if !self.keys.contains(&key) {
            self.keys.push(key.clone());
        }
        if !self.systems.iter().any(|known| known == system) {
            self.systems.push(system.into());
        }
        self.values.entry((key, system.into())).or_default().push(value);
    }

    /// Records a failure on a file system and logs it.
    pub(crate) fn failed(&mut self, system: &str, text: String) {
        eprintln!("forebay-bench: {text}");
        self.failures.push((system.into(), text));
    }

    /// True if something failed on a file system that the performance targets use. Failures on
    /// others are only reported.
    pub(crate) fn has_failed(&self) -> bool {
        let counts =
            |system: &String| system.starts_with("forebay") || Some(system) == self.baseline();
        self.failures.iter().any(|(system, _)| counts(system))
    }

    /// Adds a note below the table of a group.
    pub(crate) fn note(&mut self, group: &str, text: &str) {
        self.notes.insert(group.into(), text.into());
    }

    /// Records why a group cannot be measured on this machine.
    pub(crate) fn absent(&mut self, group: &str, why: &str) {
        self.absent.insert(group.into(), why.into());
    }

    /// Reason why a group has no values, if known.
    pub(crate) fn why_absent(&self, group: &str) -> Option<&str> {
        self.absent.get(group).map(String::as_str)
    }

    /// The file system that others are compared with: tmpfs, or else the first.
    pub(crate) fn baseline(&self) -> Option<&String> {
        self.systems.iter().find(|system| *system == "tmpfs").or(self.systems.first())
    }

    /// Summary of the values of a test on a file system, with its unit.
    pub(crate) fn summary(
        &self,
        (group, test, processes): (&str, &str, u32),
        system: &str,
    ) -> Option<(Summary, &'static str)> {
        let is_selected = |key: &&Key| {
            (key.group.as_str(), key.test.as_str(), key.processes) == (group, test, processes)
        };
        let key = self.keys.iter().find(is_selected)?;
        let values = self.values.get(&(key.clone(), system.into()))?;
        Some((summarise(values)?, key.unit))
    }

    /// One table per group, with medians, extremes, and the ratio to tmpfs or else to the first
    /// column; then unmeasured groups and failures.
    pub(crate) fn tables(&self) -> String {
        let keys = self.sorted();
        let mut text = String::new();
        for rows in keys.chunk_by(|a, b| a.group == b.group) {
            self.table(rows, &mut text);
        }
        for (group, why) in &self.absent {
            let _ = writeln!(text, "not measured: {group}: {why}");
        }
        for (_, failure) in &self.failures {
            let _ = writeln!(text, "failed: {failure}");
        }
        text
    }

    fn table(&self, rows: &[&Key], text: &mut String) {
        let cell = |key: &Key, system: &str| {
            self.values.get(&(key.clone(), system.into())).and_then(|values| summarise(values))
        };
        let has_values = |system: &&String| rows.iter().any(|key| cell(key, system).is_some());
        let systems: Vec<&String> = self.systems.iter().filter(has_values).collect();
        let Some(base) = systems.iter().find(|system| **system == "tmpfs").or(systems.first())
        else {
            return;
        };
        let group = rows.first().map_or("", |key| &key.group);
        let _ = write!(text, "\n{group:<18}{:>3} {:<6}", "P", "unit");
        for system in &systems {
            let _ = write!(text, " {system:>31}");
        }
        text.push('\n');
        for key in rows {
            let _ = write!(text, "{:<18}{:>3} {:<6}", key.test, key.processes, key.unit);
            let base = cell(key, base);
            for system in &systems {
                let shown = cell(key, system).map_or("-".into(), |own| own.shown(base));
                let _ = write!(text, " {shown:>31}");
            }
            text.push('\n');
        }
        if let Some(note) = self.notes.get(group) {
            let _ = writeln!(text, "{group}: {note}");
        }
    }

    /// Values of Forebay divided by those of the baseline: name, unit of the test, and a ratio for each
    /// repetition, or one of medians where the two were not measured equally often. Counts of
    /// instructions have no baseline and stand as they are.
    pub(crate) fn ratios(&self) -> Vec<(String, &'static str, Vec<f64>)> {
        let mut found = Vec::new();
        let baseline = self.baseline();
        for ((key, system), values) in &self.values {
            let name = format!("{} {} {} {system}", key.group, key.test, key.processes);
            let base = baseline.and_then(|base| self.values.get(&(key.clone(), base.clone())));
            let ratios = match base {
                _ if !system.starts_with("forebay") => continue,
                None if key.unit == "instr." => values.clone(),
                None => continue,
                Some(base) if base.len() == values.len() => {
                    values.iter().zip(base).map(|(own, base)| own / base).collect()
                }
                Some(base) => match (summarise(values), summarise(base)) {
                    (Some(own), Some(base)) => vec![own.median / base.median],
                    _ => continue,
                },
            };
            found.push((name, key.unit, ratios));
        }
        found
    }

    /// All values, for other programs.
    pub(crate) fn json(&self) -> Value {
        let mut rows = Vec::new();
        for key in self.sorted() {
            for system in &self.systems {
                let Some(values) = self.values.get(&(key.clone(), system.clone())) else {
                    continue;
                };
                let Some(own) = summarise(values) else { continue };
                rows.push(json!({
                    "group": key.group,
                    "test": key.test,
                    "processes": key.processes,
                    "unit": key.unit,
                    "on": system,
                    "median": own.median,
                    "min": own.min,
                    "max": own.max,
                    "values": values,
                }));
            }
        }
        let failures: Vec<&String> = self.failures.iter().map(|(_, text)| text).collect();
        json!({ "failures": failures, "not_measured": self.absent, "notes": self.notes, "results": rows })
    }

    /// Rows by group and test in order of first appearance, then by number of processes.
    fn sorted(&self) -> Vec<&Key> {
        let first = |expected: &Key, same: fn(&Key, &Key) -> bool| {
            self.keys.iter().position(|key| same(key, expected))
        };
        let mut keys: Vec<&Key> = self.keys.iter().collect();
        keys.sort_by_key(|key| {
            let group = first(key, |a, b| a.group == b.group);
            let test = first(key, |a, b| a.group == b.group && a.test == b.test);
            (group, test, key.processes)
        });
        keys
    }
}

impl Summary {
    /// The median, the extremes if there are several values, and the ratio to `base`.
    fn shown(&self, base: Option<Summary>) -> String {
        let mut text = short(self.median);
        if self.count > 1 {
            let _ = write!(text, " ({}..{})", short(self.min), short(self.max));
        }
        if let Some(base) = base {
            let _ = write!(text, " x{:.2}", self.median / base.median);
        }
        text
    }
}

pub(crate) fn summarise(values: &[f64]) -> Option<Summary> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let (min, max) = (*sorted.first()?, *sorted.last()?);
    let middle = sorted.len() / 2;
    let median = if sorted.len() % 2 == 1 {
        sorted[middle]
    } else {
        (sorted[middle - 1] + sorted[middle]) / 2.0
    };
    Some(Summary { median, min, max, count: sorted.len() })
}

/// Three or four significant digits, with k for thousands.
pub(crate) fn short(value: f64) -> String {
    match value {
        _ if value >= 1e6 => format!("{:.0}k", value / 1e3),
        _ if value >= 1e4 => format!("{:.1}k", value / 1e3),
        _ if value >= 100.0 => format!("{value:.0}"),
        _ if value > 0.0 && value < 2.0 => format!("{value:.3}"),
        _ => format!("{value:.1}"),
    }
}

#[cfg(test)]
mod tests {
    //! Medians, number formats, tables and JSON.
    use super::*;

    fn key(test: &str, processes: u32) -> Key {
        Key { group: "metadata".into(), test: test.into(), processes, unit: "/s" }
    }

    #[test]
    fn medians_and_extremes() {
        assert_eq!(summarise(&[]), None);
        let all = Summary { median: 2.0, min: 1.0, max: 3.0, count: 3 };
        assert_eq!(summarise(&[3.0, 1.0, 2.0]), Some(all));
        assert_eq!(summarise(&[4.0, 1.0]).map(|own| own.median), Some(2.5));
    }

    #[test]
    fn rows_are_sorted_and_compared() {
        let mut report = Report::new(vec!["disk".into(), "tmpfs".into()]);
        for (test, processes) in [("create", 1), ("stat", 1), ("create", 2)] {
            for value in [200.0, 100.0, 300.0] {
                report.add(key(test, processes), "tmpfs", value);
            }
            report.add(key(test, processes), "disk", 100.0);
        }
        let tables = report.tables();
        let rows: Vec<&str> = tables.lines().skip(2).collect();
        assert!(rows[1].starts_with("create              2"), "{tables}");
        assert!(rows[0].contains(" 100 x0.50"), "{tables}");
        assert!(rows[0].contains("200 (100..300) x1.00"), "{tables}");
    }

    #[test]
    fn a_table_has_only_file_systems_with_values() {
        let mut report = Report::new(vec!["tmpfs".into()]);
        report.add(key("create", 1), "tmpfs", 5.0);
        let other = Key { group: "remote".into(), ..key("round-trip", 1) };
        report.add(other, "socket", 7.0);
        let tables = report.tables();
        let head = tables.lines().find(|line| line.starts_with("remote")).expect("a table");
        assert!(head.ends_with("socket") && !head.contains("tmpfs"), "{tables}");
        assert!(tables.contains("7.0 x1.00"), "{tables}");
    }

    #[test]
    fn only_failures_on_file_systems_of_the_targets_count() {
        let mut report = Report::new(vec!["tmpfs".into()]);
        report.failed("peer", "broken".into());
        assert!(!report.has_failed() && report.tables().contains("failed: broken"));
        report.failed("forebay-1", "broken, too".into());
        assert!(report.has_failed());
        assert_eq!(report.json()["failures"][1], "broken, too");
        assert_eq!(short(123_456.0), "123.5k");
    }
}

//! Values by test and place; the tables and the JSON of them. The bars are in `bars`.

use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Write;

/// One row of a table.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    pub(crate) group: String,
    pub(crate) test: String,
    pub(crate) processes: u32,
    pub(crate) unit: &'static str,
}

/// All that was measured.
#[derive(Debug)]
pub(crate) struct Report {
    places: Vec<String>,
    /// Rows in the order in which they came first.
    keys: Vec<Key>,
    values: BTreeMap<(Key, String), Vec<f64>>,
    failures: Vec<(String, String)>,
    /// Groups that can not be measured here, and why.
    absent: BTreeMap<String, String>,
    notes: BTreeMap<String, String>,
}

/// What a list of values comes to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Summary {
    pub(crate) median: f64,
    min: f64,
    max: f64,
    count: usize,
}

impl Report {
    /// Without values. The places are the first columns of a table; others come as they are met.
    pub(crate) fn new(places: Vec<String>) -> Report {
        Report {
            places,
            keys: Vec::new(),
            values: BTreeMap::new(),
            failures: Vec::new(),
            absent: BTreeMap::new(),
            notes: BTreeMap::new(),
        }
    }

    /// Puts down one value.
    pub(crate) fn add(&mut self, key: Key, place: &str, value: f64) {
        if !self.keys.contains(&key) {
            self.keys.push(key.clone());
        }
        if !self.places.iter().any(|known| known == place) {
            self.places.push(place.into());
        }
        self.values.entry((key, place.into())).or_default().push(value);
    }

    /// Puts down that something failed in a place.
    pub(crate) fn failed(&mut self, place: &str, text: String) {
        eprintln!("forebay-bench: {text}");
        self.failures.push((place.into(), text));
    }

    /// True if something failed in a place that the bars are about. What fails elsewhere is told.
    pub(crate) fn has_failed(&self) -> bool {
        let counts =
            |place: &String| place.starts_with("forebay") || Some(place) == self.baseline();
        self.failures.iter().any(|(place, _)| counts(place))
    }

    /// Puts down what a reader of a group's table should know.
    pub(crate) fn note(&mut self, group: &str, text: &str) {
        self.notes.insert(group.into(), text.into());
    }

    /// Puts down why a group can not be measured here.
    pub(crate) fn absent(&mut self, group: &str, why: &str) {
        self.absent.insert(group.into(), why.into());
    }

    /// Why a group has no values, if that is known.
    pub(crate) fn why_absent(&self, group: &str) -> Option<&str> {
        self.absent.get(group).map(String::as_str)
    }

    /// The place that others are compared with.
    pub(crate) fn baseline(&self) -> Option<&String> {
        self.places.iter().find(|place| *place == "tmpfs").or(self.places.first())
    }

    /// What the values of a test in a place come to, with its unit.
    pub(crate) fn summary(
        &self,
        (group, test, processes): (&str, &str, u32),
        place: &str,
    ) -> Option<(Summary, &'static str)> {
        let is_wanted = |key: &&Key| {
            (key.group.as_str(), key.test.as_str(), key.processes) == (group, test, processes)
        };
        let key = self.keys.iter().find(is_wanted)?;
        let values = self.values.get(&(key.clone(), place.into()))?;
        Some((summarise(values)?, key.unit))
    }

    /// A table for each group: medians with their extremes, and the ratio to the first place of
    /// the table or tmpfs. Then what failed.
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
        let cell = |key: &Key, place: &str| {
            self.values.get(&(key.clone(), place.into())).and_then(|values| summarise(values))
        };
        let has_values = |place: &&String| rows.iter().any(|key| cell(key, place).is_some());
        let places: Vec<&String> = self.places.iter().filter(has_values).collect();
        let Some(base) = places.iter().find(|place| **place == "tmpfs").or(places.first()) else {
            return;
        };
        let group = rows.first().map_or("", |key| &key.group);
        let _ = write!(text, "\n{group:<18}{:>3} {:<6}", "P", "unit");
        for place in &places {
            let _ = write!(text, " {place:>31}");
        }
        text.push('\n');
        for key in rows {
            let _ = write!(text, "{:<18}{:>3} {:<6}", key.test, key.processes, key.unit);
            let base = cell(key, base);
            for place in &places {
                let shown = cell(key, place).map_or("-".into(), |own| own.shown(base));
                let _ = write!(text, " {shown:>31}");
            }
            text.push('\n');
        }
        if let Some(note) = self.notes.get(group) {
            let _ = writeln!(text, "{group}: {note}");
        }
    }

    /// All values, for other programs.
    pub(crate) fn json(&self) -> Value {
        let mut rows = Vec::new();
        for key in self.sorted() {
            for place in &self.places {
                let Some(values) = self.values.get(&(key.clone(), place.clone())) else { continue };
                let Some(own) = summarise(values) else { continue };
                rows.push(json!({
                    "group": key.group,
                    "test": key.test,
                    "processes": key.processes,
                    "unit": key.unit,
                    "on": place,
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

    /// Rows by group as they came, then by test, then by processes.
    fn sorted(&self) -> Vec<&Key> {
        let first = |wanted: &Key, same: fn(&Key, &Key) -> bool| {
            self.keys.iter().position(|key| same(key, wanted))
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
    /// The median, the extremes where there are any, and the ratio to `base`.
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

fn summarise(values: &[f64]) -> Option<Summary> {
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

/// Three or four digits that count, with k for thousands.
pub(crate) fn short(value: f64) -> String {
    match value {
        _ if value >= 1e6 => format!("{:.0}k", value / 1e3),
        _ if value >= 1e4 => format!("{:.1}k", value / 1e3),
        _ if value >= 100.0 => format!("{value:.0}"),
        _ => format!("{value:.1}"),
    }
}

#[cfg(test)]
mod tests {
    //! Medians, numbers and the JSON text.
    use super::*;

    fn key(test: &str, processes: u32) -> Key {
        Key { group: "metadata".into(), test: test.into(), processes, unit: "/s" }
    }

    #[test]
    fn medians() {
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
    fn groups_have_tables_of_the_places_that_they_know() {
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
    fn only_failures_of_what_the_bars_are_about_count() {
        let mut report = Report::new(vec!["tmpfs".into()]);
        report.failed("peer", "broken".into());
        assert!(!report.has_failed() && report.tables().contains("failed: broken"));
        report.failed("forebay-1", "broken, too".into());
        assert!(report.has_failed());
        assert_eq!(report.json()["failures"][1], "broken, too");
        assert_eq!(short(123_456.0), "123.5k");
    }
}

//! Values by test and place; the table and the JSON file.

use std::collections::BTreeMap;
use std::fmt::Write;

/// One row of the table.
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
    failures: Vec<String>,
}

/// What a list of values comes to.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Summary {
    median: f64,
    min: f64,
    max: f64,
}

impl Report {
    /// Without values, for these places.
    pub(crate) fn new(places: Vec<String>) -> Report {
        Report { places, keys: Vec::new(), values: BTreeMap::new(), failures: Vec::new() }
    }

    /// Puts down one value.
    pub(crate) fn add(&mut self, key: Key, place: &str, value: f64) {
        if !self.keys.contains(&key) {
            self.keys.push(key.clone());
        }
        self.values.entry((key, place.into())).or_default().push(value);
    }

    /// Puts down that something could not be measured.
    pub(crate) fn failed(&mut self, text: String) {
        eprintln!("forebay-bench: {text}");
        self.failures.push(text);
    }

    /// What could not be measured.
    pub(crate) fn failures(&self) -> &[String] {
        &self.failures
    }

    /// Rows of medians with their extremes and the ratio to the place
    /// that others are compared with.
    pub(crate) fn table(&self) -> String {
        let mut text = format!("{:<22}{:>3}  {:<6}", "test", "P", "unit");
        for place in &self.places {
            let _ = write!(text, "{:>34}", format!("{place}: median (min..max) ratio"));
        }
        text.push('\n');
        for key in self.sorted() {
            let _ = write!(
                text,
                "{:<22}{:>3}  {:<6}",
                format!("{} {}", key.group, key.test),
                key.processes,
                key.unit
            );
            let base = self.baseline().and_then(|place| self.summary(key, place));
            for place in &self.places {
                let cell = match self.summary(key, place) {
                    None => "-".into(),
                    Some(own) => {
                        let ratio = base.map_or(String::new(), |base| {
                            format!(" x{:.2}", own.median / base.median)
                        });
                        format!(
                            "{} ({}..{}){ratio}",
                            short(own.median),
                            short(own.min),
                            short(own.max)
                        )
                    }
                };
                let _ = write!(text, "{cell:>34}");
            }
            text.push('\n');
        }
        for failure in &self.failures {
            let _ = writeln!(text, "failed: {failure}");
        }
        text
    }

    /// All values, for other programs.
    pub(crate) fn json(&self) -> String {
        let mut rows = Vec::new();
        for key in self.sorted() {
            for place in &self.places {
                let Some(values) = self.values.get(&(key.clone(), place.clone())) else { continue };
                let Some(own) = summarise(values) else { continue };
                let list: Vec<String> = values.iter().map(|value| format!("{value:.3}")).collect();
                rows.push(format!(
                    "    {{\"group\": {}, \"test\": {}, \"processes\": {}, \"unit\": {}, \
                     \"on\": {}, \
                     \"median\": {:.3}, \"min\": {:.3}, \"max\": {:.3}, \"values\": [{}]}}",
                    quoted(&key.group),
                    quoted(&key.test),
                    key.processes,
                    quoted(key.unit),
                    quoted(place),
                    own.median,
                    own.min,
                    own.max,
                    list.join(", ")
                ));
            }
        }
        let failures: Vec<String> = self.failures.iter().map(|text| quoted(text)).collect();
        format!(
            "{{\n  \"failures\": [{}],\n  \"results\": [\n{}\n  ]\n}}\n",
            failures.join(", "),
            rows.join(",\n")
        )
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

    fn baseline(&self) -> Option<&String> {
        self.places.iter().find(|place| *place == "tmpfs").or(self.places.first())
    }

    fn summary(&self, key: &Key, place: &str) -> Option<Summary> {
        self.values.get(&(key.clone(), place.into())).and_then(|values| summarise(values))
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
    Some(Summary { median, min, max })
}

/// Three or four digits that count, with k for thousands.
fn short(value: f64) -> String {
    match value {
        _ if value >= 1e6 => format!("{:.0}k", value / 1e3),
        _ if value >= 1e4 => format!("{:.1}k", value / 1e3),
        _ if value >= 100.0 => format!("{value:.0}"),
        _ => format!("{value:.1}"),
    }
}

fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for letter in text.chars() {
        match letter {
            '"' | '\\' => out.extend(['\\', letter]),
            _ if letter < ' ' => {
                let _ = write!(out, "\\u{:04x}", u32::from(letter));
            }
            _ => out.push(letter),
        }
    }
    out.push('"');
    out
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
        assert_eq!(summarise(&[3.0, 1.0, 2.0]), Some(Summary { median: 2.0, min: 1.0, max: 3.0 }));
        assert_eq!(summarise(&[4.0, 1.0]).map(|own| own.median), Some(2.5));
    }

    #[test]
    fn rows_are_sorted_and_compared() {
        let mut report = Report::new(vec!["disk".into(), "tmpfs".into()]);
        for (test, processes) in [("create", 1), ("stat", 1), ("create", 2)] {
            report.add(key(test, processes), "tmpfs", 200.0);
            report.add(key(test, processes), "disk", 100.0);
        }
        let table = report.table();
        let rows: Vec<&str> = table.lines().skip(1).collect();
        assert!(rows[1].starts_with("metadata create         2"), "{table}");
        assert!(rows[0].contains("100 (100..100) x0.50"), "{table}");
        assert!(rows[0].contains("200 (200..200) x1.00"), "{table}");
    }

    #[test]
    fn json_is_quoted() {
        let mut report = Report::new(vec!["a\"b".into()]);
        report.add(key("create", 1), "a\"b", 1.5);
        assert!(report.json().contains(r#""on": "a\"b", "median": 1.500"#), "{}", report.json());
        assert_eq!(short(123_456.0), "123.5k");
    }
}

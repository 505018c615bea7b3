//! The guard of speed: ratios that were reached, in a file, beside those of this run.
//!
//! A ratio is a median on Forebay divided by that on the baseline of the same run, a performance
//! target, or a count of instructions. The file keeps the median of each and the lowest and highest
//! of its repetitions; `--reference` writes it, and widens what an earlier run has written, so that
//! it knows how far runs differ. A run is worse in a row if its median is beyond the recorded median
//! by more than the recorded spread.

use crate::results::report::{Report, Summary, summarise};
use crate::results::targets::Row;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// A spread is at least this part of the value: single measurements have none of their own.
const SPREAD_MIN: f64 = 0.15;
/// The same for counts of instructions, which hardly vary.
const SPREAD_MIN_OF_COUNTS: f64 = 0.02;

/// One value that the file keeps.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Entry {
    median: f64,
    low: f64,
    high: f64,
    is_less_better: bool,
    spread_min: f64,
}

/// All ratios of a run by name.
fn entries(report: &Report, rows: &[Row]) -> BTreeMap<String, Entry> {
    let mut found = BTreeMap::new();
    for (name, unit, ratios) in report.ratios() {
        if let Some(Summary { median, min, max, .. }) = summarise(&ratios) {
            let is_less_better = !unit.ends_with("/s");
            let is_count = unit == "instr.";
            let spread_min = if is_count { SPREAD_MIN_OF_COUNTS } else { SPREAD_MIN };
            found.insert(name, Entry { median, low: min, high: max, is_less_better, spread_min });
        }
    }
    for row in rows {
        if let Some(median) = row.measured {
            let entry = Entry {
                median,
                low: median,
                high: median,
                is_less_better: row.is_less_better(),
                spread_min: SPREAD_MIN,
            };
            found.insert(format!("target: {}", row.what), entry);
        }
    }
    found
}

/// The entries of a file that `write` has written.
fn read(file: &str) -> Result<BTreeMap<String, Entry>, String> {
    let text = std::fs::read_to_string(file).map_err(|error| format!("{file}: {error}"))?;
    let all: Map<String, Value> =
        serde_json::from_str(&text).map_err(|error| format!("{file}: {error}"))?;
    let entry = |(name, value): (String, Value)| {
        let number = |key: &str| {
            value[key].as_f64().ok_or_else(|| format!("{file}: {name:?} has no number {key:?}"))
        };
        let entry = Entry {
            median: number("median")?,
            low: number("low")?,
            high: number("high")?,
            is_less_better: value["better"] == "less",
            spread_min: number("spread_min")?,
        };
        Ok((name, entry))
    };
    all.into_iter().map(entry).collect()
}

/// Writes this run as the reference. Ranges of an earlier reference are widened, and rows that this run
/// has not measured stay.
pub(crate) fn write(file: &str, report: &Report, rows: &[Row]) -> Result<(), String> {
    let mut all = if std::path::Path::new(file).exists() { read(file)? } else { BTreeMap::new() };
    for (name, new) in entries(report, rows) {
        let entry = all.entry(name).or_insert(new);
        let (low, high) = (entry.low.min(new.low), entry.high.max(new.high));
        *entry = Entry { low, high, ..new };
    }
    let value = |entry: &Entry| {
        let better = if entry.is_less_better { "less" } else { "more" };
        let rounded = |value: f64| (value * 1000.0).round() / 1000.0;
        json!({
            "median": rounded(entry.median),
            "low": rounded(entry.low),
            "high": rounded(entry.high),
            "better": better,
            "spread_min": entry.spread_min,
        })
    };
    let all: Map<String, Value> =
        all.iter().map(|(name, one)| (name.clone(), value(one))).collect();
    let text = format!("{:#}\n", Value::Object(all));
    std::fs::write(file, text).map_err(|error| format!("{file}: {error}"))
}

/// Compares this run with the reference: a line for each row that is worse by more than its spread, and
/// a last line that counts. The second value is false if any row is worse.
pub(crate) fn check(file: &str, report: &Report, rows: &[Row]) -> Result<(String, bool), String> {
    let reference = read(file)?;
    let now = entries(report, rows);
    let mut text = String::new();
    let (mut compared, mut worse) = (0, 0);
    for (name, then) in &reference {
        let Some(now) = now.get(name) else { continue };
        compared += 1;
        let spread = (then.high - then.low).max(then.spread_min * then.median.abs());
        let loss =
            if then.is_less_better { now.median - then.median } else { then.median - now.median };
        if loss > spread {
            worse += 1;
            text += &format!(
                "worse: {name}: {:.3}, was {:.3} ({:.3}..{:.3})\n",
                now.median, then.median, then.low, then.high
            );
        }
    }
    text += &format!("{compared} rows compared with {file}, {worse} worse\n");
    if compared == 0 {
        return Err(format!("{file}: no row of it was measured"));
    }
    Ok((text, worse == 0))
}

#[cfg(test)]
mod tests {
    //! A reference that is written is read again, widened, and finds a loss and no gain.
    use super::*;
    use crate::results::report::Key;

    fn report(own: &[f64]) -> Report {
        let mut report = Report::new(vec!["tmpfs".into()]);
        let key = Key { group: "own".into(), test: "write".into(), processes: 1, unit: "MiB/s" };
        for value in own {
            report.add(key.clone(), "tmpfs", 100.0);
            report.add(key.clone(), "forebay-1", *value);
        }
        report
    }

    #[test]
    fn a_loss_beyond_the_spread_is_worse() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("reference.json");
        let file = file.to_str().expect("a plain path");
        write(file, &report(&[200.0, 210.0, 220.0]), &[]).expect("written");
        write(file, &report(&[230.0, 210.0, 190.0]), &[]).expect("widened");
        let is_good = |own: f64| check(file, &report(&[own]), &[]).expect("compared").1;
        assert!(is_good(500.0), "a gain");
        assert!(is_good(175.0), "within the spread of 1.9 to 2.3");
        assert!(!is_good(160.0), "a loss");
        let (text, _) = check(file, &report(&[160.0]), &[]).expect("compared");
        assert!(text.starts_with("worse: own write 1 forebay-1: 1.600, was 2.100"), "{text}");
        assert!(check(file, &Report::new(Vec::new()), &[]).is_err(), "nothing to compare");
    }
}

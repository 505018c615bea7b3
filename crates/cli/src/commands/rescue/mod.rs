//! Commands for a damaged instance: what is damaged (`check`), and what is lost (`lost`).

pub(crate) mod check;

pub(crate) mod lost;

use crate::commands::{human, plural, print_json, table};
use crate::instance::rescue::{Report, WORDS};
use serde_json::json;
use std::collections::BTreeSet;

/// Exit code: something is damaged or lost.
pub(crate) const DAMAGED: u8 = 4;

/// Prints what is damaged and lost.
pub(crate) fn print_report(report: &Report) {
    for damage in &report.damage {
        outln!("daemon {}: {}", damage.daemon, damage.text);
    }
    let mut rows = Vec::new();
    for file in &report.lost {
        let path = match file.path.as_str() {
            "" => format!("(inode {})", file.inode),
            path => path.to_owned(),
        };
        let size = human(file.size);
        let first = file.ranges.first().map(|(offset, length)| format!("{length} at {offset}"));
        let first = first.unwrap_or_default();
        rows.push(vec![file.what.clone(), path.clone(), size, first]);
        for (offset, length) in file.ranges.iter().skip(1) {
            let at = format!("{length} at {offset}");
            rows.push(vec![file.what.clone(), path.clone(), String::new(), at]);
        }
        if file.has_more {
            let more = "and more".to_owned();
            rows.push(vec![file.what.clone(), path.clone(), String::new(), more]);
        }
    }
    if !rows.is_empty() {
        let head = ["lost", "path", "size", "bytes"].map(str::to_owned).to_vec();
        rows.insert(0, head);
        out!("{}", table(&rows));
        let used: BTreeSet<&str> = report.lost.iter().map(|file| file.what.as_str()).collect();
        for (word, meaning) in WORDS.iter().filter(|(word, _)| used.contains(word)) {
            outln!("  {word}: {meaning}");
        }
    }
    if report.bytes_in_backing > 0 {
        let bytes = human(Some(report.bytes_in_backing));
        outln!("{bytes} on the SSD are damaged and are read from the backing store again");
    }
    if report.bytes_in_copies > 0 {
        let bytes = human(Some(report.bytes_in_copies));
        outln!("{bytes} on the SSD are damaged and are repaired from another copy");
    }
    if report.is_whole() {
        outln!("nothing is damaged or lost");
    } else {
        outln!("{} concerned", plural(report.lost.len() as u64, "file"));
    }
}

/// Prints the same as JSON.
pub(crate) fn print_report_json(name: &str, report: &Report) {
    print_json(&json!({
        "name": name,
        "whole": report.is_whole(),
        "damage": report.damage,
        "lost": report.lost,
        "bytes_in_backing": report.bytes_in_backing,
        "bytes_in_copies": report.bytes_in_copies,
    }));
}

/// The exit code.
pub(crate) fn code_of(report: &Report) -> u8 {
    if report.is_whole() { 0 } else { DAMAGED }
}

//! The report as text.

use super::{Report, figures};
use crate::merged::equal_ranks;
use crate::pattern::Direction;
use crate::text::{bytes, count, plural, seconds};
use core::fmt::Write as _;

/// Files that the text lists.
const FILES: usize = 10;
const WIDTH: usize = 100;

pub(super) fn text(report: &Report) -> String {
    let mut out = String::new();
    head(report, &mut out);
    advice(report, &mut out);
    costs(report, &mut out);
    ranks(report, &mut out);
    sizes(report, &mut out);
    files(report, &mut out);
    out
}

/// One line. Writing to a string does not fail.
fn line(out: &mut String, text: core::fmt::Arguments<'_>) {
    let _ = out.write_fmt(text);
    out.push('\n');
}

/// Characters that would act on a terminal are replaced.
fn plain(text: &str) -> String {
    text.chars().map(|one| if one.is_control() { '\u{fffd}' } else { one }).collect()
}

fn head(report: &Report, out: &mut String) {
    let job = &report.profile;
    line(
        out,
        format_args!("Job {} of {}: {}", plain(&job.job), plain(&job.user), plain(&job.command)),
    );
    line(
        out,
        format_args!(
            "  {} on {}, {}, {}",
            seconds(job.seconds),
            plural(job.hosts.len() as u64, "host", "hosts"),
            plural(job.ranks.len() as u64, "process", "processes"),
            plural(job.files.len() as u64 + job.other_files, "file", "files")
        ),
    );
    line(
        out,
        format_args!(
            "  patterns: reads {}, writes {}",
            figures::pattern(&report.read_pattern),
            figures::pattern(&report.write_pattern)
        ),
    );
    for note in report.notes() {
        line(out, format_args!("  {note}"));
    }
}

/// Breaks `text` into lines of at most `WIDTH` columns, indented by `first` and those after it by `rest`.
fn wrapped(out: &mut String, first: usize, rest: usize, text: &str) {
    let mut indent = first;
    let mut width = 0;
    for word in text.split_whitespace() {
        let length = word.chars().count();
        if width > 0 && indent + width + 1 + length > WIDTH {
            out.push('\n');
            indent = rest;
            width = 0;
        }
        if width == 0 {
            out.push_str(&" ".repeat(indent));
        } else {
            out.push(' ');
            width += 1;
        }
        out.push_str(word);
        width += length;
    }
    out.push('\n');
}

fn advice(report: &Report, out: &mut String) {
    out.push_str("\nAdvice\n");
    if report.findings.is_empty() {
        out.push_str("  none\n");
    }
    for finding in &report.findings {
        let saves = finding.saves_seconds.map(|saved| format!(" (saves about {})", seconds(saved)));
        let head = format!(
            "{:<5} {}: {}",
            finding.severity.name(),
            finding.trigger,
            plain(&finding.evidence)
        );
        wrapped(out, 2, 8, &head);
        if !finding.change.is_empty() {
            wrapped(out, 8, 11, &format!("-> {}{}", finding.change, saves.unwrap_or_default()));
        }
        for path in &finding.files {
            line(out, format_args!("        {}", plain(path)));
        }
    }
}

fn costs(report: &Report, out: &mut String) {
    let job = &report.profile;
    out.push_str("\nOperations            number        bytes   time of each process\n");
    for class in figures::classes(job) {
        let all = class.operations;
        line(
            out,
            format_args!(
                "  {:<12} {:>13} {:>12}   {}",
                class.name,
                count(all.number),
                bytes(all.bytes),
                seconds(job.per_rank(all.seconds))
            ),
        );
    }
    let parts: Vec<String> = figures::tiers(job)
        .into_iter()
        .filter(|(_, number)| *number > 0)
        .map(|(name, number)| format!("{} {name}", bytes(number)))
        .collect();
    if !parts.is_empty() {
        line(out, format_args!("  read from: {}", parts.join(", ")));
    }
    for (verb, all) in figures::backing(job) {
        if let Some(text) = figures::accesses(all) {
            line(out, format_args!("  {verb} of the backing store: {text}"));
        }
    }
    let waits: Vec<String> = figures::waits(job)
        .into_iter()
        .filter(|(_, time)| *time > 0.0)
        .map(|(cause, time)| format!("{} for {cause}", seconds(job.per_rank(time))))
        .collect();
    if !waits.is_empty() {
        line(out, format_args!("  waits: {}", waits.join(", ")));
    }
}

/// Ranks that did the same, a line for each group.
fn ranks(report: &Report, out: &mut String) {
    let groups = equal_ranks(&report.profile);
    if report.profile.ranks.len() < 2 {
        return;
    }
    out.push_str("\nRanks by what they do\n");
    out.push_str("      number         read      written   time of each          ranks\n");
    for group in groups.iter().take(figures::GROUPS) {
        line(
            out,
            format_args!(
                "{:>12} {:>12} {:>12}   {:<20}  {}: {}",
                count(group.count),
                bytes(group.sum.reads.bytes),
                bytes(group.sum.writes.bytes),
                figures::spread(group),
                plain(&group.sum.program),
                figures::shortened(&group.ranks)
            ),
        );
    }
    if let Some(more) = figures::more_groups(&groups) {
        line(out, format_args!("{more:>12} more groups"));
    }
}

fn sizes(report: &Report, out: &mut String) {
    let all = Direction::ALL.map(|direction| figures::transfers(&report.profile, direction));
    out.push_str("\nSizes of transfers      reads       writes\n");
    for (class, label) in figures::SIZE_LABELS.iter().enumerate() {
        let numbers = all.map(|one| one.sizes.get(class).copied().unwrap_or(0));
        if numbers != [0, 0] {
            line(
                out,
                format_args!("  {label:<13} {:>13} {:>12}", count(numbers[0]), count(numbers[1])),
            );
        }
    }
}

fn files(report: &Report, out: &mut String) {
    let job = &report.profile;
    out.push_str("\nFiles with the most bytes\n        read      written  processes  path\n");
    for file in figures::largest(job, FILES) {
        let [reads, writes] = file.transfers();
        line(
            out,
            format_args!(
                "{:>12} {:>12} {:>10}  {}",
                bytes(reads.bytes),
                bytes(writes.bytes),
                file.uses.len(),
                plain(&file.path)
            ),
        );
    }
}

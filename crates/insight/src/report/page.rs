//! The report as one HTML page: styles, figures and the script that draws the heat map are inside it.

use super::{Report, figures};
use crate::merged::equal_ranks;
use crate::pattern::Direction;
use crate::profile::JobProfile;
use crate::text::{bytes, count, seconds};
use core::fmt::Write as _;

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");
/// Files that the page lists.
const FILES: usize = 50;
/// Columns and rows of the heat map at most.
const COLUMNS_MAX: usize = 200;
const ROWS_MAX: usize = 256;

/// Adds formatted text. Writing to a string does not fail.
macro_rules! put {
    ($out:expr, $($format:tt)*) => {{ let _ = write!($out, $($format)*); }};
}

pub(super) fn page(report: &Report) -> String {
    let job = &report.profile;
    let mut out = String::with_capacity(64 << 10);
    put!(
        out,
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>Job {}</title>\n\
         <style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n",
        escaped(&job.job)
    );
    head(report, &mut out);
    advice(report, &mut out);
    time(job, &mut out);
    backing(job, &mut out);
    ranks(job, &mut out);
    heat_map(job, &mut out);
    sizes(job, &mut out);
    files(report, &mut out);
    put!(out, "</main>\n<script>\n{SCRIPT}</script>\n</body>\n</html>\n");
    out
}

/// Text that HTML does not take for markup.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for one in text.chars() {
        match one {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            one if one.is_control() => out.push('\u{fffd}'),
            one => out.push(one),
        }
    }
    out
}

fn head(report: &Report, out: &mut String) {
    let job = &report.profile;
    put!(
        out,
        "<h1>Job {}</h1>\n<p class=\"command\"><code>{}</code></p>\n",
        escaped(&job.job),
        escaped(&job.command)
    );
    for note in report.notes() {
        put!(out, "<p class=\"note\">{note}</p>\n");
    }
    let facts = [
        ("user", escaped(&job.user)),
        ("time", seconds(job.seconds)),
        ("hosts", count(job.hosts.len() as u64)),
        ("processes", count(job.ranks.len() as u64)),
        ("files", count(job.files.len() as u64 + job.other_files)),
        ("read", bytes(job.reads().bytes)),
        ("written", bytes(job.writes().bytes)),
        ("read pattern", figures::pattern(&report.read_pattern)),
        ("write pattern", figures::pattern(&report.write_pattern)),
    ];
    out.push_str("<dl class=\"facts\">\n");
    for (name, value) in facts {
        put!(out, "<div><dt>{name}</dt><dd>{value}</dd></div>\n");
    }
    out.push_str("</dl>\n");
}

fn advice(report: &Report, out: &mut String) {
    out.push_str("<h2>Advice</h2>\n");
    if report.findings.is_empty() {
        out.push_str("<p>None.</p>\n");
    }
    for finding in &report.findings {
        let severity = finding.severity.name();
        put!(
            out,
            "<article class=\"{severity}\"><h3><span>{severity}</span> {}</h3><p>{}</p>",
            finding.trigger,
            escaped(&finding.evidence)
        );
        if !finding.change.is_empty() {
            put!(out, "<p class=\"change\">{}", escaped(&finding.change));
            if let Some(saved) = finding.saves_seconds {
                put!(out, " <b>Saves about {}.</b>", seconds(saved));
            }
            out.push_str("</p>");
        }
        if !finding.files.is_empty() {
            out.push_str("<ul>");
            for path in &finding.files {
                put!(out, "<li><code>{}</code></li>", escaped(path));
            }
            out.push_str("</ul>");
        }
        out.push_str("</article>\n");
    }
}

/// Rows of names, bars and figures.
fn bars(out: &mut String, rows: &[(&str, f64, String)]) {
    let most = rows.iter().map(|(_, value, _)| *value).fold(0.0, f64::max);
    out.push_str("<table class=\"bars\">\n");
    for (name, value, text) in rows {
        let width = if most > 0.0 { 100.0 * value / most } else { 0.0 };
        put!(
            out,
            "<tr><th>{name}</th><td><i style=\"width:{width:.1}%\"></i></td>\
             <td class=\"number\">{text}</td></tr>\n"
        );
    }
    out.push_str("</table>\n");
}

fn time(job: &JobProfile, out: &mut String) {
    out.push_str("<h2>Time of each process</h2>\n");
    let mut rows: Vec<(&str, f64, String)> = Vec::new();
    for class in figures::classes(job) {
        let all = class.operations;
        let time = job.per_rank(all.seconds);
        let rate =
            if all.number > 0 { format!(" in {} calls", count(all.number)) } else { String::new() };
        rows.push((class.name, time, format!("{}{rate}", seconds(time))));
    }
    bars(out, &rows);
    let waits = figures::waits(job);
    if waits.iter().any(|(_, time)| *time > 0.0) {
        out.push_str("<h2>Waits of each process</h2>\n");
        bars(out, &waits.map(|(cause, time)| (cause, time, seconds(job.per_rank(time)))));
    }
    let tiers = figures::tiers(job);
    if tiers.iter().any(|(_, number)| *number > 0) {
        out.push_str("<h2>Where the bytes were that it read</h2>\n");
        bars(out, &tiers.map(|(name, number)| (name, number as f64, bytes(number))));
    }
}

/// Times of the backing store, as histograms.
fn backing(job: &JobProfile, out: &mut String) {
    for (verb, all) in figures::backing(job) {
        let Some(text) = figures::accesses(all) else { continue };
        put!(out, "<h2>Times of {verb} of the backing store</h2>\n");
        let first = all.classes.iter().position(|number| *number > 0).unwrap_or(0);
        let classes = (0..).zip(&all.classes).skip(first);
        let labels: Vec<(String, u64)> = classes
            .map(|(class, number)| (format!("below {}", seconds(2_f64.powi(class) / 1e6)), *number))
            .collect();
        let rows: Vec<(&str, f64, String)> = labels
            .iter()
            .map(|(label, number)| (label.as_str(), *number as f64, count(*number)))
            .collect();
        bars(out, &rows);
        put!(out, "<p>{text}.</p>\n");
    }
}

/// Ranks that did the same, a row for each group.
fn ranks(job: &JobProfile, out: &mut String) {
    if job.ranks.len() < 2 {
        return;
    }
    out.push_str(
        "<h2>Ranks by what they do</h2>\n<div class=\"wide\"><table>\n<tr><th>ranks</th>\
         <th>number</th><th>hosts</th><th>program</th><th>read</th><th>written</th>\
         <th>time of each</th></tr>\n",
    );
    let groups = equal_ranks(job);
    for group in groups.iter().take(figures::GROUPS) {
        put!(
            out,
            "<tr><td>{}</td><td class=\"number\">{}</td><td class=\"number\">{}</td><td>{}</td>\
             <td class=\"number\">{}</td><td class=\"number\">{}</td><td>{}</td></tr>\n",
            figures::shortened(&group.ranks),
            count(group.count),
            count(group.hosts),
            escaped(&group.sum.program),
            bytes(group.sum.reads.bytes),
            bytes(group.sum.writes.bytes),
            figures::spread(group)
        );
    }
    out.push_str("</table></div>\n");
    if let Some(more) = figures::more_groups(&groups) {
        put!(out, "<p>and {more} more groups.</p>\n");
    }
}

/// A letter for each cell: `a` for nothing, up to `p` for the most that a cell has.
fn levels(job: &JobProfile) -> Vec<String> {
    let columns = job.timeline.len().min(COLUMNS_MAX);
    let rows = job.ranks.len().min(ROWS_MAX);
    let mut cells = vec![vec![0_u64; columns]; rows];
    for (at, span) in job.timeline.iter().enumerate() {
        for each in [&span.read, &span.written] {
            for (rank, number) in each.iter().take(job.ranks.len()).enumerate() {
                let row = cells.get_mut(rank * rows / job.ranks.len());
                let cell = row.and_then(|row| row.get_mut(at * columns / job.timeline.len()));
                if let Some(cell) = cell {
                    *cell = cell.saturating_add(*number);
                }
            }
        }
    }
    let most = cells.iter().flatten().copied().max().unwrap_or(0);
    let level = |number: u64| match number {
        0 => 'a',
        number => char::from(b'b' + (u128::from(number) * 14 / u128::from(most)) as u8),
    };
    cells.iter().map(|row| row.iter().map(|number| level(*number)).collect()).collect()
}

fn heat_map(job: &JobProfile, out: &mut String) {
    let levels = levels(job);
    if levels.is_empty() || job.timeline.is_empty() {
        return;
    }
    put!(
        out,
        "<h2>Bytes of each process over time</h2>\n<canvas id=\"heat\" role=\"img\" \
         aria-label=\"heat map of processes and time\" data-rows=\"{}\"></canvas>\n\
         <p class=\"axis\"><span>0 s</span><span>{}</span></p>\n",
        levels.join(" "),
        seconds(job.seconds)
    );
}

fn sizes(job: &JobProfile, out: &mut String) {
    for (direction, title) in [(Direction::Read, "reads"), (Direction::Write, "writes")] {
        let all = figures::transfers(job, direction);
        if all.number == 0 {
            continue;
        }
        put!(out, "<h2>Sizes of {title}</h2>\n");
        let rows: Vec<(&str, f64, String)> = figures::SIZE_LABELS
            .iter()
            .zip(all.sizes)
            .map(|(label, number)| (*label, number as f64, count(number)))
            .collect();
        bars(out, &rows);
        put!(
            out,
            "<p>{} consecutive, {} with a gap, {} backwards, {} misaligned.</p>\n",
            count(all.consecutive),
            count(all.sequential),
            count(figures::random(job, direction)),
            count(all.misaligned)
        );
    }
}

fn files(report: &Report, out: &mut String) {
    let job = &report.profile;
    out.push_str(
        "<h2>Files with the most bytes</h2>\n<div class=\"wide\"><table>\n<tr><th>path</th><th>read</th>\
         <th>written</th><th>size</th><th>processes</th></tr>\n",
    );
    for file in figures::largest(job, FILES) {
        let [reads, writes] = file.transfers();
        put!(
            out,
            "<tr><td><code>{}</code></td><td class=\"number\">{}</td><td class=\"number\">{}</td>\
             <td class=\"number\">{}</td><td class=\"number\">{}</td></tr>\n",
            escaped(&file.path),
            bytes(reads.bytes),
            bytes(writes.bytes),
            bytes(file.size),
            count(file.uses.len() as u64)
        );
    }
    out.push_str("</table></div>\n");
}

#[cfg(test)]
mod tests {
    use crate::profile::{FileProfile, FileUse, JobProfile, RankProfile, Span, Transfers};
    use crate::report::Report;

    /// A job of 10,000 ranks and a million files that was killed: of the files, those with the most bytes
    /// have entries.
    fn huge() -> JobProfile {
        let ranks = 10_000;
        let writes = Transfers { number: 9, bytes: 9_000, ..Transfers::default() };
        let rank = |number: u32| RankProfile {
            rank: number,
            program: "sim".into(),
            other_writes: writes,
            ..RankProfile::default()
        };
        let file = |number: u32| FileProfile {
            path: format!("/out/step.{number}"),
            uses: vec![FileUse { rank: number, writes, ..FileUse::default() }],
            ..FileProfile::default()
        };
        let span = Span { read: vec![0; ranks as usize], written: vec![7; ranks as usize] };
        JobProfile {
            job: "huge".into(),
            hosts: (0..100).map(|number| format!("node{number}")).collect(),
            ranks: (0..ranks).map(rank).collect(),
            files: (0..ranks).map(file).collect(),
            other_files: 990_000,
            timeline: vec![span; 300],
            is_sampled: true,
            ..JobProfile::default()
        }
    }

    #[test]
    fn a_huge_job_that_was_killed_has_a_bounded_page_that_says_so() {
        let report = Report::new(huge());
        let (page, text) = (report.page(), report.text());
        assert!(page.len() < 1_000_000, "{} bytes", page.len());
        assert!(text.len() < 20_000, "{} bytes", text.len());
        for text in [&page, &text] {
            assert!(text.contains("The job was killed or has not ended"));
            assert!(text.contains("are estimates from samples"));
        }
        assert!(text.contains("1,000,000"), "all files are counted: {text}");
    }
}

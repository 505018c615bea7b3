//! The screen.

use super::rates::{DaemonRates, FileRates, JobRates, ProcessRates, Totals};
use super::state::{Order, State, View};
use crate::commands::human;
use insight::text;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Paragraph, Row, Table, TableState};

const HELP: &str =
    "q end  j jobs  d daemons  enter processes of a job, f its files  esc back  s sort  p pause";

/// Lines of things that are wrong.
const PROBLEMS_MAX: usize = 3;

/// Draws everything.
pub(super) fn draw(frame: &mut Frame<'_>, state: &mut State) {
    let heading = heading(state);
    let lines = u16::try_from(heading.len().max(4)).unwrap_or(4);
    let [head, table, foot] =
        Layout::vertical([Constraint::Length(lines), Constraint::Min(1), Constraint::Length(1)])
            .areas(frame.area());
    frame.render_widget(Paragraph::new(heading), head);
    draw_table(frame, state, table);
    let (foot_text, style) = match &state.failure {
        Some(failure) => (plain(failure), Style::new().fg(Color::Red)),
        None => (HELP.to_owned(), Style::new().add_modifier(Modifier::DIM)),
    };
    frame.render_widget(Paragraph::new(foot_text).style(style), foot);
}

/// Characters that would act on the terminal are replaced.
fn plain(text: &str) -> String {
    text.chars().map(|one| if one.is_control() { '?' } else { one }).collect()
}

/// Bytes per second.
fn rate(bytes: f64) -> String {
    if bytes < 1.0 { "-".to_owned() } else { format!("{}/s", human(Some(bytes as u64))) }
}

fn number(value: f64) -> String {
    if value < 0.5 { "-".to_owned() } else { text::count(value.round() as u64) }
}

/// A bar of ten cells.
fn bar(used: u64, total: u64) -> String {
    let full = if total == 0 {
        0
    } else {
        (u128::from(used) * 10).div_ceil(u128::from(total)).min(10) as usize
    };
    format!("{}{}", "#".repeat(full), "-".repeat(10 - full))
}

fn tier(name: &str, used: u64, total: u64) -> String {
    format!("{name} [{}] {} of {}", bar(used, total), human(Some(used)), human(Some(total)))
}

fn heading(state: &State) -> Vec<Line<'static>> {
    let paused = if state.is_paused { ", paused" } else { "" };
    let title =
        |what: String| Line::from(Span::styled(what, Style::new().add_modifier(Modifier::BOLD)));
    let Some(rates) = &state.rates else {
        return vec![
            title(format!("instance {}{paused}", plain(&state.name))),
            Line::from("waiting for samples"),
        ];
    };
    let totals: &Totals = &rates.totals;
    let silent = match totals.silent {
        0 => String::new(),
        silent => format!(", {silent} without an answer"),
    };
    let mut lines = vec![title(format!(
        "instance {}: {} daemons{silent}{paused}",
        plain(&state.name),
        totals.daemons
    ))];
    let mut space = tier("memory", totals.memory_used, totals.memory_total);
    if totals.ssd_total > 0 {
        space = format!("{space}   {}", tier("SSD", totals.ssd_used, totals.ssd_total));
    }
    lines.push(Line::from(space));
    lines.push(Line::from(format!(
        "read {}  written {}  {} operations/s  {} writes wait for space",
        rate(totals.throughput.read_bytes_per_second),
        rate(totals.throughput.written_bytes_per_second),
        number(totals.throughput.operations_per_second),
        totals.writers_waiting
    )));
    lines.push(Line::from(match (totals.dirty_bytes, totals.dirty_eta_seconds) {
        (0, _) => "nothing waits for writeback".to_owned(),
        (bytes, Some(eta)) => {
            format!(
                "{} to be written back, done in about {}",
                human(Some(bytes)),
                text::seconds(eta)
            )
        }
        (bytes, None) => {
            format!("{} to be written back; nothing is written now", human(Some(bytes)))
        }
    }));
    for problem in rates.problems.iter().take(PROBLEMS_MAX) {
        lines.push(Line::from(Span::styled(plain(problem), Style::new().fg(Color::Red))));
    }
    lines
}

fn heads(state: &State, names: &[&'static str]) -> Row<'static> {
    let sorted = match state.order {
        Order::Operations => "ops/s",
        Order::Read => "read/s",
        Order::Written => "written/s",
    };
    let cells = names
        .iter()
        .map(|name| if *name == sorted { format!("{name}*") } else { (*name).to_owned() });
    Row::new(cells.collect::<Vec<_>>()).style(Style::new().add_modifier(Modifier::REVERSED))
}

fn draw_table(frame: &mut Frame<'_>, state: &State, area: Rect) {
    let rates = state.rates.clone().unwrap_or_default();
    let (head, rows): (Row<'_>, Vec<Row<'_>>) = match &state.view {
        View::Jobs => (
            heads(
                state,
                &["job", "running", "processes", "ops/s", "read/s", "written/s", "read", "written"],
            ),
            rates.jobs.iter().map(job).collect(),
        ),
        View::Daemons => (
            heads(
                state,
                &[
                    "daemon",
                    "host",
                    "requests/s",
                    "memory",
                    "SSD",
                    "demoted",
                    "promoted",
                    "waiting",
                ],
            ),
            rates.daemons.iter().map(daemon).collect(),
        ),
        View::Processes(_) => (
            heads(
                state,
                &["rank", "pid", "program", "ops/s", "read/s", "written/s", "host", "state"],
            ),
            rates.processes.iter().map(process).collect(),
        ),
        View::Files(_) => (
            heads(state, &["ops/s", "read/s", "written/s", "read", "written", "processes", "path"]),
            rates.files.iter().map(file).collect(),
        ),
    };
    let mut widths = [Constraint::Fill(1); 8];
    if let View::Files(_) = state.view {
        // A path has the room of the last columns.
        widths[6] = Constraint::Fill(4);
        widths[7] = Constraint::Length(0);
    }
    let table = Table::new(rows, widths)
        .header(head)
        .row_highlight_style(Style::new().add_modifier(Modifier::BOLD));
    let mut chosen = TableState::new().with_selected(Some(state.line));
    frame.render_stateful_widget(table, area, &mut chosen);
}

fn job(job: &JobRates) -> Row<'static> {
    Row::new(vec![
        if job.job.is_empty() { "-".to_owned() } else { plain(&job.job) },
        text::count(job.running),
        text::count(job.processes),
        number(job.throughput.operations_per_second),
        rate(job.throughput.read_bytes_per_second),
        rate(job.throughput.written_bytes_per_second),
        human(Some(job.bytes_read)),
        human(Some(job.bytes_written)),
    ])
}

fn daemon(daemon: &DaemonRates) -> Row<'static> {
    let part = |used: u64, total: u64| format!("{} of {}", human(Some(used)), human(Some(total)));
    let host = if daemon.host.is_empty() { "here".to_owned() } else { plain(&daemon.host) };
    if !daemon.answers {
        let cells = vec![daemon.index.to_string(), host, "no answer".to_owned()];
        return Row::new(cells).style(Style::new().fg(Color::Red));
    }
    Row::new(vec![
        daemon.index.to_string(),
        host,
        number(daemon.requests_per_second),
        part(daemon.memory_used, daemon.memory_total),
        part(daemon.ssd_used, daemon.ssd_total),
        rate(daemon.demoted_bytes_per_second),
        rate(daemon.promoted_bytes_per_second),
        daemon.writers_waiting.to_string(),
    ])
}

fn file(file: &FileRates) -> Row<'static> {
    Row::new(vec![
        number(file.throughput.operations_per_second),
        rate(file.throughput.read_bytes_per_second),
        rate(file.throughput.written_bytes_per_second),
        human(Some(file.bytes_read)),
        human(Some(file.bytes_written)),
        text::count(file.processes),
        plain(&file.path),
    ])
}

fn process(process: &ProcessRates) -> Row<'static> {
    Row::new(vec![
        process.rank.map_or_else(|| "-".to_owned(), |rank| rank.to_string()),
        if process.pid == 0 { "several".to_owned() } else { process.pid.to_string() },
        plain(&process.program),
        number(process.throughput.operations_per_second),
        rate(process.throughput.read_bytes_per_second),
        rate(process.throughput.written_bytes_per_second),
        plain(&process.host),
        if process.runs { "runs".to_owned() } else { "ended".to_owned() },
    ])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::top::rates::tests::sample;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
    use std::time::Instant;

    fn shown(state: &mut State, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, state)).unwrap();
        terminal.backend().to_string()
    }

    #[test]
    fn each_view_shows_its_lines() {
        let begin = Instant::now();
        let mut state = State::new("a");
        assert!(shown(&mut state, 100, 12).contains("waiting for samples"));
        state.take(Ok(sample(begin, 1)));
        state.take(Ok(sample(begin, 2)));
        let jobs = shown(&mut state, 100, 12);
        for text in [
            "2 daemons, 1 without an answer",
            "[######----] 60 B of 100 B",
            "4711",
            "written/s*",
            "1.0 KiB/s",
        ] {
            assert!(jobs.contains(text), "{text:?} is not in\n{jobs}");
        }
        assert!(jobs.contains("500 B to be written back, done in about 10 s"), "{jobs}");
        let press = |state: &mut State, code| state.press(KeyEvent::new(code, KeyModifiers::NONE));
        press(&mut state, KeyCode::Enter);
        state.take(Ok(sample(begin, 3)));
        let processes = shown(&mut state, 100, 12);
        assert!(processes.contains("sim") && processes.contains("runs"), "{processes}");
        press(&mut state, KeyCode::Char('f'));
        let files = shown(&mut state, 100, 12);
        assert!(files.contains("/d/f") && files.contains("inode 6"), "{files}");
        press(&mut state, KeyCode::Char('d'));
        let daemons = shown(&mut state, 100, 12);
        assert!(daemons.contains("no answer") && daemons.contains("requests/s"), "{daemons}");
    }

    #[test]
    fn what_is_wrong_has_lines_of_its_own() {
        let begin = Instant::now();
        let mut state = State::new("a");
        state.take(Ok(sample(begin, 1)));
        let mut thrashes = sample(begin, 2);
        let span = config::control::ThrashingSpan::default();
        let daemon = |daemon| crate::instance::thrashing::ThrashingDaemon {
            daemon,
            host: String::new(),
            span,
        };
        thrashes.thrashing = (0..9).map(daemon).collect();
        state.take(Ok(thrashes));
        let text = shown(&mut state, 100, 14);
        assert!(text.contains("daemon 2 thrashes") && !text.contains("daemon 3"), "{text}");
        assert!(text.contains("4711"), "the jobs are below: {text}");
    }

    #[test]
    fn a_small_terminal_and_odd_names_break_nothing() {
        let begin = Instant::now();
        let mut state = State::new("\u{1b}[2J");
        let mut odd = sample(begin, 2);
        odd.jobs[0].job = "a\u{7}\nb".into();
        state.take(Ok(sample(begin, 1)));
        state.take(Ok(odd));
        for (width, height) in [(1, 1), (3, 2), (20, 5), (300, 100)] {
            assert!(!shown(&mut state, width, height).contains('\u{1b}'));
        }
        assert!(shown(&mut state, 100, 12).contains("a??b"));
    }
}

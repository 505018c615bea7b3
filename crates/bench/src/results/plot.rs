//! Plots the history as an SVG: one panel per performance target, and panels for how the last run
//! scaled with the number of hosts.

use crate::results::report::short;
use crate::suites::scaling;
use serde_json::Value;
use std::fmt::Write;

/// Maximum number of runs shown; the newest are kept.
const RUNS_MAX: usize = 60;

const COLUMNS: usize = 4;
/// Size of a panel with its margins, and size and position of the plot area in it.
const WIDTH: f64 = 330.0;
const HEIGHT: f64 = 210.0;
const LEFT: f64 = 58.0;
const TOP: f64 = 34.0;
const FIELD_WIDTH: f64 = 250.0;
const FIELD_HEIGHT: f64 = 125.0;
const HEADER: f64 = 56.0;

/// Runs `forebay-bench plot HISTORY FILE`.
pub(crate) fn main(words: &[String]) -> Result<(), String> {
    let [history, file] = words else {
        return Err("plot: expected a history and the file to write".into());
    };
    write(history, file)
}

/// Writes the plot of a history.
pub(crate) fn write(history: &str, file: &str) -> Result<(), String> {
    let runs = crate::results::history::read(history)?;
    std::fs::write(file, svg(&runs)).map_err(|error| format!("{file}: {error}"))
}

fn svg(runs: &[Value]) -> String {
    let runs = &runs[runs.len().saturating_sub(RUNS_MAX)..];
    let mut panels = target_panels(runs);
    panels.extend(scaling_panels(runs));
    let rows = panels.len().div_ceil(COLUMNS);
    let (width, height) = (COLUMNS as f64 * WIDTH, HEADER + rows as f64 * HEIGHT);
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
         font-family=\"sans-serif\" font-size=\"11\">\n\
         <rect width=\"{width}\" height=\"{height}\" fill=\"white\"/>\n"
    );
    label(&mut text, (12.0, 22.0), "start", 16, "Forebay: results of make bench");
    let legend = "points: measured; dashed: target; dotted: ideal. Higher is better, except where the \
                  title says (down)";
    label(&mut text, (12.0, 42.0), "start", 12, legend);
    for (number, panel) in panels.iter().enumerate() {
        let x = (number % COLUMNS) as f64 * WIDTH;
        let y = HEADER + (number / COLUMNS) as f64 * HEIGHT;
        let _ = writeln!(text, "<g transform=\"translate({x},{y})\">");
        panel.draw(&mut text);
        text.push_str("</g>\n");
    }
    text.push_str("</svg>\n");
    text
}

/// One panel.
struct Panel {
    title: String,
    /// Labels of the axes.
    x_name: String,
    y_name: &'static str,
    points: Vec<(f64, f64)>,
    /// First and last value of the horizontal axis.
    x_range: (f64, f64),
    lines: Vec<Line>,
}

/// A straight reference line.
struct Line {
    dash: &'static str,
    from: (f64, f64),
    to: (f64, f64),
}

const DASHED: &str = "6 4";
const DOTTED: &str = "2 3";

/// One panel for each target that any of the runs measured, in the order of the last run.
fn target_panels(runs: &[Value]) -> Vec<Panel> {
    let last = runs.last().and_then(|run| run["targets"].as_array());
    last.into_iter().flatten().filter_map(|bar| panel_of_target(bar, runs)).collect()
}

fn panel_of_target(bar: &Value, runs: &[Value]) -> Option<Panel> {
    let measured = |run: &Value| {
        let mut target_panels = run["targets"].as_array()?.iter();
        target_panels.find(|one| one["what"] == bar["what"])?["measured"].as_f64()
    };
    let numbered = runs.iter().enumerate();
    let points = numbered.filter_map(|(number, run)| Some((number as f64 + 1.0, measured(run)?)));
    let points: Vec<(f64, f64)> = points.collect();
    if points.is_empty() {
        return None;
    }
    let x_range = (1.0, (runs.len() as f64).max(2.0));
    let across = |dash, value: &Value| {
        let value = value.as_f64()?;
        Some(Line { dash, from: (x_range.0, value), to: (x_range.1, value) })
    };
    let lines = [across(DASHED, &bar["target"]), across(DOTTED, &bar["ideal"])];
    let commits = [runs.first()?, runs.last()?].map(|run| run["commit"].as_str().unwrap_or(""));
    let [first, last] = commits;
    let down = if bar["sign"] == "<=" { " (down)" } else { "" };
    Some(Panel {
        title: format!("{}{down}", bar["what"].as_str()?),
        x_name: format!("runs, commits {first} to {last}"),
        y_name: "ratio",
        points,
        x_range,
        lines: lines.into_iter().flatten().collect(),
    })
}

/// Rates by number of hosts, from the last run that has them, with linear growth from the first
/// point.
fn scaling_panels(runs: &[Value]) -> Vec<Panel> {
    let rows = |run: &Value| -> Vec<Value> {
        let all = run["results"].as_array().cloned().unwrap_or_default();
        all.into_iter().filter(|row| row["group"] == scaling::GROUP).collect()
    };
    let rows = runs.iter().rev().map(rows).find(|rows| !rows.is_empty()).unwrap_or_default();
    let mut panels: Vec<Panel> = Vec::new();
    for row in &rows {
        let unit = ["/s", "MiB/s", "/cpu", "MiB/cpu"].into_iter().find(|unit| row["unit"] == *unit);
        let (Some(test), Some(unit)) = (row["test"].as_str(), unit) else { continue };
        let (Some(scaling_panels), Some(rate)) =
            (row["processes"].as_f64(), row["median"].as_f64())
        else {
            continue;
        };
        let title = format!("hosts: {test}");
        match panels.iter_mut().find(|panel| panel.title == title) {
            Some(panel) => panel.points.push((scaling_panels, rate)),
            None => panels.push(Panel {
                title,
                x_name: "hosts; dashed: linear growth".into(),
                y_name: unit,
                points: vec![(scaling_panels, rate)],
                x_range: (0.0, 1.0),
                lines: Vec::new(),
            }),
        }
    }
    for panel in &mut panels {
        let (Some(&(first, rate)), Some(&(last, _))) = (panel.points.first(), panel.points.last())
        else {
            continue;
        };
        panel.x_range = (0.0, last.max(2.0));
        // Work per CPU second is constant under ideal scaling.
        let end = if panel.y_name.ends_with("cpu") { rate } else { rate / first * last };
        panel.lines.push(Line { dash: DASHED, from: (first, rate), to: (last, end) });
        if panel.y_name.ends_with("cpu") {
            panel.x_name = "hosts; dashed: constant under linear growth".into();
        }
    }
    panels
}

impl Panel {
    fn draw(&self, text: &mut String) {
        let ends = self.lines.iter().flat_map(|line| [line.from.1, line.to.1]);
        let highest = self.points.iter().map(|point| point.1).chain(ends).fold(0.0, f64::max);
        let step = step(highest);
        let top = (highest / step).ceil().max(1.0) * step;
        let x = |value: f64| {
            LEFT + (value - self.x_range.0) / (self.x_range.1 - self.x_range.0) * FIELD_WIDTH
        };
        let y = |value: f64| TOP + FIELD_HEIGHT - value / top * FIELD_HEIGHT;
        label(text, (LEFT, TOP - 14.0), "start", 11, &self.title);
        let mut mark = 0.0;
        while mark <= top + step / 2.0 {
            line(text, "#ddd", "", (LEFT, y(mark)), (LEFT + FIELD_WIDTH, y(mark)));
            label(text, (LEFT - 6.0, y(mark) + 4.0), "end", 10, &number(mark));
            mark += step;
        }
        label(text, (4.0, TOP - 14.0), "start", 10, self.y_name);
        let bottom = TOP + FIELD_HEIGHT;
        for end in [self.x_range.0, self.x_range.1] {
            label(text, (x(end), bottom + 14.0), "middle", 10, &number(end));
        }
        label(text, (LEFT + FIELD_WIDTH / 2.0, bottom + 30.0), "middle", 10, &self.x_name);
        for Line { dash, from, to } in &self.lines {
            line(text, "#c33", dash, (x(from.0), y(from.1)), (x(to.0), y(to.1)));
        }
        let point_text = |&(at, value): &(f64, f64)| format!("{:.1},{:.1}", x(at), y(value));
        let points_text: Vec<String> = self.points.iter().map(point_text).collect();
        let points_text = points_text.join(" ");
        let _ =
            writeln!(text, "<polyline points=\"{points_text}\" fill=\"none\" stroke=\"#36c\"/>");
        for (at, value) in &self.points {
            let (x, y) = (x(*at), y(*value));
            let _ = writeln!(text, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"#36c\"/>");
        }
        if let Some(&(at, value)) = self.points.last() {
            let label_shift = if y(value) < TOP + 12.0 { 16.0 } else { -6.0 };
            label(text, (x(at) - 4.0, y(value) + label_shift), "end", 11, &number(value));
        }
    }
}

/// Distance between grid lines: 1, 2 or 5 times a power of ten, so that there are four to eight
/// lines.
fn step(highest: f64) -> f64 {
    let rough = highest.max(1e-3) / 5.0;
    let power = 10f64.powf(rough.log10().floor());
    [1.0, 2.0, 5.0, 10.0]
        .map(|digit| digit * power)
        .into_iter()
        .find(|step| *step >= rough)
        .unwrap_or(rough)
}

fn number(value: f64) -> String {
    match value {
        _ if value >= 1e6 => format!("{}k", (value / 1e3).round()),
        _ if value >= 1e4 => short(value),
        _ if value >= 100.0 => format!("{value:.0}"),
        // Three decimals, without trailing zeros.
        _ => format!("{}", (value * 1000.0).round() / 1000.0),
    }
}

fn line(text: &mut String, colour: &str, dash: &str, from: (f64, f64), to: (f64, f64)) {
    let _ = writeln!(
        text,
        "<line x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\" stroke=\"{colour}\" \
         stroke-dasharray=\"{dash}\"/>",
        from.0, from.1, to.0, to.1
    );
}

fn label(text: &mut String, at: (f64, f64), anchor: &str, size: u32, words: &str) {
    let words = words.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let _ = writeln!(
        text,
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"{anchor}\" font-size=\"{size}\">{words}</text>",
        at.0, at.1
    );
}

#[cfg(test)]
mod tests {
    //! Contents of the plot for given runs.
    use super::*;
    use serde_json::json;

    fn run(stat: Option<f64>) -> Value {
        let row = |scaling_panels: u32, rate: f64| {
            json!({"group": "scaling", "test": "create", "processes": scaling_panels, "unit": "/s",
                   "on": "home", "median": rate})
        };
        json!({
            "commit": "abc<1>",
            "targets": [
                {"what": "stat & co", "measured": stat, "target": 2.0, "ideal": 4.0, "sign": ">="},
                {"what": "remote stat", "measured": null, "target": 1.5, "ideal": null, "sign": "<="},
            ],
            "results": [row(1, 100.0), row(2, 150.0)],
        })
    }

    #[test]
    fn each_measured_target_has_a_panel_with_its_points() {
        let text = svg(&[run(Some(1.5)), run(None), run(Some(2.5))]);
        assert!(text.contains(">stat &amp; co</text>") && !text.contains("remote stat"), "{text}");
        // Two of the target and two of the hosts.
        assert_eq!(text.matches("<circle").count(), 4, "{text}");
        assert!(text.contains("abc&lt;1&gt;") && text.contains(">2.5</text>"), "{text}");
        assert!(text.contains("hosts: create") && text.contains(">150</text>"), "{text}");
        assert_eq!(text.matches("<g ").count(), text.matches("</g>").count());
        assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");
        assert!(svg(&[]).ends_with("</svg>\n"));
    }

    #[test]
    fn grid_lines_are_at_round_values() {
        for (highest, expected) in
            [(4.0, 1.0), (9.0, 2.0), (24.0, 5.0), (0.9, 0.2), (70_000.0, 20_000.0)]
        {
            assert!(
                (step(highest) - expected).abs() < expected / 1e6,
                "{highest}: {}",
                step(highest)
            );
        }
        assert_eq!(
            (number(0.2 * 3.0), number(15_000.0), number(2e6)),
            ("0.6".into(), "15.0k".into(), "2000k".into())
        );
    }
}

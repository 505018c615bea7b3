//! The history as an SVG: a panel for each bar, and how the last run grew with the number of hosts.

use crate::report::short;
use crate::scaling;
use serde_json::Value;
use std::fmt::Write;

/// Runs that are shown, the newest.
const RUNS_MAX: usize = 60;

const COLUMNS: usize = 4;
/// A panel with what is around it, and the field of its curve in that.
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
    let runs = crate::history::read(history)?;
    std::fs::write(file, svg(&runs)).map_err(|error| format!("{file}: {error}"))
}

fn svg(runs: &[Value]) -> String {
    let runs = &runs[runs.len().saturating_sub(RUNS_MAX)..];
    let mut panels = bars(runs);
    panels.extend(hosts(runs));
    let rows = panels.len().div_ceil(COLUMNS);
    let (width, height) = (COLUMNS as f64 * WIDTH, HEADER + rows as f64 * HEIGHT);
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
         font-family=\"sans-serif\" font-size=\"11\">\n\
         <rect width=\"{width}\" height=\"{height}\" fill=\"white\"/>\n"
    );
    label(&mut text, (12.0, 22.0), "start", 16, "Forebay: what make bench measured");
    let legend = "points: measured; dashed: the bar; dotted: what would be better still. Up is better, \
                  but where the title says (down)";
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
    /// What the axes show.
    x_name: String,
    y_name: &'static str,
    points: Vec<(f64, f64)>,
    /// Where the horizontal axis begins and ends.
    x_range: (f64, f64),
    lines: Vec<Line>,
}

/// A straight line beside the points.
struct Line {
    dash: &'static str,
    from: (f64, f64),
    to: (f64, f64),
}

const DASHED: &str = "6 4";
const DOTTED: &str = "2 3";

/// A panel for each bar that any of the runs measured, in the order of the last run.
fn bars(runs: &[Value]) -> Vec<Panel> {
    let last = runs.last().and_then(|run| run["bars"].as_array());
    last.into_iter().flatten().filter_map(|bar| of_bar(bar, runs)).collect()
}

fn of_bar(bar: &Value, runs: &[Value]) -> Option<Panel> {
    let measured = |run: &Value| {
        let mut bars = run["bars"].as_array()?.iter();
        bars.find(|one| one["what"] == bar["what"])?["measured"].as_f64()
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
    let lines = [across(DASHED, &bar["bar"]), across(DOTTED, &bar["reach"])];
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

/// Rates by the number of hosts, of the last run that has them, with linear growth from the first.
fn hosts(runs: &[Value]) -> Vec<Panel> {
    let rows = |run: &Value| -> Vec<Value> {
        let all = run["results"].as_array().cloned().unwrap_or_default();
        all.into_iter().filter(|row| row["group"] == scaling::GROUP).collect()
    };
    let rows = runs.iter().rev().map(rows).find(|rows| !rows.is_empty()).unwrap_or_default();
    let mut panels: Vec<Panel> = Vec::new();
    for row in &rows {
        let unit = ["/s", "MiB/s", "/cpu", "MiB/cpu"].into_iter().find(|unit| row["unit"] == *unit);
        let (Some(test), Some(unit)) = (row["test"].as_str(), unit) else { continue };
        let (Some(hosts), Some(rate)) = (row["processes"].as_f64(), row["median"].as_f64()) else {
            continue;
        };
        let title = format!("hosts: {test}");
        match panels.iter_mut().find(|panel| panel.title == title) {
            Some(panel) => panel.points.push((hosts, rate)),
            None => panels.push(Panel {
                title,
                x_name: "hosts; dashed: linear growth".into(),
                y_name: unit,
                points: vec![(hosts, rate)],
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
        // What a second of a processor does would ideally stay the same.
        let end = if panel.y_name.ends_with("cpu") { rate } else { rate / first * last };
        panel.lines.push(Line { dash: DASHED, from: (first, rate), to: (last, end) });
        if panel.y_name.ends_with("cpu") {
            panel.x_name = "hosts; dashed: what linear growth needs".into();
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
        let below = TOP + FIELD_HEIGHT;
        for end in [self.x_range.0, self.x_range.1] {
            label(text, (x(end), below + 14.0), "middle", 10, &number(end));
        }
        label(text, (LEFT + FIELD_WIDTH / 2.0, below + 30.0), "middle", 10, &self.x_name);
        for Line { dash, from, to } in &self.lines {
            line(text, "#c33", dash, (x(from.0), y(from.1)), (x(to.0), y(to.1)));
        }
        let place = |&(at, value): &(f64, f64)| format!("{:.1},{:.1}", x(at), y(value));
        let places: Vec<String> = self.points.iter().map(place).collect();
        let places = places.join(" ");
        let _ = writeln!(text, "<polyline points=\"{places}\" fill=\"none\" stroke=\"#36c\"/>");
        for (at, value) in &self.points {
            let (x, y) = (x(*at), y(*value));
            let _ = writeln!(text, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"#36c\"/>");
        }
        if let Some(&(at, value)) = self.points.last() {
            let above = if y(value) < TOP + 12.0 { 16.0 } else { -6.0 };
            label(text, (x(at) - 4.0, y(value) + above), "end", 11, &number(value));
        }
    }
}

/// Distance of marks so that there are four to eight of them: 1, 2 or 5 and zeros.
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
        // Three digits behind the point, without zeros at the end.
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
    //! What is drawn of which runs.
    use super::*;
    use serde_json::json;

    fn run(stat: Option<f64>) -> Value {
        let row = |hosts: u32, rate: f64| {
            json!({"group": "scaling", "test": "create", "processes": hosts, "unit": "/s",
                   "on": "home", "median": rate})
        };
        json!({
            "commit": "abc<1>",
            "bars": [
                {"what": "stat & co", "measured": stat, "bar": 2.0, "reach": 4.0, "sign": ">="},
                {"what": "remote stat", "measured": null, "bar": 1.5, "reach": null, "sign": "<="},
            ],
            "results": [row(1, 100.0), row(2, 150.0)],
        })
    }

    #[test]
    fn each_bar_that_was_measured_has_a_panel_with_its_points() {
        let text = svg(&[run(Some(1.5)), run(None), run(Some(2.5))]);
        assert!(text.contains(">stat &amp; co</text>") && !text.contains("remote stat"), "{text}");
        // Two of the bar and two of the hosts.
        assert_eq!(text.matches("<circle").count(), 4, "{text}");
        assert!(text.contains("abc&lt;1&gt;") && text.contains(">2.5</text>"), "{text}");
        assert!(text.contains("hosts: create") && text.contains(">150</text>"), "{text}");
        assert_eq!(text.matches("<g ").count(), text.matches("</g>").count());
        assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");
        assert!(svg(&[]).ends_with("</svg>\n"));
    }

    #[test]
    fn marks_are_round() {
        for (highest, wanted) in
            [(4.0, 1.0), (9.0, 2.0), (24.0, 5.0), (0.9, 0.2), (70_000.0, 20_000.0)]
        {
            assert!((step(highest) - wanted).abs() < wanted / 1e6, "{highest}: {}", step(highest));
        }
        assert_eq!(
            (number(0.2 * 3.0), number(15_000.0), number(2e6)),
            ("0.6".into(), "15.0k".into(), "2000k".into())
        );
    }
}

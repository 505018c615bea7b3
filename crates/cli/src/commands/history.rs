//! `forebay history`: jobs that ran, the load of instances, and what happened to them.

use crate::command_line::{with_json, with_settings};
use crate::commands::{human, print_json, table};
use crate::failure::{Failure, Result, USAGE};
use crate::state::history::{HistoryPlace, load_json};
use crate::state::settings;
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use config::Key;
use history::record::{EventRecord, JobRun, Span};
use history::store::{Query, ROWS_MAX};
use serde_json::{Value, json};
use std::time::{SystemTime, UNIX_EPOCH};

const EXAMPLES: &str = "\
Examples:
  forebay history                         the jobs that ran, the newest first, with their advice
  forebay history --job sim --json        the runs of job 'sim', for a script
  forebay history load a --since 24h      the load of instance 'a' in each minute of a day
  forebay history load a --seconds        in each second of the last hour
  forebay history events --since 7d       what happened to all instances in a week

'forebay run' records its job; 'forebay monitor' and 'forebay dashboard' record load, events and jobs of
an instance while they run. 'forebay report JOB' shows all that is known of a job.";

/// Rows that are shown if `--rows` does not say otherwise.
const ROWS: usize = 50;
const DAY_SECONDS: u64 = 86_400;

pub(crate) fn command() -> Command {
    let what =
        |name: &'static str, about: &'static str| with_query(Command::new(name).about(about));
    let seconds = Arg::new("seconds")
        .long("seconds")
        .action(ArgAction::SetTrue)
        .help("Show seconds instead of minutes; they are kept for an hour");
    let job = Arg::new("job")
        .long("job")
        .value_name("JOB")
        .help("Only of this job; the load of an instance is that of all its jobs otherwise");
    let load = what("load", "Show the load of instances by minute").arg(seconds).arg(job.clone());
    with_query(Command::new("history").about("Show jobs, load and events of the past"))
        .arg(job)
        .args_conflicts_with_subcommands(true)
        .subcommand(load)
        .subcommand(what("events", "Show what happened to instances"))
        .after_long_help(EXAMPLES)
}

/// The options of each kind of rows.
fn with_query(command: Command) -> Command {
    let of = Arg::new("of").value_name("NAME").help("Only of this instance");
    let since = Arg::new("since")
        .long("since")
        .value_name("TIME")
        .value_parser(seconds_of)
        .help("Only of the last TIME, such as 90s, 15min, 24h or 7d");
    let rows = Arg::new("rows")
        .long("rows")
        .value_name("N")
        .value_parser(value_parser!(u64).range(1..=ROWS_MAX as u64))
        .default_value(ROWS.to_string())
        .help("Show at most the newest N");
    with_json(with_settings(command.arg(of).arg(since).arg(rows), &[Key::MonitorDb]))
}

/// Reads a time such as `24h`.
fn seconds_of(text: &str) -> std::result::Result<u64, String> {
    let units = [("min", 60), ("s", 1), ("h", 3600), ("d", DAY_SECONDS)];
    let split = units.iter().find_map(|(unit, each)| Some((text.strip_suffix(unit)?, *each)));
    let number = split.and_then(|(number, each)| number.parse::<u32>().ok().map(|it| (it, each)));
    let (number, each) = number.ok_or("give a number with s, min, h or d, such as 24h")?;
    Ok(u64::from(number) * each)
}

/// The rows that the command asks for.
///
/// # Errors
/// Never.
pub(crate) fn query(given: &ArgMatches, instance: Option<&String>) -> Result<Query> {
    let since = given.try_get_one::<u64>("since").ok().flatten();
    let rows = given.try_get_one::<u64>("rows").ok().flatten();
    let job = given.try_get_one::<String>("job").ok().flatten();
    Ok(Query {
        instance: instance.cloned(),
        job: job.cloned(),
        since_ms: since.map_or(0, |since| now_ms().saturating_sub(since.saturating_mul(1000))),
        rows: rows.and_then(|rows| usize::try_from(*rows).ok()).unwrap_or(ROWS),
    })
}

fn now_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}

pub(crate) fn run(given: &ArgMatches) -> Result<u8> {
    let (what, given) = given.subcommand().unwrap_or(("jobs", given));
    let settings = settings::resolve(given)?;
    let place = HistoryPlace::of(&settings)?;
    let query = query(given, given.get_one("of"))?;
    let is_json = given.get_flag("json");
    match what {
        "jobs" => print_runs(&place, &query, is_json)?,
        "load" => {
            let span = if given.get_flag("seconds") { Span::Second } else { Span::Minute };
            print_load(&place, span, &query, is_json)?;
        }
        "events" => print_events(&place, &query, is_json)?,
        _ => return Err(Failure::with_code(USAGE, format!("unknown: {what}"))),
    }
    Ok(0)
}

/// Prints the runs of jobs, the newest first.
///
/// # Errors
/// The history cannot be read.
pub(crate) fn print_runs(place: &HistoryPlace, query: &Query, is_json: bool) -> Result<()> {
    let runs = match place.open_existing()? {
        Some(mut store) => store.runs(query).map_err(|error| place.unreadable(&error))?,
        None => Vec::new(),
    };
    if is_json {
        print_json(&json!({ "jobs": runs }));
        return Ok(());
    }
    let heading =
        ["job", "instance", "begin", "seconds", "state", "processes", "read", "written", "advice"];
    let mut rows = vec![heading.map(str::to_owned).to_vec()];
    rows.extend(runs.iter().map(run_row));
    out!("{}", table(&rows));
    Ok(())
}

fn run_row(run: &JobRun) -> Vec<String> {
    let asks = |severity: &str| ["warn", "high"].contains(&severity);
    let advice = run.advice.iter().filter(|one| asks(&one.severity)).count();
    let cell = |text: &str| if text.is_empty() { "-".to_owned() } else { plain(text) };
    vec![
        cell(&run.job),
        cell(&run.instance),
        time_of(run.begin_ms),
        format!("{:.1}", run.seconds),
        if run.is_complete { "ended" } else { "not ended" }.to_owned(),
        run.ranks.to_string(),
        human(Some(run.bytes_read)),
        human(Some(run.bytes_written)),
        advice.to_string(),
    ]
}

/// A text in one cell of a table.
fn plain(text: &str) -> String {
    text.chars().map(|one| if one.is_control() { '?' } else { one }).collect()
}

fn print_load(place: &HistoryPlace, span: Span, query: &Query, is_json: bool) -> Result<()> {
    let samples = match place.open_existing()? {
        Some(mut store) => store.load(span, query).map_err(|error| place.unreadable(&error))?,
        None => Vec::new(),
    };
    if is_json {
        let all: Vec<Value> = samples.iter().map(load_json).collect();
        print_json(&json!({ "load": all }));
        return Ok(());
    }
    let heading = ["begin", "instance", "ops/s", "read/s", "written/s", "memory", "ssd", "dirty"];
    let mut rows = vec![heading.map(str::to_owned).to_vec()];
    for sample in &samples {
        let [operations, read, written, _, memory, ssd, dirty, ..] = sample.figures;
        let bytes = |figure: Option<f64>| human(figure.map(|it| it.max(0.0) as u64));
        rows.push(vec![
            time_of(sample.at_ms),
            plain(&sample.instance),
            operations.map_or_else(|| "-".to_owned(), |it| format!("{it:.0}")),
            bytes(read),
            bytes(written),
            bytes(memory),
            bytes(ssd),
            bytes(dirty),
        ]);
    }
    out!("{}", table(&rows));
    Ok(())
}

fn print_events(place: &HistoryPlace, query: &Query, is_json: bool) -> Result<()> {
    let events: Vec<EventRecord> = match place.open_existing()? {
        Some(mut store) => store.events(query).map_err(|error| place.unreadable(&error))?,
        None => Vec::new(),
    };
    if is_json {
        print_json(&json!({ "events": events }));
        return Ok(());
    }
    let mut rows = vec![["time", "instance", "kind", "event"].map(str::to_owned).to_vec()];
    for event in &events {
        let cells = [&event.instance, &event.kind, &event.text].map(|text| plain(text));
        rows.push([&[time_of(event.at_ms)][..], &cells].concat());
    }
    out!("{}", table(&rows));
    Ok(())
}

/// A time as `2026-11-26 17:30:05` in UTC.
fn time_of(millis: u64) -> String {
    let seconds = millis / 1000;
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    // Days since 0000-03-01, in eras of 400 years.
    let shifted = days + 719_468;
    let (era, day) = (shifted / 146_097, shifted % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day_of_year = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day_of_year + 2) / 153;
    let date = day_of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = year + era * 400 + u64::from(month <= 2);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{date:02} {hour:02}:{minute:02}:{second:02} UTC")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_dates() {
        let cases = [
            (0, "1970-01-01 00:00:00 UTC"),
            (951_782_400_000, "2000-02-29 00:00:00 UTC"),
            (1_795_714_205_999, "2026-11-26 17:30:05 UTC"),
            (4_107_542_399_000, "2100-02-28 23:59:59 UTC"),
        ];
        for (millis, text) in cases {
            assert_eq!(time_of(millis), text);
        }
    }

    #[test]
    fn a_span_of_time_has_a_unit() {
        let cases = [("90s", 90), ("15min", 900), ("24h", 86_400), ("7d", 604_800), ("0s", 0)];
        for (text, seconds) in cases {
            assert_eq!(seconds_of(text), Ok(seconds), "{text}");
        }
        for text in ["", "5", "h", "-1h", "1.5h", "9999999999d", "5 min", "1w"] {
            assert!(seconds_of(text).is_err(), "{text}");
        }
    }
}

//! `forebay top`: a live view of an instance.

use crate::command_line::{with_json, with_name, with_settings};
use crate::commands::{human, print_json, table};
use crate::failure::{Failure, Result, USAGE};
use crate::instance::inspect::query_time;
use crate::state::settings;
use crate::top::rates::{self, Rates};
use crate::top::{sample, show};
use clap::{Arg, ArgAction, ArgMatches, Command};
use config::Key;
use serde_json::json;
use std::io::IsTerminal as _;
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  forebay top                    the instance 'default', each second
  forebay top a --interval 5s
  forebay top --once --json      one sample of one interval, for programs

Keys: j jobs, d daemons, enter the processes of the chosen job, f its files, esc back, s sort by
another column, p pause, q end. A job is named by 'forebay run --job', by the scheduler, or by the run
that started it.";

pub(crate) fn command() -> Command {
    let once = Arg::new("once")
        .long("once")
        .action(ArgAction::SetTrue)
        .help("Print one sample and end; the only way without a terminal");
    let interval = Arg::new("interval")
        .long("interval")
        .value_name("TIME")
        .default_value("1s")
        .help("Time between samples, from 100ms to 1h");
    let command = Command::new("top").about("Show what an instance does, live");
    let command = command.after_long_help(EXAMPLES).arg(once).arg(interval);
    with_json(with_name(with_settings(command, &[Key::Name, Key::Timeout])))
}

/// The value of `--interval`.
///
/// # Errors
/// It is no time, or out of range.
pub(super) fn interval(given: &ArgMatches) -> Result<Duration> {
    let text = given.get_one::<String>("interval").map_or("1s", String::as_str);
    let micros = config::parse::micros(text);
    let range = 100_000..=3_600_000_000;
    match micros.filter(|micros| range.contains(micros)) {
        Some(micros) => Ok(Duration::from_micros(micros)),
        None => {
            let text = format!("invalid --interval: {text:?}: give a time from 100ms to 1h");
            Err(Failure::with_code(USAGE, text))
        }
    }
}

pub(crate) fn run(given: &ArgMatches) -> Result<u8> {
    let settings = settings::resolve(given)?;
    let name = settings.word(Key::Name).to_owned();
    let (interval, timeout) = (interval(given)?, query_time(&settings));
    let first = sample::take(&name, None, timeout)?;
    if given.get_flag("once") || given.get_flag("json") {
        std::thread::sleep(interval);
        let now = sample::take(&name, None, timeout)?;
        let rates = rates::between(&first, &now);
        match given.get_flag("json") {
            true => print_json(&json!({
                "name": name,
                "totals": rates.totals,
                "jobs": rates.jobs,
                "daemons": rates.daemons,
                "copies": rates.copies,
                "slow_targets": now.slow_targets,
                "thrashing": now.thrashing,
                "shares": now.shares,
            })),
            false => print(&rates),
        }
        return Ok(0);
    }
    if !std::io::stdout().is_terminal() || !std::io::stdin().is_terminal() {
        let text = "standard input or output is no terminal: use 'forebay top --once'";
        return Err(Failure::with_code(USAGE, text));
    }
    let instance = name.clone();
    show(&name, interval, Box::new(move |job| sample::take(&instance, job, timeout)))?;
    Ok(0)
}

fn print(rates: &Rates) {
    rates.problems.iter().for_each(|problem| outln!("{problem}"));
    let rate = |bytes: f64| format!("{}/s", human(Some(bytes as u64)));
    let heads = ["job", "running", "ops/s", "read/s", "written/s"];
    let mut rows = vec![heads.map(str::to_owned).to_vec()];
    for job in &rates.jobs {
        let name: String =
            job.job.chars().map(|one| if one.is_control() { '?' } else { one }).collect();
        rows.push(vec![
            if name.is_empty() { "-".to_owned() } else { name },
            job.running.to_string(),
            format!("{:.0}", job.throughput.operations_per_second),
            rate(job.throughput.read_bytes_per_second),
            rate(job.throughput.written_bytes_per_second),
        ]);
    }
    out!("{}", table(&rows));
    let heads = ["daemon", "host", "requests/s", "memory", "ssd"];
    let mut rows = vec![heads.map(str::to_owned).to_vec()];
    for daemon in &rates.daemons {
        let host = if daemon.host.is_empty() { "here" } else { &daemon.host };
        let part = |used: u64, total: u64| match daemon.answers {
            true => format!("{} of {}", human(Some(used)), human(Some(total))),
            false => "no answer".to_owned(),
        };
        rows.push(vec![
            daemon.index.to_string(),
            host.to_owned(),
            format!("{:.0}", daemon.requests_per_second),
            part(daemon.memory_used, daemon.memory_total),
            part(daemon.ssd_used, daemon.ssd_total),
        ]);
    }
    out!("{}", table(&rows));
}

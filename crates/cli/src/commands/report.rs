//! `forebay report`: what the I/O of a job did, and what to change about it.

use crate::command_line::{with_json, with_settings};
use crate::commands::{print_json, table};
use crate::failure::{Failure, Result, USAGE};
use crate::instance::inspect::query_time;
use crate::instance::jobs;
use crate::state::{job_profiles, settings};
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use config::Key;
use insight::comparison::compare;
use insight::profile::JobProfile;
use insight::report::Report;
use serde_json::json;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  forebay report                          the jobs whose reports are kept
  forebay report 4711                     the report of the newest run of job 4711
  forebay report 4711 --now --name a      what it did so far in the running instance 'a', on all hosts
  forebay report sim --html sim.html      as one HTML page, which needs nothing else
  forebay report --compare sim~1 sim      what changed since the run before

JOB~1 is the run before the newest one, JOB~2 the one before that. A JOB with a slash is the path of a
file that --json has written. Reports are in $XDG_STATE_HOME/forebay/jobs (default ~/.local/state) and
contain names of files, but no data.";

pub(crate) fn command() -> Command {
    let job = Arg::new("job").value_name("JOB").help("Name of a job, or path of a saved report");
    let html = Arg::new("html")
        .long("html")
        .value_name("PATH")
        .value_parser(value_parser!(PathBuf))
        .conflicts_with("json")
        .requires("job")
        .help("Write the report as one HTML page");
    let compare = Arg::new("compare")
        .long("compare")
        .value_names(["FIRST", "SECOND"])
        .num_args(2)
        .action(ArgAction::Set)
        .conflicts_with_all(["job", "html"])
        .help("Compare two runs");
    let command = Command::new("report").about("Show what the I/O of a job did, with advice");
    let now = Arg::new("now")
        .long("now")
        .action(ArgAction::SetTrue)
        .requires("job")
        .help("Ask the daemons of all hosts of the running instance, and keep the report");
    let command = command.arg(job).arg(html).arg(compare).arg(now);
    let command = with_settings(command, &[Key::Name, Key::Timeout]);
    with_json(command).after_long_help(EXAMPLES)
}

pub(crate) fn run(given: &ArgMatches) -> Result<u8> {
    let is_json = given.get_flag("json");
    if let Some(names) = given.get_many::<String>("compare") {
        let mut names = names.map(String::as_str);
        return show_comparison(names.next().unwrap_or(""), names.next().unwrap_or(""), is_json);
    }
    let Some(job) = given.get_one::<String>("job") else { return list(is_json) };
    let profile = if given.get_flag("now") { read(given, job)? } else { job_profiles::load(job)? };
    let report = Report::new(profile);
    if let Some(path) = given.get_one::<PathBuf>("html") {
        std::fs::write(path, report.page())
            .map_err(|error| Failure::at("cannot write the report", path.display(), error))?;
        outln!("{}", path.display());
    } else if is_json {
        print_json(&as_json(&report)?);
    } else {
        out!("{}", report.text());
    }
    Ok(0)
}

/// The figures of a job so far in a running instance; it is kept, too.
fn read(given: &ArgMatches, job: &str) -> Result<JobProfile> {
    let settings = settings::resolve(given)?;
    let name = settings.word(Key::Name);
    let profile = jobs::profile(name, job, query_time(&settings))?.ok_or_else(|| {
        let advice = format!("see 'forebay job list {name}'");
        Failure::at("no such job", format!("{job} in instance {name}"), advice)
    })?;
    job_profiles::save(&profile)?;
    Ok(profile)
}

fn as_json(report: &impl serde::Serialize) -> Result<serde_json::Value> {
    serde_json::to_value(report)
        .map_err(|error| Failure::new(format!("cannot write JSON: {error}")))
}

fn show_comparison(first: &str, second: &str, is_json: bool) -> Result<u8> {
    if first == second {
        let text = format!("both runs are {first}: name two, for instance {first}~1 {first}");
        return Err(Failure::with_code(USAGE, text));
    }
    let reports = [first, second].map(|name| job_profiles::load(name).map(Report::new));
    let [first, second] = reports;
    let comparison = compare(&first?, &second?);
    match is_json {
        true => print_json(&as_json(&comparison)?),
        false => out!("{}", comparison.text()),
    }
    Ok(0)
}

fn list(is_json: bool) -> Result<u8> {
    let runs = job_profiles::list()?;
    if is_json {
        let each = runs.iter().map(|run| json!({ "job": run.job(), "begin_ms": run.begin_ms }));
        print_json(&json!({ "jobs": each.collect::<Vec<_>>() }));
        return Ok(0);
    }
    let mut rows = vec![["job", "begin"].map(str::to_owned).to_vec()];
    for run in &runs {
        let job: String =
            run.job().chars().map(|one| if one.is_control() { '?' } else { one }).collect();
        rows.push(vec![job, time_of(run.begin_ms)]);
    }
    out!("{}", table(&rows));
    Ok(0)
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
}

//! `forebay report`: what the I/O of a job did, and what to change about it.

use crate::command_line::{with_json, with_settings};
use crate::commands::history::{print_runs, query};
use crate::commands::print_json;
use crate::failure::{Failure, Result, USAGE};
use crate::instance::inspect::query_time;
use crate::instance::jobs;
use crate::state::history::HistoryPlace;
use crate::state::settings;
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use config::{Key, Settings};
use insight::comparison::compare;
use insight::csv::rows;
use insight::report::Report;
use std::path::{Path, PathBuf};

const EXAMPLES: &str = "\
Examples:
  forebay report                          the jobs whose reports are kept
  forebay report 4711                     the report of the newest run of job 4711
  forebay report 4711 --now --name a      what it did so far in the running instance 'a', on all hosts
  forebay report sim --html sim.html      as one HTML page, which needs nothing else
  forebay report sim --csv sim.csv        as rows, for pandas or a spreadsheet
  forebay report --compare sim~1 sim      what changed since the run before

JOB~1 is the run before the newest one, JOB~2 the one before that. A JOB with a slash is the path of a
file that --json has written. Reports are in the history (--monitor-db) and contain names of files, but
no data.";

pub(crate) fn command() -> Command {
    let job = Arg::new("job").value_name("JOB").help("Name of a job, or path of a saved report");
    let html = Arg::new("html")
        .long("html")
        .value_name("PATH")
        .value_parser(value_parser!(PathBuf))
        .conflicts_with("json")
        .requires("job")
        .help("Write the report as one HTML page");
    let csv = Arg::new("csv")
        .long("csv")
        .value_name("PATH")
        .value_parser(value_parser!(PathBuf))
        .conflicts_with_all(["json", "html"])
        .requires("job")
        .help("Write the figures of each file and rank as comma-separated values")
        .long_help(
            "Write the figures of each file and rank as comma-separated values, for a spreadsheet or \
             pandas; the user guide lists the columns",
        );
    let compare = Arg::new("compare")
        .long("compare")
        .value_names(["FIRST", "SECOND"])
        .num_args(2)
        .action(ArgAction::Set)
        .conflicts_with_all(["job", "html", "csv"])
        .help("Compare two runs");
    let command = Command::new("report").about("Show what the I/O of a job did, with advice");
    let now = Arg::new("now")
        .long("now")
        .action(ArgAction::SetTrue)
        .requires("job")
        .help("Ask the daemons of all hosts of the running instance, and keep the report");
    let command = command.arg(job).arg(html).arg(csv).arg(compare).arg(now);
    let command = with_settings(command, &[Key::Name, Key::Timeout, Key::MonitorDb]);
    with_json(command).after_long_help(EXAMPLES)
}

pub(crate) fn run(given: &ArgMatches) -> Result<u8> {
    let is_json = given.get_flag("json");
    let settings = settings::resolve(given)?;
    let place = HistoryPlace::of(&settings)?;
    if let Some(names) = given.get_many::<String>("compare") {
        let mut names = names.map(String::as_str);
        let [first, second] = [names.next().unwrap_or(""), names.next().unwrap_or("")];
        return show_comparison(&place, first, second, is_json);
    }
    let Some(job) = given.get_one::<String>("job") else {
        print_runs(&place, &query(given, None)?, is_json)?;
        return Ok(0);
    };
    let report = match given.get_flag("now") {
        true => read(&settings, &place, job)?,
        false => Report::new(place.load(job)?),
    };
    if let Some(path) = given.get_one::<PathBuf>("html") {
        write(path, &report.page())?;
    } else if let Some(path) = given.get_one::<PathBuf>("csv") {
        write(path, &rows(&report.profile))?;
    } else if is_json {
        print_json(&as_json(&report)?);
    } else {
        out!("{}", report.text());
    }
    Ok(0)
}

fn write(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text)
        .map_err(|error| Failure::at("cannot write the report", path.display(), error))?;
    outln!("{}", path.display());
    Ok(())
}

/// The report of a job so far in a running instance; it is kept, too.
fn read(settings: &Settings, place: &HistoryPlace, job: &str) -> Result<Report> {
    let name = settings.word(Key::Name);
    let (profile, silent) = jobs::profile(name, job, query_time(settings))?;
    jobs::warn_of(&silent);
    let profile = profile.ok_or_else(|| {
        let advice = format!("see 'forebay job list {name}'");
        Failure::at("no such job", format!("{job} in instance {name}"), advice)
    })?;
    let report = Report::new(profile);
    if let Err(failure) = place.keep(name, &report) {
        errln!("forebay report: {}", failure.text());
    }
    Ok(report)
}

fn as_json(report: &impl serde::Serialize) -> Result<serde_json::Value> {
    serde_json::to_value(report)
        .map_err(|error| Failure::new(format!("cannot write JSON: {error}")))
}

fn show_comparison(place: &HistoryPlace, first: &str, second: &str, is_json: bool) -> Result<u8> {
    if first == second {
        let text = format!("both runs are {first}: name two, for instance {first}~1 {first}");
        return Err(Failure::with_code(USAGE, text));
    }
    let reports = [first, second].map(|name| place.load(name).map(Report::new));
    let [first, second] = reports;
    let comparison = compare(&first?, &second?);
    match is_json {
        true => print_json(&as_json(&comparison)?),
        false => out!("{}", comparison.text()),
    }
    Ok(0)
}

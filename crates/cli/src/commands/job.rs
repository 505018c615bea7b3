//! `forebay job`: the jobs that used an instance, and what one of them did as it was counted.

use crate::command_line::{with_json, with_name, with_settings};
use crate::commands::{human, print_json, table};
use crate::failure::{Failure, Result, USAGE};
use crate::instance::inspect::query_time;
use crate::instance::jobs;
use crate::state::settings;
use clap::{Arg, ArgMatches, Command};
use config::Key;
use config::activity::{JobProfile, JobSummary, ProcessProfile};
use serde_json::json;

const EXAMPLES: &str = "\
Examples:
  forebay job list           the jobs of the instance 'default'
  forebay job list a --json

A job is named by 'forebay run --job NAME', else by the variable FOREBAY_JOB, SLURM_JOB_ID, FLUX_JOB_ID or
PBS_JOBID of its processes, else by the 'forebay run' that started them. Processes without any of these
belong to the job '-'. Counted are operations that reach the instance: what the kernel of a mount answers
from its caches, and loads and stores of mapped files, are not among them.";

const SHOW_EXAMPLES: &str = "\
Examples:
  forebay job show 4711
  forebay job show 4711 --name a --json

With --json everything that is counted is printed: operations of each process by class, and reads and
writes of each process in each file. Numbers and bytes are exact; times, and patterns after the first 256
reads or writes of a process in a file, come from a sample. docs/internals/activity.md lists the fields.";

pub(crate) fn command() -> Command {
    let list = Command::new("list").about("List the jobs that used an instance");
    let list = list.after_long_help(EXAMPLES);
    let list = with_json(with_name(with_settings(list, &[Key::Name, Key::Timeout])));
    let job = Arg::new("job").value_name("JOB").required(true).help("Name of the job");
    let show = Command::new("show").about("Show what a job did, process by process");
    let show = show.after_long_help(SHOW_EXAMPLES).arg(job);
    let show = with_json(with_settings(show, &[Key::Name, Key::Timeout]));
    Command::new("job")
        .about("Show the jobs that used an instance")
        .subcommand_required(true)
        .subcommand(list)
        .subcommand(show)
}

pub(crate) fn run(given: &ArgMatches) -> Result<u8> {
    match given.subcommand() {
        Some(("list", given)) => list(given),
        Some(("show", given)) => show(given),
        _ => Err(Failure::with_code(USAGE, "no command given: 'forebay job list'")),
    }
}

fn list(given: &ArgMatches) -> Result<u8> {
    let settings = settings::resolve(given)?;
    let name = settings.word(Key::Name);
    let (all, silent) = jobs::list(name, query_time(&settings))?;
    jobs::warn_of(&silent);
    if given.get_flag("json") {
        print_json(&json!({ "name": name, "jobs": all }));
        return Ok(0);
    }
    let heading = ["job", "state", "processes", "operations", "read", "written"];
    let mut rows = vec![heading.map(str::to_owned).to_vec()];
    rows.extend(all.iter().map(row));
    out!("{}", table(&rows));
    Ok(0)
}

fn show(given: &ArgMatches) -> Result<u8> {
    let settings = settings::resolve(given)?;
    let name = settings.word(Key::Name);
    let job = given.get_one::<String>("job").map_or("", String::as_str);
    // As `list` shows processes without a job.
    let job = if job == "-" { "" } else { job };
    let (profile, silent) = jobs::counted(name, job, query_time(&settings))?;
    jobs::warn_of(&silent);
    let Some(profile) = profile else {
        let advice = format!("see 'forebay job list {name}'");
        return Err(Failure::at("no such job", format!("{job} in instance {name}"), advice));
    };
    if given.get_flag("json") {
        print_json(&json!(profile));
        return Ok(0);
    }
    let heading = ["rank", "program", "host", "pid", "state", "operations", "read", "written"];
    let mut rows = vec![heading.map(str::to_owned).to_vec()];
    let all = profile.processes.iter().enumerate();
    rows.extend(all.map(|(place, process)| process_row(&profile, place, process)));
    out!("{}", table(&rows));
    Ok(0)
}

fn process_row(profile: &JobProfile, place: usize, process: &ProcessProfile) -> Vec<String> {
    let (mut reads, mut writes) = (process.other_reads, process.other_writes);
    for file in profile.files.iter().filter(|file| file.process == place) {
        reads.add(&file.reads);
        writes.add(&file.writes);
    }
    let mut operations = process.operations;
    let number: u64 = operations.all_mut().iter().map(|class| class.number).sum();
    let pid = if process.pid == 0 {
        format!("{} merged", process.processes)
    } else {
        process.pid.to_string()
    };
    vec![
        process.rank.map_or_else(|| "-".to_owned(), |rank| rank.to_string()),
        process.program.clone(),
        process.host.clone(),
        pid,
        if process.ended.is_some() { "ended" } else { "running" }.to_owned(),
        number.to_string(),
        human(Some(reads.bytes)),
        human(Some(writes.bytes)),
    ]
}

fn row(job: &JobSummary) -> Vec<String> {
    let name = if job.job.is_empty() { "-" } else { &job.job };
    let state = if job.ended.is_some() { "ended" } else { "running" };
    vec![
        name.to_owned(),
        state.to_owned(),
        job.processes.to_string(),
        job.operations.to_string(),
        human(Some(job.bytes_read)),
        human(Some(job.bytes_written)),
    ]
}

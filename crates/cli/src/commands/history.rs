//! `forebay history`: what is kept of the runs of periodic jobs.

use crate::command_line::with_json;
use crate::commands::{print_json, table};
use crate::failure::{Failure, Result, USAGE};
use crate::history;
use below::history::{History, written};
use clap::{Arg, ArgMatches, Command, value_parser};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

const EXAMPLES: &str = "\
Examples:
  forebay run --backing /lustre/ann --history forecast -- ./forecast    notes what is read, and follows it
                                                                        the next time
  forebay history list
  forebay history show forecast
  forebay history drop forecast

A history is made when an instance with --history is stopped: which files of the backing directory were
read, in which order, and milliseconds from one to the next. The next instance with the same history
brings them up before they are asked for. They lie in $XDG_STATE_HOME/forebay/history (without it
~/.local/state), one file each, with no bytes of your files.";

fn name() -> Arg {
    Arg::new("name").value_name("NAME").required(true).help("Name of the history")
}

pub(super) fn command() -> Command {
    let sub = |name, about| with_json(Command::new(name).about(about));
    Command::new("history")
        .about("Show or forget what earlier runs of a job read")
        .after_help(EXAMPLES)
        .subcommand_required(true)
        .subcommand(sub("list", "List the histories"))
        .subcommand(sub("show", "Show the files of one, in order").arg(name()))
        .subcommand(sub("drop", "Forget one: the next run finds nothing on its way").arg(name()))
}

/// What `start` runs for it.
pub(super) fn worker_command() -> Command {
    let path = |name| Arg::new(name).required(true).value_parser(value_parser!(PathBuf));
    Command::new("follow").arg(path("below").long("below")).arg(path("file"))
}

/// What the worker does.
pub(super) fn work(given: &ArgMatches) -> Result<u8> {
    let path = |name: &str| given.get_one::<PathBuf>(name).map_or(Path::new(""), PathBuf::as_path);
    if let Some(history) = history::load_file(path("file"))? {
        history::tell(path("below"), &history);
    }
    Ok(0)
}

pub(super) fn run(given: &ArgMatches) -> Result<u8> {
    let (word, given) = given.subcommand().ok_or_else(|| Failure::new("list, show or drop?"))?;
    let is_json = given.get_flag("json");
    if word == "list" {
        return list(is_json);
    }
    let name = given.get_one::<String>("name").map_or("", String::as_str);
    if !config::parse::is_name(name) {
        return Err(Failure::with_code(USAGE, format!("no name of a history: {name:?}")));
    }
    let none = || Failure::at("no history", name, "see 'forebay history list'");
    if word == "drop" {
        if !history::remove(name)? {
            return Err(none());
        }
        match is_json {
            true => print_json(&json!({ "dropped": name })),
            false => outln!("history {name} is dropped"),
        }
        return Ok(0);
    }
    let history = history::load(name)?.ok_or_else(none)?;
    match is_json {
        true => print_json(&as_json(name, &history)),
        false => {
            outln!("history {name}: {} files, {} at a time", history.uses.len(), history.group());
            for one in &history.uses {
                outln!("{:>8} ms  {}", one.gap_millis, written(&one.path));
            }
        }
    }
    Ok(0)
}

fn as_json(name: &str, history: &History) -> Value {
    let files = history.uses.iter();
    let files = files.map(|one| json!({ "gap_ms": one.gap_millis, "path": written(&one.path) }));
    json!({ "name": name, "group": history.group(), "files": files.collect::<Vec<_>>() })
}

fn list(is_json: bool) -> Result<u8> {
    let names = history::names()?;
    // A broken one is no reason not to show the others.
    let all: Vec<(String, Result<Option<History>>)> =
        names.into_iter().map(|name| (name.clone(), history::load(&name))).collect();
    if is_json {
        let each = all.iter().map(|(name, found)| match found {
            Ok(found) => {
                let count = found.as_ref().map_or(0, |history| history.uses.len());
                json!({ "name": name, "files": count })
            }
            Err(failure) => json!({ "name": name, "error": failure.text() }),
        });
        print_json(&json!({ "histories": each.collect::<Vec<_>>() }));
        return Ok(0);
    }
    let mut rows = vec![["name", "files"].map(str::to_owned).to_vec()];
    for (name, found) in all {
        let what = match found {
            Ok(found) => found.map_or(0, |history| history.uses.len()).to_string(),
            Err(failure) => failure.text().to_owned(),
        };
        rows.push(vec![name, what]);
    }
    out!("{}", table(&rows));
    Ok(0)
}

//! `forebay profile`: the access profiles of periodic jobs.

use crate::command_line::with_json;
use crate::commands::{plural, print_json, table};
use crate::failure::{Failure, Result, USAGE};
use crate::instance::profile;
use backing::profile::{AccessProfile, written};
use clap::{Arg, ArgMatches, Command, value_parser};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

const EXAMPLES: &str = "\
Examples:
  forebay run --backing /lustre/ann --profile forecast -- ./forecast    records what is read, and
                                                                        prefetches it the next time
  forebay profile list
  forebay profile show forecast
  forebay profile remove forecast

A profile is written when an instance with --profile stops: the files of the backing directory that were
read, their order, and the milliseconds between them. The next instance with the same profile prefetches
these files. Profiles are in $XDG_STATE_HOME/forebay/profiles (default ~/.local/state), one file each,
and contain no file data.";

fn name() -> Arg {
    Arg::new("name").value_name("NAME").required(true).help("Name of the profile")
}

pub(crate) fn command() -> Command {
    let sub = |name, about| with_json(Command::new(name).about(about));
    Command::new("profile")
        .about("Show or remove access profiles of periodic jobs")
        .after_long_help(EXAMPLES)
        .subcommand_required(true)
        .subcommand(sub("list", "List the profiles"))
        .subcommand(sub("show", "Show the files of a profile, in order").arg(name()))
        .subcommand(sub("remove", "Remove a profile: the next run prefetches nothing").arg(name()))
}

/// The hidden command that `start` runs to prefetch the files of a profile.
pub(crate) fn worker_command() -> Command {
    let path = |name| Arg::new(name).required(true).value_parser(value_parser!(PathBuf));
    Command::new("follow-profile").arg(path("at").long("at")).arg(path("file"))
}

/// The work of the hidden command.
pub(crate) fn work(given: &ArgMatches) -> Result<u8> {
    let path = |name: &str| given.get_one::<PathBuf>(name).map_or(Path::new(""), PathBuf::as_path);
    if let Some(history) = profile::load_file(path("file"))? {
        profile::prefetch(path("at"), &history);
    }
    Ok(0)
}

pub(crate) fn run(given: &ArgMatches) -> Result<u8> {
    let (word, given) = given.subcommand().ok_or_else(|| Failure::new("list, show or remove?"))?;
    let is_json = given.get_flag("json");
    if word == "list" {
        return list(is_json);
    }
    let name = given.get_one::<String>("name").map_or("", String::as_str);
    if !config::parse::is_name(name) {
        return Err(Failure::with_code(USAGE, format!("invalid profile name: {name:?}")));
    }
    let none = || Failure::at("no such profile", name, "see 'forebay profile list'");
    if word == "remove" {
        if !profile::remove(name)? {
            return Err(none());
        }
        match is_json {
            true => print_json(&json!({ "removed": name })),
            false => outln!("removed profile {name}"),
        }
        return Ok(0);
    }
    let profile = profile::load(name)?.ok_or_else(none)?;
    match is_json {
        true => print_json(&as_json(name, &profile)),
        false => {
            let files = plural(profile.uses.len() as u64, "file");
            outln!("profile {name}: {files}, {} read at a time", profile.batch());
            for one in &profile.uses {
                outln!("{:>8} ms  {}", one.gap_millis, written(&one.path));
            }
        }
    }
    Ok(0)
}

fn as_json(name: &str, history: &AccessProfile) -> Value {
    let files = history.uses.iter();
    let files = files.map(|one| json!({ "gap_ms": one.gap_millis, "path": written(&one.path) }));
    json!({ "name": name, "batch": history.batch(), "files": files.collect::<Vec<_>>() })
}

fn list(is_json: bool) -> Result<u8> {
    let names = profile::names()?;
    // A damaged profile does not hide the others.
    let all: Vec<(String, Result<Option<AccessProfile>>)> =
        names.into_iter().map(|name| (name.clone(), profile::load(&name))).collect();
    if is_json {
        let each = all.iter().map(|(name, found)| match found {
            Ok(found) => {
                let count = found.as_ref().map_or(0, |history| history.uses.len());
                json!({ "name": name, "files": count })
            }
            Err(failure) => json!({ "name": name, "error": failure.text() }),
        });
        print_json(&json!({ "profiles": each.collect::<Vec<_>>() }));
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

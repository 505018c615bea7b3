//! `forebay flush`: waits until what was written lies in the backing directory.

use crate::command_line::{with_json, with_settings};
use crate::commands::{human, layout, print_json};
use crate::failure::{Failure, Result};
use crate::records::Host;
use crate::{directories, host, instance, records, settings, writeback};
use clap::{Arg, ArgMatches, Command};
use config::{Key, Settings};
use serde_json::json;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  forebay flush                  until all lies in the backing directory
  forebay flush /forebay/out     until the directory out lies there, with all that is below it
  forebay flush --timeout 10m    gives up if nothing was saved for ten minutes

PATHs are files and directories of the instance, as programs or a mount show them; without one it is all.
What has been written so far is saved, also what is saved at the end of the instance alone, and what is
open to write, as it is now; directories whose policy is 'never' are not. When it ends with 0 all of that
is on the device. Otherwise the exit code is 1, and what could not be saved is said with its reason; it
stays in the instance, and is tried again.";

pub(super) fn command() -> Command {
    let about = "Wait until what was written lies in the backing directory";
    let command = Command::new("flush").about(about).after_help(EXAMPLES);
    let paths = Arg::new("paths")
        .num_args(0..)
        .value_name("PATH")
        .value_parser(clap::value_parser!(PathBuf))
        .help("Files or directories of the instance; all, without one");
    with_json(with_settings(command.arg(paths), &[Key::Name, Key::At, Key::Timeout]))
}

pub(super) fn run(given: &ArgMatches) -> Result<u8> {
    let settings = settings::resolve(given)?;
    let name = settings.word(Key::Name);
    let asked: Vec<&PathBuf> = given.get_many("paths").into_iter().flatten().collect();
    let paths = within(&settings, &asked)?;
    let told = instance::flush(name, &paths, settings.timeout())?;
    if told.is_none() && !paths.is_empty() && !has_below(name)? {
        let why = "it has no backing directory, or nothing is written there";
        return Err(Failure::at("can not flush", format!("instance {name}"), why));
    }
    if given.get_flag("json") {
        let mut said = json!({ "flushed": name, "writer": told });
        if !asked.is_empty() {
            said["paths"] = asked.iter().map(|path| path.to_string_lossy()).collect();
        }
        print_json(&said);
    } else if !asked.is_empty() {
        asked.iter().for_each(|path| outln!("{} is saved", path.display()));
    } else if let Some(told) = told {
        let bytes = human(Some(told.bytes_saved));
        outln!("instance {name} is saved: {} files and names, {bytes} so far", told.saved);
        if told.conflicts > 0 {
            outln!("{} were changed there by others: see 'forebay status'", told.conflicts);
        }
    } else {
        outln!("instance {name} is saved");
    }
    Ok(0)
}

/// Paths from the instance's root, as the writer takes them.
///
/// # Errors
/// One is not of the instance.
fn within(settings: &Settings, paths: &[&PathBuf]) -> Result<Vec<String>> {
    if paths.is_empty() {
        return Ok(Vec::new());
    }
    let run = directories::run(settings.word(Key::Name))?;
    let at = host::seen_at(settings)?;
    let within = paths.iter().map(|path| layout::path_within(path, &at, &run));
    within.map(|path| Ok(writeback::hex(&path?))).collect()
}

/// True if what is written to the instance is saved somewhere.
fn has_below(name: &str) -> Result<bool> {
    let here: Option<Host> = records::load(&directories::run(name)?, host::RECORD)?;
    Ok(here.is_some_and(|host| host.wanted.has_writer()))
}

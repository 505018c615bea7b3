//! `forebay flush`: writes all changes to the backing directory and waits for that.

use crate::command_line::{with_json, with_settings};
use crate::commands::files::layout;
use crate::commands::{files_and_names, human, plural, print_json};
use crate::failure::{Failure, Result};
use crate::instance::cluster;
use crate::instance::host;
use crate::state::directories;
use crate::state::records;
use crate::state::records::HostRecord;
use crate::state::settings;
use clap::{Arg, ArgMatches, Command};
use config::control::path_to_hex;
use config::{Key, Settings};
use serde_json::json;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  forebay flush                  write all changes back
  forebay flush /forebay/out     write back the directory out and everything in it
  forebay flush --timeout 10m    give up if nothing has been written for ten minutes

PATHs are files and directories of the instance, as programs or a mount show them. Everything written so
far is written back, also in directories with the mode 'end', and the current contents of files that are
open for writing; directories with the mode 'never' are left out. With exit code 0 all of it is on the
device. Otherwise the exit code is 1 and each failure is reported with its reason; the data stays in the
instance, and writing it back is tried again.";

pub(crate) fn command() -> Command {
    let about = "Write all changes to the backing directory and wait";
    let command = Command::new("flush").about(about).after_long_help(EXAMPLES);
    let paths = Arg::new("paths")
        .num_args(0..)
        .value_name("PATH")
        .value_parser(clap::value_parser!(PathBuf))
        .help("Files or directories of the instance; default: all");
    with_json(with_settings(command.arg(paths), &[Key::Name, Key::At, Key::Timeout]))
}

pub(crate) fn run(given: &ArgMatches) -> Result<u8> {
    let settings = settings::resolve(given)?;
    let name = settings.word(Key::Name);
    let given_paths: Vec<&PathBuf> = given.get_many("paths").into_iter().flatten().collect();
    let paths = within(&settings, &given_paths)?;
    let status = cluster::flush(name, &paths, settings.timeout())
        .map_err(|failure| with_given_path(failure, &given_paths, &settings))?;
    if status.is_none() && !paths.is_empty() && !has_backing(name)? {
        let why = "it has no backing directory";
        return Err(Failure::at("cannot flush", format!("instance {name}"), why));
    }
    if given.get_flag("json") {
        let mut result = json!({ "flushed": name, "writeback": status });
        if !given_paths.is_empty() {
            result["paths"] = given_paths.iter().map(|path| path.to_string_lossy()).collect();
        }
        print_json(&result);
    } else if !given_paths.is_empty() {
        given_paths.iter().for_each(|path| outln!("flushed {}", path.display()));
    } else if let Some(status) = status {
        let bytes = human(Some(status.metrics.bytes_written));
        outln!(
            "flushed instance {name}: {} written so far, {bytes}",
            files_and_names(status.metrics.written)
        );
        if status.metrics.conflicts > 0 {
            let conflicts = plural(status.metrics.conflicts, "conflict");
            outln!("{conflicts} with changes of others: see 'forebay status'");
        }
    } else if has_backing(name)? {
        outln!("flushed instance {name}");
    } else {
        outln!(
            "nothing was saved: instance {name} has no backing directory (use 'forebay stage out')"
        );
    }
    Ok(0)
}

/// The failure with the path as it was given, in place of the path from the instance's root.
fn with_given_path(failure: Failure, given: &[&PathBuf], settings: &Settings) -> Failure {
    let run = directories::run(settings.word(Key::Name));
    let (Ok(run), Ok(at)) = (run, host::visible_at(settings)) else { return failure };
    let refused = given.iter().find_map(|path| {
        let within = layout::path_within(path, &at, &run).ok()?;
        let within = within.strip_prefix(".").unwrap_or(&within);
        let rest = failure.text().strip_prefix(&format!("cannot flush: {}: ", within.display()))?;
        Some(format!("cannot flush: {}: {rest}", path.display()))
    });
    refused.map_or(failure.clone(), |text| Failure::with_code(failure.code(), text))
}

/// Paths from the instance's root, encoded for the writeback daemon.
///
/// # Errors
/// A path is not in the instance.
fn within(settings: &Settings, paths: &[&PathBuf]) -> Result<Vec<String>> {
    if paths.is_empty() {
        return Ok(Vec::new());
    }
    let run = directories::run(settings.word(Key::Name))?;
    let at = host::visible_at(settings)?;
    let within = paths.iter().map(|path| layout::path_within(path, &at, &run));
    within.map(|path| Ok(path_to_hex(&path?))).collect()
}

/// True if the instance has a backing directory.
fn has_backing(name: &str) -> Result<bool> {
    if let Some(instance) = cluster::load(name)? {
        return Ok(instance.config.has_writeback());
    }
    let here: Option<HostRecord> = records::load(&directories::run(name)?, host::RECORD)?;
    Ok(here.is_some_and(|host| host.config.has_writeback()))
}

//! `forebay stop`: stops an instance and removes its files.

use crate::command_line::{with_json, with_name, with_settings};
use crate::commands::{files_and_names, human, plural, print_json};
use crate::failure::Result;
use crate::instance::cluster::{self, DirtyData, StopOutcome};
use crate::instance::inspect::{self, DaemonReport, Usage};
use crate::instance::writeback;
use crate::state::{directories, settings};
use clap::{Arg, ArgAction, ArgMatches, Command};
use config::{Key, Settings};
use serde_json::json;

const EXAMPLES: &str = "\
Examples:
  forebay stop a                stop the instance 'a'
  forebay stop --dry-run        say what would be removed

All files of the instance are removed. With a backing directory, changes are written back first: if that
fails, or nothing is written for --timeout, the instance stays, unless --discard is given. Daemons that
do not end within --timeout are killed. Dead daemons are no obstacle.";

pub(crate) fn command() -> Command {
    let command = Command::new("stop").about("Stop an instance and remove its files");
    let command = with_settings(command.after_long_help(EXAMPLES), &[Key::Name, Key::Timeout]);
    let dry_run = Arg::new("dry-run").long("dry-run").action(ArgAction::SetTrue);
    with_json(with_name(command))
        .arg(discard())
        .arg(dry_run.help("Say what would be removed, and stop nothing"))
}

/// The option `--discard`.
pub(crate) fn discard() -> Arg {
    let help = "Discard changes that are not written back to the backing directory";
    Arg::new("discard").long("discard").action(ArgAction::SetTrue).help(help)
}

/// The fate of dirty data that the options ask for.
pub(crate) fn dirty_data(given: &ArgMatches) -> DirtyData {
    if given.get_flag("discard") { DirtyData::Discard } else { DirtyData::WriteBack }
}

/// Files and bytes, for people.
fn held(usage: Usage) -> String {
    format!("{}, {}", plural(usage.files, "file"), human(Some(usage.bytes)))
}

pub(crate) fn run(given: &ArgMatches) -> Result<u8> {
    let settings = settings::resolve(given)?;
    if given.get_flag("dry-run") {
        return dry_run(given, &settings);
    }
    let name = settings.word(Key::Name);
    let outcome = cluster::stop(name, settings.timeout(), dirty_data(given))?;
    let Usage { files, bytes } = outcome.removed;
    if given.get_flag("json") {
        print_json(&json!({
            "stopped": name, "daemons": outcome.count, "files": files, "bytes": bytes,
            "never_written": outcome.never_written,
        }));
    } else {
        outln!("stopped instance {name}: {}", end_of_data(&outcome));
    }
    Ok(0)
}

/// Where the data of a stopped instance is, for people.
fn end_of_data(outcome: &StopOutcome) -> String {
    match outcome.never_written {
        None => format!("{} removed", held(outcome.removed)),
        Some(0) => "all changes are written back".to_owned(),
        Some(count) => {
            let left = files_and_names(count);
            format!("all changes are written back but {left} with the writeback mode 'never'")
        }
    }
}

fn dry_run(given: &ArgMatches, settings: &Settings) -> Result<u8> {
    let name = settings.word(Key::Name);
    let all = inspect::inspect(name, settings.timeout())?;
    let usage = Usage::of(all.daemons.iter().filter_map(DaemonReport::status)).without_root();
    let report = match all.config.has_writeback() {
        true => writeback::status(&directories::run(name)?),
        false => None,
    };
    let dirty = report.map(|report| report.metrics.dirty);
    if given.get_flag("json") {
        let (files, bytes) = (usage.files, usage.bytes);
        print_json(&json!({ "name": name, "files": files, "bytes": bytes, "dirty": dirty }));
        return Ok(0);
    }
    outln!("'forebay stop {name}' would remove {}", held(usage));
    match (dirty, dirty_data(given)) {
        (Some(dirty), DirtyData::WriteBack) => {
            outln!("{} would be written back before", files_and_names(dirty));
        }
        (Some(dirty), DirtyData::Discard) => {
            outln!("{} would be discarded: they are not written back", files_and_names(dirty));
        }
        (None, _) => {}
    }
    Ok(0)
}

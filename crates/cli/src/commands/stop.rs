//! `forebay stop`: ends an instance and removes all that it had.

use crate::command_line::{with_json, with_settings};
use crate::commands::print_json;
use crate::failure::Result;
use crate::instance::Unsaved;
use crate::{instance, settings};
use clap::{Arg, ArgAction, ArgMatches, Command};
use config::Key;
use serde_json::json;

const EXAMPLES: &str = "\
Example:
  forebay stop --name a

All files of the instance are gone then. With a backing directory what was written is saved there
first: if that can not be done, or nothing is saved for --timeout, the instance stays, unless --discard
says that it may be lost. Daemons that do not end in --timeout are killed. It works
too if some are dead already.";

pub(super) fn command() -> Command {
    let command = Command::new("stop").about("Stop an instance and remove all that it had");
    with_json(with_settings(command.after_help(EXAMPLES), &[Key::Name, Key::Timeout]))
        .arg(discard())
}

/// The option `--discard`.
pub(super) fn discard() -> Arg {
    let help = "Drop what is not saved in the backing directory";
    Arg::new("discard").long("discard").action(ArgAction::SetTrue).help(help)
}

/// What it says.
pub(super) fn unsaved(given: &ArgMatches) -> Unsaved {
    if given.get_flag("discard") { Unsaved::Discard } else { Unsaved::Save }
}

pub(super) fn run(given: &ArgMatches) -> Result<u8> {
    let settings = settings::resolve(given)?;
    let name = settings.word(Key::Name);
    let count = instance::stop(name, settings.timeout(), unsaved(given))?;
    if given.get_flag("json") {
        print_json(&json!({ "stopped": name, "daemons": count }));
    } else {
        outln!("instance {name} is stopped and removed");
    }
    Ok(0)
}

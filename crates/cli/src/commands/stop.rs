//! `forebay stop`: ends an instance and removes all that it had.

use crate::command_line::{with_json, with_settings};
use crate::commands::print_json;
use crate::failure::Result;
use crate::{instance, settings};
use clap::{ArgMatches, Command};
use config::Key;
use serde_json::json;

const EXAMPLES: &str = "\
Example:
  forebay stop --name a

All files of the instance are gone then. Daemons that do not end in --timeout are killed. It works
too if some are dead already.";

pub(super) fn command() -> Command {
    let command = Command::new("stop").about("Stop an instance and remove all that it had");
    with_json(with_settings(command.after_help(EXAMPLES), &[Key::Name, Key::Timeout]))
}

pub(super) fn run(given: &ArgMatches) -> Result<u8> {
    let settings = settings::resolve(given)?;
    let name = settings.word(Key::Name);
    let count = instance::stop(name, settings.timeout())?;
    if given.get_flag("json") {
        print_json(&json!({ "stopped": name, "daemons": count }));
    } else {
        outln!("instance {name} is stopped and removed");
    }
    Ok(0)
}

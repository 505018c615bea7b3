//! `forebay flush`: waits until what was written lies in the backing directory.

use crate::command_line::{with_json, with_settings};
use crate::commands::{human, print_json};
use crate::failure::Result;
use crate::{instance, settings};
use clap::{ArgMatches, Command};
use config::Key;
use serde_json::json;

const EXAMPLES: &str = "\
Examples:
  forebay flush                  until all lies in the backing directory
  forebay flush --timeout 10m    gives up if nothing was saved for ten minutes

What has been written so far is saved, also what is saved at the end of the instance alone, and what is
open to write, as it is now; directories whose policy is 'never' are not. When it ends with 0 all of that
is on the device. Otherwise the exit code is 1, and what could not be saved is said with its reason; it
stays in the instance, and is tried again.";

pub(super) fn command() -> Command {
    let about = "Wait until what was written lies in the backing directory";
    let command = Command::new("flush").about(about).after_help(EXAMPLES);
    with_json(with_settings(command, &[Key::Name, Key::Timeout]))
}

pub(super) fn run(given: &ArgMatches) -> Result<u8> {
    let settings = settings::resolve(given)?;
    let name = settings.word(Key::Name);
    let told = instance::flush(name, settings.timeout())?;
    if given.get_flag("json") {
        print_json(&json!({ "flushed": name, "writer": told }));
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

//! `forebay pin` and `forebay unpin`: keep files in memory.

use crate::command_line::{with_json, with_settings};
use crate::commands::files::layout;
use crate::failure::{Failure, Result};
use crate::state::settings;
use clap::{Arg, ArgMatches, Command};
use config::Key;
use std::path::PathBuf;

const PIN_EXAMPLES: &str = "\
Examples:
  forebay pin /forebay/weights.bin      its data stays in memory, whatever else is written
  forebay pin /forebay/tables           so does the data of all files created in it from now on

PATHs are files and directories of the instance. Pinned data is neither demoted to the SSD nor evicted,
and returns from the SSD when memory has space. If more is pinned than memory holds, the rest goes to the
SSD as usual. Files and directories created in a pinned directory are pinned; those that it already has,
or that are moved into it, are not. Owners and root may pin.";

const UNPIN_EXAMPLES: &str = "\
Example:
  forebay unpin /forebay/weights.bin

Unpinned data may leave memory like any other. 'forebay layout get' shows whether a file is pinned,
'forebay status --json' how much memory pinned files occupy.";

fn with_paths(command: Command) -> Command {
    let paths = Arg::new("paths")
        .required(true)
        .num_args(1..)
        .value_name("PATH")
        .value_parser(clap::value_parser!(PathBuf))
        .help("Files or directories of the instance");
    with_json(with_settings(command.arg(paths), &[Key::Name, Key::At, Key::Timeout]))
}

pub(crate) fn command() -> Command {
    with_paths(Command::new("pin").about("Keep files in memory").after_long_help(PIN_EXAMPLES))
}

pub(crate) fn unpin_command() -> Command {
    let about = "Unpin files, so that they may leave memory";
    with_paths(Command::new("unpin").about(about).after_long_help(UNPIN_EXAMPLES))
}

/// Pins or unpins files.
///
/// # Errors
/// The first file that fails; those before it are done.
pub(crate) fn run(given: &ArgMatches, is_pinned: bool) -> Result<u8> {
    let settings = settings::resolve(given)?;
    let value = format!("pinned={}", if is_pinned { "yes" } else { "no" });
    let paths = given.get_many::<PathBuf>("paths");
    for path in paths.ok_or_else(|| Failure::new("no path given"))? {
        let said = layout::ask(&settings, path, std::slice::from_ref(&value))?;
        if given.get_flag("json") {
            layout::show(path, &said, true);
        }
    }
    Ok(0)
}

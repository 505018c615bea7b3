//! `forebay pin` and `forebay unpin`: files that stay in memory.

use crate::command_line::{with_json, with_settings};
use crate::commands::layout;
use crate::failure::{Failure, Result};
use crate::settings;
use clap::{Arg, ArgMatches, Command};
use config::Key;
use std::path::PathBuf;

const PIN_EXAMPLES: &str = "\
Examples:
  forebay pin /forebay/weights.bin      its bytes stay in memory, whatever else is written
  forebay pin /forebay/tables           so do those of all files that are made in it from now on

PATHs are files and directories of the instance. What is pinned does not move to the SSD while it is in
memory, is not dropped, and comes back from the SSD as memory has room. Where more is pinned than memory
holds, what comes later goes to the SSD as ever. What is made in a pinned directory is pinned, directories
included; what is there already is not, and files moved into it are not. Owners and root may pin.";

const UNPIN_EXAMPLES: &str = "\
Example:
  forebay unpin /forebay/weights.bin

What is let go may leave memory again as any file. 'forebay layout get' shows what is pinned, 'forebay
status --json' how many bytes of memory that takes.";

fn with_paths(command: Command) -> Command {
    let paths = Arg::new("paths")
        .required(true)
        .num_args(1..)
        .value_name("PATH")
        .value_parser(clap::value_parser!(PathBuf))
        .help("Files or directories of the instance");
    with_json(with_settings(command.arg(paths), &[Key::Name, Key::At, Key::Timeout]))
}

pub(super) fn command() -> Command {
    with_paths(Command::new("pin").about("Keep files in memory").after_help(PIN_EXAMPLES))
}

pub(super) fn unpin_command() -> Command {
    let about = "Let pinned files leave memory again";
    with_paths(Command::new("unpin").about(about).after_help(UNPIN_EXAMPLES))
}

/// Pins, or does not from now on.
///
/// # Errors
/// The first file that could not be: those before are done.
pub(super) fn run(given: &ArgMatches, is_pinned: bool) -> Result<u8> {
    let settings = settings::resolve(given)?;
    let wanted = format!("pinned={}", if is_pinned { "yes" } else { "no" });
    let paths = given.get_many::<PathBuf>("paths");
    for path in paths.ok_or_else(|| Failure::new("no path"))? {
        let said = layout::ask(&settings, path, std::slice::from_ref(&wanted))?;
        if given.get_flag("json") {
            layout::show(path, &said, true);
        }
    }
    Ok(0)
}

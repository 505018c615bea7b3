//! Runs of `forebay-mount` that mount nothing: it uses shared memory for commands, which do not.

use crate::failure::{Failure, Result};
use crate::instance::host;
use crate::state::directories;
use crate::state::records::{self, HostRecord};
use config::{Key, Settings};
use std::ffi::OsString;

/// Runs `forebay-mount OPTION` with `words`; returns its output. `failed` begins the line of an error.
///
/// # Errors
/// There is no such instance here; the reason of the program.
pub(crate) fn ask(
    settings: &Settings,
    option: &str,
    words: &[OsString],
    failed: &str,
) -> Result<String> {
    let name = settings.word(Key::Name);
    let run = directories::run(name)?;
    let here: Option<HostRecord> = records::load(&run, host::RECORD)?;
    let here = here.ok_or_else(|| Failure::no_instance(name))?;
    let mut all = vec![run.into_os_string(), here.first.to_string().into()];
    all.extend_from_slice(words);
    self::run(option, &all, failed)
}

/// Runs `forebay-mount OPTION` with `words` alone; returns its output. `failed` begins the line of an
/// error.
///
/// # Errors
/// The reason of the program.
pub(crate) fn run(option: &str, words: &[OsString], failed: &str) -> Result<String> {
    let mut command = std::process::Command::new(host::component("forebay-mount")?);
    command.arg(option).args(words);
    let output =
        command.output().map_err(|error| Failure::at("cannot start", "forebay-mount", error))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    let why = errors.lines().find_map(|line| line.strip_prefix("forebay-mount: "));
    Err(Failure::new(format!("{failed}: {}", why.unwrap_or("the daemons give no reason"))))
}

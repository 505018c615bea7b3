//! Collects options, environment and settings file for the crate `config`, which checks them.

use crate::command_line::NAME_ARGUMENT;
use crate::failure::{Failure, Result, USAGE};
use clap::ArgMatches;
use config::{Key, SETTINGS, Settings, Sources};
use std::path::PathBuf;

/// The settings of one command.
///
/// # Errors
/// The first value that is not allowed; a settings file that cannot be read.
pub(crate) fn resolve(given: &ArgMatches) -> Result<Settings> {
    let mut sources = Sources::default();
    for setting in &SETTINGS {
        if let Ok(Some(text)) = given.try_get_one::<String>(setting.name) {
            sources.options.insert(setting.key, text.clone());
        }
        if let Some(text) = std::env::var_os(setting.variable) {
            sources.environment.insert(setting.key, text.to_string_lossy().into_owned());
        }
    }
    if let Ok(Some(name)) = given.try_get_one::<String>(NAME_ARGUMENT) {
        sources.options.insert(Key::Name, name.clone());
    }
    sources.file = file()?;
    Ok(Settings::resolve(&sources)?)
}

/// The settings file. The one that `FOREBAY_CONFIG` names must exist; the default one may be
/// missing.
fn file() -> Result<Option<(String, Vec<config::file::SettingLine>)>> {
    let named = std::env::var_os("FOREBAY_CONFIG").filter(|path| !path.is_empty());
    let is_named = named.is_some();
    let Some(path) = named.map(PathBuf::from).or_else(default_path) else { return Ok(None) };
    let shown = path.display().to_string();
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && !is_named => return Ok(None),
        Err(error) => {
            let text = format!("cannot read the settings file: {shown}: {error}");
            return Err(Failure::with_code(USAGE, text));
        }
    };
    if text.len() > config::file::FILE_BYTES_MAX {
        let text = format!("settings file: {shown}: larger than 64KiB");
        return Err(Failure::with_code(USAGE, text));
    }
    let lines = config::file::parse(&text).map_err(|invalid| {
        let text = format!("settings file: {shown} line {}: {}", invalid.number, invalid.reason);
        Failure::with_code(USAGE, text)
    })?;
    Ok(Some((shown, lines)))
}

fn default_path() -> Option<PathBuf> {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let base = set("XDG_CONFIG_HOME").or_else(|| Some(set("HOME")?.join(".config")))?;
    Some(base.join("forebay/forebay.conf"))
}

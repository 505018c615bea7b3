//! Collects what options, environment and settings file say, for the crate `config` to check.

use crate::failure::{Failure, Result, USAGE};
use clap::ArgMatches;
use config::{SETTINGS, Settings, Sources};
use std::path::PathBuf;

/// The settings of one command.
///
/// # Errors
/// The first value that is not allowed; a settings file that can not be read.
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
    sources.file = file()?;
    Ok(Settings::resolve(&sources)?)
}

/// The settings file: the one named must be there, the usual one may be.
fn file() -> Result<Option<(String, Vec<config::file::Line>)>> {
    let named = std::env::var_os("FOREBAY_CONFIG").filter(|path| !path.is_empty());
    let is_named = named.is_some();
    let Some(path) = named.map(PathBuf::from).or_else(usual) else { return Ok(None) };
    let place = path.display().to_string();
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && !is_named => return Ok(None),
        Err(error) => {
            let text = format!("can not read the settings file: {place}: {error}");
            return Err(Failure::with_code(USAGE, text));
        }
    };
    if text.len() > config::file::FILE_BYTES_MAX {
        let text = format!("settings file: {place}: longer than 64KiB, this can not be one");
        return Err(Failure::with_code(USAGE, text));
    }
    let lines = config::file::parse(&text).map_err(|wrong| {
        let text = format!("settings file: {place} line {}: {}", wrong.number, wrong.what);
        Failure::with_code(USAGE, text)
    })?;
    Ok(Some((place, lines)))
}

fn usual() -> Option<PathBuf> {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let base = set("XDG_CONFIG_HOME").or_else(|| Some(set("HOME")?.join(".config")))?;
    Some(base.join("forebay/forebay.conf"))
}

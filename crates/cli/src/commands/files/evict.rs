//! `forebay evict`: drops what memory and SSD hold of clean files, which are then read from the
//! backing directory again.

use crate::command_line::{with_json, with_settings};
use crate::commands::files::prefetch::{self, DataMove, InstancePaths};
use crate::commands::files::stage::{roots, with_paths};
use crate::failure::{Failure, Result, USAGE};
use crate::instance::host;
use crate::state::directories;
use crate::state::records::{self, HostRecord};
use crate::state::settings;
use clap::{ArgMatches, Command};
use config::Key;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  forebay evict /forebay/input                the memory and SSD space of input is free again
  forebay evict --list files /lustre/ann      the files that the lines of 'files' name in /lustre/ann

PATHs are files and directories of the instance or of its backing directory. Programs read evicted files
from the backing directory again when they need them. Data that has not been written back, pinned files,
and files in use stay; the summary says how many.";

pub(crate) fn command() -> Command {
    let command = Command::new("evict")
        .about("Free the memory and SSD space of files that the backing directory has")
        .override_usage("forebay evict [OPTIONS] PATH...")
        .after_long_help(EXAMPLES);
    let paths = "Files and directories of the instance, or of its backing directory";
    with_json(with_paths(with_settings(command, &[Key::Name, Key::At]), 0, paths))
}

pub(crate) fn run(given: &ArgMatches) -> Result<u8> {
    let settings = settings::resolve(given)?;
    let (name, at) = (settings.word(Key::Name), host::visible_at(&settings)?);
    let at = at.as_str();
    let Some(host) = records::load::<HostRecord>(&directories::run(name)?, host::RECORD)? else {
        return Err(Failure::no_instance(name));
    };
    let paths: Vec<&PathBuf> = given.get_many("paths").into_iter().flatten().collect();
    if paths.is_empty() && !given.contains_id("list") {
        return Err(Failure::with_code(USAGE, "say what to evict: forebay evict PATH..."));
    }
    let visible = InstancePaths::new(roots(name, at)?, &host);
    visible.check_evict(&paths)?;
    prefetch::run(DataMove::Evict, given, &paths, &visible, (name, at))
}

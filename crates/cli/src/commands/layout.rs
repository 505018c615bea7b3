//! `forebay layout`: what hosts see of each other's changes of a file, and where its bytes lie.

use crate::command_line::{with_json, with_settings};
use crate::commands::print_json;
use crate::failure::{Failure, Result};
use crate::records::{self, Host};
use crate::{directories, host, mounts, settings};
use clap::{Arg, ArgMatches, Command};
use config::Key;
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};

const EXAMPLES: &str = "\
Examples:
  forebay layout get /forebay/results
  forebay layout set --consistency posix /forebay/shared

PATH is a file of the instance as programs see it, or on a mount of it. What is set for a directory is so
for all that is made in it from then on; what is there already keeps what it has.

In the mode 'posix' hosts see each other's changes of files at once, as processes of one host do. In the
mode 'relaxed' they see how long a file is after the writer's close or fsync at the latest. It costs
messages only where several hosts have a file open.";

fn path() -> Arg {
    Arg::new("path")
        .required(true)
        .value_name("PATH")
        .value_parser(clap::value_parser!(PathBuf))
        .help("A file or directory of the instance")
}

pub(super) fn command() -> Command {
    let keys = [Key::Name, Key::At, Key::Timeout];
    let get = Command::new("get").about("Show the layout of a file or directory");
    let set = Command::new("set").about("Set the layout of what is made in a directory");
    let consistency = Arg::new("mode")
        .long("consistency")
        .required(true)
        .value_name("MODE")
        .value_parser(["posix", "relaxed"])
        .help("What hosts see of each other's changes");
    Command::new("layout")
        .about("Show or set how files are laid out and shared")
        .after_help(EXAMPLES)
        .subcommand_required(true)
        .subcommand(with_json(with_settings(get, &keys)).arg(path()))
        .subcommand(with_json(with_settings(set, &keys)).arg(consistency).arg(path()))
}

pub(super) fn run(given: &ArgMatches) -> Result<u8> {
    let (_, given) = given.subcommand().ok_or_else(|| Failure::new("get or set?"))?;
    let settings = settings::resolve(given)?;
    let name = settings.word(Key::Name);
    let run = directories::run(name)?;
    let here: Option<Host> = records::load(&run, host::RECORD)?;
    let here = here.ok_or_else(|| Failure::no_instance(name))?;
    let path = given.get_one::<PathBuf>("path").ok_or_else(|| Failure::new("no path"))?;
    let within = path_within(path, settings.word(Key::At), &run)?;
    let mut command = std::process::Command::new(host::beside("forebay-mount")?);
    command.arg("--layout").arg(&run).arg(here.first.to_string()).arg(&within);
    if let Ok(Some(mode)) = given.try_get_one::<String>("mode") {
        command.arg(mode);
    }
    let output =
        command.output().map_err(|error| Failure::at("can not start", "forebay-mount", error))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let why = said.lines().find_map(|line| line.strip_prefix("forebay-mount: "));
        return Err(Failure::at(
            "no layout of",
            path.display(),
            why.unwrap_or("it can not be read"),
        ));
    }
    show(path, &String::from_utf8_lossy(&output.stdout), given.get_flag("json"));
    Ok(0)
}

/// The path from the instance's root of what `path` is under a mount, or where programs see the instance.
pub(super) fn path_within(path: &Path, at: &str, run: &Path) -> Result<PathBuf> {
    let whole = std::path::absolute(path)
        .map_err(|error| Failure::at("can not find", path.display(), error))?;
    let mounted = mounts::all(run)?;
    let roots = mounted.iter().map(|(mount, _)| mount.at.as_path()).chain([Path::new(at)]);
    let rest = roots.filter_map(|root| whole.strip_prefix(root).ok());
    // The longest root is the one that programs meet.
    let rest = rest.min_by_key(|rest| rest.components().count());
    let rest = rest.ok_or_else(|| {
        Failure::at("not of the instance", whole.display(), format!("it is seen at {at}"))
    })?;
    Ok(Path::new(".").join(rest))
}

fn show(path: &Path, said: &str, is_json: bool) {
    let pairs = said.split_whitespace().filter_map(|word| word.split_once('='));
    if !is_json {
        outln!("{}:", path.display());
        pairs.for_each(|(name, value)| outln!("  {name} {value}"));
        return;
    }
    let mut all = Map::new();
    all.insert("path".to_owned(), Value::from(path.to_string_lossy()));
    for (name, value) in pairs {
        let number = value.parse::<u64>();
        all.insert(name.to_owned(), number.map_or_else(|_| Value::from(value), Value::from));
    }
    print_json(&Value::Object(all));
}

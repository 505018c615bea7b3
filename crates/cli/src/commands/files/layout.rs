//! `forebay layout`: consistency, striping, pool and writeback mode of files and directories.

use crate::command_line::{with_json, with_settings};
use crate::commands::print_json;
use crate::failure::{Failure, Result, USAGE};
use crate::instance::host;
use crate::instance::mounts;
use crate::state::directories;
use crate::state::records::{self, HostRecord};
use crate::state::settings;
use clap::{Arg, ArgGroup, ArgMatches, Command};
use config::{Key, Settings, parse};
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};
use wire::attributes::writeback;
use wire::limits::{STRIPE_LOG2_MAX, STRIPE_LOG2_MIN};

const EXAMPLES: &str = "\
Examples:
  forebay layout get /forebay/results
  forebay layout set --consistency posix /forebay/shared
  forebay layout set --stripe-count 2 --stripe-size 1MiB /forebay/checkpoints
  forebay layout set --stripe-count all /forebay/checkpoints   by hash over all targets (the default)
  forebay layout set --pool fast /forebay/checkpoints          one target of the pool for each file
  forebay layout set --writeback never /forebay/scratch        is not written to the backing directory

PATH is a file or directory of the instance, as programs or a mount show it. The layout of a directory
applies to everything created in it afterwards, and new directories inherit it. Existing files and
directories keep their layout, also when they are renamed. Owners and root may set the layout of a
directory.

A file is divided into stripes, which are stored on targets; each daemon is a target. With a number as
--stripe-count, the stripes are on this many targets in turn, other ones for each file; with 'all' the
hash of each stripe selects its target; with 'local' all are on the daemon of the process that creates the
file. With --pool the pool chooses one target for each file, whatever the stripe count ('forebay pool
--help'). For a file, 'get' shows its targets, numbered as in 'forebay status'.

With --consistency posix, hosts see each other's changes at once, like processes of one host. With relaxed
they see the size of a file after the writer's close or fsync. The difference costs messages only when
several hosts have a file open.

With a backing directory, --writeback says when files in a directory are written back; it applies at once
to all names in it, and new directories inherit it: when no program has the file open for writing
('close'), also before close and fsync return ('through'), when it has also not changed for a while
('idle'), only at 'forebay flush' and 'forebay stop' ('end'), or 'never'.";

/// Layout keys that can be set: option, key of `forebay-mount`, name of the value, help.
const KEYS: [(&str, &str, &str, &str); 5] = [
    ("consistency", "consistency", "MODE", "When hosts see each other's changes"),
    (
        "stripe-count",
        "stripe_count",
        "N|all|local",
        "Number of targets over which a file is striped",
    ),
    ("stripe-size", "stripe_size", "SIZE", "Size of a stripe, a power of two"),
    ("pool", "pool", "POOL", "Pool that chooses the target of each new file, or none"),
    ("writeback", "writeback", "WHEN", "When files are written to the backing directory"),
];

fn path() -> Arg {
    Arg::new("path")
        .required(true)
        .value_name("PATH")
        .value_parser(clap::value_parser!(PathBuf))
        .help("A file or directory of the instance")
}

pub(crate) fn command() -> Command {
    let keys = [Key::Name, Key::At, Key::Timeout];
    let get = Command::new("get").about("Show the layout of a file or directory");
    let set = Command::new("set").about("Set the layout of new files in a directory");
    let options = KEYS.map(|(name, _, value, help)| {
        let arg = Arg::new(name).long(name).value_name(value).help(help);
        match name {
            "consistency" => arg.value_parser(["posix", "relaxed"]),
            "writeback" => arg.value_parser(writeback::NAMES.map(|(name, _)| name)),
            _ => arg,
        }
    });
    let group = ArgGroup::new("keys").args(KEYS.map(|(name, ..)| name));
    let group = group.multiple(true).required(true);
    let set = set.args(options).group(group);
    Command::new("layout")
        .about("Show or set consistency, striping, pool and writeback of files")
        .after_long_help(EXAMPLES)
        .subcommand_required(true)
        .subcommand(with_json(with_settings(get, &keys)).arg(path()))
        .subcommand(with_json(with_settings(set, &keys)).arg(path()))
}

pub(crate) fn run(given: &ArgMatches) -> Result<u8> {
    let (_, given) = given.subcommand().ok_or_else(|| Failure::new("get or set?"))?;
    let changes = changes(given)?;
    let settings = settings::resolve(given)?;
    let path = given.get_one::<PathBuf>("path").ok_or_else(|| Failure::new("no path given"))?;
    let answer = ask(&settings, path, &changes)?;
    show(path, &answer, given.get_flag("json"));
    Ok(0)
}

/// Lets `forebay-mount` set these keys of a file; returns its layout, as `name=value` words.
pub(crate) fn ask(settings: &Settings, path: &Path, changes: &[String]) -> Result<String> {
    let name = settings.word(Key::Name);
    let run = directories::run(name)?;
    let here: Option<HostRecord> = records::load(&run, host::RECORD)?;
    let here = here.ok_or_else(|| Failure::no_instance(name))?;
    let within = path_within(path, &host::visible_at(settings)?, &run)?;
    let mut command = std::process::Command::new(host::component("forebay-mount")?);
    command.arg("--layout").arg(&run).arg(here.first.to_string()).arg(&within);
    command.args(changes);
    let output =
        command.output().map_err(|error| Failure::at("cannot start", "forebay-mount", error))?;
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        let why = errors.lines().find_map(|line| line.strip_prefix("forebay-mount: "));
        return Err(Failure::at(
            "no layout of",
            path.display(),
            why.unwrap_or("it cannot be read"),
        ));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The keys to set, as `KEY=VALUE` words.
fn changes(given: &ArgMatches) -> Result<Vec<String>> {
    let mut words = Vec::new();
    for (option, name, _, _) in KEYS {
        let Ok(Some(text)) = given.try_get_one::<String>(option) else { continue };
        let value = match option {
            "stripe-count" => stripe_count(text),
            "stripe-size" => stripe_size(text).map(|size| size.to_string()),
            _ => Ok(text.clone()),
        };
        let value = value.map_err(|allowed| {
            Failure::with_code(USAGE, format!("--{option} cannot be \"{text}\": give {allowed}"))
        })?;
        words.push(format!("{name}={value}"));
    }
    Ok(words)
}

/// A stripe count, as `forebay-mount` expects it.
///
/// # Errors
/// The allowed values.
fn stripe_count(text: &str) -> core::result::Result<String, String> {
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    let number = text.parse::<u64>().ok().filter(|&count| is_number && count > 0);
    match (text, number) {
        ("all" | "local", _) => Ok(text.to_owned()),
        (_, Some(count)) => Ok(count.to_string()),
        _ => Err("a number of targets (at least 1), all or local".to_owned()),
    }
}

/// The size of a stripe in bytes.
///
/// # Errors
/// The allowed values.
fn stripe_size(text: &str) -> core::result::Result<u64, String> {
    let (min, max) = (1 << STRIPE_LOG2_MIN, 1 << STRIPE_LOG2_MAX);
    let size = parse::size(text).filter(|size| size.is_power_of_two());
    size.filter(|size| (min..=max).contains(size)).ok_or_else(|| {
        let (min, max) = (parse::size_text(min), parse::size_text(max));
        format!("a power of two from {min} to {max}")
    })
}

/// The path, from the instance's root, of a file under a mount or where preloaded programs see it.
pub(crate) fn path_within(path: &Path, at: &str, run: &Path) -> Result<PathBuf> {
    let whole = std::path::absolute(path)
        .map_err(|error| Failure::at("cannot find", path.display(), error))?;
    let mounted = mounts::all(run)?;
    let roots = mounted.iter().map(|(mount, _)| mount.at.as_path()).chain([Path::new(at)]);
    let rest = roots.filter_map(|root| whole.strip_prefix(root).ok());
    // With nested roots, the innermost one applies.
    let rest = rest.min_by_key(|rest| rest.components().count());
    let rest = rest.ok_or_else(|| {
        Failure::at("not in the instance", path.display(), format!("it is visible at {at}"))
    })?;
    Ok(Path::new(".").join(rest))
}

pub(crate) fn show(path: &Path, answer: &str, is_json: bool) {
    let pairs = answer.split_whitespace().filter_map(|word| word.split_once('='));
    if !is_json {
        outln!("{}:", path.display());
        for (name, value) in pairs {
            let value = match (name, value.parse()) {
                ("stripe_size", Ok(size)) => parse::size_text(size),
                ("targets", _) if value.is_empty() => "none".to_owned(),
                ("targets", _) => value.replace(',', " "),
                _ => value.to_owned(),
            };
            outln!("  {} {value}", name.replace('_', "-"));
        }
        return;
    }
    let number_or_word =
        |value: &str| value.parse::<u64>().map_or_else(|_| Value::from(value), Value::from);
    let mut all = Map::new();
    all.insert("path".to_owned(), Value::from(path.to_string_lossy()));
    for (name, value) in pairs {
        let value = match name {
            "targets" => value.split_terminator(',').map(number_or_word).collect(),
            _ => number_or_word(value),
        };
        all.insert(name.to_owned(), value);
    }
    print_json(&Value::Object(all));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stripe_options_are_checked() {
        assert_eq!(stripe_size("1MiB"), Ok(1 << 20));
        assert_eq!(stripe_size("65536"), Ok(1 << 16));
        for wrong in ["0", "3MiB", "32KiB", "128MiB", "1Q", "-1", "", "100000000000GiB"] {
            let allowed = "a power of two from 64KiB to 64MiB".to_owned();
            assert_eq!(stripe_size(wrong), Err(allowed), "{wrong}");
        }
        for right in ["1", "12", "all", "local"] {
            assert_eq!(stripe_count(right), Ok(right.to_owned()));
        }
        for wrong in ["0", "-1", "+1", "", "ALL", "1.5", "99999999999999999999999"] {
            assert!(stripe_count(wrong).is_err(), "{wrong}");
        }
    }
}

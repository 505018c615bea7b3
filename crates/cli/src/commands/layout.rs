//! `forebay layout`: what hosts see of each other's changes of a file, and where its bytes lie.

use crate::command_line::{with_json, with_settings};
use crate::commands::print_json;
use crate::failure::{Failure, Result, USAGE};
use crate::records::{self, Host};
use crate::{directories, host, mounts, settings};
use clap::{Arg, ArgGroup, ArgMatches, Command};
use config::{Key, Settings, parse};
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};
use wire::attributes::write_back;
use wire::limits::{CHUNK_LOG2_MAX, CHUNK_LOG2_MIN};

const EXAMPLES: &str = "\
Examples:
  forebay layout get /forebay/results
  forebay layout set --consistency posix /forebay/shared
  forebay layout set --stripe-count 2 --stripe-size 1MiB /forebay/checkpoints
  forebay layout set --stripe-count all /forebay/checkpoints   by hash over all targets, as without
  forebay layout set --write-back never /forebay/scratch       nothing of it goes to the backing directory

PATH is a file of the instance as programs see it, or on a mount of it. What is set for a directory is so
for all that is made in it from then on, directories below and what is in them included; what is there
already keeps what it has, also where it is renamed to. Owners of a directory and root may set it.

A file is cut into stripes, which are on targets: each daemon is one. With a number as count they go in
turn over so many targets, which differ from file to file; with 'all' each stripe is where its hash says,
with 'local' all are on the daemon of who makes the file. 'get' shows of a file which targets its bytes
are on, by the numbers of 'forebay status'.

In the mode 'posix' hosts see each other's changes of files at once, as processes of one host do. In the
mode 'relaxed' they see how long a file is after the writer's close or fsync at the latest. It costs
messages only where several hosts have a file open.

Over a backing directory a directory says when what is in it is saved there, at once for all names in it,
and for the directories that are made in it from then on: when nobody has a file open to write ('close'),
so that who wrote it and closes or syncs it waits until it lies there ('through'), when it was not changed
for a while besides ('cooling'), at 'forebay flush' and 'forebay stop' alone ('end'), or 'never'.";

/// What may be set: the option, its name as `forebay-mount` takes it, the name of its value, and help.
const WANTED: [(&str, &str, &str, &str); 4] = [
    ("consistency", "consistency", "MODE", "What hosts see of each other's changes"),
    ("stripe-count", "stripe_count", "N|all|local", "Over how many targets files are striped"),
    ("stripe-size", "stripe_size", "SIZE", "Bytes of a stripe, a power of two"),
    ("write-back", "write_back", "WHEN", "When files are saved in the backing directory"),
];

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
    let wanted = WANTED.map(|(name, _, value, help)| {
        let arg = Arg::new(name).long(name).value_name(value).help(help);
        match name {
            "consistency" => arg.value_parser(["posix", "relaxed"]),
            "write-back" => arg.value_parser(write_back::NAMES.map(|(name, _)| name)),
            _ => arg,
        }
    });
    let group = ArgGroup::new("wanted").args(WANTED.map(|(name, ..)| name));
    let group = group.multiple(true).required(true);
    let set = set.args(wanted).group(group);
    Command::new("layout")
        .about("Show or set how files are laid out and shared")
        .after_help(EXAMPLES)
        .subcommand_required(true)
        .subcommand(with_json(with_settings(get, &keys)).arg(path()))
        .subcommand(with_json(with_settings(set, &keys)).arg(path()))
}

pub(super) fn run(given: &ArgMatches) -> Result<u8> {
    let (_, given) = given.subcommand().ok_or_else(|| Failure::new("get or set?"))?;
    let wanted = wanted(given)?;
    let settings = settings::resolve(given)?;
    let path = given.get_one::<PathBuf>("path").ok_or_else(|| Failure::new("no path"))?;
    let said = ask(&settings, path, &wanted)?;
    show(path, &said, given.get_flag("json"));
    Ok(0)
}

/// Has `forebay-mount` set what is wanted of a file and say its layout.
pub(super) fn ask(settings: &Settings, path: &Path, wanted: &[String]) -> Result<String> {
    let name = settings.word(Key::Name);
    let run = directories::run(name)?;
    let here: Option<Host> = records::load(&run, host::RECORD)?;
    let here = here.ok_or_else(|| Failure::no_instance(name))?;
    let within = path_within(path, &host::seen_at(settings)?, &run)?;
    let mut command = std::process::Command::new(host::beside("forebay-mount")?);
    command.arg("--layout").arg(&run).arg(here.first.to_string()).arg(&within);
    command.args(wanted);
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
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// What is to be set, as `NAME=VALUE`s.
fn wanted(given: &ArgMatches) -> Result<Vec<String>> {
    let mut words = Vec::new();
    for (option, name, _, _) in WANTED {
        let Ok(Some(text)) = given.try_get_one::<String>(option) else { continue };
        let value = match option {
            "stripe-count" => stripe_count(text),
            "stripe-size" => stripe_size(text).map(|size| size.to_string()),
            _ => Ok(text.clone()),
        };
        let value = value.map_err(|wanted| {
            Failure::with_code(USAGE, format!("--{option} can not be \"{text}\": give {wanted}"))
        })?;
        words.push(format!("{name}={value}"));
    }
    Ok(words)
}

/// A count as `forebay-mount` takes it.
///
/// # Errors
/// What it may be.
fn stripe_count(text: &str) -> core::result::Result<String, String> {
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    let number = text.parse::<u64>().ok().filter(|&count| is_number && count > 0);
    match (text, number) {
        ("all" | "local", _) => Ok(text.to_owned()),
        (_, Some(count)) => Ok(count.to_string()),
        _ => Err("a number of targets from 1 on, all or local".to_owned()),
    }
}

/// Bytes of a stripe.
///
/// # Errors
/// What it may be.
fn stripe_size(text: &str) -> core::result::Result<u64, String> {
    let (least, most) = (1 << CHUNK_LOG2_MIN, 1 << CHUNK_LOG2_MAX);
    let size = parse::size(text).filter(|size| size.is_power_of_two());
    size.filter(|size| (least..=most).contains(size)).ok_or_else(|| {
        let (least, most) = (parse::size_text(least), parse::size_text(most));
        format!("a power of two from {least} to {most}")
    })
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

pub(super) fn show(path: &Path, said: &str, is_json: bool) {
    let pairs = said.split_whitespace().filter_map(|word| word.split_once('='));
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
    fn stripes_are_checked() {
        assert_eq!(stripe_size("1MiB"), Ok(1 << 20));
        assert_eq!(stripe_size("65536"), Ok(1 << 16));
        for wrong in ["0", "3MiB", "32KiB", "128MiB", "1M", "-1", "", "100000000000GiB"] {
            let wanted = "a power of two from 64KiB to 64MiB".to_owned();
            assert_eq!(stripe_size(wrong), Err(wanted), "{wrong}");
        }
        for right in ["1", "12", "all", "local"] {
            assert_eq!(stripe_count(right), Ok(right.to_owned()));
        }
        for wrong in ["0", "-1", "+1", "", "ALL", "1.5", "99999999999999999999999"] {
            assert!(stripe_count(wrong).is_err(), "{wrong}");
        }
    }
}

//! `forebay layout`: consistency, striping, pool, copies and writeback mode of files and directories.

use crate::command_line::{with_json, with_settings};
use crate::commands::{plural, print_json};
use crate::failure::{Failure, Result, USAGE};
use crate::instance::mounts;
use crate::instance::{host, inspect};
use crate::state::directories;
use crate::state::records::{self, HostRecord};
use crate::state::settings;
use clap::{Arg, ArgGroup, ArgMatches, Command};
use config::control::{FollowerStatus, ServiceStatus};
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
  forebay layout set --replicas 1 /forebay/scratch             one copy, in an instance that keeps more
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

In an instance with --replicas, each file has that many copies; with --replicas here new files in the
directory have fewer: 1, or 2 in an instance that keeps 3. With 1 they are on the daemons that 'get' shows
as targets: writing them is as fast as without copies, and they are lost with those daemons. A file keeps
the number with which it was made. Of a file 'get' shows the state: 'in-sync'; 'degraded', some bytes have
fewer copies now; 'down', some are at daemons alone that are down; or 'lost', some are gone for good
('forebay lost' says which).

In an instance with --followers, 'get' shows the metadata service of the file or directory, the daemon
that owns it, and how far its followers are.

With --consistency posix, hosts see each other's changes at once, like processes of one host. With relaxed
they see the size of a file after the writer's close or fsync. The difference costs messages only when
several hosts have a file open.

With a backing directory, --writeback says when files in a directory are written back; it applies at once
to all names in it, and new directories inherit it: when no program has the file open for writing
('close'), also before close and fsync return ('through'), when it has also not changed for a while
('idle'), only at 'forebay flush' and 'forebay stop' ('end'), or 'never'.";

const REPLICAS: &str = "replicas";

/// Layout keys that can be set: option, key of `forebay-mount`, name of the value, help.
const KEYS: [(&str, &str, &str, &str); 6] = [
    ("consistency", "consistency", "MODE", "When hosts see each other's changes"),
    (
        "stripe-count",
        "stripe_count",
        "N|all|local",
        "Number of targets over which a file is striped",
    ),
    ("stripe-size", "stripe_size", "SIZE", "Size of a stripe, a power of two"),
    ("pool", "pool", "POOL", "Pool that chooses the target of each new file, or none"),
    (
        REPLICAS,
        "replicas",
        "N",
        "Copies of the bytes of each new file: at most those of the instance",
    ),
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
        .about("Show or set consistency, striping, pool, copies and writeback of files")
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
    let shows_service = changes.is_empty() && has_followers(&settings)?;
    let words = if shows_service { vec![SERVICE.to_owned()] } else { changes };
    let mut answer = ask(&settings, path, &words)?;
    if shows_service {
        answer = format!(
            "{answered} {}",
            service_words(&settings, &answer)?,
            answered = answer.trim_end()
        );
    }
    show(path, &answer, given.get_flag("json"));
    Ok(0)
}

/// Key of the number of the metadata service that has a file.
const SERVICE: &str = "service";

/// Whether the metadata services of the instance have followers.
fn has_followers(settings: &Settings) -> Result<bool> {
    let here: Option<HostRecord> =
        records::load(&directories::run(settings.word(Key::Name))?, host::RECORD)?;
    Ok(here.is_some_and(|here| here.config.followers > 0))
}

/// Owner and followers of the service that `answered` names, as words: nothing where its owner does not
/// answer.
fn service_words(settings: &Settings, answered: &str) -> Result<String> {
    let mut words = answered.split_whitespace().filter_map(|word| word.split_once('='));
    let number = words.find_map(|(name, value)| (name == SERVICE).then(|| value.parse().ok()));
    let inspection = inspect::inspect(settings.word(Key::Name), inspect::query_time(settings))?;
    let services = inspect::services(&inspection.daemons);
    let known = services.into_iter().find(|it| Some(it.service) == number.flatten());
    Ok(known.map_or_else(String::new, words_of_service))
}

/// Each follower as `daemon:in-sync|joining:records:bytes`.
fn words_of_service(service: &ServiceStatus) -> String {
    let followers = service.followers.iter().map(|it| {
        let state = if it.is_in_sync { IN_SYNC } else { "joining" };
        format!("{}:{state}:{}:{}", it.daemon, it.lag_records, it.lag_bytes)
    });
    let followers: Vec<String> = followers.collect();
    format!("owner={} followers={}", service.owner, followers.join(","))
}

/// State of a follower that may become the owner.
const IN_SYNC: &str = "in-sync";

/// The followers in a word of `words_of_service`.
fn followers(word: &str) -> Vec<FollowerStatus> {
    let follower = |text: &str| {
        let mut parts = text.split(':');
        let (daemon, state) = (parts.next()?.parse().ok()?, parts.next()?);
        let (lag_records, lag_bytes) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
        Some(FollowerStatus { daemon, is_in_sync: state == IN_SYNC, lag_records, lag_bytes })
    };
    word.split(',').filter_map(follower).collect()
}

/// The followers, for people.
fn followers_text(word: &str) -> String {
    let text = |it: &FollowerStatus| {
        let state = if it.is_in_sync { "in sync" } else { "joining" };
        let records = plural(it.lag_records, "record");
        format!("daemon {} ({state}, {records} behind, {} bytes)", it.daemon, it.lag_bytes)
    };
    let all: Vec<String> = followers(word).iter().map(text).collect();
    if all.is_empty() { "none".to_owned() } else { all.join(", ") }
}

/// Lets `forebay-mount` set these keys of a file; returns its layout, as `name=value` words.
pub(crate) fn ask(settings: &Settings, path: &Path, changes: &[String]) -> Result<String> {
    let name = settings.word(Key::Name);
    let run = directories::run(name)?;
    let here: Option<HostRecord> = records::load(&run, host::RECORD)?;
    let here = here.ok_or_else(|| Failure::no_instance(name))?;
    check_replicas(changes, name, here.config.replicas)?;
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

/// Refuses a number of copies above the `kept` ones for which the instance was started.
fn check_replicas(changes: &[String], name: &str, kept: u64) -> Result<()> {
    let mut words = changes.iter().filter_map(|word| word.split_once('='));
    let asked = words.find_map(|(key, value)| (key == REPLICAS).then_some(value));
    let is_more = |asked: &&str| asked.parse::<u64>().is_ok_and(|asked| asked > kept);
    let Some(asked) = asked.filter(is_more) else { return Ok(()) };
    let most = if kept > 1 { format!("at most {kept} copies") } else { "one copy".to_owned() };
    let text = format!(
        "--replicas cannot be {asked}: files of instance {name} have {most}, as it was started with \
         --replicas {kept}, and that cannot be changed"
    );
    Err(Failure::with_code(USAGE, text))
}

/// The keys to set, as `KEY=VALUE` words.
fn changes(given: &ArgMatches) -> Result<Vec<String>> {
    let mut words = Vec::new();
    for (option, name, _, _) in KEYS {
        let Ok(Some(text)) = given.try_get_one::<String>(option) else { continue };
        let value = match option {
            "stripe-count" => stripe_count(text),
            "stripe-size" => stripe_size(text).map(|size| size.to_string()),
            REPLICAS => replicas(text),
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

/// A number of copies.
///
/// # Errors
/// The allowed values.
fn replicas(text: &str) -> core::result::Result<String, String> {
    match text {
        "1" | "2" | "3" => Ok(text.to_owned()),
        _ => Err("1, 2 or 3, at most the number with which the instance was started".to_owned()),
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
                ("followers", _) => followers_text(value),
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
            "followers" => serde_json::to_value(followers(value)).unwrap_or_default(),
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
    fn followers_are_words_and_read_again() {
        let one = FollowerStatus { daemon: 2, is_in_sync: true, lag_records: 3, lag_bytes: 400 };
        let other = FollowerStatus { daemon: 1, ..FollowerStatus::default() };
        let list = vec![one, other];
        let service = ServiceStatus { owner: 4, followers: list.clone(), ..Default::default() };
        let words = words_of_service(&service);
        assert_eq!(words, "owner=4 followers=2:in-sync:3:400,1:joining:0:0");
        let word = words.split("followers=").nth(1).expect("a word");
        assert_eq!(followers(word), list);
        let text = "daemon 2 (in sync, 3 records behind, 400 bytes), \
                    daemon 1 (joining, 0 records behind, 0 bytes)";
        assert_eq!(
            (followers_text(word), followers_text("")),
            (text.to_owned(), "none".to_owned())
        );
    }

    #[test]
    fn a_number_of_copies_is_at_most_that_of_the_instance() {
        let check = |asked: &str, kept| {
            let words = [format!("replicas={asked}"), "pinned=yes".to_owned()];
            check_replicas(&words, "x", kept).map_err(|failure| failure.text().to_owned())
        };
        for (asked, kept) in [("1", 1), ("1", 2), ("2", 2), ("1", 3), ("2", 3), ("3", 3)] {
            assert_eq!(check(asked, kept), Ok(()), "{asked} {kept}");
        }
        let refused = |asked, kept| check(asked, kept).expect_err("none");
        assert!(
            refused("2", 1).contains("have one copy, as it was started"),
            "{}",
            refused("2", 1)
        );
        assert!(refused("3", 2).contains("at most 2 copies, as it was"), "{}", refused("3", 2));
        assert_eq!(replicas("3"), Ok("3".to_owned()));
        for wrong in ["0", "4", "all", "", "01", "1.0"] {
            assert!(replicas(wrong).is_err(), "{wrong}");
        }
    }

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

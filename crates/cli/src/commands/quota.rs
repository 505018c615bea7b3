//! `forebay quota`: usage and limits of users and projects.

use crate::command_line::{with_json, with_settings};
use crate::commands::files::layout::path_within;
use crate::commands::{human, mount_program, print_json, table};
use crate::failure::{Failure, Result, USAGE};
use crate::instance::host;
use crate::state::directories;
use crate::state::settings;
use clap::{Arg, ArgGroup, ArgMatches, Command};
use config::Key;
use serde_json::{Value, json};
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

const EXAMPLES: &str = "\
Examples:
  forebay quota report                                        usage and limits of all users and projects
  forebay quota set --user ann --space-hard 2GiB              never more than that
  forebay quota set --user ann --space-soft 1GiB --grace 2d   more than that for two days at most
  forebay quota set --project 7 --inodes-hard 100000
  forebay quota set --user ann --space-soft 0 --space-hard 0  remove the limits of space
  forebay quota get --user ann
  forebay quota project /forebay/results --id 7               new files in it count for project 7

At a hard limit, or above a soft limit for longer than the grace period, operations that need more fail
with 'disk quota exceeded'. Space of removed files can be used again at once. A limit that is not named is
unchanged; 0 removes it. Usage of root is counted but not limited.

Space is counted in extents (a file of 10 KiB takes 16 KiB) for the owner and the project of the file,
not for the writer. New files and directories inherit the project of their directory; existing ones keep
theirs. Moving or linking into a directory of another project fails with EXDEV, so 'mv' copies.";

pub(crate) fn command() -> Command {
    let keys = [Key::Name, Key::Timeout];
    let report = Command::new("report").about("Show usage and limits of all users and projects");
    let get = Command::new("get").about("Show usage and limits of one user or project");
    let set = Command::new("set").about("Set the limits of a user or project");
    let project = Command::new("project").about("Show or set the project of a directory or file");
    let keys_of_project = [Key::Name, Key::At, Key::Timeout];
    let path = Arg::new("path").required(true).value_name("PATH");
    let path =
        path.value_parser(clap::value_parser!(PathBuf)).help("A file or directory of the instance");
    let id = Arg::new("id").long("id").value_name("N").value_parser(clap::value_parser!(u32));
    let id = id.help("Number of the project; 0 for none");
    Command::new("quota")
        .about("Show and limit usage by users and projects")
        .after_long_help(EXAMPLES)
        .subcommand_required(true)
        .subcommand(with_json(with_settings(report, &keys)))
        .subcommand(with_json(with_account(with_settings(get, &keys))))
        .subcommand(with_limits(with_account(with_settings(set, &keys))))
        .subcommand(with_json(with_settings(project, &keys_of_project)).arg(id).arg(path))
}

fn with_account(command: Command) -> Command {
    let user = Arg::new("user").long("user").value_name("USER").help("A user, by name or number");
    let project = Arg::new("project").long("project").value_name("N");
    let project = project.value_parser(clap::value_parser!(u32).range(1..));
    let either = ArgGroup::new("account").args(["user", "project"]).required(true);
    command.arg(user).arg(project.help("A project, by number")).group(either)
}

/// Limits: option, key of `forebay-mount`, name of the value, help.
const LIMITS: [(&str, &str, &str, &str); 5] = [
    ("space-soft", "space_soft", "SIZE", "Space that may be exceeded for the grace period"),
    ("space-hard", "space_hard", "SIZE", "Space that is never exceeded"),
    (
        "inodes-soft",
        "inodes_soft",
        "N",
        "Number of files that may be exceeded for the grace period",
    ),
    ("inodes-hard", "inodes_hard", "N", "Number of files, of all types, that is never exceeded"),
    ("grace", "grace", "TIME", "Grace period: a number with s, min, h or d; 0 for the default, 7d"),
];

fn with_limits(command: Command) -> Command {
    let arg = |(name, _, value, help): &(&'static str, _, &'static str, &'static str)| {
        Arg::new(*name).long(*name).value_name(*value).help(*help)
    };
    let group = ArgGroup::new("limits").args(LIMITS.map(|limit| limit.0));
    command.args(LIMITS.iter().map(arg)).group(group.multiple(true).required(true))
}

pub(crate) fn run(given: &ArgMatches) -> Result<u8> {
    let (what, given) =
        given.subcommand().ok_or_else(|| Failure::new("report, get, set or project?"))?;
    match what {
        "set" => set(given),
        "project" => project(given),
        _ => report(given),
    }
}

/// The answer of `forebay-mount --quota` to `words`.
fn ask(given: &ArgMatches, failed: &str, words: &[OsString]) -> Result<String> {
    mount_program::ask(&settings::resolve(given)?, "--quota", words, failed)
}

/// The selected account: its kind, its number, and its name for people.
fn account(given: &ArgMatches) -> Result<(&'static str, u64, String)> {
    if let Some(&id) = given.get_one::<u32>("project") {
        return Ok(("project", u64::from(id), format!("project {id}")));
    }
    let user = given.get_one::<String>("user").map_or("", String::as_str);
    let number = user.parse::<u32>().ok().or_else(|| {
        let output = std::process::Command::new("id").args(["-u", "--", user]).output().ok()?;
        String::from_utf8(output.stdout).ok()?.trim().parse().ok()
    });
    let unknown = || Failure::with_code(USAGE, format!("no such user: {user}"));
    Ok(("user", u64::from(number.ok_or_else(unknown)?), format!("user {user}")))
}

/// Seconds of a time with a unit.
fn seconds(text: &str) -> Option<u64> {
    const UNITS: [(&str, u64); 4] = [("min", 60), ("s", 1), ("h", 3600), ("d", 86_400)];
    if text == "0" {
        return Some(0);
    }
    let (number, unit) =
        UNITS.iter().find_map(|(unit, seconds)| Some((text.strip_suffix(unit)?, *seconds)))?;
    number.parse::<u32>().ok()?.checked_mul(u32::try_from(unit).ok()?).map(u64::from)
}

fn set(given: &ArgMatches) -> Result<u8> {
    let (kind, id, account) = account(given)?;
    let number = if kind == "project" { 1 << 32 | id } else { id };
    let mut words = vec!["set".into(), number.to_string().into()];
    for (option, name, value, _) in LIMITS {
        let Some(text) = given.get_one::<String>(option) else { continue };
        let read = match value {
            "SIZE" => config::parse::size(text),
            "TIME" => seconds(text),
            _ => text.parse().ok(),
        };
        let allowed = match value {
            "SIZE" => "bytes, or a whole number with KiB, MiB, GiB or TiB",
            "TIME" => "a whole number with s, min, h or d",
            _ => "a whole number",
        };
        let invalid = || {
            let text = format!("--{option} cannot be \"{text}\": give {allowed}");
            Failure::with_code(USAGE, text)
        };
        words.push(format!("{name}={}", read.ok_or_else(invalid)?).into());
    }
    ask(given, &format!("cannot set the limits of {account}"), &words)?;
    Ok(0)
}

fn project(given: &ArgMatches) -> Result<u8> {
    let settings = settings::resolve(given)?;
    let run = directories::run(settings.word(Key::Name))?;
    let path = given.get_one::<PathBuf>("path").ok_or_else(|| Failure::new("no path given"))?;
    let within = path_within(path, &host::visible_at(&settings)?, &run)?;
    let mut words = vec!["project".into(), within.into_os_string()];
    words.extend(given.get_one::<u32>("id").map(|id| id.to_string().into()));
    let said =
        ask(given, &format!("cannot read or set the project of {}", path.display()), &words)?;
    let id = said.trim().strip_prefix("project=").and_then(|text| text.parse::<u32>().ok());
    match given.get_flag("json") {
        true => print_json(&json!({ "path": path.to_string_lossy(), "project": id })),
        false => outln!("{}: project {}", path.display(), id.unwrap_or(0)),
    }
    Ok(0)
}

/// Usage and limits of space or inodes in a row of a report.
struct ResourceUsage {
    used: u64,
    soft: u64,
    hard: u64,
    /// Seconds left of the grace period; `None`: the soft limit is not exceeded.
    left: Option<u64>,
}

impl ResourceUsage {
    fn of(row: &Value, name: &str, now_nanos: u64) -> ResourceUsage {
        let number = |key: String| row.get(key).and_then(Value::as_u64).unwrap_or(0);
        let since = number(format!("{name}_since"));
        let end = since.saturating_add(number("grace".to_owned()));
        let left = end.saturating_sub(now_nanos).div_ceil(1_000_000_000);
        ResourceUsage {
            used: number(name.to_owned()),
            soft: number(format!("{name}_soft")),
            hard: number(format!("{name}_hard")),
            left: (since != 0).then_some(left),
        }
    }

    fn is_over(&self) -> bool {
        self.left.is_some() || self.hard != 0 && self.used >= self.hard
    }

    fn json(&self) -> Value {
        let limit = |limit: u64| (limit != 0).then_some(limit);
        json!({
            "used": self.used, "soft": limit(self.soft), "hard": limit(self.hard),
            "grace_left_s": self.left, "over": self.is_over(),
        })
    }

    fn cells(&self, show: impl Fn(u64) -> String) -> [String; 4] {
        let limit = |limit: u64| if limit == 0 { "-".to_owned() } else { show(limit) };
        let mark = if self.is_over() { " !" } else { "" };
        let left = self.left.map_or("-".to_owned(), time_text);
        [format!("{}{mark}", show(self.used)), limit(self.soft), limit(self.hard), left]
    }
}

/// A time for people, in the largest unit that gives at least 1.
fn time_text(seconds: u64) -> String {
    match seconds {
        0 => "over".to_owned(),
        60..3600 => format!("{}min", seconds / 60),
        3600..86_400 => format!("{}h", seconds / 3600),
        86_400.. => format!("{}d", seconds / 86_400),
        seconds => format!("{seconds}s"),
    }
}

fn report(given: &ArgMatches) -> Result<u8> {
    let selected = if given.try_contains_id("account").unwrap_or(false) {
        let (kind, id, _) = account(given)?;
        Some((kind, id))
    } else {
        None
    };
    let said = ask(given, "cannot read the usage", &["report".into()])?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let now = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
    let mut rows: Vec<Value> = said.lines().map(row_of).collect();
    if let Some((kind, id)) = selected {
        rows.retain(|row| row.get(kind).and_then(Value::as_u64) == Some(id));
        if rows.is_empty() {
            rows.push(json!({ (kind): id }));
        }
    }
    let parts =
        |row: &Value| [ResourceUsage::of(row, "space", now), ResourceUsage::of(row, "inodes", now)];
    if given.get_flag("json") {
        let all = rows.iter().map(|row| {
            let [space, inodes] = parts(row);
            let (kind, id) = name_of(row);
            json!({ (kind): id, "space": space.json(), "inodes": inodes.json() })
        });
        let mut all: Vec<Value> = all.collect();
        let said = if selected.is_some() { all.pop() } else { Some(Value::Array(all)) };
        print_json(&said.unwrap_or_default());
        return Ok(0);
    }
    let head = ["account", "space", "soft", "hard", "grace", "inodes", "soft", "hard", "grace"];
    let mut lines = vec![head.map(str::to_owned).to_vec()];
    for row in &rows {
        let [space, inodes] = parts(row);
        let (kind, id) = name_of(row);
        let mut line = vec![format!("{kind} {id}")];
        line.extend(space.cells(|bytes| human(Some(bytes))));
        line.extend(inodes.cells(|count| count.to_string()));
        lines.push(line);
    }
    out!("{}", table(&lines));
    Ok(0)
}

/// Reads a line of `name=value` words.
fn row_of(line: &str) -> Value {
    let pairs = line.split_whitespace().filter_map(|word| word.split_once('='));
    let number = |value: &str| Value::from(value.parse::<u64>().unwrap_or(0));
    pairs.map(|(name, value)| (name.to_owned(), number(value))).collect()
}

fn name_of(row: &Value) -> (&'static str, u64) {
    let of = |kind| row.get(kind).and_then(Value::as_u64);
    of("project").map_or(("user", of("user").unwrap_or(0)), |id| ("project", id))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grace_periods_have_units() {
        let cases =
            [("7d", Some(604_800)), ("2h", Some(7200)), ("5min", Some(300)), ("0", Some(0))];
        let wrong = [("7", None), ("d", None), ("-1d", None), ("99999999999d", None)];
        for (text, expected) in cases.into_iter().chain(wrong) {
            assert_eq!(seconds(text), expected, "{text}");
        }
        assert_eq!([30, 90, 7200, 200_000].map(time_text), ["30s", "1min", "2h", "2d"]);
    }

    #[test]
    fn a_row_shows_which_limits_are_exceeded() {
        let row =
            row_of("user=7 space=10 space_hard=10 inodes=3 inodes_soft=2 inodes_since=1 grace=5");
        let (space, inodes) =
            (ResourceUsage::of(&row, "space", 1), ResourceUsage::of(&row, "inodes", 1));
        assert_eq!(name_of(&row), ("user", 7));
        assert!(space.is_over() && space.left.is_none());
        assert_eq!((inodes.left, inodes.is_over()), (Some(1), true));
        assert_eq!(ResourceUsage::of(&row, "inodes", 10).left, Some(0));
    }
}

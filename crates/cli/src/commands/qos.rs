//! `forebay qos`: rules that share bandwidth between jobs and limit them.

use crate::command_line::{with_json, with_settings};
use crate::commands::{human, mount_program, print_json, table};
use crate::failure::{Failure, Result, USAGE};
use crate::instance::host;
use crate::instance::inspect::query_time;
use crate::process::query::rules_query;
use crate::state::directories;
use crate::state::records::{self, HostRecord};
use crate::state::settings;
use clap::{Arg, ArgMatches, Command};
use config::{Key, Origin, Settings};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  forebay qos set slow 'jobid={train.*}' bw=100M     each such job moves at most 100 MiB/s
  forebay qos set ann 'uid={1000}' bw=1G per=user    all jobs of user 1000 together
  forebay qos set stats 'opcode={stat list}' rate=2K at most 2,000 requests per second of these kinds
  forebay qos set raw 'dir={/raw}' bw=1G             each job in that directory of the instance
  forebay qos set big 'jobid={big}' weight=300       three times the share of another job of the same user
  forebay qos set burst 'jobid={burst}' dirty=2G     its writers wait while 2 GiB of it have to leave
  forebay qos set change slow bw=200M                another limit for an existing rule
  forebay qos show                                   rules, and the jobs of this host with their shares
  forebay qos delete slow
  forebay qos set --at /shared mine 'jobid={copy}' bw=50M   as any user of the mount /shared: a limit for
                                                     jobs of your own
  forebay qos delete mine --user 1000                that of user 1000, as the owner of the instance

A rule is: NAME EXPRESSION LIMIT... An expression is *, or conditions joined by & (all of them) and ,
(one of the groups): uid={..} gid={..} (numbers, ranges), jobid={..} program={..} (names, * for any
letters), tag={..} (what 'forebay run --tag' gave), dir={..} (directories of the instance, such as /raw,
with all below them), opcode={..} (open create stat list unlink rename setattr read write sync; data:
reads and writes, metadata: the others). Limits: bw= and min= (bytes per second; K M G T are powers of
1,024), rate= (requests per second), weight= (1 to 10,000, the usual one is 100), inflight=, dirty= (bytes
in the memory of each target that are neither on the SSD nor written back), per=job or per=user. The first
rule that matches a request decides; a new rule stands before all others, or with rank=OTHER before
that one.

Rules hold on all hosts, at once and after daemons were restarted, until they are deleted or the instance
is stopped. A cap is one for the whole job, over all hosts. They act on data that moves between hosts and
on requests that daemons serve, and bw= also on what programs copy in the memory of their own host, except
by mapped files. Users are those of the processes; jobs, programs and tags are what processes say.

Users that do not own the instance, and see it by a mount for all, limit their own jobs: with --at, or
where they have no instance of this name. Such rules have bw= (64K and more), rate=, inflight= and per=,
and conditions on jobid, program, opcode and tag. They match requests of their user alone, no other user
sees them, and each has names of its own for at most 8. The rules of the instance hold as well, as if
there were no others.";

pub(crate) fn command() -> Command {
    let keys = [Key::Name, Key::At, Key::Timeout];
    let words = Arg::new("rule").value_name("RULE").required(true).num_args(1..);
    let words = words.help("The rule: NAME EXPRESSION LIMIT..., or change NAME LIMIT...");
    let set = Command::new("set").about("Add a rule, or change one").arg(words);
    let show = Command::new("show").about("Show the rules, and what jobs of this host get");
    let rule = Arg::new("rule").value_name("NAME").required(true).help("Name of the rule");
    let user = Arg::new("user").long("user").value_name("UID");
    let user = user.value_parser(clap::value_parser!(u32)).help("It is one of this user's own");
    let delete = Command::new("delete").about("Delete a rule").arg(rule).arg(user);
    Command::new("qos")
        .about("Share bandwidth between jobs, and limit them")
        .after_long_help(EXAMPLES)
        .subcommand_required(true)
        .subcommand(with_json(with_settings(set, &keys)))
        .subcommand(with_json(with_settings(show, &keys)))
        .subcommand(with_json(with_settings(delete, &keys)))
}

pub(crate) fn run(given: &ArgMatches) -> Result<u8> {
    let (what, given) = given.subcommand().ok_or_else(|| Failure::new("set, show or delete?"))?;
    let settings = settings::resolve(given)?;
    let (place, time) = (RulesPlace::of(&settings)?, query_time(&settings));
    let words: Vec<&str> = match what {
        "show" => Vec::new(),
        _ => given.get_many::<String>("rule").into_iter().flatten().map(String::as_str).collect(),
    };
    let answer = match what {
        "set" => set_at(&place, &words.join(" "), time)?,
        "delete" => {
            let user = given.get_one::<u32>("user");
            let by = user.map_or_else(String::new, |user| format!("by {user} "));
            delete_at(&place, &by, &words.join(" "), time)?
        }
        _ => place.ask("show", time)?,
    };
    if given.get_flag("json") {
        print_json(&answer);
    } else if what == "show" {
        print_rules(&answer);
    }
    for warning in answer.get("warnings").and_then(Value::as_array).into_iter().flatten() {
        errln!("forebay qos: {}", warning.as_str().unwrap_or_default());
    }
    Ok(0)
}

/// The receiver of a command.
enum RulesPlace {
    /// The home daemon of this host, of an instance of this name.
    Instance(String),
    /// A mount that is here, of an instance of another user.
    Mount(PathBuf),
}

impl RulesPlace {
    /// The mount, if it is named, or there is no own instance of this name.
    fn of(settings: &Settings) -> Result<RulesPlace> {
        let name = settings.word(Key::Name);
        let is_own = || -> Result<bool> {
            let here: Option<HostRecord> = records::load(&directories::run(name)?, host::RECORD)?;
            Ok(here.is_some())
        };
        if !matches!(settings.origin(Key::At), Origin::Option(_)) && is_own()? {
            return Ok(RulesPlace::Instance(name.to_owned()));
        }
        let at = PathBuf::from(settings.word(Key::At));
        match settings.is_given(Key::At) || at.is_dir() {
            true => Ok(RulesPlace::Mount(at)),
            false => Err(Failure::no_instance(name)),
        }
    }

    fn ask(&self, text: &str, time: Duration) -> Result<Value> {
        match self {
            RulesPlace::Instance(name) => ask(name, text, time),
            RulesPlace::Mount(at) => {
                let words = [at.as_os_str().to_owned(), text.into()];
                let failed = format!("no limits at {}", at.display());
                let answer = mount_program::run("--limits", &words, &failed)?;
                refused_or(serde_json::from_str(&answer).unwrap_or_default())
            }
        }
    }
}

/// Adds or changes a rule.
///
/// # Errors
/// The fault, by its column in `rule`.
fn set(name: &str, rule: &str, time: Duration) -> Result<Value> {
    set_at(&RulesPlace::Instance(name.to_owned()), rule, time)
}

fn set_at(place: &RulesPlace, rule: &str, time: Duration) -> Result<Value> {
    const START: &str = "start ";
    let first = rule.split_whitespace().next().unwrap_or_default();
    if first == "start" || first == "change" {
        return place.ask(rule, time);
    }
    place.ask(&format!("{START}{rule}"), time).map_err(|failure| moved(&failure, START.len()))
}

/// Deletes a rule.
///
/// # Errors
/// There is no such rule.
fn delete(name: &str, rule: &str, time: Duration) -> Result<Value> {
    delete_at(&RulesPlace::Instance(name.to_owned()), "", rule, time)
}

fn delete_at(place: &RulesPlace, by: &str, rule: &str, time: Duration) -> Result<Value> {
    const STOP: &str = "stop ";
    let asked = place.ask(&format!("{by}{STOP}{rule}"), time);
    asked.map_err(|failure| moved(&failure, STOP.len()))
}

/// The failure with a column that counts without the first `letters`.
fn moved(failure: &Failure, letters: usize) -> Failure {
    let parts = failure.text().split_once(COLUMN).and_then(|(front, rest)| {
        let (column, why) = rest.split_once(':')?;
        let column = column.parse::<usize>().ok()?.saturating_sub(letters).max(1);
        Some(format!("{front}{COLUMN}{column}:{why}"))
    });
    parts.map_or_else(|| failure.clone(), |text| Failure::with_code(failure.code(), text))
}

/// Before the number of a column.
const COLUMN: &str = "rule refused: column ";

/// The answer of this host's home daemon to a command.
fn ask(name: &str, text: &str, time: Duration) -> Result<Value> {
    let run = directories::run(name)?;
    let here: Option<HostRecord> = records::load(&run, host::RECORD)?;
    let here = here.ok_or_else(|| Failure::no_instance(name))?;
    let socket = run.join(format!("d{}.sock", here.first));
    let answer = rules_query(&socket, text, time);
    let answer: Value = answer.ok_or_else(|| {
        let why = "it does not answer: see 'forebay status'";
        Failure::at("cannot reach the rules", format!("daemon {} of {name}", here.first), why)
    })?;
    refused_or(answer)
}

/// An answer that is no refusal.
fn refused_or(answer: Value) -> Result<Value> {
    match answer.get("error").and_then(Value::as_str) {
        Some(why) => Err(Failure::with_code(USAGE, format!("rule refused: {why}"))),
        None => Ok(answer),
    }
}

/// A rule for a job while a command of it runs.
pub(crate) struct JobRate {
    instance: String,
    rule: String,
    time: Duration,
    /// Another command of the job made the rule, and deletes it.
    is_others: bool,
}

/// Option `--max-rate` of `forebay run`.
pub(crate) fn max_rate_option() -> Arg {
    Arg::new("max-rate").long("max-rate").value_name("RATE").help(
        "Most bytes per second that the job of the command moves, such as 100MiB/s, on all hosts \
         together ('forebay qos')",
    )
}

impl JobRate {
    /// Limits a job by the option, if it is given.
    ///
    /// # Errors
    /// The rate is none, the name of the job is none for a rule, or the rule is refused.
    pub(crate) fn of(
        given: &ArgMatches,
        settings: &Settings,
        instance: &str,
        job: &str,
    ) -> Result<Option<JobRate>> {
        let Some(rate) = rate_of(given)? else { return Ok(None) };
        if job.contains(|letter: char| letter.is_whitespace() || "{}*".contains(letter)) {
            let why = "give a --job without spaces, braces and *";
            return Err(Failure::with_code(
                USAGE,
                format!("--max-rate: no rule for {job:?}: {why}"),
            ));
        }
        let uid = rustix::process::geteuid().as_raw();
        let rule = format!("run-{:08x}-{uid}", wire::welcome::job_word(job.as_bytes()));
        let time = query_time(settings);
        let text = format!("{rule} jobid={{{job}}} & uid={{{uid}}} bw={rate}");
        let is_others = match set(instance, &text, time) {
            Ok(_) => false,
            // Another command of the job, here or on another host.
            Err(_) if has_rule(instance, &rule, time) => {
                set(instance, &format!("change {rule} bw={rate}"), time)?;
                true
            }
            Err(failure) => return Err(failure),
        };
        Ok(Some(JobRate { instance: instance.to_owned(), rule, time, is_others }))
    }

    /// The command has ended.
    pub(crate) fn end(self) {
        if self.is_others {
            return;
        }
        if let Err(failure) = delete(&self.instance, &self.rule, self.time) {
            errln!("forebay run: the limit of --max-rate is left: {}", failure.text());
        }
    }
}

fn has_rule(instance: &str, rule: &str, time: Duration) -> bool {
    let shown = ask(instance, "show", time).ok();
    let rules = shown.as_ref().and_then(|shown| shown.get("rules")?.as_array());
    rules.into_iter().flatten().any(|one| one.get("name") == Some(&json!(rule)))
}

/// Bytes per second of `--max-rate`.
///
/// # Errors
/// It is none.
pub(crate) fn rate_of(given: &ArgMatches) -> Result<Option<u64>> {
    let Some(text) = given.get_one::<String>("max-rate") else { return Ok(None) };
    let rate =
        config::parse::size(text.strip_suffix("/s").unwrap_or(text)).filter(|&rate| rate > 0);
    let invalid = || {
        let why = "give bytes per second such as 100MiB/s";
        Failure::with_code(USAGE, format!("invalid value: {text:?} for --max-rate: {why}"))
    };
    rate.ok_or_else(invalid).map(Some)
}

fn print_rules(answer: &Value) {
    let rows = |key: &str| answer.get(key).and_then(Value::as_array).cloned().unwrap_or_default();
    let rules = rows("rules");
    if rules.is_empty() {
        outln!("no rules");
    }
    for rule in &rules {
        let of_user = rule.get("user").and_then(Value::as_u64);
        let by = of_user.map_or_else(String::new, |user| format!("user {user}: "));
        outln!("{by}{}", rule.get("rule").and_then(Value::as_str).unwrap_or_default());
    }
    let own = rows("own").into_iter().map(|mut row| {
        let rule = row.get("rule").and_then(Value::as_str).unwrap_or_default();
        row["rule"] = json!(format!("{rule} (own)"));
        row
    });
    let jobs: Vec<Value> = rows("jobs").into_iter().chain(own).collect();
    if jobs.is_empty() {
        return;
    }
    let head = ["user", "job", "rule", "waiting", "moved", "limit here", "throttled", "share"];
    let mut lines = vec![head.map(str::to_owned).to_vec()];
    for job in &jobs {
        let number = |key: &str| job.get(key).and_then(Value::as_u64);
        let part = |key: &str| job.get(key).and_then(Value::as_f64).unwrap_or(0.0);
        let word = |key: &str| match job.get(key).and_then(Value::as_str) {
            None | Some("") => "-".to_owned(),
            Some(word) => word.to_owned(),
        };
        let rate = number("bytes_per_second_here");
        lines.push(vec![
            number("user").unwrap_or(0).to_string(),
            word("job"),
            word("rule"),
            number("waiting").unwrap_or(0).to_string(),
            human(number("bytes")),
            rate.map_or_else(|| "-".to_owned(), |rate| format!("{}/s", human(Some(rate)))),
            format!("{:.1}s", part("throttled_s")),
            format!("{:.0}%", part("share") * 100.0),
        ]);
    }
    out!("{}", table(&lines));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_count_what_the_user_typed() {
        let failure = |text: &str| Failure::with_code(USAGE, text);
        let cases = [
            ("rule refused: column 16: no number", "rule refused: column 10: no number"),
            ("rule refused: column 3: expected", "rule refused: column 1: expected"),
            ("cannot reach: column 16: x", "cannot reach: column 16: x"),
        ];
        for (given, expected) in cases {
            assert_eq!(moved(&failure(given), 6).text(), expected);
        }
    }

    #[test]
    fn rates_are_sizes_per_second() {
        let rate = |text: &str| {
            let command = Command::new("run").arg(max_rate_option());
            rate_of(&command.get_matches_from(["run", "--max-rate", text])).ok().flatten()
        };
        assert_eq!(["100MiB/s", "1G", "7"].map(rate), [Some(100 << 20), Some(1 << 30), Some(7)]);
        assert_eq!(
            ["0", "fast", "10MiB/min", "-1"]
                .map(|text| { if text.starts_with('-') { None } else { rate(text) } }),
            [None; 4]
        );
    }
}

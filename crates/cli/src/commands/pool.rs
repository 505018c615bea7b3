//! `forebay pool`: pools of targets. A directory uses one by `forebay layout set --pool`.

use crate::command_line::{with_json, with_settings};
use crate::commands::{human, mount_program, print_json, table};
use crate::failure::{Failure, Result, USAGE};
use crate::instance::inspect::{DaemonReport, inspect, query_time};
use crate::state::settings;
use clap::{Arg, ArgMatches, Command};
use config::{Key, Settings};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::ffi::OsString;
use wire::pool::{MAX_PERF_DEFAULT, POOL_NAME_BYTES_MAX, POOL_TARGETS_MAX, is_name};

const EXAMPLES: &str = "\
Examples:
  forebay pool create fast --targets 0,2,3
  forebay pool create mixed --targets 0-3 --max-perf 500MiB,300MiB,500MiB,200MiB
  forebay layout set --pool fast /forebay/checkpoints    new files in it are on targets of the pool
  forebay layout set --pool none /forebay/checkpoints
  forebay pool list --json
  forebay pool delete fast

A pool is some targets of the instance, numbered as the daemons in 'forebay status', each with the bytes
per second that the pool may use of it over all hosts together, its max-perf. A new file in a directory
with a pool is stored on one target: that with the largest max-perf divided by the number of its open
files and one, of equal ones the first. So faster targets get more files. Without --max-perf there is no
limit, and targets count as equal unless one measured twice the speed of another when its daemon started.
The rates that programs get correct that while the pool is used. New directories inherit the pool.
A target whose daemon is down gets no new file while another of the pool is up, and one that has left
the instance ('forebay shrink') gets none; directories of a pool of which all have left are as if they
had no pool.
Files that exist stay where they are. Directories of a deleted pool have none. Pools last as long as the
instance. Only root and the owner of the instance may create and delete them.";

pub(crate) fn command() -> Command {
    let keys = [Key::Name, Key::Timeout];
    let name = || {
        let arg = Arg::new("pool").required(true).value_name("POOL");
        arg.help("Name of the pool: letters, digits, points, hyphens and underscores")
    };
    let targets = Arg::new("targets").long("targets").value_name("LIST").required(true);
    let targets = targets.help("Numbers of its targets, such as 0,2,3 or 0-3");
    let max_perf = Arg::new("max-perf").long("max-perf").value_name("SIZE");
    let max_perf = max_perf.help(
        "Bytes per second that it may use of each target: one size for all, or one for each, with \
         commas [default: no limit; by what each target measured when it started]",
    );
    let create = Command::new("create").about("Create a pool of targets");
    let list = Command::new("list").about("List the pools");
    let show = Command::new("show").about("Show one pool");
    let delete = Command::new("delete").about("Delete a pool");
    Command::new("pool")
        .about("Choose the targets of new files by their speed")
        .after_long_help(EXAMPLES)
        .subcommand_required(true)
        .subcommand(with_settings(create, &keys).arg(name()).arg(targets).arg(max_perf))
        .subcommand(with_json(with_settings(list, &keys)))
        .subcommand(with_json(with_settings(show, &keys)).arg(name()))
        .subcommand(with_settings(delete, &keys).arg(name()))
}

pub(crate) fn run(given: &ArgMatches) -> Result<u8> {
    let (what, given) =
        given.subcommand().ok_or_else(|| Failure::new("create, list, show or delete?"))?;
    let settings = settings::resolve(given)?;
    match what {
        "create" => create(&settings, given),
        "delete" => delete(&settings, &named(given)?),
        "show" => show(&settings, &named(given)?, given.get_flag("json")),
        _ => list(&settings, given.get_flag("json")),
    }
}

/// A `max_perf`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct MaxPerf {
    bytes_per_second: u64,
    is_measured: bool,
}

impl MaxPerf {
    const fn given(bytes_per_second: u64) -> MaxPerf {
        MaxPerf { bytes_per_second, is_measured: false }
    }

    /// As `forebay-mount --pool` says it.
    fn from_word(word: &str) -> Option<MaxPerf> {
        let (rate, is_measured) = word.strip_prefix('~').map_or((word, false), |rate| (rate, true));
        Some(MaxPerf { bytes_per_second: rate.parse().ok()?, is_measured })
    }

    /// As `forebay-mount --pool` reads it.
    fn word(self) -> String {
        format!("{}{}", if self.is_measured { "~" } else { "" }, self.bytes_per_second)
    }
}

/// A pool: its name, and its targets with their `max_perf`.
struct PoolRow {
    name: String,
    targets: Vec<(u16, MaxPerf)>,
}

/// The answer of `forebay-mount --pool` to `words`.
fn ask(settings: &Settings, failed: &str, words: &[OsString]) -> Result<String> {
    mount_program::ask(settings, "--pool", words, failed)
}

fn pools(settings: &Settings) -> Result<Vec<PoolRow>> {
    let said = ask(settings, "cannot list the pools", &["list".into()])?;
    let row = |line: &str| {
        let mut words = line.split(' ');
        let name = words.next().unwrap_or_default().to_owned();
        let target = |word: &str| {
            let (target, rate) = word.split_once(':')?;
            Some((target.parse().ok()?, MaxPerf::from_word(rate)?))
        };
        PoolRow { name, targets: words.filter_map(target).collect() }
    };
    Ok(said.lines().map(row).collect())
}

fn named(given: &ArgMatches) -> Result<String> {
    let name = given.get_one::<String>("pool").cloned().unwrap_or_default();
    if is_name(name.as_bytes()) {
        return Ok(name);
    }
    let text = format!(
        "\"{}\" is no name of a pool: give up to {POOL_NAME_BYTES_MAX} letters, digits, points, \
         hyphens and underscores, other than none",
        name.escape_debug()
    );
    Err(Failure::with_code(USAGE, text))
}

/// The targets of `--targets`: numbers and ranges, with commas.
///
/// # Errors
/// The text says which part is wrong.
fn targets(text: &str) -> core::result::Result<Vec<u16>, String> {
    let allowed = "give numbers of targets, such as 0,2,3 or 0-3";
    let mut all = Vec::new();
    for word in text.split(',') {
        let (first, last) = word.split_once('-').unwrap_or((word, word));
        let number = |text: &str| {
            let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
            let number = text.parse::<u16>().ok().filter(|_| is_number);
            number.filter(|&number| usize::from(number) < POOL_TARGETS_MAX)
        };
        let range = number(first).zip(number(last)).filter(|(first, last)| first <= last);
        let (first, last) =
            range.ok_or_else(|| format!("--targets cannot be \"{text}\": {allowed}"))?;
        for target in first..=last {
            if all.contains(&target) {
                return Err(format!("target {target} is in the pool twice: name it once"));
            }
            all.push(target);
        }
    }
    Ok(all)
}

/// The bytes per second of each of `count` targets.
///
/// # Errors
/// The text says which part is wrong.
fn max_perf(text: &str, count: usize) -> core::result::Result<Vec<u64>, String> {
    let rate = |word: &str| config::parse::size(word).filter(|rate| *rate > 0);
    let rates = text.split(',').map(rate).collect::<Option<Vec<u64>>>();
    let rates = rates.ok_or_else(|| {
        format!(
            "--max-perf cannot be \"{text}\": give bytes per second above 0, or a number with KiB, \
             MiB, GiB or TiB"
        )
    })?;
    match rates.as_slice() {
        [one] => Ok(vec![*one; count]),
        all if all.len() == count => Ok(rates),
        all => Err(format!(
            "--max-perf has {} sizes for {count} targets: give one, or one for each",
            all.len()
        )),
    }
}

/// The `max_perf` of targets that measured these speeds when they started; 0: not known. Speeds within a
/// factor of two are taken for equal: the moment has as much part in them as the devices.
fn measured(speeds: &[u64]) -> Vec<MaxPerf> {
    let (least, most) = (speeds.iter().min(), speeds.iter().max());
    match (least.copied().unwrap_or(0), most.copied().unwrap_or(0)) {
        (least, most) if least > 0 && most / 2 >= least => {
            let one = |&bytes_per_second: &u64| MaxPerf { bytes_per_second, is_measured: true };
            speeds.iter().map(one).collect()
        }
        _ => vec![MaxPerf::given(MAX_PERF_DEFAULT); speeds.len()],
    }
}

/// Checks that the instance has these targets, and that their daemons are alive. Returns the speeds that
/// they measured.
fn check_targets(settings: &Settings, targets: &[u16]) -> Result<Vec<u64>> {
    let all = inspect(settings.word(Key::Name), query_time(settings))?;
    let mut speeds = Vec::new();
    for target in targets {
        let is_it = |one: &&DaemonReport| one.daemon.index == *target;
        let found = all.daemons.iter().find(is_it);
        let why = match found.map(DaemonReport::is_alive) {
            Some(Some(true)) => {
                let status = found.and_then(DaemonReport::status);
                speeds.push(status.map_or(0, |status| status.metrics.target_speed));
                continue;
            }
            Some(Some(false)) => "is dead: restart it with 'forebay start', or leave it out",
            Some(None) => "is on a host that does not answer: leave it out",
            None => "does not exist: 'forebay status' shows the numbers",
        };
        return Err(Failure::new(format!("target {target} {why}")));
    }
    Ok(speeds)
}

fn create(settings: &Settings, given: &ArgMatches) -> Result<u8> {
    let name = named(given)?;
    let usage = |text: String| Failure::with_code(USAGE, text);
    let text = given.get_one::<String>("targets").map_or("", String::as_str);
    let targets = targets(text).map_err(usage)?;
    let rates = given.get_one::<String>("max-perf").map(|text| max_perf(text, targets.len()));
    let rates = rates.transpose().map_err(usage)?;
    let speeds = check_targets(settings, &targets)?;
    let rates = match rates {
        Some(rates) => rates.into_iter().map(MaxPerf::given).collect(),
        None => measured(&speeds),
    };
    if pools(settings)?.iter().any(|pool| pool.name == name) {
        return Err(Failure::new(format!("there is a pool '{name}' already: delete it first")));
    }
    let mut words: Vec<OsString> = vec!["create".into(), name.clone().into()];
    words.extend(
        targets.iter().zip(&rates).map(|(target, rate)| format!("{target}:{}", rate.word()).into()),
    );
    ask(settings, &format!("cannot create the pool '{name}'"), &words)?;
    Ok(0)
}

fn delete(settings: &Settings, name: &str) -> Result<u8> {
    find(settings, name)?;
    ask(settings, &format!("cannot delete the pool '{name}'"), &["delete".into(), name.into()])?;
    Ok(0)
}

fn find(settings: &Settings, name: &str) -> Result<PoolRow> {
    let found = pools(settings)?.into_iter().find(|pool| pool.name == name);
    found.ok_or_else(|| Failure::new(format!("there is no pool '{name}': see 'forebay pool list'")))
}

/// The daemons of an instance that may have targets of a pool: whether each is alive, if that is known.
type KnownDaemons = BTreeMap<u16, Option<bool>>;

fn daemons(settings: &Settings) -> Result<KnownDaemons> {
    let all = inspect(settings.word(Key::Name), query_time(settings))?.daemons;
    Ok(all.iter().map(|one| (one.daemon.index, one.is_alive())).collect())
}

/// The state of a target, in one word.
fn state(daemons: &KnownDaemons, target: u16) -> &'static str {
    match daemons.get(&target) {
        Some(Some(true)) => "up",
        Some(Some(false)) => "down",
        Some(None) => "unknown",
        None => "left",
    }
}

fn as_json(pool: &PoolRow, daemons: &KnownDaemons) -> Value {
    let target = |&(target, rate): &(u16, MaxPerf)| {
        let key = if rate.is_measured { "measured" } else { "max_perf" };
        json!({ "target": target, key: rate.bytes_per_second, "state": state(daemons, target) })
    };
    json!({ "name": pool.name, "targets": pool.targets.iter().map(target).collect::<Vec<_>>() })
}

/// The rows of a pool's targets.
fn target_rows(pool: &PoolRow, daemons: &KnownDaemons) -> Vec<Vec<String>> {
    let mut rows = vec![["target", "max-perf", "state"].map(str::to_owned).to_vec()];
    for &(target, rate) in &pool.targets {
        let mark = if rate.is_measured { "about " } else { "" };
        let rate = format!("{mark}{}", human(Some(rate.bytes_per_second)));
        rows.push(vec![target.to_string(), rate, state(daemons, target).to_owned()]);
    }
    rows
}

/// The row of a pool: its targets with their states, unless they are up, and the rates of those that have
/// not left, added up.
fn pool_row(pool: &PoolRow, daemons: &KnownDaemons) -> Vec<String> {
    let (mut targets, mut sum) = (Vec::new(), 0u64);
    for &(target, rate) in &pool.targets {
        let state = state(daemons, target);
        let is_up = state == "up";
        targets.push(if is_up { target.to_string() } else { format!("{target} ({state})") });
        let rate = if state == "left" { 0 } else { rate.bytes_per_second };
        sum = sum.saturating_add(rate);
    }
    vec![pool.name.clone(), targets.join(","), human(Some(sum))]
}

fn show(settings: &Settings, name: &str, is_json: bool) -> Result<u8> {
    let (pool, daemons) = (find(settings, name)?, daemons(settings)?);
    if is_json {
        print_json(&as_json(&pool, &daemons));
        return Ok(0);
    }
    out!("{}", table(&target_rows(&pool, &daemons)));
    Ok(0)
}

fn list(settings: &Settings, is_json: bool) -> Result<u8> {
    let (pools, daemons) = (pools(settings)?, daemons(settings)?);
    if is_json {
        let all = pools.iter().map(|pool| as_json(pool, &daemons)).collect::<Vec<_>>();
        print_json(&Value::from(all));
        return Ok(0);
    }
    let mut rows = vec![["pool", "targets", "max-perf"].map(str::to_owned).to_vec()];
    rows.extend(pools.iter().map(|pool| pool_row(pool, &daemons)));
    out!("{}", table(&rows));
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_numbers_and_ranges() {
        assert_eq!(targets("0,2,3"), Ok(vec![0, 2, 3]));
        assert_eq!(targets("5,0-2"), Ok(vec![5, 0, 1, 2]));
        for wrong in ["", "a", "1,", "-1", "3-1", "0 1", "1-", "+1", "70000", "0-1024"] {
            assert!(targets(wrong).is_err(), "{wrong}");
        }
        let twice = "target 2 is in the pool twice: name it once".to_owned();
        assert_eq!(targets("0-3,2"), Err(twice));
    }

    #[test]
    fn max_perf_is_for_all_or_for_each() {
        let rates = max_perf;
        assert_eq!(rates("1MiB", 2), Ok(vec![1 << 20; 2]));
        assert_eq!(rates("1MiB,2KiB", 2), Ok(vec![1 << 20, 2048]));
        for wrong in ["0", "1MiB,0", "fast", "", "1MiB,2MiB,3MiB"] {
            assert!(rates(wrong, 2).is_err(), "{wrong}");
        }
    }

    #[test]
    fn targets_of_daemons_that_left_are_marked() {
        let daemons: KnownDaemons =
            [(0, Some(true)), (1, Some(false)), (2, None)].into_iter().collect();
        let rate = |mib: u64| MaxPerf::given(mib << 20);
        let targets = (0..4).map(|target| (target, rate(1 << target))).collect();
        let pool = PoolRow { name: "p".to_owned(), targets };
        assert_eq!(
            pool_row(&pool, &daemons),
            ["p", "0,1 (down),2 (unknown),3 (left)", human(Some(7 << 20)).as_str()]
        );
        let states: Vec<String> =
            target_rows(&pool, &daemons).into_iter().filter_map(|mut row| row.pop()).collect();
        assert_eq!(states, ["state", "up", "down", "unknown", "left"]);
        let json = as_json(&pool, &daemons);
        assert_eq!(json["targets"][3]["state"], "left");
        assert_eq!(json["targets"][1]["max_perf"], 2 << 20);
    }

    #[test]
    fn measured_speeds_count_if_one_is_twice_another() {
        let usual = MaxPerf::given(MAX_PERF_DEFAULT);
        for equal in [&[100, 199][..], &[0, 1000], &[7], &[]] {
            assert_eq!(measured(equal), vec![usual; equal.len()], "{equal:?}");
        }
        let found = measured(&[300, 100]);
        let words: Vec<String> = found.iter().map(|one| one.word()).collect();
        assert_eq!(words, ["~300", "~100"]);
        let again: Vec<_> = words.iter().map(|word| MaxPerf::from_word(word)).collect();
        assert_eq!(again, [Some(found[0]), Some(found[1])]);
        assert_eq!(MaxPerf::from_word("5"), Some(MaxPerf::given(5)));
    }
}

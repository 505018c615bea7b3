//! `forebay monitor`: records an instance in the history until it ends; and the hidden command
//! `daemon-record`, which does the same for `forebay start`.

use super::top::interval;
use crate::command_line::{with_name, with_settings};
use crate::dashboard::{RecordOptions, record};
use crate::failure::Result;
use crate::instance::inspect::query_time;
use crate::instance::recorder::RecorderConfig;
use crate::state::history::HistoryPlace;
use crate::state::settings;
use clap::{Arg, ArgMatches, Command, value_parser};
use config::Key;
use std::path::{Path, PathBuf};
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  forebay start a --monitor off
  forebay monitor a &            records until 'forebay stop a'
  forebay history load a         what it recorded

'forebay start' starts it already, unless --monitor off.

It records the load of the instance and of its ten busiest jobs in each second, events, and each job with
its advice when it has ended. 'forebay dashboard' does the same while it runs; one process records an
instance. It asks the daemons of all hosts, those of other hosts by ssh: give a longer --interval for many
hosts. No program waits for it: what the history does not take is dropped, counted, and said at the end.";

pub(crate) fn command() -> Command {
    let interval = Arg::new("interval")
        .long("interval")
        .value_name("TIME")
        .default_value("1s")
        .help("Time between looks at the instance, from 100ms to 1h");
    let command = Command::new("monitor").about("Record the load, events and jobs of an instance");
    let command = command.after_long_help(EXAMPLES).arg(interval);
    let keys = [Key::Name, Key::Timeout, Key::MonitorDb, Key::MonitorKeep, Key::MonitorSize];
    with_name(with_settings(command, &keys))
}

pub(crate) fn run(given: &ArgMatches) -> Result<u8> {
    let settings = settings::resolve(given)?;
    let place = HistoryPlace::of(&settings)?;
    let (interval, timeout) = (interval(given)?, query_time(&settings));
    record(settings.word(Key::Name), RecordOptions { interval, timeout, ready_fd: None }, place)?;
    Ok(0)
}

/// The command `daemon-record`.
pub(crate) fn process_command() -> Command {
    let config = Arg::new("config").long("config").value_name("PATH").required(true);
    let ready = Arg::new("ready-fd").long("ready-fd").value_name("FD");
    Command::new("daemon-record")
        .hide(true)
        .about("Record an instance")
        .arg(config.value_parser(value_parser!(PathBuf)))
        .arg(ready.value_parser(value_parser!(i32)))
}

/// Runs `daemon-record`.
pub(crate) fn run_process(given: &ArgMatches) -> Result<u8> {
    let path = given.get_one::<PathBuf>("config").map_or(Path::new(""), PathBuf::as_path);
    let RecorderConfig { name, interval_us, timeout_us, place } = RecorderConfig::read(path)?;
    let [interval, timeout] = [interval_us, timeout_us].map(Duration::from_micros);
    let ready_fd = given.get_one::<i32>("ready-fd").copied();
    record(&name, RecordOptions { interval, timeout, ready_fd }, place)?;
    Ok(0)
}

//! `forebay monitor`: records an instance in the history until it ends.

use super::top::interval;
use crate::command_line::{with_name, with_settings};
use crate::dashboard::record;
use crate::failure::Result;
use crate::instance::inspect::query_time;
use crate::state::history::HistoryPlace;
use crate::state::settings;
use clap::{Arg, ArgMatches, Command};
use config::Key;

const EXAMPLES: &str = "\
Examples:
  forebay monitor a &            in a job script, after 'forebay start a': records until 'forebay stop a'
  forebay history load a         what it recorded

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
    record(settings.word(Key::Name), interval(given)?, query_time(&settings), place)?;
    Ok(0)
}

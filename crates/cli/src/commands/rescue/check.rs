//! `forebay check`: what of an instance is damaged.

use super::{code_of, print_report, print_report_json};
use crate::command_line::{with_json, with_name, with_settings};
use crate::failure::{Failure, Result};
use crate::instance::cluster;
use crate::instance::rescue::{self, Daemons};
use crate::state::settings;
use clap::{ArgMatches, Command};
use config::Key;
use config::process::CheckExtent;

const MORE: &str = "\
It reads the logs, the records and all data on the SSDs of all daemons, whether they run or not, and
changes nothing.
Each file that is concerned is listed with its path and what is lost of it. In an instance with --replicas
bytes that one copy lacks and another has are counted, and not lost.

Exit codes:
  0 nothing is damaged   4 something is   1 it cannot be checked   3 no such instance
The code is 4 also where nothing is lost, since another copy or the backing store has what is damaged: it
is 0 again when that is repaired. With --json 'lost' is empty then.";

pub(crate) fn command() -> Command {
    let command = Command::new("check").about("Check the logs and the data of an instance");
    with_json(with_name(with_settings(command, &[Key::Name]))).after_long_help(MORE)
}

pub(crate) fn run(given: &ArgMatches) -> Result<u8> {
    let settings = settings::resolve(given)?;
    let name = settings.word(Key::Name);
    let instance = cluster::load(name)?.ok_or_else(|| Failure::no_instance(name))?;
    let report = rescue::check(&instance, CheckExtent::All, Daemons::Run)?.report;
    match given.get_flag("json") {
        true => print_report_json(name, &report),
        false => print_report(&report),
    }
    Ok(code_of(&report))
}

//! `forebay lost`: what of an instance is lost, as far as that is known without reading its data.

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
It lists what salvages ('forebay start --salvage') lost, and files in which running daemons found damaged
bytes that are still there. 'forebay check' looks for damage that nobody has met.

Exit codes:
  0 nothing is lost   4 something is   1 it cannot be told   3 no such instance";

pub(crate) fn command() -> Command {
    let command = Command::new("lost").about("List files that are lost or damaged");
    with_json(with_name(with_settings(command, &[Key::Name]))).after_long_help(MORE)
}

pub(crate) fn run(given: &ArgMatches) -> Result<u8> {
    let settings = settings::resolve(given)?;
    let name = settings.word(Key::Name);
    let instance = cluster::load(name)?.ok_or_else(|| Failure::no_instance(name))?;
    let mut report = rescue::check(&instance, CheckExtent::Logs, Daemons::Run)?.report;
    for mut before in rescue::lost_before(name)?.into_iter().rev() {
        // Bytes that are still damaged are in the report of now.
        before.lost.retain(|file| file.what != "bytes" && !report.lost.contains(file));
        report.damage.splice(0..0, before.damage);
        report.lost.splice(0..0, before.lost);
    }
    match given.get_flag("json") {
        true => print_report_json(name, &report),
        false => print_report(&report),
    }
    Ok(code_of(&report))
}

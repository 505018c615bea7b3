//! `forebay lost`: what of an instance is lost, as far as that is known without reading its data.

use super::{DAMAGED, code_of, print_report, print_report_json};
use crate::command_line::{with_json, with_name, with_settings};
use crate::commands::{plural, print_json};
use crate::failure::{Failure, Result};
use crate::instance::cluster;
use crate::instance::rescue::{self, Daemons, LostFile, Report};
use crate::state::records::InstanceRecord;
use crate::state::settings;
use clap::{ArgMatches, Command};
use config::Key;
use config::process::CheckExtent;
use serde_json::json;

const MORE: &str = "\
It lists what salvages ('forebay start --salvage') lost, and files in which running daemons found damaged
bytes that are still there. 'forebay check' looks for damage that nobody has met.

In an instance with --replicas it lists the files of which bytes have no copy that can be reached, with
these bytes: 'copies' are gone for good, 'down' are back with one of the daemons that have them. Daemons
answer from their tables at once. A hole of a file is listed as bytes are. 'bytes' are damaged in all
copies, as far as a program or the scrub has met them: no other data is read.

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
    let is_json = given.get_flag("json");
    if instance.config.replicas > 1 {
        return without_copies(&instance, is_json);
    }
    let mut report = rescue::check(&instance, CheckExtent::Logs, Daemons::Run)?.report;
    for mut before in rescue::lost_before(name)?.into_iter().rev() {
        // Bytes that are still damaged are in the report of now.
        before.lost.retain(|file| file.what != "bytes" && !report.lost.contains(file));
        report.damage.splice(0..0, before.damage);
        report.lost.splice(0..0, before.lost);
    }
    match is_json {
        true => print_report_json(name, &report),
        false => print_report(&report),
    }
    Ok(code_of(&report))
}

/// An instance with copies: no salvage happened in it, and damaged bytes come from another copy if there
/// is one that is not damaged.
fn without_copies(instance: &InstanceRecord, is_json: bool) -> Result<u8> {
    let found = cluster::lost_files(instance)?;
    let without = found.files.into_iter().map(LostFile::without_copies);
    let lost: Vec<LostFile> = without.chain(rescue::damaged_copies(instance)?).collect();
    let (is_whole, silent) = (lost.is_empty(), found.services_silent);
    if is_json {
        print_json(&json!({
            "name": instance.name,
            "whole": is_whole && silent == 0,
            "lost": lost,
            "has_more": found.has_more,
            "services_silent": silent,
        }));
    } else if !is_whole || silent == 0 {
        print_report(&Report { lost, ..Report::default() });
    }
    if !is_json && found.has_more {
        outln!("and more files");
    }
    if !is_json && silent > 0 {
        let services = plural(silent, "metadata service");
        outln!("not all files of {services} are listed: no answer in time, see 'forebay status'");
    }
    Ok(match (silent, is_whole) {
        (0, true) => 0,
        (0, false) => DAMAGED,
        _ => 1,
    })
}

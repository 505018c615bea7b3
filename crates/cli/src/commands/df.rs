//! `forebay df`: the space of an instance.

use crate::command_line::{with_json, with_name, with_settings};
use crate::commands::{human, print_json, table};
use crate::failure::{Failure, Result};
use crate::instance::inspect::{DaemonReport, inspect, query_time};
use crate::state::settings;
use clap::{ArgMatches, Command};
use config::Key;
use config::control::DaemonStatus;
use config::metrics::DaemonSample;
use serde_json::json;

const MORE: &str = "\
The space of the daemons of all hosts is added up. Daemons that are dead or do not answer are not counted;
they are named, and the exit code is 1.";

pub(crate) fn command() -> Command {
    let command = Command::new("df").about("Show the space of an instance");
    with_json(with_name(with_settings(command, &[Key::Name, Key::Timeout]))).after_long_help(MORE)
}

/// The daemons whose space is not known.
fn silent(reports: &[DaemonReport]) -> Vec<String> {
    let of = |report: &DaemonReport| match report.host.as_str() {
        "" => format!("d{}", report.daemon.index),
        host => format!("d{} on {host}", report.daemon.index),
    };
    reports.iter().filter(|report| report.status().is_none()).map(of).collect()
}

/// Total and free bytes of one tier.
fn sum(states: &[&DaemonStatus], one: impl Fn(&DaemonSample) -> (u64, u64)) -> (u64, u64) {
    let all = states.iter().map(|state| one(&state.metrics));
    all.fold((0, 0), |(size, free), (more, more_free)| (size + more, free + more_free))
}

pub(crate) fn run(given: &ArgMatches) -> Result<u8> {
    let settings = settings::resolve(given)?;
    let name = settings.word(Key::Name);
    let all = inspect(name, query_time(&settings))?;
    let states: Vec<&DaemonStatus> = all.daemons.iter().filter_map(DaemonReport::status).collect();
    let silent = silent(&all.daemons);
    if states.is_empty() {
        let why = "none answers: see 'forebay status'".to_owned();
        return Err(Failure::at("cannot read the space", format!("daemons of {name}"), why));
    }
    let code = u8::from(!silent.is_empty());
    let memory = sum(&states, |state| (state.memory_total, state.memory_free));
    let ssd = sum(&states, |state| (state.ssd_total, state.ssd_free));
    if given.get_flag("json") {
        let tier = |(size, free): (u64, u64)| json!({ "size": size, "free": free });
        let daemons = states.len();
        print_json(&json!({
            "name": name, "daemons": daemons, "silent": silent,
            "memory": tier(memory), "ssd": tier(ssd)
        }));
        return Ok(code);
    }
    let mut rows = vec![["tier", "size", "used", "free"].map(str::to_owned).to_vec()];
    for (tier, (size, free)) in [("memory", memory), ("ssd", ssd)] {
        let sizes = [size, size.saturating_sub(free), free].map(|bytes| human(Some(bytes)));
        rows.push([tier.to_owned()].into_iter().chain(sizes).collect());
    }
    out!("{}", table(&rows));
    if !silent.is_empty() {
        outln!("not counted, since they do not answer: {}", silent.join(", "));
    }
    Ok(code)
}

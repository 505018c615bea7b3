//! `forebay df`: space of an instance, as its daemons on this host say it.

use crate::command_line::{with_json, with_settings};
use crate::commands::status::{Seen, look};
use crate::commands::{human, print_json, table};
use crate::failure::{Failure, Result};
use crate::query::State;
use crate::settings;
use clap::{ArgMatches, Command};
use config::Key;
use serde_json::json;

pub(super) fn command() -> Command {
    let command = Command::new("df").about("Show an instance's space on this host");
    with_json(with_settings(command, &[Key::Name, Key::Timeout]))
}

/// Size and free bytes of one tier; `None` if a daemon did not tell.
fn sum(
    states: &[&State],
    one: impl Fn(&State) -> (Option<u64>, Option<u64>),
) -> Option<(u64, u64)> {
    states
        .iter()
        .map(|state| one(state))
        .try_fold((0, 0), |(size, free), pair| Some((size + pair.0?, free + pair.1?)))
}

pub(super) fn run(given: &ArgMatches) -> Result<u8> {
    let settings = settings::resolve(given)?;
    let name = settings.word(Key::Name);
    let (seen, _) = look(name, settings.timeout())?;
    let here: Vec<&Seen> = seen.iter().filter(|one| one.is_alive.is_some()).collect();
    let states: Vec<&State> = here.iter().filter_map(|one| one.state.as_ref()).collect();
    let silent = here.len() - states.len();
    if states.is_empty() || silent > 0 {
        let why = format!("{silent} of {} do not answer: see 'forebay status'", here.len());
        return Err(Failure::at("no figures", format!("daemons of {name} on this host"), why));
    }
    let memory = sum(&states, |state| (state.memory_total, state.memory_free));
    let ssd = sum(&states, |state| (state.ssd_total, state.ssd_free));
    if given.get_flag("json") {
        let tier = |pair: Option<(u64, u64)>| {
            pair.map(|(size, free)| json!({ "size": size, "free": free }))
        };
        let daemons = here.len();
        print_json(&json!({
            "name": name, "daemons": daemons, "memory": tier(memory), "ssd": tier(ssd)
        }));
        return Ok(0);
    }
    let mut rows = vec![["tier", "size", "used", "free"].map(str::to_owned).to_vec()];
    for (tier, pair) in [("memory", memory), ("ssd", ssd)] {
        let (size, free) = (pair.map(|pair| pair.0), pair.map(|pair| pair.1));
        let used = pair.map(|(size, free)| size.saturating_sub(free));
        rows.push(vec![tier.to_owned(), human(size), human(used), human(free)]);
    }
    out!("{}", table(&rows));
    Ok(0)
}

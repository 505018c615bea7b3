//! `forebay ls`: the instances of this user on this host.

use crate::command_line::with_json;
use crate::commands::{print_json, table};
use crate::failure::{Failure, Result};
use crate::records::{self, Host, Instance};
use crate::{directories, host, instance};
use clap::{ArgMatches, Command};
use serde_json::json;

pub(super) fn command() -> Command {
    with_json(Command::new("ls").about("List your instances on this host"))
}

pub(super) fn run(given: &ArgMatches) -> Result<u8> {
    let mut rows = Vec::new();
    for name in names()? {
        let run = directories::run(&name)?;
        let here: Option<Host> = records::load(&run, host::RECORD)?;
        let all: Option<Instance> = records::load(&run, instance::RECORD)?;
        let local = here.as_ref().map_or(&[][..], |host| &host.daemons);
        let alive = here.as_ref().map_or(Ok(0), Host::count_alive)?;
        let count = all.as_ref().map(Instance::count).or(here.as_ref().map(|host| host.count));
        rows.push((name, count.unwrap_or(0), local.len(), alive));
    }
    if given.get_flag("json") {
        let all: Vec<_> = rows
            .iter()
            .map(|(name, count, local, alive)| {
                json!({ "name": name, "daemons": count, "here": local, "alive": alive })
            })
            .collect();
        print_json(&json!({ "instances": all }));
        return Ok(0);
    }
    let head = ["name", "daemons", "here", "alive"].map(str::to_owned).to_vec();
    let lines = rows.into_iter().map(|(name, count, local, alive)| {
        vec![name, count.to_string(), local.to_string(), alive.to_string()]
    });
    out!("{}", table(&std::iter::once(head).chain(lines).collect::<Vec<_>>()));
    Ok(0)
}

fn names() -> Result<Vec<String>> {
    let base = directories::base();
    if std::fs::symlink_metadata(&base).is_err() {
        return Ok(Vec::new());
    }
    directories::check_private(&base)?;
    let entries = std::fs::read_dir(&base)
        .map_err(|error| Failure::at("can not list", base.display(), error))?;
    let mut names: Vec<String> = entries
        .flatten()
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| config::parse::is_name(name))
        .collect();
    names.sort();
    Ok(names)
}

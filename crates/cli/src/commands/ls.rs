//! `forebay ls`: the user's instances on this host; for root, those of all users.

use crate::command_line::with_json;
use crate::commands::{print_json, table};
use crate::failure::{Failure, Result};
use crate::instance::cluster;
use crate::instance::host;
use crate::instance::survivors;
use crate::state::directories;
use crate::state::records::{self, HostRecord, InstanceRecord};
use clap::{Arg, ArgAction, ArgMatches, Command};
use serde_json::json;

pub(crate) fn command() -> Command {
    let all = Arg::new("all-users")
        .long("all-users")
        .action(ArgAction::SetTrue)
        .help("List the instances of all users that have daemons on this host; for root");
    with_json(Command::new("ls").about("List your instances on this host").arg(all))
}

/// `--all-users`.
fn run_for_all(given: &ArgMatches) -> Result<u8> {
    if !rustix::process::geteuid().is_root() {
        return Err(Failure::at("not permitted", "--all-users", "only root sees other users'"));
    }
    let all = survivors::of_all_users();
    if given.get_flag("json") {
        let all =
            all.iter().map(|one| json!({ "uid": one.uid, "name": one.name, "pids": one.pids }));
        print_json(&json!({ "instances": all.collect::<Vec<_>>() }));
        return Ok(0);
    }
    let head = ["user", "name", "daemons here", "processes"].map(str::to_owned).to_vec();
    let lines = all.into_iter().map(|one| {
        let pids: Vec<String> = one.pids.iter().map(ToString::to_string).collect();
        vec![one.uid.to_string(), one.name, pids.len().to_string(), pids.join(" ")]
    });
    out!("{}", table(&std::iter::once(head).chain(lines).collect::<Vec<_>>()));
    Ok(0)
}

pub(crate) fn run(given: &ArgMatches) -> Result<u8> {
    if given.get_flag("all-users") {
        return run_for_all(given);
    }
    let mut rows = Vec::new();
    for name in names()? {
        let run = directories::run(&name)?;
        let here: Option<HostRecord> = records::load(&run, host::RECORD)?;
        let all: Option<InstanceRecord> = records::load(&run, cluster::RECORD)?;
        let local = here.as_ref().map_or(&[][..], |host| &host.daemons);
        let alive = here.as_ref().map_or(Ok(0), HostRecord::count_alive)?;
        let count =
            all.as_ref().map(InstanceRecord::count).or(here.as_ref().map(|host| host.count));
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
    let head = ["name", "daemons", "on this host", "alive"].map(str::to_owned).to_vec();
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
        .map_err(|error| Failure::at("cannot list", base.display(), error))?;
    let mut names: Vec<String> = entries
        .flatten()
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| config::parse::is_name(name))
        .collect();
    names.sort();
    Ok(names)
}

//! `forebay status`: the daemons of an instance, what they hold, and its settings.

use crate::command_line::{with_json, with_settings};
use crate::commands::{human, print_json, table};
use crate::failure::{FAILED, Failure, Result};
use crate::mounts::{self, Mount};
use crate::query::{State, daemon_query};
use crate::records::{self, Daemon, Host, Part, Wanted};
use crate::{directories, host, instance, settings};
use clap::{ArgMatches, Command};
use config::Key;
use serde_json::json;
use std::path::Path;
use std::time::Duration;

const EXAMPLES: &str = "\
Example:
  forebay status --json

Daemons of other hosts are listed, but only this host's are looked at: 'elsewhere'. The exit code is
1 if one of this host is dead; 'forebay start' starts it again. Mounts of this host are listed, too:
'leaving' ones were taken away with --lazy and are still in use; of a 'dead' one the program was killed,
'forebay umount' takes it away.";

pub(super) fn command() -> Command {
    let command = Command::new("status").about("Show the daemons of an instance and their space");
    with_json(with_settings(command.after_help(EXAMPLES), &[Key::Name, Key::Timeout]))
}

/// One daemon as it is now.
pub(super) struct Seen {
    /// Its host; empty: this one.
    pub(super) host: String,
    /// As it was started.
    pub(super) daemon: Daemon,
    /// `None`: on another host.
    pub(super) is_alive: Option<bool>,
    /// What it says.
    pub(super) state: Option<State>,
}

impl Seen {
    fn new(
        run: &Path,
        host: &str,
        daemon: &Daemon,
        is_here: bool,
        timeout: Duration,
    ) -> Result<Seen> {
        let is_alive = is_here.then(|| daemon.process.is_alive()).transpose()?;
        let socket = run.join(format!("d{}.sock", daemon.index));
        let state = match is_alive {
            Some(true) => daemon_query(&socket, timeout),
            _ => None,
        };
        Ok(Seen { host: host.to_owned(), daemon: daemon.clone(), is_alive, state })
    }

    fn word(&self) -> &'static str {
        match self.is_alive {
            None => "elsewhere",
            Some(true) => "alive",
            Some(false) => "dead",
        }
    }
}

/// The daemons of the instance `name` and its settings.
///
/// # Errors
/// There is no such instance, or its records can not be read.
pub(super) fn look(name: &str, timeout: Duration) -> Result<(Vec<Seen>, Wanted)> {
    let run = directories::run(name)?;
    let here: Option<Host> = records::load(&run, host::RECORD)?;
    let is_here = |part: &Part, index: u16| {
        let listed = here.iter().flat_map(|host| &host.daemons).any(|one| one.index == index);
        part.host.is_empty() || listed
    };
    if let Some(instance) = instance::load(name)? {
        let seen = instance.daemons().map(|(part, daemon)| {
            Seen::new(&run, &part.host, daemon, is_here(part, daemon.index), timeout)
        });
        return Ok((seen.collect::<Result<_>>()?, instance.wanted.clone()));
    }
    let host = here.ok_or_else(|| Failure::no_instance(name))?;
    let seen = host.daemons.iter().map(|daemon| Seen::new(&run, "", daemon, true, timeout));
    Ok((seen.collect::<Result<_>>()?, host.wanted.clone()))
}

pub(super) fn run(given: &ArgMatches) -> Result<u8> {
    let settings = settings::resolve(given)?;
    let name = settings.word(Key::Name);
    let (seen, wanted) = look(name, settings.timeout())?;
    let mounts = mounts::all(&directories::run(name)?)?;
    if given.get_flag("json") {
        let daemons: Vec<_> = seen.iter().map(as_json).collect();
        let mounts: Vec<_> = mounts.iter().map(mount_as_json).collect();
        print_json(
            &json!({ "name": name, "daemons": daemons, "mounts": mounts, "settings": wanted }),
        );
    } else {
        outln!("instance {name}: {} daemons", seen.len());
        out!("{}", as_table(&seen));
        let chunk = human(Some(wanted.chunk));
        outln!(
            "at {}, chunk {chunk}, spread {}, placement {}, {} workers",
            wanted.at,
            wanted.spread,
            wanted.placement,
            wanted.workers
        );
        for (mount, state) in &mounts {
            let (at, pid) = (mount.at.display(), mount.process.pid);
            outln!("mount {at} by process {pid}: {}", state.word());
        }
    }
    let is_dead = seen.is_empty() || seen.iter().any(|one| one.is_alive == Some(false));
    Ok(if is_dead { FAILED } else { 0 })
}

fn as_json(one: &Seen) -> serde_json::Value {
    json!({
        "index": one.daemon.index,
        "host": one.host,
        "pid": one.daemon.process.pid,
        "alive": one.is_alive,
        "tcp": one.daemon.tcp,
        "memory": one.daemon.memory,
        "ssd": one.daemon.ssd,
        "resident": one.daemon.process.resident_bytes().filter(|_| one.is_alive == Some(true)),
        "state": one.state,
    })
}

fn mount_as_json((mount, state): &(Mount, mounts::State)) -> serde_json::Value {
    json!({ "at": mount.at.to_string_lossy(), "pid": mount.process.pid, "state": state.word() })
}

fn as_table(seen: &[Seen]) -> String {
    let head =
        ["daemon", "host", "state", "pid", "memory", "free", "ssd", "free", "files", "address"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for one in seen {
        let state = one.state.clone().unwrap_or_default();
        rows.push(vec![
            one.daemon.index.to_string(),
            if one.host.is_empty() { "here".to_owned() } else { one.host.clone() },
            one.word().to_owned(),
            one.daemon.process.pid.to_string(),
            human(Some(one.daemon.memory)),
            human(state.memory_free),
            human(Some(one.daemon.ssd)),
            human(state.ssd_free),
            state.files.map_or_else(|| "-".to_owned(), |files| files.to_string()),
            one.daemon.tcp.clone(),
        ]);
    }
    table(&rows)
}

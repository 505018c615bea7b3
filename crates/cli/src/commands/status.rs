//! `forebay status`: the daemons of an instance, what they hold, and its settings.

use crate::command_line::{with_json, with_settings};
use crate::commands::{human, print_json, table};
use crate::failure::{FAILED, Failure, Result};
use crate::mounts::{self, Mount};
use crate::query::{State, daemon_query};
use crate::records::{self, Daemon, Host, Part, Wanted};
use crate::{directories, host, instance, settings, writeback};
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
    let run = directories::run(name)?;
    let mounts = mounts::all(&run)?;
    // One that was killed goes on with this.
    let asked = wanted.has_writer().then(|| writeback::ensure(&run));
    let writer = asked.and_then(|_| writeback::status(&run));
    if given.get_flag("json") {
        let daemons: Vec<_> = seen.iter().map(as_json).collect();
        let mounts: Vec<_> = mounts.iter().map(mount_as_json).collect();
        print_json(&json!({
            "name": name,
            "daemons": daemons,
            "mounts": mounts,
            "writer": writer,
            "settings": wanted,
        }));
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
        seen.iter().filter_map(thresholds_line).for_each(|line| outln!("{line}"));
        for (mount, state) in &mounts {
            let (at, pid) = (mount.at.display(), mount.process.pid);
            outln!("mount {at} by process {pid}: {}", state.word());
        }
        if let Some(history) = &wanted.history {
            outln!("{}", history_line(history, &seen));
        }
        if let Some(told) = &writer {
            outln!("{}", writer_line(told));
            for (path, what) in told.failures.iter().chain(&told.conflicted) {
                outln!("  {}: {what}", path.display());
            }
        }
    }
    let is_dead = seen.is_empty() || seen.iter().any(|one| one.is_alive == Some(false));
    Ok(if is_dead { FAILED } else { 0 })
}

/// What this host's daemons say of it.
fn history_line(name: &str, seen: &[Seen]) -> String {
    let sum = |one: fn(&State) -> Option<u64>| -> u64 {
        seen.iter().filter_map(|daemon| daemon.state.as_ref().and_then(one)).sum()
    };
    let noted = sum(|state| state.history_noted);
    let mut line = format!("history {name}: {noted} files noted");
    let named = sum(|state| state.history_named);
    if named > 0 {
        let right = sum(|state| state.history_right);
        let wrong = sum(|state| state.history_wrong);
        line +=
            &format!(", {named} follow from the last run, {right} of them read, {wrong} others");
    }
    if sum(|state| state.history_given_up) > 0 {
        line += ", not followed any more";
    }
    line
}

/// How much memory a daemon keeps free, if that sets itself, and why so much.
fn thresholds_line(one: &Seen) -> Option<String> {
    let state = one.state.as_ref()?;
    let why = match state.room_reason.as_deref()? {
        "default" => "nothing moved yet",
        "bandwidths" => "from the bandwidths of memory and SSD",
        "missed" => "writers found no memory",
        "returned" => "what had moved was used again",
        "unused" => "more was never needed",
        _ => return None,
    };
    let [room, reserve] = [state.room_below?, state.reserve_below?].map(|bytes| human(Some(bytes)));
    let index = one.daemon.index;
    Some(format!("daemon {index} keeps {room} of its memory free, {reserve} by force: {why}"))
}

fn writer_line(told: &writeback::Told) -> String {
    let mut line = format!(
        "backing directory: {} files and names unsaved, {} saved ({})",
        told.unsaved,
        told.saved,
        human(Some(told.bytes_saved))
    );
    let counts =
        [(told.waiting, "waiting"), (told.failed, "failed"), (told.conflicts, "conflicts")];
    for (count, what) in counts.into_iter().filter(|(count, _)| *count > 0) {
        line += &format!(", {count} {what}");
    }
    if let Some(error) = &told.error {
        line += &format!(": {error}");
    }
    line
}

fn as_json(one: &Seen) -> serde_json::Value {
    json!({
        "index": one.daemon.index,
        "host": one.host,
        "pid": one.daemon.process.pid,
        "alive": one.is_alive,
        "tcp": one.daemon.tcp,
        "memory": one.daemon.memory,
        "memory_least": one.daemon.memory_least,
        "ssd": one.daemon.ssd,
        "resident": one.daemon.process.resident_bytes().filter(|_| one.is_alive == Some(true)),
        "state": one.state,
    })
}

fn mount_as_json((mount, state): &(Mount, mounts::State)) -> serde_json::Value {
    json!({ "at": mount.at.to_string_lossy(), "pid": mount.process.pid, "state": state.word() })
}

fn as_table(seen: &[Seen]) -> String {
    let head = [
        "daemon", "host", "state", "pid", "memory", "free", "ssd", "free", "sunk", "files",
        "address",
    ];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for one in seen {
        let state = one.state.clone().unwrap_or_default();
        rows.push(vec![
            one.daemon.index.to_string(),
            if one.host.is_empty() { "here".to_owned() } else { one.host.clone() },
            one.word().to_owned(),
            one.daemon.process.pid.to_string(),
            human(state.memory_total.or(Some(one.daemon.memory))),
            human(state.memory_free),
            human(Some(one.daemon.ssd)),
            human(state.ssd_free),
            human(state.bytes_sunk),
            state.files.map_or_else(|| "-".to_owned(), |files| files.to_string()),
            one.daemon.tcp.clone(),
        ]);
    }
    table(&rows)
}

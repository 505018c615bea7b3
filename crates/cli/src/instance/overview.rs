//! All that an instance says of itself at one moment: the source of `forebay status`, `top` and
//! `dashboard`, so that they show the same.

use super::inspect::{DaemonReport, Inspection, copies_state, inspect, membership, slow_targets};
use super::mounts::{self, MountRecord, MountState};
use super::thrashing;
use super::writeback;
use crate::failure::Result;
use crate::state::directories;
use config::control::WritebackReport;
use serde_json::{Value, json};
use std::time::Duration;

/// All that an instance says of itself at one moment.
#[derive(Debug)]
pub(crate) struct Overview {
    /// Its name.
    pub(crate) name: String,
    /// Its daemons and settings.
    pub(crate) inspection: Inspection,
    /// Mounts of this host.
    pub(crate) mounts: Vec<(MountRecord, MountState)>,
    /// Its writeback, if it has one that answers.
    pub(crate) writeback: Option<WritebackReport>,
}

/// Whether a look at an instance may start its writeback daemon again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum DeadWriteback {
    /// One that was killed is started again.
    Restart,
    /// Nothing is changed.
    Leave,
}

/// Asks the instance `name`.
///
/// # Errors
/// There is no such instance, or its records cannot be read.
pub(crate) fn take(name: &str, timeout: Duration, dead: DeadWriteback) -> Result<Overview> {
    let inspection = inspect(name, timeout)?;
    let run = directories::run(name)?;
    let mounts = mounts::all(&run)?;
    let has_writeback = inspection.config.has_writeback();
    if has_writeback && dead == DeadWriteback::Restart {
        // One that cannot be started is one that does not answer.
        let _ = writeback::ensure(&run);
    }
    let writeback = has_writeback.then(|| writeback::status(&run)).flatten();
    Ok(Overview { name: name.to_owned(), inspection, mounts, writeback })
}

impl Overview {
    /// True if all daemons are alive.
    pub(crate) fn is_healthy(&self) -> bool {
        let daemons = &self.inspection.daemons;
        !daemons.is_empty() && daemons.iter().all(|one| one.is_alive() == Some(true))
    }

    /// The output of `forebay status --json`, with the daemons that `are_shown`.
    pub(crate) fn to_json(&self, are_shown: impl Fn(&DaemonReport) -> bool) -> Value {
        let reports = &self.inspection.daemons;
        let daemons: Vec<_> = reports.iter().filter(|one| are_shown(one)).map(daemon).collect();
        let mounts: Vec<_> = self.mounts.iter().map(mount).collect();
        json!({
            "name": self.name,
            "healthy": self.is_healthy(),
            "daemons": daemons,
            "mounts": mounts,
            "membership": membership(reports),
            "copies": (self.inspection.config.replicas > 1).then(|| copies_state(reports)),
            "slow_targets": slow_targets(reports),
            "thrashing": thrashing::of_now(reports),
            "writeback": self.writeback,
            "settings": self.inspection.config,
        })
    }
}

fn daemon(one: &DaemonReport) -> Value {
    json!({
        "index": one.daemon.index,
        "host": one.host,
        "domain": one.domain,
        "pid": one.daemon.process.pid,
        "alive": one.is_alive(),
        "ended": one.state.as_ref().and_then(|state| state.ended.as_ref()),
        "tcp": one.daemon.tcp,
        "memory": one.daemon.memory,
        "memory_min": one.daemon.memory_min,
        "ssd": one.daemon.ssd,
        "resident": one.state.as_ref().and_then(|state| state.resident),
        "state": one.status(),
    })
}

fn mount((mount, state): &(MountRecord, MountState)) -> Value {
    json!({
        "at": mount.at.to_string_lossy(),
        "pid": mount.process.pid,
        "state": state.word(),
        "visible": if mount.namespace.is_some() { "commands" } else { "all" },
    })
}

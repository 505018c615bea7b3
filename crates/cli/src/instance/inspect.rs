//! The state of an instance's daemons: asked directly on this host, through `ssh` on the others.

pub(crate) mod copies;

use crate::failure::{Failure, Result};
use crate::instance::cluster;
use crate::instance::host;
use crate::instance::survivors;
use crate::process::ending;
use crate::process::query::{daemon_add, daemon_balance, daemon_gone, daemon_leave, daemon_query};
use crate::state::directories;
use crate::state::records::{self, DaemonRecord, HostRecord};
use backing::parallel_map;
use config::control::{DaemonStatus, MembershipStatus, ServiceStatus, SlowTarget};
use config::{InstanceConfig, Key, Settings};
use copies::CopiesState;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;

/// The state of one daemon, as its host reports it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct DaemonState {
    /// Its number.
    pub(crate) index: u16,
    /// True if its process is alive.
    pub(crate) is_alive: bool,
    /// Why it ended, if it is dead.
    #[serde(default)]
    pub(crate) ended: Option<String>,
    /// Its resident memory in bytes, if it is alive.
    pub(crate) resident: Option<u64>,
    /// Its answer to a query; `None`: it is dead or does not answer.
    pub(crate) status: Option<DaemonStatus>,
}

/// One daemon of an instance.
#[derive(Clone, Debug)]
pub(crate) struct DaemonReport {
    /// Its host; empty: this host.
    pub(crate) host: String,
    /// Its failure domain; empty: the instance has none.
    pub(crate) domain: String,
    /// Its record.
    pub(crate) daemon: DaemonRecord,
    /// Its state; `None`: its host does not answer.
    pub(crate) state: Option<DaemonState>,
}

impl DaemonReport {
    /// True if it is alive; `None`: its host does not answer.
    pub(crate) fn is_alive(&self) -> Option<bool> {
        self.state.as_ref().map(|state| state.is_alive)
    }

    /// Its answer to a query.
    pub(crate) fn status(&self) -> Option<&DaemonStatus> {
        self.state.as_ref()?.status.as_ref()
    }
}

/// The state of an instance.
#[derive(Clone, Debug)]
pub(crate) struct Inspection {
    /// Its daemons.
    pub(crate) daemons: Vec<DaemonReport>,
    /// Its settings.
    pub(crate) config: InstanceConfig,
    /// Why hosts do not answer.
    pub(crate) failures: Vec<String>,
}

/// The copies of file data.
pub(crate) fn copies_state(reports: &[DaemonReport]) -> CopiesState {
    CopiesState::of(reports.iter().filter_map(|one| Some(&one.status()?.metrics)))
}

/// Each slow target of each pool, whichever daemons found it.
pub(crate) fn slow_targets(reports: &[DaemonReport]) -> Vec<SlowTarget> {
    let found = reports.iter().filter_map(DaemonReport::status);
    let found = found.flat_map(|status| &status.slow_targets);
    let unique: BTreeMap<(&str, u16), &SlowTarget> =
        found.map(|one| ((one.pool.as_str(), one.target), one)).collect();
    unique.into_values().cloned().collect()
}

/// The newest membership of those that voters know; `None`: none answers, or daemons do not watch each
/// other.
pub(crate) fn membership(reports: &[DaemonReport]) -> Option<&MembershipStatus> {
    let known = reports.iter().filter_map(|one| one.status()?.membership.as_ref());
    known.max_by_key(|one| (one.epoch, one.leads))
}

/// The metadata services of daemons that answer, by number, in an instance with followers.
pub(crate) fn services(reports: &[DaemonReport]) -> Vec<&ServiceStatus> {
    let found = reports.iter().filter_map(DaemonReport::status).flat_map(|it| &it.services);
    let mut newest = BTreeMap::new();
    for one in found {
        let known = newest.entry(one.service).or_insert(one);
        // A daemon that is cut off knows an older owner.
        *known = if known.epoch < one.epoch { one } else { *known };
    }
    newest.into_values().collect()
}

/// Files and bytes in use by daemons.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Usage {
    /// Files and directories.
    pub(crate) files: u64,
    /// Bytes in memory and on the SSD.
    pub(crate) bytes: u64,
}

impl Usage {
    /// The sum over the daemons that answered.
    pub(crate) fn of<'a>(all: impl Iterator<Item = &'a DaemonStatus>) -> Usage {
        all.fold(Usage::default(), |sum, status| {
            let metrics = &status.metrics;
            let bytes = metrics.memory_total.saturating_sub(metrics.memory_free)
                + metrics.ssd_total.saturating_sub(metrics.ssd_free);
            Usage { files: sum.files + metrics.files, bytes: sum.bytes + bytes }
        })
    }

    /// The usage without the root directory, which every instance has.
    pub(crate) fn without_root(self) -> Usage {
        Usage { files: self.files.saturating_sub(1), ..self }
    }

    /// Adds another host's.
    pub(crate) fn add(&mut self, other: Usage) {
        self.files += other.files;
        self.bytes += other.bytes;
    }
}

/// The log of a daemon.
pub(crate) fn log_of(run: &std::path::Path, index: u16) -> std::path::PathBuf {
    run.join(format!("d{index}.log"))
}

/// The state of this host's daemons.
///
/// # Errors
/// The state of a process cannot be read.
pub(crate) fn of_host(
    run: &std::path::Path,
    daemons: &[DaemonRecord],
    timeout: Duration,
) -> Result<Vec<DaemonState>> {
    let state = |daemon: &DaemonRecord| -> Result<DaemonState> {
        let is_alive = daemon.process.is_alive()?;
        let socket = run.join(format!("d{}.sock", daemon.index));
        let status = is_alive.then(|| daemon_query(&socket, timeout)).flatten();
        let resident = daemon.process.pinned_bytes().filter(|_| is_alive);
        let ended = (!is_alive).then(|| ending::reason(&log_of(run, daemon.index)));
        Ok(DaemonState { index: daemon.index, is_alive, ended, resident, status })
    };
    // At the same time, because one that does not answer takes the whole timeout.
    parallel_map(daemons.len(), daemons, state).into_iter().collect()
}

/// The state of the daemons of the instance `name` on this host, for another host.
///
/// # Errors
/// There is no such instance here, or its record cannot be read.
pub(crate) fn here(name: &str, timeout: Duration) -> Result<Vec<DaemonState>> {
    let run = directories::run(name)?;
    let host: Option<HostRecord> = records::load(&run, host::RECORD)?;
    let host = host.ok_or_else(|| Failure::no_instance(name))?;
    of_host(&run, &host.daemons, timeout)
}

/// Tells the daemons of this host that another host is gone (`daemon_gone`). Returns the metadata
/// services that know it; daemons that do not answer have none.
///
/// # Errors
/// There is no such instance here, or its record cannot be read.
pub(crate) fn tell_gone(name: &str, gone: (u16, u16), timeout: Duration) -> Result<Vec<u32>> {
    let run = directories::run(name)?;
    let host: Option<HostRecord> = records::load(&run, host::RECORD)?;
    let host = host.ok_or_else(|| Failure::no_instance(name))?;
    let aware = parallel_map(host.daemons.len(), &host.daemons, |daemon| {
        daemon_gone(&run.join(format!("d{}.sock", daemon.index)), gone, timeout)
    });
    Ok(aware.into_iter().flatten().flatten().collect())
}

/// Has a daemon of this host add one to the instance `name`: the next one, of this failure domain.
///
/// # Errors
/// There is no such instance here, or its record cannot be read.
pub(crate) fn add_daemon(name: &str, added: (u16, u16), timeout: Duration) -> Result<()> {
    let run = directories::run(name)?;
    let host: Option<HostRecord> = records::load(&run, host::RECORD)?;
    let host = host.ok_or_else(|| Failure::no_instance(name))?;
    for daemon in &host.daemons {
        daemon_add(&run.join(format!("d{}.sock", daemon.index)), added, timeout);
    }
    Ok(())
}

/// Has the daemons of this host have one leave the instance `name`.
///
/// # Errors
/// There is no such instance here, or its record cannot be read.
pub(crate) fn leave_daemon(name: &str, leaver: u16, timeout: Duration) -> Result<()> {
    tell_daemons(name, |socket| daemon_leave(socket, leaver, timeout))
}

/// Tells the daemons of this host whether the loads of the services of the instance `name` are balanced:
/// the word behind `wire::welcome::BALANCE_MAGIC`.
///
/// # Errors
/// There is no such instance here, or its record cannot be read.
pub(crate) fn steer_balance(name: &str, word: u32, timeout: Duration) -> Result<()> {
    tell_daemons(name, |socket| daemon_balance(socket, word, timeout))
}

fn tell_daemons(name: &str, tell: impl Fn(&std::path::Path)) -> Result<()> {
    let run = directories::run(name)?;
    let host: Option<HostRecord> = records::load(&run, host::RECORD)?;
    let host = host.ok_or_else(|| Failure::no_instance(name))?;
    for daemon in &host.daemons {
        tell(&run.join(format!("d{}.sock", daemon.index)));
    }
    Ok(())
}

/// Longest wait for the answers that `status` and `df` show: a daemon that is well answers within
/// milliseconds, and one that hangs shall be seen soon.
const QUERY_TIME: Duration = Duration::from_secs(3);

/// How long `status` and `df` wait for answers.
pub(crate) fn query_time(settings: &Settings) -> Duration {
    match settings.is_given(Key::Timeout) {
        true => settings.timeout(),
        false => settings.timeout().min(QUERY_TIME),
    }
}

/// The state of the instance `name`.
///
/// # Errors
/// There is no such instance, or its records cannot be read.
pub(crate) fn inspect(name: &str, timeout: Duration) -> Result<Inspection> {
    survivors::await_record(name)?;
    let run = directories::run(name)?;
    let here: Option<HostRecord> = records::load(&run, host::RECORD)?;
    let report =
        |place: (&str, &str), daemon: &DaemonRecord, states: &[DaemonState]| DaemonReport {
            host: place.0.to_owned(),
            domain: place.1.to_owned(),
            daemon: daemon.clone(),
            state: states.iter().find(|state| state.index == daemon.index).cloned(),
        };
    let started = cluster::load(name)?;
    // That of the starting host lists the daemons.
    let is_complete = started.is_some();
    let instance = match started {
        None => records::load(&run, cluster::HOSTS_RECORD)?,
        started => started,
    };
    let Some(instance) = instance else {
        // A start that has not come further than this host.
        let host = here.ok_or_else(|| Failure::no_instance(name))?;
        let states = of_host(&run, &host.daemons, timeout)?;
        let daemons = host.daemons.iter().map(|daemon| report(("", ""), daemon, &states)).collect();
        return Ok(Inspection { daemons, config: host.config, failures: Vec::new() });
    };
    let all = cluster::daemon_states(&instance, here.as_ref(), &run, timeout)?;
    let mut inspection =
        Inspection { daemons: Vec::new(), config: instance.config.clone(), failures: Vec::new() };
    for (entry, states) in instance.hosts.iter().zip(all) {
        let states = states.unwrap_or_else(|failure| {
            inspection.failures.push(failure.text().to_owned());
            Vec::new()
        });
        let own = here.as_ref().filter(|host| host.first == entry.first);
        let known = own.map_or(entry.daemons.as_slice(), |host| &host.daemons);
        let known: Vec<_> = match known {
            [] if entry.daemons.is_empty() && !is_complete => {
                (entry.first..entry.first + entry.count).map(DaemonRecord::unknown).collect()
            }
            known => known.to_vec(),
        };
        let place = (entry.host.as_str(), entry.domain.as_str());
        let daemons = known.iter().map(|daemon| report(place, daemon, &states));
        inspection.daemons.extend(daemons);
    }
    Ok(inspection)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_is_summed_over_both_tiers() {
        let metrics = config::metrics::DaemonSample {
            memory_total: 100,
            memory_free: 90,
            ssd_total: 50,
            ssd_free: 49,
            files: 3,
            ..Default::default()
        };
        let status = DaemonStatus { metrics, ..DaemonStatus::default() };
        let unknown = DaemonStatus::default();
        let mut usage = Usage::of([&status, &unknown].into_iter());
        assert_eq!(usage, Usage { files: 3, bytes: 11 });
        usage.add(Usage { files: 1, bytes: 1 });
        assert_eq!(usage, Usage { files: 4, bytes: 12 });
    }
}

//! An instance on all of its hosts: started, restarted, flushed, stopped, and its memory lent and
//! reclaimed. One host at a time is `host`; this host is called directly, others through `ssh`.

use crate::commands::plural;
use crate::failure::{Failure, NO_INSTANCE, Result, USAGE};
use crate::instance::host::{self, StopPhase};
use crate::instance::inspect::{self, DaemonState, Usage};
use crate::instance::jobs;
use crate::instance::lend::{self, AllowanceRequest, DaemonMemory};
use crate::instance::mounts::shared::{self, SharedMount, SharedMountRequest};
use crate::instance::mounts::{self, MountRequest};
use crate::instance::plan;
use crate::instance::profile;
use crate::instance::recorder;
use crate::instance::rescue::{self, Checked, Daemons, Report};
use crate::instance::survivors;
use crate::process::progress::Progress;
use crate::process::ssh;
use crate::state::directories::{self, InstanceLock};
use crate::state::domains;
use crate::state::records::{self, HostEntry, HostRecord, HostReply, HostStartRequest};
use crate::state::records::{DaemonRecord, InstanceRecord, VERSION};
use backing::parallel_map;
use config::activity::ActivityAnswer;
use config::control::DaemonCheck;
use config::process::CheckExtent;
use config::{Key, Settings};
use flush::flush_instance;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

mod balance;
mod flush;
mod grow;
mod losses;
mod replace;
mod shrink;

pub(crate) use balance::{Balance, Moved, ServicePlace, ServiceRow, Steering, balance, steer};
pub(crate) use flush::flush;
pub(crate) use grow::{GrowOutcome, NewHosts, await_services, grow};
pub(crate) use losses::{lost_files, lost_here};
pub(crate) use replace::{ReplaceOutcome, replace};
pub(crate) use shrink::{ShrinkOutcome, idle_here, shrink};

/// The record of an instance on its other hosts: as `RECORD`, without the daemons. Commands that
/// change the instance are for the starting host.
pub(crate) const HOSTS_RECORD: &str = "hosts.json";

/// The record of an instance on all hosts.
pub(crate) const RECORD: &str = "instance.json";

/// Limit on a check on another host, which reads all of its SSDs.
const CHECK_TIME_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// Time in addition to the timeout for a host that has to kill daemons.
const KILL_TIME: Duration = Duration::from_secs(10);

/// The outcome of `start`.
#[derive(Debug)]
pub(crate) struct StartOutcome {
    /// The running instance.
    pub(crate) instance: InstanceRecord,
    /// The daemons that this call started.
    pub(crate) started: Vec<StartedDaemon>,
    /// The losses of a salvage; `None`: nothing was damaged, or this was none.
    pub(crate) lost: Option<Report>,
}

/// How daemons start whose files are damaged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum DamagedFiles {
    /// They do not, and name the file.
    Refuse,
    /// Without what is damaged.
    Salvage,
}

/// The number of a daemon that was started, and why the one before it ended, if there was one.
pub(crate) type StartedDaemon = (u16, Option<String>);

/// The record of the instance `name`; `None` if there is none.
///
/// # Errors
/// The record cannot be read.
pub(crate) fn load(name: &str) -> Result<Option<InstanceRecord>> {
    records::load(&directories::run(name)?, RECORD)
}

/// Starts the instance that the settings describe. A running instance stays, and its dead daemons
/// are restarted with the data that they left; `damaged`: how, if their files are damaged. `local`:
/// number of daemons on this host, if the command line gives it. With `mount`, the instance is
/// also mounted on each of its hosts.
///
/// # Errors
/// The first failure. A new instance is stopped again; of one that there was, each host runs that can.
pub(crate) fn start(
    settings: &Settings,
    local: Option<u16>,
    mount: Option<&MountRequest>,
    damaged: DamagedFiles,
) -> Result<StartOutcome> {
    let name = settings.word(Key::Name);
    let run = directories::run(name)?;
    let timeout = settings.timeout();
    survivors::await_record(name)?;
    let lock = InstanceLock::take(name, timeout)?;
    let (mut instance, is_new) = match plan::recorded_or_new(settings, local) {
        Ok(found) => found,
        Err(failure) => {
            // Nothing exists of a refused new instance but the lock.
            if std::fs::symlink_metadata(&run).is_err() {
                lock.remove();
            }
            return Err(failure);
        }
    };
    let salvage = match damaged {
        DamagedFiles::Salvage if !is_new => prepare_salvage(&instance)?,
        _ => None,
    };
    let round = salvage.as_ref().map(|salvage| salvage.round);
    let outcome = start_daemons(&mut instance, &run, is_new, round);
    let outcome = outcome.and_then(|started| mount_on_each(&instance, mount).map(|()| started));
    if is_new && outcome.is_ok() {
        profile::follow(&instance);
    }
    if outcome.is_err() && is_new {
        // A host whose start fails cleans up by itself; the others are stopped here.
        let _ = stop_hosts(&instance, timeout);
        let _ = directories::remove(&run);
        lock.remove();
    }
    let (started, lost) = (outcome?, salvage.map(|salvage| salvage.report));
    if let Some(report) = &lost {
        rescue::add_lost(name, report)?;
    }
    recorder::ensure(settings, &instance);
    Ok(StartOutcome { started, lost, instance })
}

/// Finds out what is damaged. If anything is, ends all daemons, whose data stays, and gives each host
/// the changes that make the rest consistent. `None`: nothing is damaged.
fn prepare_salvage(instance: &InstanceRecord) -> Result<Option<Checked>> {
    if instance.config.replicas > 1 {
        let text = format!(
            "instance {} has --replicas {}, and no copy is salvaged, as others have the data: start it \
             without --salvage, and replace a host that does not start ('forebay replace NODE')",
            instance.name, instance.config.replicas
        );
        return Err(Failure::with_code(USAGE, text));
    }
    let found = rescue::check(instance, CheckExtent::All, Daemons::Run)?;
    if found.report.is_whole() && found.repairs.is_empty() {
        return Ok(None);
    }
    if instance.config.followers > 0 {
        // All end before any is looked at: a daemon may take over a service of one that ended before it.
        check_on_each(instance, CheckExtent::Logs, Daemons::End)?;
    }
    // Again, since running daemons change.
    let found = rescue::check(instance, CheckExtent::All, Daemons::End)?;
    let parts = rescue::parts(&instance.name, &found.repairs);
    on_each(instance, "salvaging", |entry, _| {
        let own = entry.first..entry.first + entry.count;
        for part in parts.iter().filter(|part| own.contains(&part.daemon)) {
            if entry.host.is_empty() {
                rescue::take_part(part)?;
                continue;
            }
            let request = serde_json::to_string(part)
                .map_err(|error| Failure::at("cannot encode", "the changes", error))?;
            call_without_result(instance, entry, "daemon-repair", &request)?;
        }
        Ok(())
    })?;
    Ok(Some(found))
}

/// Checks the files of all daemons, in their order.
///
/// # Errors
/// A host cannot be reached, or files cannot be read.
pub(crate) fn check_on_each(
    instance: &InstanceRecord,
    extent: CheckExtent,
    daemons: Daemons,
) -> Result<Vec<DaemonCheck>> {
    let of = |entry: &HostEntry| check_host(instance, entry, (extent, daemons), CHECK_TIME_MAX);
    let checks = on_each(instance, "checking", |entry, _| of(entry))?;
    Ok(checks.into_iter().flatten().collect())
}

/// As `check_on_each`, of daemons that go on, without the hosts that do not answer in time.
///
/// # Errors
/// No host answers.
pub(crate) fn check_where_possible(
    instance: &InstanceRecord,
    extent: CheckExtent,
) -> Result<Vec<DaemonCheck>> {
    let limit = timeout(instance);
    let checks = on_each(instance, "checking", |entry, _| {
        Ok(check_host(instance, entry, (extent, Daemons::Run), limit))
    })?;
    let failure = checks.iter().find_map(|check| check.as_ref().err().cloned());
    let found: Vec<DaemonCheck> = checks.into_iter().flatten().flatten().collect();
    match failure {
        Some(failure) if found.is_empty() => Err(failure),
        _ => Ok(found),
    }
}

fn check_host(
    instance: &InstanceRecord,
    entry: &HostEntry,
    (extent, daemons): (CheckExtent, Daemons),
    limit: Duration,
) -> Result<Vec<DaemonCheck>> {
    if entry.host.is_empty() {
        let timeout = timeout(instance);
        return rescue::check_here(&instance.name, entry.first, extent, daemons, timeout);
    }
    let request = json!({
        "name": instance.name,
        "first": entry.first,
        "reads_all": extent == CheckExtent::All,
        "ends": daemons == Daemons::End,
        "timeout_us": instance.config.timeout,
    });
    let command = "daemon-check";
    match call(instance, entry, command, &request.to_string(), limit)? {
        Some(HostReply::Check(checks)) => Ok(checks),
        _ => Err(unexpected_reply(entry, command)),
    }
}

/// Starts the daemons that do not run, on each host, and distributes all addresses. Returns the
/// daemons started.
fn start_daemons(
    instance: &mut InstanceRecord,
    run: &Path,
    is_new: bool,
    salvage: Option<u64>,
) -> Result<Vec<StartedDaemon>> {
    directories::make_private(run)?;
    let secret_path = run.join("secret");
    // Of a start that was killed before any daemon ran, the secret may be missing.
    let has_started = instance.hosts.iter().any(|entry| !entry.daemons.is_empty());
    let secret = match std::fs::read_to_string(&secret_path) {
        Ok(secret) if !is_new => secret.trim().to_owned(),
        Err(error) if has_started => {
            let why = format!("{error}: without it no daemon can be restarted: stop this instance");
            return Err(Failure::at("cannot read", secret_path.display(), why));
        }
        _ => new_secret()?,
    };
    directories::write_whole(&secret_path, &format!("{secret}\n"))?;
    instance.hosts.iter_mut().for_each(|entry| entry.starts += 1);
    // Written before any daemon runs, so that `stop` finds them if this command is killed.
    records::store(run, RECORD, instance)?;
    let hosts = on_each(instance, "starting", |entry, progress| {
        Ok(start_on_host(instance, entry, (&secret, salvage), progress))
    })?;
    let (started, result) = take_up(instance, hosts);
    let addresses = addresses(instance);
    let Err((running, failure)) = result else {
        on_each(instance, "connecting", |entry, _| send_peers(instance, entry, &addresses))?;
        // All run and know each other, also those on a host that a killed command began to add.
        instance.hosts.iter_mut().for_each(|entry| entry.is_joining = false);
        records::store(run, RECORD, instance)?;
        return Ok(started);
    };
    if !is_new {
        // The others go on without this host, which may have to be replaced.
        on_each(instance, "connecting", |entry, _| {
            let is_told = running.contains(&entry.first);
            Ok(is_told.then(|| send_peers(instance, entry, &addresses)))
        })?;
        records::store(run, RECORD, instance)?;
    }
    Err(failure)
}

/// The first daemons of the hosts that run, and why the first of the others does not.
type PartOfHosts = (BTreeSet<u16>, Failure);

/// Puts what hosts started into the record; returns the daemons that are new.
fn take_up(
    instance: &mut InstanceRecord,
    hosts: Vec<Result<HostRecord>>,
) -> (Vec<StartedDaemon>, std::result::Result<(), PartOfHosts>) {
    let (mut started, mut running, mut failure) = (Vec::new(), BTreeSet::new(), None);
    for (entry, host) in instance.hosts.iter_mut().zip(hosts) {
        match host {
            Ok(host) => {
                let new = host.daemons.iter().filter(|daemon| daemon.is_new);
                started.extend(new.map(|daemon| (daemon.index, daemon.before.clone())));
                entry.daemons = host.daemons;
                entry.daemons.iter_mut().for_each(DaemonRecord::forget_start);
                running.insert(entry.first);
            }
            Err(error) => failure = failure.or(Some(error)),
        }
    }
    (started, failure.map_or(Ok(()), |failure| Err((running, failure))))
}

/// The lines of the file of addresses.
fn addresses(instance: &InstanceRecord) -> String {
    let daemons = instance.daemons();
    daemons.map(|(_, daemon)| format!("{} {}\n", daemon.index, daemon.tcp)).collect()
}

/// 32 random bytes in hexadecimal digits.
fn new_secret() -> Result<String> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes)
        .map_err(|error| Failure::at("no random bytes", "this host", error))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Runs `work` for all hosts in parallel; returns all results, or the first failure.
fn on_each<T: Send>(
    instance: &InstanceRecord,
    verb: &str,
    work: impl Fn(&HostEntry, &mut Progress) -> Result<T> + Sync,
) -> Result<Vec<T>> {
    let what = format!("{verb} {}", plural(instance.present().into(), "daemon"));
    if let [only] = instance.hosts.as_slice() {
        return Ok(vec![work(only, &mut Progress::new(what))?]);
    }
    let hosts: Vec<_> = instance.hosts.iter().enumerate().collect();
    // Ends with the last of them, so that nothing starts after a clean-up.
    let results = parallel_map(hosts.len(), &hosts, |(index, entry)| {
        // One progress line is enough for all hosts.
        let what = if *index == 0 { what.clone() } else { String::new() };
        work(entry, &mut Progress::new(what))
    });
    results.into_iter().collect()
}

fn timeout(instance: &InstanceRecord) -> Duration {
    Duration::from_micros(instance.config.timeout)
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// Sends a request to a host of the instance and reads its reply.
///
/// # Errors
/// The host cannot be reached, or replies with an error.
fn call(
    instance: &InstanceRecord,
    entry: &HostEntry,
    command: &str,
    request: &str,
    timeout: Duration,
) -> Result<Option<HostReply>> {
    let line = ssh::call(&instance.ssh, &entry.host, command, request, timeout)?;
    match serde_json::from_str(&line) {
        Ok(HostReply::Error(text)) => Err(Failure::of_lines(&text).on_host(&entry.host)),
        // `{}`, the reply of requests that return nothing, is none of the variants.
        reply => Ok(reply.ok()),
    }
}

fn unexpected_reply(entry: &HostEntry, command: &str) -> Failure {
    let why = "is another version of forebay installed there?";
    Failure::at("unexpected reply", command, why).on_host(&entry.host)
}

fn start_on_host(
    instance: &InstanceRecord,
    entry: &HostEntry,
    (secret, salvage): (&str, Option<u64>),
    progress: &mut Progress,
) -> Result<HostRecord> {
    let request = HostStartRequest {
        version: VERSION,
        name: instance.name.clone(),
        count: instance.count(),
        began: instance.began(),
        first: entry.first,
        local_count: entry.count,
        listen: entry.listen.clone(),
        secret: secret.to_owned(),
        has_started: !entry.daemons.is_empty(),
        lost_starts: entry.lost_starts,
        domains: domains::numbers(instance.all_hosts()),
        first_daemons: domains::first_daemons(instance.all_hosts(), instance.config.followers),
        salvage,
        config: instance.config.clone(),
    };
    if entry.host.is_empty() {
        return host::start(&request, progress);
    }
    let request = serde_json::to_string(&request)
        .map_err(|error| Failure::at("cannot encode", "the start request", error))?;
    let command = "daemon-start";
    match call(instance, entry, command, &request, timeout(instance))? {
        Some(HostReply::Host(host)) => Ok(*host),
        _ => Err(unexpected_reply(entry, command)),
    }
}

fn send_peers(instance: &InstanceRecord, entry: &HostEntry, addresses: &str) -> Result<()> {
    if entry.host.is_empty() {
        return host::peers(&instance.name, addresses, None);
    }
    // Without the daemons, whose records of a large instance would not fit.
    let mut hosts = instance.clone();
    hosts.hosts.iter_mut().for_each(|entry| entry.daemons.clear());
    let request = json!({ "name": instance.name, "peers": addresses, "hosts": hosts }).to_string();
    call_without_result(instance, entry, "daemon-peers", &request)
}

fn mount_on_each(instance: &InstanceRecord, mount: Option<&MountRequest>) -> Result<()> {
    let Some(mount) = mount else { return Ok(()) };
    on_each(instance, "mounting", |entry, progress| {
        if entry.host.is_empty() {
            return mounts::ensure(&instance.name, mount, timeout(instance), progress);
        }
        let request = json!({
            "name": instance.name,
            "at": mount.at,
            "rights": mount.rights,
            "requests": mount.requests,
            "timeout_us": instance.config.timeout,
        });
        call_without_result(instance, entry, "daemon-mount", &request.to_string())
    })
    .map(|_| ())
}

/// Mounts the instance for the commands of each of its hosts, so that the first command need not.
/// Returns the mount of this host if it has daemons, and why there is none on other hosts.
///
/// # Errors
/// It cannot be mounted on this host; a thread of this command panicked.
pub(crate) fn share(
    instance: &InstanceRecord,
    requests: &str,
) -> Result<(Option<SharedMount>, Vec<Failure>)> {
    let request = SharedMountRequest {
        name: instance.name.clone(),
        at: instance.config.at.clone().into(),
        requests: requests.to_owned(),
        timeout: timeout(instance),
    };
    let each = on_each(instance, "mounting", |entry, _| {
        if entry.host.is_empty() {
            return shared::prepare(request.clone()).map(|mount| Ok(Some(mount)));
        }
        let text = json!({
            "name": request.name,
            "at": request.at,
            "requests": requests,
            "timeout_us": instance.config.timeout,
        });
        let text = text.to_string();
        Ok(call_without_result(instance, entry, "daemon-share", &text).map(|()| None))
    })?;
    let (mut here, mut refused) = (None, Vec::new());
    for one in each {
        match one {
            Ok(mount) => here = here.or(mount),
            Err(failure) => refused.push(failure),
        }
    }
    Ok((here, refused))
}

/// A call whose reply is an error or `{}`.
fn call_without_result(
    instance: &InstanceRecord,
    entry: &HostEntry,
    command: &str,
    request: &str,
) -> Result<()> {
    call(instance, entry, command, request, timeout(instance) + KILL_TIME).map(|_| ())
}

/// The states of the daemons of each host, in the order of the hosts; a failure for each host that
/// does not answer. `here`: the record of this host's daemons.
///
/// # Errors
/// A thread of this command panicked.
pub(crate) fn daemon_states(
    instance: &InstanceRecord,
    here: Option<&HostRecord>,
    run: &Path,
    timeout: Duration,
) -> Result<Vec<Result<Vec<DaemonState>>>> {
    on_each(instance, "querying", |entry, _| {
        let here = here.filter(|host| entry.host.is_empty() || host.first == entry.first);
        if let Some(host) = here {
            return Ok(inspect::of_host(run, &host.daemons, timeout));
        }
        if entry.host.is_empty() {
            // Nothing of a start that was killed runs.
            return Ok(Ok(Vec::new()));
        }
        let request = json!({ "name": instance.name, "timeout_us": micros(timeout) });
        let command = "daemon-status";
        Ok(match call(instance, entry, command, &request.to_string(), timeout) {
            Ok(Some(HostReply::Status(states))) => Ok(states),
            Ok(_) => Err(unexpected_reply(entry, command)),
            Err(failure) => Err(failure),
        })
    })
}

/// Figures of jobs on each host: all in short (`None`), or one of them; a host's failure is in its
/// place.
///
/// # Errors
/// A thread of this command panicked.
pub(crate) fn activity(
    instance: &InstanceRecord,
    here: Option<&HostRecord>,
    job: Option<&str>,
    timeout: Duration,
) -> Result<Vec<Result<ActivityAnswer>>> {
    on_each(instance, "querying", |entry, _| {
        if entry.host.is_empty() || here.is_some_and(|host| host.first == entry.first) {
            return Ok(jobs::here(&instance.name, job, timeout));
        }
        let request = json!({ "name": instance.name, "job": job, "timeout_us": micros(timeout) });
        let command = "daemon-activity";
        Ok(match call(instance, entry, command, &request.to_string(), timeout) {
            Ok(Some(HostReply::Activity(answer))) => Ok(answer),
            Ok(_) => Err(unexpected_reply(entry, command)),
            Err(failure) => Err(failure),
        })
    })
}

/// The memory of the daemons of one host.
#[derive(Clone, Debug)]
pub(crate) struct NodeMemory {
    /// Name of the host; empty: this host.
    pub(crate) host: String,
    /// Its daemons.
    pub(crate) daemons: Vec<DaemonMemory>,
}

impl NodeMemory {
    /// Name of the host, for people.
    pub(crate) fn name(&self) -> &str {
        if self.host.is_empty() { "here" } else { &self.host }
    }

    /// Bytes that its daemons may hold.
    pub(crate) fn allowance(&self) -> u64 {
        self.daemons.iter().map(|daemon| daemon.allowance).sum()
    }

    /// Bytes in files.
    pub(crate) fn used(&self) -> u64 {
        self.daemons.iter().map(|daemon| daemon.used).sum()
    }
}

/// The memory of the daemons of all hosts; on a host other than the one that started the instance,
/// of this host only.
///
/// # Errors
/// There is no such instance, or a host does not answer.
pub(crate) fn memory(name: &str, timeout: Duration) -> Result<Vec<NodeMemory>> {
    let Some(instance) = load(name)? else {
        return Ok(vec![NodeMemory { host: String::new(), daemons: lend::poll(name, timeout)? }]);
    };
    on_each(&instance, "querying", |entry, progress| {
        let daemons = lend_on_host(&instance, entry, None, timeout, progress)?;
        Ok(NodeMemory { host: entry.host.clone(), daemons })
    })
}

/// Sends each node its requests and waits until they are carried out, at most `timeout`.
///
/// # Errors
/// A host does not answer.
pub(crate) fn lend(
    name: &str,
    nodes: Vec<NodeMemory>,
    requests: &[Vec<AllowanceRequest>],
    timeout: Duration,
) -> Result<Vec<NodeMemory>> {
    let changed: Vec<(&NodeMemory, &Vec<AllowanceRequest>)> =
        nodes.iter().zip(requests).filter(|(_, requests)| !requests.is_empty()).collect();
    let Some(instance) = load(name)? else {
        let mut progress = Progress::new("releasing memory");
        let each = changed.into_iter().map(|(node, requests)| {
            let daemons = lend::apply(name, requests, timeout, &mut progress)?;
            Ok(NodeMemory { host: node.host.clone(), daemons })
        });
        return each.collect();
    };
    let done = on_each(&instance, "changing the memory of", |entry, progress| {
        let Some((node, requests)) = changed.iter().find(|(node, _)| node.host == entry.host)
        else {
            return Ok(None);
        };
        let daemons = lend_on_host(&instance, entry, Some(requests), timeout, progress)?;
        Ok(Some(NodeMemory { host: node.host.clone(), daemons }))
    })?;
    Ok(done.into_iter().flatten().collect())
}

fn lend_on_host(
    instance: &InstanceRecord,
    entry: &HostEntry,
    requests: Option<&[AllowanceRequest]>,
    timeout: Duration,
    progress: &mut Progress,
) -> Result<Vec<DaemonMemory>> {
    if entry.host.is_empty() {
        return match requests {
            Some(requests) => lend::apply(&instance.name, requests, timeout, progress),
            None => lend::poll(&instance.name, timeout),
        };
    }
    let (name, timeout_us) = (&instance.name, micros(timeout));
    let request = json!({ "name": name, "requests": requests, "timeout_us": timeout_us });
    let command = "daemon-lend";
    match call(instance, entry, command, &request.to_string(), timeout)? {
        Some(HostReply::Memory(memory)) => Ok(memory),
        _ => Err(unexpected_reply(entry, command)),
    }
}

/// A page of the files that a daemon recorded for the access profile, from a byte offset; empty at
/// the end.
///
/// # Errors
/// Its host does not answer.
pub(crate) fn recorded(
    instance: &InstanceRecord,
    entry: &HostEntry,
    index: u16,
    from: u64,
) -> Result<String> {
    if entry.host.is_empty() {
        return profile::recorded(&instance.name, index, from);
    }
    let request = json!({ "name": instance.name, "index": index, "from": from });
    let command = "daemon-profile";
    match call(instance, entry, command, &request.to_string(), timeout(instance))? {
        Some(HostReply::Profile(text)) => Ok(text),
        _ => Err(unexpected_reply(entry, command)),
    }
}

/// Stops the daemons of all hosts and removes their files; returns what they held.
fn stop_hosts(instance: &InstanceRecord, timeout: Duration) -> Result<Usage> {
    let mut failed = BTreeMap::new();
    if instance.hosts.len() > 1 {
        let ended = on_each(instance, "stopping", |entry, progress| {
            Ok(stop_host(instance, entry, StopPhase::Programs, timeout, progress))
        })?;
        let ended = instance.hosts.iter().zip(ended);
        failed.extend(ended.filter_map(|(entry, end)| Some((entry.first, end.err()?))));
    }
    // One result per host: the others are stopped even if one cannot be reached.
    let results = on_each(instance, "stopping", |entry, progress| {
        Ok(match failed.get(&entry.first) {
            Some(failure) => Err(failure.clone()),
            None => stop_host(instance, entry, StopPhase::All, timeout, progress),
        })
    })?;
    let mut sum = Usage::default();
    for result in results {
        sum.add(result?);
    }
    Ok(sum)
}

fn stop_host(
    instance: &InstanceRecord,
    entry: &HostEntry,
    phase: StopPhase,
    time: Duration,
    progress: &mut Progress,
) -> Result<Usage> {
    if entry.host.is_empty() {
        return host::stop(&instance.name, entry.first, phase, time, progress);
    }
    let (name, first) = (&instance.name, entry.first);
    let timeout_us = micros(time);
    let request = json!({ "name": name, "first": first, "phase": phase, "timeout_us": timeout_us });
    // A stop waits for daemons that do not end by themselves, and kills them.
    let limit = timeout(instance) + KILL_TIME;
    match call(instance, entry, "daemon-stop", &request.to_string(), limit)? {
        Some(HostReply::Stopped(usage)) => Ok(usage),
        _ => Ok(Usage::default()),
    }
}

/// The fate of dirty data when an instance stops.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum DirtyData {
    /// It is written back first, or the instance stays.
    WriteBack,
    /// It is discarded.
    Discard,
}

/// A stopped instance.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StopOutcome {
    /// Number of its daemons.
    pub(crate) count: u16,
    /// The files and bytes that they held.
    pub(crate) removed: Usage,
    /// Files and names with changes that were not written back because the mode of their directory is
    /// `never`. `None` if nothing was written back: without a backing directory, or if changes were
    /// discarded.
    pub(crate) never_written: Option<u64>,
}

/// Stops an instance and removes its files.
///
/// # Errors
/// There is no such instance; some data is not written back; a host cannot be reached, or something
/// cannot be removed. The record then stays, and `stop` can be tried again.
pub(crate) fn stop(name: &str, timeout: Duration, dirty_data: DirtyData) -> Result<StopOutcome> {
    let run = directories::run(name)?;
    let remade = survivors::await_record(name);
    if remade.is_err() {
        let progress = &mut Progress::new("stopping daemons");
        let count = survivors::end(name, timeout, progress)?;
        if count > 0 {
            directories::remove(&run)?;
            let count = u16::try_from(count).unwrap_or(u16::MAX);
            return Ok(StopOutcome { count, removed: Usage::default(), never_written: None });
        }
    }
    if std::fs::symlink_metadata(&run).is_err() {
        return Err(survivors::elsewhere(name).map_or_else(
            || Failure::no_instance(name),
            |other| {
                let base = other.ancestors().nth(2).unwrap_or(&other).display();
                let why = format!("its daemons run with XDG_RUNTIME_DIR={base}: set it");
                Failure::with_code(NO_INSTANCE, format!("no such instance here: {name}: {why}"))
            },
        ));
    }
    let lock = InstanceLock::take(name, timeout)?;
    let Some(instance) = load(name)? else {
        if let Some(host) = records::load::<HostRecord>(&run, host::RECORD)? {
            let daemons = plural(host.daemons.len() as u64, "daemon");
            let why =
                format!("it has {daemons} here but was started on another host: stop it there");
            return Err(Failure::at("not the starting host", format!("instance {name}"), why));
        }
        // A start was killed before it wrote any record.
        directories::remove(&run)?;
        lock.remove();
        return Err(Failure::no_instance(name));
    };
    let flushed = match dirty_data {
        DirtyData::WriteBack => flush_instance(&instance, &[], timeout).map_err(|failure| {
            let advice = "the instance stays; --discard discards what is not written back";
            Failure::new(format!("{}: {advice}", failure.text()))
        })?,
        DirtyData::Discard => None,
    };
    profile::keep(&instance);
    recorder::end(&run, &mut Progress::new(""));
    let removed = stop_hosts(&instance.with_files(), timeout)?.without_root();
    directories::remove(&run)?;
    lock.remove();
    // A flush leaves nothing else for later.
    let never_written = flushed.map(|report| report.metrics.deferred);
    Ok(StopOutcome { count: instance.present(), removed, never_written })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_has_64_digits_and_is_never_the_same() {
        let (one, other) = (new_secret().expect("random"), new_secret().expect("random"));
        assert!(one.len() == 64 && one.bytes().all(|byte| byte.is_ascii_hexdigit()));
        assert_ne!(one, other);
    }
}

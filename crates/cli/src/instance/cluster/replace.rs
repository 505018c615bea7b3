//! Another node in the place of one that is lost with all that its daemons had, in an instance whose
//! data and metadata have copies at other nodes (`forebay replace`).
//!
//!   checked --> counted --> started --> known to all --> taken up
//!
//! The daemons of now are those of before to nobody: they begin under numbers of starts above all that
//! those had (`HostEntry::starts`), and with nothing, so the membership gives up what the lost ones had
//! and has it made anew from the copies.
//!
//! Invariants
//! 1. Nothing is started in the place of a daemon that takes part, or may have the last copy of
//!    something that another one could still be asked for.
//! 2. A command that is killed leaves an instance that `forebay start` completes, or that can be asked
//!    again: the record has the spare host before anything runs there.

use super::{
    RECORD, addresses, call, load, micros, on_each, send_peers, ssh, start_on_host, timeout,
    unexpected_reply,
};
use crate::failure::{Failure, Result, USAGE};
use crate::instance::inspect::DaemonState;
use crate::instance::{cluster, host, inspect, survivors};
use crate::process::progress::Progress;
use crate::state::directories::{self, InstanceLock};
use crate::state::hosts;
use crate::state::records::{self, DaemonRecord, HostEntry, HostRecord, HostReply, InstanceRecord};
use config::control::MembershipStatus;
use serde_json::json;
use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

/// Pause between looks at the membership.
pub(super) const PAUSE: Duration = Duration::from_millis(100);
/// Longest wait for the answers of one look: a daemon that is well answers within milliseconds.
pub(super) const LOOK_TIME: Duration = Duration::from_secs(3);

/// A node that was replaced.
#[derive(Debug)]
pub(crate) struct ReplaceOutcome {
    /// The host on which its daemons run now.
    pub(crate) host: String,
    /// Their numbers.
    pub(crate) daemons: Vec<u16>,
    /// Hosts that could not be told of the new addresses, and why.
    pub(crate) unaware: Vec<Failure>,
}

/// Starts daemons in the place of those of the lost host `node`: on it, or on the host that `spare`
/// names as a line of the hosts file does.
///
/// # Errors
/// There is no such instance or node; it is not lost, or nothing has copies of what it had; the spare
/// is none; its daemons do not start, or do not take part in time.
pub(crate) fn replace(
    name: &str,
    node: &str,
    spare: Option<&str>,
    timeout: Duration,
) -> Result<ReplaceOutcome> {
    let run = directories::run(name)?;
    survivors::await_record(name)?;
    recorded(name, &run)?;
    let _lock = InstanceLock::take(name, timeout)?;
    // Another command may have changed it meanwhile.
    let instance = recorded(name, &run)?;
    let place = place_of(&instance, node)?;
    check_copies(&instance, node)?;
    let spare = spare.map(|text| spare_of(&instance, text)).transpose()?;
    await_loss(&instance, place, &run, timeout)?;
    tell_services(&instance, place, &run, timeout)?;
    if spare.is_some() {
        give_up(&instance, place)?;
    }
    let instance = begin(instance, place, spare, &run)?;
    let unaware = tell(&instance, |index| index == place)?;
    await_members(&instance, place, &run, timeout)?;
    let entry = entry_of(&instance, place)?;
    let daemons = (entry.first..entry.first + entry.count).collect();
    Ok(ReplaceOutcome { host: entry.host.clone(), daemons, unaware })
}

/// The record of the instance, which its starting host has.
pub(super) fn recorded(name: &str, run: &Path) -> Result<InstanceRecord> {
    if let Some(instance) = load(name)? {
        return Ok(instance);
    }
    match records::load::<HostRecord>(run, host::RECORD)? {
        Some(_) => {
            let why = "it was started on another host: give the command there";
            Err(Failure::at("not the starting host", format!("instance {name}"), why))
        }
        None => Err(Failure::no_instance(name)),
    }
}

fn place_of(instance: &InstanceRecord, node: &str) -> Result<usize> {
    let is_it = |entry: &HostEntry| entry.host == node && !node.is_empty();
    instance.hosts.iter().position(is_it).ok_or_else(|| {
        let hosts: Vec<&str> = instance.hosts.iter().map(|entry| &*entry.host).collect();
        let hosts = match hosts.as_slice() {
            [""] => "this host alone".to_owned(),
            hosts => hosts.join(", "),
        };
        let text = format!("no such node: {node}: instance {} runs on {hosts}", instance.name);
        Failure::with_code(USAGE, text)
    })
}

fn entry_of(instance: &InstanceRecord, place: usize) -> Result<&HostEntry> {
    let entry = instance.hosts.get(place);
    entry.ok_or_else(|| Failure::at("no such node", format!("instance {}", instance.name), place))
}

/// Refuses an instance in which nothing has a second copy: the bytes or the names of a lost node are
/// gone with it.
fn check_copies(instance: &InstanceRecord, node: &str) -> Result<()> {
    let (name, config) = (&instance.name, &instance.config);
    if config.replicas > 1 && config.followers > 0 {
        return Ok(());
    }
    let why = format!(
        "what {node} had is gone, as data and metadata have one copy: save what is left ('forebay \
         stage out'), stop the instance, and start one with --replicas 2 --followers 1"
    );
    Err(Failure::at("cannot be replaced", format!("a node of instance {name}"), why))
}

/// The spare host and its address.
fn spare_of(instance: &InstanceRecord, text: &str) -> Result<(String, String)> {
    let line = hosts::spare(text)?;
    let host = &line.host;
    if instance.hosts.iter().any(|entry| entry.host == *host) {
        let text = format!(
            "no spare: {host} is a host of instance {} already: name another one, or leave --with out \
             to start the daemons on the lost host itself",
            instance.name
        );
        return Err(Failure::with_code(USAGE, text));
    }
    let address = hosts::address_of(&line)?;
    Ok((line.host, address))
}

/// The states of all daemons, by host.
pub(super) fn look(
    instance: &InstanceRecord,
    run: &Path,
    until: Instant,
) -> Result<Vec<Result<Vec<DaemonState>>>> {
    let here: Option<HostRecord> = records::load(run, host::RECORD)?;
    let left = until.saturating_duration_since(Instant::now());
    let time = left.clamp(PAUSE, LOOK_TIME);
    cluster::daemon_states(instance, here.as_ref(), run, time)
}

/// The membership of a majority, as its leader knows it.
pub(super) fn membership(states: &[Result<Vec<DaemonState>>]) -> Option<&MembershipStatus> {
    let states = states.iter().flatten().flatten();
    let known = states.filter_map(|state| state.status.as_ref()?.membership.as_ref());
    known.filter(|one| one.leads).max_by_key(|one| one.epoch)
}

/// Nobody can change the membership now.
pub(super) fn without_leader() -> Failure {
    let why = "no majority: no daemon leads, as too few of them answer: start those that are dead \
               ('forebay start'), or wait until the hosts reach each other";
    Failure::new(why)
}

/// Why a membership does not let a node be replaced yet; `None`: it does.
fn why_not_yet(membership: Option<&MembershipStatus>, entry: &HostEntry) -> Option<String> {
    let Some(membership) = membership else { return Some(without_leader().text().to_owned()) };
    let presence = |index: u16| {
        let member = membership.members.get(usize::from(index));
        member.map_or("", |member| member.presence.as_str())
    };
    let mut daemons = entry.first..entry.first + entry.count;
    if let Some(index) = daemons.find(|&index| presence(index) != "down") {
        return Some(format!(
            "not lost: daemon {index} of {} takes part for the others: end it, or wait until they \
             declare it dead",
            entry.host
        ));
    }
    membership.owners.contains(&None).then(|| {
        "some metadata has no owner, as its copies are at daemons that are down: start those first \
         ('forebay start')"
            .to_owned()
    })
}

/// Looks at the states of all daemons until `why_not_yet` has no objection any more.
pub(super) fn await_states(
    instance: &InstanceRecord,
    run: &Path,
    timeout: Duration,
    why_not_yet: impl Fn(&[Result<Vec<DaemonState>>]) -> Result<Option<Failure>>,
) -> Result<()> {
    let (until, mut progress) = (Instant::now() + timeout, Progress::new("waiting for the others"));
    loop {
        let Some(why) = why_not_yet(&look(instance, run, until)?)? else { return Ok(()) };
        if Instant::now() >= until {
            return Err(why);
        }
        progress.tick();
        std::thread::sleep(PAUSE);
    }
}

/// Waits until the others have declared the daemons of a host dead and have taken over what it served.
fn await_loss(
    instance: &InstanceRecord,
    place: usize,
    run: &Path,
    timeout: Duration,
) -> Result<()> {
    let entry = entry_of(instance, place)?;
    await_states(instance, run, timeout, |states| {
        let own = states.get(place).and_then(|states| states.as_ref().ok());
        if let Some(alive) = own.into_iter().flatten().find(|state| state.is_alive) {
            let text = format!(
                "not lost: daemon {} of {} is alive: a node that is replaced must be gone, or its \
                 daemons ended and their files removed",
                alive.index, entry.host
            );
            return Err(Failure::new(text));
        }
        Ok(why_not_yet(membership(states), entry).map(Failure::new))
    })
}

/// Waits until the daemons of a host take part.
fn await_members(
    instance: &InstanceRecord,
    place: usize,
    run: &Path,
    timeout: Duration,
) -> Result<()> {
    let entry = entry_of(instance, place)?;
    await_states(instance, run, timeout, |states| {
        let members = membership(states).map_or(&[][..], |known| known.members.as_slice());
        let range = usize::from(entry.first)..usize::from(entry.first + entry.count);
        // One that was to leave leaves on, with nothing.
        let is_there = |word: &str| matches!(word, "up" | "leaving" | "left");
        let take_part =
            members.get(range).is_some_and(|all| all.iter().all(|one| is_there(&one.presence)));
        let why = "its daemons run, but take no part yet: 'forebay status' shows when they do";
        let late = || Failure::at("not taken up in time", format!("host {}", entry.host), why);
        Ok((!take_part).then(late))
    })
}

/// Tells all metadata services that the host is gone, before anything runs in its place: what its
/// programs had open and locked is released then, and nothing of those that come after them.
fn tell_services(
    instance: &InstanceRecord,
    place: usize,
    run: &Path,
    timeout: Duration,
) -> Result<()> {
    let lost = entry_of(instance, place)?;
    let states = look(instance, run, Instant::now() + LOOK_TIME)?;
    let count = membership(&states).map_or(0, |known| known.owners.len());
    // A number that is another one each time: each attempt counts a start.
    let round = u16::try_from(lost.starts & u64::from(u16::MAX)).unwrap_or(0);
    let gone = (lost.first, round);
    let here: Option<HostRecord> = records::load(run, host::RECORD)?;
    let is_here = |entry: &HostEntry| here.as_ref().is_some_and(|it| it.first == entry.first);
    let until = Instant::now() + timeout;
    let mut progress = Progress::new("waiting for the others");
    loop {
        let aware = on_each(instance, "connecting", |entry, _| {
            let aware = if entry.first == lost.first {
                Ok(Vec::new())
            } else if is_here(entry) {
                inspect::tell_gone(&instance.name, gone, LOOK_TIME)
            } else {
                tell_host(instance, entry, gone)
            };
            // One that is dead serves nothing.
            Ok(aware.unwrap_or_default())
        })?;
        let aware: BTreeSet<u32> = aware.into_iter().flatten().collect();
        if count > 0 && aware.len() >= count {
            return Ok(());
        }
        if Instant::now() >= until {
            let text = format!(
                "not lost: only {} of {count} metadata services could be told that {} is gone: try again \
                 when all hosts answer",
                aware.len(),
                lost.host
            );
            return Err(Failure::new(text));
        }
        progress.tick();
        std::thread::sleep(PAUSE);
    }
}

fn tell_host(
    instance: &InstanceRecord,
    entry: &HostEntry,
    (host, round): (u16, u16),
) -> Result<Vec<u32>> {
    let timeout_us = micros(LOOK_TIME);
    let request = json!({
        "name": instance.name, "host": host, "round": round, "timeout_us": timeout_us,
    });
    let command = "daemon-gone";
    match call(instance, entry, command, &request.to_string(), LOOK_TIME)? {
        Some(HostReply::Aware(aware)) => Ok(aware),
        _ => Err(unexpected_reply(entry, command)),
    }
}

/// Has the lost host remove what it still has of the instance, if it answers, before anything is started
/// elsewhere: both may have the directory of data in common.
fn give_up(instance: &InstanceRecord, place: usize) -> Result<()> {
    let entry = entry_of(instance, place)?;
    let limit = timeout(instance).min(LOOK_TIME);
    let request = json!({
        "name": instance.name, "first": entry.first, "timeout_us": micros(limit),
    });
    let line = ssh::call(&instance.ssh, &entry.host, "daemon-lost", &request.to_string(), limit);
    // A host that is gone does not answer.
    let Ok(line) = line else { return Ok(()) };
    match serde_json::from_str(&line) {
        Ok(HostReply::Error(text)) => Err(Failure::of_lines(&text).on_host(&entry.host)),
        _ => Ok(()),
    }
}

/// Starts the daemons. The record has the spare host before anything runs there, and the lost one again
/// if nothing does.
fn begin(
    mut instance: InstanceRecord,
    place: usize,
    spare: Option<(String, String)>,
    run: &Path,
) -> Result<InstanceRecord> {
    let before = entry_of(&instance, place)?.clone();
    let after = in_place_of(&before, spare.clone());
    let counted = match spare {
        Some(_) => after.clone(),
        // The host has the new record before this one: it counts there.
        None => HostEntry { starts: after.starts, ..before.clone() },
    };
    put(&mut instance, place, counted);
    records::store(run, RECORD, &instance)?;
    let started = secret(run).and_then(|secret| {
        let mut progress = Progress::new("starting");
        let mut with = instance.clone();
        put(&mut with, place, after.clone());
        start_on_host(&with, &after, (&secret, None), &mut progress)
    });
    match started {
        Ok(host) => {
            let mut daemons = host.daemons;
            daemons.iter_mut().for_each(DaemonRecord::forget_start);
            put(&mut instance, place, HostEntry { daemons, ..after });
            records::store(run, RECORD, &instance)?;
            Ok(instance)
        }
        Err(failure) => {
            put(&mut instance, place, HostEntry { starts: after.starts, ..before });
            records::store(run, RECORD, &instance)?;
            Err(failure)
        }
    }
}

/// The entry of a host in the place of a lost one, whose next start is counted.
fn in_place_of(lost: &HostEntry, spare: Option<(String, String)>) -> HostEntry {
    let (host, listen) = spare.unwrap_or_else(|| (lost.host.clone(), lost.listen.clone()));
    // The place keeps its failure domain, also where that is named by the host.
    let domain = if lost.domain == lost.host { host.clone() } else { lost.domain.clone() };
    HostEntry {
        host,
        listen,
        domain,
        daemons: Vec::new(),
        is_joining: false,
        lost_starts: lost.starts,
        starts: lost.starts + 1,
        ..lost.clone()
    }
}

fn put(instance: &mut InstanceRecord, place: usize, entry: HostEntry) {
    instance.hosts.iter_mut().skip(place).take(1).for_each(|old| *old = entry.clone());
}

pub(super) fn secret(run: &Path) -> Result<String> {
    let path = run.join("secret");
    let secret = std::fs::read_to_string(&path).map_err(|error| {
        let why = format!("{error}: without it no daemon can be started: stop this instance");
        Failure::at("cannot read", path.display(), why)
    })?;
    Ok(secret.trim().to_owned())
}

/// Tells all hosts the new addresses. Returns the failures of those that are not new: they may be dead.
///
/// # Errors
/// The failure of a new one.
pub(super) fn tell(
    instance: &InstanceRecord,
    is_new: impl Fn(usize) -> bool,
) -> Result<Vec<Failure>> {
    let addresses = addresses(instance);
    let told = on_each(instance, "connecting", |entry, _| {
        Ok(send_peers(instance, entry, &addresses).err())
    })?;
    let mut unaware = Vec::new();
    for (index, failure) in told.into_iter().enumerate() {
        match failure {
            Some(failure) if is_new(index) => return Err(failure),
            failure => unaware.extend(failure),
        }
    }
    Ok(unaware)
}

#[cfg(test)]
mod tests {
    use super::*;
    use config::control::MemberStatus;

    fn lost() -> HostEntry {
        let domain = "b".to_owned();
        HostEntry { starts: 3, domain, ..HostEntry::new("b", "10.0.0.2", 1, 2) }
    }

    fn membership(presences: [&str; 4], owners: [Option<u16>; 4]) -> MembershipStatus {
        let member =
            |word: &str| MemberStatus { presence: word.to_owned(), ..MemberStatus::default() };
        let (members, owners) = (presences.map(member).to_vec(), owners.to_vec());
        MembershipStatus { epoch: 7, leads: true, members, owners, ..MembershipStatus::default() }
    }

    #[test]
    fn a_place_keeps_its_numbers_and_counts_its_starts() {
        let same = in_place_of(&lost(), None);
        assert_eq!((&*same.host, &*same.domain, same.first, same.count), ("b", "b", 1, 2));
        assert_eq!((same.lost_starts, same.starts), (3, 4));
        let again = in_place_of(&same, Some(("d".into(), "10.0.0.4".into())));
        assert_eq!((&*again.host, &*again.listen, &*again.domain), ("d", "10.0.0.4", "d"));
        assert_eq!((again.lost_starts, again.starts), (4, 5));
        let racked = HostEntry { domain: "rack1".into(), ..lost() };
        let spare = in_place_of(&racked, Some(("d".into(), "10.0.0.4".into())));
        assert_eq!(spare.domain, "rack1");
    }

    #[test]
    fn only_a_node_that_the_others_gave_up_is_replaced() {
        let why = |known: Option<&MembershipStatus>| {
            why_not_yet(known, &lost()).unwrap_or_else(|| "lost".to_owned())
        };
        assert!(why(None).starts_with("no majority"));
        let owners = [Some(0), Some(3), Some(0), Some(3)];
        let up = membership(["up", "down", "up", "up"], owners);
        assert!(why(Some(&up)).contains("daemon 2 of b takes part"));
        let down = membership(["up", "down", "down", "up"], owners);
        assert_eq!(why(Some(&down)), "lost");
        let unserved = membership(["up", "down", "down", "up"], [Some(0), None, Some(0), Some(3)]);
        assert!(why(Some(&unserved)).starts_with("some metadata has no owner"));
    }
}

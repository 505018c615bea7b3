//! Writing changes of an instance back at once, by the writeback daemon on the host of daemon 0. Where
//! data and metadata have copies an instance goes on without that host: while it is lost another host
//! runs such a daemon, for as long as the command takes.

use super::replace::LOOK_TIME;
use super::{HOSTS_RECORD, call, load, micros, unexpected_reply};
use crate::failure::{Failure, Result};
use crate::instance::{host, inspect, writeback};
use crate::process::progress::Progress;
use crate::state::directories;
use crate::state::records::{self, HostEntry, HostRecord, HostReply, InstanceRecord};
use config::control::{MembershipStatus, WritebackReport};
use serde_json::json;
use std::path::Path;
use std::time::Duration;

/// Limit on a flush on another host: as long as data is being written, it is not cut off. The host
/// itself gives up when nothing has been written for its timeout.
const FLUSH_TIME_MAX: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// Writes all changes of an instance back. Returns the report of the writeback daemon; `None` without
/// a backing directory, when there is nothing to write.
///
/// # Errors
/// There is no such instance; something was not or cannot be written.
pub(crate) fn flush(
    name: &str,
    paths: &[String],
    timeout: Duration,
) -> Result<Option<WritebackReport>> {
    if let Some(instance) = load(name)? {
        return flush_instance(&instance, paths, timeout);
    }
    // Started on another host; the writeback daemon may be on this one.
    let run = directories::run(name)?;
    let here: Option<HostRecord> = records::load(&run, host::RECORD)?;
    let here = here.ok_or_else(|| Failure::no_instance(name))?;
    if !here.config.has_writeback() {
        return Ok(None);
    }
    let progress = &mut Progress::new("flushing");
    if here.first == 0 {
        return writeback::flush(&run, paths, timeout, progress).map(Some);
    }
    let instance: Option<InstanceRecord> = records::load(&run, HOSTS_RECORD)?;
    if instance.as_ref().map(is_writer_lost).transpose()? != Some(true) {
        let why = "its writeback daemon is on the host of daemon 0: flush it there";
        return Err(Failure::at("not available", format!("instance {name}"), why));
    }
    writeback::flush_instead(&run, paths, timeout, progress).map(Some)
}

/// As `flush`, for the starting host.
pub(super) fn flush_instance(
    instance: &InstanceRecord,
    paths: &[String],
    timeout: Duration,
) -> Result<Option<WritebackReport>> {
    let first = instance.hosts.iter().find(|entry| entry.first == 0);
    let Some(first) = first.filter(|_| instance.config.has_writeback()) else { return Ok(None) };
    let run = directories::run(&instance.name)?;
    if !is_writer_lost(instance)? {
        return flush_on(instance, first, &run, paths, timeout).map(Some);
    }
    let others = instance.hosts.iter().filter(|entry| entry.first != 0);
    let mut failure =
        Failure::at("not written back", format!("instance {}", instance.name), "no host is left");
    for entry in others {
        match flush_on(instance, entry, &run, paths, timeout) {
            Err(why) => failure = why,
            done => return done.map(Some),
        }
    }
    Err(failure)
}

/// Has a host write all changes back: that of daemon 0, or another one instead of it.
fn flush_on(
    instance: &InstanceRecord,
    entry: &HostEntry,
    run: &Path,
    paths: &[String],
    timeout: Duration,
) -> Result<WritebackReport> {
    if entry.host.is_empty() {
        return writeback::flush(run, paths, timeout, &mut Progress::new("flushing"));
    }
    let timeout_us = micros(timeout);
    let request = json!({ "name": instance.name, "timeout_us": timeout_us, "paths": paths });
    let command = "daemon-flush";
    match call(instance, entry, command, &request.to_string(), FLUSH_TIME_MAX)? {
        Some(HostReply::Flushed(report)) => Ok(*report),
        _ => Err(unexpected_reply(entry, command)),
    }
}

/// Whether the host of daemon 0 is lost, as the others have agreed: none of its daemons takes part. Only
/// where an instance goes on then.
fn is_writer_lost(instance: &InstanceRecord) -> Result<bool> {
    let first = instance.hosts.iter().find(|entry| entry.first == 0);
    let Some(first) = first.filter(|_| instance.config.replicas > 1) else { return Ok(false) };
    let found = inspect::inspect(&instance.name, LOOK_TIME)?;
    Ok(inspect::membership(&found.daemons).is_some_and(|known| is_down(known, first.count)))
}

/// Whether the first `count` daemons are down.
fn is_down(known: &MembershipStatus, count: u16) -> bool {
    let first = known.members.iter().take(usize::from(count));
    first.len() == usize::from(count) && first.clone().all(|one| one.presence == "down")
}

#[cfg(test)]
mod tests {
    use super::*;
    use config::control::MemberStatus;

    #[test]
    fn a_host_is_lost_when_all_its_daemons_are_down() {
        let known = |presences: &[&str]| {
            let member = |word: &&str| MemberStatus {
                presence: (*word).to_owned(),
                ..MemberStatus::default()
            };
            let members = presences.iter().map(member).collect();
            MembershipStatus { members, ..MembershipStatus::default() }
        };
        assert!(is_down(&known(&["down", "up"]), 1));
        assert!(!is_down(&known(&["down", "up"]), 2));
        assert!(is_down(&known(&["down", "down", "up"]), 2));
        assert!(!is_down(&known(&["leaving", "up"]), 1));
        assert!(!is_down(&known(&["down"]), 2), "not all are known");
    }
}

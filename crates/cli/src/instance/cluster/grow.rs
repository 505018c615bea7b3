//! Daemons on more hosts for an instance that runs (`forebay grow`).
//!
//!   checked, reached --> added to the membership --> recorded --> started --> known to all --> taken up
//!   --> services moved
//!
//! New files are on the targets of added daemons as soon as these came once. Files from before stay where
//! they are. With followers metadata services go to added daemons by themselves; the command waits for
//! that, and others may change the instance meanwhile.
//!
//! Invariants
//! 1. No daemon is started before the membership has it: it begins with the one in which it is.
//! 2. A command that is killed leaves an instance that can be asked again. Daemons that are in the
//!    membership and in no record never came, and are the next ones. A host is recorded as one that joins
//!    (`HostEntry::is_joining`) until its daemons take part and all others could be told of them.
//! 3. The record has a host before anything runs there. Daemons on a host that an earlier command has
//!    recorded stay there, whatever fails: they may have files.

use super::balance::await_even;
use super::replace::{LOOK_TIME, await_states, membership, recorded, secret, tell, without_leader};
use super::shrink::{one_at_a_time, other_leaver};
use super::{RECORD, call_without_result, micros, on_each, ssh, start_on_host};
use crate::failure::{Failure, Result, USAGE};
use crate::instance::{host, inspect, survivors};
use crate::state::directories::{self, InstanceLock};
use crate::state::domains;
use crate::state::hosts::{self, HostLine};
use crate::state::records::{self, DaemonRecord, HostEntry, HostRecord, InstanceRecord};
use serde_json::json;
use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;
use wire::limits::{DAEMON_COUNT_MAX, UNIT_COUNT_MAX, copy_goals, units_per_target};

/// Waits until the daemons of the instance `name`, which has grown, have their part of its metadata
/// services.
///
/// # Errors
/// No service moves for as long as `timeout`, or no daemon leads.
pub(crate) fn await_services(name: &str, timeout: Duration) -> Result<()> {
    await_even(name, &directories::run(name)?, timeout)
}

/// Hosts that are to be added.
#[derive(Debug)]
pub(crate) enum NewHosts {
    /// These, each as a line of the hosts file names it.
    Named(Vec<String>),
    /// Those of the hosts file with this path that the instance does not have.
    OfFile(String),
}

/// Daemons that were added.
#[derive(Debug)]
pub(crate) struct GrowOutcome {
    /// Their numbers.
    pub(crate) daemons: Vec<u16>,
    /// Number of those that the instance has.
    pub(crate) present: u16,
    /// Hosts that could not be told of the new addresses, and why.
    pub(crate) unaware: Vec<Failure>,
}

/// Starts daemons of the instance `name` on more hosts.
///
/// # Errors
/// There is no such instance, or it cannot grow; a host is none, or of the instance already; too few
/// daemons answer; the daemons do not start, or do not take part in time.
pub(crate) fn grow(name: &str, new: &NewHosts, timeout: Duration) -> Result<GrowOutcome> {
    let lines = new.lines()?;
    let run = directories::run(name)?;
    survivors::await_record(name)?;
    recorded(name, &run)?;
    let _lock = InstanceLock::take(name, timeout)?;
    // Another command may have changed it meanwhile.
    let before = recorded(name, &run)?;
    check_growth(&before)?;
    let lines = match new {
        NewHosts::Named(_) => lines,
        NewHosts::OfFile(path) => without_hosts_of(&before, lines, path)?,
    };
    let (instance, firsts) = with_hosts(&before, &lines)?;
    reach(&instance, &firsts, timeout)?;
    add(&before, &instance, &run, timeout)?;
    let mut instance = begin(&before, instance, &firsts, &run)?;
    let new: Vec<bool> = instance.hosts.iter().map(|it| firsts.contains(&it.first)).collect();
    let unaware = tell(&instance, |index| new.get(index).is_some_and(|&is_new| is_new))?;
    let daemons: Vec<u16> = joining(&instance, &firsts).flat_map(HostEntry::numbers).collect();
    await_new(&instance, &run, &daemons, timeout)?;
    let joined = instance.hosts.iter_mut().filter(|entry| firsts.contains(&entry.first));
    joined.for_each(|entry| entry.is_joining = false);
    records::store(&run, RECORD, &instance)?;
    Ok(GrowOutcome { daemons, present: instance.present(), unaware })
}

impl NewHosts {
    fn lines(&self) -> Result<Vec<HostLine>> {
        match self {
            NewHosts::Named(lines) => hosts::parse(&lines.join("\n"), "the command line"),
            NewHosts::OfFile(path) => {
                let text = std::fs::read_to_string(path).map_err(|error| {
                    let text = format!("cannot read the hosts file: {path}: {error}");
                    Failure::with_code(USAGE, text)
                })?;
                hosts::parse(&text, path)
            }
        }
    }
}

/// The lines of a hosts file without those of hosts that the instance has as they say.
///
/// # Errors
/// A line says otherwise of such a host, or none is left.
fn without_hosts_of(
    instance: &InstanceRecord,
    mut lines: Vec<HostLine>,
    path: &str,
) -> Result<Vec<HostLine>> {
    let refuse = |what: String| {
        let text = format!("hosts file: {path}: {what}");
        Err(Failure::with_code(USAGE, text))
    };
    let name = &instance.name;
    let known = |line: &HostLine| {
        instance.hosts.iter().find(|entry| entry.host == line.host && !entry.is_joining)
    };
    for line in &lines {
        let Some(entry) = known(line) else { continue };
        let is_there = line.address.is_none_or(|address| entry.listen == address.to_string());
        if entry.count != line.count || !is_there {
            let HostEntry { host, count, listen, .. } = entry;
            return refuse(format!(
                "{host} is in instance {name} as '{host}:{count} {listen}', which stays: write that"
            ));
        }
    }
    lines.retain(|line| known(line).is_none());
    if lines.is_empty() {
        return refuse(format!("all its hosts are in instance {name}: add those that are new"));
    }
    Ok(lines)
}

/// The hosts that this command adds, or that an earlier one began to add.
fn joining<'a>(
    instance: &'a InstanceRecord,
    firsts: &'a BTreeSet<u16>,
) -> impl Iterator<Item = &'a HostEntry> {
    instance.hosts.iter().filter(|entry| firsts.contains(&entry.first))
}

/// Refuses an instance whose daemons do not know how to take up new ones.
fn check_growth(instance: &InstanceRecord) -> Result<()> {
    let refuse = |why: &str| {
        let text = format!("instance {} cannot grow: {why}", instance.name);
        Err(Failure::with_code(USAGE, text))
    };
    // Its programs ask nobody whether another host changed what they know.
    if instance.hosts.len() < 2 || instance.hosts.iter().any(|entry| entry.host.is_empty()) {
        return refuse("it runs on one host alone: start one on two or more, with --hosts");
    }
    if instance.hosts.iter().any(|entry| entry.domain.is_empty()) {
        return refuse("its daemons do not watch each other: start one with --domains auto");
    }
    Ok(())
}

/// The most daemons that the instance may have. Where files have copies each target has units, of which
/// there are as many as the membership has room for.
fn daemons_most(instance: &InstanceRecord) -> u16 {
    let goals = copy_goals(u8::try_from(instance.config.replicas).unwrap_or(u8::MAX)).len();
    let units = goals * usize::from(units_per_target(instance.began().into(), goals));
    let most = UNIT_COUNT_MAX.checked_div(units).and_then(|most| u16::try_from(most).ok());
    most.map_or(DAEMON_COUNT_MAX, |most| most.min(DAEMON_COUNT_MAX))
}

/// The record of the instance with these hosts, and the first daemon of each. Nothing runs there yet,
/// unless an earlier command that was to add the same host did not end.
fn with_hosts(
    before: &InstanceRecord,
    lines: &[HostLine],
) -> Result<(InstanceRecord, BTreeSet<u16>)> {
    let (mut instance, mut firsts) = (before.clone(), BTreeSet::new());
    for line in lines {
        if let Some(first) = begun(before, line)? {
            firsts.insert(first);
            continue;
        }
        let first = u32::from(instance.count());
        let most = daemons_most(before);
        if first + u32::from(line.count) > u32::from(most) {
            let text = format!("instance {} has at most {most} daemons", before.name);
            return Err(Failure::with_code(USAGE, text));
        }
        let address = hosts::address_of(line)?;
        let entry = HostEntry::new(&line.host, &address, instance.count(), line.count);
        firsts.insert(entry.first);
        // Each is a domain of its own, as with `--domains auto`.
        let domain = line.host.clone();
        instance.hosts.push(HostEntry { domain, is_joining: true, ..entry });
    }
    instance.began = Some(before.began());
    Ok((instance, firsts))
}

/// The first daemon of a host that an earlier command began to add in the same way.
///
/// # Errors
/// It is a host of the instance, is added in another way, or has files from the time when it was one.
fn begun(before: &InstanceRecord, line: &HostLine) -> Result<Option<u16>> {
    let (host, name) = (&line.host, &before.name);
    let refuse = |text: String| Err(Failure::with_code(USAGE, text));
    let mut with_files = before.left.iter().filter(|entry| !entry.daemons.is_empty());
    if with_files.any(|entry| entry.host == *host) {
        let why = format!("give 'forebay shrink {host}' again, which removes its files there");
        return Err(Failure::at("has not left yet", format!("{host} of instance {name}"), why));
    }
    let Some(entry) = before.hosts.iter().find(|entry| entry.host == *host) else {
        return Ok(None);
    };
    if !entry.is_joining {
        return refuse(format!("{host} is a host of instance {name} already"));
    }
    let (address, count) = (hosts::address_of(line)?, entry.count);
    if (count, &entry.listen) != (line.count, &address) {
        return refuse(format!(
            "{host} is being added to instance {name} as '{host}:{count} {}': give that again",
            entry.listen
        ));
    }
    Ok(Some(entry.first))
}

/// Reaches the hosts that are new, before the membership knows of any.
fn reach(instance: &InstanceRecord, firsts: &BTreeSet<u16>, timeout: Duration) -> Result<()> {
    let request = json!({ "name": instance.name, "timeout_us": micros(timeout) }).to_string();
    for entry in joining(instance, firsts) {
        // Its answer may be that there is no such instance.
        ssh::call(&instance.ssh, &entry.host, "daemon-status", &request, timeout)?;
    }
    Ok(())
}

/// Has the membership get the daemons that it does not have yet, one after the other.
fn add(
    before: &InstanceRecord,
    instance: &InstanceRecord,
    run: &Path,
    timeout: Duration,
) -> Result<()> {
    let domains = domains::numbers(instance.all_hosts());
    let here: Option<HostRecord> = records::load(run, host::RECORD)?;
    for (daemon, &domain) in (0..).zip(&domains).skip(before.count().into()) {
        let domain = u16::try_from(domain).unwrap_or(u16::MAX);
        await_states(before, run, timeout, |states| {
            let Some(known) = membership(states) else { return Ok(Some(without_leader())) };
            if let Some(leaver) = other_leaver(known, &BTreeSet::new()) {
                return Err(one_at_a_time(leaver));
            }
            if known.members.len() > usize::from(daemon) {
                return Ok(None);
            }
            ask(before, here.as_ref(), (daemon, domain))?;
            Ok(Some(Failure::at("not added in time", format!("daemon {daemon}"), "try again")))
        })?;
    }
    Ok(())
}

/// Asks all daemons that answer to add one. Asked twice they add it once.
fn ask(instance: &InstanceRecord, here: Option<&HostRecord>, added: (u16, u16)) -> Result<()> {
    on_each(instance, "connecting", |entry, _| {
        let asked = if here.is_some_and(|host| host.first == entry.first) {
            inspect::add_daemon(&instance.name, added, LOOK_TIME)
        } else {
            let (daemon, domain) = added;
            let request = json!({
                "name": instance.name, "daemon": daemon, "domain": domain,
                "timeout_us": micros(LOOK_TIME),
            });
            call_without_result(instance, entry, "daemon-add", &request.to_string())
        };
        // One that is dead adds nothing.
        let _ = asked;
        Ok(())
    })
    .map(drop)
}

/// Starts the daemons on the hosts that are new. If one of them does not start, none is left of those
/// that this command is the first to start, and the record is as it was.
fn begin(
    before: &InstanceRecord,
    mut instance: InstanceRecord,
    firsts: &BTreeSet<u16>,
    run: &Path,
) -> Result<InstanceRecord> {
    let is_new = |entry: &HostEntry| firsts.contains(&entry.first);
    instance.hosts.iter_mut().filter(|it| is_new(it)).for_each(|entry| entry.starts += 1);
    records::store(run, RECORD, &instance)?;
    let secret = secret(run)?;
    let started = on_each(&instance, "starting", |entry, progress| {
        is_new(entry)
            .then(|| start_on_host(&instance, entry, (&secret, None), progress))
            .transpose()
    });
    match started {
        Ok(hosts) => {
            for (entry, host) in instance.hosts.iter_mut().zip(hosts) {
                let Some(host) = host else { continue };
                entry.daemons = host.daemons;
                entry.daemons.iter_mut().for_each(DaemonRecord::forget_start);
            }
            records::store(run, RECORD, &instance)?;
            Ok(instance)
        }
        Err(failure) => {
            let mut new = instance;
            new.hosts.retain(|entry| before.hosts.iter().all(|old| old.first != entry.first));
            let limit = Duration::from_micros(new.config.timeout);
            // A host whose start fails cleans up by itself.
            let _ = super::stop_hosts(&new, limit);
            let mut kept = before.clone();
            for entry in kept.hosts.iter_mut().filter(|it| is_new(it)) {
                // The start counts, if only for what it left.
                entry.starts += 1;
            }
            records::store(run, RECORD, &kept)?;
            Err(failure)
        }
    }
}

/// Waits until the new daemons take part.
fn await_new(
    instance: &InstanceRecord,
    run: &Path,
    daemons: &[u16],
    timeout: Duration,
) -> Result<()> {
    await_states(instance, run, timeout, |states| {
        let members = membership(states).map_or(&[][..], |known| known.members.as_slice());
        let is_up = |daemon: &&u16| {
            members.get(usize::from(**daemon)).is_some_and(|one| one.presence == "up")
        };
        let why = "it was started, but takes no part yet: give the command again";
        let late =
            |daemon: &u16| Failure::at("not taken up in time", format!("daemon {daemon}"), why);
        Ok(daemons.iter().find(|daemon| !is_up(daemon)).map(late))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::records::VERSION;
    use config::{InstanceConfig, Key, Settings, Sources};

    fn instance(options: &[(Key, &str)]) -> InstanceRecord {
        let options = options.iter().map(|&(key, text)| (key, text.to_owned()));
        let options = options.chain([(Key::Workers, "1".to_owned())]).collect();
        let settings = Settings::resolve(&Sources { options, ..Sources::default() });
        let config = InstanceConfig::new(&settings.expect("allowed")).expect("complete");
        let entry = |host: &str, first, count| {
            let domain = host.to_owned();
            HostEntry { domain, ..HostEntry::new(host, "10.0.0.1", first, count) }
        };
        let hosts = vec![entry("a", 0, 1), entry("b", 1, 2)];
        let (version, name, ssh, began) = (VERSION, "x".to_owned(), Vec::new(), None);
        InstanceRecord { version, name, uid: 0, ssh, config, hosts, began, left: Vec::new() }
    }

    fn named(words: &[&str]) -> Result<Vec<HostLine>> {
        NewHosts::Named(words.iter().map(|&word| word.to_owned()).collect()).lines()
    }

    fn lines(words: &[&str]) -> Vec<HostLine> {
        named(words).expect("lines")
    }

    #[test]
    fn hosts_are_put_behind_those_that_there_are() {
        let before = instance(&[]);
        let two = lines(&["c:2 10.0.0.3", "d 10.0.0.4"]);
        let (once, new) = with_hosts(&before, &two).expect("hosts");
        assert_eq!(new, BTreeSet::from([3, 5]));
        let firsts = |of: &InstanceRecord| -> Vec<(String, u16, u16)> {
            of.hosts.iter().map(|it| (it.domain.clone(), it.first, it.count)).collect()
        };
        let known = [("a", 0, 1), ("b", 1, 2), ("c", 3, 2), ("d", 5, 1)];
        let known = known.map(|(name, first, count)| (name.to_owned(), first, count));
        assert_eq!((firsts(&once), once.count(), once.began()), (known.to_vec(), 6, 3));
        let (twice, _) = with_hosts(&once, &lines(&["e 10.0.0.5"])).expect("a host");
        assert_eq!((twice.count(), twice.began()), (7, 3));
        assert_eq!(domains::numbers(&twice.hosts), [0, 1, 1, 2, 2, 3, 4]);
        // Numbers of daemons that left are not given again, also to a host that comes back.
        let mut shrunk = twice.clone();
        let left = shrunk.hosts.remove(2);
        shrunk.left.push(left);
        let (again, _) = with_hosts(&shrunk, &lines(&["c 10.0.0.3"])).expect("a host");
        assert_eq!((again.count(), again.present()), (8, 6));
        assert_eq!(again.hosts.last().map(|it| it.first), Some(7));
        assert_eq!(domains::numbers(again.all_hosts()), [0, 1, 1, 2, 2, 3, 4, 2]);
        for (wrong, why) in [
            (&["b 10.0.0.2"][..], "b is a host of instance x already"),
            (&["c 10.0.0.3", "c 10.0.0.3"], "is listed twice"),
            (&["c:0"], "give 1 to"),
            (&[], "daemons"),
        ] {
            let failure = named(wrong).and_then(|lines| with_hosts(&before, &lines));
            let failure = failure.expect_err(why);
            assert!(failure.text().contains(why), "{}", failure.text());
        }
    }

    #[test]
    fn of_a_hosts_file_hosts_are_added_that_the_instance_does_not_have() {
        let before = instance(&[]);
        let new = |of: &InstanceRecord, text: &str| -> Result<Vec<String>> {
            let file = tempfile::NamedTempFile::new().expect("a file");
            std::fs::write(file.path(), text).expect("written");
            let path = file.path().to_string_lossy().into_owned();
            let lines = NewHosts::OfFile(path.clone()).lines()?;
            let lines = without_hosts_of(of, lines, &path)?;
            Ok(lines.into_iter().map(|line| line.host).collect())
        };
        let all = "a\nb:2 10.0.0.1 # as it is\nc:2 10.0.0.3\nd\n";
        assert_eq!(new(&before, all).expect("hosts"), ["c", "d"]);
        // One that a killed command began to add is added again.
        let (mut killed, _) = with_hosts(&before, &lines(&["c:2 10.0.0.3"])).expect("a host");
        assert_eq!(new(&killed, all).expect("hosts"), ["c", "d"]);
        killed.hosts.iter_mut().for_each(|entry| entry.is_joining = false);
        assert_eq!(new(&killed, all).expect("hosts"), ["d"]);
        for (text, why) in [
            ("a\nb:2\n", "all its hosts are in instance x: add those that are new"),
            ("a\nb:3\nc\n", "b is in instance x as 'b:2 10.0.0.1', which stays"),
            ("a 10.0.0.9\nc\n", "a is in instance x as 'a:1 10.0.0.1', which stays"),
            ("a b\n", "line 1: the second word must be an IP address"),
        ] {
            let failure = new(&before, text).expect_err(why);
            assert!(failure.text().contains(why), "{}", failure.text());
            assert_eq!((failure.code(), failure.text().lines().count()), (USAGE, 1));
        }
        let failure = NewHosts::OfFile("/nonexistent".into()).lines().expect_err("no file");
        assert!(failure.text().contains("cannot read the hosts file: /nonexistent"));
    }

    #[test]
    fn a_host_that_a_killed_command_began_to_add_is_added_by_the_same_words_alone() {
        let (mut killed, firsts) =
            with_hosts(&instance(&[]), &lines(&["c:2 10.0.0.3", "d 10.0.0.4"])).expect("hosts");
        let with = |killed: &InstanceRecord, words: &[&str]| {
            let with = with_hosts(killed, &lines(words));
            with.map(|(after, firsts)| (after.count(), Vec::from_iter(firsts)))
                .map_err(|failure| failure.text().to_owned())
        };
        assert_eq!(firsts, BTreeSet::from([3, 5]));
        assert_eq!(with(&killed, &["c:2 10.0.0.3", "d 10.0.0.4"]), Ok((6, vec![3, 5])));
        assert_eq!(with(&killed, &["d 10.0.0.4"]), Ok((6, vec![5])));
        assert_eq!(with(&killed, &["e 10.0.0.5", "c:2 10.0.0.3"]), Ok((7, vec![3, 6])));
        for other in ["c 10.0.0.3", "c:2 10.0.0.4"] {
            let why = with(&killed, &[other]).expect_err("another one");
            assert!(why.contains("as 'c:2 10.0.0.3': give that again"), "{why}");
        }
        killed.hosts.iter_mut().for_each(|entry| entry.is_joining = false);
        let why = with(&killed, &["d 10.0.0.4"]).expect_err("it is there");
        assert!(why.contains("d is a host of instance x already"), "{why}");
        // It has left, and its files are there yet.
        let mut left = killed.hosts.pop().expect("a host");
        left.daemons = vec![DaemonRecord::unknown(5)];
        killed.left.push(left);
        let why = with(&killed, &["d 10.0.0.4"]).expect_err("its files are there");
        assert!(why.contains("'forebay shrink d' again"), "{why}");
    }

    #[test]
    fn an_instance_on_hosts_that_watch_each_other_grows() {
        let auto = (Key::Domains, "auto");
        let (followers, replicas) = ((Key::Followers, "1"), (Key::Replicas, "2"));
        for options in [&[][..], &[auto], &[auto, followers], &[auto, followers, replicas]] {
            assert!(check_growth(&instance(options)).is_ok());
        }
        let mut alone = instance(&[]);
        alone.hosts.truncate(1);
        let mut unwatched = instance(&[]);
        unwatched.hosts.iter_mut().for_each(|entry| entry.domain.clear());
        for (refused, why) in [(alone, "--hosts"), (unwatched, "--domains auto")] {
            let failure = check_growth(&refused).expect_err(why);
            assert!(failure.text().contains(why), "{}", failure.text());
        }
    }

    #[test]
    fn units_bound_the_daemons_of_an_instance_with_copies() {
        let most = |replicas: &str, began: u16| {
            let before = instance(&[(Key::Domains, "auto"), (Key::Replicas, replicas)]);
            daemons_most(&InstanceRecord { began: Some(began), ..before })
        };
        assert_eq!([most("1", 3), most("2", 3), most("2", 96)], [DAEMON_COUNT_MAX, 96, 96]);
        assert_eq!([most("3", 3), most("3", 96), most("3", 97)], [96, 96, 99]);
        assert_eq!([most("2", 200), most("3", 1024)], [204, DAEMON_COUNT_MAX]);
        let copied = instance(&[(Key::Domains, "auto"), (Key::Replicas, "2")]);
        assert!(with_hosts(&copied, &lines(&["c:93 10.0.0.3"])).is_ok());
        let failure =
            with_hosts(&copied, &lines(&["c:94 10.0.0.3"])).expect_err("there is no place");
        assert!(failure.text().contains("at most 96 daemons"), "{}", failure.text());
    }
}

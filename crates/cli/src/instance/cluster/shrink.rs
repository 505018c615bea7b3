//! Daemons that leave an instance that runs, with all that they have (`forebay shrink`).
//!
//!   checked, unused --> told to leave --> empty, ended --> recorded --> removed
//!
//! The metadata services of these daemons go to others, and so do their copies of file data and their
//! votes, while programs go on. Each daemon ends by itself once nothing needs it.
//!
//! Invariants
//! 1. The record has a host as one that left when its daemons have left the membership and are dead.
//!    Nothing starts them then, and their numbers are used no more.
//! 2. A command that is killed leaves an instance that can be asked again: daemons leave on, one that
//!    died meanwhile is started, and the files of a host that left are removed
//!    (`InstanceRecord::with_files`).
//! 3. Other commands may change the instance while daemons leave. None of them adds or removes daemons.

use super::replace::{
    LOOK_TIME, PAUSE, await_states, look, membership, recorded, secret, tell, without_leader,
};
use super::{RECORD, call_without_result, micros, on_each, start_on_host, stop_host, timeout};
use crate::commands::plural;
use crate::failure::{Failure, Result, USAGE};
use crate::instance::host::{self, StopPhase};
use crate::instance::inspect::DaemonState;
use crate::instance::{inspect, mounts, survivors};
use crate::process::progress::Progress;
use crate::state::directories::{self, InstanceLock};
use crate::state::records::{self, DaemonRecord, HostEntry, HostRecord, InstanceRecord};
use config::InstanceConfig;
use config::choice::SameDomain;
use config::control::{MemberStatus, MembershipStatus};
use serde_json::json;
use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

/// Sessions of a mount that was ended are over by then.
const SESSIONS_TIME: Duration = Duration::from_secs(2);
/// Looks in which a daemon that leaves is dead and has not left, until the command gives up: those of
/// several hosts are not of one moment.
const DEAD_LOOKS: u32 = 5;

/// Daemons that have left.
#[derive(Debug)]
pub(crate) struct ShrinkOutcome {
    /// Their numbers.
    pub(crate) daemons: Vec<u16>,
    /// Number of those that the instance has.
    pub(crate) present: u16,
    /// Hosts that could not be told, and why.
    pub(crate) unaware: Vec<Failure>,
}

/// Has the daemons on the hosts `nodes` leave the instance `name`, and removes what they had there.
///
/// # Errors
/// There is no such instance or node; others need what it has; programs use the instance there; nothing
/// moves for as long as `timeout`.
pub(crate) fn shrink(name: &str, nodes: &[String], timeout: Duration) -> Result<ShrinkOutcome> {
    let run = directories::run(name)?;
    survivors::await_record(name)?;
    recorded(name, &run)?;
    let lock = InstanceLock::take(name, timeout)?;
    // Another command may have changed it meanwhile.
    let instance = recorded(name, &run)?;
    let firsts = leavers(&instance, nodes)?;
    begin(instance, &firsts, &run, timeout)?;
    drop(lock);
    await_departure(name, &firsts, &run, timeout)?;
    let _lock = InstanceLock::take(name, timeout)?;
    finish(recorded(name, &run)?, &firsts, &run, timeout)
}

/// The first daemons of the hosts that are to leave.
fn leavers(instance: &InstanceRecord, nodes: &[String]) -> Result<BTreeSet<u16>> {
    let name = &instance.name;
    let refuse = |text: String| Err(Failure::with_code(USAGE, text));
    let (mut firsts, mut over) = (BTreeSet::new(), None);
    for node in nodes {
        let is_it = |entry: &&HostEntry| entry.host == *node && !node.is_empty();
        // Its daemons have left, and the command was killed then.
        let unfinished = instance.left.iter().filter(|entry| !entry.daemons.is_empty());
        if let Some(entry) = instance.hosts.iter().chain(unfinished).find(is_it) {
            firsts.insert(entry.first);
        } else if instance.left.iter().any(|entry| is_it(&entry)) {
            over = Some(node);
        } else {
            let hosts: Vec<&str> = instance.hosts.iter().map(|entry| &*entry.host).collect();
            let hosts = hosts.join(", ");
            return refuse(format!("no such node: {node}: instance {name} runs on {hosts}"));
        }
    }
    // Where an earlier command was killed some of them may have left.
    match over {
        Some(node) if firsts.is_empty() => {
            refuse(format!("{node} has left instance {name} already"))
        }
        _ => Ok(firsts),
    }
}

fn leaving<'a>(
    instance: &'a InstanceRecord,
    firsts: &'a BTreeSet<u16>,
) -> impl Iterator<Item = &'a HostEntry> {
    instance.hosts.iter().filter(|entry| firsts.contains(&entry.first))
}

fn numbers<'a>(hosts: impl Iterator<Item = &'a HostEntry>) -> BTreeSet<u16> {
    hosts.flat_map(|entry| entry.first..entry.first + entry.count).collect()
}

/// Refuses hosts without which the instance cannot be, or whose data would be lost.
fn check_shrink(instance: &InstanceRecord, firsts: &BTreeSet<u16>) -> Result<()> {
    for entry in leaving(instance, firsts) {
        let refuse = |why: &str| {
            let text = format!("{} cannot leave instance {}: {why}", entry.host, instance.name);
            Err(Failure::with_code(USAGE, text))
        };
        if instance.config.replicas < 2 || instance.config.followers == 0 {
            return refuse(
                "what it has would be lost, as data and metadata have one copy: only an instance that \
                 was started with --replicas 2 --followers 1 or more shrinks",
            );
        }
        if instance.config.has_writeback() {
            return refuse(
                "files that were found in the directory of --backing have one copy, and their changes \
                 would be lost",
            );
        }
    }
    Ok(())
}

/// Why daemons cannot leave at all, as the others are up now.
fn too_few(
    known: &MembershipStatus,
    config: &InstanceConfig,
    daemons: &BTreeSet<u16>,
) -> Option<String> {
    let members = (0..).zip(&known.members);
    let stay = members.filter(|(index, one)| one.presence == "up" && !daemons.contains(index));
    let domains: Vec<u32> = stay.map(|(_, member)| member.domain).collect();
    let (found, what) = match config.same_domain {
        SameDomain::On => (domains.len(), "daemon"),
        SameDomain::Off => (domains.into_iter().collect::<BTreeSet<_>>().len(), "failure domain"),
    };
    let (replicas, followers) = (config.replicas, config.followers);
    let needed = replicas.max(followers + 1);
    ((found as u64) < needed).then(|| {
        let found = plural(found as u64, what);
        format!(
            "{found} would be up, and --replicas {replicas} --followers {followers} need {needed}"
        )
    })
}

/// A daemon that leaves and is none of these.
pub(super) fn other_leaver(known: &MembershipStatus, daemons: &BTreeSet<u16>) -> Option<u16> {
    let mut members = (0..).zip(&known.members);
    let other = members.find(|(index, member)| member.leaves && !daemons.contains(index));
    other.map(|(index, _)| index)
}

/// That a daemon leaves already, as a refusal of another change of daemons.
pub(super) fn one_at_a_time(leaver: u16) -> Failure {
    let why =
        "one change at a time: wait for the end of the command that has it leave, or give it again";
    Failure::at("busy", format!("daemon {leaver} leaves"), why)
}

fn member(known: &MembershipStatus, daemon: u16) -> Option<&MemberStatus> {
    known.members.get(usize::from(daemon))
}

/// Has the daemons leave, unless they do already: once the membership lets them.
fn begin(
    instance: InstanceRecord,
    firsts: &BTreeSet<u16>,
    run: &Path,
    timeout: Duration,
) -> Result<()> {
    let here: Option<HostRecord> = records::load(run, host::RECORD)?;
    check_shrink(&instance, firsts)?;
    let daemons = numbers(leaving(&instance, firsts));
    if daemons.is_empty() {
        return Ok(());
    }
    await_states(&instance, run, timeout, |states| {
        let Some(known) = membership(states) else { return Ok(Some(without_leader())) };
        why_not_yet(known, &instance.config, &daemons)
    })?;
    let instance = revive(instance, firsts, run)?;
    let states = look(&instance, run, Instant::now() + LOOK_TIME)?;
    let has_left = |entry: &HostEntry| {
        let known = membership(&states);
        numbers(std::iter::once(entry)).into_iter().all(|daemon| {
            let member = known.and_then(|known| member(known, daemon));
            member.is_some_and(|member| member.presence == "left")
        })
    };
    for entry in leaving(&instance, firsts).filter(|entry| !has_left(entry)) {
        let request = json!({ "name": instance.name, "timeout_us": micros(timeout) }).to_string();
        call_without_result(&instance, entry, "daemon-idle", &request)?;
    }
    for daemon in daemons {
        await_states(&instance, run, timeout, |states| {
            let Some(known) = membership(states) else { return Ok(Some(without_leader())) };
            let one = member(known, daemon);
            if one.is_some_and(|one| one.leaves || one.presence == "left") {
                return Ok(None);
            }
            ask(&instance, here.as_ref(), daemon)?;
            Ok(Some(Failure::at("not told to leave", format!("daemon {daemon}"), "try again")))
        })?;
    }
    Ok(())
}

/// Why the membership does not let daemons leave now; `None`: it does.
///
/// # Errors
/// It will not.
fn why_not_yet(
    known: &MembershipStatus,
    config: &InstanceConfig,
    daemons: &BTreeSet<u16>,
) -> Result<Option<Failure>> {
    if let Some(other) = other_leaver(known, daemons) {
        return Err(one_at_a_time(other));
    }
    let all = || daemons.iter().filter_map(|&daemon| Some((daemon, member(known, daemon)?)));
    let stays = |one: &MemberStatus| !one.leaves && one.presence != "left";
    if !all().any(|(_, one)| stays(one)) {
        return Ok(None);
    }
    if known.single_files {
        let why = "no daemon can leave: directories have 'forebay layout set --replicas 1', and a daemon \
                   that leaves may have the only copy of a file";
        return Err(Failure::with_code(USAGE, why.to_owned()));
    }
    if let Some(why) = too_few(known, config, daemons) {
        return Err(Failure::with_code(USAGE, format!("the instance would be too small: {why}")));
    }
    if let Some((daemon, _)) = all().find(|(_, one)| stays(one) && one.presence != "up") {
        let why = "the others do not reach it: start it ('forebay start'), or put another node in its \
                   place ('forebay replace')";
        return Ok(Some(Failure::at("down", format!("daemon {daemon}"), why)));
    }
    Ok((known.services_moving > 0 && !all().any(|(_, one)| one.leaves)).then(|| {
        let services = plural(known.services_moving, "metadata service");
        let why = format!("{services} go to other daemons: try again when they are there");
        Failure::at("busy", "the instance changes", why)
    }))
}

/// Starts those daemons again that an earlier command had leave, and that died.
fn revive(
    mut instance: InstanceRecord,
    firsts: &BTreeSet<u16>,
    run: &Path,
) -> Result<InstanceRecord> {
    let states = look(&instance, run, Instant::now() + LOOK_TIME)?;
    let known = membership(&states);
    let is_dead = |state: &DaemonState| {
        let member = known.and_then(|known| member(known, state.index));
        !state.is_alive && member.is_some_and(|member| member.leaves)
    };
    let of_hosts = instance.hosts.iter().zip(&states);
    let dead = of_hosts.filter(|(entry, states)| {
        let mut states = states.iter().flatten();
        firsts.contains(&entry.first) && states.any(is_dead)
    });
    let dead: BTreeSet<u16> = dead.map(|(entry, _)| entry.first).collect();
    if dead.is_empty() {
        return Ok(instance);
    }
    let is_dead = |entry: &HostEntry| dead.contains(&entry.first);
    instance.hosts.iter_mut().filter(|it| is_dead(it)).for_each(|entry| entry.starts += 1);
    records::store(run, RECORD, &instance)?;
    let secret = secret(run)?;
    let started = on_each(&instance, "starting", |entry, progress| {
        is_dead(entry)
            .then(|| start_on_host(&instance, entry, (&secret, None), progress))
            .transpose()
            .map_err(|failure| lost_leaver(&failure, &entry.host))
    })?;
    for (entry, host) in instance.hosts.iter_mut().zip(started) {
        let Some(host) = host else { continue };
        entry.daemons = host.daemons;
        entry.daemons.iter_mut().for_each(DaemonRecord::forget_start);
    }
    records::store(run, RECORD, &instance)?;
    tell(&instance, |_| false)?;
    Ok(instance)
}

/// Why a daemon that leaves cannot be started again, and what helps if its node is gone.
fn lost_leaver(failure: &Failure, host: &str) -> Failure {
    Failure::of_lines(&format!(
        "{}\nif {host} is lost with what it had, give 'forebay replace {host}' and then this command \
         again",
        failure.text()
    ))
}

/// Asks all daemons that answer to have one leave.
fn ask(instance: &InstanceRecord, here: Option<&HostRecord>, daemon: u16) -> Result<()> {
    on_each(instance, "connecting", |entry, _| {
        let asked = if here.is_some_and(|host| host.first == entry.first) {
            inspect::leave_daemon(&instance.name, daemon, LOOK_TIME)
        } else {
            let timeout_us = micros(LOOK_TIME);
            let request =
                json!({ "name": instance.name, "daemon": daemon, "timeout_us": timeout_us });
            call_without_result(instance, entry, "daemon-leave", &request.to_string())
        };
        // One that is dead has none leave.
        let _ = asked;
        Ok(())
    })
    .map(drop)
}

/// How far daemons are that leave.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Departure {
    /// Services and copies that they have yet; `None`: no leader answers.
    held: Option<u64>,
    /// Changes of the membership, and bytes of copies that were made anew at all daemons.
    epoch: u64,
    filled: u64,
    /// Those that are alive, and of the others those that have not left.
    alive: Vec<u16>,
    dead: Vec<u16>,
    /// All have left the membership.
    have_left: bool,
}

impl Departure {
    fn of(
        instance: &InstanceRecord,
        firsts: &BTreeSet<u16>,
        states: &[Result<Vec<DaemonState>>],
    ) -> Departure {
        let known = membership(states);
        let one = |daemon: u16| known.and_then(|known| member(known, daemon));
        let has_left = |daemon: u16| one(daemon).is_some_and(|it| it.presence == "left");
        let all = || states.iter().flatten().flatten();
        let mut departure = Departure { have_left: true, ..Departure::default() };
        departure.held = known.map(|_| 0);
        departure.epoch = known.map_or(0, |known| known.epoch);
        departure.filled =
            all().filter_map(|state| Some(state.status.as_ref()?.metrics.unit_bytes_filled)).sum();
        for daemon in numbers(leaving(instance, firsts)) {
            let state = all().find(|state| state.index == daemon);
            departure.have_left &= has_left(daemon);
            if state.is_some_and(|state| state.is_alive) {
                departure.alive.push(daemon);
            } else if state.is_some() && known.is_some() && !has_left(daemon) {
                departure.dead.push(daemon);
            }
            let held = one(daemon).map_or(0, |it| it.held);
            departure.held = departure.held.map(|sum| sum + held);
        }
        departure
    }

    const fn is_over(&self) -> bool {
        self.have_left && self.alive.is_empty()
    }

    /// Why nothing has changed for long.
    fn stalled(&self) -> Failure {
        match self.held {
            None => without_leader(),
            Some(_) if self.have_left => {
                let why = "programs on their hosts use the instance: end them, and give the command \
                           again";
                Failure::at("not ended", "daemons that have left", why)
            }
            Some(held) => {
                let why = format!(
                    "nothing moved for as long as --timeout, and {held} services and copies are left: \
                     'forebay status' shows what is missing; give the command again to wait on"
                );
                Failure::at("not ended", "the daemons leave on", why)
            }
        }
    }
}

/// A line about how far it is, of so many services and copies, after this time.
fn progress_line(held: u64, most: u64, elapsed: Duration) -> String {
    let done = most.saturating_sub(held);
    let left = match done {
        0 => String::new(),
        done => format!(", about {} s", elapsed.as_secs().saturating_mul(held) / done),
    };
    format!("{held} of {most} services and copies have to move{left} ")
}

/// Waits until the daemons have left and ended, as long as something changes.
fn await_departure(
    name: &str,
    firsts: &BTreeSet<u16>,
    run: &Path,
    timeout: Duration,
) -> Result<()> {
    let (begun, mut progress) = (Instant::now(), Progress::new("waiting for the others"));
    let (mut last, mut changed, mut dead, mut most) = (Departure::default(), begun, 0, 0);
    loop {
        let instance = recorded(name, run)?;
        let states = look(&instance, run, Instant::now() + LOOK_TIME)?;
        let now = Departure::of(&instance, firsts, &states);
        if now.is_over() {
            return Ok(());
        }
        dead = if now.dead.is_empty() { 0 } else { dead + 1 };
        if let Some(daemon) = now.dead.first().filter(|_| dead >= DEAD_LOOKS) {
            let why = "it died while it left: give the command again, which starts it";
            return Err(Failure::at("not ended", format!("daemon {daemon}"), why));
        }
        if now != last {
            changed = Instant::now();
        }
        if changed.elapsed() >= timeout {
            return Err(now.stalled());
        }
        if let Some(held) = now.held {
            most = held.max(most);
            progress.show(progress_line(held, most, begun.elapsed()));
        }
        last = now;
        std::thread::sleep(PAUSE);
    }
}

/// Records that the hosts have left, tells all others, and removes what is there of them.
fn finish(
    mut instance: InstanceRecord,
    firsts: &BTreeSet<u16>,
    run: &Path,
    limit: Duration,
) -> Result<ShrinkOutcome> {
    let is_one = |entry: &HostEntry| firsts.contains(&entry.first);
    let (left, hosts): (Vec<_>, Vec<_>) = instance.hosts.drain(..).partition(is_one);
    instance.hosts = hosts;
    instance.left.extend(left);
    records::store(run, RECORD, &instance)?;
    let unaware = tell(&instance, |_| false)?;
    for place in 0..instance.left.len() {
        let Some(entry) = instance.left.get(place).filter(|it| is_one(it)).cloned() else {
            continue;
        };
        let mut progress = Progress::new(format!("removing files on {}", entry.host));
        stop_host(&instance, &entry, StopPhase::All, limit.max(timeout(&instance)), &mut progress)?;
        instance.left.iter_mut().skip(place).take(1).for_each(|it| it.daemons.clear());
        records::store(run, RECORD, &instance)?;
    }
    let daemons = numbers(instance.left.iter().filter(|it| is_one(it))).into_iter().collect();
    Ok(ShrinkOutcome { daemons, present: instance.present(), unaware })
}

/// Ends the mounts of the instance `name` on this host that nobody uses.
///
/// # Errors
/// There is no such instance here; a program uses it.
pub(crate) fn idle_here(name: &str, timeout: Duration) -> Result<()> {
    let run = directories::run(name)?;
    let host: Option<HostRecord> = records::load(&run, host::RECORD)?;
    let host = host.ok_or_else(|| Failure::no_instance(name))?;
    mounts::end_unused(&run, timeout)?;
    let until = Instant::now() + timeout.min(SESSIONS_TIME);
    loop {
        let states = inspect::of_host(&run, &host.daemons, timeout)?;
        let answers = states.iter().filter_map(|state| state.status.as_ref());
        if answers.map(|status| status.metrics.sessions).sum::<u64>() == 0 {
            return Ok(());
        }
        if Instant::now() >= until {
            let why = "programs use it on this host: wait until they end, or end them";
            return Err(Failure::at("in use", format!("instance {name}"), why));
        }
        std::thread::sleep(PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::records::VERSION;
    use config::control::DaemonStatus;
    use config::{Key, Settings, Sources};

    fn config(options: &[(Key, &str)]) -> InstanceConfig {
        let options = options.iter().map(|&(key, text)| (key, text.to_owned()));
        let options = options.chain([(Key::Workers, "1".to_owned())]).collect();
        let settings = Settings::resolve(&Sources { options, ..Sources::default() });
        InstanceConfig::new(&settings.expect("allowed")).expect("complete")
    }

    const COPIED: [(Key, &str); 3] =
        [(Key::Domains, "auto"), (Key::Followers, "1"), (Key::Replicas, "2")];

    /// Hosts a, b and c with two daemons, and d, which has left.
    fn instance(options: &[(Key, &str)]) -> InstanceRecord {
        let entry = |host: &str, first, count| {
            let daemons = (first..first + count).map(DaemonRecord::unknown).collect();
            HostEntry { daemons, ..HostEntry::new(host, "10.0.0.1", first, count) }
        };
        let left = HostEntry { daemons: Vec::new(), ..entry("d", 4, 1) };
        InstanceRecord {
            version: VERSION,
            name: "x".into(),
            uid: 0,
            ssh: Vec::new(),
            config: config(options),
            hosts: vec![entry("a", 0, 1), entry("b", 1, 1), entry("c", 2, 2)],
            began: Some(3),
            left: vec![left],
        }
    }

    fn words(words: &[&str]) -> Vec<String> {
        words.iter().map(|&word| word.to_owned()).collect()
    }

    #[test]
    fn hosts_are_found_that_have_not_left_as_a_whole() {
        let mut instance = instance(&COPIED);
        let found = |of: &InstanceRecord, nodes: &[&str]| {
            leavers(of, &words(nodes)).map(|firsts| firsts.into_iter().collect::<Vec<u16>>())
        };
        assert_eq!(found(&instance, &["c", "b", "c"]).expect("hosts"), [1, 2]);
        // A killed command had some of them leave.
        assert_eq!(found(&instance, &["d", "b"]).expect("one of them"), [1]);
        for (nodes, why) in [
            (&["d"][..], "d has left instance x already"),
            (&["b", "e"], "no such node: e: instance x runs on a, b, c"),
            (&["b", ""], "no such node"),
        ] {
            let failure = found(&instance, nodes).expect_err(why);
            assert!(failure.text().contains(why), "{}", failure.text());
            assert_eq!(failure.code(), USAGE);
        }
        instance.left[0].daemons = vec![DaemonRecord::unknown(4)];
        assert_eq!(found(&instance, &["d"]).expect("files are there"), [4]);
        let firsts = BTreeSet::from([2, 4]);
        assert_eq!(numbers(leaving(&instance, &firsts)), BTreeSet::from([2, 3]));
    }

    #[test]
    fn what_others_need_does_not_leave() {
        let refused = |options: &[(Key, &str)], first: u16| {
            let checked = check_shrink(&instance(options), &BTreeSet::from([first]));
            checked.err().map_or_else(String::new, |failure| failure.text().to_owned())
        };
        assert_eq!(refused(&COPIED, 1), "");
        assert_eq!(refused(&COPIED, 0), "", "that of daemon 0, too");
        let backed = [&COPIED[..], &[(Key::Backing, "/b")]].concat();
        assert_eq!(refused(&COPIED, 4), "", "it has left already");
        for (options, first, why) in [
            (&COPIED[..2], 1, "b cannot leave instance x: what it has would be lost"),
            (&[], 1, "--replicas 2 --followers 1"),
            (&backed, 1, "files that were found in the directory of --backing have one copy"),
        ] {
            let text = refused(options, first);
            assert!(text.contains(why) && text.lines().count() == 1, "{text}");
        }
    }

    /// Daemons in a domain each.
    fn known(presences: &[&str]) -> MembershipStatus {
        let member = |(domain, word): (u32, &&str)| MemberStatus {
            domain,
            presence: (*word).to_owned(),
            leaves: *word == "leaving",
            held: if *word == "leaving" { 7 } else { 0 },
            ..MemberStatus::default()
        };
        let members = (0..).zip(presences).map(member).collect();
        MembershipStatus { epoch: 9, leads: true, members, ..MembershipStatus::default() }
    }

    #[test]
    fn the_membership_says_whether_daemons_may_leave() {
        let of = |presences: &[&str], daemons: &[u16], options: &[(Key, &str)]| {
            let daemons = daemons.iter().copied().collect();
            match why_not_yet(&known(presences), &config(options), &daemons) {
                Ok(None) => String::new(),
                Ok(Some(later)) => format!("later: {}", later.text()),
                Err(never) => never.text().to_owned(),
            }
        };
        let up = ["up"; 4];
        assert_eq!(of(&up, &[1, 2], &COPIED), "");
        assert!(of(&up, &[1, 2, 3], &COPIED).contains("too small: 1 failure domain would be up"));
        let three = [COPIED[0], (Key::Followers, "2"), (Key::Replicas, "2")];
        assert!(of(&up, &[1, 2], &three).contains("--followers 2 need 3"));
        let same = [COPIED[0], COPIED[1], COPIED[2], (Key::SameDomain, "on")];
        assert!(of(&up, &[1, 2, 3], &same).contains("1 daemon would be up"));
        assert!(of(&["up", "up", "down", "up"], &[1, 3], &COPIED).contains("too small"));
        let down = of(&["up", "up", "up", "down"], &[3], &COPIED);
        assert!(down.starts_with("later: down: daemon 3"), "{down}");
        let other = ["up", "leaving", "up", "up"];
        assert!(of(&other, &[3], &COPIED).starts_with("busy: daemon 1 leaves: one change"));
        // The same ones again, of which one was killed, and one has left.
        assert_eq!(of(&other, &[1], &COPIED), "");
        let mut again = known(&["up", "down", "left", "up"]);
        again.members[1].leaves = true;
        let both = BTreeSet::from([1, 2]);
        assert!(matches!(why_not_yet(&again, &config(&COPIED), &both), Ok(None)));
        assert_eq!(other_leaver(&again, &BTreeSet::new()), Some(1));
        let mut single = known(&up);
        single.single_files = true;
        let never = why_not_yet(&single, &config(&COPIED), &both).expect_err("it may have files");
        assert!(never.text().contains("layout set --replicas 1"), "{}", never.text());
        let mut moving = known(&up);
        moving.services_moving = 2;
        let later = why_not_yet(&moving, &config(&COPIED), &both).expect("not for ever");
        assert!(later.is_some_and(|it| it.text().contains("2 metadata services go to")));
    }

    #[test]
    fn daemons_leave_until_they_have_left_and_ended() {
        let (instance, firsts) = (instance(&COPIED), BTreeSet::from([2]));
        let state = |index: u16, is_alive, membership| DaemonState {
            index,
            is_alive,
            ended: None,
            resident: None,
            status: is_alive.then(|| DaemonStatus { membership, ..DaemonStatus::default() }),
        };
        let of = |known: Option<MembershipStatus>, alive: [bool; 2]| {
            let of_c = (2..).zip(alive).map(|(index, is_alive)| state(index, is_alive, None));
            let states = [Ok(vec![state(0, true, known)]), Ok(Vec::new()), Ok(of_c.collect())];
            Departure::of(&instance, &firsts, &states)
        };
        let first = of(Some(known(&["up", "up", "leaving", "leaving"])), [true, true]);
        assert_eq!((first.held, &first.alive[..]), (Some(14), &[2, 3][..]));
        assert!(!first.is_over() && first.dead.is_empty() && !first.have_left);
        assert!(first.stalled().text().contains("14 services and copies are left"));
        let one = of(Some(known(&["up", "up", "left", "leaving"])), [false, false]);
        assert_eq!((one.held, &one.alive[..], &one.dead[..]), (Some(7), &[][..], &[3][..]));
        let used = of(Some(known(&["up", "up", "left", "left"])), [false, true]);
        assert!(!used.is_over() && used.stalled().text().contains("programs on their hosts"));
        let unknown = of(None, [false, false]);
        assert!(unknown.held.is_none() && unknown.dead.is_empty() && !unknown.is_over());
        assert!(unknown.stalled().text().starts_with("no majority"));
        assert!(of(Some(known(&["up", "up", "left", "left"])), [false, false]).is_over());
        // Another command has recorded it meanwhile.
        let states = [Ok(vec![state(0, true, Some(known(&["up"])))])];
        assert!(Departure::of(&instance, &BTreeSet::from([4]), &states).is_over());
    }

    #[test]
    fn the_time_that_is_left_follows_from_what_has_moved() {
        let line = |held, seconds| progress_line(held, 100, Duration::from_secs(seconds));
        assert_eq!(line(100, 9), "100 of 100 services and copies have to move ");
        assert_eq!(line(75, 10), "75 of 100 services and copies have to move, about 30 s ");
        assert_eq!(line(0, 10), "0 of 100 services and copies have to move, about 0 s ");
    }
}

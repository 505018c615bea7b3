//! `forebay status`: the daemons of an instance, their space, and its settings.

use crate::command_line::{with_json, with_name, with_settings};
use crate::commands::{files_and_names, human, painted, plural, print_json, table};
use crate::failure::{FAILED, Result};
use crate::instance::inspect::{
    DaemonReport, copies_state, membership, query_time, services, slow_targets,
};
use crate::instance::overview::{self, DeadWriteback, Overview};
use crate::instance::{exposition, jobs, thrashing};
use crate::state::settings;
use anstyle::{AnsiColor, Style};
use clap::{Arg, ArgAction, ArgMatches, Command};
use config::Key;
use config::control::{SlowTarget, WritebackReport};
use config::metrics::DaemonSample;
use std::collections::{BTreeMap, BTreeSet};

const EXAMPLES: &str = "\
Examples:
  forebay status a          the instance 'a'
  forebay status --json

The daemons of all hosts are asked at the same time, those of other hosts by ssh, for 3 seconds unless
--timeout says otherwise. The exit code is 1 if a daemon is dead or its host does not answer; 'forebay
start' restarts dead daemons. Mounts of this host are listed too: 'leaving' ones were unmounted with
--lazy and are still in use; the program of a 'dead' one was killed, and 'forebay umount' removes it.";

const GOOD: Style = AnsiColor::Green.on_default().bold();
const BAD: Style = AnsiColor::Red.on_default().bold();

pub(crate) fn command() -> Command {
    let command = Command::new("status").about("Show the daemons of an instance and their space");
    let command = command.after_long_help(EXAMPLES).arg(
        Arg::new("prometheus")
            .long("prometheus")
            .action(ArgAction::SetTrue)
            .conflicts_with("json")
            .help("Print the metrics as text for Prometheus; docs/metrics.md lists them"),
    );
    let command = command.arg(exposition::top_jobs_option());
    with_json(with_name(with_settings(command, &[Key::Name, Key::Timeout])))
}

pub(crate) fn run(given: &ArgMatches) -> Result<u8> {
    let settings = settings::resolve(given)?;
    let name = settings.word(Key::Name);
    // Restarts a writeback daemon that was killed.
    let overview = overview::take(name, query_time(&settings), DeadWriteback::Restart)?;
    let (reports, config) = (&overview.inspection.daemons, &overview.inspection.config);
    let writeback = overview.writeback.as_ref();
    if given.get_flag("prometheus") {
        let (jobs, _) = jobs::list(name, query_time(&settings)).unwrap_or_default();
        out!("{}", exposition::text(&overview, &jobs, exposition::top_jobs(given)));
    } else if given.get_flag("json") {
        print_json(&overview.to_json(|_| true));
    } else {
        out_as_is!("{}\n", summary_line(&overview));
        out!("{}", as_table(reports));
        reports.iter().filter_map(ended_line).for_each(|line| outln!("{line}"));
        reports.iter().filter_map(notice_line).for_each(|line| outln!("{line}"));
        membership_lines(reports).iter().for_each(|line| outln!("{line}"));
        follower_lines(reports).iter().for_each(|line| outln!("{line}"));
        if config.replicas > 1 {
            replica_lines(reports, config.replicas).iter().for_each(|line| outln!("{line}"));
        }
        for one in slow_targets(reports) {
            outln!("{}", painted(BAD, &slow_line(&one)));
        }
        for one in thrashing::of_now(reports) {
            outln!("{}", painted(BAD, &one.line()));
        }
        let stripe_size = human(Some(config.stripe_size));
        outln!(
            "at {}, stripe size {stripe_size}, spread {}, placement {}, {}",
            config.at,
            config.spread,
            config.placement,
            plural(config.workers, "worker")
        );
        reports.iter().filter_map(watermarks_line).for_each(|line| outln!("{line}"));
        for (mount, state) in &overview.mounts {
            let (at, pid) = (mount.at.display(), mount.process.pid);
            let only =
                if mount.namespace.is_some() { ", for commands of 'forebay run' only" } else { "" };
            outln!("mount {at} by process {pid}: {}{only}", state.word());
        }
        if let Some(profile) = &config.profile {
            outln!("{}", profile_line(profile, reports));
        }
        if let Some(status) = writeback {
            outln!("{}", writeback_line(status));
            for (path, what) in status.failures.iter().chain(&status.conflicted) {
                outln!("  {}: {what}", path.display());
            }
        }
    }
    // Also with --json, whose consumer finds the hosts as daemons without a state.
    overview.inspection.failures.iter().for_each(|text| errln!("forebay status: {text}"));
    Ok(if overview.is_healthy() { 0 } else { FAILED })
}

/// The instance in one line.
fn summary_line(overview: &Overview) -> String {
    let (name, reports) = (&overview.name, &overview.inspection.daemons);
    let count = |state: Option<bool>| reports.iter().filter(|one| one.is_alive() == state).count();
    let daemons = |count: usize| plural(count as u64, "daemon");
    let (dead, unknown) = (count(Some(false)), count(None));
    let silent = reports.iter().filter(|one| one.is_alive() == Some(true));
    let silent = silent.filter(|one| one.status().is_none()).count();
    let mut health: Vec<String> = Vec::new();
    let advice = format!("dead (restart with 'forebay start {name}')");
    for (count, what) in [
        (dead, advice.as_str()),
        (unknown, "on hosts that do not answer"),
        (silent, "without an answer"),
    ] {
        if count > 0 {
            health.push(format!("{} {what}", daemons(count)));
        }
    }
    let health = match (health.is_empty(), overview.is_healthy()) {
        (true, true) => painted(GOOD, "healthy"),
        (true, false) => painted(BAD, "no daemon"),
        (false, _) => painted(BAD, &health.join(", ")),
    };
    let hosts: BTreeSet<&str> = reports.iter().map(|one| one.host.as_str()).collect();
    let mut line = format!(
        "instance {name}: {health}, {} on {}",
        daemons(reports.len()),
        plural(hosts.len() as u64, "host")
    );
    let sum = |one: fn(&DaemonSample) -> u64| -> u64 {
        reports.iter().filter_map(|daemon| daemon.status().map(|status| one(&status.metrics))).sum()
    };
    let tier = |total: u64, free: u64| {
        let used = total.saturating_sub(free);
        format!("{} of {}", human(Some(used)), human(Some(total)))
    };
    if reports.iter().any(|one| one.status().is_some()) {
        line += &format!(
            ", {}, memory {}",
            // Without the root directory.
            plural(sum(|state| state.files).saturating_sub(1), "file"),
            tier(sum(|state| state.memory_total), sum(|state| state.memory_free))
        );
        let ssd = sum(|state| state.ssd_total);
        if ssd > 0 {
            line += &format!(", SSD {}", tier(ssd, sum(|state| state.ssd_free)));
        }
    }
    if sum(|state| state.log_full) > 0 {
        line += &format!(", {}", painted(BAD, "device full: only reads and removals"));
    }
    let damaged = sum(|state| state.pages_damaged);
    if damaged > 0 {
        let pages = format!("{} damaged on the SSD", plural(damaged, "page"));
        line += &format!(", {}", painted(BAD, &pages));
    }
    match overview.writeback.as_ref().map(|report| report.metrics.dirty) {
        Some(0) => line += ", nothing dirty",
        Some(dirty) => line += &format!(", {} dirty", files_and_names(dirty)),
        None => {}
    }
    line
}

/// The state of a daemon, for people.
fn state_word(one: &DaemonReport) -> &'static str {
    match (one.is_alive(), one.status()) {
        (None, _) => "unreachable",
        (Some(true), None) => "no answer",
        (Some(true), Some(_)) => "alive",
        (Some(false), _) => "dead",
    }
}

/// Why a dead daemon ended.
fn ended_line(one: &DaemonReport) -> Option<String> {
    let why = one.state.as_ref()?.ended.as_ref()?;
    Some(format!("daemon {} ended: {why}", one.daemon.index))
}

/// A notice of a daemon for its user.
fn notice_line(one: &DaemonReport) -> Option<String> {
    let notice = &one.status()?.notice;
    (!notice.is_empty()).then(|| format!("daemon {}: {notice}", one.daemon.index))
}

/// The membership on which the daemons agree, and those that are down in it.
fn membership_lines(reports: &[DaemonReport]) -> Vec<String> {
    let Some(known) = membership(reports) else { return Vec::new() };
    let present = || known.members.iter().filter(|member| member.presence != "left");
    let domains: BTreeSet<u32> = present().map(|member| member.domain).collect();
    let leads = |one: &&DaemonReport| {
        let own = one.status().and_then(|status| status.membership.as_ref());
        own.is_some_and(|own| own.leads && own.epoch == known.epoch)
    };
    let leader = match reports.iter().find(leads) {
        Some(one) => format!("led by daemon {}", one.daemon.index),
        None => "without a leader that answers".to_owned(),
    };
    let mut lines = vec![format!(
        "membership {}: {} in {}, {leader}",
        known.epoch,
        plural(present().count() as u64, "daemon"),
        plural(domains.len() as u64, "failure domain")
    )];
    let down = known.members.iter().enumerate().filter(|(_, member)| member.presence == "down");
    lines.extend(down.map(|(index, _)| {
        painted(BAD, &format!("daemon {index} is down: the other daemons do not reach it"))
    }));
    let leaving = known.members.iter().enumerate().filter(|(_, member)| member.leaves);
    lines.extend(leaving.map(|(index, member)| {
        let held = member.held;
        format!("daemon {index} leaves: {held} services and copies of units are still there")
    }));
    lines
}

/// The copies of metadata logs, and the services that have none.
fn follower_lines(reports: &[DaemonReport]) -> Vec<String> {
    let services = services(reports);
    if services.is_empty() {
        return Vec::new();
    }
    let with = services.iter().filter(|it| it.has_copy()).count();
    let without = services.iter().filter(|it| !it.has_copy());
    let followers = || services.iter().flat_map(|it| &it.followers).filter(|it| it.is_in_sync);
    let furthest = followers().max_by_key(|it| (it.lag_bytes, it.lag_records));
    let mut line = format!(
        "{} of {} have followers in sync",
        with,
        plural(services.len() as u64, "metadata service")
    );
    if let Some(one) = furthest {
        line += &format!(
            ", at most {} behind ({})",
            plural(one.lag_records, "record"),
            human(Some(one.lag_bytes))
        );
    }
    let mut owners: BTreeMap<u16, Vec<String>> = BTreeMap::new();
    for one in without {
        owners.entry(one.owner).or_default().push(one.service.to_string());
    }
    let lost = owners.into_iter().map(|(owner, list)| {
        let (word, verb) = if list.len() == 1 { ("service", "has") } else { ("services", "have") };
        let list = list.join(", ");
        let text = format!(
            "{word} {list} of daemon {owner} {verb} no copy: fsync does not wait for one, and a loss of \
             the daemon loses its files"
        );
        painted(BAD, &text)
    });
    let unserved = services.iter().filter_map(|it| {
        let why = it.unserved.as_ref()?;
        let text = format!(
            "service {} of daemon {} is not served: {why}; its files wait until another daemon that has \
             all of it takes it over, or this one can",
            it.service, it.owner
        );
        Some(painted(BAD, &text))
    });
    std::iter::once(line).chain(lost).chain(unserved).collect()
}

/// The copies of file data, of which each unit should have so many, and those for files of some
/// directories fewer.
fn replica_lines(reports: &[DaemonReport], replicas: u64) -> Vec<String> {
    let state = copies_state(reports);
    let (copies, fewer) = match replicas {
        2 => ("2 copies", "fewer than 2 copies"),
        _ => ("all their copies", "too few copies"),
    };
    let mut line = match (state.units_degraded, state.units_lost) {
        (0, 0) => format!("all units of file data have {copies} in sync"),
        (0, _) => format!("all other units of file data have {copies} in sync"),
        (degraded, _) => {
            let (units, verb) =
                (plural(degraded, "unit"), if degraded == 1 { "has" } else { "have" });
            painted(BAD, &format!("{units} of file data {verb} {fewer} in sync"))
        }
    };
    line += &format!(", {} copied anew", human(Some(state.bytes_filled)));
    if let Some(progress) = state.progress() {
        line += &format!(", {progress}");
    }
    if state.repairs > 0 {
        line += &format!(", {} repaired from another copy", plural(state.repairs, "range"));
    }
    let lost = state.units_lost;
    let down = (lost > 0).then(|| {
        let (units, verb) = (plural(lost, "unit"), if lost == 1 { "is" } else { "are" });
        painted(
            BAD,
            &format!(
                "{units} of file data {verb} out of reach, as all daemons with their copies are down: \
                 reading or writing there is an error ('forebay lost')"
            ),
        )
    });
    let gone = (state.units_gone > 0).then(|| {
        let units = plural(state.units_gone, "unit");
        let text = "lost all copies: files from before have errors there ('forebay lost')";
        painted(BAD, &format!("{units} of file data {text}"))
    });
    down.into_iter().chain(gone).chain([line]).collect()
}

fn slow_line(one: &SlowTarget) -> String {
    let rate = |bytes: u64| format!("{}/s", human(Some(bytes)));
    format!(
        "target {} of pool {} is slow: {}, where the targets of the pool reach {}; new files avoid it",
        one.target,
        one.pool,
        rate(one.bytes_per_second),
        rate(one.peers_bytes_per_second)
    )
}

/// Figures of the access profile from this host's daemons.
fn profile_line(name: &str, reports: &[DaemonReport]) -> String {
    let sum = |one: fn(&DaemonSample) -> u64| -> u64 {
        reports.iter().filter_map(|daemon| daemon.status().map(|status| one(&status.metrics))).sum()
    };
    let recorded = sum(|state| state.profile_recorded);
    let mut line = format!("profile {name}: {} recorded", plural(recorded, "file"));
    let listed = sum(|state| state.profile_listed);
    if listed > 0 {
        let hits = sum(|state| state.profile_hits);
        let misses = sum(|state| state.profile_misses);
        line += &format!(
            ", {listed} listed from the last run, {hits} of them read, {misses} others read"
        );
    }
    if sum(|state| state.profile_abandoned) > 0 {
        line += ", prefetch abandoned";
    }
    line
}

/// The automatic watermarks of a daemon, and the reason for their values; `None`: they are set.
fn watermarks_line(one: &DaemonReport) -> Option<String> {
    let state = one.status()?;
    let why = match &*state.watermark_reason {
        "default" => "nothing was demoted yet",
        "bandwidth" => "from the bandwidths of memory and SSD",
        "overflow" => "writers found memory full",
        "refault" => "demoted data was used again",
        "unused" => "more was never needed",
        _ => return None,
    };
    let metrics = &state.metrics;
    let [low, min] = [metrics.demote_low_watermark_bytes, metrics.demote_min_watermark_bytes]
        .map(|bytes| human(Some(bytes)));
    let index = one.daemon.index;
    Some(format!("daemon {index}: low watermark {low}, min watermark {min}: {why}"))
}

fn writeback_line(status: &WritebackReport) -> String {
    let metrics = &status.metrics;
    let mut line = format!(
        "writeback: {} dirty, {} written ({})",
        files_and_names(metrics.dirty),
        metrics.written,
        human(Some(metrics.bytes_written))
    );
    let counts = [
        (metrics.waiting, "waiting"),
        (metrics.failed, "failed"),
        (metrics.conflicts, "in conflict"),
    ];
    for (count, what) in counts.into_iter().filter(|(count, _)| *count > 0) {
        line += &format!(", {count} {what}");
    }
    if let Some(error) = &status.error {
        line += &format!(": {error}");
    }
    line
}

fn as_table(reports: &[DaemonReport]) -> String {
    let head = [
        "daemon", "host", "state", "pid", "memory", "mem free", "ssd", "ssd free", "demoted",
        "files", "address",
    ];
    let dash = || "-".to_owned();
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for one in reports {
        let metrics = one.status().map(|status| &status.metrics);
        let bytes = |value: fn(&DaemonSample) -> u64| metrics.map(value);
        rows.push(vec![
            one.daemon.index.to_string(),
            if one.host.is_empty() { "here".to_owned() } else { one.host.clone() },
            state_word(one).to_owned(),
            if one.daemon.process.pid == 0 { dash() } else { one.daemon.process.pid.to_string() },
            human(bytes(|metrics| metrics.memory_total).or(Some(one.daemon.memory))),
            human(bytes(|metrics| metrics.memory_free)),
            human(bytes(|metrics| metrics.ssd_total).or(Some(one.daemon.ssd))),
            human(bytes(|metrics| metrics.ssd_free)),
            human(bytes(|metrics| metrics.bytes_demoted)),
            metrics.map(|metrics| metrics.files).map_or_else(dash, |files| files.to_string()),
            if one.daemon.tcp.is_empty() { dash() } else { one.daemon.tcp.clone() },
        ]);
    }
    table(&rows)
}

//! Events: what changed from one look at the instance to the next. They are known from the moment on at
//! which the dashboard began.

use super::look::Look;
use crate::commands::plural;
use crate::instance::inspect::{self, DaemonReport, membership};
use crate::instance::thrashing;
use config::activity::JobSummary;
use config::metrics::DaemonSample;
use insight::interference::Interference;
use serde::Serialize;
use std::collections::{BTreeMap, VecDeque};

/// Events that are kept.
const EVENTS_MAX: usize = 200;
/// Events of one look; a thousand daemons that die at once are one more line.
const EVENTS_AT_ONCE_MAX: usize = 40;

/// How much an event matters.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum EventKind {
    /// Something is as it should be again, or usual.
    Info,
    /// Something is slower or fuller than it should be.
    Warn,
    /// Something is lost or does not answer.
    High,
}

/// An event.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(super) struct Event {
    /// When, in milliseconds since 1970.
    pub(super) at_ms: u64,
    /// How much it matters.
    pub(super) kind: EventKind,
    /// One line.
    pub(super) text: String,
}

/// The last events, the newest first.
#[derive(Default)]
pub(super) struct Events {
    all: VecDeque<Event>,
    /// How many there have been.
    added: u64,
}

impl EventKind {
    /// Its name in the history.
    pub(super) fn word(self) -> &'static str {
        match self {
            EventKind::Info => "info",
            EventKind::Warn => "warn",
            EventKind::High => "high",
        }
    }
}

impl Events {
    /// The events, the newest first.
    pub(super) fn all(&self) -> &VecDeque<Event> {
        &self.all
    }

    /// Adds one.
    pub(super) fn add(&mut self, at_ms: u64, kind: EventKind, text: String) {
        self.all.push_front(Event { at_ms, kind, text });
        self.all.truncate(EVENTS_MAX);
        self.added += 1;
    }

    /// How many there have been.
    pub(super) fn added(&self) -> u64 {
        self.added
    }

    /// Those after the first `before`, as far as they are kept, the oldest first.
    pub(super) fn since(&self, before: u64) -> impl Iterator<Item = &Event> {
        let count = usize::try_from(self.added.saturating_sub(before)).unwrap_or(usize::MAX);
        self.all.iter().take(count).rev()
    }

    /// Adds what changed between two looks.
    pub(super) fn compare(&mut self, before: &Look, now: &Look) {
        let mut changes = Vec::new();
        jobs(before, now, &mut changes);
        if now.is_stopping {
            changes.into_iter().for_each(|(kind, text)| self.add(now.at_ms, kind, text));
            return;
        }
        daemons(before, now, &mut changes);
        members(before, now, &mut changes);
        slow_targets(before, now, &mut changes);
        thrashing_daemons(before, now, &mut changes);
        short_jobs(before, now, &mut changes);
        copies(before, now, &mut changes);
        writeback(before, now, &mut changes);
        let more = changes.len().saturating_sub(EVENTS_AT_ONCE_MAX);
        for (kind, text) in changes.into_iter().take(EVENTS_AT_ONCE_MAX) {
            self.add(now.at_ms, kind, text);
        }
        if more > 0 {
            self.add(now.at_ms, EventKind::High, format!("and {more} more changes at that time"));
        }
    }
}

impl Events {
    /// Adds jobs that disturb each other now and did not before, and those that do no longer.
    pub(super) fn compare_jobs(
        &mut self,
        at_ms: u64,
        before: &[Interference],
        now: &[Interference],
    ) {
        let has = |all: &[Interference], one: &Interference| {
            let of = |one: &Interference| [&one.host, &one.job, &one.by].map(String::clone);
            all.iter().any(|other| of(other) == of(one))
        };
        for one in now.iter().filter(|one| !has(before, one)).take(EVENTS_AT_ONCE_MAX) {
            self.add(at_ms, EventKind::Warn, one.line());
        }
        for one in before.iter().filter(|one| !has(now, one)).take(EVENTS_AT_ONCE_MAX) {
            let text = format!("job {} is not disturbed by job {} any more", one.job, one.by);
            self.add(at_ms, EventKind::Info, text);
        }
    }
}

type Changes = Vec<(EventKind, String)>;

fn daemons(before: &Look, now: &Look, changes: &mut Changes) {
    let known: BTreeMap<u16, &DaemonReport> =
        before.overview.inspection.daemons.iter().map(|one| (one.daemon.index, one)).collect();
    for one in &now.overview.inspection.daemons {
        let index = one.daemon.index;
        let Some(then) = known.get(&index) else { continue };
        let word = state_word(one);
        if state_word(then) != word {
            let kind = if word == "alive" { EventKind::Info } else { EventKind::High };
            let why = one.state.as_ref().and_then(|state| state.ended.as_ref());
            let why = why.map_or_else(String::new, |why| format!(": {why}"));
            changes.push((kind, format!("daemon {index} is {word}{why}")));
        }
        let [then, now] = [then, one].map(|it| it.status());
        let notice = now.map_or("", |status| status.notice.as_str());
        if !notice.is_empty() && then.is_some_and(|status| status.notice != notice) {
            changes.push((EventKind::Warn, format!("daemon {index}: {notice}")));
        }
        let [Some(then), Some(now)] = [then, now].map(|it| it.map(|status| &status.metrics)) else {
            continue;
        };
        metrics(index, then, now, changes);
    }
}

fn metrics(index: u16, then: &DaemonSample, now: &DaemonSample, changes: &mut Changes) {
    if now.uptime_s < then.uptime_s {
        changes.push((EventKind::Warn, format!("daemon {index} was started again")));
    }
    if now.pages_damaged > then.pages_damaged {
        let pages = now.pages_damaged - then.pages_damaged;
        let text = format!("daemon {index}: {pages} pages on the SSD are damaged");
        changes.push((EventKind::High, text));
    }
    if (now.log_full > 0) != (then.log_full > 0) {
        changes.push(match now.log_full > 0 {
            true => {
                (EventKind::High, format!("daemon {index}: device full: only reads and removals"))
            }
            false => (EventKind::Info, format!("daemon {index}: its device has space again")),
        });
    }
    if now.writers_waiting > 0 && then.writers_waiting == 0 {
        changes.push((EventKind::Warn, format!("daemon {index}: writes wait for space")));
    }
}

/// The state of a daemon, as `forebay status` says it.
fn state_word(one: &DaemonReport) -> &'static str {
    match (one.is_alive(), one.status()) {
        (None, _) => "unreachable",
        (Some(true), None) => "without an answer",
        (Some(true), Some(_)) => "alive",
        (Some(false), _) => "dead",
    }
}

fn jobs(before: &Look, now: &Look, changes: &mut Changes) {
    let (Ok(before), Ok(now)) = (&before.jobs, &now.jobs) else { return };
    let known: BTreeMap<&str, &JobSummary> =
        before.jobs.iter().map(|job| (job.job.as_str(), job)).collect();
    for job in now.jobs.iter().filter(|job| !job.job.is_empty()) {
        let name = &job.job;
        let ran = known.get(name.as_str()).is_some_and(|then| then.ended.is_none());
        match (ran, job.ended.is_none()) {
            (false, true) => changes.push((EventKind::Info, format!("job {name} began"))),
            (true, false) => changes.push((EventKind::Info, format!("job {name} ended"))),
            (false, false) if !known.contains_key(name.as_str()) => {
                changes.push((EventKind::Info, format!("job {name} began and ended")));
            }
            _ => {}
        }
    }
}

/// Daemons that the others do not reach any more, or again.
fn members(before: &Look, now: &Look, changes: &mut Changes) {
    let [then, now] = [before, now].map(|look| membership(&look.overview.inspection.daemons));
    let (Some(then), Some(now)) = (then, now) else { return };
    for (index, (then, now)) in then.members.iter().zip(&now.members).enumerate() {
        match (then.presence == "down", now.presence == "down") {
            (false, true) => {
                let text = format!("daemon {index} is down: the other daemons do not reach it");
                changes.push((EventKind::High, text));
            }
            (true, false) => {
                changes.push((EventKind::Info, format!("daemon {index} takes part again")));
            }
            _ if !then.leaves && now.leaves => {
                changes.push((EventKind::Info, format!("daemon {index} leaves")));
            }
            _ if then.presence != "left" && now.presence == "left" => {
                changes.push((EventKind::Info, format!("daemon {index} has left")));
            }
            _ => {}
        }
    }
}

fn slow_targets(before: &Look, now: &Look, changes: &mut Changes) {
    let all = |look: &Look| inspect::slow_targets(&look.overview.inspection.daemons);
    let [then, now] = [before, now].map(all);
    let has = |all: &[config::control::SlowTarget], pool: &str, target: u16| {
        all.iter().any(|one| one.pool == pool && one.target == target)
    };
    for one in now.iter().filter(|one| !has(&then, &one.pool, one.target)) {
        changes
            .push((EventKind::Warn, format!("target {} of pool {} is slow", one.target, one.pool)));
    }
    for one in then.iter().filter(|one| !has(&now, &one.pool, one.target)) {
        let text = format!("target {} of pool {} is as fast as others again", one.target, one.pool);
        changes.push((EventKind::Info, text));
    }
}

fn thrashing_daemons(before: &Look, now: &Look, changes: &mut Changes) {
    let [then, now] =
        [before, now].map(|look| thrashing::of_now(&look.overview.inspection.daemons));
    let has =
        |all: &[thrashing::ThrashingDaemon], index: u16| all.iter().any(|one| one.daemon == index);
    for one in now.iter().filter(|one| !has(&then, one.daemon)) {
        changes.push((EventKind::Warn, one.line()));
    }
    for one in then.iter().filter(|one| !has(&now, one.daemon)) {
        changes.push((EventKind::Info, format!("daemon {} thrashes no longer", one.daemon)));
    }
}

/// Units of file data that have too few copies, or none.
fn copies(before: &Look, now: &Look, changes: &mut Changes) {
    let [then, now] =
        [before, now].map(|look| inspect::copies_state(&look.overview.inspection.daemons));
    let kinds = [
        (
            (then.units_degraded, now.units_degraded, EventKind::Warn),
            ("they have fewer copies than they should", "all have their copies again"),
        ),
        (
            (then.units_lost, now.units_lost, EventKind::High),
            ("all their copies are down", "none has all its copies down any more"),
        ),
        (
            (then.units_gone, now.units_gone, EventKind::High),
            ("all their copies are lost", "none lost all its copies"),
        ),
    ];
    for ((then, now, kind), (bad, good)) in kinds {
        if now > 0 && then == 0 {
            changes.push((kind, format!("{} of file data: {bad}", plural(now, "unit"))));
        } else if now == 0 && then > 0 {
            changes.push((EventKind::Info, format!("units of file data: {good}")));
        }
    }
}

/// Jobs on hosts that get less than their shares.
fn short_jobs(before: &Look, now: &Look, changes: &mut Changes) {
    let of = |look: &Look| -> BTreeMap<u16, (String, u64)> {
        let all = look.overview.inspection.daemons.iter();
        let short = |one: &DaemonReport| {
            let count = one.status()?.metrics.qos_jobs_short;
            Some((one.daemon.index, (one.host.clone(), count)))
        };
        all.filter_map(short).collect()
    };
    let (then, now) = (of(before), of(now));
    for (daemon, (host, count)) in &now {
        // The home daemon of a host knows its jobs; a single host has no name.
        let place = match host.as_str() {
            "" => String::new(),
            host => format!(" on host {host}"),
        };
        match (then.get(daemon).map_or(0, |one| one.1), *count) {
            (0, 1..) => {
                let text = format!(
                    "{count} of the jobs{place} got less than 80 % of their share in 5 s: 'forebay \
                     qos show' there names them"
                );
                changes.push((EventKind::Warn, text));
            }
            (1.., 0) => {
                let text = format!("all jobs{place} get their shares again");
                changes.push((EventKind::Info, text));
            }
            _ => {}
        }
    }
}

fn writeback(before: &Look, now: &Look, changes: &mut Changes) {
    let [then, now] = [before, now].map(|look| look.overview.writeback.as_ref());
    match (then, now) {
        (Some(_), None) => {
            changes.push((EventKind::High, "the writeback daemon does not answer".to_owned()));
        }
        (None, Some(_)) => {
            changes.push((EventKind::Info, "the writeback daemon answers".to_owned()));
        }
        _ => {}
    }
    let (Some(then), Some(now)) = (then, now) else { return };
    for (path, why) in now.failures.iter().filter(|one| !then.failures.contains(one)) {
        changes.push((EventKind::High, format!("not written back: {}: {why}", path.display())));
    }
    for (path, what) in now.conflicted.iter().filter(|one| !then.conflicted.contains(one)) {
        changes.push((EventKind::Warn, format!("conflict: {}: {what}", path.display())));
    }
    if let Some(error) = now.error.as_ref().filter(|_| then.error != now.error) {
        changes.push((EventKind::High, format!("nothing can be written back: {error}")));
    }
}

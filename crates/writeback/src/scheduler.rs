//! Decides when a round runs.
//!
//! A round runs when a service reports new dirty names or inodes (polled once per second), at once
//! when a client waits for a flush, and after a pause that grows when something failed. `Progress`
//! holds what the daemon reports to commands.

use crate::backends::Backend;
use crate::instance::Instance;
use crate::progress::{self, Progress};
use crate::round::order::JobOrder;
use crate::round::scope::Scope;
use crate::round::{RoundCache, RoundOptions, RoundReport, Trigger, run};
use crate::state::WritebackResult;
use crate::urgent::UrgentRequests;
use config::choice::WritebackVerify;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use wire::errno::Result;

/// Interval at which services are polled, and at which files that are open for writing are checked
/// again.
pub(crate) const TICK: Duration = Duration::from_secs(1);
/// First pause after a failure; each further failure doubles it.
const BACK_OFF: Duration = Duration::from_millis(250);
/// Longest pause after a failure.
const BACK_OFF_MAX: Duration = Duration::from_secs(30);
/// Pause after a round that left work which can continue at once.
const PAUSE: Duration = Duration::from_millis(20);
/// How long a flush waits until kernels forget files that were removed. Files that are open stay
/// aside longer.
const ASIDE_TIMEOUT: Duration = Duration::from_secs(5);
/// Rounds without progress after which a flush fails, if something fails in them.
pub(crate) const STALLED_ROUNDS_MAX: u32 = 3;
/// The same if files only changed meanwhile. Three rounds suffice to give a file another name
/// beside one that others replace.
pub(crate) const CONTENDED_ROUNDS_MAX: u32 = 12;

/// Counts the rounds of a flush that made no progress.
#[derive(Debug, Default)]
struct StalledFlush {
    /// Number of the flush that ended before this one. A further request does not restart the
    /// count.
    after: u64,
    rounds: u32,
}

impl StalledFlush {
    /// Counts a round. True if the flush has failed.
    fn has_failed_after(&mut self, after: u64, done: &WritebackResult<RoundReport>) -> bool {
        if self.after != after {
            *self = StalledFlush { after, rounds: 0 };
        }
        if done.as_ref().is_ok_and(RoundReport::has_progress) {
            self.rounds = 0;
            return false;
        }
        self.rounds += 1;
        let is_contended = done.as_ref().is_ok_and(|report| report.failed == 0);
        self.rounds >= if is_contended { CONTENDED_ROUNDS_MAX } else { STALLED_ROUNDS_MAX }
    }
}

/// The worker thread.
pub(crate) struct Scheduler<'a> {
    pub(crate) instance: &'a dyn Instance,
    pub(crate) news: &'a dyn Fn() -> Result<(Vec<u64>, u64)>,
    pub(crate) backend: &'a dyn Backend,
    pub(crate) urgent: &'a dyn UrgentRequests,
    pub(crate) progress: Arc<Progress>,
    pub(crate) threads: usize,
    pub(crate) idle: Duration,
    /// Whether files are written by sets of jobs (`round::order`).
    pub(crate) is_by_sets: bool,
    pub(crate) verifies: WritebackVerify,
}

impl Scheduler<'_> {
    /// Runs rounds until the daemon stops.
    pub(crate) fn run(&self) {
        let mut cache = RoundCache::default();
        cache.order = self.is_by_sets.then(JobOrder::default);
        let (mut seen, mut due) = (Vec::new(), Instant::now());
        let (mut pause, mut stalled) = (BACK_OFF, StalledFlush::default());
        let mut tick = Instant::now();
        let mut aside_until = None;
        while let Some(number) = self.progress.wait(due.min(tick)) {
            if self.progress.is_leaving() {
                return self.leave(&mut cache);
            }
            if self.progress.take_urgent() {
                self.write_urgent(&mut cache);
            }
            if let Some(flush) = self.progress.next_scoped() {
                self.flush_scope(&flush, &mut cache);
            }
            if Instant::now() < due.min(tick) && !self.progress.is_flushing() {
                continue;
            }
            let is_flush = self.progress.is_flushing();
            tick = Instant::now() + TICK;
            let news = (self.news)();
            let is_new = match &news {
                Ok((numbers, dirty)) => {
                    self.progress.with_report(|report| report.metrics.dirty = *dirty);
                    *numbers != seen && *dirty > 0 && pause == BACK_OFF
                }
                Err(_) => false,
            };
            if !is_flush && !is_new && Instant::now() < due {
                continue;
            }
            seen = news.map(|(numbers, _)| numbers).unwrap_or_default();
            let trigger = if is_flush { Trigger::Flush } else { Trigger::Normal };
            let done = self.round(trigger, &Scope::default(), &mut cache);
            if is_flush && matches!(&done, Ok(report) if report.is_only_aside()) {
                let until = *aside_until.get_or_insert_with(|| Instant::now() + ASIDE_TIMEOUT);
                if Instant::now() < until {
                    std::thread::sleep(PAUSE);
                    continue;
                }
            }
            aside_until = None;
            let is_stalled = !done.as_ref().is_ok_and(RoundReport::has_progress);
            let has_failed = done.as_ref().map_or(true, |report| report.failed > 0);
            due = Instant::now()
                + match &done {
                    _ if has_failed && is_stalled => {
                        let now = pause;
                        pause = (pause * 2).min(BACK_OFF_MAX);
                        now
                    }
                    Ok(report) if report.open > 0 || report.written > 0 => PAUSE,
                    Ok(report) if report.waiting > 0 => TICK,
                    _ => Duration::MAX / 4,
                };
            if !has_failed {
                pause = BACK_OFF;
            }
            if is_flush {
                let has_failed = stalled.has_failed_after(self.progress.settled(), &done);
                self.progress.end_flush(number, &done, has_failed);
            }
        }
    }

    /// The last round.
    fn leave(&self, cache: &mut RoundCache) {
        // A failure leaves files behind and is in the log.
        let _ = self.round(Trigger::Shutdown, &Scope::default(), cache);
        self.progress.has_left();
    }

    /// Runs a round over everything, or over a scope.
    pub(crate) fn round(
        &self,
        trigger: Trigger,
        scope: &Scope,
        cache: &mut RoundCache,
    ) -> WritebackResult<RoundReport> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let nanos = |time: Duration| i64::try_from(time.as_nanos()).unwrap_or(i64::MAX);
        let options = RoundOptions {
            threads: self.threads,
            idle_nanos: nanos(self.idle),
            trigger,
            now: nanos(now),
            verifies: self.verifies,
        };
        let counters = &self.progress.counters;
        let done = run(self.instance, self.backend, (options, scope), cache, counters);
        counters.clear();
        counters.note_round(&done);
        if done.as_ref().is_ok_and(|report| report.written > 0 || report.parts > 0) {
            counters.note_activity();
        }
        if scope.is_only {
            if let Ok(report) = &done {
                self.progress.with_report(|to| progress::add(to, report));
            }
            return done;
        }
        let dirty = (self.news)().map_or(1, |(_, dirty)| dirty);
        self.progress.with_report(|to| {
            to.metrics.dirty = dirty;
            match &done {
                Ok(report) => progress::update(to, report),
                Err(error) => {
                    let text = error.to_string();
                    if to.error.as_ref() != Some(&text) {
                        tracing::error!("nothing can be written back: {text}");
                    }
                    to.error = Some(text);
                }
            }
        });
        done
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flush_fails_after_rounds_without_progress() {
        let round = |written, failed, open| {
            Ok(RoundReport { written, failed, open, ..RoundReport::default() })
        };
        let mut stalled = StalledFlush::default();
        let rounds = |stalled: &mut StalledFlush, after, done: &WritebackResult<RoundReport>| {
            (1..100).find(|_| stalled.has_failed_after(after, done)).expect("it fails")
        };
        assert_eq!(rounds(&mut stalled, 1, &round(0, 1, 0)), STALLED_ROUNDS_MAX);
        // The next flush starts a new count, which is longer while others change files.
        assert_eq!(rounds(&mut stalled, 2, &round(0, 0, 1)), CONTENDED_ROUNDS_MAX);
        assert!(
            !stalled.has_failed_after(3, &round(0, 0, 1))
                && !stalled.has_failed_after(3, &round(1, 1, 1))
        );
        assert_eq!(rounds(&mut stalled, 3, &round(0, 1, 1)), STALLED_ROUNDS_MAX);
        // The directory of a file that fails is written again and again.
        let again = RoundReport { written: 1, directories: 1, failed: 1, ..RoundReport::default() };
        assert_eq!(rounds(&mut stalled, 4, &Ok(again)), STALLED_ROUNDS_MAX);
    }
}

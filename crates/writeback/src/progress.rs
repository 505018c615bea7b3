//! The report to commands, and the flushes that commands request.
//!
//! The worker thread never holds the lock for long, so a file system that hangs stops the worker
//! thread but not the answers to commands.

use crate::rate_limiter::RateLimiter;
use crate::round::scope::Scope;
use crate::round::{RoundCounters, RoundReport};
use crate::state::WritebackResult;
use config::control::WritebackReport;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Maximum number of conflicts that are reported with their paths.
const CONFLICTS_MAX: usize = 100;

/// Status of a flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FlushStatus {
    /// It is in progress.
    Busy,
    /// All that it covers is written.
    Done,
    /// Some of it cannot be written.
    Failed,
}

/// A flush of a part of the tree.
#[derive(Clone, Debug)]
pub(crate) struct ScopedFlush {
    pub(crate) number: u64,
    /// The part.
    pub(crate) scope: Scope,
}

/// A scoped flush and how far it is.
struct ScopedFlushState {
    flush: ScopedFlush,
    status: FlushStatus,
    report: WritebackReport,
}

#[derive(Default)]
struct ProgressState {
    report: WritebackReport,
    /// A client waits for files to be written.
    has_urgent: bool,
    /// Scoped flushes, until their requester has heard how they ended.
    scoped: BTreeMap<u64, ScopedFlushState>,
    scoped_last: u64,
    /// Number of the last full flush that was requested, was done, and failed.
    flush_requested: u64,
    flush_done: u64,
    flush_failed: u64,
    /// The report at the time when the last of them failed.
    failed_report: WritebackReport,
    /// The instance is about to end.
    is_leaving: bool,
    /// The daemon has removed its private files from the backing store.
    has_left: bool,
    is_stopped: bool,
}

impl ProgressState {
    /// Number of the last full flush that has ended.
    fn settled(&self) -> u64 {
        self.flush_done.max(self.flush_failed)
    }
}

/// State shared by the worker thread and the threads that answer commands.
#[derive(Default)]
pub(crate) struct Progress {
    state: Mutex<ProgressState>,
    changed: Condvar,
    pub(crate) counters: RoundCounters,
}

impl Progress {
    /// `rate`: maximum writeback bandwidth in bytes per second; 0: unlimited.
    pub(crate) fn new(rate: u64) -> Progress {
        let counters =
            RoundCounters { rate_limiter: RateLimiter::new(rate), ..RoundCounters::default() };
        Progress { counters, ..Progress::default() }
    }

    fn guard(&self) -> MutexGuard<'_, ProgressState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds what the running round still has to do.
    fn add_running(&self, report: &mut WritebackReport) {
        report.metrics.dirty = report.metrics.dirty.max(self.counters.left.load(Ordering::Relaxed));
        report.metrics.bytes_dirty += self.counters.bytes.load(Ordering::Relaxed);
    }

    /// The current report.
    pub(crate) fn report(&self) -> WritebackReport {
        let mut report = self.guard().report.clone();
        self.add_running(&mut report);
        report.timeline = self.counters.timeline();
        report
    }

    /// Changes the report.
    pub(crate) fn with_report(&self, change: impl FnOnce(&mut WritebackReport)) {
        change(&mut self.guard().report);
    }

    /// Requests a flush; returns its number.
    pub(crate) fn flush(&self) -> u64 {
        let mut state = self.guard();
        state.flush_requested += 1;
        self.changed.notify_all();
        state.flush_requested
    }

    /// Status of full flush `number`.
    pub(crate) fn status(&self, number: u64) -> FlushStatus {
        let state = self.guard();
        match () {
            () if state.flush_done >= number => FlushStatus::Done,
            () if state.flush_failed >= number => FlushStatus::Failed,
            () => FlushStatus::Busy,
        }
    }

    /// The report of the last flush that failed. The current report may already differ.
    pub(crate) fn failed_report(&self) -> WritebackReport {
        self.guard().failed_report.clone()
    }

    /// A client waits for files to be written.
    pub(crate) fn notify_urgent(&self) {
        self.guard().has_urgent = true;
        self.counters.is_interrupted.store(true, Ordering::Relaxed);
        self.changed.notify_all();
    }

    /// Returns whether a client waits for files, and clears that.
    pub(crate) fn take_urgent(&self) -> bool {
        let mut state = self.guard();
        self.counters.is_interrupted.store(false, Ordering::Relaxed);
        std::mem::take(&mut state.has_urgent)
    }

    /// Requests a flush of a part of the tree; returns its number.
    pub(crate) fn flush_scope(&self, scope: Scope) -> u64 {
        let mut state = self.guard();
        state.scoped_last += 1;
        let number = state.scoped_last;
        let flush = ScopedFlush { number, scope };
        let (status, report) = (FlushStatus::Busy, WritebackReport::default());
        state.scoped.insert(number, ScopedFlushState { flush, status, report });
        self.changed.notify_all();
        number
    }

    /// The first scoped flush that has not ended.
    pub(crate) fn next_scoped(&self) -> Option<ScopedFlush> {
        let state = self.guard();
        let busy = state.scoped.values().find(|scoped| scoped.status == FlushStatus::Busy);
        busy.map(|scoped| scoped.flush.clone())
    }

    /// A round of a scoped flush has ended, and `left` names and inodes are still dirty.
    pub(crate) fn report_scoped(&self, number: u64, report: &RoundReport, left: u64) {
        if let Some(scoped) = self.guard().scoped.get_mut(&number) {
            update(&mut scoped.report, report);
            scoped.report.metrics.dirty = left;
        }
    }

    pub(crate) fn end_scoped(&self, number: u64, is_done: bool) {
        if let Some(scoped) = self.guard().scoped.get_mut(&number) {
            scoped.status = if is_done { FlushStatus::Done } else { FlushStatus::Failed };
        }
    }

    /// Status and report of a scoped flush.
    pub(crate) fn scoped(&self, number: u64) -> (FlushStatus, WritebackReport) {
        let state = self.guard();
        let Some(scoped) = state.scoped.get(&number) else {
            return (FlushStatus::Failed, WritebackReport::default());
        };
        let mut report = scoped.report.clone();
        if report.error.is_none() {
            report.error.clone_from(&state.report.error);
        }
        if scoped.status == FlushStatus::Busy {
            self.add_running(&mut report);
        }
        (scoped.status, report)
    }

    /// The requester of a scoped flush has gone.
    pub(crate) fn forget_scoped(&self, number: u64) {
        self.guard().scoped.remove(&number);
    }

    /// The instance is about to end: waits, at most for `timeout`, until the daemon has removed its
    /// private files from the backing store. True if it has.
    pub(crate) fn leave(&self, timeout: Duration) -> bool {
        let mut state = self.guard();
        state.is_leaving = true;
        self.counters.is_interrupted.store(true, Ordering::Relaxed);
        self.changed.notify_all();
        let goes_on = |state: &mut ProgressState| !state.has_left && !state.is_stopped;
        let waited = self.changed.wait_timeout_while(state, timeout, goes_on);
        state = waited.unwrap_or_else(PoisonError::into_inner).0;
        state.has_left
    }

    pub(crate) fn is_leaving(&self) -> bool {
        self.guard().is_leaving
    }

    /// The daemon has removed its private files.
    pub(crate) fn has_left(&self) {
        self.guard().has_left = true;
        self.changed.notify_all();
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.guard().is_stopped
    }

    /// Stops the worker thread after its round.
    pub(crate) fn end(&self) {
        self.guard().is_stopped = true;
        self.counters.rate_limiter.release();
        self.changed.notify_all();
    }

    /// Waits for work, or until `until`. Returns the number of the last flush that was requested;
    /// `None` if the daemon stops.
    pub(crate) fn wait(&self, until: Instant) -> Option<u64> {
        let mut state = self.guard();
        loop {
            if state.is_stopped {
                return None;
            }
            let left = until.saturating_duration_since(Instant::now());
            let is_flush = state.flush_requested > state.settled();
            let has_scoped = state.scoped.values().any(|scoped| scoped.status == FlushStatus::Busy);
            if left.is_zero() || is_flush || has_scoped || state.has_urgent || state.is_leaving {
                return Some(state.flush_requested);
            }
            state =
                self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// True if a full flush is in progress.
    pub(crate) fn is_flushing(&self) -> bool {
        let state = self.guard();
        state.flush_requested > state.settled()
    }

    pub(crate) fn settled(&self) -> u64 {
        self.guard().settled()
    }

    /// Ends the full flushes up to `number` if this round completed them or they have failed.
    pub(crate) fn end_flush(
        &self,
        number: u64,
        done: &WritebackResult<RoundReport>,
        has_failed: bool,
    ) {
        let mut state = self.guard();
        match done {
            Ok(report) if report.is_quiet() => state.flush_done = number,
            _ if has_failed => {
                state.flush_failed = number;
                let mut failed = state.report.clone();
                if let Ok(report) = done
                    && report.failures.is_empty()
                {
                    (failed.metrics.failed, failed.failures) = (report.open, report.left.clone());
                }
                state.failed_report = failed;
            }
            _ => return,
        }
        drop(state);
        self.changed.notify_all();
    }
}

/// Enters the result of a round into a report.
pub(crate) fn update(to: &mut WritebackReport, report: &RoundReport) {
    to.error = None;
    add(to, report);
    to.metrics.bytes_dirty = report.bytes_left;
    (to.metrics.waiting, to.metrics.deferred) = (report.waiting, report.deferred);
    if report.failures != to.failures {
        for (path, why) in &report.failures {
            tracing::warn!("{} is not written back: {why}", path.display());
        }
    }
    (to.metrics.failed, to.failures) = (report.failed, report.failures.clone());
}

/// Adds what a round wrote to the totals of a report.
pub(crate) fn add(to: &mut WritebackReport, report: &RoundReport) {
    to.metrics.written += report.written;
    to.metrics.bytes_written += report.bytes + report.parts;
    to.metrics.attributes_lost += report.lost;
    for (path, what) in &report.conflicts {
        tracing::warn!("{} {what}", path.display());
        to.metrics.conflicts += 1;
        if to.conflicted.len() < CONFLICTS_MAX {
            to.conflicted.push((path.clone(), what.clone()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    #[test]
    fn a_failed_flush_keeps_its_reason() {
        let progress = Progress::default();
        let number = progress.flush();
        let path = PathBuf::from("new");
        let left = vec![(path.clone(), "it was changed".to_owned())];
        let report = RoundReport { open: 1, left: left.clone(), ..RoundReport::default() };
        progress.with_report(|to| update(to, &report));
        progress.end_flush(number, &Ok(report), true);
        progress.with_report(|to| update(to, &RoundReport::default()));
        assert_eq!(progress.status(number), FlushStatus::Failed);
        let failed = progress.failed_report();
        assert_eq!((failed.metrics.failed, failed.failures), (1, left));
    }
}

//! Requests that clients wait for: files that are closed or synced in directories with mode
//! `through`, flushes of subtrees, and space, which writeback frees. A round with a scope of its
//! own handles them as soon as the current round reaches the end of a batch; requests that arrive
//! meanwhile share the next round.

use crate::progress::{Progress, ScopedFlush};
use crate::round::scope::{Outcomes, Scope, errno_of};
use crate::round::{RoundCache, Trigger};
use crate::scheduler::{CONTENDED_ROUNDS_MAX, STALLED_ROUNDS_MAX, Scheduler, TICK};
use client::Client;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use wire::backing::CleanRequest;
use wire::errno::Errno;
use wire::{Inode, ShardIndex};

/// Number of rounds that cover only the files, and total number of rounds after which the request
/// is refused: what is still dirty by then changes all the time.
const SCOPED_ROUNDS_MAX: u32 = 6;
const ROUNDS_MAX: u32 = 8;
/// Pause before the next of these rounds.
const PAUSE: Duration = Duration::from_millis(5);
/// Pause after a round for space that had nothing to write.
const REST: Duration = Duration::from_millis(100);
/// Maximum time until the end of the daemon is noticed.
const SLEEP_MICROS: u64 = 500_000;

/// The requests that clients wait for, at all services.
pub(crate) trait UrgentRequests: Sync {
    /// Files that clients wait for.
    fn requests(&self) -> Vec<CleanRequest>;
    /// Answers the clients that wait for a file; `Errno(0)`: it is written.
    fn settled(&self, request: CleanRequest, errno: Errno);
    /// Writers wait for space: what is read for them from now on comes before what jobs ask for.
    fn begin_for_space(&self);
    /// Ends what `begin_for_space` began.
    fn end_for_space(&self);
}

/// Wakes the worker thread when a client begins to wait, until the daemon stops.
pub(crate) fn watch(client: &'static Client, services: &[ShardIndex], progress: &Progress) {
    let mut all: Vec<_> = services.iter().map(|&shard| client.watch_waiters(shard)).collect();
    while !progress.is_stopped() {
        let answered = client.answered_waits(true);
        let moved = progress.counters.moved.load(Ordering::Relaxed);
        // Without a short circuit, because each poll renews its request.
        let new = all.iter_mut().filter_map(|one| one.poll(moved).then_some(())).count();
        if new > 0 {
            progress.notify_urgent();
        }
        client.sleep_long_for_waits(answered, SLEEP_MICROS);
    }
}

impl Scheduler<'_> {
    /// Writes the files that clients wait for, and answers the clients.
    pub(crate) fn write_urgent(&self, cache: &mut RoundCache) {
        let all = self.urgent.requests();
        let mut left: BTreeMap<Inode, CleanRequest> =
            all.into_iter().map(|it| (it.inode, it)).collect();
        let is_for_space = left.remove(&Inode::NONE).is_some();
        self.write_files(left, cache);
        let rests = cache.space_retry_at.is_some_and(|until| Instant::now() < until);
        if is_for_space && !rests && !self.progress.is_stopped() {
            // The next round over everything reports failures.
            self.urgent.begin_for_space();
            let done = self.round(Trigger::Space, &Scope::default(), cache);
            self.urgent.end_for_space();
            let rest = match done {
                Ok(report) if report.has_progress() => None,
                Ok(report) if report.failed == 0 => Some(REST),
                _ => Some(TICK),
            };
            cache.space_retry_at = rest.map(|rest| Instant::now() + rest);
        }
    }

    fn write_files(&self, mut left: BTreeMap<Inode, CleanRequest>, cache: &mut RoundCache) {
        for number in 1..=ROUNDS_MAX {
            if left.is_empty() || self.progress.is_stopped() {
                return;
            }
            let (files, trees) = (left.keys().copied().collect(), BTreeSet::new());
            let scope = Scope { files, trees, is_only: number <= SCOPED_ROUNDS_MAX };
            match self.round(Trigger::Normal, &scope, cache) {
                Ok(report) => left.retain(|_, &mut one| !self.settle(one, &report.outcomes)),
                Err(error) => {
                    // If a service is away, its clients ask again.
                    let errno = errno_of(&error);
                    let said = errno
                        .into_iter()
                        .flat_map(|errno| left.values().map(move |&it| (it, errno)));
                    said.for_each(|(one, errno)| self.urgent.settled(one, errno));
                    return;
                }
            }
            std::thread::sleep(if left.is_empty() { Duration::ZERO } else { PAUSE });
        }
        left.into_values().for_each(|one| self.urgent.settled(one, Errno::EIO));
    }

    /// Answers the clients if the outcome is known; true if it is.
    fn settle(&self, one: CleanRequest, outcomes: &Outcomes) -> bool {
        let Some(outcome) = outcomes.of(one.inode) else { return false };
        self.urgent.settled(one, outcome.err().unwrap_or(Errno(0)));
        true
    }

    /// Writes what is dirty now in a part of the tree. Later changes are not waited for.
    pub(crate) fn flush_scope(&self, part: &ScopedFlush, cache: &mut RoundCache) {
        let scope = Scope { is_only: true, ..part.scope.clone() };
        let (mut targets, mut stalled): (Option<BTreeSet<Inode>>, u32) = (None, 0);
        while stalled < CONTENDED_ROUNDS_MAX && !self.progress.is_stopped() {
            let done = self.round(Trigger::Flush, &scope, cache);
            if self.progress.take_urgent() {
                self.write_urgent(cache);
            }
            let Ok(report) = done else {
                stalled += CONTENDED_ROUNDS_MAX / STALLED_ROUNDS_MAX;
                std::thread::sleep(PAUSE);
                continue;
            };
            let before = targets.as_ref().unwrap_or(&report.outcomes.seen);
            let left: BTreeSet<Inode> =
                before.intersection(&report.outcomes.left).copied().collect();
            self.progress.report_scoped(part.number, &report, left.len() as u64);
            if left.is_empty() {
                return self.progress.end_scoped(part.number, true);
            }
            stalled = if left.len() == before.len() { stalled + 1 } else { 0 };
            if stalled >= STALLED_ROUNDS_MAX && report.failed > 0 {
                break;
            }
            targets = Some(left);
            std::thread::sleep(PAUSE);
        }
        self.progress.end_scoped(part.number, false);
    }
}

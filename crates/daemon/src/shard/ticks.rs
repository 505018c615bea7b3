//! Start, deadlines, and end of the shards of a worker.

use crate::shard::driver::Shard;
use crate::shared::Shared;
use crate::shared::reply::ReplyTo;
use crate::units::Units;
use metadata::Input;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;
use wire::{Inode, Request};

impl Shard {
    /// First steps after a start: resends pending messages, and frees files that were kept for
    /// processes that no longer exist.
    pub(crate) fn begin(&mut self, shared: &Shared) {
        if !self.is_taken_over() {
            shared.host.op_log.recover(self.worker);
            self.forget_lost_local_ops(shared);
        }
        self.step(shared, Input::Tick);
        if let Some(loss) = shared.units.as_ref().map(Units::newest_loss).filter(|&loss| loss > 0) {
            self.units_lost(shared, loss);
        }
        let orphans: Vec<Inode> = self.service.orphans().collect();
        for inode in orphans {
            self.reap_orphan(shared, inode);
        }
    }

    /// Handles expired deadlines. Returns the microseconds until the next one.
    pub(crate) fn tick(&mut self, shared: &Shared) -> Option<u64> {
        let now = self.clock.now().unix_nanos;
        if self.service.deadline().is_some_and(|deadline| deadline <= now) {
            self.step(shared, Input::Tick);
        }
        self.performers.jobs.repeat_due(shared, self.worker);
        let held = self.performers.start_held_truncates(shared);
        self.performers.removals.send_due(shared, self.worker);
        let now = self.clock.now().unix_nanos;
        let service = self
            .service
            .deadline()
            .map(|deadline| u64::try_from(deadline.saturating_sub(now)).unwrap_or(0) / 1000);
        let jobs = self.performers.jobs.deadline().map(micros_until);
        let removals = self.performers.removals.deadline().map(micros_until);
        let orphans = self.reap_orphans(shared);
        let client_ids = self.forget_gone(shared);
        [service, jobs, removals, orphans, client_ids, held].into_iter().flatten().min()
    }

    /// Drops reply cache entries of clients that are gone, and queries other daemons about theirs.
    /// Returns the microseconds until the next query, if there are entries.
    fn forget_gone(&mut self, shared: &Shared) -> Option<u64> {
        let known = (&shared.sessions.client_ids, &shared.host.segment);
        let next = |from| self.service.next_client_id(from);
        let gone = self.client_id_queries.ask(known, &shared.net, next);
        gone.iter().for_each(|range| self.client_gone(shared, range.first, range.count));
        self.client_id_queries.due().map(micros_until)
    }

    /// Frees orphans that nobody has open, if a scan is due. Returns the microseconds until the
    /// next scan, if there are orphans.
    fn reap_orphans(&mut self, shared: &Shared) -> Option<u64> {
        let host = &shared.host.segment;
        let found = self.orphans.find_unopened(&self.service, host, &shared.net);
        found.queried_here.into_iter().for_each(|inode| shared.report_if_closed(inode));
        for inode in found.unopened {
            self.reap_orphan(shared, inode);
        }
        self.orphans.scan_at().map(micros_until)
    }

    fn reap_orphan(&mut self, shared: &Shared, inode: Inode) {
        let header = shared.net.own_header(inode.shard());
        self.request(shared, &header, Request::Reap { inode }, ReplyTo::Nobody);
    }

    /// Rewrites the log in slices when it has grown far beyond the state. True if there are more
    /// slices.
    pub(crate) fn keep_log_short(&mut self) -> bool {
        self.performers.log.rewrite_if_long(&self.service)
    }

    /// True if the log must be rewritten, or a deadline expires before `steady_nanos`.
    pub(crate) fn is_due_before(&mut self, steady_nanos: i64) -> bool {
        let now = self.clock.now();
        let left = steady_nanos.saturating_sub(now.steady_nanos);
        let nanos = now.unix_nanos.saturating_add(left);
        // Removals may be slightly late.
        let removals = self.performers.removals.deadline().is_some_and(|at| {
            let micros = i64::try_from(micros_until(at)).unwrap_or(i64::MAX);
            micros.saturating_mul(1000) < left
        });
        self.service.deadline().is_some_and(|deadline| deadline < nanos)
            || self.performers.jobs.deadline().is_some()
            || self.performers.held_truncates.has_any_held()
            || removals
            || self.performers.log.is_long()
    }

    /// Updates the metrics that `status` shows.
    pub(crate) fn publish(&self, shared: &Shared) {
        shared.metrics.with_service(self.worker, |metrics| {
            metrics.files.store(self.service.inode_count(), Relaxed);
            metrics.reply_cache_entries.store(self.service.reply_cache_entries(), Relaxed);
            metrics.log_full.store(u64::from(self.performers.log.is_full()), Relaxed);
            metrics.log_bytes.store(self.performers.log.log_bytes(), Relaxed);
        });
    }

    /// Flushes the log to the device before the daemon ends.
    pub(crate) fn end(&mut self, shared: &Shared) {
        self.close_gate(shared);
        self.close();
    }

    /// As `end`, where the service may do nothing any more.
    pub(crate) fn close(&mut self) {
        self.performers.log.close_log();
    }
}

fn micros_until(at: Instant) -> u64 {
    let left = at.saturating_duration_since(Instant::now());
    u64::try_from(left.as_micros()).unwrap_or(u64::MAX)
}

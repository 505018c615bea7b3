//! Deadlines of the target. When each is due is with its subject; what happens then goes through the
//! driver.

use crate::shared::Shared;
use crate::shared::reply::ReplyTo;
use crate::target::driver::TargetLoop;
use crate::target::leaving::LeavingTimer;
use crate::target::micros_until;
use crate::target::tiering::demotion::DemotionTimer;
use crate::target::tiering::eviction::EvictionTimer;
use crate::target::tiering::lending::note_lent;
use data::Input;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};
use wire::{JobWord, Request};

impl TargetLoop {
    /// Provisions the first memory.
    pub(crate) fn begin(&mut self, shared: &Shared) {
        self.step(shared, Input::Tick);
    }

    /// Handles expired deadlines. Returns the microseconds until the next one.
    pub(crate) fn tick(&mut self, shared: &Shared) -> Option<u64> {
        if let Some(rate) = self.prefetch_share.among(shared.net.router.daemon_count()) {
            self.target.set_prefetch_rate(rate);
        }
        let preallocation = self.reclaim_preallocated(shared);
        let leaving = self.check_leaving(shared);
        let account_waits = self.performers.account_waits.tick(shared, &self.target);
        let space_wait = self.tick_space_wait(shared);
        let eviction = self.tick_eviction(shared);
        let watermarks = self.timers.watermarks.tick(&shared.metrics, &mut self.target);
        let demotion = self.tick_demotion(shared);
        let promotion = self.tick_promotion(shared);
        let readahead = self.tick_readahead(shared);
        let locations = self.tick_locations(shared);
        let spill_releases = self.tick_spill_releases(shared);
        // Includes memory freed above, after which there may be nothing to do for long.
        note_lent(&shared.lending, &shared.metrics, &self.target);
        let all = [
            preallocation,
            leaving,
            account_waits,
            space_wait,
            eviction,
            watermarks,
            demotion,
            promotion,
            readahead,
            locations,
            spill_releases,
        ];
        all.into_iter().flatten().min()
    }

    /// Updates the metrics that `status` shows.
    pub(crate) fn publish(&mut self, shared: &Shared) {
        self.request(shared, (&Request::Space {}, JobWord::NONE), ReplyTo::Nobody);
    }

    /// Reclaims unused preallocated extents, if due.
    fn reclaim_preallocated(&mut self, shared: &Shared) -> Option<u64> {
        let (devices, preallocation) =
            (&self.performers.devices, &mut self.performers.preallocation);
        if preallocation.scan_time(&self.target)? <= Instant::now() {
            let protected = devices.protected_slots(&shared.sessions.open);
            let scan = preallocation.scan(&shared.net, &self.target, devices, &protected);
            self.apply_scan(shared, &scan);
        }
        self.performers.preallocation.scan_time(&self.target).map(micros_until)
    }

    fn check_leaving(&mut self, shared: &Shared) -> Option<u64> {
        if self.target.leaving_count() == 0 {
            self.timers.leaving = LeavingTimer::new();
            return None;
        }
        if self.timers.leaving.is_due(Instant::now()) {
            self.step(shared, Input::Tick);
        }
        self.timers.leaving.deadline()
    }

    fn tick_space_wait(&mut self, shared: &Shared) -> Option<u64> {
        let now = Instant::now();
        let report = self.performers.space_wait.tick_rounds(shared, now);
        self.space_round_ended(shared, report);
        let waits = self.target.waits_for_space();
        if self.performers.space_wait.is_check_due(waits, now) {
            self.check_waiting(shared);
        }
        self.performers.space_wait.deadline()
    }

    /// Withdraws requests of dead clients, and refuses requests that waited for too long.
    fn check_waiting(&mut self, shared: &Shared) {
        self.withdraw_of(shared, &|to| match to {
            ReplyTo::Slot { client, slot } => !client.slots.is_awaited(usize::from(*slot)),
            _ => false,
        });
        let (now, timeout) = (shared.timing.millis(), shared.timing.enospc_timeout_millis);
        self.act(shared, |target, effects| target.tick_writers(now, timeout, effects));
    }

    /// Notes what was fetched since the last call, and whether the tiers thrash.
    fn note_fetches(&self, shared: &Shared) {
        let (counts, metrics) = (self.target.fetch_counts(), &shared.metrics.daemon);
        let has_changed = metrics.bytes_fetched.swap(counts.fetched, Relaxed) != counts.fetched
            || metrics.bytes_discarded.swap(counts.discarded, Relaxed) != counts.discarded;
        if !has_changed {
            return;
        }
        metrics.bytes_refetched.store(counts.refetched, Relaxed);
        metrics.bytes_prefetched.store(counts.prefetched, Relaxed);
        metrics.bytes_discarded.store(counts.discarded, Relaxed);
        if let Some(found) = self.target.thrashing(shared.timing.millis()) {
            shared.metrics.thrashing.found(&found, self.target.bytes_of_tiers());
        }
    }

    /// Evicts clean extents, if due.
    fn tick_eviction(&mut self, shared: &Shared) -> Option<u64> {
        self.note_fetches(shared);
        if !self.target.wants_eviction() {
            self.timers.eviction = EvictionTimer::default();
            return None;
        }
        let now = Instant::now();
        if self.timers.eviction.is_due(now) {
            let has_evicted = self.evict_clean(shared);
            self.timers.eviction.scanned(now, has_evicted);
        }
        self.timers.eviction.deadline()
    }

    /// True if anything was evicted.
    fn evict_clean(&mut self, shared: &Shared) -> bool {
        let millis = shared.timing.millis();
        let before = self.target.bytes_evicted();
        let devices = Arc::clone(&self.performers.devices);
        let mut was_used = |slot| devices.states.take_use(slot);
        let is_clean = |slot| devices.states.is_clean(slot);
        self.act(shared, |target, effects| {
            target.evict_clean(millis, &mut was_used, &is_clean, effects);
        });
        let evicted = self.target.bytes_evicted();
        shared.metrics.daemon.bytes_evicted.store(evicted, Relaxed);
        evicted > before
    }

    /// Demotes extents, if due.
    fn tick_demotion(&mut self, shared: &Shared) -> Option<u64> {
        let (moved, metrics) = (self.target.moved(), &shared.metrics.daemon);
        metrics.bytes_demoted.store(moved.bytes_demoted, Relaxed);
        metrics.bytes_promoted.store(moved.bytes_promoted, Relaxed);
        metrics.bytes_pinned.store(self.target.pinned_bytes(), Relaxed);
        metrics.moves_cancelled.store(moved.cancelled, Relaxed);
        metrics.dirty_waits.store(self.target.bounded_waits(), Relaxed);
        if !self.target.is_demoting() {
            self.timers.demotion = DemotionTimer::new();
            return None;
        }
        let now = Instant::now();
        if self.target.has_bounded_writers() {
            self.timers.demotion.hurry(now);
        }
        if self.timers.demotion.is_due(now) {
            let millis = shared.timing.millis();
            let devices = Arc::clone(&self.performers.devices);
            let mut was_used = |slot| devices.states.take_use(slot);
            let mut began = false;
            self.act(shared, |target, effects| {
                began = target.demote(millis, &mut was_used, effects);
            });
            let tokens = Duration::from_millis(self.target.tiering_wait_millis().into());
            self.timers.demotion.scanned(now, began, tokens);
        }
        self.timers.demotion.deadline()
    }

    /// Promotes extents, if due.
    fn tick_promotion(&mut self, shared: &Shared) -> Option<u64> {
        if !self.target.is_promoting() {
            self.timers.promotion.used.reset();
            return None;
        }
        let now = Instant::now();
        if self.timers.promotion.used.is_due(now) {
            let millis = shared.timing.millis();
            let devices = Arc::clone(&self.performers.devices);
            let mut was_used = |slot| devices.states.take_use(slot);
            let mut are_used = false;
            self.act(shared, |target, effects| {
                are_used = target.promote(millis, &mut was_used, effects);
            });
            self.timers.promotion.used.scanned(now, are_used);
        }
        self.timers.promotion.used.deadline()
    }

    /// Checks how far readers are, if due.
    fn tick_readahead(&mut self, shared: &Shared) -> Option<u64> {
        if !self.target.is_reading_ahead() {
            self.timers.promotion.ahead.reset();
            return None;
        }
        let now = Instant::now();
        if self.timers.promotion.ahead.is_due(now) {
            let millis = shared.timing.millis();
            let devices = Arc::clone(&self.performers.devices);
            let mut is_used = |slot| devices.states.is_used(slot);
            let mut is_some = false;
            self.act(shared, |target, effects| {
                is_some = target.advance_readahead(millis, &mut is_used, effects);
            });
            self.timers.promotion.ahead.scanned(now, is_some);
        }
        self.timers.promotion.ahead.deadline()
    }

    /// Repeats unanswered queries for backing locations and gives up expired ones.
    fn tick_locations(&mut self, shared: &Shared) -> Option<u64> {
        let now = Instant::now();
        for inode in self.performers.locations.tick(shared, now) {
            let ended = self.performers.locations.give_up(shared, inode);
            self.location_query_ended(shared, inode, ended);
        }
        self.performers.locations.deadline(now)
    }

    fn tick_spill_releases(&mut self, shared: &Shared) -> Option<u64> {
        let spilled = self.target.spilled_bytes();
        shared.metrics.daemon.bytes_spilled_out.store(spilled.spilled_out, Relaxed);
        shared.metrics.daemon.bytes_spilled_in.store(spilled.spilled_in, Relaxed);
        let migrated = self.target.moved().bytes_migrated;
        shared.metrics.daemon.bytes_migrated.store(migrated, Relaxed);
        let redirected = self.target.reads_redirected();
        shared.metrics.daemon.reads_redirected.store(redirected, Relaxed);
        self.performers.spill_releases.tick(shared)
    }
}

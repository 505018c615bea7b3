//! Drives the `data::Target` of this daemon, which worker 0 owns: steps the core and performs its
//! effects, in their order.
//!
//! Bytes of clients that map the arena do not pass through here, only requests for extents, and
//! reads and writes of clients on other hosts.
//!
//! Steps are started by `requests`, `inputs` (messages of other threads) and `ticks` (deadlines).
//! Effects are performed in `effects`.

use crate::shared::Shared;
use crate::target::devices::FoundHazards;
use crate::target::effects::Performers;
use crate::target::leaving::LeavingTimer;
use crate::target::profile::ProfileRecorder;
use crate::target::tiering::demotion::DemotionTimer;
use crate::target::tiering::eviction::EvictionTimer;
use crate::target::tiering::promotion::PromotionTimers;
use crate::target::tiering::watermarks::WatermarkTuner;
use data::{Effect, Input, Target};
use std::sync::atomic::Ordering::Relaxed;

/// When to look for work of the target that no message announces.
pub(crate) struct TargetTimers {
    /// For extents that leave when no hazard pointer protects them.
    pub(crate) leaving: LeavingTimer,
    /// For cold extents.
    pub(crate) demotion: DemotionTimer,
    /// For hot extents, and for readers of prefetched ones.
    pub(crate) promotion: PromotionTimers,
    /// For clean extents.
    pub(crate) eviction: EvictionTimer,
    /// Watermarks of demotion.
    pub(crate) watermarks: WatermarkTuner,
}

impl TargetTimers {
    /// Nothing is due yet.
    pub(crate) fn new(watermarks: WatermarkTuner) -> TargetTimers {
        TargetTimers {
            leaving: LeavingTimer::new(),
            demotion: DemotionTimer::new(),
            promotion: PromotionTimers::default(),
            eviction: EvictionTimer::default(),
            watermarks,
        }
    }
}

/// The part that each daemon has of a rate of the instance.
pub(crate) struct RateShare {
    /// Bytes per second; 0: unlimited.
    total: u64,
    /// Number of daemons when it was set last.
    daemons: u16,
}

impl RateShare {
    /// Nothing is set yet.
    pub(crate) const fn new(total: u64) -> RateShare {
        RateShare { total, daemons: 0 }
    }

    /// The part among so many daemons, if they were not as many before.
    pub(crate) fn among(&mut self, daemons: u16) -> Option<u64> {
        let before = std::mem::replace(&mut self.daemons, daemons);
        (before != daemons).then(|| self.total.div_ceil(daemons.max(1).into()))
    }
}

/// The target with the performers of its effects.
pub(crate) struct TargetLoop {
    pub(crate) target: Target,
    pub(crate) performers: Performers,
    pub(crate) timers: TargetTimers,
    /// Of fills for prefetch requests.
    pub(crate) prefetch_share: RateShare,
    /// Present if an access profile is recorded.
    profile: Option<ProfileRecorder>,
    effects: Vec<Effect>,
}

impl TargetLoop {
    /// Takes over a target.
    pub(crate) const fn new(
        target: Target,
        performers: Performers,
        timers: TargetTimers,
        prefetch_share: RateShare,
        profile: Option<ProfileRecorder>,
    ) -> TargetLoop {
        TargetLoop { target, performers, timers, prefetch_share, profile, effects: Vec::new() }
    }

    /// Steps the target and performs its effects.
    pub(crate) fn step(&mut self, shared: &Shared, input: Input<'_>) {
        self.act(shared, |target, effects| target.step(input, effects));
    }

    /// Runs an operation of the target and performs its effects.
    pub(crate) fn act(
        &mut self,
        shared: &Shared,
        with: impl FnOnce(&mut Target, &mut Vec<Effect>),
    ) {
        let TargetLoop { target, performers, .. } = self;
        let mut effects = std::mem::take(&mut self.effects);
        let counts = target.account_usage().is_on();
        if counts {
            performers.account_waits.read_ledger(&shared.ledger, target);
        }
        let more_slots = performers.slot_memory.extend(&performers.devices, target);
        target.pass_time(shared.timing.millis());
        with(target, &mut effects);
        if more_slots {
            target.step(Input::Tick, &mut effects);
        }
        if counts {
            performers.account_waits.update_ledger(shared, target);
        }
        let (mut looks, mut saved) = (Vec::new(), Vec::new());
        for effect in effects.drain(..) {
            if let Effect::FinishCleaning { inode, extent } = effect {
                performers.locations.invalidate(inode);
                let is_clean = performers.devices.states.end_cleaning(extent.slot);
                saved.extend((is_clean == Ok(true)).then_some((inode, extent)));
                continue;
            }
            if let Some(round) = performers.perform(shared, target, effect) {
                looks.push(round);
            }
        }
        self.effects = effects;
        if !saved.is_empty() {
            self.step(shared, Input::Cleaned { extents: &saved });
        }
        for round in looks {
            self.check_hazards(shared, round);
        }
        while let Some(ticket) = self.performers.space_wait.take_unwaitable() {
            self.step(shared, Input::Withdraw { ticket });
        }
        self.record_profile(shared);
        self.performers.devices.redirects.store(self.target.redirects_reads(), Relaxed);
        let waiting = self.target.writers_waiting() as u64;
        shared.metrics.daemon.writers_waiting.store(waiting, Relaxed);
    }

    fn check_hazards(&mut self, shared: &Shared, round: u64) {
        let Performers { devices, hidden, .. } = &mut self.performers;
        let FoundHazards { protected, reading } =
            devices.find_hazards(&shared.sessions.open, &mut |protected| {
                hidden.add_unmovable(&shared.host.segment, devices, protected);
            });
        self.step(shared, Input::Hazards { round, protected: &protected, reading: &reading });
    }

    fn record_profile(&mut self, shared: &Shared) {
        let TargetLoop { target, performers, profile, .. } = self;
        if let Some(recorder) = profile
            && let Err(error) = recorder.note_uses(shared, target, &mut performers.locations)
        {
            tracing::warn!(%error, "access profile is no longer recorded");
            *profile = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_daemon_has_its_part_of_a_rate_among_as_many_as_there_are() {
        let mut share = RateShare::new(1000);
        let parts = [4, 4, 6, 6].map(|daemons| share.among(daemons));
        assert_eq!(parts, [Some(250), None, Some(167), None]);
        let mut unlimited = RateShare::new(0);
        assert_eq!(unlimited.among(4), Some(0));
    }
}

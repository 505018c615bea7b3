//! The loads of the services (O7): each daemon measures those that it owns, all voters hear of them, and
//! the one that leads moves services by their means.
//!
//! Nothing moves to and fro: a mean follows in seconds, a service rests after it moved, and a new leader
//! waits until it has heard all daemons, as one does that has had homes exchanged until it sees that.
//! `policy` asks for a gain of a tenth besides. `BalanceReport` has the findings of the last look.

use crate::exchange::{self, Exchange, Reason};
use crate::membership::{Membership, ServiceIndex};
use crate::policy::Loads;
use std::collections::BTreeSet;
use wire::DaemonIndex;

/// How often loads are sent, and the policy looks at them.
const LOADS_NANOS: i64 = 1_000_000_000;
/// A mean has this many measures behind it: with a noise of a fifth it is right within a tenth.
const MEAN_OF: u64 = 8;
/// Fractions of a mean, so that small loads are not rounded away.
const SCALE: u64 = 256;
/// A service that moved stays where it is for this time.
const REST_NANOS: i64 = 10_000_000_000;
/// A daemon that leads moves nothing before it has led for this time.
const SETTLE_NANOS: i64 = 2_000_000_000;
/// The load of an average service, beside 1 for being there: an idle instance is even by number.
const AVERAGE: u64 = 16;
/// Load of a daemon, in operations per second, below which no homes are exchanged by themselves: at 23 us
/// each it is 2 % of a thread, and relief is worth less than that services are in memory of their host.
const HOT_MIN: u64 = 1_000;

/// The findings of a look of the daemon that leads.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct BalanceReport {
    /// The load of each service, as its owner measured it; `None`: it said nothing yet.
    pub loads: Vec<Option<u64>>,
    /// Services that moved lately.
    pub resting: BTreeSet<ServiceIndex>,
    /// The exchanges that a look would make now.
    pub plan: Vec<Exchange>,
}

#[derive(Clone, Copy)]
struct Measured {
    mean: Option<u64>,
    epoch: u64,
    moved_at: i64,
}

/// See the module.
#[derive(Default)]
pub(super) struct Balance {
    /// Loads of the services that this daemon owns.
    own: Vec<(ServiceIndex, u64)>,
    sent_at: i64,
    looked_at: i64,
    services: Vec<Measured>,
    weights: Vec<u64>,
    resting: BTreeSet<ServiceIndex>,
    leads_since: Option<i64>,
    may_move: bool,
    may_retry: bool,
    hot_min: u64,
    report: BalanceReport,
}

impl Balance {
    pub(super) fn set_own(&mut self, loads: Vec<(ServiceIndex, u64)>) {
        self.own = loads;
    }

    /// The loads to send, when that is due.
    pub(super) fn due(&mut self, now: i64) -> Option<&[(ServiceIndex, u64)]> {
        if self.own.is_empty() || now - self.sent_at < LOADS_NANOS {
            return None;
        }
        self.sent_at = now;
        Some(&self.own)
    }

    /// A daemon says which loads its services have.
    pub(super) fn heard(
        &mut self,
        from: DaemonIndex,
        loads: impl Iterator<Item = (ServiceIndex, u64)>,
        membership: &Membership,
    ) {
        for (service, load) in loads {
            if membership.seat(service).is_none_or(|seat| seat.owner != Some(from)) {
                continue;
            }
            let Some(measured) = self.services.get_mut(service.0 as usize) else { continue };
            let load = load.saturating_mul(SCALE);
            let mean = measured.mean.map_or(load, |mean| mean - mean / MEAN_OF + load / MEAN_OF);
            measured.mean = Some(mean);
        }
    }

    /// The membership changed.
    pub(super) fn adopt(&mut self, membership: &Membership, now: i64) {
        let fresh = Measured { mean: None, epoch: 0, moved_at: now - REST_NANOS };
        self.services.resize(membership.services().count(), fresh);
        for (measured, (_, seat)) in self.services.iter_mut().zip(membership.services()) {
            if measured.epoch != seat.epoch {
                measured.moved_at = if measured.epoch == 0 { measured.moved_at } else { now };
                measured.epoch = seat.epoch;
            }
        }
    }

    /// Looks at the loads anew, if it is time: whether it did.
    pub(super) fn look(&mut self, leads: bool, membership: &Membership, now: i64) -> bool {
        self.leads_since = self.leads_since.or(Some(now)).filter(|_| leads);
        if !leads {
            self.report = BalanceReport::default();
            return false;
        }
        if now - self.looked_at < LOADS_NANOS {
            return false;
        }
        self.looked_at = now;
        self.may_retry = true;
        self.may_move = self.leads_since.is_some_and(|since| now - since >= SETTLE_NANOS);
        self.weigh(now);
        let load = |it: &Measured| it.mean.map(|mean| mean / SCALE);
        self.report = BalanceReport {
            loads: self.services.iter().map(load).collect(),
            resting: self.resting.clone(),
            plan: exchange::exchanges(membership, &self.loads(), Reason::Asked),
        };
        true
    }

    fn weigh(&mut self, now: i64) {
        self.resting.clear();
        self.weights.clear();
        let moved = (0..).zip(&self.services).filter(|(_, it)| now - it.moved_at < REST_NANOS);
        self.resting.extend(moved.map(|(index, _)| ServiceIndex(index)));
        let means = self.services.iter().map(|it| it.mean.unwrap_or(0));
        let sum = means.fold(0_u64, u64::saturating_add);
        // Means of a load that ended are never quite zero.
        if sum < SCALE {
            return;
        }
        let average = (sum / self.services.len() as u64).max(1);
        let weight = |mean: u64| 1 + mean.saturating_mul(AVERAGE) / average;
        self.weights.extend(self.services.iter().map(|it| weight(it.mean.unwrap_or(0))));
        self.hot_min = weight(HOT_MIN * SCALE);
    }

    /// The daemon that leads has asked for exchanges.
    pub(super) const fn exchanges_asked(&mut self, now: i64) {
        (self.leads_since, self.may_move) = (Some(now), false);
    }

    pub(super) const fn report(&self) -> &BalanceReport {
        &self.report
    }

    pub(super) fn loads(&self) -> Loads<'_> {
        let (weights, resting) = (self.weights.as_slice(), &self.resting);
        let Balance { may_move, may_retry, hot_min, .. } = *self;
        Loads { weights, resting, may_move, may_retry, hot_min }
    }

    /// The policy has seen the loads: it retries once after each look at most.
    pub(super) const fn was_asked(&mut self) {
        self.may_retry = false;
    }
}

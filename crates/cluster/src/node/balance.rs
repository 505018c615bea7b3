//! The loads of the services (O7): each daemon measures those that it owns, all voters hear of them, and
//! the one that leads moves services by their means.
//!
//! Nothing moves to and fro: a mean follows in seconds, a service rests after it moved, and a new leader
//! waits until it has heard all daemons. `policy` asks for a gain of a tenth besides.

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
    pub(super) fn look(&mut self, leads: bool, now: i64) -> bool {
        self.leads_since = self.leads_since.or(Some(now)).filter(|_| leads);
        if !leads || now - self.looked_at < LOADS_NANOS {
            return false;
        }
        self.looked_at = now;
        self.may_retry = true;
        self.may_move = self.leads_since.is_some_and(|since| now - since >= SETTLE_NANOS);
        self.resting.clear();
        self.weights.clear();
        let means = self.services.iter().map(|it| it.mean.unwrap_or(0));
        let sum = means.fold(0_u64, u64::saturating_add);
        if sum == 0 {
            return true;
        }
        let average = (sum / self.services.len() as u64).max(1);
        for (index, measured) in self.services.iter().enumerate() {
            let mean = measured.mean.unwrap_or(0);
            self.weights.push(1 + mean.saturating_mul(AVERAGE) / average);
            if now - measured.moved_at < REST_NANOS {
                self.resting.insert(ServiceIndex(index as u32));
            }
        }
        true
    }

    pub(super) fn loads(&self) -> Loads<'_> {
        let (weights, resting) = (self.weights.as_slice(), &self.resting);
        Loads { weights, resting, may_move: self.may_move, may_retry: self.may_retry }
    }

    /// The policy has seen the loads: it retries once after each look at most.
    pub(super) const fn was_asked(&mut self) {
        self.may_retry = false;
    }
}

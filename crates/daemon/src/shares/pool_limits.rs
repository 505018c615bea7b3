//! Limits of pools: the `max_perf` of each target, where one was given. It holds over all
//! hosts, as caps do (`qos::division`), for the bytes that files of the pool move between hosts.
//!
//! A target whose daemon left the instance has no limit: its files are at others now, and new ones are
//! not made on it.
//!
//! A host that moves nothing reports nothing and keeps nothing, so one that begins has all within a
//! round trip to the daemon that divides caps.

use crate::shares::caps::{CapPart, CapPlace};
use qos::bucket::Bucket;
use qos::exchange::{CapGrant, CapKey, CapReport, Token};
use std::collections::{BTreeMap, BTreeSet};
use wire::DaemonIndex;
use wire::pool::MAX_PERF_DEFAULT;

/// In the keys of these caps, the place of a user.
const POOL_USER: u32 = u32::MAX;
/// A part without requests is reported for so long, and no longer.
const IDLE_NANOS: u64 = 1_000_000_000;

/// The way to a daemon, of files of one pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Way {
    pub(crate) daemon: DaemonIndex,
    /// Number of the pool; 0: of all files that are in none.
    pub(crate) pool: u8,
}

impl Way {
    fn key(self) -> CapKey {
        let job = u64::from(self.pool) << 16 | u64::from(self.daemon.0);
        CapKey { user: POOL_USER, job, token: Token::Bytes }
    }
}

/// The way that a key of a cap names, if it does.
pub(super) fn way_of(key: &CapKey) -> Option<Way> {
    let daemon = DaemonIndex(key.job as u16);
    (key.user == POOL_USER).then_some(Way { daemon, pool: (key.job >> 16) as u8 })
}

/// One limit.
struct PoolLimit {
    cap: u64,
    /// `None`: nothing moved lately.
    part: Option<CapPart>,
    bucket: Bucket,
    /// Bytes of requests that have not started.
    waiting: u64,
    used_at: u64,
}

/// See the module.
#[derive(Default)]
pub(super) struct PoolLimits {
    limits: BTreeMap<Way, PoolLimit>,
    /// Daemons that left.
    left: BTreeSet<u16>,
}

/// The targets of a pool with a limit, and what it is.
pub(crate) fn enforced(targets: &[(DaemonIndex, u64)]) -> impl Iterator<Item = (DaemonIndex, u64)> {
    targets.iter().copied().filter(|&(_, max_perf)| max_perf < MAX_PERF_DEFAULT)
}

impl PoolLimits {
    /// A pool has these targets now, each with its `max_perf`; none: it is gone.
    pub(super) fn set(&mut self, pool: u8, targets: &[(DaemonIndex, u64)]) {
        let mut before = std::mem::take(&mut self.limits);
        let left = &self.left;
        for (daemon, cap) in enforced(targets).filter(|(daemon, _)| !left.contains(&daemon.0)) {
            let way = Way { daemon, pool };
            let same = before.remove(&way).filter(|limit| limit.cap == cap);
            let new =
                || PoolLimit { cap, part: None, bucket: Bucket::default(), waiting: 0, used_at: 0 };
            self.limits.insert(way, same.unwrap_or_else(new));
        }
        self.limits.extend(before.into_iter().filter(|(way, _)| way.pool != pool));
    }

    /// These daemons have left the instance.
    pub(super) fn set_left(&mut self, left: &BTreeSet<u16>) {
        self.left.clone_from(left);
        self.limits.retain(|way, _| !left.contains(&way.daemon.0));
    }

    /// A request waits for this way. True if the host begins to use it, so that the arbiter is to know.
    pub(super) fn arrive(&mut self, now: u64, way: Way, bytes: u64, place: CapPlace) -> bool {
        let Some(limit) = self.limits.get_mut(&way) else { return false };
        limit.used_at = now;
        limit.waiting = limit.waiting.saturating_add(bytes);
        let begins = limit.part.is_none();
        if begins {
            limit.part = CapPart::without_floor(now, limit.cap, place);
            limit.bucket = Bucket::default();
            limit.apply(now);
        }
        limit.part.iter_mut().for_each(|part| part.note(bytes));
        begins
    }

    /// When the next request may start; `now`: one may already.
    pub(super) fn opens_at(&self, now: u64, way: Way) -> u64 {
        self.limits.get(&way).map_or(now, |limit| limit.bucket.opens_at(now))
    }

    /// A request starts.
    pub(super) fn start(&mut self, now: u64, way: Way, bytes: u64) {
        if let Some(limit) = self.limits.get_mut(&way) {
            limit.used_at = now;
            limit.waiting = limit.waiting.saturating_sub(bytes);
            limit.bucket.take(now, bytes);
        }
    }

    /// Another daemon divides caps: it knows nothing of the grants of now.
    pub(super) fn renew_parts(&mut self, now: u64, place: CapPlace) {
        for limit in self.limits.values_mut().filter(|limit| limit.part.is_some()) {
            limit.part = CapPart::without_floor(now, limit.cap, place);
            limit.apply(now);
        }
    }

    /// A period ends: the reports to the arbiter.
    pub(super) fn report(&mut self, now: u64, reports: &mut Vec<CapReport>) {
        for (way, limit) in &mut self.limits {
            if now > limit.used_at.saturating_add(IDLE_NANOS) {
                limit.part = None;
            }
            let waiting = limit.waiting;
            let report = |part: &mut CapPart| part.report(now, way.key(), waiting);
            reports.extend(limit.part.as_mut().and_then(report));
            limit.apply(now);
        }
    }

    /// True if some are in use here.
    pub(super) fn is_in_use(&self) -> bool {
        self.limits.values().any(|limit| limit.part.is_some())
    }

    /// A grant arrives.
    pub(super) fn take_grant(&mut self, now: u64, way: Way, daemon: u32, grant: &CapGrant) {
        let Some(limit) = self.limits.get_mut(&way) else { return };
        limit.part.iter_mut().for_each(|part| part.take_grant(now, daemon, grant));
        limit.apply(now);
    }
}

impl PoolLimit {
    /// Puts the part of the cap in force as it is now.
    fn apply(&mut self, now: u64) {
        let rate = self.part.as_ref().map_or(0, |part| part.per_second(now));
        if self.bucket.per_second() != rate {
            self.bucket.set_rate(now, rate);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const SECOND: u64 = 1_000_000_000;
    const ALONE: CapPlace = CapPlace { daemon: 0, daemons: 1 };

    fn way(pool: u8, daemon: u16) -> Way {
        Way { daemon: DaemonIndex(daemon), pool }
    }

    #[test]
    fn a_target_serves_a_pool_no_faster_than_its_max_perf() {
        let mut limits = PoolLimits::default();
        limits.set(3, &[(DaemonIndex(1), 10 * MIB), (DaemonIndex(2), MAX_PERF_DEFAULT)]);
        let (mut now, mut started) = (SECOND, 0);
        limits.arrive(now, way(3, 1), 100 * MIB, ALONE);
        while now < 6 * SECOND {
            if limits.opens_at(now, way(3, 1)) == now {
                limits.start(now, way(3, 1), MIB / 4);
                started += MIB / 4;
            }
            now += SECOND / 1000;
        }
        // 5 s, and 100 ms that were saved up.
        assert!((50 * MIB..=52 * MIB).contains(&started), "{started}");
        for free in [way(3, 2), way(0, 1), way(4, 1)] {
            assert_eq!(limits.opens_at(now, free), now, "{free:?}");
        }
    }

    #[test]
    fn a_target_that_left_limits_nothing() {
        let mut limits = PoolLimits::default();
        let targets = [(DaemonIndex(1), MIB), (DaemonIndex(2), MIB)];
        limits.set(1, &targets);
        for way in [way(1, 1), way(1, 2)] {
            limits.arrive(SECOND, way, MIB, ALONE);
            limits.start(SECOND, way, 10 * MIB);
        }
        limits.set_left(&[2].into());
        assert!(limits.opens_at(SECOND, way(1, 1)) > SECOND);
        assert_eq!(limits.opens_at(SECOND, way(1, 2)), SECOND, "those that wait go on");
        limits.set(2, &targets);
        assert!(limits.arrive(SECOND, way(2, 1), 1, ALONE));
        assert!(!limits.arrive(SECOND, way(2, 2), 1, ALONE), "nobody is asked for a part");
    }

    #[test]
    fn a_changed_pool_keeps_the_limits_of_the_others() {
        let mut limits = PoolLimits::default();
        limits.set(1, &[(DaemonIndex(1), MIB), (DaemonIndex(2), MIB)]);
        limits.set(2, &[(DaemonIndex(1), MIB)]);
        assert!(limits.arrive(SECOND, way(1, 1), 1, ALONE));
        assert!(!limits.arrive(SECOND, way(1, 1), 1, ALONE), "it is in use already");
        limits.start(SECOND, way(1, 1), 10 * MIB);
        limits.set(1, &[(DaemonIndex(1), MIB)]);
        assert!(limits.opens_at(SECOND, way(1, 1)) > SECOND, "its debt stays");
        limits.set(1, &[]);
        assert_eq!(limits.opens_at(SECOND, way(1, 1)), SECOND);
        assert!(limits.arrive(SECOND, way(2, 1), 1, ALONE));
        limits.set(2, &[]);
        assert!(!limits.is_in_use());
        let key = way(5, 300).key();
        assert_eq!(way_of(&key), Some(way(5, 300)));
        assert_eq!(way_of(&CapKey { user: 0, ..key }), None);
    }
}

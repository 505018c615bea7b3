//! Shares of what several hosts send to one daemon, or read from it (F7).
//!
//! Each host has a scheduler and a window for the way to a daemon, and sees nothing of the others, so
//! they would share the daemon's link by their windows, whatever jobs they have. Hosts whose requests
//! wait for a way tell its daemon every period what their jobs got, and the daemon tells each by what
//! factor its window is to be larger. The host that is owed least has the factor 1: nobody gets less than
//! the window that keeps the way in use, so wrong or late reports cost shares, and never bandwidth.
//!
//! Invariants:
//!  1. Factors are 1 to `FACTOR_MAX`, and the least of them is 1.
//!  2. A host that reports nothing for `LEASE_NANOS` counts for nothing, and a factor ends after that
//!     time without another one. With one host there are no factors.
//!
//! Elsewhere: the window (`window`), what each job is entitled to (`entitlement`), messages (`exchange`).

use crate::division::LEASE_NANOS;
use crate::entitlement::{Contender, entitled};
use std::collections::BTreeMap;

/// The largest factor: the largest window by the smallest.
pub const FACTOR_MAX: f64 = 12.0;
/// Part of a difference that one period corrects: single ones have few requests.
const GAIN: f64 = 0.25;
/// Most jobs of a report; further ones count for nothing.
pub const JOBS_MAX: usize = 1024;
/// A rate beyond this is none of a host: sums of all jobs of all hosts stay below 64 bits.
const BYTES_PER_SECOND_MAX: u64 = 1 << 37;

/// A job on the way from a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobUse {
    /// Its user, and the weight of that one.
    pub user: (u32, u32),
    /// Hash of the job, and its weight.
    pub job: (u64, u32),
    /// It had requests nearly all the time: it would have used more.
    pub waits: bool,
    /// Bytes per second that it got.
    pub bytes_per_second: u64,
}

/// A host as the daemon sees it.
#[derive(Clone, Debug)]
struct Sender {
    uses: Vec<JobUse>,
    live_until: u64,
    factor: f64,
}

/// The hosts on the way to a daemon.
#[derive(Clone, Debug, Default)]
pub struct Incoming {
    senders: BTreeMap<u32, Sender>,
}

impl Incoming {
    /// A host's report.
    pub fn report(&mut self, now: u64, host: u32, mut uses: Vec<JobUse>) {
        uses.truncate(JOBS_MAX);
        for one in &mut uses {
            one.bytes_per_second = one.bytes_per_second.min(BYTES_PER_SECOND_MAX);
        }
        let live_until = now.saturating_add(LEASE_NANOS);
        let sender = self.senders.entry(host);
        let sender = sender.or_insert(Sender { uses: Vec::new(), live_until, factor: 1.0 });
        (sender.uses, sender.live_until) = (uses, live_until);
    }

    /// True if no host reports.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.senders.is_empty()
    }

    /// A period is over: the factor of each host; none if there are not several.
    pub fn divide(&mut self, now: u64) -> Vec<(u32, f64)> {
        self.senders.retain(|_, sender| now < sender.live_until);
        if self.senders.len() < 2 {
            self.senders.values_mut().for_each(|sender| sender.factor = 1.0);
            return Vec::new();
        }
        let parts = self.parts();
        for (host, sender) in &mut self.senders {
            let (got, entitled) = parts.get(host).copied().unwrap_or_default();
            if got > 0 {
                let owed = (entitled as f64 / got as f64).clamp(0.5, 2.0);
                sender.factor *= 1.0 + (owed - 1.0) * GAIN;
            }
        }
        let least = self.senders.values().map(|sender| sender.factor).fold(f64::MAX, f64::min);
        for sender in self.senders.values_mut() {
            sender.factor = (sender.factor / least).clamp(1.0, FACTOR_MAX);
        }
        self.senders.iter().map(|(&host, sender)| (host, sender.factor)).collect()
    }

    /// Bytes per second that each host got, and to which it was entitled. A job of several hosts has one
    /// share, of which those hosts have equal parts on which it waits.
    fn parts(&self) -> BTreeMap<u32, (u64, u64)> {
        // By user and job: as a contender, and the hosts on which it waits.
        let mut jobs: BTreeMap<(u32, u64), (Contender, u64)> = BTreeMap::new();
        for one in self.senders.values().flat_map(|sender| &sender.uses) {
            let JobUse { user, job: (job, weight), waits, bytes_per_second } = *one;
            let unused = Contender { user, weight, waits: false, served: 0 };
            let (contender, hosts) = jobs.entry((user.0, job)).or_insert((unused, 0));
            contender.served = contender.served.saturating_add(bytes_per_second);
            contender.waits |= waits;
            *hosts += u64::from(waits);
        }
        let contenders: Vec<Contender> = jobs.values().map(|&(contender, _)| contender).collect();
        // The rest of a job's share for those hosts on which it waits.
        let mut rests: BTreeMap<(u32, u64), u64> =
            jobs.keys().copied().zip(entitled(&contenders)).collect();
        let of_sender = |(&host, sender): (&u32, &'_ Sender)| {
            sender.uses.iter().map(move |&one| (host, one)).collect::<Vec<_>>()
        };
        let all: Vec<(u32, JobUse)> = self.senders.iter().flat_map(of_sender).collect();
        for (_, one) in all.iter().filter(|(_, one)| !one.waits) {
            if let Some(rest) = rests.get_mut(&(one.user.0, one.job.0)) {
                *rest = rest.saturating_sub(one.bytes_per_second);
            }
        }
        let mut parts: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
        for (host, one) in all {
            let key = (one.user.0, one.job.0);
            let hosts = jobs.get(&key).map_or(1, |(_, hosts)| (*hosts).max(1));
            let rest = rests.get(&key).copied().unwrap_or(0);
            let own = if one.waits { rest / hosts } else { one.bytes_per_second };
            let (got, entitled) = parts.entry(host).or_default();
            *got = got.saturating_add(one.bytes_per_second);
            *entitled = entitled.saturating_add(own);
        }
        parts
    }
}

//! The share of a device that each job is entitled to in a period, and whether a job got much less.
//!
//! The measure is the fluid model of the scheduler: users share what was served by their weights, then
//! the jobs of each; a job without waiting requests gets what it asked for, and what it leaves of its
//! part goes to the others. So nobody is told that it got too little because it asked for little.
//!
//! Elsewhere: the scheduler, which decides (`scheduler`).

use std::collections::BTreeMap;

/// A job below this percentage of its share got too little.
pub const SHARE_PERCENT_MIN: u64 = 80;
/// Periods of a window: single ones say little about jobs with few requests.
pub const WINDOW_PERIODS: u32 = 50;
/// Periods of a window in which a job must have waited, so that the window says something of it.
const WAITED_MIN: u32 = WINDOW_PERIODS / 5;

/// A job in a period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Contender {
    /// Its user, and the weight of that one.
    pub user: (u32, u32),
    /// Its own weight.
    pub weight: u32,
    /// Requests of it waited all the time, as far as is known: it would have used more.
    pub waits: bool,
    /// Device time that it got.
    pub served: u64,
}

/// A part of what is divided: its weight, and the most that it takes.
#[derive(Clone, Copy)]
struct Claim {
    weight: u32,
    most: u64,
}

/// Divides `total` by weights; what a claim does not take goes to the others.
fn divide(total: u64, claims: &[Claim]) -> Vec<u64> {
    let mut parts: Vec<Option<u64>> = vec![None; claims.len()];
    let mut left = total;
    loop {
        let open = || claims.iter().zip(&parts).filter(|(_, part)| part.is_none());
        let weights: u64 = open().map(|(claim, _)| u64::from(claim.weight)).sum();
        let part_of = |weight: u32| {
            let part = u128::from(left) * u128::from(weight) / u128::from(weights.max(1));
            u64::try_from(part).unwrap_or(u64::MAX)
        };
        let (mut taken, mut is_done) = (0, true);
        for (claim, part) in claims.iter().zip(&mut parts) {
            if part.is_none() && claim.most <= part_of(claim.weight) {
                *part = Some(claim.most);
                (taken, is_done) = (taken + claim.most, false);
            }
        }
        if is_done {
            let rest = claims.iter().zip(&parts);
            return rest
                .map(|(claim, part)| part.unwrap_or_else(|| part_of(claim.weight)))
                .collect();
        }
        left = left.saturating_sub(taken);
    }
}

/// The device time that each was entitled to, of all that was served.
#[must_use]
pub fn entitled(contenders: &[Contender]) -> Vec<u64> {
    let total = contenders.iter().map(|one| one.served).sum();
    let claim = |weight: u32, waits: bool, served: u64| Claim {
        weight,
        most: if waits { u64::MAX } else { served },
    };
    // By user: its weight, whether one of its jobs waits, and what they got.
    let mut users: BTreeMap<u32, (u32, bool, u64)> = BTreeMap::new();
    for one in contenders {
        let (id, weight) = one.user;
        let user = users.entry(id).or_insert((weight, false, 0));
        (user.1, user.2) = (user.1 || one.waits, user.2 + one.served);
    }
    let claims: Vec<Claim> =
        users.values().map(|&(weight, waits, served)| claim(weight, waits, served)).collect();
    let mut all = vec![0; contenders.len()];
    for (&user, part) in users.keys().zip(divide(total, &claims)) {
        let own = || contenders.iter().filter(|one| one.user.0 == user);
        let claims: Vec<Claim> =
            own().map(|one| claim(one.weight, one.waits, one.served)).collect();
        let places = all.iter_mut().zip(contenders).filter(|(_, one)| one.user.0 == user);
        for ((place, _), part) in places.zip(divide(part, &claims)) {
            *place = part;
        }
    }
    all
}

/// A job and its shares, window by window.
#[derive(Clone, Copy, Debug, Default)]
pub struct ShareRecord {
    periods: u32,
    waited: u32,
    got: u64,
    entitled: u64,
    percent: Option<u64>,
}

impl ShareRecord {
    /// A period has ended. `times`: what the job got and was entitled to where its requests waited;
    /// `None`: none did. Returns the sums of a window that ends with it and says something of the job.
    pub fn note(&mut self, times: Option<(u64, u64)>) -> Option<(u64, u64)> {
        self.periods += 1;
        if let Some((got, entitled)) = times {
            self.waited += 1;
            self.got = self.got.saturating_add(got);
            self.entitled = self.entitled.saturating_add(entitled);
        }
        if self.periods < WINDOW_PERIODS {
            return None;
        }
        let is_known = self.waited >= WAITED_MIN && self.entitled > 0;
        let sums = is_known.then_some((self.got, self.entitled));
        let percent = sums.map(|(got, entitled)| {
            u64::try_from(u128::from(got) * 100 / u128::from(entitled)).unwrap_or(u64::MAX)
        });
        *self = ShareRecord { percent, ..ShareRecord::default() };
        sums
    }

    /// The percentage of its share that it got in the last window; `None`: it did not wait for more.
    #[must_use]
    pub const fn percent(&self) -> Option<u64> {
        self.percent
    }

    /// True if it got too little in the last window.
    #[must_use]
    pub fn is_short(&self) -> bool {
        self.percent.is_some_and(|percent| percent < SHARE_PERCENT_MIN)
    }
}

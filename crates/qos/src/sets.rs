//! Turns of jobs at a store that prefers few writers: SET-10. Jobs write in phases; those whose phases
//! begin about equally often are in one set. Within a set one job writes at a time, in the order in which
//! their phases began. The sets share the bandwidth: a set with ten times the period has a tenth of the
//! weight, so a phase that comes often never waits behind a long one that comes rarely.
//!
//! ```text
//!   idle --begin--> waiting --first of its set--> writing --end--> idle
//! ```
//!
//! Invariants:
//!  1. At most one job of a set writes; while any job waits, one writes.
//!  2. A job's phase waits only for phases of its set that began before it.
//!
//! Elsewhere: what a job and its phase are (the writeback daemon says so), and the bytes.

use std::collections::BTreeMap;

/// Most jobs whose periods are remembered; beyond, the one that was idle longest is forgotten.
pub const JOBS_MAX: usize = 4096;
/// Set of jobs of which only one phase is known: periods of 1,000 s. A job that writes often is known
/// after its second phase.
const UNKNOWN_SET: i32 = 3;
/// Sets from milliseconds to a month.
const SET_MIN: i32 = -3;
const SET_MAX: i32 = 6;

/// A job, as its caller numbers it.
pub type SetKey = u64;

/// A job that has phases.
#[derive(Clone, Copy, Debug)]
struct PhasedJob {
    /// Begins of phases: the number of them, and the times of the first and the last.
    phases: u64,
    first_at: u64,
    last_at: u64,
    /// Order of its present phase among all; `None`: it has none.
    turn: Option<u64>,
}

impl PhasedJob {
    /// The set of jobs with such periods.
    fn set(&self) -> i32 {
        if self.phases < 2 {
            return UNKNOWN_SET;
        }
        let period = self.last_at.saturating_sub(self.first_at) as f64 / (self.phases - 1) as f64;
        // A cast from a float saturates.
        ((period / 1e9).max(1e-9).log10().round() as i32).clamp(SET_MIN, SET_MAX)
    }
}

/// The jobs and their phases.
#[derive(Clone, Debug, Default)]
pub struct Sets {
    jobs: BTreeMap<SetKey, PhasedJob>,
    last_turn: u64,
}

impl Sets {
    /// No job is known.
    #[must_use]
    pub fn new() -> Sets {
        Sets::default()
    }

    /// A phase of a job begins, at this time in nanoseconds; nothing if it has begun already.
    pub fn begin(&mut self, now: u64, key: SetKey) {
        if !self.jobs.contains_key(&key) && self.jobs.len() >= JOBS_MAX {
            let idle = self.jobs.iter().filter(|(_, job)| job.turn.is_none());
            match idle.min_by_key(|(_, job)| job.last_at).map(|(&key, _)| key) {
                Some(longest) => drop(self.jobs.remove(&longest)),
                None => return,
            }
        }
        let new = PhasedJob { phases: 0, first_at: now, last_at: now, turn: None };
        let job = self.jobs.entry(key).or_insert(new);
        if job.turn.is_none() {
            self.last_turn += 1;
            job.turn = Some(self.last_turn);
            job.phases += 1;
            job.last_at = now;
        }
    }

    /// The phase of a job ends.
    pub fn end(&mut self, key: SetKey) {
        if let Some(job) = self.jobs.get_mut(&key) {
            job.turn = None;
        }
    }

    /// Jobs with a phase.
    pub fn waiting(&self) -> impl Iterator<Item = SetKey> {
        self.jobs.iter().filter(|(_, job)| job.turn.is_some()).map(|(&key, _)| key)
    }

    /// The jobs that write now, each with its part of the bandwidth; all parts together are 1.
    #[must_use]
    pub fn shares(&self) -> Vec<(SetKey, f64)> {
        let mut heads: BTreeMap<i32, (u64, SetKey)> = BTreeMap::new();
        for (&key, job) in &self.jobs {
            let Some(turn) = job.turn else { continue };
            let head = heads.entry(job.set()).or_insert((turn, key));
            *head = (*head).min((turn, key));
        }
        let weight = |set: i32| 10f64.powi(-set);
        let sum: f64 = heads.keys().map(|&set| weight(set)).sum();
        heads.iter().map(|(&set, &(_, key))| (key, weight(set) / sum)).collect()
    }

    /// The order in which items are written, each of a job with a phase and with its bytes, one after the
    /// other: places of `items`. Those of one job stay in their order. Items of other jobs come last.
    #[must_use]
    pub fn order(&self, items: &[(SetKey, u64)]) -> Vec<usize> {
        let mut left: BTreeMap<SetKey, std::collections::VecDeque<usize>> = BTreeMap::new();
        for (place, (key, _)) in items.iter().enumerate() {
            left.entry(*key).or_default().push_back(place);
        }
        let mut rest = self.clone();
        let idle: Vec<SetKey> = rest.waiting().filter(|key| !left.contains_key(key)).collect();
        idle.into_iter().for_each(|key| rest.end(key));
        let mut order = Vec::with_capacity(items.len());
        // The time at which a job would have written what was taken of it.
        let mut written: BTreeMap<SetKey, f64> = BTreeMap::new();
        let mut now = 0.0;
        let mut shares = rest.shares();
        while !shares.is_empty() {
            let due = |key: &SetKey| written.get(key).copied().unwrap_or(now);
            let first =
                shares.iter().min_by(|(one, _), (other, _)| due(one).total_cmp(&due(other)));
            let Some(&(key, share)) = first else { break };
            now = due(&key);
            let queue = left.entry(key).or_default();
            if let Some(place) = queue.pop_front() {
                let bytes = items.get(place).map_or(0, |(_, bytes)| *bytes);
                // An item without bytes takes some time, too.
                written.insert(key, now + bytes.max(4096) as f64 / share);
                order.push(place);
            }
            if queue.is_empty() {
                rest.end(key);
                shares = rest.shares();
            }
        }
        let mut others: Vec<usize> = left.into_values().flatten().collect();
        others.sort_unstable();
        order.extend(others);
        order
    }
}

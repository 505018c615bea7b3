//! Bounds on the dirty bytes of jobs in the memory of one target: bytes that must be copied elsewhere
//! before their memory is of use to others. So one job cannot fill the memory while others run, and none
//! waits for the copies of another (FEFS bounds dirty pages per user for the same reason).
//!
//! A job asks before it takes memory (`ask`). One that has reached its bound waits until some of its
//! bytes have left; others do not. If none of them leaves for `STALLED_MILLIS`, nothing is gained by the
//! wait, and it passes.
//!
//!   below the bound, or without dirty bytes --ask--> passes
//!   at the bound --ask--> waits --some bytes left--> waits, or passes if it is below the bound
//!                         waits --none for long--> passes, until some leave again
//!
//! The usual bound divides the memory between the active jobs, those that had a 64th of it and got
//! some lately. Each has a claim of twice the most that it had, and no more than an equal part while
//! others have none to spare; the job that asks may have all that the others do not claim. So one alone
//! has all; beside a job that writes little, another one has nearly all; and a job that holds less than
//! an equal part finds memory. A rule may set another bound.
//!
//! Elsewhere: which bytes are dirty, which of them leave, and the requests that wait (`data`).
//!
//! Invariants:
//!  1. `claims` are those of the jobs that were active when they were last counted, in order.
//!  2. A job without dirty bytes passes.

use std::collections::BTreeMap;

/// A job that waits passes when none of its bytes left for this time. Files of a round of writeback leave
/// together: at 20 MB/s, 192 MiB every 8 s.
pub const STALLED_MILLIS: u32 = 10_000;
/// Most jobs that are told apart; further ones count together for each user, and beyond twice as many
/// for nobody.
pub const JOBS_MAX: usize = 1024;
/// The number of the jobs of a user that are not told apart.
const OTHERS: u32 = u32::MAX;
/// A job is active while it has one part in this many of the memory, and got some lately.
const ACTIVE_PARTS: u64 = 64;
/// How long ago that may be.
const ACTIVE_MILLIS: u32 = 30_000;
/// Active jobs are counted anew after this time.
const COUNT_MILLIS: u32 = 100;

/// A job of a user.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DirtyJob {
    /// User.
    pub user: u32,
    /// Number of the job.
    pub number: u32,
}

/// The answer to a job that asks for memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DirtyAnswer {
    /// It may take it.
    Passes,
    /// It has reached its bound.
    Waits,
}

/// A wait of a job that has reached its bound.
#[derive(Clone, Copy, Debug)]
struct DirtyWait {
    /// When it began, or some of its bytes left.
    since: u32,
    /// `JobBytes::left` then.
    left: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct JobBytes {
    bytes: u64,
    /// Bytes that have left so far.
    left: u64,
    /// As a rule says, in bytes; 0: the usual one.
    bound: u64,
    wait: Option<DirtyWait>,
    /// When it last got some.
    grew_at: u32,
    /// The most that it had while it got some.
    peak: u64,
    /// 0: it is not active.
    claim: u64,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct DirtyBounds {
    memory: u64,
    jobs: BTreeMap<DirtyJob, JobBytes>,
    claims: Vec<u64>,
    /// Milliseconds, which may wrap.
    now: u32,
    counted_at: u32,
    /// Claims may be others.
    is_changed: bool,
}

impl DirtyBounds {
    /// No jobs, in this many bytes of memory.
    #[must_use]
    pub fn new(memory: u64) -> DirtyBounds {
        DirtyBounds { memory, ..DirtyBounds::default() }
    }

    const fn active_bytes(&self) -> u64 {
        let part = self.memory / ACTIVE_PARTS;
        if part == 0 { 1 } else { part }
    }

    /// The memory has another size.
    pub fn set_memory(&mut self, bytes: u64) {
        self.is_changed |= self.memory != bytes;
        self.memory = bytes;
    }

    /// Sets the time, before anything that depends on it.
    pub fn pass_time(&mut self, now_millis: u32) {
        self.now = now_millis;
        if !self.is_changed && now_millis.wrapping_sub(self.counted_at) < COUNT_MILLIS {
            return;
        }
        (self.is_changed, self.counted_at) = (false, now_millis);
        let (least, memory) = (self.active_bytes(), self.memory);
        self.claims.clear();
        for one in self.jobs.values_mut() {
            let is_new = now_millis.wrapping_sub(one.grew_at) < ACTIVE_MILLIS;
            one.peak = if is_new { one.peak.max(one.bytes) } else { 0 };
            let is_active = one.peak >= least;
            one.claim = if is_active { one.peak.saturating_mul(2).min(memory) } else { 0 };
            self.claims.extend(is_active.then_some(one.claim));
        }
        self.claims.sort_unstable();
    }

    /// The job as which this one counts; `None`: there are too many.
    pub fn admit(&mut self, job: DirtyJob) -> Option<DirtyJob> {
        if self.jobs.contains_key(&job) {
            return Some(job);
        }
        if self.jobs.len() >= JOBS_MAX {
            self.jobs.retain(|_, one| one.bytes > 0);
            self.is_changed = true;
        }
        let others = DirtyJob { number: OTHERS, ..job };
        let found = match self.jobs.len() {
            count if count < JOBS_MAX => Some(job),
            count if count < 2 * JOBS_MAX || self.jobs.contains_key(&others) => Some(others),
            _ => None,
        }?;
        self.jobs.entry(found).or_default();
        Some(found)
    }

    /// A job has nothing here any more.
    pub fn forget(&mut self, job: DirtyJob) {
        if self.jobs.get(&job).is_some_and(|one| one.bytes == 0) {
            self.jobs.remove(&job);
            self.is_changed = true;
        }
    }

    /// Sets the bound of a job in bytes; 0: the usual one.
    pub fn set_bound(&mut self, job: DirtyJob, bytes: u64) {
        if let Some(one) = self.jobs.get_mut(&job) {
            one.bound = bytes;
        }
    }

    /// Bytes of a job become dirty.
    pub fn add(&mut self, job: DirtyJob, bytes: u64) {
        let least = self.active_bytes();
        let one = self.jobs.entry(job).or_default();
        one.bytes += bytes;
        one.grew_at = self.now;
        // Others are to know soon that it begins; how it grows, at the next count.
        self.is_changed |= one.claim == 0 && one.bytes >= least;
    }

    /// Dirty bytes of a job leave the memory, or are copied.
    pub fn remove(&mut self, job: DirtyJob, bytes: u64) {
        if let Some(one) = self.jobs.get_mut(&job) {
            one.bytes = one.bytes.saturating_sub(bytes);
            one.left = one.left.wrapping_add(bytes);
        }
    }

    /// Dirty bytes of a job.
    #[must_use]
    pub fn bytes(&self, job: DirtyJob) -> u64 {
        self.jobs.get(&job).map_or(0, |one| one.bytes)
    }

    /// Most dirty bytes that a job may have now; `None`: any number.
    #[must_use]
    pub fn bound(&self, job: DirtyJob) -> Option<u64> {
        let one = self.jobs.get(&job)?;
        if one.bound > 0 {
            return Some(one.bound);
        }
        let is_own = |claims: &[u64]| claims.iter().position(|&claim| claim == one.claim);
        let own = (one.claim > 0).then(|| is_own(&self.claims)).flatten();
        let others = self.claims.iter().enumerate().filter(|&(place, _)| Some(place) != own);
        let mut left = self.memory;
        let mut jobs = self.claims.len() as u64 + u64::from(own.is_none());
        if jobs < 2 {
            return None;
        }
        // The smallest claims are met, and the rest is divided.
        for (_, &claim) in others {
            if claim >= left / jobs {
                break;
            }
            left -= claim;
            jobs -= 1;
        }
        Some(left / jobs)
    }

    /// True if a rule sets the bound of a job.
    #[must_use]
    pub fn has_rule(&self, job: DirtyJob) -> bool {
        self.jobs.get(&job).is_some_and(|one| one.bound > 0)
    }

    /// Bytes that must leave before a job may have this many more; 0: none.
    #[must_use]
    pub fn excess(&self, job: DirtyJob, more: u64) -> u64 {
        let bytes = self.bytes(job);
        match self.bound(job) {
            // Invariant 2.
            Some(bound) if bytes > 0 => bytes.saturating_add(more).saturating_sub(bound),
            _ => 0,
        }
    }

    /// A job asks for memory.
    pub fn ask(&mut self, job: DirtyJob, more: u64) -> DirtyAnswer {
        let (now, excess) = (self.now, self.excess(job, more));
        let Some(one) = self.jobs.get_mut(&job) else { return DirtyAnswer::Passes };
        if excess == 0 {
            one.wait = None;
            return DirtyAnswer::Passes;
        }
        let fresh = DirtyWait { since: now, left: one.left };
        let wait = one.wait.get_or_insert(fresh);
        if one.left != wait.left {
            *wait = fresh;
        }
        match now.wrapping_sub(wait.since) < STALLED_MILLIS {
            true => DirtyAnswer::Waits,
            false => DirtyAnswer::Passes,
        }
    }

    /// Number of jobs that are told apart.
    #[must_use]
    pub fn len(&self) -> usize {
        self.jobs.len()
    }

    /// True if no job is known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }
}

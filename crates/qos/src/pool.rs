//! Pools of targets: which target takes a new file or stripe (S7, section 5 of the Sunway paper).
//!
//! Each target of a pool has a `max_perf`, the bytes per second that the pool may use of it. A new
//! object goes to the target with the largest `max_perf / (open_count + 1)`; of equal ones to the
//! first. For objects of equal size no other distribution of N objects ends earlier: as long as the
//! next object goes where it is served fastest, no target has one that another would end sooner.
//!
//! Invariants:
//!  1. The same calls in the same order choose the same targets on every host.
//!  2. A target that is down gets nothing; one that is slow gets nothing while another is not.
//!  3. Corrected performance is at most `max_perf`, and at least a sixteenth of it, or of what was
//!     measured before: a suspected target keeps getting the objects that show whether it is slow.
//!
//! Elsewhere: the caps that enforce `max_perf` are buckets of the scheduler.

use std::fmt;

/// Most targets of a pool; every choice looks at each.
pub const TARGETS_MAX: usize = 1024;
/// The least part of `max_perf` to which observations correct it.
const CORRECTED_MIN_DIVISOR: u64 = 16;
/// Weight of an observation: an eighth, so that one slow interval halves nothing.
const OBSERVATION_DIVISOR: u64 = 8;

/// A target of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Member {
    target: u32,
    bytes_per_second_max: u64,
    bytes_per_second_min: u64,
    bytes_per_second: u64,
    /// Without the corrections downwards of the present suspicion.
    bytes_per_second_well: u64,
    open_count: u64,
    is_up: bool,
    is_slow: bool,
}

impl Member {
    /// Whether this target serves a new object faster than the other; equal ones do not.
    fn is_better_than(&self, other: &Member) -> bool {
        let own = u128::from(self.bytes_per_second) * (u128::from(other.open_count) + 1);
        own > u128::from(other.bytes_per_second) * (u128::from(self.open_count) + 1)
    }
}

/// Why there is no such pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolError {
    /// It has no target.
    Empty,
    /// It has more than `TARGETS_MAX` targets.
    TooManyTargets,
    /// The target is named twice.
    Repeated(u32),
    /// The performance of the target is 0.
    NoPerformance(u32),
}

impl fmt::Display for PoolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PoolError::Empty => write!(f, "the pool has no target: name at least one"),
            PoolError::TooManyTargets => {
                write!(f, "the pool has more than {TARGETS_MAX} targets: divide it")
            }
            PoolError::Repeated(target) => {
                write!(f, "target {target} is in the pool twice: name it once")
            }
            PoolError::NoPerformance(target) => {
                write!(
                    f,
                    "max_perf of target {target} is 0: give bytes per second, or leave it out"
                )
            }
        }
    }
}

impl std::error::Error for PoolError {}

/// A pool of targets.
#[derive(Clone, Debug)]
pub struct Pool {
    members: Vec<Member>,
}

impl Pool {
    /// A pool of targets, each with its `max_perf` in bytes per second.
    ///
    /// # Errors
    /// No target, too many, one twice, or one without performance.
    pub fn new(targets: &[(u32, u64)]) -> Result<Pool, PoolError> {
        if targets.is_empty() {
            return Err(PoolError::Empty);
        }
        if targets.len() > TARGETS_MAX {
            return Err(PoolError::TooManyTargets);
        }
        let mut members: Vec<Member> = Vec::with_capacity(targets.len());
        for &(target, max_perf) in targets {
            if max_perf == 0 {
                return Err(PoolError::NoPerformance(target));
            }
            if members.iter().any(|member| member.target == target) {
                return Err(PoolError::Repeated(target));
            }
            members.push(Member {
                target,
                bytes_per_second_max: max_perf,
                bytes_per_second_min: (max_perf / CORRECTED_MIN_DIVISOR).max(1),
                bytes_per_second: max_perf,
                bytes_per_second_well: max_perf,
                open_count: 0,
                is_up: true,
                is_slow: false,
            });
        }
        Ok(Pool { members })
    }

    /// Chooses the target of a new object, which is open from now on; `None` if all targets are down.
    pub fn choose(&mut self) -> Option<u32> {
        let all_slow = self.members.iter().all(|member| member.is_slow || !member.is_up);
        let mut best: Option<&mut Member> = None;
        let may = |member: &&mut Member| member.is_up && (all_slow || !member.is_slow);
        for member in self.members.iter_mut().filter(may) {
            if best.as_ref().is_none_or(|best| member.is_better_than(best)) {
                best = Some(member);
            }
        }
        let best = best?;
        best.open_count = best.open_count.saturating_add(1);
        Some(best.target)
    }

    /// An object of this target is closed. A target outside of the pool, or a close too many,
    /// changes nothing: counts come from clients that may be killed.
    pub fn close(&mut self, target: u32) {
        if let Some(member) = self.member(target) {
            member.open_count = member.open_count.saturating_sub(1);
        }
    }

    /// Replaces the number of open objects by a count of them, for instance after a restart.
    pub fn recount(&mut self, target: u32, open_count: u64) {
        if let Some(member) = self.member(target) {
            member.open_count = open_count;
        }
    }

    /// The target stopped or came back.
    pub fn set_up(&mut self, target: u32, is_up: bool) {
        if let Some(member) = self.member(target) {
            member.is_up = is_up;
        }
    }

    /// True if a target of the pool is up.
    #[must_use]
    pub fn is_up(&self, target: u32) -> bool {
        self.members.iter().any(|member| member.target == target && member.is_up)
    }

    /// The target was found slow (`slow`).
    pub fn set_slow(&mut self, target: u32) {
        if let Some(member) = self.member(target) {
            member.is_slow = true;
        }
    }

    /// The target is not slow, and not suspected any more: it has the performance that it had before it
    /// was. Nothing else would raise it while its clients ask for less.
    pub fn set_well(&mut self, target: u32) {
        if let Some(member) = self.member(target) {
            member.is_slow = false;
            member.bytes_per_second = member.bytes_per_second_well;
        }
    }

    /// The performance of a target was measured when it started: until more is seen it has this one.
    pub fn set_measured(&mut self, target: u32, bytes_per_second: u64) {
        let Some(member) = self.member(target) else { return };
        let measured = bytes_per_second.clamp(1, member.bytes_per_second_max);
        member.bytes_per_second = measured;
        member.bytes_per_second_well = measured;
        member.bytes_per_second_min = (measured / CORRECTED_MIN_DIVISOR).max(1);
    }

    /// Corrects a target's performance by what was seen while it was busy, in bytes per second;
    /// downwards, until it is well.
    /// Intervals in which it waited for work say nothing and must not be given here.
    pub fn observe(&mut self, target: u32, bytes_per_second: u64) {
        let Some(member) = self.member(target) else { return };
        let (most, least) = (member.bytes_per_second_max, member.bytes_per_second_min);
        let (old, seen) = (member.bytes_per_second, bytes_per_second.clamp(least, most));
        // Rounded away from the old value: it arrives at what is seen, and does not stop short of it.
        member.bytes_per_second = if seen > old {
            old + (seen - old).div_ceil(OBSERVATION_DIVISOR)
        } else {
            old - (old - seen).div_ceil(OBSERVATION_DIVISOR)
        };
        member.bytes_per_second_well = member.bytes_per_second_well.max(member.bytes_per_second);
    }

    /// Corrected performance of a target in bytes per second; `None` outside of the pool.
    #[must_use]
    pub fn bytes_per_second(&self, target: u32) -> Option<u64> {
        let member = self.members.iter().find(|member| member.target == target)?;
        Some(member.bytes_per_second)
    }

    /// Open objects of a target; `None` outside of the pool.
    #[must_use]
    pub fn open_count(&self, target: u32) -> Option<u64> {
        let member = self.members.iter().find(|member| member.target == target)?;
        Some(member.open_count)
    }

    fn member(&mut self, target: u32) -> Option<&mut Member> {
        self.members.iter_mut().find(|member| member.target == target)
    }
}

//! Admission: a write that needs space waits in a queue until there is some (O10; the paper's Cs-w
//! is 0: all space is given out, and then writes are blocked).
//!
//! Memory is allocated first, then the SSD. Nobody waits for memory while the SSD has space,
//! because whatever would be demoted for that request goes to the same device. A request that finds
//! neither waits here, in order of arrival: while one waits, no later request allocates an extent,
//! so large extents are not starved by small ones. Requests that need no new extent, and reads,
//! bypass the queue.
//!
//!   run --no space, or others wait--> waiting           Effect::Wait
//!   waiting --its turn, and there is space--> answered
//!   waiting --its turn, a device must provision--> parked (`space::pool`), perhaps back to its place;
//!             the device is asked once for each request, whatever it answered to earlier ones
//!   waiting --its turn, some of its bytes must be filled first--> waiting for those (`fill`),
//!             perhaps back to its place; those behind it proceed meanwhile
//!   waiting --nothing leaves, and nobody else can free space--> ENOSPC, EDQUOT
//!                                                       Effect::RequestSpace, Input::SpaceReported
//!   waiting --the same, but a device failed--> EIO
//!   waiting --the timeout is over--> the same; but Busy while writeback makes extents evictable
//!   waiting --its file is removed--> ESTALE
//!   waiting --Input::Withdraw--> Busy
//!
//! Space that will be freed: extents whose hazard pointers have not been checked yet, moves, clean
//! extents that can be evicted, preallocated extents that are reclaimed, and fills, because filled
//! extents are clean. A request waits only for a grace period, counted from when nothing else was
//! leaving, for extents that were found protected and for demotion into gaps of the SSD: a stopped
//! process may hold a hazard pointer forever. Files that are unlinked but whose removal has not
//! arrived here are queried by the caller; only a query issued after the request last had a
//! prospect of space decides about it.
//!
//! Invariants:
//!  1. `queue` is in the order in which its requests first waited.
//!  2. At the end of a step the first request was tried with the present space, unless a device is
//!     provisioning for an earlier one.

use crate::admission::bounded::BoundedWriters;
use crate::admission::job::{Job, Turn};
use crate::admission::stop::Stop;
use crate::effect::Effect;
use std::collections::VecDeque;
use wire::errno::Result;
use wire::reply::Extent;
use wire::{Errno, Inode};

/// How long a request waits for protected extents, or for possible demotion: a client holds a
/// hazard pointer for one copy. Also the pause between two space queries for requests that wait for
/// fills.
pub(crate) const GRACE_MILLIS: u32 = 200;

/// A request in the queue.
#[derive(Clone, Debug)]
pub(crate) struct Waiter {
    job: Job,
    turn: Turn,
    /// Something was leaving when the request was last tried.
    has_hope: bool,
    /// Errno if it is refused.
    errno: Errno,
}

/// The queue of requests that wait for space.
#[derive(Clone, Debug, Default)]
pub(crate) struct Admission {
    queue: VecDeque<Waiter>,
    next_number: u64,
    now: u32,
    /// When writeback was last reported to make progress that frees space.
    progressed_at: Option<u32>,
    /// Round of the last space query, and of the last one that reported that nothing will be freed.
    round: u64,
    round_judged: u64,
    /// Cleaning pass that must be over before that report counts: it makes all data evictable that
    /// was written back by then.
    pass_judged: u64,
    is_asking: bool,
    /// When space was last requested for what has no place in the queue: a zeroed extent over backed
    /// bytes, dirty bytes of a job that reached its bound, or the next writer, where files have copies.
    writeback_requested_at: Option<u32>,
    /// The devices were asked to provision for all requests up to this number, or have no more.
    provisioned_up_to: u64,
    /// The last operation of the SSD failed, and not for lack of space.
    has_failed: bool,
    /// Requests that wait for the bounds of their jobs, not for space.
    pub(crate) bounded: BoundedWriters,
}

impl Admission {
    /// True if no request waits for space.
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// True if the first request needs this extent: each time that it is tried it would cancel the
    /// eviction of it, for which nothing else was evicted.
    pub(crate) fn first_needs(&self, inode: Inode, extent: &Extent) -> bool {
        let need = self.queue.front().and_then(|first| first.job.need);
        need.is_some_and(|need| need.touches(inode, extent))
    }

    /// Number of waiting requests, those included that wait for the bounds of their jobs.
    pub(crate) fn len(&self) -> usize {
        self.queue.len() + self.bounded.len()
    }

    /// Notes the result of an SSD operation.
    pub(crate) fn note(&mut self, outcome: Result<()>) {
        self.has_failed = !matches!(outcome, Ok(()) | Err(Errno::ENOSPC | Errno::EDQUOT));
    }

    fn insert(&mut self, waiter: Waiter) {
        let at = self.queue.partition_point(|one| one.turn.number < waiter.turn.number);
        self.queue.insert(at, waiter);
    }

    fn refusal(&self, errno: Errno) -> Stop {
        Stop::Refused(if self.has_failed && errno == Errno::ENOSPC { Errno::EIO } else { errno })
    }

    /// Removes and returns the matching requests.
    pub(crate) fn take_jobs(&mut self, is_it: impl Fn(&Job) -> bool) -> Vec<Job> {
        let taken = self.take(|waiter| is_it(&waiter.job)).into_iter().map(|waiter| waiter.job);
        let mut taken: Vec<Job> = taken.collect();
        taken.extend(self.bounded.take_jobs(is_it));
        taken
    }

    fn take(&mut self, is_it: impl Fn(&Waiter) -> bool) -> Vec<Waiter> {
        if !self.queue.iter().any(&is_it) {
            return Vec::new();
        }
        let (taken, rest) = std::mem::take(&mut self.queue).into_iter().partition(is_it);
        self.queue = rest;
        Vec::from_iter::<VecDeque<Waiter>>(taken)
    }

    /// Queues a request that found no space, or that arrived behind waiting ones. `can_evict`:
    /// some clean extent may be evicted that was not protected when last tried.
    pub(crate) fn wait(
        &mut self,
        mut job: Job,
        stop: Stop,
        can_evict: bool,
        out: &mut Vec<Effect>,
    ) {
        let Admission { next_number, provisioned_up_to, round, .. } = self;
        job.tell_wait(out);
        let turn = job.turn.take().unwrap_or_else(|| {
            *next_number += 1;
            if job.has_provisioned {
                *provisioned_up_to = *next_number;
            }
            Turn { number: *next_number, since: None, hopeless_since: None, round: *round + 1 }
        });
        let (has_hope, errno) = match stop {
            Stop::Full(errno) => (false, errno),
            Stop::Evicting => (can_evict, Errno::ENOSPC),
            _ => (true, Errno::ENOSPC),
        };
        let turn = match has_hope {
            true => Turn { round: *round + 1, hopeless_since: None, ..turn },
            false => turn,
        };
        self.insert(Waiter { job, turn, has_hope, errno });
    }

    /// Takes the first request, to be tried again, and those behind it, to be put back by
    /// `put_behind`: meanwhile nobody waits. With the request, whether the devices must be asked
    /// again for it.
    pub(crate) fn take_first(&mut self) -> Option<(Job, bool, VecDeque<Waiter>)> {
        let Waiter { mut job, turn, .. } = self.queue.pop_front()?;
        let asks_again = turn.number > self.provisioned_up_to;
        if asks_again {
            self.provisioned_up_to = self.next_number;
        }
        job.turn = Some(turn);
        Some((job, asks_again, std::mem::take(&mut self.queue)))
    }

    /// Puts the requests back that `take_first` took. True if the first one is queued again because
    /// it did not get what it needs.
    pub(crate) fn put_behind(&mut self, behind: VecDeque<Waiter>) -> bool {
        let again = std::mem::replace(&mut self.queue, behind).pop_front();
        let is_again = again.is_some();
        again.into_iter().for_each(|first| self.queue.push_front(first));
        is_again
    }

    /// Takes the first request, to be refused for this reason.
    pub(crate) fn take_refused(&mut self) -> Option<(Job, Stop)> {
        let first = self.queue.pop_front()?;
        Some((first.job, self.refusal(first.errno)))
    }

    /// True if nothing in flight can free space for the first request. `has_passed`: this many
    /// cleaning passes are completed; `may_leave`: something may leave within the grace period.
    pub(crate) fn is_hopeless(
        &self,
        has_passed: impl FnOnce(u64) -> bool,
        may_leave: bool,
    ) -> bool {
        let Some(turn) = self.queue.front().map(|first| first.turn) else { return false };
        let waited = turn.hopeless_since.map_or(0, |since| self.now.wrapping_sub(since));
        let is_judged = turn.round <= self.round_judged && has_passed(self.pass_judged);
        is_judged && (waited >= GRACE_MILLIS || !may_leave)
    }

    /// Queries others for space that they can free, once nothing is leaving here. `needs_writeback`: a
    /// request waits for a zeroed extent over backed bytes, which needs space just as a write does, or
    /// has waited for space to fill for long, or dirty bytes of a job can leave only by writeback, or
    /// files with copies have to give them up.
    pub(crate) fn request_space(
        &mut self,
        now_millis: u32,
        needs_writeback: bool,
        out: &mut Vec<Effect>,
    ) {
        let Admission { queue, round, round_judged, is_asking, writeback_requested_at, .. } = self;
        let needs = |first: &Waiter| !first.has_hope && first.turn.round > *round_judged;
        let is_rested =
            writeback_requested_at.is_none_or(|at| now_millis.wrapping_sub(at) >= GRACE_MILLIS);
        let starves = needs_writeback && is_rested;
        if (queue.front().is_some_and(needs) || starves) && !*is_asking {
            *is_asking = true;
            if starves {
                *writeback_requested_at = Some(now_millis);
            }
            *round += 1;
            out.push(Effect::RequestSpace { round: *round });
        }
    }

    /// Handles the answer to a space query; it counts once cleaning pass `pass` is over.
    pub(crate) fn space_reported(
        &mut self,
        round: u64,
        (comes, progresses): (bool, bool),
        pass: u64,
    ) {
        if progresses {
            self.progressed_at = Some(self.now);
        }
        if round == self.round {
            self.is_asking = false;
            match (comes, self.queue.front_mut()) {
                (false, _) => (self.round_judged, self.pass_judged) = (round, pass),
                (true, first) => first.into_iter().for_each(|one| one.turn.hopeless_since = None),
            }
        }
    }

    /// True if writeback made progress that frees space within the last `millis` milliseconds.
    pub(crate) fn writeback_makes_progress(&self, millis: u32) -> bool {
        self.progressed_at.is_some_and(|at| self.now.wrapping_sub(at) < millis)
    }

    /// Sets the time. Takes the requests that have waited longer than `enospc_timeout_millis`, to
    /// be refused for these reasons.
    pub(crate) fn take_late(
        &mut self,
        now_millis: u32,
        enospc_timeout_millis: u32,
    ) -> Vec<(Job, Stop)> {
        self.now = now_millis;
        for waiter in &mut self.queue {
            waiter.turn.since.get_or_insert(now_millis);
            if !waiter.has_hope {
                waiter.turn.hopeless_since.get_or_insert(now_millis);
            }
        }
        let is_late = |since: u32| now_millis.wrapping_sub(since) >= enospc_timeout_millis;
        let late = self.take(|waiter| waiter.turn.since.is_some_and(is_late));
        let progresses = self.writeback_makes_progress(enospc_timeout_millis);
        let refused = late.into_iter().map(|waiter| {
            let stop = self.refusal(waiter.errno);
            (waiter.job, if progresses { Stop::InProgress } else { stop })
        });
        refused.collect()
    }

    /// Checks the invariants; for tests.
    #[cfg(test)]
    pub(crate) fn check(&self) {
        let numbers = self.queue.iter().map(|waiter| waiter.turn.number);
        assert!(numbers.is_sorted());
        let makes = |waiter: &Waiter| waiter.job.work.makes_extents();
        assert!(self.queue.iter().all(makes));
    }
}

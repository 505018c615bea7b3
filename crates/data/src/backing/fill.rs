//! Filling: files of which the backing store may have bytes that are not here (`may_need_fill`).
//! Such bytes come on demand, extent by extent.
//!
//! An extent of such a file is published when the bytes from the backing store are in it, never
//! before. So an extent that is here is like any other, for clients and for this crate; only where
//! there is none, the backing store may have one. A request that needs such an extent waits (`Job`)
//! until it is here, and then runs as if it always had been. The file's shard knows how much of the
//! file the backing store has; it is queried once, the answer is kept here (`backed_ends`), and
//! lowered when the file is truncated.
//!
//! `target::filling` decides which bytes a request needs and whether it waits. This module holds the
//! fills in flight, the known size of each file in the backing store, and the requests that wait.
//!
//!   none --needed--> in flight --Input::Filled--> published
//!                    in flight --truncated, removed--> void --Input::Filled--> none
//!
//! Invariants:
//!  1. `backed_ends` never exceeds what the shard would answer after the last truncation that came
//!     here.
//!  2. An extent in flight has a location and a reserved slot, and none of its range is published.

use crate::admission::job::{Job, Need, NeedKind};
use crate::admission::job_shares::JobShares;
use crate::admission::stop::Stop;
use crate::backing::fill_rate::FillRate;
use crate::effect::{Effect, FillJob, Haste, Validity};
use crate::space::buddy::BlockContents;
use crate::space::pool::{ClaimError, Pool};
use crate::tiering::Tiering;
use placement::extent::Span;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use wire::errno::Result;
use wire::reply::Extent;
use wire::{Errno, Inode, Layout};

/// Most extents in flight: enough to keep a parallel file system busy, and no more memory than that
/// is tied up.
const UNDER_WAY_MAX: usize = 32;
/// Those of one job: more than there are threads to read (17 at most), and with those of prefetching less
/// than all, so that a store that stands still for the files of one job does not for those of others.
const JOB_UNDER_WAY_MAX: usize = 20;
const _: () = assert!(JOB_UNDER_WAY_MAX + PREFETCHED_MAX < UNDER_WAY_MAX);
/// Those of prefetch requests: twice the number of threads that read a directory.
pub(crate) const PREFETCHED_MAX: usize = 8;
/// Most files whose ends are remembered.
const ENDS_MAX: usize = 1 << 16;

/// Why an extent is filled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Purpose {
    /// The tier to fill; `None`: as for any new extent.
    pub(crate) tier: Option<u8>,
    /// The prefetch list that names it, and the index there.
    pub(crate) list: Option<(u64, u64)>,
    /// Nobody reads it yet.
    pub(crate) is_prefetch: bool,
}

impl Purpose {
    /// Somebody waits for it, or will in a moment.
    pub(crate) const STREAM: Purpose = Purpose { tier: None, list: None, is_prefetch: false };
}

/// An extent to fill.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FillRequest {
    pub(crate) inode: Inode,
    pub(crate) span: Span,
    /// How many bytes of the file the backing store has.
    pub(crate) counts: u64,
    pub(crate) purpose: Purpose,
    /// The job that wants it.
    pub(crate) job: FillJob,
}

/// A completed fill: its purpose and its result.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FillEnd {
    pub(crate) inode: Inode,
    pub(crate) extent: Extent,
    pub(crate) purpose: Purpose,
    /// The bytes, or the location, do not belong to the file any more.
    pub(crate) is_void: bool,
}

/// An extent that is being filled.
#[derive(Clone, Copy, Debug)]
struct Filling {
    ticket: u64,
    extent: Extent,
    purpose: Purpose,
    job: FillJob,
    /// The bytes no longer belong to the file.
    is_void: bool,
}

/// Fills in flight, and the requests that wait for them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fills {
    /// For each file, how many bytes the backing store has, and its layout.
    backed_ends: BTreeMap<Inode, (u64, Layout)>,
    /// Files whose shard is queried for that, and the least size to which they were truncated
    /// since.
    end_queries: BTreeMap<Inode, u64>,
    /// Queried files whose answer will be out of date.
    late: BTreeSet<Inode>,
    under_way: BTreeMap<(Inode, u64), Filling>,
    /// Requests that wait for something, in order of arrival.
    waiting: VecDeque<Job>,
    /// The need of the first request that finds no space. Its extents that are here stay, and no
    /// later request takes space that becomes free. So each gets its turn, although all together
    /// need more space than there is.
    starving: Option<Need>,
    /// The request at the head punches a hole, which frees space only after writeback. Writeback
    /// may itself need to read, so later requests may proceed and readers bypass the queue.
    may_bypass: bool,
    ticket_next: u64,
    shares: JobShares,
    pub(crate) rate: FillRate,
}

impl Fills {
    /// True if the backing store may have bytes at `offset` or after it.
    pub(crate) fn counts(&self, inode: Inode, offset: u64) -> bool {
        self.end(inode).is_some_and(|end| offset < end)
    }

    /// Forgets how much of a file the backing store has, because it may have more; an answer in
    /// flight is discarded, too.
    pub(crate) fn forget_end(&mut self, inode: Inode) {
        self.backed_ends.remove(&inode);
        if self.end_queries.contains_key(&inode) {
            self.late.insert(inode);
        }
    }

    /// True if fills are in flight, whose extents may be evicted when they are here.
    pub(crate) fn is_filling(&self) -> bool {
        !self.under_way.is_empty()
    }

    /// True if a request waits for space.
    pub(crate) const fn is_starving(&self) -> bool {
        self.starving.is_some()
    }

    /// True if a request that punches a hole waits for space.
    pub(crate) fn is_starving_to_punch(&self) -> bool {
        self.starving.is_some_and(|need| need.kind == NeedKind::Punches)
    }

    /// True if a request has waited for space for so long: although something is to free some (moves,
    /// fills), that may itself wait.
    pub(crate) fn is_starving_for(&self, millis: u32, now: u32) -> bool {
        let starves = |since: u32| now.wrapping_sub(since) >= millis;
        self.is_starving() && self.waiting.iter().any(|job| job.starves_since.is_some_and(starves))
    }

    /// True if the waiting request needs this extent.
    pub(crate) fn starves_for(&self, inode: Inode, extent: &Extent) -> bool {
        self.starving.is_some_and(|need| need.touches(inode, extent))
    }

    /// How many bytes of a file the backing store has, if known.
    pub(crate) fn end(&self, inode: Inode) -> Option<u64> {
        self.backed_ends.get(&inode).map(|&(end, _)| end)
    }

    pub(crate) fn layout(&self, inode: Inode) -> Option<Layout> {
        self.backed_ends.get(&inode).map(|&(_, layout)| layout)
    }

    /// True if the extent that begins at `start` is in flight.
    pub(crate) fn is_filling_at(&self, inode: Inode, start: u64) -> bool {
        self.under_way.contains_key(&(inode, start))
    }

    /// True if fills that nobody waits for leave room for fills that somebody will, and those of a job
    /// for those of others.
    pub(crate) fn has_space_for_readahead(&self, job: FillJob) -> bool {
        self.under_way.len() < UNDER_WAY_MAX / 2 && !self.is_others_turn(job)
    }

    /// True if a job has as many fills in flight as one may.
    fn has_most(&self, job: FillJob) -> bool {
        let own = self.under_way.values().filter(|one| one.job == job && !one.purpose.is_prefetch);
        own.count() >= JOB_UNDER_WAY_MAX
    }

    fn is_others_turn(&self, job: FillJob) -> bool {
        self.shares.is_others_turn(job, self.under_way.values().map(|one| one.job))
    }

    /// All that wait were admitted again. True if some would begin a fill, and may.
    pub(crate) fn end_round(&mut self) -> bool {
        let some_wait = self.shares.end_round();
        some_wait && self.under_way.len() < UNDER_WAY_MAX && !self.is_held_up()
    }

    /// Number of extents in flight for prefetch requests.
    pub(crate) fn prefetch_count(&self) -> usize {
        self.under_way.values().filter(|one| one.purpose.is_prefetch).count()
    }

    /// Bytes in flight for a prefetch list.
    pub(crate) fn bytes_of_list(&self, list: u64) -> u64 {
        let of_list = |one: &&Filling| one.purpose.list.is_some_and(|one| one.0 == list);
        self.under_way.values().filter(of_list).map(|one| one.extent.length()).sum()
    }

    /// Queues a request until what it waits for has come.
    pub(crate) fn push_waiting(&mut self, job: Job) {
        self.waiting.push_back(job);
    }

    /// The bytes beyond `from` of extents in flight do not belong to the file any more.
    fn void(&mut self, inode: Inode, from: u64) {
        for (_, filling) in self.under_way.range_mut((inode, 0)..=(inode, u64::MAX)) {
            filling.is_void |= filling.extent.start + filling.extent.length() > from;
        }
    }

    /// The first request that finds no space, or a later one: see `starving`. `may_bypass` says
    /// whether others proceed meanwhile.
    pub(crate) fn begin_starving(&mut self, job: Job, may_bypass: bool) {
        if self.starving.is_none() {
            self.starving = job.need;
            self.may_bypass = may_bypass;
        }
        self.waiting.push_back(job);
    }

    /// True if no fill may begin, because an earlier request waits for space.
    pub(crate) const fn is_held_up(&self) -> bool {
        self.starving.is_some() && !self.may_bypass
    }

    /// True if the extent must stay for a request that others bypass.
    pub(crate) fn stays_for_bypassed(&self, inode: Inode, extent: &Extent) -> bool {
        self.may_bypass && self.starves_for(inode, extent)
    }

    /// Takes all waiting requests, to be admitted again.
    pub(crate) fn take_waiting(&mut self) -> VecDeque<Job> {
        self.starving = None;
        core::mem::take(&mut self.waiting)
    }

    /// Removes a waiting request. False if there is none.
    pub(crate) fn forget_waiting(&mut self, ticket: u64) -> bool {
        let found = self.waiting.iter().position(|job| job.ticket == ticket);
        found.is_some_and(|at| self.waiting.remove(at).is_some())
    }

    /// Refuses the matching waiting requests.
    pub(crate) fn refuse_waiting(
        &mut self,
        is_it: impl Fn(&Job) -> bool,
        errno: Errno,
        out: &mut Vec<Effect>,
    ) {
        let waiting = core::mem::take(&mut self.waiting);
        for waiter in waiting {
            match is_it(&waiter) {
                true => Stop::Refused(errno).answer_to(waiter.ticket, out),
                false => self.waiting.push_back(waiter),
            }
        }
    }

    /// Takes a location and a slot for a new extent of a file; see `Pool::claim`.
    pub(crate) fn claim_space(
        &self,
        pool: &mut Pool,
        tiering: &mut Tiering,
        (inode, span, tier): (Inode, Span, Option<u8>),
        out: &mut Vec<Effect>,
    ) -> core::result::Result<(Extent, BlockContents), Stop> {
        pool.claim(inode, span, tier, out).map_err(|error| match error {
            ClaimError::Stop(stop) => stop,
            ClaimError::NoSpace { errno, length } => self.no_space(pool, tiering, errno, length),
        })
    }

    /// Decides what a request waits for when nothing is free: for extents whose hazard pointers
    /// have not been checked yet, or that are moved, filled or can be evicted.
    pub(crate) fn no_space(
        &self,
        pool: &mut Pool,
        tiering: &mut Tiering,
        errno: Errno,
        length: u64,
    ) -> Stop {
        if pool.is_freeing() {
            return Stop::Busy;
        }
        if tiering.order.clean.need(length) {
            return Stop::Evicting;
        }
        if tiering.moves.count() > 0 || self.is_filling() {
            return Stop::Busy;
        }
        if pool.need_preallocated() { Stop::Reclaiming } else { Stop::Full(errno) }
    }

    /// Fills one extent. False if too many are in flight, or others come first.
    pub(crate) fn fill_one(
        &mut self,
        pool: &mut Pool,
        tiering: &mut Tiering,
        request: FillRequest,
        out: &mut Vec<Effect>,
    ) -> core::result::Result<bool, Stop> {
        let FillRequest { inode, span, counts, purpose, job } = request;
        if self.under_way.contains_key(&(inode, span.start)) {
            return Ok(true);
        }
        let is_full = self.under_way.len() >= UNDER_WAY_MAX;
        if purpose.is_prefetch {
            // It has a limit of its own, and nobody waits for it.
            if is_full {
                return Ok(false);
            }
        } else if self.has_most(job) {
            return Ok(false);
        } else if is_full || self.is_others_turn(job) {
            self.shares.refuse(job);
            return Ok(false);
        }
        let (extent, _) = self.claim_space(pool, tiering, (inode, span, purpose.tier), out)?;
        let ticket = self.ticket_next;
        self.ticket_next += 1;
        let filling = Filling { ticket, extent, purpose, job, is_void: false };
        self.under_way.insert((inode, span.start), filling);
        let length = counts.min(span.end()) - span.start;
        let haste = if purpose.is_prefetch { Haste::Soon } else { Haste::Now };
        out.push(Effect::Fill { ticket, inode, extent, length, haste, job });
        self.rate.begins(pool.now);
        Ok(true)
    }

    /// Completion of a fill: the extent is published if its bytes came, and its location released
    /// if not. `None`: no such fill is in flight.
    pub(crate) fn end_fill(
        &mut self,
        pool: &mut Pool,
        tiering: &mut Tiering,
        (ticket, is_filled): (u64, bool),
        out: &mut Vec<Effect>,
    ) -> Option<FillEnd> {
        let found = self.under_way.iter().find(|(_, filling)| filling.ticket == ticket);
        let (&key, &Filling { extent, purpose, is_void, .. }) = found?;
        let inode = key.0;
        self.under_way.remove(&key);
        let is_last = !self.is_filling();
        self.rate.note_filled(extent.length(), is_last, pool.now);
        // A request that punched a hole over all of it allocated it meanwhile.
        let end = extent.start + extent.length();
        let is_void = is_void || pool.slots().over(inode, extent.start, end).next().is_some();
        if is_filled && !is_void {
            pool.occupy(inode, &extent);
            tiering.order.watch_clean(pool, inode, &extent);
            let valid = if purpose.is_prefetch { Validity::Backing } else { Validity::Fetched };
            out.push(Effect::Publish { inode, extent, valid });
        } else {
            pool.unclaim(inode, &extent);
        }
        Some(FillEnd { inode, extent, purpose, is_void })
    }

    /// Queries the file's shard for how much of it the backing store has.
    pub(crate) fn query_end(&mut self, inode: Inode, out: &mut Vec<Effect>) {
        if let Entry::Vacant(end_queries) = self.end_queries.entry(inode) {
            end_queries.insert(u64::MAX);
            out.push(Effect::LocateBacking { inode });
        }
    }

    /// Handles the shard's answer. False if it is not expected, or out of date: then the shard is
    /// queried again.
    pub(crate) fn note_located(
        &mut self,
        inode: Inode,
        outcome: Result<(u64, Layout)>,
        out: &mut Vec<Effect>,
    ) -> bool {
        if self.late.remove(&inode) {
            out.push(Effect::LocateBacking { inode });
            return false;
        }
        let Some(cut) = self.end_queries.remove(&inode) else { return false };
        if let Ok((end, layout)) = outcome {
            if self.backed_ends.len() >= ENDS_MAX {
                self.backed_ends.clear();
            }
            self.backed_ends.insert(inode, (end.min(cut), layout));
        }
        true
    }

    /// The file is truncated: the backing store's bytes beyond `size` do not belong to it any more.
    pub(crate) fn truncate(&mut self, inode: Inode, size: u64) {
        let end = self.backed_ends.get_mut(&inode).map(|(end, _)| end);
        for end in [end, self.end_queries.get_mut(&inode)].into_iter().flatten() {
            *end = size.min(*end);
        }
        self.void(inode, size);
    }

    /// The file is removed.
    pub(crate) fn forget_file(&mut self, inode: Inode) {
        self.late.remove(&inode);
        self.backed_ends.remove(&inode);
        self.end_queries.remove(&inode);
        self.void(inode, 0);
    }

    /// Requests that waited for space and now wait for bytes, for checks.
    #[cfg(test)]
    pub(crate) fn tickets_with_turn(&self) -> BTreeSet<u64> {
        let waiting = self.waiting.iter().filter(|job| job.turn.is_some());
        waiting.map(|job| job.ticket).collect()
    }

    /// True if nothing is in flight and nobody waits, for checks.
    #[cfg(test)]
    pub(crate) fn is_at_rest(&self) -> bool {
        self.under_way.is_empty() && self.waiting.is_empty()
    }
}

//! Shortage: a request finds no space. It waits in the queue of writers, or starves among those that
//! wait for bytes; it goes on when something became free, and is refused when nothing can
//! (`admission::queue` has the queue and its rules).
//!
//!   no space --new extents are needed--> in the queue    `refuse_or_wait`
//!   no space --its extents from the backing store must be here at once--> starving   `starve`
//!   in the queue --its turn--> admitted again            `admit_writers`
//!   starving --anything ended--> admitted again          `admit_waiting`
//!   its job is at its bound on dirty bytes --> the SSD, or it waits beside the queue   `tier_for`
//!   waits there --enough of them leave--> admitted again   `admit_bounded`
//!   any --nothing goes, too late, or its file is gone--> refused   `refuse`

use super::Target;
use crate::admission::job::{Job, Need, NeedKind};
use crate::admission::queue::GRACE_MILLIS;
use crate::admission::stop::Stop;
use crate::admission::work::Work;
use crate::backing::cleaning::SSD_FREE_PARTS;
use crate::effect::Effect;
use placement::extent;
use qos::dirty::DirtyJob;
use wire::reply::Extent;
use wire::{Errno, Inode};

/// A request that waits for space for this time is refused.
const STARVING_MILLIS: u32 = 10_000;

impl Target {
    /// Handles a request whose extents cannot be allocated now.
    pub(super) fn refuse_or_wait(&mut self, job: Job, stop: Stop, out: &mut Vec<Effect>) {
        match stop {
            Stop::Full(_) | Stop::Queued | Stop::Busy | Stop::Reclaiming | Stop::Evicting
                if job.work.makes_extents() =>
            {
                self.queue(job, stop, out);
            }
            Stop::OverBound(length) if let Some(writer) = job.writer => {
                self.pool.admission.bounded.wait(writer, job, length, out);
            }
            stop => self.refuse(&job, stop, out),
        }
    }

    /// Where a job gets an extent: `None`, in any tier. At the usual bound on dirty bytes that is the
    /// SSD, as if memory were full; at that of a rule, or without space there, the job waits while some
    /// of its bytes can leave, and behind earlier requests of its own.
    pub(super) fn tier_for(
        &mut self,
        of: Option<DirtyJob>,
        length: u64,
    ) -> Result<Option<u8>, Stop> {
        let Some(of) = of else { return Ok(None) };
        let Target { pool, tiering, backed, .. } = self;
        if pool.admission.bounded.has(of) {
            return Err(Stop::OverBound(length));
        }
        let can_demote = tiering.can_demote_dirty(pool);
        let can_leave = can_demote || backed.cleaning.has_backing();
        if !can_leave || !tiering.has_reached_bound(pool, of, length) {
            return Ok(None);
        }
        let has_place = can_demote && pool.ssd().bytes_free() >= length;
        match has_place && !tiering.order.dirty.has_rule(of) {
            true => Ok(Some(Extent::SSD)),
            false => Err(Stop::OverBound(length)),
        }
    }

    /// True if this many bytes more would bring a job to its bound.
    pub(super) fn is_near_bound(&self, of: Option<DirtyJob>, more: u64) -> bool {
        let Target { pool, tiering, backed, .. } = self;
        let can_leave = tiering.can_demote_dirty(pool) || backed.cleaning.has_backing();
        can_leave && of.is_some_and(|of| tiering.order.dirty.is_near_bound(of, more))
    }

    /// Retries the requests of jobs that had reached their bounds.
    pub(super) fn admit_bounded(&mut self, out: &mut Vec<Effect>) {
        if self.pool.admission.bounded.is_empty() {
            return;
        }
        for (of, mut length) in self.pool.admission.bounded.jobs() {
            while !self.tiering.has_reached_bound(&self.pool, of, length)
                && let Some((job, behind)) = self.pool.admission.bounded.take_first(of)
            {
                self.admit(job, out);
                let waits_again = self.pool.admission.bounded.put_behind(of, behind);
                match self.pool.admission.bounded.first(of).filter(|_| !waits_again) {
                    Some(next) => length = next,
                    None => break,
                }
            }
        }
    }

    fn queue(&mut self, job: Job, stop: Stop, out: &mut Vec<Effect>) {
        let can_evict = self.tiering.order.clean.has_hope();
        self.pool.admission.wait(job, stop, can_evict, out);
    }

    /// Refuses a request, for lack of space or another reason. A read is served from the backing
    /// store instead, and the bytes are not cached.
    pub(super) fn refuse(&self, job: &Job, stop: Stop, out: &mut Vec<Effect>) {
        let is_for_space = matches!(
            stop,
            Stop::Refused(Errno::ENOSPC | Errno::EDQUOT) | Stop::Full(_) | Stop::OverLimit(_)
        );
        match self.uncached_read(job).filter(|_| is_for_space) {
            Some(effect) => out.push(effect),
            None => stop.answer_to(job.ticket, out),
        }
    }

    /// How a read is answered from the backing store without caching: possible if it is within one
    /// extent's range of which nothing is here.
    fn uncached_read(&self, job: &Job) -> Option<Effect> {
        let (&Work::Read { inode, offset, length }, Some(need)) = (&job.work, job.need) else {
            return None;
        };
        let span = extent::at(offset, need.stripe_log2);
        let is_absent = self.pool.is_vacant(inode, &span);
        let counts = self.backed.fills.end(inode)?;
        let backing = counts.saturating_sub(offset).min(length.into()) as u32;
        let (ticket, job) = (job.ticket, need.job);
        (need.end <= span.end() && is_absent).then_some(Effect::ReadBacking {
            ticket,
            inode,
            offset,
            length,
            backing,
            job,
        })
    }

    /// Lets a request wait for space; for a limited time, and not if only its own extents could be
    /// evicted.
    pub(super) fn starve(&mut self, mut job: Job, stop: Stop, out: &mut Vec<Effect>) {
        let now = self.tiering.order.clean.waiting_millis();
        if job.work.makes_extents() {
            job.tell_wait(out);
        }
        let since = *job.starves_since.get_or_insert(now);
        let waited = now.wrapping_sub(since);
        // As for writers, protected extents are waited for only during a grace period.
        let may_leave = waited < GRACE_MILLIS && (self.leaving_count() > 0 || self.is_demoting());
        let is_coming = self.backed.fills.is_filling() || self.moves_count() > 0 || may_leave;
        let nothing_goes = !is_coming && !self.has_clean_beside(job.need);
        // Writeback may make something evictable.
        let writeback_may_free = nothing_goes && self.backed.cleaning.has_backing();
        let punches = matches!(job.work, Work::Clear { .. });
        if writeback_may_free && stop == Stop::Evicting && job.work.makes_extents() {
            return self.queue(job, Stop::Full(Errno::ENOSPC), out);
        }
        let is_hopeless =
            nothing_goes && stop == Stop::Evicting && !(writeback_may_free && punches);
        if is_hopeless || waited >= STARVING_MILLIS {
            let progresses = !job.need.is_some_and(|need| need.kind == NeedKind::Reads)
                && self.pool.admission.writeback_makes_progress(STARVING_MILLIS);
            let stop = if progresses { Stop::InProgress } else { Stop::Refused(Errno::ENOSPC) };
            return self.refuse(&job, stop, out);
        }
        self.backed.fills.begin_starving(job, writeback_may_free && punches);
    }

    /// True if the needed extents that are here must stay for the waiting request.
    pub(super) fn retains_for(&self, need: Option<Need>) -> bool {
        let is_filled = |need: Need| {
            let counts = self.backed.fills.end(need.inode);
            // An extent that begins before the end has such bytes, wherever the request begins in it.
            counts.is_some_and(|counts| need.spans(counts).next().is_some())
        };
        need.is_some_and(|need| {
            let inode = need.inode;
            inode.is_backed() || self.backed.cleaning.may_need_fill(inode) && is_filled(need)
        })
    }

    /// True if some clean extent can be evicted that neither this request nor one that is bypassed
    /// needs. Those are a few extents.
    fn has_clean_beside(&self, need: Option<Need>) -> bool {
        let clean = self.tiering.order.clean.slots();
        let mut extents = clean.filter_map(|slot| self.pool.slots().get(slot));
        let is_own = |(inode, extent): (Inode, Extent)| {
            need.is_some_and(|need| need.touches(inode, &extent))
        };
        let stays =
            |(inode, extent): (Inode, Extent)| self.backed.fills.stays_for_bypassed(inode, &extent);
        extents.any(|one| !is_own(one) && !stays(one))
    }

    /// Retries the waiting requests in order, each once those before it have their extents or were
    /// refused. Then others are asked for space, once nothing is leaving here.
    pub(super) fn admit_writers(&mut self, out: &mut Vec<Effect>) {
        while !self.pool.is_parked()
            && let Some((job, asks_again, behind)) = self.pool.admission.take_first()
        {
            if asks_again {
                self.pool.ask_devices_again();
            }
            self.admit(job, out);
            if !self.pool.admission.put_behind(behind) {
                continue;
            }
            if !self.is_hopeless() {
                break;
            }
            if let Some((job, stop)) = self.pool.admission.take_refused() {
                self.refuse(&job, stop, out);
            }
        }
        let fills = &self.backed.fills;
        let now = self.tiering.order.clean.waiting_millis();
        let starves = fills.is_starving_to_punch() || fills.is_starving_for(GRACE_MILLIS, now);
        let needs_copies =
            !self.pool.admission.bounded.is_empty() && !self.tiering.can_demote_dirty(&self.pool);
        let has_backing = self.backed.cleaning.has_backing();
        let needs_writeback = starves || needs_copies || self.is_nearly_full();
        let now = self.pool.now;
        self.pool.admission.request_space(now, has_backing && needs_writeback, out);
    }

    /// True if files with copies are to give them up before the next writer waits: a copy that waits too
    /// long for the space of its bytes is dropped.
    fn is_nearly_full(&self) -> bool {
        let (memory, ssd) = (self.pool.memory(), self.pool.ssd());
        let reserve = self.pool.of_allowance(self.tiering.order.clean.reserve_bytes());
        self.backed.cleaning.has_copies()
            && memory.bytes_free() < reserve
            && ssd.bytes_free() <= ssd.bytes_total() / SSD_FREE_PARTS
    }

    /// True if nothing in flight can free space for the first request.
    fn is_hopeless(&mut self) -> bool {
        let may_leave =
            self.leaving_count() > 0 || self.is_demoting() || !self.tiering.order.clean.is_empty();
        let cleaning = &self.backed.cleaning;
        self.pool.admission.is_hopeless(|pass| cleaning.is_pass_over(pass), may_leave)
    }

    /// The sender of a request does not wait for space, or not any longer.
    pub(super) fn withdraw(&mut self, ticket: u64, out: &mut Vec<Effect>) {
        for job in self.pool.take_waiting(|job| job.ticket == ticket) {
            Stop::Busy.answer_to(job.ticket, out);
        }
        if self.backed.fills.forget_waiting(ticket) {
            Stop::Busy.answer_to(ticket, out);
            // Extents that were retained for it may be evicted for others.
            self.admit_waiting(out);
        }
    }

    /// The file is removed: no process has it open. Requests that wait for some of it, from the
    /// backing store or a spill host, must not allocate extents of it any more.
    pub(super) fn refuse_users_of(&mut self, inode: Inode, out: &mut Vec<Effect>) {
        let is_it = |job: &Job| job.work.makes_extents() && job.work.range().0 == inode;
        for job in self.pool.take_waiting(is_it) {
            Stop::Refused(Errno::ESTALE).answer_to(job.ticket, out);
        }
        let is_it = |job: &Job| job.work.range().0 == inode;
        self.backed.fills.refuse_waiting(is_it, Errno::ESTALE, out);
    }

    /// Refuses requests that have waited longer than `enospc_timeout_millis`, and re-evaluates
    /// those that wait for a grace period. To be called periodically while `writers_waiting` is not
    /// 0.
    pub fn tick_writers(
        &mut self,
        now_millis: u32,
        enospc_timeout_millis: u32,
        out: &mut Vec<Effect>,
    ) {
        self.pool.now = now_millis;
        for job in self.pool.admission.bounded.take_late(now_millis) {
            Stop::InProgress.answer_to(job.ticket, out);
        }
        for (job, stop) in self.pool.admission.take_late(now_millis, enospc_timeout_millis) {
            self.refuse(&job, stop, out);
        }
        self.finish(out);
    }
}

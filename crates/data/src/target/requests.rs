//! Running a request whose bytes are here: `run` is the only place that performs one.

use super::Target;
use crate::admission::job::Job;
use crate::admission::stop::Stop;
use crate::admission::work::{MAP_EXTENTS_MAX, PrefetchArgs, SpaceUse, Work};
use crate::effect::{Answer, Effect, Source, Validity};
use crate::prefetch::Lower;
use crate::space::buddy::BlockContents;
use placement::extent::{self, Span};
use qos::dirty::DirtyJob;
use wire::reply::Extent;
use wire::request::prefetch;
use wire::{Errno, Inode};

/// A spill host accepts extents while more than one part in this many of its allowance is free.
const SPARE_PARTS: u64 = 4;

impl Target {
    /// Runs a request, or parks it behind another.
    pub(super) fn run_in_order(&mut self, job: Job, out: &mut Vec<Effect>) {
        if job.work.makes_extents() {
            let (inode, offset, end) = job.work.range();
            self.claim_preallocated(inode, (offset, end), job.writer, out);
        }
        if !self.pool.is_parked() || job.work.only_looks() || self.pool.passes(&job.work) {
            self.run(job, out);
        } else {
            self.pool.parked.push_back(job);
        }
    }

    fn run(&mut self, job: Job, out: &mut Vec<Effect>) {
        let (ticket, work) = (job.ticket, &job.work);
        if let Some(inode) = work.inode_if_damage_matters()
            && self.is_damaged(inode)
        {
            return reply(ticket, Answer::Refused(Errno::EIO), out);
        }
        if let Work::BeginWriteback(begin) = work {
            if begin.number != 0 {
                self.backed.cleaning.forget_query(begin.inode);
            }
            let ranges = &mut self.backed.dirty_ranges;
            return ranges.begin(&mut self.pool, &self.tiering, (ticket, begin), out);
        }
        if work.uses_extents() {
            self.note_uses(work, out);
        }
        let answer = match work {
            &Work::Map { inode, stripe_log2, space, offset, length, ahead } => {
                self.map((inode, space, job.writer), stripe_log2, (offset, length), ahead, out)
            }
            &Work::Find { inode, offset, length } | &Work::Locate { inode, offset, length } => {
                Ok(self.find(inode, offset, offset.saturating_add(length)))
            }
            &Work::Read { inode, offset, length } => {
                self.read(ticket, inode, offset, length, out);
                Ok(Answer::Bytes { length })
            }
            &Work::Write { inode, stripe_log2, offset, length } => {
                let mut extents = Vec::new();
                let range = (offset, u64::from(length));
                let of = (inode, SpaceUse::Written, job.writer);
                self.allocate(of, stripe_log2, range, &mut extents, out).map(|()| {
                    write(ticket, &extents, offset, length, out);
                    Answer::Done
                })
            }
            &Work::Clear { inode, offset, end } => {
                self.clear_range(ticket, inode, offset, end, out);
                Ok(Answer::Done)
            }
            Work::Remove { inodes } => {
                inodes.iter().for_each(|&inode| self.remove_file(inode, out));
                Ok(Answer::Done)
            }
            &Work::Own { inode, owner, changed, pinned } => {
                self.set_owner(inode, owner, changed);
                self.tiering.note_pinned(&mut self.pool, inode, (pinned, changed), out);
                Ok(Answer::Done)
            }
            Work::Prefetch(args) => Ok(self.prefetch_or_evict(args, out)),
            &Work::EndWriteback { inode, number, end } => {
                Ok(self.end_writeback(inode, (number, end), out))
            }
            work => Ok(self.look(ticket, work, out)),
        };
        match answer {
            Ok(answer) => reply(ticket, answer, out),
            Err(Stop::Parked) => self.pool.parked.push_front(job.provisioned()),
            // Its extents from the backing store are here, and stay.
            Err(stop @ (Stop::Evicting | Stop::Busy)) if self.retains_for(job.need) => {
                self.starve(job, stop, out);
            }
            Err(stop) => self.refuse_or_wait(job, stop, out),
        }
    }

    /// Notes which extents a request uses: what moves or is evicted stays where it is, unless that does
    /// not matter to the request.
    fn note_uses(&mut self, work: &Work, out: &mut Vec<Effect>) {
        let Target { pool, tiering, migration, .. } = self;
        let (inode, offset, end) = work.range();
        if !work.only_reads() {
            migration.note_use(pool.now, inode, pool.slots().over(inode, offset, end));
            return tiering.note_access_of(pool, inode, (offset, end), out);
        }
        tiering.note_read_of(pool, inode, (offset, end), out);
        if matches!(work, Work::Locate { .. }) {
            for extent in pool.shown(inode, offset, end) {
                migration.note_read(pool.now, inode, &extent);
            }
        }
    }

    fn find(&self, inode: Inode, offset: u64, end: u64) -> Answer {
        let found = self.pool.shown(inode, offset, end).take(MAP_EXTENTS_MAX);
        let found: Vec<Extent> = found.collect();
        // Only a located extent can be spilled. Readers locate one at a time.
        match found.first() {
            Some(first) if first.tier == Extent::SPILLED => Answer::Number(first.location),
            _ => Answer::Extents(found),
        }
    }

    fn map(
        &mut self,
        of: (Inode, SpaceUse, Option<DirtyJob>),
        stripe_log2: u8,
        (offset, length): (u64, u64),
        ahead: u64,
        out: &mut Vec<Effect>,
    ) -> Result<Answer, Stop> {
        let mut extents = Vec::new();
        let (inode, space, writer) = of;
        match self.allocate(of, stripe_log2, (offset, length), &mut extents, out) {
            Err(Stop::Parked) => return Err(Stop::Parked),
            Err(stop) if extents.is_empty() => return Err(stop),
            Err(_) => {}
            Ok(()) => {
                let more = length.saturating_add(ahead);
                let ahead = if self.is_near_bound(writer, more) { 0 } else { ahead };
                let behind = (offset.saturating_add(length), ahead);
                self.preallocate_behind(inode, stripe_log2, behind, &mut extents, out);
            }
        }
        if space == SpaceUse::Reserved {
            let marks = extents.iter().map(|extent| Effect::MarkReserved { slot: extent.slot });
            out.extend(marks);
        }
        Ok(Answer::Extents(extents))
    }

    /// Answers a request that changes nothing and never fails for want of space.
    fn look(&self, ticket: u64, work: &Work, out: &mut Vec<Effect>) -> Answer {
        let pool = &self.pool;
        match *work {
            Work::Usage { inode, end } => {
                let extents = pool.shown(inode, 0, end).collect();
                out.push(Effect::CountPages { ticket, extents, end });
                Answer::Number(self.bytes_backed_only(inode, end))
            }
            Work::SeekData { inode, offset } if self.backed.fills.counts(inode, offset) => {
                Answer::Number(offset)
            }
            Work::SeekData { inode, offset } => match pool.shown(inode, offset, u64::MAX).next() {
                Some(extent) => Answer::Number(extent.start.max(offset)),
                None => Answer::Refused(Errno::ENXIO),
            },
            Work::Flush { inode } => {
                let on_ssd = |extent: Extent| extent.tier == Extent::SSD;
                if pool.slots().over(inode, 0, u64::MAX).any(on_ssd) {
                    out.push(Effect::Flush { ticket });
                }
                Answer::Done
            }
            _ => {
                let clean = &self.tiering.order.clean;
                Answer::Space {
                    memory_total: pool.memory().bytes_total(),
                    // Preallocated and clean extents give way to a request that needs space.
                    memory_free: pool.memory().bytes_free()
                        + pool.preallocation().bytes()
                        + pool.incoming(Extent::MEMORY)
                        + clean.bytes(Extent::MEMORY),
                    ssd_total: pool.ssd().bytes_total(),
                    // A moving extent counts at its old location.
                    ssd_free: pool.ssd().bytes_free()
                        + pool.incoming(Extent::SSD)
                        + clean.bytes(Extent::SSD),
                }
            }
        }
    }

    /// Bytes of a file below `end` that this target does not have, and the backing store may have:
    /// its holes are not known here.
    fn bytes_backed_only(&self, inode: Inode, end: u64) -> u64 {
        let fills = &self.backed.fills;
        let (Some(backed_end), Some(layout)) = (fills.end(inode), fills.layout(inode)) else {
            return 0;
        };
        let end = end.min(backed_end);
        let spans = self.pool.member().spans(inode, layout, (0, end));
        let missing = spans.filter(|span| self.pool.is_vacant(inode, span));
        missing.map(|span| span.end().min(end) - span.start).sum()
    }

    /// Finds or allocates the extents that hold a range, at most `MAP_EXTENTS_MAX`. If it stops
    /// early, the extents before that point are allocated: a retry, or a shorter write, finds them.
    fn allocate(
        &mut self,
        (inode, space, writer): (Inode, SpaceUse, Option<DirtyJob>),
        stripe_log2: u8,
        (offset, length): (u64, u64),
        extents: &mut Vec<Extent>,
        out: &mut Vec<Effect>,
    ) -> Result<(), Stop> {
        for span in extent::over(offset, length, stripe_log2).take(MAP_EXTENTS_MAX) {
            let extent = match self.pool.slots().at(inode, span.start) {
                Some(extent) if extent.length_log2 == span.length_log2 => {
                    self.tiering.order.dirty.adopt(extent.slot, writer);
                    extent
                }
                // The request divides the file into other extents than before.
                Some(_) => return Err(Stop::Refused(Errno::EINVAL)),
                None if inode.is_spilled() && !self.accepts_spill(span.length()) => {
                    return Err(Stop::Refused(Errno::ENOSPC));
                }
                None => {
                    let tier = self.tier_for(writer, span.length())?;
                    if !self.pool.admission.is_empty() {
                        return Err(Stop::Queued);
                    }
                    let of = (inode, space, writer);
                    let made = match self.allocate_one(of, (span, tier), out) {
                        made @ (Ok(_) | Err(Stop::Parked)) => made,
                        // The gaps of the SSD are too small.
                        _ if tier.is_some() => self.allocate_one(of, (span, None), out),
                        made => made,
                    };
                    match made {
                        // The sender has other spill hosts, and must not wait.
                        Err(Stop::Parked) => return Err(Stop::Parked),
                        Err(_) if inode.is_spilled() => return Err(Stop::Refused(Errno::ENOSPC)),
                        made => made?,
                    }
                }
            };
            extents.push(extent);
        }
        Ok(())
    }

    /// Allocates an extent for a writer, in this tier if one is given.
    pub(super) fn allocate_one(
        &mut self,
        (inode, space, writer): (Inode, SpaceUse, Option<DirtyJob>),
        (span, tier): (Span, Option<u8>),
        out: &mut Vec<Effect>,
    ) -> Result<Extent, Stop> {
        let Target { pool, tiering, backed, .. } = self;
        let tier = if inode.is_spilled() { Some(Extent::MEMORY) } else { tier };
        let claim = backed.fills.claim_space(pool, tiering, (inode, span, tier), out);
        let (extent, contents) = claim?;
        pool.occupy(inode, &extent);
        if let Some(writer) = writer {
            tiering.order.dirty.assign(extent.slot, writer);
        }
        tiering.order.watch(pool, inode, &extent);
        if !inode.is_spilled() {
            pool.count_allocated(&extent);
        }
        let valid = match (space, contents) {
            // Pages of the SSD that are valid have a sum, and nobody has computed one of zeros.
            (SpaceUse::Reserved, BlockContents::Zeroed) if extent.tier == Extent::MEMORY => {
                Validity::All
            }
            // Although its bytes may be zeros: a valid page is one that was written (`CountPages`).
            _ => Validity::Nothing,
        };
        out.push(Effect::Publish { inode, extent, valid });
        Ok(extent)
    }

    /// True if an extent of another target may be stored here: there is spare space, and no request
    /// waits.
    fn accepts_spill(&self, length: u64) -> bool {
        let memory = self.pool.memory();
        let bytes_left = memory.bytes_free().saturating_sub(length);
        bytes_left > memory.allowance() / SPARE_PARTS && !self.waits_for_space()
    }

    fn read(&self, ticket: u64, inode: Inode, offset: u64, length: u32, out: &mut Vec<Effect>) {
        let end = offset + u64::from(length);
        let mut at = offset;
        let mut push = |from: Source, part: u64| {
            if part > 0 {
                out.push(Effect::Read { ticket, from, length: part as u32 });
            }
        };
        for extent in self.pool.slots().over(inode, offset, end) {
            push(Source::Hole, extent.start.saturating_sub(at));
            at = at.max(extent.start);
            let part = end.min(extent.start + extent.length()) - at;
            push(Source::Extent { extent, within: at - extent.start }, part);
            at += part;
        }
        push(Source::Hole, end - at);
    }

    /// Frees the extents within `offset .. end`; zeroes the covered part of those at its ends.
    fn clear_range(
        &mut self,
        ticket: u64,
        inode: Inode,
        offset: u64,
        end: u64,
        out: &mut Vec<Effect>,
    ) {
        let Target { pool, tiering, backed, .. } = self;
        if end == u64::MAX && backed.cleaning.may_need_fill(inode) {
            backed.fills.truncate(inode, offset);
        }
        let extents: Vec<Extent> = pool.slots().over(inode, offset, end).collect();
        for extent in extents {
            let extent_end = extent.start + extent.length();
            // Without the extent, the bytes in the backing store would show again, also those that
            // writeback stores there next.
            let hides = end != u64::MAX && backed.cleaning.may_be_backed(inode);
            if offset <= extent.start && extent_end <= end && !hides {
                tiering.give_back(pool, inode, &extent, out);
            } else {
                let from = offset.max(extent.start);
                let (within, length) = (from - extent.start, end.min(extent_end) - from);
                out.push(Effect::Zero { ticket, extent, within, length });
            }
        }
        if offset == 0 && end == u64::MAX {
            pool.mend(inode);
        }
    }

    /// Frees all extents of a file: mostly there is none, or one.
    fn remove_file(&mut self, inode: Inode, out: &mut Vec<Effect>) {
        self.refuse_users_of(inode, out);
        let Target { pool, tiering, backed, prefetch, .. } = self;
        if backed.cleaning.may_need_fill(inode) {
            backed.fills.forget_file(inode);
        }
        prefetch.queue.end(inode, None);
        while let Some(extent) = pool.slots().first(inode) {
            tiering.give_back(pool, inode, &extent, out);
        }
        pool.mend(inode);
        pool.forget_usage(inode);
        tiering.order.pinned.forget(inode);
    }

    fn prefetch_or_evict(&mut self, args: &PrefetchArgs, out: &mut Vec<Effect>) -> Answer {
        let (prefetch, mut lower) = self.split(out);
        if args.what != prefetch::EVICT {
            return prefetch.request(args, &lower);
        }
        let inode = args.inode;
        prefetch.end_file(inode);
        let Lower { pool, tiering, backed, out } = &mut lower;
        tiering.cancel_moves(pool, inode, (0, u64::MAX), out);
        match backed.evict_file(pool, tiering, inode, out) {
            true => Answer::Number(prefetch.queue.bytes_left(pool, backed, args)),
            false => Answer::Refused(Errno::EAGAIN),
        }
    }

    fn end_writeback(
        &mut self,
        inode: Inode,
        (number, end): (u64, u64),
        out: &mut Vec<Effect>,
    ) -> Answer {
        let Target { pool, tiering, backed, .. } = self;
        if !backed.dirty_ranges.end_range(pool, tiering, (inode, number, end), out) {
            return Answer::Refused(Errno::EAGAIN);
        }
        // The backing store has more of it than was known.
        backed.fills.forget_end(inode);
        Answer::Done
    }
}

fn reply(ticket: u64, answer: Answer, out: &mut Vec<Effect>) {
    out.push(Effect::Reply { ticket, answer });
}

/// Splits `length` bytes of a request, for `offset` of the file, among the extents that hold them.
fn write(ticket: u64, extents: &[Extent], offset: u64, length: u32, out: &mut Vec<Effect>) {
    let end = offset + u64::from(length);
    for &extent in extents {
        let at = offset.max(extent.start);
        let part = end.min(extent.start + extent.length()) - at;
        let (from, length) = ((at - offset) as u32, part as u32);
        out.push(Effect::Write { ticket, extent, within: at - extent.start, from, length });
    }
}

//! Admission of a request: the bytes that it needs from the backing store, or from a spill host,
//! are brought here first; then it runs.
//!
//!   arrived --some of it is spilled--> waits for a move         `fetch`
//!   arrived --some of it is in the backing store--> waits for fills
//!   arrived, or waiting --all of it is here--> run              `requests`
//!   waiting --there is no space for it--> starving, or refused  `shortage`

use super::Target;
use crate::admission::job::{Job, Need, NeedKind};
use crate::admission::stop::Stop;
use crate::admission::work::{SpaceUse, Work};
use crate::backing::fill::{FillRequest, Purpose};
use crate::effect::Effect;
use placement::extent::Span;
use wire::limits::FILE_BYTES_MAX;
use wire::{Inode, Layout};

/// Most rounds in one step: later ones follow with the next fill that ends.
const FILL_ROUNDS_MAX: u32 = 3;

impl Target {
    /// Runs a request if what it needs is here; otherwise it waits.
    pub(super) fn admit(&mut self, job: Job, out: &mut Vec<Effect>) {
        let Some(mut job) = self.fetch_spilled(job, out) else { return };
        let may_need_fill = |need: &Need| self.backed.cleaning.may_need_fill(need.inode);
        let Some(need) = job.need.filter(may_need_fill) else {
            return self.run_in_order(job, out);
        };
        match &mut job.work {
            // Preallocated extents are holes, which these files do not have.
            Work::Map { length, ahead, .. } => (*length, *ahead) = (need.end - need.offset, 0),
            Work::Find { length, .. } | Work::Locate { length, .. } => {
                *length = need.end - need.offset;
            }
            _ => {}
        }
        let filled = self.fill_needed(&need, out);
        if need.kind == NeedKind::Reads && filled != Ok(true) {
            self.prefetch.note_access(need.inode);
        }
        match filled {
            Ok(true) => self.run_in_order(job, out),
            Ok(false) => {
                // Behind a request that waits for space, it does, too.
                if self.backed.fills.is_held_up() && job.work.makes_extents() {
                    job.tell_wait(out);
                }
                self.backed.fills.push_waiting(job);
            }
            Err(stop @ (Stop::Evicting | Stop::Busy)) => self.starve(job, stop, out),
            // Punching a hole needs a zeroed extent over the backed bytes.
            Err(Stop::Full(_))
                if need.kind == NeedKind::Punches && self.backed.cleaning.has_backing() =>
            {
                self.starve(job, Stop::Busy, out);
            }
            Err(stop) => self.refuse_or_wait(job, stop, out),
        }
    }

    /// Admits the waiting requests again, and once more where a place was kept for a job that asks no
    /// more.
    pub(super) fn admit_waiting(&mut self, out: &mut Vec<Effect>) {
        for _ in 0..FILL_ROUNDS_MAX {
            for waiter in self.backed.fills.take_waiting() {
                self.admit(waiter, out);
            }
            if !self.backed.fills.end_round() {
                return;
            }
        }
    }

    /// Requests the fills that are needed. True if all of it is here.
    fn fill_needed(&mut self, need: &Need, out: &mut Vec<Effect>) -> Result<bool, Stop> {
        let inode = need.inode;
        if self.is_damaged(inode) || need.offset > FILE_BYTES_MAX {
            return Ok(true);
        }
        let Some(counts) = self.backed.fills.end(inode) else {
            self.backed.fills.query_end(inode, out);
            return Ok(false);
        };
        let mut is_there = true;
        let mut is_coming = false;
        for (span, is_covered) in need.spans(counts) {
            // All targets of a file receive a hole as a whole.
            if need.kind == NeedKind::Punches && !self.has_stripe(inode, &span) {
                continue;
            }
            if !self.pool.is_vacant(inode, &span) {
                continue;
            }
            let comes = match need.kind {
                // An earlier request waits for space.
                _ if self.backed.fills.is_held_up() => Ok(false),
                NeedKind::Punches if is_covered => {
                    match self.allocate_one((inode, SpaceUse::Written, None), (span, None), out) {
                        // It holds zeros from now on: otherwise the bytes of the backing store would
                        // show again.
                        Ok(_) => continue,
                        Err(stop) => Err(stop),
                    }
                }
                _ => {
                    let Target { pool, tiering, backed, .. } = self;
                    let (job, purpose) = (need.job, Purpose::STREAM);
                    let request = FillRequest { inode, span, counts, purpose, job };
                    backed.fills.fill_one(pool, tiering, request, out)
                }
            };
            is_there = false;
            match comes {
                Ok(true) => is_coming = true,
                Ok(false) | Err(Stop::Parked) => break,
                // Extents that are here already continue the request later: it is admitted again.
                Err(stop @ (Stop::Evicting | Stop::Busy)) => return Err(stop),
                Err(_) if is_coming => break,
                Err(stop) => return Err(stop),
            }
        }
        if !is_there && need.kind == NeedKind::Reads {
            let (prefetch, mut lower) = self.split(out);
            prefetch.note_miss(need, counts, &mut lower);
        }
        Ok(is_there)
    }

    /// True if this target stores the file's extent of this span.
    fn has_stripe(&self, inode: Inode, span: &Span) -> bool {
        let member = self.pool.member();
        let has = |layout: Layout| member.has(&layout, inode, span.start >> layout.stripe_log2);
        self.backed.fills.layout(inode).is_none_or(has)
    }
}

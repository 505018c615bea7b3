//! Requests that need bytes of a spilled extent: they wait until it is back (`tiering::spill`). Reads of
//! other hosts do not, while this target is slow or recovers (`migration`).

use super::Target;
use crate::admission::job::Job;
use crate::admission::stop::Stop;
use crate::admission::work::Work;
use crate::effect::{CopyClass, Effect};
use wire::reply::Extent;
use wire::{Errno, Inode};

/// Most bytes, or one extent, that are fetched back for one request for extents: it retries for the
/// rest.
const FETCH_BACK_BYTES_MAX: u64 = 8 << 20;

/// The fate of a request for a spilled extent, while readers are sent to what has moved.
enum Elsewhere {
    /// Its answer says where the extent is.
    Told,
    /// Its bytes come from there.
    Answered,
    /// It needs the extent here.
    Needed,
}

impl Target {
    /// Starts fetching back what a request needs. `None`: the request waits, or was answered.
    pub(super) fn fetch_spilled(&mut self, mut job: Job, out: &mut Vec<Effect>) -> Option<Job> {
        if self.tiering.spill.is_none_out() || !job.work.uses_extents() {
            return Some(job);
        }
        let (inode, offset, end) = job.work.range();
        let is_spilled = |extent: &Extent| extent.tier == Extent::SPILLED;
        let first = self.pool.slots().over(inode, offset, end).find(is_spilled);
        // A damaged file is refused, wherever the rest of it is.
        let Some(first) = first.filter(|_| !self.is_damaged(inode)) else { return Some(job) };
        if self.migration.redirects(self.pool.now) {
            match self.read_elsewhere(&job, &first, out) {
                Elsewhere::Told => return Some(job),
                Elsewhere::Answered => return None,
                Elsewhere::Needed => {}
            }
        }
        let mut end = end;
        if let Work::Map { length, ahead, .. } = &mut job.work {
            (*length, *ahead) = ((*length).min(fetch_back_length(offset, &first)), 0);
            end = offset.saturating_add(*length);
        } else if let Work::Find { length, .. } | Work::Locate { length, .. } = &mut job.work {
            *length = (*length).min(fetch_back_length(offset, &first));
            end = offset.saturating_add(*length);
        }
        let clears = matches!(job.work, Work::Clear { .. });
        let is_needed = |extent: &Extent| {
            let is_all = offset <= extent.start && extent.start + extent.length() <= end;
            is_spilled(extent) && !(clears && is_all)
        };
        let needed: Vec<_> = self.pool.slots().over(inode, offset, end).filter(is_needed).collect();
        if needed.is_empty() {
            return Some(job);
        }
        for extent in &needed {
            if self.tiering.moves.is_moving(inode, extent.start) {
                continue;
            }
            if !self.tiering.moves.may_move_another(&self.pool, CopyClass::Serves) {
                break;
            }
            if !self.begin_fetch_back(inode, extent, out) {
                if self.pool.is_provisioning() {
                    break;
                }
                let Target { pool, tiering, backed, .. } = self;
                let stop = backed.fills.no_space(pool, tiering, Errno::ENOSPC, extent.length());
                self.do_without_space(job, stop, out);
                return None;
            }
        }
        self.backed.fills.push_waiting(job);
        None
    }

    /// Handles a read of another host while readers are sent to what has moved: it is told where the
    /// extent is, or gets bytes from there.
    fn read_elsewhere(&self, job: &Job, first: &Extent, out: &mut Vec<Effect>) -> Elsewhere {
        let Work::Read { offset, length, .. } = job.work else {
            let is_located = matches!(job.work, Work::Locate { .. });
            return if is_located { Elsewhere::Told } else { Elsewhere::Needed };
        };
        let (end, extent_end) = (offset + u64::from(length), first.start + first.length());
        if offset < first.start || extent_end < end {
            return Elsewhere::Needed;
        }
        let (ticket, extent, within) = (job.ticket, *first, offset - first.start);
        out.push(Effect::ReadSpilled { ticket, extent, within, length });
        Elsewhere::Answered
    }

    /// Starts moving a spilled extent back, to memory if there is space.
    fn begin_fetch_back(&mut self, inode: Inode, extent: &Extent, out: &mut Vec<Effect>) -> bool {
        let Target { pool, tiering, .. } = self;
        [Extent::MEMORY, Extent::SSD].into_iter().any(|tier| {
            let to = (tier, CopyClass::Serves);
            !pool.is_provisioning() && tiering.begin_move(pool, inode, *extent, to, out)
        })
    }

    /// Handles a request for which there is no local space: a read is answered from the spill host,
    /// or told to use messages; others wait.
    fn do_without_space(&mut self, job: Job, stop: Stop, out: &mut Vec<Effect>) {
        match job.work {
            Work::Map { .. } | Work::Write { .. } => self.refuse_or_wait(job, stop, out),
            Work::Read { inode, offset, length } => {
                let end = offset + u64::from(length);
                let extent = self.pool.slots().over(inode, offset, end).next();
                let holds = |extent: &Extent| {
                    extent.start <= offset && end <= extent.start + extent.length()
                };
                match extent.filter(holds) {
                    Some(extent) => {
                        let within = offset - extent.start;
                        let ticket = job.ticket;
                        out.push(Effect::ReadSpilled { ticket, extent, within, length });
                    }
                    None => self.starve(job, stop, out),
                }
            }
            Work::Find { .. } | Work::Locate { .. } => {
                Stop::Refused(Errno::ENOSPC).answer_to(job.ticket, out);
            }
            _ => self.starve(job, stop, out),
        }
    }
}

/// Number of bytes from `offset` on that are fetched back at a time, if `first` must be.
fn fetch_back_length(offset: u64, first: &Extent) -> u64 {
    (first.start + first.length()).saturating_sub(offset).max(FETCH_BACK_BYTES_MAX)
}

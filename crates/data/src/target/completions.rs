//! The caller's answers: an operation of a device, a copy, a fill or a query is complete. Each is
//! told to its subject; then the requests that may have waited for it are admitted again.

use super::Target;
use crate::effect::Effect;
use wire::errno::Result;
use wire::reply::Extent;
use wire::{Errno, Inode, Layout};

impl Target {
    pub(super) fn provisioned(&mut self, outcome: Result<()>, out: &mut Vec<Effect>) {
        if self.pool.note_provisioned(outcome) {
            self.resume(out);
            self.admit_waiting(out);
        }
    }

    /// Runs the parked requests, until one needs another step of a device.
    fn resume(&mut self, out: &mut Vec<Effect>) {
        while let Some(job) = self.pool.parked.pop_front() {
            let behind = std::mem::take(&mut self.pool.parked);
            // Its extents may have been evicted meanwhile.
            self.admit(job, out);
            self.pool.parked.extend(behind);
            if self.pool.is_provisioning() {
                return;
            }
        }
    }

    /// Hazard check `round` is answered: what was hidden before it, and is not protected, goes.
    pub(super) fn hazards_checked(
        &mut self,
        round: u64,
        (protected, reading): (&[u32], &[u32]),
        out: &mut Vec<Effect>,
    ) {
        let Target { pool, tiering, backed, prefetch, .. } = self;
        pool.free_left(round, protected);
        tiering.copy_hidden(pool, round, (protected, reading), out);
        let is_unread = |inode: Inode, extent: &Extent| prefetch.unread.has(inode, extent);
        backed.evict_hidden(pool, tiering, (round, protected), &is_unread, out);
        backed.cleaning.note_marked(round, protected, out);
        backed.dirty_ranges.answer_marked(round, protected, out);
        tiering.order.clean.reset_need();
        self.admit_waiting(out);
    }

    pub(super) fn copied(&mut self, ticket: u64, outcome: Result<()>, out: &mut Vec<Effect>) {
        let unreachable = self.tiering.end_copy(&mut self.pool, ticket, outcome, out);
        if let Some((inode, extent)) = unreachable {
            let extent_end = extent.start + extent.length();
            self.backed.fills.refuse_waiting(
                |job| {
                    let (file, offset, end) = job.work.range();
                    file == inode && offset < extent_end && extent.start < end
                },
                Errno::EIO,
                out,
            );
        }
        self.admit_waiting(out);
    }

    pub(super) fn given_back(
        &mut self,
        block: (u64, u8),
        outcome: Result<()>,
        out: &mut Vec<Effect>,
    ) {
        self.returning.note_given_back(&mut self.pool, block, outcome);
        self.admit_waiting(out);
    }

    pub(super) fn filled(&mut self, ticket: u64, outcome: Result<()>, out: &mut Vec<Effect>) {
        let Target { pool, tiering, backed, prefetch, .. } = self;
        let fill = (ticket, outcome.is_ok());
        let Some(end) = backed.fills.end_fill(pool, tiering, fill, out) else { return };
        match outcome {
            _ if end.is_void => {}
            Ok(()) => {
                let is_ahead = prefetch.note_fill(&end);
                backed.history.note_filled(end.inode, &end.extent, is_ahead, pool.now);
            }
            Err(errno) => {
                if end.purpose.is_prefetch {
                    prefetch.fail_file(end.inode, errno);
                }
                backed.fills.refuse_waiting(
                    |job| job.need.is_some_and(|need| need.touches(end.inode, &end.extent)),
                    errno,
                    out,
                );
            }
        }
        self.admit_waiting(out);
    }

    pub(super) fn located(
        &mut self,
        inode: Inode,
        outcome: Result<(u64, Layout)>,
        out: &mut Vec<Effect>,
    ) {
        if !self.backed.fills.note_located(inode, outcome, out) {
            return;
        }
        if let Err(errno) = outcome {
            self.prefetch.fail_file(inode, errno);
            self.backed.fills.refuse_waiting(
                |job| job.need.is_some_and(|need| need.inode == inode),
                errno,
                out,
            );
        }
        self.admit_waiting(out);
    }

    /// These extents still had the cleaning mark.
    pub(super) fn cleaned(&mut self, found: &[(Inode, Extent)], out: &mut Vec<Effect>) {
        let order = &mut self.tiering.order;
        let new = |(_, extent): &&(Inode, Extent)| !order.clean.contains(extent);
        let found: Vec<(Inode, Extent)> = found.iter().filter(new).copied().collect();
        order.restore_clean(&self.pool, found.into_iter());
        self.admit_waiting(out);
    }

    /// A file's shard has said whether all of it is clean.
    pub(super) fn clean_reported(
        &mut self,
        (inode, number, is_clean): (Inode, u64, bool),
        out: &mut Vec<Effect>,
    ) {
        let Target { pool, tiering, backed, .. } = self;
        if backed.cleaning.note_answer(pool, tiering, (inode, number, is_clean), out) {
            // The backing store may have more of it than was known.
            backed.fills.forget_end(inode);
        }
    }
}

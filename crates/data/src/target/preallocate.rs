//! Speculative preallocation: when space is taken ahead of requests (`space::preallocation` says
//! what a preallocated extent is).

use super::Target;
use crate::admission::work::MAP_EXTENTS_MAX;
use crate::effect::Effect;
use crate::space::buddy::BLOCK_LOG2_MIN;
use placement::extent::{self, Span};
use qos::dirty::DirtyJob;
use wire::Inode;
use wire::limits::{EXTENT_BYTES_MIN, FILE_BYTES_MAX};
use wire::reply::Extent;

/// Extents are preallocated only while more than one part in this many of the memory is free.
const FREE_PARTS: u64 = 4;
/// No first extents are preallocated once preallocated extents take one part in this many of the
/// memory.
const FIRST_PARTS: u64 = 8;
/// Extents ahead of writers are preallocated only while preallocated extents take less than one
/// part in this many: they are large, and leave space for first extents.
const AHEAD_PARTS: u64 = 16;

impl Target {
    /// True if there is space for one more preallocated extent, while all take less than one part
    /// in `parts`.
    fn has_space_to_preallocate(&self, length: u64, parts: u64) -> bool {
        let pool = &self.pool;
        let (total, free) = (pool.memory().bytes_total(), pool.memory().bytes_free());
        // Clean extents are evicted on demand, but a preallocation takes only free space.
        let may_go = self.tiering.order.clean.bytes(Extent::MEMORY);
        free + may_go > total / FREE_PARTS
            && free > total / FREE_PARTS / 4
            && pool.memory().has_ample(length)
            && pool.preallocation().bytes().saturating_add(length) <= total / parts
            && pool.bytes_used().saturating_add(length) <= pool.quota_bytes()
            && !pool.is_parked()
            && pool.admission.is_empty()
            && !pool.preallocation().is_needed
    }

    /// Preallocates the first extents of files that may be created soon.
    pub(super) fn preallocate_files(&mut self, inodes: &[Inode], out: &mut Vec<Effect>) {
        for &inode in inodes {
            if !self.has_space_to_preallocate(EXTENT_BYTES_MIN, FIRST_PARTS) {
                return;
            }
            let first = Span { start: 0, length_log2: BLOCK_LOG2_MIN };
            let is_there = !self.pool.is_vacant(inode, &first);
            if inode.is_none() || is_there || self.is_damaged(inode) {
                continue;
            }
            if self.pool.preallocate_one(inode, first, out).is_none() {
                return;
            }
        }
    }

    /// Appends to `extents`, which a request asked for, those in the next `ahead` bytes from
    /// `offset` on that exist, and preallocates others while there is ample space.
    pub(super) fn preallocate_behind(
        &mut self,
        inode: Inode,
        stripe_log2: u8,
        (offset, ahead): (u64, u64),
        extents: &mut Vec<Extent>,
        out: &mut Vec<Effect>,
    ) {
        // Close to a limit, no request waits for space that it does not need.
        let is_limited = self.pool.usage().may_be_limited(inode);
        let ahead = ahead.min(FILE_BYTES_MAX.saturating_sub(offset));
        for span in extent::over(offset, ahead, stripe_log2) {
            // The extent that holds `offset` exists: the requested range ends in it.
            if span.start < offset {
                continue;
            }
            if extents.len() >= MAP_EXTENTS_MAX {
                return;
            }
            let there = self.pool.slots().over(inode, span.start, span.end()).next();
            let extent = match there {
                Some(extent) if extent.length_log2 == span.length_log2 => Some(extent),
                Some(_) => None,
                None if !is_limited
                    && self.has_space_to_preallocate(span.length(), AHEAD_PARTS) =>
                {
                    self.pool.preallocate_one(inode, span, out)
                }
                None => None,
            };
            let Some(extent) = extent else { return };
            extents.push(extent);
        }
    }

    /// Makes the preallocated extents that overlap `offset .. end` the file's own. `writer`: the job that
    /// asks for them.
    pub(super) fn claim_preallocated(
        &mut self,
        inode: Inode,
        (offset, end): (u64, u64),
        writer: Option<DirtyJob>,
        out: &mut Vec<Effect>,
    ) {
        let Target { pool, tiering, .. } = self;
        if pool.preallocation().is_empty() {
            return;
        }
        let claimed = pool.slots().over(inode, offset, end);
        let claimed: Vec<Extent> =
            claimed.filter(|extent| pool.preallocation().contains(inode, extent)).collect();
        for extent in claimed {
            pool.own_preallocated(inode, &extent);
            let dirty = &mut tiering.order.dirty;
            match (writer, extent.start.checked_sub(1)) {
                (Some(writer), _) => dirty.assign(extent.slot, writer),
                // Written without a request, by the writer of what is in front of it.
                (None, Some(last)) => {
                    let before = pool.slots().over(inode, last, extent.start).next();
                    before.iter().for_each(|one| dirty.assign_as(extent.slot, one.slot));
                }
                (None, None) => {}
            }
            tiering.order.watch(pool, inode, &extent);
            out.push(Effect::Keep { inode, extent });
        }
    }

    /// Frees a preallocated extent that nobody wrote to.
    pub(super) fn release_preallocated(&mut self, inode: Inode, start: u64, out: &mut Vec<Effect>) {
        if let Some(extent) = self.preallocated(inode, start) {
            self.tiering.give_back(&mut self.pool, inode, &extent, out);
        }
    }
}

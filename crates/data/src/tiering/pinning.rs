//! How a file becomes pinned, and ceases to be (`pinned` is the record of these files).
//!
//! A target learns of pinning in two ways. A request for extents says what its client knows: that
//! counts for the first extents of a file. From then on only the shard counts, which reports each
//! change (`Request::Own`), because clients may have opened the file before. Extents carry a mark
//! in their entries, so after a kill a file that has an extent with a mark is pinned.
//!
//!   unknown --request of a client that says so--> pinned     Effect::Mark
//!   unknown, pinned, not pinned --Own--> pinned, not pinned  Effect::Mark

use crate::admission::work::LOCATE;
use crate::effect::Effect;
use crate::space::pool::Pool;
use crate::tiering::Tiering;
use std::collections::BTreeSet;
use wire::reply::Extent;
use wire::request::PINNED_STRIPE;
use wire::{Inode, Request};

/// The file that a request says is pinned, if the request allocates extents.
const fn named_by(request: &Request<'_>) -> Option<Inode> {
    let (inode, stripe, makes) = match *request {
        Request::MapExtents { inode, stripe_log2, allocate, .. } => {
            let makes = !matches!(allocate, 0 | LOCATE);
            (inode, stripe_log2, makes || inode.is_backed())
        }
        Request::Write { inode, stripe_log2, .. } => (inode, stripe_log2, true),
        Request::Read { inode, stripe_log2, .. } => (inode, stripe_log2, inode.is_backed()),
        _ => return None,
    };
    if makes && stripe & PINNED_STRIPE != 0 { Some(inode) } else { None }
}

impl Tiering {
    /// Believes what a request says of its file, if nothing is known of it yet.
    pub(crate) fn note_pinned_request(
        &mut self,
        pool: &mut Pool,
        request: &Request<'_>,
        out: &mut Vec<Effect>,
    ) {
        let Some(inode) = named_by(request) else { return };
        let is_known =
            self.order.pinned.knows(inode) || pool.shown(inode, 0, u64::MAX).next().is_some();
        if !is_known {
            self.set_file_pinned(pool, inode, true, i64::MIN, out);
        }
    }

    /// Handles the shard's report on a file, of time `since`.
    pub(crate) fn note_pinned(
        &mut self,
        pool: &mut Pool,
        inode: Inode,
        (is_pinned, since): (bool, i64),
        out: &mut Vec<Effect>,
    ) {
        if self.order.pinned.is_older(inode, since) {
            self.set_file_pinned(pool, inode, is_pinned, since, out);
        }
    }

    /// Pins a file, or ends that.
    pub(crate) fn set_file_pinned(
        &mut self,
        pool: &mut Pool,
        inode: Inode,
        is_pinned: bool,
        since: i64,
        out: &mut Vec<Effect>,
    ) {
        if self.order.pinned.contains(inode) == is_pinned {
            return self.order.pinned.set_file(inode, is_pinned, since);
        }
        // Moves of its extents are cancelled: none may go to the SSD, and those coming to memory
        // start again.
        self.cancel_moves(pool, inode, (0, u64::MAX), out);
        let order = &mut self.order;
        order.cancel_evictions(pool, inode, (0, u64::MAX), out);
        let mut clean = BTreeSet::new();
        for extent in pool.slots().over(inode, 0, u64::MAX) {
            order.unwatch(&extent);
            if order.take_clean(&extent) {
                clean.insert(extent.slot);
            }
        }
        order.pinned.set_file(inode, is_pinned, since);
        for extent in pool.slots().over(inode, 0, u64::MAX) {
            let Extent { slot, .. } = extent;
            out.push(Effect::Mark { slot, is_pinned });
            let is_clean = clean.contains(&slot);
            if is_clean || !pool.preallocation().contains(inode, &extent) {
                order.watch_as(pool, inode, &extent, is_clean);
            }
        }
    }
}

//! Eviction of clean extents: the backing store has all their bytes, so they are dropped where
//! space is short, and filled again on demand (`fill`).
//!
//! An extent is clean from when it was filled, or cleaned, until a client changes a byte. Clients
//! do that without a message: each clears the clean mark first, under its hazard pointer, and the
//! caller can read the mark (`is_clean`). `tiering::clean` says which extents were clean when last
//! checked. So an extent is hidden first; once no hazard pointer protects it the caller reads the
//! mark again, and reports an extent without it as protected. Any access to a hidden extent cancels
//! its eviction, and it is shown.
//!
//!   none --Filled, restore_clean--> clean
//!   clean --space is short, or a request--> hidden  Effect::HideToEvict, Effect::CheckHazards
//!   hidden --Hazards, not protected--> none  Effect::Unpublish
//!   hidden --Hazards, protected; accessed--> clean      Effect::Show
//!   clean --checked, and the mark is gone--> an extent like any other
//!
//! Space is short in memory below the minimum watermark or beyond the allowance (`allowance`), on
//! the SSD when writers come close to its end, and wherever a request found none (`need`). That
//! request waits as long as something can be evicted; for extents found protected, it waits for its
//! own timeout. Until then clean extents stay: they can go at any moment, and do not move to
//! another tier.

use crate::backing::BackedFiles;
use crate::backing::cleaning::SSD_FREE_PARTS;
use crate::effect::Effect;
use crate::space::pool::Pool;
use crate::tiering::Tiering;
use crate::tiering::clean::LOOKS_MAX;
use wire::Inode;
use wire::reply::Extent;

impl BackedFiles {
    /// True while a request waits for space, to write or to fill extents, or for the bound of its job.
    pub(crate) fn waits_for_space(&self, pool: &Pool) -> bool {
        !pool.admission.is_empty() || !pool.admission.bounded.is_empty() || self.fills.is_starving()
    }

    /// True while clean extents are to be evicted, or to be found.
    pub(crate) fn wants_eviction(&self, pool: &Pool, tiering: &Tiering) -> bool {
        let clean = &tiering.order.clean;
        let is_short =
            [Extent::MEMORY, Extent::SSD].iter().any(|&tier| is_short(pool, tiering, tier));
        let waits = self.waits_for_space(pool);
        clean.is_needed()
            || self.fills.is_starving()
            || is_short
            || self.cleaning.wants_clean(pool, clean, waits)
    }

    /// Starts evicting cold clean extents where space is short. `was_used` reads and clears an
    /// extent's reference bit; `is_clean` tells whether its clean mark is still set. False if no
    /// extent is hidden: requests that need space then state their needs again.
    pub(crate) fn evict_cold(
        &mut self,
        pool: &mut Pool,
        tiering: &mut Tiering,
        now_millis: u32,
        was_used: &mut dyn FnMut(u32) -> bool,
        is_clean: &dyn Fn(u32) -> bool,
        out: &mut Vec<Effect>,
    ) -> bool {
        tiering.order.clean.pass_time(now_millis);
        let spares_used = tiering.order.clean.spares_used();
        let is_needed = tiering.order.clean.is_needed();
        let mut was_used = |slot: u32| was_used(slot) && spares_used;
        let mut looks = LOOKS_MAX;
        for tier in [Extent::MEMORY, Extent::SSD] {
            let holders = tiering.order.eviction_holders(pool, tier);
            // Extents that were protected may still be: the next tier evicts as much.
            let mut uncertain = 0;
            while tiering.order.clean.may_evict_another()
                && looks > 0
                && is_short(pool, tiering, tier)
            {
                looks -= 1;
                let order = &mut tiering.order;
                let victim = order.clean.victim(tier, &holders, &mut was_used);
                let Some((inode, extent)) = victim.and_then(|slot| pool.slots().get(slot)) else {
                    break;
                };
                if !is_clean(extent.slot) {
                    order.note_dirty(pool, inode, &extent);
                } else if self.fills.starves_for(inode, &extent)
                    || pool.admission.first_needs(inode, &extent)
                {
                    order.insert_clean(pool, inode, &extent);
                } else {
                    let is_stuck = order.clean.is_stuck(extent.slot);
                    let lowered = order.clean.hide(pool, inode, extent, out);
                    uncertain += if is_stuck { lowered } else { 0 };
                }
            }
            tiering.order.clean.raise_need(uncertain);
        }
        let waits = self.waits_for_space(pool);
        let BackedFiles { cleaning, dirty_ranges, .. } = self;
        cleaning.query_clean(pool, tiering, dirty_ranges, (now_millis, waits), out);
        // Hidden extents may be protected, and do not count as evicted yet.
        let clean = &mut tiering.order.clean;
        let hides = clean.is_evicting_any();
        if is_needed {
            clean.note_stalled();
        }
        if !hides {
            clean.reset_need();
        }
        hides
    }

    /// Evicts the clean extents of a file, whether space is short or not, after finding out which
    /// are clean. To be repeated until all of it was tried, which true says; protected, changed and
    /// dirty extents stay.
    pub(crate) fn evict_file(
        &mut self,
        pool: &mut Pool,
        tiering: &mut Tiering,
        inode: Inode,
        out: &mut Vec<Effect>,
    ) -> bool {
        let BackedFiles { cleaning, dirty_ranges, fills, .. } = self;
        let extents = pool.slots().over(inode, 0, u64::MAX);
        if tiering.order.clean.request_eviction(inode, extents) {
            let now = pool.now;
            cleaning.query_file(pool, tiering, dirty_ranges, (inode, now), out);
        }
        if cleaning.is_queried(inode, pool.now) {
            return false;
        }
        let clean = &mut tiering.order.clean;
        let extents = pool.slots().over(inode, 0, u64::MAX);
        let extents: Vec<Extent> = extents.filter(|extent| clean.contains(extent)).collect();
        let mut goes = false;
        for extent in extents {
            if clean.is_stuck(extent.slot) || fills.starves_for(inode, &extent) {
                continue;
            }
            goes = true;
            if clean.is_evicting(inode, extent.start) {
                continue;
            }
            if !clean.may_evict_another() {
                break;
            }
            clean.hide(pool, inode, extent, out);
        }
        if !goes {
            clean.end_requested(inode);
        }
        !goes
    }

    /// Handles hazard check `round`: drops hidden extents that are not protected. `is_unread` tells of
    /// extents that were brought up ahead of a reader which has not come to them.
    pub(crate) fn evict_hidden(
        &mut self,
        pool: &mut Pool,
        tiering: &mut Tiering,
        (round, protected): (u64, &[u32]),
        is_unread: &dyn Fn(Inode, &Extent) -> bool,
        out: &mut Vec<Effect>,
    ) {
        for (inode, extent) in tiering.order.clean.checked(round) {
            if protected.contains(&extent.slot) {
                tiering.order.cancel_eviction(pool, inode, &extent, out);
                tiering.order.clean.note_stuck(extent.slot);
                continue;
            }
            tiering.order.clean.end_eviction(inode, extent.start);
            tiering.order.clean.note_evicted_bytes(extent.length());
            self.cleaning.note_evicted(inode);
            // Where a user asks for it, the tiers are not too small.
            if !tiering.order.clean.is_requested(inode) {
                let is_unread = is_unread(inode, &extent);
                self.history.note_evicted(inode, &extent, is_unread, pool.now);
            }
            tiering.give_back(pool, inode, &extent, out);
        }
    }
}

/// True if space of a tier is short and some clean extent there can be evicted.
fn is_short(pool: &Pool, tiering: &Tiering, tier: u8) -> bool {
    let clean = &tiering.order.clean;
    let goes = clean.evicting_bytes(tier);
    let is_memory = tier == Extent::MEMORY;
    let spared = if is_memory { tiering.order.spared_bytes(pool) } else { 0 };
    if clean.bytes(tier) <= goes + spared {
        return false;
    }
    let (free, threshold) = match is_memory {
        true => (pool.memory().bytes_free(), pool.of_allowance(clean.reserve_bytes())),
        false => (pool.ssd().bytes_free(), pool.ssd().bytes_total() / SSD_FREE_PARTS),
    };
    let is_beyond = is_memory && pool.bytes_beyond(goes) > 0;
    clean.is_needed() || free + goes < threshold || is_beyond
}

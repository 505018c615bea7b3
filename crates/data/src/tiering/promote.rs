//! Promotion: extents on the SSD that are used again move back into memory, while it has space
//! (O18). `ssd_scan` finds the hot ones, `moves` moves them.
//!
//! A move that is cancelled by an access, or finds no space, resets what is known of the extent: it
//! must become hot again, so an extent in constant use is not hidden all the time.
//!
//! While memory is short, promoted extents replace cold idle ones, and count as hot there. Without
//! such cold extents nothing is promoted unless it leaves more memory free than the watermark at
//! which demotion begins. And a demoted extent must be used twice before it is promoted: so no
//! extent moves back and forth without use.

use crate::effect::{CopyClass, Effect};
use crate::space::pool::Pool;
use crate::tiering::Tiering;
use crate::tiering::replacement::DemotionSettings;
use wire::reply::Extent;

/// Most reference bits that are read in one step, which takes some microseconds.
const LOOKS_MAX: usize = 256;
/// Promotion leaves one part in this many of the memory free beyond the watermark at which demotion
/// begins. It is twice the part that demotion frees beyond it.
const BEYOND_PARTS: u64 = 8;

impl Tiering {
    /// True if this much more may be promoted without demoting anything, or if what is demoted for
    /// it is colder.
    pub(crate) fn has_space_to_promote(&self, pool: &Pool, length: u64) -> bool {
        let DemotionSettings {
            demote_low_watermark_bytes: normal,
            demote_min_watermark_bytes: forced,
            ..
        } = self.order.settings;
        let demote_start = if self.order.has_ssd { normal.max(forced) } else { 0 };
        let beyond = pool.memory().bytes_total() / BEYOND_PARTS;
        let reserved = pool.of_allowance(demote_start).saturating_add(beyond);
        // While at least this much is free, an idle extent here may go in exchange.
        let swap_floor = forced.saturating_add(normal.saturating_sub(forced) / 2);
        let swap_floor = pool.of_allowance(swap_floor);
        let bytes_left = pool.memory().bytes_free().saturating_sub(length);
        let is_enough = bytes_left >= reserved
            || bytes_left >= swap_floor && self.order.has_idle_extents(pool.now);
        is_enough && pool.admission.is_empty() && pool.memory().bytes_free() >= length
    }

    /// True if used extents may be promoted: some are on the SSD, and memory has space for them, or
    /// it is to be counted how many would be.
    pub(crate) fn can_promote(&self, pool: &Pool) -> bool {
        !self.order.ssd_scan.is_empty()
            && (self.counts_refaults || self.has_space_to_promote(pool, 1))
    }

    /// Scans the reference bits of extents on the SSD, and starts moving hot ones. `was_used` reads
    /// and clears an extent's reference bit. True if some were used.
    pub(crate) fn promote_hot(
        &mut self,
        pool: &mut Pool,
        was_used: &mut dyn FnMut(u32) -> bool,
        out: &mut Vec<Effect>,
    ) -> bool {
        let mut are_used = false;
        for _ in 0..LOOKS_MAX {
            let Some(slot) = self.order.ssd_scan.next(pool.now) else { break };
            if self.order.ssd_scan.has_begun_pass() {
                self.begin_promotions();
            }
            let is_used = was_used(slot);
            are_used |= is_used;
            let is_hot = self.order.ssd_scan.note_look(slot, is_used);
            let Some((inode, from)) = pool.slots().get(slot) else { continue };
            // An extent of a pinned file need not be hot; but while in use it would be hidden at
            // each pass.
            if !is_hot && (is_used || !self.order.pinned.contains(inode)) {
                continue;
            }
            if !self.has_space_to_promote(pool, from.length()) {
                self.note_refault(&from);
                continue;
            }
            if !self.may_promote(pool, (inode, &from)) {
                continue;
            }
            if !self.begin_move(pool, inode, from, (Extent::MEMORY, CopyClass::Serves), out) {
                self.order.watch(pool, inode, &from);
            }
        }
        are_used
    }

    /// An extent on the SSD would be promoted if there were space. It counts once.
    fn note_refault(&mut self, extent: &Extent) {
        if self.order.ssd_scan.take_demoted(extent.slot) {
            self.moves.moved.bytes_refaulted += extent.length();
        }
    }
}

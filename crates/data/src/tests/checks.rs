//! Checks of the invariants of a target, of all subjects or of one. They examine everything.

use crate::effect::Effect;
use crate::target::Target;
use crate::tiering::demote::DemotionSettings;
use std::collections::BTreeSet;
use wire::Inode;
use wire::reply::Extent;

impl Target {
    pub(super) fn check_accounts(&self) {
        self.pool.usage().check_against(self.pool.counted());
    }

    pub(super) fn check_preallocation(&self) {
        self.pool.preallocation().check(|inode, start| self.pool.slots().at(inode, start));
    }

    pub(super) fn check_admission(&self) {
        self.pool.admission.check();
    }

    pub(super) fn check_moves(&self) {
        self.tiering.moves.check(&self.pool);
    }

    pub(super) fn check_spill(&self) {
        self.tiering.spill.check(&self.pool);
    }

    /// Which extents are pinned, or may be promoted.
    pub(super) fn check_records(&self) {
        self.tiering.check_records(&self.pool);
    }

    pub(super) fn check_fairness(&self) {
        self.tiering.order.check_fairness(&self.pool);
    }

    pub(super) fn check_clean(&self) {
        self.tiering.order.clean.check(&self.pool);
    }

    pub(super) fn check_prefetch_queue(&self) {
        self.prefetch.queue.check();
    }

    /// Number of requests left in a prefetch list.
    pub(super) fn prefetches_of(&self, list: u64) -> usize {
        self.prefetch.queue.count_of(list)
    }

    /// Requests that waited for space and now wait for bytes.
    pub(super) fn tickets_with_turn(&self) -> BTreeSet<u64> {
        self.backed.fills.tickets_with_turn()
    }

    /// True if nothing is in flight for a fill and nobody waits for one.
    pub(super) fn fills_nothing(&self) -> bool {
        self.backed.fills.is_at_rest()
    }

    /// Starts evicting an extent.
    pub(super) fn hide_to_evict(&mut self, inode: Inode, extent: Extent, out: &mut Vec<Effect>) {
        self.tiering.order.clean.hide(&mut self.pool, inode, extent, out);
    }

    /// Replaces the settings of demotion.
    pub(super) fn set_demotion(&mut self, demotion: DemotionSettings) {
        self.tiering.order.settings = demotion;
    }
}

//! Replacement: which extents may leave their tier, and in which order.
//!
//! Each extent that may leave is in exactly one record: in memory it is demotable (`memory`, a
//! `clock` policy), pinned, or clean; on the SSD it is promotable (`ssd_scan`) or clean. Extents
//! that move, that are preallocated or that are spilled are in none. Besides, `dirty` has those of the
//! demotable ones that jobs have to answer for, also where nothing is demoted. The code that gives an
//! extent a location, or takes one away, reports it here (`watch`, `unwatch`). Nothing here starts a
//! move.
//!
//!   none --watch--> demotable, pinned, or promotable, as its file and its tier demand
//!   none --watch_clean--> clean
//!   clean --found changed--> demotable, or promotable
//!   any --unwatch and take_clean: it moves, or leaves its file--> none
//!
//! Invariants: those of `clean`, `pinned`, `ssd_scan`, `dirty_extents` and `fairness`.

use crate::effect::Effect;
use crate::space::pool::Pool;
use crate::tiering::clean::CleanExtents;
use crate::tiering::clock::{ANYBODY, ClockPolicy, Policy, VictimRule};
use crate::tiering::dirty_extents::DirtyExtents;
use crate::tiering::fairness::{Fairness, Policies};
use crate::tiering::pinned::PinnedFiles;
use crate::tiering::ssd_scan::SsdScan;
use wire::Inode;
use wire::quota::Owner;
use wire::reply::Extent;

/// When extents are demoted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DemotionSettings {
    /// While less memory than this is free, idle extents are demoted (Cn); 0: never.
    pub demote_low_watermark_bytes: u64,
    /// While less memory than this is free, the least recently used extents are demoted (Cf).
    pub demote_min_watermark_bytes: u64,
    /// How long an idle extent has not been used.
    pub idle_millis: u32,
}

impl DemotionSettings {
    /// Nothing is ever demoted.
    pub const NEVER: DemotionSettings = DemotionSettings {
        demote_low_watermark_bytes: 0,
        demote_min_watermark_bytes: 0,
        idle_millis: 0,
    };
}

/// The order in which extents leave their tiers.
#[derive(Clone, Debug)]
pub(crate) struct Replacement {
    pub(crate) settings: DemotionSettings,
    pub(crate) has_ssd: bool,
    /// There is an SSD or a spill host.
    pub(crate) has_destination: bool,
    /// Extents in memory that may be demoted.
    memory: ClockPolicy,
    pub(crate) clean: CleanExtents,
    pub(crate) ssd_scan: SsdScan,
    pub(crate) pinned: PinnedFiles,
    pub(crate) dirty: DirtyExtents,
    fairness: Fairness,
}

impl Replacement {
    /// No extents. Without an SSD nothing moves.
    pub(crate) fn new(settings: DemotionSettings, has_ssd: bool) -> Replacement {
        Replacement {
            settings,
            has_ssd,
            has_destination: has_ssd,
            memory: ClockPolicy::new(settings.idle_millis),
            clean: CleanExtents::new(settings.demote_min_watermark_bytes),
            ssd_scan: SsdScan::default(),
            pinned: PinnedFiles::default(),
            dirty: DirtyExtents::default(),
            fairness: Fairness::default(),
        }
    }

    const fn policies(&self) -> Policies<'_> {
        Policies { memory: &self.memory, clean: self.clean.policies() }
    }

    /// Holder of a file's extents.
    fn holder(&mut self, pool: &Pool, inode: Inode) -> u8 {
        let Some(Owner { uid, .. }) = pool.usage().owner(inode) else { return ANYBODY };
        let policies = Policies { memory: &self.memory, clean: self.clean.policies() };
        self.fairness.number(uid, policies)
    }

    /// The owner of a file is known, or changed.
    pub(crate) fn note_owner(&mut self, pool: &Pool, inode: Inode) {
        let holder = self.holder(pool, inode);
        for extent in pool.slots().over(inode, 0, u64::MAX) {
            self.memory.give(extent.slot, holder, pool.now);
            self.clean.give(extent.slot, holder);
        }
    }

    /// A file has an extent here that may move.
    pub(crate) fn watch(&mut self, pool: &Pool, inode: Inode, extent: &Extent) {
        match extent.tier {
            Extent::MEMORY if self.pinned.contains(inode) => self.pinned.insert(extent),
            // Extents stored for other targets do not move on to others.
            Extent::MEMORY if inode.is_spilled() && !self.has_ssd => {}
            Extent::MEMORY => {
                let holder = self.holder(pool, inode);
                self.dirty.count(extent);
                if self.has_destination {
                    self.memory.insert_of(holder, extent, false, pool.now);
                }
            }
            Extent::SSD => self.ssd_scan.insert(extent.slot),
            _ => {}
        }
    }

    /// An extent leaves its file, or must not move.
    pub(crate) fn unwatch(&mut self, extent: &Extent) {
        match extent.tier {
            Extent::MEMORY => {
                self.memory.remove(extent.slot);
                self.dirty.uncount(extent.slot);
                self.pinned.remove(extent.slot);
            }
            Extent::SSD => self.ssd_scan.remove(extent.slot),
            _ => {}
        }
    }

    /// A file has an extent here whose bytes the backing store has.
    pub(crate) fn watch_clean(&mut self, pool: &Pool, inode: Inode, extent: &Extent) {
        if self.pinned.contains(inode) {
            self.pinned.insert_clean(extent.slot);
            self.watch(pool, inode, extent);
        } else {
            self.unwatch(extent);
            self.insert_clean(pool, inode, extent);
        }
    }

    /// A clean extent may be evicted, again.
    pub(crate) fn insert_clean(&mut self, pool: &Pool, inode: Inode, extent: &Extent) {
        let holder = self.holder(pool, inode);
        self.clean.insert(holder, extent);
    }

    /// A file has an extent here that moved or stayed, as clean as it was.
    pub(crate) fn watch_as(&mut self, pool: &Pool, inode: Inode, extent: &Extent, is_clean: bool) {
        match is_clean {
            true => self.watch_clean(pool, inode, extent),
            false => self.watch(pool, inode, extent),
        }
    }

    /// An extent was promoted because it is hot.
    pub(crate) fn watch_promoted(&mut self, pool: &Pool, inode: Inode, extent: &Extent) {
        let holder = self.holder(pool, inode);
        self.dirty.count(extent);
        if self.settings != DemotionSettings::NEVER {
            self.memory.insert_of(holder, extent, true, pool.now);
        }
    }

    /// An extent could not leave because a hazard pointer protects it: it becomes hot. Otherwise
    /// its holder would always be first, with nothing that can leave.
    pub(crate) fn note_protected(&mut self, pool: &Pool, inode: Inode, extent: &Extent) {
        let holder = self.holder(pool, inode);
        let is_in_memory = extent.tier == Extent::MEMORY;
        if holder != ANYBODY && is_in_memory && self.memory.contains(extent.slot) {
            self.memory.insert_of(holder, extent, true, pool.now);
        }
    }

    /// An extent leaves its file, or moves. True if it was clean when that was last checked.
    pub(crate) fn take_clean(&mut self, extent: &Extent) -> bool {
        self.clean.remove(extent) || self.pinned.remove_clean(extent.slot)
    }

    /// A clean extent was changed: it is one like any other.
    pub(crate) fn note_dirty(&mut self, pool: &Pool, inode: Inode, extent: &Extent) {
        self.clean.remove(extent);
        self.watch(pool, inode, extent);
    }

    /// Recovery, or cleaning: these extents are clean, if they are still there.
    pub(crate) fn restore_clean(
        &mut self,
        pool: &Pool,
        found: impl Iterator<Item = (Inode, Extent)>,
    ) {
        for (inode, extent) in found {
            if pool.slots().at(inode, extent.start) == Some(extent) {
                self.watch_clean(pool, inode, &extent);
            }
        }
    }

    /// A request accesses `offset .. end` of a file: evictions there are cancelled.
    pub(crate) fn cancel_evictions(
        &mut self,
        pool: &Pool,
        inode: Inode,
        (offset, end): (u64, u64),
        out: &mut Vec<Effect>,
    ) {
        if self.clean.is_evicting_any() {
            for extent in pool.slots().over(inode, offset, end) {
                self.cancel_eviction(pool, inode, &extent, out);
            }
        }
    }

    /// Shows an extent, if it is hidden for eviction.
    pub(crate) fn cancel_eviction(
        &mut self,
        pool: &Pool,
        inode: Inode,
        extent: &Extent,
        out: &mut Vec<Effect>,
    ) {
        if self.clean.end_eviction(inode, extent.start) {
            self.insert_clean(pool, inode, extent);
            out.push(Effect::Show { slot: extent.slot });
        }
    }

    /// The next extent to demote.
    pub(crate) fn demotion_victim(
        &mut self,
        (holders, in_turn): (&[u8], bool),
        now: u32,
        rule: VictimRule,
        looks: u32,
        was_used: &mut dyn FnMut(u32) -> bool,
    ) -> Option<u32> {
        self.memory.victim_of((holders, in_turn), now, rule, looks, was_used)
    }

    /// True if extents may be demoted, and some cold extent is probably idle.
    pub(crate) fn has_idle_extents(&self, now: u32) -> bool {
        self.settings.demote_low_watermark_bytes > 0 && self.memory.has_idle(now)
    }

    /// Holders in the order in which they free space of a tier.
    pub(crate) fn holders_by_usage(&self, tier: u8) -> Vec<u8> {
        self.fairness.holders_by_usage(self.policies(), tier)
    }

    /// Number of known users with extents in memory that may leave.
    pub(crate) fn users_in_memory(&self) -> usize {
        self.fairness.users_in_memory(self.policies())
    }

    /// True if nothing must be freed for a waiting request or for a lower allowance.
    pub(crate) fn has_time(&self, pool: &Pool) -> bool {
        !self.clean.is_needed() && pool.admission.is_empty() && pool.bytes_beyond(0) == 0
    }

    /// True if cold extents can be demoted and need not leave at once.
    fn can_demote(&self, pool: &Pool) -> bool {
        let has_space = pool.ssd().bytes_free() > pool.ssd_reserved_bytes();
        let may_demote = self.has_ssd && self.settings != DemotionSettings::NEVER;
        self.has_time(pool) && may_demote && has_space
    }

    /// A holder with no more bytes than this keeps its clean extents. `None`: nobody does, because
    /// there is one holder, a request waits for space, or nothing of larger holders can be demoted.
    fn spared_up_to(&self, pool: &Pool) -> Option<u64> {
        if self.fairness.is_off() || !self.can_demote(pool) {
            return None;
        }
        let reserved = pool.of_allowance(self.clean.reserve_bytes());
        let bytes = pool.memory().allowance().saturating_sub(reserved);
        self.fairness.spared_up_to(self.policies(), bytes)
    }

    /// The holders whose clean extents of a tier may be evicted, in order.
    pub(crate) fn eviction_holders(&self, pool: &Pool, tier: u8) -> Vec<u8> {
        let mut holders = self.holders_by_usage(tier);
        if tier == Extent::MEMORY
            && let Some(share) = self.spared_up_to(pool)
        {
            holders.retain(|&holder| self.policies().held(holder, tier) > share);
        }
        holders
    }

    /// Bytes of clean extents in memory that fairness spares at present.
    pub(crate) fn spared_bytes(&self, pool: &Pool) -> u64 {
        let share = self.spared_up_to(pool);
        share.map_or(0, |share| self.fairness.clean_bytes_up_to(self.policies(), share))
    }

    /// Checks the invariant of `fairness`; for tests: it examines all extents.
    #[cfg(test)]
    pub(crate) fn check_fairness(&self, pool: &Pool) {
        let extents = pool.slots().iter().map(|(inode, extent)| {
            let uid = pool.usage().owner(inode).map(|owner| owner.uid);
            (extent.slot, extent.length(), uid)
        });
        self.fairness.check(self.policies(), extents);
    }
}

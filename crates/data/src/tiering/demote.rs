//! Demotion: cold extents move from memory to the SSD of the same target, or to a spill host, so
//! that memory has space for the next writes (O14, O16, O17). `moves` has the mechanics of a move,
//! `replacement` chooses the coldest extent. Besides, extents of a job leave while its writers wait for
//! its bound on dirty bytes, however much is free.
//!
//!   enough free --below the low watermark--> idle extents are demoted
//!   enough free --below the minimum watermark, or beyond the allowance--> the least recently used
//!   demoting --somewhat more than the low watermark is free--> enough free

use crate::effect::{CopyClass, Effect};
use crate::space::pool::Pool;
use crate::tiering::Tiering;
use crate::tiering::clock::VictimRule;
pub use crate::tiering::replacement::DemotionSettings;
use crate::tiering::watermarks::ActiveWatermarks;
use qos::dirty::{DirtyAnswer, DirtyJob};
use wire::reply::Extent;

/// Most reference bits that are read in one step, which takes some microseconds.
const LOOKS_MAX: u32 = 256;
/// Once demotion has begun, it continues until one part in this many of the memory more is free
/// than the watermark at which it began.
const BEYOND_PARTS: u64 = 16;
/// After the SSD refused, nothing is demoted for this time.
const REFUSED_MILLIS: u32 = 1000;

impl Tiering {
    /// True while memory is short enough for demotion, and the SSD or a spill host has space.
    pub(crate) fn can_start_demotion(&mut self, pool: &Pool) -> bool {
        let rule = self.demotion_rule(pool);
        self.is_on &= rule.is_some();
        let has_space = pool.ssd().bytes_free() > pool.ssd_reserved_bytes();
        rule.is_some() && (has_space || self.spill.is_on())
            || !pool.admission.bounded.is_empty() && self.can_demote_dirty(pool)
    }

    /// True if dirty extents of a job can be demoted whatever memory is free.
    pub(crate) fn can_demote_dirty(&self, pool: &Pool) -> bool {
        let has_space = pool.ssd().bytes_free() > pool.ssd_reserved_bytes();
        self.order.has_destination
            && self.order.settings != DemotionSettings::NEVER
            && (has_space || self.spill.is_on())
    }

    /// True if a job may not have an extent of this length before some of its dirty bytes have left.
    pub(crate) fn has_reached_bound(&mut self, pool: &Pool, of: DirtyJob, length: u64) -> bool {
        let dirty = &mut self.order.dirty;
        dirty.pass_time(pool.now, pool.memory().allowance());
        dirty.ask(of, length) == DirtyAnswer::Waits
    }

    /// Which extents are to be demoted now.
    fn demotion_rule(&self, pool: &Pool) -> Option<VictimRule> {
        let Tiering { order, .. } = self;
        let (settings, has_destination) = (order.settings, order.has_destination);
        let leaves = self.moves.leaving_bytes();
        // Clean extents go first, and without a copy.
        let clean = order.clean.bytes(Extent::MEMORY);
        if has_destination && pool.bytes_beyond(leaves + clean) > 0 {
            return Some(VictimRule::Forced);
        }
        let clean = clean - order.spared_bytes(pool);
        if !has_destination || settings == DemotionSettings::NEVER {
            return None;
        }
        // Free memory, memory about to be free, and preallocated memory that no request asked for.
        let free = pool.memory().bytes_free() + leaves + pool.preallocation().bytes();
        let beyond = if self.is_on { pool.memory().bytes_total() / BEYOND_PARTS } else { 0 };
        let normal = pool.of_allowance(settings.demote_low_watermark_bytes).saturating_add(beyond);
        // Idle extents stay rather than move to other nodes.
        let normal = if order.has_ssd { normal } else { 0 };
        match free {
            _ if free + clean < pool.of_allowance(settings.demote_min_watermark_bytes) => {
                Some(VictimRule::Forced)
            }
            _ if free < normal => Some(VictimRule::Normal),
            _ => None,
        }
    }

    /// Starts moving one extent of each job whose writers wait for its bound. False if none moves.
    fn demote_bounded(
        &mut self,
        pool: &mut Pool,
        was_used: &mut dyn FnMut(u32) -> bool,
        out: &mut Vec<Effect>,
    ) -> bool {
        let mut begins = false;
        for (of, length) in pool.admission.bounded.jobs() {
            let is_next = self.order.dirty.is_to_leave(of, length)
                && self.moves.may_move_another(pool, CopyClass::Frees)
                && self.can_demote_dirty(pool);
            let victim = is_next.then(|| self.order.dirty.victim(of, was_used)).flatten();
            let victim = victim.and_then(|slot| pool.slots().get(slot));
            let Some((inode, from)) = victim else { continue };
            let tier = self.spill.demotion_tier(pool, inode, from.length());
            let to = tier.map(|tier| (tier, CopyClass::Frees));
            if to.is_some_and(|to| self.begin_move(pool, inode, from, to, out)) {
                begins = true;
            } else {
                self.order.dirty.put_back(from.slot);
            }
        }
        begins
    }

    /// Starts moving cold extents if memory is short. `was_used` reads and clears an extent's
    /// reference bit. False if the SSD refused a moment ago: nothing was done then.
    pub(crate) fn demote_cold(
        &mut self,
        pool: &mut Pool,
        was_used: &mut dyn FnMut(u32) -> bool,
        out: &mut Vec<Effect>,
    ) -> bool {
        let refused_for = self.moves.refused_at.map(|at| pool.now.wrapping_sub(at));
        if refused_for.is_some_and(|millis| millis < REFUSED_MILLIS) {
            return false;
        }
        self.moves.refused_at = None;
        let holders = self.order.holders_by_usage(Extent::MEMORY);
        let in_turn = self.order.has_time(pool);
        // By turns, so that a job that outruns the SSD does not keep the idle extents of others here.
        loop {
            let for_bound = self.demote_bounded(pool, was_used, out);
            let for_space = self.demote_next(pool, (holders.as_slice(), in_turn), was_used, out);
            if !for_bound && !for_space {
                return true;
            }
        }
    }

    /// Starts moving one cold extent if memory is short. False if none moves.
    fn demote_next(
        &mut self,
        pool: &mut Pool,
        (holders, in_turn): (&[u8], bool),
        was_used: &mut dyn FnMut(u32) -> bool,
        out: &mut Vec<Effect>,
    ) -> bool {
        let Some(rule) = self.demotion_rule(pool) else { return false };
        self.is_on = true;
        let class = match rule {
            VictimRule::Forced => CopyClass::Frees,
            VictimRule::Normal => CopyClass::Ahead,
        };
        let may_start = self.moves.may_move_another(pool, class) && self.can_start_demotion(pool);
        if !may_start || in_turn && !self.moves.has_tokens(pool.now) {
            return false;
        }
        let holders = (holders, in_turn);
        let victim = self.order.demotion_victim(holders, pool.now, rule, LOOKS_MAX, was_used);
        let victim = victim.and_then(|slot| pool.slots().get(slot));
        let Some((inode, from)) = victim else { return false };
        let tier = self.spill.demotion_tier(pool, inode, from.length());
        let begins =
            tier.is_some_and(|tier| self.begin_move(pool, inode, from, (tier, class), out));
        if !begins {
            self.order.watch(pool, inode, &from);
        }
        begins
    }

    /// Sets the watermarks in force, as shares of the present allowance.
    pub(crate) fn set_active_watermarks(&mut self, pool: &Pool, to: &ActiveWatermarks) {
        let (allowed, all) = (pool.memory().allowance().max(1), pool.memory().length());
        let of_all = |bytes: u64| {
            let bytes = u128::from(bytes) * u128::from(all) / u128::from(allowed);
            u64::try_from(bytes).unwrap_or(u64::MAX).min(all)
        };
        let settings = &mut self.order.settings;
        settings.demote_low_watermark_bytes = of_all(to.demote_low_watermark_bytes);
        settings.demote_min_watermark_bytes = of_all(to.demote_min_watermark_bytes);
        self.counts_refaults = true;
        self.order.clean.set_reserve(settings.demote_min_watermark_bytes);
    }
}

//! Calls that the caller repeats from time to time, while the matching query says so (`queries`):
//! they read reference bits, and begin what these suggest. Each ends as a step does.

use super::Target;
use crate::effect::Effect;
use crate::tiering::watermarks::ActiveWatermarks;

impl Target {
    /// Sets the time. To be called before everything that depends on it.
    pub fn pass_time(&mut self, now_millis: u32) {
        self.pool.now = now_millis;
    }

    /// Starts moving cold extents if memory is short. To be called periodically while
    /// `is_demoting`, and when a copy ended. `was_used` reads and clears an extent's reference bit.
    /// True if some move started.
    pub fn demote(
        &mut self,
        now_millis: u32,
        was_used: &mut dyn FnMut(u32) -> bool,
        out: &mut Vec<Effect>,
    ) -> bool {
        self.pool.now = now_millis;
        let Target { pool, tiering, prefetch, .. } = self;
        let before = tiering.moves.begun();
        let mut was_used = |slot| prefetch.unread.note_used(slot, was_used(slot));
        if !tiering.demote_cold(pool, &mut was_used, out) {
            return false;
        }
        self.finish(out);
        self.tiering.moves.begun() > before
    }

    /// Scans the reference bits of extents on the SSD, and starts moving hot ones. To be called
    /// periodically while `is_promoting`. `was_used` reads and clears an extent's reference bit.
    /// True if some were used.
    pub fn promote(
        &mut self,
        now_millis: u32,
        was_used: &mut dyn FnMut(u32) -> bool,
        out: &mut Vec<Effect>,
    ) -> bool {
        self.pool.now = now_millis;
        let Target { pool, tiering, prefetch, .. } = self;
        let mut was_used = |slot| prefetch.unread.note_used(slot, was_used(slot));
        let are_used = tiering.promote_hot(pool, &mut was_used, out);
        self.finish(out);
        are_used
    }

    /// Starts evicting cold clean extents where space is short. `was_used` reads and clears an
    /// extent's reference bit; `is_clean` tells whether its clean mark is still set. True if some
    /// extent is hidden.
    pub fn evict_clean(
        &mut self,
        now_millis: u32,
        was_used: &mut dyn FnMut(u32) -> bool,
        is_clean: &dyn Fn(u32) -> bool,
        out: &mut Vec<Effect>,
    ) -> bool {
        let Target { pool, tiering, backed, prefetch, .. } = self;
        let mut was_used = |slot| prefetch.unread.note_used(slot, was_used(slot));
        let hides = backed.evict_cold(pool, tiering, now_millis, &mut was_used, is_clean, out);
        if !hides {
            // Waiting requests state their needs again.
            self.admit_waiting(out);
        }
        self.finish(out);
        hides
    }

    /// Checks how far readers are in what was brought up for them, and brings up more. To be called
    /// every few milliseconds while `is_reading_ahead`. `is_used` reads an extent's reference bit.
    /// True if some were used, or fills are in flight.
    pub fn advance_readahead(
        &mut self,
        now_millis: u32,
        is_used: &mut dyn FnMut(u32) -> bool,
        out: &mut Vec<Effect>,
    ) -> bool {
        self.pool.now = now_millis;
        let (prefetch, mut lower) = self.split(out);
        let are_used = prefetch.advance(is_used, &mut lower);
        self.finish(out);
        are_used || self.backed.fills.is_filling()
    }

    /// Sets the watermarks in force, as shares of the present allowance.
    pub fn set_watermarks(&mut self, to: &ActiveWatermarks) {
        self.tiering.set_active_watermarks(&self.pool, to);
    }

    /// The allowance of the arena at the start, in bytes: before the first step, so that no memory
    /// beyond it is ever provisioned.
    pub fn begin_lent(&mut self, bytes: u64) {
        self.pool.allow_memory(bytes);
    }

    /// Sets the allowance of the arena, in bytes.
    pub fn lend(&mut self, bytes: u64, out: &mut Vec<Effect>) {
        self.pool.allow_memory(bytes);
        self.returning.ask_again();
        self.finish(out);
    }
}

//! Two tiers in virtual time, filled and emptied as `data::tiering::demote` and
//! `data::tiering::promote` do, with extents, and an SSD of a given bandwidth.

use data::tiering::watermarks::{
    ActiveWatermarks, PERIOD_MILLIS, TieringCounts, WatermarkOverrides, WatermarkSample, Watermarks,
};

pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const MEMORY: u64 = 1024 * MIB;
/// Step of the model's clock.
const TICK_MILLIS: u64 = 10;
const IDLE_MILLIS: u64 = 500;
const FORCED_IDLE_MILLIS: u64 = 10;
/// As in `demote` and `promote`.
const DEMOTE_BEYOND: u64 = MEMORY / 16;
const PROMOTE_BEYOND: u64 = MEMORY / 8;

struct Extent {
    bytes: u64,
    used_at: u64,
    in_memory: bool,
    has_demoted: bool,
    /// Uses since it came to its tier.
    accesses: u32,
    is_there: bool,
}

/// Costs of a trace.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Cost {
    /// Bytes written that found no memory.
    pub(crate) missed: u64,
    /// Bytes demoted.
    pub(crate) demoted: u64,
    /// Of these, bytes that were wanted again.
    pub(crate) refaulted: u64,
    /// Bytes read from the SSD.
    pub(crate) read_ssd: u64,
    /// How often the low watermark changed its direction.
    pub(crate) reversals: u32,
}

pub(crate) struct Model {
    extents: Vec<Extent>,
    watermarks: Watermarks,
    in_force: ActiveWatermarks,
    drain_rate: u64,
    budget: u64,
    is_on: bool,
    now: u64,
    looked_at: u64,
    counts: TieringCounts,
    cost: Cost,
    was_raised: Option<bool>,
    used: u64,
    /// Extents in memory.
    held: Vec<usize>,
}

impl Model {
    pub(crate) fn new(given: WatermarkOverrides, drain_rate: u64) -> Model {
        let watermarks = Watermarks::new(given);
        let in_force = watermarks.in_force(MEMORY);
        Model {
            extents: Vec::new(),
            watermarks,
            in_force,
            drain_rate,
            budget: 0,
            is_on: false,
            now: 0,
            looked_at: 0,
            counts: TieringCounts::default(),
            cost: Cost::default(),
            was_raised: None,
            used: 0,
            held: Vec::new(),
        }
    }

    pub(crate) fn cost(&self) -> Cost {
        let TieringCounts {
            bytes_overflowed: missed,
            bytes_demoted: demoted,
            bytes_refaulted: refaulted,
            ..
        } = self.counts;
        Cost { missed, demoted, refaulted, ..self.cost }
    }

    pub(crate) fn in_force(&self) -> ActiveWatermarks {
        self.in_force
    }

    pub(crate) fn free(&self) -> u64 {
        MEMORY - self.used
    }

    /// Writes a new extent; returns its number.
    pub(crate) fn write(&mut self, bytes: u64) -> usize {
        let in_memory = self.free() >= bytes;
        self.counts.bytes_allocated += bytes;
        self.counts.extents_made += 1;
        self.counts.bytes_overflowed += if in_memory { 0 } else { bytes };
        if in_memory {
            self.hold(self.extents.len(), bytes);
        }
        let used_at = self.now;
        self.extents.push(Extent {
            bytes,
            used_at,
            in_memory,
            has_demoted: false,
            accesses: 0,
            is_there: true,
        });
        self.extents.len() - 1
    }

    /// Writes `bytes` in extents, at a rate in bytes per second.
    pub(crate) fn burst(&mut self, bytes: u64, extent: u64, rate: u64) -> Vec<usize> {
        let mut made = Vec::new();
        let (mut bytes_left, mut may) = (bytes, 0);
        while bytes_left > 0 {
            may += rate * TICK_MILLIS / 1000;
            while may >= extent && bytes_left > 0 {
                made.push(self.write(extent));
                (may, bytes_left) = (may - extent, bytes_left.saturating_sub(extent));
            }
            self.tick();
        }
        made
    }

    pub(crate) fn remove(&mut self, extent: usize) {
        if self.extents[extent].is_there && self.extents[extent].in_memory {
            self.release(extent);
        }
        self.extents[extent].is_there = false;
    }

    fn hold(&mut self, extent: usize, bytes: u64) {
        self.held.push(extent);
        self.used += bytes;
    }

    fn release(&mut self, extent: usize) {
        self.held.retain(|&one| one != extent);
        self.used -= self.extents[extent].bytes;
    }

    pub(crate) fn read(&mut self, extent: usize) {
        let free = self.free();
        let ActiveWatermarks {
            demote_low_watermark_bytes: normal,
            demote_min_watermark_bytes: forced,
            ..
        } = self.in_force;
        let is_idle =
            |one: &Extent, now: u64| one.accesses == 0 && one.used_at + IDLE_MILLIS <= now;
        let changes = self.held.iter().any(|&one| is_idle(&self.extents[one], self.now));
        let one = &mut self.extents[extent];
        (one.used_at, one.accesses) = (self.now, one.accesses + 1);
        if one.in_memory {
            return;
        }
        self.cost.read_ssd += one.bytes;
        let bytes_left = free.saturating_sub(one.bytes);
        let has_space = bytes_left >= normal + PROMOTE_BEYOND
            || changes && bytes_left >= forced + (normal - forced) / 2;
        if one.accesses < 2 {
            return;
        }
        // It is wanted, whether or not there is space.
        self.counts.bytes_refaulted += if one.has_demoted { one.bytes } else { 0 };
        one.has_demoted = false;
        if has_space && free >= one.bytes {
            (one.in_memory, one.accesses) = (true, 1);
            let bytes = one.bytes;
            self.hold(extent, bytes);
        }
    }

    /// The next extent to demote, if any.
    fn victim(&mut self) -> Option<usize> {
        let free = self.free();
        let beyond = if self.is_on { DEMOTE_BEYOND } else { 0 };
        self.is_on = free < self.in_force.demote_low_watermark_bytes + beyond;
        if !self.is_on {
            return None;
        }
        let is_forced = free < self.in_force.demote_min_watermark_bytes;
        let pause = if is_forced { FORCED_IDLE_MILLIS } else { IDLE_MILLIS };
        let all = self.held.iter().map(|&location| (location, &self.extents[location]));
        let may_go = all.filter(|(_, one)| one.used_at + pause <= self.now);
        may_go.min_by_key(|(_, one)| (one.accesses > 0, one.used_at)).map(|(location, _)| location)
    }

    fn demote(&mut self) {
        self.budget = (self.budget + self.drain_rate * TICK_MILLIS / 1000).min(16 * MIB);
        while let Some(location) = self.victim() {
            let one = &mut self.extents[location];
            if one.bytes > self.budget {
                break;
            }
            (one.in_memory, one.has_demoted, one.accesses) = (false, true, 0);
            self.counts.bytes_demoted += one.bytes;
            self.counts.demotion_micros += one.bytes * 1_000_000 / self.drain_rate;
            self.budget -= one.bytes;
            self.release(location);
        }
    }

    fn look(&mut self) {
        if !self.watermarks.has_changed(&self.counts) {
            self.looked_at = self.now;
            return;
        }
        let millis = (self.now - self.looked_at) as u32;
        if millis < PERIOD_MILLIS {
            return;
        }
        self.looked_at = self.now;
        let (total, free, counts) = (MEMORY, self.free(), self.counts);
        let next = self.watermarks.look(&WatermarkSample { millis, total, free, counts });
        let [before, after] = [self.in_force, next].map(|one| one.demote_low_watermark_bytes);
        if before != after && self.was_raised.replace(after > before) == Some(after < before) {
            self.cost.reversals += 1;
        }
        self.in_force = next;
    }

    pub(crate) fn tick(&mut self) {
        self.now += TICK_MILLIS;
        self.watermarks.note_free(self.free());
        self.demote();
        self.look();
    }

    pub(crate) fn pause(&mut self, millis: u64) {
        (0..millis / TICK_MILLIS).for_each(|_| self.tick());
    }
}

//! Two tiers in virtual time, as `data::sink` and `data::rise` fill and empty them, with pieces, and an
//! SSD of so many bytes a second.

use data::thresholds::{Counts, Given, InForce, Look, PERIOD_MILLIS, Thresholds};

pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const MEMORY: u64 = 1024 * MIB;
/// Of the model's clock.
const TICK_MILLIS: u64 = 10;
const IDLE_MILLIS: u64 = 500;
const FORCED_IDLE_MILLIS: u64 = 10;
/// As in `sink` and `rise`.
const SINK_BEYOND: u64 = MEMORY / 16;
const RISE_BEYOND: u64 = MEMORY / 8;

struct Piece {
    bytes: u64,
    used_at: u64,
    in_memory: bool,
    has_sunk: bool,
    /// Uses since it came to where it is.
    uses: u32,
    is_there: bool,
}

/// What a trace cost.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Cost {
    /// Bytes that were written and found no memory.
    pub(crate) missed: u64,
    /// Bytes that sank.
    pub(crate) sunk: u64,
    /// Of these, those that were wanted again.
    pub(crate) returned: u64,
    /// Bytes that were read from the SSD.
    pub(crate) read_below: u64,
    /// How often the normal threshold changed its direction.
    pub(crate) turns: u32,
}

pub(crate) struct Model {
    pieces: Vec<Piece>,
    thresholds: Thresholds,
    in_force: InForce,
    drain_rate: u64,
    budget: u64,
    is_on: bool,
    now: u64,
    looked_at: u64,
    counts: Counts,
    cost: Cost,
    was_raised: Option<bool>,
    used: u64,
    /// Pieces in memory.
    held: Vec<usize>,
}

impl Model {
    pub(crate) fn new(given: Given, drain_rate: u64) -> Model {
        let thresholds = Thresholds::new(given);
        let in_force = thresholds.in_force(MEMORY);
        Model {
            pieces: Vec::new(),
            thresholds,
            in_force,
            drain_rate,
            budget: 0,
            is_on: false,
            now: 0,
            looked_at: 0,
            counts: Counts::default(),
            cost: Cost::default(),
            was_raised: None,
            used: 0,
            held: Vec::new(),
        }
    }

    pub(crate) fn cost(&self) -> Cost {
        let Counts { bytes_missed: missed, bytes_sunk: sunk, bytes_returned: returned, .. } =
            self.counts;
        Cost { missed, sunk, returned, ..self.cost }
    }

    pub(crate) fn in_force(&self) -> InForce {
        self.in_force
    }

    pub(crate) fn free(&self) -> u64 {
        MEMORY - self.used
    }

    /// Writes a new piece; its number.
    pub(crate) fn write(&mut self, bytes: u64) -> usize {
        let in_memory = self.free() >= bytes;
        self.counts.bytes_made += bytes;
        self.counts.pieces_made += 1;
        self.counts.bytes_missed += if in_memory { 0 } else { bytes };
        if in_memory {
            self.hold(self.pieces.len(), bytes);
        }
        let used_at = self.now;
        self.pieces.push(Piece {
            bytes,
            used_at,
            in_memory,
            has_sunk: false,
            uses: 0,
            is_there: true,
        });
        self.pieces.len() - 1
    }

    /// Writes so many bytes in pieces, at so many bytes a second.
    pub(crate) fn burst(&mut self, bytes: u64, piece: u64, rate: u64) -> Vec<usize> {
        let mut made = Vec::new();
        let (mut left, mut may) = (bytes, 0);
        while left > 0 {
            may += rate * TICK_MILLIS / 1000;
            while may >= piece && left > 0 {
                made.push(self.write(piece));
                (may, left) = (may - piece, left.saturating_sub(piece));
            }
            self.tick();
        }
        made
    }

    pub(crate) fn remove(&mut self, piece: usize) {
        if self.pieces[piece].is_there && self.pieces[piece].in_memory {
            self.release(piece);
        }
        self.pieces[piece].is_there = false;
    }

    fn hold(&mut self, piece: usize, bytes: u64) {
        self.held.push(piece);
        self.used += bytes;
    }

    fn release(&mut self, piece: usize) {
        self.held.retain(|&one| one != piece);
        self.used -= self.pieces[piece].bytes;
    }

    pub(crate) fn read(&mut self, piece: usize) {
        let free = self.free();
        let InForce { normal_below_bytes: normal, forced_below_bytes: forced, .. } = self.in_force;
        let is_idle = |one: &Piece, now: u64| one.uses == 0 && one.used_at + IDLE_MILLIS <= now;
        let changes = self.held.iter().any(|&one| is_idle(&self.pieces[one], self.now));
        let one = &mut self.pieces[piece];
        (one.used_at, one.uses) = (self.now, one.uses + 1);
        if one.in_memory {
            return;
        }
        self.cost.read_below += one.bytes;
        let left = free.saturating_sub(one.bytes);
        let has_room =
            left >= normal + RISE_BEYOND || changes && left >= forced + (normal - forced) / 2;
        if one.uses < 2 {
            return;
        }
        // It is wanted, whether or not there is room.
        self.counts.bytes_returned += if one.has_sunk { one.bytes } else { 0 };
        one.has_sunk = false;
        if has_room && free >= one.bytes {
            (one.in_memory, one.uses) = (true, 1);
            let bytes = one.bytes;
            self.hold(piece, bytes);
        }
    }

    /// The next to sink, if one is to.
    fn victim(&mut self) -> Option<usize> {
        let free = self.free();
        let beyond = if self.is_on { SINK_BEYOND } else { 0 };
        self.is_on = free < self.in_force.normal_below_bytes + beyond;
        if !self.is_on {
            return None;
        }
        let is_forced = free < self.in_force.forced_below_bytes;
        let pause = if is_forced { FORCED_IDLE_MILLIS } else { IDLE_MILLIS };
        let all = self.held.iter().map(|&place| (place, &self.pieces[place]));
        let may_go = all.filter(|(_, one)| one.used_at + pause <= self.now);
        may_go.min_by_key(|(_, one)| (one.uses > 0, one.used_at)).map(|(place, _)| place)
    }

    fn sink(&mut self) {
        self.budget = (self.budget + self.drain_rate * TICK_MILLIS / 1000).min(16 * MIB);
        while let Some(place) = self.victim() {
            let one = &mut self.pieces[place];
            if one.bytes > self.budget {
                break;
            }
            (one.in_memory, one.has_sunk, one.uses) = (false, true, 0);
            self.counts.bytes_sunk += one.bytes;
            self.counts.sunk_micros += one.bytes * 1_000_000 / self.drain_rate;
            self.budget -= one.bytes;
            self.release(place);
        }
    }

    fn look(&mut self) {
        if !self.thresholds.is_news(&self.counts) {
            self.looked_at = self.now;
            return;
        }
        let millis = (self.now - self.looked_at) as u32;
        if millis < PERIOD_MILLIS {
            return;
        }
        self.looked_at = self.now;
        let (total, free, counts) = (MEMORY, self.free(), self.counts);
        let next = self.thresholds.look(&Look { millis, total, free, counts });
        let [before, after] = [self.in_force, next].map(|one| one.normal_below_bytes);
        if before != after && self.was_raised.replace(after > before) == Some(after < before) {
            self.cost.turns += 1;
        }
        self.in_force = next;
    }

    pub(crate) fn tick(&mut self) {
        self.now += TICK_MILLIS;
        self.thresholds.note_free(self.free());
        self.sink();
        self.look();
    }

    pub(crate) fn pause(&mut self, millis: u64) {
        (0..millis / TICK_MILLIS).for_each(|_| self.tick());
    }
}

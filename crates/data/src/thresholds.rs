//! Thresholds that set themselves (O16): how much memory sinking keeps free, from what was counted.
//!
//! Two aims: writers find memory, and little moves. The forced threshold (Cf) and the gap to the normal
//! one (Cn = Cf + gap) begin with what the bandwidths demand, as in the paper: N pieces of the mean size,
//! N being how often faster memory is written than what sinks. Both bandwidths are those of the first
//! real writes and moves; until there were some, the thresholds are the fixed settings' defaults. Then:
//!
//!   a byte that found no memory              raises the gap by a byte
//!   a byte that sank, and is wanted again    lowers it by one
//!   a whole memory was written, and so much stayed free all the time, beyond Cf and a band
//!                                            lowers it by half of that
//!
//! So the gap rests where a byte more would be moved for nothing as often as one less would be missed. It
//! is counted in bytes, not in time: a pause between two bursts forgets nothing. Cf is a fourth of the
//! gap, as the defaults are, or what the bandwidths demand.
//!
//! What keeps it from swinging: what the bandwidths demand is another when it is twice or half as much;
//! what stays free is not lowered within the band, nor by less than a 64th of the memory; and misses
//! raise the gap by a fourth of the memory at most until as much as is to be free was free again. So a
//! stream that outruns the SSD for hours, for which no threshold helps, says no more than one burst does.
//!
//! No I/O and no clock: `look` is called every `PERIOD_MILLIS` while something changes.
//!
//! Invariants: Cf < Cn <= 3/4 of the memory, if neither is given; the gap is at least the first one of
//! what is measured now, or a 64th of the memory.

/// Between two looks, while something changes.
pub const PERIOD_MILLIS: u32 = 100;
/// Of the memory, before anything is known, in per cent.
pub const NORMAL_PERCENT: u64 = 50;
/// As `NORMAL_PERCENT`, for the forced threshold.
pub const FORCED_PERCENT: u64 = 10;
/// With less memory than this the thresholds stay.
const TOTAL_BYTES_MIN: u64 = 1 << 20;
/// Least gap and least Cf: one part in so many of the memory.
const LEAST_PARTS: u64 = 64;
/// Most that misses of one burst raise the gap by, and most that bandwidths demand: one part in so many.
const RAISE_PARTS: u64 = 4;
/// Largest Cf, and the band of what may stay free: one part in so many.
const BAND_PARTS: u64 = 8;
/// Largest gap, in such parts.
const GAP_BANDS_MAX: u64 = 5;
/// Cf is so much of the gap: one part in so many.
const FORCED_PARTS: u64 = 4;
/// Most pieces that bandwidths demand.
const PIECES_MAX: u64 = 64;
/// So many bytes must have sunk before their bandwidth is known.
const SUNK_BYTES_MIN: u64 = 1 << 20;
/// Means are those of the last bytes: sums are halved when they are beyond this.
const SUM_BYTES_MAX: u64 = 256 << 20;

/// What was counted since the target was made. None of them falls.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Counts {
    /// Bytes of pieces that writers had made.
    pub bytes_made: u64,
    /// These pieces.
    pub pieces_made: u64,
    /// Bytes of these that went to the SSD, as memory had no room.
    pub bytes_missed: u64,
    /// Bytes that sank.
    pub bytes_sunk: u64,
    /// Microseconds that copying these took.
    pub sunk_micros: u64,
    /// Bytes that sank and are wanted in memory again: they were moved for nothing.
    pub bytes_returned: u64,
}

impl Counts {
    /// Nothing was counted.
    pub const ZERO: Counts = Counts {
        bytes_made: 0,
        pieces_made: 0,
        bytes_missed: 0,
        bytes_sunk: 0,
        sunk_micros: 0,
        bytes_returned: 0,
    };

    const fn since(&self, last: &Counts) -> Counts {
        Counts {
            bytes_made: self.bytes_made.saturating_sub(last.bytes_made),
            pieces_made: self.pieces_made.saturating_sub(last.pieces_made),
            bytes_missed: self.bytes_missed.saturating_sub(last.bytes_missed),
            bytes_sunk: self.bytes_sunk.saturating_sub(last.bytes_sunk),
            sunk_micros: self.sunk_micros.saturating_sub(last.sunk_micros),
            bytes_returned: self.bytes_returned.saturating_sub(last.bytes_returned),
        }
    }
}

/// What is seen at one look.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Look {
    /// Milliseconds in which what is new was counted.
    pub millis: u32,
    /// Bytes of memory.
    pub total: u64,
    /// Of these, free.
    pub free: u64,
    /// Till now.
    pub counts: Counts,
}

/// Why the thresholds are what they are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reason {
    /// Both are given.
    Given,
    /// Nothing is known yet.
    Default,
    /// From the bandwidths.
    Bandwidths,
    /// Raised: writers found no memory.
    Missed,
    /// Lowered: what sank was wanted again.
    Returned,
    /// Lowered: so much was not needed.
    Unused,
}

impl Reason {
    const ALL: [Reason; 6] = [
        Reason::Given,
        Reason::Default,
        Reason::Bandwidths,
        Reason::Missed,
        Reason::Returned,
        Reason::Unused,
    ];

    /// The one of this number.
    #[must_use]
    pub fn of(number: u8) -> Reason {
        let found = Reason::ALL.into_iter().find(|reason| *reason as u8 == number);
        found.unwrap_or(Reason::Given)
    }

    /// One word.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Reason::Given => "given",
            Reason::Default => "default",
            Reason::Bandwidths => "bandwidths",
            Reason::Missed => "missed",
            Reason::Returned => "returned",
            Reason::Unused => "unused",
        }
    }
}

/// Thresholds in force.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InForce {
    /// While less than this is free, what is idle sinks (Cn).
    pub normal_below_bytes: u64,
    /// While less than this is, anything (Cf).
    pub forced_below_bytes: u64,
    /// Why.
    pub reason: Reason,
}

/// What somebody decided, in per cent of the memory; `None`: it sets itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Given {
    /// Cn.
    pub normal: Option<u64>,
    /// Cf.
    pub forced: Option<u64>,
}

/// A quotient of two sums, of which the last bytes count most.
#[derive(Clone, Copy, Default, Debug)]
struct Mean {
    bytes: u64,
    of: u64,
}

impl Mean {
    const fn add(&mut self, bytes: u64, of: u64) {
        self.bytes = self.bytes.saturating_add(bytes);
        self.of = self.of.saturating_add(of);
        while self.bytes > SUM_BYTES_MAX {
            (self.bytes, self.of) = (self.bytes / 2, self.of.div_ceil(2));
        }
    }
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Thresholds {
    given: Given,
    last: Counts,
    /// Fastest that writers had pieces made, in bytes a second; the last periods count most.
    fill_rate: u64,
    /// Bytes that sank, and the microseconds of that.
    sunk: Mean,
    /// Bytes of new pieces, and their number.
    made: Mean,
    /// What the bandwidths demand.
    unit: Option<u64>,
    /// `None`: nothing is known yet.
    gap: Option<u64>,
    reason: Reason,
    /// By misses, since as much as is to be free was free.
    raised: u64,
    /// When this was made a turn began, and in it so much was free at least.
    turn_from: u64,
    least_free: u64,
}

impl Thresholds {
    /// Nothing is known.
    #[must_use]
    pub fn new(given: Given) -> Thresholds {
        let is_given = given.normal.is_some() && given.forced.is_some();
        Thresholds {
            given,
            last: Counts::ZERO,
            fill_rate: 0,
            sunk: Mean::default(),
            made: Mean::default(),
            unit: None,
            gap: None,
            reason: if is_given { Reason::Given } else { Reason::Default },
            raised: 0,
            turn_from: 0,
            least_free: u64::MAX,
        }
    }

    /// True if there is something to set.
    #[must_use]
    pub fn set_themselves(&self) -> bool {
        self.reason != Reason::Given
    }

    /// True if what was counted differs from what the last look saw.
    #[must_use]
    pub fn is_news(&self, counts: &Counts) -> bool {
        self.last != *counts
    }

    /// So much is free at the moment: for who looks more often than `look` is called.
    pub const fn note_free(&mut self, free: u64) {
        if free < self.least_free {
            self.least_free = free;
        }
    }

    /// What is in force for so much memory.
    #[must_use]
    pub fn in_force(&self, total: u64) -> InForce {
        let percent = |of: u64| total / 100 * of.min(100);
        let Given { normal, forced } = self.given;
        let (own_normal, own_forced) = match self.gap {
            None => (percent(NORMAL_PERCENT), percent(FORCED_PERCENT)),
            Some(gap) => {
                let forced = self.unit.unwrap_or(0).max(gap / FORCED_PARTS);
                let forced = forced.clamp(total / LEAST_PARTS, total / BAND_PARTS);
                (forced.saturating_add(gap), forced)
            }
        };
        let most = total / BAND_PARTS * (GAP_BANDS_MAX + 1);
        let (normal, forced) = match (normal.map(percent), forced.map(percent)) {
            (Some(normal), Some(forced)) => (normal, forced.min(normal)),
            (Some(normal), None) => (normal, own_forced.min(normal / 2)),
            (None, Some(forced)) => {
                let beyond = own_normal.saturating_sub(own_forced);
                let normal = forced.saturating_add(beyond).min(most);
                (normal.max(forced.saturating_add(total / LEAST_PARTS)).min(total), forced)
            }
            (None, None) => (own_normal.min(most), own_forced),
        };
        InForce { normal_below_bytes: normal, forced_below_bytes: forced, reason: self.reason }
    }

    /// What the bandwidths demand (the paper's `N * S`); `None`: they are not known.
    fn demanded(&self) -> Option<u64> {
        let Thresholds { sunk, made, fill_rate, .. } = self;
        if sunk.bytes == 0 || made.of == 0 {
            return None;
        }
        let drain_rate = u128::from(sunk.bytes) * 1_000_000 / u128::from(sunk.of.max(1));
        let pieces = u128::from(*fill_rate).div_ceil(drain_rate.max(1));
        let pieces = pieces.clamp(1, u128::from(PIECES_MAX)) as u64;
        Some((made.bytes / made.of).saturating_mul(pieces))
    }

    fn measure(&mut self, new: &Counts, millis: u32) {
        if new.bytes_made > 0 {
            let rate = u128::from(new.bytes_made) * 1000 / u128::from(millis.max(1));
            let rate = u64::try_from(rate).unwrap_or(u64::MAX);
            self.fill_rate = rate.max(self.fill_rate / 16 * 15);
            self.made.add(new.bytes_made, new.pieces_made);
        }
        // A few small pieces say how long a copy takes to begin, and no bandwidth.
        let is_known = self.sunk.bytes > 0 || self.last.bytes_sunk >= SUNK_BYTES_MIN;
        if is_known && new.bytes_sunk > 0 {
            self.sunk.add(new.bytes_sunk, new.sunk_micros);
        }
        let Some(unit) = self.demanded() else { return };
        if self.unit.is_none_or(|last| unit >= last.saturating_mul(2) || unit <= last / 2) {
            self.unit = Some(unit);
        }
    }

    /// Takes in what happened since the last look. What is in force from now on.
    pub fn look(&mut self, look: &Look) -> InForce {
        let Look { millis, total, free, counts } = *look;
        let new = counts.since(&self.last);
        self.last = counts;
        self.measure(&new, millis);
        self.note_free(free);
        let Some(unit) = self.unit.filter(|_| total >= TOTAL_BYTES_MIN) else {
            return self.in_force(total);
        };
        if !self.set_themselves() {
            return self.in_force(total);
        }
        let floor = unit.clamp(total / LEAST_PARTS, total / RAISE_PARTS);
        let most = total / BAND_PARTS * GAP_BANDS_MAX;
        if self.gap.is_none() {
            (self.gap, self.reason) = (Some(floor), Reason::Bandwidths);
            (self.turn_from, self.least_free) = (counts.bytes_made, free);
        }
        let InForce { normal_below_bytes, forced_below_bytes, .. } = self.in_force(total);
        if free >= normal_below_bytes {
            self.raised = 0;
        }
        let raise = new.bytes_missed.min((total / RAISE_PARTS).saturating_sub(self.raised));
        self.raised = self.raised.saturating_add(raise);
        let before = self.gap.unwrap_or(floor);
        let mut gap = before.saturating_add(raise).saturating_sub(new.bytes_returned);
        let mut reason = if gap > before { Reason::Missed } else { Reason::Returned };
        if counts.bytes_made.saturating_sub(self.turn_from) >= total {
            let unused = self.least_free.saturating_sub(forced_below_bytes);
            let unused = unused.saturating_sub(total / BAND_PARTS) / 2;
            if unused >= total / LEAST_PARTS {
                (gap, reason) = (gap.saturating_sub(unused), Reason::Unused);
            }
            (self.turn_from, self.least_free) = (counts.bytes_made, free);
        }
        let gap = gap.clamp(floor, most);
        if gap != before {
            self.reason = if gap == floor { Reason::Bandwidths } else { reason };
        }
        self.gap = Some(gap);
        self.in_force(total)
    }
}

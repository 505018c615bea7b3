//! Adaptive watermarks (O16): how much memory demotion keeps free, computed from counters.
//!
//! Two aims: writers find memory, and little is moved. The minimum watermark (Cf, *forced*) and its
//! gap to the low watermark (Cn = Cf + gap, *normal*) start with what the bandwidths demand, as in
//! the paper: N extents of the mean size, where N is how many times faster memory is filled than
//! demoted. Both bandwidths are those of the first real writes and moves; until there were some,
//! the watermarks are the defaults of the fixed settings. Then:
//!
//!   a byte that found no memory              raises the gap by one byte
//!   a byte that was demoted, and refaults    lowers it by one byte
//!   a whole memory was written while more than Cf and a band stayed free all the time
//!                                            lowers it by half of the excess
//!
//! So the gap settles where one byte more would be moved for nothing as often as one byte less
//! would be missed. It counts bytes, not time: a pause between two bursts forgets nothing. Cf is a
//! fourth of the gap, as in the defaults, or what the bandwidths demand.
//!
//! Oscillation is damped: the demand of the bandwidths changes only when it doubles or halves; an
//! excess within the band, or below a 64th of the memory, lowers nothing; and misses raise the gap
//! by a fourth of the memory at most, until as much as the low watermark has been free again. So a
//! stream that outruns the SSD for hours, for which no watermark helps, has no more effect than one
//! burst.
//!
//! No I/O and no clock: `look` is called every `PERIOD_MILLIS` while something changes.
//!
//! Invariants: Cf < Cn <= 3/4 of the memory, if neither is given; the gap is at least the present
//! demand of the bandwidths, or a 64th of the memory.

/// Time between two samples, while something changes.
pub const PERIOD_MILLIS: u32 = 100;
/// Initial low watermark, in per cent of the memory.
pub const NORMAL_PERCENT: u64 = 50;
/// Initial minimum watermark, in per cent of the memory.
pub const FORCED_PERCENT: u64 = 10;
/// With less memory than this the watermarks do not change.
const TOTAL_BYTES_MIN: u64 = 1 << 20;
/// Least gap and least Cf: one part in this many of the memory.
const LEAST_PARTS: u64 = 64;
/// Most that the misses of one burst raise the gap by, and most that bandwidths demand: one part in
/// this many.
const RAISE_PARTS: u64 = 4;
/// Largest Cf, and the band of free memory that is tolerated: one part in this many.
const BAND_PARTS: u64 = 8;
/// Largest gap, in bands.
const GAP_BANDS_MAX: u64 = 5;
/// Cf is one part in this many of the gap.
const FORCED_PARTS: u64 = 4;
/// Most extents that bandwidths demand.
const EXTENTS_MAX: u64 = 64;
/// Bytes that must have been demoted before their bandwidth is known.
const DEMOTED_BYTES_MIN: u64 = 1 << 20;
/// Means weigh recent bytes most: sums are halved when they exceed this.
const SUM_BYTES_MAX: u64 = 256 << 20;

/// Counters since the target was created. None of them decreases.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct TieringCounts {
    /// Bytes of extents allocated for writers.
    pub bytes_allocated: u64,
    /// Number of these extents.
    pub extents_made: u64,
    /// Bytes of these that were allocated on the SSD because memory was full.
    pub bytes_overflowed: u64,
    /// Bytes that sank.
    pub bytes_demoted: u64,
    /// Microseconds that these copies took.
    pub demotion_micros: u64,
    /// Demoted bytes that are wanted in memory again: they were moved for nothing.
    pub bytes_refaulted: u64,
}

impl TieringCounts {
    /// All zero.
    pub const ZERO: TieringCounts = TieringCounts {
        bytes_allocated: 0,
        extents_made: 0,
        bytes_overflowed: 0,
        bytes_demoted: 0,
        demotion_micros: 0,
        bytes_refaulted: 0,
    };

    const fn since(&self, last: &TieringCounts) -> TieringCounts {
        TieringCounts {
            bytes_allocated: self.bytes_allocated.saturating_sub(last.bytes_allocated),
            extents_made: self.extents_made.saturating_sub(last.extents_made),
            bytes_overflowed: self.bytes_overflowed.saturating_sub(last.bytes_overflowed),
            bytes_demoted: self.bytes_demoted.saturating_sub(last.bytes_demoted),
            demotion_micros: self.demotion_micros.saturating_sub(last.demotion_micros),
            bytes_refaulted: self.bytes_refaulted.saturating_sub(last.bytes_refaulted),
        }
    }
}

/// A sample of the target's state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WatermarkSample {
    /// Milliseconds since the last sample.
    pub millis: u32,
    /// Bytes of memory.
    pub total: u64,
    /// Free bytes of memory.
    pub free: u64,
    /// Present counters.
    pub counts: TieringCounts,
}

/// Why the watermarks are what they are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WatermarkReason {
    /// Both are set by the user.
    WatermarkOverrides,
    /// Nothing has been measured yet.
    Default,
    /// Set by the bandwidths.
    Bandwidths,
    /// Raised: writers found no memory.
    Missed,
    /// Lowered: demoted bytes refaulted.
    Returned,
    /// Lowered: this much was not needed.
    Unused,
}

impl WatermarkReason {
    const ALL: [WatermarkReason; 6] = [
        WatermarkReason::WatermarkOverrides,
        WatermarkReason::Default,
        WatermarkReason::Bandwidths,
        WatermarkReason::Missed,
        WatermarkReason::Returned,
        WatermarkReason::Unused,
    ];

    /// The reason of this number.
    #[must_use]
    pub fn of(number: u8) -> WatermarkReason {
        let found = WatermarkReason::ALL.into_iter().find(|reason| *reason as u8 == number);
        found.unwrap_or(WatermarkReason::WatermarkOverrides)
    }

    /// The reason as one word.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            WatermarkReason::WatermarkOverrides => "set",
            WatermarkReason::Default => "default",
            WatermarkReason::Bandwidths => "bandwidth",
            WatermarkReason::Missed => "overflow",
            WatermarkReason::Returned => "refault",
            WatermarkReason::Unused => "unused",
        }
    }
}

/// Watermarks in force.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ActiveWatermarks {
    /// While less memory than this is free, idle extents are demoted (Cn).
    pub demote_low_watermark_bytes: u64,
    /// While less memory than this is free, any extents are demoted (Cf).
    pub demote_min_watermark_bytes: u64,
    /// Why they are in force.
    pub reason: WatermarkReason,
}

/// Watermarks set by the user, in per cent of the memory; `None`: adaptive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WatermarkOverrides {
    /// The low watermark, Cn.
    pub normal: Option<u64>,
    /// The minimum watermark, Cf.
    pub forced: Option<u64>,
}

/// A quotient of two sums that weighs recent bytes most.
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

/// Adaptive watermarks of one target.
#[derive(Clone, Debug)]
pub struct Watermarks {
    given: WatermarkOverrides,
    last: TieringCounts,
    /// Highest rate at which writers allocated extents, in bytes per second; decays over the
    /// periods.
    fill_rate: u64,
    /// Bytes demoted, and the microseconds that took.
    demoted: Mean,
    /// Bytes of new extents, and their number.
    made: Mean,
    /// Bytes that the bandwidths demand.
    unit: Option<u64>,
    /// Difference of the two watermarks in bytes; `None` before anything was measured.
    gap: Option<u64>,
    reason: WatermarkReason,
    /// Bytes by which misses raised the gap since the low watermark was last free.
    raised: u64,
    /// Value of `bytes_allocated` when the present cycle began, and the least free memory since.
    turn_from: u64,
    least_free: u64,
}

impl Watermarks {
    /// Nothing has been measured.
    #[must_use]
    pub fn new(given: WatermarkOverrides) -> Watermarks {
        let is_given = given.normal.is_some() && given.forced.is_some();
        Watermarks {
            given,
            last: TieringCounts::ZERO,
            fill_rate: 0,
            demoted: Mean::default(),
            made: Mean::default(),
            unit: None,
            gap: None,
            reason: if is_given {
                WatermarkReason::WatermarkOverrides
            } else {
                WatermarkReason::Default
            },
            raised: 0,
            turn_from: 0,
            least_free: u64::MAX,
        }
    }

    /// True if some watermark is adaptive.
    #[must_use]
    pub fn are_adaptive(&self) -> bool {
        self.reason != WatermarkReason::WatermarkOverrides
    }

    /// True if the counters differ from those of the last sample.
    #[must_use]
    pub fn has_changed(&self, counts: &TieringCounts) -> bool {
        self.last != *counts
    }

    /// Notes the present free memory, for callers that observe it more often than they call `look`.
    pub const fn note_free(&mut self, free: u64) {
        if free < self.least_free {
            self.least_free = free;
        }
    }

    /// The watermarks in force for a memory of this size.
    #[must_use]
    pub fn in_force(&self, total: u64) -> ActiveWatermarks {
        let percent = |of: u64| total / 100 * of.min(100);
        let WatermarkOverrides { normal, forced } = self.given;
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
        ActiveWatermarks {
            demote_low_watermark_bytes: normal,
            demote_min_watermark_bytes: forced,
            reason: self.reason,
        }
    }

    /// Bytes that the bandwidths demand (the paper's `N * S`); `None` if they are unknown.
    fn demanded(&self) -> Option<u64> {
        let Watermarks { demoted, made, fill_rate, .. } = self;
        if demoted.bytes == 0 || made.of == 0 {
            return None;
        }
        let drain_rate = u128::from(demoted.bytes) * 1_000_000 / u128::from(demoted.of.max(1));
        let extents = u128::from(*fill_rate).div_ceil(drain_rate.max(1));
        let extents = extents.clamp(1, u128::from(EXTENTS_MAX)) as u64;
        Some((made.bytes / made.of).saturating_mul(extents))
    }

    fn measure(&mut self, new: &TieringCounts, millis: u32) {
        if new.bytes_allocated > 0 {
            let rate = u128::from(new.bytes_allocated) * 1000 / u128::from(millis.max(1));
            let rate = u64::try_from(rate).unwrap_or(u64::MAX);
            self.fill_rate = rate.max(self.fill_rate / 16 * 15);
            self.made.add(new.bytes_allocated, new.extents_made);
        }
        // A few small extents measure the latency of a copy, and no bandwidth.
        let is_known = self.demoted.bytes > 0 || self.last.bytes_demoted >= DEMOTED_BYTES_MIN;
        if is_known && new.bytes_demoted > 0 {
            self.demoted.add(new.bytes_demoted, new.demotion_micros);
        }
        let Some(unit) = self.demanded() else { return };
        if self.unit.is_none_or(|last| unit >= last.saturating_mul(2) || unit <= last / 2) {
            self.unit = Some(unit);
        }
    }

    /// Takes a sample. Returns the watermarks in force from now on.
    pub fn look(&mut self, look: &WatermarkSample) -> ActiveWatermarks {
        let WatermarkSample { millis, total, free, counts } = *look;
        let new = counts.since(&self.last);
        self.last = counts;
        self.measure(&new, millis);
        self.note_free(free);
        let Some(unit) = self.unit.filter(|_| total >= TOTAL_BYTES_MIN) else {
            return self.in_force(total);
        };
        if !self.are_adaptive() {
            return self.in_force(total);
        }
        let floor = unit.clamp(total / LEAST_PARTS, total / RAISE_PARTS);
        let most = total / BAND_PARTS * GAP_BANDS_MAX;
        if self.gap.is_none() {
            (self.gap, self.reason) = (Some(floor), WatermarkReason::Bandwidths);
            (self.turn_from, self.least_free) = (counts.bytes_allocated, free);
        }
        let ActiveWatermarks { demote_low_watermark_bytes, demote_min_watermark_bytes, .. } =
            self.in_force(total);
        if free >= demote_low_watermark_bytes {
            self.raised = 0;
        }
        let raise = new.bytes_overflowed.min((total / RAISE_PARTS).saturating_sub(self.raised));
        self.raised = self.raised.saturating_add(raise);
        let before = self.gap.unwrap_or(floor);
        let mut gap = before.saturating_add(raise).saturating_sub(new.bytes_refaulted);
        let mut reason =
            if gap > before { WatermarkReason::Missed } else { WatermarkReason::Returned };
        if counts.bytes_allocated.saturating_sub(self.turn_from) >= total {
            let unused = self.least_free.saturating_sub(demote_min_watermark_bytes);
            let unused = unused.saturating_sub(total / BAND_PARTS) / 2;
            if unused >= total / LEAST_PARTS {
                (gap, reason) = (gap.saturating_sub(unused), WatermarkReason::Unused);
            }
            (self.turn_from, self.least_free) = (counts.bytes_allocated, free);
        }
        let gap = gap.clamp(floor, most);
        if gap != before {
            self.reason = if gap == floor { WatermarkReason::Bandwidths } else { reason };
        }
        self.gap = Some(gap);
        self.in_force(total)
    }
}

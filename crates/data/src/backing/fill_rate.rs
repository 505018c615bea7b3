//! The rate at which the backing store delivers bytes, measured while fills are in flight.

/// Rate at which the backing store delivers, while it does.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FillRate {
    bytes: u64,
    millis: u64,
    since: Option<u32>,
}

impl FillRate {
    /// Milliseconds after which old measurements weigh half.
    const MEMORY_MILLIS: u64 = 8000;

    /// A fill begins.
    pub(crate) fn begins(&mut self, now: u32) {
        self.since.get_or_insert(now);
    }

    /// Some bytes came; `is_last`: nothing more is in flight.
    pub(crate) fn note_filled(&mut self, bytes: u64, is_last: bool, now: u32) {
        let Some(since) = self.since.take() else { return };
        self.bytes += bytes;
        self.millis += u64::from(now.wrapping_sub(since));
        self.since = (!is_last).then_some(now);
        if self.millis > FillRate::MEMORY_MILLIS {
            (self.bytes, self.millis) = (self.bytes / 2, self.millis / 2);
        }
    }

    /// Milliseconds that this many bytes take.
    pub(crate) fn millis_for(&self, bytes: u64) -> u64 {
        bytes.saturating_mul(self.millis) / self.bytes.max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_counts_only_time_with_fills_in_flight() {
        let mut rate = FillRate::default();
        rate.begins(100);
        rate.note_filled(1000, false, 110);
        rate.begins(105);
        rate.note_filled(1000, true, 120);
        rate.begins(500);
        rate.note_filled(2000, true, 520);
        assert_eq!(rate.millis_for(1000), 10);
    }
}

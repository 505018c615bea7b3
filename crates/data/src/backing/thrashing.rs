//! Thrashing: the tiers are smaller than the data that programs use again and again, so that what is
//! evicted is fetched again, or what is prefetched is evicted before it is read. The backing store then
//! reads more than programs ask for (section 3 of the Sunway paper: its caches discard what they read
//! ahead).
//!
//! It is found from counts over a window of `WINDOW_MILLIS`, kept where fills and evictions end: no read
//! pays for it. Evicted extents are remembered, each with the bytes that had been evicted with it. If
//! one is fetched again, the bytes that were evicted meanwhile are what the tiers were too small by.
//!
//! Not here: evictions that a user asked for (`BackedFiles::evict_file`), which are not remembered.
//!
//! Invariants:
//!  1. `refetched <= fetched` and, of extents fetched in the window, `discarded` are none that was read.
//!  2. At most `EVICTED_MAX` extents are remembered: of older ones nothing is said.

use std::collections::{BTreeMap, VecDeque};
use wire::Inode;
use wire::reply::Extent;

/// Time over which bytes are counted.
pub const WINDOW_MILLIS: u32 = SPAN_MILLIS * SPANS_MAX;
/// The window moves by spans of this time.
const SPAN_MILLIS: u32 = 3000;
/// Spans of a window.
const SPANS_MAX: u32 = 10;
/// Bytes that must be fetched for nothing in a window, 1 MB/s: less disturbs nobody.
pub const WASTED_BYTES_MIN: u64 = 32 << 20;
/// Evicted extents that are remembered, 2 MiB: with extents of 1 MiB, 32 GiB of data.
const EVICTED_MAX: usize = 1 << 15;

/// Bytes that the backing store delivered.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FetchCounts {
    /// All of them.
    pub fetched: u64,
    /// Of these, bytes that had been here before, and were evicted.
    pub refetched: u64,
    /// Bytes brought up ahead of a reader, of a list or in order.
    pub prefetched: u64,
    /// Of these, bytes that were evicted before they were read.
    pub discarded: u64,
}

impl FetchCounts {
    fn add(&mut self, other: FetchCounts) {
        self.fetched = self.fetched.saturating_add(other.fetched);
        self.refetched = self.refetched.saturating_add(other.refetched);
        self.prefetched = self.prefetched.saturating_add(other.prefetched);
        self.discarded = self.discarded.saturating_add(other.discarded);
    }

    /// True if over half of the bytes had been here before, or over three tenths of what was prefetched
    /// was evicted unread (Beacon's shares), and it is enough to matter.
    const fn is_thrashing(&self) -> bool {
        let returns = self.refetched >= WASTED_BYTES_MIN && self.refetched > self.fetched / 2;
        let wasted = self.discarded >= WASTED_BYTES_MIN;
        returns || wasted && self.discarded.saturating_mul(10) > self.prefetched.saturating_mul(3)
    }
}

/// The tiers thrash.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Thrashing {
    /// The bytes of the window.
    pub counts: FetchCounts,
    /// Bytes by which the tiers are too small for what was fetched again; 0: unknown.
    pub missing: u64,
}

#[derive(Clone, Copy, Debug)]
struct FetchSpan {
    number: u32,
    counts: FetchCounts,
    missing: u64,
}

/// The counts, and the extents that were evicted.
#[derive(Clone, Debug, Default)]
pub(crate) struct FetchHistory {
    totals: FetchCounts,
    spans: VecDeque<FetchSpan>,
    /// Bytes that were evicted.
    evicted_bytes: u64,
    /// Evicted extents, and the bytes that had been evicted with it and before.
    evicted: BTreeMap<(Inode, u64), u64>,
    /// The same extents in the order of their evictions.
    order: VecDeque<(Inode, u64, u64)>,
}

impl FetchHistory {
    /// Bytes since the target was created.
    pub(crate) const fn totals(&self) -> FetchCounts {
        self.totals
    }

    /// An extent was filled.
    pub(crate) fn note_filled(&mut self, inode: Inode, extent: &Extent, is_ahead: bool, now: u32) {
        let bytes = extent.length();
        let before = self.evicted.remove(&(inode, extent.start));
        let counts = FetchCounts {
            fetched: bytes,
            refetched: if before.is_some() { bytes } else { 0 },
            prefetched: if is_ahead { bytes } else { 0 },
            discarded: 0,
        };
        let missing = before.map_or(0, |before| self.evicted_bytes.saturating_sub(before));
        self.add(counts, missing, now);
    }

    /// An extent was evicted because space was short.
    pub(crate) fn note_evicted(
        &mut self,
        inode: Inode,
        extent: &Extent,
        is_unread: bool,
        now: u32,
    ) {
        let (start, bytes) = (extent.start, extent.length());
        if is_unread {
            self.add(FetchCounts { discarded: bytes, ..FetchCounts::default() }, 0, now);
        }
        self.evicted_bytes = self.evicted_bytes.saturating_add(bytes);
        self.evicted.insert((inode, start), self.evicted_bytes);
        self.order.push_back((inode, start, self.evicted_bytes));
        if self.order.len() > EVICTED_MAX
            && let Some((inode, start, before)) = self.order.pop_front()
            && self.evicted.get(&(inode, start)) == Some(&before)
        {
            self.evicted.remove(&(inode, start));
        }
    }

    /// The finding at this time, if there is one.
    pub(crate) fn thrashing(&self, now: u32) -> Option<Thrashing> {
        let mut found = Thrashing { counts: FetchCounts::default(), missing: 0 };
        for span in self.spans.iter().filter(|span| is_in_window(span.number, now)) {
            found.counts.add(span.counts);
            found.missing = found.missing.max(span.missing);
        }
        found.counts.is_thrashing().then_some(found)
    }

    fn add(&mut self, counts: FetchCounts, missing: u64, now: u32) {
        self.totals.add(counts);
        let number = now / SPAN_MILLIS;
        self.spans.retain(|span| is_in_window(span.number, now));
        if let Some(last) = self.spans.back_mut().filter(|last| last.number == number) {
            last.counts.add(counts);
            last.missing = last.missing.max(missing);
        } else {
            self.spans.push_back(FetchSpan { number, counts, missing });
        }
    }
}

/// True if a span is one of the last ones. A time that began anew makes all of them old.
const fn is_in_window(number: u32, now: u32) -> bool {
    (now / SPAN_MILLIS).wrapping_sub(number) < SPANS_MAX
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const FILE: Inode = Inode(7);

    fn extent(at: u64) -> Extent {
        Extent { start: at * MIB, slot: 0, location: 0, length_log2: 20, tier: Extent::MEMORY }
    }

    /// Reads `files` MiB in order, round by round, with space for `room` MiB, one MiB in 100 ms.
    fn read_in_rounds(size: u64, room: u64, rounds: u64) -> (FetchHistory, u32) {
        let (mut history, mut here, mut now) = (FetchHistory::default(), VecDeque::new(), 0);
        for at in (0..rounds).flat_map(|_| 0..size) {
            now += 100;
            if here.contains(&at) {
                continue;
            }
            if here.len() as u64 == room
                && let Some(first) = here.pop_front()
            {
                history.note_evicted(FILE, &extent(first), false, now);
            }
            here.push_back(at);
            history.note_filled(FILE, &extent(at), false, now);
        }
        (history, now)
    }

    #[test]
    fn a_working_set_that_is_larger_than_the_space_is_found_with_what_is_missing() {
        let (history, now) = read_in_rounds(48, 40, 4);
        let found = history.thrashing(now).expect("a finding");
        assert_eq!(found.missing, 8 * MIB, "48 MiB would suffice");
        assert_eq!(found.counts.fetched, 4 * 48 * MIB, "19 s are in the window");
        assert_eq!(history.totals().fetched, 4 * 48 * MIB);
        assert_eq!(history.totals().refetched, 3 * 48 * MIB);
    }

    #[test]
    fn one_that_fits_and_a_single_pass_over_more_are_not() {
        let (history, now) = read_in_rounds(40, 40, 20);
        assert_eq!(history.thrashing(now), None);
        let (history, now) = read_in_rounds(400, 40, 1);
        assert_eq!(history.thrashing(now), None, "nothing is read twice");
    }

    #[test]
    fn it_ends_when_the_window_has_passed() {
        let (history, now) = read_in_rounds(48, 40, 4);
        assert!(
            history
                .thrashing(now + WINDOW_MILLIS - 2 * SPAN_MILLIS)
                .is_none_or(|found| { found.counts.fetched < history.totals().fetched })
        );
        assert_eq!(history.thrashing(now + WINDOW_MILLIS), None);
        assert_eq!(history.thrashing(0), None, "the time began anew");
    }

    #[test]
    fn prefetched_data_that_is_evicted_unread_is_found_from_three_tenths_on() {
        let of = |unread: u64| {
            let mut history = FetchHistory::default();
            for at in 0..200 {
                history.note_filled(FILE, &extent(at), true, 1000);
            }
            for at in 0..100 {
                history.note_evicted(FILE, &extent(at), at < unread, 2000);
            }
            history.thrashing(2000)
        };
        assert_eq!(of(60), None);
        let found = of(61).expect("a finding");
        assert_eq!((found.counts.discarded, found.counts.prefetched), (61 * MIB, 200 * MIB));
        assert_eq!(found.missing, 0, "nothing was fetched again");
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut history = FetchHistory::default();
        let more = EVICTED_MAX as u64 + 100;
        for at in 0..more {
            history.note_evicted(FILE, &extent(at), false, 0);
        }
        assert_eq!((history.evicted.len(), history.order.len()), (EVICTED_MAX, EVICTED_MAX));
        // An extent that was evicted again later is remembered by that.
        for at in [more - EVICTED_MAX as u64, more] {
            history.note_evicted(FILE, &extent(at), false, 0);
        }
        assert!(history.evicted.contains_key(&(FILE, extent(100).start)));
    }
}

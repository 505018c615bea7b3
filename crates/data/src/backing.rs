//! Files whose bytes the backing store has, in whole or in part.
//!
//! `fill` brings bytes in, for jobs in turn (`admission::job_shares`), at the rate of `fill_rate`;
//! `cleaning` and `dirty_ranges` learn which extents writeback has made clean, `eviction` drops clean
//! extents to make space, `thrashing` notices that dropped extents are needed again.
//! Bytes that are brought in before anybody asks for them are `prefetch`'s; the I/O is the caller's.
//!
//! `BackedFiles` calls the pool and `tiering`. It knows neither prefetching nor the next step of a
//! request.

use cleaning::Cleaning;
use dirty_ranges::DirtyRanges;
use fill::Fills;
use thrashing::FetchHistory;

pub mod fill;

pub(crate) mod fill_rate;

pub mod cleaning;

pub mod dirty_ranges;

pub mod eviction;

pub mod thrashing;

/// Knowledge of files in the backing store, and fills in flight.
#[derive(Clone, Debug, Default)]
pub(crate) struct BackedFiles {
    pub(crate) fills: Fills,
    pub(crate) cleaning: Cleaning,
    pub(crate) dirty_ranges: DirtyRanges,
    pub(crate) history: FetchHistory,
}

//! Times at which the tiers thrashed (`data::backing::thrashing`), for `status`, reports and the metrics.

use config::control::ThrashingSpan;
use data::backing::thrashing::{Thrashing, WINDOW_MILLIS};
use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

/// Times that are kept.
const SPANS_MAX: usize = 16;

/// See the module.
#[derive(Default)]
pub(crate) struct ThrashingLog {
    /// The last is the present one, if its window has not passed.
    known: Mutex<VecDeque<ThrashingSpan>>,
}

/// Milliseconds since 1970.
fn now_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}

/// True if a time that was seen last at `seen_ms` goes on.
const fn goes_on(seen_ms: u64, now_ms: u64) -> bool {
    now_ms.saturating_sub(seen_ms) < WINDOW_MILLIS as u64
}

impl ThrashingLog {
    /// The tiers, of this many bytes, thrash.
    pub(crate) fn found(&self, found: &Thrashing, bytes_of_tiers: u64) {
        self.found_at(now_ms(), found, bytes_of_tiers);
    }

    fn found_at(&self, now_ms: u64, found: &Thrashing, bytes_of_tiers: u64) {
        let Thrashing { counts, missing } = *found;
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let mut span = ThrashingSpan {
            began_ms: now_ms,
            seen_ms: now_ms,
            is_now: true,
            window_ms: WINDOW_MILLIS.into(),
            bytes_fetched: counts.fetched,
            bytes_refetched: counts.refetched,
            bytes_prefetched: counts.prefetched,
            bytes_discarded: counts.discarded,
            bytes_of_tiers,
            bytes_sufficient: if missing > 0 { bytes_of_tiers.saturating_add(missing) } else { 0 },
        };
        let wasted = |span: &ThrashingSpan| span.bytes_refetched.max(span.bytes_discarded);
        match known.back_mut().filter(|last| goes_on(last.seen_ms, now_ms)) {
            Some(last) => {
                span.began_ms = last.began_ms;
                span.bytes_sufficient = span.bytes_sufficient.max(last.bytes_sufficient);
                if wasted(last) > wasted(&span) {
                    span = ThrashingSpan {
                        seen_ms: now_ms,
                        bytes_sufficient: span.bytes_sufficient,
                        ..*last
                    };
                }
                *last = span;
            }
            None => {
                tracing::warn!(
                    bytes_fetched = span.bytes_fetched,
                    bytes_refetched = span.bytes_refetched,
                    bytes_discarded = span.bytes_discarded,
                    bytes_of_tiers,
                    bytes_sufficient = span.bytes_sufficient,
                    "memory and SSD are too small for what is read: data is fetched again and again"
                );
                if known.len() >= SPANS_MAX {
                    known.pop_front();
                }
                known.push_back(span);
            }
        }
    }

    /// The last times.
    pub(crate) fn list(&self) -> Vec<ThrashingSpan> {
        self.list_at(now_ms())
    }

    fn list_at(&self, now_ms: u64) -> Vec<ThrashingSpan> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let of =
            |span: &ThrashingSpan| ThrashingSpan { is_now: goes_on(span.seen_ms, now_ms), ..*span };
        known.iter().map(of).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use data::backing::thrashing::FetchCounts;

    fn found(refetched: u64, missing: u64) -> Thrashing {
        let counts = FetchCounts { fetched: 100, refetched, ..FetchCounts::default() };
        Thrashing { counts, missing }
    }

    #[test]
    fn a_time_has_its_worst_window_and_ends_when_that_has_passed() {
        let log = ThrashingLog::default();
        log.found_at(1000, &found(60, 5), 1000);
        log.found_at(2000, &found(90, 3), 1000);
        log.found_at(3000, &found(70, 4), 1000);
        let spans = log.list_at(4000);
        let [span] = spans.as_slice() else { panic!("{spans:?}") };
        assert_eq!((span.began_ms, span.seen_ms, span.is_now), (1000, 3000, true));
        assert_eq!((span.bytes_refetched, span.bytes_sufficient), (90, 1005));
        let end = 3000 + u64::from(WINDOW_MILLIS);
        assert!(log.list_at(end - 1)[0].is_now && !log.list_at(end)[0].is_now);
        log.found_at(end, &found(60, 0), 1000);
        let spans = log.list_at(end);
        assert_eq!((spans.len(), spans[1].bytes_sufficient), (2, 0), "{spans:?}");
        for at in 2..50 {
            log.found_at(at * end, &found(60, 0), 1000);
        }
        assert_eq!(log.list_at(0).len(), SPANS_MAX);
    }
}

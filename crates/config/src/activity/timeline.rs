//! Bytes over time, in a bounded number of equal spans: when they are all used, each two become one.
//!
//!   began_ms                      + span_ms        + 2 * span_ms
//!   |------------ span 0 ---------|---- span 1 ----|--- ...

use serde::{Deserialize, Serialize};

/// Most spans.
pub const SPANS_MAX: usize = 64;
/// Milliseconds of a span at first: bytes are looked at about once a second.
const SPAN_MILLIS: u64 = 1000;

/// See the module. Each span has bytes read and bytes written.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Timeline {
    /// When the first span begins, in milliseconds since 1970.
    pub began_ms: u64,
    /// Length of a span.
    pub span_ms: u64,
    /// Bytes read and written in each span.
    pub spans: Vec<[u64; 2]>,
}

impl Timeline {
    /// Nothing, from this moment on.
    #[must_use]
    pub fn new(began_ms: u64) -> Timeline {
        Timeline { began_ms, span_ms: SPAN_MILLIS, spans: Vec::new() }
    }

    /// True if there are no bytes; then it is left out.
    #[must_use]
    pub fn is_none(&self) -> bool {
        self.spans.is_empty()
    }

    /// Adds bytes read and written at this moment. A clock that was set back counts as its begin.
    pub fn add(&mut self, at_ms: u64, bytes: [u64; 2]) {
        let since = at_ms.saturating_sub(self.began_ms);
        self.span_ms = self.span_ms.max(1);
        while since / self.span_ms >= SPANS_MAX as u64 {
            self.span_ms = self.span_ms.saturating_mul(2);
            let sum = |pair: &[[u64; 2]]| {
                pair.iter().fold([0_u64; 2], |sum, one| {
                    [sum[0].saturating_add(one[0]), sum[1].saturating_add(one[1])]
                })
            };
            self.spans = self.spans.chunks(2).map(sum).collect();
        }
        let at = usize::try_from(since / self.span_ms).unwrap_or(0);
        if self.spans.len() <= at {
            self.spans.resize(at + 1, [0; 2]);
        }
        if let Some(span) = self.spans.get_mut(at) {
            *span = [span[0].saturating_add(bytes[0]), span[1].saturating_add(bytes[1])];
        }
    }

    /// Adds bytes read and written at some time between two moments: each span has its part of them.
    pub fn add_between(&mut self, (first_ms, end_ms): (u64, u64), bytes: [u64; 2]) {
        // Spans get longer before they are counted.
        self.add(end_ms, [0; 2]);
        let first = first_ms.max(self.began_ms);
        let length = end_ms.saturating_sub(first);
        let mut left = bytes;
        let mut at = first;
        while at < end_ms {
            let span = (at - self.began_ms) / self.span_ms;
            let until = self.began_ms.saturating_add((span + 1).saturating_mul(self.span_ms));
            if until >= end_ms {
                break;
            }
            let part = |bytes: u64| {
                let part = u128::from(bytes) * u128::from(until - at) / u128::from(length);
                u64::try_from(part).unwrap_or(u64::MAX)
            };
            let here = bytes.map(part);
            self.add(at, here);
            left = [left[0].saturating_sub(here[0]), left[1].saturating_sub(here[1])];
            at = until;
        }
        self.add(at.min(end_ms), left);
    }

    /// Bytes read and written between two moments, of spans that are partly there in proportion.
    #[must_use]
    pub fn between(&self, (first_ms, end_ms): (u64, u64)) -> [u64; 2] {
        let mut sum = [0.0_f64; 2];
        for (begin, span) in self.each() {
            let overlap =
                end_ms.min(begin.saturating_add(self.span_ms)).saturating_sub(first_ms.max(begin));
            let part = overlap as f64 / self.span_ms.max(1) as f64;
            sum = [sum[0] + span[0] as f64 * part, sum[1] + span[1] as f64 * part];
        }
        sum.map(|bytes| bytes.round() as u64)
    }

    /// The spans, each with its begin in milliseconds since 1970.
    pub fn each(&self) -> impl Iterator<Item = (u64, [u64; 2])> {
        let begin =
            |at: usize| self.began_ms.saturating_add(self.span_ms.saturating_mul(at as u64));
        self.spans.iter().enumerate().map(move |(at, span)| (begin(at), *span))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_double_and_no_byte_is_lost() {
        let mut line = Timeline::new(5000);
        for second in 0..1000 {
            line.add(5000 + second * 1000, [1, 2]);
        }
        assert!(line.spans.len() <= SPANS_MAX && line.span_ms == 16_000, "{line:?}");
        let sum = |at: usize| line.spans.iter().map(|span| span[at]).sum::<u64>();
        assert_eq!((sum(0), sum(1)), (1000, 2000));
        assert_eq!(line.between((0, u64::MAX)), [1000, 2000]);
        assert_eq!(line.between((5000, 5000 + 8000)), [8, 16], "half of the first span");
        assert_eq!(line.between((9, 5000)), [0, 0]);
        line.add(0, [7, 0]);
        assert_eq!(line.spans[0][0], 23, "the clock was set back");
        line.add(u64::MAX, [1, 0]);
        assert!(line.spans.len() <= SPANS_MAX);
        assert_eq!(line.spans.iter().map(|span| span[0]).sum::<u64>(), 1008);
    }

    #[test]
    fn bytes_between_two_moments_are_in_all_spans_of_that_time() {
        let mut line = Timeline::new(5000);
        line.add_between((5500, 8500), [300, 3]);
        assert_eq!(line.spans, [[50, 0], [100, 1], [100, 1], [50, 1]]);
        line.add_between((0, 6000), [7, 0]);
        assert_eq!(line.spans[..2], [[57, 0], [100, 1]], "the moment itself is of the span before");
        line.add_between((9, 3), [1, 0]);
        assert_eq!(line.spans[0], [58, 0], "the clock was set back");
        line.add_between((8500, u64::MAX), [0, 5]);
        assert!(line.spans.len() <= SPANS_MAX);
        let sum = |at: usize| line.spans.iter().map(|span| span[at]).sum::<u64>();
        assert_eq!((sum(0), sum(1)), (308, 8));
    }

    #[test]
    fn text_of_an_older_release_is_an_empty_line() {
        let mut line: Timeline = serde_json::from_str("{}").expect("json");
        assert!(line.is_none());
        line.add(3, [1, 1]);
        assert_eq!(line.between((0, 10_000)), [1, 1]);
    }
}

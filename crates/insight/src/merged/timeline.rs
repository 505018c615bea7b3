//! Bytes over time by rank: exact for few ranks, else the sums of each span, and a level for each row of
//! a map as the page draws it.

use crate::profile::Span;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Numbers up to which all are kept.
const EXACT_MAX: usize = 1024;
/// Rows of the map: as many as the page has.
const ROWS_MAX: usize = 256;
/// Levels of a cell, above nothing; letters from `a` (nothing) on.
const LEVELS: u128 = 25;

#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct StoredSpan {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    read: Vec<u64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    written: Vec<u64>,
    /// Ranks of which the levels are; 0: the numbers are exact.
    #[serde(skip_serializing_if = "is_zero")]
    ranks: u64,
    #[serde(skip_serializing_if = "String::is_empty")]
    read_levels: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    written_levels: String,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

fn sum(bytes: &[u64]) -> u64 {
    bytes.iter().copied().fold(0, u64::saturating_add)
}

/// The row of a rank.
fn row(rank: usize, ranks: usize) -> usize {
    rank * ranks.min(ROWS_MAX) / ranks.max(1)
}

/// The sum of `bytes`, and the level of each row; nothing if no byte moved.
fn levels(bytes: &[u64], ranks: usize) -> (Vec<u64>, String) {
    let all = sum(bytes);
    if all == 0 {
        return (Vec::new(), String::new());
    }
    let mut rows = vec![0_u64; ranks.min(ROWS_MAX)];
    for (rank, number) in bytes.iter().take(ranks).enumerate() {
        if let Some(sum) = rows.get_mut(row(rank, ranks)) {
            *sum = sum.saturating_add(*number);
        }
    }
    let most = u128::from(rows.iter().copied().max().unwrap_or(0).max(1));
    let level = |number: &u64| (u128::from(*number) * LEVELS).div_ceil(most) as u8;
    (vec![all], rows.iter().map(|number| char::from(b'a' + level(number))).collect())
}

/// The bytes of each rank, which add up to `all`.
fn bytes(all: u64, levels: &str, ranks: usize) -> Vec<u64> {
    let level = |rank: usize| {
        let letter = levels.as_bytes().get(row(rank, ranks)).copied().unwrap_or(b'a');
        u128::from(letter.saturating_sub(b'a'))
    };
    let whole: u128 = (0..ranks).map(level).sum();
    let mut before = 0_u128;
    let mut part = |rank: usize| {
        let until = |levels: u128| u128::from(all) * levels / whole.max(1);
        let first = until(before);
        before += level(rank);
        u64::try_from(until(before) - first).unwrap_or(u64::MAX)
    };
    (0..ranks).map(&mut part).collect()
}

pub(crate) fn serialize<S: Serializer>(spans: &[Span], to: S) -> Result<S::Ok, S::Error> {
    let ranks = spans.iter().map(|span| span.read.len().max(span.written.len())).max().unwrap_or(0);
    let is_exact = ranks.saturating_mul(spans.len()) <= EXACT_MAX;
    to.collect_seq(spans.iter().map(|span| {
        if is_exact {
            let (read, written) = (span.read.clone(), span.written.clone());
            return StoredSpan { read, written, ..StoredSpan::default() };
        }
        let (read, read_levels) = levels(&span.read, ranks);
        let (written, written_levels) = levels(&span.written, ranks);
        StoredSpan { read, written, ranks: ranks as u64, read_levels, written_levels }
    }))
}

/// Numbers that a text may give: 64 spans of 100,000 ranks fit.
const NUMBERS_MAX: u64 = 1 << 23;

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Span>, D::Error> {
    let spans = Vec::<StoredSpan>::deserialize(from)?;
    let numbers = spans.iter().map(|span| span.ranks).fold(0, u64::saturating_add);
    if numbers > NUMBERS_MAX {
        return Err(D::Error::custom("too many ranks in a timeline"));
    }
    let exact = |span: StoredSpan| match span.ranks {
        0 => Span { read: span.read, written: span.written },
        ranks => {
            let ranks = usize::try_from(ranks).unwrap_or(0);
            Span {
                read: bytes(sum(&span.read), &span.read_levels, ranks),
                written: bytes(sum(&span.written), &span.written_levels, ranks),
            }
        }
    };
    Ok(spans.into_iter().map(exact).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_exact_and_a_rank_that_moves_most_is_seen() {
        for ranks in [100, 1024] {
            let mut moved = vec![10_000_u64; ranks];
            moved[40] = 9_000_000;
            moved[41] = 0;
            let (all, levels) = levels(&moved, ranks);
            let again = bytes(sum(&all), &levels, ranks);
            assert_eq!((again.len(), sum(&again)), (ranks, sum(&moved)));
            let most = again.iter().copied().max();
            assert_eq!(Some(again[40]), most, "{levels}");
            assert!(levels.len() <= ROWS_MAX);
        }
        assert_eq!(levels(&[0, 0], 2), (vec![], String::new()));
        assert_eq!(bytes(0, "", 3), [0, 0, 0]);
        assert_eq!(sum(&bytes(u64::MAX, "az", 2)), u64::MAX);
    }
}

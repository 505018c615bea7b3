//! Which figures are the same, and the figures of one member of a group.

use crate::profile::{Operations, Transfers};
use serde::{Deserialize, Serialize};

/// Times that differ by less are the same: the scheduler of a host does as much to any process, and no
/// advice calls a rank slow for less.
const NOISE_SECONDS: f64 = 0.1;

/// Operations on names that do not matter.
const FEW: u64 = 8;

/// Numbers that differ by an eighth at most, or by one.
pub(super) fn numbers(one: u64, other: u64) -> bool {
    one.abs_diff(other) <= (one.max(other) / 8).max(1) && (one == 0) == (other == 0)
}

/// As `numbers`, or few: a rank that makes the directory for all does the same as the others.
pub(super) fn few(one: u64, other: u64) -> bool {
    numbers(one, other) || one.max(other) <= FEW
}

fn bytes(one: u64, other: u64) -> bool {
    one.abs_diff(other) <= one.max(other) / 8
}

/// Times that differ by a factor of 2 at most.
pub(super) fn seconds(one: f64, other: f64) -> bool {
    one.max(other) <= 2.0 * one.min(other) || (one - other).abs() <= NOISE_SECONDS
}

/// A time that does not matter.
pub(super) fn is_noise(seconds: f64) -> bool {
    seconds <= NOISE_SECONDS
}

pub(super) fn operations(one: &Operations, other: &Operations) -> bool {
    numbers(one.number, other.number)
        && bytes(one.bytes, other.bytes)
        && seconds(one.seconds, other.seconds)
}

pub(super) fn transfers(one: &Transfers, other: &Transfers) -> bool {
    let most = |of: &Transfers| {
        let places = of.sizes.iter().enumerate();
        places.max_by_key(|(_, number)| **number).map_or(0, |(place, _)| place)
    };
    let part = one.number.max(other.number) / 8 + 1;
    let orders = [
        (one.consecutive, other.consecutive),
        (one.sequential, other.sequential),
        (one.misaligned, other.misaligned),
    ];
    numbers(one.number, other.number)
        && bytes(one.bytes, other.bytes)
        && seconds(one.seconds, other.seconds)
        && most(one) == most(other)
        && orders.iter().all(|(one, other)| one.abs_diff(*other) <= part)
}

/// The times of the members of a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Spread {
    /// Seconds of the fastest and the slowest.
    pub(super) least: f64,
    pub(super) most: f64,
    /// Places of these among the members.
    pub(super) fastest: u64,
    pub(super) slowest: u64,
}

impl Spread {
    pub(super) fn of(times: impl Iterator<Item = f64>) -> Spread {
        let mut spread: Option<Spread> = None;
        for (place, time) in (0..).zip(times) {
            let all = spread.get_or_insert(Spread {
                least: time,
                most: time,
                fastest: place,
                slowest: place,
            });
            if time < all.least {
                (all.least, all.fastest) = (time, place);
            }
            if time > all.most {
                (all.most, all.slowest) = (time, place);
            }
        }
        spread.unwrap_or_default()
    }
}

/// One member of a group, which has its part of each sum.
#[derive(Clone, Copy)]
pub(super) struct Member {
    pub(super) place: u64,
    pub(super) count: u64,
    /// Its part of the sum of times.
    time: f64,
}

impl Member {
    /// Member `place` of `count`, whose times have this sum and spread.
    pub(super) fn new(place: u64, count: u64, (sum, spread): (f64, &Spread)) -> Member {
        let own = match place {
            _ if count == 1 => sum,
            place if place == spread.slowest => spread.most,
            place if place == spread.fastest => spread.least,
            _ if spread.slowest == spread.fastest => sum / count as f64,
            _ => (sum - spread.most - spread.least) / count.saturating_sub(2).max(1) as f64,
        };
        let time = if sum > 0.0 { own / sum } else { 1.0 / count.max(1) as f64 };
        Member { place, count, time }
    }

    /// Its part of a number. The parts of all members add up to it.
    pub(super) fn number(self, sum: u64) -> u64 {
        let until =
            |place: u64| u128::from(sum) * u128::from(place) / u128::from(self.count.max(1));
        u64::try_from(until(self.place.saturating_add(1)) - until(self.place)).unwrap_or(u64::MAX)
    }

    pub(super) fn seconds(self, sum: f64) -> f64 {
        if self.count == 1 { sum } else { sum * self.time }
    }

    pub(super) fn operations(self, sum: &Operations) -> Operations {
        Operations {
            number: self.number(sum.number),
            bytes: self.number(sum.bytes),
            seconds: self.seconds(sum.seconds),
        }
    }

    /// Its transfers; the offsets are those of all.
    pub(super) fn transfers(self, sum: &Transfers) -> Transfers {
        Transfers {
            number: self.number(sum.number),
            bytes: self.number(sum.bytes),
            seconds: self.seconds(sum.seconds),
            sizes: sum.sizes.map(|number| self.number(number)),
            consecutive: self.number(sum.consecutive),
            sequential: self.number(sum.sequential),
            misaligned: self.number(sum.misaligned),
            lowest: sum.lowest,
            highest: sum.highest,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_add_up_and_the_extremes_are_exact() {
        let times = [3.0, 1.0, 2.0, 2.5];
        let spread = Spread::of(times.into_iter());
        assert_eq!((spread.fastest, spread.slowest), (1, 0));
        let of = |place| Member::new(place, 4, (8.5, &spread));
        let all: Vec<f64> = (0..4).map(|place| of(place).seconds(8.5)).collect();
        assert_eq!((all[0], all[1]), (3.0, 1.0));
        assert!((all[2] - 2.25).abs() < 1e-9 && (all[3] - 2.25).abs() < 1e-9, "{all:?}");
        assert_eq!((0..4).map(|place| of(place).number(10)).sum::<u64>(), 10);
        assert_eq!((0..4).map(|place| of(place).number(u64::MAX)).sum::<u64>(), u64::MAX);
        let none = Spread::of([0.0; 3].into_iter());
        assert_eq!(Member::new(1, 3, (0.0, &none)).seconds(9.0), 3.0);
    }

    #[test]
    fn small_differences_are_none_and_large_ones_are() {
        assert!(numbers(8, 9) && numbers(1000, 1100) && !numbers(1000, 1200) && !numbers(0, 1));
        assert!(seconds(0.001, 0.09) && seconds(10.0, 19.0) && !seconds(10.0, 21.0));
        let one = Transfers { number: 80, bytes: 800, consecutive: 79, ..Transfers::default() };
        let random = Transfers { consecutive: 10, ..one };
        assert!(transfers(&one, &one) && !transfers(&one, &random));
    }
}

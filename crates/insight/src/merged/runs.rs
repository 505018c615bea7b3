//! Numbers one after another, as arithmetic progressions: the ranks 0 to 1,023 are one of them.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Most numbers of a text: more than a job has ranks and files, and little enough to be kept.
const NUMBERS_MAX: u64 = 1 << 20;

/// As JSON a list of `[first]`, `[first, count]` or `[first, count, step]`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Runs(Vec<Run>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    first: i64,
    count: u64,
    step: i64,
}

impl Run {
    fn at(&self, place: u64) -> i64 {
        let place = i64::try_from(place).unwrap_or(i64::MAX);
        self.first.wrapping_add(self.step.wrapping_mul(place))
    }
}

impl Runs {
    pub(super) fn push(&mut self, number: u64) {
        let number = i64::try_from(number).unwrap_or(i64::MAX);
        match self.0.last_mut() {
            Some(last) if last.count == 1 => {
                (last.step, last.count) = (number.wrapping_sub(last.first), 2);
            }
            Some(last) if last.at(last.count) == number => last.count += 1,
            // A pair may be the end of one run and the begin of the next: 5, 9, 9, 9.
            Some(last) if last.count == 2 && number == last.at(1) => {
                (last.step, last.count) = (0, 1);
                self.0.push(Run { first: number, count: 2, step: 0 });
            }
            _ => self.0.push(Run { first: number, count: 1, step: 0 }),
        }
    }

    pub(super) fn of(numbers: impl Iterator<Item = u64>) -> Runs {
        let mut runs = Runs::default();
        numbers.for_each(|number| runs.push(number));
        runs
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn each(&self) -> impl Iterator<Item = u64> {
        let each = self.0.iter().flat_map(|run| (0..run.count).map(|place| run.at(place)));
        each.map(|number| u64::try_from(number).unwrap_or(0))
    }

    /// For people: "0-1023", "0, 2, 4".
    pub(super) fn text(&self) -> String {
        let mut parts = Vec::new();
        for run in &self.0 {
            let last = run.at(run.count.saturating_sub(1));
            match (run.count, run.step) {
                (1, _) | (_, 0) => parts.push(run.first.to_string()),
                (_, 1) => parts.push(format!("{}-{last}", run.first)),
                (2, _) => parts.push(format!("{}, {last}", run.first)),
                (_, step) => parts.push(format!("{}-{last} by {step}", run.first)),
            }
        }
        parts.dedup();
        parts.join(", ")
    }
}

impl Serialize for Runs {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(self.0.iter().map(|run| match (run.count, run.step) {
            (1, _) => vec![run.first],
            (count, 0) => vec![run.first, i64::try_from(count).unwrap_or(i64::MAX)],
            (count, step) => vec![run.first, i64::try_from(count).unwrap_or(i64::MAX), step],
        }))
    }
}

impl<'de> Deserialize<'de> for Runs {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Runs, D::Error> {
        let mut runs = Vec::new();
        let mut all = 0_u64;
        for run in Vec::<Vec<i64>>::deserialize(from)? {
            let (first, count, step) = match run.as_slice() {
                [first] => (*first, 1, 0),
                [first, count] => (*first, *count, 0),
                [first, count, step] => (*first, *count, *step),
                _ => return Err(D::Error::custom("a run has one to three numbers")),
            };
            let count = u64::try_from(count).unwrap_or(0);
            all = all.saturating_add(count);
            runs.push(Run { first, count, step });
        }
        match all <= NUMBERS_MAX {
            true => Ok(Runs(runs)),
            false => Err(D::Error::custom("too many numbers in runs")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn json(numbers: &[u64]) -> String {
        serde_json::to_string(&Runs::of(numbers.iter().copied())).unwrap()
    }

    #[test]
    fn progressions_are_short() {
        assert_eq!(json(&(0..1024).collect::<Vec<_>>()), "[[0,1024,1]]");
        assert_eq!(json(&[7]), "[[7]]");
        assert_eq!(json(&[5, 9, 9, 9]), "[[5],[9,3]]");
        assert_eq!(json(&[]), "[]");
        let text = |numbers: &[u64]| Runs::of(numbers.iter().copied()).text();
        assert_eq!(text(&[0, 1, 2, 3, 7]), "0-3, 7");
        assert_eq!((text(&[2, 4, 6]), text(&[1, 1])), ("2-6 by 2".into(), "1".into()));
    }

    #[test]
    fn a_text_that_would_take_all_memory_is_refused() {
        for text in ["[[0,1048577]]", "[[0,9223372036854775807],[0,9223372036854775807]]", "[[]]"] {
            assert!(serde_json::from_str::<Runs>(text).is_err(), "{text}");
        }
        let odd: Runs = serde_json::from_str("[[1,-5],[9223372036854775807,3,9]]").unwrap();
        assert_eq!(odd.each().count(), 3);
    }

    proptest! {
        #[test]
        fn numbers_come_back(
            numbers in prop::collection::vec(prop_oneof![0_u64..4, 0_u64..1 << 62], 0..40),
        ) {
            let again: Runs = serde_json::from_str(&json(&numbers)).unwrap();
            prop_assert_eq!(again.each().collect::<Vec<_>>(), numbers);
        }
    }
}

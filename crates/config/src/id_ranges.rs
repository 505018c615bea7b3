//! Which user or group ids of a host stand for which of an instance, as `forebay mount --map-uids` takes
//! it: `HOST:INSTANCE:COUNT`, several separated by commas, in the notation of `newuidmap`.
//!
//! Invariant: no id of either side is in two ranges, so that each has one counterpart at most.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Most ranges, as in a user namespace: they are searched one after the other.
const RANGE_COUNT_MAX: usize = 340;

/// Ids that follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdRange {
    /// The first on the host.
    pub host: u32,
    /// The first in the instance.
    pub instance: u32,
    /// How many.
    pub count: u32,
}

/// Ranges of ids. Without any, each id stands for itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct IdRanges(Vec<IdRange>);

impl IdRanges {
    /// The ranges, in their order.
    #[must_use]
    pub fn ranges(&self) -> &[IdRange] {
        &self.0
    }

    /// True if there is none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl FromStr for IdRange {
    type Err = String;

    fn from_str(text: &str) -> Result<IdRange, String> {
        let mut numbers = text.split(':').map(|word| word.parse::<u32>().ok());
        let mut number = || numbers.next().flatten();
        let range = match (number(), number(), number(), numbers.next()) {
            (Some(host), Some(instance), Some(count), None) => IdRange { host, instance, count },
            _ => {
                return Err(format!(
                    "{text:?} is not HOST:INSTANCE:COUNT, for instance 1000:2000:1"
                ));
            }
        };
        let ends = [range.host, range.instance].map(|first| first.checked_add(range.count));
        // The last number is no id.
        match ends {
            _ if range.count == 0 => Err(format!("{text:?} has no ids: the count is 0")),
            [Some(_), Some(_)] => Ok(range),
            _ => Err(format!("{text:?} has ids above {}", u32::MAX - 1)),
        }
    }
}

impl FromStr for IdRanges {
    type Err = String;

    fn from_str(text: &str) -> Result<IdRanges, String> {
        let words = text.split(',').filter(|word| !word.is_empty());
        let ranges: Vec<IdRange> = words.map(str::parse).collect::<Result<_, _>>()?;
        if ranges.len() > RANGE_COUNT_MAX {
            return Err(format!(
                "{} ranges, but at most {RANGE_COUNT_MAX} are possible",
                ranges.len()
            ));
        }
        let meet = |a: u32, b: u32, one: &IdRange, other: &IdRange| {
            u64::from(a) < u64::from(b) + u64::from(other.count)
                && u64::from(b) < u64::from(a) + u64::from(one.count)
        };
        for (index, one) in ranges.iter().enumerate() {
            for other in ranges.iter().take(index) {
                let side = match () {
                    () if meet(one.host, other.host, one, other) => "on the host",
                    () if meet(one.instance, other.instance, one, other) => "of the instance",
                    () => continue,
                };
                return Err(format!("{other} and {one} have an id {side} in common"));
            }
        }
        Ok(IdRanges(ranges))
    }
}

impl fmt::Display for IdRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.host, self.instance, self.count)
    }
}

impl TryFrom<String> for IdRanges {
    type Error = String;

    fn try_from(text: String) -> Result<IdRanges, String> {
        text.parse()
    }
}

impl From<IdRanges> for String {
    fn from(ranges: IdRanges) -> String {
        let words: Vec<String> = ranges.0.iter().map(IdRange::to_string).collect();
        words.join(",")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read_and_written() {
        let text = "1000:2000:1,0:65534:1,5000:6000:100";
        let ranges: IdRanges = text.parse().expect("ranges");
        assert_eq!(ranges.ranges()[2], IdRange { host: 5000, instance: 6000, count: 100 });
        assert_eq!(String::from(ranges), text);
        assert!("".parse::<IdRanges>().is_ok_and(|none| none.is_empty()));
        assert!("4294967294:7:1".parse::<IdRanges>().is_ok());
    }

    #[test]
    fn wrong_ranges_are_named() {
        for (text, expected) in [
            ("1000", "\"1000\" is not HOST:INSTANCE:COUNT, for instance 1000:2000:1"),
            ("1:2:3:4", "\"1:2:3:4\" is not HOST:INSTANCE:COUNT, for instance 1000:2000:1"),
            ("1:-2:3", "\"1:-2:3\" is not HOST:INSTANCE:COUNT, for instance 1000:2000:1"),
            ("1:2:0", "\"1:2:0\" has no ids: the count is 0"),
            ("4294967295:7:1", "\"4294967295:7:1\" has ids above 4294967294"),
            ("1:10:5,5:20:1", "1:10:5 and 5:20:1 have an id on the host in common"),
            ("1:10:5,9:14:1", "1:10:5 and 9:14:1 have an id of the instance in common"),
        ] {
            assert_eq!(text.parse::<IdRanges>(), Err(expected.to_owned()));
        }
    }
}

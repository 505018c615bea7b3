//! User and group ids: as the kernel has them at this mount, and as the instance has them.
//!
//! They are the same unless this program is in a user namespace and the daemons are outside of it:
//! root inside is another user outside.

use std::path::Path;

/// The id that is shown for ids without a mapping.
const NOBODY: u32 = 65_534;

/// Mappings of users and groups.
#[derive(Debug, Default)]
pub(crate) struct Owners {
    /// Users.
    pub(crate) users: IdMap,
    /// Groups.
    pub(crate) groups: IdMap,
}

/// A mapping between inside and outside ids; without ranges it is the identity.
#[derive(Debug, Default)]
pub(crate) struct IdMap {
    ranges: Vec<IdRange>,
}

#[derive(Debug)]
struct IdRange {
    inside: u32,
    outside: u32,
    count: u32,
}

impl Owners {
    /// The mappings of this program's user namespace.
    pub(crate) fn of_namespace() -> Owners {
        let read = |file: &str| {
            let text = std::fs::read_to_string(Path::new("/proc/self").join(file));
            IdMap::parse(&text.unwrap_or_default())
        };
        Owners { users: read("uid_map"), groups: read("gid_map") }
    }
}

impl IdMap {
    /// Parses lines `inside outside count`.
    fn parse(text: &str) -> IdMap {
        let line = |line: &str| {
            let mut words = line.split_whitespace().map(|word| word.parse().ok());
            let (inside, outside, count) = (words.next()??, words.next()??, words.next()??);
            Some(IdRange { inside, outside, count })
        };
        IdMap { ranges: text.lines().filter_map(line).collect() }
    }

    /// The instance's id for an id of the kernel.
    pub(crate) fn outside(&self, number: u32) -> u32 {
        self.find(number, |range| (range.inside, range.outside))
    }

    /// The kernel's id for an id of the instance.
    pub(crate) fn inside(&self, number: u32) -> u32 {
        self.find(number, |range| (range.outside, range.inside))
    }

    fn find(&self, number: u32, sides: impl Fn(&IdRange) -> (u32, u32)) -> u32 {
        if self.ranges.is_empty() {
            return number;
        }
        let found = self.ranges.iter().find_map(|range| {
            let (from, to) = sides(range);
            let beyond = number.checked_sub(from)?;
            (beyond < range.count).then(|| to.saturating_add(beyond))
        });
        found.unwrap_or(NOBODY)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_mapped_in_both_directions() {
        let numbers =
            IdMap::parse("         0       1000          1\n         1     100000      65536\n");
        for (inside, outside) in [(0, 1000), (1, 100_000), (65_536, 165_535)] {
            assert_eq!((numbers.outside(inside), numbers.inside(outside)), (outside, inside));
        }
        assert_eq!((numbers.inside(0), numbers.outside(70_000)), (NOBODY, NOBODY));
        assert_eq!(IdMap::default().inside(7), 7);
        let all = IdMap::parse("0 0 4294967295\n");
        assert_eq!((all.inside(7), all.outside(0)), (7, 0));
    }
}

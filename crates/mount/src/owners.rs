//! Numbers of users and groups: as the kernel has them at this mount, and as the instance has them.
//!
//! They are the same, unless this program is in a user namespace and the daemons are outside of it: who
//! is root inside is somebody else there.

use std::path::Path;

/// Whom the kernel shows for those who have no number inside.
const NOBODY: u32 = 65_534;

/// Users and groups.
#[derive(Debug, Default)]
pub(crate) struct Owners {
    /// Users.
    pub(crate) users: Numbers,
    /// Groups.
    pub(crate) groups: Numbers,
}

/// Which numbers inside are which outside; with no range all are the same.
#[derive(Debug, Default)]
pub(crate) struct Numbers {
    ranges: Vec<Range>,
}

#[derive(Debug)]
struct Range {
    inside: u32,
    outside: u32,
    count: u32,
}

impl Owners {
    /// Those of this program's user namespace, seen from the one around it.
    pub(crate) fn of_namespace() -> Owners {
        let read = |file: &str| {
            let text = std::fs::read_to_string(Path::new("/proc/self").join(file));
            Numbers::parse(&text.unwrap_or_default())
        };
        Owners { users: read("uid_map"), groups: read("gid_map") }
    }
}

impl Numbers {
    /// Lines `inside outside count`.
    fn parse(text: &str) -> Numbers {
        let line = |line: &str| {
            let mut words = line.split_whitespace().map(|word| word.parse().ok());
            let (inside, outside, count) = (words.next()??, words.next()??, words.next()??);
            Some(Range { inside, outside, count })
        };
        Numbers { ranges: text.lines().filter_map(line).collect() }
    }

    /// A number of the kernel's as the instance has it.
    pub(crate) fn outside(&self, number: u32) -> u32 {
        self.find(number, |range| (range.inside, range.outside))
    }

    /// A number of the instance's as the kernel has it.
    pub(crate) fn inside(&self, number: u32) -> u32 {
        self.find(number, |range| (range.outside, range.inside))
    }

    fn find(&self, number: u32, sides: impl Fn(&Range) -> (u32, u32)) -> u32 {
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
    fn numbers_are_told_apart() {
        let numbers =
            Numbers::parse("         0       1000          1\n         1     100000      65536\n");
        for (inside, outside) in [(0, 1000), (1, 100_000), (65_536, 165_535)] {
            assert_eq!((numbers.outside(inside), numbers.inside(outside)), (outside, inside));
        }
        assert_eq!((numbers.inside(0), numbers.outside(70_000)), (NOBODY, NOBODY));
        assert_eq!(Numbers::default().inside(7), 7);
        let all = Numbers::parse("0 0 4294967295\n");
        assert_eq!((all.inside(7), all.outside(0)), (7, 0));
    }
}

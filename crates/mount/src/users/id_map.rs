//! User and group ids: as the kernel has them at this mount, and as the instance has them.
//!
//! They are the same unless
//!
//! - this program is in a user namespace and the daemons are outside of it: root inside is another user
//!   outside; or
//! - the mount has a map of its own (`--map-uids`, `--map-gids`), or squashes root (`--root-squash`).
//!
//! In the second case the kernel cannot decide what a caller may do: it lets root pass, and an id that
//! stands for several others owns what is theirs. Then the instance checks each call
//! (`Owners::are_checked_here`).

use crate::settings::Settings;
use config::id_ranges::IdRange;
use std::path::Path;

/// The id that stands for ids without a mapping, and for root where it is squashed.
pub(crate) const NOBODY: u32 = 65_534;

/// Mappings of users and groups.
#[derive(Debug, Default)]
pub(crate) struct Owners {
    /// Users.
    pub(crate) users: IdMap,
    /// Groups.
    pub(crate) groups: IdMap,
    /// Root, and its group, call as nobody.
    squashes_root: bool,
    /// See `are_checked_here`.
    are_checked_here: bool,
}

/// A mapping between inside and outside ids; without ranges it is the identity.
#[derive(Debug, Default)]
pub(crate) struct IdMap {
    /// On the host: inside, at the kernel. In the instance: outside.
    ranges: Vec<IdRange>,
}

impl Owners {
    /// The mappings of a mount.
    pub(crate) fn of(settings: &Settings) -> Owners {
        if settings.is_other_namespace {
            return Owners::of_namespace();
        }
        let [users, groups] =
            [&settings.users, &settings.groups].map(|map| IdMap { ranges: map.ranges().to_vec() });
        let squashes_root = settings.squashes_root;
        let are_checked_here = settings.has_identities();
        Owners { users, groups, squashes_root, are_checked_here }
    }

    /// The mappings of this program's user namespace.
    fn of_namespace() -> Owners {
        let read = |file: &str| {
            let text = std::fs::read_to_string(Path::new("/proc/self").join(file));
            IdMap::parse(&text.unwrap_or_default())
        };
        Owners { users: read("uid_map"), groups: read("gid_map"), ..Owners::default() }
    }

    /// True if the instance checks what callers may do, and not the kernel.
    pub(crate) const fn are_checked_here(&self) -> bool {
        self.are_checked_here
    }

    /// The instance's user for a caller.
    pub(crate) fn user_of_caller(&self, uid: u32) -> u32 {
        if self.squashes_root && uid == 0 { NOBODY } else { self.users.outside(uid) }
    }

    /// The instance's group for a group of a caller.
    pub(crate) fn group_of_caller(&self, gid: u32) -> u32 {
        if self.squashes_root && gid == 0 { NOBODY } else { self.groups.outside(gid) }
    }

    /// True if a caller has the rights of root on this mount.
    pub(crate) const fn is_root(&self, uid: u32) -> bool {
        uid == 0 && !self.squashes_root
    }
}

impl IdMap {
    /// Parses lines `inside outside count`.
    fn parse(text: &str) -> IdMap {
        let line = |line: &str| {
            let mut words = line.split_whitespace().map(|word| word.parse().ok());
            let (host, instance, count) = (words.next()??, words.next()??, words.next()??);
            Some(IdRange { host, instance, count })
        };
        IdMap { ranges: text.lines().filter_map(line).collect() }
    }

    /// The instance's id for an id of the kernel.
    pub(crate) fn outside(&self, number: u32) -> u32 {
        self.known(number).unwrap_or(NOBODY)
    }

    /// As `outside`; `None` for an id without a mapping, which nothing can be given to.
    pub(crate) fn known(&self, number: u32) -> Option<u32> {
        self.find(number, |range| (range.host, range.instance))
    }

    /// The kernel's id for an id of the instance.
    pub(crate) fn inside(&self, number: u32) -> u32 {
        self.find(number, |range| (range.instance, range.host)).unwrap_or(NOBODY)
    }

    fn find(&self, number: u32, sides: impl Fn(&IdRange) -> (u32, u32)) -> Option<u32> {
        if self.ranges.is_empty() {
            return Some(number);
        }
        self.ranges.iter().find_map(|range| {
            let (from, to) = sides(range);
            let beyond = number.checked_sub(from)?;
            (beyond < range.count).then(|| to.saturating_add(beyond))
        })
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
        assert_eq!((numbers.known(70_000), numbers.known(0)), (None, Some(1000)));
        assert_eq!(IdMap::default().inside(7), 7);
        let all = IdMap::parse("0 0 4294967295\n");
        assert_eq!((all.inside(7), all.outside(0)), (7, 0));
    }

    #[test]
    fn a_squashed_root_is_nobody_and_its_files_are_roots() {
        let owners = Owners { squashes_root: true, ..Owners::default() };
        assert_eq!((owners.user_of_caller(0), owners.group_of_caller(0)), (NOBODY, NOBODY));
        assert_eq!((owners.user_of_caller(7), owners.group_of_caller(7)), (7, 7));
        assert_eq!((owners.users.inside(0), owners.is_root(0)), (0, false));
        assert!(Owners::default().is_root(0) && !Owners::default().is_root(7));
    }
}

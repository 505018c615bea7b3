//! The control group of a job, whose limit on memory follows what is lent: what the file system may hold
//! the
//! job can not have. A limit that is lower anyway stays. Of either version of control groups.

use crate::failure::{Failure, Result};
use std::fs;
use std::path::{Path, PathBuf};

/// A limit from here on is none.
const LIMIT_BYTES_MAX: u64 = 1 << 60;

/// The kernel rounds limits so.
const PAGE_BYTES: u64 = 4096;

/// The group.
#[derive(Debug)]
pub(crate) struct JobGroup {
    limit: PathBuf,
    used: PathBuf,
    /// Memory of the host.
    most: u64,
}

/// What came of a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Changed {
    /// The group has this limit now.
    To(u64),
    /// It could not be changed, and why: only what the daemons may hold is bounded.
    Not(String),
}

impl JobGroup {
    /// The group at `path` of a host with so much memory.
    ///
    /// # Errors
    /// It is none with a limit on memory.
    pub(crate) fn open(path: &Path, most: u64) -> Result<JobGroup> {
        let names =
            [("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")];
        let found = names.iter().find(|(limit, _)| path.join(limit).exists());
        let Some((limit, used)) = found else {
            let why = "it has no limit on memory: give a directory below /sys/fs/cgroup";
            return Err(Failure::at("no control group", path.display(), why));
        };
        Ok(JobGroup { limit: path.join(limit), used: path.join(used), most })
    }

    fn number(path: &Path) -> Option<u64> {
        fs::read_to_string(path).ok()?.trim().parse().ok()
    }

    /// The daemons may hold `after` bytes instead of `before`: the group may have the rest of the host's
    /// memory, if that is less than its limit, or if its limit is what was left of it before.
    ///
    /// # Errors
    /// The job uses more than would be left to it.
    pub(crate) fn shift(&self, before: u64, after: u64) -> Result<Changed> {
        let limit = JobGroup::number(&self.limit).filter(|&limit| limit < LIMIT_BYTES_MAX);
        let limit = limit.unwrap_or(self.most);
        let rest = |held: u64| self.most.saturating_sub(held) / PAGE_BYTES * PAGE_BYTES;
        let new = if limit == rest(before) { rest(after) } else { limit.min(rest(after)) };
        let used = JobGroup::number(&self.used).unwrap_or(0);
        if new < limit && new < used {
            let why = format!("it uses {used} bytes, {new} would be left to it: lend less");
            return Err(Failure::at("the job needs its memory", self.limit.display(), why));
        }
        Ok(match fs::write(&self.limit, new.to_string()) {
            Ok(()) => Changed::To(new),
            Err(error) => Changed::Not(format!("{}: {error}", self.limit.display())),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_moves_with_what_is_lent() {
        for (limit, used, none) in [
            ("memory.max", "memory.current", "max\n"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "9223372036854771712\n"),
        ] {
            let place = tempfile::tempdir().expect("a directory");
            assert!(JobGroup::open(place.path(), 1000).is_err(), "no group");
            let write = |name: &str, text: &str| fs::write(place.path().join(name), text);
            const MIB: u64 = 1 << 20;
            write(limit, none).expect("written");
            write(used, "314572800\n").expect("written");
            let group = JobGroup::open(place.path(), 1000 * MIB).expect("a group");
            let to = |before: u64, after: u64| group.shift(before * MIB, after * MIB).ok();
            assert_eq!(to(250, 250), Some(Changed::To(750 * MIB)));
            assert_eq!(to(250, 400), Some(Changed::To(600 * MIB)));
            assert_eq!(to(400, 800), None, "the job uses 300");
            assert_eq!(to(400, 100), Some(Changed::To(900 * MIB)));
            assert_eq!(to(100, 0), Some(Changed::To(1000 * MIB)));
            // One that somebody else set lower is not raised.
            write(limit, "524288000\n").expect("written");
            assert_eq!(to(0, 100), Some(Changed::To(500 * MIB)));
            assert_eq!(to(100, 0), Some(Changed::To(500 * MIB)));
        }
    }
}

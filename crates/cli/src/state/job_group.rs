//! The control group of a job, whose memory limit follows the memory lent to the instance: the job
//! cannot use what the instance may hold. A limit that is lower anyway is not raised. Supports
//! cgroup v1 and v2.

use crate::failure::{Failure, Result};
use std::fs;
use std::path::{Path, PathBuf};

/// A limit of this size or larger means no limit.
const LIMIT_BYTES_MAX: u64 = 1 << 60;

/// The kernel rounds limits to pages.
const PAGE_BYTES: u64 = 4096;

/// The control group.
#[derive(Debug)]
pub(crate) struct JobCgroup {
    limit: PathBuf,
    used: PathBuf,
    /// Memory of the host in bytes.
    host_bytes: u64,
}

/// The result of a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LimitChange {
    /// The group has this limit now.
    Set(u64),
    /// The limit could not be changed, for this reason; the allowance of the daemons is changed
    /// anyway.
    Unchanged(String),
}

impl JobCgroup {
    /// The group at `path`, on a host with `host_bytes` of memory.
    ///
    /// # Errors
    /// It is not a control group with a memory limit.
    pub(crate) fn open(path: &Path, host_bytes: u64) -> Result<JobCgroup> {
        let names =
            [("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")];
        let found = names.iter().find(|(limit, _)| path.join(limit).exists());
        let Some((limit, used)) = found else {
            let why = "it has no memory limit: give a directory under /sys/fs/cgroup";
            return Err(Failure::at("not a control group", path.display(), why));
        };
        Ok(JobCgroup { limit: path.join(limit), used: path.join(used), host_bytes })
    }

    fn number(path: &Path) -> Option<u64> {
        fs::read_to_string(path).ok()?.trim().parse().ok()
    }

    /// The daemons may hold `after` bytes instead of `before`: sets the limit of the group to the
    /// rest of the host's memory, if that lowers it, or if the limit was the rest of the memory
    /// before.
    ///
    /// # Errors
    /// The job uses more than would be left to it.
    pub(crate) fn shift(&self, before: u64, after: u64) -> Result<LimitChange> {
        let limit = JobCgroup::number(&self.limit).filter(|&limit| limit < LIMIT_BYTES_MAX);
        let limit = limit.unwrap_or(self.host_bytes);
        let rest = |held: u64| self.host_bytes.saturating_sub(held) / PAGE_BYTES * PAGE_BYTES;
        let new = if limit == rest(before) { rest(after) } else { limit.min(rest(after)) };
        let used = JobCgroup::number(&self.used).unwrap_or(0);
        if new < limit && new < used {
            let why = format!("it uses {used} bytes, but only {new} would be left: lend less");
            return Err(Failure::at("the job uses the memory", self.limit.display(), why));
        }
        Ok(match fs::write(&self.limit, new.to_string()) {
            Ok(()) => LimitChange::Set(new),
            Err(error) => LimitChange::Unchanged(format!("{}: {error}", self.limit.display())),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_follows_the_lent_memory() {
        for (limit, used, none) in [
            ("memory.max", "memory.current", "max\n"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "9223372036854771712\n"),
        ] {
            let place = tempfile::tempdir().expect("a directory");
            assert!(JobCgroup::open(place.path(), 1000).is_err(), "no group");
            let write = |name: &str, text: &str| fs::write(place.path().join(name), text);
            const MIB: u64 = 1 << 20;
            write(limit, none).expect("written");
            write(used, "314572800\n").expect("written");
            let group = JobCgroup::open(place.path(), 1000 * MIB).expect("a group");
            let to = |before: u64, after: u64| group.shift(before * MIB, after * MIB).ok();
            assert_eq!(to(250, 250), Some(LimitChange::Set(750 * MIB)));
            assert_eq!(to(250, 400), Some(LimitChange::Set(600 * MIB)));
            assert_eq!(to(400, 800), None, "the job uses 300");
            assert_eq!(to(400, 100), Some(LimitChange::Set(900 * MIB)));
            assert_eq!(to(100, 0), Some(LimitChange::Set(1000 * MIB)));
            // A lower limit set by someone else is not raised.
            write(limit, "524288000\n").expect("written");
            assert_eq!(to(0, 100), Some(LimitChange::Set(500 * MIB)));
            assert_eq!(to(100, 0), Some(LimitChange::Set(500 * MIB)));
        }
    }
}

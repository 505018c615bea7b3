//! Memory of a host: control groups and what they leave, of versions 1 and 2, for the command that
//! chooses the sizes of arenas and for the daemon that lends memory; and what an instance takes of
//! `/dev/shm` beside its arenas.
//!
//! The contents of files are passed in. A missing file yields no value and is not an error.

use std::path::{Path, PathBuf};

const MIB: u64 = 1 << 20;

/// A limit from here on means none: version 1 writes the largest number of whole pages.
pub const LIMIT_BYTES_MAX: u64 = 1 << 60;

/// Shared memory of a host beside that of its daemons: open files, processes, watches of a mount.
pub const HOST_TABLES_BYTES: u64 = 9 * MIB;
/// Most bytes of `/dev/shm` that arenas leave to tables, which grow with the number of files.
const MARGIN_BYTES_MAX: u64 = 16 * MIB;

/// Tables of a daemon with this many workers when it starts.
#[must_use]
pub const fn daemon_tables_bytes(workers: u64) -> u64 {
    workers.saturating_add(3).saturating_mul(MIB / 2)
}

/// Bytes that arenas leave free in a `/dev/shm` of `size` bytes.
#[must_use]
pub const fn margin_bytes(size: u64) -> u64 {
    let part = size / 16;
    if part < MARGIN_BYTES_MAX { part } else { MARGIN_BYTES_MAX }
}

/// Version of a control group, which determines its files.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Version {
    V1,
    V2,
}

/// A control group that limits memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MemoryGroup {
    version: Version,
    /// Its directory.
    pub path: PathBuf,
}

/// Memory of a control group, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GroupMemory {
    /// Its limit.
    pub total: u64,
    /// The part that its processes can still get.
    pub available: u64,
    /// Pages of shared memory among those in use.
    pub shared: u64,
}

/// The number after `name` at the beginning of a line.
#[must_use]
pub fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let rest = line.strip_prefix(name)?;
        rest.trim_start_matches(':').split_whitespace().next()?.parse().ok()
    })
}

/// Paths of a group from `/proc/self/cgroup` and its ancestors, under a mount that shows `root`.
fn within_mount(mount: &str, root: &str, own: &str) -> Vec<PathBuf> {
    let own = own.strip_prefix(root.trim_end_matches('/')).unwrap_or("");
    let top = PathBuf::from(mount);
    let group: PathBuf =
        top.components().chain(Path::new(own.trim_matches('/')).components()).collect();
    group.ancestors().take_while(|path| path.starts_with(&top)).map(Path::to_path_buf).collect()
}

/// The control groups of a process, innermost first, from the contents of its `cgroup` and
/// `mountinfo`.
#[must_use]
pub fn memory_groups(cgroup: &str, mounts: &str) -> Vec<MemoryGroup> {
    let mut found = Vec::new();
    for line in mounts.lines() {
        let Some((place, kind)) = line.split_once(" - ") else { continue };
        let mut place = place.split(' ').skip(3);
        let (Some(root), Some(mount)) = (place.next(), place.next()) else { continue };
        let mut kind = kind.split(' ');
        let (name, options) = (kind.next(), kind.nth(1).unwrap_or(""));
        let own = |is_it: &dyn Fn(&str) -> bool| {
            cgroup.lines().find_map(|line| {
                let (_, rest) = line.split_once(':')?;
                let (controllers, path) = rest.split_once(':')?;
                is_it(controllers).then(|| path.to_owned())
            })
        };
        let has_memory = |list: &str| list.split(',').any(|one| one == "memory");
        let (version, own) = match name {
            Some("cgroup") if has_memory(options) => (Version::V1, own(&has_memory)),
            Some("cgroup2") => (Version::V2, own(&|list: &str| list.is_empty())),
            _ => continue,
        };
        let all = own.map(|own| within_mount(mount, root, &own)).unwrap_or_default();
        found.extend(all.into_iter().map(|path| MemoryGroup { version, path }));
    }
    found
}

impl MemoryGroup {
    /// Its memory; `None` if it has no limit. `read` returns the contents of a file.
    #[must_use]
    pub fn memory(&self, read: impl Fn(&Path) -> Option<String>) -> Option<GroupMemory> {
        let of = |name: &str| read(&self.path.join(name))?.trim().parse::<u64>().ok();
        let (limit, used, before) = match self.version {
            Version::V1 => (of("memory.limit_in_bytes"), of("memory.usage_in_bytes"), "total_"),
            Version::V2 => {
                let limits = [of("memory.max"), of("memory.high")];
                (limits.into_iter().flatten().min(), of("memory.current"), "")
            }
        };
        let total = limit.filter(|&limit| limit < LIMIT_BYTES_MAX)?;
        let stat = read(&self.path.join("memory.stat")).unwrap_or_default();
        let part = |name: &str| field(&stat, &format!("{before}{name} ")).unwrap_or(0);
        // As in MemAvailable: the kernel can reclaim page cache, but programs may need some of it.
        let cached = part("inactive_file").saturating_add(part("active_file") / 2);
        let available = total.saturating_sub(used?).saturating_add(cached).min(total);
        Some(GroupMemory { total, available, shared: part("shmem") })
    }

    /// Number of processes that the kernel killed because the group was out of memory.
    #[must_use]
    pub fn killed(&self, read: impl Fn(&Path) -> Option<String>) -> u64 {
        let file = match self.version {
            Version::V1 => "memory.oom_control",
            Version::V2 => "memory.events",
        };
        read(&self.path.join(file)).and_then(|text| field(&text, "oom_kill ")).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS_V2: &str = "30 24 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n\
         31 24 0:27 / /proc rw - proc proc rw\n";
    const MOUNTS_V1: &str = "40 24 0:30 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
         41 24 0:31 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
         42 24 0:32 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";

    fn paths(cgroup: &str, mounts: &str) -> Vec<String> {
        let groups = memory_groups(cgroup, mounts);
        groups.iter().map(|group| group.path.display().to_string()).collect()
    }

    #[test]
    fn groups_of_both_versions_are_found() {
        let expected = ["/sys/fs/cgroup/job/step", "/sys/fs/cgroup/job", "/sys/fs/cgroup"];
        assert_eq!(paths("0::/job/step\n", MOUNTS_V2), expected);
        let both = "9:cpu:/a\n4:cpuset,memory:/slurm/job_1\n0::/\n";
        let expected = [
            "/sys/fs/cgroup/memory/slurm/job_1",
            "/sys/fs/cgroup/memory/slurm",
            "/sys/fs/cgroup/memory",
            "/sys/fs/cgroup/unified",
        ];
        assert_eq!(paths(both, MOUNTS_V1), expected);
        // A container sees its own group as the root of the mount.
        let container = MOUNTS_V2.replace(" / /sys", " /docker/1 /sys");
        assert_eq!(paths("0::/docker/1\n", &container), ["/sys/fs/cgroup"]);
        assert_eq!(paths("0::/\n", &container), ["/sys/fs/cgroup"]);
        for nonsense in ["", "0:", "::::", "1 2 3 - cgroup", "- cgroup2"] {
            assert!(memory_groups(nonsense, nonsense).is_empty());
        }
    }

    #[test]
    fn processes_killed_for_memory_are_counted_in_both_versions() {
        let group = |version| MemoryGroup { version, path: "/g".into() };
        let read = |path: &Path| match path.to_str() {
            Some("/g/memory.events") => Some("low 0\noom 3\noom_kill 2\n".to_owned()),
            Some("/g/memory.oom_control") => Some("under_oom 0\noom_kill 5\n".to_owned()),
            _ => None,
        };
        assert_eq!((group(Version::V1).killed(read), group(Version::V2).killed(read)), (5, 2));
        assert_eq!(group(Version::V1).memory(read), None);
    }
}

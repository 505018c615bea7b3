//! Idle memory of the node: available memory of the node and of the control groups of this process
//! (versions 1 and 2), and memory stalls (PSI).
//!
//! A missing file yields no value and is not an error. The daemon is usually in the job's group,
//! because it is started in the job; otherwise the job's limit does not cover this memory, and the
//! figures of the node decide.

use config::host_memory::{GroupMemory, MemoryGroup, field, memory_groups};
use data::tiering::lending_policy::{MemoryState, Readings};
use rustix::event::PollFd;
use rustix::event::PollFlags;
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags};
use std::fs;
use std::path::{Path, PathBuf};

/// Stall triggers: microseconds of stalls per window in microseconds. The second is allowed for
/// unprivileged users.
const TRIGGERS: [&str; 2] = ["some 20000 500000\0", "some 100000 2000000\0"];

/// Files to read.
pub(crate) struct MemoryProbe {
    root: PathBuf,
    /// This process's group and its ancestors, innermost first.
    groups: Vec<MemoryGroup>,
    /// Pressure files with an armed trigger.
    triggers: Vec<OwnedFd>,
}

/// Total of `some` in a pressure file.
fn stalled_micros(path: &Path) -> Option<u64> {
    let text = fs::read_to_string(path).ok()?;
    let some = text.lines().find(|line| line.starts_with("some "))?;
    some.split_whitespace().find_map(|word| word.strip_prefix("total=")?.parse().ok())
}

/// Memory state of a group; `None` if it has no limit.
fn memory_state(group: &MemoryGroup) -> Option<MemoryState> {
    let GroupMemory { total, available, shared } =
        group.memory(|path| fs::read_to_string(path).ok())?;
    Some(MemoryState { total, available, shared })
}

/// Arms a trigger on a pressure file: polling it reports memory stalls.
fn trigger(path: &Path) -> Option<OwnedFd> {
    TRIGGERS.iter().find_map(|text| {
        let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = rustix::fs::open(path, flags, Mode::empty()).ok()?;
        (rustix::io::write(&file, text.as_bytes()) == Ok(text.len())).then_some(file)
    })
}

impl MemoryProbe {
    /// Finds the control groups. `root` is `/` except in tests.
    pub(crate) fn new(root: &Path) -> MemoryProbe {
        let mut probe =
            MemoryProbe { root: root.to_path_buf(), groups: Vec::new(), triggers: Vec::new() };
        probe.find_groups();
        probe
    }

    /// Arms the triggers, if the kernel supports them; afterwards stalls wake a poll of `triggers`.
    pub(crate) fn arm(&mut self) {
        let node = self.pressure();
        let group = self.tightest().map(|(group, _)| group.join("memory.pressure"));
        let files = [Some(node), group].into_iter().flatten();
        self.triggers = files.filter_map(|path| trigger(&path)).collect();
    }

    fn pressure(&self) -> PathBuf {
        self.root.join("proc/pressure/memory")
    }

    /// Finds the groups again, since this process may have been moved.
    pub(crate) fn find_groups(&mut self) {
        let text = |name: &str| fs::read_to_string(self.root.join(name)).unwrap_or_default();
        self.groups = memory_groups(&text("proc/self/cgroup"), &text("proc/self/mountinfo"));
        for group in &mut self.groups {
            group.path = self.root.join(group.path.strip_prefix("/").unwrap_or(&group.path));
        }
    }

    /// The group with the least available memory.
    fn tightest(&self) -> Option<(&Path, MemoryState)> {
        let scopes = self.groups.iter();
        let scopes = scopes.filter_map(|group| Some((group.path.as_path(), memory_state(group)?)));
        scopes.min_by_key(|(_, memory_state)| memory_state.available)
    }

    fn node(&self) -> Option<MemoryState> {
        let text = fs::read_to_string(self.root.join("proc/meminfo")).ok()?;
        let bytes = |name: &str| Some(field(&text, name)?.saturating_mul(1024));
        Some(MemoryState {
            total: bytes("MemTotal")?,
            available: bytes("MemAvailable")?,
            shared: bytes("Shmem").unwrap_or(u64::MAX),
        })
    }

    /// Current readings; `held` are the bytes that the arena holds.
    pub(crate) fn read(&self, held: u64) -> Readings {
        let group = self.tightest();
        Readings {
            node: self.node(),
            group: group.map(|(_, memory_state)| memory_state),
            node_stalled_micros: stalled_micros(&self.pressure()),
            group_stalled_micros: group
                .and_then(|(path, _)| stalled_micros(&path.join("memory.pressure"))),
            held,
        }
    }

    /// Descriptors to poll for stalls.
    pub(crate) fn triggers(&self) -> impl Iterator<Item = PollFd<'_>> {
        self.triggers.iter().map(|file| PollFd::new(file, PollFlags::PRI))
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

    /// A tree of files as the kernel shows them.
    fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().expect("a directory");
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().expect("a directory")).expect("directories");
            fs::write(path, text).expect("written");
        }
        root
    }

    #[test]
    fn the_group_with_least_available_memory_is_read() {
        let root = tree(&[
            ("proc/meminfo", "MemTotal: 1000 kB\nMemAvailable:  600 kB\nShmem: 7 kB\n"),
            ("proc/pressure/memory", "some avg10=0.00 total=17\nfull avg10=0 total=3\n"),
            ("proc/self/cgroup", "0::/job/step\n"),
            ("proc/self/mountinfo", MOUNTS_V2),
            ("sys/fs/cgroup/job/memory.max", "900\n"),
            ("sys/fs/cgroup/job/memory.high", "800\n"),
            ("sys/fs/cgroup/job/memory.current", "500\n"),
            (
                "sys/fs/cgroup/job/memory.stat",
                "anon 1\nshmem 90\ninactive_file 100\nactive_file 40\n",
            ),
            ("sys/fs/cgroup/job/memory.pressure", "some avg10=0.00 total=99\n"),
            ("sys/fs/cgroup/job/step/memory.max", "max\n"),
            ("sys/fs/cgroup/job/step/memory.current", "400\n"),
        ]);
        let probe = MemoryProbe::new(root.path());
        let readings = probe.read(5);
        let node = MemoryState { total: 1_024_000, available: 614_400, shared: 7168 };
        let group = MemoryState { total: 800, available: 420, shared: 90 };
        assert_eq!((readings.node, readings.group), (Some(node), Some(group)));
        let stalled = (readings.node_stalled_micros, readings.group_stalled_micros);
        assert_eq!((stalled, readings.held), ((Some(17), Some(99)), 5));
    }

    #[test]
    fn files_of_version_1_are_read() {
        let root = tree(&[
            ("proc/self/cgroup", "4:memory:/slurm/job_1\n"),
            ("proc/self/mountinfo", MOUNTS_V1),
            ("sys/fs/cgroup/memory/slurm/memory.limit_in_bytes", "9223372036854771712\n"),
            ("sys/fs/cgroup/memory/slurm/memory.usage_in_bytes", "1\n"),
            ("sys/fs/cgroup/memory/slurm/job_1/memory.limit_in_bytes", "1000\n"),
            ("sys/fs/cgroup/memory/slurm/job_1/memory.usage_in_bytes", "700\n"),
            (
                "sys/fs/cgroup/memory/slurm/job_1/memory.stat",
                "inactive_file 1\ntotal_inactive_file 50\ntotal_shmem 300\n",
            ),
        ]);
        let readings = MemoryProbe::new(root.path()).read(0);
        assert_eq!(readings.group, Some(MemoryState { total: 1000, available: 350, shared: 300 }));
        assert_eq!((readings.node, readings.node_stalled_micros), (None, None));
    }

    #[test]
    fn missing_files_yield_no_readings() {
        let root = tree(&[("proc/meminfo", "MemTotal: x\n"), ("proc/pressure/memory", "some\n")]);
        assert_eq!(MemoryProbe::new(root.path()).read(0), Readings::default());
        // The files of this machine are readable.
        assert!(MemoryProbe::new(Path::new("/")).read(0).node.is_some());
    }
}

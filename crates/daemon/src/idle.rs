//! What the node leaves idle, as far as the system tells: available memory of the node and of the control
//! groups that this process is in (versions 1 and 2), and who stalls for it (PSI).
//!
//! A file that is not there tells nothing, and is no error. The daemon's group is mostly the job's, as
//! it is started in the job; where it is not, the job's own limit says nothing about this memory, and the
//! node's figures are what counts.

use data::lending::{Readings, Room};
use rustix::event::PollFd;
use rustix::event::PollFlags;
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags};
use std::fs;
use std::path::{Path, PathBuf};

/// A limit from here on is none: version 1 writes the largest number of whole pages.
const LIMIT_BYTES_MAX: u64 = 1 << 60;
/// When to be woken: so many microseconds of stalls in so many. The second is what an ordinary user may
/// ask for.
const TRIGGERS: [&str; 2] = ["some 20000 500000\0", "some 100000 2000000\0"];

/// Which files a group has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Version {
    V1,
    V2,
}

/// Where to look.
pub(crate) struct Idle {
    root: PathBuf,
    /// From the own group up.
    groups: Vec<(Version, PathBuf)>,
    /// Pressure files with a trigger.
    triggers: Vec<OwnedFd>,
}

/// The number behind a word at a line's beginning.
fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let rest = line.strip_prefix(name)?;
        rest.trim_start_matches(':').split_whitespace().next()?.parse().ok()
    })
}

fn number(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// The sum of `some` in a pressure file.
fn stalled_micros(path: &Path) -> Option<u64> {
    let text = fs::read_to_string(path).ok()?;
    let some = text.lines().find(|line| line.starts_with("some "))?;
    some.split_whitespace().find_map(|word| word.strip_prefix("total=")?.parse().ok())
}

/// What an own group in `/proc/self/cgroup` is, below a mount of which `root` is shown.
fn below(mount: &str, root: &str, own: &str) -> Vec<PathBuf> {
    let own = own.strip_prefix(root.trim_end_matches('/')).unwrap_or("");
    let top = PathBuf::from(mount);
    let group: PathBuf =
        top.components().chain(Path::new(own.trim_matches('/')).components()).collect();
    group.ancestors().take_while(|path| path.starts_with(&top)).map(Path::to_path_buf).collect()
}

/// The groups of a process from the texts of its `cgroup` and `mountinfo`, of both versions.
fn groups(cgroup: &str, mounts: &str) -> Vec<(Version, PathBuf)> {
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
        let all = own.map(|own| below(mount, root, &own)).unwrap_or_default();
        found.extend(all.into_iter().map(|path| (version, path)));
    }
    found
}

/// What a group leaves; `None`: it has no limit.
fn room(version: Version, group: &Path) -> Option<Room> {
    let of = |name: &str| number(&group.join(name));
    let (limit, used, before) = match version {
        Version::V1 => (of("memory.limit_in_bytes"), of("memory.usage_in_bytes"), "total_"),
        Version::V2 => {
            let limits = [of("memory.max"), of("memory.high")];
            (limits.into_iter().flatten().min(), of("memory.current"), "")
        }
    };
    let total = limit.filter(|&limit| limit < LIMIT_BYTES_MAX)?;
    let stat = fs::read_to_string(group.join("memory.stat")).unwrap_or_default();
    let part = |name: &str| field(&stat, &format!("{before}{name} ")).unwrap_or(0);
    // As MemAvailable has it: the kernel takes what is cached, but a program may need some of it.
    let cached = part("inactive_file").saturating_add(part("active_file") / 2);
    let available = total.saturating_sub(used?).saturating_add(cached).min(total);
    Some(Room { total, available, shared: part("shmem") })
}

/// Has the kernel wake who polls the file when programs stall.
fn trigger(path: &Path) -> Option<OwnedFd> {
    TRIGGERS.iter().find_map(|text| {
        let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = rustix::fs::open(path, flags, Mode::empty()).ok()?;
        (rustix::io::write(&file, text.as_bytes()) == Ok(text.len())).then_some(file)
    })
}

impl Idle {
    /// Looks where things are. `root` is `/` but in tests.
    pub(crate) fn new(root: &Path) -> Idle {
        let mut idle = Idle { root: root.to_path_buf(), groups: Vec::new(), triggers: Vec::new() };
        idle.find_groups();
        idle
    }

    /// From now on stalls wake who waits for `triggers`, where the kernel can.
    pub(crate) fn arm(&mut self) {
        let node = self.pressure();
        let group = self.tightest().map(|(group, _)| group.join("memory.pressure"));
        let files = [Some(node), group].into_iter().flatten();
        self.triggers = files.filter_map(|path| trigger(&path)).collect();
    }

    fn pressure(&self) -> PathBuf {
        self.root.join("proc/pressure/memory")
    }

    /// Finds the groups anew: somebody may have moved this process.
    pub(crate) fn find_groups(&mut self) {
        let text = |name: &str| fs::read_to_string(self.root.join(name)).unwrap_or_default();
        let all = groups(&text("proc/self/cgroup"), &text("proc/self/mountinfo"));
        let inside = |path: PathBuf| self.root.join(path.strip_prefix("/").unwrap_or(&path));
        self.groups = all.into_iter().map(|(version, path)| (version, inside(path))).collect();
    }

    /// The group that leaves least.
    fn tightest(&self) -> Option<(&Path, Room)> {
        let rooms = self.groups.iter();
        let rooms =
            rooms.filter_map(|(version, path)| Some((path.as_path(), room(*version, path)?)));
        rooms.min_by_key(|(_, room)| room.available)
    }

    fn node(&self) -> Option<Room> {
        let text = fs::read_to_string(self.root.join("proc/meminfo")).ok()?;
        let bytes = |name: &str| Some(field(&text, name)?.saturating_mul(1024));
        Some(Room {
            total: bytes("MemTotal")?,
            available: bytes("MemAvailable")?,
            shared: bytes("Shmem").unwrap_or(u64::MAX),
        })
    }

    /// What is to be seen now, while the arena holds so much.
    pub(crate) fn read(&self, held: u64) -> Readings {
        let group = self.tightest();
        Readings {
            node: self.node(),
            group: group.map(|(_, room)| room),
            node_stalled_micros: stalled_micros(&self.pressure()),
            group_stalled_micros: group
                .and_then(|(path, _)| stalled_micros(&path.join("memory.pressure"))),
            held,
        }
    }

    /// What to wait on beside the time.
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

    fn paths(cgroup: &str, mounts: &str) -> Vec<String> {
        groups(cgroup, mounts).iter().map(|(_, path)| path.display().to_string()).collect()
    }

    #[test]
    fn groups_of_both_versions_are_found() {
        let wanted = ["/sys/fs/cgroup/job/step", "/sys/fs/cgroup/job", "/sys/fs/cgroup"];
        assert_eq!(paths("0::/job/step\n", MOUNTS_V2), wanted);
        let both = "9:cpu:/a\n4:cpuset,memory:/slurm/job_1\n0::/\n";
        let wanted = [
            "/sys/fs/cgroup/memory/slurm/job_1",
            "/sys/fs/cgroup/memory/slurm",
            "/sys/fs/cgroup/memory",
            "/sys/fs/cgroup/unified",
        ];
        assert_eq!(paths(both, MOUNTS_V1), wanted);
        // A container sees its own group as the root of the mount.
        let container = MOUNTS_V2.replace(" / /sys", " /docker/1 /sys");
        assert_eq!(paths("0::/docker/1\n", &container), ["/sys/fs/cgroup"]);
        assert_eq!(paths("0::/\n", &container), ["/sys/fs/cgroup"]);
        for nonsense in ["", "0:", "::::", "1 2 3 - cgroup", "- cgroup2"] {
            assert!(groups(nonsense, nonsense).is_empty());
        }
    }

    /// A tree of files as the kernel shows them.
    fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().expect("a directory");
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().expect("a folder")).expect("folders");
            fs::write(path, text).expect("written");
        }
        root
    }

    #[test]
    fn the_tightest_limit_counts() {
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
        let idle = Idle::new(root.path());
        let readings = idle.read(5);
        let node = Room { total: 1_024_000, available: 614_400, shared: 7168 };
        let group = Room { total: 800, available: 420, shared: 90 };
        assert_eq!((readings.node, readings.group), (Some(node), Some(group)));
        let stalled = (readings.node_stalled_micros, readings.group_stalled_micros);
        assert_eq!((stalled, readings.held), ((Some(17), Some(99)), 5));
    }

    #[test]
    fn version_1_has_other_names() {
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
        let readings = Idle::new(root.path()).read(0);
        assert_eq!(readings.group, Some(Room { total: 1000, available: 350, shared: 300 }));
        assert_eq!((readings.node, readings.node_stalled_micros), (None, None));
    }

    #[test]
    fn what_is_not_there_is_not_known() {
        let root = tree(&[("proc/meminfo", "MemTotal: x\n"), ("proc/pressure/memory", "some\n")]);
        assert_eq!(Idle::new(root.path()).read(0), Readings::default());
        // This machine tells something.
        assert!(Idle::new(Path::new("/")).read(0).node.is_some());
    }
}

//! A memory control group, of either version, with this test's process in it.

use std::fs;
use std::path::{Path, PathBuf};

/// The group; on drop its processes return to the previous group, and it is removed.
pub(crate) struct Group {
    path: PathBuf,
    parent: PathBuf,
}

/// Mount points of the hierarchies, and the file names of the limit and of the number of kills.
fn hierarchies() -> Vec<(PathBuf, &'static str, &'static str)> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let mounts = mounts.lines().filter_map(|line| {
        let (dir, kind) = line.split_once(" - ")?;
        let mount = PathBuf::from(dir.split(' ').nth(4)?);
        let mut kind = kind.split(' ');
        match (kind.next()?, kind.nth(1)?) {
            ("cgroup", options) if options.split(',').any(|one| one == "memory") => {
                Some((mount, "memory.limit_in_bytes", "memory.oom_control"))
            }
            ("cgroup2", _) => Some((mount, "memory.max", "memory.events")),
            _ => None,
        }
    });
    mounts.collect()
}

/// The group of this process under a mount point.
fn own(mount: &Path, is_v2: bool) -> PathBuf {
    let text = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let mut lines = text.lines().filter_map(|line| {
        let (_, rest) = line.split_once(':')?;
        let (names, path) = rest.split_once(':')?;
        let is_it = if is_v2 { names.is_empty() } else { names.split(',').any(|n| n == "memory") };
        is_it.then(|| mount.join(path.trim_start_matches('/')))
    });
    lines.next().unwrap_or_else(|| mount.to_path_buf())
}

impl Group {
    /// Moves this process into a new group with this limit, or returns why that is impossible.
    pub(crate) fn enter(limit: u64) -> Result<Group, String> {
        let mut why = "no control groups for memory".to_owned();
        for (mount, name, _) in hierarchies() {
            let is_v2 = name == "memory.max";
            let parent = own(&mount, is_v2);
            let path = mount.join(format!("forebay-test-{}", std::process::id()));
            let entered = fs::create_dir(&path)
                .and_then(|()| fs::write(path.join(name), limit.to_string()))
                .and_then(|()| fs::write(path.join("cgroup.procs"), "0"));
            match entered {
                Ok(()) => return Ok(Group { path, parent }),
                Err(error) => why = format!("{}: {error}", path.display()),
            }
            let _ = fs::remove_dir(&path);
        }
        Err(why)
    }

    /// Processes that were killed at the limit.
    pub(crate) fn killed(&self) -> u64 {
        let read = |name: &str| fs::read_to_string(self.path.join(name)).unwrap_or_default();
        let text = [read("memory.oom_control"), read("memory.events")].concat();
        let line = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
        line.and_then(|count| count.parse().ok()).expect("the number of kills")
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let all = fs::read_to_string(self.path.join("cgroup.procs")).unwrap_or_default();
        for pid in all.lines() {
            let _ = fs::write(self.parent.join("cgroup.procs"), pid);
        }
        let _ = fs::remove_dir(&self.path);
    }
}

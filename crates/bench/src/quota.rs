//! A share of a processor for a group of processes, by the cgroups of the kernel, version 1 or 2.

use std::fs;
use std::path::{Path, PathBuf};

/// One slice of what the kernel hands out to a processor at a time (its default). With less, one that
/// waits gets all of it and the one that it waits for none: 1 ms of 20 gave 4 creates/s, this 3400.
const QUOTA_MICROS: u32 = 5_000;
const PERIOD_MICROS: u32 = 100_000;

const VERSION_1: &str = "/sys/fs/cgroup/cpu";
const VERSION_2: &str = "/sys/fs/cgroup";

/// One group; it is removed with this value, and must be empty then.
#[derive(Debug)]
pub(crate) struct Quota {
    folder: PathBuf,
    is_version_1: bool,
}

impl Quota {
    /// Makes a group without a limit. The error says what this machine lacks.
    pub(crate) fn new(name: &str) -> Result<Quota, &'static str> {
        let is_version_1 = is_version_1();
        if !is_version_1 {
            // Most systems have it on already; where it can not be, the group will have no limit.
            let _ = fs::write(Path::new(VERSION_2).join("cgroup.subtree_control"), "+cpu");
        }
        let quota = Quota { folder: folder(name), is_version_1 };
        match fs::create_dir(&quota.folder) {
            Ok(()) if quota.unlimit().is_ok() => Ok(quota),
            _ => Err("needs root, and cgroups with the controller cpu"),
        }
    }

    /// The file that takes the processes of the group called `name`.
    pub(crate) fn procs(name: &str) -> String {
        folder(name).join("cgroup.procs").to_string_lossy().into_owned()
    }

    pub(crate) fn limit(&self) -> Result<(), String> {
        self.set(&QUOTA_MICROS.to_string())
    }

    pub(crate) fn unlimit(&self) -> Result<(), String> {
        self.set(if self.is_version_1 { "-1" } else { "max" })
    }

    /// Puts a process into the group, with all of its threads.
    pub(crate) fn take(&self, pid: &str) -> Result<(), String> {
        self.write("cgroup.procs", pid)
    }

    /// Seconds of a processor that the group's processes have used.
    pub(crate) fn used(&self) -> f64 {
        let all = fs::read_to_string(self.folder.join("cgroup.procs")).unwrap_or_default();
        let stat = |pid: &str| fs::read_to_string(format!("/proc/{pid}/stat")).ok();
        let ticks = all.lines().filter_map(|pid| ticks(&stat(pid)?));
        // A tick is a hundredth of a second for programs, whatever the kernel's own is.
        ticks.sum::<u64>() as f64 / 100.0
    }

    fn set(&self, quota: &str) -> Result<(), String> {
        if self.is_version_1 {
            self.write("cpu.cfs_period_us", &PERIOD_MICROS.to_string())?;
            self.write("cpu.cfs_quota_us", quota)
        } else {
            self.write("cpu.max", &format!("{quota} {PERIOD_MICROS}"))
        }
    }

    fn write(&self, name: &str, text: &str) -> Result<(), String> {
        let file = self.folder.join(name);
        fs::write(&file, text).map_err(|error| format!("{}: {error}", file.display()))
    }
}

impl Drop for Quota {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir(&self.folder) {
            eprintln!("forebay-bench: {}: {error}", self.folder.display());
        }
    }
}

/// Time in programs and in the kernel, of threads that have ended, too: fields 14 and 15 of a line that
/// has the program's name in parentheses as the second.
fn ticks(stat: &str) -> Option<u64> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace().skip(11);
    let mut next = || fields.next()?.parse::<u64>().ok();
    Some(next()? + next()?)
}

fn is_version_1() -> bool {
    Path::new(VERSION_1).join("cpu.cfs_quota_us").exists()
        || Path::new(VERSION_1).join("cpu.cfs_period_us").exists()
}

fn folder(name: &str) -> PathBuf {
    Path::new(if is_version_1() { VERSION_1 } else { VERSION_2 }).join(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_a_process() {
        let line = "7 (a ) b) S 1 7 7 0 -1 4194560 1 2 3 4 50 60 7 8 20 0 1 0 9\n";
        assert_eq!(ticks(line), Some(110));
        assert_eq!(ticks("7 (a) S 1"), None);
        let own = fs::read_to_string("/proc/self/stat").expect("a line");
        assert!(ticks(&own).is_some());
    }
}

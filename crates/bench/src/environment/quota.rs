//! CPU quota for a group of processes, by kernel cgroups version 1 or 2.

use std::fs;
use std::path::{Path, PathBuf};

/// CPU time of a group in each period.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CpuShare {
    pub(crate) quota_micros: u32,
    pub(crate) period_micros: u32,
}

impl CpuShare {
    /// A twentieth of a CPU. The quota equals the kernel's default slice: with less, a process that
    /// waits takes the whole quota and the process that it waits for gets none. 1 ms of 20 gave 4
    /// creates/s, this value 3400.
    pub(crate) const TWENTIETH: CpuShare = CpuShare { quota_micros: 5_000, period_micros: 100_000 };

    /// CPUs.
    pub(crate) fn processors(self) -> f64 {
        f64::from(self.quota_micros) / f64::from(self.period_micros)
    }
}

const VERSION_1: &str = "/sys/fs/cgroup/cpu";
const VERSION_2: &str = "/sys/fs/cgroup";

/// One cgroup. Dropping it removes the group, which must be empty by then.
#[derive(Debug)]
pub(crate) struct Quota {
    dir: PathBuf,
    is_version_1: bool,
}

impl Quota {
    /// Creates a group without a limit. The error says what this machine lacks.
    pub(crate) fn new(name: &str) -> Result<Quota, &'static str> {
        let is_version_1 = is_version_1();
        if !is_version_1 {
            // Most systems have the controller enabled already; if enabling fails, `unlimit` below
            // reports it.
            let _ = fs::write(Path::new(VERSION_2).join("cgroup.subtree_control"), "+cpu");
        }
        let quota = Quota { dir: dir(name), is_version_1 };
        match fs::create_dir(&quota.dir) {
            Ok(()) if quota.unlimit().is_ok() => Ok(quota),
            _ => Err("needs root, and cgroups with the controller cpu"),
        }
    }

    /// Path of the file that adds processes to the group called `name`.
    pub(crate) fn procs(name: &str) -> String {
        dir(name).join("cgroup.procs").to_string_lossy().into_owned()
    }

    pub(crate) fn limit(&self, share: CpuShare) -> Result<(), String> {
        self.set(&share.quota_micros.to_string(), share.period_micros)
    }

    pub(crate) fn unlimit(&self) -> Result<(), String> {
        let none = if self.is_version_1 { "-1" } else { "max" };
        self.set(none, CpuShare::TWENTIETH.period_micros)
    }

    /// Moves a process with all its threads into the group.
    pub(crate) fn add_process(&self, pid: &str) -> Result<(), String> {
        self.write("cgroup.procs", pid)
    }

    /// CPU seconds used by the processes of the group.
    pub(crate) fn used(&self) -> f64 {
        let all = fs::read_to_string(self.dir.join("cgroup.procs")).unwrap_or_default();
        let stat = |pid: &str| fs::read_to_string(format!("/proc/{pid}/stat")).ok();
        let ticks = all.lines().filter_map(|pid| ticks(&stat(pid)?));
        // In /proc a tick is 1/100 s, whatever the kernel's internal rate is.
        ticks.sum::<u64>() as f64 / 100.0
    }

    fn set(&self, quota: &str, period_micros: u32) -> Result<(), String> {
        if self.is_version_1 {
            self.write("cpu.cfs_period_us", &period_micros.to_string())?;
            self.write("cpu.cfs_quota_us", quota)
        } else {
            self.write("cpu.max", &format!("{quota} {period_micros}"))
        }
    }

    fn write(&self, name: &str, text: &str) -> Result<(), String> {
        let file = self.dir.join(name);
        fs::write(&file, text).map_err(|error| format!("{}: {error}", file.display()))
    }
}

impl Drop for Quota {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir(&self.dir) {
            eprintln!("forebay-bench: {}: {error}", self.dir.display());
        }
    }
}

/// User and system time, including threads that have ended: fields 14 and 15 of a line of
/// `/proc/PID/stat`, whose second field is the program's name in parentheses.
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

fn dir(name: &str) -> PathBuf {
    Path::new(if is_version_1() { VERSION_1 } else { VERSION_2 }).join(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_is_read_from_stat() {
        let line = "7 (a ) b) S 1 7 7 0 -1 4194560 1 2 3 4 50 60 7 8 20 0 1 0 9\n";
        assert_eq!(ticks(line), Some(110));
        assert_eq!(ticks("7 (a) S 1"), None);
        let own = fs::read_to_string("/proc/self/stat").expect("a line");
        assert!(ticks(&own).is_some());
    }
}

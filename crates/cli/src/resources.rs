//! What `auto` means on this host: memory, space, threads.

use crate::failure::{Failure, Result};
use std::fs;
use std::path::Path;

const MIB: u64 = 1 << 20;
/// Arena and SSD file are whole multiples of this.
const STEP_BYTES: u64 = 4 * MIB;
/// Less memory than this holds too few pieces of files to be of use.
const MEMORY_BYTES_MIN: u64 = 16 * MIB;
/// The SSD file takes no more by itself: making its blocks real takes the device's time.
const SSD_BYTES_MAX: u64 = 256 << 30;
/// Threads of a daemon by itself: four saturate one arena's doorbells.
const WORKERS_MAX: u64 = 4;

/// Types of file systems that are memory or a network: `statfs` numbers of tmpfs, ramfs, NFS,
/// Lustre, GPFS, SMB (two), Ceph, BeeGFS, and FUSE, which may be either.
const NO_LOCAL_DISK: [u64; 10] = [
    0x0102_1994,
    0x8584_58f6,
    0x6969,
    0x0bd0_0bd0,
    0x4750_4653,
    0xff53_4d42,
    0xfe53_4d42,
    0x00c3_6400,
    0x1983_0326,
    0x6573_5546,
];

/// Bytes of memory that a new program could have: of the machine, and of our control group.
fn memory_available() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    let machine = kib.unwrap_or(0).saturating_mul(1024);
    group_available().map_or(machine, |group| group.min(machine))
}

/// What the control groups above us leave, the tightest of them.
fn group_available() -> Option<u64> {
    let text = fs::read_to_string("/proc/self/cgroup").ok()?;
    let own = text.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let number = |path: &Path| fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
    Path::new("/sys/fs/cgroup")
        .join(own)
        .ancestors()
        .filter_map(|group| {
            let most = number(&group.join("memory.max"))?;
            Some(most.saturating_sub(number(&group.join("memory.current"))?))
        })
        .min()
}

fn free_bytes(path: &Path) -> u64 {
    rustix::fs::statvfs(path).map_or(0, |space| space.f_bavail.saturating_mul(space.f_frsize))
}

/// Bytes of one daemon's arena when `daemons` share the host.
///
/// # Errors
/// There is not enough for a useful one.
pub(crate) fn memory(daemons: u16) -> Result<u64> {
    let shared = free_bytes(Path::new("/dev/shm")) / 4 * 3;
    let all = (memory_available() / 4).min(shared);
    let each = all / u64::from(daemons.max(1)) / STEP_BYTES * STEP_BYTES;
    if each < MEMORY_BYTES_MIN {
        let why = format!(
            "{each} bytes for each of {daemons} daemons, at least {MEMORY_BYTES_MIN} are needed: \
             start fewer, free memory or /dev/shm, or give --memory"
        );
        return Err(Failure::at("too little memory", "this host", why));
    }
    Ok(each)
}

/// Bytes of one daemon's SSD file in `dir` when `daemons` share the host; 0: none.
pub(crate) fn ssd(dir: &Path, daemons: u16) -> u64 {
    let kind = rustix::fs::statfs(dir).map_or(0, |found| found.f_type.cast_unsigned());
    if NO_LOCAL_DISK.contains(&(kind & 0xffff_ffff)) {
        return 0;
    }
    let each = free_bytes(dir) / 5 * 4 / u64::from(daemons.max(1));
    let each = each.min(SSD_BYTES_MAX) / STEP_BYTES * STEP_BYTES;
    if each < MEMORY_BYTES_MIN { 0 } else { each }
}

/// Threads of each daemon when `daemons` share a host like this one.
pub(crate) fn workers(daemons: u16) -> u64 {
    let processors = std::thread::available_parallelism().map_or(1, |count| count.get() as u64);
    (processors / 2 / u64::from(daemons.max(1))).clamp(1, WORKERS_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_whole_steps_and_divide() {
        let (one, four) = (memory(1).expect("memory"), memory(4).expect("memory"));
        assert!(four <= one / 4 + STEP_BYTES && one % STEP_BYTES == 0 && four % STEP_BYTES == 0);
        assert!(memory(u16::MAX).is_err_and(|failure| failure.text().contains("--memory")));
        assert_eq!(ssd(Path::new("/dev/shm"), 1), 0);
        assert_eq!(ssd(Path::new("/nowhere"), 1), 0);
        assert!((1..=WORKERS_MAX).contains(&workers(1)));
        assert_eq!(workers(10_000), 1);
    }
}

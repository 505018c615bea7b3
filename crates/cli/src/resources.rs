//! What `auto` means on this host: memory, space, threads.

use crate::failure::{Failure, Result};
use crate::records::MemoryWish;
use config::parse::Amount;
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

/// Bytes that the machine says behind a word.
fn meminfo(name: &str) -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0).saturating_mul(1024)
}

/// Bytes of memory of the machine.
pub(crate) fn memory_of_host() -> u64 {
    meminfo("MemTotal:")
}

/// Bytes of memory that a new program could have: of the machine, and of our control group.
fn memory_available() -> u64 {
    let machine = meminfo("MemAvailable:");
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

/// Bytes of one daemon's arena.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Memory {
    /// All of it.
    pub(crate) most: u64,
    /// What of it may always be used, if the rest follows what is idle.
    pub(crate) least: Option<u64>,
}

/// The arena of one daemon when `daemons` share the host.
///
/// # Errors
/// There is not enough for a useful one, or the range makes no sense on this host.
pub(crate) fn memory(wish: Option<&MemoryWish>, daemons: u16) -> Result<Memory> {
    let text = match wish {
        None => return Ok(Memory { most: memory_auto(daemons)?, least: None }),
        Some(&MemoryWish::Bytes(most)) => return Ok(Memory { most, least: None }),
        Some(MemoryWish::Text(text)) => text,
    };
    let no = |why: String| Failure::at("can not have --memory", text, why);
    let wish = config::parse::memory(text).ok_or_else(|| no("it is no amount of memory".into()))?;
    let bytes = |amount: Amount| match amount {
        Amount::Bytes(bytes) => bytes,
        Amount::Percent(percent) => {
            let each = memory_of_host() / 100 * percent / u64::from(daemons.max(1));
            each / STEP_BYTES * STEP_BYTES
        }
    };
    let (most, least) = (bytes(wish.most), wish.least.map(bytes));
    if most < MEMORY_BYTES_MIN || least.is_some_and(|least| least > most) {
        return Err(no(format!(
            "of this host that is {} to {most} bytes for each of {daemons} daemons, at least \
             {MEMORY_BYTES_MIN} are needed",
            least.unwrap_or(most)
        )));
    }
    Ok(Memory { most, least })
}

fn memory_auto(daemons: u16) -> Result<u64> {
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
        let bytes = |wish: Option<&str>, daemons| {
            let wish = wish.map(|text| MemoryWish::Text(text.to_owned()));
            memory(wish.as_ref(), daemons)
        };
        let most = |daemons| bytes(None, daemons).expect("memory").most;
        let (one, four) = (most(1), most(4));
        assert!(four <= one / 4 + STEP_BYTES && one % STEP_BYTES == 0 && four % STEP_BYTES == 0);
        assert!(bytes(None, u16::MAX).is_err_and(|failure| failure.text().contains("--memory")));
        let all = memory_of_host();
        let half = bytes(Some("50%"), 2).expect("memory");
        assert!(half.least.is_none() && half.most <= all / 4 && half.most > all / 5);
        let range = bytes(Some("32MiB..50%"), 2).expect("memory");
        assert_eq!(range, Memory { least: Some(32 << 20), ..half });
        assert!(bytes(Some("900TiB..1%"), 1).is_err() && bytes(Some("1%"), u16::MAX).is_err());
        assert_eq!(ssd(Path::new("/dev/shm"), 1), 0);
        assert_eq!(ssd(Path::new("/nowhere"), 1), 0);
        assert!((1..=WORKERS_MAX).contains(&workers(1)));
        assert_eq!(workers(10_000), 1);
    }
}

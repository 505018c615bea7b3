//! The values of `auto` on this host: memory, space, threads.

use crate::commands::{human, plural};
use crate::failure::{Failure, Result};
use config::MemoryRequest;
use config::host_memory::{
    GroupMemory, HOST_TABLES_BYTES, daemon_tables_bytes, margin_bytes, memory_groups,
};
use config::parse::{Amount, size_text};
use std::fs;
use std::path::Path;

const MIB: u64 = 1 << 20;
/// Where arenas are.
const SHM: &str = "/dev/shm";
/// Arena and SSD file are multiples of this.
const STEP_BYTES: u64 = 4 * MIB;
/// Less memory than this holds too few extents to be useful.
const MEMORY_BYTES_MIN: u64 = 16 * MIB;
/// Space for the metadata log of each worker of a daemon, beside its SSD file: the first 16 MiB, and as
/// much for removals and for a rewrite.
const LOG_BYTES: u64 = 32 * MIB;
/// Largest automatic SSD file, because allocating its blocks takes time on the device.
const SSD_BYTES_MAX: u64 = 256 << 30;
/// Most automatic threads of a daemon: four saturate the doorbells of one arena.
const WORKERS_MAX: u64 = 4;

/// File system types that are in memory or on a network: `statfs` numbers of tmpfs, ramfs, NFS,
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

/// Bytes of a line in `/proc/meminfo`.
fn meminfo(name: &str) -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0).saturating_mul(1024)
}

/// Memory of the host in bytes.
pub(crate) fn memory_of_host() -> u64 {
    meminfo("MemTotal:")
}

/// Bytes of memory that the programs of the control groups of this process may have.
fn memory_limit() -> u64 {
    let all = memory_of_host();
    groups().map(|group| group.total).min().map_or(all, |limit| limit.min(all))
}

/// Bytes of memory available to a new program: on the host, and in the control groups of this
/// process.
fn memory_available() -> u64 {
    let machine = meminfo("MemAvailable:");
    groups().map(|group| group.available).min().map_or(machine, |group| group.min(machine))
}

/// The control groups of this process that limit memory.
fn groups() -> impl Iterator<Item = GroupMemory> {
    let text = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let all = memory_groups(&text("/proc/self/cgroup"), &text("/proc/self/mountinfo"));
    all.into_iter().filter_map(|group| group.memory(|path| fs::read_to_string(path).ok()))
}

/// Number of processes that the kernel killed because a control group of this process was out of
/// memory.
pub(crate) fn killed_for_memory() -> u64 {
    let text = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let all = memory_groups(&text("/proc/self/cgroup"), &text("/proc/self/mountinfo"));
    let killed = all.iter().map(|group| group.killed(|path| fs::read_to_string(path).ok()));
    killed.max().unwrap_or(0)
}

fn free_bytes(path: &Path) -> u64 {
    rustix::fs::statvfs(path).map_or(0, |space| space.f_bavail.saturating_mul(space.f_frsize))
}

/// Bytes of one daemon's arena.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ArenaSize {
    /// All of it.
    pub(crate) max: u64,
    /// The part that may always be used, if the rest follows the idle memory of the node.
    pub(crate) min: Option<u64>,
}

/// The arena of one daemon when `daemons` share the host, each with `workers`.
///
/// # Errors
/// There is not enough memory for a useful arena, or the range is empty on this host.
pub(crate) fn memory(
    request: Option<&MemoryRequest>,
    daemons: u16,
    workers: u64,
) -> Result<ArenaSize> {
    let text = match request {
        None => return Ok(ArenaSize { max: memory_auto(daemons, workers)?, min: None }),
        Some(&MemoryRequest::Bytes(max)) => return Ok(ArenaSize { max, min: None }),
        Some(MemoryRequest::Text(text)) => text,
    };
    let refused = |why: String| Failure::at("cannot use --memory", text, why);
    let amount = config::parse::memory(text);
    let amount = amount.ok_or_else(|| refused("it is not an amount of memory".into()))?;
    let bytes = |amount: Amount| match amount {
        Amount::Bytes(bytes) => bytes,
        Amount::Percent(percent) => {
            let each = memory_of_host() / 100 * percent / u64::from(daemons.max(1));
            each / STEP_BYTES * STEP_BYTES
        }
    };
    let (mut max, min) = (bytes(amount.max), amount.min.map(bytes));
    if min.is_some() {
        // The upper end of a range is a limit, and half of the memory, the usual size of /dev/shm,
        // is a natural one.
        let shm = SharedSpace::now();
        let most = shm.size.saturating_sub(margin_bytes(shm.size)) / u64::from(daemons.max(1));
        max = max.min(most / STEP_BYTES * STEP_BYTES);
    }
    if max < MEMORY_BYTES_MIN || min.is_some_and(|min| min > max) {
        return Err(refused(format!(
            "on this host it is {} to {max} bytes per daemon, but a daemon needs at least \
             {MEMORY_BYTES_MIN}",
            min.unwrap_or(max)
        )));
    }
    Ok(ArenaSize { max, min })
}

/// Space in `/dev/shm`, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct SharedSpace {
    size: u64,
    free: u64,
}

impl SharedSpace {
    fn now() -> SharedSpace {
        // One without a limit has a size of 0.
        let space = rustix::fs::statvfs(SHM).ok().filter(|space| space.f_blocks > 0);
        space.map_or(SharedSpace { size: u64::MAX, free: u64::MAX }, |space| SharedSpace {
            size: space.f_blocks.saturating_mul(space.f_frsize),
            free: space.f_bavail.saturating_mul(space.f_frsize),
        })
    }

    /// The part that arenas of `daemons` with `workers` each may take.
    fn for_arenas(self, daemons: u64, workers: u64) -> u64 {
        self.free.saturating_sub(self.kept(daemons, workers))
    }

    /// The part that is for tables.
    const fn kept(self, daemons: u64, workers: u64) -> u64 {
        let tables = daemon_tables_bytes(workers).saturating_mul(daemons);
        tables.saturating_add(HOST_TABLES_BYTES).saturating_add(margin_bytes(self.size))
    }
}

/// Refuses arenas that do not fit into this host: with `size.min`, the part that may always be
/// used.
///
/// # Errors
/// `/dev/shm` has no room for the arenas and tables of `daemons`, or they take more than the memory
/// of the host or of the control group.
pub(crate) fn check_memory(size: ArenaSize, daemons: u16, workers: u64) -> Result<()> {
    let each = size.min.unwrap_or(size.max);
    fits(each, (daemons, workers), SharedSpace::now(), (memory_limit(), memory_of_host()))
}

/// See `check_memory`: with `shared` in `/dev/shm`, and `limit` of `all` of memory.
fn fits(
    each: u64,
    (daemons, workers): (u16, u64),
    shared: SharedSpace,
    (limit, all): (u64, u64),
) -> Result<()> {
    let daemons = u64::from(daemons.max(1));
    let needed = each.saturating_mul(daemons);
    let size = |bytes| human(Some(bytes));
    let in_shm = shared.for_arenas(daemons, workers);
    // Programs need some of the memory, too.
    let in_memory = limit / 4 * 3;
    let (what, most) = match (needed > in_shm, needed > limit) {
        (_, true) if limit < all => {
            (format!("this control group has {} of memory", size(limit)), in_memory.min(in_shm))
        }
        (_, true) => (format!("this host has {} of memory", size(all)), in_memory.min(in_shm)),
        (true, _) => {
            let (free, shared) = (size(shared.free), size(shared.size));
            let text = format!("this host has {free} free of {shared} in {SHM}, for tables, too");
            (text, in_shm.min(in_memory))
        }
        _ => return Ok(()),
    };
    let advice = match most / daemons / STEP_BYTES * STEP_BYTES {
        most if most >= MEMORY_BYTES_MIN => format!("give --memory {}", size_text(most)),
        _ if daemons > 1 && most >= MEMORY_BYTES_MIN => "start fewer daemons".to_owned(),
        _ => {
            let least = MEMORY_BYTES_MIN.saturating_mul(daemons);
            let kept = shared.kept(daemons, workers);
            let text = size_text(MEMORY_BYTES_MIN);
            format!("even --memory {text} needs {}", size(least.saturating_add(kept)))
        }
    };
    let larger = if needed > limit { "" } else { ", or mount /dev/shm larger (--shm-size)" };
    let daemons = plural(daemons, "daemon");
    let needed = format!("{} for {daemons}", size(needed));
    Err(Failure::at("too much memory", needed, format!("{what}: {advice}{larger}")))
}

fn memory_auto(daemons: u16, workers: u64) -> Result<u64> {
    let shared = SharedSpace::now().for_arenas(daemons.max(1).into(), workers) / 4 * 3;
    let all = (memory_available() / 4).min(shared);
    let each = all / u64::from(daemons.max(1)) / STEP_BYTES * STEP_BYTES;
    if each < MEMORY_BYTES_MIN {
        let free = SharedSpace::now().free;
        let why = format!(
            "{} per daemon, but a daemon needs at least {} ({} are free in {SHM}): start fewer \
             daemons, free memory or space in {SHM}, or give --memory",
            human(Some(each)),
            human(Some(MEMORY_BYTES_MIN)),
            human(Some(free)),
        );
        return Err(Failure::at("too little memory", "this host", why));
    }
    Ok(each)
}

/// Bytes of one daemon's SSD file in `dir` when `daemons` share it; 0: none.
pub(crate) fn ssd(dir: &Path, daemons: u16) -> u64 {
    let kind = rustix::fs::statfs(dir).map_or(0, |found| found.f_type.cast_unsigned());
    if NO_LOCAL_DISK.contains(&(kind & 0xffff_ffff)) {
        return 0;
    }
    ssd_within(free_bytes(dir), workers(daemons), daemons.max(1).into())
}

/// See `ssd`: of `free` bytes, without those that the logs of `workers` of each daemon need.
fn ssd_within(free: u64, workers: u64, daemons: u64) -> u64 {
    let free = free.saturating_sub(LOG_BYTES * workers * daemons);
    let each = free / 5 * 4 / daemons;
    let each = each.min(SSD_BYTES_MAX) / STEP_BYTES * STEP_BYTES;
    if each < MEMORY_BYTES_MIN { 0 } else { each }
}

/// Refuses SSD files of `each` bytes for `daemons` that `dir` has no space for. They take it when
/// data is first demoted, which would be too late to report it.
///
/// # Errors
/// The free space is too small.
pub(crate) fn check_ssd(dir: &Path, each: u64, daemons: u16) -> Result<()> {
    let free = rustix::fs::statvfs(dir);
    let free = free.map_or(u64::MAX, |space| space.f_bavail.saturating_mul(space.f_frsize));
    let needed = each.saturating_mul(u64::from(daemons.max(1)));
    if needed <= free {
        return Ok(());
    }
    let size = |bytes| human(Some(bytes));
    let what = format!("{} for {}", size(needed), plural(daemons.into(), "daemon"));
    let why = format!(
        "{} has {} free: give a smaller --ssd, or another --dir",
        dir.display(),
        size(free)
    );
    Err(Failure::at("too little space for the SSD tier", what, why))
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
    fn arenas_that_do_not_fit_are_refused_with_the_way_out() {
        let fits = |each: u64, daemons, (free, size): (u64, u64), limit: u64, all: u64| {
            let shared = SharedSpace { size: size * MIB, free: free * MIB };
            fits(each * MIB, (daemons, 1), shared, (limit * MIB, all * MIB))
                .map_err(|failure| failure.text().to_owned())
        };
        // 9 MiB of tables of the host, 2 of each daemon, and a margin of 4 or 16.
        assert_eq!(fits(48, 1, (64, 64), 1000, 1000), Ok(()));
        assert_eq!(fits(16, 4, (100, 100), 1000, 1000), Ok(()));
        let text = fits(1024, 1, (64, 64), 8192, 8192).expect_err("/dev/shm of a container");
        let expected = "too much memory: 1.0 GiB for 1 daemon: this host has 64 MiB free of 64 MiB in \
                        /dev/shm, for tables, too: give --memory 48MiB, or mount /dev/shm larger \
                        (--shm-size)";
        assert_eq!(text, expected);
        let text = fits(100, 1, (90, 1024), 8192, 8192).expect_err("filled by others");
        assert!(
            text.contains("90 MiB free of 1.0 GiB") && text.contains("--memory 60MiB"),
            "{text}"
        );
        let text = fits(16, 1, (20, 1000), 8192, 8192).expect_err("filled by others");
        assert!(text.contains("even --memory 16MiB needs 43 MiB, or mount"), "{text}");
        let text = fits(100, 4, (1000, 1000), 200, 200).expect_err("a small host");
        let expected =
            "400 MiB for 4 daemons: this host has 200 MiB of memory: give --memory 36MiB";
        assert!(text.ends_with(expected), "{text}");
        let text = fits(1024, 1, (8192, 8192), 400, 8192).expect_err("a small job");
        let expected =
            "1.0 GiB for 1 daemon: this control group has 400 MiB of memory: give --memory 300MiB";
        assert!(text.ends_with(expected), "{text}");
        let text = fits(16, 8, (64, 64), 1000, 1000).expect_err("too many");
        assert!(text.contains("start fewer daemons"), "{text}");
        let size = |max| ArenaSize { max, min: None };
        assert!(check_memory(size(u64::MAX), 2, 1).is_err());
    }

    #[test]
    fn an_automatic_ssd_leaves_the_space_of_the_logs() {
        let logs = LOG_BYTES * 2 * 3;
        assert_eq!(ssd_within(logs, 2, 3), 0, "the logs need all");
        assert_eq!(ssd_within(logs / 2, 2, 3), 0, "the logs need more");
        let step = STEP_BYTES * 100;
        assert_eq!(ssd_within(logs + step * 3 / 4 * 5, 2, 3), step, "four fifths of the rest");
        // A full device takes the SSD files and the logs.
        for free in [1 << 30, 10 << 30, 1 << 40] {
            let each = ssd_within(free, 2, 3);
            assert!(each * 3 + logs <= free || each == 0, "{free}: {each}");
        }
    }

    #[test]
    fn automatic_sizes_are_multiples_of_a_step_and_divide_among_daemons() {
        let bytes = |request: Option<&str>, daemons| {
            let request = request.map(|text| MemoryRequest::Text(text.to_owned()));
            memory(request.as_ref(), daemons, 1)
        };
        let max = |daemons| bytes(None, daemons).expect("memory").max;
        let (one, four) = (max(1), max(4));
        assert!(four <= one / 4 + STEP_BYTES && one % STEP_BYTES == 0 && four % STEP_BYTES == 0);
        assert!(bytes(None, u16::MAX).is_err_and(|failure| failure.text().contains("--memory")));
        let all = memory_of_host();
        let half = bytes(Some("50%"), 2).expect("memory");
        assert!(half.min.is_none() && half.max <= all / 4 && half.max > all / 5);
        let range = bytes(Some("32MiB..50%"), 2).expect("memory");
        assert_eq!(range, ArenaSize { min: Some(32 << 20), ..half });
        assert!(bytes(Some("900TiB..1%"), 1).is_err() && bytes(Some("1%"), u16::MAX).is_err());
        assert_eq!(ssd(Path::new("/dev/shm"), 1), 0);
        assert_eq!(ssd(Path::new("/nowhere"), 1), 0);
        let tmp = Path::new("/tmp");
        assert!(check_ssd(tmp, ssd(tmp, 2), 2).is_ok() && check_ssd(tmp, 0, 4).is_ok());
        let text = check_ssd(tmp, 1 << 60, 2).expect_err("too large").text().to_owned();
        assert!(text.contains("for 2 daemons: /tmp has "), "{text}");
        assert!((1..=WORKERS_MAX).contains(&workers(1)));
        assert_eq!(workers(10_000), 1);
    }
}

//! The speed of the target, measured once while the daemon starts: for pools to which nobody gives a
//! `max_perf`. It is that of the device of the SSD file, where what stays goes, by a file without a name
//! beside it; without an SSD that of a copy in memory.
//!
//! Short and bounded. The best of several parts counts, because others may use the processor or the
//! device at the same time.

use rustix::fs::{Mode, OFlags};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

/// Length of a part.
const PART_BYTES: usize = 1 << 20;
/// It is moved in blocks of this length. Once a block of 128 KiB or more was freed, glibc keeps what is
/// freed later up to that length (`M_MMAP_THRESHOLD` in mallopt(3)): after a block of a whole part, that
/// would be each list of a daemon.
const BLOCK_BYTES: usize = 64 << 10;
const _: () = assert!(PART_BYTES.is_multiple_of(BLOCK_BYTES));
/// Most parts.
const PARTS_MAX: usize = 16;
/// No part begins after this time.
const TIME: Duration = Duration::from_millis(200);
/// A device with less free space is not measured: its space is for files.
const FREE_BYTES_MIN: u64 = 1 << 30;

/// Bytes per second; 0: not known.
pub(crate) fn bytes_per_second(directory: &Path, has_ssd: bool) -> u64 {
    let measured = if has_ssd { of_device(directory) } else { of_memory() };
    measured.unwrap_or(0)
}

/// Moves parts, each by its number; the speed of the best. `None`: one failed.
fn best(mut part: impl FnMut(usize) -> Option<()>) -> Option<u64> {
    let (begun, mut least) = (Instant::now(), Duration::MAX);
    for number in 0..PARTS_MAX {
        if number > 0 && begun.elapsed() >= TIME {
            break;
        }
        let since = Instant::now();
        part(number)?;
        least = least.min(since.elapsed());
    }
    let nanos = least.as_nanos().max(1);
    u64::try_from(PART_BYTES as u128 * 1_000_000_000 / nanos).ok()
}

fn of_device(directory: &Path) -> Option<u64> {
    let space = rustix::fs::statvfs(directory).ok()?;
    if space.f_bavail.saturating_mul(space.f_frsize) < FREE_BYTES_MIN {
        return None;
    }
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let file = rustix::fs::open(directory, flags, Mode::RUSR | Mode::WUSR).ok()?;
    let file = std::fs::File::from(file);
    // No device compresses it away.
    let bytes = blocks(|at| ((at as u32).wrapping_mul(0x9e37_79b9) >> 24) as u8);
    best(|number| {
        for (block, bytes) in bytes.iter().enumerate() {
            let at = number * PART_BYTES + block * BLOCK_BYTES;
            file.write_all_at(bytes, at as u64).ok()?;
        }
        file.sync_data().ok()
    })
}

fn of_memory() -> Option<u64> {
    let (from, mut to) = (blocks(|_| 1), blocks(|_| 0));
    best(|number| {
        for (to, from) in to.iter_mut().zip(std::hint::black_box(&from)) {
            to.copy_from_slice(from);
        }
        (to.get(number)?.last().copied() == Some(1)).then_some(())
    })
}

/// A part whose bytes follow from their places.
fn blocks(byte: impl Fn(usize) -> u8) -> Vec<Vec<u8>> {
    let block = |number: usize| {
        let first = number * BLOCK_BYTES;
        (first..first + BLOCK_BYTES).map(&byte).collect()
    };
    (0..PART_BYTES / BLOCK_BYTES).map(block).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_part_counts_and_a_failed_one_ends_the_measurement() {
        assert!(of_memory() > Some(0));
        let directory = tempfile::tempdir().expect("a directory");
        let _ = bytes_per_second(directory.path(), true);
        let left = std::fs::read_dir(directory.path()).expect("a listing").count();
        assert_eq!(left, 0, "a file is left");
        assert_eq!(bytes_per_second(&directory.path().join("absent"), true), 0);
        let mut parts = 0;
        let failed = best(|number| {
            parts += 1;
            (number < 2).then_some(())
        });
        assert_eq!((failed, parts), (None, 3));
        let bytes = blocks(|at| (at / 4096) as u8).concat();
        assert_eq!((bytes.len(), bytes[PART_BYTES - 1]), (PART_BYTES, 255));
    }
}

//! Evicts clean data: memory and SSD drop files that the backing directory has, and programs read
//! them from there again. Data that is nowhere else stays and is counted.

use super::prefetch::for_each_file;
use super::summary::{Summary, count};
use backing::prefetch::{prefetch_bytes_left, set_prefetch};
use std::io::ErrorKind::WouldBlock;
use std::io::Result;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// If nothing more of a file has been evicted for this long, the rest stays.
const STALL_TIME: Duration = Duration::from_secs(10);
/// First pause before the request for a file is repeated.
const PAUSE: Duration = Duration::from_micros(100);
/// Longest pause before the request is repeated.
const PAUSE_MAX: Duration = Duration::from_millis(50);

/// Evicts all files at or under `paths`.
pub(crate) fn run(paths: &[PathBuf]) -> Summary {
    let summary = Summary::new("evict", "evicted");
    for path in paths {
        let act = &mut |path: &Path, size| evict(path, size, &summary);
        for_each_file(path, &summary, "cannot be evicted", act);
    }
    summary
}

fn evict(path: &Path, size: u64, summary: &Summary) -> Result<()> {
    let before = prefetch_bytes_left(path)?;
    let (mut evicted, mut last_progress, mut pause) = (before, Instant::now(), PAUSE);
    loop {
        match set_prefetch(path, "evict") {
            Err(error) if error.kind() == WouldBlock && last_progress.elapsed() < STALL_TIME => {}
            Err(error) if error.kind() != WouldBlock => return Err(error),
            _ => break,
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(PAUSE_MAX);
        let now = prefetch_bytes_left(path)?;
        if now > evicted {
            (evicted, last_progress, pause) = (now, Instant::now(), PAUSE);
        }
        summary.tick();
    }
    let after = prefetch_bytes_left(path)?;
    if after > before {
        count(&summary.files);
        summary.bytes.fetch_add(after - before, Relaxed);
    }
    if size > after {
        count(&summary.files_retained);
        summary.bytes_retained.fetch_add(size - after, Relaxed);
    }
    Ok(())
}

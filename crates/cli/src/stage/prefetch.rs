//! Prefetch of files that are in the instance or its backing directory: its daemons fetch the data.
//! This process only announces each file, through the extended attribute that any program can set.

use super::summary::{Summary, count};
use backing::prefetch::{prefetch_bytes_left, set_prefetch};
use std::collections::VecDeque;
use std::fs;
use std::io::ErrorKind::WouldBlock;
use std::io::Result;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// If no data has arrived for this long, none will.
const STALL_TIME: Duration = Duration::from_secs(60);
/// First pause between polls of the pending files.
const PAUSE: Duration = Duration::from_millis(5);
/// Longest pause between polls.
const PAUSE_MAX: Duration = Duration::from_millis(200);
/// Files that are polled at a time.
const POLLS_MAX: usize = 64;
const FAILED: &str = "cannot be prefetched";

/// How files are prefetched.
#[derive(Debug)]
pub(crate) struct PrefetchOptions {
    /// `memory` or `ssd`.
    pub(crate) tier: String,
    /// The files are read in the order given, this many at a time; `None`: in any order.
    pub(crate) order: Option<u32>,
    /// Waits until all data has arrived.
    pub(crate) waits: bool,
}

/// A file that is being prefetched.
struct PendingFile {
    path: PathBuf,
    left: u64,
}

struct Prefetcher<'a> {
    options: &'a PrefetchOptions,
    summary: &'a Summary,
    /// Number of the list.
    list: u64,
    /// Number of files announced.
    index: u64,
    pending: VecDeque<PendingFile>,
}

/// Prefetches all files at or under `paths`.
pub(crate) fn run(paths: &[PathBuf], options: &PrefetchOptions) -> Summary {
    let summary = Summary::new("stage", if options.waits { "prefetched" } else { "prefetching" });
    let list = new_list_number();
    let pending = VecDeque::new();
    let mut prefetcher = Prefetcher { options, summary: &summary, list, index: 0, pending };
    for path in paths {
        for_each_file(path, &summary, FAILED, &mut |path, _| prefetcher.announce(path.to_owned()));
    }
    if options.waits {
        prefetcher.wait();
    }
    summary
}

/// Calls `act` with each regular file at or under `top` and its size, in the order of names.
/// Symbolic links are not followed, except `top` itself. Failures are counted and reported with the
/// words `failed`.
pub(super) fn for_each_file(
    top: &Path,
    summary: &Summary,
    failed: &str,
    act: &mut dyn FnMut(&Path, u64) -> Result<()>,
) {
    let mut left = vec![top.to_owned()];
    while let Some(path) = left.pop() {
        let is_top = path == top;
        let found = if is_top { fs::metadata(&path) } else { fs::symlink_metadata(&path) };
        let done = found.and_then(|found| {
            if found.is_dir() {
                count(&summary.dirs);
                let mut entries: Vec<PathBuf> = fs::read_dir(&path)?
                    .map(|entry| entry.map(|entry| entry.path()))
                    .collect::<Result<_>>()?;
                entries.sort_unstable_by(|one, other| other.cmp(one));
                left.append(&mut entries);
            } else if found.is_file() {
                act(&path, found.len())?;
            }
            Ok(())
        });
        if let Err(error) = done {
            summary.fail(&path, format!("{failed}: {error}"));
        }
        summary.tick();
    }
}

/// A number that no other prefetch list has.
pub(crate) fn new_list_number() -> u64 {
    let since = std::time::UNIX_EPOCH.elapsed().unwrap_or_default();
    let process = u64::from(std::process::id());
    ((since.as_nanos() as u64) ^ process.rotate_left(40)).max(1)
}

impl Prefetcher<'_> {
    /// The value of the attribute for the next file.
    fn request(&self) -> String {
        match self.options.order {
            Some(batch) => format!("{} {} {} {batch}", self.options.tier, self.list, self.index),
            None => self.options.tier.clone(),
        }
    }

    /// Announces one file.
    fn announce(&mut self, path: PathBuf) -> Result<()> {
        let request = self.request();
        let before = prefetch_bytes_left(&path)?;
        let since = Instant::now();
        loop {
            match set_prefetch(&path, &request) {
                // The prefetch queue is full.
                Err(error) if error.kind() == WouldBlock && since.elapsed() < STALL_TIME => {
                    std::thread::sleep(PAUSE_MAX);
                    self.summary.tick();
                }
                done => break done?,
            }
        }
        self.index += 1;
        // Data on the SSD counts as missing in memory only since the request.
        let left = before.max(prefetch_bytes_left(&path)?);
        if left == 0 {
            count(&self.summary.skipped);
        } else if self.options.waits {
            count(&self.summary.found);
            count(&self.summary.begun);
            self.summary.bytes_begun.fetch_add(left, Relaxed);
            self.pending.push_back(PendingFile { path, left });
        } else {
            count(&self.summary.files);
            self.summary.bytes.fetch_add(left, Relaxed);
        }
        Ok(())
    }

    /// Waits until all data has arrived, or no more arrives.
    fn wait(&mut self) {
        self.summary.is_all_found.store(true, Relaxed);
        let mut last_progress = Instant::now();
        let mut pause = PAUSE;
        while !self.pending.is_empty() {
            let mut has_progressed = false;
            for _ in 0..self.pending.len().min(POLLS_MAX) {
                let Some(mut file) = self.pending.pop_front() else { break };
                match prefetch_bytes_left(&file.path) {
                    Ok(left) => {
                        has_progressed |= left < file.left || left == 0;
                        self.summary.bytes.fetch_add(file.left.saturating_sub(left), Relaxed);
                        file.left = left;
                        if left == 0 {
                            count(&self.summary.files);
                        } else {
                            self.pending.push_back(file);
                        }
                    }
                    Err(error) => {
                        has_progressed = true;
                        self.summary.fail(&file.path, format!("{FAILED}: {error}"));
                    }
                }
            }
            self.summary.tick();
            if has_progressed {
                (last_progress, pause) = (Instant::now(), PAUSE);
                continue;
            }
            if last_progress.elapsed() > STALL_TIME {
                let why = format!("{FAILED}: no data arrived for {} s", STALL_TIME.as_secs());
                self.pending.drain(..).for_each(|file| self.summary.fail(&file.path, &why));
                return;
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(PAUSE_MAX);
            if pause == PAUSE_MAX {
                self.announce_again();
            }
        }
    }

    /// Announces pending files again, because a daemon that was restarted has forgotten them.
    fn announce_again(&mut self) {
        for _ in 0..self.pending.len().min(POLLS_MAX) {
            let Some(file) = self.pending.pop_front() else { break };
            match set_prefetch(&file.path, &self.options.tier) {
                Err(error) if error.kind() != WouldBlock => {
                    self.summary.fail(&file.path, format!("{FAILED}: {error}"));
                }
                _ => self.pending.push_back(file),
            }
        }
    }
}

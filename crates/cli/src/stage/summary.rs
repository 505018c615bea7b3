//! The counts of a run, its failures, and the progress line.

use crate::commands::{human, plural};
use crate::process::progress::Progress;
use config::printable::printable;
use config::printable::without_os_error;
use serde_json::{Value, json};
use std::fmt::Display;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// Failures that `--json` lists; all are counted.
const FAILURES_LISTED_MAX: usize = 1000;
/// A rate is shown only for runs of at least this many seconds.
const RATE_SECONDS_MIN: f64 = 0.1;

/// The counts of one run.
pub(crate) struct Summary {
    /// The command, for messages.
    command: &'static str,
    /// Verb for the files: `staged in`, `staged out`, `prefetched`, ..
    what: &'static str,
    since: Instant,
    progress: Mutex<Progress>,
    failures: Mutex<Vec<Value>>,
    /// Regular files, hard links, symbolic links and special files that are done.
    pub(super) files: AtomicU64,
    /// Directories.
    pub(super) dirs: AtomicU64,
    /// Bytes of files without holes.
    pub(super) bytes: AtomicU64,
    /// Files that were already there.
    pub(super) skipped: AtomicU64,
    /// Files of which the target does not accept all attributes.
    pub(super) without_attributes: AtomicU64,
    /// Files that were not, or not completely, evicted.
    pub(super) files_retained: AtomicU64,
    /// Bytes that were not evicted.
    pub(super) bytes_retained: AtomicU64,
    failed: AtomicU64,
    /// Names found so far, and those of them that are begun.
    pub(super) found: AtomicU64,
    pub(super) begun: AtomicU64,
    /// Bytes of the files that are begun.
    pub(super) bytes_begun: AtomicU64,
    /// True when no more names will be found.
    pub(super) is_all_found: AtomicBool,
}

/// Increments a counter.
pub(super) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// The share of `all` bytes that is done after `seconds`, and the time that the rest takes.
fn left_of(done: u64, all: u64, seconds: f64) -> String {
    let share = done as f64 / all as f64;
    let mut line = format!("; {:.0} % of {}", (share * 100.0).floor(), human(Some(all)));
    if done > 0 && seconds >= RATE_SECONDS_MIN {
        line += &format!(", {:.0} s left", (seconds / share - seconds).ceil());
    }
    line
}

impl Summary {
    pub(super) fn new(command: &'static str, what: &'static str) -> Summary {
        let zero = || AtomicU64::new(0);
        Summary {
            command,
            what,
            since: Instant::now(),
            progress: Mutex::new(Progress::new("")),
            failures: Mutex::new(Vec::new()),
            files: zero(),
            dirs: zero(),
            bytes: zero(),
            skipped: zero(),
            without_attributes: zero(),
            files_retained: zero(),
            bytes_retained: zero(),
            failed: zero(),
            found: zero(),
            begun: zero(),
            bytes_begun: zero(),
            is_all_found: AtomicBool::new(false),
        }
    }

    /// Counts a failure and prints it at once.
    pub(super) fn fail(&self, path: &Path, why: impl Display) {
        count(&self.failed);
        let why = without_os_error(&why.to_string());
        let mut progress = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
        progress.hide();
        errln!("forebay {}: {} {why}", self.command, printable(&path.to_string_lossy()));
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        if failures.len() < FAILURES_LISTED_MAX {
            failures.push(json!({ "path": path.to_string_lossy(), "why": why }));
        }
    }

    /// Updates the progress line.
    pub(super) fn tick(&self) {
        let mut line = self.line();
        line += &self.left();
        self.progress.lock().unwrap_or_else(PoisonError::into_inner).show(line);
    }

    /// The rest of the work, as far as it is known. The names are known when all are found, which happens
    /// while the last of them are copied, and the bytes when all are begun.
    fn left(&self) -> String {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        if !self.is_all_found.load(Ordering::Relaxed) {
            return String::new();
        }
        let names = get(&self.found);
        let (done, all) = (get(&self.bytes), get(&self.bytes_begun));
        if get(&self.begun) < names || done >= all {
            return format!("; {} in all", plural(names, "file"));
        }
        left_of(done, all, self.since.elapsed().as_secs_f64())
    }

    fn line(&self) -> String {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let (files, bytes) = (get(&self.files), get(&self.bytes));
        let seconds = self.since.elapsed().as_secs_f64();
        let mut line = format!("{} {}", self.what, plural(files, "file"));
        if bytes > 0 {
            line += &format!(", {} in {seconds:.1} s", human(Some(bytes)));
        }
        if bytes > 0 && seconds >= RATE_SECONDS_MIN {
            line += &format!(" ({}/s)", human(Some((bytes as f64 / seconds) as u64)));
        }
        for (count, text) in [
            (get(&self.skipped), "already there"),
            (get(&self.failed), "failed"),
            (get(&self.without_attributes), "without some extended attributes"),
        ] {
            if count > 0 {
                line += &format!("; {count} {text}");
            }
        }
        if get(&self.files_retained) > 0 {
            let bytes = human(Some(get(&self.bytes_retained)));
            let files = plural(get(&self.files_retained), "file");
            line += &format!("; {bytes} of {files} retained: not written back, pinned, or in use");
        }
        line
    }

    /// Prints the final counts. True if nothing failed.
    pub(crate) fn end(&self, is_json: bool) -> bool {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner).hide();
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let failed = get(&self.failed);
        if is_json {
            let failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
            let counts = json!({
                "files": get(&self.files),
                "directories": get(&self.dirs),
                "bytes": get(&self.bytes),
                "skipped": get(&self.skipped),
                "without_attributes": get(&self.without_attributes),
                "files_retained": get(&self.files_retained),
                "bytes_retained": get(&self.bytes_retained),
                "failed": failed,
                "failures": *failures,
                "seconds": self.since.elapsed().as_secs_f64(),
            });
            outln!("{counts}");
        } else {
            outln!("{}", self.line());
        }
        failed == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_and_the_time_left_follow_from_the_bytes() {
        assert_eq!(left_of(0, 1 << 30, 1.0), "; 0 % of 1.0 GiB");
        assert_eq!(left_of(256 << 20, 1 << 30, 2.0), "; 25 % of 1.0 GiB, 6 s left");
    }

    #[test]
    fn the_total_is_shown_when_it_is_known() {
        let summary = Summary::new("stage", "staged in");
        summary.found.store(3, Ordering::Relaxed);
        assert_eq!(summary.left(), "");
        summary.is_all_found.store(true, Ordering::Relaxed);
        assert_eq!(summary.left(), "; 3 files in all");
        summary.begun.store(3, Ordering::Relaxed);
        summary.bytes_begun.store(1 << 20, Ordering::Relaxed);
        assert_eq!(summary.left(), "; 0 % of 1.0 MiB");
    }
}

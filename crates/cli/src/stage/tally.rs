//! What was staged, what was not, and the line that says so meanwhile.

use crate::commands::human;
use crate::progress::Progress;
use serde_json::{Value, json};
use std::fmt::Display;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// Failures that `--json` names; all are counted.
const NAMED_MAX: usize = 1000;

/// Counts, all of this run.
pub(crate) struct Tally {
    /// `staged in` or `staged out`.
    what: &'static str,
    begun: Instant,
    progress: Mutex<Progress>,
    named: Mutex<Vec<Value>>,
    /// Regular files, further names of them, links and the rest, which are there now.
    pub(super) files: AtomicU64,
    /// Directories.
    pub(super) folders: AtomicU64,
    /// Bytes of files, holes left out.
    pub(super) bytes: AtomicU64,
    /// What was there already.
    pub(super) skipped: AtomicU64,
    /// Files of which the other side does not take all attributes.
    pub(super) bare: AtomicU64,
    /// What is not given up: files, and their bytes.
    pub(super) kept: AtomicU64,
    /// See `kept`.
    pub(super) kept_bytes: AtomicU64,
    failed: AtomicU64,
}

/// One more.
pub(super) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl Tally {
    pub(super) fn new(what: &'static str) -> Tally {
        let zero = || AtomicU64::new(0);
        Tally {
            what,
            begun: Instant::now(),
            progress: Mutex::new(Progress::new("")),
            named: Mutex::new(Vec::new()),
            files: zero(),
            folders: zero(),
            bytes: zero(),
            skipped: zero(),
            bare: zero(),
            kept: zero(),
            kept_bytes: zero(),
            failed: zero(),
        }
    }

    /// A file that is not staged, and why; said at once.
    pub(super) fn fail(&self, path: &Path, why: impl Display) {
        count(&self.failed);
        let mut progress = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
        progress.hide();
        eprintln!("forebay stage: {} {why}", path.display());
        let mut named = self.named.lock().unwrap_or_else(PoisonError::into_inner);
        if named.len() < NAMED_MAX {
            named.push(json!({ "path": path.to_string_lossy(), "why": why.to_string() }));
        }
    }

    /// Says how far it is.
    pub(super) fn tick(&self) {
        let line = self.line();
        self.progress.lock().unwrap_or_else(PoisonError::into_inner).show(line);
    }

    fn line(&self) -> String {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let (files, bytes) = (get(&self.files), get(&self.bytes));
        let seconds = self.begun.elapsed().as_secs_f64();
        let speed = human(Some((bytes as f64 / seconds.max(0.001)) as u64));
        let mut line = format!(
            "{} {files} files, {} in {seconds:.1} s ({speed}/s)",
            self.what,
            human(Some(bytes))
        );
        for (count, text) in [
            (get(&self.skipped), "were there already"),
            (get(&self.failed), "failed"),
            (get(&self.bare), "without some extended attributes"),
        ] {
            if count > 0 {
                line = format!("{line}; {count} {text}");
            }
        }
        if get(&self.kept) > 0 {
            let bytes = human(Some(get(&self.kept_bytes)));
            let why = "made or changed here, pinned, or in use";
            line = format!("{line}; {bytes} of {} files stay: {why}", get(&self.kept));
        }
        line
    }

    /// Says the end. True if all is staged.
    pub(crate) fn end(&self, is_json: bool) -> bool {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner).hide();
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let failed = get(&self.failed);
        if is_json {
            let named = self.named.lock().unwrap_or_else(PoisonError::into_inner);
            let told = json!({
                "files": get(&self.files),
                "directories": get(&self.folders),
                "bytes": get(&self.bytes),
                "skipped": get(&self.skipped),
                "without_attributes": get(&self.bare),
                "kept_files": get(&self.kept),
                "kept_bytes": get(&self.kept_bytes),
                "failed": failed,
                "failures": *named,
                "seconds": self.begun.elapsed().as_secs_f64(),
            });
            outln!("{told}");
        } else {
            outln!("{}", self.line());
        }
        failed == 0
    }
}

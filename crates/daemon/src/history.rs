//! What is noted of the files that are read, for the history of a job: lines of `below::history` in a
//! file of this daemon's, as each file is first read. Whoever ends the instance makes a history of
//! them.

use crate::shared::Shared;
use crate::target::TargetLoop;
use ::below::history::{BYTES_MAX, note};
use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;
use std::time::UNIX_EPOCH;
use wire::Inode;

/// A file was read, and its line is not written: it is not known where it lies.
struct Unwritten {
    inode: Inode,
    millis: u64,
    /// Its shard was asked for the sake of this.
    was_asked: bool,
}

/// See the module.
pub(crate) struct History {
    file: File,
    /// Bytes that may still be written.
    left: usize,
    unwritten: VecDeque<Unwritten>,
}

impl History {
    /// Goes on behind what an earlier daemon of this number noted.
    ///
    /// # Errors
    /// What the operating system says.
    pub(crate) fn open(path: &Path) -> std::io::Result<History> {
        let mut options = OpenOptions::new();
        let file = options.append(true).create(true).mode(0o600).open(path)?;
        let there = file.metadata()?.len();
        let left = BYTES_MAX.saturating_sub(usize::try_from(there).unwrap_or(BYTES_MAX));
        let mut history = History { file, left, unwritten: VecDeque::new() };
        if there > 0 {
            // The last line may have broken off.
            history.write("\n")?;
        }
        Ok(history)
    }

    fn write(&mut self, text: &str) -> std::io::Result<()> {
        if text.len() <= self.left {
            self.file.write_all(text.as_bytes())?;
            self.left -= text.len();
        }
        Ok(())
    }
}

impl TargetLoop {
    /// Notes the files that were first read just now.
    pub(crate) fn note_uses(&mut self, shared: &Shared) {
        let Some(mut history) = self.history.take() else { return };
        let fresh = self.target.take_uses();
        if !fresh.is_empty() {
            let now = UNIX_EPOCH.elapsed().unwrap_or_default().as_millis();
            let millis = u64::try_from(now).unwrap_or(u64::MAX);
            let fresh = fresh.into_iter();
            history.unwritten.extend(fresh.map(|inode| Unwritten {
                inode,
                millis,
                was_asked: false,
            }));
        }
        let guessed = self.target.guessed();
        let figures = &shared.history;
        figures.named.store(guessed.named, Relaxed);
        figures.right.store(guessed.right, Relaxed);
        figures.wrong.store(guessed.wrong, Relaxed);
        figures.given_up.store(guessed.is_given_up.into(), Relaxed);
        let mut lines = String::new();
        for _ in 0..history.unwritten.len() {
            let Some(mut one) = history.unwritten.pop_front() else { break };
            if let Some(path) = self.path_below(one.inode) {
                lines.push_str(&note(one.millis, path));
                figures.noted.fetch_add(1, Relaxed);
            } else if self.is_asked(one.inode) {
                history.unwritten.push_back(one);
            } else if !one.was_asked {
                one.was_asked = true;
                self.ask_place(shared, one.inode);
                history.unwritten.push_back(one);
            }
        }
        match history.write(&lines) {
            Ok(()) => self.history = Some(history),
            Err(error) => tracing::warn!(%error, "what is read is not noted any more"),
        }
    }
}

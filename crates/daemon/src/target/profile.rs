//! Records the access profile of a job: when a file is first read, a line of `backing::profile` is
//! appended to a file of this daemon. The profile is assembled from these files when the instance
//! ends.

use crate::backing::BackingLocations;
use crate::shared::Shared;
use ::backing::profile::{BYTES_MAX, note};
use data::Target;
use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;
use std::time::UNIX_EPOCH;
use wire::Inode;

/// A file that was read and whose line is not written, because its backing path is not known.
struct Unwritten {
    inode: Inode,
    millis: u64,
    /// Its shard was queried for this purpose.
    was_queried: bool,
}

/// The recording daemon's file.
pub(crate) struct ProfileRecorder {
    file: File,
    /// Bytes that may still be written.
    left: usize,
    unwritten: VecDeque<Unwritten>,
}

impl ProfileRecorder {
    /// Appends to the file of an earlier daemon with the same index.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub(crate) fn open(path: &Path) -> std::io::Result<ProfileRecorder> {
        let mut options = OpenOptions::new();
        let file = options.append(true).create(true).mode(0o600).open(path)?;
        let there = file.metadata()?.len();
        let left = BYTES_MAX.saturating_sub(usize::try_from(there).unwrap_or(BYTES_MAX));
        let mut profile = ProfileRecorder { file, left, unwritten: VecDeque::new() };
        if there > 0 {
            // The last line may be incomplete.
            profile.write("\n")?;
        }
        Ok(profile)
    }

    fn write(&mut self, text: &str) -> std::io::Result<()> {
        if text.len() <= self.left {
            self.file.write_all(text.as_bytes())?;
            self.left -= text.len();
        }
        Ok(())
    }

    /// Records files that have just been read for the first time.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub(crate) fn note_uses(
        &mut self,
        shared: &Shared,
        target: &mut Target,
        locations: &mut BackingLocations,
    ) -> std::io::Result<()> {
        let new_files = target.take_accessed_files();
        if !new_files.is_empty() {
            let now = UNIX_EPOCH.elapsed().unwrap_or_default().as_millis();
            let millis = u64::try_from(now).unwrap_or(u64::MAX);
            let new_files = new_files.into_iter();
            self.unwritten.extend(new_files.map(|inode| Unwritten {
                inode,
                millis,
                was_queried: false,
            }));
        }
        let profile_counts = target.profile_counts();
        let metrics = &shared.metrics.daemon;
        metrics.profile_listed.store(profile_counts.listed, Relaxed);
        metrics.profile_hits.store(profile_counts.hits, Relaxed);
        metrics.profile_misses.store(profile_counts.misses, Relaxed);
        metrics.profile_abandoned.store(profile_counts.is_abandoned.into(), Relaxed);
        let mut lines = String::new();
        for _ in 0..self.unwritten.len() {
            let Some(mut one) = self.unwritten.pop_front() else { break };
            if let Some(path) = locations.known_path(one.inode) {
                lines.push_str(&note(one.millis, path));
                metrics.profile_recorded.fetch_add(1, Relaxed);
            } else if locations.is_queried(one.inode) {
                self.unwritten.push_back(one);
            } else if !one.was_queried {
                one.was_queried = true;
                locations.query_location(shared, one.inode);
                self.unwritten.push_back(one);
            }
        }
        self.write(&lines)
    }
}

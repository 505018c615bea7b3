//! Times of a mount's last local operations in the last few directories. The kernel asks for a
//! directory's attributes after each operation, and pending operations are not in the index yet.
//! The index plus the time of the own last operation make waiting for the shard unnecessary.
//!
//! Preloaded programs rarely ask, so only mounts use this.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicI64, AtomicU64};
use wire::Inode;

const ENTRIES: usize = 64;

/// One directory. `is_taken` is a spin lock held for a few loads and stores.
struct RecentDirectory {
    is_taken: AtomicBool,
    directory: AtomicU64,
    at: AtomicI64,
}

/// The last few directories.
pub(crate) struct RecentDirectories {
    entries: [RecentDirectory; ENTRIES],
}

impl RecentDirectories {
    pub(crate) const fn new() -> RecentDirectories {
        RecentDirectories {
            entries: [const {
                RecentDirectory {
                    is_taken: AtomicBool::new(false),
                    directory: AtomicU64::new(0),
                    at: AtomicI64::new(0),
                }
            }; ENTRIES],
        }
    }

    fn with<R>(&self, directory: Inode, with: impl FnOnce(&RecentDirectory) -> R) -> Option<R> {
        let entry = self.entries.get(wire::hash::mix(directory.0, 3) as usize % ENTRIES)?;
        while entry.is_taken.swap(true, Acquire) {
            core::hint::spin_loop();
        }
        let result = with(entry);
        entry.is_taken.store(false, Release);
        Some(result)
    }

    /// Records a local operation of mount `mount` in a directory at `at`, nanoseconds since 1970.
    #[inline(always)]
    pub(crate) fn note(&self, mount: u8, directory: Inode, at: i64) {
        if mount != 0 {
            self.note_at(directory, at);
        }
    }

    #[cold]
    fn note_at(&self, directory: Inode, at: i64) {
        self.with(directory, |entry| {
            let is_same = entry.directory.swap(directory.0, Relaxed) == directory.0;
            entry.at.store(if is_same { at.max(entry.at.load(Relaxed)) } else { at }, Relaxed);
        });
    }

    /// Time of the last operation, if it is known.
    pub(crate) fn last(&self, directory: Inode) -> Option<i64> {
        self.with(directory, |entry| {
            (entry.directory.load(Relaxed) == directory.0).then(|| entry.at.load(Relaxed))
        })?
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_time_of_a_directory_is_known_until_its_entry_is_reused() {
        let recent = RecentDirectories::new();
        recent.note(0, Inode(5), 10);
        assert_eq!(recent.last(Inode(5)), None, "nobody serves a mount");
        recent.note(1, Inode(5), 10);
        recent.note(1, Inode(5), 7);
        assert_eq!((recent.last(Inode(5)), recent.last(Inode(6))), (Some(10), None));
        let same = |inode: &u64| wire::hash::mix(*inode, 3) % 64 == wire::hash::mix(5, 3) % 64;
        let other = (6..).find(same).map(Inode).unwrap_or_default();
        recent.note(1, other, 3);
        assert_eq!((recent.last(Inode(5)), recent.last(other)), (None, Some(3)));
    }
}

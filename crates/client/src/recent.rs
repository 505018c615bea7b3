//! When a mount's process last made or removed a name by a post, for the last directories: the kernel
//! asks for a directory's attributes after each, and what is not applied yet is not in the index. With
//! this nobody has to wait for the shard: what the index says, and the time of the own last post.
//!
//! Programs that are preloaded seldom ask, and have no need of it.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicI64, AtomicU64};
use wire::Inode;

const ROWS: usize = 64;

/// One directory. Taken for a few loads and stores.
struct Row {
    is_taken: AtomicBool,
    directory: AtomicU64,
    at: AtomicI64,
}

/// The last few directories.
pub(crate) struct Recent {
    rows: [Row; ROWS],
}

impl Recent {
    pub(crate) const fn new() -> Recent {
        Recent {
            rows: [const {
                Row {
                    is_taken: AtomicBool::new(false),
                    directory: AtomicU64::new(0),
                    at: AtomicI64::new(0),
                }
            }; ROWS],
        }
    }

    fn with<R>(&self, directory: Inode, with: impl FnOnce(&Row) -> R) -> Option<R> {
        let row = self.rows.get(wire::hash::mix(directory.0, 3) as usize % ROWS)?;
        while row.is_taken.swap(true, Acquire) {
            core::hint::spin_loop();
        }
        let result = with(row);
        row.is_taken.store(false, Release);
        Some(result)
    }

    /// A post of mount `mount` changed a directory at `at`, nanoseconds since 1970.
    #[inline(always)]
    pub(crate) fn note(&self, mount: u8, directory: Inode, at: i64) {
        if mount != 0 {
            self.note_at(directory, at);
        }
    }

    #[cold]
    fn note_at(&self, directory: Inode, at: i64) {
        self.with(directory, |row| {
            let is_same = row.directory.swap(directory.0, Relaxed) == directory.0;
            row.at.store(if is_same { at.max(row.at.load(Relaxed)) } else { at }, Relaxed);
        });
    }

    /// When that was last, as far as it is known.
    pub(crate) fn last(&self, directory: Inode) -> Option<i64> {
        self.with(directory, |row| {
            (row.directory.load(Relaxed) == directory.0).then(|| row.at.load(Relaxed))
        })?
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_time_of_each_is_known_until_another_takes_its_place() {
        let recent = Recent::new();
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

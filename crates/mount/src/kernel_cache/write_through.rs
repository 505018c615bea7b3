//! Files in directories with writeback mode `through`, whose close and sync wait for writeback. The
//! kernel opens files by node, so the mode of the directory is recorded when a name is looked up.

use std::collections::HashSet;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, PoisonError};
use wire::Inode;

/// Such files that the kernel knows.
#[derive(Default)]
pub(crate) struct WriteThroughFiles {
    files: Mutex<HashSet<Inode>>,
    /// Number of files: if there are none, the lock is not taken.
    count: AtomicUsize,
}

impl WriteThroughFiles {
    fn with(&self, change: impl FnOnce(&mut HashSet<Inode>)) {
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut files);
        self.count.store(files.len(), Relaxed);
    }

    /// Records the mode of a file's directory.
    pub(crate) fn note(&self, file: Inode, is_write_through: bool) {
        if is_write_through {
            self.with(|files| {
                files.insert(file);
            });
        } else {
            self.forget(file);
        }
    }

    /// The kernel has forgotten a node.
    pub(crate) fn forget(&self, node: Inode) {
        if self.count.load(Relaxed) != 0 {
            self.with(|files| {
                files.remove(&node);
            });
        }
    }

    /// True if there are no such files.
    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(Relaxed) == 0
    }

    /// True if a file is in such a directory.
    pub(crate) fn has(&self, file: Inode) -> bool {
        self.count.load(Relaxed) != 0
            && self.files.lock().unwrap_or_else(PoisonError::into_inner).contains(&file)
    }
}

//! Files of directories that are saved `through` (`client`'s `saves`): a kernel opens files by number, so
//! what their names said is kept from when it looked them up. And the closes and syncs that wait.

use client::{At, Follow, PathBuffer};
use fuse::Operation;
use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use wire::attributes::write_back;
use wire::errno::Result;
use wire::{Attributes, Inode};

use crate::answer::{Request, within};
use crate::waits::Begun;

/// Those of which the kernel knows.
#[derive(Default)]
pub(crate) struct Through {
    files: Mutex<HashSet<Inode>>,
    /// How many: where there are none, nobody takes the lock.
    count: AtomicUsize,
}

impl Through {
    fn with(&self, change: impl FnOnce(&mut HashSet<Inode>)) {
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut files);
        self.count.store(files.len(), Relaxed);
    }

    /// What its name says of a file.
    pub(crate) fn note(&self, file: Inode, is_through: bool) {
        if is_through {
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

    /// True for one of them.
    pub(crate) fn has(&self, file: Inode) -> bool {
        self.count.load(Relaxed) != 0
            && self.files.lock().unwrap_or_else(PoisonError::into_inner).contains(&file)
    }
}

impl Request<'_> {
    /// A name of a directory was looked up.
    pub(crate) fn note_through(&self, directory: Inode, found: &Attributes) {
        if found.is_regular() {
            let is_through = self.is_through(directory);
            self.server.through.note(found.inode, is_through);
        }
    }

    fn is_through(&self, directory: Inode) -> bool {
        let (client, places) = (self.server.client, &self.server.places);
        let known = client.layout_at_hand(directory).or_else(|| places.get(directory));
        known.is_some_and(|layout| layout.write_back() == write_back::THROUGH)
    }

    /// The kernel takes what it knows of a renamed file along, and may not look it up again soon.
    pub(crate) fn note_renamed(&self, names: [Option<At<'_>>; 2], path: &mut PathBuffer) {
        for at in names.into_iter().flatten() {
            let is_through = self.is_through(at.base);
            if !is_through && self.server.through.count.load(Relaxed) == 0 {
                continue;
            }
            let found = self.server.client.stat(at, Follow::Never, &self.who(), path);
            if let Ok(found) = found.and_then(within) {
                self.note_through(at.base, &found);
            }
        }
    }

    /// True if who closes, or syncs, waits until the file is saved.
    pub(crate) fn is_saved_at(&self, operation: &Operation<'_>, handle: u64) -> bool {
        let Ok(file) = self.opened(handle) else { return false };
        match operation {
            Operation::Flush { .. } => self.server.client.is_written_through(file),
            _ => self.server.client.is_through(file),
        }
    }

    /// Does what is to be done here, and begins to wait.
    pub(crate) fn sync_and_save(&self, operation: &Operation<'_>, handle: u64) -> Result<Begun> {
        match *operation {
            Operation::Flush { lock_owner, .. } => {
                self.end_locks_of(lock_owner);
                self.flush(handle)?;
            }
            _ => self.sync(handle)?,
        }
        self.begin_save(self.opened(handle)?)
    }
}

//! Holds files open for a moment after a lookup.
//!
//! The kernel looks a name up and opens the file by a further request. In between another program
//! may remove the file or replace it by `rename`; on a local file system the open would still
//! succeed. So recently looked up files are held open until the kernel forgets them or one second
//! has passed. A file that is removed meanwhile occupies its space that long. An entry that the
//! kernel may cache needs no hold, because the shard keeps its file
//! (`metadata::kernel_cache::grace`); the same holds for everything that a mount of another host
//! looks up.

use client::{Client, Outcome};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use wire::errno::{Errno, Result};
use wire::{Credentials, Inode};

use crate::server::handles::Handles;

/// Number of files that are held.
const SLOTS: usize = 256;

/// How long a file is held.
const HOLD_TIME: Duration = Duration::from_secs(1);

/// Interval at which expired holds are released.
pub(crate) const SWEEP: Duration = Duration::from_millis(250);

struct HeldLookup {
    inode: Inode,
    handle: u64,
    since: Instant,
}

/// Recently looked up files.
pub(crate) struct LookupCache {
    slots: Box<[Mutex<Option<HeldLookup>>]>,
}

impl LookupCache {
    pub(crate) fn new() -> LookupCache {
        LookupCache { slots: (0..SLOTS).map(|_| Mutex::default()).collect() }
    }

    fn slot(&self, inode: Inode) -> Option<MutexGuard<'_, Option<HeldLookup>>> {
        let slot = self.slots.get(inode.0 as usize % SLOTS)?;
        Some(slot.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn is_held(&self, inode: Inode) -> bool {
        let Some(mut slot) = self.slot(inode) else { return false };
        let held = slot.as_mut().filter(|held| held.inode == inode);
        held.map(|held| held.since = Instant::now()).is_some()
    }

    /// Holds a file that was looked up.
    ///
    /// # Errors
    /// `ENOENT`: it is gone already.
    pub(crate) fn hold(&self, client: &Client, handles: &Handles, inode: Inode) -> Result<()> {
        if self.is_held(inode) || !client.is_of_this_host(inode) {
            return Ok(());
        }
        let flags = (libc::O_PATH | libc::O_NOFOLLOW) as u32;
        let file = match client.open_inode(inode, flags, &Credentials::checked(0, 0)) {
            Ok(Outcome::Done(file)) => file.ofd,
            Err(gone @ (Errno::ENOENT | Errno::ESTALE)) => return Err(gone),
            // It cannot be held: the kernel may have to look it up again.
            _ => return Ok(()),
        };
        let Ok(handle) = handles.add(file) else { return Ok(()) };
        let held = HeldLookup { inode, handle, since: Instant::now() };
        let before = self.slot(inode).and_then(|mut slot| slot.replace(held));
        close(handles, before);
        Ok(())
    }

    /// The kernel has forgotten a node.
    pub(crate) fn forget_node(&self, handles: &Handles, inode: Inode) {
        let held = self.slot(inode).and_then(|mut slot| slot.take_if(|held| held.inode == inode));
        close(handles, held);
    }

    /// Releases holds that have expired.
    pub(crate) fn sweep(&self, handles: &Handles) {
        for slot in &self.slots {
            let mut slot = slot.lock().unwrap_or_else(PoisonError::into_inner);
            let old = slot.take_if(|held| held.since.elapsed() >= HOLD_TIME);
            drop(slot);
            close(handles, old);
        }
    }
}

fn close(handles: &Handles, held: Option<HeldLookup>) {
    if let Some(held) = held {
        let _ = handles.close(held.handle);
    }
}

//! Files that were looked up a moment ago, held open.
//!
//! The kernel looks a name up, and asks for what it found by another request. In between somebody
//! may remove the file, or put another in its place by `rename`; a local file system would still
//! have it. So the last few are held open, until the kernel forgets them or a second is over: a
//! file that is removed meanwhile takes up its space as long. What the kernel may remember needs no
//! pin: the shard keeps it (`metadata::kept`), and so it does for all that a mount of another host
//! looks up.

use client::Outcome;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use wire::errno::{Errno, Result};
use wire::{Credentials, Inode};

use crate::serve::Server;

/// How many.
const ROWS: usize = 256;
/// How long.
const HELD: Duration = Duration::from_secs(1);
/// How often it is looked for what is over.
pub(crate) const SWEEP: Duration = Duration::from_millis(250);

struct Pin {
    inode: Inode,
    handle: u64,
    since: Instant,
}

/// The last few files that were looked up.
pub(crate) struct Pins {
    rows: Box<[Mutex<Option<Pin>>]>,
}

impl Pins {
    pub(crate) fn new() -> Pins {
        Pins { rows: (0..ROWS).map(|_| Mutex::default()).collect() }
    }

    fn row(&self, inode: Inode) -> Option<MutexGuard<'_, Option<Pin>>> {
        let row = self.rows.get(inode.0 as usize % ROWS)?;
        Some(row.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn is_held(&self, inode: Inode) -> bool {
        let Some(mut row) = self.row(inode) else { return false };
        let pin = row.as_mut().filter(|pin| pin.inode == inode);
        pin.map(|pin| pin.since = Instant::now()).is_some()
    }
}

impl Server {
    /// Holds a file that was found.
    ///
    /// # Errors `ENOENT`: it is gone already.
    pub(crate) fn pin(&self, inode: Inode) -> Result<()> {
        if self.pins.is_held(inode) || !self.client.is_of_this_host(inode) {
            return Ok(());
        }
        let flags = (libc::O_PATH | libc::O_NOFOLLOW) as u32;
        let file = match self.client.open_inode(inode, flags, &Credentials::checked(0, 0)) {
            Ok(Outcome::Done(file)) => file.ofd,
            Err(gone @ (Errno::ENOENT | Errno::ESTALE)) => return Err(gone),
            // It can not be held: the kernel may have to look once more.
            _ => return Ok(()),
        };
        let Ok(handle) = self.handles.add(file) else { return Ok(()) };
        let pin = Pin { inode, handle, since: Instant::now() };
        let before = self.pins.row(inode).and_then(|mut row| row.replace(pin));
        self.let_go(before);
        Ok(())
    }

    /// The kernel has forgotten a node.
    pub(crate) fn unpin(&self, inode: Inode) {
        let pin = self.pins.row(inode).and_then(|mut row| row.take_if(|pin| pin.inode == inode));
        self.let_go(pin);
    }

    /// Lets go of what was held long enough.
    pub(crate) fn sweep_pins(&self) {
        for row in &self.pins.rows {
            let mut row = row.lock().unwrap_or_else(PoisonError::into_inner);
            let old = row.take_if(|pin| pin.since.elapsed() >= HELD);
            drop(row);
            self.let_go(old);
        }
    }

    fn let_go(&self, pin: Option<Pin>) {
        if let Some(pin) = pin {
            let _ = self.handles.close(pin.handle);
        }
    }
}

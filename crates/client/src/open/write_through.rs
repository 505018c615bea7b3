//! Write-through: closing or syncing a written file waits until the backing store has it, in
//! directories with the writeback mode `through`. The wait takes no slot of the session
//! (`long_wait`), because it may be long.
//!
//! The mode is taken from the layout of the directory in which the file was opened by name, and
//! marked in the open file. A mount, whose kernel opens files by inode, sets the mark itself.
//!
//! The wait is bounded: if nothing at all is written back for the instance's timeout, it fails with
//! `EIO`.

use shm::wait;
use wire::attributes::writeback;
use wire::errno::{Errno, Result};
use wire::{Inode, Layout, Request, ShardIndex};

use crate::OfdIndex;
use crate::file::open_file;
use crate::file::open_file::{OpenFile, mark};
use crate::io::write_behind;
use crate::transport::Transport;
use crate::transport::errno::ignore_gone;
use crate::transport::long_wait::LongRequest;
use crate::transport::request::Destination;

/// Pause before an unreachable service is queried again.
const PAUSE_MICROS: u64 = 100_000;

/// A wait for the writeback of a file. Dropping it ends only the wait.
pub struct WritebackWait<'a> {
    transport: &'a Transport,
    inode: Inode,
    pending: LongRequest<'a>,
    /// Progress counter of writeback at the last reply, and the time of its last change.
    moved: Option<u64>,
    since: u64,
    is_interrupted: bool,
}

impl<'a> WritebackWait<'a> {
    fn new(transport: &'a Transport, inode: Inode) -> WritebackWait<'a> {
        let (pending, since) = (LongRequest::new(transport), wait::now_micros());
        WritebackWait { transport, inode, pending, moved: None, since, is_interrupted: false }
    }

    /// The result if the wait is over; otherwise sends what is due and returns `None`.
    pub fn poll(&mut self) -> Option<Result<()>> {
        loop {
            if self.is_interrupted {
                return Some(Err(Errno::EINTR));
            }
            let (inode, transport) = (self.inode, self.transport);
            let query = (Destination::Shard(inode.shard()), &Request::AwaitClean { inode });
            let moved = match self.pending.poll(transport, query, true)? {
                Ok(Some(moved)) => moved,
                Ok(None) => return Some(Ok(())),
                // Too many wait.
                Err(Errno::ENOLCK) => return Some(Err(Errno::EIO)),
                Err(errno) => return Some(ignore_gone(Err(errno))),
            };
            let now = wait::now_micros();
            if self.moved != Some(moved) {
                (self.moved, self.since) = (Some(moved), now);
            } else if now.saturating_sub(self.since) >= transport.timeout_micros() {
                return Some(Err(Errno::EIO));
            }
            self.pending = LongRequest::new(transport);
        }
    }

    /// Ends the wait with `EINTR`.
    pub const fn interrupt(&mut self) {
        self.is_interrupted = true;
    }

    fn wait(mut self) -> Result<()> {
        loop {
            if let Some(outcome) = self.poll() {
                return outcome;
            }
            self.pending.sleep(self.transport, false);
        }
    }
}

/// Used by the writeback daemon: notices new waiters of one service.
pub struct WaiterWatch<'a> {
    transport: &'a Transport,
    shard: ShardIndex,
    pending: LongRequest<'a>,
    seen: u64,
}

impl<'a> WaiterWatch<'a> {
    /// For the service that owns this shard.
    pub(crate) fn new(transport: &'a Transport, shard: ShardIndex) -> WaiterWatch<'a> {
        WaiterWatch { transport, shard, pending: LongRequest::new(transport), seen: 0 }
    }

    /// True if there are new waiters. `moved`: progress counter, which changes whenever something
    /// was written back.
    pub fn poll(&mut self, moved: u64) -> bool {
        let request = Request::AwaitCleanRequests { seen: self.seen, moved };
        let query = (Destination::Shard(self.shard), &request);
        let transport = self.transport;
        let (is_new, pause) = match self.pending.poll(transport, query, true) {
            None => return false,
            Some(Ok(number)) => {
                let number = number.unwrap_or(0);
                (core::mem::replace(&mut self.seen, number) != number, 0)
            }
            Some(Err(_)) => (false, PAUSE_MICROS),
        };
        self.pending = LongRequest::after(transport, pause);
        is_new
    }
}

/// True for a directory in which close and sync wait for writeback.
#[must_use]
pub(crate) const fn is_write_through(directory: &Layout) -> bool {
    directory.writeback() == writeback::THROUGH
}

/// Marks an open file of such a directory.
pub(crate) fn set_write_through(transport: &Transport, ofd: OfdIndex) {
    if let Ok(open) = open_file::by_index(transport, ofd) {
        open.set(mark::WRITE_THROUGH);
    }
}

/// True if a sync of the file waits for writeback.
pub(crate) fn syncs_write_through(transport: &Transport, ofd: OfdIndex) -> bool {
    open_file::by_index(transport, ofd).is_ok_and(|open| open.has(mark::WRITE_THROUGH))
}

/// True if a close of the file waits for writeback.
pub(crate) fn waits_at_close(transport: &Transport, ofd: OfdIndex) -> bool {
    open_file::by_index(transport, ofd).is_ok_and(|open| closes_write_through(&open))
}

/// Reports what was written to an open file and starts a wait for its writeback.
pub(crate) fn begin_writeback_wait(
    transport: &Transport,
    ofd: OfdIndex,
) -> Result<WritebackWait<'_>> {
    let open = open_file::by_index(transport, ofd)?;
    write_behind::settle_and_flush(transport, &open)?;
    Ok(WritebackWait::new(transport, open.inode))
}

/// Waits for the writeback of a file.
///
/// # Errors
/// `ENOSPC`, `EDQUOT` or `EIO` if writeback fails; `EIO` as well if it takes too long.
pub(crate) fn await_clean(transport: &Transport, inode: Inode) -> Result<()> {
    WritebackWait::new(transport, inode).wait()
}

/// True if a close waits for writeback.
pub(crate) fn closes_write_through(open: &OpenFile<'_>) -> bool {
    open.has(mark::WRITE_THROUGH) && open.is_writable()
}

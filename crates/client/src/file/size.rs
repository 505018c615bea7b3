//! Size of an open file: what this host knows, what the shard was told, and reporting it (G7).
//!
//! A writer records the end of what it wrote in two shared words: first the unreported end, then
//! the size. The shard is told at close, fsync, stat, and every 64 MiB. While the unreported end is
//! not zero, the shard's size and modification time are stale. How this interacts with concurrent
//! truncation is in `shm::host`.

use core::sync::atomic::Ordering::SeqCst;
use shm::host::{TruncateEpoch, Truncated, Vnode};
use wire::errno::Result;
use wire::{Inode, Reply, Request};

use crate::OfdIndex;
use crate::file::open_file::OpenFile;
use crate::file::{open_file, vnodes};
use crate::lookup::inodes;
use crate::transport::Transport;
use crate::transport::clock::sleep_micros;
use crate::transport::errno::by_descriptor;
use crate::transport::request::{Destination, own_credentials};
use crate::transport::retry::RetryBudget;

/// Growth after which the shard is told unasked: log2 of 64 MiB.
const REPORT_LOG2: u32 = 26;

/// Truncations that one write or append may meet and restart without a pause.
const AT_ONCE: u32 = 16;
/// Pause before later restarts.
const PAUSE_MICROS: u64 = 100;
/// Polls for the end of a truncation that the shard already finished.
const ROUNDS_MAX: u32 = 64;

impl OpenFile<'_> {
    /// The size as this host knows it.
    #[inline]
    pub(crate) fn size(&self) -> u64 {
        self.vnode.size()
    }

    /// Records that everything before `end` may have been written, by a write that began in this
    /// truncate epoch. True if it is time to report the size.
    ///
    /// # Errors
    /// `Truncated`: the write must be repeated.
    #[inline]
    pub(crate) fn note_written(
        &self,
        truncate_epoch: TruncateEpoch,
        end: u64,
    ) -> core::result::Result<bool, Truncated> {
        let before = self.vnode.note_written(truncate_epoch, end)?;
        Ok(before.is_some_and(|before| before >> REPORT_LOG2 != end >> REPORT_LOG2))
    }

    /// Records a change of contents within the size. A concurrent truncation makes this
    /// unnecessary.
    pub(crate) fn note_modified(&self) {
        let truncate_epoch = self.vnode.truncate_epoch();
        let _ = self.vnode.note_written(truncate_epoch, 1.min(self.size()));
    }
}

/// Restarts of a write or append that met a truncation, for as long as a request may take.
pub(crate) struct TruncateRetries {
    count: u32,
    budget: Option<RetryBudget>,
}

impl TruncateRetries {
    pub(crate) const fn new() -> TruncateRetries {
        TruncateRetries { count: 0, budget: None }
    }

    /// Waits before a restart, if necessary.
    ///
    /// # Errors
    /// `EIO` if the file is truncated all the time.
    #[cold]
    pub(crate) fn pause(&mut self, transport: &Transport) -> Result<()> {
        self.count = self.count.saturating_add(1);
        if self.count < AT_ONCE {
            return Ok(());
        }
        let budget =
            self.budget.get_or_insert_with(|| RetryBudget::new(transport.timeout_micros()));
        budget.sleep(PAUSE_MICROS)
    }
}

/// The size, fetched from the shard in case the file grew on another host.
pub(crate) fn size_now(transport: &Transport, open: &OpenFile<'_>) -> Result<u64> {
    let seen = open.vnode.size_snapshot();
    let attributes = by_descriptor(inodes::attributes_of(transport, open.inode))?;
    open.vnode.learn(&seen, attributes.size);
    Ok(seen.size_with(attributes.size))
}

/// The truncate epoch, for an operation that is about to change the file. Waits while a
/// truncation is in progress: what is written then may or may not be cut off.
///
/// # Errors
/// `EIO`.
#[inline]
pub(crate) fn settled_epoch(transport: &Transport, open: &OpenFile<'_>) -> Result<TruncateEpoch> {
    let truncate_epoch = open.vnode.truncate_epoch();
    if truncate_epoch.is_under_way() { await_truncate(transport, open) } else { Ok(truncate_epoch) }
}

#[cold]
fn await_truncate(transport: &Transport, open: &OpenFile<'_>) -> Result<TruncateEpoch> {
    for round in 0..ROUNDS_MAX {
        // The shard answers when the targets have truncated.
        by_descriptor(inodes::attributes_of(transport, open.inode))?;
        if !open.vnode.truncate_epoch().is_under_way() {
            break;
        }
        if round >= AT_ONCE {
            sleep_micros(PAUSE_MICROS);
        }
    }
    // No truncation takes this long; writes count as made before it.
    Ok(open.vnode.truncate_epoch())
}

/// The size as this host knows it, without a message.
pub(crate) fn size_known(transport: &Transport, ofd: OfdIndex) -> Result<u64> {
    Ok(open_file::by_index(transport, ofd)?.size())
}

/// Reports the size to the shard if part of it is unreported.
///
/// # Errors
/// `ESTALE` if the file is gone, `EIO`.
pub(crate) fn flush(transport: &Transport, vnode: &Vnode, inode: Inode) -> Result<()> {
    let truncate_epoch = vnode.truncate_epoch();
    let end = vnode.dirty_end.load(SeqCst);
    if end == 0 {
        return Ok(());
    }
    let request = Request::Extend { inode, size: end };
    let answer = transport.call(Destination::Shard(inode.shard()), &request, &own_credentials())?;
    // `Done` comes from a shard of this host, which read and cleared the word itself, or from
    // the daemon if nothing is unreported any more. Shards of other hosts cannot clear it, so
    // it is cleared here, unless a truncation intervened, after which new writes may have
    // reached the same end.
    let is_noted = answer.with(|reply| Ok(matches!(reply, Reply::Done {})))?;
    if !is_noted && vnode.truncate_epoch() == truncate_epoch {
        let _ = vnode.dirty_end.compare_exchange(end, 0, SeqCst, SeqCst);
    }
    Ok(())
}

/// As `flush`, for a file that may be open on this host.
///
/// # Errors
/// As `flush`.
pub(crate) fn flush_if_open(transport: &Transport, inode: Inode) -> Result<()> {
    let host = transport.host()?;
    let Some(found) = host.vnode_find(inode) else { return Ok(()) };
    if host.vnode(found)?.dirty_end.load(SeqCst) == 0 {
        return Ok(());
    }
    // The open count keeps the vnode from being reused for another file.
    let index = host.vnode_open(inode)?;
    let flushed = host.vnode(index).and_then(|vnode| flush(transport, vnode, inode));
    vnodes::close_vnode(transport, inode, index, false);
    flushed
}

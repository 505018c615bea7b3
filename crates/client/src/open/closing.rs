//! References to open file descriptions: taking one, dropping one, and what dropping the last one
//! does.

use core::sync::atomic::Ordering::Relaxed;
use shm::host::VnodeIndex;
use wire::errno::Result;

use crate::file::open_file::{OpenFile, mark};
use crate::file::{open_file, size, vnodes};
use crate::io::{readahead, write_behind};
use crate::open::write_through::closes_write_through;
use crate::open::{local_ops, locks, write_through};
use crate::transport::Transport;
use crate::transport::errno::by_descriptor;
use crate::{OfdIndex, ProcessIndex};

/// Takes a reference: for `dup`, or a descriptor that is passed on.
pub(crate) fn retain(transport: &Transport, ofd: OfdIndex) {
    if let Ok(host) = transport.host() {
        host.file_retain(ofd);
    }
}

/// Takes a reference of an open file that was found in a table which other threads change. The
/// caller then looks into the table again, and releases the reference if it finds another file
/// there. Returns false if the file is no longer open.
pub(crate) fn retain_open(transport: &Transport, ofd: OfdIndex) -> bool {
    transport.host().is_ok_and(|host| host.file_retain_open(ofd))
}

/// Closes a descriptor of `process`: waits for writes in flight, reports the size, releases the
/// process's locks of the file, and with the last reference closes the open file.
pub(crate) fn close(transport: &Transport, ofd: OfdIndex, process: ProcessIndex) -> Result<()> {
    let open = open_file::by_index(transport, ofd)?;
    if closes_write_through(&open) {
        return close_unless(transport, ofd, process, || false);
    }
    close_open(transport, ofd, &open, process)
}

/// As `close`, but never waits for writeback, so its errors are not reported.
pub(crate) fn close_without_writeback(
    transport: &Transport,
    ofd: OfdIndex,
    process: ProcessIndex,
) -> Result<()> {
    close_open(transport, ofd, &open_file::by_index(transport, ofd)?, process)
}

#[inline]
fn close_open(
    transport: &Transport,
    ofd: OfdIndex,
    open: &OpenFile<'_>,
    process: ProcessIndex,
) -> Result<()> {
    let settled =
        if open.is_writable() { write_behind::settle_all(transport, open) } else { Ok(()) };
    close_settled(transport, ofd, open, process).and(settled)
}

/// As `close`, but if `is_left` returns true the reference passes to a call of another thread,
/// which drops it when it ends. The caller may not touch it any more.
pub(crate) fn close_unless(
    transport: &Transport,
    ofd: OfdIndex,
    process: ProcessIndex,
    is_left: impl FnOnce() -> bool,
) -> Result<()> {
    let open = open_file::by_index(transport, ofd)?;
    let flushed =
        if open.is_writable() { write_behind::settle_and_flush(transport, &open) } else { Ok(()) };
    let (inode, waits) = (open.inode, closes_write_through(&open));
    locks::release_of_process(transport, &open, process);
    if !is_left() && transport.host()?.file_release(ofd)? {
        drop_open(transport, &open);
    }
    // Waits last, when nothing is held that would stay behind if this process were killed.
    flushed.and_then(|()| if waits { write_through::await_clean(transport, inode) } else { Ok(()) })
}

/// Drops a reference that no descriptor stands for, at the end of a call: reports what the call
/// wrote, and keeps the process's locks.
pub(crate) fn release(transport: &Transport, ofd: OfdIndex) {
    let Ok(open) = open_file::by_index(transport, ofd) else { return };
    if open.is_writable() {
        // The close that passed the reference on has returned, so nobody can receive an error.
        let _ = write_behind::settle_and_flush(transport, &open);
    }
    if transport.host().and_then(|host| host.file_release(ofd)) == Ok(true) {
        drop_open(transport, &open);
    }
}

fn close_settled(
    transport: &Transport,
    ofd: OfdIndex,
    open: &OpenFile<'_>,
    process: ProcessIndex,
) -> Result<()> {
    if closes_by_local_op(open) {
        locks::release_of_process(transport, open, process);
        if transport.host()?.file_release(ofd)? {
            locks::release_of_open(transport, open);
            return close_by_local_op(transport, open);
        }
        // Another thread duplicated the descriptor meanwhile.
        return by_descriptor(size::flush(transport, open.vnode, open.inode));
    }
    let flushed =
        if open.is_writable() { size::flush(transport, open.vnode, open.inode) } else { Ok(()) };
    locks::release_of_process(transport, open, process);
    if transport.host()?.file_release(ofd)? {
        drop_open(transport, open);
    }
    by_descriptor(flushed)
}

/// Whether this close of a written file may be completed by a local operation: only if it drops
/// the last reference. (`log_close` tests whether the shard is on this host.)
fn closes_by_local_op(open: &OpenFile<'_>) -> bool {
    open.is_writable()
        && open.vnode.dirty_end.load(Relaxed) != 0
        && open.words.refs.load(Relaxed) == 1
        && !open.file().is_inline()
        && !open.has(mark::NAMELESS)
}

/// Closes a written file after its last reference is dropped: a local operation passes the
/// unreported size and the open count on to the shard.
fn close_by_local_op(transport: &Transport, open: &OpenFile<'_>) -> Result<()> {
    let vnode = open.words.vnode.load(Relaxed);
    let mut flushed = Ok(());
    if !local_ops::log_close(transport, open.inode, vnode) {
        flushed = size::flush(transport, open.vnode, open.inode);
        vnodes::close_vnode(transport, open.inode, VnodeIndex(vnode), false);
    }
    if let Ok(host) = transport.host() {
        let _ = host.file_free(open.index);
    }
    by_descriptor(flushed)
}

/// Frees the open file after its last reference was dropped.
pub(crate) fn drop_open(transport: &Transport, open: &OpenFile<'_>) {
    locks::release_of_open(transport, open);
    readahead::drop_fetched(transport, open);
    let vnode = VnodeIndex(open.words.vnode.load(Relaxed));
    vnodes::close_vnode(transport, open.inode, vnode, open.has(mark::NAMELESS));
    if let Ok(host) = transport.host() {
        let _ = host.file_free(open.index);
    }
}

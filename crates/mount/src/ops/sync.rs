//! Closing and syncing open files, with a wait for writeback where their directory demands it.

use client::OfdIndex;
use fuse::Operation;
use wire::errno::Result;

use crate::ops::files::writes;
use crate::ops::locks;
use crate::ops::request::Request;
use crate::server::waits::{StartedWait, WaitKind};

/// A descriptor is closed: reports the size to other hosts.
pub(crate) fn flush(request: &Request<'_>, handle: u64) -> Result<()> {
    let (client, ofd) = (request.server.client, request.opened(handle)?);
    request.server.direct_io.mark_closing(request.node(), handle);
    client.report_size(ofd)?;
    // The kernel's pages are what it wrote itself, so they stay valid for the next open.
    if writes(client.flags(ofd)?)
        && client.has_cached_pages(ofd)?
        && !client.shares_cached_pages(ofd)?
        && let Ok(now) = client.fstat(ofd)
    {
        request.server.page_versions.wrote(now.inode, now.changed);
    }
    Ok(())
}

pub(crate) fn sync(request: &Request<'_>, handle: u64) -> Result<()> {
    request.server.client.sync_in_instance(request.opened(handle)?)
}

/// Reports writes of an open file, and begins to wait for their writeback.
fn begin_writeback(request: &Request<'_>, file: OfdIndex) -> Result<StartedWait> {
    Ok(StartedWait(WaitKind::Writeback(request.server.client.begin_writeback_wait(file)?)))
}

/// True if this close or sync waits for writeback.
pub(crate) fn waits_for_writeback(
    request: &Request<'_>,
    operation: &Operation<'_>,
    handle: u64,
) -> bool {
    let Ok(file) = request.opened(handle) else { return false };
    match operation {
        Operation::Flush { .. } => request.server.client.waits_at_close(file),
        _ => request.server.client.is_write_through(file),
    }
}

/// Does the local part of a close or sync, and begins to wait for writeback.
pub(crate) fn sync_and_write_back(
    request: &Request<'_>,
    operation: &Operation<'_>,
    handle: u64,
) -> Result<StartedWait> {
    match *operation {
        Operation::Flush { lock_owner, .. } => {
            locks::end_locks_of(request, lock_owner);
            flush(request, handle)?;
        }
        _ => sync(request, handle)?,
    }
    begin_writeback(request, request.opened(handle)?)
}

//! Reads and writes of a kernel that caches pages, and dropping those pages. The order of marks, fills
//! and drops: `kernel_cache::pages`.

use client::OfdIndex;
use fuse::abi::flag;
use fuse::notice::Notice;
use fuse::notice::Notice as Kernels;
use wire::Inode;
use wire::errno::Result;

use crate::device;
use crate::kernel_cache::pages::PageRange;
use crate::ops::request::Request;
use crate::server::Server;

/// Makes the kernel drop all pages of a file. The kernel waits for reads in progress.
pub(crate) fn drop_pages(server: &Server, inode: Inode) {
    let before = server.page_fills.count(inode);
    notify(server, &Notice::Inode { node: inode.0, offset: 0, length: 0 });
    server.page_fills.note_dropped(inode, before, || server.client.forget_cached_pages(inode));
}

/// Executes a request of `Watches::drop_soon`, on the dropping thread.
pub(crate) fn drop_requested_pages(server: &Server, range: PageRange) {
    let PageRange { inode, offset, length } = range;
    if length == 0 {
        drop_pages(server, inode);
    } else {
        let (offset, length) = (offset.cast_signed(), length.cast_signed());
        notify(server, &Notice::Inode { node: inode.0, offset, length });
    }
}

/// Has all pages dropped after the reply, if others may store into the file without telling anybody.
fn drop_if_stored(request: &Request<'_>, ofd: OfdIndex) -> Result<()> {
    if request.server.client.has_silent_stores(ofd)? {
        request.tracker.drop_after_reply(PageRange { inode: request.node(), offset: 0, length: 0 });
    }
    Ok(())
}

/// Reads `length` bytes at `offset` with `read`, into pages unless `flags` mark a direct read.
pub(crate) fn read_pages<R>(
    request: &Request<'_>,
    ofd: OfdIndex,
    (offset, length, flags): (u64, u32, u32),
    read: impl FnOnce() -> Result<R>,
) -> Result<R> {
    if flags & flag::LOCK_OWNER != 0 {
        return read();
    }
    let (server, inode) = (request.server, request.node());
    let range = PageRange { inode, offset, length: length.into() };
    server
        .page_fills
        .begin_read(range, request.header.pid, || server.client.note_page_fill(ofd))?;
    drop_if_stored(request, ofd)?;
    let done = read()?;
    drop_if_stored(request, ofd)?;
    Ok(done)
}

/// Writes at `offset` with `write`, from pages unless `flags` mark a direct write.
pub(crate) fn write_pages(
    request: &Request<'_>,
    ofd: OfdIndex,
    (offset, length, flags): (u64, u64, u32),
    write: impl FnOnce() -> Result<usize>,
) -> Result<usize> {
    let (server, client) = (request.server, request.server.client);
    let (page_drops, inode) = (&server.watches.page_drops, request.node());
    if flags & flag::LOCK_OWNER != 0 {
        let count = write()?;
        if client.has_cached_pages(ofd)? && count != 0 {
            let range = PageRange { inode, offset, length: count as u64 };
            let number = server.watches.drop_soon(range);
            if !page_drops.wait(number) {
                request.tracker.reply_after_drop(number);
            }
        }
        return Ok(count);
    }
    let (range, thread) = (PageRange { inode, offset, length }, request.header.pid);
    server.page_fills.begin_write(range, thread, || client.note_page_fill(ofd))?;
    let count = write()?;
    drop_if_stored(request, ofd)?;
    if flags & flag::WRITE_CACHE == 0
        && length != 0
        && client.shares_cached_pages(ofd)?
        && server.page_fills.may_be_older(range, thread)
    {
        page_drops.wait(server.watches.drop_soon(range));
    }
    Ok(count)
}

/// Invalidates the cached attributes of an inode.
pub(crate) fn forget_attributes(server: &Server, inode: Inode) {
    notify(server, &Kernels::Inode { node: server.node_of(inode), offset: -1, length: 0 });
}

/// Sends a notification to the kernel, which may not know the inode or name.
pub(crate) fn notify(server: &Server, notice: &Kernels<'_>) {
    let mut bytes = [0; 512];
    if let Some(length) = notice.write(&mut bytes) {
        let _ = device::send_notice(&*server.device, bytes.get(..length).unwrap_or_default());
    }
}

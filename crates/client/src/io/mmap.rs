//! Files as the kernel can map them: ranges of the arena and of the SSD file that hold their bytes.
//!
//! A shared mapping accesses the bytes without the protocols of `shm::extents`, so every extent of
//! the range is allocated first and all its pages are made valid. The mapping must keep the file
//! open, because an open file keeps its extents when it is deleted. Space that a truncation frees
//! under a mapping is given to other files; as on any file system, a program must not touch a
//! mapping beyond the end of its file.

use core::sync::atomic::Ordering::SeqCst;
use core::sync::atomic::fence;
use placement::extent;
use placement::extent::Span;
use rustix::fd::{AsRawFd, BorrowedFd};
use shm::extents::Use;
use wire::DaemonIndex;
use wire::attributes::want;
use wire::errno::{Errno, Result};
use wire::reply::Extent;

use crate::OfdIndex;
use crate::file::layout::File;
use crate::file::{inline, layout, open_file, size};
use crate::io::locate::{MOVES_MAX, Want};
use crate::io::{Io, locate, write_behind};
use crate::kernel_cache::page_caches;
use crate::transport::Transport;

/// A range of a file and what holds it.
#[derive(Clone, Copy, Debug)]
pub struct MappedRange {
    /// First offset in the file, page-aligned.
    pub offset: u64,
    /// Length in bytes.
    pub length: u64,
    /// The descriptor of what holds it; it belongs to the client.
    pub descriptor: i32,
    /// Offset in that descriptor.
    pub place: u64,
}

/// Calls `each` for the ranges of `offset .. offset + length`, in order, up to the current end
/// of the file.
pub(crate) fn map_ranges(
    io: &Io,
    ofd: OfdIndex,
    offset: u64,
    length: u64,
    each: &mut dyn FnMut(MappedRange) -> Result<()>,
) -> Result<()> {
    let open = open_file::open_for(io.transport(), ofd, want::READ)?;
    // A read-only mapping can be made writable later if the descriptor allows writing.
    let may_write = open_file::open_for(io.transport(), ofd, want::WRITE).is_ok();
    let how = if may_write { Use::Write } else { Use::Read };
    let end = offset
        .checked_add(length)
        .ok_or(Errno::EOVERFLOW)?
        .min(size::size_now(io.transport(), &open)?);
    if offset >= end {
        return Ok(());
    }
    write_behind::settle(io.transport(), open.vnode)?;
    if may_write {
        page_caches::note_silent_stores(io.transport(), &open)?;
    }
    if open.file().is_inline() {
        inline::move_out(io.transport(), &open)?;
    }
    let file = locate::prepare_extents(io.transport(), &open, end)?;
    for span in extent::over(offset, end.saturating_sub(offset), file.stripe_log2()) {
        let target = layout::target_of(io.transport(), &file, span.start)?;
        let by = io.transport().attachment_of(target, file.inode)?.ok_or(Errno::ENODEV)?;
        let extent = valid_extent(io, target, &file, &span, how)?;
        let first = span.start.max(offset);
        let last = span.end().min(offset.saturating_add(length));
        let holder: BorrowedFd<'_> = by.tier(extent.tier);
        each(MappedRange {
            offset: first,
            length: last.saturating_sub(first),
            descriptor: holder.as_raw_fd(),
            place: extent.location.saturating_add(first.saturating_sub(span.start)),
        })?;
    }
    Ok(())
}

/// The extent of `span` with all its pages valid; it then counts as written by the file.
fn valid_extent(
    io: &Io,
    target: DaemonIndex,
    file: &File,
    span: &Span,
    how: Use,
) -> Result<Extent> {
    for _ in 0..MOVES_MAX {
        let found = locate::extent(io, target, file, span, Want::Reserve, 0)?.ok_or(Errno::EIO)?;
        let by = io.transport().attachment_of(target, file.inode)?.ok_or(Errno::ENODEV)?;
        if by.target().make_all_valid(&by.hazards(), file.inode, &found, how)?.is_ok() {
            return Ok(found);
        }
        locate::forget_extent(io, file, span);
    }
    Err(Errno::EIO)
}

/// Records a modification of the file through a mapping, and has pages dropped that kernels read
/// before it.
///
/// # Errors
/// As `page_caches::invalidate`.
pub(crate) fn note_written(transport: &Transport, ofd: OfdIndex) -> Result<()> {
    let open = open_file::open_for(transport, ofd, want::READ)?;
    open.note_modified();
    // A kernel that fills pages marks the file before it reads: it reads the stores that came before
    // this, or its mark is found here.
    fence(SeqCst);
    page_caches::invalidate(transport, &open)
}

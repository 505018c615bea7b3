//! Allocating and freeing space of a file (`fallocate`).

use placement::extent;
use wire::Request;
use wire::attributes::want;
use wire::errno::{Errno, Result};
use wire::limits::FILE_BYTES_MAX;

use crate::OfdIndex;
use crate::file::layout::File;
use crate::file::open_file::OpenFile;
use crate::file::size::TruncateRetries;
use crate::file::{changing, inline, layout, open_file, size};
use crate::io::{Io, locate, write, write_behind};
use crate::kernel_cache::{maps, page_caches};
use crate::transport::Transport;
use crate::transport::errno::by_descriptor;
use crate::transport::request::{Destination, own_credentials};

/// Modes of `fallocate(2)`.
mod modes {
    pub(super) const KEEP_SIZE: u32 = 1;
    pub(super) const PUNCH_HOLE: u32 = 2;
    pub(super) const COLLAPSE_RANGE: u32 = 8;
    pub(super) const ZERO_RANGE: u32 = 16;
    pub(super) const INSERT_RANGE: u32 = 32;
    pub(super) const UNSHARE_RANGE: u32 = 64;
}

/// True for a mode that Linux passes on to file systems. Whether this one supports it is decided
/// after the range check, as in Linux.
const fn is_mode(mode: u32) -> bool {
    let has_keep_size = mode & modes::KEEP_SIZE != 0;
    match mode & !modes::KEEP_SIZE {
        0 | modes::ZERO_RANGE | modes::UNSHARE_RANGE => true,
        modes::PUNCH_HOLE => has_keep_size,
        modes::COLLAPSE_RANGE | modes::INSERT_RANGE => !has_keep_size,
        _ => false,
    }
}

/// Zeros that are written into an inline file at a time.
const ZEROS: [u8; 1024] = [0; 1024];

/// `fallocate(2)` with the kernel's mode bits: reserve (0, `KEEP_SIZE`), `PUNCH_HOLE` with
/// `KEEP_SIZE`, `ZERO_RANGE` with and without it.
pub(crate) fn allocate(io: &Io, ofd: OfdIndex, mode: u32, offset: u64, length: u64) -> Result<()> {
    let open = open_file::open_for(io.transport(), ofd, want::WRITE)?;
    if length == 0 || offset > FILE_BYTES_MAX {
        return Err(Errno::EINVAL);
    }
    const PUNCH: u32 = modes::PUNCH_HOLE | modes::KEEP_SIZE;
    const ZERO_KEEP: u32 = modes::ZERO_RANGE | modes::KEEP_SIZE;
    if !is_mode(mode) {
        return Err(Errno::EOPNOTSUPP);
    }
    let end = offset.checked_add(length).filter(|&end| end <= FILE_BYTES_MAX);
    let end = end.ok_or(Errno::EFBIG)?;
    let is_beyond_limit = mode & modes::KEEP_SIZE == 0 && end > io.transport().size_limit();
    if is_beyond_limit && end > size::size_now(io.transport(), &open)? {
        return Err(Errno::EFBIG);
    }
    maps::check_kernel_maps(io.transport(), open.vnode)?;
    write_behind::settle(io.transport(), open.vnode)?;
    match mode {
        0 | modes::KEEP_SIZE => reserve(io, &open, offset, end, mode == 0)?,
        PUNCH | ZERO_KEEP => punch(io, &open, offset, end)?,
        modes::ZERO_RANGE => {
            punch(io, &open, offset, end)?;
            grow(io.transport(), &open, end)?;
        }
        _ => return Err(Errno::EOPNOTSUPP),
    }
    open.note_modified();
    page_caches::invalidate(io.transport(), &open)
}

/// Allocates space for writes into `offset .. end`.
fn reserve(io: &Io, open: &OpenFile<'_>, offset: u64, end: u64, grows: bool) -> Result<()> {
    let mut file = open.file();
    if file.is_inline() && end > layout::inline_bytes(io.transport()) {
        file = inline::move_out(io.transport(), open)?;
    }
    if !file.is_inline() {
        file = locate::prepare_extents(io.transport(), open, end)?;
        reserve_range(io, &file, offset, end)?;
    }
    if grows { grow(io.transport(), open, end) } else { Ok(()) }
}

fn reserve_range(io: &Io, file: &File, offset: u64, end: u64) -> Result<()> {
    let whole = !layout::is_spread(io.transport(), file)?;
    let log2 = file.stripe_log2();
    let mut at = extent::at(offset, log2).start;
    while at < end {
        let stripe_end = (at >> log2).saturating_add(1) << log2;
        let next = if whole { end } else { stripe_end.min(end) };
        locate::reserve_extents(io, file, at, next)?;
        at = next;
    }
    Ok(())
}

/// Extends the file to at least `end`.
fn grow(transport: &Transport, open: &OpenFile<'_>, end: u64) -> Result<()> {
    let mut retries = TruncateRetries::new();
    loop {
        let truncate_epoch = size::settled_epoch(transport, open)?;
        if end <= size::size_now(transport, open)? {
            return Ok(());
        }
        // Not by setting the size, because other processes may extend the file further
        // meanwhile.
        if open.note_written(truncate_epoch, end).is_ok() {
            return by_descriptor(size::flush(transport, open.vnode, open.inode));
        }
        retries.pause(transport)?;
    }
}

/// Makes `offset .. end` read as zeros.
fn punch(io: &Io, open: &OpenFile<'_>, offset: u64, end: u64) -> Result<()> {
    let end = end.min(size::size_now(io.transport(), open)?);
    if offset >= end {
        return Ok(());
    }
    if open.file().is_inline() {
        return punch_inline(io, open, offset, end);
    }
    if !open.file().is_sparse() {
        write::note_hole(io.transport(), open);
    }
    let _changing = changing::changing(io.transport(), open.vnode);
    let file = open.file();
    let request = Request::Punch {
        inode: file.inode,
        stripe_log2: file.stripe_log2(),
        offset,
        length: end.saturating_sub(offset),
    };
    let caller = own_credentials();
    layout::each_target(io.transport(), &file, offset, end, &mut |target| {
        by_descriptor(io.transport().call_done(Destination::Target(target), &request, &caller))
    })
}

fn punch_inline(io: &Io, open: &OpenFile<'_>, offset: u64, end: u64) -> Result<()> {
    let mut offset = offset;
    while offset < end {
        let left = usize::try_from(end.saturating_sub(offset)).unwrap_or(usize::MAX);
        let zeros = ZEROS.get(..left.min(ZEROS.len())).unwrap_or(&ZEROS);
        let written = write::write_at(io, open, offset, zeros)?;
        offset = offset.saturating_add(written.max(1) as u64);
    }
    Ok(())
}

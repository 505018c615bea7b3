//! Writing at an offset: inline contents by a message, everything else into extents. Appending:
//! `append`.

use core::iter::once;
use core::sync::atomic::Ordering::Relaxed;
use shm::activity::{OpClass, Transfer};
use shm::host::{TruncateEpoch, Truncated};
use wire::attributes::want;
use wire::errno::{Errno, Result};
use wire::limits::FILE_BYTES_MAX;
use wire::request::set;
use wire::{Reply, Request};

use crate::OfdIndex;
use crate::file::change::Change;
use crate::file::layout::File;
use crate::file::open_file::{OpenFile, o};
use crate::file::size::TruncateRetries;
use crate::file::{change, changing, inline, layout, open_file, set_id, size};
use crate::io::append::Appended;
use crate::io::read::Position;
use crate::io::{Io, append, extents, locate, write_behind};
use crate::kernel_cache::{maps, page_caches};
use crate::transport::Transport;
use crate::transport::errno::by_descriptor;
use crate::transport::request::{Destination, own_credentials};

/// Pages are valid, or not, as a whole.
const PAGE_BYTES: u64 = 4096;
/// A longer write is made in parts that end at multiples of this: nothing of a part on other hosts can be
/// written back, and make space for the rest, before all of the part is there.
const PART_BYTES: u64 = 8 << 20;

/// An open file that is about to be written. It has no set-id bits any more.
#[inline(always)]
fn open_for_writing(transport: &Transport, ofd: OfdIndex) -> Result<OpenFile<'_>> {
    let open = open_file::open_for(transport, ofd, want::WRITE)?;
    maps::check_kernel_maps(transport, open.vnode)?;
    set_id::take_set_id(transport, &open)?;
    Ok(open)
}

/// `write(2)`, `pwrite(2)`. Inlined where the position is known.
#[inline(always)]
pub(crate) fn write(io: &Io, ofd: OfdIndex, from: &[u8], position: Position) -> Result<usize> {
    let open = open_for_writing(io.transport(), ofd)?;
    if open.flags() & o::APPEND != 0 {
        return write_at_end(io, &open, once(from), position);
    }
    position.transfer(&open, |offset| write_counted(io, &open, offset, from))
}

#[inline(always)]
fn write_counted(io: &Io, open: &OpenFile<'_>, offset: u64, from: &[u8]) -> Result<usize> {
    let (transport, file) = (io.transport(), open.file());
    let truncate_epoch = open.vnode.truncate_epoch();
    let end = offset.saturating_add(from.len() as u64);
    if !truncate_epoch.is_under_way()
        && is_plain(transport, open, &file, offset, end)
        && let Some(counters) =
            transport.activity.plain_transfer(open.counted(), Transfer::Write, from.len())
        && extents::write_at_once(io, &file, offset, from)
        && note_written(transport, open, truncate_epoch, end).is_ok()
        && page_caches::invalidate(transport, open).is_ok()
    {
        counters.count(offset, from.len() as u64);
        return Ok(from.len());
    }
    write_each(io, open, offset, once(from))
}

/// True for a write of `offset .. end` that takes nothing but a copy, if the place of the bytes is
/// known: it stays within the pages that the file has.
#[inline(always)]
fn is_plain(
    transport: &Transport,
    open: &OpenFile<'_>,
    file: &File,
    offset: u64,
    end: u64,
) -> bool {
    let size = open.size();
    let pages_end = size.saturating_add(PAGE_BYTES - 1) & !(PAGE_BYTES - 1);
    !file.is_inline()
        && (offset < end && offset <= size && end <= pages_end)
        && end <= transport.size_limit()
        && !open.vnode.has_pending()
        && !transport.is_write_behind.load(Relaxed)
        && !changing::readahead_enabled(transport)
        && locate::is_prepared(transport, file, end)
}

/// `writev(2)`, `pwritev(2)`. With `O_APPEND` at the end, whatever the position.
pub(crate) fn write_vectored<'b>(
    io: &Io,
    ofd: OfdIndex,
    buffers: impl Iterator<Item = &'b [u8]> + Clone,
    position: Position,
) -> Result<usize> {
    let open = open_for_writing(io.transport(), ofd)?;
    if open.flags() & o::APPEND != 0 {
        return write_at_end(io, &open, buffers, position);
    }
    position.transfer(&open, |offset| write_each(io, &open, offset, buffers))
}

/// Appends; of the position only counts whether it is the open file's offset, which moves to the end.
#[inline(never)]
fn write_at_end<'b>(
    io: &Io,
    open: &OpenFile<'_>,
    buffers: impl Iterator<Item = &'b [u8]> + Clone,
    position: Position,
) -> Result<usize> {
    match position {
        Position::At(offset) if offset > FILE_BYTES_MAX => Err(Errno::EINVAL),
        Position::At(_) => Ok(append_counted(io, open, buffers)?.count),
        Position::Current => {
            let guard = open.words.lock_offset();
            let appended = append_counted(io, open, buffers)?;
            open.words.offset.store(appended.end, Relaxed);
            drop(guard);
            Ok(appended.count)
        }
    }
}

/// `pwritev2(2)` with `RWF_APPEND`: writes at the end and leaves the file offset alone.
pub(crate) fn write_appending<'b>(
    io: &Io,
    ofd: OfdIndex,
    buffers: impl Iterator<Item = &'b [u8]> + Clone,
) -> Result<usize> {
    Ok(append_counted(io, &open_for_writing(io.transport(), ofd)?, buffers)?.count)
}

/// Appends, and counts that.
fn append_counted<'b>(
    io: &Io,
    open: &OpenFile<'_>,
    buffers: impl Iterator<Item = &'b [u8]> + Clone,
) -> Result<Appended> {
    let activity = &io.transport().activity;
    let length = buffers.clone().next().map_or(0, <[u8]>::len);
    let timer = activity.begin_transfer(open.counted(), Transfer::Write, length);
    let appended = append::append_each(io, open, buffers)
        .map_err(|errno| activity.failed(OpClass::Write, errno))?;
    timer.end(appended.end.saturating_sub(appended.count as u64), appended.count);
    Ok(appended)
}

#[inline(never)]
fn write_each<'b>(
    io: &Io,
    open: &OpenFile<'_>,
    offset: u64,
    buffers: impl Iterator<Item = &'b [u8]> + Clone,
) -> Result<usize> {
    let activity = &io.transport().activity;
    let length = buffers.clone().next().map_or(0, <[u8]>::len);
    let timer = activity.begin_transfer(open.counted(), Transfer::Write, length);
    let mut done = 0usize;
    'all: for mut buffer in buffers {
        while !buffer.is_empty() {
            let at = offset.saturating_add(done as u64);
            let length = part_bytes(at, buffer.len());
            let (part, rest) = buffer.split_at_checked(length).unwrap_or((buffer, &[]));
            match write_at(io, open, at, part) {
                Ok(count) => {
                    done = done.saturating_add(count);
                    if count < part.len() {
                        break 'all;
                    }
                }
                Err(_) if done > 0 => break 'all,
                Err(errno) => return Err(activity.failed(OpClass::Write, errno)),
            }
            buffer = rest;
        }
    }
    timer.end(offset, done);
    Ok(done)
}

/// Of so many bytes at an offset, those to the end of the part; all if they are not more than one.
fn part_bytes(offset: u64, length: usize) -> usize {
    if length as u64 <= PART_BYTES {
        return length;
    }
    usize::try_from(PART_BYTES - offset % PART_BYTES).unwrap_or(usize::MAX)
}

/// Writes at an offset; fewer bytes than requested when space runs out or at the largest size.
pub(crate) fn write_at(io: &Io, open: &OpenFile<'_>, offset: u64, from: &[u8]) -> Result<usize> {
    let left = io.transport().size_limit().checked_sub(offset).filter(|&left| left > 0);
    let left = usize::try_from(left.ok_or(Errno::EFBIG)?).unwrap_or(usize::MAX);
    let from = from.get(..from.len().min(left)).unwrap_or(from);
    if from.is_empty() {
        return Ok(0);
    }
    let mut retries = TruncateRetries::new();
    loop {
        if let Some(count) = write_once(io, open, offset, from)? {
            return Ok(count);
        }
        retries.pause(io.transport())?;
    }
}

/// `None` if a truncation intervened: it is unknown how much of the bytes is left.
#[inline]
fn write_once(io: &Io, open: &OpenFile<'_>, offset: u64, from: &[u8]) -> Result<Option<usize>> {
    let truncate_epoch = size::settled_epoch(io.transport(), open)?;
    if open.file().is_inline() && write_inline(io.transport(), open, truncate_epoch, offset, from)?
    {
        page_caches::invalidate(io.transport(), open)?;
        return Ok(Some(from.len()));
    }
    let write_behind = write_behind::is_write_behind(io.transport(), open);
    if write_behind {
        open.vnode.take_failure()?;
    } else {
        // Another process writes behind: its bytes in flight must not arrive after these.
        write_behind::settle(io.transport(), open.vnode)?;
    }
    let begins_beyond = offset > open.size();
    let count = match extents::write_extents(
        io,
        open,
        offset,
        from,
        write_behind,
        (Some(truncate_epoch), || Ok(())),
        // The bytes that are there can be written back, while the next ones wait for space. A truncation
        // is found at the end.
        |end| {
            let _ = note_written(io.transport(), open, truncate_epoch, end);
        },
    ) {
        Err(Errno::EAGAIN) => return Ok(None),
        count => count?,
    };
    if begins_beyond && !open.file().is_sparse() {
        note_hole(io.transport(), open);
    }
    let end = offset.saturating_add(count as u64);
    if note_written(io.transport(), open, truncate_epoch, end).is_err() {
        return Ok(None);
    }
    page_caches::invalidate(io.transport(), open)?;
    Ok(Some(count))
}

/// Notes that everything before `end` may have been written, and reports the size if it is time.
///
/// # Errors
/// `Truncated`: the write must be repeated.
#[inline(always)]
fn note_written(
    transport: &Transport,
    open: &OpenFile<'_>,
    truncate_epoch: TruncateEpoch,
    end: u64,
) -> core::result::Result<(), Truncated> {
    if open.note_written(truncate_epoch, end)? {
        report_size(transport, open);
    }
    Ok(())
}

#[cold]
#[inline(never)]
fn report_size(transport: &Transport, open: &OpenFile<'_>) {
    // Only early news: a later report repeats it and returns the error.
    let _ = size::flush(transport, open.vnode, open.inode);
}

/// Tells the shard, once per open file, that `st_blocks` differs from the size. A hint; failure
/// has no other consequence.
#[cold]
pub(crate) fn note_hole(transport: &Transport, open: &OpenFile<'_>) {
    let change = Change { mask: set::SPARSE | set::BY_DESCRIPTOR, ..Change::default() };
    if let Ok(attributes) = change::apply(transport, open.inode, &change, &own_credentials()) {
        open.set_layout(&attributes);
    }
}

/// Writes into an inline file; false if it is not inline, then its extents must be written.
fn write_inline(
    transport: &Transport,
    open: &OpenFile<'_>,
    truncate_epoch: TruncateEpoch,
    offset: u64,
    from: &[u8],
) -> Result<bool> {
    if offset.saturating_add(from.len() as u64) > layout::inline_bytes(transport) {
        inline::move_out(transport, open)?;
        return Ok(false);
    }
    let request = Request::WriteInline { inode: open.inode, offset, bytes: from };
    let to = Destination::Shard(open.inode.shard());
    let answer = match by_descriptor(transport.call(to, &request, &own_credentials())) {
        Err(Errno::EFBIG) => {
            inline::move_out(transport, open)?;
            return Ok(false);
        }
        answer => answer?,
    };
    answer.with(|reply| match reply {
        Reply::Attributes { attributes } => {
            let _ = open.vnode.raise(truncate_epoch, attributes.size);
            Ok(true)
        }
        Reply::Moved { attributes } => {
            inline::note_moved_out(open, truncate_epoch, &attributes);
            Ok(false)
        }
        _ => Err(Errno::EIO),
    })
}

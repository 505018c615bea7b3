//! Appending: the shard hands out disjoint ranges at the end of the file, so that writers on any
//! host lose nothing.

use shm::host::{TruncateEpoch, Vnode};
use wire::errno::{Errno, Result};
use wire::limits::FILE_BYTES_MAX;
use wire::reply::{TRUNCATE_EPOCH_OF_FIRST_DAEMON, TRUNCATE_EPOCH_OF_HOST, TRUNCATE_EPOCH_UNKNOWN};
use wire::{Reply, Request};

use crate::file::open_file::OpenFile;
use crate::file::size::TruncateRetries;
use crate::file::{inline, layout, size};
use crate::io::{Io, extents};
use crate::kernel_cache::page_caches;
use crate::transport::Transport;
use crate::transport::errno::by_descriptor;
use crate::transport::request::{Destination, own_credentials};

/// Result of an append.
pub(crate) struct Appended {
    pub(crate) count: usize,
    /// First offset after it.
    pub(crate) end: u64,
}

/// Validity of an append range: it ends with the next truncation, after which the range may be
/// given to another writer.
#[derive(Clone, Copy)]
struct EpochCheck<'a> {
    vnode: &'a Vnode,
    /// The truncate epoch in which the range was handed out.
    truncate_epoch: TruncateEpoch,
}

impl EpochCheck<'_> {
    /// # Errors
    /// `EAGAIN` if the file was truncated since.
    fn check(&self) -> Result<()> {
        if self.vnode.truncate_epoch() == self.truncate_epoch { Ok(()) } else { Err(Errno::EAGAIN) }
    }
}

/// Appends all buffers as one range.
pub(crate) fn append_each<'b>(
    io: &Io,
    open: &OpenFile<'_>,
    buffers: impl Iterator<Item = &'b [u8]> + Clone,
) -> Result<Appended> {
    let length = buffers.clone().fold(0u64, |sum, part| sum.saturating_add(part.len() as u64));
    if length == 0 {
        return Ok(Appended { count: 0, end: size::size_now(io.transport(), open)? });
    }
    let length = length_within_limit(io.transport(), open, length)?;
    let mut retries = TruncateRetries::new();
    loop {
        // Small buffers are not gathered: programs that append records write each as a whole.
        if open.file().is_inline()
            && let Some(appended) = append_inline(io.transport(), open, buffers.clone(), length)?
        {
            page_caches::invalidate(io.transport(), open)?;
            return Ok(appended);
        }
        if let Some(appended) = append_once(io, open, buffers.clone(), length)? {
            return Ok(appended);
        }
        retries.pause(io.transport())?;
    }
}

/// Takes a range and writes it; `None` if a truncation meanwhile took the range away.
fn append_once<'b>(
    io: &Io,
    open: &OpenFile<'_>,
    buffers: impl Iterator<Item = &'b [u8]> + Clone,
    length: u64,
) -> Result<Option<Appended>> {
    // Other writers of this host may have written beyond the end without reporting it; reported
    // first, or the range would overlap their data.
    by_descriptor(size::flush(io.transport(), open.vnode, open.inode))?;
    let before = size::settled_epoch(io.transport(), open)?;
    let (start, truncate_epoch) = take_range(io.transport(), open, length, before)?;
    if start.saturating_add(length) > FILE_BYTES_MAX {
        return Err(Errno::EFBIG);
    }
    let mut epoch_check =
        truncate_epoch.map(|truncate_epoch| EpochCheck { vnode: open.vnode, truncate_epoch });
    let mut left = length;
    let count = loop {
        let written = write_range(io, open, start, buffers.clone(), left, epoch_check);
        let Some(check) = epoch_check.filter(|epoch_check| epoch_check.check().is_err()) else {
            break written?;
        };
        // The new size is known once the truncation is over, at the latest after this call.
        let truncate_epoch = size::settled_epoch(io.transport(), open)?;
        if truncate_epoch != check.truncate_epoch {
            match open.vnode.truncated_once_since(check.truncate_epoch) {
                // Truncated after or within the range: the rest of the range still belongs to
                // this append.
                Some(size) if size > start => left = left.min(size.saturating_sub(start)),
                _ => return Ok(None),
            }
        }
        epoch_check = Some(EpochCheck { truncate_epoch, ..check });
    };
    // The bytes that the truncation cut off had been written before it.
    let written = count as u64;
    let count = if written == left { usize::try_from(length).unwrap_or(count) } else { count };
    let end = start.saturating_add(count as u64);
    let epoch = epoch_check.map_or(before, |epoch_check| epoch_check.truncate_epoch);
    let _ = open.vnode.raise(epoch, start.saturating_add(written));
    page_caches::invalidate(io.transport(), open)?;
    Ok(Some(Appended { count, end }))
}

/// The part of `length` bytes that this process may append. Taking a range raises the size, so the
/// size is asked for before.
///
/// # Errors
/// `EFBIG` if there are none.
fn length_within_limit(transport: &Transport, open: &OpenFile<'_>, length: u64) -> Result<u64> {
    let limit = transport.size_limit();
    if limit == FILE_BYTES_MAX {
        return Ok(length);
    }
    let size = size::size_now(transport, open)?;
    let left = limit.checked_sub(size).filter(|&left| left > 0);
    Ok(length.min(left.ok_or(Errno::EFBIG)?))
}

/// A range, and the truncate epoch in which it was handed out if the shard can know it.
/// `before`: the current epoch.
fn take_range(
    transport: &Transport,
    open: &OpenFile<'_>,
    length: u64,
    before: TruncateEpoch,
) -> Result<(u64, Option<TruncateEpoch>)> {
    let request = Request::Append { inode: open.inode, length };
    let to = Destination::Shard(open.inode.shard());
    by_descriptor(transport.call(to, &request, &own_credentials()))?.with(|reply| match reply {
        Reply::Range { offset, truncate_epoch: TRUNCATE_EPOCH_UNKNOWN } => Ok((offset, None)),
        Reply::Range {
            offset,
            truncate_epoch: TRUNCATE_EPOCH_OF_FIRST_DAEMON | TRUNCATE_EPOCH_OF_HOST,
        } => Ok((offset, Some(before))),
        Reply::Range { offset, truncate_epoch } => {
            Ok((offset, Some(TruncateEpoch::from_number(truncate_epoch))))
        }
        _ => Err(Errno::EIO),
    })
}

/// Writes the first `left` bytes of an own range into extents. The size was reported when the
/// range was taken.
fn write_range<'b>(
    io: &Io,
    open: &OpenFile<'_>,
    start: u64,
    buffers: impl Iterator<Item = &'b [u8]>,
    left: u64,
    epoch_check: Option<EpochCheck<'_>>,
) -> Result<usize> {
    let still = || epoch_check.map_or(Ok(()), |epoch_check| epoch_check.check());
    let truncate_epoch = epoch_check.map(|epoch_check| epoch_check.truncate_epoch);
    let mut done = 0usize;
    for buffer in buffers.filter(|buffer| !buffer.is_empty()) {
        let left = usize::try_from(left).unwrap_or(usize::MAX).saturating_sub(done);
        let buffer = buffer.get(..buffer.len().min(left)).unwrap_or(buffer);
        if buffer.is_empty() {
            break;
        }
        let at = start.saturating_add(done as u64);
        match extents::write_extents(io, open, at, buffer, false, (truncate_epoch, still), |_| ()) {
            Ok(count) => {
                done = done.saturating_add(count);
                if count < buffer.len() {
                    break;
                }
            }
            Err(_) if done > 0 => break,
            Err(errno) => return Err(errno),
        }
    }
    Ok(done)
}

/// Appends to inline contents; `None` if the file is not inline or the bytes do not fit.
fn append_inline<'b>(
    transport: &Transport,
    open: &OpenFile<'_>,
    buffers: impl Iterator<Item = &'b [u8]>,
    length: u64,
) -> Result<Option<Appended>> {
    let mut bytes = [0; wire::limits::INLINE_BYTES_MAX];
    let mut filled = 0usize;
    for buffer in buffers {
        let end = filled.saturating_add(buffer.len());
        let Some(to) = bytes.get_mut(filled..end) else { break };
        to.copy_from_slice(buffer);
        filled = end;
    }
    let all = bytes.get(..filled).filter(|all| all.len() as u64 == length);
    let Some(all) = all.filter(|_| length <= layout::inline_bytes(transport)) else {
        inline::move_out(transport, open)?;
        return Ok(None);
    };
    let truncate_epoch = open.vnode.truncate_epoch();
    let request = Request::WriteInline { inode: open.inode, offset: u64::MAX, bytes: all };
    let to = Destination::Shard(open.inode.shard());
    let answer = match by_descriptor(transport.call(to, &request, &own_credentials())) {
        Err(Errno::EFBIG) => {
            inline::move_out(transport, open)?;
            return Ok(None);
        }
        answer => answer?,
    };
    answer.with(|reply| match reply {
        Reply::Placed { offset, size } => {
            let _ = open.vnode.raise(truncate_epoch, size);
            let end = offset.saturating_add(length);
            Ok(Some(Appended { count: filled, end }))
        }
        Reply::Moved { attributes } => {
            inline::note_moved_out(open, truncate_epoch, &attributes);
            Ok(None)
        }
        _ => Err(Errno::EIO),
    })
}

//! Reading: inline contents by a message, everything else from extents.

use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use shm::activity::{OpClass, Transfer};
use wire::attributes::want;
use wire::errno::{Errno, Result};
use wire::limits::{FILE_BYTES_MAX, INLINE_BYTES_MAX};
use wire::{Reply, Request};

use crate::OfdIndex;
use crate::file::layout::File;
use crate::file::open_file::OpenFile;
use crate::file::{inline, open_file, size};
use crate::io::{Io, extents, readahead, write_behind};
use crate::kernel_cache::maps;
use crate::lookup::inodes;
use crate::transport::Transport;
use crate::transport::errno::by_descriptor;
use crate::transport::request::{Destination, own_credentials};

/// Offset of a read or write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Position {
    /// The open file's offset, which advances.
    Current,
    /// This offset.
    At(u64),
}

impl Position {
    /// Transfers at this position. If it is the open file's offset, that moves by the number of bytes.
    ///
    /// # Errors
    /// EINVAL beyond the end of the largest file; those of `transfer`, with the offset unmoved.
    #[inline(always)]
    pub(crate) fn transfer(
        self,
        open: &OpenFile<'_>,
        transfer: impl FnOnce(u64) -> Result<usize>,
    ) -> Result<usize> {
        match self {
            Position::At(offset) if offset > FILE_BYTES_MAX => Err(Errno::EINVAL),
            Position::At(offset) => transfer(offset),
            Position::Current => {
                let guard = open.words.lock_offset();
                let offset = open.words.offset.load(Relaxed);
                let count = transfer(offset)?;
                open.words.offset.store(offset.saturating_add(count as u64), Relaxed);
                drop(guard);
                Ok(count)
            }
        }
    }
}

/// `read(2)`, `pread(2)`. Inlined where the position is known.
#[inline(always)]
pub(crate) fn read(io: &Io, ofd: OfdIndex, to: &mut [u8], position: Position) -> Result<usize> {
    let open = open_file::open_for(io.transport(), ofd, want::READ)?;
    maps::check_kernel_maps(io.transport(), open.vnode)?;
    position.transfer(&open, |offset| read_counted(io, &open, offset, to))
}

#[inline(always)]
fn read_counted(io: &Io, open: &OpenFile<'_>, offset: u64, to: &mut [u8]) -> Result<usize> {
    let (activity, file) = (&io.transport().activity, open.file());
    if is_plain(io, open, &file, offset, to)
        && let Some(counters) = activity.plain_transfer(open.counted(), Transfer::Read, to.len())
        && extents::read_at_once(io, &file, offset, to)
    {
        counters.count(offset, to.len() as u64);
        return Ok(to.len());
    }
    read_timed(io, open, offset, to)
}

/// True for a read that takes nothing but a copy, if the place of the bytes is known.
#[inline(always)]
fn is_plain(io: &Io, open: &OpenFile<'_>, file: &File, offset: u64, to: &[u8]) -> bool {
    !file.is_inline()
        && !to.is_empty()
        && offset.saturating_add(to.len() as u64) <= open.size()
        && !open.vnode.has_pending()
        && !readahead::may_read_ahead(io.transport(), file)
}

/// Reads wherever the bytes are, and counts that, with the time if it is due.
#[inline(never)]
fn read_timed(io: &Io, open: &OpenFile<'_>, offset: u64, to: &mut [u8]) -> Result<usize> {
    let activity = &io.transport().activity;
    let timer = activity.begin_transfer(open.counted(), Transfer::Read, to.len());
    let count = match read_at(io, open, offset, to) {
        Ok(count) => count,
        Err(errno) => return Err(activity.failed(OpClass::Read, errno)),
    };
    timer.end(offset, count);
    Ok(count)
}

/// `readv(2)`, `preadv(2)`.
pub(crate) fn read_vectored<'b>(
    io: &Io,
    ofd: OfdIndex,
    buffers: impl Iterator<Item = &'b mut [u8]>,
    position: Position,
) -> Result<usize> {
    let open = open_file::open_for(io.transport(), ofd, want::READ)?;
    maps::check_kernel_maps(io.transport(), open.vnode)?;
    position.transfer(&open, |offset| read_each(io, &open, offset, buffers))
}

fn read_each<'b>(
    io: &Io,
    open: &OpenFile<'_>,
    offset: u64,
    buffers: impl Iterator<Item = &'b mut [u8]>,
) -> Result<usize> {
    let activity = &io.transport().activity;
    let timer = activity.begin_transfer(open.counted(), Transfer::Read, 0);
    let mut done = 0usize;
    for buffer in buffers {
        let length = buffer.len();
        if length == 0 {
            continue;
        }
        match read_at(io, open, offset.saturating_add(done as u64), buffer) {
            Ok(count) => {
                done = done.saturating_add(count);
                if count < length {
                    break;
                }
            }
            Err(_) if done > 0 => break,
            Err(errno) => return Err(activity.failed(OpClass::Read, errno)),
        }
    }
    timer.end(offset, done);
    Ok(done)
}

/// Reads at an offset; fewer bytes than requested at the end of the file.
fn read_at(io: &Io, open: &OpenFile<'_>, offset: u64, to: &mut [u8]) -> Result<usize> {
    if to.is_empty() {
        return Ok(0);
    }
    let mut file = open.file();
    if file.is_inline() {
        if let Some(count) = read_inline(io.transport(), open, offset, to)? {
            return Ok(count);
        }
        file = open.file();
    }
    let end = offset.saturating_add(to.len() as u64);
    let mut size = open.size();
    if end > size {
        // The file may have grown on another host.
        size = size::size_now(io.transport(), open)?;
    }
    let left = usize::try_from(size.saturating_sub(offset)).unwrap_or(usize::MAX);
    let count = to.len().min(left);
    let Some(to) = to.get_mut(..count).filter(|to| !to.is_empty()) else { return Ok(0) };
    write_behind::settle(io.transport(), open.vnode)?;
    readahead::read_bytes(io, open, &file, offset, to)?;
    Ok(count)
}

/// Reads inline contents; `None` if the file is no longer inline.
fn read_inline(
    transport: &Transport,
    open: &OpenFile<'_>,
    offset: u64,
    to: &mut [u8],
) -> Result<Option<usize>> {
    let truncate_epoch = open.vnode.truncate_epoch();
    if let Some(attributes) = inodes::attributes_in_index(transport, open.inode) {
        if !attributes.is_inline() {
            inline::note_moved_out(open, truncate_epoch, &attributes);
            return Ok(None);
        }
        // Saves the message of the second read of every program that reads to the end.
        if offset >= attributes.size && open.vnode.dirty_end.load(SeqCst) == 0 {
            return Ok(Some(0));
        }
    }
    let length = to.len().min(INLINE_BYTES_MAX) as u32;
    let request = Request::ReadInline { inode: open.inode, offset, length };
    let to_shard = Destination::Shard(open.inode.shard());
    let answer = by_descriptor(transport.call(to_shard, &request, &own_credentials()))?;
    answer.with(|reply| match reply {
        Reply::Contents { bytes, .. } => {
            let count = bytes.len().min(to.len());
            for (to, from) in to.iter_mut().zip(bytes) {
                *to = *from;
            }
            Ok(Some(count))
        }
        Reply::Moved { attributes } => {
            inline::note_moved_out(open, truncate_epoch, &attributes);
            Ok(None)
        }
        _ => Err(Errno::EIO),
    })
}

//! Seeking, including `SEEK_DATA` and `SEEK_HOLE`.

use core::sync::atomic::Ordering::Relaxed;
use placement::extent;
use wire::attributes::mode;
use wire::errno::{Errno, Result};
use wire::limits::FILE_BYTES_MAX;
use wire::{DaemonIndex, Reply, Request};

use crate::OfdIndex;
use crate::file::layout::File;
use crate::file::open_file::{OpenFile, o, whence};
use crate::file::{layout, open_file, size};
use crate::io::write_behind;
use crate::transport::Transport;
use crate::transport::request::{Destination, own_credentials};

/// Most extents that a search for a hole inspects before it reports none: one message each.
const EXTENTS_INSPECTED_MAX: u32 = 65_536;

/// `lseek(2)`. For a directory: the offsets that a listing gave, 0, and `SEEK_CUR` with 0.
pub(crate) fn seek(transport: &Transport, ofd: OfdIndex, offset: i64, from: u32) -> Result<u64> {
    let open = open_file::by_index(transport, ofd)?;
    if open.flags() & o::PATH != 0 {
        return Err(Errno::EBADF);
    }
    let guard = open.words.lock_offset();
    let base = match from {
        whence::SET => 0,
        whence::CURRENT => open.words.offset.load(Relaxed),
        whence::END if open.mode() & mode::TYPE == mode::DIRECTORY => FILE_BYTES_MAX,
        whence::END => size::size_now(transport, &open)?,
        whence::DATA | whence::HOLE => {
            let start = u64::try_from(offset).map_err(|_| Errno::ENXIO)?;
            let size = size::size_now(transport, &open)?;
            write_behind::settle(transport, open.vnode)?;
            if start >= size {
                return Err(Errno::ENXIO);
            }
            let found = match from {
                whence::DATA => find_data(transport, &open, start, size)?.ok_or(Errno::ENXIO)?,
                _ => find_hole(transport, &open, start, size)?,
            };
            open.words.offset.store(found, Relaxed);
            return Ok(found);
        }
        _ => return Err(Errno::EINVAL),
    };
    let to = base.checked_add_signed(offset).filter(|&to| to <= FILE_BYTES_MAX);
    let to = to.ok_or(Errno::EINVAL)?;
    open.words.offset.store(to, Relaxed);
    drop(guard);
    Ok(to)
}

/// Moves the offset on by `count` if it is `from`.
pub(crate) fn advance_from(
    transport: &Transport,
    ofd: OfdIndex,
    from: u64,
    count: u64,
) -> Result<()> {
    let open = open_file::by_index(transport, ofd)?;
    let _guard = open.words.lock_offset();
    if open.words.offset.load(Relaxed) == from {
        open.words.offset.store(from.saturating_add(count).min(FILE_BYTES_MAX), Relaxed);
    }
    Ok(())
}

/// Makes a call at the offset of an open file and moves it by the number of bytes that the call
/// returns.
pub(crate) fn at_offset(
    transport: &Transport,
    ofd: OfdIndex,
    call: impl FnOnce(u64) -> Result<usize>,
) -> Result<usize> {
    let open = open_file::by_index(transport, ofd)?;
    let _guard = open.words.lock_offset();
    let offset = open.words.offset.load(Relaxed);
    let count = call(offset)?;
    open.words.offset.store(offset.saturating_add(count as u64), Relaxed);
    Ok(count)
}

/// First offset with data from `start` on, before `size`.
fn find_data(
    transport: &Transport,
    open: &OpenFile<'_>,
    start: u64,
    size: u64,
) -> Result<Option<u64>> {
    let file = open.file();
    if file.is_inline() || transport.has_copies_of(file.inode) {
        return Ok(Some(start));
    }
    let mut at = start;
    for _ in 0..EXTENTS_INSPECTED_MAX {
        // Usually there is data right here, and the target of this offset knows it.
        let own = layout::target_of(transport, &file, at)?;
        let here = next_data_on_target(transport, own, &file, at)?;
        if here == Some(at) {
            return Ok(here);
        }
        let mut nearest: Option<(u64, DaemonIndex)> = None;
        layout::each_target(transport, &file, at, size, &mut |target| {
            let found = if target == own {
                here
            } else {
                next_data_on_target(transport, target, &file, at)?
            };
            let found = found.map(|found| (found, target));
            nearest = [nearest, found].into_iter().flatten().min_by_key(|found| found.0);
            Ok(())
        })?;
        let Some((found, target)) = nearest.filter(|found| found.0 < size) else {
            return Ok(None);
        };
        if layout::target_of(transport, &file, found)? == target {
            return Ok(Some(found));
        }
        // A target that lacks bytes which are in the backing store takes any offset for data.
        // Only that of the offset knows: it is asked, and so is that of the next extent.
        at = match found > at {
            true => found,
            false => extent::at(at, file.stripe_log2()).end(),
        };
        if at >= size {
            return Ok(None);
        }
    }
    // Too many holes to look at: data, so that nothing is left out.
    Ok(Some(at))
}

fn next_data_on_target(
    transport: &Transport,
    target: DaemonIndex,
    file: &File,
    offset: u64,
) -> Result<Option<u64>> {
    let request = Request::SeekData { inode: file.inode, stripe_log2: file.stripe_log2(), offset };
    match transport.call(Destination::Target(target), &request, &own_credentials()) {
        Err(Errno::ENXIO) => Ok(None),
        answer => answer?.with(|reply| match reply {
            Reply::Number { value } => Ok(Some(value)),
            _ => Err(Errno::EIO),
        }),
    }
}

/// First hole from `start` on: an extent that begins without data, or the end.
fn find_hole(transport: &Transport, open: &OpenFile<'_>, start: u64, size: u64) -> Result<u64> {
    let file = open.file();
    // Of files with copies all may be data.
    if file.is_inline() || transport.has_copies_of(file.inode) {
        return Ok(size);
    }
    let mut at = start;
    for _ in 0..EXTENTS_INSPECTED_MAX {
        if at >= size {
            break;
        }
        if next_data_on_target(transport, layout::target_of(transport, &file, at)?, &file, at)?
            != Some(at)
        {
            return Ok(at);
        }
        at = extent::at(at, file.stripe_log2()).end();
    }
    Ok(size)
}

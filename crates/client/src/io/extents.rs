//! Extents: the bytes of a file that is not inline. On this host they are copied directly, on other
//! hosts through `remote`. `locate` finds each extent; one that has moved since is located again.

use placement::extent;
use placement::extent::Span;
use shm::activity::SlowSource;
use shm::host::TruncateEpoch;
use wire::errno::{Errno, Result};
use wire::reply::Extent;
use wire::request::ANY_TRUNCATE_EPOCH;

use crate::file::layout::File;
use crate::file::open_file::OpenFile;
use crate::file::{changing, layout};
use crate::io::locate::{ExtentLookup, MOVES_MAX, Want};
use crate::io::remote::RemoteTransfers;
use crate::io::transfer::Bytes;
use crate::io::{Io, locate, uncached_read};
use crate::transport::attachment::Attachment;

/// A call that writes at most so many bytes changes the file's size at once.
const AT_ONCE_BYTES: usize = 64 << 10;

/// Result of locating an extent for a read.
enum ReadSource<'a> {
    /// Here, with this daemon of the host.
    Extent(&'a Attachment, Extent),
    /// On another host.
    Remote,
    /// There is none; the bytes have been delivered.
    Done,
}

/// Reads from one extent in memory that this process knows, as most reads do. False: nothing was
/// read.
#[inline(always)]
pub(crate) fn read_at_once(io: &Io, file: &File, offset: u64, to: &mut [u8]) -> bool {
    let (span, at) = span_at(file, offset, 0);
    let Some((by, extent)) = locate::cached_extent(io, file, &span) else { return false };
    let within = at.wrapping_sub(span.start);
    by.memory_target().read_at_once(by.hazards(), (file.inode, extent), within, to)
}

/// As `read_at_once`, for a write. False: write again.
#[inline(always)]
pub(crate) fn write_at_once(io: &Io, file: &File, offset: u64, from: &[u8]) -> bool {
    let (span, at) = span_at(file, offset, 0);
    let Some((by, extent)) = locate::cached_extent(io, file, &span) else { return false };
    let within = at.wrapping_sub(span.start);
    by.memory_target().write_at_once(by.hazards(), (file.inode, extent), within, from)
}

/// Reads `to.len()` bytes at `offset`. Holes, and what lies beyond everything written, are
/// zeros.
///
/// # Errors
/// `EIO`.
pub(crate) fn read_extents(io: &Io, file: &File, offset: u64, to: &mut [u8]) -> Result<()> {
    let (mut done, count) = (0usize, to.len());
    while done < count {
        let (span, at) = span_at(file, offset, done);
        let length = length_in(&span, at, count.saturating_sub(done));
        let part = to.get_mut(done..done.saturating_add(length)).ok_or(Errno::EIO)?;
        if !read_extent(io, file, &span, at, part)? {
            let moved = move_all(io, file, None, offset, done, &mut Bytes::Into(to));
            return moved.map_err(|(_, errno)| errno);
        }
        done = done.saturating_add(length);
    }
    Ok(())
}

/// Writes `from` at `offset` and returns the number of bytes written, fewer than requested if
/// space ran out. With `write_behind`, bytes for other hosts may still be in flight afterwards.
/// No byte is written on this host once `still` refuses, nor, in mode `posix`, on other hosts
/// after the given truncate epoch. `is_there` hears how far the bytes are there, while others are to come
/// after at least `AT_ONCE_BYTES`.
///
/// # Errors
/// `ENOSPC` if nothing was written, `EIO`, and those of `still`.
pub(crate) fn write_extents(
    io: &Io,
    open: &OpenFile<'_>,
    offset: u64,
    from: &[u8],
    write_behind: bool,
    (truncate_epoch, still): (Option<TruncateEpoch>, impl Fn() -> Result<()> + Copy),
    is_there: impl Fn(u64),
) -> Result<usize> {
    let mut file =
        locate::prepare_extents(io.transport(), open, offset.saturating_add(from.len() as u64))?;
    if file.is_posix() {
        file.good_for = truncate_epoch.map_or(ANY_TRUNCATE_EPOCH, TruncateEpoch::number);
    }
    let file = &file;
    let _changing = changing::changing(io.transport(), open.vnode);
    let outcome = match write_local(io, file, offset, from, still, is_there) {
        Ok(done) if done == from.len() => Ok(()),
        Ok(done) => {
            let write_behind = write_behind.then_some(open);
            still().map_err(|refused| (done, refused)).and_then(|()| {
                move_all(io, file, write_behind, offset, done, &mut Bytes::From(from))
            })
        }
        Err(failed) => Err(failed),
    };
    match outcome {
        Ok(()) => Ok(from.len()),
        Err((done, _)) if done > 0 => Ok(done),
        Err((_, errno)) => Err(errno),
    }
}

/// Writes the bytes before the first that belongs to another host, and returns their number.
///
/// # Errors
/// With the number of bytes before the first that failed.
#[inline]
fn write_local(
    io: &Io,
    file: &File,
    offset: u64,
    from: &[u8],
    still: impl Fn() -> Result<()> + Copy,
    is_there: impl Fn(u64),
) -> core::result::Result<usize, (usize, Errno)> {
    let (mut done, count) = (0usize, from.len());
    while done < count {
        if done >= AT_ONCE_BYTES {
            is_there(offset.saturating_add(done as u64));
        }
        let (span, at) = span_at(file, offset, done);
        let rest = from.get(done..).unwrap_or(&[]);
        let length = length_in(&span, at, rest.len());
        let part = rest.get(..length).unwrap_or(rest);
        match write_extent(io, file, &span, at, part, (rest.len() as u64, still)) {
            Ok(true) => done = done.saturating_add(length),
            Ok(false) => break,
            Err(errno) => return Err((done, errno)),
        }
    }
    Ok(done)
}

/// Moves the caller's bytes after the first `done`, each extent where it is. Bytes for other
/// hosts may be in flight afterwards if they are written behind.
///
/// # Errors
/// With the number of bytes before the first that failed.
#[inline(never)]
fn move_all(
    io: &Io,
    file: &File,
    write_behind: Option<&OpenFile<'_>>,
    offset: u64,
    done: usize,
    bytes: &mut Bytes<'_>,
) -> core::result::Result<(), (usize, Errno)> {
    let mut remote = RemoteTransfers::new(io, file, write_behind);
    let outcome = move_each(io, &mut remote, file, offset, done, bytes);
    // An earlier transfer may have failed, too; its error takes precedence.
    remote.finish_all(bytes).and(outcome)
}

fn move_each<'a>(
    io: &'a Io,
    remote: &mut RemoteTransfers<'a>,
    file: &'a File,
    offset: u64,
    done: usize,
    bytes: &mut Bytes<'_>,
) -> core::result::Result<(), (usize, Errno)> {
    let mut done = done;
    while done < bytes.len() {
        let (span, at) = span_at(file, offset, done);
        let length = length_in(&span, at, bytes.len().saturating_sub(done));
        let moved = match move_extent(io, file, &span, at, (done, length), bytes) {
            Ok(false) => {
                if let Bytes::Into(_) = bytes {
                    let activity = &io.transport().activity;
                    activity.count_source(file.inode, SlowSource::Remote, length as u64);
                }
                layout::target_of(io.transport(), file, at)
                    .and_then(|target| remote.start(target, &span, at, (done, length), bytes))
            }
            local => local.map(drop),
        };
        moved.map_err(|errno| (done, errno))?;
        done = done.saturating_add(length);
    }
    Ok(())
}

/// Moves the bytes within one extent; false if it is on another host.
fn move_extent(
    io: &Io,
    file: &File,
    span: &Span,
    at: u64,
    (place, length): (usize, usize),
    bytes: &mut Bytes<'_>,
) -> Result<bool> {
    let range = place..place.saturating_add(length);
    match bytes {
        Bytes::Into(to) => {
            let part = to.get_mut(range).ok_or(Errno::EIO)?;
            read_extent(io, file, span, at, part)
        }
        Bytes::From(from) => {
            let preallocate = from.len().saturating_sub(place) as u64;
            let part = from.get(range).ok_or(Errno::EIO)?;
            write_extent(io, file, span, at, part, (preallocate, || Ok(())))
        }
        Bytes::Buffered(..) => Err(Errno::EIO),
    }
}

/// Reads within one extent; false if it is on another host.
#[inline]
fn read_extent(io: &Io, file: &File, span: &Span, offset: u64, to: &mut [u8]) -> Result<bool> {
    let within = offset.saturating_sub(span.start);
    for _ in 0..MOVES_MAX {
        let (by, extent) = match locate::cached_extent(io, file, span) {
            Some(known) => known,
            None => match find_to_read(io, file, span, offset, to)? {
                ReadSource::Extent(by, extent) => (by, extent),
                ReadSource::Remote => return Ok(false),
                ReadSource::Done => return Ok(true),
            },
        };
        if by.target().read(&by.hazards(), file.inode, &extent, within, to)?.is_ok() {
            if extent.tier == Extent::SSD {
                let activity = &io.transport().activity;
                activity.count_source(file.inode, SlowSource::Ssd, to.len() as u64);
            }
            return Ok(true);
        }
        io.extent_cache.forget(file.inode, span.start);
    }
    Err(Errno::EIO)
}

/// Locates the extent of `span` for a read; where there is none, fills `to`.
#[inline(never)]
fn find_to_read<'a>(
    io: &'a Io,
    file: &File,
    span: &Span,
    offset: u64,
    to: &mut [u8],
) -> Result<ReadSource<'a>> {
    match locate::find_local(io, file, span, Want::Read, 0) {
        Ok(ExtentLookup::Extent(by, extent)) => return Ok(ReadSource::Extent(by, extent)),
        Ok(ExtentLookup::Remote) => return Ok(ReadSource::Remote),
        Ok(ExtentLookup::Hole) => to.fill(0),
        Err(refused) => uncached_read::read_uncached(io.transport(), file, offset, to, refused)?,
    }
    Ok(ReadSource::Done)
}

/// Writes within one extent; false if it is on another host. `preallocate`: bytes from `offset`
/// on that the call will write in all.
#[inline(never)]
fn write_extent(
    io: &Io,
    file: &File,
    span: &Span,
    offset: u64,
    from: &[u8],
    (preallocate, still): (u64, impl Fn() -> Result<()> + Copy),
) -> Result<bool> {
    let within = offset.saturating_sub(span.start);
    for _ in 0..MOVES_MAX {
        let (by, extent) = match locate::cached_extent(io, file, span) {
            Some(known) => known,
            None => {
                match locate::find_local(
                    io,
                    file,
                    span,
                    Want::Write,
                    preallocate.saturating_add(within),
                )? {
                    ExtentLookup::Extent(by, extent) => (by, extent),
                    ExtentLookup::Hole => return Err(Errno::EIO),
                    ExtentLookup::Remote => return Ok(false),
                }
            }
        };
        let (target, hazards) = (by.target(), by.hazards());
        if target.write_if(&hazards, file.inode, &extent, within, from, still)?.is_ok() {
            return Ok(true);
        }
        io.extent_cache.forget(file.inode, span.start);
    }
    Err(Errno::EIO)
}

/// The span at `done` bytes after `offset`, and that offset in the file.
#[inline]
fn span_at(file: &File, offset: u64, done: usize) -> (Span, u64) {
    let at = offset.saturating_add(done as u64);
    (extent::at(at, file.stripe_log2()), at)
}

/// Number of bytes from `offset` on within `span`, at most `length`.
fn length_in(span: &Span, offset: u64, length: usize) -> usize {
    let left = span.end().saturating_sub(offset);
    usize::try_from(left).unwrap_or(usize::MAX).min(length)
}

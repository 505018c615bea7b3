//! Locating extents: from a range of a file to where its bytes are, by the cache of the process, the
//! hint table of the target, or a message; and allocating what is missing.

use placement::extent;
use placement::extent::Span;
use shm::activity::{SlowSource, WaitCause};
use shm::wait::now_nanos;
use wire::codec::{Field, Reader};
use wire::errno::{Errno, Result};
use wire::limits::FILE_BYTES_MAX;
use wire::reply::Extent;
use wire::request::set;
use wire::{DaemonIndex, Inode, Reply, Request};

use crate::file::change::Change;
use crate::file::layout::File;
use crate::file::open_file::OpenFile;
use crate::file::{change, layout};
use crate::io::Io;
use crate::io::extent_cache::AttachmentRef;
use crate::transport::Transport;
use crate::transport::attachment::Attachment;
use crate::transport::errno::by_descriptor;
use crate::transport::request::{Destination, own_credentials};

/// How often an extent that moved is queried again before the daemon's answers are considered
/// wrong.
pub(crate) const MOVES_MAX: u32 = 64;
/// Most stripes per query: a reply holds a few hundred extents.
const STRIPES_PER_QUERY_MAX: u64 = 64;
/// A process that has written this much of a file from its start is expected to go on: extents for
/// what follows are then requested in the same message.
const PREALLOCATE_AFTER_BYTES: u64 = 64 << 10;
/// Preallocation as a multiple of what the file has: 8 MiB written in blocks of 1 MiB take one
/// message.
const PREALLOCATE_FACTOR: u64 = 7;
/// Upper bound of the preallocation: each file being written holds this much memory that it may not
/// need, and touching fresh memory costs more than the messages saved.
const PREALLOCATE_BYTES_MAX: u64 = 16 << 20;

/// Why an extent is needed, as in `Request::MapExtents`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Want {
    Read = 0,
    Write = 1,
    /// Its space is to count as used before it is written.
    Reserve = 2,
}

/// Result of locating an extent.
pub(crate) enum ExtentLookup<'a> {
    /// On this host, reached through this attachment.
    Extent(&'a Attachment, Extent),
    /// On this host, but not allocated.
    Hole,
    /// On another host.
    Remote,
}

/// Extents in a target's reply.
pub(crate) struct MapReply {
    /// The extent that starts where the query did.
    first: Option<Extent>,
    /// End of the last extent.
    end: u64,
}

/// Prepares a file for extents up to `end`. If some lie beyond the first stripe, the shard is
/// told before they are allocated: otherwise it would not look for them when the file is
/// removed.
///
/// # Errors
/// Those of the shard; then nothing may be allocated there.
#[inline]
pub(crate) fn prepare_extents(
    transport: &Transport,
    open: &OpenFile<'_>,
    end: u64,
) -> Result<File> {
    let file = open.file();
    if is_prepared(transport, &file, end) {
        return Ok(file);
    }
    extend_layout(transport, open)
}

/// True if `prepare_extents` has nothing to do.
#[inline(always)]
pub(crate) fn is_prepared(transport: &Transport, file: &File, end: u64) -> bool {
    !file.is_short_of(end, file.stripe_log2()) || layout::is_on_one_target(transport, file)
}

#[cold]
fn extend_layout(transport: &Transport, open: &OpenFile<'_>) -> Result<File> {
    let change = Change { mask: set::LONG | set::BY_DESCRIPTOR, ..Change::default() };
    let attributes = change::apply(transport, open.inode, &change, &own_credentials());
    Ok(open.set_layout(&by_descriptor(attributes)?))
}

/// The extent of `span` and its attachment, if both are cached and valid.
#[inline]
pub(crate) fn cached_extent<'a>(
    io: &'a Io,
    file: &File,
    span: &Span,
) -> Option<(&'a Attachment, Extent)> {
    let (extent, reached_by) = io.extent_cache.get(file.inode, span.start)?;
    if reached_by.generation() != io.transport().attachments.generation() {
        return None;
    }
    Some((io.transport().attachments.by_number(reached_by.number())?, extent))
}

/// Locates the extent of `span` on this host. `preallocate` as in `extent`.
#[inline(never)]
pub(crate) fn find_local<'a>(
    io: &'a Io,
    file: &File,
    span: &Span,
    want: Want,
    preallocate: u64,
) -> Result<ExtentLookup<'a>> {
    let target = layout::target_of(io.transport(), file, span.start)?;
    if let Some((by, extent)) = hinted_extent(io, target, file, span) {
        return Ok(ExtentLookup::Extent(by, extent));
    }
    let Some(by) = io.transport().attachment_of(target, file.inode)? else {
        return Ok(ExtentLookup::Remote);
    };
    let Some(extent) = ask(io, target, file, span, want, preallocate)? else {
        return Ok(ExtentLookup::Hole);
    };
    Ok(ExtentLookup::Extent(by, extent))
}

/// How extents of a file at a target are reached until any attachment changes.
fn reached_by(transport: &Transport, target: DaemonIndex, inode: Inode) -> AttachmentRef {
    let state = transport.attachments.generation();
    let has_copies = transport.has_copies_of(inode);
    let number = if has_copies { 0 } else { transport.attached_number(target) };
    AttachmentRef::new(state, number)
}

/// The extent of `span`, from the cache, the hint table or its daemon. `preallocate`: bytes
/// from the start of the span on that the caller will write.
pub(crate) fn extent(
    io: &Io,
    target: DaemonIndex,
    file: &File,
    span: &Span,
    want: Want,
    preallocate: u64,
) -> Result<Option<Extent>> {
    match io.extent_cache.get(file.inode, span.start) {
        Some((extent, _)) => Ok(Some(extent)),
        None => ask(io, target, file, span, want, preallocate),
    }
}

/// The extent of `span` by the hint table of a target that is attached; then the cache has it.
#[inline]
fn hinted_extent<'a>(
    io: &'a Io,
    target: DaemonIndex,
    file: &File,
    span: &Span,
) -> Option<(&'a Attachment, Extent)> {
    let reached_by = reached_by(io.transport(), target, file.inode);
    let by = io.transport().attachments.by_number(reached_by.number())?;
    let extent = by.find_extent(file.inode, span.start)?;
    // A preallocated extent was allocated before it was known that the file is pinned.
    let is_right = extent.length_log2 == span.length_log2
        && (!file.is_pinned() || by.target().states.is_pinned(extent.slot));
    if !is_right {
        return None;
    }
    io.extent_cache.put(file.inode, &extent, reached_by);
    let _ = note_fetched(io, by, file.inode, &extent);
    Some((by, extent))
}

/// As `extent`, by the hint table or by a message; then the cache has it.
fn ask(
    io: &Io,
    target: DaemonIndex,
    file: &File,
    span: &Span,
    want: Want,
    preallocate: u64,
) -> Result<Option<Extent>> {
    if let Some((_, extent)) = hinted_extent(io, target, file, span) {
        return Ok(Some(extent));
    }
    // Further extents of the same target are requested in the same message. With several
    // targets they end with the stripe.
    let (length, left) = if !layout::is_spread(io.transport(), file)? {
        (preallocate.min(STRIPES_PER_QUERY_MAX << file.stripe_log2()).max(span.length()), u64::MAX)
    } else {
        let stripe = 1u64 << file.stripe_log2();
        let left = stripe.saturating_sub(span.start & stripe.saturating_sub(1));
        (preallocate.clamp(span.length(), left.max(span.length())), left)
    };
    let preallocate = match want {
        Want::Read => 0,
        Want::Write => preallocation(io, file, span, length).min(left.saturating_sub(length)),
        Want::Reserve => 0,
    };
    let mapped = map_extents(io, target, file, (span.start, length), preallocate, want)?;
    Ok(mapped.first)
}

/// How far beyond the `length` bytes from `span` on this process is expected to write. A wrong
/// guess is cheap: the target takes back what is not written to.
fn preallocation(io: &Io, file: &File, span: &Span, length: u64) -> u64 {
    let end = span.start.saturating_add(length);
    let wrote_before = |last: u64| {
        let before = extent::at(last, file.stripe_log2());
        io.extent_cache.get(file.inode, before.start).is_some()
    };
    if end < PREALLOCATE_AFTER_BYTES || !span.start.checked_sub(1).is_none_or(wrote_before) {
        return 0;
    }
    let preallocate = end.saturating_mul(PREALLOCATE_FACTOR).min(PREALLOCATE_BYTES_MAX);
    preallocate.min(FILE_BYTES_MAX.saturating_sub(end))
}

/// Drops an extent from the cache.
pub(crate) fn forget_extent(io: &Io, file: &File, span: &Span) {
    io.extent_cache.forget(file.inode, span.start);
}

/// Queries a target for extents and caches them.
fn map_extents(
    io: &Io,
    target: DaemonIndex,
    file: &File,
    (offset, length): (u64, u64),
    preallocate: u64,
    want: Want,
) -> Result<MapReply> {
    let request = Request::MapExtents {
        inode: file.inode,
        stripe_log2: file.stripe_word(),
        allocate: want as u8,
        offset,
        length,
        preallocate,
    };
    let reached_by = reached_by(io.transport(), target, file.inode);
    let by = io.transport().attachments.by_number(reached_by.number());
    let since = now_nanos();
    let mut is_fetched = false;
    let mapped = io.transport().call(Destination::Target(target), &request, &own_credentials())?;
    let mapped = mapped.with(|reply| {
        let extents = match reply {
            Reply::Extents { extents } => extents,
            Reply::ExtentsAfterWait { waited_micros, extents } => {
                io.transport().note_space_wait(waited_micros);
                extents
            }
            _ => return Err(Errno::EIO),
        };
        let mut reader = Reader::new(extents);
        let mut mapped = MapReply { first: None, end: offset };
        while !reader.rest().is_empty() {
            let extent = Extent::take(&mut reader).map_err(|_| Errno::EIO)?;
            io.extent_cache.put(file.inode, &extent, reached_by);
            is_fetched |= by.is_some_and(|by| note_fetched(io, by, file.inode, &extent));
            if extent.start == offset {
                mapped.first = Some(extent);
            }
            mapped.end = mapped.end.max(extent.start.saturating_add(extent.length()));
        }
        Ok(mapped)
    });
    if is_fetched {
        let waited = now_nanos().saturating_sub(since);
        io.transport().activity.count_wait(WaitCause::Backing, waited);
    }
    mapped
}

/// Counts an extent that was fetched from the backing store, if the caller is the first that comes to it.
fn note_fetched(io: &Io, by: &Attachment, inode: Inode, extent: &Extent) -> bool {
    let is_first = by.target().states.take_fetched(extent.slot);
    if is_first {
        io.transport().activity.count_source(inode, SlowSource::Backing, extent.length());
    }
    is_first
}

/// Allocates the extents of `offset .. end`. `offset` starts an extent, and the whole range
/// belongs to one target.
///
/// # Errors
/// `ENOSPC`, `EIO`.
pub(crate) fn reserve_extents(io: &Io, file: &File, offset: u64, end: u64) -> Result<()> {
    let target = layout::target_of(io.transport(), file, offset)?;
    let mut at = offset;
    while at < end {
        // A target that runs out of space replies with what it could allocate, and refuses the
        // query for the rest.
        let mapped = map_extents(io, target, file, (at, end.saturating_sub(at)), 0, Want::Reserve)?;
        if mapped.end <= at {
            return Err(Errno::EIO);
        }
        at = mapped.end;
    }
    Ok(())
}

//! Readahead (F4), if the instance is configured for it: bytes of other hosts are fetched before a
//! sequential reader asks for them.
//!
//! A reader that continues where its last read ended finds the next bytes in bounce buffers, which
//! the daemon has filled meanwhile. They belong to one open file description, are at most a second
//! old, and are discarded once the file changes on this host. Concurrent writes on other hosts are
//! not visible in them.

use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use core::sync::atomic::fence;
use placement::extent;
use shm::activity::SlowSource;
use shm::bounce::{Buffer, Readahead, ReadaheadLookup};
use shm::wait;
use shm::wait::{Backoff, Next};
use wire::Request;
use wire::errno::{Errno, Result};
use wire::limits::{BOUNCE_BUFFER_BYTES, BOUNCE_BUFFER_COUNT};

use crate::file::layout::File;
use crate::file::open_file::OpenFile;
use crate::file::{changing, layout};
use crate::io::{Io, extents};
use crate::transport::Transport;
use crate::transport::attachment::Attachment;
use crate::transport::request::Destination;

/// Most bounce buffers that may hold readahead.
const READAHEAD_BUFFERS_MAX: usize = BOUNCE_BUFFER_COUNT / 2;
/// Most buffers ahead of one reader: 2 MiB, a millisecond of a fast network.
const WINDOW_MAX: u64 = 8;
/// Longest age of readahead bytes that are still delivered.
const AGE_MICROS_MAX: u64 = 1_000_000;
/// Length of one sleep, after which the daemon's liveness is tested.
const SLEEP_MICROS: u64 = 10_000;

/// True if bytes of a file may be fetched before they are asked for.
#[inline(always)]
pub(crate) fn may_read_ahead(transport: &Transport, file: &File) -> bool {
    changing::readahead_enabled(transport) && !file.is_posix()
}

/// Reads all of `to` at `offset`, which is within the file.
///
/// # Errors
/// `EIO`.
pub(crate) fn read_bytes(
    io: &Io,
    open: &OpenFile<'_>,
    file: &File,
    offset: u64,
    to: &mut [u8],
) -> Result<()> {
    if !may_read_ahead(io.transport(), file) {
        return extents::read_extents(io, file, offset, to);
    }
    readahead(io, open, file, offset, to)
}

#[inline(never)]
fn readahead(io: &Io, open: &OpenFile<'_>, file: &File, offset: u64, to: &mut [u8]) -> Result<()> {
    let home = io.transport().home()?;
    let end = offset.saturating_add(to.len() as u64);
    let done = read_fetched(io.transport(), home, open, offset, to);
    if done > 0 {
        let activity = &io.transport().activity;
        activity.count_source(file.inode, SlowSource::Remote, done as u64);
    }
    let rest = to.get_mut(done..).unwrap_or_default();
    if !rest.is_empty() {
        extents::read_extents(io, file, offset.saturating_add(done as u64), rest)?;
    }
    fetch_next(io.transport(), home, open, file, (offset, end));
    Ok(())
}

/// Copies what readahead has delivered, and returns its length.
fn read_fetched(
    transport: &Transport,
    home: &Attachment,
    open: &OpenFile<'_>,
    offset: u64,
    to: &mut [u8],
) -> usize {
    let mut done = 0usize;
    while done < to.len() {
        let at = offset.saturating_add(done as u64);
        if at >= open.fetched_to() {
            break;
        }
        let Some((buffer, readahead, is_hole)) = fetched(transport, home, open, at) else { break };
        let skip = usize::try_from(at.saturating_sub(readahead.offset)).unwrap_or(usize::MAX);
        let left = (readahead.length as usize).saturating_sub(skip);
        let count = left.min(to.len().saturating_sub(done));
        let Some(part) = to.get_mut(done..done.saturating_add(count)) else { break };
        if is_hole {
            part.fill(0);
        } else if buffer.copy_out_from(skip, part).is_err() {
            break;
        }
        done = done.saturating_add(count);
        if count < left {
            buffer.keep_readahead();
        }
    }
    done
}

/// The buffer that holds the byte at `at`; waits while it is in flight.
fn fetched<'a>(
    transport: &Transport,
    home: &'a Attachment,
    open: &OpenFile<'_>,
    at: u64,
) -> Option<(Buffer<'a>, Readahead, bool)> {
    let (buffers, generation) =
        (home.session.bounce_buffers(), open.words.generation.load(Relaxed));
    let mut backoff = Backoff::new();
    let mut deadline = None;
    loop {
        match buffers.find_readahead(open.index, generation, at) {
            ReadaheadLookup::Missing => return None,
            ReadaheadLookup::Ready { buffer, readahead, is_hole } => {
                let age = wait::now_micros().saturating_sub(readahead.stamp);
                let is_good = readahead.inode == open.inode
                    && readahead.changes == open.vnode.changes.load(SeqCst)
                    && age <= AGE_MICROS_MAX;
                if !is_good {
                    // Buffers requested together with it are invalid, too.
                    buffers.discard_readahead(open.index, generation);
                    open.set_fetched_to(0);
                }
                return is_good.then_some((buffer, readahead, is_hole));
            }
            ReadaheadLookup::InFlight if backoff.pause() == Next::Poll => {}
            ReadaheadLookup::InFlight => {
                let now = wait::now_micros();
                let deadline =
                    *deadline.get_or_insert(now.saturating_add(transport.timeout_micros()));
                if now >= deadline || !home.is_alive() {
                    return None;
                }
                buffers.wait_readahead(open.index, generation, at, SLEEP_MICROS);
                // A process that shares the open file may have been killed before it submitted
                // the request.
                buffers.free_unsubmitted();
            }
        }
    }
}

/// Requests what comes next if the reader is sequential.
fn fetch_next(
    transport: &Transport,
    home: &Attachment,
    open: &OpenFile<'_>,
    file: &File,
    (offset, end): (u64, u64),
) {
    if open.read_to() != offset {
        drop_fetched(transport, open);
        open.set_fetched_to(0);
        open.set_read_to(end, 0);
        return;
    }
    let window = open.window().saturating_mul(2).clamp(1, WINDOW_MAX);
    open.set_read_to(end, window);
    let step = BOUNCE_BUFFER_BYTES as u64;
    let size = open.size();
    let limit = end.saturating_add(window.saturating_mul(step));
    let mut at = open.fetched_to().max(end);
    // Extents of this host may lie in between; a bounded number of them is skipped.
    for _ in 0..WINDOW_MAX.saturating_mul(2) {
        if at >= size {
            break;
        }
        let span = extent::at(at, file.stripe_log2());
        let cut = at.checked_div(step).unwrap_or(0).saturating_add(1).saturating_mul(step);
        let Ok(target) = layout::target_of(transport, file, at) else { break };
        if !matches!(transport.attachment_of(target, file.inode), Ok(None)) {
            at = span.end();
            continue;
        }
        let to = cut.min(span.end()).min(size);
        if to > limit
            || fetch(transport, home, open, file, (at, to), Destination::Target(target)).is_err()
        {
            break;
        }
        at = to;
        open.set_fetched_to(at);
    }
}

/// Requests one range. The daemon may refuse it; then it never arrives.
fn fetch(
    transport: &Transport,
    home: &Attachment,
    open: &OpenFile<'_>,
    file: &File,
    (offset, end): (u64, u64),
    to: Destination,
) -> Result<()> {
    let (by, worker, owner) = transport.route(to)?;
    let buffers = home.session.bounce_buffers();
    let now = wait::now_micros();
    let since = now.saturating_sub(AGE_MICROS_MAX);
    if !core::ptr::eq(by, home) || buffers.readahead_count(since) >= READAHEAD_BUFFERS_MAX {
        return Err(Errno::EAGAIN);
    }
    let buffer = buffers.try_take_stale(since)?;
    let slot = home.session.try_claim()?;
    let changes = open.vnode.changes.load(SeqCst);
    fence(SeqCst);
    if open.vnode.has_pending() {
        // A completed write has not arrived yet; the fetched bytes would be older.
        return Err(Errno::EAGAIN);
    }
    let (inode, stripe_log2) = (file.inode, file.stripe_word());
    let length = u32::try_from(end.saturating_sub(offset)).map_err(|_| Errno::EINVAL)?;
    let index = buffer.index();
    buffer.submit_readahead(&Readahead {
        file: open.index,
        generation: open.words.generation.load(Relaxed),
        inode,
        changes,
        offset,
        length,
        stamp: now,
    })?;
    let request = Request::Fetch { inode, stripe_log2, offset, length, buffer: index };
    let submitted = transport.submit_detached(to, (by, worker, owner), slot, &request);
    if submitted.is_err() {
        buffers.complete_readahead(index, None);
    }
    submitted
}

/// Discards the readahead of an open file description that is being closed.
pub(crate) fn drop_fetched(transport: &Transport, open: &OpenFile<'_>) {
    if open.fetched_to() != 0
        && let Some(home) = transport.attached_home()
    {
        home.session
            .bounce_buffers()
            .discard_readahead(open.index, open.words.generation.load(Relaxed));
    }
}

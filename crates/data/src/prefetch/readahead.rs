//! Readahead for files that are read in order (*streams*).
//!
//! A reader that reads a backed file from its beginning, or after an extent that is here, opens a
//! stream: the next extents of the file on this target are filled, up to a window ahead of the
//! reader. `unread` shows how far it has read:
//! then the window moves with the reader, and doubles up to the maximum. Each target does so for
//! the stripes that it has.
//!
//!   none --a miss in order--> stream
//!   stream --one of its extents is used--> stream, further on
//!   stream --none is used for `IDLE_MILLIS`--> none

use crate::admission::job::Need;
use crate::backing::fill::{FillRequest, Purpose};
use crate::effect::FillJob;
use crate::prefetch::Lower;
use crate::space::pool::Pool;
use placement::extent;
use std::collections::BTreeMap;
use wire::{Inode, Layout};

/// Initial window: bytes in flight ahead of a new reader.
const WINDOW_FIRST: u64 = 8 << 20;
/// Maximum window.
const WINDOW_MAX: u64 = 64 << 20;
/// A stream ends if nobody read on for this time.
const IDLE_MILLIS: u32 = 2000;
/// Most streams.
const STREAMS_MAX: usize = 256;
/// Most stripes that are searched for the target's previous one.
const STRIPES_BACK_MAX: u64 = 1024;

/// A file that is read in order.
#[derive(Clone, Copy, Debug)]
struct Stream {
    layout: Layout,
    /// The file was read up to this offset.
    read: u64,
    /// The file was examined up to this offset.
    next: u64,
    window: u64,
    since: u32,
    /// The job that missed bytes last.
    job: FillJob,
}

/// The streams.
#[derive(Clone, Debug, Default)]
pub(crate) struct Readahead(BTreeMap<Inode, Stream>);

impl Readahead {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Ends the stream of a file.
    pub(crate) fn end_stream(&mut self, inode: Inode) {
        self.0.remove(&inode);
    }

    /// True if the file has a stream that has not been read up to `end`.
    pub(crate) fn is_ahead_of(&self, inode: Inode, end: u64) -> bool {
        self.0.get(&inode).is_some_and(|stream| end > stream.read)
    }

    /// A reader read up to `end`.
    pub(crate) fn note_progress(&mut self, inode: Inode, end: u64, now: u32) {
        if let Some(stream) = self.0.get_mut(&inode) {
            stream.read = stream.read.max(end);
            stream.window = (stream.window * 2).min(WINDOW_MAX);
            stream.since = now;
        }
    }

    /// A reader misses bytes: if it reads in order, the next extents are filled, too. The backing
    /// store has `counts` bytes of the file.
    pub(crate) fn continue_stream(&mut self, need: &Need, counts: u64, lower: &mut Lower<'_>) {
        let &Need { inode, stripe_log2, offset, end, job, .. } = need;
        let layout = lower.backed.fills.layout(inode);
        let Some(layout) = layout.filter(|one| one.stripe_log2 == stripe_log2) else { return };
        let is_known = self.0.contains_key(&inode);
        if end >= counts || (!is_known && !is_sequential(lower.pool, inode, &layout, offset)) {
            return;
        }
        if !is_known && self.0.len() >= STREAMS_MAX {
            return;
        }
        let now = lower.pool.now;
        let (read, next, window, since) = (end, end, WINDOW_FIRST, now);
        let fresh = Stream { layout, read, next, window, since, job };
        let stream = self.0.entry(inode).or_insert(fresh);
        if end < stream.read || end > stream.next {
            // The reader is elsewhere now.
            *stream = fresh;
        }
        (stream.since, stream.job) = (now, job);
        stream.top_up(inode, counts, lower);
    }

    /// Brings up more for all streams. Ends those that nobody reads; returns their files.
    pub(crate) fn top_up_all(&mut self, lower: &mut Lower<'_>) -> Vec<Inode> {
        let mut over = Vec::new();
        for (&inode, stream) in &mut self.0 {
            match lower.backed.fills.end(inode) {
                Some(counts) if lower.pool.now.wrapping_sub(stream.since) < IDLE_MILLIS => {
                    stream.top_up(inode, counts, lower);
                }
                _ => over.push(inode),
            }
        }
        over.iter().for_each(|&inode| self.end_stream(inode));
        over
    }
}

impl Stream {
    /// Fills what is missing in the window.
    fn top_up(&mut self, inode: Inode, counts: u64, lower: &mut Lower<'_>) {
        let until = self.read.saturating_add(self.window).min(counts);
        for span in lower.pool.member().spans(inode, self.layout, (self.next, until)) {
            let Lower { pool, tiering, backed, out } = lower;
            let is_free = pool.is_vacant(inode, &span);
            // Readahead evicts nothing, except to keep the reserve free.
            let bytes_left = pool.memory().bytes_free().saturating_sub(span.length());
            let reserved = pool.of_allowance(tiering.order.clean.reserve_bytes());
            let has_space = pool.memory().has_ample(span.length())
                && bytes_left > reserved / 2
                && !backed.fills.is_starving()
                && backed.fills.has_space_for_readahead(self.job);
            let (job, purpose) = (self.job, Purpose::STREAM);
            let request = FillRequest { inode, span, counts, purpose, job };
            if is_free
                && (!has_space || backed.fills.fill_one(pool, tiering, request, out) != Ok(true))
            {
                break;
            }
            self.next = span.end();
        }
    }
}

/// True if this target's part of the file before `offset` ends in an extent that is here, or if it
/// has none.
fn is_sequential(pool: &Pool, inode: Inode, layout: &Layout, offset: u64) -> bool {
    let log2 = layout.stripe_log2;
    let first = extent::at(offset, log2);
    let stripe = first.start >> log2;
    let last_before = if first.start.is_multiple_of(1 << log2) {
        let mut before = (stripe.saturating_sub(STRIPES_BACK_MAX)..stripe).rev();
        match before.find(|&before| pool.member().has(layout, inode, before)) {
            Some(before) => ((before + 1) << log2) - 1,
            None => return stripe <= STRIPES_BACK_MAX,
        }
    } else {
        first.start - 1
    };
    pool.slots().at(inode, extent::at(last_before, log2).start).is_some()
}

//! What is brought up before it is read: sections of a file that somebody reads in order (*streams*), and
//! how readers get on with what `wish` brought.
//!
//! Who reads on in a file from below, from its beginning or behind a piece that is here, opens a stream:
//! the next pieces that this target has of the file are filled, a window of the file ahead of him. A
//! look at the marks of those pieces, every few milliseconds, shows how far he is: then the window moves
//! with him, and is twice as long each time, up to the most. Each target does so for the chunks that it
//! has.
//!
//!   none --a piece is missed in order--> stream
//!   stream --one of its pieces is used--> stream, further on
//!   stream --none is used for `IDLE_MILLIS`--> none
//!
//! Invariant: what `unread` says of a slot was true when it was filled; it is looked at again before it
//! is believed.

use crate::effect::Effect;
use crate::fill::{Need, Purpose};
use crate::target::Target;
use placement::piece::{self, Span};
use std::collections::BTreeMap;
use wire::reply::Piece;
use wire::{DaemonIndex, Inode, Layout};

/// How much of a file is under way in front of who begins to read it.
const WINDOW_FIRST: u64 = 8 << 20;
/// And in front of who reads on.
const WINDOW_MAX: u64 = 64 << 20;
/// A stream ends if nobody read on for so long.
const IDLE_MILLIS: u32 = 2000;
/// Streams at once.
const STREAMS_MAX: usize = 256;
/// Most marks that are looked at in one step.
const LOOKS_MAX: usize = 512;
/// Most chunks that are looked at for the one before another.
const CHUNKS_BACK_MAX: u64 = 1024;

/// Which target of how many this is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Member {
    pub(crate) index: DaemonIndex,
    pub(crate) count: u16,
}

impl Member {
    pub(crate) fn has(&self, layout: &Layout, inode: Inode, chunk: u64) -> bool {
        self.count <= 1 || placement::locate::target(layout, inode, chunk, self.count) == self.index
    }

    /// The pieces of `from .. end` of a file that this target has, or would have.
    pub(crate) fn spans(
        self,
        inode: Inode,
        layout: Layout,
        (from, end): (u64, u64),
    ) -> impl Iterator<Item = Span> {
        let log2 = layout.chunk_log2;
        let chunks = from >> log2..end.div_ceil(1 << log2);
        let own = chunks.filter(move |&chunk| self.has(&layout, inode, chunk));
        own.flat_map(move |chunk| {
            let (from, end) = (from.max(chunk << log2), end.min((chunk + 1) << log2));
            piece::over(from, end.saturating_sub(from), log2)
        })
    }
}

/// A piece that was brought up and that nobody read yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unread {
    inode: Inode,
    start: u64,
    pub(crate) length: u64,
    /// Of which list, and where in it.
    pub(crate) place: Option<(u64, u64)>,
    /// Somebody else's look took the mark away.
    is_used: bool,
}

/// A file that is read in order.
#[derive(Clone, Copy, Debug)]
struct Stream {
    layout: Layout,
    /// What lies before was read.
    read: u64,
    /// What lies before was looked at.
    next: u64,
    window: u64,
    since: u32,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ahead {
    unread: BTreeMap<u32, Unread>,
    hand: u32,
    streams: BTreeMap<Inode, Stream>,
}

impl Ahead {
    /// The mark of a slot was taken away, and it was set.
    pub(crate) fn note_used(&mut self, slot: u32) {
        if let Some(unread) = self.unread.get_mut(&slot) {
            unread.is_used = true;
        }
    }

    /// Bytes of a list that nobody read yet.
    pub(crate) fn unread_bytes(&self, list: u64) -> u64 {
        let of_list = |one: &&Unread| one.place.is_some_and(|place| place.0 == list);
        self.unread.values().filter(of_list).map(|one| one.length).sum()
    }

    /// Forgets a list.
    pub(crate) fn end_list(&mut self, list: u64) {
        self.unread.retain(|_, one| one.place.is_none_or(|place| place.0 != list));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.unread.is_empty() && self.streams.is_empty()
    }

    /// Nobody reads on in a file.
    pub(crate) fn end_stream(&mut self, inode: Inode) {
        self.streams.remove(&inode);
        self.unread.retain(|_, one| one.inode != inode || one.place.is_some());
    }
}

impl Target {
    /// Somebody misses bytes that he reads: if he reads in order, what is next comes, too.
    pub(crate) fn stream_on(&mut self, need: &Need, counts: u64, out: &mut Vec<Effect>) {
        let inode = need.inode();
        let Some(layout) = self.fills.layout(inode).filter(|one| one.chunk_log2 == need.chunk())
        else {
            return;
        };
        let (offset, end) = need.range();
        let is_known = self.ahead.streams.contains_key(&inode);
        if end >= counts || (!is_known && !self.reads_on(inode, &layout, offset)) {
            return;
        }
        if !is_known && self.ahead.streams.len() >= STREAMS_MAX {
            return;
        }
        let now = self.moves.now();
        let fresh = Stream { layout, read: end, next: end, window: WINDOW_FIRST, since: now };
        let stream = self.ahead.streams.entry(inode).or_insert(fresh);
        if end < stream.read || end > stream.next {
            // He is elsewhere now.
            *stream = fresh;
        }
        stream.since = now;
        self.top_up(inode, counts, out);
    }

    /// True if what this target has of the file before `offset` ends there and is here, or it has none.
    fn reads_on(&self, inode: Inode, layout: &Layout, offset: u64) -> bool {
        let log2 = layout.chunk_log2;
        let first = piece::at(offset, log2);
        let chunk = first.start >> log2;
        let last_before = if first.start.is_multiple_of(1 << log2) {
            let mut before = (chunk.saturating_sub(CHUNKS_BACK_MAX)..chunk).rev();
            match before.find(|&before| self.member.has(layout, inode, before)) {
                Some(before) => ((before + 1) << log2) - 1,
                None => return chunk <= CHUNKS_BACK_MAX,
            }
        } else {
            first.start - 1
        };
        self.slots.at(inode, piece::at(last_before, log2).start).is_some()
    }

    fn top_up(&mut self, inode: Inode, counts: u64, out: &mut Vec<Effect>) {
        let Some(stream) = self.ahead.streams.get(&inode).copied() else { return };
        let until = stream.read.saturating_add(stream.window).min(counts);
        let mut next = stream.next;
        for span in self.member.spans(inode, stream.layout, (next, until)) {
            let is_free = self.slots.over(inode, span.start, span.end()).next().is_none();
            // Nothing is dropped for what nobody asked for, but to keep the reserve.
            let left = self.memory.bytes_free().saturating_sub(span.length());
            let has_room = self.memory.has_ample(span.length())
                && left > self.of_allowance(self.clean.reserve_bytes()) / 2
                && !self.fills.is_starving()
                && self.fills.has_room_ahead();
            let purpose = Purpose::STREAM;
            if is_free
                && (!has_room || self.fill_one(inode, span, counts, purpose, out) != Ok(true))
            {
                break;
            }
            next = span.end();
        }
        if let Some(stream) = self.ahead.streams.get_mut(&inode) {
            stream.next = next;
        }
    }

    /// A piece came: somebody is to read it.
    pub(crate) fn came(&mut self, inode: Inode, piece: &Piece, purpose: Purpose) {
        let end = piece.start + piece.length();
        let is_streamed = self.ahead.streams.get(&inode).is_some_and(|stream| end > stream.read);
        if purpose.list.is_some() || is_streamed {
            let (start, length) = (piece.start, piece.length());
            let unread = Unread { inode, start, length, place: purpose.list, is_used: false };
            self.ahead.unread.insert(piece.slot, unread);
        }
    }

    /// It is so late. To be told before what takes account of it.
    pub fn pass_time(&mut self, now_millis: u32) {
        self.moves.set_now(now_millis);
    }

    /// True if it is worth while to look how far readers are, or what can be brought up.
    #[must_use]
    pub fn is_ahead(&self) -> bool {
        !self.ahead.is_empty() || self.wishes.is_busy()
    }

    /// Looks how far readers are with what was brought up for them, and brings up more. To be called
    /// every few milliseconds while `is_ahead`. `is_used` says whether a piece was used since somebody
    /// took the mark away. True if some were, or something is under way.
    pub fn look_ahead(
        &mut self,
        now_millis: u32,
        is_used: &mut dyn FnMut(u32) -> bool,
        out: &mut Vec<Effect>,
    ) -> bool {
        self.moves.set_now(now_millis);
        let behind = self.ahead.unread.range(self.ahead.hand..);
        let before = self.ahead.unread.range(..self.ahead.hand);
        let looked: Vec<(u32, Unread)> =
            behind.chain(before).map(|(&slot, &one)| (slot, one)).take(LOOKS_MAX).collect();
        self.ahead.hand = looked.last().map_or(0, |&(slot, _)| slot.saturating_add(1));
        let mut used = Vec::new();
        for (slot, one) in looked {
            let found = self.slots.get(slot).map(|(inode, piece)| (inode, piece.start));
            let is_there = found == Some((one.inode, one.start));
            let is_read = one.is_used || is_there && is_used(slot);
            if is_read || !is_there {
                self.ahead.unread.remove(&slot);
            }
            if !is_read {
                continue;
            }
            used.push((one.place, one.inode));
            if let Some((list, index)) = one.place {
                self.reached(list, index);
            }
            if let Some(stream) = self.ahead.streams.get_mut(&one.inode) {
                stream.read = stream.read.max(one.start + one.length);
                stream.window = (stream.window * 2).min(WINDOW_MAX);
                stream.since = now_millis;
            }
        }
        // Of what was read since the last look a list's order is the likelier one.
        used.sort_unstable();
        used.iter().for_each(|&(_, inode)| self.note_use(inode));
        let streams: Vec<(Inode, u32)> =
            self.ahead.streams.iter().map(|(&inode, one)| (inode, one.since)).collect();
        for (inode, since) in streams {
            match self.fills.end(inode) {
                Some(counts) if now_millis.wrapping_sub(since) < IDLE_MILLIS => {
                    self.top_up(inode, counts, out);
                }
                _ => self.ahead.end_stream(inode),
            }
        }
        self.end_lists();
        self.finish(out);
        !used.is_empty() || self.fills.is_filling()
    }
}

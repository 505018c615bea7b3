//! Bytes that are brought to this node before a reader asks for them.
//!
//! `readahead` follows sequential readers, `queue` holds prefetch requests and paces prefetch
//! lists, `unread` shows how far readers are in extents brought up for either, `profile` notes which
//! files are read and judges lists made from an access profile. `Prefetch` owns the four and passes
//! on what one of them finds to the others.
//!
//! `Prefetch` calls the pool, `tiering` and `backing` (`Lower`). It never calls the target.

use crate::admission::job::Need;
use crate::admission::work::PrefetchArgs;
use crate::backing::BackedFiles;
use crate::backing::fill::FillEnd;
use crate::effect::{Answer, Effect};
use crate::space::pool::Pool;
use crate::tiering::Tiering;
use profile::AccessLog;
use queue::PrefetchQueue;
use readahead::Readahead;
use unread::UnreadExtents;
use wire::request::prefetch;
use wire::{Errno, Inode};

pub mod readahead;

pub mod queue;

pub mod profile;

pub(crate) mod unread;

/// The subjects below prefetching, and the list of effects.
#[derive(Debug)]
pub(crate) struct Lower<'a> {
    pub(crate) pool: &'a mut Pool,
    pub(crate) tiering: &'a mut Tiering,
    pub(crate) backed: &'a mut BackedFiles,
    pub(crate) out: &'a mut Vec<Effect>,
}

/// Prefetch requests, streams of sequential readers, and the progress of readers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Prefetch {
    pub(crate) queue: PrefetchQueue,
    pub(crate) unread: UnreadExtents,
    readahead: Readahead,
    pub(crate) accesses: AccessLog,
}

impl Prefetch {
    /// True if readers may have advanced, or something can be brought up.
    pub(crate) fn is_busy(&self) -> bool {
        !self.unread.is_empty() || !self.readahead.is_empty() || self.queue.has_any()
    }

    /// Somebody reads a file.
    pub(crate) fn note_access(&mut self, inode: Inode) {
        if let Some(list) = self.accesses.note_read(inode) {
            self.queue.remove_list(list);
        }
    }

    /// A reader misses bytes of a file, of which the backing store has `counts`.
    pub(crate) fn note_miss(&mut self, need: &Need, counts: u64, lower: &mut Lower<'_>) {
        self.queue.note_reader(need.inode, lower);
        self.readahead.continue_stream(need, counts, lower);
    }

    /// An extent was filled. True if somebody is to read it, and has not come to it.
    pub(crate) fn note_fill(&mut self, end: &FillEnd) -> bool {
        let FillEnd { inode, ref extent, purpose, .. } = *end;
        let extent_end = extent.start + extent.length();
        let is_ahead = purpose.list.is_some() || self.readahead.is_ahead_of(inode, extent_end);
        if is_ahead {
            self.unread.insert(inode, extent, purpose.list);
        }
        is_ahead
    }

    /// A file is evicted on request: nobody reads it any more.
    pub(crate) fn end_file(&mut self, inode: Inode) {
        self.queue.end(inode, None);
        self.end_stream(inode);
    }

    fn end_stream(&mut self, inode: Inode) {
        self.readahead.end_stream(inode);
        self.unread.forget_stream(inode);
    }

    /// Handles a prefetch request that is not one to evict: returns the bytes still to come, and
    /// queues the request.
    pub(crate) fn request(&mut self, args: &PrefetchArgs, lower: &Lower<'_>) -> Answer {
        if let Some(errno) = self.queue.take_failure(args.inode) {
            return Answer::Refused(errno);
        }
        let bytes_left = self.queue.bytes_left(lower.pool, lower.backed, args);
        if args.is_speculative && !self.accesses.name_speculative(args.list, args.inode) {
            return Answer::Number(bytes_left);
        }
        let is_known = self.queue.has_file(args.inode);
        if args.what == prefetch::QUERY || bytes_left == 0 || is_known {
            return Answer::Number(bytes_left);
        }
        match self.queue.add(args, lower.pool.now, &mut self.unread) {
            Ok(()) => Answer::Number(bytes_left),
            Err(errno) => Answer::Refused(errno),
        }
    }

    /// Works on the requests, as far as the limits allow.
    pub(crate) fn grant(&mut self, lower: &mut Lower<'_>) {
        self.queue.grant(&self.unread, lower);
    }

    /// A file failed to come.
    pub(crate) fn fail_file(&mut self, inode: Inode, errno: Errno) {
        self.queue.end(inode, Some(errno));
    }

    /// Checks how far readers are in what was brought up for them, and brings up more. `is_used`
    /// reads an extent's reference bit. True if some were used.
    pub(crate) fn advance(
        &mut self,
        is_used: &mut dyn FnMut(u32) -> bool,
        lower: &mut Lower<'_>,
    ) -> bool {
        let read = self.unread.look(lower.pool.slots(), is_used);
        let mut files = Vec::with_capacity(read.len());
        for one in read {
            files.push((one.list_index, one.inode));
            if let Some((list, index)) = one.list_index {
                self.queue.note_reached(list, index, lower);
            }
            self.readahead.note_progress(one.inode, one.start + one.length, lower.pool.now);
        }
        // The order of a list is the likelier order of what was read since the last check.
        files.sort_unstable();
        files.iter().for_each(|&(_, inode)| self.note_access(inode));
        for inode in self.readahead.top_up_all(lower) {
            self.unread.forget_stream(inode);
        }
        self.queue.end_lists(&mut self.unread, lower);
        !files.is_empty()
    }
}

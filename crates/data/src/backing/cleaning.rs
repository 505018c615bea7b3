//! Cleaning: extents that writeback has made durable in the backing store become clean (`eviction`)
//! when space is short or somebody requests eviction, so that they can be evicted, and filled again
//! later (`fill`).
//!
//! The file's shard knows what the backing store has. So while there are few clean extents, this
//! module goes through the files in order: it sets the cleaning mark of their extents, and queries
//! their shards whether the backing store has all of the file as it is and nobody may write to it.
//! If so, the extents that still have the mark are clean. A client that changes a byte clears the
//! mark, as it clears the clean mark; a client that had set a hazard pointer before may not see the
//! mark, so it is cleared here. The shard knows of changes made before the mark, or knows which
//! clients may have made them.
//!
//!   none --space is short--> marked        Effect::MarkCleaning, Effect::CheckHazards
//!   marked --Hazards--> queried            Effect::UnmarkCleaning if protected, Effect::QueryClean
//!   queried --Input::IsClean: yes--> none  Effect::FinishCleaning; then Input::Cleaned
//!   queried --no, or no answer in time--> none
//!
//! A file that is open for writing becomes clean range by range (`dirty_ranges`); a file uses one
//! of the two at a time.
//!
//! Files that came from the backing store are always checked for bytes there. Files created here
//! need not be, as long as no extent of any was evicted, or lost with the target before this one
//! (`may_need_fill`). Where those have copies at other targets, their extents are never clean
//! (`may_be_backed`).

use crate::backing::dirty_ranges::DirtyRanges;
use crate::effect::Effect;
use crate::space::pool::Pool;
use crate::tiering::Tiering;
use crate::tiering::clean::CleanExtents;
use std::collections::{BTreeMap, BTreeSet};
use wire::Inode;
use wire::reply::Extent;

/// Files queried at once.
const QUERIES_MAX: usize = 64;
/// Most extents that are examined in one step, or one file.
const LOOKS_MAX: usize = 1024;
/// A query without an answer for this time is repeated when it is the file's turn again.
const ANSWER_MILLIS: u32 = 1000;
/// Least time of a pass over all files, while a request waits for space and otherwise.
const PASS_MILLIS: u32 = 100;
/// See `PASS_MILLIS`.
const PASS_MILLIS_IDLE: u32 = 2000;
/// While one part in this many of the memory is clean, no queries are made.
const CLEAN_PARTS: u64 = 16;

/// Eviction keeps one part in this many of the SSD free, twice what is reserved for writers.
pub(crate) const SSD_FREE_PARTS: u64 = 8;

/// A file that is queried.
#[derive(Clone, Debug)]
struct CleanQuery {
    since: u32,
    number: u64,
    /// Its hazard pointers are checked in this round; then the shard is queried.
    round: Option<u64>,
    /// Slots that have or had the mark.
    slots: BTreeSet<u32>,
}

/// Files whose shards are queried, and the progress of the pass.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cleaning {
    has_backing: bool,
    /// Extents of files created here were evicted, or are lost, or may be.
    has_evicted_local: bool,
    /// Files created here have copies, but for those whose numbers say otherwise.
    has_copies: bool,
    queries: BTreeMap<Inode, CleanQuery>,
    /// Number of queries made.
    count: u64,
    /// Files up to this one were handled in this pass, which began at `pass_since`.
    hand: Inode,
    pass_since: Option<u32>,
    /// Number of completed passes.
    passes: u64,
}

impl Cleaning {
    /// There is a backing store; see `Target::set_backing`.
    pub(crate) const fn set_backing(&mut self, after_another: bool) {
        self.has_backing = true;
        self.has_evicted_local = after_another;
    }

    /// See `Target::set_copies`.
    pub(crate) const fn set_copies(&mut self) {
        self.has_copies = true;
    }

    /// True if files created here have copies.
    pub(crate) const fn has_copies(&self) -> bool {
        self.has_copies
    }

    /// True if there is a backing store.
    pub(crate) const fn has_backing(&self) -> bool {
        self.has_backing
    }

    /// True for a file that was created here and has its bytes at this target alone, as far as they are
    /// in the instance.
    const fn is_here_alone(&self, inode: Inode) -> bool {
        (!self.has_copies || inode.is_single()) && !inode.is_spilled()
    }

    /// Bytes of files created here are gone with the target in whose place this one is: the shards of
    /// those files know which ones have lost some.
    pub(crate) const fn set_in_place_of_lost(&mut self) {
        self.has_evicted_local = true;
    }

    /// True if the backing store may have bytes of the file that are not here, or they are lost.
    pub(crate) const fn may_need_fill(&self, inode: Inode) -> bool {
        inode.is_backed() || self.has_evicted_local && self.is_here_alone(inode)
    }

    /// True if bytes of the file that are not here may not be holes, now or once some were evicted.
    pub(crate) const fn may_be_missing(&self, inode: Inode) -> bool {
        self.may_be_backed(inode) || self.may_need_fill(inode)
    }

    /// True if the backing store may have bytes of the file, whether they are here or not.
    pub(crate) const fn may_be_backed(&self, inode: Inode) -> bool {
        inode.is_backed() || self.has_backing && self.is_here_alone(inode)
    }

    /// Notes that an extent of the file is evicted.
    pub(crate) const fn note_evicted(&mut self, inode: Inode) {
        self.has_evicted_local |= !inode.is_backed();
    }

    /// Number of completed passes after which a pass has run that began from now on: it finds
    /// everything that is durable now.
    pub(crate) const fn deciding_pass(&self) -> u64 {
        // One pass is in progress.
        self.passes + 2
    }

    /// True if this many passes are completed, or none ever runs.
    pub(crate) const fn is_pass_over(&self, pass: u64) -> bool {
        !self.has_backing || pass <= self.passes
    }

    /// True while clean extents must be found. `waits`: a request waits for space.
    pub(crate) fn wants_clean(&self, pool: &Pool, clean: &CleanExtents, waits: bool) -> bool {
        let lacks_clean = |tier: u8, (free, all): (u64, u64), reserve: u64| {
            free < reserve && clean.bytes(tier) < all / CLEAN_PARTS
        };
        let memory = (pool.memory().bytes_free(), pool.memory().bytes_total());
        let ssd = (pool.ssd().bytes_free(), pool.ssd().bytes_total());
        self.has_backing
            && (waits
                || pool.bytes_beyond(0) > 0 && clean.bytes(Extent::MEMORY) == 0
                || lacks_clean(Extent::MEMORY, memory, pool.of_allowance(clean.reserve_bytes()))
                || lacks_clean(Extent::SSD, ssd, ssd.1 / SSD_FREE_PARTS))
    }

    /// Marks files and queries their shards, as far as clean extents are wanted. `waits`: a request
    /// waits for space.
    pub(crate) fn query_clean(
        &mut self,
        pool: &mut Pool,
        tiering: &Tiering,
        ranges: &mut DirtyRanges,
        (now, waits): (u32, bool),
        out: &mut Vec<Effect>,
    ) {
        self.queries.retain(|_, query| now.wrapping_sub(query.since) < ANSWER_MILLIS);
        let mut looks = LOOKS_MAX;
        while self.queries.len() < QUERIES_MAX
            && looks > 0
            && self.wants_clean(pool, &tiering.order.clean, waits)
        {
            if self.hand.is_none() {
                let is_hurried = waits || pool.bytes_beyond(0) > 0;
                let pause = if is_hurried { PASS_MILLIS } else { PASS_MILLIS_IDLE };
                if self.pass_since.is_some_and(|since| now.wrapping_sub(since) < pause) {
                    break;
                }
                self.pass_since = Some(now);
            }
            let Some(inode) = pool.slots().file_behind(self.hand) else {
                // The pass ends when its last queries are answered.
                if self.queries.is_empty() {
                    (self.hand, self.passes) = (Inode::NONE, self.passes + 1);
                }
                break;
            };
            self.hand = inode;
            let looked = self.query_file(pool, tiering, ranges, (inode, now), out);
            looks = looks.saturating_sub(looked.max(1));
        }
    }

    /// True while a query about the file is in flight.
    pub(crate) fn is_queried(&self, inode: Inode, now: u32) -> bool {
        let query = self.queries.get(&inode);
        query.is_some_and(|query| now.wrapping_sub(query.since) < ANSWER_MILLIS)
    }

    /// Marks a file and queries its shard, if some extents may be clean and are not known to be.
    /// Returns the number of extents examined.
    pub(crate) fn query_file(
        &mut self,
        pool: &mut Pool,
        tiering: &Tiering,
        ranges: &mut DirtyRanges,
        (inode, now): (Inode, u32),
        out: &mut Vec<Effect>,
    ) -> usize {
        ranges.forget_late(now);
        let extents: Vec<Extent> = tiering.at_rest(pool, inode).collect();
        let is_known = |extent: &Extent| tiering.order.clean.contains(extent);
        let is_left = !extents.iter().all(is_known) && self.may_be_backed(inode);
        if is_left && !self.queries.contains_key(&inode) && !ranges.has(inode) {
            let slots: BTreeSet<u32> = extents.iter().map(|extent| extent.slot).collect();
            out.extend(slots.iter().map(|&slot| Effect::MarkCleaning { slot }));
            self.count += 1;
            let (number, round) = (self.count, Some(pool.note_hidden()));
            let query = CleanQuery { since: now, number, round, slots };
            self.queries.insert(inode, query);
        }
        extents.len()
    }

    /// Handles hazard check `round`: queries the shards of the files marked before it.
    pub(crate) fn note_marked(&mut self, round: u64, protected: &[u32], out: &mut Vec<Effect>) {
        for (&inode, query) in &mut self.queries {
            if query.round.is_none_or(|of| of > round) {
                continue;
            }
            query.round = None;
            for slot in protected.iter().filter(|slot| query.slots.remove(slot)) {
                out.push(Effect::UnmarkCleaning { slot: *slot });
            }
            out.push(Effect::QueryClean { inode, number: query.number });
        }
    }

    /// Handles a shard's answer. True if the file is clean: the backing store may have more of it
    /// than was known.
    pub(crate) fn note_answer(
        &mut self,
        pool: &Pool,
        tiering: &Tiering,
        (inode, number, is_clean): (Inode, u64, bool),
        out: &mut Vec<Effect>,
    ) -> bool {
        if self.queries.get(&inode).is_none_or(|query| query.number != number) {
            // A late answer says nothing about marks set since.
            return false;
        }
        let slots = self.queries.remove(&inode).map(|query| query.slots).unwrap_or_default();
        if is_clean {
            // A mark of an earlier query says nothing.
            let extents = tiering.at_rest(pool, inode);
            let extents = extents.filter(|extent| slots.contains(&extent.slot));
            out.extend(extents.map(|extent| Effect::FinishCleaning { inode, extent }));
        }
        is_clean
    }

    /// Drops the query about a file.
    pub(crate) fn forget_query(&mut self, inode: Inode) {
        self.queries.remove(&inode);
    }
}

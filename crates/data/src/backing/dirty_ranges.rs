//! Dirty ranges of a file that is open for writing: written back to its partial file in the backing
//! store, they become clean (`eviction`) one by one, so that a file may be larger than the whole
//! instance.
//!
//! The writeback daemon announces that it is about to write back some extents. These are marked as
//! in `cleaning`; the daemon is told which, copies them, and reports their backing location to the
//! file's shard. Extents that still have the mark are as they were copied, and clean.
//!
//!   none --Request::BeginWriteback--> marked      Effect::MarkCleaning, Effect::CheckHazards
//!   marked --Hazards--> reported                  Effect::UnmarkCleaning if protected; the answer
//!   reported --Request::EndWriteback--> none      Effect::FinishCleaning; then Input::Cleaned
//!   reported --another number, or too late--> none
//!
//! Invariant: a file is here or among the files queried by `cleaning`, never in both: a mark set
//! anew by the other would wrongly say that the bytes are as they were copied.

use crate::admission::work::{BeginRange, MAP_EXTENTS_MAX};
use crate::effect::{Answer, Effect};
use crate::space::pool::Pool;
use crate::tiering::Tiering;
use std::collections::{BTreeMap, BTreeSet};
use wire::Inode;
use wire::reply::Extent;

/// A range that takes longer than this must be begun again by the writeback daemon.
const RANGE_MILLIS: u32 = 60_000;
/// Most files with a range in writeback.
const RANGES_MAX: usize = 1024;

/// A range in writeback.
#[derive(Clone, Debug)]
struct DirtyRange {
    number: u64,
    since: u32,
    /// The hazard check that must be answered first, and the ticket that is answered then.
    waits: Option<(u64, u64)>,
    /// Extents that have or had the mark, by slot.
    extents: BTreeMap<u32, Extent>,
}

/// Ranges in writeback, by file.
#[derive(Clone, Debug, Default)]
pub(crate) struct DirtyRanges(BTreeMap<Inode, DirtyRange>);

impl DirtyRanges {
    /// True while a range of this file is in writeback.
    pub(crate) fn has(&self, inode: Inode) -> bool {
        self.0.contains_key(&inode)
    }

    /// Forgets ranges that take too long.
    pub(crate) fn forget_late(&mut self, now: u32) {
        self.0.retain(|_, range| {
            range.waits.is_some() || now.wrapping_sub(range.since) < RANGE_MILLIS
        });
    }

    /// Begins a range; the request is answered after the hazard check, or at once. The file is not
    /// among those that `cleaning` queries.
    pub(crate) fn begin(
        &mut self,
        pool: &mut Pool,
        tiering: &Tiering,
        (ticket, begin): (u64, &BeginRange),
        out: &mut Vec<Effect>,
    ) {
        if let Some(extents) = self.begin_range(pool, tiering, (ticket, begin), out) {
            out.push(Effect::Reply { ticket, answer: Answer::Extents(extents) });
        }
    }

    /// Returns the extents that may differ from the backing store; `None`: the ticket is answered
    /// later.
    fn begin_range(
        &mut self,
        pool: &mut Pool,
        tiering: &Tiering,
        (ticket, begin): (u64, &BeginRange),
        out: &mut Vec<Effect>,
    ) -> Option<Vec<Extent>> {
        let clean = &tiering.order.clean;
        let BeginRange { inode, number, offset, most } = *begin;
        if number == 0 {
            let extents = pool.slots().over(inode, offset, u64::MAX);
            // An extent hidden for eviction may have been changed before.
            let differ = extents
                .filter(|extent| !clean.contains(extent) || clean.is_evicting(inode, extent.start));
            // The caller reads by file and offset, and needs no locations.
            let plain = |extent: Extent| Extent { location: 0, tier: Extent::MEMORY, ..extent };
            return Some(differ.take(MAP_EXTENTS_MAX).map(plain).collect());
        }
        self.forget_range(inode, out);
        let (mut extents, mut bytes) = (BTreeMap::new(), 0);
        for extent in tiering.at_rest(pool, inode).filter(|extent| extent.start >= offset) {
            if bytes >= most || extents.len() >= MAP_EXTENTS_MAX {
                break;
            }
            if !clean.contains(&extent) {
                bytes += extent.length();
                extents.insert(extent.slot, extent);
            }
        }
        if extents.is_empty() || self.0.len() >= RANGES_MAX {
            return Some(Vec::new());
        }
        out.extend(extents.keys().map(|&slot| Effect::MarkCleaning { slot }));
        let (since, waits) = (pool.now, Some((pool.note_hidden(), ticket)));
        self.0.insert(inode, DirtyRange { number, since, waits, extents });
        None
    }

    /// Handles hazard check `round`: answers the requests that wait for it.
    pub(crate) fn answer_marked(&mut self, round: u64, protected: &[u32], out: &mut Vec<Effect>) {
        for range in self.0.values_mut() {
            let Some((_, ticket)) = range.waits.filter(|&(of, _)| of <= round) else { continue };
            range.waits = None;
            for slot in protected.iter().filter(|slot| range.extents.remove(slot).is_some()) {
                out.push(Effect::UnmarkCleaning { slot: *slot });
            }
            let mut extents_to_write: Vec<Extent> = range.extents.values().copied().collect();
            extents_to_write.sort_by_key(|extent| extent.start);
            out.push(Effect::Reply { ticket, answer: Answer::Extents(extents_to_write) });
        }
    }

    /// Ends a range: the backing store has its extents as they were copied, except those that end
    /// after `end`. The writeback daemon may have seen less of these, because a writer reports the
    /// file's size after its bytes. False if there is no such range.
    pub(crate) fn end_range(
        &mut self,
        pool: &Pool,
        tiering: &Tiering,
        (inode, number, end): (Inode, u64, u64),
        out: &mut Vec<Effect>,
    ) -> bool {
        let is_it = |range: &DirtyRange| range.number == number && range.waits.is_none();
        if !self.0.get(&inode).is_some_and(is_it) {
            return false;
        }
        let extents = self.0.remove(&inode).map(|range| range.extents).unwrap_or_default();
        let slots: BTreeSet<u32> = extents.into_keys().collect();
        let is_whole = |extent: &Extent| extent.start + extent.length() <= end;
        let left = tiering.at_rest(pool, inode).filter(|extent| slots.contains(&extent.slot));
        let left = left.filter(is_whole);
        out.extend(left.map(|extent| Effect::FinishCleaning { inode, extent }));
        true
    }

    /// Drops a range; a request that waits for it gets no extents.
    fn forget_range(&mut self, inode: Inode, out: &mut Vec<Effect>) {
        if let Some(DirtyRange { waits: Some((_, ticket)), .. }) = self.0.remove(&inode) {
            out.push(Effect::Reply { ticket, answer: Answer::Extents(Vec::new()) });
        }
    }
}

//! Movement of extents between memory, the SSD and the memory of other nodes.
//!
//! From the ground up: `clock` is the replacement policy and `fairness` decides whose data leaves
//! first; `clean`, `pinned`, `ssd_scan` and `dirty_extents` are records of extents; `replacement` has
//! them all, and says which extent leaves next; `spill` has extents in other nodes' memory; `moves`
//! has the mechanics of a move. On top, `demote`, `promote` and `pinning` decide what moves. `watermarks`
//! sets when demotion begins; `allowance` and `lending_policy` handle memory that is lent to the
//! node's programs.
//!
//! `Tiering` stands on the pool (`space::pool`) and knows nothing of the backing store, of
//! prefetching, or of requests. Extents whose bytes the backing store has leave without a copy:
//! that is `backing::eviction`.

use crate::effect::Effect;
use crate::space::pool::Pool;
use moves::Moves;
use replacement::{DemotionSettings, Replacement};
use spill::Spill;
use wire::reply::Extent;
use wire::{DaemonIndex, Inode};

pub mod clock;

pub mod fairness;

pub(crate) mod clean;

pub(crate) mod ssd_scan;

pub(crate) mod dirty_extents;

pub mod pinned;

pub(crate) mod replacement;

pub mod moves;

pub mod demote;

pub mod promote;

pub(crate) mod pinning;

pub mod spill;

pub mod watermarks;

pub mod allowance;

pub mod lending_policy;

/// Which extents move, where to, and those that do.
#[derive(Clone, Debug)]
pub(crate) struct Tiering {
    pub(crate) order: Replacement,
    pub(crate) moves: Moves,
    pub(crate) spill: Spill,
    /// Demotion has begun and goes on a little beyond its watermark.
    is_on: bool,
    /// The SSD is scanned also while there is no space, to count what would be promoted.
    counts_refaults: bool,
}

impl Tiering {
    /// Without an SSD nothing moves.
    pub(crate) fn new(demotion: DemotionSettings, has_ssd: bool) -> Tiering {
        Tiering {
            order: Replacement::new(demotion, has_ssd),
            moves: Moves::default(),
            spill: Spill::default(),
            is_on: false,
            counts_refaults: false,
        }
    }

    /// Frees an extent, whatever happens to it at present.
    pub(crate) fn give_back(
        &mut self,
        pool: &mut Pool,
        inode: Inode,
        extent: &Extent,
        out: &mut Vec<Effect>,
    ) {
        self.cancel_move(pool, inode, extent, out);
        self.order.cancel_eviction(pool, inode, extent, out);
        self.order.unwatch(extent);
        self.order.take_clean(extent);
        self.order.dirty.forget(extent.slot);
        pool.uncount(inode, extent);
        self.spill.leave_location(pool, inode, extent, out);
    }

    /// A request accesses `offset .. end` of a file: nothing there moves or is evicted.
    pub(crate) fn note_access_of(
        &mut self,
        pool: &mut Pool,
        inode: Inode,
        range: (u64, u64),
        out: &mut Vec<Effect>,
    ) {
        self.cancel_moves(pool, inode, range, out);
        self.order.cancel_evictions(pool, inode, range, out);
    }

    /// A read of another host accesses `offset .. end` of a file: nothing there is demoted or evicted.
    pub(crate) fn note_read_of(
        &mut self,
        pool: &mut Pool,
        inode: Inode,
        range: (u64, u64),
        out: &mut Vec<Effect>,
    ) {
        self.cancel_moves_for_read(pool, inode, range, out);
        self.order.cancel_evictions(pool, inode, range, out);
    }

    /// Extents of a file that neither move nor are evicted at present.
    pub(crate) fn at_rest(&self, pool: &Pool, inode: Inode) -> impl Iterator<Item = Extent> {
        pool.shown(inode, 0, u64::MAX).filter(move |extent| {
            extent.tier != Extent::SPILLED
                && !self.moves.is_moving(inode, extent.start)
                && !self.order.clean.is_evicting(inode, extent.start)
        })
    }

    /// Sets the targets of other nodes that may store extents of this one; see
    /// `Target::set_spill_hosts`.
    pub(crate) fn set_hosts(
        &mut self,
        pool: &Pool,
        hosts: impl Iterator<Item = DaemonIndex>,
        number: u64,
    ) {
        self.spill.set_hosts(hosts, number);
        self.order.has_destination = self.order.has_ssd || self.spill.is_on();
        for (inode, extent) in pool.slots().iter() {
            let in_memory = extent.tier == Extent::MEMORY;
            if in_memory
                && !self.order.clean.contains(&extent)
                && !pool.preallocation().contains(inode, &extent)
            {
                self.order.watch(pool, inode, &extent);
            }
        }
    }

    /// Checks the invariants of what extents are in which record; for tests: it examines all
    /// extents.
    #[cfg(test)]
    pub(crate) fn check_records(&self, pool: &Pool) {
        let Tiering { order, moves, .. } = self;
        let on_ssd = |(inode, extent): &(Inode, Extent)| {
            extent.tier == Extent::SSD
                && !moves.is_moving(*inode, extent.start)
                && !order.clean.contains(extent)
        };
        order.ssd_scan.check(pool.slots().iter().filter(on_ssd).map(|(_, extent)| extent.slot));
        let stays = |(inode, extent): &(Inode, Extent)| {
            order.pinned.contains(*inode)
                && extent.tier == Extent::MEMORY
                && !pool.preallocation().contains(*inode, extent)
                && !moves.is_moving(*inode, extent.start)
        };
        let stay =
            pool.slots().iter().filter(stays).map(|(_, extent)| (extent.slot, extent.length()));
        order.dirty.check(pool.slots().iter().map(|(_, extent)| extent));
        order.pinned.check(stay, |slot| {
            let (inode, extent) = pool.slots().get(slot).expect("a clean slot has no extent");
            order.pinned.contains(inode) && !order.clean.contains(&extent)
        });
    }
}

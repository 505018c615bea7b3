//! Settings, and what recovery restores after `Target::recover`. To be called at the start, unless
//! another time is named.

use super::Target;
use crate::effect::Effect;
use crate::space::member::Member;
use std::collections::BTreeMap;
use wire::quota::{Account, Owner};
use wire::reply::Extent;
use wire::{DaemonIndex, Inode};

impl Target {
    /// Sets this target's index among `count` targets.
    pub fn set_member(&mut self, index: DaemonIndex, count: u16) {
        self.pool.set_member(Member { index, count });
    }

    /// Tells that there is a backing store. `after_another`: an earlier daemon may have evicted
    /// extents of files created here. To be called at the start.
    pub fn set_backing(&mut self, after_another: bool) {
        self.backed.cleaning.set_backing(after_another);
    }

    /// Tells that files created here have copies at other targets, but for those whose numbers say
    /// otherwise (`Inode::is_single`): what is here of them is never clean,
    /// so it is not evicted, and what is missing is not looked for in the backing store. To be called at
    /// the start.
    pub fn set_copies(&mut self) {
        self.backed.cleaning.set_copies();
    }

    /// Tells that the target is in the place of one that was lost with all its bytes. To be called at the
    /// start.
    pub fn set_in_place_of_lost(&mut self) {
        self.backed.cleaning.set_in_place_of_lost();
    }

    /// Sets the targets of other nodes that may store extents of this one. Numbers begin after
    /// `number`, which must be above any that was ever used; its lower 48 bits count. To be called
    /// at the start.
    pub fn set_spill_hosts(
        &mut self,
        spill_hosts: impl IntoIterator<Item = DaemonIndex>,
        number: u64,
    ) {
        self.tiering.set_hosts(&self.pool, spill_hosts.into_iter(), number);
    }

    /// Sets the rate of moves that no request waits for, in bytes per second; 0: unlimited.
    pub fn set_tiering_rate(&mut self, bytes_per_second: u64) {
        self.tiering.moves.set_rate(bytes_per_second);
    }

    /// Sets the rate of fills for prefetch requests, in bytes per second; 0: unlimited.
    pub fn set_prefetch_rate(&mut self, bytes_per_second: u64) {
        self.prefetch.queue.set_rate_limit(bytes_per_second);
    }

    /// Starts recording files for `take_accessed_files`.
    pub fn record_accesses(&mut self) {
        self.prefetch.accesses.record();
    }

    /// Starts counting usage by account, beginning with the extents that exist.
    pub fn count(&mut self) {
        self.pool.begin_accounts();
    }

    /// Sets the limits of accounts in bytes, at any time; accounts not named have none.
    pub fn allow(&mut self, allowed: BTreeMap<Account, u64>) {
        self.pool.set_limits(allowed);
    }

    /// Sets the owner of a file, which changed at `changed`, at any time; an older change is
    /// ignored. A removed file belongs to `Owner::GONE`.
    pub fn set_owner(&mut self, inode: Inode, owner: Owner, changed: i64) {
        self.pool.set_owner(inode, owner, changed);
        if self.pool.usage().is_on() {
            self.tiering.order.note_owner(&self.pool, inode);
        }
    }

    /// Notes extents of a file that are not clean any more because a client changed them. To be
    /// called before `Request::BeginWriteback`: clients send no message when they change bytes.
    pub fn note_changed(&mut self, inode: Inode, is_clean: &dyn Fn(u32) -> bool) {
        let Target { pool, tiering, .. } = self;
        for extent in pool.slots().over(inode, 0, u64::MAX) {
            let is_known = tiering.order.clean.contains(&extent);
            let is_evicting = tiering.order.clean.is_evicting(inode, extent.start);
            if is_known && !is_clean(extent.slot) && !is_evicting {
                tiering.order.note_dirty(pool, inode, &extent);
            }
        }
    }

    /// Recovery: these extents are preallocated.
    pub fn restore_preallocated(&mut self, found: impl Iterator<Item = (Inode, Extent)>) {
        let Target { pool, tiering, .. } = self;
        for (inode, extent) in found {
            if extent.tier == Extent::MEMORY && pool.slots().at(inode, extent.start) == Some(extent)
            {
                pool.note_preallocated(inode, &extent);
                tiering.order.unwatch(&extent);
            }
        }
    }

    /// Recovery: these extents are clean.
    pub fn restore_clean(&mut self, found: impl Iterator<Item = (Inode, Extent)>) {
        self.tiering.order.restore_clean(&self.pool, found);
    }

    /// Recovery: extents of these files carry the mark of pinned files.
    pub fn restore_pinned(&mut self, found: impl Iterator<Item = Inode>, out: &mut Vec<Effect>) {
        for inode in found {
            self.tiering.set_file_pinned(&mut self.pool, inode, true, i64::MIN, out);
        }
    }

    /// Recovery: spill hosts may hold these remote locations, which are not needed.
    pub fn restore_released_spill(
        &mut self,
        entries: impl IntoIterator<Item = (u32, u64)>,
        out: &mut Vec<Effect>,
    ) {
        self.tiering.spill.restore_released(&mut self.pool, entries.into_iter(), out);
    }

    /// Recovery: nobody knows whether the device holds the free space; `give_back` makes sure that
    /// it does not, or returns false if it cannot. To be called before the first step.
    pub fn forget_free_memory(&mut self, give_back: &mut dyn FnMut(u64, u64) -> bool) {
        self.pool.forget_free_memory(give_back);
    }
}

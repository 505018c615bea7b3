//! Spilling: memory that must be given back to programs of this node, or is full where there is no
//! SSD, moves to the memory of other nodes (O9, O17, O19); so do extents of a slow target (`migration`).
//!
//! The target of a file's extents is computed from its number, and does not change: this target
//! keeps the entry of a spilled extent, and a request that needs its bytes waits until they are
//! back (`target::fetch`), except reads of other hosts while this target is slow (`migration`). So
//! clients and metadata know nothing of spilling, and one place decides which bytes count. The target
//! that stores them, the *spill host*, has them as a file of its own, under an inode number that no
//! shard issues (`Inode::spilled`) and that is used once. It may demote the extent to its SSD; but it
//! accepts extents only while it has spare space, and never spills them further.
//!
//! An extent is spilled as it is demoted (`demote`): hidden, copied, and then its entry names the
//! host. The entry of a new remote location is written before the copy begins, marked as gone:
//! after a kill such entries name what a spill host may hold that is not needed
//! (`restore_released_spill`). The slot is free again when the host has released the extent.
//!
//!   none --a move begins--> leaving      Effect::RecordSpillIntent, Effect::Hide; see `demote`
//!   leaving --Copied: yes--> spilled     Effect::Publish, Effect::Unpublish of the old location
//!   leaving --Copied: no; accessed--> released       Effect::ReleaseSpilled
//!   spilled --accessed--> returning      a move to a local location
//!   returning --Copied: yes--> released  Effect::Publish locally, Effect::ReleaseSpilled
//!   returning --Copied: no--> spilled    the request is refused
//!   spilled --truncated, removed--> released         Effect::Unpublish, Effect::ReleaseSpilled
//!   released --SpilledReleased--> none   Effect::Forget
//!
//! Invariants:
//!  1. A released remote location has a reserved slot, and no extent has its number.
//!  2. Only a copy to it changes the file of a spilled extent's number on the spill host.

use crate::effect::Effect;
use crate::space::pool::Pool;
use std::collections::{BTreeMap, BTreeSet};
use wire::reply::Extent;
use wire::{DaemonIndex, Inode};

/// A spill host that refused is not asked for this time.
const REFUSED_MILLIS: u32 = 1000;
/// In the location of a spilled extent, the extent's number is below this bit and the spill host's
/// index from it on.
const SPILL_HOST_SHIFT: u32 = 48;

/// A target that may store extents of this one.
#[derive(Clone, Copy, Debug)]
struct SpillHost {
    index: DaemonIndex,
    refused_at: Option<u32>,
}

/// Spill hosts, and counters of spilled extents.
#[derive(Clone, Debug, Default)]
pub(crate) struct Spill {
    spill_hosts: Vec<SpillHost>,
    /// Index of the next spill host to try.
    next: usize,
    next_number: u64,
    /// Spilled extents of this target: number and bytes.
    count: usize,
    bytes: u64,
    /// Remote locations being released, by their slots.
    releasing: BTreeMap<u32, u64>,
}

/// Bytes that are not stored on the target that their file's layout names.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct SpilledBytes {
    /// Bytes of this target in the memory of others.
    pub spilled_out: u64,
    /// Bytes of other targets stored here.
    pub spilled_in: u64,
}

/// Spill host of a spilled extent, and its inode number there.
#[must_use]
pub fn spill_host(home: DaemonIndex, extent: &Extent) -> (DaemonIndex, Inode) {
    let index = DaemonIndex((extent.location >> SPILL_HOST_SHIFT) as u16);
    (index, Inode::spilled(home, extent.location))
}

impl Spill {
    /// True if some spill host may accept an extent now.
    pub(crate) fn may_take(&self, now: u32) -> bool {
        self.spill_hosts.iter().any(|spill_host| spill_host.is_open(now))
    }

    /// True if there are spill hosts.
    pub(crate) const fn is_on(&self) -> bool {
        !self.spill_hosts.is_empty()
    }

    /// A remote location that was never used, at one of the hosts that `is_such` names.
    pub(crate) fn new_location(
        &mut self,
        now: u32,
        is_such: &dyn Fn(DaemonIndex) -> bool,
    ) -> Option<u64> {
        let count = self.spill_hosts.len();
        let mut all = (0..count).map(|one| (self.next + one) % count);
        let may_take = |host: &SpillHost| host.is_open(now) && is_such(host.index);
        let at = all.find(|&at| may_take(&self.spill_hosts[at]))?;
        self.next = (at + 1) % count;
        self.next_number += 1;
        Some(u64::from(self.spill_hosts[at].index.0) << SPILL_HOST_SHIFT | self.next_number)
    }

    fn count_in(&mut self, extent: &Extent) {
        self.count += 1;
        self.bytes += extent.length();
    }

    fn count_out(&mut self, extent: &Extent) {
        self.count -= 1;
        self.bytes -= extent.length();
    }

    /// Sets the targets that may store extents of this one; numbers begin after `number`.
    pub(crate) fn set_hosts(&mut self, hosts: impl Iterator<Item = DaemonIndex>, number: u64) {
        self.spill_hosts = hosts.map(|index| SpillHost { index, refused_at: None }).collect();
        self.next_number = number & ((1 << SPILL_HOST_SHIFT) - 1);
    }

    /// True if no extent is spilled.
    pub(crate) const fn is_none_out(&self) -> bool {
        self.count == 0
    }

    /// Bytes of spilled extents.
    pub(crate) const fn bytes_out(&self) -> u64 {
        self.bytes
    }

    /// Tier to which an extent in memory is demoted; the tier has space for it, as far as is known.
    pub(crate) fn demotion_tier(&self, pool: &Pool, inode: Inode, length: u64) -> Option<u8> {
        let bytes_left = pool.ssd().bytes_free().checked_sub(length);
        let to_ssd = bytes_left
            .is_some_and(|bytes_left| bytes_left >= pool.ssd_reserved_bytes())
            .then_some(Extent::SSD);
        let may_go = !inode.is_spilled() && self.may_take(pool.now);
        let spill = may_go.then_some(Extent::SPILLED);
        // The SSD is nearer, but slower than programs can take the memory that they want back.
        if pool.bytes_beyond(0) > 0 { spill.or(to_ssd) } else { to_ssd.or(spill) }
    }

    /// Releases a remote location that a move will not use, or whose extent is elsewhere or gone.
    /// Its slot is reserved.
    pub(crate) fn release_remote(&mut self, slot: u32, location: u64, out: &mut Vec<Effect>) {
        self.releasing.insert(slot, location);
        out.push(Effect::ReleaseSpilled { slot, location });
    }

    /// The spill host has released it.
    pub(crate) fn note_released(&mut self, pool: &mut Pool, slot: u32, out: &mut Vec<Effect>) {
        if self.releasing.remove(&slot).is_some() {
            pool.unreserve_slot(slot);
            out.push(Effect::Forget { slot });
        }
    }

    /// An extent was spilled, or a spill host refused it.
    pub(crate) fn note_spill_result(&mut self, now: u32, to: &Extent, went: bool) {
        if to.tier != Extent::SPILLED {
            return;
        }
        if went {
            return self.count_in(to);
        }
        let index = spill_host(DaemonIndex(0), to).0;
        let mut spill_hosts = self.spill_hosts.iter_mut();
        if let Some(spill_host) = spill_hosts.find(|spill_host| spill_host.index == index) {
            spill_host.refused_at = Some(now);
        }
    }

    /// An extent, spilled or not, leaves its file or its location.
    pub(crate) fn leave_location(
        &mut self,
        pool: &mut Pool,
        inode: Inode,
        extent: &Extent,
        out: &mut Vec<Effect>,
    ) {
        if extent.tier != Extent::SPILLED {
            return pool.leave(inode, extent, out);
        }
        self.count_out(extent);
        pool.depart(inode, extent);
        out.push(Effect::Unpublish { slot: extent.slot });
        self.release_remote(extent.slot, extent.location, out);
    }

    /// Recovery: spill hosts may hold these remote locations, which are not needed.
    pub(crate) fn restore_released(
        &mut self,
        pool: &mut Pool,
        entries: impl Iterator<Item = (u32, u64)>,
        out: &mut Vec<Effect>,
    ) {
        let extents = pool.slots().iter().filter(|(_, extent)| extent.tier == Extent::SPILLED);
        let held: BTreeSet<u64> = extents.map(|(_, extent)| extent.location).collect();
        for (slot, location) in entries {
            if !held.contains(&location) && pool.reserve_slot_at(slot) {
                self.release_remote(slot, location, out);
            }
        }
    }

    /// Recovery: counts what is spilled, and what is stored for others.
    pub(crate) fn restore_counts(&mut self, pool: &mut Pool) {
        let extents: Vec<_> = pool.slots().iter().collect();
        for (inode, extent) in extents {
            pool.count_hosted(inode, extent.length().cast_signed());
            if extent.tier == Extent::SPILLED {
                self.count_in(&extent);
            }
        }
    }

    /// Checks the invariants; for tests: it examines all extents.
    #[cfg(test)]
    pub(crate) fn check(&self, pool: &Pool) {
        let there = || pool.slots().iter().filter(|(_, extent)| extent.tier == Extent::SPILLED);
        assert_eq!(there().count(), self.count);
        assert_eq!(there().map(|(_, extent)| extent.length()).sum::<u64>(), self.bytes);
        let hosted = pool.slots().iter().filter(|(inode, _)| inode.is_spilled());
        assert_eq!(hosted.map(|(_, extent)| extent.length()).sum::<u64>(), pool.hosted_bytes());
        for (slot, location) in &self.releasing {
            assert_eq!(pool.slots().get(*slot), None, "a slot being released is in use");
            assert!(
                there().all(|(_, extent)| extent.location != *location),
                "the location of an extent was released"
            );
        }
    }
}

impl SpillHost {
    fn is_open(&self, now: u32) -> bool {
        self.refused_at.is_none_or(|at| now.wrapping_sub(at) >= REFUSED_MILLIS)
    }
}

//! Slots of the extent table, and the extents of each file in order.
//!
//! The table that clients see is in shared memory (`shm::extents`) and is written by effects; this
//! is the target's own record of it.
//!
//!   Free --insert--> Used --leave--> Leaving --free--> Free
//!                                    (a client may still copy under a hazard pointer)
//!   Free --reserve--> Reserved --occupy--> Used       an extent that is filled first, or moves
//!                     Reserved --unreserve--> Free
//!   Used --depart--> Reserved                         an extent whose location no client reaches
//!
//! Invariants:
//!  1. `extents` names exactly the used slots, and extents of one file do not overlap.
//!  2. The location of a leaving slot is not freed, and the slot is not reused.

use std::collections::BTreeMap;
use std::ops::Bound;
use wire::Inode;
use wire::reply::Extent;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum SlotState {
    Free,
    Used(Inode, Extent),
    Reserved,
    Leaving(Extent),
}

/// A slot that waits until no hazard pointer protects it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct LeavingSlot {
    slot: u32,
    /// The first hazard check after it was hidden.
    round: u64,
}

/// All slots.
#[derive(Clone, Debug)]
pub struct Slots {
    states: Vec<SlotState>,
    free: Vec<u32>,
    count_max: u32,
    /// Slots whose entries in the table have memory: new ones are below it.
    count_ready: u32,
    extents: BTreeMap<(Inode, u64), u32>,
    leaving: Vec<LeavingSlot>,
}

impl Slots {
    /// An empty table of at most `count_max` slots.
    #[must_use]
    pub const fn new(count_max: u32) -> Slots {
        Slots {
            states: Vec::new(),
            free: Vec::new(),
            count_max,
            count_ready: count_max,
            extents: BTreeMap::new(),
            leaving: Vec::new(),
        }
    }

    /// Number of slots that were ever in use. New ones follow them.
    #[must_use]
    pub const fn count(&self) -> u32 {
        self.states.len() as u32
    }

    /// Lets the slots below `count` be used, and not those behind, unless they are in use.
    pub fn allow(&mut self, count: u32) {
        self.count_ready = count.min(self.count_max);
    }

    /// A slot for the next extent; it stays free until it is taken. `None` if all are in use.
    pub fn vacant(&mut self) -> Option<u32> {
        if self.free.is_empty() && self.states.len() < self.count_ready as usize {
            self.free.push(self.states.len() as u32);
            self.states.push(SlotState::Free);
        }
        self.free.last().copied()
    }

    /// Fills the slot that `vacant` returned.
    pub fn insert(&mut self, inode: Inode, extent: Extent) {
        let slot = self.free.pop();
        assert_eq!(slot, Some(extent.slot), "an extent must take the slot that was vacant");
        self.fill(inode, extent);
    }

    /// Publishes an extent in its reserved slot.
    pub fn occupy(&mut self, inode: Inode, extent: Extent) {
        let row = &mut self.states[extent.slot as usize];
        assert_eq!(*row, SlotState::Reserved, "slot={} was not reserved", extent.slot);
        *row = SlotState::Free;
        self.fill(inode, extent);
    }

    fn fill(&mut self, inode: Inode, extent: Extent) {
        let row = &mut self.states[extent.slot as usize];
        assert_eq!(*row, SlotState::Free, "slot={} is in use", extent.slot);
        *row = SlotState::Used(inode, extent);
        let before = self.extents.insert((inode, extent.start), extent.slot);
        assert!(before.is_none(), "two extents at start={}", extent.start);
    }

    /// Recovery: fills the slots of entries that were found, each with a different slot.
    pub fn restore(&mut self, found: &[(Inode, Extent)]) {
        let count = found.iter().map(|(_, extent)| extent.slot + 1).max().unwrap_or(0);
        assert!(count <= self.count_max && self.states.is_empty(), "restore into a used table");
        self.states.resize(count as usize, SlotState::Free);
        for &(inode, extent) in found {
            self.fill(inode, extent);
        }
        let is_free = |slot: &u32| self.states[*slot as usize] == SlotState::Free;
        self.free = (0..count).rev().filter(is_free).collect();
    }

    /// Recovery: restores an extent that had left before; its slot waits until hazard check `round`
    /// is answered. False if the slot is in use.
    pub fn restore_leaving(&mut self, extent: Extent, round: u64) -> bool {
        if !self.grow_to(extent.slot) {
            return false;
        }
        self.states[extent.slot as usize] = SlotState::Leaving(extent);
        self.free.retain(|&slot| slot != extent.slot);
        self.leaving.push(LeavingSlot { slot: extent.slot, round });
        true
    }

    fn used(&self, slot: u32) -> Extent {
        match self.states.get(slot as usize) {
            Some(SlotState::Used(_, extent)) => *extent,
            other => unreachable!("slot={slot} holds {other:?}"),
        }
    }

    /// The extent of a slot and its file.
    #[must_use]
    pub fn get(&self, slot: u32) -> Option<(Inode, Extent)> {
        match self.states.get(slot as usize) {
            Some(&SlotState::Used(inode, extent)) => Some((inode, extent)),
            _ => None,
        }
    }

    /// Takes a slot for an extent that is filled or moved. `None` if all are in use.
    pub fn reserve(&mut self) -> Option<u32> {
        let slot = self.vacant()?;
        self.free.pop();
        self.states[slot as usize] = SlotState::Reserved;
        Some(slot)
    }

    /// Frees a reserved slot.
    pub fn unreserve(&mut self, slot: u32) {
        let row = &mut self.states[slot as usize];
        assert_eq!(*row, SlotState::Reserved, "slot={slot} was not reserved");
        *row = SlotState::Free;
        self.free.push(slot);
    }

    /// The extents of `inode` that overlap `offset .. end`, in order.
    pub fn over(&self, inode: Inode, offset: u64, end: u64) -> impl Iterator<Item = Extent> {
        let before = self.extents.range((inode, 0)..=(inode, offset)).next_back();
        let first = before
            .map(|(_, &slot)| self.used(slot))
            .filter(|extent| extent.start + extent.length() > offset && offset < end);
        let behind = (inode, offset.saturating_add(1))..(inode, end.max(offset.saturating_add(1)));
        first.into_iter().chain(self.extents.range(behind).map(|(_, &slot)| self.used(slot)))
    }

    /// The first extent of `inode`.
    #[must_use]
    pub fn first(&self, inode: Inode) -> Option<Extent> {
        let (_, &slot) = self.extents.range((inode, 0)..=(inode, u64::MAX)).next()?;
        Some(self.used(slot))
    }

    /// The extent of `inode` that begins at `start`.
    #[must_use]
    pub fn at(&self, inode: Inode, start: u64) -> Option<Extent> {
        self.extents.get(&(inode, start)).map(|&slot| self.used(slot))
    }

    /// Removes an extent from its file. Its slot waits until hazard check `round` is answered.
    pub fn leave(&mut self, inode: Inode, extent: &Extent, round: u64) {
        let slot = self.extents.remove(&(inode, extent.start));
        assert_eq!(slot, Some(extent.slot), "an extent leaves that is not its file's");
        self.states[extent.slot as usize] = SlotState::Leaving(*extent);
        self.leaving.push(LeavingSlot { slot: extent.slot, round });
    }

    /// Removes an extent whose location no client reaches from its file; its slot is reserved.
    pub fn depart(&mut self, inode: Inode, extent: &Extent) {
        let slot = self.extents.remove(&(inode, extent.start));
        assert_eq!(slot, Some(extent.slot), "an extent leaves that is not its file's");
        self.states[extent.slot as usize] = SlotState::Reserved;
    }

    /// Reserves this slot. False if it is in use or does not exist.
    pub fn reserve_at(&mut self, slot: u32) -> bool {
        if !self.grow_to(slot) {
            return false;
        }
        self.free.retain(|&free| free != slot);
        self.states[slot as usize] = SlotState::Reserved;
        true
    }

    /// Grows the table to include a slot. False if the slot is in use or beyond the maximum.
    fn grow_to(&mut self, slot: u32) -> bool {
        if slot >= self.count_max {
            return false;
        }
        while self.states.len() <= slot as usize {
            self.free.push(self.states.len() as u32);
            self.states.push(SlotState::Free);
        }
        self.states[slot as usize] == SlotState::Free
    }

    /// Frees the slots that left in round `round` or before and are not in `protected`; `with`
    /// receives their extents.
    pub fn free(&mut self, round: u64, protected: &[u32], mut with: impl FnMut(Extent)) {
        let mut protected = protected.to_vec();
        protected.sort_unstable();
        let Slots { states, free, leaving, .. } = self;
        leaving.retain(|leaving_slot| {
            if leaving_slot.round > round || protected.binary_search(&leaving_slot.slot).is_ok() {
                return true;
            }
            let row = &mut states[leaving_slot.slot as usize];
            let SlotState::Leaving(extent) = *row else {
                unreachable!("slot={} is listed as leaving and holds {row:?}", leaving_slot.slot)
            };
            *row = SlotState::Free;
            free.push(leaving_slot.slot);
            with(extent);
            false
        });
    }

    /// Slots that wait until no hazard pointer protects them.
    #[must_use]
    pub fn leaving_count(&self) -> usize {
        self.leaving.len()
    }

    /// True if some slot left after round `round`: its hazard pointers have not been checked yet.
    #[must_use]
    pub fn left_after(&self, round: u64) -> bool {
        self.leaving.last().is_some_and(|leaving_slot| leaving_slot.round > round)
    }

    /// The next file after `inode` that has extents.
    #[must_use]
    pub fn file_behind(&self, inode: Inode) -> Option<Inode> {
        let behind = (Bound::Excluded((inode, u64::MAX)), Bound::Unbounded);
        self.extents.range(behind).next().map(|(&(inode, _), _)| inode)
    }

    /// All used slots with their files.
    pub fn iter(&self) -> impl Iterator<Item = (Inode, Extent)> {
        self.extents.iter().map(|(&(inode, _), &slot)| (inode, self.used(slot)))
    }
}

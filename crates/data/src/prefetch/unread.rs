//! Extents that were brought up for a reader and not read yet: how far readers are in them.
//!
//! Every few milliseconds the reference bits of these extents are read (`look`). A bit that another
//! scan cleared is noted here (`note_used`).
//!
//! Invariant: what is said of a slot was true when it was filled; it is verified before it is used.

use crate::space::slots::Slots;
use std::collections::BTreeMap;
use wire::Inode;
use wire::reply::Extent;

/// Most reference bits that are read in one step.
const LOOKS_MAX: usize = 512;

/// An extent that was brought up and not read yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unread {
    pub(crate) inode: Inode,
    pub(crate) start: u64,
    pub(crate) length: u64,
    /// Its prefetch list and index in it.
    pub(crate) list_index: Option<(u64, u64)>,
    /// Another scan cleared the reference bit.
    is_used: bool,
}

/// All of them, by slot.
#[derive(Clone, Debug, Default)]
pub(crate) struct UnreadExtents {
    extents: BTreeMap<u32, Unread>,
    /// Slots before this one were looked at in this pass.
    hand: u32,
}

impl UnreadExtents {
    /// An extent was filled, for a stream or a list: somebody is to read it.
    pub(crate) fn insert(&mut self, inode: Inode, extent: &Extent, list_index: Option<(u64, u64)>) {
        let (start, length) = (extent.start, extent.length());
        let unread = Unread { inode, start, length, list_index, is_used: false };
        self.extents.insert(extent.slot, unread);
    }

    /// A scan read and cleared the reference bit of a slot; returns what it found.
    pub(crate) fn note_used(&mut self, slot: u32, is_used: bool) -> bool {
        if is_used && let Some(unread) = self.extents.get_mut(&slot) {
            unread.is_used = true;
        }
        is_used
    }

    /// True if an extent is among them, and no scan has found it used.
    pub(crate) fn has(&self, inode: Inode, extent: &Extent) -> bool {
        let found = self.extents.get(&extent.slot);
        found.is_some_and(|one| (one.inode, one.start, one.is_used) == (inode, extent.start, false))
    }

    /// Unread bytes of a list.
    pub(crate) fn bytes_of_list(&self, list: u64) -> u64 {
        let of_list = |one: &&Unread| one.list_index.is_some_and(|list_index| list_index.0 == list);
        self.extents.values().filter(of_list).map(|one| one.length).sum()
    }

    /// Forgets a list.
    pub(crate) fn forget_list(&mut self, list: u64) {
        self.extents.retain(|_, one| one.list_index.is_none_or(|list_index| list_index.0 != list));
    }

    /// Forgets the extents of a file that were brought up because it is read in order.
    pub(crate) fn forget_stream(&mut self, inode: Inode) {
        self.extents.retain(|_, one| one.inode != inode || one.list_index.is_some());
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.extents.is_empty()
    }

    /// Reads some reference bits, in turn; returns what was read since, and forgets it. `is_used`
    /// reads an extent's reference bit.
    pub(crate) fn look(
        &mut self,
        slots: &Slots,
        is_used: &mut dyn FnMut(u32) -> bool,
    ) -> Vec<Unread> {
        let behind = self.extents.range(self.hand..);
        let before = self.extents.range(..self.hand);
        let looked: Vec<(u32, Unread)> =
            behind.chain(before).map(|(&slot, &one)| (slot, one)).take(LOOKS_MAX).collect();
        self.hand = looked.last().map_or(0, |&(slot, _)| slot.saturating_add(1));
        let mut read = Vec::new();
        for (slot, one) in looked {
            let found = slots.get(slot).map(|(inode, extent)| (inode, extent.start));
            let is_there = found == Some((one.inode, one.start));
            let is_read = one.is_used || is_there && is_used(slot);
            if is_read || !is_there {
                self.extents.remove(&slot);
            }
            if is_read {
                read.push(one);
            }
        }
        read
    }
}

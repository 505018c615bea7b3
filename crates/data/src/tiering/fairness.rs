//! Fairness between users: the user that holds the most bytes of a tier frees space first. (O14
//! asks which *file* is the coolest; with several users the first question is whose.)
//!
//! Each user whose files are known (`accounts`) is a *holder* with its own lists in each policy
//! (`clock`). When a tier must free space, holders are considered in order of the bytes that they
//! hold there, most first, and the coldest extent of each is the victim. A holder loses nothing
//! before all larger holders have only hot extents left. A holder with no more than an equal share
//! also keeps its clean extents while others hold demotable extents beyond theirs. So a burst, or a
//! sequential scan, of one user takes from another only what is beyond an equal share.
//!
//! Without accounting, and for extents whose owner is not known yet, there is one holder:
//! `ANYBODY`.
//!
//! Invariant: a number in `numbers` belongs to one user; a user without extents may lose it.

use crate::tiering::clock::{ANYBODY, ClockPolicy};
use std::collections::{BTreeMap, BTreeSet};
use wire::reply::Extent;

/// The policies over the extents that may leave: memory without clean extents, clean extents in
/// memory, clean extents on the SSD.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Policies<'a> {
    pub(crate) memory: &'a ClockPolicy,
    pub(crate) clean: &'a [ClockPolicy; 2],
}

impl Policies<'_> {
    /// Bytes of a tier that a holder has and that may leave.
    pub(crate) fn held(&self, holder: u8, tier: u8) -> u64 {
        let [memory, ssd] = self.clean;
        match tier {
            Extent::MEMORY => self.memory.bytes_of(holder) + memory.bytes_of(holder),
            _ => ssd.bytes_of(holder),
        }
    }
}

/// Holder numbers by user.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fairness {
    numbers: BTreeMap<u32, u8>,
}

impl Fairness {
    /// A number for a user; the numbers in `empty` have no extents and can be reused. Without a
    /// free number the user shares `ANYBODY`.
    fn add(&mut self, uid: u32, empty: &[u8]) -> u8 {
        if self.numbers.len() >= usize::from(u8::MAX) {
            self.numbers.retain(|_, number| !empty.contains(number));
        }
        let taken: BTreeSet<u8> = self.numbers.values().copied().collect();
        let Some(number) = (1..=u8::MAX).find(|number| !taken.contains(number)) else {
            return ANYBODY;
        };
        self.numbers.insert(uid, number);
        number
    }

    /// Holder of a user's extents.
    pub(crate) fn number(&mut self, uid: u32, policies: Policies<'_>) -> u8 {
        if let Some(&number) = self.numbers.get(&uid) {
            return number;
        }
        let tiers = [Extent::MEMORY, Extent::SSD];
        let is_empty = |&holder: &u8| tiers.iter().all(|&tier| policies.held(holder, tier) == 0);
        let empty: Vec<u8> = self.holders().filter(is_empty).collect();
        self.add(uid, &empty)
    }

    /// All holders.
    pub(crate) fn holders(&self) -> impl Iterator<Item = u8> {
        std::iter::once(ANYBODY).chain(self.numbers.values().copied())
    }

    /// Number of known users with extents in memory that may leave.
    pub(crate) fn users_in_memory(&self, policies: Policies<'_>) -> usize {
        let numbers = self.numbers.values();
        numbers.filter(|&&number| policies.held(number, Extent::MEMORY) > 0).count()
    }

    /// True if no user is known.
    pub(crate) fn is_off(&self) -> bool {
        self.numbers.is_empty()
    }

    /// Holders in the order in which they free space of a tier.
    pub(crate) fn holders_by_usage(&self, policies: Policies<'_>, tier: u8) -> Vec<u8> {
        let mut holders: Vec<u8> = self.holders().collect();
        holders.sort_by_cached_key(|&holder| std::cmp::Reverse(policies.held(holder, tier)));
        holders
    }

    /// A holder with no more bytes than this, an equal share of `bytes`, keeps its clean extents.
    /// `None`: nobody does, because there is one holder, or nothing of larger holders can be
    /// demoted.
    pub(crate) fn spared_up_to(&self, policies: Policies<'_>, bytes: u64) -> Option<u64> {
        let held = || self.holders().map(|holder| policies.held(holder, Extent::MEMORY));
        let holders = held().filter(|&bytes| bytes > 0).count() as u64;
        let share = bytes / holders.max(1);
        let can_give = |holder| {
            policies.held(holder, Extent::MEMORY) > share && policies.memory.bytes_of(holder) > 0
        };
        (holders > 1 && self.holders().any(can_give)).then_some(share)
    }

    /// Bytes of clean extents in memory of the holders with no more than this share.
    pub(crate) fn clean_bytes_up_to(&self, policies: Policies<'_>, share: u64) -> u64 {
        let spared =
            self.holders().filter(|&holder| policies.held(holder, Extent::MEMORY) <= share);
        spared.map(|holder| policies.clean[0].bytes_of(holder)).sum()
    }

    /// Checks the invariant; for tests. `held` has the slot, the length and, if known, the user of
    /// each extent.
    #[cfg(test)]
    pub(crate) fn check(
        &self,
        policies: Policies<'_>,
        extents: impl Iterator<Item = (u32, u64, Option<u32>)>,
    ) {
        let mut held = BTreeMap::new();
        let [clean_memory, clean_ssd] = policies.clean;
        let all = [policies.memory, clean_memory, clean_ssd];
        for (slot, length, uid) in extents {
            let number = uid.and_then(|uid| self.numbers.get(&uid));
            for holder in all.iter().filter_map(|policy| policy.holder_of(slot)) {
                assert_eq!(holder, number.copied().unwrap_or(ANYBODY), "slot={slot}");
                *held.entry(holder).or_insert(0) += length;
            }
        }
        for holder in self.holders() {
            let bytes: u64 = all.iter().map(|policy| policy.bytes_of(holder)).sum();
            assert_eq!(held.remove(&holder).unwrap_or(0), bytes, "of {holder}");
        }
        assert!(held.is_empty());
    }
}

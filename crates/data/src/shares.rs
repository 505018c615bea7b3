//! Who gives room first, where several users hold pieces: who holds the most of them (O14 asks which
//! *file* is the coolest; with several users the first question is whose).
//!
//! Each user whose files are known (`accounts`) is a *holder* with lists of his own in each policy
//! (`coolness`). Where something is to go, holders are looked at by what they hold in that tier, most
//! first, and of each the coolest as ever. Nobody gives something before all who hold more have nothing
//! left but what is proven to be in use. Who holds no more than an equal part keeps his clean pieces,
//! too, while what others hold beyond theirs can sink. So a burst, or a scan, of one user takes from
//! another only what is beyond an equal part.
//!
//! Where nobody counts, and of pieces whose owner is not known yet, all are one holder: `ANYBODY`.
//!
//! Invariant: a number in `numbers` is one user's; a user without pieces may lose his.

use crate::coolness::{ANYBODY, Waves};
use crate::target::Target;
use std::collections::{BTreeMap, BTreeSet};
use wire::Inode;
use wire::quota::Owner;
use wire::reply::Piece;

/// Numbers of holders, by user.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shares {
    numbers: BTreeMap<u32, u8>,
}

impl Shares {
    /// A number for a user; these numbers have no pieces. If there are no more he shares the one of those
    /// who are not known.
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

    /// All holders.
    fn all(&self) -> impl Iterator<Item = u8> {
        std::iter::once(ANYBODY).chain(self.numbers.values().copied())
    }
}

impl Target {
    /// Whose a file's pieces are.
    pub(crate) fn holder(&mut self, inode: Inode) -> u8 {
        let Some(Owner { uid, .. }) = self.accounts.owner(inode) else { return ANYBODY };
        if let Some(&number) = self.shares.numbers.get(&uid) {
            return number;
        }
        let is_empty = |&holder: &u8| {
            [Piece::MEMORY, Piece::SSD].iter().all(|&tier| self.held(holder, tier) == 0)
        };
        let empty: Vec<u8> = self.shares.all().filter(is_empty).collect();
        self.shares.add(uid, &empty)
    }

    /// A file is somebody's since it changed at `changed`; what was true before is left out. A file
    /// that is gone is `Owner::GONE`'s.
    pub fn own(&mut self, inode: Inode, owner: Owner, changed: i64) {
        self.accounts.own(inode, owner, changed);
        if !self.accounts.is_on() {
            return;
        }
        let holder = self.holder(inode);
        for piece in self.slots.over(inode, 0, u64::MAX) {
            self.moves.give(piece.slot, holder);
            self.clean.give(piece.slot, holder);
        }
    }

    fn policies(&self) -> [&Waves; 3] {
        let [memory, ssd] = self.clean.policies();
        [self.moves.policy(), memory, ssd]
    }

    /// Bytes of a tier that a holder has and that may go.
    fn held(&self, holder: u8, tier: u8) -> u64 {
        let [moves, memory, ssd] = self.policies();
        match tier {
            Piece::MEMORY => moves.bytes_of(holder) + memory.bytes_of(holder),
            _ => ssd.bytes_of(holder),
        }
    }

    /// A piece could not go because somebody pins it: that proves it, as else who holds it would be the
    /// first to give, with nothing that can go.
    pub(crate) fn note_pinned(&mut self, inode: Inode, piece: &Piece) {
        let holder = self.holder(inode);
        self.moves.prove(holder, piece);
    }

    /// Users who are known and have something in memory that may go.
    #[must_use]
    pub fn users_in_memory(&self) -> usize {
        let numbers = self.shares.numbers.values();
        numbers.filter(|&&number| self.held(number, Piece::MEMORY) > 0).count()
    }

    /// Holders in the order in which they give what they have in a tier.
    pub(crate) fn givers(&self, tier: u8) -> Vec<u8> {
        let mut givers: Vec<u8> = self.shares.all().collect();
        givers.sort_by_cached_key(|&holder| std::cmp::Reverse(self.held(holder, tier)));
        givers
    }

    /// Who holds no more than this keeps what is clean. `None`: nobody does, as all are one, as somebody
    /// waits for room, or as nothing that others hold can sink.
    fn spared_up_to(&self) -> Option<u64> {
        if self.shares.numbers.is_empty() || !self.can_sink() {
            return None;
        }
        let held = || self.shares.all().map(|holder| self.held(holder, Piece::MEMORY));
        let holders = held().filter(|&bytes| bytes > 0).count() as u64;
        let kept_free = self.of_allowance(self.clean.reserve_bytes());
        let share = self.memory.allowance().saturating_sub(kept_free) / holders.max(1);
        let can_give = |holder| {
            self.held(holder, Piece::MEMORY) > share && self.moves.policy().bytes_of(holder) > 0
        };
        (holders > 1 && self.shares.all().any(can_give)).then_some(share)
    }

    /// Those of `givers` who give what is clean in a tier.
    pub(crate) fn clean_givers(&self, tier: u8) -> Vec<u8> {
        let mut givers = self.givers(tier);
        if tier == Piece::MEMORY
            && let Some(share) = self.spared_up_to()
        {
            givers.retain(|&holder| self.held(holder, tier) > share);
        }
        givers
    }

    /// Bytes of clean pieces in memory that nobody takes now.
    pub(crate) fn spared_bytes(&self) -> u64 {
        let Some(share) = self.spared_up_to() else { return 0 };
        let [_, clean, _] = self.policies();
        let spared = self.shares.all().filter(|&holder| self.held(holder, Piece::MEMORY) <= share);
        spared.map(|holder| clean.bytes_of(holder)).sum()
    }

    /// Holds the invariant, for tests: it looks at all pieces.
    #[cfg(test)]
    pub(crate) fn check_shares(&self) {
        let mut held = BTreeMap::new();
        for (inode, piece) in self.slots.iter() {
            let owner = self.accounts.owner(inode);
            let number = owner.and_then(|owner| self.shares.numbers.get(&owner.uid));
            for policy in self.policies() {
                if let Some(holder) = policy.holder_of(piece.slot) {
                    assert_eq!(holder, number.copied().unwrap_or(ANYBODY), "{inode:?}");
                    *held.entry(holder).or_insert(0) += piece.length();
                }
            }
        }
        for holder in self.shares.all() {
            let bytes: u64 = self.policies().iter().map(|policy| policy.bytes_of(holder)).sum();
            assert_eq!(held.remove(&holder).unwrap_or(0), bytes, "of {holder}");
        }
        assert!(held.is_empty());
    }
}

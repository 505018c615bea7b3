//! Which piece in memory is the coolest: policies behind one trait, and the one that is used (O14, O15).
//!
//! Clients read and write pieces by themselves. All that is seen of it is a mark beside each piece,
//! which a client sets when it uses the piece and finds it unset, and which a policy's look clears. So
//! bookkeeping costs a client a load, and nothing else is done while memory has room.
//!
//! `Waves`: a piece that was seen in use in two looks, a pause or more apart, is *proven*, and so is one
//! that came up from the SSD because it was in use there; all others are *new*. New ones go first, the
//! one that was looked at longest ago before the others: a burst that is written once, or a scan, passes
//! through them and leaves the proven ones in peace. Of those each look at which one was not in use takes
//! away one of the (at most three) at which it was. For each so many new ones that go one proven is
//! looked at, so that none stays for ever.
//!
//!   none --insert--> new --twice in use--> proven
//!   none --insert_proven--> proven
//!   new --not in use for a pause--> victim
//!   proven --not in use, as often as it was--> victim
//!
//! Invariants: both lists are in the order of their last looks; a slot is in one list at most.

use std::fmt::Debug;

/// Which pieces may be chosen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Out {
    /// Those that were not in use for some time (*normal out*).
    Normal,
    /// Whatever is least recently used, but for what was in use just now (*forced out*).
    Forced,
}

/// Orders pieces, named by their slots, by coolness. Times are milliseconds, which may wrap.
pub trait Policy: Debug {
    /// A piece came to be, or is to be chosen again.
    fn insert(&mut self, slot: u32, now: u32);
    /// As `insert`, of a piece that came because it was in use.
    fn insert_proven(&mut self, slot: u32, now: u32);
    /// True if it looks as if a piece could go that nobody proved.
    fn has_idle(&self, now: u32) -> bool;
    /// A piece is gone, or was chosen. Does nothing for one that is not known.
    fn remove(&mut self, slot: u32);
    /// The piece to go next. `was_used` says whether one was used since it was last asked about; it is
    /// asked at most `looks` times.
    fn victim(
        &mut self,
        now: u32,
        out: Out,
        looks: u32,
        was_used: &mut dyn FnMut(u32) -> bool,
    ) -> Option<u32>;
}

/// What was looked at so many milliseconds ago is not looked at again.
const FORCED_MILLIS: u32 = 20;
/// Most looks that count for a proven piece.
const USES_MAX: u8 = 3;
/// So many looks prove a piece: one sees the bytes come, another sees them used.
const USES_PROVE: u8 = 2;
/// For so many new pieces that go a proven one is looked at.
const NEW_FOR_A_LOOK: u8 = 8;

const NEW: usize = 0;
const PROVEN: usize = 1;
const NONE: u32 = u32::MAX;

/// A slot's links: 16 bytes for each piece.
#[derive(Clone, Copy, Debug)]
struct Entry {
    before: u32,
    behind: u32,
    /// When it was looked at last.
    since: u32,
    uses: u8,
    list: u8,
}

/// In no list.
const UNLISTED: u8 = 2;

#[derive(Clone, Copy, Debug)]
struct List {
    first: u32,
    last: u32,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Waves {
    entries: Vec<Entry>,
    lists: [List; 2],
    idle_millis: u32,
    /// New ones that went since a proven one was looked at.
    went: u8,
}

impl Waves {
    /// Nothing yet. A piece is idle when it was not in use for `idle_millis`.
    #[must_use]
    pub const fn new(idle_millis: u32) -> Waves {
        let empty = List { first: NONE, last: NONE };
        Waves { entries: Vec::new(), lists: [empty; 2], idle_millis, went: 0 }
    }

    fn push(&mut self, slot: u32, list: usize, uses: u8, now: u32) {
        let before = self.lists[list].last;
        let entry = Entry { before, behind: NONE, since: now, uses, list: list as u8 };
        self.entries[slot as usize] = entry;
        match before {
            NONE => self.lists[list].first = slot,
            before => self.entries[before as usize].behind = slot,
        }
        self.lists[list].last = slot;
    }

    fn unlink(&mut self, slot: u32) -> Option<Entry> {
        let entry = *self.entries.get(slot as usize).filter(|entry| entry.list != UNLISTED)?;
        let list = &mut self.lists[usize::from(entry.list)];
        match entry.before {
            NONE => list.first = entry.behind,
            before => self.entries[before as usize].behind = entry.behind,
        }
        match entry.behind {
            NONE => list.last = entry.before,
            behind => self.entries[behind as usize].before = entry.before,
        }
        self.entries[slot as usize].list = UNLISTED;
        Some(entry)
    }

    /// Looks at the first of a list. True if it is the victim.
    fn look(&mut self, slot: u32, now: u32, is_used: bool) -> bool {
        let Some(Entry { uses, list, .. }) = self.unlink(slot) else { return false };
        let is_new = usize::from(list) == NEW;
        if is_used {
            let uses = (uses + 1).min(USES_MAX);
            let list = if is_new && uses < USES_PROVE { NEW } else { PROVEN };
            self.push(slot, list, uses, now);
        } else if !is_new && uses > 0 {
            self.push(slot, PROVEN, uses - 1, now);
        } else {
            return true;
        }
        false
    }
}

impl Waves {
    /// Makes room for a slot that is in no list then.
    fn enter(&mut self, slot: u32) {
        let unlisted = Entry { before: NONE, behind: NONE, since: 0, uses: 0, list: UNLISTED };
        if self.entries.len() <= slot as usize {
            self.entries.resize(slot as usize + 1, unlisted);
        }
        self.unlink(slot);
    }

    /// Looks at the first ones of a list that were not looked at for a pause, until one is the victim;
    /// and how many
    /// looks are left.
    fn look_at_first(
        &mut self,
        list: usize,
        now: u32,
        pause: u32,
        looks: u32,
        was_used: &mut dyn FnMut(u32) -> bool,
    ) -> (Option<u32>, u32) {
        for left in (0..looks).rev() {
            let slot = self.lists[list].first;
            let first = self.entries.get(slot as usize);
            if first.is_none_or(|first| now.wrapping_sub(first.since) < pause) {
                return (None, left + 1);
            }
            if self.look(slot, now, was_used(slot)) {
                return (Some(slot), left);
            }
        }
        (None, 0)
    }
}

impl Policy for Waves {
    fn insert(&mut self, slot: u32, now: u32) {
        self.enter(slot);
        self.push(slot, NEW, 0, now);
    }

    fn insert_proven(&mut self, slot: u32, now: u32) {
        self.enter(slot);
        self.push(slot, PROVEN, USES_PROVE, now);
    }

    fn has_idle(&self, now: u32) -> bool {
        let first = self.entries.get(self.lists[NEW].first as usize);
        first.is_some_and(|first| now.wrapping_sub(first.since) >= self.idle_millis)
    }

    fn remove(&mut self, slot: u32) {
        self.unlink(slot);
    }

    fn victim(
        &mut self,
        now: u32,
        out: Out,
        looks: u32,
        was_used: &mut dyn FnMut(u32) -> bool,
    ) -> Option<u32> {
        let pause = match out {
            Out::Normal => self.idle_millis,
            Out::Forced => self.idle_millis.min(FORCED_MILLIS),
        };
        let mut looks = looks;
        if self.went >= NEW_FOR_A_LOOK {
            self.went = 0;
            looks = looks.saturating_sub(1);
            if let Some(victim) = self.look_at_first(PROVEN, now, pause, 1, was_used).0 {
                return Some(victim);
            }
        }
        for list in [NEW, PROVEN] {
            let (victim, left) = self.look_at_first(list, now, pause, looks, was_used);
            if victim.is_some() {
                self.went = if list == NEW { self.went + 1 } else { 0 };
                return victim;
            }
            looks = left;
        }
        None
    }
}

#[cfg(test)]
mod tests;

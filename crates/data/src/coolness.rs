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
//! Each holder (`shares`) has two such lists of his own, so that it can be said whose pieces are looked
//! at first.
//!
//! Invariants:
//!  1. All lists are in the order of their last looks; a slot is in one list at most.
//!  2. `Holding::bytes` is the sum of the pieces in the holder's lists.

use std::fmt::Debug;
use wire::reply::Piece;

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
    holder: u8,
    length_log2: u8,
}

/// In no list.
const UNLISTED: u8 = 2;

/// Who holds a piece where all are one.
pub const ANYBODY: u8 = 0;

#[derive(Clone, Copy, Debug)]
struct List {
    first: u32,
    last: u32,
}

/// The pieces of a holder.
#[derive(Clone, Copy, Debug)]
struct Holding {
    lists: [List; 2],
    bytes: u64,
    /// New ones that went since a proven one was looked at.
    went: u8,
}

const NOTHING: Holding =
    Holding { lists: [List { first: NONE, last: NONE }; 2], bytes: 0, went: 0 };

/// See the module.
#[derive(Clone, Debug)]
pub struct Waves {
    entries: Vec<Entry>,
    holdings: Vec<Holding>,
    idle_millis: u32,
}

impl Waves {
    /// Nothing yet. A piece is idle when it was not in use for `idle_millis`.
    #[must_use]
    pub const fn new(idle_millis: u32) -> Waves {
        Waves { entries: Vec::new(), holdings: Vec::new(), idle_millis }
    }

    /// A piece of this holder came to be, or is to be chosen again. `is_proven`: because it was in use.
    pub fn insert_of(&mut self, holder: u8, piece: &Piece, is_proven: bool, now: u32) {
        self.enter(piece.slot);
        let (list, uses) = if is_proven { (PROVEN, USES_PROVE) } else { (NEW, 0) };
        let length_log2 = piece.length_log2;
        let entry = Entry {
            before: NONE,
            behind: NONE,
            since: now,
            uses,
            list: list as u8,
            holder,
            length_log2,
        };
        self.push(piece.slot, entry);
    }

    /// A piece is somebody else's from now on. It counts as looked at just now.
    pub fn give(&mut self, slot: u32, holder: u8, now: u32) {
        if self.entries.get(slot as usize).is_some_and(|entry| entry.holder != holder)
            && let Some(entry) = self.unlink(slot)
        {
            self.push(slot, Entry { holder, since: now, ..entry });
        }
    }

    /// True if a piece is in a list.
    #[must_use]
    pub fn contains(&self, slot: u32) -> bool {
        self.entries.get(slot as usize).is_some_and(|entry| entry.list != UNLISTED)
    }

    /// Who holds a piece.
    #[cfg(test)]
    pub(crate) fn holder_of(&self, slot: u32) -> Option<u8> {
        let entry = self.entries.get(slot as usize).filter(|entry| entry.list != UNLISTED)?;
        Some(entry.holder)
    }

    /// Bytes of the pieces of a holder.
    #[must_use]
    pub fn bytes_of(&self, holder: u8) -> u64 {
        self.holdings.get(usize::from(holder)).map_or(0, |holding| holding.bytes)
    }

    /// As `Policy::victim`, of the first of these holders who has one; and of none behind one who has new
    /// pieces, if `in_turn`: soon those are idle, or proven.
    pub fn victim_of(
        &mut self,
        (holders, in_turn): (&[u8], bool),
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
        for &holder in holders {
            let (victim, left) = self.look_at(holder, (now, pause), looks, was_used);
            let is_his_turn = in_turn && self.has_new(holder);
            if victim.is_some() || is_his_turn {
                return victim;
            }
            looks = left;
        }
        None
    }

    fn has_new(&self, holder: u8) -> bool {
        let holding = self.holdings.get(usize::from(holder));
        holding.is_some_and(|holding| holding.lists[NEW].first != NONE)
    }

    fn push(&mut self, slot: u32, entry: Entry) {
        let holder = usize::from(entry.holder);
        if self.holdings.len() <= holder {
            self.holdings.resize(holder + 1, NOTHING);
        }
        let holding = &mut self.holdings[holder];
        holding.bytes += 1 << entry.length_log2;
        let list = &mut holding.lists[usize::from(entry.list)];
        let before = list.last;
        list.last = slot;
        match before {
            NONE => list.first = slot,
            before => self.entries[before as usize].behind = slot,
        }
        self.entries[slot as usize] = Entry { before, behind: NONE, ..entry };
    }

    fn unlink(&mut self, slot: u32) -> Option<Entry> {
        let entry = *self.entries.get(slot as usize).filter(|entry| entry.list != UNLISTED)?;
        let holding = &mut self.holdings[usize::from(entry.holder)];
        holding.bytes -= 1 << entry.length_log2;
        let list = &mut holding.lists[usize::from(entry.list)];
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
        let Some(entry) = self.unlink(slot) else { return false };
        let is_new = usize::from(entry.list) == NEW;
        let (list, uses) = if is_used {
            let uses = (entry.uses + 1).min(USES_MAX);
            (if is_new && uses < USES_PROVE { NEW } else { PROVEN }, uses)
        } else if !is_new && entry.uses > 0 {
            (PROVEN, entry.uses - 1)
        } else {
            return true;
        };
        self.push(slot, Entry { since: now, list: list as u8, uses, ..entry });
        false
    }

    /// Makes room for a slot that is in no list then.
    fn enter(&mut self, slot: u32) {
        let unlisted = Entry {
            before: NONE,
            behind: NONE,
            since: 0,
            uses: 0,
            list: UNLISTED,
            holder: ANYBODY,
            length_log2: 0,
        };
        if self.entries.len() <= slot as usize {
            self.entries.resize(slot as usize + 1, unlisted);
        }
        self.unlink(slot);
    }

    /// A victim of a holder, and how many looks are left.
    fn look_at(
        &mut self,
        holder: u8,
        (now, pause): (u32, u32),
        looks: u32,
        was_used: &mut dyn FnMut(u32) -> bool,
    ) -> (Option<u32>, u32) {
        let Some(holding) = self.holdings.get_mut(usize::from(holder)) else {
            return (None, looks);
        };
        let mut looks = looks;
        if holding.went >= NEW_FOR_A_LOOK && looks > 0 {
            holding.went = 0;
            looks -= 1;
            let (victim, _) = self.look_at_first((holder, PROVEN), (now, pause), 1, was_used);
            if victim.is_some() {
                return (victim, looks);
            }
        }
        for list in [NEW, PROVEN] {
            let (victim, left) = self.look_at_first((holder, list), (now, pause), looks, was_used);
            looks = left;
            if victim.is_some() {
                let went = &mut self.holdings[usize::from(holder)].went;
                *went = if list == NEW { *went + 1 } else { 0 };
                return (victim, looks);
            }
        }
        (None, looks)
    }

    /// Looks at the first ones of a list that were not looked at for a pause, until one is the victim;
    /// and how many looks are left.
    fn look_at_first(
        &mut self,
        (holder, list): (u8, usize),
        (now, pause): (u32, u32),
        looks: u32,
        was_used: &mut dyn FnMut(u32) -> bool,
    ) -> (Option<u32>, u32) {
        for left in (0..looks).rev() {
            let slot = self.holdings[usize::from(holder)].lists[list].first;
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

/// Who asks by the trait knows of no holders, nor of lengths.
const fn unknown(slot: u32) -> Piece {
    Piece { slot, start: 0, length_log2: 0, tier: Piece::MEMORY, place: 0 }
}

impl Policy for Waves {
    fn insert(&mut self, slot: u32, now: u32) {
        self.insert_of(ANYBODY, &unknown(slot), false, now);
    }

    fn insert_proven(&mut self, slot: u32, now: u32) {
        self.insert_of(ANYBODY, &unknown(slot), true, now);
    }

    fn has_idle(&self, now: u32) -> bool {
        self.holdings.iter().any(|holding| {
            let first = self.entries.get(holding.lists[NEW].first as usize);
            first.is_some_and(|first| now.wrapping_sub(first.since) >= self.idle_millis)
        })
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
        self.victim_of((&[ANYBODY], false), now, out, looks, was_used)
    }
}

#[cfg(test)]
mod tests;

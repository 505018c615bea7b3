//! Replacement policies that order the extents in memory by coolness, behind one trait, and the one
//! in use: a two-generation CLOCK (O14, O15).
//!
//! Clients access extents without a message. The policy only sees a reference bit beside each
//! extent: a client sets it when it accesses the extent and finds it clear, and a policy's scan
//! clears it. So the bookkeeping costs a client one load, and nothing else is done while memory has
//! space.
//!
//! `ClockPolicy`: an extent whose bit was set at two scans, at least a pause apart, is *hot*, and
//! so is one that was promoted from the SSD; all others are *cold*. Cold extents go first, in order
//! of their last scan: a burst that is written once, or a sequential scan, passes through them and
//! leaves the hot ones alone. Each scan that finds the bit of a hot extent clear takes away one of
//! the (at most three) uses that it has. For every `COLD_PER_HOT_LOOK` cold victims one hot extent
//! is scanned, so that none stays forever.
//!
//!   none --insert--> cold --used at two scans--> hot
//!   none --insert_hot--> hot
//!   cold --not used for a pause--> victim
//!   hot --not used, as often as it was--> victim
//!
//! Each holder (`fairness`) has two such lists, so that the caller decides whose extents are
//! scanned first.
//!
//! Invariants:
//!  1. All lists are in the order of their last scans; a slot is in one list at most.
//!  2. `Holding::bytes` is the sum of the extents in the holder's lists.

use std::fmt::Debug;
use wire::reply::Extent;

/// Which extents may be chosen as victims.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum VictimRule {
    /// Extents that were not used for some time (*normal out*).
    Normal,
    /// The least recently used extents, except those used a moment ago (*forced out*).
    Forced,
}

/// Orders extents, named by their slots, by coolness. Times are milliseconds, which may wrap.
pub trait Policy: Debug {
    /// Adds an extent: it is new, or may be chosen again.
    fn insert(&mut self, slot: u32, now: u32);
    /// As `insert`, for an extent that was moved here because it is hot.
    fn insert_hot(&mut self, slot: u32, now: u32);
    /// True if some cold extent is probably idle.
    fn has_idle(&self, now: u32) -> bool;
    /// Removes an extent that is gone or was chosen. Does nothing for an unknown one.
    fn remove(&mut self, slot: u32);
    /// Chooses the next victim. `was_used` reads and clears the reference bit of a slot; it is
    /// called at most `looks` times.
    fn victim(
        &mut self,
        now: u32,
        out: VictimRule,
        looks: u32,
        was_used: &mut dyn FnMut(u32) -> bool,
    ) -> Option<u32>;
}

/// An extent scanned within this many milliseconds is not scanned again.
const FORCED_MILLIS: u32 = 20;
/// Most uses that a hot extent accumulates.
const USES_MAX: u8 = 3;
/// Number of uses that make an extent hot: one scan sees its bytes written, another sees them used.
const USES_HOT: u8 = 2;
/// Number of cold victims for which one hot extent is scanned.
const COLD_PER_HOT_LOOK: u8 = 8;

const COLD: usize = 0;
const HOT: usize = 1;
const NONE: u32 = u32::MAX;

/// Links of a slot: 16 bytes for each extent.
#[derive(Clone, Copy, Debug)]
struct Entry {
    before: u32,
    behind: u32,
    /// When it was last scanned.
    since: u32,
    accesses: u8,
    list: u8,
    holder: u8,
    length_log2: u8,
}

/// `Entry::list` of a slot that is in no list.
const UNLISTED: u8 = 2;

/// The only holder where users are not distinguished.
pub const ANYBODY: u8 = 0;

#[derive(Clone, Copy, Debug)]
struct List {
    first: u32,
    last: u32,
}

/// The extents of a holder.
#[derive(Clone, Copy, Debug)]
struct Holding {
    lists: [List; 2],
    bytes: u64,
    /// Cold victims since a hot extent was last scanned.
    cold_victims: u8,
}

const NOTHING: Holding =
    Holding { lists: [List { first: NONE, last: NONE }; 2], bytes: 0, cold_victims: 0 };

/// The two-generation CLOCK, with one pair of lists for each holder.
#[derive(Clone, Debug)]
pub struct ClockPolicy {
    entries: Vec<Entry>,
    holdings: Vec<Holding>,
    idle_millis: u32,
}

impl ClockPolicy {
    /// An empty policy. An extent is idle when it was not used for `idle_millis`.
    #[must_use]
    pub const fn new(idle_millis: u32) -> ClockPolicy {
        ClockPolicy { entries: Vec::new(), holdings: Vec::new(), idle_millis }
    }

    /// Adds an extent of this holder, which is new or may be chosen again. `is_hot`: it was moved
    /// here because it is hot.
    pub fn insert_of(&mut self, holder: u8, extent: &Extent, is_hot: bool, now: u32) {
        self.enter(extent.slot);
        let (list, accesses) = if is_hot { (HOT, USES_HOT) } else { (COLD, 0) };
        let length_log2 = extent.length_log2;
        let entry = Entry {
            before: NONE,
            behind: NONE,
            since: now,
            accesses,
            list: list as u8,
            holder,
            length_log2,
        };
        self.push(extent.slot, entry);
    }

    /// Gives an extent to another holder. It counts as scanned just now.
    pub fn give(&mut self, slot: u32, holder: u8, now: u32) {
        if self.entries.get(slot as usize).is_some_and(|entry| entry.holder != holder)
            && let Some(entry) = self.unlink(slot)
        {
            self.push(slot, Entry { holder, since: now, ..entry });
        }
    }

    /// True if the extent is in a list.
    #[must_use]
    pub fn contains(&self, slot: u32) -> bool {
        self.entries.get(slot as usize).is_some_and(|entry| entry.list != UNLISTED)
    }

    /// Holder of an extent.
    #[cfg(test)]
    pub(crate) fn holder_of(&self, slot: u32) -> Option<u8> {
        let entry = self.entries.get(slot as usize).filter(|entry| entry.list != UNLISTED)?;
        Some(entry.holder)
    }

    /// Bytes of a holder's extents.
    #[must_use]
    pub fn bytes_of(&self, holder: u8) -> u64 {
        self.holdings.get(usize::from(holder)).map_or(0, |holding| holding.bytes)
    }

    /// As `Policy::victim`, of the first of these holders that has one. With `in_turn`, no holder
    /// behind one with cold extents is considered: those will soon be idle, or hot.
    pub fn victim_of(
        &mut self,
        (holders, in_turn): (&[u8], bool),
        now: u32,
        out: VictimRule,
        looks: u32,
        was_used: &mut dyn FnMut(u32) -> bool,
    ) -> Option<u32> {
        let pause = match out {
            VictimRule::Normal => self.idle_millis,
            VictimRule::Forced => self.idle_millis.min(FORCED_MILLIS),
        };
        let mut looks = looks;
        for &holder in holders {
            let (victim, bytes_left) = self.look_at(holder, (now, pause), looks, was_used);
            let is_its_turn = in_turn && self.has_cold(holder);
            if victim.is_some() || is_its_turn {
                return victim;
            }
            looks = bytes_left;
        }
        None
    }

    fn has_cold(&self, holder: u8) -> bool {
        let holding = self.holdings.get(usize::from(holder));
        holding.is_some_and(|holding| holding.lists[COLD].first != NONE)
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

    /// Scans the first extent of a list. True if it is the victim.
    fn look(&mut self, slot: u32, now: u32, is_used: bool) -> bool {
        let Some(entry) = self.unlink(slot) else { return false };
        let is_new = usize::from(entry.list) == COLD;
        let (list, accesses) = if is_used {
            let accesses = (entry.accesses + 1).min(USES_MAX);
            (if is_new && accesses < USES_HOT { COLD } else { HOT }, accesses)
        } else if !is_new && entry.accesses > 0 {
            (HOT, entry.accesses - 1)
        } else {
            return true;
        };
        self.push(slot, Entry { since: now, list: list as u8, accesses, ..entry });
        false
    }

    /// Grows the table to include a slot, and takes the slot out of its list.
    fn enter(&mut self, slot: u32) {
        let unlisted = Entry {
            before: NONE,
            behind: NONE,
            since: 0,
            accesses: 0,
            list: UNLISTED,
            holder: ANYBODY,
            length_log2: 0,
        };
        if self.entries.len() <= slot as usize {
            self.entries.resize(slot as usize + 1, unlisted);
        }
        self.unlink(slot);
    }

    /// Finds a victim of a holder; returns it and the number of remaining looks.
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
        if holding.cold_victims >= COLD_PER_HOT_LOOK && looks > 0 {
            holding.cold_victims = 0;
            looks -= 1;
            let (victim, _) = self.look_at_first((holder, HOT), (now, pause), 1, was_used);
            if victim.is_some() {
                return (victim, looks);
            }
        }
        for list in [COLD, HOT] {
            let (victim, bytes_left) =
                self.look_at_first((holder, list), (now, pause), looks, was_used);
            looks = bytes_left;
            if victim.is_some() {
                let cold_victims = &mut self.holdings[usize::from(holder)].cold_victims;
                *cold_victims = if list == COLD { *cold_victims + 1 } else { 0 };
                return (victim, looks);
            }
        }
        (None, looks)
    }

    /// Scans the first extents of a list that were not scanned for a pause, until one is the
    /// victim; returns it and the number of remaining looks.
    fn look_at_first(
        &mut self,
        (holder, list): (u8, usize),
        (now, pause): (u32, u32),
        looks: u32,
        was_used: &mut dyn FnMut(u32) -> bool,
    ) -> (Option<u32>, u32) {
        for bytes_left in (0..looks).rev() {
            let slot = self.holdings[usize::from(holder)].lists[list].first;
            let first = self.entries.get(slot as usize);
            if first.is_none_or(|first| now.wrapping_sub(first.since) < pause) {
                return (None, bytes_left + 1);
            }
            if self.look(slot, now, was_used(slot)) {
                return (Some(slot), bytes_left);
            }
        }
        (None, 0)
    }
}

/// The extent for callers of the trait, which know neither holders nor lengths.
const fn unknown(slot: u32) -> Extent {
    Extent { slot, start: 0, length_log2: 0, tier: Extent::MEMORY, location: 0 }
}

impl Policy for ClockPolicy {
    fn insert(&mut self, slot: u32, now: u32) {
        self.insert_of(ANYBODY, &unknown(slot), false, now);
    }

    fn insert_hot(&mut self, slot: u32, now: u32) {
        self.insert_of(ANYBODY, &unknown(slot), true, now);
    }

    fn has_idle(&self, now: u32) -> bool {
        self.holdings.iter().any(|holding| {
            let first = self.entries.get(holding.lists[COLD].first as usize);
            first.is_some_and(|first| now.wrapping_sub(first.since) >= self.idle_millis)
        })
    }

    fn remove(&mut self, slot: u32) {
        self.unlink(slot);
    }

    fn victim(
        &mut self,
        now: u32,
        out: VictimRule,
        looks: u32,
        was_used: &mut dyn FnMut(u32) -> bool,
    ) -> Option<u32> {
        self.victim_of((&[ANYBODY], false), now, out, looks, was_used)
    }
}

#[cfg(test)]
mod tests;

//! Clean pieces: all their bytes lie in the backing directory, too, so where room is short they are
//! dropped, and whoever asks again has them filled again (`fill`).
//!
//! A piece is clean from when it was filled until somebody changes a byte. Clients do that without a
//! word: each takes a mark away first, under his pin, which the caller sees (`is_clean`). What is known
//! here is which pieces were clean when that was last looked at. So a piece is hidden first; once nobody
//! pins it the caller looks at the mark again, and says of one without it that it is pinned. Whoever
//! asks for a hidden piece ends that at once, and it is shown.
//!
//!   none --Filled, restore_clean--> clean
//!   clean --room is short, its file is given up--> hidden          Effect::HideToDrop, Effect::CheckPins
//!   hidden --Pins, not pinned--> none        Effect::Unpublish
//!   hidden --Pins, pinned; asked for--> clean           Effect::Show
//!   clean --looked at, and the mark is gone--> a piece like any other
//!
//! Room is short in memory below the reserve or beyond what may be held (`lend`), on the SSD when
//! writers come close to its end, and wherever somebody found none (`need`): he waits, as long as
//! something can be dropped, and of what was pinned when it was tried, for his own bound. Pieces stay
//! until then: they can go at any moment, and do not move to another tier.
//!
//! Invariants:
//!  1. Each slot of `known` has a piece; it is in its tier's policy, or under way.
//!  2. `bytes` is the sum of their lengths, by tier.
//!  3. `stuck` is a part of `known`.

use crate::coolness::{Out, Policy, Waves};
use crate::effect::{Answer, Effect};
use crate::target::Target;
use crate::wish::Asked;
use std::collections::{BTreeMap, BTreeSet};
use wire::reply::Piece;
use wire::{Errno, Inode};

/// Most pieces that are hidden to be dropped.
const DROPS_MAX: usize = 64;
/// Most pieces that are looked at in one step.
const LOOKS_MAX: u32 = 256;
/// Clean pieces leave so much of the SSD free: one part in so many, twice what is left to writers.
pub(crate) const SSD_FREE_PARTS: u64 = 8;
/// Who needs room has what is in use dropped, too, when nothing else could be for so long.
const PATIENT_MILLIS: u32 = 100;
/// Files that are given up at a time; of more, it is not known which of their pieces are tried again.
const GIVEN_UP_MAX: usize = 1024;
/// Between two looks no more time passes for those who wait.
const PAUSE_MILLIS_MAX: u32 = 100;

/// A piece that is hidden.
#[derive(Clone, Copy, Debug)]
struct Dropping {
    piece: Piece,
    /// Its pins are to be looked at in this round.
    round: u64,
}

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct Clean {
    policies: [Waves; 2],
    known: BTreeSet<u32>,
    /// Those of them that were pinned when they were to be dropped last.
    stuck: BTreeSet<u32>,
    bytes: [u64; 2],
    under_way: BTreeMap<(Inode, u64), Dropping>,
    /// Files that somebody gives up.
    given_up: BTreeSet<Inode>,
    reserve_bytes: u64,
    /// So much was wanted where there was no room.
    needed: u64,
    /// Since when some is needed and nothing could be dropped that is not in use.
    fruitless_since: Option<u32>,
    now: u32,
    /// Milliseconds for which drops were looked for: the clock of those who wait for them.
    awake_millis: u32,
    bytes_dropped: u64,
}

const fn tier_of(piece: &Piece) -> usize {
    (piece.tier != Piece::MEMORY) as usize
}

impl Clean {
    /// Memory keeps `reserve_bytes` free.
    pub(crate) const fn new(reserve_bytes: u64) -> Clean {
        Clean {
            policies: [Waves::new(u32::MAX), Waves::new(u32::MAX)],
            known: BTreeSet::new(),
            stuck: BTreeSet::new(),
            bytes: [0; 2],
            under_way: BTreeMap::new(),
            given_up: BTreeSet::new(),
            reserve_bytes,
            needed: 0,
            fruitless_since: None,
            now: 0,
            awake_millis: 0,
            bytes_dropped: 0,
        }
    }

    /// A piece was filled.
    pub(crate) fn insert(&mut self, holder: u8, piece: &Piece) {
        if self.known.insert(piece.slot) {
            self.bytes[tier_of(piece)] += piece.length();
        }
        self.policies[tier_of(piece)].insert_of(holder, piece, false, self.now);
    }

    /// A piece is this holder's from now on.
    pub(crate) fn give(&mut self, slot: u32, holder: u8) {
        for policy in &mut self.policies {
            policy.give(slot, holder, self.now);
        }
    }

    /// Those of memory, and those of the SSD.
    pub(crate) const fn policies(&self) -> &[Waves; 2] {
        &self.policies
    }

    /// True if somebody finds no room.
    pub(crate) const fn is_needed(&self) -> bool {
        self.needed > 0
    }

    /// A piece is its file's no longer, or not clean. True if it was known to be.
    pub(crate) fn remove(&mut self, piece: &Piece) -> bool {
        let was_known = self.known.remove(&piece.slot);
        if was_known {
            self.stuck.remove(&piece.slot);
            self.bytes[tier_of(piece)] -= piece.length();
            self.policies[tier_of(piece)].remove(piece.slot);
        }
        was_known
    }

    /// True if a piece was clean when it was looked at last.
    pub(crate) fn contains(&self, piece: &Piece) -> bool {
        self.known.contains(&piece.slot)
    }

    /// Bytes in clean pieces of a tier.
    pub(crate) const fn bytes(&self, tier: u8) -> u64 {
        self.bytes[(tier != Piece::MEMORY) as usize]
    }

    /// Known pieces.
    pub(crate) fn slots(&self) -> impl Iterator<Item = u32> {
        self.known.iter().copied()
    }

    /// True if nothing is clean.
    pub(crate) fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// True if something may be dropped that was not pinned when that was tried last.
    pub(crate) fn has_hope(&self) -> bool {
        self.stuck.len() < self.known.len()
    }

    /// Memory keeps so much free from now on.
    pub(crate) const fn set_reserve(&mut self, bytes: u64) {
        self.reserve_bytes = bytes;
    }

    /// What memory keeps free.
    pub(crate) const fn reserve_bytes(&self) -> u64 {
        self.reserve_bytes
    }

    /// The clock of those who wait for drops: it stands still while nobody does.
    pub(crate) const fn awake_millis(&self) -> u32 {
        self.awake_millis
    }

    /// Somebody finds no room for so much. True if something may be dropped for it.
    pub(crate) fn need(&mut self, length: u64) -> bool {
        if self.known.is_empty() {
            return false;
        }
        self.needed = self.needed.max(length);
        true
    }

    /// There is more room than there was: who needs more says so again.
    pub(crate) const fn need_anew(&mut self) {
        self.needed = 0;
    }

    /// Nobody waits for room any more.
    pub(crate) const fn need_nothing(&mut self) {
        (self.needed, self.fruitless_since) = (0, None);
    }

    /// True while only that is dropped which is not in use.
    fn is_patient(&self) -> bool {
        let millis = |since| self.awake_millis.wrapping_sub(since);
        self.fruitless_since.is_none_or(|since| millis(since) < PATIENT_MILLIS)
    }

    fn bytes_under_way(&self, tier: usize) -> u64 {
        let pieces = self.under_way.values().map(|one| &one.piece);
        pieces.filter(|piece| tier_of(piece) == tier).map(Piece::length).sum()
    }
}

impl Target {
    /// Bytes that were dropped since the target was made.
    #[must_use]
    pub fn bytes_dropped(&self) -> u64 {
        self.clean.bytes_dropped
    }

    /// True while clean pieces are to be dropped: `drop_clean` is to be called now and then.
    #[must_use]
    pub fn wants_drops(&self) -> bool {
        let is_short = (0..2).any(|tier| self.is_short(tier));
        self.clean.needed > 0 || self.fills.is_starving() || is_short || self.wants_saved()
    }

    /// After a kill: these pieces, which were found, are clean.
    pub fn restore_clean(&mut self, found: impl Iterator<Item = (Inode, Piece)>) {
        for (inode, piece) in found {
            if self.slots.at(inode, piece.start) == Some(piece) {
                self.watch_clean(inode, &piece);
            }
        }
    }

    /// Is a tier's room short, and is there something clean in it?
    fn is_short(&self, tier: usize) -> bool {
        let goes = self.clean.bytes_under_way(tier);
        let spared = if tier == 0 { self.spared_bytes() } else { 0 };
        if self.clean.bytes[tier] <= goes + spared {
            return false;
        }
        let (free, wanted) = match tier {
            0 => (self.memory.bytes_free(), self.of_allowance(self.clean.reserve_bytes)),
            _ => (self.ssd.bytes_free(), self.ssd.bytes_total() / SSD_FREE_PARTS),
        };
        let is_beyond = tier == 0 && self.bytes_beyond(goes) > 0;
        self.clean.needed > 0 || free + goes < wanted || is_beyond
    }

    /// Begins to drop what is clean and cool, where room is short. `was_used` says whether a piece was
    /// used since it was last asked about, and forgets it; `is_clean` whether its mark is still there.
    /// True if something is hidden.
    pub fn drop_clean(
        &mut self,
        now_millis: u32,
        was_used: &mut dyn FnMut(u32) -> bool,
        is_clean: &dyn Fn(u32) -> bool,
        out: &mut Vec<Effect>,
    ) -> bool {
        let passed = now_millis.wrapping_sub(self.clean.now).min(PAUSE_MILLIS_MAX);
        self.clean.awake_millis = self.clean.awake_millis.wrapping_add(passed);
        self.clean.now = now_millis;
        let is_patient = self.clean.is_patient();
        let is_needed = self.clean.is_needed();
        let mut looks = LOOKS_MAX;
        for tier in 0..2 {
            let givers = self.clean_givers([Piece::MEMORY, Piece::SSD][tier]);
            // What was pinned may still be: the next tier gives as much.
            let mut uncertain = 0;
            while self.clean.under_way.len() < DROPS_MAX && looks > 0 && self.is_short(tier) {
                looks -= 1;
                let policy = &mut self.clean.policies[tier];
                let ahead = &mut self.ahead;
                let mut was_used = |slot: u32| {
                    let is_used = was_used(slot);
                    if is_used {
                        ahead.note_used(slot);
                    }
                    is_used && is_patient
                };
                let kind = Out::Forced;
                let victim =
                    policy.victim_of((&givers, false), now_millis, kind, LOOKS_MAX, &mut was_used);
                let Some((inode, piece)) = victim.and_then(|slot| self.slots.get(slot)) else {
                    break;
                };
                if !is_clean(piece.slot) {
                    self.clean.remove(&piece);
                    self.watch(inode, &piece);
                } else if self.fills.starves_for(inode, &piece) {
                    let holder = self.holder(inode);
                    self.clean.insert(holder, &piece);
                } else {
                    let (needed, is_stuck) =
                        (self.clean.needed, self.clean.stuck.contains(&piece.slot));
                    self.hide_to_drop(inode, piece, out);
                    uncertain += if is_stuck { needed - self.clean.needed } else { 0 };
                }
            }
            self.clean.needed += uncertain;
        }
        self.ask_saved(now_millis, out);
        let hides = !self.clean.under_way.is_empty();
        self.note_fruit(is_needed, hides, out);
        self.finish(out);
        hides
    }

    /// Drops what is clean of a file, whether room is short or not; what is saved is found out first. To
    /// be asked again until all of it was tried: what is pinned, was changed or is not saved stays.
    pub(crate) fn drop_file(&mut self, asked: &Asked, out: &mut Vec<Effect>) -> Answer {
        let inode = asked.inode;
        self.wishes.end(inode, None);
        self.ahead.end_stream(inode);
        self.end_moves(inode, (0, u64::MAX), out);
        if self.clean.given_up.len() >= GIVEN_UP_MAX {
            self.clean.given_up.clear();
        }
        if self.clean.given_up.insert(inode) {
            for piece in self.slots.over(inode, 0, u64::MAX) {
                self.clean.stuck.remove(&piece.slot);
            }
            self.ask_about(inode, self.moves.now(), out);
        }
        if self.is_asked_about(inode) {
            return Answer::Refused(Errno::EAGAIN);
        }
        let pieces = self.slots.over(inode, 0, u64::MAX);
        let pieces: Vec<Piece> = pieces.filter(|piece| self.clean.contains(piece)).collect();
        let mut goes = false;
        for piece in pieces {
            let is_tried = self.clean.stuck.contains(&piece.slot);
            if is_tried || self.fills.starves_for(inode, &piece) {
                continue;
            }
            goes = true;
            if self.clean.under_way.contains_key(&(inode, piece.start)) {
                continue;
            }
            if self.clean.under_way.len() >= DROPS_MAX {
                break;
            }
            self.hide_to_drop(inode, piece, out);
        }
        if goes {
            return Answer::Refused(Errno::EAGAIN);
        }
        self.clean.given_up.remove(&inode);
        Answer::Number(self.left(asked))
    }

    /// True while a piece of this file that begins there is hidden to be dropped.
    pub(crate) fn is_dropping(&self, inode: Inode, start: u64) -> bool {
        self.clean.under_way.contains_key(&(inode, start))
    }

    /// Begins to drop a piece.
    pub(crate) fn hide_to_drop(&mut self, inode: Inode, piece: Piece, out: &mut Vec<Effect>) {
        self.clean.policies[tier_of(&piece)].remove(piece.slot);
        self.clean.needed = self.clean.needed.saturating_sub(piece.length());
        let one = Dropping { piece, round: self.round };
        self.clean.under_way.insert((inode, piece.start), one);
        self.has_left = true;
        out.push(Effect::HideToDrop { slot: piece.slot });
    }

    /// Where nothing goes, who needs room says so again, and before long what is in use goes, too. What
    /// is hidden may be pinned, and has not gone yet.
    fn note_fruit(&mut self, is_needed: bool, hides: bool, out: &mut Vec<Effect>) {
        let clean = &mut self.clean;
        if is_needed {
            clean.fruitless_since.get_or_insert(clean.awake_millis);
        }
        if !hides {
            // Who waits says again what he needs.
            clean.need_anew();
            self.admit_waiting(out);
        }
    }

    /// The pins were looked at in a round.
    pub(crate) fn drop_hidden(&mut self, round: u64, pinned: &[u32], out: &mut Vec<Effect>) {
        let looked_at = |one: &Dropping| one.round <= round;
        let Clean { under_way, .. } = &self.clean;
        let all = under_way.iter().filter(|(_, one)| looked_at(one));
        let all: Vec<(Inode, Piece)> = all.map(|(&(inode, _), one)| (inode, one.piece)).collect();
        for (inode, piece) in all {
            if pinned.contains(&piece.slot) {
                self.end_drop(inode, &piece, out);
                self.clean.stuck.insert(piece.slot);
                continue;
            }
            self.clean.under_way.remove(&(inode, piece.start));
            self.clean.fruitless_since = None;
            self.clean.bytes_dropped += piece.length();
            self.note_dropped(inode);
            self.give_back(inode, &piece, out);
        }
    }

    /// Somebody asks for `offset .. end` of a file: what is hidden there is shown.
    pub(crate) fn end_drops(
        &mut self,
        inode: Inode,
        (offset, end): (u64, u64),
        out: &mut Vec<Effect>,
    ) {
        if self.clean.under_way.is_empty() {
            return;
        }
        let pieces: Vec<Piece> = self.slots.over(inode, offset, end).collect();
        for piece in pieces {
            self.end_drop(inode, &piece, out);
        }
    }

    /// Shows a piece, if it is hidden to be dropped.
    pub(crate) fn end_drop(&mut self, inode: Inode, piece: &Piece, out: &mut Vec<Effect>) {
        if self.clean.under_way.remove(&(inode, piece.start)).is_some() {
            let holder = self.holder(inode);
            self.clean.insert(holder, piece);
            out.push(Effect::Show { slot: piece.slot });
        }
    }

    /// Holds the invariants, for tests: it looks at all clean pieces.
    #[cfg(test)]
    pub(crate) fn check_clean(&self) {
        let mut bytes = [0; 2];
        for &slot in &self.clean.known {
            let (_, piece) = self.slots.get(slot).expect("a clean piece is none");
            bytes[tier_of(&piece)] += piece.length();
        }
        assert_eq!(bytes, self.clean.bytes);
        assert!(self.clean.stuck.is_subset(&self.clean.known));
        for (&(inode, start), one) in &self.clean.under_way {
            assert_eq!(self.slots.at(inode, start), Some(one.piece), "its file has another piece");
            assert!(self.clean.known.contains(&one.piece.slot));
        }
    }
}

//! What was made or changed here and is saved in the backing directory becomes clean (`clean`) where
//! room is short or somebody gives it up, so that it is dropped, and filled again by who asks for it
//! (`fill`).
//!
//! What is saved the file's shard knows. So while clean pieces are few, files are marked in their order
//! and their shards are asked whether all of the file is saved as it is now, and nobody may write to it:
//! then what still bears the mark is clean. Whoever changes a byte takes the mark away, as with what is
//! clean; who pinned a piece before may not see the mark, so it is taken away here then. A change from
//! before the mark the shard knows of, or knows who may have made it.
//!
//!   none --room is short--> marked           Effect::BeginSaving, Effect::CheckPins
//!   marked --Pins--> asked                   Effect::StopSaving of what is pinned, Effect::AskSaved
//!   asked --Input::IsSaved: yes--> none      Effect::EndSaving; then Input::Saved names what is clean
//!   asked --no, or no answer in time--> none
//!
//! Bytes of a file that is written to become clean part by part (`parts`): one of the two at a time.
//!
//! Of files that were seen below it is always asked what of them lies there. Of files that were made
//! here nobody needs to, as long as nothing of any was dropped (`may_lie_below`).

use crate::effect::Effect;
use crate::target::Target;
use std::collections::{BTreeMap, BTreeSet};
use wire::Inode;
use wire::reply::Piece;

/// Files that are asked about at once.
const ASKED_MAX: usize = 64;
/// Pieces of them that are looked at in one step, or one file.
const LOOKS_MAX: usize = 1024;
/// Who is not answered for so long asks again when it is the file's turn.
const ANSWER_MILLIS: u32 = 1000;
/// All files are gone through so often at most while somebody waits for room, and else.
const LAP_MILLIS: u32 = 100;
/// See `LAP_MILLIS`.
const LAP_MILLIS_IDLE: u32 = 2000;
/// While so much of the memory is clean, nobody is asked: one part in so many.
const CLEAN_PARTS: u64 = 16;

/// A file that is asked about.
#[derive(Clone, Debug)]
struct Asked {
    since: u32,
    number: u64,
    /// Its pins are to be looked at in this round; then it is asked about.
    round: Option<u64>,
    /// Those that bear the mark, or did.
    slots: BTreeSet<u32>,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub(crate) struct Saving {
    is_over_backing: bool,
    /// Pieces of files that were made here were dropped, or may have been.
    has_dropped_made: bool,
    asked: BTreeMap<Inode, Asked>,
    /// Questions that were put.
    count: u64,
    /// Files up to this one were asked about in this lap, which began then.
    hand: Inode,
    lap_since: Option<u32>,
    /// Laps that are over.
    laps: u64,
}

impl Target {
    /// There is a backing directory. `after_another`: an earlier daemon may have dropped pieces of files
    /// that were made here. At the start.
    pub fn set_backing(&mut self, after_another: bool) {
        self.saving.is_over_backing = true;
        self.saving.has_dropped_made = after_another;
    }

    /// True if there is a backing directory.
    pub(crate) const fn is_over_backing(&self) -> bool {
        self.saving.is_over_backing
    }

    /// True if a file may have bytes below that are not here.
    pub(crate) const fn may_lie_below(&self, inode: Inode) -> bool {
        inode.is_from_below() || self.saving.has_dropped_made && !inode.is_abroad()
    }

    /// True if a file may have bytes below, whether they are here or not.
    pub(crate) const fn may_be_saved(&self, inode: Inode) -> bool {
        inode.is_from_below() || self.saving.is_over_backing && !inode.is_abroad()
    }

    /// A piece of a file is dropped.
    pub(crate) const fn note_dropped(&mut self, inode: Inode) {
        self.saving.has_dropped_made |= !inode.is_from_below();
    }

    /// When so many laps are over, one is that began from now on: all that is saved now is known then.
    pub(crate) const fn deciding_lap(&self) -> u64 {
        // One is under way.
        self.saving.laps + 2
    }

    /// True if so many laps are over, or there are none.
    pub(crate) const fn is_lap_over(&self, lap: u64) -> bool {
        !self.saving.is_over_backing || lap <= self.saving.laps
    }

    /// True while it is to be found out what is saved: `drop_clean` does that.
    pub(crate) fn wants_saved(&self) -> bool {
        let is_short = |tier: u8, (free, all): (u64, u64), reserve: u64| {
            free < reserve && self.clean.bytes(tier) < all / CLEAN_PARTS
        };
        let memory = (self.memory.bytes_free(), self.memory.bytes_total());
        let ssd = (self.ssd.bytes_free(), self.ssd.bytes_total());
        self.saving.is_over_backing
            && (self.waits_for_room()
                || self.bytes_beyond(0) > 0 && self.clean.bytes(Piece::MEMORY) == 0
                || is_short(Piece::MEMORY, memory, self.of_allowance(self.clean.reserve_bytes()))
                || is_short(Piece::SSD, ssd, ssd.1 / crate::clean::SSD_FREE_PARTS))
    }

    /// Pieces of a file that stay where they are for now.
    pub(crate) fn at_rest(&self, inode: Inode) -> impl Iterator<Item = Piece> {
        let pieces = self.slots.over(inode, 0, u64::MAX);
        pieces.filter(move |piece| {
            piece.tier != Piece::ABROAD
                && !self.early.contains(inode, piece)
                && !self.is_moving(inode, piece.start)
                && !self.is_dropping(inode, piece.start)
        })
    }

    /// Marks files and has their shards asked, as far as some are wanted. True if some are under way.
    pub(crate) fn ask_saved(&mut self, now: u32, out: &mut Vec<Effect>) -> bool {
        self.saving.asked.retain(|_, asked| now.wrapping_sub(asked.since) < ANSWER_MILLIS);
        let mut looks = LOOKS_MAX;
        while self.wants_saved() && self.saving.asked.len() < ASKED_MAX && looks > 0 {
            if self.saving.hand.is_none() {
                let is_hurried = self.waits_for_room() || self.bytes_beyond(0) > 0;
                let pause = if is_hurried { LAP_MILLIS } else { LAP_MILLIS_IDLE };
                let since = self.saving.lap_since;
                if since.is_some_and(|since| now.wrapping_sub(since) < pause) {
                    break;
                }
                self.saving.lap_since = Some(now);
            }
            let Some(inode) = self.slots.file_behind(self.saving.hand) else {
                // The last of them are to be answered first.
                if self.saving.asked.is_empty() {
                    (self.saving.hand, self.saving.laps) = (Inode::NONE, self.saving.laps + 1);
                }
                break;
            };
            self.saving.hand = inode;
            looks = looks.saturating_sub(self.ask_about(inode, now, out).max(1));
        }
        !self.saving.asked.is_empty()
    }

    /// True while it is being found out whether a file is saved.
    pub(crate) fn is_asked_about(&self, inode: Inode) -> bool {
        let now = self.moves.now();
        let asked = self.saving.asked.get(&inode);
        asked.is_some_and(|asked| now.wrapping_sub(asked.since) < ANSWER_MILLIS)
    }

    /// Marks a file and has its shard asked, if something of it may be saved and is not known to be. How
    /// many pieces were looked at.
    pub(crate) fn ask_about(&mut self, inode: Inode, now: u32, out: &mut Vec<Effect>) -> usize {
        self.parts.forget_late(now);
        let pieces: Vec<Piece> = self.at_rest(inode).collect();
        let is_known = |piece: &Piece| self.clean.contains(piece);
        let is_left = !pieces.iter().all(is_known) && self.may_be_saved(inode);
        if is_left && !self.saving.asked.contains_key(&inode) && !self.parts.has(inode) {
            let slots: BTreeSet<u32> = pieces.iter().map(|piece| piece.slot).collect();
            out.extend(slots.iter().map(|&slot| Effect::BeginSaving { slot }));
            self.saving.count += 1;
            let (number, round) = (self.saving.count, Some(self.round));
            let asked = Asked { since: now, number, round, slots };
            self.saving.asked.insert(inode, asked);
            self.has_left = true;
        }
        pieces.len()
    }

    /// The pins were looked at in a round.
    pub(crate) fn marked(&mut self, round: u64, pinned: &[u32], out: &mut Vec<Effect>) {
        for (&inode, asked) in &mut self.saving.asked {
            if asked.round.is_none_or(|of| of > round) {
                continue;
            }
            asked.round = None;
            for slot in pinned.iter().filter(|slot| asked.slots.remove(slot)) {
                out.push(Effect::StopSaving { slot: *slot });
            }
            out.push(Effect::AskSaved { inode, number: asked.number });
        }
    }

    /// A shard says whether a file is saved as it is.
    pub(crate) fn told_saved(
        &mut self,
        (inode, number): (Inode, u64),
        is_saved: bool,
        out: &mut Vec<Effect>,
    ) {
        if self.saving.asked.get(&inode).is_none_or(|asked| asked.number != number) {
            // An answer that comes too late says nothing of marks that were made since.
            return;
        }
        let slots = self.saving.asked.remove(&inode).map(|asked| asked.slots).unwrap_or_default();
        if is_saved {
            // A mark of an earlier question says nothing.
            let pieces = self.at_rest(inode).filter(|piece| slots.contains(&piece.slot));
            out.extend(pieces.map(|piece| Effect::EndSaving { inode, piece }));
            // More of it may lie below than was known.
            self.fills.ask_anew(inode);
        }
    }

    /// Nobody is asked about a file any more.
    pub(crate) fn forget_asked(&mut self, inode: Inode) {
        self.saving.asked.remove(&inode);
    }

    /// These pieces still bore the mark.
    pub(crate) fn saved(&mut self, found: &[(Inode, Piece)], out: &mut Vec<Effect>) {
        let new = |(_, piece): &&(Inode, Piece)| !self.clean.contains(piece);
        let found: Vec<(Inode, Piece)> = found.iter().filter(new).copied().collect();
        self.restore_clean(found.into_iter());
        self.admit_waiting(out);
    }
}

//! Rising: pieces on the SSD that are used again come back into memory, while it has room (O18). How a
//! piece moves is as in `sink`.
//!
//! A piece on the SSD bears the same mark of use as one in memory. Each *lap* looks at each of them once;
//! one that is in use in two laps on end, or that was taken up again twice after a lap's rest, is proven,
//! and rises. A move that is ended by use, or finds no room,
//! leaves the piece as one of which nothing is known: it has to be proven again, so what is in use all
//! the time is not hidden all the time.
//!
//!   none --watch--> known --in use in a lap, not in use in a lap--> known
//!   known --in use in `USES_PROVE` laps more than not, `RETURNS_PROVE` times after a rest--> begins to
//!   move, and is not known meanwhile
//!
//! While memory is short, what rises changes places with pieces that nobody proved and nobody uses, and
//! it counts as proven there. When there are no such ones nothing rises unless it leaves more memory
//! free than there is when pieces begin to sink. And what sank must be used twice before it rises: so
//! no piece goes up and down without use.
//!
//! Invariant: `places` says where in `order` a slot is; each slot of a piece on the SSD that does not
//! move, and is not clean, is there once.

use crate::effect::Effect;
use crate::target::Target;
use wire::Inode;
use wire::reply::Piece;

/// Most marks of pieces that are looked at in one step: some microseconds.
const LOOKS_MAX: usize = 256;
/// A lap takes so long at least.
const LAP_MILLIS: u32 = 100;
/// In so many laps more in use than not, and a piece is proven.
const USES_PROVE: u8 = 2;
/// Taken up again so often after a lap in which nobody used it, and a piece is proven.
const RETURNS_PROVE: u8 = 2;
/// What rises leaves so much of the memory free beyond that at which pieces sink: one part in so many.
/// It is twice what sinking frees beyond it.
const BEYOND_PARTS: u64 = 8;

const NONE: u32 = u32::MAX;

/// Where a slot is in the order.
#[derive(Clone, Copy, Debug)]
struct Known {
    at: u32,
    uses: u8,
    returns: u8,
    /// In the last lap, or it is not known: then its bytes are about to be written.
    was_used: bool,
    /// It came down from memory.
    has_sunk: bool,
}

impl Known {
    const fn new(at: u32) -> Known {
        Known { at, uses: 0, returns: 0, was_used: true, has_sunk: false }
    }

    /// A look at it. True if it is proven.
    fn look(&mut self, is_used: bool) -> bool {
        let Known { uses, returns, was_used, .. } = self;
        *uses = if is_used { (*uses + 1).min(USES_PROVE) } else { uses.saturating_sub(1) };
        *returns += u8::from(is_used && !*was_used && *returns < RETURNS_PROVE);
        *was_used = is_used;
        *uses == USES_PROVE || *returns == RETURNS_PROVE
    }
}

/// Pieces that may rise, of one target: 12 bytes for each.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rising {
    order: Vec<u32>,
    /// By slot.
    places: Vec<Known>,
    /// Those before it in the order were looked at in this lap, which began then.
    hand: usize,
    lap_since: Option<u32>,
    /// Looked at also while there is no room, so that it is known what is wanted.
    pub(crate) counts_wanted: bool,
}

impl Rising {
    fn insert(&mut self, slot: u32) {
        if self.places.len() <= slot as usize {
            self.places.resize(slot as usize + 1, Known::new(NONE));
        }
        self.remove(slot);
        self.places[slot as usize] = Known::new(self.order.len() as u32);
        self.order.push(slot);
    }

    fn remove(&mut self, slot: u32) {
        let Some(Known { at, .. }) = self.places.get(slot as usize).copied() else { return };
        if at == NONE {
            return;
        }
        self.order.swap_remove(at as usize);
        if let Some(&moved) = self.order.get(at as usize) {
            self.places[moved as usize].at = at;
        }
        self.places[slot as usize].at = NONE;
    }

    /// A piece that is known came down from memory.
    pub(crate) fn note_sunk(&mut self, slot: u32) {
        if let Some(known) = self.places.get_mut(slot as usize) {
            known.has_sunk = true;
        }
    }

    /// True if a piece that is known came down from memory.
    pub(crate) fn has_sunk(&self, slot: u32) -> bool {
        self.places.get(slot as usize).is_some_and(|known| known.at != NONE && known.has_sunk)
    }

    /// As `has_sunk`, and it counts as one that did not from now on.
    pub(crate) fn take_sunk(&mut self, slot: u32) -> bool {
        let has_sunk = self.has_sunk(slot);
        if has_sunk && let Some(known) = self.places.get_mut(slot as usize) {
            known.has_sunk = false;
        }
        has_sunk
    }

    /// The next to be looked at. `None`: no more in this lap.
    fn next(&mut self, now: u32) -> Option<u32> {
        if self.hand >= self.order.len() {
            self.hand = 0;
        }
        if self.hand == 0 {
            if self.lap_since.is_some_and(|since| now.wrapping_sub(since) < LAP_MILLIS) {
                return None;
            }
            self.lap_since = Some(now);
        }
        let slot = self.order.get(self.hand).copied()?;
        self.hand += 1;
        Some(slot)
    }
}

impl Target {
    /// A piece of a file is here now, and may move.
    pub(crate) fn watch(&mut self, inode: Inode, piece: &Piece) {
        match piece.tier {
            Piece::MEMORY if self.is_resident(inode) => self.residents.insert(piece),
            // What is kept for others does not go on to others.
            Piece::MEMORY if inode.is_abroad() && !self.moves.has_ssd() => {}
            Piece::MEMORY => {
                let holder = self.holder(inode);
                self.moves.insert(holder, piece);
            }
            Piece::SSD => self.rising.insert(piece.slot),
            _ => {}
        }
    }

    /// A piece is its file's no longer, or is not to move.
    pub(crate) fn unwatch(&mut self, piece: &Piece) {
        match piece.tier {
            Piece::MEMORY => {
                self.moves.remove(piece);
                self.residents.remove(piece.slot);
            }
            Piece::SSD => self.rising.remove(piece.slot),
            _ => {}
        }
    }

    /// True if so much more may come up into memory without sending anything down, or if what goes for
    /// it is cooler.
    pub(crate) fn has_room_to_rise(&self, length: u64) -> bool {
        let beyond = self.memory.bytes_total() / BEYOND_PARTS;
        let kept = self.of_allowance(self.moves.sinks_below()).saturating_add(beyond);
        let changes_above = self.of_allowance(self.moves.changes_above());
        let left = self.memory.bytes_free().saturating_sub(length);
        let is_enough = left >= kept || left >= changes_above && self.moves.has_idle();
        is_enough && self.admission.is_empty() && self.memory.bytes_free() >= length
    }

    /// True if pieces may rise that are used: there are some on the SSD, and memory has room for them; or
    /// if it is to be known whether some would.
    #[must_use]
    pub fn is_rising(&self) -> bool {
        !self.rising.order.is_empty() && (self.rising.counts_wanted || self.has_room_to_rise(1))
    }

    /// Looks which pieces on the SSD are in use, and begins to move those that are proven. To be called
    /// now and then while `is_rising`. `was_used` says whether a piece was used since it was last
    /// asked about, and forgets it. True if some were.
    pub fn rise(
        &mut self,
        now_millis: u32,
        was_used: &mut dyn FnMut(u32) -> bool,
        out: &mut Vec<Effect>,
    ) -> bool {
        self.moves.set_now(now_millis);
        let mut are_used = false;
        for _ in 0..LOOKS_MAX {
            let Some(slot) = self.rising.next(now_millis) else { break };
            let is_used = was_used(slot);
            are_used |= is_used;
            if is_used {
                self.ahead.note_used(slot);
            }
            let is_proven = self.rising.places[slot as usize].look(is_used);
            let Some((inode, from)) = self.slots.get(slot) else { continue };
            // One that is resident need not be proven; but in use it would be hidden at each lap.
            if !is_proven && (is_used || !self.is_resident(inode)) {
                continue;
            }
            if !self.has_room_to_rise(from.length()) {
                self.note_wanted(&from);
                continue;
            }
            if !self.may_move_another() || !self.has_tokens() {
                continue;
            }
            if !self.begin_move(inode, from, Piece::MEMORY, out) {
                self.watch(inode, &from);
            }
        }
        self.finish(out);
        are_used
    }

    /// Holds the invariant, for tests: it looks at all pieces.
    #[cfg(test)]
    pub(crate) fn check_rising(&self) {
        let on_ssd = |(inode, piece): &(Inode, Piece)| {
            piece.tier == Piece::SSD
                && !self.is_moving(*inode, piece.start)
                && !self.clean.contains(piece)
        };
        let mut slots: Vec<u32> =
            self.slots.iter().filter(on_ssd).map(|(_, piece)| piece.slot).collect();
        let mut known = self.rising.order.clone();
        slots.sort_unstable();
        known.sort_unstable();
        assert_eq!(slots, known);
        for (at, &slot) in (0..).zip(&self.rising.order) {
            assert_eq!(self.rising.places[slot as usize].at, at);
        }
    }
}

//! A memory with room for so many pieces, which is emptied below two thresholds as a target's is, and
//! into which pieces come back that are used again while there is ample room, or in place of idle ones.

use super::policies::Teller;
use super::trace::{Event, Step};
use data::coolness::Out;
use std::collections::{BTreeMap, BTreeSet};

/// Pieces that memory holds.
pub(crate) const ROOM: usize = 400;
/// Below so many free ones what is idle goes, and below so many whatever is.
const NORMAL_BELOW: usize = ROOM / 4;
const FORCED_BELOW: usize = ROOM / 8;
/// What is used below in two laps rises while so many are free, and so many if an idle one goes for it.
const RISES_ABOVE: usize = NORMAL_BELOW + ROOM / 8;
const CHANGES_ABOVE: usize = (NORMAL_BELOW + FORCED_BELOW) / 2;
const LAP_MILLIS: u32 = 100;
/// A step of a trace.
const STEP_MILLIS: u32 = 10;
/// Moves begin at most so often in a step.
const MOVES_MAX: usize = 64;

/// What a trace costs.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Cost {
    pub(crate) made: usize,
    pub(crate) reads: usize,
    /// Reads of pieces that were not in memory.
    pub(crate) missed: usize,
    pub(crate) sank: usize,
    pub(crate) rose: usize,
    /// Pieces that came while memory was full.
    pub(crate) turned_away: usize,
}

/// See the module.
#[derive(Default)]
struct Memory {
    /// The slot of each piece that is in memory.
    here: BTreeMap<(u32, u32), u32>,
    pieces: BTreeMap<u32, (u32, u32)>,
    /// When a piece that is not was used last.
    below: BTreeMap<(u32, u32), Option<u32>>,
    marks: BTreeSet<u32>,
    next_slot: u32,
    free_slots: Vec<u32>,
    now: u32,
    cost: Cost,
}

pub(crate) fn replay(teller: &mut dyn Teller, steps: &[Step]) -> Cost {
    let mut memory = Memory::default();
    for step in steps {
        for &event in step {
            memory.event(teller, event);
        }
        memory.sink(teller);
        memory.now += STEP_MILLIS;
    }
    memory.cost
}

impl Memory {
    fn free(&self) -> usize {
        ROOM - self.here.len()
    }

    fn event(&mut self, teller: &mut dyn Teller, event: Event) {
        match event {
            Event::Open(file) => teller.opened(file, self.now),
            Event::Close(file) => teller.closed(file, self.now),
            Event::Write(file, piece) => {
                let is_known = self.here.contains_key(&(file, piece));
                if is_known || self.below.contains_key(&(file, piece)) {
                    self.touch(teller, (file, piece));
                } else {
                    self.cost.made += 1;
                    if self.free() == 0 {
                        self.cost.turned_away += 1;
                        self.below.insert((file, piece), None);
                    } else {
                        let slot = self.place((file, piece));
                        teller.made(slot, file, self.now);
                    }
                }
            }
            Event::Read(file, piece) => {
                self.cost.reads += 1;
                if !self.touch(teller, (file, piece)) {
                    self.cost.missed += 1;
                }
            }
            Event::Remove(file) => self.remove(teller, file),
        }
    }

    fn place(&mut self, piece: (u32, u32)) -> u32 {
        let slot = self.free_slots.pop().unwrap_or_else(|| {
            self.next_slot += 1;
            self.next_slot - 1
        });
        self.here.insert(piece, slot);
        self.pieces.insert(slot, piece);
        self.marks.insert(slot);
        slot
    }

    /// False if the piece is not in memory.
    fn touch(&mut self, teller: &mut dyn Teller, piece: (u32, u32)) -> bool {
        if let Some(&slot) = self.here.get(&piece) {
            self.marks.insert(slot);
            teller.used(slot, self.now);
            return true;
        }
        let now = self.now;
        let free = self.free();
        let has_room = free > RISES_ABOVE || free > CHANGES_ABOVE && teller.gives_way(now);
        let Some(before) = self.below.get_mut(&piece) else { return false };
        let is_proven = before.is_some_and(|then| now - then >= LAP_MILLIS);
        if is_proven && has_room {
            self.below.remove(&piece);
            self.cost.rose += 1;
            let slot = self.place(piece);
            teller.risen(slot, piece.0, now);
        } else {
            before.get_or_insert(now);
        }
        false
    }

    fn leave(&mut self, slot: u32) -> Option<(u32, u32)> {
        let piece = self.pieces.remove(&slot)?;
        self.here.remove(&piece);
        self.marks.remove(&slot);
        self.free_slots.push(slot);
        Some(piece)
    }

    fn remove(&mut self, teller: &mut dyn Teller, file: u32) {
        let all = (file, 0)..=(file, u32::MAX);
        let slots: Vec<u32> = self.here.range(all.clone()).map(|(_, &slot)| slot).collect();
        for slot in slots {
            teller.gone(slot);
            self.leave(slot);
        }
        let below: Vec<_> = self.below.range(all).map(|(&piece, _)| piece).collect();
        for piece in below {
            self.below.remove(&piece);
        }
        teller.removed(file);
    }

    fn sink(&mut self, teller: &mut dyn Teller) {
        for _ in 0..MOVES_MAX {
            let out = match self.free() {
                free if free < FORCED_BELOW => Out::Forced,
                free if free < NORMAL_BELOW => Out::Normal,
                _ => return,
            };
            let marks = &mut self.marks;
            let victim = teller.victim(self.now, out, &mut |slot| marks.remove(&slot));
            let Some(piece) = victim.and_then(|slot| self.leave(slot)) else { return };
            self.cost.sank += 1;
            self.below.insert(piece, None);
        }
    }
}

//! Rows of the piece table, and the pieces of each file in order.
//!
//! The table that clients see lies in shared memory (`shm::pieces`) and is written by effects; this
//! is the target's own account of it.
//!
//!   Free --insert--> Used --leave--> Leaving --free--> Free
//!                                    (a client may still copy under its pin)
//!   Free --reserve--> Reserved --place--> Used        a piece that is filled first, or comes from
//!                     Reserved --unreserve--> Free    another place
//!   Used --depart--> Reserved                         a piece whose place no client reaches
//!
//! Invariants:
//!  1. `pieces` names exactly the used slots, and pieces of one file do not overlap.
//!  2. A leaving slot's place is not given back, and the slot is not used anew.

use std::collections::BTreeMap;
use std::ops::Bound;
use wire::Inode;
use wire::reply::Piece;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Row {
    Free,
    Used(Inode, Piece),
    Reserved,
    Leaving(Piece),
}

/// A slot that waits for pins to go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Leaver {
    slot: u32,
    /// The round of looking at pins that comes after it was hidden.
    round: u64,
}

/// The table.
#[derive(Clone, Debug)]
pub struct Slots {
    rows: Vec<Row>,
    free: Vec<u32>,
    count_max: u32,
    pieces: BTreeMap<(Inode, u64), u32>,
    leaving: Vec<Leaver>,
}

impl Slots {
    /// An empty table of `count_max` rows.
    #[must_use]
    pub const fn new(count_max: u32) -> Slots {
        Slots {
            rows: Vec::new(),
            free: Vec::new(),
            count_max,
            pieces: BTreeMap::new(),
            leaving: Vec::new(),
        }
    }

    /// A slot for a piece that comes next; it stays free until it is taken. `None` if all are.
    pub fn vacant(&mut self) -> Option<u32> {
        if self.free.is_empty() && self.rows.len() < self.count_max as usize {
            self.free.push(self.rows.len() as u32);
            self.rows.push(Row::Free);
        }
        self.free.last().copied()
    }

    /// Fills the slot that `vacant` named.
    pub fn insert(&mut self, inode: Inode, piece: Piece) {
        let slot = self.free.pop();
        assert_eq!(slot, Some(piece.slot), "a piece must take the slot that was vacant");
        self.fill(inode, piece);
    }

    /// A piece lies in its reserved slot from now on.
    pub fn place(&mut self, inode: Inode, piece: Piece) {
        let row = &mut self.rows[piece.slot as usize];
        assert_eq!(*row, Row::Reserved, "slot={} was not reserved", piece.slot);
        *row = Row::Free;
        self.fill(inode, piece);
    }

    fn fill(&mut self, inode: Inode, piece: Piece) {
        let row = &mut self.rows[piece.slot as usize];
        assert_eq!(*row, Row::Free, "slot={} is in use", piece.slot);
        *row = Row::Used(inode, piece);
        let before = self.pieces.insert((inode, piece.start), piece.slot);
        assert!(before.is_none(), "two pieces at start={}", piece.start);
    }

    /// Fills rows that were found after a kill, all at once, each with another slot.
    pub fn restore(&mut self, found: &[(Inode, Piece)]) {
        let count = found.iter().map(|(_, piece)| piece.slot + 1).max().unwrap_or(0);
        assert!(count <= self.count_max && self.rows.is_empty(), "restore into a used table");
        self.rows.resize(count as usize, Row::Free);
        for &(inode, piece) in found {
            self.fill(inode, piece);
        }
        let is_free = |slot: &u32| self.rows[*slot as usize] == Row::Free;
        self.free = (0..count).rev().filter(is_free).collect();
    }

    /// Puts back a piece that had left before a kill; its slot waits for pins until round `round` is
    /// answered. False if the slot holds something.
    pub fn restore_leaving(&mut self, piece: Piece, round: u64) -> bool {
        if !self.grow_to(piece.slot) {
            return false;
        }
        self.rows[piece.slot as usize] = Row::Leaving(piece);
        self.free.retain(|&slot| slot != piece.slot);
        self.leaving.push(Leaver { slot: piece.slot, round });
        true
    }

    fn used(&self, slot: u32) -> Piece {
        match self.rows.get(slot as usize) {
            Some(Row::Used(_, piece)) => *piece,
            other => unreachable!("slot={slot} holds {other:?}"),
        }
    }

    /// The piece of a slot and its file.
    #[must_use]
    pub fn get(&self, slot: u32) -> Option<(Inode, Piece)> {
        match self.rows.get(slot as usize) {
            Some(&Row::Used(inode, piece)) => Some((inode, piece)),
            _ => None,
        }
    }

    /// Takes a slot for a piece that comes from another place. `None` if all are taken.
    pub fn reserve(&mut self) -> Option<u32> {
        let slot = self.vacant()?;
        self.free.pop();
        self.rows[slot as usize] = Row::Reserved;
        Some(slot)
    }

    /// Gives a reserved slot back.
    pub fn unreserve(&mut self, slot: u32) {
        let row = &mut self.rows[slot as usize];
        assert_eq!(*row, Row::Reserved, "slot={slot} was not reserved");
        *row = Row::Free;
        self.free.push(slot);
    }

    /// The pieces of `inode` that hold a byte of `offset .. end`, in order.
    pub fn over(&self, inode: Inode, offset: u64, end: u64) -> impl Iterator<Item = Piece> {
        let before = self.pieces.range((inode, 0)..=(inode, offset)).next_back();
        let first = before
            .map(|(_, &slot)| self.used(slot))
            .filter(|piece| piece.start + piece.length() > offset && offset < end);
        let behind = (inode, offset.saturating_add(1))..(inode, end.max(offset.saturating_add(1)));
        first.into_iter().chain(self.pieces.range(behind).map(|(_, &slot)| self.used(slot)))
    }

    /// The first piece of `inode`.
    #[must_use]
    pub fn first(&self, inode: Inode) -> Option<Piece> {
        let (_, &slot) = self.pieces.range((inode, 0)..=(inode, u64::MAX)).next()?;
        Some(self.used(slot))
    }

    /// The piece of `inode` that begins at `start`.
    #[must_use]
    pub fn at(&self, inode: Inode, start: u64) -> Option<Piece> {
        self.pieces.get(&(inode, start)).map(|&slot| self.used(slot))
    }

    /// Takes a piece out of its file. Its slot waits for pins until round `round` is answered.
    pub fn leave(&mut self, inode: Inode, piece: &Piece, round: u64) {
        let slot = self.pieces.remove(&(inode, piece.start));
        assert_eq!(slot, Some(piece.slot), "a piece leaves that is not its file's");
        self.rows[piece.slot as usize] = Row::Leaving(*piece);
        self.leaving.push(Leaver { slot: piece.slot, round });
    }

    /// Takes a piece out of its file whose place no client reaches; its slot is reserved.
    pub fn depart(&mut self, inode: Inode, piece: &Piece) {
        let slot = self.pieces.remove(&(inode, piece.start));
        assert_eq!(slot, Some(piece.slot), "a piece leaves that is not its file's");
        self.rows[piece.slot as usize] = Row::Reserved;
    }

    /// Reserves this slot. False if it holds something, or there is none.
    pub fn reserve_at(&mut self, slot: u32) -> bool {
        if !self.grow_to(slot) {
            return false;
        }
        self.free.retain(|&free| free != slot);
        self.rows[slot as usize] = Row::Reserved;
        true
    }

    /// Sees to it that there is a row for a slot. False if it holds something, or can not be.
    fn grow_to(&mut self, slot: u32) -> bool {
        if slot >= self.count_max {
            return false;
        }
        while self.rows.len() <= slot as usize {
            self.free.push(self.rows.len() as u32);
            self.rows.push(Row::Free);
        }
        self.rows[slot as usize] == Row::Free
    }

    /// Frees what left in round `round` or before and is not among `pinned`; `with` gets each.
    pub fn free(&mut self, round: u64, pinned: &[u32], mut with: impl FnMut(Piece)) {
        let mut pinned = pinned.to_vec();
        pinned.sort_unstable();
        let Slots { rows, free, leaving, .. } = self;
        leaving.retain(|leaver| {
            if leaver.round > round || pinned.binary_search(&leaver.slot).is_ok() {
                return true;
            }
            let row = &mut rows[leaver.slot as usize];
            let Row::Leaving(piece) = *row else {
                unreachable!("slot={} is on the list and holds {row:?}", leaver.slot)
            };
            *row = Row::Free;
            free.push(leaver.slot);
            with(piece);
            false
        });
    }

    /// Slots that wait for pins to go.
    #[must_use]
    pub fn leaving_count(&self) -> usize {
        self.leaving.len()
    }

    /// True if some slot left after round `round`: its pins were not looked at yet.
    #[must_use]
    pub fn left_after(&self, round: u64) -> bool {
        self.leaving.last().is_some_and(|leaver| leaver.round > round)
    }

    /// The next file that has pieces.
    #[must_use]
    pub fn file_behind(&self, inode: Inode) -> Option<Inode> {
        let behind = (Bound::Excluded((inode, u64::MAX)), Bound::Unbounded);
        self.pieces.range(behind).next().map(|(&(inode, _), _)| inode)
    }

    /// All used slots with their files.
    pub fn iter(&self) -> impl Iterator<Item = (Inode, Piece)> {
        self.pieces.iter().map(|(&(inode, _), &slot)| (inode, self.used(slot)))
    }
}

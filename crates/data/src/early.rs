//! Early pieces: first pieces of files that do not exist yet, made by the numbers that they will have,
//! so that who makes such a file and writes to it finds its piece there (`shm::finder`) and asks nobody.
//!
//! An early piece is a hole: nothing is defined in it, and requests that look leave it out. It becomes
//! its file's own when bytes were written into it, which the caller sees and tells by
//! `Input::Wanted`, or when a request asks for it. Otherwise the caller takes it back by
//! `Input::Unwanted`, after it made sure that nobody writes any more.
//!
//!   none --MakeEarly--> early --Wanted, or a request that makes pieces--> a piece like any other
//!                       early --Unwanted, or a request that clears--> none
//!
//! Invariant: each file of `Target::early` has a piece of the smallest length at 0.

use crate::buddy::BLOCK_LOG2_MIN;
use crate::effect::{Defined, Effect};
use crate::target::Target;
use wire::Inode;
use wire::limits::PIECE_BYTES_MIN;
use wire::reply::Piece;

/// Early pieces are made only while more than one part in so many of the memory is free.
const FREE_PARTS: u64 = 4;
/// They take no more than one part in so many of it.
const EARLY_PARTS: u64 = 16;

impl Target {
    /// The early piece of a file.
    #[must_use]
    pub fn early(&self, inode: Inode) -> Option<Piece> {
        if self.early.contains(&inode) { self.slots.at(inode, 0) } else { None }
    }

    /// Bytes in early pieces.
    #[must_use]
    pub fn early_bytes(&self) -> u64 {
        self.early.len() as u64 * PIECE_BYTES_MIN
    }

    /// True once a request found no room because of early pieces, until they are gone.
    #[must_use]
    pub fn needs_early_back(&self) -> bool {
        self.needs_early
    }

    /// After a kill: these pieces, which were found, are early.
    pub fn restore_early(&mut self, inodes: impl Iterator<Item = Inode>) {
        for inode in inodes {
            if self.slots.at(inode, 0).is_some_and(|piece| piece.length() == PIECE_BYTES_MIN) {
                self.early.insert(inode);
            }
        }
    }

    fn has_room_for_early(&self) -> bool {
        let (total, free) = (self.memory.bytes_total(), self.memory.bytes_free());
        let used = self.memory.bytes_used() + self.ssd.bytes_used();
        free > total / FREE_PARTS
            && self.early_bytes() < total / EARLY_PARTS
            && used.saturating_add(PIECE_BYTES_MIN) <= self.quota_bytes
            && !self.is_waiting()
            && !self.needs_early
    }

    pub(crate) fn make_early(&mut self, inodes: &[Inode], out: &mut Vec<Effect>) {
        for &inode in inodes {
            if !self.has_room_for_early() {
                return;
            }
            let is_there = self.slots.over(inode, 0, PIECE_BYTES_MIN).next().is_some();
            if inode.is_none() || is_there || self.damaged.contains(&inode) {
                continue;
            }
            let Some(slot) = self.slots.vacant() else { return };
            // Only what is ready: nobody waits for this.
            let Some((place, _)) = self.memory.take_ready(BLOCK_LOG2_MIN) else { return };
            let (length_log2, tier) = (BLOCK_LOG2_MIN, Piece::MEMORY);
            let piece = Piece { start: 0, slot, place, length_log2, tier };
            self.slots.insert(inode, piece);
            self.early.insert(inode);
            out.push(Effect::Publish { inode, piece, defined: Defined::Early });
        }
    }

    pub(crate) fn keep_early(&mut self, inode: Inode, out: &mut Vec<Effect>) {
        if let Some(piece) = self.early(inode) {
            self.forget_early(inode);
            out.push(Effect::Keep { inode, piece });
        }
    }

    pub(crate) fn drop_early(&mut self, inode: Inode, out: &mut Vec<Effect>) {
        if let Some(piece) = self.early(inode) {
            self.give_back(inode, &piece, out);
        }
    }

    pub(crate) fn forget_early(&mut self, inode: Inode) {
        self.early.remove(&inode);
        self.needs_early &= !self.early.is_empty();
    }
}

//! Files that stay in memory: users call them pinned. Their pieces neither sink nor are dropped; those on
//! the SSD, made while memory was full, rise when they are not in use, too. (The pins of clients, which
//! keep a piece in its place for the time of a copy, are another thing.)
//!
//! A target learns it twice. Who asks for pieces of a file says what he knows of it: that counts for the
//! first of them. From then on the shard's word counts alone, told when it changes (`Request::Own`), as
//! clients may have opened the file before. Pieces bear a mark, so after a kill a file that has one with
//! it is resident.
//!
//!   not known --asked for by who says so--> resident     Effect::Mark
//!   not known, resident, not resident --Own--> resident, not resident     Effect::Mark
//!
//! Pieces of such a file are in no policy, so nothing is in the way of those that are. If they are clean,
//! that is remembered here until they are to be dropped as others.
//!
//! Invariants:
//!  1. `pieces` are the pieces in memory of resident files, but for early ones and those that move.
//!  2. `bytes` is the sum of their lengths.
//!  3. A slot of `clean` has a piece of a resident file.

use crate::effect::Effect;
use crate::target::Target;
use std::collections::{BTreeMap, BTreeSet};
use wire::reply::Piece;
use wire::request::RESIDENT_CHUNK;
use wire::{Inode, Request};

/// What is known of a file, since when.
#[derive(Clone, Copy, Debug)]
struct Word {
    is_resident: bool,
    since: i64,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub(crate) struct Residents {
    files: BTreeMap<Inode, Word>,
    pieces: BTreeMap<u32, u64>,
    bytes: u64,
    clean: BTreeSet<u32>,
}

impl Residents {
    fn contains(&self, inode: Inode) -> bool {
        self.files.get(&inode).is_some_and(|word| word.is_resident)
    }

    /// A piece is here, in memory, and stays.
    pub(crate) fn insert(&mut self, piece: &Piece) {
        if self.pieces.insert(piece.slot, piece.length()).is_none() {
            self.bytes += piece.length();
        }
    }

    /// A piece is here no longer, or moves.
    pub(crate) fn remove(&mut self, slot: u32) {
        self.bytes -= self.pieces.remove(&slot).unwrap_or(0);
    }

    /// A file is gone.
    pub(crate) fn forget(&mut self, inode: Inode) {
        self.files.remove(&inode);
    }
}

/// The file of which a request says that it is resident, if it makes pieces.
const fn named_by(request: &Request<'_>) -> Option<Inode> {
    let (inode, chunk, makes) = match *request {
        Request::MapPieces { inode, chunk_log2, allocate, .. } => {
            (inode, chunk_log2, allocate != 0 || inode.is_from_below())
        }
        Request::Write { inode, chunk_log2, .. } => (inode, chunk_log2, true),
        Request::Read { inode, chunk_log2, .. } => (inode, chunk_log2, inode.is_from_below()),
        _ => return None,
    };
    if makes && chunk & RESIDENT_CHUNK != 0 { Some(inode) } else { None }
}

impl Target {
    /// True if the pieces of a file stay in memory.
    #[must_use]
    pub fn is_resident(&self, inode: Inode) -> bool {
        self.residents.contains(inode)
    }

    /// Bytes of memory that stay, whatever room is needed.
    #[must_use]
    pub fn resident_bytes(&self) -> u64 {
        self.residents.bytes
    }

    /// After a kill: pieces of these files bear the mark.
    pub fn restore_residents(&mut self, found: impl Iterator<Item = Inode>, out: &mut Vec<Effect>) {
        for inode in found {
            self.make_resident(inode, true, i64::MIN, out);
        }
    }

    /// Takes what a request says of its file, if nothing is known yet.
    pub(crate) fn note_resident(&mut self, request: &Request<'_>, out: &mut Vec<Effect>) {
        let Some(inode) = named_by(request) else { return };
        let is_known = || {
            let mut pieces = self.slots.over(inode, 0, u64::MAX);
            self.residents.files.contains_key(&inode)
                || pieces.any(|piece| !self.early.contains(inode, &piece))
        };
        if !is_known() {
            self.make_resident(inode, true, i64::MIN, out);
        }
    }

    /// The shard's word of a file, of `since`.
    pub(crate) fn tell_resident(
        &mut self,
        inode: Inode,
        is_resident: bool,
        since: i64,
        out: &mut Vec<Effect>,
    ) {
        if self.residents.files.get(&inode).is_none_or(|word| word.since < since) {
            self.make_resident(inode, is_resident, since, out);
        }
    }

    fn make_resident(
        &mut self,
        inode: Inode,
        is_resident: bool,
        since: i64,
        out: &mut Vec<Effect>,
    ) {
        let was_resident = self.is_resident(inode);
        if was_resident == is_resident {
            self.residents.files.insert(inode, Word { is_resident, since });
            return;
        }
        // What is on its way to the SSD stays, too, and what rises will again.
        self.end_moves(inode, (0, u64::MAX), out);
        self.end_drops(inode, (0, u64::MAX), out);
        let pieces: Vec<Piece> = self.slots.over(inode, 0, u64::MAX).collect();
        let mut clean = BTreeSet::new();
        for piece in &pieces {
            self.unwatch(piece);
            if self.take_clean(piece) {
                clean.insert(piece.slot);
            }
        }
        self.residents.files.insert(inode, Word { is_resident, since });
        for piece in &pieces {
            out.push(Effect::Mark { slot: piece.slot, is_resident });
            let is_clean = clean.contains(&piece.slot);
            if is_clean || !self.early.contains(inode, piece) {
                self.watch_as(inode, piece, is_clean);
            }
        }
    }

    /// A piece of a file is here now, and all its bytes are below, too.
    pub(crate) fn watch_clean(&mut self, inode: Inode, piece: &Piece) {
        if self.is_resident(inode) {
            self.residents.clean.insert(piece.slot);
            self.watch(inode, piece);
        } else {
            self.unwatch(piece);
            let holder = self.holder(inode);
            self.clean.insert(holder, piece);
        }
    }

    /// A piece of a file is here again, or somewhere else, as clean as it was.
    pub(crate) fn watch_as(&mut self, inode: Inode, piece: &Piece, is_clean: bool) {
        match is_clean {
            true => self.watch_clean(inode, piece),
            false => self.watch(inode, piece),
        }
    }

    /// A piece is its file's no longer, or moves. True if it was clean when that was looked at last.
    pub(crate) fn take_clean(&mut self, piece: &Piece) -> bool {
        self.clean.remove(piece) || self.residents.clean.remove(&piece.slot)
    }

    /// Holds the invariants, for tests: it looks at all pieces.
    #[cfg(test)]
    pub(crate) fn check_residents(&self) {
        let stays = |(inode, piece): &(Inode, Piece)| {
            self.is_resident(*inode)
                && piece.tier == Piece::MEMORY
                && !self.early.contains(*inode, piece)
                && !self.is_moving(*inode, piece.start)
        };
        let stay = self.slots.iter().filter(stays).map(|(_, piece)| (piece.slot, piece.length()));
        assert_eq!(stay.collect::<BTreeMap<_, _>>(), self.residents.pieces);
        assert_eq!(self.residents.pieces.values().sum::<u64>(), self.residents.bytes);
        for &slot in &self.residents.clean {
            let (inode, piece) = self.slots.get(slot).expect("a clean piece is none");
            assert!(self.is_resident(inode) && !self.clean.contains(&piece));
        }
    }
}
